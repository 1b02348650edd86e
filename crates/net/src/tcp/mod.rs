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
//! # Modules
//!
//! They form a line; each may use only those before it (checked by `cargo xtask tidy`):
//!
//! - values: `seq`, `state`, `segment`, `egress`, `plan`, `ecn`, `rtt` (RFC 6298), `fastopen`,
//!   `congestion` (RFC 5681, 9438), `settings`, `timestamps` (RFC 7323), `syncookie`;
//! - data structures: `queue`, `writes`, `stamps`, `reassembly`, `rate`, `scoreboard`;
//! - parts of a connection: `pacing`, `keepalive`, `handshake`, `receiver`, `loss` (RFC 8985, 6675,
//!   6582, 6298, 5682, 4015, 6937), `sender`;
//! - `connection` routes between these parts.
//!
//! Super-packets: a sent packet is as large as the windows, the device and the queue allow, and a
//! received one may be as large. ACKs are built when output is requested, once per burst of input.

pub mod congestion;
mod connection;
pub mod ecn;
mod egress;
pub mod fastopen;
mod handshake;
pub mod info;
mod keepalive;
mod loss;
pub mod pacing;
mod plan;
pub mod queue;
mod rate;
pub mod reassembly;
mod receiver;
pub mod rtt;
pub mod scoreboard;
mod segment;
mod sender;
pub mod seq;
mod settings;
pub mod stamps;
mod state;
pub mod syncookie;
mod timestamps;
mod writes;

pub(crate) use connection::TimeWaitState;
pub use connection::{Connection, Opening};
pub use egress::{DATA_UNDER_PRESSURE, Egress, Pressure};
pub use info::Info;
pub use segment::{Segment, Verdict};
pub use sender::SegmentSizes;
pub use seq::Seq;
pub use settings::{CHALLENGES_UNLIMITED, FinWait, Settings};
pub use stamps::{Stamp, Stamped, Stamping};
pub use state::{ConnectionError, Events, State};
pub(crate) use timestamps::PAWS_VALID;
