//! The HTTP server on the host's loopback: it answers one GET or PUT request, and ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use crate::data::{self, BLOCK, Source};
use crate::{Direction, Result};

/// A server that runs in a thread.
pub(crate) struct Server {
    address: SocketAddr,
    thread: JoinHandle<io::Result<Served>>,
}

/// The result of a request.
enum Served {
    /// The number of bytes sent.
    Sent(usize),
    /// The bytes received.
    Received(Vec<u8>),
}

impl Server {
    /// Listens on a free port.
    pub(crate) fn start(direction: Direction, bytes: usize) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let room = match direction {
            Direction::ToProgram => Vec::new(),
            Direction::ToHost => data::room(bytes),
        };
        let thread = thread::spawn(move || serve(listener, bytes, room));
        Ok(Self { address, thread })
    }

    /// Returns the address on which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the SHA-256 of what was sent or received, after the client has got its answer.
    pub(crate) fn finish(self) -> Result<String> {
        match self.thread.join().map_err(|_| "the server failed")?? {
            Served::Sent(bytes) => Source::new(bytes).sha256(),
            Served::Received(bytes) => data::sha256(|to| to.write_all(&bytes)),
        }
    }
}

fn serve(listener: TcpListener, bytes: usize, mut room: Vec<u8>) -> io::Result<Served> {
    let (stream, _) = listener.accept()?;
    let mut to = stream.try_clone()?;
    let mut from = BufReader::with_capacity(BLOCK, stream);
    let (request, length) = read_head(&mut from)?;
    if request.starts_with("PUT /data ") && length == Some(room.len()) {
        from.read_exact(&mut room)?;
        to.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
        return Ok(Served::Received(room));
    }
    if request.starts_with("GET /data ") {
        send(&mut to, bytes)?;
        return Ok(Served::Sent(bytes));
    }
    to.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("request: {request}")))
}

fn send(to: &mut TcpStream, bytes: usize) -> io::Result<()> {
    write!(to, "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n")?;
    let mut source = Source::new(bytes);
    loop {
        match source.next() {
            [] => return Ok(()),
            block => to.write_all(block)?,
        }
    }
}

/// Parses the first line and `Content-Length` of a request or an answer.
pub(crate) fn read_head(from: &mut impl BufRead) -> io::Result<(String, Option<usize>)> {
    let mut lines = from.lines();
    let mut next = || lines.next().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
    let first = next()?;
    let mut length = None;
    loop {
        let line = next()?;
        if line.is_empty() {
            return Ok((first, length));
        }
        let field =
            line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        length = length.or(field.and_then(|(_, value)| value.trim().parse().ok()));
    }
}
