//! Hundreds of sockets that lend the memory they send, over faulty links.
//!
//! Each end of a connection lends a known stream from buffers that are overwritten as soon as a
//! notice returns them, reads the peer's stream with and without a copy, pauses, and sometimes
//! resets. Invariants: every call is reported once; no buffer is in use after its return; the peer
//! never reads a byte that was written later; terms are kept within a tick, whatever the peer does;
//! at the end all memory is back.
//!
//! `TOWPATH_SEED=<seed>` replays a seed that failed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use towpath_net::socket::{
    Borrower, DEFAULT_TERM, Error, Family, LentCall, Linger, Notice, ReadMost, ReceiveFlags,
    SendFlags, SocketId, Sockets,
};
use towpath_net::stack::{Address, Config, Context, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Ledger, Loans, Memory, MemoryConfig, ReceivedPiece, Site};
use towpath_sim::link::{Frame, Freight, Link, LinkConfig, Live, Medium};
use towpath_sim::oracle;
use towpath_sim::scenario::{able, address};
use towpath_sim::seed::{self, Rng};

/// Connections of a run; each has two sockets.
const CONNECTIONS: u16 = 120;
/// Most bytes that an end sends.
const BYTES_MAX: u64 = 150_000;
/// First port number of clients.
const FIRST_PORT: u16 = 10_000;
/// Largest delay of a term.
const TICK: Duration = Duration::from_millis(1);
/// Seeds of every run: two for each version of IP.
const SEEDS: u64 = 4;

/// A buffer of an application.
struct Buffer(Vec<u8>);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A call that is not complete.
struct Call {
    lent: LentCall,
    memory: Arc<Buffer>,
    done: usize,
    /// The loan can be recalled, so its memory counts as foreign.
    recallable: bool,
}

/// One end of a connection.
struct End {
    id: SocketId,
    /// Numbers and lengths of streams.
    writes: (u64, u64),
    reads: (u64, u64),
    written: u64,
    read: u64,
    call: Option<Call>,
    /// Memory of calls that were not reported, by number.
    out: BTreeMap<u32, (Arc<Buffer>, Instant)>,
    /// The term of lent memory.
    term: Option<Duration>,
    next: u32,
    /// What it keeps without a copy, and the offsets in its stream.
    held: Vec<(u64, ReceivedPiece)>,
    reads_lent: bool,
    read_at: Instant,
    /// Resets the connection after this many bytes were read.
    aborts_at: Option<u64>,
    shut: bool,
    peer_done: bool,
    broken: bool,
    closed: bool,
}

impl End {
    /// Drops pieces that it keeps, the last ones first, until `count` are left.
    fn keep(&mut self, count: usize) {
        for (offset, piece) in self.held.drain(count..) {
            let bytes = piece.bytes().expect("no memory here is foreign");
            assert!(
                oracle::matches(self.reads.0, offset, &bytes),
                "a byte changed while it was kept"
            );
        }
    }
}

/// A host and its applications.
struct Host {
    sockets: Sockets,
    memory: Memory,
    ledger: Ledger,
    loans: Loans,
    ends: Vec<End>,
    by_id: HashMap<SocketId, usize>,
    /// Ends that have work at a time.
    timers: BTreeSet<(Instant, usize)>,
    listener: Option<SocketId>,
    /// Unused buffers, and buffers of sockets that were reset.
    free: Vec<Vec<u8>>,
    orphans: Vec<Arc<Buffer>>,
    lost_for_memory: u64,
}

/// The version of IP of a seed.
fn family(seed: u64) -> Family {
    if seed.is_multiple_of(2) { Family::V4 } else { Family::V6 }
}

