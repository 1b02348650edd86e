//! A process ends, and the next one continues with the chains in flight.

use super::super::inflight::region_bytes;
use super::super::transmit::TransmitQueue;
use super::super::{Head, Queue, QueueConfig, Segment, StartError, feature};
use super::{BUFFERS, Random, layouts, pattern, queue, ram};
use crate::vhost_user::driver::{DriverQueue, GuestRam};
use crate::vhost_user::shared::{Area, Mapping};
use std::sync::Arc;
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Context, Ledger, Memory, MemoryConfig, Packet};

const SIZE: u16 = 16;

/// A guest and an in-flight region that outlive their device.
struct World {
    ram: GuestRam,
    driver: DriverQueue,
    region: Arc<Mapping>,
    features: u64,
    added: u64,
    returned: Vec<u64>,
}

impl World {
    fn new(features: u64) -> Self {
        let ram = ram();
        let driver = queue(&ram, SIZE, features);
        let bytes = region_bytes(features & feature::PACKED != 0, SIZE) as u64;
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("inflight", flags).expect("a memory file");
        rustix::fs::ftruncate(&file, bytes).expect("it grows");
        let region = Arc::new(Mapping::new(&file, 0, bytes).expect("mapped"));
        Self { ram, driver, region, features, added: 0, returned: Vec::new() }
    }

    fn area(&self) -> Area {
        Area::new(self.region.clone(), 0, self.region.bytes(), 8).expect("all of it")
    }

    /// Starts a new process. Front ends give a base that they know; here it is the initial one.
    fn start(&self) -> Queue {
        let config = QueueConfig { inflight: Some(self.area()), ..self.driver.config() };
        Queue::start(config, &self.ram.map().unwrap()).expect("the region is good")
    }

    /// Makes a chain of up to three buffers available, whose first contains its number.
    fn add(&mut self, random: &mut Random) {
        let at = BUFFERS + (self.added % 64) * 64;
        let segments: Vec<Segment> = (0..1 + random.below(3) as u64)
            .map(|index| Segment { address: at + 16 * index, bytes: 8 })
            .collect();
        if self.driver.add(&segments, &[], self.added) {
            self.ram.memory().write(at, &self.added.to_le_bytes()).expect("in memory");
            self.added += 1;
            self.driver.publish();
        }
    }

    /// Makes a frame of `bytes` bytes available in one buffer.
    fn send(&mut self, bytes: usize) {
        let (number, address) = (self.added, BUFFERS + 0x1000 * self.added);
        let frame: Vec<u8> = (0..bytes).map(|at| pattern(number, at)).collect();
        self.ram.memory().write(address, &[0; 12]).expect("in memory");
        self.ram.memory().write(address + 12, &frame).expect("in memory");
        let segment = Segment { address, bytes: 12 + bytes as u32 };
        assert!(self.driver.add(&[segment], &[], number));
        self.driver.publish();
        self.added += 1;
    }

    /// Starts a new process that copies short frames inline.
    fn transmit(&self) -> TransmitQueue {
        let config = QueueConfig { inflight: Some(self.area()), ..self.driver.config() };
        let guest = self.ram.map().expect("mapped before");
        let mut device = TransmitQueue::start(config, &guest, None).expect("the region is good");
        device.set_inline();
        device
    }

    fn take(&self, device: &mut Queue) -> Option<(Head, u64)> {
        if !device.take().expect("the ring is good") {
            return None;
        }
        let mut number = [0; 8];
        let address = device.chain().readable()[0].address;
        device.memory().read(address, &mut number).expect("in memory");
        Some((device.hold(), u64::from_le_bytes(number)))
    }

    fn collect(&mut self) {
        while let Some((token, _)) = self.driver.used() {
            assert!(!self.returned.contains(&token), "returned once");
            self.returned.push(token);
        }
    }

    fn save(&self) -> (Vec<u8>, Vec<u8>) {
        let mut region = vec![0; self.region.bytes()];
        self.region.stretch(0, region.len()).read(&mut region);
        let mut rings = vec![0; (BUFFERS - super::BASE) as usize];
        self.ram.memory().read(super::BASE, &mut rings).expect("in memory");
        (region, rings)
    }
}

