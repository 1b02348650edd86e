//! The system calls that a serving process may make. The kernel kills the process at any other
//! call.
//!
//! docs/threat-model.md lists each call with its reason, and a test compares the two lists. Where
//! an argument decides what a call can do, the filter checks it: the type and options of sockets,
//! the operations on descriptors and devices, and that no memory becomes executable. Calls that
//! take paths, create processes or threads, execute, trace, mount, or signal others are missing.

use std::collections::BTreeMap;
use std::fmt;

use libc::c_long;
use seccompiler::SeccompCmpOp::{Eq, MaskedEq};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

use super::Mode;

/// A condition on an argument of a system call.
#[derive(Clone, Copy)]
enum Argument {
    /// It has this value.
    Is(u8, u32),
    /// It is null.
    Null(u8),
    /// It has none of these bits.
    Lacks(u8, u32),
    /// It is this socket type, with any flags.
    Kind(u8, u32),
    /// It is the PID of this process.
    Own(u8),
}
use Argument::{Is, Kind, Lacks, Null, Own};

/// A system call. It is allowed without rules, or if its arguments match all conditions of one
/// rule.
struct Call {
    #[cfg_attr(not(test), expect(dead_code, reason = "the documentation is compared with it"))]
    name: &'static str,
    number: c_long,
    rules: &'static [&'static [Argument]],
}

macro_rules! calls {
    ($($name:ident $number:ident $($rules:expr)?;)*) => {
        &[$(Call {
            name: stringify!($name),
            number: libc::$number,
            rules: calls!(@ $($rules)?),
        }),*]
    };
    (@) => { &[] };
    (@ $rules:expr) => { &$rules };
}

/// Bits of a socket type that are not flags.
const KIND_BITS: u64 = 0xf;
/// Flags with which the C library starts a thread; they cannot start a process.
const THREAD: u32 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u32;
const SIOCGIFINDEX: u32 = libc::SIOCGIFINDEX as u32;
const INET: u32 = libc::AF_INET as u32;
const INET6: u32 = libc::AF_INET6 as u32;
const STREAM: u32 = libc::SOCK_STREAM as u32;
const DGRAM: u32 = libc::SOCK_DGRAM as u32;
const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;
const ICMP: u32 = libc::IPPROTO_ICMP as u32;
const ICMPV6: u32 = libc::IPPROTO_ICMPV6 as u32;
const IP: u32 = libc::IPPROTO_IP as u32;
const IPV6: u32 = libc::IPPROTO_IPV6 as u32;
const RAW: u32 = libc::SOL_RAW as u32;
const SOCKET: u32 = libc::SOL_SOCKET as u32;
const XDP: u32 = libc::SOL_XDP as u32;

