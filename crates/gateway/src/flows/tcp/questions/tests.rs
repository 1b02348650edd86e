//! Dialogues: the messages of a stream, and a program and a resolver with the gateway between them.
//! The program is a stack, the resolver a socket of the host on the loopback.

use super::*;
use crate::config::Config;
use crate::egress::policy::Policy;
use crate::egress::rule::{Action, Check, Destination, Limits as FlowLimits, Rule};
use crate::flows::Load;
use crate::flows::resolver::Resolvers;
use crate::flows::testing::{Bench, stack};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use towpath_net::fragment::into_received;
use towpath_net::stack::{Address, Stack};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Context};

/// The resolver, as the program knows it.
const RESOLVER: ([u8; 4], u16) = ([10, 0, 2, 3], 53);
/// Longest wait for what is in flight on the loopback, and how long the test waits at a time.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(5);
/// Time of a packet on its way.
const HOP: Duration = Duration::from_millis(1);

fn at(secs: u64) -> Instant {
    Instant::START + Duration::from_secs(secs)
}

/// Returns an enforcer that allows a.example.
fn enforcer() -> Arc<Enforcer> {
    let rule = Rule {
        id: "web".to_owned(),
        action: Action::Allow,
        to: vec!["a.example".parse::<Destination>().unwrap()],
        ports: Vec::new(),
        check: Check::Dns,
        overrides_floor: false,
        expires: None,
        limits: FlowLimits::default(),
    };
    Arc::new(Enforcer::new(Policy::new(vec![rule], Action::Deny, true).unwrap(), None))
}

fn question(id: u16, name: &str) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

fn answer(id: u16, name: &str, address: [u8; 4]) -> Vec<u8> {
    let mut bytes = question(id, name);
    (bytes[2], bytes[3], bytes[7]) = (0x81, 0x80, 1);
    bytes.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
    bytes.extend(address);
    bytes
}

/// Returns messages, each after its length.
fn stream<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    messages.into_iter().for_each(|message| append(&mut bytes, message));
    bytes
}

/// Returns the identifier and the response code of each message of a stream that is whole.
fn codes(mut bytes: &[u8]) -> Vec<(u16, u8)> {
    let mut codes = Vec::new();
    while let [high, low, rest @ ..] = bytes {
        let len = u16::from_be_bytes([*high, *low]).into();
        let Some((message, behind)) = rest.split_at_checked(len) else { break };
        codes.push((u16::from_be_bytes([message[0], message[1]]), message[3] & 15));
        bytes = behind;
    }
    codes
}

/// Goal: questions are judged one by one, wherever the stream is cut, and those that are refused
/// are answered before others.
#[test]
fn questions_of_a_stream_are_judged_one_by_one() {
    let [allowed, refused] = [question(1, "a.example"), question(2, "b.example")];
    let last = question(3, "a.example");
    let all = stream([&allowed[..], &refused, &last]);
    for size in [1, 2, 3, 29, 31, all.len()] {
        let (enforcer, mut dialogue) = (enforcer(), Dialogue::new(at(0)));
        for part in all.chunks(size) {
            assert!(dialogue.ask(part, None, &enforcer, at(1)).is_ok());
        }
        assert_eq!(dialogue.to_host, stream([&allowed[..], &last]), "{size}");
        assert_eq!(codes(&dialogue.to_program), [(2, 5)], "{size}");
        assert_eq!((dialogue.asked.0.capacity(), dialogue.used_at), (0, at(1)));
    }
}

