//! Frames on their way into the guest: packets as they are, and parts of super-packets that are
//! cut here.
//!
//! A part is never a packet: its headers are made in one of a few places ([`Heads`]), its payload
//! is copied from where it lies in the whole. No loan is shared and no handle taken for it.

use super::super::Segment;
use super::super::chain::Cursor;
use crate::vhost_user::memory::GuestMemory;
use towpath_packet::cut::Part;
use towpath_packet::packet::HEADER_BYTES;
use towpath_packet::{Burst, Packet, Piece, Pins, VirtioHeader};

/// A packet, or one part of it.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) packet: &'a Packet,
    /// If the packet is cut, and whether this is the first that is left of it.
    pub(super) part: Option<(Part, bool)>,
}

impl<'a> Frame<'a> {
    /// The headers that it has before they become those of a part.
    pub(super) fn headers(&self) -> &'a [u8] {
        match self.part {
            Some(_) => self.packet.headers(),
            None => self.packet.wire_headers(),
        }
    }

    /// Bytes of payload in the packet's pieces.
    #[inline]
    fn payload_len(&self) -> usize {
        self.part.map_or_else(|| self.packet.payload_len(), |(part, _)| part.len)
    }

    /// Bytes behind the virtio-net header.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self.part {
            Some((part, _)) => self.packet.headers().len() + part.len,
            None => self.packet.len(),
        }
    }

    /// Whether the payload is most likely in a cache: frames of pools are used again soon.
    #[inline]
    pub(super) fn is_near(&self) -> bool {
        self.packet.pieces().next().is_none_or(Piece::is_frame)
    }

    /// Bytes whose copy counts.
    #[inline]
    pub(super) fn payload(&self) -> usize {
        if self.packet.is_inline() { self.packet.len() } else { self.payload_len() }
    }
}

/// The frames of a burst, first to last.
pub(super) struct Frames<'a, I> {
    packets: I,
    /// The packet that is being cut, its next part and how many it has.
    cut: Option<(&'a Packet, usize, usize)>,
}

impl<'a> Frames<'a, ()> {
    pub(super) fn of(burst: &'a Burst) -> Frames<'a, impl Iterator<Item = &'a Packet>> {
        Frames { packets: burst.iter(), cut: None }
    }
}

impl<'a, I: Iterator<Item = &'a Packet>> Iterator for Frames<'a, I> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        let (packet, number, count) = match self.cut.take() {
            Some(cut) => cut,
            None => {
                let packet = self.packets.next()?;
                (packet, 0, packet.frames())
            }
        };
        let Some(cut) = packet.cut() else { return Some(Frame { packet, part: None }) };
        if number + 1 < count {
            self.cut = Some((packet, number + 1, count));
        }
        let part = cut.part(number, packet.payload_len());
        Some(Frame { packet, part: Some((part, number == 0)) })
    }
}

/// Drops the first frames of a burst: packets, and of the last one perhaps some parts only.
pub(super) fn drop_frames(burst: &mut Burst, frames: usize) {
    let (mut whole, mut left) = (0, frames);
    for packet in burst.iter() {
        let count = packet.frames();
        if count > left {
            break;
        }
        (whole, left) = (whole + 1, left - count);
    }
    burst.drop_front(whole);
    if left > 0 {
        let first = burst.iter_mut().next().expect("frames that are left are of a packet");
        first.drop_parts(left);
    }
}

/// Headers of parts, the virtio-net header before them: made some frames before they are copied.
/// What was just stored byte by byte is not loaded in vectors before those stores, and all before
/// them, are done; and these are payload, to memory that no cache has.
pub(super) struct Heads {
    places: Box<[Head; HEADS]>,
}

/// Begins at a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Head([u8; HEAD_BYTES]);

impl Heads {
    pub(super) fn new() -> Self {
        Self { places: Box::new([Head([0; HEAD_BYTES]); HEADS]) }
    }

