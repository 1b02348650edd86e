//! Sends that lend (`MSG_ZEROCOPY` on a socket with `SO_ZEROCOPY`): the program's memory is not
//! copied, and `recvmsg` with `MSG_ERRQUEUE` tells when it is the program's again.

use crate::calls::Opening;
use crate::errno::Outcome;
use crate::instance::{Instance, State};
use crate::pointers::Ranges;
use towpath_net::socket::{Borrower, LentCall, SendFlags, Sockets};
use towpath_net::stack::Context;
use towpath_packet::{Loans, Piece};

/// Ranges of memory that an instance borrows at a time; without a free one a call fails with
/// `ENOBUFS`.
pub(crate) const LOANS_MAX: usize = 65_536;

impl Instance {
    /// True if a call with these flags lends on this descriptor; without the option the flag means
    /// nothing, as in Linux.
    pub(crate) fn lends(&self, fd: i32, flags: i32) -> bool {
        let state = self.lock();
        let option = |id| state.sockets.options(id).is_ok_and(|options| options.zerocopy);
        let stream = state.files.socket(fd).is_ok_and(|file| !file.datagram);
        flags & libc::MSG_ZEROCOPY != 0 && stream && state.id(fd).is_ok_and(option)
    }

    /// As [`Instance::send_to`], but lends.
    pub(crate) fn send_lent(
        &self,
        fd: i32,
        ranges: &Ranges,
        flags: i32,
        address: &[u8],
    ) -> Outcome<usize> {
        let timeout = self.check_send(fd, flags)?;
        let (mut sent, mut call) = (0, LentCall::default());
        if self.opens(fd, flags) {
            let mut open =
                |state: &mut State| state.lend_with_syn(fd, &mut call, ranges, flags, address);
            match self.open_with_data(fd, ranges.len(), timeout, &mut open)? {
                Opening::Open(with_syn) => sent = with_syn,
                Opening::GoesOn(with_syn) => return Ok(with_syn),
            }
        }
        self.send_parts(fd, ranges.len(), sent, (timeout, flags), |state, done| {
            state.lend_some(fd, &mut call, ranges, done, flags)
        })
    }
}

impl State {
    /// Lends what one buffer has room for, of what follows the first `done` bytes.
    fn lend_some(
        &mut self,
        fd: i32,
        call: &mut LentCall,
        ranges: &Ranges,
        done: usize,
        flags: i32,
    ) -> Outcome<usize> {
        let id = self.id(fd)?;
        let how = SendFlags {
            more: flags & libc::MSG_MORE != 0,
            end_of_record: flags & libc::MSG_EOR != 0,
            continues: done > 0,
            urgent: flags & libc::MSG_OOB != 0,
        };
        let left = ranges.len() - done;
        Ok(self.with_loans(|sockets, loans, cx| {
            sockets.send_lent(id, call, left, how, from(ranges, done, loans), cx)
        })?)
    }

    /// Connects, and lends what may go with the SYN.
    fn lend_with_syn(
        &mut self,
        fd: i32,
        call: &mut LentCall,
        ranges: &Ranges,
        flags: i32,
        address: &[u8],
    ) -> Outcome<Option<usize>> {
        let to = (self.id(fd)?, self.destination(fd, address)?);
        let how = SendFlags { more: flags & libc::MSG_MORE != 0, ..SendFlags::default() };
        Ok(self.with_loans(|sockets, loans, cx| {
            let lend = from(ranges, 0, loans);
            sockets.send_lent_with_syn(to, call, ranges.len(), how, lend, cx.now)
        })?)
    }

    /// As [`State::with`], with what lends memory, which is made when it is first needed.
    fn with_loans<R>(
        &mut self,
        act: impl FnOnce(&mut Sockets, &mut Loans, &mut Context<'_>) -> R,
    ) -> R {
        let mut loans = self.loans.take().unwrap_or_else(|| Loans::new(LOANS_MAX));
        let result = self.with(|sockets, cx| act(sockets, &mut loans, cx));
        self.loans = Some(loans);
        result
    }
}

/// Lends one part after the other of what follows the first `done` bytes.
fn from<'a>(
    ranges: &'a Ranges,
    mut done: usize,
    loans: &'a mut Loans,
) -> impl FnMut(usize, Borrower) -> Option<Piece> + 'a {
    move |most, borrower| {
        let piece = ranges.lend(loans, done, most, borrower)?;
        done += piece.len();
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Errno, Instance};

    #[test]
    fn the_option_is_for_streams_and_has_two_values() {
        let config = Config::with_addresses("192.0.2.1/24").expect("an address");
        let instance = Instance::new(&config).expect("an instance");
        let set = |fd, value: i32| {
            instance.set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &value.to_ne_bytes())
        };
        let get = |fd| instance.option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 4);
        let stream = instance.socket(libc::AF_INET, libc::SOCK_STREAM, 0).expect("room");
        assert!(!instance.lends(stream, libc::MSG_ZEROCOPY), "the flag alone means nothing");
        assert_eq!(set(stream, 2), Err(Errno::INVAL));
        assert_eq!(set(stream, 1), Ok(()));
        assert_eq!(get(stream), Ok(1_i32.to_ne_bytes().to_vec()));
        assert!(instance.lends(stream, libc::MSG_ZEROCOPY) && !instance.lends(stream, 0));
        assert!(!instance.lends(-1, libc::MSG_ZEROCOPY));
        let datagram = instance.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).expect("room");
        assert_eq!(set(datagram, 1), Err(Errno(libc::EOPNOTSUPP)));
        assert!(!instance.lends(datagram, libc::MSG_ZEROCOPY));
    }
}
