//! IPv6 header and extension headers (RFC 8200).
//!
//! # Theory of operation
//!
//! [`Header`] is the fixed part. [`Extensions::walk`] then follows the chain of extension headers,
//! as the packet's destination does, up to the upper-layer header, or to the fragment header of a
//! later fragment. No options and no routing types are recognised. The number of an option says how
//! to handle a packet with an unrecognised one; a routing header is an error unless no segments are
//! left. If a packet must be answered with an ICMPv6 message, the error has its code and pointer.
//!
//! Work is bounded: at most [`EXTENSION_HEADERS_MAX`] headers in the private copy, and each byte is
//! read once.

use core::net::Ipv6Addr;

use super::field::{header, header_mut, read, read_u16, read_u32, write, write_u16, write_u32};
use super::icmpv6::{
    ERRONEOUS_HEADER_FIELD, FIRST_FRAGMENT_INCOMPLETE, UNRECOGNIZED_NEXT_HEADER,
    UNRECOGNIZED_OPTION,
};
use super::{ParseError, Protocol, icmpv6, tcp, udp};

/// The fixed IPv6 header (RFC 8200 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Differentiated services code point (high 6 bits) and ECN (low 2 bits), RFC 3168 §5.
    pub traffic_class: u8,
    /// Flow label (RFC 6437); 20 bits.
    pub flow_label: u32,
    /// Bytes behind this header, extension headers included.
    pub payload_len: u16,
    /// First extension header, or protocol of the payload.
    pub next_header: Protocol,
    /// Hops left.
    pub hop_limit: u8,
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
}

impl Header {
    /// Reads the header at the start of `header_bytes`, a private copy of the packet's first bytes.
    /// `frame_len` is the true length of the IP packet including padding.
    pub fn parse(header_bytes: &[u8], frame_len: usize) -> Result<Self, ParseError> {
        let bytes: &[u8; HEADER_LEN] = header(header_bytes)?;
        let first = read_u32(bytes, at::VERSION_CLASS_LABEL);
        if first >> VERSION_SHIFT != VERSION {
            return Err(ParseError::BadVersion);
        }
        let payload_len = read_u16(bytes, at::PAYLOAD_LEN);
        if HEADER_LEN + usize::from(payload_len) > frame_len {
            return Err(ParseError::Truncated);
        }
        Ok(Self {
            traffic_class: (first >> TRAFFIC_CLASS_SHIFT) as u8,
            flow_label: first & FLOW_LABEL_MASK,
            payload_len,
            next_header: Protocol(bytes[at::NEXT_HEADER]),
            hop_limit: bytes[at::HOP_LIMIT],
            source: Ipv6Addr::from(read::<16>(bytes, at::SOURCE)),
            destination: Ipv6Addr::from(read::<16>(bytes, at::DESTINATION)),
        })
    }

    /// Writes [`HEADER_LEN`] bytes at the start of `bytes`, which must be at least as long.
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        assert!(self.flow_label <= FLOW_LABEL_MASK);
        let bytes: &mut [u8; HEADER_LEN] = header_mut(bytes);
        let first = VERSION << VERSION_SHIFT
            | u32::from(self.traffic_class) << TRAFFIC_CLASS_SHIFT
            | self.flow_label;
        write_u32(bytes, at::VERSION_CLASS_LABEL, first);
        write_u16(bytes, at::PAYLOAD_LEN, self.payload_len);
        bytes[at::NEXT_HEADER] = self.next_header.0;
        bytes[at::HOP_LIMIT] = self.hop_limit;
        write(bytes, at::SOURCE, &self.source.octets());
        write(bytes, at::DESTINATION, &self.destination.octets());
        HEADER_LEN
    }
}

/// Result of walking the extension headers (RFC 8200 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extensions {
    /// Protocol behind the extension headers. In a fragment with a non-zero offset it is the first
    /// header of the fragmentable part, which is not in this packet.
    pub protocol: Protocol,
    /// Bytes of all walked extension headers.
    pub len: usize,
    /// The fragment header, if there is one.
    pub fragment: Option<Fragment>,
}

impl Extensions {
    /// Walks the chain of extension headers that begins with `first`.
    ///
    /// `bytes` is a private copy of the bytes behind the fixed header and may end before the packet
    /// does; `payload_len` is the Payload Length of the fixed header.
    pub fn walk(first: Protocol, bytes: &[u8], payload_len: usize) -> Result<Self, ExtensionError> {
        let mut walk = Walk {
            bytes,
            payload_len,
            extensions: Self { protocol: first, len: 0, fragment: None },
            next_header_at: FIXED_HEADER,
        };
        for _ in 0..EXTENSION_HEADERS_MAX {
            if !walk.step()? {
                return walk.finish();
            }
        }
        if is_extension(walk.extensions.protocol) && !walk.is_later_fragment() {
            return Err(ExtensionError::TooLong);
        }
        walk.finish()
    }
}

