//! Frames, well-formed unless a test breaks them. They are written independently of the code under
//! test, so that both are not wrong in the same way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address of the gateway's interface.
pub(super) const GATEWAY_MAC: [u8; 6] = [0x02, 0x74, 0x6f, 0x77, 0x70, 0x02];
/// Address of the program's interface.
pub(super) const PROGRAM_MAC: [u8; 6] = [0x02, 0x74, 0x6f, 0x77, 0x70, 0x15];
/// Address of another station.
pub(super) const OTHER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x99];
pub(super) const PROGRAM: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
pub(super) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
pub(super) const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
pub(super) const PROGRAM6: Ipv6Addr = on_link(0x15);
pub(super) const GATEWAY6: Ipv6Addr = on_link(2);
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Returns the address of host `number` of the IPv6 network inside.
pub(super) const fn on_link(number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd74, 0x6f77, 0x7061, 0x7468, 0, 0, 0, number)
}

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const ARP: u16 = 0x0806;

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const PSH: u8 = 8;
pub(super) const ACK: u8 = 16;
pub(super) const URG: u8 = 32;

/// Offset of the IP header.
pub(super) const IP: usize = 14;
/// Offset of the transport header after an IPv4 header without options.
pub(super) const L4: usize = IP + 20;
/// Offset of the transport header after an IPv6 header without extension headers.
pub(super) const L4_6: usize = IP + 40;

/// Returns the Internet checksum of `parts`, each of even length except the last.
pub(super) fn checksum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Writes a 16-bit field.
pub(super) fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns an Ethernet frame to the gateway.
pub(super) fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&GATEWAY_MAC, &PROGRAM_MAC, &ethertype.to_be_bytes()[..], payload].concat()
}

/// Returns a frame with an IPv4 packet; its options are padded to words.
pub(super) fn ipv4_with(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let words = options.len().div_ceil(4);
    let mut ip = vec![0; 20 + words * 4];
    ip[0] = 0x45 + words as u8;
    let total = ip.len() + payload.len();
    put(&mut ip, 2, total as u16);
    ip[8] = 64;
    ip[9] = protocol;
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..20].copy_from_slice(&destination.octets());
    ip[20..20 + options.len()].copy_from_slice(options);
    let mut frame = ethernet(IPV4, &[&ip, payload].concat());
    fix_ipv4(&mut frame);
    frame
}

/// Corrects the header checksum after a change.
pub(super) fn fix_ipv4(frame: &mut [u8]) {
    put(frame, IP + 10, 0);
    let len = usize::from(frame[IP] & 15) * 4;
    let end = (IP + len).min(frame.len());
    let sum = checksum(&[&frame[IP..end]]);
    put(frame, IP + 10, sum);
}

/// Returns a frame with an IP packet of the family of `source`.
pub(super) fn ip(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            ipv4_with(source, destination, protocol, &[], payload)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut ip = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            put(&mut ip, 4, payload.len() as u16);
            ethernet(IPV6, &[&ip, &source.octets()[..], &destination.octets(), payload].concat())
        }
        _ => panic!("one family"),
    }
}

/// Fills in the checksum field at `at` of a transport header.
pub(super) fn seal(source: IpAddr, destination: IpAddr, protocol: u8, at: usize, bytes: &mut [u8]) {
    let octets = |address| match address {
        IpAddr::V4(v4) => Ipv4Addr::octets(&v4).to_vec(),
        IpAddr::V6(v6) => Ipv6Addr::octets(&v6).to_vec(),
    };
    put(bytes, at, 0);
    let mut pseudo = [octets(source), octets(destination)].concat();
    pseudo.extend((bytes.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    if protocol == ICMP {
        pseudo.clear();
    }
    let sum = checksum(&[&pseudo, bytes]);
    put(bytes, at, if sum == 0 && protocol == UDP { 0xffff } else { sum });
}

/// One end of a flow.
pub(super) type End = (IpAddr, u16);

/// Returns a UDP datagram in a frame.
pub(super) fn udp(from: End, to: End, payload: &[u8]) -> Vec<u8> {
    ip(from.0, to.0, UDP, &udp_bytes(from, to, payload))
}

/// Returns header and payload of a UDP datagram.
pub(super) fn udp_bytes(from: End, to: End, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    put(&mut bytes, 0, from.1);
    put(&mut bytes, 2, to.1);
    put(&mut bytes, 4, 8 + payload.len() as u16);
    bytes.extend(payload);
    seal(from.0, to.0, UDP, 6, &mut bytes);
    bytes
}

/// A TCP segment.
#[derive(Clone)]
pub(super) struct Segment<'a> {
    pub(super) from: End,
    pub(super) to: End,
    pub(super) sequence: u32,
    pub(super) acknowledgment: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) options: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Makes a segment without data.
    pub(super) fn new(from: End, to: End, flags: u8) -> Self {
        let (options, payload): (&[u8], &[u8]) = (&[], &[]);
        let window = 65_535;
        Self { from, to, sequence: 1, acknowledgment: 0, flags, window, options, payload }
    }

    /// Returns header, options and data.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let words = self.options.len().div_ceil(4);
        let mut bytes = vec![0; 20 + words * 4];
        put(&mut bytes, 0, self.from.1);
        put(&mut bytes, 2, self.to.1);
        bytes[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.acknowledgment.to_be_bytes());
        bytes[12] = (5 + words as u8) << 4;
        bytes[13] = self.flags;
        put(&mut bytes, 14, self.window);
        bytes[20..20 + self.options.len()].copy_from_slice(self.options);
        bytes.extend(self.payload);
        seal(self.from.0, self.to.0, TCP, 16, &mut bytes);
        bytes
    }

    /// Returns the segment in a frame.
    pub(super) fn frame(&self) -> Vec<u8> {
        ip(self.from.0, self.to.0, TCP, &self.bytes())
    }
}

/// Returns an ICMP message of either version: type, code and the four bytes after the checksum,
/// then the rest.
pub(super) fn icmp(source: IpAddr, destination: IpAddr, head: [u8; 6], rest: &[u8]) -> Vec<u8> {
    let protocol = if source.is_ipv4() { ICMP } else { ICMPV6 };
    let mut bytes = vec![head[0], head[1], 0, 0];
    bytes.extend(&head[2..]);
    bytes.extend(rest);
    seal(source, destination, protocol, 2, &mut bytes);
    ip(source, destination, protocol, &bytes)
}

/// Returns an ARP packet in a frame.
pub(super) fn arp(
    operation: u16,
    sender_mac: [u8; 6],
    sender: Ipv4Addr,
    target: Ipv4Addr,
) -> Vec<u8> {
    let mut bytes = vec![0, 1, 8, 0, 6, 4];
    bytes.extend(operation.to_be_bytes());
    bytes.extend(sender_mac);
    bytes.extend(sender.octets());
    bytes.extend([0; 6]);
    bytes.extend(target.octets());
    ethernet(ARP, &bytes)
}
