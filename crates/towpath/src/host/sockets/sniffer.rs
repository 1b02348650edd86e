//! Sniffers: live frames of a host, lent to who looks at them.
//!
//! A sniffer is a packet socket that reads only: each frame that comes or leaves and that its
//! filter wants is shared with it, and nothing is copied but headers. What waits and what its user
//! keeps counts with its receive buffer; frames beyond it are lost to the sniffer alone, and
//! counted. Memory that is lent by another host of the process, or by programs of this
//! one, is its lender's again at the end of its term; who keeps pieces keeps a copy then.

use crate::host::sockets::raw::{FramePart, PacketSocket};
use crate::host::{Held, Host, UdpSocket};
use std::fmt;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use towpath_net::bpf::Program;
use towpath_net::socket::{PacketOptions, ReceivedDatagram};

/// A reader of all frames of a host that its filter wants; see [`Host::sniffer`]. Any thread;
/// dropping it ends it, pieces that were received stay valid.
pub struct Sniffer(PacketSocket);

impl Host {
    /// Begins to look at frames, those that come and those that leave; what `filter` refuses is
    /// neither shared nor counted. Filters are made of expressions
    /// ([`bpf::compile`](crate::host::bpf::compile)) or of instructions, see the first bytes of a
    /// frame from the Ethernet header on, and may cut it: they return how many bytes are wanted.
    ///
    /// # Errors
    /// There are too many sockets.
    pub fn sniffer(&self, filter: Option<Program>) -> io::Result<Sniffer> {
        let socket = PacketSocket::new(self, PacketOptions::NONE, FramePart::Whole)?;
        socket.set_filter(filter)?;
        // Before, it would have seen what the filter refuses.
        socket.set_packet_options(|options| options.protocol = PacketOptions::ALL)?;
        Ok(Sniffer(socket))
    }
}

impl Sniffer {
    /// Receives a frame without copying it: its headers, as far as they are private, appended to
    /// `headers`, and what follows them as pieces, appended to `into`. How many headers are private
    /// depends on where the frame comes from: 14 bytes or more. Super-packets are one frame, and
    /// checksums that the device completes are not complete.
    /// [`ReceivedDatagram::link`] tells which way it went.
    ///
    /// Memory goes back to whoever lent it when the pieces are dropped, on whatever thread, or at
    /// the end of its term.
    ///
    /// # Errors
    /// `WouldBlock` after the timeout, or without a frame if it is not to wait; `ENOBUFS` if too
    /// much is kept: the frame stays.
    pub fn recv_lent(
        &self,
        headers: &mut Vec<u8>,
        into: &mut Vec<Held>,
    ) -> io::Result<ReceivedDatagram> {
        self.0.recv_lent(headers, into)
    }

    /// The same for futures made by hand.
    pub fn poll_recv_lent(
        &self,
        cx: &mut Context<'_>,
        headers: &mut Vec<u8>,
        into: &mut Vec<Held>,
    ) -> Poll<io::Result<ReceivedDatagram>> {
        self.0.poll_recv_lent(cx, headers, into)
    }

    /// Sets another filter. Frames that wait already stay.
    pub fn set_filter(&self, filter: Option<Program>) -> io::Result<()> {
        self.0.set_filter(filter)
    }

    /// Sets how many bytes of others' memory may wait and be kept. The last frame may go beyond.
    pub fn set_receive_buffer(&self, bytes: u32) -> io::Result<()> {
        self.0.set_options(|options| options.receive_buffer = Some(bytes))
    }

    /// The socket, to be watched.
    pub(crate) fn as_datagrams(&self) -> &UdpSocket {
        self.0.as_datagrams()
    }

    /// Frames that the filter wanted, and those of them that were lost, since the last call.
    pub fn take_statistics(&self) -> io::Result<(u32, u32)> {
        self.0.take_statistics()
    }

    /// How long a call waits; `None`, as at first, for as long as it takes.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    /// Whether calls fail instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }
}

impl fmt::Debug for Sniffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sniffer").finish_non_exhaustive()
    }
}
