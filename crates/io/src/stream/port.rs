//! The place where streams of frames begin: a socket with a path, and the guest that is connected.
//!
//! One guest at a time; another waits until it has gone. Without one, packets for it are dropped
//! and counted. All that is waited for hangs in a reactor of its own, which is the device's file.

use super::{Stream, StreamCounters, StreamError};
use crate::endpoint::{EndpointError, Listener};
use crate::reactor::{Events, Interest, Reactor};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;
use towpath_packet::{Burst, Caps, Context, Device, Input};

/// Tokens of the reactor.
const TOKEN_LISTENER: u64 = 0;
const TOKEN_STREAM: u64 = 1;

/// Why a port cannot be had or used.
#[derive(Debug)]
pub enum StreamPortError {
    /// Its socket cannot be had.
    Endpoint(EndpointError),
    /// The system refuses what every port needs.
    Os(io::Error),
}

impl fmt::Display for StreamPortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(error) => error.fmt(f),
            Self::Os(error) => write!(f, "stream port: {error}"),
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

/// A port for guests that connect. See the module text.
pub struct StreamPort {
    listener: Listener,
    reactor: Reactor,
    events: Box<Events>,
    stream: Option<Stream>,
    /// The reactor tells of room to write.
    asks_for_room: bool,
    mtu: u16,
    /// Those of streams that ended.
    before: StreamCounters,
    sessions: u64,
    no_guest: u64,
    end: Option<StreamError>,
}

impl StreamPort {
    /// Listens at `path`. Guests are sent IP packets of `mtu` bytes at most.
    ///
    /// # Errors
    /// [`StreamPortError`].
    pub fn listen(path: &Path, mtu: u16) -> Result<Self, StreamPortError> {
        let listener = Listener::bind(path)?;
        let reactor = Reactor::new()?;
        // For changes only: who has to wait is no news all the time.
        reactor.add(&listener, TOKEN_LISTENER, Interest::READ, true)?;
        Ok(Self {
            listener,
            reactor,
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

    /// True if a guest is connected.
    pub fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Why the last connection ended; told once.
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

    /// Guests that have connected, and packets that were dropped for want of one.
    pub fn sessions(&self) -> (u64, u64) {
        (self.sessions, self.no_guest)
    }

    fn meet(&mut self) -> Result<(), StreamPortError> {
        if self.stream.is_some() {
            return Ok(());
        }
        match self.listener.accept() {
            Ok(Some(socket)) => {
                self.reactor.add(&socket, TOKEN_STREAM, Interest::READ, false)?;
                self.stream = Some(Stream::new(socket, self.mtu));
                self.asks_for_room = false;
                self.sessions += 1;
                Ok(())
            }
            // No descriptors or no memory: it waits until another connects.
            Ok(None) | Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Ok(()),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }

    /// The guest has gone, or sent what is none of the protocol: meets the next.
    fn part(&mut self, error: StreamError) -> Result<(), StreamPortError> {
        if let Some(stream) = self.stream.take() {
            self.before = self.before.plus(stream.counters());
            // It was added, and is still open.
            let _ = self.reactor.remove(&stream);
        }
        self.end = Some(error);
        self.meet()
    }

    /// Asks the reactor for room to write if a packet waits for it, and only then.
    fn watch(&mut self) -> Result<(), StreamPortError> {
        let Some(stream) = &self.stream else { return Ok(()) };
        if stream.has_unsent() != self.asks_for_room {
            self.asks_for_room = stream.has_unsent();
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

    /// Meets guests. What a guest does is never an error.
    fn turn(&mut self, _: bool, _: &mut Context<'_>) -> Result<(), StreamPortError> {
        self.reactor.wait(Some(Duration::ZERO), &mut self.events)?;
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
        let Some(stream) = &mut self.stream else {
            self.no_guest += burst.len() as u64;
            burst.clear();
            return Ok(());
        };
        match stream.transmit(burst, cx) {
            Ok(()) => self.watch(),
            Err(error) => self.part(error),
        }
    }

    fn rest(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.rest();
        }
    }
}
