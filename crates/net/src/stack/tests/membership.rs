//! Multicast groups: reports to routers, versions of queriers, delivery, bad queries, bounds.

use super::bench::*;
use crate::counters::DropReason;
use crate::stack::{Address, Config, GROUPS_MAX, JoinError, UdpSend};
use crate::time::Duration;
use crate::wire::membership::{ROUTER_ALERT_V4, ROUTER_ALERT_V6};
use crate::wire::{Protocol, membership};
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_packet::Caps;

const SOLICITED: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 1);

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Group, address of a router, and the groups that a general query reports after the group.
fn families() -> [(IpAddr, IpAddr); 2] {
    [(address("239.1.2.3"), PEER4), (address("ff05::5"), address("fe80::7"))]
}

fn bench() -> Bench {
    Bench::with(config(false), Caps::plain(1500))
}

/// A query with these bytes behind the group.
struct Query {
    from: IpAddr,
    asked: Option<IpAddr>,
    ttl: u8,
    alert: bool,
    code: u16,
    rest: &'static [u8],
}

const V3: &[u8] = &[2, 125, 0, 0];

impl Query {
    fn new(from: IpAddr, asked: Option<IpAddr>, rest: &'static [u8]) -> Self {
        // One second.
        let code = if from.is_ipv4() { 10 } else { 1000 };
        Self { from, asked, ttl: 1, alert: true, code, rest }
    }

    fn message(&self) -> Vec<u8> {
        let [high, low] = self.code.to_be_bytes();
        match (self.from, self.asked) {
            (IpAddr::V4(_), Some(IpAddr::V4(group))) => {
                [&[0x11, low, 0, 0], &group.octets()[..], self.rest].concat()
            }
            (IpAddr::V4(_), _) => [&[0x11, low, 0, 0, 0, 0, 0, 0], self.rest].concat(),
            (IpAddr::V6(_), Some(IpAddr::V6(group))) => {
                [&[130, 0, 0, 0, high, low, 0, 0], &group.octets()[..], self.rest].concat()
            }
            (IpAddr::V6(_), _) => {
                [&[130, 0, 0, 0, high, low, 0, 0], &[0; 16][..], self.rest].concat()
            }
        }
    }

    fn frame(&self) -> Vec<u8> {
        let to = match self.from {
            IpAddr::V4(_) => self.asked.unwrap_or(membership::ALL_SYSTEMS.into()),
            IpAddr::V6(_) => self.asked.unwrap_or(membership::ALL_NODES.into()),
        };
        frame(self.from, to, self.ttl, self.alert, self.message())
    }
}

/// A membership message in a frame to its group.
fn frame(from: IpAddr, to: IpAddr, ttl: u8, alert: bool, mut message: Vec<u8>) -> Vec<u8> {
    let sums_as = if from.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
    message[2..4].fill(0);
    let sum = transport_sum(from, to, sums_as, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = match (from, alert) {
        (IpAddr::V4(_), false) => ip(from, to, Protocol::IGMP, ttl, &message),
        (IpAddr::V4(_), true) => {
            let body = [&ROUTER_ALERT_V4[..], &message].concat();
            let mut frame = ip(from, to, Protocol::IGMP, ttl, &body);
            frame[14] = 0x46;
            frame[24..26].fill(0);
            let sum = transport_sum(from, to, Protocol::ICMP, &frame[14..38]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            frame
        }
        (IpAddr::V6(_), false) => ip(from, to, Protocol::ICMPV6, ttl, &message),
        (IpAddr::V6(_), true) => {
            let body = [&ROUTER_ALERT_V6[..], &message].concat();
            ip(from, to, Protocol::HOP_BY_HOP, ttl, &body)
        }
    };
    frame[..6].copy_from_slice(&membership::group_mac(to).0);
    frame
}

/// Destination and message of a sent report, whose headers and checksum are right.
fn report(out: &Out) -> (IpAddr, Vec<u8>) {
    let ip = &out.bytes[14..];
    let (from, to, message): (IpAddr, IpAddr, &[u8]) = if out.is_v4() {
        assert_eq!((ip[0], ip[1], ip[8], ip[9]), (0x46, 0xc0, 1, 2), "TTL 1, IGMP");
        assert_eq!(ip[20..24], ROUTER_ALERT_V4);
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        assert_eq!(transport_sum(OURS4, OURS4, Protocol::ICMP, &ip[..24]), 0);
        let at = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).expect("four"));
        (at(12), at(16), &ip[24..])
    } else {
        assert_eq!((ip[6], ip[7]), (0, 1), "hop-by-hop header, hop limit");
        assert_eq!(ip[40..48], ROUTER_ALERT_V6);
        let at = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).expect("sixteen"));
        (at(8), at(24), &ip[48..])
    };
    assert_eq!(out.bytes[..6], membership::group_mac(to).0);
    assert_eq!(from, if out.is_v4() { OURS4 } else { Ipv6Addr::UNSPECIFIED.into() });
    let sums_as = if out.is_v4() { Protocol::ICMP } else { Protocol::ICMPV6 };
    assert_eq!(transport_sum(from, to, sums_as, message), 0);
    (to, message.to_vec())
}

