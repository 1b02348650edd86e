//! Hundreds of sockets that lend datagrams, over faulty links, through ports that stall from time
//! to time.
//!
//! Each socket lends datagrams, one or many in a call, to a socket of the other host, from buffers
//! that are overwritten as soon as a notice returns them. Invariants: every call is reported once,
//! and only with its own number; no buffer is in use after its return; no datagram arrives changed
//! or with another length, although it may have waited in a port long after its memory was
//! returned; terms are kept within a tick; at the end all memory is back. All of that holds on
//! links that carry bytes, and on links that carry the packets themselves.
//!
//! `TOWPATH_SEED=<seed>` replays a seed that failed.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use towpath_net::socket::{
    Borrower, DEFAULT_TERM, Error, Family, LentCall, Notice, SendTo, SocketId, Sockets,
};
use towpath_net::stack::{Address, Config, Context, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Ledger, Loans, Memory, MemoryConfig, Site};
use towpath_sim::link::{Frame, Freight, Link, LinkConfig, Live, Medium};
use towpath_sim::oracle;
use towpath_sim::scenario::{able, address};
use towpath_sim::seed::{self, Rng};

/// Sockets of each host, and calls of each.
const SOCKETS: u16 = 150;
const CALLS: u32 = 30;
const FIRST_PORT: u16 = 10_000;
/// Most bytes of a datagram: one packet with either version of IP, because the devices here do not
/// compute checksums of fragments.
const DATAGRAM_MAX: u64 = 1400;
/// Most datagrams of one call.
const MANY_MAX: u64 = 100;
/// Bytes of the number at the start of a datagram.
const NUMBER_BYTES: usize = 8;
/// Largest delay of a term.
const TICK: Duration = Duration::from_millis(1);
/// Seeds of every run: two for each version of IP.
const SEEDS: u64 = 4;

/// A call that was not reported.
struct Call {
    memory: Arc<Vec<u8>>,
    /// The latest time of its return; `None` for memory that cannot go back early.
    until: Option<Instant>,
}

/// A call that is not complete.
struct Begun {
    lent: LentCall,
    memory: Arc<Vec<u8>>,
    done: usize,
    how: SendTo,
    recallable: bool,
}

struct End {
    id: SocketId,
    /// The stream that it sends and the stream that it receives.
    streams: [u64; 2],
    to: SocketAddr,
    begun: Option<Begun>,
    called: u32,
    /// Datagrams sent.
    datagrams: u64,
    out: BTreeMap<u32, Call>,
    acts_at: Instant,
}

struct Host {
    sockets: Sockets,
    memory: Memory,
    ledger: Ledger,
    loans: Loans,
    ends: Vec<End>,
    by_id: HashMap<SocketId, usize>,
    stalled_until: Instant,
    stalls_at: Instant,
    arrived: u64,
    lost_for_memory: u64,
}

struct World<F> {
    hosts: [Host; 2],
    links: [Link<F>; 2],
    /// Lengths of datagrams, by stream and number.
    lens: HashMap<(u64, u64), usize>,
    rng: Rng,
    now: Instant,
}

/// The version of IP of a seed.
fn family(seed: u64) -> Family {
    if seed.is_multiple_of(2) { Family::V4 } else { Family::V6 }
}

