//! Link-layer addresses of neighbours (RFC 826, RFC 4861 §7), and packets waiting for them.
//!
//! Entries are learnt from ARP and neighbour discovery, or set for good by the driver; what was
//! set for good is never overwritten, so that a program that lies cannot redirect traffic of
//! another. Only addresses we asked for, or that asked us, make an entry: unsolicited
//! announcements update but never create. An address known for longer than [`LIFETIME`] is asked
//! for again when it is used, and used meanwhile.
//!
//! Bounds: [`ENTRIES_MAX`] entries, the oldest learnt one makes room; [`PENDING_PER_NEIGHBOR`]
//! packets wait for one address, the oldest is dropped; [`ASK_COUNT`] questions a second apart.

use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use towpath_packet::Packet;

/// Most entries.
pub const ENTRIES_MAX: usize = 256;
/// Most packets waiting for one address (RFC 4861 §7.2.2 asks for at least one).
pub const PENDING_PER_NEIGHBOR: usize = 4;
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
}

impl Question {
    fn first(now: Instant, stale: Option<MacAddr>) -> Self {
        Self { count: 1, next: now + ASK_INTERVAL, stale, pending: VecDeque::new() }
    }
}

struct Entry {
    address: IpAddr,
    known: Known,
}

/// A packet on its way to the device.
pub struct Outgoing {
    /// The packet, from its IP header on.
    pub packet: Packet,
    /// What is larger goes out in fragments of so many bytes at most.
    pub mtu: u16,
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

/// The table.
#[derive(Default)]
pub struct Neighbors {
    entries: Vec<Entry>,
    /// Where the last one looked for was.
    latest: usize,
}

impl Neighbors {
    /// Sets an address for good.
    pub fn set(&mut self, address: IpAddr, mac: MacAddr) {
        self.entries.retain(|entry| entry.address != address);
        self.entries.push(Entry { address, known: Known::Permanent(mac) });
    }

    /// The link-layer address for `packet`, or a place to wait for it.
    pub fn resolve(&mut self, address: IpAddr, packet: Outgoing, now: Instant) -> Resolution {
        let Some(index) = self.position(address) else {
            let lost = self.make_room();
            let mut question = Question::first(now, None);
            question.pending.push_back(packet);
            self.entries.push(Entry { address, known: Known::Asked(question) });
            return Resolution::Waiting { ask: true, dropped: lost };
        };
        let known = &mut self.entries[index].known;
        let (mac, ask) = match known {
            Known::Permanent(mac) => (*mac, false),
            Known::Until(mac, until) if now < *until => (*mac, false),
            Known::Until(mac, _) => {
                // Used while it is asked for again: traffic does not stop for it.
                let mac = *mac;
                *known = Known::Asked(Question::first(now, Some(mac)));
                (mac, true)
            }
            Known::Asked(Question { stale: Some(mac), .. }) => (*mac, false),
            Known::Asked(question) => {
                let dropped = question.pending.len() >= PENDING_PER_NEIGHBOR;
                if dropped {
                    question.pending.pop_front();
                }
                question.pending.push_back(packet);
                return Resolution::Waiting { ask: false, dropped: usize::from(dropped) };
            }
        };
        Resolution::Known { mac, packet, ask }
    }

    /// Where `address` is; first looks where the last one was.
    fn position(&mut self, address: IpAddr) -> Option<usize> {
        let is_it = |entry: &Entry| entry.address == address;
        if !self.entries.get(self.latest).is_some_and(is_it) {
            self.latest = self.entries.iter().position(is_it)?;
        }
        Some(self.latest)
    }

    /// A neighbour told its address. `create`: it asked for us, so we shall answer it. Packets
    /// that waited for it are handed to `send`.
    pub fn learn(
        &mut self,
        address: IpAddr,
        mac: MacAddr,
        create: bool,
        now: Instant,
        mut send: impl FnMut(MacAddr, Outgoing),
    ) {
        if !mac.is_unicast() || mac == MacAddr::UNSPECIFIED {
            return;
        }
        let learnt = Known::Until(mac, now + LIFETIME);
        match self.entries.iter_mut().find(|entry| entry.address == address) {
            Some(entry) => match &mut entry.known {
                Known::Permanent(_) => {}
                Known::Until(..) => entry.known = learnt,
                Known::Asked(question) => {
                    for packet in core::mem::take(&mut question.pending) {
                        send(mac, packet);
                    }
                    entry.known = learnt;
                }
            },
            None if create => {
                self.make_room();
                self.entries.push(Entry { address, known: learnt });
            }
            None => {}
        }
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

    /// Parts with the oldest learnt entry if there are too many; returns how many packets waited
    /// for it.
    fn make_room(&mut self) -> usize {
        if self.entries.len() < ENTRIES_MAX {
            return 0;
        }
        let learnt = |entry: &Entry| !matches!(entry.known, Known::Permanent(_));
        let Some(oldest) = self.entries.iter().position(learnt) else { return 0 };
        match self.entries.remove(oldest).known {
            Known::Asked(question) => question.pending.len(),
            _ => 0,
        }
    }
}
