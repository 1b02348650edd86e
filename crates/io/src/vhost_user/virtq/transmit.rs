//! The driver's transmit queue: turns its packets into loans of the guest's memory.
//!
//! The virtio-net header is copied and checked. The frame after it is lent in place, one loan per
//! buffer, and the chain is returned when its last loan is over, in any order. Frames of up to
//! [`COPY_BYTES_MAX`] are copied, and their chains returned, at once, because a loan costs more.
//! For an owner that forwards packets by their headers ([`TransmitQueue::set_inline`]), frames of
//! up to [`INLINE_BYTES_MAX`] are copied into the packet's private bytes, and use no pool frame.
//!
//! # Theory of operation: keeping the ring from starving
//!
//! A guest counts packets in its ring as queued. So a chain that is held for long slows the guest's
//! own senders, and a ring without free descriptors stops them. Loans therefore end early, by a
//! recall (`towpath_packet::recall`), for one of two reasons: the loan is older than [`LOAN_TERM`];
//! or more than three quarters of the ring are lent, and then the oldest loans are recalled until
//! half of it is free. While a recall waits for a thread that is reading the memory, new packets
//! are copied.
//!
//! Lent chains have slots in a table. A slot is a group of [`Returns`], and its loans are the
//! shares. The thread that drops the last piece puts the group on a list. It wakes up the owner of
//! the ring only if the owner sleeps ([`TransmitQueue::enable_kicks`]).
//!
//! Follows virtio 1.2 §5.1.6.2. One thread at a time; pieces may move to any thread. No call
//! blocks, and only a recall allocates.

mod slots;

use super::batch::{BATCH_MAX, Batch, Kind};
use super::chain::{Cursor, Segment};
use super::{Broken, Queue, QueueConfig, StartError, Stop, feature};
use crate::receive::{FRAMES_MAX, ReceiveBuffer, empty_slices};
use crate::tap::FRAME_BYTES_MAX;
use crate::vhost_user::memory::{GuestLender, GuestMemory, Lookup};
use crate::vhost_user::shared::Stretch;
use rustix::fd::OwnedFd;
use slots::{NONE, Slots};
use std::sync::Arc;
use std::task::Waker;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::packet::{PEEK_BYTES, PIECES_MAX};
use towpath_packet::pool::SMALL_FRAME_BYTES;
use towpath_packet::time::{Duration, Instant};
use towpath_packet::{
    Burst, Checksum, Context, GsoKind, Ledger, Loans, Memory, Offload, Packet, Recall, Returns,
    Site, VirtioHeader,
};

/// Longest frame that is copied: at this length a copy costs about as much as a loan.
pub const COPY_BYTES_MAX: usize = 256;
/// Longest frame that is copied inline, if requested: all that a packet's private memory has room
/// for.
pub const INLINE_BYTES_MAX: usize = PEEK_BYTES;
/// Longest time of a loan: half of the time that, when loans were held for it, halved a guest's TCP
/// rate.
pub const LOAN_TERM: Duration = Duration::from_millis(20);
/// Interval for another attempt to recall memory that was being read.
pub const BUSY_RETRY: Duration = Duration::from_millis(1);
/// Loan descriptors per ring descriptor. A super-packet of 64 KiB is two or three buffers of a
/// Linux guest, and four in the worst usual case. Frames beyond that are copied.
pub const LOANS_PER_DESCRIPTOR: usize = 4;
/// Most chains of one [`TransmitQueue::take`]: a burst, and three times as many drops.
pub const CHAINS_PER_CALL_MAX: usize = 4 * BURST_MAX;

/// Chains of inline frames.
const SHORT: Kind = Kind::Read { bytes_max: VirtioHeader::LEN + INLINE_BYTES_MAX };
/// Chains whose start is prefetched ahead of the one being taken.
const CHAINS_AHEAD: u16 = 4;
const _: () = assert!(COPY_BYTES_MAX <= SMALL_FRAME_BYTES, "a short frame fits one of the pool's");
/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Counters of packets that the guest sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitCounters {
    /// Packets received from the guest.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Those packets that were lent; the others were copied.
    pub lent: u64,
    /// Chains returned early because their loans were recalled.
    pub recalled: u64,
    /// Packets dropped because they are too short for an Ethernet header.
    pub short: u64,
    /// Packets dropped because they are longer than the longest frame.
    pub long: u64,
    /// Packets dropped because their virtio-net header is invalid or uses features not negotiated.
    pub bad_header: u64,
    /// Packets dropped because the ring is disabled.
    pub discarded: u64,
    /// Calls that ended early because packet memory was short.
    pub paused: u64,
}

