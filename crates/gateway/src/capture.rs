//! Captures: packets that pass are shared with another thread, which writes them or looks at them.
//!
//! # Theory of operation
//!
//! A place where packets pass, a port of a network or a worker's inside, has a `Mirror` for each of
//! its captures, usually none, which is one branch for a burst.
//! A mirror looks at the first bytes of a packet with its filter and shares the packet
//! ([`Packet::share`]): another handle, private headers copied, one more holder for each loan. What
//! it has made goes into a ring; at the other end is a [`Sniffer`], on whatever thread. A
//! [`Recorder`] is one that writes a capture file, a [`Recording`] has a thread for it.
//!
//! Traffic never waits for it. Handles are of the mirror's own pool. What a capture may keep of
//! others' memory is bounded ([`HELD_BYTES_MAX`], [`HELD_SHARE`]): beyond it, or with a full ring,
//! packets are missing from the capture and counted there. A guest's memory goes back when its term
//! ends, whoever holds it, and the sniffer sees a copy from then on without noticing.
//!
//! Either end ends a capture: a sniffer that is dropped, and a port that is removed. Each wakes the
//! other side. What a mirror sees after its sniffer has gone counts as dropped.
//!
//! Limits: [`CAPTURES_MAX`], [`RING_LEN`], [`HELD_BYTES_MAX`], [`HELD_SHARE`].

mod record;
mod recording;

pub use record::{FINISH_PATIENCE, Recorder, STALL_TERM, Summary};
pub use recording::Recording;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::SystemTime;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::pcapng::{Direction, SNAP_BYTES_MAX, Seen, Statistics};
use towpath_net::bpf::Program;
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::ring::{self, Consumer, Doorbell, Producer};
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};
use towpath_packet::{Packet, PacketPool, Piece};

/// Captures of a network at once.
pub const CAPTURES_MAX: usize = 4;
/// Packets on the way to who captures: what he may be behind, as long as that is little memory.
pub const RING_LEN: usize = 4096;
/// Bytes of others' memory that a capture may keep.
pub const HELD_BYTES_MAX: u64 = 16 << 20;
/// One capture may keep this part of a network's frames at most: all together leave a half.
pub const HELD_SHARE: usize = 2 * CAPTURES_MAX;

/// What is captured of a port.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// Which packets, by their first [`PEEK_BYTES`]; all if there is none.
    pub filter: Option<Program>,
    /// Bytes of each packet that are kept, from the first on.
    pub snap_bytes: usize,
}

impl Default for CaptureSettings {
    fn default() -> Self {
        Self { filter: None, snap_bytes: SNAP_BYTES_MAX as usize }
    }
}

/// What both sides count.
#[derive(Default)]
struct Shared {
    seen: AtomicU64,
    accepted: AtomicU64,
    dropped: AtomicU64,
    /// Packets in a file.
    written: AtomicU64,
    /// Bytes of others' memory that are in the ring or with the reader.
    held: AtomicU64,
    /// The reader wants no more.
    is_over: AtomicBool,
}

impl Shared {
    fn count(counter: &AtomicU64) {
        // Relaxed: a statistic.
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A packet on the way to the reader.
struct Item {
    packet: Packet,
    bytes: u32,
    direction: Direction,
    nanoseconds: u64,
    /// Counted in [`Shared::held`].
    held: u64,
}

/// The captures of one place.
#[derive(Default)]
pub(crate) struct Mirrors(Vec<Mirror>);

/// The end of a capture where packets pass.
struct Mirror {
    producer: Producer<Item>,
    packets: PacketPool,
    shared: Arc<Shared>,
    held_max: u64,
    settings: CaptureSettings,
}

impl Mirrors {
    /// Begins a capture of packets whose frames have `frame_bytes` together. `ended` rings when its
    /// reader has gone.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn add(
        &mut self,
        settings: CaptureSettings,
        frame_bytes: usize,
        ended: Option<EventDoorbell>,
    ) -> io::Result<Sniffer> {
        let bell = EventDoorbell::new()?;
        let (producer, consumer) =
            ring::single(RING_LEN, bell.clone()).map_err(io::Error::other)?;
        let shared = Arc::new(Shared::default());
        self.0.push(Mirror {
            producer,
            packets: PacketPool::new(RING_LEN),
            shared: shared.clone(),
            held_max: HELD_BYTES_MAX.min((frame_bytes / HELD_SHARE) as u64),
            settings,
        });
        Ok(Sniffer { consumer, bell, shared, _ended: Ended(ended) })
    }

    /// Packets that the first capture has written to its file, and those that are not in it, or
    /// not yet.
    pub(crate) fn written(&self) -> Option<(u64, u64)> {
        let shared = &self.0.first()?.shared;
        // Relaxed: statistics.
        let written = shared.written.load(Ordering::Relaxed);
        // Relaxed: as above.
        Some((written, shared.accepted.load(Ordering::Relaxed).saturating_sub(written)))
    }

    /// Captures that go on.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets captures whose readers have gone.
    pub(crate) fn reap(&mut self) {
        self.0.retain(|mirror| !mirror.producer.is_closed());
    }

    /// Packets pass the port.
    #[inline]
    pub(crate) fn see<'a>(
        &mut self,
        direction: Direction,
        packets: impl Iterator<Item = &'a Packet> + Clone,
    ) {
        if !self.0.is_empty() {
            self.share(direction, packets);
        }
    }

