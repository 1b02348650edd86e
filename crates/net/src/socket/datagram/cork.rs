//! Datagrams that are put together of several calls (`MSG_MORE`, `UDP_CORK`).
//!
//! The first call says where the datagram goes and how; what later calls say of that is passed
//! over, as in Linux. A call that fails loses all that waits.
//!
//! Bound: [`PENDING_MAX`] datagrams of all sockets, each of which is no longer than one can be.

use super::super::{Error, SocketId, Sockets};
use super::send::{SendTo, Way};
use crate::stack::Context;
use alloc::boxed::Box;
use towpath_packet::pool::{Frame, SMALL_FRAME_BYTES};
use towpath_packet::{Packet, Site};

/// Most sockets with a datagram that waits for more: 4 MiB of frames.
pub const PENDING_MAX: usize = 64;

/// Bytes that are being put into frames.
pub(super) struct Filling {
    packet: Packet,
    /// A frame that has room, and how much of it is used.
    open: Option<(Frame, usize)>,
    len: usize,
}

/// A datagram that waits for more.
pub(super) struct Pending {
    way: Way,
    filling: Filling,
}

impl Filling {
    /// No bytes yet.
    pub(super) fn new(cx: &mut Context<'_>) -> Result<Self, Error> {
        let packet = cx.memory.packet().ok_or(Error::NoBuffers)?;
        Ok(Self { packet, open: None, len: 0 })
    }

    /// Copies `buffers`, one after the other; `expected` bytes are to come from now on, or more.
    pub(super) fn gather(
        &mut self,
        buffers: &[&[u8]],
        expected: usize,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        let mut left = expected;
        for buffer in buffers {
            let mut rest = *buffer;
            while !rest.is_empty() {
                let (mut frame, used) = match self.open.take() {
                    Some(open) => open,
                    None => (frame(left, cx).ok_or(Error::NoBuffers)?, 0),
                };
                let count = rest.len().min(frame.len() - used);
                frame[used..used + count].copy_from_slice(&rest[..count]);
                cx.ledger.count(Site::SocketSend, count);
                rest = &rest[count..];
                left = left.saturating_sub(count);
                self.len += count;
                self.open = Some((frame, used + count));
                if used + count == self.open_len() {
                    self.close()?;
                }
            }
        }
        Ok(())
    }

    /// The packet with all bytes.
    pub(super) fn finish(mut self) -> Result<Packet, Error> {
        self.close()?;
        Ok(self.packet)
    }

    fn open_len(&self) -> usize {
        self.open.as_ref().map_or(0, |(frame, _)| frame.len())
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
        let len = pending.filling.len;
        pending.way.check_segments(len, usize::from(self.stack.mtu()))?;
        self.dispatch(id, pending.filling.finish()?, &pending.way, cx);
        Ok(())
    }

    /// Adds to the datagram that waits, or begins one; sends it if no more follows.
    pub(super) fn append_datagram(
        &mut self,
        id: SocketId,
        buffers: &[&[u8]],
        len: usize,
        send: &SendTo,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        if len > usize::from(u16::MAX) {
            return Err(Error::MessageSize);
        }
        let mut pending = match self.take_pending(id)? {
            Some(pending) => {
                self.check_len(id, &pending.way, pending.filling.len + len)?;
                pending
            }
            None => {
                let way = self.prepare_datagram(id, len, send)?;
                if self.datagrams.pending >= PENDING_MAX {
                    return Err(Error::NoBuffers);
                }
                Box::new(Pending { way, filling: Filling::new(cx)? })
            }
        };
        // More may come: large frames, so that the pieces are few.
        pending.filling.gather(buffers, usize::from(u16::MAX), cx)?;
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

/// A frame for so many bytes, or the next best.
fn frame(len: usize, cx: &mut Context<'_>) -> Option<Frame> {
    let memory = &mut *cx.memory;
    if len <= SMALL_FRAME_BYTES {
        memory.small.take().or_else(|| memory.large.take())
    } else {
        memory.large.take().or_else(|| memory.small.take())
    }
}
