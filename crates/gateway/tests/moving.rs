//! Flows of a real kernel that move between two workers all the time.
//!
//! The program's side is a network namespace with a TAP device; its peers listen on the loopback of
//! another namespace, where the workers run. All flows move to the second worker and back every few
//! milliseconds, with data in flight in both directions. The program must see no loss and no
//! reordering: its kernel counts both for TCP, and datagrams have numbers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::panic;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use rustix::event::{EventfdFlags, eventfd};
use towpath_gateway::config::{Config, Ipv4Config};
use towpath_gateway::report::Report;
use towpath_gateway::worker_group::WorkerGroup;
use towpath_io::tap::{Features, Tap};

/// How often all flows move.
const PERIOD: Duration = Duration::from_millis(15);
/// Connections, each of which moves this many blocks in both directions.
const CONNECTIONS: u8 = 6;
const BLOCKS: usize = 600;
const BLOCK: usize = 64 << 10;
/// Sockets for datagrams, and how many datagrams each sends and gets back.
const SOCKETS: u16 = 4;
const DATAGRAMS: u32 = 30_000;
/// Datagrams of one socket that are on their way: far fewer than any queue holds.
const WINDOW: u32 = 16;
/// Of the datagrams of the first socket, one in so many is sent in fragments.
const FRAGMENTED_EVERY: u32 = 5000;
/// Bytes of a datagram that needs fragments.
const FRAGMENTED_BYTES: usize = 4000;
/// Echo requests, one after the other.
const PINGS: &str = "200";
/// Counters of the program's kernel. The first counts segments that arrived out of order. The
/// others count selective acknowledgements, which the gateway sends when segments arrive there out
/// of order.
const REORDERING: [&str; 4] =
    ["TCPOFOQueue", "TCPSackShifted", "TCPSackMerged", "TCPSackShiftFallback"];
/// The reason under which the gateway counts segments that it has already.
const UNACCEPTABLE: &str = "tcp_unacceptable";
/// Longer than anything here takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(20);

/// Goal: flows that move lose nothing, and nothing of them is reordered, while new ones begin.
#[test]
fn flows_move_without_loss_or_reordering() {
    // Each thread gets namespaces of its own.
    let outside = thread::spawn(|| {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            eprintln!("skipped: needs root for network namespaces");
            return;
        }
        run("ip", &["link", "set", "lo", "up"]);
        let report = serve();
        // On a busy machine, ends probe for losses that did not happen (RFC 8985 §7).
        let losses: Vec<_> = report.losses().filter(|(name, _)| *name != UNACCEPTABLE).collect();
        assert!(losses.is_empty(), "{losses:?}");
        assert!(report.workers_joined > 10, "they moved {} times", report.workers_joined);
        let [first, second] = report.workers[..] else { panic!("two workers") };
        for worker in [first, second] {
            assert!(worker.bytes_in > BLOCK as u64 && worker.bytes_out > BLOCK as u64);
        }
    });
    outside.join().expect("no panic");
}

/// Runs the peers, the workers and the program; returns the counters at the end.
fn serve() -> Report {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let echo = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let gateway = Ipv4Config::default().gateway;
    let at = |to: SocketAddr| SocketAddr::new(gateway.into(), to.port());
    let tcp = at(listener.local_addr().expect("an address"));
    let udp = at(echo.local_addr().expect("an address"));
    thread::spawn(move || echo_datagrams(&echo));
    let peers = thread::spawn(move || {
        for _ in 0..CONNECTIONS {
            let (peer, _) = listener.accept().expect("a connection");
            thread::spawn(move || exchange(&peer));
        }
        // Short connections, until one says so.
        while let Ok((mut peer, _)) = listener.accept() {
            let mut byte = [0];
            if peer.read(&mut byte).expect("a byte") == 0 {
                return;
            }
            peer.write_all(&byte).expect("it is taken");
        }
    });
    let config = Config {
        host_loopback: vec![gateway.into()],
        resolvers: Some(Vec::new()),
        ipv6: None,
        workers: 2,
        ..Config::default()
    };
    let ended = eventfd(0, EventfdFlags::CLOEXEC).expect("a file");
    let (hand_over, device) = channel();
    let (its_config, its_end) = (config.clone(), ended.try_clone().expect("a descriptor"));
    let program = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("as above");
        let mut tap = Tap::create(&its_config.interface).expect("a TAP device");
        its_config.interface().configure().expect("addresses");
        tap.set_offload(Features::ALL).expect("features");
        hand_over.send(tap).expect("it waits");
        let result = panic::catch_unwind(|| be_the_program(tcp, udp));
        rustix::io::write(&its_end, &1_u64.to_ne_bytes()).expect("room");
        result.unwrap_or_else(|panic| panic::resume_unwind(panic));
    });
    let tap = device.recv().expect("a device");
    let mut workers = WorkerGroup::start(&config, tap).expect("workers");
    workers.rotate_every(PERIOD);
    workers.run_until(&[ended.as_fd()]).expect("no error");
    let result = program.join();
    println!("{}", workers.report());
    result.expect("no panic");
    workers.finish(&[], PATIENCE).expect("no error");
    peers.join().expect("no panic");
    workers.report()
}

