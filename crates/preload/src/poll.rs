//! `poll` and `select` on sockets of the stack and files of the kernel together.
//!
//! The call waits in the kernel, on its files and on an eventfd of the calling thread. The stack
//! signals the eventfd at the next event of one of the sockets. So signals interrupt the wait as
//! they do without this library.
//!
//! Limits: each call looks at all its entries twice, as the kernel does.

use crate::deadline::Deadline;
use crate::next::{self, Outcome};
use crate::stack;
use crate::table::{self, Entry};
use libc::{c_int, pollfd, sigset_t};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::task::{Wake, Waker};
use towpath::layers::packet::sync::{AtomicBool, Ordering};
use towpath_capi::{Errno, Instance, Polled};

/// An eventfd that a waker signals.
struct Alarm {
    /// Dropped by hand: a forked child may have closed it.
    eventfd: ManuallyDrop<OwnedFd>,
    is_on: AtomicBool,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Relaxed: the lock of the stack orders the accesses. Wakers are called under it, and the
        // waiting thread takes it to remove its waker before it looks.
        if !self.is_on.swap(true, Ordering::Relaxed) {
            // Cannot fail: the counter is 0.
            let _ = rustix::io::write(&*self.eventfd, &1_u64.to_ne_bytes());
        }
    }
}

impl Alarm {
    fn new() -> Outcome<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let eventfd = rustix::io::fcntl_dupfd_cloexec(eventfd, stack::own_files_from())?;
        stack::hide(eventfd.as_raw_fd());
        let eventfd = ManuallyDrop::new(eventfd);
        Ok(Self { eventfd, is_on: AtomicBool::new(false) })
    }

    /// Makes it ready for the next wait. No waker is registered.
    fn reset(&self) {
        // Relaxed: see `wake_by_ref`.
        if self.is_on.swap(false, Ordering::Relaxed) {
            // Cannot fail: the counter is 1.
            let _ = rustix::io::read(&*self.eventfd, &mut [0; 8]);
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let fd = self.eventfd.as_raw_fd();
        if table::entry(fd) == Entry::Own {
            table::set(fd, Entry::Kernel);
            next::close_own(fd);
        }
    }
}

/// What a thread keeps from one call to the next.
struct Room {
    alarm: Arc<Alarm>,
    waker: Waker,
    /// Entries for the kernel: the caller's, without sockets of the stack, and the alarm.
    files: Vec<pollfd>,
    /// Entries for the stack.
    sockets: Vec<Polled>,
}

thread_local! {
    /// Empty while a call uses it: a call in a signal handler makes its own.
    static ROOM: Cell<Option<Room>> = const { Cell::new(None) };
}

impl Room {
    fn take() -> Outcome<Self> {
        if let Some(room) = ROOM.try_with(Cell::take).ok().flatten() {
            return Ok(room);
        }
        let alarm = Arc::new(Alarm::new()?);
        let waker = alarm.clone().into();
        Ok(Self { alarm, waker, files: Vec::new(), sockets: Vec::new() })
    }

    fn wait(
        &mut self,
        of: &Instance,
        deadline: Deadline,
        mask: Option<&sigset_t>,
    ) -> Outcome<usize> {
        let (alarm, files) = (self.files.len() - 1, &mut self.files);
        let has_files = files[..alarm].iter().any(|entry| entry.fd >= 0);
        loop {
            let mut ready = of.watch(&mut self.sockets, &self.waker);
            if ready > 0 && !has_files && mask.is_none() {
                return Ok(ready);
            }
            let left = if ready > 0 { Some(std::time::Duration::ZERO) } else { deadline.left() };
            let polled = next::poll_files(files, left, mask);
            if ready == 0 {
                of.unwatch(&self.sockets, &self.waker);
                self.alarm.reset();
                ready = of.poll(&mut self.sockets, 0)?;
            }
            let count = match polled {
                Ok(count) => count - usize::from(files[alarm].revents != 0),
                Err(errno) if ready == 0 => return Err(errno),
                // The next call reports it.
                Err(_) => {
                    files.iter_mut().for_each(|entry| entry.revents = 0);
                    0
                }
            };
            if ready + count > 0 || deadline.is_over() {
                return Ok(ready + count);
            }
        }
    }
}

