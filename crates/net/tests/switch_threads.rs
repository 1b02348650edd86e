//! Two forwarders on their own threads, while the owner of the switch adds and removes stations.

use std::sync::Barrier;
use std::thread;

use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{Config, Context, Egress, Forwarder, PortConfig, PortId, Switch};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::sync::{AtomicU64, Ordering};
use towpath_packet::{Burst, Caps, Ledger, Memory, MemoryConfig, Packet};

/// Ports of the workers, one each.
const WORKERS: usize = 2;
/// Stations behind the other two ports, which are added and removed.
const STATIONS: u8 = 12;
const BURST: usize = 32;
/// Bursts of each worker, at most.
const BURSTS_MAX: usize = 200_000;
/// Changes of the owner, and packets that each worker forwarded, that are enough.
const CHANGES: u64 = 20_000;
const FORWARDED: u64 = 20_000;
/// A forwarder refreshes a station every millisecond.
const AGE: Duration = Duration::from_millis(64);

fn worker_mac(worker: usize) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, worker as u8])
}

fn station_mac(station: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, station])
}

/// Index of the port of a station.
fn home_of(station: u8) -> usize {
    WORKERS + usize::from(station % 2)
}

fn packet(memory: &mut Memory, to: MacAddr, from: MacAddr) -> Packet {
    let mut packet = memory.packet().expect("free");
    packet.fill_inline(60, |frame| {
        frame.fill(0);
        frame[..6].copy_from_slice(&to.0);
        frame[6..12].copy_from_slice(&from.0);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    });
    packet
}

/// Checks that each packet leaves by the port of its station.
struct Sink {
    ports: [PortId; WORKERS + 2],
    packets: u64,
}

impl Egress for Sink {
    fn transmit(&mut self, port: PortId, burst: &mut Burst, _: &mut Context<'_>) {
        while let Some(packet) = burst.pop() {
            let station = packet.headers()[5];
            assert_eq!(port, self.ports[home_of(station)], "station {station}");
            self.packets += 1;
        }
    }
}

/// Sends packets to all stations until enough were forwarded and the owner has done enough.
fn work(worker: usize, mut forwarder: Forwarder, ports: [PortId; 4], changes: &AtomicU64) -> u64 {
    let mut memory = Memory::new(MemoryConfig { packets: 64, small_frames: 1, large_frames: 1 });
    let (ledger, mut now) = (Ledger::new(), Instant::from_micros(1));
    let (mut burst, mut rest) = (Burst::new(), Burst::new());
    let (mut sink, mut sent, mut left) = (Sink { ports, packets: 0 }, 0, 0);
    for number in 0..BURSTS_MAX {
        for place in 0..BURST {
            let station = ((number + place) % usize::from(STATIONS)) as u8;
            let packet = packet(&mut memory, station_mac(station), worker_mac(worker));
            burst.push(packet).expect("room");
        }
        let mut cx = Context { memory: &mut memory, ledger: &ledger, now };
        let before = sink.packets;
        forwarder.refresh();
        forwarder.forward(ports[worker], &mut burst, &mut cx, &mut sink, &mut rest, false);
        assert!(burst.is_empty());
        sent += BURST as u64;
        left += rest.len() as u64;
        rest.clear();
        // Relaxed: only a count.
        if sink.packets >= FORWARDED && changes.load(Ordering::Relaxed) >= CHANGES {
            break;
        }
        if sink.packets == before {
            // The owner was interrupted in the middle of a change.
            thread::yield_now();
        } else {
            now += Duration::from_micros(100);
        }
    }
    let counters = forwarder.counters_of(ports[worker]).expect("a port");
    assert_eq!((counters.packets_in, counters.drops().count()), (sink.packets, 0));
    assert_eq!(sink.packets + left, sent);
    assert_eq!(memory.packets.out_count(), 0);
    sink.packets
}

/// Goal: whatever the owner does meanwhile, a packet leaves by the right port or is left to the
/// owner; and forwarders keep the stations that send through them from ageing.
#[test]
fn forwarders_and_the_owner_run_at_the_same_time() {
    let mut switch = Switch::new(Config { age: AGE, addresses_max: 64, ..Config::default() });
    let config = PortConfig { addresses_max: 16, ..PortConfig::new(Caps::plain(1500)) };
    let ports = [(); WORKERS + 2].map(|()| switch.add_port(config.clone()).expect("room"));
    let (mut memory, ledger) =
        (Memory::new(MemoryConfig { packets: 8, small_frames: 1, large_frames: 1 }), Ledger::new());
    let mut cx = Context { memory: &mut memory, ledger: &ledger, now: Instant::from_micros(1) };
    for station in 0..STATIONS {
        let port = ports[home_of(station)];
        switch.add_station(station_mac(station), Vid::DEFAULT, port, cx.now).expect("room");
    }
    let mut sink = Sink { ports, packets: 0 };
    for (worker, &port) in ports[..WORKERS].iter().enumerate() {
        let mut burst = Burst::new();
        let packet = packet(cx.memory, station_mac(0), worker_mac(worker));
        burst.push(packet).expect("room");
        switch.forward(port, &mut burst, &mut cx, &mut sink);
    }
    let (changes, start) = (AtomicU64::new(0), Barrier::new(WORKERS + 1));
    let (changes, start) = (&changes, &start);
    let forwarded = thread::scope(|scope| {
        let workers = [0, 1].map(|worker| {
            let forwarder = switch.forwarder();
            scope.spawn(move || {
                start.wait();
                work(worker, forwarder, ports, changes)
            })
        });
        start.wait();
        let mut number = 0;
        while number < CHANGES || workers.iter().any(|worker| !worker.is_finished()) {
            // Most stations are there at any time, and places in the table change all the time.
            let station = (number * 7 % u64::from(STATIONS)) as u8;
            let (mac, port) = (station_mac(station), ports[home_of(station)]);
            assert!(switch.remove_station(mac, Vid::DEFAULT));
            switch.add_station(mac, Vid::DEFAULT, port, cx.now).expect("room");
            number += 1;
            // Relaxed: only a count.
            changes.store(number, Ordering::Relaxed);
        }
        workers.map(|worker| worker.join().expect("no false hit"))
    });
    assert!(forwarded.iter().all(|&packets| packets >= FORWARDED), "{forwarded:?}");
    for (worker, &port) in ports[..WORKERS].iter().enumerate() {
        let later = Instant::from_micros(2) + AGE;
        let mut stations = switch.stations(later);
        let found = stations.find(|station| station.mac == worker_mac(worker));
        assert_eq!(found.map(|station| station.port), Some(port), "it was refreshed");
    }
}
