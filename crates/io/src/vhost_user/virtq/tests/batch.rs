//! Batches of chains: all small rings, and frames of all shapes through the fast paths.

use super::super::batch::{Batch, Kind};
use super::super::receive::ReceiveQueue;
use super::super::transmit::TransmitQueue;
use super::super::{Broken, Queue, QueueConfig, Segment, feature};
use super::{BASE, BUFFERS, REGION, Random, layouts, pattern, queue, ram};
use crate::vhost_user::driver::{DriverQueue, GuestRam};
use crate::vhost_user::memory::{GuestMemory, Lookup};
use rustix::fs::MemfdFlags;
use std::collections::VecDeque;
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Context, Ledger, Memory, MemoryConfig};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// No bound of the length.
const READ: Kind = Kind::Read { bytes_max: usize::MAX };
/// Beyond the guest's memory.
const OUTSIDE: u64 = BASE + 2 * REGION;
/// Positions around those where sixteen bits, or their sign, wrap.
const NEAR_WRAPS: [std::ops::RangeInclusive<u16>; 3] = [0..=6, 0x7ffa..=0x8006, 0xfffa..=u16::MAX];

/// A descriptor as the tests write it: address, length, flags, next one or identifier.
type Written = (u64, u32, u16, u16);

fn put(ram: &GuestRam, at: u64, bytes: &[u8]) {
    ram.memory().write(at, bytes).expect("in memory");
}

fn put_split(ram: &GuestRam, number: u64, (address, bytes, flags, next): Written) {
    let rest = u64::from(bytes) | u64::from(flags) << 32 | u64::from(next) << 48;
    put(ram, BASE + 16 * number, &(u128::from(address) | u128::from(rest) << 64).to_le_bytes());
}

fn put_packed(ram: &GuestRam, number: u64, (address, bytes, flags, id): Written) {
    let rest = u64::from(bytes) | u64::from(id) << 32 | u64::from(flags) << 48;
    put(ram, BASE + 16 * number, &(u128::from(address) | u128::from(rest) << 64).to_le_bytes());
}

/// The chains of the next batch: identifier, address and length. A batch behind some of them has
/// the others, up to as many as it may have.
fn read(device: &mut Queue, kind: Kind) -> Vec<(u16, u64, usize)> {
    let Some((ring, memory)) = device.batches() else { return Vec::new() };
    let (mut lookup, mut batch) = (Lookup::new(memory), Batch::new());
    let mut read = |before, most| -> Vec<_> {
        ring.read(&mut lookup, &mut batch, kind, (before, most));
        batch.chains().iter().map(|chain| (chain.id, chain.address, chain.buffer.len())).collect()
    };
    let chains = read(0, usize::MAX);
    for before in 1..=chains.len() {
        for most in [0, 1, usize::MAX] {
            let others = &chains[before..];
            assert_eq!(read(before, most), others[..most.min(others.len())], "{before} {chains:?}");
        }
    }
    chains
}

/// What [`Queue::take`] must find: the buffers, and how many of them are readable.
type Walked = Result<(Vec<Segment>, usize), Broken>;

/// Follows a chain of a split ring without tables, as virtio 1.2 §2.7.5 describes it.
fn walk(ring: &[Written], head: u16) -> Walked {
    let (mut buffers, mut readable, mut at) = (Vec::new(), 0, head);
    for _ in 0..ring.len() {
        let &(address, bytes, flags, next) = ring.get(usize::from(at)).ok_or(Broken::Descriptor)?;
        if flags & INDIRECT != 0 {
            return Err(Broken::Indirect);
        }
        if flags & WRITE == 0 {
            if readable < buffers.len() {
                return Err(Broken::Direction);
            }
            readable += usize::from(bytes > 0);
        }
        if bytes > 0 {
            if address == OUTSIDE {
                return Err(Broken::Address);
            }
            buffers.push(Segment { address, bytes });
        }
        if flags & NEXT == 0 {
            return Ok((buffers, readable));
        }
        at = next;
    }
    Err(Broken::TooLong)
}