/// True if a socket of the stack is among the entries.
pub(crate) fn has_sockets(entries: &[pollfd]) -> bool {
    entries.iter().any(|entry| table::is_socket(entry.fd))
}

/// Waits until an entry is ready, and returns how many are.
pub(crate) fn poll(
    entries: &mut [pollfd],
    deadline: Deadline,
    mask: Option<&sigset_t>,
) -> Outcome<usize> {
    let of = stack::attached()?;
    let mut room = Room::take()?;
    room.files.clear();
    room.sockets.clear();
    for entry in entries.iter() {
        let is_socket = table::is_socket(entry.fd);
        if is_socket {
            room.sockets.push(Polled { fd: entry.fd, asked: entry.events, ready: 0 });
        }
        // The kernel ignores negative numbers.
        let fd = if is_socket { IS_SOCKET } else { entry.fd };
        room.files.push(pollfd { fd, ..*entry });
    }
    let alarm = room.alarm.eventfd.as_raw_fd();
    room.files.push(pollfd { fd: alarm, events: libc::POLLIN, revents: 0 });
    let outcome = room.wait(of, deadline, mask);
    if outcome.is_ok() {
        let mut sockets = room.sockets.iter();
        for (entry, file) in entries.iter_mut().zip(&room.files) {
            entry.revents = match file.fd {
                IS_SOCKET => sockets.next().map_or(0, |socket| socket.ready),
                _ => file.revents,
            };
        }
    }
    let _ = ROOM.try_with(|kept| kept.set(Some(room)));
    outcome
}

/// The number of a socket of the stack in entries for the kernel.
const IS_SOCKET: c_int = c_int::MIN;

/// A bit for each descriptor, as in `fd_set`.
pub(crate) type Words = [libc::c_ulong];

/// The sets of `select`: for reading, writing and urgent data.
pub(crate) struct Sets<'a> {
    pub(crate) sets: [Option<&'a mut Words>; 3],
    /// Numbers from here on are not in the sets.
    pub(crate) end: c_int,
}

/// The events that each set asks for, and those that put a descriptor into the result.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const REPORTED: [i16; 3] = [
    libc::POLLIN | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLHUP | libc::POLLERR,
    libc::POLLPRI,
];

/// Bits of a word.
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

/// Words of a set for descriptors below `end`.
pub(crate) fn words(end: c_int) -> usize {
    usize::try_from(end).unwrap_or(0).div_ceil(WORD_BITS)
}

impl Sets<'_> {
    fn contains(&self, set: usize, fd: c_int) -> bool {
        let (word, bit) = (fd as usize / WORD_BITS, fd as usize % WORD_BITS);
        self.sets[set].as_ref().is_some_and(|words| words[word] >> bit & 1 != 0)
    }

    /// The events that the sets ask for on a descriptor.
    fn asked(&self, fd: c_int) -> i16 {
        (0..3).filter(|set| self.contains(*set, fd)).fold(0, |asked, set| asked | ASKED[set])
    }

    /// True if a socket of the stack is in a set.
    pub(crate) fn has_sockets(&self) -> bool {
        let mut numbers = 0..self.end.min(table::end());
        numbers.any(|fd| table::is_socket(fd) && self.asked(fd) != 0)
    }

    /// Waits until a descriptor is ready. The sets then contain those that are. Returns how many
    /// bits are set.
    pub(crate) fn wait(&mut self, deadline: Deadline, mask: Option<&sigset_t>) -> Outcome<usize> {
        let entry = |fd| pollfd { fd, events: self.asked(fd), revents: 0 };
        let mut entries: Vec<pollfd> =
            (0..self.end).map(entry).filter(|entry| entry.events != 0).collect();
        poll(&mut entries, deadline, mask)?;
        if entries.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
            return Err(Errno::BADF);
        }
        let mut count = 0;
        for (set, words) in self.sets.iter_mut().enumerate() {
            let Some(words) = words else { continue };
            let asked = |entry: &&pollfd| entry.events & ASKED[set] != 0;
            let mut result = vec![0; words.len()];
            for pollfd { fd, revents, .. } in entries.iter().filter(asked) {
                if revents & REPORTED[set] != 0 {
                    result[*fd as usize / WORD_BITS] |= 1 << (*fd as usize % WORD_BITS);
                    count += 1;
                }
            }
            words.copy_from_slice(&result);
        }
        Ok(count)
    }
}
