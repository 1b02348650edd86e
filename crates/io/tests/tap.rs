//! TAP devices against the kernel: super-packets both ways, short memory, refusals, self-test.
//!
//! Each test runs on a thread of its own in a network namespace of its own; what has two ends joins
//! two namespaces by forwarding packets between two TAP devices. Without the privilege to make
//! namespaces a test says so and passes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use towpath_io::namespace::{Addresses, Interface};
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::receive::ReceiveBuffer;
use towpath_io::socket::{Datagram, PingKind, PingSocket, Sent, UdpSocket};
use towpath_io::tap::{
    FRAME_BYTES_MAX, Features, REFUSALS_MAX, Report, SelfTest, Tap, TapError, self_test,
};
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use towpath_packet::{
    Burst, Checksum, Device, Gso, GsoKind, Memory, MemoryConfig, Offload, Packet, Piece,
};

/// Longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(20);
const TICK: Option<Duration> = Some(Duration::from_millis(20));

// --- namespaces ------------------------------------------------------------------------------

/// One end of a test network: a TAP device in a namespace, and addresses on both sides of it.
#[derive(Clone, Copy)]
struct End {
    host: u8,
    other: u8,
    mtu: u16,
}

impl End {
    fn mac(host: u8) -> [u8; 6] {
        [0x02, 0, 0, 0, 0, host]
    }

    fn v4(host: u8) -> IpAddr {
        IpAddr::from([10, 9, 8, host])
    }

    fn v6(host: u8) -> IpAddr {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)])
    }

    fn interface(&self) -> Interface {
        let network =
            |address: IpAddr, prefix_len, gateway| Addresses { address, prefix_len, gateway };
        Interface {
            name: "tap0".to_owned(),
            mtu: self.mtu,
            tx_queue_len: 1000,
            mac: Self::mac(self.host),
            ipv4: Some(network(Self::v4(self.host), 24, Self::v4(self.other))),
            ipv6: Some(network(Self::v6(self.host), 64, Self::v6(self.other))),
        }
    }

    fn self_test(&self) -> SelfTest {
        let v4 = |host| match Self::v4(host) {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        };
        let v6 = |host| match Self::v6(host) {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        };
        SelfTest {
            program_mac: Self::mac(self.host),
            gateway_mac: Self::mac(self.other),
            program_v4: v4(self.host),
            program_v6: v6(self.host),
            gateway_v4: v4(self.other),
            gateway_v6: v6(self.other),
            mtu: self.mtu,
        }
    }

    /// A device of this end, up and with addresses, in the namespace of this thread.
    fn tap(&self, wanted: Features) -> Tap {
        let mut tap = Tap::create("tap0").expect("a TAP device");
        tap.set_offload(wanted).expect("features");
        tap.set_mtu(self.mtu);
        self.interface().configure().expect("addresses");
        tap
    }
}

const ONE: End = End { host: 1, other: 2, mtu: 1500 };
const TWO: End = End { host: 2, other: 1, mtu: 1500 };

/// Moves this thread into a fresh network namespace; false, with a message, if it may not.
fn enter_namespace() -> bool {
    // SAFETY: a network namespace shares no file descriptors and no memory.
    match unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        Ok(()) => {}
        Err(errno) => {
            println!("skipped: no network namespace: {errno}");
            return false;
        }
    }
    if let Err(error @ (TapError::NoDevice | TapError::DeviceForbidden)) = Tap::create("probe") {
        println!("skipped: {error}");
        return false;
    }
    true
}

/// Runs `body` on a thread in a namespace of its own.
fn isolated(body: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let run = || {
            if enter_namespace() {
                body();
            }
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// What a pair of ends forwarded.
struct Forwarded {
    memory: Memory,
    taps: [Tap; 2],
    /// Longest frame, and the piece lengths of it.
    longest: Vec<usize>,
}

/// Runs `one` and `two` in two namespaces and forwards between them until both are done.
fn joined(
    features: Features,
    one: impl FnOnce() + Send,
    two: impl FnOnce() + Send,
) -> Option<Forwarded> {
    let done = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        let (sender, taps) = mpsc::channel();
        let bodies: [Box<dyn FnOnce() + Send>; 2] = [Box::new(one), Box::new(two)];
        let mut threads = Vec::new();
        for ((body, end), done) in bodies.into_iter().zip([ONE, TWO]).zip(&done) {
            let sender = sender.clone();
            threads.push(scope.spawn(move || {
                if enter_namespace() {
                    let tap = end.tap(features);
                    let features = tap.features();
                    sender.send((end.host, tap.into_fd(), features)).expect("somebody forwards");
                    drop(sender);
                    let _raise = Raise(done);
                    body();
                }
            }));
        }
        drop(sender);
        let mut taps: Vec<(u8, OwnedFd, Features)> = taps.iter().take(2).collect();
        taps.sort_by_key(|(host, ..)| *host);
        let taps = taps.into_iter().map(|(_, fd, features)| Tap::from_fd(fd, features, 1500));
        let forwarded = match <[Tap; 2]>::try_from(taps.collect::<Vec<_>>()) {
            Ok(taps) => Some(forward(taps, &done)),
            Err(_) => None,
        };
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        forwarded
    })
}

