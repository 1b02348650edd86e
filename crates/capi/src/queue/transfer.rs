//! Transfers that involve an instance: from a file to one of its streams
//! ([`send_file`](super::send_file)) and back, from one of its streams to another stream
//! ([`splice`](super::splice)), and from a stream of the kernel.
//!
//! # Theory of operation
//!
//! Bytes from the source are collected in one buffer while another one is passed on to the sink;
//! when that is empty, the buffers are swapped. The waits of the queue make the calls on sockets.
//! The queue's back end reads or writes the file, one access at a time. So a slow disk delays no
//! other event, and disk and network work in parallel.
//!
//! How a transfer goes on and ends is the same for all of them: [`mover`](super::mover).

use super::mover::{Mover, Route};
use super::pending::Pending;
use super::reports::Report;
use super::send_file::SendFile;
use super::splice::Splice;
use super::stream::{End, duplicate};
use super::work::{Other, Transfer, Way, copied};
use crate::errno::{Errno, Outcome};
use rustix::fd::AsFd;
use rustix::fs::FileType;
use std::fs::File;
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use towpath::events::custom::Accessed;
use towpath::events::{Action, EventQueue, FileSource, Operation, Token};
use towpath::layers::io::events::{device, kind, status};

/// Bytes that are taken from a socket at a time. Two buffers are `TOWPATH_REST_MAX` of `towpath.h`.
const BUFFER_BYTES: usize = 64 << 10;

/// Where the bytes of a buffered transfer go.
enum Sink {
    Stream(End),
    File(Part),
}

/// A range of a file.
struct Part {
    file: Arc<File>,
    device: u64,
    /// Offset of the next access.
    at: u64,
    asked: Option<Operation>,
    /// Bytes of the access that is asked for or under way.
    accessing: Option<usize>,
}

/// The route of a transfer that buffers its bytes.
struct Buffered {
    from: End,
    to: Sink,
    /// Bytes that were taken.
    next: Vec<u8>,
    /// Bytes that are passed on, and how many of them were.
    current: Vec<u8>,
    passed: usize,
}

/// Starts a transfer on a stream.
///
/// # Errors
/// An argument is invalid.
pub(super) fn begin(
    events: &mut EventQueue,
    own: End,
    (way, transfer): (Way, Transfer<'_>),
    (deadline, data): (Option<Instant>, u64),
) -> Outcome<(Token, Pending)> {
    let report = Report::default();
    let route: Box<dyn Route> = match way {
        Way::SendFile => {
            let task = send_file(own, transfer, report.clone())?;
            let token = events.start(task, deadline, data)?;
            return Ok((token, Pending::Transfer(report)));
        }
        Way::ReceiveFile => Box::new(Buffered::new(own, Sink::File(Part::new(&transfer, false)?))),
        Way::Splice => match (own, End::of(transfer.other)?) {
            (End::Instance(from), to) => Box::new(Splice::new(from, to)),
            (from, to) => Box::new(Buffered::new(from, Sink::Stream(to))),
        },
    };
    let mover = Mover::new(route, transfer.count, transfer.rest, report.clone());
    let token = events.start(mover, deadline, data)?;
    Ok((token, Pending::Transfer(report)))
}

/// Makes a send of a file to a stream of an instance. The kernel itself sends files to its own
/// streams.
fn send_file(own: End, transfer: Transfer<'_>, report: Report) -> Outcome<SendFile> {
    let Part { file, at, .. } = Part::new(&transfer, true)?;
    let End::Instance(place) = own else { return Err(Errno::INVAL) };
    let instance = place.instance().ok_or(Errno(libc::EBADF))?;
    let source = FileSource::new(&instance.file_cache, &file, at..at + transfer.count)?;
    let around = (copied(transfer.header)?, copied(transfer.trailer)?);
    Ok(SendFile::new(place, source, around, report))
}

impl Part {
    /// The range of the file that a transfer uses.
    ///
    /// # Errors
    /// `ESPIPE` for a file without offsets; `EINVAL` for a range that no file can have, and for
    /// reading from a file that is not regular.
    fn new(transfer: &Transfer<'_>, is_read: bool) -> Outcome<Self> {
        let Transfer { other: Other::Kernel(fd), offset: at, count, .. } = *transfer else {
            return Err(Errno::INVAL);
        };
        let end = at.checked_add(count).and_then(|end| i64::try_from(end).ok());
        end.ok_or(Errno::INVAL)?;
        rustix::fs::tell(fd)?;
        let status = status(fd)?;
        if is_read && kind(&status) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        let file = Arc::new(duplicate(fd)?.into());
        Ok(Self { file, device: device(&status), at, asked: None, accessing: None })
    }
}

impl Buffered {
    fn new(from: End, to: Sink) -> Self {
        Self { from, to, next: Vec::new(), current: Vec::new(), passed: 0 }
    }
}

impl Route for Buffered {
    fn take(&mut self, most: u64, waker: &Waker) -> Outcome<usize> {
        let before = self.next.len();
        let wanted = most.min((BUFFER_BYTES - before) as u64) as usize;
        if wanted == 0 {
            return Err(Errno::AGAIN);
        }
        self.next.resize(before + wanted, 0);
        let received = self.from.receive(&mut self.next[before..], waker);
        self.next.truncate(before + received.unwrap_or(0));
        received
    }

    /// Passes bytes to the stream, or asks for an access to the file. The result of the access says
    /// how many bytes have arrived.
    fn pass(&mut self, waker: &Waker) -> Outcome<usize> {
        if self.is_empty() || self.is_accessing() {
            return Err(Errno::AGAIN);
        }
        if self.passed == self.current.len() {
            mem::swap(&mut self.current, &mut self.next);
            self.next.clear();
            self.passed = 0;
        }
        match &mut self.to {
            Sink::Stream(sink) => {
                let count = sink.send(&self.current[self.passed..], waker)?;
                self.passed += count;
                Ok(count)
            }
            Sink::File(part) => {
                let buffer = mem::take(&mut self.current);
                let (action, file) = (Action::Write(part.at), part.file.clone());
                part.accessing = Some(buffer.len());
                part.asked = Some(Operation { action, file, buffer });
                Ok(0)
            }
        }
    }

    fn held(&self) -> Vec<u8> {
        [&self.current[self.passed..], &self.next].concat()
    }

    fn is_empty(&self) -> bool {
        self.next.is_empty() && self.passed == self.current.len()
    }

    fn is_accessing(&self) -> bool {
        matches!(&self.to, Sink::File(Part { accessing: Some(_), .. }))
    }

    fn fd(&self) -> Option<&dyn AsFd> {
        let to = match &self.to {
            Sink::Stream(to) => to.kernel(),
            Sink::File(_) => None,
        };
        self.from.kernel().or(to).map(|socket| socket as _)
    }

    fn take_access(&mut self) -> Option<(u64, Operation)> {
        let Sink::File(part) = &mut self.to else { return None };
        Some((part.device, part.asked.take()?))
    }

    fn accessed(&mut self, accessed: Accessed) -> (u64, Option<Errno>) {
        let Accessed { bytes, failure, buffer, .. } = accessed;
        let Sink::File(part) = &mut self.to else { return (0, None) };
        let Some(wanted) = part.accessing.take() else { return (0, None) };
        part.at += bytes;
        (self.current, self.passed) = (buffer, bytes as usize);
        // A file that accepts no bytes and reports no error is broken.
        let why = failure.map_or(Errno(libc::EIO), Errno::from);
        (bytes, (bytes < wanted as u64).then_some(why))
    }
}
