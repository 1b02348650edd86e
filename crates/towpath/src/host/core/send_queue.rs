//! From send queues into the stack: the worker, or a call that sends behind queued data, passes on
//! what was queued as far as the stack has room, loans and memory.

use crate::host::core::datagrams::drain_datagrams;
use crate::host::core::{Entry, State};
use crate::host::lending::lend::Source;
use crate::host::lending::queue::{DATAGRAMS_QUEUED_MAX, LOAN_BYTES_MAX, LentOp, Op, SendQueue};
use crate::host::lending::stretch::{Drained, LOANS_MAX, lend};
use crate::host::lending::ticket::Share;
use std::sync::Arc;
use std::task::Waker;
use towpath_net::engine::MEMORY_PAUSE;
use towpath_net::socket::{Borrower, Error, SendFlags, SocketId, Sockets};
use towpath_net::stack::Context;
use towpath_net::time::Instant;
use towpath_packet::{Loans, Piece};

/// Most bytes given to the stack beyond its room when a socket is closed: well below the range of
/// sequence numbers.
const FLUSHED_MAX: usize = 1 << 29;
const _: () =
    assert!(FLUSHED_MAX / LOAN_BYTES_MAX <= LOANS_MAX / 4, "one stream leaves loans for others");

/// Behaviour of a receive that finds that readers hold too many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::host) enum Crowded {
    Fails,
    Waits,
}

impl State {
    /// Takes the entries of a queue of which the worker was notified.
    pub(in crate::host) fn take_submitted(&mut self, queue: &SendQueue, now: Instant) {
        if self.take_queued(queue) {
            self.drain(queue.id, now);
        }
    }

    /// Takes all entries of a queue, with their terms. Returns false if its socket is gone.
    pub(in crate::host) fn take_queued(&mut self, queue: &SendQueue) -> bool {
        let Some(entry) = self.table.get_mut(&queue.id) else { return false };
        queue.take(&mut entry.pending);
        let dues = entry.pending.iter().filter_map(Op::due);
        self.terms_at = dues.chain(self.terms_at).min();
        true
    }

    /// Gives the stack the rest of a closed socket, whether there is room or not, so that the stack
    /// closes the connection as one without an owner. If the rest exceeds the range of sequence
    /// numbers, draining continues when there is room. Returns `None` if it does not apply.
    fn flush(&mut self, id: SocketId, now: Instant) -> Option<Drained> {
        let Self { engine, loans, table, .. } = self;
        let entry = table.get_mut(&id)?;
        let queue = entry.queue.as_ref()?;
        if matches!(entry.pending.front(), Some(Op::Datagrams(_))) {
            return None;
        }
        let left = entry.pending.iter().map(Op::len).sum::<usize>();
        if left > FLUSHED_MAX || !matches!(entry.pending.back(), Some(Op::Close)) {
            return None;
        }
        let (sockets, mut cx) = engine.parts(now);
        while let Some(op) = entry.pending.pop_front() {
            match op {
                Op::Piece(piece) => {
                    queue.room.give(piece.len());
                    // Fails on a connection that has ended; there is no caller to report it to.
                    let _ = sockets.send_piece(id, piece, &mut cx);
                }
                Op::Lent(mut lent) => {
                    let loans = loans.get_or_insert_with(|| Loans::new(LOANS_MAX));
                    lent.call.take_all();
                    if let (Drained::Starved, left) = drain_lent(sockets, id, lent, loans, &mut cx)
                    {
                        left.into_iter().for_each(|left| entry.pending.push_front(left));
                        return Some(Drained::Starved);
                    }
                }
                // Streams have no datagrams, and the end of data is part of closing.
                Op::ShutDown | Op::Datagrams(_) => {}
                Op::Close => {
                    let _ = sockets.close(id, now);
                }
            }
        }
        table.remove(&id);
        Some(Drained::All)
    }

    /// Handles the result of a receive without a copy. If readers hold too many bytes and `crowded`
    /// says to wait, the result is `WouldBlock`, and `waker` is woken when the receive should be
    /// tried again. Readers do not report when they release bytes, so this is after a pause.
    pub(in crate::host) fn or_wait_for_room<T>(
        &mut self,
        received: Result<T, Error>,
        (crowded, waker): (Crowded, &Waker),
        now: Instant,
    ) -> Result<T, Error> {
        match received {
            Err(Error::NoBuffers) if crowded == Crowded::Waits => {
                self.crowded.add(waker);
                self.retry_at.get_or_insert(now + MEMORY_PAUSE);
                Err(Error::WouldBlock)
            }
            received => received,
        }
    }

    /// Continues with sockets that waited for a free loan or for memory.
    pub(in crate::host) fn retry(&mut self, now: Instant) {
        if self.retry_at.take_if(|at| *at <= now).is_some() {
            self.crowded.take_into(&mut self.wakers);
            for id in std::mem::take(&mut self.starved) {
                self.drain(id, now);
            }
        }
    }

