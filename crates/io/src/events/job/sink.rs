//! Sinks that break while nothing comes for them.

use super::Socket;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use std::sync::Arc;

/// Where spliced bytes go, as far as it concerns whoever waits for more of them.
#[derive(Debug)]
pub(in super::super) struct Sink {
    socket: Socket,
    /// Readable when the source is, or when the sink is broken. Made for the first wait.
    either: Option<Socket>,
    /// There is news of the sink that is none to end for: a wait for such would not be one.
    is_noisy: bool,
}

impl Sink {
    pub(super) fn new(socket: &Socket) -> Self {
        Self { socket: socket.clone(), either: None, is_noisy: false }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// What to wait for instead of the source, if that can be watched together with the sink.
    pub(super) fn either(&self) -> Option<&Socket> {
        self.either.as_ref().filter(|_| !self.is_noisy)
    }

    /// `source` has nothing now: why there is no use in waiting for more, or
    /// [`either`](Self::either) is made.
    pub(in super::super) fn look(&mut self, source: impl AsFd) -> Option<Errno> {
        let news = news(&self.socket);
        let why = failure(&self.socket, news);
        self.is_noisy = !news.is_empty();
        if why.is_none() && self.either.is_none() {
            // Without a descriptor the source alone is waited for.
            self.either = watch(source, &self.socket).ok();
        }
        why
    }
}

/// Why nothing can be sent to a socket any more: it was reset, or is closed in both directions.
/// `None` if it can, or is about to be connected.
pub fn broken(sink: impl AsFd) -> Option<Errno> {
    failure(&sink, news(&sink))
}

/// Of errors and the end, which are told whoever asks.
fn news(sink: &impl AsFd) -> PollFlags {
    let mut polled = [PollFd::new(sink, PollFlags::empty())];
    let found = poll(&mut polled, Some(&Timespec::default()));
    found.map_or(PollFlags::empty(), |_| polled[0].revents())
}

fn failure(sink: &impl AsFd, news: PollFlags) -> Option<Errno> {
    if news.is_empty() {
        return None;
    }
    match socket_error(sink) {
        Ok(Err(errno)) => Some(errno),
        // Notices of buffers that are back are news, too.
        _ => news.contains(PollFlags::HUP).then_some(Errno::PIPE),
    }
}

fn watch(source: impl AsFd, sink: &Socket) -> Result<Socket, Errno> {
    let either = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&either, source, EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&either, sink, EventData::new_u64(1), EventFlags::empty())?;
    Ok(Arc::new(either))
}
