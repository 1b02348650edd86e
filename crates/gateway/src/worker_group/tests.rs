//! Fair shares of the workers' threads while every flow has more to move than they can. The test
//! counts turns and uses no clock, like the test of one worker (`tests/hostile/shares.rs`).
//!
//! The program is a stack behind a socket that behaves like a device; its peers are sockets on the
//! host's loopback. Everything runs on one thread: each worker has a turn, then the program and the
//! peers proceed. Half of the buckets belong to the second worker.

use super::helper::{Helper, Told};
use super::thread::Parked;
use super::*;
use nix::sched::{CloneFlags, unshare};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command as Process;
use towpath_io::tap::Features;
use towpath_net::socket::{Family, SendFlags, SocketId, Sockets};
use towpath_net::stack::{self, Address, Context, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Device, Ledger, Memory, MemoryConfig};

use crate::config::Ipv4Config;
use crate::owners::of_connection;
use crate::publish::{self, Protocol};

/// Connections of each kind: begun by the program or by the host, in each direction.
const FLOWS: usize = 8;
/// The program's published ports: the program receives on the first, and sends on the other.
const PORTS: [u16; 2] = [9000, 9001];
/// The program's first port.
const FIRST_PORT: u16 = 20_000;
/// Bytes that each flow moves before the count begins: windows are open by then.
const WARM_UP: u64 = 8 << 20;
const WARM_UP_TURNS_MAX: u32 = 20_000;
/// Turns that are counted: forty rounds of all flows if each flow takes a worker's whole turn.
const TURNS: u32 = 40 * FLOWS as u32;
/// Most bytes of a host's flow, in percent of the smallest of the same worker.
const APART_MAX: u64 = 150;
/// Least share of the slower direction of a worker, in percent of both directions.
const SLOWER_MIN: u64 = 40;
const CHUNK: usize = 64 << 10;
const MEMORY_BYTES: usize = 256 << 20;
/// Capacity of the device in bytes: more than is ever in flight.
const QUEUE_BYTES: usize = 64 << 20;
/// The program's send buffer per flow: small, so that ACKs wait in the device for less time than
/// the data in flight of the host's flows lasts.
const SEND_BUFFER: u32 = 256 << 10;
/// The kernel's buffers for each flow from the beginning: enough for many turns.
const BUFFERS: &str = "4194304 8388608 8388608";

/// Number of counts. A busy machine may lengthen the round trips of a flow, whose window then opens
/// with time, not with turns.
const TRIES: u32 = 16;
/// Number of labs with these counts: on a busy machine, the windows of one lab may stay small.
const LABS: u32 = 3;

/// Goal: a worker that does not answer is asked and waited for once, until it has answered.
#[test]
fn a_worker_that_is_stuck_is_waited_for_once() {
    let (queue, _far) = device();
    let config = Config { memory_bytes: crate::config::MEMORY_BYTES_MIN, ..Config::default() };
    let last = Worker::new(&config, tap(queue)).expect("a worker").report();
    let ((commands, wanted), (tell, reports)) = (channel(), channel());
    let mut stuck = Running {
        commands: Some(commands),
        bell: new_bell().expect("a bell"),
        reports,
        last: RefCell::new(Some(last.clone())),
        is_late: Cell::new(false),
        late_page: None,
        thread: None,
        other: None,
    };
    let handed_over = |stuck: &Running| stuck.report(Duration::ZERO).map(|one| one.handed_over);
    stuck.ask();
    assert_eq!(handed_over(&stuck), Some(0));
    stuck.ask();
    assert_eq!(wanted.try_iter().count(), 1);
    // If it were waited for, it would take this long.
    stuck.report(Duration::from_secs(24 * 3600));
    tell.send(Report { handed_over: 7, ..last }).expect("it is there");
    assert_eq!(handed_over(&stuck), Some(7));
    stuck.ask();
    assert_eq!(wanted.try_iter().count(), 1);

    // Pages of flows, too.
    let query = FlowQuery { from: 0, most: 1, moved_min: 0 };
    assert!(stuck.flows(&query, Duration::ZERO).is_none());
    assert!(stuck.flows(&query, Duration::from_secs(24 * 3600)).is_none(), "it is late");
    let mut asked: Vec<Command> = wanted.try_iter().collect();
    let Some(Command::Flows(_, answer)) = asked.pop() else { panic!("a request for flows") };
    assert!(asked.is_empty());
    answer.send(FlowPage::default()).expect("it waits");
    assert!(stuck.flows(&query, Duration::ZERO).is_none(), "asked anew");
    assert!(matches!(wanted.try_recv(), Ok(Command::Flows(..))));
}

