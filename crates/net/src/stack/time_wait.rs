//! Connections in TIME-WAIT (RFC 9293 §3.6.1): the state needed to answer a retransmitted FIN and
//! to distinguish a new connection from an old segment, without a connection's queues.

use crate::tcp::{Connection, PAWS_VALID, Segment, Seq, TimeWaitState};
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, Header, Options};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::net::SocketAddr;
use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// Duration of TIME-WAIT: Linux's 60 s, not the four minutes of the RFC.
pub(super) const TIME_WAIT: Duration = Duration::from_secs(60);

/// A reset with an old timestamp is accepted if the latest timestamp is older than this
/// (`tests/scripts/timestamps_in_time_wait.pkt`).
const RESET_PAWS_VALID: Duration = Duration::from_secs(60);

/// State of one connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeWaitEntry {
    local: SocketAddr,
    remote: SocketAddr,
    pub(super) state: TimeWaitState,
    /// End of TIME-WAIT; restarted when the peer seems to have lost our last ACK.
    until: Instant,
    /// When a segment without data was last answered.
    answered_at: Option<Instant>,
}

/// Effect of a segment on a connection in TIME-WAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A new connection may replace it if there is a listener; otherwise send an answer.
    Reopen,
    /// Send an answer.
    Answer,
    /// End TIME-WAIT.
    End,
    /// Drop the segment.
    Ignore,
}

impl TimeWaitEntry {
    pub(super) fn new(connection: &Connection, now: Instant) -> Self {
        let (local, remote) = (connection.local(), connection.remote());
        let until = now + TIME_WAIT;
        Self { local, remote, state: connection.time_wait_state(), until, answered_at: None }
    }

    /// Processes a segment. A reset ends the state (RFC 1337 §3 advises against it; tcp(7),
    /// `tcp_rfc1337` 0; `tests/scripts/reset_in_time_wait.pkt`). Segments without data are answered
    /// once per `interval`: they may be forged (RFC 5961 §7), and two ends with different state
    /// would answer each other without end.
    pub(super) fn arrival(
        &mut self,
        segment: &Segment,
        interval: Duration,
        now: Instant,
    ) -> Arrival {
        let flags = segment.header.flags;
        let (syn, reset) = (flags.contains(Flags::SYN), flags.contains(Flags::RST));
        let (seq, next) = (Seq(segment.header.sequence), self.state.rcv_nxt);
        let takes_numbers = segment.len > 0 || flags.intersects(Flags::SYN | Flags::FIN);
        let timestamps = &mut self.state.timestamps;
        let value = timestamps.of(segment);
        let age = timestamps.age(now);
        let believed = age >= PAWS_VALID || (reset && age >= RESET_PAWS_VALID);
        let recent = Seq(timestamps.recent());
        let old = value.is_some_and(|value| Seq(value).before(recent)) && !believed;
        if !old && seq == next && (reset || !takes_numbers) {
            if reset {
                return Arrival::End;
            }
            if let Some(value) = value {
                timestamps.set_recent(value, now);
            }
            self.until = now + TIME_WAIT;
            return Arrival::Ignore;
        }
        if reset {
            return Arrival::Ignore;
        }
        // RFC 6191.
        let newer = seq.after(next) || value.is_some_and(|value| Seq(value).after(recent));
        if syn && !flags.contains(Flags::ACK) && newer && !old {
            return Arrival::Reopen;
        }
        if old || flags.contains(Flags::ACK) {
            self.until = now + TIME_WAIT;
        }
        if !takes_numbers || syn {
            if self.answered_at.is_some_and(|at| now.since(at) < interval) {
                return Arrival::Ignore;
            }
            self.answered_at = Some(now);
        }
        Arrival::Answer
    }

