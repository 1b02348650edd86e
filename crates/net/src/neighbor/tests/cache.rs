//! Look-up, bounds and eviction.

use crate::neighbor::{
    Advertisement, Announcement, ENTRIES_MAX, IDLE_TIME, Neighbors, Outgoing, RESOLVING_MAX,
    Resolution, SWEEP_INTERVAL, Station,
};
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_packet::{Memory, MemoryConfig};

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Neighbours, memory for packets, and a clock.
struct Bench {
    neighbors: Neighbors,
    memory: Memory,
    now: Instant,
}

/// How a packet was handled.
#[derive(Debug, PartialEq, Eq)]
enum Sent {
    Known,
    Waits { solicit: bool, dropped: usize, evicted: usize },
}

impl Bench {
    fn new(next_hops: &[IpAddr]) -> Self {
        let memory = MemoryConfig { packets: 2 * ENTRIES_MAX, small_frames: 8, large_frames: 8 };
        let neighbors = Neighbors::new(next_hops, [3, 4]);
        Self { neighbors, memory: Memory::new(memory), now: Instant::from_micros(1_000_000) }
    }

    fn send(&mut self, address: IpAddr) -> Sent {
        let packet = self.memory.packet().expect("enough packets");
        let sent = self.neighbors.resolve(address, Outgoing { packet, mtu: 1500 }, self.now);
        match sent {
            Resolution::Known { .. } => Sent::Known,
            Resolution::Waiting { solicit, dropped, evicted } => {
                Sent::Waits { solicit, dropped, evicted }
            }
        }
    }

    fn learn(&mut self, address: IpAddr, announcement: Announcement) -> usize {
        let station = Station { mac: Some(MAC), port: None };
        self.neighbors.learn(address, station, announcement, self.now).len()
    }

    fn solicited_by(&mut self, address: IpAddr) {
        self.learn(address, Announcement::Solicitation);
    }

    fn answer(&mut self, address: IpAddr) -> usize {
        let message = Advertisement { solicited: true, overrides: true, router: None };
        self.learn(address, Announcement::Advertisement(message))
    }
}

/// Address of a station, in either family.
fn station(number: u32) -> IpAddr {
    let v6 = u128::from(number) | 0xfd00 << 112;
    if number.is_multiple_of(2) {
        IpAddr::V4(Ipv4Addr::from_bits(10 << 24 | number))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(v6))
    }
}

const NEW: Sent = Sent::Waits { solicit: true, dropped: 0, evicted: 0 };
const USED: core::ops::Range<u32> = 0..300;
const ROUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 255, 0, 1));

/// Goal: solicitations from 100,000 addresses evict neither neighbours in use, nor packets that
/// wait, nor a next hop, and are forgotten themselves.
#[test]
fn a_flood_of_solicitations_evicts_nothing_in_use() {
    let mut b = Bench::new(&[ROUTER]);
    b.solicited_by(ROUTER);
    for number in USED {
        b.solicited_by(station(number));
        assert_eq!(b.send(station(number)), Sent::Known);
    }
    let absent = station(900_000);
    assert_eq!(b.send(absent), NEW);
    for number in 1000..101_000 {
        b.now += Duration::from_micros(10);
        b.solicited_by(station(number));
        assert!(b.neighbors.count() <= ENTRIES_MAX);
    }
    assert_eq!(b.send(ROUTER), Sent::Known);
    for number in USED {
        assert_eq!(b.send(station(number)), Sent::Known);
    }
    assert_eq!(b.answer(absent), 1, "the packet still waits");
    // The newest strangers are known.
    assert_eq!(b.send(station(100_999)), Sent::Known);
    assert_eq!(b.send(station(1000)), Sent::Waits { solicit: true, dropped: 0, evicted: 0 });
}

/// Goal: packets to 100,000 absent stations evict only entries of absent stations, and each lost
/// packet is counted.
#[test]
fn a_flood_of_packets_evicts_the_unresolved() {
    let mut b = Bench::new(&[ROUTER]);
    assert_eq!(b.send(ROUTER), NEW);
    for number in USED {
        b.solicited_by(station(number));
        assert_eq!(b.send(station(number)), Sent::Known);
    }
    let mut lost = 0;
    for number in 1000..101_000 {
        b.now += Duration::from_micros(1);
        match b.send(station(number)) {
            Sent::Waits { solicit: true, dropped: 0, evicted } => lost += evicted,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lost, 100_000 - (RESOLVING_MAX - 1));
    assert_eq!(b.memory.packets.out_count(), RESOLVING_MAX);
    assert_eq!(b.answer(ROUTER), 1, "the router's entry stays");
    for number in USED {
        assert_eq!(b.send(station(number)), Sent::Known);
    }
    // The one that was solicited last is the last one to be evicted.
    assert_eq!(b.answer(station(100_999)), 1);
    assert_eq!(b.answer(station(1000)), 0);
}

/// A table in use learns no station, and a search for an idle entry is not repeated at once;
/// packets to be sent evict the least recently used entry.
#[test]
fn a_table_in_use_is_kept() {
    let mut b = Bench::new(&[]);
    for number in 0..ENTRIES_MAX as u32 {
        b.solicited_by(station(number));
        b.now += Duration::from_micros(1);
        assert_eq!(b.send(station(number)), Sent::Known);
    }
    b.solicited_by(station(5000));
    assert_eq!(b.send(station(1)), Sent::Known);
    assert_eq!(b.send(station(5000)), NEW, "not learned, and no packet waited at the evicted one");
    assert_eq!(b.answer(station(5000)), 1);
    assert_eq!(b.send(station(0)), NEW, "the least recently used one was evicted");
    // Entries that were not used for long give way.
    b.now += IDLE_TIME + SWEEP_INTERVAL;
    for number in 6000..6100 {
        b.solicited_by(station(number));
        assert_eq!(b.send(station(number)), Sent::Known);
    }
    assert_eq!(b.neighbors.count(), ENTRIES_MAX);
}

/// Permanent entries are never evicted, even if nothing else is left.
#[test]
fn permanent_entries_fill_the_table() {
    let mut b = Bench::new(&[]);
    assert_eq!(b.send(station(0)), NEW);
    assert_eq!(b.neighbors.set(station(0), MAC), 1, "what waited is counted");
    for number in 1..ENTRIES_MAX as u32 {
        b.neighbors.set(station(number), MAC);
    }
    b.solicited_by(station(5000));
    let dropped = Sent::Waits { solicit: false, dropped: 0, evicted: 1 };
    assert_eq!(b.send(station(5000)), dropped);
    assert_eq!(b.send(station(7)), Sent::Known);
    assert_eq!(b.neighbors.deadline(), None);
    assert_eq!(b.memory.packets.out_count(), 0);
}
