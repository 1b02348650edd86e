//! Sent datagrams (udp(7), ip(7), ipv6(7)).

use super::super::frames::lacks_memory;
use super::super::{Error, Socket, SocketId, Sockets, from_family};
use super::errors::{ErrorNotice, Origin};
use super::filling::Filling;
use super::{Datagrams, LinkDestination, send_buffer};
use crate::fragment::{IPV4_MTU_MIN, IPV6_MTU_MIN};
use crate::gso::UDP_SEGMENTS_MAX;
use crate::pmtu_mode::PathMtu;
use crate::stack::{Context, UdpSend};
use crate::time::Duration;
use crate::wire::ethernet::EtherType;
use crate::wire::{MacAddr, Protocol, ipv4, ipv6, udp};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use towpath_packet::Packet;

/// Bytes charged for a sent packet in addition to its payload.
const OVERHEAD: usize = 768;

/// How to send a datagram; fields that are `None` default to the socket's options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendTo {
    /// Destination; by default the socket's peer.
    pub to: Option<SocketAddr>,
    /// Local source address (`IP_PKTINFO`).
    pub from: Option<IpAddr>,
    /// Type of service or traffic class.
    pub tos: Option<u8>,
    /// Time to live or hop limit.
    pub ttl: Option<u8>,
    /// Payload bytes of each datagram (`UDP_SEGMENT`).
    pub segment_size: Option<u16>,
    /// More of the same datagram follows (`MSG_MORE`).
    pub more: bool,
    /// Destination of a packet socket's frame.
    pub link: Option<LinkDestination>,
    /// Term of a call that lends; by default the socket's term.
    pub term: Option<Duration>,
}

/// Protocol that carries the bytes.
#[derive(Clone, Copy)]
pub(super) enum Carrier {
    /// UDP.
    Udp,
    /// IP with this protocol, and the offset of the checksum to compute.
    Ip(Protocol, Option<u16>),
    /// The bytes begin with an IPv4 header.
    Own,
    /// A frame: with this destination and EtherType, or with the header that the bytes begin with.
    Link(Option<(MacAddr, EtherType)>),
}

/// How a datagram is sent.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) carrier: Carrier,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    tos: u8,
    ttl: u8,
    /// Payload bytes of each datagram of a super-packet; zero for no segmentation.
    size: u16,
    path_mtu: PathMtu,
    /// Largest packet; larger ones are fragmented or rejected.
    mtu: u16,
    /// Larger packets are rejected (`IPV6_DONTFRAG`).
    whole: bool,
    /// This host receives a multicast datagram too.
    loops: bool,
}

impl Way {
    /// The way of a frame, which is sent whole.
    pub(super) fn of_frame(carrier: Carrier, nowhere: SocketAddr) -> Self {
        Self {
            carrier,
            local: nowhere,
            remote: nowhere,
            tos: 0,
            ttl: 0,
            size: 0,
            path_mtu: PathMtu::default(),
            mtu: u16::MAX,
            whole: true,
            loops: false,
        }
    }

    /// Bytes of the headers.
    fn headers(&self) -> usize {
        let ip = if self.remote.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        match self.carrier {
            Carrier::Udp => ip + udp::HEADER_LEN,
            Carrier::Ip(..) => ip,
            Carrier::Own | Carrier::Link(_) => 0,
        }
    }

    /// Maximum payload bytes.
    fn payload_max(&self) -> usize {
        // The IPv6 length field does not count the IPv6 header.
        let counted = self.headers() - if self.remote.is_ipv4() { 0 } else { ipv6::HEADER_LEN };
        usize::from(u16::MAX) - counted
    }

    /// Payload bytes of each datagram of a super-packet; zero for no segmentation.
    pub(super) fn segment_size(&self) -> usize {
        self.size.into()
    }

