//! Compares the costs of lending and copying by trying both. Pure: numbers in, decisions out.
//!
//! # Theory of operation
//!
//! Whether a call should lend depends on its size, and also on the machine, on the contents of its
//! caches, on the device and on the receiver, so it cannot be known in advance. A process can
//! measure it: the system reports the CPU time of all its threads together, and the sockets report
//! the bytes that they accepted. Sizes form *classes*, powers of two. Now and then the calls of one
//! class go the other way for 100 ms or more, on all sockets of the host in `Auto` mode. This is a
//! *trial* of three *runs*: the usual way, the other way, and the usual way again. The ratio of the
//! class's cost when it lends to its cost when it copies is averaged over trials, and the average
//! decides.
//!
//! - A run is measured once it has settled. Lent bytes wait for the network much longer than copied
//!   ones, so after a switch the sender is ahead or held up for a while; and many small loans are
//!   cheap until their memory has gone round a few times ([`ROUNDS`]). A *window* counts if about
//!   as much is lent at its end as at its beginning.
//! - A trial whose first and last run differ much was disturbed and does not count. The first trial
//!   of a class, in which memory may be used for the first time, counts only until the next one.
//! - A trial loses the extra cost of the other way, and the cost of the switches: megabytes of
//!   loans are created and freed, and none of that memory is in a cache. The loss is measured as
//!   the CPU time from the first switch until the process has settled after the second one, less
//!   what the same bytes would have cost the usual way. The next trial starts when the CPU time
//!   used since then makes the average loss one part in [`LOSS_PARTS`].
//! - The speed of a processor may change by a fifth within a tenth of a second, and single trials
//!   are off by as much, so many are averaged.
//! - When costs change, the next trials of the class detect it: a trial that contradicts the
//!   average ([`SURPRISE`]) reduces the weight of older ones.
//!
//! Only the classes of calls that are made are tried. Before its first trial, a class is decided by
//! a measurement (`calibration.rs`).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use towpath_packet::sync::{AtomicU32, Ordering};

/// Measurements that a trial uses.
pub trait Gauge {
    /// Returns the time since an arbitrary start.
    fn now(&self) -> Duration;
    /// Returns the CPU time of the process's threads.
    fn used(&self) -> Duration;
    /// Returns the bytes that are lent now.
    fn out(&self) -> u64;
}

/// Costs of the calls of all sockets of one kind in `Auto` mode, for one host.
///
/// The lock is taken once for many calls; a call reads one number. That number is advice, so every
/// access is relaxed.
#[derive(Debug)]
pub struct Costs {
    /// One bit for each class; set if it lends now.
    lending: AtomicU32,
    trials: Mutex<Trials>,
}

impl Costs {
    /// Creates costs by which calls of `break_even` bytes and more lend before the first trial.
    pub fn new(break_even: usize) -> Self {
        let trials = Trials::new(break_even);
        Self { lending: AtomicU32::new(trials.decided), trials: Mutex::new(trials) }
    }

    /// Returns true if a call of `size` bytes lends.
    pub fn lends(&self, size: usize) -> bool {
        size >= SIZE_MIN && self.lending.load(Ordering::Relaxed) >> class(size) & 1 == 1
    }

    /// Notes `calls` calls of `bytes` bytes in all; the last one had `size` bytes.
    pub fn made(&self, size: usize, calls: u32, bytes: u64, gauge: &impl Gauge) {
        let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
        self.lending.store(trials.step(class(size), calls, bytes, gauge), Ordering::Relaxed);
    }
}

/// Returns the class of a call of at least [`SIZE_MIN`] bytes.
fn class(size: usize) -> usize {
    ((size / SIZE_MIN).max(1).ilog2() as usize).min(CLASSES - 1)
}

#[derive(Debug)]
struct Trials {
    classes: [Class; CLASSES],
    /// One bit for each class; set if it was decided that it lends.
    decided: u32,
    calls: u64,
    bytes: u64,
    trial: Option<Trial>,
}

/// Results of the trials of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Logarithm of the ratio of lending's cost to copying's, averaged over `trials`.
    mean: f64,
    /// Nanoseconds that a trial loses on average.
    loss: f64,
    trials: u32,
    /// The first trial is complete.
    is_warm: bool,
    /// CPU time of the process before which there is no trial; and the moment before which `due` is
    /// not checked.
    due: Duration,
    look: Duration,
}

