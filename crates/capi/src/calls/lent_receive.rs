//! Receiving without a copy: messages whose pieces stay in place until the program returns them.
//!
//! A call that hands out pieces names them with a token; `towpath_return` returns all pieces of
//! that call. Sockets and stack bound how much a program can hold. Each token stands for a part of
//! that, so the number of tokens is bounded, too.

use super::link;
use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::control::{Control, Received};
use crate::memory::pointers::Lending;
use std::task::Waker;
use std::time::Duration;
use towpath::layers::net::socket::{Error, ReadMost, Readiness};
use towpath::layers::packet::packet::HEADER_BYTES;

/// Supported flags of the call.
const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;

/// `TOWPATH_HEADERS_MAX` of `towpath.h`.
const _: () = assert!(HEADER_BYTES == 256);

impl Instance {
    /// True if messages of the socket begin with headers outside of pieces; false if there is no
    /// such socket.
    pub(crate) fn reads_headers(&self, fd: i32) -> bool {
        self.lock().reads_headers(fd)
    }

    /// Receives without a copy: up to `lending.pieces` pieces. Calls `piece` with the bytes of
    /// each, and returns the token for their return, which is zero if there are none. Headers
    /// outside of pieces are copied into `lending.room`; the last number is their size.
    ///
    /// # Errors
    /// `EMSGSIZE` if the room is too small for some headers.
    pub(crate) fn receive_lent(
        &self,
        fd: i32,
        mut lending: Lending<'_>,
        flags: i32,
        piece: &mut dyn FnMut(&[u8]),
    ) -> Outcome<(Received, u64, usize)> {
        if flags & !FLAGS != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let timeout = self.lock().timeout(fd, flags, false)?;
        self.block_on(fd, timeout, |state| state.lend_received(fd, &mut lending, timeout, piece))
    }

    /// Takes back the pieces of a call, and wakes the tasks that wait for that.
    pub fn give_back(&self, token: u64) -> Outcome<()> {
        self.call(|state| {
            let known = state.lent_pieces.give_back(token);
            state.crowded.drain(..).for_each(Waker::wake);
            known.then_some(()).ok_or(Errno::INVAL)
        })
    }
}

impl State {
    /// Makes `waker` wake when the program returns pieces. False if the program holds none, so that
    /// this would never happen.
    pub(crate) fn wait_for_return(&mut self, waker: &Waker) -> bool {
        let holds = self.engine.protocols.handed_out() > 0;
        if holds && !self.crowded.iter().any(|other| other.will_wake(waker)) {
            self.crowded.push(waker.clone());
        }
        holds
    }

    /// True if messages of the socket begin with headers outside of pieces.
    pub(crate) fn reads_headers(&self, fd: i32) -> bool {
        let Ok(id) = self.id(fd) else { return false };
        let is_v4 = self.files.socket(fd).is_ok_and(|file| file.domain == libc::AF_INET);
        let packet = self.engine.protocols.packet_options(id).is_some_and(|own| !own.payload_only);
        packet || is_v4 && self.engine.protocols.raw_options(id).is_some()
    }

    /// Receives like [`Instance::receive_lent`] for a call with this timeout. [`Errno::AGAIN`] if
    /// it has to wait.
    pub(crate) fn lend_received(
        &mut self,
        fd: i32,
        lending: &mut Lending<'_>,
        timeout: Option<Duration>,
        piece: &mut dyn FnMut(&[u8]),
    ) -> Outcome<(Received, u64, usize)> {
        let Lending { room, pieces, control } = lending;
        if room.as_ref().is_some_and(|room| room.len() < HEADER_BYTES) {
            return Err(Errno(libc::EMSGSIZE));
        }
        let most = ReadMost { bytes: usize::MAX, pieces: *pieces, private: true };
        let mut control = Control::new(control);
        let with = (room.is_some(), timeout);
        let (mut received, token) = self.receive_lent(fd, &most, &mut control, with)?;
        let headers = &self.lent_pieces.headers;
        if let Some(room) = room {
            room[..headers.len()].copy_from_slice(headers);
        }
        let pieces = self.lent_pieces.pieces(token).iter();
        pieces.for_each(|held| piece(held.piece().bytes().unwrap_or_default()));
        (received.control, received.flags) = (control.len, control.flags);
        Ok((received, token, headers.len()))
    }

    fn receive_lent(
        &mut self,
        fd: i32,
        most: &ReadMost,
        control: &mut Control<'_>,
        (with_headers, timeout): (bool, Option<Duration>),
    ) -> Outcome<(Received, u64)> {
        let file = self.files.socket(fd)?;
        let (id, datagram) = (file.id, file.datagram);
        let (place, mut pieces) = self.lent_pieces.begin();
        let mut headers = std::mem::take(&mut self.lent_pieces.headers);
        headers.clear();
        let mut received = Received::default();
        let outcome = self.with(|sockets, cx| {
            if !datagram {
                received.len = sockets.receive_lent(id, most, &mut pieces, cx)?;
                return Ok(None);
            }
            let arrived = match with_headers {
                true => sockets.receive_frame_lent(id, most, (&mut headers, &mut pieces), cx)?,
                false => sockets.receive_datagram_lent(id, most, &mut pieces, cx)?,
            };
            (received.len, received.source) =
                (arrived.len, Some(link::source(arrived.from, arrived.link)));
            Ok(Some(arrived))
        });
        let token = self.lent_pieces.end(place, pieces);
        self.lent_pieces.headers = headers;
        match outcome {
            Ok(Some(arrived)) => self.write_control(fd, &arrived, control)?,
            Ok(None) => self.write_unread(fd, control)?,
            // As with a copy, the end of receiving ends a wait for datagrams.
            Err(Error::WouldBlock) if datagram && timeout != Some(Duration::ZERO) => {
                if !self.engine.protocols.readiness(id).contains(Readiness::READ_HUP) {
                    return Err(Errno::AGAIN);
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok((received, token))
    }
}
