//! A burst: up to [`BURST_MAX`] packets moved in one call, first in, first out.

use crate::packet::{Dropping, Packet};

/// Most packets of one burst: enough to spread a call's cost, few enough to stay in the cache.
pub const BURST_MAX: usize = 64;

/// An array of packets.
pub struct Burst {
    packets: [Option<Packet>; BURST_MAX],
    head: usize,
    tail: usize,
    limit: usize,
}

impl Default for Burst {
    fn default() -> Self {
        Self::new()
    }
}

impl Burst {
    /// An empty burst.
    pub const fn new() -> Self {
        Self::limited(BURST_MAX)
    }

    /// An empty burst that is full with `limit` packets, at least one and at most [`BURST_MAX`].
    pub const fn limited(limit: usize) -> Self {
        assert!(limit > 0 && limit <= BURST_MAX);
        Self { packets: [const { None }; BURST_MAX], head: 0, tail: 0, limit }
    }

    /// Has an empty burst full with `limit` packets from now on, at least one and at most
    /// [`BURST_MAX`].
    ///
    /// # Panics
    /// If it is not empty, or for another limit.
    pub fn limit(&mut self, limit: usize) {
        assert!(self.is_empty() && limit > 0 && limit <= BURST_MAX);
        (self.head, self.tail, self.limit) = (0, 0, limit);
    }

    /// Packets in the burst.
    pub fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Frames that a device makes of these packets.
    pub fn frames(&self) -> usize {
        self.iter().map(Packet::frames).sum()
    }

    /// True if there is no packet.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// True if no packet can be added before the burst has been emptied.
    pub fn is_full(&self) -> bool {
        self.tail == self.limit
    }

    /// Packets that can be added before the burst has been emptied.
    pub fn room(&self) -> usize {
        self.limit - self.tail
    }

    /// Adds a packet at the end; hands it back if the burst is full.
    #[inline]
    pub fn push(&mut self, packet: Packet) -> Result<(), Packet> {
        if self.is_full() {
            return Err(packet);
        }
        self.packets[self.tail] = Some(packet);
        self.tail += 1;
        Ok(())
    }

    /// Takes the first packet.
    pub fn pop(&mut self) -> Option<Packet> {
        if self.is_empty() {
            return None;
        }
        let packet = self.packets[self.head].take();
        self.head += 1;
        if self.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
        packet
    }

    /// The first packet, left in place.
    pub fn first(&self) -> Option<&Packet> {
        self.packets.get(self.head)?.as_ref()
    }

    /// The packets, first to last.
    pub fn iter(&self) -> impl Iterator<Item = &Packet> + Clone {
        self.packets[self.head..self.tail].iter().flatten()
    }

    /// As [`Packet::prefetch`], for all.
    #[inline]
    pub fn prefetch(&self) {
        self.iter().for_each(Packet::prefetch);
    }

    /// The packets, to be taken from the front; [`taken`](Self::taken) tells how many were.
    pub(crate) fn packets_mut(&mut self) -> &mut [Option<Packet>] {
        &mut self.packets[self.head..self.tail]
    }

    /// The first `count` packets were taken.
    pub(crate) fn taken(&mut self, count: usize) {
        assert!(count <= self.len());
        self.head += count;
        if self.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
    }

    /// Empty places at the end; [`added`](Self::added) tells how many were filled.
    pub(crate) fn places_mut(&mut self) -> &mut [Option<Packet>] {
        &mut self.packets[self.tail..self.limit]
    }

    /// The first `count` places were filled.
    pub(crate) fn added(&mut self, count: usize) {
        assert!(count <= self.limit - self.tail);
        self.tail += count;
    }

    /// The packets, first to last, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Packet> {
        self.packets[self.head..self.tail].iter_mut().flatten()
    }

    /// Drops all packets.
    pub fn clear(&mut self) {
        self.drop_front(self.len());
    }

    /// Drops the first `count` packets, for less than one by one.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn drop_front(&mut self, count: usize) {
        let mut dropping = Dropping::default();
        for packet in &mut self.packets_mut()[..count] {
            packet.take().into_iter().for_each(|packet| dropping.add(packet));
        }
        self.taken(count);
    }
}