/// Bad input: lengths of no message, of none that is judged, answers as questions, and nothing but
/// a length. What is not whole does not count as use.
#[test]
fn a_stream_of_no_questions_is_refused() {
    let broken = |bytes: &[u8]| Dialogue::new(at(0)).ask(bytes, None, &enforcer(), at(1)).is_err();
    for len in [0, 1, 11, 1233, 0x1603, u16::MAX] {
        assert!(broken(&len.to_be_bytes()), "{len}");
    }
    assert!(broken(&stream([&answer(1, "a.example", [192, 0, 2, 1])[..]])));
    assert!(broken(&stream([&[0; 12][..]])));
    let mut dialogue = Dialogue::new(at(0));
    assert!(dialogue.ask(&[0, 200, 1], None, &enforcer(), at(1)).is_ok());
    assert_eq!((dialogue.used_at, dialogue.to_host.len()), (at(0), 0));
}

/// Goal: a program that asks on and on and takes no answer, or whose resolver takes no question,
/// is cut off at a bound.
#[test]
fn what_waits_is_bounded() {
    for name in ["b.example", "a.example"] {
        let (enforcer, mut dialogue) = (enforcer(), Dialogue::new(at(0)));
        let one = stream([&question(1, name)[..]]);
        // Only a hundred a second are passed on.
        let asked = (0..10_000).take_while(|second| {
            let held = dialogue.to_host.len().max(dialogue.to_program.len());
            assert!(held <= WAITING_MAX + ANSWERS_MAX + 1000);
            dialogue.ask(&one.repeat(50), None, &enforcer, at(*second)).is_ok()
        });
        assert!((10..9999).contains(&asked.count()), "{name}");
    }
}

/// Goal: answers are judged as those in datagrams are: addresses are remembered for the name,
/// closed ones and those to questions that are not allowed do not arrive; one of 64 KiB does.
#[test]
fn answers_of_a_stream_are_judged() {
    let (enforcer, mut dialogue) = (enforcer(), Dialogue::new(at(0)));
    let good = answer(1, "a.example", [192, 0, 2, 1]);
    let rebinding = answer(2, "a.example", [10, 0, 0, 1]);
    let other = answer(3, "b.example", [192, 0, 2, 1]);
    let all = stream([&good[..], &rebinding, &other]);
    for byte in all.chunks(1) {
        assert!(dialogue.answer(byte, None, &enforcer, at(1)).is_ok());
    }
    assert_eq!(codes(&dialogue.to_program), [(1, 0), (2, 5)]);
    let flow = "tcp://192.0.2.1:443".parse().unwrap();
    assert!(matches!(
        enforcer.begin(None, flow, at(1)),
        crate::egress::enforcer::Decision::Allow(_)
    ));
    let mut long = question(4, "a.example");
    (long[2], long[3]) = (0x81, 0x80);
    let records = (MESSAGE_MAX - long.len()) / 16;
    long[6..8].copy_from_slice(&(records as u16).to_be_bytes());
    for _ in 0..records {
        long.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 9]);
    }
    dialogue.to_program.clear();
    for part in stream([&long[..]]).chunks(COPIED_MAX) {
        assert!(dialogue.answer(part, None, &enforcer, at(1)).is_ok());
    }
    assert_eq!(dialogue.to_program, stream([&long[..]]));
}

/// A program, the gateway, and the host with a resolver.
struct Rig {
    program: Stack,
    bench: Bench,
    resolver: TcpListener,
}

impl Rig {
    fn new() -> Self {
        let config = Config { egress: Some(enforcer()), ..Config::default() };
        let net = config.ipv4.unwrap();
        let (address, next_hop) = (IpAddr::from(net.address), IpAddr::from(net.gateway));
        let own = vec![Address { address, prefix_len: net.prefix_len }];
        let mut program = stack(config.program_mac, own, vec![next_hop], false);
        program.set_neighbor(next_hop, MacAddr(config.gateway_mac));
        program.set_neighbor(IpAddr::from(RESOLVER.0), MacAddr(config.gateway_mac));
        let mut bench = Bench::new(&config, vec![address]);
        bench.stack.set_neighbor(address, MacAddr(config.program_mac));
        let resolver = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        resolver.set_nonblocking(true).unwrap();
        bench.gateway.resolvers = Resolvers::at(resolver.local_addr().unwrap());
        Self { program, bench, resolver }
    }

