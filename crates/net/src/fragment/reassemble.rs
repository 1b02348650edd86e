//! Table of datagrams in reassembly.
//!
//! Small and linear: [`DATAGRAMS_MAX`] entries, oldest first. A fragment visits each entry at most
//! a few times, whatever is received. All memory is allocated when the table is made.

use alloc::vec::Vec;
use core::net::IpAddr;

use towpath_packet::{Ledger, Memory, Offload, Packet};

use super::datagram::{Datagram, Fragment, Header, Key};
use super::drop_reason::DropReason;
use crate::gso::IP_BYTES_MAX;
use crate::time::{Duration, Instant};
use crate::wire::{Protocol, ipv4, ipv6};

/// Result of processing a fragment.
#[derive(Debug)]
pub enum Outcome {
    /// The fragment is held until the others arrive.
    Incomplete,
    /// The datagram is complete. Its headers are those of the first fragment, up to the end of the
    /// IP header and its options or per-fragment extension headers, without fragmentation fields.
    /// The pieces begin behind them, usually with a transport header, whose checksum covers the
    /// whole and is not yet verified. [`into_received`] converts the packet so that it can be
    /// parsed again.
    Reassembled(Packet),
    /// The fragment was dropped. Unless it was a duplicate or invalid by itself, so was its
    /// datagram.
    Dropped(DropReason),
}

/// Bounds of a [`Reassembler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that held fragments may keep from their lenders.
    pub held_bytes: usize,
    /// Number of datagrams in reassembly.
    pub datagrams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { held_bytes: HELD_BYTES_MAX, datagrams: DATAGRAMS_MAX }
    }
}

/// Reassembles fragments. One thread.
pub struct Reassembler {
    limits: Limits,
    /// Datagrams in reassembly, oldest first.
    entries: Vec<Entry>,
    /// Used and unused entries; each keeps memory for its parts.
    datagrams: Vec<Datagram>,
    /// Indices of unused entries of `datagrams`.
    free: Vec<usize>,
    /// Sources of the used entries; an unused source has no datagrams.
    sources: Vec<Source>,
    /// Bytes that all datagrams hold.
    held: usize,
    evicted: u64,
}

/// The part of a datagram that is searched for every fragment.
struct Entry {
    ident: u32,
    deadline: Instant,
    /// Indices of the datagram and of its source.
    datagram: usize,
    source: usize,
}

/// Usage of the table by a source.
#[derive(Clone, Copy, Debug, Default)]
struct Source {
    name: SourceName,
    datagrams: usize,
    held: usize,
}

/// The limited resource that is exhausted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scarce {
    Datagrams,
    /// Bytes, of which this many are needed.
    Bytes(usize),
}

impl Source {
    fn has(&self, scarce: Scarce) -> usize {
        if scarce == Scarce::Datagrams { self.datagrams } else { self.held }
    }
}

