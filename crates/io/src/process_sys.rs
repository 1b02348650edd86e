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

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::process::Pid;
use towpath_packet::sync::{AtomicU64, Ordering};

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

/// Takes over a descriptor that this process was started with, such as the one that
/// `--ready-fd` names; a program executed later does not inherit it. Once: it has another number
/// afterwards.
///
/// A descriptor of somebody else in this process is refused, known by what no descriptor has that
/// came through execve(2): it is closed there. Rust's libraries open all of theirs so.
///
/// # Errors
/// `InvalidInput` for standard input, output and error, which have other owners, and for those that
/// this process has opened; otherwise those of fcntl(2), above all EBADF for a number that is not
/// open.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: fcntl has no memory arguments for this operation; a number that is not open is
    // refused with EBADF.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    if flags & libc::FD_CLOEXEC != 0 {
        let text = "this process has opened it, and did not inherit it";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    // SAFETY: as above, for this operation.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fcntl returned a new descriptor that nobody else owns.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    // SAFETY: close has no memory arguments; `number` is open (it has just been duplicated), above
    // 2 and not closed at execve(2). So nobody in this process has opened it and owns it: it was
    // inherited, and who started the process hands it over by naming it.
    let closed = unsafe { libc::close(number) };
    debug_assert_eq!(closed, 0, "an open descriptor can be closed");
    Ok(copy)
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
    /// inherited is, once.
    #[test]
    fn only_what_was_inherited_is_taken_over() {
        use std::os::fd::IntoRawFd;
        let own = std::fs::File::open("/dev/null").unwrap();
        let refused = take_inherited(own.as_raw_fd()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        own.metadata().expect("it is open");
        assert_eq!(take_inherited(2).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // As after execve(2), high enough that no other test gets the number meanwhile.
        let inherited = rustix::io::fcntl_dupfd_cloexec(&own, 900).unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        let number = inherited.into_raw_fd();
        let taken = take_inherited(number).unwrap();
        assert!(taken.as_raw_fd() != number);
        let again = take_inherited(number).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::EBADF));
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
