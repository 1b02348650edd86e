//! Addresses and ports in use (socket(7), `SO_REUSEADDR` and `SO_REUSEPORT`).
//!
//! Two sockets can share a port if their addresses differ and neither is unspecified, or if both
//! set `SO_REUSEADDR` and the earlier one does not listen. A connection counts like the socket that
//! it came from. Bound: one entry for each kind of use of a port.
//!
//! # Ephemeral ports
//!
//! Sockets that connect without a port get one by double hashing (RFC 6056 §3.3.4): each remote end
//! has its own order of all ports, and starts where its last search ended. The order is a
//! permutation under a keyed hash of the addresses and the remote port, so that ports to one end
//! say nothing about ports to another, successive ones are not neighbours, and a port is used again
//! as late as possible. Such sockets share a port if their four-tuples differ. So each remote end
//! can have a connection from every port.
//!
//! Sockets that bind to port 0 get a random unused port (RFC 6056 §3.3.1).

use super::Family;
use crate::random::{Permutation, Purpose, Random, Secret, keyed_hash};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// First ephemeral port (Linux's `ip_local_port_range`).
pub const EPHEMERAL_FIRST: u16 = 32_768;
/// Last ephemeral port.
pub const EPHEMERAL_LAST: u16 = 60_999;

/// Protocols, each with its own port space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Tcp,
    Udp,
}

/// How a socket uses a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// The address; unspecified for all addresses.
    pub(super) address: IpAddr,
    /// An unspecified IPv6 address does not cover IPv4 too.
    pub(super) v6_only: bool,
    /// Allows sharing with others that allow it too (`SO_REUSEADDR`).
    pub(super) reuse: bool,
    /// Allows sharing with others that set this too (`SO_REUSEPORT` of datagram sockets).
    pub(super) reuse_port: bool,
    /// Listens: no later use can share the port by `SO_REUSEADDR`.
    pub(super) listens: bool,
    /// The port was chosen for a connection. Others whose port is chosen may share it.
    pub(super) connects: bool,
}

/// Use of a local and a remote end by a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occupied {
    Free,
    TimeWait,
    Connected,
}

impl Use {
    fn overlaps(&self, other: &Use) -> bool {
        match (self.address, other.address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => a == b || a.is_unspecified() || b.is_unspecified(),
            (IpAddr::V6(a), IpAddr::V6(b)) => a == b || a.is_unspecified() || b.is_unspecified(),
            (IpAddr::V4(_), IpAddr::V6(b)) => b.is_unspecified() && !other.v6_only,
            (IpAddr::V6(a), IpAddr::V4(_)) => a.is_unspecified() && !self.v6_only,
        }
    }

    fn conflicts(&self, other: &Use) -> bool {
        // Only the other's listening matters (socket(7), SO_REUSEADDR): a listener may bind again
        // while connections of its predecessor hold the port.
        let shared = self.reuse && other.reuse && !other.listens;
        let shared = shared || self.reuse_port && other.reuse_port;
        !shared && self.overlaps(other)
    }
}

/// The ports in use.
pub(super) struct Ports {
    uses: HashMap<(Space, u16), Vec<(Use, u32)>, FixedState>,
    /// Key of the orders of remote ends.
    key: [u64; 2],
    /// Where the next search begins in the order of a remote end. Ends share counts by hash, and
    /// then skip ports.
    begins: Box<[u16; COUNTS]>,
    /// Orders of searches for any port.
    random: Random,
}

impl Ports {
    /// No port in use.
    pub(super) fn new(secret: &Secret) -> Self {
        Self {
            uses: HashMap::with_hasher(secret.table(Purpose::PortTable)),
            key: secret.key(Purpose::ConnectPorts),
            begins: Box::new([0; COUNTS]),
            random: Random::new(secret.key(Purpose::BindPorts)),
        }
    }

    /// True if the port is free for `wanted`.
    pub(super) fn is_free(&self, space: Space, port: u16, wanted: &Use) -> bool {
        let uses = self.uses.get(&(space, port)).map(Vec::as_slice).unwrap_or_default();
        !uses.iter().any(|(other, _)| wanted.conflicts(other))
    }

    /// Counts one more use of the port.
    pub(super) fn add(&mut self, space: Space, port: u16, used: Use) {
        let uses = self.uses.entry((space, port)).or_default();
        match uses.iter_mut().find(|(other, _)| *other == used) {
            Some((_, count)) => *count += 1,
            None => uses.push((used, 1)),
        }
    }

