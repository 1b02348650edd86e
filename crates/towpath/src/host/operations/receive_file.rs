//! Receiving from a stream into a range of a file.
//!
//! Received pieces are held, and the file is written from where they are: one set is received while
//! the other one is written. If the disk is slow, both are full and the receive window closes; the
//! rest stays in the stream. Pieces count against the receive buffer until they are written, too.
//! Nothing is written here: the caller carries out one [write](FileReceive::take_write) at a time
//! and passes in its [result](FileReceive::written).
//!
//! The stream itself copies short pieces of large memory together, and bytes that others may write
//! ([`Sockets::receive_lent`](towpath_net::socket::Sockets::receive_lent)). All other bytes are
//! copied by the file alone.
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
use towpath_io::events::{Job, Outcome, PieceWrite, device, status};
use towpath_packet::{Ledger, PinnedPiece, ReceivedPiece};

/// Most bytes of a set: enough for efficient disk writes; two of them are a megabyte.
const SET_BYTES: usize = 512 << 10;
/// Memory that the pieces of a set keep, at which it takes no more.
const SET_KEPT: usize = 2 * SET_BYTES;
/// Pieces of a set at which it takes no more: as many as fill it, if each is a segment.
const SET_PIECES: usize = 400;

/// Result: bytes written to the file, why not all, and bytes that were received but not written.
pub(crate) type FileReceived = (u64, io::Result<()>, Vec<u8>);

/// A write to carry out, and the device of its file.
pub(crate) type DeviceWrite = (u64, Job);

/// A receive in progress.
pub(crate) struct FileReceive {
    stream: TcpStream,
    file: Arc<File>,
    device: u64,
    range: Range<u64>,
    /// Bytes of the range that were written.
    arrived: u64,
    /// What is written next.
    filled: Set,
    /// The write that the caller has not taken yet.
    write: Option<Job>,
    /// What is being written.
    writing: Set,
    /// Bytes that the last write left over.
    unwritten: Vec<u8>,
    receives: bool,
    writes: bool,
    failed: Option<io::Error>,
}

/// Received pieces, in order.
#[derive(Default)]
struct Set {
    pieces: Vec<ReceivedPiece>,
    bytes: usize,
    /// Memory that the pieces keep.
    kept: usize,
}

impl Set {
    fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes that it takes.
    fn room(&self) -> usize {
        let is_full = self.kept >= SET_KEPT || self.pieces.len() >= SET_PIECES;
        if is_full { 0 } else { SET_BYTES - self.bytes }
    }

    /// Counts the pieces behind the first `counted`.
    fn count(&mut self, counted: usize) {
        for piece in &self.pieces[counted..] {
            self.bytes += piece.len();
            self.kept += piece.piece().held();
        }
    }

    /// Returns the pieces, which stay in place for a write.
    fn pin(&self) -> Vec<PinnedPiece> {
        self.pieces.iter().map(|piece| PinnedPiece::new(piece.piece().clone())).collect()
    }

    /// Copies the bytes but the first `skip` to the end of `into`.
    fn copy(&self, mut skip: usize, into: &mut Vec<u8>, ledger: &Ledger) {
        for piece in &self.pieces {
            let start = into.len();
            into.resize(start + piece.len(), 0);
            piece.copy(&mut into[start..], ledger);
            let skipped = skip.min(piece.len());
            into.drain(start..start + skipped);
            skip -= skipped;
        }
    }
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
            filled: Set::default(),
            write: None,
            writing: Set::default(),
            unwritten: Vec::new(),
            writes: true,
            failed: None,
        })
    }

    /// Continues. Returns true if it is complete. Otherwise the waker is woken, or a write
    /// completes, when it should be polled again.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        self.receive(cx);
        if self.writing.is_empty() && self.writes && !self.filled.is_empty() {
            self.writing = std::mem::take(&mut self.filled);
            let at = self.range.start + self.arrived;
            let write = PieceWrite::new(self.file.clone(), at, self.writing.pin());
            self.write = Some(Job::WritePieces(write));
            self.receive(cx);
        }
        self.writing.is_empty() && !self.receives && (!self.writes || self.filled.is_empty())
    }

    /// Takes the next write. [`FileReceive::written`] reports its completion.
    pub(crate) fn take_write(&mut self) -> Option<DeviceWrite> {
        Some((self.device, self.write.take()?))
    }

    /// Handles the result of a write.
    pub(crate) fn written(&mut self, outcome: Outcome) {
        let Outcome { bytes, failure, .. } = outcome;
        let writing = std::mem::take(&mut self.writing);
        self.arrived += bytes;
        if bytes < writing.bytes as u64 {
            // A file that accepts nothing without an error is broken.
            self.fail(failure.unwrap_or(Errno::IO).into());
            self.writes = false;
            writing.copy(bytes as usize, &mut self.unwritten, self.stream.ledger());
        }
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
        self.filled.copy(0, &mut self.unwritten, self.stream.ledger());
        (self.arrived, result, self.unwritten)
    }

    /// Takes received bytes from the stream as far as there is room.
    fn receive(&mut self, cx: &mut Context<'_>) {
        while self.receives {
            let taken = self.arrived + (self.writing.bytes + self.filled.bytes) as u64;
            let left = self.range.end - self.range.start - taken;
            let wanted = left.min(self.filled.room() as u64) as usize;
            if wanted == 0 {
                self.receives = left > 0;
                return;
            }
            let counted = self.filled.pieces.len();
            match self.stream.poll_take(cx, wanted, &mut self.filled.pieces) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) => self.receives = count > 0,
                Poll::Ready(Err(error)) => self.fail(error),
            }
            self.filled.count(counted);
        }
    }

    /// Stops receiving.
    fn fail(&mut self, why: io::Error) {
        self.receives = false;
        self.failed.get_or_insert(why);
    }
}
