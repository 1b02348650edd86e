//! Data with a SYN (RFC 7413): `sendto` with `MSG_FASTOPEN`, and `connect` that waits for data.

use super::stream::copy_in;
use super::{Error, Phase, Progress, SendFlags, SocketId, Sockets};
use crate::stack::Context;
use crate::tcp::fastopen::CLIENT;
use crate::tcp::{Connection, State};
use crate::time::Instant;
use core::net::SocketAddr;

impl Sockets {
    /// `connect` is done for the caller; the SYN goes with the first data.
    pub(super) fn defer(&mut self, id: SocketId, remote: SocketAddr) -> Result<(), Error> {
        let socket = self.socket_mut(id)?;
        socket.deferred = true;
        socket.progress = Progress::Connecting;
        socket.remote = Some(remote);
        Ok(())
    }

    /// State of the socket's connection. One that waits for data to go with its SYN has sent it, as
    /// Linux sees it.
    pub fn state(&self, id: SocketId) -> State {
        let none = if self.is_deferred(id) { State::SynSent } else { State::Closed };
        self.tcp(id).map_or(none, |connection| connection.state())
    }

    /// True if `connect` waits for data to go with the SYN.
    pub fn is_deferred(&self, id: SocketId) -> bool {
        self.socket(id).is_ok_and(|socket| socket.deferred)
    }

    /// Connects and sends of `bytes` what may go with the SYN; returns how many, or `None` if the
    /// connection is open, so that all is to be sent as usual. `remote` may be left out if the
    /// socket was told by [`Sockets::connect`].
    ///
    /// # Errors
    /// [`Error::Already`] while a handshake goes on, then once why it failed; and those of
    /// [`Sockets::connect`].
    pub fn send_with_syn(
        &mut self,
        id: SocketId,
        remote: Option<SocketAddr>,
        bytes: &[u8],
        flags: SendFlags,
        cx: &mut Context<'_>,
    ) -> Result<Option<usize>, Error> {
        let (memory, ledger) = (&mut *cx.memory, cx.ledger);
        let sent = self.open_with(id, remote, cx.now, |connection| {
            let most = bytes.len().min(connection.syn_room());
            let sent = copy_in(connection, &bytes[..most], true, memory, ledger);
            if sent > 0 {
                connection.end_write(flags.more && sent == bytes.len(), flags.end_of_record);
                connection.mark_written();
            }
            sent
        })?;
        ledger.carry(sent.unwrap_or(0));
        Ok(sent)
    }

    /// Connects with what `append` gives to the new connection; returns what that returned, or
    /// `None` if the connection is open.
    pub(super) fn open_with(
        &mut self,
        id: SocketId,
        remote: Option<SocketAddr>,
        now: Instant,
        append: impl FnOnce(&mut Connection) -> usize,
    ) -> Result<Option<usize>, Error> {
        if self.stack.tcp_settings().fastopen & CLIENT == 0 {
            return Err(Error::NotSupported);
        }
        let socket = self.socket(id)?;
        match (&socket.phase, socket.progress) {
            (Phase::Idle, _) => {}
            (Phase::Connected(_), Progress::Connecting) => {
                return self.outcome(id, now).map(|()| None);
            }
            _ => return Err(Error::IsConnected),
        }
        let told = socket.remote.filter(|_| socket.deferred);
        let told = told.map(|told| super::to_family(told, socket.family));
        let remote = told.or(remote).ok_or(Error::Invalid)?;
        let connect = self.prepare(id, remote, true)?;
        let handle = self.begin(id, &connect, now)?;
        Ok(Some(self.stack.with_tcp(handle, now, append).unwrap_or(0)))
    }

    /// Somebody waits until he can write more (`pending`), or does not any longer: the third
    /// segment of a handshake that goes on waits a little for his data.
    pub fn set_write_pending(&mut self, id: SocketId, pending: bool, now: Instant) {
        self.with_connection(id, now, |connection| connection.set_write_pending(pending));
    }
}