/// Goal: in each split ring of four descriptors, from each head, a chain is what the specification
/// says, or the ring breaks for the first thing that is wrong; and a batch has the chain if it is a
/// single buffer of the right kind, and is empty otherwise. Method: all rings of twelve kinds of
/// descriptors, with an oracle that shares no code with the ring.
#[test]
fn all_small_split_rings_are_read_as_specified() {
    let good = |number: u64| BUFFERS + 64 * number;
    let kinds: [(u32, u16, u16, bool); 12] = [
        (8, 0, 0, true),
        (8, WRITE, 0, true),
        (8, NEXT, 0, true),
        (8, NEXT, 1, true),
        (8, NEXT, 2, true),
        (8, NEXT, 3, true),
        (8, NEXT, 4, true),
        (8, NEXT | WRITE, 1, true),
        (8, NEXT | WRITE, 3, true),
        (16, INDIRECT, 0, true),
        (8, 0, 0, false),
        (0, 0, 0, true),
    ];
    let ram = ram();
    let (config, memory) = (queue(&ram, 4, 0).config(), ram.map().expect("mapped twice"));
    let available = BASE + 64;
    put(&ram, available + 2, &1u16.to_le_bytes());
    let again = || {
        let config = QueueConfig { inflight: None, call: None, ..config };
        Queue::start(config, &memory).expect("a proper queue")
    };
    let mut device = again();
    let start = device.position();
    for ring in 0..12usize.pow(4) {
        let ring: Vec<Written> = (0..4)
            .map(|number| {
                let (bytes, flags, next, inside) = kinds[ring / 12usize.pow(number) % 12];
                let address = if inside { good(u64::from(number)) } else { OUTSIDE };
                (address, bytes, flags, next)
            })
            .collect();
        for (number, descriptor) in (0..).zip(&ring) {
            put_split(&ram, number, *descriptor);
        }
        for head in 0..=4u16 {
            put(&ram, available + 4, &head.to_le_bytes());
            let expected = walk(&ring, head);
            for kind in [READ, Kind::Write] {
                let single = match &expected {
                    Ok((buffers, readable)) if buffers.len() == 1 => {
                        let is_kind = (*readable == 1) == (kind == READ);
                        // Not one that consists of an empty descriptor and another.
                        let is_alone = ring[usize::from(head)].2 & NEXT == 0;
                        (is_kind && is_alone).then_some(buffers[0])
                    }
                    _ => None,
                };
                let single = single.map(|buffer| (head, buffer.address, buffer.bytes as usize));
                let found = read(&mut device, kind);
                assert_eq!(found, Vec::from_iter(single), "{ring:?} from {head}");
            }
            let found = device.take().map(|is_there| {
                assert!(is_there);
                let chain = device.chain();
                let buffers = [chain.readable(), chain.writable()].concat();
                (buffers, chain.readable().len())
            });
            assert_eq!(found, expected, "{ring:?} from {head}");
            if found.is_err() {
                device = again();
            }
            device.seek(start);
        }
    }
}

