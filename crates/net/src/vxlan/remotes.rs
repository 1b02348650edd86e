//! The remotes of a VXLAN network: which tunnel end point a station is behind, and where frames for
//! several stations or an unknown one go.
//!
//! # Theory of operation
//!
//! A *remote* is the address of a tunnel end point (VTEP). Two kinds of facts name it: it is in the
//! flood list, or a station is behind it. Each fact has an [`Origin`]: the user's configuration, a
//! control plane, or a received frame. A fact of a higher origin replaces one of a lower origin and
//! is never replaced by one, so what a frame claims never overrides what was configured.
//!
//! A remote is *known* while it is in the flood list or a station was configured or pushed behind
//! it. Only known remotes may send: so a stranger who can send datagrams cannot inject a frame
//! without forging the address of a known remote. When a remote is no longer known, what was
//! learned from it is forgotten.
//!
//! A frame for several stations, or for a station that is not in the table, is sent once to each
//! remote of the flood list (ingress replication, RFC 8365 §5.1.3 and RFC 7348 §4.2 without
//! multicast).
//!
//! IP addresses of stations are kept beside, to answer ARP and neighbour solicitations here.
//!
//! # Budget
//!
//! For a packet to a known station: one search of a table with 16 bytes for each station, usually
//! one cache line, and one more for the remote. For a received packet: the remote by its address,
//! which the caller remembers for the packets of one datagram; the station, one search; no store
//! but one in 1/64 of the ageing time. Nothing allocates but changes by configuration and control
//! plane.
//!
//! # Limits
//!
//! [`REMOTES_MAX`], [`STATIONS_MAX`], of which frames teach at most [`LEARNED_MAX`], and
//! [`ADDRESSES_MAX`]. What is beyond is refused, and a station that is not learned is reached by
//! flooding. One thread.

mod change;

use alloc::vec::Vec;
use core::net::IpAddr;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use towpath_packet::table::Table;

use crate::time::{Duration, Instant};
use crate::wire::MacAddr;

pub use change::{Change, ChangeError, Origin};

/// Names a known remote, until the next [`Remotes::apply`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteId(u16);

/// A frame claims a station that the configuration has behind another remote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Locked;

/// A remote, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address of the tunnel end point.
    pub address: IpAddr,
    /// It is in the flood list, by this origin.
    pub flood: Option<Origin>,
    /// Stations behind it, those that are not yet removed though they have aged included.
    pub stations: u32,
}

/// A station behind a remote, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Station {
    /// Link-layer address.
    pub mac: MacAddr,
    /// The tunnel end point.
    pub remote: IpAddr,
    /// Where this comes from.
    pub origin: Origin,
}

/// What happened to entries. Plain numbers since the table was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Stations learned.
    pub learned: u64,
    /// Learned stations that moved to another remote.
    pub moved: u64,
    /// Stations not learned because of [`LEARNED_MAX`] or [`STATIONS_MAX`].
    pub refused: u64,
}

/// The remotes of one network; see the module documentation.
pub struct Remotes {
    remotes: Vec<Option<Slot>>,
    by_address: HashMap<IpAddr, u16, FixedState>,
    /// Addresses of the flood list, in no order.
    flood: Vec<IpAddr>,
    /// A packed [`Entry`] for each station.
    stations: Table<FixedState>,
    addresses: HashMap<IpAddr, (MacAddr, Origin), FixedState>,
    station_count: usize,
    learned_count: usize,
    is_learning: bool,
    age_ms: u64,
    /// Earliest time at which a learned station may expire.
    expires_ms: Option<u64>,
    counters: Counters,
}

struct Slot {
    address: IpAddr,
    flood: Option<Origin>,
    /// Stations that are static or pushed.
    pinned: u32,
    learned: u32,
}

impl Slot {
    fn is_known(&self) -> bool {
        self.flood.is_some() || self.pinned > 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    remote: u16,
    origin: Origin,
    /// Time of the last frame, in milliseconds.
    seen_ms: u64,
}

impl Entry {
    fn unpack(value: u64) -> Self {
        let origin = match value >> ORIGIN_SHIFT & 3 {
            0 => Origin::Learned,
            1 => Origin::Pushed,
            _ => Origin::Static,
        };
        Self { remote: value as u16, origin, seen_ms: value >> SEEN_SHIFT }
    }

    fn pack(self) -> u64 {
        self.seen_ms << SEEN_SHIFT | (self.origin as u64) << ORIGIN_SHIFT | u64::from(self.remote)
    }

