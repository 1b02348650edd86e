//! Packets from the guest, as loans.

use super::super::transmit::{COPY_BYTES_MAX, INLINE_BYTES_MAX, LOAN_TERM, TransmitQueue};
use super::super::{Segment, Stop, feature};
use super::{BASE, BUFFERS, REGION, Random, layouts, pattern, queue, ram};
use crate::tap::FRAME_BYTES_MAX;
use crate::vhost_user::driver::{DriverQueue, GuestRam};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;
use towpath_packet::time::Instant;
use towpath_packet::{
    Burst, Checksum, Context, GsoKind, Ledger, Memory, MemoryConfig, Packet, Site, VirtioHeader,
};

/// Bytes of a guest's buffer in these tests.
const BUFFER: u64 = 0x1_8000;

struct Bench {
    ram: GuestRam,
    driver: DriverQueue,
    device: TransmitQueue,
    memory: Memory,
    ledger: Ledger,
    now: Instant,
    wakes: Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

const OFFLOADS: u64 = feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6 | feature::HOST_USO;

impl Bench {
    fn new(features: u64) -> Self {
        let ram = ram();
        let driver = queue(&ram, 32, features);
        let wakes = Arc::new(Wakes::default());
        let guest = ram.map().expect("mapped twice");
        let waker = Waker::from(wakes.clone());
        let device = TransmitQueue::start(driver.config(), &guest, Some(waker)).expect("proper");
        let config = MemoryConfig { packets: 64, small_frames: 64, large_frames: 64 };
        let now = Instant::START + Duration::from_secs(7);
        let (memory, ledger) = (Memory::new(config), Ledger::new());
        Self { ram, driver, device, memory, ledger, now, wakes }
    }

    /// Sends frame `number` of `bytes` bytes, from the buffer of `slot`.
    fn send(&mut self, number: u64, bytes: usize, slot: u64, header: [u8; 12]) -> bool {
        let address = BUFFERS + BUFFER * slot + 5;
        let frame: Vec<u8> = (0..bytes).map(|at| pattern(number, at)).collect();
        let memory = self.ram.memory();
        memory.write(address, &header).expect("in memory");
        memory.write(address + 12, &frame).expect("in memory");
        // The header and the first bytes in one buffer, the rest in two others.
        let total = 12 + bytes as u32;
        let (first, second) = (total.min(12 + 60), (total.saturating_sub(72)).min(1000));
        let mut segments = vec![Segment { address, bytes: first }];
        let mut at = address + u64::from(first);
        for bytes in [second, total - first - second] {
            if bytes > 0 {
                segments.push(Segment { address: at, bytes });
            }
            at += u64::from(bytes);
        }
        let is_added = self.driver.add(&segments, &[], slot);
        self.driver.publish();
        is_added
    }

    fn receive(&mut self) -> Vec<Packet> {
        let mut burst = Burst::new();
        let Self { device, memory, ledger, now, .. } = self;
        let cx = &mut Context { memory, ledger, now: *now };
        device.take(&mut burst, cx).expect("the ring is good");
        std::iter::from_fn(|| burst.pop()).collect()
    }

    fn used(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.driver.used()).map(|(token, _)| token).collect()
    }

    fn turn(&mut self) -> Option<Instant> {
        self.device.turn(self.now, &self.ledger)
    }
}

fn bytes_of(packet: &Packet, ledger: &Ledger) -> Vec<u8> {
    let mut bytes = vec![0; packet.len()];
    let mut at = packet.headers().len();
    bytes[..at].copy_from_slice(packet.headers());
    for piece in packet.pieces() {
        at += ledger.copy(Site::Linearise, piece, &mut bytes[at..]);
    }
    assert_eq!(at, packet.len());
    bytes
}

