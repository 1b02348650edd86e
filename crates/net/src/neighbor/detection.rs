//! Detection of duplicate addresses (RFC 5227 for IPv4, RFC 4862 §5.4 for IPv6), announcements of
//! own addresses, and reports of conflicts.
//!
//! # Theory of operation
//!
//! [`Detection::claim`] begins detection. After a random delay of at most a second it asks for
//! probes, [`PROBES_V4`] or [`PROBES_V6`] of them, then waits, and then asks for announcements.
//! Until the first announcement the address is *tentative*. As in RFC 4429, an address is used
//! while it is tentative, so that a start takes no longer.
//!
//! Another station that uses or probes a tentative address, or uses a local one, is a conflict. A
//! tentative address is then withdrawn, if [`OnConflict::Withdraw`] asks for that. Otherwise the
//! address stays in use and is announced again (RFC 5227 §2.4 c), at most once in
//! [`DEFEND_INTERVAL`], so that two stations do not flood the link. Conflicts are counted even
//! without a claim, but then nothing is announced.

use crate::random::Random;
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

/// Probes for an IPv4 address (RFC 5227 PROBE_NUM).
pub(super) const PROBES_V4: u8 = 3;
/// Probes for an IPv6 address (RFC 4862 DupAddrDetectTransmits).
pub(super) const PROBES_V6: u8 = 1;
/// Announcements of an IPv4 address (RFC 5227 ANNOUNCE_NUM).
pub(super) const ANNOUNCEMENTS_V4: u8 = 2;
/// Announcements of an IPv6 address (RFC 4861 MAX_NEIGHBOR_ADVERTISEMENT).
pub(super) const ANNOUNCEMENTS_V6: u8 = 3;
/// Shortest time between announcements that defend addresses (RFC 5227 DEFEND_INTERVAL).
pub(super) const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// What happens to a tentative address that another station uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// The address is no longer used.
    Withdraw,
    /// The address stays in use: others depend on it, as on that of a router.
    Keep,
}

/// Another station that uses a local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The address.
    pub address: IpAddr,
    /// Link-layer address of the other station that was seen last.
    pub mac: MacAddr,
    /// Number of messages that showed it.
    pub count: u64,
    /// The address was tentative and is no longer used.
    pub is_withdrawn: bool,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {} too", self.mac, self.address)
    }
}

/// What a conflict requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Nothing.
    None,
    /// Announce the address again.
    Defend,
    /// Stop using the address.
    Withdraw,
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask whether another station uses the address.
    Probe(IpAddr),
    /// Announce the address.
    Announce(IpAddr),
}

/// Progress of one claim.
struct Claim {
    address: IpAddr,
    /// Probes and announcements sent.
    sent: u8,
    /// When the next one is due.
    at: Instant,
}

impl Claim {
    fn probes(&self) -> u8 {
        if self.address.is_ipv4() { PROBES_V4 } else { PROBES_V6 }
    }

    fn is_tentative(&self) -> bool {
        self.sent <= self.probes()
    }

    fn is_over(&self) -> bool {
        let announcements =
            if self.address.is_ipv4() { ANNOUNCEMENTS_V4 } else { ANNOUNCEMENTS_V6 };
        self.sent >= self.probes() + announcements
    }
}

/// Claims of local addresses, and conflicts about them.
pub struct Detection {
    random: Random,
    claims: Vec<Claim>,
    /// `None` before the first claim.
    policy: Option<OnConflict>,
    /// The last conflict about each address, and whether it is to be reported.
    conflicts: Vec<(Conflict, bool)>,
    /// When a conflict was last reported or answered.
    reacted: Option<Instant>,
}

impl Detection {
    /// No claims. `key` must be unpredictable.
    pub fn new(key: [u64; 2]) -> Self {
        let (claims, conflicts) = (Vec::new(), Vec::new());
        Self { random: Random::new(key), claims, policy: None, conflicts, reacted: None }
    }

    /// Begins to probe for these addresses and to announce them.
    pub fn claim(
        &mut self,
        addresses: impl IntoIterator<Item = IpAddr>,
        policy: OnConflict,
        now: Instant,
    ) {
        self.policy = Some(policy);
        for address in addresses {
            let at = now + self.delay();
            self.claims.push(Claim { address, sent: 0, at });
        }
    }

    /// Begins to probe for a further address and to announce it, if there was a claim before.
    pub fn claim_more(&mut self, address: IpAddr, now: Instant) {
        if self.policy.is_some() {
            let at = now + self.delay();
            self.claims.push(Claim { address, sent: 0, at });
        }
    }