/// A trial in progress.
#[derive(Debug)]
struct Trial {
    class: usize,
    /// Times that the lent amount must be sent before a window begins.
    rounds: u64,
    run: Run,
    /// CPU time of the process when the trial began.
    began: Duration,
    /// CPU time and bytes when the other way began.
    changed: (Duration, u64),
    run_began: Mark,
    /// CPU time of the run that goes the other way.
    other_took: Duration,
    /// Start of the run's window, once it has settled.
    window: Option<Mark>,
    /// Cost of a byte in nanoseconds, in the first run and the other way.
    costs: [f64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Before,
    Other,
    After,
}

/// A moment between calls.
#[derive(Clone, Copy, Debug)]
struct Mark {
    now: Duration,
    used: Duration,
    out: u64,
    calls: u64,
    bytes: u64,
}

impl Trials {
    fn new(break_even: usize) -> Self {
        let lends = |class: &usize| SIZE_MIN << class >= break_even;
        let decided = (0..CLASSES).filter(lends).fold(0, |lending, class| lending | 1 << class);
        Self { classes: [Class::default(); CLASSES], decided, calls: 0, bytes: 0, trial: None }
    }

    /// Continues after some calls, the last of which were of `class`. Returns which classes lend.
    fn step(&mut self, class: usize, calls: u32, bytes: u64, gauge: &impl Gauge) -> u32 {
        self.calls += u64::from(calls);
        self.bytes += bytes;
        let now = gauge.now();
        match self.trial.take() {
            None if now < self.classes[class].look => {}
            None => self.trial = self.begin(class, now, gauge),
            Some(trial) => self.trial = self.go_on(trial, now, gauge),
        }
        match &self.trial {
            Some(Trial { run: Run::Other, class, .. }) => self.decided ^ 1 << class,
            _ => self.decided,
        }
    }

    /// Starts a trial if one is due.
    fn begin(&mut self, class: usize, now: Duration, gauge: &impl Gauge) -> Option<Trial> {
        let used = gauge.used();
        let left = self.classes[class].due.saturating_sub(used);
        if left.is_zero() {
            let (calls, bytes) = (self.calls, self.bytes);
            let mark = Mark { now, used, out: gauge.out(), calls, bytes };
            // The first trial does not count for long, and may begin with the much more expensive
            // way.
            let rounds = if self.classes[class].is_warm { ROUNDS } else { 0 };
            return Some(Trial::new(class, rounds, mark));
        }
        self.classes[class].look = now + (left / LOOKS).max(LOOK_MIN);
        None
    }

    fn go_on(&mut self, mut trial: Trial, now: Duration, gauge: &impl Gauge) -> Option<Trial> {
        if now - trial.run_began.now > RUN_MAX {
            let used = gauge.used();
            self.put_off(trial.class, used, used.saturating_sub(trial.began));
            return None;
        }
        let cost = trial.look(now, self.calls, self.bytes, gauge);
        let Some((cost, mark)) = cost else { return Some(trial) };
        let used = mark.used;
        match trial.run {
            Run::Before => {
                trial.costs[0] = cost;
                trial.changed = (used, self.bytes);
            }
            Run::Other => {
                trial.costs[1] = cost;
                trial.other_took = used.saturating_sub(trial.run_began.used);
            }
            Run::After => {
                self.judge(&trial, cost, used);
                return None;
            }
        }
        Some(trial.next(mark))
    }

    /// Evaluates a completed trial, whose last run cost `after` per byte.
    fn judge(&mut self, trial: &Trial, after: f64, used: Duration) {
        let [before, other] = trial.costs;
        let own = f64::midpoint(before, after);
        if (before - after).abs() > own * UNSTEADY {
            return self.put_off(trial.class, used, trial.other_took);
        }
        let bit = 1 << trial.class;
        let lends = self.decided & bit != 0;
        let sent = (self.bytes - trial.changed.1) as f64;
        let ran = used.saturating_sub(trial.changed.0).as_nanos() as f64;
        let class = &mut self.classes[trial.class];
        let ratio = if lends { own / other } else { other / own };
        let is_surprise = class.learn(ratio, ran - sent * own);
        if !std::mem::replace(&mut class.is_warm, true) {
            // Memory was used for the first time: this trial counts only until the next one.
            class.trials = 0;
        }
        match class.mean < if lends { LEAD } else { -LEAD } {
            true => self.decided |= bit,
            false => self.decided &= !bit,
        }
        // A single trial may be far off, so early results are checked soon; and costs may have
        // changed.
        match (class.trials < TRIALS_NEW, is_surprise) {
            (true, _) => class.due = used + trial.other_took.mul_f64(REST_NEW),
            (false, true) => class.due = used + trial.other_took.mul_f64(REST_RUNS),
            (false, false) => class.rest(used, trial.other_took),
        }
    }

    /// Handles a trial without a result, which took this long.
    fn put_off(&mut self, class: usize, used: Duration, took: Duration) {
        self.classes[class].rest(used, took);
    }
}

impl Class {
    /// Learns from a trial in which lending cost `ratio` of copying, and which lost `lost`
    /// nanoseconds. Returns true if it contradicts earlier trials.
    fn learn(&mut self, ratio: f64, lost: f64) -> bool {
        let found = ratio.ln();
        let is_surprise = self.trials > 0 && found.abs() > SURPRISE && found * self.mean < 0.0;
        if is_surprise {
            self.trials = self.trials.min(TRIALS_NEW);
        }
        self.trials = (self.trials + 1).min(TRIALS_AVERAGED);
        self.mean += (found - self.mean) / f64::from(self.trials);
        self.loss += (lost - self.loss) / f64::from(self.trials);
        is_surprise
    }

