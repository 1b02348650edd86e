//! A device whose owner polls: what polling reports, and what the file reports.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const EVENT: u64 = ring_feature::EVENT_INDEX;
const ALL: [u64; 4] = [0, EVENT, ring_feature::PACKED, ring_feature::PACKED | EVENT];

impl Bench {
    fn polled(features: u64) -> Self {
        let mut bench = Self::started(features);
        bench.device.set_polled();
        bench
    }

    /// Makes a buffer available as the guest; true if the device wants a kick.
    fn offer(&mut self, number: u64) -> bool {
        let segment = Segment { address: BUFFERS + 0x4000 + 0x800 * number, bytes: 2048 };
        assert!(self.receive.add(&[], &[segment], number));
        self.receive.publish()
    }

    fn is_readable(&self) -> bool {
        let mut files = [PollFd::new(&self.device, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut files, Some(&now)).unwrap() > 0
    }
}

/// Goal: while packets move, the driver needs no kicks. Before the owner sleeps, the device
/// requests one, and nothing that happened meanwhile is missed.
#[test]
fn kicks_are_asked_for_before_a_sleep_only() {
    for features in ALL {
        let mut bench = Bench::polled(features);
        bench.send(1);
        assert!(bench.device.poll());
        let first = bench.receive();
        assert_eq!(first.len(), 1);
        assert!(!bench.device.poll());
        assert!(!bench.send(2), "awake: {features:x}");
        assert!(bench.device.poll());
        assert!(bench.device.arm(), "it came before");
        assert_eq!(bench.receive().len(), 1);
        bench.turn(NOW);
        bench.receive();
        assert!(!bench.device.arm() && !bench.device.arm(), "nothing is left: {features:x}");
        assert!(bench.send(3), "asleep: {features:x}");
        assert_eq!(bench.receive().len(), 1);
        assert!(!bench.send(4), "awake again: {features:x}");
    }
}

/// Goal: polling sees loans that end, without a system call on the thread that ends them; a
/// sleeping owner is woken by them.
#[test]
fn loans_that_end_wake_a_sleeper_only() {
    for features in LAYOUTS {
        let mut bench = Bench::polled(features);
        bench.send(1);
        bench.send(2);
        let mut packets = bench.receive();
        assert!(!bench.device.poll() && !bench.is_readable());
        packets.pop();
        assert!(bench.device.poll() && !bench.is_readable());
        assert!(bench.receive().is_empty());
        assert_eq!(bench.transmit.used(), Some((2, 0)));
        assert!(!bench.device.arm());
        packets.clear();
        assert!(bench.is_readable());
        assert!(bench.receive().is_empty());
        assert_eq!(bench.transmit.used(), Some((1, 0)));
    }
}

/// Goal: buffers are polled for, and kicks requested, only while a packet waits for them.
#[test]
fn buffers_are_wanted_while_packets_wait() {
    for features in ALL {
        let mut bench = Bench::polled(features);
        (1..=3).for_each(|number| _ = bench.send(number));
        let mut burst = Burst::new();
        bench.receive().into_iter().for_each(|packet| burst.push(packet).unwrap());
        assert_eq!(bench.transmit(&mut burst), 3);
        assert!(!bench.device.poll(), "there is none");
        bench.offer(0);
        assert!(bench.device.poll());
        assert_eq!(bench.transmit(&mut burst), 2);
        bench.receive();
        assert!(!bench.offer(1), "awake: {features:x}");
        assert!(bench.device.poll());
        assert_eq!(bench.transmit(&mut burst), 1);
        bench.receive();
        assert!(!bench.device.arm());
        assert!(bench.offer(2), "asleep: {features:x}");
        assert_eq!(bench.transmit(&mut burst), 0);
        bench.receive();
        assert!(!bench.offer(3) && !bench.device.poll(), "no kick is wanted: {features:x}");
        assert!(!bench.device.arm(), "nor now");
    }
}

/// Goal: a loan has its whole term, whenever the last turn was.
#[test]
fn the_term_of_a_loan_begins_when_it_is_lent() {
    for features in LAYOUTS {
        let mut bench = Bench::polled(features);
        let at = |millis| Instant::START + Duration::from_millis(millis);
        bench.turn(at(1000));
        bench.send(1);
        let mut burst = Burst::new();
        bench.receive_at(at(1500), &mut burst);
        assert_eq!(bench.device.next_deadline(), Some(at(1520)));
        for (now, recalled) in [(1500, 0), (1519, 0), (1520, 1)] {
            bench.turn(at(now));
            assert_eq!(bench.device.traffic().sent.recalled, recalled, "at {now} ms");
        }
    }
}

/// Goal: a device without a front end, or with stopped rings, has no work, whatever is in the
/// rings.
#[test]
fn rings_that_stand_are_not_looked_at() {
    let mut bench = Bench::polled(0);
    bench.send(1);
    assert!(bench.device.poll());
    send(&bench.socket, GET_VRING_BASE, 1, &[1u32, 0].map(u32::to_ne_bytes).concat(), &[]);
    bench.turn(NOW);
    bench.reply(GET_VRING_BASE);
    assert!(!bench.device.poll() && !bench.device.arm());
    let config = bench.transmit.config();
    bench.start_ring(1, &config, 0);
    assert!(bench.device.arm(), "it was restarted");
    bench.device.peer = None;
    assert!(!bench.device.poll() && !bench.device.arm());
}
