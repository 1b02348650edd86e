//! Decides by size which sends lend. Pure: numbers in, a decision out.
//!
//! For all sockets of a host, a size does what trials found cheaper ([`Costs`]). For each socket,
//! wasted loans raise the size from which this socket lends, its *threshold*; loans below it are
//! tried now and then, and lower it again if they are not wasted. Before the first trial, the
//! decision depends on a size that a model derives from a measurement (`calibration.rs`).
//!
//! Any thread chooses and learns. Choosing happens for each call, so it uses no locked instruction,
//! and a lock only once in many calls: a count that two threads raise at once may lose one.

use crate::host::choosing::trials::{Costs, Gauge, SIZE_MIN};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_packet::sync::{AtomicU32, AtomicUsize, Ordering};

/// What to do with one call's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Copy.
    Copy,
    /// Lend.
    Lend,
    /// Lend, and report the result to [`Chooser::learn`] with the chooser's round.
    LendWatched(u32),
}

/// Result of a watched loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The round in which it began.
    pub round: u32,
    /// Bytes of the call.
    pub size: usize,
    /// True if bytes were copied after the call.
    pub copied: bool,
    /// Time from the call until all memory was back.
    pub nanos: u64,
}

/// Chooses for the calls of one socket. All numbers are advice: an outdated value only repeats an
/// earlier choice, so every access outside the lock is relaxed.
#[derive(Debug)]
pub struct Chooser {
    /// Measured costs, shared by all sockets.
    costs: Arc<Costs>,
    threshold: AtomicUsize,
    /// Calls and bytes since the last report to the costs.
    calls: AtomicU32,
    bytes: AtomicUsize,
    /// Lending calls until one is watched, and calls below the threshold until one is lent.
    until_watched: AtomicU32,
    until_tried: AtomicU32,
    /// How often a loan was counted as wasted. Loans of an earlier round that are also wasted do
    /// not count: one pause of a receiver wastes everything in flight.
    round: AtomicU32,
    /// Wasted loans less loans that were not wasted.
    wasted: Mutex<u32>,
}

impl Chooser {
    /// Creates the chooser of a socket that has not sent yet.
    pub fn new(costs: Arc<Costs>) -> Self {
        Self {
            costs,
            threshold: AtomicUsize::new(SIZE_MIN),
            calls: AtomicU32::new(0),
            bytes: AtomicUsize::new(0),
            until_watched: AtomicU32::new(0),
            until_tried: AtomicU32::new(TRY_EVERY - 1),
            round: AtomicU32::new(0),
            wasted: Mutex::new(0),
        }
    }

    /// Decides for a call of `size` bytes.
    pub fn choose(&self, size: usize, gauge: &impl Gauge) -> Choice {
        if size < SIZE_MIN {
            return Choice::Copy;
        }
        self.count(size, gauge);
        if !self.costs.lends(size) {
            return Choice::Copy;
        }
        let (left, every, otherwise) = match size >= self.threshold.load(Ordering::Relaxed) {
            true => (&self.until_watched, WATCH_EVERY, Choice::Lend),
            false => (&self.until_tried, TRY_EVERY, Choice::Copy),
        };
        let calls = left.load(Ordering::Relaxed);
        left.store(calls.checked_sub(1).unwrap_or(every - 1), Ordering::Relaxed);
        match calls {
            0 => Choice::LendWatched(self.round.load(Ordering::Relaxed)),
            _ => otherwise,
        }
    }

    /// Counts calls, and reports them to the costs from time to time.
    fn count(&self, size: usize, gauge: &impl Gauge) {
        let calls = self.calls.load(Ordering::Relaxed) + 1;
        let bytes = self.bytes.load(Ordering::Relaxed) + size;
        let reported = calls >= TELL_CALLS || bytes >= TELL_BYTES;
        self.calls.store(if reported { 0 } else { calls }, Ordering::Relaxed);
        self.bytes.store(if reported { 0 } else { bytes }, Ordering::Relaxed);
        if reported {
            self.costs.made(size, calls, bytes as u64, gauge);
        }
    }

    /// Learns from the result of a loan.
    pub fn learn(&self, outcome: Outcome) {
        let mut balance = self.wasted.lock().unwrap_or_else(PoisonError::into_inner);
        let wasted = outcome.copied || outcome.nanos > LATE_NANOS;
        let round = self.round.load(Ordering::Relaxed);
        if wasted && outcome.round != round {
            return;
        }
        let threshold = self.threshold.load(Ordering::Relaxed);
        if wasted {
            self.round.store(round.wrapping_add(1), Ordering::Relaxed);
        }
        if outcome.size < threshold {
            if !wasted {
                self.threshold.store((threshold / 2).max(SIZE_MIN), Ordering::Relaxed);
            }
        } else if !wasted {
            *balance = balance.saturating_sub(1);
        } else {
            // The next loan shows whether it was an exception.
            self.until_watched.store(0, Ordering::Relaxed);
            *balance += 1;
            if *balance == WASTED_MAX {
                *balance = 0;
                self.threshold.store(outcome.size.saturating_add(1), Ordering::Relaxed);
            }
        }
    }
}