    /// Checks whether `len` bytes can be segmented as asked (udp(7), `UDP_SEGMENT`; kernel
    /// selftest `net/udpgso.c`).
    pub(super) fn check_segments(&self, len: usize) -> Result<(), Error> {
        let (size, mtu) = (usize::from(self.size), usize::from(self.mtu));
        if size > 0 && len.min(size) + self.headers() > mtu {
            return Err(Error::MessageSize);
        }
        if size > 0 && len > size * UDP_SEGMENTS_MAX { Err(Error::Invalid) } else { Ok(()) }
    }
}

impl Sockets {
    /// Copies `buffers`, one after the other, and sends them as one datagram, or as datagrams of
    /// the segment size. Returns how many bytes.
    ///
    /// With [`SendTo::more`] or [`DatagramOptions::cork`](super::DatagramOptions::cork) the bytes
    /// wait and are sent together with those of the next call.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room or memory: the socket is woken when there is.
    /// [`Error::NoBuffers`] if there is not enough memory for all of a large datagram.
    pub fn send_datagram(
        &mut self,
        id: SocketId,
        buffers: &[&[u8]],
        send: &SendTo,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let sent = self.copy_datagram(id, buffers, send, cx);
        if sent == Err(Error::NoBuffers) && lacks_memory(cx.memory) {
            self.wait_for_frame(id, cx.now);
            return Err(Error::WouldBlock);
        }
        sent
    }

    fn copy_datagram(
        &mut self,
        id: SocketId,
        buffers: &[&[u8]],
        send: &SendTo,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let len = buffers.iter().map(|buffer| buffer.len()).sum();
        if self.waits_for_more(id, send)? {
            // More may come: use large frames to keep the number of pieces small.
            let most = usize::from(u16::MAX);
            return self.append_datagram(
                id,
                len,
                send,
                |_, pending, _, cx| pending.filling.gather(buffers, most, cx),
                cx,
            );
        }
        let way = self.prepare_datagram(id, len, send)?;
        way.check_segments(len)?;
        let mut filling = Filling::new(cx)?;
        filling.gather(buffers, len, cx)?;
        self.dispatch(id, filling.finish()?, &way, cx)?;
        Ok(len)
    }

    /// True if data sent now waits for more, or a pending datagram waits for it.
    pub(super) fn waits_for_more(&self, id: SocketId, send: &SendTo) -> Result<bool, Error> {
        let socket = self.socket(id)?;
        let pending = socket.datagrams()?.pending.is_some();
        if self.packet_options(id).is_some() {
            return Ok(false);
        }
        Ok(send.more || socket.options.datagram.cork || pending)
    }

    /// Checks whether and how `len` bytes can be sent (udp(7), send(2)).
    pub(super) fn prepare_datagram(
        &mut self,
        id: SocketId,
        len: usize,
        send: &SendTo,
    ) -> Result<Way, Error> {
        self.socket(id)?.datagrams()?;
        if let Some(options) = self.packet_options(id) {
            return self.prepare_frame(id, len, (*options, send));
        }
        self.bind_by_itself(id)?;
        if len > usize::from(u16::MAX) {
            return Err(Error::MessageSize);
        }
        let socket = self.socket(id)?;
        let remote = match send.to {
            Some(to) if !self.is_raw(id) && to.port() == 0 => return Err(Error::Invalid),
            Some(to) => from_family(to, socket)?,
            None => socket.remote.ok_or(Error::DestinationRequired)?,
        };
        let source = self.source(socket, remote.ip(), send.from)?;
        self.check_remote(socket, remote.ip())?;
        let options = &socket.options;
        let multicast = &options.datagram.multicast;
        let (tos, mut ttl, path_mtu, group_ttl, loops) = if remote.is_ipv4() {
            (options.tos, options.ttl, options.path_mtu, multicast.ttl, multicast.loops_v4)
        } else {
            let (class, path_mtu) = (options.traffic_class, options.path_mtu_v6);
            (class, options.hop_limit, path_mtu, multicast.hop_limit, multicast.loops_v6)
        };
        if remote.ip().is_multicast() {
            ttl = Some(group_ttl);
        }
        let path = self.stack.path(remote.ip()).mtu;
        let link = self.stack.link_mtu(remote.ip());
        let mut mtu = if path_mtu.follows_path() { path } else { link };
        if remote.is_ipv6() {
            mtu = mtu.min(options.datagram.fragment_size_v6.unwrap_or(mtu));
        }
        check_mtu(mtu, remote)?;
        let way = Way {
            carrier: self.carrier(id, remote)?,
            local: SocketAddr::new(source, socket.local.port()),
            remote,
            tos: send.tos.unwrap_or(tos),
            ttl: send.ttl.or(ttl).unwrap_or(UdpSend::default().ttl),
            size: self.segment_size(id, send)?,
            path_mtu,
            mtu,
            whole: remote.is_ipv6() && options.datagram.dont_fragment_v6,
            loops,
        };
        self.check_len(id, &way, len)?;
        self.check_room(id)?;
        Ok(way)
    }

