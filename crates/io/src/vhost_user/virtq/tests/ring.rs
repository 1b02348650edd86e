//! Rings of both layouts: each chain is taken once and returned once.

use super::super::chain::Cursor;
use super::super::{Broken, Head, Queue, QueueConfig, Segment, StartError, feature};
use super::{BASE, BUFFERS, REGION, Random, layouts, pattern, queue, ram};
use crate::vhost_user::driver::{DriverQueue, GuestRam, TABLE_MAX};
use crate::vhost_user::memory::GuestMemory;

/// The chains that the device has, as the driver expects them to be used.
struct Model {
    /// By token, the buffers and the content of a chain.
    out: Vec<Option<Expected>>,
    next: usize,
}

struct Expected {
    number: u64,
    readable: Vec<Segment>,
    writable: Vec<Segment>,
}

/// Splits `bytes` at `address` into buffers of random lengths.
fn cut(random: &mut Random, mut address: u64, bytes: usize, most: usize) -> Vec<Segment> {
    let mut segments = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let take = if segments.len() + 1 == most { left } else { 1 + random.below(left) };
        segments.push(Segment { address, bytes: take as u32 });
        address += take as u64;
        left -= take;
    }
    segments
}

/// Goal: in every layout, chains of any shape are taken as they were added, and are returned in any
/// order, each once, with what the device wrote; and neither side sleeps while the other waits.
/// Method: random steps of both sides; a request for a notification that found nothing must lead to
/// a notification.
#[test]
fn chains_are_taken_and_given_back_once() {
    for (features, seed) in layouts().flat_map(|f| (0..6).map(move |seed| (f, seed))) {
        // The size of a packed ring need not be a power of two.
        let odd = features & feature::PACKED != 0 && seed % 2 == 1;
        let size = if odd { 27 } else { 32 };
        run(features, seed, size);
    }
}

fn run(features: u64, seed: u64, size: u16) {
    let context = format!("features {features:#x}, seed {seed}");
    let (ram, mut random) = (ram(), Random(seed));
    let mut driver = queue(&ram, size, features);
    let memory = ram.map().expect("mapped twice");
    let mut device = Queue::start(driver.config(), &memory).expect("a proper queue");
    let mut model = Model { out: (0..64).map(|_| None).collect(), next: 0 };
    let mut held: Vec<(Head, u64)> = Vec::new();
    let (mut added, mut seen, mut returned) = (0u64, 0u64, 0u64);
    let (mut driver_waits, mut device_waits) = (false, false);
    for step in 0..3000 {
        let is_end = step >= 2500;
        match random.below(6) {
            0 | 1 if !is_end => {
                let mut fresh = false;
                for _ in 0..1 + random.below(3) {
                    fresh |= offer(&ram, &mut driver, &mut model, &mut random, &mut added);
                }
                let kick = driver.publish();
                assert!(kick || !fresh || !device_waits, "the device wakes, {context}");
                device_waits &= !fresh;
            }
            2 => {
                for _ in 0..random.below(4) {
                    if !device.take().expect(&context) {
                        break;
                    }
                    let (head, number) = take(&memory, &mut device);
                    assert_eq!(number, seen, "chains come in order, {context}");
                    seen += 1;
                    held.push((head, number));
                }
            }
            3 => {
                let count = if is_end { held.len() } else { random.below(held.len() + 1) };
                for _ in 0..count {
                    let (head, number) = held.swap_remove(random.below(held.len()));
                    device.complete(head, (number % 100) as u32);
                }
                let reported = device.publish();
                assert!(reported || count == 0 || !driver_waits, "the driver wakes, {context}");
                driver_waits &= count == 0;
            }
            4 => {
                while let Some((token, written)) = driver.used() {
                    let expected = model.out[token as usize].take().expect("given back once");
                    assert_eq!(u64::from(written), expected.number % 100, "{context}");
                    check_written(&ram, &expected);
                    returned += 1;
                }
                driver_waits = random.below(2) == 0 && !driver.enable_calls();
            }
            _ => device_waits = random.below(2) == 0 && !device.enable_kicks(),
        }
    }
    while device.take().expect(&context) {
        let (head, _) = take(&memory, &mut device);
        held.push((head, seen));
        seen += 1;
    }
    for (head, number) in held.drain(..) {
        device.complete(head, (number % 100) as u32);
    }
    device.publish();
    while driver.used().is_some() {
        returned += 1;
    }
    assert!(added > 100, "{added} chains, {context}");
    assert_eq!((seen, returned, driver.out_count()), (added, added, 0), "{context}");
}

