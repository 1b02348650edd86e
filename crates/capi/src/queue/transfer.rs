//! Transfers in which an instance has a part: from a file to one of its streams
//! ([`send_file`](super::send_file)) and back, and between two streams, of which one may be the
//! kernel's.
//!
//! # Theory of operation
//!
//! What is taken from the source gathers in one buffer while another one is passed on to the sink;
//! when that is empty they change places. The waits of the queue make the calls of sockets; the
//! file is read or written by the queue's back end, once at a time, so a slow disk keeps nobody
//! waiting, and disk and network go on together.
//!
//! Nothing is lost: what was taken has arrived, or is handed back at the end, or stays with the
//! source. An error of the source ends the taking, and what came before it is passed on; an error
//! of the sink, a cancel and a deadline end both, when the access under way is over.

use super::kept::Kept;
use super::send_file::SendFile;
use super::stream::{End, duplicate};
use super::told::Report;
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

/// Bytes that are taken from a socket at a time. Two of them are `TOWPATH_REST_MAX` of `towpath.h`.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes that are passed on before others have their turn.
const TURN_BYTES: u64 = 1 << 20;

/// Where bytes come from, and where they go.
enum Route {
    ReceiveFile(End, Part),
    Splice(End, End),
}

/// A part of a file.
struct Part {
    file: Arc<File>,
    device: u64,
    /// Where the next access begins.
    at: u64,
}

/// How far the access of the file is.
enum Access {
    None,
    Asked(Operation),
    UnderWay { bytes: usize },
}

/// A transfer under way.
struct Moving {
    route: Route,
    access: Access,
    /// Bytes that are still to be taken from the source.
    left: u64,
    /// There may be more to take.
    takes: bool,
    /// More can be passed on.
    passes: bool,
    /// What was taken.
    next: Vec<u8>,
    /// What is passed on, and how many bytes of it were.
    current: Vec<u8>,
    passed: usize,
    arrived: u64,
    failed: Option<Errno>,
    /// For what was taken and has not arrived.
    rest: Posted,
    report: Report,
}

/// Begins a transfer on a stream.
///
/// # Errors
/// What is wrong with the arguments.
pub(super) fn begin(
    events: &mut EventQueue,
    own: End,
    (way, transfer): (Way, Transfer<'_>),
    (deadline, data): (Option<Instant>, u64),
) -> Outcome<(Token, Kept)> {
    let report = Report::default();
    let route = match way {
        Way::SendFile => {
            let task = send_file(own, transfer, report.clone())?;
            let token = events.start(task, deadline, data)?;
            return Ok((token, Kept::Transfer(report)));
        }
        Way::ReceiveFile => Route::ReceiveFile(own, Part::new(&transfer, false)?),
        Way::Splice => Route::Splice(own, End::of(transfer.other)?),
    };
    let moving = Moving::new(route, transfer.count, transfer.rest, report.clone());
    let token = events.start(moving, deadline, data)?;
    Ok((token, Kept::Transfer(report)))
}

/// A file is sent to a stream of an instance: what the kernel's are sent the kernel sends.
fn send_file(own: End, transfer: Transfer<'_>, report: Report) -> Outcome<SendFile> {
    let Part { file, at, .. } = Part::new(&transfer, true)?;
    let End::Instance(place) = own else { return Err(Errno::INVAL) };
    let instance = place.instance().ok_or(Errno(libc::EBADF))?;
    let source = FileSource::new(&instance.file_cache, &file, at..at + transfer.count)?;
    let around = (copied(transfer.header)?, copied(transfer.trailer)?);
    Ok(SendFile::new(place, source, around, report))
}

impl Part {
    /// # Errors
    /// `ESPIPE` for what has no offsets; `EINVAL` for a range that no file can have, and, if it is
    /// to be read, for what is no regular file.
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

    /// So many bytes more were taken.
    fn took(&mut self, count: u64) {
        self.left -= count;
        self.takes = self.left > 0;
    }

    /// Takes what the source has, as far as there is room. True if that was something.
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
            // It has ended, which is no error.
            Ok(0) => self.end_source(None),
            Ok(_) => self.took(count as u64),
        }
        count > 0
    }

    /// Passes on what was taken. True if something changed by that.
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

    /// No more comes from the source.
    fn end_source(&mut self, why: Option<Errno>) {
        self.takes = false;
        self.failed = self.failed.or(why);
    }

    /// Nothing goes on, for this reason.
    fn end_both(&mut self, why: Errno) {
        self.end_source(Some(why));
        self.passes = false;
    }

    /// The last step, if it is over.
    fn end(&mut self) -> Option<Step> {
        let is_empty = self.next.is_empty() && self.passed == self.current.len();
        let is_over = !self.passes || !self.takes && is_empty;
        if !matches!(self.access, Access::None) || !is_over {
            return None;
        }
        // What came too late to keep anything from arriving did not end it.
        let error = self.failed.filter(|_| self.left > 0 || !is_empty);
        let left_over = self.current[self.passed..].iter().chain(&self.next);
        left_over.clone().zip(self.rest.rest(0)).for_each(|(&from, to)| *to = from);
        self.report.end(self.arrived, error, left_over.count() as u32);
        Some(Step::Over(self.arrived as i64))
    }
}

impl Task for Moving {
    fn poll(&mut self, waker: &Waker) -> Option<Step> {
        let turn_end = self.arrived + TURN_BYTES;
        loop {
            // In this order: what is passed on leaves room for more to be taken.
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

    fn accessed(&mut self, Accessed { bytes, failure, buffer }: Accessed) {
        let Access::UnderWay { bytes: wanted } = mem::replace(&mut self.access, Access::None)
        else {
            return;
        };
        let Route::ReceiveFile(_, part) = &mut self.route else { return };
        part.at += bytes;
        self.arrived += bytes;
        (self.current, self.passed) = (buffer, bytes as usize);
        if bytes < wanted as u64 {
            // A file that takes nothing, without an error, is broken.
            self.end_both(failure.map_or(Errno(libc::EIO), Errno::from));
        }
    }
}
