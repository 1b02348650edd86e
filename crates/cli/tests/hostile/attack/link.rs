//! Ethernet, and frames that are neither ARP nor IP.

use std::net::IpAddr;

use crate::frame::{self, ALL_NODES, GATEWAY, IP, IPV4, OTHER_MAC, PROGRAM};
use crate::host::{HOST, HOSTILE, TRAP};
use crate::injector::Injector;
use crate::random::Random;

/// Goal: frames that are not for the gateway are dropped by their reason. Method: frames of every
/// length up to a header, for others, with tags, of unknown and invalid types, as long as the
/// interface allows and longer; ARP truncated at every length.
pub(super) fn round(injector: &mut Injector, random: &mut Random) {
    let whole = hostile();
    for len in 1..IP {
        // Not all of these get past the kernel.
        injector.send(&whole[..len]);
    }
    injector.drops("ip_malformed", &whole[..IP]);
    for last in 0..=255 {
        let mut frame = whole.clone();
        frame[5] = frame[5].wrapping_add(last);
        // Unicast, locally administered, and not the gateway's.
        if last != 0 {
            injector.drops("not_for_us", &frame);
        }
    }
    let types = [0, 46, 1500, 0x0600, 0x0801, 0x22f0, 0x8100, 0x88a8, 0x8847, 0x88cc, 0xffff];
    for ethertype in types {
        for len in [0, 1, 46, 1000, 1500] {
            let payload = random.bytes(len);
            injector.drops("ethertype_unknown", &frame::ethernet(ethertype, &payload));
        }
    }
    tags(injector, &whole);
    for len in [1500, 1501, 1504, 9000, 65_535] {
        // The kernel refuses frames longer than the MTU; zeros are not an IP packet.
        let frame = frame::ethernet(IPV4, &vec![0; len]);
        injector.drops("ip_malformed", &frame);
    }
    arp(injector);
}

fn hostile() -> Vec<u8> {
    let from = (IpAddr::from(PROGRAM), 4000);
    frame::udp(from, (HOST.into(), TRAP), HOSTILE)
}

/// Sends one tag and more, in front of a packet that would be accepted without.
fn tags(injector: &mut Injector, whole: &[u8]) {
    for tags in [1, 2, 8] {
        let mut frame = whole[..12].to_vec();
        for _ in 0..tags {
            frame.extend([0x81, 0, 0, 5]);
        }
        frame.extend(&whole[12..]);
        injector.drops("ethertype_unknown", &frame);
    }
    let mut broadcast = frame::ethernet(0x1234, HOSTILE);
    broadcast[..6].fill(0xff);
    injector.drops("ethertype_unknown", &broadcast);
}

fn arp(injector: &mut Injector) {
    let request = frame::arp(1, frame::PROGRAM_MAC, PROGRAM, GATEWAY);
    for len in IP..request.len() {
        injector.drops("arp_malformed", &request[..len]);
    }
    // Other hardware, protocol, lengths, operation.
    for (at, value) in [(0, 9), (1, 6), (2, 0x86), (3, 9), (4, 5), (5, 16), (6, 1), (7, 0), (7, 3)]
    {
        let mut frame = request.clone();
        frame[IP + at] = value;
        injector.drops("arp_malformed", &frame);
    }
    // A probe (RFC 5227): answered, but not learned from.
    injector.send(&frame::arp(1, OTHER_MAC, [0, 0, 0, 0].into(), GATEWAY));
    // An IPv6 packet with the EtherType of IPv4.
    let mut wrong =
        frame::icmp(frame::PROGRAM6.into(), ALL_NODES.into(), [128, 0, 0, 1, 0, 1], b"");
    frame::put(&mut wrong, 12, IPV4);
    injector.drops("ip_malformed", &wrong);
}
