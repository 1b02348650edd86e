//! The reactor: waits for ready files and deadlines.
//!
//! An epoll set with the caller's 64-bit tokens. One thread waits. The array of events is fixed, so
//! waiting never allocates. Timeouts have nanosecond resolution where the kernel supports it
//! (`epoll_pwait2`, Linux 5.11) and are otherwise rounded up to milliseconds. They never end early.
//!
//! Limit: [`EVENTS_MAX`] events per wait; the next wait returns the others.

use crate::sys;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::time::Duration;

/// Most events of one wait.
pub const EVENTS_MAX: usize = 256;

/// Conditions of a file to report. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Interest {
    /// There are bytes to read, or the peer has closed its side.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// A byte of the stream is marked as urgent and has not been read.
    pub urgent: bool,
}

impl Interest {
    /// Errors and hang-ups only.
    pub const NONE: Self = Self { readable: false, writable: false, urgent: false };
    /// Reading only.
    pub const READ: Self = Self { readable: true, ..Self::NONE };
    /// Writing only.
    pub const WRITE: Self = Self { writable: true, ..Self::NONE };
    /// Reading and writing.
    pub const BOTH: Self = Self { readable: true, writable: true, ..Self::NONE };

    /// Adds urgent data.
    pub const fn and_urgent(self) -> Self {
        Self { urgent: true, ..self }
    }

    fn flags(self, trigger: Trigger) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN | EventFlags::RDHUP, self.readable);
        flags.set(EventFlags::OUT, self.writable);
        flags.set(EventFlags::PRI, self.urgent);
        flags.set(EventFlags::ET, trigger == Trigger::Edge);
        flags.set(EventFlags::ONESHOT, trigger == Trigger::OneShot);
        flags
    }
}

/// When to report a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Trigger {
    /// At every wait while the condition holds.
    #[default]
    Level,
    /// When there is new input or room. The caller then reads or writes until the call would block.
    Edge,
    /// Once, until the registration is modified.
    OneShot,
}

impl Trigger {
    fn edge(edge: bool) -> Self {
        if edge { Self::Edge } else { Self::Level }
    }
}

/// State of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Readiness {
    /// There is something to read or to accept, or the peer has closed its side.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The peer has shut down its side.
    pub peer_closed: bool,
    /// Both sides are closed.
    pub hangup: bool,
    /// An error is pending, or the error queue has an entry.
    pub error: bool,
}

impl Readiness {
    /// True if no condition holds.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Decodes `revents` of poll(2) or `events` of epoll(7).
    pub(crate) fn of(events: u32) -> Self {
        let flags = EventFlags::from_bits_retain(events);
        Self {
            readable: flags.contains(EventFlags::IN),
            writable: flags.contains(EventFlags::OUT),
            peer_closed: flags.contains(EventFlags::RDHUP),
            hangup: flags.contains(EventFlags::HUP),
            error: flags.contains(EventFlags::ERR),
        }
    }

    /// Conditions that hold in either.
    pub fn or(self, other: Self) -> Self {
        Self {
            readable: self.readable || other.readable,
            writable: self.writable || other.writable,
            peer_closed: self.peer_closed || other.peer_closed,
            hangup: self.hangup || other.hangup,
            error: self.error || other.error,
        }
    }
}

// poll(2) and epoll(7) use the same bits.
const _: () = assert!(
    libc::POLLIN as i32 == libc::EPOLLIN
        && libc::POLLOUT as i32 == libc::EPOLLOUT
        && libc::POLLRDHUP as i32 == libc::EPOLLRDHUP
        && libc::POLLHUP as i32 == libc::EPOLLHUP
        && libc::POLLERR as i32 == libc::EPOLLERR
);

/// An event of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token that the file was added with.
    pub token: u64,
    /// State of the file.
    pub ready: Readiness,
    /// A byte is marked as urgent and has not been read.
    pub urgent: bool,
}

/// The events of one wait.
pub struct Events {
    events: [libc::epoll_event; EVENTS_MAX],
    count: usize,
}

impl Events {
    /// No events.
    pub const fn new() -> Self {
        Self { events: [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX], count: 0 }
    }

    /// Number of events.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if the wait returned no events.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Forgets the events.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Iterates over the events, in the kernel's order.
    pub fn iter(&self) -> impl Iterator<Item = Event> + '_ {
        self.events[..self.count].iter().map(|event| {
            // Copied, because the structure is packed on some architectures.
            let (token, flags) = (event.u64, event.events);
            let urgent = EventFlags::from_bits_retain(flags).contains(EventFlags::PRI);
            Event { token, ready: Readiness::of(flags), urgent }
        })
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}

/// A set of files to wait for.
#[derive(Debug)]
pub struct Reactor {
    epoll: OwnedFd,
    /// False once the kernel has shown that it lacks `epoll_pwait2`.
    exact: bool,
}

impl Reactor {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, exact: true })
    }

    /// Adds a file. With `edge`, only changes are reported: the caller then reads and writes until
    /// the call would block.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest, edge: bool) -> io::Result<()> {
        self.add_as(fd, token, interest, Trigger::edge(edge))
    }

    /// Adds a file that is reported as `trigger` says.
    pub fn add_as(
        &self,
        fd: impl AsFd,
        token: u64,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token), interest.flags(trigger))?)
    }

    /// Changes the conditions of a file that are reported, and its token.
    pub fn modify(
        &self,
        fd: impl AsFd,
        token: u64,
        interest: Interest,
        edge: bool,
    ) -> io::Result<()> {
        self.modify_as(fd, token, interest, Trigger::edge(edge))
    }

    /// Changes the conditions of a file that are reported, its token and its trigger.
    pub fn modify_as(
        &self,
        fd: impl AsFd,
        token: u64,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(token), interest.flags(trigger))?)
    }

    /// Removes a file. Closing the last descriptor of a file removes it too.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits until there are events or `timeout` has passed; `None` waits without a limit, zero
    /// does not wait. A signal ends the wait without events.
    pub fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()> {
        events.count = 0;
        let mut result = Err(Errno::NOSYS);
        if self.exact {
            result = sys::epoll_wait_exact(self.epoll.as_fd(), &mut events.events, timeout);
            // A container's seccomp filter may answer an unknown call with PERM.
            self.exact = !matches!(result, Err(Errno::NOSYS | Errno::PERM));
        }
        if !self.exact {
            let timeout = milliseconds(timeout);
            result = sys::epoll_wait_milliseconds(self.epoll.as_fd(), &mut events.events, timeout);
        }
        match result {
            Ok(count) => events.count = count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }
}

impl AsFd for Reactor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Milliseconds, rounded up; -1 for no limit.
fn milliseconds(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |timeout| {
        i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    })
}

#[cfg(test)]
mod tests;
