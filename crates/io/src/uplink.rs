//! Uplinks: interfaces of the host as ports of a switch, through a packet socket or an AF_XDP
//! socket. docs/theory/uplinks.md compares the two.
//!
//! An [`Uplink`] is one queue of the interface. It needs capabilities to open, and none later. The
//! interface may go down, which [`is_up`](Uplink::is_up) reports; packets for it are dropped and
//! counted until it is up again. If the interface is deleted or moved to another network namespace,
//! the next call fails with [`Problem::Gone`].
//!
//! One thread at a time. Limits: those of `packet`, `xdp` and `umem`.

mod calls;
mod counters;
mod error;
mod open;
mod packet;
mod settings;
mod umem;
mod xdp;

pub use counters::UplinkCounters;
pub use error::{Problem, Step, UplinkError};
pub use open::SOCKET_BUFFER_BYTES;
pub use packet::CHECK;
pub use settings::{Mode, QUEUE_MAX, XdpSettings};
pub use umem::{FRAMES, RECEIVE_ENTRIES, TRANSMIT_ENTRIES};
pub use xdp::{MTU_MAX, RESERVE};

#[cfg(feature = "confine")]
pub(crate) use open::{attach_for, packet_for, xdp_for};

use packet::PacketSocket;
use rustix::fd::{AsFd, BorrowedFd};
use std::fmt;
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Caps, Context, Device, Input};
use xdp::Xdp;

/// An uplink; see the module documentation.
pub struct Uplink {
    socket: Socket,
    /// What was last reported.
    was_up: bool,
}

#[allow(clippy::large_enum_variant, reason = "an uplink is made once and never moved in bulk")]
enum Socket {
    Packet(PacketSocket),
    Xdp(Xdp),
}

/// How frames pass between the interface and its uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through a packet socket.
    Packet,
    /// Through an AF_XDP socket.
    Xdp {
        /// Where the XDP program runs: [`Mode::Native`] or [`Mode::Generic`].
        mode: Mode,
        /// The driver reads and writes the socket's memory without a copy.
        is_zerocopy: bool,
    },
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet => f.write_str("packet socket"),
            Self::Xdp { mode, is_zerocopy: true } => write!(f, "{mode} XDP without a copy"),
            Self::Xdp { mode, is_zerocopy: false } => write!(f, "{mode} XDP"),
        }
    }
}

impl Uplink {
    /// Opens a packet socket for an interface in the network namespace of this thread, for IP
    /// packets of at most `mtu` bytes and at most the interface's own MTU.
    ///
    /// # Errors
    /// [`UplinkError`]. An interface that is down is not an error.
    pub fn packet(interface: &str, mtu: u16) -> Result<Self, UplinkError> {
        Ok(Self { socket: Socket::Packet(PacketSocket::open(interface, mtu)?), was_up: true })
    }

    /// Opens an AF_XDP socket for a queue of an interface in the network namespace of this thread,
    /// for IP packets of at most `mtu` bytes and at most the interface's own MTU.
    ///
    /// # Errors
    /// [`UplinkError`]. An interface that is down is not an error.
    pub fn xdp(settings: &XdpSettings, mtu: u16) -> Result<Self, UplinkError> {
        Ok(Self { socket: Socket::Xdp(Xdp::open(settings, mtu)?), was_up: true })
    }

    /// True if the interface was up when it was last used or checked.
    pub fn is_up(&self) -> bool {
        match &self.socket {
            Socket::Packet(socket) => socket.is_up(),
            Socket::Xdp(socket) => socket.is_up(),
        }
    }

    /// Returns what has changed since the last call, for a log.
    pub fn take_event(&mut self) -> Option<&'static str> {
        let is_up = self.is_up();
        if std::mem::replace(&mut self.was_up, is_up) == is_up {
            return None;
        }
        Some(if is_up { "the interface is up" } else { "the interface is down" })
    }

    /// Returns how frames pass.
    pub fn way(&self) -> Way {
        match &self.socket {
            Socket::Packet(_) => Way::Packet,
            Socket::Xdp(socket) => {
                let (mode, is_zerocopy) = socket.way();
                Way::Xdp { mode, is_zerocopy }
            }
        }
    }

    /// Returns the counters since it was opened. A system call for an AF_XDP socket.
    pub fn counters(&self) -> UplinkCounters {
        match &self.socket {
            Socket::Packet(socket) => socket.counters(),
            Socket::Xdp(socket) => socket.counters(),
        }
    }
}

impl AsFd for Uplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Packet(socket) => socket.as_fd(),
            Socket::Xdp(socket) => socket.as_fd(),
        }
    }
}

/// Calls the same function of either socket.
macro_rules! either {
    ($uplink:expr, $call:ident($($argument:expr),*)) => {
        match &mut $uplink.socket {
            Socket::Packet(socket) => socket.$call($($argument),*),
            Socket::Xdp(socket) => socket.$call($($argument),*),
        }
    };
}

impl Device for Uplink {
    type Error = UplinkError;

    fn caps(&self) -> Caps {
        match &self.socket {
            Socket::Packet(socket) => socket.caps(),
            Socket::Xdp(socket) => socket.caps(),
        }
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn next_deadline(&self) -> Option<Instant> {
        match &self.socket {
            Socket::Packet(socket) => socket.next_deadline(),
            Socket::Xdp(socket) => socket.next_deadline(),
        }
    }

    fn turn(&mut self, is_readable: bool, cx: &mut Context<'_>) -> Result<(), UplinkError> {
        either!(self, turn(is_readable, cx))
    }

    fn poll(&mut self) -> bool {
        either!(self, poll())
    }

    fn arm(&mut self) -> bool {
        either!(self, arm())
    }

    fn looks_by_call(&self) -> bool {
        matches!(self.socket, Socket::Packet(_))
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, UplinkError> {
        either!(self, receive(burst, cx))
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), UplinkError> {
        either!(self, transmit(burst, cx))
    }

    fn refused(&self) -> u64 {
        match &self.socket {
            Socket::Packet(socket) => socket.refused(),
            Socket::Xdp(socket) => socket.refused(),
        }
    }

    fn rest(&mut self) {
        either!(self, rest());
    }
}
