//! Several threads against the model: forwarders and the owner take turns in any order.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use proptest::prelude::*;
use towpath_packet::{Burst, Packet};

use super::harness::*;
use super::model::*;
use crate::switch::*;
use crate::time::Duration;

/// Threads with a forwarder. Port `n` belongs to thread `n % WORKERS`.
const WORKERS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    /// A worker receives a burst from a port.
    Receive(usize, Vec<ModelFrame>),
    /// The owner forwards some of the packets that a worker left to it.
    Forward(usize, usize),
    /// A worker takes over changes of ports.
    Refresh(usize),
    /// Time passes, in units of [`TICK`].
    Pass(u32),
    Remove(usize),
    Set(usize, ModelPort),
}

/// More than the share of the ageing time within which a forwarder refreshes a station once, so
/// that it refreshes as often as the model.
const TICK: Duration = Duration::from_millis(200);

fn any_step() -> impl Strategy<Value = Step> {
    let frames = prop::collection::vec(any_frame(), 1..12);
    prop_oneof![
        9 => (0..PORTS, frames).prop_map(|(port, frames)| Step::Receive(port, frames)),
        6 => (0..WORKERS, 1..12usize).prop_map(|(worker, count)| Step::Forward(worker, count)),
        2 => (0..WORKERS).prop_map(Step::Refresh),
        2 => (0..40u32).prop_map(Step::Pass),
        1 => (0..PORTS).prop_map(Step::Remove),
        1 => (0..PORTS, any_port()).prop_map(|(number, port)| Step::Set(number, port)),
    ]
}

/// The ports of the model at some generation, each with the number of its changes so far.
type ModelPorts = Vec<Option<ModelPort>>;

struct Worker {
    forwarder: Forwarder,
    /// The ports as the forwarder knows them, and how often each was changed.
    ports: ModelPorts,
    changes: [usize; PORTS],
    /// Packets for the owner, in order, with their ports and frames.
    queue: VecDeque<(usize, ModelFrame, Packet)>,
    /// For each port, the destinations whose packets must follow others.
    following: [u64; PORTS],
}

struct Net {
    real: Harness,
    model: Model,
    changes: [usize; PORTS],
    /// Generation in which each port was removed.
    removed: [u64; PORTS],
    workers: Vec<Worker>,
    /// The flow of each frame sent.
    flows: Vec<Flow>,
    /// Last frame of each flow that left by each port.
    last: BTreeMap<(usize, Flow), u16>,
}

/// What is the same for all frames that must stay in order: port, number of its changes, VLAN of
/// the tag, sender and destination.
type Flow = (usize, usize, Option<u16>, u8, u8);

impl Net {
    fn new(ports: &[ModelPort]) -> Self {
        let real = Harness::with(CONFIG, ports.iter().map(config));
        let ports: ModelPorts = ports.iter().cloned().map(Some).collect();
        let worker = |_| Worker {
            forwarder: real.switch.forwarder(),
            ports: ports.clone(),
            changes: [0; PORTS],
            queue: VecDeque::new(),
            following: [0; PORTS],
        };
        Self {
            workers: (0..WORKERS).map(worker).collect(),
            real,
            model: Model { ports, learned: BTreeMap::new(), age: CONFIG.age },
            changes: [0; PORTS],
            removed: [0; PORTS],
            flows: Vec::new(),
            last: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Receive(from, frames) => self.receive(from, frames),
            Step::Forward(worker, count) => self.forward(worker, count),
            Step::Refresh(worker) => {
                let worker = &mut self.workers[worker];
                assert_eq!(worker.forwarder.refresh(), self.real.switch.generation());
                (worker.ports, worker.changes) = (self.model.ports.clone(), self.changes);
            }
            Step::Pass(ticks) => {
                let real = &mut self.real;
                real.now += TICK * ticks;
                real.switch.expire(real.now);
                let (now, age) = (real.now, self.model.age);
                self.model.learned.retain(|_, entry| now.since(entry.1) < age);
            }
            Step::Remove(number) => {
                let was_there = self.model.ports[number].take().is_some();
                let removed = self.real.switch.remove_port(self.real.ports[number]);
                assert_eq!(removed.is_ok(), was_there);
                if was_there {
                    self.removed[number] = self.real.switch.generation();
                }
                self.model.learned.retain(|_, entry| entry.0 != number);
            }
            Step::Set(number, port) => self.set(number, port),
        }
    }

