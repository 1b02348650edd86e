//! Received datagrams: queueing and reading.

use super::super::{Error, Phase, Readiness, Socket, SocketId, Sockets, to_family};
use super::{DATAGRAMS_MAX, FrameSource, QUEUED_MAX, receive_buffer};
use crate::counters::DropReason;
use crate::stack::{Context, Datagram};
use core::net::SocketAddr;
use core::num::NonZeroU16;
use towpath_packet::{Ledger, Packet, Piece, Site};

/// Bytes charged for a queued packet in addition to its frames: the packet handle.
const OVERHEAD: usize = 512;

/// A received packet and its metadata.
pub(super) struct Waiting {
    pub(super) packet: Packet,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Payload bytes of each datagram of a super-packet.
    pub(super) segment_size: Option<NonZeroU16>,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// The headers are read too, before the pieces.
    pub(super) with_headers: bool,
    /// Source of a frame, for packet sockets.
    pub(super) link: Option<FrameSource>,
}

impl Waiting {
    /// A packet without other metadata.
    pub(super) fn new(packet: Packet, nowhere: SocketAddr) -> Self {
        Self {
            packet,
            local: nowhere,
            remote: nowhere,
            segment_size: None,
            tos: 0,
            ttl: 0,
            with_headers: false,
            link: None,
        }
    }
}

/// A packet that waits to be read.
pub(super) struct Queued {
    waiting: Waiting,
    /// A super-packet is read in one call.
    whole: bool,
    /// Bytes charged for the packet.
    held: usize,
    /// The socket's drop count when the packet was queued.
    dropped: u32,
}

impl core::ops::Deref for Queued {
    type Target = Waiting;

    fn deref(&self) -> &Waiting {
        &self.waiting
    }
}

impl Queued {
    /// Bytes of the next read.
    fn next_len(&self) -> usize {
        let len = self.packet.payload_len();
        match self.segment_size {
            Some(size) if !self.whole => len.min(usize::from(size.get())),
            _ => len + self.headers().len(),
        }
    }

    /// The headers, if they are read.
    fn headers(&self) -> &[u8] {
        if self.with_headers { self.packet.headers() } else { &[] }
    }

    fn received(&self, socket: &Socket, copied: usize) -> ReceivedDatagram {
        let len = self.next_len();
        ReceivedDatagram {
            len,
            copied,
            from: to_family(self.remote, socket.family),
            to: to_family(self.local, socket.family),
            segment_size: self.segment_size.filter(|_| self.whole),
            tos: self.tos,
            ttl: self.ttl,
            dropped: self.dropped,
            link: self.link,
        }
    }
}

/// Metadata of a datagram that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceivedDatagram {
    /// Length of the datagram.
    pub len: usize,
    /// Bytes copied to the caller's buffers.
    pub copied: usize,
    /// Source address and port.
    pub from: SocketAddr,
    /// Destination address and port.
    pub to: SocketAddr,
    /// Set if several datagrams were coalesced: the length of each but the last, which may be
    /// shorter (`UDP_GRO`).
    pub segment_size: Option<NonZeroU16>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// The socket's drop count when this datagram was queued (`SO_RXQ_OVFL`).
    pub dropped: u32,
    /// Source of a frame, on packet sockets.
    pub link: Option<FrameSource>,
}

impl Sockets {
    /// Takes the stack's received datagrams and datagram errors.
    pub(in crate::socket) fn drain_datagrams(&mut self, cx: &mut Context<'_>) {
        while let Some(datagram) = self.stack.next_datagram() {
            self.take_in(datagram, cx);
        }
        while let Some(packet) = self.stack.next_raw() {
            self.take_in_raw(packet, cx);
        }
        while let Some(frame) = self.stack.next_frame() {
            self.show_frame(&frame.packet, frame.outgoing, None, cx);
        }
        while let Some(error) = self.stack.next_udp_error() {
            self.on_udp_error(error, cx);
        }
    }

    fn take_in(&mut self, datagram: Datagram, cx: &mut Context<'_>) {
        if datagram.local.ip().is_multicast() {
            return self.take_in_group(datagram, cx);
        }
        let Some(id) = self.find_datagram(datagram.local, datagram.remote) else {
            self.stack.count_drop(DropReason::UdpNoSocket);
            return self.stack.refuse_datagram(&datagram, cx);
        };
        let Datagram { local, remote, packet, segment_size, tos, ttl } = datagram;
        let waiting =
            Waiting { local, remote, segment_size, tos, ttl, ..Waiting::new(packet, local) };
        self.enqueue(id, waiting, cx);
    }

    /// Queues a packet at a socket, if there is room.
    pub(super) fn enqueue(&mut self, id: SocketId, waiting: Waiting, cx: &mut Context<'_>) {
        let held = held(&waiting.packet);
        if !self.charge(id, held, cx) {
            return;
        }
        let Ok(socket) = self.socket_mut(id) else { return };
        let whole = socket.options.datagram.coalesced;
        let Phase::Datagram(datagrams) = &mut socket.phase else { return };
        let dropped = datagrams.dropped;
        datagrams.queue.push_back(Queued { waiting, whole, held, dropped });
        self.wake(id, Readiness::READABLE);
    }

