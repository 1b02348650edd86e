//! Sets of descriptors like `epoll`'s: what is asked of each, and what there may be to tell.

use crate::errno::{Errno, Outcome};
use std::collections::{BTreeMap, VecDeque};

/// Told whether it was asked or not: `POLLERR | POLLHUP`.
pub(crate) const ALWAYS: u32 = 0x018;
/// Flags that say how to tell, not what.
pub(crate) const HOW: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;
/// Who shares a wake-up with others: of several waits for one set, one is woken in any case here.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// What may be asked for with it.
const WITH_EXCLUSIVE: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP)
    as u32
    | (libc::EPOLLWAKEUP | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;

/// What a program waits for at one descriptor, or is told about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// `EPOLLIN` and others.
    pub events: u32,
    /// The program's own.
    pub data: u64,
}

/// A set of descriptors to wait for.
///
/// As in Linux, what was noted waits in a list; a wait takes each from it, looks at what holds now,
/// and puts it back unless it is told by edges or once.
#[derive(Default)]
pub(crate) struct Epoll {
    interests: BTreeMap<i32, Interest>,
    /// Descriptors about which there may be something to tell, in the order of the news.
    pub(crate) ready: VecDeque<i32>,
}

struct Interest {
    event: EpollEvent,
    queued: bool,
}

impl Epoll {
    /// There is news about a descriptor.
    pub(crate) fn note(&mut self, fd: i32, what: u32) {
        if let Some(interest) = self.interests.get_mut(&fd)
            && !interest.queued
            && interest.event.events & !HOW & what != 0
        {
            interest.queued = true;
            self.ready.push_back(fd);
        }
    }

    /// The descriptor is gone.
    pub(crate) fn forget(&mut self, fd: i32) {
        self.interests.remove(&fd);
        self.ready.retain(|&other| other != fd);
    }

    /// Adds a descriptor, changes what is asked of it, or takes it out.
    pub(crate) fn control(
        &mut self,
        operation: i32,
        fd: i32,
        event: Option<EpollEvent>,
    ) -> Outcome<()> {
        let known = self.interests.contains_key(&fd);
        // Such an interest is added, and neither changed nor made of another.
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

    /// The descriptors that were noted, and what is asked of each.
    pub(crate) fn noted(&self) -> impl Iterator<Item = (i32, u32)> {
        let asked = |fd: &i32| Some((*fd, self.interests.get(fd)?.event.events));
        self.ready.iter().filter_map(asked)
    }

    /// Takes the next descriptor that was noted, and what is asked of it.
    pub(crate) fn next(&mut self) -> Option<(i32, EpollEvent)> {
        let fd = self.ready.pop_front()?;
        let interest = self.interests.get_mut(&fd)?;
        interest.queued = false;
        Some((fd, interest.event))
    }

    /// A descriptor was told: once only, or again as long as it holds.
    pub(crate) fn told(&mut self, fd: i32) {
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
