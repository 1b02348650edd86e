//! Measurements for [`SendMode::Auto`](crate::host::SendMode::Auto): the costs of copies and loans
//! on this machine, and the results of loans.

use crate::driver::clock::moment;
use crate::host::choosing::auto::{Chooser, Outcome};
use crate::host::choosing::trials::Gauge;
use crate::host::core::Core;
use crate::host::lending::budget::{Budget, Levels};
use crate::host::lending::lend::{Parcel, Source};
use crate::host::lending::ticket::{Account, Observer, Ticket};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_packet::Loans;

/// Reports the result of one loan.
pub(in crate::host) struct Watch {
    chooser: Arc<Chooser>,
    round: u32,
    size: usize,
    began: Instant,
}

impl Watch {
    /// Starts to watch a loan that begins now.
    pub(in crate::host) fn new(chooser: Arc<Chooser>, round: u32, size: usize) -> Self {
        Self { chooser, round, size, began: moment() }
    }
}

impl Observer for Watch {
    fn over(&self, copied: bool) {
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
        process_time()
    }

    fn out(&self) -> u64 {
        self.lent.used() as u64
    }
}

/// Returns the CPU time of all threads of this process.
pub fn process_time() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.cast_unsigned(), used.tv_nsec as u32)
}

/// Measures the size from which lending costs less.
pub fn break_even(over_device: bool) -> usize {
    break_even_of(loan_nanos(), copy_nanos(), over_device)
}

/// Returns the size from which lending on a stream costs all threads together less. A loan's own
/// work takes `loan_nanos`, and copying [`COPY_SAMPLE`] cached bytes takes `copy_nanos`, on one
/// otherwise idle thread. Over a device the size is larger: the kernel copies what it takes, lent
/// or not, so lending saves less.
fn break_even_of(loan_nanos: u64, copy_nanos: u64, over_device: bool) -> usize {
    // `lend`: what lending costs more than copying for a call, whatever its size. `copy`: what the
    // bytes of a sample cost when they are copied.
    let lend = loan_nanos.saturating_mul(LOAN_PARTS) / LOAN_WHOLE;
    let copy = loan_nanos.saturating_mul(SAMPLE_LOANS).saturating_add(copy_nanos).max(1);
    let bytes = lend.saturating_mul(COPY_SAMPLE as u64) / copy;
    let bytes = bytes.clamp(BREAK_EVEN_MIN as u64, BREAK_EVEN_MAX as u64) as usize;
    // To the nearest power of two: values from one and a half times the lower one round up.
    let power = (bytes + bytes / 3).next_power_of_two() / 2;
    power * if over_device { DEVICE_FACTOR } else { 1 }
}

/// Measures a loan that one thread makes and returns. The workers' share of the work scales with
/// it.
fn loan_nanos() -> u64 {
    let budget = || Budget::new(usize::MAX);
    let levels = Levels { socket: budget(), group: None, all: budget().into() };
    let account = Arc::new(Account::new(levels, None));
    let mut loans = Loans::new(1);
    let lend = || {
        for _ in 0..LOANS {
            // There is always room; it is given back at the end of the ticket.
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

/// Measures the time to copy [`COPY_SAMPLE`] cached bytes. Uncached bytes cost more, so a
/// break-even for cached bytes does not lend too early.
fn copy_nanos() -> u64 {
    let (from, mut to) = (vec![1_u8; COPY_SAMPLE], vec![0_u8; COPY_SAMPLE]);
    least_nanos(|| black_box(&mut to).copy_from_slice(black_box(&from)))
}

/// Returns the shortest of several runs: other load makes runs longer, never shorter.
fn least_nanos(mut run: impl FnMut()) -> u64 {
    let runs = (0..RUNS).map(|_| {
        let began = moment();
        run();
        began.elapsed().as_nanos() as u64
    });
    runs.min().unwrap_or(0)
}

/// Bytes of the measured copy: a super-packet.
const COPY_SAMPLE: usize = 64 << 10;
/// Break-even of datagrams before the first trial, measured with `towpath-bench zerocopy` over
/// links and devices. It is larger than that of a stream, because each datagram is a packet of its
/// own and no queue delays a sender that copies.
pub(in crate::host) const DATAGRAM_BREAK_EVEN: usize = 16 << 10;
/// Extra cost of lending over copying for a call without bytes, for all threads, in measured loans:
/// [`LOAN_PARTS`] divided by [`LOAN_WHOLE`].
const LOAN_PARTS: u64 = 3;
/// Divisor of [`LOAN_PARTS`].
const LOAN_WHOLE: u64 = 2;
/// Cost of copying a sample for all threads, beside the copy itself, in measured loans: frames are
/// taken, passed on and given back, and the sender sleeps while the small queue of copied bytes is
/// full.
const SAMPLE_LOANS: u64 = 68;
/// Smallest break-even: below it lending costs all threads together more than copying.
const BREAK_EVEN_MIN: usize = 1 << 10;
/// Largest break-even that a measurement yields, over a link.
const BREAK_EVEN_MAX: usize = 4 << 10;
/// Factor by which the break-even is larger over a device.
const DEVICE_FACTOR: usize = 4;

/// Loans per run.
const LOANS: u64 = 64;
/// Runs of each kind: both kinds together take a few hundred microseconds.
const RUNS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_work_take_time() {
        assert!(loan_nanos() > 0 && copy_nanos() > 0);
    }

    #[test]
    fn the_measured_break_even_is_a_bounded_power_of_two() {
        // Measured on machines that copied quickly and slowly.
        for (loan, copy) in [(134, 511), (350, 4000), (350, 1000), (60, 8000)] {
            assert_eq!(break_even_of(loan, copy, false), 1024, "{loan} {copy}");
            assert_eq!(break_even_of(loan, copy, true), 4096, "{loan} {copy}");
        }
        assert_eq!(break_even_of(0, 4000, false), BREAK_EVEN_MIN);
        assert_eq!(break_even_of(0, 0, false), BREAK_EVEN_MIN);
        for extreme in [break_even_of(u64::MAX, 1, true), break_even_of(u64::MAX, u64::MAX, true)] {
            assert!(extreme <= BREAK_EVEN_MAX * DEVICE_FACTOR && extreme.is_power_of_two());
        }
    }
}
