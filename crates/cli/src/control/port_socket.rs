//! The socket of `--port-socket`: connections, and the ports that requests on them have published.
//!
//! # Theory of operation
//!
//! The thread that moves packets serves the socket between two turns and never waits: all files are
//! registered in a reactor, which the worker watches as one file. A connection carries one request
//! in the form of [`hostfwd`]. The instance reads until the request is complete or the client has
//! ended it, writes the answer as fast as the client takes it, and closes the connection.
//!
//! Limits: [`CONNECTIONS_MAX`]; at the limit a new connection displaces the oldest. A connection
//! that is not done after [`TICKS_MAX`] ticks of the timer is closed. The timer runs while there
//! are connections, and after descriptors ran out; then no connection is accepted until it ticks.
//! [`FORWARDS_MAX`] ports; at the limit a request for another one fails.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use towpath_gateway::publish::PublishId;
use towpath_io::endpoint::Listener;
use towpath_io::reactor::{Events, Interest, Reactor};

use crate::control::hostfwd::{self, Forward, REQUEST_BYTES_MAX, Request};
use crate::control::published::Publishing;

/// Most concurrent connections: an engine makes one at a time.
const CONNECTIONS_MAX: usize = 8;
/// Seconds that a request with its answer may take. The client is on this machine.
const TICKS_MAX: u32 = 5;
/// Most ports that requests have published: a list of them, which has 2 MiB, may wait in each
/// connection.
const FORWARDS_MAX: usize = 16_384;
/// Reactor tokens after those of the connections.
const LISTENER: u64 = CONNECTIONS_MAX as u64;
const TIMER: u64 = LISTENER + 1;

/// A socket for requests that publish ports.
pub(crate) struct PortSocket {
    listener: Listener,
    reactor: Reactor,
    events: Box<Events>,
    timer: OwnedFd,
    connections: [Option<Connection>; CONNECTIONS_MAX],
    /// Number of connections so far.
    accepted: u64,
    is_listening: bool,
    is_ticking: bool,
    ports: Ports,
}

/// The ports that requests have published.
struct Ports {
    /// Address of the program.
    program: Option<Ipv4Addr>,
    all: BTreeMap<u64, (Forward, PublishId)>,
    /// Number of ports so far, which is the number of the last one.
    count: u64,
}

/// A connection of a client.
struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
    /// The answer, once there is one.
    output: Option<Vec<u8>>,
    written: usize,
    ticks: u32,
    /// Its number among all connections so far.
    number: u64,
}

impl PortSocket {
    /// Listens at `path`, for requests about the program with the address `program`.
    pub(crate) fn new(path: &Path, program: Option<Ipv4Addr>) -> anyhow::Result<Self> {
        let listener = Listener::bind(path).context("option --port-socket")?;
        let reactor = Reactor::new()?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        reactor.add(&listener, LISTENER, Interest::READ, false)?;
        reactor.add(&timer, TIMER, Interest::READ, false)?;
        Ok(Self {
            listener,
            reactor,
            events: Box::default(),
            timer,
            connections: [const { None }; CONNECTIONS_MAX],
            accepted: 0,
            is_listening: true,
            is_ticking: false,
            ports: Ports { program, all: BTreeMap::new(), count: 0 },
        })
    }

    /// Returns the socket's file and its identity.
    pub(crate) fn file(&self) -> Option<(PathBuf, (u64, u64))> {
        self.listener.file()
    }

