//! The switch and its forwarders do not allocate for packets, whatever happens to them.

use std::num::NonZeroU16;

use towpath_net::switch::{Config, Context, Egress, PortConfig, PortId, Switch};
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::ethernet::{self, EtherType};
use towpath_net::wire::{MacAddr, Protocol, ipv4};
use towpath_packet::{
    Burst, Caps, Checksum, Gso, GsoKind, Ledger, Memory, MemoryConfig, Offload, Packet,
};

#[path = "../../packet/tests/support/allocations.rs"]
mod allocations;

/// Takes every second packet of the first burst of a call, and counts.
#[derive(Default)]
struct Sink {
    packets: u64,
}

impl Egress for Sink {
    fn transmit(&mut self, _: PortId, burst: &mut Burst, _: &mut Context<'_>) {
        for _ in 0..burst.len().div_ceil(2) {
            drop(burst.pop());
            self.packets += 1;
        }
    }
}

const PAYLOAD: usize = 9000;

/// A TCP super-packet of nine segments from one station to another.
fn packet(memory: &mut Memory, to: MacAddr, from: MacAddr) -> Packet {
    let mut bytes = vec![0; 54 + PAYLOAD];
    let header = ethernet::Header { destination: to, source: from, ethertype: EtherType::IPV4 };
    header.emit(&mut bytes);
    let ip = ipv4::Header {
        tos: 0,
        ident: 1,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: Protocol::TCP,
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        total_len: (40 + PAYLOAD) as u16,
        header_len: 20,
        has_source_route: false,
    };
    ip.emit(&mut bytes[14..]);
    bytes[46] = 0x50;
    let mut packet = memory.packet().expect("free");
    let mut frame = memory.large.take().expect("free");
    frame[..bytes.len()].copy_from_slice(&bytes);
    packet.push_piece(frame.freeze(bytes.len())).expect("room");
    let gso = Gso {
        kind: GsoKind::Tcp4,
        size: NonZeroU16::new(1000).expect("not 0"),
        ecn: false,
        tunnel: None,
    };
    let checksum = Checksum::Partial { start: 34, offset: 16 };
    packet.set_offload(Offload { checksum, gso: Some(gso) });
    packet
}

/// Goal: no allocation for packets that are learned from, flooded, segmented, checksummed, dropped
/// or rejected by a full queue, nor for stations that appear, move and age out.
#[test]
fn the_data_path_does_not_allocate() {
    let mut memory = Memory::new(MemoryConfig { packets: 512, small_frames: 4, large_frames: 64 });
    let ledger = Ledger::new();
    let mut switch = Switch::new(Config { age: Duration::from_secs(1), ..Config::default() });
    let able = Caps { checksum: true, tso4: true, gso_bytes_max: 65_535, ..Caps::plain(1500) };
    let ports = [able, Caps::plain(1500), Caps::plain(900)]
        .map(|caps| switch.add_port(PortConfig::new(caps)).expect("room"));
    let mut burst = Burst::new();
    let mut sink = Sink::default();
    let mut now = Instant::from_micros(1);
    let mut allocated = 0;
    for round in 0..200u8 {
        let station = |number: u8| MacAddr([2, 0, 0, 0, number % 3, number]);
        for number in 0..16 {
            let to = if number % 4 == 0 { MacAddr::BROADCAST } else { station(number / 4) };
            burst.push(packet(&mut memory, to, station(round + number))).expect("room");
        }
        let from = ports[usize::from(round) % ports.len()];
        let before = allocations::count();
        let mut cx = Context { memory: &mut memory, ledger: &ledger, now };
        switch.forward(from, &mut burst, &mut cx, &mut sink);
        switch.expire(now);
        allocated += allocations::count() - before;
        now += Duration::from_millis(100);
    }
    assert_eq!(allocated, 0);
    assert!(sink.packets > 5000, "{}", sink.packets);
    let counters = ports.map(|id| switch.counters_of(id).expect("a port").clone());
    assert!(counters.iter().all(|counters| counters.learned > 10 && counters.flooded > 10));
    assert!(counters[1].cut > 100 && counters[2].drops().count() > 0);
    assert_eq!((memory.packets.out_count(), memory.large.out_count()), (0, 0));
}

/// Goal: a forwarder does not allocate for packets that it forwards, drops or leaves to the owner,
/// nor to find out that no port has changed.
#[test]
fn a_forwarder_does_not_allocate() {
    let mut memory = Memory::new(MemoryConfig { packets: 512, small_frames: 4, large_frames: 64 });
    let ledger = Ledger::new();
    let mut switch = Switch::new(Config { age: Duration::from_secs(1), ..Config::default() });
    let able = Caps { checksum: true, tso4: true, gso_bytes_max: 65_535, ..Caps::plain(1500) };
    let ports = [able, Caps::plain(1500), Caps::plain(900)]
        .map(|caps| switch.add_port(PortConfig::new(caps)).expect("room"));
    let station = |number: usize| MacAddr([2, 0, 0, 0, 0, number as u8]);
    let (mut burst, mut rest, mut sink) = (Burst::new(), Burst::new(), Sink::default());
    let mut now = Instant::from_micros(1);
    let mut forwarder = switch.forwarder();
    let (mut allocated, mut left) = (0, 0);
    for round in 0..200 {
        let from = round % ports.len();
        for number in 0..16 {
            // Station 3 is unknown; that of the own port is dropped.
            burst.push(packet(&mut memory, station(number % 4), station(from))).expect("room");
        }
        let before = allocations::count();
        let mut cx = Context { memory: &mut memory, ledger: &ledger, now };
        forwarder.refresh();
        forwarder.forward(ports[from], &mut burst, &mut cx, &mut sink, &mut rest, false);
        allocated += allocations::count() - before;
        left += rest.len();
        switch.forward(ports[from], &mut rest, &mut cx, &mut sink);
        now += Duration::from_millis(10);
    }
    assert_eq!(allocated, 0);
    assert!((200 * 4..200 * 16 / 2).contains(&left), "{left}");
    let counters = ports.map(|id| forwarder.counters_of(id).expect("a port").clone());
    assert!(counters[..2].iter().all(|counters| counters.packets_out > 100), "{counters:?}");
    assert!(counters[1].cut > 100 && counters[2].drops().count() > 0);
    assert_eq!((memory.packets.out_count(), memory.large.out_count()), (0, 0));
}
