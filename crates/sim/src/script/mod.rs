//! Scripts: what one TCP connection must do, call by call and segment by segment, in virtual time.
//!
//! # Theory of operation
//!
//! A script is a text of steps. Each step has a time and says what the application calls, what
//! arrives, or what must leave:
//!
//! ```text
//! `sysctl net.ipv4.tcp_sack=0`              // settings, before all else
//! 0    socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
//! +0   bind(3, ..., ...) = 0
//! +0   listen(3, 1) = 0
//! +0   < S 0:0(0) win 65535 <mss 1000>      // arrives
//! +0   > S. 0:0(0) ack 1 <mss 1460>         // must leave
//! +.1  < . 1:1(0) ack 1 win 65535
//! +0   accept(3, ..., ...) = 4
//! +0   %{ assert tcpi_snd_mss == 1000 }%    // what TCP_INFO must say of the latest descriptor
//! +0   read(4, ..., 10) = -1 EAGAIN         // or `+0...0.2 read(` for a call that waits
//! ```
//!
//! [`Script::parse`] reads it; [`run`](Script::run) plays it on a [`Subject`], which is a stack of
//! this project or a kernel. Times: `1.5` from the start, `+.1` from the step before, `+.1~+.2`
//! within, `*` whenever. Numbers of both directions begin with 0 at the SYN; timestamps of the
//! subject are those of its first segment on. Options are compared in order; `<...>` takes any,
//! none written means none sent. `win` is compared if written; `p.` is `.` or `P.`. Every segment
//! that leaves must be expected, also at the end. Payload is a pattern that depends on its place in
//! the stream and is checked both ways; `fill 65` sends other bytes, and `read(4, [65], 10)` wants
//! them. Malformed options are written in bytes, as in `<hex 0203>`.
//!
//! The words are those of packetdrill where it has them, so that most scripts run there too.
//! Any text may be parsed: what cannot be understood is an [`Error`] with its line.

mod call;
mod cursor;
mod frame;
mod machine;
mod numbers;
mod packet;
mod parse;
mod play;
mod subject;
#[cfg(test)]
mod tests;

pub use call::{Call, Expected, Fd, Value, errno_name};
pub use frame::{Ends, Live, icmp_frame};
pub use machine::Machine;
pub use packet::{Icmp, IcmpKind, Segment, TcpOption};
pub use play::{Observed, Tolerance};
pub use subject::{LISTEN_PORT, Outcome, REMOTE_MAC, REMOTE_PORT, Subject};

use std::fmt;

/// Microseconds since the start of a script.
pub type Micros = u64;

/// What is wrong with a script, or with what it was played on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The line, from 1.
    pub line: usize,
    /// What.
    pub what: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.what)
    }
}

/// A script.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// Over IPv6.
    pub v6: bool,
    /// Settings by name, with the value as text.
    pub settings: Vec<(String, String)>,
    /// Steps in order.
    pub steps: Vec<Step>,
}

/// A step of a script.
#[derive(Clone, Debug)]
pub struct Step {
    /// Line of the script.
    pub line: usize,
    /// When.
    pub when: When,
    /// What.
    pub action: Action,
}

/// When a step happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this time.
    At(Micros),
    /// This long after the step before.
    After(Micros),
    /// At least and at most this long after the step before.
    Between(Micros, Micros),
    /// Begins this long after the step before, and returns that long after it.
    Waiting(Micros, Micros),
    /// Whenever.
    Any,
}

/// What happens in a step.
#[derive(Clone, Debug)]
pub enum Action {
    /// The application calls.
    Call(Call, Expected),
    /// A segment arrives.
    Inject(Segment),
    /// An ICMP error arrives.
    InjectIcmp(Icmp),
    /// A segment must leave.
    Expect(Segment),
    /// TCP_INFO must say this.
    Assert(Vec<Assertion>),
}

/// A comparison with a field of TCP_INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// Name of the field, with its `tcpi_`.
    pub field: String,
    /// How to compare.
    pub comparison: Comparison,
    /// With what.
    pub value: i64,
}

/// How an assertion compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<=`
    AtMost,
    /// `>=`
    AtLeast,
    /// `<`
    Below,
    /// `>`
    Above,
}

impl Comparison {
    /// Whether `left` compares with `right` in this way.
    pub fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Comparison::Equal => left == right,
            Comparison::NotEqual => left != right,
            Comparison::AtMost => left <= right,
            Comparison::AtLeast => left >= right,
            Comparison::Below => left < right,
            Comparison::Above => left > right,
        }
    }
}
