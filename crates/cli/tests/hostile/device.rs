//! Virtio-net headers that no kernel would pass on, fed to a worker whose device is a socket.
//!
//! A sequenced-packet socket behaves like a TAP device: one read takes one frame, one write sends
//! one, and neither blocks. The test has the far end. The worker runs in a process of its own, so
//! that its memory can be measured.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use towpath_gateway::config::Config;
use towpath_gateway::report::Report;
use towpath_gateway::worker::Worker;
use towpath_io::tap::{Features, Tap};
use towpath_net::counters::DropReason;

use crate::frame::{self, ACK, GATEWAY, IP, L4, L4_6, PROGRAM, PROGRAM6, Segment};
use crate::host::{CLOSED, HOST, HOST6, HOSTILE, Host, SETTLING, TRAP, WELCOME, WELCOMING};
use crate::random::Random;

/// Name of the test.
pub(super) const NAME: &str = "lying_virtio_headers";

const PATIENCE: Duration = Duration::from_secs(60);
/// Frames fed between two checks that the worker keeps up.
const FRAMES_PER_TURN: usize = 16;
const ROUNDS: usize = 20;
/// Most memory of the process, feeder included.
const MEMORY_KIB: u64 = 64 << 10;

/// Goal: wrong offload fields are detected or do no harm. Method: right and wrong frames with every
/// kind of header in front. Each wrong header is counted, the worker answers all the while, and
/// datagrams with correct headers arrive.
pub(super) fn run(seed: u64) -> Result<(), Failed> {
    let host = Host::new()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args([crate::DEVICE, &seed.to_string()]).stdin(Stdio::null());
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
    thread::sleep(SETTLING);
    let inside = String::from_utf8_lossy(&output.stdout);
    println!("--- {NAME}: {}", inside.trim().replace('\n', "; "));
    if !output.status.success() {
        return Err(format!("{inside}{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let expected = inside.lines().find_map(|line| line.strip_prefix("welcome "));
    let expected: u64 = expected.ok_or("no count")?.parse()?;
    let welcomed = host.welcomed(expected);
    if welcomed < expected {
        return Err(format!("{welcomed} of {expected} datagrams arrived").into());
    }
    match host.trapped().first() {
        Some(first) => Err(format!("something reached the host: {first}").into()),
        None => Ok(()),
    }
}

/// The main function of the worker's process.
pub(super) fn main(seed: u64) {
    println!("seed {seed:#x}");
    let (near, far) = pair(AddressFamily::UNIX).expect("a pair of sockets");
    let (stop, stopped) = io::pipe().map(|(reader, writer)| (writer, reader)).expect("a pipe");
    let worker = thread::spawn(move || {
        let features = Features::ALL;
        let mut worker =
            Worker::new(&Config::default(), Tap::from_fd(near, features, 1500)).expect("a worker");
        worker.run_until(&[stopped.as_fd()]).expect("it serves to the end");
        worker.report()
    });
    let mut device = Device { far, sequence: 0, since: 0, expected: VecDeque::new(), welcome: 0 };
    let mut random = Random::new(seed);
    for _ in 0..ROUNDS {
        device.frames_that_are_none(&mut random);
        device.wrong_kinds();
        device.wrong_checksum_places();
        device.right();
        device.garbage(&mut random);
    }
    device.wait_for_worker();
    drop(stop);
    let report = worker.join().expect("the worker ends in order");
    device.judge(&report);
    println!("welcome {}", device.welcome);
    let memory = peak_kib();
    println!("memory {memory} KiB");
    assert!(memory < MEMORY_KIB, "too much memory");
}

pub(super) fn pair(family: AddressFamily) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = socketpair(family, SocketType::SEQPACKET, flags, None)?;
    Ok((near, far))
}

/// A virtio-net header of 12 bytes.
#[derive(Clone, Copy, Default)]
struct Header {
    flags: u8,
    kind: u8,
    header_len: u16,
    size: u16,
    start: u16,
    offset: u16,
}

const NEEDS_CHECKSUM: u8 = 1;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;

/// The far end of the device.
struct Device {
    far: OwnedFd,
    sequence: u16,
    since: usize,
    /// Drop reasons, and how often each should be counted.
    expected: VecDeque<(DropReason, u64)>,
    welcome: u64,
}

impl Device {
    fn feed(&mut self, header: Header, frame: &[u8]) {
        let mut bytes = vec![header.flags, header.kind];
        let words = [header.header_len, header.size, header.start, header.offset, 0xffff];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(frame);
        self.feed_raw(&bytes);
        self.since += 1;
        if self.since >= FRAMES_PER_TURN {
            self.wait_for_worker();
        }
    }

    fn feed_raw(&self, bytes: &[u8]) {
        let started = Instant::now();
        while let Err(errno) = rustix::net::send(&self.far, bytes, SendFlags::NOSIGNAL) {
            assert_eq!(errno, rustix::io::Errno::AGAIN);
            assert!(started.elapsed() < PATIENCE, "the worker takes nothing any more");
            thread::sleep(Duration::from_micros(100));
        }
    }

    fn drops(&mut self, reason: DropReason, header: Header, frame: &[u8]) {
        match self.expected.iter_mut().find(|entry| entry.0 == reason) {
            Some(entry) => entry.1 += 1,
            None => self.expected.push_back((reason, 1)),
        }
        self.feed(header, frame);
    }

    /// Sends an echo request, and reads until the reply.
    fn wait_for_worker(&mut self) {
        self.since = 0;
        self.sequence = self.sequence.wrapping_add(1);
        let [high, low] = self.sequence.to_be_bytes();
        let request =
            frame::icmp(PROGRAM.into(), GATEWAY.into(), [8, 0, 0x77, 0x77, high, low], b"");
        self.feed_raw(&[&[0; 12], &request[..]].concat());
        let started = Instant::now();
        let mut buffer = vec![0; 70_000];
        loop {
            assert!(started.elapsed() < PATIENCE, "the worker does not answer any more");
            match rustix::net::recv(&self.far, &mut buffer, RecvFlags::empty()) {
                Ok((count, _)) => {
                    let frame = &buffer[12..count.max(12)];
                    let answer = [0x77, 0x77, high, low];
                    if frame.len() >= L4 + 8
                        && frame[IP + 9] == 1
                        && frame[L4 + 4..L4 + 8] == answer
                    {
                        return;
                    }
                }
                Err(_) => thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Feeds frames shorter than headers, and longer than anything.
    fn frames_that_are_none(&mut self, random: &mut Random) {
        for len in [1, 11, 12, 13, 25] {
            self.feed_raw(&vec![0; len]);
        }
        for len in [65_554, 70_000, 100_000] {
            self.feed(Header::default(), &vec![0; len]);
        }
        let jumbo = frame::ethernet(frame::IPV4, &random.bytes(65_535));
        self.feed(Header::default(), &jumbo);
    }

    /// Feeds invalid kinds and sizes of segmentation, and those of another packet.
    fn wrong_kinds(&mut self) {
        let [tcp4, tcp6, udp4, udp6] = packets(&HOSTILE.repeat(2500));
        for kind in [2, 3, 6, 7, 0x21, 0x40, 0x7f, 0x83] {
            // Unknown, or never negotiated.
            self.feed(Header { kind, size: 1000, ..Header::default() }, &tcp4.0);
        }
        for size in [0, 0xffff] {
            for kind in [TCP4, TCP6, UDP, TCP4 | 0x80] {
                self.feed(Header { kind, size, ..Header::default() }, &tcp4.0);
            }
        }
        let lies = [(TCP6, &tcp4), (UDP, &tcp4), (TCP4, &tcp6), (UDP, &tcp6)];
        for (kind, (frame, header)) in lies {
            let header = Header { kind, size: 1000, ..*header };
            self.drops(DropReason::OffloadMalformed, header, frame);
        }
        for (frame, header) in [&udp4, &udp6] {
            for kind in [TCP4, TCP6, UDP | 0x80] {
                let header = Header { kind, size: 1000, ..*header };
                self.drops(DropReason::OffloadMalformed, header, frame);
            }
            // Without a partial checksum, and with more datagrams than allowed.
            let bare = Header { flags: 0, kind: UDP, size: 1000, ..*header };
            self.drops(DropReason::OffloadMalformed, bare, frame);
            let many = Header { kind: UDP, size: 1, ..*header };
            self.drops(DropReason::OffloadMalformed, many, frame);
        }
        for (frame, header) in [&tcp4, &tcp6] {
            let kind = if frame[IP] == 0x45 { TCP4 } else { TCP6 };
            // Twenty thousand segments of one byte.
            self.feed(Header { kind, size: 1, ..*header }, frame);
        }
        let echo = frame::icmp(PROGRAM.into(), GATEWAY.into(), [8, 0, 0, 0, 0, 0], &[0; 2000]);
        let question = frame::arp(1, frame::PROGRAM_MAC, PROGRAM, GATEWAY);
        for kind in [TCP4, TCP6, UDP] {
            self.feed(Header { kind, size: 100, ..Header::default() }, &echo);
            self.feed(Header { kind, size: 100, ..Header::default() }, &question);
        }
    }

    /// Feeds partial checksums whose place is outside.
    fn wrong_checksum_places(&mut self) {
        for (frame, header) in packets(&HOSTILE.repeat(60)) {
            let right = header.offset;
            let places = [
                (0, 0),
                (0, right),
                (IP as u16, 10),
                (header.start, right + 1),
                (header.start, 0),
                (header.start + 1, right),
                (header.start, 0xffff),
                (frame.len() as u16, 0),
                (frame.len() as u16 - 1, 0),
                (0xffff, 0xffff),
            ];
            for (start, offset) in places {
                let header = Header { start, offset, ..header };
                self.drops(DropReason::OffloadMalformed, header, &frame);
            }
        }
    }

    /// Feeds correct fields, with any value of the header length, which must not be trusted.
    fn right(&mut self) {
        for (source, host) in [(PROGRAM.into(), HOST.into()), (PROGRAM6.into(), HOST6.into())] {
            for header_len in [0, 1, 42, 0xffff] {
                let (frame, header) = datagram(source, host, WELCOMING, &WELCOME.repeat(100));
                self.feed(Header { header_len, ..header }, &frame);
                let (frame, header) = datagram(source, host, WELCOMING, &WELCOME.repeat(1000));
                self.feed(Header { header_len, kind: UDP, size: 800, ..header }, &frame);
                self.welcome += 1 + 10;
            }
        }
    }

    fn garbage(&mut self, random: &mut Random) {
        for _ in 0..64 {
            let len = random.below(3000);
            let [mut tcp4, _, mut udp4, _] = packets(&random.bytes(len));
            for (frame, _) in [&mut tcp4, &mut udp4] {
                // An address without a host, so that correct packets do no harm.
                frame[IP + 16..IP + 20].copy_from_slice(&[198, 51, 100, 77]);
                frame[L4 + 2] = 1;
                frame::fix_ipv4(frame);
                let garbage = Header {
                    flags: random.next() as u8,
                    kind: [0, TCP4, UDP, random.next() as u8][random.below(4)],
                    header_len: random.word(),
                    size: random.word(),
                    start: [L4 as u16, random.word()][random.below(2)],
                    offset: [6, 16, random.word()][random.below(3)],
                };
                self.feed(garbage, frame);
            }
        }
    }

    fn judge(&self, report: &Report) {
        for &(reason, expected) in &self.expected {
            let counted = report.stack.dropped(reason);
            assert!(counted >= expected, "{}: {counted} of {expected}", reason.name());
        }
        let rounds = ROUNDS as u64;
        assert_eq!(report.tap.receive_short, 5 * rounds, "short frames");
        assert_eq!(report.tap.receive_long, 3 * rounds, "long frames");
        assert!(report.tap.receive_bad_header >= 16 * rounds, "kinds and sizes that cannot be");
    }
}

/// Returns TCP and UDP over both IP versions, with correct headers for them.
fn packets(payload: &[u8]) -> [(Vec<u8>, Header); 4] {
    let segment = |source: IpAddr, host: IpAddr| {
        let segment = Segment::new((source, 4000), (host, CLOSED), ACK);
        let frame = Segment { payload, ..segment }.frame();
        let start = if source.is_ipv4() { L4 } else { L4_6 } as u16;
        (frame, Header { flags: NEEDS_CHECKSUM, start, offset: 16, ..Header::default() })
    };
    [
        segment(PROGRAM.into(), HOST.into()),
        segment(PROGRAM6.into(), HOST6.into()),
        datagram(PROGRAM.into(), HOST.into(), TRAP, payload),
        datagram(PROGRAM6.into(), HOST6.into(), TRAP, payload),
    ]
}

fn datagram(source: IpAddr, host: IpAddr, port: u16, payload: &[u8]) -> (Vec<u8>, Header) {
    let frame = frame::udp((source, 4000), (host, port), payload);
    let start = if source.is_ipv4() { L4 } else { L4_6 } as u16;
    (frame, Header { flags: NEEDS_CHECKSUM, start, offset: 6, ..Header::default() })
}

fn peak_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
