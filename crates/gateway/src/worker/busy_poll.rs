//! For how long to look for work before going to sleep.
//!
//! Sleeping costs the worker two system calls and whoever wakes it one, so where the next packet
//! comes soon it is cheaper for both to look for it. Where none comes, looking costs a processor
//! that others could have used: with a single one, the very guest that is waited for.
//!
//! So nothing is polled unless it pays. A sleep that was shorter than the budget would have been
//! saved by polling, and begins it. As long as something is found, polling goes on before each
//! sleep. A budget that is spent in vain ends it, and each further one in a row doubles the short
//! sleeps that must be seen before the next try, up to `1 << MISSES_MAX`. An idle worker has long
//! sleeps, and so polls once after its last packet and then not at all.

use towpath_net::time::Duration;

/// Budgets spent in vain in a row, as far as they are counted: where polling never pays, one short
/// sleep in so many as this power of two is preceded by it, a share that cannot be measured.
pub const MISSES_MAX: u32 = 10;

/// The budget, and what came of it lately.
#[derive(Debug)]
pub(super) struct BusyPoll {
    budget: Duration,
    /// It pays at present.
    pays: bool,
    /// Budgets spent in vain since something was found.
    misses: u32,
    /// Short sleeps that are still to be seen.
    wanted: u32,
}

impl BusyPoll {
    pub(super) fn new(budget: Duration) -> Self {
        Self { budget, pays: false, misses: 0, wanted: 1 }
    }

    /// For how long to poll now.
    pub(super) fn window(&self) -> Duration {
        if self.pays { self.budget } else { Duration::ZERO }
    }

    /// Work was found `after` polling began; `None` if it was there before, such as loans that the
    /// worker itself has ended, which says nothing about polling. If it was found too late, the
    /// thread had to wait for its processor meanwhile, and it was not polling that found it.
    pub(super) fn found(&mut self, after: Option<Duration>) {
        match after {
            None => {}
            Some(after) if after > self.budget => self.missed(),
            Some(_) => self.misses = 0,
        }
    }

    /// The budget was spent in vain.
    pub(super) fn missed(&mut self) {
        self.pays = false;
        self.wanted = 1 << self.misses;
        self.misses = MISSES_MAX.min(self.misses + 1);
    }

    /// What can be polled ended a sleep of so long.
    pub(super) fn slept(&mut self, long: Duration) {
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

    /// Short sleeps until it polls again.
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

    /// Goal: a processor that the guest needs is not polled away, be it ours alone.
    #[test]
    fn where_it_never_pays_it_is_hardly_tried() {
        let mut poll = BusyPoll::new(BUDGET);
        sleeps(&mut poll);
        let mut between = Vec::new();
        for miss in 0..14 {
            // Of our own making, as what comes back from the other side of the switch.
            poll.found(None);
            assert_eq!(poll.window(), BUDGET);
            // Found by whoever had the processor, while we waited for it: in vain, too.
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
