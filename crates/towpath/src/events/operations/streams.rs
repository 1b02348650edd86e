//! Operations on streams. Each is submitted, can be cancelled, and completes once.
//!
//! The waits of the queue carry out those on streams of towpath hosts, on the waiting thread.

use crate::events::registrations::socket::{End, Listener, Stack, Stream};
use crate::events::registrations::source::{Kind, Source};
use crate::events::{EventQueue, Token};
use crate::host::operations::operation::Work;
use crate::host::{AnyBuffer, Fill, Lend};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use towpath_io::events::{Job, Memory, Operation};

/// An operation that could not be started, with its buffer.
#[non_exhaustive]
pub struct NotBegun<B = Vec<u8>> {
    /// Why it could not be started.
    pub error: io::Error,
    /// The buffer, handed back.
    pub buffer: B,
}

impl EventQueue {
    /// Starts to connect. A wait reports
    /// [`EventKind::Completed`](crate::events::EventKind::Completed) at the end, and
    /// [`EventQueue::take`] then returns the connection. A cancel aborts the connection attempt.
    ///
    /// # Errors
    /// The errors of connecting that are known at once; `ENOSPC` if the queue is full.
    pub fn connect(
        &mut self,
        stack: impl Into<Stack>,
        remote: SocketAddr,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        self.check_process()?;
        let work = match stack.into() {
            Stack::Host(host) => Work::connect(&host, remote)?,
            Stack::Kernel => {
                let job = Job::Connect(socket_for(remote)?, remote, true);
                return self.begin_job(job, deadline, data).map_err(|(error, _)| error);
            }
        };
        self.begin(work, deadline, data).map_err(|(error, _)| error)
    }

    /// Starts to connect a kernel socket that the program has created and possibly bound; otherwise
    /// like [`EventQueue::connect`]. The socket is non-blocking until the operation is complete.
    ///
    /// # Errors
    /// `EISCONN` if the socket is connected; `ENOSPC` if the queue is full.
    pub fn connect_socket(
        &mut self,
        socket: Arc<OwnedFd>,
        remote: SocketAddr,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        self.check_process()?;
        if rustix::net::getpeername(&socket).is_ok() {
            return Err(Errno::ISCONN.into());
        }
        let blocks = !rustix::fs::fcntl_getfl(&socket)?.contains(OFlags::NONBLOCK);
        if blocks {
            ioctl_fionbio(&socket, true)?;
        }
        let job = Job::Connect(socket, remote, blocks);
        self.begin_job(job, deadline, data).map_err(|(error, job)| {
            if let Job::Connect(socket, _, true) = job {
                // The socket is open, so this cannot fail.
                let _ = ioctl_fionbio(&socket, false);
            }
            error
        })
    }

    /// Accepts connections until it is cancelled or `deadline` has passed. A wait reports
    /// [`EventKind::Connection`](crate::events::EventKind::Connection) when there are connections;
    /// [`EventQueue::take`] then takes one after the other until there is none. Connections that
    /// are not taken stay with the listener and are reported again. At the end a wait reports
    /// [`EventKind::Completed`](crate::events::EventKind::Completed), and [`EventQueue::take`]
    /// returns the reason.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full.
    pub fn accept(
        &mut self,
        listener: impl Into<Listener>,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        let work = match listener.into().0 {
            End::Host(listener) => Work::Accept(listener, None),
            End::Kernel(socket) => {
                let job = Job::Accept(socket);
                return self.begin_job(job, deadline, data).map_err(|(error, _)| error);
            }
        };
        self.begin(work, deadline, data).map_err(|(error, _)| error)
    }