impl Reassembler {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        let mut datagrams = Vec::with_capacity(limits.datagrams);
        datagrams.resize_with(limits.datagrams, Datagram::unused);
        let mut sources = Vec::with_capacity(limits.datagrams);
        sources.resize_with(limits.datagrams, Source::default);
        let entries = Vec::with_capacity(limits.datagrams);
        let free = (0..limits.datagrams).collect();
        Self { limits, entries, datagrams, free, sources, held: 0, evicted: 0 }
    }

    /// Processes an IPv4 fragment whose headers end with the IP header, which begins at `ip_at`.
    /// Padding behind the packet is ignored. A packet that is no fragment is returned as it is.
    pub fn receive_ipv4(
        &mut self,
        packet: Packet,
        ip_at: usize,
        now: Instant,
        memory: &mut Memory,
        ledger: &Ledger,
    ) -> Outcome {
        match read_ipv4(packet, ip_at) {
            Ok(fragment) if fragment.is_all() => Outcome::Reassembled(fragment.packet),
            Ok(fragment) => self.receive(fragment, now + IPV4_LIFETIME, memory, ledger),
            Err(reason) => Outcome::Dropped(reason),
        }
    }

    /// Processes an IPv6 fragment whose headers end with the fragment header; the IPv6 header
    /// begins at `ip_at`, and `header` is the parsed fragment header. Padding behind the packet is
    /// ignored. An atomic fragment is complete by itself, whatever else is held (RFC 6946 §4).
    pub fn receive_ipv6(
        &mut self,
        packet: Packet,
        ip_at: usize,
        header: &ipv6::Fragment,
        now: Instant,
        memory: &mut Memory,
        ledger: &Ledger,
    ) -> Outcome {
        let fragment = match read_ipv6(packet, ip_at, header) {
            Ok(fragment) => fragment,
            Err(reason) => return Outcome::Dropped(reason),
        };
        if fragment.is_all() {
            return match fragment.into_whole() {
                Ok(packet) => Outcome::Reassembled(packet),
                Err(reason) => Outcome::Dropped(reason),
            };
        }
        self.receive(fragment, now + IPV6_LIFETIME, memory, ledger)
    }

    /// Drops datagrams whose time is over; returns how many. For each whose first fragment was
    /// received, passes that fragment to `out`, unchanged, to be quoted in an ICMP Time Exceeded
    /// message (RFC 792, RFC 8200 §4.5).
    pub fn expire(&mut self, now: Instant, out: &mut impl FnMut(Packet)) -> usize {
        let mut expired = 0;
        let mut place = 0;
        while let Some(entry) = self.entries.get(place) {
            if entry.deadline > now {
                place += 1;
                continue;
            }
            if let Some(first) = self.datagrams[entry.datagram].take_first() {
                out(first);
            }
            self.remove(place);
            expired += 1;
        }
        expired
    }

    /// When [`expire`](Self::expire) must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.entries.iter().map(|entry| entry.deadline).min()
    }

    /// Number of datagrams in reassembly, including dead ones.
    pub fn datagram_count(&self) -> usize {
        self.entries.len()
    }

    /// Bytes that held fragments keep from their lenders.
    pub fn held_bytes(&self) -> usize {
        self.held
    }

    /// Number of datagrams evicted so far.
    pub fn evicted_count(&self) -> u64 {
        self.evicted
    }

    fn receive(
        &mut self,
        fragment: Fragment,
        deadline: Instant,
        memory: &mut Memory,
        ledger: &Ledger,
    ) -> Outcome {
        if !self.make_room(&fragment) {
            return Outcome::Dropped(DropReason::NoRoom);
        }
        let place = self.find(&fragment.key).unwrap_or_else(|| self.begin(fragment.key, deadline));
        if let Err(reason) = self.change(place, |datagram| datagram.insert(fragment)) {
            return Outcome::Dropped(reason);
        }
        let datagram = &self.datagrams[self.entries[place].datagram];
        if !datagram.is_whole() {
            return Outcome::Incomplete;
        }
        let assembled = datagram.assemble(memory, ledger);
        self.remove(place);
        match assembled {
            Ok(packet) => Outcome::Reassembled(packet),
            Err(reason) => Outcome::Dropped(reason),
        }
    }

    fn find(&self, key: &Key) -> Option<usize> {
        self.entries.iter().position(|entry| {
            entry.ident == key.ident && self.datagrams[entry.datagram].key == *key
        })
    }

    fn begin(&mut self, key: Key, deadline: Instant) -> usize {
        let datagram = self.free.pop().expect("there is room for a datagram");
        let name = source_of(&key);
        let source = self.source(name).unwrap_or_else(|| {
            let unused = self.sources.iter().position(|source| source.datagrams == 0);
            unused.expect("there are as many sources as datagrams")
        });
        self.sources[source].name = name;
        self.sources[source].datagrams += 1;
        self.datagrams[datagram].begin(key);
        self.entries.push(Entry { ident: key.ident, deadline, datagram, source });
        self.entries.len() - 1
    }

    fn remove(&mut self, place: usize) {
        self.change(place, Datagram::end);
        let Entry { datagram, source, .. } = self.entries.remove(place);
        self.sources[source].datagrams -= 1;
        self.free.push(datagram);
        debug_assert_eq!(self.free.len() + self.entries.len(), self.limits.datagrams);
    }

    /// Changes a datagram and updates the sums of held bytes.
    fn change<R>(&mut self, place: usize, change: impl FnOnce(&mut Datagram) -> R) -> R {
        let entry = &self.entries[place];
        let datagram = &mut self.datagrams[entry.datagram];
        let before = datagram.held;
        let result = change(datagram);
        for held in [&mut self.held, &mut self.sources[entry.source].held] {
            *held = *held - before + datagram.held;
        }
        result
    }

    /// Evicts until `fragment` fits. If that is impossible, kills its datagram and returns false.
    fn make_room(&mut self, fragment: &Fragment) -> bool {
        let cost = fragment.cost();
        loop {
            let own = self.find(&fragment.key);
            let victim = if own.is_none() && self.free.is_empty() {
                self.victim(&fragment.key, Scarce::Datagrams)
            } else if self.held + cost > self.limits.held_bytes {
                self.victim(&fragment.key, Scarce::Bytes(cost))
            } else {
                return true;
            };
            if let Some(victim) = victim {
                self.remove(victim);
                self.evicted += 1;
                continue;
            }
            if let Some(own) = own {
                self.change(own, Datagram::kill);
            }
            return false;
        }
    }

    /// Datagram to evict for another fragment of `key`: the oldest of the source that uses most,
    /// where the fragment counts for its own source. Among equals its own source is chosen, if it
    /// has a datagram to evict, else the oldest. Never the fragment's own datagram.
    fn victim(&self, key: &Key, scarce: Scarce) -> Option<usize> {
        let newcomer = self.source(source_of(key));
        let (mut most, mut giver) = (if let Scarce::Bytes(cost) = scarce { cost } else { 1 }, None);
        if let Some(newcomer) = newcomer {
            most += self.sources[newcomer].has(scarce);
            giver = self.oldest_of(newcomer, key, scarce);
        }
        for entry in &self.entries {
            let has = self.sources[entry.source].has(scarce);
            let is_more = has > most || has == most && giver.is_none();
            if is_more && Some(entry.source) != newcomer {
                (most, giver) = (has, self.oldest_of(entry.source, key, scarce));
            }
        }
        giver
    }

    /// The oldest datagram of a source whose eviction frees something, other than that of `key`.
    fn oldest_of(&self, source: usize, key: &Key, scarce: Scarce) -> Option<usize> {
        self.entries.iter().position(|entry| {
            let datagram = &self.datagrams[entry.datagram];
            entry.source == source
                && (scarce == Scarce::Datagrams || datagram.held > 0)
                && datagram.key != *key
        })
    }

    /// Index of a source that has datagrams in the table.
    fn source(&self, name: SourceName) -> Option<usize> {
        self.sources.iter().position(|source| source.datagrams > 0 && source.name == name)
    }
}

