//! Timers and deadlines, in real and in simulated time.

use super::custom::Shared;
use super::kernel_streams::unix;
use super::{Case, PATIENCE, config, errno, now, one, queue};
use crate::taken::Taken;
use rustix::io::Errno;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};
use towpath::events::{Choice, Config, Event, EventKind, EventQueue, Source, Stream};

pub(super) const CASES: &[Case] = &[
    ("timers_expire_in_order_and_not_early", order),
    ("simulated_time_jumps", simulated),
    ("operations_are_late_to_the_moment_in_simulated_time", operations),
    ("periods_are_counted_and_do_not_shift", periods),
    ("a_timer_is_set_again", set_again),
    ("removed_timers_leave_nothing", many_removed),
    ("a_past_deadline_still_tells_what_there_is", past_deadline),
];

fn simulation(choice: Choice) -> EventQueue {
    EventQueue::with(&Config { simulated: true, ..config(choice) }).unwrap()
}

fn order(choice: Choice) {
    let (mut queue, start) = (queue(choice), Instant::now());
    for data in [30, 10, 20, 0] {
        queue.add(Source::at(start + Duration::from_millis(data)), data).unwrap();
    }
    for data in [0, 10, 20, 30] {
        let mut events = Vec::new();
        let late = Some(start + PATIENCE);
        assert_eq!(queue.wait_many(&mut events, 1..=1, late).unwrap(), 1);
        let expired = EventKind::Expired { count: 1 };
        assert_eq!((events[0].data, events[0].kind), (data, expired));
        assert!(start.elapsed() >= Duration::from_millis(data));
    }
    assert!(queue.is_empty());
}

/// Goal: hours pass at once, and a wait that nothing would end fails.
fn simulated(choice: Choice) {
    let mut queue = simulation(choice);
    let (start, hour) = (queue.now(), Duration::from_secs(3600));
    let timer = queue.add(Source::at(start + 2 * hour), 0).unwrap();
    let mut events = Vec::new();
    assert_eq!(queue.wait(&mut events, Some(start + hour)).unwrap(), 0);
    assert_eq!(queue.now(), start + hour);
    assert_eq!(one_of(&mut queue, start + 9 * hour).token, timer);
    assert_eq!(queue.now(), start + 2 * hour);
    let nothing = queue.wait(&mut events, None).unwrap_err();
    assert_eq!(Errno::from_io_error(&nothing), Some(Errno::DEADLK));
}

/// Goal: an operation ends at its deadline and not before, whatever carries it out, and bytes that
/// arrive just before are in time.
fn operations(choice: Choice) {
    let mut queue = simulation(choice);
    let (start, hour) = (queue.now(), Duration::from_secs(3600));
    let at = |hours| Some(start + hours * hour);
    let ((silent, _silent), (answered, mut peer), (spliced, _peer)) = (unix(), unix(), unix());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let accept = queue.accept(listener, at(6), 0).unwrap();
    let answered = Stream::from(answered);
    let in_time = queue.receive(&answered, vec![0; 9], at(5), 0).unwrap();
    let splice = queue.splice(spliced, answered, 9, at(4), 0).unwrap();
    let receive = queue.receive(silent, vec![0; 9], at(3), 0).unwrap();
    let task = queue.start(Shared::default(), at(2), 0).unwrap();
    let moment = start + 5 * hour - Duration::from_nanos(1);
    let timer = queue.add(Source::at(moment), 0).unwrap();
    let far = start + 1000 * hour;

    let event = one_of(&mut queue, far);
    let result = -i64::from(Errno::TIMEDOUT.raw_os_error());
    assert_eq!((event.token, event.kind, event.is_over), (task, EventKind::Step { result }, true));
    assert_eq!(Some(queue.now()), at(2));
    assert_eq!(one_of(&mut queue, far).token, receive);
    assert_eq!(Some(queue.now()), at(3));
    let completed = queue.take_done(receive).unwrap();
    assert_eq!((errno(completed.result), completed.buffer.len()), (Errno::TIMEDOUT, 9));
    assert_eq!(one_of(&mut queue, far).token, splice);
    assert_eq!(Some(queue.now()), at(4));
    let moved = queue.take_moved(splice).unwrap();
    assert_eq!((moved.bytes, errno(moved.result), moved.rest), (0, Errno::TIMEDOUT, vec![]));
    assert_eq!(one_of(&mut queue, far).token, timer);
    peer.write_all(b"in time").unwrap();
    assert_eq!(one_of(&mut queue, far).token, in_time);
    assert_eq!(queue.now(), moment);
    let completed = queue.take_done(in_time).unwrap();
    assert_eq!((completed.result.unwrap(), &completed.buffer[..7]), (7, &b"in time"[..]));
    // The deadline of a completed operation does not end the wait.
    assert_eq!(one_of(&mut queue, far).token, accept);
    assert_eq!(Some(queue.now()), at(6));
    assert_eq!(errno(queue.take_stream(accept).unwrap()), Errno::TIMEDOUT);
    assert!(queue.is_empty());
}

