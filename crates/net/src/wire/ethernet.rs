//! Ethernet II framing (RFC 894, IEEE 802.3 §3): the 14 bytes before the payload.
//!
//! Frames have no frame check sequence here. A VLAN tag shows as [`EtherType::VLAN`]; the rest of
//! the tag follows the header.

use core::fmt;

use super::field::{header, header_mut, read, read_u16, write, write_u16};
use super::{MacAddr, ParseError};

/// An Ethernet II header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Destination address, unicast or multicast.
    pub destination: MacAddr,
    /// Source address; not checked to be unicast.
    pub source: MacAddr,
    /// Type of the payload. Values below 1536 are IEEE 802.3 lengths.
    pub ethertype: EtherType,
}

impl Header {
    /// Reads the header at the start of `bytes`. Any [`HEADER_LEN`] bytes are valid.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let bytes: &[u8; HEADER_LEN] = header(bytes)?;
        Ok(Self {
            destination: MacAddr(read(bytes, at::DESTINATION)),
            source: MacAddr(read(bytes, at::SOURCE)),
            ethertype: EtherType(read_u16(bytes, at::ETHERTYPE)),
        })
    }

    /// Writes [`HEADER_LEN`] bytes at the start of `bytes`, which must be at least as long.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        let bytes: &mut [u8; HEADER_LEN] = header_mut(bytes);
        write(bytes, at::DESTINATION, &self.destination.0);
        write(bytes, at::SOURCE, &self.source.0);
        write_u16(bytes, at::ETHERTYPE, self.ethertype.0);
        HEADER_LEN
    }
}

/// Type of an Ethernet payload (IANA "EtherType" registry).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// A customer VLAN tag (IEEE 802.1Q §9.5).
    pub const VLAN: Self = Self(0x8100);
    /// A service VLAN tag (IEEE 802.1Q §9.5).
    pub const SERVICE_VLAN: Self = Self(0x88a8);
    /// IPv6 (RFC 2464 §3).
    pub const IPV6: Self = Self(0x86dd);
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::IPV4 => "IPv4",
            Self::ARP => "ARP",
            Self::VLAN => "VLAN",
            Self::SERVICE_VLAN => "service VLAN",
            Self::IPV6 => "IPv6",
            Self(other) => return write!(f, "ethertype {other:#06x}"),
        })
    }
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes of the header: two addresses of 6, and the type of 2.
pub const HEADER_LEN: usize = 6 + 6 + 2;

/// Offsets of the fields.
mod at {
    pub(super) const DESTINATION: usize = 0;
    pub(super) const SOURCE: usize = 6;
    pub(super) const ETHERTYPE: usize = 12;
}
