//! TCP flows that the host begins.

use super::{Flow, Phase};
use crate::flows::{Gateway, Io, Token};
use std::net::SocketAddr;
use towpath_io::reactor::Interest;
use towpath_io::socket::TcpSocket;
use towpath_net::stack::TcpHandle;

/// Ports tried for a connection to the program before giving up: with several workers, about one in
/// 256 keeps its worker.
const PORT_TRIES: u16 = 1024;
/// The port that follows the last one; ports below it are those of services.
const FIRST_PORT: u16 = 32_768;

impl Gateway {
    /// A connection to the host arrived: connects to the program.
    pub(crate) fn begin_inbound(
        &mut self,
        socket: TcpSocket,
        inside: SocketAddr,
        program: SocketAddr,
        io: &mut Io<'_>,
    ) {
        self.counters.tcp_in += 1;
        let Some(handle) = self.connect_program(inside, program, io) else {
            self.counters.tcp_refused += 1;
            return socket.reset();
        };
        let token = Token::Tcp(handle.key()).encode();
        if io.reactor.add(&socket, token, Interest::BOTH.and_urgent(), true).is_err() {
            self.counters.no_descriptor += 1;
            io.stack.with_tcp(handle, io.now, |connection| connection.abort());
            io.stack.tcp_release(handle, io.now);
            return socket.reset();
        }
        self.tcp.insert(Flow::new(handle, socket, Phase::ProgramConnecting, io.now));
        self.limit_first_window(handle, io);
        self.expected.connection_begins(io.now);
    }

    /// Connects to the program. The peer keeps its port unless that port is taken, which happens
    /// when several host addresses appear as one.
    fn connect_program(
        &mut self,
        inside: SocketAddr,
        program: SocketAddr,
        io: &mut Io<'_>,
    ) -> Option<TcpHandle> {
        (0..PORT_TRIES).find_map(|offset| {
            let port = inside.port().checked_add(offset).unwrap_or(FIRST_PORT + offset);
            let local = SocketAddr::new(inside.ip(), port);
            // With another port, the connection may belong to another worker.
            let is_alike = self.spread.is_alike(local, inside, program);
            is_alike.then(|| io.stack.tcp_connect(local, program, io.now).ok()).flatten()
        })
    }
}
