//! A gateway with real host sockets on the loopback. The test replaces the worker, so that it sets
//! the time and the port by which a guest's packets arrive.

use super::*;
use crate::config::Config;
use crate::egress::audit::Audit;
use crate::egress::enforcer::{Enforcer, Message};
use crate::egress::greeting::quic::tests::initial;
use crate::egress::meter::Metered;
use crate::egress::policy::Policy;
use crate::egress::rule::{Action, Check, Destination, Limits as FlowLimits, Rule};
use crate::flows::destinations::GREETING_WITHIN;
use crate::flows::testing::Bench;
use crate::flows::{GatewayCounters, Load};
use crate::publish::{HostPort, Protocol, Publish, Target as PublishTarget};
use std::fs::File;
use std::io::{Read, Seek};
use std::net::{Ipv4Addr, UdpSocket as StdSocket};

/// Longest wait for a datagram that is in flight on the loopback.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing must arrive before the test concludes that nothing will.
const SILENCE: Duration = Duration::from_millis(50);
/// Port of the program.
const PROGRAM: u16 = 4000;
/// A server of QUIC outside.
const SERVER: ([u8; 4], u16) = ([192, 0, 2, 1], 443);

impl Bench {
    /// Makes the guest at a port of the switch send a datagram, which waits if its flow is new.
    fn ask(&mut self, port: Option<u16>, program: SocketAddr, to: SocketAddr, payload: &[u8]) {
        let mut packet = self.memory.packet().expect("a handle");
        packet.set_ingress(port);
        let small = payload.len() <= self.memory.small.frame_bytes();
        let pool = if small { &mut self.memory.small } else { &mut self.memory.large };
        let mut frame = pool.take().expect("a frame");
        frame[..payload.len()].copy_from_slice(payload);
        packet.push_piece(frame.freeze(payload.len())).expect("room");
        let (local, remote) = (to, program);
        let datagram = Datagram { local, remote, packet, segment_size: None, tos: 0, ttl: 64 };
        self.with(|gateway, io| gateway.on_datagram(datagram, io));
    }

    /// Sends a datagram, and begins its flow.
    fn send(&mut self, port: Option<u16>, program: SocketAddr, to: SocketAddr, payload: &[u8]) {
        self.ask(port, program, to, payload);
        self.begin();
    }

    /// Begins flows for all newcomers.
    fn begin(&mut self) {
        while self.with(|gateway, io| gateway.begin_flows(Load::Busy, io)) {}
    }

    /// Reads host sockets until `is_done`, or until nothing arrives for a while.
    fn turns(&mut self, is_done: impl Fn(&Gateway) -> bool) {
        let mut waited = Duration::ZERO;
        while !is_done(&self.gateway) && waited < PATIENCE {
            waited += if self.serve_events(SILENCE) { Duration::ZERO } else { SILENCE };
            self.with(|gateway, io| gateway.continue_flows(io));
        }
    }

    /// Publishes a port that leads to the program's; returns the port and its address on the host.
    fn publish(&mut self) -> (HostPort, SocketAddr) {
        let host = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), free_port());
        let publish = Publish {
            protocol: Protocol::Udp,
            host: Some(host.ip()),
            interface: None,
            host_port: host.port(),
            program_port: PROGRAM,
            target: PublishTarget::Program,
            optional: false,
        };
        self.gateway.publish(&publish, &self.reactor).expect("a free port");
        (publish.host_port(), host)
    }
}

fn bench(config: Config) -> Bench {
    Bench::new(&config, vec![])
}

fn program(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 2, last], port))
}

/// Returns a socket of the host at this address of the loopback.
fn peer(last: u8) -> StdSocket {
    let socket = StdSocket::bind((Ipv4Addr::new(127, 0, 0, last), 0)).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

fn free_port() -> u16 {
    peer(1).local_addr().expect("an address").port()
}

/// Returns the next datagram and its sender.
fn receive(socket: &StdSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2048];
    let (len, from) = socket.recv_from(&mut buffer).expect("a datagram");
    (buffer[..len].to_vec(), from)
}

fn local(socket: &StdSocket) -> SocketAddr {
    socket.local_addr().expect("an address")
}

/// Goal: datagrams from a stranger are counted and do not keep the mapping alive; those of the
/// program's peers do (RFC 4787 REQ-6).
#[test]
fn strangers_keep_no_mapping_alive() {
    for (from, is_kept) in [(2, false), (1, true)] {
        let mut bench = bench(Config::default());
        let friend = peer(1);
        bench.send(None, program(15, PROGRAM), local(&friend), b"hello");
        let (_, mapped) = receive(&friend);
        let mapped = SocketAddr::new(local(&friend).ip(), mapped.port());
        let other = peer(from);
        for sent in 1..=8 {
            bench.later(Duration::from_secs(50));
            other.send_to(b"again", mapped).expect("sent");
            let seen = |counters: &GatewayCounters| counters.udp_filtered + counters.bytes_in / 5;
            bench.turns(|gateway| gateway.udp.len() == 0 || seen(&gateway.counters) == sent);
        }
        assert_eq!(bench.gateway.udp.len(), usize::from(is_kept), "datagrams of {other:?}");
    }
}