fn offer(
    ram: &GuestRam,
    driver: &mut DriverQueue,
    model: &mut Model,
    random: &mut Random,
    added: &mut u64,
) -> bool {
    let slots = model.out.len();
    let Some(slot) = (0..slots).map(|i| (model.next + i) % slots).find(|&i| model.out[i].is_none())
    else {
        return false;
    };
    model.next = slot + 1;
    // Slot 31 crosses from one region to the other.
    let address = BASE + REGION - 31 * 4096 - 2048 + 4096 * slot as u64;
    assert!(address > BUFFERS);
    let (read, write) = (8 + random.below(2000), random.below(2000));
    let most = TABLE_MAX / 2;
    let readable = cut(random, address, read, most);
    let writable = if write > 0 { cut(random, address + 2048, write, most) } else { Vec::new() };
    let number = *added;
    if !driver.add(&readable, &writable, slot as u64) {
        return false;
    }
    let mut bytes: Vec<u8> = (0..read).map(|at| pattern(number, at)).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    ram.memory().write(address, &bytes).expect("in memory");
    model.out[slot] = Some(Expected { number, readable, writable });
    *added += 1;
    true
}

/// Checks the chain taken last, fills its writable buffers and holds it.
fn take(memory: &GuestMemory, device: &mut Queue) -> (Head, u64) {
    let chain = device.chain();
    let mut bytes = vec![0; chain.readable_bytes()];
    assert_eq!(Cursor::new(memory, chain.readable()).read(&mut bytes), bytes.len());
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    for (at, &byte) in bytes.iter().enumerate().skip(8) {
        assert_eq!(byte, pattern(number, at));
    }
    let fill: Vec<u8> = (0..chain.writable_bytes()).map(|at| pattern(number + 1, at)).collect();
    assert_eq!(Cursor::new(memory, chain.writable()).write(&fill), fill.len());
    (device.hold(), number)
}

fn check_written(ram: &GuestRam, expected: &Expected) {
    assert!(!expected.readable.is_empty());
    let bytes: usize = expected.writable.iter().map(|segment| segment.bytes as usize).sum();
    let mut written = vec![0; bytes];
    let address = expected.writable.first().map_or(BASE, |segment| segment.address);
    ram.memory().read(address, &mut written).expect("in memory");
    for (at, &byte) in written.iter().enumerate() {
        assert_eq!(byte, pattern(expected.number + 1, at));
    }
}

/// Goal: a queue that stops continues at its position in another process, in every layout.
#[test]
fn a_queue_goes_on_from_its_base() {
    for features in layouts() {
        let ram = ram();
        let mut driver = queue(&ram, 16, features);
        let mut base = driver.config().base;
        let segment = [Segment { address: BUFFERS, bytes: 4 }];
        for round in 0..100u64 {
            let config = QueueConfig { base, ..driver.config() };
            let mut device = Queue::start(config, &ram.map().unwrap()).expect("a proper base");
            for token in 0..7 {
                assert!(driver.add(&segment, &[], token));
            }
            driver.publish();
            for _ in 0..7 {
                assert!(device.take().unwrap(), "round {round}, features {features:#x}");
                let head = device.hold();
                device.complete(head, 0);
            }
            assert!(!device.take().unwrap());
            assert!(device.publish(), "the first time always calls");
            assert_eq!(std::iter::from_fn(|| driver.used()).count(), 7);
            base = device.base();
        }
    }
}

/// Goal: a driver is called no more often than it requested, and a requested kick is made.
#[test]
fn notifications_can_be_switched_off() {
    for features in layouts() {
        let ram = ram();
        let mut driver = queue(&ram, 16, features);
        let mut device = Queue::start(driver.config(), &ram.map().unwrap()).unwrap();
        let segment = [Segment { address: BUFFERS, bytes: 4 }];
        let mut calls = 0;
        let mut kicks = 0;
        driver.disable_calls();
        for round in 0..200 {
            device.disable_kicks();
            assert!(driver.add(&segment, &[], 1));
            kicks += usize::from(driver.publish());
            assert!(device.take().unwrap());
            let head = device.hold();
            device.complete(head, 0);
            calls += usize::from(device.publish());
            assert!(driver.used().is_some(), "round {round}");
        }
        assert!(calls <= 2 && kicks <= 1, "{calls} calls, {kicks} kicks, features {features:#x}");
    }
}

