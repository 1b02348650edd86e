//! Next hops: resolution of their addresses, solicitations, neighbours that do not answer, and
//! detection of duplicate addresses. The states are in [`crate::neighbor`].

use super::discovery::ALL_NODES;
use super::ingress::solicited_node;
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::neighbor::{Announcement, Conflict, Due, OnConflict, Outgoing, Reaction, Station, Step};
use crate::tcp::Seq;
use crate::time::Instant;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{MacAddr, Protocol, arp, icmpv6, ipv4, ipv6};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

impl Stack {
    /// Sets the link-layer address of a neighbour permanently.
    pub fn set_neighbor(&mut self, address: IpAddr, mac: MacAddr) {
        for _ in 0..self.neighbors.set(address, mac) {
            self.counters.drop(DropReason::NeighborEvicted);
        }
    }

    /// Probes for other stations that have this stack's addresses (RFC 5227, RFC 4862 §5.4), which
    /// are used meanwhile, and then announces the addresses. Anycast addresses are neither probed
    /// for nor announced.
    pub fn claim_addresses(&mut self, policy: OnConflict, now: Instant) {
        let ours = self.config.addresses.iter().filter(|ours| !ours.is_anycast());
        self.detection.claim(ours.map(|ours| ours.address), policy, now);
    }

    /// Announces an address again when another station uses it, without probing before.
    pub fn defend_addresses(&mut self) {
        self.detection.claim([], OnConflict::Keep, Instant::START);
    }

    /// The last conflict about each address with another station.
    pub fn conflicts(&self) -> impl Iterator<Item = &Conflict> {
        self.detection.conflicts()
    }

    /// Takes a conflict with another station, to be reported.
    pub fn next_conflict(&mut self) -> Option<Conflict> {
        self.detection.next_conflict()
    }

    /// The neighbour to which packets for `destination` are sent.
    pub(super) fn next_hop(&mut self, destination: IpAddr, cx: &mut Context<'_>) -> IpAddr {
        if self.is_on_link(destination) {
            return destination;
        }
        let Some(router) = self.neighbors.router(destination.is_ipv4()) else { return destination };
        if let Some(address) = self.neighbors.probe_router(router, cx.now) {
            self.solicit(address, None, cx);
        }
        router
    }

    /// Notes that what was sent to `destination` has arrived (RFC 4861 §7.3.1).
    pub(super) fn confirm_next_hop(&mut self, destination: IpAddr, now: Instant) {
        let is_far = !self.is_on_link(destination);
        let router = self.neighbors.router(destination.is_ipv4()).filter(|_| is_far);
        self.neighbors.confirm(router.unwrap_or(destination), now);
    }

    /// Counts what was dropped when a packet had to wait, and sends a first solicitation.
    pub(super) fn note_waiting(
        &mut self,
        next_hop: IpAddr,
        solicit: bool,
        (dropped, evicted): (usize, usize),
        cx: &mut Context<'_>,
    ) {
        for _ in 0..dropped {
            self.counters.drop(DropReason::NeighborQueueFull);
        }
        for _ in 0..evicted {
            self.counters.drop(DropReason::NeighborEvicted);
        }
        if solicit {
            self.solicit(next_hop, None, cx);
        }
    }

    /// Processes a neighbour's announcement of its address, and sends what waited for it.
    pub(super) fn learn_neighbor(
        &mut self,
        address: IpAddr,
        station: Station,
        announcement: Announcement,
        cx: &mut Context<'_>,
    ) {
        let released = self.neighbors.learn(address, station, announcement, cx.now);
        let Some(mac) = station.mac else { return };
        for packet in released {
            let is_v4 = packet.packet.headers()[0] >> 4 == 4;
            let kind = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
            self.send_frame(packet, mac, kind, cx);
        }
    }

