//! Functions that duplicate, replace and close descriptors, and `fcntl`. Contains unsafe code.
//!
//! In a child of a fork, a close releases only the number: the socket is the parent's. In a child
//! of `vfork`, the table is the parent's, too, and stays as it is.
#![allow(unsafe_code)]

use crate::epoll;
use crate::next::{self, Outcome, give};
use crate::stack::{self, Caller};
use crate::table::{self, Entry};
use libc::{c_int, c_long, c_uint};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use towpath_capi::{Errno, abi};

exported! {
    /// `close(2)`. Files of this library stay open, and the call fails with `EBADF`.
    fn close(fd: c_int) -> c_int {
        let entry = table::entry(fd);
        match (entry, if entry == Entry::Kernel { Caller::Owner } else { stack::caller() }) {
            (Entry::Own, Caller::Owner) => give(Err(Errno::BADF)),
            (Entry::Socket, Caller::Owner) => {
                let closed = stack::attached().and_then(|of| {
                    // First, because the number is free before the call returns.
                    table::set(fd, Entry::Kernel);
                    of.close(fd)
                });
                give(closed.map(|()| 0))
            }
            (_, caller) => {
                forget(fd, caller);
                // SAFETY: the caller vouches for it.
                unsafe { next::close(fd) }
            }
        }
    }

    /// `close_range(2)`. Files of this library stay open. `CLOSE_RANGE_UNSHARE` fails with `EINVAL`
    /// once there is a stack, which would lose its files.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let end = table::end() as c_uint;
        let keeps = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
        if first >= end || first > last || keeps || stack::caller() != Caller::Owner {
            if !keeps && stack::caller() == Caller::Fork {
                let past = end.min(last.saturating_add(1));
                (first..past).for_each(|fd| forget(fd as c_int, Caller::Fork));
            }
            // SAFETY: the caller vouches for it.
            return unsafe { next::close_range(first, last, flags) };
        }
        if flags != 0 {
            return give(Err(Errno::INVAL));
        }
        let (mut begin, past) = (first, last.saturating_add(1).min(end));
        for fd in first..=past {
            if fd < past && table::entry(fd as c_int) == Entry::Kernel {
                continue;
            }
            if begin < fd {
                // SAFETY: the caller vouches for it.
                let done = unsafe { next::close_range(begin, fd - 1, 0) };
                if done != 0 {
                    return done;
                }
            }
            begin = fd + 1;
            if fd < past {
                // SAFETY: the caller vouches for it.
                unsafe { close(fd as c_int) };
            }
        }
        if last < past {
            return 0;
        }
        // SAFETY: the caller vouches for it.
        unsafe { next::close_range(past, last, 0) }
    }

    /// `dup(2)`. The new descriptor of a socket of the stack does not outlive `exec`.
    fn dup(fd: c_int) -> c_int {
        match table::entry(fd) {
            // SAFETY: the caller vouches for it.
            Entry::Kernel | Entry::Own => unsafe { next::dup(fd) },
            entry => duplicate(fd, entry, libc::F_DUPFD, 0),
        }
    }

    /// `dup2(2)`.
    fn dup2(fd: c_int, to: c_int) -> c_int {
        if fd == to || is_plain(fd, to) {
            // SAFETY: the caller vouches for it.
            return unsafe { next::dup2(fd, to) };
        }
        give(replace(fd, to, 0))
    }

    /// `dup3(2)`.
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        if fd == to || flags & !libc::O_CLOEXEC != 0 || is_plain(fd, to) {
            // SAFETY: the caller vouches for it.
            return unsafe { next::dup3(fd, to, flags) };
        }
        give(replace(fd, to, flags))
    }

    /// `fcntl(2)`.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        let entry = table::entry(fd);
        match (entry, command) {
            (Entry::Socket | Entry::Set(_), libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
                duplicate(fd, entry, command, argument)
            }
            (Entry::Socket, _) => {
                let of = stack::pointer();
                // SAFETY: the stack is there, because its socket is.
                unsafe { abi::towpath_fcntl(of, fd, command, argument as c_int) }
            }
            // SAFETY: the caller vouches for it.
            _ => unsafe { next::fcntl(fd, command, argument) },
        }
    }

    /// `syscall(2)`. Some libraries make calls by their numbers that the C library once lacked, or
    /// that must not be points of cancellation: these calls, on sockets of the stack, are performed
    /// by the stack, too.
    fn syscall(
        number: c_long,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize
    ) -> c_long {
        let fd = a as c_int;
        if table::entry(fd) == Entry::Kernel {
            // SAFETY: the caller vouches for it.
            return unsafe { next::syscall(number, a, b, c, d, e, f) };
        }
        match number {
            // SAFETY: the caller vouches for it.
            libc::SYS_close => unsafe { close(fd) }.into(),
            libc::SYS_accept4 => {
                let (address, len) = (b as *mut _, c as *mut _);
                // SAFETY: the caller vouches for it.
                unsafe { super::accept4(fd, address, len, d as c_int) }.into()
            }
            libc::SYS_recvmmsg => {
                let (messages, count, timeout) = (b as *mut _, c as c_uint, e as *mut _);
                // SAFETY: the caller vouches for it.
                unsafe { super::recvmmsg(fd, messages, count, d as c_int, timeout) }.into()
            }
            libc::SYS_sendmmsg => {
                let (messages, count) = (b as *mut _, c as c_uint);
                // SAFETY: the caller vouches for it.
                unsafe { super::sendmmsg(fd, messages, count, d as c_int) }.into()
            }
            // SAFETY: the caller vouches for it.
            _ => unsafe { next::syscall(number, a, b, c, d, e, f) },
        }
    }

    /// `fcntl(2)`, under the name with explicitly large offsets.
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        // SAFETY: the caller vouches for it.
        unsafe { fcntl(fd, command, argument) }
    }
}