/// Raises a flag when dropped: also when a test fails, so that nobody waits for it.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn forward(mut taps: [Tap; 2], done: &[AtomicBool; 2]) -> Forwarded {
    let config = MemoryConfig { packets: 512, small_frames: 512, large_frames: 512 };
    let mut memory = Memory::new(config);
    let mut reactor = Reactor::new().expect("epoll");
    for (token, tap) in taps.iter().enumerate() {
        reactor.add(tap, token as u64, Interest::READ, false).expect("add");
    }
    let (mut events, mut burst) = (Events::new(), Burst::new());
    let mut longest: Vec<usize> = Vec::new();
    // Acquire: pairs with the Release in `Raise::drop`.
    while !done.iter().all(|done| done.load(Ordering::Acquire)) {
        reactor.wait(TICK, &mut events).expect("wait");
        for event in events.iter() {
            let from = event.token as usize;
            taps[from].receive(&mut memory, &mut burst).expect("received");
            for packet in burst.iter() {
                if packet.len() > longest.iter().sum() {
                    longest = packet.pieces().map(Piece::len).collect();
                }
            }
            taps[1 - from].transmit(&mut burst).expect("sent");
            burst.clear();
        }
    }
    Forwarded { memory, taps, longest }
}

impl Forwarded {
    /// Goal shared by all tests with two ends: nothing dropped on the way, no frame lost.
    fn finish(mut self) {
        for tap in &mut self.taps {
            assert_eq!(tap.counters().receive_dropped(), 0);
            assert_eq!(tap.counters().transmit_dropped(), 0);
            assert_eq!(tap.withdrawn(), Features::NONE);
            tap.release_frames();
        }
        let Memory { packets, small, large } = &self.memory;
        assert_eq!((packets.out_count(), small.out_count(), large.out_count()), (0, 0, 0));
    }
}

// --- small things ------------------------------------------------------------------------------

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "tests bound how long they wait")]
    Instant::now()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
}

fn retry<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = now() + PATIENCE;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(now() < end, "gave up after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn ready(fd: BorrowedFd<'_>) {
    let mut reactor = Reactor::new().expect("epoll");
    reactor.add(fd, 0, Interest::READ, false).expect("add");
    let mut events = Events::new();
    reactor.wait(Some(PATIENCE), &mut events).expect("wait");
    assert!(!events.is_empty(), "nothing to read");
}

fn pieces(memory: &mut Memory, bytes: &[u8]) -> Vec<Piece> {
    let piece = |part: &[u8]| {
        let mut frame = memory.large.take().expect("free");
        frame[..part.len()].copy_from_slice(part);
        frame.freeze(part.len())
    };
    bytes.chunks(LARGE_FRAME_BYTES).map(piece).collect()
}

fn memory(packets: usize, small_frames: usize, large_frames: usize) -> Memory {
    Memory::new(MemoryConfig { packets, small_frames, large_frames })
}

/// Sends a datagram out of the namespace of this thread to everybody: needs no neighbour.
fn broadcast(socket: &std::net::UdpSocket, payload: &[u8]) {
    // An address, not a text: resolving a text allocates.
    let everybody = SocketAddr::from(([10, 9, 8, 255], 4000));
    socket.send_to(payload, everybody).expect("sent");
}

fn broadcaster() -> std::net::UdpSocket {
    broadcaster_at(4000)
}

fn broadcaster_at(port: u16) -> std::net::UdpSocket {
    let socket = std::net::UdpSocket::bind(("10.9.8.1", port)).expect("bound");
    socket.set_broadcast(true).expect("a datagram socket");
    socket
}

