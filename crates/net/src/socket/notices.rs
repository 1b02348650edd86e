//! Error queue of a socket: what `recvmsg` with `MSG_ERRQUEUE` returns.
//!
//! While the queue is not empty the socket is ready with [`Readiness::ERR`]. Taking a notice while
//! more remain raises [`Readiness::ERR`] again (`zerocopy/epoll_edge.pkt`).

use super::{Error, ErrorNotice, Origin, Readiness, Socket, SocketId, Sockets};
use crate::stack::TcpHandle;
use crate::tcp::{Stamp, Stamping};
use alloc::collections::VecDeque;
use towpath_packet::Packet;

/// Maximum number of notices of one socket. Further timestamps are lost, so
/// that a program that reads none holds no more.
pub const NOTICES_MAX: usize = 1024;

/// Timestamps to report for sent data (`SO_TIMESTAMPING`): Linux's `SOF_TIMESTAMPING_*` bits. Bits
/// for received data or hardware can be set and read, and have no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamping(pub u32);

impl Timestamping {
    /// Reports when the data was handed to the device.
    pub const TX_SOFTWARE: Timestamping = Timestamping(1 << 1);
    /// Reports software timestamps.
    pub const SOFTWARE: Timestamping = Timestamping(1 << 4);
    /// Numbers the notices by the position of the byte in the data sent since this bit was set.
    pub const OPT_ID: Timestamping = Timestamping(1 << 7);
    /// Reports when the data was handed to the device's queue.
    pub const TX_SCHED: Timestamping = Timestamping(1 << 8);
    /// Reports when all of the data was acknowledged.
    pub const TX_ACK: Timestamping = Timestamping(1 << 9);
    /// Notices carry no copy of the sent data. They never do here; without this bit they report
    /// `MSG_TRUNC`.
    pub const OPT_TSONLY: Timestamping = Timestamping(1 << 11);
    /// Adds statistics to notices; not supported.
    pub const OPT_STATS: Timestamping = Timestamping(1 << 12);
    /// Numbers begin with the next byte written, not with the first unacknowledged byte.
    pub const OPT_ID_TCP: Timestamping = Timestamping(1 << 16);
    /// All bits of Linux 6.18.
    pub const ALL: Timestamping = Timestamping((1 << 19) - 1);

    /// True if all bits of `other` are set.
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
    /// A timestamp of sent data.
    Stamp {
        /// The event and its time. The key is zero without [`Timestamping::OPT_ID`].
        stamp: Stamp,
        /// The data of the notice was truncated (`MSG_TRUNC`).
        cut: bool,
    },
    /// Memory lent by the calls with the numbers `first` to `last` was returned.
    Lent {
        /// Number of the first call.
        first: u32,
        /// Number of the last call.
        last: u32,
        /// Bytes were copied after all. For joined notices, this is the value of the first.
        copied: bool,
    },
    /// A sent datagram did not arrive, or could not be sent.
    Failed(ErrorNotice),
}

impl Notice {
    /// The error, if an ICMP message reported it.
    fn icmp_error(&self) -> Option<Error> {
        match self {
            Notice::Failed(failed) if failed.origin != Origin::Local => Some(failed.error),
            _ => None,
        }
    }
}

/// Notices that wait to be taken, oldest first.
#[derive(Default)]
pub(super) struct ErrorQueue {
    notices: VecDeque<Notice>,
    /// Number of [`Notice::Lent`] notices.
    lent: usize,
}

impl ErrorQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.notices.is_empty()
    }

    /// Number of [`Notice::Lent`] notices.
    pub(super) fn lent(&self) -> usize {
        self.lent
    }

    /// Allocates room for `more` notices.
    pub(super) fn reserve(&mut self, more: usize) {
        self.notices.reserve(more);
    }

    /// Adds a notice of returned memory, or extends the last notice of the queue if the numbers
    /// follow it. Only the last notice can be extended (`msg_zerocopy.rst`, "Notification
    /// Batching"; `zerocopy/batch.pkt`), and it keeps its `copied` flag.
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

    /// Adds a datagram error. The caller has already counted it.
    pub(super) fn push_failed(&mut self, notice: ErrorNotice) {
        self.notices.push_back(Notice::Failed(notice));
    }

    /// Removes all datagram errors.
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

    /// Takes the oldest notice, and the packet that a datagram error quotes.
    pub(super) fn pop_notice(&mut self, id: SocketId) -> Result<(Notice, Option<Packet>), Error> {
        let socket = self.socket_mut(id)?;
        let notice = socket.notices.pop().ok_or(Error::WouldBlock)?;
        let more = !socket.notices.is_empty();
        // The pending error becomes that of the next notice, if ICMP reported that one (ip(7),
        // IP_RECVERR).
        match socket.notices.notices.front().and_then(Notice::icmp_error) {
            Some(next) => socket.error = Some(next),
            None if notice.icmp_error().is_some() => socket.error = None,
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
    /// [`Error::Invalid`] for unknown bits or bits that exclude each other, and for
    /// [`Timestamping::OPT_ID`] without a connection to count from.
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

    /// Ends a call that sent less than it was asked to: the bytes that it sent count as a whole
    /// write.
    pub fn end_send(&mut self, id: SocketId) {
        let connection = self.handle(id).ok().and_then(|handle| self.stack.tcp_mut(handle));
        if let Some(connection) = connection {
            connection.mark_written();
        }
    }

    /// Takes the timestamps that a connection reports.
    pub(super) fn take_stamps(&mut self, id: SocketId, handle: TcpHandle) {
        while let Some(stamp) = self.stack.tcp_mut(handle).and_then(|tcp| tcp.take_stamp()) {
            if let Ok(socket) = self.socket_mut(id) {
                socket.note_stamp(stamp);
            }
        }
    }
}
