//! System calls about processes for which rustix has no safe form. Unsafe zone.
//!
//! One safe function per call. All but [`generation`] is meant for the time before threads exist:
//! a fork copies only the calling thread, and signal masks belong to threads.
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

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Forked {
    /// The process that forked; it holds the child.
    Parent(Child),
    /// The new process.
    Child,
}

/// A forked process, by number and by descriptor. Dropping it does not end the process.
#[derive(Debug)]
pub struct Child {
    /// Its number in this process's PID namespace; valid until it is waited for.
    pub pid: Pid,
    /// Readable once it has ended.
    pub pidfd: OwnedFd,
}

/// Forks into the new namespaces that `namespaces` asks for (`CLONE_NEW*` bits, 0 for none).
///
/// # Errors
/// Those of clone(2), and `ResourceBusy` when the process has more than one thread: the child of
/// a threaded process could wait for ever on a lock whose holder was not copied.
pub fn fork_into(namespaces: c_int) -> io::Result<Forked> {
    const ALLOWED: c_int =
        libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWPID;
    assert_eq!(namespaces & !ALLOWED, 0, "only namespace bits: memory must not be shared");
    if thread_count()? != 1 {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let flags = namespaces | libc::CLONE_PIDFD | libc::SIGCHLD;
    let mut pidfd: c_int = -1;
    // Order of the arguments after the stack differs between architectures; the two that differ
    // are unused and null.
    // SAFETY: without CLONE_VM this is a fork: the child runs on its own copy of memory and stack
    // (null: keep the current one). The process has one thread (checked above), so no lock is
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
    let pid = i32::try_from(pid).expect("process numbers have 22 bits");
    let Some(pid) = Pid::from_raw(pid) else { return Ok(Forked::Child) };
    assert!(pidfd >= 0, "the kernel stores a descriptor when clone succeeds");
    // SAFETY: clone succeeded with CLONE_PIDFD, so `pidfd` is a new descriptor that nobody else
    // owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Forked::Parent(Child { pid, pidfd }))
}

/// Tells this process from those that it was forked from: another number in each of them, whatever
/// their numbers in namespaces of processes. Any thread. No system call but for the first time,
/// where the kernel wipes memory in the child of a fork (Linux 4.14).
pub fn generation() -> u64 {
    static MARK: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
    /// What was the number of this process, or of the last one before it that has asked.
    static LAST: AtomicU64 = AtomicU64::new(0);
    let Some(mark) = *MARK.get_or_init(wiped_by_forks) else {
        return rustix::process::getpid().as_raw_pid().unsigned_abs().into();
    };
    // Relaxed: the number is all that is known by it, and nothing else is read for it.
    match mark.load(Ordering::Relaxed) {
        0 => {
            // Relaxed: each is given out once, in whatever order.
            let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            // Relaxed: as above. Of several threads that ask first, one decides.
            mark.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|known| known, |_| next)
        }
        known => known,
    }
}

/// A number that is zero now, and again in the child of each fork.
fn wiped_by_forks() -> Option<&'static AtomicU64> {
    let bytes = rustix::param::page_size();
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: without an address and MAP_FIXED it replaces no other mapping.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }.ok()?;
    // SAFETY: the page was just made and nobody else knows it. It is wiped in another address
    // space, before that runs.
    unsafe { madvise(page, bytes, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: the page is aligned, larger than the number, readable and writable, and is never
    // unmapped. Zeros are a number. It is private, and this reference is the only way to it.
    Some(unsafe { &*page.cast::<AtomicU64>() })
}

/// The descriptors that this process was started with, but for standard input, output and error.
/// Dropping it closes them. Programs that are executed meanwhile inherit them.
#[derive(Debug, Default)]
pub struct Inherited(Vec<OwnedFd>);

impl Inherited {
    /// Takes them over. Of several calls only the first gets any.
    ///
    /// Descriptors that this process has opened itself have other owners and are left alone: they
    /// are closed at execve(2), as Rust's libraries open all of theirs, and what came through it is
    /// not.
    ///
    /// # Errors
    /// Those of reading /proc/self/fd.
    pub fn take() -> io::Result<Self> {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        // Relaxed: nothing is read that the note stands for.
        if TAKEN.swap(true, Ordering::Relaxed) {
            return Ok(Self::default());
        }
        let names = std::fs::read_dir("/proc/self/fd")?;
        let number = |entry: io::Result<std::fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok()
        };
        let numbers: Vec<RawFd> = names.filter_map(number).filter(|number| *number > 2).collect();
        // SAFETY: fcntl has no memory arguments for this operation. What reading the folder took is
        // closed by now, and not open.
        let flags = |number: RawFd| unsafe { libc::fcntl(number, libc::F_GETFD) };
        let is_inherited =
            |number: &RawFd| flags(*number) >= 0 && flags(*number) & libc::FD_CLOEXEC == 0;
        // SAFETY: it is open and not closed at execve(2). So nobody in this process has opened it
        // and owns it: it was inherited, and is taken once, see `TAKEN`.
        let own = |number| unsafe { OwnedFd::from_raw_fd(number) };
        Ok(Self(numbers.into_iter().filter(is_inherited).map(own).collect()))
    }

    /// Takes one out, such as the one that `--ready-fd` names; a program executed later does not
    /// inherit it.
    ///
    /// # Errors
    /// `InvalidInput` for standard input, output and error, which have other owners; `NotFound` for
    /// a number that was not open; otherwise those of fcntl(2).
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

/// Does `work` in a forked child with no descriptors but `kept` and standard ones, and ends it.
/// Whoever owned others there never runs again.
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

/// Closes descriptors by number; for [`end_with_only`] alone, after which no owner runs.
fn close_range(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: the call has no memory arguments. Owners of what is closed never run again.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result == 0 {
        return;
    }
    // Before Linux 5.9.
    let names = std::fs::read_dir("/proc/self/fd");
    let names: Vec<_> = names.into_iter().flatten().flatten().collect();
    for number in names.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if (first..=last).contains(&number) {
            // SAFETY: close has no memory arguments; as above.
            unsafe { libc::close(number) };
        }
    }
}

