//! The server in the usual way: non-blocking calls and readiness events.
//!
//! On kernel sockets this uses plain epoll and sendfile(2). On a towpath host the event queue
//! reports readiness, and files are read and written.

use std::fs::File;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use super::answer::Answer;
use super::talk::Talk;
use super::{
    LINGER, LINGER_BYTES_MAX, LOG_PERIOD, PART_BYTES, RECEIVE_BYTES, Report, SMALL_BYTES, Serve,
    Service, UnderWay,
};

/// Sockets and the source of their readiness events.
pub(crate) trait Polled {
    type Stream;

    /// True if `send_file` is supported.
    const SENDS_FILES: bool;

    /// Accepts a connection, whose events have this number; `None` if there is none.
    fn accept(&mut self, number: u64) -> io::Result<Option<(Self::Stream, SocketAddr)>>;

    /// Waits for at most `limit` and collects the numbers of connections that may be ready.
    fn wait(&mut self, ready: &mut Vec<u64>, limit: Duration) -> io::Result<Waited>;

    /// Reads bytes and returns their number; 0 at the end.
    ///
    /// # Errors
    /// `WouldBlock` if there are none. Writing and sending a file return it if there is no room.
    fn read(stream: &Self::Stream, into: &mut [u8]) -> io::Result<usize>;

    /// Writes bytes and returns their number; more bytes follow if `more`.
    fn write(stream: &Self::Stream, bytes: &[u8], more: bool) -> io::Result<usize>;

    /// Sends bytes of a file and returns their number; 0 if the file ends before the range.
    fn send_file(stream: &Self::Stream, file: &File, range: Range<u64>) -> io::Result<usize>;

    fn shut_down(stream: &Self::Stream) -> io::Result<()>;

    /// Closes a connection. No further events are reported for it.
    fn close(&mut self, stream: Self::Stream);
}

/// Events of a wait other than those of connections.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waited {
    /// There may be connections to accept.
    pub(crate) accept: bool,
    /// The server is asked to end.
    pub(crate) end: bool,
}

/// The server with readiness events. See [the module](self).
pub(crate) struct Readiness<P: Polled> {
    polled: P,
    service: Service,
    places: Vec<Place<P::Stream>>,
    free: Vec<u32>,
    open: usize,
    /// There may be connections that were not accepted.
    is_waiting: bool,
    /// When answers in progress are abandoned, once the server is ending.
    end: Option<Duration>,
    buffer: Vec<u8>,
}

/// A place for one connection after the other. Its serial number distinguishes them in event
/// numbers.
struct Place<S> {
    serial: u32,
    connection: Option<Connection<S>>,
}

struct Connection<S> {
    stream: S,
    peer: SocketAddr,
    talk: Talk,
    /// When the request must have arrived, or a part of the answer must have been received.
    due: Duration,
    answer: Option<UnderWay>,
    /// Bytes to write before more of the file, and how many of them were written.
    head: Vec<u8>,
    written: usize,
    rest: Option<(Arc<File>, Range<u64>)>,
    /// Reading and discarding, if set; this many bytes so far.
    lingering: Option<usize>,
}

/// What a connection does next.
enum Next {
    /// Waits for its next event.
    Wait,
    Close,
    /// Ends, because the promised length cannot be kept.
    Fail,
}

impl<P: Polled> Readiness<P> {
    pub(crate) fn new(polled: P, service: Service) -> Self {
        Self {
            polled,
            service,
            places: Vec::new(),
            free: Vec::new(),
            open: 0,
            is_waiting: false,
            end: None,
            buffer: vec![0; RECEIVE_BYTES],
        }
    }

