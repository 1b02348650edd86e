//! The servers: by operations of an event queue, and in the usual way by readiness events. Both
//! read a request, compute, answer and close, and both have one thread.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rustix::fd::OwnedFd;
use towpath::events::{
    Choice, Completion, Config, Event, EventKind, EventQueue, Interest, Listener, Source, Stream,
    Token, Trigger,
};
use towpath::host;

use super::{ANSWER_BYTES, CONNECTIONS_MAX, REQUEST_BYTES, WORK};
use crate::events::serve::server::readiness::Polled;
use crate::events::serve::server::{EndBy, Kernel, Stack};
use crate::ping_pong::Stopwatch;

/// Where a server listens.
pub(super) enum Listening {
    Kernel(TcpListener),
    Host(host::TcpListener),
}

/// Serves until `end` becomes readable.
pub(super) fn serve(system: &str, listening: Listening, end: Arc<OwnedFd>) -> anyhow::Result<()> {
    let back_end = match system {
        "io_uring" => Choice::IoUring,
        "epoll" => Choice::Epoll,
        _ => Choice::Best,
    };
    let queue = || EventQueue::with(&Config { back_end, ..Config::default() });
    let ends = EndBy::Readable(end.clone());
    match (system, listening) {
        ("plain epoll", Listening::Kernel(listener)) => by_readiness(Kernel::new(listener, ends)?)?,
        ("readiness", Listening::Host(listener)) => {
            by_readiness(Stack::new(queue()?, listener, ends)?)?;
        }
        (_, Listening::Kernel(listener)) => {
            Operations::new(queue()?, listener.into(), end)?.run()?
        }
        (_, Listening::Host(listener)) => Operations::new(queue()?, listener.into(), end)?.run()?,
    }
    Ok(())
}

/// What an application does for a request.
fn work() {
    let watch = Stopwatch::start();
    while watch.elapsed() < WORK {
        std::hint::spin_loop();
    }
}

/// Numbers of sources other than connections.
const LISTENER: u64 = u64::MAX;
const END: u64 = u64::MAX - 1;
/// Longest wait of a server without clients.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The server by operations.
struct Operations {
    queue: EventQueue,
    accepting: Token,
    /// The accept may have more connections.
    is_waiting: bool,
    /// By number, which is that of their operations. A connection has one operation.
    places: Vec<Option<(Stream, Token)>>,
    free: Vec<usize>,
    requests: Vec<Vec<u8>>,
    answers: Vec<Vec<u8>>,
}

impl Operations {
    fn new(mut queue: EventQueue, listener: Listener, end: Arc<OwnedFd>) -> io::Result<Self> {
        listener.set_nodelay(true)?;
        queue.add(Source::fd(end, Interest::READ, Trigger::Edge), END)?;
        let accepting = queue.accept(listener, None, LISTENER)?;
        Ok(Self {
            queue,
            accepting,
            is_waiting: false,
            places: Vec::new(),
            free: Vec::new(),
            requests: Vec::new(),
            answers: Vec::new(),
        })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::new();
        loop {
            events.clear();
            self.queue.wait(&mut events, None)?;
            for event in &events {
                match event.data {
                    END => return Ok(()),
                    LISTENER => self.is_waiting = true,
                    _ => self.on_event(event),
                }
            }
            self.accept_all();
        }
    }

    fn accept_all(&mut self) {
        while self.is_waiting && self.places.len() - self.free.len() < CONNECTIONS_MAX {
            match self.queue.take(self.accepting) {
                Some(Completion::Connected(Ok(connected))) => self.open(connected.stream),
                _ => self.is_waiting = false,
            }
        }
    }

    fn open(&mut self, stream: Stream) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let buffer = self.requests.pop().unwrap_or_else(|| vec![0; REQUEST_BYTES]);
        match self.queue.receive_all(&stream, buffer, None, number as u64) {
            Ok(token) => self.places[number] = Some((stream, token)),
            Err(_) => self.free.push(number),
        }
    }

    fn on_event(&mut self, event: &Event) {
        let number = event.data as usize;
        let is_current = matches!(&self.places[number], Some((_, token)) if *token == event.token);
        if let EventKind::Accepted { .. } = event.kind {
            // The socket has the answer.
            return self.close(number);
        }
        match self.queue.take(event.token) {
            Some(Completion::Bytes(received)) => {
                self.requests.push(received.buffer);
                match received.result {
                    Ok(REQUEST_BYTES) => self.answer(number),
                    _ => self.close(number),
                }
            }
            Some(Completion::Sent(sent)) => {
                self.answers.extend(sent.buffer.downcast::<Vec<u8>>().ok());
                if is_current {
                    self.close(number);
                }
            }
            _ => {}
        }
    }

    fn answer(&mut self, number: usize) {
        work();
        let Some((stream, token)) = &mut self.places[number] else { return };
        let answer = self.answers.pop().unwrap_or_else(|| vec![7; ANSWER_BYTES]);
        match self.queue.send(&*stream, answer, None, number as u64) {
            Ok(sending) => *token = sending,
            Err(_) => self.close(number),
        }
    }

    fn close(&mut self, number: usize) {
        self.places[number] = None;
        self.free.push(number);
    }
}

/// The server by readiness.
fn by_readiness<P: Polled>(mut polled: P) -> io::Result<()> {
    let mut places: Vec<Option<P::Stream>> = Vec::new();
    let (mut free, mut ready, mut is_waiting) = (Vec::new(), Vec::new(), false);
    let answer = vec![7; ANSWER_BYTES];
    loop {
        let waited = polled.wait(&mut ready, WAIT_MAX)?;
        if waited.end {
            return Ok(());
        }
        is_waiting |= waited.accept;
        let mut close = |polled: &mut P, places: &mut [Option<P::Stream>], number: usize| {
            if let Some(stream) = places[number].take() {
                polled.close(stream);
                free.push(number);
            }
        };
        for number in ready.drain(..).map(|number| number as usize) {
            if let Some(Some(stream)) = places.get(number)
                && is_over::<P>(stream, &answer)
            {
                close(&mut polled, &mut places, number);
            }
        }
        while is_waiting && places.len() - free.len() < CONNECTIONS_MAX {
            let number = free.last().copied().unwrap_or(places.len());
            match polled.accept(number as u64) {
                Ok(Some((stream, _))) => {
                    if free.pop().is_none() {
                        places.push(None);
                    }
                    // The request is often there already.
                    match is_over::<P>(&stream, &answer) {
                        true => {
                            polled.close(stream);
                            free.push(number);
                        }
                        false => places[number] = Some(stream),
                    }
                }
                _ => is_waiting = false,
            }
        }
    }
}

/// Answers the request of a connection if it is there. True if the connection is over.
fn is_over<P: Polled>(stream: &P::Stream, answer: &[u8]) -> bool {
    let mut request = [0; REQUEST_BYTES];
    match P::read(stream, &mut request) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
        Ok(REQUEST_BYTES) => {
            work();
            // An empty socket has room for all of it.
            let _ = P::write(stream, answer, false);
            true
        }
        _ => true,
    }
}
