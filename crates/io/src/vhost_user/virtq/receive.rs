//! The driver's receive queue: packets are copied into the buffers that it offers.
//!
//! The one copy of payload on the way into a guest, counted at [`Site::Guest`]: two guests share no
//! memory. Of inline packets all bytes count, headers as well. A packet takes one chain, or several
//! where the driver agreed to merged buffers; if there are not enough, it waits. Super-packets that
//! are to be cut here take chains for each part, and wait for the rest of them. Used entries of a
//! pass, of up to as many frames as a burst has packets, become visible together.
//!
//! Follows virtio 1.2 §5.1.6.3 and §5.1.6.4. One thread at a time; nothing blocks or allocates.

mod frames;

use super::chain::{Descriptor, Segment};
use super::{Broken, CHAIN_MAX, Head, Position, Queue, QueueConfig, StartError, Stop, feature};
use crate::vhost_user::memory::GuestMemory;
use frames::{Frame, Frames, Heads, Place};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::{
    Burst, Caps, Checksum, GsoKind, Ledger, Offload, Packet, Pins, Site, VirtioHeader,
};

/// What happened to packets on their way into the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Packets put into the guest's buffers.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Bursts that did not fit: the driver offered too few buffers.
    pub full: u64,
    /// Packets dropped because no chain of the driver, or all of them together, can hold them.
    pub too_small: u64,
    /// Packets dropped because the driver did not agree to what their offload fields ask for.
    pub refused: u64,
}

/// A chain that was taken.
struct Buffer {
    head: Head,
    bytes: usize,
    /// Its descriptors: up to here.
    descriptors_to: usize,
}

/// What was found for a frame.
struct Room {
    /// Bytes of header and frame; none for one that is dropped.
    needed: usize,
    /// Its chains and their segments: up to here.
    buffers_to: usize,
    segments_to: usize,
}

/// What was filled: up to here.
#[derive(Default)]
struct Filled {
    rooms: usize,
    buffers: usize,
    segments: usize,
    descriptors: usize,
    /// Bytes of payload.
    payload: usize,
    /// Of the packet at hand.
    place: Place,
}

/// Whether the chains that were taken have room for a packet.
enum Taken {
    Enough,
    /// More would not help.
    TooSmall,
    /// There are no more.
    TooFew,
}

/// See the module text.
pub struct ReceiveQueue {
    queue: Queue,
    features: u64,
    counters: ReceiveCounters,
    /// The end of what the driver offered, if that is not enough for the packet that waits.
    end: Option<Position>,
    /// For frames from the front of the burst at hand.
    rooms: Vec<Room>,
    buffers: Vec<Buffer>,
    segments: Vec<Segment>,
    descriptors: Vec<Descriptor>,
    /// Those of parts for which room was found.
    heads: Heads,
    /// Behind the payload of the last of these.
    ahead: Place,
}

impl ReceiveQueue {
    /// Starts the queue in a guest's memory.
    pub fn start(config: QueueConfig, memory: &GuestMemory) -> Result<Self, StartError> {
        let (features, size) = (config.features, usize::from(config.size));
        Ok(Self {
            queue: Queue::start(config, memory)?,
            features,
            counters: ReceiveCounters::default(),
            end: None,
            rooms: Vec::with_capacity(BURST_MAX),
            buffers: Vec::with_capacity(size.max(BATCH_SEGMENTS_MAX)),
            segments: Vec::with_capacity(BATCH_SEGMENTS_MAX),
            descriptors: Vec::with_capacity(size.max(BATCH_SEGMENTS_MAX)),
            heads: Heads::new(),
            ahead: Place::default(),
        })
    }

