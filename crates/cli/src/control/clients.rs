//! Clients of a Unix socket: each connection carries one request and its answer.
//!
//! # Theory of operation
//!
//! The thread that moves packets serves the clients between two turns and never waits: all files
//! are registered in a reactor, which the worker watches as one file. What arrives is given to a
//! handler until the request is complete. The answer is written as fast as the client takes it;
//! then the connection is closed. One descriptor may come with a request. A handler may also give
//! its answer [later](Answer::Later).
//!
//! Limits: [`Limits`]; one connection at a time may send a long request. At the limit a new
//! connection displaces the oldest one whose request is not complete, else the oldest. A connection
//! that is not done after [`TICKS_MAX`] ticks of the timer is closed. The timer runs while there
//! are connections. It also runs after descriptors ran out; then no connection is accepted until it
//! ticks.

use std::io::{self, ErrorKind, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use towpath_io::reactor::{Events, Interest, Reactor};

/// Seconds that a request with its answer may take. The client is on this machine.
const TICKS_MAX: u32 = 5;
/// Bytes that are read at a time.
const READ_BYTES: usize = 4096;
/// Reactor token of the timer; listeners follow, and connections have lower ones.
const TIMER: u64 = 1 << 32;
/// Reactor token of a file that only wakes the worker.
const BELL: u64 = u64::MAX;

/// Sockets on which clients connect.
pub(crate) trait Listeners {
    /// Returns the files that are readable when a connection waits.
    fn files(&self) -> Vec<BorrowedFd<'_>>;

    /// Accepts a connection, if one waits.
    ///
    /// # Errors
    /// No descriptor is left.
    fn accept(&mut self) -> io::Result<Option<UnixStream>>;
}

/// Limits on clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most concurrent connections.
    pub(crate) connections: usize,
    /// Most bytes of a request that are read.
    pub(crate) request_bytes: usize,
    /// Most bytes of a long request, of which there is one at a time.
    pub(crate) long_bytes: usize,
}

/// What has arrived from a client.
pub(crate) struct Arrived<'a> {
    /// Number of the connection among all so far.
    pub(crate) number: u64,
    /// All bytes so far. A handler that answers later may take them.
    pub(crate) bytes: &'a mut Vec<u8>,
    /// No more will arrive.
    pub(crate) is_end: bool,
    /// The request may be a long one: no other connection sends one.
    pub(crate) may_be_long: bool,
    /// The descriptor that came with them.
    pub(crate) file: &'a mut Option<OwnedFd>,
    /// The connection, which is non-blocking.
    pub(crate) stream: &'a UnixStream,
}

/// What the handler makes of the bytes so far.
pub(crate) enum Answer {
    /// The request is not complete.
    Incomplete,
    /// The answer.
    Bytes(Vec<u8>),
    /// The answer is given to [`Clients::finish`] later.
    Later,
    /// There is none: the connection is closed here, or the handler has taken it over.
    None,
}

/// Listening sockets and their clients.
pub(crate) struct Clients<L> {
    pub(crate) listeners: L,
    limits: Limits,
    reactor: Reactor,
    events: Box<Events>,
    timer: OwnedFd,
    connections: Box<[Option<Connection>]>,
    /// Number of connections so far.
    accepted: u64,
    /// Number of the connection that sends a long request.
    long: Option<u64>,
    is_listening: bool,
    is_ticking: bool,
}

/// A connection of a client.
struct Connection {
    stream: UnixStream,
    file: Option<OwnedFd>,
    input: Vec<u8>,
    /// The request is complete, and its answer comes later.
    is_asked: bool,
    /// The answer, once there is one.
    output: Option<Vec<u8>>,
    written: usize,
    ticks: u32,
    /// Its number among all connections so far.
    number: u64,
}

