//! Timers in a heap. A timer that was moved or removed leaves a stale entry. Stale entries are
//! discarded when they are due, or when they outnumber the live ones.

use crate::events::Token;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Stale entries that may stay, in addition to one per live entry.
const STALE_MAX: usize = 64;

/// Identifies one setting of a timer, to recognise stale entries.
pub(in crate::events) type Setting = u64;

/// The setting of a timer that is not set.
pub(in crate::events) const UNSET: Setting = 0;

/// The timers of a queue. See the module documentation.
#[derive(Default)]
pub(in crate::events) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Setting, Token)>>,
    last: Setting,
    /// Entries that are not stale.
    live: usize,
}

impl Timers {
    /// Sets a timer and returns its setting.
    pub(in crate::events) fn set(&mut self, due: Instant, token: Token) -> Setting {
        self.last += 1;
        self.live += 1;
        self.heap.push(Reverse((due, self.last, token)));
        self.last
    }

    /// Marks one entry as stale. `is_set` returns whether a setting is still valid.
    pub(in crate::events) fn unset(&mut self, is_set: impl Fn(Token, Setting) -> bool) {
        self.live -= 1;
        if self.heap.len() > 2 * self.live + STALE_MAX {
            self.heap.retain(|Reverse((_, setting, token))| is_set(*token, *setting));
        }
    }

    /// Takes the next timer that is due at `now`. It may be stale.
    pub(in crate::events) fn pop(&mut self, now: Instant) -> Option<(Token, Setting)> {
        let &Reverse((due, setting, token)) = self.heap.peek()?;
        (due <= now).then(|| {
            self.heap.pop();
            (token, setting)
        })
    }

    /// Notes that a [popped](Self::pop) timer was not stale.
    pub(in crate::events) fn fired(&mut self) {
        self.live -= 1;
    }

    /// Returns when to look again, at the latest.
    pub(in crate::events) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((due, ..))| *due)
    }
}
