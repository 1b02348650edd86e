//! Memory for sends: the reserve, shares of sockets, and wake-ups.

use super::bench::*;
use crate::socket::{Error, Family, Readiness, ReceiveFlags, SendTo, SocketId};
use crate::time::Duration;
use alloc::vec;
use alloc::vec::Vec;
use towpath_packet::MemoryConfig;
use towpath_packet::pool::{Frame, LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};

/// Little memory, but a quarter of it is more than a burst of ACKs takes.
const LITTLE: MemoryConfig = MemoryConfig { packets: 512, small_frames: 512, large_frames: 32 };
/// Bytes of its frames that sends may take.
const FOR_SENDS: usize = (512 * SMALL_FRAME_BYTES + 32 * LARGE_FRAME_BYTES) / 4 * 3;

fn little() -> Bench {
    Bench::with_memory([MemoryConfig::within(64 << 20), LITTLE])
}

/// Makes `count` connections: the server's and the client's ends.
fn connections(b: &mut Bench, count: usize) -> Vec<(SocketId, SocketId)> {
    let listener = b.listen(80, 1024);
    let clients: Vec<_> = (0..count).map(|_| b.connecting(80)).collect();
    b.settle();
    let pair = |client| {
        assert_eq!(b.hosts[CLIENT].connect(client, at(80), b.now), Ok(()));
        let local = b.hosts[CLIENT].local(client);
        (b.hosts[SERVER].accept(listener, b.now).expect("a connection").0, client, local)
    };
    let pairs: Vec<_> = clients.into_iter().map(pair).collect();
    b.wakes(CLIENT);
    let server_of = |local| {
        let found = pairs.iter().find(|pair| b.hosts[SERVER].remote(pair.0) == local);
        found.expect("its other end").0
    };
    pairs.iter().map(|&(_, client, local)| (server_of(local), client)).collect()
}

/// Bytes of a stream from `start` on.
fn pattern(start: usize, len: usize) -> Vec<u8> {
    (start..start + len).map(|at| (at % 251) as u8).collect()
}

/// A connection with a writer and a reader.
struct Flow {
    server: SocketId,
    client: SocketId,
    sent: usize,
    read: usize,
}

impl Flow {
    /// Sends until there is no room.
    fn fill(&mut self, b: &mut Bench, size: usize, goal: usize) {
        while self.sent < goal {
            let bytes = pattern(self.sent, size.min(goal - self.sent));
            match b.send(CLIENT, self.client, &bytes) {
                Ok(count) => self.sent += count,
                Err(error) => {
                    assert_eq!(error, Error::WouldBlock);
                    let ready = b.hosts[CLIENT].readiness(self.client);
                    assert!(!ready.contains(Readiness::OUT), "ready to send");
                    return;
                }
            }
            b.settle();
        }
    }

    fn drain(&mut self, b: &mut Bench) {
        let mut into = vec![0; 65_536];
        let id = self.server;
        loop {
            let flags = ReceiveFlags::default();
            match b.with(SERVER, |host, cx| host.receive(id, &mut into, flags, cx)) {
                Ok(count) => {
                    assert!(into[..count] == pattern(self.read, count), "wrong bytes");
                    self.read += count;
                }
                Err(error) => return assert_eq!(error, Error::WouldBlock),
            }
        }
    }
}

/// Goal: with any amount and size of sends, on any number of connections, ACKs are received and
/// everything arrives, and a writer needs no more than edge-triggered events.
#[test]
fn sends_leave_frames_for_what_acknowledges_them() {
    const GOAL: usize = 150_000;
    for size in [100, 1000, 65_536] {
        let mut b = little();
        let flow = |(server, client)| Flow { server, client, sent: 0, read: 0 };
        let mut flows: Vec<Flow> = connections(&mut b, 100).into_iter().map(flow).collect();
        flows.iter_mut().for_each(|flow| flow.fill(&mut b, size, GOAL));
        assert!(flows.iter().any(|flow| flow.sent < GOAL), "memory is short");
        for _ in 0..20_000 {
            flows.iter_mut().for_each(|flow| flow.drain(&mut b));
            b.pass(Duration::from_millis(1));
            for (id, what) in b.wakes(CLIENT) {
                let flow = flows.iter_mut().find(|flow| flow.client == id);
                if let Some(flow) = flow.filter(|_| what.contains(Readiness::OUT)) {
                    flow.fill(&mut b, size, GOAL);
                }
            }
            if flows.iter().all(|flow| flow.read == GOAL) {
                break;
            }
        }
        let stuck = flows.iter().filter(|flow| flow.read < GOAL).count();
        assert_eq!(stuck, 0, "flows stall with writes of {size} bytes");
    }
}

/// Takes all frames of the client.
fn take_frames(b: &mut Bench) -> Vec<Frame> {
    let memory = &mut b.memory[CLIENT];
    let small = core::iter::from_fn(|| memory.small.take());
    let mut frames: Vec<_> = small.collect();
    frames.extend(core::iter::from_fn(|| memory.large.take()));
    frames
}

