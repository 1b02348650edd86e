//! An echo server on one event queue: connections of the kernel and of a towpath host side by side,
//! with a timer that reports counts and a notification that ends the server.
//!
//! The clients share a queue, too, and check that each byte comes back unchanged.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use towpath::events::{
    Choice, Config, EventKind, EventQueue, Interest, Source, Stream, Token, Trigger,
};
use towpath::host::{self, Host};

/// Run an echo server on one event queue, and its clients.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Connections of each kind.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4000))]
    connections: u32,

    /// Bytes that each client sends and expects back.
    #[arg(long, default_value_t = 256 << 10,
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    bytes: u32,

    /// Use epoll instead of io_uring.
    #[arg(long)]
    epoll: bool,
}

/// Numbers of sources other than connections.
const KERNEL_LISTENER: u64 = u64::MAX;
const HOST_LISTENER: u64 = u64::MAX - 1;
const TICK: u64 = u64::MAX - 2;
const END: u64 = u64::MAX - 3;
/// Bytes read at a time.
const BUFFER_BYTES: usize = 64 << 10;

fn later(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}

fn source(stream: &Stream) -> Source {
    Source::stream(stream, Interest::BOTH, Trigger::Edge)
}

fn queue(arguments: &Arguments) -> io::Result<EventQueue> {
    let back_end = if arguments.epoll { Choice::Epoll } else { Choice::Best };
    EventQueue::with(&Config { back_end, ..Config::default() })
}

/// An echoed connection. `buffer` holds what was read and not yet written.
struct Echo {
    stream: Stream,
    token: Token,
    buffer: Box<[u8]>,
    filled: usize,
    written: usize,
}

impl Echo {
    /// Continues as far as possible. Returns true if the peer has ended the stream.
    fn go_on(&mut self) -> io::Result<bool> {
        loop {
            while self.written < self.filled {
                match later(self.stream.try_send(&self.buffer[self.written..self.filled]))? {
                    Some(count) => self.written += count,
                    None => return Ok(false),
                }
            }
            match later(self.stream.try_receive(&mut self.buffer))? {
                Some(0) => return Ok(true),
                Some(count) => (self.filled, self.written) = (count, 0),
                None => return Ok(false),
            }
        }
    }
}

/// Echoes until it is notified to end. Returns the number of connections.
fn serve(
    mut queue: EventQueue,
    kernel: std::net::TcpListener,
    host: host::TcpListener,
) -> anyhow::Result<usize> {
    let watched = kernel.try_clone()?;
    queue.add(Source::listener(watched, Trigger::Level), KERNEL_LISTENER)?;
    queue.add(Source::listener(&host, Trigger::Level), HOST_LISTENER)?;
    queue.add(Source::every(queue.now(), Duration::from_secs(1)), TICK)?;
    let (mut echoes, mut open, mut events) = (Vec::<Option<Echo>>::new(), 0, Vec::new());
    loop {
        events.clear();
        queue.wait(&mut events, None)?;
        for event in &events {
            let accepted = match (event.data, event.kind) {
                (KERNEL_LISTENER, _) => kernel.accept().map(|(stream, _)| Stream::from(stream)),
                (HOST_LISTENER, _) => host.accept().map(|(stream, _)| stream.into()),
                (TICK, _) => {
                    eprintln!("{open} of {} connections are open", echoes.len());
                    continue;
                }
                (END, EventKind::Notified { .. }) => return Ok(echoes.len()),
                (number, _) => {
                    let place = &mut echoes[number as usize];
                    let Some(echo) = place else { continue };
                    // A failed connection is treated like one that has ended.
                    if echo.go_on().unwrap_or(true) {
                        queue.remove(echo.token)?;
                        *place = None;
                        open -= 1;
                    }
                    continue;
                }
            };
            let stream = match accepted {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                accepted => accepted.context("cannot accept")?,
            };
            stream.set_nodelay(true)?;
            let token = queue.add(source(&stream), echoes.len() as u64)?;
            let buffer = vec![0; BUFFER_BYTES].into();
            echoes.push(Some(Echo { stream, token, buffer, filled: 0, written: 0 }));
            open += 1;
        }
    }
}

/// Returns the byte that a client sends at a position.
fn byte(number: usize, at: usize) -> u8 {
    (at * 31 + at / 251 + number * 7) as u8
}

/// Runs all clients. Returns the number of bytes that came back.
fn ask(mut queue: EventQueue, streams: Vec<Stream>, bytes: usize) -> anyhow::Result<u64> {
    let mut clients = Vec::new();
    for (number, stream) in streams.into_iter().enumerate() {
        let token = queue.add(source(&stream), number as u64)?;
        clients.push((stream, token, 0, 0));
    }
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut left, mut total, mut events) = (clients.len(), 0, Vec::new());
    while left > 0 {
        events.clear();
        queue.wait(&mut events, None)?;
        for event in &events {
            let number = event.data as usize;
            let (stream, token, sent, received) = &mut clients[number];
            while let Some(count) = later(stream.try_receive(&mut buffer))? {
                let is_early = count == 0 && *received < bytes;
                ensure!(!is_early, "connection {number} ended after {received} bytes");
                let expected = (*received..).map(|at| byte(number, at));
                let is_right = buffer[..count].iter().copied().eq(expected.take(count));
                ensure!(is_right, "connection {number}: wrong bytes after {received}");
                *received += count;
                total += count as u64;
                if count == 0 {
                    queue.remove(*token)?;
                    left -= 1;
                    break;
                }
            }
            while *sent < bytes {
                let part = BUFFER_BYTES.min(bytes - *sent);
                let part: Vec<u8> = (*sent..*sent + part).map(|at| byte(number, at)).collect();
                match later(stream.try_send(&part))? {
                    Some(count) => *sent += count,
                    None => break,
                }
                if *sent == bytes {
                    stream.shutdown(Shutdown::Write)?;
                }
            }
        }
    }
    Ok(total)
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let local: SocketAddr = "10.0.0.2:7".parse()?;
    let hosts = [[10, 0, 0, 1], [10, 0, 0, 2]].map(|own| host::Config::with_address(own, 24));
    let (client_host, server_host) = Host::pair(&hosts[0], &hosts[1])?;
    let kernel = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = kernel.local_addr()?;
    let listener = host::TcpListener::bind(&server_host, local)?;
    kernel.set_nonblocking(true)?;
    listener.set_nonblocking(true)?;
    let mut queues = [queue(arguments)?, queue(arguments)?];
    let back_end = if queues[0].is_io_uring() { "io_uring" } else { "epoll" };
    let end = queues[0].add(Source::user(), END)?;
    let end = queues[0].notifier(end).context("it was just added")?;
    let [server, clients] = queues;
    let server = thread::spawn(move || serve(server, kernel, listener));
    let mut streams = Vec::new();
    for _ in 0..arguments.connections {
        streams.push(Stream::from(std::net::TcpStream::connect(address)?));
        streams.push(host::TcpStream::connect(&client_host, local)?.into());
    }
    let asked = ask(clients, streams, arguments.bytes as usize);
    end.notify();
    let connections = server.join().expect("no panic")?;
    let bytes = asked?;
    println!("{connections} connections, {bytes} bytes back and right, by {back_end}");
    Ok(())
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("echo_events: {error:#}");
            ExitCode::FAILURE
        }
    }
}
