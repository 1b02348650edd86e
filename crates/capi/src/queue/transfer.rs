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

use super::kernel::{Kept, Other, Transfer, Way, duplicate, is_stream};
use super::send_file::SendFile;
use super::socket::{Place, READS, WRITES};
use super::{Told, errno, over};
use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::pointers::Posted;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FileType;
use rustix::io::Errno as Kernel;
use rustix::net::{RecvFlags, SendFlags};
use std::fs::File;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Instant;
use towpath::events::{Accessed, Action, EventQueue, FileSource, Operation, Step, Task, Token};
use towpath::layers::io::events::{device, kind, status};
use towpath::layers::net::socket::{ReceiveFlags, SendFlags as Sends, SocketId};

/// Bytes that are taken from a socket at a time. Two of them are `TOWPATH_REST_MAX` of `towpath.h`.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes that are passed on before others have their turn.
const TURN_BYTES: u64 = 1 << 20;

/// What a transfer has come to, for the queue that told its end.
#[derive(Clone, Default)]
pub(super) struct Report(Arc<Mutex<Ended>>);

#[derive(Clone, Copy, Default)]
struct Ended {
    arrived: u64,
    error: i32,
    left_over: u32,
}

impl Report {
    /// What there is to tell of the end.
    pub(super) fn tell(&self, told: Told) -> Told {
        let Ended { arrived, error, left_over } = *self.lock();
        Told { error, detail: left_over, ..over(told, arrived as i64) }
    }

    /// How it ended.
    pub(super) fn end(&self, arrived: u64, failed: Option<Errno>, left_over: u32) {
        let error = failed.map_or(0, |Errno(number)| number);
        *self.lock() = Ended { arrived, error, left_over };
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = Ended> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream.
pub(super) enum End {
    Instance(Place),
    Kernel(OwnedFd),
}

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
            let token = events.start(task, deadline, data).map_err(errno)?;
            return Ok((token, Kept::Transfer(report)));
        }
        Way::ReceiveFile => Route::ReceiveFile(own, Part::new(&transfer, false)?),
        Way::Splice => Route::Splice(own, End::of(transfer.other)?),
    };
    let moving = Moving::new(route, transfer.count, transfer.rest, report.clone());
    let token = events.start(moving, deadline, data).map_err(errno)?;
    Ok((token, Kept::Transfer(report)))
}

/// A file is sent to a stream of an instance: what the kernel's are sent the kernel sends.
fn send_file(own: End, transfer: Transfer<'_>, report: Report) -> Outcome<SendFile> {
    let Part { file, at, .. } = Part::new(&transfer, true)?;
    let End::Instance(place) = own else { return Err(Errno::INVAL) };
    let instance = place.instance().ok_or(Errno(libc::EBADF))?;
    let source = FileSource::new(&instance.file_cache, &file, at..at + transfer.count);
    let source = source.map_err(errno)?;
    let copied = |bytes| super::kernel::copied(bytes);
    let around = (copied(transfer.header)?, copied(transfer.trailer)?);
    Ok(SendFile::new(place, source, around, report))
}

impl End {
    /// # Errors
    /// `EBADF`, `ENOTSOCK`; `EOPNOTSUPP` if it is no stream.
    pub(super) fn of_instance(instance: &Arc<Instance>, fd: i32) -> Outcome<Self> {
        let place = Place::new(instance, fd)?;
        let is_datagram = instance.is_datagram(fd);
        if is_datagram { Err(Errno(libc::EOPNOTSUPP)) } else { Ok(Self::Instance(place)) }
    }

    /// As [`End::of_instance`].
    pub(super) fn of(other: Other<'_>) -> Outcome<Self> {
        match other {
            Other::Instance(instance, fd) => Self::of_instance(&instance, fd),
            Other::Kernel(fd) if is_stream(fd)? => Ok(Self::Kernel(duplicate(fd)?)),
            Other::Kernel(_) => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    /// The kernel's socket, if it is one.
    pub(super) fn kernel(&self) -> Option<&OwnedFd> {
        match self {
            Self::Kernel(socket) => Some(socket),
            Self::Instance(_) => None,
        }
    }

    /// Receives what is there; [`Errno::AGAIN`] if that is nothing yet.
    pub(super) fn receive(&mut self, into: &mut [u8], waker: &Waker) -> Outcome<usize> {
        self.read(into, false, waker)
    }

    /// Whether there is something to receive, which stays: 0 at the end of the stream.
    pub(super) fn look(&mut self, waker: &Waker) -> Outcome<usize> {
        self.read(&mut [0], true, waker)
    }

    fn read(&mut self, into: &mut [u8], peek: bool, waker: &Waker) -> Outcome<usize> {
        let how = ReceiveFlags { peek, offset: 0 };
        let flags = if peek { RecvFlags::PEEK } else { RecvFlags::empty() } | RecvFlags::DONTWAIT;
        match self {
            Self::Instance(place) => attempt(place, (READS, waker), |state, id| {
                Ok(state.with(|sockets, cx| sockets.receive(id, into, how, cx))?)
            }),
            Self::Kernel(socket) => {
                uninterrupted(|| rustix::net::recv(&*socket, &mut *into, flags).map(|(len, _)| len))
            }
        }
    }

    /// Sends the beginning of `bytes`; [`Errno::AGAIN`] if there is no room.
    fn send(&mut self, bytes: &[u8], waker: &Waker) -> Outcome<usize> {
        let how = Sends::default();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match self {
            Self::Instance(place) => attempt(place, (WRITES, waker), |state, id| {
                Ok(state.with(|sockets, cx| sockets.send(id, &[bytes], how, cx))?)
            }),
            Self::Kernel(socket) => uninterrupted(|| rustix::net::send(&*socket, bytes, flags)),
        }
    }
}

/// Makes a call on a socket of an instance. If it has to wait, `waker` is woken by these events.
pub(super) fn attempt(
    place: &mut Place,
    (events, waker): (u32, &Waker),
    call: impl FnOnce(&mut State, SocketId) -> Outcome<usize>,
) -> Outcome<usize> {
    let gone = Errno(libc::ECANCELED);
    let instance = place.instance().ok_or(gone)?;
    let mut state = instance.lock();
    let fd = place.fd(&state).ok_or(gone)?;
    let id = state.id(fd)?;
    let outcome = call(&mut state, id);
    if outcome == Err(Errno::AGAIN) {
        place.watch(&mut state, waker, events);
    }
    instance.settle(&mut state);
    outcome
}

/// Makes a call of the kernel's again while signals interrupt it.
fn uninterrupted(mut call: impl FnMut() -> rustix::io::Result<usize>) -> Outcome<usize> {
    loop {
        match call() {
            Err(Kernel::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
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
