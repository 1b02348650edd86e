//! Front ends at ports of several workers, while another worker has what their guests have lent:
//! rings stop, memory goes, front ends end, and a migration logs what is written. The front end is
//! that of the crate `vhost`, and the workers are threads.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use towpath_gateway::network::{DeviceReport, Operation};
use towpath_io::vhost_user::driver::{DriverQueue, GuestRam, RECEIVE, TRANSMIT};
use towpath_io::vhost_user::session::feature;
use towpath_io::vhost_user::virtq::Segment;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::running::Running;

/// Address of the guest's memory. The rings are at its beginning, receive buffers follow; its
/// second region has the frames that the guest sends.
const BASE: u64 = 0x10_0000;
const REGION: u64 = 0x20_0000;
const RING_BYTES: u64 = 0x1_0000;
const RECEIVED: u64 = BASE + 0x10_0000;
const SENT: u64 = BASE + REGION;
const PAGE: u64 = 0x1000;
/// Entries of a ring. Frames of a test are fewer.
const SIZE: u16 = 64;
const HEADER: usize = 12;
/// Longer than what is copied at once, so that it is lent.
const FRAME: usize = 1400;
/// Frames that are lent when something happens.
const LENT: u8 = 8;
/// Most looks, a millisecond apart, for something that another thread does at once.
const LOOKS_MAX: u32 = 30_000;
const SENDER: &str = "sender";
const RECEIVER: &str = "receiver";

/// Numbers of workers, and those of the sender and of the receiver.
const PLACES: [(usize, [usize; 2]); 4] = [(2, [1, 0]), (2, [0, 1]), (4, [1, 2]), (4, [3, 0])];

/// A guest with its front end.
struct Machine {
    ram: GuestRam,
    queues: [DriverQueue; 2],
    kicks: [EventFd; 2],
    front_end: Frontend,
}

impl Machine {
    /// Connects and starts both rings.
    fn connect(socket: UnixStream) -> Self {
        let ram = GuestRam::new(BASE, &[REGION, REGION]).expect("memory");
        let queue = |ring| DriverQueue::new(&ram, BASE + RING_BYTES * ring, SIZE, 0);
        let queues = [0, 1].map(|ring| queue(ring).expect("it fits"));
        let kicks = [(); 2].map(|()| EventFd::new(EFD_NONBLOCK).expect("an event"));
        let front_end = Frontend::from_stream(socket, 2);
        let mut machine = Self { ram, queues, kicks, front_end };
        let front_end = &mut machine.front_end;
        front_end.set_owner().expect("acked");
        front_end.get_features().expect("answered");
        let offered = front_end.get_protocol_features().expect("answered");
        front_end.set_protocol_features(offered).expect("acked");
        front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        machine.agree(0);
        let table = [machine.region(0), machine.region(1)];
        machine.front_end.set_mem_table(&table).expect("acked");
        [RECEIVE, TRANSMIT].into_iter().for_each(|ring| machine.start(ring, 0));
        machine
    }

    fn agree(&self, more: u64) {
        let features = feature::VERSION_1 | feature::PROTOCOL_FEATURES | more;
        self.front_end.set_features(features).expect("acked");
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
        front_end.set_vring_kick(ring, &self.kicks[ring]).expect("it starts");
        front_end.set_vring_enable(ring, true).expect("acked");
    }

    /// Address of the frame that it sends with this number.
    fn place(number: u8) -> u64 {
        SENT + PAGE * u64::from(number)
    }

    fn send(&mut self, numbers: std::ops::Range<u8>) {
        for number in numbers {
            let bytes = [&[0; HEADER], &frame(number)[..]].concat();
            let address = Self::place(number);
            self.ram.memory().write(address, &bytes).expect("its memory");
            let segment = Segment { address, bytes: bytes.len() as u32 };
            assert!(self.queues[TRANSMIT].add(&[segment], &[], number.into()), "there is room");
        }
        self.queues[TRANSMIT].publish();
        self.kicks[TRANSMIT].write(1).expect("room");
    }

