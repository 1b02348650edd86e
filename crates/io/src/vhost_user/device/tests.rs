//! A front end that uses a socket, and a driver whose rings lie in the front end's memory.

use super::*;
use crate::vhost_user::driver::{DriverQueue, GuestRam};
use crate::vhost_user::message::RegionLayout;
use crate::vhost_user::session::{feature, protocol};
use crate::vhost_user::virtq::{QueueConfig, Segment, feature as ring_feature};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use towpath_packet::{Memory, MemoryConfig, Packet};

mod foreign;
mod link;
mod polling;

/// Guest address of the memory.
const BASE: u64 = 0x1_0000;
/// Guest address of the guest's buffers, after both rings.
const BUFFERS: u64 = BASE + 0x8000;
const REGION: u64 = 0x2_0000;
const SIZE: u16 = 16;
/// Longer than what is copied at once.
const FRAME: usize = 1000;
/// The time of tests in which nothing else is due.
const NOW: Instant = Instant::from_micros(1_000_000);

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const GET_VRING_BASE: u32 = 11;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_ENABLE: u32 = 18;
const SEND_RARP: u32 = 19;
const GET_INFLIGHT_FD: u32 = 31;
const SET_INFLIGHT_FD: u32 = 32;
const ADD_MEM_REG: u32 = 37;
const REM_MEM_REG: u32 = 38;

/// A front end with a guest, and the device that it is connected to.
struct Bench {
    ram: GuestRam,
    receive: DriverQueue,
    transmit: DriverQueue,
    features: u64,
    socket: UnixStream,
    device: VhostUser,
    memory: Memory,
    ledger: Ledger,
    kicks: Vec<OwnedFd>,
}

/// Runs a turn of a device that moves no packets.
fn turn(device: &mut VhostUser, now: Instant) {
    let mut memory = Memory::new(MemoryConfig { packets: 0, small_frames: 0, large_frames: 0 });
    let cx = &mut Context { memory: &mut memory, ledger: &Ledger::new(), now };
    device.turn(true, cx).unwrap();
}

fn device() -> (UnixStream, VhostUser) {
    let (socket, ours) = UnixStream::pair().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let device = VhostUser::from_socket(ours.into(), Offer::default()).unwrap();
    (socket, device)
}

impl Bench {
    /// Connects a front end and shares the first memory region.
    fn new(features: u64) -> Self {
        Self::over(device(), features)
    }

    /// Connects a front end with this socket of a device.
    fn over((socket, device): (UnixStream, VhostUser), features: u64) -> Self {
        let ram = GuestRam::new(BASE, &[REGION, REGION]).unwrap();
        let receive = DriverQueue::new(&ram, BASE, SIZE, features).unwrap();
        let transmit = DriverQueue::new(&ram, BASE + 0x4000, SIZE, features).unwrap();
        let config = MemoryConfig { packets: 64, small_frames: 64, large_frames: 16 };
        let (memory, ledger, kicks) = (Memory::new(config), Ledger::new(), Vec::new());
        let mut bench =
            Self { ram, receive, transmit, features, socket, device, memory, ledger, kicks };
        bench.agree();
        bench
    }

    fn agree(&mut self) {
        self.tell(SET_PROTOCOL_FEATURES, &protocol::ALWAYS.to_ne_bytes(), &[]);
        let features = self.features | feature::VERSION_1 | feature::PROTOCOL_FEATURES;
        self.tell(SET_FEATURES, &features.to_ne_bytes(), &[]);
        let layout = self.ram.layouts()[0];
        assert_eq!(self.region(ADD_MEM_REG, layout), 0);
    }

    /// Starts both rings at these bases.
    fn start(&mut self, bases: [u32; 2]) {
        let configs = [self.receive.config(), self.transmit.config()];
        for (ring, (config, base)) in (0..).zip(configs.into_iter().zip(bases)) {
            self.start_ring(ring, &config, base);
        }
    }

    fn start_ring(&mut self, ring: u32, config: &QueueConfig, base: u32) {
        let state = |number: u32| [ring, number].map(u32::to_ne_bytes).concat();
        self.tell(8, &state(config.size.into()), &[]);
        self.tell(10, &state(base), &[]);
        let addresses = [config.descriptors, config.device, config.driver, 0];
        let addresses = addresses.map(u64::to_ne_bytes).concat();
        self.tell(9, &[state(0), addresses].concat(), &[]);
        let kick = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        assert_eq!(self.ask(12, &u64::from(ring).to_ne_bytes(), &[kick.as_fd()]), 0);
        self.kicks.push(kick);
        self.tell(SET_VRING_ENABLE, &state(1), &[]);
    }

