//! One neighbour: its state, and how messages, timers and use change it (RFC 4861 §7.3.2,
//! appendix C). ARP uses the same states (RFC 1122 §2.3.2.1).
//!
//! A reachable entry needs no timer: its expiry is noticed at the next use.

use super::waiting::Waiting;
use super::{Advertisement, DELAY_FIRST_PROBE_TIME, MULTICAST_SOLICITS, UNICAST_SOLICITS};
use crate::time::{Duration, Instant};
use crate::wire::MacAddr;
use core::net::IpAddr;

/// State of an entry (RFC 4861 §7.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Set by the driver: never changes.
    Permanent,
    /// The address is being resolved.
    Incomplete {
        /// Solicitations sent.
        solicits: u8,
    },
    /// The neighbour was reachable lately; later than `until` it counts as stale.
    Reachable {
        /// When the confirmation expires.
        until: Instant,
    },
    /// Nothing is known about reachability, and nothing was sent since.
    Stale,
    /// A packet was sent; a confirmation by an upper layer is awaited.
    Delay,
    /// Unicast solicitations are being sent.
    Probe {
        /// Solicitations sent.
        solicits: u8,
    },
}

/// What a timer requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// Send a solicitation: to this station, or to all if `None`.
    Solicit(Option<MacAddr>),
    /// The neighbour does not answer: remove the entry.
    Failed,
}

/// An entry of the cache.
pub(super) struct Entry {
    pub(super) address: IpAddr,
    /// Link-layer address; unspecified while the entry is incomplete.
    pub(super) mac: MacAddr,
    pub(super) state: State,
    /// When [`Entry::on_timer`] is due.
    pub(super) timer: Option<Instant>,
    /// When a packet was last sent, or to be sent, to this address.
    pub(super) used: Option<Instant>,
    /// Switch port at which its address was last announced.
    pub(super) port: Option<u16>,
    /// The neighbour is a configured next hop, whose entry is not evicted.
    pub(super) is_next_hop: bool,
    /// Packets that wait for the address.
    pub(super) waiting: Waiting,
}

impl Entry {
    fn new(address: IpAddr, mac: MacAddr, state: State) -> Self {
        let (timer, used, port, is_next_hop) = (None, None, None, false);
        Self { address, mac, state, timer, used, port, is_next_hop, waiting: Waiting::default() }
    }

    /// An entry that the driver sets.
    pub(super) fn permanent(address: IpAddr, mac: MacAddr) -> Self {
        Self::new(address, mac, State::Permanent)
    }

    /// An entry of a neighbour that sent a solicitation.
    pub(super) fn stale(address: IpAddr, mac: MacAddr) -> Self {
        Self::new(address, mac, State::Stale)
    }

    /// An entry whose first solicitation is being sent; the next one follows after `pause`.
    pub(super) fn incomplete(address: IpAddr, pause: Duration, now: Instant) -> Self {
        let mut entry = Self::new(address, MacAddr::UNSPECIFIED, State::Incomplete { solicits: 1 });
        entry.timer = Some(now + pause);
        entry
    }

    pub(super) fn is_incomplete(&self) -> bool {
        matches!(self.state, State::Incomplete { .. })
    }

    /// A packet is sent although reachability is not confirmed.
    pub(super) fn on_use(&mut self, now: Instant) {
        let is_stale = match self.state {
            State::Stale => true,
            State::Reachable { until } => until <= now,
            _ => false,
        };
        if is_stale {
            self.state = State::Delay;
            self.timer = Some(now + DELAY_FIRST_PROBE_TIME);
        }
    }

    /// The neighbour received what was sent to it: an upper layer saw progress (RFC 4861 §7.3.1).
    pub(super) fn on_progress(&mut self, until: Instant) {
        if !self.is_incomplete() {
            self.enter(State::Reachable { until });
        }
    }

    /// The neighbour sent a solicitation, or another message with its link-layer address that
    /// proves nothing about the way to it (RFC 4861 §7.2.3).
    pub(super) fn on_solicitation(&mut self, mac: MacAddr) {
        if self.is_incomplete() || self.mac != mac {
            self.mac = mac;
            self.enter(State::Stale);
        }
    }

    /// The neighbour sent an advertisement (RFC 4861 §7.2.5); a solicited one confirms it until
    /// `until`. False if the advertisement must be ignored.
    pub(super) fn on_advertisement(
        &mut self,
        mac: Option<MacAddr>,
        message: &Advertisement,
        until: Instant,
    ) -> bool {
        let is_incomplete = self.is_incomplete();
        if is_incomplete && mac.is_none() {
            return false;
        }
        let is_changed = mac.is_some_and(|mac| mac != self.mac);
        if !is_incomplete && is_changed && !message.overrides {
            // The address may have moved, or a second station claims it: the next use probes.
            if matches!(self.state, State::Reachable { .. }) {
                self.enter(State::Stale);
            }
            return false;
        }
        self.mac = mac.unwrap_or(self.mac);
        if message.solicited {
            self.enter(State::Reachable { until });
        } else if is_incomplete || is_changed {
            self.enter(State::Stale);
        }
        true
    }

    /// The timer is over. It starts again for `pause`.
    pub(super) fn on_timer(&mut self, pause: Duration, now: Instant) -> Timeout {
        self.timer = Some(now + pause);
        match &mut self.state {
            State::Incomplete { solicits } if *solicits < MULTICAST_SOLICITS => {
                *solicits += 1;
                Timeout::Solicit(None)
            }
            State::Delay => {
                self.state = State::Probe { solicits: 1 };
                Timeout::Solicit(Some(self.mac))
            }
            State::Probe { solicits } if *solicits < UNICAST_SOLICITS => {
                *solicits += 1;
                Timeout::Solicit(Some(self.mac))
            }
            _ => Timeout::Failed,
        }
    }

    /// Enters a state without a timer.
    fn enter(&mut self, state: State) {
        (self.state, self.timer) = (state, None);
    }
}
