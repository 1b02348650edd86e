//! The functions that C calls: named `towpath_*`, with the shapes of POSIX and the instance as the
//! first argument.
//!
//! Each function turns pointers into slices, calls one safe function and turns the result into a
//! number, or into -1 with `errno` set. A null pointer where memory is needed is `EFAULT`. In the
//! child of a fork the instance cannot be used: `EPERM`. Nor can a signal handler use it during a
//! call, or the thread after a handler has left a call: `EDEADLK`. No panic leaves the library: it
//! ends the process, as in every `extern "C"` function.
//!
//! Other files: `lifetime` makes, drives and ends instances; `queue` contains event queues;
//! `shapes` the structures that C fills; `grown` reads and writes these by their size; `mmsg`
//! contains calls with several messages; `lent_receive` receives without a copy.
//!
//! Memory belongs to the caller before, during and after each call, with two exceptions. Memory
//! sent with `MSG_ZEROCOPY` on a socket with `SO_ZEROCOPY` stays lent until the error queue reports
//! its return, or until a closed socket no longer needs it. Memory of an event queue's operation
//! belongs to the operation until its end is reported.
#![allow(unsafe_code)]

use crate::calls::options;
use crate::calls::poll::Polled;
use crate::errno::{Errno, Outcome};
use crate::instance::Instance;
use crate::memory::pointers::{
    IOV_MAX, Message, Ranges, bytes, bytes_mut, file, filter, gather, scatter, sockaddr_bytes,
    write_address, write_source,
};
use crate::table::epoll::EpollEvent;
use libc::{
    c_int, c_uint, c_ulong, c_void, epoll_event, iovec, loff_t, msghdr, nfds_t, off_t, pollfd,
    size_t, sockaddr, socklen_t,
};
use rustix::process::Resource;

/// Most events of one wait, as in Linux.
const EVENTS_MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();

/// Sets `errno`.
pub(crate) fn set_errno(Errno(number): Errno) {
    // SAFETY: the C library has a place for each thread, so this cannot fail.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is valid, and only this thread uses the place.
    unsafe { *place = number };
}

/// The result as a number for C: -1 with `errno` for errors.
pub(crate) fn give<T: TryInto<isize>>(outcome: Outcome<T>) -> isize {
    match outcome.and_then(|value| value.try_into().map_err(|_| Errno(libc::EOVERFLOW))) {
        Ok(value) => value,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// The result as an `int` for C.
pub(crate) fn give_int<T: TryInto<isize>>(outcome: Outcome<T>) -> c_int {
    give(outcome) as c_int
}

/// Zero, or -1 with `errno`, for C.
pub(crate) fn give_done(outcome: Outcome<()>) -> c_int {
    give_int(outcome.map(|()| 0_i32))
}

/// The instance behind C's pointer. `None` if that is null.
///
/// # Safety
/// `instance` is null, or was made by this library and not freed.
unsafe fn instance<'a>(instance: *const Instance) -> Option<&'a Instance> {
    // SAFETY: the caller vouches for it; instances are shared, never written through this.
    unsafe { instance.as_ref() }
}

/// The number of pieces for `readv` and `writev`. Too many are `EINVAL` here; for messages the
/// kernel has another error.
fn iov_count(count: c_int) -> Outcome<usize> {
    usize::try_from(count).ok().filter(|count| *count <= IOV_MAX).ok_or(Errno::INVAL)
}

/// The result of a call on a descriptor. `EBADF` takes precedence over all other errors.
fn on<T>(of: &Instance, fd: c_int, outcome: Outcome<T>) -> Outcome<T> {
    outcome.map_err(|errno| if of.has(fd) { errno } else { Errno::BADF })
}

/// Sends, or lends if flags and socket ask for it.
///
/// # Safety
/// With `MSG_ZEROCOPY` and `SO_ZEROCOPY` the memory of `buffers` can be read until its return is
/// reported to the program.
unsafe fn send(
    of: &Instance,
    fd: c_int,
    buffers: &[&[u8]],
    flags: c_int,
    address: Option<&[u8]>,
    control: &[u8],
) -> Outcome<usize> {
    if of.lends(fd, flags) {
        // SAFETY: the caller vouches for it.
        let ranges = unsafe { Ranges::new(buffers) };
        ranges.check_readable()?;
        return of.send_lent(fd, &ranges, flags, address, control);
    }
    of.send_message(fd, buffers, flags, address, control)
}

macro_rules! exported {
    ($($(#[$doc:meta])* fn $name:ident($of:ident $(, $argument:ident: $kind:ty)*) -> $result:ty
        $body:block)+) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The instance is null, or was made and not freed. Other pointers are null, or valid for
        /// what the POSIX call of the same name does with them.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            instance: *const Instance
            $(, $argument: $kind)*
        ) -> $result {
            // SAFETY: the caller vouches for it.
            let Some($of) = (unsafe { $crate::abi::instance(instance) }) else {
                return $crate::abi::give::<isize>(Err($crate::errno::Errno::FAULT)) as $result;
            };
            if let Err(errno) = $of.check_caller() {
                return $crate::abi::give::<isize>(Err(errno)) as $result;
            }
            $body
        }
    )+ };
}

