//! Fair shares of the worker's thread while every flow has more to move than it can. The test
//! counts turns and uses no clock.
//!
//! The program is a stack in place of a TAP device; its peers are sockets on the host's loopback.
//! Everything runs on one thread: the program and the peers proceed when the worker gives the
//! device its turn.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::Failed;
use rustix::event::{EventfdFlags, eventfd};
use towpath_gateway::config::{Config, Ipv4Config};
use towpath_gateway::report::Report;
use towpath_gateway::worker::{Inside, Worker};
use towpath_net::fragment::into_received;
use towpath_net::socket::{Error, Family, SendFlags, SocketId, Sockets};
use towpath_net::stack::{self, Address, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Context, Device, Input, Ledger, Memory, MemoryConfig};

use crate::random::Random;
use crate::sys;

/// Name of the test.
pub(super) const NAME: &str = "flows_and_directions_have_their_shares";

/// Flows in each direction.
const FLOWS: usize = 8;
/// Bytes that each flow moves before the count begins: windows are open by then.
const WARM_UP: u64 = 8 << 20;
/// Turns within which windows must open. `TURNS` are counted: forty rounds of all flows if each
/// takes a whole turn.
const WARM_UP_TURNS_MAX: u32 = 20_000;
const TURNS: u32 = 40 * FLOWS as u32;
/// Most bytes of a host's flow, in percent of the smallest.
const FLOWS_APART_MAX: u64 = 150;
/// Least share of the slower direction, in percent of both.
const SLOWER_MIN: u64 = 40;
/// Bytes of a call.
const CHUNK: usize = 64 << 10;
const MEMORY_BYTES: usize = 128 << 20;
/// The kernel's buffers for each flow from the beginning. They hold enough for many turns, so it
/// does not matter when the kernel moves bytes from one socket to the other.
const BUFFERS: &str = "4194304 8388608 8388608";

/// Goal: eight flows in each direction always have more to move. The slower direction gets two
/// fifths of the bytes, and no flow of the host gets half as much again as another, whatever the
/// order in which their peers write.
pub(super) fn run(seed: u64) -> Result<(), Failed> {
    sys::enter_network()?;
    let output = Command::new("ip").args(["link", "set", "lo", "up"]).output()?;
    assert!(output.status.success(), "the loopback is up");
    for name in ["tcp_rmem", "tcp_wmem"] {
        std::fs::write(format!("/proc/sys/net/ipv4/{name}"), BUFFERS)?;
    }
    let config = Config {
        host_loopback: vec![Ipv4Config::default().gateway.into()],
        ipv6: None,
        resolvers: Some(Vec::new()),
        ..Config::default()
    };
    let program = Program::new(&config, seed)?;
    let ready = program.events.try_clone()?;
    let mut worker = Worker::serving(&config, program, Arc::default())?;
    // It is always readable, so each call is one turn.
    let mut turn = || -> Result<(Vec<u64>, Vec<u64>), Failed> {
        worker.run_until(&[ready.as_fd()])?;
        Ok((worker.inside().came_in.clone(), worker.inside().went_out.clone()))
    };
    let mut turns = 0;
    let is_warm = |moved: &[u64]| moved.len() == FLOWS && moved.iter().all(|&n| n >= WARM_UP);
    let before = loop {
        let (into, out) = turn()?;
        if is_warm(&into) && is_warm(&out) {
            break (into, out);
        }
        turns += 1;
        assert!(turns < WARM_UP_TURNS_MAX, "windows do not open: {into:?} in, {out:?} out");
    };
    for _ in 1..TURNS {
        turn()?;
    }
    let after = turn()?;
    let moved = |after: Vec<u64>, before: Vec<u64>| -> Vec<u64> {
        after.iter().zip(before).map(|(after, before)| after - before).collect()
    };
    let (into, out) = (moved(after.0, before.0), moved(after.1, before.1));
    println!("--- {NAME}: {into:?} in, {out:?} out, {turns} turns before");
    let (least, most) = (into.iter().min(), into.iter().max());
    assert!(most.zip(least).is_some_and(|(most, least)| most * 100 <= least * FLOWS_APART_MAX));
    let (into, out): (u64, u64) = (into.iter().sum(), out.iter().sum());
    assert!(into.min(out) * 100 >= (into + out) * SLOWER_MIN, "{into} in, {out} out");
    Ok(())
}

/// The inside of the gateway, and the peers on the host.
struct Program {
    sockets: Sockets,
    memory: Memory,
    ledger: Ledger,
    sent: Burst,
    receiving: Vec<SocketId>,
    sending: Vec<SocketId>,
    /// Listeners of the flows that receive, and of those that send.
    listeners: [TcpListener; 2],
    writers: Vec<TcpStream>,
    readers: Vec<TcpStream>,
    /// Bytes that arrived, by flow.
    came_in: Vec<u64>,
    went_out: Vec<u64>,
    random: Random,
    buffer: Vec<u8>,
    /// Always readable.
    events: OwnedFd,
}

