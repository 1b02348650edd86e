//! A listening socket for streams of frames, and the guest that is connected to it; or only a guest
//! that is connected already.
//!
//! One guest at a time; another one waits until the first has gone. Without a guest, packets for it
//! are dropped and counted. All files to wait for are in a reactor of the port, which is the
//! device's file.

use super::{Stream, StreamCounters, StreamError};
use crate::endpoint::{EndpointError, Listener};
use crate::reactor::{Events, Interest, Reactor};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;
use towpath_packet::{Burst, Caps, Context, Device, Input};

/// Tokens of the reactor.
const TOKEN_LISTENER: u64 = 0;
const TOKEN_STREAM: u64 = 1;

/// Why a port could not be opened or used.
#[derive(Debug)]
pub enum StreamPortError {
    /// Its socket could not be opened.
    Endpoint(EndpointError),
    /// The system refused a resource that every port needs.
    Os(io::Error),
}

impl fmt::Display for StreamPortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(error) => error.fmt(f),
            Self::Os(error) => write!(f, "the stream port failed: {error}"),
        }
    }
}

impl std::error::Error for StreamPortError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Endpoint(error) => error.source(),
            Self::Os(error) => Some(error),
        }
    }
}

impl From<EndpointError> for StreamPortError {
    fn from(error: EndpointError) -> Self {
        Self::Endpoint(error)
    }
}

impl From<io::Error> for StreamPortError {
    fn from(error: io::Error) -> Self {
        Self::Os(error)
    }
}

/// A port to which guests connect; see the module documentation.
pub struct StreamPort {
    /// `None` if the only guest is the first one.
    listener: Option<Listener>,
    reactor: Reactor,
    events: Box<Events>,
    stream: Option<Stream>,
    /// The reactor reports room to write.
    asks_for_room: bool,
    mtu: u16,
    /// Counters of connections that have ended.
    before: StreamCounters,
    sessions: u64,
    no_guest: u64,
    end: Option<StreamError>,
}

impl StreamPort {
    /// Listens at `path`. Sends guests IP packets of at most `mtu` bytes.
    ///
    /// # Errors
    /// [`StreamPortError`].
    pub fn listen(path: &Path, mtu: u16) -> Result<Self, StreamPortError> {
        let listener = Listener::bind(path)?;
        let mut port = Self::new(mtu)?;
        // Edge-triggered: a guest that has to wait must not be reported again and again.
        port.reactor.add(&listener, TOKEN_LISTENER, Interest::READ, true)?;
        port.listener = Some(listener);
        Ok(port)
    }

    /// Serves the guest at the other end of `socket`, a connected and non-blocking stream socket,
    /// and no other. Sends it IP packets of at most `mtu` bytes.
    ///
    /// # Errors
    /// [`StreamPortError::Os`].
    pub fn from_socket(socket: OwnedFd, mtu: u16) -> Result<Self, StreamPortError> {
        let mut port = Self::new(mtu)?;
        port.begin(socket)?;
        Ok(port)
    }

    fn new(mtu: u16) -> Result<Self, StreamPortError> {
        Ok(Self {
            listener: None,
            reactor: Reactor::new()?,
            events: Box::default(),
            stream: None,
            asks_for_room: false,
            mtu,
            before: StreamCounters::default(),
            sessions: 0,
            no_guest: 0,
            end: None,
        })
    }

    /// Sets the largest IP packet that guests are sent. The protocol cannot tell them.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
        self.stream.iter_mut().for_each(|stream| stream.set_mtu(mtu));
    }

    /// True if a guest is connected.
    pub fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Returns why the last connection ended, once.
    pub fn take_end(&mut self) -> Option<StreamError> {
        self.end.take()
    }

    /// Counters of all connections.
    pub fn counters(&self) -> StreamCounters {
        match &self.stream {
            Some(stream) => self.before.plus(stream.counters()),
            None => self.before,
        }
    }

    /// Number of guests that have connected, and of packets dropped because no guest was connected.
    pub fn sessions(&self) -> (u64, u64) {
        (self.sessions, self.no_guest)
    }

    fn meet(&mut self) -> Result<(), StreamPortError> {
        let Some(listener) = self.listener.as_ref().filter(|_| self.stream.is_none()) else {
            return Ok(());
        };
        match listener.accept() {
            Ok(Some(socket)) => self.begin(socket),
            // Out of descriptors or memory: the guest waits until another one connects.
            Ok(None) | Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Ok(()),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    fn begin(&mut self, socket: OwnedFd) -> Result<(), StreamPortError> {
        self.reactor.add(&socket, TOKEN_STREAM, Interest::READ, false)?;
        self.stream = Some(Stream::new(socket, self.mtu));
        self.asks_for_room = false;
        self.sessions += 1;
        Ok(())
    }

    /// Handles the end of a connection: the guest has gone or violated the protocol. Accepts the
    /// next.
    fn part(&mut self, error: StreamError) -> Result<(), StreamPortError> {
        if let Some(stream) = self.stream.take() {
            self.before = self.before.plus(stream.counters());
            // Cannot fail: the socket was added and is still open.
            let _ = self.reactor.remove(&stream);
        }
        self.end = Some(error);
        self.meet()
    }

    /// Writes packets from the front of `burst`, after the rest of the last one. Requests reports
    /// of room exactly while something waits for it.
    fn write(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), StreamPortError> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if let Err(error) = stream.transmit(burst, cx) {
            return self.part(error);
        }
        let waits = stream.has_unsent() || !burst.is_empty();
        if waits != self.asks_for_room {
            self.asks_for_room = waits;
            let interest = if self.asks_for_room { Interest::BOTH } else { Interest::READ };
            self.reactor.modify(stream, TOKEN_STREAM, interest, false)?;
        }
        Ok(())
    }
}

impl AsFd for StreamPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

impl Device for StreamPort {
    type Error = StreamPortError;

    fn caps(&self) -> Caps {
        Caps::plain(self.mtu)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reactor.as_fd())
    }

    /// Accepts guests, and writes the rest of a packet. Nothing that a guest does is an error here.
    fn turn(&mut self, _: bool, cx: &mut Context<'_>) -> Result<(), StreamPortError> {
        self.reactor.wait(Some(Duration::ZERO), &mut self.events)?;
        if self.stream.as_ref().is_some_and(Stream::has_unsent) {
            self.write(&mut Burst::new(), cx)?;
        }
        self.meet()
    }

    fn receive(
        &mut self,
        burst: &mut Burst,
        cx: &mut Context<'_>,
    ) -> Result<Input, StreamPortError> {
        match self.stream.as_mut().map(|stream| stream.receive(burst, cx)) {
            Some(Ok(input)) => Ok(input),
            Some(Err(error)) => self.part(error).map(|()| Input::Done),
            None => Ok(Input::Done),
        }
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), StreamPortError> {
        if self.stream.is_none() {
            self.no_guest += burst.len() as u64;
            burst.clear();
            return Ok(());
        }
        self.write(burst, cx)
    }

    fn rest(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.rest();
        }
    }
}
