//! What a capture of everything costs the traffic: by a sniffer of the host, by tcpdump, which
//! reads a ring of the kernel (`AF_PACKET`, `TPACKET_V3`), and without a capture.
//!
//! A host in this process lends to the kernel at the other end of a TAP device, at MTU 1500. The
//! sniffer sees what the host sends and receives, and tcpdump what the device does: the same
//! packets, super-packets included. Both have [`HELD_BYTES`] for packets that wait, both take them
//! whole, and both write a capture file to `/dev/null`, where a write costs a system call and no
//! disk.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use towpath::host::{Completions, Config, Host, ReceivedPiece, SendMode, Sniffer, TcpStream};
use towpath_packet::sync::{AtomicBool, Ordering};

use super::Group;
use super::transfer::cpu;
use crate::cases::{Better, Case, Selection};
use crate::lab::{self, Network};
use crate::ping_pong::Stopwatch;
use crate::process::{self, Running};
use crate::say;
use crate::system::find_program;

const SYSTEMS: [&str; 3] = ["towpath", TCPDUMP, "no capture"];
const TCPDUMP: &str = "tcpdump";
const DEVICE: &str = "capture0";
const SENDER: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 1);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 6, 0, 2);
/// Bytes of packets that wait for their reader.
const HELD_BYTES: u32 = 16 << 20;
/// Size of a send, of which the program has [`SENDS`].
const SEND_BYTES: usize = 1 << 20;
const SENDS: usize = 16;
/// How long a sniffer waits for a packet before it looks whether it is over.
const LOOK_AFTER: Duration = Duration::from_millis(20);
/// Longest time that tcpdump may take to begin and to end.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    cases().iter()
}

/// Throughput, processor time of sender, receiver and capture, and the share of packets that the
/// capture lost.
fn cases() -> &'static [Case; 3] {
    static CASES: LazyLock<[Case; 3]> = LazyLock::new(|| {
        [
            Case::high("capture_all", "MiB/s"),
            Case::low("capture_all_cpu", "ms/GiB"),
            Case { name: "capture_all_lost".into(), unit: "% of packets", better: Better::Low },
        ]
    });
    &CASES
}

/// The group, if a case is selected and TAP devices can be made in `network`.
pub(super) fn group<'a>(network: &'a Network, selection: &Selection) -> Option<Group<'a>> {
    if !all().any(|case| selection.has(case)) {
        return None;
    }
    if let Err(error) = File::open("/dev/net/tun") {
        say::notice(format_args!("skipped: capture_*: /dev/net/tun: {error}"));
        return None;
    }
    let mut systems = SYSTEMS.to_vec();
    if find_program(TCPDUMP).is_none() {
        say::notice(format_args!("{TCPDUMP} is not installed"));
        systems.retain(|system| *system != TCPDUMP);
    }
    let measure = Box::new(move |system: &str, span| measure(network, system, span));
    Some(Group { cases: cases().iter().collect(), systems, measure })
}

