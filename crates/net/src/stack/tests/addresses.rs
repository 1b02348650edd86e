//! Addresses that are added and removed while the stack runs, and a new link-layer address.

use super::bench::{Bench, OUR_MAC, OURS4, OURS6, PEER_MAC, PEER4, PEER6, config, udp, v4, v6};
use crate::counters::DropReason;
use crate::stack::{ADDRESSES_MAX, Address, AddressError, OnConflict};
use crate::time::Duration;
use crate::wire::{MacAddr, Protocol, arp};
use core::net::{IpAddr, SocketAddr};
use towpath_packet::Caps;

const NEW_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 0x77]);
const SECOND: Duration = Duration::from_secs(1);

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn bench(mtu: u16) -> Bench {
    Bench::with(config(false), Caps::plain(mtu))
}

/// A new address takes packets at once; one that was removed takes none.
#[test]
fn addresses_come_and_go() {
    for (new, prefix_len, peer) in
        [(address("10.0.0.77"), 24, PEER4), (address("fd00::77"), 64, PEER6)]
    {
        let mut b = bench(1500);
        let to = SocketAddr::new(new, 9);
        let datagram = udp(SocketAddr::new(peer, 7), to, b"hello");
        b.input(&datagram).quiet();
        b.dropped(&[(DropReason::DestinationNotServed, 1)]);
        let ours = Address { address: new, prefix_len };
        assert_eq!(b.stack.add_address(ours, b.now), Ok(()));
        assert!(b.stack.addresses().contains(&ours));
        b.wait(5 * SECOND);
        b.input(&datagram);
        assert_eq!(b.stack.next_datagram().map(|taken| taken.local), Some(to));
        assert_eq!(b.stack.add_address(ours, b.now), Err(AddressError::Known(new)));
        assert!(b.stack.remove_address(new, b.now));
        assert!(!b.stack.remove_address(new, b.now), "it is gone");
        b.wait(5 * SECOND);
        b.input(&datagram);
        assert!(b.stack.next_datagram().is_none());
        b.dropped(&[(DropReason::DestinationNotServed, 2)]);
    }
}

/// A stack that claims its addresses probes for a new one, announces it, and gives it up if another
/// station has it. A stack that does not claim its addresses sends nothing.
#[test]
fn new_addresses_are_claimed() {
    let ours = Address { address: address("10.0.0.77"), prefix_len: 24 };
    let mut b = bench(1500);
    b.stack.add_address(ours, b.now).expect("a free address");
    assert!(b.wait(10 * SECOND).is_empty());
    let mut b = bench(1500);
    b.stack.claim_addresses(OnConflict::Withdraw, b.now);
    b.wait(10 * SECOND);
    b.stack.add_address(ours, b.now).expect("a free address");
    let sent = b.wait(10 * SECOND);
    let about: usize = sent
        .iter()
        .filter_map(|out| arp::Packet::parse(&out.bytes[14..]).ok())
        .filter(|message| message.target_ip == v4(ours.address))
        .count();
    assert_eq!((sent.len(), about), (5, 5), "three probes and two announcements");
    let second = Address { address: address("10.0.0.78"), ..ours };
    b.stack.add_address(second, b.now).expect("a free address");
    let claim = arp::Packet {
        operation: arp::Operation::Reply,
        sender_mac: PEER_MAC,
        sender_ip: v4(second.address),
        target_mac: OUR_MAC,
        target_ip: v4(OURS4),
    };
    b.input(&super::bench::arp(&claim, OUR_MAC));
    assert!(!b.stack.is_local(second.address) && b.stack.is_local(ours.address));
    assert_eq!(b.stack.next_conflict().map(|conflict| conflict.is_withdrawn), Some(true));
}

/// An IPv6 address has its solicited-node group, which is reported when it comes and goes.
#[test]
fn groups_follow_addresses() {
    let mut b = bench(1500);
    let new = address("fd00::77");
    b.stack.add_address(Address { address: new, prefix_len: 64 }, b.now).expect("a free address");
    let is_report = |out: &super::bench::Out| out.bytes[..2] == [0x33, 0x33];
    let joined = b.wait(2 * SECOND);
    assert!(joined.len() == 2 && joined.iter().all(is_report), "{joined:?}");
    b.stack.remove_address(new, b.now);
    let left = b.wait(2 * SECOND);
    assert!(left.len() == 2 && left.iter().all(is_report), "{left:?}");
}

/// Frames have the new link-layer address, only frames to it are taken, and other stations are
/// notified.
#[test]
fn a_new_link_layer_address_is_announced() {
    let mut b = bench(1500);
    for mac in [MacAddr::UNSPECIFIED, MacAddr::BROADCAST, MacAddr([1, 0, 0, 0, 0, 1])] {
        assert_eq!(b.stack.set_mac(mac, b.now), Err(AddressError::NoStation(mac)));
    }
    b.stack.set_mac(NEW_MAC, b.now).expect("a station's address");
    let sent = b.wait(10 * SECOND);
    assert_eq!(sent.len(), 5, "two of IPv4 and three of IPv6");
    for out in &sent {
        assert_eq!(out.bytes[6..12], NEW_MAC.0);
        if out.ethertype() == 0x0806 {
            let message = arp::Packet::parse(&out.bytes[14..]).expect("valid");
            assert_eq!((message.sender_mac, message.sender_ip), (NEW_MAC, v4(OURS4)));
            assert_eq!(message.target_ip, v4(OURS4));
        } else {
            assert_eq!(out.protocol(), Protocol::ICMPV6);
            let body = out.transport();
            assert_eq!((body[0], &body[8..24]), (136, &v6(OURS6).octets()[..]));
            assert_eq!(body[26..32], NEW_MAC.0);
        }
    }
    let mut datagram = udp(SocketAddr::new(PEER4, 7), SocketAddr::new(OURS4, 9), b"hello");
    b.input(&datagram);
    assert!(b.stack.next_datagram().is_none(), "it was sent to the former address");
    datagram[..6].copy_from_slice(&NEW_MAC.0);
    b.input(&datagram);
    assert!(b.stack.next_datagram().is_some());
}

/// Addresses that no station can have are refused, and so are more than the bound.
#[test]
fn wrong_addresses_are_refused() {
    let mut b = bench(1500);
    let mut add = |text: &str, prefix_len| {
        let ours = Address { address: address(text), prefix_len };
        let result = b.stack.add_address(ours, b.now);
        (ours, result)
    };
    for text in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "::", "::1", "ff02::1"] {
        assert_eq!(add(text, 8).1, Err(AddressError::Unusable(address(text))));
    }
    for (text, prefix_len) in [("10.0.0.9", 33), ("fd00::9", 129)] {
        let (ours, result) = add(text, prefix_len);
        assert_eq!(result, Err(AddressError::PrefixLength(ours)));
    }
    for index in 2..ADDRESSES_MAX {
        let (_, result) = add(&alloc::format!("10.1.{}.{}", index / 200, 1 + index % 200), 16);
        assert_eq!(result, Ok(()), "{index}");
    }
    assert_eq!(add("10.2.0.1", 16).1, Err(AddressError::TooMany));
    let mut b = bench(1279);
    let v6 = Address { address: address("fd00::9"), prefix_len: 64 };
    assert_eq!(b.stack.add_address(v6, b.now), Err(AddressError::Mtu(1279)));
}
