//! An established connection attacked by its own peer: a small TCP on a packet socket.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::frame::{self, ACK, End, FIN, IP, L4, PSH, RST, SYN, Segment, URG};
use crate::host::{ECHO, HOST, HOSTILE};
use crate::injector::Injector;
use crate::random::Random;
use crate::sys::{PacketSocket, Sees};

/// Source address of the connections.
static SOURCE: OnceLock<Ipv4Addr> = OnceLock::new();
const PATIENCE: Duration = Duration::from_secs(60);

/// One connection of the attacker.
pub(super) struct Flow<'a> {
    socket: &'a PacketSocket,
    from: End,
    to: End,
    /// Next sequence number of the attacker; `peer_next` is the peer's.
    pub(super) next: u32,
    peer_next: u32,
    /// Bytes received from the peer.
    received: Vec<u8>,
    stamp: u32,
    peer_stamp: u32,
}

impl<'a> Flow<'a> {
    /// Connects; returns `None` if there is no answer.
    pub(super) fn connect(
        socket: &'a PacketSocket,
        injector: &mut Injector,
        random: &mut Random,
        port: u16,
        mss: u16,
    ) -> Option<Self> {
        // Never the same port: a second connection with the same addresses would belong to the
        // first, even to one of a killed process.
        static PORT: AtomicU16 = AtomicU16::new(0);
        // Relaxed: a counter.
        let number = (std::process::id() as u16).wrapping_mul(997) % 50_000;
        let own = 10_000 + (number + PORT.fetch_add(1, Ordering::Relaxed)) % 50_000;
        let from = (source().into(), own);
        let to = (IpAddr::from(HOST), port);
        let next = random.next() as u32;
        let (received, stamp) = (Vec::new(), 1_000_000);
        let mut flow =
            Self { socket, from, to, next, peer_next: 0, received, stamp, peer_stamp: 0 };
        let mut options = flow.stamps();
        options.extend([2, 4, (mss >> 8) as u8, mss as u8, 1, 3, 3, 255]);
        let syn = Segment { options: &options, ..flow.segment(SYN, &[]) };
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            injector.send(&Segment { acknowledgment: 0, ..syn.clone() }.frame());
            if flow.wait(|flow| flow.peer_next != 0, Duration::from_millis(500)) {
                flow.next = flow.next.wrapping_add(1);
                injector.send(&flow.segment_frame(ACK, &[]));
                return Some(flow);
            }
        }
        None
    }

    fn stamps(&self) -> Vec<u8> {
        let (ours, theirs) = (self.stamp.to_be_bytes(), self.peer_stamp.to_be_bytes());
        [&[1, 1, 8, 10], &ours[..], &theirs[..]].concat()
    }

    fn segment<'b>(&self, flags: u8, payload: &'b [u8]) -> Segment<'b> {
        Segment {
            sequence: self.next,
            acknowledgment: self.peer_next,
            payload,
            ..Segment::new(self.from, self.to, flags)
        }
    }

    pub(super) fn segment_frame(&self, flags: u8, payload: &[u8]) -> Vec<u8> {
        Segment { options: &self.stamps(), ..self.segment(flags, payload) }.frame()
    }

    /// Returns a segment at `offset` from the next sequence number.
    pub(super) fn displaced(&self, offset: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let sequence = self.next.wrapping_add(offset);
        let options = &self.stamps();
        Segment { sequence, options, ..self.segment(flags, payload) }.frame()
    }

    /// Sends `bytes` and waits until `whole` has been echoed. Acknowledges nothing.
    fn exchange(&mut self, injector: &mut Injector, bytes: &[u8], whole: &[u8]) {
        let frame = self.segment_frame(ACK | PSH, bytes);
        self.stamp += 1;
        let started = Instant::now();
        self.received.clear();
        while self.received.len() < whole.len() {
            assert!(started.elapsed() < PATIENCE, "no echo: {:?}", self.received);
            injector.send(&frame);
            self.wait(|flow| flow.received.len() >= whole.len(), Duration::from_millis(500));
        }
        assert_eq!(self.received, whole, "the echo has other bytes");
        self.next = self.next.wrapping_add(bytes.len() as u32);
    }

    /// Receives until `done`; returns false if that takes too long.
    fn wait(&mut self, done: impl Fn(&Self) -> bool, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut buffer = vec![0; 70_000];
        while !done(self) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            if let Some(frame) = self.socket.receive(&mut buffer, left) {
                self.take(frame);
            }
        }
        true
    }

    fn take(&mut self, frame: &[u8]) {
        let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        if frame.len() < L4 + 20 || frame[L4 + 2..L4 + 4] != self.from.1.to_be_bytes() {
            return;
        }
        let (sequence, flags) = (word(L4 + 4), frame[L4 + 13]);
        let data = L4 + usize::from(frame[L4 + 12] >> 4) * 4;
        let end = IP + usize::from(u16::from_be_bytes([frame[IP + 2], frame[IP + 3]]));
        assert_eq!(flags & RST, 0, "the connection was reset");
        if data >= L4 + 32 && frame[L4 + 20..L4 + 24] == [1, 1, 8, 10] {
            self.peer_stamp = word(L4 + 24);
        }
        if flags & SYN != 0 {
            self.peer_next = sequence.wrapping_add(1);
        } else if sequence == self.peer_next {
            self.received.extend(&frame[data..end.min(frame.len())]);
            self.peer_next = sequence.wrapping_add((end - data) as u32);
        }
    }
}