/// Makes a system call whose arguments are all zero: for tests of what is refused.
///
/// # Errors
/// Those of the call.
#[cfg(debug_assertions)]
pub(crate) fn call_with_nothing(number: libc::c_long) -> io::Result<()> {
    const NOTHING: libc::c_long = 0;
    // SAFETY: null pointers and lengths of zero let the kernel touch no memory. Callers name calls
    // that end, copy or replace no process with such arguments.
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
    // SAFETY: descriptors are not unshared, see the assertion.
    unsafe { unshare_unsafe(flags) }
}

/// The user namespace that owns the namespace behind `namespace` (ioctl_ns(2)).
///
/// # Errors
/// EPERM when the owner lies outside of this process's user namespace.
pub fn owning_user_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `_IO(0xb7, 0x1)` of linux/nsfs.h.
    const NS_GET_USERNS: libc::c_ulong = 0xb701;
    // SAFETY: the request takes no argument; on descriptors that are not namespaces it fails.
    let owner = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS as _) };
    if owner < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the ioctl returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(owner) })
}

/// Asks for the kernel's explanations of refused netlink requests (`NETLINK_EXT_ACK`).
///
/// # Errors
/// Those of setsockopt(2); ENOPROTOOPT before Linux 4.12.
pub(crate) fn netlink_ext_ack(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: the option's value is read from `on`, whose size is given.
    let error = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_EXT_ACK,
            (&raw const on).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if error != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A set of signals, or the mask of a thread.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// The set of these signals.
    ///
    /// # Panics
    /// If a number is not a signal's.
    pub fn of(signals: &[c_int]) -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset writes a whole sigset_t to the pointer, which is valid for that.
        let emptied = unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        assert_eq!(emptied, 0, "sigemptyset fails for null only");
        // SAFETY: sigemptyset has initialised it.
        let mut set = unsafe { set.assume_init() };
        for &signal in signals {
            // SAFETY: `set` is a valid initialised set; a wrong number is refused.
            let added = unsafe { libc::sigaddset(&raw mut set, signal) };
            assert_eq!(added, 0, "{signal} is no signal");
        }
        Self(set)
    }

    /// Adds this set to those that the calling thread blocks; returns the mask before.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3).
    pub fn block(&self) -> io::Result<SignalSet> {
        self.apply(libc::SIG_BLOCK)
    }

    /// Makes this set the mask of the calling thread.
    ///
    /// # Errors
    /// Those of pthread_sigmask(3).
    pub fn restore(&self) -> io::Result<()> {
        self.apply(libc::SIG_SETMASK).map(drop)
    }

    /// True if a signal is in the set.
    pub fn has(&self, signal: c_int) -> bool {
        // SAFETY: the set is initialised; a wrong number is refused.
        unsafe { libc::sigismember(&self.0, signal) == 1 }
    }

    /// Takes a signal of this set that is pending, if there is one.
    pub fn take_pending(&self) {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: set and limit are read through valid pointers; nothing is to be written.
        unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &zero) };
    }

    /// A descriptor that yields the signals of this set that are blocked and pending: one
    /// `signalfd_siginfo` per read.
    ///
    /// # Errors
    /// Those of signalfd(2).
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: the set is read through a valid pointer; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd returned a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn apply(&self, how: c_int) -> io::Result<SignalSet> {
        let mut before = SignalSet::of(&[]);
        // SAFETY: both sets are valid and initialised, and distinct.
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

    /// Goal: a descriptor that has an owner in this process is not taken from it; one that was
    /// inherited is, once. Method: a child, as other tests open descriptors meanwhile.
    #[test]
    fn only_what_was_inherited_is_taken_over() {
        use std::os::fd::IntoRawFd;
        let own = std::fs::File::open("/dev/null").unwrap();
        let code = in_a_child(|| {
            // As after execve(2).
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

    /// Goal: each process has a number of its own, also where its parent never asked. Method: the
    /// exit code of the child, whose number is one more than that of the last who has asked.
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

    /// Calls `work` in the child of a fork, and returns what it does.
    fn in_a_child(work: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child does nothing that may wait for a lock of another thread, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = work();
            // SAFETY: it ends the child, and nothing of the parent's is torn down.
            unsafe { libc::_exit(code) };
        }
        let child = Pid::from_raw(child).expect("the parent is told of its child");
        let status = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        status.unwrap().and_then(|(_, status)| status.exit_status()).unwrap()
    }
}
