//! Neighbours: their link-layer addresses and reachability (RFC 826, RFC 4861 §7), packets that
//! wait for an address, routers, and detection of duplicate addresses.
//!
//! # Theory of operation
//!
//! Both families use the states of RFC 4861: an entry is *incomplete* until its address is
//! resolved, then *reachable* while reachability is confirmed. Later it is *stale*, and when it is
//! used again, *delay* and *probe*: the known address is used meanwhile. A confirmation is a
//! solicited advertisement, an ARP reply to this stack alone, or progress of a connection
//! ([`Neighbors::confirm`]). An incomplete or probed neighbour that does not answer is removed, and
//! its waiting packets are returned ([`Due::Failed`]).
//!
//! Only addresses that were solicited, or that solicited us, make an entry: other announcements
//! update entries but create none. The driver can set permanent entries, which no message changes,
//! so that a malicious program cannot redirect the traffic of another.
//!
//! The owner passes messages to [`Neighbors::learn`] and packets to [`Neighbors::resolve`]. It runs
//! [`Neighbors::next_due`] at [`Neighbors::deadline`], and sends the solicitations that both
//! return. To send to a reachable neighbour costs a comparison with the last entry used, and one
//! with its time.
//!
//! Bounds: [`ENTRIES_MAX`] entries, [`RESOLVING_MAX`] of them unresolved. Packets of
//! [`WAITING_BYTES_MAX`] wait for one address, and of [`ALL_WAITING_BYTES_MAX`] for all; the oldest
//! for the same address are dropped for new ones, and one packet may always wait (RFC 4861 §7.2.2).
//! `cache.rs` states what is evicted.
//!
//! The times between solicitations, and for which a confirmation is valid, are those of RFC 4861.
//! Over IPv6 routers may change them ([`Neighbors::set_times`]).
//!
//! Modules: `waiting → entry → cache`, `routers`, and `detection`, which needs none of them.

mod cache;
mod detection;
mod entry;
mod routers;
mod waiting;

#[cfg(test)]
mod tests;

pub use detection::{Conflict, Detection, OnConflict, Reaction, Step};
pub use waiting::Outgoing;

use crate::random::Random;
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use alloc::collections::VecDeque;
use cache::Cache;
use core::net::IpAddr;
use entry::{Entry, State, Timeout};
use routers::Routers;

/// Maximum number of entries, as in Linux (`gc_thresh3`).
pub const ENTRIES_MAX: usize = 1024;
/// Maximum number of entries whose address is being resolved: packets to absent stations do not
/// evict neighbours, and one packet of 64 KiB for each takes 16 MiB.
pub const RESOLVING_MAX: usize = 256;
/// Maximum bytes of packets that wait for one address, each with [`WAITING_OVERHEAD`] (Linux's
/// `unres_qlen_bytes`). It allows a burst of datagrams to a new neighbour.
pub const WAITING_BYTES_MAX: usize = 212_992;
/// Maximum bytes of packets that wait for all addresses: about five full queues.
pub const ALL_WAITING_BYTES_MAX: usize = 1 << 20;
/// Bytes charged for a waiting packet in addition to its length: the size of an empty packet in
/// Linux.
pub const WAITING_OVERHEAD: usize = 768;
/// Solicitations to all before an address counts as unreachable (RFC 4861 MAX_MULTICAST_SOLICIT).
pub const MULTICAST_SOLICITS: u8 = 3;
/// Solicitations to a known link-layer address before it is given up (RFC 4861
/// MAX_UNICAST_SOLICIT).
pub const UNICAST_SOLICITS: u8 = 3;
/// Time between solicitations (RFC 4861 RETRANS_TIMER).
pub const RETRANSMIT_TIMER: Duration = Duration::from_secs(1);
/// Shortest time between solicitations that a router may set: a forged advertisement must not make
/// a host flood its link.
pub const RETRANSMIT_TIMER_MIN: Duration = Duration::from_millis(100);
/// Longest time between solicitations that a router may set: packets to an absent neighbour wait
/// for half a minute at most.
pub const RETRANSMIT_TIMER_MAX: Duration = Duration::from_secs(10);
/// Mean time for which a confirmation is valid (RFC 4861 REACHABLE_TIME).
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// Shortest mean time for which a confirmation is valid that a router may set: a neighbour in use
/// is probed every five seconds at most, see [`DELAY_FIRST_PROBE_TIME`].
pub const REACHABLE_TIME_MIN: Duration = Duration::from_secs(1);
/// Longest mean time for which a confirmation is valid that a router may set (RFC 4861 §6.2.1,
/// AdvReachableTime).
pub const REACHABLE_TIME_MAX: Duration = Duration::from_secs(3600);
/// Time for which a stale neighbour is used before it is probed (RFC 4861
/// DELAY_FIRST_PROBE_TIME).
pub const DELAY_FIRST_PROBE_TIME: Duration = Duration::from_secs(5);
/// An entry to which nothing was sent for this time may be evicted for another (Linux's
/// `gc_stale_time`).
pub const IDLE_TIME: Duration = Duration::from_secs(60);
/// Pause between searches for an idle entry of which the first found none.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Time between solicitations of a router that failed while another is used (RFC 4191 §3.5).
pub const ROUTER_PROBE_INTERVAL: Duration = Duration::from_secs(60);