    /// Moves packets from one stack to the other.
    fn pass(&mut self, to_gateway: bool) {
        let Self { program, bench: Bench { stack, memory, ledger, now, .. }, .. } = self;
        let (from, to) = if to_gateway { (program, stack) } else { (stack, program) };
        let mut sent = Burst::new();
        from.output(&mut sent, &mut Context { memory, ledger, now: *now });
        let mut received = Burst::new();
        while let Some(packet) = sent.pop() {
            received.push(into_received(packet, memory).expect("memory")).expect("room");
        }
        to.input(&mut received, &mut Context { memory, ledger, now: *now });
    }

    /// One turn of everything.
    fn turn(&mut self) {
        self.bench.now += HOP;
        self.pass(true);
        self.bench.serve_events(Duration::ZERO);
        self.bench.with(|gateway, io| {
            gateway.drain(io);
            gateway.continue_flows(io);
            gateway.begin_flows(Load::Idle, io);
        });
        self.pass(false);
        let Self { program, bench: Bench { stack, memory, ledger, now, .. }, .. } = self;
        let mut context = Context { memory, ledger, now: *now };
        program.on_deadline(&mut context);
        stack.on_deadline(&mut context);
    }

    /// Takes turns until `find` returns something.
    fn until<R>(&mut self, mut find: impl FnMut(&mut Self) -> Option<R>) -> R {
        let mut waited = Duration::ZERO;
        loop {
            (0..8).for_each(|_| self.turn());
            if let Some(found) = find(self) {
                return found;
            }
            assert!(waited < PATIENCE, "nothing happens");
            std::thread::sleep(PAUSE);
            waited += PAUSE;
        }
    }

    fn connect(&mut self, port: u16) -> TcpHandle {
        let local = SocketAddr::from(([10, 0, 2, 15], port));
        self.program.tcp_connect(local, RESOLVER.into(), self.bench.now).unwrap()
    }

    /// Connects, and returns the resolver's side, too.
    fn connected(&mut self, port: u16) -> (TcpHandle, TcpStream) {
        let handle = self.connect(port);
        let stream = self.until(|rig| Some(rig.resolver.accept().ok()?.0));
        stream.set_nonblocking(true).unwrap();
        (handle, stream)
    }

    fn send(&mut self, handle: TcpHandle, bytes: &[u8]) {
        let Self { program, bench: Bench { memory, now, .. }, .. } = self;
        program.with_tcp(handle, *now, |connection| {
            for part in bytes.chunks(memory.small.frame_bytes()) {
                let mut frame = memory.small.take().expect("a frame");
                frame[..part.len()].copy_from_slice(part);
                connection.send(frame.freeze(part.len()));
            }
        });
    }

    /// Takes what the program has received.
    fn receive(&mut self, handle: TcpHandle) -> Vec<u8> {
        let Self { program, bench: Bench { ledger, now, .. }, .. } = self;
        let received = program.with_tcp(handle, *now, |connection| {
            let mut bytes = vec![0; connection.received_len()];
            let mut at = 0;
            for piece in connection.received() {
                at += ledger.copy(Site::SocketReceive, piece, &mut bytes[at..]);
            }
            connection.consume(at);
            bytes
        });
        received.unwrap_or_default()
    }

    fn is_over(&self, handle: TcpHandle) -> bool {
        let connection = self.program.tcp(handle);
        connection.is_none_or(|connection| connection.error().is_some())
    }

    fn dialogues(&self) -> usize {
        self.bench.gateway.tcp.dialogues.handles.len()
    }
}

/// Reads what a resolver has got, so far.
fn got(mut stream: &TcpStream, all: &mut Vec<u8>) -> usize {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        all.extend_from_slice(&buffer[..count]);
    }
    all.len()
}

