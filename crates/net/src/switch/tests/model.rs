//! A simple model of a learning switch with VLANs, written from IEEE 802.1Q §8 without code of the
//! switch. Both get the same input.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use proptest::prelude::*;
use towpath_packet::Burst;

use super::harness::*;
use crate::switch::*;
use crate::time::{Duration, Instant};

/// VLANs of a model port: of untagged frames, and of tagged frames.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) untagged: Option<u16>,
    pub(super) tagged: Vec<u16>,
    pub(super) is_access: bool,
}

impl Membership {
    fn config(&self) -> PortVlans {
        match self.untagged {
            Some(vlan) if self.is_access => access(vlan),
            untagged => trunk(untagged, &self.tagged),
        }
    }

    pub(super) fn ingress(&self, tag: Option<u16>) -> Option<u16> {
        match tag.map(|tag| tag % 4096) {
            None | Some(0) => self.untagged,
            Some(vlan) => {
                let is_native = !self.is_access && self.untagged == Some(vlan);
                (is_native || self.tagged.contains(&vlan)).then_some(vlan)
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ModelPort {
    pub(super) membership: Membership,
    pub(super) role: Role,
    pub(super) share: usize,
}

pub(super) struct Model {
    pub(super) ports: Vec<Option<ModelPort>>,
    /// Ports of stations, by address and VLAN.
    pub(super) learned: BTreeMap<(u8, u16), (usize, Instant)>,
    pub(super) age: Duration,
}

/// A frame of the model.
#[derive(Clone, Debug)]
pub(super) struct ModelFrame {
    pub(super) to: u8,
    pub(super) from: u8,
    pub(super) tags: Vec<u16>,
    pub(super) number: u16,
}

impl ModelFrame {
    pub(super) fn bytes(&self, tags: &[u16]) -> Vec<u8> {
        let to = if self.to == GROUP { BROADCAST } else { mac(self.to) };
        frame(to, mac(self.from), tags, &self.number.to_be_bytes().repeat(20))
    }
}

/// Address of all stations.
pub(super) const GROUP: u8 = 0;

impl Model {
    /// Returns the ports that a frame leaves by, and its bytes there.
    pub(super) fn forward(
        &mut self,
        from: usize,
        frame: &ModelFrame,
        now: Instant,
    ) -> Vec<(usize, Vec<u8>)> {
        let Some(port) = self.ports[from].clone() else { return Vec::new() };
        let Some(vlan) = port.membership.ingress(frame.tags.first().copied()) else {
            return Vec::new();
        };
        let known = self.learned.get(&(frame.from, vlan)).map(|entry| entry.0);
        let count = self.learned.values().filter(|entry| entry.0 == from).count();
        if known == Some(from) || count < port.share {
            self.learned.insert((frame.from, vlan), (from, now));
        }
        let found =
            self.learned.get(&(frame.to, vlan)).filter(|entry| now.since(entry.1) < self.age);
        let others = (0..self.ports.len()).filter(|&to| to != from);
        let targets = others.filter(|&to| found.is_none_or(|entry| entry.0 == to));
        let priority = frame.tags.first().map_or(0, |tag| tag & 0xf000);
        let inner = &frame.tags[frame.tags.len().min(1)..];
        let leaves = |to: usize| {
            let other = self.ports[to].as_ref()?;
            let isolated = |role| role == Role::Isolated;
            let has_uplink = port.role == Role::Uplink || other.role == Role::Uplink;
            if !has_uplink && (isolated(port.role) || isolated(other.role)) {
                return None;
            }
            if other.membership.untagged == Some(vlan) {
                return inner.is_empty().then(|| (to, frame.bytes(&[])));
            }
            let tags = [&[priority | vlan], inner].concat();
            other.membership.tagged.contains(&vlan).then(|| (to, frame.bytes(&tags)))
        };
        targets.filter_map(leaves).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Burst(usize, Vec<ModelFrame>),
    Pass(u16),
    Remove(usize),
    Set(usize, ModelPort),
}

pub(super) const PORTS: usize = 5;
pub(super) const CONFIG: Config = Config { age: Duration::from_secs(10), ..DEFAULTS };
const DEFAULTS: Config =
    Config { addresses_max: ADDRESSES_MAX, age: AGE, seed: 3, copies_payload: false };

pub(super) fn any_port() -> impl Strategy<Value = ModelPort> {
    let membership = prop_oneof![
        3 => (1..4u16).prop_map(|vlan| {
            Membership { untagged: Some(vlan), tagged: Vec::new(), is_access: true }
        }),
        2 => (0..4u16, prop::collection::btree_set(1..4u16, 0..4)).prop_map(|(native, tagged)| {
            let untagged = Some(native).filter(|&vlan| vlan > 0);
            Membership { untagged, tagged: tagged.into_iter().collect(), is_access: false }
        }),
    ];
    let role = prop::sample::select(alloc::vec![Role::Station, Role::Isolated, Role::Uplink]);
    let share = prop_oneof![Just(0), Just(2), Just(100)];
    (membership, role, share).prop_map(|(membership, role, share)| ModelPort {
        membership,
        role,
        share,
    })
}

pub(super) fn any_frame() -> impl Strategy<Value = ModelFrame> {
    let tag = prop_oneof![4 => 1..5u16, 1 => Just(0), 1 => Just(4095), 1 => any::<u16>()];
    let tags = prop_oneof![
        3 => Just(Vec::new()),
        3 => tag.clone().prop_map(|tag| alloc::vec![tag]),
        1 => prop::collection::vec(tag, 2..4),
    ];
    (0..7u8, 1..7u8, tags, any::<u16>()).prop_map(|(to, from, tags, number)| ModelFrame {
        to,
        from,
        tags,
        number,
    })
}

fn any_step() -> impl Strategy<Value = Step> {
    let burst = prop::collection::vec(any_frame(), 1..12);
    prop_oneof![
        8 => (0..PORTS, burst).prop_map(|(port, frames)| Step::Burst(port, frames)),
        2 => (0..8000u16).prop_map(Step::Pass),
        1 => (0..PORTS).prop_map(Step::Remove),
        1 => (0..PORTS, any_port()).prop_map(|(number, port)| Step::Set(number, port)),
    ]
}

pub(super) fn config(port: &ModelPort) -> PortConfig {
    PortConfig {
        vlans: port.membership.config(),
        role: port.role,
        addresses_max: port.share as u32,
        moves_per_second: u32::MAX,
        storm: StormRates { broadcast: None, multicast: None, unknown: None },
        ..super::harness::port()
    }
}

/// The switch and the model, side by side.
struct Both {
    real: Harness,
    model: Model,
}

impl Both {
    fn new(ports: &[ModelPort]) -> Self {
        let real = Harness::with(CONFIG, ports.iter().map(config));
        let ports = ports.iter().cloned().map(Some).collect();
        Self { real, model: Model { ports, learned: BTreeMap::new(), age: CONFIG.age } }
    }

    fn step(&mut self, step: Step) {
        let Self { real, model } = self;
        match step {
            Step::Burst(from, frames) => self.send(from, &frames),
            Step::Pass(millis) => {
                real.now += Duration::from_millis(millis.into());
                real.switch.expire(real.now);
                let (now, age) = (real.now, model.age);
                model.learned.retain(|_, entry| now.since(entry.1) < age);
            }
            Step::Remove(port) => {
                let was_there = model.ports[port].take().is_some();
                assert_eq!(real.switch.remove_port(real.ports[port]).is_ok(), was_there);
                model.learned.retain(|_, entry| entry.0 != port);
            }
            Step::Set(number, port) => {
                model.learned.retain(|_, entry| entry.0 != number);
                if model.ports[number].is_some() {
                    // Moves the port to a VLAN without other ports first, so that its stations are
                    // forgotten.
                    let id = real.ports[number];
                    let away = PortConfig { vlans: access(4000), ..config(&port) };
                    real.switch.set_port(id, away).expect("room");
                    real.switch.set_port(id, config(&port)).expect("room");
                } else if model.ports[..number].iter().all(Option::is_some) {
                    assert_eq!(real.switch.add_port(config(&port)), Ok(real.ports[number]));
                } else {
                    return;
                }
                model.ports[number] = Some(port);
            }
        }
    }

    fn send(&mut self, from: usize, frames: &[ModelFrame]) {
        let Self { real, model } = self;
        let mut burst = Burst::new();
        let mut expected: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        for frame in frames {
            let packet = real.packet(&frame.bytes(&frame.tags), true);
            burst.push(packet).expect("room");
            for (to, bytes) in model.forward(from, frame, real.now) {
                expected.entry(to).or_default().push(bytes);
            }
        }
        let (before, drops) = self.sums();
        let real = &mut self.real;
        real.send_burst(from, &mut burst);
        assert_eq!(real.frames(), expected);
        let (after, drops_after) = self.sums();
        if self.model.ports[from].is_some() {
            // No packet is lost without a reason: each received packet, and each copy beyond the
            // first, left or was dropped.
            let out: usize = expected.values().map(Vec::len).sum();
            assert_eq!(after[0] - before[0], frames.len() as u64);
            assert_eq!(after[1] - before[1], out as u64);
            let copies = after[1] - before[1] + drops_after - drops;
            assert!(copies >= frames.len() as u64, "{copies} of {}", frames.len());
        }
    }

    /// Packets in and out, and drops, of all ports.
    fn sums(&self) -> ([u64; 2], u64) {
        let switch = &self.real.switch;
        let all = switch.ports().filter_map(|id| switch.counters_of(id));
        all.fold(([0; 2], 0), |([packets_in, out], drops), counters| {
            let dropped: u64 = counters.drops().map(|(_, count)| count).sum();
            ([packets_in + counters.packets_in, out + counters.packets_out], drops + dropped)
        })
    }
}

proptest! {
    /// Goal: every frame leaves by every right port once, with the right bytes and in order, or is
    /// counted as dropped; after any earlier traffic, and while ports are added, removed and
    /// changed.
    #[test]
    fn the_switch_is_the_model(
        ports in prop::collection::vec(any_port(), PORTS),
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let mut both = Both::new(&ports);
        for step in steps {
            both.step(step);
        }
        both.real.end();
    }
}

/// Every combination of two kinds of ports, every tag, to known and unknown stations and to all:
/// all cases.
#[test]
fn all_small_cases() {
    let access_port =
        |vlan| Membership { untagged: Some(vlan), tagged: Vec::new(), is_access: true };
    let trunk_port = |untagged, tagged: &[u16]| Membership {
        untagged,
        tagged: tagged.to_vec(),
        is_access: false,
    };
    let kinds = [
        access_port(1),
        access_port(2),
        trunk_port(Some(1), &[2]),
        trunk_port(None, &[1, 2]),
        trunk_port(Some(2), &[2]),
    ];
    let tags: [&[u16]; 12] = [
        &[],
        &[0],
        &[0xe000],
        &[1],
        &[2],
        &[0x7002],
        &[3],
        &[4095],
        &[0, 2],
        &[2, 1],
        &[1, 2],
        &[2, 0, 1],
    ];
    let mut cases = 0;
    for (first, second) in kinds.iter().flat_map(|a| kinds.iter().map(move |b| (a, b))) {
        let ports = [first, second, &kinds[3]].map(|membership| ModelPort {
            membership: membership.clone(),
            role: Role::Station,
            share: 10,
        });
        for tags in tags {
            let mut both = Both::new(&ports);
            let frame = |to, from| ModelFrame { to, from, tags: tags.to_vec(), number: 7 };
            both.send(0, &[frame(GROUP, 1), frame(2, 1), frame(1, 3)]);
            both.send(1, &[frame(1, 2), frame(3, 2)]);
            both.send(0, &[frame(2, 1), frame(GROUP, 2)]);
            both.send(1, &[frame(2, 4)]);
            both.real.end();
            cases += 1;
        }
    }
    assert_eq!(cases, 25 * 12);
}
