//! The lent chains of a transmit queue: a table, a stack of free slots, and a list of used slots in
//! the order of lending. There are as many slots as the ring has descriptors, so nothing is
//! allocated later. One thread, the queue's.

use super::super::Head;
use towpath_packet::Watch;
use towpath_packet::packet::PIECES_MAX;
use towpath_packet::time::Instant;

/// End of a list of slots.
pub(super) const NONE: u16 = u16::MAX;

/// A lent chain.
pub(super) struct Slot {
    /// `None` if the chain was returned already.
    pub(super) head: Option<Head>,
    /// A watch for each loan that is not known to be over.
    pub(super) watches: [Option<Watch>; PIECES_MAX],
    /// `None` before the first use.
    pub(super) since: Option<Instant>,
    pub(super) older: u16,
    pub(super) newer: u16,
}

/// All slots: free ones on a stack, used ones in a list in the order of lending.
pub(super) struct Slots {
    pub(super) table: Box<[Slot]>,
    pub(super) free: Vec<u16>,
    pub(super) oldest: u16,
    pub(super) newest: u16,
    /// Number of ring descriptors that are lent.
    pub(super) descriptors_out: usize,
}

impl Slots {
    pub(super) fn new(size: usize) -> Self {
        let slot = |_| Slot {
            head: None,
            watches: [const { None }; PIECES_MAX],
            since: None,
            older: NONE,
            newer: NONE,
        };
        Self {
            table: (0..size).map(slot).collect(),
            free: (0..size as u16).rev().collect(),
            oldest: NONE,
            newest: NONE,
            descriptors_out: 0,
        }
    }

    /// Adds a slot as the newest.
    pub(super) fn push(&mut self, number: u16) {
        let newest = std::mem::replace(&mut self.newest, number);
        let slot = &mut self.table[usize::from(number)];
        (slot.older, slot.newer) = (newest, NONE);
        self.descriptors_out += slot.descriptors();
        match newest {
            NONE => self.oldest = number,
            newest => self.table[usize::from(newest)].newer = number,
        }
    }

    /// Removes a slot from the list and frees it; returns the lent chain.
    pub(super) fn remove(&mut self, number: u16) -> Option<Head> {
        let slot = &mut self.table[usize::from(number)];
        slot.watches = [const { None }; PIECES_MAX];
        self.descriptors_out -= slot.descriptors();
        let (older, newer, head) = (slot.older, slot.newer, slot.head.take());
        match older {
            NONE => self.oldest = newer,
            older => self.table[usize::from(older)].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.table[usize::from(newer)].older = older,
        }
        self.free.push(number);
        head
    }
}

impl Slot {
    pub(super) fn descriptors(&self) -> usize {
        self.head.map_or(0, |head| usize::from(head.descriptors))
    }
}
