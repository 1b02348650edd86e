//! Received ARP messages (RFC 826, RFC 5227) and neighbour discovery (RFC 4861, RFC 4862).

use super::ingress::{IpInfo, is_martian, is_multicast, solicited_node};
use super::{Context, Stack};
use crate::counters::DropReason;
use crate::neighbor::{Advertisement, Announcement, Station};
use crate::wire::{MacAddr, arp, ethernet, icmpv6};
use core::net::{IpAddr, Ipv6Addr};
use towpath_packet::Packet;

impl Stack {
    /// Processes an ARP message in a frame to `to`.
    pub(super) fn receive_arp(&mut self, packet: &Packet, to: MacAddr, cx: &mut Context<'_>) {
        let message = match arp::Packet::parse(&packet.headers()[ethernet::HEADER_LEN..]) {
            // No station has such an address, and a reply to it would reach others.
            Ok(message) if message.sender_mac.is_unicast() => message,
            _ => return self.counters.drop(DropReason::ArpMalformed),
        };
        let (sender, target) = (IpAddr::V4(message.sender_ip), IpAddr::V4(message.target_ip));
        let is_request = message.operation == arp::Operation::Request;
        let is_echo = message.sender_mac == self.config.mac;
        if message.sender_ip.is_unspecified() {
            if is_request && !is_echo && self.is_local(target) {
                self.receive_probe(target, message.sender_mac, cx);
                if self.is_local(target) {
                    self.send_arp_reply(&message, cx);
                }
            }
            return;
        }
        if self.is_local(sender) && !is_echo {
            // RFC 5227 §2.4.
            return self.conflict(sender, message.sender_mac, cx);
        }
        if is_echo || is_martian(sender) {
            return self.counters.drop(DropReason::ArpMalformed);
        }
        // A request for the sender's own address announces it (RFC 5227 §3).
        let for_us = self.answers_for(target) && target != sender;
        let asks_us = for_us && is_request;
        let announcement = if asks_us {
            Announcement::Solicitation
        } else {
            // Only a reply to this station alone shows that requests arrive: it is a solicited one.
            let solicited = for_us && to == self.config.mac;
            let message = Advertisement { solicited, overrides: true, router: None };
            Announcement::Advertisement(message)
        };
        let station = Station { mac: Some(message.sender_mac), port: packet.ingress() };
        self.learn_neighbor(sender, station, announcement, cx);
        if asks_us {
            self.send_arp_reply(&message, cx);
        }
    }

    /// Processes another station's probe for a local address. A probe for a tentative address is
    /// a conflict: both want it (RFC 5227 §2.1.1, RFC 4862 §5.4.3).
    fn receive_probe(&mut self, target: IpAddr, mac: MacAddr, cx: &mut Context<'_>) {
        if self.detection.is_tentative(target) {
            self.conflict(target, mac, cx);
        }
    }

    /// Processes neighbour discovery, which must come from the link (RFC 4861 §7.1).
    pub(super) fn receive_discovery(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let rest = packet.payload_len();
        if info.ttl != icmpv6::HOP_LIMIT || !packet.pull_more(rest) {
            return Err(DropReason::NeighborMalformed);
        }
        let message = icmpv6::Message::parse(&packet.headers()[info.transport_at..])
            .map_err(|_| DropReason::NeighborMalformed)?;
        let port = packet.ingress();
        match message {
            icmpv6::Message::NeighborSolicitation { target, source_link_layer } => {
                let station = Station { mac: source_link_layer, port };
                self.receive_solicitation(info, target, station, cx)
            }
            icmpv6::Message::NeighborAdvertisement {
                target,
                target_link_layer,
                router,
                solicited,
                override_,
            } => {
                let router = Some(router);
                let flags = Advertisement { solicited, overrides: override_, router };
                let station = Station { mac: target_link_layer, port };
                self.receive_advertisement(info, target, station, flags, cx)
            }
            icmpv6::Message::RouterAdvertisement(router) => {
                // Routers are configured: of interest are only whether a station still is one,
                // and the times of the link. A router follows no other's (RFC 4861 §6.2.7).
                self.neighbors.announce_router(info.source, router.router_lifetime_s > 0);
                if !self.config.transparent && is_link_local(info.source) {
                    self.neighbors.set_times(router.reachable_time_ms, router.retrans_timer_ms);
                }
                Err(DropReason::IcmpIgnored)
            }
            _ => Err(DropReason::IcmpIgnored),
        }
    }

    fn receive_solicitation(
        &mut self,
        info: &IpInfo,
        target: Ipv6Addr,
        station: Station,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let IpAddr::V6(source) = info.source else { return Err(DropReason::NeighborMalformed) };
        let group = IpAddr::V6(solicited_node(target));
        let is_probe = source.is_unspecified();
        // RFC 4861 §7.1.1: a solicitation from the unspecified address has no link-layer option.
        let has_station = station.mac.is_some();
        if is_probe && (has_station || info.destination != group) || !is_station(station.mac) {
            return Err(DropReason::NeighborMalformed);
        }
        if !is_probe {
            if self.answers_for(target.into()) {
                self.learn_neighbor(info.source, station, Announcement::Solicitation, cx);
                self.advertise(target, source, true, cx);
            }
            return Ok(());
        }
        // A probe asks whether the address is free; one that this stack only answers for is.
        if self.is_local(target.into()) && info.source_mac != self.config.mac {
            self.receive_probe(target.into(), info.source_mac, cx);
            if self.is_local(target.into()) {
                // RFC 4861 §7.2.4, RFC 4862 §5.4.3: all nodes must receive the answer.
                self.advertise(target, ALL_NODES, false, cx);
            }
        }
        Ok(())
    }

    fn receive_advertisement(
        &mut self,
        info: &IpInfo,
        target: Ipv6Addr,
        station: Station,
        flags: Advertisement,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        // RFC 4861 §7.1.2: an answer to a solicitation is not sent to all.
        let is_to_all = flags.solicited && is_multicast(info.destination);
        if is_to_all || !is_station(station.mac) {
            return Err(DropReason::NeighborMalformed);
        }
        if self.is_local(target.into()) {
            let mac = station.mac.unwrap_or(info.source_mac);
            if mac != self.config.mac {
                self.conflict(target.into(), mac, cx);
            }
            return Ok(());
        }
        self.learn_neighbor(target.into(), station, Announcement::Advertisement(flags), cx);
        Ok(())
    }
}

/// True if a link-layer option has an address that a station can have, or is absent.
fn is_station(mac: Option<MacAddr>) -> bool {
    mac.is_none_or(MacAddr::is_unicast)
}

/// True for addresses from which routers send advertisements (RFC 4861 §6.1.2).
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// All nodes on the link (RFC 4291 §2.7.1).
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
