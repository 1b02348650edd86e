//! One TCP/IP stack on one link.
//!
//! # Theory of operation
//!
//! The driver moves bursts: [`Stack::input`] takes received packets, [`Stack::output`] fills a
//! burst with packets to send, and [`Stack::on_deadline`] runs timers. In between, the owner drains
//! events ([`Stack::next_event`], [`Stack::next_datagram`], [`Stack::next_echo`]) and acts on them.
//! ICMP errors about datagrams are queued if the owner asks for them
//! ([`Stack::report_udp_errors`]). No call blocks, reads a clock or makes a system call.
//!
//! A stack is a *host*, which answers for its own addresses, or *transparent*: it takes TCP, UDP
//! and echo requests for any address, so that a gateway can act for the whole Internet. A
//! transparent stack's owner decides about each SYN; a host's listeners accept connections.
//!
//! Packets to local addresses are received by the next call of [`Stack::output`].
//!
//! Packets are built as large as possible and adapted to the device last: a super-packet is
//! segmented, or a checksum completed, only if the device cannot do it.
//!
//! Bounds: [`Limits`]. Every drop is counted with a reason.

mod accounts;
mod addresses;
mod challenges;
mod coalesce;
mod connect;
mod cookies;
mod discovery;
mod egress;
mod handles;
mod handshake;
mod icmp;
mod idents;
mod ingress;
mod link;
mod listen;
mod listeners;
mod local;
mod membership;
mod metrics;
mod moved;
mod neighbors;
mod path_mtus;
mod raw;
mod resets;
mod routes;
mod table;
mod tcp;
mod time_wait;
mod udp;

#[cfg(test)]
mod tests;

use crate::counters::{Counters, DropReason};
use crate::fragment::{self, Reassembler};
use crate::neighbor::{Detection, Neighbors};
use crate::random::{Purpose, Secret};
use crate::tcp::{Pressure, Settings};
use crate::time::{Instant, earliest};
use crate::wire::{self, MacAddr};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use foldhash::fast::FixedState;
use towpath_packet::{Burst, Caps, Memory, Packet};

pub use crate::neighbor::{Conflict, OnConflict};
pub use accounts::{Frames, Usage};
pub use addresses::{ADDRESSES_MAX, AddressError};
pub use connect::Connect;
pub use egress::TTL_DEFAULT;
pub use handles::{ListenerHandle, TcpHandle};
pub use icmp::{Echo, EchoReply, Report, Unreachable};
pub use link::LinkFrame;
pub use listeners::{Listen, ListenError};
pub use membership::{GROUPS_MAX, JoinError};
pub use metrics::PEERS_MAX;
pub use moved::MovedTcp;
pub use path_mtus::{PATHS_MAX, PathInfo};
pub use raw::RawPacket;
pub(crate) use raw::share;
pub use routes::{ROUTES_MAX, Route, RouteError, RouteMetrics};
pub use tcp::ConnectError;
pub use towpath_packet::Context;
pub use udp::{Datagram, UdpError, UdpSend};

/// A local address and the prefix length of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub address: IpAddr,
    /// Number of leading bits that all hosts on the link share.
    pub prefix_len: u8,
}

/// Bounds of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// TCP connections. Further SYNs are dropped and counted, and the peer retransmits.
    pub connections: usize,
    /// Incoming connections not yet open. A further SYN evicts the oldest of the port that has
    /// most.
    pub half_open: usize,
    /// Connections without an owner that still close (Linux's `tcp_max_orphans`). Beyond this,
    /// releasing a connection resets it.
    pub orphans: usize,
    /// Connections in TIME-WAIT. A further one evicts the oldest.
    pub time_wait: usize,
    /// Datagrams and echo requests not yet taken by the owner. Further ones are dropped.
    pub datagrams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 65_536,
            half_open: 4096,
            orphans: 32_768,
            time_wait: 32_768,
            datagrams: 256,
        }
    }
}

/// Configuration of a stack.
#[derive(Clone, Debug)]
pub struct Config {
    /// Link-layer address of the stack.
    pub mac: MacAddr,
    /// Local addresses.
    pub addresses: Vec<Address>,
    /// Next hop for addresses that are not on the link; without one, all addresses are on the link.
    pub next_hops: Vec<IpAddr>,
    /// Takes packets for any address, on behalf of others. Datagrams of one burst are coalesced
    /// into super-packets where possible.
    pub transparent: bool,
    /// Secret from which everything unpredictable derives: sequence numbers, ports, identifiers,
    /// limits, hash seeds. Random in production, fixed in a simulation.
    pub secret: [u64; 2],
    /// TCP settings.
    pub tcp: Settings,
    /// Bounds.
    pub limits: Limits,
}

