//! Guests that have, or probe for, the gateway's address.

use std::net::Ipv4Addr;

use rustix::process::Signal;

use super::guest::{Guest, arp, arp_frame, is_arp};
use super::network::{GATEWAY, Network};

/// Returns true for an ARP request by which a station announces that it has the gateway's address.
fn is_announcement(frame: &[u8]) -> bool {
    let gateway = GATEWAY.octets();
    is_arp(frame) && frame[20..22] == [0, 1] && frame[28..32] == gateway && frame[38..42] == gateway
}

/// A guest that checks whether the gateway's address is free (RFC 5227) learns that it is not.
fn probe(guest: &mut Guest) {
    let message = arp(1, guest.mac, Ipv4Addr::UNSPECIFIED, [0; 6], GATEWAY);
    guest.send(&arp_frame([0xff; 6], guest.mac, &message));
    guest.expect("answer to a probe", |frame| {
        is_arp(frame) && frame[20..22] == [0, 2] && frame[28..32] == GATEWAY.octets()
    });
}

/// Goal: the gateway probes for its address if the file asks for that, and announces it.
#[test]
fn the_gateway_claims_its_address() {
    let network = Network::start("claims", "detect-duplicates = true\n", &[]);
    let mut a = network.guest("a", 1);
    let mac = a.mac;
    let frame = a.expect("an announcement", is_announcement);
    assert_ne!(frame[6..12], mac);
}

/// Goal: a guest whose port may have any address, the gateway's too, is reported, and the gateway
/// announces that it keeps its address. Without such a list the port's claims are dropped.
#[test]
fn a_guest_with_the_gateways_address_is_reported() {
    let mut network = Network::start("conflict", "", &[]);
    let mut a = network.guest("a", 1);
    probe(&mut a);
    let claim = arp_frame([0xff; 6], a.mac, &arp(1, a.mac, GATEWAY, [0; 6], GATEWAY));
    a.send(&claim);
    assert!(a.hears_no(is_announcement), "the port's claim was dropped");
    network.done(&["port", "set", "a", "addresses", &format!("{GATEWAY}")]);
    a.send(&claim);
    a.expect("the gateway's announcement", is_announcement);
    for _ in 0..100 {
        a.send(&claim);
    }
    assert!(a.hears_no(is_announcement), "once in a while");
    probe(&mut a);
    let messages = network.end(Signal::TERM);
    let expected = "the guest 02:00:00:00:00:01 has 10.0.2.2 too";
    assert_eq!(messages.matches(expected).count(), 1, "{messages}");
}
