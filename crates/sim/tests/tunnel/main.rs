//! Super-packets in VXLAN between two kernels, through a switch: passed whole to a device that
//! accepts them, segmented for one that does not, and for a virtual machine. Each kernel has a TAP
//! device and a tunnel over it, in a network namespace of the test. If that cannot be set up, a
//! test says so and passes.

mod guest;

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use towpath_io::namespace::{Addresses, Interface};
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::tap::{Features, Tap};
use towpath_net::switch::{Config, Egress, PortConfig, PortId, Switch};
use towpath_packet::{Burst, Context, Device, GsoKind, Ledger, Memory, MemoryConfig, time};

/// Longer than a run on a busy machine, so that a test that hangs ends.
const PATIENCE: Duration = Duration::from_secs(90);
/// Bytes of a TCP stream.
const STREAM_BYTES: usize = 4 << 20;
/// A UDP super-packet, small enough for a socket's default buffer.
const DATAGRAMS: usize = 20;
const DATAGRAM_BYTES: usize = 1200;

/// The outer headers, and the receiver.
#[derive(Clone, Copy, Debug)]
struct Case {
    is_outer_v6: bool,
    has_checksum: bool,
    receiver: Features,
}

/// An address of end 1 or 2: of its TAP device, or in the tunnel.
fn address(is_inner: bool, is_v6: bool, end: u8) -> IpAddr {
    match (is_inner, is_v6) {
        (false, false) => IpAddr::from([10, 9, 8, end]),
        (false, true) => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(end)]),
        (true, false) => IpAddr::from([10, 7, 0, end]),
        (true, true) => IpAddr::from([0xfd07, 0, 0, 0, 0, 0, 0, u16::from(end)]),
    }
}

#[expect(clippy::disallowed_methods, reason = "tests bound how long they wait")]
fn now() -> Instant {
    Instant::now()
}

fn retry<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = now() + PATIENCE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(now() < end, "no {what} in {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs `ip` in the namespace of this thread. False if it fails.
fn ip(arguments: &str) -> bool {
    let run = Command::new("ip").args(arguments.split_whitespace()).status();
    run.is_ok_and(|status| status.success())
}

/// Makes a namespace for this thread, with a TAP device and a tunnel to the other end over it.
fn enter(end: u8, features: Features, case: Case) -> Result<Tap, String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("no network namespace: {errno}"))?;
    let mut tap = Tap::create("tap0").map_err(|error| error.to_string())?;
    let agreed = tap.set_offload(features).expect("features");
    if agreed != features {
        return Err(format!("this kernel's TAP devices have {agreed} of {features}"));
    }
    let network = |is_v6, prefix_len| {
        let (address, gateway) = (address(false, is_v6, end), address(false, is_v6, 3 - end));
        Some(Addresses { address, prefix_len, gateway })
    };
    let interface = Interface {
        name: "tap0".to_owned(),
        mtu: 1500,
        tx_queue_len: 1000,
        mac: [2, 0, 0, 0, 0, end],
        ipv4: network(false, 24),
        ipv6: network(true, 64),
        further: Vec::new(),
        routes: Vec::new(),
    };
    interface.configure().expect("addresses");
    let checksum = match (case.is_outer_v6, case.has_checksum) {
        (false, true) => "udpcsum",
        (false, false) => "noudpcsum",
        (true, true) => "noudp6zerocsumtx noudp6zerocsumrx",
        (true, false) => "udp6zerocsumtx udp6zerocsumrx",
    };
    let [local, remote] = [end, 3 - end].map(|end| address(false, case.is_outer_v6, end));
    let link = "link add vx0 type vxlan id 42 dstport 4789 dev tap0";
    if !ip(&format!("{link} local {local} remote {remote} {checksum}")) {
        return Err("this kernel has no VXLAN, or there is no ip".to_owned());
    }
    assert!(ip(&format!("address add {}/24 dev vx0", address(true, false, end))));
    assert!(ip(&format!("address add {}/64 dev vx0 nodad", address(true, true, end))));
    assert!(ip("link set vx0 up"));
    Ok(tap)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}

/// Sends a stream over each version of IP, and a UDP super-packet until all of it has arrived.
fn send(is_over: &AtomicBool) {
    for is_v6 in [false, true] {
        let to = SocketAddr::new(address(true, is_v6, 2), 5000);
        let mut stream = retry("connection", || TcpStream::connect(to).ok());
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(&pattern(STREAM_BYTES)).expect("sent");
        stream.read_exact(&mut [0; 1]).expect("an answer");
    }
    for is_v6 in [false, true] {
        let [own, other] = [1, 2].map(|end| SocketAddr::new(address(true, is_v6, end), 5001));
        let socket = UdpSocket::bind(own).expect("bound");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        setsockopt(&socket, UdpGsoSegment, &(DATAGRAM_BYTES as i32)).expect("UDP_SEGMENT");
        retry("datagrams", || {
            // Fails while the neighbour is not known.
            let _ = socket.send_to(&pattern(DATAGRAMS * DATAGRAM_BYTES), other);
            socket.recv(&mut [0; 1]).ok()
        });
    }
    is_over.store(true, Ordering::Release);
}