/// Result of resolving a neighbour's address.
pub enum Resolution {
    /// The address is known: send the packet.
    Known {
        /// Link-layer address of the neighbour.
        mac: MacAddr,
        /// The packet.
        packet: Outgoing,
    },
    /// The packet waits for the address.
    Waiting {
        /// A solicitation must be sent to all.
        solicit: bool,
        /// Number of packets dropped because too many wait.
        dropped: usize,
        /// Number of packets dropped because an entry was evicted, or none could be.
        evicted: usize,
    },
}

/// What must be done because a timer is over.
pub enum Due {
    /// Send a solicitation for `address`: to this station, or to all if `None`.
    Solicit {
        /// Address to resolve or to probe.
        address: IpAddr,
        /// Link-layer address to which a probe is sent.
        mac: Option<MacAddr>,
    },
    /// The neighbour does not answer.
    Failed {
        /// Address of the neighbour.
        address: IpAddr,
        /// Packets that waited for it.
        waiting: VecDeque<Outgoing>,
    },
}

/// Location of a neighbour, as its message states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Link-layer address, if the message has one.
    pub mac: Option<MacAddr>,
    /// Switch port at which the message was received, if any.
    pub port: Option<u16>,
}

/// How a neighbour announced its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// By a solicitation or an ARP request for a local address.
    Solicitation,
    /// By an advertisement, an ARP reply or an ARP announcement.
    Advertisement(Advertisement),
}

/// The flags of an advertisement (RFC 4861 §4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// It answers a solicitation of this stack.
    pub solicited: bool,
    /// It replaces a different link-layer address.
    pub overrides: bool,
    /// The sender is a router, or is none; `None` in ARP.
    pub router: Option<bool>,
}

/// The neighbours of a stack.
pub struct Neighbors {
    cache: Cache,
    routers: Routers,
    random: Random,
    times_v4: Times,
    times_v6: Times,
}

/// Times of a link, for one family.
struct Times {
    /// Mean time for which a confirmation is valid (BaseReachableTime of RFC 4861 §6.3.2).
    base_reachable: Duration,
    /// Time for which the next confirmation is valid.
    reachable: Duration,
    /// Time between solicitations.
    retransmit: Duration,
}

impl Times {
    fn new(random: &mut Random) -> Self {
        let mut times = Self {
            base_reachable: REACHABLE_TIME,
            reachable: REACHABLE_TIME,
            retransmit: RETRANSMIT_TIMER,
        };
        times.draw_reachable(random);
        times
    }

