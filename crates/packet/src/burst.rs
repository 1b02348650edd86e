//! A burst: up to [`BURST_MAX`] packets that one call moves, first in, first out.

use crate::packet::{Dropping, Packet, PacketPool};
use crate::pool::Memory;

/// Most packets of one burst: enough to amortise the cost of a call, few enough to stay in the
/// cache.
pub const BURST_MAX: usize = 64;

/// An array of packets, used as a queue.
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

    /// An empty burst that is full when it contains `limit` packets, at least one and at most
    /// [`BURST_MAX`].
    pub const fn limited(limit: usize) -> Self {
        assert!(limit > 0 && limit <= BURST_MAX);
        Self { packets: [const { None }; BURST_MAX], head: 0, tail: 0, limit }
    }

    /// Sets the number of packets at which an empty burst is full, at least one and at most
    /// [`BURST_MAX`].
    ///
    /// # Panics
    /// If the burst is not empty, or if the limit is out of range.
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

    /// True if the burst contains no packets.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// True if no packet can be added before the burst was emptied.
    pub fn is_full(&self) -> bool {
        self.tail == self.limit
    }

    /// Packets that can be added before the burst was emptied.
    pub fn room(&self) -> usize {
        self.limit - self.tail
    }

    /// Appends a packet. Returns it if the burst is full.
    #[inline]
    pub fn push(&mut self, packet: Packet) -> Result<(), Packet> {
        if self.is_full() {
            return Err(packet);
        }
        self.packets[self.tail] = Some(packet);
        self.tail += 1;
        Ok(())
    }

    /// Takes the first packet out.
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

    /// The first packet, which stays in the burst.
    pub fn first(&self) -> Option<&Packet> {
        self.packets.get(self.head)?.as_ref()
    }

    /// The packets, first to last.
    pub fn iter(&self) -> impl Iterator<Item = &Packet> + Clone {
        self.iter_from(0)
    }

    /// The packets after the first `count`.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn iter_from(&self, count: usize) -> impl Iterator<Item = &Packet> + Clone {
        self.packets[self.head..self.tail][count..].iter().flatten()
    }

    /// Prefetches the first line of each packet, as [`Packet::prefetch`] does.
    #[inline]
    pub fn prefetch(&self) {
        self.iter().for_each(Packet::prefetch);
    }

    /// The packets. The caller takes some out at the front and reports their number with
    /// [`taken`](Self::taken).
    pub(crate) fn packets_mut(&mut self) -> &mut [Option<Packet>] {
        &mut self.packets[self.head..self.tail]
    }

    /// Records that the first `count` packets were taken out.
    pub(crate) fn taken(&mut self, count: usize) {
        assert!(count <= self.len());
        self.head += count;
        if self.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
    }

    /// Empty places at the end. The caller fills some and reports their number with
    /// [`added`](Self::added).
    pub(crate) fn places_mut(&mut self) -> &mut [Option<Packet>] {
        &mut self.packets[self.tail..self.limit]
    }

    /// Records that the first `count` places were filled.
    pub(crate) fn added(&mut self, count: usize) {
        assert!(count <= self.limit - self.tail);
        self.tail += count;
    }

    /// The packets, first to last, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Packet> {
        self.packets[self.head..self.tail].iter_mut().flatten()
    }

    /// Appends up to `count` empty packets of a pool, as many as there is room for. Returns their
    /// number: the last ones, which the caller fills, or takes away again with
    /// [`shrink`](Self::shrink).
    #[inline]
    pub fn grow(&mut self, packets: &mut PacketPool, count: usize) -> usize {
        let count = count.min(self.room());
        let mut places = self.packets[self.tail..].iter_mut();
        let grown = packets.take_all(count, |packet| {
            *places.next().expect("there is room for this many") = Some(packet);
        });
        self.tail += grown;
        grown
    }

    /// Drops the last `count` packets. Those of `packets` go back without an atomic operation.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn shrink(&mut self, packets: &mut PacketPool, count: usize) {
        assert!(count <= self.len());
        if count == 0 {
            return;
        }
        let mut dropping = Dropping::default();
        for place in &mut self.packets[self.tail - count..self.tail] {
            place.take().into_iter().for_each(|packet| dropping.add_to(packets, packet));
        }
        self.tail -= count;
        self.taken(0);
    }

    /// The last `count` packets, first to last, mutable.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn last_mut(&mut self, count: usize) -> impl Iterator<Item = &mut Packet> {
        assert!(count <= self.len());
        self.packets[self.tail - count..self.tail].iter_mut().flatten()
    }

    /// Drops the first `count` packets like [`drop_front`](Self::drop_front). Handles and frames of
    /// `memory`, whose owner calls this, go back without an atomic operation.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn drop_front_to(&mut self, count: usize, memory: &mut Memory) {
        let mut dropping = Dropping::default();
        for packet in &mut self.packets_mut()[..count] {
            let packet = packet.take();
            packet.into_iter().for_each(|packet| dropping.add_to(&mut memory.packets, packet));
        }
        dropping.end(|frames| memory.absorb(frames));
        self.taken(count);
    }

    /// Drops all packets.
    pub fn clear(&mut self) {
        self.drop_front(self.len());
    }

    /// Drops the first `count` packets, at a lower cost than one by one.
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