/// `closefrom(3)`.
///
/// # Safety
/// The requirements of the C library's function of the same name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller vouches for it.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// Removes the entry of a number that is about to be closed in the kernel.
fn forget(fd: c_int, caller: Caller) {
    match (table::entry(fd), caller) {
        (Entry::Kernel, _) | (_, Caller::Vfork) => {}
        (Entry::Set(inner), Caller::Owner) => {
            table::set(fd, Entry::Kernel);
            epoll::leave(inner);
        }
        _ => {
            table::set(fd, Entry::Kernel);
        }
    }
}

/// True if neither number is in the table, or a child uses its own copies of them.
fn is_plain(fd: c_int, to: c_int) -> bool {
    if table::entry(fd) == Entry::Kernel && table::entry(to) == Entry::Kernel {
        return true;
    }
    let caller = stack::caller();
    if caller == Caller::Fork {
        forget(to, caller);
    }
    caller != Caller::Owner
}

/// Duplicates a socket or a set to the lowest free number from `least` on.
fn duplicate(fd: c_int, entry: Entry, command: c_int, least: usize) -> c_int {
    // A socket's number is not for a program that is executed.
    let command = if entry == Entry::Socket { libc::F_DUPFD_CLOEXEC } else { command };
    // SAFETY: duplicating changes no memory, and the new number belongs to this call.
    let new = unsafe { next::fcntl(fd, command, least) };
    if new < 0 {
        return new;
    }
    give(add(fd, entry, new))
}

/// Enters a new number of a socket or a set, which the kernel has duplicated.
fn add(fd: c_int, entry: Entry, new: c_int) -> Outcome<usize> {
    let is_in = |()| table::set(new, entry).then_some(()).ok_or(Errno(libc::EMFILE));
    if let Err(errno) = stack::check_not_within().and_then(is_in) {
        // SAFETY: the number belongs to this call.
        unsafe { next::close(new) };
        return Err(errno);
    }
    match entry {
        Entry::Socket => {
            // SAFETY: the number belongs to this call, which gives it to the stack.
            let number = unsafe { OwnedFd::from_raw_fd(new) };
            let added = stack::attached().and_then(|of| of.add_number(fd, number));
            added.inspect_err(|_| {
                table::set(new, Entry::Kernel);
            })?;
        }
        Entry::Set(inner) => epoll::share(inner),
        Entry::Own | Entry::Kernel => {}
    }
    Ok(new as usize)
}

/// Makes `to` a duplicate of `fd`, of which at least one is in the table, and closes what `to` was.
fn replace(fd: c_int, to: c_int, flags: c_int) -> Outcome<usize> {
    stack::check_not_within()?;
    let entry = table::entry(fd);
    // SAFETY: the command changes nothing.
    if unsafe { next::fcntl(fd, libc::F_GETFD, 0) } < 0 {
        return Err(Errno::BADF);
    }
    match table::entry(to) {
        Entry::Own => return Err(Errno(libc::EBUSY)),
        Entry::Socket => {
            table::set(to, Entry::Kernel);
            let number = stack::attached().and_then(|of| of.release(to))?;
            // The kernel replaces it below, and no other thread gets the number meanwhile.
            let _ = number.into_raw_fd();
        }
        Entry::Set(_) => forget(to, Caller::Owner),
        Entry::Kernel => {}
    }
    let flags = if entry == Entry::Socket { libc::O_CLOEXEC } else { flags };
    // SAFETY: duplicating changes no memory. The program asked for `to` to be replaced, and what
    // was there is closed.
    let new = unsafe { next::dup3(fd, to, flags) };
    if new < 0 {
        return Err(next::errno());
    }
    match entry {
        Entry::Kernel | Entry::Own => Ok(new as usize),
        entry => add(fd, entry, new),
    }
}