    /// Draws a time between half and one and a half of the mean (RFC 4861 §6.3.2), so that
    /// neighbours are not all probed at once.
    fn draw_reachable(&mut self, random: &mut Random) {
        let mean = self.base_reachable.as_millis() as u32;
        self.reachable = Duration::from_millis(u64::from(mean / 2 + random.below(mean)));
    }
}

impl Neighbors {
    /// No entries, of a host with these next hops. `key` must be unpredictable.
    pub fn new(next_hops: &[IpAddr], key: [u64; 2]) -> Self {
        let mut random = Random::new(key);
        let (times_v4, times_v6) = (Times::new(&mut random), Times::new(&mut random));
        let seed = [random.below(u32::MAX), random.below(u32::MAX)].map(u64::from);
        let (cache, routers) = (Cache::new(seed[0] << 32 | seed[1]), Routers::new(next_hops));
        Self { cache, routers, random, times_v4, times_v6 }
    }

    /// Sets the times of the link over IPv6, in milliseconds, as a router advertises them (RFC 4861
    /// §6.3.4). Zero leaves a time as it is; values out of bounds count as the bound.
    pub fn set_times(&mut self, reachable_ms: u32, retransmit_ms: u32) {
        let within = |ms: u32, least, most| Duration::from_millis(ms.into()).clamp(least, most);
        let times = &mut self.times_v6;
        if retransmit_ms > 0 {
            times.retransmit = within(retransmit_ms, RETRANSMIT_TIMER_MIN, RETRANSMIT_TIMER_MAX);
        }
        let base = within(reachable_ms, REACHABLE_TIME_MIN, REACHABLE_TIME_MAX);
        if reachable_ms > 0 && base != times.base_reachable {
            times.base_reachable = base;
            times.draw_reachable(&mut self.random);
        }
    }

    fn times(&self, address: IpAddr) -> &Times {
        if address.is_ipv4() { &self.times_v4 } else { &self.times_v6 }
    }

    /// Sets a permanent address; returns how many packets that waited for it were dropped.
    pub fn set(&mut self, address: IpAddr, mac: MacAddr) -> usize {
        let old = self.cache.find(address).map(|position| self.cache.remove(position));
        self.insert(Entry::permanent(address, mac), None);
        old.map_or(0, |entry| entry.waiting.len())
    }

    /// Resolves the address for `packet`, or queues the packet until it is known.
    pub fn resolve(&mut self, address: IpAddr, packet: Outgoing, now: Instant) -> Resolution {
        let Some(position) = self.cache.position(address) else {
            return self.begin(address, Some(packet), now);
        };
        let entry = self.cache.at_mut(position);
        entry.used = Some(now);
        let mac = entry.mac;
        match entry.state {
            State::Reachable { until } if now < until => {}
            State::Permanent => {}
            State::Incomplete { .. } => {
                let dropped = self.cache.wait(position, packet);
                return Resolution::Waiting { solicit: false, dropped, evicted: 0 };
            }
            _ => self.cache.change(position, |entry| entry.on_use(now)),
        }
        Resolution::Known { mac, packet }
    }

    /// Begins to resolve an address that has no entry.
    fn begin(&mut self, address: IpAddr, packet: Option<Outgoing>, now: Instant) -> Resolution {
        let Some(evicted) = self.cache.make_room_to_send(now) else {
            let evicted = usize::from(packet.is_some());
            return Resolution::Waiting { solicit: false, dropped: 0, evicted };
        };
        let mut entry = Entry::incomplete(address, self.times(address).retransmit, now);
        entry.used = Some(now);
        let position = self.insert(entry, None);
        let dropped = packet.map_or(0, |packet| self.cache.wait(position, packet));
        Resolution::Waiting { solicit: true, dropped, evicted }
    }

    fn insert(&mut self, mut entry: Entry, port: Option<u16>) -> usize {
        (entry.port, entry.is_next_hop) = (port, self.routers.contains(entry.address));
        self.cache.insert(entry)
    }

