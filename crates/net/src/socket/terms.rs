//! Terms: when lent memory goes back to its lender although pieces of it are still held.
//!
//! # Theory of operation
//!
//! A call may lend for a term, or a socket's option says so for all its calls. When the term has
//! run out, what is still held of the group, in the send queue, by a port or by a reader, is
//! [recalled](towpath_packet::Watch::recall): copied, and the group comes back like any other, as
//! *copied*. The first term of a group's calls counts for all of them.
//!
//! Without a term of its own a group is looked at now and then: when the stack itself no longer
//! needs the bytes, as they are acknowledged or were a datagram, the *default term* begins. So a
//! reader in the same process or a capture may hold lent memory for a while, but not keep it.
//!
//! Everything happens in [`Sockets::on_deadline`] and [`Sockets::recall`]. Memory that somebody is
//! reading at that moment is asked for again after [`RETRY`], then after twice as long each time,
//! up to [`RETRY_MAX`]: a reader may look at it for as long as he likes. One turn copies about
//! [`BYTES_PER_TURN`] and leaves the rest to the next. Where the system has no memory for a copy
//! the loan goes on past its term: nothing is closed or lost, other loans are not held up, and it
//! is tried again each [`STARVED_RETRY`] and counted ([`LentStats::starved`]). A call that goes on,
//! and a datagram that waits for more, keep their group from being told; their memory is no longer
//! used by then.
//!
//! Only foreign memory can be recalled (see [`towpath_packet::Piece::watch`]); other loans end with
//! their last piece.

use super::lending::{Borrower, Lendings};
use super::{Error, SocketId, Sockets};
use crate::stack::Context;
use crate::time::{Duration, Instant, earliest};
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use towpath_packet::{Ledger, Piece, Recall, Watch};

/// Term of memory that the stack itself does not need, unless set otherwise: so long that a reader
/// who is at work has read it.
pub const DEFAULT_TERM: Duration = Duration::from_millis(100);
/// When memory that somebody is reading is first asked for again.
const RETRY: Duration = Duration::from_millis(1);
/// Longest pause before it is asked for again.
const RETRY_MAX: Duration = Duration::from_millis(10);
/// When a copy is tried again for which there was no memory: rarely enough that trying for all
/// groups costs little.
const STARVED_RETRY: Duration = Duration::from_millis(10);
/// Bytes copied in one turn: about a millisecond.
const BYTES_PER_TURN: usize = 4 << 20;

/// What is to be done about a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Due {
    #[default]
    Nothing,
    /// See whether the stack still needs the bytes.
    Look(Instant),
    /// Give the memory back.
    Recall(Instant),
}

impl Due {
    fn at(self) -> Option<Instant> {
        match self {
            Due::Nothing => None,
            Due::Look(at) | Due::Recall(at) => Some(at),
        }
    }

    /// Both: the earlier, and a recall before a look.
    fn and(self, other: Due) -> Due {
        match (self, other) {
            (Due::Recall(one), Due::Recall(another)) => Due::Recall(one.min(another)),
            (Due::Recall(_), _) | (Due::Look(_), Due::Nothing | Due::Look(_)) => self,
            _ => other,
        }
    }
}

/// What a group has lent.
#[derive(Default)]
pub(super) struct Outstanding {
    /// The loans that can be recalled; some may be over.
    watches: Vec<Watch>,
    /// When the first loan was made; `None` once the group is told.
    since: Option<Instant>,
    due: Due,
    /// The last pause while somebody was reading.
    pause: Duration,
    /// The first moment that the queue of terms has for this group, also for one that is over.
    queued: Option<Instant>,
}

impl Outstanding {
    /// The group is over. Keeps its memory for the next.
    pub(super) fn clear(&mut self) {
        self.watches.clear();
        (self.since, self.due, self.pause) = (None, Due::Nothing, Duration::ZERO);
    }

    fn add(&mut self, watch: Watch) {
        if self.watches.len() == self.watches.capacity() {
            self.watches.retain(|watch| !watch.is_over());
        }
        self.watches.push(watch);
    }

    /// How long to wait for somebody who is reading.
    fn back_off(&mut self) -> Duration {
        self.pause = (self.pause * 2).clamp(RETRY, RETRY_MAX);
        self.pause
    }