/// Receives until a UDP packet to port 4000 comes; other packets are dropped.
fn receive_datagram(tap: &mut Tap, memory: &mut Memory) -> Option<Packet> {
    let mut burst = Burst::new();
    tap.receive(memory, &mut burst).expect("received");
    let mut found = None;
    while let Some(mut packet) = burst.pop() {
        if packet.peek_headers().get(36..38) == Some(&4000u16.to_be_bytes()) {
            found = Some(packet);
        }
    }
    found
}

// --- tests ---------------------------------------------------------------------------------------

/// Goal: TCP super-packets of 64 KiB cross two devices whole: large as the kernel makes them, in a
/// small frame and large ones, and every byte intact.
#[test]
fn tcp_super_packets_cross_two_devices() {
    const BYTES: usize = 256 << 20;
    for host in [End::v4(2), End::v6(2)] {
        let server = move || {
            let listener = TcpListener::bind((host, 5000)).expect("bound");
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            let expected = pattern(1 << 20);
            let mut buffer = vec![0; 1 << 20];
            let begin = now();
            for _ in 0..BYTES >> 20 {
                stream.read_exact(&mut buffer).expect("received");
                assert!(buffer == expected);
            }
            let rate = BYTES as f64 / begin.elapsed().as_secs_f64() / 1e9;
            println!("{host}: {rate:.2} GB/s through two devices");
            stream.write_all(b"done").expect("sent");
        };
        let client = move || {
            let mut stream = retry(|| TcpStream::connect((host, 5000)).ok());
            let payload = pattern(1 << 20);
            for _ in 0..BYTES >> 20 {
                stream.write_all(&payload).expect("sent");
            }
            let mut end = [0; 4];
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.read_exact(&mut end).expect("received");
        };
        let Some(forwarded) = joined(Features::ALL, client, server) else { return };
        let counters = *forwarded.taps[0].counters();
        println!("{counters:?}");
        assert!(counters.received.super_packets > 1000);
        let longest = &forwarded.longest;
        assert!(longest.iter().sum::<usize>() > 60_000, "{longest:?}");
        assert_eq!(
            longest[..4],
            [SMALL_FRAME_BYTES, LARGE_FRAME_BYTES, LARGE_FRAME_BYTES, LARGE_FRAME_BYTES]
        );
        forwarded.finish();
    }
}

/// Goal: a UDP super-packet sent in one namespace is received as one in the other.
#[test]
fn udp_super_packets_cross_two_devices() {
    const ROUNDS: usize = 50;
    for (own, other) in [(End::v4(1), End::v4(2)), (End::v6(1), End::v6(2))] {
        let payload = pattern(1400 * 44);
        let size = NonZeroU16::new(1400);
        let (to_client, from_server) = mpsc::channel::<()>();
        let server = {
            let payload = payload.clone();
            move || {
                let mut memory = memory(1, 8, 32);
                let mut buffer = ReceiveBuffer::new();
                let socket = UdpSocket::bind(SocketAddr::new(other, 5001), None).expect("bound");
                let mut wholes = 0;
                for _ in 0..ROUNDS {
                    to_client.send(()).expect("the client waits");
                    let mut bytes = Vec::new();
                    while bytes.len() < payload.len() {
                        ready(socket.as_fd());
                        let give = |datagram: Datagram| {
                            assert_eq!(datagram.from, SocketAddr::new(own, 5002));
                            wholes += usize::from(datagram.len == payload.len());
                            for piece in datagram.pieces {
                                bytes.extend_from_slice(piece.bytes().expect("private"));
                            }
                        };
                        socket.receive(&mut buffer, &mut memory, 64, give).expect("received");
                    }
                    assert!(bytes == payload);
                }
                assert_eq!(wholes, ROUNDS);
            }
        };
        let client = move || {
            let mut memory = memory(1, 1, 8);
            let socket = UdpSocket::bind(SocketAddr::new(own, 5002), None).expect("bound");
            let pieces = pieces(&mut memory, &payload);
            for _ in 0..ROUNDS {
                if from_server.recv_timeout(PATIENCE).is_err() {
                    return;
                }
                let to = Some(SocketAddr::new(other, 5001));
                let sent = socket.send_to(to, pieces.iter(), size).expect("sent");
                assert_eq!(sent, Sent::Whole);
            }
        };
        let Some(forwarded) = joined(Features::ALL, client, server) else { return };
        assert_eq!(forwarded.taps[0].counters().received.super_packets as usize, ROUNDS);
        assert_eq!(forwarded.taps[1].counters().transmitted.super_packets as usize, ROUNDS);
        forwarded.finish();
    }
}

