//! Ports of a network over stream sockets, whose guests are in the test: what waits for a port, in
//! which order it leaves, and what is dropped.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use towpath_gateway::capture::CaptureSettings;
use towpath_gateway::network::{Attachment, Network, NetworkConfig, PortReport, PortSettings};
use towpath_io::endpoint::Connection;
use towpath_net::counters::PortDrop;
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};

/// Bytes of a frame, and of its length in the stream.
const FRAME: usize = 1000;
const LENGTH: usize = 4;
/// More turns than anything here takes.
const TURNS_MAX: usize = 100_000;

/// Turns without a frame after which none will come: sockets pass bytes on at once.
const IDLE_TURNS: usize = 3;

/// A network, its memory, and its guests' ends of the connections.
struct Rig {
    network: Network,
    memory: Memory,
    ledger: Ledger,
    now: Instant,
}

/// A guest: its station and its end of the connection.
struct Guest {
    station: u8,
    socket: UnixStream,
    /// Bytes of a frame that has not arrived completely.
    rest: Vec<u8>,
}

impl Rig {
    fn new() -> Self {
        let config = NetworkConfig {
            mtu: 1500,
            gateway: None,
            gateway_addresses: Vec::new(),
            orphan: false,
            busy_poll: Duration::ZERO,
            seed: 1,
        };
        // Much more than can wait: memory is never short.
        let sizes = MemoryConfig { packets: 16_384, small_frames: 1024, large_frames: 1024 };
        Self {
            network: Network::new(config).expect("a network"),
            memory: Memory::new(sizes),
            ledger: Ledger::new(),
            now: Instant::from_micros(1),
        }
    }

    /// Attaches a guest, and lets it introduce itself.
    fn attach(&mut self, name: &str, station: u8, queue_len: usize) -> Guest {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let connection = Connection::new(near.into()).expect("a connected socket");
        let settings = PortSettings { queue_len, ..PortSettings::default() };
        let attachment = Attachment::StreamFd(connection);
        self.network.add_port(name, attachment, settings).expect("added");
        far.set_nonblocking(true).expect("set");
        let mut guest = Guest { station, socket: far, rest: Vec::new() };
        guest.send(u8::MAX, 0);
        self.turn();
        guest
    }

    fn turn(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        self.network.turn(true, &mut cx).expect("turned");
        self.network.receive(&mut Burst::new(), &mut cx).expect("received");
    }

    /// Numbers of the frames from `from` that still arrive at a guest.
    fn drain(&mut self, guest: &mut Guest, from: u8) -> Vec<u32> {
        let (mut numbers, mut idle) = (Vec::new(), 0);
        while idle < IDLE_TURNS {
            self.turn();
            let more = guest.receive(from);
            idle = if more.is_empty() { idle + 1 } else { 0 };
            numbers.extend(more);
        }
        numbers
    }

    fn port(&self, name: &str) -> PortReport {
        let report = self.network.report(self.now);
        report.ports.into_iter().find(|port| port.name == name).expect("a port")
    }

    fn set_queue_len(&mut self, name: &str, queue_len: usize) {
        let settings = self.network.settings(name).expect("a port").clone();
        self.network.set_port(name, PortSettings { queue_len, ..settings }).expect("set");
    }
}

impl Guest {
    /// Sends a numbered frame; false if the connection has no room for it.
    fn send(&mut self, to: u8, number: u32) -> bool {
        let mut bytes = vec![0; LENGTH + FRAME];
        bytes[..LENGTH].copy_from_slice(&(FRAME as u32).to_be_bytes());
        let frame = &mut bytes[LENGTH..];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, self.station]);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame[14..18].copy_from_slice(&number.to_be_bytes());
        match self.socket.write(&bytes) {
            Ok(count) => {
                assert_eq!(count, bytes.len(), "a frame is written whole");
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    }

    /// Numbers of the frames that have arrived from `from`.
    fn receive(&mut self, from: u8) -> Vec<u32> {
        let mut bytes = [0; 64 << 10];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => self.rest.extend(&bytes[..count]),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        let whole = self.rest.len() / (LENGTH + FRAME) * (LENGTH + FRAME);
        let frames = self.rest.drain(..whole).collect::<Vec<u8>>();
        let frames = frames.chunks(LENGTH + FRAME).map(|bytes| &bytes[LENGTH..]);
        let frames = frames.filter(|frame| frame[11] == from);
        frames.map(|frame| u32::from_be_bytes(frame[14..18].try_into().expect("four"))).collect()
    }
}

