//! System calls about processes for which rustix has no safe wrapper. Contains unsafe code.
//!
//! One safe function per call. All but [`generation`], those about sockets and those about calls of
//! other processes are for the time before the process has threads: a fork copies only the calling
//! thread, and signal masks and filters belong to threads.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::process::Pid;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};

/// The side of a fork on which the caller runs.
#[derive(Debug)]
pub enum Forked {
    /// The process that forked; it holds the child.
    Parent(Child),
    /// The new process.
    Child,
}

/// A forked process: its PID and its pidfd. Dropping it does not end the process.
#[derive(Debug)]
pub struct Child {
    /// Its PID in this process's PID namespace; valid until the process has been waited for.
    pub pid: Pid,
    /// The pidfd. Readable once the process has ended.
    pub pidfd: OwnedFd,
}

/// Forks, and creates the new namespaces that `namespaces` names (`CLONE_NEW*` bits, 0 for none).
///
/// # Errors
/// Those of clone(2), and `ResourceBusy` if the process has more than one thread: a child could
/// then wait indefinitely for a lock whose holder was not copied.
pub fn fork_into(namespaces: c_int) -> io::Result<Forked> {
    const ALLOWED: c_int =
        libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWPID;
    assert_eq!(namespaces & !ALLOWED, 0, "only namespace bits: memory must not be shared");
    if thread_count()? != 1 {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let flags = namespaces | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: c_int = -1;
    // Architectures differ in the order of the arguments after the stack. The two that differ are
    // unused and null.
    // SAFETY: without CLONE_VM this is a fork: the child runs on its own copy of the memory and the
    // stack (null: keep the current one). The process has one thread (checked above), so no lock is
    // held by a thread that the child lacks. CLONE_PIDFD writes one c_int to `pidfd`.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            libc::c_long::from(flags),
            std::ptr::null_mut::<u8>(),
            &raw mut pidfd,
            std::ptr::null_mut::<c_int>(),
            0 as libc::c_long,
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = i32::try_from(pid).expect("a PID has at most 22 bits");
    let Some(pid) = Pid::from_raw(pid) else { return Ok(Forked::Child) };
    assert!(pidfd >= 0, "the kernel stores a descriptor when clone succeeds");
    // SAFETY: clone succeeded with CLONE_PIDFD, so `pidfd` is a new descriptor without another
    // owner.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Forked::Parent(Child { pid, pidfd }))
}

/// Returns a number that differs between this process and each process that it was forked from,
/// independent of PID namespaces. Any thread may call it. Where the kernel wipes memory in the
/// child of a fork (Linux 4.14), only the first call makes system calls; elsewhere the number is
/// the PID.
pub fn generation() -> u64 {
    static MARK: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    /// Number of this process or, until it has asked for its own, of its nearest ancestor that has.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let Some(mark) = *MARK.get_or_init(wiped_by_forks) else {
        return rustix::process::getpid().as_raw_pid().unsigned_abs().into();
    };
    // Relaxed: only the number itself is used; no other memory is read because of it.
    match mark.load(Ordering::Relaxed) {
        0 => {
            // Relaxed: each number is handed out once, and the order does not matter.
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            // Relaxed: only the number itself is used. If several threads ask first, one of them
            // sets it.
            mark.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|known| known, |_| next)
        }
        known => known,
    }
}

