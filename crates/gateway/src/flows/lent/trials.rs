//! Trials: whether lending costs the thread less than copying. Pure: numbers in, a decision out.
//!
//! A trial compares the processor time of the thread per byte in three *windows* of
//! [`WINDOW`] bytes: as decided so far, the other way, and as decided again. Windows are counted in
//! bytes that could be lent. Between them [`SETTLING`] bytes pass, so that what was lent before has
//! returned. The logarithm of the ratio of both costs is averaged over trials, and decides.
//!
//! - A trial has no result if other bytes had a large part in a window, if a window took long, as
//!   for a connection that costs little in any case, if less than half of what should have been
//!   lent was lent, or if the first and the last window differ much.
//! - Trials are so rare that they cost little if the other way is worse ([`REST`]).
//! - Copying is the decision before [`TRIALS_MIN`] trials have had a result.
//!
//! What the kernel does for a connection outside of this thread does not count: interrupts, which
//! return lent pages and free copied ones, and other threads.

use std::time::Duration;
use towpath_net::time::Instant;

/// Measurements that a trial uses.
pub(super) trait Gauge {
    /// The current time.
    fn now(&self) -> Instant;
    /// Processor time of the thread.
    fn used(&self) -> Duration;
    /// Payload bytes that the thread has moved, in both directions.
    fn moved(&self) -> u64;
    /// Payload bytes that it has lent.
    fn lent(&self) -> u64;
}

/// Decides whether to lend, from trials.
pub(super) struct Trials {
    /// The decision so far.
    decided: bool,
    stage: Stage,
    /// Bytes that could be lent so far, and at how many the stage ends.
    bytes: u64,
    until: u64,
    /// When the window began.
    begun: Mark,
    /// Cost of a byte in nanoseconds, in the first and the second window.
    costs: [f64; 2],
    /// Logarithm of the ratio of lending's cost to copying's, averaged over trials.
    mean: f64,
    trials: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Rest,
    Settling(Run),
    Window(Run),
}

/// The windows of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Before,
    Other,
    After,
}

/// A moment between calls.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    now: Instant,
    used: Duration,
    moved: u64,
    lent: u64,
    bytes: u64,
}

impl Trials {
    pub(super) fn new() -> Self {
        Self {
            decided: false,
            stage: Stage::Rest,
            bytes: 0,
            until: WINDOW,
            begun: Mark::default(),
            costs: [0.0; 2],
            mean: 0.0,
            trials: 0,
        }
    }

    /// Returns true if the next call, of `bytes` that could be lent, should lend.
    pub(super) fn lends(&mut self, bytes: u64, gauge: &impl Gauge) -> bool {
        if self.bytes >= self.until {
            self.step(gauge);
        }
        self.bytes += bytes;
        let is_other =
            matches!(self.stage, Stage::Settling(Run::Other) | Stage::Window(Run::Other));
        self.decided != is_other
    }

    /// Ends a stage.
    fn step(&mut self, gauge: &impl Gauge) {
        let mark = Mark {
            now: gauge.now(),
            used: gauge.used(),
            moved: gauge.moved(),
            lent: gauge.lent(),
            bytes: self.bytes,
        };
        let run = match self.stage {
            Stage::Rest => return self.open(Run::Before, mark),
            Stage::Settling(run) => return self.open(run, mark),
            Stage::Window(run) => run,
        };
        let Some(cost) = self.cost(run, mark) else { return self.rest() };
        match run {
            Run::Before => {
                self.costs[0] = cost;
                self.begin(Stage::Settling(Run::Other), SETTLING);
            }
            Run::Other => {
                self.costs[1] = cost;
                self.begin(Stage::Settling(Run::After), SETTLING);
            }
            Run::After => {
                self.judge(cost);
                self.rest();
            }
        }
    }

    fn begin(&mut self, stage: Stage, bytes: u64) {
        self.stage = stage;
        self.until = self.bytes + bytes;
    }

    fn open(&mut self, run: Run, mark: Mark) {
        self.begun = mark;
        self.begin(Stage::Window(run), WINDOW);
    }

    fn rest(&mut self) {
        let bytes = if self.trials < TRIALS_MIN { REST_NEW } else { REST };
        self.begin(Stage::Rest, bytes);
    }

    /// Returns what a byte cost in the window that ends now, unless something disturbed it.
    fn cost(&self, run: Run, end: Mark) -> Option<f64> {
        let begun = self.begun;
        let bytes = end.bytes - begun.bytes;
        let others = (end.moved - begun.moved).saturating_sub(bytes);
        let should_lend = self.decided != (run == Run::Other);
        let is_disturbed = end.now.since(begun.now) > WINDOW_TIME_MAX
            || others > bytes / OTHERS_PARTS
            || should_lend && end.lent - begun.lent < bytes / 2;
        let used = end.used.saturating_sub(begun.used);
        (!is_disturbed).then(|| used.as_nanos() as f64 / bytes as f64)
    }

    /// Evaluates a trial whose last window cost `after` for a byte.
    fn judge(&mut self, after: f64) {
        let [before, other] = self.costs;
        let own = f64::midpoint(before, after);
        if (before - after).abs() > own * UNSTEADY {
            return;
        }
        let ratio = if self.decided { own / other } else { other / own };
        self.trials = (self.trials + 1).min(TRIALS_AVERAGED);
        self.mean += (ratio.ln() - self.mean) / f64::from(self.trials);
        if self.trials >= TRIALS_MIN {
            self.decided = self.mean < if self.decided { 0.0 } else { -LEAD };
        }
    }
}

/// Bytes of a window: some ten milliseconds of a thread's time.
const WINDOW: u64 = 64 << 20;
/// Bytes between two windows: twice what the default memory permits to lend.
const SETTLING: u64 = 32 << 20;
/// Bytes between the first trials.
const REST_NEW: u64 = 4 * WINDOW;
/// Bytes between trials: those that go the other way, in a window and before it, are one in 88.
const REST: u64 = 128 * WINDOW;
/// Longest window: less than 270 Mbit/s cost little of a processor either way.
const WINDOW_TIME_MAX: Duration = Duration::from_secs(2);
/// Other bytes may be one part in this many of a window.
const OTHERS_PARTS: u64 = 4;
/// A trial is discarded if the windows before and after differ by more than this fraction.
const UNSTEADY: f64 = 0.25;
/// Trials before the first decision.
const TRIALS_MIN: u32 = 3;
/// Trials that are averaged; beyond that older ones fade.
const TRIALS_AVERAGED: u32 = 8;
/// Lending must be cheaper by this much (a logarithm) to begin: it holds memory for longer.
const LEAD: f64 = 0.05;

#[cfg(test)]
mod tests;
