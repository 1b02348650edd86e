//! Tests the device against the front end of the crate `vhost`, which cloud-hypervisor uses.
//!
//! That code implements the protocol independently of ours. It does all communication over the
//! socket; [`DriverQueue`] drives the rings. The device runs on a thread of its own and sends each
//! packet back.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use std::os::unix::fs::FileExt;
use towpath_io::vhost_user::driver::{DriverQueue, GuestRam};
use towpath_io::vhost_user::session::{feature, protocol};
use towpath_io::vhost_user::virtq::{Segment, feature as ring_feature};
use towpath_io::vhost_user::{DeviceEvent, Offer, SessionEnd, VhostUser};
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{
    Error as UserError, Frontend, FrontendReqHandler, HandlerResult, VhostUserFrontend,
    VhostUserFrontendReqHandler,
};
use vhost::{
    Error, VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData,
};
use vmm_sys_util::eventfd::EventFd;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);
/// Guest address of the memory; its rings and buffers follow.
const BASE: u64 = 0x10_0000;
const RING_BYTES: u64 = 0x1_0000;
const BUFFERS: u64 = BASE + 0x10_0000;
const REGION: u64 = 0x20_0000;
/// Bytes of a buffer.
const BUFFER: u32 = 0x1000;
const PAGE: u64 = 0x1000;
const SIZE: u16 = 16;
/// Longer than what is copied at once, so that it is lent.
const FRAME: usize = 1400;
const HEADER: u32 = 12;

/// A device on a thread that sends back what it receives.
struct Reflector {
    thread: JoinHandle<(VhostUser, Option<SessionEnd>)>,
    ends: Arc<AtomicBool>,
    /// While this is set, packets are kept.
    keeps: Arc<AtomicBool>,
    /// While this is set, the link is down.
    is_down: Arc<AtomicBool>,
    /// Number of packets received from the guest.
    received: Arc<AtomicUsize>,
}

impl Reflector {
    fn new(offer: Offer) -> (Self, UnixStream) {
        let (socket, ours) = UnixStream::pair().expect("two sockets");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut device = VhostUser::from_socket(ours.into(), offer).expect("a device");
        let [ends, keeps, is_down] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let (is_over, is_kept, down) = (ends.clone(), keeps.clone(), is_down.clone());
        let received = Arc::new(AtomicUsize::new(0));
        let count = received.clone();
        let thread = std::thread::spawn(move || {
            let config = MemoryConfig { packets: 256, small_frames: 256, large_frames: 16 };
            let (mut memory, ledger, mut burst) =
                (Memory::new(config), Ledger::new(), Burst::new());
            let (mut held, mut end) = (VecDeque::new(), None);
            // Bounded: `finish` sets the flag.
            while !is_over.load(Ordering::Relaxed) {
                let mut files = [PollFd::new(&device, PollFlags::IN)];
                let soon = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
                poll(&mut files, Some(&soon)).expect("a descriptor");
                // The time does not advance, so packets that are kept stay lent.
                let now = Instant::START;
                let cx = &mut Context { memory: &mut memory, ledger: &ledger, now };
                device.set_link(!down.load(Ordering::Relaxed)).expect("it has one connection");
                device.turn(true, cx).expect("the system has room");
                device.receive(&mut burst, cx).expect("a device");
                count.fetch_add(burst.len(), Ordering::Relaxed);
                held.extend(std::iter::from_fn(|| burst.pop()));
                while !is_kept.load(Ordering::Relaxed) && !burst.is_full() {
                    let Some(packet) = held.pop_front() else { break };
                    burst.push(packet).expect("there is room");
                }
                device.transmit(&mut burst, cx).expect("a device");
                // Packets that wait for buffers are sent before later ones.
                let waiting = held.split_off(0);
                held.extend(std::iter::from_fn(|| burst.pop()));
                held.extend(waiting);
                while let Some(events) = device.take_event() {
                    if let DeviceEvent::Ended(why) = events {
                        end = Some(why);
                    }
                }
            }
            (device, end)
        });
        (Self { thread, ends, keeps, is_down, received }, socket)
    }

