//! Datagrams that are put together of several calls (`MSG_MORE`, `UDP_CORK`).
//!
//! The first call says where the datagram goes and how; what later calls say of that is passed
//! over, as in Linux. A call that fails loses all that waits. What the calls lend is in front of
//! what they copy: `lending` says when.
//!
//! Bound: [`PENDING_MAX`] datagrams of all sockets, each of which is no longer than one can be.

use super::super::frames::{frame_to_send, packet_to_send};
use super::super::lending::Share;
use super::super::{Error, SocketId, Sockets};
use super::send::{SendTo, Way};
use crate::stack::Context;
use alloc::boxed::Box;
use towpath_packet::pool::Frame;
use towpath_packet::{Ledger, Packet, Piece, Site};

/// Most sockets with a datagram that waits for more: 4 MiB of frames.
pub const PENDING_MAX: usize = 64;
/// Bytes in whole numbers of which lent memory is charged.
const LENT_PAGE: usize = 4096;

/// Bytes that are being put together: lent ones first, then those in frames.
pub(super) struct Filling {
    packet: Packet,
    /// A frame that has room, and how much of it is used.
    open: Option<(Frame, usize)>,
    /// Bytes were put into frames.
    copies: bool,
    len: usize,
    /// Bytes that the send buffer is charged.
    charge: usize,
}

/// A datagram that waits for more.
pub(super) struct Pending {
    way: Way,
    pub(super) filling: Filling,
    /// Keeps the group of the calls that lent, which are told of together.
    pub(super) share: Option<Share>,
}

impl Filling {
    /// No bytes yet.
    pub(super) fn new(cx: &mut Context<'_>) -> Result<Self, Error> {
        let packet = packet_to_send(cx.memory).ok_or(Error::NoBuffers)?;
        Ok(Self { packet, open: None, copies: false, len: 0, charge: 0 })
    }

    /// Copies `buffers`, one after the other; `expected` bytes are to come from now on, or more.
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

    /// Copies a piece; much may come behind it.
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

    /// Adds a piece as it is, if there are less than `most`, and only such before. Hands it back
    /// otherwise.
    pub(super) fn push_lent(&mut self, piece: Piece, most: usize) -> Result<(), Piece> {
        if self.copies || self.packet.piece_count() >= most {
            return Err(piece);
        }
        let len = piece.len();
        self.packet.push_piece(piece)?;
        self.len += len;
        // As in Linux a byte costs the page that it is in.
        self.charge += len.next_multiple_of(LENT_PAGE);
        Ok(())
    }

    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Ranges of lent memory, if nothing was copied.
    pub(super) fn range_count(&self) -> usize {
        self.packet.piece_count()
    }

    /// Leaves as many whole datagrams of `size` as there are of lent bytes; returns how many bytes.
    pub(super) fn truncate_to_whole(&mut self, size: usize) -> usize {
        self.len -= self.len.checked_rem(size).unwrap_or(self.len);
        self.packet.truncate(self.len);
        self.len
    }

    /// The packet with all bytes, and what the send buffer is charged for it.
    pub(super) fn finish(mut self) -> Result<(Packet, usize), Error> {
        self.close()?;
        Ok((self.packet, self.charge))
    }

    /// Puts `len` bytes into frames, which `read` copies there; `expected` bytes are to come from
    /// now on, or more.
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
    /// True if a datagram waits for more.
    pub fn has_pending_datagram(&self, id: SocketId) -> bool {
        let socket = self.socket(id);
        socket.and_then(|s| s.datagrams()).is_ok_and(|datagrams| datagrams.pending.is_some())
    }

    /// Sends the datagram that waits for more, if there is one.
    pub fn push_datagram(&mut self, id: SocketId, cx: &mut Context<'_>) -> Result<(), Error> {
        let Some(pending) = self.take_pending(id)? else { return Ok(()) };
        let Pending { way, filling, share } = *pending;
        way.check_segments(filling.len)?;
        let sent = self.dispatch(id, filling.finish()?, &way, cx);
        // The calls that lent may be told from now on.
        drop(share);
        sent
    }

    /// Adds a call's `len` bytes to the datagram that waits, or begins one; sends it if no more
    /// follows. `add` is told whether the call is the first.
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

    /// Takes the datagram that waits away from its socket.
    pub(super) fn take_pending(&mut self, id: SocketId) -> Result<Option<Box<Pending>>, Error> {
        let pending = self.socket_mut(id)?.datagrams_mut()?.pending.take();
        self.datagrams.pending -= usize::from(pending.is_some());
        Ok(pending)
    }
}
