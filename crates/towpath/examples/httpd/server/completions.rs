//! The server with operations: each connection has one under way, or an answer whose buffers are
//! not back yet.

use std::io;
use std::net::{IpAddr, Shutdown};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs::File, mem};

use rustix::io::Errno;
use towpath::events::{
    Action, Event, EventQueue, Listener, News, Operation, Source, Stream, Token,
};

use super::answer::Answer;
use super::talk::Talk;
use super::{
    EndBy, LINGER, LINGER_BYTES_MAX, LOG_PERIOD, PART_BYTES, RECEIVE_BYTES, Report, SMALL_BYTES,
    Serve, Service, UnderWay,
};

/// See [the module](self).
pub(crate) struct Completions {
    queue: EventQueue,
    listener: Listener,
    service: Service,
    /// By place; the number of each is that of the place and of how many were there before.
    places: Vec<Place>,
    free: Vec<u32>,
    open: usize,
    accepting: Option<Token>,
    /// A connection that waits for one to end.
    waiting: Option<Token>,
    /// Buffers to receive into.
    buffers: Vec<Vec<u8>>,
    /// Buffers for parts of files.
    parts: Vec<Vec<u8>>,
    /// When what is under way is given up, once the server is ending.
    end: Option<Instant>,
}

#[derive(Default)]
struct Place {
    serial: u32,
    connection: Option<Connection>,
}

struct Connection {
    stream: Stream,
    peer: Option<IpAddr>,
    talk: Talk,
    doing: Doing,
    /// Of what it is doing.
    token: Option<Token>,
    /// When the request must have come.
    due: Instant,
    answer: Option<UnderWay>,
    /// What is to be sent before more of the file.
    head: Vec<u8>,
    rest: Option<(Arc<File>, Range<u64>)>,
    /// Buffers that were accepted and are not back.
    out: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Receiving,
    /// From the file.
    Reading,
    /// So many bytes.
    Sending(usize),
    /// Waiting for a buffer to come back.
    Pausing,
    /// Reading what nobody wants, so much so far.
    Lingering(usize),
}

