//! Measures the cost of a packet between two guests, by packet size: `cargo run --release -p
//! towpath-io --example virtq`.
//!
//! Both drivers and the device take turns on one thread, so that the figures are the processor time
//! of all three. The drivers' share is measured separately and subtracted.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};
use towpath_io::vhost_user::driver::{DriverQueue, GuestRam};
use towpath_io::vhost_user::virtq::{Queue, ReceiveQueue, Segment, TransmitQueue, feature};
use towpath_packet::{Burst, Context, Ledger, Memory, MemoryConfig, time};

const QUEUE: u16 = 256;
const ROUND: usize = 32;
/// Memory of a guest that is used cyclically: larger than the caches.
const RAM: u64 = 128 << 20;
const BUFFERS: u64 = 16 << 20;

struct Guests {
    ram: [GuestRam; 2],
    sender: DriverQueue,
    receiver: DriverQueue,
    receive_bytes: u32,
    next: u64,
}

impl Guests {
    fn new(features: u64, receive_bytes: u32) -> Self {
        let ram = [(); 2].map(|()| GuestRam::new(0, &[RAM]).expect("memory"));
        let sender = DriverQueue::new(&ram[0], 0, QUEUE, features).expect("it fits");
        let mut receiver = DriverQueue::new(&ram[1], 0, QUEUE, features).expect("it fits");
        let step = u64::from(receive_bytes).next_multiple_of(2048);
        for token in 0..u64::from(QUEUE) {
            let segment = Segment { address: BUFFERS + token * step, bytes: receive_bytes };
            assert!(receiver.add(&[], &[segment], token));
        }
        receiver.publish();
        Self { ram, sender, receiver, receive_bytes, next: BUFFERS }
    }

    /// Makes a round of frames available.
    fn send(&mut self, bytes: u32) {
        for token in 0..ROUND as u64 {
            self.next += u64::from(bytes + 12).next_multiple_of(2048);
            if self.next + u64::from(bytes) + 4096 > RAM {
                self.next = BUFFERS;
            }
            let head = Segment { address: self.next, bytes: 12 + 54 };
            let rest = Segment { address: self.next + 66, bytes: bytes - 54 };
            assert!(self.sender.add(&[head, rest], &[], token));
        }
        self.sender.publish();
    }

    /// Collects used buffers of both queues, and offers the receiver's buffers again.
    fn collect(&mut self) {
        while self.sender.used().is_some() {}
        let step = u64::from(self.receive_bytes).next_multiple_of(2048);
        while let Some((token, _)) = self.receiver.used() {
            let segment = Segment { address: BUFFERS + token * step, bytes: self.receive_bytes };
            assert!(self.receiver.add(&[], &[segment], token));
        }
        self.receiver.publish();
    }
}

fn main() {
    println!("layout  frame  into     device ns  GB/s  drivers ns");
    for (name, features) in [("split", 0), ("packed", feature::PACKED)] {
        for (bytes, receive_bytes) in
            [(64, 2048), (256, 2048), (257, 2048), (1514, 2048), (65_226, 2048), (65_226, 65_562)]
        {
            let features = features | feature::INDIRECT | feature::EVENT_INDEX;
            let rounds = if bytes > 2000 { 500 } else { 10_000 };
            let runs = (0..5).map(|_| {
                (both(features, bytes, receive_bytes, rounds), drivers(features, bytes, rounds))
            });
            let (mut device, mut alone) = (f64::MAX, f64::MAX);
            for (all, drivers) in runs {
                device = device.min(all - drivers);
                alone = alone.min(drivers);
            }
            let speed = f64::from(bytes) / device;
            println!("{name:6} {bytes:6} {receive_bytes:6} {device:12.0} {speed:6.2} {alone:10.0}");
        }
    }
}

/// Nanoseconds per packet, including the drivers.
fn both(features: u64, bytes: u32, receive_bytes: u32, rounds: u64) -> f64 {
    let features = features | feature::MRG_RXBUF;
    let mut guests = Guests::new(features, receive_bytes);
    let maps = [0, 1].map(|index| guests.ram[index].map().expect("mapped before"));
    let mut transmit =
        TransmitQueue::start(guests.sender.config(), &maps[0], None).expect("a proper queue");
    let mut receive =
        ReceiveQueue::start(guests.receiver.config(), &maps[1]).expect("a proper queue");
    let config = MemoryConfig { packets: 256, small_frames: 256, large_frames: 16 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    let mut round = |guests: &mut Guests| {
        guests.send(bytes);
        while guests.sender.out_count() > 0 {
            let mut burst = Burst::new();
            let now = time::Instant::START;
            let cx = &mut Context { memory: &mut memory, ledger: &ledger, now };
            transmit.take(&mut burst, cx).expect("good");
            // A few packets of 64 KiB fill all of the receiver's buffers.
            while !burst.is_empty() {
                receive.deliver(&mut burst, cx).expect("good");
                guests.collect();
            }
            transmit.turn(now, &ledger);
            guests.collect();
        }
    };
    // Touches all of the memory once, so that its pages exist.
    for _ in 0..RAM / (ROUND as u64 * 2048) {
        round(&mut guests);
    }
    let begun = Instant::now();
    for _ in 0..rounds {
        round(&mut guests);
    }
    begun.elapsed().as_nanos() as f64 / (rounds * ROUND as u64) as f64
}

/// Nanoseconds per packet for the drivers alone: a device returns their chains unread.
fn drivers(features: u64, bytes: u32, rounds: u64) -> f64 {
    let mut guests = Guests::new(features, 2048);
    let map = guests.ram[0].map().expect("mapped before");
    let mut device = Queue::start(guests.sender.config(), &map).expect("a proper queue");
    let mut plain = Duration::ZERO;
    for _ in 0..rounds {
        let begun = Instant::now();
        guests.send(bytes);
        plain += begun.elapsed();
        while device.take().expect("good") {
            let head = device.hold();
            device.complete(head, 0);
        }
        device.publish();
        let begun = Instant::now();
        guests.collect();
        plain += begun.elapsed();
    }
    plain.as_nanos() as f64 / (rounds * ROUND as u64) as f64
}
