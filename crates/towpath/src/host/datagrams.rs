//! Buffers that are lent as datagrams: one, or as many as it has segments, with one call.
//!
//! What is cut into segments may be longer than a super-packet: it goes as several, which leave as
//! fast as there is room for them. All of them are one send, whose buffer comes back when the last
//! is gone.

use super::core::{LOANS_MAX, Now, State, lend};
use super::lend::Source;
use super::queue::LOAN_BYTES_MAX;
use super::sending::Share;
use std::sync::Arc;
use towpath_net::socket::{Error, LentCall, SendTo, SocketId};
use towpath_net::stack::Context;
use towpath_packet::Loans;
use towpath_packet::pool::LARGE_FRAME_BYTES;

/// A buffer of which the stack has taken the first `done` bytes. Fields are dropped in this order:
/// what is held of the buffer goes before the share.
pub(super) struct LentDatagrams {
    pub(super) source: Arc<dyn Source>,
    pub(super) ticket: Share,
    pub(super) call: LentCall,
    pub(super) done: usize,
}

impl LentDatagrams {
    /// Of a buffer of which nothing was taken yet.
    pub(super) fn new(source: Arc<dyn Source>, ticket: Share) -> Self {
        Self { source, ticket, call: LentCall::default(), done: 0 }
    }
}

impl State {
    /// Lends what is left of a buffer as datagrams, in loans of a super-packet; a datagram that is
    /// not cut in loans of a frame's size, as who puts its fragments together counts all of its
    /// loan with each. Fails, or ends before all is sent, if nothing more can be sent now.
    pub(super) fn send_lent_datagrams(
        &mut self,
        id: SocketId,
        lent: &mut LentDatagrams,
        send: &SendTo,
        now: &Now<'_>,
    ) -> Result<(), Error> {
        let LentDatagrams { source, ticket, call, done } = lent;
        let size = send.segment_size.unwrap_or(self.sockets.options(id)?.datagram.segment_size);
        let bytes_max = if size > 0 { LOAN_BYTES_MAX } else { LARGE_FRAME_BYTES };
        loop {
            let Self { sockets, memory, loans, port, .. } = self;
            let loans = loans.get_or_insert_with(|| Loans::new(LOANS_MAX));
            let mut cx = Context { memory, ledger: now.ledger, now: now.now };
            let (number, from) = (sockets.next_lent(id)?, *done);
            let lend = |at, most: usize, borrower| {
                lend(source, ticket, (from + at, most.min(bytes_max)), loans, borrower)
            };
            let left = source.len() - from;
            let sent = sockets.send_lent_datagrams(id, call, left, send, lend, &mut cx)?;
            if from == 0 {
                ticket.begun(number);
            }
            *done += sent;
            if sent == 0 || sent == left {
                // The call is over for the stack, which hears of it with the lock.
                *call = LentCall::default();
                return Ok(());
            }
            if port.is_link() {
                port.send(sockets, &mut cx);
            }
        }
    }
}
