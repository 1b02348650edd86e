//! A guest that writes into rings and packets while the device reads them.

use super::super::receive::ReceiveQueue;
use super::super::transmit::{INLINE_BYTES_MAX, TransmitQueue};
use super::super::{Segment, feature};
use super::{BASE, BUFFERS, Random, layouts, queue, ram};
use crate::vhost_user::driver::GuestRam;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Context, Ledger, Memory, MemoryConfig};

const ROUNDS: u64 = 150;

/// Writes plausible and implausible values into the guest's rings, until it is stopped.
fn scribble(ram: &GuestRam, mut random: Random, rings_end: u64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let at = BASE + random.below((rings_end - BASE) as usize / 2) as u64 * 2;
        let value = match random.below(4) {
            0 => random.next() as u16,
            1 => random.below(20) as u16,
            2 => 1 << random.below(16),
            _ => 0x8080 >> (8 * random.below(2)),
        };
        ram.memory().write(at, &value.to_le_bytes()).expect("in memory");
        // Plausible descriptors, which get past the first checks.
        let mut descriptor = [0; 16];
        let address = BUFFERS + random.below(0x1000) as u64;
        descriptor[..8].copy_from_slice(&address.to_le_bytes());
        let bytes = [random.below(4096), 512, 0][random.below(3)] as u32;
        descriptor[8..12].copy_from_slice(&bytes.to_le_bytes());
        descriptor[12..14].copy_from_slice(&(random.below(8) as u16).to_le_bytes());
        descriptor[14..].copy_from_slice(&(random.below(18) as u16).to_le_bytes());
        let place = BASE + random.below(16) as u64 * 16;
        ram.memory().write(place, &descriptor).expect("in memory");
        // Virtio-net headers and tables.
        let noise = random.next().to_le_bytes();
        ram.memory().write(BUFFERS + random.below(0x1000) as u64, &noise).expect("in memory");
    }
}

/// Goal: whatever a guest writes while a device works, the device neither panics nor accesses
/// memory outside the guest's, and every loan ends. Method: one thread writes at random, and the
/// device is started again each time the ring breaks.
#[test]
fn a_guest_that_writes_at_the_same_time_harms_itself_only() {
    for (features, seed) in layouts().zip(0..) {
        let features = features | feature::MRG_RXBUF | feature::CSUM | feature::HOST_TSO4;
        let ram = ram();
        let driver = queue(&ram, 16, features);
        let stop = AtomicBool::new(false);
        let rings_end = driver.end().min(BUFFERS);
        std::thread::scope(|scope| {
            scope.spawn(|| scribble(&ram, Random(seed), rings_end, &stop));
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for round in 0..ROUNDS {
                    transmit_once(&ram, &driver, round);
                    receive_once(&ram, &driver);
                }
            }));
            stop.store(true, Ordering::Relaxed);
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
    }
}

fn transmit_once(ram: &GuestRam, driver: &crate::vhost_user::driver::DriverQueue, round: u64) {
    let Ok(mut device) = TransmitQueue::start(driver.config(), &ram.map().unwrap(), None) else {
        return;
    };
    if round % 2 == 1 {
        device.set_inline();
    }
    let config = MemoryConfig { packets: 64, small_frames: 16, large_frames: 16 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    let mut now = Instant::START + Duration::from_secs(7);
    let mut held = Vec::new();
    for step in 0..20 {
        let mut burst = Burst::new();
        let cx = &mut Context { memory: &mut memory, ledger: &ledger, now };
        let result = device.take(&mut burst, cx);
        held.extend(std::iter::from_fn(|| burst.pop()));
        for packet in &mut held {
            if packet.headers().is_empty() {
                packet.peek_headers();
            }
        }
        if step % 3 == round % 3 {
            held.clear();
        }
        now += Duration::from_millis(7);
        device.turn(now, &ledger);
        device.enable_kicks();
        if result.is_err() {
            break;
        }
    }
    let stopped = device.stop(&ledger);
    assert!(matches!(stopped, super::super::Stop::Done(_)), "no packet is read");
    assert_eq!(device.lent_count(), 0);
    drop(held);
    assert_eq!(memory.packets.out_count(), 0);
}

fn receive_once(ram: &GuestRam, driver: &crate::vhost_user::driver::DriverQueue) {
    let Ok(mut device) = ReceiveQueue::start(driver.config(), &ram.map().unwrap()) else { return };
    let config = MemoryConfig { packets: 64, small_frames: 16, large_frames: 16 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    for bytes in [60, 1514, 16_000, 100, 64, 9000] {
        let mut burst = Burst::new();
        if bytes <= INLINE_BYTES_MAX {
            assert_eq!(burst.grow(&mut memory.packets, 20), 20);
            burst.iter_mut().for_each(|packet| packet.fill_inline(bytes, |frame| frame.fill(1)));
        } else {
            let mut packet = memory.packet().expect("few packets");
            let frame = memory.large.take().expect("few frames");
            packet.push_piece(frame.freeze(bytes)).expect("room");
            burst.push(packet).expect("one packet");
        }
        let cx = &mut Context { memory: &mut memory, ledger: &ledger, now: Instant::START };
        if device.deliver(&mut burst, cx).is_err() {
            break;
        }
        device.enable_kicks();
    }
}

/// Goal: memory that the front end removes stays readable for its holders.
#[test]
fn memory_taken_away_stays_while_it_is_lent() {
    let ram = ram();
    let mut driver = queue(&ram, 16, 0);
    let mut guest = ram.map().unwrap();
    let mut device = TransmitQueue::start(driver.config(), &guest, None).unwrap();
    assert!(driver.add(&[Segment { address: BUFFERS, bytes: 1000 }], &[], 0));
    driver.publish();
    let config = MemoryConfig { packets: 4, small_frames: 4, large_frames: 4 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    let mut burst = Burst::new();
    let now = Instant::START + Duration::from_secs(7);
    let cx = &mut Context { memory: &mut memory, ledger: &ledger, now };
    device.take(&mut burst, cx).expect("the ring is good");
    for layout in ram.layouts() {
        guest.remove(layout).expect("it is there");
    }
    assert_eq!(guest.region_count(), 0);
    drop((device, guest, driver, ram));
    let mut packet = burst.pop().expect("a packet");
    assert_eq!(packet.peek_headers().len(), towpath_packet::packet::PEEK_BYTES);
}
