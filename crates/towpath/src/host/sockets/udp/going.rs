//! A buffer on its way into a datagram socket: copied, lent by the call, or left to the worker.

use super::{Inner, UdpSocket};
use crate::host::choosing::auto::Choice;
use crate::host::lending::lend::{Lend, Parcel};
use crate::host::lending::queue::LentOp;
use crate::host::lending::sending::{SendError, Sending};
use crate::host::lending::ticket::{Share, Ticket};
use std::io;
use std::mem;
use std::sync::Arc;
use towpath_net::socket::SendTo;

/// A send in progress of one buffer.
pub(crate) struct Going<B> {
    /// Whether to lend or to copy, chosen when the call began.
    pub(super) choice: Choice,
    pub(super) send: SendTo,
    pub(super) progress: Progress<B>,
}

/// Progress of a send.
pub(super) enum Progress<B> {
    /// Number of bytes copied.
    Copied(B, usize),
    Lent(Sending<B>, LentOp),
    /// Left to the worker.
    Queued(Sending<B>),
    /// The call has ended.
    Gone,
}

impl<B: Lend> Going<B> {
    pub(crate) fn new(socket: &UdpSocket, buffer: B, send: &SendTo) -> Self {
        let Inner { host, shape, mode, .. } = &*socket.inner;
        let send = SendTo { term: send.term.or(shape.term()), ..*send };
        let choice = mode.choose(buffer.len(), &host.owner.core);
        Self { choice, send, progress: Progress::Copied(buffer, 0) }
    }

    /// Lends the buffer. `share` is the first share of `ticket`.
    pub(super) fn lend(&mut self, ticket: Arc<Ticket>, share: Share) {
        let Progress::Copied(buffer, _) = mem::replace(&mut self.progress, Progress::Gone) else {
            return;
        };
        let held = Arc::new(Parcel::new(buffer));
        let sending = Sending::lent(held.clone(), ticket);
        self.progress = Progress::Lent(sending, LentOp::new(held, share, None));
    }

    /// Leaves the lent buffer to the worker, unless the queue refuses it. It occupies `room` of the
    /// queue, which the caller has taken.
    pub(super) fn queue(&mut self, socket: &Inner, room: usize) {
        let (sending, mut lent) = match mem::replace(&mut self.progress, Progress::Gone) {
            Progress::Lent(sending, lent) => (sending, lent),
            other => {
                self.progress = other;
                return;
            }
        };
        let Inner { host, queue, mode, .. } = socket;
        let core = &host.owner.core;
        lent.due = self.send.term.map(|term| core.clock.now() + term);
        lent.room = room;
        lent.ticket.observe(mode.watch(self.choice, lent.source.len()));
        self.progress = match core.send_datagrams(queue, lent, &self.send) {
            Ok(()) => Progress::Queued(sending),
            Err(lent) => {
                queue.room.give(room);
                Progress::Lent(sending, lent)
            }
        };
    }

    /// Ends the call: reports what was accepted, or the error if nothing was.
    pub(crate) fn stop(&mut self, error: io::Error) -> Result<Sending<B>, SendError<B>> {
        match mem::replace(&mut self.progress, Progress::Gone) {
            Progress::Copied(buffer, 0) => Err(SendError { error, buffer }),
            Progress::Copied(buffer, copied) => Ok(Sending::copied(buffer, copied)),
            Progress::Lent(sending, lent) => match lent.done {
                0 => {
                    // The loans came back when the call failed.
                    drop(lent);
                    Err(SendError { error, buffer: sending.returned().buffer })
                }
                done => Ok(sending.with_accepted(done)),
            },
            Progress::Queued(sending) => Ok(sending),
            Progress::Gone => unreachable!("a future is done once"),
        }
    }
}
