//! What event queues do with the sockets of a host: operations that go on by themselves.

pub(crate) mod operation;
pub(in crate::host) mod posted;
pub(crate) mod receive_file;
pub(crate) mod send_file;