impl Host {
    fn new(family: Family, index: usize) -> Self {
        let mac = |host: usize| MacAddr([2, 0, 0, 0, 0, host as u8 + 1]);
        let config = Config {
            mac: mac(index),
            addresses: vec![Address {
                address: address(index, family == Family::V6),
                prefix_len: 24,
            }],
            next_hops: Vec::new(),
            transparent: false,
            secret: [1, index as u64],
            tcp: Settings::default(),
            limits: Limits::default(),
        };
        let mut stack = Stack::new(config, able(1500));
        stack.set_neighbor(address(1 - index, family == Family::V6), mac(1 - index));
        Self {
            sockets: Sockets::new(stack),
            memory: Memory::new(MemoryConfig::within(64 << 20)),
            ledger: Ledger::new(),
            loans: Loans::new(65_536),
            ends: Vec::new(),
            by_id: HashMap::new(),
            timers: BTreeSet::new(),
            listener: None,
            free: Vec::new(),
            orphans: Vec::new(),
            lost_for_memory: 0,
        }
    }

    fn add(&mut self, id: SocketId, index: u16, server: bool, rng: &mut Rng, now: Instant) {
        // Both ends draw the lengths from the same numbers.
        let len = |side: u64| Rng::new(u64::from(index) * 2 + side).between(0, BYTES_MAX);
        let side = u64::from(server);
        let stream = u64::from(index) * 2;
        let aborts = rng.chance(80_000);
        let millis = rng.between(30, 300);
        let term = rng.chance(500_000).then(|| Duration::from_millis(millis));
        let set = |options: &mut towpath_net::socket::Options| options.lent_term = term;
        self.sockets.set_options(id, now, set).expect("it is open");
        let end = End {
            id,
            writes: (stream + side, len(side)),
            reads: (stream + 1 - side, len(1 - side)),
            written: 0,
            read: 0,
            call: None,
            out: BTreeMap::new(),
            term,
            next: 0,
            held: Vec::new(),
            reads_lent: rng.chance(500_000),
            read_at: now,
            aborts_at: aborts.then(|| rng.between(0, BYTES_MAX)),
            shut: false,
            peer_done: false,
            broken: false,
            closed: false,
        };
        self.by_id.insert(id, self.ends.len());
        self.timers.insert((now, self.ends.len()));
        self.ends.push(end);
    }

