//! Packets copied into the guest's buffers.

use super::super::receive::ReceiveQueue;
use super::super::{Broken, Segment, feature};
use super::{BUFFERS, Random, layouts, pattern, queue, ram};
use crate::vhost_user::driver::{DriverQueue, GuestRam};
use std::num::NonZeroU16;
use towpath_packet::time::Instant;
use towpath_packet::{
    Burst, Checksum, Context, Gso, GsoKind, Ledger, Memory, MemoryConfig, Offload, Packet, Site,
    Tunnel, VirtioHeader,
};

struct Bench {
    ram: GuestRam,
    driver: DriverQueue,
    device: ReceiveQueue,
    memory: Memory,
    ledger: Ledger,
}

const OFFLOADS: u64 = feature::GUEST_CSUM | feature::GUEST_TSO4;

impl Bench {
    fn new(features: u64) -> Self {
        let ram = ram();
        let driver = queue(&ram, 32, features);
        let device = ReceiveQueue::start(driver.config(), &ram.map().unwrap()).expect("proper");
        let config = MemoryConfig { packets: 64, small_frames: 64, large_frames: 64 };
        let (memory, ledger) = (Memory::new(config), Ledger::new());
        Self { ram, driver, device, memory, ledger }
    }

    /// Makes a buffer of `bytes` bytes available, as two halves if it is longer than a byte.
    fn offer(&mut self, token: u64, bytes: u32) -> bool {
        let address = BUFFERS + token * 0x4000;
        let half = bytes / 2;
        let halves = [(address, half), (address + u64::from(half), bytes - half)];
        let segments = halves.map(|(address, bytes)| Segment { address, bytes });
        let from = usize::from(half == 0);
        let is_added = self.driver.add(&[], &segments[from..], token);
        self.driver.publish();
        is_added
    }

    /// A packet of `bytes` bytes: 54 of them private headers, the rest in frames.
    fn packet(&mut self, number: u64, bytes: usize) -> Packet {
        let mut packet = self.memory.packet().expect("enough packets");
        let all: Vec<u8> = (0..bytes).map(|at| pattern(number, at)).collect();
        let (headers, mut payload) = all.split_at(54.min(bytes));
        while !payload.is_empty() {
            let mut frame = self.memory.large.take().expect("enough frames");
            let count = payload.len().min(frame.len());
            frame[..count].copy_from_slice(&payload[..count]);
            packet.push_piece(frame.freeze(count)).expect("room");
            payload = &payload[count..];
        }
        packet.push_header(headers.len()).copy_from_slice(headers);
        packet
    }

    /// Transmits packets; returns those left over.
    fn transmit(&mut self, packets: Vec<Packet>) -> Result<Burst, Broken> {
        let mut burst = Burst::new();
        for packet in packets {
            burst.push(packet).expect("few packets");
        }
        self.deliver(&mut burst)?;
        Ok(burst)
    }

    fn deliver(&mut self, burst: &mut Burst) -> Result<(), Broken> {
        let Self { device, memory, ledger, .. } = self;
        device.deliver(burst, &mut Context { memory, ledger, now: Instant::START })
    }

    /// The next packet that the driver receives: header, frame, buffers.
    fn received(&mut self) -> Option<(VirtioHeader, Vec<u8>, Vec<u64>)> {
        let mut bytes = Vec::new();
        let mut tokens = Vec::new();
        let mut count = 1;
        while tokens.len() < count {
            let (token, written) = self.driver.used()?;
            let mut part = vec![0; written as usize];
            self.ram.memory().read(BUFFERS + token * 0x4000, &mut part).expect("in memory");
            bytes.extend(part);
            tokens.push(token);
            count = usize::from(u16::from_le_bytes([bytes[10], bytes[11]]));
        }
        let header = VirtioHeader(bytes[..12].try_into().expect("twelve bytes"));
        Some((header, bytes[12..].to_vec(), tokens))
    }
}

