//! Datagrams made by several calls (`MSG_MORE`, `UDP_CORK`).
//!
//! The first call sets the destination and options; later calls' are ignored, as in Linux. A call
//! that fails drops the whole pending datagram. Lent bytes precede copied bytes; `lending` explains
//! when bytes are lent.
//!
//! Bound: [`PENDING_MAX`] pending datagrams of all sockets, each of at most the maximum datagram
//! size.

use super::super::frames::{frame_to_send, packet_to_send};
use super::super::lending::Share;
use super::super::{Error, SocketId, Sockets};
use super::send::{SendTo, Way};
use crate::stack::Context;
use alloc::boxed::Box;
use towpath_packet::pool::Frame;
use towpath_packet::{Ledger, Packet, Piece, Site};

/// Maximum number of sockets with a pending datagram: 4 MiB of frames.
pub const PENDING_MAX: usize = 64;
/// Unit in which lent memory is charged.
const LENT_PAGE: usize = 4096;

/// Payload under construction: lent bytes first, then bytes in frames.
pub(super) struct Filling {
    packet: Packet,
    /// The frame that has room, and its used length.
    open: Option<(Frame, usize)>,
    /// Some bytes were copied into frames.
    copies: bool,
    len: usize,
    /// Bytes charged to the send buffer.
    charge: usize,
}

/// Datagram that waits for more data.
pub(super) struct Pending {
    way: Way,
    pub(super) filling: Filling,
    /// Keeps the group of the calls that lent alive; they are reported together.
    pub(super) share: Option<Share>,
}

impl Filling {
    /// No bytes yet.
    pub(super) fn new(cx: &mut Context<'_>) -> Result<Self, Error> {
        let packet = packet_to_send(cx.memory).ok_or(Error::NoBuffers)?;
        Ok(Self { packet, open: None, copies: false, len: 0, charge: 0 })
    }

    /// Copies `buffers`, one after the other. At least `expected` bytes will come in total.
    pub(super) fn gather(
        &mut self,
        buffers: &[&[u8]],
        mut expected: usize,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        for buffer in buffers {
            let mut rest = *buffer;
            self.fill(rest.len(), expected, cx, |frame, ledger| {
                let (first, others) = rest.split_at(frame.len());
                frame.copy_from_slice(first);
                ledger.count(Site::SocketSend, first.len());
                rest = others;
            })?;
            expected = expected.saturating_sub(buffer.len());
        }
        Ok(())
    }

    /// Copies a piece; many bytes may follow.
    pub(super) fn gather_piece(
        &mut self,
        mut piece: Piece,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        self.fill(piece.len(), usize::from(u16::MAX), cx, |frame, ledger| {
            let count = ledger.copy(Site::SocketSend, &piece, frame);
            piece.advance(count);
        })
    }

    /// Adds a piece without a copy if fewer than `most` are present and nothing was copied. Returns
    /// it otherwise.
    pub(super) fn push_lent(&mut self, piece: Piece, most: usize) -> Result<(), Piece> {
        if self.copies || self.packet.piece_count() >= most {
            return Err(piece);
        }
        let len = piece.len();
        self.packet.push_piece(piece)?;
        self.len += len;
        // As in Linux, even one byte is charged a whole page.
        self.charge += len.next_multiple_of(LENT_PAGE);
        Ok(())
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of lent ranges, if nothing was copied.
    pub(super) fn range_count(&self) -> usize {
        self.packet.piece_count()
    }

    /// Truncates the lent bytes to whole datagrams of `size`; returns how many bytes remain.
    pub(super) fn truncate_to_whole(&mut self, size: usize) -> usize {
        self.len -= self.len.checked_rem(size).unwrap_or(self.len);
        self.packet.truncate(self.len);
        self.len
    }

    /// Returns the packet with all bytes, and the charge to the send buffer.
    pub(super) fn finish(mut self) -> Result<(Packet, usize), Error> {
        self.close()?;
        Ok((self.packet, self.charge))
    }

    /// Puts `len` bytes into frames; `read` copies them. At least `expected` bytes will come in
    /// total.
    fn fill(
        &mut self,
        len: usize,
        expected: usize,
        cx: &mut Context<'_>,
        mut read: impl FnMut(&mut [u8], &Ledger),
    ) -> Result<(), Error> {
        let mut done = 0;
        while done < len {
            let (mut frame, used) = match self.open.take() {
                Some(open) => open,
                None => {
                    let frame = frame_to_send(expected.saturating_sub(done), 0, cx.memory);
                    (frame.ok_or(Error::NoBuffers)?, 0)
                }
            };
            let count = (len - done).min(frame.len() - used);
            read(&mut frame[used..used + count], cx.ledger);
            done += count;
            self.copies = true;
            self.len += count;
            self.charge += count;
            let full = used + count == frame.len();
            self.open = Some((frame, used + count));
            if full {
                self.close()?;
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        let Some((frame, used)) = self.open.take() else { return Ok(()) };
        self.packet.push_piece(frame.freeze(used)).map_err(|_| Error::NoBuffers)
    }
}

impl Sockets {
    /// True if a datagram waits for more data.
    pub fn has_pending_datagram(&self, id: SocketId) -> bool {
        let socket = self.socket(id);
        socket.and_then(|s| s.datagrams()).is_ok_and(|datagrams| datagrams.pending.is_some())
    }

    /// Sends the pending datagram, if there is one.
    pub fn push_datagram(&mut self, id: SocketId, cx: &mut Context<'_>) -> Result<(), Error> {
        let Some(pending) = self.take_pending(id)? else { return Ok(()) };
        let Pending { way, filling, share } = *pending;
        way.check_segments(filling.len)?;
        let sent = self.dispatch(id, filling.finish()?, &way, cx);
        // From now on the calls that lent can be reported.
        drop(share);
        sent
    }

    /// Adds a call's `len` bytes to the pending datagram, or begins one; sends it if no more data
    /// follows. The `bool` for `add` is true for the first call.
    pub(super) fn append_datagram(
        &mut self,
        id: SocketId,
        len: usize,
        send: &SendTo,
        add: impl FnOnce(&mut Self, &mut Pending, bool, &mut Context<'_>) -> Result<(), Error>,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        if len > usize::from(u16::MAX) {
            return Err(Error::MessageSize);
        }
        let (mut pending, first) = match self.take_pending(id)? {
            Some(pending) => {
                self.check_len(id, &pending.way, pending.filling.len + len)?;
                (pending, false)
            }
            None => {
                let way = self.prepare_datagram(id, len, send)?;
                if self.datagrams.pending >= PENDING_MAX {
                    return Err(Error::NoBuffers);
                }
                let filling = Filling::new(cx)?;
                (Box::new(Pending { way, filling, share: None }), true)
            }
        };
        add(self, &mut pending, first, cx)?;
        let socket = self.socket_mut(id)?;
        let more = send.more || socket.options.datagram.cork;
        socket.datagrams_mut()?.pending = Some(pending);
        self.datagrams.pending += 1;
        if !more {
            self.push_datagram(id, cx)?;
        }
        Ok(len)
    }

    /// Takes the pending datagram from its socket.
    pub(super) fn take_pending(&mut self, id: SocketId) -> Result<Option<Box<Pending>>, Error> {
        let pending = self.socket_mut(id)?.datagrams_mut()?.pending.take();
        self.datagrams.pending -= usize::from(pending.is_some());
        Ok(pending)
    }
}
