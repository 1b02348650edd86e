//! What is answered, and what is not.

use super::*;
use crate::gso::testing::*;
use alloc::vec::Vec;

const ASKER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const REMOTE: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

/// Checks the ICMP checksum of an answer, and returns its message.
fn checked(answer: &Answer) -> Vec<u8> {
    let bytes = answer.bytes();
    let headers = Headers::read_ip(bytes, ethernet::HEADER_LEN).expect("an IP packet");
    let message = &bytes[headers.transport_at..];
    let (source, destination) = headers.version.addresses(&bytes[headers.ip_at..]);
    let mut sum = match headers.version {
        Version::V4 => Sum::new(),
        Version::V6 => pseudo_header(source, destination, Protocol::ICMPV6, message.len() as u32),
    };
    sum.add(message);
    assert_eq!(sum.fold(), 0xffff, "the checksum is right");
    message.to_vec()
}

#[test]
fn packets_that_are_too_big_are_answered() {
    for v6 in [false, true] {
        let mut spec = Spec::plain(v6, true, pattern(1500));
        spec.dont_fragment = true;
        let frame = &spec.frame()[..PEEK_BYTES];
        let answer = too_big(frame, 1450).expect("it is answered");
        let bytes = answer.bytes();
        assert_eq!((&bytes[..6], &bytes[6..12]), (&frame[6..12], &frame[..6]));
        let message = checked(&answer);
        let (kind, code, mtu) = if v6 { (2, 0, &message[4..8]) } else { (3, 4, &message[4..8]) };
        assert_eq!((message[0], message[1], mtu), (kind, code, &1450_u32.to_be_bytes()[..]));
        let quoted = &message[8..];
        assert_eq!(*quoted, frame[14..][..quoted.len()]);
        assert!(quoted.len() >= if v6 { 48 } else { 28 });
    }
}

/// Goal: no error is sent about an error, a later fragment, or a packet to a group, nor about an
/// IPv4 packet that may be fragmented; and no frame, however cut, causes a panic.
#[test]
fn errors_about_errors_are_not_sent() {
    let mut spec = Spec::plain(false, false, pattern(100));
    assert!(too_big(&spec.frame(), 600).is_none(), "it may be fragmented");
    spec.dont_fragment = true;
    let mut frame = spec.frame();
    assert!(too_big(&frame, 600).is_some());
    let error = too_big(&frame, 600).expect("answered");
    assert!(too_big(error.bytes(), 600).is_none(), "it is an error");
    for v6 in [false, true] {
        let mut spec = Spec::plain(v6, true, pattern(100));
        spec.dont_fragment = true;
        let frame = spec.frame();
        for end in 0..frame.len() {
            let _ = too_big(&frame[..end], 600);
            let _ = resolve(&frame[..end], |_| Some(REMOTE));
        }
        let error = too_big(&frame, 1280).expect("answered");
        assert!(too_big(error.bytes(), 600).is_none(), "it is an error");
    }
    frame[0] |= 1;
    assert!(too_big(&frame, 600).is_none(), "it is for a group");
}

fn ask(sender_ip: [u8; 4], target_ip: [u8; 4]) -> Vec<u8> {
    let mut frame = [0; 64];
    let (destination, source) = (MacAddr::BROADCAST, ASKER);
    ethernet::Header { destination, source, ethertype: EtherType::ARP }.emit(&mut frame);
    let request = arp::Packet {
        operation: arp::Operation::Request,
        sender_mac: ASKER,
        sender_ip: sender_ip.into(),
        target_mac: MacAddr::UNSPECIFIED,
        target_ip: target_ip.into(),
    };
    request.emit(&mut frame[ethernet::HEADER_LEN..]);
    frame.to_vec()
}

#[test]
fn arp_requests_for_known_stations_are_answered() {
    let known = IpAddr::from([10, 0, 2, 7]);
    let station_of = |address| (address == known).then_some(REMOTE);
    let answer = resolve(&ask([10, 0, 2, 9], [10, 0, 2, 7]), station_of).expect("it is known");
    let header = ethernet::Header::parse(answer.bytes()).expect("a frame");
    assert_eq!((header.destination, header.source), (ASKER, REMOTE));
    let reply = arp::Packet::parse(&answer.bytes()[14..]).expect("ARP");
    assert_eq!((reply.operation, reply.sender_mac), (arp::Operation::Reply, REMOTE));
    assert_eq!((reply.sender_ip, reply.target_ip), ([10, 0, 2, 7].into(), [10, 0, 2, 9].into()));
    assert!(resolve(&ask([10, 0, 2, 9], [10, 0, 2, 8]), station_of).is_none());
    assert!(resolve(&ask([0; 4], [10, 0, 2, 7]), station_of).is_none(), "a probe");
    assert!(resolve(&ask([10, 0, 2, 7], [10, 0, 2, 7]), station_of).is_none(), "an announcement");
}

#[test]
fn neighbor_solicitations_for_known_stations_are_answered() {
    let [asker, target]: [IpAddr; 2] =
        ["fd00::9", "fd00::7"].map(|text| text.parse().expect("an address"));
    let IpAddr::V6(of_target) = target else { unreachable!() };
    let asked =
        icmpv6::Message::NeighborSolicitation { target: of_target, source_link_layer: Some(ASKER) };
    let group: IpAddr = "ff02::1:ff00:7".parse().expect("an address");
    let request = |from: IpAddr| {
        let ethernet = ethernet::Header {
            destination: MacAddr([0x33, 0x33, 0xff, 0, 0, 7]),
            source: ASKER,
            ethertype: EtherType::IPV6,
        };
        Answer::of_ip(&ethernet, (from, group), Protocol::ICMPV6, |bytes| asked.emit(bytes))
    };
    let station_of = |address| (address == target).then_some(REMOTE);
    let answer = resolve(request(asker).bytes(), station_of).expect("it is known");
    let message = checked(&answer);
    let header = ethernet::Header::parse(answer.bytes()).expect("a frame");
    assert_eq!((header.destination, header.source), (ASKER, REMOTE));
    let advertisement = icmpv6::Message::NeighborAdvertisement {
        target: of_target,
        target_link_layer: Some(REMOTE),
        router: false,
        solicited: true,
        override_: false,
    };
    assert_eq!(icmpv6::Message::parse(&message), Ok(advertisement));
    assert!(resolve(request(asker).bytes(), |_| None).is_none());
    let nobody = IpAddr::from([0_u16; 8]);
    assert!(resolve(request(nobody).bytes(), station_of).is_none(), "duplicate detection");
}
