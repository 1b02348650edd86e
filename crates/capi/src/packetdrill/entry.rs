//! The functions that packetdrill calls, and the table that contains them.
//!
//! The table has the layout of `struct packetdrill_interface` in packetdrill's `packetdrill.h`. Its
//! calls have the same arguments as the functions of `abi`, with the driver in place of the
//! instance. Descriptors that do not belong to the instance belong to the kernel: scripts open
//! files.
//!
//! `getsockopt` and `sendfile` are exported, too: packetdrill reads `TCP_INFO` for its code blocks
//! and sends files with the C library's functions and not through the table. With this library in
//! `LD_PRELOAD` it gets these.
#![allow(unsafe_code)]

use super::driver::{Driver, refuse};
use crate::abi::{self, give_done, give_int};
use crate::errno::Errno;
use crate::instance::Instance;
use crate::memory::pointers;
use libc::{
    c_char, c_int, c_longlong, c_uint, c_ulong, c_void, epoll_event, iovec, loff_t, msghdr, nfds_t,
    off_t, pollfd, size_t, sockaddr, socklen_t, timeval, useconds_t,
};
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The driver in use, for `getsockopt` and other calls that get no driver.
static CURRENT: Mutex<Option<Arc<Driver>>> = Mutex::new(None);

/// The pointer that packetdrill passes with each call: an `Arc<Driver>`.
type Userdata = *const Driver;

macro_rules! table {
    ($($name:ident: ($($argument:ident: $kind:ty),*) -> $result:ty;)+) => {
        /// `struct packetdrill_interface`.
        #[repr(C)]
        pub(crate) struct Table {
            userdata: Userdata,
            free: unsafe extern "C" fn(Userdata),
            $($name: unsafe extern "C" fn(Userdata, $($argument: $kind),*) -> $result,)+
        }

        impl Table {
            fn new(userdata: Userdata) -> Self {
                Self { userdata, free, $($name),+ }
            }
        }
    };
}

