//! Data received out of order (RFC 9293 §3.10.7.4), and the SACK blocks that report it.
//!
//! Pieces are sorted and never overlap: data that is already held wins, and new bytes fill holes.
//! Bounds: [`PIECES_MAX`] pieces, and the memory that the caller allows. At a bound the segment is
//! dropped and counted; its sender retransmits it.

use super::seq::Seq;
use alloc::vec::Vec;
use towpath_packet::Piece;

/// Largest number of out-of-order pieces of one connection. 24 bytes each: 48 KiB of bookkeeping.
pub const PIECES_MAX: usize = 2048;

/// Largest number of SACK blocks in a segment (RFC 2018 §3); one less beside timestamps.
pub const SACK_BLOCKS_MAX: usize = 4;

/// Ranges remembered for SACK blocks: one more than can be reported, for a range that is reported
/// again later.
const RECENT_MAX: usize = SACK_BLOCKS_MAX + 1;

/// Pieces beyond `rcv_nxt`.
#[derive(Default)]
pub struct Reassembly {
    pieces: Vec<(Seq, Piece)>,
    held: usize,
    /// Ranges to report, the one that grew last first (RFC 2018 §4); `recent_count` of them are
    /// valid.
    recent: [(Seq, Seq); RECENT_MAX],
    recent_count: usize,
}

impl Reassembly {
    /// True if nothing is held.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Memory kept from its lenders.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Adds bytes that begin at `start`. `fin` means that a FIN follows them; its number is
    /// reported too. Returns false if there was no room for all bytes.
    pub fn insert(&mut self, start: Seq, pieces: impl Iterator<Item = Piece>, fin: bool) -> bool {
        let mut at = start;
        for piece in pieces {
            let next = at + piece.len() as u32;
            if !self.insert_piece(at, piece) {
                self.report(start, at);
                return false;
            }
            at = next;
        }
        self.report(start, at + u32::from(fin));
        true
    }

    /// Moves a range to the front of those to report, merged with the ranges that it touches.
    fn report(&mut self, start: Seq, end: Seq) {
        if start == end {
            return;
        }
        let (mut start, mut end) = (start, end);
        let mut kept = [(Seq(0), Seq(0)); RECENT_MAX];
        let mut count = 1;
        for &(from, to) in &self.recent[..self.recent_count] {
            if from.at_or_before(end) && to.at_or_after(start) {
                (start, end) = (start.min(from), end.max(to));
            } else if count < RECENT_MAX {
                kept[count] = (from, to);
                count += 1;
            }
        }
        kept[0] = (start, end);
        (self.recent, self.recent_count) = (kept, count);
    }

    fn insert_piece(&mut self, start: Seq, piece: Piece) -> bool {
        let (mut start, mut piece) = (start, piece);
        let mut index = self.pieces.partition_point(|(at, _)| at.before(start));
        if index > 0 {
            let (at, before) = &self.pieces[index - 1];
            let end = *at + before.len() as u32;
            if end.after(start) {
                let overlap = ((end - start) as usize).min(piece.len());
                piece.advance(overlap);
                start += overlap as u32;
            }
        }
        while !piece.is_empty() {
            let room = match self.pieces.get(index) {
                Some((at, _)) => (*at - start) as usize,
                None => usize::MAX,
            };
            if room > 0 {
                if self.pieces.len() >= PIECES_MAX {
                    return false;
                }
                let count = room.min(piece.len());
                self.held += piece.held();
                self.pieces.insert(index, (start, piece.slice(0, count)));
                piece.advance(count);
                start += count as u32;
                index += 1;
            }
            if let Some((_, there)) = self.pieces.get(index) {
                let skip = there.len().min(piece.len());
                piece.advance(skip);
                start += skip as u32;
                index += 1;
            }
        }
        true
    }

    /// Hands out the pieces that continue at `next`, in order. Returns the number after them.
    pub fn take_in_order(&mut self, next: Seq, mut give: impl FnMut(Piece)) -> Seq {
        let mut next = next;
        let mut taken = 0;
        for (at, piece) in &mut self.pieces {
            let end = *at + piece.len() as u32;
            if at.after(next) {
                break;
            }
            taken += 1;
            self.held -= piece.held();
            if end.after(next) {
                let mut rest = piece.clone();
                rest.advance((next - *at) as usize);
                next = end;
                give(rest);
            }
        }
        self.pieces.drain(..taken);
        let mut kept = 0;
        for index in 0..self.recent_count {
            if self.recent[index].1.after(next) {
                self.recent[kept] = self.recent[index];
                kept += 1;
            }
        }
        self.recent_count = kept;
        next
    }

