//! The control socket of an instance: connections, and the requests and answers on them.
//!
//! # Theory of operation
//!
//! The thread that moves packets serves the socket between two turns and never waits: all files are
//! registered in a reactor, which the worker watches as one file. A connection carries one request.
//! The instance reads until the request is complete, writes the answer as fast as the peer takes
//! it, and closes the connection. A handler that takes a connection over ([`Asked`]) answers by
//! itself, at any time. One descriptor may come with a request.
//!
//! Limits: [`CONNECTIONS_MAX`]; at the limit a new connection displaces the oldest one whose
//! request is not complete, else the oldest. A connection that is not done after [`TICKS_MAX`]
//! ticks of the timer is closed. The timer runs while there are connections. It also runs after
//! descriptors ran out; then no connection is accepted until it ticks.

use std::io::{self, ErrorKind, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use towpath_gateway::control::http::{BODY_BYTES_MAX, HEAD_BYTES_MAX, Request, Response};
use towpath_io::endpoint::Listener;
use towpath_io::reactor::{Events, Interest, Reactor};

use crate::control::instances::Announced;

/// Most concurrent connections: commands, and a metrics collector.
const CONNECTIONS_MAX: usize = 16;
/// Seconds that a request with its answer may take. The client is on this machine.
const TICKS_MAX: u32 = 5;
/// Reactor tokens after those of the connections.
const LISTENER: u64 = CONNECTIONS_MAX as u64;
const TIMER: u64 = LISTENER + 1;
const NAMED: u64 = TIMER + 1;

/// A control socket.
pub(crate) struct Control {
    /// The one by which others find this process, if the user has a folder for it.
    announced: Option<Announced>,
    /// The one at a path that the user chose.
    named: Option<Listener>,
    reactor: Reactor,
    events: Box<Events>,
    timer: OwnedFd,
    connections: [Option<Connection>; CONNECTIONS_MAX],
    /// Number of connections so far.
    accepted: u64,
    is_listening: bool,
    is_ticking: bool,
}

/// A request, and what came with it.
pub(crate) struct Asked<'a> {
    pub(crate) request: Request<'a>,
    /// The descriptor that came with it.
    pub(crate) file: &'a mut Option<OwnedFd>,
    /// Its connection, which is non-blocking.
    pub(crate) stream: &'a UnixStream,
}

/// A connection of a client.
struct Connection {
    stream: UnixStream,
    file: Option<OwnedFd>,
    input: Vec<u8>,
    /// The answer, once there is one.
    output: Option<Vec<u8>>,
    written: usize,
    ticks: u32,
    /// Its number among all connections so far.
    number: u64,
}

impl Control {
    /// Serves these sockets.
    pub(crate) fn new(
        announced: Option<Announced>,
        named: Option<Listener>,
    ) -> anyhow::Result<Self> {
        let reactor = Reactor::new()?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        if let Some(announced) = &announced {
            reactor.add(announced, LISTENER, Interest::READ, false)?;
        }
        if let Some(named) = &named {
            reactor.add(named, NAMED, Interest::READ, false)?;
        }
        reactor.add(&timer, TIMER, Interest::READ, false)?;
        Ok(Self {
            announced,
            named,
            reactor,
            events: Box::default(),
            timer,
            connections: [const { None }; CONNECTIONS_MAX],
            accepted: 0,
            is_listening: true,
            is_ticking: false,
        })
    }

    /// Returns the names that the sockets' files may have, each with the file's inode.
    pub(crate) fn files(&self) -> Vec<(PathBuf, u64)> {
        let named = self.named.as_ref().and_then(Listener::file);
        let named = named.map(|(path, (_, inode))| (path, inode));
        let announced = self.announced.as_ref().map(Announced::files).unwrap_or_default();
        announced.into_iter().chain(named).collect()
    }

    /// Gives the socket the name by which others find it.
    pub(crate) fn announce(&self) -> anyhow::Result<()> {
        self.announced.as_ref().map_or(Ok(()), Announced::announce)
    }

    /// Does all work that needs no waiting. `answer` handles requests, and returns `None` if it has
    /// taken the connection over.
    ///
    /// # Errors
    /// A system call that worked before failed; the socket is unusable from now on.
    pub(crate) fn serve(
        &mut self,
        mut answer: impl FnMut(Asked<'_>) -> Option<Response>,
    ) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.reactor.wait(Some(Duration::ZERO), &mut events)?;
        for event in events.iter() {
            match event.token {
                // Accepted after the others have been served: there may be room then.
                LISTENER | NAMED => {}
                TIMER => self.tick()?,
                token => self.step(token as usize, &mut answer)?,
            }
        }
        self.events = events;
        let is_short = !self.accept(&mut answer)?;
        // This fails while descriptors are short, and is repeated when the timer ticks.
        let _ = self.announced.as_mut().map(Announced::keep_spare);
        self.listen(!is_short)?;
        self.run_timer(is_short || self.connections.iter().any(Option::is_some))
    }

