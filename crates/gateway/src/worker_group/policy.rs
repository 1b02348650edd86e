//! Decides how many workers serve, and which buckets each of them owns.
//!
//! # Theory of operation
//!
//! Every [`WINDOW`] the first worker looks at what the threads did. A thread is *full* if it hardly
//! slept. While the first worker is alone and not full, nothing is counted.
//!
//! - *Joining*: all serving workers have been full for [`FULL_WINDOWS`], with [`FLOWS_MIN`] flows
//!   open, and several flows have packets. The next worker gets up to half of the packets of the
//!   fullest one, by whole buckets. One that has never joined is made first, and joins in a later
//!   window.
//! - *Trial*: another thread helps only if a processor has time for it. So the bytes that all
//!   workers move are compared with those before. If they are not [`GAIN`] more, the worker leaves.
//! - *Balance*: if one worker is full and another has time, buckets move from one to the other.
//! - *Leaving*: if the work would fit the other workers for [`QUIET_WINDOWS`], the last worker
//!   returns its buckets.
//! - *Pause*: after a worker has left, none joins for a while: [`PAUSE_MIN`], and twice as long
//!   each time, up to [`PAUSE_MAX`], as long as workers leave within [`STAY_MIN`]. So a load that
//!   comes and goes, or that another thread does not speed up, moves flows ever more rarely.
//!
//! A single busy flow never moves: it would gain nothing. Time comes with each sample.

use std::time::Duration;

use towpath_net::time::Instant;

use crate::owners::{BUCKETS, Bucket, Buckets, Owners};

/// Time between two decisions: long beside a turn, short beside a transfer.
pub(super) const WINDOW: Duration = Duration::from_millis(10);
/// Busy time of a full worker, in thousandths.
const FULL: u32 = 900;
/// Busy time of a worker that has time for more, in thousandths.
const SPARE: u32 = 700;
/// Windows in which all must be full before another worker joins.
const FULL_WINDOWS: u32 = 5;
/// Flows that must be open at the same time before another worker joins: connections that follow
/// each other are several flows, and never need two threads at once.
const FLOWS_MIN: usize = 2;
/// Windows after a worker has joined that are not counted: the flows that moved open their windows.
const SETTLING_WINDOWS: u32 = 4;
/// Windows of a trial, without the first ones.
const TRIAL_WINDOWS: u32 = 16;
/// Bytes moved in a trial that justify another thread, in thousandths of those before.
const GAIN: u64 = 1050;
/// Windows in which the work must fit fewer workers before one leaves.
const QUIET_WINDOWS: u32 = 20;
/// Pauses after a worker has left, before one joins again.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(64);
/// A worker that leaves sooner has not paid: the next pause is twice as long.
const STAY_MIN: Duration = Duration::from_secs(2);
/// Least share of a worker's packets that is worth a move, in thousandths.
const MOVED_MIN: u64 = 100;

/// What the workers did in a window.
pub(super) struct Sample<'a> {
    pub(super) now: Instant,
    pub(super) elapsed: Duration,
    /// Busy time of each worker, in thousandths.
    pub(super) busy: &'a [u32],
    /// Payload bytes that all workers moved.
    pub(super) bytes: u64,
    /// Open flows of all workers.
    pub(super) flows: usize,
    /// Packets from the program, by bucket, of this and earlier windows.
    pub(super) packets: &'a [u32; BUCKETS],
    /// Buckets that have to stay with the first worker.
    pub(super) pinned: &'a Buckets,
    pub(super) owners: &'a Owners,
    /// Workers besides the first that have been made.
    pub(super) ready: usize,
}

/// Buckets to be moved. Either `from` or `to` is the first worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) buckets: Buckets,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The state of the decisions.
pub(super) struct Policy {
    /// Workers besides the first.
    others: usize,
    /// Workers besides the first that serve; they are those with the lowest indices.
    active: usize,
    /// Another worker is to join that has not been made.
    wants_another: bool,
    /// Windows in a row in which all were full, and what they moved.
    full: u32,
    before: Rate,
    /// Windows in a row in which the work would have fit fewer workers.
    quiet: u32,
    trial: Option<Trial>,
    /// The next pause, and the end of the last one.
    pause: Duration,
    not_before: Instant,
    joined_at: Instant,
    /// Set in tests: all buckets move so often.
    rotates: Option<Duration>,
    rotated_at: Instant,
}