    fn is_current(&self, now_ms: u64, age_ms: u64) -> bool {
        self.origin != Origin::Learned || now_ms.saturating_sub(self.seen_ms) < age_ms
    }
}

impl Remotes {
    /// A table without remotes. Frames teach stations if `is_learning`; `age` is how long such a
    /// station is kept after its last frame. `seed` must be unpredictable.
    pub fn new(is_learning: bool, age: Duration, seed: u64) -> Self {
        Self {
            remotes: Vec::new(),
            by_address: HashMap::with_hasher(FixedState::with_seed(seed)),
            flood: Vec::new(),
            stations: Table::new(STATIONS_MAX, FixedState::with_seed(seed)),
            addresses: HashMap::with_hasher(FixedState::with_seed(seed)),
            station_count: 0,
            learned_count: 0,
            is_learning,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            expires_ms: None,
            counters: Counters::default(),
        }
    }

    /// Makes a change for `origin`, which is not [`Origin::Learned`]. What is there already is left
    /// as it is, with the higher origin of the two.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing was changed.
    pub fn apply(&mut self, change: Change, origin: Origin) -> Result<(), ChangeError> {
        match change {
            Change::AddFlood(address) => self.add_flood(address, origin),
            Change::DelFlood(address) => self.del_flood(address, origin),
            Change::AddStation { mac, remote } => self.add_station(mac, remote, origin),
            Change::DelStation(mac) => self.del_station(mac, origin),
            Change::AddAddress { address, mac } => self.add_address(address, mac, origin),
            Change::DelAddress(address) => match self.addresses.get(&address) {
                Some((_, of)) if *of > origin => Err(ChangeError::Overruled),
                Some(_) => {
                    self.addresses.remove(&address);
                    Ok(())
                }
                None => Err(ChangeError::Unknown),
            },
        }
    }

    /// Returns changes that undo one of `origin`, if they follow it. What was learned is not
    /// restored.
    pub fn undo_of(&self, change: Change, origin: Origin) -> Vec<(Change, Origin)> {
        let (before, remove) = match change {
            Change::AddFlood(address) | Change::DelFlood(address) => {
                let index = self.by_address.get(&address);
                let flood = index.and_then(|index| self.slot(*index).flood);
                let before = flood.map(|origin| (Change::AddFlood(address), origin));
                (before, Change::DelFlood(address))
            }
            Change::AddStation { mac, .. } | Change::DelStation(mac) => {
                let entry = self.stations.get(key(mac)).map(Entry::unpack);
                let entry = entry.filter(|entry| entry.origin != Origin::Learned);
                let before = entry.map(|entry| {
                    let remote = self.slot(entry.remote).address;
                    (Change::AddStation { mac, remote }, entry.origin)
                });
                (before, Change::DelStation(mac))
            }
            Change::AddAddress { address, .. } | Change::DelAddress(address) => {
                let found = self.addresses.get(&address);
                let before =
                    found.map(|&(mac, origin)| (Change::AddAddress { address, mac }, origin));
                (before, Change::DelAddress(address))
            }
        };
        [Some((remove, origin)), before].into_iter().flatten().collect()
    }

    /// Finds the known remote with this address.
    pub fn known(&self, address: IpAddr) -> Option<RemoteId> {
        let index = *self.by_address.get(&address)?;
        self.slot(index).is_known().then_some(RemoteId(index))
    }

    /// Notes that a station has sent a frame through `remote`, and learns it if that is allowed.
    ///
    /// # Errors
    /// [`Locked`]: the frame must be dropped.
    pub fn learn(&mut self, mac: MacAddr, remote: RemoteId, now: Instant) -> Result<(), Locked> {
        let now_ms = now.millis();
        let entry = Entry { remote: remote.0, origin: Origin::Learned, seen_ms: now_ms };
        let found = self.stations.get(key(mac)).map(Entry::unpack);
        match found {
            Some(found) if found.origin == Origin::Static && found.remote != remote.0 => {
                return Err(Locked);
            }
            Some(found) if found.origin != Origin::Learned => {}
            Some(found) if found.remote == remote.0 => {
                if now_ms.saturating_sub(found.seen_ms) > self.age_ms / REFRESHES_PER_AGE {
                    self.stations.insert(key(mac), entry.pack());
                }
            }
            _ if !self.is_learning => {}
            Some(found) => {
                self.slot_mut(found.remote).learned -= 1;
                self.slot_mut(remote.0).learned += 1;
                self.counters.moved += 1;
                self.stations.insert(key(mac), entry.pack());
            }
            None if self.learned_count == LEARNED_MAX || self.station_count == STATIONS_MAX => {
                self.counters.refused += 1;
            }
            None => {
                self.slot_mut(remote.0).learned += 1;
                (self.learned_count, self.station_count) =
                    (self.learned_count + 1, self.station_count + 1);
                self.counters.learned += 1;
                self.stations.insert(key(mac), entry.pack());
                self.expires_ms.get_or_insert(now_ms.saturating_add(self.age_ms));
            }
        }
        Ok(())
    }

