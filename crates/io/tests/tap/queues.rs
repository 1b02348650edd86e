//! Several queues of one device: which of them the kernel puts packets into.

use std::time::Duration;

use rustix::fd::AsFd;
use towpath_io::tap::{Features, Tap};
use towpath_packet::{Burst, Device, Memory, Offload, Packet};

use crate::network::{ONE, isolated};
use crate::support::{
    broadcast, broadcaster_at, cx, memory, now, pattern, receive_datagram, retry,
};

/// Longer than the kernel remembers which queue wrote last for a flow.
const REST: Duration = Duration::from_millis(4500);
/// How long the kernel remembers it at least.
const REMEMBERED: Duration = Duration::from_secs(2);
/// Flows: by chance, all come to one of two queues in one run of 2^31.
const FLOWS: u16 = 32;

/// Waits for the next datagram; in which queue it came.
fn next(taps: &mut [Tap; 2], memory: &mut Memory) -> (usize, Packet) {
    retry(|| {
        let mut come = taps.iter_mut().enumerate();
        come.find_map(|(at, tap)| Some((at, receive_datagram(tap, memory)?)))
    })
}

/// What a peer would answer: the same datagram with the ends exchanged, which only the kernel's
/// table of flows looks at; its address is nobody's.
fn answer(packet: &mut Packet) {
    packet.set_offload(Offload::default());
    let headers = packet.headers_mut();
    for (one, other, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        for at in 0..len {
            headers.swap(one + at, other + at);
        }
    }
}

/// Goal: what workers rely on: a flow comes to one queue, whichever that is; to another one that
/// wrote for it; and after a rest to the first again.
/// Method: many flows of datagrams, each answered by the queue that it did not come to.
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

/// Goal: what waited before is gone, and nothing else is.
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

/// Bad input: another queue for a device that was made for one; such a device made a second time.
#[test]
fn a_device_for_one_queue_has_no_other() {
    isolated(|| {
        let tap = Tap::create("tap0").expect("a TAP device");
        assert!(tap.add_queue().is_err());
        assert!(Tap::create_with_queues("tap0").is_err());
    });
}
