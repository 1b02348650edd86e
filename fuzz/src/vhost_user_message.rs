//! Target: what front ends send over the socket of a vhost-user device, descriptors included.

use towpath_io::fuzz;

/// A train of messages, to a device that carries them out.
pub fn run(data: &[u8]) {
    fuzz::vhost_user_front_end(data);
}
