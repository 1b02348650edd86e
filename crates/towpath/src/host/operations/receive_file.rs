//! Receiving a stream into a range of a file.
//!
//! There are two buffers of at most [`BUFFER_BYTES`]: one is filled from the stream while the other
//! is written. A disk that is slow finds both full, so that the window closes; what was not taken
//! stays with the stream. It writes nothing itself: whoever polls it carries out the
//! [write](FileReceive::take_write) that it asks for, one at a time, and tells what
//! [became of it](FileReceive::written).
//!
//! Nothing is lost: what was received is in the file, in what is handed back at the end, or still
//! in the stream. An error of the stream ends the receiving, and what came before is
//! written; an error of the file ends both.

use crate::host::TcpStream;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use towpath_io::events::{Action, Operation, Outcome, Parts, device, status};

/// Bytes of a buffer: a stretch for a disk; two of them are a megabyte.
const BUFFER_BYTES: usize = 512 << 10;
/// Bytes by which a buffer grows: a super-packet.
const CHUNK_BYTES: usize = 64 << 10;
const _: () = assert!(BUFFER_BYTES.is_multiple_of(CHUNK_BYTES));

/// What became of it: bytes that are in the file, why not all came, and what was received and is
/// not in the file.
pub(crate) type FileReceived = (u64, io::Result<()>, Vec<u8>);

/// A write that is to be carried out, and the device of its file.
pub(crate) type DeviceWrite = (u64, Operation);

/// One under way.
pub(crate) struct FileReceive {
    stream: TcpStream,
    file: Arc<File>,
    device: u64,
    range: Range<u64>,
    /// Bytes of the range that are written.
    arrived: u64,
    /// Received, to be written next.
    filled: Vec<u8>,
    /// Memory for what is received next.
    spare: Vec<u8>,
    /// To be carried out.
    write: Option<Operation>,
    /// Bytes of the write that is asked for or under way.
    writing: usize,
    /// What the last write has left over.
    unwritten: Vec<u8>,
    receives: bool,
    writes: bool,
    failed: Option<io::Error>,
}

impl FileReceive {
    /// # Errors
    /// `INVAL` for a range that no file can have; `SPIPE` if the file has no offsets; those of
    /// statx(2).
    pub(crate) fn new(stream: TcpStream, file: Arc<File>, range: Range<u64>) -> io::Result<Self> {
        if range.start > range.end || i64::try_from(range.end).is_err() {
            return Err(Errno::INVAL.into());
        }
        rustix::fs::tell(&*file)?;
        Ok(Self {
            stream,
            device: device(&status(&*file)?),
            file,
            receives: !range.is_empty(),
            range,
            arrived: 0,
            filled: Vec::new(),
            spare: Vec::new(),
            write: None,
            writing: 0,
            unwritten: Vec::new(),
            writes: true,
            failed: None,
        })
    }

    /// Goes on. True if it is over: else the waker is woken, or a write is over, when it is worth
    /// trying again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        self.receive(cx);
        if self.writing == 0 && self.writes && !self.filled.is_empty() {
            let buffer = std::mem::replace(&mut self.filled, std::mem::take(&mut self.spare));
            self.writing = buffer.len();
            let action = Action::Write(self.range.start + self.arrived);
            self.write = Some(Operation { action, file: self.file.clone(), buffer });
            self.receive(cx);
        }
        self.writing == 0 && !self.receives && (!self.writes || self.filled.is_empty())
    }

    /// What is to be written. Its end is told by [`FileReceive::written`].
    pub(crate) fn take_write(&mut self) -> Option<DeviceWrite> {
        Some((self.device, self.write.take()?))
    }

    /// A write is over.
    pub(crate) fn written(&mut self, outcome: Outcome) {
        let Outcome { bytes, failure, parts } = outcome;
        let Parts::Buffer(mut buffer) = parts else { unreachable!("a write has a buffer") };
        self.arrived += bytes;
        self.writing = 0;
        if bytes < buffer.len() as u64 {
            // A file that takes nothing, without an error, is broken.
            self.fail(failure.unwrap_or(Errno::IO).into());
            self.writes = false;
            self.unwritten = buffer.split_off(bytes as usize);
        }
        buffer.clear();
        self.spare = buffer;
    }

    /// Ends it for this reason, when the write that is under way is over.
    pub(crate) fn stop(&mut self, why: Errno) {
        self.fail(why.into());
        self.writes = false;
    }

    /// What became of it when it is over.
    pub(crate) fn finish(mut self) -> FileReceived {
        let is_full = self.arrived == self.range.end - self.range.start;
        let result = self.failed.filter(|_| !is_full).map_or(Ok(()), Err);
        self.unwritten.append(&mut self.filled);
        (self.arrived, result, self.unwritten)
    }

    /// Takes what the stream has, as far as there is room.
    fn receive(&mut self, cx: &mut Context<'_>) {
        while self.receives {
            let before = self.filled.len();
            let taken = self.arrived + (self.writing + before) as u64;
            let left = self.range.end - self.range.start - taken;
            let room = (BUFFER_BYTES - before).min(CHUNK_BYTES) as u64;
            let wanted = left.min(room) as usize;
            if wanted == 0 {
                self.receives = left > 0;
                return;
            }
            self.filled.resize(before + wanted, 0);
            let received = self.stream.poll_read(cx, &mut self.filled[before..]);
            let count = if let Poll::Ready(Ok(count)) = received { count } else { 0 };
            self.filled.truncate(before + count);
            match received {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) => self.receives = count > 0,
                Poll::Ready(Err(error)) => self.fail(error),
            }
        }
    }

    /// No more is received.
    fn fail(&mut self, why: io::Error) {
        self.receives = false;
        self.failed.get_or_insert(why);
    }
}
