//! A switch: learning, VLANs, isolation, and adaptation to the offloads of each port.
//!
//! # Theory of operation
//!
//! [`Switch::forward`] takes a burst that was received on one port, and looks at each packet once.
//! The packet is judged: addresses, VLAN, what its sender may claim, and its offload fields. The
//! sender is learned, and the address table yields the packet's destination. The packet is counted,
//! gets the form that its port takes, and joins the burst of that port. Each port's burst is handed
//! out when it is full, and at the end. A packet for several ports gets a handle and private
//! headers for each port. Its payload is shared: each copy is one more holder of the loans, also if
//! a super-packet is segmented for a port.
//!
//! A port's [`Caps`] say what it takes. A super-packet passes whole if the port takes it, and is
//! segmented otherwise; checksums are completed for a port that takes no partial ones. Work is done
//! only for ports that the packet leaves by.
//!
//! Loops are not detected, and there is no spanning tree. The effect of a loop is bounded by the
//! rate limits on flooding and on station moves.
//!
//! One thread. Only [`Switch::new`] and [`Switch::add_port`] allocate.
//!
//! # Limits
//!
//! [`PORTS_MAX`] ports. The address table has [`Config::addresses_max`] entries, and each port has
//! its own share of them, so that no port can use up another's. A guard list has
//! [`guard::GUARD_ENTRIES_MAX`] entries, a frame [`FRAME_BYTES_MAX`] bytes.
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

/// Configuration of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Entries of the address table, for all ports together.
    pub addresses_max: u32,
    /// How long a learned station is kept after its last packet.
    pub age: Duration,
    /// Seed of the table's hash; must be unpredictable.
    pub seed: u64,
    /// Copies lent payload into frames before forwarding; a baseline to measure sharing against.
    pub copies_payload: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { addresses_max: ADDRESSES_MAX, age: AGE, seed: 0, copies_payload: false }
    }
}

pub use towpath_packet::Context;

/// A known station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Link-layer address.
    pub mac: MacAddr,
    /// VLAN.
    pub vid: Vid,
    /// Port that it is behind.
    pub port: PortId,
    /// Configured, not learned.
    pub is_static: bool,
}

/// A learning switch.
pub struct Switch {
    config: Config,
    /// Indexed by port number; `None` for removed ports.
    ports: Vec<Option<Port>>,
    fdb: Fdb,
    /// For each port the ports that it may send to.
    reach: Vec<PortSet>,
    /// Ports with packets that are not handed out yet. Empty between calls.
    touched: PortSet,
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

    /// Removes a port and its stations; returns its final counters.
    pub fn remove_port(&mut self, id: PortId) -> Result<PortCounters, PortError> {
        let place = self.ports.get_mut(id.index()).ok_or(PortError::Unknown)?;
        let port = place.take().ok_or(PortError::Unknown)?;
        self.fdb.remove_port(id.0, true);
        self.connect();
        Ok(port.counters)
    }