/// Goal: without features the kernel segments and sums for us, and nothing larger than the MTU
/// comes.
#[test]
fn without_features_packets_are_plain() {
    isolated(|| {
        let mut tap = ONE.tap(Features::NONE);
        assert_eq!(tap.caps(), towpath_packet::Caps::plain(1500));
        let mut memory = memory(64, 64, 16);
        let socket = broadcaster();
        broadcast(&socket, &[1; 1000]);
        let packet = receive_datagram(&mut tap, &mut memory).expect("a datagram");
        assert_eq!(*packet.offload(), Offload::default());
    });
}

/// Goal: a small packet takes a small frame and no large one.
#[test]
fn a_small_packet_takes_a_small_frame() {
    isolated(|| {
        let mut tap = ONE.tap(Features::ALL);
        let mut memory = memory(64, 64, 16);
        let socket = broadcaster();
        for _ in 0..10 {
            broadcast(&socket, &[1; 1400]);
            let packet = receive_datagram(&mut tap, &mut memory).expect("a datagram");
            assert_eq!((packet.piece_count(), packet.len()), (1, 1442));
            let held: usize = packet.pieces().map(Piece::held).sum();
            assert_eq!(held, SMALL_FRAME_BYTES);
            assert_eq!(packet.offload().checksum, Checksum::Partial { start: 34, offset: 6 });
        }
        // The read that found nothing keeps one small frame and four large ones for the next.
        assert_eq!((memory.small.out_count(), memory.large.out_count()), (1, 4));
        tap.release_frames();
        assert_eq!((memory.small.out_count(), memory.large.out_count()), (0, 0));
    });
}

/// Goal: when frames are short, a packet is dropped and counted, never cut, and smaller ones still
/// come; with no memory at all nothing is read and nothing is lost.
#[test]
fn short_memory_drops_whole_packets() {
    isolated(|| {
        let end = End { mtu: 65_520, ..ONE };
        let mut tap = end.tap(Features::ALL);
        let mut tight = memory(8, 8, 1);
        let socket = broadcaster();
        let fits = SMALL_FRAME_BYTES + LARGE_FRAME_BYTES - 42;
        let sizes = [100, fits, fits + 1, 60_000, 65_400, 101];
        let got: Vec<_> = sizes
            .iter()
            .map(|&size| {
                broadcast(&socket, &pattern(size));
                let packet = receive_datagram(&mut tap, &mut tight)?;
                let bytes: Vec<u8> = packet
                    .pieces()
                    .flat_map(|piece| piece.bytes().expect("private"))
                    .copied()
                    .collect();
                assert!(bytes[42..] == pattern(size));
                Some(size)
            })
            .collect();
        assert_eq!(got, [Some(100), Some(fits), None, None, None, Some(101)]);
        assert_eq!(tap.counters().receive_no_memory, 3);

        tap.release_frames();
        let mut none = memory(8, 0, 0);
        broadcast(&socket, &pattern(500));
        let before = *tap.counters();
        assert!(receive_datagram(&mut tap, &mut none).is_none());
        assert_eq!(tap.counters().receive_paused, before.receive_paused + 1);
        assert_eq!(tap.counters().received.calls, before.received.calls);
        let mut enough = memory(8, 8, 8);
        let packet = receive_datagram(&mut tap, &mut enough).expect("it waited");
        assert_eq!(packet.len(), 542);
    });
}

/// Goal: the largest IP packet comes whole.
#[test]
fn the_largest_packet_fits() {
    isolated(|| {
        let end = End { mtu: 65_521, ..ONE };
        let mut tap = end.tap(Features::ALL);
        let mut memory = memory(8, 8, 8);
        let socket = broadcaster();
        let payload = pattern(65_521 - 28);
        broadcast(&socket, &payload);
        let packet = receive_datagram(&mut tap, &mut memory).expect("a datagram");
        assert_eq!(packet.len(), 14 + 65_521);
        assert!(packet.len() <= FRAME_BYTES_MAX);
        assert_eq!(packet.piece_count(), 5);
    });
}

fn tested(end: End, features: Features) -> (Tap, Report) {
    let mut tap = end.tap(features);
    let report = self_test(&mut tap, &end.self_test());
    println!("{report} in {:?}", report.elapsed);
    assert_eq!(report.features, tap.features());
    (tap, report)
}