impl Config {
    /// A locally administered unicast address (IEEE 802) that belongs to this secret and does not
    /// reveal it.
    pub fn station_address(secret: [u64; 2]) -> MacAddr {
        let [a, b, c, d, e, ..] = Secret::new(secret).key(Purpose::StationAddress)[0].to_ne_bytes();
        MacAddr([2, a, b, c, d, e])
    }
}

/// A TCP/IP stack on one link.
pub struct Stack {
    config: Config,
    caps: Caps,
    /// The queue of the device is full.
    stopped: bool,
    counters: Counters,
    neighbors: Neighbors,
    detection: Detection,
    answers_for_link: bool,
    reassembler: Reassembler,
    coalescing: coalesce::Coalescing,
    tcp: table::Table,
    paths: path_mtus::Paths,
    icmp_limit: icmp::RateLimit,
    resets: resets::Resets,
    memberships: membership::Memberships,
    /// Frames ready to be sent.
    ready: VecDeque<Packet>,
    /// Packets to local addresses.
    looped: VecDeque<Packet>,
    datagrams: VecDeque<Datagram>,
    udp_errors: VecDeque<UdpError>,
    tells_udp_errors: bool,
    /// How often `ready` has been emptied.
    emptied: u64,
    echoes: VecDeque<Echo>,
    raw: raw::Raw,
    link: link::Link,
    idents: idents::Idents,
    flow_labels: FixedState,
}

impl Stack {
    /// A stack for a device with these capabilities.
    pub fn new(config: Config, caps: Caps) -> Self {
        let tcp = table::Table::new(&config);
        let secret = Secret::new(config.secret);
        let idents = idents::Idents::new(&secret);
        let delays = secret.key(Purpose::ReportDelays);
        let memberships = membership::Memberships::new(&config.addresses, delays);
        let icmp_limit = icmp::RateLimit::new(secret.key(Purpose::IcmpErrors));
        let resets = resets::Resets::new(secret.key(Purpose::ResetLimit));
        let paths = path_mtus::Paths::new(secret.table(Purpose::PathTable));
        let neighbors = Neighbors::new(&config.next_hops, secret.key(Purpose::Neighbors));
        let detection = Detection::new(secret.key(Purpose::AddressDetection));
        let seed = secret.key(Purpose::CoalescerTable)[0];
        let mut coalescing = coalesce::Coalescing::new(config.transparent, seed);
        coalescing.set_caps(&caps);
        Self {
            config,
            caps,
            stopped: false,
            counters: Counters::default(),
            neighbors,
            detection,
            answers_for_link: false,
            reassembler: Reassembler::new(fragment::Limits::default()),
            coalescing,
            tcp,
            paths,
            icmp_limit,
            resets,
            memberships,
            ready: VecDeque::new(),
            looped: VecDeque::new(),
            datagrams: VecDeque::new(),
            udp_errors: VecDeque::new(),
            tells_udp_errors: false,
            emptied: 0,
            echoes: VecDeque::new(),
            raw: raw::Raw::default(),
            link: link::Link::default(),
            idents,
            flow_labels: secret.table(Purpose::FlowLabels),
        }
    }

    /// The secret, from which the layer above derives its own keys.
    pub(crate) fn secret(&self) -> Secret {
        Secret::new(self.config.secret)
    }

    /// Sets the capabilities of the device. Connections send no larger segments than it takes from
    /// now on, and soon use larger ones if it takes them.
    pub fn set_caps(&mut self, caps: Caps) {
        if caps == self.caps {
            return;
        }
        self.caps = caps;
        self.coalescing.set_caps(&caps);
        self.paths.change();
    }

    /// Capabilities of the device.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Says whether the device drops all packets. While it does, connections keep their data and
    /// send it later; all other packets are dropped.
    pub fn set_stopped(&mut self, stopped: bool) {
        self.stopped = stopped;
    }

    /// Largest IP packet that the device takes as one segment.
    pub fn mtu(&self) -> u16 {
        self.caps.mtu
    }

    /// TCP settings of new connections.
    pub fn tcp_settings(&self) -> &Settings {
        &self.tcp.settings
    }

    /// TCP settings of new connections, to be changed.
    pub fn tcp_settings_mut(&mut self) -> &mut Settings {
        &mut self.tcp.settings
    }

