//! Connections that wait for a flow, in a line for each guest.
//!
//! Lines are served in turn, the oldest first while a line is short ([`SHORT_LINE`]), else the
//! newest. Bound: [`CONNECTIONS_MAX`]; at it the longest line loses the one that has waited
//! longest.

use crate::flows::shares::Share;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ops::Bound;

/// Connections that wait for their turn, of the program's own addresses and of others each: a
/// quarter of those that may be half-open, so that those whose host is being asked are not
/// displaced by those that only wait.
const CONNECTIONS_MAX: usize = 1024;

/// A line up to this length is served in the order of arrival: as many connections as programs open
/// at once, and fewer than a flood leaves.
const SHORT_LINE: usize = CONNECTIONS_MAX / 4;

/// Those that wait, by what `T` names them. Names some that are over by now.
pub(super) struct Connections<T> {
    /// Each in the order of arrival, none empty.
    lines: BTreeMap<Share, VecDeque<T>>,
    /// The memory of the line that became empty last. The next line takes it, so that connections
    /// that come one by one allocate nothing.
    spare: VecDeque<T>,
    /// Whose turn it was.
    last: Option<Share>,
    len: usize,
}

impl<T> Default for Connections<T> {
    fn default() -> Self {
        Self { lines: BTreeMap::new(), spare: VecDeque::new(), last: None, len: 0 }
    }
}

impl<T> Connections<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a connection at the end of its line; the one that has to give way.
    pub(super) fn push(&mut self, share: Share, connection: T) -> Option<T> {
        let spare = &mut self.spare;
        self.lines.entry(share).or_insert_with(|| mem::take(spare)).push_back(connection);
        self.len += 1;
        if self.len <= CONNECTIONS_MAX {
            return None;
        }
        let longest = self.lines.iter().max_by_key(|(_, line)| line.len());
        let longest = *longest.expect("one was pushed").0;
        self.take(longest, VecDeque::pop_front)
    }

    /// The next connection of the line whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.lines.range((after, Bound::Unbounded));
        let share = behind.next().or_else(|| self.lines.first_key_value()).map(|(share, _)| *share);
        self.last = share;
        self.take(share?, |line| match line.len() {
            0..=SHORT_LINE => line.pop_front(),
            _ => line.pop_back(),
        })
    }

    fn take(
        &mut self,
        share: Share,
        take: impl FnOnce(&mut VecDeque<T>) -> Option<T>,
    ) -> Option<T> {
        let line = self.lines.get_mut(&share)?;
        let connection = take(line)?;
        if line.is_empty() {
            self.spare = self.lines.remove(&share)?;
        }
        self.len -= 1;
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a guest that begins connections without end displaces its own, and each guest gets its
    /// turn. Method: one pushes thousands, another three.
    #[test]
    fn a_flood_displaces_itself() {
        let [flood, quiet] = [1, 2].map(|port| Share::Guest(Some(port)));
        let mut waiting = Connections::default();
        let mut displaced: Vec<u32> = Vec::new();
        for number in 0..3 {
            displaced.extend(waiting.push(quiet, number));
        }
        for number in 10..5010 {
            displaced.extend(waiting.push(flood, number));
        }
        assert_eq!(displaced.len(), 5003 - CONNECTIONS_MAX);
        assert_eq!((displaced[0], waiting.len), (10, CONNECTIONS_MAX));
        let taken: Vec<_> = (0..7).filter_map(|_| waiting.pop()).collect();
        let expected = [5009, 0, 5008, 1, 5007, 2, 5006];
        assert_eq!(taken, expected, "in turn, of the long line the newest first");
    }

    /// Goal: no connection waits for ever while others come as fast as they are begun. Method: a
    /// line of so many, and one comes for each that is begun.
    #[test]
    fn a_steady_stream_leaves_nobody_behind() {
        for length in [1, 100, SHORT_LINE - 1] {
            let mut waiting = Connections::default();
            let mut numbers = 0..;
            let mut push = |waiting: &mut Connections<usize>| {
                let displaced = waiting.push(Share::Guest(None), numbers.next().expect("endless"));
                assert_eq!(displaced, None);
            };
            (0..length).for_each(|_| push(&mut waiting));
            for begun in 0..3 * length {
                push(&mut waiting);
                assert_eq!(waiting.pop(), Some(begun), "in the order of arrival");
            }
        }
    }

    /// Goal: connections that come one by one use the same memory. Method: its capacity after each
    /// of several, of different guests.
    #[test]
    fn a_line_leaves_its_memory_to_the_next() {
        let mut waiting = Connections::default();
        for number in 0..5_u32 {
            assert_eq!(waiting.push(Share::Guest(Some(number as u16)), number), None);
            assert_eq!(waiting.spare.capacity(), 0, "it is in use");
            assert_eq!(waiting.pop(), Some(number));
            assert!(waiting.spare.capacity() > 0 && waiting.is_empty());
        }
    }
}