mod extensible;
mod lent_receive;
mod lifetime;
mod mmsg;
mod queue;
mod shapes;
pub use lent_receive::*;
pub use lifetime::*;
pub use mmsg::*;
pub use queue::*;
pub use shapes::*;

exported! {
    /// `socket(2)`.
    fn towpath_socket(of, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        give_int(of.socket(domain, kind, protocol))
    }

    /// `bind(2)`.
    fn towpath_bind(of, fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the caller vouches for it.
        let address = unsafe { sockaddr_bytes(address, len) };
        give_done(on(of, fd, address.and_then(|address| of.bind(fd, address))))
    }

    /// `listen(2)`.
    fn towpath_listen(of, fd: c_int, backlog: c_int) -> c_int {
        give_done(on(of, fd, of.listen(fd, backlog)))
    }

    /// `accept(2)`.
    fn towpath_accept(of, fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: the caller vouches for it.
        unsafe { accept(of, fd, 0, address, len) }
    }

    /// `accept4(2)`.
    fn towpath_accept4(
        of,
        fd: c_int,
        address: *mut sockaddr,
        len: *mut socklen_t,
        flags: c_int
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        unsafe { accept(of, fd, flags, address, len) }
    }

    /// `connect(2)`.
    fn towpath_connect(of, fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        // SAFETY: the caller vouches for it.
        let address = unsafe { sockaddr_bytes(address, len) };
        give_done(on(of, fd, address.and_then(|address| of.connect(fd, address))))
    }

    /// `shutdown(2)`.
    fn towpath_shutdown(of, fd: c_int, how: c_int) -> c_int {
        give_done(on(of, fd, of.shutdown(fd, how)))
    }

    /// `close(2)`.
    fn towpath_close(of, fd: c_int) -> c_int {
        give_done(on(of, fd, of.close(fd)))
    }

    /// `read(2)`.
    fn towpath_read(of, fd: c_int, buffer: *mut c_void, len: size_t) -> isize {
        // SAFETY: the caller vouches for it.
        let buffer = unsafe { bytes_mut(buffer, len) };
        give(on(of, fd, buffer.and_then(|buffer| of.receive(fd, &mut [buffer], 0))))
    }

    /// `readv(2)`.
    fn towpath_readv(of, fd: c_int, pieces: *const iovec, count: c_int) -> isize {
        let count = iov_count(count);
        // SAFETY: the caller vouches for it.
        let buffers = count.and_then(|count| unsafe { scatter(pieces, count) });
        give(on(of, fd, buffers.and_then(|mut buffers| of.receive(fd, &mut buffers, 0))))
    }

    /// `recv(2)`.
    fn towpath_recv(of, fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> isize {
        let apart = libc::MSG_PEEK | libc::MSG_OOB;
        let drops = flags & libc::MSG_TRUNC != 0 && flags & apart == 0;
        if drops && !of.is_datagram(fd) {
            return give(on(of, fd, of.discard(fd, len, flags)));
        }
        // SAFETY: the caller vouches for it.
        let buffer = unsafe { bytes_mut(buffer, len) };
        give(on(of, fd, buffer.and_then(|buffer| of.receive(fd, &mut [buffer], flags))))
    }

    /// `recvfrom(2)`. A stream reports no source.
    fn towpath_recvfrom(
        of,
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> isize {
        // SAFETY: the caller vouches for it.
        let buffer = unsafe { bytes_mut(buffer, len) };
        let received = buffer.and_then(|buffer| {
            of.receive_message(fd, &mut [buffer], &mut [], flags)
        });
        let reported = received.and_then(|received| {
            // SAFETY: the caller vouches for it.
            unsafe { write_source(received.source, address, address_len) }?;
            Ok(received.len)
        });
        give(on(of, fd, reported))
    }

    /// `recvmsg(2)`.
    fn towpath_recvmsg(of, fd: c_int, message: *mut msghdr, flags: c_int) -> isize {
        // SAFETY: the caller vouches for it.
        let received = unsafe { Message::new(message) }.and_then(|mut message| {
            message.receive(|buffers, control| of.receive_message(fd, buffers, control, flags))
        });
        give(on(of, fd, received))
    }

    /// `write(2)`, without `SIGPIPE`.
    fn towpath_write(of, fd: c_int, buffer: *const c_void, len: size_t) -> isize {
        // SAFETY: the caller vouches for it.
        let buffer = unsafe { bytes(buffer, len) };
        give(on(of, fd, buffer.and_then(|buffer| of.send(fd, &[buffer], 0))))
    }

    /// `writev(2)`, without `SIGPIPE`.
    fn towpath_writev(of, fd: c_int, pieces: *const iovec, count: c_int) -> isize {
        let count = iov_count(count);
        // SAFETY: the caller vouches for it.
        let buffers = count.and_then(|count| unsafe { gather(pieces, count) });
        give(on(of, fd, buffers.and_then(|buffers| of.send(fd, &buffers, 0))))
    }

    /// `send(2)`, without `SIGPIPE`.
    fn towpath_send(of, fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> isize {
        // SAFETY: the caller vouches for it.
        let buffer = unsafe { bytes(buffer, len) };
        let sent = buffer.and_then(|buffer| {
            // SAFETY: the caller vouches for it.
            unsafe { send(of, fd, &[buffer], flags, None, &[]) }
        });
        give(on(of, fd, sent))
    }

    /// `sendto(2)`, without `SIGPIPE`. A connected stream ignores the address.
    fn towpath_sendto(
        of,
        fd: c_int,
        buffer: *const c_void,
        len: size_t,
        flags: c_int,
        address: *const sockaddr,
        address_len: socklen_t
    ) -> isize {
        let address_len = if address.is_null() { 0 } else { address_len };
        // SAFETY: the caller vouches for it.
        let name = unsafe { sockaddr_bytes(address, address_len) };
        // SAFETY: the caller vouches for it.
        let buffer = unsafe { bytes(buffer, len) };
        let sent = name.and_then(|name| {
            let address = Some(name).filter(|_| !address.is_null());
            let buffer = buffer?;
            // SAFETY: the caller vouches for it.
            unsafe { send(of, fd, &[buffer], flags, address, &[]) }
        });
        give(on(of, fd, sent))
    }

    /// `sendmsg(2)`, without `SIGPIPE`.
    fn towpath_sendmsg(of, fd: c_int, message: *const msghdr, flags: c_int) -> isize {
        // SAFETY: the caller vouches for it; the message is only read.
        let sent = unsafe { Message::new(message.cast_mut()) }.and_then(|message| {
            message.send(|buffers, address, control| {
                // SAFETY: the caller vouches for it.
                unsafe { send(of, fd, buffers, flags, address, control) }
            })
        });
        give(on(of, fd, sent))
    }

    /// `getsockname(2)`.
    fn towpath_getsockname(of, fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if address.is_null() {
            return give_int::<c_int>(on(of, fd, Err(Errno::FAULT)));
        }
        // SAFETY: the caller vouches for it.
        let done = of.own_name(fd).and_then(|local| unsafe { write_address(local, address, len) });
        give_done(done)
    }

    /// `getpeername(2)`.
    fn towpath_getpeername(of, fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if address.is_null() {
            return give_int::<c_int>(on(of, fd, Err(Errno::FAULT)));
        }
        // SAFETY: the caller vouches for it.
        let done = of.remote(fd).and_then(|remote| unsafe { write_address(remote, address, len) });
        give_done(done)
    }

    /// `setsockopt(2)`.
    fn towpath_setsockopt(
        of,
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t
    ) -> c_int {
        let len = usize::try_from(len as i32).map_err(|_| Errno::INVAL);
        // SAFETY: the caller vouches for it.
        let value = len.and_then(|len| unsafe { bytes(value, len) });
        give_done(on(of, fd, value.and_then(|value| match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER) => {
                // SAFETY: the caller vouches for it.
                of.attach_filter(fd, unsafe { filter(value) })
            }
            _ => of.set_option(fd, level, name, value),
        })))
    }

    /// `getsockopt(2)`.
    fn towpath_getsockopt(
        of,
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        let Some(len) = (unsafe { len.as_mut() }) else {
            return give_int::<c_int>(on(of, fd, Err(Errno::FAULT)));
        };
        let Ok(room) = usize::try_from(*len as i32) else {
            return give_int::<c_int>(on(of, fd, Err(Errno::INVAL)));
        };
        let found = of.option(fd, level, name, room).and_then(|found| {
            // SAFETY: the caller vouches for `room` bytes, and `found` has no more.
            let to = unsafe { bytes_mut(value, found.len()) }?;
            to.copy_from_slice(&found);
            *len = found.len() as socklen_t;
            Ok(())
        });
        give_done(on(of, fd, found))
    }

    /// `fcntl(2)`: `F_GETFL`, `F_SETFL`, `F_GETFD` and `F_SETFD`.
    fn towpath_fcntl(of, fd: c_int, command: c_int, argument: c_int) -> c_int {
        give_int(on(of, fd, of.fcntl(fd, command, argument)))
    }

    /// `ioctl(2)`: `FIONBIO`, `FIONREAD` (`SIOCINQ`), `SIOCATMARK`, `SIOCOUTQ` and `SIOCOUTQNSD`.
    fn towpath_ioctl(of, fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int {
        // SAFETY: the caller vouches for it.
        let Some(argument) = (unsafe { argument.as_mut() }) else {
            let known = of.has(fd);
            return give_int::<c_int>(Err(if known { Errno::FAULT } else { Errno::BADF }));
        };
        let given = if request == options::FIONBIO { *argument } else { 0 };
        give_done(of.ioctl(fd, request, given).map(|reported| *argument = reported))
    }

    /// `poll(2)`, on descriptors of this instance only.
    fn towpath_poll(of, entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        // As in the kernel: no more than a process may have descriptors.
        if count > rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) {
            return give_int::<c_int>(Err(Errno::INVAL));
        }
        if count > 0 && entries.is_null() {
            return give_int::<c_int>(Err(Errno::FAULT));
        }
        let mut none = [];
        let entries = match count {
            0 => &mut none[..],
            // SAFETY: the caller vouches for it.
            count => unsafe { std::slice::from_raw_parts_mut(entries, count as usize) },
        };
        let mut polled: Vec<Polled> = entries
            .iter()
            .map(|entry| Polled { fd: entry.fd, asked: entry.events, ready: 0 })
            .collect();
        let outcome = of.poll(&mut polled, timeout);
        for (entry, polled) in entries.iter_mut().zip(&polled) {
            entry.revents = polled.ready;
        }
        give_int(outcome)
    }

    /// `epoll_create1(2)`.
    fn towpath_epoll_create1(of, flags: c_int) -> c_int {
        if flags & !libc::EPOLL_CLOEXEC != 0 {
            return give_int::<c_int>(Err(Errno::INVAL));
        }
        give_int(of.epoll_create())
    }

    /// `epoll_ctl(2)`.
    fn towpath_epoll_ctl(
        of,
        set: c_int,
        operation: c_int,
        fd: c_int,
        event: *mut epoll_event
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        let event = (!event.is_null()).then(|| unsafe { event.read() });
        let event = event.map(|event| EpollEvent { events: event.events, data: event.u64 });
        give_done(of.epoll_control(set, operation, fd, event))
    }

    /// `epoll_wait(2)`.
    fn towpath_epoll_wait(
        of,
        set: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int
    ) -> c_int {
        let max = usize::try_from(max).ok().filter(|max| (1..=EVENTS_MAX).contains(max));
        let Some(max) = max else {
            return give_int::<c_int>(Err(Errno::INVAL));
        };
        if events.is_null() {
            return give_int::<c_int>(Err(Errno::FAULT));
        }
        let reported = of.epoll_wait(set, max, timeout);
        if let Ok(reported) = &reported {
            for (index, event) in reported.iter().enumerate() {
                // SAFETY: the caller vouches for `max` places, and there are no more events.
                let place = unsafe { events.add(index) };
                let event = epoll_event { events: event.events, u64: event.data };
                // SAFETY: `place` is within the caller's `max` places.
                unsafe { place.write(event) };
            }
        }
        give_int(reported.map(|reported| reported.len()))
    }

    /// `sendfile(2)`, from a file of the kernel to a socket.
    fn towpath_sendfile(
        of,
        to: c_int,
        from: c_int,
        offset: *mut off_t,
        count: size_t
    ) -> isize {
        // SAFETY: the caller vouches for it.
        let offset = unsafe { offset.as_mut() };
        let start = match &offset {
            Some(start) => u64::try_from(**start).map(Some).map_err(|_| Errno::INVAL),
            None => Ok(None),
        };
        let sent = start.and_then(|start| {
            // SAFETY: the caller vouches for it.
            let file = unsafe { file(from) }?;
            of.send_file(to, file, start, count)
        });
        if let (Ok(sent), Some(offset)) = (&sent, offset) {
            *offset += *sent as off_t;
        }
        give(sent)
    }

    /// `splice(2)`, between a socket and a pipe of the kernel.
    fn towpath_splice(
        of,
        from: c_int,
        from_offset: *mut loff_t,
        to: c_int,
        to_offset: *mut loff_t,
        count: size_t,
        flags: c_uint
    ) -> isize {
        if !from_offset.is_null() || !to_offset.is_null() {
            return give::<isize>(Err(Errno(libc::ESPIPE)));
        }
        let nonblocking = flags & libc::SPLICE_F_NONBLOCK != 0;
        let moved = match (of.has(from), of.has(to)) {
            // SAFETY: the caller vouches for it.
            (true, false) => unsafe { file(to) }
                .and_then(|pipe| of.splice_out(from, pipe, count, nonblocking)),
            // SAFETY: the caller vouches for it.
            (false, true) => unsafe { file(from) }
                .and_then(|pipe| of.splice_in(pipe, to, count, nonblocking)),
            _ => Err(Errno::INVAL),
        };
        give(moved)
    }
}

/// Accepts a connection and writes the peer's address. As in Linux, the connection is closed if the
/// address cannot be written.
///
/// # Safety
/// The requirements of [`write_address`].
unsafe fn accept(
    of: &Instance,
    fd: c_int,
    flags: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let accepted = of.accept(fd, flags).and_then(|(fd, remote)| {
        // SAFETY: the caller vouches for it.
        let reported = unsafe { write_address(remote, address, len) };
        match reported {
            Ok(()) => Ok(fd),
            Err(error) => of.close(fd).and(Err(error)),
        }
    });
    give_int(accepted)
}
