//! The shape of a packet's private headers, and the fields that segmentation and coalescing
//! rewrite.
//!
//! [`Shape::read`] is the only check between bytes from an untrusted sender and the offsets used to
//! patch them. It stores no field, only the kinds and offsets of the headers. Length fields are not
//! trusted; they are written anew from the actual bytes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_packet::segmentation::{self, Template};

use crate::checksum::{self, Sum};
use crate::wire::field::{read, read_u16, write_u16};
use crate::wire::{Protocol, ipv4, ipv6, tcp, udp};

/// Offsets of a packet's headers from the start of the frame.
///
/// `Packet::headers` ends with the transport header; the pieces are its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the IP header.
    pub ip_at: usize,
    /// Offset behind the IP header and its options or extension headers.
    pub transport_at: usize,
}

/// Version of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V4,
    V6,
}

/// Kind of the transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

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
    /// Checks `headers` against `layout`. `None` if the packet is a fragment, neither TCP nor UDP,
    /// or its headers do not end where the layout and their own lengths say.
    pub(crate) fn read(headers: &[u8], layout: Layout) -> Option<Self> {
        let Layout { ip_at, transport_at } = layout;
        let ip = headers.get(ip_at..transport_at)?;
        let (version, protocol) = match ip.first()? >> 4 {
            4 => (Version::V4, ipv4_protocol(ip)?),
            6 => (Version::V6, ipv6_protocol(ip)?),
            _ => return None,
        };
        let header = &headers[transport_at..];
        let (transport, len) = match protocol {
            Protocol::TCP => (Transport::Tcp, tcp::header_len(header)?),
            Protocol::UDP => (Transport::Udp, udp::HEADER_LEN),
            _ => return None,
        };
        let end = headers.len();
        let shape = Self { version, transport, ip_at, transport_at, end };
        (header.len() == len).then_some(shape)
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
        let (source, destination) = self.addresses(headers);
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

    fn addresses(&self, headers: &[u8]) -> (IpAddr, IpAddr) {
        let (source, destination) = match self.version {
            Version::V4 => (ipv4::at::SOURCE, ipv4::at::DESTINATION),
            Version::V6 => (ipv6::at::SOURCE, ipv6::at::DESTINATION),
        };
        let read = |offset| match self.version {
            Version::V4 => IpAddr::V4(Ipv4Addr::from(read::<4>(headers, self.ip_at + offset))),
            Version::V6 => IpAddr::V6(Ipv6Addr::from(read::<16>(headers, self.ip_at + offset))),
        };
        (read(source), read(destination))
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

/// Protocol of an unfragmented datagram whose IPv4 header, including options, is exactly `ip`.
fn ipv4_protocol(ip: &[u8]) -> Option<Protocol> {
    if ipv4::header_len(ip)? != ip.len() {
        return None;
    }
    let is_fragment = read_u16(ip, ipv4::at::FRAGMENT) & ipv4::FRAGMENT_MASK != 0;
    (!is_fragment).then_some(Protocol(ip[ipv4::at::PROTOCOL]))
}

/// Protocol behind the IPv6 header and extension headers, which are exactly `ip`.
fn ipv6_protocol(ip: &[u8]) -> Option<Protocol> {
    let chain = ip.get(ipv6::HEADER_LEN..)?;
    let first = Protocol(ip[ipv6::at::NEXT_HEADER]);
    let walked = ipv6::Extensions::walk(first, chain, chain.len()).ok()?;
    (walked.len == chain.len() && walked.fragment.is_none()).then_some(walked.protocol)
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
