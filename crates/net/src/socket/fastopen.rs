//! Data with a SYN (RFC 7413): `sendto` with `MSG_FASTOPEN`, and `connect` that waits for data.

use super::stream::copy_in;
use super::{Error, Phase, Progress, SendFlags, SocketId, Sockets};
use crate::stack::Context;
use crate::tcp::fastopen::CLIENT;
use crate::tcp::{Connection, State};
use crate::time::Instant;
use core::net::SocketAddr;

impl Sockets {
    /// Ends `connect` with success; the SYN goes with the first data.
    pub(super) fn defer(&mut self, id: SocketId, remote: SocketAddr) -> Result<(), Error> {
        let socket = self.socket_mut(id)?;
        socket.deferred = true;
        socket.progress = Progress::Connecting;
        socket.remote = Some(remote);
        Ok(())
    }

    /// State of the socket's connection. A socket whose SYN waits for data is in SYN-SENT
    /// (`fastopen/client/blocking-connect-bypass.pkt`).
    pub fn state(&self, id: SocketId) -> State {
        let none = if self.is_deferred(id) { State::SynSent } else { State::Closed };
        self.tcp(id).map_or(none, |connection| connection.state())
    }

    /// True if `connect` was called and the SYN waits for data.
    pub fn is_deferred(&self, id: SocketId) -> bool {
        self.socket(id).is_ok_and(|socket| socket.deferred)
    }

    /// Connects and sends as many of `bytes` as fit the SYN; returns how many. Returns `None` if
    /// the connection is established: the caller then sends all bytes as usual. `remote` may be
    /// omitted if [`Sockets::connect`] was called before.
    ///
    /// # Errors
    /// [`Error::Already`] while the handshake is in progress, then once the reason if it failed;
    /// and the errors of [`Sockets::connect`].
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

    /// Connects with the data that `append` puts into the new connection; returns what `append`
    /// returned, or `None` if the connection is established.
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
        let reported = socket.remote.filter(|_| socket.deferred);
        let reported = reported.map(|reported| super::to_family(reported, socket.family));
        let remote = reported.or(remote).ok_or(Error::Invalid)?;
        let connect = self.prepare(id, remote, true)?;
        let handle = self.begin(id, &connect, now)?;
        Ok(Some(self.stack.with_tcp(handle, now, append).unwrap_or(0)))
    }

    /// Says whether a caller waits to write more (`pending`). If so, the handshake's third segment
    /// waits briefly for that data.
    pub fn set_write_pending(&mut self, id: SocketId, pending: bool, now: Instant) {
        self.with_connection(id, now, |connection| connection.set_write_pending(pending));
    }
}
