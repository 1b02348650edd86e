//! Datagrams sent without a copy (`MSG_ZEROCOPY`): the device reads the bytes in place.
//!
//! # Theory of operation
//!
//! Datagrams are simpler than streams ([`crate::socket::Sockets::send_lent`]). A call is a
//! datagram, or a super-packet, whose packet holds the loans. When the last packet made of it is
//! dropped, the call is reported. A call without bytes has a number too, and is
//! reported at once. Calls that add to a pending datagram share a notice; one that adds no bytes
//! has no number. A failed call has no number, and its loans are returned. There is one
//! exception: a call that fails because its bytes cannot be segmented as asked has a number, and is
//! reported as if it had been sent.
//!
//! A call whose bytes are segmented into datagrams may have more bytes than one super-packet takes,
//! if its caller uses [`crate::socket::Sockets::send_lent_datagrams`]. It is sent as several
//! super-packets of whole datagrams, and is reported once.
//!
//! A datagram has at most [`LENT_RANGES_MAX`] ranges of memory. A pending datagram takes up to
//! [`WAITING_RANGES_MAX`], so that all other bytes can be copied into frames behind them. Ranges
//! beyond that are copied, as is everything behind the first copied byte, and the notice reports
//! the copy. While as many groups lend as may, everything is copied.
//!
//! Numbers and notices follow Linux, which however copies datagrams that are larger than the MTU or
//! pending.

use super::super::lending::LentCall;
use super::super::shares::Borrower;
use super::super::{Error, SocketId, Sockets};
use super::cork::Pending;
use super::filling::Filling;
use super::send::{SendTo, Way};
use crate::gso::UDP_SEGMENTS_MAX;
use crate::stack::Context;
use crate::wire::{ipv4, udp};
use core::cell::Cell;
use towpath_packet::Piece;
use towpath_packet::packet::PIECES_MAX;
use towpath_packet::pool::LARGE_FRAME_BYTES;

/// Maximum number of lent ranges of a datagram (Linux's `MAX_SKB_FRAGS`).
pub const LENT_RANGES_MAX: usize = 17;
/// Maximum number of lent ranges of a pending datagram: the packet still has room for large frames
/// with all other bytes.
const WAITING_RANGES_MAX: usize = PIECES_MAX - (u16::MAX as usize).div_ceil(LARGE_FRAME_BYTES);
/// Maximum UDP payload over IPv4, which is less than over IPv6.
const PAYLOAD_MAX: usize = u16::MAX as usize - ipv4::HEADER_LEN - udp::HEADER_LEN;

impl Sockets {
    /// [`Sockets::send_datagram`] with `len` lent bytes. `lend` makes a loan of at most the given
    /// number of the next bytes, in one range of memory, and returns `None` when no descriptor is
    /// free. The error queue reports when the bytes are returned.
    ///
    /// # Errors
    /// The errors of [`Sockets::send_datagram`]; [`Error::MessageSize`] for more than
    /// [`LENT_RANGES_MAX`] ranges; [`Error::NoBuffers`] at a limit of
    /// [`LentLimits`](crate::socket::LentLimits). The loans are then returned, and the call has no
    /// number.
    pub fn send_lent_datagram(
        &mut self,
        id: SocketId,
        len: usize,
        send: &SendTo,
        lend: impl FnMut(usize, Borrower) -> Option<Piece>,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        self.watching((id, send.term, cx.now), lend, |sockets, lend| {
            sockets.lend_to_datagram((id, len), send, lend, cx)
        })
    }

    /// [`Sockets::send_lent_datagram`] without limits on bytes and ranges, if the bytes are
    /// segmented into datagrams. They are sent as several super-packets of whole datagrams, which
    /// are one call with one number. `lend` also gets the offset of the next byte. Returns how many
    /// bytes were sent. If fewer than `total`, the caller lets packets leave and calls again with
    /// the same `call` for the rest. Such a later call sends nothing if an error is pending, and
    /// leaves the error for the next call.
    pub fn send_lent_datagrams(
        &mut self,
        id: SocketId,
        call: &mut LentCall,
        total: usize,
        send: &SendTo,
        mut lend: impl FnMut(usize, usize, Borrower) -> Option<Piece>,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let at = Cell::new(0);
        let lend = |most, borrower| {
            let piece = lend(at.get(), most, borrower)?;
            at.set(at.get() + piece.len());
            Some(piece)
        };
        self.watching((id, send.term, cx.now), lend, |sockets, lend| {
            sockets.lend_to_datagrams((id, total), call, send, (lend, &at), cx)
        })
    }