/// Goal: two workers have flows of all kinds that always have more to move. The slower direction of
/// each worker gets two fifths of the bytes that it moves, as long as the program has more to send;
/// bytes that the first worker reads for the other count half. No flow of the host gets half as
/// much again as another of the same worker.
#[test]
fn flows_and_directions_have_their_shares_of_each_worker() {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        eprintln!("skipped: needs root for a network namespace of its own");
        return;
    }
    let up = Process::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.expect("there is `ip`").success());
    for name in ["tcp_rmem", "tcp_wmem"] {
        std::fs::write(format!("/proc/sys/net/ipv4/{name}"), BUFFERS).expect("our own settings");
    }
    assert!((0..LABS).any(|_| is_fair_in_a_lab()), "the shares are never fair");
}

fn is_fair_in_a_lab() -> bool {
    let mut lab = Lab::new();
    let mut turns = 0;
    while !lab.program.is_warm() {
        lab.turn();
        turns += 1;
        assert!(turns < WARM_UP_TURNS_MAX, "windows do not open: {:?}", lab.program.flows);
    }
    (0..TRIES).any(|_| lab.is_fair())
}

/// The workers, the device and the program.
struct Lab {
    first: Worker<Reader>,
    second: Worker<Helper>,
    /// Always readable, so that each call of a worker is one turn.
    ready: OwnedFd,
    /// The first worker's end of the device.
    device: OwnedFd,
    /// Turns of each worker that left packets: in the device, or in the ring.
    left: [u32; 2],
    program: Program,
}

impl Lab {
    fn new() -> Self {
        let specs = PORTS.map(|port| format!("127.0.0.1/{port}"));
        let config = Config {
            host_loopback: vec![Ipv4Config::default().gateway.into()],
            ipv6: None,
            resolvers: Some(Vec::new()),
            publish: publish::parse(Protocol::Tcp, &specs, &(1..=1)).expect("ports"),
            workers: 2,
            ..Config::default()
        };
        let (near, far) = device();
        let device = near.try_clone().expect("a descriptor");
        let owners = Arc::new(Owners::new());
        let bell = || new_bell().expect("a descriptor");
        let reader = Reader::new(tap(near), owners.clone(), bell(), 2, Bounds::of(&config));
        let mut first = Worker::serving_program(&config, reader).expect("a worker");
        first.gateway().0.spread(Spread::new(owners.clone()));
        // The second worker is made as its thread would make it.
        let (commands, wanted) = channel();
        let parked = vec![Parked { index: 1, bell: bell(), commands }];
        let (clock, config_of_other) = (first.clock(), config.share());
        let recipe =
            Recipe { config: config_of_other, owners: owners.clone(), clock, capture: None };
        first.inside_mut().park(recipe, parked);
        first.inside_mut().call(Instant::START);
        let Ok(Command::Serve(parts)) = wanted.try_recv() else { panic!("a recipe") };
        let (recipe, helper) = *parts;
        let back = helper.back();
        let second = recipe.make(helper).expect("a worker");
        back.tell(Told::Came(true));
        let ready = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a file");
        first.run_until(&[ready.as_fd()]).expect("a turn");
        assert_eq!(first.inside().made(), 1);
        owners.set(&(0..=u8::MAX).filter(|bucket| bucket % 2 == 1).collect(), 1);
        first.inside_mut().keep_owners();
        let program = Program::new(&config, tap(far), owners);
        Self { first, second, ready, device, left: [0; 2], program }
    }

    fn turn(&mut self) {
        let Self { first, second, ready, device, left, program } = self;
        first.run_until(&[ready.as_fd()]).expect("a turn");
        let mut device = [PollFd::new(device, PollFlags::IN)];
        left[0] += u32::from(poll(&mut device, Some(&Timespec::default())) == Ok(1));
        second.run_until(&[ready.as_fd()]).expect("a turn");
        left[1] += u32::from(second.inside().has_packets());
        program.go_on(first.now());
    }

