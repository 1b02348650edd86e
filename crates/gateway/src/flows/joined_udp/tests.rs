//! Joined UDP flows over this machine's loopback, which is both the host's and the program's.

use super::*;
use rustix::net::sockopt;
use std::net::UdpSocket as StdSocket;
use std::time::Duration;
use towpath_io::reactor::Events;
use towpath_packet::MemoryConfig;

/// Longest wait for a datagram that is in flight on the loopback.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a turn waits for events.
const STEP: Duration = Duration::from_millis(10);

struct Rig {
    joined: JoinedUdp,
    reactor: Reactor,
    memory: Memory,
    buffer: ReceiveBuffer,
    counters: GatewayCounters,
    now: Instant,
}

impl Rig {
    fn new(flows_max: usize) -> Self {
        Self {
            joined: JoinedUdp::new(flows_max),
            reactor: Reactor::new().unwrap(),
            memory: Memory::new(MemoryConfig::within(16 << 20)),
            buffer: ReceiveBuffer::new(),
            counters: GatewayCounters::default(),
            now: Instant::START,
        }
    }

    /// Makes a port inside that leads to the port of `host`; returns its address.
    fn lead_to(&mut self, host: &StdSocket) -> (SocketAddr, Slot) {
        let host = host.local_addr().unwrap();
        let socket = UdpSocket::bind(SocketAddr::new(host.ip(), 0), None).unwrap();
        let inside = socket.local().unwrap();
        let joined = JoinedDatagrams { socket, host_port: host.port() };
        (inside, self.joined.join(joined, &self.reactor).unwrap())
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut JoinedUdp, &mut Around<'_>) -> R) -> R {
        let Self { joined, reactor, memory, buffer, counters, now } = self;
        act(joined, &mut Around { reactor, memory, buffer, counters, now: *now })
    }

    fn turn(&mut self) {
        let timeout = if self.joined.has_work() { Duration::ZERO } else { STEP };
        let mut events = Events::new();
        self.reactor.wait(Some(timeout), &mut events).unwrap();
        for event in events.iter() {
            self.with(|joined, cx| match Token::decode(event.token) {
                Some(Token::JoinedUdp(slot, end)) => joined.ready(slot, end, event.ready, cx),
                token => panic!("{token:?}"),
            });
        }
        self.with(JoinedUdp::go_on);
    }

    fn run_until(&mut self, mut is_so: impl FnMut(&Self) -> bool) {
        let mut turns = 0;
        while !is_so(self) {
            self.turn();
            turns += 1;
            assert!(STEP * turns < PATIENCE, "nothing happens: {:?}", self.counters);
        }
    }
}