/// Goal: each invalid value breaks the ring permanently, for its own reason.
#[test]
fn lies_break_the_ring() {
    let buffer = |address, bytes| Segment { address, bytes };
    let outside = BASE + 2 * REGION;
    let wrong: [(&[Segment], &[Segment], Broken); 5] = [
        (&[buffer(outside, 1)], &[], Broken::Address),
        (&[buffer(outside - 1, 2)], &[], Broken::Address),
        (&[buffer(BASE - 1, 2)], &[], Broken::Address),
        (&[buffer(u64::MAX, 2)], &[], Broken::Address),
        (&[buffer(BUFFERS, 1), buffer(0, 1)], &[buffer(BUFFERS, u32::MAX)], Broken::Address),
    ];
    for features in layouts() {
        for (readable, writable, reason) in &wrong {
            let ram = ram();
            let mut driver = queue(&ram, 16, features);
            let mut device = Queue::start(driver.config(), &ram.map().unwrap()).unwrap();
            assert!(driver.add(readable, writable, 0));
            driver.publish();
            assert_eq!(device.take(), Err(*reason), "features {features:#x}");
            assert_eq!(device.take(), Err(*reason), "permanently");
            assert_eq!(device.broken(), Some(*reason));
            assert!(!device.enable_kicks());
        }
    }
}

/// Writes the two words of a descriptor.
fn put(ram: &GuestRam, at: u64, address: u64, rest: u64) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..].copy_from_slice(&rest.to_le_bytes());
    ram.memory().write(at, &bytes).expect("in memory");
}

/// The second word of a split ring's descriptor.
fn rest(bytes: u32, flags: u16, next: u16) -> u64 {
    u64::from(bytes) | u64::from(flags) << 32 | u64::from(next) << 48
}

/// Goal: loops, invalid tables and numbers that are too large are detected in split rings.
#[test]
fn crooked_split_rings_are_broken() {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const TABLE: u16 = 4;
    let (good, table) = (BUFFERS, BUFFERS + 0x1000);
    // First descriptor, second, first of the table, reason.
    let cases = [
        (rest(4, NEXT, 0), 0, 0, Broken::TooLong),
        (rest(4, NEXT, 1), rest(4, NEXT, 0), 0, Broken::TooLong),
        (rest(4, NEXT, 16), 0, 0, Broken::Descriptor),
        (rest(4, NEXT | WRITE, 1), rest(4, 0, 0), 0, Broken::Direction),
        (rest(16, TABLE | NEXT, 1), rest(4, 0, 0), rest(4, 0, 0), Broken::Indirect),
        (rest(0, TABLE, 0), 0, 0, Broken::Indirect),
        (rest(15, TABLE, 0), 0, 0, Broken::Indirect),
        (rest(16, TABLE, 0), 0, rest(4, TABLE, 0), Broken::Indirect),
        (rest(16, TABLE, 0), 0, rest(4, NEXT, 1), Broken::Descriptor),
        (rest(16, TABLE, 0), 0, rest(4, NEXT, 0), Broken::TooLong),
        (rest(16, TABLE, 0), 0, rest(u32::MAX, 0, 0), Broken::Address),
        (rest(0x7fff_fff0, TABLE, 0), 0, rest(4, NEXT, 0), Broken::TooLong),
    ];
    for (number, (first, second, inner, reason)) in cases.into_iter().enumerate() {
        let ram = ram();
        let mut driver = queue(&ram, 16, feature::INDIRECT);
        let mut device = Queue::start(driver.config(), &ram.map().unwrap()).unwrap();
        assert!(driver.add(&[Segment { address: good, bytes: 4 }], &[], 0));
        driver.publish();
        let is_table = first >> 32 & u64::from(TABLE) != 0;
        put(&ram, BASE, if is_table { table } else { good }, first);
        put(&ram, BASE + 16, good, second);
        put(&ram, table, good, inner);
        assert_eq!(device.take(), Err(reason), "case {number}");
    }
    let ram = ram();
    let mut driver = queue(&ram, 16, 0);
    let mut device = Queue::start(driver.config(), &ram.map().unwrap()).unwrap();
    assert!(driver.add(&[Segment { address: good, bytes: 4 }], &[], 0));
    driver.publish();
    put(&ram, BASE, table, rest(16, TABLE, 0));
    assert_eq!(device.take(), Err(Broken::Indirect), "not negotiated");
}