/// Returns the source address: by default an address outside. Packets to it leave by the program's
/// interface, and its kernel does not answer them.
fn source() -> Ipv4Addr {
    *SOURCE.get_or_init(|| Ipv4Addr::new(203, 0, 113, 77))
}

/// Makes connections of this process come from `address`.
pub(super) fn come_from(address: Ipv4Addr) {
    let _ = SOURCE.set(address);
}

pub(super) fn open_socket() -> PacketSocket {
    let socket = PacketSocket::open("tap0", Sees::Everything).expect("a packet socket");
    socket.only_to(source()).expect("a filter");
    socket
}

/// Goal: a peer's segments on its own connection end neither the connection nor anything else, and
/// no byte is accepted at a wrong place. Method: an echo connection with absurd options; segments
/// that are out of the window, overlap, reset, acknowledge data never sent or have old timestamps,
/// and forged ICMP errors; an echo after each.
pub(super) fn round(injector: &mut Injector, random: &mut Random) {
    let socket = open_socket();
    for mss in [0, 1, 47, 1460, 65_535] {
        let flow = Flow::connect(&socket, injector, random, ECHO, mss);
        let mut flow = flow.expect("a connection");
        flow.exchange(injector, b"first", b"first");
        out_of_window(injector, &flow, random);
        flow.exchange(injector, b"second", b"second");
        errors(injector, &flow);
        flow.exchange(injector, b"third", b"third");
        overlaps(injector, &mut flow);
        flow.exchange(injector, b"fourth", b"fourth");
        // It sends several FINs, and data after them.
        injector.send(&flow.segment_frame(ACK | FIN, &[]));
        injector.send(&flow.segment_frame(ACK | FIN, &[]));
        injector.send(&flow.displaced(1, ACK | PSH, HOSTILE));
        injector.send(&flow.displaced(0, ACK | PSH | FIN, HOSTILE));
        injector.wait_for_gateway();
        injector.send(&flow.displaced(1, RST | ACK, &[]));
    }
}

