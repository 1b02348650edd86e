//! What an instance does for its program: the calls, as methods of it and of what its lock guards.
//! Arguments are slices, errors are numbers.

pub(crate) mod datagram;
pub(crate) mod ending;
pub(crate) mod handed;
pub(crate) mod lending;
mod link;
pub(crate) mod options;
pub(crate) mod poll;
mod splice;
mod stats;
mod stream;
