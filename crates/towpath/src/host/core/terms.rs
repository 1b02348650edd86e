//! Terms of entries in send queues, and recalls.
//!
//! A buffer has a term from the call on. The stack keeps the term of bytes that it has accepted
//! ([`Sockets::end_terms`](towpath_net::socket::Sockets::end_terms) ends it early). The worker
//! copies bytes that still wait in the queue, a few MiB per turn, and sends the copy instead. The
//! copy is charged to the budgets in place of the buffer, whether there is room or not: a program
//! whose peer does not read gets its memory back, but must wait before it lends more.

use crate::host::core::{Core, State};
use crate::host::lending::lend::Copied;
use crate::host::lending::queue::{Copying, LentOp, Op};
use crate::host::lending::ticket::{Recall, Ticket};
use std::sync::Arc;
use towpath_net::engine::MEMORY_PAUSE;
use towpath_net::socket::SocketId;
use towpath_net::time::{Instant, earliest};
use towpath_packet::{Ledger, Site};

/// Bytes copied per turn: about a millisecond's work.
const COPIED_PER_TURN: usize = 4 << 20;

impl Recall for Core {
    fn recall(&self, id: SocketId, ticket: &Ticket) {
        self.call(|state, now| state.recall(id, ticket, now));
    }
}

impl State {
    /// Recalls the memory of one send.
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

    /// Copies queued bytes whose term is over.
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
    /// Copies up to `most` bytes of the rest, and releases the buffer when all are copied. Returns
    /// the number of bytes, or `None` without memory: then nothing has changed.
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

    /// Sends the completed copy instead of the buffer.
    fn send_copy(&mut self) {
        let Some(Copying { from, bytes }) = self.copying.take().map(|copying| *copying) else {
            return;
        };
        let (account, charge) = (self.ticket.account().clone(), bytes.len());
        account.levels.force(charge);
        let (_, share) = Ticket::begin(account, charge);
        // The hold of the buffer is dropped before the share of its ticket.
        self.source = Arc::new(Copied(bytes));
        (self.done, self.due) = (self.done - from, None);
        let of_the_buffer = std::mem::replace(&mut self.ticket, share);
        of_the_buffer.mark_copied();
    }
}
