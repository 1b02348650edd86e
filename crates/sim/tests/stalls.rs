//! Lent memory when nothing moves: a port that accepts nothing or keeps packets, a dead peer,
//! readers that do not read or keep what they read.
//!
//! Hundreds of sockets lend, each call with its own term, over a wire that passes pieces on without
//! a copy. Invariants: no memory is held a tick longer than its term, whatever holds it; no
//! connection is closed because of that; if packets move later, every byte is the one that was
//! lent, although its memory was overwritten as soon as it was back; at the end all memory is back.
//!
//! `TOWPATH_SEED=<seed>` replays a seed that failed.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use towpath_net::fragment::into_received;
use towpath_net::socket::{
    Borrower, Error, Family, LentCall, LentStats, ReadMost, ReceiveFlags, SendFlags, SendTo,
    SocketId, Sockets,
};
use towpath_net::stack::{Address, Config, Context, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Ledger, Loans, Memory, MemoryConfig, Packet, ReceivedPiece};
use towpath_sim::oracle;
use towpath_sim::scenario::{able, address};
use towpath_sim::seed::{self, Rng};

/// Numbers of streams that lend, and of datagram sockets beside them.
const STREAMS: usize = 200;
const DATAGRAM_SOCKETS: usize = 100;
/// Bytes of a datagram: one packet, because the device does not compute checksums of fragments.
const DATAGRAM_LEN: usize = 1400;
/// Largest delay of a term.
const TICK: Duration = Duration::from_millis(1);
/// How long sockets lend, and how long the run is observed afterwards.
const LENDING: Duration = Duration::from_millis(400);
const LOOKED_ON: Duration = Duration::from_secs(3);
/// Time between two calls of all sockets.
const PAUSE: Duration = Duration::from_millis(50);
/// Most packets that a port keeps.
const KEPT_MAX: usize = 500;

/// Behaviour of the lender's device.
#[derive(Clone, Copy, PartialEq)]
enum Port {
    Sends,
    TakesNothing,
    /// Accepts some packets, keeps them, and accepts no more.
    Keeps,
}

/// Behaviour of the other host.
#[derive(Clone, Copy, PartialEq)]
enum Peer {
    Reads,
    NeverReads,
    /// Reads without a copy, and keeps every piece.
    Keeps,
    Dead,
}

/// The memory of a call.
struct Call {
    memory: Arc<Vec<u8>>,
    since: Instant,
    term: Duration,
}

/// A stream that lends, and its other end.
struct Stream {
    client: SocketId,
    server: SocketId,
    written: u64,
    read: u64,
}

struct Host {
    sockets: Sockets,
    memory: Memory,
    ledger: Ledger,
}

impl Host {
    fn with<R>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut Sockets, &mut Context<'_>) -> R,
    ) -> R {
        let Self { sockets, memory, ledger } = self;
        act(sockets, &mut Context { memory, ledger, now })
    }

    fn in_use(&self) -> usize {
        let Memory { packets, small, large } = &self.memory;
        packets.out_count() + small.out_count() + large.out_count()
    }
}

/// Two hosts; host 0 lends.
struct World {
    family: Family,
    hosts: [Host; 2],
    loans: Loans,
    streams: Vec<Stream>,
    datagrams: Vec<SocketId>,
    /// The destination of all datagrams, which is never read.
    sink: Option<SocketId>,
    calls: Vec<Call>,
    /// Calls whose memory is back.
    back: usize,
    kept_by_port: VecDeque<Packet>,
    /// Pieces of streams, with the stream and the offset of each.
    kept_by_readers: Vec<(u64, u64, ReceivedPiece)>,
    port: Port,
    peer: Peer,
    rng: Rng,
    now: Instant,
}

/// The version of IP of a seed.
fn family(seed: u64) -> Family {
    if seed.is_multiple_of(2) { Family::V4 } else { Family::V6 }
}

fn host(family: Family, index: usize) -> Host {
    let mac = |host: usize| MacAddr([2, 0, 0, 0, 0, host as u8 + 1]);
    let config = Config {
        mac: mac(index),
        addresses: vec![Address { address: address(index, family == Family::V6), prefix_len: 24 }],
        next_hops: Vec::new(),
        transparent: false,
        secret: [1, index as u64],
        tcp: Settings::default(),
        limits: Limits::default(),
    };
    let mut stack = Stack::new(config, able(1500));
    stack.set_neighbor(address(1 - index, family == Family::V6), mac(1 - index));
    let memory = Memory::new(MemoryConfig::within(64 << 20));
    Host { sockets: Sockets::new(stack), memory, ledger: Ledger::new() }
}

