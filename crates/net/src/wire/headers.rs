//! The headers of an IP packet: which they are, and where. Read once per packet.
//!
//! [`Headers`] has kinds and offsets, but no fields. The stack, the switch, segmentation,
//! coalescing and fragmentation pass it along with the packet instead of reading headers again. It
//! is valid for the bytes that it was read from and for copies of them.
//!
//! Only the fields that say where headers end are read. [`ipv4`] and [`ipv6`] check lengths of the
//! packet, checksums and options. RFC 791 §3.1, RFC 8200 §4, RFC 9293 §3.1, RFC 768.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::field::{read, read_u16};
use super::{Protocol, ipv4, ipv6, tcp, udp};

/// Version of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Version {
    /// Source and destination in an IP header of this version.
    pub(crate) fn addresses(self, ip: &[u8]) -> (IpAddr, IpAddr) {
        let (source, destination) = match self {
            Self::V4 => (ipv4::at::SOURCE, ipv4::at::DESTINATION),
            Self::V6 => (ipv6::at::SOURCE, ipv6::at::DESTINATION),
        };
        let read = |offset| match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::from(read::<4>(ip, offset))),
            Self::V6 => IpAddr::V6(Ipv6Addr::from(read::<16>(ip, offset))),
        };
        (read(source), read(destination))
    }
}

/// Kind of a transport header with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Which part of a fragmented packet a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The packet is not fragmented.
    Whole,
    /// The first fragment, or one that is complete by itself (RFC 6946).
    First,
    /// A later fragment, which has no transport header.
    Later,
}

impl Part {
    /// The part with this fragment offset, if `more` fragments follow or not.
    #[inline]
    pub(crate) fn of(offset: u16, more: bool) -> Self {
        match (offset, more) {
            (0, false) => Self::Whole,
            (0, true) => Self::First,
            _ => Self::Later,
        }
    }
}

/// Kinds of a packet's headers, and their offsets from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Offset of the IP header.
    pub ip_at: usize,
    /// Offset behind the IP header and its options or extension headers.
    pub transport_at: usize,
    /// End of the TCP or UDP header if the packet is whole; otherwise the same as `transport_at`.
    pub end: usize,
    /// Version of the IP header.
    pub version: Version,
    /// Protocol behind the IP header and its extension headers.
    pub protocol: Protocol,
    /// Kind of the transport header, if the packet is whole and has a valid one.
    pub transport: Option<Transport>,
    /// Whether the packet is a fragment.
    pub part: Part,
}

impl Headers {
    /// Finds the headers of the IP packet at `ip_at` in the first bytes of a frame. `None` if it is
    /// no IP packet, an extension header is invalid, or not all headers are in these bytes.
    pub fn read(bytes: &[u8], ip_at: usize) -> Option<Self> {
        Self::read_ip(bytes, ip_at)?.with_transport(bytes)
    }

    /// Finds the headers of the IP packet at `ip_at`, but not its transport header, which may be
    /// behind these bytes.
    pub fn read_ip(bytes: &[u8], ip_at: usize) -> Option<Self> {
        let ip = bytes.get(ip_at..)?;
        match ip.first()? >> 4 {
            4 => Self::read_ipv4(ip, ip_at),
            6 => Self::read_ipv6(ip, ip_at),
            _ => None,
        }
    }

    fn read_ipv4(ip: &[u8], ip_at: usize) -> Option<Self> {
        let len = ipv4::header_len(ip).filter(|&len| len <= ip.len())?;
        let field = read_u16(ip, ipv4::at::FRAGMENT);
        let offset = field & ipv4::FRAGMENT_OFFSET_MASK;
        let part = Part::of(offset, field & ipv4::MORE_FRAGMENTS != 0);
        Some(Self::new(Version::V4, ip_at, len, Protocol(ip[ipv4::at::PROTOCOL]), part))
    }

    fn read_ipv6(ip: &[u8], ip_at: usize) -> Option<Self> {
        let (header, chain) = ip.split_first_chunk::<{ ipv6::HEADER_LEN }>()?;
        let payload_len = usize::from(read_u16(header, ipv6::at::PAYLOAD_LEN));
        let first = Protocol(header[ipv6::at::NEXT_HEADER]);
        let walked = ipv6::Extensions::walk(first, chain, payload_len).ok()?;
        let part =
            walked.fragment.map_or(Part::Whole, |fragment| Part::of(fragment.offset_bytes, true));
        let len = ipv6::HEADER_LEN + walked.len;
        Some(Self::new(Version::V6, ip_at, len, walked.protocol, part))
    }

    /// Headers without a transport header: an IP header and its options or extension headers of
    /// `len` bytes.
    pub(crate) fn new(
        version: Version,
        ip_at: usize,
        len: usize,
        protocol: Protocol,
        part: Part,
    ) -> Self {
        let transport_at = ip_at + len;
        Self { ip_at, transport_at, end: transport_at, version, protocol, transport: None, part }
    }

