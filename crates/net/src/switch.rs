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
//! One thread owns the switch, and may forward all packets. Further threads forward packets between
//! known stations with a [`Forwarder`] each, and leave the others to the owner.
//!
//! Forwarding does not allocate. [`Switch::new`], [`Switch::forwarder`] and changes of ports do.
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
mod forwarder;
mod frame;
pub mod guard;
mod ingress;
pub mod port;
mod ports;
mod router;
mod storm;
pub mod vlan;

use alloc::vec::Vec;

use towpath_packet::snapshot::Publisher;
use towpath_packet::{Burst, Caps, Packet, Site};

use crate::counters::PortDrop;
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use fdb::{Fdb, Key};
use ingress::{Recent, Target, Verdict};
use port::Traffic;
use ports::{Configs, PortSet, Ports};
use vlan::Vid;

pub use forwarder::Forwarder;
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
    ports: Ports,
    fdb: Fdb,
    /// For each port the ports that it may send to.
    reach: Vec<PortSet>,
    /// Configurations for the forwarders; the generation grows with each change.
    configs: Publisher<Configs>,
    /// For each number, the generation that removed its last port.
    removed: [u64; PORTS_MAX],
    /// Numbers of ports that this generation or an earlier one removed may be reused.
    released: u64,
}

impl Switch {
    /// A switch without ports.
    pub fn new(config: Config) -> Self {
        Self {
            fdb: Fdb::new(config.addresses_max as usize, config.age, config.seed),
            config,
            ports: Ports::default(),
            reach: Vec::new(),
            configs: Publisher::new(Configs::default()),
            removed: [0; PORTS_MAX],
            released: 0,
        }
    }

    /// Adds a port. It gets the lowest number that is free; see [`Switch::release_numbers`].
    pub fn add_port(&mut self, config: PortConfig) -> Result<PortId, PortError> {
        self.check_config(&config, None)?;
        let id = self.free_number().ok_or(PortError::TooManyPorts)?;
        self.ports.insert(id, config);
        self.changed();
        Ok(id)
    }

    /// Removes a port and its stations; returns its final counters, without those of forwarders.
    pub fn remove_port(&mut self, id: PortId) -> Result<PortCounters, PortError> {
        let port = self.ports.remove(id).ok_or(PortError::Unknown)?;
        self.fdb.remove_port(id.0, true);
        self.removed[id.index()] = self.changed();
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
        self.ports.port_mut(id).configure(config);
        self.changed();
        Ok(())
    }

    /// Changes the capabilities of a port's device, such as after renegotiation.
    pub fn set_caps(&mut self, id: PortId, caps: Caps) -> Result<(), PortError> {
        let config = &mut self.ports.get_mut(id).ok_or(PortError::Unknown)?.config;
        if config.caps != caps {
            config.caps = caps;
            self.changed();
        }
        Ok(())
    }

    /// A forwarder for another thread.
    pub fn forwarder(&self) -> Forwarder {
        Forwarder::new(self.fdb.reader(), self.configs.subscribe(), self.config)
    }

    /// The generation of the ports: it grows each time a port is added, removed or changed.
    pub fn generation(&self) -> u64 {
        self.configs.generation()
    }

    /// The oldest generation that a forwarder works with; the current one without forwarders.
    /// Forwarders hand out no more packets to ports that this generation or an earlier one removed.
    pub fn oldest_generation(&self) -> u64 {
        self.configs.oldest().unwrap_or(self.generation())
    }

