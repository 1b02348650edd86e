//! The operating system side of towpath: devices, host sockets, the reactor and capture files.
//!
//! Everything here is driven by one thread at a time; nothing blocks unless it says so. Payload
//! moves by address: a read fills pool frames that become pieces, a write is handed the addresses
//! of pieces. No module copies payload.
//!
//! Unsafe code is allowed in `sys` and `process_sys` only: one safe function per system call.
#![deny(unsafe_code)]

#[doc(hidden)]
pub mod fuzz;
pub mod mount;
pub mod namespace;
pub mod netlink;
pub mod pcapng;
pub mod process_sys;
pub mod reactor;
pub mod receive;
pub mod socket;
mod sys;
pub mod tap;
pub mod vhost_user;
