//! A network whose ports are distributed over several workers. Without a gateway, the first port
//! belongs to the first worker, and then the ports take turns.
//!
//! Most tests drive the workers turn by turn; the others run them as threads.

use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_gateway::network::{Change, Operation, PortSettings};
use towpath_net::counters::PortDrop;
use towpath_packet::ring::Doorbell;
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};

use crate::rig::{Guest, Rig};
use crate::running::Running;

/// Last byte of the address of a station that no guest has.
pub(crate) const NO_GUEST: u8 = 99;

/// Goal: packets between ports of two workers arrive, all and in order, in both directions, and are
/// counted once.
#[test]
fn packets_cross_between_workers() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.attach("a", 1, 500), rig.attach("b", 2, 500));
    assert_eq!([rig.port("a").worker, rig.port("b").worker], [0, 1]);
    assert_eq!(rig.drain(&mut a, 2), [0], "the introduction");
    let before = ["a", "b"].map(|name| rig.port(name).counters);
    for number in 0..100 {
        assert!(a.send(2, number) && b.send(1, number));
        if number % 7 == 0 {
            rig.turn();
        }
    }
    assert!(rig.drain(&mut b, 1).into_iter().eq(0..100));
    assert!(rig.drain(&mut a, 2).into_iter().eq(0..100));
    for (name, before) in ["a", "b"].into_iter().zip(before) {
        let counters = rig.port(name).counters;
        assert_eq!(counters.packets_in - before.packets_in, 100);
        assert_eq!(counters.packets_out - before.packets_out, 100);
        assert_eq!(counters.flooded, before.flooded, "their stations are known");
        assert!(counters.drops().eq(before.drops()), "nothing is dropped");
    }
    assert_eq!(rig.memory.packets.out_count(), 0);
}

/// Goal: a packet for all arrives once at each other port, whichever workers they belong to.
#[test]
fn a_broadcast_reaches_each_port_once() {
    let mut rig = Rig::new(2);
    let names = ["a", "b", "c", "d"];
    let mut guests: Vec<Guest> =
        (1..).zip(names).map(|(station, name)| rig.attach(name, station, 500)).collect();
    for sender in 0..guests.len() {
        for number in 0..10 {
            guests[sender].broadcast(number);
        }
        let from = guests[sender].station;
        for (receiver, guest) in guests.iter_mut().enumerate() {
            let got = rig.drain(guest, from);
            let expected = if sender == receiver { 0..0 } else { 0..10 };
            assert!(got.into_iter().eq(expected), "from {sender} to {receiver}");
        }
    }
}

/// Goal: the order of a flow holds while its packets change from the way through the first worker
/// to the direct one. Method: the destination introduces itself in the midst of a flow, and the
/// workers have turns at different times; it is at the worker of the sender, and at the other one.
#[test]
fn a_flow_that_becomes_direct_keeps_its_order() {
    for name in ["other", "same"] {
        let mut rig = Rig::new(2);
        let _first = rig.attach("first", 1, 500);
        let mut sender = rig.attach("sender", 2, 500);
        let mut other = rig.attach_silent("other", 3, 500);
        let mut same = rig.attach_silent("same", 4, 500);
        assert_eq!(["sender", "other", "same"].map(|name| rig.port(name).worker), [1, 0, 1]);
        let receiver = if name == "same" { &mut same } else { &mut other };
        let (mut sent, mut got) = (0, Vec::new());
        for round in 0..60 {
            for _ in 0..3 {
                assert!(sender.send(receiver.station, sent));
                sent += 1;
            }
            if round == 10 {
                receiver.send(NO_GUEST, 0);
            }
            // The first worker has a turn in one of some rounds.
            match round % 5 {
                0 => rig.turn(),
                _ => rig.step_others(),
            }
            got.extend(receiver.receive(2));
        }
        got.extend(rig.drain(receiver, 2));
        assert!(got.into_iter().eq(0..sent), "all, in order");
        let flooded = rig.port("sender").counters.flooded;
        assert!((1..u64::from(sent)).contains(&flooded), "{flooded} were flooded, not all");
    }
}