    fn started(features: u64) -> Self {
        let mut bench = Self::new(features);
        bench.start_all();
        bench
    }

    fn start_all(&mut self) {
        let base = self.transmit.config().base;
        self.start([base, base]);
        assert!(self.device.is_running());
    }

    fn region(&mut self, code: u32, layout: RegionLayout) -> u64 {
        let RegionLayout { guest_address, bytes, user_address, file_offset } = layout;
        let values = [0, guest_address, bytes, user_address, file_offset];
        let file = self.ram.file().try_clone().unwrap();
        let files = [file.as_fd()];
        let files = if code == ADD_MEM_REG { &files[..] } else { &[] };
        self.ask(code, &values.map(u64::to_ne_bytes).concat(), files)
    }

    /// Replaces the packet memory; `packets` may be zero.
    fn set_memory(&mut self, packets: usize) {
        let config = MemoryConfig { packets, small_frames: 64, large_frames: 16 };
        self.memory = Memory::new(config);
    }

    /// Sends a request without a reply.
    fn tell(&mut self, code: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        send(&self.socket, code, 1, payload, files);
        self.turn(NOW);
    }

    /// Sends a request with an acknowledgement, and returns the acknowledgement.
    fn ask(&mut self, code: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> u64 {
        const NEED_REPLY: u32 = 8;
        send(&self.socket, code, 1 | NEED_REPLY, payload, files);
        self.turn(NOW);
        let (payload, _) = self.reply(code);
        u64::from_ne_bytes(payload.try_into().unwrap())
    }

    fn reply(&self, code: u32) -> (Vec<u8>, Option<OwnedFd>) {
        let (bytes, file) = receive(&self.socket);
        assert_eq!(bytes[..4], code.to_ne_bytes());
        (bytes[12..].to_vec(), file)
    }

    /// Sends frame `number` as the guest, from the buffer of that number. True if the device wants
    /// a kick.
    fn send(&mut self, number: u8) -> bool {
        let address = BUFFERS + 0x800 * u64::from(number);
        self.ram.memory().write(address, &[0; 12]).unwrap();
        self.ram.memory().write(address + 12, &frame(number)).unwrap();
        let segment = Segment { address, bytes: 12 + FRAME as u32 };
        assert!(self.transmit.add(&[segment], &[], number.into()));
        self.transmit.publish()
    }

    /// Returns why the session ended.
    fn end(&mut self) -> Option<SessionEnd> {
        std::iter::from_fn(|| self.device.take_event()).find_map(|events| match events {
            DeviceEvent::Ended(end) => Some(end),
            _ => None,
        })
    }

    fn receive(&mut self) -> Vec<Packet> {
        let mut burst = Burst::new();
        self.turn(NOW);
        self.receive_at(NOW, &mut burst);
        std::iter::from_fn(|| burst.pop()).collect()
    }

    /// Receives without a preceding turn.
    fn receive_at(&mut self, now: Instant, burst: &mut Burst) -> Input {
        let Self { device, memory, ledger, .. } = self;
        device.receive(burst, &mut Context { memory, ledger, now }).unwrap()
    }

    /// Transmits packets to the guest; returns how many are left.
    fn transmit(&mut self, burst: &mut Burst) -> usize {
        let Self { device, memory, ledger, .. } = self;
        device.transmit(burst, &mut Context { memory, ledger, now: NOW }).unwrap();
        burst.len()
    }

    fn turn(&mut self, now: Instant) {
        let Self { device, memory, ledger, .. } = self;
        device.turn(true, &mut Context { memory, ledger, now }).unwrap();
    }
}

fn frame(number: u8) -> Vec<u8> {
    (0..FRAME).map(|at| (at as u8).wrapping_mul(7) ^ number).collect()
}

fn content(packet: &Packet) -> Vec<u8> {
    let ledger = Ledger::new();
    let mut all = Vec::new();
    for piece in packet.pieces() {
        let mut bytes = vec![0; piece.len()];
        ledger.copy(towpath_packet::Site::Linearise, piece, &mut bytes);
        all.extend(bytes);
    }
    all
}

fn send(socket: &UnixStream, code: u32, flags: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
    let mut bytes = [code, flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
    bytes.extend(payload);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
    }
    let sent = sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(bytes.len()));
}

