//! The number of workers changes while packets flow: none is lost, and each flow stays in order.
//!
//! Most tests drive all workers, turn by turn; the last one runs them as threads.

use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use towpath_gateway::capture::{CaptureSettings, Sniffer};
use towpath_gateway::network::Operation;
use towpath_io::doorbell::EventDoorbell;
use towpath_net::counters::PortDrop;
use towpath_packet::Context;
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::ring::Doorbell;
use towpath_packet::sync::{AtomicBool, AtomicU32, Ordering};

use crate::rig::{Guest, Machine, Rig, number_of};
use crate::running::Running;
use crate::workers::{NO_GUEST, open_files};

/// Last byte of the address of the gateway's station.
const GATEWAY: u8 = 98;
/// Numbers of workers, one after the other.
const NUMBERS: [usize; 8] = [2, 4, 1, 8, 3, 2, 5, 1];
/// Stations of the guests of a mesh: `a` is the first.
const STATIONS: [u8; 4] = [1, 2, 3, 4];

fn name(station: u8) -> String {
    char::from(b'a' + station - 1).to_string()
}

/// Goal: the number changes at any time, also while packets are in rings, and every packet arrives,
/// in the order of its flow. Ports are distributed evenly, and counters go on. Method: each guest
/// sends to each other one. The last one is silent at first, so packets for it are judged by the
/// first worker until then. The workers have turns at different times.
#[test]
fn no_packet_is_lost_or_reordered() {
    /// Rounds, and the one from which on the last guest sends.
    const ROUNDS: u32 = 160;
    const SPEAKS: u32 = 50;
    let mut rig = Rig::new(1);
    let [.., last] = STATIONS;
    let mut guests = STATIONS.map(|station| match station {
        station if station == last => rig.attach_silent(&name(station), station, 500),
        station => rig.attach(&name(station), station, 500),
    });
    guests.iter_mut().for_each(|guest| drop(guest.receive_all()));
    let mut got: [[Vec<u32>; 5]; 5] = Default::default();
    let begins = |from| if from == last { SPEAKS } else { 0 };
    for round in 0..ROUNDS {
        for (from, to) in pairs().filter(|(from, _)| begins(*from) <= round) {
            assert!(guests[usize::from(from) - 1].send(to, round), "there is room");
        }
        match round % 5 {
            0 => rig.turn_first(),
            1 | 2 => rig.step_others(),
            3 => rig.turn(),
            _ => {}
        }
        if round % 6 == 5 {
            let workers = NUMBERS[round as usize / 6 % NUMBERS.len()];
            rig.change_workers(workers).expect("changed");
            assert_even(&rig, workers);
        }
        collect(&mut guests, &mut got);
    }
    for _ in 0..20 {
        rig.turn();
        collect(&mut guests, &mut got);
    }
    for (from, to) in pairs() {
        let numbers = &got[usize::from(from)][usize::from(to)];
        assert!(numbers.iter().copied().eq(begins(from)..ROUNDS), "{from} to {to}: {numbers:?}");
    }
    let ports = rig.network.report(rig.now).ports;
    let came = ports.iter().map(|port| port.counters.packets_in).sum::<u64>();
    let introductions = 3;
    assert_eq!(came, introductions + u64::from(3 * (3 * ROUNDS + ROUNDS - SPEAKS)));
    let flooded = ports.iter().map(|port| port.counters.flooded).sum::<u64>();
    assert!(flooded > introductions, "packets for the silent guest were judged");
    assert_eq!(rig.memory.packets.out_count(), 0);
}

fn pairs() -> impl Iterator<Item = (u8, u8)> {
    let all = STATIONS.into_iter().flat_map(|from| STATIONS.map(|to| (from, to)));
    all.filter(|(from, to)| from != to)
}

/// Adds what has arrived for each guest, by sender and receiver. What was flooded, and is for
/// others, does not count.
fn collect(guests: &mut [Guest], got: &mut [[Vec<u32>; 5]; 5]) {
    for guest in guests {
        let to = guest.station;
        for frame in guest.receive_all() {
            if frame[..6] == [2, 0, 0, 0, 0, to] {
                got[usize::from(frame[11])][usize::from(to)].push(number_of(&frame));
            }
        }
    }
}

