//! A switch: learning, VLANs, isolation, and the translation of what devices can do.
//!
//! # Theory of operation
//!
//! [`Switch::forward`] takes a burst that came by one port. First each packet of it is judged:
//! addresses, VLAN, what its sender may claim, what it left to others; the sender is learned, and
//! the table says whom the packet is for. Then the packets go to the bursts of their ports, in the
//! order in which they came, and last each port's burst is handed out. A packet for several ports
//! gets a handle and private headers for each of them; its payload is shared by one more holder of
//! each loan, and so is that of a super-packet that a port wants cut.
//!
//! What a port takes is in its [`Caps`]. A super-packet passes whole where
//! it can be taken, and is cut otherwise; checksums are completed for a port that takes no partial
//! ones. No other work is done for a packet than that of the ports that it leaves by.
//!
//! Loops are not looked for. Their effect is bounded: by the rates of what is flooded, and of
//! stations that move. No spanning tree is spoken.
//!
//! One thread. Nothing is allocated but by [`Switch::new`] and [`Switch::add_port`].
//!
//! # Limits
//!
//! [`PORTS_MAX`] ports; the address table has the entries that [`Config`] says, and each port a
//! share of its own, so that no port can use up another's; [`guard::GUARD_ENTRIES_MAX`] addresses
//! in a list; [`FRAME_BYTES_MAX`] bytes of a frame.
//!
//! IEEE 802.1Q-2018 §8 (forwarding), §9.6 (tags); virtio 1.2 §5.1.6 (offload fields).

mod egress;
mod fdb;
mod frame;
pub mod guard;
mod ingress;
pub mod port;
mod router;
mod storm;
pub mod vlan;

use alloc::vec::Vec;

use towpath_packet::burst::BURST_MAX;
use towpath_packet::{Burst, Caps, Packet, Site};

use crate::counters::PortDrop;
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use fdb::{Fdb, Key};
use ingress::{Recent, Target, Verdict};
use port::Port;
use vlan::Vid;

pub use guard::{Guard, Prefix};
pub use ingress::FRAME_BYTES_MAX;
pub use port::{
    ADDRESSES_PER_PORT, Egress, PortConfig, PortCounters, PortError, PortId, Role, StormRates,
};
pub use vlan::{PortVlans, VlanSet};

/// How a switch behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Entries of the address table, all ports together.
    pub addresses_max: u32,
    /// How long a station is known after its last packet.
    pub age: Duration,
    /// Makes places in the table unpredictable; chance.
    pub seed: u64,
    /// Payload that was lent is copied into frames first: what sharing is measured against.
    pub copies_payload: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { addresses_max: ADDRESSES_MAX, age: AGE, seed: 0, copies_payload: false }
    }
}

pub use towpath_packet::Context;

/// A station that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Its address.
    pub mac: MacAddr,
    /// Its VLAN.
    pub vid: Vid,
    /// The port that it is behind.
    pub port: PortId,
    /// It was told, not learned.
    pub is_static: bool,
}

/// A switch.
pub struct Switch {
    config: Config,
    /// By number; numbers of removed ports are empty.
    ports: Vec<Option<Port>>,
    fdb: Fdb,
    /// For each port those it may talk to.
    reach: Vec<PortSet>,
    /// Ports with packets that were not handed out yet. Empty between calls.
    touched: PortSet,
    /// Those of the burst at hand: room for one of each packet. Empty between calls.
    verdicts: Vec<Result<Verdict, PortDrop>>,
}

impl Switch {
    /// A switch without ports.
    pub fn new(config: Config) -> Self {
        Self {
            fdb: Fdb::new(config.addresses_max as usize, config.age, config.seed),
            config,
            ports: Vec::new(),
            reach: Vec::new(),
            touched: PortSet::EMPTY,
            verdicts: Vec::with_capacity(BURST_MAX),
        }
    }

    /// Adds a port.
    pub fn add_port(&mut self, config: PortConfig) -> Result<PortId, PortError> {
        self.check_config(&config, None)?;
        let free = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        if free == PORTS_MAX {
            return Err(PortError::TooManyPorts);
        }
        if free == self.ports.len() {
            self.ports.push(None);
            self.reach.push(PortSet::EMPTY);
        }
        self.ports[free] = Some(Port::new(config));
        self.connect();
        Ok(PortId(free as u8))
    }

    /// Removes a port and all that is known of its stations; returns its last counts.
    pub fn remove_port(&mut self, id: PortId) -> Result<PortCounters, PortError> {
        let place = self.ports.get_mut(id.index()).ok_or(PortError::Unknown)?;
        let port = place.take().ok_or(PortError::Unknown)?;
        self.fdb.remove_port(id.0, true);
        self.connect();
        Ok(port.counters)
    }