/// The driver's transmit queue; see the module documentation.
pub struct TransmitQueue {
    queue: Queue,
    features: u64,
    counters: TransmitCounters,
    buffer: ReceiveBuffer,
    /// Short frames are copied inline.
    is_inline: bool,
    /// Bytes copied and not counted in the ledger yet.
    copied: usize,
    loans: Loans,
    returns: Arc<Returns>,
    lender: Arc<GuestLender>,
    slots: Slots,
    /// Time of the next attempt to recall memory that was being read.
    retry_at: Option<Instant>,
}

enum Taken {
    Packet,
    Dropped,
    NoMemory,
}

impl TransmitQueue {
    /// Starts the queue in a guest's memory. `wake` wakes up the owner when loans end while it
    /// sleeps.
    pub fn start(
        config: QueueConfig,
        memory: &GuestMemory,
        wake: Option<Waker>,
    ) -> Result<Self, StartError> {
        let (features, size) = (config.features, usize::from(config.size));
        let queue = Queue::start(config, memory)?;
        let returns = Returns::new(size);
        Ok(Self {
            queue,
            features,
            counters: TransmitCounters::default(),
            buffer: ReceiveBuffer::new(),
            is_inline: false,
            copied: 0,
            loans: Loans::new(size * LOANS_PER_DESCRIPTOR),
            lender: GuestLender::new(memory.clone(), returns.clone(), wake),
            returns,
            slots: Slots::new(size),
            retry_at: None,
        })
    }

    /// Copies frames of up to [`INLINE_BYTES_MAX`] [inline](Packet::is_inline) from now on, except
    /// super-packets, whose headers must end where their payload begins.
    pub fn set_inline(&mut self) {
        self.is_inline = true;
    }

    /// Adds packets that the guest sent to `burst`, until it is full, none is left or `memory` is
    /// short. They are not peeked, and only their length and virtio-net header are checked. The
    /// driver need not kick until [`TransmitQueue::enable_kicks`].
    ///
    /// # Errors
    /// The ring is broken. Packets in the burst are valid, and loans continue.
    pub fn take(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), Broken> {
        self.queue.disable_kicks();
        self.collect();
        self.relieve(cx.ledger);
        let result = self.fill(burst, cx);
        // Once for all: the ledger is shared with other threads.
        let copied = std::mem::take(&mut self.copied);
        if copied > 0 {
            cx.ledger.count(Site::GuestSmall, copied);
        }
        result?;
        self.queue.publish();
        Ok(())
    }

    /// Returns chains whose loans are over, and recalls loans whose term has passed. Call it once
    /// each turn, after a wake-up, and at the time that the last call returned.
    pub fn turn(&mut self, now: Instant, ledger: &Ledger) -> Option<Instant> {
        self.collect();
        self.retry_at = None;
        let mut number = self.slots.oldest;
        while number != NONE {
            let slot = &self.slots.table[usize::from(number)];
            let (newer, due) = (slot.newer, slot.since.map_or(now, |since| since + LOAN_TERM));
            if due > now {
                break;
            }
            if self.recall(number, ledger) >= Recall::Busy {
                self.retry_at = Some(now + BUSY_RETRY);
            }
            number = newer;
        }
        self.collect();
        self.queue.publish();
        self.next_deadline()
    }

    /// Takes and drops the packets that the guest sent, for a disabled ring.
    pub fn discard(&mut self) -> Result<(), Broken> {
        for _ in 0..CHAINS_PER_CALL_MAX {
            if !self.queue.take()? {
                break;
            }
            self.counters.discarded += 1;
            let head = self.queue.hold();
            self.queue.complete(head, 0);
        }
        self.queue.publish();
        Ok(())
    }

    /// Requests a kick when the driver sends more, and a wake-up when loans end. True if either has
    /// already happened: then the owner must not sleep.
    pub fn enable_kicks(&mut self) -> bool {
        let has_returned = !self.returns.arm();
        self.queue.enable_kicks() || has_returned
    }

