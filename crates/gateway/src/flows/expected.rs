//! Packets expected very soon: the next packets of a connection that has just begun, and answers of
//! hosts on this machine, for which ACKs to the program wait.
//!
//! The ACK of a request waits only while the thread is awake, and at most for [`LATE_AFTER`]. A
//! program that sends a request in two parts without `TCP_NODELAY` waits for the ACK of the first
//! part (RFC 896), and the gateway cannot tell a part from a whole request. No sender waits for the
//! ACK of a FIN, so only that ACK has a timer ([`FIN_WAIT`]).

use super::{Gateway, Io};
use towpath_net::stack::TcpHandle;
use towpath_net::tcp::Connection;
use towpath_net::time::{Duration, Instant};

/// How long the ACK of the program's FIN waits for the FIN of a host on this machine. It lies
/// beyond the kernel's next tick, as an earlier timer costs as much as the ACK.
const FIN_WAIT: Duration = Duration::from_millis(10);
/// How long the ACK of a request waits while the thread has other work: a few turns.
const LATE_AFTER: Duration = Duration::from_micros(100);
/// How long a connection counts as young: twice the time that a connection with one byte each way
/// takes from beginning to end.
const YOUNG: Duration = Duration::from_micros(200);

/// The connections that the thread polls for, and the ACKs that wait.
#[derive(Debug)]
pub(super) struct Expected {
    /// Connections whose ACKs wait for answers; `since` is when the first began to wait.
    answers: Vec<TcpHandle>,
    since: Instant,
    /// The last connection that began is young until then.
    young_until: Instant,
}

impl Expected {
    pub(super) const fn new() -> Self {
        Self { answers: Vec::new(), since: Instant::START, young_until: Instant::START }
    }

    /// A connection begins whose next packets are made on this machine: it leads here, or to the
    /// program, which answers the SYN.
    pub(super) fn connection_begins(&mut self, now: Instant) {
        self.young_until = now + YOUNG;
    }
}

impl Gateway {
    /// The program's connection leads to this machine, so an answer to its request is near.
    pub(super) fn expect_answers(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        self.expected.connection_begins(io.now);
        io.stack.with_tcp(handle, io.now, |connection| connection.expect_answers(FIN_WAIT));
    }

    /// Data of the program was passed on: notes the connection if its ACK waits.
    pub(super) fn note_awaited(&mut self, handle: TcpHandle, io: &Io<'_>) {
        if io.stack.tcp(handle).is_some_and(Connection::awaits_answer) {
            if self.expected.answers.is_empty() {
                self.expected.since = io.now;
            }
            self.expected.answers.push(handle);
        }
    }

    /// Returns true if a connection has begun so recently that its next packets are near.
    pub(crate) fn has_young_flow(&self, now: Instant) -> bool {
        now < self.expected.young_until
    }

    /// Returns true if ACKs wait for answers.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.expected.answers.is_empty()
    }

    /// The thread has polled and found no events: sends the waiting ACKs.
    pub(crate) fn answers_are_late(&mut self, io: &mut Io<'_>) {
        for handle in self.expected.answers.drain(..) {
            io.stack.with_tcp(handle, io.now, Connection::answer_is_late);
        }
    }

    /// Ends waits longer than [`LATE_AFTER`]. Called at the end of a turn, for a thread that always
    /// has work.
    pub(super) fn end_long_waits(&mut self, io: &mut Io<'_>) {
        if self.awaits_answers() && io.now.since(self.expected.since) >= LATE_AFTER {
            self.answers_are_late(io);
        }
    }
}