    fn set(&mut self, number: usize, port: ModelPort) {
        let switch = &mut self.real.switch;
        let id = self.real.ports[number];
        if self.model.ports[number].is_some() {
            // Moves the port to a VLAN without other ports first, so that its stations are
            // forgotten.
            let away = PortConfig { vlans: access(4000), ..config(&port) };
            switch.set_port(id, away).expect("room");
            switch.set_port(id, config(&port)).expect("room");
        } else {
            // As the owner must: the generation, then the packets under way, then the numbers.
            let oldest = switch.oldest_generation();
            let is_free = oldest >= self.removed[number];
            let is_next = self.model.ports[..number].iter().all(Option::is_some);
            let is_idle = self.workers.iter().all(|worker| worker.queue.is_empty());
            if !(is_free && is_next && is_idle) {
                return;
            }
            switch.release_numbers(oldest);
            assert_eq!(switch.add_port(config(&port)), Ok(id));
        }
        self.model.learned.retain(|_, entry| entry.0 != number);
        self.changes[number] += 1;
        self.model.ports[number] = Some(port);
    }

    fn receive(&mut self, from: usize, mut frames: Vec<ModelFrame>) {
        let before = self.sums();
        let Self { real, workers, flows, model, .. } = self;
        let worker = &mut workers[from % WORKERS];
        let is_pending = worker.queue.iter().any(|(port, ..)| *port == from);
        if !is_pending {
            worker.following[from] = 0;
        }
        let (mut burst, mut rest) = (Burst::new(), Burst::new());
        for frame in &mut frames {
            frame.number = flows.len() as u16;
            let tag = frame.tags.first().map(|tag| tag & 0xfff);
            flows.push((from, worker.changes[from], tag, frame.from, frame.to));
            burst.push(real.packet(&frame.bytes(&frame.tags), true)).expect("room");
        }
        let mut cx = Context { memory: &mut real.memory, ledger: &real.ledger, now: real.now };
        let (id, forwarder) = (real.ports[from], &mut worker.forwarder);
        forwarder.forward(id, &mut burst, &mut cx, &mut real.out, &mut rest, is_pending);
        assert!(burst.is_empty());
        let mut expected: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        let mut count = 0;
        for frame in frames {
            if is_left(worker, from, &frame, model) {
                let packet = rest.pop().expect("it is left to the owner");
                assert_eq!(packet.ingress(), Some(id.index() as u16));
                worker.queue.push_back((from, frame, packet));
                continue;
            }
            count += 1;
            core::mem::swap(&mut model.ports, &mut worker.ports);
            for (to, bytes) in model.forward(from, &frame, real.now) {
                expected.entry(to).or_default().push(bytes);
            }
            core::mem::swap(&mut model.ports, &mut worker.ports);
        }
        assert!(rest.is_empty(), "no more than these are left to the owner");
        self.check(count, &expected, before);
    }

    fn forward(&mut self, worker: usize, count: usize) {
        let before = self.sums();
        let Self { real, workers, model, .. } = self;
        let queue = &mut workers[worker].queue;
        let Some(&(from, ..)) = queue.front() else { return };
        let mut burst = Burst::new();
        let mut expected: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        while burst.len() < count
            && queue.front().is_some_and(|(port, ..)| *port == from)
            && let Some((_, frame, packet)) = queue.pop_front()
        {
            burst.push(packet).expect("room");
            for (to, bytes) in model.forward(from, &frame, real.now) {
                expected.entry(to).or_default().push(bytes);
            }
        }
        let count = if model.ports[from].is_some() { burst.len() } else { 0 };
        let mut cx = Context { memory: &mut real.memory, ledger: &real.ledger, now: real.now };
        real.switch.forward(real.ports[from], &mut burst, &mut cx, &mut real.out);
        assert!(burst.is_empty());
        self.check(count as u64, &expected, before);
    }

    /// Checks what left: the right packets, in order, and that `count` packets were counted.
    fn check(&mut self, count: u64, expected: &BTreeMap<usize, Vec<Vec<u8>>>, before: [u64; 3]) {
        let frames = self.real.frames();
        assert_eq!(&frames, expected);
        let sums = self.sums();
        let out: usize = expected.values().map(Vec::len).sum();
        let [packets_in, packets_out, drops] = [0, 1, 2].map(|index| sums[index] - before[index]);
        assert_eq!((packets_in, packets_out), (count, out as u64));
        assert!(packets_out + drops >= count, "{packets_out} and {drops} of {count}");
        for (port, frames) in frames {
            for frame in frames.iter().filter(|frame| frame[0] & 1 == 0) {
                let number = u16::from_be_bytes([frame[frame.len() - 2], frame[frame.len() - 1]]);
                let flow = self.flows[usize::from(number)];
                let last = self.last.insert((port, flow), number);
                assert!(last.is_none_or(|last| last < number), "{last:?} before {number}");
            }
        }
    }

