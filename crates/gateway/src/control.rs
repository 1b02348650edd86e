//! Input of the control socket and of network files: requests, objects and the operations in them.
//!
//! All of it is untrusted text. It is parsed without side effects, and rejected with a reason.

pub mod egress;
pub mod fields;
pub mod http;
pub mod operations;
