//! Sniffers: live frames of a host, lent to who looks at them.
//!
//! A sniffer is a packet socket that reads only: each frame that comes or leaves and that its
//! filter wants is shared with it, and nothing is copied but headers. What waits and what its user
//! keeps counts with its receive buffer; frames beyond it are lost to the sniffer alone, and
//! counted. Memory that is lent by another host of the process, or by programs of this
//! one, is its lender's again at the end of its term; who keeps pieces keeps a copy then.

use super::Host;
use super::shape::Shape;
use super::udp::{WHOLE, ready};
use super::wait::block;
use super::{io_error, would_block};
use std::fmt;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;
use towpath_net::bpf::Program;
use towpath_net::socket::{Error, Options, PacketOptions, ReceivedDatagram, SocketId};
use towpath_packet::Held;

/// A reader of all frames of a host that its filter wants; see [`Host::sniffer`]. Any thread;
/// dropping it ends it, pieces that were received stay valid.
pub struct Sniffer {
    host: Host,
    id: SocketId,
    shape: Shape,
}

impl Host {
    /// Begins to look at frames, those that come and those that leave; what `filter` refuses is
    /// neither shared nor counted. Filters are made of expressions
    /// ([`bpf::compile`](super::bpf::compile)) or of instructions, see the first bytes of a frame
    /// from the Ethernet header on, and may cut it: they return how many bytes are wanted.
    ///
    /// # Errors
    /// There are too many sockets.
    pub fn sniffer(&self, filter: Option<Program>) -> io::Result<Sniffer> {
        let id = self.owner.core.call(|state, _| {
            let id = state.sockets.packet_socket(PacketOptions::ALL, false)?;
            state.sockets.set_packet_filter(id, filter)?;
            state.add(id, None);
            Ok(id)
        });
        let (host, id) = (self.clone(), id.map_err(io_error)?);
        Ok(Sniffer { host, id, shape: Shape::default() })
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
        let wait = self.shape.read_wait();
        let received = block(wait, |cx| self.poll_recv_lent(cx, headers, into));
        received.unwrap_or_else(|| Err(would_block()))
    }

    /// The same for futures made by hand.
    pub fn poll_recv_lent(
        &self,
        cx: &mut Context<'_>,
        headers: &mut Vec<u8>,
        into: &mut Vec<Held>,
    ) -> Poll<io::Result<ReceivedDatagram>> {
        let id = self.id;
        let received = self.host.owner.core.call(|state, now| {
            let received = state.with(now, |sockets, _, cx| {
                sockets.receive_frame_lent(id, &WHOLE, (headers, into), cx)
            });
            if received == Err(Error::WouldBlock) {
                state.entry(id).readers.add(cx.waker());
            }
            received
        });
        ready(received)
    }

    /// Sets another filter. Frames that wait already stay.
    pub fn set_filter(&self, filter: Option<Program>) -> io::Result<()> {
        let core = &self.host.owner.core;
        core.call(|state, _| state.sockets.set_packet_filter(self.id, filter)).map_err(io_error)
    }

    /// Sets how many bytes of others' memory may wait and be kept. The last frame may go beyond.
    pub fn set_receive_buffer(&self, bytes: u32) -> io::Result<()> {
        let set = |options: &mut Options| options.receive_buffer = Some(bytes);
        let core = &self.host.owner.core;
        core.call(|state, now| state.sockets.set_options(self.id, now.now, set)).map_err(io_error)
    }

    /// Frames that the filter wanted, and those of them that were lost, since the last call.
    pub fn take_statistics(&self) -> io::Result<(u32, u32)> {
        let core = &self.host.owner.core;
        core.call(|state, _| state.sockets.take_packet_statistics(self.id)).map_err(io_error)
    }

    /// How long a call waits; `None`, as at first, for as long as it takes.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.shape.set_read_timeout(timeout)
    }

    /// Whether calls fail instead of waiting.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.shape.set_nonblocking(nonblocking);
    }
}

impl Drop for Sniffer {
    fn drop(&mut self) {
        self.host.owner.core.call(|state, now| state.close(self.id, now.now));
    }
}

impl fmt::Debug for Sniffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sniffer").finish_non_exhaustive()
    }
}