    /// Packets in and out, and drops, of all ports, in the switch and in the forwarders.
    fn sums(&self) -> [u64; 3] {
        let switch = &self.real.switch;
        let ids = || self.real.ports.iter();
        let owner = ids().filter_map(|&id| switch.counters_of(id));
        let forwarders = self.workers.iter().map(|worker| &worker.forwarder);
        let theirs =
            forwarders.flat_map(|forwarder| ids().filter_map(|&id| forwarder.counters_of(id)));
        owner.chain(theirs).fold([0; 3], |[packets_in, out, drops], counters| {
            let dropped: u64 = counters.drops().map(|(_, count)| count).sum();
            [packets_in + counters.packets_in, out + counters.packets_out, drops + dropped]
        })
    }

    fn end(mut self) {
        for worker in 0..WORKERS {
            while !self.workers[worker].queue.is_empty() {
                self.forward(worker, 12);
            }
        }
        drop(self.workers);
        self.real.end();
    }
}

/// True if a frame must be left to the owner: the worker's ports and the table do not suffice, or
/// it must follow others.
fn is_left(worker: &mut Worker, from: usize, frame: &ModelFrame, model: &Model) -> bool {
    let Some(port) = &worker.ports[from] else {
        worker.following[from] = u64::MAX;
        return true;
    };
    let Some(vlan) = port.membership.ingress(frame.tags.first().copied()) else { return false };
    if frame.to == GROUP {
        return true;
    }
    let port_of = |station| model.learned.get(&(station, vlan)).map(|entry| entry.0);
    let is_reached = |to: usize| to == from || worker.ports[to].is_some();
    let is_known = port_of(frame.from) == Some(from) && port_of(frame.to).is_some_and(is_reached);
    let bit = fdb::Key::new(mac(frame.to), vid(vlan)).bit();
    let is_left = !is_known || worker.following[from] & bit != 0;
    worker.following[from] |= if is_left { bit } else { 0 };
    is_left
}

proptest! {
    /// Goal: with any interleaving of two forwarders and the owner, every frame leaves by every
    /// right port once, with the right bytes, or is counted as dropped; frames of a flow stay in
    /// order; and a frame is left to the owner only if it has to be. Meanwhile ports are added,
    /// removed and changed, and stations move and age.
    #[test]
    fn forwarders_and_the_owner_are_the_model(
        ports in prop::collection::vec(any_port(), PORTS),
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let mut net = Net::new(&ports);
        for step in steps {
            net.step(step);
        }
        net.end();
    }
}

/// Goal: the property test reaches what it is about. Method: a run in which each way is taken.
#[test]
fn each_way_is_taken() {
    let port = |share| ModelPort {
        membership: Membership { untagged: Some(1), tagged: Vec::new(), is_access: true },
        role: Role::Station,
        share,
    };
    let mut net = Net::new(&[port(10), port(10), port(10), port(10), port(10)]);
    let frame = |to, from| ModelFrame { to, from, tags: Vec::new(), number: 0 };
    let waiting = |net: &Net| net.workers.iter().map(|worker| worker.queue.len()).sum::<usize>();
    net.step(Step::Receive(0, alloc::vec![frame(GROUP, 1), frame(2, 1)]));
    assert_eq!(waiting(&net), 2, "unknown");
    net.step(Step::Forward(0, 8));
    net.step(Step::Receive(1, alloc::vec![frame(GROUP, 2)]));
    net.step(Step::Forward(1, 8));
    net.step(Step::Receive(0, alloc::vec![frame(2, 1); 5]));
    assert_eq!(waiting(&net), 0, "known");
    net.step(Step::Remove(1));
    net.step(Step::Receive(0, alloc::vec![frame(2, 1)]));
    assert_eq!(waiting(&net), 1, "forgotten");
    net.step(Step::Set(1, port(10)));
    assert!(net.model.ports[1].is_none(), "its number waits");
    net.step(Step::Refresh(0));
    net.step(Step::Refresh(1));
    net.step(Step::Forward(0, 8));
    net.step(Step::Set(1, port(10)));
    assert!(net.model.ports[1].is_some());
    net.step(Step::Receive(1, alloc::vec![frame(1, 2); 2]));
    assert_eq!(waiting(&net), 2, "the forwarder does not know the port");
    net.step(Step::Forward(1, 1));
    net.step(Step::Refresh(1));
    net.step(Step::Receive(1, alloc::vec![frame(1, 2)]));
    assert_eq!(waiting(&net), 2, "it follows those of the unknown port");
    net.step(Step::Forward(1, 8));
    net.step(Step::Receive(1, alloc::vec![frame(1, 2)]));
    assert_eq!(waiting(&net), 0, "known");
    net.end();
}
