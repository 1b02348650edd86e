//! A hostile front end at a port of a helper, which writes anything into all memory that it shares,
//! at any time. Its neighbours, at ports of the same and of another worker, check each byte of what
//! they send to each other. The test of this name in `towpath-io` does the same with one device.

#[path = "../../../io/tests/scribble/hostile.rs"]
mod hostile;

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use towpath_gateway::network::{Attachment, DeviceReport, Operation, PortReport, PortSettings};
use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam, RECEIVE, TRANSMIT};
use towpath_io::vhost_user::sigbus;
use towpath_io::vhost_user::virtq::Segment;
use towpath_net::switch::Guard;
use towpath_net::wire::MacAddr;

use crate::running::Running;
use hostile::{BASE, BUFFERS, Hostile, REGION, Random, SIZE};

/// Steps of the hostile side, in each of which it writes several times.
const STEPS: u64 = 8000;
/// Most looks for a packet, and those after which it is sent again: the queue of its port may have
/// been full of what the hostile side sent.
const LOOKS_MAX: u32 = 500_000;
const LOOKS_AGAIN: u32 = 500;
const PAUSE: Duration = Duration::from_micros(50);
/// Bytes of a neighbour's buffers, and of the virtio header in front of a frame.
const BUFFER: u64 = 0x1000;
const HEADER: usize = 12;
/// Stands behind the link-layer header of each packet of the neighbours, in front of its number.
const MARK: &[u8; 14] = b"the neighbour!";
/// Last bytes of the stations' addresses.
const ONE: u8 = 1;
const TWO: u8 = 2;
const HOSTILE: u8 = 9;

/// Goal: whatever a front end at a helper's port and its guest write to shared memory, and whenever
/// they do, packets between its neighbours arrive unchanged, and no session ends but its own.
#[test]
fn whoever_scribbles_at_a_helper_harms_itself_only() {
    sigbus::guard().expect("SIGBUS can be handled");
    for workers in [2, 4] {
        scribble_beside(workers);
    }
}