/// Converts a reassembled packet into the form in which a device delivers packets: no headers, and
/// pieces that cover the whole frame, to be peeked and parsed. Its ingress port is kept. Its
/// headers are copied into a frame of their own, which does not count as a copy of payload. Returns
/// the packet if memory is short or it has no room for another piece.
pub fn into_received(mut packet: Packet, memory: &mut Memory) -> Result<Packet, Packet> {
    if packet.piece_count() == towpath_packet::packet::PIECES_MAX {
        return Err(packet);
    }
    let (Some(mut frame), Some(mut received)) = (memory.small.take(), memory.packet()) else {
        return Err(packet);
    };
    let len = packet.headers().len();
    frame[..len].copy_from_slice(packet.headers());
    received.push_piece(frame.freeze(len)).expect("the packet is empty");
    for piece in packet.take_pieces() {
        received.push_piece(piece).expect("one place was left");
    }
    received.set_offload(*packet.offload());
    received.set_ingress(packet.ingress());
    Ok(received)
}

/// Checks an IPv4 fragment by itself.
fn read_ipv4(mut packet: Packet, ip_at: usize) -> Result<Fragment, DropReason> {
    let ip = packet.headers().get(ip_at..).ok_or(DropReason::BadHeader)?;
    let parsed = ipv4::Header::parse(ip, packet.len() - ip_at);
    // Parsing has checked that the payload is complete and ends within the longest packet.
    let header = parsed.map_err(|_| DropReason::BadHeader)?;
    if usize::from(header.header_len) != ip.len() {
        return Err(DropReason::BadHeader);
    }
    check_len(header.payload_len(), header.more_fragments)?;
    packet.truncate(header.payload_len());
    if header.is_fragment() {
        packet.set_offload(Offload::default());
    }
    Ok(Fragment {
        key: Key {
            ident: u32::from(header.ident),
            source: IpAddr::V4(header.source),
            destination: IpAddr::V4(header.destination),
            protocol: Some(header.protocol),
            ingress: packet.ingress(),
        },
        packet,
        offset: usize::from(header.fragment_offset),
        more: header.more_fragments,
        protocol: header.protocol,
        header: Header { ip_at, next_header_at: ip_at + ipv4::at::PROTOCOL },
        ecn: header.tos & 0b11,
    })
}

