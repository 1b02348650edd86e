//! Attempts to break out of the sandbox, for tests. Only in debug builds.
//!
//! Each attempt is one system call without a notable effect where it is permitted.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, ipproto};

use crate::outside::{self, Answer, Wanted};
use crate::process_sys::call_with_nothing;

/// System calls to try with all arguments zero.
const CALLS: [(&str, libc::c_long); 17] = [
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    ("ptrace", libc::SYS_ptrace),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("mount", libc::SYS_mount),
    ("umount2", libc::SYS_umount2),
    ("pivot_root", libc::SYS_pivot_root),
    ("chroot", libc::SYS_chroot),
    ("setns", libc::SYS_setns),
    ("unshare", libc::SYS_unshare),
    ("bpf", libc::SYS_bpf),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("keyctl", libc::SYS_keyctl),
    ("init_module", libc::SYS_init_module),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("setuid", libc::SYS_setuid),
];

/// Makes the named attempt. Returns its result, if this process survives.
///
/// # Errors
/// The attempt was refused.
pub fn attempt(name: &str) -> io::Result<()> {
    if let Some((_, number)) = CALLS.into_iter().find(|(known, _)| *known == name) {
        return call_with_nothing(number);
    }
    let open = |family, kind, protocol| rustix::net::socket(family, kind, protocol).map(drop);
    let ask = |wanted, number, text: &[u8]| match outside::ask(wanted, number, text, None) {
        Some(answer) => answer.and_then(what_came),
        None => Err(Errno::NOTCONN),
    };
    let done = match name {
        "open" => rustix::fs::open("/etc/passwd", OFlags::RDONLY, Mode::empty()).map(drop),
        "raw socket" => open(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)),
        "packet socket" => open(AddressFamily::PACKET, SocketType::RAW, None),
        "netlink socket" => open(AddressFamily::NETLINK, SocketType::RAW, None),
        "unix socket" => open(AddressFamily::UNIX, SocketType::STREAM, None),
        "kill" => match rustix::process::getppid() {
            Some(parent) => rustix::process::test_kill_process(parent),
            None => rustix::process::test_kill_current_process_group(),
        },
        "broker: port" => {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
            let address = (Ipv4Addr::LOCALHOST, 22).into();
            outside::bind(socket.as_fd(), &address).unwrap_or(Err(Errno::NOTCONN))
        }
        "broker: connect" => ask(Wanted::Connect, 0, b"/run/docker.sock"),
        "broker: listen" => ask(Wanted::Listen, 0, b"/tmp/towpath-attempt"),
        "broker: tap" => ask(Wanted::Tap, 0, b"tap9"),
        "broker: super-packets" => ask(Wanted::SuperPackets, 1500, b"lo"),
        "broker: leases" => ask(Wanted::LeaseLock, 0, b""),
        "broker: signal" => ask(Wanted::Signal, 9, b""),
        "broker: namespace" => ask(Wanted::Namespace, 0, b""),
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "no attempt has this name")),
    };
    Ok(done?)
}

/// Turns an answer into a result: the broker reports some errors as a number.
fn what_came(answer: Answer) -> Result<(), Errno> {
    if answer.numbers[0] == 0 { Ok(()) } else { Err(Errno::IO) }
}
