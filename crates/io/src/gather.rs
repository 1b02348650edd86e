//! Lists of memory for a call that reads it: the parts of one write or message.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use towpath_packet::{Packet, Piece, Pinned};

/// Addresses and lengths for a call that reads memory: up to `N` parts, on the stack. Foreign
/// memory among them is pinned and cannot return to its lender meanwhile.
///
/// Invariants: each of the first `count` parts stays valid for reads while this value lives; the
/// first `pin_count` pins are initialised.
pub(crate) struct Gather<'a, const N: usize> {
    parts: [libc::iovec; N],
    first: usize,
    count: usize,
    bytes: usize,
    /// Pins of foreign pieces.
    pins: [MaybeUninit<Pinned<'a>>; N],
    pin_count: usize,
    lent: PhantomData<&'a Piece>,
}

impl<const N: usize> Drop for Gather<'_, N> {
    fn drop(&mut self) {
        for pin in &mut self.pins[..self.pin_count] {
            // SAFETY: the first `pin_count` pins are initialised (invariant), and each is dropped
            // once: here.
            unsafe { pin.assume_init_drop() };
        }
    }
}

impl<'a, const N: usize> Gather<'a, N> {
    /// A list without parts.
    pub(crate) fn new() -> Self {
        const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            parts: [EMPTY; N],
            first: 0,
            count: 0,
            bytes: 0,
            pins: [const { MaybeUninit::uninit() }; N],
            pin_count: 0,
            lent: PhantomData,
        }
    }

    /// Adds bytes; false if all parts are in use. An empty slice uses no part.
    pub(crate) fn push_bytes(&mut self, bytes: &'a [u8]) -> bool {
        self.push(bytes.as_ptr(), bytes.len())
    }

    /// Adds a piece by address; false if all parts are in use.
    pub(crate) fn push_piece(&mut self, piece: &'a Piece) -> bool {
        self.push_piece_range(piece, 0..piece.len())
    }

    /// Adds the headers and pieces of a packet; false if all parts are in use.
    pub(crate) fn push_packet(&mut self, packet: &'a Packet) -> bool {
        self.push_bytes(packet.wire_headers())
            && packet.pieces().all(|piece| self.push_piece(piece))
    }

    /// Adds these bytes of a piece by address; false if all parts are in use.
    ///
    /// # Panics
    /// If the piece has no such bytes.
    pub(crate) fn push_piece_range(&mut self, piece: &'a Piece, range: Range<usize>) -> bool {
        assert!(range.start <= range.end && range.end <= piece.len());
        match piece.bytes() {
            Some(private) => self.push_bytes(&private[range]),
            None => self.push_foreign(piece, range),
        }
    }

    // The callers above guarantee that the range is within the piece.
    fn push_foreign(&mut self, piece: &'a Piece, range: Range<usize>) -> bool {
        let pinned = piece.pin();
        let count = self.count;
        if !self.push(pinned.address().wrapping_add(range.start), range.len()) {
            return false;
        }
        if self.count > count {
            // Each pin has its part, and there are at most `N` parts.
            self.pins[self.pin_count].write(pinned);
            self.pin_count += 1;
        }
        true
    }

    /// Removes the first `count` bytes, which a call has written.
    pub(crate) fn advance(&mut self, count: usize) {
        assert!(count <= self.bytes);
        self.bytes -= count;
        let mut left = count;
        while left > 0 {
            let part = &mut self.parts[self.first];
            let step = left.min(part.iov_len);
            part.iov_base = part.iov_base.wrapping_byte_add(step);
            part.iov_len -= step;
            left -= step;
            if part.iov_len == 0 {
                self.first += 1;
            }
        }
    }

    /// Bytes in all parts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    // Private: the callers above guarantee that `address` stays valid for `'a`.
    fn push(&mut self, address: *const u8, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        if self.count == N {
            return false;
        }
        self.parts[self.count] =
            libc::iovec { iov_base: address.cast_mut().cast(), iov_len: bytes };
        self.count += 1;
        self.bytes += bytes;
        true
    }

    /// The parts, for a call that reads them while this list lives.
    pub(crate) fn parts(&self) -> &[libc::iovec] {
        &self.parts[self.first..self.count]
    }
}
