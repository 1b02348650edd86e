//! Datagrams that go out (Linux's `udp_sendmsg` and `udpv6_sendmsg`).

use super::super::{Error, Socket, SocketId, Sockets, from_family};
use super::errors::{ErrorNotice, Origin};
use super::{Datagrams, PathMtu, send_buffer};
use crate::gso::UDP_SEGMENTS_MAX;
use crate::stack::{Context, UdpSend};
use crate::wire::{ipv4, ipv6, udp};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use towpath_packet::pool::SMALL_FRAME_BYTES;
use towpath_packet::{Ledger, Memory, Packet, Piece, Site};

/// Longest payload over IPv4, whose length counts its header.
const PAYLOAD_MAX_V4: usize = u16::MAX as usize - ipv4::HEADER_LEN - udp::HEADER_LEN;
/// Longest payload over IPv6.
const PAYLOAD_MAX_V6: usize = u16::MAX as usize - udp::HEADER_LEN;
/// Bytes that a packet that was sent is counted for beside its payload.
const OVERHEAD: usize = 768;

/// How to send: what is left out is as the socket's options say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendTo {
    /// Where to; the socket's peer otherwise.
    pub to: Option<SocketAddr>,
    /// The address of ours to send from (`IP_PKTINFO`).
    pub from: Option<IpAddr>,
    /// Type of service or traffic class.
    pub tos: Option<u8>,
    /// Time to live or hop limit.
    pub ttl: Option<u8>,
    /// Payload bytes of each datagram (`UDP_SEGMENT`).
    pub segment_size: Option<u16>,
}

/// What a send has come to before its bytes are looked at.
struct Way {
    local: SocketAddr,
    remote: SocketAddr,
    how: UdpSend,
}

impl Sockets {
    /// Sends `buffers`, one after the other, as one datagram, or as datagrams of the segment size.
    /// They are copied. Returns how many bytes.
    pub fn send_datagram(
        &mut self,
        id: SocketId,
        buffers: &[&[u8]],
        send: &SendTo,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        let way = self.prepare_datagram(id, len, send)?;
        let mut packet = cx.memory.packet().ok_or(Error::NoBuffers)?;
        gather(buffers, len, &mut packet, cx.memory, cx.ledger)?;
        self.dispatch(id, packet, &way, cx);
        Ok(len)
    }

    /// Sends pieces as one datagram, or as datagrams of the segment size; they are lent, not
    /// copied. At most [`towpath_packet::packet::PIECES_MAX`].
    pub fn send_datagram_pieces(
        &mut self,
        id: SocketId,
        pieces: impl IntoIterator<Item = Piece>,
        send: &SendTo,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let mut packet = cx.memory.packet().ok_or(Error::NoBuffers)?;
        for piece in pieces {
            packet.push_piece(piece).map_err(|_| Error::MessageSize)?;
        }
        let len = packet.payload_len();
        let way = self.prepare_datagram(id, len, send)?;
        self.dispatch(id, packet, &way, cx);
        Ok(len)
    }

    /// Whether and how `len` bytes can be sent, in the order of Linux's checks.
    fn prepare_datagram(&mut self, id: SocketId, len: usize, send: &SendTo) -> Result<Way, Error> {
        self.socket(id)?.datagrams()?;
        self.bind_by_itself(id)?;
        if len > usize::from(u16::MAX) {
            return Err(Error::MessageSize);
        }
        let socket = self.socket(id)?;
        let remote = match send.to {
            Some(to) if to.port() == 0 => return Err(Error::Invalid),
            Some(to) => from_family(to, socket)?,
            None => socket.remote.ok_or(Error::DestinationRequired)?,
        };
        let source = self.source(socket, remote.ip(), send.from)?;
        self.check_remote(socket, remote.ip())?;
        let local = SocketAddr::new(source, socket.local.port());
        let options = &socket.options;
        let (headers, tos, ttl, max) = if remote.is_ipv4() {
            (ipv4::HEADER_LEN, options.tos, options.datagram.ttl, PAYLOAD_MAX_V4)
        } else {
            (ipv6::HEADER_LEN, options.traffic_class, options.datagram.hop_limit, PAYLOAD_MAX_V6)
        };
        let headers = headers + udp::HEADER_LEN;
        let mtu = usize::from(self.stack.mtu());
        let size = send.segment_size.unwrap_or(options.datagram.segment_size);
        let path_mtu = options.datagram.path_mtu;
        let refused = path_mtu != PathMtu::Fragment && size == 0 && len + headers > mtu;
        if len > max || refused {
            self.keep_local_error(id, remote, mtu as u32);
            return Err(Error::MessageSize);
        }
        self.check_room(id)?;
        let segment = usize::from(size);
        if size > 0 && len.min(segment) + headers > mtu {
            return Err(Error::MessageSize);
        }
        if size > 0 && len > segment * UDP_SEGMENTS_MAX {
            return Err(Error::Invalid);
        }
        let default = UdpSend::default();
        let how = UdpSend {
            segment_size: NonZeroU16::new(size).filter(|_| len > segment),
            tos: send.tos.unwrap_or(tos),
            ttl: send.ttl.or(ttl).unwrap_or(default.ttl),
            dont_fragment: path_mtu == PathMtu::Never,
        };
        Ok(Way { local, remote, how })
    }

