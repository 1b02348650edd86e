//! Calls on datagram sockets, including raw ones: `sendmsg`, `recvmsg` and their short forms, with
//! the control messages of Linux's UDP.

use super::{lending, link};
use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::address;
use crate::memory::control::{self, Control, Received};
use crate::memory::pointers::Ranges;
use std::net::IpAddr;
use std::time::Duration;
use towpath::layers::net::socket::{
    Error, Family, Notice, Readiness, ReceivedDatagram, SendTo, SocketId,
};
use towpath::layers::net::wire::Protocol;

impl Instance {
    /// True if the descriptor is a datagram socket.
    pub fn is_datagram(&self, fd: i32) -> bool {
        self.lock().files.socket(fd).is_ok_and(|file| file.datagram)
    }

    /// Receives one datagram, or one error of the error queue (`MSG_ERRQUEUE`).
    pub(crate) fn receive_datagram(
        &self,
        fd: i32,
        buffers: &mut [&mut [u8]],
        control: &mut Control<'_>,
        flags: i32,
    ) -> Outcome<Received> {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.receive_error(fd, buffers, control);
        }
        let timeout = self.lock().timeout(fd, flags, false)?;
        let waits = timeout != Some(Duration::ZERO);
        self.block_on(fd, timeout, |state| {
            state.receive_datagram(fd, buffers, control, (flags, waits))
        })
    }

    /// Takes a notice from the error queue. Never waits for one.
    fn receive_error(
        &self,
        fd: i32,
        buffers: &mut [&mut [u8]],
        control: &mut Control<'_>,
    ) -> Outcome<Received> {
        self.call(|state| {
            let id = state.id(fd)?;
            let taken = state.with(|sockets, cx| sockets.take_notice_into(id, buffers, cx.ledger));
            let (notice, copied, len) = taken?;
            if copied < len {
                control.flags |= libc::MSG_TRUNC;
            }
            state.tell(fd, &notice, control)?;
            let source = match notice {
                Notice::Failed(failed) => Some(failed.remote.into()),
                _ => None,
            };
            let flags = control.flags;
            Ok(Received { len: copied, control: control.len, flags, source })
        })
    }

    /// Sends one datagram, or one super-packet, to `address` or to the socket's peer, with a copy.
    pub(crate) fn send_datagram(
        &self,
        fd: i32,
        buffers: &[&[u8]],
        flags: i32,
        address: Option<&[u8]>,
        control: &[u8],
    ) -> Outcome<usize> {
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        self.send_one(fd, len, (flags, address, control), |state, id, send| {
            Ok(state.with(|sockets, cx| sockets.send_datagram(id, buffers, send, cx))?)
        })
    }

    /// Sends one datagram like [`Instance::send_datagram`], but lends the memory.
    pub(crate) fn send_lent_datagram(
        &self,
        fd: i32,
        ranges: &Ranges,
        flags: i32,
        address: Option<&[u8]>,
        control: &[u8],
    ) -> Outcome<usize> {
        let term = lending::asked_term(control)?;
        self.send_one(fd, ranges.len(), (flags, address, control), |state, id, send| {
            let send = SendTo { term, ..*send };
            Ok(state.with_loans(|sockets, loans, cx| {
                let lend = lending::from(ranges, 0, loans);
                sockets.send_lent_datagram(id, ranges.len(), &send, lend, cx)
            })?)
        })
    }

    /// Checks a call that sends `len` bytes, and runs `act` to send them.
    fn send_one(
        &self,
        fd: i32,
        len: usize,
        (flags, address, control): (i32, Option<&[u8]>, &[u8]),
        mut act: impl FnMut(&mut State, SocketId, &SendTo) -> Outcome<usize>,
    ) -> Outcome<usize> {
        let (timeout, send) = {
            let mut state = self.lock();
            let send = state.datagram_to(fd, len, (flags, address, control))?;
            (state.timeout(fd, flags, true)?, send)
        };
        self.block_on(fd, timeout, |state| {
            let id = state.id(fd)?;
            act(state, id, &send)
        })
    }
}

