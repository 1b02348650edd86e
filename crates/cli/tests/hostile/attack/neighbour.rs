//! ARP and neighbour discovery: false claims and floods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::frame::{
    self, ALL_NODES, DNS, GATEWAY, GATEWAY6, IP, OTHER_MAC, PROGRAM, PROGRAM6, on_link,
};
use crate::injector::Injector;
use crate::random::Random;

/// Neighbours that announce themselves in a round: many times as many as the table holds.
const NEIGHBOURS: usize = 5000;

/// Goal: the gateway's and the program's addresses cannot be taken over, and a flood of neighbours
/// takes neither memory nor the honest flow. Method: announcements, requests and answers with
/// forged addresses in both protocols, beside the honest flow.
pub(super) fn round(injector: &mut Injector, random: &mut Random) {
    for operation in [1, 2] {
        for claimed in [GATEWAY, DNS, Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST] {
            for target in [GATEWAY, PROGRAM, claimed] {
                let frame = frame::arp(operation, OTHER_MAC, claimed, target);
                let is_own = [GATEWAY, DNS].contains(&claimed);
                let reason = if is_own { "address_conflict" } else { "arp_malformed" };
                injector.drops(reason, &frame);
            }
        }
        // The program's address at another station: not believed.
        injector.send(&frame::arp(operation, OTHER_MAC, PROGRAM, GATEWAY));
        injector.send(&frame::arp(operation, OTHER_MAC, PROGRAM, PROGRAM));
        // No other station can have these link-layer addresses.
        for mac in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1], frame::GATEWAY_MAC] {
            injector.drops("arp_malformed", &frame::arp(operation, mac, PROGRAM, GATEWAY));
            injector.drops("arp_malformed", &frame::arp(operation, mac, PROGRAM, PROGRAM));
        }
    }
    for _ in 0..NEIGHBOURS {
        let address = Ipv4Addr::from(0x0a00_0200 | random.word() as u32);
        let mac = random.bytes(6).try_into().unwrap();
        injector.send(&frame::arp(1, mac, address, GATEWAY));
    }
    discovery(injector, random);
}

/// Returns a discovery message: `rest` follows the checksum, `limit` is the hop limit.
fn message(source: Ipv6Addr, to: Ipv6Addr, kind: u8, rest: &[u8], limit: u8) -> Vec<u8> {
    let mut frame = frame::icmp(source.into(), to.into(), [kind, 0, 0, 0, 0, 0], rest);
    frame[IP + 7] = limit;
    frame
}

/// Returns an address, then an option with a link-layer address.
fn about(target: Ipv6Addr, option: u8, mac: [u8; 6]) -> Vec<u8> {
    [&target.octets()[..], &[option, 1], &mac].concat()
}

fn discovery(injector: &mut Injector, random: &mut Random) {
    const SOLICITATION: u8 = 135;
    const ADVERTISEMENT: u8 = 136;
    for target in [GATEWAY6, on_link(3), PROGRAM6, on_link(0x77)] {
        for source in [PROGRAM6, on_link(0x77)] {
            for to in [GATEWAY6, ALL_NODES] {
                let claim = about(target, 2, OTHER_MAC);
                injector.send(&message(source, to, ADVERTISEMENT, &claim, 255));
                // From off the link.
                let frame = message(source, to, ADVERTISEMENT, &claim, 64);
                injector.drops("neighbor_malformed", &frame);
            }
        }
        let claim = about(target, 2, OTHER_MAC);
        let forged = message(GATEWAY6, ALL_NODES, ADVERTISEMENT, &claim, 255);
        injector.drops("source_martian", &forged);
    }
    let whole = about(GATEWAY6, 1, OTHER_MAC);
    for len in (0..16).chain(17..whole.len()) {
        let frame = message(PROGRAM6, GATEWAY6, SOLICITATION, &whole[..len], 255);
        injector.drops("neighbor_malformed", &frame);
    }
    for len in [0, 2, 255] {
        let mut bytes = whole.clone();
        bytes[17] = len;
        let frame = message(PROGRAM6, GATEWAY6, SOLICITATION, &bytes, 255);
        injector.drops("neighbor_malformed", &frame);
    }
    let group = message(PROGRAM6, GATEWAY6, SOLICITATION, &about(ALL_NODES, 1, OTHER_MAC), 255);
    injector.drops("neighbor_malformed", &group);
    // Longer than anything that is examined.
    let long = [&GATEWAY6.octets()[..], &[14, 100], &[0; 798]].concat();
    injector.drops("neighbor_malformed", &message(PROGRAM6, GATEWAY6, SOLICITATION, &long, 255));
    for kind in [133, 134, 137] {
        // No station here is a router or sends redirects.
        let mut rest = random.bytes(8);
        rest.extend([0; 24]);
        let rest: &[u8] = if kind == 133 {
            &[]
        } else if kind == 134 {
            &rest[..8]
        } else {
            &rest
        };
        injector.drops("icmp_ignored", &message(PROGRAM6, ALL_NODES, kind, rest, 255));
    }
    for _ in 0..NEIGHBOURS {
        let source = Ipv6Addr::from(on_link(0).to_bits() | u128::from(random.next()));
        let mac = random.bytes(6).try_into().unwrap();
        let question = about(GATEWAY6, 1, mac);
        injector.send(&message(source, GATEWAY6, SOLICITATION, &question, 255));
    }
    let echo = frame::icmp(IpAddr::V6(PROGRAM6), ALL_NODES.into(), [128, 0, 0, 1, 0, 1], b"smurf");
    injector.drops("icmp_ignored", &echo);
}