/// Goal: each of a hundred clients on the host's loopback that ask a published port is answered,
/// after all of them have asked.
#[test]
fn many_clients_of_a_published_port_are_answered() {
    let mut bench = bench(Config::default());
    let (_, host) = bench.publish();
    let clients: Vec<StdSocket> = (0..100).map(|_| peer(1)).collect();
    for (index, client) in clients.iter().enumerate() {
        client.send_to(b"question", host).expect("sent");
        bench.turns(|gateway| gateway.counters.bytes_in == 8 * (index as u64 + 1));
    }
    for client in &clients {
        let inside = SocketAddr::from(([10, 0, 2, 2], local(client).port()));
        bench.send(None, program(15, PROGRAM), inside, b"answer");
    }
    for client in &clients {
        assert_eq!(receive(client), (b"answer".to_vec(), host));
    }
    assert_eq!(bench.gateway.counters.udp_dropped, 0);
}

/// Goal: answers to a client on the host's loopback reach it if the gateway's address, by which the
/// program knows that client, is a host outside as well, or is mapped to the loopback.
#[test]
fn answers_to_a_shared_gateway_reach_the_client() {
    let gateway = IpAddr::from([10, 0, 2, 2]);
    let shared = Config { shared_gateways: vec![gateway], ..Config::default() };
    let mapped = Config { host_loopback: vec![gateway], ..Config::default() };
    for config in [shared, mapped] {
        let mut bench = bench(config);
        let (_, host) = bench.publish();
        let client = peer(1);
        client.send_to(b"question", host).expect("sent");
        bench.turns(|gateway| gateway.counters.bytes_in == 8);
        let inside = SocketAddr::new(gateway, local(&client).port());
        bench.send(None, program(15, PROGRAM), inside, b"answer");
        assert_eq!(receive(&client), (b"answer".to_vec(), host));
    }
}

/// Goal: datagrams of the program to a client of a port that is no longer published leave like
/// those to any other host.
#[test]
fn a_port_published_no_more_loses_nothing() {
    let mut bench = bench(Config::default());
    let (port, host) = bench.publish();
    let client = peer(1);
    client.send_to(b"question", host).expect("sent");
    bench.turns(|gateway| gateway.counters.bytes_in == 8);
    let inside = SocketAddr::from(([10, 0, 2, 2], local(&client).port()));
    bench.send(None, program(15, PROGRAM), inside, b"answer");
    assert_eq!(receive(&client), (b"answer".to_vec(), host));
    let Bench { gateway, reactor, .. } = &mut bench;
    gateway.unpublish(&port, reactor);
    bench.send(None, program(15, PROGRAM), local(&client), b"more");
    let (more, from) = receive(&client);
    assert_eq!(more, b"more");
    assert_ne!(from, host);
}

/// Goal: unanswered queries keep no frames. The queries kept to be repeated are bounded for each
/// guest and for all; those that are not kept are counted.
#[test]
fn questions_are_kept_without_frames() {
    let config = Config { resolvers: Some(vec![Ipv4Addr::LOCALHOST.into()]), ..Config::default() };
    let mut bench = bench(config);
    let dns = SocketAddr::from(([10, 0, 2, 3], 53));
    let free = (bench.memory.small.free_count(), bench.memory.large.free_count());
    for port in 1..=700 {
        for len in [28, 14_000] {
            bench.send(Some(1), program(15, port), dns, &vec![7; len]);
        }
    }
    assert_eq!((bench.memory.small.free_count(), bench.memory.large.free_count()), free);
    assert_eq!(bench.gateway.counters.questions_not_kept, 700);
}

/// Goal: a guest that begins endless flows evicts its own, not those of another guest, and a
/// newcomer of the other goes before those of the flood. Neither guest has the address of a program
/// that is alone.
#[test]
fn mappings_are_shared_by_guests() {
    let mut bench = bench(Config { flows_max: 64, ..Config::default() });
    let friend = peer(1);
    bench.send(Some(1), program(17, PROGRAM), local(&friend), b"hello");
    let (_, mapped) = receive(&friend);
    for port in 1..=300 {
        bench.ask(Some(2), program(16, port), local(&friend), b"flood");
    }
    bench.ask(Some(1), program(17, 4001), local(&friend), b"new");
    let first: Vec<_> = (0..2)
        .map(|_| {
            bench.with(|gateway, io| gateway.begin_flows(Load::Busy, io));
            receive(&friend).0
        })
        .collect();
    assert!(first.contains(&b"new".to_vec()), "{first:?}");
    bench.begin();
    assert!(bench.gateway.counters.evicted > 200);
    assert_eq!(bench.gateway.counters.messages_displaced, 300 - 255);
    while receive_now(&friend).is_some() {}
    bench.send(Some(1), program(17, PROGRAM), local(&friend), b"again");
    assert_eq!(receive(&friend), (b"again".to_vec(), mapped), "its mapping is still there");
}

