//! Operations as sequences of steps, which both back ends carry out alike.
//!
//! A [`Running`] returns its [next](Running::next) step and takes the result ([`Running::done`])
//! until it is complete. Between two steps it can be [stopped](Running::stop). The back end decides
//! how to carry out a step: by a request, by a non-blocking call, or in a thread. What is counted
//! and what is an error is decided here, so that it is the same for all.

mod abandon;
mod pieces;
mod provided;
mod ranges;
mod sink;
mod step;
mod transfer;

use super::{Action, Operation, SendFile};
use crate::large_pages::LargeBlock;
use crate::reactor::Interest;
pub use pieces::PieceWrite;
pub use provided::{Buffer, Call, Calls, Memory, OtherBuffer};
use ranges::Ranges;
use rustix::fd::OwnedFd;
use rustix::fs::Statx;
use rustix::io::{Errno, ioctl_fionbio};
pub use sink::broken;
use std::fs::File;
use std::mem;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
pub(super) use step::Step;
pub use transfer::read_now;
use transfer::{Block, Sending, Splicing, Way};

/// Most bytes of one step between a file and a socket, or between two sockets.
pub const BLOCK_BYTES: usize = 128 << 10;
/// A file is copied if it is sent with header and trailer in no more bytes than this.
pub const COPIED_FILE_MAX: usize = 16 << 10;
/// Most connections accepted and not yet taken, unless more arrive at the same time.
pub const ACCEPTED_MAX: u32 = 64;
/// Most retries of an interrupted step before the interruption is treated as an error. No program
/// receives so many signals, but a file system may return the error forever.
const INTERRUPTIONS_MAX: u32 = 256;

/// A kernel socket. Operations keep it open.
pub type Socket = Arc<OwnedFd>;

/// A job for a back end.
#[derive(Debug)]
pub enum Job {
    /// An operation on a file.
    File(Operation<Buffer>),
    /// Read a block of a file.
    ReadBlock(BlockRead),
    /// Write pieces to a file.
    WritePieces(PieceWrite),
    /// Ask a file's server for the current status of the file.
    Look(Look),
    /// Connect a non-blocking socket. The flag says whether to make it blocking afterwards.
    Connect(Socket, SocketAddr, bool),
    /// Accept connections until the job is cancelled.
    Accept(Socket),
    /// Receive at least one byte into a buffer.
    Receive(Socket, Buffer),
    /// Receive until a buffer is full or the stream ends.
    ReceiveAll(Socket, Buffer),
    /// Send all of a buffer.
    Send(Socket, Buffer),
    /// Send all of a buffer by lending it, where back end, kernel and socket support it. The job is
    /// complete when the buffer has returned.
    Lend(Socket, Buffer),
    /// Send or lend memory that is dropped at the end.
    SendMemory(Socket, Memory),
    /// Send a file. The socket becomes non-blocking before its first sendfile(2).
    SendFile(Socket, SendFile),
    /// Write received bytes to a range of a file.
    ReceiveFile(Socket, Arc<File>, Range<u64>),
    /// Send this many bytes that the first socket receives on the second. Both become non-blocking.
    Splice(Socket, Socket, u64),
    /// Make the program's own calls.
    Call(Calls),
}

/// Reads a block of a file directly, bypassing the page cache, or normally if that fails.
#[derive(Debug)]
pub struct BlockRead {
    /// The file, which stays open meanwhile.
    pub file: Arc<File>,
    /// The same file, opened for [direct reads](crate::direct::reopen).
    pub direct: Option<Arc<File>>,
    /// Offset of the block in the file.
    pub at: u64,
    /// The block to fill.
    pub block: LargeBlock,
}

/// Asks for the status of a file.
#[derive(Debug)]
pub struct Look {
    /// The file.
    pub file: Arc<File>,
    /// What the kernel [knew](super::status) of it, replaced by the answer, which lacks the mount.
    pub status: Box<Statx>,
}

