//! What lending costs beside copying, found by trying both: numbers in, decisions out.
//!
//! # Theory of operation
//!
//! Whether a call should lend depends on its size, but also on the machine, on what caches hold, on
//! what carries the packets and on who receives: no table knows all that. A process can measure it:
//! the system tells how long all its threads together have run, and the sockets how many bytes they
//! took. So sizes have *classes*, powers of two, and now and then the calls of one class go the
//! other way for 100 ms and more, with all sockets of a host that choose: a *trial* of three
//! *runs*, as before, the other way, and as before. What the class costs when it lends, of what it
//! costs when it copies, is averaged over trials; it decides by the average.
//!
//! - A run is measured when it has settled: what is lent waits for the network, much longer than
//!   what is copied, so that after a change the sender is ahead or held up for a while; and what
//!   many small loans need is cheap until their memory has gone round some times ([`ROUNDS`]). A
//!   *window* counts if about as much is out at its end as was at its beginning.
//! - A trial whose first and last run differ much saw something else, and does not count; the first
//!   of a class, in which memory may be used for the first time, counts until there is another.
//! - A trial loses what the other way costs more, and what the changes cost: megabytes of loans are
//!   made and freed, and nothing of that is in a cache. It is measured, as what the process ran for
//!   from the one change until it has settled after the other, less what these bytes would have
//!   cost. The next trial comes when the process has run for so long that the average of this is
//!   one part of [`LOSS_PARTS`].
//! - How fast a processor is may change by a fifth within a tenth of a second, and single trials
//!   are off by as much: many are averaged.
//! - Where the costs change, that is found by the next trials of that class: one that says the
//!   opposite of the average ([`SURPRISE`]) has older ones count less.
//!
//! Only the classes of calls that are made are tried. Before the first trial a class is decided by
//! a measurement (`calibration.rs`).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use towpath_packet::sync::{AtomicU32, Ordering};

/// What a trial goes by.
pub(in crate::host) trait Gauge {
    /// The time, from anywhere on.
    fn now(&self) -> Duration;
    /// Time that the threads of the process have run.
    fn used(&self) -> Duration;
    /// Bytes that are lent now.
    fn out(&self) -> u64;
}

/// What calls cost all sockets of a host that choose, of one kind.
///
/// The lock is taken once for many calls; what a call reads is one number. It is advice, so every
/// access is relaxed.
#[derive(Debug)]
pub(in crate::host) struct Costs {
    /// A bit for each class that lends now.
    lending: AtomicU32,
    trials: Mutex<Trials>,
}

impl Costs {
    /// Before all trials calls of `break_even` bytes and more lend.
    pub(in crate::host) fn new(break_even: usize) -> Self {
        let trials = Trials::new(break_even);
        Self { lending: AtomicU32::new(trials.decided), trials: Mutex::new(trials) }
    }

    /// Whether a call lends.
    pub(in crate::host) fn lends(&self, size: usize) -> bool {
        size >= SIZE_MIN && self.lending.load(Ordering::Relaxed) >> class(size) & 1 == 1
    }

    /// So many calls were made, of so many bytes in all; the last had `size`.
    pub(in crate::host) fn made(&self, size: usize, calls: u32, bytes: u64, gauge: &impl Gauge) {
        let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
        self.lending.store(trials.step(class(size), calls, bytes, gauge), Ordering::Relaxed);
    }
}

/// The class of a call of at least [`SIZE_MIN`] bytes.
fn class(size: usize) -> usize {
    ((size / SIZE_MIN).max(1).ilog2() as usize).min(CLASSES - 1)
}

#[derive(Debug)]
struct Trials {
    classes: [Class; CLASSES],
    /// A bit for each class that is to lend.
    decided: u32,
    calls: u64,
    bytes: u64,
    trial: Option<Trial>,
}

/// What is known of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// What lending costs of what copying costs, as `trials` told: the logarithm.
    mean: f64,
    /// Nanoseconds that a trial loses.
    loss: f64,
    trials: u32,
    /// The first trial is over.
    is_warm: bool,
    /// There is no trial before the process has run for so long, and this is not looked at before
    /// that moment.
    due: Duration,
    look: Duration,
}

/// A trial under way.
#[derive(Debug)]
struct Trial {
    class: usize,
    /// What goes out before a window begins, of what is lent.
    rounds: u64,
    run: Run,
    /// What the process had run for when the trial began.
    began: Duration,
    /// The same, and the bytes by then, when the other way began.
    changed: (Duration, u64),
    run_began: Mark,
    /// What the process ran for the other way.
    other_took: Duration,
    /// Where the window of the run begins, once it may.
    window: Option<Mark>,
    /// Cost of a byte, in nanoseconds: before, and the other way.
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

