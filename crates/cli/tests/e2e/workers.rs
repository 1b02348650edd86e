//! Several workers: together they do what one does, whichever of them serves a flow. How much they
//! share depends on the load of the machine; the gateway's own tests move flows on purpose.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use super::soak;
use super::support::{
    Family, Host, PATIENCE, Process, Server, Stats, TOWPATH, Test, Towpath, command, echo, inside,
    program_of, retry,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("workers_mixed", &[], mixed),
        Test::new("workers_captured", &[], captured),
        Test::new("workers_end_together", &["ip"], end_together),
        Test::new("workers_join_and_leave", &[], join_and_leave).unless(one_processor),
    ];
    for family in Family::BOTH {
        let name = family.name();
        tests.push(Test::new(format!("workers_rest_{name}"), &[], move |host| {
            rest(host, family);
        }));
        tests.push(Test::new(format!("workers_published_{name}"), &[], move |host| {
            published(host, family);
        }));
        tests.push(Test::new(format!("workers_datagrams_{name}"), &[], move |host| {
            datagrams(host, family);
        }));
    }
    tests
}

const WORKERS: [&str; 2] = ["--workers", "2"];
/// Concurrent connections.
const CONNECTIONS: usize = 64;
/// Bytes of a question or of its answer.
const WORD: u64 = 8;

/// Goal: connections of the program survive a pause, and all counts add up.
/// Method: the program asks over each, pauses, and asks again.
fn rest(_: &mut Host, family: Family) {
    let server = Server::start(family.loopback(), echo);
    let address = SocketAddr::new(family.gateway(), server.port()).to_string();
    let role = inside("rest", &[&address, &CONNECTIONS.to_string()]);
    let output = Towpath::with_loopback(WORKERS).run(role);
    let stats = Stats::of(&output);
    assert_eq!(output.success(), format!("answered {CONNECTIONS} twice\n"));
    let sum = 2 * WORD * CONNECTIONS as u64;
    stats.assert_carried(sum, sum, 0);
    assert_eq!(stats.number("flows", "refused"), 0);
    let [out, into] = [0, 1].map(|at| [0, 1].map(|worker| stats.worker(worker)[at]));
    assert_eq!((out[0] + out[1], into), (sum, out));
}

/// Goal: connections of the host survive a pause, and all counts add up.
/// Method: a server inside answers after a pause.
fn published(_: &mut Host, family: Family) {
    let options = [WORKERS.as_slice(), &["-t", "2002:3002"]].concat();
    let mut towpath = Towpath::new(options).start(inside("late-server", &["3002"]));
    program_of(towpath.pid());
    towpath.wait_for_text("listening");
    let address = SocketAddr::new(family.loopback(), 2002);
    let open = |_| {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream
    };
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(open).collect();
    for question in [*b"question", *b"another."] {
        for stream in &mut streams {
            stream.write_all(&question).expect("sent");
        }
        for stream in &mut streams {
            let mut answer = [0; WORD as usize];
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(answer, question);
        }
    }
    drop(streams);
    towpath.signal(Signal::TERM);
    let output = towpath.finish();
    let stats = Stats::of(&output);
    let sum = 2 * WORD * CONNECTIONS as u64;
    stats.assert_carried(sum, sum, 0);
    assert_eq!(stats.number("flows", "in"), CONNECTIONS as u64);
    let [first, other] = [0, 1].map(|at| stats.worker(at));
    assert_eq!((first[0] + other[0], stats.dropped("hand_over_full")), (sum, 0));
}

