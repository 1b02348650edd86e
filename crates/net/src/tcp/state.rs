//! State, errors and events of a connection.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// Connection states (RFC 9293 §3.3.2). LISTEN is missing: a listener is not a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum State {
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
    Closed,
}

impl State {
    /// True until the handshake is over.
    pub fn is_opening(self) -> bool {
        matches!(self, State::SynSent | State::SynReceived)
    }

    /// True if data may still arrive.
    pub(super) fn can_receive(self) -> bool {
        matches!(self, State::Established | State::FinWait1 | State::FinWait2)
    }

    /// True if data or a FIN may still have to be sent.
    pub(super) fn can_send(self) -> bool {
        matches!(
            self,
            State::Established
                | State::CloseWait
                | State::FinWait1
                | State::Closing
                | State::LastAck
        )
    }
}

/// Why a connection ended before both sides closed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionError {
    /// The peer answered the SYN with a reset.
    Refused,
    /// The peer reset the connection.
    Reset,
    /// The peer stopped answering.
    TimedOut,
    /// An ICMP error reported that the peer is unreachable.
    Unreachable,
    /// Our side aborted the connection.
    Aborted,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectionError::Refused => "connection refused",
            ConnectionError::Reset => "connection reset by peer",
            ConnectionError::TimedOut => "connection timed out",
            ConnectionError::Unreachable => "peer unreachable",
            ConnectionError::Aborted => "connection aborted",
        })
    }
}

impl core::error::Error for ConnectionError {}

/// Events of a connection since its owner last took them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Events(u8);

impl Events {
    /// A peer connects; if the answer is held, it waits for it.
    pub const INCOMING: Events = Events(1);
    /// The handshake is over.
    pub const ESTABLISHED: Events = Events(2);
    /// There is data to receive.
    pub const READABLE: Events = Events(4);
    /// There is room to send again.
    pub const WRITABLE: Events = Events(8);
    /// The peer will send no more.
    pub const PEER_CLOSED: Events = Events(16);
    /// All data and the FIN are acknowledged.
    pub const SENT_ALL: Events = Events(32);
    /// The connection is over, with or without an error.
    pub const CLOSED: Events = Events(64);

    /// Transmit timestamps are ready to be taken with [`super::Connection::take_stamp`].
    pub const STAMPED: Events = Events(128);

    /// True if nothing happened.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if `other` happened.
    pub fn contains(self, other: Events) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Events {
    type Output = Events;

    fn bitor(self, other: Events) -> Events {
        Events(self.0 | other.0)
    }
}

impl BitOrAssign for Events {
    fn bitor_assign(&mut self, other: Events) {
        self.0 |= other.0;
    }
}
