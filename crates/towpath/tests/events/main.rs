//! What an event queue promises, on both back ends. Where the kernel does not allow io_uring, its
//! half is reported as ignored, and so are those that need a disk where none can be mounted.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test fails by panicking")]

mod calls;
mod closed;
mod cold_files;
mod custom;
mod datagrams;
mod disk;
mod files;
mod kernel;
mod kernel_streams;
mod many;
mod multishot;
mod receive_all;
mod receive_file;
mod send_file;
mod sockets;
mod streams;
mod time;
mod transfer;
mod users;
mod zerocopy;

use libtest_mimic::{Arguments, Trial};
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};
use towpath::events::{Choice, Config, Event, EventQueue, News, Readiness, Token};

/// More than any step takes, so that a test that hangs ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// A test: its name, and what it does with a back end.
type Case = (&'static str, fn(Choice));

fn main() {
    let cases = [
        calls::CASES,
        closed::CASES,
        cold_files::CASES,
        custom::CASES,
        datagrams::CASES,
        files::CASES,
        kernel::CASES,
        kernel_streams::CASES,
        many::CASES,
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
    let of_disks = [receive_file::DISK_CASES, send_file::DISK_CASES];
    let mut arguments = Arguments::from_args();
    // Some use signals and forks.
    arguments.test_threads.get_or_insert(1);
    let has_ring = EventQueue::with(&config(Choice::IoUring)).is_ok();
    let has_disk = disk::Disk::new("probe", Vec::new()).is_some();
    let cases = cases.into_iter().flatten().map(|case| (case, true));
    let of_disks = of_disks.into_iter().flatten().map(|case| (case, has_disk));
    let mut trials = Vec::new();
    for (&(name, run), can_run) in cases.chain(of_disks) {
        for (kind, choice, has_kind) in
            [("epoll", Choice::Epoll, true), ("io_uring", Choice::IoUring, has_ring)]
        {
            let run = move || {
                run(choice);
                Ok(())
            };
            let trial = Trial::test(format!("{name}::{kind}"), run);
            trials.push(trial.with_ignored_flag(!(can_run && has_kind)));
        }
    }
    if !has_ring {
        eprintln!("skipped: this kernel does not allow io_uring");
    }
    if !has_disk {
        eprintln!("skipped: no file system can be mounted here");
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn config(back_end: Choice) -> Config {
    Config { back_end, ..Config::default() }
}

fn queue(back_end: Choice) -> EventQueue {
    EventQueue::with(&config(back_end)).unwrap()
}

/// Waits for an event at least, and fails without one.
fn wait(queue: &mut EventQueue) -> Vec<Event> {
    let mut events = Vec::new();
    let count = queue.wait(&mut events, Some(Instant::now() + PATIENCE)).unwrap();
    assert!(count > 0 && count == events.len(), "nothing happened");
    events
}

/// What there is without waiting.
fn now(queue: &mut EventQueue) -> Vec<Event> {
    let mut events = Vec::new();
    queue.wait_many(&mut events, 0..=1000, None).unwrap();
    events
}

/// The one event that there is to wait for.
fn one(queue: &mut EventQueue) -> Event {
    let events = wait(queue);
    assert_eq!(events.len(), 1, "{events:?}");
    events[0]
}

/// Waits until an operation with the data 9 is over; what was told of it before.
fn until_over(queue: &mut EventQueue, token: Token) -> Vec<News> {
    let mut told = Vec::new();
    loop {
        for event in wait(queue) {
            assert_eq!((event.token, event.data), (token, 9));
            if event.news == News::Completed {
                return told;
            }
            told.push(event.news);
        }
    }
}

/// Why it fails.
fn errno<T>(result: io::Result<T>) -> Errno {
    Errno::from_io_error(&result.err().expect("it fails")).expect("an error of the system")
}

/// What the one event says is ready.
fn ready(queue: &mut EventQueue, token: Token) -> Readiness {
    let event = one(queue);
    assert_eq!(event.token, token);
    let News::Ready(ready) = event.news else { panic!("{event:?}") };
    ready
}
