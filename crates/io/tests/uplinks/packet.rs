//! Packet sockets: super-packets, VLAN tags, short memory, interfaces that go.

use std::time::Duration;

use towpath_io::uplink::{CHECK, Problem, Uplink};
use towpath_packet::{Burst, Device, Input, time};

use crate::allocations;
use crate::network::{Side, await_up, bytes_of, frame, ip, permitted, with_pair};

const MTU: u16 = 1500;
/// Payload of the largest super-packets: 46 segments.
const LARGE: usize = 46 * 1400 + 77;

fn open(name: &str) -> Option<Uplink> {
    permitted(Uplink::packet(name, MTU))
}

/// Goal: packets and super-packets cross two packet sockets with every byte and their offload
/// fields, with and without a VLAN tag, and nothing is copied. Method: frames of several sizes in
/// both directions.
#[test]
fn frames_arrive_whole_with_their_tags() {
    with_pair(|| {
        let (Some(mut near), Some(mut far)) = (open("near"), open("far")) else { return };
        let mut side = Side::new(64, 64, 64);
        for vlan in [None, Some(100), Some(0x6fff)] {
            for payload in [6, 1400, 1401, 30_000, LARGE] {
                let sent = frame(payload as u8, payload, vlan);
                for is_back in [false, true] {
                    let (from, to) =
                        if is_back { (&mut far, &mut near) } else { (&mut near, &mut far) };
                    let mut burst = Burst::new();
                    burst.push(side.packet(&sent)).expect("room");
                    side.send(from, &mut burst);
                    let arrived = side.receive(to, 1).pop().expect("one");
                    assert!(bytes_of(&arrived) == sent.0, "{vlan:?} {payload}");
                    assert_eq!(*arrived.offload(), sent.1, "{vlan:?} {payload}");
                }
            }
        }
        for uplink in [&mut near, &mut far] {
            let counters = uplink.counters();
            assert_eq!(
                (counters.received.super_packets, counters.transmitted.super_packets),
                (9, 9)
            );
            assert_eq!((counters.receive_dropped(), counters.transmit_dropped()), (0, 0));
            uplink.rest();
        }
        assert_eq!(side.ledger.copied(), 0);
        assert_eq!(side.memory.small.out_count() + side.memory.large.out_count(), 0);
    });
}

/// Goal: a super-packet for which too few frames are free is dropped as a whole and counted, never
/// truncated; without a handle it stays in the socket.
#[test]
fn short_memory_truncates_nothing() {
    with_pair(|| {
        let (Some(mut near), Some(mut far)) = (open("near"), open("far")) else { return };
        let mut sender = Side::new(64, 64, 64);
        let mut short = Side::new(2, 8, 1);
        let mut burst = Burst::new();
        for payload in [LARGE, 1000] {
            burst.push(sender.packet(&frame(1, payload, None))).expect("room");
        }
        sender.send(&mut near, &mut burst);
        let arrived = short.receive(&mut far, 1).pop().expect("one");
        assert!(bytes_of(&arrived) == frame(1, 1000, None).0);
        assert_eq!(far.counters().receive_no_memory, 1);
        let handle = short.memory.packet().expect("the last");
        burst.push(sender.packet(&frame(2, 900, None))).expect("room");
        sender.send(&mut near, &mut burst);
        let input = far.receive(&mut burst, &mut short.cx()).expect("no failure");
        assert_eq!((input, burst.len()), (Input::NoMemory, 0));
        drop((handle, arrived));
        let arrived = short.receive(&mut far, 1).pop().expect("it has waited");
        assert!(bytes_of(&arrived) == frame(2, 900, None).0);
    });
}

/// Goal: neither direction allocates, for small packets and super-packets.
#[test]
fn the_data_path_does_not_allocate() {
    with_pair(|| {
        let (Some(mut near), Some(mut far)) = (open("near"), open("far")) else { return };
        let mut side = Side::new(256, 256, 256);
        let frames = [frame(0, 100, Some(7)), frame(1, LARGE, None)];
        let (mut burst, mut count) = (Burst::new(), 0);
        for round in 0..20 {
            for frame in &frames {
                burst.push(side.packet(frame)).expect("room");
            }
            let before = allocations::count();
            near.transmit(&mut burst, &mut side.cx()).expect("sent");
            far.receive(&mut burst, &mut side.cx()).expect("received");
            if round > 0 {
                count += allocations::count() - before;
            }
            burst.clear();
        }
        assert_eq!(count, 0);
        assert!(far.counters().received.super_packets >= 19);
    });
}

/// Goal: while the interface is down, packets are dropped and counted, and the uplink works again
/// afterwards. When the interface is deleted, it fails and says so.
#[test]
fn an_interface_goes_down_and_away() {
    with_pair(|| {
        let (Some(mut near), Some(mut far)) = (open("near"), open("far")) else { return };
        let mut side = Side::new(64, 64, 64);
        let mut burst = Burst::new();
        assert!(ip(&["link", "set", "near", "down"]));
        burst.push(side.packet(&frame(0, 100, None))).expect("room");
        near.transmit(&mut burst, &mut side.cx()).expect("no failure");
        assert!(!near.is_up() && burst.is_empty());
        assert_eq!(near.take_event(), Some("the interface is down"));
        assert_eq!(near.counters().transmit_down, 1);
        assert!(ip(&["link", "set", "near", "up"]));
        await_up();
        let later = near.next_deadline().expect("a check");
        assert!(later <= time::Instant::START + CHECK + Duration::from_millis(1));
        near.turn(false, &mut side.cx_at(later)).expect("no failure");
        assert_eq!((near.take_event(), near.next_deadline()), (Some("the interface is up"), None));
        let sent = frame(3, 100, None);
        burst.push(side.packet(&sent)).expect("room");
        side.send(&mut near, &mut burst);
        assert!(bytes_of(&side.receive(&mut far, 1)[0]) == sent.0);
        assert!(ip(&["link", "del", "near"]));
        for uplink in [&mut near, &mut far] {
            let error = uplink.receive(&mut burst, &mut side.cx()).expect_err("it has gone");
            assert_eq!(error.problem, Problem::Gone, "{error}");
        }
    });
}
