//! Scripts: a segment in, a segment expected, time passed, nothing expected.
//!
//! Each test plays the peer of one connection and names the clause that it is about. The language
//! is that of [`script::Script`]; numbers are relative to each side's initial sequence number.

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
mod probing;
mod rack;
mod recovery;
mod script;
mod urgent;
mod window;