/// Goal: datagrams of all sizes pass in both directions, and each port of the program is one port
/// outside, whichever worker serves it.
/// Method: the program sends from one port after another; a server on the host's loopback echoes
/// and counts its clients.
fn datagrams(_: &mut Host, family: Family) {
    const SIZES: [&str; 6] = ["0", "1", "1000", "1500", "20000", "60000"];
    const PORTS: usize = 8;
    let socket = UdpSocket::bind((family.loopback(), 0)).expect("bind");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let port = socket.local_addr().expect("an address").port();
    let address = SocketAddr::new(family.gateway(), port).to_string();
    let server = thread::spawn(move || {
        let (mut buffer, mut peers) = (vec![0; 1 << 16], Vec::new());
        for _ in 0..PORTS * SIZES.len() {
            let (len, peer) = socket.recv_from(&mut buffer)?;
            socket.send_to(&buffer[..len], peer)?;
            peers.push(peer);
        }
        peers.dedup();
        Ok::<usize, std::io::Error>(peers.len())
    });
    let role = inside("udp-echo", &[&[address.as_str()], SIZES.as_slice()].concat());
    let script = format!("for i in $(seq {PORTS}); do \"$@\" || exit; done");
    let script = ["sh", "-c", script.as_str(), "sh"].map(Into::into);
    let output = Towpath::with_loopback(WORKERS).run(script.into_iter().chain(role));
    let stats = Stats::of(&output);
    assert_eq!(output.success(), "answered 6\n".repeat(PORTS));
    assert_eq!(server.join().expect("no panic").expect("all came"), PORTS);
    let sum: u64 = SIZES.iter().map(|size| size.parse::<u64>().expect("a size")).sum();
    stats.assert_bytes(sum * PORTS as u64, sum * PORTS as u64, 0);
    let out: u64 = (0..2).map(|worker| stats.worker(worker)[0]).sum();
    assert_eq!(out, sum * PORTS as u64);
}

/// Goal: a capture of several workers is one file with all packets of each, in order of time.
/// Method: the file is read block by block.
fn captured(host: &mut Host) {
    let file = host.file("workers.pcapng");
    let server = Server::start(Family::V4.loopback(), echo);
    let address = SocketAddr::new(Family::V4.gateway(), server.port()).to_string();
    let role = inside("rest", &[&address, &CONNECTIONS.to_string()]);
    let options = [WORKERS.as_slice(), &["--pcap", file.to_str().expect("text")]].concat();
    let output = Towpath::with_loopback(options).run(role);
    assert_eq!(output.success(), format!("answered {CONNECTIONS} twice\n"));
    let bytes = std::fs::read(file).expect("a file");
    let (mut times, mut syns) = (Vec::new(), 0);
    let mut left = &bytes[..];
    while !left.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(left[at..at + 4].try_into().expect("four"));
        let (kind, len) = (word(0), word(4) as usize);
        assert_eq!(word(len - 4) as usize, len, "a block ends as it begins");
        if kind == ENHANCED_PACKET {
            times.push(u64::from(word(12)) << 32 | u64::from(word(16)));
            // IPv4 without options, TCP, from the program, only SYN.
            let frame = &left[28..];
            let is_tcp = frame[12..14] == [8, 0] && frame[14] == 0x45 && frame[23] == 6;
            syns += usize::from(is_tcp && frame[47] == 2);
        }
        left = &left[len..];
    }
    assert!(times.is_sorted(), "not in order of time");
    assert_eq!(syns, CONNECTIONS, "each began once");
}

/// Type of a block with a packet.
const ENHANCED_PACKET: u32 = 6;

