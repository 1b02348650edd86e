//! Event queues: reading the structures that C fills, and the calls on queues.
#![allow(unsafe_code)]

use super::extensible::{Elements, check_rest, read_grown};
use super::mmsg::duration;
use super::shapes::{TowpathChange, TowpathLent, TowpathOperation, TowpathTransfer};
use super::{give_done, give_int, set_errno};
use crate::errno::{Errno, Outcome};
use crate::instance::Instance;
use crate::memory::pointers::{
    Lent, Message, Posted, TokenPlace, bytes, file, path, sockaddr_bytes,
};
use crate::queue::numbers::{
    ABSTIME, ACCEPT, ADD, CONNECT, FDATASYNC, FSYNC, MODIFY, QUEUE_EPOLL, QUEUE_IO_URING, READ,
    RECV, RECV_MULTISHOT, RECVFILE, RECVMSG, RECVMSG_LENT, REMOVE, SEND, SENDFILE, SENDMSG,
    SOURCE_CHILD, SOURCE_FD, SOURCE_FILE, SOURCE_SIGNAL, SOURCE_TIMER, SOURCE_USER, SPLICE, WRITE,
};
use crate::queue::{
    Asked, FileWork, Given, Other, Queue, SocketWork, TowpathEvent, Transfer, Way, interest,
};
use libc::{c_int, c_uint, c_void, itimerspec, msghdr, size_t, socklen_t, timespec};
use rustix::fd::IntoRawFd;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath::events::Choice;

impl TowpathOperation {
    /// Starts the operation.
    ///
    /// # Safety
    /// The instance was made and not freed. The memory belongs to the operation until its end is
    /// reported: no code writes memory that is sent, and none uses memory that is received into.
    unsafe fn submit(&self, queue: &Queue) -> Outcome<u64> {
        if self.reserved != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller vouches for it.
        let deadline = unsafe { read_deadline(queue, self.deadline) }?;
        let when = (deadline, self.data);
        if matches!(self.operation, READ..=FDATASYNC) {
            if !self.instance.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the caller vouches for it.
            let work = unsafe { self.file_work() }?;
            // SAFETY: the caller does not close the file during the call.
            let file = unsafe { file(self.fd) }?;
            return queue.submit_file(file, work, when);
        }
        // SAFETY: the caller vouches for it.
        let work = unsafe { self.socket_work() }?;
        if self.instance.is_null() {
            // SAFETY: the caller does not close the socket during the call.
            let socket = unsafe { file(self.fd) }?;
            return queue.submit_socket(socket, work, when);
        }
        // SAFETY: the caller vouches for it.
        let instance = unsafe { borrowed(self.instance) }?;
        queue.submit((&instance, self.fd), work, when)
    }

    /// The work on a socket.
    ///
    /// # Safety
    /// The requirements of [`TowpathOperation::submit`].
    unsafe fn socket_work<'a>(&self) -> Outcome<SocketWork<'a>> {
        let known = match self.operation {
            ACCEPT => libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            RECV => libc::MSG_WAITALL,
            SEND => libc::MSG_ZEROCOPY,
            RECVMSG => libc::MSG_PEEK | libc::MSG_TRUNC,
            _ => 0,
        };
        if self.flags & !known != 0 {
            return Err(Errno::INVAL);
        }
        Ok(match self.operation {
            CONNECT => {
                let len = socklen_t::try_from(self.len).map_err(|_| Errno::INVAL)?;
                // SAFETY: the caller vouches for it.
                SocketWork::Connect(unsafe { sockaddr_bytes(self.buffer.cast(), len) }?)
            }
            ACCEPT if self.len == 0 => SocketWork::Accept(self.flags),
            RECV_MULTISHOT if self.len == 0 => SocketWork::ReceiveMultishot(self.group),
            RECV => {
                // SAFETY: the caller vouches for it.
                SocketWork::Receive(unsafe { Posted::new(self.buffer, self.len) }?, self.flags)
            }
            SEND => {
                // SAFETY: the caller vouches for it.
                let memory = unsafe { Lent::new(self.buffer, self.len) }?;
                SocketWork::Send(memory, self.flags & libc::MSG_ZEROCOPY != 0)
            }
            RECVMSG | SENDMSG => {
                if self.len != size_of::<msghdr>() {
                    return Err(Errno::INVAL);
                }
                // SAFETY: the caller vouches for it.
                let message = unsafe { Message::new(self.buffer.cast()) }?;
                match self.operation {
                    RECVMSG => SocketWork::ReceiveMessage(message, self.flags),
                    _ => SocketWork::SendMessage(message),
                }
            }
            RECVMSG_LENT => {
                let lent = self.buffer.cast::<TowpathLent>();
                // SAFETY: the caller vouches for `len` bytes.
                unsafe { check_rest(lent, self.len) }?;
                // SAFETY: it is not null, as `check_rest` has checked, and has at least this
                // length.
                let lent = unsafe { &mut *lent };
                // SAFETY: the caller vouches for it.
                let message = unsafe { Message::new(&raw mut lent.message) }?;
                // SAFETY: the caller vouches for it.
                SocketWork::ReceiveLent(message, unsafe { TokenPlace::new(&raw mut lent.token) }?)
            }
            SENDFILE..=SPLICE => {
                let transfer = self.buffer.cast::<TowpathTransfer>();
                // SAFETY: the caller vouches for `len` bytes.
                let transfer = unsafe { read_grown(transfer.cast_const(), self.len) }?;
                let way = match self.operation {
                    SENDFILE => Way::SendFile,
                    RECVFILE => Way::ReceiveFile,
                    _ => Way::Splice,
                };
                // SAFETY: the caller vouches for it.
                SocketWork::Move(way, unsafe { transfer.read(way) }?)
            }
            _ => return Err(Errno::INVAL),
        })
    }

