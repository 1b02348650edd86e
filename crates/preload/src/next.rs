//! The functions that this library replaces: those of the C library, or of another preloaded
//! library behind this one. Contains unsafe code.
//!
//! Each is looked up at its first use, and all of them when the library is loaded, so that no
//! signal handler has to. Further functions here are safe forms of some of them, with slices.
#![allow(unsafe_code)]

use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr,
    nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
};
use std::ffi::CStr;
use std::mem::transmute;
use std::ptr;
use std::time::Duration;
use towpath::layers::packet::sync::{AtomicPtr, Ordering};
use towpath_capi::Errno;

/// The result of a call: a value, or an error number.
pub(crate) type Outcome<T> = Result<T, Errno>;

/// Sets `errno`.
pub(crate) fn set_errno(Errno(number): Errno) {
    // SAFETY: the C library has a place for each thread, so this cannot fail.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is valid, and only this thread uses the place.
    unsafe { *place = number };
}

/// The value of `errno`.
pub(crate) fn errno() -> Errno {
    // SAFETY: the C library has a place for each thread, so this cannot fail.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the pointer is valid, and only this thread uses the place.
    Errno(unsafe { *place })
}

/// A number for C: -1 with `errno` for errors.
pub(crate) fn give(outcome: Outcome<usize>) -> c_int {
    match outcome {
        // Results are counts of the caller's entries, or descriptors.
        Ok(value) => value as c_int,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// A count of C, or its error.
fn counted(count: c_int) -> Outcome<usize> {
    usize::try_from(count).map_err(|_| errno())
}

/// The address of a function, once it is known.
struct Slot {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Slot {
    const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else {
            panic!("a name ends with its only zero");
        };
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The address; null if no library behind this one has the function.
    fn address(&self) -> *mut c_void {
        // Relaxed: all threads find the same address, and it is code.
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is a string, and the call has no other requirement.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

macro_rules! next {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)+) => {
        #[expect(non_upper_case_globals, reason = "named as their functions")]
        mod slots {
            use super::Slot;
            $(pub(super) static $name: Slot = Slot::new(concat!(stringify!($name), "\0"));)+
        }

        /// Looks up all functions.
        pub(crate) fn find_all() {
            for slot in [$(&slots::$name),+] {
                slot.address();
            }
        }

        $(
            /// The function of this name behind this library. `ENOSYS` if there is none.
            ///
            /// # Safety
            /// The requirements of that function.
            #[inline]
            pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
                type Function = unsafe extern "C" fn($($kind),*) -> $result;
                let address = slots::$name.address();
                if address.is_null() {
                    set_errno(Errno(libc::ENOSYS));
                    return -1;
                }
                // SAFETY: this is the function of that name, which has this type in the C library.
                let function = unsafe { transmute::<*mut c_void, Function>(address) };
                // SAFETY: the caller vouches for it.
                unsafe { function($($argument),*) }
            }
        )+
    };
}

// The third argument of `fcntl` and of `ioctl` and those of `syscall` are variadic in C. On all
// architectures of Linux that Rust supports with 64 bits, they are passed like named ones of the
// size of a register.
next! {
    fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_pwait(
        set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
    ) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    fn listen(fd: c_int, backlog: c_int) -> c_int;
    fn poll(entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(
        entries: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn pselect(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    fn readv(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(
        fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t
    ) -> ssize_t;
    fn recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn select(
        count: c_int, reads: *mut fd_set, writes: *mut fd_set, others: *mut fd_set,
        timeout: *mut timeval
    ) -> c_int;
    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendto(
        fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr,
        address_len: socklen_t
    ) -> ssize_t;
    fn setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t
    ) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn splice(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: size_t,
        flags: c_uint
    ) -> ssize_t;
    fn syscall(
        number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize
    ) -> c_long;
    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t;
}

/// `ppoll` on files of the kernel.
pub(crate) fn poll_files(
    entries: &mut [pollfd],
    timeout: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Outcome<usize> {
    let timeout = timeout.map(|timeout| timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let (count, timeout) = (entries.len() as nfds_t, pointer(timeout.as_ref()));
    // SAFETY: the pointers are null or those of references, and the count is that of the entries.
    counted(unsafe { ppoll(entries.as_mut_ptr(), count, timeout, pointer(mask)) })
}

/// `epoll_pwait`. The timeout is rounded up to milliseconds.
pub(crate) fn wait_for_files(
    set: c_int,
    events: &mut [epoll_event],
    timeout: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Outcome<usize> {
    let timeout = timeout.map_or(-1, |timeout| {
        c_int::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
    });
    let max = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    // SAFETY: there is room for `max` events, and the mask is null or a reference.
    counted(unsafe { epoll_pwait(set, events.as_mut_ptr(), max, timeout, pointer(mask)) })
}

/// Adds a file to a set of the kernel, level-triggered, for reading.
pub(crate) fn add_file(set: c_int, fd: c_int, data: u64) -> Outcome<()> {
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: data };
    // SAFETY: the event is valid during the call.
    counted(unsafe { epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }).map(drop)
}

/// Closes a file of this library, which the caller does not use any more.
pub(crate) fn close_own(fd: c_int) {
    // SAFETY: closing changes no memory.
    unsafe { close(fd) };
}

/// Sends `SIGPIPE` to this thread, as the kernel does.
pub(crate) fn raise_pipe() {
    // SAFETY: the signal is valid, and the call has no other requirement.
    unsafe { libc::raise(libc::SIGPIPE) };
}

fn pointer<T>(reference: Option<&T>) -> *const T {
    reference.map_or(ptr::null(), ptr::from_ref)
}

/// A stream of C for a descriptor, which a library behind this one makes.
///
/// # Safety
/// `mode` is a string.
pub(crate) unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    type Function = unsafe extern "C" fn(c_int, *const c_char) -> *mut libc::FILE;
    static SLOT: Slot = Slot::new("fdopen\0");
    let address = SLOT.address();
    if address.is_null() {
        set_errno(Errno(libc::ENOSYS));
        return ptr::null_mut();
    }
    // SAFETY: this is the function of that name, which has this type in the C library.
    let function = unsafe { transmute::<*mut c_void, Function>(address) };
    // SAFETY: the caller vouches for it.
    unsafe { function(fd, mode) }
}