/// Goal: with several workers no flow gets stuck and none is left, whatever its peer does.
/// Method: threads inside, each with one seeded connection after another, which are echoed, stall,
/// close first or reset; each thread checks every byte.
fn mixed(_: &mut Host) {
    const SECONDS: &str = "3";
    let servers = Family::BOTH.map(|family| Server::start(family.loopback(), soak::serve));
    let mut arguments = ["50", SECONDS, "1"].map(String::from).to_vec();
    for (family, server) in Family::BOTH.iter().zip(&servers) {
        arguments.push(SocketAddr::new(family.gateway(), server.port()).to_string());
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let three = ["--workers", "3"];
    let output = Towpath::with_loopback(three).run(inside("soak", &arguments));
    let stats = Stats::of(&output);
    assert!(output.success().contains("soaked"));
    stats.assert_uncopied();
    for worker in 0..3 {
        let [_, _, _, _, tcp, ..] = stats.worker(worker)[..] else { panic!("no figures") };
        assert_eq!(tcp, 0, "flows are left");
    }
}

/// Goal: without `--workers` a second worker joins when the load is too much for one, and leaves
/// afterwards; what passes is what was sent.
/// Method: streams from the host, which a server inside echoes until the counters show the second
/// worker, and which then rest.
fn join_and_leave(host: &mut Host) {
    const STREAMS: usize = 16;
    let towpath = Towpath::new(["-t", "2003:3003"]).found_by(host);
    let mut towpath = towpath.start(inside("echo-server", &["3003"]));
    towpath.wait_for_text("listening");
    let sockets = host.file("");
    let pid = towpath.pid().to_string();
    let second = || {
        let mut ask = command(TOWPATH, ["stats", "--json", &pid]);
        ask.env("XDG_RUNTIME_DIR", &sockets);
        let stats = Process::start(ask).finish().success();
        let stats: Value = serde_json::from_str(&stats).expect("an object");
        stats["workers"]["1"].clone()
    };
    assert_eq!(second()["parked"], true, "there is no load");
    let address = SocketAddr::new(Family::V4.loopback(), 2003);
    let streams: Vec<TcpStream> = (0..STREAMS)
        .map(|_| {
            let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connect");
            stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
            stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
            stream
        })
        .collect();
    let (stop, totals) = (AtomicBool::new(false), [const { AtomicU64::new(u64::MAX) }; STREAMS]);
    let sum: u64 = thread::scope(|scope| {
        let begin = |(stream, total)| {
            let stop = &stop;
            scope.spawn(move || push(stream, stop, total));
            scope.spawn(move || pull(stream, total))
        };
        let readers: Vec<_> = streams.iter().zip(&totals).map(begin).collect();
        let stopping = Stop(&stop);
        retry("a second worker to join", || (second()["flows_taken"].as_u64()? > 0).then_some(()));
        drop(stopping);
        readers.into_iter().map(|reader| reader.join().expect("no panic")).sum()
    });
    retry("it to leave", || {
        let second = second();
        (second["parked"] == true && second["flows"]["tcp"] == 0).then_some(())
    });
    drop(streams);
    towpath.signal(Signal::TERM);
    Stats::of(&towpath.finish()).assert_bytes(sum, sum, 0);
}

/// Bytes of a block that the streams repeat.
const BLOCK: usize = 64 << 10;

fn block() -> Vec<u8> {
    (0..BLOCK).map(|at| (at % 251) as u8).collect()
}

/// Sends until `stop`. Then the number of all bytes is known before the last block is sent.
fn push(mut stream: &TcpStream, stop: &AtomicBool, total: &AtomicU64) {
    let (block, mut sent) = (block(), BLOCK as u64);
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&block).expect("it is taken");
        sent += BLOCK as u64;
    }
    total.store(sent, Ordering::Relaxed);
    stream.write_all(&block).expect("it is taken");
}

/// Receives and checks what comes back; returns the number of bytes.
fn pull(mut stream: &TcpStream, total: &AtomicU64) -> u64 {
    let (block, mut buffer, mut received) = (block(), vec![0; BLOCK], 0);
    while received < total.load(Ordering::Relaxed) {
        stream.read_exact(&mut buffer).expect("it comes back");
        assert!(buffer == block, "other bytes, {received} bytes after the beginning");
        received += BLOCK as u64;
    }
    received
}

/// Stops the load, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn one_processor() -> Option<String> {
    let is_one = thread::available_parallelism().is_ok_and(|count| count.get() == 1);
    is_one.then(|| "there is one processor".into())
}

/// Goal: when the device is gone, all workers end, with the reason.
/// Method: the program deletes its interface.
fn end_together(_: &mut Host) {
    let script = ["sh", "-c", "ip link del tap0 && sleep 1000"];
    let options = [WORKERS.as_slice(), &["--map-root"]].concat();
    let output = Towpath::new(options).run(script);
    assert!(output.stderr.contains("the TAP interface was deleted"), "{}", output.stderr);
}
