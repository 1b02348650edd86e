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
//! covers nothing but the header, is verified and computed here. This module keeps no state and,
//! except for DHCP and names, allocates nothing; any thread may call it.

pub mod arp;
#[cfg(test)]
pub(crate) mod captured;
pub mod dhcpv4;
pub mod dhcpv6;
pub mod domain;
pub mod ethernet;
pub mod icmpv4;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
mod mac;
pub mod membership;
pub mod tcp;
pub mod udp;

use core::fmt;

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

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "truncated",
            Self::BadVersion => "bad version",
            Self::BadLength => "bad length",
            Self::BadChecksum => "bad header checksum",
            Self::BadOption => "bad option",
            Self::BadAddress => "bad address",
            Self::Unsupported => "unsupported",
        })
    }
}

impl core::error::Error for ParseError {}

/// IP protocol number, which is also IPv6's Next Header value (IANA "Protocol Numbers").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::HOP_BY_HOP => "hop-by-hop",
            Self::ICMP => "ICMP",
            Self::IGMP => "IGMP",
            Self::TCP => "TCP",
            Self::UDP => "UDP",
            Self::ROUTING => "routing",
            Self::IPV6_FRAGMENT => "IPv6 fragment",
            Self::ESP => "ESP",
            Self::AH => "AH",
            Self::ICMPV6 => "ICMPv6",
            Self::NO_NEXT_HEADER => "no next header",
            Self::DESTINATION_OPTIONS => "destination options",
            Self(other) => return write!(f, "protocol {other}"),
        })
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The first `N` bytes of a header, or [`ParseError::Truncated`]. Offsets into the array are
/// constants, so the compiler omits further bounds checks.
#[inline]
fn header<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], ParseError> {
    bytes.first_chunk().ok_or(ParseError::Truncated)
}

/// The `N` bytes that `emit` writes.
#[inline]
#[track_caller]
fn header_mut<const N: usize>(bytes: &mut [u8]) -> &mut [u8; N] {
    let room = bytes.len();
    let Some(header) = bytes.first_chunk_mut() else {
        panic!("emit: {room} bytes of room for a header of {N}");
    };
    header
}

/// The `N` bytes at `offset`; the caller has checked that they exist.
#[inline]
fn read<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[offset..offset + N]);
    field
}

/// The 16-bit field at `offset`, from network byte order.
#[inline]
fn read_u16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_be_bytes(read(bytes, offset))
}

/// The 32-bit field at `offset`, from network byte order.
#[inline]
fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(read(bytes, offset))
}

/// Stores `field` at `offset`.
#[inline]
fn write(bytes: &mut [u8], offset: usize, field: &[u8]) {
    bytes[offset..offset + field.len()].copy_from_slice(field);
}

/// Stores a 16-bit field at `offset`, in network byte order.
#[inline]
fn write_u16(bytes: &mut [u8], offset: usize, value: u16) {
    write(bytes, offset, &value.to_be_bytes());
}

/// Stores a 32-bit field at `offset`, in network byte order.
#[inline]
fn write_u32(bytes: &mut [u8], offset: usize, value: u32) {
    write(bytes, offset, &value.to_be_bytes());
}

#[cfg(test)]
mod tests;
