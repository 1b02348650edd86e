//! Operations as steps, which both back ends carry out alike.
//!
//! A [`Running`] says what is to be done [next](Running::next), and is told what became of it
//! ([`Running::done`]), until it is over. Between two steps it can be [stopped](Running::stop).
//! Whoever carries out a step decides how: by a request, by a call that does not block, or in a
//! thread; what is counted and what is an error is decided here, so that it is the same for all.

mod abandon;
mod moves;
mod own;
mod sink;

use super::{Action, Operation, SendFile};
use crate::large_pages::LargeBlock;
use crate::reactor::Interest;
pub use moves::read_now;
use moves::{Block, Sending, Splicing, Way};
pub use own::{Call, Calls, Memory};
use rustix::fd::OwnedFd;
use rustix::fs::Statx;
use rustix::io::{Errno, ioctl_fionbio};
use sink::Sink;
pub use sink::broken;
use std::fs::File;
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
    /// Read a block of a file.
    ReadBlock(BlockRead),
    /// Ask whoever keeps a file what it is like now.
    Look(Look),
    /// Connect a socket that does not block. Whether it is to, when this is over.
    Connect(Socket, SocketAddr, bool),
    /// Accept connections until it is cancelled.
    Accept(Socket),
    /// Receive into a buffer, however few bytes.
    Receive(Socket, Vec<u8>),
    /// Receive until a buffer is full, or no more will come.
    ReceiveAll(Socket, Vec<u8>),
    /// Send all of a buffer.
    Send(Socket, Vec<u8>),
    /// The same by lending it, where back end, kernel and socket can. It is over when it is back.
    Lend(Socket, Vec<u8>),
    /// One of these two, of memory that is no `Vec`.
    SendMemory(Socket, Memory),
    /// Send a file. The socket is made not to block when the first of it goes by sendfile(2).
    SendFile(Socket, SendFile),
    /// Write what comes to a range of a file.
    ReceiveFile(Socket, Arc<File>, Range<u64>),
    /// Send on the second socket so many bytes that the first receives. Both are made not to block.
    Splice(Socket, Socket, u64),
    /// Make calls of the program's own.
    Call(Calls),
}

/// A block of a file that is read past the kernel's cache, or as any other if that fails.
#[derive(Debug)]
pub struct BlockRead {
    /// The file, which stays open meanwhile.
    pub file: Arc<File>,
    /// The [same](crate::direct::reopen).
    pub direct: Option<Arc<File>>,
    /// Where in it.
    pub at: u64,
    /// All of it is to be read.
    pub block: LargeBlock,
}

/// A question of what a file is like.
#[derive(Debug)]
pub struct Look {
    /// The file.
    pub file: Arc<File>,
    /// What the kernel [knew](super::status) of it, and the answer, but for its mount.
    pub status: Box<Statx>,
}

impl Job {
    /// The file that it reads or writes, which has to have offsets.
    ///
    /// # Errors
    /// `INVAL` for an offset that no file has, or a range that ends before it begins.
    pub(super) fn file(&self) -> Result<Option<&Arc<File>>, Errno> {
        let (file, end) = match self {
            Self::File(Operation { action, file, .. }) => match *action {
                Action::Read(offset) | Action::Write(offset) => (file, offset),
                Action::Sync | Action::SyncData => return Ok(None),
            },
            Self::ReadBlock(BlockRead { file, at, .. }) => (file, *at),
            Self::SendFile(_, SendFile { file, range, .. }) | Self::ReceiveFile(_, file, range) => {
                if range.start > range.end {
                    return Err(Errno::INVAL);
                }
                (file, range.end)
            }
            _ => return Ok(None),
        };
        i64::try_from(end).map_or(Err(Errno::INVAL), |_| Ok(Some(file)))
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
    /// A block; whether it was read past the kernel's cache.
    Block(LargeBlock, bool),
    /// What a file is like, if that could be found out.
    Status(Box<Statx>),
    /// A buffer that was to be sent, an empty one for [`Memory`]; whether some of it was copied.
    Sent(Vec<u8>, bool),
    /// The socket that was to be connected.
    Socket(Socket),
    /// What was to be sent.
    File(SendFile),
    /// Bytes that were taken from their source and have not arrived.
    Rest(Vec<u8>),
    /// Nothing, of calls.
    Called {
        /// They were to send so many bytes.
        sent: bool,
    },
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
    ReadBlock(BlockRead),
    Look(Look),
    Connect(Socket, SocketAddr, bool),
    /// With how many connections may be accepted now; below zero if more were than should be.
    Accept(Socket, i64),
    Receive {
        socket: Socket,
        buffer: Vec<u8>,
        /// Until it is full.
        all: bool,
    },
    Send {
        socket: Socket,
        from: Source,
        lends: bool,
        copied: bool,
    },
    SendFile(Box<Sending>),
    ReceiveFile {
        socket: Socket,
        file: Arc<File>,
        range: Range<u64>,
        block: Block,
    },
    Splice(Box<Splicing>),
    Call(Calls),
}

/// What is sent.
#[derive(Debug)]
enum Source {
    Buffer(Vec<u8>),
    Memory(Memory),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Memory(memory) => (*memory.bytes).as_ref(),
        }
    }
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
    /// These four may take as long as a disk does.
    Look {
        file: &'a File,
        into: &'a mut Statx,
    },
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
        all: bool,
    },
    Send {
        socket: &'a OwnedFd,
        bytes: &'a [u8],
        more: bool,
    },
    /// A request to io_uring, for the rest of so many bytes in `all`, which are the kernel's until
    /// it gives them back.
    Lend {
        socket: &'a OwnedFd,
        bytes: &'a [u8],
        all: u64,
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
        /// Where the bytes go in the end, while none is on the way.
        sink: Option<&'a mut Sink>,
    },
    Call {
        calls: &'a mut Calls,
        done: u64,
    },
}

