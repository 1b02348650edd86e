//! Receiving and sending on streams, as `recv`, `send` and `sendto` do. Calls on datagram sockets
//! are passed on.

use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::address::{self, Given};
use crate::memory::control::Control;
use std::net::SocketAddr;
use towpath::layers::net::socket::{Error, Readiness, ReceiveFlags, SendFlags, SocketId};
use towpath::layers::net::time::Duration;

/// Supported flags of calls that receive.
const RECEIVE_FLAGS: i32 = libc::MSG_DONTWAIT
    | libc::MSG_PEEK
    | libc::MSG_TRUNC
    | libc::MSG_WAITALL
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC
    | libc::MSG_ERRQUEUE;

/// The result of connecting with data, with the number of bytes that went with the SYN.
pub(crate) enum Opening {
    /// The connection is open, or the send itself checks that.
    Open(usize),
    /// The handshake continues, and the caller does not wait for it.
    GoesOn(usize),
}

impl Instance {
    /// Receives into `buffers`, one after the other, as `recv(2)` does.
    pub fn receive(&self, fd: i32, buffers: &mut [&mut [u8]], flags: i32) -> Outcome<usize> {
        let timeout = {
            let state = self.lock();
            let id = state.id(fd)?;
            if state.files.socket(fd)?.datagram {
                drop(state);
                let mut control = Control::new(&mut []);
                let received = self.receive_datagram(fd, buffers, &mut control, flags);
                return received.map(|received| received.len);
            }
            if flags & libc::MSG_OOB != 0 {
                drop(state);
                return self.receive_urgent(id, buffers, flags & libc::MSG_PEEK != 0);
            }
            if flags & !RECEIVE_FLAGS != 0 {
                return Err(Errno(libc::EOPNOTSUPP));
            }
            if flags & libc::MSG_ERRQUEUE != 0 {
                // As in Linux, a call without room for control messages loses the notice.
                drop(state);
                return self.notice(fd).map(|_| 0);
            }
            state.engine.protocols.available(id)?;
            state.timeout(fd, flags, false)?
        };
        let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut received = 0;
        let outcome = self.block_on(fd, timeout, |state| {
            let id = state.id(fd)?;
            let low_water = state.engine.protocols.options(id)?.receive_low_water.min(wanted);
            let target = if flags & libc::MSG_WAITALL != 0 { wanted } else { low_water };
            let mut end = false;
            received += state.receive_some(id, buffers, received, flags, &mut end)?;
            if received < target && !end { Err(Errno::AGAIN) } else { Ok(()) }
        });
        match outcome {
            Err(error) if received == 0 => Err(error),
            _ => Ok(received),
        }
    }

    /// Reads the urgent byte (`MSG_OOB`). Never waits for one, as in Linux.
    fn receive_urgent(&self, id: SocketId, into: &mut [&mut [u8]], peek: bool) -> Outcome<usize> {
        let byte = self.lock().with(|sockets, cx| sockets.receive_urgent(id, peek, cx))?;
        let Some(byte) = byte else { return Ok(0) };
        let room = into.iter_mut().find_map(|buffer| buffer.first_mut());
        Ok(room.map_or(0, |place| {
            *place = byte;
            1
        }))
    }

    /// True if the next byte to read is urgent (`SIOCATMARK`).
    pub fn is_at_mark(&self, fd: i32) -> Outcome<bool> {
        let state = self.lock();
        let id = state.id(fd)?;
        Ok(state.engine.protocols.is_at_mark(id))
    }

    /// Discards up to `len` received bytes, as `recv(2)` does with `MSG_TRUNC` on a stream.
    pub fn discard(&self, fd: i32, len: usize, flags: i32) -> Outcome<usize> {
        let timeout = self.lock().timeout(fd, flags, false)?;
        self.block_on(fd, timeout, |state| {
            let (id, now) = (state.id(fd)?, state.now());
            Ok(state.engine.protocols.discard(id, len, now)?)
        })
    }

    /// Sends `buffers`, one after the other, as `send(2)` does, but never raises `SIGPIPE`.
    pub fn send(&self, fd: i32, buffers: &[&[u8]], flags: i32) -> Outcome<usize> {
        self.send_to(fd, buffers, flags, &[])
    }

