//! What the kernel and front ends hand over as bytes, for the fuzz targets of the repository: not
//! an interface.
//!
//! The parsers are private; each function here feeds one of them and asserts what must hold
//! whatever the bytes are.

pub use crate::netlink::fuzz::reply as netlink_reply;
pub use crate::socket::fuzz::{address as socket_address, control as socket_control, echo_reply};
pub use crate::tap::self_test::frame::fuzz as self_test_frame;
pub use crate::vhost_user::fuzz::front_end as vhost_user_front_end;