fn out_of_window(injector: &mut Injector, flow: &Flow<'_>, random: &mut Random) {
    for _ in 0..200 {
        // Beyond the largest possible window, or before acknowledged data.
        let distance = (64 << 20) + random.next() as u32 % (1 << 30);
        let offset = if random.below(2) == 0 { distance } else { distance.wrapping_neg() };
        let flags = [ACK | PSH, ACK | FIN, RST, RST | ACK, SYN, SYN | ACK][random.below(6)];
        let payload: &[u8] = if flags == ACK | PSH { HOSTILE } else { &[] };
        injector.drops("tcp_unacceptable", &flow.displaced(offset, flags, payload));
    }
    for offset in [1, 100, 10_000] {
        // In the window but not at its edge (RFC 5961).
        injector.drops("tcp_unacceptable", &flow.displaced(offset, RST, &[]));
        injector.drops("tcp_unacceptable", &flow.displaced(offset, SYN | ACK, &[]));
    }
    injector.drops("tcp_unacceptable", &flow.displaced(0, PSH | URG, HOSTILE));
    let stamps = flow.stamps();
    for acknowledgment in [1 << 20, 1 << 30, 1 << 31] {
        // Acknowledges data that was never sent.
        let acknowledgment = flow.peer_next.wrapping_add(acknowledgment);
        let segment = flow.segment(ACK | PSH, HOSTILE);
        let segment = Segment { acknowledgment, options: &stamps, ..segment };
        injector.drops("tcp_unacceptable", &segment.frame());
    }
    let old = [&[1, 1, 8, 10], &1u32.to_be_bytes()[..], &[0; 4]].concat();
    let segment = Segment { options: &old, ..flow.segment(ACK | PSH, HOSTILE) };
    injector.drops("tcp_unacceptable", &segment.frame());
}

/// Sends ICMP errors about the gateway's segments in flight, and about others.
fn errors(injector: &mut Injector, flow: &Flow<'_>) {
    for (code, mtu) in [(4, 0), (4, 1), (4, 68), (4, 0xffff), (0, 0), (1, 0), (2, 0), (3, 0)] {
        for back in [1, 3, 1 << 20, 0u32.wrapping_sub(1 << 20)] {
            let sequence = flow.peer_next.wrapping_sub(back);
            let quoted = Segment { sequence, ..Segment::new(flow.to, flow.from, ACK) }.frame();
            let mut head = [3, code, 0, 0, 0, 0];
            frame::put(&mut head, 4, mtu);
            injector.send(&frame::icmp(flow.from.0, flow.to.0, head, &quoted[IP..]));
        }
    }
}

/// Sends data twice with different bytes. Data in order stands as first received; of data out of
/// order, either copy may.
fn overlaps(injector: &mut Injector, flow: &mut Flow<'_>) {
    flow.exchange(injector, b"AAAAAAAA", b"AAAAAAAA");
    let before = 0u32.wrapping_sub(4);
    injector.send(&flow.displaced(before, ACK | PSH, b"XXXXBBBB"));
    flow.next = flow.next.wrapping_add(4);
    flow.exchange(injector, b"", b"BBBB");
    // Out of order and overlapping, then a segment that fills the hole and more.
    for (offset, bytes) in [(8, b"CCCCCCCC"), (4, b"DDDDDDDD"), (12, b"EEEEEEEE"), (2, b"FFFFFFFF")]
    {
        injector.send(&flow.displaced(offset, ACK | PSH, bytes));
    }
    flow.received.clear();
    injector.send(&flow.displaced(0, ACK | PSH, b"GGGG"));
    let whole = flow.wait(|flow| flow.received.len() >= 20, PATIENCE);
    assert!(whole, "the hole is filled and not all came back: {:?}", flow.received);
    let text = String::from_utf8_lossy(&flow.received).into_owned();
    let honest = text.starts_with("GGGG") && text.bytes().all(|byte| b"CDEFG".contains(&byte));
    assert!(honest && text.len() == 20, "{text}");
    flow.next = flow.next.wrapping_add(20);
    // One byte less of window at each end.
    injector.send(&flow.segment_frame(ACK, &[]));
}