    /// Finds the transport header in the first bytes of the frame, which must not reach beyond the
    /// packet. `None` if not all headers are in these bytes.
    #[inline]
    pub(crate) fn with_transport(mut self, bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(self.transport_at..)?;
        if self.part != Part::Whole {
            return Some(self);
        }
        let len = match self.protocol {
            Protocol::TCP => {
                let len = tcp::header_len(header);
                self.transport = len.map(|_| Transport::Tcp);
                len.unwrap_or(tcp::HEADER_LEN)
            }
            Protocol::UDP => {
                self.transport = Some(Transport::Udp);
                udp::HEADER_LEN
            }
            _ => 0,
        };
        self.end += len;
        (len <= header.len()).then_some(self)
    }

    /// The same headers after bytes were inserted or removed in front of them.
    pub(crate) fn moved(self, by: isize) -> Self {
        let moved = |offset: usize| offset.saturating_add_signed(by);
        let (ip_at, transport_at) = (moved(self.ip_at), moved(self.transport_at));
        Self { ip_at, transport_at, end: moved(self.end), ..self }
    }
}

const _: () = assert!(size_of::<Headers>() <= 32);

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::{captured, ethernet};
    use super::*;

    const IP_AT: usize = ethernet::HEADER_LEN;

    fn read(hex: &str) -> (std::vec::Vec<u8>, Option<Headers>) {
        let frame = captured::bytes(hex);
        let headers = Headers::read(&frame, IP_AT);
        (frame, headers)
    }

    #[test]
    fn captured_packets_are_located() {
        let v4 = |len, protocol| Headers::new(Version::V4, IP_AT, len, protocol, Part::Whole);
        let v6 = |len, protocol| Headers::new(Version::V6, IP_AT, len, protocol, Part::Whole);
        let tcp = |headers: Headers, len| Headers {
            end: headers.end + len,
            transport: Some(Transport::Tcp),
            ..headers
        };
        let udp = |headers: Headers| Headers {
            end: headers.end + udp::HEADER_LEN,
            transport: Some(Transport::Udp),
            ..headers
        };
        for (hex, expected) in [
            (captured::SYN_V4, tcp(v4(20, Protocol::TCP), 40)),
            (captured::SYN_V6, tcp(v6(40, Protocol::TCP), 40)),
            (captured::UDP_V4, udp(v4(20, Protocol::UDP))),
            (captured::UDP_V6, udp(v6(40, Protocol::UDP))),
            (captured::ECHO_REQUEST_V4, v4(20, Protocol::ICMP)),
            (captured::MULTICAST_REPORT, v6(48, Protocol::ICMPV6)),
            (captured::FRAGMENT_V4, Headers { part: Part::Later, ..v4(20, Protocol::ICMP) }),
            (captured::FRAGMENT_V6, Headers { part: Part::Later, ..v6(48, Protocol::ICMPV6) }),
        ] {
            assert_eq!(read(hex).1, Some(expected));
        }
        assert_eq!(read(captured::ARP_REQUEST).1, None);
    }

    /// Bad input: each header cut short, other versions, short header lengths.
    #[test]
    fn headers_that_are_not_whole_are_none() {
        for hex in [captured::SYN_V4, captured::UDP_V4, captured::SYN_V6, captured::UDP_V6] {
            let (mut frame, headers) = read(hex);
            let end = headers.unwrap().end;
            assert_eq!(Headers::read(&frame[..end], IP_AT), headers);
            for len in 0..end {
                assert_eq!(Headers::read(&frame[..len], IP_AT), None, "{len} bytes");
            }
            for version in [0, 1, 5, 7, 15] {
                frame[IP_AT] = version << 4 | frame[IP_AT] & 15;
                assert_eq!(Headers::read(&frame, IP_AT), None, "version {version}");
            }
        }
        let (mut frame, _) = read(captured::SYN_V4);
        frame[IP_AT] = 0x44;
        assert_eq!(Headers::read(&frame, IP_AT), None, "a header of 16 bytes");
        // A bad data offset leaves the fixed header, of no valid transport.
        let (mut frame, headers) = read(captured::SYN_V4);
        let at = headers.unwrap().transport_at;
        frame[at + 12] = 0x40;
        let bad = Headers::read(&frame, IP_AT).unwrap();
        assert_eq!((bad.transport, bad.end), (None, at + tcp::HEADER_LEN));
    }

    #[test]
    fn first_fragments_are_told_from_later_ones() {
        let (mut frame, _) = read(captured::UDP_V4);
        for (field, part) in [
            (0x4000, Part::Whole),
            (0x8000, Part::Whole),
            (0x2000, Part::First),
            (0x2001, Part::Later),
            (0x0001, Part::Later),
        ] {
            super::super::field::write_u16(&mut frame, IP_AT + ipv4::at::FRAGMENT, field);
            let headers = Headers::read(&frame, IP_AT).unwrap();
            assert_eq!(headers.part, part);
            assert_eq!(headers.transport.is_some(), part == Part::Whole);
        }
    }
}
