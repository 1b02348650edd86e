//! Connections in TIME-WAIT (RFC 9293 §3.6.1): what is needed to answer the peer's last FIN again
//! and to tell a new connection from an old segment, without a connection's queues.

use crate::tcp::{Segment, Seq};
use crate::time::{Duration, Instant};
use crate::wire::tcp::{Flags, Header};
use alloc::collections::VecDeque;
use core::hash::BuildHasher;
use core::net::SocketAddr;
use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// How long a closed connection is remembered: Linux's 60 s, not the RFC's four minutes.
pub(super) const TIME_WAIT: Duration = Duration::from_secs(60);

/// One remembered connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) snd_nxt: Seq,
    pub(super) rcv_nxt: Seq,
    /// The peer's latest timestamp, and ours, if the connection used them.
    pub(super) timestamps: Option<(u32, u32)>,
    /// When the last answer to a segment without data went out.
    pub(super) answered_at: Option<Instant>,
}

/// What a segment means to a remembered connection.
pub(super) enum Arrival {
    /// A new connection may take its place.
    Reopen,
    /// Answer with this header.
    Answer(Header),
    /// Nothing to do.
    Ignore,
}

impl Remembered {
    /// What `segment` means. Those without data are answered once in `interval`, as Linux's
    /// tcp_timewait_check_oow_rate_limit has it: they may be forged (RFC 5961 §7).
    pub(super) fn arrival(
        &mut self,
        segment: &Segment,
        interval: Duration,
        now: Instant,
    ) -> Arrival {
        let header = &segment.header;
        if header.flags.contains(Flags::RST) {
            return Arrival::Ignore;
        }
        let newer = Seq(header.sequence).after(self.rcv_nxt)
            || match (self.timestamps, segment.options.timestamps) {
                (Some((recent, _)), Some((value, _))) => Seq(value).after(Seq(recent)),
                _ => false,
            };
        // RFC 6191.
        if header.flags.contains(Flags::SYN) && !header.flags.contains(Flags::ACK) && newer {
            return Arrival::Reopen;
        }
        // A bare ACK is answered only if it is a probe: two that remember differently would answer
        // each other for ever.
        let takes_numbers = segment.len > 0 || header.flags.intersects(Flags::SYN | Flags::FIN);
        if !takes_numbers && Seq(header.sequence).at_or_after(self.rcv_nxt) {
            return Arrival::Ignore;
        }
        let data = segment.len > 0 || header.flags.contains(Flags::FIN);
        if !data || header.flags.contains(Flags::SYN) {
            if self.answered_at.is_some_and(|at| now.since(at) < interval) {
                return Arrival::Ignore;
            }
            self.answered_at = Some(now);
        }
        Arrival::Answer(Header {
            source_port: self.local.port(),
            destination_port: self.remote.port(),
            sequence: self.snd_nxt.0,
            acknowledgment: self.rcv_nxt.0,
            flags: Flags::ACK,
            window: 0,
            checksum: 0,
            urgent: 0,
            header_len: 0,
        })
    }
}

/// All of them, oldest first. A table of fixed-size entries found by hash.
pub(super) struct TimeWait {
    index: HashTable<(SocketAddr, SocketAddr, u64)>,
    queue: VecDeque<(Instant, Option<Remembered>)>,
    /// Number of the first entry of `queue`, counting from the start of the stack.
    first: u64,
    hasher: FixedState,
    limit: usize,
}

impl TimeWait {
    pub(super) fn new(limit: usize, seed: u64) -> Self {
        Self {
            index: HashTable::new(),
            queue: VecDeque::new(),
            first: 0,
            hasher: FixedState::with_seed(seed),
            limit,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn find(&self, local: SocketAddr, remote: SocketAddr) -> Option<&Remembered> {
        self.queue.get(self.place(local, remote)?)?.1.as_ref()
    }

    pub(super) fn find_mut(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Option<&mut Remembered> {
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

    pub(super) fn insert(&mut self, entry: Remembered, now: Instant) {
        self.remove(entry.local, entry.remote);
        // Entries that were reopened leave a place in the queue until their time: bounded too.
        while self.index.len() >= self.limit || self.queue.len() >= 2 * self.limit {
            self.drop_oldest();
        }
        let number = self.first + self.queue.len() as u64;
        let hash = self.hasher.hash_one((entry.local, entry.remote));
        let hasher = &self.hasher;
        self.index.insert_unique(hash, (entry.local, entry.remote, number), |e| {
            hasher.hash_one((e.0, e.1))
        });
        self.queue.push_back((now + TIME_WAIT, Some(entry)));
    }

    pub(super) fn remove(&mut self, local: SocketAddr, remote: SocketAddr) {
        let hash = self.hasher.hash_one((local, remote));
        if let Ok(found) = self.index.find_entry(hash, |e| e.0 == local && e.1 == remote) {
            let ((.., number), _) = found.remove();
            self.queue[(number - self.first) as usize].1 = None;
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.queue.front().map(|entry| entry.0)
    }

    pub(super) fn on_deadline(&mut self, now: Instant) {
        while self.queue.front().is_some_and(|entry| entry.0 <= now) {
            self.drop_oldest();
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
