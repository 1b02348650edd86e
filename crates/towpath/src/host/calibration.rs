//! What [`SendMode::Auto`](super::SendMode::Auto) goes by: what copies and loans cost here, and how
//! loans went.

use super::auto::{COPY_SAMPLE, Chooser, Outcome, break_even as break_even_of};
use super::budget::{Budget, Levels};
use super::clock::moment;
use super::core::Core;
use super::lend::{Parcel, Source};
use super::sending::{Account, Ticket};
use super::trials::Gauge;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::Loans;

/// Tells how one loan went.
pub(super) struct Watch {
    chooser: Arc<Chooser>,
    round: u32,
    size: usize,
    began: Instant,
}

impl Watch {
    /// Of a loan that begins now.
    pub(super) fn new(chooser: Arc<Chooser>, round: u32, size: usize) -> Self {
        Self { chooser, round, size, began: moment() }
    }

    /// All is back.
    pub(super) fn over(&self, copied: bool) {
        let nanos = moment().duration_since(self.began).as_nanos() as u64;
        let outcome = Outcome { round: self.round, size: self.size, copied, nanos };
        self.chooser.learn(outcome);
    }
}

impl Gauge for Core {
    fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    fn used(&self) -> Duration {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        Duration::new(used.tv_sec.cast_unsigned(), used.tv_nsec as u32)
    }

    fn out(&self) -> u64 {
        self.lent.used() as u64
    }
}

/// Measures the size from which on lending costs less.
pub(super) fn break_even(over_device: bool) -> usize {
    break_even_of(loan_nanos(), copy_nanos(), over_device)
}

/// What one loan takes, made and returned by one thread. What workers do for it grows and shrinks
/// with this.
fn loan_nanos() -> u64 {
    let budget = || Budget::new(usize::MAX);
    let levels = Levels { socket: budget(), group: None, all: budget().into() };
    let account = Arc::new(Account::new(levels, None));
    let mut loans = Loans::new(1);
    let lend = || {
        for _ in 0..LOANS {
            // Room without end, and given back at the end of the ticket.
            let _ = account.levels.take(1);
            let parcel = Arc::new(Parcel::new(&[0_u8; 64][..]));
            let (ticket, share) = Ticket::begin(account.clone(), 1);
            ticket.share(None);
            let lender = share.lender();
            if black_box(parcel.lend(&mut loans, 0, 64, lender, Ticket::ALONE)).is_none() {
                ticket.unshare();
            }
        }
    };
    least_nanos(lend) / LOANS
}

/// What copying [`COPY_SAMPLE`] hot bytes takes. Cold ones cost more: a break-even of hot ones
/// does not lend too early.
fn copy_nanos() -> u64 {
    let (from, mut to) = (vec![1_u8; COPY_SAMPLE], vec![0_u8; COPY_SAMPLE]);
    least_nanos(|| black_box(&mut to).copy_from_slice(black_box(&from)))
}

/// The shortest of some runs: what the machine does beside makes runs longer, never shorter.
fn least_nanos(mut run: impl FnMut()) -> u64 {
    let runs = (0..RUNS).map(|_| {
        let began = moment();
        run();
        began.elapsed().as_nanos() as u64
    });
    runs.min().unwrap_or(0)
}

/// Loans of a run.
const LOANS: u64 = 64;
/// Runs of each kind: both together take a few hundred microseconds.
const RUNS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_work_take_time() {
        assert!(loan_nanos() > 0 && copy_nanos() > 0);
    }
}
