//! A port: its configuration, its counters, and its pending burst.

use core::fmt;
use core::net::IpAddr;

use towpath_packet::{Burst, Caps, Context, Packet};

use super::PORTS_MAX;
use super::guard::{GUARD_ENTRIES_MAX, Guard};
use super::storm::Bucket;
use super::vlan::{PortVlans, Vid};
use crate::counters::{PortDrop, PortDrops};
use crate::wire::MacAddr;

/// Names a port of a switch. The number of a removed port may be reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub(super) u8);

impl PortId {
    /// Index below [`PORTS_MAX`], for tables of the caller.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which ports a port may send to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// Stations and uplinks.
    #[default]
    Station,
    /// Uplinks only.
    Isolated,
    /// All ports.
    Uplink,
    /// All ports but other tunnels: split horizon, so that hosts which all reach each other have
    /// no loop.
    Tunnel,
}

impl Role {
    pub(super) fn reaches(self, other: Role) -> bool {
        match (self, other) {
            (Role::Tunnel, Role::Tunnel) => false,
            (Role::Uplink | Role::Tunnel, _) | (_, Role::Uplink | Role::Tunnel) => true,
            (Role::Isolated, _) | (_, Role::Isolated) => false,
            (Role::Station, Role::Station) => true,
        }
    }
}

/// Limits on flooded packets per second, by kind; a super-packet counts as its segments. `None`
/// means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StormRates {
    /// Broadcast packets.
    pub broadcast: Option<u32>,
    /// Multicast packets.
    pub multicast: Option<u32>,
    /// Packets to unknown stations.
    pub unknown: Option<u32>,
}

impl StormRates {
    /// No limits.
    pub const NONE: Self = Self::all(None);

    /// The same limit for each kind.
    pub const fn all(rate: Option<u32>) -> Self {
        Self { broadcast: rate, multicast: rate, unknown: rate }
    }
}

impl Default for StormRates {
    fn default() -> Self {
        Self {
            broadcast: Some(BROADCASTS_PER_SECOND),
            multicast: Some(MULTICASTS_PER_SECOND),
            unknown: Some(UNKNOWN_PER_SECOND),
        }
    }
}

/// Configuration of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Capabilities of the port's device. What it sends is checked packet by packet.
    pub caps: Caps,
    /// Its link is up. Otherwise all packets from it and to it are dropped.
    pub is_up: bool,
    /// VLANs of the port.
    pub vlans: PortVlans,
    /// Which ports it may send to.
    pub role: Role,
    /// Addresses that its station may use.
    pub guard: Guard,
    /// Its station may not claim an address that [`Egress::owner`] assigns to another port. If the
    /// guard lists addresses, the list alone decides.
    pub respects_owners: bool,
    /// Its station may act as a router and DHCP server: advertise, redirect, assign addresses.
    pub is_router: bool,
    /// Trusts packets whose checksum is marked as verified. Must not be set for guests.
    pub is_trusted: bool,
    /// Limits on flooded packets.
    pub storm: StormRates,
    /// Stations per second that may move to this port.
    pub moves_per_second: u32,
    /// Entries of the address table reserved for this port.
    pub addresses_max: u32,
}

impl PortConfig {
    /// An access port of the default VLAN without restrictions on its station.
    pub fn new(caps: Caps) -> Self {
        Self {
            caps,
            is_up: true,
            vlans: PortVlans::Access(Vid::DEFAULT),
            role: Role::Station,
            guard: Guard::default(),
            respects_owners: false,
            is_router: true,
            is_trusted: false,
            storm: StormRates::default(),
            moves_per_second: MOVES_PER_SECOND,
            addresses_max: ADDRESSES_PER_PORT,
        }
    }
}

/// Error of adding or changing a port. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortError {
    /// The switch has [`PORTS_MAX`] ports already.
    TooManyPorts,
    /// The port does not exist.
    Unknown,
    /// The address table has too few free entries.
    TableFull,
    /// A list of the guard has more than [`GUARD_ENTRIES_MAX`] entries.
    GuardTooLong,
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyPorts => {
                write!(f, "the switch already has {PORTS_MAX} ports, the maximum")
            }
            Self::Unknown => f.write_str("the switch has no such port"),
            Self::TableFull => f.write_str("the address table has no room for that many entries"),
            Self::GuardTooLong => {
                write!(
                    f,
                    "a port can have at most {GUARD_ENTRIES_MAX} MAC and as many IP addresses"
                )
            }
        }
    }
}

