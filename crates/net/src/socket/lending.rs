//! Sends without a copy (`MSG_ZEROCOPY`): which calls share a notice, and when it is reported.
//!
//! # Theory of operation
//!
//! Each call that lends takes the next number of its socket. A *group* counts what the call lends.
//! A group has one call, or several if the later calls found the earlier calls' bytes still unsent
//! at the end of the queue and share a buffer with them. The group ends when its last loan is
//! returned, which is when the peer has acknowledged all of it or the connection has ended. Then
//! the numbers of its calls become a [`Notice::Lent`] in the socket's error queue, or extend the
//! last notice there. Memory for the notice is allocated when the group begins, so adding the
//! notice cannot fail.
//!
//! A call gets its number when its first byte is queued, so that failed calls leave no gap.
//!
//! For a device that takes no partial checksums, a call on a stream copies bytes that others may
//! write into the send queue, and its group ends with it. So do the calls of all sockets with all
//! bytes while as many groups lend as may.
//!
//! Bounds: [`GROUPS_MAX`] groups of one stack, of which the last [`COPYING_MAX`] are for calls that
//! copy; [`LentLimits`] per socket and for all sockets; and for each group [`CALLS_MAX`] calls and
//! [`GROUP_BYTES_MAX`] bytes. At the last two a new group begins; at the limits a call fails with
//! [`Error::NoBuffers`].
//!
//! Follows Linux's `MSG_ZEROCOPY` (Documentation/networking/msg_zerocopy.rst).

use super::outstanding::{Outstanding, Terms};
use super::shares::{Borrower, Copies, GROUPS_PER_PART, Lack, Part, Share, append_lent, place_of};
use super::stream::end_part;
use super::{Error, Notice, Readiness, SendFlags, SocketId, Sockets};
use crate::stack::{Context, TcpHandle};
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::SocketAddr;
use towpath_packet::{Piece, Returns};

/// Maximum number of groups of one stack: several for each of the connections that it may have.
pub const GROUPS_MAX: usize = 16 * GROUPS_PER_PART;
/// Groups of calls that copy because as many lend as may: such a group is over with its call.
pub(super) const COPYING_MAX: usize = GROUPS_PER_PART;
/// Maximum number of calls that share a notice.
pub const CALLS_MAX: u32 = 65_534;
/// Maximum bytes of calls that share a notice; a single call may have more.
pub const GROUP_BYTES_MAX: usize = 512 << 10;
/// Bytes that a notice is charged from the beginning of its group until it is read (Linux charges
/// an empty packet).
pub const NOTICE_CHARGE: usize = 768;
/// Room that a new notice needs.
const NOTICE_ROOM: usize = 576;

/// Limits of what sockets may lend, set by the owner of the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentLimits {
    /// Bytes charged for one socket's notices, queued and outstanding (`net.core.optmem_max`).
    pub notices: usize,
    /// Pages that all sockets keep from their lenders (`RLIMIT_MEMLOCK`); a call is charged its
    /// bytes in whole pages, plus two pages. `None` for no limit.
    pub pages: Option<usize>,
}

impl Default for LentLimits {
    fn default() -> Self {
        Self { notices: 128 << 10, pages: None }
    }
}

/// Calls whose memory is returned together.
pub(super) struct Group {
    pub(super) socket: SocketId,
    /// Connection of a stream; it can outlive its socket.
    pub(super) connection: Option<TcpHandle>,
    /// Number of the first call.
    first: u32,
    /// Number of calls; zero if the only call failed.
    pub(super) calls: u32,
    pub(super) bytes: usize,
    pages: usize,
    /// Its calls copy.
    copies: bool,
    /// Given back with the outcome of the group; boxed, as few calls are watched.
    watch: Option<Box<LentWatch>>,
    /// Loans that can be recalled.
    pub(super) outstanding: Outstanding,
}

impl Group {
    /// True if the group has any of the calls `first` to `last`.
    pub(super) fn has_calls(&self, first: u32, last: u32) -> bool {
        let begins = self.first.wrapping_sub(first) <= last.wrapping_sub(first);
        self.calls > 0 && (begins || first.wrapping_sub(self.first) < self.calls)
    }
}

