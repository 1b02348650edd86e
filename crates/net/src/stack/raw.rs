//! Packets of IP for sockets that take a protocol as it comes, and packets that they make.
//!
//! Before a whole packet goes to its protocol, a share of it waits here if somebody wants that
//! protocol: no byte is copied but those of the IP header. Bound: [`Limits`](super::Limits).

use super::egress::Marks;
use super::ingress::{IP_AT, IpInfo};
use super::{Context, Stack, UdpSend};
use crate::counters::DropReason;
use crate::gso::write_ipv4_checksum;
use crate::neighbor::Outgoing;
use crate::wire::{ParseError, Protocol, ipv4};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use towpath_packet::Packet;

/// A received packet of a protocol that somebody wants.
pub struct RawPacket {
    /// Where it was sent to.
    pub local: IpAddr,
    /// Where it came from.
    pub remote: IpAddr,
    /// What it carries.
    pub protocol: Protocol,
    /// Over IPv4 its headers begin with the IP header, over IPv6 with what follows it.
    pub packet: Packet,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
}

/// Which protocols are wanted, and what came.
#[derive(Default)]
pub(super) struct Raw {
    /// With how many want it; of IPv4 or of IPv6.
    wanted: Vec<(bool, Protocol, usize)>,
    packets: VecDeque<RawPacket>,
}

impl Stack {
    /// One more, or one less, wants packets of a protocol over IPv4 or IPv6.
    pub fn want_protocol(&mut self, v4: bool, protocol: Protocol, more: bool) {
        let wanted = &mut self.raw.wanted;
        let found = wanted.iter().position(|(of_v4, of, _)| (*of_v4, *of) == (v4, protocol));
        match found {
            Some(index) if more => wanted[index].2 += 1,
            Some(index) if wanted[index].2 > 1 => wanted[index].2 -= 1,
            Some(index) => _ = wanted.swap_remove(index),
            None if more => wanted.push((v4, protocol, 1)),
            None => {}
        }
    }

    /// The next packet of a wanted protocol.
    pub fn next_raw(&mut self) -> Option<RawPacket> {
        self.raw.packets.pop_front()
    }

    /// Keeps a share of a packet whose IP header has been pulled, or more, if somebody wants it;
    /// true if somebody does.
    pub(super) fn offer_raw(
        &mut self,
        info: &IpInfo,
        packet: &Packet,
        cx: &mut Context<'_>,
    ) -> bool {
        let v4 = info.source.is_ipv4();
        let wants = |(of_v4, of, _): &(bool, Protocol, usize)| (*of_v4, *of) == (v4, info.protocol);
        if !self.raw.wanted.iter().any(wants) {
            return false;
        }
        if self.raw.packets.len() >= self.config.limits.datagrams {
            self.counters.drop(DropReason::RawQueueFull);
            return true;
        }
        let begin = if v4 { IP_AT } else { info.transport_at };
        match share(packet, &packet.headers()[begin..], cx) {
            Some(packet) => self.raw.packets.push_back(RawPacket {
                local: info.destination,
                remote: info.source,
                protocol: info.protocol,
                packet,
                tos: info.tos,
                ttl: info.ttl,
            }),
            None => self.counters.drop(DropReason::NoMemory),
        }
        true
    }

    /// Sends a packet that has no headers as one of `protocol`, in fragments if need be.
    pub fn send_raw(
        &mut self,
        packet: Packet,
        protocol: Protocol,
        addresses: (IpAddr, IpAddr),
        how: &UdpSend,
        cx: &mut Context<'_>,
    ) {
        if self.stopped {
            return self.counters.drop(DropReason::DeviceFull);
        }
        let UdpSend { tos, ttl, dont_fragment, mtu, .. } = *how;
        let marks = Marks { ttl, tos, dont_fragment, mtu };
        self.send_ip(packet, protocol, addresses, marks, cx);
    }

    /// Sends a packet whose pieces begin with a header of IPv4 to `destination`. As Linux's
    /// `raw_send_hdrinc` it completes the header: its length and checksum always, source and
    /// identification if they are zero. A header that contradicts itself comes back.
    pub fn send_with_header(
        &mut self,
        mut packet: Packet,
        (source, destination): (Ipv4Addr, IpAddr),
        cx: &mut Context<'_>,
    ) -> Result<(), ParseError> {
        let len = u16::try_from(packet.payload_len()).map_err(|_| ParseError::BadLength)?;
        let first = packet.peek_headers().first().copied().unwrap_or(0);
        let header_len = usize::from(first & 15) * 4;
        if header_len < ipv4::HEADER_LEN || header_len > usize::from(len) {
            return Err(ParseError::BadLength);
        }
        packet.pull(header_len);
        let header = packet.headers_mut();
        header[at::TOTAL_LEN..][..2].copy_from_slice(&len.to_be_bytes());
        if header[at::SOURCE..][..4] == [0; 4] {
            header[at::SOURCE..][..4].copy_from_slice(&source.octets());
        }
        if header[at::IDENT..][..2] == [0, 0] {
            let [a, b, c, d] = header[at::SOURCE..][..4] else { unreachable!("four bytes") };
            let pair = (Ipv4Addr::new(a, b, c, d).into(), destination);
            let ident = self.idents.take(pair, 1) as u16;
            header[at::IDENT..][..2].copy_from_slice(&ident.to_be_bytes());
        }
        write_ipv4_checksum(header);
        if self.stopped {
            self.counters.drop(DropReason::DeviceFull);
        } else {
            let mtu = u16::MAX;
            self.send_to_next_hop(Outgoing { packet, mtu }, destination, cx);
        }
        Ok(())
    }
}

/// Another holder of a packet's pieces, with `headers` in front of them; `None` without a handle.
pub(crate) fn share(packet: &Packet, headers: &[u8], cx: &mut Context<'_>) -> Option<Packet> {
    let mut shared = cx.memory.packet()?;
    for piece in packet.pieces() {
        shared.push_piece(piece.clone()).ok()?;
    }
    shared.push_header(headers.len()).copy_from_slice(headers);
    shared.set_offload(*packet.offload());
    Some(shared)
}

/// Offsets of fields of IPv4's header.
mod at {
    pub(super) const TOTAL_LEN: usize = 2;
    pub(super) const IDENT: usize = 4;
    pub(super) const SOURCE: usize = 12;
}