/// Calls per report to the costs.
const TELL_CALLS: u32 = 64;
/// Bytes per report to the costs.
const TELL_BYTES: usize = 256 << 10;
/// One loan in this many is watched, and the one after a wasted loan: reading the clock twice for
/// every loan would cost more than small loans save.
const WATCH_EVERY: u32 = 64;
/// One in this many calls below the threshold is lent as a test.
const TRY_EVERY: u32 = 64;
/// Wasted loans that raise the threshold.
const WASTED_MAX: u32 = 4;
/// A loan that takes longer was wasted: after a copy the program could have continued at once.
const LATE_NANOS: u64 = 500_000_000;
#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const GOOD: Outcome = Outcome { round: 0, size: 64 << 10, copied: false, nanos: 1_000 };
    const COPIED: Outcome = Outcome { copied: true, ..GOOD };
    const LATE: Outcome = Outcome { nanos: LATE_NANOS + 1, ..GOOD };

    /// A clock that stands still, so that no trial ends.
    struct Still;

    impl Gauge for Still {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn used(&self) -> Duration {
            Duration::ZERO
        }

        fn out(&self) -> u64 {
            0
        }
    }

    /// Creates the chooser of a host that lends from 4096 bytes on.
    fn chooser() -> Chooser {
        Chooser::new(Arc::new(Costs::new(4096)))
    }

    /// Makes `calls` calls of one size and returns how many lend. Watched loans end with `outcome`.
    fn run(chooser: &Chooser, calls: u32, outcome: Outcome) -> u32 {
        let mut lent = 0;
        for _ in 0..calls {
            let choice = chooser.choose(outcome.size, &Still);
            lent += u32::from(choice != Choice::Copy);
            if let Choice::LendWatched(round) = choice {
                chooser.learn(Outcome { round, ..outcome });
            }
        }
        lent
    }

    #[test]
    fn sizes_from_the_break_even_on_lend() {
        let chooser = chooser();
        for size in [0, 1, SIZE_MIN - 1, SIZE_MIN, 4095] {
            assert_eq!(run(&chooser, 1000, Outcome { size, ..GOOD }), 0);
        }
        for size in [4096, 1 << 20, 1 << 40] {
            assert_eq!(run(&chooser, 1000, Outcome { size, ..GOOD }), 1000);
        }
    }

    #[test]
    fn wasted_loans_end_and_are_tried_again_only_now_and_then() {
        for wasted in [COPIED, LATE] {
            let chooser = chooser();
            assert_eq!(run(&chooser, WASTED_MAX, wasted), WASTED_MAX);
            assert_eq!(run(&chooser, 10 * TRY_EVERY, wasted), 10);
            // A size that was never wasted is still lent.
            assert_ne!(chooser.choose(1 << 20, &Still), Choice::Copy);
        }
    }

    #[test]
    fn a_socket_recovers_when_loans_are_not_wasted_any_more() {
        let chooser = chooser();
        run(&chooser, 10_000, COPIED);
        run(&chooser, TRY_EVERY, GOOD);
        assert_eq!(run(&chooser, 1000, GOOD), 1000);
        let small = Outcome { size: 4096, ..GOOD };
        run(&chooser, 4 * TRY_EVERY, small);
        assert_eq!(run(&chooser, 1000, small), 1000);
        assert_eq!(chooser.choose(4095, &Still), Choice::Copy);
    }

    /// Goal: the pause of a receiver wastes everything in flight, but counts once; a receiver that
    /// keeps pausing without letting anything through in between raises the threshold.
    #[test]
    fn what_was_on_the_way_counts_once() {
        let chooser = chooser();
        let on_the_way = |chooser: &Chooser| {
            let choices = (0..1000 * WATCH_EVERY).map(|_| chooser.choose(1 << 20, &Still));
            let rounds = choices.filter_map(|choice| match choice {
                Choice::LendWatched(round) => Some(round),
                Choice::Lend | Choice::Copy => None,
            });
            rounds.collect::<Vec<u32>>()
        };
        for pause in 1..=WASTED_MAX {
            let rounds = on_the_way(&chooser);
            assert_eq!(rounds.len(), 1000);
            for round in rounds {
                chooser.learn(Outcome { round, size: 1 << 20, ..COPIED });
            }
            let copies = chooser.threshold.load(Ordering::Relaxed) > 1 << 20;
            assert_eq!(copies, pause == WASTED_MAX);
        }
    }

    #[test]
    fn a_few_wasted_loans_among_good_ones_change_nothing() {
        let chooser = chooser();
        for _ in 0..100 {
            for outcome in [COPIED, LATE, GOOD, GOOD] {
                chooser.learn(Outcome { round: chooser.round.load(Ordering::Relaxed), ..outcome });
            }
        }
        assert_eq!(chooser.threshold.load(Ordering::Relaxed), SIZE_MIN);
    }
}