/// Goal: whenever a process ends between two calls, the next one takes exactly the chains that were
/// taken and not visibly returned, in the order in which they were taken, and then new ones.
#[test]
fn the_next_process_is_offered_what_was_in_flight() {
    for (features, seed) in layouts().flat_map(|f| (0..20).map(move |seed| (f, seed))) {
        let context = format!("features {features:#x}, seed {seed}");
        let (mut world, mut random) = (World::new(features), Random(seed));
        let mut device = world.start();
        // In the order of taking. `hidden` are those returned and not published at the end.
        let mut held: Vec<(Head, u64)> = Vec::new();
        let mut hidden: Vec<(Head, u64)> = Vec::new();
        for _ in 0..400 {
            match random.below(5) {
                0 | 1 => world.add(&mut random),
                2 => held.extend(world.take(&mut device)),
                3 if !held.is_empty() => {
                    let (head, number) = held.remove(random.below(held.len()));
                    device.complete(head, 0);
                    hidden.push((head, number));
                    if random.below(2) == 0 {
                        device.publish();
                        hidden.clear();
                    }
                }
                _ if random.below(8) == 0 => {
                    device = world.start();
                    let mut expected: Vec<u64> =
                        held.drain(..).chain(hidden.drain(..)).map(|(_, number)| number).collect();
                    expected.sort_unstable();
                    for number in expected {
                        let (head, again) = world.take(&mut device).expect(&context);
                        assert_eq!(again, number, "{context}");
                        held.push((head, again));
                    }
                }
                _ => world.collect(),
            }
        }
        device = world.start();
        while let Some((head, _)) = world.take(&mut device) {
            device.complete(head, 0);
        }
        device.publish();
        world.collect();
        world.returned.sort_unstable();
        assert!(world.added > 20);
        assert_eq!(world.returned, (0..world.added).collect::<Vec<_>>(), "{context}");
        drop(device);
        assert_eq!(world.take(&mut world.start()), None, "nothing is left, {context}");
    }
}

/// Goal: frames that were copied inline are complete when the call returns, and are not taken
/// again; lent ones between them are. Frames that a process took and did not return are inline in
/// the next process, before new ones.
#[test]
fn inline_frames_are_taken_once() {
    for features in layouts() {
        let mut world = World::new(features);
        let config = MemoryConfig { packets: 16, small_frames: 16, large_frames: 16 };
        let (mut memory, ledger) = (Memory::new(config), Ledger::new());
        let mut receive = |device: &mut TransmitQueue| -> Vec<Packet> {
            let mut burst = Burst::new();
            let now = Instant::START;
            let cx = &mut Context { memory: &mut memory, ledger: &ledger, now };
            device.take(&mut burst, cx).expect("the ring is good");
            std::iter::from_fn(|| burst.pop()).collect()
        };
        let reported = |packets: &[Packet]| -> Vec<(usize, bool)> {
            packets.iter().map(|packet| (packet.len(), packet.is_inline())).collect()
        };
        [60, 61, 1000].into_iter().for_each(|bytes| world.send(bytes));
        let mut killed = world.start();
        while world.take(&mut killed).is_some() {}
        drop(killed);
        [62, 1514, 63].into_iter().for_each(|bytes| world.send(bytes));

        let mut first = world.transmit();
        let held = receive(&mut first);
        let expected =
            [(60, true), (61, true), (1000, false), (62, true), (1514, false), (63, true)];
        assert_eq!(reported(&held), expected, "features {features:#x}");
        for (number, packet) in (0..).zip(&held).filter(|(_, packet)| packet.is_inline()) {
            let frame: Vec<u8> = (0..packet.len()).map(|at| pattern(number, at)).collect();
            assert_eq!(packet.headers(), frame, "frame {number}, features {features:#x}");
        }
        world.collect();
        assert_eq!(world.returned, [0, 1, 3, 5], "features {features:#x}");
        drop(first);

        world.send(64);
        let mut second = world.transmit();
        let again = receive(&mut second);
        let expected = [(1000, false), (1514, false), (64, true)];
        assert_eq!(reported(&again), expected, "features {features:#x}");
        drop((held, again));
        second.turn(Instant::START, &ledger);
        world.collect();
        assert_eq!(world.returned, [0, 1, 3, 5, 6, 2, 4], "features {features:#x}");
    }
}

/// Goal: a process that ends while it returns a batch has returned either all of it or none.
/// Method: the states between the stores are made from those before and after.
#[test]
fn a_batch_is_returned_whole_or_not_at_all() {
    for features in layouts() {
        for is_visible in [true, false] {
            let (mut world, mut random) = (World::new(features), Random(7));
            for _ in 0..5 {
                world.add(&mut random);
            }
            let added = world.added;
            assert!(added >= 4);
            let mut device = world.start();
            let taken: Vec<_> = std::iter::from_fn(|| world.take(&mut device)).collect();
            for index in [2, 0] {
                device.complete(taken[index].0, 0);
            }
            let (region, rings) = world.save();
            device.publish();
            let (after, _) = world.save();
            let between = unconcluded(&world, &region, &after);
            world.region.stretch(0, between.len()).write(&between);
            if !is_visible {
                world.ram.memory().write(super::BASE, &rings).expect("in memory");
            }
            drop(device);
            let mut device = world.start();
            let again: Vec<u64> =
                std::iter::from_fn(|| world.take(&mut device)).map(|(_, n)| n).collect();
            let gone = |n: &u64| is_visible && (*n == 0 || *n == 2);
            let expected: Vec<u64> = (0..added).filter(|n| !gone(n)).collect();
            assert_eq!(again, expected, "features {features:#x}, visible: {is_visible}");
        }
    }
}

