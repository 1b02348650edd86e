//! Neighbour cache: link-layer addresses of neighbours (RFC 826, RFC 4861 §7), and packets that
//! wait for them.
//!
//! Entries are learned from ARP and neighbour discovery, or set permanently by the driver. A
//! permanent entry is never overwritten, so that a malicious program cannot redirect the traffic of
//! another. Only addresses that were solicited, or that solicited us, make an entry: unsolicited
//! announcements update entries but create none. An address known for longer than [`LIFETIME`] is
//! solicited again when it is used, and used meanwhile.
//!
//! Bounds: [`ENTRIES_MAX`] entries. Packets of [`WAITING_BYTES_MAX`] wait for one address, and of
//! [`ALL_WAITING_BYTES_MAX`] for all; the oldest for the same address are dropped for new ones, and
//! one packet may always wait (RFC 4861 §7.2.2). [`ASK_COUNT`] requests are sent, one second apart.
//!
//! A full table evicts a learned entry. It prefers, in this order: an entry to which nothing was
//! sent; one that has not answered; one behind a switch port with more than half of all entries;
//! any other. Within each group the least recently used entry is evicted. So packets for addresses
//! without a station do not evict neighbours that answer, and a guest that answers for hundreds of
//! addresses does not evict other guests. Next hops, and entries with waiting packets, are not
//! evicted because of received messages: a flood of requests is answered, but not learned. They may
//! be evicted for packets that are sent; the waiting packets are then returned to be counted.

use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use towpath_packet::Packet;

/// Maximum number of entries.
pub const ENTRIES_MAX: usize = 256;
/// Maximum bytes of packets that wait for one address, each with [`WAITING_OVERHEAD`] (Linux's
/// `unres_qlen_bytes`). It allows a burst of datagrams to a new neighbour.
pub const WAITING_BYTES_MAX: usize = 212_992;
/// Maximum bytes of packets that wait for all addresses: about five full queues.
pub const ALL_WAITING_BYTES_MAX: usize = 1 << 20;
/// Bytes charged for a waiting packet in addition to its length: the size of an empty packet in
/// Linux.
pub const WAITING_OVERHEAD: usize = 768;
/// Requests sent before an address counts as unreachable (RFC 4861 MAX_MULTICAST_SOLICIT).
pub const ASK_COUNT: u8 = 3;
/// Time between requests (RFC 4861 RETRANS_TIMER).
pub const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a learned address is used without another request.
pub const LIFETIME: Duration = Duration::from_secs(60);

enum Known {
    Permanent(MacAddr),
    Until(MacAddr, Instant),
    /// Unknown, or known for too long; a request was sent.
    Asked(Question),
}

struct Question {
    count: u8,
    next: Instant,
    /// Address to use until the answer arrives.
    stale: Option<MacAddr>,
    pending: VecDeque<Outgoing>,
    /// Bytes charged for the waiting packets.
    bytes: usize,
}

impl Question {
    fn first(now: Instant, stale: Option<MacAddr>) -> Self {
        Self { count: 1, next: now + ASK_INTERVAL, stale, pending: VecDeque::new(), bytes: 0 }
    }

    /// Queues a packet, and drops the oldest while the others exceed `most` bytes; returns how many
    /// were dropped. One packet is always queued.
    fn wait(&mut self, packet: Outgoing, most: usize) -> usize {
        let before = self.pending.len();
        self.bytes += packet.waiting_bytes();
        while self.bytes > most
            && let Some(oldest) = self.pending.pop_front()
        {
            self.bytes -= oldest.waiting_bytes();
        }
        let dropped = before - self.pending.len();
        self.pending.push_back(packet);
        dropped
    }
}

struct Entry {
    address: IpAddr,
    known: Known,
    /// Switch port at which its address was last announced.
    port: Option<u16>,
    /// When a packet was last sent, or to be sent, to this address.
    used: Option<Instant>,
}

impl Entry {
    fn new(address: IpAddr, known: Known, used: Option<Instant>) -> Self {
        Self { address, known, port: None, used }
    }

    fn is_permanent(&self) -> bool {
        matches!(self.known, Known::Permanent(_))
    }

    /// True if a link-layer address has been received.
    fn has_answered(&self) -> bool {
        !matches!(self.known, Known::Asked(Question { stale: None, .. }))
    }

    /// Bytes charged for packets that wait for this address.
    fn waiting_bytes(&self) -> usize {
        if let Known::Asked(question) = &self.known { question.bytes } else { 0 }
    }
}