/// Goal: frames of every size arrive as they were sent, large ones without a copy, and each buffer
/// is returned when its packet is dropped, in any order.
#[test]
fn packets_are_what_the_guest_sent() {
    let sizes = [14, 60, 256, 257, 1514, 4096, 9000, 65_549, FRAME_BYTES_MAX];
    for (features, seed) in layouts().flat_map(|f| (0..3).map(move |seed| (f, seed))) {
        let mut bench = Bench::new(features | OFFLOADS);
        let mut random = Random(seed);
        let mut free: Vec<u64> = (0..7).collect();
        let mut held: Vec<(u64, usize, Packet, u64)> = Vec::new();
        let (mut lent, mut copied) = (0, 0);
        for number in 0..400u64 {
            if let Some(slot) = (!free.is_empty()).then(|| free.swap_remove(0)) {
                let bytes = sizes[random.below(sizes.len())];
                assert!(bench.send(number, bytes, slot, [0; 12]), "{features:#x}");
                let mut packets = bench.receive();
                let counters = bench.device.counters();
                assert_eq!(packets.len(), 1, "{bytes} bytes, {features:#x}, {counters:?}");
                let packet = packets.remove(0);
                // Neither a recall nor a shortage of the ring may have made it a copy.
                let is_lent = packet.pieces().all(|piece| piece.is_foreign());
                assert_eq!(is_lent, bytes > COPY_BYTES_MAX, "{bytes} bytes, {features:#x}");
                copied += if is_lent { 0 } else { bytes };
                lent += u64::from(is_lent);
                held.push((number, bytes, packet, slot));
            } else {
                let (number, bytes, packet, _) = held.swap_remove(random.below(held.len()));
                let all = bytes_of(&packet, &bench.ledger);
                assert!(all.iter().enumerate().all(|(at, &byte)| byte == pattern(number, at)));
                assert_eq!(all.len(), bytes);
                drop(packet);
            }
            bench.turn();
            for slot in bench.used() {
                assert!(!free.contains(&slot), "returned once");
                free.push(slot);
            }
        }
        assert_eq!(bench.ledger.copied_at(Site::GuestSmall), copied as u64);
        assert_eq!(bench.ledger.copied_at(Site::Recall), 0);
        assert_eq!((bench.device.counters().lent, bench.device.counters().recalled), (lent, 0));
        held.clear();
        bench.turn();
        bench.used();
        assert_eq!((bench.driver.out_count(), bench.device.lent_count()), (0, 0));
        assert_eq!(bench.memory.packets.out_count(), 0);
    }
}

/// Goal: for an owner that forwards by headers, each frame that fits is whole in its packet,
/// however the chain is split. It uses no pool frame, keeps its order among lent ones, and its
/// buffers are returned before the packet is dropped. Other frames are not affected.
#[test]
fn short_frames_come_inline() {
    let sizes = [14, 15, 59, 60, 61, 128, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 256, 257, 1514];
    for (features, is_cut) in layouts().flat_map(|features| [(features, false), (features, true)]) {
        let mut bench = Bench::new(features | OFFLOADS);
        bench.device.set_inline();
        // One after the other: a ring of 32 descriptors without tables has room for few.
        let (mut held, mut inlined) = (Vec::new(), 0);
        for (slot, bytes) in (0..).zip(sizes) {
            // At the end of a region, so that the frame continues in the next.
            let address = if is_cut { BASE + REGION - 40 } else { BUFFERS + BUFFER * slot };
            let frame: Vec<u8> = (0..bytes).map(|at| pattern(slot, at)).collect();
            let memory = bench.ram.memory();
            memory.write(address, &[0; 12]).unwrap();
            memory.write(address + 12, &frame).unwrap();
            let segments = [Segment { address, bytes: 12 + bytes as u32 }];
            assert!(bench.driver.add(&segments, &[], slot));
            bench.driver.publish();
            let mut packets = bench.receive();
            let packet = packets.pop().expect("a packet");
            let is_inline = bytes <= INLINE_BYTES_MAX;
            assert_eq!((packet.is_inline(), packet.piece_count() == 0), (is_inline, is_inline));
            assert_eq!(bytes_of(&packet, &bench.ledger), frame, "{bytes} bytes, {features:#x}");
            let is_back = bench.used() == [slot];
            assert_eq!(is_back, bytes <= COPY_BYTES_MAX, "{bytes} bytes, {features:#x}");
            // Later writes of the guest change nothing.
            if is_inline {
                bench.ram.memory().write(address, &[0xff; 80]).unwrap();
                assert_eq!(packet.headers(), frame);
                inlined += 1;
            }
            held.push(packet);
            if is_cut {
                // The same buffer is used again.
                held.clear();
                bench.turn();
                bench.used();
            }
        }
        assert_eq!(inlined, 7);
        let copied: usize = sizes.iter().filter(|&&bytes| bytes <= COPY_BYTES_MAX).sum();
        assert_eq!(bench.ledger.copied_at(Site::GuestSmall), copied as u64);
        if !is_cut {
            assert_eq!(bench.memory.small.out_count(), 2, "for two of them");
        }
    }
}

