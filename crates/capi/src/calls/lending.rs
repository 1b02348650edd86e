//! Sends that lend (`MSG_ZEROCOPY` on a socket with `SO_ZEROCOPY`): the program's memory is not
//! copied, and `recvmsg` with `MSG_ERRQUEUE` reports its return.

use super::choosing::Chosen;
use super::stream::{Opening, send_flags};
use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use crate::memory::control::{TOWPATH_SO_ZEROCOPY_TERM, each_message};
use crate::memory::pointers::Ranges;
use towpath::layers::net::socket::{Borrower, LentCall, LentLimits, SendFlags, Sockets};
use towpath::layers::net::stack::Context;
use towpath::layers::net::time::Duration;
use towpath::layers::packet::{Loans, Piece, Recall};

/// `TOWPATH_SO_ZEROCOPY_PART` of `towpath.h`.
pub(super) const TOWPATH_SO_ZEROCOPY_PART: i32 = 0x7002;
/// Smallest part of a call: a connection's send buffer of 8 MiB then has fewer parts than a socket
/// may have notices by default.
const PART_LEAST: u32 = 64 << 10;

/// Most ranges of memory that an instance borrows at a time. Without a free descriptor a call fails
/// with `ENOBUFS`.
pub(crate) const LOANS_MAX: usize = 65_536;

/// The term that control messages ask for. Messages of other kinds are ignored.
pub(crate) fn asked_term(control: &[u8]) -> Outcome<Option<Duration>> {
    let mut asked = None;
    each_message(control, |level, kind, data| {
        if (level, kind) == (libc::SOL_SOCKET, TOWPATH_SO_ZEROCOPY_TERM) {
            let number = data.try_into().map_err(|_| Errno::INVAL)?;
            asked = term(i32::from_ne_bytes(number))?;
        }
        Ok(())
    })?;
    Ok(asked)
}

/// A term in milliseconds; zero is none.
pub(crate) fn term(number: i32) -> Outcome<Option<Duration>> {
    let millis = u64::try_from(number).map_err(|_| Errno::INVAL)?;
    Ok(Some(Duration::from_millis(millis)).filter(|term| !term.is_zero()))
}

/// The size of the parts of a call in bytes; zero is one part.
pub(super) fn part(number: i32) -> Outcome<Option<u32>> {
    let bytes = u32::try_from(number).map_err(|_| Errno::INVAL)?;
    if bytes == 0 {
        return Ok(None);
    }
    Some(bytes).filter(|bytes| *bytes >= PART_LEAST).map(Some).ok_or(Errno::INVAL)
}

/// A call of a program that lends on a stream, in parts: to the sockets, each part is a call.
struct Parts {
    part: LentCall,
    /// Bytes of each part but the last.
    size: usize,
    term: Option<Duration>,
    chosen: Chosen,
}

impl Parts {
    fn new(size: Option<u32>, term: Option<Duration>, chosen: Chosen) -> Self {
        let size = size.map_or(usize::MAX, |size| size as usize);
        Self { part: LentCall::default(), size, term, chosen }
    }

    /// The part that follows the first `done` of `total` bytes, and the bytes left of it.
    fn at(&mut self, done: usize, total: usize) -> (&mut LentCall, usize) {
        let used = done % self.size;
        if used == 0 {
            self.part = self.chosen.part(self.term, done == 0);
        }
        (&mut self.part, (total - done).min(self.size - used))
    }
}

impl Instance {
    /// True if a call with these flags lends on this descriptor. Without the socket option the flag
    /// has no effect, as in Linux.
    pub(crate) fn lends(&self, fd: i32, flags: i32) -> bool {
        let state = self.lock();
        let option = |id| state.engine.protocols.options(id).is_ok_and(|options| options.zerocopy);
        flags & libc::MSG_ZEROCOPY != 0 && state.id(fd).is_ok_and(option)
    }

    /// Returns memory that the calls `first` to `last` lent, after copying bytes still in use.
    ///
    /// # Errors
    /// `EAGAIN` if memory is being read at this moment, `ENOMEM` if there is no memory for a copy.
    /// In both cases the recall is repeated without another call, and a notice reports its success.
    pub fn recall(&self, fd: i32, first: u32, last: u32) -> Outcome<()> {
        let recalled = self.call(|state| {
            let id = state.id(fd)?;
            let recall =
                |sockets: &mut Sockets, cx: &mut Context<'_>| sockets.recall(id, (first, last), cx);
            Ok::<_, Errno>(state.with(recall)?)
        })?;
        match recalled {
            Recall::Gone | Recall::Done => Ok(()),
            Recall::Busy => Err(Errno::AGAIN),
            Recall::NoMemory => Err(Errno(libc::ENOMEM)),
        }
    }

    /// Limits what sockets lend from now on: `notices` is the bytes of notices of each socket,
    /// `memory` the bytes that the calls of all sockets lend, in whole pages; `usize::MAX` is no
    /// limit.
    pub fn limit_lent(&self, notices: usize, memory: usize) {
        let pages = (memory < usize::MAX).then_some(memory >> 12);
        self.call(|state| state.engine.protocols.set_lent_limits(LentLimits { notices, pages }));
    }