/// Goal: what a device does not take waits, at most as many packets as the queue has room for; the
/// rest is dropped and counted; what waits arrives in order, and nothing twice. Method: a guest
/// that does not read, with queues of several lengths, the shortest of them shorter than a burst.
#[test]
fn packets_wait_for_a_guest_that_does_not_read() {
    for queue_len in [1, 7, 500] {
        let mut rig = Rig::new();
        let mut sender = rig.attach("a", 1, 64);
        let mut slow = rig.attach("b", 2, queue_len);
        let mut sent = 0;
        for _ in 0..TURNS_MAX {
            if rig.port("b").counters.dropped(PortDrop::QueueFull) > 100 {
                break;
            }
            while sender.send(2, sent) {
                sent += 1;
            }
            rig.turn();
        }
        let port = rig.port("b");
        let dropped = port.counters.dropped(PortDrop::QueueFull);
        assert!(dropped > 100, "the queue is full");
        assert_eq!(port.waiting, queue_len, "as many packets wait as may");
        let got = rig.drain(&mut slow, 1);
        assert!(got.is_sorted_by(|one, next| one < next), "in order, and nothing twice");
        let dropped = rig.port("b").counters.dropped(PortDrop::QueueFull);
        assert_eq!(got.len() as u64 + dropped, u64::from(sent), "each was counted");
        assert_eq!(rig.memory.packets.out_count(), 0);
    }
}

/// Goal: a queue that becomes shorter than what waits loses nothing, and a longer one takes more at
/// once.
#[test]
fn a_queue_changes_its_length_while_packets_wait() {
    let mut rig = Rig::new();
    let mut sender = rig.attach("a", 1, 64);
    let mut slow = rig.attach("b", 2, 100);
    let mut sent = 0;
    let mut fill = |rig: &mut Rig| {
        let before = rig.port("b").counters.dropped(PortDrop::QueueFull);
        for _ in 0..TURNS_MAX {
            if rig.port("b").counters.dropped(PortDrop::QueueFull) > before {
                return;
            }
            sent += u32::from(sender.send(2, sent));
            rig.turn();
        }
        panic!("the queue is never full");
    };
    fill(&mut rig);
    assert_eq!(rig.port("b").waiting, 100);
    rig.set_queue_len("b", 10);
    assert_eq!(rig.port("b").waiting, 100, "what waits stays");
    fill(&mut rig);
    assert_eq!(rig.port("b").waiting, 100, "and nothing joins it");
    rig.set_queue_len("b", 300);
    fill(&mut rig);
    assert_eq!(rig.port("b").waiting, 300);
    let got = rig.drain(&mut slow, 1);
    assert!(got.is_sorted(), "in order");
    let dropped = rig.port("b").counters.dropped(PortDrop::QueueFull);
    assert_eq!(got.len() as u64 + dropped, u64::from(sent));
}

/// Goal: a capture sees each packet that is accepted for a port once, and none that is dropped,
/// whether it waited or not.
#[test]
fn a_capture_sees_packets_once() {
    for queue_len in [1, 40, 500] {
        let mut rig = Rig::new();
        let mut sender = rig.attach("a", 1, 64);
        let mut slow = rig.attach("b", 2, queue_len);
        let cx = Context { memory: &mut rig.memory, ledger: &rig.ledger, now: rig.now };
        let capture = rig.network.capture("b", CaptureSettings::default(), &cx);
        let mut sniffer = capture.expect("a capture");
        let (mut sent, mut got) = (0, Vec::new());
        for round in 0..TURNS_MAX {
            let dropped = rig.port("b").counters.dropped(PortDrop::QueueFull);
            if dropped > 100 && round > 1000 {
                break;
            }
            while sender.send(2, sent) {
                sent += 1;
            }
            rig.turn();
            sniffer.discard();
            // Now and then the guest reads.
            if round % 30 == 0 {
                got.extend(slow.receive(1));
            }
        }
        got.extend(rig.drain(&mut slow, 1));
        let dropped = rig.port("b").counters.dropped(PortDrop::QueueFull);
        assert!(dropped > 100 && got.len() > 1000, "{dropped} dropped, {} arrived", got.len());
        assert_eq!(sniffer.statistics().seen, got.len() as u64);
    }
}

/// Goal: a guest that does not read costs its own packets only. Method: its neighbour gets all of
/// what is sent to both.
#[test]
fn a_slow_guest_delays_no_other() {
    let mut rig = Rig::new();
    let mut sender = rig.attach("a", 1, 64);
    let _slow = rig.attach("slow", 2, 20);
    let mut brisk = rig.attach("brisk", 3, 20);
    let (mut sent, mut got) = (0, Vec::new());
    for _ in 0..TURNS_MAX {
        if rig.port("slow").counters.dropped(PortDrop::QueueFull) > 100 {
            break;
        }
        if sender.send(3, sent) {
            sent += 1;
            sender.send(2, sent);
        }
        rig.turn();
        got.extend(brisk.receive(1));
    }
    assert!(rig.port("slow").counters.dropped(PortDrop::QueueFull) > 100);
    assert!(got.iter().copied().eq(0..sent), "all, in order");
    assert_eq!(rig.port("brisk").counters.dropped(PortDrop::QueueFull), 0);
}