impl Job {
    /// Returns the file that the job reads or writes, which must have offsets.
    ///
    /// # Errors
    /// `INVAL` if an offset is too large for any file, or if a range ends before it begins.
    pub(super) fn file(&self) -> Result<Option<&Arc<File>>, Errno> {
        let (file, end) = match self {
            Self::File(Operation { action, file, .. }) => match *action {
                Action::Read(offset) | Action::Write(offset) => (file, offset),
                Action::Sync | Action::SyncData => return Ok(None),
            },
            Self::ReadBlock(BlockRead { file, at, .. })
            | Self::WritePieces(PieceWrite { file, at, .. }) => (file, *at),
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

/// Result of a job.
#[derive(Debug)]
pub struct Outcome {
    /// Bytes read, written, received, sent or moved, also after a failure.
    pub bytes: u64,
    /// Why the job is incomplete: `CANCELED` if it was cancelled, `NODATA` if a file to send ended
    /// too early, or another error.
    pub failure: Option<Errno>,
    /// The job's buffers and sockets.
    pub parts: Parts,
}

/// What a job hands back.
#[derive(Debug)]
pub enum Parts {
    /// Nothing.
    None,
    /// A buffer, with its length unchanged.
    Buffer(Buffer),
    /// A block; true if it was read past the kernel's cache.
    Block(LargeBlock, bool),
    /// Status of a file, if it could be determined.
    Status(Box<Statx>),
    /// The buffer that was sent, an empty one for [`Memory`]; true if some of it was copied.
    Sent(Buffer, bool),
    /// The socket that was connected.
    Socket(Socket),
    /// The parts that were sent.
    File(SendFile),
    /// Bytes that were taken from their source and not delivered.
    Rest(Vec<u8>),
    /// Nothing, for calls.
    Called {
        /// True if the calls were to send a given number of bytes.
        sent: bool,
    },
}

/// A job in progress.
#[derive(Debug)]
pub(super) struct Running {
    work: Work,
    bytes: u64,
    failure: Option<Errno>,
    is_over: bool,
    /// Interruptions of the current step without progress.
    interruptions: u32,
}

#[derive(Debug)]
enum Work {
    File(Operation<Buffer>),
    ReadBlock(BlockRead),
    WritePieces(PieceWrite, Ranges),
    Look(Look),
    Connect(Socket, SocketAddr, bool),
    /// Also the number of connections that may be accepted; negative if more than that were
    /// accepted.
    Accept(Socket, i64),
    Receive {
        socket: Socket,
        buffer: Buffer,
        /// Receive until it is full.
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
    /// Nothing: the job was taken out.
    Taken,
}

/// Memory that is sent.
#[derive(Debug)]
enum Source {
    Buffer(Buffer),
    Memory(Memory),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer.bytes(),
            Self::Memory(memory) => (*memory.bytes).as_ref(),
        }
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
            Job::WritePieces(write) => Work::WritePieces(write, Ranges::default()),
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
            Work::Receive { buffer, .. } => buffer.bytes().is_empty(),
            Work::WritePieces(write, _) => write.bytes() == 0,
            _ => false,
        };
        Ok(Self { work, bytes: 0, failure: None, is_over, interruptions: 0 })
    }

    /// Returns the next step. Repeats it until [`done`](Self::done) is called.
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
                        Step::Read { file, into: &mut buffer.bytes_mut()[done..], at: at(offset) }
                    }
                    Action::Write(offset) => {
                        Step::Write { file, bytes: &buffer.bytes()[done..], at: at(offset) }
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
            Work::WritePieces(write, ranges) => write.next(done, ranges),
            Work::Look(Look { file, status }) => Step::Look { file, into: status },
            Work::Connect(socket, remote, _) => Step::Connect { socket, remote: *remote },
            Work::Accept(_, ..=0) => Step::Idle,
            Work::Accept(listener, _) => Step::Accept { listener },
            Work::Receive { socket, buffer, all } => {
                Step::Receive { socket, into: &mut buffer.bytes_mut()[done as usize..], all: *all }
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
            Work::Taken => Step::Over,
        }
    }

    /// True if the disk writes directly into the memory that is read into.
    pub(super) fn is_direct(&self) -> bool {
        matches!(&self.work, Work::ReadBlock(BlockRead { direct: Some(_), .. }))
    }

    /// The condition for which a step on a socket waits if it would block.
    pub(super) fn waits_for(&self) -> Option<(&Socket, Interest)> {
        Some(match &self.work {
            Work::File(..)
            | Work::ReadBlock(_)
            | Work::WritePieces(..)
            | Work::Look(_)
            | Work::Taken => return None,
            Work::Accept(socket, _)
            | Work::Receive { socket, .. }
            | Work::ReceiveFile { socket, .. } => (socket, Interest::READ),
            Work::Connect(socket, ..) | Work::Send { socket, .. } => (socket, Interest::WRITE),
            Work::SendFile(sending) => (&sending.socket, Interest::WRITE),
            Work::Splice(splicing) => splicing.waits_for(),
            Work::Call(calls) => (&calls.socket, calls.interest),
        })
    }

