//! A queue of pieces: data to send, or data received in order.

use alloc::collections::VecDeque;
use towpath_packet::pool::{Frame, SMALL_FRAME_BYTES};
use towpath_packet::{Packet, Piece};

/// Pieces in stream order. Bytes are counted from the front; nothing is copied.
#[derive(Default)]
pub struct PieceQueue {
    pieces: VecDeque<Piece>,
    bytes: usize,
    held: usize,
    /// Part of `held` that is in small frames.
    held_small: usize,
    /// Where the last cut ended: index of a piece, and the offset of the piece's first byte in the
    /// queue.
    cursor: (usize, usize),
}

impl PieceQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes in the queue.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Memory that the queue keeps from its lenders, counting a loan once per piece of it.
    pub fn held(&self) -> usize {
        self.held
    }

    /// [`PieceQueue::held`] in two parts: in frames of the smaller size, and in others.
    pub fn held_by_size(&self) -> (usize, usize) {
        (self.held_small, self.held - self.held_small)
    }

    /// Adds a piece at the end. Joins it to the last piece if it continues that one.
    pub fn push(&mut self, piece: Piece) {
        if piece.is_empty() {
            return;
        }
        self.bytes += piece.len();
        let piece = match self.pieces.back_mut() {
            Some(last) => {
                let len = last.len();
                match last.join(piece) {
                    Ok(()) => {
                        // A cut that ended at the end of the last piece now ends within it.
                        if self.cursor.0 == self.pieces.len() {
                            self.cursor = (self.cursor.0 - 1, self.cursor.1 - len);
                        }
                        return;
                    }
                    Err(piece) => piece,
                }
            }
            None => piece,
        };
        let held = piece.held();
        self.held += held;
        self.held_small += small(held);
        self.pieces.push_back(piece);
    }

    /// Drops the last `count` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn drop_back(&mut self, count: usize) {
        assert!(count <= self.bytes);
        self.bytes -= count;
        let mut left = count;
        while left > 0 {
            let last = self.pieces.back_mut().expect("the queue holds its byte count");
            if left < last.len() {
                last.truncate(last.len() - left);
                break;
            }
            left -= last.len();
            let held = last.held();
            self.held -= held;
            self.held_small -= small(held);
            self.pieces.pop_back();
        }
        self.cursor = (0, 0);
    }

    /// Lets `write` append bytes to the frame of the last piece, if that frame has no other holder.
    /// `write` and this call return the number of bytes.
    pub fn fill_tail(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> usize {
        let Some(last) = self.pieces.pop_back() else { return 0 };
        let (mut frame, used) = match Frame::reopen(last) {
            Ok(reopened) => reopened,
            Err(last) => {
                self.pieces.push_back(last);
                return 0;
            }
        };
        let count = write(&mut frame[used.end..]);
        let mut piece = frame.freeze(used.end + count);
        piece.advance(used.start);
        self.pieces.push_back(piece);
        self.bytes += count;
        if count > 0 && self.cursor.0 == self.pieces.len() {
            // A cut that ended at the end of the last piece now ends within it.
            self.cursor = (self.cursor.0 - 1, self.cursor.1 - used.len());
        }
        count
    }

    /// Drops the first `count` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.bytes);
        self.bytes -= count;
        let mut left = count;
        let mut gone = 0;
        while left > 0 {
            let first = self.pieces.front_mut().expect("the queue holds its byte count");
            if left < first.len() {
                first.advance(left);
                break;
            }
            left -= first.len();
            let held = first.held();
            self.held -= held;
            self.held_small -= small(held);
            self.pieces.pop_front();
            gone += 1;
        }
        self.cursor = match (self.cursor.0.checked_sub(gone), self.cursor.1.checked_sub(count)) {
            (Some(index), Some(offset)) => (index, offset),
            _ => (0, 0),
        };
    }

    /// The pieces, first to last.
    pub fn iter(&self) -> impl Iterator<Item = &Piece> + Clone {
        self.pieces.iter()
    }

    /// Drops everything and gives back the queue's own memory too.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds up to `len` bytes from `offset` on to `packet`; fewer if the queue ends or the packet
    /// can take no more pieces. Returns the number of bytes added.
    pub fn slice(&mut self, offset: usize, len: usize, packet: &mut Packet) -> usize {
        let (mut index, mut start) = if offset >= self.cursor.1 { self.cursor } else { (0, 0) };
        while let Some(piece) = self.pieces.get(index)
            && start + piece.len() <= offset
        {
            start += piece.len();
            index += 1;
        }
        let mut done = 0;
        while done < len
            && let Some(piece) = self.pieces.get(index)
        {
            let from = offset + done - start;
            let count = (piece.len() - from).min(len - done);
            if packet.push_piece(piece.slice(from, count)).is_err() {
                break;
            }
            done += count;
            if from + count == piece.len() {
                start += piece.len();
                index += 1;
            }
        }
        self.cursor = (index, start);
        done
    }
}