    /// Runs the timers of neighbours and of detection.
    pub(super) fn expire_neighbors(&mut self, cx: &mut Context<'_>) {
        while let Some(due) = self.neighbors.next_due(cx.now) {
            match due {
                Due::Solicit { address, mac } => self.solicit(address, mac, cx),
                Due::Failed { address, waiting } => {
                    let other = self.neighbors.alternative(address);
                    for packet in waiting {
                        self.give_up(packet, address, other, cx);
                    }
                }
            }
        }
        while let Some(step) = self.detection.next_step(cx.now) {
            match step {
                Step::Probe(address) => self.probe(address, cx),
                Step::Announce(address) => self.announce(address, cx),
            }
        }
    }

    /// Sends a packet whose next hop does not answer to the `other` router, if that helps.
    /// Otherwise drops it, and reports to its sender that the host is unreachable (RFC 1122
    /// §2.3.2.2, RFC 4861 §7.2.2).
    fn give_up(
        &mut self,
        outgoing: Outgoing,
        next_hop: IpAddr,
        other: Option<IpAddr>,
        cx: &mut Context<'_>,
    ) {
        let sent = Sent::parse(outgoing.packet.headers());
        if let Some(Sent { destination, .. }) = sent
            && other.is_some()
            && destination != next_hop
            && !self.is_on_link(destination)
        {
            return self.send_to_next_hop(outgoing, destination, cx);
        }
        self.counters.drop(DropReason::NeighborUnreachable);
        let Some(sent) = sent else { return };
        if let Some((local, remote, sequence)) = sent.segment {
            // The connection may be gone: the result does not matter.
            _ = self.tcp_error(local, remote, sequence, None, cx);
        } else if self.is_local(sent.source) {
            // The error is an ICMP message to this stack, so that sockets get it like a router's.
            let mut packet = outgoing.packet;
            packet.push_header(ethernet::HEADER_LEN).fill(0);
            self.host_unreachable(sent.source, sent.destination, &packet, cx);
        }
    }

    /// Sends a solicitation for the link-layer address of `address`, to one station or to all (RFC
    /// 826, RFC 4861 §7.2.2).
    fn solicit(&mut self, address: IpAddr, mac: Option<MacAddr>, cx: &mut Context<'_>) {
        match (self.source_for(address), address) {
            (Some(IpAddr::V4(source)), IpAddr::V4(target)) => {
                self.send_arp_request(source, target, mac.unwrap_or(MacAddr::BROADCAST), cx);
            }
            (Some(source @ IpAddr::V6(_)), IpAddr::V6(target)) => {
                let source_link_layer = Some(self.config.mac);
                let message = icmpv6::Message::NeighborSolicitation { target, source_link_layer };
                let to = if mac.is_some() { target } else { solicited_node(target) };
                self.send_icmpv6(&message, source, to.into(), icmpv6::HOP_LIMIT, cx);
            }
            _ => {}
        }
    }

    /// Asks whether another station uses a local address (RFC 5227 §2.1.1, RFC 4862 §5.4.2).
    fn probe(&mut self, address: IpAddr, cx: &mut Context<'_>) {
        match address {
            IpAddr::V4(target) => {
                self.send_arp_request(Ipv4Addr::UNSPECIFIED, target, MacAddr::BROADCAST, cx);
            }
            IpAddr::V6(target) => {
                let message =
                    icmpv6::Message::NeighborSolicitation { target, source_link_layer: None };
                let (from, to) = (Ipv6Addr::UNSPECIFIED.into(), solicited_node(target).into());
                self.send_icmpv6(&message, from, to, icmpv6::HOP_LIMIT, cx);
            }
        }
    }

    /// Announces a local address to all stations, which update their entries (RFC 5227 §2.3, RFC
    /// 4861 §7.2.6).
    fn announce(&mut self, address: IpAddr, cx: &mut Context<'_>) {
        match address {
            IpAddr::V4(ours) => self.send_arp_request(ours, ours, MacAddr::BROADCAST, cx),
            IpAddr::V6(ours) => self.advertise(ours, ALL_NODES, false, cx),
        }
    }