/// Goal: a burst of inline and lent packets is in the guest's order, each with its own offload
/// fields; super-packets are not inline; chains of several buffers are joined.
#[test]
fn inline_packets_keep_order_and_offload_fields() {
    for features in layouts() {
        let mut bench = Bench::new(features | OFFLOADS);
        bench.device.set_inline();
        let partial = Checksum::Partial { start: 34, offset: 6 };
        let mut gso = [0; 12];
        (gso[0], gso[1], gso[4], gso[6], gso[8]) = (1, 1, 100, 34, 16);
        let mut checksum = [0; 12];
        (checksum[0], checksum[6], checksum[8]) = (1, 34, 6);
        // Two of these lie in one buffer, the others in two or three.
        let sent = [(60, [0; 12]), (150, checksum), (2000, [0; 12]), (180, gso), (59, checksum)];
        for (number, (bytes, header)) in (0..).zip(sent) {
            assert!(bench.send(number, bytes, number, header), "{features:#x}");
        }
        let packets = bench.receive();
        assert_eq!(packets.len(), sent.len());
        for (number, (packet, (bytes, header))) in (0..).zip(packets.iter().zip(sent)) {
            let expected: Vec<u8> = (0..bytes).map(|at| pattern(number, at)).collect();
            assert_eq!(bytes_of(packet, &bench.ledger), expected, "{number}, {features:#x}");
            let is_super = header == gso;
            assert_eq!(packet.is_inline(), bytes <= INLINE_BYTES_MAX && !is_super, "{number}");
            assert_eq!(packet.offload().gso.is_some(), is_super);
            let is_partial = packet.offload().checksum == partial;
            assert_eq!(is_partial, header == checksum, "{number}, {features:#x}");
        }
    }
}

/// Goal: invalid packets are dropped and counted, as without inline frames. Tried: no Ethernet
/// header, a checksum past the end of the frame, one that was not negotiated, an unknown kind of
/// super-packet.
#[test]
fn wrong_short_frames_are_not_inline() {
    let mut beyond = [0; 12];
    (beyond[0], beyond[6], beyond[8]) = (1, 50, 9);
    let mut unknown = [0; 12];
    unknown[1] = 9;
    for features in layouts() {
        let mut bench = Bench::new(features | feature::CSUM);
        bench.device.set_inline();
        for (slot, (bytes, header)) in
            (0..).zip([(13, [0; 12]), (60, beyond), (60, unknown), (14, [0; 12])])
        {
            assert!(bench.send(slot, bytes, slot, header));
        }
        let packets = bench.receive();
        assert_eq!(packets.iter().map(Packet::len).collect::<Vec<_>>(), [14]);
        let counters = bench.device.counters();
        assert_eq!((counters.short, counters.bad_header, counters.packets), (1, 2, 1));
        assert_eq!(bench.used(), [0, 1, 2, 3], "each buffer is back");
        let mut bench = Bench::new(features);
        bench.device.set_inline();
        let mut fitting = beyond;
        fitting[6] = 40;
        assert!(bench.send(0, 60, 0, fitting));
        assert!(bench.receive().is_empty());
        assert_eq!(bench.device.counters().bad_header, 1);
    }
}

/// Goal: a loan ends after its term, with the bytes of that time, and its packet continues to
/// exist.
#[test]
fn a_loan_ends_with_its_term() {
    for features in layouts() {
        let mut bench = Bench::new(features);
        assert!(bench.send(1, 5000, 0, [0; 12]));
        let packets = bench.receive();
        let begun = bench.now;
        assert_eq!(bench.turn(), Some(begun + LOAN_TERM));
        bench.now += LOAN_TERM - Duration::from_micros(1);
        bench.turn();
        assert_eq!(bench.used(), []);
        bench.now = begun + LOAN_TERM;
        assert_eq!(bench.turn(), None);
        assert_eq!(bench.used(), [0], "the guest has its buffer back");
        assert_eq!(bench.device.counters().recalled, 1);
        bench.ram.memory().write(BUFFERS, &[0; 6000]).unwrap();
        let all = bytes_of(&packets[0], &bench.ledger);
        assert!(all.iter().enumerate().all(|(at, &byte)| byte == pattern(1, at)));
        drop(packets);
        bench.turn();
        assert_eq!(bench.used(), [], "returned once");
    }
}

