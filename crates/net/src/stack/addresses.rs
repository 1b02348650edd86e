//! The stack's own addresses and how they change while it runs.
//!
//! A new address is probed for and announced like the first ones, if the stack does so
//! ([`Stack::claim_addresses`]). Removing one ends no connection: segments to it are
//! not taken any more, so the connection ends with its retransmissions. Linux does the same after
//! `ip address del`.
//!
//! Bound: [`ADDRESSES_MAX`], as each packet to or from the stack compares them all.

use super::ingress::is_martian;
use super::{Address, Stack};
use crate::fragment::IPV6_MTU_MIN;
use crate::time::Instant;
use crate::wire::MacAddr;
use core::fmt;
use core::net::IpAddr;

/// Addresses that a stack may have when one is added.
pub const ADDRESSES_MAX: usize = 256;

/// Why an address cannot be added, or a link-layer address not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddressError {
    /// It is unspecified, a loopback or multicast address.
    Unusable(IpAddr),
    /// The prefix is longer than the address.
    PrefixLength(Address),
    /// The stack has the address already.
    Known(IpAddr),
    /// The stack has [`ADDRESSES_MAX`] addresses.
    TooMany,
    /// IPv6 needs a larger MTU than this.
    Mtu(u16),
    /// The link-layer address is a group's, or zero.
    NoStation(MacAddr),
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(address) => write!(f, "{address} is no unicast address of a station"),
            Self::PrefixLength(Address { address, prefix_len }) => {
                write!(f, "{address} has no prefix of {prefix_len} bits: give a shorter one")
            }
            Self::Known(address) => write!(f, "the host has {address} already"),
            Self::TooMany => write!(f, "the host has {ADDRESSES_MAX} addresses: remove one first"),
            Self::Mtu(mtu) => {
                write!(f, "IPv6 needs an MTU of at least {IPV6_MTU_MIN}, and the device's is {mtu}")
            }
            Self::NoStation(mac) => write!(f, "{mac} is no unicast link-layer address"),
        }
    }
}

impl core::error::Error for AddressError {}

impl Stack {
    /// The local addresses.
    pub fn addresses(&self) -> &[Address] {
        &self.config.addresses
    }

    /// Adds a local address. It is used at once; if the stack claims its addresses, it is probed
    /// for and announced.
    pub fn add_address(&mut self, ours: Address, now: Instant) -> Result<(), AddressError> {
        let Address { address, prefix_len } = ours;
        if is_martian(address) {
            return Err(AddressError::Unusable(address));
        }
        if prefix_len > if address.is_ipv4() { 32 } else { 128 } {
            return Err(AddressError::PrefixLength(ours));
        }
        if address.is_ipv6() && usize::from(self.mtu()) < IPV6_MTU_MIN {
            return Err(AddressError::Mtu(self.mtu()));
        }
        if self.is_local(address) {
            return Err(AddressError::Known(address));
        }
        if self.config.addresses.len() >= ADDRESSES_MAX {
            return Err(AddressError::TooMany);
        }
        self.config.addresses.push(ours);
        self.memberships.begin_address(address, now);
        if !ours.is_anycast() {
            self.detection.claim_more(address, now);
        }
        Ok(())
    }

    /// Removes a local address; false if it is none. Connections from it stay until they fail.
    pub fn remove_address(&mut self, address: IpAddr, now: Instant) -> bool {
        let was_local = self.is_local(address);
        if was_local {
            self.config.addresses.retain(|ours| ours.address != address);
            self.memberships.end_address(address, now);
            self.detection.forget(address);
        }
        was_local
    }

    /// Changes the link-layer address, and announces the local addresses with it, so that other
    /// stations update their entries (RFC 5227 §2.3, RFC 4861 §7.2.6).
    pub fn set_mac(&mut self, mac: MacAddr, now: Instant) -> Result<(), AddressError> {
        if !mac.is_unicast() {
            return Err(AddressError::NoStation(mac));
        }
        self.config.mac = mac;
        let ours = self.config.addresses.iter().filter(|ours| !ours.is_anycast());
        self.detection.announce(ours.map(|ours| ours.address), now);
        Ok(())
    }
}

impl Address {
    /// True for the anycast address of the routers of a network (RFC 4291 §2.6.1), which several
    /// stations may have.
    pub(super) fn is_anycast(&self) -> bool {
        let IpAddr::V6(address) = self.address else { return false };
        let host = u128::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
        // RFC 6164 §5: the two ends of a point-to-point link use both addresses.
        host > 1 && address.to_bits() & host == 0
    }
}
