//! AF_XDP sockets in both modes: frames that are lent, frames that are copied, packets to send.

use towpath_io::uplink::{Mode, Problem, RESERVE, Uplink, Way, XdpSettings};
use towpath_packet::ledger::Site;
use towpath_packet::{Burst, Device, Offload};

use crate::allocations;
use crate::network::{Side, await_up, bytes_of, frame, ip, now, permitted, with_pair};

const MTU: u16 = 1500;
const PAYLOAD: usize = 1400;

fn open(name: &str, mode: Mode) -> Option<Uplink> {
    let interface = name.to_owned();
    permitted(Uplink::xdp(&XdpSettings { interface, queue: 0, mode }, MTU))
}

/// A packet of one segment.
fn plain(number: usize) -> (Vec<u8>, Offload) {
    let (bytes, _) = frame(number as u8, PAYLOAD, None);
    (bytes, Offload::default())
}

/// Runs `body` with a packet socket and an AF_XDP socket at both ends of a pair, in each mode.
fn in_each_mode(body: impl Fn(&mut Uplink, &mut Uplink) + Sync) {
    for mode in [Mode::Generic, Mode::Native] {
        with_pair(|| {
            let Some(mut near) = permitted(Uplink::packet("near", MTU)) else { return };
            let Some(mut far) = open("far", mode) else { return };
            assert_eq!(far.way(), Way::Xdp { mode, is_zerocopy: false });
            body(&mut near, &mut far);
        });
    }
}

/// Goal: received frames are lent without a copy as long as enough are free. If receivers hold more
/// of them, further frames are copied and none is lost. Frames that return are lent again. Method:
/// a receiver that holds 3000 packets, then drops them.
#[test]
fn frames_are_lent_and_copied_if_too_many_are_held() {
    in_each_mode(|near, far| {
        const HELD: usize = 3000;
        let mut side = Side::new(4096, 4096, 8);
        let (mut held, mut burst) = (Vec::new(), Burst::new());
        let mut before_copies = 0;
        while held.len() < HELD {
            let count = burst.room().min(HELD - held.len());
            for number in 0..count {
                burst.push(side.packet(&plain(held.len() + number))).expect("room");
            }
            side.send(near, &mut burst);
            held.append(&mut side.receive(far, count));
            if far.counters().receive_copied == 0 {
                before_copies = held.len();
            }
        }
        for (number, packet) in held.iter().enumerate() {
            assert!(bytes_of(packet) == plain(number).0, "packet {number}");
        }
        let counters = far.counters();
        assert!(before_copies > 2 * RESERVE, "{before_copies} were lent");
        let copied = counters.receive_copied;
        assert!(copied > 0 && copied < HELD as u64);
        assert_eq!(side.ledger.copied_at(Site::GuestSmall), copied * plain(0).0.len() as u64);
        assert_eq!(counters.receive_dropped(), 0);
        held.clear();
        for round in 0..20 {
            burst.push(side.packet(&plain(round))).expect("room");
            side.send(near, &mut burst);
            assert!(bytes_of(&side.receive(far, 1)[0]) == plain(round).0);
        }
        assert_eq!(far.counters().receive_copied, copied, "lent again");
    });
}

/// Goal: packets to send arrive in order with every byte, are copied once, and their frames are
/// used again: far more packets than there are frames.
#[test]
fn packets_are_sent_in_order() {
    in_each_mode(|near, far| {
        const COUNT: usize = 10_000;
        let mut side = Side::new(256, 256, 8);
        let (mut burst, mut number, mut calls) = (Burst::new(), 0, 0);
        while number < COUNT {
            let count = burst.room().min(COUNT - number);
            for at in number..number + count {
                burst.push(side.packet(&plain(at))).expect("room");
            }
            let before = allocations::count();
            side.send(far, &mut burst);
            calls += allocations::count() - before;
            for packet in side.receive(near, count) {
                assert!(bytes_of(&packet) == plain(number).0, "packet {number}");
                number += 1;
            }
        }
        assert_eq!(calls, 0, "sending does not allocate");
        let counters = far.counters();
        assert_eq!((counters.transmitted.packets, counters.transmit_dropped()), (COUNT as u64, 0));
        assert!(counters.transmitted.calls < COUNT as u64 / 16, "{counters:?}");
        let bytes = COUNT * plain(0).0.len();
        assert_eq!(side.ledger.copied_at(Site::Linearise), bytes as u64);
        assert_eq!(side.ledger.copied(), bytes as u64);
    });
}