    /// Sends a message as `sendmsg(2)` does: to an address, or with control messages.
    pub(crate) fn send_message(
        &self,
        fd: i32,
        buffers: &[&[u8]],
        flags: i32,
        address: Option<&[u8]>,
        control: &[u8],
    ) -> Outcome<usize> {
        if self.is_datagram(fd) {
            return self.send_datagram(fd, buffers, flags, address, control);
        }
        self.send_to(fd, buffers, flags, address.unwrap_or_default())
    }

    /// Sends as `sendto(2)` does: with `MSG_FASTOPEN` it connects to `address`.
    pub fn send_to(
        &self,
        fd: i32,
        buffers: &[&[u8]],
        flags: i32,
        address: &[u8],
    ) -> Outcome<usize> {
        if self.lock().files.socket(fd)?.datagram {
            let address = Some(address).filter(|address| !address.is_empty());
            return self.send_datagram(fd, buffers, flags, address, &[]);
        }
        let timeout = self.check_send(fd, flags)?;
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let mut open = |state: &mut State| state.send_with_syn(fd, buffers, flags, address);
        let sent = match self.open_with_data(fd, total, (timeout, flags), &mut open)? {
            Opening::Open(with_syn) => with_syn,
            Opening::GoesOn(with_syn) => return Ok(with_syn),
        };
        self.send_parts(fd, total, sent, (timeout, flags), |state, done| {
            let id = state.id(fd)?;
            state.send_some(id, buffers, done, flags)
        })
    }

    /// Checks a call that sends before its bytes are read. Returns how long it may wait.
    pub(crate) fn check_send(&self, fd: i32, flags: i32) -> Outcome<Option<Duration>> {
        let state = self.lock();
        let id = state.id(fd)?;
        if state.engine.protocols.is_listening(id) {
            return Err(Errno(libc::EPIPE));
        }
        state.timeout(fd, flags, true)
    }

    /// Sends `total` bytes, of which `sent` were sent before, in parts: `part` sends what fits into
    /// one buffer, and packets leave in between. Waits for room if the descriptor blocks.
    pub(crate) fn send_parts(
        &self,
        fd: i32,
        total: usize,
        mut sent: usize,
        (timeout, flags): (Option<Duration>, i32),
        mut part: impl FnMut(&mut State, usize) -> Outcome<usize>,
    ) -> Outcome<usize> {
        let waits = timeout != Some(Duration::ZERO);
        let mut waited = false;
        let outcome = self.block_on(fd, timeout, |state| {
            let id = state.id(fd)?;
            // As in Linux, a wait for room ends only when there is much room.
            if std::mem::replace(&mut waited, true) && !state.may_send(id) {
                return Err(Errno::AGAIN);
            }
            if waits && state.engine.protocols.is_connecting(id) {
                state.set_write_pending(fd, true);
            }
            loop {
                sent += part(state, sent)?;
                if sent >= total {
                    return Ok(());
                }
                // As in Linux, no part of an urgent write leaves before its end is known.
                if flags & libc::MSG_OOB == 0 {
                    state.send();
                }
            }
        });
        if (1..total).contains(&sent) {
            self.call(|state| state.id(fd).map(|id| state.engine.protocols.end_send(id)))?;
        }
        match outcome {
            Err(error) if sent == 0 => {
                if waits && [Errno::AGAIN, Errno::INTR].contains(&error) {
                    self.call(|state| state.set_write_pending(fd, false));
                }
                Err(error)
            }
            _ => Ok(sent),
        }
    }

    /// Connects, if a call that sends has to do that first: with data in the SYN, if that is
    /// possible. Waits for the result if the descriptor blocks.
    pub(crate) fn open_with_data(
        &self,
        fd: i32,
        total: usize,
        (timeout, flags): (Option<Duration>, i32),
        open: &mut dyn FnMut(&mut State) -> Outcome<Option<usize>>,
    ) -> Outcome<Opening> {
        if flags & libc::MSG_FASTOPEN == 0 && !self.is_deferred(fd) {
            return Ok(Opening::Open(0));
        }
        let waits = timeout != Some(Duration::ZERO);
        let mut pending = Errno(libc::EINPROGRESS);
        let mut begun = None;
        let outcome = self.block_on(fd, timeout, |state| {
            let (id, now) = (state.id(fd)?, state.now());
            if begun.is_some() {
                return match state.engine.protocols.outcome(id, now) {
                    Err(Error::Already) => Err(Errno::AGAIN),
                    outcome => Ok(outcome?),
                };
            }
            begun = match open(state) {
                Ok(None) => return Ok(()),
                Err(Errno(libc::EALREADY)) => {
                    pending = Errno(libc::EALREADY);
                    Some(0)
                }
                sent => sent?,
            };
            state.set_write_pending(fd, waits && begun < Some(total));
            Err(Errno::AGAIN)
        });
        let sent = begun.unwrap_or(0);
        match outcome {
            Err(error @ (Errno::AGAIN | Errno::INTR)) => {
                self.call(|state| state.set_write_pending(fd, false));
                let error = if error == Errno::AGAIN { pending } else { error };
                if sent > 0 { Ok(Opening::GoesOn(sent)) } else { Err(error) }
            }
            outcome => outcome.map(|()| Opening::Open(sent)),
        }
    }

