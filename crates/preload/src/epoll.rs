//! Sets of `epoll` with sockets of the stack and files of the kernel together.
//!
//! The program's set is one of the kernel, with the kernel's files. When the first socket of the
//! stack is added, it gets a set of the stack for the sockets in it. The alarm of this set is a
//! file in the kernel's set: it is readable while sockets may have events.
//!
//! The alarm's event has a random value in place of the program's data, by which a wait tells it
//! from the program's events.

use crate::deadline::Deadline;
use crate::next::{self, Outcome};
use crate::stack;
use crate::table::{self, Entry};
use libc::{c_int, epoll_event, sigset_t};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use towpath::layers::packet::sync::{AtomicU32, Ordering};
use towpath_capi::{Counted, EpollEvent, Errno};

/// Descriptors of each set of the stack.
static USERS: Mutex<BTreeMap<i32, usize>> = Mutex::new(BTreeMap::new());

/// Takes the lock of [`USERS`]. Calls of the stack's functions come before, as they refuse a thread
/// that has a lock.
fn users() -> Counted<MutexGuard<'static, BTreeMap<i32, usize>>> {
    Counted::take(|| USERS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The data of alarms.
fn alarm_data() -> u64 {
    static DATA: OnceLock<u64> = OnceLock::new();
    *DATA.get_or_init(|| RandomState::new().hash_one(0))
}

/// Adds a socket of the stack to a set, changes its events, or removes it.
pub(crate) fn control(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<EpollEvent>,
) -> Outcome<()> {
    let inner = match table::entry(set) {
        Entry::Set(inner) => inner,
        _ => add_inner(set)?,
    };
    stack::attached()?.epoll_control(inner, operation, fd, event)
}

/// Makes the set of the stack for a set of the kernel.
fn add_inner(set: c_int) -> Outcome<i32> {
    let of = stack::attached()?;
    let mut users = users();
    // Another thread may have made it.
    if let Entry::Set(inner) = table::entry(set) {
        return Ok(inner);
    }
    let inner = of.epoll_create()?;
    let added = of.epoll_alarm(inner).and_then(|alarm| {
        next::add_file(set, alarm, alarm_data())?;
        Ok(alarm)
    });
    let alarm = added.or_else(|errno| of.close(inner).and(Err(errno)))?;
    stack::hide(inner);
    stack::hide(alarm);
    users.insert(inner, 1);
    if table::set(set, Entry::Set(inner)) {
        return Ok(inner);
    }
    drop(users);
    leave(inner);
    Err(Errno(libc::EMFILE))
}

/// A set has one more descriptor. This thread has no lock.
pub(crate) fn share(inner: i32) {
    *users().entry(inner).or_default() += 1;
}

/// A set has one descriptor less. Closes the set of the stack with the last one. Within another
/// call of this thread, nothing can be closed: the set of the stack stays.
pub(crate) fn leave(inner: i32) {
    let Ok(of) = stack::attached() else { return };
    let mut users = users();
    let Some(count) = users.get_mut(&inner) else { return };
    *count -= 1;
    if *count > 0 {
        return;
    }
    users.remove(&inner);
    if let Ok(alarm) = of.epoll_alarm(inner) {
        table::set(alarm, Entry::Kernel);
    }
    table::set(inner, Entry::Kernel);
    // It exists until here.
    let _ = of.close(inner);
}

/// Waits for events of a set. There is room for at least one.
pub(crate) fn wait(
    set: c_int,
    events: &mut [epoll_event],
    timeout: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Outcome<usize> {
    let deadline = Deadline::after(timeout);
    loop {
        let mut count = 0;
        if let Entry::Set(inner) = table::entry(set) {
            count = take(inner, events)?;
        }
        let room = &mut events[count..];
        if !room.is_empty() {
            let left = if count > 0 { Some(Duration::ZERO) } else { deadline.left() };
            match next::wait_for_files(set, room, left, mask) {
                Ok(found) => count += without_alarm(room, found),
                Err(errno) if count == 0 => return Err(errno),
                // The next call reports it.
                Err(_) => {}
            }
        }
        if count > 0 || deadline.is_over() {
            return Ok(count);
        }
    }
}

/// Takes events of sockets. Leaves room for a file of the kernel; if there is room for only one
/// event, at every second call.
fn take(inner: i32, events: &mut [epoll_event]) -> Outcome<usize> {
    static TURN: AtomicU32 = AtomicU32::new(0);
    let max = match events.len() {
        // Relaxed: it is a count that orders nothing.
        1 => (TURN.fetch_add(1, Ordering::Relaxed) & 1) as usize,
        len => len - 1,
    };
    if max == 0 {
        return Ok(0);
    }
    let taken = stack::attached()?.epoll_wait(inner, max, 0)?;
    for (place, event) in events.iter_mut().zip(&taken) {
        *place = epoll_event { events: event.events, u64: event.data };
    }
    Ok(taken.len())
}

/// Removes the event of an alarm from the first `found` events. Returns how many are left.
fn without_alarm(events: &mut [epoll_event], found: usize) -> usize {
    let mut kept = 0;
    for at in 0..found {
        if events[at].u64 != alarm_data() {
            events[kept] = events[at];
            kept += 1;
        }
    }
    kept
}