/// Goal: a holder of all packets does not stop the guest: beyond three quarters of the ring, the
/// oldest loans end.
#[test]
fn a_ring_is_not_starved_by_held_packets() {
    let mut bench = Bench::new(feature::INDIRECT);
    let mut held = Vec::new();
    let mut returned = 0;
    for number in 0..200u64 {
        // The same buffer for all: only the ring matters.
        let segments = [Segment { address: BUFFERS, bytes: 1514 }];
        assert!(bench.driver.add(&segments, &[], number), "there is room, packet {number}");
        bench.driver.publish();
        held.extend(bench.receive());
        if held.len() > 50 {
            held.drain(..25);
        }
        returned += bench.used().len();
        assert!(bench.driver.out_count() <= 32 * 3 / 4 + 1);
    }
    assert!(returned > 150, "{returned}");
    assert!(bench.device.counters().recalled > 20);
    assert_eq!(bench.device.counters().packets, 200);
}

/// Goal: a queue that stops has returned all its buffers; packets still held show copies.
#[test]
fn stopping_ends_all_loans() {
    for features in layouts() {
        let mut bench = Bench::new(features);
        for slot in 0..5 {
            assert!(bench.send(slot, 1000 + slot as usize, slot, [0; 12]));
        }
        let packets = bench.receive();
        assert_eq!((packets.len(), bench.device.lent_count()), (5, 5));
        let Stop::Done(base) = bench.device.stop(&bench.ledger) else { panic!("nobody reads") };
        assert_eq!(bench.used().len(), 5);
        bench.ram.memory().write(BUFFERS, &vec![0xff; 5 * BUFFER as usize]).unwrap();
        for (number, packet) in packets.iter().enumerate() {
            let all = bytes_of(packet, &bench.ledger);
            let is_right = |(at, &byte): (usize, &u8)| byte == pattern(number as u64, at);
            assert!(all.iter().enumerate().all(is_right));
        }
        // A new process starts where this one ended; packets outlive the queue and the guest.
        let config = super::super::QueueConfig { base, ..bench.driver.config() };
        bench.device = TransmitQueue::start(config, &bench.ram.map().unwrap(), None).unwrap();
        assert!(bench.send(7, 300, 7, [0; 12]));
        assert_eq!(bench.receive().len(), 1);
        drop(bench);
        drop(packets);
    }
}

/// Goal: while a packet is being read, its memory is not returned, and `stop` reports that.
#[test]
fn a_reader_is_waited_for() {
    let mut bench = Bench::new(0);
    assert!(bench.send(0, 1000, 0, [0; 12]));
    let packets = bench.receive();
    let piece = packets[0].pieces().next().expect("a piece");
    let pin = piece.pin();
    assert_eq!(bench.device.stop(&bench.ledger), Stop::Busy);
    bench.now += LOAN_TERM;
    assert!(bench.turn().is_some_and(|retry| retry > bench.now), "asked again");
    let next = bench.device.next_deadline();
    assert!(next.is_some_and(|next| next > bench.now), "not over and over: {next:?}");
    assert_eq!(bench.used(), []);
    drop(pin);
    assert!(matches!(bench.device.stop(&bench.ledger), Stop::Done(_)));
    assert_eq!(bench.used(), [0]);
}

/// Goal: the first loan that ends while the owner sleeps wakes it, and no other does.
#[test]
fn the_owner_is_woken_once() {
    let mut bench = Bench::new(0);
    for slot in 0..3 {
        assert!(bench.send(slot, 1000, slot, [0; 12]));
    }
    let mut packets = bench.receive();
    let wakes = bench.wakes.clone();
    packets.pop();
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "it is awake");
    assert!(bench.device.enable_kicks(), "a loan has ended already");
    bench.turn();
    assert!(!bench.device.enable_kicks());
    std::thread::spawn(move || drop(packets)).join().expect("it ends");
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    bench.turn();
    assert_eq!(bench.used().len(), 3);
}

