//! Receiving without a copy, and sending on what was received.

use super::block;
use crate::host::core::send_queue::Crowded;
use crate::host::lending::queue::Op;
use crate::host::{TcpStream, would_block};
use std::io;
use std::task::{Context, Poll};
use towpath_net::socket::ReadMost;
use towpath_packet::{Ledger, ReceivedPiece};

/// Most pieces that one call returns.
const RECEIVED_PIECES_MAX: usize = 64;
/// Memory that a piece which is passed on may keep, as a multiple of its bytes.
const HELD_TIMES_MAX: usize = 16;

impl TcpStream {
    /// Takes received bytes without copying them: at most `max`, as pieces appended to `into`.
    /// Returns their number; 0 at the end of the stream. Each piece shows its bytes
    /// ([`ReceivedPiece::bytes`]); bytes that others could still write are copied.
    ///
    /// The memory goes back to its lender when the pieces are dropped, on any thread. Until then
    /// they count against the receive buffer, so the receive window closes for a reader that keeps
    /// many.
    ///
    /// # Errors
    /// The errors of reading; `ENOBUFS` if the readers of this host hold too many bytes. Reading
    /// with a copy still works.
    pub fn recv_lent(&self, max: usize, into: &mut Vec<ReceivedPiece>) -> io::Result<usize> {
        let received = block(self.inner.shape.read_wait(), |cx| self.poll_recv_lent(cx, max, into));
        received.unwrap_or_else(|| Err(would_block()))
    }

    /// Takes received bytes like [`TcpStream::recv_lent`], for hand-written futures.
    pub fn poll_recv_lent(
        &self,
        cx: &mut Context<'_>,
        max: usize,
        into: &mut Vec<ReceivedPiece>,
    ) -> Poll<io::Result<usize>> {
        self.poll_receive_lent(cx, Crowded::Fails, max, into)
    }

    /// Takes received bytes without copying them. `crowded` decides whether it fails or waits while
    /// readers hold too many bytes.
    pub(in crate::host) fn poll_receive_lent(
        &self,
        cx: &mut Context<'_>,
        crowded: Crowded,
        max: usize,
        into: &mut Vec<ReceivedPiece>,
    ) -> Poll<io::Result<usize>> {
        let most = ReadMost { bytes: max, pieces: RECEIVED_PIECES_MAX, private: true };
        self.poll_receive(cx, |state, id, now| {
            let received =
                state.engine.with(now, |sockets, cx| sockets.receive_lent(id, &most, into, cx));
            state.or_wait_for_room(received, (crowded, cx.waker()), now)
        })
    }

    /// Takes received bytes like [`TcpStream::recv_lent`], and waits while readers hold too many.
    pub(crate) fn poll_take(
        &self,
        cx: &mut Context<'_>,
        max: usize,
        into: &mut Vec<ReceivedPiece>,
    ) -> Poll<io::Result<usize>> {
        self.poll_receive_lent(cx, Crowded::Waits, max, into)
    }

    /// Returns the counts of copies of the host.
    pub(crate) fn ledger(&self) -> &Ledger {
        self.inner.host.ledger()
    }

    /// Sends the start of a received piece on, without a copy, and returns the number of bytes. The
    /// stream holds the memory until the peer has acknowledged them.
    ///
    /// A piece that [keeps](towpath_packet::Piece::held) far more memory than it shows is copied,
    /// so that the room of the queue, in bytes, also bounds the memory that waits there.
    pub(crate) fn poll_pass_on(
        &self,
        cx: &mut Context<'_>,
        piece: &ReceivedPiece,
        from: usize,
    ) -> Poll<io::Result<usize>> {
        let (piece, wanted) = (piece.piece(), piece.len() - from);
        if piece.held() > HELD_TIMES_MAX * piece.len()
            && let Some(bytes) = piece.view()
        {
            return self.poll_write(cx, &bytes[from..]);
        }
        let Poll::Ready(mut room) = self.poll_room(cx, wanted)? else { return Poll::Pending };
        let count = room.left();
        let (queue, core) = (&self.inner.queue, &self.inner.host.owner.core);
        if core.send(queue, Op::Piece(piece.slice(from, count))).is_err() {
            return Poll::Ready(Err(self.failure()));
        }
        room.spend(count);
        Poll::Ready(Ok(count))
    }
}
