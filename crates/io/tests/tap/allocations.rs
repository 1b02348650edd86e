//! Neither direction of a TAP device allocates memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use towpath_io::tap::Features;
use towpath_packet::{Burst, Device};

use crate::network::{End, ONE, isolated};
use crate::support::{broadcast, broadcaster, cx, memory, pattern};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: each call is passed on to the system's allocator, which meets the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's
        // allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; `memory` came from the system's
        // allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Goal: neither direction allocates, even for large packets, drops and refused packets.
#[test]
fn the_data_path_does_not_allocate() {
    isolated(|| {
        let end = End { mtu: 65_520, ..ONE };
        let mut tap = end.tap(Features::ALL);
        let (mut enough, mut tight) = (memory(64, 64, 64), memory(64, 4, 0));
        let socket = broadcaster();
        let mut burst = Burst::new();
        let (small, large) = (pattern(100), pattern(60_000));
        let before = ALLOCATIONS.get();
        for _ in 0..20 {
            broadcast(&socket, &small);
            broadcast(&socket, &large);
            tap.receive(&mut burst, &mut cx(&mut enough)).expect("received");
            tap.transmit(&mut burst, &mut cx(&mut enough)).expect("sent");
            tap.rest();
            broadcast(&socket, &large);
            tap.receive(&mut burst, &mut cx(&mut tight)).expect("received");
            tap.transmit(&mut burst, &mut cx(&mut tight)).expect("sent");
            tap.rest();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
        assert!(tap.counters().received.packets >= 40);
        assert!(tap.counters().receive_no_memory >= 20);
    });
}