/// The calls of all modes.
const ALWAYS: &[Call] = calls! {
    // Data: host sockets, TAP devices, pipes between sockets, capture files, doorbells and timers.
    read SYS_read;
    write SYS_write;
    readv SYS_readv;
    writev SYS_writev;
    recvfrom SYS_recvfrom;
    recvmsg SYS_recvmsg;
    sendto SYS_sendto;
    sendmsg SYS_sendmsg;
    splice SYS_splice;
    // Waiting.
    epoll_create1 SYS_epoll_create1;
    epoll_ctl SYS_epoll_ctl;
    epoll_pwait SYS_epoll_pwait;
    epoll_pwait2 SYS_epoll_pwait2;
    ppoll SYS_ppoll;
    timerfd_settime SYS_timerfd_settime;
    futex SYS_futex;
    membarrier SYS_membarrier;
    clock_gettime SYS_clock_gettime;
    clock_nanosleep SYS_clock_nanosleep;
    sched_yield SYS_sched_yield;
    restart_syscall SYS_restart_syscall;
    // Flows of the host: internet sockets only, and no raw ones.
    socket SYS_socket [
        &[Is(0, INET), Kind(1, STREAM), Is(2, 0)],
        &[Is(0, INET), Kind(1, STREAM), Is(2, TCP)],
        &[Is(0, INET), Kind(1, DGRAM), Is(2, 0)],
        &[Is(0, INET), Kind(1, DGRAM), Is(2, UDP)],
        &[Is(0, INET), Kind(1, DGRAM), Is(2, ICMP)],
        &[Is(0, INET6), Kind(1, STREAM), Is(2, 0)],
        &[Is(0, INET6), Kind(1, STREAM), Is(2, TCP)],
        &[Is(0, INET6), Kind(1, DGRAM), Is(2, 0)],
        &[Is(0, INET6), Kind(1, DGRAM), Is(2, UDP)],
        &[Is(0, INET6), Kind(1, DGRAM), Is(2, ICMPV6)]
    ];
    bind SYS_bind;
    listen SYS_listen;
    connect SYS_connect;
    accept4 SYS_accept4;
    shutdown SYS_shutdown;
    getsockname SYS_getsockname;
    getpeername SYS_getpeername;
    getsockopt SYS_getsockopt;
    setsockopt SYS_setsockopt [
        &[Is(1, SOCKET), Is(2, libc::SO_REUSEADDR as u32)],
        &[Is(1, SOCKET), Is(2, libc::SO_LINGER as u32)],
        &[Is(1, SOCKET), Is(2, libc::SO_OOBINLINE as u32)],
        &[Is(1, SOCKET), Is(2, libc::SO_BINDTODEVICE as u32)],
        &[Is(1, SOCKET), Is(2, libc::SO_ZEROCOPY as u32)],
        &[Is(1, TCP), Is(2, libc::TCP_NODELAY as u32)],
        &[Is(1, UDP), Is(2, libc::UDP_SEGMENT as u32)],
        &[Is(1, UDP), Is(2, libc::UDP_GRO as u32)],
        &[Is(1, IP), Is(2, libc::IP_TOS as u32)],
        &[Is(1, IP), Is(2, libc::IP_TTL as u32)],
        &[Is(1, IP), Is(2, libc::IP_PKTINFO as u32)],
        &[Is(1, IP), Is(2, libc::IP_MTU_DISCOVER as u32)],
        &[Is(1, IP), Is(2, libc::IP_RECVERR as u32)],
        &[Is(1, IP), Is(2, libc::IP_RECVTTL as u32)],
        &[Is(1, IP), Is(2, libc::IP_RECVTOS as u32)],
        &[Is(1, IPV6), Is(2, libc::IPV6_UNICAST_HOPS as u32)],
        &[Is(1, IPV6), Is(2, libc::IPV6_MTU_DISCOVER as u32)],
        &[Is(1, IPV6), Is(2, libc::IPV6_RECVERR as u32)],
        &[Is(1, IPV6), Is(2, libc::IPV6_V6ONLY as u32)],
        &[Is(1, IPV6), Is(2, libc::IPV6_RECVPKTINFO as u32)],
        &[Is(1, IPV6), Is(2, libc::IPV6_RECVHOPLIMIT as u32)],
        &[Is(1, IPV6), Is(2, libc::IPV6_DONTFRAG as u32)],
        &[Is(1, IPV6), Is(2, libc::IPV6_RECVTCLASS as u32)],
        &[Is(1, IPV6), Is(2, libc::IPV6_TCLASS as u32)],
        // Filters of the raw echo sockets that come from the broker.
        &[Is(1, RAW), Is(2, 1)],
        &[Is(1, ICMPV6), Is(2, 1)]
    ];
    pipe2 SYS_pipe2;
    close SYS_close;
    fcntl SYS_fcntl [
        &[Is(1, libc::F_GETFD as u32)],
        &[Is(1, libc::F_GETFL as u32)],
        &[Is(1, libc::F_SETFL as u32)],
        &[Is(1, libc::F_DUPFD_CLOEXEC as u32)],
        &[Is(1, libc::F_SETPIPE_SZ as u32)]
    ];
    ioctl SYS_ioctl [
        &[Is(1, libc::FIONREAD as u32)],
        &[Is(1, libc::FIONBIO as u32)],
        &[Is(1, crate::sys::SIOCATMARK)],
        &[Is(1, SIOCGIFINDEX)],
        &[Is(1, libc::TIOCGPGRP as u32)],
        &[Is(1, libc::TIOCSPGRP as u32)]
    ];
    fstat SYS_fstat;
    lseek SYS_lseek;
    ftruncate SYS_ftruncate;
    fdatasync SYS_fdatasync;
    // Memory, none of it executable.
    mmap SYS_mmap [&[Lacks(2, libc::PROT_EXEC as u32)]];
    mprotect SYS_mprotect [&[Lacks(2, libc::PROT_EXEC as u32)]];
    munmap SYS_munmap;
    mremap SYS_mremap;
    madvise SYS_madvise;
    brk SYS_brk;
    getrandom SYS_getrandom;
    // This process, and the end of its threads and its child.
    getpid SYS_getpid;
    gettid SYS_gettid;
    getpgid SYS_getpgid;
    kill SYS_kill [&[Own(0)]];
    tgkill SYS_tgkill [&[Own(0)]];
    rt_sigaction SYS_rt_sigaction;
    rt_sigprocmask SYS_rt_sigprocmask;
    rt_sigreturn SYS_rt_sigreturn;
    sigaltstack SYS_sigaltstack;
    // A thread that was started just before the filter may still be initialising.
    set_robust_list SYS_set_robust_list;
    rseq SYS_rseq;
    sched_getaffinity SYS_sched_getaffinity;
    prctl SYS_prctl [&[Is(0, libc::PR_SET_NAME as u32)]];
    // Limits of this process, read only.
    prlimit64 SYS_prlimit64 [&[Is(0, 0), Null(2)]];
    wait4 SYS_wait4;
    exit SYS_exit;
    exit_group SYS_exit_group;
};