/// A fragment header (RFC 8200 §4.5) and its position. Positions count from the end of the fixed
/// header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// Offset of the fragment's data in the fragmentable part in bytes; a multiple of 8.
    pub offset_bytes: u16,
    /// More fragments of the packet follow this one.
    pub more: bool,
    /// Identification, equal in all fragments of a packet.
    pub ident: u32,
    /// Position of the fragment header, which is also the length of the per-fragment headers before
    /// it.
    pub header_at: usize,
    /// Position of the Next Header field that precedes the fragment header; [`FIXED_HEADER`] if
    /// that is the fixed header's field.
    pub previous_next_header_at: usize,
}

/// Error of [`Extensions::walk`]: how to handle the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtensionError {
    /// Drop the packet and answer with an ICMPv6 Parameter Problem.
    ParameterProblem {
        /// Code of the message, such as [`icmpv6::UNRECOGNIZED_OPTION`].
        code: u8,
        /// Offset of the offending byte from the start of the IPv6 header.
        pointer: u32,
        /// Answer even if the packet was sent to a multicast address (RFC 8200 §4.2, RFC 4443 §2.4
        /// e).
        even_if_multicast: bool,
    },
    /// Drop the packet: the chain does not fit the private copy, or has more than
    /// [`EXTENSION_HEADERS_MAX`] headers (RFC 8504 §5.3 allows such limits).
    TooLong,
    /// Drop the packet without an answer.
    Silent,
}

/// Writes a fragment header (RFC 8200 §4.5) of [`FRAGMENT_HEADER_LEN`] bytes at the start of
/// `bytes`, which must be at least as long. `offset_bytes` is a multiple of 8.
pub fn emit_fragment_header(
    bytes: &mut [u8],
    next_header: Protocol,
    offset_bytes: u16,
    more: bool,
    ident: u32,
) -> usize {
    assert!(offset_bytes & !FRAGMENT_OFFSET_MASK == 0);
    let bytes: &mut [u8; FRAGMENT_HEADER_LEN] = header_mut(bytes);
    bytes[extension_at::NEXT_HEADER] = next_header.0;
    bytes[extension_at::LEN] = 0; // reserved in a fragment header
    let more = if more { MORE_FRAGMENTS } else { 0 };
    write_u16(bytes, extension_at::FRAGMENT_OFFSET, offset_bytes | more);
    write_u32(bytes, extension_at::FRAGMENT_IDENT, ident);
    FRAGMENT_HEADER_LEN
}

/// State of [`Extensions::walk`].
struct Walk<'a> {
    /// The private copy, which may hold padding behind the payload: see [`Walk::require`].
    bytes: &'a [u8],
    payload_len: usize,
    /// Result so far; `len` is the position of the next header.
    extensions: Extensions,
    /// Position of the Next Header field that names the next header.
    next_header_at: usize,
}

