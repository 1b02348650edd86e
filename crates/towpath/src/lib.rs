//! towpath: a user-space network for Linux in which payload bytes stay where they are.
//!
//! [`host`] is for programs that want a stack of their own, with sockets whose sends lend;
//! [`events`] is where they wait for all that can happen. `tokio`, a feature, has the sockets of
//! hosts for tasks.
//!
//! Modules form a line, and each uses only those before it: `host → {events, tokio}`.
#![forbid(unsafe_code)]

pub mod events;
pub mod host;
#[cfg(feature = "tokio")]
pub mod tokio;
