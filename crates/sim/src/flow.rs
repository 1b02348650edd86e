//! One side of a connection as an application: it writes a known stream in various sizes, reads and
//! checks the peer's stream, pauses, closes or aborts.

use crate::oracle;
use crate::seed::{Ppm, Rng};
use std::net::SocketAddr;
use towpath_net::stack::{Stack, TcpHandle};
use towpath_net::tcp::{Connection, ConnectionError, Events};
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Loans, Memory, Piece};

/// What a flow does after it has written everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Closes its direction and continues to read.
    Close,
    /// Closes its direction after the peer has closed.
    CloseAfterPeer,
    /// Resets the connection.
    Abort,
    /// Does nothing.
    Stay,
}

/// How an application uses a connection.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes to write.
    pub write: u64,
    /// Smallest single write, if there is room and enough is left.
    pub write_min: usize,
    /// Largest single write.
    pub write_max: usize,
    /// The action after the last byte.
    pub ending: Ending,
    /// Probability of a pause after each read.
    pub pause: Ppm,
    /// Longest pause.
    pub pause_max: Duration,
    /// No byte is read before this time after the start.
    pub read_after: Duration,
    /// Most bytes read at once.
    pub read_max: usize,
    /// Small segments are sent at once.
    pub nodelay: bool,
    /// For accepted connections: announces that requests are answered within this time.
    pub answers_within: Option<Duration>,
    /// Announces a late answer as soon as there is no work.
    pub sleeps_on_answers: bool,
    /// Sends keepalive probes to an idle peer.
    pub keepalive: bool,
    /// Releases the handle as soon as the direction is closed.
    pub release_early: bool,
    /// Both sides write in turns.
    pub turns: Option<Turns>,
    /// Idle time before the ending.
    pub idle: Duration,
}

/// Requests and answers in turns.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// This side begins.
    pub first: bool,
    /// Bytes of each turn of this side.
    pub ours: u64,
    /// Bytes of each turn of the peer.
    pub theirs: u64,
}

impl Turns {
    /// Most bytes that may be written after `read` bytes were read.
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
    /// The connection; `None` after its release.
    pub handle: Option<TcpHandle>,
    /// The local endpoint.
    pub local: SocketAddr,
    /// The plan of the application.
    pub plan: Plan,
    /// Number of the stream that it writes.
    pub writes: u64,
    /// Number of the stream that it expects.
    pub reads: u64,
    /// Bytes written.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// The peer's FIN was received.
    pub peer_closed: bool,
    /// The handshake is complete.
    pub established: bool,
    /// The connection has ended, with this error or none.
    pub closed: Option<Option<ConnectionError>>,
    /// The first error found.
    pub problem: Option<String>,
    /// When it last made progress.
    pub progress: Instant,
    closing: bool,
    probing: bool,
    next_read: Instant,
    /// When the ending is due, after everything was written.
    end_at: Option<Instant>,
}

impl Flow {
    /// Makes a flow for `handle`, started at `now`, which writes and reads the streams with these
    /// numbers.
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

    /// True when no work is left.
    pub fn is_done(&self) -> bool {
        self.handle.is_none()
    }

    /// When it acts next without an event.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let end = self.end_at.filter(|_| !self.closing);
        let times = [Some(self.next_read), end].into_iter().flatten();
        times.filter(|at| !self.is_done() && *at > now).min()
    }

    /// Records events of the stack.
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

    /// Lets the application act. True if it did anything.
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

    /// The next `len` bytes of the stream, in a frame or in memory of the application. Frames are
    /// left for received packets, as sockets leave them.
    fn lend(
        &self,
        len: usize,
        memory: &mut Memory,
        loans: &mut Loans,
        rng: &mut Rng,
    ) -> Option<Piece> {
        if len <= memory.large.frame_bytes() && rng.chance(500_000) {
            // As programs do, whose short writes share frames: otherwise a byte could hold 16 KiB.
            let is_small = len <= memory.small.frame_bytes();
            let pool = if is_small { &mut memory.small } else { &mut memory.large };
            let reserve = pool.capacity() / RESERVE_DIVISOR;
            if pool.free_count() <= reserve {
                return None;
            }
            let mut frame = pool.take()?;
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

/// The part of each pool that writes leave to received packets. If send queues could hold all
/// frames of two hosts, neither could take the other's data and the ACK in it, and neither would
/// get a frame back.
const RESERVE_DIVISOR: usize = 4;
