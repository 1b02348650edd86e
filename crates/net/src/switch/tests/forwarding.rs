//! Learning, flooding, roles, bounds and changes at run time.

use alloc::vec::Vec;

use towpath_packet::Burst;

use super::harness::*;
use crate::counters::PortDrop;
use crate::gso::testing::{pattern, received};
use crate::switch::*;
use crate::time::Duration;
use crate::wire::MacAddr;

fn plain(to: u8, from: u8) -> Vec<u8> {
    frame(mac(to), mac(from), &[], &pattern(50))
}

#[test]
fn a_station_is_learned_ages_and_is_forgotten() {
    let mut t = Harness::new([port(), port(), port()]);
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [1, 2], "2 is unknown");
    assert_eq!(t.leaves_by(1, &plain(1, 2)), [0]);
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [1]);
    t.expect_drop(0, &plain(1, 3), PortDrop::SamePort);
    assert_eq!(t.leaves_by(2, &frame(BROADCAST, mac(9), &[], &[])), [0, 1]);
    assert_eq!((t.counters(0).learned, t.counters(0).flooded), (2, 1));
    assert!(t.switch.next_deadline().is_some());
    t.now += AGE;
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [1, 2], "aged out, though not yet removed");
    let known = |t: &Harness| t.switch.stations(t.now).map(|s| s.mac).collect::<Vec<_>>();
    assert_eq!(known(&t), [mac(1)]);
    t.switch.expire(t.now);
    t.now += AGE;
    t.switch.expire(t.now);
    assert_eq!((known(&t).len(), t.switch.next_deadline()), (0, None));
    t.end();
}

/// In a VLAN without other ports, and after its only other port was removed.
#[test]
fn a_packet_without_a_receiver_is_counted() {
    let mut t = Harness::new([port(), in_vlans(access(7)), port()]);
    t.expect_drop(1, &plain(2, 1), PortDrop::NobodyElse);
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [2]);
    t.switch.remove_port(t.ports[2]).expect("a port");
    t.expect_drop(0, &plain(2, 1), PortDrop::NobodyElse);
    t.end();
}

/// Bad input at the link layer: every length up to a whole header and tag, sources that are
/// multicast or zero, groups that are not forwarded, a frame longer than the maximum.
#[test]
fn what_is_no_frame_is_dropped() {
    let mut t = Harness::new([in_vlans(trunk(Some(1), &[1, 5])), port()]);
    let whole = frame(mac(2), mac(1), &[5], &[]);
    for len in 0..18 {
        t.expect_drop(0, &whole[..len], PortDrop::EthernetMalformed);
    }
    assert_eq!(t.leaves_by(0, &frame(mac(2), mac(1), &[], &[])), [1], "14 bytes are a frame");
    for source in [BROADCAST, MacAddr([3, 0, 0, 0, 0, 1]), MacAddr::UNSPECIFIED] {
        t.expect_drop(0, &frame(mac(2), source, &[], &[]), PortDrop::SourceInvalid);
    }
    for last in 0..=15 {
        let group = MacAddr([1, 0x80, 0xc2, 0, 0, last]);
        t.expect_drop(0, &frame(group, mac(1), &[], &[]), PortDrop::GroupReserved);
    }
    let other = MacAddr([1, 0x80, 0xc2, 0, 0, 16]);
    assert_eq!(t.leaves_by(0, &frame(other, mac(1), &[], &[])), [1]);
    let longest = FRAME_BYTES_MAX - 14;
    t.expect_drop(0, &frame(mac(2), mac(1), &[], &pattern(longest + 1)), PortDrop::TooLong);
    assert_eq!(t.send(0, &frame(mac(2), mac(1), &[], &pattern(longest))).len(), 0);
    assert_eq!(t.counters(1).dropped(PortDrop::TooLarge), 1, "no frame, yet too large to go out");
    let packet = t.memory.packet().expect("free");
    t.send_packet(0, packet);
    assert_eq!(t.counters(0).dropped(PortDrop::EthernetMalformed), 73, "no byte at all");
    t.end();
}

#[test]
fn isolated_ports_reach_uplinks_only() {
    let with = |role| PortConfig { role, ..port() };
    let roles = [Role::Isolated, Role::Isolated, Role::Station, Role::Uplink, Role::Uplink];
    let mut t = Harness::new(roles.map(with));
    let reached: Vec<_> =
        (0..5).map(|from| t.leaves_by(from, &plain(99, from as u8 + 1))).collect();
    let expected: [&[usize]; 5] = [&[3, 4], &[3, 4], &[3, 4], &[0, 1, 2, 4], &[0, 1, 2, 3]];
    assert_eq!(reached, expected);
    t.expect_drop(0, &plain(2, 1), PortDrop::Isolated);
    t.expect_drop(0, &plain(3, 1), PortDrop::Isolated);
    t.expect_drop(2, &plain(1, 3), PortDrop::Isolated);
    assert_eq!(t.leaves_by(0, &plain(4, 1)), [3]);
    t.switch.set_port(t.ports[0], port()).expect("may be");
    assert_eq!(t.leaves_by(0, &plain(3, 1)), [2], "no longer isolated");
    t.end();
}