/// Goal: a table may cross a region border within a descriptor. One that ends outside the memory
/// breaks the ring if the chain reaches that part.
#[test]
fn tables_are_read_as_far_as_chains_go() {
    const NEXT: u16 = 1;
    const TABLE: u16 = 4;
    let (border, end) = (BASE + REGION, BASE + 2 * REGION);
    let cases = [
        (border - 24, NEXT, Ok(true)),
        (border - 16, NEXT, Ok(true)),
        (end - 32, NEXT, Ok(true)),
        (end - 16, 0, Ok(true)),
        (end - 16, NEXT, Err(Broken::Address)),
        (end - 24, NEXT, Err(Broken::Address)),
        (end - 8, 0, Err(Broken::Address)),
        (end, 0, Err(Broken::Address)),
    ];
    let buffers = [Segment { address: BUFFERS, bytes: 4 }, Segment { address: BUFFERS, bytes: 5 }];
    for (table, first, result) in cases {
        let ram = ram();
        let mut driver = queue(&ram, 16, feature::INDIRECT);
        let mut device = Queue::start(driver.config(), &ram.map().unwrap()).unwrap();
        assert!(driver.add(&buffers[..1], &[], 0));
        driver.publish();
        put(&ram, BASE, table, rest(32, TABLE, 0));
        for (index, flags) in [first, 0].into_iter().enumerate() {
            let at = table + 16 * index as u64;
            if at + 16 <= end {
                put(&ram, at, BUFFERS, rest(buffers[index].bytes, flags, 1));
            }
        }
        assert_eq!(device.take(), result, "table at {table:#x}");
        if result.is_ok() {
            let count = if first == NEXT { 2 } else { 1 };
            assert_eq!(device.chain().readable(), &buffers[..count], "table at {table:#x}");
        }
    }
}

/// Goal: an available index that is too far ahead, or an invalid head, breaks the ring.
#[test]
fn an_index_that_runs_away_breaks_the_ring() {
    for (index, head, reason) in [(17u16, 0u16, Broken::Index), (1, 16, Broken::Descriptor)] {
        let ram = ram();
        let driver = queue(&ram, 16, 0);
        let mut device = Queue::start(driver.config(), &ram.map().unwrap()).unwrap();
        let available = BASE + 16 * 16;
        ram.memory().write(available + 4, &head.to_le_bytes()).unwrap();
        ram.memory().write(available + 2, &index.to_le_bytes()).unwrap();
        assert_eq!(device.take(), Err(reason));
    }
}

/// Goal: an impossible queue is refused, with the reason.
#[test]
fn impossible_queues_do_not_start() {
    let ram = ram();
    let memory = ram.map().unwrap();
    let driver = queue(&ram, 16, 0);
    let start = |change: &dyn Fn(&mut QueueConfig)| {
        let mut config = driver.config();
        change(&mut config);
        Queue::start(config, &memory).err()
    };
    assert_eq!(start(&|_| {}), None);
    assert_eq!(start(&|config| config.features = 0), Some(StartError::Legacy));
    for size in [0, 15, 8192] {
        assert_eq!(start(&|config| config.size = size), Some(StartError::Size));
    }
    let top = driver.config().descriptors + 2 * REGION - (driver.config().descriptors & 0xfff);
    for address in [0, top, top - 16, u64::MAX - 8, driver.config().descriptors + 8] {
        let result = start(&|config| config.descriptors = address);
        assert_eq!(result, Some(StartError::Address), "{address:#x}");
    }
    // A ring must not cross regions, which need not be adjacent in the front end.
    let border = driver.config().descriptors + REGION - 128;
    assert_eq!(start(&|config| config.descriptors = border), Some(StartError::Address));
    assert_eq!(start(&|config| config.base = 0x1_0000), Some(StartError::Base));
    let packed = |base| {
        start(&|config| (config.features, config.base) = (config.features | feature::PACKED, base))
    };
    assert_eq!(packed(0x8000_8000), None);
    assert_eq!(packed(16), Some(StartError::Base));
    assert_eq!(packed(16 << 16), Some(StartError::Base));
}