impl Walk<'_> {
    /// Processes the next header; false if it is not an extension header or is in another fragment.
    fn step(&mut self) -> Result<bool, ExtensionError> {
        if self.is_later_fragment() {
            return Ok(false);
        }
        let start = self.extensions.len;
        match self.extensions.protocol {
            Protocol::HOP_BY_HOP => {
                // RFC 8200 §4: only immediately after the fixed header.
                if self.next_header_at != FIXED_HEADER {
                    let pointer = pointer(self.next_header_at);
                    return Err(parameter_problem(UNRECOGNIZED_NEXT_HEADER, pointer));
                }
                let len = self.extension_len(8)?;
                self.options(start, len)?;
                self.advance(len);
            }
            Protocol::DESTINATION_OPTIONS => {
                let len = self.extension_len(8)?;
                self.options(start, len)?;
                self.advance(len);
            }
            Protocol::ROUTING => {
                let len = self.extension_len(8)?;
                // RFC 8200 §4.4: with no segments left any type is skipped; otherwise an
                // unrecognised type is an error, as is type 0 (RFC 5095 §3).
                if self.bytes[start + extension_at::SEGMENTS_LEFT] != 0 {
                    let pointer = pointer(start + extension_at::ROUTING_TYPE);
                    return Err(parameter_problem(ERRONEOUS_HEADER_FIELD, pointer));
                }
                self.advance(len);
            }
            Protocol::AH => {
                // RFC 4302 §2.2: the length is in units of 4 bytes, 2 less than the header's.
                let len = self.extension_len(4)?;
                self.advance(len);
            }
            Protocol::IPV6_FRAGMENT => self.fragment()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks, at the end of the chain, that a first fragment has all of it.
    fn finish(self) -> Result<Extensions, ExtensionError> {
        let first_of_many = self
            .extensions
            .fragment
            .is_some_and(|fragment| fragment.more && fragment.offset_bytes == 0);
        let upper_len = upper_header_len_min(self.extensions.protocol);
        if first_of_many && self.extensions.len + upper_len > self.payload_len {
            return Err(self.cut_short());
        }
        Ok(self.extensions)
    }

    /// Reads the fragment header at the current position.
    fn fragment(&mut self) -> Result<(), ExtensionError> {
        // A second fragment header is invalid: fragments are not fragmented again.
        if self.extensions.fragment.is_some() {
            return Err(ExtensionError::Silent);
        }
        self.require(FRAGMENT_HEADER_LEN)?;
        let header_at = self.extensions.len;
        let field = read_u16(self.bytes, header_at + extension_at::FRAGMENT_OFFSET);
        let fragment = Fragment {
            offset_bytes: field & FRAGMENT_OFFSET_MASK,
            more: field & MORE_FRAGMENTS != 0,
            ident: read_u32(self.bytes, header_at + extension_at::FRAGMENT_IDENT),
            header_at,
            previous_next_header_at: self.next_header_at,
        };
        let data_len = self.payload_len - header_at - FRAGMENT_HEADER_LEN;
        // RFC 8200 §4.5: every fragment but the last is a multiple of 8 bytes long.
        if fragment.more && !data_len.is_multiple_of(8) {
            let pointer = at::PAYLOAD_LEN as u32;
            return Err(parameter_problem(ERRONEOUS_HEADER_FIELD, pointer));
        }
        // RFC 8200 §4.5: the reassembled packet must fit the Payload Length field.
        let before = header_at + usize::from(fragment.offset_bytes);
        if before.saturating_add(data_len) > usize::from(u16::MAX) {
            let pointer = pointer(header_at + extension_at::FRAGMENT_OFFSET);
            return Err(parameter_problem(ERRONEOUS_HEADER_FIELD, pointer));
        }
        self.extensions.fragment = Some(fragment);
        self.advance(FRAGMENT_HEADER_LEN);
        Ok(())
    }

    /// Walks the options of the header of `len` bytes at `start` (RFC 8200 §4.2).
    fn options(&self, start: usize, len: usize) -> Result<(), ExtensionError> {
        let options = &self.bytes[..start + len];
        let mut place = start + extension_at::OPTIONS;
        while let Some(&kind) = options.get(place) {
            if kind == OPTION_PAD1 {
                place += 1;
                continue;
            }
            let &len = options.get(place + 1).ok_or(ExtensionError::Silent)?;
            let end = place + 2 + usize::from(len);
            if end > options.len() {
                return Err(ExtensionError::Silent);
            }
            if kind != OPTION_PADN {
                unrecognized_option(kind, pointer(place))?;
            }
            place = end;
        }
        Ok(())
    }

    /// Length of the extension header at the current position, whose length field counts units of
    /// `unit` bytes beyond the first 8. The whole header is in the private copy.
    fn extension_len(&self, unit: usize) -> Result<usize, ExtensionError> {
        self.require(EXTENSION_HEADER_LEN_MIN)?;
        let len = EXTENSION_HEADER_LEN_MIN
            + usize::from(self.bytes[self.extensions.len + extension_at::LEN]) * unit;
        self.require(len)?;
        Ok(len)
    }

    /// Checks that the next `len` bytes are within the packet and in the private copy.
    fn require(&self, len: usize) -> Result<(), ExtensionError> {
        let end = self.extensions.len + len;
        if end > self.payload_len {
            Err(self.cut_short())
        } else if end > self.bytes.len() {
            Err(ExtensionError::TooLong)
        } else {
            Ok(())
        }
    }

    /// Skips the current header of `len` bytes.
    fn advance(&mut self, len: usize) {
        let start = self.extensions.len;
        self.next_header_at = start + extension_at::NEXT_HEADER;
        self.extensions.protocol = Protocol(self.bytes[self.next_header_at]);
        self.extensions.len = start + len;
    }

    /// Error of a packet that ends within the chain.
    fn cut_short(&self) -> ExtensionError {
        match self.extensions.fragment {
            // RFC 7112 §5, RFC 8200 §4.5: a first fragment must have the whole chain.
            Some(fragment) if fragment.more => parameter_problem(FIRST_FRAGMENT_INCOMPLETE, 0),
            _ => ExtensionError::Silent,
        }
    }

    /// True if the fragment's offset is not zero, so that the next header is in another fragment.
    fn is_later_fragment(&self) -> bool {
        self.extensions.fragment.is_some_and(|fragment| fragment.offset_bytes != 0)
    }
}

/// How to handle a packet with an unrecognised option: given by the two high bits of its number
/// (RFC 8200 §4.2).
fn unrecognized_option(kind: u8, pointer: u32) -> Result<(), ExtensionError> {
    let answer = |even_if_multicast| ExtensionError::ParameterProblem {
        code: UNRECOGNIZED_OPTION,
        pointer,
        even_if_multicast,
    };
    match kind >> 6 {
        0b00 => Ok(()),
        0b01 => Err(ExtensionError::Silent),
        0b10 => Err(answer(true)),
        _ => Err(answer(false)),
    }
}

/// A Parameter Problem that is not sent for packets to multicast addresses.
fn parameter_problem(code: u8, pointer: u32) -> ExtensionError {
    ExtensionError::ParameterProblem { code, pointer, even_if_multicast: false }
}

/// Converts a position behind the fixed header, or [`FIXED_HEADER`], to a pointer from the start of
/// the packet.
fn pointer(place: usize) -> u32 {
    match place {
        FIXED_HEADER => at::NEXT_HEADER as u32,
        // A position is at most the longest payload.
        _ => (HEADER_LEN + place) as u32,
    }
}

/// True if `protocol` is an extension header that the walk skips.
fn is_extension(protocol: Protocol) -> bool {
    matches!(
        protocol,
        Protocol::HOP_BY_HOP
            | Protocol::ROUTING
            | Protocol::IPV6_FRAGMENT
            | Protocol::AH
            | Protocol::DESTINATION_OPTIONS
    )
}

/// Minimum header length of known upper-layer protocols: a first fragment must include that header
/// (RFC 7112 §3).
fn upper_header_len_min(protocol: Protocol) -> usize {
    match protocol {
        Protocol::TCP => tcp::HEADER_LEN,
        Protocol::UDP => udp::HEADER_LEN,
        Protocol::ICMPV6 => icmpv6::HEADER_LEN,
        _ => 0,
    }
}

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Bytes of a fragment header.
pub const FRAGMENT_HEADER_LEN: usize = 8;

/// Maximum number of extension headers in one packet: the six kinds of RFC 8200 §4.1, of which
/// destination options may occur twice, and one to spare.
pub const EXTENSION_HEADERS_MAX: usize = 6 + 1 + 1;

/// The fixed header in [`Fragment::previous_next_header_at`].
pub const FIXED_HEADER: usize = usize::MAX;

/// Minimum length of an extension header.
const EXTENSION_HEADER_LEN_MIN: usize = 8;

const VERSION: u32 = 6;
const VERSION_SHIFT: u32 = 28;
const TRAFFIC_CLASS_SHIFT: u32 = 20;
pub(crate) const FLOW_LABEL_MASK: u32 = 0x000f_ffff;
const FRAGMENT_OFFSET_MASK: u16 = 0xfff8;
const MORE_FRAGMENTS: u16 = 0x0001;
const OPTION_PAD1: u8 = 0;
const OPTION_PADN: u8 = 1;

/// Offsets of the fields of the fixed header.
pub(crate) mod at {
    pub(crate) const VERSION_CLASS_LABEL: usize = 0;
    /// The byte whose bits 4 and 5 are the ECN field.
    pub(crate) const ECN: usize = 1;
    pub(crate) const PAYLOAD_LEN: usize = 4;
    pub(crate) const NEXT_HEADER: usize = 6;
    pub(crate) const HOP_LIMIT: usize = 7;
    pub(crate) const SOURCE: usize = 8;
    pub(crate) const DESTINATION: usize = 24;
}

/// Offsets of the fields of extension headers.
mod extension_at {
    pub(super) const NEXT_HEADER: usize = 0;
    pub(super) const LEN: usize = 1;
    pub(super) const OPTIONS: usize = 2;
    pub(super) const ROUTING_TYPE: usize = 2;
    pub(super) const SEGMENTS_LEFT: usize = 3;
    pub(super) const FRAGMENT_OFFSET: usize = 2;
    pub(super) const FRAGMENT_IDENT: usize = 4;
}

#[cfg(test)]
mod tests;
