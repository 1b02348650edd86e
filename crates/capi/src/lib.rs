//! C library of towpath: sockets as POSIX and Linux have them, on a stack in this process.
//!
//! # Theory of operation
//!
//! An [`Instance`] is a [driver](towpath::driver) whose state has a table of descriptors. A call
//! takes the lock, does what the sockets let it do now, sends what follows from it on its own
//! thread, and returns. A blocking call that cannot go on waits on a condition variable until
//! something has changed. There is no hidden state: two instances in one process know nothing of
//! each other.
//!
//! An instance is on a device, which a worker drives, or on a *wire*, whose packets the caller
//! moves.
//!
//! Descriptor numbers are real ones: each is held by an eventfd, so that it can never be that
//! of a file of the kernel's.
//!
//! `abi` has the functions that C sees, and only they handle pointers, with `memory::pointers`;
//! everything below them is safe code that takes slices. Errors are Linux's numbers.
//!
//! With the feature `packetdrill` the library has one more entry point, for the test tool of that
//! name.
//!
//! Modules form a line, and each uses only those before it: `{errno, wire} → table → memory →
//! instance → calls → queue → abi → packetdrill`.
#![deny(unsafe_code)]

pub mod abi;
mod calls;
mod errno;
mod instance;
mod memory;
#[cfg(feature = "packetdrill")]
mod packetdrill;
mod queue;
mod table;
mod wire;

pub use calls::poll::Polled;
pub use errno::Errno;
pub use instance::{Config, Instance};
pub use queue::{Queue, Told};
pub use table::epoll::EpollEvent;
