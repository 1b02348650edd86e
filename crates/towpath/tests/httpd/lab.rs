//! A server with a directory of its own, and clients that exchange single bytes with it.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use towpath::events::{Choice, Config, EventQueue};
use towpath::host::{self, Host};

use crate::server::{Completions, EndBy, Kernel, Limits, Readiness, Report, Serve, Service, Stack};

/// The sockets and the engine that the server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// Operations on a towpath host.
    Host,
    /// Readiness of sockets of a towpath host.
    HostReadiness,
    /// Operations on kernel sockets, with this back end.
    Kernel(Choice),
    /// Plain epoll on kernel sockets.
    Plain,
}

pub(crate) const SYSTEMS: [System; 5] = [
    System::Host,
    System::HostReadiness,
    System::Kernel(Choice::Best),
    System::Kernel(Choice::Epoll),
    System::Plain,
];

/// Time limit of every step that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const LIMITS: Limits = Limits { connections: 64, idle: PATIENCE, grace: PATIENCE };

pub(crate) struct Lab {
    pub(crate) root: PathBuf,
    address: SocketAddr,
    /// The hosts of the clients and of the server.
    hosts: Option<(Host, Host)>,
    end: Arc<OwnedFd>,
    server: Option<JoinHandle<Report>>,
}

impl Lab {
    pub(crate) fn new(system: System, limits: Limits) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: the number only has to be unique.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-httpd-test-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir(&root).unwrap();
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let service = root.clone();
        let service = move || {
            let log = service.with_extension("log");
            Service::new(&service, Some(&log), limits).unwrap()
        };
        let readable = EndBy::Readable(end.clone());
        let mut lab =
            Self { root, address: ADDRESS.parse().unwrap(), hosts: None, end, server: None };
        if let System::Host | System::HostReadiness = system {
            let config = |address: [u8; 4]| host::Config::with_address(address, 24);
            let (server, clients) =
                Host::pair(&config([10, 7, 0, 1]), &config([10, 7, 0, 2])).unwrap();
            let listener = host::TcpListener::bind(&server, lab.address).unwrap();
            lab.hosts = Some((clients, server));
            lab.server = Some(thread::spawn(move || match system {
                System::Host => run(Completions::new(
                    queue(Choice::Best),
                    listener.into(),
                    service(),
                    &readable,
                )),
                _ => run(Stack::new(queue(Choice::Best), listener, readable)
                    .map(|stack| Readiness::new(stack, service()))),
            }));
        } else {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            lab.address = listener.local_addr().unwrap();
            lab.server =
                Some(thread::spawn(move || match system {
                    System::Kernel(choice) => {
                        run(Completions::new(queue(choice), listener.into(), service(), &readable))
                    }
                    _ => run(Kernel::new(listener, readable)
                        .map(|kernel| Readiness::new(kernel, service()))),
                }));
        }
        lab
    }

    /// Creates a file with a recognisable pattern.
    pub(crate) fn file(&self, name: &str, len: usize) -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + at / 251) as u8).collect();
        fs::write(self.root.join(name), &bytes).unwrap();
        bytes
    }

    /// Creates a sparse file.
    pub(crate) fn large(&self, name: &str, len: u64) {
        fs::File::create(self.root.join(name)).unwrap().set_len(len).unwrap();
    }

    pub(crate) fn connect(&self) -> Client {
        let stream: Box<dyn Stream> = match &self.hosts {
            Some((clients, _)) => {
                let stream = host::TcpStream::connect(clients, self.address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                Box::new(stream)
            }
            None => {
                let stream = std::net::TcpStream::connect(self.address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                Box::new(stream)
            }
        };
        Client { stream, buffer: Vec::new() }
    }

    /// Asks the server to end.
    pub(crate) fn ask_to_end(&self) {
        rustix::io::write(&self.end, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Ends the server, which must be quick once there are no connections.
    pub(crate) fn end(&mut self) -> (Report, String) {
        self.ask_to_end();
        let report = self.server.take().unwrap().join().unwrap();
        let log = fs::read_to_string(self.root.with_extension("log")).unwrap();
        (report, log)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.ask_to_end();
        }
        let _ = fs::remove_dir_all(&self.root);
        let _ = fs::remove_file(self.root.with_extension("log"));
    }
}

fn queue(back_end: Choice) -> EventQueue {
    EventQueue::with(&Config { back_end, ..Config::default() }).unwrap()
}

fn run(server: std::io::Result<impl Serve>) -> Report {
    server.unwrap().run().unwrap()
}

trait Stream: Read + Write + Send {
    fn end_writing(&self);
}

impl Stream for std::net::TcpStream {
    fn end_writing(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Stream for host::TcpStream {
    fn end_writing(&self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

/// A client's end of a connection.
pub(crate) struct Client {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    pub(crate) fn len(&self) -> u64 {
        self.field("Content-Length").map_or(0, |len| len.parse().unwrap())
    }
}

impl Client {
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends as long as the server receives.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    pub(crate) fn end_writing(&self) {
        self.stream.end_writing();
    }

    /// Receives more bytes. Returns false at the end of the stream.
    fn more(&mut self) -> bool {
        let at = self.buffer.len();
        self.buffer.resize(at + (64 << 10), 0);
        let count = match self.stream.read(&mut self.buffer[at..]) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("{error}"),
        };
        self.buffer.truncate(at + count);
        count > 0
    }

    /// Receives a status line and headers.
    pub(crate) fn head(&mut self) -> Answer {
        let end = loop {
            match self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                Some(at) => break at + 4,
                None => assert!(self.more(), "{:?}", String::from_utf8_lossy(&self.buffer)),
            }
        };
        let head = String::from_utf8(self.buffer.drain(..end).collect()).unwrap();
        let status = head[9..12].parse().unwrap();
        assert!(head.starts_with("HTTP/1.1 "), "{head}");
        Answer { status, head, body: Vec::new() }
    }

    /// Receives an answer with a body.
    pub(crate) fn answer(&mut self) -> Answer {
        let mut answer = self.head();
        let len = answer.len() as usize;
        while self.buffer.len() < len {
            assert!(self.more(), "{} of {len} bytes: {}", self.buffer.len(), answer.head);
        }
        answer.body = self.buffer.drain(..len).collect();
        answer
    }

    pub(crate) fn get(&mut self, path: &str, fields: &str) -> Answer {
        self.send(request("GET", path, fields));
        self.answer()
    }

    /// Returns the number of bytes until the end of the stream.
    pub(crate) fn until_end(&mut self) -> u64 {
        let mut count = 0;
        loop {
            count += self.buffer.len() as u64;
            self.buffer.clear();
            if !self.more() {
                return count;
            }
        }
    }
}

/// Returns the text of a request; each line of `fields` must be terminated.
pub(crate) fn request(method: &str, path: &str, fields: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: towpath\r\n{fields}\r\n")
}

const ADDRESS: &str = "10.7.0.1:80";