fn receive(socket: &UnixStream) -> (Vec<u8>, Option<OwnedFd>) {
    let mut bytes = [0; 512];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let got = recvmsg(socket, &mut slices, &mut control, RecvFlags::empty()).unwrap().bytes;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    (bytes[..got].to_vec(), file)
}

const LAYOUTS: [u64; 2] = [0, ring_feature::PACKED];

#[test]
fn packets_go_both_ways() {
    for features in LAYOUTS {
        let mut bench = Bench::started(features);
        bench.send(3);
        let mut packets = bench.receive();
        assert_eq!(packets.len(), 1);
        assert_eq!(content(&packets[0]), frame(3));
        assert_eq!(bench.transmit.used(), None, "it is lent");
        // Back to the guest.
        let buffer = Segment { address: BUFFERS + 0x4000, bytes: 2048 };
        assert!(bench.receive.add(&[], &[buffer], 9));
        bench.receive.publish();
        let mut burst = Burst::new();
        burst.push(packets.remove(0)).ok().unwrap();
        bench.transmit(&mut burst);
        assert_eq!(bench.receive.used(), Some((9, 12 + FRAME as u32)));
        let mut got = vec![0; FRAME];
        bench.ram.memory().read(buffer.address + 12, &mut got).unwrap();
        assert_eq!(got, frame(3));
        bench.turn(NOW);
        assert_eq!(bench.transmit.used(), Some((3, 0)), "the loan is over");
    }
}

/// Goal: an owner that requests it gets short frames inline, on rings that start later and after
/// each restart. They reach a guest unchanged.
#[test]
fn short_frames_come_inline_where_that_was_asked_for() {
    for features in LAYOUTS {
        let mut bench = Bench::started(features);
        let take = |bench: &mut Bench, number: u8| {
            let address = BUFFERS + 0x800 * u64::from(number);
            bench.ram.memory().write(address, &[0; 12]).unwrap();
            bench.ram.memory().write(address + 12, &frame(number)[..60]).unwrap();
            let segment = Segment { address, bytes: 12 + 60 };
            assert!(bench.transmit.add(&[segment], &[], number.into()));
            bench.transmit.publish();
            let packet = bench.receive().pop().expect("a packet");
            assert_eq!(bench.transmit.used(), Some((number.into(), 0)), "copied at once");
            packet
        };
        assert!(!take(&mut bench, 1).is_inline(), "not requested");
        bench.device.set_inline();
        for round in 2..4 {
            send(&bench.socket, GET_VRING_BASE, 1, &[1u32, 0].map(u32::to_ne_bytes).concat(), &[]);
            bench.turn(NOW);
            let (state, _) = bench.reply(GET_VRING_BASE);
            let config = bench.transmit.config();
            bench.start_ring(1, &config, u32::from_ne_bytes(state[4..].try_into().unwrap()));
            let packet = take(&mut bench, round);
            assert!(packet.is_inline());
            assert_eq!(packet.headers(), &frame(round)[..60]);
            let buffer = Segment { address: BUFFERS + 0x4000, bytes: 2048 };
            assert!(bench.receive.add(&[], &[buffer], 9));
            bench.receive.publish();
            let mut burst = Burst::new();
            burst.push(packet).ok().unwrap();
            bench.transmit(&mut burst);
            assert_eq!(bench.receive.used(), Some((9, 12 + 60)));
            let mut got = [0; 60];
            bench.ram.memory().read(buffer.address + 12, &mut got).unwrap();
            assert_eq!(got, frame(round)[..60]);
        }
    }
}