/// Goal: split rings count correctly wherever their indices wrap: a batch has as many chains as are
/// available, an index beyond the ring breaks it, and used entries are in their places. Method:
/// each size up to four, each position near a wrap of either index, each number of chains.
#[test]
fn indices_of_split_rings_wrap() {
    let near = || NEAR_WRAPS.into_iter().flatten();
    for (size, ahead, next) in [1u16, 2, 4].into_iter().flat_map(|size| {
        (0..=size + 2).flat_map(move |ahead| near().map(move |n| (size, ahead, n)))
    }) {
        let context = format!("size {size}, {ahead} ahead of {next:#x}");
        let ram = ram();
        let (config, memory) = (queue(&ram, size, 0).config(), ram.map().expect("mapped twice"));
        let offset = config.descriptors - BASE;
        let (available, used_ring) = (config.driver - offset, config.device - offset);
        for number in 0..size {
            let buffer = (BUFFERS + u64::from(number) * 64, 8, WRITE, 0);
            put_split(&ram, number.into(), buffer);
            // Entries name the descriptors in the opposite order.
            let head = size - 1 - number;
            put(&ram, available + 4 + 2 * u64::from(number), &head.to_le_bytes());
        }
        put(&ram, available + 2, &next.wrapping_add(ahead).to_le_bytes());
        let used = next.wrapping_mul(3).wrapping_sub(2);
        put(&ram, used_ring + 2, &used.to_le_bytes());
        let config = QueueConfig { base: next.into(), ..config };
        let mut device = Queue::start(config, &memory).expect(&context);
        let found = read(&mut device, Kind::Write);
        if ahead > size {
            assert_eq!((found.len(), device.take()), (0, Err(Broken::Index)), "{context}");
            continue;
        }
        let heads = (0..ahead).map(|step| size - 1 - next.wrapping_add(step) % size);
        let heads: Vec<u16> = heads.collect();
        assert!(found.iter().map(|chain| chain.0).eq(heads.iter().copied()), "{context}");
        let (ring, guest) = device.batches().expect("not broken");
        let (mut lookup, mut batch) = (Lookup::new(guest), Batch::new());
        ring.read(&mut lookup, &mut batch, Kind::Write, (0, ahead.into()));
        for (chain, written) in batch.chains_mut().iter_mut().zip(100..) {
            chain.written = written;
        }
        let count = batch.len();
        ring.pass(&batch, count);
        device.publish();
        assert_eq!(read(&mut device, Kind::Write), [], "{context}");
        assert_eq!(device.base(), u32::from(next.wrapping_add(ahead)), "{context}");
        let mut index = [0; 2];
        ram.memory().read(used_ring + 2, &mut index).expect("in memory");
        assert_eq!(u16::from_le_bytes(index), used.wrapping_add(ahead), "{context}");
        for (step, head) in (0..).zip(heads) {
            let place = u64::from(used.wrapping_add(step) % size);
            let mut entry = [0; 8];
            ram.memory().read(used_ring + 4 + 8 * place, &mut entry).expect("in memory");
            let expected = u64::from(head) | u64::from(100 + step) << 32;
            assert_eq!(u64::from_le_bytes(entry), expected, "{context}");
        }
    }
}

/// Goal: from each position of each packed ring of up to three descriptors, with each number of
/// chains out, a batch has exactly the chains that are available, single and of the right kind; and
/// they are returned in the places, and with the flags, of §2.8.22. Method: all rings of five kinds
/// of descriptors with all four states of their flags, and an oracle.
#[test]
fn all_small_packed_rings_are_read_as_specified() {
    let kinds = [(8, 0), (8, WRITE), (8, NEXT), (16, INDIRECT), (0, WRITE)];
    let states = [0, AVAIL, USED, AVAIL | USED];
    let ram = ram();
    let memory = ram.map().expect("mapped twice");
    for size in 1..=3u16 {
        let config = queue(&ram, size, feature::PACKED).config();
        for number in 0..20usize.pow(size.into()) {
            let ring: Vec<Written> = (0..size)
                .map(|at| {
                    let which = number / 20usize.pow(at.into()) % 20;
                    let (bytes, flags) = kinds[which % 5];
                    let address = BUFFERS + 64 * u64::from(at);
                    (address, bytes, flags | states[which / 5], 40 + at)
                })
                .collect();
            for (next, out) in (0..2 * size).flat_map(|next| (0..=size).map(move |out| (next, out)))
            {
                for (at, descriptor) in (0..).zip(&ring) {
                    put_packed(&ram, at, *descriptor);
                }
                // Two rounds of positions: in the first one the wrap counter is set.
                let bits = |at: u16| (at % size) | (u16::from(is_first_round(at, size)) << 15);
                let used = next + 2 * size - out;
                if bits(used) == 0 && out > 0 {
                    // This upper half means that none are out: see `QueueConfig::base`.
                    continue;
                }
                let base = u32::from(bits(next)) | u32::from(bits(used)) << 16;
                let start = QueueConfig { base, inflight: None, call: None, ..config };
                let mut device = Queue::start(start, &memory).expect("at most size are out");
                for kind in [READ, Kind::Write] {
                    let flags = if kind == Kind::Write { WRITE } else { 0 };
                    let chains = (next..next + size - out).map_while(|at| {
                        let (address, bytes, found, id) = ring[usize::from(at % size)];
                        let wrap = is_first_round(at, size);
                        let wanted = if wrap { AVAIL } else { USED };
                        let is_single = bytes > 0 && found == wanted | flags;
                        is_single.then_some((id, address, bytes as usize))
                    });
                    let found = read(&mut device, kind);
                    assert!(found.into_iter().eq(chains), "{ring:?} at {next}, {out} out");
                }
                check_packed_used(&ram, &mut device, (size, used), &ring);
            }
        }
    }
}