    /// Counts a number of turns; returns true if the shares are fair.
    fn is_fair(&mut self) -> bool {
        let (before, handed_over) = (self.program.flows.clone(), self.first.report().handed_over);
        self.left = [0; 2];
        (0..TURNS).for_each(|_| self.turn());
        assert!(self.first.report().handed_over > handed_over, "the second worker has flows");
        let moved = |worker, way| {
            let moved = self.program.flows.iter().zip(&before);
            let of_these = moved.filter(move |(flow, _)| (flow.worker, flow.way) == (worker, way));
            of_these.map(|(after, before)| after.bytes - before.bytes)
        };
        (0..2).all(|worker| {
            let flows: Vec<u64> = moved(worker, Way::Into).collect();
            let (into, mut out) = (flows.iter().sum::<u64>(), moved(worker, Way::Out).sum::<u64>());
            if worker == 0 {
                // To read a packet is half of the work for it.
                out += moved(1, Way::Out).sum::<u64>() / 2;
            }
            let left = self.left[worker];
            println!("worker {worker}: {into} in, {out} out, {left} turns left some, {flows:?}");
            assert!(flows.len() >= FLOWS / 2, "both have flows of the host");
            let (least, most) = (flows.iter().min(), flows.iter().max());
            most.zip(least).is_some_and(|(most, least)| most * 100 <= least * APART_MAX)
                && (into.min(out) * 100 >= (into + out) * SLOWER_MIN || left * 2 < TURNS)
        })
    }
}

/// Returns both ends of a device: one read takes one frame, one write sends one, neither blocks.
fn device() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (near, far) = ends.expect("a pair");
    for end in [&near, &far] {
        set_socket_send_buffer_size_force(end, QUEUE_BYTES).expect("root may");
    }
    (near, far)
}

fn tap(end: OwnedFd) -> Tap {
    Tap::from_fd(end, Features::ALL, 1500)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Into,
    Out,
}

/// A connection of the program.
#[derive(Clone, Copy, Debug)]
struct Flow {
    socket: SocketId,
    way: Way,
    /// The worker that owns it.
    worker: usize,
    bytes: u64,
}

/// The inside of the gateway, and the peers on the host.
struct Program {
    sockets: Sockets,
    memory: Memory,
    ledger: Ledger,
    device: Tap,
    leaving: Burst,
    flows: Vec<Flow>,
    /// Listeners of the published ports, and the map from their connections to workers.
    inside: [SocketId; 2],
    owners: Arc<Owners>,
    /// Listeners of the peers to which the program connects.
    listeners: [TcpListener; 2],
    writers: Vec<TcpStream>,
    readers: Vec<TcpStream>,
    buffer: Vec<u8>,
    turns: usize,
}