    /// What the guest takes: for [`Device::caps`](towpath_packet::Device::caps).
    pub fn caps(features: u64, mtu: u16) -> Caps {
        let has = |bits: u64| features & bits == bits;
        let checksum = has(feature::GUEST_CSUM);
        let (tso4, tso6) = (has(feature::GUEST_TSO4), has(feature::GUEST_TSO6));
        let uso = has(feature::GUEST_USO4 | feature::GUEST_USO6);
        let gso_bytes_max = if tso4 || tso6 || uso { crate::tap::GSO_BYTES_MAX } else { 0 };
        // §5.1.3.1: super-packets need checksums, which the driver agrees to first. Tunnels: virtio
        // 1.4 has features 65 to 68 for them, and a front end can say the first 64.
        Caps {
            mtu,
            checksum,
            tso4: checksum && tso4,
            tso6: checksum && tso6,
            uso: checksum && uso,
            tunnel: false,
            gso_bytes_max,
            cuts: checksum,
        }
    }

    /// Puts packets from the front of `burst` into the guest's buffers until it is empty or the
    /// buffers are used up; what is left stays in `burst`. The driver need not kick until
    /// [`ReceiveQueue::enable_kicks`].
    ///
    /// # Errors
    /// The ring is broken: the packets stay.
    pub fn transmit(&mut self, burst: &mut Burst, ledger: &Ledger) -> Result<(), Broken> {
        burst.prefetch();
        self.queue.disable_kicks();
        let result = loop {
            let passed = self.pass(burst, ledger);
            frames::drop_frames(burst, self.rooms.len());
            self.queue.publish();
            match passed {
                Ok(true) if !burst.is_empty() => {}
                done => break done,
            }
        };
        result.map(drop)
    }

    /// Asks for a kick when the driver offers more buffers; true if it did meanwhile. Buffers that
    /// were too few for the packet that waits do not count.
    pub fn enable_kicks(&mut self) -> bool {
        self.at_end(Queue::enable_kicks)
    }

    /// True if the driver has offered more buffers since some were too few: for owners who poll.
    pub fn has_more(&mut self) -> bool {
        self.at_end(|queue| queue.has_next())
    }

    /// Does something with the queue as if all buffers were taken that are known to be too few.
    fn at_end<R>(&mut self, act: impl FnOnce(&mut Queue) -> R) -> R {
        let start = self.queue.position();
        self.queue.seek(self.end.unwrap_or(start));
        let result = act(&mut self.queue);
        self.queue.seek(start);
        result
    }

