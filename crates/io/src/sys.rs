//! System calls without a safe wrapper elsewhere: one safe function per call.
//!
//! This module has no state, and any thread may call its functions. The calls go through
//! `libc::syscall`, not through the C library's wrappers, so that a library which interposes those
//! wrappers can use this crate.
//!
//! Memory is passed to the kernel in two forms: [`Gather`], a list of addresses that the kernel
//! only reads and that may be foreign memory; and `IoSliceMut`, memory that we own and the kernel
//! writes.
#![allow(unsafe_code)]

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::ffi::{c_int, c_long, c_uint, c_ulong, c_void};
use std::io::IoSliceMut;
use std::time::Duration;

use crate::gather::Gather;

/// Number of the `cachestat` system call: the same on every architecture but Alpha.
const SYS_CACHESTAT: c_long = 451;

/// The `SIOCATMARK` ioctl, on every architecture that uses the generic number.
pub(crate) const SIOCATMARK: u32 = 0x8905;

/// Socket options of TCP-AO, since Linux 6.7: add a key; read or set what concerns all keys.
pub(crate) const TCP_AO_ADD_KEY: c_int = 38;
pub(crate) const TCP_AO_INFO: c_int = 40;

/// `writev`: all parts in one call.
pub(crate) fn write_gather<const N: usize>(
    fd: BorrowedFd<'_>,
    gather: &Gather<'_, N>,
) -> Result<usize, Errno> {
    let parts = gather.parts();
    // SAFETY: `parts` is a live array of this length, and its ranges are valid for reads (invariant
    // of `Gather`). The kernel only reads them.
    let result =
        unsafe { libc::syscall(libc::SYS_writev, fd.as_raw_fd(), parts.as_ptr(), parts.len()) };
    check(result)
}

/// `sendmsg`: all parts as one message. `to` is a socket address in the kernel's layout, or
/// empty; `control` is a sequence of control messages, or empty.
pub(crate) fn send_gather<const N: usize>(
    fd: BorrowedFd<'_>,
    gather: &Gather<'_, N>,
    to: &[u8],
    control: &[u8],
    flags: c_int,
) -> Result<usize, Errno> {
    let parts = gather.parts();
    let mut message = empty_message();
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len() as _;
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = control.as_ptr().cast_mut().cast();
    message.msg_controllen = control.len() as _;
    // SAFETY: every pointer in `message` is valid for reads of the length beside it: `to` and
    // `control` are slices, and the parts are valid by the invariant of `Gather`. `sendmsg` only
    // reads.
    let result =
        unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const message, flags) };
    check(result)
}

/// What `recvmsg` returned beside the payload.
pub(crate) struct Received {
    /// Bytes of payload in the slices, or with `MSG_TRUNC` requested, bytes of the whole message.
    pub(crate) bytes: usize,
    /// Bytes of the sender's address.
    pub(crate) address_len: usize,
    /// Bytes of control messages.
    pub(crate) control_len: usize,
    /// `MSG_TRUNC`, `MSG_CTRUNC`, ….
    pub(crate) flags: c_int,
}

/// `recvmsg`: receives one message, its sender's address in the kernel's layout and its control
/// messages.
pub(crate) fn receive_message(
    fd: BorrowedFd<'_>,
    slices: &mut [IoSliceMut<'_>],
    address: &mut [u8],
    control: &mut [u8],
    flags: c_int,
) -> Result<Received, Errno> {
    let mut message = empty_message();
    message.msg_name = address.as_mut_ptr().cast();
    message.msg_namelen = address.len() as _;
    // `IoSliceMut` is guaranteed to have the layout of `iovec`.
    message.msg_iov = slices.as_mut_ptr().cast();
    message.msg_iovlen = slices.len() as _;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
    // SAFETY: every pointer in `message` is valid for writes of the length beside it, because it
    // comes from a mutable slice that is borrowed for the whole call.
    let result =
        unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut message, flags) };
    #[allow(clippy::unnecessary_cast, reason = "its type differs between C libraries")]
    let control_len = message.msg_controllen as usize;
    Ok(Received {
        bytes: check(result)?,
        address_len: (message.msg_namelen as usize).min(address.len()),
        control_len: control_len.min(control.len()),
        flags: message.msg_flags,
    })
}

/// `setsockopt` for options that rustix does not cover.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> Result<(), Errno> {
    // SAFETY: `value` is valid for reads of its length, and `setsockopt` only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd.as_raw_fd(),
            level,
            name,
            value.as_ptr(),
            value.len() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// `TUNSETIFF`: attaches an open `/dev/net/tun` to the interface `name`, making it if needed.
