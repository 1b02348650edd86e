//! towpath: a user-space network for Linux in which payload bytes stay where they are.
//!
//! [`host`] gives a program a TCP/IP stack of its own, with sockets whose sends lend their buffers.
//! [`events`] has the event queue, which waits for sockets, timers, files and everything else. The
//! feature `tokio` adds sockets for tokio tasks; the features `hyper-util`, `axum` and `tonic` make
//! hosts usable by these crates.
//!
//! Modules form a line, and each uses only those before it: `{device, driver} → host → {events,
//! tokio}`.
#![forbid(unsafe_code)]

pub mod device;
pub mod driver;
pub mod events;
pub mod host;
#[cfg(feature = "tokio")]
pub mod tokio;

/// Checks that the recipes of the cookbook compile.
#[cfg(all(doctest, feature = "axum", feature = "bytes", feature = "tonic"))]
#[doc = include_str!("../../../docs/cookbook.md")]
mod cookbook {}

/// The packages below this one, for programs that implement devices or sockets. Their contents may
/// change with every release.
pub mod layers {
    pub use towpath_io as io;
    pub use towpath_net as net;
    pub use towpath_packet as packet;
}
