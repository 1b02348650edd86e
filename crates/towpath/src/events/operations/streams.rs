//! Operations on streams: each is submitted, may be cancelled, and is over once.
//!
//! Those of towpath hosts the waits of the queue carry out, on the thread that waits.

use crate::events::registrations::socket::{End, Listener, Stack, Stream};
use crate::events::registrations::source::{Kind, Source};
use crate::events::{EventQueue, Token};
use crate::host::lending::any::Held;
use crate::host::operations::operation::Work;
use crate::host::{AnyBuffer, Lend};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use towpath_io::events::{Job, Memory};

/// An operation that was not begun, with its buffer.
pub struct NotBegun<B = Vec<u8>> {
    /// Why.
    pub error: io::Error,
    /// The buffer.
    pub buffer: B,
}

impl EventQueue {
    /// Begins to connect. A wait tells [`News::Completed`](crate::events::News::Completed) when it
    /// is over, and [`EventQueue::take`] then has the connection. Cancelling gives it up.
    ///
    /// # Errors
    /// Those of connecting that need no answer; `ENOSPC` if the queue is full.
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

    /// Begins to connect a socket of the kernel that the program has made and, maybe, bound;
    /// otherwise as [`EventQueue::connect`]. Until it is over the socket does not block.
    ///
    /// # Errors
    /// `EISCONN` if it is connected; `ENOSPC` if the queue is full.
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
                // It is open, so this cannot fail.
                let _ = ioctl_fionbio(&socket, false);
            }
            error
        })
    }

    /// Accepts one connection after the other until it is cancelled, or `deadline` has passed. A
    /// wait tells [`News::Connection`](crate::events::News::Connection) when there are some, and
    /// then [`EventQueue::take`] takes them one after the other until there is none; those that
    /// are not taken stay with the listener, and are told of again. At the end there is
    /// [`News::Completed`](crate::events::News::Completed), and the reason is taken in the same
    /// way.
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

    /// Receives into `buffer`, whose bytes are replaced from its beginning. It is over when there
    /// are some, however few, or when no more will come: 0, as for an empty buffer;
    /// [`EventQueue::take`] has it then. Of several at a time on one stream of towpath, the first
    /// is filled and told first; on one of the kernel, nothing is said about which of them gets
    /// what.
    ///
    /// On a stream of towpath, the worker of the host places bytes as they come, in buffers for
    /// which a wait has found none: a program that keeps several posted copies nothing itself.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The buffer is handed back.
    pub fn receive(
        &mut self,
        stream: impl Into<Stream>,
        buffer: Vec<u8>,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun> {
        self.begin_receive(stream.into(), buffer, false, (deadline, data))
    }

    /// Receives until `buffer` is full, or no more will come: otherwise as [`EventQueue::receive`].
    /// The program is told once for each buffer, however many segments fill it. After some bytes an
    /// error, a cancel or the deadline ends it with these; an error is then the next receive's. One
    /// that is dropped with its queue takes with it what came.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The buffer is handed back.
    pub fn receive_all(
        &mut self,
        stream: impl Into<Stream>,
        buffer: Vec<u8>,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun> {
        self.begin_receive(stream.into(), buffer, true, (deadline, data))
    }

    /// Receives without copying, as [`TcpStream::recv_lent`](crate::host::TcpStream::recv_lent):
    /// [`EventQueue::take`] has at most `max` bytes when it is over. Where the call fails
    /// because the host's readers keep too much, this waits until some of it was dropped: for ever,
    /// if the program keeps all its pieces and gives no deadline.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full; `EOPNOTSUPP` for a socket of the kernel, which lends nothing.
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

    /// Sends all of `buffer`, of whatever kind, as
    /// [`TcpStream::send_zc`](crate::host::TcpStream::send_zc). A wait tells
    /// [`News::Accepted`](crate::events::News::Accepted) when the socket has accepted it, and
    /// [`News::Completed`](crate::events::News::Completed) when it is back: then
    /// [`EventQueue::take`] has it, with the bytes that were accepted. They are sent all the same
    /// after a cancel or the deadline, which ask for the buffer as
    /// [`Sending::recall`](crate::host::Sending::recall).
    ///
    /// Of several at a time on one stream nothing is said about their order, and copied ones may be
    /// mixed: begin the next when one was accepted.
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

    /// Sends all of `buffer` as [`EventQueue::send`], and lends it on a stream of the kernel, too,
    /// where that can be: with io_uring of Linux 6.2, on TCP. Elsewhere, or where a limit of locked
    /// memory or of the socket is in the way, it is copied. [`Sent::copied`] says so, as it
    /// does of what the kernel has copied after all: all that goes to this host or to its
    /// namespaces.
    ///
    /// What is lent is locked in memory, page by page: it pays from some ten KiB on. Once the
    /// kernel has accepted it, neither a cancel nor the deadline brings it back before the peer has
    /// acknowledged it; a queue that is dropped meanwhile leaves it to the kernel.
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

    /// Sends all of `memory` on a stream of the kernel, as [`EventQueue::send`] or, if it lends, as
    /// [`EventQueue::send_zerocopy`]: the way of memory that is no `Vec`. It is dropped by the time
    /// that a wait tells [`News::Completed`](crate::events::News::Completed), and
    /// [`EventQueue::take`] has an empty buffer then.
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

    /// Begins to receive into a buffer, until `all` of it is full or whatever came.
    fn begin_receive(
        &mut self,
        stream: Stream,
        buffer: Vec<u8>,
        all: bool,
        (deadline, data): (Option<Instant>, u64),
    ) -> Result<Token, NotBegun> {
        let job = match stream.0 {
            End::Host(stream) => {
                return self.begin_bytes(Work::Receive(stream, buffer, all), deadline, data);
            }
            End::Kernel(socket) if all => Job::ReceiveAll(socket, buffer),
            End::Kernel(socket) => Job::Receive(socket, buffer),
        };
        self.begin_bytes_job(job, deadline, data)
    }

    /// Begins to send a buffer, which is handed back if that fails. On a stream of the kernel it is
    /// lent if that is wanted.
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
            End::Kernel(socket) => self.begin_send_job(socket, buffer, lends, when),
        };
        begun.map_err(NotBegun::downcast)
    }

    fn begin_send_job(
        &mut self,
        socket: Arc<OwnedFd>,
        buffer: AnyBuffer,
        lends: bool,
        (deadline, data): (Option<Instant>, u64),
    ) -> Result<Token, NotBegun<AnyBuffer>> {
        let buffer = match buffer.into_vec() {
            Ok(bytes) => {
                let job = if lends { Job::Lend(socket, bytes) } else { Job::Send(socket, bytes) };
                let begun = self.begin_bytes_job(job, deadline, data);
                return begun.map_err(|NotBegun { error, buffer }| NotBegun {
                    error,
                    buffer: AnyBuffer::new(buffer),
                });
            }
            Err(other) => other,
        };
        let (held, bytes, is_copy) = Held::new(buffer);
        let job = Job::SendMemory(socket, Memory { bytes, lends: lends && !is_copy });
        match self.begin_job(job, deadline, data) {
            Ok(token) => {
                let ongoing = self.ongoing(token).expect("it was just begun");
                ongoing.held = Some((held, is_copy));
                Ok(token)
            }
            Err((error, job)) => {
                drop(job);
                let buffer = held.into_buffer().expect("the job was the only other to have it");
                Err(NotBegun { error, buffer })
            }
        }
    }

    /// Begins a send of a buffer by the waits of the queue.
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

    pub(in crate::events) fn begin_bytes(
        &mut self,
        work: Work,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun> {
        self.begin(work, deadline, data).map_err(|(error, mut work)| {
            work.stop(Errno::CANCELED);
            let Some(Work::Bytes(_, buffer)) = work.take_over() else {
                unreachable!("nothing was received");
            };
            NotBegun { error, buffer }
        })
    }

    fn begin_bytes_job(
        &mut self,
        job: Job,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun> {
        self.begin_job(job, deadline, data).map_err(|(error, job)| {
            let (Job::Receive(_, buffer)
            | Job::ReceiveAll(_, buffer)
            | Job::Send(_, buffer)
            | Job::Lend(_, buffer)) = job
            else {
                unreachable!("it is what was begun");
            };
            NotBegun { error, buffer }
        })
    }

    /// The first try is the next wait's.
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
        let kind = Kind::Stream { work, wakes: None, deadline, is_told: false };
        let added = self.begin_add(Source::of(kind), data);
        debug_assert!(added.is_ok_and(|added| added == token), "there was room");
        // It is under way: what cannot be shown now is shown by the next call.
        let _ = self.settle();
        Ok(token)
    }
}

/// A socket of the kernel that does not block, to be connected.
fn socket_for(remote: SocketAddr) -> io::Result<Arc<OwnedFd>> {
    let family = if remote.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(Arc::new(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?))
}

impl NotBegun<AnyBuffer> {
    /// With the buffer as what it was.
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