    /// Most bytes that one super-packet takes as whole datagrams of the segment size; no limit if
    /// the payload is not segmented or waits for more data.
    pub fn datagrams_max(&self, id: SocketId, send: &SendTo) -> Result<usize, Error> {
        let size = usize::from(self.segment_size(id, send)?);
        if size == 0 || self.waits_for_more(id, send)? {
            return Ok(usize::MAX);
        }
        Ok(size * UDP_SEGMENTS_MAX.min(PAYLOAD_MAX / size).max(1))
    }

    fn lend_to_datagrams(
        &mut self,
        (id, total): (SocketId, usize),
        call: &mut LentCall,
        send: &SendTo,
        (mut lend, at): (impl FnMut(usize, Borrower) -> Option<Piece>, &Cell<usize>),
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        if self.waits_for_more(id, send)? {
            return self.lend_to_datagram((id, total), send, lend, cx);
        }
        if call.share.is_some() && self.has_error(id) {
            return Ok(0);
        }
        let most = self.datagrams_max(id, send)?;
        let way = self.prepare_datagram(id, total.min(most), send)?;
        let (cuts, mut sent) = (way.segment_size() > 0, 0);
        loop {
            let part = (total - sent).min(most);
            match self.lend_packet((id, part, total), call, &way, (&mut lend, cuts), cx) {
                Ok(count) => sent += count,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => return Ok(sent),
            }
            if sent == total || !self.has_room(id) {
                return Ok(sent);
            }
            at.set(sent);
        }
    }

    fn lend_to_datagram(
        &mut self,
        (id, len): (SocketId, usize),
        send: &SendTo,
        mut lend: impl FnMut(usize, Borrower) -> Option<Piece>,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        if self.waits_for_more(id, send)? {
            let add = |sockets: &mut Self, pending: &mut Pending, first, cx: &mut Context<'_>| {
                sockets.lend_to_waiting((id, len, first), pending, &mut lend, cx)
            };
            return self.append_datagram(id, len, send, add, cx);
        }
        let way = self.prepare_datagram(id, len, send)?;
        self.lend_packet((id, len, len), &mut LentCall::default(), &way, (&mut lend, false), cx)
    }

    /// Sends a packet with the next `len` bytes of a call of `total`; if `cuts`, with as many whole
    /// datagrams as its ranges have room for. Returns how many bytes.
    fn lend_packet(
        &mut self,
        (id, len, total): (SocketId, usize, usize),
        call: &mut LentCall,
        way: &Way,
        (lend, cuts): (&mut impl FnMut(usize, Borrower) -> Option<Piece>, bool),
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let charged = total + udp::HEADER_LEN;
        let (share, begins) = match call.share.take() {
            Some(share) => (share, false),
            None => (self.join(id, charged, None)?, true),
        };
        let mut filling = Filling::new(cx)?;
        while filling.len() < len && (!cuts || filling.range_count() < LENT_RANGES_MAX) {
            let piece = share.lend(len - filling.len(), lend).ok_or(Error::NoBuffers)?;
            if share.copies {
                piece.mark_copied();
                filling.gather_piece(piece, cx)?;
            } else {
                filling.push_lent(piece, LENT_RANGES_MAX).map_err(|_| Error::MessageSize)?;
            }
        }
        if filling.len() < len && filling.truncate_to_whole(way.segment_size()) == 0 {
            return Err(Error::MessageSize);
        }
        let len = filling.len();
        if begins {
            self.commit(id, share.group, charged);
        }
        way.check_segments(len)?;
        if !share.copies {
            cx.ledger.lend(len);
        }
        self.dispatch(id, filling.finish()?, way, cx)?;
        call.share = Some(share);
        Ok(len)
    }

    /// Lends a call's bytes to a pending datagram, and copies what cannot be lent.
    fn lend_to_waiting(
        &mut self,
        (id, len, first): (SocketId, usize, bool),
        pending: &mut Pending,
        lend: &mut impl FnMut(usize, Borrower) -> Option<Piece>,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        // The first call is charged for the UDP header too: so one without bytes has a number.
        let charged = if first { len + udp::HEADER_LEN } else { len };
        if charged == 0 {
            return Ok(());
        }
        let group = pending.share.as_ref().map(|share| share.group);
        if group.is_some_and(|group| !self.lendings.fits(group, charged)) {
            return Err(Error::NoBuffers);
        }
        let share = self.join(id, charged, group)?;
        let mut left = len;
        while left > 0 {
            let piece = share.lend(left, lend).ok_or(Error::NoBuffers)?;
            left -= piece.len();
            let ranges_max = if share.copies { 0 } else { WAITING_RANGES_MAX };
            if let Err(piece) = pending.filling.push_lent(piece, ranges_max) {
                piece.mark_copied();
                pending.filling.gather_piece(piece, cx)?;
            }
        }
        self.commit(id, share.group, charged);
        pending.share.get_or_insert(share);
        Ok(())
    }
}