/// A number that is zero now, and that becomes zero again in the child of each fork.
fn wiped_by_forks() -> Option<&'static AtomicU64> {
    let bytes = rustix::param::page_size();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: without an address and `MAP_FIXED`, the mapping replaces no other.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }.ok()?;
    // SAFETY: the page was just mapped and nothing refers to it. The wipe happens in the child's
    // address space, before the child runs.
    unsafe { madvise(page, bytes, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: the page is aligned, larger than the number, readable and writable, and is never
    // unmapped. All zeros is a valid value. The mapping is private, and this reference is the only
    // access to it.
    Some(unsafe { &*page.cast::<AtomicU64>() })
}

/// The descriptors that this process inherited at its start, except standard input, output and
/// error. Dropping it closes them. Until then, programs that this process executes inherit them.
#[derive(Debug, Default)]
pub struct Inherited(Vec<OwnedFd>);

impl Inherited {
    /// Takes ownership of the inherited descriptors. Only the first call gets any.
    ///
    /// Descriptors that this process opened itself have other owners and are left alone. They are
    /// recognised by the close-on-exec flag, which Rust's libraries set on every descriptor and
    /// which no inherited descriptor has.
    ///
    /// # Errors
    /// Those of reading /proc/self/fd.
    pub fn take() -> io::Result<Self> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        // Relaxed: the flag protects no other memory.
        if TAKEN.swap(true, Ordering::Relaxed) {
            return Ok(Self::default());
        }
        let names = std::fs::read_dir("/proc/self/fd")?;
        let number = |entry: io::Result<std::fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok()
        };
        let numbers: Vec<RawFd> = names.filter_map(number).filter(|number| *number > 2).collect();
        // SAFETY: fcntl has no memory arguments for this operation. The descriptor that the
        // directory was read with is closed by now, and fails here.
        let flags = |number: RawFd| unsafe { libc::fcntl(number, libc::F_GETFD) };
        let is_inherited =
            |number: &RawFd| flags(*number) >= 0 && flags(*number) & libc::FD_CLOEXEC == 0;
        // SAFETY: the descriptor is open and lacks the close-on-exec flag. So no code of this
        // process opened it and owns it: it was inherited, and `TAKEN` makes sure that it is taken
        // once.
        let own = |number| unsafe { OwnedFd::from_raw_fd(number) };
        Ok(Self(numbers.into_iter().filter(is_inherited).map(own).collect()))
    }

    /// Takes one descriptor out, or duplicates it if it is a standard stream.
    ///
    /// # Errors
    /// `EBADF` for a number that is not among the inherited ones; otherwise those of fcntl(2).
    pub fn take_or_copy(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        match number {
            0 => io::stdin().as_fd().try_clone_to_owned(),
            1 => io::stdout().as_fd().try_clone_to_owned(),
            2 => io::stderr().as_fd().try_clone_to_owned(),
            _ => self.take_one(number),
        }
    }

    /// Takes one descriptor out, such as the one that `--ready-fd` names. Programs executed later
    /// do not inherit it.
    ///
    /// # Errors
    /// `InvalidInput` for standard input, output and error, which have other owners; `EBADF` for a
    /// number that is not among the inherited ones; otherwise those of fcntl(2).
    pub fn take_one(&mut self, number: RawFd) -> io::Result<OwnedFd> {
        if number <= 2 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let index = self.0.iter().position(|fd| fd.as_raw_fd() == number);
        let index = index.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        let taken = self.0.swap_remove(index);
        rustix::io::fcntl_setfd(&taken, rustix::io::FdFlags::CLOEXEC)?;
        Ok(taken)
    }
}

/// Runs `work` in a forked child that keeps only the standard descriptors and `kept`, then exits.
/// Values that own the other descriptors are never used or dropped again.
pub(crate) fn end_with_only<const N: usize>(
    kept: [BorrowedFd<'_>; N],
    work: impl FnOnce() -> c_int,
) -> ! {
    let mut numbers = kept.map(|fd| fd.as_raw_fd());
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers.into_iter().filter(|number| *number >= 3) {
        close_range(first, number - 1);
        first = number + 1;
    }
    close_range(first, RawFd::MAX);
    std::process::exit(work())
}

/// Closes descriptors by number. Only for [`end_with_only`], after which no owner of one runs.
fn close_range(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: the call has no memory arguments. The owners of the closed descriptors are never used
    // or dropped again (contract of this function).
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result == 0 {
        return;
    }
    // Before Linux 5.9 there is no close_range(2).
    let names = std::fs::read_dir("/proc/self/fd");
    let names: Vec<_> = names.into_iter().flatten().flatten().collect();
    for number in names.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if (first..=last).contains(&number) {
            // SAFETY: close has no memory arguments. The owner of the descriptor is never used or
            // dropped again (contract of this function).
            unsafe { libc::close(number) };
        }
    }
}

