//! C library of towpath: POSIX and Linux sockets on a TCP/IP stack in this process.
//!
//! # Theory of operation
//!
//! An [`Instance`] is a [driver](towpath::driver) whose state contains a table of descriptors. A
//! call takes the lock, does what the sockets allow at that time, sends the resulting packets on
//! its own thread, and returns. A blocking call that cannot continue waits on a condition variable
//! until something has changed. There is no hidden state: two instances in one process share
//! nothing.
//!
//! An instance is attached to a device, which a worker drives, or to a *wire*, whose packets the
//! caller moves.
//!
//! Descriptor numbers are real: a duplicate of an eventfd reserves each of them, so none can be a
//! file of the kernel.
//!
//! `abi` contains the functions that C calls. Only they handle pointers, with `memory::pointers`;
//! all code below is safe and takes slices. Errors are Linux's numbers.
//!
//! With the feature `packetdrill` the library has an additional entry point, for the test tool of
//! that name.
//!
//! Modules form a line, and each uses only those before it: `{errno, held, wire} → table → memory →
//! instance → calls → queue → abi → packetdrill`.
#![deny(unsafe_code)]

pub mod abi;
mod calls;
mod errno;
mod held;
mod instance;
mod memory;
#[cfg(feature = "packetdrill")]
mod packetdrill;
mod queue;
mod table;
mod wire;

pub use calls::poll::Polled;
pub use errno::Errno;
pub use held::{Counted, Held};
pub use instance::{Config, Instance};
pub use queue::{Queue, TowpathEvent};
pub use table::epoll::EpollEvent;
