//! Fair shares of the workers' threads while every flow has more to move than they can. The test
//! counts turns and uses no clock, like the test of one worker (`tests/hostile/shares.rs`).
//!
//! The program is a stack behind two sockets that behave like the queues of a device; its peers are
//! sockets on the host's loopback. Everything runs on one thread: each worker has a turn, then the
//! program and the peers proceed. A flow's packets come by the queue of its worker, where the
//! kernel steers them. Only the packets of some connections to published ports come by the other
//! queue, and are handed over.

use super::*;
use nix::sched::{CloneFlags, unshare};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
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
use towpath_packet::{Burst, Device, Ledger, Memory, MemoryConfig, Packet};

use crate::config::Ipv4Config;
use crate::publish::{self, Protocol};

/// Connections of each kind: begun by the program or by the host, in each direction.
const FLOWS: usize = 8;
/// The program's published ports: the program receives on the first, and sends on the other.
const PORTS: [u16; 2] = [9000, 9001];
/// The program's first port; the number of a port selects the queue.
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
/// Capacity of a device queue in bytes: more than is ever in flight.
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
        last: RefCell::new(last.clone()),
        is_late: Cell::new(false),
        late_page: None,
        thread: None,
    };
    stuck.ask();
    assert_eq!(stuck.report(Duration::ZERO).handed_over, 0);
    stuck.ask();
    assert_eq!(wanted.try_iter().count(), 1);
    // If it were waited for, it would take this long.
    stuck.report(Duration::from_secs(24 * 3600));
    tell.send(Report { handed_over: 7, ..last }).expect("it is there");
    assert_eq!(stuck.report(Duration::ZERO).handed_over, 7);
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
/// each worker gets two fifths of the bytes that its flows move, as long as the program has more to
/// send. No flow of the host gets half as much again as another of the same worker, whether its
/// packets come to this worker or are handed over.
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
    workers: [Worker<Queue>; 2],
    /// Connections for the second worker.
    accepted: Receiver<Accepted>,
    /// Always readable, so that each call of a worker is one turn.
    ready: OwnedFd,
    /// The workers' ends of the device, and the number of turns that left packets there.
    queues: [OwnedFd; 2],
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
        let (near, far): (Vec<OwnedFd>, Vec<OwnedFd>) =
            (0..config.workers).map(|_| device()).unzip();
        let queues = [&near[0], &near[1]].map(|end| end.try_clone().expect("a descriptor"));
        let owners = Arc::new(Owners::new(&config.publish, config.workers));
        let sides = Queue::all(near.into_iter().map(tap).collect(), &owners).expect("rings");
        let share = config.share();
        let of_first = Config { publish: config.publish.clone(), ..share.clone() };
        let mut configs = [&of_first, &share].into_iter();
        let workers: Vec<_> = sides
            .into_iter()
            .map(|inside| Worker::serving_program(configs.next().expect("two"), inside))
            .collect::<Result<_, _>>()
            .expect("workers");
        let mut workers: [Worker<Queue>; 2] = workers.try_into().unwrap_or_else(|_| panic!("two"));
        let (to_second, accepted) = channel();
        let others = vec![(to_second, new_bell().expect("a bell"))];
        workers[0].gateway().0.spread(Spread::new(owners.clone(), 0, others));
        workers[1].gateway().0.spread(Spread::new(owners.clone(), 1, Vec::new()));
        let far: Vec<Tap> = far.into_iter().map(tap).collect();
        let far = far.try_into().unwrap_or_else(|_| panic!("two"));
        let program = Program::new(&config, far, owners);
        let ready = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a file");
        Self { workers, accepted, ready, queues, left: [0; 2], program }
    }

    fn turn(&mut self) {
        let Self { workers, accepted, ready, queues, left, program } = self;
        workers[1].gateway().0.take_over(accepted.try_iter());
        for ((worker, queue), left) in workers.iter_mut().zip(&*queues).zip(left) {
            worker.run_until(&[ready.as_fd()]).expect("a turn");
            let mut queue = [PollFd::new(queue, PollFlags::IN)];
            *left += u32::from(poll(&mut queue, Some(&Timespec::default())) == Ok(1));
        }
        program.go_on(workers[0].now());
    }

    /// Counts a number of turns; returns true if the shares are fair.
    fn is_fair(&mut self) -> bool {
        let (before, handed_over) = (self.program.flows.clone(), self.handed_over());
        self.left = [0; 2];
        (0..TURNS).for_each(|_| self.turn());
        assert!(self.handed_over() > handed_over, "some packets come by the other queue");
        let moved = |worker, way| {
            let moved = self.program.flows.iter().zip(&before);
            let of_these = moved.filter(move |(flow, _)| (flow.worker, flow.way) == (worker, way));
            of_these.map(|(after, before)| after.bytes - before.bytes)
        };
        (0..self.workers.len()).all(|worker| {
            let flows: Vec<u64> = moved(worker, Way::Into).collect();
            let (into, out) = (flows.iter().sum::<u64>(), moved(worker, Way::Out).sum());
            let left = self.left[worker];
            println!("worker {worker}: {into} in, {out} out, {left} turns left some, {flows:?}");
            assert!(flows.len() >= FLOWS / 2, "both have flows of the host");
            let (least, most) = (flows.iter().min(), flows.iter().max());
            most.zip(least).is_some_and(|(most, least)| most * 100 <= least * APART_MAX)
                && (into.min(out) * 100 >= (into + out) * SLOWER_MIN || left * 2 < TURNS)
        })
    }

    /// Packets that came by the queue of another worker.
    fn handed_over(&self) -> u64 {
        self.workers.iter().map(|worker| worker.report().handed_over).sum()
    }
}

