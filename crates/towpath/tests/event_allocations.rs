//! Operations on the kernel's streams do not allocate once a queue has done some.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::net::UnixStream;

use towpath::events::{Choice, Completion, Config, Event, EventQueue, Stream};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded unchanged to the system's allocator, which meets the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller guarantees a valid layout of non-zero size, which is passed on
        // unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that `memory` came from this allocator, hence from
        // `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        turn(&mut queue, &pairs, &mut buffers, &mut events);
    }
    // A list may still grow, when more events than ever before arrive at a time.
    let allocations = ALLOCATIONS.get() - before;
    assert!(allocations < 32, "{allocations} allocations for 1600 operations");
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