/// `GET_VRING_BASE` while packets are lent: the loans are recalled, and the packets keep their
/// bytes.
#[test]
fn stopping_takes_back_what_is_lent() {
    for features in LAYOUTS {
        let mut bench = Bench::started(features);
        bench.send(1);
        bench.send(2);
        let packets = bench.receive();
        assert_eq!(packets.len(), 2);
        send(&bench.socket, GET_VRING_BASE, 1, &[1u32, 0].map(u32::to_ne_bytes).concat(), &[]);
        bench.turn(NOW);
        let (state, _) = bench.reply(GET_VRING_BASE);
        let base = u32::from_ne_bytes(state[4..].try_into().unwrap());
        // A packed ring reports both positions, with their wrap counters.
        assert_eq!(base, if features == 0 { 2 } else { 0x8002_8002 });
        assert_eq!(bench.transmit.used(), Some((1, 0)));
        assert_eq!(bench.transmit.used(), Some((2, 0)));
        bench.ram.memory().write(BUFFERS, &[0xff; 0x4000]).unwrap();
        assert_eq!(content(&packets[1]), frame(2));
        bench.send(3);
        assert!(bench.receive().is_empty(), "it is stopped");
        let config = bench.transmit.config();
        bench.start_ring(1, &config, base);
        assert_eq!(content(&bench.receive()[0]), frame(3), "it continues at its base");
    }
}

/// A region is added and removed while packets of another are lent; the rings continue.
#[test]
fn memory_changes_under_running_rings() {
    let mut bench = Bench::started(0);
    bench.send(1);
    let first = bench.receive();
    let layouts = [bench.ram.layouts()[0], bench.ram.layouts()[1]];
    assert_eq!(bench.region(ADD_MEM_REG, layouts[1]), 0);
    assert_eq!(bench.transmit.used(), Some((1, 0)), "the old loan is recalled");
    assert_eq!(content(&first[0]), frame(1));
    // In the new region.
    let address = layouts[1].guest_address;
    bench.ram.memory().write(address, &[0; 12]).unwrap();
    bench.ram.memory().write(address + 12, &frame(5)).unwrap();
    assert!(bench.transmit.add(&[Segment { address, bytes: 12 + FRAME as u32 }], &[], 5));
    bench.transmit.publish();
    let second = bench.receive();
    assert_eq!(content(&second[0]), frame(5));
    assert_eq!(bench.region(REM_MEM_REG, layouts[1]), 0);
    assert_eq!(content(&second[0]), frame(5));
    assert_eq!(bench.transmit.used(), Some((5, 0)));
    // Removed twice, and added although another region is there.
    assert_eq!(bench.region(REM_MEM_REG, layouts[1]), 1);
    let shifted = RegionLayout { guest_address: BASE + 0x1000, ..layouts[0] };
    assert_eq!(bench.region(ADD_MEM_REG, shifted), 1, "it overlaps");
    assert_eq!(bench.region(ADD_MEM_REG, layouts[0]), 0, "it is there, for another pair of queues");
    assert_eq!(bench.region(REM_MEM_REG, layouts[0]), 0, "and stays");
    bench.send(2);
    assert_eq!(content(&bench.receive()[0]), frame(2));
}

/// Rings whose memory is removed do not start again; nothing else happens.
#[test]
fn a_ring_without_its_memory_stops() {
    let mut bench = Bench::started(0);
    let layout = bench.ram.layouts()[0];
    assert_eq!(bench.region(REM_MEM_REG, layout), 1);
    assert!(!bench.device.is_running());
    bench.send(1);
    assert!(bench.receive().is_empty());
    assert!(bench.device.is_connected());
}

/// The front end dies while packets are lent: used entries are written, and packets stay whole.
#[test]
fn the_end_of_a_connection_gives_everything_back() {
    let mut bench = Bench::started(0);
    bench.send(1);
    let packets = bench.receive();
    bench.socket.shutdown(std::net::Shutdown::Both).unwrap();
    bench.turn(NOW);
    assert!(!bench.device.is_connected());
    assert_eq!(bench.end(), Some(SessionEnd::Channel(ChannelError::Closed)));
    assert_eq!(bench.transmit.used(), Some((1, 0)));
    assert_eq!(content(&packets[0]), frame(1));
    let mut burst = Burst::new();
    packets.into_iter().for_each(|packet| burst.push(packet).ok().unwrap());
    bench.transmit(&mut burst);
    assert_eq!((burst.len(), bench.device.counters().no_guest), (0, 1));
}

