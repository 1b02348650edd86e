//! What is due when. A heap of moments; what was put off or removed is found out when its moment
//! comes, or when there are more of those than others.

use crate::events::Token;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Entries that are out of date and may stay, beside as many as there are others.
const STALE_MAX: usize = 64;

/// Names one setting of a timer, so that an earlier one is known.
pub(in crate::events) type Setting = u64;

/// A timer that is not set.
pub(in crate::events) const UNSET: Setting = 0;

/// See the module's documentation.
#[derive(Default)]
pub(in crate::events) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Setting, Token)>>,
    last: Setting,
    /// Entries that are not out of date.
    live: usize,
}

impl Timers {
    /// Sets a timer.
    pub(in crate::events) fn set(&mut self, due: Instant, token: Token) -> Setting {
        self.last += 1;
        self.live += 1;
        self.heap.push(Reverse((due, self.last, token)));
        self.last
    }

    /// A timer that was set does not count any more. `is_set` tells those that do.
    pub(in crate::events) fn unset(&mut self, is_set: impl Fn(Token, Setting) -> bool) {
        self.live -= 1;
        if self.heap.len() > 2 * self.live + STALE_MAX {
            self.heap.retain(|Reverse((_, setting, token))| is_set(*token, *setting));
        }
    }

    /// The next timer that is due at `now`. It counts no more; it may be out of date.
    pub(in crate::events) fn pop(&mut self, now: Instant) -> Option<(Token, Setting)> {
        let &Reverse((due, setting, token)) = self.heap.peek()?;
        (due <= now).then(|| {
            self.heap.pop();
            (token, setting)
        })
    }

    /// A timer that was [popped](Self::pop) was not out of date.
    pub(in crate::events) fn fired(&mut self) {
        self.live -= 1;
    }

    /// When to look again, at the latest.
    pub(in crate::events) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((due, ..))| *due)
    }
}
