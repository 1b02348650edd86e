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

/// A buffer on its way into a socket.
pub(crate) struct Going<B> {
    /// What was decided when the call began.
    pub(super) choice: Choice,
    pub(super) send: SendTo,
    pub(super) progress: Progress<B>,
}

/// How far it is.
pub(super) enum Progress<B> {
    /// With how many bytes were copied.
    Copied(B, usize),
    Lent(Sending<B>, LentOp),
    /// Left to the worker.
    Queued(Sending<B>),
    /// The call is over.
    Gone,
}

impl<B: Lend> Going<B> {
    pub(crate) fn new(socket: &UdpSocket, buffer: B, send: &SendTo) -> Self {
        let Inner { host, shape, mode, .. } = &*socket.inner;
        let send = SendTo { term: send.term.or(shape.term()), ..*send };
        let choice = mode.choose(buffer.len(), &host.owner.core);
        Self { choice, send, progress: Progress::Copied(buffer, 0) }
    }

    /// Lends the buffer for the send of `ticket`, whose first share this is.
    pub(super) fn lend(&mut self, ticket: Arc<Ticket>, share: Share) {
        let Progress::Copied(buffer, _) = mem::replace(&mut self.progress, Progress::Gone) else {
            return;
        };
        let held = Arc::new(Parcel::new(buffer));
        let sending = Sending::lent(held.clone(), ticket);
        self.progress = Progress::Lent(sending, LentOp::new(held, share, None));
    }

    /// Leaves what is lent to the worker, if nothing speaks against it; it counts as `room` in the
    /// queue, which was taken.
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

    /// The call ends here: what was accepted counts, else the error.
    pub(crate) fn stop(&mut self, error: io::Error) -> Result<Sending<B>, SendError<B>> {
        match mem::replace(&mut self.progress, Progress::Gone) {
            Progress::Copied(buffer, 0) => Err(SendError { error, buffer }),
            Progress::Copied(buffer, copied) => Ok(Sending::copied(buffer, copied)),
            Progress::Lent(sending, lent) => match lent.done {
                0 => {
                    // What was lent came back when the call failed.
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
