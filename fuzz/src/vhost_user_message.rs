//! Target: messages of front ends over the socket of a vhost-user device, with descriptors.

use towpath_io::fuzz;

/// Sends a sequence of messages to a device that executes them.
pub fn run(data: &[u8]) {
    fuzz::vhost_user_front_end(data);
}