    fn accept_all(&mut self) -> io::Result<()> {
        while self.is_waiting && self.open < self.service.limits.connections && self.end.is_none() {
            let index = self.free.last().copied().unwrap_or(self.places.len() as u32);
            let serial = self.places.get(index as usize).map_or(0, |place| place.serial);
            let number = u64::from(serial) << 32 | u64::from(index);
            let (stream, peer) = match self.polled.accept(number) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => {
                    self.is_waiting = false;
                    break;
                }
                // An error of one connection, or a temporary one: the next turn tries again.
                Err(_) => break,
            };
            if self.free.pop().is_none() {
                self.places.push(Place { serial, connection: None });
            }
            let due = self.service.site.clock.now + self.service.limits.idle;
            self.places[index as usize].connection = Some(Connection {
                stream,
                peer,
                talk: Talk::default(),
                due,
                answer: None,
                head: Vec::new(),
                written: 0,
                rest: None,
                lingering: None,
            });
            self.open += 1;
            self.service.report.connections += 1;
            self.go_on(index);
        }
        Ok(())
    }

    fn go_on(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        let Some(connection) = &mut place.connection else { return };
        match connection.go_on::<P>(&mut self.service, &mut self.buffer, self.end.is_some()) {
            Next::Wait => {}
            Next::Close => self.close(index),
            Next::Fail => self.fail(index),
        }
    }

    fn fail(&mut self, index: u32) {
        self.service.report.failures += 1;
        if let Some(connection) = &mut self.places[index as usize].connection
            && let Some(answer) = connection.answer.take()
        {
            self.service.note(Some(connection.peer.ip()), &answer);
        }
        self.close(index);
    }

    fn close(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if let Some(connection) = place.connection.take() {
            self.polled.close(connection.stream);
            place.serial = place.serial.wrapping_add(1);
            self.free.push(index);
            self.open -= 1;
        }
    }

    /// Ends connections that have exceeded their time; once a second.
    fn sweep(&mut self) {
        let now = self.service.site.clock.now;
        for index in 0..self.places.len() as u32 {
            let Some(connection) = &mut self.places[index as usize].connection else { continue };
            if connection.due > now {
                continue;
            }
            if connection.answer.is_some() {
                self.fail(index);
            } else if connection.lingering.is_none() && connection.talk.is_begun() {
                let answer = self.service.site.refuse(408);
                connection.begin(answer, now + LINGER);
                self.go_on(index);
            } else {
                self.close(index);
            }
        }
    }

    /// Ends idle connections. Answers in progress continue for a while.
    fn begin_end(&mut self) {
        self.service.site.is_ending = true;
        self.end = Some(self.service.site.clock.now + self.service.limits.grace);
        for index in 0..self.places.len() as u32 {
            let idle = |connection: &Connection<_>| {
                connection.answer.is_none() && !connection.talk.is_begun()
            };
            if self.places[index as usize].connection.as_ref().is_some_and(idle) {
                self.close(index);
            }
        }
    }

    /// Writes collected lines synchronously, as readiness servers do.
    fn write_log(&mut self) {
        let Some(log) = &mut self.service.log else { return };
        if let Some(lines) = log.take() {
            // A full disk only loses lines.
            let _ = log.file.write_all_at(&lines, 0);
            log.give_back(lines);
        }
    }
}

impl<S> Connection<S> {
    fn begin(&mut self, mut answer: Answer, due: Duration) {
        self.answer = Some(UnderWay::of(&mut answer));
        (self.head, self.written, self.rest) = (answer.head, 0, answer.body);
        self.due = due;
    }

    /// Continues as far as possible without blocking.
    fn go_on<P: Polled<Stream = S>>(
        &mut self,
        service: &mut Service,
        buffer: &mut [u8],
        is_ending: bool,
    ) -> Next {
        let due = service.site.clock.now + service.limits.idle;
        loop {
            let moved = if self.answer.is_some() {
                match self.send::<P>() {
                    Ok(true) => {
                        self.due = due;
                        continue;
                    }
                    Ok(false) if self.answered::<P>(service) => continue,
                    Ok(false) => return Next::Close,
                    Err(error) => Err(error),
                }
            } else if let Some(answer) = self.next(service) {
                self.begin(answer, due);
                continue;
            } else if is_ending && !self.talk.is_begun() && self.lingering.is_none() {
                return Next::Close;
            } else {
                P::read(&self.stream, buffer)
            };
            match moved {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Wait,
                Err(_) if self.answer.is_some() => return Next::Fail,
                Ok(0) | Err(_) => return Next::Close,
                Ok(count) => match &mut self.lingering {
                    Some(read) if *read + count > LINGER_BYTES_MAX => return Next::Close,
                    Some(read) => *read += count,
                    None => self.talk.add(&buffer[..count]),
                },
            }
        }
    }

