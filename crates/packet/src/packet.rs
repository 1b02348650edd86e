//! Packets: a handle to private headers, pieces and offload fields.
//!
//! # Theory of operation
//!
//! A received packet arrives as pieces that cover the whole frame. [`Packet::peek_headers`] copies
//! its first bytes, once, into private memory; every decision uses this copy. When the length of
//! the headers is known, [`Packet::pull`] removes them from the pieces: from then on the headers
//! are the private bytes and the pieces are the payload. A later write to the lent memory cannot
//! affect decisions that were made.
//!
//! A packet to transmit starts empty: [`Packet::push_piece`] appends payload,
//! [`Packet::push_header`] prepends headers, innermost first.
//!
//! ```text
//! headers:  [ headroom | private header bytes ... ]      pieces: [p0][p1]...[pn]
//!                      ^start               ^end          payload by reference
//! ```
//!
//! A frame that is short enough may lie in the private bytes completely ([`Packet::fill_inline`]):
//! it has no loan, and nothing to peek or to pull.
//!
//! A handle is one pointer into a pool; moving a burst of packets moves handles.
#![allow(unsafe_code)]

mod copies;
mod parts;

use crate::foreign::{LINE_BYTES, prefetch_line_read, prefetch_line_write};
use crate::loan::{Leaving, Loan, Piece};
use crate::offload::Offload;
use crate::segmentation::Segmentation;
use crate::slab::{self, Returning, Slab, Slot};
use core::cell::UnsafeCell;
use core::fmt;
use core::mem::{ManuallyDrop, offset_of};
use core::ptr::NonNull;

/// Bytes of a packet's private header memory.
pub const HEADER_BYTES: usize = 256;
/// Bytes of it that stay free in front of a received header, for headers that a switch adds.
pub const RECEIVE_HEADROOM: usize = 64;
/// Most bytes of a received frame that are copied as its headers: Ethernet with a tag 18, IPv6 40,
/// extension headers up to 74, TCP with options 60; or all of these in VXLAN over IPv6 (8 and 8),
/// without extension headers.
pub const PEEK_BYTES: usize = HEADER_BYTES - RECEIVE_HEADROOM;
const _: () = assert!(PEEK_BYTES >= 18 + 40 + 74 + 60);
const _: () = assert!(PEEK_BYTES >= 18 + 40 + 8 + 8 + 18 + 40 + 60);

/// Most pieces of one packet. A super-packet read from a device has five; a super-packet that a
/// send queue makes of small writes is complete when this many are reached.
pub const PIECES_MAX: usize = 18;

/// Fields in the order of use: most packets use only the first cache line, where the slot begins,
/// and one or two lines of the headers.
#[repr(C)]
struct Body {
    offload: Offload,
    piece_bytes: u32,
    start: u16,
    end: u16,
    piece_count: u8,
    /// The headers are a copy of bytes that the pieces still cover.
    peeked: bool,
    /// The headers are a whole frame, including its payload.
    inline: bool,
    /// The device segments the packet as `cut` describes.
    is_segmented: bool,
    /// Number of the port by which the packet entered a switch, or [`NO_INGRESS`].
    ingress: u16,
    pieces: [Option<Piece>; PIECES_MAX],
    segmentation: Segmentation,
    /// Aligns the headers, and so received headers, to a cache line.
    gap: [u8; GAP_BYTES],
    headers: [u8; HEADER_BYTES],
}

/// Not a port: the packet did not enter through a switch.
const NO_INGRESS: u16 = u16::MAX;

const GAP_BYTES: usize = 48 - size_of::<Segmentation>();
const _: () = {
    let value = Slot::<Place>::VALUE_AT;
    assert!(value + offset_of!(Body, pieces) + size_of::<Piece>() <= LINE_BYTES);
    assert!((value + offset_of!(Body, headers)).is_multiple_of(LINE_BYTES));
    assert!(RECEIVE_HEADROOM.is_multiple_of(LINE_BYTES) && HEADER_BYTES.is_multiple_of(LINE_BYTES));
    assert!(size_of::<Slot<Place>>() == 10 * LINE_BYTES);
};

