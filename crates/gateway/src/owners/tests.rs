//! Frames of all kinds, and where they belong.

use super::*;

const PEER4: [u8; 4] = [192, 0, 2, 7];
const PEER6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

/// Returns a frame of the program to a peer: over IPv4 with `options` bytes of options, or IPv6.
fn frame(is_v4: bool, options: usize, protocol: u8, transport: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ETHERNET_BYTES];
    frame[12..14].copy_from_slice(if is_v4 { &ETHERTYPE_IPV4 } else { &ETHERTYPE_IPV6 });
    frame.extend(packet(is_v4, options, protocol, transport, true));
    frame
}

/// Returns an IP packet to the peer, or from it.
fn packet(is_v4: bool, options: usize, protocol: u8, transport: &[u8], to_peer: bool) -> Vec<u8> {
    let mut ip = vec![0; if is_v4 { IPV4_BYTES + options } else { IPV6_BYTES }];
    if is_v4 {
        ip[0] = 0x40 | (ip.len() / 4) as u8;
        // "Don't fragment" is set: this is no fragment.
        (ip[6], ip[9]) = (0x40, protocol);
        ip[if to_peer { 16 } else { 12 }..][..4].copy_from_slice(&PEER4);
    } else {
        (ip[0], ip[6]) = (0x60, protocol);
        ip[if to_peer { 24 } else { 8 }..][..16].copy_from_slice(&PEER6);
    }
    ip.extend(transport);
    ip
}

/// Returns the first bytes of a TCP segment or datagram.
fn ports(from: u16, to: u16) -> Vec<u8> {
    [from.to_be_bytes(), to.to_be_bytes(), [0; 2], [0; 2]].concat()
}

fn peer(is_v4: bool, port: u16) -> SocketAddr {
    let ip: IpAddr = if is_v4 { PEER4.into() } else { PEER6.into() };
    SocketAddr::new(ip, port)
}

/// Goal: a packet of the program, an ICMP error about one to it, and the gateway's own knowledge of
/// the flow lead to the same bucket.
#[test]
fn all_packets_of_a_flow_have_one_bucket() {
    for (is_v4, options) in [(true, 0), (true, 4), (true, 40), (false, 0)] {
        let (icmp, error, request) = if is_v4 { (1, 3, 8) } else { (58, 2, 128) };
        let quoting = |protocol, transport: &[u8]| {
            let mut message = vec![error, 4, 0, 0, 0, 0, 0, 0];
            message.extend(packet(is_v4, options, protocol, transport, false));
            frame(is_v4, 0, icmp, &message)
        };
        for port in 1000..1100 {
            let tcp = Place::Flow(of_connection(peer(is_v4, 443), port));
            assert_eq!(place_of(&frame(is_v4, options, 6, &ports(port, 443))), tcp);
            assert_eq!(place_of(&quoting(6, &ports(443, port))), tcp);
            let udp = Place::Port(of_port(port), port);
            assert_eq!(place_of(&frame(is_v4, options, 17, &ports(port, 53))), udp);
            assert_eq!(place_of(&quoting(17, &ports(53, port))), udp);
            let [high, low] = port.to_be_bytes();
            let echo = [request, 0, 0, 0, high, low, 0, 1];
            assert_eq!(place_of(&frame(is_v4, options, icmp, &echo)), Place::Flow(of_echo(port)));
        }
    }
}

#[test]
fn flows_are_spread() {
    let mut counts = [[0_u32; BUCKETS]; 3];
    for port in 1024..1024 + 64 * BUCKETS as u16 {
        counts[0][usize::from(of_connection(peer(true, 443), port))] += 1;
        counts[1][usize::from(of_connection(peer(false, port), 80))] += 1;
        counts[2][usize::from(of_port(port))] += 1;
    }
    for counts in counts {
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(least >= Some(&24) && most <= Some(&112), "{least:?} to {most:?} instead of 64");
    }
}

#[test]
fn fragments_and_groups_belong_to_the_first_worker() {
    let mut first = frame(true, 0, 17, &ports(1000, 53));
    first[20] = 0x20;
    assert_eq!(place_of(&first), Place::Fragment(of_port(1000)));
    for bits in [[0, 1], [0x20, 1], [0x1f, 0xff]] {
        first[20..22].copy_from_slice(&bits);
        assert_eq!(place_of(&first), Place::First, "{bits:?}");
    }
    let fragment = |offset: u8| {
        let mut header = vec![17, 0, 0, offset << 3 | 1, 0, 0, 0, 9];
        header.extend(ports(1000, 53));
        place_of(&frame(false, 0, 44, &header))
    };
    assert_eq!(fragment(0), Place::Fragment(of_port(1000)));
    assert_eq!(fragment(1), Place::First);
    let mut group = frame(true, 0, 17, &ports(5353, 5353));
    group[14 + 16] = 224;
    assert_eq!(place_of(&group), Place::First);
    let mut group = frame(false, 0, 17, &ports(5353, 5353));
    group[14 + 24] = 0xff;
    assert_eq!(place_of(&group), Place::First);
}

/// Bad input: every length from zero on, other protocols and ICMP types, an IPv4 header length
/// beyond the end or too short, versions that contradict the EtherType.
#[test]
fn everything_else_belongs_to_the_first_worker() {
    for is_v4 in [true, false] {
        let whole = frame(is_v4, 0, 6, &ports(1000, 443));
        assert_ne!(place_of(&whole), Place::First);
        for len in 0..whole.len() - 4 {
            assert_eq!(place_of(&whole[..len]), Place::First, "{len}");
        }
        let protocol_at = if is_v4 { 14 + 9 } else { 14 + 6 };
        for protocol in [0, 2, 43, 47, 50, 60, 89, 132, 255, if is_v4 { 58 } else { 1 }] {
            let mut other = whole.clone();
            other[protocol_at] = protocol;
            assert_eq!(place_of(&other), Place::First, "{protocol}");
        }
        let mut version = whole.clone();
        version[14] ^= 0x20;
        assert_eq!(place_of(&version), Place::First);
        let mut arp = whole;
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(place_of(&arp), Place::First);
        for kind in [0, 5, 129, 130, 133, 135, 136, 143, 255] {
            let message = [kind, 0, 0, 0, 0, 1, 0, 1];
            let icmp = frame(is_v4, 0, if is_v4 { 1 } else { 58 }, &message);
            assert_eq!(place_of(&icmp), Place::First, "{kind}");
        }
    }
    for length in [0x40, 0x44, 0x4f] {
        let mut bad = frame(true, 0, 6, &ports(1000, 443));
        bad[14] = length;
        assert_eq!(place_of(&bad), Place::First);
    }
}

#[test]
fn a_set_has_what_was_put_in() {
    let some = [0, 1, 63, 64, 127, 128, 254, 255];
    let set: Buckets = some.into_iter().collect();
    assert_eq!(set.iter().collect::<Vec<_>>(), some);
    assert!(!set.is_empty() && Buckets::default().is_empty() && !set.contains(2));
    let owners = Owners::new();
    owners.set(&set, 3);
    assert_eq!(owners.all_of(3), set);
    assert_eq!((owners.of(64), owners.of(65)), (3, 0));
}