    /// Charges a socket for one more queued packet. Returns false and counts a drop if there is no
    /// room.
    pub(super) fn charge(&mut self, id: SocketId, held: usize, cx: &mut Context<'_>) -> bool {
        let held_max = cx.memory.capacity_bytes() / 4;
        let (all, all_held) = (self.datagrams.queued, self.datagrams.held);
        let Ok(socket) = self.socket_mut(id) else { return false };
        let own_max = receive_buffer(socket).saturating_sub(socket.handed_out());
        let Phase::Datagram(datagrams) = &mut socket.phase else { return false };
        let count = datagrams.queue.len() + datagrams.errors.len();
        // The last packet may exceed the buffer: a buffer takes one packet, however small it is.
        let own_room = datagrams.held <= own_max && count < DATAGRAMS_MAX;
        if !own_room || all >= QUEUED_MAX || all_held + held > held_max {
            datagrams.dropped = datagrams.dropped.wrapping_add(1);
            self.stack.count_drop(DropReason::UdpNoRoom);
            return false;
        }
        datagrams.held += held;
        self.datagrams.queued += 1;
        self.datagrams.held += held;
        true
    }

    /// Reads a datagram into the buffers; bytes beyond them are lost. With `peek` the datagram
    /// stays.
    ///
    /// # Errors
    /// The socket's pending error first, then [`Error::WouldBlock`] if there is none.
    pub fn receive_datagram(
        &mut self,
        id: SocketId,
        into: &mut [&mut [u8]],
        peek: bool,
        ledger: &Ledger,
    ) -> Result<ReceivedDatagram, Error> {
        self.datagram_error(id)?;
        let socket = self.socket(id)?;
        let first = socket.datagrams()?.queue.front().ok_or(Error::WouldBlock)?;
        let (headers, len) = (first.headers(), first.next_len());
        let copied = scatter(headers, first.packet.pieces(), len, into, ledger);
        let received = first.received(socket, copied);
        if !peek {
            ledger.carry(copied);
            self.consume_datagram(id)?;
        }
        Ok(received)
    }

    /// Returns the next datagram: the headers to read that are in no piece, the packet whose pieces
    /// hold the rest, and its metadata.
    pub(in crate::socket) fn next_datagram(
        &self,
        id: SocketId,
    ) -> Result<(&[u8], &Packet, ReceivedDatagram), Error> {
        let socket = self.socket(id)?;
        let first = socket.datagrams()?.queue.front().ok_or(Error::WouldBlock)?;
        Ok((first.headers(), &first.packet, first.received(socket, first.next_len())))
    }

    /// Bytes of the next datagram; zero if the queue is empty (`FIONREAD`).
    pub(in crate::socket) fn datagram_len(&self, socket: &Socket) -> Result<usize, Error> {
        Ok(socket.datagrams()?.queue.front().map_or(0, Queued::next_len))
    }

    /// Takes the pending error, if there is one.
    pub(in crate::socket) fn datagram_error(&mut self, id: SocketId) -> Result<(), Error> {
        let socket = self.socket_mut(id)?;
        socket.datagrams()?;
        socket.error.take().map_or(Ok(()), Err)
    }

    /// Removes the datagram that was just read, or its part of a super-packet.
    pub(in crate::socket) fn consume_datagram(&mut self, id: SocketId) -> Result<(), Error> {
        let datagrams = self.socket_mut(id)?.datagrams_mut()?;
        let Some(first) = datagrams.queue.front_mut() else { return Ok(()) };
        let len = first.next_len() - first.headers().len();
        first.waiting.packet.drop_front(len);
        if first.packet.payload_len() == 0 {
            let held = first.held;
            datagrams.queue.pop_front();
            datagrams.held -= held;
            self.datagrams.release(1, held);
        }
        Ok(())
    }
}

/// Bytes that a packet keeps from their lenders, and its handle.
pub(super) fn held(packet: &Packet) -> usize {
    OVERHEAD + packet.pieces().map(Piece::held).sum::<usize>()
}

/// Copies `headers` and `pieces`, `len` bytes in all, to buffers one after the other, as far as
/// there is room; returns how many.
pub(super) fn scatter<'a>(
    mut headers: &[u8],
    pieces: impl Iterator<Item = &'a Piece>,
    len: usize,
    into: &mut [&mut [u8]],
    ledger: &Ledger,
) -> usize {
    let mut buffers = into.iter_mut();
    let mut room: &mut [u8] = &mut [];
    let mut copied = 0;
    while !headers.is_empty() {
        if room.is_empty() {
            let Some(next) = buffers.next() else { return copied };
            room = next;
            continue;
        }
        let count = headers.len().min(room.len());
        room[..count].copy_from_slice(&headers[..count]);
        (room, headers) = (&mut room[count..], &headers[count..]);
        copied += count;
    }
    for piece in pieces {
        let (mut at, end) = (0, piece.len().min(len - copied));
        while at < end {
            if room.is_empty() {
                let Some(next) = buffers.next() else { return copied };
                room = next;
                continue;
            }
            let count = ledger.copy(Site::SocketReceive, &piece.slice(at, end - at), room);
            room = &mut room[count..];
            at += count;
            copied += count;
        }
    }
    copied
}
