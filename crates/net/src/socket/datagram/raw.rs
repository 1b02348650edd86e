//! Raw sockets: they receive and send IP packets, with the semantics of Linux.
//!
//! Each raw socket with a matching protocol and addresses gets a share of a received packet before
//! the protocol processes it: over IPv4 with the IP header, over IPv6 without. Sent data gets an IP
//! header, or begins with one if [`RawOptions::header_included`] is set. Queues, buffers,
//! `MSG_MORE` and lending calls are those of UDP sockets. ICMP errors about packets of raw sockets
//! are not reported: a program that needs them receives ICMP packets with a raw socket.

use super::super::{Error, Family, Socket, SocketId, Sockets};
use super::multicast::hears;
use super::receive::Waiting;
use super::send::{Carrier, Way};
use crate::checksum::{self, udp_nonzero};
use crate::counters::DropReason;
use crate::gso;
use crate::stack::{Context, RawPacket, UdpSend, share};
use crate::wire::{Protocol, icmpv6};
use alloc::boxed::Box;
use core::net::{IpAddr, SocketAddr};
use towpath_packet::{Checksum, Ledger, Packet};

/// Options that only raw sockets have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOptions {
    /// IP protocol of received and sent packets.
    pub protocol: Protocol,
    /// Sent data begins with an IPv4 header (`IP_HDRINCL`).
    pub header_included: bool,
    /// Offset of the checksum in packets over IPv6 (`IPV6_CHECKSUM`), even. It is computed for sent
    /// and verified for received packets.
    pub checksum_at: Option<u16>,
    /// Bit set of ICMP or ICMPv6 types to ignore (`ICMP_FILTER`, `ICMP6_FILTER`).
    pub blocked: [u32; 8],
}

impl RawOptions {
    fn blocks(&self, kind: u8) -> bool {
        self.blocked[usize::from(kind / 32)] & 1 << (kind % 32) != 0
    }
}

/// `IPPROTO_RAW`: receives no packets; sends with headers.
const SENDS_ONLY: Protocol = Protocol(255);

impl Sockets {
    /// Creates a socket that receives and sends IP packets of `protocol`.
    ///
    /// # Errors
    /// [`Error::ProtocolNotSupported`] for protocol zero (observed on Linux 6.18).
    pub fn raw(&mut self, family: Family, protocol: Protocol) -> Result<SocketId, Error> {
        if protocol.0 == 0 {
            return Err(Error::ProtocolNotSupported);
        }
        let id = self.datagram(family)?;
        let v4 = family == Family::V4;
        let options = RawOptions {
            protocol,
            header_included: v4 && protocol == SENDS_ONLY,
            checksum_at: (!v4 && protocol == Protocol::ICMPV6).then_some(ICMPV6_CHECKSUM_AT),
            blocked: [0; 8],
        };
        self.socket_mut(id)?.datagrams_mut()?.raw = Some(Box::new(options));
        if protocol != SENDS_ONLY {
            self.datagrams.raw.push(id);
            self.stack.want_protocol(v4, protocol, true);
        }
        Ok(id)
    }

    /// True if the socket is a raw socket.
    pub fn is_raw(&self, id: SocketId) -> bool {
        self.raw_options(id).is_some()
    }

    /// The options that only raw sockets have; `None` for others.
    pub fn raw_options(&self, id: SocketId) -> Option<&RawOptions> {
        self.socket(id).ok()?.datagrams().ok()?.raw.as_deref()
    }

    /// Peer address of a raw socket, also if its port is zero. [`Sockets::remote`] returns only
    /// peers with a port, as Linux's `getpeername` does.
    pub fn raw_peer(&self, id: SocketId) -> Result<IpAddr, Error> {
        let socket = self.socket(id)?;
        let remote = socket.remote.filter(|_| self.is_raw(id)).ok_or(Error::NotConnected)?;
        Ok(remote.ip())
    }

    /// Changes the options that only raw sockets have. The protocol cannot be changed.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for other sockets, [`Error::Invalid`] for an odd checksum offset.
    pub fn set_raw_options(
        &mut self,
        id: SocketId,
        change: impl FnOnce(&mut RawOptions),
    ) -> Result<(), Error> {
        let raw = self.socket_mut(id)?.datagrams_mut()?.raw.as_mut().ok_or(Error::NotSupported)?;
        let mut changed = **raw;
        change(&mut changed);
        if changed.checksum_at.is_some_and(|at| at % 2 != 0) {
            return Err(Error::Invalid);
        }
        **raw = RawOptions { protocol: raw.protocol, ..changed };
        Ok(())
    }

    /// Binds a raw socket to a local address; raw sockets have no ports.
    pub(in crate::socket) fn bind_raw(&mut self, id: SocketId, ip: IpAddr) -> Result<(), Error> {
        let socket = self.socket(id)?;
        if socket.remote.is_some() {
            return Err(Error::Invalid);
        }
        if socket.family == Family::V6 && ip.is_ipv4() {
            return Err(Error::AddressNotAvailable);
        }
        let is_ours = ip.is_unspecified() || ip.is_multicast() || self.stack.is_local(ip);
        if !is_ours && !socket.options.free_bind {
            return Err(Error::AddressNotAvailable);
        }
        let socket = self.socket_mut(id)?;
        socket.local = SocketAddr::new(ip, 0);
        socket.port_chosen = !ip.is_unspecified();
        Ok(())
    }

