//! Threads that pass words through a queue for a while.

use std::num::NonZeroU64;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::thread::CpuSet;
use towpath_packet::sync::{AtomicBool, AtomicUsize, Ordering};

use super::queues::{Drain, Ends, Fill, Kind};
use crate::ping_pong::Stopwatch;
use crate::process;

/// Items moved in one call.
pub(super) const BURST: usize = 32;

/// The fixed parameters of a measurement.
pub(super) struct Setting {
    pub(super) span: Duration,
    /// Sets of one processor each.
    processors: Vec<CpuSet>,
}

impl Setting {
    pub(super) fn new(span: Duration) -> anyhow::Result<Self> {
        let all = process::processors()?;
        let one = |cpu| {
            let mut one = CpuSet::new();
            one.set(cpu);
            one
        };
        let processors: Vec<_> =
            (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).map(one).collect();
        ensure!(!processors.is_empty(), "no processor");
        Ok(Self { span, processors })
    }

    /// Pins this thread to one processor. Threads with the numbers 0, 1, ... get different ones as
    /// long as there are enough.
    pub(super) fn pin(&self, number: usize) -> anyhow::Result<()> {
        process::pin_thread(&self.processors[number % self.processors.len()])
    }

    /// Number of a producer's thread; the consumer is number 1. With two processors, the second
    /// producer shares the consumer's, so that both producers run at the same time.
    pub(super) fn number_of_producer(&self, index: usize) -> usize {
        if self.processors.len() == 2 { index } else { 2 * index }
    }

    /// Total time per item. This thread consumes.
    pub(super) fn ns_per_item(&self, kind: Kind, producers: usize) -> anyhow::Result<f64> {
        let Ends { fills, mut drain } = kind.of_words(producers)?;
        let (stop, running) = (AtomicBool::new(false), AtomicUsize::new(producers));
        let begin = Barrier::new(producers + 1);
        self.pin(1)?;
        thread::scope(|scope| {
            let (stop, running, begin) = (&stop, &running, &begin);
            let threads: Vec<_> = fills
                .into_iter()
                .enumerate()
                .map(|(index, mut fill)| {
                    scope.spawn(move || {
                        let pinned = self.pin(self.number_of_producer(index));
                        begin.wait();
                        let sum = fill_until(fill.as_mut(), stop);
                        // Release: pairs with the Acquire in `drain_until`.
                        running.fetch_sub(1, Ordering::Release);
                        pinned.map(|()| sum)
                    })
                })
                .collect();
            begin.wait();
            let started = Stopwatch::start();
            let (count, sum) = drain_until(drain.as_mut(), running, || {
                if started.elapsed() >= self.span {
                    // Relaxed: producers only need to see it soon.
                    stop.store(true, Ordering::Relaxed);
                }
            });
            let elapsed = started.elapsed();
            let mut sent = 0_u64;
            for thread in threads {
                sent = sent.wrapping_add(thread.join().ok().context("a producer panicked")??);
            }
            ensure!(sent == sum && count > 0, "the received data differs from the sent data");
            Ok(elapsed.as_secs_f64() * 1e9 / count as f64)
        })
    }
}

/// Drains the queue until no producer is left, calling `look` now and then once an item has
/// arrived. Returns the number of items and their sum.
fn drain_until(
    drain: &mut dyn Drain<NonZeroU64>,
    running: &AtomicUsize,
    look: impl Fn(),
) -> (u64, u64) {
    let (mut places, mut idle) = ([None; BURST], Idle::default());
    let (mut count, mut sum) = (0_u64, 0_u64);
    for turn in 0_u64.. {
        // Acquire: pairs with the Release of a producer that has ended; all its items are in the
        // queue.
        let is_end = running.load(Ordering::Acquire) == 0;
        let taken = drain.drain(&mut places);
        for item in places[..taken].iter_mut().filter_map(Option::take) {
            sum = sum.wrapping_add(item.get());
        }
        count += taken as u64;
        match taken {
            0 if is_end => break,
            0 => idle.wait(),
            _ => idle = Idle::default(),
        }
        if count > 0 && turn.is_multiple_of(TURNS_BETWEEN_LOOKS) {
            look();
        }
    }
    (count, sum)
}

/// Sends until `stop` is set. Returns the sum of the items.
fn fill_until(fill: &mut dyn Fill<NonZeroU64>, stop: &AtomicBool) -> u64 {
    let (mut next, mut sum, mut idle) = (1_u64, 0_u64, Idle::default());
    // Relaxed: no other memory depends on it.
    while !stop.load(Ordering::Relaxed) {
        let mut items: [_; BURST] = std::array::from_fn(|at| NonZeroU64::new(next + at as u64));
        let mut from = 0;
        while from < BURST {
            match fill.fill(&mut items[from..]) {
                0 => idle.wait(),
                count => {
                    from += count;
                    idle = Idle::default();
                }
            }
        }
        for item in next..next + BURST as u64 {
            sum = sum.wrapping_add(item);
        }
        next += BURST as u64;
    }
    sum
}

/// How a thread waits.
#[derive(Default)]
pub(super) struct Idle(u32);

impl Idle {
    /// Waits a moment, and yields the processor now and then.
    pub(super) fn wait(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(SPINS) {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

const SPINS: u32 = 128;
/// So that reading the clock costs next to nothing.
const TURNS_BETWEEN_LOOKS: u64 = 64;
