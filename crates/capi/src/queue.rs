//! Event queues for C, based on `towpath::events`, with sockets of instances as additional sources.
//!
//! One thread at a time uses a queue. A call by a second thread fails with `EBUSY`, so that no
//! thread waits behind one that sleeps. Any thread may notify. The child of a fork cannot use the
//! queue (`EPERM`).
//!
//! Identifiers are tokens plus one, so that zero is never valid.

mod groups;
mod kernel;
mod messages;
mod mover;
pub(crate) mod numbers;
mod operations;
mod pending;
mod reports;
mod send_file;
mod sending;
mod socket;
mod splice;
mod stream;
mod taken;
mod transfer;
mod work;

use crate::errno::{Errno, Outcome};
use crate::held::Held;
use crate::instance::Instance;
use crate::memory::pointers::Posted;
use groups::Groups;
use numbers::{COPIED, DONE};
use pending::{Pending, finish, take_connection};
pub use reports::TowpathEvent;
use reports::{id, token};
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use socket::Watched;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use stream::End;
use towpath::events::{
    Change, Choice, Config, Event, EventKind, EventQueue, Interest, Notifier, Source, Token,
    Trigger,
};
use towpath::layers::io::process_sys::generation;
pub(crate) use work::{FileWork, Other, SocketWork, Transfer, Way};

/// Longest time that the end of a queue waits for memory of operations.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Most events of one check during that wait, and the duration of a check.
const CLOSE_EVENTS: usize = 256;
const CLOSE_STEP: Duration = Duration::from_millis(10);

/// One requested change.
pub(crate) enum Asked {
    Add(Source, u64),
    Modify(u64, Interest, Trigger),
    /// Sets when a timer expires.
    Set(u64, Instant),
    Remove(u64),
}

/// An event queue.
pub struct Queue {
    /// Identifies the process that made it.
    process: u64,
    inner: Mutex<Inner>,
    /// Notifiers of user events, which any thread may trigger.
    notifiers: Mutex<HashMap<u64, Notifier>>,
}

struct Inner {
    events: EventQueue,
    /// Events of one wait.
    found: Vec<Event>,
    /// Operations whose end was not reported.
    operations: HashMap<u64, Pending>,
    groups: Groups,
}

impl Queue {
    /// Makes an empty queue.
    pub fn new(back_end: Choice) -> Outcome<Self> {
        let config = Config { back_end, ..Config::default() };
        let events = EventQueue::with(&config)?;
        Ok(Self {
            process: generation(),
            inner: Mutex::new(Inner {
                events,
                found: Vec::new(),
                operations: HashMap::new(),
                groups: Groups::default(),
            }),
            notifiers: Mutex::default(),
        })
    }

    /// Makes a descriptor that is readable while there are events.
    pub fn descriptor(&self) -> Outcome<OwnedFd> {
        self.enter()?.events.descriptor().map_err(Errno::from)
    }

    /// Whether the back end is io_uring.
    pub fn is_io_uring(&self) -> Outcome<bool> {
        Ok(self.enter()?.events.is_io_uring())
    }

    /// The current time of the queue.
    pub(crate) fn now(&self) -> Outcome<Instant> {
        Ok(self.enter()?.events.now())
    }

