//! Neither direction of a TAP device allocates memory.

use towpath_io::tap::Features;
use towpath_packet::{Burst, Device};

use crate::network::{End, ONE, isolated};
use crate::support::{broadcast, broadcaster, cx, memory, pattern};

#[path = "../../../packet/tests/support/allocations.rs"]
mod counting;

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
        let before = counting::count();
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
        assert_eq!(counting::count() - before, 0);
        assert!(tap.counters().received.packets >= 40);
        assert!(tap.counters().receive_no_memory >= 20);
    });
}