/// The last worker has joined to see whether it pays.
struct Trial {
    windows: u32,
    before: Rate,
    now: Rate,
}

/// Bytes in a time.
#[derive(Clone, Copy, Default)]
struct Rate {
    bytes: u64,
    time: Duration,
}

impl Rate {
    fn add(&mut self, sample: &Sample<'_>) {
        self.bytes += sample.bytes;
        self.time += sample.elapsed;
    }

    fn per_second(&self) -> u64 {
        (u128::from(self.bytes) * 1_000_000 / self.time.as_micros().max(1)) as u64
    }
}

impl Policy {
    pub(super) fn new(others: usize) -> Self {
        Self {
            others,
            active: 0,
            wants_another: false,
            full: 0,
            before: Rate::default(),
            quiet: 0,
            trial: None,
            pause: PAUSE_MIN,
            not_before: Instant::START,
            joined_at: Instant::START,
            rotates: None,
            rotated_at: Instant::START,
        }
    }

    /// Moves all buckets to the second worker and back, so often. For tests.
    pub(super) fn rotate_every(&mut self, period: Duration) {
        self.rotates = Some(period);
    }

    /// Moves nothing, where the second worker serves.
    #[cfg(test)]
    pub(super) fn keep_owners(&mut self) {
        (self.rotates, self.active) = (Some(Duration::MAX), 1);
    }

    /// Returns true if packets have to be counted by bucket.
    pub(super) fn counts(&self) -> bool {
        self.full > 0 || self.active > 0
    }

    /// Returns the number of workers that serve, besides the first.
    pub(super) fn active(&self) -> usize {
        self.active
    }

    /// Returns true if another worker is to be made, so that it can join in a later window.
    pub(super) fn wants_another(&self) -> bool {
        self.wants_another
    }