    /// Writes the held ranges as SACK blocks, the one that grew last first, and returns their
    /// number. Ranges that have not grown for long may be missing or incomplete.
    pub fn blocks(&self, blocks: &mut [(u32, u32); 4]) -> u8 {
        let count = self.recent_count.min(SACK_BLOCKS_MAX);
        for (block, (start, end)) in blocks.iter_mut().zip(&self.recent[..count]) {
            *block = (start.0, end.0);
        }
        count as u8
    }

    /// Number of blocks that [`Reassembly::blocks`] writes.
    pub fn block_count(&self) -> usize {
        self.recent_count.min(SACK_BLOCKS_MAX)
    }

    /// Parts of a range that are held, in order. Parts that touch may come as one or as several.
    pub fn overlaps(&self, start: Seq, end: Seq) -> impl Iterator<Item = (Seq, Seq)> {
        let after = |(at, piece): &(Seq, Piece)| *at + piece.len() as u32;
        let first = self.pieces.partition_point(|entry| after(entry).at_or_before(start));
        let entries = self.pieces[first..].iter().take_while(move |(at, _)| at.before(end));
        entries.map(move |entry| (entry.0.max(start), after(entry).min(end)))
    }

    /// The byte with this sequence number, if it is held.
    pub fn byte(&self, at: Seq) -> Option<Piece> {
        let index = self.pieces.partition_point(|(start, _)| start.at_or_before(at));
        let (start, piece) = self.pieces.get(index.checked_sub(1)?)?;
        let offset = (at - *start) as usize;
        (offset < piece.len()).then(|| piece.slice(offset, 1))
    }

    /// Sequence number after the last held byte.
    pub fn end(&self) -> Option<Seq> {
        self.pieces.last().map(|(at, piece)| *at + piece.len() as u32)
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use towpath_packet::{Memory, MemoryConfig};
    extern crate std;
    use std::vec::Vec;

    fn memory() -> Memory {
        Memory::new(MemoryConfig { packets: 1, small_frames: 300, large_frames: 1 })
    }

    fn stream(memory: &mut Memory, from: usize, len: usize) -> Piece {
        let mut frame = memory.small.take().expect("enough frames");
        for (index, byte) in frame[..len].iter_mut().enumerate() {
            *byte = ((from + index) * 7 % 251) as u8;
        }
        frame.freeze(len)
    }

    proptest! {
        /// Goal: whatever order, overlap or repetition, each byte comes out once, right and in
        /// order. Method: random segments of a known stream, then the missing beginning.
        #[test]
        fn every_byte_once_and_in_order(
            segments in proptest::collection::vec((1..4000usize, 1..1500usize), 1..80),
        ) {
            let mut memory = memory();
            let base = Seq(u32::MAX - 2000);
            let mut waiting = Reassembly::default();
            let mut covered = std::vec![false; 6000];
            for &(from, len) in &segments {
                let piece = stream(&mut memory, from, len);
                let range = (base + from as u32, base + (from + len) as u32);
                let there: usize =
                    waiting.overlaps(range.0, range.1).map(|(from, to)| (to - from) as usize).sum();
                let known = covered[from..from + len].iter().filter(|&&covered| covered).count();
                prop_assert_eq!(there, known);
                prop_assert!(waiting.insert(range.0, core::iter::once(piece), false));
                covered[from..from + len].fill(true);
                let mut blocks = [(0, 0); 4];
                let count = waiting.blocks(&mut blocks) as usize;
                prop_assert!((1..=4).contains(&count));
                prop_assert!((Seq(blocks[0].0)).at_or_before(base + from as u32));
                prop_assert!((Seq(blocks[0].1)).at_or_after(base + (from + len) as u32));
            }
            let mut out: Vec<u8> = Vec::new();
            let mut next = base + 1;
            loop {
                let from = (next - base) as usize;
                next = waiting.take_in_order(next, |piece| {
                    out.extend_from_slice(piece.bytes().expect("private"));
                });
                let at = (next - base) as usize;
                prop_assert!(at == from || covered[from..at].iter().all(|&c| c));
                if waiting.is_empty() {
                    break;
                }
                // Fill the hole by one byte.
                prop_assert!(!covered[at]);
                out.push((at * 7 % 251) as u8);
                next += 1;
            }
            for (index, byte) in out.iter().enumerate() {
                prop_assert_eq!(*byte, ((index + 1) * 7 % 251) as u8);
            }
            prop_assert_eq!(waiting.held(), 0);
            prop_assert_eq!(memory.small.out_count(), 0);
        }
    }

    #[test]
    fn the_bound_drops_what_is_new() {
        let mut memory = memory();
        let piece = stream(&mut memory, 0, 2000);
        let mut waiting = Reassembly::default();
        for index in 0..PIECES_MAX as u32 {
            assert!(waiting.insert(Seq(2 * index + 1), core::iter::once(piece.slice(0, 1)), false));
        }
        let extra = Seq(2 * PIECES_MAX as u32 + 1);
        assert!(!waiting.insert(extra, core::iter::once(piece.slice(0, 1)), false));
    }
}
