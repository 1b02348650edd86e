//! Notifications from other threads.

use super::{Case, PATIENCE, config, now, one, queue};
use rustix::io::Errno;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};
use towpath::events::{Choice, Config, EventKind, EventQueue, Interest, Source, Trigger};

pub(super) const CASES: &[Case] = &[
    ("notices_are_counted_and_in_order", counted),
    ("no_notice_is_lost", none_lost),
    ("a_full_queue_says_so", full),
    ("no_source_starves_another", fair),
    ("a_future_is_driven", future),
    ("an_idle_queue_sleeps", idle),
];

/// Returns how often this thread has slept.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// Goal: a wait without events is one sleep until its deadline, also after earlier events.
fn idle(choice: Choice) {
    let mut queue = queue(choice);
    let (stream, _peer) = UnixStream::pair().unwrap();
    let user = queue.add(Source::user(), 0).unwrap();
    queue.add(Source::fd(stream, Interest::READ, Trigger::Level), 0).unwrap();
    queue.add(Source::at(Instant::now() + PATIENCE), 0).unwrap();
    queue.notifier(user).unwrap().notify();
    assert_eq!(one(&mut queue).token, user);
    let (before, mut events) = (sleeps(), Vec::new());
    let until = Instant::now() + Duration::from_millis(300);
    assert_eq!(queue.wait(&mut events, Some(until)).unwrap(), 0);
    assert!(Instant::now() >= until);
    // One sleep, and some of the system's own, such as for memory; polling every 10 ms would make
    // 30.
    assert!(sleeps() - before < 20, "{} sleeps", sleeps() - before);
}

fn counted(choice: Choice) {
    let mut queue = queue(choice);
    let tokens: Vec<_> = (0..3).map(|data| queue.add(Source::user(), data).unwrap()).collect();
    let notifiers: Vec<_> = tokens.iter().map(|&t| queue.notifier(t).unwrap()).collect();
    for index in [2, 0, 2, 1] {
        notifiers[index].notify();
    }
    let reported: Vec<_> = now(&mut queue).iter().map(|event| (event.data, event.kind)).collect();
    let notified = |count| EventKind::Notified { count };
    assert_eq!(reported, [(2, notified(2)), (0, notified(1)), (1, notified(1))]);
    queue.remove(tokens[1]).unwrap();
    notifiers[1].notify();
    let new = queue.add(Source::user(), 9).unwrap();
    notifiers[1].notify();
    assert_eq!(now(&mut queue), []);
    queue.notifier(new).unwrap().notify();
    assert_eq!(one(&mut queue).token, new);
}

/// Goal: a queue that sleeps whenever it can reports every notification of several threads.
fn none_lost(choice: Choice) {
    const THREADS: u64 = 3;
    const NOTICES: u64 = 3000;
    let mut queue = queue(choice);
    let threads: Vec<_> = (0..THREADS)
        .map(|data| {
            let token = queue.add(Source::user(), data).unwrap();
            let notifier = queue.notifier(token).unwrap();
            thread::spawn(move || {
                for round in 0..NOTICES {
                    notifier.notify();
                    if round % 7 == 0 {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let (mut total, mut events) = (0, Vec::new());
    while total < THREADS * NOTICES {
        events.clear();
        let late = Some(Instant::now() + PATIENCE);
        assert!(queue.wait(&mut events, late).unwrap() > 0, "{total} were reported");
        for event in &events {
            let EventKind::Notified { count } = event.kind else { panic!("{event:?}") };
            total += count;
        }
    }
    assert_eq!(total, THREADS * NOTICES);
    for thread in threads {
        thread.join().unwrap();
    }
}

fn full(choice: Choice) {
    let mut queue = EventQueue::with(&Config { registrations: 2, ..config(choice) }).unwrap();
    let first = queue.add(Source::user(), 0).unwrap();
    queue.add(Source::at(Instant::now() + PATIENCE), 0).unwrap();
    let error = queue.add(Source::user(), 0).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC));
    queue.remove(first).unwrap();
    queue.add(Source::user(), 0).unwrap();
    assert!(queue.add(Source::user(), 0).is_err());
}

/// Goal: sources that are always ready take turns if a wait returns one event.
fn fair(choice: Choice) {
    let mut queue = queue(choice);
    let pipes: Vec<_> = (0..3).map(|_| rustix::pipe::pipe().unwrap()).collect();
    let mut writers = Vec::new();
    for (data, (reader, writer)) in pipes.into_iter().enumerate() {
        rustix::io::write(&writer, b"x").unwrap();
        let source = Source::fd(reader, Interest::READ, Trigger::Level);
        queue.add(source, data as u64).unwrap();
        writers.push(writer);
    }
    let users: Vec<_> = (3..6)
        .map(|data| {
            let token = queue.add(Source::user(), data).unwrap();
            queue.notifier(token).unwrap()
        })
        .collect();
    let start = Instant::now();
    queue.add(Source::every(start, std::time::Duration::from_nanos(1)), 6).unwrap();
    users.iter().for_each(|user| user.notify());
    let mut seen = [0; 7];
    for _ in 0..90 {
        let mut events = Vec::new();
        let late = Some(Instant::now() + PATIENCE);
        assert_eq!(queue.wait_many(&mut events, 1..=1, late).unwrap(), 1);
        let data = events[0].data as usize;
        seen[data] += 1;
        if (3..6).contains(&data) {
            users[data - 3].notify();
        }
    }
    assert!(seen.iter().all(|&times| times >= 8), "{seen:?}");
}

/// Goal: a notifier is the waker of a future.
fn future(choice: Choice) {
    let mut queue = queue(choice);
    let token = queue.add(Source::user(), 0).unwrap();
    let waker = queue.notifier(token).unwrap().waker();
    let mut polls = 0;
    let mut future = pin!(std::future::poll_fn(|cx| {
        polls += 1;
        if polls == 4 {
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        thread::spawn(move || waker.wake());
        Poll::Pending
    }));
    let mut cx = Context::from_waker(&waker);
    while future.as_mut().poll(&mut cx).is_pending() {
        assert_eq!(one(&mut queue).token, token);
    }
}
