//! Clients that begin requests at fixed times, or that wait for their answers. One thread, and for
//! all servers the same code: an event queue, on the kernel's sockets by epoll.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use towpath::events::{Choice, Completion, Config, Event, EventQueue, Stack, Stream};

use super::{ANSWER_BYTES, REQUEST_BYTES};

/// When requests begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// One after each interval, whether or not earlier ones were answered.
    Every(Duration),
    /// This many clients begin one when they have the answer to the last.
    Clients(usize),
}

/// What became of the requests.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) begun: u64,
    /// Requests without a complete answer within [`TIMEOUT`].
    pub(super) errors: u64,
    /// For each answer, the time since its request was due.
    pub(super) times: Vec<Duration>,
}

impl Asked {
    /// Answers per second of a measurement of `span`.
    pub(super) fn per_second(&self, span: Duration) -> f64 {
        self.times.len() as f64 / span.as_secs_f64()
    }
}

/// How long a request may take, from the moment at which it was due.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Most events of a wait.
const EVENTS_MAX: usize = 256;

struct Generator<'a> {
    clients: &'a Stack,
    to: SocketAddr,
    queue: EventQueue,
    /// By number, which is that of their operations.
    requests: Vec<Request>,
    free: Vec<usize>,
    buffers: Vec<Vec<u8>>,
    asked: Asked,
}

/// A request, or a place for one.
struct Request {
    due: Instant,
    /// Its connection, once there is one.
    stream: Option<Stream>,
}

/// Asks the server at `to` for a time of `span`, and waits until all requests are over.
pub(super) fn ask(
    clients: &Stack,
    to: SocketAddr,
    pace: Pace,
    span: Duration,
) -> anyhow::Result<Asked> {
    let back_end = match clients {
        Stack::Kernel => Choice::Epoll,
        Stack::Host(_) => Choice::Best,
    };
    let mut generator = Generator {
        clients,
        to,
        queue: EventQueue::with(&Config { back_end, ..Config::default() })?,
        requests: Vec::new(),
        free: Vec::new(),
        buffers: Vec::new(),
        asked: Asked::default(),
    };
    let (start, mut events) = (generator.queue.now(), Vec::new());
    let end = start + span;
    loop {
        let mut next = None;
        while let Some(due) = generator.due(pace, start).filter(|due| *due < end) {
            if due > generator.queue.now() {
                next = Some(due);
                break;
            }
            generator.begin(due);
        }
        if next.is_none() && generator.busy() == 0 {
            return Ok(generator.asked);
        }
        events.clear();
        generator.queue.wait_many(&mut events, 1..=EVENTS_MAX, next)?;
        for event in &events {
            generator.on_event(event);
        }
    }
}

impl Generator<'_> {
    /// Requests that are under way.
    fn busy(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    /// When the next request is due; `None` if that depends on an answer.
    fn due(&self, pace: Pace, start: Instant) -> Option<Instant> {
        match pace {
            _ if self.asked.begun == 0 => Some(start),
            // From the start, so that errors of the interval do not add up.
            Pace::Every(interval) => Some(
                start + Duration::from_secs_f64(interval.as_secs_f64() * self.asked.begun as f64),
            ),
            Pace::Clients(count) => (self.busy() < count).then(|| self.queue.now()),
        }
    }

    fn begin(&mut self, due: Instant) {
        self.asked.begun += 1;
        let request = Request { due, stream: None };
        let number = match self.free.pop() {
            Some(number) => {
                self.requests[number] = request;
                number
            }
            None => {
                self.requests.push(request);
                self.requests.len() - 1
            }
        };
        let limit = Some(due + TIMEOUT);
        if self.queue.connect(self.clients, self.to, limit, number as u64).is_err() {
            self.failed(number);
        }
    }

    fn on_event(&mut self, event: &Event) {
        let number = event.data as usize;
        match self.queue.take(event.token) {
            Some(Completion::Connected(Ok(connected))) => self.send(number, connected.stream),
            Some(Completion::Bytes(received)) => {
                self.buffers.push(received.buffer);
                let time = self.queue.now() - self.requests[number].due;
                match received.result {
                    Ok(ANSWER_BYTES) if time <= TIMEOUT => {
                        self.asked.times.push(time);
                        self.over(number);
                    }
                    _ => self.failed(number),
                }
            }
            _ => self.failed(number),
        }
    }

    fn send(&mut self, number: usize, stream: Stream) {
        let limit = Some(self.requests[number].due + TIMEOUT);
        let is_sent = stream.try_send(&[1; REQUEST_BYTES]).is_ok_and(|sent| sent == REQUEST_BYTES);
        let buffer = self.buffers.pop().unwrap_or_else(|| vec![0; ANSWER_BYTES]);
        match self.queue.receive_all(&stream, buffer, limit, number as u64) {
            Ok(_) if is_sent => self.requests[number].stream = Some(stream),
            // Without the request, the server's end or the time limit ends the receive.
            Ok(_) => {}
            Err(refused) => {
                self.buffers.push(refused.buffer);
                self.failed(number);
            }
        }
    }

    fn failed(&mut self, number: usize) {
        self.asked.errors += 1;
        self.over(number);
    }

    fn over(&mut self, number: usize) {
        self.requests[number].stream = None;
        self.free.push(number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Goal: requests begin at their times although none is answered, and each becomes an error
    /// when its own second is over.
    #[test]
    fn requests_do_not_wait_for_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let interval = Duration::from_millis(10);
        let asked = ask(&Stack::Kernel, to, Pace::Every(interval), 5 * interval).unwrap();
        assert_eq!((asked.begun, asked.errors, asked.times.len()), (5, 5, 0));
    }
}