impl Body {
    const fn empty() -> Self {
        Self {
            offload: Offload { checksum: crate::offload::Checksum::None, gso: None },
            start: HEADER_BYTES as u16,
            end: HEADER_BYTES as u16,
            piece_count: 0,
            peeked: false,
            inline: false,
            is_segmented: false,
            ingress: NO_INGRESS,
            piece_bytes: 0,
            pieces: [const { None }; PIECES_MAX],
            segmentation: Segmentation::none(),
            gap: [0; GAP_BYTES],
            headers: [0; HEADER_BYTES],
        }
    }
}

/// Slot content. Only the packet's handle reaches it.
struct Place(UnsafeCell<Body>);

// SAFETY: the body is reached only through the one `Packet` that holds the slot, or not at all
// while the slot is free.
unsafe impl Sync for Place {}

/// The packets of one worker. One thread takes; any thread gives back by dropping.
pub struct PacketPool {
    slab: Slab<Place>,
}

impl PacketPool {
    /// A pool of `count` packets. `None` if there is not enough memory.
    pub fn try_new(count: usize) -> Option<Self> {
        Some(Self { slab: Slab::try_new(count, |_| Place(UnsafeCell::new(Body::empty())))? })
    }

    /// Makes a pool as [`try_new`](Self::try_new) does, for small ones.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(count: usize) -> Self {
        Self::try_new(count).expect("memory for packets")
    }

    /// Takes an empty packet. `None` if all are out.
    pub fn take(&mut self) -> Option<Packet> {
        Some(Packet { slot: self.slab.take()? })
    }

    /// Takes up to `count` empty packets, and passes each to `each`. Returns their number; all
    /// others are out.
    #[inline]
    pub(crate) fn take_all(&mut self, count: usize, mut each: impl FnMut(Packet)) -> usize {
        self.slab.take_all(count, |slot| each(Packet { slot }))
    }

    /// Packets that can be taken, at least. Collects returned packets.
    pub fn free_count(&mut self) -> usize {
        self.slab.free_count()
    }

    /// Packets that can be taken without collecting returned ones: a lower bound.
    #[inline]
    pub fn free_at_least(&self) -> usize {
        self.slab.free_at_least()
    }

    /// Packets in the pool.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Packets out. Walks a list: for tests and reports.
    pub fn out_count(&self) -> usize {
        self.slab.out_count()
    }
}

/// Handle of a packet.
pub struct Packet {
    slot: NonNull<Slot<Place>>,
}

const _: () = assert!(size_of::<Packet>() == 8 && size_of::<Option<Packet>>() == 8);

// SAFETY: the right to reach the body moves with the one handle; pieces are `Send`.
unsafe impl Send for Packet {}

impl Packet {
    #[inline]
    fn body(&self) -> &Body {
        // SAFETY: the slot is out, and this handle is its one holder.
        let place = unsafe { self.slot.as_ref() }.value();
        // SAFETY: this handle is the one holder, and `&self` allows only shared reads.
        unsafe { &*place.0.get() }
    }

    #[inline]
    fn body_mut(&mut self) -> &mut Body {
        // SAFETY: the slot is out, and this handle is its one holder.
        let place = unsafe { self.slot.as_ref() }.value();
        // SAFETY: this handle is the one holder, so `&mut self` is the only access to the body.
        unsafe { &mut *place.0.get() }
    }

