//! Datagrams that go out (Linux's `udp_sendmsg` and `udpv6_sendmsg`).

use super::super::frames::{lacks_memory, packet_to_send};
use super::super::{Error, Socket, SocketId, Sockets, from_family};
use super::cork::Filling;
use super::errors::{ErrorNotice, Origin};
use super::{Datagrams, LinkDestination, send_buffer};
use crate::fragment::{IPV4_MTU_MIN, IPV6_MTU_MIN};
use crate::gso::UDP_SEGMENTS_MAX;
use crate::path_mtu::PathMtu;
use crate::stack::{Context, UdpSend};
use crate::time::Duration;
use crate::wire::ethernet::EtherType;
use crate::wire::{MacAddr, Protocol, ipv4, ipv6, udp};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use towpath_packet::{Packet, Piece};

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
    /// More of the same datagram follows (`MSG_MORE`).
    pub more: bool,
    /// Where a frame of a packet socket goes.
    pub link: Option<LinkDestination>,
    /// How long a call that lends does so; the socket's term otherwise.
    pub term: Option<Duration>,
}

/// What carries the bytes.
#[derive(Clone, Copy)]
pub(super) enum Carrier {
    /// UDP.
    Udp,
    /// IP, whose packets are of this protocol and have a checksum there.
    Ip(Protocol, Option<u16>),
    /// The header of IPv4 that they begin with.
    Own,
    /// A frame: with this destination and protocol, or the header that they begin with.
    Link(Option<(MacAddr, EtherType)>),
}

/// How a datagram goes, once that is known.
#[derive(Clone, Copy)]
pub(super) struct Way {
    pub(super) carrier: Carrier,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    tos: u8,
    ttl: u8,
    /// Payload bytes of each datagram of a super-packet; zero for none.
    size: u16,
    path_mtu: PathMtu,
    /// Largest packet; what is larger goes in fragments, or is refused.
    mtu: u16,
    /// It is refused (`IPV6_DONTFRAG`).
    whole: bool,
}

impl Way {
    /// That of a frame, which is sent whole.
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

    /// Most bytes of payload.
    fn payload_max(&self) -> usize {
        // The length of IPv6 does not count its header.
        let counted = self.headers() - if self.remote.is_ipv4() { 0 } else { ipv6::HEADER_LEN };
        usize::from(u16::MAX) - counted
    }

    /// Payload bytes of each datagram of a super-packet; zero for none.
    pub(super) fn segment_size(&self) -> usize {
        self.size.into()
    }

    /// Whether `len` bytes can be cut as asked (Linux's udp_send_skb).
    pub(super) fn check_segments(&self, len: usize) -> Result<(), Error> {
        let (size, mtu) = (usize::from(self.size), usize::from(self.mtu));
        if size > 0 && len.min(size) + self.headers() > mtu {
            return Err(Error::MessageSize);
        }
        if size > 0 && len > size * UDP_SEGMENTS_MAX { Err(Error::Invalid) } else { Ok(()) }
    }
}

impl Sockets {
    /// Sends `buffers`, one after the other, as one datagram, or as datagrams of the segment size.
    /// They are copied. Returns how many bytes.
    ///
    /// With [`SendTo::more`] or [`DatagramOptions::cork`](super::DatagramOptions::cork) they wait
    /// for what the next call sends, which goes with them.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] without room or memory: the socket is woken when there is some.
    /// [`Error::NoBuffers`] without memory for all of a large datagram.
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
            // More may come: large frames, so that the pieces are few.
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

    /// Sends pieces as one datagram, or as datagrams of the segment size; they are lent, not
    /// copied. At most [`towpath_packet::packet::PIECES_MAX`].
    ///
    /// # Errors
    /// [`Error::Invalid`] while bytes wait for more.
    pub fn send_datagram_pieces(
        &mut self,
        id: SocketId,
        pieces: impl IntoIterator<Item = Piece>,
        send: &SendTo,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        if self.waits_for_more(id, send)? {
            return Err(Error::Invalid);
        }
        let mut packet = packet_to_send(cx.memory).ok_or(Error::NoBuffers)?;
        for piece in pieces {
            packet.push_piece(piece).map_err(|_| Error::MessageSize)?;
        }
        let len = packet.payload_len();
        let way = self.prepare_datagram(id, len, send)?;
        way.check_segments(len)?;
        self.dispatch(id, (packet, len), &way, cx)?;
        Ok(len)
    }

    /// True if what is sent now waits for more, or something waits for it.
    pub(super) fn waits_for_more(&self, id: SocketId, send: &SendTo) -> Result<bool, Error> {
        let socket = self.socket(id)?;
        let pending = socket.datagrams()?.pending.is_some();
        if self.packet_options(id).is_some() {
            return Ok(false);
        }
        Ok(send.more || socket.options.datagram.cork || pending)
    }

    /// Whether and how `len` bytes can be sent, in the order of Linux's checks.
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
        let (tos, ttl, path_mtu) = if remote.is_ipv4() {
            (options.tos, options.ttl, options.path_mtu)
        } else {
            (options.traffic_class, options.hop_limit, options.path_mtu_v6)
        };
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
        };
        self.check_len(id, &way, len)?;
        self.check_room(id)?;
        Ok(way)
    }

    /// Whether so many bytes fit a datagram (Linux's __ip_append_data).
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
    pub(super) fn check_room(&mut self, id: SocketId) -> Result<(), Error> {
        self.datagram_error(id)?;
        let socket = self.socket(id)?;
        // Linux does not ask raw sockets, whose packets have no transport header.
        if socket.write_shut && !self.is_raw(id) {
            return Err(Error::BrokenPipe);
        }
        if self.sent_waiting(socket.datagrams()?) >= send_buffer(socket) {
            self.watch_room(id)?;
            return Err(Error::WouldBlock);
        }
        Ok(())
    }

    /// True if a call could send more, and has no error to tell.
    pub(super) fn has_room(&self, id: SocketId) -> bool {
        let Ok(socket) = self.socket(id) else { return false };
        let waiting = socket.datagrams().map(|datagrams| self.sent_waiting(datagrams));
        !self.has_error(id) && waiting.is_ok_and(|waiting| waiting < send_buffer(socket))
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

    /// Hands a datagram to the stack; the send buffer is charged so many bytes and a packet.
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
        };
        match way.carrier {
            Carrier::Udp => self.stack.udp_send_with(packet, way.local, way.remote, &how, cx),
            _ => self.send_raw(packet, way, &how, cx)?,
        }
        self.charge_sent(id, charge);
        Ok(())
    }

    /// Counts a packet that the stack was given, and its bytes.
    pub(super) fn charge_sent(&mut self, id: SocketId, charge: usize) {
        let len = charge + OVERHEAD;
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

/// Whether packets of so many bytes may be sent at all (Linux's ip_setup_cork, ip6_setup_cork).
fn check_mtu(mtu: u16, remote: SocketAddr) -> Result<(), Error> {
    match remote {
        SocketAddr::V4(_) if usize::from(mtu) < IPV4_MTU_MIN => Err(Error::NetworkUnreachable),
        SocketAddr::V6(_) if usize::from(mtu) < IPV6_MTU_MIN => Err(Error::Invalid),
        _ => Ok(()),
    }
}

// Large frames of the longest payload are few enough for a packet.
const _: () = assert!(
    (u16::MAX as usize).div_ceil(towpath_packet::pool::LARGE_FRAME_BYTES)
        <= towpath_packet::packet::PIECES_MAX
);