/// Goal: the link and the MTU of a port change, whichever worker it belongs to: a port whose link
/// is down takes no packet and sends none, and each is counted.
#[test]
fn links_and_mtus_change_at_each_worker() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.attach("a", 1, 500), rig.attach("b", 2, 500));
    assert_eq!(rig.drain(&mut a, 2), [0], "the introduction");
    let dropped = |rig: &Rig, name: &str, reason| rig.port(name).counters.dropped(reason);
    for name in ["a", "b"] {
        let (from, to) = if name == "a" { (&mut b, &mut a) } else { (&mut a, &mut b) };
        let set = |rig: &mut Rig, settings: PortSettings| {
            rig.network.set_port(name, settings).expect("may be");
        };
        let before = dropped(&rig, name, PortDrop::LinkDown);
        set(&mut rig, PortSettings { is_up: false, ..PortSettings::default() });
        assert!(from.send(to.station, 1) && to.send(from.station, 2));
        assert!(rig.drain(to, from.station).is_empty());
        assert!(rig.drain(from, to.station).is_empty());
        assert!(dropped(&rig, name, PortDrop::LinkDown) > before);
        set(&mut rig, PortSettings { mtu: Some(600), ..PortSettings::default() });
        let before = dropped(&rig, name, PortDrop::TooLarge);
        to.send(from.station, 3);
        assert_eq!(rig.drain(from, to.station), [3], "its link is up again");
        from.send(to.station, 4);
        assert!(rig.drain(to, from.station).is_empty());
        assert_eq!(dropped(&rig, name, PortDrop::TooLarge), before + 1);
        set(&mut rig, PortSettings::default());
        from.send(to.station, 5);
        assert_eq!(rig.drain(to, from.station), [5]);
    }
}

/// Goal: what a worker does not take in time is dropped and counted at the port that it is for,
/// once there is no room; the rest arrives in order. Method: the first worker has no turn
/// meanwhile.
#[test]
fn a_full_ring_drops_and_counts() {
    let mut rig = Rig::new(2);
    let (mut slow, mut sender) = (rig.attach("slow", 1, 5000), rig.attach("sender", 2, 500));
    assert_eq!(rig.drain(&mut slow, 2), [0], "the introduction");
    let mut sent = 0;
    for _ in 0..10_000 {
        while sender.send(1, sent) {
            sent += 1;
        }
        rig.step_others();
        if rig.port("slow").counters.dropped(PortDrop::QueueFull) > 100 {
            break;
        }
    }
    let dropped = rig.port("slow").counters.dropped(PortDrop::QueueFull);
    assert!(dropped > 100, "the ring is full");
    let mut got = rig.drain(&mut slow, 2);
    // Sockets have room for few packets: the port's queue takes the others.
    while rig.port("slow").waiting > 0 {
        got.extend(rig.drain(&mut slow, 2));
    }
    assert!(got.is_sorted_by(|one, next| one < next), "in order, and nothing twice");
    let counters = rig.port("slow").counters;
    assert_eq!(counters.packets_out, 1 + got.len() as u64, "and the introduction");
    let dropped = counters.dropped(PortDrop::QueueFull);
    assert_eq!(got.len() as u64 + dropped, u64::from(sent), "each was counted");
}

/// Goal: packets that arrive for a full queue of another worker's port count as dropped and not as
/// sent.
#[test]
fn a_full_queue_of_another_worker_counts() {
    let mut rig = Rig::new(2);
    let (mut sender, mut slow) = (rig.attach("sender", 1, 500), rig.attach("slow", 2, 50));
    let mut sent = 0;
    while rig.port("slow").counters.dropped(PortDrop::QueueFull) < 100 {
        sent += u32::from(sender.send(2, sent));
        rig.turn();
    }
    let got = rig.drain(&mut slow, 1).len() as u64;
    let counters = rig.port("slow").counters;
    assert_eq!(counters.packets_out, got);
    assert_eq!(got + counters.dropped(PortDrop::QueueFull), u64::from(sent));
}

/// Goal: packets for a port that was removed, and packets that came from it, are not those of the
/// next port, although that may get its number. Method: they are under way in both rings when the
/// port is removed; then ports are added until the number is used again.
#[test]
fn a_new_port_inherits_no_packets() {
    let mut rig = Rig::new(2);
    let mut a = rig.attach("a", 1, 500);
    let mut b = rig.attach("b", 2, 500);
    for number in 0..20 {
        assert!(a.send(2, number) && b.send(NO_GUEST, number));
    }
    // The first worker sends to the ring of the other, and the other one back.
    rig.turn_first();
    rig.step_others();
    for number in 20..40 {
        assert!(a.send(2, number) && b.send(NO_GUEST, number));
    }
    rig.turn_first();
    rig.network.remove_port("b").expect("removed");
    drop(b);
    for round in 0..3 {
        let name = format!("c{round}");
        let mut c = rig.attach_silent(&name, 3, 500);
        for _ in 0..10 {
            rig.turn();
        }
        assert_eq!(c.receive(1), [0; 0]);
        let counters = rig.port(&name).counters;
        assert_eq!((counters.packets_in, counters.packets_out, counters.learned), (0, 0, 0));
        rig.network.remove_port(&name).expect("removed");
    }
    assert_eq!(rig.memory.packets.out_count(), 0);
}