/// Goal: chains that several batches pass, also across the end of a packed ring, are written in
/// their places, and become visible together: the first one is the last to be written. Method: each
/// size up to five, each position, and each number of chains in the first batch and in the second.
#[test]
fn batches_across_the_wrap_become_visible_together() {
    let ram = ram();
    let memory = ram.map().expect("mapped twice");
    let rest_at = |at: u16| {
        let mut bytes = [0; 8];
        ram.memory().read(BASE + 16 * u64::from(at) + 8, &mut bytes).expect("in memory");
        u64::from_le_bytes(bytes)
    };
    for (size, next) in (1..=5u16).flat_map(|size| (0..2 * size).map(move |next| (size, next))) {
        let config = queue(&ram, size, feature::PACKED).config();
        let base = u32::from(next % size) | u32::from(is_first_round(next, size)) << 15;
        for (first, second) in
            (0..=size).flat_map(|first| (0..=size - first).map(move |second| (first, second)))
        {
            let context = format!("size {size}, {first} and {second} from {next}");
            for step in 0..size {
                let at = next + step;
                let state = if is_first_round(at, size) { AVAIL } else { USED };
                let buffer = (BUFFERS + 64 * u64::from(step), 8, WRITE | state, 40 + step);
                put_packed(&ram, (at % size).into(), buffer);
            }
            let before = rest_at(next % size);
            let config = QueueConfig { base, inflight: None, call: None, ..config };
            let mut device = Queue::start(config, &memory).expect(&context);
            let (ring, guest) = device.batches().expect("not broken");
            let (mut lookup, mut batch) = (Lookup::new(guest), Batch::new());
            let mut passed = 0;
            for count in [first, second] {
                ring.read(&mut lookup, &mut batch, Kind::Write, (0, count.into()));
                let ids = batch.chains().iter().map(|chain| chain.id);
                assert!(ids.eq((40 + passed)..(40 + passed + count)), "{context}");
                for (chain, step) in batch.chains_mut().iter_mut().zip(passed..) {
                    chain.written = 100 + u32::from(step);
                }
                ring.pass(&batch, count.into());
                passed += count;
            }
            assert_eq!(rest_at(next % size), before, "{context}: it is not published yet");
            device.publish();
            for step in 0..size {
                let is_first = is_first_round(next + step, size);
                let (bytes, state) = match (step < passed, is_first) {
                    (true, true) => (100 + u64::from(step), AVAIL | USED),
                    (true, false) => (100 + u64::from(step), 0),
                    (false, true) => (8, AVAIL),
                    (false, false) => (8, USED),
                };
                let (id, flags) = (u64::from(40 + step), u64::from(WRITE | state));
                let expected = bytes | id << 32 | flags << 48;
                assert_eq!(rest_at((next + step) % size), expected, "{context}, chain {step}");
            }
        }
    }
}

