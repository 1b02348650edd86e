//! Several queues of one device: the kernel's choice of the queue for a packet.

use std::time::Duration;

use rustix::fd::AsFd;
use towpath_io::tap::{Features, Tap};
use towpath_packet::{Burst, Device, Memory, Offload, Packet};

use crate::network::{ONE, isolated};
use crate::support::{
    broadcast, broadcaster_at, cx, memory, now, pattern, receive_datagram, retry,
};

/// Longer than the kernel remembers which queue last wrote a packet of a flow.
const REST: Duration = Duration::from_millis(4500);
/// Time for which the kernel remembers it at least.
const REMEMBERED: Duration = Duration::from_secs(2);
/// Number of flows. By chance, all of them use the same one of two queues in one run of 2^31.
const FLOWS: u16 = 32;

/// Waits for the next datagram; returns it with the index of its queue.
fn next(taps: &mut [Tap; 2], memory: &mut Memory) -> (usize, Packet) {
    retry(|| {
        let mut come = taps.iter_mut().enumerate();
        come.find_map(|(at, tap)| Some((at, receive_datagram(tap, memory)?)))
    })
}

/// Turns the packet into an answer: swaps the addresses and ports. Only the kernel's flow table
/// looks at it; no host has its address.
fn answer(packet: &mut Packet) {
    packet.set_offload(Offload::default());
    let headers = packet.headers_mut();
    for (one, other, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        for at in 0..len {
            headers.swap(one + at, other + at);
        }
    }
}

/// Goal: the rules that workers rely on. A flow uses one queue, whichever that is. After another
/// queue has written a packet of it, it uses that queue; after a rest it uses the first again.
/// Method: many UDP flows, each answered on the queue that it does not use.
#[test]
fn a_flow_has_one_queue() {
    isolated(|| {
        let mut first = Tap::create_with_queues("tap0").expect("a TAP device");
        first.set_offload(Features::NONE).expect("features");
        ONE.interface().configure().expect("addresses");
        let second = first.add_queue().expect("a queue");
        assert_eq!(first.name(), second.name());
        first.discard_waiting().expect("nothing failed");
        let mut taps = [first, second];
        let mut memory = memory(64, 64, 64);
        let sockets: Vec<_> = (0..FLOWS).map(|flow| broadcaster_at(5000 + flow)).collect();
        let payload = pattern(100);
        let (mut queues, mut late) = (Vec::new(), 0);
        for socket in &sockets {
            broadcast(socket, &payload);
            let (queue, mut packet) = next(&mut taps, &mut memory);
            queues.push(queue);
            broadcast(socket, &payload);
            assert_eq!(next(&mut taps, &mut memory).0, queue, "without an answer");
            answer(&mut packet);
            let mut burst = Burst::new();
            assert!(burst.push(packet).is_ok());
            let answered = now();
            taps[1 - queue].transmit(&mut burst, &mut cx(&mut memory)).expect("sent");
            assert!(burst.is_empty());
            broadcast(socket, &payload);
            let came = next(&mut taps, &mut memory).0;
            let is_late = answered.elapsed() > REMEMBERED;
            assert!(came == 1 - queue || is_late, "after an answer");
            late += u16::from(is_late);
        }
        assert!(late < FLOWS, "the machine is too busy");
        assert!(queues.contains(&0) && queues.contains(&1), "{queues:?}");
        std::thread::sleep(REST);
        for (socket, queue) in sockets.iter().zip(queues) {
            broadcast(socket, &payload);
            assert_eq!(next(&mut taps, &mut memory).0, queue, "after a rest");
        }
    });
}

/// Goal: packets that waited before are dropped, and later ones are not.
#[test]
fn what_waits_is_discarded() {
    isolated(|| {
        let mut tap = ONE.tap(Features::ALL);
        let mut memory = memory(64, 64, 64);
        let socket = broadcaster_at(5000);
        broadcast(&socket, &pattern(60));
        crate::support::ready(tap.as_fd());
        tap.discard_waiting().expect("nothing failed");
        broadcast(&socket, &pattern(61));
        let packet = retry(|| receive_datagram(&mut tap, &mut memory));
        assert_eq!(packet.len(), 42 + 61);
    });
}

/// Bad input: a second queue for a single-queue device; the same device opened again.
#[test]
fn a_device_for_one_queue_has_no_other() {
    isolated(|| {
        let tap = Tap::create("tap0").expect("a TAP device");
        assert!(tap.add_queue().is_err());
        assert!(Tap::create_with_queues("tap0").is_err());
    });
}
