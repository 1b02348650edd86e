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
//! No byte is lost: bytes that were taken from the source have arrived, are handed back at the end,
//! or stay with the source. An error of the source ends the reading; bytes read before are passed
//! on. An error of the sink, a cancel and a deadline end both, when the current access is complete.

use super::pending::Pending;
use super::reports::Report;
use super::send_file::SendFile;
use super::splice::Splice;
use super::stream::{End, duplicate};
use super::work::{Other, Transfer, Way, copied};
use crate::errno::{Errno, Outcome};
use crate::memory::pointers::Posted;
use rustix::fd::AsFd;
use rustix::fs::FileType;
use rustix::io::Errno as Kernel;
use std::fs::File;
use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;
use towpath::events::custom::{Accessed, Step, Task};
use towpath::events::{Action, EventQueue, FileSource, Operation, Token};
use towpath::layers::io::events::{device, kind, status};

/// Bytes that are taken from a socket at a time. Two buffers are `TOWPATH_REST_MAX` of `towpath.h`.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes that are passed on before other tasks get a turn.
const TURN_BYTES: u64 = 1 << 20;

/// Source and sink of a transfer.
enum Route {
    ReceiveFile(End, Part),
    Splice(End, End),
}

/// A range of a file.
struct Part {
    file: Arc<File>,
    device: u64,
    /// Offset of the next access.
    at: u64,
}

/// Progress of the file access.
enum Access {
    None,
    Asked(Operation),
    UnderWay { bytes: usize },
}

/// A transfer in progress.
struct Moving {
    route: Route,
    access: Access,
    /// Bytes that are still to be taken from the source.
    left: u64,
    /// There may be more bytes to take.
    takes: bool,
    /// More bytes can be passed on.
    passes: bool,
    /// Bytes that were taken.
    next: Vec<u8>,
    /// Bytes that are passed on, and how many of them were.
    current: Vec<u8>,
    passed: usize,
    arrived: u64,
    failed: Option<Errno>,
    /// Memory for bytes that were taken and not delivered.
    rest: Posted,
    report: Report,
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
    let route = match way {
        Way::SendFile => {
            let task = send_file(own, transfer, report.clone())?;
            let token = events.start(task, deadline, data)?;
            return Ok((token, Pending::Transfer(report)));
        }
        Way::ReceiveFile => Route::ReceiveFile(own, Part::new(&transfer, false)?),
        Way::Splice => match (own, End::of(transfer.other)?) {
            (End::Instance(from), to) => {
                let task = Splice::new(from, to, transfer.count, transfer.rest, report.clone());
                let token = events.start(task, deadline, data)?;
                return Ok((token, Pending::Transfer(report)));
            }
            (from, to) => Route::Splice(from, to),
        },
    };
    let moving = Moving::new(route, transfer.count, transfer.rest, report.clone());
    let token = events.start(moving, deadline, data)?;
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
        Ok(Self { file: Arc::new(duplicate(fd)?.into()), device: device(&status), at })
    }
}

impl Moving {
    fn new(route: Route, count: u64, rest: Posted, report: Report) -> Self {
        Self {
            route,
            access: Access::None,
            left: count,
            takes: count > 0,
            passes: true,
            next: Vec::new(),
            current: Vec::new(),
            passed: 0,
            arrived: 0,
            failed: None,
            rest,
            report,
        }
    }

    /// Records that `count` more bytes were taken.
    fn took(&mut self, count: u64) {
        self.left -= count;
        self.takes = self.left > 0;
    }

    /// Takes bytes from the source, as far as there is room. True if there were any.
    fn take(&mut self, waker: &Waker) -> bool {
        if !self.takes || !self.passes {
            return false;
        }
        let (Route::ReceiveFile(source, _) | Route::Splice(source, _)) = &mut self.route;
        let room = BUFFER_BYTES - self.next.len();
        let before = self.next.len();
        let wanted = self.left.min(room as u64) as usize;
        if wanted == 0 {
            return false;
        }
        self.next.resize(before + wanted, 0);
        let received = source.receive(&mut self.next[before..], waker);
        let count = received.unwrap_or(0);
        self.next.truncate(before + count);
        match received {
            Err(Errno::AGAIN) => {}
            Err(error) => self.end_source(Some(error)),
            // The source has ended, which is not an error.
            Ok(0) => self.end_source(None),
            Ok(_) => self.took(count as u64),
        }
        count > 0
    }