/// True if a position, counted over all rounds, is in one in which the wrap counter is set.
fn is_first_round(position: u16, size: u16) -> bool {
    (position / size).is_multiple_of(2)
}

/// Passes the writable chains of the next batch, and checks the used descriptors.
fn check_packed_used(
    ram: &GuestRam,
    device: &mut Queue,
    (size, used): (u16, u16),
    ring: &[Written],
) {
    let (inner, guest) = device.batches().expect("not broken");
    let (mut lookup, mut batch) = (Lookup::new(guest), Batch::new());
    inner.read(&mut lookup, &mut batch, Kind::Write, (0, usize::MAX));
    let ids: Vec<u16> = batch.chains().iter().map(|chain| chain.id).collect();
    batch.chains_mut().iter_mut().for_each(|chain| chain.written = 5);
    inner.pass(&batch, ids.len());
    device.publish();
    for at in 0..size {
        let mut bytes = [0; 16];
        ram.memory().read(BASE + 16 * u64::from(at), &mut bytes).expect("in memory");
        let rest = (u128::from_le_bytes(bytes) >> 64) as u64;
        let place = (0..ids.len() as u16).find(|step| (used + step) % size == at);
        let (bytes, flags, id) = match place {
            Some(step) => {
                let wrap = is_first_round(used + step, size);
                let state = if wrap { AVAIL | USED } else { 0 };
                (5, WRITE | state, ids[usize::from(step)])
            }
            None => {
                let (_, bytes, flags, id) = ring[usize::from(at)];
                (bytes, flags, id)
            }
        };
        let expected = u64::from(bytes) | u64::from(id) << 32 | u64::from(flags) << 48;
        assert_eq!(rest, expected, "{ring:?}, used from {used}, descriptor {at}");
    }
}

/// Goal: a batch ends before a buffer that is too long, so that long frames do not make a ring read
/// what it does not use.
#[test]
fn a_batch_ends_before_a_long_buffer() {
    for features in layouts() {
        let ram = ram();
        let mut driver = queue(&ram, 32, features);
        let mut device = Queue::start(driver.config(), &ram.map().unwrap()).expect("proper");
        for (token, bytes) in (0..).zip([64, 100, 101, 64]) {
            assert!(driver.add(&[Segment { address: BUFFERS, bytes }], &[], token));
        }
        driver.publish();
        let found = read(&mut device, Kind::Read { bytes_max: 100 });
        assert!(found.iter().map(|chain| chain.2).eq([64, 100]), "{features:#x}");
        assert_eq!(read(&mut device, Kind::Write), [], "{features:#x}");
        assert_eq!(read(&mut device, READ).len(), 4, "{features:#x}");
    }
}

/// A guest that sends and one that receives, with the queues between them.
struct Pair {
    rams: [GuestRam; 2],
    sender: DriverQueue,
    receiver: DriverQueue,
    transmit: TransmitQueue,
    receive: ReceiveQueue,
    memory: Memory,
    ledger: Ledger,
}

/// Distance between the buffers of a pair.
const STRIDE: u64 = 0x400;

impl Pair {
    fn new(features: u64, sizes: [u16; 2], packets: usize) -> Self {
        let rams = [ram(), ram()];
        let sender = queue(&rams[0], sizes[0], features);
        let receiver = queue(&rams[1], sizes[1], features);
        let map = |ram: &GuestRam| -> GuestMemory { ram.map().expect("mapped twice") };
        let transmit = TransmitQueue::start(sender.config(), &map(&rams[0]), None);
        let mut transmit = transmit.expect("a proper queue");
        transmit.set_inline();
        let receive = ReceiveQueue::start(receiver.config(), &map(&rams[1]));
        let receive = receive.expect("a proper queue");
        let config = MemoryConfig { packets, small_frames: 64, large_frames: 8 };
        let (memory, ledger) = (Memory::new(config), Ledger::new());
        Self { rams, sender, receiver, transmit, receive, memory, ledger }
    }