    /// Deadline at which [`TransmitQueue::turn`] recalls the oldest loan, or tries again.
    pub fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.slots.table.get(usize::from(self.slots.oldest))?;
        let due = oldest.since.map(|since| since + LOAN_TERM)?;
        Some(self.retry_at.map_or(due, |at| at.max(due)))
    }

    /// True if the driver has sent packets or loans have ended, for owners that poll.
    pub fn has_work(&self) -> bool {
        self.queue.has_next() || self.returns.has_ended()
    }

    /// Changes the call descriptor.
    pub fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        self.queue.set_call(call);
    }

    /// Recalls all loans and returns their chains. Once it is done, no thread reads the guest's
    /// memory because of this queue; pieces that are still held show copies.
    pub fn stop(&mut self, ledger: &Ledger) -> Stop {
        let mut worst = Recall::Gone;
        let mut number = self.slots.oldest;
        while number != NONE {
            worst = worst.max(self.recall(number, ledger));
            number = self.slots.table[usize::from(number)].newer;
        }
        self.collect();
        self.queue.publish();
        match worst {
            _ if self.slots.oldest == NONE => Stop::Done(self.queue.base()),
            Recall::NoMemory => Stop::NoMemory,
            // A thread that is just dropping the last piece of a loan will report it shortly.
            _ => Stop::Busy,
        }
    }

    /// Counters since the start.
    pub fn counters(&self) -> &TransmitCounters {
        &self.counters
    }

    /// Number of chains that are lent.
    pub fn lent_count(&self) -> usize {
        self.slots.table.len() - self.slots.free.len()
    }

    /// Why the ring is broken, if it is.
    pub fn broken(&self) -> Option<Broken> {
        self.queue.broken()
    }

    /// Takes chains until the burst is full, none is left or memory is short.
    fn fill(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), Broken> {
        self.queue.check()?;
        let mut spare = None;
        for _ in 0..CHAINS_PER_CALL_MAX {
            if self.is_inline {
                self.take_inline(burst, cx.memory);
            }
            if burst.is_full() {
                break;
            }
            let position = self.queue.position();
            if !self.queue.take()? {
                break;
            }
            let Some(mut packet) = spare.take().or_else(|| cx.memory.packet()) else {
                self.queue.seek(position);
                self.counters.paused += 1;
                break;
            };
            self.queue.prefetch(CHAINS_AHEAD);
            match self.take_chain(&mut packet, cx) {
                Taken::Packet => burst.push(packet).expect("the burst has room"),
                Taken::Dropped => spare = Some(packet),
                Taken::NoMemory => {
                    self.queue.seek(position);
                    self.counters.paused += 1;
                    break;
                }
            }
        }
        Ok(())
    }

    /// The fast path: takes [batches](super::batch) of chains, each of which is one buffer with a
    /// valid frame that may be inline, until the burst is full or the next chain is another one.
    /// [`Queue::take`] reads that one again.
    fn take_inline(&mut self, burst: &mut Burst, memory: &mut Memory) {
        let Some((ring, guest)) = self.queue.batches() else { return };
        let (mut lookup, mut batches) = (Lookup::new(guest), [Batch::new(), Batch::new()]);
        let [batch, next] = &mut batches;
        let (mut batch, mut next) = (batch, next);
        ring.read(&mut lookup, batch, SHORT, (0, burst.room()));
        while !batch.is_empty() && !burst.is_full() {
            // These frames come into the cache while others are copied; those behind a full burst,
            // while the burst is passed on.
            ring.read(&mut lookup, next, SHORT, (batch.len(), BATCH_MAX));
            let count = burst.grow(&mut memory.packets, batch.len());
            let (mut done, mut bytes) = (0, 0);
            for (packet, chain) in burst.last_mut(count).zip(batch.chains()) {
                let Some(frame_bytes) = fill_inline(packet, chain.buffer, self.features) else {
                    break;
                };
                (done, bytes) = (done + 1, bytes + frame_bytes);
            }
            burst.shrink(&mut memory.packets, count - done);
            ring.pass(batch, done);
            self.copied += bytes;
            self.counters.packets += done as u64;
            self.counters.bytes += bytes as u64;
            if done < batch.len() {
                return;
            }
            std::mem::swap(&mut batch, &mut next);
        }
    }

    /// Checks the chain taken last, and turns it into a packet.
    fn take_chain(&mut self, packet: &mut Packet, cx: &mut Context<'_>) -> Taken {
        let bytes = self.queue.chain().readable_bytes();
        let mut header = VirtioHeader::default();
        let whole = whole(&self.queue);
        match whole {
            Some(whole) if bytes >= VirtioHeader::LEN => whole.read(&mut header.0),
            _ => {
                _ = Cursor::new(self.queue.memory(), self.queue.chain().readable())
                    .read(&mut header.0)
            }
        }
        let offload = header.decode().ok();
        let Some(frame_bytes) =
            bytes.checked_sub(VirtioHeader::LEN).filter(|&bytes| bytes >= ETHERNET_BYTES)
        else {
            self.counters.short += 1;
            return self.drop_chain();
        };
        if frame_bytes > FRAME_BYTES_MAX {
            self.counters.long += 1;
            return self.drop_chain();
        }
        let Some(offload) = offload.and_then(|claim| allowed(self.features, claim, frame_bytes))
        else {
            self.counters.bad_header += 1;
            return self.drop_chain();
        };
        let is_short = frame_bytes <= COPY_BYTES_MAX;
        if self.is_inline && frame_bytes <= INLINE_BYTES_MAX && offload.gso.is_none() {
            packet.fill_inline(frame_bytes, |frame| match whole {
                Some(whole) => whole.tail(VirtioHeader::LEN).read(frame),
                None => _ = frame_of(&self.queue).read(frame),
            });
            self.note_copied(frame_bytes);
        } else if is_short && whole.is_some_and(|whole| copy_whole(whole, cx.memory, packet)) {
            self.note_copied(frame_bytes);
        } else if !is_short && self.may_lend() && self.lend(cx.now, packet) {
            self.counters.lent += 1;
        } else if !self.copy(cx.memory, packet, frame_bytes) {
            return Taken::NoMemory;
        }
        packet.set_offload(offload);
        self.counters.packets += 1;
        self.counters.bytes += frame_bytes as u64;
        Taken::Packet
    }

    fn drop_chain(&mut self) -> Taken {
        let head = self.queue.hold();
        self.queue.complete(head, 0);
        Taken::Dropped
    }

    /// True unless too much of the ring is lent.
    fn may_lend(&self) -> bool {
        self.slots.descriptors_out <= usize::from(self.queue.size()) * 3 / 4
    }

    /// Lends the frame of the chain taken last to `packet`; returns false, without a change, if
    /// that is impossible.
    fn lend(&mut self, now: Instant, packet: &mut Packet) -> bool {
        let Some(number) = self.slots.free.pop() else { return false };
        let group = u32::from(number);
        self.returns.begin(group);
        let slot = &mut self.slots.table[usize::from(number)];
        let mut cursor = frame_of(&self.queue);
        let mut is_whole = true;
        let mut at = 0;
        while let Some(Segment { mut address, mut bytes }) = cursor.step(usize::MAX) {
            while bytes > 0 && is_whole {
                let piece = self.lender.lend(&mut self.loans, address, bytes, group);
                let (Some(mut piece), true) = (piece, at < PIECES_MAX) else {
                    is_whole = false;
                    break;
                };
                slot.watches[at] = piece.watch();
                (address, bytes) = (address + piece.len() as u64, bytes - piece.len() as u32);
                packet.push_piece(piece).expect("a packet has room for PIECES_MAX");
                at += 1;
            }
        }
        slot.since = Some(now);
        slot.head = None;
        if is_whole {
            slot.head = Some(self.queue.hold());
        } else {
            packet.clear();
        }
        self.slots.push(number);
        // Ends the share of this call. If lending was given up, this ends the group, whose slot is
        // then freed with those of other groups.
        self.returns.end(group, false);
        is_whole
    }

    /// Copies the frame of the chain taken last into pool frames, and returns the chain; returns
    /// false, without a change, if there are no frames.
    fn copy(&mut self, memory: &mut Memory, packet: &mut Packet, bytes: usize) -> bool {
        let small = if bytes <= SMALL_FRAME_BYTES { memory.small.take() } else { None };
        if let Some(mut frame) = small {
            frame_of(&self.queue).read(&mut frame[..bytes]);
            packet.push_piece(frame.freeze(bytes)).expect("a packet has room for a frame");
        } else {
            if self.buffer.prepare(memory, bytes) < bytes {
                return false;
            }
            let mut cursor = frame_of(&self.queue);
            let mut slices = empty_slices::<FRAMES_MAX>();
            let count = self.buffer.slices(&mut slices);
            for slice in &mut slices[..count] {
                cursor.read(slice);
            }
            self.buffer.take(bytes, |piece| {
                packet.push_piece(piece).expect("a packet has room for the frames of one read");
            });
        }
        self.note_copied(bytes);
        true
    }

    /// Returns the chain taken last, of whose frame `bytes` bytes were copied.
    fn note_copied(&mut self, bytes: usize) {
        self.copied += bytes;
        let head = self.queue.hold();
        self.queue.complete(head, 0);
    }

    /// Recalls the oldest loans if too much of the ring is lent.
    fn relieve(&mut self, ledger: &Ledger) {
        if self.may_lend() {
            return;
        }
        let half = usize::from(self.queue.size()) / 2;
        let mut out = self.slots.descriptors_out;
        let mut number = self.slots.oldest;
        while number != NONE && out > half {
            let slot = &self.slots.table[usize::from(number)];
            let (newer, taken) = (slot.newer, slot.descriptors());
            if self.recall(number, ledger) < Recall::Busy {
                out = out.saturating_sub(taken);
            }
            number = newer;
        }
        self.collect();
    }

    /// Recalls the loans of a slot. Returns the worst of their results.
    fn recall(&mut self, number: u16, ledger: &Ledger) -> Recall {
        let mut worst = Recall::Gone;
        let mut is_done = false;
        for place in &mut self.slots.table[usize::from(number)].watches {
            let Some(watch) = place else { continue };
            let result = watch.recall(ledger);
            is_done |= result == Recall::Done;
            if result < Recall::Busy {
                *place = None;
            }
            worst = worst.max(result);
        }
        self.counters.recalled += u64::from(is_done && worst < Recall::Busy);
        worst
    }

    /// Returns chains whose loans are over; they become visible with the next `publish`.
    fn collect(&mut self) {
        let Self { returns, slots, queue, .. } = self;
        if !returns.has_ended() {
            return;
        }
        returns.take(|group, _| {
            let head = slots.remove(group as u16);
            if let (Some(head), None) = (head, queue.broken()) {
                queue.complete(head, 0);
            }
        });
    }
}