impl core::error::Error for PortError {}

/// Counters of a port. Plain numbers: each thread has its own, and reports add them
/// ([`PortCounters::add`]).
///
/// Each received packet is either dropped with a reason of kind *In*, or passed to one or more
/// ports. Each of these ports counts it as sent, perhaps as several segments, or drops it with a
/// reason of kind *Out*.
#[derive(Clone, Debug, Default)]
pub struct PortCounters {
    /// Packets received.
    pub packets_in: u64,
    /// Bytes received, Ethernet headers included.
    pub bytes_in: u64,
    /// Super-packets received.
    pub super_packets_in: u64,
    /// Packets that the port's queue accepted.
    pub packets_out: u64,
    /// Bytes that the port's queue accepted.
    pub bytes_out: u64,
    /// Super-packets that the port's queue accepted.
    pub super_packets_out: u64,
    /// Received packets that were flooded.
    pub flooded: u64,
    /// Super-packets segmented for this port.
    pub cut: u64,
    /// Packets or segments whose checksum was completed for this port.
    pub checksums: u64,
    /// Stations learned at this port.
    pub learned: u64,
    /// Stations not learned because the port's share of the table was full.
    pub learn_refused: u64,
    /// Stations that moved to this port.
    pub moves: u64,
    /// Packets whose station would have moved here above the rate limit. The packets were
    /// forwarded.
    pub moves_refused: u64,
    drops: PortDrops,
}

impl PortCounters {
    /// Number of drops for `reason`.
    pub fn dropped(&self, reason: PortDrop) -> u64 {
        self.drops.get(reason)
    }

    /// Drop reasons that occurred, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (PortDrop, u64)> + '_ {
        self.drops.iter()
    }

    /// Adds the counters of another thread for the same port.
    pub fn add(&mut self, other: &Self) {
        self.packets_in += other.packets_in;
        self.bytes_in += other.bytes_in;
        self.super_packets_in += other.super_packets_in;
        self.packets_out += other.packets_out;
        self.bytes_out += other.bytes_out;
        self.super_packets_out += other.super_packets_out;
        self.flooded += other.flooded;
        self.cut += other.cut;
        self.checksums += other.checksums;
        self.learned += other.learned;
        self.learn_refused += other.learn_refused;
        self.moves += other.moves;
        self.moves_refused += other.moves_refused;
        for (reason, count) in other.drops.iter() {
            self.drops.count(reason, count as usize);
        }
    }

    pub(super) fn drop(&mut self, reason: PortDrop) {
        self.drops.count(reason, 1);
    }

    pub(super) fn count_in(&mut self, traffic: &Traffic) {
        self.packets_in += traffic.packets;
        self.super_packets_in += traffic.super_packets;
        self.bytes_in += traffic.bytes;
    }
}

/// Received packets that are counted together.
#[derive(Clone, Copy, Default)]
pub(super) struct Traffic {
    packets: u64,
    super_packets: u64,
    pub(super) bytes: u64,
}

impl Traffic {
    #[inline]
    pub(super) fn add(&mut self, packet: &Packet) {
        self.packets += 1;
        self.super_packets += u64::from(packet.offload().gso.is_some());
        self.bytes += packet.len() as u64;
    }
}

