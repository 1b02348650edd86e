//! Operations as steps, which both back ends carry out alike.
//!
//! A [`Running`] says what is to be done [next](Running::next), and is told what became of it
//! ([`Running::done`]), until it is over. Between two steps it can be [stopped](Running::stop).
//! Whoever carries out a step decides how: by a request, by a call that does not block, or in a
//! thread; what is counted and what is an error is decided here, so that it is the same for all.
//!
//! # Files to sockets
//!
//! What is small goes out in one send, along with what is around it. Of the rest, what the kernel
//! has in memory is sent where it is, by sendfile(2), and what it has not is read first: a call of
//! the queue's thread never waits for a disk. Memory that the kernel drops between the look and the
//! call is an exception, and costs one read of at most [`BLOCK_BYTES`].

use super::{Action, Operation, SendFile};
use crate::reactor::Interest;
use crate::sys;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{Errno, ReadWriteFlags, ioctl_fionbio, preadv2};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs::File;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are moved by one step between a file and a socket, or between two sockets.
pub const BLOCK_BYTES: usize = 128 << 10;
/// A file that is sent with header and trailer in no more bytes than this is copied.
pub const COPIED_FILE_MAX: usize = 16 << 10;
/// Connections that were accepted and not taken yet, unless more came at the same time.
pub const ACCEPTED_MAX: u32 = 64;
/// How often a step is tried again that was interrupted, before that is taken for its error: no
/// program gets signals like that, but a file system may answer so without end.
const INTERRUPTIONS_MAX: u32 = 256;

/// A socket of the kernel. Operations keep it open.
pub type Socket = Arc<OwnedFd>;

/// What a back end is to do.
#[derive(Debug)]
pub enum Job {
    /// An operation on a file.
    File(Operation),
    /// Connect a socket that does not block, which it does when it is connected.
    Connect(Socket, SocketAddr),
    /// Accept connections until it is cancelled.
    Accept(Socket),
    /// Receive into a buffer, however few bytes.
    Receive(Socket, Vec<u8>),
    /// Send all of a buffer.
    Send(Socket, Vec<u8>),
    /// Send a file. The socket is made not to block when the first of it goes by sendfile(2).
    SendFile(Socket, SendFile),
    /// Write what comes to a range of a file.
    ReceiveFile(Socket, Arc<File>, Range<u64>),
    /// Send on the second socket so many bytes that the first receives. Both are made not to block.
    Splice(Socket, Socket, u64),
}

impl Job {
    /// Whether it can be begun.
    pub(super) fn check(&self) -> Result<(), Errno> {
        let (file, end) = match self {
            Self::File(Operation { action, file, .. }) => match *action {
                Action::Read(offset) | Action::Write(offset) => (file, offset),
                Action::Sync | Action::SyncData => return Ok(()),
            },
            Self::SendFile(_, SendFile { file, range, .. }) | Self::ReceiveFile(_, file, range) => {
                if range.start > range.end {
                    return Err(Errno::INVAL);
                }
                (file, range.end)
            }
            _ => return Ok(()),
        };
        // io_uring would read a pipe all the same, and knows an offset that means another.
        rustix::fs::tell(&**file)?;
        i64::try_from(end).map_or(Err(Errno::INVAL), |_| Ok(()))
    }
}

/// What became of a job.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes that were read, written, received, sent or moved, also after a failure.
    pub bytes: u64,
    /// Why not all was done. `CANCELED` if it was cancelled, `NODATA` if a file that was to be sent
    /// ended too early.
    pub failure: Option<Errno>,
    /// What the job had.
    pub parts: Parts,
}

/// What a job hands back.
#[derive(Debug)]
pub enum Parts {
    /// Nothing.
    None,
    /// A buffer, with its length unchanged.
    Buffer(Vec<u8>),
    /// A buffer that was to be sent.
    Sent(Vec<u8>),
    /// The socket that was to be connected.
    Socket(Socket),
    /// What was to be sent.
    File(SendFile),
    /// Bytes that were taken from their source and have not arrived.
    Rest(Vec<u8>),
}

