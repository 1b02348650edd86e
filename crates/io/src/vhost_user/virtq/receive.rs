//! The driver's receive queue: copies packets into the buffers that the driver makes available.
//!
//! This is the only copy of payload on the way into a guest, counted at [`Site::Guest`]: two guests
//! share no memory. For inline packets all bytes count, including headers. A packet uses one chain,
//! or several if merged buffers were negotiated; if there are too few, it waits. A super-packet
//! that is segmented here uses chains for each part, and waits for the missing ones. The used
//! entries of a pass, of up to `BURST_MAX` frames, become visible together.
//!
//! Follows virtio 1.2 §5.1.6.3 and §5.1.6.4. One thread at a time; no call blocks or allocates.

mod frames;

use super::batch::{BATCH_MAX, Batch, Kind};
use super::chain::{Descriptor, Segment};
use super::{Broken, CHAIN_MAX, Head, Position, Queue, QueueConfig, StartError, Stop, feature};
use crate::vhost_user::memory::{GuestMemory, Lookup};
use frames::{Frame, Frames, Heads, Place};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::{
    Burst, Caps, Checksum, Context, GsoKind, Ledger, Offload, Packet, Pins, Site, VirtioHeader,
};

/// Counters of packets to the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Packets copied into the guest's buffers.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Bursts that did not fit because the driver made too few buffers available.
    pub full: u64,
    /// Packets dropped because no chain of the driver, or not even all of them together, can hold
    /// them.
    pub too_small: u64,
    /// Packets dropped because the driver did not negotiate what their offload fields require.
    pub refused: u64,
}

/// A taken chain.
struct Buffer {
    head: Head,
    bytes: usize,
    /// End of its descriptors in the list.
    descriptors_to: usize,
}

/// Chains reserved for a frame.
struct Room {
    /// Bytes of header and frame; 0 for a frame to be dropped.
    needed: usize,
    /// End of its chains, and of their segments, in the lists.
    buffers_to: usize,
    segments_to: usize,
}

/// Ends of what has been filled, in the lists.
#[derive(Default)]
struct Filled {
    rooms: usize,
    buffers: usize,
    segments: usize,
    descriptors: usize,
    /// Bytes of payload.
    payload: usize,
    /// Position in the current packet.
    place: Place,
}

/// Whether the taken chains have room for a packet.
enum Taken {
    Enough,
    /// More chains would not help.
    TooSmall,
    /// No more chains are available.
    TooFew,
}

/// The driver's receive queue; see the module documentation.
pub struct ReceiveQueue {
    queue: Queue,
    features: u64,
    counters: ReceiveCounters,
    /// End of the available chains, if they are too few for the packet that waits.
    end: Option<Position>,
    /// Rooms for frames from the front of the current burst.
    rooms: Vec<Room>,
    buffers: Vec<Buffer>,
    segments: Vec<Segment>,
    descriptors: Vec<Descriptor>,
    /// Headers of the parts for which room was found.
    heads: Heads,
    /// Position after the payload of the last of these parts.
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

    /// The guest's capabilities, for [`Device::caps`](towpath_packet::Device::caps).
    pub fn caps(features: u64, mtu: u16) -> Caps {
        let has = |bits: u64| features & bits == bits;
        let checksum = has(feature::GUEST_CSUM);
        let (tso4, tso6) = (has(feature::GUEST_TSO4), has(feature::GUEST_TSO6));
        let uso = has(feature::GUEST_USO4 | feature::GUEST_USO6);
        let gso_bytes_max = if tso4 || tso6 || uso { crate::tap::GSO_BYTES_MAX } else { 0 };
        // §5.1.3.1: super-packets require checksums, so these must be negotiated. Tunnels: virtio
        // 1.4 has features 65 to 68 for them, but a front end can negotiate only the first 64.
        Caps {
            mtu,
            checksum,
            tso4: checksum && tso4,
            tso6: checksum && tso6,
            uso: checksum && uso,
            tunnel: false,
            gso_bytes_max,
            segments: checksum,
        }
    }

