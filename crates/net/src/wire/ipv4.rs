//! IPv4 header (RFC 791, RFC 1122 §3.2.1).
//!
//! Options are checked for validity and for source routes, and otherwise ignored. No options are
//! sent.

use core::net::Ipv4Addr;

use super::field::{header, header_mut, read, read_u16, write, write_u16};
use super::{ParseError, Protocol};

/// An IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Differentiated services code point (high 6 bits) and ECN (low 2 bits), RFC 3168 §5.
    pub tos: u8,
    /// Identification, equal in all fragments of a datagram.
    pub ident: u16,
    /// Routers must not fragment the packet.
    pub dont_fragment: bool,
    /// More fragments of the datagram follow this one.
    pub more_fragments: bool,
    /// Offset of the payload in the datagram in bytes; a multiple of 8.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Bytes of header and payload.
    pub total_len: u16,
    /// Bytes of the header with options.
    pub header_len: u8,
    /// The options include a loose or strict source route, which hosts should not follow (RFC 7126
    /// §4.3, §4.4).
    pub has_source_route: bool,
}

/// Header length with options, from the start of `bytes`. `None` if fewer than [`HEADER_LEN`] bytes
/// are given, the version is not 4, or the header length field is smaller than [`HEADER_LEN`].
#[inline]
pub(crate) fn header_len(bytes: &[u8]) -> Option<usize> {
    let fixed: &[u8; HEADER_LEN] = bytes.first_chunk()?;
    let len = usize::from(fixed[at::VERSION_IHL] & 0x0f) * 4;
    (fixed[at::VERSION_IHL] >> 4 == VERSION && len >= HEADER_LEN).then_some(len)
}

impl Header {
    /// Reads the header at the start of `header_bytes`, a private copy of the packet's first bytes,
    /// and verifies its checksum. `frame_len` is the true length of the IP packet including
    /// padding.
    ///
    /// The reserved flag is ignored. A fragment that reaches beyond the longest datagram is
    /// [`ParseError::BadLength`].
    pub fn parse(header_bytes: &[u8], frame_len: usize) -> Result<Self, ParseError> {
        Self::parse_with(header_bytes, frame_len, true)
    }

    /// Reads a header that an ICMP error quotes. Its checksum is not verified: routers change
    /// the header, and not all update the checksum (RFC 1812 §4.3.2.3 does not ask them to).
    pub fn parse_quoted(header_bytes: &[u8]) -> Result<Self, ParseError> {
        Self::parse_with(header_bytes, usize::from(u16::MAX), false)
    }

    fn parse_with(
        header_bytes: &[u8],
        frame_len: usize,
        check_sum: bool,
    ) -> Result<Self, ParseError> {
        let fixed: &[u8; HEADER_LEN] = header(header_bytes)?;
        if fixed[at::VERSION_IHL] >> 4 != VERSION {
            return Err(ParseError::BadVersion);
        }
        let header_len = header_len(fixed).ok_or(ParseError::BadLength)?;
        let total_len = read_u16(fixed, at::TOTAL_LEN);
        if usize::from(total_len) < header_len {
            return Err(ParseError::BadLength);
        }
        let all = header_bytes.get(..header_len).ok_or(ParseError::Truncated)?;
        if check_sum && header_sum(all) != 0xffff {
            return Err(ParseError::BadChecksum);
        }
        if usize::from(total_len) > frame_len {
            return Err(ParseError::Truncated);
        }
        let fragment = read_u16(fixed, at::FRAGMENT);
        let fragment_offset = (fragment & FRAGMENT_OFFSET_MASK) * FRAGMENT_UNIT;
        // RFC 791 §3.1: the reassembled datagram must fit the Total Length field.
        if fragment_offset.checked_add(total_len).is_none() {
            return Err(ParseError::BadLength);
        }
        Ok(Self {
            tos: fixed[at::TOS],
            ident: read_u16(fixed, at::IDENT),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset,
            ttl: fixed[at::TTL],
            protocol: Protocol(fixed[at::PROTOCOL]),
            source: Ipv4Addr::from(read::<4>(fixed, at::SOURCE)),
            destination: Ipv4Addr::from(read::<4>(fixed, at::DESTINATION)),
            total_len,
            header_len: header_len as u8,
            has_source_route: find_source_route(&all[HEADER_LEN..])?,
        })
    }