/// Goal: what the guest claims reaches the packet if it was negotiated; otherwise the packet is
/// dropped and counted. Bad input tried: no Ethernet header, too long, unknown kinds, sizes of
/// zero, offsets past the end, claims that were not negotiated, tunnels, which cannot be
/// negotiated.
#[test]
fn headers_that_lie_are_dropped_and_counted() {
    let header = |flags: u8, kind: u8, size: u16, start: u16, offset: u16| {
        let mut bytes = [0; 12];
        (bytes[0], bytes[1]) = (flags, kind);
        // A hint that must not be trusted.
        bytes[2..4].copy_from_slice(&0xffffu16.to_le_bytes());
        bytes[4..6].copy_from_slice(&size.to_le_bytes());
        bytes[6..8].copy_from_slice(&start.to_le_bytes());
        bytes[8..10].copy_from_slice(&offset.to_le_bytes());
        bytes
    };
    let plain = header(0, 0, 0, 0, 0);
    let bad = |c: &crate::vhost_user::virtq::transmit::TransmitCounters| {
        (c.packets, c.short, c.long, c.bad_header)
    };
    let cases = [
        (OFFLOADS, 13, plain, (0, 1, 0, 0)),
        (OFFLOADS, 0, plain, (0, 1, 0, 0)),
        (OFFLOADS, FRAME_BYTES_MAX + 1, plain, (0, 0, 1, 0)),
        (OFFLOADS, 100, header(1, 0, 0, 34, 64), (1, 0, 0, 0)),
        (OFFLOADS, 100, header(1, 0, 0, 34, 65), (0, 0, 0, 1)),
        (OFFLOADS, 100, header(1, 0, 0, 0xffff, 0xffff), (0, 0, 0, 1)),
        (OFFLOADS, 3000, header(1, 1, 0, 34, 16), (0, 0, 0, 1)),
        (OFFLOADS, 3000, header(1, 1, 0xffff, 34, 16), (0, 0, 0, 1)),
        (OFFLOADS, 3000, header(1, 3, 1000, 34, 16), (0, 0, 0, 1)),
        (OFFLOADS, 3000, header(1, 0x7f, 1000, 34, 16), (0, 0, 0, 1)),
        (OFFLOADS, 3000, header(1, 0x21, 1000, 34, 16), (0, 0, 0, 1)),
        (OFFLOADS, 3000, header(9, 0x41, 1000, 34, 16), (0, 0, 0, 1)),
        (OFFLOADS, 3000, header(1, 1, 1000, 34, 16), (1, 0, 0, 0)),
        (OFFLOADS, 3000, header(1, 0x81, 1000, 34, 16), (0, 0, 0, 1)),
        (OFFLOADS | feature::HOST_ECN, 3000, header(1, 0x81, 1000, 34, 16), (1, 0, 0, 0)),
        (OFFLOADS | feature::HOST_ECN, 3000, header(1, 0x85, 1000, 34, 6), (0, 0, 0, 1)),
        (OFFLOADS, 3000, header(1, 5, 1000, 34, 6), (1, 0, 0, 0)),
        (0, 100, header(1, 0, 0, 34, 16), (0, 0, 0, 1)),
        (feature::CSUM, 3000, header(1, 4, 1000, 34, 16), (0, 0, 0, 1)),
    ];
    for (features, bytes, header, counted) in cases {
        let mut bench = Bench::new(features);
        assert!(bench.send(0, bytes, 0, header));
        let packets = bench.receive();
        let counters = *bench.device.counters();
        assert_eq!(bad(&counters), counted, "{bytes} bytes, header {header:?}");
        assert_eq!(packets.len() as u64, counted.0);
        if packets.is_empty() {
            assert_eq!(bench.used(), [0], "the buffer returns at once");
        } else {
            let claimed = VirtioHeader(header).decode().expect("good ones decode");
            assert_eq!(*packets[0].offload(), claimed);
            assert!(claimed.gso.is_none_or(|gso| gso.kind != GsoKind::Tcp6));
        }
    }
    let mut bench = Bench::new(OFFLOADS);
    assert!(bench.send(0, 100, 0, header(2, 0, 0, 0, 0)));
    assert_eq!(bench.receive()[0].offload().checksum, Checksum::None, "the guest may not claim it");
}