/// Receives what [`send`] sends: compares every byte, and checks that no kernel has seen a wrong
/// checksum.
fn receive(is_over: &AtomicBool) {
    for is_v6 in [false, true] {
        let at = SocketAddr::new(address(true, is_v6, 2), 5000);
        let listener = TcpListener::bind(at).expect("bound");
        listener.set_nonblocking(true).expect("a socket");
        let (mut stream, _) = retry("newcomer", || listener.accept().ok());
        stream.set_nonblocking(false).expect("a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut bytes = vec![0; STREAM_BYTES];
        stream.read_exact(&mut bytes).expect("received");
        assert!(bytes == pattern(STREAM_BYTES), "the stream's bytes");
        stream.write_all(&[1]).expect("sent");
    }
    let whole = pattern(DATAGRAMS * DATAGRAM_BYTES);
    let expected: Vec<&[u8]> = whole.chunks(DATAGRAM_BYTES).collect();
    let sockets = [false, true].map(|is_v6| {
        let socket = UdpSocket::bind((address(true, is_v6, 2), 5001)).expect("bound");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
        (socket, BTreeSet::new())
    });
    let mut sockets = sockets;
    retry("end", || {
        for (socket, seen) in &mut sockets {
            let mut bytes = [0; 2 * DATAGRAM_BYTES];
            loop {
                match socket.recv_from(&mut bytes) {
                    Ok((len, from)) => {
                        let place = expected.iter().position(|part| *part == &bytes[..len]);
                        seen.insert(place.expect("a datagram that was sent"));
                        if seen.len() == DATAGRAMS {
                            socket.send_to(&[1], from).expect("sent");
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        is_over.load(Ordering::Acquire).then_some(())
    });
    assert_eq!(checksum_errors(), 0, "wrong checksums");
}

/// Wrong TCP and UDP checksums that the kernel has counted in the namespace of this thread.
fn checksum_errors() -> u64 {
    let v4 = fs::read_to_string("/proc/thread-self/net/snmp").expect("counters");
    let lines: Vec<&str> = v4.lines().collect();
    let mut sum = 0;
    for pair in lines.chunks(2) {
        let [names, values] = pair else { panic!("names and values: {pair:?}") };
        let columns = names.split_whitespace().zip(values.split_whitespace());
        let errors = columns.filter(|(name, _)| *name == "InCsumErrors");
        sum += errors.map(|(_, value)| value.parse::<u64>().expect("a number")).sum::<u64>();
    }
    let v6 = fs::read_to_string("/proc/thread-self/net/snmp6").expect("counters");
    let errors = v6.lines().filter(|line| line.contains("InCsumErrors"));
    let count = |line: &str| line.split_whitespace().last()?.parse::<u64>().ok();
    sum + errors.map(|line| count(line).expect("a number")).sum::<u64>()
}

/// Super-packets that the switch has handled.
#[derive(Default)]
struct Seen {
    /// Kinds of super-packets in tunnels that the sender sent.
    kinds: BTreeSet<&'static str>,
    /// Super-packets in tunnels that the receiver got.
    whole: u64,
    /// Super-packets that were segmented for the receiver.
    cut: u64,
}

/// Memory without packets and frames: a device that transmits needs none.
fn no_memory() -> Memory {
    Memory::new(MemoryConfig { packets: 0, small_frames: 0, large_frames: 0 })
}

/// The time of a device for which nothing is due.
fn cx<'a>(memory: &'a mut Memory, ledger: &'a Ledger) -> Context<'a> {
    Context { memory, ledger, now: time::Instant::START }
}

struct Devices {
    taps: [Tap; 2],
    whole: u64,
}

impl Egress for Devices {
    fn transmit(&mut self, port: PortId, burst: &mut Burst, cx: &mut Context<'_>) {
        let in_tunnels = |burst: &Burst| {
            let gso = burst.iter().filter_map(|packet| packet.offload().gso);
            gso.filter(|gso| gso.tunnel.is_some()).count() as u64
        };
        if port.index() == 1 {
            self.whole += in_tunnels(burst);
        }
        self.taps[port.index()].transmit(burst, cx).expect("the device is fine");
    }
}

/// Forwards between the devices until `is_over`.
fn forward(taps: [Tap; 2], is_over: impl Fn() -> bool) -> Seen {
    let config = MemoryConfig { packets: 2048, small_frames: 512, large_frames: 512 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    let mut switch = Switch::new(Config::default());
    let ports =
        [0, 1].map(|at: usize| switch.add_port(PortConfig::new(taps[at].caps())).expect("room"));
    let mut reactor = Reactor::new().expect("epoll");
    for (token, tap) in (0..).zip(&taps) {
        reactor.add(tap, token, Interest::READ, false).expect("added");
    }
    let mut devices = Devices { taps, whole: 0 };
    let mut seen = Seen::default();
    let (mut events, mut burst) = (Events::new(), Burst::new());
    let begin = now();
    while !is_over() {
        reactor.wait(Some(Duration::from_millis(20)), &mut events).expect("waited");
        for event in events.iter() {
            let from = event.token as usize;
            let tap = &mut devices.taps[from];
            tap.receive(&mut burst, &mut cx(&mut memory, &ledger)).expect("received");
            let gso = burst.iter().filter_map(|packet| packet.offload().gso);
            for gso in gso.filter(|gso| from == 0 && gso.tunnel.is_some()) {
                seen.kinds.insert(match gso.kind {
                    GsoKind::Tcp4 => "TCP over IPv4",
                    GsoKind::Tcp6 => "TCP over IPv6",
                    GsoKind::Udp => "UDP",
                });
            }
            let now = time::Instant::START + begin.elapsed();
            let mut cx = Context { memory: &mut memory, ledger: &ledger, now };
            switch.forward(ports[from], &mut burst, &mut cx, &mut devices);
        }
    }
    for (port, tap) in ports.into_iter().zip(&devices.taps) {
        let counters = switch.counters_of(port).expect("it is there");
        let drops: Vec<_> = counters.drops().collect();
        println!("{port:?}: {drops:?}, {:?}", tap.counters());
        assert_eq!(tap.counters().transmit_refused, 0, "packets that the kernel refuses");
        assert_eq!(tap.counters().receive_dropped(), 0);
        assert_eq!(counters.dropped(towpath_net::counters::PortDrop::OffloadMalformed), 0);
        seen.cut += counters.cut;
    }
    seen.whole = devices.whole;
    seen
}

/// Sets a flag when dropped, also when a test fails, so that other threads do not wait for it.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs both ends. `None`, with a message, if they cannot be set up.
fn run(case: Case) -> Option<Seen> {
    let is_over = AtomicBool::new(false);
    let ended = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        let (sender, taps) = mpsc::channel();
        let ends = [(1, Features::WITH_TUNNELS), (2, case.receiver)];
        let mut go = Vec::new();
        for ((end, features), ended) in ends.into_iter().zip(&ended) {
            let (sender, is_over) = (sender.clone(), &is_over);
            let (start, started) = mpsc::channel::<()>();
            go.push(start);
            scope.spawn(move || {
                let _raise = Raise(ended);
                let entered = enter(end, features, case);
                let tap = entered.map(|tap| (tap.features(), tap.into_fd()));
                sender.send((end, tap)).expect("somebody forwards");
                match (started.recv(), end) {
                    (Ok(()), 1) => send(is_over),
                    (Ok(()), _) => receive(is_over),
                    (Err(_), _) => {}
                }
            });
        }
        drop(sender);
        let mut taps: Vec<_> = taps.iter().take(2).collect();
        taps.sort_by_key(|(end, _)| *end);
        let made: Result<Vec<Tap>, String> = taps
            .into_iter()
            .map(|(_, tap)| tap.map(|(features, fd)| Tap::from_fd(fd, features, 1500)))
            .collect();
        let Ok(taps) = made.map_err(|reason| println!("skipped: {reason}")) else { return None };
        let taps = <[Tap; 2]>::try_from(taps).ok().expect("two of them");
        go.iter().for_each(|start| start.send(()).expect("it waits"));
        Some(forward(taps, || ended.iter().all(|ended| ended.load(Ordering::Acquire))))
    })
}

/// Goal: for TCP and UDP over both versions of IP, in VXLAN over both, with and without an outer
/// checksum, every byte arrives unchanged and every checksum is correct, whether super-packets pass
/// whole, are segmented with inner checksums left to the kernel, or are segmented and completed.
/// Method: the kernels send, receive and count.
#[test]
fn super_packets_in_vxlan_reach_the_kernel() {
    let receivers =
        [Features::WITH_TUNNELS, Features { checksum: true, ..Features::NONE }, Features::NONE];
    for receiver in receivers {
        for (is_outer_v6, has_checksum) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let case = Case { is_outer_v6, has_checksum, receiver };
            let Some(seen) = run(case) else { return };
            println!("{case:?}: {:?}, {} whole, {} cut", seen.kinds, seen.whole, seen.cut);
            assert_eq!(seen.kinds.len(), 3, "super-packets in tunnels: {:?}", seen.kinds);
            if receiver.tunnel {
                assert!(seen.whole > 0 && seen.cut == 0, "passed whole");
            } else {
                assert!(seen.whole == 0 && seen.cut > 0, "cut");
            }
        }
    }
}
