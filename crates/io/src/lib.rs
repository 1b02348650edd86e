//! The operating system side of towpath: devices, host sockets, the reactor and capture files.
//!
//! One thread at a time drives each object. No call blocks unless its documentation says so.
//! Payload moves by address: a read fills pool frames, which become pieces; a write passes the
//! addresses of pieces to the kernel. Three things copy payload: delivery into guest memory, a
//! `stream` that receives one frame in many small reads, and an AF_XDP `uplink` that sends.
//!
//! Unsafe code is allowed in `sys` and `process_sys` (one safe function per system call), in
//! `gather` (pins of foreign memory that a call reads), in `vhost_user::{shared, memory, sigbus}`
//! (memory that guests write), in `sealed` (mappings that no process can write), in `large_pages`
//! (blocks of a mapping), in `events::ring` (buffers that the kernel uses until an operation
//! completes), in `uplink::calls` (system calls of uplinks) and in `uplink::umem` (memory and rings
//! of AF_XDP sockets).
//!
//! The modules are ordered, and each uses only modules before it: `gather → {doorbell, filter,
//! large_pages, log_files, mount, outside, process_sys, random, receive, sealed, sys} → {direct,
//! endpoint, netlink, reactor, socket, tap} → {namespace, pcapng, stream, thread, uplink} →
//! {confine, events, vhost_user} → {fuzz, native}`.
#![deny(unsafe_code)]
#![cfg_attr(not(feature = "confine"), allow(dead_code, reason = "only this feature has a broker"))]

#[cfg(feature = "confine")]
pub mod confine;
pub mod direct;
pub mod doorbell;
pub mod endpoint;
pub mod events;
pub mod filter;
#[doc(hidden)]
pub mod fuzz;
mod gather;
pub mod large_pages;
pub mod log_files;
pub mod mount;
pub mod namespace;
#[cfg(feature = "confine")]
pub mod native;
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
pub mod uplink;
pub mod vhost_user;

pub use sys::release_pages;
