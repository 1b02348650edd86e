//! The server with completions: each connection has one operation in progress. The queue sends
//! files, whose bytes never pass through this code.

use std::io;
use std::net::{IpAddr, Shutdown};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs::File, mem};

use rustix::io::Errno;
use towpath::events::{
    Action, Completion, Event, EventKind, EventQueue, Listener, Operation, SendFile, Source,
    Stream, Token,
};

use super::answer::Answer;
use super::talk::Talk;
use super::{
    EndBy, LINGER, LINGER_BYTES_MAX, LOG_PERIOD, PART_BYTES, RECEIVE_BYTES, Report, Serve, Service,
    UnderWay,
};

/// Parts of a file per operation: an operation for each part would cost as much as one for several.
const PARTS_AT_ONCE: u64 = 4;

/// The server with completions. See [the module](self).
pub(crate) struct Completions {
    queue: EventQueue,
    listener: Listener,
    service: Service,
    /// Indexed by place, which is the number of their operations.
    places: Vec<Option<Connection>>,
    free: Vec<u32>,
    open: usize,
    accepting: Option<Token>,
    /// The accept that has another connection to take, while the limit of connections is reached.
    waiting: Option<Token>,
    /// Receive buffers.
    buffers: Vec<Vec<u8>>,
    /// Time of this turn.
    now: Instant,
    /// When operations in progress are abandoned, once the server is ending.
    end: Option<Instant>,
}

struct Connection {
    stream: Stream,
    peer: Option<IpAddr>,
    talk: Talk,
    doing: Doing,
    /// Token of the operation in progress.
    token: Option<Token>,
    /// When the request must have arrived.
    due: Instant,
    answer: Option<UnderWay>,
    /// Bytes to send before more of the file.
    head: Vec<u8>,
    rest: Option<(Arc<File>, Range<u64>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Receiving,
    /// Sending a head of this many bytes, including a body that is no file.
    Sending(usize),
    /// Sending a part of a file, and the head before it.
    SendingFile,
    /// Reading and discarding; this many bytes so far.
    Lingering(usize),
}

/// Numbers of sources other than connections.
const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;
const TICK: u64 = u64::MAX - 2;
const LOG: u64 = u64::MAX - 3;
const END: u64 = u64::MAX - 4;
const AGAIN: u64 = u64::MAX - 5;
const OTHERS_MIN: u64 = AGAIN;
/// Most buffers that are kept.
const BUFFERS_MAX: usize = 1024;
/// Pause before another attempt if no connection could be accepted.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

impl Completions {
    /// Creates a server for the connections of `listener`.
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
        listener.set_nodelay(true)?;
        let accepting = Some(queue.accept(&listener, None, LISTENER)?);
        Ok(Self {
            now: queue.now(),
            queue,
            listener,
            service,
            places: Vec::new(),
            free: Vec::new(),
            open: 0,
            accepting,
            waiting: None,
            buffers: Vec::new(),
            end: None,
        })
    }