    fn keep(&self, keeps: bool) {
        self.keeps.store(keeps, Ordering::Relaxed);
    }

    /// Waits until `count` packets were received from the guest.
    fn wait_for(&self, count: usize) {
        wait_until("the device takes what is sent", || {
            (self.received.load(Ordering::Relaxed) >= count).then_some(())
        });
    }

    fn finish(self) -> (VhostUser, Option<SessionEnd>) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("the device does not panic")
    }
}

/// A front end, its guest and the device.
struct Bench {
    ram: GuestRam,
    queues: Vec<DriverQueue>,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    front_end: Frontend,
    device: Reflector,
    features: u64,
}

impl Bench {
    /// Connects a front end to a device, with `ring_count` rings that are not set up yet.
    fn new(offer: Offer, features: u64) -> Self {
        let ram = GuestRam::new(BASE, &[REGION, REGION]).expect("memory");
        let ring_count = 2 * offer.pairs;
        let queue = |ring| DriverQueue::new(&ram, BASE + RING_BYTES * ring, SIZE, features);
        let queues = (0..ring_count.into()).map(|ring| queue(ring).expect("it fits")).collect();
        let event = || EventFd::new(libc::EFD_NONBLOCK).expect("an event");
        let (device, socket) = Reflector::new(offer);
        Self {
            ram,
            queues,
            kicks: (0..ring_count).map(|_| event()).collect(),
            calls: (0..ring_count).map(|_| event()).collect(),
            front_end: Frontend::from_stream(socket, ring_count.into()),
            device,
            features,
        }
    }

    /// Negotiates features; each later request is acknowledged.
    fn agree(&mut self, more: u64) {
        let front_end = &mut self.front_end;
        front_end.set_owner().expect("acked");
        let offered = front_end.get_features().expect("answered");
        let features = self.features | feature::VERSION_1 | feature::PROTOCOL_FEATURES | more;
        assert_eq!(features & !offered, 0, "all of it is offered");
        let offered = front_end.get_protocol_features().expect("answered");
        front_end.set_protocol_features(offered).expect("acked");
        front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front_end.set_features(features).expect("acked");
    }

    fn region(&self, index: usize) -> VhostUserMemoryRegionInfo {
        let layout = self.ram.layouts()[index];
        VhostUserMemoryRegionInfo {
            guest_phys_addr: layout.guest_address,
            memory_size: layout.bytes,
            userspace_addr: layout.user_address,
            mmap_offset: layout.file_offset,
            mmap_handle: self.ram.file().as_raw_fd(),
        }
    }

