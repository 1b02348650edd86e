//! The driver's transmit queue: its packets, as loans of the guest's memory.
//!
//! The virtio-net header is copied and checked; the frame behind it is lent as it lies in the
//! guest's memory, one loan for each buffer, and the chain is given back when the last of its loans
//! is over, in whatever order that happens. Frames of up to [`COPY_BYTES_MAX`] are copied at once,
//! and their chains given back at once: a loan costs more than that. For an owner who forwards
//! packets by their headers ([`TransmitQueue::set_inline`]) frames of up to [`INLINE_BYTES_MAX`]
//! are copied into the packet's private bytes, and take no frame of the pool.
//!
//! # Theory of operation: a ring that is not starved
//!
//! A guest counts what is in its ring as sent and not gone, so a chain that stays out for long
//! slows the guest's own senders, and a ring that is all out stops it. So a loan ends early, by
//! being recalled (`towpath_packet::recall`), for one of two reasons: it is older than
//! [`LOAN_TERM`], or more than three quarters of the ring are out; then the oldest go until half of
//! it is free. Where a recall has to wait for somebody who reads at that moment, new packets are
//! copied meanwhile.
//!
//! The chains that are lent stand in a table of slots. A slot is a group of [`Returns`], its
//! loans are the shares; the thread that drops the last piece puts the group on a list, and wakes
//! the owner of the ring only if he sleeps ([`TransmitQueue::enable_kicks`]).
//!
//! Follows virtio 1.2 §5.1.6.2. One thread at a time; pieces go anywhere. Nothing blocks, and
//! nothing allocates but a recall.

mod slots;

use super::chain::{Cursor, Segment};
use super::{Broken, Queue, QueueConfig, StartError, Stop, feature};
use crate::receive::{FRAMES_MAX, ReceiveBuffer, empty_slices};
use crate::tap::FRAME_BYTES_MAX;
use crate::vhost_user::memory::{GuestLender, GuestMemory};
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

/// Frames of up to so many bytes are copied: where a copy costs about as much as a loan.
pub const COPY_BYTES_MAX: usize = 256;
/// Frames of up to so many bytes come inline where that was asked for: all that a packet's private
/// memory has room for.
pub const INLINE_BYTES_MAX: usize = PEEK_BYTES;
/// How long a loan may take: half of what slowed a guest's TCP down to a half when it was held.
pub const LOAN_TERM: Duration = Duration::from_millis(20);
/// When to ask again for what somebody was reading.
pub const BUSY_RETRY: Duration = Duration::from_millis(1);
/// Loan descriptors for each descriptor of the ring: a super-packet of 64 KiB is two or three
/// buffers of a Linux guest and four in the worst usual case; beyond it is copied.
pub const LOANS_PER_DESCRIPTOR: usize = 4;
/// Chains of one [`TransmitQueue::receive`]: a burst, and as many drops three times over.
pub const CHAINS_PER_CALL_MAX: usize = 4 * BURST_MAX;

/// Chains whose beginning is fetched ahead of the one that is taken.
const CHAINS_AHEAD: u16 = 4;
const _: () = assert!(COPY_BYTES_MAX <= SMALL_FRAME_BYTES, "a short frame fits one of the pool's");
/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// What happened to packets that the guest sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitCounters {
    /// Packets taken from the guest.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Packets of them that were lent, the others were copied.
    pub lent: u64,
    /// Chains given back early because their loans were recalled.
    pub recalled: u64,
    /// Packets dropped because there is no Ethernet header.
    pub short: u64,
    /// Packets dropped because they are longer than any frame.
    pub long: u64,
    /// Packets dropped because their virtio-net header is wrong or asks for what was not agreed.
    pub bad_header: u64,
    /// Packets dropped because the queue is disabled.
    pub discarded: u64,
    /// Calls that ended because packet memory was short.
    pub paused: u64,
}

