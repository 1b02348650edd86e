//! Sockets that report readiness: the kernel's, by epoll, and those of a towpath host.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_nodelay;
use rustix::net::{SendFlags, SocketFlags, acceptfrom_with, send};
use towpath::events::{Event, EventQueue, Interest, Source, Token, Trigger};
use towpath::host;
use towpath_io::reactor::{Events, Reactor};

use super::EndBy;
use super::readiness::{Polled, Waited};

/// Numbers of sources other than connections.
const LISTENER: u64 = u64::MAX;
const END: u64 = u64::MAX - 1;

/// Sockets of the kernel.
pub(crate) struct Kernel {
    reactor: Reactor,
    events: Box<Events>,
    listener: TcpListener,
    _end: Arc<OwnedFd>,
}

impl Kernel {
    pub(crate) fn new(listener: TcpListener, end: EndBy) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        let end = end.descriptor()?;
        listener.set_nonblocking(true)?;
        // Accepted connections inherit the option.
        set_tcp_nodelay(&listener, true)?;
        reactor.add(&listener, LISTENER, Interest::READ, true)?;
        reactor.add(&end, END, Interest::READ, true)?;
        Ok(Self { reactor, events: Box::default(), listener, _end: end })
    }
}

impl Polled for Kernel {
    type Stream = TcpStream;

    const SENDS_FILES: bool = true;

    fn accept(&mut self, number: u64) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (stream, peer) = match acceptfrom_with(&self.listener, flags) {
            Err(Errno::AGAIN) => return Ok(None),
            accepted => accepted?,
        };
        let peer = peer.and_then(|peer| peer.try_into().ok()).ok_or(Errno::AFNOSUPPORT)?;
        let stream = TcpStream::from(stream);
        self.reactor.add(&stream, number, Interest::BOTH, true)?;
        Ok(Some((stream, peer)))
    }

    fn wait(&mut self, ready: &mut Vec<u64>, limit: Duration) -> io::Result<Waited> {
        self.reactor.wait(Some(limit), &mut self.events)?;
        let mut reported = Waited::default();
        for event in self.events.iter() {
            match event.token {
                LISTENER => reported.accept = true,
                END => reported.end = true,
                number => ready.push(number),
            }
        }
        Ok(reported)
    }

    fn read(mut stream: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
        stream.read(into)
    }

    fn write(stream: &TcpStream, bytes: &[u8], more: bool) -> io::Result<usize> {
        let more = if more { SendFlags::MORE } else { SendFlags::empty() };
        Ok(send(stream, bytes, SendFlags::NOSIGNAL | more)?)
    }

    fn send_file(stream: &TcpStream, file: &File, range: Range<u64>) -> io::Result<usize> {
        let (mut offset, count) = (range.start, range.end - range.start);
        Ok(sendfile(stream, file, Some(&mut offset), count.min(SENT_MAX) as usize)?)
    }

    fn shut_down(stream: &TcpStream) -> io::Result<()> {
        stream.shutdown(Shutdown::Write)
    }

    fn close(&mut self, stream: TcpStream) {
        // Closing the last descriptor also removes it from epoll.
        drop(stream);
    }
}

/// Sockets of a towpath host, whose readiness the event queue reports.
pub(crate) struct Stack {
    queue: EventQueue,
    listener: host::TcpListener,
    events: Vec<Event>,
}

impl Stack {
    pub(crate) fn new(
        mut queue: EventQueue,
        listener: host::TcpListener,
        end: EndBy,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        listener.set_nodelay(true)?;
        queue.add(Source::listener(&listener, Trigger::Edge), LISTENER)?;
        for source in end.sources() {
            queue.add(source, END)?;
        }
        Ok(Self { queue, listener, events: Vec::new() })
    }
}

impl Polled for Stack {
    type Stream = (host::TcpStream, Token);

    const SENDS_FILES: bool = false;

    fn accept(&mut self, number: u64) -> io::Result<Option<(Self::Stream, SocketAddr)>> {
        let (stream, peer) = match self.listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            accepted => accepted?,
        };
        stream.set_nonblocking(true)?;
        let source = Source::stream(&stream, Interest::BOTH, Trigger::Edge);
        let token = self.queue.add(source, number)?;
        Ok(Some(((stream, token), peer)))
    }

    fn wait(&mut self, ready: &mut Vec<u64>, limit: Duration) -> io::Result<Waited> {
        self.events.clear();
        self.queue.wait(&mut self.events, Some(self.queue.now() + limit))?;
        let mut reported = Waited::default();
        for event in &self.events {
            match event.data {
                LISTENER => reported.accept = true,
                END => reported.end = true,
                number => ready.push(number),
            }
        }
        Ok(reported)
    }

    fn read((stream, _): &Self::Stream, into: &mut [u8]) -> io::Result<usize> {
        (&mut &*stream).read(into)
    }

    fn write((stream, _): &Self::Stream, bytes: &[u8], _: bool) -> io::Result<usize> {
        (&mut &*stream).write(bytes)
    }

    fn send_file(_: &Self::Stream, _: &File, _: Range<u64>) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn shut_down((stream, _): &Self::Stream) -> io::Result<()> {
        stream.shutdown(Shutdown::Write)
    }

    fn close(&mut self, (_, token): Self::Stream) {
        // The token was added by `accept`, and is removed only here.
        let _ = self.queue.remove(token);
    }
}

/// Most bytes per call.
const SENT_MAX: u64 = 1 << 20;
