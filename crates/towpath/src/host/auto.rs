//! Which sends lend, by their size: numbers in, a decision out.
//!
//! A loan costs about the same whatever its size, a copy costs by the byte. Where they meet is the
//! *break-even*. It is a power of two, begins at what a measurement yields ([`break_even`]), and
//! never falls below that: no return can tell that a smaller loan would have been cheaper. Loans
//! that were wasted raise it; loans below it that are tried now and then, and are not wasted, let
//! it fall again.

/// What becomes of one call's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Copy,
    Lend,
    /// Lent, and [`Chooser::learn`] is to hear how it went.
    LendWatched,
}

/// How a loan that was watched went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) size: usize,
    /// Bytes were copied after all.
    pub(super) copied: bool,
    /// From the call until all was back.
    pub(super) nanos: u64,
}

/// Chooses for the calls of one socket.
#[derive(Debug)]
pub(super) struct Chooser {
    /// What was measured.
    least: usize,
    break_even: usize,
    /// Calls that lent, and calls of sizes between the two that were copied, since the last one
    /// that was watched.
    lent: u32,
    copied: u32,
    /// Loans that were wasted, less those that were not.
    wasted: u32,
}

impl Chooser {
    pub(super) fn new(least: usize) -> Self {
        Self { least, break_even: least, lent: WATCH_EVERY - 1, copied: 0, wasted: 0 }
    }

    /// Decides for a call of `size` bytes.
    pub(super) fn choose(&mut self, size: usize) -> Choice {
        if size < self.least {
            return Choice::Copy;
        }
        let lends = size >= self.break_even;
        let (calls, every) = match lends {
            true => (&mut self.lent, WATCH_EVERY),
            false => (&mut self.copied, TRY_EVERY),
        };
        *calls += 1;
        if *calls == every {
            *calls = 0;
            return Choice::LendWatched;
        }
        if lends { Choice::Lend } else { Choice::Copy }
    }

    /// Takes up how a loan went.
    pub(super) fn learn(&mut self, outcome: Outcome) {
        let wasted = outcome.copied || outcome.nanos > LATE_NANOS;
        if outcome.size < self.break_even {
            if !wasted {
                self.break_even = (self.break_even / 2).max(self.least);
            }
        } else if !wasted {
            self.wasted = self.wasted.saturating_sub(1);
        } else {
            self.wasted += 1;
            if self.wasted == WASTED_MAX {
                self.wasted = 0;
                self.break_even = self.break_even.saturating_mul(2);
            }
        }
    }
}

/// The size from which on lending costs all threads together less, when a loan's own work takes
/// `loan_nanos` and copying [`COPY_SAMPLE`] hot bytes takes `copy_nanos`, on one thread that does
/// nothing else. Over a device it is larger: the kernel copies what it takes, lent or not, so that
/// less is saved.
pub(super) fn break_even(loan_nanos: u64, copy_nanos: u64, over_device: bool) -> usize {
    let bytes = loan_nanos.saturating_mul(COPY_SAMPLE as u64) / copy_nanos.max(1);
    let bytes = (bytes / ALONE_FACTOR).clamp(BREAK_EVEN_MIN as u64, BREAK_EVEN_MAX as u64) as usize;
    bytes.next_power_of_two() * if over_device { DEVICE_FACTOR } else { 1 }
}

/// Bytes of the copy that is measured: a super-packet.
pub(super) const COPY_SAMPLE: usize = 64 << 10;
/// One of so many loans is watched.
const WATCH_EVERY: u32 = 16;
/// One of so many calls that would be copied is lent, to see.
const TRY_EVERY: u32 = 64;
/// So many wasted loans raise the break-even.
const WASTED_MAX: u32 = 4;
/// A loan that is out for longer was wasted: a copy lets the program go on at once.
const LATE_NANOS: u64 = 500_000_000;
/// How much larger the break-even of one thread alone is than that of a connection, where the
/// copy's frames are cold and cost work of their own. `towpath bench zerocopy` finds a third; with
/// half, lending begins too late rather than too early.
const ALONE_FACTOR: u64 = 2;
/// Least break-even: below it lending costs all threads together more than copying.
const BREAK_EVEN_MIN: usize = 2 << 10;
/// Most that a measurement yields, over a link.
const BREAK_EVEN_MAX: usize = 16 << 10;
/// How much larger the break-even is over a device.
const DEVICE_FACTOR: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Outcome = Outcome { size: 64 << 10, copied: false, nanos: 1_000 };
    const COPIED: Outcome = Outcome { copied: true, ..GOOD };
    const LATE: Outcome = Outcome { nanos: LATE_NANOS + 1, ..GOOD };

    /// Of `calls` calls of `size`: how many lend. Watched ones go like `outcome`.
    fn run(chooser: &mut Chooser, calls: u32, outcome: Outcome) -> u32 {
        let mut lent = 0;
        for _ in 0..calls {
            let choice = chooser.choose(outcome.size);
            lent += u32::from(choice != Choice::Copy);
            if choice == Choice::LendWatched {
                chooser.learn(outcome);
            }
        }
        lent
    }

    #[test]
    fn sizes_from_the_break_even_on_lend() {
        let mut chooser = Chooser::new(4096);
        assert_eq!(run(&mut chooser, 1000, Outcome { size: 4095, ..GOOD }), 0);
        assert_eq!(run(&mut chooser, 1000, Outcome { size: 4096, ..GOOD }), 1000);
    }

    #[test]
    fn wasted_loans_end_and_are_tried_again_only_now_and_then() {
        for wasted in [COPIED, LATE] {
            let mut chooser = Chooser::new(4096);
            let raises = (wasted.size / 4096).ilog2() + 1;
            let until_copied = 1 + (raises * WASTED_MAX - 1) * WATCH_EVERY;
            assert_eq!(run(&mut chooser, until_copied, wasted), until_copied);
            assert_eq!(run(&mut chooser, 10 * TRY_EVERY, wasted), 10);
            // A size that was never wasted goes on.
            assert_eq!(chooser.choose(1 << 20), Choice::Lend);
        }
    }

    #[test]
    fn a_socket_recovers_when_loans_are_not_wasted_any_more() {
        let mut chooser = Chooser::new(4096);
        run(&mut chooser, 10_000, COPIED);
        run(&mut chooser, TRY_EVERY, GOOD);
        assert_eq!(run(&mut chooser, 1000, GOOD), 1000);
        let small = Outcome { size: 4096, ..GOOD };
        run(&mut chooser, 4 * TRY_EVERY, small);
        assert_eq!(run(&mut chooser, 1000, small), 1000);
        assert_eq!(chooser.choose(4095), Choice::Copy);
    }

    #[test]
    fn a_few_wasted_loans_among_good_ones_change_nothing() {
        let mut chooser = Chooser::new(4096);
        for _ in 0..100 {
            chooser.learn(COPIED);
            chooser.learn(LATE);
            chooser.learn(GOOD);
            chooser.learn(GOOD);
        }
        assert_eq!(chooser.break_even, 4096);
    }

    #[test]
    fn the_measured_break_even_is_a_bounded_power_of_two() {
        assert_eq!(break_even(350, 4000, false), 4096);
        assert_eq!(break_even(350, 4000, true), 16_384);
        assert_eq!(break_even(0, 4000, false), BREAK_EVEN_MIN);
        assert_eq!(break_even(350, 0, false), BREAK_EVEN_MAX);
        assert_eq!(break_even(u64::MAX, 1, true), BREAK_EVEN_MAX * DEVICE_FACTOR);
    }
}