/// The offload fields that a driver with `features` may claim, of those that it claims; `None` if
/// it claims something that was not negotiated.
fn allowed(features: u64, mut offload: Offload, frame_bytes: usize) -> Option<Offload> {
    let has = |bits: u64| features & bits == bits;
    match offload.checksum {
        Checksum::Partial { start, offset } => {
            let end = usize::from(start) + usize::from(offset) + 2;
            if !has(feature::CSUM) || end > frame_bytes {
                return None;
            }
        }
        // §5.1.6.2.1: the driver may not claim this.
        Checksum::Unnecessary => offload.checksum = Checksum::None,
        Checksum::None => {}
    }
    let Some(gso) = offload.gso else { return Some(offload) };
    let agreed = match gso.kind {
        GsoKind::Tcp4 => has(feature::HOST_TSO4),
        GsoKind::Tcp6 => has(feature::HOST_TSO6),
        GsoKind::Udp => has(feature::HOST_USO) && !gso.ecn,
    };
    (agreed && (!gso.ecn || has(feature::HOST_ECN))).then_some(offload)
}

/// Copies the frame of a chain of one buffer into an empty packet, if it is valid and may be
/// inline. Returns its length.
#[inline]
fn fill_inline(packet: &mut Packet, chain: Stretch<'_>, features: u64) -> Option<usize> {
    let bytes = chain.len().checked_sub(VirtioHeader::LEN)?;
    if !(ETHERNET_BYTES..=INLINE_BYTES_MAX).contains(&bytes) {
        return None;
    }
    let header = chain.read_header();
    // The fields before `num_buffers`, which only receivers use. Most short frames claim nothing.
    if header.0[..10] != [0; 10] {
        packet.set_offload(inline_offload(&header, features, bytes)?);
    }
    packet.fill_inline(bytes, |frame| chain.tail(VirtioHeader::LEN).read(frame));
    Some(bytes)
}