    /// Removes learned stations whose ageing time is over.
    pub fn expire(&mut self, now: Instant) {
        let now_ms = now.millis();
        if self.expires_ms.is_none_or(|at| now_ms < at) {
            return;
        }
        let (age_ms, mut oldest_ms) = (self.age_ms, None);
        self.retain(|entry| {
            let is_current = entry.is_current(now_ms, age_ms);
            if is_current && entry.origin == Origin::Learned {
                let oldest = oldest_ms.get_or_insert(entry.seen_ms);
                *oldest = entry.seen_ms.min(*oldest);
            }
            is_current
        });
        self.expires_ms = oldest_ms.map(|oldest: u64| oldest.saturating_add(age_ms));
    }

    /// When [`Remotes::expire`] must be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.expires_ms.map(|ms| Instant::from_micros(ms.saturating_mul(1000)))
    }

    /// The remote that a station is behind; `None` if a frame for it must be flooded.
    pub fn lookup(&self, mac: MacAddr, now: Instant) -> Option<IpAddr> {
        if !mac.is_unicast() {
            return None;
        }
        let entry = Entry::unpack(self.stations.get(key(mac))?);
        entry.is_current(now.millis(), self.age_ms).then(|| self.slot(entry.remote).address)
    }

    /// The flood list, in no order.
    pub fn flood(&self) -> &[IpAddr] {
        &self.flood
    }

    /// The station with an IP address, if it is behind a remote.
    pub fn station_of(&self, address: IpAddr) -> Option<MacAddr> {
        let (mac, _) = *self.addresses.get(&address)?;
        self.stations.get(key(mac)).map(|_| mac)
    }

