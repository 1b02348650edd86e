//! Loans of a group that can be recalled, and the queue of groups by their next action.

use crate::time::{Duration, Instant};
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use towpath_packet::{Ledger, Recall, Watch};

/// Default of [`set_default_term`](super::Sockets::set_default_term): long enough for an active
/// reader to finish.
pub const DEFAULT_TERM: Duration = Duration::from_millis(100);
/// First pause before memory that is being read is recalled again.
const RETRY: Duration = Duration::from_millis(1);
/// Longest pause before memory that is being read is recalled again.
const RETRY_MAX: Duration = Duration::from_millis(10);
/// Next action for a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Due {
    #[default]
    Nothing,
    /// Check whether the stack still needs the bytes.
    Look(Instant),
    /// Recall the memory.
    Recall(Instant),
}

impl Due {
    pub(super) fn at(self) -> Option<Instant> {
        match self {
            Due::Nothing => None,
            Due::Look(at) | Due::Recall(at) => Some(at),
        }
    }

    /// Combines two actions: a recall precedes a check, and the earlier of two recalls counts.
    pub(super) fn and(self, other: Due) -> Due {
        match (self, other) {
            (Due::Recall(one), Due::Recall(another)) => Due::Recall(one.min(another)),
            (Due::Recall(_), _) | (Due::Look(_), Due::Nothing | Due::Look(_)) => self,
            _ => other,
        }
    }
}

/// Outstanding loans of a group.
#[derive(Default)]
pub(super) struct Outstanding {
    /// Loans that can be recalled; some may be over.
    pub(super) watches: Vec<Watch>,
    /// When the first loan was made; `None` once the group has been reported.
    pub(super) since: Option<Instant>,
    pub(super) due: Due,
    /// Last pause because the memory was being read.
    pause: Duration,
    /// Earliest entry of this group in the queue of terms, also if the group has ended.
    pub(super) queued: Option<Instant>,
}

impl Outstanding {
    /// Ends the group, and keeps the allocation for the next.
    pub(super) fn clear(&mut self) {
        self.watches.clear();
        (self.since, self.due, self.pause) = (None, Due::Nothing, Duration::ZERO);
    }

    pub(super) fn add(&mut self, watch: Watch) {
        if self.watches.len() == self.watches.capacity() {
            self.watches.retain(|watch| !watch.is_over());
        }
        self.watches.push(watch);
    }

    /// Returns the next pause for memory that is being read.
    pub(super) fn back_off(&mut self) -> Duration {
        self.pause = (self.pause * 2).clamp(RETRY, RETRY_MAX);
        self.pause
    }

    /// Recalls loans of about `budget` bytes.
    pub(super) fn recall(&mut self, budget: usize, ledger: &Ledger) -> Recalled {
        let mut sum = Recalled { loans: 0, bytes: 0, starved: 0, left: Recall::Gone };
        self.watches.retain_mut(|watch| {
            let recalled = if sum.bytes < budget { watch.recall(ledger) } else { Recall::Busy };
            match recalled {
                Recall::Done => {
                    sum.loans += 1;
                    sum.bytes += watch.bytes();
                }
                Recall::NoMemory => sum.starved += 1,
                Recall::Gone | Recall::Busy => {}
            }
            sum.left = sum.left.max(recalled);
            recalled > Recall::Done
        });
        sum
    }
}

/// Result of recalling a group.
pub(super) struct Recalled {
    /// Number of loans returned, and their bytes.
    pub(super) loans: u64,
    pub(super) bytes: usize,
    /// Loans that could not be copied because memory was short.
    pub(super) starved: u64,
    /// What remains to be done.
    pub(super) left: Recall,
}

/// The terms of all groups.
pub(super) struct Terms {
    /// Times at which groups are checked, earliest on top. Each group with an action has an entry
    /// that is not later than the action. Stale entries are ignored.
    pub(super) queue: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Groups due in this turn; empty between turns, kept for its allocation.
    pub(super) ready: Vec<u32>,
    pub(super) default: Option<Duration>,
    /// Loans of the current call, with their groups.
    pub(super) made: Vec<(u32, Option<Watch>)>,
    pub(super) fired: u64,
    pub(super) recalls: u64,
    pub(super) recalled_bytes: u64,
    pub(super) starved: u64,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            queue: BinaryHeap::new(),
            ready: Vec::new(),
            default: Some(DEFAULT_TERM),
            made: Vec::new(),
            fired: 0,
            recalls: 0,
            recalled_bytes: 0,
            starved: 0,
        }
    }
}
