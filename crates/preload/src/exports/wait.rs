//! Functions that wait for several descriptors. Contains unsafe code.
#![allow(unsafe_code)]

use crate::deadline::Deadline;
use crate::next::{self, Outcome, give};
use crate::poll::{Sets, Words, has_sockets, poll as poll_both, words};
use crate::table::{self, Entry};
use crate::{epoll, stack};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use std::time::Duration;
use towpath_capi::{EpollEvent, Errno};

/// Most events of one wait, as in Linux.
const EVENTS_MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();

/// A timeout in milliseconds; `None` if negative.
fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// A timeout in seconds and a fraction, of which a second has `parts`. `EINVAL` if invalid.
fn duration(seconds: i64, part: i64, parts: i64) -> Outcome<Duration> {
    if seconds < 0 || !(0..parts).contains(&part) {
        return Err(Errno::INVAL);
    }
    Ok(Duration::new(seconds as u64, (part * (1_000_000_000 / parts)) as u32))
}

fn from_timespec(time: &timespec) -> Outcome<Duration> {
    duration(time.tv_sec, time.tv_nsec, 1_000_000_000)
}

/// As in Linux, the fraction may be more than a second.
fn from_timeval(time: &timeval) -> Outcome<Duration> {
    let (more, part) = (time.tv_usec / 1_000_000, time.tv_usec % 1_000_000);
    duration(time.tv_sec.saturating_add(more), part, 1_000_000)
}

/// The entries of `poll`. `None` if the kernel has to refuse them, or if there are none.
///
/// # Safety
/// `entries` is null or names `count` entries that no other code uses meanwhile.
unsafe fn entries_of<'a>(entries: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let count = usize::try_from(count).ok().filter(|count| (1..=ENTRIES_MAX).contains(count))?;
    // SAFETY: the caller vouches for it; null was refused.
    (!entries.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(entries, count) })
}

/// Most entries of one `poll`: as many as there are numbers.
const ENTRIES_MAX: usize = table::NUMBERS_MAX;

