//! Bounds of the bandwidth of ports, in the time of the test: a turn takes a millisecond.

use towpath_gateway::network::{Bandwidth, PortSettings};
use towpath_net::counters::PortDrop;

use crate::rig::{FRAME, Guest, Machine, Rig};

/// A frame in each millisecond.
const ONE_A_TURN: u64 = FRAME as u64 * 8 * 1000;

/// Sets the bounds of a port.
fn bound(rig: &mut Rig, name: &str, out: Option<Bandwidth>, to: Option<Bandwidth>) {
    let settings = rig.network.settings(name).expect("a port").clone();
    let settings = PortSettings { bandwidth_out: out, bandwidth_in: to, ..settings };
    rig.network.set_port(name, settings).expect("set");
}

/// A bound of `frames` frames per millisecond, and as many at once.
fn pace(frames: u64) -> Option<Bandwidth> {
    Some(Bandwidth { bits: frames * ONE_A_TURN, burst: frames * FRAME as u64 })
}

/// Sends `count` numbered frames to station 2.
fn send(guest: &mut Guest, count: u32) {
    for number in 0..count {
        assert!(guest.send(2, number), "the socket has room");
    }
}

/// Numbers of the frames that arrive in each of so many rounds, of a turn each.
fn rounds(rig: &mut Rig, guest: &mut Guest, count: usize) -> Vec<Vec<u32>> {
    let round = |_| {
        rig.turn();
        guest.receive(1)
    };
    (0..count).map(round).collect()
}

/// Goal: from a bounded port come as many frames as its bound allows, all of them, in their order;
/// the others wait in the guest. Without the bound, all come at once.
#[test]
fn a_guest_waits_for_its_bandwidth() {
    let mut rig = Rig::new(1);
    let (mut one, mut two) = (rig.attach("one", 1, 100), rig.attach("two", 2, 100));
    rig.drain(&mut two, 1);
    bound(&mut rig, "one", pace(2), None);
    send(&mut one, 40);
    let came = rounds(&mut rig, &mut two, 20);
    assert!(came.iter().flatten().copied().eq(0..40), "{came:?}");
    // One frame more may move where a byte is left.
    assert!(came.iter().all(|came| came.len() <= 3), "{came:?}");
    assert_eq!(rig.port("one").waiting, 0);

    send(&mut one, 40);
    rig.turn();
    bound(&mut rig, "one", None, None);
    assert!(two.receive(1).len() <= 3);
    rig.turn();
    rig.turn();
    assert!(two.receive(1).len() >= 37, "the pause has ended with the bound");
}

/// Goal: to a bounded port go as many frames as its bound allows, in their order; others wait, for
/// a bounded time, and what would wait longer is dropped and counted.
#[test]
fn frames_wait_for_the_bandwidth_of_a_guest() {
    let mut rig = Rig::new(1);
    let (mut one, mut two) = (rig.attach("one", 1, 1000), rig.attach("two", 2, 1000));
    rig.drain(&mut two, 1);
    bound(&mut rig, "two", None, pace(2));
    send(&mut one, 40);
    let came = rounds(&mut rig, &mut two, 20);
    assert!(came.iter().flatten().copied().eq(0..40), "{came:?}");
    assert!(came.iter().all(|came| came.len() <= 3), "{came:?}");
    assert_eq!(rig.port("two").counters.dropped(PortDrop::QueueFull), 0);

    // Two super-packets may wait, that is, 131 of these frames.
    let mut sent = 0;
    while sent < 400 {
        (0..20).for_each(|number| assert!(one.send(2, sent + number)));
        sent += 20;
        rig.turn();
    }
    let waiting = rig.port("two").waiting;
    assert!((130..=132).contains(&waiting), "{waiting}");
    let came = rig.drain(&mut two, 1);
    assert!(came.is_sorted() && came[..100].iter().copied().eq(0..100), "{came:?}");
    let dropped = rig.port("two").counters.dropped(PortDrop::QueueFull);
    assert_eq!(came.len() as u64 + dropped, 400, "nothing is lost silently");
}

/// Goal: a bound holds when the port moves to another worker, with what it has used of it.
#[test]
fn a_bound_moves_with_its_port() {
    let mut rig = Rig::new(1);
    let (mut one, mut two) = (rig.attach("one", 1, 100), rig.attach("two", 2, 100));
    rig.drain(&mut two, 1);
    bound(&mut rig, "one", pace(1), None);
    send(&mut one, 60);
    let (mut came, before) = (Vec::new(), rig.now);
    for workers in [2, 3, 1] {
        rig.change_workers(workers).expect("changed");
        for _ in 0..8 {
            rig.turn();
            came.extend(two.receive(1));
        }
        let millis = rig.now.since(before).as_millis();
        assert!(came.len() as u128 <= millis + 2, "{workers}: {came:?} in {millis} ms");
    }
    came.extend(rig.drain(&mut two, 1));
    assert!(came.iter().copied().eq(0..60), "{came:?}");
}

/// Goal: the front end of a machine is served while the machine's port pauses for hours.
#[test]
fn a_front_end_is_served_in_a_pause() {
    let mut rig = Rig::new(1);
    let mut machine = Machine::attach(&mut rig, "machine");
    bound(&mut rig, "machine", Some(Bandwidth { bits: 8, burst: 1 }), None);
    machine.send_zeros(2);
    // Until its buffers are back, for which the port has a turn in any case.
    (0..100).for_each(|_| rig.turn());
    assert_eq!(rig.port("machine").counters.packets_in, 1, "the other one waits");
    drop(machine);
    (0..200).for_each(|_| rig.turn());
    assert!(!rig.port("machine").is_connected);
}
