//! Terms: when lent memory is returned to its lender although pieces of it are still held.
//!
//! # Theory of operation
//!
//! A call may lend for a term, or a socket's option sets a term for all its calls. When the term
//! ends, what the send queue, a port or a reader still holds of the group is
//! [recalled](towpath_packet::Watch::recall): it is copied, and the group ends like any other, with
//! its notice marked *copied*. A group has the earliest term of its calls.
//!
//! A group without a term is checked periodically. When the stack itself no longer needs the bytes
//! (they are acknowledged, or belong to a datagram), the *default term* begins. So a reader in the
//! same process or a capture may hold lent memory for a while, but not forever.
//!
//! All of this happens in [`Sockets::on_deadline`] and [`Sockets::recall`]. Memory that is being
//! read at that moment is recalled again after a pause, which doubles each time up to a maximum:
//! there is no limit on how long a reader may take. One turn copies about [`BYTES_PER_TURN`] and
//! leaves the rest to the next. If no memory is available for a copy, the loan goes on past its
//! term. Nothing is closed or lost, and other loans are not delayed. The recall is retried every
//! [`STARVED_RETRY`], and counted ([`LentStats::starved`]). A call that is not complete, or a
//! datagram that waits for more data, delays its group's notice, but the memory is then no longer
//! used.
//!
//! Only foreign memory, and memory that was lent as recallable, can be recalled (see
//! [`towpath_packet::Piece::watch`]); other loans end with their last piece.

use super::lending::Lendings;
use super::outstanding::{Due, Recalled};
use super::shares::{Borrower, group_of};
use super::{Error, SocketId, Sockets};
use crate::stack::Context;
use crate::time::{Duration, Instant, earliest};
use core::cmp::Reverse;
use towpath_packet::{Piece, Recall};

/// Pause before a recall is retried that found no memory for the copy; long enough that retries for
/// all groups cost little.
const STARVED_RETRY: Duration = Duration::from_millis(10);
/// Bytes copied in one turn: about one millisecond.
const BYTES_PER_TURN: usize = 4 << 20;

impl Lendings {
    /// Queues a group for its next action.
    fn expect(&mut self, index: usize) {
        let outstanding = &mut self.groups[index].outstanding;
        let Some(at) = outstanding.due.at() else { return };
        if outstanding.queued.is_some_and(|first| first <= at) {
            return;
        }
        outstanding.queued = Some(at);
        let queue = &mut self.terms.queue;
        if queue.len() >= 2 * self.groups.len() {
            // At least half of the entries are stale.
            queue.retain(|Reverse((at, index))| {
                self.groups[*index as usize].outstanding.queued == Some(*at)
            });
        }
        queue.push(Reverse((at, index as u32)));
    }

    /// Moves the groups whose time has come from the queue to `ready`.
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

/// Statistics of lent memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LentStats {
    /// Groups whose notices are not reported yet.
    pub groups: usize,
    /// Calls of these groups.
    pub calls: u64,
    /// Bytes of these calls.
    pub bytes: u64,
    /// Age of the oldest of these groups.
    pub oldest: Option<Duration>,
    /// Groups that a term ended while something was still held.
    pub terms_fired: u64,
    /// Loans recalled before their last piece was dropped, by a term or on request.
    pub recalls: u64,
    /// Bytes of the recalled loans.
    pub recalled_bytes: u64,
    /// How often no memory was available for the copy that a recall needs.
    pub starved: u64,
}

impl Sockets {
    /// When [`Sockets::on_deadline`] has work.
    pub fn next_deadline(&self) -> Option<Instant> {
        let frames = self.frames.deadline();
        let term = self.lendings.terms.queue.peek().map(|Reverse((at, _))| *at);
        earliest([self.stack.next_deadline(), term, frames])
    }

    /// Sets the term that begins when the stack no longer needs lent bytes; `None` for no limit. It
    /// applies to later calls. Memory is returned one to two such terms after the stack stops
    /// needing it.
    pub fn set_default_term(&mut self, term: Option<Duration>) {
        self.lendings.terms.default = term;
    }

    /// Recalls the memory that the calls `first` to `last` of a socket lent, and copies what is
    /// still held. Notices report these calls as usual, marked `copied`. After [`Recall::Busy`] and
    /// [`Recall::NoMemory`] the recall is retried until it is done. Other calls that share a notice
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

    /// Ends the terms of the calls `first` to `last` of a socket, which may be closed:
    /// [`Sockets::on_deadline`], due at once, then recalls the memory as [`Sockets::recall`] does.
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

    /// Returns statistics of lent memory.
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

    /// Runs `act`, which lends for a call, and sets the term of what it lends: `term` or the
    /// socket's option.
    pub(super) fn watching<R>(
        &mut self,
        (id, term, now): (SocketId, Option<Duration>, Instant),
        mut lend: impl FnMut(usize, Borrower) -> Option<Piece>,
        act: impl FnOnce(&mut Self, &mut dyn FnMut(usize, Borrower) -> Option<Piece>) -> R,
    ) -> R {
        let mut made = core::mem::take(&mut self.lendings.terms.made);
        let result = act(self, &mut |most, borrower| {
            let group = group_of(borrower.token);
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

    /// Runs the actions that are due.
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

    /// Begins the default term of a group if the stack no longer needs its bytes.
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

    /// Recalls loans of a group of about `budget` bytes, and schedules a retry if any are left.
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
