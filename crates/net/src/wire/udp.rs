//! UDP header (RFC 768).

use super::ParseError;
use super::field::{header, header_mut, read_u16, write_u16};

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// Source port; zero if no answer is expected.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Bytes of header and payload.
    pub length: u16,
    /// Checksum as on the wire; zero means none, which only IPv4 allows (RFC 8200 §8.1).
    pub checksum: u16,
}

impl Header {
    /// Reads the header at the start of `bytes`. `frame_payload_len` is the true length of the IP
    /// payload, which may exceed `bytes` (a copy of the headers) and the datagram (padding).
    #[inline]
    pub fn parse(bytes: &[u8], frame_payload_len: usize) -> Result<Self, ParseError> {
        let bytes: &[u8; HEADER_LEN] = header(bytes)?;
        let parsed = Self {
            source_port: read_u16(bytes, at::SOURCE_PORT),
            destination_port: read_u16(bytes, at::DESTINATION_PORT),
            length: read_u16(bytes, at::LENGTH),
            checksum: read_u16(bytes, at::CHECKSUM),
        };
        if usize::from(parsed.length) < HEADER_LEN {
            return Err(ParseError::BadLength);
        }
        if usize::from(parsed.length) > frame_payload_len {
            return Err(ParseError::Truncated);
        }
        Ok(parsed)
    }

    /// Writes [`HEADER_LEN`] bytes at the start of `bytes`, which must be at least as long. The
    /// checksum is written as given.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        let bytes: &mut [u8; HEADER_LEN] = header_mut(bytes);
        write_u16(bytes, at::SOURCE_PORT, self.source_port);
        write_u16(bytes, at::DESTINATION_PORT, self.destination_port);
        write_u16(bytes, at::LENGTH, self.length);
        write_u16(bytes, at::CHECKSUM, self.checksum);
        HEADER_LEN
    }

    /// Bytes of payload.
    #[inline]
    pub fn payload_len(&self) -> usize {
        usize::from(self.length).saturating_sub(HEADER_LEN)
    }
}

/// Bytes of the header: four fields of 2.
pub const HEADER_LEN: usize = 4 * 2;

/// Offset of the checksum in the header: `csum_offset` of checksum offload.
pub const CHECKSUM_OFFSET: usize = at::CHECKSUM;

/// Offsets of the fields.
pub(crate) mod at {
    pub(crate) const SOURCE_PORT: usize = 0;
    pub(crate) const DESTINATION_PORT: usize = 2;
    pub(crate) const LENGTH: usize = 4;
    pub(crate) const CHECKSUM: usize = 6;
}