/// A job that was begun.
#[derive(Debug)]
pub(super) struct Running {
    work: Work,
    bytes: u64,
    failure: Option<Errno>,
    is_over: bool,
    /// Of the step, without any progress.
    interruptions: u32,
}

#[derive(Debug)]
enum Work {
    File(Operation),
    Connect(Socket, SocketAddr),
    /// With how many connections may be accepted now; below zero if more were than should be.
    Accept(Socket, i64),
    Receive(Socket, Vec<u8>),
    Send(Socket, Vec<u8>),
    SendFile(Box<Sending>),
    ReceiveFile {
        socket: Socket,
        file: Arc<File>,
        range: Range<u64>,
        block: Block,
    },
    Splice(Box<Splicing>),
}

/// Bytes on their way through memory.
#[derive(Debug, Default)]
struct Block {
    buffer: Vec<u8>,
    /// Which of them are still to be sent or written.
    left: Range<usize>,
}

/// A file on its way into a socket.
#[derive(Debug)]
struct Sending {
    socket: Socket,
    parts: SendFile,
    block: Block,
    /// What the last step was.
    way: Way,
    /// The kernel does not send this file, or to this socket: each block is read.
    always_reads: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// None yet.
    Begin,
    Bytes,
    File,
    Read,
}

/// Bytes on their way between two sockets: in a pipe, or in memory if the kernel does not move
/// them.
#[derive(Debug)]
struct Splicing {
    from: Socket,
    to: Socket,
    count: u64,
    pipe: Option<(OwnedFd, OwnedFd)>,
    in_pipe: usize,
    block: Block,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Step<'a> {
    /// Nothing any more.
    Over,
    /// Nothing, until connections have been taken.
    Idle,
    Accept {
        listener: &'a OwnedFd,
    },
    /// These three may take as long as a disk does.
    Read {
        file: &'a File,
        into: &'a mut [u8],
        at: u64,
    },
    Write {
        file: &'a File,
        bytes: &'a [u8],
        at: u64,
    },
    Sync {
        file: &'a File,
        data_only: bool,
    },
    /// These two are requests to io_uring, or calls.
    Receive {
        socket: &'a OwnedFd,
        into: &'a mut [u8],
    },
    Send {
        socket: &'a OwnedFd,
        bytes: &'a [u8],
        more: bool,
    },
    /// These are calls on both back ends.
    Connect {
        socket: &'a OwnedFd,
        remote: SocketAddr,
    },
    SendFile {
        socket: &'a OwnedFd,
        file: &'a File,
        at: u64,
        count: usize,
    },
    Splice {
        from: &'a OwnedFd,
        to: &'a OwnedFd,
        count: usize,
    },
}

impl Step<'_> {
    /// True if it may take as long as a disk does.
    pub(super) fn is_on_file(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Write { .. } | Self::Sync { .. })
    }
}

impl Running {
    pub(super) fn new(job: Job) -> Result<Self, (Errno, Job)> {
        let mut is_over = false;
        let work = match job {
            Job::File(operation) => Work::File(operation),
            Job::Connect(socket, remote) => Work::Connect(socket, remote),
            Job::Accept(listener) => Work::Accept(listener, ACCEPTED_MAX.into()),
            Job::Receive(socket, buffer) => {
                is_over = buffer.is_empty();
                Work::Receive(socket, buffer)
            }
            Job::Send(socket, buffer) => {
                is_over = buffer.is_empty();
                Work::Send(socket, buffer)
            }
            Job::SendFile(socket, parts) => {
                is_over = parts.bytes() == 0;
                let (block, way) = (Block::default(), Way::Begin);
                let sending = Sending { socket, parts, block, way, always_reads: false };
                Work::SendFile(Box::new(sending))
            }
            Job::ReceiveFile(socket, file, range) => {
                is_over = range.is_empty();
                Work::ReceiveFile { socket, file, range, block: Block::default() }
            }
            Job::Splice(from, to, count) => match Splicing::new(&from, &to, count) {
                Err(errno) => return Err((errno, Job::Splice(from, to, count))),
                Ok(splicing) => {
                    is_over = count == 0;
                    Work::Splice(Box::new(splicing))
                }
            },
        };
        Ok(Self { work, bytes: 0, failure: None, is_over, interruptions: 0 })
    }