/// Goal: on a kernel where everything works, the self-test says so, quickly.
#[test]
fn self_test_passes() {
    for mtu in [1280, 1500, 9000, 65_520] {
        isolated(|| {
            let (_, report) = tested(End { mtu, ..ONE }, Features::ALL);
            assert_eq!(report.to_string(), "offload: checksum tso4 tso6 uso (tested)");
            assert!(report.elapsed < Duration::from_millis(100));
        });
    }
}

/// Goal: features that were not agreed are not claimed, and the others are still proved.
#[test]
fn self_test_with_features_missing() {
    let cases = [
        (
            Features { uso: false, ..Features::ALL },
            "checksum tso4 tso6 (tested); off: uso (not agreed)",
        ),
        (
            Features { tso4: false, ..Features::ALL },
            "checksum tso6 uso (tested); off: tso4 (not agreed)",
        ),
        (
            Features { checksum: true, ..Features::NONE },
            "checksum (tested); off: tso4 (not agreed), tso6 (not agreed), uso (not agreed)",
        ),
        (
            Features::NONE,
            "none; off: checksum (not agreed), tso4 (not agreed), tso6 (not agreed), \
             uso (not agreed)",
        ),
    ];
    for (features, expected) in cases {
        isolated(|| {
            let (_, report) = tested(ONE, features);
            assert_eq!(report.to_string(), format!("offload: {expected}"));
        });
    }
}

/// Goal: a family without addresses costs its own features only.
#[test]
fn self_test_without_ipv6() {
    isolated(|| {
        let mut tap = ONE.tap(Features::ALL);
        let setup = SelfTest { program_v6: None, ..ONE.self_test() };
        let report = self_test(&mut tap, &setup);
        let expected =
            "offload: checksum tso4 uso (tested); off: tso6 (no address to test it with)";
        assert_eq!(report.to_string(), expected);
        assert!(!tap.caps().tso6);
    });
}

/// Goal: a feature that does not work is found out. Method: the device's mask is changed behind
/// the back of the test, so that what was agreed is not what the kernel does.
#[test]
fn self_test_finds_what_does_not_work() {
    let cases = [
        (
            Features { uso: false, ..Features::ALL },
            "checksum tso4 tso6",
            "uso (came in single segments)",
        ),
        (
            Features { tso6: false, ..Features::ALL },
            "checksum tso4 uso",
            "tso6 (came in single segments)",
        ),
        (Features::NONE, "none", "checksum (checksums came finished)"),
    ];
    for (real, works, reason) in cases {
        isolated(|| {
            let mut truth = ONE.tap(real);
            truth.set_offload(real).expect("features");
            let mut tap = Tap::from_fd(truth.into_fd(), Features::ALL, 1500);
            let report = self_test(&mut tap, &ONE.self_test());
            println!("{report} in {:?}", report.elapsed);
            assert!(report.to_string().contains(reason), "{report}");
            assert_eq!(tap.features().to_string(), works);
        });
    }
}

/// Goal: a device on which nothing works is told in time, without a panic.
#[test]
fn self_test_of_a_dead_device_ends_in_time() {
    isolated(|| {
        let mut tap = Tap::create("tap0").expect("a TAP device");
        tap.set_offload(Features::ALL).expect("features");
        let report = self_test(&mut tap, &ONE.self_test());
        println!("{report} in {:?}", report.elapsed);
        assert_eq!(tap.features(), Features::NONE);
        assert!(report.elapsed < Duration::from_millis(300));
    });
    isolated(|| {
        // Up, but the addresses are not those it is told: everything times out or fails.
        let mut tap = ONE.tap(Features::ALL);
        let setup = SelfTest { program_mac: [2, 9, 9, 9, 9, 9], ..ONE.self_test() };
        let report = self_test(&mut tap, &setup);
        println!("{report} in {:?}", report.elapsed);
        assert_eq!(tap.features(), Features::NONE);
        assert!(report.elapsed < Duration::from_millis(300));
    });
}