impl World {
    /// Makes a world in which all streams are connected.
    fn new(seed: u64) -> Self {
        let family = family(seed);
        let mut world = Self {
            family,
            hosts: [host(family, 0), host(family, 1)],
            loans: Loans::new(65_536),
            streams: Vec::new(),
            datagrams: Vec::new(),
            sink: None,
            calls: Vec::new(),
            back: 0,
            kept_by_port: VecDeque::new(),
            kept_by_readers: Vec::new(),
            port: Port::Sends,
            peer: Peer::Reads,
            rng: Rng::new(seed),
            now: Instant::START,
        };
        let (now, at) = (world.now, SocketAddr::new(address(1, family == Family::V6), 80));
        let listener = world.hosts[1].sockets.stream(family).expect("room");
        world.hosts[1].sockets.bind(listener, at).expect("free");
        world.hosts[1].sockets.listen(listener, 16, now).expect("free");
        for _ in 0..STREAMS {
            let client = world.hosts[0].sockets.stream(family).expect("room");
            let begun = world.hosts[0].sockets.connect(client, at, now);
            assert_eq!(begun, Err(Error::InProgress));
            world.settle();
            let (server, _) = world.hosts[1].sockets.accept(listener, now).expect("connected");
            world.streams.push(Stream { client, server, written: 0, read: 0 });
        }
        world.sink = Some(world.hosts[1].sockets.datagram(family).expect("room"));
        world.hosts[1].sockets.bind(world.sink.expect("made"), at).expect("free");
        for _ in 0..DATAGRAM_SOCKETS {
            world.datagrams.push(world.hosts[0].sockets.datagram(family).expect("room"));
        }
        world
    }