/// Calls that the C library or rustix prefers on this architecture.
#[cfg(target_arch = "x86_64")]
const OF_ARCHITECTURE: &[Call] = calls! {
    poll SYS_poll;
    getpgrp SYS_getpgrp;
};
#[cfg(not(target_arch = "x86_64"))]
const OF_ARCHITECTURE: &[Call] = &[];

/// Further calls for serving a network of guests.
const NETWORK: &[Call] = calls! {
    // Ports that are added at run time.
    eventfd2 SYS_eventfd2;
    timerfd_create SYS_timerfd_create;
    fcntl SYS_fcntl [
        &[Is(1, libc::F_GET_SEALS as u32)],
        &[Is(1, libc::F_ADD_SEALS as u32)]
    ];
    ioctl SYS_ioctl [
        &[Is(1, libc::TUNSETOFFLOAD as u32)],
        &[Is(1, libc::TUNSETVNETHDRSZ as u32)],
        &[Is(1, libc::TUNSETVNETLE as u32)],
        &[Is(1, libc::TUNSETCARRIER as u32)],
        &[Is(1, libc::TUNGETIFF as u32)]
    ];
    setsockopt SYS_setsockopt [
        &[Is(1, SOCKET), Is(2, libc::SO_SNDTIMEO as u32)],
        &[Is(1, SOCKET), Is(2, libc::SO_RCVTIMEO as u32)],
        // Tunnels: memory for what they receive, and sockets that share a port.
        &[Is(1, SOCKET), Is(2, libc::SO_RCVBUF as u32)],
        &[Is(1, SOCKET), Is(2, libc::SO_RCVBUFFORCE as u32)],
        &[Is(1, SOCKET), Is(2, libc::SO_REUSEPORT as u32)],
        &[Is(1, SOCKET), Is(2, libc::SO_ATTACH_REUSEPORT_CBPF as u32)],
        &[Is(1, SOCKET), Is(2, libc::SO_BINDTOIFINDEX as u32)],
        // Sessions with BGP neighbours that are signed.
        &[Is(1, TCP), Is(2, libc::TCP_MD5SIG as u32)],
        &[Is(1, TCP), Is(2, crate::sys::TCP_AO_ADD_KEY as u32)],
        &[Is(1, TCP), Is(2, crate::sys::TCP_AO_INFO as u32)],
        // AF_XDP sockets that come from the broker.
        &[Is(1, XDP), Is(2, libc::XDP_UMEM_REG as u32)],
        &[Is(1, XDP), Is(2, libc::XDP_UMEM_FILL_RING as u32)],
        &[Is(1, XDP), Is(2, libc::XDP_UMEM_COMPLETION_RING as u32)],
        &[Is(1, XDP), Is(2, libc::XDP_RX_RING as u32)],
        &[Is(1, XDP), Is(2, libc::XDP_TX_RING as u32)]
    ];
    memfd_create SYS_memfd_create;
    fallocate SYS_fallocate;
    flock SYS_flock;
    fstatfs SYS_fstatfs;
    // Events of front ends, which are signalled without a call that may block.
    io_setup SYS_io_setup;
    io_submit SYS_io_submit;
    io_getevents SYS_io_getevents;
    io_destroy SYS_io_destroy;
    // Capture threads.
    clone SYS_clone [&[Is(0, THREAD)]];
};

