//! UDP, TCP and ICMP headers.

use std::net::IpAddr;

use super::{SIDES, end};
use crate::frame::{self, ACK, FIN, ICMP, ICMPV6, PSH, RST, SYN, Segment, TCP, UDP, URG};
use crate::host::{CLOSED, HOSTILE, TRAP, WELCOME, WELCOMING};
use crate::injector::Injector;
use crate::random::Random;

/// Goal: transport headers with wrong lengths or wrong checksums are dropped by their reason; UDP
/// without a checksum is accepted over IPv4 only. Method: each field of each header broken, over
/// both IP versions.
pub(super) fn round(injector: &mut Injector, random: &mut Random) {
    for (program, host, nobody) in SIDES {
        udp(injector, program, host, random);
        tcp(injector, program, host, random);
        icmp(injector, program, nobody, random);
    }
}

fn udp(injector: &mut Injector, program: IpAddr, host: IpAddr, random: &mut Random) {
    let from = end(program, random);
    let whole = frame::udp_bytes(from, (host, TRAP), HOSTILE);
    let mut drop = |reason, bytes: &[u8]| {
        injector.drops(reason, &frame::ip(program, host, UDP, bytes));
    };
    for length in [0, 1, 7, whole.len() as u16 + 1, 0x8000, 0xffff] {
        let mut bytes = whole.clone();
        frame::put(&mut bytes, 4, length);
        frame::seal(program, host, UDP, 6, &mut bytes);
        drop("udp_malformed", &bytes);
    }
    for bit in 0..whole.len() * 8 {
        // One wrong bit anywhere but in the length.
        if !(32..48).contains(&bit) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            drop("udp_checksum", &bytes);
        }
    }
    let mut bare = frame::udp_bytes(from, (host, TRAP), HOSTILE);
    if program.is_ipv6() {
        frame::put(&mut bare, 6, 0);
        drop("udp_checksum", &bare);
    } else {
        let mut bare = frame::udp_bytes(from, (host, WELCOMING), WELCOME);
        frame::put(&mut bare, 6, 0);
        injector.send(&frame::ip(program, host, UDP, &bare));
        injector.expects("welcome", 1);
    }
    // Port zero on either side.
    injector.send(&frame::udp((program, 0), (host, CLOSED), b"from port zero"));
    injector.send(&frame::udp(from, (host, 0), HOSTILE));
}

fn tcp(injector: &mut Injector, program: IpAddr, host: IpAddr, random: &mut Random) {
    let (from, trap) = (end(program, random), (host, TRAP));
    let whole = Segment::new(from, trap, SYN).bytes();
    let mut drop = |reason, bytes: &[u8]| {
        injector.drops(reason, &frame::ip(program, host, TCP, bytes));
    };
    for len in 0..whole.len() {
        drop("tcp_malformed", &whole[..len]);
    }
    for words in (0..5).chain(6..16) {
        let mut bytes = whole.clone();
        bytes[12] = words << 4;
        frame::seal(program, host, TCP, 16, &mut bytes);
        drop("tcp_malformed", &bytes);
    }
    for bit in 0..whole.len() * 8 {
        // One wrong bit anywhere but in the length of the header.
        if !(96..100).contains(&bit) {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            drop("tcp_checksum", &bytes);
        }
    }
    let closed = (host, CLOSED);
    let combinations = [0, FIN, RST, ACK, FIN | PSH | URG, SYN | FIN, SYN | RST, SYN | ACK, 0xff];
    for flags in combinations {
        injector.drops("tcp_no_connection", &Segment::new(from, trap, flags).frame());
    }
    for _ in 0..32 {
        // SYNs with random options: parsed as far as they make sense, then refused.
        let words = random.below(11);
        let mut options = random.bytes(4 * words);
        if let Some(first) = options.first_mut() {
            *first %= 40;
        }
        let from = end(program, random);
        let syn = Segment { options: &options, ..Segment::new(from, closed, SYN) };
        injector.send(&syn.frame());
    }
    // From port zero, to port zero, from an end to itself.
    injector.send(&Segment::new((program, 0), closed, SYN).frame());
    injector.send(&Segment::new(from, (host, 0), SYN).frame());
    injector.send(&Segment::new(closed, closed, SYN).frame());
}

fn icmp(injector: &mut Injector, program: IpAddr, nobody: IpAddr, random: &mut Random) {
    let v4 = program.is_ipv4();
    let (request, protocol) = if v4 { (8, ICMP) } else { (128, ICMPV6) };
    let header = if v4 { frame::L4 } else { frame::L4_6 };
    let whole = frame::icmp(program, nobody, [request, 0, 0, 1, 0, 1], HOSTILE);
    let message = &whole[header..];
    for len in 0..8 {
        let mut bytes = message[..len].to_vec();
        if len >= 4 {
            frame::seal(program, nobody, protocol, 2, &mut bytes);
        }
        injector.drops("icmp_malformed", &frame::ip(program, nobody, protocol, &bytes));
    }
    for bit in 0..message.len() * 8 {
        let mut bytes = message.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        injector.drops("icmp_malformed", &frame::ip(program, nobody, protocol, &bytes));
    }
    let acted_on: &[u8] = if v4 { &[3, 8] } else { &[1, 2, 128, 133, 134, 135, 136] };
    for kind in (0..=255).filter(|kind| !acted_on.contains(kind)) {
        // Time Exceeded and Parameter Problem are parsed, as they may be about a datagram.
        let quotes = if v4 { kind == 11 || kind == 12 } else { kind == 3 || kind == 4 };
        let (rest, reason) = match quotes {
            true => (vec![0; 32], "icmp_malformed"),
            // A multicast listener query or report from an address that is not link-local.
            false if !v4 && matches!(kind, 130 | 131) => (random.bytes(32), "membership_malformed"),
            false => (random.bytes(32), "icmp_ignored"),
        };
        let mut frame = frame::icmp(program, nobody, [kind, 0, 0, 0, 0, 0], &rest);
        if !v4 {
            // Redirects must appear to come from the link.
            frame[frame::IP + 7] = 255;
        }
        injector.drops(reason, &frame);
    }
    let error = if v4 { 3 } else { 2 };
    for len in [0, 1, 19, 20, 27, 39, 40, 47] {
        // An error that quotes too little, or garbage.
        let quote = vec![0; len];
        let frame =
            frame::icmp(program, nobody, [error, if v4 { 4 } else { 0 }, 0, 0, 0, 0], &quote);
        injector.drops("icmp_malformed", &frame);
    }
    let quoted = Segment::new((nobody, 80), (program, 4000), ACK).frame();
    for mtu in [0, 1, 68, 0xffff] {
        // An error about a connection that does not exist.
        let mut head = [error, if v4 { 4 } else { 0 }, 0, 0, 0, 0];
        frame::put(&mut head, 4, mtu);
        let frame = frame::icmp(program, nobody, head, &quoted[frame::IP..]);
        injector.drops("icmp_ignored", &frame);
    }
}