exported! {
    /// `poll(2)`.
    fn poll(entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        // SAFETY: the caller vouches for it.
        match unsafe { entries_of(entries, count) } {
            Some(entries) if has_sockets(entries) => {
                give(poll_both(entries, Deadline::after(milliseconds(timeout)), None))
            }
            // SAFETY: the caller vouches for it.
            _ => unsafe { next::poll(entries, count, timeout) },
        }
    }

    /// `ppoll(2)`.
    fn ppoll(
        entries: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        let all = unsafe { entries_of(entries, count) };
        let Some(all) = all.filter(|all| has_sockets(all)) else {
            // SAFETY: the caller vouches for it.
            return unsafe { next::ppoll(entries, count, timeout, mask) };
        };
        // SAFETY: the caller vouches for it.
        let limit = unsafe { timeout.as_ref() }.map(from_timespec).transpose();
        // SAFETY: the caller vouches for it.
        let mask = unsafe { mask.as_ref() };
        give(limit.and_then(|limit| poll_both(all, Deadline::after(limit), mask)))
    }

    /// `poll` as programs call it that were compiled with `_FORTIFY_SOURCE`.
    fn __poll_chk(entries: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        super::check_room(count as usize, room / size_of::<pollfd>());
        // SAFETY: the caller vouches for it.
        unsafe { poll(entries, count, timeout) }
    }

    /// `ppoll` as programs call it that were compiled with `_FORTIFY_SOURCE`.
    fn __ppoll_chk(
        entries: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t
    ) -> c_int {
        super::check_room(count as usize, room / size_of::<pollfd>());
        // SAFETY: the caller vouches for it.
        unsafe { ppoll(entries, count, timeout, mask) }
    }

    /// `select(2)`. As in Linux, the time that is left is written to `timeout`.
    fn select(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        others: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        let Some(mut sets) = (unsafe { sets_of(count, [reads, writes, others]) }) else {
            // SAFETY: the caller vouches for it.
            return unsafe { next::select(count, reads, writes, others, timeout) };
        };
        // SAFETY: the caller vouches for it.
        let timeout = unsafe { timeout.as_mut() };
        let limit = timeout.as_ref().map(|time| from_timeval(time));
        let outcome = limit.transpose().and_then(|limit| {
            let deadline = Deadline::after(limit);
            let outcome = sets.wait(deadline, None);
            if let (Some(timeout), Some(left)) = (timeout, deadline.left()) {
                timeout.tv_sec = left.as_secs() as i64;
                timeout.tv_usec = left.subsec_micros().into();
            }
            outcome
        });
        give(outcome)
    }

    /// `pselect(2)`.
    fn pselect(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        others: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        let Some(mut sets) = (unsafe { sets_of(count, [reads, writes, others]) }) else {
            // SAFETY: the caller vouches for it.
            return unsafe { next::pselect(count, reads, writes, others, timeout, mask) };
        };
        // SAFETY: the caller vouches for it.
        let limit = unsafe { timeout.as_ref() }.map(from_timespec).transpose();
        // SAFETY: the caller vouches for it.
        let mask = unsafe { mask.as_ref() };
        give(limit.and_then(|limit| sets.wait(Deadline::after(limit), mask)))
    }

    /// `epoll_ctl(2)`.
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        match (table::entry(fd), table::entry(set)) {
            (Entry::Own, _) if stack::caller() == stack::Caller::Owner => give(Err(Errno::BADF)),
            // The kernel answers for the number that the socket has there: it is in no set.
            (Entry::Socket, Entry::Kernel) if operation != libc::EPOLL_CTL_ADD => {
                // SAFETY: the caller vouches for it.
                unsafe { next::epoll_ctl(set, operation, fd, event) }
            }
            (Entry::Socket, Entry::Kernel | Entry::Set(_)) => {
                // SAFETY: the caller vouches for it.
                let event = (!event.is_null()).then(|| unsafe { event.read() });
                let event = event.map(|event| EpollEvent { events: event.events, data: event.u64 });
                give(epoll::control(set, operation, fd, event).map(|()| 0))
            }
            // SAFETY: the caller vouches for it.
            _ => unsafe { next::epoll_ctl(set, operation, fd, event) },
        }
    }

    /// `epoll_wait(2)`.
    fn epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
        // SAFETY: the caller vouches for it.
        unsafe { epoll_pwait(set, events, max, timeout, std::ptr::null()) }
    }

    /// `epoll_pwait(2)`.
    fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const sigset_t
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        match unsafe { room_of(events, max) } {
            Some(room) => {
                // SAFETY: the caller vouches for it.
                let mask = unsafe { mask.as_ref() };
                give(epoll::wait(set, room, milliseconds(timeout), mask))
            }
            // SAFETY: the caller vouches for it.
            None => unsafe { next::epoll_pwait(set, events, max, timeout, mask) },
        }
    }

    /// `epoll_pwait2(2)`. The timeout is rounded up to milliseconds.
    fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        let limit = unsafe { timeout.as_ref() }.map(from_timespec).transpose();
        // SAFETY: the caller vouches for it.
        let room = unsafe { room_of(events, max) };
        // SAFETY: the caller vouches for it.
        let mask = unsafe { mask.as_ref() };
        match (limit, room) {
            (Err(errno), _) => give(Err(errno)),
            (Ok(limit), Some(room)) => give(epoll::wait(set, room, limit, mask)),
            (Ok(_), None) if events.is_null() => give(Err(Errno::FAULT)),
            (Ok(_), None) => give(Err(Errno::INVAL)),
        }
    }
}

/// Room for events. `None` if the kernel has to refuse it.
///
/// # Safety
/// `events` is null or has room for `max` events, which no other code uses meanwhile.
unsafe fn room_of<'a>(events: *mut epoll_event, max: c_int) -> Option<&'a mut [epoll_event]> {
    let max = usize::try_from(max).ok().filter(|max| (1..=EVENTS_MAX).contains(max))?;
    // SAFETY: the caller vouches for it; null was refused.
    (!events.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(events, max) })
}

/// The sets of `select`, if a socket of the stack is among them.
///
/// # Safety
/// Each set is null or has a bit for each number below `count`, in whole words, and no other code
/// uses it meanwhile.
unsafe fn sets_of<'a>(count: c_int, sets: [*mut fd_set; 3]) -> Option<Sets<'a>> {
    let end = count.min(table::NUMBERS_MAX as c_int);
    let set = |set: *mut fd_set| -> Option<&'a mut Words> {
        // SAFETY: the caller vouches for it; null was refused.
        (!set.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(set.cast(), words(end)) })
    };
    let sets = Sets { sets: sets.map(set), end };
    sets.has_sockets().then_some(sets)
}
