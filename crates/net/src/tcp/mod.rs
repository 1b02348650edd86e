//! TCP (RFC 9293): one connection as a plain value.
//!
//! # Theory of operation
//!
//! A [`Connection`] is driven by four kinds of calls and never does anything on its own:
//!
//! - [`Connection::input`] takes one parsed segment and its payload pieces;
//! - [`Connection::output`] builds the next packet to send, or returns `None`;
//! - [`Connection::on_deadline`] runs the timers when [`Connection::deadline`] has passed;
//! - the owner's calls: `send`, `received`/`consume`, `close_send`, `abort`.
//!
//! [`Events`] collects everything that the owner should learn. Send and receive queues hold pieces:
//! payload is lent from the sender's buffers until the last retransmission, and from the received
//! packet to the reader. It is never copied.
//!
//! Each file has one concern:
//!
//! - `connection` the owner's calls, `sender` and `receiver` its fields, `state` state and events,
//!   `settings` values that all connections share, `seq` sequence numbers;
//! - `input` segment arrival, `ack` acknowledgments, `reassembly` out-of-order pieces,
//!   `receive_window` the advertised window, `tuning` the receive buffer, `back_pressure` a slower
//!   side behind the owner;
//! - `output` packets to build, `transmit` how much to send, `writes` where the owner's writes end,
//!   `buffer` room in the send buffer, `queue` pieces in order, `pacing` the sending rate;
//! - `scoreboard` data outstanding, `congestion` the congestion window, `rtt` timeouts, `rate` the
//!   delivery rate, `timers` deadlines, `chrono` what limited the sender, `stamps` transmit
//!   timestamps;
//! - `path` segment sizes, `mtu_probe` the search for the path MTU.
//!
//! Super-packets: a sent packet is as large as the windows, the device and the queue allow, and a
//! received one may be as large. ACKs are built when output is requested, once per burst of input.

mod ack;
mod acking;
mod back_pressure;
mod buffer;
mod chrono;
pub mod congestion;
mod connection;
mod defer_accept;
pub mod ecn;
pub mod fastopen;
pub mod info;
mod input;
mod local_drop;
mod mtu_probe;
mod orphan;
mod output;
pub mod pacing;
mod path;
pub mod queue;
mod rack;
mod rate;
pub mod reassembly;
mod receive_window;
mod receiver;
mod recovery;
mod resend;
pub mod rtt;
pub mod scoreboard;
mod sender;
pub mod seq;
mod settings;
pub mod stamps;
mod state;
mod syn;
pub mod syncookie;
mod timers;
mod timestamps;
mod transmit;
mod tuning;
mod undo;
mod urgent;
mod writes;

#[cfg(test)]
mod tests;

pub use connection::{Connection, Opening, Segment};
pub use info::Info;
pub(crate) use input::PAWS_VALID;
pub use input::Verdict;
pub use orphan::FinWait;
pub use output::{DATA_UNDER_PRESSURE, Egress, Pressure};
pub use path::SegmentSizes;
pub use seq::Seq;
pub use settings::{CHALLENGES_UNLIMITED, Settings};
pub use stamps::{Stamp, Stamped, Stamping};
pub use state::{ConnectionError, Events, State};
pub(crate) use timestamps::TimeWaitState;
