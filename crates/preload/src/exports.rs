//! The functions that take the place of those of the C library. Contains unsafe code.
//!
//! Each passes files of the kernel on to the function behind this library, with the same arguments,
//! and sockets of the stack to the function of `towpath-capi` with the same name. Other files:
//! `numbers` has the functions that make and close descriptors, `wait` those that wait for several.
//!
//! Memory: every pointer is used as the original function uses it, for the time of the call.
#![allow(unsafe_code)]

use crate::next::{self, errno, set_errno};
use crate::stack;
use crate::table::{self, Entry};
use libc::{
    c_char, c_int, c_uint, c_ulong, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec,
};
use towpath_capi::{Errno, abi};

macro_rules! exported {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty
        $body:block)+) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The requirements of the C library's function of the same name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result $body
    )+ };
}

/// Functions that differ for the two kinds of sockets only in who performs them.
macro_rules! forwarded {
    ($($(#[$doc:meta])* fn $name:ident(fd $(, $argument:ident: $kind:ty)*) -> $result:ty
        => $other:ident;)+) => { exported! { $(
        $(#[$doc])*
        fn $name(fd: c_int $(, $argument: $kind)*) -> $result {
            if table::is_socket(fd) {
                // SAFETY: the caller vouches for it; the stack is there, because its socket is.
                return unsafe { abi::$other(stack::pointer(), fd $(, $argument)*) };
            }
            // SAFETY: the caller vouches for it.
            unsafe { next::$name(fd $(, $argument)*) }
        }
    )+ } };
}

/// Functions that send: on a closed stream the kernel raises `SIGPIPE`.
macro_rules! sending {
    ($($(#[$doc:meta])* fn $name:ident(fd $(, $argument:ident: $kind:ty)*) -> $result:ty
        => $other:ident, $flags:expr;)+) => { exported! { $(
        $(#[$doc])*
        fn $name(fd: c_int $(, $argument: $kind)*) -> $result {
            if table::is_socket(fd) {
                // SAFETY: the caller vouches for it; the stack is there, because its socket is.
                let sent = unsafe { abi::$other(stack::pointer(), fd $(, $argument)*) };
                return signalled(sent, fd, $flags);
            }
            // SAFETY: the caller vouches for it.
            unsafe { next::$name(fd $(, $argument)*) }
        }
    )+ } };
}

mod numbers;
mod wait;
pub use numbers::*;
pub use wait::*;

/// Runs when the library is loaded, before the program's `main`.
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
#[cfg_attr(not(test), used)]
pub static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        next::find_all();
        stack::options();
    }
    begin
};

/// Runs when the program returns from `main` or calls `exit`.
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
#[cfg_attr(not(test), used)]
pub static END: extern "C" fn() = {
    extern "C" fn end() {
        stack::finish();
    }
    end
};

/// Raises `SIGPIPE` if a call on a stream has failed with `EPIPE`. Returns the call's result.
fn signalled<T: PartialOrd + From<i8>>(sent: T, fd: c_int, flags: c_int) -> T {
    if sent < T::from(0)
        && errno() == Errno(libc::EPIPE)
        && flags & libc::MSG_NOSIGNAL == 0
        && stack::attached().is_ok_and(|of| !of.is_datagram(fd))
    {
        next::raise_pipe();
        set_errno(Errno(libc::EPIPE));
    }
    sent
}

/// Enters a new socket of the stack into the table. `fd` is -1 after an error.
fn enter(fd: c_int) -> c_int {
    if fd < 0 || table::set(fd, Entry::Socket) {
        return fd;
    }
    // It exists, because it was just made.
    let _ = stack::attached().and_then(|of| of.close(fd));
    set_errno(Errno(libc::EMFILE));
    -1
}

exported! {
    /// `socket(2)`. Internet sockets for streams and datagrams are those of the stack.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let plain = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        if ![libc::AF_INET, libc::AF_INET6].contains(&domain)
            || ![libc::SOCK_STREAM, libc::SOCK_DGRAM].contains(&plain)
        {
            // SAFETY: the caller vouches for it.
            return unsafe { next::socket(domain, kind, protocol) };
        }
        if let Err(errno) = stack::attached() {
            set_errno(errno);
            return -1;
        }
        // SAFETY: the stack is there.
        enter(unsafe { abi::towpath_socket(stack::pointer(), domain, kind, protocol) })
    }

    /// `accept(2)`.
    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if table::is_socket(fd) {
            // SAFETY: the caller vouches for it; the stack is there, because its socket is.
            return enter(unsafe { abi::towpath_accept(stack::pointer(), fd, address, len) });
        }
        // SAFETY: the caller vouches for it.
        unsafe { next::accept(fd, address, len) }
    }

    /// `accept4(2)`.
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        if table::is_socket(fd) {
            let of = stack::pointer();
            // SAFETY: the caller vouches for it; the stack is there, because its socket is.
            return enter(unsafe { abi::towpath_accept4(of, fd, address, len, flags) });
        }
        // SAFETY: the caller vouches for it.
        unsafe { next::accept4(fd, address, len, flags) }
    }
}

