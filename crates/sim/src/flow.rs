//! One side of a connection as an application sees it: writes a known stream in odd sizes, reads
//! and judges the other's, pauses, closes or aborts.

use crate::oracle;
use crate::seed::{Ppm, Rng};
use std::net::SocketAddr;
use towpath_net::stack::{Stack, TcpHandle};
use towpath_net::tcp::{Connection, ConnectionError, Events};
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Loans, Memory, Piece};

/// What a flow does once it has written everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Closes its direction and reads on.
    Close,
    /// Closes its direction only after the other has.
    CloseAfterPeer,
    /// Resets the connection.
    Abort,
    /// Does nothing.
    Stay,
}

/// What an application does with a connection.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes to write.
    pub write: u64,
    /// Smallest single write, if there is room for it and so much is left.
    pub write_min: usize,
    /// Largest single write.
    pub write_max: usize,
    /// What follows the last byte.
    pub ending: Ending,
    /// Chance of a pause after each read.
    pub pause: Ppm,
    /// Longest pause.
    pub pause_max: Duration,
    /// Nothing is read before this long after the start.
    pub read_after: Duration,
    /// Most bytes read at once.
    pub read_max: usize,
    /// Small segments go out at once.
    pub nodelay: bool,
    /// Where it accepts: what comes is said to be answered within so long.
    pub answers_within: Option<Duration>,
    /// An answer is late as soon as there is nothing to do.
    pub sleeps_on_answers: bool,
    /// Probes an idle peer.
    pub keepalive: bool,
    /// The handle is let go as soon as the direction is closed.
    pub release_early: bool,
    /// Both sides speak in turn.
    pub turns: Option<Turns>,
    /// How long it stays idle before the ending.
    pub idle: Duration,
}

/// Requests and answers.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// Speaks first.
    pub first: bool,
    /// Bytes of each turn of this side.
    pub ours: u64,
    /// Bytes of each turn of the other.
    pub theirs: u64,
}

impl Turns {
    /// How much may be written after so much was read.
    fn limit(&self, read: u64) -> u64 {
        (read / self.theirs + u64::from(self.first)).saturating_mul(self.ours)
    }
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            write: 0,
            write_min: 1,
            write_max: 64 << 10,
            ending: Ending::Close,
            pause: 0,
            pause_max: Duration::ZERO,
            read_after: Duration::ZERO,
            read_max: usize::MAX,
            nodelay: false,
            answers_within: None,
            sleeps_on_answers: false,
            keepalive: false,
            release_early: false,
            turns: None,
            idle: Duration::ZERO,
        }
    }
}

/// One side of a connection.
pub struct Flow {
    /// The connection; `None` once released.
    pub handle: Option<TcpHandle>,
    /// Its own endpoint.
    pub local: SocketAddr,
    /// What it does.
    pub plan: Plan,
    /// Stream that it writes.
    pub writes: u64,
    /// Stream that it expects.
    pub reads: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// The peer's FIN came.
    pub peer_closed: bool,
    /// The handshake was over.
    pub established: bool,
    /// The connection ended, and how.
    pub closed: Option<Option<ConnectionError>>,
    /// What was found wrong.
    pub problem: Option<String>,
    /// When it last got anywhere.
    pub progress: Instant,
    closing: bool,
    probing: bool,
    next_read: Instant,
    /// When the ending is due, once everything is written.
    end_at: Option<Instant>,
}

impl Flow {
    /// A flow for `handle`, started at `now`.
    /// Writes and reads the streams of these numbers.
    pub fn new(
        handle: TcpHandle,
        local: SocketAddr,
        plan: Plan,
        (writes, reads): (u64, u64),
        now: Instant,
    ) -> Self {
        Self {
            handle: Some(handle),
            local,
            plan,
            writes,
            reads,
            written: 0,
            read: 0,
            peer_closed: false,
            established: false,
            closed: None,
            problem: None,
            progress: now,
            closing: false,
            probing: false,
            next_read: now + plan.read_after,
            end_at: None,
        }
    }

    /// True when there is nothing left to do.
    pub fn is_done(&self) -> bool {
        self.handle.is_none()
    }