    /// Sends a frame, so that its station is known: [`frame`] is for it.
    fn introduce(&mut self) {
        let mut bytes = [0; HEADER + 60];
        bytes[HEADER..][..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
        self.ram.memory().write(SENT, &bytes).expect("its memory");
        let segment = Segment { address: SENT, bytes: bytes.len() as u32 };
        assert!(self.queues[TRANSMIT].add(&[segment], &[], 0), "there is room");
        self.queues[TRANSMIT].publish();
        self.kicks[TRANSMIT].write(1).expect("room");
    }

    /// Receives a frame, whatever it is.
    fn hear(&mut self) {
        let segment = Segment { address: RECEIVED, bytes: PAGE as u32 };
        assert!(self.queues[RECEIVE].add(&[], &[segment], 0), "there is room");
        self.queues[RECEIVE].publish();
        self.kicks[RECEIVE].write(1).expect("room");
        self.used(RECEIVE);
    }

    /// Overwrites all frames that it has sent.
    fn overwrite(&self) {
        let garbage = [0xee; PAGE as usize];
        for number in 0..SIZE as u8 {
            self.ram.memory().write(Self::place(number), &garbage).expect("its memory");
        }
    }

    /// Waits until all frames that it has sent are used.
    fn wait_until_used(&mut self, numbers: std::ops::Range<u8>) {
        let mut used: Vec<u64> = numbers.clone().map(|_| self.used(TRANSMIT).0).collect();
        used.sort_unstable();
        assert!(used.into_iter().eq(numbers.map(u64::from)), "each once");
    }

    /// Offers as many receive buffers as frames will come, and expects them, unchanged and in
    /// order.
    fn expect(&mut self, numbers: std::ops::Range<u8>) {
        for number in numbers.clone() {
            let address = RECEIVED + PAGE * u64::from(number);
            let segment = Segment { address, bytes: PAGE as u32 };
            assert!(self.queues[RECEIVE].add(&[], &[segment], number.into()), "there is room");
        }
        self.queues[RECEIVE].publish();
        self.kicks[RECEIVE].write(1).expect("room");
        for number in numbers {
            assert_eq!(self.used(RECEIVE), (number.into(), (HEADER + FRAME) as u32));
            let mut content = vec![0; FRAME];
            let address = RECEIVED + PAGE * u64::from(number) + HEADER as u64;
            self.ram.memory().read(address, &mut content).expect("its memory");
            assert!(content == frame(number), "frame {number} is unchanged");
        }
    }

    fn used(&mut self, ring: usize) -> (u64, u32) {
        wait_until("a buffer is used", || self.queues[ring].used())
    }
}

/// A frame from the sender to the receiver.
fn frame(number: u8) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..FRAME).map(|at| (at as u8).wrapping_mul(5) ^ number).collect();
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame
}

/// Looks until `look` finds something.
fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let found = (0..LOOKS_MAX).find_map(|_| {
        let found = look();
        if found.is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        found
    });
    found.unwrap_or_else(|| panic!("waited too long until {what}"))
}

/// A network with a sender and a receiver at ports of these workers. Ports of the other workers
/// have no guests.
fn network(workers: usize, places: [usize; 2]) -> (Running, [Machine; 2]) {
    let mut running = Running::new(workers);
    let name = |number: usize| match places.iter().position(|place| *place == number) {
        Some(0) => SENDER.to_owned(),
        Some(_) => RECEIVER.to_owned(),
        None => number.to_string(),
    };
    let mut sockets: Vec<_> =
        (0..workers).map(|number| Some(running.add_machine(&name(number)))).collect();
    for (place, name) in places.into_iter().zip([SENDER, RECEIVER]) {
        assert_eq!(running.port(name).worker, place);
    }
    let sockets = places.map(|place| sockets[place].take().expect("taken once"));
    let machines = running.serve_during(|| {
        let [mut sender, mut receiver] = sockets.map(Machine::connect);
        receiver.introduce();
        sender.hear();
        [sender, receiver]
    });
    (running, machines)
}

/// Makes frames of the sender wait for the receiver, in memory that the sender lends. Then calls
/// `cut`, which ends the loans and returns a sender that can send. What was lent arrives unchanged,
/// and so does what is sent later.
fn with_loans_elsewhere(cut: impl Fn(&mut Running, Machine) -> Machine) {
    for (workers, places) in PLACES {
        let (mut running, [mut sender, mut receiver]) = network(workers, places);
        sender.send(0..LENT);
        wait_until("all wait for the receiver", || {
            running.serve_during(|| thread::sleep(Duration::from_millis(1)));
            (running.port(RECEIVER).waiting == usize::from(LENT)).then_some(())
        });
        running.port_once(SENDER, |port| {
            matches!(port.device, DeviceReport::VhostUser(_, sent) if sent.lent == u64::from(LENT))
        });
        let mut sender = cut(&mut running, sender);
        running.serve_during(|| receiver.expect(0..LENT));
        running.serve_during(|| {
            sender.send(LENT..2 * LENT);
            receiver.expect(LENT..2 * LENT);
        });
        for port in [SENDER, RECEIVER].map(|name| running.port(name)) {
            assert_eq!(port.counters.drops().count(), 0, "{port}");
        }
    }
}