    /// Checks whether `len` bytes fit a datagram (ip(7), `IP_MTU_DISCOVER`).
    pub(super) fn check_len(&mut self, id: SocketId, way: &Way, len: usize) -> Result<(), Error> {
        let own = matches!(way.carrier, Carrier::Own);
        let mtu = match way.size {
            _ if own => self.stack.mtu(),
            0 => way.mtu,
            _ => u16::MAX,
        };
        let whole = own || way.whole || !way.path_mtu.fragments();
        if len > way.payload_max() || whole && len + way.headers() > mtu.into() {
            self.keep_local_error(id, way.remote, mtu.into());
            return Err(Error::MessageSize);
        }
        Ok(())
    }

    /// Chooses the source address of a datagram.
    fn source(
        &self,
        socket: &Socket,
        remote: IpAddr,
        asked: Option<IpAddr>,
    ) -> Result<IpAddr, Error> {
        let bound = socket.local.ip();
        let source = match asked.filter(|asked| !asked.is_unspecified()) {
            // The errors of Linux 6.18: an address that is not local has no route over IPv4, and is
            // invalid over IPv6.
            Some(asked) if !self.stack.is_local(asked) && asked.is_ipv4() => {
                return Err(Error::NetworkUnreachable);
            }
            Some(asked) if !self.stack.is_local(asked) => return Err(Error::Invalid),
            Some(asked) => asked,
            // The group that a socket is bound to is no source.
            None if !bound.is_unspecified() && !bound.is_multicast() => bound,
            None => self.unbound_source(socket, remote)?,
        };
        let same = source.is_ipv4() == remote.is_ipv4();
        if same { Ok(source) } else { Err(Error::NetworkUnreachable) }
    }

    /// The source address of a socket that is not bound to one.
    pub(super) fn unbound_source(&self, socket: &Socket, remote: IpAddr) -> Result<IpAddr, Error> {
        let multicast = &socket.options.datagram.multicast;
        let chosen = multicast.source.filter(|_| remote.is_ipv4() && remote.is_multicast());
        let source = chosen.map(IpAddr::V4).or_else(|| self.stack.source_for(remote));
        source.ok_or(Error::NetworkUnreachable)
    }

    /// Checks, in this order: a pending error, the send direction, the send buffer.
    pub(super) fn check_room(&mut self, id: SocketId) -> Result<(), Error> {
        self.datagram_error(id)?;
        let socket = self.socket(id)?;
        // A raw socket may send after `shutdown` (observed on Linux 6.18).
        if socket.write_shut && !self.is_raw(id) {
            return Err(Error::BrokenPipe);
        }
        if self.sent_waiting(socket.datagrams()?) >= send_buffer(socket) {
            self.watch_room(id)?;
            return Err(Error::WouldBlock);
        }
        Ok(())
    }

