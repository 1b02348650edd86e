//! What waits for a port, in which order it leaves, and what is dropped.

use towpath_gateway::capture::CaptureSettings;
use towpath_gateway::network::{Attachment, PortError, PortSettings, check_port};
use towpath_net::counters::PortDrop;
use towpath_packet::Context;

use crate::rig::{Machine, Rig, TURNS_MAX};

/// Goal: what a device does not take waits, at most as many packets as the queue has room for; the
/// rest is dropped and counted; what waits arrives in order, and nothing twice. Method: a guest
/// that does not read, with queues of several lengths, the shortest of them shorter than a burst.
#[test]
fn packets_wait_for_a_guest_that_does_not_read() {
    for queue_len in [1, 7, 500] {
        for mut rig in Rig::each() {
            let mut sender = rig.attach("a", 1, 64);
            let mut slow = rig.attach("b", 2, queue_len);
            let mut sent = 0;
            for _ in 0..TURNS_MAX {
                if rig.port("b").counters.dropped(PortDrop::QueueFull) > 100 {
                    break;
                }
                while sender.send(2, sent) {
                    sent += 1;
                }
                rig.turn();
            }
            let port = rig.port("b");
            let dropped = port.counters.dropped(PortDrop::QueueFull);
            assert!(dropped > 100, "the queue is full");
            assert_eq!(port.waiting, queue_len, "as many packets wait as may");
            let got = rig.drain(&mut slow, 1);
            assert!(got.is_sorted_by(|one, next| one < next), "in order, and nothing twice");
            let dropped = rig.port("b").counters.dropped(PortDrop::QueueFull);
            assert_eq!(got.len() as u64 + dropped, u64::from(sent), "each was counted");
            assert_eq!(rig.memory.packets.out_count(), 0);
        }
    }
}

/// Goal: a queue that becomes shorter than what waits loses nothing, and a longer one takes more at
/// once.
#[test]
fn a_queue_changes_its_length_while_packets_wait() {
    for mut rig in Rig::each() {
        let mut sender = rig.attach("a", 1, 64);
        let mut slow = rig.attach("b", 2, 100);
        let mut sent = 0;
        let mut fill = |rig: &mut Rig| {
            let before = rig.port("b").counters.dropped(PortDrop::QueueFull);
            for _ in 0..TURNS_MAX {
                if rig.port("b").counters.dropped(PortDrop::QueueFull) > before {
                    return;
                }
                sent += u32::from(sender.send(2, sent));
                rig.turn();
            }
            panic!("the queue is never full");
        };
        fill(&mut rig);
        assert_eq!(rig.port("b").waiting, 100);
        rig.set_queue_len("b", 10);
        assert_eq!(rig.port("b").waiting, 100, "what waits stays");
        fill(&mut rig);
        assert_eq!(rig.port("b").waiting, 100, "and nothing joins it");
        rig.set_queue_len("b", 300);
        fill(&mut rig);
        assert_eq!(rig.port("b").waiting, 300);
        let got = rig.drain(&mut slow, 1);
        assert!(got.is_sorted(), "in order");
        let dropped = rig.port("b").counters.dropped(PortDrop::QueueFull);
        assert_eq!(got.len() as u64 + dropped, u64::from(sent));
    }
}

/// Goal: a capture sees each packet that is accepted for a port once, and none that is dropped,
/// whether it waited or not.
#[test]
fn a_capture_sees_packets_once() {
    for queue_len in [1, 40, 500] {
        for mut rig in Rig::each() {
            let mut sender = rig.attach("a", 1, 64);
            let mut slow = rig.attach("b", 2, queue_len);
            let cx = Context { memory: &mut rig.memory, ledger: &rig.ledger, now: rig.now };
            let capture = rig.network.capture("b", CaptureSettings::default(), &cx);
            let mut sniffer = capture.expect("a capture");
            let (mut sent, mut got) = (0, Vec::new());
            for round in 0..TURNS_MAX {
                let dropped = rig.port("b").counters.dropped(PortDrop::QueueFull);
                if dropped > 100 && round > 200 {
                    break;
                }
                while sender.send(2, sent) {
                    sent += 1;
                }
                rig.turn();
                sniffer.discard();
                // Now and then the guest reads.
                if round % 30 == 0 {
                    got.extend(slow.receive(1));
                }
            }
            got.extend(rig.drain(&mut slow, 1));
            let dropped = rig.port("b").counters.dropped(PortDrop::QueueFull);
            assert!(dropped > 100 && got.len() > 100, "{dropped} dropped, {} arrived", got.len());
            assert_eq!(sniffer.statistics().seen, got.len() as u64);
        }
    }
}