    /// Counters since the table was made.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// All remotes, in no order; for reports.
    pub fn remotes(&self) -> impl Iterator<Item = Remote> + '_ {
        self.remotes.iter().flatten().map(|slot| Remote {
            address: slot.address,
            flood: slot.flood,
            stations: slot.pinned + slot.learned,
        })
    }

    /// All current stations, in no order. Walks the table; for reports.
    pub fn stations(&self, now: Instant) -> impl Iterator<Item = Station> + '_ {
        let now_ms = now.millis();
        self.stations.iter().filter_map(move |(key, value)| {
            let entry = Entry::unpack(value);
            let [_, _, a, b, c, d, e, f] = key.to_be_bytes();
            entry.is_current(now_ms, self.age_ms).then(|| Station {
                mac: MacAddr([a, b, c, d, e, f]),
                remote: self.slot(entry.remote).address,
                origin: entry.origin,
            })
        })
    }

    fn add_flood(&mut self, address: IpAddr, origin: Origin) -> Result<(), ChangeError> {
        let index = self.intern(address)?;
        let slot = self.slot_mut(index);
        if slot.flood.is_none() {
            self.flood.push(address);
        }
        let slot = self.slot_mut(index);
        slot.flood = slot.flood.max(Some(origin));
        Ok(())
    }

    fn del_flood(&mut self, address: IpAddr, origin: Origin) -> Result<(), ChangeError> {
        let index = *self.by_address.get(&address).ok_or(ChangeError::Unknown)?;
        let slot = self.slot_mut(index);
        match slot.flood {
            None => return Err(ChangeError::Unknown),
            Some(of) if of > origin => return Err(ChangeError::Overruled),
            Some(_) => slot.flood = None,
        }
        self.flood.retain(|flooded| *flooded != address);
        self.release(index);
        Ok(())
    }

    fn add_station(
        &mut self,
        mac: MacAddr,
        remote: IpAddr,
        origin: Origin,
    ) -> Result<(), ChangeError> {
        if !mac.is_unicast() {
            return Err(ChangeError::NotStation(mac));
        }
        let before = self.stations.get(key(mac)).map(Entry::unpack);
        match before {
            Some(before) if before.origin > origin => return Err(ChangeError::Overruled),
            None if self.station_count == STATIONS_MAX => return Err(ChangeError::TooManyStations),
            _ => {}
        }
        let index = self.intern(remote)?;
        self.slot_mut(index).pinned += 1;
        self.stations.insert(key(mac), Entry { remote: index, origin, seen_ms: 0 }.pack());
        match before {
            Some(before) => self.forget(before),
            None => self.station_count += 1,
        }
        Ok(())
    }

    fn del_station(&mut self, mac: MacAddr, origin: Origin) -> Result<(), ChangeError> {
        let before = self.stations.get(key(mac)).map(Entry::unpack).ok_or(ChangeError::Unknown)?;
        if before.origin > origin {
            return Err(ChangeError::Overruled);
        }
        self.stations.remove(key(mac));
        self.station_count -= 1;
        self.forget(before);
        Ok(())
    }

    fn add_address(
        &mut self,
        address: IpAddr,
        mac: MacAddr,
        origin: Origin,
    ) -> Result<(), ChangeError> {
        if !mac.is_unicast() {
            return Err(ChangeError::NotStation(mac));
        }
        match self.addresses.get(&address) {
            Some((_, of)) if *of > origin => return Err(ChangeError::Overruled),
            None if self.addresses.len() == ADDRESSES_MAX => {
                return Err(ChangeError::TooManyAddresses);
            }
            _ => {}
        }
        self.addresses.insert(address, (mac, origin));
        Ok(())
    }

    /// The number of a remote, which is made if it is new.
    fn intern(&mut self, address: IpAddr) -> Result<u16, ChangeError> {
        let is_broadcast = address == IpAddr::from([255, 255, 255, 255]);
        if address.is_unspecified() || address.is_multicast() || is_broadcast {
            return Err(ChangeError::NotUnicast(address));
        }
        if let Some(index) = self.by_address.get(&address) {
            return Ok(*index);
        }
        let slot = Slot { address, flood: None, pinned: 0, learned: 0 };
        let index = match self.remotes.iter().position(Option::is_none) {
            Some(index) => {
                self.remotes[index] = Some(slot);
                index
            }
            None if self.remotes.len() == REMOTES_MAX => return Err(ChangeError::TooManyRemotes),
            None => {
                self.remotes.push(Some(slot));
                self.remotes.len() - 1
            }
        };
        self.by_address.insert(address, index as u16);
        Ok(index as u16)
    }

    /// Counts an entry as removed, and its remote if nothing else names it.
    fn forget(&mut self, entry: Entry) {
        let is_learned = entry.origin == Origin::Learned;
        self.learned_count -= usize::from(is_learned);
        let slot = self.slot_mut(entry.remote);
        if is_learned {
            slot.learned -= 1;
        } else {
            slot.pinned -= 1;
            self.release(entry.remote);
        }
    }

    /// Removes a remote that is no longer known, with the stations learned from it.
    fn release(&mut self, index: u16) {
        let slot = self.slot(index);
        if slot.is_known() {
            return;
        }
        let address = slot.address;
        if slot.learned > 0 {
            self.retain(|entry| entry.remote != index);
        }
        self.by_address.remove(&address);
        self.remotes[usize::from(index)] = None;
    }

    /// Removes learned stations for which `keep` returns false.
    fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        let Self { stations, remotes, station_count, learned_count, .. } = self;
        stations.retain(|value| {
            let entry = Entry::unpack(value);
            let is_kept = entry.origin != Origin::Learned || keep(&entry);
            if !is_kept {
                (*station_count, *learned_count) = (*station_count - 1, *learned_count - 1);
                let slot = remotes[usize::from(entry.remote)].as_mut();
                slot.expect("an entry names a remote").learned -= 1;
            }
            is_kept
        });
    }

    fn slot(&self, index: u16) -> &Slot {
        self.remotes[usize::from(index)].as_ref().expect("an entry names a remote")
    }

    fn slot_mut(&mut self, index: u16) -> &mut Slot {
        self.remotes[usize::from(index)].as_mut().expect("an entry names a remote")
    }
}

/// A station's key; never zero, as no station has that address.
fn key(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Most remotes of a network: hosts of a large cluster. Flooding costs a datagram for each.
pub const REMOTES_MAX: usize = 1024;
/// Most stations behind remotes, of 16 bytes twice, as half of the places stay empty: 1 MiB.
pub const STATIONS_MAX: usize = 32_768;
/// Most stations that frames teach: half, so that learning leaves room for a control plane.
pub const LEARNED_MAX: usize = STATIONS_MAX / 2;
/// Most IP addresses of stations: one of each version for each of them.
pub const ADDRESSES_MAX: usize = 2 * STATIONS_MAX;

/// Times per ageing time that the time of a station's last frame is stored.
const REFRESHES_PER_AGE: u64 = 64;
/// Places in a packed entry.
const ORIGIN_SHIFT: u32 = 16;
const SEEN_SHIFT: u32 = 18;

const _: () = assert!(REMOTES_MAX <= 1 << ORIGIN_SHIFT);

#[cfg(test)]
mod tests;