    /// Goes on after some calls, the last of which were of `class`. Returns which classes lend.
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

    /// Begins a trial if one is due.
    fn begin(&mut self, class: usize, now: Duration, gauge: &impl Gauge) -> Option<Trial> {
        let used = gauge.used();
        let left = self.classes[class].due.saturating_sub(used);
        if left.is_zero() {
            let (calls, bytes) = (self.calls, self.bytes);
            let mark = Mark { now, used, out: gauge.out(), calls, bytes };
            // The first is not believed for long, and may begin with the much dearer way.
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

    /// A trial is over, and its last run cost so much.
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
            // Memory was used for the first time: this counts until there is another.
            class.trials = 0;
        }
        match class.mean < if lends { LEAD } else { -LEAD } {
            true => self.decided |= bit,
            false => self.decided &= !bit,
        }
        // One trial may be far off: what the first found is not believed for long. And perhaps
        // costs have changed.
        match (class.trials < TRIALS_NEW, is_surprise) {
            (true, _) => class.due = used + trial.other_took.mul_f64(REST_NEW),
            (false, true) => class.due = used + trial.other_took.mul_f64(REST_RUNS),
            (false, false) => class.rest(used, trial.other_took),
        }
    }

    /// Nothing was learnt from a trial, which took so long.
    fn put_off(&mut self, class: usize, used: Duration, took: Duration) {
        self.classes[class].rest(used, took);
    }
}

impl Class {
    /// A trial found that lending costs `ratio` of what copying costs, and lost so many
    /// nanoseconds. True if it said the opposite of those before.
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

    /// The next trial may come when one loses little of the time until then. The last run the other
    /// way took so long; by the average, as single trials are often wrong by more than they lose.
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

    /// The cost of a byte in this run, once its window is long enough and steady, and where that
    /// ends. Lengths are both time that passes and time that the process runs: one that was stopped
    /// for a while has not settled meanwhile.
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

/// Smaller calls are copied, and belong to no class.
pub(in crate::host) const SIZE_MIN: usize = 1 << 10;
/// Classes: from 1 KiB to those of 128 KiB and more.
const CLASSES: usize = 8;
/// From the beginning of a run to that of its first window, at least: after a change tens of
/// megabytes of loans are made or freed, and what has to do with them is in no cache.
const SETTLING: Duration = Duration::from_millis(50);
/// So many times what is lent goes out before that. Where 64 MiB may be, 50 ms are one round of
/// 1 KiB each: lending then seemed to take 0.97 of copying, by 59 trials, and takes 1.13 for good.
const ROUNDS: u64 = 4;
/// Shortest window: some hundred times what a thread runs at one go, and enough to tell costs that
/// differ by a tenth.
const WINDOW: Duration = Duration::from_millis(50);
/// Calls in a window, at least.
const CALLS_MIN: u64 = 64;
/// What is out may change in a window by one part of so many of what was sent.
const STEADY_PARTS: u64 = 16;
/// A run that lasts longer is given up: the sockets send too little, or not steadily.
const RUN_MAX: Duration = Duration::from_secs(2);
/// Runs before and after that differ by more say nothing of what was between.
const UNSTEADY: f64 = 0.5;
/// The first trials come soon, whatever they find.
const TRIALS_NEW: u32 = 4;
/// So many trials are averaged; from then on older ones fade.
const TRIALS_AVERAGED: u32 = 16;
/// A trial that is so far on the other side, as a logarithm, may be the first since a change.
const SURPRISE: f64 = 0.25;
/// By so much, as a logarithm, the other way must be better, so that noise does not change what is
/// level.
const LEAD: f64 = 0.01;
/// Trials may lose one part of so many.
const LOSS_PARTS: f64 = 200.0;
/// Whether the next trial is due is looked at so many times on one processor until it is; for each
/// look the kernel is asked.
const LOOKS: u32 = 8;
const LOOK_MIN: Duration = Duration::from_millis(5);
/// The next trial comes after at least so many times what the other run took.
const REST_RUNS: f64 = 20.0;
/// The same after one of the first.
const REST_NEW: f64 = 5.0;
/// More does not count: the next trial would come too late if the costs change.
const LOSS_MAX: f64 = 10.0;

#[cfg(test)]
mod tests;