/// Goal: a port whose link is down takes no packet and sends none, each is counted, and its
/// stations are forgotten. It takes part again once its link is up.
#[test]
fn a_port_whose_link_is_down_takes_no_part() {
    let mut t = Harness::new([port(), port(), port()]);
    t.send(0, &plain(99, 1));
    t.send(1, &plain(99, 2));
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [1]);
    t.switch.set_port(t.ports[1], PortConfig { is_up: false, ..port() }).expect("may be");
    t.expect_drop(1, &plain(1, 2), PortDrop::LinkDown);
    let sent = t.counters(1).packets_out;
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [2], "its station is forgotten");
    assert_eq!(t.counters(1).dropped(PortDrop::LinkDown), 5, "four from it, one to it");
    assert_eq!(t.counters(1).packets_out, sent);
    t.switch.set_port(t.ports[1], port()).expect("may be");
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [1, 2]);
    assert_eq!(t.leaves_by(1, &plain(1, 2)), [0]);
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [1]);
    t.end();
}

/// MAC flooding: one port sends from many addresses. Goal: other stations stay known, and so does
/// the station known behind the flooding port.
#[test]
fn a_flood_of_addresses_uses_up_its_own_share_only() {
    let mut t = Harness::new([port(), port(), port()]);
    t.send(0, &plain(99, 1));
    t.send(1, &plain(99, 2));
    for number in 0..5000u16 {
        let [high, low] = number.to_be_bytes();
        t.send(2, &frame(mac(1), MacAddr([2, 9, 9, 9, high, low]), &[], &[]));
    }
    let learned = u64::from(port::ADDRESSES_PER_PORT);
    assert_eq!(t.counters(2).learned, learned);
    assert_eq!(t.counters(2).learn_refused, 5000 - learned);
    assert_eq!(t.leaves_by(2, &plain(2, 77)), [1]);
    assert_eq!(t.leaves_by(1, &plain(1, 2)), [0]);
    assert_eq!(t.leaves_by(1, &frame(MacAddr([2, 9, 9, 9, 0, 0]), mac(2), &[], &[])), [2]);
    assert_eq!(t.leaves_by(1, &frame(MacAddr([2, 9, 9, 9, 9, 9]), mac(2), &[], &[])), [0, 2]);
    t.end();
}

/// Shares are reserved for their ports: the table cannot be overcommitted.
#[test]
fn ports_beyond_the_bounds_are_refused() {
    let config = Config { addresses_max: 300, ..Config::default() };
    let mut t = Harness::with(config, [port(), port()]);
    assert_eq!(t.switch.add_port(port()), Err(PortError::TableFull));
    let small = PortConfig { addresses_max: 44, ..port() };
    let third = t.switch.add_port(small.clone()).expect("just fits");
    let larger = PortConfig { addresses_max: 45, ..port() };
    assert_eq!(t.switch.set_port(third, larger), Err(PortError::TableFull));
    let guard = Guard { macs: alloc::vec![mac(1); 33], addresses: Vec::new() };
    let guarded = PortConfig { guard, ..small.clone() };
    assert_eq!(t.switch.set_port(third, guarded), Err(PortError::GuardTooLong));
    t.switch.remove_port(third).expect("there");
    assert_eq!(t.switch.remove_port(third).err(), Some(PortError::Unknown));
    assert_eq!(t.switch.set_port(third, small), Err(PortError::Unknown));
    assert_eq!(t.switch.set_caps(third, ABLE), Err(PortError::Unknown));
    assert_eq!(t.switch.add_station(mac(1), vid(1), third, t.now), Err(PortError::Unknown));

    let none = PortConfig { addresses_max: 0, ..port() };
    let mut t = Harness::new((0..PORTS_MAX).map(|_| none.clone()));
    assert_eq!(t.switch.add_port(none), Err(PortError::TooManyPorts));
    assert_eq!(t.leaves_by(255, &plain(2, 1)).len(), 255, "all but itself");
    assert_eq!(t.counters(255).learn_refused, 1, "no share, nothing learned");
    t.end();
}

/// Two stations with one address, or a loop: the address moves no more often than the rate allows,
/// and packets are forwarded regardless.
#[test]
fn moves_are_counted_and_bounded() {
    let mut t = Harness::new([port(), port(), port()]);
    t.send(0, &plain(99, 1));
    for _ in 0..1000 {
        t.now += Duration::from_millis(1);
        assert!(!t.leaves_by(1, &plain(99, 1)).is_empty());
        assert!(!t.leaves_by(0, &plain(99, 1)).is_empty());
    }
    for port in [0, 1] {
        let counters = t.counters(port);
        assert!((10..=18).contains(&counters.moves), "{}", counters.moves);
    }
    let refused = t.counters(0).moves_refused + t.counters(1).moves_refused;
    assert!(refused > 1000 - 40, "{refused}");
    t.end();
}

