//! Readiness of sockets: the events of poll(2), and of the scripts in packetdrill's
//! `epoll`.

use super::{Phase, Progress, SocketId, Sockets};
use crate::tcp::State;
use core::ops::{BitOr, BitOrAssign};

/// A set of `poll` events, with Linux's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Readiness(u32);

impl Readiness {
    /// No event.
    pub const NONE: Readiness = Readiness(0);
    /// Data to read, or a connection to accept (`POLLIN`).
    pub const IN: Readiness = Readiness(0x001);
    /// Urgent data (`POLLPRI`).
    pub const PRI: Readiness = Readiness(0x002);
    /// Room to write (`POLLOUT`).
    pub const OUT: Readiness = Readiness(0x004);
    /// An error is pending (`POLLERR`).
    pub const ERR: Readiness = Readiness(0x008);
    /// Both directions have ended (`POLLHUP`).
    pub const HUP: Readiness = Readiness(0x010);
    /// Priority data may be written (`POLLWRBAND`): with [`Readiness::OUT`] of datagram sockets.
    pub const WRITE_BAND: Readiness = Readiness(0x200);
    /// The peer has ended its direction (`POLLRDHUP`).
    pub const READ_HUP: Readiness = Readiness(0x2000);
    /// [`Readiness::IN`] with ordinary data to read (`POLLRDNORM`).
    pub const READABLE: Readiness = Readiness(0x041);
    /// [`Readiness::OUT`] of ordinary data (`POLLWRNORM`).
    pub const WRITABLE: Readiness = Readiness(0x104);
    /// All events.
    pub const ALL: Readiness = Readiness(0x235f);

    /// The bits of `poll` and `epoll`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// True if the set has no event.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if the set has all events of `other`.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn set(&mut self, other: Readiness, on: bool) {
        if on {
            self.0 |= other.0;
        }
    }
}

impl BitOr for Readiness {
    type Output = Readiness;

    fn bitor(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }
}

impl BitOrAssign for Readiness {
    fn bitor_assign(&mut self, other: Readiness) {
        self.0 |= other.0;
    }
}

impl Sockets {
    /// Returns what a socket is ready for now. A closed socket is ready for nothing.
    pub fn readiness(&self, id: SocketId) -> Readiness {
        let Ok(socket) = self.socket(id) else { return Readiness::NONE };
        let mut ready = Readiness::NONE;
        if let Phase::Listening(listener) = &socket.phase {
            ready.set(Readiness::READABLE, self.is_acceptable(listener));
            return ready;
        }
        if let Phase::Datagram(datagrams) = &socket.phase {
            return self.datagram_readiness(id, socket, datagrams);
        }
        if socket.deferred {
            // A write sends the SYN, so the socket is writable (tcp(7), TCP_FASTOPEN_CONNECT).
            return Readiness::WRITABLE;
        }
        let connection = self.connection(socket);
        let state = connection.map_or(State::Closed, |connection| connection.state());
        let (read_shut, write_shut) = self.ended(id);
        ready.set(Readiness::HUP, read_shut && write_shut || state == State::Closed);
        ready.set(Readiness::READABLE | Readiness::READ_HUP, read_shut);
        // A child of Fast Open is usable before its handshake completes.
        if !state.is_opening() || socket.progress == Progress::Connected {
            // A read skips urgent data.
            let at_mark = connection.is_some_and(|connection| connection.is_urgent_left_out());
            let wanted = socket.options.receive_low_water.max(1) + usize::from(at_mark);
            let held = connection.map_or(0, |connection| connection.received_len());
            ready.set(Readiness::READABLE, held >= wanted);
            ready.set(Readiness::PRI, connection.is_some_and(|c| c.has_urgent()));
            let room = connection.is_none_or(|connection| connection.is_writable());
            let sends = room && (state == State::Closed || !self.lacks_frame(id, socket));
            ready.set(Readiness::WRITABLE, write_shut || sends);
        }
        ready.set(Readiness::ERR, socket.error.is_some() || !socket.notices.is_empty());
        ready
    }

    /// Returns which directions have ended, for whatever reason: reading, writing.
    pub(super) fn ended(&self, id: SocketId) -> (bool, bool) {
        let Ok(socket) = self.socket(id) else { return (true, true) };
        let Some(connection) = self.connection(socket) else {
            return (socket.read_shut, socket.write_shut);
        };
        let over = matches!(connection.state(), State::Closed);
        let peer = connection.peer_closed();
        (socket.read_shut || peer || over, socket.write_shut || over)
    }
}