fn one_of(queue: &mut EventQueue, deadline: Instant) -> Event {
    let mut events = Vec::new();
    assert_eq!(queue.wait(&mut events, Some(deadline)).unwrap(), 1);
    events[0]
}

fn periods(choice: Choice) {
    let mut queue = simulation(choice);
    let (start, second) = (queue.now(), Duration::from_secs(1));
    assert!(queue.add(Source::every(start, Duration::ZERO), 0).is_err());
    let once = queue.add(Source::every(start, Duration::MAX), 0).unwrap();
    assert_eq!(one_of(&mut queue, start + second).token, once);
    queue.remove(once).unwrap();
    let timer = queue.add(Source::every(start + second, second), 0).unwrap();
    let far = start + 1000 * second;
    for times in 1..4 {
        let event = one_of(&mut queue, far);
        assert_eq!((event.token, event.kind), (timer, EventKind::Expired { count: 1 }));
        assert_eq!(queue.now(), start + times * second);
    }
    // Late by three and a half periods.
    let mut events = Vec::new();
    queue.remove(timer).unwrap();
    let late = start - 7 * second / 2;
    let timer = queue.add(Source::every(late, second), 0).unwrap();
    queue.wait_many(&mut events, 0..=9, None).unwrap();
    assert_eq!((events[0].token, events[0].kind), (timer, EventKind::Expired { count: 7 }));
    assert_eq!(one_of(&mut queue, far).kind, EventKind::Expired { count: 1 });
    assert_eq!(queue.now(), start + 7 * second / 2);
}

fn set_again(choice: Choice) {
    let mut queue = simulation(choice);
    let (start, second) = (queue.now(), Duration::from_secs(1));
    let timer = queue.add(Source::at(start + second), 0).unwrap();
    queue.set_timer(timer, start + 5 * second).unwrap();
    assert_eq!(one_of(&mut queue, start + 9 * second).token, timer);
    assert_eq!(queue.now(), start + 5 * second);
    assert!(queue.set_timer(timer, start).is_err(), "it is over");
    let user = queue.add(Source::user(), 0).unwrap();
    assert!(queue.set_timer(user, start).is_err());
}

fn many_removed(choice: Choice) {
    let mut queue = simulation(choice);
    let start = queue.now();
    for round in 0..50 {
        let at = |ms| Source::at(start + Duration::from_millis(ms));
        let tokens: Vec<_> = (0..100).map(|ms| queue.add(at(ms + 1), ms).unwrap()).collect();
        for (index, token) in tokens.iter().enumerate() {
            if index != round {
                queue.remove(*token).unwrap();
            }
        }
        let event = one_of(&mut queue, start + PATIENCE);
        assert_eq!(event.data, round as u64);
        assert!(queue.is_empty());
    }
}

fn past_deadline(choice: Choice) {
    let mut queue = queue(choice);
    let user = queue.add(Source::user(), 0).unwrap();
    let past = Instant::now();
    let mut events = Vec::new();
    assert_eq!(queue.wait(&mut events, Some(past)).unwrap(), 0);
    queue.notifier(user).unwrap().notify();
    assert_eq!(queue.wait(&mut events, Some(past)).unwrap(), 1);
    assert_eq!(now(&mut queue), []);
    queue.notifier(user).unwrap().notify();
    assert_eq!(one(&mut queue).token, user);
}