/// A packet to be sent to the device.
pub struct Outgoing {
    /// The packet, from its IP header on.
    pub packet: Packet,
    /// Larger packets are sent in fragments of at most this size.
    pub mtu: u16,
}

impl Outgoing {
    fn waiting_bytes(&self) -> usize {
        self.packet.len() + WAITING_OVERHEAD
    }
}

/// Result of resolving a neighbour's address.
pub enum Resolution {
    /// The address is known: send the packet.
    Known {
        /// Link-layer address of the neighbour.
        mac: MacAddr,
        /// The packet.
        packet: Outgoing,
        /// A request must be sent, as the address may have changed.
        ask: bool,
    },
    /// The packet waits for the address.
    Waiting {
        /// A request must be sent.
        ask: bool,
        /// Number of older packets dropped to make room.
        dropped: usize,
    },
}

/// Location of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Link-layer address.
    pub mac: MacAddr,
    /// Switch port at which its message was received, if any.
    pub port: Option<u16>,
}

/// How a neighbour announced its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// By a request for a local address, which will be answered.
    Request,
    /// By a reply or an advertisement with the override flag.
    Override,
    /// By an advertisement without the override flag, which does not replace another address, such
    /// as those of proxies and anycast addresses (RFC 4861 §7.2.5).
    Tentative,
}

/// The neighbour cache.
#[derive(Default)]
pub struct Neighbors {
    entries: Vec<Entry>,
    /// Index of the last entry that was looked up.
    latest: usize,
    /// Routers, whose entries are not evicted because of received messages.
    next_hops: Vec<IpAddr>,
}

impl Neighbors {
    /// An empty cache of a host with these routers.
    pub fn new(next_hops: &[IpAddr]) -> Self {
        Self { next_hops: next_hops.to_vec(), ..Self::default() }
    }

    /// Sets a permanent address.
    pub fn set(&mut self, address: IpAddr, mac: MacAddr) {
        self.entries.retain(|entry| entry.address != address);
        self.entries.push(Entry::new(address, Known::Permanent(mac), None));
    }

    /// Resolves the address for `packet`, or queues the packet until it is known.
    pub fn resolve(&mut self, address: IpAddr, packet: Outgoing, now: Instant) -> Resolution {
        let Some(index) = self.position(address) else {
            let lost = self.make_room_to_send();
            let mut question = Question::first(now, None);
            question.wait(packet, WAITING_BYTES_MAX);
            self.entries.push(Entry::new(address, Known::Asked(question), Some(now)));
            return Resolution::Waiting { ask: true, dropped: lost };
        };
        self.entries[index].used = Some(now);
        let (mac, ask) = match &mut self.entries[index].known {
            Known::Permanent(mac) => (*mac, false),
            Known::Until(mac, until) if now < *until => (*mac, false),
            Known::Until(mac, _) => {
                // The address is used while it is being confirmed, so traffic does not stop.
                let mac = *mac;
                self.entries[index].known = Known::Asked(Question::first(now, Some(mac)));
                (mac, true)
            }
            Known::Asked(Question { stale: Some(mac), .. }) => (*mac, false),
            Known::Asked(Question { stale: None, .. }) => {
                return Resolution::Waiting { ask: false, dropped: self.wait(index, packet) };
            }
        };
        Resolution::Known { mac, packet, ask }
    }

    /// Queues a packet for an address that was requested; returns how many were dropped for it.
    fn wait(&mut self, index: usize, packet: Outgoing) -> usize {
        let all: usize = self.entries.iter().map(Entry::waiting_bytes).sum();
        let Known::Asked(question) = &mut self.entries[index].known else {
            unreachable!("nobody waits for what is known");
        };
        let left = ALL_WAITING_BYTES_MAX.saturating_sub(all - question.bytes);
        question.wait(packet, left.min(WAITING_BYTES_MAX))
    }

    /// Index of the entry of `address`; tries the last one first.
    fn position(&mut self, address: IpAddr) -> Option<usize> {
        let is_it = |entry: &Entry| entry.address == address;
        if !self.entries.get(self.latest).is_some_and(is_it) {
            self.latest = self.entries.iter().position(is_it)?;
        }
        Some(self.latest)
    }