/// See the module text.
pub struct TransmitQueue {
    queue: Queue,
    features: u64,
    counters: TransmitCounters,
    buffer: ReceiveBuffer,
    /// Short frames come inline.
    is_inline: bool,
    /// Bytes copied that are not in the ledger yet.
    copied: usize,
    loans: Loans,
    returns: Arc<Returns>,
    lender: Arc<GuestLender>,
    slots: Slots,
    /// When to ask again for what somebody was reading.
    retry_at: Option<Instant>,
}

enum Taken {
    Packet,
    Dropped,
    NoMemory,
}

impl TransmitQueue {
    /// Starts the queue in a guest's memory. `wake` wakes its owner when loans end while he sleeps.
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

    /// From now on frames of up to [`INLINE_BYTES_MAX`] come [inline](Packet::is_inline), but for
    /// super-packets, whose headers end where their payload begins.
    pub fn set_inline(&mut self) {
        self.is_inline = true;
    }

    /// Adds packets that the guest sent to `burst` until it is full, nothing is left or `memory` is
    /// short. They are neither peeked nor checked beyond their length. The driver need not kick
    /// until [`TransmitQueue::enable_kicks`].
    ///
    /// # Errors
    /// The ring is broken. What is in the burst is good, and loans go on.
    pub fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), Broken> {
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

    /// Gives back the chains whose loans are over, and ends loans that are due. To be called once
    /// each turn, when the waker was woken, and at the moment that the last call returned.
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

    /// Takes what the guest sent and drops it: for a queue that is disabled.
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

    /// Asks for a kick when the driver sends more, and for a wake-up when loans end. True if either
    /// came meanwhile: then the owner does not sleep.
    pub fn enable_kicks(&mut self) -> bool {
        let has_returned = !self.returns.arm();
        self.queue.enable_kicks() || has_returned
    }

    /// When the oldest loan is due to be recalled by [`TransmitQueue::turn`], for the first time or
    /// again.
    pub fn next_deadline(&self) -> Option<Instant> {
        let oldest = self.slots.table.get(usize::from(self.slots.oldest))?;
        let due = oldest.since.map(|since| since + LOAN_TERM)?;
        Some(self.retry_at.map_or(due, |at| at.max(due)))
    }

    /// True if the driver has sent something, or loans have ended: for owners who poll.
    pub fn has_work(&self) -> bool {
        self.queue.has_next() || self.returns.has_ended()
    }

    /// Changes the descriptor that tells the driver.
    pub fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        self.queue.set_call(call);
    }

    /// Recalls all loans and gives their chains back. When it is done, nobody reads the guest's
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
            // Whoever drops the last piece of a loan at this moment is about to tell us.
            _ => Stop::Busy,
        }
    }

    /// Counters since the start.
    pub fn counters(&self) -> &TransmitCounters {
        &self.counters
    }

    /// Chains that are lent.
    pub fn lent_count(&self) -> usize {
        self.slots.table.len() - self.slots.free.len()
    }

    /// What broke the ring.
    pub fn broken(&self) -> Option<Broken> {
        self.queue.broken()
    }

    /// Takes chains until the burst is full, nothing is left or memory is short.
    fn fill(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), Broken> {
        // Also when no chain is looked at, as there is no packet for it.
        self.queue.check()?;
        let mut spare = None;
        for _ in 0..CHAINS_PER_CALL_MAX {
            if burst.is_full() {
                break;
            }
            let Some(mut packet) = spare.take().or_else(|| cx.memory.packet()) else {
                self.counters.paused += 1;
                break;
            };
            if self.is_inline && self.take_inline(&mut packet) {
                self.queue.prefetch(CHAINS_AHEAD);
                burst.push(packet).expect("the burst has room");
                continue;
            }
            let position = self.queue.position();
            if !self.queue.take()? {
                break;
            }
            self.queue.prefetch(CHAINS_AHEAD);
            match self.take(&mut packet, cx) {
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

    /// Takes the next chain if it is one buffer with a frame that is good and may be inline: the
    /// short way. All else is left to [`TransmitQueue::take`], which reads it anew.
    #[inline]
    fn take_inline(&mut self, packet: &mut Packet) -> bool {
        let features = self.features;
        let mut frame_bytes = 0;
        let head = self.queue.take_frame(|chain| {
            let Some(bytes) = chain.len().checked_sub(VirtioHeader::LEN) else { return false };
            if !(ETHERNET_BYTES..=INLINE_BYTES_MAX).contains(&bytes) {
                return false;
            }
            let mut header = VirtioHeader::default();
            chain.read(&mut header.0);
            let offload = header.decode().ok().and_then(|claim| allowed(features, claim, bytes));
            let Some(offload) = offload.filter(|offload| offload.gso.is_none()) else {
                return false;
            };
            packet.fill_inline(bytes, |frame| chain.tail(VirtioHeader::LEN).read(frame));
            packet.set_offload(offload);
            frame_bytes = bytes;
            true
        });
        let Some(head) = head else { return false };
        self.queue.complete(head, 0);
        self.copied += frame_bytes;
        self.counters.packets += 1;
        self.counters.bytes += frame_bytes as u64;
        true
    }

    /// Checks the chain taken last and makes a packet of it.
    fn take(&mut self, packet: &mut Packet, cx: &mut Context<'_>) -> Taken {
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

    /// True unless too much of the ring is out.
    fn may_lend(&self) -> bool {
        self.slots.descriptors_out <= usize::from(self.queue.size()) * 3 / 4
    }

    /// Lends the frame of the chain taken last to `packet`; false, and nothing done, if that cannot
    /// be.
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
                packet.push_piece(piece).expect("a packet has room for so many pieces");
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
        // The share of this call: a group that was given up ends here, and its slot comes back with
        // the others.
        self.returns.end(group, false);
        is_whole
    }

    /// Copies the frame of the chain taken last into pool frames and gives the chain back; false,
    /// and nothing done, if there are none.
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

    /// Gives the chain taken last back, of whose frame so many bytes were copied.
    fn note_copied(&mut self, bytes: usize) {
        self.copied += bytes;
        let head = self.queue.hold();
        self.queue.complete(head, 0);
    }

    /// Recalls the oldest loans if too much of the ring is out.
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

    /// Ends the loans of a slot early. What came of it is the worst of all of them.
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

    /// Gives back the chains whose loans are over; visible after the next publishing.
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

/// What a sender who agreed to `features` may claim of what it claims; `None` if it did not agree
/// to that.
fn allowed(features: u64, mut offload: Offload, frame_bytes: usize) -> Option<Offload> {
    let has = |bits: u64| features & bits == bits;
    match offload.checksum {
        Checksum::Partial { start, offset } => {
            let end = usize::from(start) + usize::from(offset) + 2;
            if !has(feature::CSUM) || end > frame_bytes {
                return None;
            }
        }
        // §5.1.6.2.1: not for the driver to say.
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

/// All of the chain taken last, if it is one buffer in one region, as small packets are.
#[inline]
fn whole(queue: &Queue) -> Option<Stretch<'_>> {
    match queue.chain().readable() {
        &[Segment { address, bytes }] => queue.memory().locate_whole(address, bytes as usize),
        _ => None,
    }
}

/// The frame of the chain taken last, behind its header.
fn frame_of(queue: &Queue) -> Cursor<'_> {
    let mut cursor = Cursor::new(queue.memory(), queue.chain().readable());
    cursor.skip(VirtioHeader::LEN);
    cursor
}

/// Copies the frame of a short chain, which is a header and that, into one pool frame; false, and
/// nothing done, if there is none.
#[inline]
fn copy_whole(chain: Stretch<'_>, memory: &mut Memory, packet: &mut Packet) -> bool {
    let Some(mut frame) = memory.small.take() else { return false };
    let from = chain.tail(VirtioHeader::LEN);
    from.read(&mut frame[..from.len()]);
    packet.push_piece(frame.freeze(from.len())).expect("a packet has room for a frame");
    true
}