    fn next(&mut self, service: &mut Service) -> Option<Answer> {
        if self.lingering.is_some() {
            return None;
        }
        self.talk.next(&mut service.site)
    }

    /// Sends a part of an answer. Returns false if nothing is left.
    fn send<P: Polled<Stream = S>>(&mut self) -> io::Result<bool> {
        let rest = self.rest.as_mut().filter(|(_, rest)| !rest.is_empty());
        let sent = if self.written < self.head.len() {
            if let Some((file, rest)) = rest
                && self.written == 0
                && rest.end - rest.start <= SMALL_BYTES
            {
                append(&mut self.head, file, rest.clone())?;
                rest.start = rest.end;
            }
            let more =
                P::SENDS_FILES && self.rest.as_ref().is_some_and(|(_, rest)| !rest.is_empty());
            let sent = P::write(&self.stream, &self.head[self.written..], more)?;
            self.written += sent;
            sent
        } else if let Some((file, rest)) = rest {
            if !P::SENDS_FILES {
                let end = rest.end.min(rest.start + PART_BYTES);
                self.head.clear();
                self.written = 0;
                append(&mut self.head, file, rest.start..end)?;
                rest.start = end;
                return Ok(true);
            }
            let sent = P::send_file(&self.stream, file, rest.clone())?;
            if sent == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            rest.start += sent as u64;
            sent
        } else {
            return Ok(false);
        };
        if let Some(answer) = &mut self.answer {
            answer.sent += sent as u64;
        }
        Ok(true)
    }

    /// Handles an answer that was sent completely. Returns false if the connection must be closed.
    fn answered<P: Polled<Stream = S>>(&mut self, service: &mut Service) -> bool {
        self.rest = None;
        let Some(answer) = self.answer.take() else { return false };
        service.note(Some(self.peer.ip()), &answer);
        if answer.is_kept {
            return true;
        }
        // Closing a connection with unread data would make the kernel send a reset, which could
        // discard the answer at the client.
        let lingers = answer.status >= 400 || self.talk.is_begun();
        if lingers && P::shut_down(&self.stream).is_ok() {
            (self.lingering, self.due) = (Some(0), service.site.clock.now + LINGER);
        }
        lingers
    }
}

/// Appends a range of a file to `bytes`.
fn append(bytes: &mut Vec<u8>, file: &File, range: Range<u64>) -> io::Result<()> {
    let len = bytes.len();
    bytes.resize(len + (range.end - range.start) as usize, 0);
    file.read_exact_at(&mut bytes[len..], range.start)
}

impl<P: Polled> Serve for Readiness<P> {
    fn run(mut self) -> io::Result<Report> {
        let mut ready = Vec::new();
        let mut swept = self.service.site.clock.now;
        while self.end.is_none() || self.open > 0 {
            ready.clear();
            let reported = self.polled.wait(&mut ready, LOG_PERIOD)?;
            self.service.site.clock.look();
            let now = self.service.site.clock.now;
            let is_late = self.end.is_some_and(|end| end <= now);
            if is_late || (reported.end && self.end.is_some()) {
                break;
            }
            if reported.end {
                self.begin_end();
            }
            self.is_waiting |= reported.accept;
            for number in mem::take(&mut ready) {
                let (index, serial) = (number as u32, (number >> 32) as u32);
                if self.places[index as usize].serial == serial {
                    self.go_on(index);
                }
            }
            self.accept_all()?;
            if now - swept >= LOG_PERIOD {
                swept = now;
                self.sweep();
                self.write_log();
            }
        }
        let places = self.places.iter().filter_map(|place| place.connection.as_ref());
        let failures = places.filter(|connection| connection.answer.is_some()).count();
        self.service.report.failures += failures as u64;
        self.write_log();
        Ok(self.service.report)
    }
}