    fn vring(&self, ring: usize) -> VringConfigData {
        let config = self.queues[ring].config();
        VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: config.descriptors,
            used_ring_addr: config.device,
            avail_ring_addr: config.driver,
            log_addr: None,
        }
    }

    fn start(&mut self, ring: usize, base: u16) {
        let vring = self.vring(ring);
        let front_end = &mut self.front_end;
        front_end.set_vring_num(ring, SIZE).expect("acked");
        front_end.set_vring_addr(ring, &vring).expect("acked");
        front_end.set_vring_base(ring, base).expect("acked");
        front_end.set_vring_call(ring, &self.calls[ring]).expect("acked");
        front_end.set_vring_kick(ring, &self.kicks[ring]).expect("it starts");
        front_end.set_vring_enable(ring, true).expect("acked");
    }

    /// Sets up everything: the memory in one table, and all rings.
    fn started(offer: Offer, features: u64) -> Self {
        let mut bench = Self::new(offer, features);
        bench.agree(0);
        bench.share();
        let first = bench.first_base();
        (0..bench.queues.len()).for_each(|ring| bench.start(ring, first));
        bench
    }

    fn share(&self) {
        let table = [self.region(0), self.region(1)];
        self.front_end.set_mem_table(&table).expect("acked");
    }

    fn first_base(&self) -> u16 {
        self.queues[0].config().base as u16
    }

    /// One of the guest's buffers.
    fn buffer(number: u64) -> Segment {
        Segment { address: BUFFERS + u64::from(BUFFER) * number, bytes: BUFFER }
    }

    /// Makes the guest send frame `number` on `ring`, in a chain of three buffers.
    fn send(&mut self, ring: usize, number: u8) {
        let Segment { address, .. } = Self::buffer(number.into());
        let memory = self.ram.memory();
        memory.write(address, &[0; HEADER as usize]).expect("mapped");
        memory.write(address + u64::from(HEADER), &frame(number)).expect("mapped");
        let chain = [(0, HEADER), (HEADER, 100), (HEADER + 100, FRAME as u32 - 100)];
        let chain = chain.map(|(at, bytes)| Segment { address: address + u64::from(at), bytes });
        assert!(self.queues[ring].add(&chain, &[], number.into()));
        self.queues[ring].publish();
        self.kicks[ring].write(1).expect("room");
    }

    /// Makes the guest offer buffer `number` for reception.
    fn offer(&mut self, ring: usize, number: u8) {
        assert!(self.queues[ring].add(&[], &[Self::buffer(number.into())], number.into()));
        self.queues[ring].publish();
        self.kicks[ring].write(1).expect("room");
    }

    /// Waits until the device has used a buffer.
    fn used(&mut self, ring: usize) -> (u64, u32) {
        wait_until("the device uses a buffer", || self.queues[ring].used())
    }

    /// Sends frame `sent` on ring `from` and expects it back on ring `to`.
    fn round(&mut self, to: usize, from: usize, sent: u8) {
        let into = 0x80 | sent;
        self.offer(to, into);
        self.send(from, sent);
        assert_eq!(self.used(to), (into.into(), HEADER + FRAME as u32));
        assert_eq!(self.used(from), (sent.into(), 0));
        assert_eq!(self.content(into), frame(sent));
    }

    /// Returns the frame that was received into a buffer.
    fn content(&self, number: u8) -> Vec<u8> {
        let mut content = vec![0; FRAME];
        let address = Self::buffer(number.into()).address + u64::from(HEADER);
        self.ram.memory().read(address, &mut content).expect("mapped");
        content
    }
}

/// A frame without meaningful Ethernet addresses: there is no switch here.
fn frame(number: u8) -> Vec<u8> {
    (0..FRAME).map(|at| (at as u8).wrapping_mul(5) ^ number).collect()
}

/// Calls `ask` every millisecond, for at least [`PATIENCE`].
fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let found = (0..PATIENCE.as_millis()).find_map(|_| {
        let answer = ask();
        if answer.is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        answer
    });
    found.unwrap_or_else(|| panic!("{what}: not in {PATIENCE:?}"))
}

fn pairs(pairs: u16) -> Offer {
    Offer { pairs, ..Offer::default() }
}

/// True if the device refused the request and the connection continues.
fn is_refused<T>(result: vhost::Result<T>) -> bool {
    matches!(result, Err(Error::VhostUserProtocol(UserError::BackendInternalError)))
}

fn memfd(bytes: u64) -> File {
    let file = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).expect("a file");
    rustix::fs::ftruncate(&file, bytes).expect("room");
    file.into()
}

/// Goal: the other implementation understands what our device offers.
#[test]
fn features_are_agreed_upon() {
    let mut bench = Bench::new(pairs(2), 0);
    bench.agree(0);
    let front_end = &mut bench.front_end;
    assert_eq!(front_end.get_queue_num().expect("answered"), 4);
    assert!(front_end.get_max_mem_slots().expect("answered") >= 8);
    let offered = front_end.get_protocol_features().expect("answered");
    assert_eq!(offered.bits(), protocol::ALWAYS);
    assert!(!offered.contains(VhostUserProtocolFeatures::BACKEND_REQ));
    assert!(is_refused(front_end.set_features(1 << 63)), "not offered");
    front_end.reset_owner().expect("accepted, without effect");
}

