//! What an instance does for its program: the calls, as methods of it and of what its lock guards.
//! Arguments are slices, errors are numbers.

mod datagram;
mod ending;
mod handed;
mod lending;
mod link;
mod messages;
pub(crate) mod options;
pub(crate) mod poll;
mod sockets;
mod splice;
mod stats;
mod stream;