/// Goal: pipelined questions reach the resolver, the refused one does not; answers come back in any
/// order, several questions later, until either side closes.
#[test]
fn a_program_and_its_resolver_converse() {
    let mut rig = Rig::new();
    let (program, mut resolver) = rig.connected(4000);
    let [first, second] = [question(1, "a.example"), question(2, "a.example")];
    rig.send(program, &stream([&first[..], &question(9, "b.example"), &second]));
    let expected = stream([&first[..], &second]);
    let mut asked = Vec::new();
    rig.until(|_| (got(&resolver, &mut asked) >= expected.len()).then_some(()));
    assert_eq!(asked, expected);
    let answers = [answer(2, "a.example", [192, 0, 2, 1]), answer(1, "a.example", [10, 0, 0, 1])];
    resolver.write_all(&stream([&answers[0][..], &answers[1]])).unwrap();
    let mut told = Vec::new();
    rig.until(|rig| {
        told.extend(rig.receive(program));
        (codes(&told).len() == 3).then_some(())
    });
    assert_eq!(codes(&told), [(9, 5), (2, 0), (1, 5)], "the last one leads to a closed address");
    drop(resolver);
    rig.until(|rig| rig.program.tcp(program)?.peer_closed().then_some(()));
    let now = rig.bench.now;
    rig.program.with_tcp(program, now, |connection| connection.close_send());
    rig.until(|rig| (rig.dialogues() == 0).then_some(()));
}

/// Goal: a connection that lies about lengths is reset; nothing of it reaches the resolver.
#[test]
fn a_length_that_lies_resets_the_connection() {
    let mut rig = Rig::new();
    let (program, resolver) = rig.connected(4000);
    rig.send(program, &[0xff, 0xff, 1, 2, 3]);
    rig.until(|rig| rig.is_over(program).then_some(()));
    assert_eq!(rig.dialogues(), 0);
    assert_eq!(got(&resolver, &mut Vec::new()), 0);
}

/// Goal: a program that begins a question and never ends it, one byte at a time, loses its
/// connection, as does one that says nothing; one that asks keeps it.
#[test]
fn a_slow_program_does_not_keep_its_connection() {
    let mut rig = Rig::new();
    let (slow, _first) = rig.connected(4000);
    let (silent, _second) = rig.connected(4001);
    let (usual, _third) = rig.connected(4002);
    let whole = stream([&question(1, "a.example")[..]]);
    for byte in &whole[..20] {
        rig.send(slow, &[*byte]);
        rig.send(usual, &whole);
        (0..8).for_each(|_| rig.turn());
        rig.bench.later(Duration::from_secs(5));
    }
    rig.until(|rig| (rig.is_over(slow) && rig.is_over(silent)).then_some(()));
    assert_eq!(rig.dialogues(), 1);
    assert!(!rig.is_over(usual));
}

/// Goal: of a thousand connections of a guest only a few are dialogues, and each of the others is
/// refused at once. When one ends, another may begin.
#[test]
fn a_guest_has_few_dialogues() {
    let mut rig = Rig::new();
    let handles: Vec<_> = (0..1000).map(|number| rig.connect(5000 + number)).collect();
    let mut accepted = Vec::new();
    rig.until(|rig| {
        accepted.extend(std::iter::from_fn(|| rig.resolver.accept().ok()));
        let refused = handles.iter().filter(|handle| rig.is_over(**handle)).count();
        assert!(rig.dialogues() <= OF_GUEST_MAX);
        (refused == handles.len() - OF_GUEST_MAX).then_some(())
    });
    assert_eq!(rig.dialogues(), OF_GUEST_MAX);
    drop(accepted);
    rig.until(|rig| {
        let now = rig.bench.now;
        for handle in &handles {
            let closes = rig.program.tcp(*handle).is_some_and(|it| it.peer_closed());
            if closes {
                rig.program.with_tcp(*handle, now, |connection| connection.close_send());
            }
        }
        (rig.dialogues() == 0).then_some(())
    });
    rig.connected(4000);
}
