//! Wire formats: parsing and building of protocol headers.
//!
//! Each format is a plain struct with `parse` and `emit`. `parse` checks length and validity once,
//! and accepts any input without panicking. `emit` writes the header at the start of a slice and
//! returns the bytes written; it panics if the slice is too short. Structs own their data: bytes
//! that others can write must be copied to private memory before `parse`, and are not read again
//! afterwards.
//!
//! A copy of the headers may end before the packet does. Where a length field must be compared with
//! the length of the packet, `parse` takes that length as a second argument.
//!
//! Checksums over payload are computed in [`crate::checksum`]. Only the IPv4 header checksum, which
//! covers nothing but the header, is verified and computed here. This module keeps no state and
//! allocates nothing; any thread may call it.

pub mod arp;
#[cfg(test)]
pub(crate) mod captured;
pub mod ethernet;
pub mod field;
pub mod headers;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
mod mac;
pub mod membership;
pub mod tcp;
pub mod udp;

pub use mac::{InvalidMacAddr, MacAddr};

/// Why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// The bytes end before the header does, or the packet ends before the header says so.
    Truncated,
    /// The version field names another protocol version.
    BadVersion,
    /// A length field contradicts the format or another length.
    BadLength,
    /// The header's own checksum is wrong.
    BadChecksum,
    /// An option has an impossible length or does not fit its header.
    BadOption,
    /// An address is not allowed in its field, such as a multicast neighbour target.
    BadAddress,
    /// A valid header of a kind that towpath does not handle.
    Unsupported,
}

/// IP protocol number, which is also IPv6's Next Header value (IANA "Protocol Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// IPv6 hop-by-hop options (RFC 8200 §4.3).
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: Self = Self(1);
    /// Group membership of IPv4 (RFC 3376).
    pub const IGMP: Self = Self(2);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// IPv6 routing header (RFC 8200 §4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 §4.5).
    pub const IPV6_FRAGMENT: Self = Self(44);
    /// Encapsulating security payload (RFC 4303).
    pub const ESP: Self = Self(50);
    /// Authentication header (RFC 4302).
    pub const AH: Self = Self(51);
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// Nothing follows (RFC 8200 §4.7).
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options (RFC 8200 §4.6).
    pub const DESTINATION_OPTIONS: Self = Self(60);
}

#[cfg(test)]
mod tests;