/// Makes a system call with all arguments zero, for tests of the sandbox.
///
/// # Errors
/// Those of the call.
#[cfg(debug_assertions)]
pub(crate) fn call_with_nothing(number: libc::c_long) -> io::Result<()> {
    const NOTHING: libc::c_long = 0;
    // SAFETY: with null pointers and zero lengths the kernel touches no memory. Callers name only
    // calls that end, copy or replace no process with such arguments.
    let result =
        unsafe { libc::syscall(number, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Moves this process into new namespaces (`CLONE_NEW*` bits).
///
/// # Errors
/// Those of unshare(2), and EINVAL for a process with several threads.
pub(crate) fn unshare(namespaces: c_int) -> Result<(), Errno> {
    let flags = UnshareFlags::from_bits_retain(namespaces.cast_unsigned());
    assert!(!flags.contains(UnshareFlags::FILES), "only namespace bits");
    // SAFETY: the call is safe unless it unshares descriptors, which the assertion excludes.
    unsafe { unshare_unsafe(flags) }
}

/// Returns the user namespace that owns the namespace behind `namespace` (ioctl_ns(2)).
///
/// # Errors
/// EPERM if the owner is outside this process's user namespace.
pub fn owning_user_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `_IO(0xb7, 0x1)` of linux/nsfs.h.
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: the request takes no argument. It fails for a descriptor that is not a namespace.
    let owner = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) };
    if owner < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the ioctl returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(owner) })
}

/// Returns the `CLONE_NEW*` bit of the kind of the namespace behind `namespace` (ioctl_ns(2)).
///
/// # Errors
/// ENOTTY if it is not a namespace.
pub(crate) fn namespace_kind(namespace: BorrowedFd<'_>) -> Result<c_int, Errno> {
    /// `_IO(0xb7, 0x3)` of linux/nsfs.h.
    const NS_GET_NSTYPE: libc::c_ulong = 0xb703;
    /// Type of the kernel's file system of namespaces (linux/magic.h).
    const NSFS_MAGIC: u64 = 0x6e73_6673;
    // The request has another meaning for some devices.
    if rustix::fs::fstatfs(namespace)?.f_type as u64 != NSFS_MAGIC {
        return Err(Errno::NOTTY);
    }
    // SAFETY: the request takes no argument. The descriptor is that of a namespace.
    let kind = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_NSTYPE as _) };
    if kind < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(kind)
}

/// Makes the kernel filter the system calls of this thread and of all that it starts by `program`,
/// and returns the listener: the descriptor from which another process learns of calls that the
/// filter reports (`SECCOMP_RET_USER_NOTIF`). The thread must have set `no_new_privs`.
///
/// # Errors
/// Those of seccomp(2); EBUSY if a filter with a listener is in force already.
pub(crate) fn filter_calls(program: &[libc::sock_filter]) -> Result<OwnedFd, Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    // The filter is no sandbox for foreign code in this process, so speculation stays as it is;
    // Linux before 5.16 would restrict it, which slows programs down.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the kernel only reads the program, which is valid for `len` instructions, and copies
    // it. The filter changes which calls succeed; no call writes memory because of it.
    let listener = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    let listener = check(listener)?;
    // SAFETY: seccomp returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// Waits for a call that the filter behind `listener` reports.
///
/// # Errors
/// Those of ioctl(2); ENOENT if the calling thread has ended or was interrupted meanwhile.
pub(crate) fn receive_call(listener: BorrowedFd<'_>) -> Result<libc::seccomp_notif, Errno> {
    let mut call = MaybeUninit::<libc::seccomp_notif>::zeroed();
    let request = libc::SECCOMP_IOCTL_NOTIF_RECV;
    // SAFETY: the kernel writes one structure of the size that is part of the request's number. It
    // requires that the structure is zeroed, which it is.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), request as _, call.as_mut_ptr()) };
    check(result.into())?;
    // SAFETY: the structure has only integers, and it was zeroed.
    Ok(unsafe { call.assume_init() })
}

