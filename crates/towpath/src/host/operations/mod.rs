//! Asynchronous operations of event queues on the sockets of a host.

pub(crate) mod operation;
pub(in crate::host) mod posted_receive;
pub(crate) mod receive_file;
pub(crate) mod send_file;
