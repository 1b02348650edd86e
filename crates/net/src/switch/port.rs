//! A port: its configuration, its counters, and the burst that is on its way out.

use core::fmt;
use core::net::IpAddr;

use towpath_packet::{Burst, Caps, Packet};

use super::PORTS_MAX;
use super::guard::{GUARD_ENTRIES_MAX, Guard};
use super::storm::Bucket;
use super::vlan::{PortVlans, Vid};
use crate::counters::PortDrop;
use crate::wire::MacAddr;

/// Names a port of one switch. The number of a removed port may be given to a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub(super) u8);

impl PortId {
    /// Below [`PORTS_MAX`]: an index for tables of the caller.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whom a port may talk to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// Stations and uplinks.
    #[default]
    Station,
    /// Uplinks only.
    Isolated,
    /// Everybody.
    Uplink,
}

impl Role {
    pub(super) fn reaches(self, other: Role) -> bool {
        match (self, other) {
            (Role::Uplink, _) | (_, Role::Uplink) => true,
            (Role::Isolated, _) | (_, Role::Isolated) => false,
            (Role::Station, Role::Station) => true,
        }
    }
}

/// Packets a second that a port may send to more than one station; a super-packet counts as the
/// segments in it. `None` is without bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StormRates {
    /// To all stations.
    pub broadcast: Option<u32>,
    /// To groups.
    pub multicast: Option<u32>,
    /// To stations that nobody knows.
    pub unknown: Option<u32>,
}

impl StormRates {
    /// No bounds.
    pub const NONE: Self = Self::all(None);

    /// The same bound for each kind.
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

/// How a port behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// What the port's device takes. What it gives is checked packet by packet.
    pub caps: Caps,
    /// Its VLANs.
    pub vlans: PortVlans,
    /// Whom it may talk to.
    pub role: Role,
    /// What its station may claim to be.
    pub guard: Guard,
    /// Its station may not claim what [`Egress::owner`] says belongs to others, unless its guard
    /// lists addresses, which alone decides then.
    pub respects_owners: bool,
    /// Its station may be a router and lend addresses: announce itself, redirect, answer DHCP.
    pub is_router: bool,
    /// Packets that come in with their checksum already verified are believed. Not for guests.
    pub is_trusted: bool,
    /// Bounds on what is flooded.
    pub storm: StormRates,
    /// Stations a second that may move to this port.
    pub moves_per_second: u32,
    /// Entries of the address table that are kept free for this port.
    pub addresses_max: u32,
}

impl PortConfig {
    /// An access port of the default VLAN, whose station may be anybody.
    pub fn new(caps: Caps) -> Self {
        Self {
            caps,
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

/// Why a port was not added or changed. Nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortError {
    /// There are [`PORTS_MAX`] already.
    TooManyPorts,
    /// There is no such port.
    Unknown,
    /// The address table has not so many entries left.
    TableFull,
    /// The guard has more than [`GUARD_ENTRIES_MAX`] entries of a kind.
    GuardTooLong,
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyPorts => write!(f, "the switch has {PORTS_MAX} ports already"),
            Self::Unknown => f.write_str("the switch has no such port"),
            Self::TableFull => f.write_str("the address table has no room for that many entries"),
            Self::GuardTooLong => {
                write!(f, "a port can list at most {GUARD_ENTRIES_MAX} addresses of a kind")
            }
        }
    }
}

impl core::error::Error for PortError {}

/// What passed a port and what did not. Plain numbers: one thread writes, reports copy.
///
/// Each packet in was dropped with a reason of kind *In*, or handed to one port or more; each of
/// these counted it out, cut as often as needed, or dropped it with a reason of kind *Out*.
#[derive(Clone, Debug, Default)]
pub struct PortCounters {
    /// Packets that came in.
    pub packets_in: u64,
    /// Their bytes, Ethernet headers included.
    pub bytes_in: u64,
    /// Of them super-packets.
    pub super_packets_in: u64,
    /// Packets that the port's queue took.
    pub packets_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Of them super-packets.
    pub super_packets_out: u64,
    /// Packets that came in and went to all ports that there are for them.
    pub flooded: u64,
    /// Super-packets that were cut for this port.
    pub cut: u64,
    /// Packets, or segments of them, whose checksum was completed for this port.
    pub checksums: u64,
    /// Stations that were learned here.
    pub learned: u64,
    /// Stations that were not, because the port has as many as it may.
    pub learn_refused: u64,
    /// Stations that moved here.
    pub moves: u64,
    /// Packets of stations that would have moved here too soon after others. They were forwarded.
    pub moves_refused: u64,
    drops: [u64; PortDrop::ALL.len()],
}