/// Returns both ends of a queue: one read takes one frame, one write sends one, neither blocks.
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
    device: [Tap; 2],
    /// Packets for each queue.
    leaving: [Burst; 2],
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
    fn new(config: &Config, device: [Tap; 2], owners: Arc<Owners>) -> Self {
        let net = config.ipv4.expect("there is IPv4");
        let mut sockets = Sockets::new(stack_of(config, &net, &device[0]));
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
            let (way, worker) = (ways[number / FLOWS], number % 2);
            let port = listeners[number / FLOWS].local_addr().expect("an address").port();
            let socket = sockets.stream(Family::V4).expect("room");
            let own = SocketAddr::new(net.address.into(), FIRST_PORT + number as u16);
            sockets.bind(socket, own).expect("a free port");
            // EINPROGRESS is expected.
            let _ = sockets.connect(socket, (net.gateway, port).into(), Instant::START);
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
            leaving: [Burst::new(), Burst::new()],
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
        for queue in device {
            loop {
                let cx = &mut Context { memory, ledger, now };
                queue.receive(&mut burst, cx).expect("it is there");
                if burst.is_empty() {
                    break;
                }
                sockets.input(&mut burst, cx);
                while sockets.next_wake().is_some() {}
            }
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
                let worker = self.owners.of_connection(peer, port);
                self.flows.push(Flow { socket, way, worker, bytes: 0 });
            }
        }
    }

    /// Sends until the stack has no more packets or a queue is full.
    fn say(&mut self, now: Instant) {
        let Self { sockets, memory, ledger, device, leaving, owners, .. } = self;
        loop {
            for (leaving, queue) in leaving.iter_mut().zip(&mut *device) {
                let cx = &mut Context { memory, ledger, now };
                queue.transmit(leaving, cx).expect("it is there");
            }
            if leaving.iter().any(|leaving| !leaving.is_empty()) {
                return;
            }
            let mut burst = Burst::new();
            sockets.output(&mut burst, &mut Context { memory, ledger, now });
            if burst.is_empty() {
                return;
            }
            while let Some(packet) = burst.pop() {
                let queue = queue_of(&packet, owners);
                leaving[queue].push(packet).expect("bursts are of one size");
            }
        }
    }
}

/// Returns the queue that a packet comes by.
fn queue_of(packet: &Packet, owners: &Owners) -> usize {
    let (address, tcp) = packet.headers()[30..].split_at(4);
    let [own, peer] = [[tcp[0], tcp[1]], [tcp[2], tcp[3]]].map(u16::from_be_bytes);
    match PORTS.iter().position(|&port| port == own) {
        None => usize::from(own % 2),
        Some(port) => {
            let address: [u8; 4] = address.try_into().expect("four");
            let owner = owners.of_connection(SocketAddr::new(address.into(), peer), own);
            if port == 0 || peer % 8 < 2 { 1 - owner } else { owner }
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