impl Step<'_> {
    /// True if it may take as long as a disk does.
    pub(super) fn is_on_file(&self) -> bool {
        matches!(
            self,
            Self::Look { .. } | Self::Read { .. } | Self::Write { .. } | Self::Sync { .. }
        )
    }
}

impl Running {
    pub(super) fn new(job: Job) -> Result<Self, (Errno, Job)> {
        let mut is_over = false;
        let receive = |socket, buffer, all| Work::Receive { socket, buffer, all };
        let send = |socket, from, lends| Work::Send { socket, from, lends, copied: false };
        let work = match job {
            Job::File(operation) => Work::File(operation),
            Job::ReadBlock(read) => Work::ReadBlock(read),
            Job::Look(look) => Work::Look(look),
            Job::Connect(socket, remote, blocks) => Work::Connect(socket, remote, blocks),
            Job::Accept(listener) => Work::Accept(listener, ACCEPTED_MAX.into()),
            Job::Receive(socket, buffer) => receive(socket, buffer, false),
            Job::ReceiveAll(socket, buffer) => receive(socket, buffer, true),
            Job::Send(socket, buffer) => send(socket, Source::Buffer(buffer), false),
            Job::Lend(socket, buffer) => send(socket, Source::Buffer(buffer), true),
            Job::SendMemory(socket, memory) => {
                let lends = memory.lends;
                send(socket, Source::Memory(memory), lends)
            }
            Job::SendFile(socket, parts) => {
                is_over = parts.bytes() == 0;
                let (block, way) = (Block::default(), Way::Begin);
                let sending = Sending { socket, parts, block, way, always_reads: false, seen: 0 };
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
            Job::Call(calls) => {
                is_over = calls.all == Some(0);
                Work::Call(calls)
            }
        };
        is_over |= match &work {
            Work::Send { from, .. } => from.bytes().is_empty(),
            Work::Receive { buffer, .. } => buffer.is_empty(),
            _ => false,
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
            Work::ReadBlock(BlockRead { file, direct, at, block }) => {
                let at = at.saturating_add(done);
                let file = direct.as_ref().unwrap_or(file);
                Step::Read { file, into: &mut block[done as usize..], at }
            }
            Work::Look(Look { file, status }) => Step::Look { file, into: status },
            Work::Connect(socket, remote, _) => Step::Connect { socket, remote: *remote },
            Work::Accept(_, ..=0) => Step::Idle,
            Work::Accept(listener, _) => Step::Accept { listener },
            Work::Receive { socket, buffer, all } => {
                Step::Receive { socket, into: &mut buffer[done as usize..], all: *all }
            }
            Work::Send { socket, from, lends, .. } => {
                let (bytes, all) = (&from.bytes()[done as usize..], from.bytes().len() as u64);
                match lends {
                    true => Step::Lend { socket, bytes, all },
                    false => Step::Send { socket, bytes, more: false },
                }
            }
            Work::SendFile(sending) => sending.next(done),
            Work::ReceiveFile { socket, file, range, block } => {
                let at = range.start + done;
                match block.left.is_empty() {
                    true => Step::Receive { socket, into: block.room(range.end - at), all: false },
                    false => Step::Write { file, bytes: block.bytes(), at },
                }
            }
            Work::Splice(splicing) => splicing.next(done),
            Work::Call(calls) => Step::Call { calls, done },
        }
    }

    /// Whether it reads what the disk puts in its place by itself.
    pub(super) fn is_direct(&self) -> bool {
        matches!(&self.work, Work::ReadBlock(BlockRead { direct: Some(_), .. }))
    }

    /// What a step on a socket waits for if it cannot be done now.
    pub(super) fn waits_for(&self) -> Option<(&Socket, Interest)> {
        Some(match &self.work {
            Work::File(..) | Work::ReadBlock(_) | Work::Look(_) => return None,
            Work::Accept(socket, _)
            | Work::Receive { socket, .. }
            | Work::ReceiveFile { socket, .. } => (socket, Interest::READ),
            Work::Connect(socket, ..) | Work::Send { socket, .. } => (socket, Interest::WRITE),
            Work::SendFile(sending) => (&sending.socket, Interest::WRITE),
            Work::Splice(splicing) => splicing.waits_for(),
            Work::Call(calls) => (&calls.socket, calls.interest),
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
            Work::Connect(..) | Work::Look(_) => ended = true,
            Work::File(..) => self.bytes += count as u64,
            Work::ReadBlock(read) => {
                self.bytes += count as u64;
                // The rest begins anywhere.
                if self.bytes < all {
                    read.direct = None;
                }
            }
            Work::Receive { all, .. } => {
                self.bytes += count as u64;
                ended |= !*all;
            }
            Work::Send { lends, copied, .. } => {
                self.bytes += count as u64;
                *copied |= count > 0 && !*lends;
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
            Work::Call(calls) => {
                self.bytes += count as u64;
                ended |= calls.all.is_none();
            }
        }
        self.is_over = ended || (self.bytes > before && self.bytes >= all);
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

    /// The back end lends nothing: a buffer that was to be lent is copied.
    pub(super) fn copies(&mut self) {
        if let Work::Send { lends, .. } = &mut self.work {
            *lends = false;
        }
    }

    /// Some of a buffer that was lent was copied after all.
    pub(super) fn was_copied(&mut self) {
        if let Work::Send { copied, .. } = &mut self.work {
            *copied = true;
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
            Work::File(Operation { buffer, .. }) | Work::Receive { buffer, .. } => {
                Parts::Buffer(buffer)
            }
            Work::ReadBlock(read) => Parts::Block(read.block, read.direct.is_some()),
            Work::Look(look) => Parts::Status(look.status),
            Work::Accept(..) => Parts::None,
            Work::Connect(socket, _, blocks) => {
                if blocks {
                    // It is open, so this cannot fail.
                    let _ = ioctl_fionbio(&socket, false);
                }
                Parts::Socket(socket)
            }
            Work::Send { from: Source::Buffer(buffer), copied, .. } => Parts::Sent(buffer, copied),
            Work::Send { from: Source::Memory(_), copied, .. } => Parts::Sent(Vec::new(), copied),
            Work::SendFile(sending) => Parts::File(sending.parts),
            Work::ReceiveFile { block, .. } => Parts::Rest(block.bytes().to_vec()),
            Work::Splice(splicing) => Parts::Rest(splicing.rest()),
            Work::Call(Calls { interest, all, .. }) => {
                Parts::Called { sent: interest.writable && all.is_some() }
            }
        };
        Outcome { bytes, failure, parts }
    }

    /// Bytes of all of it, where that is known.
    fn all(&self) -> u64 {
        match &self.work {
            Work::File(Operation { buffer, .. }) | Work::Receive { buffer, .. } => {
                buffer.len() as u64
            }
            Work::ReadBlock(read) => read.block.len() as u64,
            Work::Send { from, .. } => from.bytes().len() as u64,
            Work::SendFile(sending) => sending.parts.bytes(),
            Work::ReceiveFile { range, .. } => range.end - range.start,
            Work::Splice(splicing) => splicing.count,
            Work::Call(Calls { all: Some(all), .. }) => *all,
            _ => u64::MAX,
        }
    }

    /// An error after which there is another way.
    fn does_without(&mut self, errno: Errno) -> bool {
        match &mut self.work {
            // As it is read otherwise, or fails.
            Work::ReadBlock(read) => read.direct.take().is_some(),
            Work::SendFile(sending) if sending.way == Way::File && errno == Errno::INVAL => {
                sending.always_reads = true;
                true
            }
            Work::Splice(splicing) if splicing.in_pipe == 0 && errno == Errno::INVAL => {
                splicing.pipe.take().is_some()
            }
            // Memory that may be locked, other limits of the socket; what its kind or the kernel
            // does not know.
            Work::Send { lends: lends @ true, .. } => {
                let refused = [Errno::NOMEM, Errno::NOBUFS, Errno::OPNOTSUPP, Errno::INVAL];
                *lends = !refused.contains(&errno);
                !*lends
            }
            // The peer has gone before it was accepted.
            Work::Accept(..) => errno == Errno::CONNABORTED,
            _ => false,
        }
    }
}
