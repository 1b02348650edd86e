//! Terms of what waits in send queues, and recalls.
//!
//! A buffer has a term from the call on. The stack keeps it for what it has taken
//! ([`Sockets::end_terms`](towpath_net::socket::Sockets::end_terms) ends it early); what still
//! waits here is copied by the worker, some MiB in a turn, and the copy is sent instead. The copy
//! takes the buffer's place in the budgets, whether there is room or not, so that a program whose
//! peer does not read gets its memory back, and has to wait before it lends more.

use crate::host::core::{Core, State};
use crate::host::lending::lend::Copied;
use crate::host::lending::queue::{Copying, LentOp, Op};
use crate::host::lending::ticket::{Recall, Ticket};
use std::sync::Arc;
use towpath_net::engine::MEMORY_PAUSE;
use towpath_net::socket::SocketId;
use towpath_net::time::{Instant, earliest};
use towpath_packet::{Ledger, Site};

/// Bytes copied in one turn: about a millisecond.
const COPIED_PER_TURN: usize = 4 << 20;

impl Recall for Core {
    fn recall(&self, id: SocketId, ticket: &Ticket) {
        self.call(|state, now| state.recall(id, ticket, now));
    }
}

impl State {
    /// Has the worker give the memory of one send back.
    fn recall(&mut self, id: SocketId, ticket: &Ticket, now: Instant) {
        if let Some(number) = ticket.number() {
            self.engine.protocols.end_terms(id, (number, number), now);
        }
        let Some(entry) = self.table.get_mut(&id) else { return };
        if let Some(queue) = &entry.queue {
            queue.take(&mut entry.pending);
        }
        for op in &mut entry.pending {
            if let Some(lent) = op.lent_mut()
                && lent.ticket.is(ticket)
            {
                lent.due = Some(now);
                self.terms_at = Some(now);
            }
        }
    }

    /// Copies what waits although its term is over.
    pub(in crate::host) fn run_terms(&mut self, now: Instant) {
        if self.terms_at.is_none_or(|at| at > now) {
            return;
        }
        self.terms_at = None;
        let mut budget = COPIED_PER_TURN;
        let pending = self.table.values_mut().flat_map(|entry| &mut entry.pending);
        for lent in pending.filter_map(Op::lent_mut) {
            if lent.due.is_some_and(|due| due <= now) && budget > 0 {
                match lent.copy_some(budget, &self.engine.ledger) {
                    Some(copied) => budget -= copied,
                    None => lent.due = Some(now + MEMORY_PAUSE),
                }
            }
            self.terms_at = earliest([self.terms_at, lent.due]);
        }
    }
}

impl LentOp {
    /// Copies up to `most` bytes of what is left, and lets the buffer go when that is all; returns
    /// how many. `None` without memory: nothing has changed.
    fn copy_some(&mut self, most: usize, ledger: &Ledger) -> Option<usize> {
        let Self { source, copying, done, .. } = self;
        if copying.is_none() {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(source.len() - *done).ok()?;
            *copying = Some(Box::new(Copying { from: *done, bytes }));
        }
        let Copying { from, bytes } = copying.as_deref_mut()?;
        let mut copied = 0;
        let left = loop {
            let next = source.stretch(*from + bytes.len());
            let count = next.len().min(most - copied);
            if count == 0 {
                break !next.is_empty();
            }
            bytes.extend_from_slice(&next[..count]);
            copied += count;
        };
        ledger.count(Site::Recall, copied);
        if !left {
            self.send_copy();
        }
        Some(copied)
    }

    /// Sends the copy, which is complete, instead of the buffer.
    fn send_copy(&mut self) {
        let Some(Copying { from, bytes }) = self.copying.take().map(|copying| *copying) else {
            return;
        };
        let (account, charge) = (self.ticket.account().clone(), bytes.len());
        account.levels.force(charge);
        let (_, share) = Ticket::begin(account, charge);
        // What is held of the buffer goes before the share of its ticket.
        self.source = Arc::new(Copied(bytes));
        (self.done, self.due) = (self.done - from, None);
        let of_the_buffer = std::mem::replace(&mut self.ticket, share);
        of_the_buffer.mark_copied();
    }
}
