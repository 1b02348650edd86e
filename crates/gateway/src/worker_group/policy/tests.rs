//! The policy with made-up samples.

use super::*;

/// A policy with one more worker, in a world where each busy bucket has 100 packets in a window.
struct World {
    policy: Policy,
    owners: Owners,
    packets: [u32; BUCKETS],
    pinned: Buckets,
    /// Open flows.
    flows: usize,
    /// Workers besides the first that have been made.
    ready: usize,
    now: Instant,
}

impl World {
    fn new(others: usize, busy_buckets: &[Bucket]) -> Self {
        let mut packets = [0; BUCKETS];
        busy_buckets.iter().for_each(|bucket| packets[usize::from(*bucket)] = 100);
        let (policy, owners) = (Policy::new(others), Owners::new());
        Self {
            policy,
            owners,
            packets,
            pinned: Buckets::default(),
            flows: busy_buckets.len(),
            ready: others,
            now: Instant::START,
        }
    }

    /// Lets a window pass with these busy times, and makes the move.
    fn window(&mut self, busy: &[u32], bytes: u64) -> Option<Move> {
        self.now += WINDOW;
        let decision = self.policy.decide(&Sample {
            now: self.now,
            elapsed: WINDOW,
            busy,
            bytes,
            packets: &self.packets,
            pinned: &self.pinned,
            owners: &self.owners,
            flows: self.flows,
            ready: self.ready,
        });
        if let Some(Move { buckets, from, to }) = &decision {
            assert!((*from == 0) != (*to == 0), "by way of the first worker");
            assert!(buckets.iter().all(|bucket| usize::from(self.owners.of(bucket)) == *from));
            self.owners.set(buckets, *to as u8);
        }
        decision
    }

    /// Lets windows pass until there is a move; returns it and the number of windows.
    fn until_move(&mut self, busy: &[u32], bytes: u64) -> (Move, u32) {
        (1..10_000)
            .find_map(|count| self.window(busy, bytes).map(|made| (made, count)))
            .expect("a move")
    }
}

const EIGHT: [Bucket; 8] = [3, 4, 60, 61, 120, 121, 254, 255];

#[test]
fn another_worker_joins_a_full_one_and_leaves_when_it_is_quiet() {
    let mut world = World::new(1, &EIGHT);
    for _ in 0..1000 {
        assert_eq!(world.window(&[FULL - 1, 0], 1000), None);
        assert!(!world.policy.counts(), "packets are not counted while there is time");
    }
    let (joins, windows) = world.until_move(&[FULL, 0], 1000);
    assert_eq!((joins.to, windows, joins.buckets.iter().count()), (1, FULL_WINDOWS, 4));
    // It pays.
    for _ in 0..SETTLING_WINDOWS + TRIAL_WINDOWS + 10 {
        assert_eq!(world.window(&[FULL, FULL], 1100), None);
    }
    // Short gaps do not end it.
    for _ in 0..5 {
        for _ in 1..QUIET_WINDOWS {
            assert_eq!(world.window(&[200, 200], 300), None);
        }
        assert_eq!(world.window(&[FULL, SPARE + 1], 1000), None);
    }
    let (leaves, windows) = world.until_move(&[SPARE / 2, SPARE / 2], 300);
    assert_eq!((leaves.from, leaves.to, windows), (1, 0, QUIET_WINDOWS));
    assert_eq!(world.owners.all_of(1), Buckets::default());
    assert!(!world.policy.counts());
}