    /// What is to be done. The same again, until it is [done](Self::done).
    pub(super) fn next(&mut self) -> Step<'_> {
        if self.is_over {
            return Step::Over;
        }
        let done = self.bytes;
        match &mut self.work {
            Work::File(Operation { action, file, buffer }) => {
                let at = |offset: u64| offset.saturating_add(done);
                let done = done as usize;
                match *action {
                    Action::Read(offset) => {
                        Step::Read { file, into: &mut buffer[done..], at: at(offset) }
                    }
                    Action::Write(offset) => {
                        Step::Write { file, bytes: &buffer[done..], at: at(offset) }
                    }
                    Action::Sync => Step::Sync { file, data_only: false },
                    Action::SyncData => Step::Sync { file, data_only: true },
                }
            }
            Work::Connect(socket, remote) => Step::Connect { socket, remote: *remote },
            Work::Accept(_, ..=0) => Step::Idle,
            Work::Accept(listener, _) => Step::Accept { listener },
            Work::Receive(socket, buffer) => Step::Receive { socket, into: buffer },
            Work::Send(socket, buffer) => {
                Step::Send { socket, bytes: &buffer[done as usize..], more: false }
            }
            Work::SendFile(sending) => sending.next(done),
            Work::ReceiveFile { socket, file, range, block } => {
                let at = range.start + done;
                match block.left.is_empty() {
                    true => Step::Receive { socket, into: block.room(range.end - at) },
                    false => Step::Write { file, bytes: block.bytes(), at },
                }
            }
            Work::Splice(splicing) => splicing.next(done),
        }
    }

    /// What a step on a socket waits for if it cannot be done now.
    pub(super) fn waits_for(&self) -> Option<(&Socket, Interest)> {
        Some(match &self.work {
            Work::File(_) => return None,
            Work::Accept(socket, _)
            | Work::Receive(socket, _)
            | Work::ReceiveFile { socket, .. } => (socket, Interest::READ),
            Work::Connect(socket, _) | Work::Send(socket, _) => (socket, Interest::WRITE),
            Work::SendFile(sending) => (&sending.socket, Interest::WRITE),
            Work::Splice(splicing) if splicing.holds_none() => (&splicing.from, Interest::READ),
            Work::Splice(splicing) => (&splicing.to, Interest::WRITE),
        })
    }

    /// What became of the step: bytes, or connections that were accepted; the error.
    pub(super) fn done(&mut self, result: Result<usize, Errno>) {
        let count = match result {
            Ok(count) => count,
            Err(errno) if self.does_without(errno) => return,
            Err(errno) => return self.stop(errno),
        };
        self.interruptions = 0;
        let (before, mut ended, all) = (self.bytes, count == 0, self.all());
        match &mut self.work {
            Work::Accept(_, room) => return *room -= count as i64,
            Work::Connect(socket, _) => {
                // The socket is the caller's to use from now on. It is open, so this cannot fail.
                let _ = ioctl_fionbio(&*socket, false);
                ended = true;
            }
            Work::File(_) => self.bytes += count as u64,
            Work::Receive(..) => {
                self.bytes = count as u64;
                ended = true;
            }
            Work::Send(..) => {
                self.bytes += count as u64;
                self.failure = ended.then_some(Errno::PIPE);
            }
            Work::SendFile(sending) => {
                self.bytes += sending.done(count);
                let is_at_end = sending.way != Way::Bytes;
                self.failure = ended.then_some(if is_at_end { Errno::NODATA } else { Errno::PIPE });
            }
            Work::ReceiveFile { block, .. } if block.left.is_empty() => block.left = 0..count,
            Work::ReceiveFile { block, .. } => {
                block.left.start += count;
                self.bytes += count as u64;
                self.failure = ended.then_some(Errno::IO);
            }
            Work::Splice(splicing) => {
                self.failure = (ended && !splicing.holds_none()).then_some(Errno::PIPE);
                self.bytes += splicing.done(count);
            }
        }
        self.is_over = ended || (self.bytes > before && self.bytes == all);
    }

    /// The step was interrupted: it is to be done again, unless that is so without end.
    pub(super) fn interrupted(&mut self, why: Errno) {
        self.interruptions += 1;
        if self.interruptions > INTERRUPTIONS_MAX {
            self.stop(why);
        }
    }

    /// More connections may be accepted. True if there were to be none before.
    pub(super) fn give_room(&mut self, count: u32) -> bool {
        match &mut self.work {
            Work::Accept(_, room) => {
                *room += i64::from(count);
                (1..=i64::from(count)).contains(room)
            }
            _ => false,
        }
    }

    /// Ends it for this reason, unless it is over.
    pub(super) fn stop(&mut self, why: Errno) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.failure = Some(why);
        }
    }

    pub(super) fn finish(self) -> Outcome {
        let Self { work, bytes, failure, .. } = self;
        let parts = match work {
            Work::File(Operation { buffer, .. }) | Work::Receive(_, buffer) => {
                Parts::Buffer(buffer)
            }
            Work::Accept(..) => Parts::None,
            Work::Connect(socket, _) => Parts::Socket(socket),
            Work::Send(_, buffer) => Parts::Sent(buffer),
            Work::SendFile(sending) => Parts::File(sending.parts),
            Work::ReceiveFile { block, .. } => Parts::Rest(block.bytes().to_vec()),
            Work::Splice(splicing) => Parts::Rest(splicing.rest()),
        };
        Outcome { bytes, failure, parts }
    }

    /// Bytes of all of it, where that is known.
    fn all(&self) -> u64 {
        match &self.work {
            Work::File(Operation { buffer, .. }) | Work::Send(_, buffer) => buffer.len() as u64,
            Work::SendFile(sending) => sending.parts.bytes(),
            Work::ReceiveFile { range, .. } => range.end - range.start,
            Work::Splice(splicing) => splicing.count,
            _ => u64::MAX,
        }
    }

    /// An error after which there is another way.
    fn does_without(&mut self, errno: Errno) -> bool {
        match &mut self.work {
            Work::SendFile(sending) if sending.way == Way::File && errno == Errno::INVAL => {
                sending.always_reads = true;
                true
            }
            Work::Splice(splicing) if splicing.in_pipe == 0 && errno == Errno::INVAL => {
                splicing.pipe.take().is_some()
            }
            // The peer has gone before it was accepted.
            Work::Accept(..) => errno == Errno::CONNABORTED,
            _ => false,
        }
    }
}