/// Goal: receiving does not allocate.
#[test]
fn receiving_does_not_allocate() {
    in_each_mode(|near, far| {
        let mut side = Side::new(256, 256, 8);
        let (mut burst, mut received, mut count) = (Burst::new(), 0, 0);
        for number in 0..40 {
            burst.push(side.packet(&plain(number))).expect("room");
            side.send(near, &mut burst);
            let before = allocations::count();
            far.receive(&mut burst, &mut side.cx()).expect("received");
            if number > 10 {
                count += allocations::count() - before;
            }
            received += burst.len();
            burst.clear();
        }
        assert_eq!(count, 0);
        assert!(received >= 39, "{received}");
    });
}

/// Goal: a packet that does not fit a frame is counted as refused, and the next one is sent.
#[test]
fn longer_packets_are_refused() {
    in_each_mode(|near, far| {
        let mut side = Side::new(64, 64, 8);
        let mut burst = Burst::new();
        let (long, _) = frame(1, 3000, None);
        burst.push(side.packet(&(long, Offload::default()))).expect("room");
        burst.push(side.packet(&plain(2))).expect("room");
        side.send(far, &mut burst);
        assert!(bytes_of(&side.receive(near, 1)[0]) == plain(2).0);
        assert_eq!((far.refused(), far.counters().transmitted.packets), (1, 1));
    });
}

/// Goal: each way to fail has its own error, and a closed socket frees queue and program.
#[test]
fn each_failure_has_its_error() {
    with_pair(|| {
        let Some(first) = open("far", Mode::Auto) else { return };
        let problem = |interface: &str, queue, mode| {
            let interface = interface.to_owned();
            let opened = Uplink::xdp(&XdpSettings { interface, queue, mode }, MTU);
            opened.err().expect("it must fail").problem
        };
        assert_eq!(problem("far", 0, Mode::Auto), Problem::QueueTaken(0));
        assert_eq!(problem("far", 9, Mode::Auto), Problem::NoQueue(9));
        assert_eq!(problem("gone", 0, Mode::Auto), Problem::Missing);
        assert_eq!(problem("lo", 0, Mode::Auto), Problem::NotEthernet);
        drop(first);
        let started = now();
        drop(open("far", Mode::Native).expect("it is free"));
        println!("free again after {:?}", started.elapsed());
        assert!(ip(&["link", "add", "bare", "type", "bridge"]));
        assert!(matches!(problem("bare", 0, Mode::Native), Problem::NoNative(_)));
        let generic = open("bare", Mode::Auto).expect("it falls back");
        assert!(matches!(generic.way(), Way::Xdp { mode: Mode::Generic, .. }));
        drop(generic);
        assert!(ip(&["link", "set", "bare", "mtu", "9000"]));
        let long = Problem::MtuTooLarge { mtu: 9000, max: 3822 };
        assert_eq!(problem("bare", 0, Mode::Auto), long);
    });
}

/// Goal: an interface that is down is noticed and used again, and one that was deleted fails.
#[test]
fn an_interface_goes_down_and_away() {
    in_each_mode(|near, far| {
        let mut side = Side::new(64, 64, 8);
        let check = |far: &mut Uplink, side: &mut Side| {
            let at = far.next_deadline().expect("a check");
            far.turn(false, &mut side.cx_at(at))
        };
        check(far, &mut side).expect("it is up");
        assert!(far.is_up());
        assert!(ip(&["link", "set", "far", "down"]));
        check(far, &mut side).expect("no failure");
        assert!(!far.is_up());
        assert!(ip(&["link", "set", "far", "up"]));
        await_up();
        check(far, &mut side).expect("no failure");
        assert!(far.is_up());
        let mut burst = Burst::new();
        burst.push(side.packet(&plain(1))).expect("room");
        side.send(near, &mut burst);
        assert!(bytes_of(&side.receive(far, 1)[0]) == plain(1).0);
        assert!(ip(&["link", "del", "far"]));
        let at = far.next_deadline().expect("a check");
        let error = far.turn(false, &mut side.cx_at(at)).expect_err("it has gone");
        assert_eq!(error.problem, Problem::Gone);
    });
}
