//! Queues, tested with the driver of [`driver`](crate::vhost_user::driver).

mod batch;
mod hostile;
mod inflight;
mod receive;
mod ring;
mod transmit;

use super::feature;
use crate::vhost_user::driver::{DriverQueue, GuestRam};

/// Start of the guest's memory, and size of each of its two regions.
const BASE: u64 = 0x10_0000;
const REGION: u64 = 0x10_0000;
/// Start of the buffers; queues are below.
const BUFFERS: u64 = BASE + 0x8_0000;

/// Memory in two adjacent regions, so that a buffer may cross from one to the other.
fn ram() -> GuestRam {
    GuestRam::new(BASE, &[REGION, REGION]).expect("memory files can be made")
}

fn queue(ram: &GuestRam, size: u16, features: u64) -> DriverQueue {
    let queue = DriverQueue::new(ram, BASE, size, features).expect("the queue fits");
    assert!(queue.end() <= BUFFERS);
    queue
}

/// Each layout, with and without the features that change how rings are read.
fn layouts() -> impl Iterator<Item = u64> {
    let pick = |bits: u64, index: u64, bit: u64| if index & bit != 0 { bits } else { 0 };
    (0..8).map(move |index| {
        pick(feature::PACKED, index, 1)
            | pick(feature::EVENT_INDEX, index, 2)
            | pick(feature::INDIRECT, index, 4)
    })
}

/// Pseudo-random numbers from a seed: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// A byte that depends on a packet's number and the offset in it.
fn pattern(number: u64, at: usize) -> u8 {
    (number as usize * 31 + at * 7 + at / 251) as u8
}
