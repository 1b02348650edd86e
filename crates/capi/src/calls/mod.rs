//! The calls of a program, as methods of an instance and of the state behind its lock. Arguments
//! are slices; errors are numbers.

mod choosing;
mod datagram;
mod ending;
mod lending;
mod lent_receive;
mod link;
mod messages;
pub(crate) mod options;
pub(crate) mod poll;
mod send_file;
mod sockets;
mod splice;
mod stats;
mod stream;
