//! Guarantees of an event queue, on both back ends, and as far as possible in simulated time. If
//! the kernel does not allow io_uring, its cases are reported as ignored; so are cases that need a
//! disk, if none can be mounted.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails by panicking")]

mod buffers;
mod calls;
mod closed;
mod cold_files;
mod custom;
mod datagrams;
mod disk;
mod files;
mod fill;
mod kernel;
mod kernel_streams;
mod many;
mod model;
mod multishot;
mod receive_all;
mod receive_file;
mod send_file;
mod slow_disk;
mod sockets;
mod streams;
mod taken;
mod time;
mod transfer;
mod users;
mod zerocopy;

use libtest_mimic::{Arguments, Trial};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath::events::{Choice, Config, Event, EventKind, EventQueue, Readiness, Token};

/// More than any step takes, so that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// A test: its name, and a function that runs it with a back end.
type Case = (&'static str, fn(Choice));

/// Cases that also run in simulated time: those in which only the case itself and the kernel cause
/// events. A wait in simulated time would jump past what a host or another thread is about to do,
/// because nothing announces it.
const IN_SIMULATED_TIME: &[&str] = &[
    "a_call_is_made_again_when_its_socket_is_ready",
    "a_child_of_a_fork_cannot_use_it",
    "a_deadline_ends_an_operation_or_comes_too_late",
    "a_full_queue_makes_no_calls",
    "a_full_queue_refuses_the_kernels_streams",
    "a_full_queue_says_so",
    "a_hundred_thousand_registrations",
    "a_kernels_connect_is_cancelled_or_ends_in_time",
    "a_kernels_stream_ends_or_is_reset",
    "a_kernels_stream_is_received",
    "a_level_is_reported_as_long_as_it_holds",
    "a_past_deadline_still_tells_what_there_is",
    "a_queue_may_go_before_its_calls",
    "a_queue_may_go_before_operations_on_streams",
    "a_removed_source_is_closed_and_silent",
    "a_socket_that_is_gone_ends_its_registration",
    "a_timer_is_set_again",
    "an_accept_of_the_kernel_is_cancelled",
    "an_edge_is_reported_once_for_each_event",
    "bytes_stay_when_a_kernels_receive_is_cancelled",
    "calls_are_cancelled_or_late",
    "calls_fail_or_are_interrupted",
    "calls_receive_so_many_bytes_or_all_there_are",
    "changes_in_a_batch_stand_for_themselves",
    "changes_of_files_are_reported",
    "connecting_is_cancelled_or_ends_in_time",
    "files_on_disk_are_refused",
    "notices_are_counted_and_in_order",
    "one_file_may_be_added_twice",
    "one_shot_is_reported_until_modified_once",
    "periods_are_counted_and_do_not_shift",
    "removed_timers_leave_nothing",
    "signals_are_reported",
    "stale_tokens_are_refused",
    "tasks_are_dropped_with_the_queue",
    "the_descriptor_is_readable_while_events_wait",
    "the_kernel_connects_or_is_refused",
    "the_peer_that_closes_is_reported",
    "what_is_not_asked_for_is_not_reported",
    "what_is_removed_amid_events_is_closed",
    "what_is_wrong_with_groups",
    "what_was_left_over_is_looked_at_again",
];

fn main() {
    let cases = [
        buffers::CASES,
        calls::CASES,
        closed::CASES,
        cold_files::CASES,
        custom::CASES,
        datagrams::CASES,
        files::CASES,
        fill::CASES,
        kernel::CASES,
        kernel_streams::CASES,
        many::CASES,
        model::CASES,
        multishot::CASES,
        receive_all::CASES,
        receive_file::CASES,
        send_file::CASES,
        sockets::CASES,
        streams::CASES,
        time::CASES,
        transfer::CASES,
        users::CASES,
        zerocopy::CASES,
    ];
    let of_disks = [receive_file::DISK_CASES, send_file::DISK_CASES, slow_disk::DISK_CASES];
    let mut arguments = Arguments::from_args();
    // Some cases use signals and forks.
    arguments.test_threads.get_or_insert(1);
    let has_ring = EventQueue::with(&config(Choice::IoUring)).is_ok();
    let has_disk = disk::Disk::new("probe", Vec::new()).is_some();
    let cases = cases.into_iter().flatten().map(|case| (case, true));
    let of_disks = of_disks.into_iter().flatten().map(|case| (case, has_disk));
    let mut trials = Vec::new();
    let kinds = [
        ("epoll", Choice::Epoll, true),
        ("io_uring", Choice::IoUring, has_ring),
        ("simulated", Choice::Best, true),
    ];
    for (&(name, run), can_run) in cases.chain(of_disks) {
        for (kind, choice, has_kind) in kinds {
            let is_simulated = kind == "simulated";
            if is_simulated && !IN_SIMULATED_TIME.contains(&name) {
                continue;
            }
            let run = move || {
                SIMULATED.store(is_simulated, Ordering::Relaxed);
                run(choice);
                Ok(())
            };
            let trial = Trial::test(format!("{name}::{kind}"), run);
            trials.push(trial.with_ignored_flag(!(can_run && has_kind)));
        }
    }
    let simulated = trials.iter().filter(|trial| trial.name().ends_with("::simulated")).count();
    assert_eq!(simulated, IN_SIMULATED_TIME.len(), "each is a case");
    if !has_ring {
        eprintln!("skipped: this kernel does not allow io_uring");
    }
    if !has_disk {
        eprintln!("skipped: no file system can be mounted here");
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn config(back_end: Choice) -> Config {
    Config { back_end, simulated: SIMULATED.load(Ordering::Relaxed), ..Config::default() }
}

/// True while queues of the current case have simulated time.
static SIMULATED: AtomicBool = AtomicBool::new(false);

fn queue(back_end: Choice) -> EventQueue {
    EventQueue::with(&config(back_end)).unwrap()
}

/// Waits for at least one event, and fails without one.
fn wait(queue: &mut EventQueue) -> Vec<Event> {
    let mut events = Vec::new();
    let count = queue.wait(&mut events, Some(Instant::now() + PATIENCE)).unwrap();
    assert!(count > 0 && count == events.len(), "nothing happened");
    events
}

/// Returns the pending events without waiting.
fn now(queue: &mut EventQueue) -> Vec<Event> {
    let mut events = Vec::new();
    queue.wait_many(&mut events, 0..=1000, None).unwrap();
    events
}

/// Waits for exactly one event.
fn one(queue: &mut EventQueue) -> Event {
    let events = wait(queue);
    assert_eq!(events.len(), 1, "{events:?}");
    events[0]
}

/// Waits until an operation with the data 9 is complete. Returns its earlier events.
fn until_over(queue: &mut EventQueue, token: Token) -> Vec<EventKind> {
    let mut reported = Vec::new();
    loop {
        for event in wait(queue) {
            assert_eq!((event.token, event.data), (token, 9));
            if event.kind == EventKind::Completed {
                return reported;
            }
            reported.push(event.kind);
        }
    }
}

/// Returns the error of a failed call.
fn errno<T>(result: io::Result<T>) -> Errno {
    Errno::from_io_error(&result.err().expect("it fails")).expect("an error of the system")
}

/// Returns the readiness of the only event.
fn ready(queue: &mut EventQueue, token: Token) -> Readiness {
    let event = one(queue);
    assert_eq!(event.token, token);
    let EventKind::Ready(ready) = event.kind else { panic!("{event:?}") };
    ready
}