    /// A worker could not be made, or did not pay: the next attempt comes after a pause, which is
    /// twice as long as the one before.
    pub(super) fn postpone(&mut self, now: Instant) {
        self.not_before = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Decides about a window. The caller makes the move before the next call.
    pub(super) fn decide(&mut self, sample: &Sample<'_>) -> Option<Move> {
        self.wants_another = false;
        if let Some(period) = self.rotates {
            return self.rotate(period, sample);
        }
        let serving = &sample.busy[..=self.active];
        let is_full = sample.flows >= FLOWS_MIN && serving.iter().all(|busy| *busy >= FULL);
        if is_full {
            self.full += 1;
            self.before.add(sample);
        } else {
            (self.full, self.before) = (0, Rate::default());
        }
        // The work of all, if one worker fewer had to do it.
        let work: u32 = serving.iter().sum();
        let is_quiet = self.active > 0 && work <= SPARE * self.active as u32;
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        if self.quiet >= QUIET_WINDOWS {
            return self.leave(sample);
        }
        if self.trial.is_some() {
            if self.count_trial(sample) == Some(false) {
                return self.leave(sample);
            }
        } else if self.full >= FULL_WINDOWS
            && self.active < self.others
            && sample.now >= self.not_before
            && let Some(joins) = self.join(sample)
        {
            return Some(joins);
        }
        self.balance(sample)
    }

    /// Forgets what was observed, after all buckets have returned to the first worker.
    pub(super) fn all_returned(&mut self) {
        (self.active, self.full, self.quiet, self.trial) = (0, 0, 0, None);
    }

    fn join(&mut self, sample: &Sample<'_>) -> Option<Move> {
        // Only the first worker's buckets move directly; others make room there first.
        let buckets = share(sample, 0, 1, 2)?;
        self.wants_another = self.active == sample.ready;
        if self.wants_another {
            return None;
        }
        self.active += 1;
        self.joined_at = sample.now;
        let before = std::mem::take(&mut self.before);
        self.trial = Some(Trial { windows: 0, before, now: Rate::default() });
        self.full = 0;
        Some(Move { buckets, from: 0, to: self.active })
    }

    /// Counts a window of a trial; at the end, returns whether the worker that joined pays.
    fn count_trial(&mut self, sample: &Sample<'_>) -> Option<bool> {
        let trial = self.trial.as_mut()?;
        trial.windows += 1;
        if trial.windows > SETTLING_WINDOWS {
            trial.now.add(sample);
        }
        if trial.windows < SETTLING_WINDOWS + TRIAL_WINDOWS {
            return None;
        }
        let pays = trial.now.per_second() * 1000 >= trial.before.per_second() * GAIN;
        self.trial = None;
        Some(pays)
    }

    /// Lets the last worker leave.
    fn leave(&mut self, sample: &Sample<'_>) -> Option<Move> {
        let from = self.active;
        self.active -= 1;
        if sample.now.since(self.joined_at) >= STAY_MIN {
            self.pause = PAUSE_MIN;
        }
        self.postpone(sample.now);
        (self.full, self.before, self.quiet, self.trial) = (0, Rate::default(), 0, None);
        let buckets = sample.owners.all_of(from as u8);
        (!buckets.is_empty()).then_some(Move { buckets, from, to: 0 })
    }

    /// Returns the move that takes work from the fullest worker to the one with most time.
    fn balance(&self, sample: &Sample<'_>) -> Option<Move> {
        let serving = || sample.busy[..=self.active].iter().copied().enumerate();
        let (from, most) = serving().max_by_key(|(_, busy)| *busy)?;
        let (to, least) = serving().min_by_key(|(_, busy)| *busy)?;
        if most < FULL || least > SPARE || from == to {
            return None;
        }
        // Half of the difference makes both equal.
        let buckets = share(sample, from, most - least, 2 * most)?;
        // Between two others, buckets pass the first worker: the next window moves them on.
        Some(Move { buckets, from, to: if from == 0 { to } else { 0 } })
    }

    fn rotate(&mut self, period: Duration, sample: &Sample<'_>) -> Option<Move> {
        if sample.now.since(self.rotated_at) < period || self.others == 0 {
            return None;
        }
        if self.active > 0 {
            self.rotated_at = sample.now;
            return self.leave(sample);
        }
        self.wants_another = sample.ready == 0;
        if self.wants_another {
            return None;
        }
        self.rotated_at = sample.now;
        self.active = 1;
        let all = (0..=Bucket::MAX).filter(|bucket| !sample.pinned.contains(*bucket));
        Some(Move { buckets: all.collect(), from: 0, to: 1 })
    }
}

/// Returns buckets of a worker that have at most `part / whole` of its packets together, the
/// busiest first; `None` if they have too few to be worth a move.
fn share(sample: &Sample<'_>, worker: usize, part: u32, whole: u32) -> Option<Buckets> {
    let packets = |bucket: Bucket| u64::from(sample.packets[usize::from(bucket)]);
    let own = sample.owners.all_of(worker as u8);
    let total: u64 = own.iter().map(packets).sum();
    let most = total * u64::from(part) / u64::from(whole.max(1));
    let may_move = |bucket: &Bucket| packets(*bucket) > 0 && !sample.pinned.contains(*bucket);
    let mut busiest: Vec<Bucket> = own.iter().filter(may_move).collect();
    busiest.sort_unstable_by_key(|bucket| std::cmp::Reverse(packets(*bucket)));
    let (mut buckets, mut moved) = (Buckets::default(), 0);
    for bucket in busiest {
        if moved + packets(bucket) <= most {
            moved += packets(bucket);
            buckets.insert(bucket);
        }
    }
    (moved > 0 && moved * 1000 >= total * MOVED_MIN).then_some(buckets)
}

#[cfg(test)]
mod tests;