/// Checks an IPv6 fragment by itself.
fn read_ipv6(
    mut packet: Packet,
    ip_at: usize,
    fragment: &ipv6::Fragment,
) -> Result<Fragment, DropReason> {
    let ip = packet.headers().get(ip_at..).ok_or(DropReason::BadHeader)?;
    let parsed = ipv6::Header::parse(ip, packet.len() - ip_at);
    let header = parsed.map_err(|_| DropReason::BadHeader)?;
    let fragment_at = ipv6::HEADER_LEN + fragment.header_at;
    if fragment_at + ipv6::FRAGMENT_HEADER_LEN != ip.len() {
        return Err(DropReason::BadHeader);
    }
    let next_header_at = match fragment.previous_next_header_at {
        ipv6::FIXED_HEADER => ipv6::at::NEXT_HEADER,
        place if place < fragment.header_at => ipv6::HEADER_LEN + place,
        _ => return Err(DropReason::BadHeader),
    };
    let protocol = Protocol(ip[fragment_at]);
    let before = fragment.header_at + ipv6::FRAGMENT_HEADER_LEN;
    let len = usize::from(header.payload_len).checked_sub(before).ok_or(DropReason::BadLength)?;
    let offset = usize::from(fragment.offset_bytes);
    check_len(len, fragment.more)?;
    if fragment.header_at + offset + len > IP_BYTES_MAX {
        return Err(DropReason::TooLong);
    }
    packet.truncate(len);
    packet.set_offload(Offload::default());
    Ok(Fragment {
        key: Key {
            ident: fragment.ident,
            source: IpAddr::V6(header.source),
            destination: IpAddr::V6(header.destination),
            protocol: None,
            ingress: packet.ingress(),
        },
        packet,
        offset,
        more: fragment.more,
        protocol,
        header: Header { ip_at, next_header_at: ip_at + next_header_at },
        ecn: header.traffic_class & 0b11,
    })
}

/// Checks the payload length of a fragment.
fn check_len(len: usize, more: bool) -> Result<(), DropReason> {
    match len {
        0 => Err(DropReason::BadLength),
        len if more && !len.is_multiple_of(8) => Err(DropReason::NotMultipleOf8),
        _ => Ok(()),
    }
}

/// Source that a datagram is charged to: the switch port at which it was received, else an IPv4
/// address or an IPv6 /64 network. Addresses and networks do not collide: no valid source is in a
/// network whose number is below 2^32.
type SourceName = (Option<u16>, u64);

fn source_of(key: &Key) -> SourceName {
    let source = match key.source {
        _ if key.ingress.is_some() => 0,
        IpAddr::V4(source) => u64::from(source.to_bits()),
        IpAddr::V6(source) => (source.to_bits() >> 64) as u64,
    };
    (key.ingress, source)
}

/// Maximum time for an IPv4 datagram to arrive (`ipfrag_time`). RFC 1122 §3.3.2 recommends 60 to
/// 120 seconds, in which a fast sender reuses each identification many times (RFC 4963).
pub const IPV4_LIFETIME: Duration = Duration::from_secs(30);

/// Maximum time for an IPv6 datagram to arrive (RFC 8200 §4.5).
pub const IPV6_LIFETIME: Duration = Duration::from_secs(60);

/// Default maximum number of datagrams in reassembly: the length of a burst. A lookup compares at
/// most this many keys.
pub const DATAGRAMS_MAX: usize = 64;

/// Default maximum bytes that fragments keep from their lenders: 64 datagrams of 16 fragments, each
/// in a small frame of 2 KiB. Half of what Linux allows.
pub const HELD_BYTES_MAX: usize = DATAGRAMS_MAX * 16 * 2048;
