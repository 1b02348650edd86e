//! The error queue of a socket: what `recvmsg` with `MSG_ERRQUEUE` tells.
//!
//! While it is not empty the socket is ready with [`Readiness::ERR`], and each notice taken while
//! more remain is news again, as in Linux.

use super::{Error, ErrorNotice, Origin, Readiness, Socket, SocketId, Sockets};
use crate::stack::TcpHandle;
use crate::tcp::{Stamp, Stamping};
use alloc::collections::VecDeque;
use towpath_packet::Packet;

/// Most notices of one socket; more are lost, as in Linux, where they are charged to the receive
/// buffer.
pub const NOTICES_MAX: usize = 1024;

/// What is told of what was sent (`SO_TIMESTAMPING`): Linux's bits, `SOF_TIMESTAMPING_*`. Bits
/// that concern what is received, or hardware, are kept and shown and do nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamping(pub u32);

impl Timestamping {
    /// When it was handed to the device.
    pub const TX_SOFTWARE: Timestamping = Timestamping(1 << 1);
    /// Times taken in software are told.
    pub const SOFTWARE: Timestamping = Timestamping(1 << 4);
    /// Notices have numbers: the position of the byte in what was sent since this was set.
    pub const OPT_ID: Timestamping = Timestamping(1 << 7);
    /// When it was handed to the queue of the device.
    pub const TX_SCHED: Timestamping = Timestamping(1 << 8);
    /// When all of it was acknowledged.
    pub const TX_ACK: Timestamping = Timestamping(1 << 9);
    /// Notices come without what was sent. They always do here; without this bit they say that it
    /// was cut off (`MSG_TRUNC`).
    pub const OPT_TSONLY: Timestamping = Timestamping(1 << 11);
    /// Statistics come with notices; not known here.
    pub const OPT_STATS: Timestamping = Timestamping(1 << 12);
    /// Numbers begin with the next byte written, not with the first that is unacknowledged.
    pub const OPT_ID_TCP: Timestamping = Timestamping(1 << 16);
    /// All bits of Linux 6.18.
    pub const ALL: Timestamping = Timestamping((1 << 19) - 1);

    /// True if all of `other` is in it.
    pub const fn contains(self, other: Timestamping) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn stamping(self) -> Stamping {
        Stamping {
            scheduled: self.contains(Self::TX_SCHED),
            sent: self.contains(Self::TX_SOFTWARE),
            acknowledged: self.contains(Self::TX_ACK),
        }
    }
}

/// One notice of an error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A time of what was sent.
    Stamp {
        /// What happened, and when. The key is zero without [`Timestamping::OPT_ID`].
        stamp: Stamp,
        /// The data that belongs to it was cut off.
        cut: bool,
    },
    /// What calls lent is theirs again: those with the numbers `first` to `last`.
    Lent {
        /// Number of the first call.
        first: u32,
        /// Number of the last call.
        last: u32,
        /// Bytes were copied after all. Of calls whose notices were joined it is the first's.
        copied: bool,
    },
    /// What was sent did not arrive, or could not be sent.
    Failed(ErrorNotice),
}

impl Notice {
    /// The error that a message of ICMP told.
    fn told_by_icmp(&self) -> Option<Error> {
        match self {
            Notice::Failed(failed) if failed.origin != Origin::Local => Some(failed.error),
            _ => None,
        }
    }
}

/// Notices that wait to be taken, the oldest first.
#[derive(Default)]
pub(super) struct ErrorQueue {
    notices: VecDeque<Notice>,
    /// How many of them are [`Notice::Lent`].
    lent: usize,
}

