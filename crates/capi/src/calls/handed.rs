//! Receiving without a copy: messages whose pieces stay where they are until they are returned.
//!
//! A call that hands out pieces names them by a token, and `towpath_return` gives all of that call
//! back. How much a program can hold is bounded by its sockets and by the stack; each token stands
//! for some of that, so there are no more tokens than that allows.

use super::link;
use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::control::{Control, Received};
use crate::memory::pointers::Lending;
use std::task::Waker;
use std::time::Duration;
use towpath::layers::net::socket::{Error, ReadMost, Readiness};
use towpath::layers::packet::packet::HEADER_BYTES;

/// Flags of the call that are known.
const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;

/// `TOWPATH_HEADERS_MAX` of `towpath.h`.
const _: () = assert!(HEADER_BYTES == 256);

impl Instance {
    /// As [`State::reads_headers`]; false if there is no such socket.
    pub(crate) fn reads_headers(&self, fd: i32) -> bool {
        self.lock().reads_headers(fd)
    }

    /// Receives what is there without copying it: at most so many pieces, told by `piece` as an
    /// address and a length, and the token to return them with, which is zero if there are none.
    /// Headers that are in no piece are copied into their room; the last number is how many bytes.
    ///
    /// # Errors
    /// `EMSGSIZE` if there is not enough room for any headers.
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

    /// Gives the pieces of a call back, which whoever waits for that hears of.
    pub fn give_back(&self, token: u64) -> Outcome<()> {
        self.call(|state| {
            let known = state.handed_out.give_back(token);
            state.crowded.drain(..).for_each(Waker::wake);
            known.then_some(()).ok_or(Errno::INVAL)
        })
    }
}

impl State {
    /// Has `waker` woken when the program returns something; false if it holds nothing, so that
    /// this would be never.
    pub(crate) fn wait_for_return(&mut self, waker: &Waker) -> bool {
        let holds = self.engine.protocols.handed_out() > 0;
        if holds && !self.crowded.iter().any(|other| other.will_wake(waker)) {
            self.crowded.push(waker.clone());
        }
        holds
    }

    /// True if what a socket receives begins with headers that are in no piece.
    pub(crate) fn reads_headers(&self, fd: i32) -> bool {
        let Ok(id) = self.id(fd) else { return false };
        let is_v4 = self.files.socket(fd).is_ok_and(|file| file.domain == libc::AF_INET);
        let packet = self.engine.protocols.packet_options(id).is_some_and(|own| !own.payload_only);
        packet || is_v4 && self.engine.protocols.raw_options(id).is_some()
    }

    /// As [`Instance::receive_lent`], for who waits so long; [`Errno::AGAIN`] if he has to.
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
        let headers = &self.handed_out.headers;
        if let Some(room) = room {
            room[..headers.len()].copy_from_slice(headers);
        }
        let pieces = self.handed_out.pieces(token).iter();
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
        let (place, mut pieces) = self.handed_out.begin();
        let mut headers = std::mem::take(&mut self.handed_out.headers);
        headers.clear();
        let mut received = Received::default();
        let outcome = self.with(|sockets, cx| {
            if !datagram {
                received.len = sockets.receive_lent(id, most, &mut pieces, cx)?;
                return Ok(None);
            }
            let told = match with_headers {
                true => sockets.receive_frame_lent(id, most, (&mut headers, &mut pieces), cx)?,
                false => sockets.receive_datagram_lent(id, most, &mut pieces, cx)?,
            };
            (received.len, received.source) = (told.len, Some(link::source(told.from, told.link)));
            Ok(Some(told))
        });
        let token = self.handed_out.end(place, pieces);
        self.handed_out.headers = headers;
        match outcome {
            Ok(Some(told)) => self.tell_datagram(fd, &told, control)?,
            Ok(None) => self.tell_left(fd, control)?,
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
