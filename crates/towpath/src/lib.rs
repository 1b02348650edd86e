//! towpath: a user-space network for Linux in which payload bytes stay where they are.
//!
//! [`host`] gives a program a TCP/IP stack of its own, with sockets whose sends lend their buffers.
//! [`events`] has the event queue, which waits for sockets, timers, files and everything else. The
//! feature `tokio` adds sockets for tokio tasks; the features `hyper-util`, `axum` and `tonic` make
//! hosts usable by these crates.
//!
//! # Compatibility
//!
//! Structs that programs fill in, such as [`host::Config`], [`events::Config`] and
//! [`host::SendTo`], are open, so that `Config { registrations: 64, ..Config::default() }` works. A
//! release may add fields to them: end each such expression with `..`, even if it names all fields.
//! Types that only the library makes and that may grow, such as events, results, errors and
//! statistics, are `#[non_exhaustive]`, and so are enums that may get variants.
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

    /// Whether a call lends or copies, as [`SendMode::Auto`](crate::host::SendMode::Auto) decides.
    pub mod choosing {
        pub use crate::host::choosing::auto::{Choice, Chooser, Outcome};
        pub use crate::host::choosing::calibration::{break_even, process_time};
        pub use crate::host::choosing::trials::{Costs, Gauge};
    }
}
