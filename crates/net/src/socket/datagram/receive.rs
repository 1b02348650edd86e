//! Datagrams that come in: into queues, and out of them.

use super::super::{Error, Phase, Readiness, Socket, SocketId, Sockets, to_family};
use super::{DATAGRAMS_MAX, QUEUED_MAX, receive_buffer};
use crate::counters::DropReason;
use crate::stack::{Context, Datagram};
use core::net::SocketAddr;
use core::num::NonZeroU16;
use towpath_packet::{Ledger, Packet, Piece, Site};

/// Bytes that a waiting packet is counted for beside its frames: its handle.
const OVERHEAD: usize = 512;

/// A packet that waits to be read.
pub(super) struct Queued {
    packet: Packet,
    local: SocketAddr,
    remote: SocketAddr,
    /// Bytes of each datagram of a super-packet.
    segment_size: Option<NonZeroU16>,
    /// A super-packet is read as one.
    whole: bool,
    tos: u8,
    ttl: u8,
    /// Bytes that it is counted for.
    held: usize,
    /// Datagrams that the socket had lost when it came.
    dropped: u32,
}

impl Queued {
    /// Bytes of what the next read gets.
    fn next_len(&self) -> usize {
        let len = self.packet.payload_len();
        match self.segment_size {
            Some(size) if !self.whole => len.min(usize::from(size.get())),
            _ => len,
        }
    }

    fn told(&self, socket: &Socket, copied: usize) -> ReceivedDatagram {
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
        }
    }
}

/// What is told of a datagram that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// Bytes that it has.
    pub len: usize,
    /// Bytes that there was room for.
    pub copied: usize,
    /// Where it came from.
    pub from: SocketAddr,
    /// Where it was sent to.
    pub to: SocketAddr,
    /// It stands for datagrams of so many bytes each, the last of which may have fewer
    /// (`UDP_GRO`).
    pub segment_size: Option<NonZeroU16>,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Datagrams that the socket had lost when this one came (`SO_RXQ_OVFL`).
    pub dropped: u32,
}

impl Sockets {
    /// Takes up the stack's datagrams and the errors about them.
    pub(in crate::socket) fn drain_datagrams(&mut self, cx: &mut Context<'_>) {
        while let Some(datagram) = self.stack.next_datagram() {
            self.take_in(datagram, cx);
        }
        while let Some(error) = self.stack.next_udp_error() {
            self.on_udp_error(error, cx);
        }
    }

    fn take_in(&mut self, datagram: Datagram, cx: &mut Context<'_>) {
        let Some(id) = self.find_datagram(datagram.local, datagram.remote) else {
            self.stack.count_drop(DropReason::UdpNoSocket);
            return self.stack.refuse_datagram(&datagram, cx);
        };
        let Datagram { local, remote, packet, segment_size, tos, ttl } = datagram;
        let held = held(&packet);
        if !self.charge(id, held, cx) {
            return;
        }
        let Ok(socket) = self.socket_mut(id) else { return };
        let whole = socket.options.datagram.coalesced;
        let Phase::Datagram(datagrams) = &mut socket.phase else { return };
        let dropped = datagrams.dropped;
        let queued = Queued { packet, local, remote, segment_size, whole, tos, ttl, held, dropped };
        datagrams.queue.push_back(queued);
        self.wake(id, Readiness::READABLE);
    }

    /// Counts one more packet that waits at a socket. False, and the drop is counted, without room
    /// for it.
    pub(super) fn charge(&mut self, id: SocketId, held: usize, cx: &mut Context<'_>) -> bool {
        let held_max = cx.memory.capacity_bytes() / 4;
        let (all, all_held) = (self.datagrams.queued, self.datagrams.held);
        let Ok(socket) = self.socket_mut(id) else { return false };
        let own_max = receive_buffer(socket);
        let Phase::Datagram(datagrams) = &mut socket.phase else { return false };
        let count = datagrams.queue.len() + datagrams.errors.len();
        // As Linux's __udp_enqueue_schedule_skb: the last may go beyond.
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

    /// Reads a datagram: as much as there is room for, the rest is lost. With `peek` it stays.
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
        let copied = scatter(first.packet.pieces(), first.next_len(), into, ledger);
        let told = first.told(socket, copied);
        if !peek {
            self.consume(id)?;
        }
        Ok(told)
    }

    /// Takes a datagram as it is: its pieces are the payload, and nothing is copied.
    ///
    /// # Errors
    /// As [`Sockets::receive_datagram`], and [`Error::NoBuffers`] without a packet for it.
    pub fn take_datagram(
        &mut self,
        id: SocketId,
        cx: &mut Context<'_>,
    ) -> Result<(Packet, ReceivedDatagram), Error> {
        self.datagram_error(id)?;
        let socket = self.socket(id)?;
        let first = socket.datagrams()?.queue.front().ok_or(Error::WouldBlock)?;
        let len = first.next_len();
        let told = first.told(socket, len);
        let mut taken = cx.memory.packet().ok_or(Error::NoBuffers)?;
        let mut left = len;
        for piece in first.packet.pieces() {
            let count = piece.len().min(left);
            // As many pieces as the packet they come from has.
            taken.push_piece(piece.slice(0, count)).map_err(|_| Error::NoBuffers)?;
            left -= count;
        }
        self.consume(id)?;
        Ok((taken, told))
    }

    /// Bytes of the next datagram; zero if there is none (`FIONREAD`).
    pub(in crate::socket) fn datagram_len(&self, socket: &Socket) -> Result<usize, Error> {
        Ok(socket.datagrams()?.queue.front().map_or(0, Queued::next_len))
    }

    /// Takes the pending error, if there is one.
    pub(super) fn datagram_error(&mut self, id: SocketId) -> Result<(), Error> {
        let socket = self.socket_mut(id)?;
        socket.datagrams()?;
        socket.error.take().map_or(Ok(()), Err)
    }

    /// The first datagram has been read.
    fn consume(&mut self, id: SocketId) -> Result<(), Error> {
        let datagrams = self.socket_mut(id)?.datagrams_mut()?;
        let Some(first) = datagrams.queue.front_mut() else { return Ok(()) };
        let len = first.next_len();
        first.packet.drop_front(len);
        if first.packet.payload_len() == 0 {
            let held = first.held;
            datagrams.queue.pop_front();
            datagrams.held -= held;
            self.datagrams.release(1, held);
        }
        Ok(())
    }
}

/// Bytes that a packet keeps from their lenders.
pub(super) fn held(packet: &Packet) -> usize {
    OVERHEAD + packet.pieces().map(Piece::held).sum::<usize>()
}

/// Copies the first `len` bytes of `pieces` to buffers, one after the other, as far as there is
/// room; returns how many.
pub(super) fn scatter<'a>(
    pieces: impl Iterator<Item = &'a Piece>,
    len: usize,
    into: &mut [&mut [u8]],
    ledger: &Ledger,
) -> usize {
    let mut buffers = into.iter_mut();
    let mut room: &mut [u8] = &mut [];
    let mut copied = 0;
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