    /// Copies packets from the front of `burst` into the guest's buffers, until the burst is empty
    /// or the buffers are used up. The rest stays in `burst`. The driver need not kick until
    /// [`ReceiveQueue::enable_kicks`].
    ///
    /// # Errors
    /// The ring is broken; the packets stay in `burst`.
    pub fn deliver(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), Broken> {
        burst.prefetch();
        self.queue.disable_kicks();
        let result = loop {
            self.pass_short(burst, cx);
            let has_passed = self.pass_parts(burst, cx) || burst.is_empty();
            let passed = if has_passed { Ok(true) } else { self.pass(burst, cx) };
            self.queue.publish();
            match passed {
                Ok(true) if !burst.is_empty() => {}
                done => break done,
            }
        };
        result.map(drop)
    }

    /// Requests a kick when the driver makes more buffers available; true if it already has.
    /// Buffers that are too few for the packet that waits do not count.
    pub fn enable_kicks(&mut self) -> bool {
        self.at_end(Queue::enable_kicks)
    }

    /// True if the driver has added buffers since there were too few, for owners that poll.
    pub fn has_more(&mut self) -> bool {
        self.at_end(|queue| queue.has_next())
    }

    /// Calls `act` at the position after the buffers that are known to be too few.
    fn at_end<R>(&mut self, act: impl FnOnce(&mut Queue) -> R) -> R {
        let start = self.queue.position();
        self.queue.seek(self.end.unwrap_or(start));
        let result = act(&mut self.queue);
        self.queue.seek(start);
        result
    }