impl Program {
    fn new(config: &Config, device: Tap, owners: Arc<Owners>) -> Self {
        let net = config.ipv4.expect("there is IPv4");
        let mut sockets = Sockets::new(stack_of(config, &net, &device));
        let inside = PORTS.map(|port| {
            let socket = sockets.stream(Family::V4).expect("room");
            let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
            sockets.bind(socket, any).expect("a free port");
            sockets.listen(socket, FLOWS as i32, Instant::START).expect("it listens");
            socket
        });
        let listeners = [0, 1].map(|_| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            listener.set_nonblocking(true).expect("a setting");
            listener
        });
        let mut flows = Vec::new();
        let ways = [Way::Into, Way::Out];
        for number in 0..2 * FLOWS {
            let way = ways[number / FLOWS];
            let port = listeners[number / FLOWS].local_addr().expect("an address").port();
            let socket = sockets.stream(Family::V4).expect("room");
            let own = SocketAddr::new(net.address.into(), FIRST_PORT + number as u16);
            let to = SocketAddr::new(net.gateway.into(), port);
            let worker = owners.of(of_connection(to, own.port())).into();
            sockets.bind(socket, own).expect("a free port");
            // EINPROGRESS is expected.
            let _ = sockets.connect(socket, to, Instant::START);
            flows.push(Flow { socket, way, worker, bytes: 0 });
        }
        let connect = |port| {
            let peer = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it is published");
            peer.set_nonblocking(true).expect("a setting");
            peer
        };
        let connect = |port| (0..FLOWS).map(|_| connect(port)).collect();
        Self {
            sockets,
            memory: Memory::new(MemoryConfig::within(MEMORY_BYTES)),
            ledger: Ledger::new(),
            device,
            leaving: Burst::new(),
            flows,
            inside,
            owners,
            listeners,
            writers: connect(PORTS[0]),
            readers: connect(PORTS[1]),
            buffer: vec![0x5a; CHUNK],
            turns: 0,
        }
    }

    fn is_warm(&self) -> bool {
        self.flows.len() == 4 * FLOWS && self.flows.iter().all(|flow| flow.bytes >= WARM_UP)
    }

    /// Lets the program and the peers proceed as far as they can.
    fn go_on(&mut self, now: Instant) {
        self.turns += 1;
        self.hear(now);
        self.accept(now);
        for reader in &mut self.readers {
            while done(reader.read(&mut self.buffer)) {}
        }
        // Another writer is first each time.
        let first = self.turns % self.writers.len();
        let (later, sooner) = self.writers.split_at_mut(first);
        for writer in sooner.iter_mut().chain(later) {
            while done(writer.write(&self.buffer)) {}
        }
        let first = self.turns % self.flows.len();
        self.flows.rotate_left(first);
        let Self { sockets, memory, ledger, buffer, .. } = self;
        for flow in &mut self.flows {
            let mut cx = Context { memory, ledger, now };
            while flow.way == Way::Out
                && let Ok(sent) =
                    sockets.send(flow.socket, &[buffer], SendFlags::default(), &mut cx)
            {
                flow.bytes += sent as u64;
            }
            while flow.way == Way::Into
                && let Ok(read @ 1..) = sockets.discard(flow.socket, usize::MAX, now)
            {
                flow.bytes += read as u64;
            }
        }
        self.flows.rotate_right(first);
        self.say(now);
    }

    /// Receives the packets that the workers sent.
    fn hear(&mut self, now: Instant) {
        let Self { sockets, memory, ledger, device, .. } = self;
        let mut burst = Burst::new();
        loop {
            let cx = &mut Context { memory, ledger, now };
            device.receive(&mut burst, cx).expect("it is there");
            if burst.is_empty() {
                break;
            }
            sockets.input(&mut burst, cx);
            while sockets.next_wake().is_some() {}
        }
        if sockets.stack().next_deadline().is_some_and(|at| at <= now) {
            sockets.on_deadline(&mut Context { memory, ledger, now });
        }
    }

    fn accept(&mut self, now: Instant) {
        for (listener, peers) in self.listeners.iter().zip([&mut self.writers, &mut self.readers]) {
            while let Ok((peer, _)) = listener.accept() {
                peer.set_nonblocking(true).expect("a setting");
                peers.push(peer);
            }
        }
        for ((&listener, port), way) in self.inside.iter().zip(PORTS).zip([Way::Into, Way::Out]) {
            while let Ok((socket, peer)) = self.sockets.accept(listener, now) {
                let worker = self.owners.of(of_connection(peer, port)).into();
                self.flows.push(Flow { socket, way, worker, bytes: 0 });
            }
        }
    }

    /// Sends until the stack has no more packets or the device is full.
    fn say(&mut self, now: Instant) {
        let Self { sockets, memory, ledger, device, leaving, .. } = self;
        let cx = &mut Context { memory, ledger, now };
        loop {
            device.transmit(leaving, cx).expect("it is there");
            if !leaving.is_empty() {
                return;
            }
            sockets.output(leaving, cx);
            if leaving.is_empty() {
                return;
            }
        }
    }
}

/// Returns true if bytes were moved: the socket may move more.
fn done(result: io::Result<usize>) -> bool {
    match result {
        Ok(count) => count > 0,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    }
}

fn stack_of(config: &Config, net: &Ipv4Config, device: &Tap) -> Stack {
    let gateway = net.gateway.into();
    let own = stack::Config {
        mac: MacAddr(config.program_mac),
        addresses: vec![Address { address: net.address.into(), prefix_len: net.prefix_len }],
        next_hops: vec![gateway],
        transparent: false,
        secret: [1, 2],
        tcp: Settings { send_buffer_max: SEND_BUFFER, ..Settings::default() },
        limits: Limits::default(),
    };
    let mut stack = Stack::new(own, Device::caps(device));
    stack.set_neighbor(gateway, MacAddr(config.gateway_mac));
    stack
}