/// All groups of a stack, and their limits.
pub(super) struct Lendings {
    /// A part for each [`GROUPS_PER_PART`] groups.
    returns: Vec<Arc<Returns>>,
    pub(super) groups: Vec<Group>,
    free: Vec<u32>,
    /// Groups that may lend.
    lending_max: usize,
    pages: usize,
    limits: LentLimits,
    report_copied: bool,
    /// Groups that ended, while they are reported: how many calls ago the group began, its index,
    /// copied.
    ended: Vec<(Reverse<u32>, u32, bool)>,
    /// Outcomes of watched calls.
    outcomes: Vec<(SocketId, LentWatch, bool)>,
    pub(super) terms: Terms,
}

impl Lendings {
    pub(super) fn new() -> Self {
        Self {
            returns: Vec::new(),
            groups: Vec::new(),
            free: Vec::new(),
            lending_max: GROUPS_MAX - COPYING_MAX,
            pages: 0,
            limits: LentLimits::default(),
            report_copied: false,
            ended: Vec::new(),
            outcomes: Vec::new(),
            terms: Terms::default(),
        }
    }

    /// Begins a group with one share; `None` if there are [`GROUPS_MAX`].
    fn begin(&mut self, socket: SocketId) -> Option<Share> {
        let copies = self.groups.len() - self.free.len() >= self.lending_max;
        let begin = |outstanding| Group {
            socket,
            connection: None,
            first: 0,
            calls: 0,
            bytes: 0,
            pages: 0,
            copies,
            watch: None,
            outstanding,
        };
        let index = match self.free.pop() {
            Some(index) => {
                let group = &mut self.groups[index as usize];
                *group = begin(core::mem::take(&mut group.outstanding));
                index
            }
            None if self.groups.len() < GROUPS_MAX => {
                self.groups.push(begin(Outstanding::default()));
                (self.groups.len() - 1) as u32
            }
            None => return None,
        };
        let (part, place) = place_of(index);
        if part == self.returns.len() {
            self.returns.push(Returns::new(GROUPS_PER_PART));
        }
        let returns = self.returns[part].clone();
        returns.begin(place);
        Some(Share { returns, group: index, copies })
    }

    /// Makes another share of a group; `None` if it is over or has the largest number of shares.
    fn share(&self, group: u32) -> Option<Share> {
        let (part, place) = place_of(group);
        let returns = self.returns.get(part).filter(|returns| returns.share(place))?;
        let copies = self.groups[group as usize].copies;
        Some(Share { returns: returns.clone(), group, copies })
    }

    /// True if a call of `bytes` may share the notice of a group.
    pub(super) fn fits(&self, group: u32, bytes: usize) -> bool {
        let group = &self.groups[group as usize];
        group.calls < CALLS_MAX && group.bytes + bytes <= GROUP_BYTES_MAX
    }
}

/// Lending state of one socket.
#[derive(Default)]
pub(super) struct SocketLending {
    /// Number of the next call.
    next: u32,
    /// Groups that have not ended.
    groups: usize,
}

/// What the owner notes about a call whose outcome it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentWatch {
    /// A number of the owner.
    pub round: u32,
    /// Bytes of the call.
    pub size: usize,
    /// When the call began.
    pub began: Instant,
}

/// One call that lends. It ends when it is dropped.
#[derive(Default)]
pub struct LentCall {
    pub(super) share: Option<Share>,
    term: Option<Duration>,
    takes_all: bool,
    copies: bool,
    watch: Option<Box<LentWatch>>,
}

impl LentCall {
    /// A call that lends for `term`, whatever the socket's option says.
    pub fn for_term(term: Duration) -> Self {
        Self { term: Some(term), ..Self::default() }
    }

    /// A call on a stream that copies its bytes. It has a number as if it lent, and its notice,
    /// marked as copied, is there when all its bytes are queued.
    pub fn copying() -> Self {
        Self { copies: true, ..Self::default() }
    }