    /// Removes one use of the port.
    pub(super) fn remove(&mut self, space: Space, port: u16, used: Use) {
        let Some(uses) = self.uses.get_mut(&(space, port)) else { return };
        if let Some(index) = uses.iter().position(|(other, _)| *other == used) {
            uses[index].1 -= 1;
            if uses[index].1 == 0 {
                uses.swap_remove(index);
            }
        }
        if uses.is_empty() {
            self.uses.remove(&(space, port));
        }
    }

    /// Chooses a port for a socket that binds to port 0: one that has no use.
    pub(super) fn choose(&mut self, space: Space) -> Option<u16> {
        let order = Order::new(self.random.number());
        let mut ports = (0..COUNT).map(|index| order.port(index));
        ports.find(|port| !self.uses.contains_key(&(space, *port)))
    }

    /// Chooses a port for a connection from `source` to `remote`; `occupied` says by what a port's
    /// four-tuple is used. A port whose last connection is in TIME-WAIT is chosen if
    /// [`TIME_WAITS_MAX`] ports were searched: it is the one used longest ago.
    pub(super) fn choose_to(
        &mut self,
        source: IpAddr,
        remote: SocketAddr,
        occupied: impl Fn(u16) -> Occupied,
    ) -> Option<u16> {
        let hash = keyed_hash(self.key, (source, remote));
        let (order, place) = (Order::new(hash), (hash >> 32) as usize % COUNTS);
        let begin = u32::from(self.begins[place]);
        let mut chosen = None;
        for searched in 0..COUNT {
            let index = (begin + searched) % COUNT;
            let port = order.port(index);
            let uses = self.uses.get(&(Space::Tcp, port)).map(Vec::as_slice).unwrap_or_default();
            if uses.iter().any(|(other, _)| !other.connects) {
                continue;
            }
            match occupied(port) {
                Occupied::Free => {
                    chosen = Some((index, port));
                    break;
                }
                Occupied::TimeWait => chosen = chosen.or(Some((index, port))),
                Occupied::Connected => {}
            }
            if chosen.is_some() && searched >= TIME_WAITS_MAX {
                break;
            }
        }
        let (index, port) = chosen?;
        self.begins[place] = ((index + 1) % COUNT) as u16;
        Some(port)
    }
}

/// An order of all ephemeral ports.
struct Order(Permutation<8>);

impl Order {
    fn new(key: u64) -> Self {
        Self(Permutation::new(key))
    }

    /// The port at an index below [`COUNT`].
    fn port(&self, index: u32) -> u16 {
        // Numbers that are no ports are permuted again. This ends: a permutation that starts below
        // the bound comes back below it.
        let mut number = self.0.at(index);
        while number >= COUNT {
            number = self.0.at(number);
        }
        EPHEMERAL_FIRST + number as u16
    }
}

/// Number of ephemeral ports.
const COUNT: u32 = (EPHEMERAL_LAST - EPHEMERAL_FIRST + 1) as u32;
/// Number of search positions of remote ends: 2 KiB.
const COUNTS: usize = 1024;
/// Ports that a search passes before it takes one in TIME-WAIT.
const TIME_WAITS_MAX: u32 = 1024;