    /// Sends an advertisement of an address that this stack answers for.
    pub(super) fn advertise(
        &mut self,
        target: Ipv6Addr,
        to: Ipv6Addr,
        solicited: bool,
        cx: &mut Context<'_>,
    ) {
        let message = icmpv6::Message::NeighborAdvertisement {
            target,
            target_link_layer: Some(self.config.mac),
            router: self.config.transparent,
            solicited,
            override_: true,
        };
        self.send_icmpv6(&message, target.into(), to.into(), icmpv6::HOP_LIMIT, cx);
    }

    /// Handles a message of another station that uses a local address.
    pub(super) fn conflict(&mut self, address: IpAddr, mac: MacAddr, cx: &mut Context<'_>) {
        self.counters.drop(DropReason::AddressConflict);
        match self.detection.conflict(address, mac, cx.now) {
            Reaction::None => {}
            Reaction::Defend => self.announce(address, cx),
            Reaction::Withdraw => _ = self.remove_address(address, cx.now),
        }
    }

    fn send_arp_request(
        &mut self,
        sender_ip: Ipv4Addr,
        target_ip: Ipv4Addr,
        to: MacAddr,
        cx: &mut Context<'_>,
    ) {
        let request = arp::Packet {
            operation: arp::Operation::Request,
            sender_mac: self.config.mac,
            sender_ip,
            target_mac: MacAddr::UNSPECIFIED,
            target_ip,
        };
        self.send_arp(&request, to, cx);
    }

    pub(super) fn send_arp_reply(&mut self, request: &arp::Packet, cx: &mut Context<'_>) {
        let reply = arp::Packet {
            operation: arp::Operation::Reply,
            sender_mac: self.config.mac,
            sender_ip: request.target_ip,
            target_mac: request.sender_mac,
            target_ip: request.sender_ip,
        };
        self.send_arp(&reply, request.sender_mac, cx);
    }

    fn send_arp(&mut self, message: &arp::Packet, to: MacAddr, cx: &mut Context<'_>) {
        let Some(mut packet) = cx.memory.packet() else {
            return self.counters.drop(DropReason::NoMemory);
        };
        message.emit(packet.push_header(arp::LEN));
        self.send_frame(Outgoing { packet, mtu: u16::MAX }, to, EtherType::ARP, cx);
    }
}

/// Addresses of a packet to be sent, and the segment in it.
#[derive(Clone, Copy)]
struct Sent {
    source: IpAddr,
    destination: IpAddr,
    /// Local end, remote end and sequence number.
    segment: Option<(SocketAddr, SocketAddr, Seq)>,
}

impl Sent {
    /// Reads headers that begin with the IP header.
    fn parse(headers: &[u8]) -> Option<Self> {
        let (source, destination, protocol, transport): (IpAddr, IpAddr, _, _) =
            if headers.first()? >> 4 == 4 {
                let ip = ipv4::Header::parse_quoted(headers).ok()?;
                let transport = headers.get(usize::from(ip.header_len)..)?;
                (ip.source.into(), ip.destination.into(), ip.protocol, transport)
            } else {
                let ip = ipv6::Header::parse(headers, usize::MAX).ok()?;
                let transport = headers.get(ipv6::HEADER_LEN..)?;
                (ip.source.into(), ip.destination.into(), ip.next_header, transport)
            };
        let segment = match *transport {
            [a, b, c, d, e, f, g, h, ..] if protocol == Protocol::TCP => {
                let local = SocketAddr::new(source, u16::from_be_bytes([a, b]));
                let remote = SocketAddr::new(destination, u16::from_be_bytes([c, d]));
                Some((local, remote, Seq(u32::from_be_bytes([e, f, g, h]))))
            }
            _ => None,
        };
        Some(Self { source, destination, segment })
    }
}