    /// Writes the header of [`HEADER_LEN`] bytes, without options and with its checksum, at the
    /// start of `bytes`, which must be at least as long. `total_len` is written as given;
    /// `header_len` and `has_source_route` are ignored.
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        assert!(self.fragment_offset.is_multiple_of(FRAGMENT_UNIT));
        let bytes: &mut [u8; HEADER_LEN] = header_mut(bytes);
        let mut fragment = self.fragment_offset / FRAGMENT_UNIT;
        if self.dont_fragment {
            fragment |= DONT_FRAGMENT;
        }
        if self.more_fragments {
            fragment |= MORE_FRAGMENTS;
        }
        bytes[at::VERSION_IHL] = VERSION << 4 | (HEADER_LEN / 4) as u8;
        bytes[at::TOS] = self.tos;
        write_u16(bytes, at::TOTAL_LEN, self.total_len);
        write_u16(bytes, at::IDENT, self.ident);
        write_u16(bytes, at::FRAGMENT, fragment);
        bytes[at::TTL] = self.ttl;
        bytes[at::PROTOCOL] = self.protocol.0;
        write_u16(bytes, at::CHECKSUM, 0);
        write(bytes, at::SOURCE, &self.source.octets());
        write(bytes, at::DESTINATION, &self.destination.octets());
        let checksum = !header_sum(bytes);
        write_u16(bytes, at::CHECKSUM, checksum);
        HEADER_LEN
    }

    /// Bytes of payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        usize::from(self.total_len).saturating_sub(usize::from(self.header_len))
    }

    /// True if the packet is a fragment.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }
}

/// One's complement sum of a header, whose length is a multiple of 4 and at most
/// [`HEADER_LEN_MAX`]. Not done by [`crate::checksum`], which depends on this module and would gain
/// nothing for short input.
#[inline]
fn header_sum(header: &[u8]) -> u16 {
    debug_assert!(header.len().is_multiple_of(4) && header.len() <= HEADER_LEN_MAX);
    let (words, _) = header.as_chunks::<4>();
    let sum: u64 = words.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum();
    // At most 15 words of 32 bits: 36 bits, then 21, then 17, then 16.
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// Checks that the options fill their space exactly or end early (RFC 791 §3.1); returns whether
/// they include a source route.
fn find_source_route(mut options: &[u8]) -> Result<bool, ParseError> {
    let mut found = false;
    while let Some(&kind) = options.first() {
        let len = match (kind, options.get(1)) {
            (OPTION_END, _) => break,
            (OPTION_NOP, _) => 1,
            (_, Some(&len)) if len >= 2 => usize::from(len),
            _ => return Err(ParseError::BadOption),
        };
        options = options.get(len..).ok_or(ParseError::BadOption)?;
        found |= matches!(kind, OPTION_LOOSE_SOURCE_ROUTE | OPTION_STRICT_SOURCE_ROUTE);
    }
    Ok(found)
}

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// Bytes of the longest header: 15 words of 4.
pub const HEADER_LEN_MAX: usize = 15 * 4;

/// Unit of fragment offsets in bytes.
pub const FRAGMENT_UNIT: u16 = 8;

const VERSION: u8 = 4;
const DONT_FRAGMENT: u16 = 0x4000;
pub(crate) const MORE_FRAGMENTS: u16 = 0x2000;
/// The offset in the field of flags and fragment offset.
pub(crate) const FRAGMENT_OFFSET_MASK: u16 = 0x1fff;
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_LOOSE_SOURCE_ROUTE: u8 = 131;
const OPTION_STRICT_SOURCE_ROUTE: u8 = 137;

const _: () = assert!(FRAGMENT_OFFSET_MASK as u32 * FRAGMENT_UNIT as u32 <= u16::MAX as u32);

/// Offsets of the fields.
pub(crate) mod at {
    pub(crate) const VERSION_IHL: usize = 0;
    pub(crate) const TOS: usize = 1;
    pub(crate) const TOTAL_LEN: usize = 2;
    pub(crate) const IDENT: usize = 4;
    pub(crate) const FRAGMENT: usize = 6;
    pub(crate) const TTL: usize = 8;
    pub(crate) const PROTOCOL: usize = 9;
    pub(crate) const CHECKSUM: usize = 10;
    pub(crate) const SOURCE: usize = 12;
    pub(crate) const DESTINATION: usize = 16;
}

#[cfg(test)]
mod tests;