    /// Makes changes in order. Returns the identifier or the error of each.
    pub(crate) fn change(&self, asked: Vec<Outcome<Asked>>) -> Outcome<Vec<Outcome<u64>>> {
        let mut inner = self.enter()?;
        let mut results = Vec::with_capacity(asked.len());
        let mut changes = Vec::with_capacity(asked.len());
        for asked in asked {
            match asked.and_then(change) {
                Ok(change) => {
                    changes.push(change);
                    results.push(Ok(0));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        let mut made = inner.events.apply(changes)?.into_iter();
        let mut notifiers = self.notifiers();
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            let made = made.next().expect("one result for each change");
            *result = made.map_err(Errno::from).map(|token| {
                let id = id(token);
                match inner.events.notifier(token) {
                    Some(notifier) => notifiers.insert(id, notifier),
                    // It was removed, or is not a user source.
                    None => notifiers.remove(&id),
                };
                id
            });
        }
        Ok(results)
    }

    /// Starts an operation on a socket of an instance. Returns its identifier.
    pub(crate) fn submit(
        &self,
        of: (&Arc<Instance>, i32),
        work: SocketWork<'_>,
        (deadline, data): (Option<Instant>, u64),
    ) -> Outcome<u64> {
        if let SocketWork::Move(way, transfer) = work {
            let own = End::of_instance(of.0, of.1)?;
            let when = (deadline, data);
            return self.begin(|events| transfer::begin(events, own, (way, transfer), when));
        }
        if let SocketWork::ReceiveMultishot(group) = work {
            return self.receive_multishot(End::of_instance(of.0, of.1)?, group, (deadline, data));
        }
        let (task, pending) = operations::task(of, work)?;
        self.begin(|events| Ok((events.start(task, deadline, data)?, pending)))
    }

    /// Starts an operation on a file of the kernel, of which the queue gets a duplicate.
    pub(crate) fn submit_file(
        &self,
        file: BorrowedFd<'_>,
        work: FileWork<'_>,
        when: (Option<Instant>, u64),
    ) -> Outcome<u64> {
        self.begin(|events| kernel::begin_on_file(events, file, work, when))
    }

    /// Starts an operation on a socket of the kernel, of which the queue gets a duplicate.
    pub(crate) fn submit_socket(
        &self,
        socket: BorrowedFd<'_>,
        work: SocketWork<'_>,
        when: (Option<Instant>, u64),
    ) -> Outcome<u64> {
        if let SocketWork::ReceiveMultishot(group) = work {
            return self.receive_multishot(End::of(Other::Kernel(socket))?, group, when);
        }
        self.begin(|events| kernel::begin_on_socket(events, socket, work, when))
    }

    fn receive_multishot(
        &self,
        end: End,
        group: i32,
        when: (Option<Instant>, u64),
    ) -> Outcome<u64> {
        let group = self.enter()?.groups.get(group)?.clone();
        self.begin(|events| groups::begin(events, end, group, when))
    }

    /// Lends memory as a group of buffers. Returns its number.
    pub(crate) fn add_group(&self, memory: Posted, size: usize, count: usize) -> Outcome<i32> {
        self.enter()?.groups.add(memory, size, count)
    }

    /// Returns a buffer to its group.
    pub fn give(&self, group: i32, buffer: i32) -> Outcome<()> {
        self.enter()?.groups.get(group)?.give(buffer)
    }

    /// Removes a group, whose memory belongs to the program again.
    pub fn remove_group(&self, group: i32) -> Outcome<()> {
        self.enter()?.groups.remove(group)
    }

    /// Starts an operation. Returns its identifier.
    fn begin(
        &self,
        begin: impl FnOnce(&mut EventQueue) -> Outcome<(Token, Pending)>,
    ) -> Outcome<u64> {
        let mut inner = self.enter()?;
        let (token, pending) = begin(&mut inner.events)?;
        inner.operations.insert(id(token), pending);
        Ok(id(token))
    }

    /// Cancels an operation, whose end is still reported.
    pub fn cancel(&self, id: u64) -> Outcome<()> {
        self.enter()?.events.cancel(token(id)?).map_err(Errno::from)
    }

    /// Cancels all operations, and waits for a short time until their memory is back.
    ///
    /// # Errors
    /// `EBUSY` if some memory is not back: the queue continues to exist.
    pub(crate) fn end_operations(&self) -> Outcome<()> {
        if self.check_process().is_err() {
            // The operations belong to the parent.
            return Ok(());
        }
        let mut inner = self.enter()?;
        let Inner { events, found, operations, .. } = &mut *inner;
        for &id in operations.keys() {
            // An error means that it is over; the loop below takes its report.
            let _ = events.cancel(token(id)?);
        }
        let end = events.now() + CLOSE_WAIT_MAX;
        let mut min = 0;
        while !operations.is_empty() && events.now() < end {
            let step = events.now() + CLOSE_STEP;
            let waited = events.wait_many(found, min..=CLOSE_EVENTS, Some(step));
            for event in found.drain(..) {
                if event.kind == EventKind::Connection {
                    // Closed, so that the end of the operation can be reported.
                    drop(events.take(event.token));
                } else if event.is_over || event.kind == EventKind::Completed {
                    operations.remove(&id(event.token));
                }
            }
            waited?;
            min = CLOSE_EVENTS;
        }
        if operations.is_empty() { Ok(()) } else { Err(Errno(libc::EBUSY)) }
    }

    /// Triggers a user event, from any thread.
    pub fn notify(&self, id: u64) -> Outcome<()> {
        self.check_process()?;
        let notifiers = self.notifiers();
        notifiers.get(&id).map(Notifier::notify).ok_or(Errno(libc::ESTALE))
    }

    /// Waits until there are `min` events or `deadline` has passed, and calls `report` with at most
    /// `max` events. Returns their number.
    pub(crate) fn wait(
        &self,
        (min, max): (usize, usize),
        deadline: Option<Instant>,
        mut report: impl FnMut(TowpathEvent),
    ) -> Outcome<usize> {
        let mut inner = self.enter()?;
        let Inner { events, found, operations, .. } = &mut *inner;
        let waited = events.wait_many(found, min..=max, deadline).map_err(Errno::from);
        let count = found.len();
        for found in found.drain(..) {
            let mut event = reports::convert(found);
            match (found.kind, operations.get_mut(&event.id)) {
                (EventKind::Step { .. }, Some(Pending::Transfer(report))) => {
                    event = report.complete(event)
                }
                (EventKind::Step { .. }, Some(Pending::Lent(loans)))
                    if found.is_over && loans.copied() =>
                {
                    event.flags |= COPIED;
                }
                (EventKind::Step { result }, Some(Pending::Multishot)) if !found.is_over => {
                    event = groups::step(event, result);
                }
                (EventKind::Completed, Some(pending)) => {
                    event = finish(events, found.token, pending, event)
                }
                (EventKind::Connection, Some(Pending::Accept(flags))) => {
                    let connection = take_connection(events, found.token, *flags);
                    event.result = connection.map_or(-1, |fd| fd.into_raw_fd().into());
                }
                _ => {}
            }
            if event.what == DONE {
                operations.remove(&event.id);
            }
            report(event);
        }
        // Events that were reported count, even if the wait failed afterwards.
        if count > 0 { Ok(count) } else { waited }
    }

    /// The queue, if no other thread uses it.
    fn enter(&self) -> Outcome<MutexGuard<'_, Inner>> {
        self.check_process()?;
        if Held::is_any() {
            // The lock may be that of an instance whose sockets are in the queue.
            return Err(Errno(libc::EDEADLK));
        }
        match self.inner.try_lock() {
            Ok(inner) => Ok(inner),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Errno(libc::EBUSY)),
        }
    }

