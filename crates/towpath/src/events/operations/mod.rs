//! Operations: how a program starts them and takes their results.

pub(in crate::events) mod completion;
pub(in crate::events) mod datagrams;
pub(in crate::events) mod files;
pub(in crate::events) mod groups;
pub(in crate::events) mod jobs;
pub(in crate::events) mod streams;
pub(in crate::events) mod tasks;
pub(in crate::events) mod transfer;
