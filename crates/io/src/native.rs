//! Native sockets: sockets of the host in the place of a program's own, so that the kernel moves
//! their bytes.
//!
//! # Theory of operation
//!
//! A system call filter in front of the program ([`filter`]) reports a few calls about sockets to
//! another process, the *supervisor*, and the calling thread waits for its answer ([`calls`]). The
//! supervisor looks at the caller's descriptor and at the address ([`caller`]). It connects the
//! caller's socket, or it connects a socket of the host that has the same options ([`socket`]) and
//! puts it in the place of the caller's descriptor. Then it answers. The bytes of the latter
//! connection pass neither the supervisor nor an interface. The kernel reports the end of each such
//! connection with its counters ([`diag`]). To end one, the supervisor looks for the process that
//! has its socket ([`holders`]).
//!
//! The program may change everything that the supervisor looks at, at any time. So nothing depends
//! on it: the supervisor connects the very sockets that it has checked, to the addresses that it
//! has copied, and the program itself cannot connect a TCP socket at all, because Landlock forbids
//! that ([`calls::report_calls`]).
//!
//! The supervisor is a process with one thread, in the host's namespaces. Who decides which
//! destination leads where is its caller.

pub mod caller;
pub mod calls;
pub mod diag;
pub mod filter;
pub mod holders;
pub mod socket;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::CapabilitySet;

use crate::confine::give_up;
use crate::namespace::init::release_standard_streams;
use crate::process_sys::{Forked, end_with_only, fork_into};

/// Forks the supervisor from this process, which must have one thread, and returns the channel to
/// it. The supervisor keeps `files` and its end of the channel, has no capabilities, runs `work`
/// with them, and ends.
///
/// # Errors
/// Those of fork(2) and socketpair(2).
pub fn start(
    files: [BorrowedFd<'_>; 3],
    work: impl FnOnce([BorrowedFd<'_>; 3], BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    const NO_NAMESPACES: i32 = 0;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    if let Forked::Child = fork_into(NO_NAMESPACES)? {
        let [listener, v4, v6] = files;
        end_with_only([listener, v4, v6, theirs.as_fd()], || {
            let ready = release_standard_streams().and_then(|()| give_up(CapabilitySet::empty()));
            ready.and_then(|()| work(files, theirs.as_fd())).is_err().into()
        });
    }
    Ok(ours)
}