    /// Builds the last ACK of the connection.
    pub(super) fn answer(&self, now: Instant) -> (Header, Options) {
        let TimeWaitState { snd_nxt, rcv_nxt, window, timestamps } = self.state;
        let header = Header {
            source_port: self.local.port(),
            destination_port: self.remote.port(),
            sequence: snd_nxt.0,
            acknowledgment: rcv_nxt.0,
            flags: Flags::ACK,
            window,
            checksum: 0,
            urgent: 0,
            header_len: 0,
        };
        let timestamps = timestamps.enabled().then(|| timestamps.option(now));
        (header, Options { timestamps, ..Options::default() })
    }
}

/// All connections in TIME-WAIT, oldest first, found by hash. A restarted entry is requeued at the
/// end when its original time is over. It may stay longer than its time, but less than twice as
/// long.
pub(super) struct TimeWait {
    index: HashTable<(SocketAddr, SocketAddr, u64)>,
    queue: VecDeque<(Instant, Option<TimeWaitEntry>)>,
    /// Number of the first entry of `queue`, counted since the start of the stack.
    first: u64,
    hasher: FixedState,
    limit: usize,
}

impl TimeWait {
    pub(super) fn new(limit: usize, hasher: FixedState) -> Self {
        Self { index: HashTable::new(), queue: VecDeque::new(), first: 0, hasher, limit }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<&TimeWaitEntry> {
        self.queue.get(self.place(local, remote)?)?.1.as_ref()
    }

    pub(super) fn find_mut(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<&mut TimeWaitEntry> {
        let place = self.place(local, remote)?;
        self.queue.get_mut(place)?.1.as_mut()
    }

    fn place(&self, local: SocketAddr, remote: SocketAddr) -> Option<usize> {
        if self.index.is_empty() {
            return None;
        }
        let hash = self.hasher.hash_one((local, remote));
        let &(.., number) = self.index.find(hash, |e| e.0 == local && e.1 == remote)?;
        Some((number - self.first) as usize)
    }

    pub(super) fn insert(&mut self, entry: TimeWaitEntry) {
        self.remove(entry.local, entry.remote);
        // Removed entries keep their place in the queue until their time, so the queue is bounded
        // too.
        while self.index.len() >= self.limit || self.queue.len() >= 2 * self.limit {
            self.drop_oldest();
        }
        let number = self.first + self.queue.len() as u64;
        let hash = self.hasher.hash_one((entry.local, entry.remote));
        let hasher = &self.hasher;
        self.index.insert_unique(hash, (entry.local, entry.remote, number), |e| {
            hasher.hash_one((e.0, e.1))
        });
        let last = self.queue.back().map_or(entry.until, |last| last.0);
        self.queue.push_back((entry.until.max(last), Some(entry)));
    }

    pub(super) fn remove(&mut self, local: SocketAddr, remote: SocketAddr) {
        let hash = self.hasher.hash_one((local, remote));
        if let Ok(found) = self.index.find_entry(hash, |e| e.0 == local && e.1 == remote) {
            let ((.., number), _) = found.remove();
            self.queue[(number - self.first) as usize].1 = None;
        }
    }

    /// Removes and returns the entries that `is_wanted` selects by their local and their remote
    /// address. Visits all entries.
    pub(super) fn take(
        &mut self,
        mut is_wanted: impl FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> Vec<TimeWaitEntry> {
        let entries = self.queue.iter().filter_map(|(_, entry)| *entry);
        let taken: Vec<_> = entries.filter(|entry| is_wanted(entry.local, entry.remote)).collect();
        taken.iter().for_each(|entry| self.remove(entry.local, entry.remote));
        taken
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.queue.front().map(|entry| entry.0)
    }

    pub(super) fn on_deadline(&mut self, now: Instant) {
        while let Some(&(at, entry)) = self.queue.front()
            && at <= now
        {
            self.drop_oldest();
            if let Some(entry) = entry.filter(|entry| entry.until > now) {
                self.insert(entry);
            }
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, Some(entry))) = self.queue.front() {
            let (local, remote) = (entry.local, entry.remote);
            self.remove(local, remote);
        }
        self.queue.pop_front();
        self.first += 1;
    }
}
