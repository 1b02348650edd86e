//! Captures: share passing packets with another thread, which writes or inspects them.
//!
//! # Theory of operation
//!
//! A place where packets pass (a port of a network, or a worker's inside) has one `Mirror` for each
//! of its captures. Usually there is none, which costs one branch per burst. A mirror runs its
//! filter on the first bytes of a packet and shares the packet ([`Packet::share`]): it takes
//! another handle, copies the private headers, and becomes one more holder of each loan. It puts
//! the shared packet into a ring. At the other end of the ring is a [`Sniffer`], on any thread. A
//! [`Recorder`] is a sniffer that writes a capture file; a [`Recording`] runs a recorder on a
//! thread of its own.
//!
//! Traffic never waits for a capture. Handles come from the mirror's own pool. The memory that a
//! capture may keep is bounded ([`HELD_BYTES_MAX`], [`HELD_SHARE`]): beyond the bound, or with a
//! full ring, the capture drops packets and counts them. A guest's memory returns at the end of its
//! term even if the capture holds it; from then on the sniffer sees a copy without noticing.
//!
//! Either end ends a capture: dropping the sniffer, or removing the port. Each wakes the other
//! side. Packets that a mirror sees after its sniffer is gone count as dropped.
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
use towpath_io::filter::{self, FilterError};
use towpath_io::pcapng::{Direction, SNAP_BYTES_MAX, Seen, Statistics};
use towpath_net::bpf::{Instruction, Program};
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::ring::{self, BusyPoll, Consumer, Doorbell, Producer};
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};
use towpath_packet::{Packet, PacketPool, Piece};

/// Concurrent captures of a network.
pub const CAPTURES_MAX: usize = 4;
/// Packets on the way to the reader: how far it may fall behind, as long as they hold little
/// memory.
pub const RING_LEN: usize = 4096;
/// Bytes of memory that a capture may keep from their lenders.
pub const HELD_BYTES_MAX: u64 = 16 << 20;
/// A capture may keep one part in this many of a network's frames. All captures together leave
/// half.
pub const HELD_SHARE: usize = 2 * CAPTURES_MAX;

/// Which packets of a port are captured, and how much of each.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// Filter on the first [`PEEK_BYTES`] of a packet; `None` captures every packet.
    pub filter: Option<Program>,
    /// Bytes of each packet that are kept, from its first byte.
    pub snap_bytes: usize,
}

impl Default for CaptureSettings {
    fn default() -> Self {
        Self { filter: None, snap_bytes: SNAP_BYTES_MAX as usize }
    }
}

/// Compiles a filter from an expression: see [the language](FilterError).
///
/// # Errors
/// [`FilterError`]: the problem and its position.
pub fn compile_filter(expression: &str) -> Result<Program, FilterError> {
    let code = filter::compile(expression, |code, jt, jf, k| Instruction { code, jt, jf, k })?;
    Ok(Program::new(code).expect("compiled programs are valid"))
}

/// Counters that both sides share.
#[derive(Default)]
struct Shared {
    seen: AtomicU64,
    accepted: AtomicU64,
    dropped: AtomicU64,
    /// Packets written to a file.
    written: AtomicU64,
    /// Bytes of lent memory that the ring and the reader keep.
    held: AtomicU64,
    /// The reader wants no more packets.
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
    /// This packet's part of [`Shared::held`].
    held: u64,
}

/// The captures of one place.
#[derive(Default)]
pub(crate) struct Mirrors(Vec<Mirror>);

/// The sending end of a capture, where packets pass.
struct Mirror {
    producer: Producer<Item>,
    packets: PacketPool,
    shared: Arc<Shared>,
    held_max: u64,
    settings: CaptureSettings,
}

impl Mirrors {
    /// Begins a capture of packets that come from frames of `frame_bytes` in total. `ended` rings
    /// when the reader of the capture is gone.
    ///
    /// # Errors
    /// The error of the system call that failed.
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

    /// Returns the packets that the first capture has written to its file, and those that it has
    /// accepted and not, or not yet, written.
    pub(crate) fn written(&self) -> Option<(u64, u64)> {
        let shared = &self.0.first()?.shared;
        // Relaxed: statistics.
        let written = shared.written.load(Ordering::Relaxed);
        // Relaxed: a statistic.
        Some((written, shared.accepted.load(Ordering::Relaxed).saturating_sub(written)))
    }

    /// Number of running captures.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes captures whose readers are gone.
    pub(crate) fn reap(&mut self) {
        self.0.retain(|mirror| !mirror.producer.is_closed());
    }

    /// Shows passing packets to all captures.
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
            // Relaxed: a few packets more or less do not matter.
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
                    // The packet before may have passed its share of held memory on to this one.
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

