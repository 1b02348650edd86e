//! Detects sinks that break while no bytes arrive for them.

use super::Socket;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use std::sync::Arc;

/// The destination of spliced bytes, for a job that waits for more bytes from the source.
#[derive(Debug)]
pub(in super::super) struct Sink {
    socket: Socket,
    /// An epoll set that is readable when the source is, or when the sink is broken. Created for
    /// the first wait.
    either: Option<Socket>,
    /// The sink has an event that does not end the job, and that would end a wait at once.
    is_noisy: bool,
}

impl Sink {
    pub(super) fn new(socket: &Socket) -> Self {
        Self { socket: socket.clone(), either: None, is_noisy: false }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The set to wait for instead of the source, if it can be used.
    pub(super) fn either(&self) -> Option<&Socket> {
        self.either.as_ref().filter(|_| !self.is_noisy)
    }

    /// Call this when `source` has no bytes now. Returns the reason if waiting for more is useless;
    /// otherwise creates the set for [`either`](Self::either).
    pub(in super::super) fn look(&mut self, source: impl AsFd) -> Option<Errno> {
        let poll_flags = poll_flags(&self.socket);
        let why = failure(&self.socket, poll_flags);
        self.is_noisy = !poll_flags.is_empty();
        if why.is_none() && self.either.is_none() {
            // Without a descriptor for the set, only the source is waited for.
            self.either = watch(source, &self.socket).ok();
        }
        why
    }
}

/// Returns why nothing can be sent to a socket any more: it was reset, or is closed in both
/// directions. `None` if it can, or if it is not connected yet.
pub fn broken(sink: impl AsFd) -> Option<Errno> {
    failure(&sink, poll_flags(&sink))
}

/// Returns errors and hang-ups, which poll(2) always reports.
fn poll_flags(sink: &impl AsFd) -> PollFlags {
    let mut polled = [PollFd::new(sink, PollFlags::empty())];
    let found = poll(&mut polled, Some(&Timespec::default()));
    found.map_or(PollFlags::empty(), |_| polled[0].revents())
}

fn failure(sink: &impl AsFd, poll_flags: PollFlags) -> Option<Errno> {
    if poll_flags.is_empty() {
        return None;
    }
    match socket_error(sink) {
        Ok(Err(errno)) => Some(errno),
        // A zero-copy notice also counts as an error, and does not end the job.
        _ => poll_flags.contains(PollFlags::HUP).then_some(Errno::PIPE),
    }
}

fn watch(source: impl AsFd, sink: &Socket) -> Result<Socket, Errno> {
    let either = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&either, source, EventData::new_u64(0), EventFlags::IN)?;
    epoll::add(&either, sink, EventData::new_u64(1), EventFlags::empty())?;
    Ok(Arc::new(either))
}
