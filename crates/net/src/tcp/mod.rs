//! TCP (RFC 9293): one connection as a plain value.
//!
//! # Theory of operation
//!
//! A [`Connection`] is driven by four kinds of calls and never does anything on its own:
//!
//! - [`Connection::input`] takes one parsed segment and its payload pieces;
//! - [`Connection::output`] builds the next packet to send, until it returns `None`;
//! - [`Connection::on_deadline`] acts on timers when [`Connection::deadline`] has passed;
//! - the owner's calls: `send`, `received`/`consume`, `close_send`, `abort`.
//!
//! What the owner should know is collected in [`Events`]. Send and receive queues are queues of
//! pieces: payload is lent from the sender's buffers to the last retransmission, and from the
//! received packet to the reader, without being copied.
//!
//! One concern per file: `seq` numbers, `queue` pieces in order, `reassembly` pieces ahead of
//! their turn, `rtt` timeouts, `scoreboard` what is outstanding, `congestion` how much may be,
//! `state` its words, `sides` its fields, `settings` what all share, `connection` the owner's
//! calls, `input` segments that arrive, `ack` what they acknowledge, `output`, `transmit` how much
//! goes out, `writes` where the owner's writes end, `buffer` room for more, `back_pressure` waiting
//! for a slower side, `tuning` the buffer for
//! what is received, `window` how much of it is offered, `pacing` at what rate,
//! `chrono` what limited it, `rate` how fast it arrives, `stamps` when, `timers`, `path` how large
//! segments may be, `probing` the search for that.
//!
//! Super-packets: what is sent is as large as windows, the device and the queue allow; what is
//! received may be as large. ACKs are built when output is asked for, once per burst of input.

mod ack;
mod acking;
mod back_pressure;
mod buffer;
mod chrono;
pub mod congestion;
mod connection;
mod deferral;
pub mod ecn;
pub mod fastopen;
pub mod info;
mod input;
mod orphan;
mod output;
pub mod pacing;
mod path;
mod probing;
pub mod queue;
mod rack;
mod rate;
pub mod reassembly;
mod recovery;
mod refusal;
mod resend;
pub mod rtt;
pub mod scoreboard;
pub mod seq;
mod settings;
mod sides;
pub mod stamps;
mod state;
mod syn;
pub mod syncookie;
mod timers;
mod transmit;
mod tuning;
mod undo;
mod urgent;
mod window;
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
pub(crate) use sides::Remains;
pub use stamps::{Stamp, Stamped, Stamping};
pub use state::{ConnectionError, Events, State};
