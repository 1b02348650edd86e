//! Link-layer addresses of neighbours (RFC 826, RFC 4861 §7), and packets waiting for them.
//!
//! Entries are learnt from ARP and neighbour discovery, or set for good by the driver; what was
//! set for good is never overwritten, so that a program that lies cannot redirect traffic of
//! another. Only addresses we asked for, or that asked us, make an entry: unsolicited
//! announcements update but never create.
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
    Asked { count: u8, next: Instant, pending: VecDeque<Packet> },
}

struct Entry {
    address: IpAddr,
    known: Known,
}

/// What to do with a packet for a neighbour.
pub enum Resolution {
    /// Send it there.
    Known(MacAddr, Packet),
    /// It waits; ask for the address if `ask`. `dropped` packets made room.
    Waiting {
        /// A question is due.
        ask: bool,
        /// An older packet was dropped.
        dropped: bool,
    },
}

/// The table.
#[derive(Default)]
pub struct Neighbors {
    entries: Vec<Entry>,
}

impl Neighbors {
    /// Sets an address for good.
    pub fn set(&mut self, address: IpAddr, mac: MacAddr) {
        self.entries.retain(|entry| entry.address != address);
        self.entries.push(Entry { address, known: Known::Permanent(mac) });
    }

    /// The link-layer address for `packet`, or a place to wait for it.
    pub fn resolve(&mut self, address: IpAddr, packet: Packet, now: Instant) -> Resolution {
        let Some(index) = self.entries.iter().position(|entry| entry.address == address) else {
            self.make_room();
            let pending = VecDeque::from([packet]);
            let known = Known::Asked { count: 1, next: now + ASK_INTERVAL, pending };
            self.entries.push(Entry { address, known });
            return Resolution::Waiting { ask: true, dropped: false };
        };
        match &mut self.entries[index].known {
            Known::Permanent(mac) => Resolution::Known(*mac, packet),
            Known::Until(mac, until) => {
                let mac = *mac;
                if *until <= now {
                    // Used once more while it is asked for again.
                    let pending = VecDeque::new();
                    self.entries[index].known =
                        Known::Asked { count: 1, next: now + ASK_INTERVAL, pending };
                    return self.resolve(address, packet, now);
                }
                Resolution::Known(mac, packet)
            }
            Known::Asked { pending, .. } => {
                let dropped = pending.len() >= PENDING_PER_NEIGHBOR;
                if dropped {
                    pending.pop_front();
                }
                let ask = pending.is_empty();
                pending.push_back(packet);
                Resolution::Waiting { ask, dropped }
            }
        }
    }

    /// A neighbour told its address. `create`: it asked for us, so we shall answer it. Packets
    /// that waited for it are handed to `send`.
    pub fn learn(
        &mut self,
        address: IpAddr,
        mac: MacAddr,
        create: bool,
        now: Instant,
        mut send: impl FnMut(MacAddr, Packet),
    ) {
        if !mac.is_unicast() || mac == MacAddr::UNSPECIFIED {
            return;
        }
        let learnt = Known::Until(mac, now + LIFETIME);
        match self.entries.iter_mut().find(|entry| entry.address == address) {
            Some(entry) => match &mut entry.known {
                Known::Permanent(_) => {}
                Known::Until(..) => entry.known = learnt,
                Known::Asked { pending, .. } => {
                    for packet in core::mem::take(pending) {
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
                Known::Asked { next, .. } => Some(*next),
                _ => None,
            })
            .min()
    }

    /// Asks again, or gives up. `ask` sends a question; `lost` counts packets given up.
    pub fn on_deadline(
        &mut self,
        now: Instant,
        mut ask: impl FnMut(IpAddr),
        mut lost: impl FnMut(Packet),
    ) {
        self.entries.retain_mut(|entry| {
            let Known::Asked { count, next, pending } = &mut entry.known else { return true };
            if *next > now {
                return true;
            }
            if *count >= ASK_COUNT {
                for packet in pending.drain(..) {
                    lost(packet);
                }
                return false;
            }
            *count += 1;
            *next = now + ASK_INTERVAL;
            ask(entry.address);
            true
        });
    }

    fn make_room(&mut self) {
        if self.entries.len() < ENTRIES_MAX {
            return;
        }
        let learnt = |entry: &Entry| !matches!(entry.known, Known::Permanent(_));
        if let Some(oldest) = self.entries.iter().position(learnt) {
            self.entries.remove(oldest);
        }
    }
}
