//! Receiving from a stream into a range of a file.
//!
//! There are two buffers of at most [`BUFFER_BYTES`]: one is filled from the stream while the other
//! is written. If the disk is slow, both are full and the receive window closes; the rest stays in
//! the stream. Nothing is written here: the caller carries out one [write](FileReceive::take_write)
//! at a time and passes in its [result](FileReceive::written).
//!
//! Nothing is lost: received bytes are in the file, in the buffer handed back at the end, or still
//! in the stream. After an error of the stream, the bytes before it are written; an error of the
//! file ends both.

use crate::host::TcpStream;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use towpath_io::events::{Action, Buffer, Operation, Outcome, Parts, device, status};

/// Most bytes of a buffer: enough for efficient disk writes; two of them are a megabyte.
const BUFFER_BYTES: usize = 512 << 10;
/// Bytes by which a buffer grows: a super-packet.
const CHUNK_BYTES: usize = 64 << 10;
const _: () = assert!(BUFFER_BYTES.is_multiple_of(CHUNK_BYTES));

/// Result: bytes written to the file, why not all, and bytes that were received but not written.
pub(crate) type FileReceived = (u64, io::Result<()>, Vec<u8>);

/// A write to carry out, and the device of its file.
pub(crate) type DeviceWrite = (u64, Operation);

/// A receive in progress.
pub(crate) struct FileReceive {
    stream: TcpStream,
    file: Arc<File>,
    device: u64,
    range: Range<u64>,
    /// Bytes of the range that were written.
    arrived: u64,
    /// Received bytes that are written next.
    filled: Vec<u8>,
    /// Memory for the bytes that are received next.
    spare: Vec<u8>,
    /// The write that the caller has not taken yet.
    write: Option<Operation>,
    /// Bytes of the write that is requested or in progress.
    writing: usize,
    /// Bytes that the last write left over.
    unwritten: Vec<u8>,
    receives: bool,
    writes: bool,
    failed: Option<io::Error>,
}

impl FileReceive {
    /// Creates a receive of a stream into `range` of `file`.
    ///
    /// # Errors
    /// `INVAL` for a range that no file can have; `SPIPE` if the file has no offsets; errors of
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

    /// Continues. Returns true if it is complete. Otherwise the waker is woken, or a write
    /// completes, when it should be polled again.
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

    /// Takes the next write. [`FileReceive::written`] reports its completion.
    pub(crate) fn take_write(&mut self) -> Option<DeviceWrite> {
        Some((self.device, self.write.take()?))
    }

    /// Handles the result of a write.
    pub(crate) fn written(&mut self, outcome: Outcome) {
        let Outcome { bytes, failure, parts } = outcome;
        let Parts::Buffer(Buffer::Vec(mut buffer)) = parts else {
            unreachable!("a write has a vector")
        };
        self.arrived += bytes;
        self.writing = 0;
        if bytes < buffer.len() as u64 {
            // A file that accepts nothing without an error is broken.
            self.fail(failure.unwrap_or(Errno::IO).into());
            self.writes = false;
            self.unwritten = buffer.split_off(bytes as usize);
        }
        buffer.clear();
        self.spare = buffer;
    }

    /// Ends it for this reason, once the write in progress is complete.
    pub(crate) fn stop(&mut self, why: Errno) {
        self.fail(why.into());
        self.writes = false;
    }

    /// Returns the result of a completed receive.
    pub(crate) fn finish(mut self) -> FileReceived {
        let is_full = self.arrived == self.range.end - self.range.start;
        let result = self.failed.filter(|_| !is_full).map_or(Ok(()), Err);
        self.unwritten.append(&mut self.filled);
        (self.arrived, result, self.unwritten)
    }

    /// Takes received bytes from the stream as far as there is room.
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

    /// Stops receiving.
    fn fail(&mut self, why: io::Error) {
        self.receives = false;
        self.failed.get_or_insert(why);
    }
}
