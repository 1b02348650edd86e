//! Liveness: hosts with sockets on a link, with little memory, silent peers, and floods of
//! strangers; checked by [`towpath_sim::liveness`].
//!
//! `TOWPATH_SEED=<seed> cargo test -p towpath-sim --test liveness` replays a seed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use towpath_net::socket::{Error, Family, Readiness, ReceiveFlags, SendFlags, SendTo};
use towpath_net::socket::{SocketId, Sockets};
use towpath_net::stack::{Context, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::{MacAddr, arp};
use towpath_packet::{Burst, Caps, Ledger, Memory, MemoryConfig};
use towpath_sim::link::{Frame, Link, LinkConfig, Medium, received};
use towpath_sim::liveness::{Calls, Silences, missing};
use towpath_sim::oracle;
use towpath_sim::scenario::{address, config, endpoint};
use towpath_sim::seed::{self, Rng};

/// Seeds of every run, for each kind of test.
const SEEDS: u64 = 6;
/// Steps without time passing after which a run counts as stuck.
const STEPS_PER_MOMENT_MAX: u32 = 100_000;
const CLIENT: usize = 0;
const SERVER: usize = 1;

fn run_all(run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let run = |seed: u64| {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            panic!("failed; again with TOWPATH_SEED={seed:#x}");
        }
    };
    match seed::from_environment() {
        Some(seed) => run(seed),
        None => (0..SEEDS).chain([seed::fresh()]).for_each(run),
    }
}

/// A host with sockets.
struct Party {
    sockets: Sockets,
    memory: Memory,
    ledger: Ledger,
    calls: Calls,
    silences: Silences,
    /// Received frames that were dropped because there was no memory.
    refused: u64,
}

impl Party {
    fn new(index: usize, next_hops: Vec<IpAddr>, memory: MemoryConfig) -> Self {
        let config = config(index, Settings::default());
        let stack_config = towpath_net::stack::Config { next_hops, ..config };
        let stack = Stack::new(stack_config, Caps::plain(1500));
        Self {
            sockets: Sockets::new(stack),
            memory: Memory::new(memory),
            ledger: Ledger::new(),
            calls: Calls::default(),
            silences: Silences::default(),
            refused: 0,
        }
    }

    fn with<R>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut Sockets, &mut Context<'_>) -> R,
    ) -> R {
        let Self { sockets, memory, ledger, .. } = self;
        act(sockets, &mut Context { memory, ledger, now })
    }

    fn input(&mut self, bytes: &[u8], now: Instant) {
        let Some(packet) = received(bytes, &mut self.memory) else {
            self.refused += 1;
            return;
        };
        let mut burst = Burst::new();
        burst.push(packet).expect("an empty burst");
        self.with(now, |sockets, cx| sockets.input(&mut burst, cx));
    }

    fn out_counts(&self) -> [usize; 3] {
        let Memory { packets, small, large } = &self.memory;
        [packets.out_count(), small.out_count(), large.out_count()]
    }
}

/// Two hosts, a link in each direction, and a clock.
struct Net {
    parties: [Party; 2],
    links: [Link; 2],
    rng: Rng,
    now: Instant,
}

impl Net {
    fn new(rng: Rng, parties: [Party; 2], delay: Duration) -> Self {
        let link = || Link::new(LinkConfig::clean(Medium::Wire, 1500, delay));
        Self { parties, links: [link(), link()], rng, now: Instant::START }
    }

    /// Runs until `app` ends the run, but not beyond `until`. `app` gets the sockets that the hosts
    /// woke, and returns whether it did anything, when it acts next, and whether the run is over.
    fn run(&mut self, until: Instant, mut app: impl FnMut(&mut Net, &[Woken]) -> Acted) {
        loop {
            let mut steps = 0;
            let next = loop {
                let moved = self.step();
                let woken = self.take_wakes();
                let acted = app(self, &woken);
                if acted.over {
                    return;
                }
                if !(moved || acted.busy) {
                    break acted.next;
                }
                steps += 1;
                assert!(steps < STEPS_PER_MOMENT_MAX, "stuck at {:?}", self.now);
            };
            self.judge();
            let hosts = self.parties.iter().filter_map(|party| party.sockets.next_deadline());
            let links = self.links.iter().filter_map(Link::deadline);
            match hosts.chain(links).chain(next).min() {
                Some(next) if next <= until => self.now = next.max(self.now),
                _ => {
                    self.now = until;
                    return;
                }
            }
        }
    }

    /// Lets time pass without an application.
    fn pass(&mut self, time: Duration) {
        self.run(self.now + time, |_, _| Acted::default());
    }

