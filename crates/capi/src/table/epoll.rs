//! Sets of descriptors as in epoll: the events that each waits for, and those that may be ready.

use crate::errno::{Errno, Outcome};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::{BTreeMap, VecDeque};

/// Events that are always reported: `POLLERR | POLLHUP`.
pub(crate) const ALWAYS: u32 = 0x018;
/// Flags that say how to report, not what.
pub(crate) const HOW: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;
/// `EPOLLEXCLUSIVE`. It has no effect here: of several waits on one set, one is woken in any case.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Flags that are allowed together with it.
const WITH_EXCLUSIVE: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP)
    as u32
    | (libc::EPOLLWAKEUP | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;

/// The events that a program waits for on one descriptor, or that are reported to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// `EPOLLIN` and others.
    pub events: u32,
    /// The program's data.
    pub data: u64,
}

/// A set of descriptors to wait for.
///
/// As in Linux, descriptors with events wait in a list. A wait takes each from the list, checks the
/// current events, and puts the descriptor back unless it is edge-triggered or one-shot.
#[derive(Default)]
pub(crate) struct Epoll {
    interests: BTreeMap<i32, Interest>,
    /// Descriptors that may have events to report, in the order of the events.
    pub(crate) ready: VecDeque<i32>,
    alarm: Option<Alarm>,
}

/// A file of the kernel that is readable while descriptors wait in the list.
struct Alarm {
    eventfd: OwnedFd,
    is_on: bool,
}

struct Interest {
    event: EpollEvent,
    queued: bool,
}

impl Epoll {
    /// Notes an event of a descriptor.
    pub(crate) fn note(&mut self, fd: i32, what: u32) {
        if let Some(interest) = self.interests.get_mut(&fd)
            && !interest.queued
            && interest.event.events & !HOW & what != 0
        {
            interest.queued = true;
            self.ready.push_back(fd);
            self.update_alarm();
        }
    }

    /// Removes a descriptor that is gone.
    pub(crate) fn forget(&mut self, fd: i32) {
        self.interests.remove(&fd);
        self.ready.retain(|&other| other != fd);
        self.update_alarm();
    }

    /// The number of a file that is readable while the set may have events, for waiting together
    /// with other files of the kernel. It is made at the first call, with a number of at least
    /// `least`, and closed with the set.
    pub(crate) fn alarm(&mut self, least: i32) -> Outcome<i32> {
        if let Some(alarm) = &self.alarm {
            return Ok(alarm.eventfd.as_raw_fd());
        }
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let eventfd = rustix::io::fcntl_dupfd_cloexec(eventfd, least)?;
        let number = eventfd.as_raw_fd();
        self.alarm = Some(Alarm { eventfd, is_on: false });
        self.update_alarm();
        Ok(number)
    }

    /// Switches the alarm on or off after a change of the list.
    pub(crate) fn update_alarm(&mut self) {
        let Some(alarm) = &mut self.alarm else { return };
        let is_on = !self.ready.is_empty();
        if std::mem::replace(&mut alarm.is_on, is_on) == is_on {
            return;
        }
        // Neither can fail: the counter is 0 for the write and 1 for the read.
        let _ = match is_on {
            true => rustix::io::write(&alarm.eventfd, &1_u64.to_ne_bytes()),
            false => rustix::io::read(&alarm.eventfd, &mut [0; 8]),
        };
    }

    /// Adds a descriptor, changes its events, or removes it.
    pub(crate) fn control(
        &mut self,
        operation: i32,
        fd: i32,
        event: Option<EpollEvent>,
    ) -> Outcome<()> {
        let known = self.interests.contains_key(&fd);
        // An exclusive interest can be added, but not modified or made from another one.
        let asked = event.map_or(0, |event| event.events);
        let is_change = operation == libc::EPOLL_CTL_MOD;
        if operation != libc::EPOLL_CTL_DEL
            && asked & EXCLUSIVE != 0
            && (is_change || asked & !WITH_EXCLUSIVE != 0)
        {
            return Err(Errno::INVAL);
        }
        let is_exclusive = |interest: &Interest| interest.event.events & EXCLUSIVE != 0;
        if is_change && self.interests.get(&fd).is_some_and(is_exclusive) {
            return Err(Errno::INVAL);
        }
        match operation {
            libc::EPOLL_CTL_DEL if known => {
                self.forget(fd);
                Ok(())
            }
            libc::EPOLL_CTL_ADD if known => Err(Errno(libc::EEXIST)),
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !known => Err(Errno(libc::ENOENT)),
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                let event = event.ok_or(Errno::FAULT)?;
                let event = EpollEvent { events: event.events | ALWAYS, ..event };
                let queued = self.interests.get(&fd).is_some_and(|interest| interest.queued);
                self.interests.insert(fd, Interest { event, queued });
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// Descriptors with noted events, and the events that each waits for.
    pub(crate) fn noted(&self) -> impl Iterator<Item = (i32, u32)> {
        let asked = |fd: &i32| Some((*fd, self.interests.get(fd)?.event.events));
        self.ready.iter().filter_map(asked)
    }

    /// Takes the next descriptor with noted events, and the events that it waits for.
    pub(crate) fn next(&mut self) -> Option<(i32, EpollEvent)> {
        let fd = self.ready.pop_front()?;
        let interest = self.interests.get_mut(&fd)?;
        interest.queued = false;
        Some((fd, interest.event))
    }

    /// Records that a descriptor was reported: a level-triggered one is checked again, a one-shot
    /// one is disabled.
    pub(crate) fn reported(&mut self, fd: i32) {
        let Some(interest) = self.interests.get_mut(&fd) else { return };
        let flag = |flag: i32| interest.event.events & flag as u32 != 0;
        if flag(libc::EPOLLONESHOT) {
            interest.event.events &= HOW;
        } else if !flag(libc::EPOLLET) {
            interest.queued = true;
            self.ready.push_back(fd);
        }
    }
}