/// Returns true while the thread that made the reported call `id` waits for the answer.
pub(crate) fn is_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    let request = libc::SECCOMP_IOCTL_NOTIF_ID_VALID;
    // SAFETY: the kernel reads one u64.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), request as _, &raw const id) };
    result == 0
}

/// Answers a reported call.
///
/// # Errors
/// Those of ioctl(2); ENOENT if the thread does not wait for the answer any more.
pub(crate) fn answer_call(
    listener: BorrowedFd<'_>,
    mut answer: libc::seccomp_notif_resp,
) -> Result<(), Errno> {
    let request = libc::SECCOMP_IOCTL_NOTIF_SEND;
    // SAFETY: the kernel reads one structure of the size that is part of the request's number.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), request as _, &raw mut answer) };
    check(result.into()).map(drop)
}

/// Puts a copy of the descriptor `file` into the process that made the reported call `id`, in the
/// place of its descriptor `number`.
///
/// # Errors
/// Those of ioctl(2); ENOENT if the thread does not wait for the answer any more.
pub(crate) fn replace_descriptor(
    listener: BorrowedFd<'_>,
    id: u64,
    file: BorrowedFd<'_>,
    number: u32,
    closes_on_exec: bool,
) -> Result<(), Errno> {
    let place = libc::seccomp_notif_addfd {
        id,
        flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
        srcfd: file.as_raw_fd().cast_unsigned(),
        newfd: number,
        newfd_flags: if closes_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
    };
    let request = libc::SECCOMP_IOCTL_NOTIF_ADDFD;
    // SAFETY: the kernel reads one structure of the size that is part of the request's number. The
    // descriptor that is replaced is one of another process.
    let result = unsafe { libc::ioctl(listener.as_raw_fd(), request as _, &raw const place) };
    check(result.into()).map(drop)
}

/// Reads an option of a socket into `value`; returns its length.
///
/// # Errors
/// Those of getsockopt(2).
pub(crate) fn socket_option(
    socket: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &mut [u8],
) -> Result<usize, Errno> {
    // The kernel takes this length as a number of instructions, not of bytes.
    let is_filter = (level, name) == (libc::SOL_SOCKET, libc::SO_GET_FILTER);
    assert!(!is_filter || value.is_empty(), "the unit of its length is not a byte");
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: `value` is valid for writes of `len` bytes, and `len` for a write. The kernel takes
    // the length of every other option in bytes and writes no more.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len)
    };
    check(result.into())?;
    Ok(len as usize)
}

/// `SO_ATTACH_REUSEPORT_CBPF`: has a program choose the socket of each datagram, by its index in
/// the group of sockets that this one shares its address with.
pub(crate) fn attach_reuseport_program(
    fd: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> Result<(), Errno> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::INVAL)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads one `sock_fprog`, which lives on our stack, and the `len`
    // instructions that it points to, which are borrowed for the call. It writes neither.
    let result = unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            &raw const program,
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    check(result).map(drop)
}

/// Returns the result of a system call, or the error of this thread's last one.
fn check(result: libc::c_long) -> Result<c_int, Errno> {
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(result as c_int)
}