    /// Lets the applications react to events and time. True if any did.
    fn act(&mut self, rng: &mut Rng, now: Instant) -> bool {
        let mut woken = BTreeSet::new();
        while let Some((id, _)) = self.sockets.next_wake() {
            if self.listener == Some(id) {
                while let Ok((id, remote)) = self.sockets.accept(id, now) {
                    self.add(id, remote.port() - FIRST_PORT, true, rng, now);
                }
            }
            woken.extend(self.by_id.get(&id));
        }
        while let Some(&(at, index)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, index));
            woken.insert(index);
        }
        let any = !woken.is_empty();
        for index in woken {
            self.act_end(index, rng, now);
        }
        for memory in std::mem::take(&mut self.orphans) {
            match Arc::try_unwrap(memory) {
                Ok(buffer) => self.reclaim(buffer),
                Err(memory) => self.orphans.push(memory),
            }
        }
        any
    }

    /// A buffer is returned: its content is overwritten at once.
    fn reclaim(&mut self, Buffer(mut bytes): Buffer) {
        bytes.fill(0xa5);
        self.free.push(bytes);
    }

    fn act_end(&mut self, index: usize, rng: &mut Rng, now: Instant) {
        if self.ends[index].closed {
            return;
        }
        self.take_notices(index, now);
        if now >= self.ends[index].read_at {
            self.read(index, rng, now);
        }
        self.write(index, rng, now);
        let end = &mut self.ends[index];
        if end.aborts_at.is_some_and(|at| end.read >= at) {
            return self.abort(index, now);
        }
        if end.written == end.writes.1 && !end.shut && !end.broken {
            end.shut = true;
            // The peer may have reset the connection.
            let _ = self.sockets.shutdown(end.id, towpath_net::socket::Shutdown::Write, now);
        }
        let end = &mut self.ends[index];
        let done = end.broken || end.shut && end.peer_done;
        if done && end.out.is_empty() {
            end.closed = true;
            end.keep(0);
            self.sockets.close(end.id, now).expect("it is open");
        }
    }

    fn abort(&mut self, index: usize, now: Instant) {
        let end = &mut self.ends[index];
        let reset = |options: &mut towpath_net::socket::Options| options.linger = Linger::Reset;
        self.sockets.set_options(end.id, now, reset).expect("it is open");
        self.sockets.close(end.id, now).expect("it is open");
        end.closed = true;
        end.keep(0);
        self.orphans.extend(end.call.take().map(|call| call.memory));
        let out = std::mem::take(&mut end.out);
        self.orphans.extend(out.into_values().map(|(memory, _)| memory));
    }

    fn take_notices(&mut self, index: usize, now: Instant) {
        while let Ok(notice) = self.sockets.take_notice(self.ends[index].id) {
            let Notice::Lent { first, last, copied } = notice else { panic!("{notice:?}") };
            let term = self.ends[index].term;
            let since = self.ends[index].out.get(&first).map(|(_, since)| *since);
            // Without a term, what a reader keeps is copied in the end.
            let had_to_be = term.is_some() || since.is_some_and(|at| now.since(at) >= DEFAULT_TERM);
            assert!(!copied || had_to_be, "nothing had to be copied");
            for number in first..=last {
                let call = self.ends[index].out.remove(&number);
                let (memory, since) =
                    call.unwrap_or_else(|| panic!("call {number} is reported twice"));
                let kept = term.is_none_or(|term| now.since(since) <= term + TICK);
                assert!(kept, "{:?} for a term of {term:?}", now.since(since));
                let buffer = Arc::try_unwrap(memory).ok().expect("what is returned is not held");
                self.reclaim(buffer);
            }
        }
    }

    fn read(&mut self, index: usize, rng: &mut Rng, now: Instant) {
        let Self { sockets, memory, ledger, ends, timers, .. } = self;
        let end = &mut ends[index];
        let mut cx = Context { memory, ledger, now };
        end.keep(rng.below(end.held.len() as u64 + 1) as usize);
        let mut bytes = vec![0; 5000];
        loop {
            let mut lent = Vec::new();
            let taken = if end.reads_lent {
                let most = ReadMost { bytes: 20_000, pieces: 16, private: false };
                sockets.receive_lent(end.id, &most, &mut lent, &mut cx)
            } else {
                sockets.receive(end.id, &mut bytes, ReceiveFlags::default(), &mut cx)
            };
            match taken {
                Ok(0) => {
                    end.peer_done = true;
                    assert!(end.read == end.reads.1, "{} of {:?}", end.read, end.reads);
                    break;
                }
                Ok(count) => {
                    if !end.reads_lent {
                        let right = oracle::matches(end.reads.0, end.read, &bytes[..count]);
                        assert!(right, "a changed byte");
                        end.read += count as u64;
                    }
                    for piece in lent {
                        let got = piece.bytes().expect("no memory here is foreign");
                        assert!(oracle::matches(end.reads.0, end.read, &got), "a changed byte");
                        drop(got);
                        let offset = end.read;
                        end.read += piece.len() as u64;
                        end.held.push((offset, piece));
                    }
                }
                Err(Error::NoBuffers) => end.keep(0),
                Err(Error::WouldBlock) => break,
                Err(_) => {
                    end.broken = true;
                    break;
                }
            }
            if rng.chance(50_000) {
                break;
            }
        }
        // Sometimes long enough for windows to close and probes to be sent.
        let most = if rng.chance(20_000) { 5_000_000 } else { 50_000 };
        end.read_at = now + rng.duration(Duration::from_micros(most));
        if !end.peer_done && !end.broken || !end.held.is_empty() {
            timers.insert((end.read_at, index));
        }
    }

    fn write(&mut self, index: usize, rng: &mut Rng, now: Instant) {
        let Self { sockets, memory, ledger, loans, ends, free, .. } = self;
        let end = &mut ends[index];
        let mut cx = Context { memory, ledger, now };
        while !end.broken && (end.call.is_some() || end.written < end.writes.1) {
            let call = end.call.get_or_insert_with(|| {
                let len = rng.between(1, 60_000).min(end.writes.1 - end.written) as usize;
                let mut bytes = free.pop().unwrap_or_default();
                bytes.resize(len, 0);
                oracle::fill(end.writes.0, end.written, &mut bytes);
                let recallable = end.term.is_some() || rng.chance(500_000);
                let lent = LentCall::default();
                Call { lent, memory: Arc::new(Buffer(bytes)), done: 0, recallable }
            });
            let (memory, recallable, len) = (&call.memory, call.recallable, call.memory.0.len());
            let mut at = call.done;
            let lend = |most: usize, borrower: Borrower| {
                let range = (at, most.min(len - at) as u32);
                at += range.1 as usize;
                let Borrower { lender, token } = borrower;
                match recallable {
                    true => loans.lend_recallable(memory, range, lender, token),
                    false => loans.lend_shared(memory, range, lender, token),
                }
            };
            let flags = SendFlags { continues: call.done > 0, ..SendFlags::default() };
            let left = len - call.done;
            match sockets.send_lent(end.id, &mut call.lent, left, flags, lend, &mut cx) {
                Ok(sent) => {
                    end.next += u32::from(call.done == 0);
                    end.out.insert(end.next - 1, (memory.clone(), now));
                    call.done += sent;
                    if call.done == len {
                        end.written += len as u64;
                        end.call = None;
                    }
                }
                Err(Error::WouldBlock) => return,
                Err(_) => end.broken = true,
            }
        }
        if end.broken {
            // An interrupted call has a number if any of its bytes were accepted.
            end.call = None;
        }
    }
}