    /// Takes the result of a step: bytes moved or connections accepted, or the error.
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
            Work::Connect(..) | Work::Look(_) | Work::Taken => ended = true,
            Work::File(..) | Work::WritePieces(..) => self.bytes += count as u64,
            Work::ReadBlock(read) => {
                self.bytes += count as u64;
                // The rest does not start at a block boundary.
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

    /// The step was interrupted. It is repeated, unless that has happened too often.
    pub(super) fn interrupted(&mut self, why: Errno) {
        self.interruptions += 1;
        if self.interruptions > INTERRUPTIONS_MAX {
            self.stop(why);
        }
    }

    /// Allows more connections to be accepted. True if none were allowed before.
    pub(super) fn give_room(&mut self, count: u32) -> bool {
        match &mut self.work {
            Work::Accept(_, room) => {
                *room += i64::from(count);
                (1..=i64::from(count)).contains(room)
            }
            _ => false,
        }
    }

    /// Copies a buffer that should be lent, because the back end cannot lend.
    pub(super) fn copies(&mut self) {
        if let Work::Send { lends, .. } = &mut self.work {
            *lends = false;
        }
    }

    /// Notes that the kernel copied some of a lent buffer.
    pub(super) fn was_copied(&mut self) {
        if let Work::Send { copied, .. } = &mut self.work {
            *copied = true;
        }
    }

    /// Ends the job for this reason, unless it is complete.
    pub(super) fn stop(&mut self, why: Errno) {
        if !mem::replace(&mut self.is_over, true) {
            self.failure = Some(why);
        }
    }

    /// Takes the job out and returns its result. What is left is complete, and its memory can be
    /// used for another job.
    pub(super) fn finish(&mut self) -> Outcome {
        self.is_over = true;
        let (bytes, failure) = (self.bytes, self.failure);
        let parts = match mem::replace(&mut self.work, Work::Taken) {
            Work::File(Operation { buffer, .. }) | Work::Receive { buffer, .. } => {
                Parts::Buffer(buffer)
            }
            Work::ReadBlock(read) => Parts::Block(read.block, read.direct.is_some()),
            Work::Look(look) => Parts::Status(look.status),
            Work::Accept(..) | Work::WritePieces(..) | Work::Taken => Parts::None,
            Work::Connect(socket, _, blocks) => {
                if blocks {
                    // Cannot fail, because the socket is open.
                    let _ = ioctl_fionbio(&socket, false);
                }
                Parts::Socket(socket)
            }
            Work::Send { from: Source::Buffer(buffer), copied, .. } => Parts::Sent(buffer, copied),
            Work::Send { from: Source::Memory(_), copied, .. } => {
                Parts::Sent(Buffer::Vec(Vec::new()), copied)
            }
            Work::SendFile(sending) => Parts::File(sending.parts),
            Work::ReceiveFile { block, .. } => Parts::Rest(block.bytes().to_vec()),
            Work::Splice(splicing) => Parts::Rest(splicing.rest()),
            Work::Call(Calls { interest, all, .. }) => {
                Parts::Called { sent: interest.writable && all.is_some() }
            }
        };
        Outcome { bytes, failure, parts }
    }

    /// Total bytes of the job, or the maximum if the total is unknown.
    fn all(&self) -> u64 {
        match &self.work {
            Work::File(Operation { buffer, .. }) | Work::Receive { buffer, .. } => {
                buffer.bytes().len() as u64
            }
            Work::ReadBlock(read) => read.block.len() as u64,
            Work::WritePieces(write, _) => write.bytes(),
            Work::Send { from, .. } => from.bytes().len() as u64,
            Work::SendFile(sending) => sending.parts.bytes(),
            Work::ReceiveFile { range, .. } => range.end - range.start,
            Work::Splice(splicing) => splicing.count,
            Work::Call(Calls { all: Some(all), .. }) => *all,
            _ => u64::MAX,
        }
    }

    /// True for an error after which the job continues in another way.
    fn does_without(&mut self, errno: Errno) -> bool {
        match &mut self.work {
            // The file is then read normally, or that fails.
            Work::ReadBlock(read) => read.direct.take().is_some(),
            Work::SendFile(sending) if sending.way == Way::File && errno == Errno::INVAL => {
                sending.always_reads = true;
                true
            }
            Work::Splice(splicing) if splicing.in_pipe == 0 && errno == Errno::INVAL => {
                splicing.pipe.take().is_some()
            }
            // The limit on locked memory, other limits of the socket, or no support by the socket
            // or the kernel.
            Work::Send { lends: lends @ true, .. } => {
                let refused = [Errno::NOMEM, Errno::NOBUFS, Errno::OPNOTSUPP, Errno::INVAL];
                *lends = !refused.contains(&errno);
                !*lends
            }
            // The peer has gone before its connection was accepted.
            Work::Accept(..) => errno == Errno::CONNABORTED,
            _ => false,
        }
    }
}
