//! towpath: a user-space network for Linux in which payload bytes stay where they are.
//!
//! [`host`] is for programs that want a stack of their own, with sockets whose sends lend;
//! [`events`] is where they wait for all that can happen.
//!
//! Modules form a line, and each uses only those before it: `host → events`.
#![forbid(unsafe_code)]

pub mod events;
pub mod host;