/// The region after a batch was prepared, perhaps with the ring written, but before it was
/// completed.
fn unconcluded(world: &World, before: &[u8], after: &[u8]) -> Vec<u8> {
    if world.features & feature::PACKED == 0 {
        return before.to_vec();
    }
    let mut region = after.to_vec();
    // Old head of the free list, old used index and its wrap counter; the entries still count as
    // taken.
    for at in [14, 15, 18, 19, 21] {
        region[at] = before[at];
    }
    for entry in (32..region.len() - 31).step_by(32) {
        region[entry] = before[entry];
    }
    region
}

/// Goal: a region with arbitrary content causes no panic, and nothing outside the memory is lent.
#[test]
fn regions_full_of_lies_are_survived() {
    for (features, seed) in layouts().flat_map(|f| (0..200).map(move |seed| (f, seed))) {
        let (mut world, mut random) = (World::new(features), Random(seed));
        let mut lies: Vec<u8> = (0..world.region.bytes()).map(|_| random.next() as u8).collect();
        if random.below(4) > 0 {
            // An acceptable version and count; sometimes also small numbers everywhere.
            lies[8..12].copy_from_slice(&[1, 0, SIZE as u8, 0]);
            if random.below(2) == 0 {
                let small = |(at, byte): (usize, &mut u8)| *byte &= [15, 0][at % 2];
                lies[12..].iter_mut().enumerate().for_each(small);
            }
        }
        world.region.stretch(0, lies.len()).write(&lies);
        for _ in 0..4 {
            world.add(&mut random);
        }
        let config = QueueConfig { inflight: Some(world.area()), ..world.driver.config() };
        let mut device = match Queue::start(config, &world.ram.map().unwrap()) {
            Ok(device) => device,
            Err(refused) => {
                assert_eq!(refused, StartError::Inflight);
                continue;
            }
        };
        for _ in 0..64 {
            if !matches!(device.take(), Ok(true)) {
                break;
            }
            let head = device.hold();
            device.complete(head, 0);
            device.publish();
        }
    }
}

/// Goal: writes of a front end into the region of a running queue are never read: chains in flight
/// are taken as they were found, and returned. Method: two chains are in flight, and after the
/// start every word of the region is overwritten: first with other lengths and links of those
/// chains, then with random values.
#[test]
fn a_region_that_changes_under_a_queue_is_not_looked_at() {
    for (features, seed) in layouts().flat_map(|f| (0..20).map(move |seed| (f, seed))) {
        let (mut world, mut random) = (World::new(features), Random(seed));
        (0..2).for_each(|_| world.add(&mut random));
        let mut killed = world.start();
        while world.take(&mut killed).is_some() {}
        drop(killed);
        let mut device = world.start();
        let region = world.region.clone();
        let scribble = |random: &mut Random| {
            for at in (32..region.bytes()).step_by(2) {
                let word = match (seed, at % 32) {
                    // In an entry of a packed ring: a link to itself, and a length of 1000.
                    (0, 2) => (at / 32 - 1) as u16,
                    (0, 6) => 1000,
                    (0, _) => continue,
                    _ => random.next() as u16,
                };
                region.stretch(at, 2).write(&word.to_le_bytes());
            }
        };
        let mut given_back = Vec::new();
        for round in 0..40 {
            scribble(&mut random);
            if let Some((head, number)) = world.take(&mut device) {
                scribble(&mut random);
                device.complete(head, 0);
                given_back.push(number);
            }
            if round % 3 == 0 {
                scribble(&mut random);
                device.publish();
                world.collect();
                world.add(&mut random);
            }
        }
        while let Some((head, number)) = world.take(&mut device) {
            scribble(&mut random);
            device.complete(head, 0);
            given_back.push(number);
        }
        device.publish();
        world.collect();
        let context = format!("features {features:#x}, seed {seed}");
        assert_eq!(world.returned, given_back, "{context}");
        assert_eq!(given_back, (0..world.added).collect::<Vec<_>>(), "{context}");
    }
}

/// Goal: the region of another queue, or one that is too small, is refused.
#[test]
fn a_region_belongs_to_one_size() {
    let world = World::new(0);
    drop(world.start());
    let half = Area::new(world.region.clone(), 0, world.region.bytes() / 2, 8);
    for (inflight, size) in [(half, SIZE), (Some(world.area()), SIZE / 2)] {
        let config = QueueConfig { inflight, size, ..world.driver.config() };
        let result = Queue::start(config, &world.ram.map().unwrap());
        assert_eq!(result.err(), Some(StartError::Inflight));
    }
}