/// Goal: a self-test leaves no socket, no connection, no neighbour and no packet behind.
#[test]
fn self_test_leaves_nothing_behind() {
    isolated(|| {
        let sockets = || {
            let read = |name| {
                let text = std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
                text.unwrap_or_default().lines().count()
            };
            ["tcp", "tcp6", "udp", "udp6", "arp"].map(read)
        };
        let mut tap = ONE.tap(Features::ALL);
        let before = sockets();
        assert_eq!(before, [1; 5], "a heading each");
        let report = self_test(&mut tap, &ONE.self_test());
        assert_eq!(report.features, Features::ALL);
        assert_eq!(sockets(), before);
        let output =
            std::process::Command::new("ip").args(["neighbour", "show", "nud", "all"]).output();
        if let Ok(output) = output {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(!text.contains("10.9.8.2") && !text.contains("fd00::2"), "{text}");
        }
        let mut memory = memory(64, 64, 16);
        let mut burst = Burst::new();
        tap.receive(&mut memory, &mut burst).expect("received");
        while let Some(mut packet) = burst.pop() {
            // The kernel's own multicast reports may come at any time.
            let headers = packet.peek_headers();
            let is_report = headers[12..14] == [0x86, 0xdd] && matches!(headers[20], 0 | 58);
            assert!(is_report, "{headers:02x?}");
        }
    });
}

/// Goal: packets that the kernel refuses are dropped and counted, and a feature of which several
/// in a row are refused is taken back.
#[test]
fn refused_super_packets_withdraw_their_feature() {
    isolated(|| {
        let mut tap = ONE.tap(Features::ALL);
        let mut memory = memory(64, 64, 16);
        let size = NonZeroU16::new(1400).expect("not zero");
        // An ARP frame that claims to be a UDP super-packet.
        let offload = Offload {
            checksum: Checksum::Partial { start: 34, offset: 6 },
            gso: Some(Gso { kind: GsoKind::Udp, size, ecn: true }),
        };
        let mut burst = Burst::new();
        for round in 0..REFUSALS_MAX {
            assert!(tap.caps().uso, "still there after {round}");
            let mut packet = memory.packet().expect("free");
            packet.push_piece(memory.small.take().expect("free").freeze(1999)).expect("room");
            packet.set_offload(offload);
            burst.push(packet).expect("room");
            tap.transmit(&mut burst).expect("the device is fine");
            assert!(burst.is_empty());
        }
        assert_eq!(tap.counters().transmit_refused, u64::from(REFUSALS_MAX));
        assert_eq!(tap.withdrawn(), Features { uso: true, ..Features::NONE });
        let caps = tap.caps();
        assert!(!caps.uso && caps.tso4 && caps.tso6 && caps.checksum);
        tap.disable(Features { checksum: true, ..Features::NONE });
        assert_eq!(tap.caps(), towpath_packet::Caps::plain(1500));
        assert_eq!(tap.withdrawn(), Features::ALL);
    });
}

/// Goal: too short frames and a link that is down are counted under their own names.
#[test]
fn drops_have_reasons() {
    isolated(|| {
        let mut tap = Tap::create("tap0").expect("a TAP device");
        let mut memory = memory(64, 64, 16);
        let mut burst = Burst::new();
        for bytes in [0, 13, 60] {
            let mut packet = memory.packet().expect("free");
            packet.push_piece(memory.small.take().expect("free").freeze(bytes)).expect("room");
            burst.push(packet).expect("room");
        }
        tap.transmit(&mut burst).expect("the device is fine");
        assert_eq!((tap.counters().transmit_refused, tap.counters().transmit_down), (2, 1));
        assert_eq!(tap.counters().transmit_dropped(), 3);
        assert_eq!(memory.packets.out_count(), 0);
    });
}

/// A device whose other side is a socket of ours: takes and gives whatever the test wants.
fn scripted() -> (Tap, OwnedFd) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (device, peer) = socketpair(family, kind, flags, None).expect("a pair of sockets");
    (Tap::from_fd(device, Features::ALL, 1500), peer)
}