    /// Every socket lends as much as it can in one call.
    fn lend(&mut self) {
        let (loans, now, lender) = (&mut self.loans, self.now, &mut self.hosts[0]);
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let len = self.rng.between(1, 30_000) as usize;
            let term = Duration::from_millis(self.rng.between(1, 300));
            let mut bytes = vec![0; len];
            oracle::fill(index as u64, stream.written, &mut bytes);
            let memory = Arc::new(bytes);
            let (mut call, mut done) = (LentCall::for_term(term), 0);
            while done < len {
                let mut at = done;
                let lend = |most: usize, to: Borrower| {
                    let range = (at, most.min(len - at) as u32);
                    at += range.1 as usize;
                    loans.lend_recallable(&memory, range, to.lender, to.token)
                };
                let flags = SendFlags { continues: done > 0, ..SendFlags::default() };
                let sent = lender.with(now, |sockets, cx| {
                    sockets.send_lent(stream.client, &mut call, len - done, flags, lend, cx)
                });
                match sent {
                    Ok(sent) => done += sent,
                    Err(Error::WouldBlock) => break,
                    Err(error) => panic!("nothing is closed: {error:?}"),
                }
            }
            stream.written += done as u64;
            self.calls.push(Call { memory, since: now, term });
        }
        for id in &self.datagrams {
            let term = Duration::from_millis(self.rng.between(1, 300));
            let memory = Arc::new(vec![7; DATAGRAM_LEN]);
            let lend = |most: usize, to: Borrower| {
                loans.lend_recallable(&memory, (0, most as u32), to.lender, to.token)
            };
            let to = Some(SocketAddr::new(address(1, self.family == Family::V6), 80));
            let how = SendTo { to, term: Some(term), ..SendTo::default() };
            let sent = lender.with(now, |sockets, cx| {
                sockets.send_lent_datagram(*id, DATAGRAM_LEN, &how, lend, cx)
            });
            assert!(matches!(sent, Ok(DATAGRAM_LEN) | Err(Error::WouldBlock)), "{sent:?}");
            self.calls.push(Call { memory, since: now, term });
        }
    }

    /// Overwrites all memory that is back. The term of all other memory must not have ended.
    fn look(&mut self) {
        let (now, before) = (self.now, self.calls.len());
        self.calls.retain_mut(|call| {
            if let Some(memory) = Arc::get_mut(&mut call.memory) {
                memory.fill(0xa5);
                return false;
            }
            let held = now.since(call.since);
            assert!(held <= call.term + TICK, "held for {held:?}, lent for {:?}", call.term);
            true
        });
        self.back += before - self.calls.len();
    }

    /// Does all work that is possible without time passing.
    fn settle(&mut self) {
        for turn in 0.. {
            assert!(turn < 100_000, "packets go round and round");
            let now = self.now;
            for (index, host) in self.hosts.iter_mut().enumerate() {
                let dead = index == 1 && self.peer == Peer::Dead;
                if !dead && host.sockets.next_deadline().is_some_and(|at| at <= now) {
                    host.with(now, |sockets, cx| sockets.on_deadline(cx));
                }
            }
            let sent = self.carry(0) | (self.peer != Peer::Dead && self.carry(1));
            if !sent && !self.read() {
                return;
            }
        }
    }

    /// Moves the packets of one host to the other, with their pieces.
    fn carry(&mut self, from: usize) -> bool {
        let (now, lender) = (self.now, from == 0);
        let mut out = Burst::new();
        let keeps = lender && self.port == Port::Keeps;
        if lender && self.port == Port::TakesNothing || keeps && self.kept_by_port.len() > KEPT_MAX
        {
            return false;
        }
        self.hosts[from].with(now, |sockets, cx| sockets.output(&mut out, cx));
        if keeps {
            let any = !out.is_empty();
            self.kept_by_port.extend(std::iter::from_fn(|| out.pop()));
            return any;
        }
        let mut packets: VecDeque<Packet> = VecDeque::new();
        if lender {
            packets.append(&mut self.kept_by_port);
        }
        packets.extend(std::iter::from_fn(|| out.pop()));
        let any = !packets.is_empty();
        let dead = self.peer == Peer::Dead;
        for packet in packets.into_iter().filter(|_| !dead) {
            let receiver = &mut self.hosts[1 - from];
            // Without memory the packet is lost, and will be retransmitted.
            if let Ok(packet) = into_received(packet, &mut receiver.memory) {
                let mut burst = Burst::new();
                assert!(burst.push(packet).is_ok(), "one fits");
                receiver.with(now, |sockets, cx| sockets.input(&mut burst, cx));
            }
        }
        any
    }

    /// Lets the other host read. True if it read anything.
    fn read(&mut self) -> bool {
        let (now, reader, kept) = (self.now, &mut self.hosts[1], &mut self.kept_by_readers);
        let (mut any, mut bytes) = (false, vec![0; 60_000]);
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let (mut held, id) = (Vec::new(), stream.server);
            let got = match self.peer {
                Peer::NeverReads | Peer::Dead => return false,
                Peer::Reads => reader.with(now, |sockets, cx| {
                    sockets.receive(id, &mut bytes, ReceiveFlags::default(), cx)
                }),
                Peer::Keeps => reader.with(now, |sockets, cx| {
                    let most = ReadMost { bytes: 60_000, pieces: 64, private: false };
                    sockets.receive_lent(id, &most, &mut held, cx)
                }),
            };
            let count = match got {
                Ok(count) => count,
                // The memory that readers keep is bounded.
                Err(Error::WouldBlock | Error::NoBuffers) => continue,
                Err(error) => panic!("nothing is closed: {error:?}"),
            };
            any |= count > 0;
            if self.peer == Peer::Reads {
                let right = oracle::matches(index as u64, stream.read, &bytes[..count]);
                assert!(right, "a changed byte of stream {index}");
                stream.read += count as u64;
            }
            for held in held {
                let at = stream.read;
                stream.read += held.len() as u64;
                kept.push((index as u64, at, held));
            }
        }
        any
    }

    /// Lets time pass, and checks at every time at which something happens.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.settle();
            self.look();
            let alive = if self.peer == Peer::Dead { 1 } else { 2 };
            let next = self.hosts[..alive].iter().filter_map(|host| host.sockets.next_deadline());
            // Also checks a tick after each term.
            let looks = self.calls.iter().map(|call| call.since + call.term + TICK + TICK);
            match next.chain(looks).min().filter(|at| *at < until) {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
        }
        self.now = until;
        self.settle();
        self.look();
    }

    /// Lends while `port` and `peer` behave as given. Returns the statistics.
    fn suffer(&mut self, port: Port, peer: Peer) -> LentStats {
        (self.port, self.peer) = (port, peer);
        for _ in 0..LENDING.as_millis() / PAUSE.as_millis() {
            self.lend();
            self.pass(PAUSE);
        }
        self.pass(LOOKED_ON);
        assert!(self.calls.is_empty(), "{} calls have no memory back", self.calls.len());
        assert!(self.back > STREAMS + DATAGRAM_SOCKETS, "many lent");
        self.hosts[0].sockets.lent_stats(self.now)
    }

    /// Makes everything move again, and checks that all data arrives.
    fn recover(&mut self) {
        (self.port, self.peer) = (Port::Sends, Peer::Reads);
        for (stream, at, held) in self.kept_by_readers.drain(..) {
            let mut bytes = vec![0; held.len()];
            held.copy(&mut bytes, &Ledger::new());
            assert!(oracle::matches(stream, at, &bytes), "a kept byte of stream {stream} changed");
        }
        for _ in 0..600 {
            if self.streams.iter().all(|stream| stream.read == stream.written) {
                return;
            }
            self.pass(Duration::from_secs(1));
        }
        let left = self.streams.iter().filter(|stream| stream.read < stream.written).count();
        panic!("{left} streams do not go on");
    }

    /// Closes all sockets, and checks that nothing is left.
    fn end(mut self) {
        self.kept_by_port.clear();
        self.kept_by_readers.clear();
        for stream in std::mem::take(&mut self.streams) {
            self.hosts[0].sockets.close(stream.client, self.now).expect("open");
            self.hosts[1].sockets.close(stream.server, self.now).expect("open");
        }
        for id in std::mem::take(&mut self.datagrams) {
            self.hosts[0].sockets.close(id, self.now).expect("open");
        }
        let sink = self.sink.expect("made");
        self.hosts[1].sockets.close(sink, self.now).expect("open");
        self.pass(Duration::from_secs(3600));
        assert_eq!((self.loans.out_count(), self.hosts[0].in_use()), (0, 0));
    }
}

