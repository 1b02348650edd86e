//! Operations on the kernel's streams do not allocate once a queue has done some.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::net::UnixStream;

use towpath::events::{Choice, Completion, Config, Event, EventQueue, Stream};

#[path = "../../packet/tests/support/allocations.rs"]
mod allocations;

const PAIRS: usize = 8;
const BYTES: usize = 512;

/// A receive and a send on each pair, all at the same time, and both buffers back.
fn turn(
    queue: &mut EventQueue,
    pairs: &[(Stream, Stream)],
    buffers: &mut Vec<Vec<u8>>,
    events: &mut Vec<Event>,
) {
    for (near, far) in pairs {
        // The receive begins first, so it has to wait.
        let received = buffers.pop().unwrap();
        queue.receive_all(far, received, None, 0).unwrap();
        let sent = buffers.pop().unwrap();
        queue.send(near, sent, None, 0).unwrap();
    }
    while buffers.len() < 2 * pairs.len() {
        events.clear();
        queue.wait(events, None).unwrap();
        for event in &*events {
            match queue.take(event.token) {
                Some(Completion::Bytes(done)) => {
                    assert_eq!(done.result.unwrap(), BYTES);
                    buffers.push(done.buffer);
                }
                Some(Completion::Sent(done)) => {
                    assert_eq!(done.result.unwrap(), BYTES);
                    buffers.push(done.buffer.downcast().unwrap());
                }
                _ => {}
            }
        }
    }
}

fn operations_do_not_allocate(back_end: Choice) {
    let mut queue = EventQueue::with(&Config { back_end, ..Config::default() }).unwrap();
    let pair = || UnixStream::pair().map(|(near, far)| (near.into(), far.into())).unwrap();
    let pairs: Vec<(Stream, Stream)> = (0..PAIRS).map(|_| pair()).collect();
    let mut buffers = vec![vec![0; BYTES]; 2 * PAIRS];
    let mut events = Vec::new();
    for _ in 0..100 {
        turn(&mut queue, &pairs, &mut buffers, &mut events);
    }
    let before = allocations::count();
    for _ in 0..100 {
        turn(&mut queue, &pairs, &mut buffers, &mut events);
    }
    // A list may still grow, when more events than ever before arrive at a time.
    let count = allocations::count() - before;
    assert!(count < 32, "{count} allocations for 1600 operations");
}

#[test]
fn operations_by_epoll_do_not_allocate() {
    operations_do_not_allocate(Choice::Epoll);
}

#[test]
fn operations_by_io_uring_do_not_allocate() {
    if EventQueue::with(&Config { back_end: Choice::IoUring, ..Config::default() }).is_err() {
        eprintln!("skipped: the kernel does not allow io_uring");
        return;
    }
    operations_do_not_allocate(Choice::IoUring);
}