    /// Reports the outcome of the call with [`Sockets::next_outcome`]. If calls share a notice, the
    /// first watch is reported.
    #[must_use]
    pub fn watched(self, watch: LentWatch) -> Self {
        Self { watch: Some(Box::new(watch)), ..self }
    }

    /// Lends from now on without regard to the room of the send queue. For a stream socket that is
    /// closed next, as its connection then no longer waits for its owner.
    pub fn take_all(&mut self) {
        self.takes_all = true;
    }

    /// Sets the term of what the call lends from now on; `None` for the socket's option.
    pub fn set_term(&mut self, term: Option<Duration>) {
        self.term = term;
    }
}

impl Sockets {
    /// Sets the limits. They do not affect what is already lent.
    pub fn set_lent_limits(&mut self, limits: LentLimits) {
        self.lendings.limits = limits;
    }

    #[cfg(test)]
    pub(super) fn set_next_lent(&mut self, id: SocketId, next: u32) {
        self.socket_mut(id).expect("open").lending.next = next;
    }

    #[cfg(test)]
    pub(super) fn set_lending_max(&mut self, groups: usize) {
        self.lendings.lending_max = groups;
    }

    /// Makes the group at the end of the send queue have `calls` calls.
    #[cfg(test)]
    pub(super) fn set_tail_calls(&mut self, id: SocketId, calls: u32) {
        let next = self.socket(id).expect("open").lending.next;
        let index = self.tail_group(id, 0).expect("lent and unsent");
        let group = &mut self.lendings.groups[index as usize];
        (group.first, group.calls) = (next.wrapping_sub(calls), calls);
    }

    /// Returns the number that the next call that lends will get.
    pub fn next_lent(&self, id: SocketId) -> Result<u32, Error> {
        Ok(self.socket(id)?.lending.next)
    }

    /// Marks all notices as copied, as Linux does for a TUN device.
    pub fn report_copied(&mut self, on: bool) {
        self.lendings.report_copied = on;
    }

    /// Takes the outcome of a [watched](LentCall::watched) call whose memory is back: its socket,
    /// which may be closed, and whether bytes were copied after all.
    pub fn next_outcome(&mut self) -> Option<(SocketId, LentWatch, bool)> {
        self.lendings.outcomes.pop()
    }

    /// Returns the pages that calls are charged now.
    pub fn lent_pages(&self) -> usize {
        self.lendings.pages
    }

    /// Lends part of a call's `total` bytes to the send queue, up to the end of the current buffer
    /// or of a new one; returns how many. `lend` makes a loan of at most the given number of the
    /// next bytes, in one range of memory, and returns `None` when no descriptor is free. The
    /// caller then lets packets leave, and calls again with the same `call` and
    /// [`SendFlags::continues`] for the rest.
    ///
    /// # Errors
    /// The errors of [`Sockets::send`]; [`Error::NoBuffers`] at a limit. In that case nothing more
    /// of the call is lent.
    pub fn send_lent(
        &mut self,
        id: SocketId,
        call: &mut LentCall,
        total: usize,
        flags: SendFlags,
        lend: impl FnMut(usize, Borrower) -> Option<Piece>,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        self.check_send(id)?;
        let sent = self.watching((id, call.term, cx.now), lend, |sockets, lend| {
            sockets.lend_to_stream((id, total, flags), call, lend, cx)
        })?;
        let may_copy = |share: &Share| {
            share.copies || self.handle(id).is_ok_and(|handle| self.sums_itself(handle))
        };
        if sent == total && call.share.as_ref().is_some_and(may_copy) {
            // If nothing of the call is out, its notice need not wait for the next packet.
            call.share = None;
            self.drain_returns();
        }
        Ok(sent)
    }

