//! Reported system calls, and the answers to them (seccomp_unotify(2)).
//!
//! The thread that made a call waits until it is answered, or is interrupted by a signal; then its
//! call begins anew, or fails, and the answer is refused. Needs Linux 5.9, which can replace
//! descriptors, and Linux 6.7, whose Landlock knows TCP.
//!
//! [`Calls::allow`] lets the kernel run the call with its arguments as they are by then, which may
//! be others than those that were looked at. So it is right only for a call whose result is
//! harmless in any case. A connect of a TCP socket that is allowed fails: see [`report_calls`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use landlock::{
    AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreated, RulesetStatus,
};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::set_no_new_privs;

use super::filter;
use crate::process_sys::{answer_call, filter_calls, is_waiting, receive_call, replace_descriptor};

/// What a call asks for. Addresses are in the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// connect(2).
    Connect {
        /// The socket.
        socket: RawFd,
        /// Where the peer's address is.
        at: u64,
        /// Its length, as the caller states it.
        len: u32,
    },
    /// listen(2).
    Listen {
        /// The socket.
        socket: RawFd,
        /// Connections that may wait.
        backlog: i32,
    },
    /// getsockname(2) or getpeername(2).
    Name {
        /// The socket.
        socket: RawFd,
        /// Where the address goes.
        at: u64,
        /// Where its length goes. The room for it is there before.
        len_at: u64,
        /// True for getpeername(2), false for getsockname(2).
        of_peer: bool,
    },
    /// A call that the filter does not report.
    Other,
}

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    id: u64,
    /// The thread that made it, in the PID namespace of this process.
    pub thread: Pid,
    /// What it asks for.
    pub asked: Asked,
}

/// Forbids this thread and all that it starts to connect TCP sockets, and makes the kernel report
/// calls about sockets; returns the listener, for [`Calls::new`] in another process, which connects
/// for them. Also forbids new privileges, as the kernel demands of a process without privilege.
///
/// # Errors
/// `Unsupported` on an architecture without a filter, or if Landlock does not know TCP (before
/// Linux 6.7). EBUSY if calls are reported already.
pub fn report_calls() -> io::Result<OwnedFd> {
    let program = filter::calls().ok_or(io::ErrorKind::Unsupported)?;
    set_no_new_privs(true)?;
    forbid_connect()?;
    Ok(filter_calls(&program)?)
}

/// Makes Landlock refuse connect(2) of every TCP socket to every port, by whatever call. Freeing a
/// socket from its peer (`AF_UNSPEC`) stays permitted.
fn forbid_connect() -> io::Result<()> {
    let forbidden = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessNet::ConnectTcp)
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self);
    match forbidden {
        Ok(status) if status.ruleset == RulesetStatus::FullyEnforced => Ok(()),
        Ok(_) => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(io::Error::new(io::ErrorKind::Unsupported, error)),
    }
}

/// The calls that a filter reports.
#[derive(Debug)]
pub struct Calls(OwnedFd);

impl Calls {
    /// Takes the listener of a filter.
    pub fn new(listener: OwnedFd) -> Self {
        Self(listener)
    }

    /// Receives a call, when the listener is readable; `None` if its thread waits no more.
    ///
    /// # Errors
    /// Those of ioctl(2): there will be no more calls.
    pub fn next(&self) -> Result<Option<Call>, Errno> {
        let call = match receive_call(self.0.as_fd()) {
            Ok(call) => call,
            Err(Errno::NOENT | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let [first, second, third, ..] = call.data.args;
        let socket = first as RawFd;
        let asked = match call.data.nr.into() {
            libc::SYS_connect => Asked::Connect { socket, at: second, len: third as u32 },
            libc::SYS_listen => Asked::Listen { socket, backlog: second as i32 },
            libc::SYS_getsockname => {
                Asked::Name { socket, at: second, len_at: third, of_peer: false }
            }
            libc::SYS_getpeername => {
                Asked::Name { socket, at: second, len_at: third, of_peer: true }
            }
            _ => Asked::Other,
        };
        // A thread of another PID namespace, which has no number here, cannot be looked at.
        let Some(thread) = Pid::from_raw(call.pid.cast_signed()) else {
            self.answer(&Call { id: call.id, thread: Pid::INIT, asked }, Err(Errno::PERM));
            return Ok(None);
        };
        Ok(Some(Call { id: call.id, thread, asked }))
    }

    /// True while the caller waits. What was opened by the number of its thread before this
    /// belongs to it, and not to a later thread of the same number.
    pub fn is_waiting(&self, call: &Call) -> bool {
        is_waiting(self.0.as_fd(), call.id)
    }

    /// Makes the call return `result`; returns false if the caller waits no more.
    pub fn answer(&self, call: &Call, result: Result<(), Errno>) -> bool {
        let error = result.err().map_or(0, |errno| -errno.raw_os_error());
        let answer = libc::seccomp_notif_resp { id: call.id, val: 0, error, flags: 0 };
        answer_call(self.0.as_fd(), answer).is_ok()
    }

    /// Lets the kernel run the call, with its arguments as they are by then.
    pub fn allow(&self, call: &Call) {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
        // Fails if the caller waits no more.
        let _ = answer_call(self.0.as_fd(), answer);
    }

    /// Puts a copy of `socket` in the place of the caller's descriptor `number`; returns false if
    /// the caller waits no more or has no such descriptor.
    pub fn replace(
        &self,
        call: &Call,
        number: RawFd,
        socket: BorrowedFd<'_>,
        closes_on_exec: bool,
    ) -> bool {
        u32::try_from(number).is_ok_and(|number| {
            replace_descriptor(self.0.as_fd(), call.id, socket, number, closes_on_exec).is_ok()
        })
    }
}

impl AsFd for Calls {
    /// Readable when there is a call; hung up when no thread has the filter any more.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
