//! Receiving without a copy.
#![allow(unsafe_code)]

use super::{give, give_done, on};
use crate::errno::Errno;
use crate::instance::Instance;
use crate::memory::pointers::Message;
use libc::{c_int, msghdr};

exported! {
    /// `recvmsg(2)` without a copy: fills the message's pieces with the addresses and lengths of
    /// the received bytes, and their count with the number of pieces. If headers lie outside of
    /// pieces, the first piece is the caller's room for them. The pieces stay until
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

    /// Takes back what a call of `towpath_recvmsg_lent` handed out.
    fn towpath_return(of, token: u64) -> c_int {
        give_done(of.give_back(token))
    }
}