    /// True if the socket has room and no pending error.
    pub(super) fn has_room(&self, id: SocketId) -> bool {
        let Ok(socket) = self.socket(id) else { return false };
        let waiting = socket.datagrams().map(|datagrams| self.sent_waiting(datagrams));
        !self.has_error(id) && waiting.is_ok_and(|waiting| waiting < send_buffer(socket))
    }

    /// Queues a local error about the MTU, if the socket has asked for errors.
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

    /// Passes a datagram to the stack, and charges the send buffer `charge` bytes and the overhead.
    pub(super) fn dispatch(
        &mut self,
        id: SocketId,
        (packet, charge): (Packet, usize),
        way: &Way,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        let payload = packet.payload_len();
        cx.ledger.carry(payload);
        if let Carrier::Link(header) = way.carrier {
            self.send_frame(id, packet, header, cx)?;
            self.charge_sent(id, charge);
            return Ok(());
        }
        let path = self.stack.path(way.remote.ip());
        let fits = payload + way.headers() <= path.mtu.into();
        let searches = way.path_mtu == PathMtu::Probe || way.path_mtu == PathMtu::Do;
        let how = UdpSend {
            segment_size: NonZeroU16::new(way.size).filter(|_| payload > usize::from(way.size)),
            tos: way.tos,
            ttl: way.ttl,
            dont_fragment: searches || fits && way.path_mtu.forbids_fragments(path.locked),
            mtu: way.mtu,
            multicast_loop: way.loops,
        };
        match way.carrier {
            Carrier::Udp => self.stack.udp_send_with(packet, way.local, way.remote, &how, cx),
            _ => self.send_raw(packet, way, &how, cx)?,
        }
        self.charge_sent(id, charge);
        Ok(())
    }

    /// Charges the send buffer for a packet that was passed to the stack.
    pub(super) fn charge_sent(&mut self, id: SocketId, charge: usize) {
        let len = charge + OVERHEAD;
        let (waits, now) = (self.stack.has_ready(), self.stack.emptied_count());
        let Ok(socket) = self.socket_mut(id) else { return };
        let buffer = send_buffer(socket);
        let Ok(datagrams) = socket.datagrams_mut() else { return };
        if datagrams.sent_at != now {
            (datagrams.sent, datagrams.sent_at) = (0, now);
        }
        // Packets that wait for neighbour resolution are limited there.
        datagrams.sent = if waits { datagrams.sent + len } else { 0 };
        if datagrams.sent >= buffer / 2 {
            // This cannot fail: the socket exists.
            let _ = self.watch_room(id);
        }
    }

    /// Bytes of a socket that wait for the device.
    pub(in crate::socket) fn sent_waiting(&self, datagrams: &Datagrams) -> usize {
        if datagrams.sent_at == self.stack.emptied_count() { datagrams.sent } else { 0 }
    }

    fn watch_room(&mut self, id: SocketId) -> Result<(), Error> {
        let datagrams = self.socket_mut(id)?.datagrams_mut()?;
        if !core::mem::replace(&mut datagrams.full, true) {
            self.datagrams.full.push(id);
        }
        Ok(())
    }

    /// Wakes sockets that were full once the device has taken all packets.
    pub(in crate::socket) fn report_room(&mut self) {
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

/// Checks that packets of `mtu` bytes are allowed at all, with Linux's errors.
fn check_mtu(mtu: u16, remote: SocketAddr) -> Result<(), Error> {
    match remote {
        SocketAddr::V4(_) if usize::from(mtu) < IPV4_MTU_MIN => Err(Error::NetworkUnreachable),
        SocketAddr::V6(_) if usize::from(mtu) < IPV6_MTU_MIN => Err(Error::Invalid),
        _ => Ok(()),
    }
}

// A packet has room for the largest payload in large frames.
const _: () = assert!(
    (u16::MAX as usize).div_ceil(towpath_packet::pool::LARGE_FRAME_BYTES)
        <= towpath_packet::packet::PIECES_MAX
);
