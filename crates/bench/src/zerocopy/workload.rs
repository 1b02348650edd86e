//! What is sent and its cost: buffers, the processor's clock, the loop of a sender.

use std::io::stdout;
use std::time::Duration;

use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};

use super::Mode;
use super::cases::Buffers;
use super::datagrams::Arrivals;
use crate::ping_pong::Stopwatch;
use crate::process::KernelThreads;

/// A sender, whose calls block.
pub(super) trait Sender {
    /// Sends all of a buffer.
    fn send(&mut self, buffer: &'static [u8]) -> anyhow::Result<()>;

    /// Waits until all loans have returned.
    fn settle(&mut self) -> anyhow::Result<()>;
}

/// Memory to send from, filled beforehand as an application would do.
#[derive(Debug)]
pub(super) struct Memory(&'static [u8]);

impl Memory {
    /// Allocates `bytes` bytes, a power of two, all non-zero: the kernel has backed every page.
    pub(super) fn new(bytes: usize) -> Self {
        assert!(bytes.is_power_of_two() && bytes >= HOT_BYTES);
        Self(vec![0x5a; bytes].leak())
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// A walk through buffers of `size` bytes, a power of two, that never ends.
    pub(super) fn walk(&self, buffers: Buffers, size: usize) -> Walk {
        let bytes = match buffers {
            Buffers::Cold => self.0.len(),
            Buffers::Hot => HOT_BYTES.max(size),
        };
        Walk { memory: &self.0[..bytes], size, at: 0 }
    }
}

/// An endless walk through all buffers, in an order in which neighbours never follow each other, so
/// that the processor's prefetching is useless.
#[derive(Debug)]
pub(super) struct Walk {
    memory: &'static [u8],
    size: usize,
    at: usize,
}

impl Walk {
    pub(super) fn next(&mut self) -> &'static [u8] {
        let count = self.memory.len() / self.size;
        // An odd step reaches all positions of a power of two before it repeats one.
        self.at = self.at.wrapping_add((count * GOLDEN_PARTS / GOLDEN_WHOLE) | 1) & (count - 1);
        &self.memory[self.at * self.size..][..self.size]
    }
}

/// The fixed parameters of a measurement.
#[derive(Debug)]
pub(super) struct Setting<'a> {
    pub(super) memory: &'a Memory,
    /// Duration, without the warm-up of caches and windows.
    pub(super) span: Duration,
    /// If true, the sender only reports its progress, and another process measures.
    pub(super) tells: bool,
    pub(super) kernel: &'a KernelThreads,
    /// How many datagrams arrived.
    pub(super) arrivals: Arrivals,
}

/// Processor time per GiB sent, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Of the thread that sends.
    pub(super) process: f64,
    /// Of this process and the kernel's threads.
    pub(super) system: f64,
}

impl Setting<'_> {
    /// Sends for a while. The counted time includes the return of all loans.
    pub(super) fn cost(&self, sender: &mut dyn Sender, walk: &mut Walk) -> anyhow::Result<Cost> {
        const GIB: f64 = (1_u64 << 30) as f64;
        if self.tells {
            send_and_tell(self.span, sender, walk)?;
            return Ok(Cost { process: 0.0, system: 0.0 });
        }
        send_for(self.span / 4, sender, walk)?;
        let before = self.used();
        let bytes = send_for(self.span, sender, walk)?;
        let after = self.used();
        let per_gib = |seconds: f64| seconds * GIB / bytes as f64;
        Ok(Cost {
            process: per_gib(after.process - before.process),
            system: per_gib(after.system - before.system),
        })
    }

    /// Whether copied bytes are sent by calls that always copy: lending is compared with these. A
    /// socket that chooses is compared with the same calls on a socket that copies.
    pub(super) fn copies(&self, mode: Mode) -> bool {
        mode == Mode::Copy && !self.tells
    }

    /// Processor seconds so far.
    fn used(&self) -> Cost {
        let own = |clock| {
            let used = clock_gettime(clock);
            used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9
        };
        Cost {
            process: own(ClockId::ThreadCPUTime),
            system: own(ClockId::ProcessCPUTime) + self.kernel.cpu_seconds(),
        }
    }
}

/// Sends for `span`; returns the number of bytes.
fn send_for(span: Duration, sender: &mut dyn Sender, walk: &mut Walk) -> anyhow::Result<u64> {
    let started = Stopwatch::start();
    let mut sent = 0;
    while started.elapsed() < span {
        for _ in 0..(BYTES_BETWEEN_LOOKS / walk.size).max(1) {
            sender.send(walk.next())?;
            sent += walk.size as u64;
        }
    }
    sender.settle()?;
    Ok(sent)
}

/// Size of a processor's private cache.
pub(super) const HOT_BYTES: usize = 256 << 10;
/// Bytes between two reads of the clock, so that these cost next to nothing.
const BYTES_BETWEEN_LOOKS: usize = 256 << 10;
/// The golden ratio: steps that stay far apart, however many there are.
const GOLDEN_PARTS: usize = 618;
const GOLDEN_WHOLE: usize = 1000;

/// Sends for `span`, and reports the number of bytes.
fn send_and_tell(span: Duration, sender: &mut dyn Sender, walk: &mut Walk) -> anyhow::Result<()> {
    let (started, mut sent) = (Stopwatch::start(), 0);
    while started.elapsed() < span {
        let until = sent + BYTES_TOLD;
        while sent < until {
            let buffer = walk.next();
            sender.send(buffer)?;
            sent += buffer.len() as u64;
        }
        rustix::io::pwrite(stdout(), &reported(sent), 0).context("standard output")?;
    }
    sender.settle()
}

/// Formats a number of bytes with a fixed length.
pub(super) fn reported(bytes: u64) -> Vec<u8> {
    format!("{bytes:020}\n").into_bytes()
}

/// Bytes between two reports, so that these cost next to nothing.
const BYTES_TOLD: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_meets_every_buffer_before_it_meets_one_again() {
        let memory = Memory::new(1 << 20);
        for (buffers, size, count) in [
            (Buffers::Cold, 512, 2048),
            (Buffers::Cold, 1 << 20, 1),
            (Buffers::Hot, 4096, 64),
            (Buffers::Hot, 1 << 20, 1),
        ] {
            let mut walk = memory.walk(buffers, size);
            let mut met: Vec<_> = (0..count).map(|_| walk.next().as_ptr()).collect();
            let first = met[0];
            met.sort_unstable();
            met.dedup();
            assert_eq!(met.len(), count);
            assert_eq!(walk.next().as_ptr(), first);
        }
    }
}
