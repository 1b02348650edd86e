//! IP packets for raw sockets, and packets that raw sockets send.
//!
//! Before a whole packet goes to its protocol, a share of it is queued here if a socket wants the
//! protocol; only the headers are copied. Bound: [`Limits`](super::Limits).

use super::egress::Marks;
use super::ingress::{IP_AT, IpInfo};
use super::{Context, Stack, UdpSend};
use crate::counters::DropReason;
use crate::gso::write_ipv4_checksum;
use crate::neighbor::Outgoing;
use crate::wire::field::{read, read_u16, write, write_u16};
use crate::wire::{ParseError, Protocol, ipv4};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use towpath_packet::Packet;

/// A received packet of a wanted protocol.
pub struct RawPacket {
    /// Destination address.
    pub local: IpAddr,
    /// Source address.
    pub remote: IpAddr,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// Its headers begin with the IP header over IPv4, and behind the IP headers over IPv6.
    pub packet: Packet,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
}

/// Wanted protocols, and packets not yet taken.
#[derive(Default)]
pub(super) struct Raw {
    /// For IPv4 or not, the protocol, and the number of sockets that want it.
    wanted: Vec<(bool, Protocol, usize)>,
    packets: VecDeque<RawPacket>,
}

impl Stack {
    /// Adds or removes one socket that wants packets of a protocol over IPv4 or IPv6.
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

    /// True if a raw socket takes packets of any protocol.
    pub(super) fn wants_raw(&self) -> bool {
        !self.raw.wanted.is_empty()
    }

    /// Takes the next packet of a wanted protocol.
    pub fn next_raw(&mut self) -> Option<RawPacket> {
        self.raw.packets.pop_front()
    }

    /// Keeps a share of a packet whose IP header has been pulled, if its protocol is wanted;
    /// returns whether it is.
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

    /// Sends a packet without headers as one of `protocol`, fragmented if needed.
    pub fn send_raw(
        &mut self,
        packet: Packet,
        protocol: Protocol,
        addresses: (IpAddr, IpAddr),
        how: &UdpSend,
        cx: &mut Context<'_>,
    ) {
        let UdpSend { tos, ttl, dont_fragment, mtu, multicast_loop: loops, .. } = *how;
        let marks = Marks { ttl, tos, dont_fragment, mtu, loops };
        self.send_ip(packet, protocol, addresses, marks, cx);
    }

    /// Sends a packet whose pieces begin with an IPv4 header to `destination`. Length and
    /// checksum of the header are always filled in, source and identification if they are zero
    /// (raw(7), `IP_HDRINCL`).
    /// Returns an error if the header is inconsistent.
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
        write_u16(header, ipv4::at::TOTAL_LEN, len);
        if read(header, ipv4::at::SOURCE) == [0; 4] {
            write(header, ipv4::at::SOURCE, &source.octets());
        }
        if read_u16(header, ipv4::at::IDENT) == 0 {
            let pair = (Ipv4Addr::from(read::<4>(header, ipv4::at::SOURCE)).into(), destination);
            let ident = self.idents.take(pair, 1, cx.now);
            write_u16(header, ipv4::at::IDENT, ident);
        }
        write_ipv4_checksum(header);
        self.send_to_next_hop(Outgoing { packet, mtu: u16::MAX }, destination, cx);
        Ok(())
    }
}

/// Returns a packet that shares the pieces, with `headers` in front; `None` if no handle is free.
pub(crate) fn share(packet: &Packet, headers: &[u8], cx: &mut Context<'_>) -> Option<Packet> {
    let mut shared = cx.memory.packet()?;
    for piece in packet.pieces() {
        shared.push_piece(piece.clone()).ok()?;
    }
    shared.push_header(headers.len()).copy_from_slice(headers);
    shared.set_offload(*packet.offload());
    Some(shared)
}