/// Goal: without memory nothing is taken, and nothing is lost.
#[test]
fn short_memory_leaves_packets_in_the_ring() {
    for (packets, small_frames) in [(64, 2), (2, 64)] {
        let mut bench = Bench::new(0);
        bench.memory = Memory::new(MemoryConfig { packets, small_frames, large_frames: 1 });
        for slot in 0..5 {
            assert!(bench.send(slot, 100, slot, [0; 12]));
        }
        let mut received = Vec::new();
        while received.len() < 5 {
            let some = bench.receive();
            assert!(!some.is_empty(), "memory came back");
            let numbers = some.iter().map(|packet| bytes_of(packet, &bench.ledger)[0]);
            received.extend(numbers);
        }
        let expected: Vec<u8> = (0..5).map(|number| pattern(number, 0)).collect();
        assert_eq!(received, expected);
        assert!(bench.device.counters().paused > 0);
    }
}

/// Goal: a disabled queue takes and returns what is sent.
#[test]
fn a_disabled_queue_drops() {
    let mut bench = Bench::new(0);
    for slot in 0..5 {
        assert!(bench.send(slot, 1000, slot, [0; 12]));
    }
    bench.device.discard().expect("the ring is good");
    assert_eq!(bench.used().len(), 5);
    assert_eq!(bench.device.counters().discarded, 5);
}

/// Goal: a buffer that crosses from one region to the next is lent as two pieces.
#[test]
fn a_buffer_may_cross_regions() {
    let mut bench = Bench::new(0);
    let border = BASE + REGION;
    let frame: Vec<u8> = (0..2000).map(|at| pattern(3, at)).collect();
    bench.ram.memory().write(border - 1012, &[0; 12]).unwrap();
    bench.ram.memory().write(border - 1000, &frame).unwrap();
    assert!(bench.driver.add(&[Segment { address: border - 1012, bytes: 2012 }], &[], 0));
    bench.driver.publish();
    let packets = bench.receive();
    assert_eq!(packets[0].piece_count(), 2);
    assert_eq!(bytes_of(&packets[0], &bench.ledger), frame);
    drop(packets);
    bench.turn();
    assert_eq!(bench.used(), [0]);
}

/// Goal: packets that another thread reads and drops are returned once each, with the right bytes,
/// while their loans are recalled at the same time.
#[test]
fn another_thread_may_read_and_drop() {
    for features in [0, feature::PACKED | feature::INDIRECT | feature::EVENT_INDEX] {
        let mut bench = Bench::new(features);
        let (hand, take) = std::sync::mpsc::sync_channel::<(u64, Packet)>(16);
        let reader = std::thread::spawn(move || {
            let ledger = Ledger::new();
            let mut count = 0u64;
            for (number, packet) in take {
                let all = bytes_of(&packet, &ledger);
                assert!(all.iter().enumerate().all(|(at, &byte)| byte == pattern(number, at)));
                count += 1;
            }
            count
        });
        let mut free: Vec<u64> = (0..6).collect();
        let (mut number, mut idle) = (0u64, 0u32);
        while number < 3000 {
            if let Some(slot) = free.pop() {
                assert!(bench.send(number, 300 + number as usize % 1200, slot, [0; 12]));
                let packet = bench.receive().pop().expect("there is memory");
                hand.send((number, packet)).expect("the reader is there");
                number += 1;
            }
            // Every other turn is late enough to recall everything.
            bench.now += LOAN_TERM / 2;
            bench.turn();
            let used = bench.used();
            idle = if used.is_empty() { idle + 1 } else { 0 };
            assert!(idle < 10_000_000, "loans end");
            free.extend(used);
        }
        drop(hand);
        assert_eq!(reader.join().expect("all bytes are right"), 3000);
        bench.turn();
        free.extend(bench.used());
        free.sort_unstable();
        assert_eq!(free, [0, 1, 2, 3, 4, 5], "each buffer returned once");
        assert_eq!((bench.device.lent_count(), bench.driver.out_count()), (0, 0));
    }
}
