//! Trials of a thread whose costs are made up.

use super::*;
use std::cell::Cell;

/// Bytes of a call.
const CALL: u64 = 64 << 10;

/// A thread that moves bytes at a fixed speed, with given costs.
#[derive(Default)]
struct Thread {
    now: Cell<Instant>,
    used: Cell<f64>,
    moved: Cell<u64>,
    lent: Cell<u64>,
}

/// What a byte costs the thread, in nanoseconds, and what else happens.
#[derive(Clone, Copy)]
struct Costs {
    copy: f64,
    lend: f64,
    /// Other bytes that are moved for each byte that could be lent.
    others: u64,
    /// Time that passes for each call.
    call_takes: Duration,
    /// The kernel refuses to lend.
    refuses: bool,
}

const EQUAL: Costs = Costs {
    copy: 0.2,
    lend: 0.2,
    others: 0,
    call_takes: Duration::from_micros(50),
    refuses: false,
};

impl Gauge for Thread {
    fn now(&self) -> Instant {
        self.now.get()
    }

    fn used(&self) -> Duration {
        Duration::from_nanos(self.used.get() as u64)
    }

    fn moved(&self) -> u64 {
        self.moved.get()
    }

    fn lent(&self) -> u64 {
        self.lent.get()
    }
}

impl Thread {
    /// Moves `bytes` that could be lent; returns how many were lent.
    fn run(&self, trials: &mut Trials, bytes: u64, costs: Costs) -> u64 {
        let before = self.lent.get();
        for _ in 0..bytes / CALL {
            let lends = trials.lends(CALL, self) && !costs.refuses;
            let cost = if lends { costs.lend } else { costs.copy };
            self.used.set(self.used.get() + cost * CALL as f64);
            self.now.set(self.now.get() + costs.call_takes);
            self.moved.set(self.moved.get() + CALL * (1 + costs.others));
            self.lent.set(self.lent.get() + if lends { CALL } else { 0 });
        }
        self.lent.get() - before
    }
}

/// Bytes until the first decision is made.
const FIRST: u64 = WINDOW + 3 * (REST_NEW + 3 * WINDOW + 2 * SETTLING);
/// Bytes of many trials.
const MANY: u64 = 16 * REST;

/// Goal: the cheaper way is found, and the other way is taken for a small part of the bytes.
#[test]
fn the_cheaper_way_is_found() {
    let thread = Thread::default();
    let mut trials = Trials::new();
    let cheap = Costs { lend: 0.1, ..EQUAL };
    thread.run(&mut trials, FIRST, cheap);
    let lent = thread.run(&mut trials, MANY, cheap);
    assert!(lent > MANY - MANY / 64, "{lent} of {MANY} were lent");

    let mut trials = Trials::new();
    let dear = Costs { lend: 0.3, ..EQUAL };
    let lent = thread.run(&mut trials, FIRST + MANY, dear);
    assert!(lent > 0 && lent < MANY / 64, "{lent} of {MANY} were lent");
}

/// Goal: equal costs mean copying, and a change of the costs changes the decision, both ways.
#[test]
fn decisions_follow_the_costs() {
    let thread = Thread::default();
    let mut trials = Trials::new();
    thread.run(&mut trials, FIRST, EQUAL);
    assert!(!trials.decided);
    thread.run(&mut trials, MANY, Costs { lend: 0.1, ..EQUAL });
    assert!(trials.decided);
    thread.run(&mut trials, MANY, Costs { lend: 0.4, ..EQUAL });
    assert!(!trials.decided);
}

/// Goal: trials that say nothing decide nothing: other bytes, a slow connection, a kernel that
/// lends nothing, and costs that change in the middle.
#[test]
fn disturbed_trials_have_no_result() {
    let cheap = Costs { lend: 0.1, ..EQUAL };
    let slow = Duration::from_millis(5);
    for costs in [
        Costs { others: 1, ..cheap },
        Costs { call_takes: slow, ..cheap },
        Costs { refuses: true, ..cheap },
    ] {
        let (thread, mut trials) = (Thread::default(), Trials::new());
        thread.run(&mut trials, MANY, costs);
        assert_eq!((trials.trials, trials.decided), (0, false));
    }
    // The whole thread gets more expensive in the middle of the first trial.
    let (thread, mut trials) = (Thread::default(), Trials::new());
    thread.run(&mut trials, 2 * WINDOW + 2 * SETTLING, cheap);
    thread.run(&mut trials, 2 * WINDOW + CALL, Costs { copy: 0.5, ..cheap });
    assert_eq!((trials.trials, trials.stage), (0, Stage::Rest));
}
