//! Calls for several messages: `recvmmsg` and `sendmmsg`.
#![allow(unsafe_code)]

use super::{give_int, on, towpath_recvmsg, towpath_sendmsg};
use crate::errno::{Errno, Outcome};
use crate::instance::Instance;
use libc::{c_int, c_uint, mmsghdr, timespec};
use towpath::layers::net::socket::Error;
use towpath::layers::net::time::Duration;

/// Most messages that one `sendmmsg` sends (`UIO_MAXIOV`).
const SENT_MAX: c_uint = 1024;

exported! {
    /// `recvmmsg(2)`. As in Linux, the timeout is checked only between messages, and the next call
    /// reports an error that comes after the first message.
    fn towpath_recvmmsg(
        of,
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec
    ) -> c_int {
        // SAFETY: the caller vouches for it.
        let timeout = unsafe { timeout.as_mut() };
        let limit = match timeout.as_deref().map(duration).transpose() {
            Ok(limit) => limit,
            Err(errno) => return give_int::<c_int>(Err(errno)),
        };
        if let Err(errno) = on(of, fd, of.pending_error(fd)) {
            return give_int::<c_int>(Err(errno));
        }
        let begun = of.lock().now();
        let left = || limit.map(|limit| limit.saturating_sub(of.lock().now().since(begun)));
        let mut one_flags = flags & !libc::MSG_WAITFORONE;
        let mut done = 0;
        while done < count {
            // SAFETY: the caller vouches for `count` messages; only their address is taken.
            let message = unsafe { messages.wrapping_add(done as usize).as_mut() };
            let received = message.ok_or(Errno::FAULT).and_then(|message| {
                // SAFETY: the caller of this function vouches for the instance and the message.
                let len = unsafe { towpath_recvmsg(of, fd, &raw mut message.msg_hdr, one_flags) };
                message.msg_len = c_uint::try_from(len).map_err(|_| last_errno())?;
                Ok(message.msg_hdr.msg_flags)
            });
            match received {
                Ok(reported) => {
                    done += 1;
                    if reported & libc::MSG_OOB != 0 || left().is_some_and(|left| left.is_zero()) {
                        break;
                    }
                }
                Err(errno) if done == 0 => return give_int::<c_int>(on(of, fd, Err(errno))),
                Err(errno) => {
                    of.keep_error(fd, errno);
                    break;
                }
            }
            if flags & libc::MSG_WAITFORONE != 0 {
                one_flags |= libc::MSG_DONTWAIT;
            }
        }
        if let (Some(timeout), Some(left)) = (timeout, left()) {
            (timeout.tv_sec, timeout.tv_nsec) = (left.as_secs() as _, left.subsec_nanos() as _);
        }
        give_int(Ok(done))
    }

    /// `sendmmsg(2)`, without `SIGPIPE`. As in Linux, an error after the first message is not
    /// reported.
    fn towpath_sendmmsg(
        of,
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int
    ) -> c_int {
        let mut done = 0;
        while done < count.min(SENT_MAX) {
            // SAFETY: the caller vouches for `count` messages; only their address is taken.
            let message = unsafe { messages.wrapping_add(done as usize).as_mut() };
            let sent = message.ok_or(Errno::FAULT).and_then(|message| {
                // SAFETY: the caller of this function vouches for the instance and the message.
                let len = unsafe { towpath_sendmsg(of, fd, &raw const message.msg_hdr, flags) };
                message.msg_len = c_uint::try_from(len).map_err(|_| last_errno())?;
                Ok(())
            });
            match sent {
                Ok(()) => done += 1,
                Err(errno) if done == 0 => return give_int::<c_int>(on(of, fd, Err(errno))),
                Err(_) => break,
            }
        }
        give_int(if of.has(fd) { Ok(done) } else { Err(Errno::BADF) })
    }
}

impl Instance {
    /// Takes the pending error of a socket, if any.
    fn pending_error(&self, fd: c_int) -> Outcome<()> {
        let mut state = self.lock();
        let id = state.id(fd)?;
        state.engine.protocols.take_error(id)?.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Keeps an error, which the next call reports.
    fn keep_error(&self, fd: c_int, Errno(number): Errno) {
        let mut state = self.lock();
        let kept = Error::from_errno(number).filter(|error| *error != Error::WouldBlock);
        if let (Ok(id), Some(error)) = (state.id(fd), kept) {
            state.engine.protocols.keep_error(id, error);
        }
    }
}

/// Converts a time of C. `EINVAL` if it is invalid.
pub(super) fn duration(time: &timespec) -> Outcome<Duration> {
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno::INVAL)?;
    let nanos = u32::try_from(time.tv_nsec).map_err(|_| Errno::INVAL)?;
    if nanos >= 1_000_000_000 { Err(Errno::INVAL) } else { Ok(Duration::new(seconds, nanos)) }
}

/// The error of the call that has just failed.
fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
