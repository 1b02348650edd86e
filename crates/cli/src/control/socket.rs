//! The control socket of an instance: connections, and the requests and answers on them.
//!
//! # Theory of operation
//!
//! The thread that moves the packets serves it between two turns and never waits: everything that
//! is waited for hangs in a reactor, which the worker watches as one file. A connection carries one
//! request. It reads until the request is complete, then writes the answer as the peer takes it,
//! then ends. Who takes a connection over ([`Asked`]) answers by himself, whenever he likes.
//! One descriptor may come with a request.
//!
//! Limits: [`CONNECTIONS_MAX`]; with so many the oldest whose request is not complete gives way to
//! who comes, else the oldest. A connection that is not done after [`TICKS_MAX`] of the timer ends.
//! The timer runs while there are connections, and after descriptors ran out, when nobody is let in
//! until it ticks.

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
use towpath_io::reactor::{Events, Interest, Reactor};

use crate::control::instances::Announced;

/// Connections at once: commands, and one who collects figures.
const CONNECTIONS_MAX: usize = 16;
/// Seconds that a request with its answer may take. The sender is on this machine.
const TICKS_MAX: u32 = 5;
/// Tokens of the reactor behind those of the connections.
const LISTENER: u64 = CONNECTIONS_MAX as u64;
const TIMER: u64 = LISTENER + 1;

/// A control socket.
pub(crate) struct Control {
    announced: Announced,
    reactor: Reactor,
    events: Box<Events>,
    timer: OwnedFd,
    connections: [Option<Connection>; CONNECTIONS_MAX],
    /// Connections so far.
    accepted: u64,
    is_listening: bool,
    is_ticking: bool,
}

/// A request, and what came with it.
pub(crate) struct Asked<'a> {
    pub(crate) request: Request<'a>,
    /// The descriptor that came along.
    pub(crate) file: &'a mut Option<OwnedFd>,
    /// Where it came from, which does not block.
    pub(crate) stream: &'a UnixStream,
}

/// Somebody who asks.
struct Connection {
    stream: UnixStream,
    file: Option<OwnedFd>,
    input: Vec<u8>,
    /// The answer, once there is one.
    output: Option<Vec<u8>>,
    written: usize,
    ticks: u32,
    /// Which of all connections it is.
    number: u64,
}

impl Control {
    /// Makes the socket. Fails where the user has no folder for such things.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let announced = Announced::new()?;
        let reactor = Reactor::new()?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        reactor.add(&announced, LISTENER, Interest::READ, false)?;
        reactor.add(&timer, TIMER, Interest::READ, false)?;
        Ok(Self {
            announced,
            reactor,
            events: Box::default(),
            timer,
            connections: [const { None }; CONNECTIONS_MAX],
            accepted: 0,
            is_listening: true,
            is_ticking: false,
        })
    }

    /// The names that the socket's file may have, and its inode.
    pub(crate) fn files(&self) -> (Vec<PathBuf>, u64) {
        self.announced.files()
    }

    /// Lets it be found.
    pub(crate) fn announce(&self) -> anyhow::Result<()> {
        self.announced.announce()
    }

    /// Does what can be done without waiting. Requests are answered by `answer`; for one that has
    /// taken the connection over there is no answer here.
    ///
    /// # Errors
    /// The system refuses what it allowed before; the socket is of no use any more.
    pub(crate) fn serve(
        &mut self,
        mut answer: impl FnMut(Asked<'_>) -> Option<Response>,
    ) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.reactor.wait(Some(Duration::ZERO), &mut events)?;
        for event in events.iter() {
            match event.token {
                // When the others have been served: there may be room for him then.
                LISTENER => {}
                TIMER => self.tick()?,
                token => self.step(token as usize, &mut answer)?,
            }
        }
        self.events = events;
        let is_short = !self.accept(&mut answer)?;
        // Fails while descriptors are short; it is tried again when the timer ticks.
        let _ = self.announced.keep_spare();
        self.listen(!is_short)?;
        self.run_timer(is_short || self.connections.iter().any(Option::is_some))
    }

    /// Lets in who waits, as many as there are places, and hears each at once: a request that came
    /// with its connection is never displaced. False if there are no descriptors for that.
    fn accept(
        &mut self,
        answer: &mut impl FnMut(Asked<'_>) -> Option<Response>,
    ) -> io::Result<bool> {
        for _ in 0..CONNECTIONS_MAX {
            let stream = match self.announced.accept() {
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

    /// A place for a connection.
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
            self.reactor.modify(&self.announced, LISTENER, interest, false)?;
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

    /// A second has passed.
    fn tick(&mut self) -> io::Result<()> {
        // How many times it ticked does not matter, and it may have been stopped since.
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

    /// Goes on with a connection.
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
    /// Reads, answers and writes what can be. False if it is at its end.
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

    /// Reads one buffer full. False if the peer has gone.
    fn read(&mut self) -> bool {
        let room = HEAD_BYTES_MAX + BODY_BYTES_MAX - self.input.len();
        let mut buffer = [0; HEAD_BYTES_MAX];
        let buffer = &mut buffer[..room.min(HEAD_BYTES_MAX)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(buffer)];
        // Descriptors for which there is no room are closed by the kernel.
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

    /// Writes what the peer takes. False at the end of the answer, or if he has gone.
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

/// True if it may go better next time.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