    /// Accepts the waiting connections, as many as there are places, and reads each at once: a
    /// request that arrived with its connection is never displaced. Returns false if no descriptor
    /// is left.
    fn accept(
        &mut self,
        answer: &mut impl FnMut(Asked<'_>) -> Option<Response>,
    ) -> io::Result<bool> {
        for _ in 0..CONNECTIONS_MAX {
            let stream = match self.next() {
                Ok(Some(stream)) => stream,
                Ok(None) => return Ok(true),
                Err(_) => return Ok(false),
            };
            let index = self.make_room()?;
            stream.set_nonblocking(true)?;
            self.reactor.add(&stream, index as u64, Interest::READ, false)?;
            self.accepted += 1;
            self.connections[index] = Some(Connection {
                stream,
                file: None,
                input: Vec::new(),
                output: None,
                written: 0,
                ticks: 0,
                number: self.accepted,
            });
            self.step(index, answer)?;
        }
        Ok(true)
    }

    /// Accepts a connection, if one waits.
    fn next(&mut self) -> io::Result<Option<UnixStream>> {
        let announced = self.announced.as_mut().map(Announced::accept);
        if let Some(stream) = announced.transpose()?.flatten() {
            return Ok(Some(stream));
        }
        let named = self.named.as_ref().map(Listener::accept).transpose()?.flatten();
        Ok(named.map(UnixStream::from))
    }

    /// Returns the index of a free place, displacing a connection if necessary.
    fn make_room(&mut self) -> io::Result<usize> {
        if let Some(free) = self.connections.iter().position(Option::is_none) {
            return Ok(free);
        }
        let age = |index: &usize| {
            let connection = self.connections[*index].as_ref();
            connection.map(|connection| (connection.output.is_some(), connection.number))
        };
        let oldest = (0..CONNECTIONS_MAX).min_by_key(age).unwrap_or_default();
        self.close(oldest)?;
        Ok(oldest)
    }

    fn listen(&mut self, is_listening: bool) -> io::Result<()> {
        if self.is_listening != is_listening {
            let interest = if is_listening { Interest::READ } else { Interest::NONE };
            if let Some(announced) = &self.announced {
                self.reactor.modify(announced, LISTENER, interest, false)?;
            }
            if let Some(named) = &self.named {
                self.reactor.modify(named, NAMED, interest, false)?;
            }
            self.is_listening = is_listening;
        }
        Ok(())
    }

    fn run_timer(&mut self, is_ticking: bool) -> io::Result<()> {
        if self.is_ticking != is_ticking {
            let period = Timespec { tv_sec: is_ticking.into(), tv_nsec: 0 };
            let spec = Itimerspec { it_interval: period, it_value: period };
            timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
            self.is_ticking = is_ticking;
        }
        Ok(())
    }

    /// Counts a tick of the timer, which is one second.
    fn tick(&mut self) -> io::Result<()> {
        // The number of ticks does not matter, and the timer may have been stopped since.
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        for index in 0..CONNECTIONS_MAX {
            let Some(connection) = &mut self.connections[index] else { continue };
            connection.ticks += 1;
            if connection.ticks > TICKS_MAX {
                self.close(index)?;
            }
        }
        Ok(())
    }

    /// Continues a connection.
    fn step(
        &mut self,
        index: usize,
        answer: &mut impl FnMut(Asked<'_>) -> Option<Response>,
    ) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return Ok(());
        };
        let was_reading = connection.output.is_none();
        if !connection.step(answer) {
            return self.close(index);
        }
        if was_reading && connection.output.is_some() {
            let stream = &connection.stream;
            self.reactor.modify(stream, index as u64, Interest::WRITE, false)?;
        }
        Ok(())
    }

    fn close(&mut self, index: usize) -> io::Result<()> {
        match self.connections[index].take() {
            Some(connection) => self.reactor.remove(&connection.stream),
            None => Ok(()),
        }
    }
}

impl Connection {
    /// Reads, answers and writes as far as possible. Returns false if the connection is at its end.
    fn step(&mut self, answer: &mut impl FnMut(Asked<'_>) -> Option<Response>) -> bool {
        if self.output.is_none() {
            if !self.read() {
                return false;
            }
            match Request::parse(&self.input) {
                Ok(None) => return true,
                Ok(Some(request)) => {
                    let Self { file, stream, .. } = self;
                    let Some(response) = answer(Asked { request, file, stream }) else {
                        return false;
                    };
                    self.output = Some(response.to_bytes());
                }
                Err(response) => self.output = Some(response.to_bytes()),
            }
        }
        self.write()
    }

    /// Reads up to one buffer. Returns false if the peer has closed the connection.
    fn read(&mut self) -> bool {
        let room = HEAD_BYTES_MAX + BODY_BYTES_MAX - self.input.len();
        let mut buffer = [0; HEAD_BYTES_MAX];
        let buffer = &mut buffer[..room.min(HEAD_BYTES_MAX)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(buffer)];
        // The kernel closes descriptors for which there is no room.
        let received = match recvmsg(&self.stream, slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => received,
            Err(errno) => return is_passing(&errno.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.file = files.last().or(self.file.take());
            }
        }
        self.input.extend_from_slice(&buffer[..received.bytes]);
        received.bytes > 0
    }

    /// Writes what the peer takes. Returns false at the end of the answer, or if the peer has
    /// closed the connection.
    fn write(&mut self) -> bool {
        let output = self.output.as_deref().unwrap_or_default();
        match self.stream.write(&output[self.written..]) {
            Ok(count) => {
                self.written += count;
                count > 0 && self.written < output.len()
            }
            Err(error) => is_passing(&error),
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

/// Returns true if the call may succeed later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