/// Goal: packets of every size arrive whole and in order, merged or not; each buffer is returned
/// once, and payload is copied once.
#[test]
fn packets_arrive_as_they_were_sent() {
    for (features, mergeable) in layouts().flat_map(|f| [(f, false), (f, true)]) {
        let bits = features | if mergeable { feature::MRG_RXBUF } else { 0 };
        let mut bench = Bench::new(bits);
        let mut random = Random(1);
        let mut free: Vec<u64> = (0..14).collect();
        let mut payload = 0;
        for number in 0..300 {
            while let Some(token) = free.pop() {
                let bytes = if mergeable { 1536 } else { 0x4000 };
                if !bench.offer(token, bytes) {
                    free.push(token);
                    break;
                }
            }
            let bytes = 14 + random.below(9000);
            let packet = bench.packet(number, bytes);
            let left = bench.transmit(vec![packet]).expect("the ring is good");
            assert!(left.is_empty());
            payload += bytes.saturating_sub(54) as u64;
            let (header, frame, tokens) = bench.received().expect("a packet");
            assert_eq!(header.0[..10], [0; 10]);
            let chunks = if mergeable { (12 + bytes).div_ceil(1536) } else { 1 };
            assert_eq!(tokens.len(), chunks, "features {bits:#x}");
            assert_eq!(frame.len(), bytes);
            assert!(frame.iter().enumerate().all(|(at, &byte)| byte == pattern(number, at)));
            free.extend(tokens);
        }
        assert_eq!(bench.ledger.copied_at(Site::Guest), payload);
        assert_eq!(bench.device.counters().packets, 300);
        assert_eq!(bench.memory.packets.out_count(), 0);
    }
}

/// Goal: inline packets arrive whole and in order among others, in one or several buffers, with
/// their offload fields. All of their bytes count as copied.
#[test]
fn inline_packets_arrive() {
    let partial = Offload { checksum: Checksum::Partial { start: 34, offset: 6 }, gso: None };
    for features in layouts() {
        let mut bench = Bench::new(features | OFFLOADS | feature::MRG_RXBUF);
        let buffers = [100, 1000, 50, 60, 60, 1000, 1000];
        for (token, bytes) in (0..).zip(buffers) {
            assert!(bench.offer(token, bytes) || features & feature::INDIRECT == 0);
        }
        let mut packets = Vec::new();
        for (number, bytes) in (0..).zip([88, 192, 150, 300]) {
            let mut packet = bench.packet(number, bytes);
            if bytes <= 192 {
                let frame: Vec<u8> = (0..bytes).map(|at| pattern(number, at)).collect();
                packet.clear();
                packet.fill_inline(bytes, |place| place.copy_from_slice(&frame));
                packet.set_offload(if number == 1 { partial } else { Offload::default() });
            }
            packets.push(packet);
        }
        assert!(bench.transmit(packets).expect("the ring is good").is_empty());
        let expected = [(88, vec![0]), (192, vec![1]), (150, vec![2, 3, 4]), (300, vec![5])];
        for (number, (bytes, tokens)) in (0..).zip(expected) {
            let (header, frame, found) = bench.received().expect("a packet");
            assert_eq!((frame.len(), found), (bytes, tokens), "{features:#x}");
            assert!(frame.iter().enumerate().all(|(at, &byte)| byte == pattern(number, at)));
            let offload = if number == 1 { partial } else { Offload::default() };
            assert_eq!(header.decode(), Ok(offload));
        }
        assert_eq!(bench.ledger.copied_at(Site::Guest), 88 + 192 + 150 + (300 - 54));
        assert_eq!(bench.memory.packets.out_count(), 0);
    }
}