/// Opens a socket whose reads time out.
fn open(address: &str) -> StdSocket {
    let socket = StdSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Returns true if a datagram waits.
fn has_datagram(socket: &StdSocket) -> bool {
    socket.set_nonblocking(true).unwrap();
    let waits = socket.peek(&mut [0; 70_000]).is_ok();
    socket.set_nonblocking(false).unwrap();
    waits
}

/// Receives a datagram; returns its bytes and its sender.
fn receive(socket: &StdSocket) -> (Vec<u8>, SocketAddr) {
    let mut bytes = vec![0; 70_000];
    let (length, from) = socket.recv_from(&mut bytes).unwrap();
    bytes.truncate(length);
    (bytes, from)
}

/// Goal: datagrams of each client reach the host unchanged, from a socket of its own, and answers
/// come back from the address that the client sent to; of all sizes, and in both families.
#[test]
fn clients_are_told_apart() {
    for loopback in ["127.0.0.1:0", "[::1]:0"] {
        let (mut rig, server) = (Rig::new(64), open(loopback));
        let (inside, _) = rig.lead_to(&server);
        let clients = [open(loopback), open(loopback)];
        let mut seen = Vec::new();
        for length in [0, 1, 1400, 9000, 65_507] {
            for (number, client) in clients.iter().enumerate() {
                let payload = vec![number as u8; length];
                client.send_to(&payload, inside).unwrap();
                rig.run_until(|_| has_datagram(&server));
                let (bytes, from) = receive(&server);
                assert!(bytes == payload && from != client.local_addr().unwrap());
                seen.push(from);
                server.send_to(&[&payload[..], b"!"].concat()[..length.max(1)], from).unwrap();
                rig.run_until(|_| has_datagram(client));
                let (bytes, from) = receive(client);
                assert_eq!((bytes.len(), from), (length.max(1), inside));
            }
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!((seen.len(), rig.joined.len(), rig.counters.joined_udp), (2, 2, 2));
        assert_eq!(rig.counters.joined_bytes_out, 2 * (1 + 1400 + 9000 + 65_507));
        assert_eq!(rig.counters.joined_bytes_in, 2 * (1 + 1 + 1400 + 9000 + 65_507));
        assert!(rig.joined.all_passed_on() && rig.counters.udp_dropped == 0);
    }
}

/// Goal: a burst of datagrams arrives whole and in order, though several leave in one call, and the
/// boundaries between them stay.
#[test]
fn bursts_keep_their_datagrams() {
    let (mut rig, server, client) = (Rig::new(64), open("127.0.0.1:0"), open("127.0.0.1:0"));
    sockopt::set_socket_recv_buffer_size(&server, 4 << 20).unwrap();
    let (inside, _) = rig.lead_to(&server);
    let sizes: Vec<usize> = (0..90).map(|number| if number % 10 == 9 { 7 } else { 300 }).collect();
    for (number, size) in sizes.iter().enumerate() {
        client.send_to(&vec![number as u8; *size], inside).unwrap();
    }
    let all: usize = sizes.iter().sum();
    rig.run_until(|rig| rig.counters.joined_bytes_out == all as u64);
    for (number, size) in sizes.iter().enumerate() {
        assert_eq!(receive(&server).0, vec![number as u8; *size]);
    }
    assert_eq!(rig.counters.udp_dropped, 0);
}

/// Goal: a datagram to a port that no program of the host uses is counted, and the flow works as
/// soon as one does; the flow of a client that is gone ends with the answer to it.
#[test]
fn sides_that_are_gone() {
    let (mut rig, server, client) = (Rig::new(64), open("127.0.0.1:0"), open("127.0.0.1:0"));
    let host = server.local_addr().unwrap();
    let (inside, _) = rig.lead_to(&server);
    drop(server);
    for refused in 1..=3 {
        client.send_to(b"lost", inside).unwrap();
        rig.run_until(|rig| rig.counters.joined_udp_refused >= refused);
    }
    let server = open(&host.to_string());
    client.send_to(b"found", inside).unwrap();
    rig.run_until(|rig| rig.counters.joined_bytes_out == 4 * 3 + 5);
    let (bytes, from) = receive(&server);
    assert_eq!((bytes.as_slice(), rig.joined.len()), (b"found".as_slice(), 1));
    drop(client);
    server.send_to(b"too late", from).unwrap();
    rig.run_until(|rig| rig.joined.len() == 0);
    assert!(rig.joined.index.is_empty());
}

/// Goal: at the bound, the port with most flows loses the one that was idle longest. Idle flows
/// end, and so do those of a socket that is closed.
#[test]
fn flows_end() {
    let (mut rig, server) = (Rig::new(1), open("127.0.0.1:0"));
    assert_eq!(rig.joined.limit, 16);
    let (few, _) = rig.lead_to(&server);
    let (many, port) = rig.lead_to(&server);
    let mut clients = Vec::new();
    for number in 0..20 {
        let client = open("127.0.0.1:0");
        client.send_to(b"x", if number < 3 { few } else { many }).unwrap();
        rig.now += Duration::from_millis(1);
        rig.run_until(|rig| rig.counters.joined_udp > number);
        clients.push(client);
    }
    assert_eq!((rig.joined.len(), rig.counters.evicted), (16, 4));
    let has = |rig: &Rig, client: &StdSocket| {
        let client = client.local_addr().unwrap();
        rig.joined.flows.iter().any(|(_, flow)| flow.program == client)
    };
    let left: Vec<bool> = clients.iter().map(|client| has(&rig, client)).collect();
    assert_eq!(left.iter().position(|has| !has), Some(3));
    assert!(left[..3].iter().chain(&left[7..]).all(|has| *has));

    rig.joined.leave(port);
    assert_eq!((rig.joined.len(), rig.joined.index.len()), (3, 3));
    assert!(StdSocket::bind(many).is_ok(), "the port is free");

    rig.now += IDLE - Duration::from_millis(18);
    clients[1].send_to(b"x", few).unwrap();
    rig.run_until(|rig| rig.counters.joined_bytes_out == 21);
    rig.now += Duration::from_millis(19);
    assert!(rig.joined.deadline().is_some_and(|at| at <= rig.now));
    rig.joined.expire(rig.now);
    assert!(rig.joined.len() == 1 && has(&rig, &clients[1]));
    rig.now += IDLE;
    rig.joined.expire(rig.now);
    assert_eq!((rig.joined.len(), rig.joined.deadline()), (0, None));
}
