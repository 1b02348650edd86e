//! Decides how long to busy-poll before the worker sleeps.
//!
//! Sleeping costs the worker two system calls, and the side that wakes it one. Where the next
//! packet comes soon, polling is cheaper for both sides. Where no packet comes, polling takes a
//! processor that others could use: on a single processor, the very guest that the worker waits
//! for.
//!
//! So the worker polls only where it pays. Polling begins after a sleep shorter than the budget,
//! which polling would have saved. While polling finds work, it precedes each sleep. A budget spent
//! in vain stops it. Each further budget spent in vain in a row doubles the number of short sleeps
//! before the next try, up to `1 << MISSES_MAX`. An idle worker has long sleeps, so it polls once
//! after its last packet and then not at all.

use towpath_net::time::Duration;

/// Upper bound of the count of budgets spent in vain in a row. Where polling never pays, it
/// precedes one short sleep in `1 << MISSES_MAX`, a share too small to measure.
pub const MISSES_MAX: u32 = 10;

/// The polling budget and its recent results.
#[derive(Debug)]
pub(crate) struct BusyPoll {
    budget: Duration,
    /// Polling pays at present.
    pays: bool,
    /// Budgets spent in vain since polling last found work.
    misses: u32,
    /// Short sleeps that are still needed before the next try.
    wanted: u32,
}

impl BusyPoll {
    pub(crate) fn new(budget: Duration) -> Self {
        Self { budget, pays: false, misses: 0, wanted: 1 }
    }

    /// Returns how long to poll now.
    pub(crate) fn window(&self) -> Duration {
        if self.pays { self.budget } else { Duration::ZERO }
    }

    /// Polling found work `after` it began. `None`: the work was there before, such as loans that
    /// the worker itself has ended; that says nothing about polling. Work found after the budget
    /// counts as a miss: the thread waited for its processor meanwhile, so polling did not find it.
    pub(crate) fn found(&mut self, after: Option<Duration>) {
        match after {
            None => {}
            Some(after) if after > self.budget => self.missed(),
            Some(_) => self.misses = 0,
        }
    }

    /// The budget was spent in vain.
    pub(crate) fn missed(&mut self) {
        self.pays = false;
        self.wanted = 1 << self.misses;
        self.misses = MISSES_MAX.min(self.misses + 1);
    }

    /// A sleep of length `long` was ended by a source that can be polled.
    pub(crate) fn slept(&mut self, long: Duration) {
        if long < self.budget && !self.pays {
            self.wanted -= 1;
            self.pays = self.wanted == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(49);

    /// Returns the number of short sleeps until it polls again.
    fn sleeps(poll: &mut BusyPoll) -> u32 {
        let mut count = 0;
        while poll.window().is_zero() {
            poll.slept(SHORT);
            count += 1;
        }
        count
    }

    #[test]
    fn a_short_sleep_begins_it_and_a_vain_budget_ends_it() {
        let mut poll = BusyPoll::new(BUDGET);
        assert!(poll.window().is_zero(), "nothing is known yet");
        poll.slept(BUDGET);
        assert!(poll.window().is_zero(), "a long sleep");
        poll.slept(SHORT);
        assert_eq!(poll.window(), BUDGET);
        for _ in 0..100 {
            poll.found(Some(BUDGET));
            assert_eq!(poll.window(), BUDGET, "it pays");
        }
        poll.missed();
        assert!(poll.window().is_zero());
        assert_eq!(sleeps(&mut poll), 1);
    }

    /// Goal: polling does not take the processor that the guest needs, not even a processor of the
    /// worker's own.
    #[test]
    fn where_it_never_pays_it_is_hardly_tried() {
        let mut poll = BusyPoll::new(BUDGET);
        sleeps(&mut poll);
        let mut between = Vec::new();
        for miss in 0..14 {
            // Caused by the worker itself, such as loans that return from the other side of the
            // switch.
            poll.found(None);
            assert_eq!(poll.window(), BUDGET);
            // Found late because another thread had the processor: a miss, too.
            if miss % 2 == 0 {
                poll.missed()
            } else {
                poll.found(Some(BUDGET * 2))
            }
            between.push(sleeps(&mut poll));
        }
        let powers: Vec<_> = (0..14).map(|miss| 1 << MISSES_MAX.min(miss)).collect();
        assert_eq!(between, powers);
        poll.found(Some(SHORT));
        poll.missed();
        assert_eq!(sleeps(&mut poll), 1, "what was found lately counts");
    }

    #[test]
    fn without_a_budget_nothing_is_polled() {
        let mut poll = BusyPoll::new(Duration::ZERO);
        for _ in 0..100 {
            poll.slept(Duration::ZERO);
            assert!(poll.window().is_zero());
        }
    }
}
