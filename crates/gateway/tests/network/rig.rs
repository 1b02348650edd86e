//! A network that the test drives turn by turn, and guests in the test.

use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::thread;

use towpath_gateway::config::Config;
use towpath_gateway::network::{
    Attachment, Network, NetworkConfig, PortReport, PortSettings, WorkersError,
};
use towpath_io::endpoint::Connection;
use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam};
use towpath_io::vhost_user::virtq::Segment;
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};

/// Bytes of a frame, and of its length in the stream.
pub(crate) const FRAME: usize = 1000;
pub(crate) const LENGTH: usize = 4;
/// Offset of the number in a datagram: after the headers of Ethernet, IPv4 and UDP.
pub(crate) const NUMBER: usize = 14 + 20 + 8;
/// Memory of all workers together: enough for eight.
const MEMORY: usize = 160 << 20;
/// More turns than anything here takes.
pub(crate) const TURNS_MAX: usize = 100_000;

/// Turns without a frame after which none will come: sockets pass bytes on at once.
pub(crate) const IDLE_TURNS: usize = 3;

/// A network, its memory, and its guests' ends of the connections.
pub(crate) struct Rig {
    pub(crate) network: Network,
    pub(crate) memory: Memory,
    pub(crate) ledger: Ledger,
    pub(crate) now: Instant,
    /// Packets that the gateway got.
    pub(crate) to_gateway: usize,
    workers: usize,
}

/// A guest: its station and its end of the connection.
pub(crate) struct Guest {
    pub(crate) station: u8,
    pub(crate) socket: UnixStream,
    /// Bytes of a frame that has not arrived completely.
    rest: Vec<u8>,
}

/// A machine with two pairs of queues.
pub(crate) struct Machine {
    ram: GuestRam,
    pub(crate) receive: [DriverQueue; 2],
    transmit: [DriverQueue; 2],
    front_end: FrontEnd,
}

/// Entries of each queue, and bytes of its buffers.
pub(crate) const SIZE: u16 = 128;
pub(crate) const BUFFER: u64 = 2048;
/// Where the queues begin, and where the buffers do.
pub(crate) const QUEUES: [u64; 4] = [0, 0x4_0000, 0x8_0000, 0xc_0000];
pub(crate) const BUFFERS: u64 = 0x10_0000;
pub(crate) const RAM: u64 = 0x20_0000;
/// Header of virtio in front of a frame (virtio 1.2 §5.1.6).
pub(crate) const VIRTIO: usize = 12;

impl Rig {
    /// One rig with one worker, and one with two.
    pub(crate) fn each() -> impl Iterator<Item = Self> {
        [1, 2].into_iter().map(Self::new)
    }

    /// A network with so many workers, all of which this thread drives.
    pub(crate) fn new(workers: usize) -> Self {
        Self::with_gateway(workers, None)
    }

    /// A network with a gateway at this station, if there is to be one.
    pub(crate) fn with_gateway(workers: usize, gateway: Option<u8>) -> Self {
        let config = NetworkConfig {
            mtu: 1500,
            gateway: gateway.map(|last| MacAddr([2, 0, 0, 0, 0, last])),
            gateway_addresses: Vec::new(),
            orphan: false,
            busy_poll: Duration::ZERO,
            seed: 1,
        };
        // Much more than can wait: memory is never short.
        let sizes = MemoryConfig { packets: 16_384, small_frames: 1024, large_frames: 1024 };
        let mut network = Network::new(config).expect("a network");
        let shares = Config { workers, memory_bytes: MEMORY, ..Config::default() };
        network.set_workers(&shares).expect("workers");
        Self {
            network,
            memory: Memory::new(sizes),
            ledger: Ledger::new(),
            now: Instant::from_micros(1),
            to_gateway: 0,
            workers,
        }
    }

    /// Changes the number of workers.
    pub(crate) fn change_workers(&mut self, workers: usize) -> Result<(), WorkersError> {
        let Self { network, memory, ledger, now, .. } = self;
        network.change_workers(workers, &mut Context { memory, ledger, now: *now })?;
        self.workers = workers;
        Ok(())
    }

    /// Attaches a guest, and lets it introduce itself.
    pub(crate) fn attach(&mut self, name: &str, station: u8, queue_len: usize) -> Guest {
        let mut guest = self.attach_silent(name, station, queue_len);
        guest.send(u8::MAX, 0);
        self.turn();
        guest
    }

    /// Attaches a guest whose station is unknown.
    pub(crate) fn attach_silent(&mut self, name: &str, station: u8, queue_len: usize) -> Guest {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let connection = Connection::new(near.into()).expect("a connected socket");
        let settings = PortSettings { queue_len, ..PortSettings::default() };
        let attachment = Attachment::StreamFd(connection);
        self.network.add_port(name, attachment, settings).expect("added");
        Guest::new(station, far)
    }

    /// Gives all workers as many turns as there are workers, so that packets arrive that cross
    /// between them.
    pub(crate) fn turn(&mut self) {
        for _ in 0..self.workers {
            self.turn_first();
            self.step_others();
        }
    }