    /// Processes a neighbour's announcement of its address; returns the packets that waited for it,
    /// to be sent to the station.
    #[must_use]
    pub fn learn(
        &mut self,
        address: IpAddr,
        Station { mac, port }: Station,
        announcement: Announcement,
        now: Instant,
    ) -> VecDeque<Outgoing> {
        let Some(position) = self.cache.find(address) else {
            if let (Announcement::Solicitation, Some(mac)) = (announcement, mac)
                && self.cache.make_room_to_learn(now)
            {
                self.insert(Entry::stale(address, mac), port);
            }
            return VecDeque::new();
        };
        if self.cache.at(position).state == State::Permanent {
            return VecDeque::new();
        }
        let is_believed = match announcement {
            Announcement::Solicitation => self
                .cache
                .change(position, |entry| mac.map(|mac| entry.on_solicitation(mac)).is_some()),
            Announcement::Advertisement(message) => {
                if message.solicited {
                    let v4 = address.is_ipv4();
                    let times = if v4 { &mut self.times_v4 } else { &mut self.times_v6 };
                    times.draw_reachable(&mut self.random);
                }
                let until = now + self.times(address).reachable;
                self.cache.change(position, |entry| entry.on_advertisement(mac, &message, until))
            }
        };
        if !is_believed {
            return VecDeque::new();
        }
        if let Announcement::Advertisement(Advertisement { router: Some(is_router), .. }) =
            announcement
        {
            self.routers.announce(address, is_router);
        }
        self.routers.set_failed(address, None);
        self.cache.change(position, |entry| {
            entry.port = port;
            entry.waiting.take()
        })
    }

    /// Notes that a connection over this neighbour makes progress: what was sent has arrived.
    pub fn confirm(&mut self, address: IpAddr, now: Instant) {
        let until = now + self.times(address).reachable;
        let Some(position) = self.cache.position(address) else { return };
        if let State::Reachable { until: old } = &mut self.cache.at_mut(position).state {
            *old = until;
        } else if self.cache.at(position).state != State::Permanent {
            self.cache.change(position, |entry| entry.on_progress(until));
        }
    }

    /// The next hop for destinations of a family that are off the link.
    #[inline]
    pub fn router(&self, v4: bool) -> Option<IpAddr> {
        self.routers.choose(v4)
    }

    /// A router other than the `chosen` one that failed and may be back: a solicitation must be
    /// sent to all.
    #[inline]
    pub fn probe_router(&mut self, chosen: IpAddr, now: Instant) -> Option<IpAddr> {
        let address = self.routers.next_probe(chosen, now)?;
        let is_new = self.cache.find(address).is_none();
        let begins = is_new.then(|| self.begin(address, None, now))?;
        matches!(begins, Resolution::Waiting { solicit: true, .. }).then_some(address)
    }

    /// A router that may replace one that failed.
    pub fn alternative(&self, failed: IpAddr) -> Option<IpAddr> {
        self.routers.contains(failed).then(|| self.routers.alternative(failed))?
    }

    /// Notes what a router advertisement says about its sender (RFC 4861 §6.3.4).
    pub fn announce_router(&mut self, address: IpAddr, is_router: bool) {
        self.routers.announce(address, is_router);
    }

    /// When [`Neighbors::next_due`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.cache.deadline()
    }

    /// What the next timer that is over requires.
    pub fn next_due(&mut self, now: Instant) -> Option<Due> {
        let position = self.cache.due(now)?;
        let address = self.cache.at(position).address;
        let pause = self.times(address).retransmit;
        match self.cache.change(position, |entry| entry.on_timer(pause, now)) {
            Timeout::Solicit(mac) => Some(Due::Solicit { address, mac }),
            Timeout::Failed => {
                self.routers.set_failed(address, Some(now));
                let waiting = self.cache.remove(position).waiting.take();
                Some(Due::Failed { address, waiting })
            }
        }
    }

    /// Number of entries, permanent ones included.
    pub fn count(&self) -> usize {
        self.cache.len()
    }
}