    /// Changes the descriptor that tells the driver.
    pub fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        self.queue.set_call(call);
    }

    /// Stops: nothing is ever held between calls, so that this is done at once.
    pub fn stop(&mut self, _ledger: &Ledger) -> Stop {
        self.queue.publish();
        Stop::Done(self.queue.base())
    }

    /// Counters since the start.
    pub fn counters(&self) -> &ReceiveCounters {
        &self.counters
    }

    /// What broke the ring.
    pub fn broken(&self) -> Option<Broken> {
        self.queue.broken()
    }

    /// Fills chains with frames from the front of `burst`, of which there is then a room for each;
    /// true unless there are too few chains for the next. Room is found [`PACKETS_AHEAD`] frames
    /// before it is filled, and nothing between two of them waits for the stores of the first: so
    /// what one of them misses in the caches is fetched while another is worked on.
    fn pass(&mut self, burst: &Burst, ledger: &Ledger) -> Result<bool, Broken> {
        self.rooms.clear();
        self.buffers.clear();
        self.segments.clear();
        self.descriptors.clear();
        let (mut pins, mut filled) = (Pins::new(), Filled::default());
        let (mut coming, mut found) = (Frames::of(burst), Ok(true));
        for frame in Frames::of(burst) {
            while found == Ok(true)
                && self.rooms.len() <= filled.rooms + PACKETS_AHEAD
                && self.rooms.len() < BURST_MAX
                && self.segments.len().max(self.descriptors.len()) < CHAIN_MAX
                && let Some(next) = coming.next()
            {
                found = self.find_room(&next);
            }
            if filled.rooms == self.rooms.len() {
                break;
            }
            self.fill(&frame, &mut pins, &mut filled);
        }
        ledger.count(Site::Guest, filled.payload);
        found
    }

    /// Takes as many chains as a frame needs, and notes which; false if there are too few.
    fn find_room(&mut self, frame: &Frame<'_>) -> Result<bool, Broken> {
        let buffers_from = self.buffers.len();
        let Some(needed) = self.take_for(frame)? else {
            self.counters.full += 1;
            return Ok(false);
        };
        let (buffers_to, segments_to) = (self.buffers.len(), self.segments.len());
        if let Some((_, is_first)) = frame.part {
            if is_first {
                self.ahead = Place::default();
            }
            self.ahead.prefetch(frame);
            let header = header(frame.packet, self.features, buffers_to - buffers_from);
            self.heads.make(self.rooms.len(), frame, &header);
        }
        self.rooms.push(Room { needed, buffers_to, segments_to });
        Ok(true)
    }

    /// Takes as many chains as a frame needs; returns its bytes, none if it is to be dropped, or
    /// `None` if there are too few chains.
    fn take_for(&mut self, frame: &Frame<'_>) -> Result<Option<usize>, Broken> {
        if !self.takes(frame.packet.offload()) {
            self.counters.refused += 1;
            return Ok(Some(0));
        }
        let needed = VirtioHeader::LEN + frame.len();
        if let Some((head, segment)) = self.queue.take_room(needed) {
            let (bytes, descriptors_to) = (segment.bytes as usize, self.descriptors.len());
            self.buffers.push(Buffer { head, bytes, descriptors_to });
            self.segments.push(segment);
            self.end = None;
            prefetch(self.queue.memory(), frame, needed, &segment);
            return Ok(Some(needed));
        }
        let start = self.queue.position();
        let before = (self.buffers.len(), self.segments.len(), self.descriptors.len());
        let taken = self.take(needed)?;
        self.end = None;
        if let Taken::Enough = taken {
            if let Some(last) = self.segments.last() {
                prefetch(self.queue.memory(), frame, needed, last);
            }
            return Ok(Some(needed));
        }
        if let Taken::TooFew = taken {
            self.end = Some(self.queue.position());
        }
        self.queue.seek(start);
        self.buffers.truncate(before.0);
        self.segments.truncate(before.1);
        self.descriptors.truncate(before.2);
        if let Taken::TooSmall = taken {
            self.counters.too_small += 1;
            return Ok(Some(0));
        }
        Ok(None)
    }

    /// Takes chains until they have room for `needed` bytes.
    fn take(&mut self, needed: usize) -> Result<Taken, Broken> {
        let mergeable = self.features & feature::MRG_RXBUF != 0;
        let first = (self.buffers.len(), self.segments.len());
        let mut room = 0;
        while self.queue.take()? {
            let chain = self.queue.chain();
            if !chain.readable().is_empty() || chain.writable().is_empty() {
                return Err(self.queue.break_for(Broken::Direction));
            }
            let bytes = chain.writable_bytes();
            self.segments.extend_from_slice(chain.writable());
            if !chain.descriptors.is_empty() {
                self.descriptors.extend_from_slice(&chain.descriptors);
            }
            let (head, descriptors_to) = (chain.head, self.descriptors.len());
            self.buffers.push(Buffer { head, bytes, descriptors_to });
            room += bytes;
            if room >= needed {
                return Ok(Taken::Enough);
            }
            let is_all = self.buffers.len() - first.0 == usize::from(self.queue.size());
            if !mergeable || is_all || self.segments.len() - first.1 >= CHAIN_MAX {
                return Ok(Taken::TooSmall);
            }
        }
        Ok(Taken::TooFew)
    }

    /// Fills the next room with its frame, and gives its chains back.
    fn fill<'a>(&mut self, frame: &Frame<'a>, pins: &mut Pins<'a>, filled: &mut Filled) {
        let Self { queue, rooms, buffers, segments, descriptors, counters, .. } = self;
        let (number, room) = (filled.rooms, &rooms[filled.rooms]);
        let buffers = &buffers[filled.buffers..room.buffers_to];
        let segments = &segments[filled.segments..room.segments_to];
        filled.rooms += 1;
        (filled.buffers, filled.segments) = (room.buffers_to, room.segments_to);
        if frame.part.is_none_or(|(_, is_first)| is_first) {
            filled.place = Place::default();
        }
        if room.needed == 0 {
            filled.place.skip(frame);
            return;
        }
        let header;
        let first = if frame.part.is_some() {
            [self.heads.head(number, frame), &[]]
        } else {
            header = self::header(frame.packet, self.features, buffers.len());
            [&header.0[..], frame.headers()]
        };
        let to = (queue.memory(), segments);
        frames::copy(pins, (frame, &mut filled.place), first, room.needed, to);
        let mut left = room.needed;
        for buffer in buffers {
            let own = &descriptors[filled.descriptors..buffer.descriptors_to];
            let head = queue.hold_earlier(buffer.head, own);
            let bytes = left.min(buffer.bytes);
            queue.complete(head, bytes as u32);
            (left, filled.descriptors) = (left - bytes, buffer.descriptors_to);
        }
        counters.packets += 1;
        counters.bytes += (room.needed - VirtioHeader::LEN) as u64;
        filled.payload += frame.payload();
    }

    /// True if the driver agreed to get packets with these fields.
    fn takes(&self, offload: &Offload) -> bool {
        let checksum = match offload.checksum {
            Checksum::Partial { .. } => self.has(feature::GUEST_CSUM),
            Checksum::None | Checksum::Unnecessary => true,
        };
        let gso = offload.gso.is_none_or(|gso| {
            let is_kind = self.has(match gso.kind {
                GsoKind::Tcp4 => feature::GUEST_TSO4,
                GsoKind::Tcp6 => feature::GUEST_TSO6,
                GsoKind::Udp => feature::GUEST_USO4 | feature::GUEST_USO6,
            });
            is_kind && gso.tunnel.is_none()
        });
        checksum && gso
    }

    fn has(&self, bits: u64) -> bool {
        self.features & bits == bits
    }
}