    /// Makes the numbers of ports that this generation or an earlier one removed free for new
    /// ports.
    ///
    /// As long as there are forwarders, the number of a removed port is not free before: a
    /// forwarder, or a packet that it left to the owner, may still mean the removed port. So the
    /// owner calls [`Switch::oldest_generation`], then forwards all packets that forwarders have
    /// passed on to it, then calls this with the former result.
    pub fn release_numbers(&mut self, generation: u64) {
        self.released = self.released.max(generation);
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
        match self.config_of(from) {
            None => {
                burst.clear();
                return 0;
            }
            Some(config) if !config.is_up => return self.ports.refuse(from, burst),
            Some(_) => {}
        }
        let mut traffic = Traffic::default();
        let (mut recent, mut verdict) = (Recent::NOTHING, Verdict::NONE);
        while let Some(mut packet) = burst.pop() {
            packet.set_ingress(Some(from.0.into()));
            traffic.add(&packet);
            match self.classify(from, &mut packet, (&mut recent, &mut verdict), cx, out) {
                Ok(Target::Port(to)) => self.ports.emit(packet, &verdict, to, cx, out),
                Ok(Target::Flood) => self.flood(from, packet, &verdict, cx, out),
                Err(reason) => self.ports.port_mut(from).counters.drop(reason),
            }
        }
        self.ports.hand_out(cx, out);
        self.ports.port_mut(from).counters.count_in(&traffic);
        traffic.bytes
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
        Some(&self.ports.get(id)?.config)
    }

    /// Counts a received packet that the owner of the switch dropped for this reason.
    pub fn count_drop(&mut self, id: PortId, reason: PortDrop) {
        if let Some(port) = self.ports.get_mut(id) {
            port.counters.drop(reason);
        }
    }

    /// Adds what a forwarder counted for a port ([`Forwarder::take_counters`]).
    pub fn add_counters(&mut self, id: PortId, counters: &PortCounters) {
        if let Some(port) = self.ports.get_mut(id) {
            port.counters.add(counters);
        }
    }

    /// Counters of a port, without what forwarders count and [`Switch::add_counters`] has not
    /// added.
    pub fn counters_of(&self, id: PortId) -> Option<&PortCounters> {
        Some(&self.ports.get(id)?.counters)
    }

    /// Numbers of all ports.
    pub fn ports(&self) -> impl Iterator<Item = PortId> + '_ {
        self.ports.ids()
    }

    /// How many times a station was added, has moved or was removed: while it is the same, so are
    /// the stations, except those whose time is over.
    pub fn station_changes(&self) -> u64 {
        self.fdb.changes()
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
            if self.ports.port(to).config.vlans.leaves(verdict.vid).is_none() {
                continue;
            }
            let Some(before) = last.replace(to) else { continue };
            match packet.share(&mut cx.memory.packets) {
                Some(copy) => {
                    if copy.is_inline() {
                        cx.ledger.count(Site::GuestSmall, copy.len());
                    }
                    self.ports.emit(copy, verdict, before, cx, out);
                }
                None => self.ports.port_mut(before).counters.drop(PortDrop::NoMemory),
            }
        }
        let counters = &mut self.ports.port_mut(from).counters;
        match last {
            Some(last) => {
                counters.flooded += 1;
                self.ports.emit(packet, verdict, last, cx, out);
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
        let kept: u64 = others.map(|id| u64::from(self.ports.port(id).config.addresses_max)).sum();
        if kept + u64::from(config.addresses_max) > u64::from(self.config.addresses_max) {
            return Err(PortError::TableFull);
        }
        Ok(())
    }

    /// The lowest number that a new port may get.
    fn free_number(&self) -> Option<PortId> {
        let released = self.configs.oldest().map_or(u64::MAX, |_| self.released);
        let is_free = |&number: &u8| {
            let is_unused = self.ports.get(PortId(number)).is_none();
            is_unused && self.removed[usize::from(number)] <= released
        };
        (0..=u8::MAX).find(is_free).map(PortId)
    }

    /// Recomputes which ports may send to which, and publishes the configurations. Returns their
    /// generation.
    fn changed(&mut self) -> u64 {
        let reach = |number| self.ports.reached_from(PortId(number));
        self.reach = (0..=u8::MAX).map(reach).collect();
        self.configs.publish(self.ports.configs())
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
