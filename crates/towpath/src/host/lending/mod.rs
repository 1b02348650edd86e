//! Buffers that are lent to be sent: ownership, budgets, and how they come back.

pub(crate) mod any;
pub(in crate::host) mod budget;
pub(in crate::host) mod buffers;
pub(in crate::host) mod gather;
pub(in crate::host) mod lend;
pub(in crate::host) mod queue;
pub(in crate::host) mod sending;
pub(in crate::host) mod stretch;
pub(in crate::host) mod ticket;