    fn lend_to_stream(
        &mut self,
        (id, total, flags): (SocketId, usize, SendFlags),
        call: &mut LentCall,
        mut lend: impl FnMut(usize, Borrower) -> Option<Piece>,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let (handle, all) = (self.handle(id)?, call.takes_all);
        let sums = self.sums_itself(handle);
        self.lend(id, call, total, |sockets, share| {
            let copies = Copies::of(share, sums);
            let sent = sockets.stack.with_tcp(handle, cx.now, |connection| {
                let room = if all { total } else { connection.send_room_lent(share.group) };
                let part = Part { most: room.min(total), all, begins: !flags.continues, copies };
                let (sent, lack) = append_lent(connection, share, part, &mut lend, cx);
                end_part(connection, sent, total, flags);
                (sent, lack)
            });
            let (sent, lack) = sent.ok_or(Error::BrokenPipe)?;
            if lack == Some(Lack::Frame) {
                sockets.wait_for_frame(id, cx.now);
            }
            match (sent, lack) {
                (0, Some(Lack::Descriptor)) => Err(Error::NoBuffers),
                (0, _) => Err(Error::WouldBlock),
                _ => {
                    cx.ledger.carry(sent);
                    if copies != Copies::All {
                        cx.ledger.lend(sent);
                    }
                    Ok(sent)
                }
            }
        })
    }

    /// True if the stack computes the checksums of a connection: bytes that others may write would
    /// be copied for each transmission, and again for each retransmission. So a call copies them
    /// once and returns the memory at once, as Linux does for such a device. Traffic of the stack
    /// with itself needs no checksums.
    fn sums_itself(&self, handle: TcpHandle) -> bool {
        let remote = self.stack.tcp(handle).map(|connection| connection.remote().ip());
        !self.stack.caps().checksum && !remote.is_some_and(|remote| self.stack.is_local(remote))
    }

    /// [`Sockets::send_with_syn`] with lent bytes.
    pub fn send_lent_with_syn(
        &mut self,
        (id, remote): (SocketId, Option<SocketAddr>),
        call: &mut LentCall,
        total: usize,
        flags: SendFlags,
        lend: impl FnMut(usize, Borrower) -> Option<Piece>,
        cx: &mut Context<'_>,
    ) -> Result<Option<usize>, Error> {
        self.watching((id, call.term, cx.now), lend, |sockets, lend| {
            sockets.lend_with_syn((id, remote), call, (total, flags), lend, cx)
        })
    }

    fn lend_with_syn(
        &mut self,
        (id, remote): (SocketId, Option<SocketAddr>),
        call: &mut LentCall,
        (total, flags): (usize, SendFlags),
        mut lend: impl FnMut(usize, Borrower) -> Option<Piece>,
        cx: &mut Context<'_>,
    ) -> Result<Option<usize>, Error> {
        let mut is_open = false;
        let sent = self.lend(id, call, total, |sockets, share| {
            let sent = sockets.open_with(id, remote, cx.now, |connection| {
                let most = total.min(connection.syn_room());
                let copies = Copies::of(share, false);
                let part = Part { most, all: true, begins: true, copies };
                let (sent, _) = append_lent(connection, share, part, &mut lend, cx);
                if sent > 0 {
                    connection.end_write(flags.more && sent == total, flags.end_of_record);
                    connection.mark_written();
                }
                sent
            });
            is_open = sent == Ok(None);
            sent.map(|sent| sent.unwrap_or(0))
        })?;
        cx.ledger.carry(sent);
        if call.share.as_ref().is_some_and(|share| !share.copies) {
            cx.ledger.lend(sent);
        }
        Ok(if is_open { None } else { Some(sent) })
    }

    /// Runs `act`, which lends for a call, with the call's share of a group. The call gets its
    /// number when bytes were sent.
    fn lend(
        &mut self,
        id: SocketId,
        call: &mut LentCall,
        total: usize,
        act: impl FnOnce(&mut Self, &Share) -> Result<usize, Error>,
    ) -> Result<usize, Error> {
        if let Some(share) = &call.share {
            return act(self, share);
        }
        // What is copied does not wait for the notice of what was lent before.
        let tail = if call.copies { None } else { self.tail_group(id, total) };
        let mut share = self.join(id, total, tail)?;
        share.copies |= call.copies;
        let sent = act(self, &share)?;
        if sent > 0 {
            self.commit(id, share.group, total);
            let watch = &mut self.lendings.groups[share.group as usize].watch;
            *watch = watch.take().or(call.watch.take());
            call.share = Some(share);
        }
        Ok(sent)
    }

