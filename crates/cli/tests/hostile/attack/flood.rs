//! Floods: connections that are never used, segments without a connection, datagrams from
//! everywhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{SIDES, end};
use crate::frame::{self, ACK, FIN, PROGRAM, PSH, RST, SYN, Segment, on_link};
use crate::host::{CLOSED, HOST, HOST6, NOBODY, NOBODY6, SINK};
use crate::injector::Injector;
use crate::random::Random;

const SYNS_OUTSIDE: u64 = 100_000;
const SYNS_INSIDE: u64 = 20_000;
const STRAYS: usize = 10_000;
const DATAGRAMS: u64 = 20_000;
/// Default limits of half-open connections and UDP flows.
const KEPT: u64 = 4096;

/// Goal: a hundred thousand SYNs from addresses outside, to a host that never answers, take bounded
/// memory and displace each other, not the honest flow. Method: both IP versions, random sources;
/// evicted half-open connections are counted.
pub(super) fn syn_outside(injector: &mut Injector, random: &mut Random) {
    for count in 0..SYNS_OUTSIDE {
        let (source, nobody): (IpAddr, IpAddr) = if count % 2 == 0 {
            (Ipv4Addr::from(0x0b00_0000 | random.next() as u32 & 0xff_ffff).into(), NOBODY.into())
        } else {
            let prefix = 0x2001_0db8_0bad_0000u128 << 64;
            (Ipv6Addr::from(prefix | u128::from(random.next())).into(), NOBODY6.into())
        };
        let to = (nobody, random.word().max(1));
        let mut syn = Segment::new(end(source, random), to, SYN);
        syn.sequence = random.next() as u32;
        injector.send(&syn.frame());
    }
    injector.expects("tcp_half_open_evicted+connection_displaced", SYNS_OUTSIDE - KEPT);
}

/// Goal: SYNs with sources inside the subnet, whose link-layer addresses do not resolve, take
/// bounded memory, also to destinations that answer or refuse. Method: half of them to a host port
/// that accepts connections, half to a closed one.
pub(super) fn syn_inside(injector: &mut Injector, random: &mut Random) {
    for count in 0..SYNS_INSIDE {
        let number = 16 + random.below(200) as u8;
        let (source, host): (IpAddr, IpAddr) = match count / 2 % 2 {
            0 => (Ipv4Addr::new(10, 0, 2, number).into(), HOST.into()),
            _ => (on_link(u16::from(number)).into(), HOST6.into()),
        };
        let to = (host, if count % 2 == 0 { SINK } else { CLOSED });
        let mut syn = Segment::new(end(source, random), to, SYN);
        syn.sequence = random.next() as u32;
        injector.send(&syn.frame());
    }
    // From the program's own address: its kernel resets connections that it did not open.
    for _ in 0..1000 {
        injector.send(&Segment::new(end(PROGRAM, random), (HOST.into(), SINK), SYN).frame());
    }
}

/// Goal: segments without a connection are counted and answered at most one for one. Method:
/// resets, ACKs and FINs between random ends.
pub(super) fn strays(injector: &mut Injector, random: &mut Random) {
    for count in 0..STRAYS {
        let (program, host, nobody) = SIDES[count / 2 % 2];
        let to = if count % 2 == 0 { host } else { nobody };
        let to = (to, random.word());
        let flags = [RST, ACK, RST | ACK, FIN | ACK, PSH | ACK, SYN | ACK, 0][count % 7];
        let segment = Segment {
            sequence: random.next() as u32,
            acknowledgment: random.next() as u32,
            payload: &b"stray"[..if flags == PSH | ACK { 5 } else { 0 }],
            ..Segment::new(end(program, random), to, flags)
        };
        injector.drops("tcp_no_connection", &segment.frame());
    }
}

/// Goal: datagrams and echo requests from everywhere to everywhere leave a bounded number of flows.
/// Method: random source addresses and ports; evicted flows are counted.
pub(super) fn datagrams(injector: &mut Injector, random: &mut Random) {
    for count in 0..DATAGRAMS {
        let source = Ipv4Addr::from(0x0b00_0000 | random.next() as u32 & 0xff_ffff);
        let to = (NOBODY.into(), random.word().max(1));
        injector.send(&frame::udp(end(source, random), to, b"noise"));
        if count % 16 == 0 {
            let head = [8, 0, random.word() as u8, random.word() as u8, 0, 1];
            injector.send(&frame::icmp(source.into(), NOBODY.into(), head, b"noise"));
        }
    }
    injector.expects("flow_evicted+message_displaced", DATAGRAMS - KEPT);
}