    /// Handles an event that is not a connection's. Returns false if the server must end.
    fn other(&mut self, event: &Event) -> io::Result<bool> {
        match (event.data, event.kind) {
            (LISTENER, EventKind::Connection) => self.accepted(event.token),
            (LISTENER, _) => {
                self.accepting = None;
                let ended = match self.queue.take(event.token) {
                    Some(Completion::Connected(Err(error))) => Some(error),
                    _ => None,
                };
                if self.end.is_none() {
                    match ended.as_ref().and_then(Errno::from_io_error) {
                        // A temporary shortage.
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
                if let (Some(Completion::Bytes(written)), Some(log)) =
                    (self.queue.take(event.token), &mut self.service.log)
                {
                    // A full disk only loses lines.
                    log.give_back(written.buffer);
                }
            }
            (STOP, _) if self.end.is_none() => self.begin_end()?,
            // The second request to end.
            (STOP | END, _) => return Ok(false),
            _ => {}
        }
        Ok(true)
    }

    /// Ends idle connections. Answers in progress continue for a while.
    fn begin_end(&mut self) -> io::Result<()> {
        self.service.site.is_ending = true;
        let end = self.queue.now() + self.service.limits.grace;
        self.end = Some(end);
        self.queue.add(Source::at(end), END)?;
        if let Some(token) = self.accepting {
            self.queue.cancel(token)?;
        }
        if let Some(token) = self.waiting.take() {
            drop(self.queue.take(token));
        }
        for connection in self.places.iter().flatten() {
            if connection.doing == Doing::Receiving
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
            let Some(Completion::Connected(Ok(connected))) = self.queue.take(token) else { return };
            if self.end.is_none() {
                // Looked up only if there is a log.
                let peer = self.service.log.is_some().then(|| connected.peer_addr()).flatten();
                self.open(connected.stream, peer.map(|peer| peer.ip()));
            }
        }
        self.waiting = Some(token);
    }

    fn open(&mut self, stream: Stream, peer: Option<IpAddr>) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[index as usize] = Some(Connection {
            stream,
            peer,
            talk: Talk::default(),
            doing: Doing::Receiving,
            token: None,
            due: self.now + self.service.limits.idle,
            answer: None,
            head: Vec::new(),
            rest: None,
        });
        self.open += 1;
        self.service.report.connections += 1;
        self.receive(index);
    }

    /// Handles the event of a connection, or of a head that was accepted earlier and is back.
    fn on_event(&mut self, event: &Event) {
        let index = event.data as u32;
        let connection = self.places[index as usize].as_mut();
        let Some(connection) = connection.filter(|found| found.token == Some(event.token)) else {
            drop(self.queue.take(event.token));
            return;
        };
        let doing = connection.doing;
        if let EventKind::Accepted { bytes } = event.kind {
            // If fewer bytes were accepted, the completion reports why.
            if doing == Doing::Sending(bytes) {
                self.sent(index, bytes as u64, true);
            }
            return;
        }
        match (doing, self.queue.take(event.token)) {
            (Doing::SendingFile, Some(Completion::FileSent(done))) => {
                self.sent(index, done.bytes, done.result.is_ok());
            }
            (Doing::Sending(len), Some(Completion::Sent(done))) => {
                let count = done.result.unwrap_or(0);
                self.sent(index, count as u64, count == len);
            }
            (Doing::Receiving, Some(Completion::Bytes(done))) => {
                self.received(index, done.result, done.buffer);
            }
            (Doing::Lingering(before), Some(Completion::Bytes(done))) => {
                self.keep_buffer(done.buffer);
                match done.result {
                    Ok(count @ 1..) if before + count < LINGER_BYTES_MAX => {
                        self.linger(index, before + count);
                    }
                    _ => self.close(index),
                }
            }
            // No other operation was started.
            _ => {}
        }
    }

    fn connection(&mut self, index: u32) -> &mut Connection {
        self.places[index as usize].as_mut().expect("it is open until it is closed here")
    }

    /// Waits for more of a request.
    fn receive(&mut self, index: u32) {
        let due = self.connection(index).due;
        self.begin_receive(index, Doing::Receiving, due);
    }

    fn begin_receive(&mut self, index: u32, doing: Doing, due: Instant) {
        let buffer = self.buffers.pop().unwrap_or_else(|| vec![0; RECEIVE_BYTES]);
        let connection = self.places[index as usize].as_mut().expect("it is open");
        match self.queue.receive(&connection.stream, buffer, Some(due), index.into()) {
            Ok(token) => (connection.token, connection.doing) = (Some(token), doing),
            Err(_) => self.close(index),
        }
    }

    fn received(&mut self, index: u32, result: io::Result<usize>, buffer: Vec<u8>) {
        let connection = self.places[index as usize].as_mut().expect("it is open");
        match &result {
            Ok(count @ 1..) => connection.talk.add(&buffer[..*count]),
            // RFC 9110 §15.5.9: answer a request that arrives too slowly.
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
        let connection = self.places[index as usize].as_mut().expect("it is open");
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

    /// Sends the rest of an answer, some parts at a time, so that the time limit of each operation
    /// ends answers to clients that do not receive.
    fn send_on(&mut self, index: u32) {
        let (due, data) = (self.now + self.service.limits.idle, index.into());
        let connection = self.places[index as usize].as_mut().expect("it is open");
        let head = mem::take(&mut connection.head);
        let begun = match &mut connection.rest {
            Some((file, rest)) if !rest.is_empty() => {
                let end = rest.end.min(rest.start + PARTS_AT_ONCE * PART_BYTES);
                let parts = (end - rest.start).div_ceil(PART_BYTES) as u32;
                let due = self.now + parts * self.service.limits.idle;
                let range = mem::replace(&mut rest.start, end)..end;
                let file = file.clone();
                let parts = SendFile { header: head, file, range, trailer: Vec::new() };
                connection.doing = Doing::SendingFile;
                let begun = self.queue.send_file(&connection.stream, parts, Some(due), data);
                begun.map_err(|refused| refused.error)
            }
            _ if !head.is_empty() => {
                connection.doing = Doing::Sending(head.len());
                let begun = self.queue.send(&connection.stream, head, Some(due), data);
                begun.map_err(|refused| refused.error)
            }
            _ => return self.answered(index),
        };
        match begun {
            Ok(token) => connection.token = Some(token),
            Err(_) => self.fail(index),
        }
    }

    /// Handles the completion of a send. If not everything was sent, the promised length cannot be
    /// kept, and closing the connection reports that to the client.
    fn sent(&mut self, index: u32, bytes: u64, is_all: bool) {
        if let Some(answer) = &mut self.connection(index).answer {
            answer.sent += bytes;
        }
        if is_all { self.send_on(index) } else { self.fail(index) }
    }

    /// Handles an answer that was sent completely.
    fn answered(&mut self, index: u32) {
        let due = self.now + self.service.limits.idle;
        let connection = self.places[index as usize].as_mut().expect("it is open");
        connection.due = due;
        connection.rest = None;
        let Some(answer) = connection.answer.take() else { return };
        self.service.note(connection.peer, &answer);
        if answer.is_kept {
            return self.go_on(index);
        }
        // Closing a connection with unread data would make the kernel send a reset, which could
        // discard the answer at the client.
        if answer.status >= 400 || connection.talk.is_begun() {
            let _ = connection.stream.shutdown(Shutdown::Write);
            return self.linger(index, 0);
        }
        self.close(index);
    }

    fn linger(&mut self, index: u32, read: usize) {
        let due = if read == 0 { self.now + LINGER } else { self.connection(index).due };
        self.connection(index).due = due;
        self.begin_receive(index, Doing::Lingering(read), due);
    }

    /// Abandons an answer.
    fn fail(&mut self, index: u32) {
        let connection = self.places[index as usize].as_mut().expect("it is open");
        self.service.report.failures += 1;
        if let Some(answer) = connection.answer.take() {
            self.service.note(connection.peer, &answer);
        }
        self.close(index);
    }

    fn close(&mut self, index: u32) {
        self.places[index as usize] = None;
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

    fn write_log(&mut self) {
        let Some(log) = &mut self.service.log else { return };
        let Some(buffer) = log.take() else { return };
        // The file is in append mode, so the offset is ignored.
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
            self.now = self.queue.now();
            self.service.site.clock.look();
            for event in &events {
                if event.data < OTHERS_MIN {
                    self.on_event(event);
                } else if !self.other(event)? {
                    break 'turns;
                }
            }
            if self.service.log.as_ref().is_some_and(super::log::Log::is_full) {
                self.write_log();
            }
        }
        let failures =
            self.places.iter().flatten().filter(|connection| connection.answer.is_some()).count();
        self.service.report.failures += failures as u64;
        self.finish_log()?;
        Ok(self.service.report)
    }
}