    /// Sends a message like [`Instance::send_message`], but lends the memory.
    pub(crate) fn send_lent(
        &self,
        fd: i32,
        ranges: &Ranges,
        flags: i32,
        address: Option<&[u8]>,
        control: &[u8],
    ) -> Outcome<usize> {
        if self.is_datagram(fd) {
            return self.send_lent_datagram(fd, ranges, flags, address, control);
        }
        let address = address.unwrap_or_default();
        if ranges.len() == 0 {
            return self.send_to(fd, &[], flags, address);
        }
        let timeout = self.check_send(fd, flags)?;
        let mut parts = {
            let mut state = self.lock();
            let size = state.engine.protocols.options(state.id(fd)?)?.lent_part;
            Parts::new(size, asked_term(control)?, state.choose(fd, ranges.len())?)
        };
        let mut open =
            |state: &mut State| state.lend_with_syn(fd, &mut parts, ranges, flags, address);
        let sent = match self.open_with_data(fd, ranges.len(), (timeout, flags), &mut open)? {
            Opening::Open(with_syn) => with_syn,
            Opening::GoesOn(with_syn) => return Ok(with_syn),
        };
        let sent = self.send_parts(fd, ranges.len(), sent, (timeout, flags), |state, done| {
            state.lend_some(fd, &mut parts, ranges, done, flags)
        });
        if sent.is_ok_and(|sent| sent < ranges.len()) {
            // The call is over. If its bytes were copied, its notice is due at once.
            drop(parts);
            self.call(|_| ());
        }
        sent
    }
}

impl State {
    /// Lends what fits into one buffer, after the first `done` bytes.
    fn lend_some(
        &mut self,
        fd: i32,
        parts: &mut Parts,
        ranges: &Ranges,
        done: usize,
        flags: i32,
    ) -> Outcome<usize> {
        let id = self.id(fd)?;
        let (part, left) = parts.at(done, ranges.len());
        let mut how = send_flags(flags, done);
        if done + left < ranges.len() {
            // The program's call goes on behind this part.
            how = SendFlags { more: true, end_of_record: false, ..how };
        }
        Ok(self.with_loans(|sockets, loans, cx| {
            sockets.send_lent(id, part, left, how, from(ranges, done, loans), cx)
        })?)
    }

    /// Connects, and lends the bytes that fit into the SYN.
    fn lend_with_syn(
        &mut self,
        fd: i32,
        parts: &mut Parts,
        ranges: &Ranges,
        flags: i32,
        address: &[u8],
    ) -> Outcome<Option<usize>> {
        let to = (self.id(fd)?, self.destination(fd, address)?);
        let (part, len) = parts.at(0, ranges.len());
        let more = flags & libc::MSG_MORE != 0 || len < ranges.len();
        let how = SendFlags { more, ..SendFlags::default() };
        Ok(self.with_loans(|sockets, loans, cx| {
            let lend = from(ranges, 0, loans);
            sockets.send_lent_with_syn(to, part, len, how, lend, cx)
        })?)
    }

    /// Calls `act` like [`State::with`], with the loans, which are made when first needed.
    pub(crate) fn with_loans<R>(
        &mut self,
        act: impl FnOnce(&mut Sockets, &mut Loans, &mut Context<'_>) -> R,
    ) -> R {
        let mut loans = self.loans.take().unwrap_or_else(|| Loans::new(LOANS_MAX));
        let result = self.with(|sockets, cx| act(sockets, &mut loans, cx));
        self.loans = Some(loans);
        result
    }
}

/// Lends one part after the other, after the first `done` bytes.
pub(crate) fn from<'a>(
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
    use super::*;
    use crate::{Config, Errno, Instance};

    #[test]
    fn the_option_has_two_values() {
        let config = Config::with_addresses("192.0.2.1/24").expect("an address");
        let instance = Instance::new(&config).expect("an instance");
        let set = |fd, value: i32| {
            instance.set_option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &value.to_ne_bytes())
        };
        let get = |fd| instance.option(fd, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 4);
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
            let fd = instance.socket(libc::AF_INET, kind, 0).expect("room");
            assert!(!instance.lends(fd, libc::MSG_ZEROCOPY), "the flag alone means nothing");
            assert_eq!(set(fd, 2), Err(Errno::INVAL));
            assert_eq!(set(fd, 1), Ok(()));
            assert_eq!(get(fd), Ok(1_i32.to_ne_bytes().to_vec()));
            assert!(instance.lends(fd, libc::MSG_ZEROCOPY) && !instance.lends(fd, 0));
        }
        assert!(!instance.lends(-1, libc::MSG_ZEROCOPY));
    }

    #[test]
    fn parts_follow_each_other() {
        let mut parts = Parts::new(Some(PART_LEAST), None, Chosen::Copy);
        let size = PART_LEAST as usize;
        for (done, total, left) in [
            (0, 1, 1),
            (0, size, size),
            (0, size + 1, size),
            (1, size + 1, size - 1),
            (size, size + 1, 1),
            (3 * size - 1, 5 * size, 1),
            (3 * size, 5 * size, size),
        ] {
            assert_eq!(parts.at(done, total).1, left, "{done} of {total}");
        }
        let mut whole = Parts::new(None, None, Chosen::Lend(None));
        assert_eq!((whole.at(0, 1 << 30).1, whole.at(1 << 20, 1 << 30).1), (1 << 30, 1023 << 20));
    }

    #[test]
    fn parts_have_a_least_size() {
        assert_eq!(
            [part(0), part(65_536), part(i32::MAX)],
            [Ok(None), Ok(Some(PART_LEAST)), Ok(Some(i32::MAX as u32)),]
        );
        assert_eq!([part(-1), part(1), part(65_535)], [Err(Errno::INVAL); 3]);
    }
}
