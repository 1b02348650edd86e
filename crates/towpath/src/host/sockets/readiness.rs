//! Sources that event queues watch on a host: readiness of sockets, and the return of buffers.

use crate::host::lending::ticket::Ticket;
use crate::host::{Lend, Sending, TcpListener, TcpStream, UdpSocket};
use std::io;
use std::sync::Arc;
use std::task::Waker;
use towpath_io::events::{Interest, Readiness};
use towpath_net::socket;

/// A watched socket, which stays open as long as this exists.
pub(crate) enum Watched {
    Stream(TcpStream),
    Listener(TcpListener),
    Datagram(UdpSocket),
}

impl Watched {
    /// Returns which of the requested conditions hold now. `waker` is woken when there is something
    /// new.
    pub(crate) fn poll_ready(&self, interest: Interest, waker: &Waker) -> Readiness {
        let ready = match self {
            Self::Stream(stream) => poll_stream(stream, interest, waker),
            Self::Listener(listener) => listener.poll_ready(waker),
            Self::Datagram(socket) => socket.poll_ready(interest, waker),
        };
        Readiness {
            readable: ready.readable && interest.readable,
            writable: ready.writable && interest.writable,
            peer_closed: ready.peer_closed && interest.readable,
            ..ready
        }
    }
}

/// The return of a buffer.
pub(crate) struct Return(Result<Arc<Ticket>, bool>);

impl Return {
    pub(crate) fn of<B: Lend>(sending: &Sending<B>) -> Self {
        Self(sending.ticket())
    }

    /// Returns whether bytes were copied, if the buffer is back; otherwise `waker` is woken when it
    /// is.
    pub(crate) fn poll(&self, waker: &Waker) -> Option<bool> {
        match &self.0 {
            Ok(ticket) => ticket.watch(waker),
            Err(copied) => Some(*copied),
        }
    }
}

impl TcpStream {
    /// Returns why nothing more can be sent, if the connection is closed in both directions.
    /// Otherwise `waker` is woken when it is, or spuriously.
    pub(crate) fn poll_broken(&self, waker: &Waker) -> Option<io::Error> {
        poll_stream(self, Interest::NONE, waker).hangup.then(|| self.failure())
    }
}

/// Returns a stream's current readiness. `waker` is woken when there is something new.
fn poll_stream(stream: &TcpStream, interest: Interest, waker: &Waker) -> Readiness {
    let (host, queue) = stream.parts();
    let id = queue.id;
    let mut state = host.owner.core.lock();
    let entry = state.entry(id);
    entry.readers.add(waker);
    let tcp = state.engine.protocols.tcp(id);
    let is_opening = tcp.is_some_and(|connection| connection.state().is_opening());
    if is_opening {
        state.entry(id).writers.add(waker);
    }
    let ready = readiness(state.engine.protocols.readiness(id));
    drop(state);
    if interest.writable {
        queue.watch(waker);
    }
    let has_room = || {
        queue.room.has_room() || {
            queue.room.watch(waker);
            queue.room.has_room()
        }
    };
    // Writable means room in the socket's queue; only the worker depends on room in the stack.
    let writable = interest.writable && !is_opening && (ready.hangup || has_room());
    Readiness { writable, ..ready }
}

/// Converts the stack's readiness.
pub(in crate::host) fn readiness(ready: socket::Readiness) -> Readiness {
    Readiness {
        readable: ready.contains(socket::Readiness::IN),
        writable: ready.contains(socket::Readiness::OUT),
        peer_closed: ready.contains(socket::Readiness::READ_HUP),
        hangup: ready.contains(socket::Readiness::HUP),
        error: ready.contains(socket::Readiness::ERR),
    }
}