    /// Makes the head of a part: the frame with this number, in place of that [`HEADS`] before.
    #[inline]
    pub(super) fn make(&mut self, number: usize, frame: &Frame<'_>, header: &VirtioHeader) {
        let (Some(cut), Some((part, _))) = (frame.packet.cut(), frame.part) else { return };
        let headers = frame.headers();
        let place = &mut self.places[number % HEADS].0[..VirtioHeader::LEN + headers.len()];
        let (first, rest) = place.split_at_mut(VirtioHeader::LEN);
        first.copy_from_slice(&header.0);
        rest.copy_from_slice(headers);
        cut.template().patch(&part, rest);
    }

    /// The head of the frame with this number.
    #[inline]
    pub(super) fn head(&self, number: usize, frame: &Frame<'_>) -> &[u8] {
        &self.places[number % HEADS].0[..VirtioHeader::LEN + frame.headers().len()]
    }
}

/// A place in the payload of a packet.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    piece: usize,
    at: usize,
}

impl Place {
    /// Has the payload of a frame fetched unless it is [near](Frame::is_near); moves on behind it.
    #[inline]
    pub(super) fn prefetch(&mut self, frame: &Frame<'_>) {
        if frame.is_near() {
            return self.skip(frame);
        }
        self.walk(frame.packet, frame.payload_len(), Piece::prefetch_far);
    }

    /// Moves on behind a frame.
    pub(super) fn skip(&mut self, frame: &Frame<'_>) {
        self.walk(frame.packet, frame.payload_len(), |_, _, _| {});
    }

    /// Calls `each` with the pieces of the next `len` bytes of a packet, and which of a piece's
    /// bytes they are; moves on.
    #[inline]
    fn walk<'a>(
        &mut self,
        packet: &'a Packet,
        len: usize,
        mut each: impl FnMut(&'a Piece, usize, usize),
    ) {
        let mut left = len;
        let mut pieces = packet.pieces().skip(self.piece);
        while left > 0 {
            let piece = pieces.next().expect("pieces add up to the payload");
            let count = left.min(piece.len() - self.at);
            each(piece, self.at, count);
            (left, self.at) = (left - count, self.at + count);
            if self.at == piece.len() {
                (self.piece, self.at) = (self.piece + 1, 0);
            }
        }
    }
}

/// Copies a frame into segments: what comes first, and then its payload from `place` on.
///
/// # Panics
/// If they have no room for it: for `needed` bytes.
pub(super) fn copy<'a>(
    pins: &mut Pins<'a>,
    (frame, place): (&Frame<'a>, &mut Place),
    first: [&[u8]; 2],
    needed: usize,
    (memory, segments): (&GuestMemory, &[Segment]),
) {
    let mut at = first[0].len() + first[1].len();
    // Most drivers offer buffers of one stretch, which is looked up once.
    if let &[segment, ..] = segments
        && segment.bytes as usize >= needed
        && let Some(stretch) = memory.locate_whole(segment.address, needed)
    {
        stretch.write(first[0]);
        // The packet has none before it was peeked, and nothing takes long to be copied.
        if !first[1].is_empty() {
            stretch.tail(first[0].len()).write(first[1]);
        }
        place.walk(frame.packet, frame.payload_len(), |piece, from, len| {
            stretch.tail(at).write_piece(pins, piece, from, len);
            at += len;
        });
        memory.mark(segment.address, needed);
    } else {
        let mut cursor = Cursor::new(memory, segments);
        at = cursor.write(first[0]) + cursor.write(first[1]);
        place.walk(frame.packet, frame.payload_len(), |piece, from, len| {
            at += cursor.write_piece(pins, piece, from..from + len);
        });
    }
    assert_eq!(at, needed, "the chains have room for the packet");
}

/// Places for heads: more than the frames that one is made ahead.
pub(super) const HEADS: usize = 4;
const HEAD_BYTES: usize = VirtioHeader::LEN + HEADER_BYTES;
const _: () = assert!(super::PACKETS_AHEAD + 1 < HEADS);
