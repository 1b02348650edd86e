//! `poll`, and sets of descriptors like `epoll`'s.

use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::table::What;
use std::collections::{BTreeMap, VecDeque};
use towpath::layers::net::time::Duration;

/// One entry of `poll`: a descriptor, what is asked, and the answer.
#[derive(Clone, Copy, Debug)]
pub struct Polled {
    /// The descriptor; a negative one is passed over.
    pub fd: i32,
    /// What is asked.
    pub asked: i16,
    /// The answer.
    pub ready: i16,
}

/// Told whether it was asked or not: `POLLERR | POLLHUP`.
const ALWAYS: u32 = 0x018;

/// A wait of milliseconds as `poll` and `epoll_wait` have it: negative is without end.
pub(crate) fn milliseconds(timeout: i32) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

impl Instance {
    /// Waits until something is ready; returns how many entries are.
    pub fn poll(&self, entries: &mut [Polled], timeout: i32) -> Outcome<usize> {
        let outcome = self.block(milliseconds(timeout), |state| {
            let mut count = 0;
            for entry in entries.iter_mut() {
                entry.ready = state.poll_one(entry.fd, entry.asked);
                count += usize::from(entry.ready != 0);
            }
            if count == 0 { Err(Errno::AGAIN) } else { Ok(count) }
        });
        if outcome == Err(Errno::AGAIN) { Ok(0) } else { outcome }
    }
}

impl State {
    fn poll_one(&self, fd: i32, asked: i16) -> i16 {
        if fd < 0 {
            return 0;
        }
        match self.id(fd) {
            Ok(id) => {
                let ready = self.engine.protocols.readiness(id).bits();
                (ready & (u32::from(asked as u16) | ALWAYS)) as i16
            }
            Err(_) => libc::POLLNVAL,
        }
    }
}

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
    ready: VecDeque<i32>,
}

struct Interest {
    event: EpollEvent,
    queued: bool,
}

/// Flags that say how to tell, not what.
const HOW: u32 = (libc::EPOLLET | libc::EPOLLONESHOT | libc::EPOLLEXCLUSIVE) as u32;
/// Who shares a wake-up with others: of several waits for one set, one is woken in any case here.
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// What may be asked for with it.
const WITH_EXCLUSIVE: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP)
    as u32
    | (libc::EPOLLWAKEUP | libc::EPOLLET | libc::EPOLLEXCLUSIVE) as u32;

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

    fn control(&mut self, operation: i32, fd: i32, event: Option<EpollEvent>) -> Outcome<()> {
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

    /// Takes the next descriptor that was noted, and what is asked of it.
    fn next(&mut self) -> Option<(i32, EpollEvent)> {
        let fd = self.ready.pop_front()?;
        let interest = self.interests.get_mut(&fd)?;
        interest.queued = false;
        Some((fd, interest.event))
    }

    /// A descriptor was told: once only, or again as long as it holds.
    fn told(&mut self, fd: i32) {
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

impl Instance {
    /// A set of descriptors to wait for.
    pub fn epoll_create(&self) -> Outcome<i32> {
        self.lock().files.add(What::Epoll(Epoll::default()))
    }

    /// Adds a descriptor to a set, changes what is asked of it, or takes it out.
    pub fn epoll_control(
        &self,
        set: i32,
        operation: i32,
        fd: i32,
        event: Option<EpollEvent>,
    ) -> Outcome<()> {
        self.call(|state| {
            if !state.files.contains(fd) {
                return Err(Errno::BADF);
            }
            if state.files.epoll_mut(fd).is_ok() {
                return Err(if fd == set { Errno::INVAL } else { Errno(libc::EPERM) });
            }
            state.files.epoll_mut(set)?.control(operation, fd, event)?;
            let ready = state.engine.protocols.readiness(state.id(fd)?).bits();
            state.files.epoll_mut(set)?.note(fd, ready);
            // Another thread may wait for what was added.
            state.notify();
            Ok(())
        })
    }

    /// Waits until something is ready in a set; returns what, `max` at most.
    pub fn epoll_wait(&self, set: i32, max: usize, timeout: i32) -> Outcome<Vec<EpollEvent>> {
        self.lock().files.epoll_mut(set)?;
        let outcome = self.block(milliseconds(timeout), |state| {
            let told = state.epoll_take(set, max)?;
            if told.is_empty() { Err(Errno::AGAIN) } else { Ok(told) }
        });
        if outcome == Err(Errno::AGAIN) { Ok(Vec::new()) } else { outcome }
    }
}

impl State {
    fn epoll_take(&mut self, set: i32, max: usize) -> Outcome<Vec<EpollEvent>> {
        let mut told = Vec::new();
        let queued = self.files.epoll_mut(set)?.ready.len();
        for _ in 0..queued {
            if told.len() == max {
                break;
            }
            let Some((fd, asked)) = self.files.epoll_mut(set)?.next() else { continue };
            let Ok(id) = self.id(fd) else { continue };
            let events = self.engine.protocols.readiness(id).bits() & asked.events & !HOW;
            if events != 0 {
                told.push(EpollEvent { events, data: asked.data });
                self.files.epoll_mut(set)?.told(fd);
            }
        }
        Ok(told)
    }
}