    /// The work on a file.
    ///
    /// # Safety
    /// The requirements of [`TowpathOperation::submit`].
    unsafe fn file_work<'a>(&self) -> Outcome<FileWork<'a>> {
        let offset = u64::try_from(self.offset).map_err(|_| Errno::INVAL);
        if self.flags != 0 {
            return Err(Errno::INVAL);
        }
        Ok(match self.operation {
            READ => {
                // SAFETY: the caller vouches for it.
                FileWork::Read(unsafe { Posted::new(self.buffer, self.len) }?, offset?)
            }
            WRITE => {
                // SAFETY: the caller vouches for it.
                unsafe { Lent::new(self.buffer, self.len) }?;
                // SAFETY: the caller vouches for it.
                FileWork::Write(unsafe { bytes(self.buffer, self.len) }?, offset?)
            }
            FSYNC => FileWork::Sync,
            FDATASYNC => FileWork::SyncData,
            _ => return Err(Errno::INVAL),
        })
    }
}

impl TowpathTransfer {
    /// The bytes to move.
    ///
    /// # Safety
    /// The requirements of [`TowpathOperation::submit`]; header and trailer have to be valid only
    /// during the call.
    unsafe fn read<'a>(&self, way: Way) -> Outcome<Transfer<'a>> {
        let sends = way == Way::SendFile;
        let is_alike = match sends {
            true => self.rest_len == 0,
            false => self.header_len == 0 && self.trailer_len == 0,
        };
        let is_splice = way == Way::Splice;
        let is_of_its_way = if is_splice { self.offset == 0 } else { self.instance.is_null() };
        if self.reserved != 0 || !is_alike || !is_of_its_way {
            return Err(Errno::INVAL);
        }
        let other = match self.instance.is_null() {
            // SAFETY: the caller does not close the file during the call.
            true => Other::Kernel(unsafe { file(self.fd) }?),
            // SAFETY: the caller vouches for it.
            false => Other::Instance(unsafe { borrowed(self.instance) }?, self.fd),
        };
        Ok(Transfer {
            other,
            offset: u64::try_from(self.offset).map_err(|_| Errno::INVAL)?,
            count: self.count,
            // SAFETY: the caller vouches for it.
            header: unsafe { bytes(self.header, self.header_len) }?,
            // SAFETY: the caller vouches for it.
            trailer: unsafe { bytes(self.trailer, self.trailer_len) }?,
            // SAFETY: the caller vouches for it.
            rest: unsafe { Posted::new(self.rest, self.rest_len) }?,
        })
    }
}

/// The current time, on C's clock and on Rust's.
struct Now {
    since_boot: Duration,
    moment: Instant,
}

impl Now {
    fn of(queue: &Queue) -> Outcome<Self> {
        // In this order a converted time is never too early.
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
        let since_boot = duration(&timespec { tv_sec, tv_nsec })?;
        Ok(Self { since_boot, moment: queue.now()? })
    }

    /// Converts a time of `CLOCK_MONOTONIC`. `None` if it is too far in the future.
    fn moment(&self, at: &timespec) -> Outcome<Option<Instant>> {
        let at = duration(at)?;
        Ok(match at.checked_sub(self.since_boot) {
            Some(ahead) => self.moment.checked_add(ahead),
            None => Some(self.moment.checked_sub(self.since_boot - at).unwrap_or(self.moment)),
        })
    }
}