    /// Gives the first worker a turn.
    pub(crate) fn turn_first(&mut self) {
        self.now += Duration::from_millis(1);
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: self.now };
        self.network.turn(true, &mut cx).expect("turned");
        let mut burst = Burst::new();
        self.network.receive(&mut burst, &mut cx).expect("received");
        self.to_gateway += burst.len();
    }

    /// Gives the other workers a turn.
    pub(crate) fn step_others(&mut self) {
        self.network.step_others(self.now).expect("stepped");
    }

    /// Numbers of the frames from `from` that still arrive at a guest.
    pub(crate) fn drain(&mut self, guest: &mut Guest, from: u8) -> Vec<u32> {
        let (mut numbers, mut idle) = (Vec::new(), 0);
        while idle < IDLE_TURNS {
            self.turn();
            let more = guest.receive(from);
            idle = if more.is_empty() { idle + 1 } else { 0 };
            numbers.extend(more);
        }
        numbers
    }

    pub(crate) fn port(&self, name: &str) -> PortReport {
        let report = self.network.report(self.now);
        report.ports.into_iter().find(|port| port.name == name).expect("a port")
    }

    pub(crate) fn set_queue_len(&mut self, name: &str, queue_len: usize) {
        let settings = self.network.settings(name).expect("a port").clone();
        self.network.set_port(name, PortSettings { queue_len, ..settings }).expect("set");
    }
}

impl Machine {
    /// Attaches a machine while the network runs.
    pub(crate) fn attach(rig: &mut Rig, name: &str) -> Self {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        let connection = Connection::new(near.into()).expect("a connected socket");
        let settings = PortSettings { pairs: 2, ..PortSettings::default() };
        rig.network.add_port(name, Attachment::VhostUserFd(connection), settings).expect("added");
        let machine = thread::spawn(move || {
            let ram = GuestRam::new(0, &[RAM]).expect("memory");
            let queue = |at| DriverQueue::new(&ram, at, SIZE, 0).expect("room");
            let [a, b, c, d] = QUEUES.map(queue);
            let front_end = FrontEnd::over(far, &ram, 0, [&a, &b, &c, &d]).expect("attached");
            Self { ram, receive: [a, c], transmit: [b, d], front_end }
        });
        while !machine.is_finished() {
            rig.turn();
        }
        machine.join().expect("attached")
    }

    /// Offers buffers to a receive queue.
    pub(crate) fn offer(&mut self, queue: usize, buffers: Range<u64>) {
        for token in buffers {
            let segment = Segment { address: Self::buffer(queue, token), bytes: BUFFER as u32 };
            assert!(self.receive[queue].add(&[], &[segment], token), "there is room");
        }
        self.receive[queue].publish();
    }

    /// Numbers of the frames that a queue has received. Its buffers are not offered again.
    pub(crate) fn received(&mut self, queue: usize) -> Vec<u32> {
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

    /// Sends so many frames of zeros.
    pub(crate) fn send_zeros(&mut self, count: u64) {
        let bytes = (VIRTIO + FRAME) as u32;
        for token in 0..count {
            let segment = Segment { address: Self::buffer(0, token), bytes };
            assert!(self.transmit[0].add(&[segment], &[], token), "there is room");
        }
        self.transmit[0].publish();
        self.front_end.kick(1);
    }

    pub(crate) fn buffer(queue: usize, token: u64) -> u64 {
        BUFFERS + (queue as u64 * u64::from(SIZE) + token) * BUFFER
    }
}

impl Guest {
    pub(crate) fn new(station: u8, socket: UnixStream) -> Self {
        socket.set_nonblocking(true).expect("set");
        Self { station, socket, rest: Vec::new() }
    }

    /// Sends a numbered datagram of a flow.
    pub(crate) fn send_flow(&mut self, flow: u16, number: u32) {
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

    /// Sends a numbered frame to a station; false if the connection has no room for it, or the
    /// network has ended.
    pub(crate) fn send(&mut self, to: u8, number: u32) -> bool {
        self.send_to([2, 0, 0, 0, 0, to], number)
    }

    /// Sends a numbered frame to all.
    pub(crate) fn broadcast(&mut self, number: u32) {
        assert!(self.send_to([0xff; 6], number), "there is room");
    }

    fn send_to(&mut self, to: [u8; 6], number: u32) -> bool {
        let mut bytes = vec![0; LENGTH + FRAME];
        bytes[..LENGTH].copy_from_slice(&(FRAME as u32).to_be_bytes());
        let frame = &mut bytes[LENGTH..];
        frame[..6].copy_from_slice(&to);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, self.station]);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame[14..18].copy_from_slice(&number.to_be_bytes());
        match self.socket.write(&bytes) {
            Ok(count) => {
                assert_eq!(count, bytes.len(), "a frame is written whole");
                true
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe));
                false
            }
        }
    }

    /// Numbers of the frames that have arrived from `from`.
    pub(crate) fn receive(&mut self, from: u8) -> Vec<u32> {
        let frames = self.receive_all();
        frames.iter().filter(|frame| frame[11] == from).map(|frame| number_of(frame)).collect()
    }

    /// Frames that have arrived.
    pub(crate) fn receive_all(&mut self) -> Vec<Vec<u8>> {
        let mut bytes = [0; 64 << 10];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => self.rest.extend(&bytes[..count]),
                Err(error) => {
                    let kind = error.kind();
                    assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::ConnectionReset));
                    break;
                }
            }
        }
        let whole = self.rest.len() / (LENGTH + FRAME) * (LENGTH + FRAME);
        let frames = self.rest.drain(..whole).collect::<Vec<u8>>();
        frames.chunks(LENGTH + FRAME).map(|bytes| bytes[LENGTH..].to_vec()).collect()
    }
}

/// The number of a frame.
pub(crate) fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().expect("four"))
}
