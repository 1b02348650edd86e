//! What a control socket and a network's file say: requests, objects and the operations in them.
//!
//! All of it is text that somebody sends. It is read without side effects and refused with a
//! reason.

pub mod fields;
pub mod http;
pub mod operations;