/// Goal: whatever a device delivers is taken whole or dropped under its own reason, and drops cost
/// no frame.
#[test]
fn odd_frames_are_dropped_with_reasons() {
    let (mut tap, peer) = scripted();
    let mut memory = memory(8, 8, 8);
    let header = |gso_type, gso_size: u16| {
        let [low, high] = gso_size.to_le_bytes();
        [0, gso_type, 0, 0, low, high, 0, 0, 0, 0, 0, 0]
    };
    let mut give = |header: [u8; 12], bytes: usize| {
        let mut frame = Vec::from(header);
        frame.extend(pattern(bytes));
        rustix::io::write(&peer, &frame).expect("room");
        let mut burst = Burst::new();
        tap.receive(&mut memory, &mut burst).expect("received");
        burst.pop().map(|packet| packet.len())
    };
    let plain = header(0, 0);
    for bytes in [14, 15, SMALL_FRAME_BYTES, SMALL_FRAME_BYTES + 1, FRAME_BYTES_MAX] {
        assert_eq!(give(plain, bytes), Some(bytes));
    }
    assert_eq!(give(header(1, 1400), 5000), Some(5000));
    assert_eq!((give(plain, 0), give(plain, 13)), (None, None));
    assert_eq!((give(plain, FRAME_BYTES_MAX + 1), give(plain, 100_000)), (None, None));
    let bad = [header(2, 1400), header(3, 1400), header(1, 0), header(5, u16::MAX)];
    assert_eq!(bad.map(|header| give(header, 100)), [None; 4]);
    rustix::io::write(&peer, &[0; 11]).expect("room");
    let mut burst = Burst::new();
    tap.receive(&mut memory, &mut burst).expect("received");
    assert!(burst.is_empty());

    let counters = *tap.counters();
    assert_eq!((counters.received.packets, counters.received.super_packets), (6, 1));
    assert_eq!((counters.receive_short, counters.receive_long), (3, 2));
    assert_eq!((counters.receive_bad_header, counters.receive_dropped()), (4, 9));
    tap.release_frames();
    let Memory { packets, small, large } = &memory;
    assert_eq!((packets.out_count(), small.out_count(), large.out_count()), (0, 0, 0));
}

/// Goal: raw, peeked and pulled packets are the same on the wire; a device that is full keeps
/// what is left, in order.
#[test]
fn packets_are_written_whole_and_wait_when_full() {
    let (mut tap, peer) = scripted();
    let mut memory = memory(256, 256, 256);
    let frame = pattern(40_000);
    let mut burst = Burst::new();
    let mut sent = 0u64;
    while tap.counters().transmit_full == 0 {
        let mut packet = memory.packet().expect("free");
        let mut bytes = frame.clone();
        bytes[..8].copy_from_slice(&sent.to_be_bytes());
        for piece in pieces(&mut memory, &bytes) {
            packet.push_piece(piece).expect("room");
        }
        match sent % 3 {
            0 => {}
            1 => drop(packet.peek_headers()),
            _ => {
                packet.peek_headers();
                packet.pull(54);
            }
        }
        burst.push(packet).expect("room");
        sent += 1;
        tap.transmit(&mut burst).expect("the device is fine");
    }
    assert_eq!(burst.len(), 1);
    let mut buffer = vec![0; 50_000];
    for expected in 0..sent {
        let bytes = rustix::io::read(&peer, &mut buffer[..]).expect("a packet");
        assert_eq!(bytes, 12 + frame.len());
        assert_eq!(buffer[..12], [0; 12]);
        assert_eq!(buffer[12..20], expected.to_be_bytes());
        assert!(buffer[20..bytes] == frame[8..]);
        tap.transmit(&mut burst).expect("the device is fine");
    }
    assert_eq!(tap.counters().transmitted.packets, sent);
    assert_eq!((memory.packets.out_count(), memory.large.out_count()), (0, 0));
}

#[test]
fn errors_are_told_apart() {
    isolated(|| {
        let tap = Tap::create("tap0").expect("a TAP device");
        assert_eq!(tap.name(), Ok("tap0".to_owned()));
        assert_eq!(Tap::create("tap0").err(), Some(TapError::NameInUse));
        assert_eq!(Tap::create("lo").err(), Some(TapError::NameInUse));
        for name in ["", "sixteen-bytes-xx", "a/b"] {
            assert_eq!(Tap::create(name).err(), Some(TapError::NameInvalid), "{name:?}");
        }
    });
    isolated(|| {
        let mut tap = ONE.tap(Features::ALL);
        let output = std::process::Command::new("ip").args(["link", "delete", "tap0"]).output();
        if output.is_err() {
            println!("skipped: ip is not installed");
            return;
        }
        let (mut memory, mut burst) = (memory(8, 8, 8), Burst::new());
        assert_eq!(tap.receive(&mut memory, &mut burst), Err(TapError::Gone));
        let mut packet = memory.packet().expect("free");
        packet.push_piece(memory.small.take().expect("free").freeze(60)).expect("room");
        burst.push(packet).expect("room");
        assert_eq!(tap.transmit(&mut burst), Err(TapError::Gone));
        assert_eq!(burst.len(), 1, "the packet is still the caller's");
    });
}

