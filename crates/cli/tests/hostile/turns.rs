//! New flows wait until open flows have had their turn: shown turn by turn, without a clock.
//!
//! The worker's device is a socket, as in [`crate::device`]. A file that is always readable makes
//! each call of [`Worker::run_until`] one turn of its loop.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rustix::net::{AddressFamily, RecvFlags, SendFlags};
use towpath_gateway::config::Config;
use towpath_gateway::worker::Worker;
use towpath_io::tap::{Features, Tap};

use crate::device;
use crate::frame::{self, ACK, IP, L4, PROGRAM, SYN, Segment};
use crate::host::{HOST, Host, NOBODY, SINK, WELCOME, WELCOMING};

/// Name of the test.
pub(super) const NAME: &str = "new_flows_wait_for_open_ones";

/// How long the host's kernel may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Small frames that a turn reads: `READ_SMALL_PER_TURN` (docs/limits.md).
const READ_PER_TURN: u64 = 16;
/// Frames of a flood that one turn reads, with one more, and finds that none are left.
const FLOOD: u64 = READ_PER_TURN - 2;
/// Of the turns that leave frames unread, one in this many begins a flow: `CROWDED_TURNS`.
const CROWDED_TURNS: u64 = 4;
/// Bytes of datagrams that a turn reads from host sockets (docs/theory/gateway.md).
const DATAGRAM_BYTES_PER_TURN: u64 = 512 << 10;

/// Goal: of a flood of connections or datagrams that each need a host socket, a turn serves one,
/// after everything for open flows. Nothing is lost while there is room to wait. A connection from
/// the program's own address does not wait for those with other sources.
pub(super) fn run() -> Result<(), Failed> {
    let _host = Host::new()?;
    let mut steps = Steps::new()?;
    connections(&mut steps);
    datagrams(&mut steps);
    burst(&mut steps);
    floods_of_the_host(&mut steps);
    crowds(&mut steps);
    Ok(())
}

/// Goal: turns that leave frames unread begin fewer flows, and read no more than their number of
/// frames; the next turn that reads all begins one.
fn crowds(steps: &mut Steps) {
    let mut ports = 7000..;
    let mut feed = |steps: &Steps, count: u64| {
        for port in ports.by_ref().take(count as usize) {
            steps.feed(&frame::udp((PROGRAM.into(), port), (NOBODY.into(), 80), b"noise"));
        }
    };
    // Frames that came alone before are read one by one for a while; these come together.
    feed(steps, 2 * READ_PER_TURN);
    (0..3 * READ_PER_TURN).for_each(|_| steps.turn());
    let (before, mut fed) = (steps.counters().udp, 0);
    for turn in 1..=2 * CROWDED_TURNS {
        feed(steps, READ_PER_TURN + 1);
        fed += READ_PER_TURN + 1;
        steps.turn();
        assert_eq!(steps.counters().udp - before, turn / CROWDED_TURNS, "turn {turn}");
    }
    steps.turn();
    assert_eq!(steps.counters().udp - before, 3, "the remaining frames were read");
    (3..fed).for_each(|_| steps.turn());
    assert_eq!(steps.counters().udp - before, fed, "all begin");
    assert_eq!(steps.counters().messages_displaced, 0);
}

/// Goal: datagrams of the host, too, get as many bytes of a turn as TCP, however many sockets they
/// wait in. Each socket has its turn, and nothing is lost.
fn floods_of_the_host(steps: &mut Steps) {
    const FLOWS: u16 = 8;
    const EACH: u64 = 3;
    let server = UdpSocket::bind((HOST, 0)).expect("a server");
    server.set_read_timeout(Some(PATIENCE)).expect("a setting");
    let at = server.local_addr().expect("an address");
    for port in 0..FLOWS {
        let from = (IpAddr::from(PROGRAM), 6000 + port);
        steps.feed(&frame::udp(from, (HOST.into(), at.port()), b"ask"));
        steps.turn();
    }
    let before = steps.counters();
    let datagram = vec![7; 60_000];
    for _ in 0..FLOWS {
        let (_, flow) = server.recv_from(&mut [0; 9]).expect("it asks");
        (0..EACH).for_each(|_| {
            assert_eq!(server.send_to(&datagram, flow).expect("it is sent"), datagram.len())
        });
    }
    let all = u64::from(FLOWS) * EACH * datagram.len() as u64;
    let (mut turns, mut last) = (0, before.bytes_in);
    while last < before.bytes_in + all {
        steps.turn();
        let now = steps.counters().bytes_in;
        assert!(now - last < DATAGRAM_BYTES_PER_TURN + datagram.len() as u64, "{}", now - last);
        (turns, last) = (turns + 1, now);
        assert!(turns < 100, "{} of {all} bytes came", last - before.bytes_in);
    }
    assert!(turns > 2 && steps.counters().udp_dropped == before.udp_dropped);
}