/// Each worker has as many ports as the others, up to one.
fn assert_even(rig: &Rig, workers: usize) {
    let report = rig.network.report(rig.now);
    assert_eq!(report.workers, workers);
    let load = |worker| report.ports.iter().filter(|port| port.worker == worker).count();
    let loads: Vec<usize> = (0..workers).map(load).collect();
    assert_eq!(loads.iter().sum::<usize>(), report.ports.len());
    let [most, least] = [loads.iter().max(), loads.iter().min()].map(|load| *load.expect("one"));
    assert!(most - least < 2, "{loads:?}");
}

/// Goal: what waits for the receive queues of a virtual machine moves with its port, and so do the
/// rings: each flow arrives in order. Method: flows of two queues, with buffers from time to time.
#[test]
fn a_machine_moves_with_its_queues() {
    const FLOWS: u16 = 8;
    let mut rig = Rig::new(1);
    let _first = rig.attach("first", 1, 500);
    let mut sender = rig.attach("sender", 3, 500);
    let mut machine = Machine::attach(&mut rig, "machine");
    let (mut sent, mut got) = (0, Vec::new());
    let mut offered = [0; 2];
    for round in 0..12 {
        for _ in 0..FLOWS {
            sender.send_flow(sent as u16 % FLOWS, sent);
            sent += 1;
        }
        match round % 3 {
            0 => rig.turn(),
            1 => rig.step_others(),
            _ => {}
        }
        rig.change_workers(NUMBERS[round % NUMBERS.len()]).expect("changed");
        if round % 4 == 0 {
            for (queue, offered) in offered.iter_mut().enumerate() {
                machine.offer(queue, *offered..*offered + 8);
                *offered += 8;
            }
        }
        got.extend([0, 1].map(|queue| machine.received(queue)));
    }
    for (queue, offered) in offered.into_iter().enumerate() {
        machine.offer(queue, offered..128);
    }
    for _ in 0..20 {
        rig.turn();
        got.extend([0, 1].map(|queue| machine.received(queue)));
    }
    let all: Vec<u32> = got.into_iter().flatten().collect();
    for flow in 0..u32::from(FLOWS) {
        let of_flow = all.iter().copied().filter(|number| number % u32::from(FLOWS) == flow);
        assert!(of_flow.eq((flow..sent).step_by(FLOWS.into())), "flow {flow} of {all:?}");
    }
}

/// Goal: packets that wait for the gateway, or are on the way to it, are neither lost nor forgotten
/// when ports move: all arrive, and the ports are read again.
#[test]
fn packets_for_the_gateway_are_kept() {
    for first in [1, 2] {
        let mut rig = Rig::with_gateway(first, Some(GATEWAY));
        let mut guests: Vec<Guest> =
            [1, 2, 3].map(|station| rig.attach(&name(station), station, 500)).into();
        let introduced = rig.to_gateway;
        let mut sent = 0;
        for round in 0..60 {
            for guest in &mut guests {
                for _ in 0..8 {
                    sent += usize::from(guest.send(GATEWAY, 0));
                }
            }
            match round % 4 {
                0 => rig.turn_first(),
                1 | 2 => rig.step_others(),
                _ => {}
            }
            if round % 3 == 2 {
                rig.change_workers(NUMBERS[round / 3 % NUMBERS.len()]).expect("changed");
            }
        }
        for _ in 0..400 {
            rig.turn();
        }
        assert_eq!(rig.to_gateway - introduced, sent, "all of them, beginning with {first}");
        for guest in &mut guests {
            assert!(guest.send(GATEWAY, 0), "its packets were read");
        }
    }
}

/// Goal: a capture goes on when its port moves, and ends with its reader.
#[test]
fn captures_move_with_their_ports() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.attach("a", 1, 500), rig.attach("b", 2, 500));
    assert_eq!(rig.drain(&mut a, 2), [0], "the introduction");
    for _ in 0..6 {
        let mut sniffer = capture(&mut rig, "b");
        for (number, workers) in (0..).zip(NUMBERS) {
            assert!(a.send(2, number));
            rig.turn_first();
            rig.change_workers(workers).expect("changed");
        }
        let sent = NUMBERS.len() as u32;
        assert!(rig.drain(&mut b, 1).into_iter().eq(0..sent));
        assert!(captured(&mut sniffer).eq(0..sent));
        assert_eq!(sniffer.statistics().seen, u64::from(sent));
        // One more than may run at a time: each has ended.
        drop(sniffer);
        rig.turn();
    }
}