/// Goal: a packet that does not fit now waits; one that can never fit is dropped and counted, and
/// uses no buffer.
#[test]
fn packets_wait_for_buffers_and_no_longer() {
    for features in layouts() {
        let mut bench = Bench::new(features | feature::MRG_RXBUF);
        for token in 0..3 {
            assert!(bench.offer(token, 1000));
        }
        let packets = [2900, 100, 100].map(|bytes| bench.packet(bytes as u64, bytes)).into();
        let mut left = bench.transmit(packets).expect("the ring is good");
        assert_eq!((left.len(), bench.device.counters().full), (2, 1));
        assert!(!bench.device.enable_kicks());
        assert!(bench.offer(3, 1000));
        assert!(bench.device.enable_kicks(), "there are buffers again");
        bench.deliver(&mut left).expect("the ring is good");
        assert_eq!(left.len(), 1);
        let sizes: Vec<_> = std::iter::from_fn(|| bench.received()).map(|r| r.1.len()).collect();
        assert_eq!(sizes, [2900, 100]);

        let mut bench = Bench::new(features);
        for token in 0..3 {
            assert!(bench.offer(token, 1000));
        }
        let packets = [989, 988, 100].map(|bytes| bench.packet(bytes as u64, bytes)).into();
        assert!(bench.transmit(packets).expect("the ring is good").is_empty());
        assert_eq!(bench.device.counters().too_small, 1);
        let sizes: Vec<_> = std::iter::from_fn(|| bench.received()).map(|r| r.1.len()).collect();
        assert_eq!(sizes, [988, 100]);
    }
    let mut bench = Bench::new(feature::MRG_RXBUF | feature::INDIRECT);
    for token in 0..32 {
        assert!(bench.offer(token, 100));
    }
    let packet = bench.packet(0, 32 * 100 - 11);
    assert!(bench.transmit(vec![packet]).expect("the ring is good").is_empty());
    assert_eq!(bench.device.counters().too_small, 1, "all buffers together are too small");
    let packet = bench.packet(0, 32 * 100 - 12);
    bench.transmit(vec![packet]).expect("the ring is good");
    assert_eq!(bench.received().expect("it fits exactly").2.len(), 32);
}

/// Goal: an owner whose packet waits for more buffers sleeps until there are more.
#[test]
fn buffers_that_are_too_few_do_not_wake() {
    for features in layouts() {
        let mut bench = Bench::new(features | feature::MRG_RXBUF);
        for token in 0..2 {
            assert!(bench.offer(token, 1000));
        }
        let packet = bench.packet(0, 2500);
        let mut left = bench.transmit(vec![packet]).expect("the ring is good");
        assert_eq!(left.len(), 1);
        assert!(!bench.device.enable_kicks(), "nothing new, features {features:#x}");
        let half = [Segment { address: BUFFERS + 2 * 0x4000, bytes: 1000 }];
        assert!(bench.driver.add(&[], &half, 2));
        assert!(bench.driver.publish(), "the device asked for it");
        assert!(bench.device.enable_kicks());
        bench.deliver(&mut left).expect("the ring is good");
        assert_eq!(bench.received().expect("a packet").2, [0, 1, 2]);
    }
}

/// Goal: offload fields reach a driver that negotiated them, and no other.
#[test]
fn offload_fields_are_what_was_agreed() {
    let partial = Checksum::Partial { start: 34, offset: 16 };
    let gso =
        Gso { kind: GsoKind::Tcp4, size: NonZeroU16::new(1448).unwrap(), ecn: true, tunnel: None };
    let large = Offload { checksum: partial, gso: Some(gso) };
    let small = Offload { checksum: partial, gso: None };
    let checked = Offload { checksum: Checksum::Unnecessary, gso: None };
    let unmarked = Offload { gso: Some(Gso { ecn: false, ..gso }), ..large };
    let udp = Offload { gso: Some(Gso { kind: GsoKind::Udp, ecn: false, ..gso }), ..large };
    let tunnel = Tunnel { transport_at: 34, network_at: 64, is_ipv6: false, checksum: false };
    let tunnelled = Offload { gso: Some(Gso { tunnel: Some(tunnel), ..gso }), ..large };
    let cases = [
        (OFFLOADS | feature::GUEST_ECN, tunnelled, None),
        (OFFLOADS | feature::GUEST_ECN, large, Some(large)),
        (OFFLOADS, large, Some(unmarked)),
        (OFFLOADS, small, Some(small)),
        (OFFLOADS, checked, Some(checked)),
        (OFFLOADS, udp, None),
        (feature::GUEST_CSUM | feature::GUEST_USO4 | feature::GUEST_USO6, udp, Some(udp)),
        (feature::GUEST_CSUM, large, None),
        (0, small, None),
        (0, checked, Some(Offload::default())),
    ];
    for (features, offload, expected) in cases {
        let mut bench = Bench::new(features);
        assert!(bench.offer(0, 0x2000));
        let mut packet = bench.packet(1, 4000);
        packet.set_offload(offload);
        assert!(bench.transmit(vec![packet]).expect("the ring is good").is_empty());
        let got = bench.received().map(|(header, ..)| header.decode().expect("it is good"));
        assert_eq!(got, expected);
        assert_eq!(bench.device.counters().refused, u64::from(expected.is_none()));
    }
    let caps = ReceiveQueue::caps(feature::GUEST_TSO4 | feature::GUEST_USO4, 1500);
    assert!(!caps.tso4 && !caps.uso && !caps.checksum, "nothing without checksums");
    let caps = ReceiveQueue::caps(OFFLOADS, 1500);
    assert!(caps.tso4 && !caps.tunnel);
}