/// Destination of a port's packets: its device, or the queue before the device.
pub trait Egress {
    /// Takes packets for `port` from the front of `burst`. The switch drops the rest and counts it
    /// as [`PortDrop::QueueFull`]. Must not block, and must take no packets of `cx.memory`: the
    /// switch may be segmenting a packet into them.
    fn transmit(&mut self, port: PortId, burst: &mut Burst, cx: &mut Context<'_>);

    /// Port that owns an IP address in a VLAN, if known. Called only for ARP and neighbour
    /// discovery.
    fn owner(&self, _vid: Vid, _address: IpAddr) -> Option<PortId> {
        None
    }

    /// Port that a station of a VLAN belongs to, if known; it is learned at no other port. Called
    /// for stations that are new at a port.
    fn home(&self, _vid: Vid, _station: MacAddr) -> Option<PortId> {
        None
    }
}

/// A port of the switch, as one thread has it.
pub(super) struct Port {
    pub(super) config: PortConfig,
    pub(super) counters: PortCounters,
    /// Used by the owner only, like `moves`.
    pub(super) storms: Storms,
    pub(super) moves: Bucket,
    /// Packets that are not handed out yet. Empty between calls.
    pending: Burst,
}

/// Token buckets for [`StormRates`].
pub(super) struct Storms {
    pub(super) broadcast: Option<Bucket>,
    pub(super) multicast: Option<Bucket>,
    pub(super) unknown: Option<Bucket>,
}

impl Storms {
    fn new(rates: &StormRates) -> Self {
        Self {
            broadcast: rates.broadcast.map(Bucket::new),
            multicast: rates.multicast.map(Bucket::new),
            unknown: rates.unknown.map(Bucket::new),
        }
    }
}

impl Port {
    pub(super) fn new(config: PortConfig) -> Self {
        Self {
            counters: PortCounters::default(),
            storms: Storms::new(&config.storm),
            moves: Bucket::new(config.moves_per_second),
            pending: Burst::new(),
            config,
        }
    }

    /// Changes the configuration; buckets whose rate is unchanged keep their level.
    pub(super) fn configure(&mut self, config: PortConfig) {
        if config.storm != self.config.storm {
            self.storms = Storms::new(&config.storm);
        }
        if config.moves_per_second != self.config.moves_per_second {
            self.moves = Bucket::new(config.moves_per_second);
        }
        self.config = config;
    }

    /// Queues a packet in the form that the port takes, and counts it as sent. Inlined, because a
    /// call for each packet would take as long as this.
    #[inline(always)]
    pub(super) fn queue(
        &mut self,
        id: PortId,
        packet: Packet,
        cx: &mut Context<'_>,
        out: &mut impl Egress,
    ) {
        self.counters.packets_out += packet.frames() as u64;
        self.counters.bytes_out += packet.frame_bytes() as u64;
        self.counters.super_packets_out += u64::from(packet.offload().gso.is_some());
        if let Err(packet) = self.pending.push(packet) {
            self.flush(id, cx, out);
            self.pending.push(packet).expect("a flushed burst has room");
        }
    }

    /// Hands out the queued packets, or drops them if the link is down.
    #[inline(never)]
    pub(super) fn flush(&mut self, id: PortId, cx: &mut Context<'_>, out: &mut impl Egress) {
        if self.config.is_up {
            out.transmit(id, &mut self.pending, cx);
        }
        let reason = if self.config.is_up { PortDrop::QueueFull } else { PortDrop::LinkDown };
        let counters = &mut self.counters;
        while let Some(packet) = self.pending.pop() {
            counters.packets_out -= packet.frames() as u64;
            counters.bytes_out -= packet.frame_bytes() as u64;
            counters.super_packets_out -= u64::from(packet.offload().gso.is_some());
            counters.drops.count(reason, packet.frames());
        }
    }
}

/// Default limit on broadcasts per second: hundreds of stations that resolve each other, and a
/// thousandth of what a loop would generate.
pub const BROADCASTS_PER_SECOND: u32 = 10_000;

/// Default limit on multicast packets per second: video of 200 Mbit/s in packets of 1316 bytes, far
/// more than discovery needs, and what a loop generates in 20 ms.
pub const MULTICASTS_PER_SECOND: u32 = 20_000;

/// Default limit on packets to unknown stations per second: packets sent before a station has
/// answered, or after a long silence.
pub const UNKNOWN_PER_SECOND: u32 = 20_000;

/// Default limit on stations per second that move to a port.
pub const MOVES_PER_SECOND: u32 = 16;

/// Default share of the address table for a port: enough for a guest with containers.
pub const ADDRESSES_PER_PORT: u32 = 128;
