//! Ports of a network whose guests are in the test, over stream sockets and with queues in shared
//! memory: what waits for a port, in which order it leaves, and what is dropped.

use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::thread;

use towpath_gateway::capture::CaptureSettings;
use towpath_gateway::network::{
    Attachment, Network, NetworkConfig, PortError, PortReport, PortSettings, check_port,
};
use towpath_io::endpoint::Connection;
use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam};
use towpath_io::vhost_user::virtq::Segment;
use towpath_net::counters::PortDrop;
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};

/// Bytes of a frame, and of its length in the stream.
const FRAME: usize = 1000;
const LENGTH: usize = 4;
/// Offset of the number in a datagram: after the headers of Ethernet, IPv4 and UDP.
const NUMBER: usize = 14 + 20 + 8;
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

/// A machine with two pairs of queues, which only receives.
struct Machine {
    ram: GuestRam,
    receive: [DriverQueue; 2],
    _transmit: [DriverQueue; 2],
    _front_end: FrontEnd,
}

/// Entries of each queue, and bytes of its buffers.
const SIZE: u16 = 128;
const BUFFER: u64 = 2048;
/// Where the queues begin, and where the buffers do.
const QUEUES: [u64; 4] = [0, 0x4_0000, 0x8_0000, 0xc_0000];
const BUFFERS: u64 = 0x10_0000;
const RAM: u64 = 0x20_0000;
/// Header of virtio in front of a frame (virtio 1.2 §5.1.6).
const VIRTIO: usize = 12;

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
        self.now += Duration::from_millis(1);
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

impl Machine {
    /// Attaches a machine while the network runs.
    fn attach(rig: &mut Rig, name: &str) -> Self {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let connection = Connection::new(near.into()).expect("a connected socket");
        let settings = PortSettings { pairs: 2, ..PortSettings::default() };
        rig.network.add_port(name, Attachment::VhostUserFd(connection), settings).expect("added");
        let machine = thread::spawn(move || {
            let ram = GuestRam::new(0, &[RAM]).expect("memory");
            let queue = |at| DriverQueue::new(&ram, at, SIZE, 0).expect("room");
            let [a, b, c, d] = QUEUES.map(queue);
            let front_end = FrontEnd::over(far, &ram, 0, [&a, &b, &c, &d]).expect("attached");
            Self { ram, receive: [a, c], _transmit: [b, d], _front_end: front_end }
        });
        while !machine.is_finished() {
            rig.turn();
        }
        machine.join().expect("attached")
    }

    /// Offers buffers to a receive queue.
    fn offer(&mut self, queue: usize, buffers: Range<u64>) {
        for token in buffers {
            let segment = Segment { address: Self::buffer(queue, token), bytes: BUFFER as u32 };
            assert!(self.receive[queue].add(&[], &[segment], token), "there is room");
        }
        self.receive[queue].publish();
    }

    /// Numbers of the frames that a queue has received. Its buffers are not offered again.
    fn received(&mut self, queue: usize) -> Vec<u32> {
        let mut numbers = Vec::new();
        while let Some((token, bytes)) = self.receive[queue].used() {
            assert_eq!(bytes as usize, VIRTIO + FRAME);
            let mut number = [0; 4];
            let at = Self::buffer(queue, token) + (VIRTIO + NUMBER) as u64;
            self.ram.memory().read(at, &mut number).expect("its memory");
            numbers.push(u32::from_be_bytes(number));
        }
        numbers
    }

    fn buffer(queue: usize, token: u64) -> u64 {
        BUFFERS + (queue as u64 * u64::from(SIZE) + token) * BUFFER
    }
}

impl Guest {
    /// Sends a numbered datagram of a flow.
    fn send_flow(&mut self, flow: u16, number: u32) {
        let mut bytes = vec![0; LENGTH + FRAME];
        bytes[..LENGTH].copy_from_slice(&(FRAME as u32).to_be_bytes());
        let frame = &mut bytes[LENGTH..];
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, self.station]);
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        frame[16..18].copy_from_slice(&(FRAME as u16 - 14).to_be_bytes());
        frame[22..24].copy_from_slice(&[64, 17]);
        frame[34..36].copy_from_slice(&flow.to_be_bytes());
        frame[37] = 9;
        frame[38..40].copy_from_slice(&(FRAME as u16 - 34).to_be_bytes());
        frame[NUMBER..NUMBER + 4].copy_from_slice(&number.to_be_bytes());
        self.socket.write_all(&bytes).expect("room");
    }

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
            if dropped > 100 && round > 200 {
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
        assert!(dropped > 100 && got.len() > 100, "{dropped} dropped, {} arrived", got.len());
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

/// Goal: a receive queue without buffers delays its own flows only; what waits for it arrives in
/// order once it has buffers. Method: a machine with two receive queues, and a flow for each, found
/// out with packets of several flows.
#[test]
fn a_slow_receive_queue_delays_no_other() {
    const COUNT: u32 = 100;
    let mut rig = Rig::new();
    let mut sender = rig.attach("a", 1, 64);
    let mut machine = Machine::attach(&mut rig, "machine");
    (0..2).for_each(|queue| machine.offer(queue, 0..1));
    let queue_of = |flow| {
        sender.send_flow(flow, 0);
        rig.turn();
        let queue = (0..2).find(|queue| machine.received(*queue) == [0]).expect("it arrives");
        machine.offer(queue, 0..1);
        queue
    };
    let flows: Vec<usize> = (0..16).map(queue_of).collect();
    let flow_of = |queue| flows.iter().position(|found| *found == queue).expect("all are used");
    let (slow, brisk) = (flow_of(0) as u16, flow_of(1) as u16);
    machine.offer(1, 1..COUNT.into());
    for number in 0..COUNT {
        sender.send_flow(slow, number);
        sender.send_flow(brisk, number);
        rig.turn();
    }
    assert!(machine.received(1).into_iter().eq(0..COUNT), "the other flow is not delayed");
    assert_eq!(rig.port("machine").waiting, COUNT as usize - 1, "one buffer was there");
    machine.offer(0, 1..COUNT.into());
    rig.turn();
    rig.turn();
    assert!(machine.received(0).into_iter().eq(0..COUNT), "what waited arrives in order");
    assert_eq!(rig.port("machine").waiting, 0);
}

/// Goal: an interface of the host has the MTU that it has; a setting of the port is an error, when
/// it is checked and when the port is made.
#[test]
fn an_uplink_has_no_mtu_of_its_own() {
    let attachment = Attachment::Packet("lo".to_owned());
    let settings = PortSettings { mtu: Some(1400), ..PortSettings::default() };
    let checked = check_port("a", &attachment, &settings);
    assert!(matches!(checked, Err(PortError::UplinkMtu)), "{checked:?}");
    let added = Rig::new().network.add_port("a", attachment, settings);
    assert!(matches!(added, Err(PortError::UplinkMtu)), "{added:?}");
}