impl SendFile {
    /// Bytes of it all. A range of a file and two buffers are fewer than the type can count.
    fn bytes(&self) -> u64 {
        let around = (self.header.len() + self.trailer.len()) as u64;
        around.saturating_add(self.range.end - self.range.start)
    }
}

impl Block {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.left.clone()]
    }

    /// Room for so many bytes, or for some of them.
    fn room(&mut self, count: u64) -> &mut [u8] {
        let count = usize::try_from(count).map_or(BLOCK_BYTES, |count| count.min(BLOCK_BYTES));
        self.buffer.resize(self.buffer.len().max(count), 0);
        &mut self.buffer[..count]
    }

    /// All that is to be sent, if it is little and the kernel has the file in memory.
    fn fill(&mut self, parts: &SendFile) {
        let all = parts.bytes();
        if all > COPIED_FILE_MAX as u64 {
            return;
        }
        let mut buffer = Vec::with_capacity(all as usize);
        buffer.extend_from_slice(&parts.header);
        let file = buffer.len()..all as usize - parts.trailer.len();
        buffer.resize(file.end, 0);
        if read_now(&parts.file, &mut buffer[file.clone()], parts.range.start) == file.len() {
            buffer.extend_from_slice(&parts.trailer);
            *self = Self { left: 0..buffer.len(), buffer };
        }
    }
}