/// Goal: a packet of three buffers is sent, comes back, and the guest is called, for both ring
/// layouts.
#[test]
fn packets_go_both_ways() {
    for features in [0, ring_feature::PACKED, ring_feature::INDIRECT] {
        let mut bench = Bench::started(pairs(1), features);
        (1..=40).for_each(|number| bench.round(0, 1, number));
        for call in &bench.calls {
            assert!(call.read().expect("it was called") > 0);
        }
    }
}

/// Goal: each pair of queues works by itself. A packet sent on a disabled ring is dropped, and
/// disabled rings receive none.
#[test]
fn pairs_of_queues_come_and_go() {
    let mut bench = Bench::started(pairs(2), 0);
    // These are not IP packets: all are one flow, which uses the first pair that is enabled.
    (1..=8).for_each(|number| bench.round(0, 1, number));
    (1..=8).for_each(|number| bench.round(0, 3, number));
    let enable = |bench: &mut Bench, ring, on| bench.front_end.set_vring_enable(ring, on);
    for (ring, on) in [(0, false), (1, false)] {
        enable(&mut bench, ring, on).expect("acked");
    }
    (1..=8).for_each(|number| bench.round(2, 3, number));
    bench.send(1, 9);
    assert_eq!(bench.used(1), (9, 0));
    for (ring, on) in [(0, true), (1, true), (2, false), (3, false)] {
        enable(&mut bench, ring, on).expect("acked");
    }
    (1..=8).for_each(|number| bench.round(0, 1, number));
    let (device, _) = bench.device.finish();
    assert_eq!(device.traffic().sent.discarded, 1);
}

/// Goal: the configuration space can be read, and only a migration can write it.
#[test]
fn the_configuration_space_is_passed_on() {
    let mac = [2, 0, 0, 0, 0, 9];
    let mut bench = Bench::new(Offer { mac: Some(mac), mtu: 1400, ..pairs(3) }, 0);
    bench.agree(feature::MAC | feature::MTU);
    let none = VhostUserConfigFlags::empty();
    let reported = bench.front_end.get_config(0, 12, none, &[0; 12]).expect("answered").1;
    assert_eq!(reported, [&mac[..], &[1, 0, 3, 0], &1400_u16.to_le_bytes()].concat());
    let reported = bench.front_end.get_config(6, 2, none, &[0; 2]).expect("answered").1;
    assert_eq!(reported, [1, 0], "the link is up");
    assert!(is_refused(bench.front_end.set_config(0, none, &[4; 6])));
    // The crate's name for the specification's migration flag is "writable".
    let restore = VhostUserConfigFlags::WRITABLE;
    bench.front_end.set_config(0, restore, &[4; 6]).expect("acked");
    let reported = bench.front_end.get_config(0, 6, none, &[0; 6]).expect("answered").1;
    assert_eq!(reported, [4; 6]);
}

/// Counts reports of a changed configuration space.
#[derive(Default)]
struct Changes(AtomicUsize);

impl VhostUserFrontendReqHandler for Changes {
    fn handle_config_change(&self) -> HandlerResult<u64> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(0)
    }
}

/// Goal: the other implementation sets up the channel of the back end, gets a report for each
/// change of the link, and reads the new state.
#[test]
fn changes_of_the_link_are_reported() {
    let mut bench = Bench::new(Offer { mac: Some([2; 6]), ..pairs(1) }, 0);
    bench.agree(feature::STATUS);
    let changes = Arc::new(Changes::default());
    let mut handler = FrontendReqHandler::new(changes.clone()).expect("two sockets");
    bench.front_end.set_backend_request_fd(&handler.get_tx_raw_fd()).expect("acked");
    let states = [true, false, true];
    let reader = std::thread::spawn(move || {
        for _ in states {
            handler.handle_request().expect("a report");
        }
    });
    for (count, is_down) in (1..).zip(states) {
        bench.device.is_down.store(is_down, Ordering::Relaxed);
        wait_until("a report", || (changes.0.load(Ordering::Relaxed) == count).then_some(()));
        let none = VhostUserConfigFlags::empty();
        let status = bench.front_end.get_config(6, 2, none, &[0; 2]).expect("answered").1;
        assert_eq!(status, [u8::from(!is_down), 0]);
    }
    reader.join().expect("it ends");
    assert_eq!(bench.device.finish().1, None, "the session continues");
}