    /// When it wants to act without an event.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let end = self.end_at.filter(|_| !self.closing);
        let times = [Some(self.next_read), end].into_iter().flatten();
        times.filter(|at| !self.is_done() && *at > now).min()
    }

    /// Takes note of what the stack says.
    pub fn on_events(&mut self, events: Events) {
        if self.closed.is_some() {
            self.complain(format!("{events:?} after the end"));
        }
        self.established |= events.contains(Events::ESTABLISHED);
        let data = events.contains(Events::READABLE) || events.contains(Events::WRITABLE);
        if data && !self.established {
            self.complain(format!("{events:?} before the connection was open"));
        }
    }

    /// Lets the application act; true if it did anything.
    pub fn act(
        &mut self,
        stack: &mut Stack,
        memory: &mut Memory,
        loans: &mut Loans,
        rng: &mut Rng,
        now: Instant,
    ) -> bool {
        let Some(handle) = self.handle else { return false };
        if stack.tcp(handle).is_none() {
            self.complain("the connection is gone before it was released".into());
            self.handle = None;
            return true;
        }
        let before = (self.written, self.read, self.peer_closed, self.closing);
        let acted = stack.with_tcp(handle, now, |connection| {
            if self.plan.keepalive && self.established && !self.probing {
                self.probing = true;
                connection.set_keepalive(true, now);
            }
            let read = self.read_some(connection, rng, now);
            let wrote = self.write_some(connection, memory, loans, rng);
            let acted = read | wrote | self.end(connection, now);
            if self.plan.sleeps_on_answers && !acted {
                connection.answer_is_late();
            }
            acted
        });
        if before != (self.written, self.read, self.peer_closed, self.closing) {
            self.progress = now;
        }
        let connection = stack.tcp(handle).expect("it was there");
        let over = connection.state() == towpath_net::tcp::State::Closed
            || connection.state() == towpath_net::tcp::State::TimeWait;
        let early = self.plan.release_early && self.closing;
        if (over && connection.received_len() == 0) || early {
            self.closed = Some(connection.error());
            self.handle = None;
            stack.tcp_release(handle, now);
            return true;
        }
        acted.unwrap_or(false)
    }

    fn read_some(&mut self, connection: &mut Connection, rng: &mut Rng, now: Instant) -> bool {
        let available = connection.received_len().min(self.plan.read_max);
        if available > 0 && now >= self.next_read {
            let mut left = available;
            for piece in connection.received() {
                let bytes = piece.bytes().expect("simulated memory is private");
                let bytes = &bytes[..bytes.len().min(left)];
                if !oracle::matches(self.reads, self.read, bytes) {
                    self.problem.get_or_insert(format!("wrong bytes read at {}", self.read));
                }
                self.read += bytes.len() as u64;
                left -= bytes.len();
                if left == 0 {
                    break;
                }
            }
            connection.consume(available);
            if rng.chance(self.plan.pause) {
                self.next_read = now + rng.duration(self.plan.pause_max);
            }
        }
        if connection.peer_closed() && connection.received_len() == 0 {
            self.peer_closed = true;
        }
        available > 0 && now >= self.next_read
    }

    fn write_some(
        &mut self,
        connection: &mut Connection,
        memory: &mut Memory,
        loans: &mut Loans,
        rng: &mut Rng,
    ) -> bool {
        let mut wrote = false;
        connection.set_nodelay(self.plan.nodelay);
        let limit = self.plan.turns.map_or(u64::MAX, |turns| turns.limit(self.read));
        let limit = limit.min(self.plan.write);
        while self.written < limit {
            let room = connection.send_room() as u64;
            let most = room.min(limit - self.written).min(self.plan.write_max as u64);
            if most == 0 {
                break;
            }
            let least = most.min(self.plan.write_min as u64);
            let len = if rng.chance(500_000) { most } else { rng.between(least, most) };
            let Some(piece) = self.lend(len as usize, memory, loans, rng) else { break };
            connection.send(piece);
            self.written += len;
            wrote = true;
        }
        wrote
    }

    /// The next `len` bytes of the stream, in a frame or in memory of the application.
    fn lend(
        &self,
        len: usize,
        memory: &mut Memory,
        loans: &mut Loans,
        rng: &mut Rng,
    ) -> Option<Piece> {
        if len <= memory.large.frame_bytes() && rng.chance(500_000) {
            let mut frame = memory.large.take()?;
            oracle::fill(self.writes, self.written, &mut frame[..len]);
            return Some(frame.freeze(len));
        }
        let mut bytes = vec![0; len].into_boxed_slice();
        oracle::fill(self.writes, self.written, &mut bytes);
        loans.lend_owned(bytes).ok()
    }

    fn end(&mut self, connection: &mut Connection, now: Instant) -> bool {
        if self.closing || self.written < self.plan.write || !self.established {
            return false;
        }
        let end_at = *self.end_at.get_or_insert(now + self.plan.idle);
        if now < end_at {
            return false;
        }
        match self.plan.ending {
            Ending::Close => connection.close_send(),
            Ending::CloseAfterPeer if self.peer_closed => connection.close_send(),
            Ending::CloseAfterPeer => return false,
            Ending::Abort => connection.abort(),
            Ending::Stay => {}
        }
        self.closing = true;
        true
    }

    fn complain(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }
}