/// The device dies while a packet is lent; the next one gets the in-flight region and receives the
/// packet again.
#[test]
fn what_was_in_flight_is_offered_to_the_next_device() {
    for features in LAYOUTS {
        let mut bench = Bench::new(features);
        let payload = [[0; 16].to_vec(), [2, SIZE, 0, 0].map(u16::to_ne_bytes).concat()].concat();
        send(&bench.socket, GET_INFLIGHT_FD, 1, &payload, &[]);
        bench.turn(NOW);
        let (area, file) = bench.reply(GET_INFLIGHT_FD);
        let file = file.expect("the area");
        assert_eq!(bench.ask(SET_INFLIGHT_FD, &area, &[file.as_fd()]), 0);
        let base = bench.transmit.config().base;
        bench.start([base, base]);
        bench.send(4);
        let lent = bench.receive();
        assert_eq!(lent.len(), 1);
        // As if it had been killed: it never runs again.
        let (socket, next) = device();
        bench.socket = socket;
        let _dead = std::mem::replace(&mut bench.device, next);
        bench.agree();
        assert_eq!(bench.ask(SET_INFLIGHT_FD, &area, &[file.as_fd()]), 0);
        // The front end knows only what was used: nothing.
        bench.start([base, base]);
        let again = bench.receive();
        assert_eq!(again.len(), 1);
        assert_eq!(content(&again[0]), frame(4));
        drop(again);
        bench.turn(NOW);
        assert_eq!(bench.transmit.used(), Some((4, 0)));
        assert_eq!(bench.transmit.used(), None, "once");
    }
}

#[test]
fn a_disabled_ring_throws_away_what_is_sent() {
    let mut bench = Bench::started(0);
    bench.tell(SET_VRING_ENABLE, &[1u32, 0].map(u32::to_ne_bytes).concat(), &[]);
    bench.send(1);
    assert!(bench.receive().is_empty());
    assert_eq!(bench.transmit.used(), Some((1, 0)));
    assert_eq!(bench.device.traffic().sent.discarded, 1);
}

/// Refused requests: reported if the front end requested an acknowledgement, otherwise the
/// connection ends.
#[test]
fn refusals_are_reported() {
    let mut bench = Bench::new(0);
    assert_eq!(bench.ask(99, &[], &[]), 1, "unknown");
    assert_eq!(bench.ask(SET_FEATURES, &[0; 7], &[]), 1, "a wrong length");
    assert_eq!(bench.ask(SET_FEATURES, &u64::MAX.to_ne_bytes(), &[]), 1, "not offered");
    let event = eventfd(0, EventfdFlags::empty()).unwrap();
    assert_eq!(bench.ask(GET_FEATURES, &[], &[event.as_fd()]), 1, "a descriptor too many");
    let refused = bench.device.counters().refused;
    assert_eq!((refused.malformed, refused.out_of_place, refused.total()), (3, 1, 4));
    let reported: Vec<String> =
        std::iter::from_fn(|| bench.device.take_event()).map(|events| events.to_string()).collect();
    assert_eq!(reported.len(), 5, "{reported:?}");
    assert!(
        reported[2].starts_with("SET_FEATURES is rejected: request 2 has a wrong length"),
        "{reported:?}"
    );
    bench.tell(99, &[], &[]);
    assert!(!bench.device.is_connected());
    assert!(matches!(bench.end(), Some(SessionEnd::Refused { code: 99, .. })));
    assert_eq!(bench.device.counters().sent_away, 1);
}

/// Goal: loans are recalled in time even if nothing else happens. Method: the deadline of a packet
/// received just now is available without a turn.
#[test]
fn receiving_reports_when_it_is_due() {
    let mut bench = Bench::started(0);
    assert_eq!(bench.device.next_deadline(), None);
    bench.send(1);
    bench.turn(NOW);
    assert_eq!(bench.device.next_deadline(), None);
    let mut burst = Burst::new();
    bench.receive_at(NOW, &mut burst);
    let due = bench.device.next_deadline().unwrap();
    assert_eq!(due, NOW + crate::vhost_user::virtq::transmit::LOAN_TERM);
    bench.turn(due);
    assert_eq!(bench.device.next_deadline(), None);
    assert_eq!(bench.transmit.used(), Some((1, 0)));
    assert_eq!(content(&burst.pop().unwrap()), frame(1));
}

/// Kick descriptors that are not events, for example memory.
#[test]
fn a_kick_descriptor_must_be_an_event() {
    let mut bench = Bench::started(0);
    let file = bench.ram.file().try_clone().unwrap();
    assert_eq!(bench.ask(12, &1u64.to_ne_bytes(), &[file.as_fd()]), 1);
    assert!(bench.device.is_connected());
}

