//! Receiving without a copy.
#![allow(unsafe_code)]

use super::{IOV_MAX, give, give_done, on};
use crate::errno::Errno;
use crate::instance::Instance;
use crate::pointers::{bytes_mut, write_source};
use libc::{c_int, iovec, msghdr};

exported! {
    /// As `recvmsg(2)`, but copies nothing: the message's pieces are filled with addresses and
    /// lengths of what was received, and their count with how many those are; the first is the
    /// caller's room for headers where these are in no piece. They stay until
    /// `towpath_return` is called with `token`, which is zero if there are none.
    fn towpath_recvmsg_lent(
        of,
        fd: c_int,
        message: *mut msghdr,
        flags: c_int,
        token: *mut u64
    ) -> isize {
        // SAFETY: the caller vouches for it.
        let message = unsafe { message.as_mut() };
        // SAFETY: the caller vouches for it.
        let (Some(message), Some(token)) = (message, unsafe { token.as_mut() }) else {
            return give::<isize>(on(of, fd, Err(Errno::FAULT)));
        };
        let count = message.msg_iovlen.min(IOV_MAX);
        if message.msg_iov.is_null() && count > 0 {
            return give::<isize>(on(of, fd, Err(Errno::FAULT)));
        }
        // SAFETY: the caller vouches for it.
        let control = unsafe { bytes_mut(message.msg_control, message.msg_controllen) };
        let begins = of.reads_headers(fd);
        if begins && count == 0 {
            return give::<isize>(on(of, fd, Err(Errno(libc::EMSGSIZE))));
        }
        let mut filled = usize::from(begins);
        // SAFETY: the caller vouches for one place at least.
        let first = if begins { Some(unsafe { message.msg_iov.read() }) } else { None };
        // SAFETY: the caller vouches for its memory.
        let room = first.map(|iovec| unsafe { bytes_mut(iovec.iov_base, iovec.iov_len) });
        let room = match room.transpose() {
            Ok(room) => room,
            Err(error) => return give::<isize>(on(of, fd, Err(error))),
        };
        let most = (room, count - filled);
        let received = of.receive_lent(fd, most, control.unwrap_or_default(), flags, |bytes| {
            let piece =
                iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            // SAFETY: the caller vouches for `count` places, and there are no more pieces.
            let place = unsafe { message.msg_iov.add(filled) };
            // SAFETY: as above.
            unsafe { place.write(piece) };
            filled += 1;
        });
        let received = received.and_then(|(received, names, headers)| {
            (*token, message.msg_iovlen) = (names, filled);
            if let Some(first) = first {
                let headers = iovec { iov_len: headers, ..first };
                // SAFETY: the caller vouches for one place at least.
                unsafe { message.msg_iov.write(headers) };
            }
            let (name, len) = (message.msg_name.cast(), &raw mut message.msg_namelen);
            message.msg_controllen = received.control;
            message.msg_flags = received.flags;
            // SAFETY: the caller vouches for it.
            unsafe { write_source(received.source, name, len) }?;
            Ok(received.len)
        });
        give(on(of, fd, received))
    }

    /// Gives back what a call of `towpath_recvmsg_lent` handed out.
    fn towpath_return(of, token: u64) -> c_int {
        give_done(of.give_back(token))
    }
}