    /// Changes a port while packets flow. Its counts go on; what it has learned is forgotten if its
    /// VLANs or its guard change, or if it was more than is kept for the port now.
    pub fn set_port(&mut self, id: PortId, config: PortConfig) -> Result<(), PortError> {
        let before = self.config_of(id).ok_or(PortError::Unknown)?;
        let forgets = config.vlans != before.vlans || config.guard != before.guard;
        self.check_config(&config, Some(id))?;
        if self.fdb.static_count(id.0) > config.addresses_max {
            return Err(PortError::TableFull);
        }
        if forgets || self.fdb.count(id.0) > config.addresses_max {
            self.fdb.remove_port(id.0, false);
        }
        self.port_mut(id).configure(config);
        self.connect();
        Ok(())
    }

    /// Changes what a port's device takes, such as when it was renegotiated.
    pub fn set_caps(&mut self, id: PortId, caps: Caps) -> Result<(), PortError> {
        let port = self.ports.get_mut(id.index()).and_then(Option::as_mut);
        port.ok_or(PortError::Unknown)?.config.caps = caps;
        Ok(())
    }

    /// Says for good that a station is behind a port: nobody else can be it, and packets for it are
    /// never flooded. Takes the place of what was learned or said before.
    pub fn add_station(
        &mut self,
        mac: MacAddr,
        vid: Vid,
        id: PortId,
        now: Instant,
    ) -> Result<(), PortError> {
        let config = self.config_of(id).ok_or(PortError::Unknown)?;
        let key = Key::new(mac, vid);
        let is_full = self.fdb.count(id.0) >= config.addresses_max;
        if is_full && self.fdb.holder(key) != Some(id.0) {
            return Err(PortError::TableFull);
        }
        self.fdb.put(key, id.0, true, now);
        Ok(())
    }

    /// Forgets a station, learned or not; true if it was known.
    pub fn remove_station(&mut self, mac: MacAddr, vid: Vid) -> bool {
        self.fdb.remove(Key::new(mac, vid))
    }

    /// Takes all packets of a burst that came by port `from`, and hands out what becomes of them,
    /// port by port, before it returns. Without such a port they are dropped.
    ///
    /// Packets are as devices deliver them, inline or neither peeked nor checked, or have private
    /// headers up to the end of their transport header, as a stack hands them out.
    pub fn forward(
        &mut self,
        from: PortId,
        burst: &mut Burst,
        cx: &mut Context<'_>,
        out: &mut impl Egress,
    ) {
        if self.config_of(from).is_none() {
            return burst.clear();
        }
        let mut verdicts = core::mem::take(&mut self.verdicts);
        let mut recent = Recent::NOTHING;
        for packet in burst.iter_mut() {
            self.count_in(from, packet);
            verdicts.push(self.classify(from, packet, &mut recent, cx, out));
        }
        for verdict in verdicts.drain(..) {
            let packet = burst.pop().expect("there is a verdict for each packet");
            match verdict {
                Ok(verdict) => self.act(from, packet, &verdict, cx, out),
                Err(reason) => self.port_mut(from).counters.drop(reason),
            }
        }
        self.verdicts = verdicts;
        for id in core::mem::replace(&mut self.touched, PortSet::EMPTY).iter() {
            self.port_mut(id).flush(id, out);
        }
    }

    /// Forgets stations that were not heard of for too long.
    pub fn expire(&mut self, now: Instant) {
        self.fdb.expire(now);
    }