/// Numbers of sources that are no connections.
const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;
const TICK: u64 = u64::MAX - 2;
const LOG: u64 = u64::MAX - 3;
const END: u64 = u64::MAX - 4;
const AGAIN: u64 = u64::MAX - 5;
const OTHERS_MIN: u64 = AGAIN;
/// Buffers of one connection that are out at a time.
const OUT_MAX: usize = 4;
/// Buffers that are kept.
const BUFFERS_MAX: usize = 1024;
/// The same of parts of files.
const PARTS_MAX: usize = 64;
/// When no connection could be accepted, it is tried again after so long.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Completions {
    /// Serves what `listener` accepts.
    pub(crate) fn new(
        mut queue: EventQueue,
        listener: Listener,
        service: Service,
        end: &EndBy,
    ) -> io::Result<Self> {
        for source in end.sources() {
            queue.add(source, STOP)?;
        }
        queue.add(Source::every(queue.now() + LOG_PERIOD, LOG_PERIOD), TICK)?;
        let accepting = Some(queue.accept(&listener, None, LISTENER)?);
        Ok(Self {
            queue,
            listener,
            service,
            places: Vec::new(),
            free: Vec::new(),
            open: 0,
            accepting,
            waiting: None,
            buffers: Vec::new(),
            parts: Vec::new(),
            end: None,
        })
    }

    /// One of the sources that are no connections. False if all is over.
    fn other(&mut self, event: &Event) -> io::Result<bool> {
        match (event.data, event.news) {
            (LISTENER, News::Accepted) => self.accepted(event.token),
            (LISTENER, _) => {
                self.accepting = None;
                let ended = self.queue.take_stream(event.token).and_then(Result::err);
                if self.end.is_none() {
                    match ended.as_ref().and_then(Errno::from_io_error) {
                        // That may be over soon.
                        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {}
                        _ => return Err(ended.unwrap_or_else(|| Errno::IO.into())),
                    }
                    self.queue.add(Source::at(self.queue.now() + AGAIN_AFTER), AGAIN)?;
                }
            }
            (AGAIN, _) if self.end.is_none() => {
                self.accepting = Some(self.queue.accept(&self.listener, None, LISTENER)?);
            }
            (TICK, _) => self.write_log(),
            (LOG, _) => {
                if let (Some(written), Some(log)) =
                    (self.queue.take(event.token), &mut self.service.log)
                {
                    // A disk that is full loses lines, and nothing else.
                    log.give_back(written.buffer);
                }
            }
            (STOP, _) if self.end.is_none() => self.begin_end()?,
            // Asked twice.
            (STOP | END, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    }

    /// Ends what nobody waits for; answers under way go on for a while.
    fn begin_end(&mut self) -> io::Result<()> {
        self.service.site.is_ending = true;
        let end = self.queue.now() + self.service.limits.grace;
        self.end = Some(end);
        self.queue.add(Source::at(end), END)?;
        if let Some(token) = self.accepting {
            self.queue.cancel(token)?;
        }
        if let Some(token) = self.waiting.take() {
            drop(self.queue.take_stream(token));
        }
        for place in &self.places {
            if let Some(connection) = &place.connection
                && connection.doing == Doing::Receiving
                && !connection.talk.is_begun()
                && let Some(token) = connection.token
            {
                self.queue.cancel(token)?;
            }
        }
        Ok(())
    }

    fn accepted(&mut self, token: Token) {
        while self.open < self.service.limits.connections {
            let Some(Ok((stream, peer))) = self.queue.take_stream(token) else { return };
            // One that has ended already shows that later.
            let _ = stream.set_nodelay(true);
            if self.end.is_none() {
                self.open(stream, peer.map(|peer| peer.ip()));
            }
        }
        self.waiting = Some(token);
    }

    fn open(&mut self, stream: Stream, peer: Option<IpAddr>) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        self.places[index as usize].connection = Some(Connection {
            stream,
            peer,
            talk: Talk::default(),
            doing: Doing::Receiving,
            token: None,
            due: self.queue.now() + self.service.limits.idle,
            answer: None,
            head: Vec::new(),
            rest: None,
            out: 0,
        });
        self.open += 1;
        self.service.report.connections += 1;
        self.receive(index);
    }

    /// News of a connection; of one that is no more, a buffer that is back.
    fn news(&mut self, event: &Event) {
        let (index, serial) = (event.data as u32, (event.data >> 32) as u32);
        let place = &mut self.places[index as usize];
        let current = place.connection.as_mut().filter(|_| place.serial == serial);
        let Some(connection) = current else {
            let done = self.queue.take(event.token);
            return self.keep_part(done.map(|done| done.buffer).unwrap_or_default());
        };
        if connection.token != Some(event.token) {
            // Accepted before, and back now.
            connection.out -= 1;
            let timer = connection.token.take_if(|_| connection.doing == Doing::Pausing);
            let done = self.queue.take(event.token);
            self.keep_part(done.map(|done| done.buffer).unwrap_or_default());
            if let Some(timer) = timer {
                // It was set, and has not been told of.
                let _ = self.queue.remove(timer);
                self.send_on(index);
            }
            return;
        }
        if let (News::Sent { bytes }, Doing::Sending(len)) = (event.news, connection.doing) {
            // Fewer: its end tells why.
            if bytes == len {
                connection.token = None;
                connection.out += 1;
                self.sent(index, len);
            }
            return;
        }
        connection.token = None;
        if connection.doing == Doing::Pausing {
            return self.fail(index);
        }
        let Some(done) = self.queue.take(event.token) else { return };
        match connection.doing {
            Doing::Receiving => self.received(index, done.result, done.buffer),
            Doing::Reading => self.read(index, done.result, done.buffer),
            Doing::Sending(len) => match done.result {
                Ok(count) if count == len => self.sent(index, len),
                _ => self.fail(index),
            },
            Doing::Lingering(before) => {
                let read = before + done.result.as_ref().map_or(0, |count| *count);
                self.keep_buffer(done.buffer);
                match done.result {
                    Ok(1..) if read < LINGER_BYTES_MAX => self.linger(index, read),
                    _ => self.close(index),
                }
            }
            Doing::Pausing => unreachable!("that is a timer, which was seen to before"),
        }
    }

    fn connection(&mut self, index: u32) -> &mut Connection {
        let place = &mut self.places[index as usize];
        place.connection.as_mut().expect("it is open until it is closed here")
    }

    fn data(&self, index: u32) -> u64 {
        u64::from(self.places[index as usize].serial) << 32 | u64::from(index)
    }

    /// Waits for more of a request.
    fn receive(&mut self, index: u32) {
        let due = self.connection(index).due;
        self.begin_receive(index, Doing::Receiving, due);
    }

    fn begin_receive(&mut self, index: u32, doing: Doing, due: Instant) {
        let buffer = self.buffers.pop().unwrap_or_else(|| vec![0; RECEIVE_BYTES]);
        let data = self.data(index);
        let connection = self.places[index as usize].connection.as_mut().expect("it is open");
        match self.queue.receive(&connection.stream, buffer, Some(due), data) {
            Ok(token) => (connection.token, connection.doing) = (Some(token), doing),
            Err(_) => self.close(index),
        }
    }

    fn received(&mut self, index: u32, result: io::Result<usize>, buffer: Vec<u8>) {
        let connection = self.places[index as usize].connection.as_mut().expect("it is open");
        match &result {
            Ok(count @ 1..) => connection.talk.add(&buffer[..*count]),
            // A request that comes too slowly is told so (RFC 9110 §15.5.9).
            Err(error)
                if Errno::from_io_error(error) == Some(Errno::TIMEDOUT)
                    && connection.talk.is_begun() =>
            {
                self.keep_buffer(buffer);
                let answer = self.service.site.refuse(408);
                return self.answer(index, answer);
            }
            _ => {
                self.keep_buffer(buffer);
                return self.close(index);
            }
        }
        self.keep_buffer(buffer);
        self.go_on(index);
    }

    /// Answers the next request, or waits for it.
    fn go_on(&mut self, index: u32) {
        let connection = self.places[index as usize].connection.as_mut().expect("it is open");
        match connection.talk.next(&mut self.service.site) {
            Some(answer) => self.answer(index, answer),
            None if self.end.is_some() && !connection.talk.is_begun() => self.close(index),
            None => self.receive(index),
        }
    }

    fn answer(&mut self, index: u32, mut answer: Answer) {
        let connection = self.connection(index);
        connection.answer = Some(UnderWay::of(&mut answer));
        (connection.head, connection.rest) = (answer.head, answer.body);
        self.send_on(index);
    }

    /// Sends what is left of an answer, part by part.
    fn send_on(&mut self, index: u32) {
        let connection = self.connection(index);
        if connection.out >= OUT_MAX {
            return self.pause(index);
        }
        match &mut connection.rest {
            Some((file, rest)) if !rest.is_empty() => {
                let len = (rest.end - rest.start).min(PART_BYTES);
                if len > SMALL_BYTES && !connection.head.is_empty() {
                    let head = mem::take(&mut connection.head);
                    return self.send(index, head);
                }
                let (file, action) = (file.clone(), Action::Read(rest.start));
                let mut buffer = self.parts.pop().unwrap_or_default();
                buffer.resize(len as usize, 0);
                let operation = Operation { action, file, buffer };
                let data = self.data(index);
                match self.queue.submit(operation, None, data) {
                    Ok(token) => {
                        let connection = self.connection(index);
                        (connection.token, connection.doing) = (Some(token), Doing::Reading);
                    }
                    Err(_) => self.fail(index),
                }
            }
            _ if !connection.head.is_empty() => {
                let head = mem::take(&mut connection.head);
                self.send(index, head);
            }
            _ => self.answered(index),
        }
    }

    /// Waits for a buffer to come back, which the client may have to receive first.
    fn pause(&mut self, index: u32) {
        let (due, data) = (self.queue.now() + self.service.limits.idle, self.data(index));
        match self.queue.add(Source::at(due), data) {
            Ok(token) => {
                let connection = self.connection(index);
                (connection.token, connection.doing) = (Some(token), Doing::Pausing);
            }
            Err(_) => self.fail(index),
        }
    }

    /// A part of the file is there. Fewer bytes than there were: what was promised cannot be kept,
    /// and the client sees that by the end of the connection.
    fn read(&mut self, index: u32, result: io::Result<usize>, mut buffer: Vec<u8>) {
        let connection = self.connection(index);
        let Some((_, rest)) = &mut connection.rest else { return };
        let count = result.unwrap_or(0);
        if count < buffer.len() {
            return self.fail(index);
        }
        rest.start += count as u64;
        if !connection.head.is_empty() {
            let mut both = mem::take(&mut connection.head);
            both.extend_from_slice(&buffer);
            self.keep_part(mem::replace(&mut buffer, both));
        }
        self.send(index, buffer);
    }

    fn send(&mut self, index: u32, buffer: Vec<u8>) {
        let (len, data) = (buffer.len(), self.data(index));
        // What was accepted comes back then, copied, which is no sign that the client has received
        // it: later than a pause ends.
        let due = self.queue.now() + self.service.limits.idle * 2;
        let connection = self.places[index as usize].connection.as_mut().expect("it is open");
        match self.queue.send(&connection.stream, buffer, Some(due), data) {
            Ok(token) => {
                (connection.token, connection.doing) = (Some(token), Doing::Sending(len));
            }
            Err(_) => self.fail(index),
        }
    }

    fn sent(&mut self, index: u32, len: usize) {
        if let Some(answer) = &mut self.connection(index).answer {
            answer.sent += len as u64;
        }
        self.send_on(index);
    }

    /// An answer has been sent to its end.
    fn answered(&mut self, index: u32) {
        let due = self.queue.now() + self.service.limits.idle;
        let connection = self.places[index as usize].connection.as_mut().expect("it is open");
        connection.due = due;
        connection.rest = None;
        let Some(answer) = connection.answer.take() else { return };
        self.service.note(connection.peer, &answer);
        if answer.is_kept {
            return self.go_on(index);
        }
        // What has come and was not read would make the kernel send a reset, and take the answer
        // away from the client.
        if answer.status >= 400 || connection.talk.is_begun() {
            let _ = connection.stream.shutdown(Shutdown::Write);
            return self.linger(index, 0);
        }
        self.close(index);
    }

    fn linger(&mut self, index: u32, read: usize) {
        let due = if read == 0 { self.queue.now() + LINGER } else { self.connection(index).due };
        self.connection(index).due = due;
        self.begin_receive(index, Doing::Lingering(read), due);
    }

    /// Gives up an answer.
    fn fail(&mut self, index: u32) {
        let connection = self.places[index as usize].connection.as_mut().expect("it is open");
        self.service.report.failures += 1;
        if let Some(answer) = connection.answer.take() {
            self.service.note(connection.peer, &answer);
        }
        self.close(index);
    }

    fn close(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        place.connection = None;
        // Numbers of other sources are not reached.
        place.serial = (place.serial + 1) % (u32::MAX - 1);
        self.free.push(index);
        self.open -= 1;
        if let Some(token) = self.waiting.take() {
            self.accepted(token);
        }
    }

    fn keep_buffer(&mut self, buffer: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX {
            self.buffers.push(buffer);
        }
    }

    /// Keeps a buffer for parts of files.
    fn keep_part(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() as u64 >= SMALL_BYTES && self.parts.len() < PARTS_MAX {
            self.parts.push(buffer);
        }
    }

    fn write_log(&mut self) {
        let Some(log) = &mut self.service.log else { return };
        let Some(buffer) = log.take() else { return };
        // The file is appended to, wherever that is.
        let operation = Operation { action: Action::Write(0), file: log.file.clone(), buffer };
        if let Err(refused) = self.queue.submit(operation, None, LOG) {
            log.give_back(refused.operation.buffer);
        }
    }

    fn is_over(&self) -> bool {
        self.end.is_some() && self.open == 0
    }

    /// Waits until the log is written, but not for long.
    fn finish_log(&mut self) -> io::Result<()> {
        let end = self.queue.now() + LOG_PERIOD;
        let mut events = Vec::new();
        self.write_log();
        while self.service.log.as_ref().is_some_and(|log| !log.is_at_rest())
            && self.queue.now() < end
        {
            events.clear();
            self.queue.wait(&mut events, Some(end))?;
            for event in events.iter().filter(|event| event.data == LOG) {
                self.other(event)?;
            }
            self.write_log();
        }
        Ok(())
    }
}

impl Serve for Completions {
    fn run(mut self) -> io::Result<Report> {
        let mut events = Vec::new();
        'turns: while !self.is_over() {
            events.clear();
            self.queue.wait(&mut events, None)?;
            self.service.site.clock.look();
            for event in &events {
                if event.data < OTHERS_MIN {
                    self.news(event);
                } else if !self.other(event)? {
                    break 'turns;
                }
            }
            if self.service.log.as_ref().is_some_and(super::log::Log::is_full) {
                self.write_log();
            }
        }
        let places = self.places.iter().filter_map(|place| place.connection.as_ref());
        let failures = places.filter(|connection| connection.answer.is_some()).count();
        self.service.report.failures += failures as u64;
        self.finish_log()?;
        Ok(self.service.report)
    }
}