fn receive_now(socket: &StdSocket) -> Option<Vec<u8>> {
    socket.set_nonblocking(true).expect("a socket");
    let mut buffer = [0; 2048];
    let received = socket.recv_from(&mut buffer).ok().map(|(len, _)| buffer[..len].to_vec());
    socket.set_nonblocking(false).expect("a socket");
    received
}

/// Goal: datagrams that wait for a flow keep a bounded part of the memory, and a guest with large
/// datagrams displaces its own.
#[test]
fn what_waits_for_a_flow_is_bounded_in_bytes() {
    let mut bench = bench(Config::default());
    let friend = peer(1);
    bench.ask(Some(1), program(17, PROGRAM), local(&friend), b"hello");
    let capacity = bench.memory.large.capacity();
    for port in 1..=200 {
        bench.ask(Some(2), program(16, port), local(&friend), &[7; 9000]);
    }
    assert!(bench.memory.large.free_count() > capacity - capacity / 8);
    bench.begin();
    assert_eq!(receive(&friend).0, b"hello");
    assert!(bench.gateway.counters.messages_displaced > 100);
}

/// Returns a gateway whose policy bounds the datagrams from and to the host's loopback.
fn bounded(limits: FlowLimits) -> Bench {
    let rule = Rule {
        id: "near".to_owned(),
        action: Action::Allow,
        to: vec!["127.0.0.0/8".parse::<Destination>().expect("a network")],
        ports: Vec::new(),
        check: Check::Greeting,
        overrides_floor: true,
        expires: None,
        limits,
    };
    let policy = Policy::new(vec![rule], Action::Deny, true).expect("a policy");
    let enforcer = std::sync::Arc::new(Enforcer::new(policy, None));
    bench(Config { egress: Some(enforcer), ..Config::default() })
}

fn metered(bench: &Bench) -> Metered {
    bench.gateway.egress().expect("a policy").summary().bounds[0].done
}

/// Goal: datagrams beyond a bandwidth are dropped and counted, either way; once the bandwidth has
/// tokens again, others pass.
#[test]
fn datagrams_beyond_a_bandwidth_are_dropped() {
    let bits = Some(8000);
    let limits = FlowLimits { bandwidth_out: bits, bandwidth_in: bits, ..FlowLimits::default() };
    let mut bench = bounded(limits);
    let friend = peer(1);
    // Two datagrams overdraw the bucket of 16 KiB, which earns 1000 bytes in a second.
    for _ in 0..3 {
        bench.send(None, program(15, PROGRAM), local(&friend), &[7; 9000]);
    }
    assert_eq!(bench.gateway.counters.over_bandwidth, 1);
    assert_eq!(bench.gateway.counters.bytes_out, 18_000);
    bench.later(Duration::from_secs(2));
    bench.send(None, program(15, PROGRAM), local(&friend), b"later");
    let (_, mapped) = receive(&friend);
    let mapped = SocketAddr::new(local(&friend).ip(), mapped.port());
    for sent in 1..=3 {
        friend.send_to(&[7; 9000], mapped).expect("sent");
        let seen =
            |counters: &GatewayCounters| counters.over_bandwidth - 1 + counters.bytes_in / 9000;
        bench.turns(|gateway| seen(&gateway.counters) == sent);
    }
    let counters = &bench.gateway.counters;
    assert_eq!((counters.over_bandwidth, counters.bytes_in), (2, 18_000));
    assert_eq!(metered(&bench), Metered { dropped: 2, ..Metered::default() });
}