/// Goal: a guest that does not read costs its own packets only. Method: its neighbour gets all of
/// what is sent to both.
#[test]
fn a_slow_guest_delays_no_other() {
    for mut rig in Rig::each() {
        let mut sender = rig.attach("a", 1, 64);
        let _slow = rig.attach("slow", 2, 20);
        let mut brisk = rig.attach("brisk", 3, 20);
        let (mut sent, mut got) = (0, Vec::new());
        for _ in 0..TURNS_MAX {
            if rig.port("slow").counters.dropped(PortDrop::QueueFull) > 100 {
                break;
            }
            if sender.send(3, sent) {
                sent += 1;
                sender.send(2, sent);
            }
            rig.turn();
            got.extend(brisk.receive(1));
        }
        assert!(rig.port("slow").counters.dropped(PortDrop::QueueFull) > 100);
        assert!(got.iter().copied().eq(0..sent), "all, in order");
        assert_eq!(rig.port("brisk").counters.dropped(PortDrop::QueueFull), 0);
    }
}

/// Goal: a receive queue without buffers delays its own flows only; what waits for it arrives in
/// order once it has buffers. Method: a machine with two receive queues, and a flow for each, found
/// out with packets of several flows.
#[test]
fn a_slow_receive_queue_delays_no_other() {
    const COUNT: u32 = 100;
    for mut rig in Rig::each() {
        let mut sender = rig.attach("a", 1, 64);
        let mut machine = Machine::attach(&mut rig, "machine");
        (0..2).for_each(|queue| machine.offer(queue, 0..1));
        let queue_of = |flow| {
            sender.send_flow(flow, 0);
            rig.turn();
            let queue = (0..2).find(|queue| machine.received(*queue) == [0]).expect("it arrives");
            machine.offer(queue, 0..1);
            queue
        };
        let flows: Vec<usize> = (0..16).map(queue_of).collect();
        let flow_of = |queue| flows.iter().position(|found| *found == queue).expect("all are used");
        let (slow, brisk) = (flow_of(0) as u16, flow_of(1) as u16);
        machine.offer(1, 1..COUNT.into());
        for number in 0..COUNT {
            sender.send_flow(slow, number);
            sender.send_flow(brisk, number);
            rig.turn();
        }
        assert!(machine.received(1).into_iter().eq(0..COUNT), "the other flow is not delayed");
        assert_eq!(rig.port("machine").waiting, COUNT as usize - 1, "one buffer was there");
        machine.offer(0, 1..COUNT.into());
        rig.turn();
        rig.turn();
        assert!(machine.received(0).into_iter().eq(0..COUNT), "what waited arrives in order");
        assert_eq!(rig.port("machine").waiting, 0);
    }
}

/// Goal: an interface of the host has the MTU that it has; a setting of the port is an error, when
/// it is checked and when the port is made.
#[test]
fn an_uplink_has_no_mtu_of_its_own() {
    let attachment = Attachment::Packet("lo".to_owned());
    let settings = PortSettings { mtu: Some(1400), ..PortSettings::default() };
    let checked = check_port("a", &attachment, &settings);
    assert!(matches!(checked, Err(PortError::UplinkMtu)), "{checked:?}");
    for mut rig in Rig::each() {
        let attachment = Attachment::Packet("lo".to_owned());
        let added = rig.network.add_port("a", attachment, settings.clone());
        assert!(matches!(added, Err(PortError::UplinkMtu)), "{added:?}");
    }
}