/// Calls that fail harmlessly instead of killing the process: those by which a panic finds the
/// names for its backtrace, and one that the C library tries before [`libc::SYS_clone`].
const REFUSED: &[Call] = calls! {
    openat SYS_openat;
    // On an open file it is harmless.
    statx SYS_statx [&[Lacks(2, libc::AT_EMPTY_PATH as u32)]];
    newfstatat SYS_newfstatat;
    readlinkat SYS_readlinkat;
    getcwd SYS_getcwd;
    clone3 SYS_clone3;
};
#[cfg(target_arch = "x86_64")]
const REFUSED_OF_ARCHITECTURE: &[Call] = calls! {
    open SYS_open;
    readlink SYS_readlink;
};
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_OF_ARCHITECTURE: &[Call] = &[];

/// Why the filter is not in force.
#[derive(Debug)]
pub struct FilterError(String);

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value) = self;
        write!(f, "system calls are not filtered: {value}")
    }
}

impl std::error::Error for FilterError {}

/// Installs the filter of `mode` for all threads.
///
/// # Errors
/// The kernel does not support filters, or not for this architecture.
pub(super) fn install(mode: Mode) -> Result<(), FilterError> {
    let failed = |error: seccompiler::Error| FilterError(error.to_string());
    let refused = || REFUSED.iter().chain(REFUSED_OF_ARCHITECTURE);
    let errno = SeccompAction::Errno(libc::ENOSYS as u32);
    let polite = compile(refused(), SeccompAction::Allow, errno).map_err(failed)?;
    let of_mode: &[Call] = if mode == Mode::Network { NETWORK } else { &[] };
    let allowed = ALWAYS.iter().chain(OF_ARCHITECTURE).chain(of_mode).chain(refused());
    let strict =
        compile(allowed, SeccompAction::KillProcess, SeccompAction::Allow).map_err(failed)?;
    // Where two filters differ, the stricter result applies. The second filter forbids further
    // ones.
    apply_filter_all_threads(&polite).map_err(failed)?;
    apply_filter_all_threads(&strict).map_err(failed)
}

fn compile<'a>(
    calls: impl Iterator<Item = &'a Call>,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, seccompiler::Error> {
    let mut all: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in calls {
        let rules = all.entry(call.number).or_default();
        for arguments in call.rules {
            let conditions = arguments.iter().map(condition).collect::<Result<Vec<_>, _>>()?;
            rules.push(SeccompRule::new(conditions)?);
        }
    }
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(all, others, these, architecture)?.try_into()?)
}

fn condition(argument: &Argument) -> Result<SeccompCondition, seccompiler::BackendError> {
    let (index, operator, value) = match *argument {
        Null(index) => {
            return SeccompCondition::new(index, SeccompCmpArgLen::Qword, Eq, 0);
        }
        Is(index, value) => (index, Eq, value),
        Kind(index, value) => (index, MaskedEq(KIND_BITS), value),
        Lacks(index, bits) => (index, MaskedEq(bits.into()), 0),
        Own(index) => {
            let own = rustix::process::getpid().as_raw_pid();
            (index, Eq, own.cast_unsigned())
        }
    };
    // These arguments have 32 bits; the kernel ignores the upper half.
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: the documentation has a line for each call, and no further lines.
    #[test]
    fn each_call_is_documented() {
        const PAGE: &str = include_str!("../../../../docs/threat-model.md");
        let (_, table) = PAGE.split_once("### System calls").expect("a section");
        let table = table.split("\n#").next().expect("its text");
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
        let reported: BTreeSet<&str> = rows.map(|(name, _)| name).collect();
        let all = ALWAYS.iter().chain(OF_ARCHITECTURE).chain(NETWORK);
        let all = all.chain(REFUSED).chain(REFUSED_OF_ARCHITECTURE);
        let known: BTreeSet<&str> = all.map(|call| call.name).collect();
        if cfg!(target_arch = "x86_64") {
            assert_eq!(reported, known);
        } else {
            assert!(known.is_subset(&reported));
        }
    }

    /// Goal: a call with rules has no entry without rules, which would allow it with any arguments.
    #[test]
    fn rules_are_not_undone() {
        let all: Vec<_> = ALWAYS.iter().chain(NETWORK).chain(REFUSED).collect();
        for call in &all {
            let others = all.iter().filter(|other| other.number == call.number);
            assert!(others.clone().all(|other| other.rules.is_empty() == call.rules.is_empty()));
            assert!(others.count() == 1 || !call.rules.is_empty(), "{}", call.name);
        }
    }
}