/// Call and error descriptors: only events are accepted, and a full one does not block the device.
#[test]
fn calls_do_not_block() {
    const SET_VRING_CALL: u32 = 13;
    const SET_VRING_ERR: u32 = 14;
    let mut bench = Bench::started(0);
    let ring = 1u64.to_ne_bytes();
    let memory = bench.ram.file().try_clone().unwrap();
    for code in [SET_VRING_CALL, SET_VRING_ERR] {
        assert_eq!(bench.ask(code, &ring, &[memory.as_fd()]), 1, "memory");
    }
    assert_eq!(bench.device.counters().refused.event, 2);
    let full = eventfd(0, EventfdFlags::empty()).unwrap();
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    for code in [SET_VRING_CALL, SET_VRING_ERR] {
        assert_eq!(bench.ask(code, &ring, &[full.as_fd()]), 0);
        rustix::fs::fcntl_setfl(&full, rustix::fs::OFlags::empty()).unwrap();
    }
    bench.send(1);
    drop(bench.receive());
    bench.turn(NOW);
    assert_eq!(bench.transmit.used(), Some((1, 0)), "used, and called for");
    // A buffer outside the memory breaks the ring.
    assert!(bench.transmit.add(&[Segment { address: 1 << 40, bytes: 64 }], &[], 2));
    bench.transmit.publish();
    for _ in 0..3 {
        assert!(bench.receive().is_empty());
        assert_eq!(bench.device.counters().broken, 1, "reported once");
    }
    let mut count = [0; 8];
    rustix::io::read(&full, &mut count).unwrap();
    let events: Vec<DeviceEvent> = std::iter::from_fn(|| bench.device.take_event()).collect();
    let reason = crate::vhost_user::virtq::Broken::Address;
    assert!(events.contains(&DeviceEvent::Broken { ring: 1, reason }), "{events:?}");
}

#[test]
fn the_network_learns_where_a_guest_went() {
    let mut bench = Bench::started(0);
    bench.tell(SEND_RARP, &[2, 0, 0, 0, 0, 7, 0, 0], &[]);
    let packets = bench.receive();
    let bytes = content(&packets[0]);
    assert_eq!(bytes[..14], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7, 0x80, 0x35]);
    assert_eq!((bytes.len(), &bytes[20..22]), (60, &[0, 3][..]));
    assert!(bench.receive().is_empty(), "once");
}

/// One front end at a time; another one can follow.
#[test]
fn further_front_ends_are_turned_away() {
    let path = std::env::temp_dir().join(format!("towpath-device-{}", std::process::id()));
    let mut device = VhostUser::listen(&path, Offer::default()).unwrap();
    let first = UnixStream::connect(&path).unwrap();
    turn(&mut device, Instant::START);
    assert!(device.is_connected());
    let second = UnixStream::connect(&path).unwrap();
    turn(&mut device, Instant::START);
    assert_eq!(device.counters().turned_away, 1);
    assert_eq!(rustix::io::read(&second, &mut [0; 1]), Ok(0));
    // The first one leaves and the next one connects in the same turn.
    drop(first);
    let third = UnixStream::connect(&path).unwrap();
    turn(&mut device, Instant::START);
    assert_eq!(device.counters().sessions, 2);
    drop(third);
}

/// Goal: the caller is notified that memory was short, so that it waits for memory, and then
/// receives the packet.
#[test]
fn what_finds_no_memory_waits() {
    let mut bench = Bench::started(0);
    bench.set_memory(0);
    bench.send(1);
    bench.turn(NOW);
    let mut burst = Burst::new();
    assert_eq!(bench.receive_at(NOW, &mut burst), Input::NoMemory);
    assert!(burst.is_empty());
    let mut events = Events::new();
    let mut reactor = Reactor::new().unwrap();
    reactor.add(&bench.device, 0, Interest::READ, false).unwrap();
    reactor.wait(Some(Duration::ZERO), &mut events).unwrap();
    assert_eq!(events.len(), 1, "there is still something to do");
    bench.set_memory(64);
    let received = bench.receive();
    assert_eq!(received.iter().map(content).collect::<Vec<_>>(), [frame(1)]);
}
