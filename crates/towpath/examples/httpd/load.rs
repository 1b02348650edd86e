//! Clients on a towpath host in this process: many connections, each of which makes one request
//! after the other and counts the answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use httparse::{EMPTY_HEADER, Status};
use towpath::events::{Completion, Event, EventQueue, Stream, Token};
use towpath::host::Host;

/// Settings of the clients.
pub(crate) struct Load<'a> {
    pub(crate) host: &'a Host,
    pub(crate) server: SocketAddr,
    /// The path that they request.
    pub(crate) path: &'a str,
    pub(crate) connections: usize,
    /// True if a connection is used for more than one request.
    pub(crate) is_kept: bool,
    /// Requests are made until this number is reached,
    pub(crate) requests_max: u64,
    /// or until this time has passed.
    pub(crate) span: Duration,
}

/// Results of the clients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loaded {
    /// Complete answers.
    pub(crate) answers: u64,
    /// Failed connections, and wrong or incomplete answers.
    pub(crate) errors: u64,
    pub(crate) taken: Duration,
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes received at a time.
const RECEIVED_MAX: usize = 1 << 20;
const HEADERS_MAX: usize = 32;

#[derive(Default)]
struct Client {
    stream: Option<Stream>,
    /// Token of the operation in progress.
    token: Option<Token>,
    head: Vec<u8>,
    /// Remaining bytes of the body, once the head has arrived.
    left: Option<u64>,
}

struct Clients<'a> {
    load: &'a Load<'a>,
    queue: EventQueue,
    request: Vec<u8>,
    clients: Vec<Client>,
    begun: u64,
    /// Clients with an operation in progress.
    busy: usize,
    loaded: Loaded,
    end: Option<Instant>,
}

impl Load<'_> {
    /// Makes the requests.
    ///
    /// # Errors
    /// Fails if no request can be made.
    pub(crate) fn run(&self) -> anyhow::Result<Loaded> {
        let queue = EventQueue::new()?;
        let started = queue.now();
        let connection = if self.is_kept { "keep-alive" } else { "close" };
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: towpath\r\nConnection: {connection}\r\n\r\n",
            self.path
        );
        let mut clients = Clients {
            load: self,
            queue,
            request: request.into(),
            clients: (0..self.connections).map(|_| Client::default()).collect(),
            begun: 0,
            busy: 0,
            loaded: Loaded::default(),
            end: started.checked_add(self.span),
        };
        for index in 0..self.connections {
            clients.next(index)?;
        }
        let mut events = Vec::new();
        while clients.busy > 0 {
            events.clear();
            clients.queue.wait(&mut events, None)?;
            for event in &events {
                clients.on_event(event)?;
            }
        }
        clients.loaded.taken = clients.queue.now() - started;
        Ok(clients.loaded)
    }
}

impl Clients<'_> {
    /// Starts the next request of a client, if there is one.
    fn next(&mut self, index: usize) -> anyhow::Result<()> {
        if self.begun >= self.load.requests_max
            || self.end.is_some_and(|end| self.queue.now() >= end)
        {
            self.clients[index] = Client::default();
            return Ok(());
        }
        self.begun += 1;
        self.busy += 1;
        let (deadline, data) = (Some(self.queue.now() + PATIENCE), index as u64);
        if self.clients[index].stream.is_some() {
            return self.ask(index);
        }
        let token = self.queue.connect(self.load.host, self.load.server, deadline, data)?;
        self.clients[index].token = Some(token);
        Ok(())
    }

    fn ask(&mut self, index: usize) -> anyhow::Result<()> {
        let client = &mut self.clients[index];
        let stream = client.stream.as_ref().context("it is connected")?;
        client.head.clear();
        client.left = None;
        match stream.try_send(&self.request) {
            Ok(count) if count == self.request.len() => self.receive(index),
            _ => self.failed(index),
        }
    }

    fn receive(&mut self, index: usize) -> anyhow::Result<()> {
        let client = &mut self.clients[index];
        let stream = client.stream.as_ref().context("it is connected")?;
        let deadline = Some(self.queue.now() + PATIENCE);
        let token = self.queue.receive_lent(stream, RECEIVED_MAX, deadline, index as u64)?;
        client.token = Some(token);
        Ok(())
    }

    fn on_event(&mut self, event: &Event) -> anyhow::Result<()> {
        let index = event.data as usize;
        if self.clients[index].stream.is_none() {
            return match self.queue.take(event.token) {
                Some(Completion::Connected(Ok(connected))) => {
                    let _ = connected.stream.set_nodelay(true);
                    self.clients[index].stream = Some(connected.stream);
                    self.ask(index)
                }
                _ => self.failed(index),
            };
        }
        let pieces = match self.queue.take(event.token) {
            Some(Completion::Pieces(Ok(pieces))) => pieces,
            _ => return self.failed(index),
        };
        if pieces.is_empty() {
            return self.failed(index);
        }
        for piece in pieces {
            let client = &mut self.clients[index];
            let taken = match &mut client.left {
                Some(left) => left.checked_sub(piece.len() as u64).map(|now| *left = now),
                None => client.head(&piece.bytes().context("it is private memory")?).ok(),
            };
            if taken.is_none() {
                return self.failed(index);
            }
        }
        if self.clients[index].left == Some(0) {
            self.loaded.answers += 1;
            self.busy -= 1;
            if !self.load.is_kept {
                self.clients[index].stream = None;
            }
            return self.next(index);
        }
        self.receive(index)
    }

    /// Counts an error; the client makes another connection.
    fn failed(&mut self, index: usize) -> anyhow::Result<()> {
        self.loaded.errors += 1;
        self.busy -= 1;
        self.clients[index] = Client::default();
        ensure!(
            self.loaded.errors < ERRORS_MAX || self.loaded.answers > 0,
            "no request is answered"
        );
        self.next(index)
    }
}

/// Errors without any answer before the run is aborted.
const ERRORS_MAX: u64 = 1000;

impl Client {
    /// Takes bytes of the head, and bytes of the body that arrived with them.
    fn head(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.head.extend_from_slice(bytes);
        let mut headers = [EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let Status::Complete(head_len) = response.parse(&self.head)? else { return Ok(()) };
        if response.code != Some(200) {
            bail!("the status is {:?}", response.code);
        }
        let field = response.headers.iter().find(|field| field.name == "Content-Length");
        let value = std::str::from_utf8(field.context("no length")?.value)?;
        let len: u64 = value.parse()?;
        let early = (self.head.len() - head_len) as u64;
        self.left = Some(len.checked_sub(early).context("more than was said")?);
        Ok(())
    }
}