    /// Prefetches the first line of the packet, which every use reads: for packets from another
    /// thread, some time before they are used.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_line_write(self.slot.as_ptr().cast());
    }

    /// Prefetches the beginning of the private header bytes.
    #[inline]
    pub fn prefetch_headers(&self) {
        let body = self.body();
        prefetch_line_read(body.headers.as_ptr().wrapping_add(body.start as usize));
    }

    /// Bytes on the wire: headers and payload.
    #[inline]
    pub fn len(&self) -> usize {
        let body = self.body();
        let headers = if body.peeked { 0 } else { (body.end - body.start) as usize };
        headers + body.piece_bytes as usize
    }

    /// True if there are neither headers nor payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The offload fields.
    #[inline]
    pub fn offload(&self) -> &Offload {
        &self.body().offload
    }

    /// Sets the offload fields.
    #[inline]
    pub fn set_offload(&mut self, offload: Offload) {
        self.body_mut().offload = offload;
    }

    /// The private header bytes.
    #[inline]
    pub fn headers(&self) -> &[u8] {
        let body = self.body();
        &body.headers[body.start as usize..body.end as usize]
    }

    /// The private header bytes, mutable.
    pub fn headers_mut(&mut self) -> &mut [u8] {
        let body = self.body_mut();
        &mut body.headers[body.start as usize..body.end as usize]
    }

    /// Prepends `count` zero bytes to the headers and returns them.
    ///
    /// # Panics
    /// If the header memory is full, or the headers are still a copy (see [`Packet::pull`]).
    pub fn push_header(&mut self, count: usize) -> &mut [u8] {
        let pushed = self.reserve_header(count);
        pushed.fill(0);
        pushed
    }

    /// Prepends `count` bytes of arbitrary content to the headers.
    fn reserve_header(&mut self, count: usize) -> &mut [u8] {
        let body = self.body_mut();
        assert!(!body.peeked, "headers are pulled before others are pushed");
        assert!(count <= body.start as usize, "header memory is full");
        body.start -= count as u16;
        let start = body.start as usize;
        &mut body.headers[start..start + count]
    }

    /// Prepends a copy of `header` to the headers and returns it.
    ///
    /// # Panics
    /// If the header memory is full, or the headers are still a copy (see [`Packet::pull`]).
    pub fn push_header_of(&mut self, header: &[u8]) -> &mut [u8] {
        let pushed = self.reserve_header(header.len());
        pushed.copy_from_slice(header);
        pushed
    }

    /// Removes the first `count` header bytes.
    ///
    /// # Panics
    /// If there are fewer, or if the headers are still a copy.
    pub fn pop_header(&mut self, count: usize) {
        let body = self.body_mut();
        assert!(!body.peeked && count <= (body.end - body.start) as usize);
        body.start += count as u16;
    }

    /// Receives a frame of `len` bytes into the private memory of an empty packet. `fill` gets the
    /// memory, of arbitrary content, and writes all of it. The whole frame then counts as headers,
    /// with headroom and without pieces. The caller counts this copy in the ledger, and so does
    /// every caller that copies the bytes on: see [`Packet::is_inline`].
    ///
    /// # Panics
    /// If the packet is not empty, or `len` is more than [`PEEK_BYTES`].
    #[inline]
    pub fn fill_inline(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) {
        let body = self.body_mut();
        assert!(body.start == body.end && body.piece_count == 0, "the packet is empty");
        let end = RECEIVE_HEADROOM + len;
        fill(&mut body.headers[RECEIVE_HEADROOM..end]);
        (body.start, body.end) = (RECEIVE_HEADROOM as u16, end as u16);
        body.inline = true;
    }

    /// True if the headers are a whole frame: headers and payload are not separated. A copy of them
    /// counts in the ledger with all of their bytes.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.body().inline
    }

    /// Copies the first bytes of a received frame into private memory and returns them: up to
    /// [`PEEK_BYTES`], fewer if the frame is shorter. Header bytes do not count in the ledger.
    /// Further calls return the same copy.
    ///
    /// # Panics
    /// If the packet has headers that were pushed or pulled.
    pub fn peek_headers(&mut self) -> &[u8] {
        if self.body().peeked {
            return self.headers();
        }
        let body = self.body_mut();
        assert!(body.start == body.end, "a packet that has headers is not peeked");
        let (start, mut end) = (RECEIVE_HEADROOM, RECEIVE_HEADROOM);
        for piece in body.pieces[..body.piece_count as usize].iter().flatten() {
            end += piece.copy_to(&mut body.headers[end..]);
            if end == HEADER_BYTES {
                break;
            }
        }
        body.start = start as u16;
        body.end = end as u16;
        body.peeked = true;
        self.headers()
    }

    /// Removes the first `count` bytes, which were peeked, from the pieces: they are the headers
    /// now, and the pieces are the payload.
    ///
    /// # Panics
    /// If fewer bytes were peeked.
    pub fn pull(&mut self, count: usize) {
        let body = self.body_mut();
        assert!(body.peeked && count <= (body.end - body.start) as usize);
        body.peeked = false;
        body.end = body.start + count as u16;
        self.drop_front(count);
    }

    /// Moves the first `count` bytes of the payload to the end of the headers: copies them into
    /// private memory, once, and removes them from the pieces. Returns false and does nothing if
    /// there are fewer bytes or the header memory is full.
    pub fn pull_more(&mut self, count: usize) -> bool {
        let body = self.body_mut();
        assert!(!body.peeked, "headers are pulled before more of them");
        let end = body.end as usize;
        if count > body.piece_bytes as usize || count > HEADER_BYTES - end {
            return false;
        }
        let mut at = end;
        for piece in body.pieces.iter().flatten() {
            if at == end + count {
                break;
            }
            at += piece.copy_to(&mut body.headers[at..end + count]);
        }
        body.end = (end + count) as u16;
        self.drop_front(count);
        true
    }

    /// Bytes of payload in the pieces.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.body().piece_bytes as usize
    }

    /// The pieces, first to last.
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = &Piece> + Clone {
        let body = self.body();
        body.pieces[..body.piece_count as usize]
            .iter()
            .map(|piece| piece.as_ref().expect("pieces below the count are there"))
    }

    /// Number of pieces.
    pub fn piece_count(&self) -> usize {
        self.body().piece_count as usize
    }

    /// Appends a piece, or joins it to the last piece if it continues that. Returns it if the
    /// packet has [`PIECES_MAX`]. Drops empty pieces.
    pub fn push_piece(&mut self, piece: Piece) -> Result<(), Piece> {
        let body = self.body_mut();
        let bytes = piece.len() as u32;
        if bytes == 0 {
            return Ok(());
        }
        let count = body.piece_count as usize;
        let mut piece = piece;
        if count > 0 {
            let last = body.pieces[count - 1].as_mut().expect("pieces below the count are there");
            match last.join(piece) {
                Ok(()) => {
                    body.piece_bytes += bytes;
                    return Ok(());
                }
                Err(other) => piece = other,
            }
        }
        if count == PIECES_MAX {
            return Err(piece);
        }
        body.pieces[count] = Some(piece);
        body.piece_count += 1;
        body.piece_bytes += bytes;
        Ok(())
    }

    /// Removes the first `count` bytes of the pieces.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn drop_front(&mut self, count: usize) {
        let body = self.body_mut();
        assert!(count <= body.piece_bytes as usize);
        body.piece_bytes -= count as u32;
        let mut left = count;
        let mut gone = 0;
        for place in &mut body.pieces[..body.piece_count as usize] {
            let piece = place.as_mut().expect("pieces below the count are there");
            if left < piece.len() {
                piece.advance(left);
                break;
            }
            left -= piece.len();
            *place = None;
            gone += 1;
        }
        if gone > 0 {
            body.pieces[..body.piece_count as usize].rotate_left(gone);
            body.piece_count -= gone as u8;
        }
    }

    /// Keeps the first `len` bytes of the pieces. No effect if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        let body = self.body_mut();
        let mut left = len;
        let mut kept = 0;
        for place in &mut body.pieces[..body.piece_count as usize] {
            if left == 0 {
                *place = None;
                continue;
            }
            let piece = place.as_mut().expect("pieces below the count are there");
            piece.truncate(left);
            left -= piece.len();
            kept += 1;
        }
        body.piece_count = kept;
        body.piece_bytes = body.piece_bytes.min(len as u32);
    }

    /// Takes out all pieces, first to last. Drops those that the caller does not take.
    pub fn take_pieces(&mut self) -> impl Iterator<Item = Piece> + '_ {
        TakePieces { packet: self, next: 0 }
    }

    /// Makes another packet with the same bytes and offload fields: copies the private headers to
    /// the same position and adds a holder to each piece. `None` if all handles are out.
    pub fn share(&self, packets: &mut PacketPool) -> Option<Packet> {
        let mut shared = packets.take()?;
        let (body, other) = (self.body(), shared.body_mut());
        let headers = body.start as usize..body.end as usize;
        other.headers[headers.clone()].copy_from_slice(&body.headers[headers]);
        let pieces = ..body.piece_count as usize;
        other.pieces[pieces].clone_from_slice(&body.pieces[pieces]);
        (other.start, other.end) = (body.start, body.end);
        (other.peeked, other.inline) = (body.peeked, body.inline);
        (other.piece_count, other.piece_bytes) = (body.piece_count, body.piece_bytes);
        (other.is_segmented, other.segmentation) = (body.is_segmented, body.segmentation);
        other.ingress = body.ingress;
        other.offload = body.offload;
        Some(shared)
    }

    /// Removes headers, pieces and offload fields.
    pub fn clear(&mut self) {
        self.empty(drop);
    }

    /// Removes headers, pieces and offload fields, and passes each piece to `each`.
    fn empty(&mut self, mut each: impl FnMut(Piece)) {
        let body = self.body_mut();
        for piece in &mut body.pieces[..body.piece_count as usize] {
            piece.take().into_iter().for_each(&mut each);
        }
        body.piece_count = 0;
        body.piece_bytes = 0;
        body.start = HEADER_BYTES as u16;
        body.end = HEADER_BYTES as u16;
        body.peeked = false;
        body.inline = false;
        body.is_segmented = false;
        body.ingress = NO_INGRESS;
        body.offload = Offload::default();
    }
}