/// Goal: a port of another worker is changed, captured and removed like one of the first worker,
/// and an impossible change changes nothing.
#[test]
fn ports_of_another_worker_change() {
    let mut rig = Rig::new(2);
    let (_a, _b) = (rig.attach("a", 1, 500), rig.attach("b", 2, 500));
    rig.set_queue_len("b", 7);
    assert_eq!(rig.network.settings("b").expect("a port").queue_len, 7);
    let settings = rig.network.settings("b").expect("a port").clone();
    let wrong = PortSettings { queue_len: 0, ..settings };
    assert!(rig.network.set_port("b", wrong).is_err());
    assert_eq!(rig.port("b").settings.queue_len, 7);
    rig.network.remove_port("b").expect("removed");
    assert!(rig.network.remove_port("b").is_err());
    let _c = rig.attach("c", 3, 500);
    assert_eq!(rig.port("c").worker, 1, "the one with the fewest ports");
}

/// Goal: a network that ends with its machine learns that a machine at another worker has gone.
#[test]
fn a_departure_from_another_worker_is_told() {
    let mut rig = Rig::new(2);
    let departed = rig.network.departure().expect("a descriptor");
    let has_rung = || {
        let now = Timespec::default();
        poll(&mut [PollFd::new(&departed, PollFlags::IN)], Some(&now)) == Ok(1)
    };
    let (_a, b) = (rig.attach("a", 1, 500), rig.attach("b", 2, 500));
    rig.turn();
    assert!(!has_rung());
    drop(b);
    rig.turn();
    assert!(has_rung());
}

/// Goal: ports of all workers come, change and go under traffic, nothing of them is left, and
/// memory comes back; the network ends with traffic under way. Method: guests of two workers send
/// to each other, and to those that come and go.
#[test]
fn ports_come_and_go_under_traffic() {
    for workers in [2, 4] {
        come_and_go(workers);
    }
}

fn come_and_go(workers: usize) {
    const ROUNDS: usize = 15;
    let mut running = Running::new(workers);
    let mut guests = [running.attach("a", 1), running.attach("b", 2)];
    let stop = Arc::new(AtomicBool::new(false));
    let came = Arc::new(AtomicU64::new(0));
    for guest in &mut guests {
        guest.send(NO_GUEST, 0);
    }
    let tick = running.tick.clone();
    let threads = guests.map(|mut guest| {
        let (stop, came, tick) = (stop.clone(), came.clone(), tick.clone());
        thread::spawn(move || {
            let (peer, mut number) = (3 - guest.station, 0_u32);
            while !stop.load(Ordering::Relaxed) {
                let to = [3, peer, 4, peer][number as usize % 4];
                guest.send(to, number);
                number = number.wrapping_add(1);
                came.fetch_add(guest.receive(peer).len() as u64, Ordering::Relaxed);
                if number.is_multiple_of(64) {
                    tick.ring();
                }
                thread::yield_now();
            }
        })
    });
    let mut files = Vec::new();
    for round in 0..ROUNDS {
        running.serve();
        // With two workers a port of each, with four those of the others.
        let names = ["c", "d"];
        let mut guests = [running.attach(names[0], 3), running.attach(names[1], 4)];
        for (name, guest) in names.into_iter().zip(&mut guests) {
            assert_eq!(running.port(name).worker, usize::from(guest.station - 1) % workers);
            guest.send(NO_GUEST, 0);
        }
        running.serve();
        let change = Change { queue_len: Some(1 + round), ..Change::default() };
        for name in names {
            running.apply(Operation::Set(name.to_owned(), change.clone()));
        }
        running.serve();
        for name in names {
            running.apply(Operation::Del(name.to_owned()));
        }
        files.push(open_files());
    }
    // Other tests of this process have descriptors, too, but not so many.
    assert!(files[ROUNDS - 1] < files[0] + ROUNDS, "descriptors are left: {files:?}");
    assert!(came.load(Ordering::Relaxed) > 100, "packets crossed meanwhile");
    let report = running.worker.inside().report(running.worker.now());
    for port in &report.ports {
        assert!(port.counters.packets_out > 0, "{port}");
    }
    stop.store(true, Ordering::Relaxed);
    // The network ends while packets are under way.
    drop(running);
    for thread in threads {
        thread.join().expect("no panic");
    }
}

pub(crate) fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("a folder").count()
}
