//! Receiving without a copy.

use super::block;
use crate::host::core::feed::Crowded;
use crate::host::{TcpStream, would_block};
use std::io;
use std::task::{Context, Poll};
use towpath_net::socket::ReadMost;
use towpath_packet::Held;

/// Pieces that one call takes without copying.
const RECEIVED_PIECES_MAX: usize = 64;

impl TcpStream {
    /// Takes received bytes without copying them: at most `max`, as pieces added to `into`; returns
    /// how many. Zero means that no more will come. Each piece shows its bytes
    /// ([`Held::bytes`]); what others could write is copied.
    ///
    /// Memory goes back to whoever lent it when the pieces are dropped, on whatever thread. Until
    /// then they count with the receive buffer, so that the peer waits for who keeps much.
    ///
    /// # Errors
    /// Those of reading; `ENOBUFS` if this host's sockets keep too much: then reading with a copy
    /// goes on.
    pub fn recv_lent(&self, max: usize, into: &mut Vec<Held>) -> io::Result<usize> {
        let received = block(self.inner.shape.read_wait(), |cx| self.poll_recv_lent(cx, max, into));
        received.unwrap_or_else(|| Err(would_block()))
    }

    /// The same for futures made by hand.
    pub fn poll_recv_lent(
        &self,
        cx: &mut Context<'_>,
        max: usize,
        into: &mut Vec<Held>,
    ) -> Poll<io::Result<usize>> {
        self.poll_receive_lent(cx, Crowded::Fails, max, into)
    }

    /// The same for those who wait where too much is kept.
    pub(in crate::host) fn poll_receive_lent(
        &self,
        cx: &mut Context<'_>,
        crowded: Crowded,
        max: usize,
        into: &mut Vec<Held>,
    ) -> Poll<io::Result<usize>> {
        let most = ReadMost { bytes: max, pieces: RECEIVED_PIECES_MAX, private: true };
        self.poll_receive(cx, |state, id, now| {
            let received =
                state.engine.with(now, |sockets, cx| sockets.receive_lent(id, &most, into, cx));
            state.or_wait_for_room(received, (crowded, cx.waker()), now)
        })
    }
}