    /// Gives the stack the entries of a send queue as far as there is room. Returns true if it
    /// accepted some.
    pub(in crate::host) fn drain(&mut self, id: SocketId, now: Instant) -> bool {
        let Self { engine, loans, table, .. } = self;
        let Some(entry) = table.get_mut(&id) else { return false };
        let Some(queue) = &entry.queue else { return false };
        let mut some = false;
        while let Some(op) = entry.pending.pop_front() {
            let (drained, left) = match op {
                Op::Piece(piece) => {
                    let (sockets, mut cx) = engine.parts(now);
                    drain_piece(sockets, queue, piece, &mut cx)
                }
                Op::Lent(lent) => {
                    let loans = loans.get_or_insert_with(|| Loans::new(LOANS_MAX));
                    let (sockets, mut cx) = engine.parts(now);
                    drain_lent(sockets, id, lent, loans, &mut cx)
                }
                Op::Datagrams(mut lent) => {
                    let loans = loans.get_or_insert_with(|| Loans::new(LOANS_MAX));
                    let lent_and_late = (&mut lent, &mut entry.late);
                    match drain_datagrams(engine, queue, lent_and_late, loans, now) {
                        Drained::All => {
                            entry.freed += lent.room;
                            (Drained::All, None)
                        }
                        drained => (drained, Some(Op::Datagrams(lent))),
                    }
                }
                Op::ShutDown => {
                    let how = towpath_net::socket::Shutdown::Write;
                    // Fails if the connection has ended in another way.
                    let _ = engine.protocols.shutdown(id, how, now);
                    (Drained::All, None)
                }
                Op::Close => {
                    let _ = engine.protocols.close(id, now);
                    table.remove(&id);
                    return true;
                }
            };
            match drained {
                Drained::All => some = true,
                Drained::Full | Drained::Starved => {
                    if let Some(op) = left {
                        entry.pending.push_front(op);
                    }
                    if let Drained::Starved = self.flush(id, now).unwrap_or(drained) {
                        if !self.starved.contains(&id) {
                            self.starved.push(id);
                        }
                        self.retry_at.get_or_insert(now + MEMORY_PAUSE);
                    }
                    break;
                }
                Drained::Failed(error) => {
                    queue.fail(error);
                    if let Some(op) = left {
                        op.give_up(queue);
                    }
                    entry.readers.take_into(&mut self.wakers);
                }
            }
        }
        if let Some(entry) = self.table.get_mut(&id) {
            entry.give_room(&mut self.wakers);
            if let Some(error) = entry.late.take_if(|_| entry.pending.is_empty()) {
                self.engine.protocols.keep_error(id, error);
            }
        }
        some
    }
}

impl Entry {
    /// Gives back the room that datagrams took in the queue: much at a time, because each time may
    /// wake a waiter.
    fn give_room(&mut self, wakers: &mut Vec<Waker>) {
        let Some(queue) = self.queue.as_ref().filter(|_| self.freed > 0) else { return };
        if self.pending.is_empty() || self.freed >= DATAGRAMS_QUEUED_MAX / 2 {
            queue.room.give(std::mem::take(&mut self.freed));
            self.writers.take_into(wakers);
        }
    }
}

fn drain_piece(
    sockets: &mut Sockets,
    queue: &SendQueue,
    mut piece: Piece,
    cx: &mut Context<'_>,
) -> (Drained, Option<Op>) {
    loop {
        let room = match sockets.send_room(queue.id, cx.now) {
            Ok(room) => room,
            Err(Error::WouldBlock) => 0,
            Err(error) => return (Drained::Failed(error), Some(Op::Piece(piece))),
        };
        if room == 0 {
            return (Drained::Full, Some(Op::Piece(piece)));
        }
        let count = piece.len().min(room);
        let part = piece.slice(0, count);
        if let Err(error) = sockets.send_piece(queue.id, part, cx) {
            return (Drained::Failed(error), Some(Op::Piece(piece)));
        }
        queue.room.give(count);
        piece.advance(count);
        if piece.is_empty() {
            return (Drained::All, None);
        }
    }
}

fn drain_lent(
    sockets: &mut Sockets,
    id: SocketId,
    mut lent: LentOp,
    loans: &mut Loans,
    cx: &mut Context<'_>,
) -> (Drained, Option<Op>) {
    let total = lent.source.len();
    while lent.done < total {
        let flags = SendFlags { continues: lent.begun, ..SendFlags::default() };
        let LentOp { source, ticket, call, done, due, .. } = &mut lent;
        call.set_term(due.map(|due| due.since(cx.now)));
        // The socket exists; otherwise the call below fails.
        let number = sockets.next_lent(id).unwrap_or_default();
        let lend = lend_from(source, ticket, (*done, LOAN_BYTES_MAX), loans);
        match sockets.send_lent(id, call, total - *done, flags, lend, cx) {
            Ok(count) => {
                lent.done += count;
                if !std::mem::replace(&mut lent.begun, true) {
                    lent.ticket.begun(number);
                }
            }
            Err(Error::WouldBlock) => return (Drained::Full, Some(Op::Lent(lent))),
            Err(Error::NoBuffers) => return (Drained::Starved, Some(Op::Lent(lent))),
            Err(error) => return (Drained::Failed(error), Some(Op::Lent(lent))),
        }
    }
    (Drained::All, None)
}

/// Lends consecutive contiguous parts that begin at `at`, each of at most `bytes_max` bytes.
fn lend_from(
    source: &Arc<dyn Source>,
    ticket: &Share,
    (mut at, bytes_max): (usize, usize),
    loans: &mut Loans,
) -> impl FnMut(usize, Borrower) -> Option<Piece> {
    move |most, borrower| {
        let piece = lend(source, ticket, (at, most.min(bytes_max)), loans, borrower)?;
        at += piece.len();
        Some(piece)
    }
}