    fn step(&mut self) -> bool {
        let Self { parties, links, rng, now } = self;
        let mut moved = false;
        for index in [CLIENT, SERVER] {
            let party = &mut parties[index];
            while let Some(frame) = links[1 - index].arrive(*now) {
                party.input(&frame.bytes, *now);
                moved = true;
            }
            if party.sockets.next_deadline().is_some_and(|at| at <= *now) {
                party.with(*now, |sockets, cx| sockets.on_deadline(cx));
                let next = party.sockets.next_deadline();
                assert!(next.is_none_or(|at| at > *now), "a deadline that was served is over");
                moved = true;
            }
            let mut burst = Burst::new();
            loop {
                party.with(*now, |sockets, cx| sockets.output(&mut burst, cx));
                if burst.is_empty() {
                    break;
                }
                moved = true;
                while let Some(packet) = burst.pop() {
                    links[index].send(packet, *now, rng, &mut party.memory, &party.ledger);
                }
            }
        }
        moved
    }

    fn take_wakes(&mut self) -> Vec<Woken> {
        let mut all = Vec::new();
        for (index, party) in self.parties.iter_mut().enumerate() {
            while let Some((id, what)) = party.sockets.next_wake() {
                party.calls.woken(id, what);
                all.push((index, id, what));
            }
        }
        all
    }

    /// Runs the oracles when there is no work at this moment.
    fn judge(&mut self) {
        let now = self.now;
        for (index, party) in self.parties.iter_mut().enumerate() {
            let problem = party.silences.look(party.sockets.stack(), now);
            let problem = problem.or_else(|| party.calls.look(&party.sockets, now));
            assert_eq!(problem, None, "host {index} at {now:?}");
        }
        for link in &self.links {
            assert_eq!(link.problem(), None);
        }
    }

    /// Connects the client to the server. Returns both ends of each connection.
    fn connect(&mut self, count: usize) -> Vec<[SocketId; 2]> {
        let stream = |party: &mut Party| party.sockets.stream(Family::V4).expect("room");
        let now = self.now;
        let server = &mut self.parties[SERVER];
        let listener = stream(server);
        server.sockets.bind(listener, endpoint(SERVER, false, 80)).expect("free");
        server.sockets.listen(listener, 4096, now).expect("free");
        let client = &mut self.parties[CLIENT];
        let clients: Vec<_> = (0..count).map(|_| stream(client)).collect();
        for &id in &clients {
            let begun = client.sockets.connect(id, endpoint(SERVER, false, 80), now);
            assert_eq!(begun, Err(Error::InProgress));
        }
        self.pass(Duration::from_secs(5));
        let now = self.now;
        let accept = |_| self.parties[SERVER].sockets.accept(listener, now).expect("connected").0;
        let servers: Vec<_> = (0..count).map(accept).collect();
        let [client, server] = &mut self.parties;
        server.sockets.close(listener, now).expect("it is there");
        let pair = |id: SocketId| {
            assert_eq!(client.sockets.connect(id, endpoint(SERVER, false, 80), now), Ok(()));
            let local = client.sockets.local(id);
            let other = servers.iter().find(|&&other| server.sockets.remote(other) == local);
            [id, *other.expect("its other end")]
        };
        clients.into_iter().map(pair).collect()
    }
}

/// The host, the socket and the events of a notification.
type Woken = (usize, SocketId, Readiness);

/// The result of an application's step.
#[derive(Default)]
struct Acted {
    busy: bool,
    next: Option<Instant>,
    over: bool,
}

/// One direction of a connection. Both applications know only the edges that they were notified of.
struct Flow {
    ends: [SocketId; 2],
    stream: u64,
    goal: u64,
    /// Bytes of one write.
    size: u64,
    /// Queries whether it may send after it had to wait.
    asks: bool,
    sent: u64,
    read: u64,
    may_send: bool,
    may_read: bool,
    reads_from: Instant,
}

impl Flow {
    fn act(&mut self, net: &mut Net) -> bool {
        let before = (self.sent, self.read);
        let now = net.now;
        while self.may_send && self.sent < self.goal {
            let mut bytes = vec![0; self.size.min(self.goal - self.sent) as usize];
            oracle::fill(self.stream, self.sent, &mut bytes);
            let (party, id) = (&mut net.parties[CLIENT], self.ends[CLIENT]);
            let flags = SendFlags::default();
            match party.with(now, |sockets, cx| sockets.send(id, &[&bytes], flags, cx)) {
                Ok(count) => self.sent += count as u64,
                Err(error) => {
                    assert_eq!(error, Error::WouldBlock, "stream {}", self.stream);
                    self.may_send = false;
                    party.calls.blocked(id, Readiness::OUT, now);
                    let ready = self.asks && party.sockets.readiness(id).contains(Readiness::OUT);
                    assert!(!ready, "writable, and takes nothing");
                }
            }
        }
        while self.may_read && now >= self.reads_from {
            let mut bytes = vec![0; 65_536];
            let (party, id) = (&mut net.parties[SERVER], self.ends[SERVER]);
            let flags = ReceiveFlags::default();
            match party.with(now, |sockets, cx| sockets.receive(id, &mut bytes, flags, cx)) {
                Ok(count) => {
                    assert!(oracle::matches(self.stream, self.read, &bytes[..count]));
                    self.read += count as u64;
                }
                Err(error) => {
                    assert_eq!(error, Error::WouldBlock, "stream {}", self.stream);
                    self.may_read = false;
                    party.calls.blocked(id, Readiness::IN, now);
                }
            }
        }
        before != (self.sent, self.read)
    }
}