fn connections(steps: &mut Steps) {
    steps.feed(&honest());
    steps.turn();
    let before = steps.counters();
    assert_eq!(before.udp, 1, "the honest flow is open");
    for port in 0..FLOOD as u16 {
        let stranger = IpAddr::from(Ipv4Addr::new(10, 9, 9, 9));
        steps.feed(&Segment::new((stranger, 1000 + port), (NOBODY.into(), 80), SYN).frame());
    }
    steps.feed(&honest());
    steps.turn();
    let first = steps.counters();
    assert_eq!(first.tcp_out - before.tcp_out, 1);
    assert_eq!(first.bytes_out - before.bytes_out, WELCOME.len() as u64, "the honest datagram");
    steps.feed(&Segment::new((PROGRAM.into(), 999), (HOST.into(), SINK), SYN).frame());
    for turn in 2..=FLOOD + 1 {
        if turn == 4 {
            wait_for_sink();
        }
        steps.turn();
        let begun = steps.counters().tcp_out - before.tcp_out;
        assert_eq!(begun, turn);
        // Two turns to begin, as one in four is for other addresses, and one for the host's answer.
        assert!(turn < 4 || steps.answered, "the program's own connection waits in turn {turn}");
    }
    assert_eq!(steps.counters().connections_displaced, 0);
}

/// Waits until the host's own connection to the sink is established, so that the next turn sees it.
fn wait_for_sink() {
    let (at, established) = (format!(":{SINK:04X}"), "01");
    let started = Instant::now();
    loop {
        let table = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("a table");
        let mut rows = table.lines().map(|line| line.split_ascii_whitespace());
        if rows.any(|mut row| {
            row.nth(2).is_some_and(|remote| remote.ends_with(&at))
                && row.next() == Some(established)
        }) {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "no connection to the sink");
        thread::sleep(Duration::from_millis(1));
    }
}

fn datagrams(steps: &mut Steps) {
    let before = steps.counters();
    for port in 0..FLOOD as u16 {
        let from = (IpAddr::from(PROGRAM), 1000 + port);
        steps.feed(&frame::udp(from, (NOBODY.into(), 80), b"noise"));
    }
    steps.feed(&honest());
    for turn in 1..=FLOOD {
        steps.turn();
        let now = steps.counters();
        let sent = now.bytes_out - before.bytes_out;
        assert_eq!(now.udp - before.udp, turn);
        assert_eq!(sent, WELCOME.len() as u64 + 5 * (now.udp - before.udp), "turn {turn}");
    }
    assert_eq!(steps.counters().messages_displaced, 0);
}

/// Goal: a burst of a new flow leaves whole and in order, also after others that wait. Method: two
/// datagrams of other flows, then the burst, each numbered; more of the burst arrives while the
/// first of it wait.
fn burst(steps: &mut Steps) {
    let server = UdpSocket::bind((HOST, 0)).expect("a server");
    server.set_read_timeout(Some(PATIENCE)).expect("a setting");
    let port = server.local_addr().expect("an address").port();
    for port in 0..2 {
        let from = (IpAddr::from(PROGRAM), 3000 + port);
        steps.feed(&frame::udp(from, (NOBODY.into(), 80), b"noise"));
    }
    for round in 0..3 {
        for number in 0..20 {
            let from = (IpAddr::from(PROGRAM), 2999);
            steps.feed(&frame::udp(from, (HOST.into(), port), &[20 * round + number]));
        }
        steps.turn();
    }
    // A turn reads less than a round sends.
    (0..3).for_each(|_| steps.turn());
    let mut buffer = [0; 16];
    for expected in 0..60 {
        let count = server.recv(&mut buffer).expect("it arrives");
        assert_eq!(buffer[..count], [expected]);
    }
}

/// Returns a datagram of the open flow.
fn honest() -> Vec<u8> {
    frame::udp((PROGRAM.into(), 4000), (HOST.into(), WELCOMING), WELCOME)
}

/// A worker that runs one turn at a time.
struct Steps {
    worker: Worker,
    far: OwnedFd,
    always: PipeReader,
    _written: PipeWriter,
    /// The sink's SYN and ACK have arrived.
    answered: bool,
}

impl Steps {
    fn new() -> io::Result<Self> {
        let (near, far) = device::pair(AddressFamily::UNIX)?;
        let tap = Tap::from_fd(near, Features::NONE, 1500);
        let worker = Worker::new(&Config::default(), tap).map_err(io::Error::other)?;
        let (always, mut written) = io::pipe()?;
        written.write_all(b"!")?;
        Ok(Self { worker, far, always, _written: written, answered: false })
    }

    fn feed(&self, frame: &[u8]) {
        let bytes = [&[0; 12], frame].concat();
        rustix::net::send(&self.far, &bytes, SendFlags::NOSIGNAL).expect("the socket has room");
    }

    fn turn(&mut self) {
        self.worker.run_until(&[self.always.as_fd()]).expect("a turn");
        let mut buffer = [0; 2048];
        while let Ok((count, _)) = rustix::net::recv(&self.far, &mut buffer, RecvFlags::empty()) {
            let frame = &buffer[12..count];
            self.answered |= frame.len() > L4 + 13
                && frame[IP + 9] == frame::TCP
                && frame[L4..L4 + 2] == SINK.to_be_bytes()
                && frame[L4 + 13] == SYN | ACK;
        }
    }

    fn counters(&self) -> towpath_gateway::flows::GatewayCounters {
        self.worker.report().gateway
    }
}