/// Two hosts, and a link in each direction.
struct World<F> {
    family: Family,
    hosts: [Host; 2],
    links: [Link<F>; 2],
    rng: Rng,
    now: Instant,
}

impl<F: Freight> World<F> {
    /// Makes a world whose links damage up to `corrupt` frames in a million.
    fn new(seed: u64, corrupt: u64) -> Self {
        let mut rng = Rng::new(seed);
        let links = [(); 2].map(|()| {
            let delay = rng.duration(Duration::from_millis(30));
            let mut config = LinkConfig::clean(Medium::Wire, 1500, delay);
            config.jitter = rng.duration(Duration::from_millis(2));
            config.loss = rng.between(1_000, 20_000) as u32;
            config.duplicate = rng.between(0, 20_000) as u32;
            config.reorder = rng.between(0, 30_000) as u32;
            config.reorder_by = rng.duration(Duration::from_millis(40));
            config.corrupt = rng.between(0, corrupt) as u32;
            Link::new(config)
        });
        let family = family(seed);
        let hosts = [Host::new(family, 0), Host::new(family, 1)];
        Self { family, hosts, links, rng, now: Instant::START }
    }

    fn begin(&mut self) {
        let at = SocketAddr::new(address(0, self.family == Family::V6), 80);
        let server = &mut self.hosts[0].sockets;
        let listener = server.stream(self.family).expect("room");
        server.bind(listener, at).expect("free");
        server.listen(listener, i32::from(CONNECTIONS), self.now).expect("free");
        self.hosts[0].listener = Some(listener);
        for index in 0..CONNECTIONS {
            let client = &mut self.hosts[1];
            let id = client.sockets.stream(self.family).expect("room");
            let local = SocketAddr::new(address(1, self.family == Family::V6), FIRST_PORT + index);
            client.sockets.bind(id, local).expect("free");
            let begun = client.sockets.connect(id, at, self.now);
            assert_eq!(begun, Err(Error::InProgress));
            client.add(id, index, false, &mut self.rng, self.now);
        }
    }

    /// Does all work that is possible without time passing.
    fn settle(&mut self) {
        let now = self.now;
        let mut moved = true;
        while moved {
            moved = false;
            for index in 0..2 {
                moved |= self.receive(index);
                let host = &mut self.hosts[index];
                if host.sockets.next_deadline().is_some_and(|at| at <= now) {
                    let Host { sockets, memory, ledger, .. } = host;
                    sockets.on_deadline(&mut Context { memory, ledger, now });
                }
                moved |= host.act(&mut self.rng, now);
                moved |= self.transmit(index);
            }
        }
    }