/// Kinds and groups of the records of a version 3 report.
fn records(out: &Out) -> Vec<(u8, IpAddr)> {
    let (to, message) = report(out);
    let v4 = out.is_v4();
    assert_eq!(to, address(if v4 { "224.0.0.22" } else { "ff02::16" }));
    assert_eq!(message[0], if v4 { 0x22 } else { 143 });
    let count = usize::from(u16::from_be_bytes([message[6], message[7]]));
    let len = if v4 { 8 } else { 20 };
    assert_eq!(message.len(), 8 + count * len);
    let record = |record: &[u8]| {
        assert_eq!(record[1..4], [0, 0, 0]);
        let group = match <[u8; 4]>::try_from(&record[4..]) {
            Ok(four) => IpAddr::from(four),
            Err(_) => IpAddr::from(<[u8; 16]>::try_from(&record[4..]).expect("sixteen")),
        };
        (record[0], group)
    };
    message[8..].chunks(len).map(record).collect()
}

fn join(b: &mut Bench, group: IpAddr) -> Result<(), JoinError> {
    let now = b.now;
    b.stack.join_group(group, now)
}

fn leave(b: &mut Bench, group: IpAddr) -> bool {
    let now = b.now;
    b.stack.leave_group(group, now)
}

/// RFC 3376 §5.1: joining and leaving are reported at once, and once more within a second; only the
/// first member and the last one count.
#[test]
fn changes_are_reported_twice() {
    for (group, _) in families() {
        let mut b = bench();
        for (member, kind) in [(true, 4), (false, 3)] {
            for _ in 0..2 {
                match member {
                    true => assert_eq!(join(&mut b, group), Ok(())),
                    false => assert!(leave(&mut b, group)),
                }
            }
            let first = b.wait(Duration::ZERO);
            assert_eq!(first.iter().map(records).collect::<Vec<_>>(), [[(kind, group)]]);
            let again = b.wait(Duration::from_secs(1));
            assert_eq!(again.iter().map(records).collect::<Vec<_>>(), [[(kind, group)]]);
            assert!(b.wait(Duration::from_secs(20)).is_empty());
        }
        assert!(!leave(&mut b, group), "no member is left");
        assert_eq!(b.stack.next_deadline(), None);
        // A change of mind replaces what is pending.
        assert_eq!(join(&mut b, group), Ok(()));
        assert_eq!(b.wait(Duration::ZERO).len(), 1);
        assert!(leave(&mut b, group));
        let out = b.wait(Duration::from_secs(2));
        assert_eq!(out.iter().flat_map(records).collect::<Vec<_>>(), [(3, group); 2]);
        b.dropped(&[]);
        b.assert_clean();
    }
}

