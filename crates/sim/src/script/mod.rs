//! Scripts: the required behaviour of one TCP connection, call by call and segment by segment, in
//! virtual time.
//!
//! # Theory of operation
//!
//! A script is a text of steps. Each step has a time and describes a call of the application, a
//! segment that arrives, or a segment that must leave:
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
//! +0   %{ assert tcpi_snd_mss == 1000 }%    // required TCP_INFO of the latest descriptor
//! +0   read(4, ..., 10) = -1 EAGAIN         // or `+0...0.2 read(` for a call that waits
//! ```
//!
//! [`Script::parse`] parses it; [`run`](Script::run) plays it on a [`Subject`], which is a stack of
//! this project or a kernel. Times: `1.5` counts from the start, `+.1` from the previous step,
//! `+.1~+.2` is an interval, `*` is any time. Sequence numbers of both directions start with 0 at
//! the SYN; timestamps of the subject count from its first segment. Options are compared in order;
//! `<...>` accepts any, and no options means that none are sent. `win` is compared if it is given;
//! `p.` is `.` or `P.`. Every segment that leaves must be expected, also at the end. Payload is a
//! pattern that depends on its position in the stream, and is checked in both directions; `fill 65`
//! sends other bytes, and `read(4, [65], 10)` requires them. Malformed options are given in bytes,
//! as in `<hex 0203>`.
//!
//! The syntax is packetdrill's where packetdrill has one, so most scripts also run there. Any text
//! may be parsed: text that is not understood is an [`Error`] with its line.

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

/// An error of a script, or of the subject on which it was played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The line, from 1.
    pub line: usize,
    /// The description.
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
    /// The script uses IPv6.
    pub v6: bool,
    /// Settings by name, with their values as text.
    pub settings: Vec<(String, String)>,
    /// The steps in order.
    pub steps: Vec<Step>,
}

/// A step of a script.
#[derive(Clone, Debug)]
pub struct Step {
    /// Line in the script.
    pub line: usize,
    /// The time.
    pub when: When,
    /// The action.
    pub action: Action,
}

/// The time of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this time from the start.
    At(Micros),
    /// This long after the previous step.
    After(Micros),
    /// Between these times after the previous step.
    Between(Micros, Micros),
    /// Starts at the first time after the previous step, and returns at the second.
    Waiting(Micros, Micros),
    /// At any time.
    Any,
}

/// The action of a step.
#[derive(Clone, Debug)]
pub enum Action {
    /// The application makes a call.
    Call(Call, Expected),
    /// A segment arrives.
    Inject(Segment),
    /// An ICMP error arrives.
    InjectIcmp(Icmp),
    /// A segment must leave.
    Expect(Segment),
    /// A field of TCP_INFO must have this value.
    Assert(Vec<Assertion>),
}

/// A comparison with a field of TCP_INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// Name of the field, including `tcpi_`.
    pub field: String,
    /// The comparison.
    pub comparison: Comparison,
    /// The value to compare with.
    pub value: i64,
}

/// The comparison of an assertion.
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
    /// True if the comparison holds for `left` and `right`.
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
