//! Sniffers: live frames of a host, lent to the program that looks at them.
//!
//! A sniffer is a packet socket that only reads. Each frame that arrives or leaves and passes its
//! filter is shared with it; only headers are copied. Frames that wait and frames that the program
//! keeps count against its receive buffer; frames beyond it are lost to the sniffer alone, and
//! counted. Memory lent by another host of the process, or by programs of this one, goes back to
//! its lender at the end of its term; pieces that are kept longer then show a copy.

use crate::host::sockets::raw::{FramePart, PacketSocket};
use crate::host::{Host, ReceivedPiece, UdpSocket};
use std::fmt;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use towpath_net::bpf::Program;
use towpath_net::socket::{PacketOptions, ReceivedDatagram};

/// A reader of all frames of a host that pass its filter; see [`Host::sniffer`]. Any thread may use
/// it. Dropping it ends the capture; received pieces stay valid.
pub struct Sniffer(PacketSocket);

impl Host {
    /// Starts to capture frames in both directions. Frames that `filter` rejects are neither shared
    /// nor counted. Filters are made of expressions ([`bpf::compile`](crate::host::bpf::compile))
    /// or of instructions. They see the first bytes of a frame, from the Ethernet header on, and
    /// return how many bytes of it to keep.
    ///
    /// # Errors
    /// Fails if there are too many sockets.
    pub fn sniffer(&self, filter: Option<Program>) -> io::Result<Sniffer> {
        let socket = PacketSocket::new(self, PacketOptions::NONE, FramePart::Whole)?;
        socket.set_filter(filter)?;
        // Set last, because the socket would otherwise capture frames that the filter rejects.
        socket.set_packet_options(|options| options.protocol = PacketOptions::ALL)?;
        Ok(Sniffer(socket))
    }
}

impl Sniffer {
    /// Receives a frame without copying it: private headers are appended to `headers`, and the rest
    /// as pieces to `into`. The number of private header bytes depends on the frame's origin: 14 or
    /// more. A super-packet is one frame, and checksums that the device completes are not complete.
    /// [`ReceivedDatagram::link`] holds the direction.
    ///
    /// The memory goes back to its lender when the pieces are dropped, on any thread, or at the end
    /// of its term.
    ///
    /// # Errors
    /// `WouldBlock` after the timeout, or at once if the sniffer is non-blocking; `ENOBUFS` if too
    /// many bytes are held. The frame stays in the queue.
    pub fn recv_lent(
        &self,
        headers: &mut Vec<u8>,
        into: &mut Vec<ReceivedPiece>,
    ) -> io::Result<ReceivedDatagram> {
        self.0.recv_lent(headers, into)
    }

    /// Receives a frame like [`Sniffer::recv_lent`], for hand-written futures.
    pub fn poll_recv_lent(
        &self,
        cx: &mut Context<'_>,
        headers: &mut Vec<u8>,
        into: &mut Vec<ReceivedPiece>,
    ) -> Poll<io::Result<ReceivedDatagram>> {
        self.0.poll_recv_lent(cx, headers, into)
    }

    /// Sets another filter. Frames that already wait stay.
    pub fn set_filter(&self, filter: Option<Program>) -> io::Result<()> {
        self.0.set_filter(filter)
    }

    /// Sets how many bytes of others' memory may wait and be kept. The last frame may exceed it.
    pub fn set_receive_buffer(&self, bytes: u32) -> io::Result<()> {
        self.0.set_options(|options| options.receive_buffer = Some(bytes))
    }

    /// Returns the underlying socket, to watch it.
    pub(crate) fn as_datagrams(&self) -> &UdpSocket {
        self.0.as_datagrams()
    }

    /// Takes the counts since the last call: frames that passed the filter, and how many of them
    /// were lost.
    pub fn take_statistics(&self) -> io::Result<(u32, u32)> {
        self.0.take_statistics()
    }

    /// Sets how long a call blocks; `None`, the default, for no limit.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.0.set_read_timeout(timeout)
    }

    /// Sets whether calls fail with `WouldBlock` instead of blocking.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        self.0.set_nonblocking(nonblocking)
    }
}

impl fmt::Debug for Sniffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sniffer").finish_non_exhaustive()
    }
}