    /// Returns what is kept of a packet, and the bytes of lent memory that count for it; `None` if
    /// there is no room. If a packet shares a loan with the one `before` it, only the later packet
    /// counts the loan: readers take packets in order, so the later one is the last to return it.
    fn keep(&mut self, packet: &Packet, before: Option<&mut Item>) -> Option<(Packet, u64)> {
        let mut kept = packet.share(&mut self.packets)?;
        kept.join_parts();
        let snap_bytes = self.settings.snap_bytes;
        if snap_bytes <= PEEK_BYTES && kept.headers().is_empty() {
            // This little is copied, so nothing is held.
            let count = kept.peek_headers().len().min(snap_bytes);
            kept.pull(count);
        }
        kept.truncate(snap_bytes.saturating_sub(kept.headers().len()));
        let (more, of_before) = held_bytes(&kept, before.as_ref().map(|item| &item.packet));
        // Relaxed: other threads only subtract from it.
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
            // Relaxed: a count; nothing is ordered by it.
            self.shared.held.fetch_sub(held, Ordering::Relaxed);
            Shared::count(&self.shared.dropped);
        }
    }
}

/// Returns the bytes that the pieces of a packet keep from their lenders: first of the packet's own
/// loans, then of the loan in which the packet `before` it ends. Consecutive segments of a
/// super-packet share its loans.
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

/// Rings its bell, if it has one, when it is dropped.
struct Ended(Option<EventDoorbell>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(bell) = &self.0 {
            bell.ring();
        }
    }
}

/// The reader's end of a capture. It returns live packets, lent. One thread uses it at a time;
/// dropping it ends the capture.
///
/// To wait for packets in an event loop, watch its file ([`AsFd`]) for reading. Whenever
/// [`Sniffer::next`] returns `None`, sleep only if [`Sniffer::may_sleep`] returns true. When the
/// file is readable, call [`Sniffer::clear`] before the next [`Sniffer::next`].
pub struct Sniffer {
    consumer: Consumer<Item>,
    bell: EventDoorbell,
    shared: Arc<Shared>,
    /// Dropped after the consumer, so that the woken side finds the ring closed.
    _ended: Ended,
}

/// A captured packet. While it lives, it keeps memory from its lenders and counts towards the bound
/// of its capture. Of several packets that share memory the last one counts it, so keep none of
/// them longer than that one.
pub struct Sniffed {
    /// The packet, or the part of it that is kept. Its memory may be foreign, and returns to its
    /// lender after a term; the pieces show a copy from then on.
    pub packet: Packet,
    /// Length of the whole packet in bytes.
    pub bytes: usize,
    /// Direction, seen from the network.
    pub direction: Direction,
    /// Time stamp in nanoseconds since the beginning of 1970.
    pub nanoseconds: u64,
    held: u64,
    shared: Arc<Shared>,
}

impl Sniffed {
    /// Returns the packet in the form that a capture file takes.
    pub(crate) fn as_seen(&self) -> Seen<'_> {
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
    /// Returns the next packet, if one is waiting.
    #[expect(clippy::should_implement_trait, reason = "none now does not mean none later")]
    pub fn next(&mut self) -> Option<Sniffed> {
        let Item { packet, bytes, direction, nanoseconds, held } = self.consumer.pop()?;
        let (bytes, shared) = (bytes as usize, self.shared.clone());
        Some(Sniffed { packet, bytes, direction, nanoseconds, held, shared })
    }

    /// Waits for the next packet; `None` when the port is gone.
    pub fn wait(&mut self) -> Option<Sniffed> {
        let Self { consumer, bell, .. } = self;
        consumer.wait(&mut BusyPoll::new(0), || bell.wait()).ok()?;
        self.next()
    }

    /// Returns true if no packet is waiting and the file will become readable when one arrives.
    pub fn may_sleep(&mut self) -> bool {
        self.consumer.needs_wakeup()
    }

    /// Makes the file unreadable again.
    pub fn clear(&self) {
        self.bell.clear();
    }

    /// Returns true if no packet is waiting and none will arrive.
    pub fn is_closed(&mut self) -> bool {
        self.consumer.is_closed()
    }

    /// Asks for no more packets. Packets on the way still arrive.
    pub fn stop(&self) {
        // Relaxed: a few packets more or less do not matter.
        self.shared.is_over.store(true, Ordering::Relaxed);
    }

    /// Drops all packets on the way, so that their memory returns, and counts them as dropped.
    pub fn discard(&mut self) {
        while self.next().is_some() {
            Shared::count(&self.shared.dropped);
        }
    }

    /// Counts a packet written to a file.
    fn count_written(&self) {
        Shared::count(&self.shared.written);
    }

    /// Returns the counters so far.
    pub fn statistics(&self) -> Statistics {
        // Relaxed: statistics.
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { seen, accepted, dropped, .. } = &*self.shared;
        Statistics { seen: count(seen), accepted: count(accepted), dropped: count(dropped) }
    }

    /// Bytes of lent memory that the capture keeps, including all live [`Sniffed`].
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