    /// Changes the call descriptor.
    pub fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        self.queue.set_call(call);
    }

    /// Stops the queue. This completes at once, because no chain is held between calls.
    pub fn stop(&mut self, _ledger: &Ledger) -> Stop {
        self.queue.publish();
        Stop::Done(self.queue.base())
    }

    /// Counters since the start.
    pub fn counters(&self) -> &ReceiveCounters {
        &self.counters
    }

    /// Why the ring is broken, if it is.
    pub fn broken(&self) -> Option<Broken> {
        self.queue.broken()
    }

    /// The fast path: copies packets from the front of `burst` that consist of private headers into
    /// [batches](super::batch) of chains, each of which is one buffer with room for its packet.
    /// Leaves the others, from the first one on, to [`pass`](Self::pass). Not inlined, so that its
    /// loop keeps its variables in registers.
    #[inline(never)]
    fn pass_short(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        let features = self.features;
        let Some((ring, guest)) = self.queue.batches() else { return };
        let count = burst.iter().take_while(|packet| packet.as_headers().is_some()).count();
        if count == 0 {
            return;
        }
        // Another burst often follows a full one.
        let wanted = if count == BURST_MAX { count + BATCH_MAX } else { count };
        let (mut lookup, mut batches) = (Lookup::new(guest), [Batch::new(), Batch::new()]);
        let [batch, next] = &mut batches;
        let (mut batch, mut next) = (batch, next);
        let plain = VirtioHeader::encode_merged(&Offload::default(), 0, 1);
        let (mut passed, mut copied, mut bytes) = (0, 0, 0);
        ring.read(&mut lookup, batch, Kind::Write, (0, count));
        while passed < count && !batch.is_empty() {
            // These buffers come into the cache while others are written.
            let ahead = wanted - passed - batch.len();
            ring.read(&mut lookup, next, Kind::Write, (batch.len(), ahead));
            let mut done = 0;
            let packets = burst.iter_from(passed).take(count - passed);
            for (chain, packet) in batch.chains_mut().iter_mut().zip(packets) {
                let frame = packet.headers();
                let (buffer, needed) = (chain.buffer, VirtioHeader::LEN + frame.len());
                if needed > buffer.len() {
                    break;
                }
                if *packet.offload() == Offload::default() {
                    buffer.write_header(&plain);
                } else if let Some(header) = short_header(packet, features) {
                    buffer.write_header(&header);
                } else {
                    break;
                }
                buffer.tail(VirtioHeader::LEN).write(frame);
                guest.mark(chain.address, needed);
                chain.written = needed as u32;
                copied += if packet.is_inline() { frame.len() } else { 0 };
                (done, bytes) = (done + 1, bytes + frame.len());
            }
            ring.pass(batch, done);
            passed += done;
            if done < batch.len() {
                break;
            }
            std::mem::swap(&mut batch, &mut next);
        }
        if passed > 0 {
            self.end = None;
            self.counters.packets += passed as u64;
            self.counters.bytes += bytes as u64;
            if copied > 0 {
                cx.ledger.count(Site::Guest, copied);
            }
            burst.drop_front_to(passed, cx.memory);
        }
    }

    /// The fast path for super-packets that are segmented here: copies parts of the packets at the
    /// front of `burst`, and drops them. Leaves the others to [`pass`](Self::pass). True if there
    /// was a part.
    fn pass_parts(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> bool {
        let passed = self.fill_parts(burst, cx.ledger);
        frames::drop_frames(burst, passed, cx.memory);
        passed > 0
    }

    /// Copies parts of the packets at the front of `burst` into [batches](super::batch) of chains,
    /// each of which is one buffer with room for its part. Returns their number. Heads are made,
    /// and payload is prefetched, [`PACKETS_AHEAD`] parts before they are copied. Not inlined, so
    /// that its loop keeps its variables in registers.
    #[inline(never)]
    fn fill_parts(&mut self, burst: &Burst, ledger: &Ledger) -> usize {
        let Self { queue, features, counters, heads, end, .. } = self;
        let is_cut = |packet: &&Packet| {
            packet.segmentation().is_some() && takes(*features, packet.offload())
        };
        let (mut packets, mut count) = (burst.iter().take_while(is_cut), 0);
        while count < BURST_MAX
            && let Some(packet) = packets.next()
        {
            count += packet.frames();
        }
        let count = count.min(BURST_MAX);
        let Some((ring, guest)) = queue.batches().filter(|_| count > 0) else { return 0 };
        let (mut lookup, mut batch, mut pins) = (Lookup::new(guest), Batch::new(), Pins::new());
        let (mut parts, mut coming) = (Frames::of(burst), Frames::of(burst).take(count));
        let (mut place, mut ahead) = (Place::default(), Place::default());
        let mut shared = VirtioHeader::default();
        let (mut passed, mut made, mut bytes, mut payload) = (0, 0, 0, 0);
        while passed < count {
            ring.read(&mut lookup, &mut batch, Kind::WriteLong, (0, count - passed));
            let mut done = 0;
            for (chain, part) in batch.chains_mut().iter_mut().zip(&mut parts) {
                while made <= passed + done + PACKETS_AHEAD
                    && let Some(next) = coming.next()
                {
                    if next.is_first() {
                        ahead = Place::default();
                        shared = header(next.packet, *features, 1);
                    }
                    ahead.prefetch(&next);
                    heads.make(made, &next, &shared);
                    made += 1;
                }
                let head = heads.head(passed + done, &part);
                let (buffer, needed) = (chain.buffer, head.len() + part.payload_len());
                if needed > buffer.len() {
                    break;
                }
                if part.is_first() {
                    place = Place::default();
                }
                frames::copy_whole(&mut pins, (&part, &mut place), [head, &[]], buffer);
                guest.mark(chain.address, needed);
                chain.written = needed as u32;
                (bytes, payload) = (bytes + needed, payload + part.payload_len());
                done += 1;
            }
            ring.pass(&batch, done);
            passed += done;
            if batch.is_empty() || done < batch.len() {
                break;
            }
        }
        if passed > 0 {
            *end = None;
            counters.packets += passed as u64;
            counters.bytes += (bytes - passed * VirtioHeader::LEN) as u64;
            ledger.count(Site::Guest, payload);
        }
        passed
    }

    /// Copies any frames from the front of `burst`, and drops them. Returns true unless there are
    /// too few chains for the next frame.
    fn pass(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<bool, Broken> {
        let result = self.pass_any(burst, cx.ledger);
        frames::drop_frames(burst, self.rooms.len(), cx.memory);
        result
    }

    /// Fills chains with frames from the front of `burst`; afterwards `rooms` has one entry for
    /// each. Returns true unless there are too few chains for the next frame. Room is reserved
    /// [`PACKETS_AHEAD`] frames before it is filled, and no step waits for the stores of the other.
    /// So cache misses of one frame overlap with work on another.
    fn pass_any(&mut self, burst: &Burst, ledger: &Ledger) -> Result<bool, Broken> {
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

    /// Reserves as many chains as a frame needs; false if there are too few.
    fn find_room(&mut self, frame: &Frame<'_>) -> Result<bool, Broken> {
        let buffers_from = self.buffers.len();
        let Some(needed) = self.take_for(frame)? else {
            self.counters.full += 1;
            return Ok(false);
        };
        let (buffers_to, segments_to) = (self.buffers.len(), self.segments.len());
        if frame.part.is_some() {
            if frame.is_first() {
                self.ahead = Place::default();
            }
            self.ahead.prefetch(frame);
            let header = header(frame.packet, self.features, buffers_to - buffers_from);
            self.heads.make(self.rooms.len(), frame, &header);
        }
        self.rooms.push(Room { needed, buffers_to, segments_to });
        Ok(true)
    }

    /// Takes as many chains as a frame needs. Returns its length, 0 if it is to be dropped, or
    /// `None` if there are too few chains.
    fn take_for(&mut self, frame: &Frame<'_>) -> Result<Option<usize>, Broken> {
        if !takes(self.features, frame.packet.offload()) {
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

    /// Copies a frame into its room, and returns its chains.
    fn fill<'a>(&mut self, frame: &Frame<'a>, pins: &mut Pins<'a>, filled: &mut Filled) {
        let Self { queue, rooms, buffers, segments, descriptors, counters, .. } = self;
        let (number, room) = (filled.rooms, &rooms[filled.rooms]);
        let buffers = &buffers[filled.buffers..room.buffers_to];
        let segments = &segments[filled.segments..room.segments_to];
        filled.rooms += 1;
        (filled.buffers, filled.segments) = (room.buffers_to, room.segments_to);
        if frame.is_first() {
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
}

/// True if a driver with `features` negotiated packets with these offload fields.
#[inline]
fn takes(features: u64, offload: &Offload) -> bool {
    let has = |bits: u64| features & bits == bits;
    let checksum = match offload.checksum {
        Checksum::Partial { .. } => has(feature::GUEST_CSUM),
        Checksum::None | Checksum::Unnecessary => true,
    };
    let gso = offload.gso.is_none_or(|gso| {
        let is_kind = has(match gso.kind {
            GsoKind::Tcp4 => feature::GUEST_TSO4,
            GsoKind::Tcp6 => feature::GUEST_TSO6,
            GsoKind::Udp => feature::GUEST_USO4 | feature::GUEST_USO6,
        });
        is_kind && gso.tunnel.is_none()
    });
    checksum && gso
}

/// The virtio-net header of a packet with offload fields that uses one buffer, if a driver with
/// `features` takes them. Not inlined: the loop around it would keep its variables in memory.
#[inline(never)]
fn short_header(packet: &Packet, features: u64) -> Option<VirtioHeader> {
    takes(features, packet.offload()).then(|| header(packet, features, 1))
}

/// The virtio-net header of a packet that uses this number of buffers.
#[inline]
fn header(packet: &Packet, features: u64, buffers: usize) -> VirtioHeader {
    let mut offload = *packet.offload();
    if let (Some(gso), 0) = (&mut offload.gso, features & feature::GUEST_ECN) {
        // The mark in the TCP header stays; only this hint is withheld from the driver.
        gso.ecn = false;
    }
    if offload.checksum == Checksum::Unnecessary && features & feature::GUEST_CSUM == 0 {
        offload.checksum = Checksum::None;
    }
    // A hint that only super-packets have.
    let header_len = if offload.gso.is_some() { packet.wire_headers().len() } else { 0 };
    VirtioHeader::encode_merged(&offload, header_len, buffers as u16)
}

/// Prefetches the start of a frame and of its last segment, which are used soon. For a short frame
/// the prefetch costs more than it saves. The payload of parts is [prefetched](Place::prefetch)
/// separately: where it comes from memory, the processor fetches the segments in time by itself,
/// because they are contiguous, and prefetching them would take slots from the payload's cache
/// lines.
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

/// Number of frames for which room is reserved ahead of the one being filled.
const PACKETS_AHEAD: usize = 2;
/// Packets of up to this length, including the virtio-net header, are not prefetched: the switch
/// has just read most of them.
const SHORT_BYTES_MAX: usize = 256;
/// Most segments of a batch: while there are fewer than a chain may have, another packet is
/// examined, which adds at most that number and the longest chain.
const BATCH_SEGMENTS_MAX: usize = 3 * CHAIN_MAX;