table! {
    socket: (domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind: (fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen: (fd: c_int, backlog: c_int) -> c_int;
    accept: (fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    connect: (fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    read: (fd: c_int, buffer: *mut c_void, len: size_t) -> isize;
    readv: (fd: c_int, pieces: *const iovec, count: c_int) -> isize;
    recv: (fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> isize;
    recvfrom: (fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr,
        address_len: *mut socklen_t) -> isize;
    recvmsg: (fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    write: (fd: c_int, buffer: *const c_void, len: size_t) -> isize;
    writev: (fd: c_int, pieces: *const iovec, count: c_int) -> isize;
    send: (fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> isize;
    sendto: (fd: c_int, buffer: *const c_void, len: size_t, flags: c_int,
        address: *const sockaddr, address_len: socklen_t) -> isize;
    sendmsg: (fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    fcntl: (fd: c_int, command: c_int, argument: c_int) -> c_int;
    ioctl: (fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int;
    close: (fd: c_int) -> c_int;
    shutdown: (fd: c_int, how: c_int) -> c_int;
    getsockopt: (fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t)
        -> c_int;
    setsockopt: (fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t)
        -> c_int;
    poll: (entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    netdev_send: (bytes: *const c_void, len: size_t) -> c_int;
    netdev_receive: (bytes: *mut c_void, len: *mut size_t, time: *mut c_longlong) -> c_int;
    usleep: (micros: useconds_t) -> c_int;
    gettimeofday: (time: *mut timeval, zone: *mut c_void) -> c_int;
    epoll_create: (size: c_int) -> c_int;
    epoll_ctl: (set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait: (set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
    pipe: (ends: *mut c_int) -> c_int;
    splice: (from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, len: size_t,
        flags: c_uint) -> isize;
}

/// Fills in packetdrill's table.
///
/// `flags` is null or a string, and `table` names room for the table.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn packetdrill_interface_init(
    flags: *const c_char,
    table: *mut Table,
) {
    let flags = if flags.is_null() {
        c""
    } else {
        // SAFETY: packetdrill passes a string.
        unsafe { CStr::from_ptr(flags) }
    };
    let driver = match Driver::new(&flags.to_string_lossy()) {
        Ok(driver) => Arc::new(driver),
        Err(problem) => refuse(&problem),
    };
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(driver.clone());
    // SAFETY: packetdrill passes room for the table.
    unsafe { table.write(Table::new(Arc::into_raw(driver))) };
}

/// Releases the driver without dropping it: packetdrill itself has closed the descriptors that the
/// script left open, and their numbers no longer belong to this library.
unsafe extern "C" fn free(_: Userdata) {
    *CURRENT.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The driver behind packetdrill's pointer.
///
/// # Safety
/// It came from `packetdrill_interface_init` and was not freed.
unsafe fn driver<'a>(userdata: Userdata) -> &'a Driver {
    // SAFETY: the caller vouches for it.
    unsafe { &*userdata }
}

/// Calls on one descriptor: ours with the function of `abi`, others with the kernel's.
macro_rules! forwarded {
    ($($name:ident = $ours:ident($fd:ident: c_int $(, $argument:ident: $kind:ty)*) -> $result:ty
        , $theirs:path;)+) => { $(
        unsafe extern "C" fn $name(userdata: Userdata, $fd: c_int $(, $argument: $kind)*)
            -> $result {
            // SAFETY: packetdrill passes the pointer of its table.
            let driver = unsafe { driver(userdata) };
            if !driver.instance.has($fd) {
                // SAFETY: the arguments are those of the kernel's call.
                return unsafe { $theirs($fd $(, $argument)*) };
            }
            driver.call(|instance: &Instance| {
                // SAFETY: the arguments are those of the call with this name, and the instance
                // lives.
                unsafe { abi::$ours(instance, $fd $(, $argument)*) }
            })
        }
    )+ };
}

forwarded! {
    bind = towpath_bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int, libc::bind;
    listen = towpath_listen(fd: c_int, backlog: c_int) -> c_int, libc::listen;
    accept = towpath_accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int,
        libc::accept;
    connect = towpath_connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int,
        libc::connect;
    read = towpath_read(fd: c_int, buffer: *mut c_void, len: size_t) -> isize, libc::read;
    readv = towpath_readv(fd: c_int, pieces: *const iovec, count: c_int) -> isize, libc::readv;
    recv = towpath_recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> isize,
        libc::recv;
    recvfrom = towpath_recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int,
        address: *mut sockaddr, address_len: *mut socklen_t) -> isize, libc::recvfrom;
    recvmsg = towpath_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize,
        libc::recvmsg;
    write = towpath_write(fd: c_int, buffer: *const c_void, len: size_t) -> isize, libc::write;
    writev = towpath_writev(fd: c_int, pieces: *const iovec, count: c_int) -> isize, libc::writev;
    send = towpath_send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> isize,
        libc::send;
    sendto = towpath_sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int,
        address: *const sockaddr, address_len: socklen_t) -> isize, libc::sendto;
    sendmsg = towpath_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize,
        libc::sendmsg;
    fcntl = towpath_fcntl(fd: c_int, command: c_int, argument: c_int) -> c_int, libc::fcntl;
    ioctl = towpath_ioctl(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int,
        libc::ioctl;
    close = towpath_close(fd: c_int) -> c_int, libc::close;
    shutdown = towpath_shutdown(fd: c_int, how: c_int) -> c_int, libc::shutdown;
    setsockopt = towpath_setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void,
        len: socklen_t) -> c_int, libc::setsockopt;
    getsockopt = towpath_getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void,
        len: *mut socklen_t) -> c_int, kernel_getsockopt;
}

unsafe extern "C" fn socket(
    userdata: Userdata,
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: packetdrill passes the pointer of its table.
    let driver = unsafe { driver(userdata) };
    driver.call(|instance| give_int(instance.socket(domain, kind, protocol)))
}

/// Calls whose descriptors all belong to the instance.
macro_rules! ours {
    ($($name:ident = $ours:ident($($argument:ident: $kind:ty),*);)+) => { $(
        unsafe extern "C" fn $name(userdata: Userdata $(, $argument: $kind)*) -> c_int {
            // SAFETY: packetdrill passes the pointer of its table.
            let driver = unsafe { driver(userdata) };
            driver.call(|instance: &Instance| {
                // SAFETY: the arguments are those of the call with this name.
                unsafe { abi::$ours(instance $(, $argument)*) }
            })
        }
    )+ };
}

ours! {
    poll = towpath_poll(entries: *mut pollfd, count: nfds_t, timeout: c_int);
    epoll_ctl = towpath_epoll_ctl(set: c_int, operation: c_int, fd: c_int,
        event: *mut epoll_event);
    epoll_wait = towpath_epoll_wait(set: c_int, events: *mut epoll_event, max: c_int,
        timeout: c_int);
}

/// Functions for code that does not use the table.
mod preloaded {
    use super::{
        Arc, CURRENT, Driver, PoisonError, abi, c_int, c_void, kernel_getsockopt, kernel_sendfile,
        off_t, size_t, socklen_t,
    };

    fn owner(fd: c_int) -> Option<Arc<Driver>> {
        let current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner).clone();
        current.filter(|driver| driver.instance.has(fd))
    }

    /// `sendfile(2)`, to descriptors of the instance and of the kernel.
    ///
    /// # Safety
    /// The requirements of the C library's function.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn sendfile(
        to: c_int,
        from: c_int,
        offset: *mut off_t,
        count: size_t,
    ) -> isize {
        match owner(to) {
            Some(driver) => driver.call(|instance| {
                // SAFETY: the arguments are those of `sendfile`.
                unsafe { abi::towpath_sendfile(instance, to, from, offset, count) }
            }),
            // SAFETY: the arguments are those of the kernel's call.
            None => unsafe { kernel_sendfile(to, from, offset, count) },
        }
    }

    /// `sendfile64`, which is `sendfile`: both have 64-bit offsets.
    ///
    /// # Safety
    /// The requirements of the C library's function.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn sendfile64(
        to: c_int,
        from: c_int,
        offset: *mut off_t,
        count: size_t,
    ) -> isize {
        // SAFETY: `sendfile` has the same requirements.
        unsafe { sendfile(to, from, offset, count) }
    }

    /// `mlockall(2)`, which does nothing. packetdrill locks its memory for the sake of its timing.
    /// Time here is virtual, and an ordinary user may lock too little memory for a thread to start.
    #[unsafe(no_mangle)]
    pub(super) extern "C" fn mlockall(_: c_int) -> c_int {
        0
    }

    /// `getsockopt(2)`, of descriptors of the instance and of the kernel.
    ///
    /// # Safety
    /// The requirements of the C library's function.
    #[unsafe(no_mangle)]
    pub(super) unsafe extern "C" fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int {
        match owner(fd) {
            Some(driver) => driver.call(|instance| {
                // SAFETY: the arguments are those of `getsockopt`.
                unsafe { abi::towpath_getsockopt(instance, fd, level, name, value, len) }
            }),
            // SAFETY: the arguments are those of the kernel's call.
            None => unsafe { kernel_getsockopt(fd, level, name, value, len) },
        }
    }
}

/// The system call `sendfile`. The C library's function of that name is replaced here.
///
/// # Safety
/// The requirements of the C library's `sendfile`.
unsafe fn kernel_sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> isize {
    // SAFETY: the arguments are those of the kernel's call.
    unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) as isize }
}

/// The system call `getsockopt`. The C library's function of that name is replaced here.
///
/// # Safety
/// The requirements of the C library's `getsockopt`.
unsafe fn kernel_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the arguments are those of the kernel's call.
    unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int }
}

unsafe extern "C" fn netdev_send(userdata: Userdata, bytes: *const c_void, len: size_t) -> c_int {
    // SAFETY: packetdrill passes the pointer of its table.
    let driver = unsafe { driver(userdata) };
    // SAFETY: packetdrill passes a packet.
    let sent = unsafe { pointers::bytes(bytes, len) }
        .and_then(|bytes| if driver.send(bytes) { Ok(()) } else { Err(Errno(libc::ENOBUFS)) });
    give_done(sent)
}

unsafe extern "C" fn netdev_receive(
    userdata: Userdata,
    bytes: *mut c_void,
    len: *mut size_t,
    time: *mut c_longlong,
) -> c_int {
    // SAFETY: packetdrill passes the pointer of its table.
    let driver = unsafe { driver(userdata) };
    // SAFETY: packetdrill passes a pointer to the size of its room.
    let len = unsafe { &mut *len };
    let Some((at, packet)) = driver.receive() else {
        eprintln!("towpath: no more packets will leave");
        *len = 0;
        return 0;
    };
    // SAFETY: packetdrill passes a buffer of this size.
    let Ok(room) = (unsafe { pointers::bytes_mut(bytes, *len) }) else { return -1 };
    let count = packet.len().min(room.len());
    room[..count].copy_from_slice(&packet[..count]);
    *len = count;
    // SAFETY: packetdrill passes room for the time.
    unsafe { *time = at as c_longlong };
    0
}

unsafe extern "C" fn usleep(userdata: Userdata, micros: useconds_t) -> c_int {
    // SAFETY: packetdrill passes the pointer of its table.
    let driver = unsafe { driver(userdata) };
    driver.sleep(Duration::from_micros(u64::from(micros)));
    0
}

unsafe extern "C" fn gettimeofday(
    userdata: Userdata,
    time: *mut timeval,
    _zone: *mut c_void,
) -> c_int {
    // SAFETY: packetdrill passes the pointer of its table.
    let driver = unsafe { driver(userdata) };
    let micros = driver.time();
    let now = timeval {
        tv_sec: (micros / 1_000_000) as libc::time_t,
        tv_usec: (micros % 1_000_000) as libc::suseconds_t,
    };
    // SAFETY: packetdrill passes room for the time.
    unsafe { *time = now };
    0
}

unsafe extern "C" fn epoll_create(userdata: Userdata, size: c_int) -> c_int {
    // SAFETY: packetdrill passes the pointer of its table.
    let driver = unsafe { driver(userdata) };
    driver.call(|instance| {
        give_int(if size > 0 { instance.epoll_create() } else { Err(Errno::INVAL) })
    })
}

unsafe extern "C" fn pipe(_: Userdata, ends: *mut c_int) -> c_int {
    // SAFETY: packetdrill passes room for two descriptors.
    unsafe { libc::pipe(ends) }
}

unsafe extern "C" fn splice(
    userdata: Userdata,
    from: c_int,
    _from_offset: *mut loff_t,
    to: c_int,
    _to_offset: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> isize {
    // SAFETY: packetdrill passes the pointer of its table.
    let driver = unsafe { driver(userdata) };
    let null = std::ptr::null_mut();
    driver.call(|instance| {
        // The offsets point to the script's values, which are always null.
        // SAFETY: the other arguments are those of `splice`.
        unsafe { abi::towpath_splice(instance, from, null, to, null, len, flags) }
    })
}
