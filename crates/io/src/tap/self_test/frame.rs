//! Frames of a self-test: builds those for the program, and parses those from it.
//!
//! Implements just enough of Ethernet, IP, UDP and TCP for packets without extension headers, which
//! is what sockets without options send.

use std::net::IpAddr;
use towpath_packet::{Checksum, Gso, GsoKind, Offload};

pub(super) const SYN: u8 = 0x02;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
const TCP_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// The two ends of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) program: IpAddr,
    pub(super) gateway: IpAddr,
    pub(super) program_mac: [u8; 6],
    pub(super) gateway_mac: [u8; 6],
    pub(super) mtu: u16,
}

/// Ports of a frame, and its TCP fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Transport {
    pub(super) source: u16,
    pub(super) destination: u16,
    pub(super) tcp: Option<Tcp>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tcp {
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) flags: u8,
    /// The MSS option, when a frame is built.
    pub(super) mss: Option<u16>,
}

/// For the fuzz targets: the payload of a frame that parses must lie in the frame.
pub fn fuzz(frame: &[u8], v4: bool) {
    let (program, gateway): (IpAddr, IpAddr) = if v4 {
        ([10, 0, 2, 15].into(), [10, 0, 2, 2].into())
    } else {
        ([0xfd00, 0, 0, 0, 0, 0, 0, 15].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 2].into())
    };
    let (program_mac, gateway_mac) = ([2, 0, 0, 0, 0, 15], [2, 0, 0, 0, 0, 2]);
    let path = Path { program, gateway, program_mac, gateway_mac, mtu: 1500 };
    if let Some((transport, payload)) = path.parse(frame) {
        assert!(frame.ends_with(payload) && payload.len() + path.transport_at() <= frame.len());
        assert_eq!(path.gso_kind(&transport) == GsoKind::Udp, transport.tcp.is_none());
    }
}

impl Path {
    /// Payload bytes of one segment that every link carries: 1400, or what the MTU leaves after the
    /// longest headers.
    pub(super) fn segment_bytes(&self) -> u16 {
        self.mtu.saturating_sub(40 + 20).clamp(256, 1400)
    }

    /// Bytes before the transport header.
    pub(super) fn transport_at(&self) -> usize {
        ETHERNET_BYTES + if self.program.is_ipv4() { 20 } else { 40 }
    }

    /// Builds a frame from the gateway to the program with a partial checksum, and its offload
    /// fields. It is a super-packet if the payload is longer than one segment's.
    pub(super) fn build(&self, transport: &Transport, payload: &[u8]) -> (Vec<u8>, Offload) {
        let (segment, checksum_offset) = self.transport(transport, payload);
        let mut frame = Vec::with_capacity(self.transport_at() + segment.len());
        frame.extend(self.program_mac);
        frame.extend(self.gateway_mac);
        frame.extend(if self.program.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
        let protocol = if transport.tcp.is_some() { PROTOCOL_TCP } else { PROTOCOL_UDP };
        self.push_ip(&mut frame, protocol, segment.len() as u16);
        frame.extend(segment);
        let start = self.transport_at() as u16;
        let gso = std::num::NonZeroU16::new(self.segment_bytes())
            .filter(|size| payload.len() > usize::from(size.get()))
            .map(|size| Gso { kind: self.gso_kind(transport), size, ecn: false, tunnel: None });
        let checksum = Checksum::Partial { start, offset: checksum_offset };
        (frame, Offload { checksum, gso })
    }

    /// The kind of a super-packet with this transport.
    pub(super) fn gso_kind(&self, transport: &Transport) -> GsoKind {
        match (transport.tcp.is_some(), self.program.is_ipv4()) {
            (false, _) => GsoKind::Udp,
            (true, true) => GsoKind::Tcp4,
            (true, false) => GsoKind::Tcp6,
        }
    }

    /// Parses a frame from the program to the gateway: its transport fields and its payload.
    pub(super) fn parse<'a>(&self, frame: &'a [u8]) -> Option<(Transport, &'a [u8])> {
        let v4 = self.program.is_ipv4();
        let kind = frame.get(12..14)?;
        let ip = frame.get(ETHERNET_BYTES..self.transport_at())?;
        let segment = frame.get(self.transport_at()..)?;
        let (protocol, addresses) = if v4 { (ip[9], &ip[12..20]) } else { (ip[6], &ip[8..40]) };
        let is_ours = kind == if v4 { [0x08, 0x00] } else { [0x86, 0xdd] }
            && addresses.starts_with(&octets(&self.program))
            && addresses.ends_with(&octets(&self.gateway));
        if !is_ours {
            return None;
        }
        let mut transport = Transport {
            source: u16::from_be_bytes([*segment.first()?, *segment.get(1)?]),
            destination: u16::from_be_bytes([*segment.get(2)?, *segment.get(3)?]),
            tcp: None,
        };
        match protocol {
            PROTOCOL_UDP => Some((transport, segment.get(UDP_BYTES..)?)),
            PROTOCOL_TCP => {
                let header: &[u8; TCP_BYTES] = segment.first_chunk()?;
                let word = |at| u32::from_be_bytes([0, 1, 2, 3].map(|i: usize| header[at + i]));
                transport.tcp = Some(Tcp {
                    sequence: word(4),
                    acknowledged: word(8),
                    flags: header[13],
                    mss: None,
                });
                Some((transport, segment.get(usize::from(header[12] >> 4) * 4..)?))
            }
            _ => None,
        }
    }