fn measure(network: &Network, system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
    let config = Config::with_address(SENDER, 24);
    let host = network.inside(|| {
        lab::prepare()?;
        Host::on_tap_named(&config, DEVICE).context("cannot create a host on a TAP device")
    })?;
    lab::join_by_tap(network, DEVICE, RECEIVER, 24)?;
    let listener = network.inside(|| {
        let any_port = SocketAddr::new(IpAddr::V4(RECEIVER), 0);
        TcpListener::bind(any_port).context("cannot listen")
    })?;
    let stream = TcpStream::connect(&host, listener.local_addr()?).context("cannot connect")?;
    let (receiver, _) = listener.accept().context("cannot accept")?;
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let dump = (system == TCPDUMP).then(|| Dump::start(network)).transpose()?;
        let sniffer = (system == SYSTEMS[0]).then(|| sniffer(&host)).transpose()?;
        let sniffer = sniffer.map(|sniffer| scope.spawn(move || record(&sniffer, is_over)));
        let received = scope.spawn(move || read_all(receiver));
        let (watch, before) = (Stopwatch::start(), cpu(ClockId::ProcessCPUTime));
        let sent = send(stream, span);
        let received = received.join().map_err(|_| anyhow!("the receiver failed"))?;
        let taken = watch.elapsed();
        is_over.store(true, Ordering::Relaxed);
        let lost = sniffer.map(|sniffer| sniffer.join().map_err(|_| anyhow!("the sniffer failed")));
        let lost = lost.transpose()?.transpose()?;
        let mut used = cpu(ClockId::ProcessCPUTime) - before;
        let lost = match dump {
            Some(dump) => {
                used += dump.used();
                dump.end()?
            }
            None => lost.unwrap_or(0.0),
        };
        let (sent, received) = (sent?, received?);
        ensure!(sent == received, "{sent} bytes were sent, {received} received");
        let gib = sent as f64 / f64::from(1 << 30);
        Ok(vec![gib * 1024.0 / taken.as_secs_f64(), used.as_secs_f64() * 1e3 / gib, lost])
    })
}

fn sniffer(host: &Host) -> anyhow::Result<Sniffer> {
    let sniffer = host.sniffer(None)?;
    sniffer.set_receive_buffer(HELD_BYTES)?;
    sniffer.set_read_timeout(Some(LOOK_AFTER))?;
    Ok(sniffer)
}

/// Sends for a time; returns the number of bytes.
fn send(stream: TcpStream, span: Duration) -> anyhow::Result<u64> {
    stream.set_send_mode(SendMode::Lend);
    let (mut lent, mut sent, watch) = (Completions::new(), 0, Stopwatch::start());
    let mut buffers = vec![vec![0x5a; SEND_BYTES]; SENDS];
    while watch.elapsed() < span {
        let buffer = match buffers.pop() {
            Some(buffer) => buffer,
            None => lent.wait_next().context("a buffer is lent")?.buffer,
        };
        lent.push(stream.send_zc(buffer).context("cannot send")?);
        sent += SEND_BYTES as u64;
    }
    while lent.wait_next().is_some() {}
    Ok(sent)
}

fn read_all(mut stream: std::net::TcpStream) -> anyhow::Result<u64> {
    let (mut buffer, mut received) = (vec![0; SEND_BYTES], 0);
    loop {
        match stream.read(&mut buffer).context("cannot receive")? {
            0 => return Ok(received),
            count => received += count as u64,
        }
    }
}

/// Writes everything that a sniffer sees, from where it lies, until nothing comes any more and it
/// is over. Returns the percentage of packets that were lost.
fn record(sniffer: &Sniffer, is_over: &AtomicBool) -> anyhow::Result<f64> {
    let mut file = File::create("/dev/null").context("/dev/null")?;
    file.write_all(&PCAP_HEADER).context("cannot write")?;
    let (mut headers, mut pieces) = (Vec::new(), Vec::new());
    loop {
        match sniffer.recv_lent(&mut headers, &mut pieces) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                match is_over.load(Ordering::Relaxed) {
                    true => break,
                    false => continue,
                }
            }
            Err(error) => return Err(error).context("cannot capture"),
        }
        let bytes = pieces.iter().map(|piece: &ReceivedPiece| piece.bytes());
        let bytes = bytes.collect::<Option<Vec<_>>>().context("it is memory of this process")?;
        let len: usize = headers.len() + bytes.iter().map(|bytes| bytes.len()).sum::<usize>();
        let head = record_header(len as u32);
        let parts = [IoSlice::new(&head), IoSlice::new(&headers)].into_iter();
        let parts: Vec<_> = parts.chain(bytes.iter().map(|bytes| IoSlice::new(bytes))).collect();
        let written = file.write_vectored(&parts).context("cannot write")?;
        ensure!(written == len + head.len(), "{written} bytes of a packet of {len} were written");
        drop(parts);
        drop(bytes);
        headers.clear();
        pieces.clear();
    }
    let (seen, lost) = sniffer.take_statistics()?;
    ensure!(seen > 0, "the sniffer saw nothing");
    Ok(100.0 * f64::from(lost) / f64::from(seen))
}