    /// Stops delivering packets to a raw socket that is closed.
    pub(super) fn close_raw(&mut self, id: SocketId) {
        let Some(options) = self.raw_options(id) else { return };
        let protocol = options.protocol;
        let v4 = self.socket(id).is_ok_and(|socket| socket.family == Family::V4);
        if protocol != SENDS_ONLY {
            self.datagrams.raw.retain(|other| *other != id);
            self.stack.want_protocol(v4, protocol, false);
        }
    }

    /// Returns what carries a socket's bytes to `remote`.
    pub(super) fn carrier(&self, id: SocketId, remote: SocketAddr) -> Result<Carrier, Error> {
        let Some(options) = self.raw_options(id) else { return Ok(Carrier::Udp) };
        let family = self.socket(id)?.family;
        if remote.is_ipv4() != (family == Family::V4) {
            return Err(Error::NetworkUnreachable);
        }
        let named = remote.port() != 0 && remote.port() != u16::from(options.protocol.0);
        if family == Family::V6 && named {
            return Err(Error::Invalid);
        }
        if options.header_included {
            return Ok(Carrier::Own);
        }
        Ok(Carrier::Ip(options.protocol, options.checksum_at.filter(|_| family == Family::V6)))
    }

    /// Passes an IP packet to the stack.
    pub(super) fn send_raw(
        &mut self,
        mut packet: Packet,
        way: &Way,
        how: &UdpSend,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        let addresses = (way.local.ip(), way.remote.ip());
        match (way.carrier, addresses.0) {
            (Carrier::Own, IpAddr::V4(source)) => {
                let sent = self.stack.send_with_header(packet, (source, addresses.1), cx);
                return sent.map_err(|_| Error::Invalid);
            }
            (Carrier::Ip(protocol, checksum_at), _) => {
                if let Some(at) = checksum_at {
                    write_checksum(&mut packet, at, addresses, protocol, cx.ledger)?;
                }
                self.stack.send_raw(packet, protocol, addresses, how, cx);
            }
            _ => {}
        }
        Ok(())
    }

    /// Gives a share of a packet to each raw socket that wants it.
    pub(super) fn take_in_raw(&mut self, raw: RawPacket, cx: &mut Context<'_>) {
        for index in 0..self.datagrams.raw.len() {
            let id = self.datagrams.raw[index];
            let wants = self.socket(id).is_ok_and(|socket| wants(socket, &raw));
            if !wants {
                continue;
            }
            let right = self.raw_options(id).is_some_and(|options| {
                options.checksum_at.is_none() || has_right_checksum(&raw, cx.ledger)
            });
            if !right {
                self.stack.count_drop(DropReason::RawChecksum);
                continue;
            }
            let Some(packet) = share(&raw.packet, raw.packet.headers(), cx) else {
                return self.stack.count_drop(DropReason::NoMemory);
            };
            let waiting = Waiting {
                packet,
                local: SocketAddr::new(raw.local, 0),
                remote: SocketAddr::new(raw.remote, 0),
                segment_size: None,
                tos: raw.tos,
                ttl: raw.ttl,
                with_headers: true,
                link: None,
            };
            self.enqueue(id, waiting, cx);
        }
    }
}

/// True if a raw socket receives this packet (raw(7)); the ICMP filters check the type.
fn wants(socket: &Socket, raw: &RawPacket) -> bool {
    let options = socket.datagrams().ok().and_then(|datagrams| datagrams.raw.as_deref());
    let Some(options) = options else { return false };
    let family = if raw.local.is_ipv4() { Family::V4 } else { Family::V6 };
    let bound = socket.local.ip();
    let icmp = matches!(raw.protocol, Protocol::ICMP | Protocol::ICMPV6);
    socket.family == family
        && options.protocol == raw.protocol
        && (bound.is_unspecified() || bound == raw.local)
        && socket.remote.is_none_or(|remote| remote.ip() == raw.remote)
        && (!raw.local.is_multicast() || hears(socket, raw.local))
        && !(icmp
            && options.blocked != [0; 8]
            && options.blocks(raw.packet.peek_byte().unwrap_or(0)))
}

fn has_right_checksum(raw: &RawPacket, ledger: &Ledger) -> bool {
    if raw.packet.offload().checksum != Checksum::None {
        return true;
    }
    let len = raw.packet.len() as u32;
    let mut sum = checksum::pseudo_header(raw.remote, raw.local, raw.protocol, len);
    sum.add_sum(gso::transport_sum(&raw.packet, 0, ledger));
    sum.finish() == 0
}

/// Computes the checksum of a packet without headers and stores it at `at`. The bytes up to the end
/// of the checksum become headers.
fn write_checksum(
    packet: &mut Packet,
    at: u16,
    (source, destination): (IpAddr, IpAddr),
    protocol: Protocol,
    ledger: &Ledger,
) -> Result<(), Error> {
    let (at, end) = (usize::from(at), usize::from(at) + 2);
    let len = packet.payload_len() as u32;
    if packet.peek_headers().len() < end {
        return Err(Error::Invalid);
    }
    packet.pull(end);
    packet.headers_mut()[at..].fill(0);
    let mut sum = checksum::pseudo_header(source, destination, protocol, len);
    sum.add_sum(gso::transport_sum(packet, 0, ledger));
    let sum = match protocol {
        Protocol::UDP => udp_nonzero(sum.finish()),
        _ => sum.finish(),
    };
    packet.headers_mut()[at..].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Offset of the ICMPv6 checksum (RFC 4443 §2.1).
const ICMPV6_CHECKSUM_AT: u16 = 2;
const _: () = assert!((ICMPV6_CHECKSUM_AT as usize) < icmpv6::HEADER_LEN);
