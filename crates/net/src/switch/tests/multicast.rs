//! Multicast: groups reach all ports, and control traffic is not lost during a storm.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::harness::*;
use crate::counters::PortDrop;
use crate::switch::*;
use crate::time::Duration;
use crate::wire::MacAddr;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 10, 10, 1);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const HOP_BY_HOP: u8 = 0;
const IGMP: u8 = 2;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Router alert for IPv4 (RFC 2113), and in a hop-by-hop options header (RFC 2711).
const ALERT_V4: [u8; 4] = [0x94, 4, 0, 0];
const ALERT_V6: [u8; 8] = [ICMPV6, 0, 5, 2, 0, 0, 1, 0];
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOR_SOLICITATION: u8 = 135;

/// An IPv4 packet to a group, with options (RFC 1112 §6.4).
fn ipv4(source: Ipv4Addr, group: [u8; 4], protocol: u8, options: &[u8], body: &[u8]) -> Vec<u8> {
    let words = 5 + options.len() as u8 / 4;
    let total = (usize::from(words) * 4 + body.len()) as u16;
    let mut header = alloc::vec![0x40 | words, 0xc0];
    header.extend(total.to_be_bytes());
    header.extend([0, 0, 0x40, 0, 1, protocol, 0, 0]);
    header.extend(source.octets());
    header.extend(group);
    header.extend(options);
    let sum: u32 = header.as_chunks().0.iter().map(|two| u32::from(u16::from_be_bytes(*two))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let to = MacAddr([1, 0, 0x5e, group[1] & 0x7f, group[2], group[3]]);
    [&to.0[..], &mac(1).0, &[8, 0], &header, body].concat()
}

/// An IPv6 packet to a group (RFC 2464 §7).
fn ipv6(source: Ipv6Addr, group: Ipv6Addr, next: u8, body: &[u8]) -> Vec<u8> {
    let mut to = [0x33; 6];
    to[2..].copy_from_slice(&group.octets()[12..]);
    let mut bytes = [&to[..], &mac(1).0, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend([next, 1]);
    bytes.extend(source.octets());
    bytes.extend(group.octets());
    bytes.extend(body);
    bytes
}

fn group_v6(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, last)
}

/// A neighbour discovery message, with a target if its kind has one, without options.
fn discovery(kind: u8, group: Ipv6Addr) -> Vec<u8> {
    let mut body = alloc::vec![kind, 0, 0, 0, 0, 0, 0, 0];
    if kind == NEIGHBOR_SOLICITATION {
        body.extend(LINK_LOCAL.octets());
    }
    if kind == ROUTER_ADVERTISEMENT {
        body.extend([0; 8]);
    }
    ipv6(LINK_LOCAL, group, ICMPV6, &body)
}

/// Membership reports of IGMPv3 (RFC 3376 §4.2) and MLDv2 (RFC 3810 §5.2), with router alert, from
/// an address and from the unspecified address.
fn reports() -> Vec<Vec<u8>> {
    const MLD_REPORT: u8 = 143;
    let record = [4, 0, 0, 0, 224, 0, 0, 251];
    let igmp = [&[0x22, 0, 0, 0, 0, 0, 0, 1][..], &record].concat();
    let mut mld = [&ALERT_V6[..], &[MLD_REPORT, 0, 0, 0, 0, 0, 0, 1], &[4, 0, 0, 0]].concat();
    mld.extend(group_v6(0xfb).octets());
    let mut reports = Vec::new();
    for source in [OWN, Ipv4Addr::UNSPECIFIED] {
        reports.push(ipv4(source, [224, 0, 0, 22], IGMP, &ALERT_V4, &igmp));
    }
    for source in [LINK_LOCAL, Ipv6Addr::UNSPECIFIED] {
        reports.push(ipv6(source, group_v6(0x16), HOP_BY_HOP, &mld));
    }
    reports
}

/// General queries of IGMPv2 and IGMPv3 (RFC 2236 §2, RFC 3376 §4.1), of MLDv1 and MLDv2 (RFC 2710
/// §3, RFC 3810 §5.1).
fn queries() -> Vec<Vec<u8>> {
    const MLD_QUERY: u8 = 130;
    let igmp = [0x11, 100, 0xee, 0x9b, 0, 0, 0, 0, 2, 125, 0, 0];
    let mut mld = [&ALERT_V6[..], &[MLD_QUERY, 0, 0, 0, 0x27, 0x10, 0, 0]].concat();
    mld.extend([0; 16]);
    let longer = [&mld[..], &[2, 125, 0, 0]].concat();
    alloc::vec![
        ipv4(OWN, [224, 0, 0, 1], IGMP, &ALERT_V4, &igmp[..8]),
        ipv4(OWN, [224, 0, 0, 1], IGMP, &ALERT_V4, &igmp),
        ipv6(LINK_LOCAL, group_v6(1), HOP_BY_HOP, &mld),
        ipv6(LINK_LOCAL, group_v6(1), HOP_BY_HOP, &longer),
    ]
}

/// Frames that stations send to link-local groups.
fn frames() -> Vec<Vec<u8>> {
    let solicited = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);
    let datagram = [0x14, 0xe9, 0x14, 0xe9, 0, 12, 0, 0, 1, 2, 3, 4];
    let mut frames = [reports(), queries()].concat();
    frames.extend([
        ipv4(OWN, [224, 0, 0, 1], UDP, &[], &datagram),
        ipv4(OWN, [224, 0, 0, 251], UDP, &[], &datagram),
        ipv4(OWN, [239, 1, 2, 3], UDP, &[], &datagram),
        ipv6(LINK_LOCAL, group_v6(0xfb), UDP, &datagram),
        discovery(NEIGHBOR_SOLICITATION, solicited),
        discovery(ROUTER_SOLICITATION, group_v6(2)),
    ]);
    frames
}

