//! Multicast listener discovery (RFC 2710, RFC 3810): answers to queries.
//!
//! # Theory of operation
//!
//! A snooping switch forwards multicast packets of a group only to ports that have reported the
//! group. Without reports, no neighbour solicitation for our addresses would arrive. Each query is
//! answered once, after a random part of its response time, in its version, with the solicited-node
//! groups of all local addresses. No report is sent without a query: without a querier, switches do
//! not snoop (RFC 4541 §3).
//!
//! Bound: at most one answer is pending, regardless of further queries.

use super::{Context, Stack};
use crate::checksum;
use crate::counters::DropReason;
use crate::random::Random;
use crate::stack::egress::Marks;
use crate::stack::ingress::{IpInfo, solicited_node};
use crate::time::{Duration, Instant};
use crate::wire::{Protocol, icmpv6};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};
use towpath_packet::Packet;

/// ICMPv6 type of a query.
pub(super) const QUERY: u8 = 130;
/// ICMPv6 type of a version 1 report, about one group.
const REPORT: u8 = 131;
/// ICMPv6 type of a version 2 report, about several groups.
const REPORT_V2: u8 = 143;
/// Record type for a group without source filter (RFC 3810 §5.2.12).
const MODE_IS_EXCLUDE: u8 = 2;
/// Bytes of a version 1 query behind the ICMPv6 header: the group.
const GROUP_BYTES: usize = 16;
/// Minimum length of a version 2 query (RFC 3810 §8.1).
const QUERY_V2_BYTES: usize = 28;
/// Longest response time in milliseconds: the default query response interval (RFC 3810 §9.3).
const RESPONSE_MAX: u16 = 10_000;
/// Groups in one report; they fit the minimum IPv6 MTU with all headers.
const GROUPS_PER_REPORT: usize = 60;
/// All MLDv2-capable routers (RFC 3810 §5.2.14).
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Hop-by-hop header with a router alert for MLD (RFC 2711) and padding, followed by ICMPv6.
const ROUTER_ALERT: [u8; 8] = [Protocol::ICMPV6.0, 0, 5, 2, 0, 0, 1, 0];

/// The pending answer.
pub(in crate::stack) struct Listener {
    random: Random,
    due: Option<Due>,
}

#[derive(Clone, Copy)]
struct Due {
    at: Instant,
    is_v2: bool,
}

impl Listener {
    /// No pending answer. `key` seeds the random delays.
    pub(in crate::stack) fn new(key: [u64; 2]) -> Self {
        Self { random: Random::new(key), due: None }
    }

    /// When [`Stack::report_groups`] must be called next.
    pub(in crate::stack) fn deadline(&self) -> Option<Instant> {
        self.due.map(|due| due.at)
    }
}

impl Stack {
    /// Processes a query, which must come from a router on the link (RFC 3810 §6.2).
    pub(super) fn receive_listener_query(
        &mut self,
        info: &IpInfo,
        mut packet: Packet,
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let len = packet.len() - info.transport_at;
        let on_link = matches!(info.source, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if !on_link || info.ttl != 1 || !packet.pull_more(GROUP_BYTES) {
            return Err(DropReason::IcmpMalformed);
        }
        let message = &packet.headers()[info.transport_at..];
        let most = u16::from_be_bytes([message[4], message[5]]).min(RESPONSE_MAX);
        let asked = &message[icmpv6::HEADER_LEN..][..GROUP_BYTES];
        let is_general = asked == [0; GROUP_BYTES];
        if is_general || self.groups().iter().any(|group| group.octets() == asked) {
            let delay = self.listener.random.below(u32::from(most) + 1);
            let at = cx.now + Duration::from_millis(delay.into());
            let due = Due { at, is_v2: len >= QUERY_V2_BYTES };
            let waiting = self.listener.due.filter(|waiting| waiting.at <= at);
            self.listener.due = Some(waiting.unwrap_or(due));
        }
        Ok(())
    }

    /// Reports the groups, if a report is due.
    pub(in crate::stack) fn report_groups(&mut self, cx: &mut Context<'_>) {
        let Some(due) = self.listener.due.filter(|due| due.at <= cx.now) else { return };
        self.listener.due = None;
        let groups = self.groups();
        if !due.is_v2 {
            for group in groups {
                let mut message = Vec::from([REPORT, 0, 0, 0, 0, 0, 0, 0]);
                message.extend(group.octets());
                self.send_report(message, group, cx);
            }
            return;
        }
        for groups in groups.chunks(GROUPS_PER_REPORT) {
            let mut message = Vec::from([REPORT_V2, 0, 0, 0, 0, 0, 0, groups.len() as u8]);
            for group in groups {
                message.extend([MODE_IS_EXCLUDE, 0, 0, 0]);
                message.extend(group.octets());
            }
            self.send_report(message, ROUTERS, cx);
        }
    }

    /// Solicited-node groups of the local addresses, without duplicates.
    fn groups(&self) -> Vec<Ipv6Addr> {
        let ours = self.config.addresses.iter().filter_map(|ours| match ours.address {
            IpAddr::V6(address) => Some(solicited_node(address)),
            IpAddr::V4(_) => None,
        });
        let mut groups: Vec<Ipv6Addr> = ours.collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    fn send_report(&mut self, mut message: Vec<u8>, to: Ipv6Addr, cx: &mut Context<'_>) {
        // RFC 3810 §5.2.13: from a link-local address, or from the unspecified address if there is
        // none.
        let ours = self.config.addresses.iter().find_map(|ours| match ours.address {
            IpAddr::V6(address) if address.is_unicast_link_local() => Some(address),
            _ => None,
        });
        let (from, to) = (IpAddr::V6(ours.unwrap_or(Ipv6Addr::UNSPECIFIED)), IpAddr::V6(to));
        let mut sum = checksum::pseudo_header(from, to, Protocol::ICMPV6, message.len() as u32);
        sum.add(&message);
        let at = icmpv6::CHECKSUM_OFFSET;
        message[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
        let (Some(mut packet), Some(mut frame)) = (cx.memory.packet(), cx.memory.small.take())
        else {
            return self.counters.drop(DropReason::NoMemory);
        };
        frame[..message.len()].copy_from_slice(&message);
        if packet.push_piece(frame.freeze(message.len())).is_err() {
            return self.counters.drop(DropReason::NoMemory);
        }
        packet.push_header(ROUTER_ALERT.len()).copy_from_slice(&ROUTER_ALERT);
        let marks = Marks { ttl: 1, tos: 0, dont_fragment: true, mtu: u16::MAX };
        self.send_ip(packet, Protocol::HOP_BY_HOP, (from, to), marks, cx);
    }
}