#[test]
fn storms_are_bounded_by_kind() {
    let storm = StormRates { broadcast: Some(100), multicast: Some(50), unknown: Some(20) };
    let mut t = Harness::new([PortConfig { storm, ..port() }, port(), port()]);
    let kinds = [
        (BROADCAST, 100, PortDrop::StormBroadcast),
        (MacAddr([1, 0, 0x5e, 0, 0, 1]), 50, PortDrop::StormMulticast),
        (mac(99), 20, PortDrop::StormUnknown),
    ];
    for (to, rate, reason) in kinds {
        let mut passed = 0;
        for _ in 0..2000 {
            t.now += Duration::from_millis(1);
            passed += u64::from(!t.leaves_by(0, &frame(to, mac(1), &[], &[])).is_empty());
        }
        assert!((2 * rate..=2 * rate + rate / 10 + 2).contains(&passed), "{passed} of {to}");
        assert_eq!(t.counters(0).dropped(reason), 2000 - passed);
    }
    t.send(1, &plain(99, 2));
    assert_eq!((0..500).filter(|_| t.leaves_by(0, &plain(2, 1)) == [1]).count(), 500, "known");
    t.end();
}

/// A static station is accepted at no other port, is not flooded to, and does not age.
#[test]
fn a_static_station_stays() {
    let mut t = Harness::new([port(), PortConfig { addresses_max: 1, ..port() }, port()]);
    t.send(0, &plain(99, 2));
    t.switch.add_station(mac(2), vid(1), t.ports[1], t.now).expect("room");
    let full = t.switch.add_station(mac(3), vid(1), t.ports[1], t.now);
    assert_eq!(full, Err(PortError::TableFull));
    t.now += AGE + AGE;
    t.switch.expire(t.now);
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [1], "learned elsewhere before, static now");
    t.expect_drop(0, &plain(99, 2), PortDrop::MacLocked);
    assert_eq!(t.leaves_by(1, &plain(1, 2)), [0]);
    let none = PortConfig { addresses_max: 0, ..port() };
    assert_eq!(t.switch.set_port(t.ports[1], none), Err(PortError::TableFull));
    assert!(t.switch.remove_station(mac(2), vid(1)) && !t.switch.remove_station(mac(2), vid(1)));
    assert_eq!(t.leaves_by(0, &plain(99, 2)), [1, 2], "unknown again");
    t.end();
}

/// The number of a removed port is reused by a port that inherits nothing; packets for a removed
/// port are dropped.
#[test]
fn ports_come_and_go() {
    let mut t = Harness::new([port(), port(), port()]);
    t.send(1, &plain(99, 2));
    t.switch.add_station(mac(3), vid(1), t.ports[1], t.now).expect("room");
    let counters = t.switch.remove_port(t.ports[1]).expect("a port");
    assert_eq!((counters.packets_in, counters.learned), (1, 1));
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [2], "unknown again");
    assert_eq!(t.leaves_by(1, &plain(1, 2)), [0; 0], "no port, no packet");
    assert_eq!(t.switch.ports().count(), 2);
    assert_eq!(t.switch.add_port(port()), Ok(t.ports[1]));
    assert_eq!(t.counters(1).packets_in, 0);
    assert_eq!(t.leaves_by(0, &plain(3, 1)), [1, 2]);
    t.end();
}

/// A change of VLANs removes learned stations, a change of capabilities does not.
#[test]
fn a_change_keeps_what_it_can() {
    let mut t = Harness::new([port(), port(), port()]);
    t.send(1, &plain(99, 2));
    t.switch.set_caps(t.ports[1], towpath_packet::Caps::plain(9000)).expect("a port");
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [1]);
    t.switch.set_port(t.ports[1], in_vlans(access(2))).expect("may be");
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [2]);
    t.switch.set_port(t.ports[1], PortConfig { addresses_max: 0, ..port() }).expect("may be");
    assert_eq!(t.leaves_by(0, &plain(2, 1)), [1, 2]);
    assert_eq!(t.counters(1).packets_in, 1, "counters continue");
    t.end();
}

/// Full queues, and bursts longer than what ports are handed at once: order and counters.
#[test]
fn what_a_port_does_not_take_is_counted() {
    let mut t = Harness::new([port(), port(), port()]);
    t.send(1, &plain(99, 2));
    t.out.room.insert(1, 10);
    let mut burst = Burst::new();
    for number in 0..64u8 {
        let bytes = frame(mac(2), mac(1), &[], &[number; 100]);
        burst.push(received(&mut t.memory, &bytes, &[])).expect("room");
    }
    t.send_burst(0, &mut burst);
    let frames = t.frames().remove(&1).expect("some");
    let numbers: Vec<u8> = frames.iter().map(|frame| frame[14]).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let counters = t.counters(1);
    assert_eq!((counters.packets_out, counters.bytes_out), (10, 10 * 114));
    assert_eq!(counters.dropped(PortDrop::QueueFull), 54);
    t.end();
}