/// The unspecified address of a family.
pub(super) fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use core::net::Ipv4Addr;

    const SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

    fn ports(secret: u64) -> Ports {
        Ports::new(&Secret::new([5, secret]))
    }

    fn server(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 443))
    }

    fn free(_port: u16) -> Occupied {
        Occupied::Free
    }

    fn thousand(ports: &mut Ports, remote: SocketAddr) -> Vec<u16> {
        (0..1000).map(|_| ports.choose_to(SOURCE, remote, free).expect("free")).collect()
    }

    /// Numbers of ports that are near the one before, that continue the step before, and that are
    /// in the fullest and emptiest sixteenth of the range.
    fn shape(ports: &[u16]) -> [usize; 4] {
        let near = ports.windows(2).filter(|two| two[0].abs_diff(two[1]) < 64).count();
        let step = |two: &[u16]| i32::from(two[1]) - i32::from(two[0]);
        let even = ports.windows(3).filter(|three| step(&three[1..]) == step(&three[..2])).count();
        let mut parts = [0; 16];
        for port in ports {
            parts[(u32::from(port - EPHEMERAL_FIRST) * 16 / COUNT) as usize] += 1;
        }
        let [most, least] = [parts.iter().max(), parts.iter().min()].map(|part| *part.expect("16"));
        [near, even, most, least]
    }

    /// RFC 6056: 1,000 ports to one remote end do not predict the next, nor those to another, and
    /// none repeats.
    #[test]
    fn a_thousand_ports_predict_none() {
        let mut all = Vec::new();
        for secret in 0..8 {
            let mut ports = ports(secret);
            // The attacker's own server sees as many connections as the victim's.
            let [mine, victims] = [1, 2].map(|last| thousand(&mut ports, server(last)));
            for seen in [&mine, &victims] {
                let [near, even, most, least] = shape(seen);
                // By chance 4.5 of 1,000 are near, and 62 ± 8 are in each sixteenth.
                assert!(near < 20 && even < 4, "{near} near, {even} even");
                assert!(most < 105 && least > 30, "{most} {least}");
                let mut sorted = seen.clone();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!(sorted.len(), 1000, "none repeats");
            }
            // Neither equal, nor at a constant distance.
            let mut distances: Vec<u16> =
                mine.iter().zip(&victims).map(|(mine, other)| mine.wrapping_sub(*other)).collect();
            assert!(distances.iter().filter(|distance| **distance == 0).count() < 4);
            distances.sort_unstable();
            distances.dedup();
            assert!(distances.len() > 950, "{}", distances.len());
            all.push(mine);
        }
        assert_eq!(thousand(&mut ports(3), server(1)), all[3], "a fixed secret repeats");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 8, "the secret decides");
    }

    /// Goal: each remote end can use all ports before one repeats, also if others share its count.
    #[test]
    fn every_port_serves_each_remote_end() {
        let mut ports = ports(1);
        for last in 1..4 {
            let mut used = vec![false; 1 << 16];
            for _ in 0..COUNT {
                let occupied = |port: u16| {
                    if used[usize::from(port)] { Occupied::Connected } else { Occupied::Free }
                };
                let port = ports.choose_to(SOURCE, server(last), occupied).expect("free");
                assert!((EPHEMERAL_FIRST..=EPHEMERAL_LAST).contains(&port));
                used[usize::from(port)] = true;
            }
            let none = ports.choose_to(SOURCE, server(last), |_| Occupied::Connected);
            assert_eq!(none, None);
        }
    }

    /// Goal: a port in TIME-WAIT is passed for a free one, and taken where none is free: the one
    /// that was chosen longest ago.
    #[test]
    fn time_wait_is_the_last_choice() {
        let mut ports = ports(1);
        let remote = server(1);
        let order: Vec<u16> =
            (0..COUNT).map(|_| ports.choose_to(SOURCE, remote, free).expect("free")).collect();
        let waits_but = |index: usize| {
            let spared = order[index];
            move |port| if port == spared { Occupied::Free } else { Occupied::TimeWait }
        };
        assert_eq!(ports.choose_to(SOURCE, remote, waits_but(100)), Some(order[100]));
        assert_eq!(ports.choose_to(SOURCE, remote, |_| Occupied::TimeWait), Some(order[101]));
        // A free port far behind is not searched for.
        assert_eq!(ports.choose_to(SOURCE, remote, waits_but(5000)), Some(order[102]));
        let all_but = |port: u16| {
            if port == order[90] { Occupied::TimeWait } else { Occupied::Connected }
        };
        assert_eq!(ports.choose_to(SOURCE, remote, all_but), Some(order[90]));
    }

    /// Goal: bound ports are not chosen for connections; those of other connections are. A bind to
    /// port 0 takes neither.
    #[test]
    fn bound_ports_are_not_chosen() {
        let mut ports = ports(1);
        let bound = Use {
            address: SOURCE,
            v6_only: false,
            reuse: true,
            reuse_port: false,
            listens: false,
            connects: false,
        };
        let [spared, shared] = [40_000, 50_000];
        for port in EPHEMERAL_FIRST..=EPHEMERAL_LAST {
            match port {
                40_000 => {}
                50_000 => ports.add(Space::Tcp, port, Use { connects: true, ..bound }),
                _ => ports.add(Space::Tcp, port, bound),
            }
        }
        let mut chosen: Vec<_> =
            (0..2).filter_map(|_| ports.choose_to(SOURCE, server(1), free)).collect();
        chosen.sort_unstable();
        assert_eq!(chosen, [spared, shared]);
        assert_eq!(ports.choose(Space::Tcp), Some(spared));
        assert!(ports.choose(Space::Udp).is_some());
        ports.add(Space::Tcp, spared, bound);
        assert_eq!(ports.choose(Space::Tcp), None);
    }
}