/// RFC 3376 §5.2: one answer for all groups, or for the one that was asked; the querier sets how
/// often changes are reported.
#[test]
fn queries_of_version_3_are_answered() {
    for (group, router) in families() {
        let mut b = bench();
        assert_eq!(join(&mut b, group), Ok(()));
        b.wait(Duration::from_secs(10));
        for asked in [None, Some(group)] {
            let query = Query::new(router, asked, V3);
            b.input(&query.frame()).input(&query.frame()).quiet();
            let out = b.wait(Duration::from_secs(1));
            let [one] = &out[..] else { panic!("one report, not {out:?}") };
            let mut expected = vec![(2, group)];
            if group.is_ipv6() && asked.is_none() {
                expected.insert(0, (2, SOLICITED.into()));
            }
            assert_eq!(records(one), expected);
            assert!(b.wait(Duration::from_secs(20)).is_empty());
        }
        // No member, or none any more.
        let other = address(if group.is_ipv4() { "239.9.9.9" } else { "ff05::9" });
        b.input(&Query { asked: None, ..Query::new(router, Some(other), V3) }.frame());
        assert_eq!(b.wait(Duration::from_secs(1)).len(), 1);
        let mut stranger = Query::new(router, Some(other), V3).frame();
        b.input(&stranger);
        b.dropped(&[(DropReason::DestinationNotServed, 1)]);
        // The query names one group, but is sent to another.
        stranger = frame(router, group, 1, true, Query::new(router, Some(other), V3).message());
        b.input(&stranger);
        assert!(b.wait(Duration::from_secs(10)).is_empty());
        // Robustness 5: a leave is reported five times.
        b.input(&Query::new(router, Some(group), &[5, 125, 0, 0]).frame());
        b.wait(Duration::from_secs(1));
        assert!(leave(&mut b, group));
        assert_eq!(b.wait(Duration::from_secs(5)).len(), 5);
        b.assert_clean();
    }
}

/// RFC 3376 §7, RFC 3810 §8: older queriers get reports of their version until they are silent, and
/// another host's report is enough for them.
#[test]
fn older_queriers_are_understood() {
    for (group, router) in families() {
        for version in [1, 2] {
            if version == 1 && group.is_ipv6() {
                continue;
            }
            let query = |asked| Query {
                code: if version == 1 { 0 } else { Query::new(router, asked, &[]).code },
                alert: version != 1,
                ..Query::new(router, asked, &[])
            };
            let kind = match (version, group.is_ipv4()) {
                (1, _) => 0x12,
                (_, true) => 0x16,
                (_, false) => 131,
            };
            let mut b = bench();
            assert_eq!(join(&mut b, group), Ok(()));
            b.input(&query(None).frame());
            let most = Duration::from_secs(if version == 1 { 10 } else { 1 });
            let mut out: Vec<_> = b.wait(most).iter().map(report).collect();
            out.retain(|(to, _)| *to != IpAddr::V6(SOLICITED));
            assert_eq!(out.len(), 1, "the pending report of version 3 is cancelled");
            assert_eq!((out[0].0, out[0].1[0]), (group, kind));
            // Heard from another host.
            b.input(&query(Some(group)).frame());
            let said = frame(router, group, 1, true, out[0].1.clone());
            b.input(&said);
            assert!(b.wait(most).is_empty());
            // A version 3 query does not change that.
            b.input(&Query::new(router, Some(group), V3).frame());
            let out: Vec<_> = b.wait(most).iter().map(report).collect();
            assert_eq!((out.len(), out[0].1[0]), (1, kind));
            assert!(leave(&mut b, group));
            let out: Vec<_> = b.wait(Duration::from_secs(20)).iter().map(report).collect();
            if version == 1 {
                assert!(out.is_empty(), "version 1 has no leave");
            } else {
                let routers = address(if group.is_ipv4() { "224.0.0.2" } else { "ff02::2" });
                assert_eq!((out.len(), out[0].0), (1, routers));
                assert_eq!(out[0].1[0], if group.is_ipv4() { 0x17 } else { 132 });
            }
            // Twice 125 seconds and the response time after the last query.
            b.wait(Duration::from_secs(260));
            assert_eq!(join(&mut b, group), Ok(()));
            assert_eq!(records(&b.wait(Duration::ZERO)[0]), [(4, group)]);
            b.dropped(&[]);
        }
    }
}