/// Goal: reports, queries and packets to link-local groups reach every port of the VLAN unchanged,
/// also from a guarded port; no port has to join.
#[test]
fn groups_reach_everybody() {
    let link_local = Prefix { address: "fe80::".parse().expect("an address"), len: 10 };
    let addresses = alloc::vec![Prefix::one(IpAddr::from(OWN)), link_local];
    let guard = Guard { macs: alloc::vec![mac(1)], addresses };
    let other = in_vlans(access(2));
    let ports = [PortConfig { guard, ..port() }, port(), port(), other];
    let mut t = Harness::new(ports);
    for frame in frames() {
        let both = [1, 2].map(|port| (port, alloc::vec![frame.clone()]));
        assert_eq!(t.send(0, &frame), BTreeMap::from(both), "{frame:02x?}");
    }
    let advertisement = discovery(ROUTER_ADVERTISEMENT, group_v6(1));
    t.expect_drop(0, &advertisement, PortDrop::AddressSpoofed);
    assert_eq!(t.leaves_by(1, &readdressed(&advertisement, ALL, mac(2), None)), [0, 2]);
    t.end();
}

/// Goal: isolated ports receive multicast from uplinks only, and only uplinks receive theirs.
#[test]
fn groups_stop_at_isolated_ports() {
    let isolated = || PortConfig { role: Role::Isolated, ..port() };
    let mut t =
        Harness::new([isolated(), isolated(), port(), PortConfig { role: Role::Uplink, ..port() }]);
    for frame in frames() {
        assert_eq!(t.leaves_by(0, &frame), [3]);
    }
    let advertisement = discovery(ROUTER_ADVERTISEMENT, group_v6(1));
    assert_eq!(t.leaves_by(3, &readdressed(&advertisement, ALL, mac(9), None)), [0, 1, 2]);
    t.end();
}

/// Goal: a station that floods multicast loses packets above its rate. Solicitations and
/// advertisements of all others pass, also to that station, and its own pass once it has stopped.
#[test]
fn a_storm_is_its_senders_own() {
    let storm = StormRates { broadcast: Some(50), multicast: Some(50), unknown: Some(50) };
    let bound = || PortConfig { storm, ..port() };
    let uplink = PortConfig { role: Role::Uplink, ..port() };
    let mut t = Harness::new([bound(), bound(), uplink]);
    let from = |frame: &[u8], to, station| readdressed(frame, to, mac(station), None);
    let solicited = MacAddr([0x33, 0x33, 0xff, 0, 0, 1]);
    let solicitation = discovery(NEIGHBOR_SOLICITATION, group_v6(1));
    let advertisement = discovery(ROUTER_ADVERTISEMENT, group_v6(1));
    let flood = ipv4(OWN, [239, 1, 2, 3], UDP, &[], &[7; 64]);
    for _ in 0..20 {
        for _ in 0..500 {
            t.send(0, &flood);
        }
        t.now += Duration::from_millis(50);
        assert_eq!(t.leaves_by(1, &from(&solicitation, solicited, 2)), [0, 2]);
        assert_eq!(t.leaves_by(2, &from(&advertisement, ALL, 9)), [0, 1]);
    }
    assert!(t.counters(0).dropped(PortDrop::StormMulticast) > 9800);
    assert_eq!(t.counters(1).dropped(PortDrop::StormMulticast), 0);
    t.now += Duration::from_secs(1);
    assert_eq!(t.leaves_by(0, &from(&solicitation, solicited, 1)), [1, 2]);
    t.end();
}

/// Goal: with default rates, a stream of 15,000 packets per second to a group or to a silent
/// station is not limited, and the packets of a loop are limited and counted.
#[test]
fn a_stream_is_no_storm_and_a_loop_is() {
    let mut t = Harness::new([port(), port()]);
    let to_group = ipv4(OWN, [239, 1, 2, 3], UDP, &[], &[7; 64]);
    let to_nobody = readdressed(&to_group, mac(7), mac(1), None);
    for stream in [&to_group, &to_nobody] {
        for _ in 0..300 {
            assert_eq!((0..150).filter(|_| t.leaves_by(0, stream) == [1]).count(), 150);
            t.now += Duration::from_millis(10);
        }
    }
    for (storm, reason) in
        [(to_group, PortDrop::StormMulticast), (to_nobody, PortDrop::StormUnknown)]
    {
        let passed = (0..50_000)
            .filter(|_| {
                t.now += Duration::from_micros(1);
                t.leaves_by(0, &storm) == [1]
            })
            .count();
        assert!((2_000..4_000).contains(&passed), "{passed} of a loop pass");
        assert_eq!(t.counters(0).dropped(reason) as usize, 50_000 - passed);
    }
    t.end();
}

/// All nodes of a link.
const ALL: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