/// Goal: ping datagram sockets work where they are permitted. Method: permits them in a namespace.
#[test]
fn ping_by_datagram_socket() {
    isolated(|| {
        ONE.tap(Features::NONE);
        if let Err(error) = std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647") {
            println!("skipped: ping_group_range: {error}");
            return;
        }
        for host in ["127.0.0.1", "::1"] {
            let host: IpAddr = host.parse().expect("an address");
            let socket = PingSocket::connect(host, 77).expect("permitted");
            assert_eq!(socket.kind(), PingKind::Datagram);
            let (mut memory, mut buffer) = (memory(1, 4, 8), ReceiveBuffer::new());
            let payload = pieces(&mut memory, b"towpath");
            socket.send(3, payload.iter()).expect("sent");
            ready(socket.as_fd());
            let echo = socket.receive(&mut buffer, &mut memory).expect("received");
            let echo = echo.expect("memory");
            assert_eq!((echo.ident, echo.sequence, echo.len), (77, 3, 7));
        }
    });
}

/// Figures, not a test: what one thread moves through a device, with payload of 60,000 bytes.
#[test]
#[ignore = "prints rates; run with --release --ignored --nocapture"]
fn rates() {
    isolated(|| {
        const ROUNDS: usize = 20_000;
        let mut tap = ONE.tap(Features::ALL);
        let mut memory = memory(64, 64, 64);
        let socket = UdpSocket::bind(SocketAddr::new(End::v4(1), 4000), None).expect("bound");
        let sender = broadcaster_at(4001);
        let payload = pattern(1400 * 42);
        let mut burst = Burst::new();
        let mut read = Duration::ZERO;
        let mut write = Duration::ZERO;
        let mut plain = Duration::ZERO;
        let everybody = SocketAddr::from(([10, 9, 8, 255], 4000));
        let lent = pieces(&mut memory, &payload);
        let sending = UdpSocket::bind(SocketAddr::new(End::v4(1), 4002), None).expect("bound");
        rustix::net::sockopt::set_socket_broadcast(&sending, true).expect("a datagram socket");
        for _ in 0..ROUNDS {
            let size = NonZeroU16::new(1400);
            sending.send_to(Some(everybody), lent.iter(), size).expect("sent");
            let begin = now();
            tap.receive(&mut memory, &mut burst).expect("received");
            read += begin.elapsed();
            // Sent back to where it came from, with the addresses changed places.
            while let Some(mut packet) = burst.pop() {
                if packet.len() < payload.len() {
                    continue;
                }
                packet.peek_headers();
                packet.pull(42);
                let headers = packet.headers_mut();
                headers[..6].copy_from_slice(&End::mac(1));
                headers[6..12].copy_from_slice(&End::mac(2));
                headers[26..34].copy_from_slice(&[10, 9, 8, 2, 10, 9, 8, 1]);
                let mut one = Burst::new();
                one.push(packet).expect("room");
                let begin = now();
                tap.transmit(&mut one).expect("sent");
                write += begin.elapsed();
            }
            broadcast(&sender, &payload[..1000]);
            let begin = now();
            tap.receive(&mut memory, &mut burst).expect("received");
            plain += begin.elapsed();
            burst.clear();
        }
        drop(socket);
        let rate = |time: Duration| (ROUNDS * payload.len()) as f64 / time.as_secs_f64() / 1e9;
        println!("read {:.1} GB/s, write {:.1} GB/s", rate(read), rate(write));
        println!("small packet and an empty read: {:?}", plain / ROUNDS as u32);
        println!("{:?}", tap.counters());
    });
}

// --- allocations ---------------------------------------------------------------------------------

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Goal: neither receiving nor transmitting allocates, large packets, drops and refusals included.
#[test]
fn the_data_path_does_not_allocate() {
    isolated(|| {
        let end = End { mtu: 65_520, ..ONE };
        let mut tap = end.tap(Features::ALL);
        let (mut enough, mut tight) = (memory(64, 64, 64), memory(64, 4, 0));
        let socket = broadcaster();
        let mut burst = Burst::new();
        let (small, large) = (pattern(100), pattern(60_000));
        let before = ALLOCATIONS.get();
        for _ in 0..20 {
            broadcast(&socket, &small);
            broadcast(&socket, &large);
            tap.receive(&mut enough, &mut burst).expect("received");
            tap.transmit(&mut burst).expect("sent");
            tap.release_frames();
            broadcast(&socket, &large);
            tap.receive(&mut tight, &mut burst).expect("received");
            tap.transmit(&mut burst).expect("sent");
            tap.release_frames();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0);
        assert!(tap.counters().received.packets >= 40);
        assert!(tap.counters().receive_no_memory >= 20);
    });
}
