//! Changes of the table of remotes, where they come from, and why they are refused.

use core::fmt;
use core::net::IpAddr;

use super::{ADDRESSES_MAX, REMOTES_MAX, STATIONS_MAX};
use crate::wire::MacAddr;

/// Where a fact comes from. A later one has precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Origin {
    /// A received frame; ages.
    Learned,
    /// A control plane, such as BGP EVPN.
    Pushed,
    /// The user's configuration.
    Static,
}

impl Origin {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Pushed => "pushed",
            Self::Static => "static",
        }
    }
}

/// A change by configuration or control plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// Adds a remote to the flood list.
    AddFlood(IpAddr),
    /// Removes a remote from the flood list.
    DelFlood(IpAddr),
    /// A station is behind a remote.
    AddStation {
        /// Its link-layer address, a unicast one.
        mac: MacAddr,
        /// The tunnel end point.
        remote: IpAddr,
    },
    /// A station is no longer behind a remote. Its IP addresses stay.
    DelStation(MacAddr),
    /// A station has an IP address.
    AddAddress {
        /// The IP address.
        address: IpAddr,
        /// The station.
        mac: MacAddr,
    },
    /// No station has this IP address any more.
    DelAddress(IpAddr),
}

/// Why a change was refused. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeError {
    /// The address cannot be a tunnel end point: it is unspecified, multicast or broadcast.
    NotUnicast(IpAddr),
    /// The address is not of the IP version of the port's tunnels.
    OtherVersion(IpAddr),
    /// The link-layer address is no station's.
    NotStation(MacAddr),
    /// An origin with precedence says otherwise.
    Overruled,
    /// There is no such entry of this origin.
    Unknown,
    /// There are [`REMOTES_MAX`] remotes already.
    TooManyRemotes,
    /// There are [`STATIONS_MAX`] stations already.
    TooManyStations,
    /// There are [`ADDRESSES_MAX`] IP addresses already.
    TooManyAddresses,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUnicast(address) => {
                write!(f, "{address} is no address of one host; give the address of a remote")
            }
            Self::OtherVersion(address) => {
                write!(f, "{address} is not of the IP version of the port's other tunnels")
            }
            Self::NotStation(mac) => write!(f, "{mac} is no address of one station"),
            Self::Overruled => {
                f.write_str("the configuration has an entry that cannot be overruled; remove it")
            }
            Self::Unknown => f.write_str("there is no such entry"),
            Self::TooManyRemotes => {
                write!(f, "there are {REMOTES_MAX} remotes already, the maximum")
            }
            Self::TooManyStations => {
                write!(f, "there are {STATIONS_MAX} remote stations already, the maximum")
            }
            Self::TooManyAddresses => {
                write!(f, "there are {ADDRESSES_MAX} addresses of stations already, the maximum")
            }
        }
    }
}

impl core::error::Error for ChangeError {}
