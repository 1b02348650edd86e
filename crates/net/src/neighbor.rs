//! Link-layer addresses of neighbours (RFC 826, RFC 4861 §7), and packets waiting for them.
//!
//! Entries are learnt from ARP and neighbour discovery, or set for good by the driver; what was
//! set for good is never overwritten, so that a program that lies cannot redirect traffic of
//! another. Only addresses we asked for, or that asked us, make an entry: unsolicited
//! announcements update but never create. An address known for longer than [`LIFETIME`] is asked
//! for again when it is used, and used meanwhile.
//!
//! Bounds: [`ENTRIES_MAX`] entries; packets of
//! [`WAITING_BYTES_MAX`] wait for one address and of [`ALL_WAITING_BYTES_MAX`] for all, the oldest
//! for the same address make room, and one packet always waits (RFC 4861 §7.2.2); [`ASK_COUNT`]
//! questions a second apart.
//!
//! A full table parts with a learnt entry that nothing was sent to, the oldest first; else with one
//! that has not answered, else with one behind the port of a switch that has more than half of all,
//! else with any other, of each kind the one that was used longest ago. So packets for addresses
//! that nobody has do not displace neighbours that answer, nor does a guest that answers for
//! hundreds of addresses displace other guests. What strangers
//! say is no reason to part with a next hop, or with an entry that packets wait for: a flood of
//! their questions is answered, but not learnt. What we send ourselves parts with these too: what
//! waited is handed back to be counted.

use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use towpath_packet::Packet;

/// Most entries.
pub const ENTRIES_MAX: usize = 256;
/// Most bytes of packets that wait for one address, each with [`WAITING_OVERHEAD`]: Linux's
/// unres_qlen_bytes. A burst of datagrams to somebody new gets through.
pub const WAITING_BYTES_MAX: usize = 212_992;
/// The same for all addresses together: what five are sent in bursts.
pub const ALL_WAITING_BYTES_MAX: usize = 1 << 20;
/// What a packet counts beside its bytes: what Linux takes for one with next to nothing in it.
pub const WAITING_OVERHEAD: usize = 768;
/// Questions before an address counts as unreachable (RFC 4861 MAX_MULTICAST_SOLICIT).
pub const ASK_COUNT: u8 = 3;
/// Time between questions (RFC 4861 RETRANS_TIMER).
pub const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a learnt address is used without being asked for again.
pub const LIFETIME: Duration = Duration::from_secs(60);

enum Known {
    Permanent(MacAddr),
    Until(MacAddr, Instant),
    /// Not known, or known too long ago; asked for.
    Asked(Question),
}

struct Question {
    count: u8,
    next: Instant,
    /// The address that is used until the answer comes.
    stale: Option<MacAddr>,
    pending: VecDeque<Outgoing>,
    /// What they count.
    bytes: usize,
}

impl Question {
    fn first(now: Instant, stale: Option<MacAddr>) -> Self {
        Self { count: 1, next: now + ASK_INTERVAL, stale, pending: VecDeque::new(), bytes: 0 }
    }

    /// Lets a packet wait with others of `most` bytes, if there are others; returns how many made
    /// room for it.
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
    /// The port of a switch by which its address was told.
    port: Option<u16>,
    /// When a packet was last sent there, or wanted to be.
    used: Option<Instant>,
}

impl Entry {
    fn new(address: IpAddr, known: Known, used: Option<Instant>) -> Self {
        Self { address, known, port: None, used }
    }

    fn is_permanent(&self) -> bool {
        matches!(self.known, Known::Permanent(_))
    }

    /// True if a link-layer address has been told.
    fn has_answered(&self) -> bool {
        !matches!(self.known, Known::Asked(Question { stale: None, .. }))
    }

    /// What packets that wait for this address count.
    fn waiting_bytes(&self) -> usize {
        if let Known::Asked(question) = &self.known { question.bytes } else { 0 }
    }
}

/// A packet on its way to the device.
pub struct Outgoing {
    /// The packet, from its IP header on.
    pub packet: Packet,
    /// What is larger goes out in fragments of so many bytes at most.
    pub mtu: u16,
}

impl Outgoing {
    fn waiting_bytes(&self) -> usize {
        self.packet.len() + WAITING_OVERHEAD
    }
}

/// What to do with a packet for a neighbour.
pub enum Resolution {
    /// Send it there; ask for the address too if `ask`: it may have changed.
    Known {
        /// The neighbour's address.
        mac: MacAddr,
        /// The packet.
        packet: Outgoing,
        /// A question is due.
        ask: bool,
    },
    /// It waits for the address.
    Waiting {
        /// A question is due.
        ask: bool,
        /// Older packets dropped to make room.
        dropped: usize,
    },
}