fn scribble_beside(workers: usize) {
    let mut running = Running::new(workers);
    let name = format!("towpath-scribble-{workers}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let one = running.add_machine("one");
    let attachment = Attachment::VhostUser(path.clone());
    // What it sends may be what it has received, also with a neighbour's address as the source.
    let guard = Guard { macs: vec![MacAddr(station(HOSTILE))], addresses: Vec::new() };
    let (name, settings) =
        ("hostile".to_owned(), PortSettings { guard, ..PortSettings::default() });
    running.apply(Operation::Add { name, attachment, settings });
    let _others: Vec<_> =
        (2..=workers).map(|number| running.add_machine(&number.to_string())).collect();
    let two = running.add_machine("two");
    assert_eq!(["one", "hostile", "two"].map(|name| running.port(name).worker), [0, 1, 1]);
    let is_over = AtomicBool::new(false);
    let (exchanged, heard) = running.serve_during(|| {
        thread::scope(|scope| {
            let hostile = scope.spawn(|| {
                let _over = Over(&is_over);
                let (mut random, mut steps) = (Random(1), 0);
                while steps < STEPS {
                    let to = [station(ONE), station(TWO), [0xff; 6]][random.below(3) as usize];
                    let start = [&[0; HEADER][..], &to, &station(HOSTILE), &[0x88, 0xb5], &[0; 6]];
                    let hostile = Hostile::connect(&path, &mut random, &start.concat());
                    steps += hostile.run(&mut random, || false);
                }
            });
            let exchanged = exchange([(one, ONE), (two, TWO)], &is_over);
            hostile.join().expect("the hostile side does not panic");
            exchanged
        })
    });
    let device = |port: &PortReport| match port.device {
        DeviceReport::VhostUser(counters, sent) => (counters, sent),
        ref other => panic!("{other:?} is not a machine"),
    };
    for name in ["one", "two"] {
        let port = running.port_once(name, |port| device(port).0.sessions > 0);
        assert_eq!(device(&port).0.sessions, 1, "the neighbours stayed");
    }
    // The numbers depend on the machine, so only their signs are checked.
    assert!(exchanged > 0 && heard > 0, "{exchanged} exchanged, {heard} heard");
    running.port_once("hostile", |port| {
        let (counters, sent) = device(port);
        let written = port.counters.packets_out;
        [counters.broken, sent.packets, sent.lent, written].iter().all(|count| *count > 0)
    });
}

/// Set when it is dropped, by a panic, too.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends packets from each neighbour to the other, until `is_over`. Returns their number, and that
/// of packets of the hostile side that the neighbours received.
fn exchange(sockets: [(UnixStream, u8); 2], is_over: &AtomicBool) -> (u64, u64) {
    let [mut one, mut two] = sockets.map(|(socket, station)| Neighbour::connect(socket, station));
    let mut number = 0;
    while number == 0 || !is_over.load(Ordering::Relaxed) {
        pass(&mut one, &mut two, number);
        pass(&mut two, &mut one, number + 1);
        // The hostile guest receives, too.
        one.send_noise();
        number += 2;
    }
    (number, one.heard + two.heard)
}

/// Sends a packet, and waits until it has arrived and its buffer is used.
fn pass(from: &mut Neighbour, to: &mut Neighbour, number: u64) {
    let (mut has_come, mut looks) = (false, 0);
    while !has_come || from.has_sent() {
        assert!(looks < LOOKS_MAX, "packet {number} arrives");
        if looks % LOOKS_AGAIN == 0 && !has_come {
            from.send(to.station, number);
        }
        has_come |= to.receives(from.station, number);
        looks += 1;
        thread::sleep(PAUSE);
    }
}

/// A guest that behaves.
struct Neighbour {
    ram: GuestRam,
    queues: [DriverQueue; 2],
    front_end: FrontEnd,
    station: u8,
    /// Packets of the hostile side that it received.
    heard: u64,
    /// How many of its packets the network still has: with the current number, and noise.
    out: [u32; 2],
}

impl Neighbour {
    fn connect(socket: UnixStream, station: u8) -> Self {
        let ram = GuestRam::new(BASE, &[REGION]).expect("memory");
        let queue = |at| DriverQueue::new(&ram, BASE + at, SIZE, 0).expect("it fits");
        let queues = [queue(0), queue(0x2_0000)];
        let front_end = FrontEnd::over(socket, &ram, 0, [&queues[0], &queues[1]]).expect("a port");
        let mut neighbour = Self { ram, queues, front_end, station, heard: 0, out: [0; 2] };
        (0..SIZE.into()).for_each(|token| neighbour.offer(token));
        neighbour
    }

    fn offer(&mut self, token: u64) {
        let buffer = Segment { address: place(token), bytes: BUFFER as u32 };
        assert!(self.queues[RECEIVE].add(&[], &[buffer], token), "there is room");
        self.queues[RECEIVE].publish();
        self.front_end.kick(RECEIVE);
    }

    /// Sends a numbered packet, unless its own ring is full.
    fn send(&mut self, to: u8, number: u64) {
        self.put(OWN, &frame(self.station, to, number));
    }

    /// Sends a packet to the hostile guest, unless some are on their way to it.
    fn send_noise(&mut self) {
        self.reap();
        if self.out[NOISE] < u32::from(SIZE) / 2 {
            self.put(
                NOISE,
                &[&station(HOSTILE)[..], &station(self.station), &[0x88; 1000]].concat(),
            );
        }
    }

    /// Sends from one of two buffers, whose content is the same as long as the network has it.
    fn put(&mut self, kind: usize, frame: &[u8]) {
        let address = place(u64::from(SIZE) + kind as u64);
        let bytes = [&[0; HEADER], frame].concat();
        self.ram.memory().write(address, &bytes).expect("in memory");
        let segment = Segment { address, bytes: bytes.len() as u32 };
        if self.queues[TRANSMIT].add(&[segment], &[], kind as u64) {
            self.out[kind] += 1;
        }
        self.queues[TRANSMIT].publish();
        self.front_end.kick(TRANSMIT);
    }

    fn reap(&mut self) {
        while let Some((kind, _)) = self.queues[TRANSMIT].used() {
            self.out[kind as usize] -= 1;
        }
    }

    /// Returns true while the network has numbered packets.
    fn has_sent(&mut self) -> bool {
        self.reap();
        self.out[OWN] > 0
    }

    /// Takes what has arrived. Returns true if this packet is among it. Checks each numbered one.
    fn receives(&mut self, from: u8, number: u64) -> bool {
        let mut is_there = false;
        while let Some((token, written)) = self.queues[RECEIVE].used() {
            let mut bytes = vec![0; written as usize];
            self.ram.memory().read(place(token), &mut bytes).expect("in memory");
            let came = &bytes[HEADER..];
            if came.len() > BODY && came[6..12] == station(from) && came[14..].starts_with(MARK) {
                let of = u64::from_be_bytes(came[14 + MARK.len()..BODY].try_into().expect("eight"));
                assert!(came == frame(from, self.station, of), "packet {of} is unchanged");
                is_there |= of == number;
            } else {
                self.heard += u64::from(came.len() > BODY && came[6..12] == station(HOSTILE));
            }
            self.offer(token);
        }
        is_there
    }
}

/// The two kinds of packets that a neighbour sends.
const OWN: usize = 0;
const NOISE: usize = 1;
/// Where the number of a packet ends.
const BODY: usize = 14 + MARK.len() + 8;

fn place(token: u64) -> u64 {
    BUFFERS + BUFFER * token
}

fn station(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

/// A packet of a length that is either copied or lent.
fn frame(from: u8, to: u8, number: u64) -> Vec<u8> {
    let bytes = 60 + (number * 97 % 1400) as usize;
    let mut frame: Vec<u8> = (0..bytes).map(|at| (number as usize * 31 + at * 7) as u8).collect();
    let start = [&station(to)[..], &station(from), &[0x88, 0xb5], MARK, &number.to_be_bytes()];
    frame[..BODY].copy_from_slice(&start.concat());
    frame
}