/// Iterator of [`Packet::take_pieces`].
struct TakePieces<'a> {
    packet: &'a mut Packet,
    next: usize,
}

impl Iterator for TakePieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let body = self.packet.body_mut();
        if self.next == body.piece_count as usize {
            return None;
        }
        self.next += 1;
        body.pieces[self.next - 1].take()
    }
}

impl Drop for TakePieces<'_> {
    fn drop(&mut self) {
        while self.next().is_some() {}
        let body = self.packet.body_mut();
        body.piece_count = 0;
        body.piece_bytes = 0;
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        self.clear();
        // SAFETY: this handle was the one holder; the body is empty for the next use.
        unsafe { slab::give_back(self.slot) };
    }
}

/// Packets that are dropped together. Consecutive holders of a loan are released in one
/// subtraction, and handles of one pool go back in one exchange. An atomic read-modify-write waits
/// for all earlier stores, which after each packet would be those of its copy.
#[derive(Default)]
pub(crate) struct Dropping {
    pieces: Leaving,
    handles: Returning<Place>,
}

impl Dropping {
    pub(crate) fn add(&mut self, packet: Packet) {
        let mut packet = ManuallyDrop::new(packet);
        packet.empty(|piece| self.pieces.add(piece));
        // SAFETY: this handle was the one holder and is not dropped; the body is empty for the next
        // use.
        unsafe { self.handles.add(packet.slot) };
    }

    /// Drops a packet like [`add`](Self::add). If it is one of `packets`, whose owner calls this,
    /// it goes back at once and without an atomic operation.
    pub(crate) fn add_to(&mut self, packets: &mut PacketPool, packet: Packet) {
        let mut packet = ManuallyDrop::new(packet);
        packet.empty(|piece| self.pieces.add(piece));
        // SAFETY: this handle was the one holder and is not dropped; the body is empty for the next
        // use.
        if !unsafe { packets.slab.put(packet.slot) } {
            // SAFETY: the slot is out still, as `put` returned false.
            unsafe { self.handles.add(packet.slot) };
        }
    }

    /// Releases the pieces. Frames that become free are left to `frames`, which takes those of its
    /// own pools.
    pub(crate) fn end(mut self, frames: impl FnOnce(&mut Returning<Loan>)) {
        frames(self.pieces.end());
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packet")
            .field("headers", &self.headers().len())
            .field("payload", &self.payload_len())
            .field("pieces", &self.piece_count())
            .field("offload", self.offload())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