    /// Returns a share of `group` for a call of `bytes`, or of a new group.
    pub(super) fn join(
        &mut self,
        id: SocketId,
        bytes: usize,
        group: Option<u32>,
    ) -> Result<Share, Error> {
        let pages = pages_of(bytes);
        let limits = self.lendings.limits;
        if limits.pages.is_some_and(|most| self.lendings.pages + pages > most) {
            return Err(Error::NoBuffers);
        }
        if let Some(share) = group.and_then(|group| self.lendings.share(group)) {
            return Ok(share);
        }
        let socket = self.socket_mut(id)?;
        let notices = socket.lending.groups + socket.notices.lent();
        if notices * NOTICE_CHARGE + NOTICE_ROOM > limits.notices {
            return Err(Error::NoBuffers);
        }
        socket.notices.reserve(socket.lending.groups + 1);
        let share = self.lendings.begin(id).ok_or(Error::NoBuffers)?;
        self.socket_mut(id)?.lending.groups += 1;
        Ok(share)
    }

    /// The group at the end of the send queue, if a call of `bytes` may share its notice.
    fn tail_group(&self, id: SocketId, bytes: usize) -> Option<u32> {
        let socket = self.socket(id).ok()?;
        let index = self.connection(socket)?.lent_tail()?;
        let group = self.lendings.groups.get(index as usize)?;
        let follows = group.first.wrapping_add(group.calls) == socket.lending.next;
        let joins = group.socket == id && group.calls > 0 && follows;
        (joins && self.lendings.fits(index, bytes)).then_some(index)
    }

    /// Gives a call its number, as its first byte is queued.
    pub(super) fn commit(&mut self, id: SocketId, group: u32, bytes: usize) {
        let connection = self.handle(id).ok();
        let Ok(socket) = self.socket_mut(id) else { return };
        let number = socket.lending.next;
        socket.lending.next = number.wrapping_add(1);
        let pages = pages_of(bytes);
        let group = &mut self.lendings.groups[group as usize];
        if group.calls == 0 {
            (group.first, group.connection) = (number, connection);
        }
        group.calls += 1;
        group.bytes += bytes;
        group.pages += pages;
        self.lendings.pages += pages;
    }

    /// Reports the groups that ended.
    pub(super) fn drain_returns(&mut self) {
        if !self.lendings.returns.iter().any(|returns| returns.has_ended()) {
            return;
        }
        let mut ended = core::mem::take(&mut self.lendings.ended);
        for (part, returns) in (0..).zip(&self.lendings.returns) {
            let first = part * GROUPS_PER_PART as u32;
            returns.take(|place, copied| ended.push((Reverse(0), first + place, copied)));
        }
        // Sort each socket's groups by call number so that their notices join; recalls end them out
        // of order.
        if ended.len() > 1 {
            for (age, index, _) in &mut ended {
                let group = &self.lendings.groups[*index as usize];
                let next = self.socket(group.socket).map_or(0, |socket| socket.lending.next);
                *age = Reverse(next.wrapping_sub(group.first));
            }
            ended.sort_unstable();
        }
        for (_, index, copied) in ended.drain(..) {
            let group = &mut self.lendings.groups[index as usize];
            group.outstanding.clear();
            let (id, first, calls) = (group.socket, group.first, group.calls);
            self.lendings.pages -= group.pages;
            self.lendings.free.push(index);
            if let Some(watch) = group.watch.take() {
                self.lendings.outcomes.push((id, *watch, copied));
            }
            let copied = copied || self.lendings.report_copied;
            let Ok(socket) = self.socket_mut(id) else { continue };
            socket.lending.groups -= 1;
            if calls > 0 {
                let last = first.wrapping_add(calls - 1);
                socket.notices.push_lent(Notice::Lent { first, last, copied });
                self.wake(id, Readiness::ERR);
            }
        }
        self.lendings.ended = ended;
    }
}

/// Pages that a call is charged: its bytes in whole pages, and two partial ones.
fn pages_of(bytes: usize) -> usize {
    (bytes >> 12) + 2
}
