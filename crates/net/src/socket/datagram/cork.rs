//! Datagrams made by several calls (`MSG_MORE`, `UDP_CORK`).
//!
//! The first call sets the destination and options; later calls' are ignored (udp(7), `UDP_CORK`).
//! A call that fails drops the whole pending datagram. Lent bytes precede copied bytes; `lending`
//! explains when bytes are lent.
//!
//! Bound: [`PENDING_MAX`] pending datagrams of all sockets, each of at most the maximum datagram
//! size.

use super::super::shares::Share;
use super::super::{Error, SocketId, Sockets};
use super::filling::Filling;
use super::send::{SendTo, Way};
use crate::stack::Context;
use alloc::boxed::Box;

/// Maximum number of sockets with a pending datagram: 4 MiB of frames.
pub const PENDING_MAX: usize = 64;

/// Datagram that waits for more data.
pub(super) struct Pending {
    way: Way,
    pub(super) filling: Filling,
    /// Keeps the group of the calls that lent alive; they are reported together.
    pub(super) share: Option<Share>,
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
        way.check_segments(filling.len())?;
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
                self.check_len(id, &pending.way, pending.filling.len() + len)?;
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