fn be_the_program(tcp: SocketAddr, udp: SocketAddr) {
    let connections: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let peer = TcpStream::connect(tcp).expect("it listens");
            thread::spawn(move || exchange(&peer))
        })
        .collect();
    // Fragments end the moves of their flow.
    let sockets: Vec<_> = (0..SOCKETS)
        .map(|socket| thread::spawn(move || number_datagrams(udp, socket == 0)))
        .collect();
    let peer = udp.ip().to_string();
    let ping = thread::spawn(move || {
        let args = ["-q", "-i", "0.01", "-W", "20", "-c", PINGS, &peer];
        let output = Command::new("ping").args(args).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    let mut short = 0;
    while !connections.iter().all(|connection| connection.is_finished()) {
        let mut peer = TcpStream::connect(tcp).expect("it listens");
        peer.set_read_timeout(Some(PATIENCE)).expect("a setting");
        peer.write_all(&[7]).expect("it is taken");
        peer.read_exact(&mut [0]).expect("an answer");
        short += 1;
    }
    connections.into_iter().for_each(|connection| connection.join().expect("no panic"));
    sockets.into_iter().for_each(|socket| socket.join().expect("no panic"));
    TcpStream::connect(tcp).expect("it listens").shutdown(Shutdown::Write).expect("it is open");
    assert!(short > 20, "{short} short connections");
    match ping.join().expect("no panic") {
        Ok(said) => assert!(said.contains(" 0% packet loss"), "{said}"),
        Err(error) => eprintln!("skipped: ping: {error}"),
    }
    for name in REORDERING {
        assert_eq!(counter("netstat", name), 0, "{name} of the program's kernel");
    }
}

/// Sends a pattern and checks what comes back, block by block: two blocks are on their way in
/// either direction, which fit the sockets' buffers. So no end is slow, and nothing has to be sent
/// twice.
fn exchange(mut peer: &TcpStream) {
    peer.set_read_timeout(Some(PATIENCE)).expect("a setting");
    let pattern = |block: usize, at: usize| (block + at / 251 * 3 + at % 251) as u8;
    let mut block = vec![0; BLOCK];
    for number in 0..=BLOCKS {
        if number < BLOCKS {
            (0..BLOCK).for_each(|at| block[at] = pattern(number, at));
            peer.write_all(&block).expect("it is taken");
        }
        if number > 0 {
            peer.read_exact(&mut block).expect("bytes");
            let bad = (0..BLOCK).find(|at| block[*at] != pattern(number - 1, *at));
            assert_eq!(bad, None, "in block {number}");
        }
    }
    peer.shutdown(Shutdown::Write).expect("it is open");
    assert_eq!(peer.read(&mut block).expect("the end"), 0);
}

/// Sends numbered datagrams and checks that all come back, in order.
fn number_datagrams(to: SocketAddr, with_fragments: bool) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a free port");
    socket.connect(to).expect("a route");
    socket.set_read_timeout(Some(PATIENCE)).expect("a setting");
    let mut buffer = [0; 65_536];
    let (mut sent, mut received) = (0_u32, 0_u32);
    while received < DATAGRAMS {
        while sent < DATAGRAMS && sent - received < WINDOW {
            buffer[..4].copy_from_slice(&sent.to_ne_bytes());
            let is_large = with_fragments && sent % FRAGMENTED_EVERY == FRAGMENTED_EVERY / 2;
            let len = if is_large { FRAGMENTED_BYTES } else { 100 };
            socket.send(&buffer[..len]).expect("it is taken");
            sent += 1;
        }
        match socket.recv(&mut buffer) {
            Ok(_) => {
                let number = u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]);
                assert_eq!(number, received, "the next number");
                received += 1;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("after {received} datagrams: {error}"),
        }
    }
}

fn echo_datagrams(socket: &UdpSocket) {
    let mut buffer = [0; 65_536];
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(&buffer[..len], from);
    }
}

/// Returns a counter of the network namespace of this thread.
fn counter(file: &str, name: &str) -> u64 {
    let path = format!("/proc/thread-self/net/{file}");
    let text = std::fs::read_to_string(path).expect("the kernel has it");
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        if let Some(place) = names.split_whitespace().position(|one| one == name) {
            let value = values.split_whitespace().nth(place).expect("as many values as names");
            return value.parse().expect("a number");
        }
    }
    panic!("no counter {name}");
}

fn run(command: &str, args: &[&str]) {
    let status = Command::new(command).args(args).status().expect("it is there");
    assert!(status.success(), "{command} {args:?}");
}
