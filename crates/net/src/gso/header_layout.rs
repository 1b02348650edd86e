//! The shape of a packet's private headers, and the fields that segmentation and coalescing
//! rewrite.
//!
//! [`Headers::read`] and [`Shape::of`] are the only checks between bytes from an untrusted sender
//! and the offsets used to patch them. Length fields of the packet are not trusted; they are
//! written anew from the actual bytes.

use towpath_packet::segmentation::{self, Template};

use crate::checksum::{self, Sum};
use crate::wire::field::{read_u16, write_u16};
use crate::wire::headers::{Headers, Transport, Version};
use crate::wire::{Protocol, ipv4, ipv6, tcp, udp};

/// Kinds and offsets of the headers of an unfragmented TCP or UDP packet. Valid for the headers
/// that it was read from, and for copies of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) version: Version,
    pub(crate) transport: Transport,
    /// Start of the IP header.
    pub(crate) ip_at: usize,
    /// Start of the transport header.
    pub(crate) transport_at: usize,
    /// End of the transport header, and of all headers.
    pub(crate) end: usize,
}

impl Shape {
    /// The shape of a packet whose private headers have `len` bytes. `None` if it is a fragment,
    /// neither TCP nor UDP, or these bytes do not end with the transport header.
    #[inline]
    pub(crate) fn of(headers: &Headers, len: usize) -> Option<Self> {
        let Headers { version, ip_at, transport_at, end, .. } = *headers;
        let shape = Self { version, transport: headers.transport?, ip_at, transport_at, end };
        (end == len).then_some(shape)
    }

    /// Offset of the transport checksum from the start of the transport header.
    pub(crate) fn checksum_offset(&self) -> usize {
        match self.transport {
            Transport::Tcp => tcp::CHECKSUM_OFFSET,
            Transport::Udp => udp::CHECKSUM_OFFSET,
        }
    }

    /// Offset of the transport checksum from the start of the frame.
    pub(crate) fn checksum_at(&self) -> usize {
        self.transport_at + self.checksum_offset()
    }

    /// Length of the transport header and `payload` bytes behind it.
    pub(crate) fn transport_len(&self, payload: usize) -> usize {
        self.end - self.transport_at + payload
    }

    /// Length of the IP packet with `payload` bytes behind the transport header.
    pub(crate) fn ip_len(&self, payload: usize) -> usize {
        self.end - self.ip_at + payload
    }

    /// Value of the IP header's length field for this payload.
    pub(crate) fn ip_length_field(&self, payload: usize) -> usize {
        match self.version {
            Version::V4 => self.ip_len(payload),
            Version::V6 => self.ip_len(payload) - ipv6::HEADER_LEN,
        }
    }

    /// Current value of the IP header's length field.
    pub(crate) fn stated_ip_length(&self, headers: &[u8]) -> usize {
        usize::from(read_u16(headers, self.ip_length_at()))
    }

    /// Writes the length fields for `payload` bytes: of IP and, if present, of UDP.
    pub(crate) fn write_lengths(&self, headers: &mut [u8], payload: usize) {
        write_u16(headers, self.ip_length_at(), length(self.ip_length_field(payload)));
        if self.transport == Transport::Udp {
            let at = self.transport_at + udp::at::LENGTH;
            write_u16(headers, at, length(self.transport_len(payload)));
        }
    }

    /// Completes the checksum of an IPv4 header; IPv6 has none.
    pub(crate) fn write_ip_checksum(&self, headers: &mut [u8]) {
        if self.version == Version::V4 {
            write_ipv4_checksum(&mut headers[self.ip_at..self.transport_at]);
        }
    }

    /// Sum over an IPv4 header without its length, identification and checksum; zero for IPv6,
    /// which has no header checksum.
    pub(crate) fn ipv4_sum(&self, headers: &[u8]) -> Sum {
        let mut sum = Sum::new();
        if self.version == Version::V4 {
            let header = &headers[self.ip_at..self.transport_at];
            sum.add(&header[..ipv4::at::TOTAL_LEN]);
            sum.add(&header[ipv4::at::FRAGMENT..ipv4::at::CHECKSUM]);
            sum.add(&header[ipv4::at::SOURCE..]);
        }
        sum
    }

    /// Template for the headers of parts of the packet with these headers.
    pub(crate) fn template(&self, headers: &[u8]) -> Template {
        Template::new(segmentation::Layout {
            is_ipv4: self.version == Version::V4,
            is_tcp: self.transport == Transport::Tcp,
            ip_at: self.ip_at as u16,
            transport_at: self.transport_at as u16,
            end: self.end as u16,
            pseudo_header: self.pseudo_header(headers, 0).fold(),
            ip_header: self.ipv4_sum(headers).fold(),
        })
    }

    /// Sum over the pseudo-header of a packet whose transport header and payload have `len` bytes.
    pub(crate) fn pseudo_header(&self, headers: &[u8], len: usize) -> Sum {
        let (source, destination) = self.version.addresses(&headers[self.ip_at..]);
        let protocol = match self.transport {
            Transport::Tcp => Protocol::TCP,
            Transport::Udp => Protocol::UDP,
        };
        checksum::pseudo_header(source, destination, protocol, len as u32)
    }

    /// Addresses and ports as bytes, which identify a flow of a protocol.
    pub(crate) fn flow<'a>(&self, headers: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        let addresses = match self.version {
            Version::V4 => self.ip_at + ipv4::at::SOURCE..self.ip_at + ipv4::HEADER_LEN,
            Version::V6 => self.ip_at + ipv6::at::SOURCE..self.ip_at + ipv6::HEADER_LEN,
        };
        (&headers[addresses], &headers[self.transport_at..self.transport_at + PORTS_LEN])
    }

    fn ip_length_at(&self) -> usize {
        self.ip_at
            + match self.version {
                Version::V4 => ipv4::at::TOTAL_LEN,
                Version::V6 => ipv6::at::PAYLOAD_LEN,
            }
    }
}

/// Computes and stores the checksum of an IPv4 header, which is all of `header`.
pub(crate) fn write_ipv4_checksum(header: &mut [u8]) {
    write_u16(header, ipv4::at::CHECKSUM, 0);
    let mut sum = Sum::new();
    sum.add(header);
    write_u16(header, ipv4::at::CHECKSUM, sum.finish());
}

/// The value of a 16-bit length field.
fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("an IP packet is at most IP_BYTES_MAX long")
}

/// Longest IP packet: the maximum of IPv4's Total Length. IPv6 allows 40 bytes more; jumbograms are
/// not supported.
pub const IP_BYTES_MAX: usize = u16::MAX as usize;

/// Bytes of both ports, first in either transport header.
const PORTS_LEN: usize = 4;