/// Goal: a ring stops while packets of it are lent, reports its position, and continues there.
#[test]
fn a_ring_stops_with_loans_out_and_goes_on() {
    let mut bench = Bench::started(pairs(1), 0);
    bench.round(0, 1, 1);
    bench.device.keep(true);
    (2..=5).for_each(|number| bench.send(1, number));
    bench.device.wait_for(5);
    assert_eq!(bench.queues[1].used(), None, "they are lent");
    assert_eq!(bench.front_end.get_vring_base(1).expect("it stops"), 5);
    (2..=5).for_each(|number| assert_eq!(bench.used(1), (number, 0)));
    bench.start(1, 5);
    bench.send(1, 6);
    (0..5).for_each(|number| bench.offer(0, 0x80 | number));
    bench.device.keep(false);
    for number in 0..5_u8 {
        let into = 0x80 | number;
        assert_eq!(bench.used(0), (into.into(), HEADER + FRAME as u32));
        assert_eq!(bench.content(into), frame(number + 2), "in order, and whole");
    }
    assert_eq!(bench.front_end.get_vring_base(0).expect("it stops"), 6);
}

/// Goal: a reset forgets the rings, and keeps the memory and the protocol features.
#[test]
fn a_reset_device_starts_again() {
    let mut bench = Bench::started(pairs(1), 0);
    bench.round(0, 1, 1);
    bench.front_end.reset_device().expect("acked");
    bench.send(1, 2);
    bench.queues = (0..2)
        .map(|ring| {
            let at = BASE + RING_BYTES * (8 + ring);
            DriverQueue::new(&bench.ram, at, SIZE, 0).expect("it fits")
        })
        .collect();
    bench.front_end.set_features(feature::VERSION_1 | feature::PROTOCOL_FEATURES).expect("acked");
    bench.start(0, 0);
    bench.start(1, 0);
    bench.round(0, 1, 3);
}

/// Goal: memory regions are added and removed while rings run.
#[test]
fn memory_comes_and_goes() {
    let mut bench = Bench::started(pairs(1), 0);
    let (first, second) = (bench.region(0), bench.region(1));
    bench.round(0, 1, 1);
    bench.front_end.remove_mem_region(&second).expect("acked");
    bench.round(0, 1, 2);
    assert!(is_refused(bench.front_end.remove_mem_region(&second)), "it is gone");
    bench.front_end.add_mem_region(&second).expect("acked");
    bench.front_end.set_mem_table(&[first]).expect("acked");
    bench.round(0, 1, 3);
    bench.front_end.add_mem_region(&second).expect("acked");
    let overlapping = VhostUserMemoryRegionInfo { guest_phys_addr: BASE + PAGE, ..first };
    assert!(is_refused(bench.front_end.add_mem_region(&overlapping)));
    let beyond = VhostUserMemoryRegionInfo {
        guest_phys_addr: BASE + 4 * REGION,
        userspace_addr: 0x1000,
        mmap_offset: 2 * REGION,
        ..first
    };
    assert!(is_refused(bench.front_end.add_mem_region(&beyond)), "the file ends before");
    bench.round(0, 1, 4);
}

