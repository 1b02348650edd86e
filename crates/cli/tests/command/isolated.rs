//! Guests of `towpath up --isolate`: nothing leads from one to another.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::guest::{Guest, arp, arp_frame, ethernet, is_arp, udp_frame};
use super::guest6::udp6_frame;
use super::network::{GATEWAY, Network};
use super::support::*;

const GROUP_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
const GROUP_V4_MAC: [u8; 6] = [1, 0, 0x5e, 0, 0, 251];
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const EVERYBODY: [u8; 6] = [0xff; 6];
/// A type of frames that nothing knows (IEEE 802, for experiments).
const UNKNOWN: [u8; 2] = [0x88, 0xb5];

/// Asks the gateway, and returns the frames that came before its answer. What was sent to this
/// guest before it asked is among them, as its frames come in order.
fn heard(guest: &mut Guest, own: Ipv4Addr) -> Vec<Vec<u8>> {
    guest.send(&arp_frame(EVERYBODY, guest.mac, &arp(1, guest.mac, own, [0; 6], GATEWAY)));
    let mut frames = Vec::new();
    loop {
        let frame = guest.receive(PATIENCE).expect("the answer of the gateway");
        if is_arp(&frame) && frame[20..22] == [0, 2] && frame[28..32] == GATEWAY.octets() {
            return frames;
        }
        frames.push(frame);
    }
}

/// Goal: an isolated guest reaches no other one: not its station, not through broadcasts, groups or
/// lies about neighbours, not through the gateway, which it does reach.
#[test]
fn isolated_guests_reach_the_gateway_alone() {
    let network = Network::start("isolated", "isolate = true\n", &[]);
    let [mut a, mut b] = [("a", 1), ("b", 2)].map(|(name, last)| network.guest(name, last));
    let [at_a, at_b] = [&mut a, &mut b].map(|it| it.lease(&[]).unwrap().your_address);
    let gateway = a.resolve(at_a, GATEWAY);
    heard(&mut b, at_b);
    let (mine, its) = (a.mac, b.mac);
    let [own_v6, its_v6] = [1, 2].map(|last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, last));
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    for frame in [
        udp_frame((its, (at_b, 9)), (mine, (at_a, 9)), b"to a station"),
        udp6_frame((its, (its_v6, 9)), (mine, (own_v6, 9)), b"to a station"),
        udp_frame((EVERYBODY, (Ipv4Addr::BROADCAST, 9)), (mine, (at_a, 9)), b"to everybody"),
        udp_frame((GROUP_V4_MAC, (GROUP_V4, 5353)), (mine, (at_a, 5353)), b"to a group"),
        udp6_frame((ALL_NODES_MAC, (all_nodes, 9)), (mine, (own_v6, 9)), b"to a group"),
        // Where is b? I am b, and I am the gateway.
        arp_frame(EVERYBODY, mine, &arp(1, mine, at_a, [0; 6], at_b)),
        arp_frame(its, mine, &arp(2, mine, at_b, its, at_b)),
        arp_frame(its, mine, &arp(2, mine, GATEWAY, its, at_b)),
        ethernet(its, mine, UNKNOWN, b"something else"),
        ethernet(EVERYBODY, mine, UNKNOWN, b"something else"),
        // To a station that no guest is, in a frame with a tag.
        ethernet([2, 0, 0, 0, 0, 99], mine, UNKNOWN, b"to whom it may concern"),
        ethernet(its, mine, [0x81, 0], &[0, 1, 8, 0, 0x45, 0]),
    ] {
        a.send(&frame);
    }
    a.advertise(its_v6, (its, its_v6));
    a.advertise(its_v6, (ALL_NODES_MAC, all_nodes));
    a.detect_duplicates(its_v6);
    a.announce_router();
    // The gateway takes nothing for addresses of its own network.
    a.send(&udp_frame((gateway, (at_b, 9)), (mine, (at_a, 9)), b"through the gateway"));
    heard(&mut a, at_a);
    let heard = heard(&mut b, at_b);
    assert!(heard.iter().all(|frame| frame[6..12] != mine), "{heard:02x?}");
    let dropped = network.dropped("a", "isolated");
    assert!(dropped >= 3, "{dropped}");
}