    /// Answers requests for the link-layer address of every address except the next hops, and takes
    /// packets to all of them, from now on: the next hops are alone on their link, and a
    /// transparent stack stands for all other stations.
    pub fn answer_for_link(&mut self) {
        self.answers_for_link = true;
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Receives all packets of `burst`.
    pub fn input(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        self.offer_received(burst, cx);
        while let Some(packet) = burst.pop() {
            self.receive(packet, cx);
        }
        self.flush_coalesced(cx);
    }

    /// Fills `burst` with packets to send. Call again, after sending, until it stays empty.
    pub fn output(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        loop {
            self.receive_looped(cx);
            let done = burst.len();
            while !burst.is_full()
                && let Some(packet) = self.ready.pop_front()
            {
                self.hand_out(packet, burst);
            }
            self.offer_sent(burst, done, cx);
            self.output_made(burst);
            if burst.is_full() || !self.output_tcp(cx) {
                return;
            }
        }
    }

    /// Puts a frame into a burst that is not full, to be sent.
    fn hand_out(&mut self, packet: Packet, burst: &mut Burst) {
        self.counters.packets_out += 1;
        self.counters.bytes_out += packet.len() as u64;
        self.counters.super_packets_out += u64::from(packet.offload().gso.is_some());
        burst.push(packet).expect("the burst is not full");
        self.emptied += u64::from(self.ready.is_empty() && self.link.made.is_empty());
    }

    /// True if [`Stack::output`] may have packets to send.
    pub fn has_output(&self) -> bool {
        self.has_ready() || self.tcp.has_output()
    }

    /// Counts a datagram that its owner dropped.
    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.counters.drop(reason);
    }

    /// Counts packets as dropped that were handed out for a device or link that is gone.
    pub fn count_gone(&mut self, packets: usize) {
        for _ in 0..packets {
            self.counters.drop(DropReason::LinkGone);
        }
    }

    /// True if packets wait to be handed out.
    pub(crate) fn has_ready(&self) -> bool {
        !(self.ready.is_empty() && self.looped.is_empty() && self.link.made.is_empty())
    }

    /// How often [`Stack::output`] has handed out all ready packets. When this changes, all packets
    /// that were sent before have left.
    pub fn emptied_count(&self) -> u64 {
        self.emptied
    }

    /// When [`Stack::on_deadline`] must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let (fragments, paths) = (self.reassembler.next_deadline(), self.paths.deadline());
        let (tcp, neighbors) = (self.tcp.deadline(), self.neighbors.deadline());
        let (detection, memberships) = (self.detection.deadline(), self.memberships.deadline());
        earliest([tcp, neighbors, detection, fragments, paths, memberships])
    }

    /// Runs the timers that are due.
    pub fn on_deadline(&mut self, cx: &mut Context<'_>) {
        self.paths.on_deadline(cx.now);
        self.tcp.on_deadline(cx.now);
        self.expire_neighbors(cx);
        self.expire_fragments(cx);
        self.report_groups(cx);
    }

    /// True if `address` is a local address.
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.config.addresses.iter().any(|ours| ours.address == address)
    }

    /// Source address for `destination`: itself if it is local, else the first address on the same
    /// link, or the first of its family.
    pub fn source_for(&self, destination: IpAddr) -> Option<IpAddr> {
        if self.is_local(destination) {
            return Some(destination);
        }
        let family = |ours: &&Address| ours.address.is_ipv4() == destination.is_ipv4();
        if let IpAddr::V6(group) = destination
            && group.is_multicast()
        {
            // RFC 6724 §5 rule 2: of the scope of the destination.
            let is_near = wire::membership::scope(group) <= wire::membership::LINK_SCOPE;
            let fits = |ours: &&Address| match ours.address {
                IpAddr::V6(address) => address.is_unicast_link_local() == is_near,
                IpAddr::V4(_) => false,
            };
            let ours = &self.config.addresses;
            return ours.iter().find(fits).or(ours.iter().find(family)).map(|ours| ours.address);
        }
        let near = self.config.addresses.iter().find(|ours| same_prefix(ours, destination));
        let any = || self.config.addresses.iter().find(family);
        near.filter(family).or_else(any).map(|ours| ours.address)
    }

    fn is_on_link(&self, address: IpAddr) -> bool {
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        link_local || self.config.addresses.iter().any(|ours| same_prefix(ours, address))
    }
}

/// How short of memory the pools are.
fn pressure(memory: &mut Memory) -> Pressure {
    if memory.has_free(ENOUGH) {
        return Pressure::None;
    }
    match memory.free_share() {
        ENOUGH.. => Pressure::None,
        32.. => Pressure::Some,
        8.. => Pressure::High,
        _ => Pressure::Critical,
    }
}

/// Share of frame memory, in 1/256, that must be free for memory not to be short.
const ENOUGH: u32 = 96;

fn same_prefix(ours: &Address, address: IpAddr) -> bool {
    match (ours.address, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(ours.prefix_len)).unwrap_or(0);
            (a.to_bits() ^ b.to_bits()) & mask == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ours.prefix_len)).unwrap_or(0);
            (a.to_bits() ^ b.to_bits()) & mask == 0
        }
        _ => false,
    }
}