/// Goal: after the device is killed, the next one sends what it had in flight, once.
#[test]
fn what_was_in_flight_outlives_the_device() {
    let mut bench = Bench::new(pairs(1), 0);
    bench.agree(0);
    bench.share();
    let asked = VhostUserInflight::new(0, 0, 2, SIZE);
    let (area, file) = bench.front_end.get_inflight_fd(&asked).expect("made");
    assert!(area.mmap_size > 0 && area.num_queues == 2 && area.queue_size == SIZE);
    bench.front_end.set_inflight_fd(&area, file.as_raw_fd()).expect("acked");
    bench.start(0, 0);
    bench.start(1, 0);
    bench.device.keep(true);
    bench.send(1, 7);
    bench.device.wait_for(1);
    // The old device never runs again and returns nothing, as if it had been killed.
    let (device, socket) = Reflector::new(pairs(1));
    let dead = std::mem::replace(&mut bench.device, device);
    let dead = dead.finish();
    assert_eq!(bench.queues[1].used(), None);
    bench.front_end = Frontend::from_stream(socket, 2);
    bench.agree(0);
    bench.share();
    bench.front_end.set_inflight_fd(&area, file.as_raw_fd()).expect("acked");
    // Enabled first, as QEMU does: a disabled ring would drop its packets.
    (0..2).for_each(|ring| bench.front_end.set_vring_enable(ring, true).expect("acked"));
    bench.start(0, 0);
    bench.start(1, 0);
    bench.device.wait_for(1);
    bench.offer(0, 0x80);
    assert_eq!(bench.used(0), (0x80, HEADER + FRAME as u32));
    assert_eq!(bench.content(0x80), frame(7));
    assert_eq!(bench.used(1), (7, 0));
    bench.round(0, 1, 8);
    drop(dead);
}

/// Goal: a migration. Each page written after the log was set is marked in the log: buffers and
/// used rings, but not memory that is only read. After logging ends, no page is marked.
#[test]
fn what_is_written_is_marked_in_the_log() {
    let mut bench = Bench::started(pairs(1), 0);
    bench.round(0, 1, 1);
    let bytes = (BASE + 2 * REGION) / PAGE / 8;
    let log = memfd(PAGE + bytes);
    let region = VhostUserDirtyLogRegion {
        mmap_size: bytes,
        mmap_offset: PAGE,
        mmap_handle: log.as_raw_fd(),
    };
    let front_end = &bench.front_end;
    front_end.set_log_base(0, Some(region)).expect("answered with the log");
    let event = File::from(OwnedFd::from(memfd(8)));
    front_end.set_log_fd(event.as_raw_fd()).expect("acked");
    let features = feature::VERSION_1 | feature::PROTOCOL_FEATURES;
    front_end.set_features(features | feature::LOG_ALL).expect("acked");
    // The used rings are logged at the addresses that come with the flag.
    for ring in 0..2 {
        let used = bench.queues[ring].config().device;
        let at = used - bench.region(0).userspace_addr + BASE;
        let vring = VringConfigData { flags: 1, log_addr: Some(at), ..bench.vring(ring) };
        bench.front_end.set_vring_addr(ring, &vring).expect("acked");
    }
    bench.round(0, 1, 2);
    let taken = dirty(&log, bytes);
    let page_of = |address: u64| address / PAGE;
    let into = page_of(Bench::buffer(0x82).address);
    assert!(taken.contains(&into), "the buffer {into:#x} in {taken:x?}");
    for ring in 0..2 {
        let used = bench.queues[ring].config().device - bench.region(0).userspace_addr + BASE;
        assert!(taken.contains(&page_of(used)), "used ring {ring} in {taken:x?}");
    }
    assert!(!taken.contains(&page_of(Bench::buffer(2).address)), "that was only read");
    assert_eq!(taken.len(), 3, "{taken:x?}");
    // Cleared bits are set again. The last writes are marked before the reply that the ring has
    // stopped.
    clear(&log, bytes);
    bench.device.keep(true);
    bench.send(1, 3);
    bench.device.wait_for(3);
    assert_eq!(bench.front_end.get_vring_base(1).expect("it stops"), 3);
    assert_eq!(bench.used(1), (3, 0));
    let [received, sent] = [0, 1].map(|ring: usize| {
        page_of(bench.queues[ring].config().device - bench.region(0).userspace_addr + BASE)
    });
    let again = dirty(&log, bytes);
    // The mark follows the write, so that of the previous round may arrive after the clearing.
    assert!(again.contains(&sent) && again.iter().all(|page| [received, sent].contains(page)));
    // Without the feature no page is marked.
    bench.front_end.set_features(features).expect("acked");
    clear(&log, bytes);
    bench.device.keep(false);
    bench.start(1, 3);
    bench.offer(0, 0x84);
    assert_eq!(bench.used(0), (0x84, HEADER + FRAME as u32));
    assert!(dirty(&log, bytes).is_empty());
}