    /// Passes on bytes. True if that changed anything.
    fn pass(&mut self, waker: &Waker) -> bool {
        if !self.passes || !matches!(self.access, Access::None) {
            return false;
        }
        if self.passed == self.current.len() {
            if self.next.is_empty() {
                return false;
            }
            mem::swap(&mut self.current, &mut self.next);
            self.next.clear();
            self.passed = 0;
        }
        match &mut self.route {
            Route::ReceiveFile(_, part) => {
                let buffer = mem::take(&mut self.current);
                let (action, file) = (Action::Write(part.at), part.file.clone());
                self.access = Access::Asked(Operation { action, file, buffer });
                true
            }
            Route::Splice(_, sink) => match sink.send(&self.current[self.passed..], waker) {
                Ok(count) => {
                    self.passed += count;
                    self.arrived += count as u64;
                    true
                }
                Err(Errno::AGAIN) => false,
                Err(error) => {
                    self.end_both(error);
                    true
                }
            },
        }
    }

    /// Ends the source, with an error or without.
    fn end_source(&mut self, why: Option<Errno>) {
        self.takes = false;
        self.failed = self.failed.or(why);
    }

    /// Ends source and sink for this reason.
    fn end_both(&mut self, why: Errno) {
        self.end_source(Some(why));
        self.passes = false;
    }

    /// The last step, if the transfer is over.
    fn end(&mut self) -> Option<Step> {
        let is_empty = self.next.is_empty() && self.passed == self.current.len();
        let is_over = !self.passes || !self.takes && is_empty;
        if !matches!(self.access, Access::None) || !is_over {
            return None;
        }
        // An error that came after all bytes had arrived did not end the transfer.
        let error = self.failed.filter(|_| self.left > 0 || !is_empty);
        let left_over = self.current[self.passed..].iter().chain(&self.next);
        left_over.clone().zip(self.rest.rest(0)).for_each(|(&from, to)| *to = from);
        self.report.end(self.arrived, error, left_over.count() as u32);
        Some(Step::Complete(self.arrived as i64))
    }
}

impl Task for Moving {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        let turn_end = self.arrived + TURN_BYTES;
        loop {
            // In this order: passing on makes room for taking.
            let passed = self.pass(waker);
            let took = self.take(waker);
            if let Some(step) = self.end() {
                return Some(step);
            }
            if !took && !passed {
                return None;
            }
            if self.arrived >= turn_end {
                waker.wake_by_ref();
                return None;
            }
        }
    }

    fn stop(&mut self, why: Kernel) {
        self.end_both(why.into());
    }

    fn fd(&self) -> Option<&dyn AsFd> {
        let (a, b) = match &self.route {
            Route::ReceiveFile(end, _) => (end.kernel(), None),
            Route::Splice(from, to) => (from.kernel(), to.kernel()),
        };
        a.or(b).map(|socket| socket as _)
    }

    fn take_access(&mut self) -> Option<(u64, Operation)> {
        let Route::ReceiveFile(_, part) = &self.route else { return None };
        match mem::replace(&mut self.access, Access::None) {
            Access::Asked(operation) => {
                self.access = Access::UnderWay { bytes: operation.buffer.len() };
                Some((part.device, operation))
            }
            other => {
                self.access = other;
                None
            }
        }
    }

    fn accessed(&mut self, Accessed { bytes, failure, buffer, .. }: Accessed) {
        let Access::UnderWay { bytes: wanted } = mem::replace(&mut self.access, Access::None)
        else {
            return;
        };
        let Route::ReceiveFile(_, part) = &mut self.route else { return };
        part.at += bytes;
        self.arrived += bytes;
        (self.current, self.passed) = (buffer, bytes as usize);
        if bytes < wanted as u64 {
            // A file that accepts no bytes and reports no error is broken.
            self.end_both(failure.map_or(Errno(libc::EIO), Errno::from));
        }
    }
}