impl Program {
    fn new(config: &Config, seed: u64) -> Result<Self, Failed> {
        let events = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let net = config.ipv4.expect("there is IPv4");
        let listener = || -> io::Result<TcpListener> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listeners = [listener()?, listener()?];
        let mut sockets = Sockets::new(stack_of(config, &net));
        let mut connect = |listener: &TcpListener| -> Result<Vec<SocketId>, Failed> {
            let to = SocketAddr::new(net.gateway.into(), listener.local_addr()?.port());
            let begin = |_| {
                let stream = sockets.stream(Family::V4).expect("there is room");
                let begun = sockets.connect(stream, to, Instant::START);
                assert!(matches!(begun, Ok(()) | Err(Error::InProgress)), "{begun:?}");
                stream
            };
            Ok((0..FLOWS).map(begin).collect())
        };
        let (receiving, sending) = (connect(&listeners[0])?, connect(&listeners[1])?);
        Ok(Self {
            sockets,
            memory: Memory::new(MemoryConfig::within(MEMORY_BYTES)),
            ledger: Ledger::new(),
            sent: Burst::new(),
            receiving,
            sending,
            listeners,
            writers: Vec::new(),
            readers: Vec::new(),
            came_in: vec![0; FLOWS],
            went_out: Vec::new(),
            random: Random::new(seed),
            buffer: vec![0x5a; CHUNK],
            events,
        })
    }

    /// Lets the program and the peers proceed as far as they can.
    fn go_on(&mut self, now: Instant) -> io::Result<()> {
        for (listener, peers) in self.listeners.iter().zip([&mut self.writers, &mut self.readers]) {
            while let Ok((peer, _)) = listener.accept() {
                peer.set_nonblocking(true)?;
                peers.push(peer);
            }
        }
        self.went_out.resize(self.readers.len(), 0);
        for (reader, count) in self.readers.iter_mut().zip(&mut self.went_out) {
            while let Some(read) = done(reader.read(&mut self.buffer))? {
                *count += read as u64;
            }
        }
        for (&stream, count) in self.receiving.iter().zip(&mut self.came_in) {
            while let Ok(read @ 1..) = self.sockets.discard(stream, usize::MAX, now) {
                *count += read as u64;
            }
        }
        for index in self.order() {
            let Some(mut writer) = self.writers.get(index) else { continue };
            while done(writer.write(&self.buffer))?.is_some() {}
        }
        for index in self.order() {
            let Self { sockets, memory, ledger, sending, buffer, .. } = self;
            let mut cx = Context { memory, ledger, now };
            while sockets.send(sending[index], &[buffer], SendFlags::default(), &mut cx).is_ok() {}
        }
        Ok(())
    }

    /// Returns the flows in random order.
    fn order(&mut self) -> [usize; FLOWS] {
        let mut order = std::array::from_fn(|index| index);
        for end in (2..=FLOWS).rev() {
            order.swap(end - 1, self.random.below(end));
        }
        order
    }
}

/// Returns the bytes moved; `None` if the socket would block.
fn done(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok((count > 0).then_some(count)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

impl Inside for Program {
    fn add_to(&self, _: &mut Report) {}
}

impl Device for Program {
    type Error = io::Error;

    fn caps(&self) -> Caps {
        able()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.sockets.stack().next_deadline()
    }

    fn turn(&mut self, _: bool, cx: &mut Context<'_>) -> io::Result<()> {
        let now = cx.now;
        if self.next_deadline().is_some_and(|at| at <= now) {
            let Self { sockets, memory, ledger, .. } = self;
            sockets.on_deadline(&mut Context { memory, ledger, now });
        }
        self.go_on(now)
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> io::Result<Input> {
        let Self { sockets, memory, ledger, sent, .. } = self;
        while !burst.is_full() {
            if sent.is_empty() {
                sockets.output(sent, &mut Context { memory, ledger, now: cx.now });
            }
            let Some(packet) = sent.pop() else { break };
            let packet = into_received(packet, memory).map_err(|_| ErrorKind::OutOfMemory)?;
            assert!(burst.push(packet).is_ok(), "it was not full");
        }
        Ok(Input::Done)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> io::Result<()> {
        let Self { sockets, memory, ledger, .. } = self;
        let mut arrived = Burst::new();
        while let Some(packet) = burst.pop() {
            let packet = into_received(packet, memory).map_err(|_| ErrorKind::OutOfMemory)?;
            assert!(arrived.push(packet).is_ok(), "bursts are of one size");
        }
        sockets.input(&mut arrived, &mut Context { memory, ledger, now: cx.now });
        while sockets.next_wake().is_some() {}
        Ok(())
    }
}

fn stack_of(config: &Config, net: &Ipv4Config) -> Stack {
    let gateway = IpAddr::V4(net.gateway);
    let own = stack::Config {
        mac: MacAddr(config.program_mac),
        addresses: vec![Address { address: net.address.into(), prefix_len: net.prefix_len }],
        next_hops: vec![gateway],
        transparent: false,
        secret: [1, 2],
        tcp: Settings::default(),
        limits: Limits::default(),
    };
    let mut stack = Stack::new(own, able());
    stack.set_neighbor(gateway, MacAddr(config.gateway_mac));
    stack
}

/// Returns the caps of a device with all offloads.
fn able() -> Caps {
    Caps { checksum: true, tso4: true, gso_bytes_max: 65_535 + 14, ..Caps::plain(1500) }
}