/// Runs a scene with a fixed seed for each version of IP, and with a new one.
fn scene(play: impl Fn(World) + std::panic::RefUnwindSafe) {
    let seeds = seed::from_environment().map_or_else(|| vec![0, 1, seed::fresh()], |one| vec![one]);
    for seed in seeds {
        let played = std::panic::catch_unwind(|| play(World::new(seed)));
        assert!(played.is_ok(), "failed; again with TOWPATH_SEED={seed:#x}");
    }
}

#[test]
fn a_port_that_takes_nothing_holds_no_memory_past_its_term() {
    scene(|mut world| {
        let stats = world.suffer(Port::TakesNothing, Peer::Reads);
        assert!(stats.terms_fired as usize > STREAMS, "{stats:?}");
        assert!(stats.recalls >= stats.terms_fired && stats.starved == 0, "{stats:?}");
        world.recover();
        world.end();
    });
}

#[test]
fn a_port_that_keeps_packets_keeps_no_memory() {
    scene(|mut world| {
        let stats = world.suffer(Port::Keeps, Peer::Reads);
        assert!(stats.terms_fired as usize > STREAMS, "{stats:?}");
        // The packets are sent after all, long after their memory was overwritten.
        world.recover();
        world.end();
    });
}

#[test]
fn a_dead_peer_holds_no_memory_past_its_term() {
    scene(|mut world| {
        let stats = world.suffer(Port::Sends, Peer::Dead);
        assert!(stats.terms_fired as usize > STREAMS, "{stats:?}");
        world.end();
    });
}

#[test]
fn a_reader_that_never_reads_holds_no_memory_past_its_term() {
    scene(|mut world| {
        let stats = world.suffer(Port::Sends, Peer::NeverReads);
        assert!(stats.terms_fired as usize > STREAMS, "{stats:?}");
        world.recover();
        world.end();
    });
}

#[test]
fn a_reader_that_keeps_all_pieces_holds_no_memory_past_its_term() {
    scene(|mut world| {
        let stats = world.suffer(Port::Sends, Peer::Keeps);
        assert!(stats.terms_fired as usize > STREAMS, "{stats:?}");
        assert!(world.kept_by_readers.len() > STREAMS);
        world.recover();
        world.end();
    });
}