/// Goal: a ring stops although another worker has what was sent on it, and reports all of that as
/// sent; the guest may write to it afterwards. The ring continues where it stopped.
#[test]
fn a_ring_stops_while_another_worker_has_its_packets() {
    with_loans_elsewhere(|running, mut sender| {
        running.serve_during(|| {
            let base = sender.front_end.get_vring_base(TRANSMIT).expect("it stops");
            assert_eq!(base, u32::from(LENT));
            sender.wait_until_used(0..LENT);
            sender.overwrite();
            sender.start(TRANSMIT, LENT.into());
            sender
        })
    });
}

/// Goal: memory is taken away although another worker has packets in it, and comes back. The guest
/// may write to it in between.
#[test]
fn memory_goes_while_another_worker_has_packets_in_it() {
    with_loans_elsewhere(|running, mut sender| {
        running.serve_during(|| {
            sender.front_end.set_mem_table(&[sender.region(0)]).expect("acked");
            sender.wait_until_used(0..LENT);
            sender.overwrite();
            let region = sender.region(1);
            sender.front_end.add_mem_region(&region).expect("acked");
            sender
        })
    });
}

/// Goal: what a front end that dies has lent to another worker still arrives, and the next front
/// end serves a new port of the same worker.
#[test]
fn a_front_end_dies_while_another_worker_has_its_packets() {
    with_loans_elsewhere(|running, sender| {
        let worker = running.port(SENDER).worker;
        drop(sender);
        running.apply(Operation::Del(SENDER.to_owned()));
        let socket = running.add_machine(SENDER);
        assert_eq!(running.port(SENDER).worker, worker, "the one with the fewest ports");
        running.serve_during(|| Machine::connect(socket))
    });
}

/// Goal: a receive ring that stops has nothing more written to it, and continues where it stopped,
/// with packets of another worker.
#[test]
fn a_receive_ring_stops_while_another_worker_sends() {
    for (workers, places) in PLACES {
        let (mut running, [mut sender, mut receiver]) = network(workers, places);
        running.serve_during(|| {
            sender.send(0..LENT);
            receiver.expect(0..LENT);
            let base = receiver.front_end.get_vring_base(RECEIVE).expect("it stops");
            assert_eq!(base, u32::from(LENT));
            sender.send(LENT..2 * LENT);
            sender.wait_until_used(0..2 * LENT);
            receiver.start(RECEIVE, LENT.into());
            sender.send(2 * LENT..3 * LENT);
            receiver.expect(2 * LENT..3 * LENT);
        });
    }
}

/// Goal: a migration of a guest at a helper's port: what another worker's packets are written to is
/// marked in the log, before the reply that the ring has stopped.
#[test]
fn packets_of_another_worker_are_marked_in_the_log() {
    for (workers, places) in PLACES {
        let (mut running, [mut sender, mut receiver]) = network(workers, places);
        let bytes = (BASE + 2 * REGION) / PAGE / 8;
        let log = memfd_create("log", MemfdFlags::CLOEXEC).expect("a file");
        ftruncate(&log, bytes).expect("room");
        let log = File::from(log);
        let used = receiver.queues[RECEIVE].config().device - receiver.region(0).userspace_addr;
        running.serve_during(|| {
            let region = VhostUserDirtyLogRegion {
                mmap_size: bytes,
                mmap_offset: 0,
                mmap_handle: log.as_raw_fd(),
            };
            receiver.front_end.set_log_base(0, Some(region)).expect("answered with the log");
            receiver.agree(feature::LOG_ALL);
            let vring = receiver.vring(RECEIVE);
            let logged = VringConfigData { flags: 1, log_addr: Some(BASE + used), ..vring };
            receiver.front_end.set_vring_addr(RECEIVE, &logged).expect("acked");
            sender.send(0..LENT);
            receiver.expect(0..LENT);
            receiver.front_end.get_vring_base(RECEIVE).expect("it stops");
        });
        let mut map = vec![0; bytes as usize];
        log.read_exact_at(&mut map, 0).expect("so long");
        let pages = (0..bytes * 8).filter(|page| map[*page as usize / 8] & 1 << (page % 8) != 0);
        let frames = (0..u64::from(LENT)).map(|number| RECEIVED / PAGE + number);
        let expected = [(BASE + used) / PAGE].into_iter().chain(frames);
        assert!(pages.eq(expected), "the used ring, and one page for each frame");
    }
}
