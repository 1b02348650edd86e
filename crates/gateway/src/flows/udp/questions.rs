//! Queries in flight to a resolver, kept to be repeated if it fails.
//!
//! They are copied: otherwise a query of 40 bytes would keep a frame for as long as no answer
//! comes. Bounds: [`QUESTION_BYTES_MAX`] for one query, [`GUEST_BYTES_MAX`] and [`BYTES_MAX`]. A
//! query beyond them is asked once, and counted.

use crate::flows::shares::Share;
use std::collections::HashMap;
use towpath_packet::{Ledger, Memory, Packet, Piece, Site};

/// Longest query that is kept: what fits a datagram on every path without fragments (DNS flag day
/// 2020).
const QUESTION_BYTES_MAX: usize = 1232;
/// Bytes that are kept for one guest: 2,000 queries of usual length.
const GUEST_BYTES_MAX: usize = 128 << 10;
/// Bytes that are kept for all guests.
const BYTES_MAX: usize = 1 << 20;
const _: () = assert!(GUEST_BYTES_MAX * 2 <= BYTES_MAX, "one guest leaves room for others");

/// Counts the bytes that are kept.
#[derive(Default)]
pub(super) struct Questions {
    bytes: usize,
    of: HashMap<Share, usize>,
}

/// One query; empty if it is answered or not kept.
#[derive(Default)]
pub(super) struct Question(Vec<u8>);

impl Questions {
    /// Keeps a query in place of the one before it; returns false if a bound does not allow it.
    pub(super) fn keep(
        &mut self,
        question: &mut Question,
        share: Share,
        packet: &Packet,
        ledger: &Ledger,
    ) -> bool {
        self.forget(question, share);
        let len = packet.payload_len();
        let used = self.of.get(&share).copied().unwrap_or_default();
        let fits = used + len <= GUEST_BYTES_MAX && self.bytes + len <= BYTES_MAX;
        if len > QUESTION_BYTES_MAX || !fits {
            return false;
        }
        question.0 = vec![0; len];
        let mut at = 0;
        for piece in packet.pieces() {
            ledger.copy(Site::Linearise, piece, &mut question.0[at..at + piece.len()]);
            at += piece.len();
        }
        self.bytes += len;
        *self.of.entry(share).or_default() += len;
        true
    }

    /// The query is answered, or its flow has ended.
    pub(super) fn forget(&mut self, question: &mut Question, share: Share) {
        self.take(question, share);
    }

    /// Takes out a query, which no longer counts.
    pub(super) fn take(&mut self, question: &mut Question, share: Share) -> Question {
        let taken = std::mem::take(question);
        let len = taken.0.len();
        if len == 0 {
            return taken;
        }
        self.bytes -= len;
        if let Some(used) = self.of.get_mut(&share) {
            *used -= len;
            if *used == 0 {
                self.of.remove(&share);
            }
        }
        taken
    }

    /// Keeps a query that was taken from other questions, unless a bound does not allow it.
    pub(super) fn put_back(&mut self, place: &mut Question, question: Question, share: Share) {
        let len = question.0.len();
        let used = self.of.get(&share).copied().unwrap_or_default();
        if len > 0 && used + len <= GUEST_BYTES_MAX && self.bytes + len <= BYTES_MAX {
            self.bytes += len;
            *self.of.entry(share).or_default() += len;
            *place = question;
        }
    }
}

impl Question {
    /// Returns the query in a frame, to be sent again; `None` if none is kept, or no frame is free.
    pub(super) fn piece(&self, memory: &mut Memory) -> Option<Piece> {
        if self.0.is_empty() {
            return None;
        }
        let mut frame = memory.small.take()?;
        frame[..self.0.len()].copy_from_slice(&self.0);
        Some(frame.freeze(self.0.len()))
    }
}