    /// Schedules the next trial for when its loss is a small part of the time until then. `took` is
    /// the CPU time of the last run the other way. The loss is the average one, because single
    /// trials are often off by more than they lose.
    fn rest(&mut self, used: Duration, took: Duration) {
        let loss = Duration::from_nanos(self.loss.max(0.0) as u64).min(took.mul_f64(LOSS_MAX));
        self.due = used + loss.mul_f64(LOSS_PARTS).max(took.mul_f64(REST_RUNS));
    }
}

impl Trial {
    fn new(class: usize, rounds: u64, mark: Mark) -> Self {
        Self {
            class,
            rounds,
            run: Run::Before,
            began: mark.used,
            changed: (mark.used, 0),
            run_began: mark,
            other_took: Duration::ZERO,
            window: None,
            costs: [0.0; 2],
        }
    }

    fn next(self, mark: Mark) -> Self {
        let run = match self.run {
            Run::Before => Run::Other,
            Run::Other | Run::After => Run::After,
        };
        Self { run, run_began: mark, window: None, ..self }
    }

    /// Returns the cost of a byte in this run, and the end of its window, once the window is long
    /// enough and steady. Lengths must be reached both in time and in CPU time: a process that was
    /// stopped for a while has not settled meanwhile.
    fn look(
        &mut self,
        now: Duration,
        calls: u64,
        bytes: u64,
        gauge: &impl Gauge,
    ) -> Option<(f64, Mark)> {
        let (since, length) = match self.window {
            Some(window) => (window, WINDOW),
            None => (self.run_began, SETTLING),
        };
        let is_short = now < since.now + length;
        if is_short || self.window.is_some_and(|window| calls - window.calls < CALLS_MIN) {
            return None;
        }
        let used = gauge.used();
        if used < since.used + length {
            return None;
        }
        let mark = Mark { now, used, out: gauge.out(), calls, bytes };
        if self.window.is_none() && bytes - since.bytes < self.rounds * since.out.max(mark.out) {
            return None;
        }
        let window = self.window.replace(mark)?;
        let sent = bytes - window.bytes;
        if mark.out.abs_diff(window.out) > sent / STEADY_PARTS {
            return None;
        }
        Some((used.saturating_sub(window.used).as_nanos() as f64 / sent as f64, mark))
    }
}

/// Smaller calls are always copied, and belong to no class.
pub(in crate::host) const SIZE_MIN: usize = 1 << 10;
/// Number of classes: from 1 KiB to 128 KiB and more.
const CLASSES: usize = 8;
/// Least time from the start of a run to that of its first window: after a switch tens of megabytes
/// of loans are created or freed, and none of their memory is in a cache.
const SETTLING: Duration = Duration::from_millis(50);
/// Times that the lent amount must be sent before the first window. With 64 MiB lent in calls of 1
/// KiB, 50 ms are a single round: lending then seemed to cost 0.97 of copying, over 59 trials, but
/// costs 1.13 in the long run.
const ROUNDS: u64 = 4;
/// Shortest window: some hundred times a thread's time slice, and enough to distinguish costs that
/// differ by a tenth.
const WINDOW: Duration = Duration::from_millis(50);
/// Fewest calls in a window.
const CALLS_MIN: u64 = 64;
/// What is lent may change within a window by one part in this many of what was sent.
const STEADY_PARTS: u64 = 16;
/// A run that lasts longer is abandoned: the sockets send too little, or not steadily.
const RUN_MAX: Duration = Duration::from_secs(2);
/// A trial is discarded if the runs before and after differ by more than this fraction.
const UNSTEADY: f64 = 0.5;
/// This many first trials follow each other soon, whatever their results.
const TRIALS_NEW: u32 = 4;
/// Trials that are averaged; beyond that older ones fade.
const TRIALS_AVERAGED: u32 = 16;
/// A trial that contradicts the average by this much (a logarithm) may be the first after a change.
const SURPRISE: f64 = 0.25;
/// The other way must be better by this much (a logarithm), so that noise does not switch between
/// equal ways.
const LEAD: f64 = 0.01;
/// Trials may lose one part in this many.
const LOSS_PARTS: f64 = 200.0;
/// How often the next trial's due time is checked until then, on one busy processor; each check is
/// a system call.
const LOOKS: u32 = 8;
const LOOK_MIN: Duration = Duration::from_millis(5);
/// Least pause before the next trial, in multiples of the duration of the last other run.
const REST_RUNS: f64 = 20.0;
/// Pause after one of the first trials, in the same unit.
const REST_NEW: f64 = 5.0;
/// Larger losses are capped at this multiple: otherwise the next trial would come too late if costs
/// change.
const LOSS_MAX: f64 = 10.0;

#[cfg(test)]
mod tests;
