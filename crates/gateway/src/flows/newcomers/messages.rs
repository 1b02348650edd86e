//! Datagrams and echo requests that wait for a flow, in one line per guest.
//!
//! Lines take turns. Bounds: [`MESSAGES_MAX`], and the part of the memory given by [`BYTES_SHARE`];
//! at either bound the longest line loses its last message.

use super::Message;
use crate::flows::shares::Share;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Most datagrams and echo requests that wait for their turn, separately for each kind of address.
const MESSAGES_MAX: usize = 256;
/// Divisor of the memory that they may keep: of the smallest memory, this many small frames each.
const BYTES_SHARE: usize = 32;

/// The messages that wait.
#[derive(Default)]
pub(super) struct Messages {
    lines: BTreeMap<Share, Line>,
    /// The line that was served last.
    last: Option<Share>,
    len: usize,
    bytes: usize,
}

#[derive(Default)]
struct Line {
    messages: VecDeque<Message>,
    /// Memory that they keep from others.
    bytes: usize,
}

impl Messages {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a message at the end of its line; returns how many messages were dropped, this one
    /// included.
    pub(super) fn push(&mut self, message: Message, memory_bytes: usize) -> u64 {
        let (share, bytes) = (message.share(), message.held());
        let bytes_max = memory_bytes / BYTES_SHARE;
        let mut dropped = 0;
        loop {
            let by_count = self.len >= MESSAGES_MAX;
            if !by_count && self.bytes + bytes <= bytes_max {
                break;
            }
            dropped += 1;
            // The newcomer counts as if it were in its line already.
            let weight = |line: &Line| if by_count { line.messages.len() } else { line.bytes };
            let own = self.lines.get(&share).map_or(0, weight) + if by_count { 1 } else { bytes };
            let longest = self.lines.iter().max_by_key(|(_, line)| weight(line));
            match longest.filter(|(other, line)| **other != share && weight(line) > own) {
                Some((&longest, _)) => self.drop_last(longest),
                None => return dropped,
            }
        }
        let line = self.lines.entry(share).or_default();
        line.messages.push_back(message);
        line.bytes += bytes;
        (self.len, self.bytes) = (self.len + 1, self.bytes + bytes);
        dropped
    }

    /// Returns the first message of the line whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Message> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.lines.range((after, Bound::Unbounded));
        let share = behind.next().or_else(|| self.lines.first_key_value()).map(|(share, _)| *share);
        self.last = share;
        self.take(share?, |messages| messages.pop_front())
    }

    /// Returns the first message of this flow.
    pub(super) fn pop_of(&mut self, share: Share, flow: super::FlowKey) -> Option<Message> {
        self.take(share, |messages| {
            let place = messages.iter().position(|message| message.flow() == flow)?;
            messages.remove(place)
        })
    }

    /// Removes and returns the messages that `is_wanted` selects, those of each guest in order.
    pub(super) fn take_all(&mut self, is_wanted: impl Fn(&Message) -> bool) -> Vec<Message> {
        let mut taken = Vec::new();
        let shares: Vec<Share> = self.lines.keys().copied().collect();
        for share in shares {
            while let Some(message) = self.take(share, |messages| {
                messages.iter().position(&is_wanted).and_then(|place| messages.remove(place))
            }) {
                taken.push(message);
            }
        }
        taken
    }

    fn drop_last(&mut self, share: Share) {
        self.take(share, VecDeque::pop_back);
    }

    fn take(
        &mut self,
        share: Share,
        take: impl FnOnce(&mut VecDeque<Message>) -> Option<Message>,
    ) -> Option<Message> {
        let line = self.lines.get_mut(&share)?;
        let message = take(&mut line.messages)?;
        let bytes = message.held();
        line.bytes -= bytes;
        if line.messages.is_empty() {
            self.lines.remove(&share);
        }
        (self.len, self.bytes) = (self.len - 1, self.bytes - bytes);
        Some(message)
    }
}