    /// Recalls loans of about `budget` bytes.
    fn recall(&mut self, budget: usize, ledger: &Ledger) -> Recalled {
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

/// What a recall of a group came to.
struct Recalled {
    /// Loans and their bytes that went back.
    loans: u64,
    bytes: usize,
    /// Loans for whose copy there was no memory.
    starved: u64,
    /// What is left to be done.
    left: Recall,
}

/// The terms of all groups.
pub(super) struct Terms {
    /// Moments at which groups are to be looked at, the first on top: at least one not later than
    /// what is due for each. Others are of no importance any more, and are passed over.
    queue: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Groups that are due in a turn, between turns empty: kept for its memory.
    ready: Vec<u32>,
    default: Option<Duration>,
    /// Loans of the call that is being made, and their groups.
    made: Vec<(u32, Option<Watch>)>,
    fired: u64,
    recalls: u64,
    recalled_bytes: u64,
    starved: u64,
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

impl Lendings {
    /// Queues a group for what is due for it.
    fn expect(&mut self, index: usize) {
        let outstanding = &mut self.groups[index].outstanding;
        let Some(at) = outstanding.due.at() else { return };
        if outstanding.queued.is_some_and(|first| first <= at) {
            return;
        }
        outstanding.queued = Some(at);
        let queue = &mut self.terms.queue;
        if queue.len() >= 2 * self.groups.len() {
            // What was passed over is more than half.
            queue.retain(|Reverse((at, index))| {
                self.groups[*index as usize].outstanding.queued == Some(*at)
            });
        }
        queue.push(Reverse((at, index as u32)));
    }

    /// Takes the groups that are to be looked at by now out of the queue.
    fn take_due(&mut self, now: Instant) {
        while let Some(&Reverse((at, index))) = self.terms.queue.peek()
            && at <= now
        {
            self.terms.queue.pop();
            let queued = &mut self.groups[index as usize].outstanding.queued;
            if *queued == Some(at) {
                *queued = None;
                self.terms.ready.push(index);
            }
        }
    }
}

/// What is lent, and what came of terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LentStats {
    /// Groups of calls that are not told of yet.
    pub groups: usize,
    /// Their calls.
    pub calls: u64,
    /// Bytes of these calls.
    pub bytes: u64,
    /// How long the oldest of them has been lent.
    pub oldest: Option<Duration>,
    /// Groups whose term ran out while something was still held, and that came back by it.
    pub terms_fired: u64,
    /// Loans that went back before their last piece was gone, by a term or because they were asked
    /// for, and their bytes.
    pub recalls: u64,
    /// See above.
    pub recalled_bytes: u64,
    /// How often there was no memory for the copy that a recall needs.
    pub starved: u64,
}

impl Sockets {
    /// When [`Sockets::on_deadline`] has something to do.
    pub fn next_deadline(&self) -> Option<Instant> {
        let frames = self.frames.deadline();
        let term = self.lendings.terms.queue.peek().map(|Reverse((at, _))| *at);
        earliest([self.stack.next_deadline(), term, frames])
    }

    /// Sets the term that begins when the stack itself no longer needs lent bytes; `None` for no
    /// end. For calls from now on. Memory comes back after one to two of these terms.
    pub fn set_default_term(&mut self, term: Option<Duration>) {
        self.lendings.terms.default = term;
    }

    /// Gives memory back that the calls `first` to `last` of a socket lent, copying what is still
    /// held of it. Notices tell of the calls as ever, with `copied`; after [`Recall::Busy`] and
    /// [`Recall::NoMemory`] it is tried again until it is done. Other calls that share a notice
    /// with these get their memory back too.
    pub fn recall(
        &mut self,
        id: SocketId,
        (first, last): (u32, u32),
        cx: &mut Context<'_>,
    ) -> Result<Recall, Error> {
        self.socket(id)?;
        let mut result = Recall::Gone;
        for index in 0..self.lendings.groups.len() {
            let group = &self.lendings.groups[index];
            if group.socket == id && group.has_calls(first, last) {
                result = result.max(self.recall_group(index, usize::MAX, cx).left);
            }
        }
        self.drain();
        Ok(result)
    }

    /// Ends the terms of the calls `first` to `last` of a socket, which may be closed by now:
    /// [`Sockets::on_deadline`], which is due at once, does what [`Sockets::recall`] would do.
    pub fn end_terms(&mut self, id: SocketId, (first, last): (u32, u32), now: Instant) {
        for index in 0..self.lendings.groups.len() {
            let group = &mut self.lendings.groups[index];
            let lends = group.has_calls(first, last) && !group.outstanding.watches.is_empty();
            if group.socket == id && lends {
                group.outstanding.due = Due::Recall(now);
                self.lendings.expect(index);
            }
        }
    }

    /// What is lent at the moment, and what came back early so far.
    pub fn lent_stats(&self, now: Instant) -> LentStats {
        let terms = &self.lendings.terms;
        let mut stats = LentStats {
            terms_fired: terms.fired,
            recalls: terms.recalls,
            recalled_bytes: terms.recalled_bytes,
            starved: terms.starved,
            ..LentStats::default()
        };
        for group in &self.lendings.groups {
            let Some(since) = group.outstanding.since else { continue };
            stats.groups += 1;
            stats.calls += u64::from(group.calls);
            stats.bytes += group.bytes as u64;
            stats.oldest = stats.oldest.max(Some(now.since(since)));
        }
        stats
    }

    /// Lets `act` lend for a call, for `term` or as the socket says, and watches what it lends.
    pub(super) fn watching<R>(
        &mut self,
        (id, term, now): (SocketId, Option<Duration>, Instant),
        mut lend: impl FnMut(usize, Borrower) -> Option<Piece>,
        act: impl FnOnce(&mut Self, &mut dyn FnMut(usize, Borrower) -> Option<Piece>) -> R,
    ) -> R {
        let mut made = core::mem::take(&mut self.lendings.terms.made);
        let result = act(self, &mut |most, borrower| {
            let group = borrower.token as u32;
            let mut piece = lend(most, borrower)?;
            made.push((group, piece.watch()));
            Some(piece)
        });
        let own = self.options(id).ok().and_then(|options| options.lent_term);
        let due = match (term.or(own), self.lendings.terms.default) {
            (Some(term), _) => Due::Recall(now + term),
            (None, Some(default)) => Due::Look(now + default),
            (None, None) => Due::Nothing,
        };
        for (group, watch) in made.drain(..) {
            let outstanding = &mut self.lendings.groups[group as usize].outstanding;
            outstanding.since.get_or_insert(now);
            if let Some(watch) = watch {
                outstanding.add(watch);
                outstanding.due = outstanding.due.and(due);
                self.lendings.expect(group as usize);
            }
        }
        self.lendings.terms.made = made;
        result
    }

    /// Does what is due.
    pub(super) fn run_terms(&mut self, cx: &mut Context<'_>) {
        self.lendings.take_due(cx.now);
        let mut ready = core::mem::take(&mut self.lendings.terms.ready);
        let mut budget = BYTES_PER_TURN;
        for index in ready.drain(..).map(|index| index as usize) {
            let outstanding = &mut self.lendings.groups[index].outstanding;
            match outstanding.due {
                Due::Look(at) if at <= cx.now => self.look(index, cx.now),
                Due::Recall(at) if at <= cx.now => {
                    let recalled = self.recall_group(index, budget, cx);
                    budget = budget.saturating_sub(recalled.bytes);
                    self.lendings.terms.fired += u64::from(recalled.left == Recall::Done);
                }
                _ => self.lendings.expect(index),
            }
        }
        self.lendings.terms.ready = ready;
    }

    /// Begins the default term of a group whose bytes the stack no longer needs.
    fn look(&mut self, index: usize, now: Instant) {
        let needed = self.needs(index);
        let Some(default) = self.lendings.terms.default else { return };
        let at = now + default;
        let due = if needed { Due::Look(at) } else { Due::Recall(at) };
        self.lendings.groups[index].outstanding.due = due;
        self.lendings.expect(index);
    }

    /// True if bytes of the group are in the send queue of its connection.
    fn needs(&self, index: usize) -> bool {
        let connection = self.lendings.groups[index].connection;
        let connection = connection.and_then(|handle| self.stack.tcp(handle));
        connection.is_some_and(|connection| connection.needs_lent(index as u32))
    }

    /// Recalls the loans of a group, and notes if that has to go on; as [`Outstanding::recall`].
    fn recall_group(&mut self, index: usize, budget: usize, cx: &Context<'_>) -> Recalled {
        let outstanding = &mut self.lendings.groups[index].outstanding;
        let recalled = outstanding.recall(budget, cx.ledger);
        let due = match recalled.left {
            Recall::Gone | Recall::Done => Due::Nothing,
            _ if recalled.bytes >= budget => Due::Recall(cx.now),
            Recall::Busy => Due::Recall(cx.now + outstanding.back_off()),
            Recall::NoMemory => Due::Recall(cx.now + STARVED_RETRY),
        };
        outstanding.due = due;
        let terms = &mut self.lendings.terms;
        terms.recalls += recalled.loans;
        terms.recalled_bytes += recalled.bytes as u64;
        terms.starved += recalled.starved;
        self.lendings.expect(index);
        recalled
    }
}