/// Where a neighbour is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Its link-layer address.
    pub mac: MacAddr,
    /// The port of a switch by which it spoke, if it came by one.
    pub port: Option<u16>,
}

/// How a neighbour's address became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It asked for us, so we shall answer it.
    ByAsking,
    /// It said so.
    ByItself,
    /// It said so without a claim that what is known otherwise is wrong: an advertisement with
    /// the override flag clear, as those of proxies and anycast addresses (RFC 4861 §7.2.5).
    Perhaps,
}

/// The table.
#[derive(Default)]
pub struct Neighbors {
    entries: Vec<Entry>,
    /// Where the last one looked for was.
    latest: usize,
    /// Routers, which are not parted with for the sake of others.
    next_hops: Vec<IpAddr>,
}

impl Neighbors {
    /// An empty table of a host with these routers.
    pub fn new(next_hops: &[IpAddr]) -> Self {
        Self { next_hops: next_hops.to_vec(), ..Self::default() }
    }

    /// Sets an address for good.
    pub fn set(&mut self, address: IpAddr, mac: MacAddr) {
        self.entries.retain(|entry| entry.address != address);
        self.entries.push(Entry::new(address, Known::Permanent(mac), None));
    }

    /// The link-layer address for `packet`, or a place to wait for it.
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
                // Used while it is asked for again: traffic does not stop for it.
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

    /// Lets a packet wait for an address that was asked for; returns how many made room for it.
    fn wait(&mut self, index: usize, packet: Outgoing) -> usize {
        let all: usize = self.entries.iter().map(Entry::waiting_bytes).sum();
        let Known::Asked(question) = &mut self.entries[index].known else {
            unreachable!("nobody waits for what is known");
        };
        let left = ALL_WAITING_BYTES_MAX.saturating_sub(all - question.bytes);
        question.wait(packet, left.min(WAITING_BYTES_MAX))
    }

    /// Where `address` is; first looks where the last one was.
    fn position(&mut self, address: IpAddr) -> Option<usize> {
        let is_it = |entry: &Entry| entry.address == address;
        if !self.entries.get(self.latest).is_some_and(is_it) {
            self.latest = self.entries.iter().position(is_it)?;
        }
        Some(self.latest)
    }

    /// A neighbour told its address. Packets that waited for it are handed to `send`.
    pub fn learn(
        &mut self,
        address: IpAddr,
        station: Station,
        told: Told,
        now: Instant,
        mut send: impl FnMut(MacAddr, Outgoing),
    ) {
        let Station { mac, port } = station;
        if !mac.is_unicast() || mac == MacAddr::UNSPECIFIED {
            return;
        }
        let learnt = Known::Until(mac, now + LIFETIME);
        let Some(index) = self.entries.iter().position(|entry| entry.address == address) else {
            if told == Told::ByAsking && self.make_room_to_learn(address) {
                self.entries.push(Entry { port, ..Entry::new(address, learnt, None) });
            }
            return;
        };
        let entry = &mut self.entries[index];
        let known = &mut entry.known;
        match known {
            Known::Permanent(_) => return,
            Known::Until(other, until) if told == Told::Perhaps && *other != mac => {
                // It stays in use, but is asked for again at once.
                *until = (*until).min(now);
                return;
            }
            Known::Asked(Question { stale: Some(other), .. })
                if told == Told::Perhaps && *other != mac =>
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

    /// When [`Neighbors::on_deadline`] wants to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.entries
            .iter()
            .filter_map(|entry| match &entry.known {
                Known::Asked(question) => Some(question.next),
                _ => None,
            })
            .min()
    }

    /// Asks again, or gives up. `ask` sends a question; `lost` counts packets given up.
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

    /// Room for an entry that a neighbour's own question makes. False if that would cost a next
    /// hop, unless the new one is, or an entry that packets wait for.
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

    /// Room for an entry that a packet of ours needs; returns how many packets waited for the one
    /// that is gone.
    fn make_room_to_send(&mut self) -> usize {
        if self.entries.len() < ENTRIES_MAX {
            return 0;
        }
        let Some((index, _)) = self.least_wanted() else { return 0 };
        let lost = self.waiting_at(index);
        self.entries.remove(index);
        lost
    }

    /// The learnt entry that is missed least, and whether it is to be kept from strangers.
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

    /// The port behind which more than half of all are, if there is one: what is left over when
    /// each of another port takes one of it away, and then counted.
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

    /// Packets that wait for an entry's address.
    fn waiting_at(&self, index: usize) -> usize {
        match &self.entries[index].known {
            Known::Asked(question) => question.pending.len(),
            _ => 0,
        }
    }
}