/// A set of signals, for example the mask of a thread.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// The set of the given signals.
    ///
    /// # Panics
    /// If a number is not a valid signal.
    pub fn of(signals: &[c_int]) -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset writes a whole sigset_t, for which the pointer is valid.
        let emptied = unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        assert_eq!(emptied, 0, "sigemptyset fails for null only");
        // SAFETY: sigemptyset has initialised the set.
        let mut set = unsafe { set.assume_init() };
        for &signal in signals {
            // SAFETY: `set` is initialised and valid; the call rejects an invalid number.
            let added = unsafe { libc::sigaddset(&raw mut set, signal) };
            assert_eq!(added, 0, "{signal} is not a valid signal");
        }
        Self(set)
    }

    /// Adds this set to the signals that the calling thread blocks; returns the previous mask.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3).
    pub fn block(&self) -> io::Result<SignalSet> {
        self.apply(libc::SIG_BLOCK)
    }

    /// Makes this set the signal mask of the calling thread.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3).
    pub fn restore(&self) -> io::Result<()> {
        self.apply(libc::SIG_SETMASK).map(drop)
    }

    /// True if the signal is in the set.
    pub fn has(&self, signal: c_int) -> bool {
        // SAFETY: the set is initialised; the call rejects an invalid number.
        unsafe { libc::sigismember(&self.0, signal) == 1 }
    }

    /// Removes one pending signal of this set, if there is one.
    pub fn take_pending(&self) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the limit are read through valid pointers. The null pointer requests
        // no output.
        unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &zero) };
    }

    /// A descriptor from which the blocked and pending signals of this set can be read: one
    /// `signalfd_siginfo` per read.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set is read through a valid pointer; -1 requests a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd returned a new descriptor without another owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn apply(&self, how: c_int) -> io::Result<SignalSet> {
        let mut before = SignalSet::of(&[]);
        // SAFETY: both sets are initialised, valid and distinct.
        let error = unsafe { libc::pthread_sigmask(how, &self.0, &raw mut before.0) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        Ok(before)
    }
}

impl std::fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignalSet")
    }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

fn thread_count() -> io::Result<usize> {
    match std::fs::read_dir("/proc/self/task") {
        Ok(tasks) => Ok(tasks.count()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(io::Error::new(io::ErrorKind::NotFound, "/proc is not mounted"))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a descriptor that has an owner in this process is not taken from it; an inherited one
    /// is taken, once. Method: a child process, because other tests open descriptors meanwhile.
    #[test]
    fn only_what_was_inherited_is_taken_over() {
        use std::os::fd::IntoRawFd;
        let own = std::fs::File::open("/dev/null").unwrap();
        let code = in_a_child(|| {
            // As an inherited one looks after execve(2).
            let inherited = rustix::io::fcntl_dupfd_cloexec(&own, 900).unwrap();
            rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
            let number = inherited.into_raw_fd();
            let mut taken = Inherited::take().unwrap();
            let refuses = |taken: &mut Inherited, number| taken.take_one(number).is_err();
            let is_right = refuses(&mut taken, own.as_raw_fd())
                && refuses(&mut taken, 2)
                && taken.take_one(number).is_ok()
                && refuses(&mut taken, number)
                && Inherited::take().unwrap().0.is_empty();
            i32::from(is_right && own.metadata().is_ok())
        });
        assert_eq!(code, 1);
    }

    /// Goal: each process has a number of its own, even if its parent never asked for one. Method:
    /// the exit code of the child, whose number is one more than that of its nearest ancestor that
    /// asked.
    #[test]
    fn generations_of_processes() {
        let own = generation();
        assert_eq!(own, generation());
        assert_eq!(own, std::thread::spawn(generation).join().unwrap());
        let child = in_a_child(|| i32::from(generation() == own + 1 && generation() == own + 1));
        assert_eq!(child, 1);
        let grandchild = || in_a_child(|| i32::from(generation() == own + 1));
        assert_eq!(in_a_child(grandchild), 1);
        let after_asking = || {
            let parent = generation();
            in_a_child(|| i32::from(parent == own + 1 && generation() == own + 2))
        };
        assert_eq!(in_a_child(after_asking), 1);
        assert_eq!(own, generation());
    }

    /// Runs `work` in the child of a fork, and returns its result.
    fn in_a_child(work: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child waits for no lock that another thread holds, and then exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = work();
            // SAFETY: it ends only the child, without running destructors of the parent's state.
            unsafe { libc::_exit(code) };
        }
        let child = Pid::from_raw(child).expect("fork returns the child's PID");
        let status = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        status.unwrap().and_then(|(_, status)| status.exit_status()).unwrap()
    }
}