/// Offset of a datagram's bytes in its stream.
fn place(number: u64) -> u64 {
    number * DATAGRAM_MAX
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
        let mut host = Self {
            sockets: Sockets::new(stack),
            // Links keep packets.
            memory: Memory::new(MemoryConfig { packets: 65_536, ..MemoryConfig::within(64 << 20) }),
            ledger: Ledger::new(),
            loans: Loans::new(65_536),
            ends: Vec::new(),
            by_id: HashMap::new(),
            stalled_until: Instant::START,
            stalls_at: Instant::START,
            arrived: 0,
            lost_for_memory: 0,
        };
        for number in 0..SOCKETS {
            let id = host.sockets.datagram(family).expect("room");
            let port = FIRST_PORT + number;
            let local = SocketAddr::new(address(index, family == Family::V6), port);
            host.sockets.bind(id, local).expect("free");
            let stream = |host: usize| u64::from(number) * 2 + host as u64;
            host.by_id.insert(id, host.ends.len());
            host.ends.push(End {
                id,
                streams: [stream(index), stream(1 - index)],
                to: SocketAddr::new(address(1 - index, family == Family::V6), port),
                begun: None,
                called: 0,
                datagrams: 0,
                out: BTreeMap::new(),
                acts_at: Instant::START,
            });
        }
        host
    }

    fn has_called(&self) -> bool {
        self.ends.iter().all(|end| end.called == CALLS && end.begun.is_none())
    }

    /// Checks all lent memory, and runs sockets that have events or are due.
    fn act(&mut self, lens: &mut HashMap<(u64, u64), usize>, rng: &mut Rng, now: Instant) -> bool {
        let mut any = false;
        while let Some((id, _)) = self.sockets.next_wake() {
            let index = self.by_id[&id];
            self.take_notices(index);
            self.read(index, lens);
            any = true;
        }
        for index in 0..self.ends.len() {
            let end = &self.ends[index];
            // A call is not reported before its end.
            let begun = end.begun.as_ref().filter(|begun| begun.done > 0).map(|_| end.called - 1);
            for (number, call) in &end.out {
                let in_time = call.until.is_none_or(|until| now <= until + TICK);
                assert!(in_time || begun == Some(*number), "{now:?}, not {:?}", call.until);
            }
            if end.acts_at <= now && (end.called < CALLS || end.begun.is_some()) {
                self.lend(index, lens, rng, now);
                self.ends[index].acts_at = now + rng.duration(Duration::from_millis(60));
                any = true;
            }
        }
        any
    }

    fn take_notices(&mut self, index: usize) {
        let end = &mut self.ends[index];
        while let Ok(notice) = self.sockets.take_notice(end.id) {
            let Notice::Lent { first, last, copied } = notice else { panic!("{notice:?}") };
            for number in first..=last {
                let call = end.out.remove(&number);
                let call = call.unwrap_or_else(|| panic!("call {number} is reported twice"));
                // Notices are merged regardless of `copied`, which belongs to the first.
                let had_to_be = number != first || call.until.is_some();
                assert!(!copied || had_to_be, "nothing had to be copied");
                let mut bytes = Arc::into_inner(call.memory).expect("what is back is not held");
                bytes.fill(0xa5);
            }
        }
    }

    fn read(&mut self, index: usize, lens: &HashMap<(u64, u64), usize>) {
        let end = &self.ends[index];
        let mut bytes = [0; DATAGRAM_MAX as usize + 1];
        loop {
            let into = &mut [&mut bytes[..]];
            match self.sockets.receive_datagram(end.id, into, false, &self.ledger) {
                Ok(got) => {
                    let (number, rest) = bytes[..got.copied].split_at(NUMBER_BYTES);
                    let number = u64::from_le_bytes(number.try_into().expect("eight"));
                    let stream = end.streams[1];
                    assert_eq!(lens.get(&(stream, number)), Some(&got.copied), "another length");
                    assert!(oracle::matches(stream, place(number), rest), "a changed byte");
                    self.arrived += 1;
                }
                Err(Error::WouldBlock) => return,
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Makes the memory of a call: one datagram, or many of one size and perhaps a shorter last
    /// one.
    fn begin(end: &mut End, lens: &mut HashMap<(u64, u64), usize>, rng: &mut Rng) -> Begun {
        let size = rng.between(NUMBER_BYTES as u64, DATAGRAM_MAX) as usize;
        let many = rng.chance(300_000);
        let count = if many { rng.between(1, MANY_MAX) as usize } else { 1 };
        let last = rng.between(NUMBER_BYTES as u64, size as u64) as usize;
        let mut bytes = vec![0; size * (count - 1) + last];
        for datagram in bytes.chunks_mut(size) {
            lens.insert((end.streams[0], end.datagrams), datagram.len());
            let (number, rest) = datagram.split_at_mut(NUMBER_BYTES);
            number.copy_from_slice(&end.datagrams.to_le_bytes());
            oracle::fill(end.streams[0], place(end.datagrams), rest);
            end.datagrams += 1;
        }
        let term = rng.chance(500_000).then(|| Duration::from_millis(rng.between(1, 300)));
        let segment_size = many.then_some(size as u16);
        let how = SendTo { to: Some(end.to), segment_size, term, ..SendTo::default() };
        let recallable = term.is_some() || rng.chance(500_000);
        Begun { lent: LentCall::default(), memory: Arc::new(bytes), done: 0, how, recallable }
    }

    fn lend(
        &mut self,
        index: usize,
        lens: &mut HashMap<(u64, u64), usize>,
        rng: &mut Rng,
        now: Instant,
    ) {
        let Self { sockets, memory: pools, ledger, loans, ends, .. } = self;
        let end = &mut ends[index];
        let mut begun = match end.begun.take() {
            Some(begun) => begun,
            None => Self::begin(end, lens, rng),
        };
        let Begun { lent, memory, done, how, recallable } = &mut begun;
        let (from, all) = (*done, memory.len());
        let mut lend = |at: usize, most: usize, Borrower { lender, token }: Borrower| {
            let range = (from + at, most.min(all - from - at) as u32);
            match recallable {
                true => loans.lend_recallable(memory, range, lender, token),
                false => loans.lend_shared(memory, range, lender, token),
            }
        };
        let mut cx = Context { memory: pools, ledger, now };
        let sent = if how.segment_size.is_some() {
            sockets.send_lent_datagrams(end.id, lent, all - from, how, lend, &mut cx)
        } else {
            let lend = |most, borrower| lend(0, most, borrower);
            sockets.send_lent_datagram(end.id, all, how, lend, &mut cx)
        };
        match sent {
            Ok(sent) => {
                let until = recallable.then(|| now + how.term.unwrap_or(DEFAULT_TERM * 2));
                if from == 0 {
                    end.out.insert(end.called, Call { memory: memory.clone(), until });
                    end.called += 1;
                }
                *done += sent;
                if *done < all {
                    end.begun = Some(begun);
                } else if let Some(call) = end.out.get_mut(&(end.called - 1)) {
                    // The term of each part starts when it is lent.
                    call.until = call.until.max(until);
                }
            }
            // The port stalls. A call that has not sent anything is made again.
            Err(Error::WouldBlock) => {
                if from > 0 {
                    end.begun = Some(begun);
                }
            }
            Err(error) => panic!("{error:?}"),
        }
    }
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
        let hosts = [0, 1].map(|index| Host::new(family(seed), index));
        Self { hosts, links, lens: HashMap::new(), rng, now: Instant::START }
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
                moved |= host.act(&mut self.lens, &mut self.rng, now);
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
        let host = &mut self.hosts[index];
        if host.stalls_at <= now && !host.has_called() {
            host.stalled_until = now + self.rng.duration(Duration::from_millis(400));
            host.stalls_at = host.stalled_until + self.rng.duration(Duration::from_millis(200));
        }
        if now < host.stalled_until {
            return false;
        }
        let Host { sockets, memory, ledger, .. } = host;
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
            let acts = host.ends.iter().filter(|end| end.called < CALLS || end.begun.is_some());
            let stalls = [host.stalled_until, host.stalls_at].into_iter();
            let stalls = stalls.filter(|at| *at > self.now);
            acts.map(|end| end.acts_at).chain(stalls).chain(host.sockets.next_deadline())
        });
        hosts.chain(self.links.iter().filter_map(Link::deadline)).min()
    }

    fn run(&mut self) {
        let until = Instant::START + Duration::from_secs(120);
        let mut idle = 0;
        loop {
            self.settle();
            match self.deadline() {
                Some(at) if at <= until => {
                    idle = if at > self.now { 0 } else { idle + 1 };
                    assert!(idle < 1000, "what is due is not done");
                    self.now = self.now.max(at);
                }
                None => return,
                Some(_) => panic!("not done after {until:?}"),
            }
        }
    }

    /// Checks the end of a run. Returns how many terms ended loans.
    fn check(mut self) -> u64 {
        let mut fired = 0;
        let lost: u64 = self.links.iter().map(|link| link.counters().lost()).sum();
        assert!(lost > 0);
        for (index, host) in self.hosts.iter_mut().enumerate() {
            assert!(host.has_called() && host.ends.iter().all(|end| end.out.is_empty()));
            let sent: u64 = host.ends.iter().map(|end| end.datagrams).sum();
            // Many datagrams that arrive at once after a stall find no room.
            assert!(host.arrived > sent / 10, "{} arrived, {sent} sent", host.arrived);
            assert_eq!(host.ledger.copied_at(Site::SocketSend), 0, "sends were lent");
            fired += host.sockets.lent_stats(self.now).terms_fired;
            for end in &host.ends {
                host.sockets.close(end.id, self.now).expect("it is open");
            }
            let Memory { packets, small, large } = &host.memory;
            let out = [packets.out_count(), small.out_count(), large.out_count()];
            assert_eq!((out, host.loans.out_count()), ([0; 3], 0), "host {index} keeps memory");
            assert_eq!(self.links[index].problem(), None);
        }
        fired
    }
}

/// Runs all seeds, in some of which terms end loans.
fn run_all<F: Freight>(corrupt: u64) {
    seed::each(SEEDS, |seed| {
        let mut world = World::<F>::new(seed, corrupt);
        world.run();
        world.check()
    });
}

#[test]
fn lent_datagrams_come_back_once_and_never_change() {
    run_all::<Frame>(5_000);
}

#[test]
fn lent_datagrams_on_their_way_come_back_once_and_never_change() {
    run_all::<Live>(0);
}