/// Bad input: queries and reports that are truncated, too long for their count of sources, damaged,
/// forwarded, without a router alert, from off the link or from nowhere, and for no group.
#[test]
fn bad_queries_are_ignored() {
    for (group, router) in families() {
        let mut b = bench();
        assert_eq!(join(&mut b, group), Ok(()));
        b.wait(Duration::from_secs(10));
        let right = || Query::new(router, None, V3);
        let mut bad = 0;
        let mut refuse = |b: &mut Bench, frame: &[u8]| {
            b.input(frame);
            bad += 1;
            b.dropped(&[(DropReason::MembershipMalformed, bad)]);
        };
        refuse(&mut b, &Query { ttl: 2, ..right() }.frame());
        refuse(&mut b, &Query { ttl: 255, ..right() }.frame());
        refuse(&mut b, &Query { alert: false, ..right() }.frame());
        refuse(&mut b, &Query { rest: &[2, 125, 0, 1], ..right() }.frame());
        refuse(&mut b, &Query { rest: &[2, 125, 0xff, 0xff], ..right() }.frame());
        for rest in [&[2][..], &[2, 125], &[2, 125, 0]] {
            refuse(&mut b, &Query { rest, ..right() }.frame());
        }
        let far = if group.is_ipv4() { address("198.51.100.9") } else { PEER6 };
        refuse(&mut b, &Query { from: far, ..right() }.frame());
        let to = if group.is_ipv4() { "224.0.0.1" } else { "ff02::1" };
        let mut to_no_group = right().message();
        let at = if group.is_ipv4() { 4 } else { 8 };
        to_no_group[at..at + 4].copy_from_slice(&[10, 0, 0, 5]);
        refuse(&mut b, &frame(router, address(to), 1, true, to_no_group));
        if group.is_ipv4() {
            // Shorter than any version; over IPv6 that is no ICMPv6 message.
            refuse(&mut b, &frame(router, address(to), 1, true, right().message()[..7].to_vec()));
            let mut damaged = right().frame();
            *damaged.last_mut().expect("bytes") ^= 1;
            refuse(&mut b, &damaged);
            // A switch without an address may ask.
            b.input(&Query { from: Ipv4Addr::UNSPECIFIED.into(), ..right() }.frame());
            assert_eq!(b.wait(Duration::from_secs(1)).len(), 1);
        } else {
            let mut damaged = right().frame();
            *damaged.last_mut().expect("bytes") ^= 1;
            b.input(&damaged);
            b.input(&Query { from: Ipv6Addr::UNSPECIFIED.into(), ..right() }.frame());
            assert_eq!(b.stack.counters().dropped(DropReason::IcmpMalformed), 1);
            assert_eq!(b.stack.counters().dropped(DropReason::SourceMartian), 1);
        }
        assert!(b.wait(Duration::from_secs(100)).is_empty());
        // An oversized query, with room for its sources and more, is answered.
        const LONG: &[u8] = &[0x41; 1000];
        let rest: &'static [u8] = Vec::leak([&[2, 125, 0, 3], LONG].concat());
        b.input(&Query { rest, ..right() }.frame());
        assert_eq!(b.wait(Duration::from_secs(1)).len(), 1);
        b.assert_no_leak();
    }
}

/// RFC 3810 §6.2, RFC 4861 §7.2.1: solicited-node groups are reported when asked for, or announced.
#[test]
fn groups_of_addresses_are_announced_on_demand() {
    let mut config = config(false);
    let mut second = v6(OURS6).octets();
    second[7] = 1;
    config.addresses.push(Address { address: IpAddr::from(second), prefix_len: 64 });
    let mut b = Bench::with(config, Caps::plain(1500));
    assert!(b.wait(Duration::from_secs(10)).is_empty());
    let now = b.now;
    b.stack.announce_groups(now);
    for out in [b.wait(Duration::ZERO), b.wait(Duration::from_secs(1))] {
        assert_eq!(out.iter().map(records).collect::<Vec<_>>(), [[(4, SOLICITED.into())]]);
    }
    b.assert_clean();
}