/// Goal: no more datagrams pass than a quota has bytes, both ways together. The flow ends with the
/// first that does not fit, and no other begins.
#[test]
fn datagrams_beyond_a_quota_are_refused() {
    let mut bench = bounded(FlowLimits { quota: Some(100), ..FlowLimits::default() });
    let friend = peer(1);
    bench.send(None, program(15, PROGRAM), local(&friend), &[7; 60]);
    let (_, mapped) = receive(&friend);
    let mapped = SocketAddr::new(local(&friend).ip(), mapped.port());
    for sent in 1..=2 {
        friend.send_to(&[7; 30], mapped).expect("sent");
        let seen = |counters: &GatewayCounters| counters.over_quota + counters.bytes_in / 30;
        bench.turns(|gateway| seen(&gateway.counters) == sent);
    }
    assert_eq!((bench.gateway.counters.bytes_in, bench.gateway.counters.over_quota), (30, 1));
    bench.send(None, program(15, PROGRAM), local(&friend), b"x");
    bench.send(None, program(15, 4001), local(&friend), b"x");
    let counters = &bench.gateway.counters;
    assert_eq!((counters.bytes_out, counters.udp_refused), (60, 2));
    assert_eq!(metered(&bench), Metered { over_quota: 3, ..Metered::default() });
}

/// Returns a gateway whose policy allows guests 1 and 2 to greet [`SERVER`] over QUIC.
fn greeted(audit: Option<Audit>) -> Bench {
    // The answer of a resolver: a.example is 192.0.2.1.
    let answer = b"\0\x07\x81\x80\0\x01\0\x01\0\0\0\0\x01a\x07example\0\0\x01\0\x01\
                   \xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01";
    let rule = Rule {
        id: "quic".to_owned(),
        action: Action::Allow,
        to: vec!["a.example".parse::<Destination>().expect("a name")],
        ports: Vec::new(),
        check: Check::Greeting,
        overrides_floor: false,
        expires: None,
        limits: FlowLimits::default(),
    };
    let policy = Policy::new(vec![rule], Action::Deny, true).expect("a policy");
    let enforcer = std::sync::Arc::new(Enforcer::new(policy, audit));
    for guest in [1, 2] {
        assert_eq!(enforcer.answer(Some(guest), answer, Instant::START), Message::Pass);
    }
    bench(Config { egress: Some(enforcer), ..Config::default() })
}

/// Goal: datagrams that wait for a greeting which never comes keep a bounded part of the memory, do
/// not keep another guest's from waiting, and are gone after a while.
/// Bad input: packets of QUIC before any Initial packet, from many ports.
#[test]
fn what_waits_for_a_greeting_is_bounded() {
    // A packet with a long header, of type 0-RTT, with 20 bytes.
    let mut early = vec![0xd0, 0, 0, 0, 1, 0, 0, 20];
    early.extend([0; 20]);
    let mut bench = greeted(None);
    for port in 1..=300 {
        for _ in 0..2 {
            bench.ask(Some(1), program(16, port), SERVER.into(), &early);
        }
    }
    assert_eq!(bench.memory.small.out_count(), 256);
    bench.ask(Some(2), program(17, PROGRAM), SERVER.into(), &early);
    assert_eq!(bench.memory.small.out_count(), 257);
    bench.later(GREETING_WITHIN);
    assert_eq!(bench.memory.small.out_count(), 0);
    bench.ask(Some(1), program(16, 1), SERVER.into(), &early);
    assert_eq!(bench.memory.small.out_count(), 1, "another attempt");
}

/// Goal: what clients say is charged to their guest, also if the datagram is invalid in the end.
/// The audit says so for each flow that is denied.
/// Bad input: a part of a hello that is far from its beginning, and rubbish behind it.
#[test]
fn what_clients_of_quic_say_is_bounded() {
    let mut file = File::from(
        rustix::fs::memfd_create("audit", rustix::fs::MemfdFlags::CLOEXEC).expect("a file"),
    );
    let mut bench =
        greeted(Some(Audit::new(file.try_clone().expect("a file"), u64::MAX, |_| unreachable!())));
    // One byte at 16,000 of the stream, which takes about 32 KiB. Padding makes a sample.
    let mut frames = vec![6, 0x7e, 0x80, 1, 7];
    frames.resize(40, 0);
    let mut datagram = initial(0, &frames);
    datagram.extend([0xc0, 0, 0, 0, 9]);
    for port in 1..=300 {
        bench.ask(Some(1), program(16, port), SERVER.into(), &datagram);
    }
    let counters = &bench.gateway.counters;
    assert_eq!(counters.udp_filtered + counters.udp_refused, 300);
    assert!((100..150).contains(&counters.udp_filtered), "{}", counters.udp_filtered);
    bench.ask(Some(2), program(17, PROGRAM), SERVER.into(), &datagram);
    assert!((101..151).contains(&bench.gateway.counters.udp_filtered), "another guest's");
    let refused = bench.gateway.counters.udp_refused as usize;
    // The audit is complete once its thread has ended.
    drop(bench);
    let mut text = String::new();
    file.rewind().expect("the audit");
    file.read_to_string(&mut text).expect("the audit");
    let reason = "the guest has too many greetings over QUIC at once";
    assert_eq!(text.matches(reason).count(), refused, "{text}");
}
