//! Connections that wait for a flow, in one line per guest.
//!
//! Lines take turns. A short line ([`SHORT_LINE`]) is served oldest first, a long one newest first.
//! Bound: [`CONNECTIONS_MAX`]; at the bound the longest line loses the connection that has waited
//! longest.

use crate::flows::shares::Share;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::ops::Bound;

/// Most connections that wait for their turn, separately for the program's own addresses and for
/// others. It is a quarter of the limit of half-open connections, so that waiting connections do
/// not displace those whose host is being asked.
const CONNECTIONS_MAX: usize = 1024;

/// A line up to this length is served in order of arrival: it fits as many connections as programs
/// open at once, and fewer than a flood leaves.
const SHORT_LINE: usize = CONNECTIONS_MAX / 4;

/// The connections that wait, each named by a `T`. Some may already be over.
pub(super) struct Connections<T> {
    /// The lines, each in order of arrival, none empty.
    lines: BTreeMap<Share, VecDeque<T>>,
    /// The memory of the line that became empty last. The next new line takes it, so that
    /// connections that arrive one by one allocate nothing.
    spare: VecDeque<T>,
    /// The line that was served last.
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

    /// Puts a connection at the end of its line; returns the connection that it displaces.
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

    /// Returns the next connection of the line whose turn it is.
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

    /// Goal: a guest that begins endless connections displaces its own, and each guest gets its
    /// turn. Method: one guest pushes thousands, another three.
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

    /// Goal: no connection starves while others arrive as fast as they are begun. Method: lines of
    /// several lengths, with one arrival for each connection that is begun.
    #[test]
    fn a_steady_stream_starves_no_waiter() {
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

    /// Goal: connections that arrive one by one reuse the same memory. Method: check its capacity
    /// after each of several connections, of different guests.
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