/// Goal: a socket with room but without a frame is not writable. It is woken when there is a frame,
/// even if only time passes, and whether it tried to send or was only polled.
#[test]
fn a_socket_without_a_frame_is_woken_when_one_is_free() {
    for tries in [true, false] {
        let mut b = little();
        let (_, client) = connections(&mut b, 1)[0];
        let datagrams = b.hosts[CLIENT].datagram(Family::V4).expect("room");
        let to = SendTo { to: Some(at(9)), ..SendTo::default() };
        let frames = take_frames(&mut b);
        b.settle();
        if tries {
            assert_eq!(b.send(CLIENT, client, b"x"), Err(Error::WouldBlock));
            let sent = b.with(CLIENT, |host, cx| host.send_datagram(datagrams, &[b"x"], &to, cx));
            assert_eq!(sent, Err(Error::WouldBlock));
        }
        for id in [client, datagrams] {
            assert!(!b.hosts[CLIENT].readiness(id).contains(Readiness::OUT));
        }
        b.settle();
        b.pass(Duration::from_millis(1));
        assert_eq!(b.wakes(CLIENT), [], "no frame is free yet");
        drop(frames);
        let due = b.hosts[CLIENT].next_deadline().expect("a socket waits");
        b.pass(due.since(b.now));
        let wakes = b.wakes(CLIENT);
        for id in [client, datagrams] {
            let received =
                |wake: &(SocketId, Readiness)| wake.0 == id && wake.1.contains(Readiness::OUT);
            assert!(wakes.iter().any(received), "{wakes:?}");
            assert!(b.hosts[CLIENT].readiness(id).contains(Readiness::OUT));
        }
        assert_eq!(b.send(CLIENT, client, b"x"), Ok(1));
        let sent = b.with(CLIENT, |host, cx| host.send_datagram(datagrams, &[b"x"], &to, cx));
        assert_eq!(sent, Ok(1));
        b.settle();
        b.pass(Duration::from_secs(1));
        assert_eq!(b.hosts[CLIENT].next_deadline(), None, "no socket waits");
    }
}

/// Goal: small writes share the tail frame, while they are unsent and in flight.
#[test]
fn small_writes_share_a_frame() {
    let mut b = little();
    let (server, client) = connections(&mut b, 1)[0];
    let mut flow = Flow { server, client, sent: 0, read: 0 };
    let before = b.memory[CLIENT].small.out_count();
    for _ in 0..100 {
        let bytes = pattern(flow.sent, 100);
        assert_eq!(b.send(CLIENT, client, &bytes), Ok(100));
        flow.sent += 100;
    }
    let used = b.memory[CLIENT].small.out_count() - before;
    assert_eq!(used, 10_000usize.div_ceil(SMALL_FRAME_BYTES));
    b.settle();
    flow.drain(&mut b);
    assert_eq!(flow.read, 10_000);
    b.pass(Duration::from_secs(1));
    assert_eq!(b.memory[CLIENT].small.out_count(), before);
}

/// Goal: a greedy sender gets half of the memory, the next half of the rest; shares grow again.
#[test]
fn shares_shrink_with_the_number_of_senders() {
    let mut b = little();
    b.hosts[CLIENT].stack_mut().tcp_settings_mut().send_buffer = 16 << 20;
    let pairs = connections(&mut b, 2);
    let mut taken = Vec::new();
    for &(_, client) in &pairs {
        let bytes = vec![0; 65_536];
        while b.send(CLIENT, client, &bytes).is_ok() {}
        let held = b.hosts[CLIENT].tcp(client).map_or(0, |connection| connection.send_held());
        taken.push(held);
    }
    let slack = LARGE_FRAME_BYTES;
    assert!(taken[0].abs_diff(FOR_SENDS / 2) <= slack, "{taken:?} of {FOR_SENDS}");
    assert!(taken[1].abs_diff(FOR_SENDS / 4) <= slack, "{taken:?} of {FOR_SENDS}");
    for _ in 0..100 {
        for &(server, _) in &pairs {
            let _ = b.hosts[SERVER].discard(server, usize::MAX, b.now);
        }
        b.pass(Duration::from_millis(50));
    }
    let ready = b.hosts[CLIENT].readiness(pairs[1].1);
    assert!(ready.contains(Readiness::OUT), "the other's share is free again");
}

/// Goal: sockets that are closed while they wait are purged, even if memory stays short.
#[test]
fn the_list_of_waiters_is_bounded() {
    let mut b = little();
    let (_, client) = connections(&mut b, 1)[0];
    let frames = take_frames(&mut b);
    b.settle();
    assert_eq!(b.send(CLIENT, client, b"x"), Err(Error::WouldBlock));
    for _ in 0..10_000 {
        let id = b.hosts[CLIENT].datagram(Family::V4).expect("room");
        assert!(!b.hosts[CLIENT].readiness(id).contains(Readiness::OUT));
        b.hosts[CLIENT].close(id, b.now).expect("open socket");
    }
    assert!(b.hosts[CLIENT].frames.waiting_count() <= 200);
    drop(frames);
    b.settle();
    b.pass(Duration::from_secs(1));
    let received =
        |wake: &(SocketId, Readiness)| wake.0 == client && wake.1.contains(Readiness::OUT);
    assert!(b.wakes(CLIENT).iter().any(received), "the longest waiter");
}