    /// The address of ours that a datagram comes from.
    fn source(
        &self,
        socket: &Socket,
        remote: IpAddr,
        asked: Option<IpAddr>,
    ) -> Result<IpAddr, Error> {
        let bound = socket.local.ip();
        let source = match asked.filter(|asked| !asked.is_unspecified()) {
            // IPv4 finds no route from there, IPv6 looks for the address itself.
            Some(asked) if !self.stack.is_local(asked) && asked.is_ipv4() => {
                return Err(Error::NetworkUnreachable);
            }
            Some(asked) if !self.stack.is_local(asked) => return Err(Error::Invalid),
            Some(asked) => asked,
            None if !bound.is_unspecified() => bound,
            None => self.stack.source_for(remote).ok_or(Error::NetworkUnreachable)?,
        };
        let same = source.is_ipv4() == remote.is_ipv4();
        if same { Ok(source) } else { Err(Error::NetworkUnreachable) }
    }

    /// Linux's sock_alloc_send_pskb: a pending error, the end of sending, a full buffer.
    fn check_room(&mut self, id: SocketId) -> Result<(), Error> {
        self.datagram_error(id)?;
        let socket = self.socket(id)?;
        if socket.write_shut {
            return Err(Error::BrokenPipe);
        }
        if self.sent_waiting(socket.datagrams()?) >= send_buffer(socket) {
            self.watch_room(id)?;
            return Err(Error::WouldBlock);
        }
        Ok(())
    }

    /// An error of ours waits in the error queue, if it is asked for (Linux's ip_local_error).
    fn keep_local_error(&mut self, id: SocketId, remote: SocketAddr, mtu: u32) {
        let Ok(socket) = self.socket(id) else { return };
        let notice = ErrorNotice {
            error: Error::MessageSize,
            origin: Origin::Local,
            kind: 0,
            code: 0,
            info: mtu,
            offender: None,
            remote: super::super::to_family(remote, socket.family),
        };
        self.keep_own(id, remote, notice);
    }

    fn dispatch(&mut self, id: SocketId, packet: Packet, way: &Way, cx: &mut Context<'_>) {
        let len = packet.payload_len() + OVERHEAD;
        self.stack.udp_send_with(packet, way.local, way.remote, &way.how, cx);
        let (waits, now) = (self.stack.has_ready(), self.stack.emptied_count());
        let Ok(socket) = self.socket_mut(id) else { return };
        let buffer = send_buffer(socket);
        let Ok(datagrams) = socket.datagrams_mut() else { return };
        if datagrams.sent_at != now {
            (datagrams.sent, datagrams.sent_at) = (0, now);
        }
        // What waits for a neighbour is bounded there.
        datagrams.sent = if waits { datagrams.sent + len } else { 0 };
        if datagrams.sent >= buffer / 2 {
            // Nothing else can go wrong with a socket that is there.
            let _ = self.watch_room(id);
        }
    }

    /// Bytes of a socket that wait for the device.
    pub(super) fn sent_waiting(&self, datagrams: &Datagrams) -> usize {
        if datagrams.sent_at == self.stack.emptied_count() { datagrams.sent } else { 0 }
    }

    fn watch_room(&mut self, id: SocketId) -> Result<(), Error> {
        let datagrams = self.socket_mut(id)?.datagrams_mut()?;
        if !core::mem::replace(&mut datagrams.full, true) {
            self.datagrams.full.push(id);
        }
        Ok(())
    }

    /// Tells sockets that were full when the device has taken what was sent.
    pub(in crate::socket) fn tell_room(&mut self) {
        let emptied = self.stack.emptied_count();
        if self.datagrams.full.is_empty() || self.datagrams.emptied == emptied {
            self.datagrams.emptied = emptied;
            return;
        }
        self.datagrams.emptied = emptied;
        while let Some(id) = self.datagrams.full.pop() {
            if let Ok(datagrams) = self.socket_mut(id).and_then(Socket::datagrams_mut) {
                datagrams.full = false;
                self.wake(id, super::Readiness::WRITABLE | super::Readiness::WRITE_BAND);
            }
        }
    }
}

/// Copies `len` bytes of `buffers` into frames of `packet`: no more of them than they fill.
fn gather(
    buffers: &[&[u8]],
    len: usize,
    packet: &mut Packet,
    memory: &mut Memory,
    ledger: &Ledger,
) -> Result<(), Error> {
    let mut buffers = buffers.iter();
    let mut rest: &[u8] = &[];
    let mut left = len;
    while left > 0 {
        let frame = if left <= SMALL_FRAME_BYTES {
            memory.small.take().or_else(|| memory.large.take())
        } else {
            memory.large.take().or_else(|| memory.small.take())
        };
        let mut frame = frame.ok_or(Error::NoBuffers)?;
        let mut filled = 0;
        while filled < frame.len().min(left) {
            if rest.is_empty() {
                let Some(next) = buffers.next() else { break };
                rest = next;
                continue;
            }
            let count = rest.len().min(frame.len() - filled);
            frame[filled..filled + count].copy_from_slice(&rest[..count]);
            (filled, rest) = (filled + count, &rest[count..]);
        }
        ledger.count(Site::SocketSend, filled);
        left -= filled;
        packet.push_piece(frame.freeze(filled)).map_err(|_| Error::NoBuffers)?;
    }
    Ok(())
}

// Large frames of the longest payload are few enough for a packet.
const _: () = assert!(
    PAYLOAD_MAX_V6.div_ceil(towpath_packet::pool::LARGE_FRAME_BYTES)
        <= towpath_packet::packet::PIECES_MAX
);