/// Goal: with very little memory, many connections that send as much as is accepted, and are
/// notified of edges only, deliver everything; no received frame is dropped.
fn little_memory(seed: u64) {
    let mut rng = Rng::new(seed);
    let little = |rng: &mut Rng| MemoryConfig {
        packets: 512,
        small_frames: rng.pick(&[128, 256, 512]),
        large_frames: rng.pick(&[16, 32, 64]),
    };
    let memory = [little(&mut rng), MemoryConfig::within(16 << 20)];
    let delay = Duration::from_micros(rng.pick(&[10, 1000, 20_000]));
    let (count, size) = (rng.between(20, 80), rng.pick(&[100, 1000, 5000, 65_536]));
    let mut index = 0..;
    let parties = memory.map(|memory| Party::new(index.next().unwrap_or(0), Vec::new(), memory));
    let mut net = Net::new(rng, parties, delay);
    let pairs = net.connect(count as usize);
    let mut flows = Vec::new();
    for (stream, ends) in pairs.into_iter().enumerate() {
        let pause = net.rng.pick(&[0, 0, 10, 5000]);
        flows.push(Flow {
            ends,
            stream: stream as u64,
            goal: net.rng.between(1, 60_000),
            size,
            asks: net.rng.chance(500_000),
            sent: 0,
            read: 0,
            may_send: true,
            may_read: true,
            reads_from: net.now + Duration::from_millis(pause),
        });
    }
    let end = net.now + Duration::from_secs(3600);
    net.run(end, |net, woken| {
        for (host, id, what) in woken {
            let Some(flow) = flows.iter_mut().find(|flow| flow.ends[*host] == *id) else {
                continue;
            };
            flow.may_send |= *host == CLIENT && what.contains(Readiness::OUT);
            flow.may_read |= *host == SERVER && what.contains(Readiness::IN);
        }
        let mut busy = false;
        for flow in &mut flows {
            busy |= flow.act(net);
        }
        let now = net.now;
        let next = flows.iter().map(|flow| flow.reads_from).filter(|at| *at > now).min();
        Acted { busy, next, over: flows.iter().all(|flow| flow.read == flow.goal) }
    });
    let left = flows.iter().filter(|flow| flow.read < flow.goal).count();
    assert_eq!(left, 0, "flows are left of {count} that write {size}");
    assert_eq!(net.parties.each_ref().map(|party| party.refused), [0, 0], "frames refused");
    let now = net.now;
    for flow in &flows {
        for host in [CLIENT, SERVER] {
            net.parties[host].sockets.close(flow.ends[host], now).expect("it is there");
        }
    }
    net.pass(Duration::from_secs(300));
    for party in &net.parties {
        assert_eq!(party.out_counts(), [0; 3]);
        assert_eq!(party.sockets.stack().tcp_counts(), (0, 0));
    }
}

#[test]
fn little_memory_moves_all() {
    run_all(little_memory);
}