    /// Processes a neighbour's announcement of its address. Packets that waited for it are passed
    /// to `send`.
    pub fn learn(
        &mut self,
        address: IpAddr,
        station: Station,
        announcement: Announcement,
        now: Instant,
        mut send: impl FnMut(MacAddr, Outgoing),
    ) {
        let Station { mac, port } = station;
        if !mac.is_unicast() || mac == MacAddr::UNSPECIFIED {
            return;
        }
        let learnt = Known::Until(mac, now + LIFETIME);
        let Some(index) = self.entries.iter().position(|entry| entry.address == address) else {
            if announcement == Announcement::Request && self.make_room_to_learn(address) {
                self.entries.push(Entry { port, ..Entry::new(address, learnt, None) });
            }
            return;
        };
        let entry = &mut self.entries[index];
        let known = &mut entry.known;
        match known {
            Known::Permanent(_) => return,
            Known::Until(other, until)
                if announcement == Announcement::Tentative && *other != mac =>
            {
                // The address stays in use, but is requested again at once.
                *until = (*until).min(now);
                return;
            }
            Known::Asked(Question { stale: Some(other), .. })
                if announcement == Announcement::Tentative && *other != mac =>
            {
                return;
            }
            Known::Until(..) => {}
            Known::Asked(question) => {
                for packet in core::mem::take(&mut question.pending) {
                    send(mac, packet);
                }
            }
        }
        *known = learnt;
        entry.port = port;
    }

    /// When [`Neighbors::on_deadline`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.entries
            .iter()
            .filter_map(|entry| match &entry.known {
                Known::Asked(question) => Some(question.next),
                _ => None,
            })
            .min()
    }

    /// Sends further requests or gives up. `ask` sends a request; `lost` counts dropped packets.
    pub fn on_deadline(
        &mut self,
        now: Instant,
        mut ask: impl FnMut(IpAddr),
        mut lost: impl FnMut(Outgoing),
    ) {
        self.entries.retain_mut(|entry| {
            let Known::Asked(question) = &mut entry.known else { return true };
            if question.next > now {
                return true;
            }
            if question.count >= ASK_COUNT {
                for packet in question.pending.drain(..) {
                    lost(packet);
                }
                return false;
            }
            question.count += 1;
            question.next = now + ASK_INTERVAL;
            ask(entry.address);
            true
        });
    }

    /// Makes room for an entry learned from a request. False if that would evict a next hop for
    /// another neighbour, or an entry with waiting packets.
    fn make_room_to_learn(&mut self, address: IpAddr) -> bool {
        if self.entries.len() < ENTRIES_MAX {
            return true;
        }
        let Some((index, kept)) = self.least_wanted() else { return false };
        let is_taken = !kept || (self.is_next_hop(address) && self.waiting_at(index) == 0);
        if is_taken {
            self.entries.remove(index);
        }
        is_taken
    }

    /// Makes room for an entry that a packet to be sent needs; returns how many waiting packets of
    /// the evicted entry were dropped.
    fn make_room_to_send(&mut self) -> usize {
        if self.entries.len() < ENTRIES_MAX {
            return 0;
        }
        let Some((index, _)) = self.least_wanted() else { return 0 };
        let lost = self.waiting_at(index);
        self.entries.remove(index);
        lost
    }

    /// The learned entry to evict first, and whether it must not be evicted because of received
    /// messages.
    fn least_wanted(&self) -> Option<(usize, bool)> {
        let learnt = self.entries.iter().enumerate().filter(|(_, entry)| !entry.is_permanent());
        let crowded = self.crowded_port();
        let ranked = learnt.map(|(index, entry)| {
            let (is_wanted, is_modest) = (entry.used.is_some(), entry.port != crowded);
            let is_next_hop = self.is_next_hop(entry.address);
            ((is_next_hop, is_wanted, entry.has_answered(), is_modest), entry.used, index)
        });
        let ((is_next_hop, ..), _, index) = ranked.min()?;
        Some((index, is_next_hop || self.waiting_at(index) > 0))
    }

    /// Port with more than half of all entries, if there is one: the majority vote algorithm finds
    /// a candidate, which is then counted.
    fn crowded_port(&self) -> Option<u16> {
        let ports = || self.entries.iter().map(|entry| entry.port);
        let (left, _) = ports().fold((None, 0), |(left, count), port| match count {
            0 => (port, 1),
            count if port == left => (left, count + 1),
            count => (left, count - 1),
        });
        left.filter(|_| 2 * ports().filter(|&port| port == left).count() > self.entries.len())
    }

    fn is_next_hop(&self, address: IpAddr) -> bool {
        self.next_hops.contains(&address)
    }

    /// Number of packets that wait for an entry's address.
    fn waiting_at(&self, index: usize) -> usize {
        match &self.entries[index].known {
            Known::Asked(question) => question.pending.len(),
            _ => 0,
        }
    }
}