    #[cold]
    fn share<'a>(
        &mut self,
        direction: Direction,
        packets: impl Iterator<Item = &'a Packet> + Clone,
    ) {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let nanoseconds = since_epoch.map_or(0, |elapsed| elapsed.as_nanos() as u64);
        for mirror in &mut self.0 {
            // Relaxed: a few packets more or less.
            if !mirror.shared.is_over.load(Ordering::Relaxed) {
                mirror.share(direction, nanoseconds, packets.clone());
            }
        }
    }
}

impl Mirror {
    fn share<'a>(
        &mut self,
        direction: Direction,
        nanoseconds: u64,
        packets: impl Iterator<Item = &'a Packet>,
    ) {
        let mut last: Option<Item> = None;
        let is_read = !self.producer.is_closed();
        for packet in packets {
            Shared::count(&self.shared.seen);
            if !self.accepts(packet) {
                continue;
            }
            Shared::count(&self.shared.accepted);
            match is_read.then(|| self.keep(packet, last.as_mut())).flatten() {
                Some((kept, held)) => {
                    let bytes = packet.len() as u32;
                    let item = Item { packet: kept, bytes, direction, nanoseconds, held };
                    // The one before may have passed on what it counts for.
                    if let Some(before) = last.replace(item) {
                        self.publish(before);
                    }
                }
                None => Shared::count(&self.shared.dropped),
            }
        }
        if let Some(item) = last {
            self.publish(item);
        }
        self.producer.wake();
    }

    fn accepts(&self, packet: &Packet) -> bool {
        let Some(filter) = &self.settings.filter else { return true };
        let mut first = [0; PEEK_BYTES];
        let count = packet.copy_first(&mut first);
        filter.accepts(&first[..count], packet.len() as u32)
    }

    /// What is kept of a packet, and how much memory of others it counts for; `None` if there is no
    /// room for it. Of a loan that it shares with the one `before` it only the later one counts:
    /// readers take packets in their order, so that it is the last to go.
    fn keep(&mut self, packet: &Packet, before: Option<&mut Item>) -> Option<(Packet, u64)> {
        let mut kept = packet.share(&mut self.packets)?;
        kept.join_parts();
        let snap_bytes = self.settings.snap_bytes;
        if snap_bytes <= PEEK_BYTES && kept.headers().is_empty() {
            // So little is copied, and nothing is held.
            let count = kept.peek_headers().len().min(snap_bytes);
            kept.pull(count);
        }
        kept.truncate(snap_bytes.saturating_sub(kept.headers().len()));
        let (more, of_before) = held_bytes(&kept, before.as_ref().map(|item| &item.packet));
        // Relaxed: others only take away from it.
        if self.shared.held.load(Ordering::Relaxed) + more > self.held_max {
            return None;
        }
        // Relaxed: a count; the ring orders the packets.
        self.shared.held.fetch_add(more, Ordering::Relaxed);
        if let Some(before) = before {
            before.held -= of_before;
        }
        Some((kept, more + of_before))
    }

    fn publish(&mut self, item: Item) {
        let held = item.held;
        if self.producer.publish(&mut [Some(item)]) != Ok(1) {
            // Relaxed: as above.
            self.shared.held.fetch_sub(held, Ordering::Relaxed);
            Shared::count(&self.shared.dropped);
        }
    }
}

/// Bytes that the pieces of a packet keep from their lenders: of loans of its own, and of the loan
/// with which the packet `before` it ends. Segments of a super-packet follow each other and share
/// its loans.
fn held_bytes(packet: &Packet, before: Option<&Packet>) -> (u64, u64) {
    let shared = before.and_then(|packet| packet.pieces().last());
    let (mut own, mut of_before) = (0, 0);
    let mut last: Option<&Piece> = None;
    for piece in packet.pieces() {
        let is_of = |other: Option<&Piece>| other.is_some_and(|other| other.same_loan(piece));
        if is_of(last) {
            continue;
        }
        let held = if is_of(shared) { &mut of_before } else { &mut own };
        *held += Piece::held(piece) as u64;
        last = Some(piece);
    }
    (own, of_before)
}