    /// Buffer `slot` in the guest's memory, of which some cross from one region to the other.
    fn address(slot: u64) -> u64 {
        BASE + REGION - 16 * STRIDE - STRIDE / 16 + STRIDE * slot
    }

    /// Cuts a buffer into one to three descriptors.
    fn cut(random: &mut Random, address: u64, bytes: u32) -> Vec<Segment> {
        let count = [1, 1, 1, 1, 1, 2, 3][random.below(7)];
        let first = if count > 1 { 1 + random.below(bytes as usize - 2) as u32 } else { bytes };
        let mut segments = vec![Segment { address, bytes: first }];
        let (at, left) = (address + u64::from(first), bytes - first);
        if count == 3 && left > 1 {
            segments.push(Segment { address: at, bytes: 1 });
            segments.push(Segment { address: at + 1, bytes: left - 1 });
        } else if left > 0 {
            segments.push(Segment { address: at, bytes: left });
        }
        segments
    }

    fn pass(&mut self, burst: &mut Burst) {
        let Self { transmit, receive, memory, ledger, .. } = self;
        let cx = &mut Context { memory, ledger, now: Instant::START };
        transmit.take(burst, cx).expect("the ring is good");
        receive.deliver(burst, cx).expect("the ring is good");
        transmit.turn(Instant::START, ledger);
    }
}

/// Goal: frames arrive whole and in order, through batches and through what ends them. Method: runs
/// of frames and of receive buffers, in rings that wrap: most are one descriptor in one region,
/// some cross regions, are lists or tables, are longer than an inline frame or have an invalid
/// header; sometimes there are too few receive buffers or packet handles.
#[test]
fn batches_end_at_what_they_cannot_have() {
    for (features, seed) in layouts().flat_map(|f| (0..4).map(move |seed| (f, seed))) {
        let odd = features & feature::PACKED != 0 && seed % 2 == 1;
        let sizes = if odd { [27, 63] } else { [32, 64] };
        let packets = if seed < 2 { 10 } else { 100 };
        let mut pair = Pair::new(features | feature::MRG_RXBUF, sizes, packets);
        let mut random = Random(seed);
        let mut sent: VecDeque<(u64, usize)> = VecDeque::new();
        let mut buffers = [VecDeque::from_iter(0..30), VecDeque::from_iter(0..30)];
        let (mut burst, mut bad, mut arrived) = (Burst::new(), 0, 0u64);
        for number in 0..3000u64 {
            let [free, room] = &mut buffers;
            if let Some(slot) = free.pop_front() {
                let most = [50, 180, 600][random.below(3)];
                let bytes = 14 + random.below(most);
                let address = Pair::address(slot);
                let mut frame: Vec<u8> = (0..bytes).map(|at| pattern(number, at)).collect();
                frame[..8].copy_from_slice(&number.to_le_bytes());
                let is_bad = random.below(20) == 0;
                put(&pair.rams[0], address, &[0, 3 * u8::from(is_bad)]);
                put(&pair.rams[0], address + 2, &[0; 10]);
                put(&pair.rams[0], address + 12, &frame);
                let segments = Pair::cut(&mut random, address, 12 + bytes as u32);
                if pair.sender.add(&segments, &[], slot) {
                    if is_bad { bad += 1 } else { sent.push_back((number, bytes)) }
                } else {
                    free.push_front(slot);
                }
            }
            while random.below(8) != 0
                && let Some(slot) = room.pop_front()
            {
                let segments = Pair::cut(&mut random, Pair::address(slot), 700);
                if !pair.receiver.add(&[], &segments, slot) {
                    room.push_front(slot);
                    break;
                }
            }
            if random.below(9) != 0 && number < 2999 {
                continue;
            }
            pair.sender.publish();
            pair.receiver.publish();
            for _ in 0..40 {
                pair.pass(&mut burst);
                buffers[0].extend(std::iter::from_fn(|| pair.sender.used()).map(|used| used.0));
                while let Some((slot, written)) = pair.receiver.used() {
                    let mut found = vec![0; written as usize];
                    let from = Pair::address(slot);
                    pair.rams[1].memory().read(from, &mut found).expect("in memory");
                    let (number, bytes) = sent.pop_front().expect("nothing else was sent");
                    let context = format!("frame {number}, {features:#x}, seed {seed}");
                    assert_eq!(found.len(), 12 + bytes, "{context}");
                    assert_eq!(found[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], "{context}");
                    assert_eq!(found[12..20], number.to_le_bytes(), "{context}");
                    let mut rest = found[12..].iter().enumerate().skip(8);
                    assert!(rest.all(|(at, &byte)| byte == pattern(number, at)), "{context}");
                    buffers[1].push_back(slot);
                    arrived += 1;
                }
            }
        }
        assert!(arrived > 500, "{arrived} arrived, {features:#x}, seed {seed}");
        assert_eq!(pair.transmit.counters().bad_header, bad, "{features:#x}, seed {seed}");
        assert_eq!(pair.transmit.counters().paused > 0, packets == 10, "{features:#x}");
        drop(burst);
        let out = (pair.memory.packets.out_count(), pair.memory.small.out_count());
        assert_eq!(out, (0, 0), "{features:#x}, seed {seed}");
    }
}