    /// Changes a port while packets flow. Its counters continue. Its learned stations are forgotten
    /// if its VLANs or guard change, if its link goes down, or if there are more than it may have
    /// now.
    pub fn set_port(&mut self, id: PortId, config: PortConfig) -> Result<(), PortError> {
        let before = self.config_of(id).ok_or(PortError::Unknown)?;
        let forgets = config.vlans != before.vlans
            || config.guard != before.guard
            || before.is_up && !config.is_up;
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

    /// Changes the capabilities of a port's device, such as after renegotiation.
    pub fn set_caps(&mut self, id: PortId, caps: Caps) -> Result<(), PortError> {
        let port = self.ports.get_mut(id.index()).and_then(Option::as_mut);
        port.ok_or(PortError::Unknown)?.config.caps = caps;
        Ok(())
    }

    /// Configures permanently that a station is behind a port: no other port can use its address,
    /// and packets for it are never flooded. Replaces a learned or configured entry.
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

    /// Removes a station, learned or configured; true if it was known.
    pub fn remove_station(&mut self, mac: MacAddr, vid: Vid) -> bool {
        self.fdb.remove(Key::new(mac, vid))
    }

    /// Forwards all packets of a burst that was received on port `from`, and hands them out port by
    /// port before it returns. Returns their bytes. If there is no such port, they are dropped.
    ///
    /// Packets are as devices deliver them (inline, or neither peeked nor checked), or have private
    /// headers up to the end of their transport header, as a stack hands them out.
    pub fn forward(
        &mut self,
        from: PortId,
        burst: &mut Burst,
        cx: &mut Context<'_>,
        out: &mut impl Egress,
    ) -> u64 {
        let Some(&PortConfig { is_up, .. }) = self.config_of(from) else {
            burst.clear();
            return 0;
        };
        let (mut packets, mut super_packets, mut bytes) = (0, 0, 0);
        let mut recent = Recent::NOTHING;
        while let Some(mut packet) = burst.pop() {
            packet.set_ingress(Some(from.0.into()));
            packets += 1;
            super_packets += u64::from(packet.offload().gso.is_some());
            bytes += packet.len() as u64;
            let judged = match is_up {
                true => self.classify(from, &mut packet, &mut recent, cx, out),
                false => Err(PortDrop::LinkDown),
            };
            match judged {
                Ok(verdict) => self.act(from, packet, &verdict, cx, out),
                Err(reason) => self.port_mut(from).counters.drop(reason),
            }
        }
        for id in core::mem::replace(&mut self.touched, PortSet::EMPTY).iter() {
            self.port_mut(id).flush(id, cx, out);
        }
        let counters = &mut self.port_mut(from).counters;
        counters.packets_in += packets;
        counters.super_packets_in += super_packets;
        counters.bytes_in += bytes;
        bytes
    }

    /// Removes stations whose ageing time is over.
    pub fn expire(&mut self, now: Instant) {
        self.fdb.expire(now);
    }

    /// When [`Switch::expire`] must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.fdb.next_deadline()
    }

    /// Configuration of a port.
    pub fn config_of(&self, id: PortId) -> Option<&PortConfig> {
        Some(&self.ports.get(id.index())?.as_ref()?.config)
    }

    /// Counts a received packet that the owner of the switch dropped for this reason.
    pub fn count_drop(&mut self, id: PortId, reason: PortDrop) {
        if let Some(port) = self.ports.get_mut(id.index()).and_then(Option::as_mut) {
            port.counters.drop(reason);
        }
    }

    /// Counters of a port.
    pub fn counters_of(&self, id: PortId) -> Option<&PortCounters> {
        Some(&self.ports.get(id.index())?.as_ref()?.counters)
    }

    /// Numbers of all ports.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        let numbers = (0..=u8::MAX).zip(&self.ports);
        numbers.filter_map(|(number, port)| port.as_ref().map(|_| PortId(number)))
    }

    /// All known stations, in no order. Walks the table; for reports.
    pub fn stations(&self, now: Instant) -> impl Iterator<Item = Station> + '_ {
        self.fdb.iter(now).map(|(mac, vid, entry)| Station {
            mac,
            vid,
            port: PortId(entry.port),
            is_static: entry.is_static,
        })
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

    /// Sends a copy to each port but the last, which gets the packet itself.
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

    /// Checks that a port may have this configuration; `own` is the port whose configuration it
    /// replaces.
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

    /// Recomputes which ports may send to which.
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

    /// Ports of the set in numerical order.
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

/// Maximum number of ports: a port number is one byte.
pub const PORTS_MAX: usize = 256;

/// Default size of the address table: 64 ports with 128 entries each, and as many again for
/// uplinks.
pub const ADDRESSES_MAX: u32 = 16_384;

/// Default ageing time (IEEE 802.1Q table 8-6).
pub const AGE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests;