    fn notifiers(&self) -> MutexGuard<'_, HashMap<u64, Notifier>> {
        self.notifiers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_process(&self) -> Outcome<()> {
        if generation() == self.process { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }
}

/// A source, from the fields that C has filled.
pub(crate) enum Given<'a> {
    /// A descriptor of the kernel.
    File(BorrowedFd<'a>),
    /// A socket of an instance.
    Socket(ManuallyDrop<Arc<Instance>>, i32),
    Timer(Instant, Option<Duration>),
    User,
    Signal(i32),
    Child(i32),
    Path(PathBuf),
}

impl Given<'_> {
    /// The source. The queue gets a duplicate of a kernel descriptor.
    pub(crate) fn source(self, (interest, trigger): (Interest, Trigger)) -> Outcome<Source> {
        Ok(match self {
            Self::File(fd) => {
                Source::fd(rustix::io::fcntl_dupfd_cloexec(fd, 0)?, interest, trigger)
            }
            Self::Socket(instance, fd) => {
                Source::custom(Watched::new(&instance, fd)?, interest, trigger)
            }
            Self::Timer(first, None) => Source::at(first),
            Self::Timer(first, Some(period)) => Source::every(first, period),
            Self::User => Source::user(),
            Self::Signal(number) => Source::signal(number),
            Self::Child(pid) => Source::child(pid.try_into().map_err(|_| Errno::INVAL)?),
            Self::Path(path) => Source::file(path),
        })
    }
}

/// Interest and trigger from `EPOLLIN` and others. Events that are always reported are allowed.
pub(crate) fn interest(events: u32) -> Outcome<(Interest, Trigger)> {
    let has = |flag: i32| events & flag as u32 != 0;
    let known = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET | libc::EPOLLONESHOT;
    let always = libc::EPOLLRDHUP | libc::EPOLLERR | libc::EPOLLHUP;
    if events & !((known | always) as u32) != 0 || has(libc::EPOLLET) && has(libc::EPOLLONESHOT) {
        return Err(Errno::INVAL);
    }
    let interest =
        Interest { readable: has(libc::EPOLLIN), writable: has(libc::EPOLLOUT), ..Interest::NONE };
    let trigger = match (has(libc::EPOLLET), has(libc::EPOLLONESHOT)) {
        (true, _) => Trigger::Edge,
        (_, true) => Trigger::OneShot,
        _ => Trigger::Level,
    };
    Ok((interest, trigger))
}

fn change(asked: Asked) -> Outcome<Change> {
    Ok(match asked {
        Asked::Add(source, data) => Change::Add(source, data),
        Asked::Modify(id, interest, trigger) => Change::Modify(token(id)?, interest, trigger),
        Asked::Set(id, next) => Change::SetTimer(token(id)?, next),
        Asked::Remove(id) => Change::Remove(token(id)?),
    })
}