    /// Builds a transport header, with the pseudo-header's sum in its checksum field, and the
    /// payload. Also returns the offset of that field.
    fn transport(&self, transport: &Transport, payload: &[u8]) -> (Vec<u8>, u16) {
        let mut bytes = Vec::new();
        bytes.extend(transport.source.to_be_bytes());
        bytes.extend(transport.destination.to_be_bytes());
        let (protocol, checksum_at) = match transport.tcp {
            None => {
                bytes.extend(((UDP_BYTES + payload.len()) as u16).to_be_bytes());
                bytes.extend([0, 0]);
                (PROTOCOL_UDP, 6)
            }
            Some(tcp) => {
                let option_bytes = if tcp.mss.is_some() { 4 } else { 0 };
                bytes.extend(tcp.sequence.to_be_bytes());
                bytes.extend(tcp.acknowledged.to_be_bytes());
                bytes.extend([((TCP_BYTES + option_bytes) as u8 / 4) << 4, tcp.flags]);
                bytes.extend(u16::MAX.to_be_bytes());
                bytes.extend([0; 4]);
                if let Some(mss) = tcp.mss {
                    bytes.extend([2, 4]);
                    bytes.extend(mss.to_be_bytes());
                }
                (PROTOCOL_TCP, 16)
            }
        };
        bytes.extend(payload);
        let mut pseudo = octets(&self.program);
        pseudo.extend(octets(&self.gateway));
        pseudo.extend((bytes.len() as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, protocol]);
        bytes[checksum_at..checksum_at + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
        (bytes, checksum_at as u16)
    }

    fn push_ip(&self, frame: &mut Vec<u8>, protocol: u8, segment_bytes: u16) {
        let at = frame.len();
        if self.program.is_ipv4() {
            frame.extend([0x45, 0]);
            frame.extend((20 + segment_bytes).to_be_bytes());
            // No identification, don't fragment, 64 hops.
            frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
        } else {
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(segment_bytes.to_be_bytes());
            frame.extend([protocol, 64]);
        }
        frame.extend(octets(&self.gateway));
        frame.extend(octets(&self.program));
        if self.program.is_ipv4() {
            let checksum = !sum(&frame[at..]);
            frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

fn octets(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The folded sum of an even number of bytes (RFC 1071), not inverted.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.as_chunks::<2>().0;
    let mut sum: u32 = words.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