/// The virtio-net header of a packet in so many buffers.
fn header(packet: &Packet, features: u64, buffers: usize) -> VirtioHeader {
    let mut offload = *packet.offload();
    if let (Some(gso), 0) = (&mut offload.gso, features & feature::GUEST_ECN) {
        // The mark in the TCP header stays; only this hint is not for this driver.
        gso.ecn = false;
    }
    if offload.checksum == Checksum::Unnecessary && features & feature::GUEST_CSUM == 0 {
        offload.checksum = Checksum::None;
    }
    VirtioHeader::encode_merged(&offload, packet.wire_headers().len(), buffers as u16)
}

/// Has the beginnings of a frame and of its last segment fetched, which are used soon. Of a short
/// one that takes longer than it saves. Payload of parts is [fetched](Place::prefetch) by itself:
/// where that is from memory, the processor fetches the segments in time, as they lie in a row, and
/// asking for them takes places from the payload's lines.
#[inline]
fn prefetch(memory: &GuestMemory, frame: &Frame<'_>, needed: usize, last: &Segment) {
    let is_whole = frame.part.is_none();
    if is_whole {
        frame.packet.prefetch_headers();
    }
    if needed <= SHORT_BYTES_MAX || !(is_whole || frame.is_near()) {
        return;
    }
    if is_whole && let Some(piece) = frame.packet.pieces().next() {
        piece.prefetch();
    }
    if let Some(stretch) = memory.locate(last.address, needed) {
        stretch.prefetch_write();
    }
}

/// Frames for which room is found ahead of the one that is filled.
const PACKETS_AHEAD: usize = 2;
/// Packets of so many bytes, with their virtio header, are not fetched ahead: the switch has just
/// looked at most of them.
const SHORT_BYTES_MAX: usize = 256;
/// Segments of a batch at most: as long as there are fewer than a chain may have, another packet is
/// looked at, which stops at so many and the longest chain.
const BATCH_SEGMENTS_MAX: usize = 3 * CHAIN_MAX;