    /// When [`Switch::expire`] is wanted next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.fdb.next_deadline()
    }

    /// Configuration of a port.
    pub fn config_of(&self, id: PortId) -> Option<&PortConfig> {
        Some(&self.ports.get(id.index())?.as_ref()?.config)
    }

    /// Counts a packet that came by a port and that the owner of the switch has dropped for this
    /// reason.
    pub fn count_drop(&mut self, id: PortId, reason: PortDrop) {
        if let Some(port) = self.ports.get_mut(id.index()).and_then(Option::as_mut) {
            port.counters.drop(reason);
        }
    }

    /// Counters of a port.
    pub fn counters_of(&self, id: PortId) -> Option<&PortCounters> {
        Some(&self.ports.get(id.index())?.as_ref()?.counters)
    }

    /// All ports.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        let numbers = (0..=u8::MAX).zip(&self.ports);
        numbers.filter_map(|(number, port)| port.as_ref().map(|_| PortId(number)))
    }

    /// All stations that are known, in no order. Walks the table: for reports.
    pub fn stations(&self, now: Instant) -> impl Iterator<Item = Station> + '_ {
        self.fdb.iter(now).map(|(mac, vid, entry)| Station {
            mac,
            vid,
            port: PortId(entry.port),
            is_static: entry.is_static,
        })
    }

    /// Counts a packet and notes in it by which port it came.
    fn count_in(&mut self, from: PortId, packet: &mut Packet) {
        packet.set_ingress(Some(from.0.into()));
        let counters = &mut self.port_mut(from).counters;
        counters.packets_in += 1;
        counters.bytes_in += packet.len() as u64;
        counters.super_packets_in += u64::from(packet.offload().gso.is_some());
    }

    fn act(
        &mut self,
        from: PortId,
        packet: Packet,
        verdict: &Verdict,
        cx: &mut Context<'_>,
        out: &mut impl Egress,
    ) {
        match verdict.target {
            Target::Port(to) => self.emit(packet, verdict, to, cx, out),
            Target::Flood => self.flood(from, packet, verdict, cx, out),
        }
    }

    /// A copy for each port but the last, which gets the packet itself.
    fn flood(
        &mut self,
        from: PortId,
        packet: Packet,
        verdict: &Verdict,
        cx: &mut Context<'_>,
        out: &mut impl Egress,
    ) {
        let reach = self.reach[from.index()];
        let mut last = None;
        for to in reach.iter() {
            if self.port(to).config.vlans.leaves(verdict.vid).is_none() {
                continue;
            }
            let Some(before) = last.replace(to) else { continue };
            match packet.share(&mut cx.memory.packets) {
                Some(copy) => {
                    if copy.is_inline() {
                        cx.ledger.count(Site::GuestSmall, copy.len());
                    }
                    self.emit(copy, verdict, before, cx, out);
                }
                None => self.port_mut(before).counters.drop(PortDrop::NoMemory),
            }
        }
        let counters = &mut self.port_mut(from).counters;
        match last {
            Some(last) => {
                counters.flooded += 1;
                self.emit(packet, verdict, last, cx, out);
            }
            None => counters.drop(PortDrop::NobodyElse),
        }
    }

    /// Whether a port may have this configuration; `own` is the one that has another now.
    fn check_config(&self, config: &PortConfig, own: Option<PortId>) -> Result<(), PortError> {
        if !config.guard.is_bounded() {
            return Err(PortError::GuardTooLong);
        }
        let others = self.ports().filter(|&id| Some(id) != own);
        let kept: u64 = others.map(|id| u64::from(self.port(id).config.addresses_max)).sum();
        if kept + u64::from(config.addresses_max) > u64::from(self.config.addresses_max) {
            return Err(PortError::TableFull);
        }
        Ok(())
    }

    /// Works out anew who may talk to whom.
    fn connect(&mut self) {
        for from in 0..self.ports.len() {
            let mut reach = PortSet::EMPTY;
            if let Some(own) = &self.ports[from] {
                let others = self.ports().filter(|id| id.index() != from);
                let role = own.config.role;
                others
                    .filter(|&id| role.reaches(self.port(id).config.role))
                    .for_each(|id| reach.insert(id));
            }
            self.reach[from] = reach;
        }
    }

    fn port(&self, id: PortId) -> &Port {
        self.ports[id.index()].as_ref().expect("ports in use and in the table are there")
    }

    fn port_mut(&mut self, id: PortId) -> &mut Port {
        self.ports[id.index()].as_mut().expect("ports in use and in the table are there")
    }
}

/// A set of ports.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PortSet([u64; PORTS_MAX / 64]);

impl PortSet {
    const EMPTY: Self = Self([0; PORTS_MAX / 64]);

    fn insert(&mut self, id: PortId) {
        self.0[id.index() / 64] |= 1 << (id.index() % 64);
    }

    /// Those in it, in order of their numbers.
    fn iter(self) -> impl Iterator<Item = PortId> {
        self.0.into_iter().enumerate().flat_map(|(index, mut word)| {
            core::iter::from_fn(move || {
                let bit = word.trailing_zeros() as usize;
                word &= word.checked_sub(1)?;
                Some(PortId((index * 64 + bit) as u8))
            })
        })
    }
}

/// Most ports: a number has a byte.
pub const PORTS_MAX: usize = 256;

/// Entries of the address table unless told otherwise: 64 ports with 128 each, and as many again
/// for uplinks.
pub const ADDRESSES_MAX: u32 = 16_384;

/// How long a station is known after its last packet, unless told otherwise (IEEE 802.1Q table
/// 8-6).
pub const AGE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
