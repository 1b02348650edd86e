//! Frames on their way into the guest: whole packets, and parts of super-packets that are segmented
//! here.
//!
//! A part is never a packet of its own: its headers are made in one of a few places ([`Heads`]),
//! and its payload is copied from the super-packet. No loan is shared, and no packet handle is
//! taken.

use super::super::Segment;
use super::super::chain::Cursor;
use crate::vhost_user::memory::GuestMemory;
use crate::vhost_user::shared::Stretch;
use towpath_packet::packet::HEADER_BYTES;
use towpath_packet::segmentation::Part;
use towpath_packet::{Burst, Memory, Packet, Piece, Pins, VirtioHeader};

/// A packet, or one part of a super-packet.
#[derive(Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) packet: &'a Packet,
    /// The part, and whether it is the first remaining one; `None` for a whole packet.
    pub(super) part: Option<(Part, bool)>,
}

impl<'a> Frame<'a> {
    /// The headers, before they are changed for a part.
    pub(super) fn headers(&self) -> &'a [u8] {
        match self.part {
            Some(_) => self.packet.headers(),
            None => self.packet.wire_headers(),
        }
    }

    /// True for a whole packet, and for the first remaining part of one.
    #[inline]
    pub(super) fn is_first(&self) -> bool {
        self.part.is_none_or(|(_, is_first)| is_first)
    }

    /// Bytes of payload in the packet's pieces.
    #[inline]
    pub(super) fn payload_len(&self) -> usize {
        self.part.map_or_else(|| self.packet.payload_len(), |(part, _)| part.len)
    }

    /// Bytes after the virtio-net header.
    #[inline]
    pub(super) fn len(&self) -> usize {
        match self.part {
            Some((part, _)) => self.packet.headers().len() + part.len,
            None => self.packet.len(),
        }
    }

    /// True if the payload is probably cached: pool frames are soon used again.
    #[inline]
    pub(super) fn is_near(&self) -> bool {
        self.packet.pieces().next().is_none_or(Piece::is_frame)
    }

    /// Bytes that count as copied.
    #[inline]
    pub(super) fn payload(&self) -> usize {
        if self.packet.is_inline() { self.packet.len() } else { self.payload_len() }
    }
}

/// Iterates over the frames of a burst, first to last.
pub(super) struct Frames<'a, I> {
    packets: I,
    /// The packet being segmented, its next part and its number of parts.
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
        let Some(cut) = packet.segmentation() else { return Some(Frame { packet, part: None }) };
        if number + 1 < count {
            self.cut = Some((packet, number + 1, count));
        }
        let part = cut.part(number, packet.payload_len());
        Some(Frame { packet, part: Some((part, number == 0)) })
    }
}

/// Drops the first frames of a burst: whole packets, and perhaps some parts of the next one.
pub(super) fn drop_frames(burst: &mut Burst, frames: usize, memory: &mut Memory) {
    let (mut whole, mut left) = (0, frames);
    for packet in burst.iter() {
        let count = packet.frames();
        if count > left {
            break;
        }
        (whole, left) = (whole + 1, left - count);
    }
    burst.drop_front_to(whole, memory);
    if left > 0 {
        let first = burst.iter_mut().next().expect("remaining frames are of a packet");
        first.drop_parts(left);
    }
}

/// Headers of parts, preceded by the virtio-net header. They are made some frames before they are
/// copied: a vector load of bytes that were just stored one by one waits for those stores and for
/// all earlier ones, which include payload stores to uncached memory.
pub(super) struct Heads {
    places: Box<[Head; HEADS]>,
}

/// Aligned to a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Head([u8; HEAD_BYTES]);

impl Heads {
    pub(super) fn new() -> Self {
        Self { places: Box::new([Head([0; HEAD_BYTES]); HEADS]) }
    }

    /// Makes the head of a part, for frame `number`. It replaces the head of the frame [`HEADS`]
    /// before.
    #[inline]
    pub(super) fn make(&mut self, number: usize, frame: &Frame<'_>, header: &VirtioHeader) {
        let (Some(cut), Some((part, _))) = (frame.packet.segmentation(), frame.part) else {
            return;
        };
        let headers = frame.headers();
        let place = &mut self.places[number % HEADS].0[..VirtioHeader::LEN + headers.len()];
        let (first, rest) = place.split_at_mut(VirtioHeader::LEN);
        first.copy_from_slice(&header.0);
        rest.copy_from_slice(headers);
        cut.template().patch(&part, rest);
    }

    /// Returns the head of frame `number`.
    #[inline]
    pub(super) fn head(&self, number: usize, frame: &Frame<'_>) -> &[u8] {
        &self.places[number % HEADS].0[..VirtioHeader::LEN + frame.headers().len()]
    }
}

/// A position in the payload of a packet.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    piece: usize,
    at: usize,
}

impl Place {
    /// Prefetches the payload of a frame, unless it is [near](Frame::is_near); advances past it.
    #[inline]
    pub(super) fn prefetch(&mut self, frame: &Frame<'_>) {
        if frame.is_near() {
            return self.skip(frame);
        }
        self.walk(frame.packet, frame.payload_len(), Piece::prefetch_far);
    }

    /// Advances past a frame.
    pub(super) fn skip(&mut self, frame: &Frame<'_>) {
        self.walk(frame.packet, frame.payload_len(), |_, _, _| {});
    }

    /// Calls `each` with the pieces of the next `len` bytes of a packet, and the offset and length
    /// in each piece; advances past them.
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

/// Copies a frame into segments: `first`, and then the payload from `place` on.
///
/// # Panics
/// If the segments have less room than `needed` bytes.
pub(super) fn copy<'a>(
    pins: &mut Pins<'a>,
    (frame, place): (&Frame<'a>, &mut Place),
    first: [&[u8]; 2],
    needed: usize,
    (memory, segments): (&GuestMemory, &[Segment]),
) {
    let mut at;
    // Most drivers use buffers in one region, which need one look-up.
    if let &[segment, ..] = segments
        && segment.bytes as usize >= needed
        && let Some(stretch) = memory.locate_whole(segment.address, needed)
    {
        at = copy_whole(pins, (frame, place), first, stretch);
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

/// Copies a frame into one buffer: `first`, and then the payload from `place` on. Returns its
/// length.
///
/// # Panics
/// If the buffer is shorter.
#[inline]
pub(super) fn copy_whole<'a>(
    pins: &mut Pins<'a>,
    (frame, place): (&Frame<'a>, &mut Place),
    first: [&[u8]; 2],
    buffer: Stretch<'_>,
) -> usize {
    buffer.write(first[0]);
    // A packet that was not peeked has no headers, and an empty copy would cost time.
    if !first[1].is_empty() {
        buffer.tail(first[0].len()).write(first[1]);
    }
    let mut at = first[0].len() + first[1].len();
    place.walk(frame.packet, frame.payload_len(), |piece, from, len| {
        buffer.tail(at).write_piece(pins, piece, from, len);
        at += len;
    });
    at
}

/// Number of heads: more than are made ahead.
pub(super) const HEADS: usize = 4;
const HEAD_BYTES: usize = VirtioHeader::LEN + HEADER_BYTES;
const _: () = assert!(super::PACKETS_AHEAD + 1 < HEADS);