    /// Does all work that needs no waiting. Requests change the ports of `instance`.
    ///
    /// # Errors
    /// A system call that worked before failed; the socket is unusable from now on.
    pub(crate) fn serve(&mut self, instance: &mut impl Publishing) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.reactor.wait(Some(Duration::ZERO), &mut events)?;
        for event in events.iter() {
            match event.token {
                // Accepted after the others have been served: there may be room then.
                LISTENER => {}
                TIMER => self.tick()?,
                token => self.step(token as usize, instance)?,
            }
        }
        self.events = events;
        let is_short = !self.accept(instance)?;
        self.listen(!is_short)?;
        self.run_timer(is_short || self.connections.iter().any(Option::is_some))
    }

    /// Accepts the waiting connections, as many as there are places, and reads each at once.
    /// Returns false if no descriptor is left.
    fn accept(&mut self, instance: &mut impl Publishing) -> io::Result<bool> {
        for _ in 0..CONNECTIONS_MAX {
            let stream = match self.listener.accept() {
                Ok(Some(stream)) => UnixStream::from(stream),
                Ok(None) => return Ok(true),
                Err(_) => return Ok(false),
            };
            let index = self.make_room()?;
            self.reactor.add(&stream, index as u64, Interest::READ, false)?;
            self.accepted += 1;
            self.connections[index] = Some(Connection {
                stream,
                input: Vec::new(),
                output: None,
                written: 0,
                ticks: 0,
                number: self.accepted,
            });
            self.step(index, instance)?;
        }
        Ok(true)
    }

    /// Returns the index of a free place, displacing a connection if necessary.
    fn make_room(&mut self) -> io::Result<usize> {
        let age = |index: &usize| self.connections[*index].as_ref().map(|one| one.number);
        // A free place is older than all connections.
        let oldest = (0..CONNECTIONS_MAX).min_by_key(age).unwrap_or_default();
        self.close(oldest)?;
        Ok(oldest)
    }

    fn listen(&mut self, is_listening: bool) -> io::Result<()> {
        if self.is_listening != is_listening {
            let interest = if is_listening { Interest::READ } else { Interest::NONE };
            self.reactor.modify(&self.listener, LISTENER, interest, false)?;
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
    fn step(&mut self, index: usize, instance: &mut impl Publishing) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return Ok(());
        };
        let was_reading = connection.output.is_none();
        if !connection.step(&mut self.ports, instance) {
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
    fn step(&mut self, ports: &mut Ports, instance: &mut impl Publishing) -> bool {
        if self.output.is_none() {
            let mut buffer = [0; REQUEST_BYTES_MAX];
            // A whole request fits: it is answered before more is read.
            let room = REQUEST_BYTES_MAX - self.input.len();
            let count = match self.stream.read(&mut buffer[..room]) {
                Ok(count) => count,
                Err(error) => return is_passing(&error),
            };
            self.input.extend_from_slice(&buffer[..count]);
            let Some(request) = Request::parse(&self.input, count == 0, ports.program) else {
                return true;
            };
            let answer = request.map(|request| ports.perform(request, instance));
            let answer = answer.unwrap_or_else(hostfwd::refusal);
            self.output = Some(answer.into_bytes());
        }
        self.write()
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

impl Ports {
    /// Does what a request says; returns the answer.
    fn perform(&mut self, request: Request, instance: &mut impl Publishing) -> String {
        match request {
            Request::Add(forward) => {
                if self.all.len() >= FORWARDS_MAX {
                    return hostfwd::refusal(format_args!(
                        "add_hostfwd: slirp_add_hostfwd failed: {FORWARDS_MAX} ports are published"
                    ));
                }
                match instance.publish(&forward.publish()) {
                    Ok(port) => {
                        self.count += 1;
                        self.all.insert(self.count, (forward, port));
                        hostfwd::added(self.count)
                    }
                    Err(error) => hostfwd::refusal(format_args!(
                        "add_hostfwd: slirp_add_hostfwd failed: {error}"
                    )),
                }
            }
            Request::List => {
                hostfwd::list(self.all.iter().map(|(id, (forward, _))| (*id, forward)))
            }
            Request::Remove(id) => match self.all.remove(&id) {
                Some((_, port)) => {
                    // It may have been closed by `towpath publish` since.
                    instance.unpublish(port);
                    hostfwd::removed()
                }
                None => hostfwd::refusal(hostfwd::UNKNOWN_ID),
            },
        }
    }
}

impl AsFd for PortSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

/// Returns true if the call may succeed later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
