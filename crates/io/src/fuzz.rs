//! Parsers of bytes from the kernel and from front ends, for the repository's fuzz targets. Not a
//! public interface.
//!
//! The parsers are private. Each function here feeds one of them and asserts what must hold for any
//! bytes.

pub use crate::netlink::fuzz::{messages as netlink_messages, reply as netlink_reply};
pub use crate::socket::fuzz::{address as socket_address, control as socket_control, echo_reply};
pub use crate::tap::self_test::frame::fuzz as self_test_frame;
pub use crate::vhost_user::fuzz::front_end as vhost_user_front_end;