    fn receive(&mut self, index: usize) -> bool {
        let (now, mut any) = (self.now, false);
        let Host { sockets, memory, ledger, lost_for_memory, .. } = &mut self.hosts[index];
        let mut burst = Burst::new();
        while let Some(frame) = self.links[1 - index].arrive(now) {
            any = true;
            match frame.unload(memory) {
                Some(packet) => drop(burst.push(packet)),
                None => *lost_for_memory += 1,
            }
            sockets.input(&mut burst, &mut Context { memory, ledger, now });
        }
        any
    }

    fn transmit(&mut self, index: usize) -> bool {
        let (now, mut any) = (self.now, false);
        let Host { sockets, memory, ledger, .. } = &mut self.hosts[index];
        let mut burst = Burst::new();
        loop {
            sockets.output(&mut burst, &mut Context { memory, ledger, now });
            if burst.is_empty() {
                return any;
            }
            any = true;
            while let Some(packet) = burst.pop() {
                self.links[index].send(packet, now, &mut self.rng, memory, ledger);
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let hosts = self.hosts.iter().flat_map(|host| {
            [host.sockets.next_deadline(), host.timers.first().map(|(at, _)| *at)]
        });
        hosts.flatten().chain(self.links.iter().filter_map(Link::deadline)).min()
    }

    fn is_done(&self) -> bool {
        let count = usize::from(CONNECTIONS);
        let host = |host: &Host| host.ends.len() == count && host.ends.iter().all(|end| end.closed);
        self.hosts.iter().all(host)
    }

    fn run(&mut self) {
        let until = Instant::START + Duration::from_secs(1800);
        loop {
            self.settle();
            match self.deadline() {
                Some(at) if at <= until => self.now = self.now.max(at),
                // No work is left, including connections in TIME-WAIT.
                None => break,
                Some(_) => panic!("not done after {until:?}: {}", self.report()),
            }
        }
        assert!(self.is_done(), "nothing moves: {}", self.report());
    }

    fn report(&self) -> String {
        let mut text = String::new();
        for (index, host) in self.hosts.iter().enumerate() {
            for end in host.ends.iter().filter(|end| !end.closed) {
                text += &format!(
                    "host {index} wrote {} of {}, read {} of {}, {} calls out, {} pieces held\n",
                    end.written,
                    end.writes.1,
                    end.read,
                    end.reads.1,
                    end.out.len(),
                    end.held.len()
                );
            }
        }
        text
    }

    fn check(&self) {
        let lost: u64 = self.links.iter().map(|link| link.counters().lost()).sum();
        let again: u64 =
            self.hosts.iter().map(|host| host.sockets.stack().counters().retransmitted).sum();
        assert!(lost > 0 && again > 0, "{lost} lost, {again} sent again");
        for (index, host) in self.hosts.iter().enumerate() {
            assert!(host.ledger.lent() > 0, "host {index} lent nothing");
            let Memory { packets, small, large } = &host.memory;
            let out = [packets.out_count(), small.out_count(), large.out_count()];
            assert_eq!((out, host.loans.out_count()), ([0; 3], 0), "host {index} keeps memory");
            assert_eq!(host.orphans.len(), 0, "host {index} keeps buffers of sockets that went");
            assert_eq!(host.sockets.handed_out(), 0);
            assert_eq!(host.ledger.copied_at(Site::SocketSend), 0, "sends were lent");
            let problem = self.links[index].problem();
            assert_eq!(problem, None);
        }
    }
}

/// Runs all seeds, in some of which terms end loans.
fn run_all<F: Freight>(corrupt: u64) {
    seed::each(SEEDS, |seed| {
        let mut world = World::<F>::new(seed, corrupt);
        world.begin();
        world.run();
        world.check();
        world.hosts.iter().map(|host| host.sockets.lent_stats(world.now).terms_fired).sum()
    });
}

#[test]
fn lent_memory_comes_back_once_and_is_never_read_later() {
    run_all::<Frame>(5_000);
}

#[test]
fn lent_memory_on_its_way_comes_back_once_and_is_never_read_later() {
    run_all::<Live>(0);
}