    /// Receives into `buffer`, overwriting it from its start, at most up to its length. It
    /// completes when at least one byte was received, or with 0 at the end of the stream or for an
    /// empty buffer; [`EventQueue::take`] then returns it as [`Completion::Bytes`] or
    /// [`Completion::Buffer`]. Several receives on one stream of towpath complete in the order in
    /// which they were started; on a kernel stream the order is unspecified.
    ///
    /// On a stream of towpath, the worker of the host places arriving bytes directly in buffers for
    /// which a wait has found no bytes: the thread of a program that keeps several receives posted
    /// copies nothing itself.
    ///
    /// [`Completion::Bytes`]: crate::events::Completion::Bytes
    /// [`Completion::Buffer`]: crate::events::Completion::Buffer
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The buffer is handed back.
    pub fn receive<B: Fill>(
        &mut self,
        stream: impl Into<Stream>,
        buffer: B,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun<B>> {
        self.begin_receive(stream.into(), buffer, false, (deadline, data))
    }

    /// Receives until `buffer` is full or the stream ends; otherwise like [`EventQueue::receive`].
    /// The program gets one event for each buffer, however many segments fill it. An error, a
    /// cancel or the deadline completes it with the bytes received so far; the next receive then
    /// returns the error. If the queue is dropped, the bytes received so far are lost with it.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The buffer is handed back.
    pub fn receive_all<B: Fill>(
        &mut self,
        stream: impl Into<Stream>,
        buffer: B,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun<B>> {
        self.begin_receive(stream.into(), buffer, true, (deadline, data))
    }

    /// Receives without copying, like [`TcpStream::recv_lent`](crate::host::TcpStream::recv_lent).
    /// [`EventQueue::take`] returns at most `max` bytes. That call fails if the host's readers hold
    /// too many bytes; this operation waits until some are dropped. It waits without end if the
    /// program keeps all its pieces and gives no deadline.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full; `EOPNOTSUPP` for a kernel socket, which cannot lend.
    pub fn receive_lent(
        &mut self,
        stream: impl Into<Stream>,
        max: usize,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        let End::Host(stream) = stream.into().0 else { return Err(Errno::OPNOTSUPP.into()) };
        let work = Work::ReceiveLent(stream, max);
        self.begin(work, deadline, data).map_err(|(error, _)| error)
    }

    /// Sends all of `buffer`, like [`TcpStream::send_zc`](crate::host::TcpStream::send_zc). A wait
    /// reports [`EventKind::Accepted`](crate::events::EventKind::Accepted) when the socket has
    /// accepted the buffer, and [`EventKind::Completed`](crate::events::EventKind::Completed) when
    /// the buffer is back. [`EventQueue::take`] then returns it with the number of accepted bytes.
    /// Accepted bytes are sent even after a cancel or the deadline, which recall the buffer like
    /// [`Sending::recall`](crate::host::Sending::recall).
    ///
    /// The order of several sends on one stream is unspecified, and copied ones may interleave:
    /// start the next one when one was accepted.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The buffer is handed back.
    pub fn send<B: Lend>(
        &mut self,
        stream: impl Into<Stream>,
        buffer: B,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun<B>> {
        self.begin_send(stream.into(), buffer, false, (deadline, data))
    }

    /// Sends all of `buffer` like [`EventQueue::send`], and also lends it on a kernel stream where
    /// possible: with io_uring on Linux 6.2 or later, on TCP. Otherwise, or if a limit of locked
    /// memory or of the socket prevents it, the buffer is copied. [`Sent::copied`] reports that,
    /// and also if the kernel copied lent bytes after all, as it does for traffic to this machine
    /// or its network namespaces.
    ///
    /// Lent memory is locked page by page, which pays off from about ten KiB. Once the kernel has
    /// accepted it, neither a cancel nor the deadline brings it back before the peer has
    /// acknowledged it. A queue that is dropped meanwhile leaves the memory to the kernel.
    ///
    /// [`Sent::copied`]: crate::events::Sent::copied
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The buffer is handed back.
    pub fn send_zerocopy<B: Lend>(
        &mut self,
        stream: impl Into<Stream>,
        buffer: B,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun<B>> {
        self.begin_send(stream.into(), buffer, true, (deadline, data))
    }

    /// Sends all of `memory` on a kernel stream, like [`EventQueue::send`] or, if it lends, like
    /// [`EventQueue::send_zerocopy`]. Use it for memory that is not [`Lend`]. The memory is dropped
    /// by the time a wait reports [`EventKind::Completed`](crate::events::EventKind::Completed);
    /// [`EventQueue::take`] then returns an empty buffer.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The memory is dropped.
    pub fn send_memory(
        &mut self,
        socket: Arc<OwnedFd>,
        memory: Memory,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        self.begin_job(Job::SendMemory(socket, memory), deadline, data).map_err(|(error, _)| error)
    }

    /// Starts a receive into a buffer, which completes when the buffer is full (`all`) or when
    /// bytes arrive.
    fn begin_receive<B: Fill>(
        &mut self,
        stream: Stream,
        buffer: B,
        all: bool,
        when: (Option<Instant>, u64),
    ) -> Result<Token, NotBegun<B>> {
        let buffer = AnyBuffer::to_fill(buffer);
        let begun = match stream.0 {
            End::Host(stream) => self.begin_bytes(Work::Receive(stream, buffer, all), when),
            End::Kernel(socket) => {
                let job = if all { Job::ReceiveAll } else { Job::Receive };
                self.begin_buffer_job(job(socket, buffer.into_job().0), when)
            }
        };
        begun.map_err(NotBegun::downcast)
    }

    /// Starts a send of a buffer, which is handed back on failure. On a kernel stream the buffer is
    /// lent if `lends`.
    fn begin_send<B: Lend>(
        &mut self,
        stream: Stream,
        buffer: B,
        lends: bool,
        when: (Option<Instant>, u64),
    ) -> Result<Token, NotBegun<B>> {
        let buffer = AnyBuffer::new(buffer);
        let begun = match stream.0 {
            End::Host(stream) => self.begin_buffer(Work::send(stream, buffer), when),
            End::Kernel(socket) => {
                let (buffer, is_copy) = buffer.into_job();
                let job = if lends && !is_copy { Job::Lend } else { Job::Send };
                self.begin_buffer_job(job(socket, buffer), when)
            }
        };
        begun.map_err(NotBegun::downcast)
    }

    /// Starts a send that the waits of the queue carry out.
    pub(in crate::events) fn begin_buffer(
        &mut self,
        work: Work,
        (deadline, data): (Option<Instant>, u64),
    ) -> Result<Token, NotBegun<AnyBuffer>> {
        self.begin(work, deadline, data).map_err(|(error, mut work)| {
            work.stop(Errno::CANCELED);
            let Some(Work::Back(_, buffer, _)) = work.take_over() else {
                unreachable!("nothing was sent");
            };
            NotBegun { error, buffer }
        })
    }

    /// Starts a receive that the waits of the queue carry out.
    fn begin_bytes(
        &mut self,
        work: Work,
        (deadline, data): (Option<Instant>, u64),
    ) -> Result<Token, NotBegun<AnyBuffer>> {
        self.begin(work, deadline, data).map_err(|(error, mut work)| {
            work.stop(Errno::CANCELED);
            let Some(Work::Bytes(_, buffer)) = work.take_over() else {
                unreachable!("nothing was received");
            };
            NotBegun { error, buffer }
        })
    }

    /// Starts a job that has a buffer, which is handed back on failure.
    pub(in crate::events) fn begin_buffer_job(
        &mut self,
        job: Job,
        (deadline, data): (Option<Instant>, u64),
    ) -> Result<Token, NotBegun<AnyBuffer>> {
        self.begin_job(job, deadline, data).map_err(|(error, job)| {
            let (Job::File(Operation { buffer, .. })
            | Job::Receive(_, buffer)
            | Job::ReceiveAll(_, buffer)
            | Job::Send(_, buffer)
            | Job::Lend(_, buffer)) = job
            else {
                unreachable!("it is what was begun");
            };
            NotBegun { error, buffer: AnyBuffer::of_job(buffer).0 }
        })
    }

    /// Starts an operation. The next wait makes the first attempt.
    pub(in crate::events) fn begin(
        &mut self,
        work: Work,
        due: Option<Instant>,
        data: u64,
    ) -> Result<Token, (io::Error, Work)> {
        if let Err(error) = self.check_process() {
            return Err((error, work));
        }
        let Some(token) = self.slots.next() else {
            return Err((Errno::NOSPC.into(), work));
        };
        let deadline = due.map(|due| self.timers.set(due, token));
        let kind = Kind::Stream { work, wakes: None, deadline, is_reported: false };
        let added = self.begin_add(Source::of(kind), data);
        debug_assert!(added.is_ok_and(|added| added == token), "there was room");
        // The operation has started. If updating the queue's descriptor fails now, the next call
        // repeats it.
        let _ = self.settle();
        Ok(token)
    }
}

/// Creates a non-blocking kernel socket to connect.
fn socket_for(remote: SocketAddr) -> io::Result<Arc<OwnedFd>> {
    let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(Arc::new(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?))
}

impl NotBegun<AnyBuffer> {
    /// Restores the type of the buffer.
    pub(in crate::events) fn downcast<B: Lend>(self) -> NotBegun<B> {
        let Self { error, buffer } = self;
        NotBegun { error, buffer: buffer.downcast().expect("it is what was given") }
    }
}

impl<B> fmt::Debug for NotBegun<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotBegun").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for NotBegun<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for NotBegun<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