/// Goal: a readable buffer breaks a receive queue, and the packet is not lost.
#[test]
fn buffers_of_the_wrong_kind_break_the_queue() {
    for readable in [true, false] {
        let mut bench = Bench::new(0);
        let segment = [Segment { address: BUFFERS, bytes: if readable { 100 } else { 0 } }];
        let (read, write): (&[_], &[_]) = if readable { (&segment, &[]) } else { (&[], &segment) };
        assert!(bench.driver.add(read, write, 0));
        bench.driver.publish();
        let packet = bench.packet(0, 60);
        assert_eq!(bench.transmit(vec![packet]).err(), Some(Broken::Direction));
        assert_eq!(bench.device.broken(), Some(Broken::Direction));
    }
}

/// Goal: packets of a burst stay in order around dropped ones, and each gets its own bytes,
/// although many of them refer to one loan.
#[test]
fn a_burst_arrives_in_order_around_what_is_dropped() {
    for features in layouts() {
        let mut bench = Bench::new(features);
        for token in 0..14 {
            assert!(bench.offer(token, 1000));
        }
        let gso = Gso {
            kind: GsoKind::Tcp4,
            size: NonZeroU16::new(100).unwrap(),
            ecn: false,
            tunnel: None,
        };
        let partial = Checksum::Partial { start: 34, offset: 16 };
        let shared = bench.packet(99, 54 + 9000).pieces().next().expect("payload").clone();
        let packets = (0..16).map(|number| {
            let bytes = if number == 5 { 2000 } else { 300 + number as usize };
            let mut packet = bench.packet(number, bytes);
            if number == 9 {
                packet.set_offload(Offload { checksum: partial, gso: Some(gso) });
            }
            packet.push_piece(shared.slice(100 * number as usize, 200)).expect("room");
            packet
        });
        let packets = packets.collect();
        let left = bench.transmit(packets).expect("the ring is good");
        assert!(left.is_empty());
        assert_eq!((bench.device.counters().too_small, bench.device.counters().refused), (1, 1));
        let numbers = (0..16).filter(|number| ![5, 9].contains(number));
        for (token, number) in numbers.enumerate() {
            let (_, frame, tokens) = bench.received().expect("a packet");
            assert_eq!(tokens, [token as u64]);
            let (own, rest) = frame.split_at(300 + number as usize);
            assert!(own.iter().enumerate().all(|(at, &byte)| byte == pattern(number, at)));
            let at = |at: usize| pattern(99, 54 + 100 * number as usize + at);
            assert!(rest.len() == 200 && (0..200).all(|byte| rest[byte] == at(byte)));
        }
        assert!(bench.received().is_none());
        drop(shared);
        assert_eq!(bench.memory.packets.out_count(), 0);
        assert_eq!(bench.memory.large.out_count(), 0);
    }
}

/// Goal: packets before a chain that breaks the ring arrive; those from there on stay in the burst.
#[test]
fn what_came_before_a_broken_chain_arrives() {
    for features in layouts() {
        let mut bench = Bench::new(features);
        assert!(bench.offer(0, 1000) && bench.offer(1, 1000));
        let readable = [Segment { address: BUFFERS + 2 * 0x4000, bytes: 100 }];
        assert!(bench.driver.add(&readable, &[], 2));
        bench.driver.publish();
        let mut burst = Burst::new();
        for number in 0..4 {
            burst.push(bench.packet(number, 200)).expect("room");
        }
        let result = bench.deliver(&mut burst);
        assert_eq!((result, burst.len()), (Err(Broken::Direction), 2));
        assert_eq!(bench.device.counters().packets, 2);
        let tokens: Vec<_> = std::iter::from_fn(|| bench.received()).map(|r| r.2[0]).collect();
        assert_eq!(tokens, [0, 1]);
        assert_eq!(bench.deliver(&mut burst), Err(Broken::Direction));
        assert_eq!(burst.len(), 2);
    }
}