pub(crate) fn tun_attach(fd: BorrowedFd<'_>, name: &str, flags: c_int) -> Result<(), Errno> {
    let mut request = interface_request();
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(Errno::INVAL);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as _;
    }
    request.ifr_ifru.ifru_flags = flags as i16;
    // SAFETY: `TUNSETIFF` reads and writes one `ifreq`, which lives on our stack.
    let result = unsafe {
        libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), libc::TUNSETIFF as c_ulong, &raw mut request)
    };
    check(result).map(drop)
}

/// `TUNGETIFF`: the name of the interface that `fd` is attached to.
pub(crate) fn tun_name(fd: BorrowedFd<'_>) -> Result<String, Errno> {
    let request = tun_request(fd)?;
    let name = request.ifr_name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0);
    String::from_utf8(name.collect()).map_err(|_| Errno::ILSEQ)
}

/// `TUNGETIFF`: the flags that `fd` was attached with (`IFF_TAP` and others).
pub(crate) fn tun_flags(fd: BorrowedFd<'_>) -> Result<c_int, Errno> {
    let request = tun_request(fd)?;
    // SAFETY: `TUNGETIFF` succeeded, so it has written the flags; any bits are a valid integer.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(c_int::from(flags as u16))
}

fn tun_request(fd: BorrowedFd<'_>) -> Result<libc::ifreq, Errno> {
    let mut request = interface_request();
    // SAFETY: `TUNGETIFF` writes one `ifreq`, which lives on our stack.
    let result = unsafe {
        libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), libc::TUNGETIFF as c_ulong, &raw mut request)
    };
    check(result).map(|_| request)
}

/// `SIOCATMARK`: true if the next byte of a stream is the one that its sender marked as urgent.
pub(crate) fn is_at_mark(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut is_at_mark: c_int = 0;
    // SAFETY: `SIOCATMARK` writes one integer, which lives on our stack.
    let result = unsafe {
        libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), SIOCATMARK as c_ulong, &raw mut is_at_mark)
    };
    check(result).map(|_| is_at_mark != 0)
}

/// `TUNSETVNETHDRSZ`: bytes of the virtio-net header in front of each frame.
pub(crate) fn tun_set_header_len(fd: BorrowedFd<'_>, bytes: c_int) -> Result<(), Errno> {
    tun_set_int(fd, libc::TUNSETVNETHDRSZ as c_ulong, bytes)
}

/// `TUNSETVNETLE`: makes the virtio-net header little-endian, whatever the host's byte order.
pub(crate) fn tun_set_little_endian(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    tun_set_int(fd, libc::TUNSETVNETLE as c_ulong, 1)
}

/// `TUNSETCARRIER`: whether the interface has a link.
pub(crate) fn tun_set_carrier(fd: BorrowedFd<'_>, is_up: bool) -> Result<(), Errno> {
    tun_set_int(fd, libc::TUNSETCARRIER as c_ulong, is_up.into())
}

/// `TUNSETOFFLOAD`: the offloads that the device's reader accepts, as `TUN_F_` bits.
pub(crate) fn tun_set_offload(fd: BorrowedFd<'_>, mask: c_uint) -> Result<(), Errno> {
    // SAFETY: the argument of `TUNSETOFFLOAD` is the value itself; no memory is passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            fd.as_raw_fd(),
            libc::TUNSETOFFLOAD as c_ulong,
            mask as c_ulong,
        )
    };
    check(result).map(drop)
}

/// `cachestat`: number of pages in memory, of `len` bytes of a file from `at` on. Fails with
/// `NOSYS` before Linux 6.5, and with `PERM` if the caller neither owns the file nor may write it.
pub(crate) fn cached_pages(file: BorrowedFd<'_>, at: u64, len: u64) -> Result<u64, Errno> {
    let range = [at, len];
    // Pages in memory, dirty, in writeback, evicted, recently evicted.
    let mut pages = [0_u64; 5];
    // SAFETY: the kernel reads `range` as a `struct cachestat_range` of two 64-bit words, and
    // writes `pages` as a `struct cachestat` of five. Both arrays have that size and are on our
    // stack.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            pages.as_mut_ptr(),
            0 as c_uint,
        )
    };
    check(result).map(|_| pages[0])
}