forwarded! {
    /// `bind(2)`.
    fn bind(fd, address: *const sockaddr, len: socklen_t) -> c_int => towpath_bind;

    /// `listen(2)`.
    fn listen(fd, backlog: c_int) -> c_int => towpath_listen;

    /// `connect(2)`.
    fn connect(fd, address: *const sockaddr, len: socklen_t) -> c_int => towpath_connect;

    /// `shutdown(2)`.
    fn shutdown(fd, how: c_int) -> c_int => towpath_shutdown;

    /// `getsockname(2)`.
    fn getsockname(fd, address: *mut sockaddr, len: *mut socklen_t) -> c_int
        => towpath_getsockname;

    /// `getpeername(2)`.
    fn getpeername(fd, address: *mut sockaddr, len: *mut socklen_t) -> c_int
        => towpath_getpeername;

    /// `getsockopt(2)`.
    fn getsockopt(
        fd, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
    ) -> c_int => towpath_getsockopt;

    /// `setsockopt(2)`.
    fn setsockopt(
        fd, level: c_int, name: c_int, value: *const c_void, len: socklen_t
    ) -> c_int => towpath_setsockopt;

    /// `read(2)`.
    fn read(fd, buffer: *mut c_void, len: size_t) -> ssize_t => towpath_read;

    /// `readv(2)`.
    fn readv(fd, pieces: *const iovec, count: c_int) -> ssize_t => towpath_readv;

    /// `recv(2)`.
    fn recv(fd, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t => towpath_recv;

    /// `recvfrom(2)`.
    fn recvfrom(
        fd, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t => towpath_recvfrom;

    /// `recvmsg(2)`.
    fn recvmsg(fd, message: *mut msghdr, flags: c_int) -> ssize_t => towpath_recvmsg;

    /// `recvmmsg(2)`.
    fn recvmmsg(
        fd, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int => towpath_recvmmsg;
}

sending! {
    /// `write(2)`.
    fn write(fd, buffer: *const c_void, len: size_t) -> ssize_t => towpath_write, 0;

    /// `writev(2)`.
    fn writev(fd, pieces: *const iovec, count: c_int) -> ssize_t => towpath_writev, 0;

    /// `send(2)`.
    fn send(fd, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t
        => towpath_send, flags;

    /// `sendto(2)`.
    fn sendto(
        fd, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
        address_len: socklen_t
    ) -> ssize_t => towpath_sendto, flags;

    /// `sendmsg(2)`.
    fn sendmsg(fd, message: *const msghdr, flags: c_int) -> ssize_t => towpath_sendmsg, flags;

    /// `sendmmsg(2)`.
    fn sendmmsg(fd, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        => towpath_sendmmsg, flags;

    /// `sendfile(2)`.
    fn sendfile(fd, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t
        => towpath_sendfile, 0;
}

exported! {
    /// `sendfile(2)`, under the name with explicitly large offsets.
    fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // SAFETY: the caller vouches for it.
        unsafe { sendfile(to, from, offset, count) }
    }

    /// `splice(2)`.
    fn splice(
        from: c_int,
        from_offset: *mut i64,
        to: c_int,
        to_offset: *mut i64,
        count: size_t,
        flags: c_uint
    ) -> ssize_t {
        if table::is_socket(from) || table::is_socket(to) {
            let of = stack::pointer();
            // SAFETY: the caller vouches for it; the stack is there, because its socket is.
            let moved = unsafe {
                abi::towpath_splice(of, from, from_offset, to, to_offset, count, flags)
            };
            return signalled(moved, to, 0);
        }
        // SAFETY: the caller vouches for it.
        unsafe { next::splice(from, from_offset, to, to_offset, count, flags) }
    }

    /// `ioctl(2)`. Requests about interfaces fail with `ENOTTY` on sockets of the stack.
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
        if !table::is_socket(fd) {
            // SAFETY: the caller vouches for it.
            return unsafe { next::ioctl(fd, request, argument) };
        }
        match request {
            // Sockets of the stack never outlive `exec`.
            libc::FIOCLEX | libc::FIONCLEX => 0,
            // SAFETY: the caller vouches for it; the stack is there, because its socket is.
            _ => unsafe { abi::towpath_ioctl(stack::pointer(), fd, request, argument.cast()) },
        }
    }

    /// `read` as programs call it that were compiled with `_FORTIFY_SOURCE`.
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        check_room(len, room);
        // SAFETY: the caller vouches for it.
        unsafe { read(fd, buffer, len) }
    }

    /// `recv` as programs call it that were compiled with `_FORTIFY_SOURCE`.
    fn __recv_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int
    ) -> ssize_t {
        check_room(len, room);
        // SAFETY: the caller vouches for it.
        unsafe { recv(fd, buffer, len, flags) }
    }

    /// `recvfrom` as programs call it that were compiled with `_FORTIFY_SOURCE`.
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
        address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t {
        check_room(len, room);
        // SAFETY: the caller vouches for it.
        unsafe { recvfrom(fd, buffer, len, flags, address, address_len) }
    }

    /// `fdopen(3)`. The C library reads and writes streams without a call of the functions here, so
    /// sockets of the stack are refused with `EOPNOTSUPP`.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
        if table::is_socket(fd) {
            set_errno(Errno(libc::EOPNOTSUPP));
            return std::ptr::null_mut();
        }
        // SAFETY: the caller vouches for it.
        unsafe { next::fdopen(fd, mode) }
    }
}

/// Ends a program that was about to write beyond a buffer, as the C library does.
fn check_room(len: usize, room: usize) {
    if len > room {
        std::process::abort();
    }
}