/// Part of `held` bytes of one piece that is in a small frame: all of it or nothing.
fn small(held: usize) -> usize {
    if held <= SMALL_FRAME_BYTES { held } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use towpath_packet::{Memory, MemoryConfig};
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn a_piece_that_grows_after_it_was_cut_whole_is_cut_on() {
        let config = MemoryConfig { packets: 2, small_frames: 2, large_frames: 1 };
        let mut memory = Memory::new(config);
        let mut frame = memory.small.take().expect("free");
        frame[..4].copy_from_slice(b"abcd");
        let whole = frame.freeze(4);
        let mut frame = memory.small.take().expect("free");
        frame[..2].copy_from_slice(b"ef");
        let mut queue = PieceQueue::new();
        let mut packet = memory.packet().expect("free");
        queue.push(whole.slice(0, 2));
        assert_eq!(queue.slice(0, 2, &mut packet), 2);
        queue.push(whole.slice(2, 2));
        queue.push(frame.freeze(2));
        assert_eq!(queue.slice(2, 4, &mut packet), 4);
        let pieces = packet.pieces().map(|piece| piece.bytes().expect("private"));
        assert_eq!(pieces.collect::<Vec<_>>().concat(), b"abcdef");
    }

    proptest! {
        /// Goal: cuts at any offset see the right bytes while the front moves.
        /// Method: random pushes, cuts and advances against a plain byte vector.
        #[test]
        fn cuts_see_the_stream(
            steps in proptest::collection::vec((0..4u8, 0..300usize, 0..300usize), 1..60),
        ) {
            let config = MemoryConfig { packets: 2, small_frames: 80, large_frames: 1 };
            let mut memory = Memory::new(config);
            let mut queue = PieceQueue::new();
            let mut model: Vec<u8> = Vec::new();
            let mut next = 0u8;
            for (kind, a, b) in steps {
                match kind {
                    0 => {
                        let mut frame = memory.small.take().expect("enough frames");
                        for byte in &mut frame[..a] {
                            *byte = next;
                            next = next.wrapping_add(1);
                        }
                        model.extend_from_slice(&frame[..a]);
                        queue.push(frame.freeze(a));
                    }
                    1 => {
                        let offset = a.min(model.len());
                        let mut packet = memory.packet().expect("free");
                        let cut = queue.slice(offset, b, &mut packet);
                        let bytes: Vec<u8> = packet
                            .pieces()
                            .flat_map(|piece| piece.bytes().expect("private").to_vec())
                            .collect();
                        prop_assert_eq!(&bytes[..], &model[offset..offset + cut]);
                        let complete = b.min(model.len() - offset);
                        let full = packet.piece_count() == towpath_packet::packet::PIECES_MAX;
                        prop_assert!(cut == complete || full);
                    }
                    2 => {
                        let count = a.min(model.len());
                        queue.drop_back(count);
                        model.truncate(model.len() - count);
                    }
                    _ => {
                        let count = a.min(model.len());
                        queue.advance(count);
                        model.drain(..count);
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                let held: usize = queue.iter().map(Piece::held).sum();
                prop_assert_eq!((queue.held(), queue.held_by_size()), (held, (held, 0)));
            }
            drop(queue);
            prop_assert_eq!(memory.small.out_count(), 0);
        }
    }
}