/// The deadline that C passed, if any.
///
/// # Safety
/// `deadline` is null or valid.
unsafe fn read_deadline(queue: &Queue, deadline: *const timespec) -> Outcome<Option<Instant>> {
    // SAFETY: the caller vouches for it.
    match unsafe { deadline.as_ref() } {
        Some(deadline) => Now::of(queue)?.moment(deadline),
        None => Ok(None),
    }
}

/// The instance behind C's pointer, without ownership. `EPERM` in the child of a fork, `EDEADLK` in
/// a handler that interrupted a call.
///
/// # Safety
/// `instance` was made by this library and not freed.
unsafe fn borrowed(instance: *const Instance) -> Outcome<ManuallyDrop<Arc<Instance>>> {
    // SAFETY: C got the pointer from `Arc::into_raw`, and `ManuallyDrop` keeps the count.
    let instance = ManuallyDrop::new(unsafe { Arc::from_raw(instance) });
    instance.check_caller().map(|()| instance)
}

impl TowpathChange {
    /// The requested change.
    ///
    /// # Safety
    /// Instance, path and descriptor are valid during the call.
    unsafe fn read(&self, now: &Now) -> Outcome<Asked> {
        if self.reserved != 0 {
            return Err(Errno::INVAL);
        }
        match (self.command, self.source) {
            (ADD, _) => {
                // SAFETY: the caller vouches for it.
                let given = unsafe { self.given(now) }?;
                let how = if self.source == SOURCE_FD { self.events } else { 0 };
                Ok(Asked::Add(given.source(interest(how)?)?, self.data))
            }
            (MODIFY, SOURCE_FD) => {
                let (interest, trigger) = interest(self.events)?;
                Ok(Asked::Modify(self.id, interest, trigger))
            }
            (MODIFY, SOURCE_TIMER) => match self.timer(now)? {
                (first, None) => Ok(Asked::Set(self.id, first)),
                _ => Err(Errno::INVAL),
            },
            (REMOVE, _) => Ok(Asked::Remove(self.id)),
            _ => Err(Errno::INVAL),
        }
    }

    /// The source to add.
    ///
    /// # Safety
    /// Instance, path and descriptor are valid during the call.
    unsafe fn given(&self, now: &Now) -> Outcome<Given<'_>> {
        if self.events != 0 && !matches!(self.source, SOURCE_FD | SOURCE_TIMER) {
            return Err(Errno::INVAL);
        }
        Ok(match self.source {
            SOURCE_FD if self.instance.is_null() => {
                // SAFETY: the caller does not close the file during the call.
                Given::File(unsafe { file(self.ident) }?)
            }
            SOURCE_FD => {
                // SAFETY: the caller vouches for it.
                Given::Socket(unsafe { borrowed(self.instance) }?, self.ident)
            }
            SOURCE_TIMER => {
                let (first, period) = self.timer(now)?;
                Given::Timer(first, period)
            }
            SOURCE_USER => Given::User,
            SOURCE_SIGNAL => Given::Signal(self.ident),
            SOURCE_CHILD => Given::Child(self.ident),
            SOURCE_FILE => {
                // SAFETY: the caller vouches for it.
                Given::Path(unsafe { path(self.path) }?)
            }
            _ => return Err(Errno::INVAL),
        })
    }

    /// The first expiry, and the period if there is one.
    fn timer(&self, now: &Now) -> Outcome<(Instant, Option<Duration>)> {
        let itimerspec { it_interval, it_value } = &self.timer;
        let period = duration(it_interval)?;
        let first = match self.events {
            ABSTIME => now.moment(it_value)?,
            0 => now.moment.checked_add(duration(it_value)?),
            _ => return Err(Errno::INVAL),
        };
        Ok((first.ok_or(Errno::INVAL)?, Some(period).filter(|period| !period.is_zero())))
    }
}

/// Makes an event queue with a back end, or with the best one available if `back_end` is 0. Returns
/// null, with `errno` set, on errors.
#[unsafe(no_mangle)]
pub extern "C" fn towpath_queue_new(back_end: c_uint) -> *const Queue {
    let choice = match back_end {
        0 => Ok(Choice::Best),
        QUEUE_EPOLL => Ok(Choice::Epoll),
        QUEUE_IO_URING => Ok(Choice::IoUring),
        _ => Err(Errno::INVAL),
    };
    match choice.and_then(Queue::new) {
        Ok(queue) => Box::into_raw(Box::new(queue)),
        Err(errno) => {
            set_errno(errno);
            std::ptr::null()
        }
    }
}

/// Ends a queue. `towpath.h` has the details.
///
/// # Safety
/// The queue is null, or was made and not closed, and no thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_queue_close(queue: *const Queue) -> c_int {
    if queue.is_null() {
        return 0;
    }
    // SAFETY: the caller vouches for it.
    if let Err(errno) = unsafe { &*queue }.end_operations() {
        return give_done(Err(errno));
    }
    // SAFETY: the caller vouches for it, and `towpath_queue_new` made the pointer with `into_raw`.
    drop(unsafe { Box::from_raw(queue.cast_mut()) });
    0
}