    fn is_deferred(&self, fd: i32) -> bool {
        let state = self.lock();
        state.id(fd).is_ok_and(|id| state.engine.protocols.is_deferred(id))
    }
}

impl State {
    /// Receives available bytes, behind the first `done` bytes of `buffers`. Sets `end` if no more
    /// will come.
    fn receive_some(
        &mut self,
        id: SocketId,
        buffers: &mut [&mut [u8]],
        done: usize,
        flags: i32,
        end: &mut bool,
    ) -> Outcome<usize> {
        let peek = flags & libc::MSG_PEEK != 0;
        let (mut skip, mut count) = (done, 0);
        for buffer in buffers {
            if skip >= buffer.len() {
                skip -= buffer.len();
                continue;
            }
            let into = &mut buffer[core::mem::take(&mut skip)..];
            let how = ReceiveFlags { peek, offset: done + count };
            match self.with(|sockets, cx| sockets.receive(id, into, how, cx)) {
                Ok(0) => {
                    *end = true;
                    break;
                }
                Ok(received) => {
                    count += received;
                    if received < into.len() {
                        let how = ReceiveFlags { peek, offset: done + count };
                        *end = self.engine.protocols.ends_at_mark(id, how);
                        break;
                    }
                }
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }

    fn set_write_pending(&mut self, fd: i32, pending: bool) {
        let now = self.now();
        if let Ok(id) = self.id(fd) {
            self.engine.protocols.set_write_pending(id, pending, now);
        }
    }

    /// True if a call that waits to send should try again.
    fn may_send(&self, id: SocketId) -> bool {
        let ready = self.engine.protocols.readiness(id);
        let wanted = [Readiness::OUT, Readiness::ERR, Readiness::HUP];
        wanted.into_iter().any(|wanted| ready.contains(wanted))
    }

    /// The address to which a call that sends should connect, if it has one.
    pub(crate) fn destination(&self, fd: i32, address: &[u8]) -> Outcome<Option<SocketAddr>> {
        if address.is_empty() {
            return Ok(None);
        }
        match address::parse(address, self.family(fd)?)? {
            Given::Address(remote) => Ok(Some(remote)),
            Given::Unspecified => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    /// Connects, and sends the bytes that fit into the SYN.
    fn send_with_syn(
        &mut self,
        fd: i32,
        buffers: &[&[u8]],
        flags: i32,
        address: &[u8],
    ) -> Outcome<Option<usize>> {
        let remote = self.destination(fd, address)?;
        let id = self.id(fd)?;
        let how = SendFlags { more: flags & libc::MSG_MORE != 0, ..SendFlags::default() };
        let bytes = buffers.concat();
        Ok(self.with(|sockets, cx| sockets.send_with_syn(id, remote, &bytes, how, cx))?)
    }

    /// Sends what fits into one buffer, after the first `done` bytes of `buffers`.
    fn send_some(
        &mut self,
        id: SocketId,
        buffers: &[&[u8]],
        done: usize,
        flags: i32,
    ) -> Outcome<usize> {
        let mut skip = done;
        let mut rest = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let skipped = skip.min(buffer.len());
            skip -= skipped;
            rest.push(&buffer[skipped..]);
        }
        let how = send_flags(flags, done);
        Ok(self.with(|sockets, cx| sockets.send(id, &rest, how, cx))?)
    }
}

/// The flags of a call that sends, after its first `done` bytes.
pub(crate) fn send_flags(flags: i32, done: usize) -> SendFlags {
    SendFlags {
        more: flags & libc::MSG_MORE != 0,
        end_of_record: flags & libc::MSG_EOR != 0,
        continues: done > 0,
        urgent: flags & libc::MSG_OOB != 0,
    }
}
