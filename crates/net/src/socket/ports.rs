//! Addresses and ports in use, by the rules of Linux.
//!
//! Two sockets can share a port if their addresses differ and neither is unspecified, or if both
//! set `SO_REUSEADDR` and the earlier one does not listen. A connection counts like the socket that
//! it came from. Bound: one entry for each kind of use of a port.

use super::Family;
use crate::random::Random;
use alloc::vec::Vec;
use core::net::IpAddr;
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
        // As in Linux, only the other's listening matters: a listener may bind again while
        // connections of its predecessor hold the port.
        let shared = self.reuse && other.reuse && !other.listens;
        let shared = shared || self.reuse_port && other.reuse_port;
        !shared && self.overlaps(other)
    }
}

/// The ports in use.
pub(super) struct Ports {
    uses: HashMap<(Space, u16), Vec<(Use, u32)>, FixedState>,
    /// Chooses where the search for an ephemeral port begins.
    random: Random,
}

impl Ports {
    /// No port in use; `seed` decides where searches begin.
    pub(super) fn new(seed: u64) -> Self {
        let random = Random::new([seed, u64::from(EPHEMERAL_FIRST)]);
        Self { uses: HashMap::with_hasher(FixedState::with_seed(seed)), random }
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

    /// Returns an unused port that `fits`, or `None`. The search begins at a random port (RFC 6056
    /// §3.3.1), so that an attacker cannot guess the result.
    pub(super) fn ephemeral(&mut self, space: Space, fits: impl Fn(u16) -> bool) -> Option<u16> {
        let start = self.random.below(COUNT.into());
        for index in 0..u32::from(COUNT) {
            let port = EPHEMERAL_FIRST + ((start + index) % u32::from(COUNT)) as u16;
            if !self.uses.contains_key(&(space, port)) && fits(port) {
                return Some(port);
            }
        }
        None
    }
}

/// Number of ephemeral ports.
const COUNT: u16 = EPHEMERAL_LAST - EPHEMERAL_FIRST + 1;

/// The unspecified address of a family.
pub(super) fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED),
    }
}