impl State {
    /// Receives a datagram if there is one. For a call that `waits`, the end of receiving is an
    /// empty datagram.
    pub(crate) fn receive_datagram(
        &mut self,
        fd: i32,
        buffers: &mut [&mut [u8]],
        control: &mut Control<'_>,
        (flags, waits): (i32, bool),
    ) -> Outcome<Received> {
        let (id, peek) = (self.id(fd)?, flags & libc::MSG_PEEK != 0);
        let mut received = Received::default();
        match self.with(|sockets, cx| sockets.receive_datagram(id, buffers, peek, cx.ledger)) {
            Ok(datagram) => {
                self.write_control(fd, &datagram, control)?;
                let all = flags & libc::MSG_TRUNC != 0;
                received.len = if all { datagram.len } else { datagram.copied };
                if datagram.copied < datagram.len {
                    control.flags |= libc::MSG_TRUNC;
                }
                received.source = Some(link::source(datagram.from, datagram.link));
            }
            // As in Linux, the end of receiving only ends a wait.
            Err(Error::WouldBlock)
                if waits && self.engine.protocols.readiness(id).contains(Readiness::READ_HUP) => {}
            Err(error) => return Err(error.into()),
        }
        (received.control, received.flags) = (control.len, control.flags);
        Ok(received)
    }

    /// Sends a datagram if there is room.
    pub(crate) fn send_datagram(
        &mut self,
        fd: i32,
        buffers: &[&[u8]],
        how: (i32, Option<&[u8]>, &[u8]),
    ) -> Outcome<usize> {
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        let (id, send) = (self.id(fd)?, self.datagram_to(fd, len, how)?);
        Ok(self.with(|sockets, cx| sockets.send_datagram(id, buffers, &send, cx))?)
    }

    /// How to send `len` bytes, from the arguments of a call.
    fn datagram_to(
        &mut self,
        fd: i32,
        len: usize,
        (flags, address, control): (i32, Option<&[u8]>, &[u8]),
    ) -> Outcome<SendTo> {
        let id = self.id(fd)?;
        self.engine.protocols.bind_by_itself(id)?;
        let peer = self.engine.protocols.remote(id).ok();
        let pending = self.engine.protocols.has_pending_datagram(id);
        let raw = self.engine.protocols.is_raw(id);
        let family = self.family(fd)?;
        if let Some(own) = self.packet(fd) {
            return State::send_frame_to(&own, address);
        }
        if len > usize::from(u16::MAX) {
            return Err(Errno(libc::EMSGSIZE));
        }
        // While a datagram waits for more data, a further destination is ignored, as in Linux. IPv6
        // checks it nevertheless.
        let to = match address {
            _ if pending && family == Family::V4 => None,
            Some(address) if raw && family == Family::V6 => address::parse_raw(address)?,
            Some(address) => address::parse_destination(address, family)?,
            None => None,
        };
        let to = to.filter(|_| !pending);
        if !raw && to.is_some_and(|to| to.port() == 0) {
            return Err(Errno::INVAL);
        }
        let over_v4 = to.or(peer).is_some_and(|to| to.ip().to_canonical().is_ipv4());
        // As in Linux, UDP over IPv6 accepts `MSG_OOB`, although it has no urgent data.
        if (over_v4 || raw) && flags & libc::MSG_OOB != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let more = flags & libc::MSG_MORE != 0;
        let mut send = SendTo { to, more, ..SendTo::default() };
        if !pending {
            control::datagram::parse(control, over_v4, &mut send)?;
        }
        Ok(send)
    }

    /// Makes a raw socket of IP packets.
    pub(crate) fn raw_socket(
        &mut self,
        family: Family,
        domain: i32,
        kind: i32,
        protocol: i32,
    ) -> Outcome<i32> {
        let protocol = u8::try_from(protocol).map_err(|_| Errno::INVAL)?;
        let id = self.engine.protocols.raw(family, Protocol(protocol))?;
        self.add_socket(id, domain, kind)
    }

    pub(crate) fn write_control(
        &self,
        fd: i32,
        datagram: &ReceivedDatagram,
        control: &mut Control<'_>,
    ) -> Outcome<()> {
        let file = self.files.socket(fd)?;
        if file.control_wanted.dropped {
            // As in Linux, only after a packet was lost.
            let dropped = datagram.dropped;
            if dropped > 0 {
                control.push(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &dropped.to_ne_bytes());
            }
        }
        let source = self.engine.protocols.stack().source_for(datagram.from.ip().to_canonical());
        let own = match source {
            Some(IpAddr::V4(own)) => Some(own),
            _ => None,
        };
        control::datagram::push_datagram(control, &file.control_wanted, datagram, own);
        Ok(())
    }
}
