//! `poll`, and sets of descriptors as in `epoll`.

use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::table::What;
use crate::table::epoll::{ALWAYS, Epoll, EpollEvent, HOW};
use std::task::Waker;
use towpath::layers::net::time::Duration;

/// One entry of `poll`: a descriptor, the requested events, and the result.
#[derive(Clone, Copy, Debug)]
pub struct Polled {
    /// The descriptor. A negative one is ignored.
    pub fd: i32,
    /// The requested events.
    pub asked: i16,
    /// The events that hold.
    pub ready: i16,
}

/// A timeout of `poll` or `epoll_wait` in milliseconds. `None`, for no limit, if negative.
pub(crate) fn milliseconds(timeout: i32) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

impl Instance {
    /// Waits until an entry is ready. Returns how many are.
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

    /// Returns how many entries are ready, without a wait. If none is, `waker` wakes once at the
    /// next event of one of them, until [`Instance::unwatch`].
    pub fn watch(&self, entries: &mut [Polled], waker: &Waker) -> usize {
        self.call(|state| {
            let mut count = 0;
            for entry in entries.iter_mut() {
                entry.ready = state.poll_one(entry.fd, entry.asked);
                count += usize::from(entry.ready != 0);
            }
            if count == 0 {
                for entry in entries.iter() {
                    if let Ok(file) = state.files.socket_mut(entry.fd) {
                        file.watchers.add(waker, u32::from(entry.asked as u16) | ALWAYS);
                    }
                }
            }
            count
        })
    }

    /// Ends what [`Instance::watch`] began.
    pub fn unwatch(&self, entries: &[Polled], waker: &Waker) {
        let mut state = self.lock();
        for entry in entries {
            if let Ok(file) = state.files.socket_mut(entry.fd) {
                file.watchers.remove(waker);
            }
        }
    }
}

impl State {
    fn poll_one(&self, fd: i32, asked: i16) -> i16 {
        if fd < 0 {
            return 0;
        }
        if let Ok(set) = self.files.epoll(fd) {
            let holds = set.noted().any(|(fd, asked)| self.ready(fd, asked) != 0);
            return if holds { asked & (libc::POLLIN | libc::POLLRDNORM) } else { 0 };
        }
        match self.id(fd) {
            Ok(id) => {
                let ready = self.engine.protocols.readiness(id).bits();
                (ready & (u32::from(asked as u16) | ALWAYS)) as i16
            }
            Err(_) => libc::POLLNVAL,
        }
    }

    /// The events of a descriptor that an epoll set asks for and that hold.
    fn ready(&self, fd: i32, asked: u32) -> u32 {
        let Ok(id) = self.id(fd) else { return 0 };
        self.engine.protocols.readiness(id).bits() & asked & !HOW
    }
}

impl Instance {
    /// Makes an epoll set.
    pub fn epoll_create(&self) -> Outcome<i32> {
        self.lock().add_file(What::Epoll(Epoll::default()))
    }

    /// Adds a descriptor to a set, changes its events, or removes it.
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
            // Another thread may wait for the descriptor that was added.
            state.notify();
            Ok(())
        })
    }

    /// The number of a file of the kernel that is readable while a set may have events. A kernel's
    /// own set can contain it. It belongs to the set.
    pub fn epoll_alarm(&self, set: i32) -> Outcome<i32> {
        self.lock().files.alarm(set)
    }

    /// Waits until a descriptor in a set is ready. Returns at most `max` events.
    pub fn epoll_wait(&self, set: i32, max: usize, timeout: i32) -> Outcome<Vec<EpollEvent>> {
        self.lock().files.epoll_mut(set)?;
        let outcome = self.block(milliseconds(timeout), |state| {
            let reported = state.epoll_take(set, max)?;
            if reported.is_empty() { Err(Errno::AGAIN) } else { Ok(reported) }
        });
        if outcome == Err(Errno::AGAIN) { Ok(Vec::new()) } else { outcome }
    }
}

impl State {
    fn epoll_take(&mut self, set: i32, max: usize) -> Outcome<Vec<EpollEvent>> {
        let mut reported = Vec::new();
        let queued = self.files.epoll_mut(set)?.ready.len();
        for _ in 0..queued {
            if reported.len() == max {
                break;
            }
            let Some((fd, asked)) = self.files.epoll_mut(set)?.next() else { continue };
            let events = self.ready(fd, asked.events);
            if events != 0 {
                reported.push(EpollEvent { events, data: asked.data });
                self.files.epoll_mut(set)?.reported(fd);
            }
        }
        self.files.epoll_mut(set)?.update_alarm();
        Ok(reported)
    }
}