fn capture(rig: &mut Rig, name: &str) -> Sniffer {
    let Rig { network, memory, ledger, now, .. } = rig;
    let cx = Context { memory, ledger, now: *now };
    network.capture(name, CaptureSettings::default(), &cx).expect("a capture")
}

/// Numbers of the captured frames.
fn captured(sniffer: &mut Sniffer) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let sniffed = sniffer.next()?;
        let mut first = [0; PEEK_BYTES];
        assert_eq!(sniffed.packet.copy_first(&mut first), first.len());
        Some(number_of(&first))
    })
}

/// Goal: a port that was removed while its packets were under way leaves nothing to the next port
/// of its number, also if the number of workers changes in between.
#[test]
fn a_removed_port_is_gone_after_a_change() {
    for workers in [1, 3] {
        let mut rig = Rig::new(2);
        let mut a = rig.attach("a", 1, 500);
        let mut b = rig.attach("b", 2, 500);
        for number in 0..20 {
            assert!(a.send(2, number) && b.send(NO_GUEST, number));
        }
        rig.turn_first();
        rig.step_others();
        rig.network.remove_port("b").expect("removed");
        rig.change_workers(workers).expect("changed");
        drop(b);
        let mut c = rig.attach_silent("c", 3, 500);
        for _ in 0..10 {
            rig.turn();
        }
        assert_eq!(c.receive(1), [0; 0]);
        let counters = rig.port("c").counters;
        assert_eq!((counters.packets_in, counters.packets_out, counters.learned), (0, 0, 0));
        c.send(1, 7);
        assert_eq!(rig.drain(&mut a, 3), [7]);
    }
}

/// Goal: numbers out of range, and those that the memory is too little for, are refused with the
/// value and what is possible, and change nothing.
#[test]
fn wrong_numbers_are_refused() {
    let mut rig = Rig::new(2);
    let (mut a, mut b) = (rig.attach("a", 1, 500), rig.attach("b", 2, 500));
    assert_eq!(rig.drain(&mut a, 2), [0], "the introduction");
    for (count, expected) in [
        (0, "0 workers are out of range; expected 1 to 8"),
        (9, "9 workers are out of range; expected 1 to 8"),
    ] {
        assert_eq!(rig.change_workers(count).expect_err("refused").to_string(), expected);
    }
    assert_even(&rig, 2);
    rig.change_workers(2).expect("it is that number already");
    assert!(a.send(2, 5));
    assert_eq!(rig.drain(&mut b, 1), [5]);
    assert_eq!(rig.port("b").counters.dropped(PortDrop::QueueFull), 0);
}

/// Frames of a flow that are sent and have not arrived, at most: fewer than may wait anywhere.
const WINDOW: u32 = 32;
/// A guest whose frames do not arrive looks this often, a millisecond apart, before the test fails.
const LOOKS_MAX: u32 = 60_000;
const MILLISECOND: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// What the threads of the guests know of each other.
#[derive(Default)]
struct Flows {
    /// For each sender and receiver, how many frames were sent and how many have arrived.
    sent: [[AtomicU32; 4]; 4],
    came: [[AtomicU32; 4]; 4],
    /// No more frames are wanted.
    stop: AtomicBool,
    /// Guests that send no more.
    silent: AtomicU32,
    /// Threads that have ended.
    over: AtomicU32,
}

impl Flows {
    /// Sends what the windows allow, and takes what has arrived; each flow must be in order.
    /// Returns how many frames that were.
    fn exchange(&self, guest: &mut Guest, sends: bool) -> u32 {
        let own = usize::from(guest.station) - 1;
        let mut count = 0;
        for other in (0..4).filter(|other| sends && *other != own) {
            let (sent, came) = (&self.sent[own][other], &self.came[own][other]);
            let number = sent.load(Ordering::Relaxed);
            let is_open = number - came.load(Ordering::Relaxed) < WINDOW;
            if is_open && guest.send(STATIONS[other], number) {
                sent.store(number + 1, Ordering::Relaxed);
                count += 1;
            }
        }
        for frame in guest.receive_all() {
            let from = usize::from(frame[11]) - 1;
            if frame[5] == guest.station && from < 4 {
                let came = &self.came[from][own];
                assert_eq!(number_of(&frame), came.load(Ordering::Relaxed), "{from} to {own}");
                came.fetch_add(1, Ordering::Relaxed);
                count += 1;
            }
        }
        count
    }