macro_rules! on_queue {
    ($($(#[$doc:meta])* fn $name:ident($of:ident $(, $argument:ident: $kind:ty)*) -> c_int
        $body:block)+) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The queue is null, or was made and not closed. Other pointers are null, or valid for
        /// what `towpath.h` says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(queue: *const Queue $(, $argument: $kind)*) -> c_int {
            // SAFETY: the caller vouches for it; queues are shared, never written through this.
            let Some($of) = (unsafe { queue.as_ref() }) else {
                return give_int::<c_int>(Err(Errno::FAULT));
            };
            $body
        }
    )+ };
}

on_queue! {
    /// Adds, modifies and removes registrations. `towpath.h` has the details.
    fn towpath_queue_change_sized(
        of,
        changes: *mut TowpathChange,
        count: c_int,
        size: size_t
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        let changes = unsafe { Elements::new(changes, count, size) };
        give_int(changes.and_then(|mut changes| {
            let now = Now::of(of)?;
            let asked = (0..changes.len()).map(|at| {
                let change = changes.read(at)?;
                // SAFETY: the caller vouches for all that the change names.
                unsafe { change.read(&now) }
            });
            let results = of.change(asked.collect())?;
            let made = results.iter().filter(|result| result.is_ok()).count();
            results.into_iter().enumerate().for_each(|(at, result)| changes.answer(at, result));
            Ok(made)
        }))
    }

    /// Starts operations. `towpath.h` has the details.
    fn towpath_queue_submit_sized(
        of,
        operations: *mut TowpathOperation,
        count: c_int,
        size: size_t
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        let operations = unsafe { Elements::new(operations, count, size) };
        give_int(operations.and_then(|mut operations| {
            // If the queue cannot be used, no operation is looked at.
            of.now()?;
            let mut begun = 0;
            for at in 0..operations.len() {
                let submitted = operations.read(at).and_then(|operation| {
                    // SAFETY: the caller vouches for all that the operation names.
                    unsafe { operation.submit(of) }
                });
                begun += usize::from(submitted.is_ok());
                operations.answer(at, submitted);
            }
            Ok(begun)
        }))
    }

    /// Cancels an operation. `towpath.h` has the details.
    fn towpath_queue_cancel(of, id: u64) -> c_int {
        give_done(of.cancel(id))
    }

    /// Lends memory as a group of buffers. `towpath.h` has the details.
    fn towpath_queue_add_group(of, memory: *mut c_void, size: size_t, count: c_int) -> c_int {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL);
        give_int(count.and_then(|count| {
            let len = size.checked_mul(count).ok_or(Errno::INVAL)?;
            // SAFETY: the caller vouches for it.
            of.add_group(unsafe { Posted::new(memory, len) }?, size, count)
        }))
    }

    /// Returns a buffer to its group.
    fn towpath_queue_give(of, group: c_int, buffer: c_int) -> c_int {
        give_done(of.give(group, buffer))
    }

    /// Removes a group, whose memory belongs to the program again.
    fn towpath_queue_remove_group(of, group: c_int) -> c_int {
        give_done(of.remove_group(group))
    }

    /// Waits for events. `towpath.h` has the details.
    fn towpath_queue_wait_sized(
        of,
        events: *mut TowpathEvent,
        min: c_int,
        max: c_int,
        deadline: *const timespec,
        size: size_t
    ) -> c_int {
        // SAFETY: the caller vouches for `max` events.
        let events = unsafe { Elements::new(events, max, size) };
        give_int(events.and_then(|mut events| {
            let min = usize::try_from(min).map_err(|_| Errno::INVAL)?;
            // SAFETY: the caller vouches for it.
            let deadline = unsafe { read_deadline(of, deadline) }?;
            let mut places = 0..events.len();
            of.wait((min, events.len()), deadline, |reported| {
                events.write(places.next().expect("no more than there is room for"), &reported);
            })
        }))
    }

    /// Triggers a user event. Any thread may call.
    fn towpath_queue_notify(of, id: u64) -> c_int {
        give_done(of.notify(id))
    }

    /// Makes a descriptor that is readable while there are events.
    fn towpath_queue_fd(of) -> c_int {
        give_int(of.descriptor().map(IntoRawFd::into_raw_fd))
    }

    /// Returns which back end the queue has.
    fn towpath_queue_back_end(of) -> c_int {
        give_int(of.is_io_uring().map(|is| if is { QUEUE_IO_URING } else { QUEUE_EPOLL }))
    }
}