/// `epoll_pwait2`: `epoll_wait` with a timeout in nanoseconds; `None` waits without a limit. Fails
/// with `NOSYS` before Linux 5.11.
pub(crate) fn epoll_wait_exact(
    epoll: BorrowedFd<'_>,
    events: &mut [libc::epoll_event],
    timeout: Option<Duration>,
) -> Result<usize, Errno> {
    let limit = timeout.map(|timeout| KernelTimespec {
        seconds: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: i64::from(timeout.subsec_nanos()),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `events` is valid for writes of its length; `limit` is null or points to a value on
    // our stack that the kernel only reads; the signal mask is null.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as c_int,
            limit,
            std::ptr::null::<c_void>(),
            0usize,
        )
    };
    check(result)
}

/// `epoll_pwait` without a signal mask. The timeout is in milliseconds; -1 waits without a limit.
pub(crate) fn epoll_wait_milliseconds(
    epoll: BorrowedFd<'_>,
    events: &mut [libc::epoll_event],
    timeout: c_int,
) -> Result<usize, Errno> {
    // SAFETY: `events` is valid for writes of its length, and the signal mask is null.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as c_int,
            timeout,
            std::ptr::null::<c_void>(),
            0usize,
        )
    };
    check(result)
}

/// `poll` without waiting: sets `revents` to the state of each file.
pub(crate) fn poll_now(files: &mut [libc::pollfd]) -> Result<usize, Errno> {
    let zero = KernelTimespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: `files` is valid for reads and writes of its length; the limit is on our stack; the
    // signal mask is null.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            files.as_mut_ptr(),
            files.len(),
            &raw const zero,
            std::ptr::null::<c_void>(),
            0usize,
        )
    };
    check(result)
}

/// True if the page cache holds the whole range of a file (`cachestat`, Linux 6.5). False also if
/// the kernel does not report it.
pub(crate) fn is_in_memory(file: BorrowedFd<'_>, at: u64, count: usize) -> bool {
    /// The same number on every supported architecture.
    const SYS_CACHESTAT: c_long = 451;
    let range = [at, count as u64];
    // The first counter is the number of pages in memory.
    let mut counts = [0_u64; 5];
    // SAFETY: the kernel reads `range` as two 64-bit words and writes `counts` as five, which is
    // the size of these arrays. Both are on our stack.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            range.as_ptr(),
            counts.as_mut_ptr(),
            0 as c_uint,
        )
    };
    let page = rustix::param::page_size() as u64;
    let end = at.saturating_add(count as u64);
    let wanted = end.div_ceil(page) - at / page;
    check(result).is_ok() && counts[0] >= wanted
}

/// Gives the whole pages in `bytes` back to the system (`madvise`): they use no memory until they
/// are touched again. Afterwards they hold zeros if they are anonymous memory, or their old bytes
/// if the system keeps them, as it does with locked pages.
pub fn release_pages(bytes: &mut [u8]) {
    let page = rustix::param::page_size();
    let skip = bytes.as_ptr().align_offset(page).min(bytes.len());
    let bytes = &mut bytes[skip..];
    let len = bytes.len() / page * page;
    // SAFETY: the pages lie in `bytes`, which is borrowed exclusively; `MADV_DONTNEED` changes only
    // their content, and any content is valid bytes.
    unsafe { libc::syscall(libc::SYS_madvise, bytes.as_mut_ptr(), len, libc::MADV_DONTNEED) };
}

/// Requests that the kernel completes by itself and signals on an eventfd (io_submit(2)). Only for
/// requests that are completed or refused before the call returns. Valid in this process, not in
/// its forked children.
pub(crate) struct Asynchronous(c_ulong);

/// `struct iocb` of linux/aio_abi.h.
#[repr(C)]
#[derive(Default)]
struct AsynchronousRequest {
    data: u64,
    /// In the machine's byte order.
    key_and_flags: [u32; 2],
    operation: u16,
    priority: i16,
    file: c_int,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: c_int,
}

impl Asynchronous {
    /// Completed requests that the kernel keeps until they are collected.
    const DONE_MAX: usize = 64;
    const ATTEMPTS_MAX: usize = 1000;
    /// `IOCB_CMD_PREAD`, `IOCB_CMD_POLL` and `IOCB_FLAG_RESFD`.
    const READ: u16 = 0;
    const POLL: u16 = 5;
    const TELLS: u32 = 1;

    /// Room for the results of `DONE_MAX` requests (io_setup(2)).
    pub(crate) fn new() -> Result<Self, Errno> {
        let mut context: c_ulong = 0;
        // SAFETY: the kernel writes one number to `context`, which is zero as io_setup(2) requires.
        let made = unsafe {
            libc::syscall(libc::SYS_io_setup, Self::DONE_MAX as c_ulong, &raw mut context)
        };
        check(made).map(|_| Self(context))
    }