impl PortCounters {
    /// Drops for `reason`.
    pub fn dropped(&self, reason: PortDrop) -> u64 {
        self.drops[reason as usize]
    }

    /// Reasons that occurred, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (PortDrop, u64)> + '_ {
        let all = PortDrop::ALL.iter().map(|&reason| (reason, self.dropped(reason)));
        all.filter(|&(_, count)| count > 0)
    }

    pub(super) fn drop(&mut self, reason: PortDrop) {
        self.drop_frames(reason, 1);
    }

    fn drop_frames(&mut self, reason: PortDrop, frames: usize) {
        self.drops[reason as usize] += frames as u64;
    }
}

/// Where the packets of a port go: its device, or the ring in front of it.
pub trait Egress {
    /// Takes packets from the front of `burst`, for `port`. What it leaves is dropped by the switch
    /// and counted as [`PortDrop::QueueFull`]. Does not block.
    fn transmit(&mut self, port: PortId, burst: &mut Burst);

    /// The port that an IP address of a VLAN belongs to, if that is known. Asked for ARP and
    /// neighbour discovery only.
    fn owner(&self, _vid: Vid, _address: IpAddr) -> Option<PortId> {
        None
    }

    /// The port that a station of a VLAN belongs to, if that is known: it is learned nowhere else.
    /// Asked for stations that are new at a port.
    fn home(&self, _vid: Vid, _station: MacAddr) -> Option<PortId> {
        None
    }
}

/// A port of the switch.
pub(super) struct Port {
    pub(super) config: PortConfig,
    pub(super) counters: PortCounters,
    pub(super) storms: Storms,
    pub(super) moves: Bucket,
    /// Packets for this port that were not handed out yet. Empty between calls.
    pending: Burst,
}

/// The buckets of [`StormRates`].
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

    /// Takes another configuration; buckets whose rate stays are not filled by it.
    pub(super) fn configure(&mut self, config: PortConfig) {
        if config.storm != self.config.storm {
            self.storms = Storms::new(&config.storm);
        }
        if config.moves_per_second != self.config.moves_per_second {
            self.moves = Bucket::new(config.moves_per_second);
        }
        self.config = config;
    }

    /// Queues a packet that has the form that the port takes.
    pub(super) fn queue(&mut self, id: PortId, packet: Packet, out: &mut impl Egress) {
        if let Err(packet) = self.pending.push(packet) {
            self.flush(id, out);
            self.pending.push(packet).expect("a flushed burst has room");
        }
    }

    /// Hands out what is queued.
    pub(super) fn flush(&mut self, id: PortId, out: &mut impl Egress) {
        let counters = &mut self.counters;
        for packet in self.pending.iter() {
            counters.packets_out += packet.frames() as u64;
            counters.bytes_out += packet.frame_bytes() as u64;
            counters.super_packets_out += u64::from(packet.offload().gso.is_some());
        }
        out.transmit(id, &mut self.pending);
        while let Some(packet) = self.pending.pop() {
            counters.packets_out -= packet.frames() as u64;
            counters.bytes_out -= packet.frame_bytes() as u64;
            counters.super_packets_out -= u64::from(packet.offload().gso.is_some());
            counters.drop_frames(PortDrop::QueueFull, packet.frames());
        }
    }
}

/// Broadcasts a second that a port may send, unless told otherwise: hundreds of stations asking
/// for each other, and a thousandth of what a loop would make.
pub const BROADCASTS_PER_SECOND: u32 = 10_000;

/// Packets to groups a second that a port may send, unless told otherwise: video of 200 Mbit/s in
/// packets of 1,316 bytes, far more than discovery needs, and what a loop makes in 20 ms.
pub const MULTICASTS_PER_SECOND: u32 = 20_000;

/// Packets to unknown stations a second that a port may send, unless told otherwise: what comes
/// before a station has answered, or after it was silent for long.
pub const UNKNOWN_PER_SECOND: u32 = 20_000;

/// Stations a second that may move to a port, unless told otherwise.
pub const MOVES_PER_SECOND: u32 = 16;

/// Entries of the address table kept for a port, unless told otherwise: a guest with containers.
pub const ADDRESSES_PER_PORT: u32 = 128;
