//! Protocols of towpath: wire formats, checksums, offload, IP, ICMP, UDP, TCP and the stack.
//!
//! This crate does no I/O and reads no clock: state, `now` and a burst of packets go in; a burst,
//! events and the next deadline come out. The compiler enforces this by `no_std` and
//! `forbid(unsafe_code)`.
//!
//! Modules form a line; each may use only those to its left (checked by `cargo xtask tidy`):
//! `{counters, slab} → wire → bpf → checksum → gso → {gro, fragment} → {switch, vxlan} → random →
//! neighbor → pmtu_mode → tcp → stack → socket → engine`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bpf;
pub mod checksum;
pub mod counters;
pub mod engine;
pub mod fragment;
pub mod gro;
pub mod gso;
pub mod neighbor;
pub mod pmtu_mode;
mod random;
pub mod slab;
pub mod socket;
pub mod stack;
pub mod switch;
pub mod tcp;
pub mod vxlan;
pub mod wire;

pub use towpath_packet::time;