impl ErrorQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.notices.is_empty()
    }

    /// Notices of lent memory.
    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// Takes memory for `more` notices.
    pub(super) fn reserve(&mut self, more: usize) {
        self.notices.reserve(more);
    }

    /// Adds a notice of lent memory, or makes the last one longer by it. As in Linux only the last
    /// one of all counts, and what it says of copies stays.
    pub(super) fn push_lent(&mut self, notice: Notice) {
        if let Notice::Lent { first, last, .. } = notice
            && let Some(Notice::Lent { first: from, last: to, .. }) = self.notices.back_mut()
            && to.wrapping_add(1) == first
            && last.wrapping_sub(*from) < u32::MAX
        {
            *to = last;
            return;
        }
        self.lent += 1;
        self.notices.push_back(notice);
    }

    /// Adds an error about a datagram; the caller has counted it.
    pub(super) fn push_failed(&mut self, notice: ErrorNotice) {
        self.notices.push_back(Notice::Failed(notice));
    }

    /// Forgets the errors about datagrams.
    pub(super) fn forget_failed(&mut self) {
        self.notices.retain(|notice| !matches!(notice, Notice::Failed(_)));
    }

    fn pop(&mut self) -> Option<Notice> {
        let notice = self.notices.pop_front()?;
        self.lent -= usize::from(matches!(notice, Notice::Lent { .. }));
        Some(notice)
    }

    fn push(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push_back(notice);
        }
    }
}

impl Socket {
    fn note_stamp(&mut self, mut stamp: Stamp) {
        let flags = self.options.timestamping;
        if !flags.contains(Timestamping::OPT_ID) {
            stamp.key = 0;
        }
        let cut = !flags.contains(Timestamping::OPT_TSONLY);
        self.notices.push(Notice::Stamp { stamp, cut });
    }
}

impl Sockets {
    /// Takes the oldest notice of the error queue (`MSG_ERRQUEUE`).
    pub fn take_notice(&mut self, id: SocketId) -> Result<Notice, Error> {
        Ok(self.pop_notice(id)?.0)
    }

    /// The same, with what an error quotes of the datagram.
    pub(super) fn pop_notice(&mut self, id: SocketId) -> Result<(Notice, Option<Packet>), Error> {
        let socket = self.socket_mut(id)?;
        let notice = socket.notices.pop().ok_or(Error::WouldBlock)?;
        let more = !socket.notices.is_empty();
        // As Linux's sock_dequeue_err_skb: the pending error is that of the next, if that is ICMP.
        match socket.notices.notices.front().and_then(Notice::told_by_icmp) {
            Some(next) => socket.error = Some(next),
            None if notice.told_by_icmp().is_some() => socket.error = None,
            None => {}
        }
        if more {
            self.wake(id, Readiness::ERR);
        }
        let failed = matches!(notice, Notice::Failed(_));
        Ok((notice, if failed { self.take_quote(id) } else { None }))
    }

    /// Sets `SO_TIMESTAMPING`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bits that are not known or do not go together, and for numbers
    /// without a connection that could be counted from.
    pub fn set_timestamping(&mut self, id: SocketId, flags: Timestamping) -> Result<(), Error> {
        let known = Timestamping::ALL.contains(flags);
        let counts_from_here = flags.contains(Timestamping::OPT_ID_TCP);
        let numbered = flags.contains(Timestamping::OPT_ID);
        let stats = flags.contains(Timestamping::OPT_STATS);
        if !known || (counts_from_here && !numbered) || stats {
            return Err(Error::Invalid);
        }
        let was_numbered = self.socket(id)?.options.timestamping.contains(Timestamping::OPT_ID);
        let handle = self.handle(id).ok();
        let connection = handle.and_then(|handle| self.stack.tcp_mut(handle));
        match connection.filter(|connection| connection.state() != crate::tcp::State::Closed) {
            Some(connection) => {
                if numbered && !was_numbered {
                    connection.number_stamps(counts_from_here);
                }
                connection.set_stamping(flags.stamping());
            }
            None if numbered && !was_numbered => return Err(Error::Invalid),
            None => {}
        }
        self.socket_mut(id)?.options.timestamping = flags;
        Ok(())
    }

    /// A call that sent less than it was asked to has ended: what it sent is a write of its own.
    pub fn end_send(&mut self, id: SocketId) {
        let connection = self.handle(id).ok().and_then(|handle| self.stack.tcp_mut(handle));
        if let Some(connection) = connection {
            connection.mark_written();
        }
    }

    /// Takes over the times that a connection tells.
    pub(super) fn take_stamps(&mut self, id: SocketId, handle: TcpHandle) {
        while let Some(stamp) = self.stack.tcp_mut(handle).and_then(|tcp| tcp.take_stamp()) {
            if let Ok(socket) = self.socket_mut(id) {
                socket.note_stamp(stamp);
            }
        }
    }
}
