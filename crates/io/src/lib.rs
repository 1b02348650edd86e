//! The operating system side of towpath: devices, host sockets, the reactor and capture files.
//!
//! Everything here is driven by one thread at a time; nothing blocks unless it says so. Payload
//! moves by address: a read fills pool frames that become pieces, a write is handed the addresses
//! of pieces. Only what goes into a guest is copied, and what a `stream` brings in bits.
//!
//! Unsafe code is allowed in `sys` and `process_sys`, one safe function per system call, in
//! `vhost_user::{shared, memory, cut}`, for memory that guests write, in `sealed`, for mappings
//! that nobody does, in `large_pages`, for blocks of a mapping, and in `events::ring`, for buffers
//! that the kernel uses until it says so.
//!
//! Modules form a line, and each uses only those before it: `{doorbell, large_pages, mount,
//! outside, process_sys, random, receive, sealed, sys} → {direct, endpoint, netlink, reactor,
//! socket, tap} → {namespace, pcapng, stream, thread} → {confine, events, vhost_user} → fuzz`.
#![deny(unsafe_code)]
#![cfg_attr(not(feature = "confine"), allow(dead_code, reason = "a broker is only there with it"))]

#[cfg(feature = "confine")]
pub mod confine;
pub mod direct;
pub mod doorbell;
pub mod endpoint;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
pub mod large_pages;
pub mod mount;
pub mod namespace;
pub mod netlink;
pub mod outside;
pub mod pcapng;
pub mod process_sys;
pub mod random;
pub mod reactor;
pub mod receive;
pub mod sealed;
pub mod socket;
pub mod stream;
mod sys;
pub mod tap;
pub mod thread;
pub mod vhost_user;

pub use sys::release_pages;