/// Rings when it is dropped, if there is a bell.
struct Ended(Option<EventDoorbell>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(bell) = &self.0 {
            bell.ring();
        }
    }
}

/// The reader's end of a capture: live packets, lent. One thread at a time; dropping it ends the
/// capture.
///
/// To wait for packets in an event loop, watch its file ([`AsFd`]) for reading, and whenever
/// [`Sniffer::next`] has none, sleep only if [`Sniffer::may_sleep`] says so. When the file is
/// readable, call [`Sniffer::clear`] before the next look.
pub struct Sniffer {
    consumer: Consumer<Item>,
    bell: EventDoorbell,
    shared: Arc<Shared>,
    /// Dropped after the consumer, so that who hears it finds the ring closed.
    _ended: Ended,
}

/// A packet that was captured. As long as it lives, it keeps memory from its lenders and counts
/// towards what its capture may keep. Of several that share memory the last counts for it, so that
/// none of them is to be kept longer.
pub struct Sniffed {
    /// The packet, or as much of it as is kept. Its memory may be foreign, and may go back to its
    /// lender, who gets it after a term; the pieces show a copy then.
    pub packet: Packet,
    /// Bytes that it had.
    pub bytes: usize,
    /// Which way it went, seen from the network.
    pub direction: Direction,
    /// When: nanoseconds since the beginning of 1970.
    pub nanoseconds: u64,
    held: u64,
    shared: Arc<Shared>,
}

impl Sniffed {
    /// As a capture file takes it.
    pub fn as_seen(&self) -> Seen<'_> {
        let Self { packet, bytes, direction, nanoseconds, .. } = self;
        Seen { packet, bytes: *bytes, direction: *direction, nanoseconds: *nanoseconds }
    }
}

impl Drop for Sniffed {
    fn drop(&mut self) {
        // Relaxed: a count; the loans order their memory.
        self.shared.held.fetch_sub(self.held, Ordering::Relaxed);
    }
}

impl Sniffer {
    /// The next packet, if one is there.
    #[expect(clippy::should_implement_trait, reason = "none now does not mean none later")]
    pub fn next(&mut self) -> Option<Sniffed> {
        let Item { packet, bytes, direction, nanoseconds, held } = self.consumer.pop()?;
        let (bytes, shared) = (bytes as usize, self.shared.clone());
        Some(Sniffed { packet, bytes, direction, nanoseconds, held, shared })
    }

    /// The next packet, waited for; `None` when the port has gone.
    pub fn wait(&mut self) -> Option<Sniffed> {
        loop {
            if let Some(sniffed) = self.next() {
                return Some(sniffed);
            }
            if self.is_closed() {
                return None;
            }
            if self.may_sleep() {
                self.bell.wait();
            }
        }
    }

    /// True if nothing is there, and the file will be readable when there is.
    pub fn may_sleep(&mut self) -> bool {
        self.consumer.needs_wakeup()
    }

    /// Makes the file unreadable.
    pub fn clear(&self) {
        self.bell.clear();
    }

    /// True if nothing is there and nothing will come.
    pub fn is_closed(&mut self) -> bool {
        self.consumer.is_closed()
    }

    /// Asks for no more packets; those on the way still come.
    pub fn stop(&self) {
        // Relaxed: a few packets more or less.
        self.shared.is_over.store(true, Ordering::Relaxed);
    }

    /// Drops all that is on the way, so that its memory goes back, and counts it as dropped.
    pub fn discard(&mut self) {
        while self.next().is_some() {
            Shared::count(&self.shared.dropped);
        }
    }

    /// A packet is in a file.
    fn count_written(&self) {
        Shared::count(&self.shared.written);
    }

    /// What was counted so far.
    pub fn statistics(&self) -> Statistics {
        // Relaxed: statistics.
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { seen, accepted, dropped, .. } = &*self.shared;
        Statistics { seen: count(seen), accepted: count(accepted), dropped: count(dropped) }
    }

    /// Bytes of others' memory that the capture keeps, with all [`Sniffed`].
    pub fn held_bytes(&self) -> u64 {
        // Relaxed: a statistic.
        self.shared.held.load(Ordering::Relaxed)
    }
}

impl AsFd for Sniffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests;