    /// Polls `file`, which must always be readable, and signals `event`.
    pub(crate) fn poll(&self, file: BorrowedFd<'_>, event: BorrowedFd<'_>) -> Result<(), Errno> {
        self.submit(Self::POLL, file, libc::POLLIN as u64, event)
    }

    /// Reads zero bytes from `file`, and signals `event`.
    pub(crate) fn read(&self, file: BorrowedFd<'_>, event: BorrowedFd<'_>) -> Result<(), Errno> {
        self.submit(Self::READ, file, 0, event)
    }

    /// Submits a request. If there is no room for its result, frees some and tries again. Other
    /// threads may take the room meanwhile, but one of them makes progress each time.
    fn submit(
        &self,
        operation: u16,
        file: BorrowedFd<'_>,
        buffer: u64,
        event: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        for _ in 0..Self::ATTEMPTS_MAX {
            match self.submit_once(operation, file, buffer, event) {
                Err(Errno::AGAIN) => self.forget_done(),
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// Submits a request once. The kernel uses no memory of the request after the call: a read
    /// transfers zero bytes, and a poll carries its mask in the address field.
    fn submit_once(
        &self,
        operation: u16,
        file: BorrowedFd<'_>,
        buffer: u64,
        event: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let mut request = AsynchronousRequest {
            operation,
            file: file.as_raw_fd(),
            buffer,
            flags: Self::TELLS,
            event: event.as_raw_fd(),
            ..AsynchronousRequest::default()
        };
        let mut list = [&raw mut request];
        let (count, list): (c_long, _) = (1, list.as_mut_ptr());
        // SAFETY: the list has one address: that of `request`, which is valid for reads and writes.
        // The kernel uses neither after the call.
        let submitted = unsafe { libc::syscall(libc::SYS_io_submit, self.0, count, list) };
        check(submitted).map(drop)
    }

    /// Collects completed requests, to make room for further results.
    fn forget_done(&self) {
        // `struct io_event` of linux/aio_abi.h: four 64-bit numbers.
        let mut done = [[0_u64; 4]; Self::DONE_MAX];
        let (least, most) = (0 as c_long, Self::DONE_MAX as c_long);
        let at_once = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: the kernel writes at most `most` results, for which `done` has room. The timeout
        // is null; because `least` is zero, the call does not wait.
        let _ = unsafe {
            libc::syscall(libc::SYS_io_getevents, self.0, least, most, done.as_mut_ptr(), at_once)
        };
    }
}

impl Drop for Asynchronous {
    fn drop(&mut self) {
        // SAFETY: the call has no memory arguments. The context is ours, and this is its last use.
        let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

fn tun_set_int(fd: BorrowedFd<'_>, request: c_ulong, value: c_int) -> Result<(), Errno> {
    // SAFETY: these requests read one `int`, which lives on our stack.
    let result =
        unsafe { libc::syscall(libc::SYS_ioctl, fd.as_raw_fd(), request, &raw const value) };
    check(result).map(drop)
}

/// `struct __kernel_timespec`: 64 bits on every architecture.
#[repr(C)]
struct KernelTimespec {
    seconds: i64,
    nanoseconds: i64,
}

fn interface_request() -> libc::ifreq {
    // SAFETY: `ifreq` is plain data, for which all zeros is a valid value.
    unsafe { std::mem::zeroed() }
}

fn empty_message() -> libc::msghdr {
    // SAFETY: `msghdr` is plain data, for which all zeros is a valid value.
    unsafe { std::mem::zeroed() }
}

fn check(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_pages_are_whole_and_zero() {
        let page = rustix::param::page_size();
        let mut bytes = vec![7; 64 * page];
        let (from, to) = (5, 63 * page + 9);
        release_pages(&mut bytes[from..to]);
        let first = from + bytes[from..].as_ptr().align_offset(page);
        let last = first + (to - first) / page * page;
        let zeros = bytes.iter().position(|&byte| byte == 0)..bytes.iter().rposition(|&b| b == 0);
        assert_eq!((zeros.start, zeros.end), (Some(first), Some(last - 1)));
        assert!(bytes[first..last].iter().all(|&byte| byte == 0));
        // Ranges shorter than a page, and empty ones, are left alone.
        let mut few = [7; 100];
        release_pages(&mut few);
        release_pages(&mut []);
        assert_eq!(few, [7; 100]);
    }
}