/// Goal: the pages that a batch writes are marked in the dirty log: buffers, and used entries, also
/// those before and behind the end of the ring.
#[test]
fn batches_mark_the_pages_that_they_write() {
    const SIZE: u16 = 1024;
    for features in [0, feature::PACKED] {
        let ram = ram();
        let mut driver = queue(&ram, SIZE, features);
        let mut guest = ram.map().expect("mapped twice");
        let log = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&log, 4096).expect("memory");
        guest.set_log(&log, 4096, 0).expect("mapped");
        let config = QueueConfig { log: true, ..driver.config() };
        let entries = if features == 0 { (config.device, 8) } else { (config.descriptors, 16) };
        let (user, entry_bytes) = entries;
        let used_ring = user - (config.descriptors - BASE);
        let mut device = ReceiveQueue::start(config, &guest).expect("a proper queue");
        let sizes = MemoryConfig { packets: 64, small_frames: 8, large_frames: 8 };
        let (mut memory, ledger) = (Memory::new(sizes), Ledger::new());
        for round in 0..2 * u64::from(SIZE) / 50 {
            rustix::io::pwrite(&log, &[0; 4096], 0).expect("written");
            let mut burst = Burst::new();
            for number in 0..50 {
                let address = BUFFERS + number % 7 * 4096;
                assert!(driver.add(&[], &[Segment { address, bytes: 200 }], 0));
                let mut packet = memory.packet().expect("enough");
                packet.fill_inline(60, |frame| frame.fill(1));
                burst.push(packet).expect("room");
            }
            driver.publish();
            let cx = &mut Context { memory: &mut memory, ledger: &ledger, now: Instant::START };
            device.deliver(&mut burst, cx).expect("the ring is good");
            assert!(burst.is_empty());
            assert_eq!(std::iter::from_fn(|| driver.used()).count(), 50);
            let mut bits = [0; 4096];
            rustix::io::pread(&log, &mut bits, 0).expect("read");
            let is_marked = |address: u64| {
                let page = address as usize / 4096;
                bits[page / 8] & 1 << (page % 8) != 0
            };
            let header = if features == 0 { 4 } else { 0 };
            for step in 0..50 {
                let place = (round * 50 + step) % u64::from(SIZE);
                let at = used_ring + header + entry_bytes * place;
                assert!(is_marked(at) && is_marked(at + entry_bytes - 1), "entry {place}");
            }
            assert!((0..7).all(|page| is_marked(BUFFERS + page * 4096)));
            assert!(!is_marked(BUFFERS + 7 * 4096), "not written");
        }
    }
}