/// Goal: a worker that adds nothing leaves, and the pauses between trials grow to their bound.
#[test]
fn a_worker_that_does_not_pay_leaves_for_longer_and_longer() {
    let mut world = World::new(1, &EIGHT);
    let mut pause = PAUSE_MIN;
    for trial in 0..12 {
        let begun = world.now;
        let (joins, windows) = world.until_move(&[1000, 0], 1000);
        assert_eq!(joins.to, 1);
        if trial > 0 {
            let waited = world.now.since(begun);
            assert!(waited >= pause && waited <= pause + WINDOW * FULL_WINDOWS, "{windows}");
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let (leaves, windows) = world.until_move(&[1000, 1000], 1049);
        assert_eq!((leaves.from, windows), (1, SETTLING_WINDOWS + TRIAL_WINDOWS));
    }
    assert_eq!(pause, PAUSE_MAX);
}

/// Goal: one flow, or one beside others that are small, stays where it is.
#[test]
fn a_single_busy_flow_never_moves() {
    let mut world = World::new(1, &[7]);
    (world.packets[9], world.flows) = (5, 2);
    for _ in 0..100 {
        assert_eq!(world.window(&[1000, 0], 1000), None);
    }
    // Nor does a pinned one.
    world.packets[100] = 100;
    world.pinned.insert(7);
    world.pinned.insert(100);
    for _ in 0..100 {
        assert_eq!(world.window(&[1000, 0], 1000), None);
    }
    world.pinned = Buckets::default();
    assert!(world.window(&[1000, 0], 1000).is_some());
}

#[test]
fn work_moves_from_a_full_worker_to_one_with_time() {
    let mut world = World::new(1, &EIGHT);
    world.until_move(&[1000, 0], 1000);
    let made = world.window(&[1000, 400], 1100).expect("a move");
    assert_eq!((made.from, made.to), (0, 1));
    assert_eq!(made.buckets.iter().count(), 1, "three tenths of four buckets");
    let made = world.window(&[300, 1000], 1100).expect("a move");
    assert_eq!((made.from, made.to), (1, 0));
    assert_eq!(world.window(&[1000, SPARE + 1], 1100), None, "about equal");
}

#[test]
fn a_third_worker_joins_two_full_ones() {
    let mut world = World::new(2, &EIGHT);
    world.until_move(&[1000, 0, 0], 1000);
    for _ in 0..SETTLING_WINDOWS + TRIAL_WINDOWS {
        assert_eq!(world.window(&[1000, 1000, 0], 2000), None);
    }
    let (joins, _) = world.until_move(&[1000, 1000, 0], 2000);
    assert_eq!((joins.from, joins.to), (0, 2));
    for _ in 0..SETTLING_WINDOWS + TRIAL_WINDOWS {
        assert_eq!(world.window(&[1000, 1000, 1000], 3000), None);
    }
    // Between two others, work passes the first.
    let made = world.window(&[800, 1000, 100], 3000).expect("a move");
    assert_eq!((made.from, made.to), (1, 0));
    let (leaves, _) = world.until_move(&[400, 400, 100], 300);
    assert_eq!(leaves.from, 2, "the last one first");
}

/// Goal: connections that follow each other never make a worker join, in however many buckets they
/// are.
#[test]
fn connections_one_after_the_other_need_one_worker() {
    let mut world = World { flows: 1, ready: 0, ..World::new(1, &EIGHT) };
    for window in 0..1000 {
        // For a moment, the one before is still open.
        world.flows = if window % 3 == 0 { 2 } else { 1 };
        assert_eq!(world.window(&[1000, 0], 1000), None);
        assert!(!world.policy.wants_another());
    }
}

/// Goal: a worker is made when it is to join for the first time, and not for a single flow. It
/// joins once it is there.
#[test]
fn a_worker_is_made_before_it_joins() {
    let mut world = World { ready: 0, ..World::new(1, &[7]) };
    for _ in 0..1000 {
        assert_eq!(world.window(&[1000, 0], 1000), None);
        assert!(!world.policy.wants_another(), "one flow would gain nothing");
    }
    let mut world = World { ready: 0, ..World::new(1, &EIGHT) };
    for window in 1..=1000 {
        assert_eq!(world.window(&[1000, 0], 1000), None, "it is not there");
        assert_eq!(world.policy.wants_another(), window >= FULL_WINDOWS);
        assert_eq!(world.policy.active(), 0);
    }
    world.ready = 1;
    let (joins, windows) = world.until_move(&[1000, 0], 1000);
    assert_eq!((joins.to, windows, world.policy.wants_another()), (1, 1, false));
    // It was not wanted for long enough.
    let mut world = World { ready: 0, ..World::new(1, &EIGHT) };
    (0..FULL_WINDOWS).for_each(|_| assert_eq!(world.window(&[1000, 0], 1000), None));
    world.ready = 1;
    assert_eq!(world.window(&[FULL - 1, 0], 900), None);
    assert!(!world.policy.wants_another());
}

/// Goal: where a worker cannot be made, attempts become rare.
#[test]
fn a_worker_that_cannot_be_made_is_tried_ever_more_rarely() {
    let mut world = World { ready: 0, ..World::new(1, &EIGHT) };
    let (mut attempts, hour) = (0, Duration::from_secs(3600));
    while world.now.since(Instant::START) < hour {
        assert_eq!(world.window(&[1000, 0], 1000), None);
        if world.policy.wants_another() {
            attempts += 1;
            world.policy.postpone(world.now);
        }
    }
    assert!((hour.div_duration_f64(PAUSE_MAX) as u32..80).contains(&attempts), "{attempts}");
}

/// Runs a program that has as much work as `load` says in each window, in thousandths of what one
/// worker can do; two do as much together as `both` says. Returns the number of joins in a minute.
fn joins_in_a_minute(load: impl Fn(u32) -> u32, both: u32) -> usize {
    let mut world = World::new(1, &EIGHT);
    let mut joins = 0;
    for window in 0..60 * 100 {
        let serving = 1 + world.policy.active() as u32;
        let most = if serving == 1 { 1000 } else { both };
        let work = load(window).min(most);
        // Where both together can do less than twice as much, each is busier for it.
        let busy = (work * 1000 / most).min(1000);
        let busy = if serving == 1 { [busy, 0] } else { [busy, busy] };
        let made = world.window(&busy, u64::from(work));
        joins += usize::from(made.is_some_and(|made| made.to == 1 && made.from == 0));
    }
    joins
}

/// Goal: neither a load about as large as one worker nor one that comes and goes makes a worker
/// join and leave all the time. One that is always there makes it join once.
#[test]
fn joining_and_leaving_do_not_alternate() {
    assert_eq!(joins_in_a_minute(|_| 2000, 1900), 1);
    assert_eq!(joins_in_a_minute(|_| FULL - 1, 1900), 0);
    // Never full for long enough.
    assert_eq!(joins_in_a_minute(|window| if window % 4 == 0 { 850 } else { 950 }, 1900), 0);
    // Each pause is twice as long as the one before: at most eight in a minute.
    for period in [40, 60, 100, 300, 1000] {
        let bursts = joins_in_a_minute(|at| if at % period < period / 2 { 2000 } else { 0 }, 1900);
        assert!((1..=8).contains(&bursts), "{bursts} joins, {period} windows");
    }
    // Another thread adds nothing, or has nothing to add.
    for (load, both) in [(2000, 1000), (2000, 800), (950, 1900)] {
        let joins = joins_in_a_minute(|_| load, both);
        assert!((1..=8).contains(&joins), "{joins} joins, {load} of {both}");
    }
}