impl<L: Listeners> Clients<L> {
    /// Serves the clients of these sockets.
    ///
    /// # Errors
    /// Those of epoll_create(2), epoll_ctl(2) and timerfd_create(2).
    pub(crate) fn new(listeners: L, limits: Limits) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        for (file, token) in listeners.files().into_iter().zip(TIMER + 1..) {
            reactor.add(file, token, Interest::READ, false)?;
        }
        reactor.add(&timer, TIMER, Interest::READ, false)?;
        Ok(Self {
            listeners,
            limits,
            reactor,
            events: Box::default(),
            timer,
            connections: (0..limits.connections).map(|_| None).collect(),
            accepted: 0,
            long: None,
            is_listening: true,
            is_ticking: false,
        })
    }

    /// Makes the sockets readable while `bell` is.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub(crate) fn wake_by(&mut self, bell: impl AsFd) -> io::Result<()> {
        self.reactor.add(bell, BELL, Interest::READ, false)
    }

    /// Does all work that needs no waiting. `answer` handles requests.
    ///
    /// # Errors
    /// A system call that worked before failed; the sockets are unusable from now on.
    pub(crate) fn serve(
        &mut self,
        mut answer: impl FnMut(Arrived<'_>) -> Answer,
    ) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.reactor.wait(Some(Duration::ZERO), &mut events)?;
        for event in events.iter() {
            match event.token {
                TIMER => self.tick()?,
                // Accepted after the others have been served: there may be room then.
                token if token > TIMER => {}
                token => self.step(token as usize, &mut answer)?,
            }
        }
        self.events = events;
        let is_short = !self.accept(&mut answer)?;
        self.listen(!is_short)?;
        self.run_timer(is_short || self.connections.iter().any(Option::is_some))
    }

    /// Accepts the waiting connections, as many as there are places, and reads each at once: a
    /// request that arrived with its connection is never displaced. Returns false if no descriptor
    /// is left.
    fn accept(&mut self, answer: &mut impl FnMut(Arrived<'_>) -> Answer) -> io::Result<bool> {
        for _ in 0..self.limits.connections {
            let stream = match self.listeners.accept() {
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
                is_asked: false,
                output: None,
                written: 0,
                ticks: 0,
                number: self.accepted,
            });
            self.step(index, answer)?;
        }
        Ok(true)
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
        let oldest = (0..self.connections.len()).min_by_key(age).unwrap_or_default();
        self.close(oldest)?;
        Ok(oldest)
    }

    fn listen(&mut self, is_listening: bool) -> io::Result<()> {
        if self.is_listening != is_listening {
            let interest = if is_listening { Interest::READ } else { Interest::NONE };
            for (file, token) in self.listeners.files().into_iter().zip(TIMER + 1..) {
                self.reactor.modify(file, token, interest, false)?;
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
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else { continue };
            connection.ticks += 1;
            if connection.ticks > TICKS_MAX {
                self.close(index)?;
            }
        }
        Ok(())
    }

    /// Lets so many ticks pass that all connections are closed.
    #[cfg(test)]
    pub(crate) fn time_out(&mut self) -> io::Result<()> {
        (0..=TICKS_MAX).try_for_each(|_| self.tick())
    }

    /// Returns true if there is no connection, and the timer does not run.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.connections.iter().all(Option::is_none) && !self.is_ticking
    }

    /// Continues a connection.
    fn step(
        &mut self,
        index: usize,
        answer: &mut impl FnMut(Arrived<'_>) -> Answer,
    ) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return Ok(());
        };
        let (was_asked, was_reading) = (connection.is_asked, connection.output.is_none());
        if was_asked && was_reading {
            // Only its end is reported while it waits for its answer.
            return self.close(index);
        }
        let may_be_long = self.long.is_none_or(|number| number == connection.number);
        let stays = connection.step(self.limits, may_be_long, answer);
        if !stays {
            return self.close(index);
        }
        if connection.input.len() > self.limits.request_bytes || connection.is_asked {
            self.long = Some(connection.number);
        }
        let interest = match (&connection.output, connection.is_asked) {
            (Some(_), _) => Interest::WRITE,
            (None, true) => Interest::NONE,
            (None, false) => return Ok(()),
        };
        if was_reading {
            self.reactor.modify(&connection.stream, index as u64, interest, false)?;
        }
        Ok(())
    }

    /// Answers the request of connection `number` that was to be answered later, unless the
    /// connection is closed by now: then `answer` is not called, and nothing is to be done. Without
    /// an answer the connection is closed.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub(crate) fn finish(
        &mut self,
        number: u64,
        answer: impl FnOnce(&UnixStream, &mut Option<OwnedFd>) -> Option<Vec<u8>>,
    ) -> io::Result<()> {
        let all = self.connections.iter_mut().enumerate();
        let mut asked = all.filter_map(|(index, one)| Some((index, one.as_mut()?)));
        let Some((index, connection)) = asked.find(|(_, one)| one.number == number) else {
            return Ok(());
        };
        connection.output = answer(&connection.stream, &mut connection.file);
        if connection.output.is_none() {
            return self.close(index);
        }
        self.long = None;
        self.reactor.modify(&connection.stream, index as u64, Interest::WRITE, false)
    }

    fn close(&mut self, index: usize) -> io::Result<()> {
        let Some(connection) = self.connections[index].take() else { return Ok(()) };
        self.long.take_if(|number| *number == connection.number);
        self.reactor.remove(&connection.stream)
    }
}

impl Connection {
    /// Reads, answers and writes as far as possible. Returns false if the connection is at its end.
    fn step(
        &mut self,
        limits: Limits,
        may_be_long: bool,
        answer: &mut impl FnMut(Arrived<'_>) -> Answer,
    ) -> bool {
        if self.output.is_none() {
            let bytes_max = if may_be_long { limits.long_bytes } else { limits.request_bytes };
            let count = match self.read(bytes_max) {
                Ok(count) => count,
                Err(error) => return is_passing(&error),
            };
            let Self { number, file, stream, input: bytes, .. } = self;
            let (number, is_end) = (*number, count == 0);
            match answer(Arrived { number, bytes, is_end, may_be_long, file, stream }) {
                // After the end, or without room, no bytes follow that could complete it.
                Answer::Incomplete => return count > 0 && self.input.len() < bytes_max,
                Answer::Later => {
                    self.is_asked = true;
                    return true;
                }
                Answer::None => return false,
                Answer::Bytes(bytes) => (self.input, self.output) = (Vec::new(), Some(bytes)),
            }
        }
        self.write()
    }

    /// Reads up to one buffer; returns the number of bytes, which is zero at the end.
    fn read(&mut self, bytes_max: usize) -> io::Result<usize> {
        let room = bytes_max - self.input.len();
        let mut buffer = [0; READ_BYTES];
        let buffer = &mut buffer[..room.min(READ_BYTES)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let slices = &mut [IoSliceMut::new(buffer)];
        // The kernel closes descriptors for which there is no room.
        let received = recvmsg(&self.stream, slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.file = files.last().or(self.file.take());
            }
        }
        self.input.extend_from_slice(&buffer[..received.bytes]);
        Ok(received.bytes)
    }

    /// Writes what the client takes. Returns false at the end of the answer, or if the client has
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

impl<L> AsFd for Clients<L> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

/// Returns true if the call may succeed later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