/// Header of a capture file: version 2.4, packets of any size, Ethernet.
const PCAP_HEADER: [u8; 24] = {
    let mut header = [0; 24];
    let fields = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 1 << 18, 1];
    let mut at = 0;
    while at < header.len() {
        header[at] = fields[at / 4].to_le_bytes()[at % 4];
        at += 1;
    }
    header
};

/// Header of a packet in a capture file: time, and its length twice.
fn record_header(len: u32) -> [u8; 16] {
    let now = clock_gettime(ClockId::Realtime);
    let fields = [now.tv_sec as u32, (now.tv_nsec / 1000) as u32, len, len];
    std::array::from_fn(|at| fields[at / 4].to_le_bytes()[at % 4])
}

/// A running tcpdump.
struct Dump(Running);

impl Dump {
    fn start(network: &Network) -> anyhow::Result<Self> {
        let kib = (HELD_BYTES >> 10).to_string();
        let mut command = Command::new(TCPDUMP);
        command.args(["-i", DEVICE, "-n", "-Z", "root", "-B", &kib, "-w", "/dev/null"]);
        let running = network.inside(|| Running::start(&mut command))?;
        let watch = Stopwatch::start();
        while !running.log().contains("listening on") {
            let words = running.last_words();
            ensure!(watch.elapsed() < PATIENCE, "{TCPDUMP} does not begin: {words}");
            thread::sleep(Duration::from_millis(2));
        }
        Ok(Self(running))
    }

    /// Processor time so far.
    fn used(&self) -> Duration {
        Duration::from_secs_f64(process::cpu_seconds_fine(&self.0.tree()))
    }

    /// Ends it. Returns the percentage of packets that were lost.
    fn end(mut self) -> anyhow::Result<f64> {
        let pid = Pid::from_raw(self.0.number()).context("it has no PID")?;
        kill_process(pid, Signal::INT).context("cannot end it")?;
        ensure!(self.0.wait(PATIENCE)?.is_some(), "{TCPDUMP} does not end");
        lost(&self.0.log())
    }
}

/// The percentage of packets that tcpdump says it has lost.
fn lost(log: &str) -> anyhow::Result<f64> {
    let count = |what: &str| {
        let line = log.lines().find_map(|line| line.trim().strip_suffix(what));
        let count = line.and_then(|count| count.trim().parse::<f64>().ok());
        count.with_context(|| format!("{TCPDUMP} said: {log}"))
    };
    let (seen, lost) = (count("packets received by filter")?, count("packets dropped by kernel")?);
    ensure!(seen > 0.0, "{TCPDUMP} saw nothing");
    Ok(100.0 * lost / seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tcpdump_has_lost() {
        let log = "tcpdump: listening on capture0, link-type EN10MB (Ethernet), snapshot length \
                   262144 bytes\n150 packets captured\n200 packets received by filter\n\
                   50 packets dropped by kernel\n";
        assert_eq!(lost(log).unwrap(), 25.0);
        let none = "0 packets captured\n0 packets received by filter\n0 packets dropped by kernel";
        assert!(lost(none).is_err() && lost("").is_err());
    }

    #[test]
    fn headers_are_those_of_a_capture_file() {
        assert_eq!(PCAP_HEADER[..8], [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0]);
        assert_eq!(PCAP_HEADER[16..], [0, 0, 4, 0, 1, 0, 0, 0]);
        assert_eq!(record_header(0x1234)[8..], [0x34, 0x12, 0, 0, 0x34, 0x12, 0, 0]);
    }
}