/// Pages that the log marks.
fn dirty(log: &File, bytes: u64) -> Vec<u64> {
    let mut map = vec![0; bytes as usize];
    log.read_exact_at(&mut map, PAGE).expect("so long");
    let bits = (0..bytes * 8).filter(|bit| map[*bit as usize / 8] & 1 << (bit % 8) != 0);
    bits.collect()
}

fn clear(log: &File, bytes: u64) {
    log.write_all_at(&vec![0; bytes as usize], PAGE).expect("so long");
}

/// Goal: the device refuses all invalid requests and continues to serve.
#[test]
fn nonsense_is_refused() {
    let mut bench = Bench::started(pairs(1), 0);
    bench.round(0, 1, 1);
    // Too short for the in-flight region that is requested below.
    let log = memfd(PAGE);
    bench.front_end.get_vring_base(0).expect("it stops");
    bench.front_end.get_vring_base(1).expect("it stops");
    let vring = bench.vring(0);
    let at = |address| VringConfigData { desc_table_addr: address, ..vring };
    let kick = |bench: &Bench| bench.front_end.set_vring_kick(0, &bench.kicks[0]);
    bench.front_end.set_vring_num(0, 3).expect("accepted, and checked at start");
    assert!(is_refused(kick(&bench)), "no power of two");
    bench.front_end.set_vring_num(0, SIZE).expect("acked");
    for address in [0, u64::MAX - 15, vring.desc_table_addr + 1, vring.desc_table_addr + REGION * 2]
    {
        // The request may be refused or not: the device tries to start the ring again at once.
        let _ = bench.front_end.set_vring_addr(0, &at(address));
        assert!(is_refused(kick(&bench)), "descriptors at {address:#x}");
    }
    let inflight = VhostUserInflight::new(PAGE, 0, 2, SIZE);
    let short = bench.front_end.set_inflight_fd(&inflight, memfd(PAGE / 2).as_raw_fd());
    assert!(is_refused(short), "a file shorter than the area");
    let inflight = VhostUserInflight::new(8, 0, 2, SIZE);
    assert!(is_refused(bench.front_end.set_inflight_fd(&inflight, log.as_raw_fd())));
    bench.start(0, 1);
    bench.start(1, 1);
    bench.round(0, 1, 2);
    let (device, end) = bench.device.finish();
    assert!(device.is_connected() && end.is_none());
    let refused = device.counters().refused;
    assert_eq!((refused.ring, refused.inflight, refused.total()), (5, 2, 7));
}

/// Goal: a refusal without an acknowledgement ends the connection, and the device reports why.
#[test]
fn a_refusal_without_acknowledgement_ends_the_connection() {
    let mut bench = Bench::started(pairs(1), 0);
    bench.round(0, 1, 1);
    bench.front_end.set_hdr_flags(VhostUserHeaderFlag::empty());
    bench.front_end.set_features(1 << 63).expect("sent");
    let lost = bench.front_end.get_features();
    assert!(lost.is_err());
    let (device, end) = bench.device.finish();
    assert!(!device.is_connected());
    assert!(matches!(end, Some(SessionEnd::Refused { .. })), "{end:?}");
}