/// The offload fields of a frame that claims something, if they are valid and it may be inline. Not
/// inlined: the loop around it would keep its variables in memory.
#[inline(never)]
fn inline_offload(header: &VirtioHeader, features: u64, frame_bytes: usize) -> Option<Offload> {
    let claim = header.decode().ok()?;
    allowed(features, claim, frame_bytes).filter(|offload| offload.gso.is_none())
}

/// The whole chain taken last, if it is one buffer in one region, as small packets are.
#[inline]
fn whole(queue: &Queue) -> Option<Stretch<'_>> {
    match queue.chain().readable() {
        &[Segment { address, bytes }] => queue.memory().locate_whole(address, bytes as usize),
        _ => None,
    }
}

/// The frame of the chain taken last, after its virtio-net header.
fn frame_of(queue: &Queue) -> Cursor<'_> {
    let mut cursor = Cursor::new(queue.memory(), queue.chain().readable());
    cursor.skip(VirtioHeader::LEN);
    cursor
}

/// Copies the frame of a short chain of one buffer into one pool frame; returns false, without a
/// change, if there is none.
#[inline]
fn copy_whole(chain: Stretch<'_>, memory: &mut Memory, packet: &mut Packet) -> bool {
    let Some(mut frame) = memory.small.take() else { return false };
    let from = chain.tail(VirtioHeader::LEN);
    from.read(&mut frame[..from.len()]);
    packet.push_piece(frame.freeze(from.len())).expect("a packet has room for a frame");
    true
}
