//! Sending a range of a file over a stream of an instance, between a header and a trailer.
//!
//! # Theory of operation
//!
//! Blocks of the instance's [file cache](towpath::events::FileCache) are lent to the stream one
//! after the other. A file that many sockets send is read once, and none of them copies it. The
//! queue's back end reads blocks ahead, so a slow disk delays no other event. Header and trailer
//! are copied: they are short and belong to the program. The lent memory belongs to the cache, so
//! nothing is returned to the program, and there is no notice.
//!
//! Bytes that the stream has accepted are sent, even if the send fails. A peer that does not read
//! keeps as much as the send buffer holds, in whole blocks.

use super::reports::Report;
use super::socket::{Place, WRITES, attempt};
use crate::errno::{Errno, Outcome};
use crate::instance::State;
use rustix::io::Errno as Kernel;
use std::io;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use towpath::events::custom::{Step, Task};
use towpath::events::{BlockRange, FileSource, Load};
use towpath::layers::net::socket::SocketId;
use towpath::layers::packet::Lender;

/// Bytes that are passed on before other tasks get a turn.
const TURN_BYTES: u64 = 1 << 20;

/// A send in progress.
pub(super) struct SendFile {
    sink: Place,
    /// `None` when the range was passed on, or when no more bytes will be.
    source: Option<FileSource>,
    current: Option<Part>,
    /// Bytes of `current` that were passed on.
    passed: usize,
    trailer: Vec<u8>,
    out: Arc<Out>,
    arrived: u64,
    failed: Option<Errno>,
    report: Report,
}

/// The bytes that are passed on at a time.
enum Part {
    Copied(Vec<u8>),
    Lent(Arc<Block>),
}

/// A block while the stream holds a part of it.
struct Block {
    range: BlockRange,
    out: Arc<Out>,
}

/// The waker to call when the stream releases a block. Each block has a reference to this.
#[derive(Default)]
struct Out(Mutex<Option<Waker>>);

impl SendFile {
    pub(super) fn new(
        sink: Place,
        source: FileSource,
        (header, trailer): (Vec<u8>, Vec<u8>),
        report: Report,
    ) -> Self {
        Self {
            sink,
            source: Some(source),
            current: Some(Part::Copied(header)),
            passed: 0,
            trailer,
            out: Arc::default(),
            arrived: 0,
            failed: None,
            report,
        }
    }

    /// Ensures that there are bytes to pass on. `None` if they are not available yet, false at the
    /// end.
    fn go_on(&mut self, waker: &Waker) -> Option<bool> {
        loop {
            if let Some(part) = &self.current {
                if self.passed < part.bytes().len() {
                    return Some(true);
                }
                (self.current, self.passed) = (None, 0);
            }
            let Some(source) = &mut self.source else { return Some(false) };
            self.out.watch(waker);
            let out = Arc::strong_count(&self.out) - 1;
            match source.next(out, waker)? {
                Some(Ok(range)) => {
                    let block = Block { range, out: self.out.clone() };
                    self.current = Some(Part::Lent(Arc::new(block)));
                }
                Some(Err(error)) => self.end(reason(&error)),
                None => {
                    self.source = None;
                    self.current = Some(Part::Copied(mem::take(&mut self.trailer)));
                }
            }
        }
    }

    /// Passes on as many bytes as there is room for.
    fn pass(&mut self, waker: &Waker) -> Outcome<usize> {
        let Self { sink, current: Some(part), passed, .. } = self else { return Ok(0) };
        attempt(sink, (WRITES, waker), |state, id| part.send(*passed, state, id))
    }

    /// Ends the send for this reason.
    fn end(&mut self, why: Errno) {
        (self.source, self.current) = (None, None);
        self.failed.get_or_insert(why);
    }
}

impl Task for SendFile {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        let turn_end = self.arrived + TURN_BYTES;
        while self.go_on(waker)? {
            match self.pass(waker) {
                Ok(count) => {
                    self.passed += count;
                    self.arrived += count as u64;
                }
                Err(Errno::AGAIN) => return None,
                Err(error) => self.end(error),
            }
            if self.arrived >= turn_end {
                waker.wake_by_ref();
                return None;
            }
        }
        self.report.end(self.arrived, self.failed, 0);
        Some(Step::Complete(self.arrived as i64))
    }

    fn stop(&mut self, why: Kernel) {
        self.end(why.into());
    }

    fn take_loads(&mut self) -> Vec<Load> {
        self.source.as_mut().map(FileSource::take_loads).unwrap_or_default()
    }
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Lent(block) => block.range.as_ref(),
        }
    }

    /// Sends bytes from `from` on, as many as there is room for. Returns their number.
    fn send(&self, from: usize, state: &mut State, id: SocketId) -> Outcome<usize> {
        match self {
            Self::Copied(bytes) => state.send_bytes(id, &bytes[from..]),
            Self::Lent(block) => state.send_block(id, block, from),
        }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.range.as_ref()
    }
}

impl Lender for Block {
    /// No action: dropping the last reference to the block wakes.
    fn returned(&self, _: u64, _: bool) {}
}

impl Drop for Block {
    fn drop(&mut self) {
        self.out.wake();
    }
}

impl Out {
    fn watch(&self, waker: &Waker) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn wake(&self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The error for a source that has no more bytes.
fn reason(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Errno(libc::ENODATA),
        _ => Errno(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}