/// Goal: a connection whose peer closed its window and fell silent ends without help, with data
/// left or only a FIN, with an owner and without.
fn silent_peer(seed: u64) {
    let mut rng = Rng::new(seed);
    let (orphan, data) = (rng.chance(500_000), rng.chance(300_000));
    let plenty = MemoryConfig::within(16 << 20);
    let parties = [0, 1].map(|index| Party::new(index, Vec::new(), plenty));
    let mut net = Net::new(rng, parties, Duration::from_millis(5));
    let [id, _] = net.connect(1)[0];
    // Exactly as much as the peer's window accepts.
    for round in 0.. {
        assert!(round < 1000, "the window does not shut");
        let window = net.parties[CLIENT].sockets.tcp(id).map(|tcp| tcp.info(net.now).snd_wnd);
        let window = window.expect("connected") as usize;
        if window == 0 {
            break;
        }
        let (party, now) = (&mut net.parties[CLIENT], net.now);
        let flags = SendFlags::default();
        let bytes = vec![0; window.min(8000)];
        party.with(now, |sockets, cx| sockets.send(id, &[&bytes], flags, cx)).expect("has room");
        net.pass(Duration::from_secs(1));
    }
    net.links.iter_mut().for_each(|link| link.cut = true);
    let (party, now) = (&mut net.parties[CLIENT], net.now);
    if data {
        let flags = SendFlags::default();
        party.with(now, |sockets, cx| sockets.send(id, &[b"more"], flags, cx)).expect("has room");
    }
    if orphan {
        party.sockets.close(id, now).expect("it is there");
    } else {
        let write = towpath_net::socket::Shutdown::Write;
        party.sockets.shutdown(id, write, now).expect("connected");
    }
    net.pass(Duration::from_secs(3600));
    let client = &mut net.parties[CLIENT];
    assert_eq!(client.sockets.stack().tcp_counts(), (usize::from(!orphan), 0), "{orphan} {data}");
    if !orphan {
        assert_eq!(client.sockets.take_error(id), Ok(Some(Error::TimedOut)));
    }
}

#[test]
fn silent_peers_are_given_up() {
    run_all(silent_peer);
}

/// Goal: a packet that waits for a neighbour's address arrives, or is counted as dropped, however
/// many unknown hosts send requests meanwhile.
fn strangers(seed: u64) {
    let mut rng = Rng::new(seed);
    let plenty = MemoryConfig::within(16 << 20);
    let router = address(SERVER, false);
    let routed = rng.chance(500_000);
    let hops = if routed { vec![router] } else { Vec::new() };
    let parties = [Party::new(CLIENT, hops, plenty), Party::new(SERVER, Vec::new(), plenty)];
    let mut net = Net::new(rng, parties, Duration::from_millis(20));
    let now = net.now;
    let port = endpoint(SERVER, false, 53);
    let [sender, reader] =
        [CLIENT, SERVER].map(|host| net.parties[host].sockets.datagram(Family::V4).expect("room"));
    net.parties[SERVER].sockets.bind(reader, port).expect("free");
    let (mut sent, mut received) = (0, 0);
    let others = net.rng.between(0, 3);
    for number in 0..=others {
        // To a neighbour, beyond the router if there is one, and to an address without a host.
        let far = SocketAddr::new(Ipv4Addr::new(198, 51, 100, 1).into(), 53);
        let nobody = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 100 + number as u8).into(), 53);
        let to = [port, if routed { far } else { port }, nobody][(number % 3) as usize];
        let how = SendTo { to: Some(to), ..SendTo::default() };
        let party = &mut net.parties[CLIENT];
        let done = party.with(now, |sockets, cx| sockets.send_datagram(sender, &[b"x"], &how, cx));
        assert_eq!(done, Ok(1));
        sent += 1;
    }
    let flood = net.rng.between(200, 2000);
    for number in 0..flood {
        let [.., high, low] = number.to_be_bytes();
        let question = arp::Packet {
            operation: arp::Operation::Request,
            sender_mac: MacAddr([2, 0, 0, 9, high, low]),
            sender_ip: Ipv4Addr::new(10, 9, high, low),
            target_mac: MacAddr::UNSPECIFIED,
            target_ip: Ipv4Addr::new(10, 0, 0, 1),
        };
        let mut bytes = vec![0xff; 6];
        bytes.extend_from_slice(&question.sender_mac.0);
        bytes.extend_from_slice(&[0x08, 0x06]);
        bytes.resize(14 + arp::LEN, 0);
        question.emit(&mut bytes[14..]);
        net.links[SERVER].offer(Frame { bytes, offload: Default::default() }, now, &mut net.rng);
    }
    net.run(now + Duration::from_secs(60), |net, woken| {
        let busy = woken.iter().any(|(_, id, _)| *id == reader);
        let party = &mut net.parties[SERVER];
        let mut byte = [0];
        let mut read =
            || party.sockets.receive_datagram(reader, &mut [&mut byte], false, &party.ledger);
        while read().is_ok() {
            received += 1;
        }
        Acted { busy, ..Acted::default() }
    });
    let stacks = net.parties.each_ref().map(|party| party.sockets.stack());
    let lost = net.links.iter().map(|link| link.counters().lost()).sum();
    let gone = missing(sent, received, lost, &stacks);
    assert_eq!(gone, 0, "of {sent} datagrams, {received} received, {flood} strangers");
    assert!(received > 0, "the neighbour got what waited for its address");
    assert_eq!(net.parties.each_ref().map(Party::out_counts), [[0; 3]; 2]);
}

#[test]
fn strangers_cost_nothing_uncounted() {
    run_all(strangers);
}