    /// Begins to announce addresses whose link-layer address has changed. One that is being claimed
    /// will be announced anyway.
    pub fn announce(&mut self, addresses: impl IntoIterator<Item = IpAddr>, now: Instant) {
        for address in addresses {
            if !self.claims.iter().any(|claim| claim.address == address) {
                let mut claim = Claim { address, sent: 0, at: now };
                claim.sent = claim.probes();
                self.claims.push(claim);
            }
        }
    }

    /// Ends the claim of an address that is no longer local.
    pub fn forget(&mut self, address: IpAddr) {
        self.claims.retain(|claim| claim.address != address);
    }

    /// A random time below [`PROBE_WAIT`].
    fn delay(&mut self) -> Duration {
        Duration::from_micros(self.random.below(PROBE_WAIT.as_micros() as u32).into())
    }

    /// True until the probes for a claimed address are over.
    pub fn is_tentative(&self, address: IpAddr) -> bool {
        self.claims.iter().any(|claim| claim.address == address && claim.is_tentative())
    }

    /// When [`Detection::next_step`] must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.claims.iter().map(|claim| claim.at).min()
    }

    /// The next message that is due.
    pub fn next_step(&mut self, now: Instant) -> Option<Step> {
        let index = self.claims.iter().position(|claim| claim.at <= now)?;
        let spread = self.delay();
        let claim = &mut self.claims[index];
        let (address, v4) = (claim.address, claim.address.is_ipv4());
        claim.sent += 1;
        let is_probe = claim.is_tentative();
        claim.at = now
            + match (v4, is_probe) {
                (true, true) if claim.sent < PROBES_V4 => PROBE_INTERVAL + spread,
                (true, _) => ANNOUNCE_INTERVAL_V4,
                (false, _) => INTERVAL_V6,
            };
        if claim.is_over() {
            self.claims.swap_remove(index);
        }
        Some(if is_probe { Step::Probe(address) } else { Step::Announce(address) })
    }

    /// Notes that another station uses `address`.
    pub fn conflict(&mut self, address: IpAddr, mac: MacAddr, now: Instant) -> Reaction {
        let is_withdrawn = self.policy == Some(OnConflict::Withdraw) && self.is_tentative(address);
        let is_calm = self.reacted.is_none_or(|last| now.since(last) >= DEFEND_INTERVAL);
        let known = self.conflicts.iter_mut().find(|(known, _)| known.address == address);
        let is_news = is_withdrawn || is_calm || known.is_none();
        let count = 1 + known.as_ref().map_or(0, |(known, _)| known.count);
        let conflict = Conflict { address, mac, count, is_withdrawn };
        match known {
            Some((known, is_due)) => {
                *known = conflict;
                *is_due |= is_news;
            }
            None => self.conflicts.push((conflict, true)),
        }
        if is_withdrawn {
            self.forget(address);
            return Reaction::Withdraw;
        }
        if !is_calm {
            return Reaction::None;
        }
        self.reacted = Some(now);
        if self.policy.is_some() { Reaction::Defend } else { Reaction::None }
    }

    /// The last conflict about each address.
    pub fn conflicts(&self) -> impl Iterator<Item = &Conflict> {
        self.conflicts.iter().map(|(conflict, _)| conflict)
    }

    /// Takes a conflict that is to be reported: the first about an address, and then one in
    /// `DEFEND_INTERVAL`.
    pub fn next_conflict(&mut self) -> Option<Conflict> {
        let (conflict, is_due) = self.conflicts.iter_mut().find(|(_, is_due)| *is_due)?;
        *is_due = false;
        Some(*conflict)
    }
}

/// Longest delay before the first probe (RFC 5227 PROBE_WAIT, RFC 4861
/// MAX_RTR_SOLICITATION_DELAY); also the spread of the time between IPv4 probes.
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// Shortest time between IPv4 probes (RFC 5227 PROBE_MIN).
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time from the last IPv4 probe to the first announcement, and between announcements (RFC 5227
/// ANNOUNCE_WAIT, ANNOUNCE_INTERVAL).
const ANNOUNCE_INTERVAL_V4: Duration = Duration::from_secs(2);
/// Time from the IPv6 probe to the first advertisement, and between advertisements (RFC 4861
/// RETRANS_TIMER).
const INTERVAL_V6: Duration = Duration::from_secs(1);