/// Bounds: groups of one stack, and what a full table of them reports.
#[test]
fn groups_are_bounded() {
    let mut b = bench();
    let group = |number: usize| {
        let [high, low] = (number as u16).to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(239, 1, high, low))
    };
    // One is the solicited-node group.
    for number in 1..GROUPS_MAX {
        assert_eq!(join(&mut b, group(number)), Ok(()));
    }
    assert_eq!(join(&mut b, group(GROUPS_MAX)), Err(JoinError::TooMany));
    assert_eq!(join(&mut b, group(1)), Ok(()), "a further member");
    assert_eq!(join(&mut b, OURS4), Err(JoinError::NotMulticast));
    let out = b.wait(Duration::ZERO);
    assert_eq!(out.iter().map(|out| records(out).len()).sum::<usize>(), GROUPS_MAX - 1);
    assert!(out.iter().all(|out| out.bytes.len() <= 576));
    // A group that was left gives way before its leave has been reported again.
    assert!(leave(&mut b, group(2)));
    assert_eq!(join(&mut b, group(GROUPS_MAX)), Ok(()));
    b.wait(Duration::from_secs(3));
    b.input(&Query::new(PEER4, None, V3).frame());
    let out = b.wait(Duration::from_secs(1));
    assert_eq!(out.iter().map(|out| records(out).len()).sum::<usize>(), GROUPS_MAX - 1);
    b.assert_clean();
}

/// Goal: datagrams to joined groups are received, and with a TTL of zero or if the caller asks for
/// it only by this stack. Transparent stacks receive those of groups that they have joined only.
#[test]
fn datagrams_of_groups_are_received() {
    for (group, _) in families() {
        let ours = if group.is_ipv4() { OURS4 } else { OURS6 };
        let peer = if group.is_ipv4() { PEER4 } else { PEER6 };
        let (from, to) = (SocketAddr::new(peer, 9), SocketAddr::new(group, 5353));
        let received = |b: &mut Bench| {
            core::iter::from_fn(|| b.stack.next_datagram())
                .map(|datagram| datagram.local)
                .collect::<Vec<_>>()
        };
        for transparent in [false, true] {
            let mut b = Bench::with(config(transparent), Caps::plain(1500));
            let mut datagram = udp(from, to, b"to all");
            datagram[..6].copy_from_slice(&membership::group_mac(group).0);
            b.input(&datagram);
            assert!(received(&mut b).is_empty());
            b.dropped(&[(DropReason::DestinationNotServed, 1)]);
            assert_eq!(join(&mut b, group), Ok(()));
            b.wait(Duration::from_secs(2));
            b.input(&datagram);
            assert_eq!(received(&mut b), [to]);
            let all = address(if group.is_ipv4() { "224.0.0.1" } else { "ff02::1" });
            b.input(&udp(from, SocketAddr::new(all, 1), b"all hosts"));
            assert_eq!(received(&mut b).len(), usize::from(!transparent));
        }
        for (ttl, loops) in [(1, true), (0, true), (1, false), (0, false)] {
            let mut b = bench();
            assert_eq!(join(&mut b, group), Ok(()));
            b.wait(Duration::from_secs(2));
            let packet = b.packet(b"own");
            let how = UdpSend { ttl, multicast_loop: loops, ..UdpSend::default() };
            let local = SocketAddr::new(ours, 5353);
            b.with_context(|stack, cx| stack.udp_send_with(packet, local, to, &how, cx));
            let out = b.output();
            assert_eq!(out.len(), usize::from(ttl > 0));
            if let [out] = &out[..] {
                assert_eq!(out.bytes[..6], membership::group_mac(group).0);
                assert!(out.is_sound());
            }
            assert_eq!(received(&mut b).len(), usize::from(loops));
            b.assert_clean();
        }
    }
}

/// RFC 6724 §5: the source of a datagram to a group has the scope of the group.
#[test]
fn sources_have_the_scope_of_the_group() {
    let local = address("fe80::1");
    let mut addresses = config(false).addresses;
    addresses.push(Address { address: local, prefix_len: 64 });
    let b = Bench::with(Config { addresses, ..config(false) }, Caps::plain(1500));
    for (group, source) in
        [("ff02::fb", local), ("ff05::1", OURS6), ("ff0e::1", OURS6), ("239.0.0.1", OURS4)]
    {
        assert_eq!(b.stack.source_for(address(group)), Some(source), "{group}");
    }
    assert_eq!(bench().stack.source_for(address("ff02::fb")), Some(OURS6), "the only one");
}
