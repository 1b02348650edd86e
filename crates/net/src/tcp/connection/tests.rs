//! Scripts: a segment arrives, a segment is expected, time passes, nothing is expected.
//!
//! Each test plays the peer of one connection and names the clause that it checks.
//! [`script::Script`] describes the language. Numbers are relative to each side's initial sequence
//! number.

mod acks;
mod back_pressure;
mod bulk;
mod close;
mod device;
mod ecn;
mod fastopen;
mod hostile;
mod info;
mod open;
mod pacing;
mod probing;
mod rack;
mod recovery;
mod script;
mod urgent;
mod window;
