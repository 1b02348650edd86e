//! How TCP flows end: resets, connections that are over, and whether everything was passed on.

use super::Flow;
use crate::flows::{Gateway, Io};
use towpath_io::socket::TcpSocket;
use towpath_net::stack::{Stack, TcpHandle};
use towpath_net::tcp::ConnectionError;

impl Gateway {
    /// Returns true if everything that the program sent has been passed on, FINs included. The
    /// program has sent nothing on connections that are still being made.
    pub(crate) fn all_passed_on(&self, stack: &Stack) -> bool {
        let is_made = |flow: &Flow| {
            let connection = stack.tcp(flow.handle);
            connection.is_some_and(|connection| !connection.state().is_opening())
        };
        let mut flows = self.tcp.flows.iter().flatten();
        flows.all(|flow| flow.program_closed || !is_made(flow))
            && !self.newcomers.has_messages()
            && self.joined.all_passed_on()
            && self.joined_udp.all_passed_on()
    }

    /// The host reset the connection: resets both sides.
    pub(in crate::flows) fn abort(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        io.stack.with_tcp(handle, io.now, |connection| connection.abort());
        io.stack.tcp_release(handle, io.now);
        if let Some(flow) = self.tcp.remove(handle) {
            self.note_end(&flow, io.now);
            self.reset(flow.socket, io);
        }
    }

    /// The connection to the program is over. After an error both sides end at once; otherwise the
    /// flow lasts until the host has taken what the program sent.
    pub(super) fn on_closed(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let error = io.stack.tcp(handle).and_then(|connection| connection.error());
        if error.is_none()
            && let Some(flow) = self.tcp.get_mut(handle)
        {
            flow.over = true;
            return self.move_out(handle, io);
        }
        if let Some(flow) = self.tcp.remove(handle) {
            self.counters.tcp_refused += u64::from(error == Some(ConnectionError::Refused));
            self.note_end(&flow, io.now);
            self.reset(flow.socket, io);
        }
        io.stack.tcp_release(handle, io.now);
    }

    /// Everything that the program has sent was passed on: passes its FIN on, and ends the flow if
    /// the connection to the program is over.
    pub(super) fn end_out(&mut self, handle: TcpHandle, io: &mut Io<'_>) {
        let Some(flow) = self.tcp.get_mut(handle) else { return };
        let Some(connection) = io.stack.tcp(handle) else { return };
        if connection.peer_closed() && !flow.program_closed {
            flow.program_closed = true;
            if flow.socket.shutdown_write().is_err() {
                return self.abort(handle, io);
            }
        }
        if flow.over {
            if let Some(flow) = self.tcp.remove(handle) {
                self.note_end(&flow, io.now);
                self.lending.close(flow.socket, io.reactor, &mut self.counters.lent);
            }
            io.stack.tcp_release(handle, io.now);
        }
    }

    /// Resets the connection to the host.
    pub(super) fn reset(&mut self, socket: TcpSocket, io: &Io<'_>) {
        self.lending.reset(socket, io.reactor, &mut self.counters.lent);
    }
}