/// Reads what the kernel has in memory of a file: this many bytes.
fn read_now(file: &File, into: &mut [u8], at: u64) -> usize {
    // What is wrong with the file is told by the read that follows.
    preadv2(file, &mut [IoSliceMut::new(into)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

impl Sending {
    /// Where `done` bytes were sent.
    fn next(&mut self, done: u64) -> Step<'_> {
        let Self { socket, parts, block, way, always_reads } = self;
        if *way == Way::Begin {
            block.fill(parts);
        }
        let (header, all) = (parts.header.len() as u64, parts.bytes());
        let trailer = all - parts.trailer.len() as u64;
        let bytes = if !block.left.is_empty() {
            block.bytes()
        } else if done < header {
            &parts.header[done as usize..]
        } else if done < trailer {
            let (at, left) = (parts.range.start + (done - header), trailer - done);
            let count = left.min(BLOCK_BYTES as u64) as usize;
            let file = &*parts.file;
            // After such a step the socket is as it must be. It is left alone where none is taken:
            // on one that blocks, requests to io_uring wait without a poll.
            if !*always_reads
                && sys::is_in_memory(file.as_fd(), at, count)
                && (*way == Way::File || ioctl_fionbio(&*socket, true).is_ok())
            {
                *way = Way::File;
                return Step::SendFile { socket, file, at, count };
            }
            // As root only, and the owner, are told what is in memory.
            let read = read_now(file, block.room(left), at);
            if read == 0 {
                *way = Way::Read;
                return Step::Read { file, into: block.room(left), at };
            }
            block.left = 0..read;
            block.bytes()
        } else {
            &parts.trailer[(done - trailer) as usize..]
        };
        *way = Way::Bytes;
        Step::Send { socket, bytes, more: done + (bytes.len() as u64) < all }
    }

    /// Bytes of the last step that were sent.
    fn done(&mut self, count: usize) -> u64 {
        match self.way {
            Way::Read => {
                self.block.left = 0..count;
                0
            }
            Way::Bytes if !self.block.left.is_empty() => {
                self.block.left.start += count;
                count as u64
            }
            _ => count as u64,
        }
    }
}

impl Splicing {
    fn new(from: &Socket, to: &Socket, count: u64) -> Result<Self, Errno> {
        ioctl_fionbio(from, true)?;
        ioctl_fionbio(to, true)?;
        let pipe = Some(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?);
        let (from, to) = (from.clone(), to.clone());
        Ok(Self { from, to, count, pipe, in_pipe: 0, block: Block::default() })
    }

    fn holds_none(&self) -> bool {
        self.in_pipe == 0 && self.block.left.is_empty()
    }

    fn next(&mut self, done: u64) -> Step<'_> {
        let left = self.count - done;
        let Self { from, to, pipe, in_pipe, block, .. } = self;
        match pipe {
            Some((_, into)) if *in_pipe == 0 => {
                let count = left.min(BLOCK_BYTES as u64) as usize;
                Step::Splice { from, to: into, count }
            }
            Some((out, _)) => Step::Splice { from: out, to, count: *in_pipe },
            None if block.left.is_empty() => Step::Receive { socket: from, into: block.room(left) },
            None => Step::Send { socket: to, bytes: block.bytes(), more: false },
        }
    }

    /// Bytes of the last step that have arrived.
    fn done(&mut self, count: usize) -> u64 {
        let was_sent = !self.holds_none();
        match (&self.pipe, was_sent) {
            (Some(_), true) => self.in_pipe -= count,
            (Some(_), false) => self.in_pipe = count,
            (None, true) => self.block.left.start += count,
            (None, false) => self.block.left = 0..count,
        }
        if was_sent { count as u64 } else { 0 }
    }

    /// What was taken and has not arrived.
    fn rest(self) -> Vec<u8> {
        let Some((out, _)) = self.pipe else { return self.block.bytes().to_vec() };
        let mut rest = vec![0; self.in_pipe];
        // It is there, and the pipe is ours: this neither waits nor fails.
        let count = rustix::io::read(out, &mut rest).unwrap_or(0);
        rest.truncate(count);
        rest
    }
}