    /// All frames to this guest have arrived, and none will follow.
    fn is_over(&self, own: usize) -> bool {
        self.silent.load(Ordering::Acquire) == 4
            && (0..4).all(|other| {
                let count = |all: &[[AtomicU32; 4]; 4]| all[other][own].load(Ordering::Relaxed);
                count(&self.sent) == count(&self.came)
            })
    }

    /// Exchanges frames until the test ends, and all frames have arrived.
    fn run(&self, mut guest: Guest, tick: &EventDoorbell) -> Guest {
        let _end = End(self, tick);
        let own = usize::from(guest.station) - 1;
        let (mut since, mut idle, mut sends) = (0, 0, true);
        while !self.is_over(own) {
            let count = self.exchange(&mut guest, sends);
            if sends && self.stop.load(Ordering::Relaxed) {
                sends = false;
                self.silent.fetch_add(1, Ordering::AcqRel);
            }
            since += count;
            if since >= 64 {
                since = 0;
                tick.ring();
            }
            idle = if count > 0 { 0 } else { idle + 1 };
            assert!(idle < LOOKS_MAX, "frames to {own} are missing");
            if count == 0 {
                let _ = poll(&mut [PollFd::new(&guest.socket, PollFlags::IN)], Some(&MILLISECOND));
            }
        }
        guest
    }
}

/// Tells that a thread has ended, also by a panic.
struct End<'a>(&'a Flows, &'a EventDoorbell);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::AcqRel);
        self.1.ring();
    }
}

/// Goal: with threads, the number changes under traffic between all guests, with a capture, while
/// another port comes and goes: no frame is lost, and each flow stays in order. No descriptor is
/// left. Method: each guest sends within a window, so that nothing is dropped for lack of room.
#[test]
fn the_number_changes_under_traffic() {
    const ROUNDS: usize = 12;
    let mut running = Running::new(2);
    let guests = STATIONS.map(|station| {
        let mut guest = running.attach(&name(station), station);
        guest.send(NO_GUEST, 0);
        guest
    });
    let flows = Arc::new(Flows::default());
    let threads = guests.map(|guest| {
        let (flows, tick) = (flows.clone(), running.tick.clone());
        thread::spawn(move || flows.run(guest, &tick))
    });
    let settings = CaptureSettings::default();
    let captured = running.worker.with_inside(|network, cx| network.capture("b", settings, cx));
    let mut sniffer = captured.expect("a capture");
    let mut files = Vec::new();
    for _ in 0..ROUNDS {
        for workers in [2, 4, 1] {
            let guest = running.attach("e", 5);
            let operations =
                vec![Operation::Workers(Some(workers)), Operation::Del("e".to_owned())];
            running.worker.apply(operations).expect("applied");
            drop(guest);
            let report = running.worker.inside().report(running.worker.now());
            assert_eq!((report.workers, report.ports.len()), (workers, 4));
            let seen = sniffer.statistics().seen;
            // The capture goes on.
            while sniffer.statistics().seen < seen + 32 {
                running.serve();
                assert_eq!(flows.over.load(Ordering::Acquire), 0, "a guest has failed");
            }
            while sniffer.next().is_some() {}
        }
        files.push(open_files());
    }
    // Other tests of this process have descriptors, too, but not so many.
    assert!(files[ROUNDS - 1] < files[0] + 4 * ROUNDS, "descriptors are left: {files:?}");
    flows.stop.store(true, Ordering::Relaxed);
    while flows.over.load(Ordering::Acquire) < 4 {
        running.serve();
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
    for port in &running.worker.inside().report(running.worker.now()).ports {
        assert_eq!(port.counters.dropped(PortDrop::QueueFull), 0, "{port}");
    }
}
