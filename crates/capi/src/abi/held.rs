//! Receiving without a copy.
#![allow(unsafe_code)]

use super::{give, give_done, on};
use crate::errno::Errno;
use crate::instance::Instance;
use crate::memory::pointers::Message;
use libc::{c_int, msghdr};

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
        let message = unsafe { Message::new(message) };
        // SAFETY: the caller vouches for it.
        let place = unsafe { token.as_mut() };
        let received = message.and_then(|mut message| {
            let place = place.ok_or(Errno::FAULT)?;
            let with_room = of.reads_headers(fd);
            let (len, token) = message.receive_lent(with_room, |lending, piece| {
                of.receive_lent(fd, lending, flags, piece)
            })?;
            *place = token;
            Ok(len)
        });
        give(on(of, fd, received))
    }

    /// Gives back what a call of `towpath_recvmsg_lent` handed out.
    fn towpath_return(of, token: u64) -> c_int {
        give_done(of.give_back(token))
    }
}
