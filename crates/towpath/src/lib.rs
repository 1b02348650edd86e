//! towpath: a user-space network for Linux in which payload bytes stay where they are.
//!
//! [`host`] is for programs that want a stack of their own, with sockets whose sends lend;
//! [`events`] is where they wait for all that can happen. `tokio`, a feature, has the sockets of
//! hosts for tasks; the features `hyper-util`, `axum` and `tonic` let these crates use them.
//!
//! Modules form a line, and each uses only those before it:
//! `{device, driver} → host → {events, tokio}`.
#![forbid(unsafe_code)]

pub mod device;
pub mod driver;
pub mod events;
pub mod host;
#[cfg(feature = "tokio")]
pub mod tokio;

/// The recipes of the cookbook compile.
#[cfg(all(doctest, feature = "axum", feature = "bytes", feature = "tonic"))]
#[doc = include_str!("../../../docs/cookbook.md")]
mod cookbook {}

/// The packages below: for programs that make devices or sockets of their own. What is in them may
/// change with every release.
pub mod layers {
    pub use towpath_io as io;
    pub use towpath_net as net;
    pub use towpath_packet as packet;
}
