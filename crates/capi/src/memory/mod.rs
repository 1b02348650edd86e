//! What crosses the boundary to C as bytes: addresses, control messages, and memory that the
//! program names by pointers.

pub(crate) mod address;
pub(crate) mod control;
mod page_state;
pub(crate) mod pointers;
