//! The payload of a datagram, gathered from the bytes and pieces of one or several calls.

use super::super::Error;
use super::super::frames::{frame_to_send, packet_to_send};
use crate::stack::Context;
use towpath_packet::pool::Frame;
use towpath_packet::{Ledger, Packet, Piece, Site};

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
        // Even one byte is charged a whole page: it keeps that page.
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
