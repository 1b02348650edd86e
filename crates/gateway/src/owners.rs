//! Decides which worker owns a packet or connection, where several workers serve one program.
//!
//! The decision depends on the headers alone, so it is the same for all packets of a connection and
//! in every worker: see [`Workers`](crate::worker_group::WorkerGroup).

use std::net::{IpAddr, SocketAddr};

use towpath_net::wire::Protocol;
use towpath_packet::sync::AtomicU64;
use towpath_packet::sync::Ordering::Relaxed;

use crate::publish::{self, Publish};

/// Maps packets and connections to workers.
pub(crate) struct Owners {
    /// The published TCP ports of the program, one bit for each port.
    published: Box<[AtomicU64; PORT_WORDS]>,
    workers: usize,
}

impl Owners {
    pub(crate) fn new(publish: &[Publish], workers: usize) -> Self {
        let published = Box::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let owners = Self { published, workers };
        owners.add(publish);
        owners
    }

    /// Adds published ports, before their sockets are bound.
    pub(crate) fn add<'a>(&self, publish: impl IntoIterator<Item = &'a Publish>) {
        let is_tcp = |one: &&Publish| one.protocol == publish::Protocol::Tcp;
        for publish in publish.into_iter().filter(is_tcp) {
            let port = usize::from(publish.program_port);
            // Other workers need the bit for packets that the program sends in answer to a
            // connection to the port. The system calls that bind the port, accept the connection
            // and move these packets order this store before their loads.
            self.published[port / 64].fetch_or(1 << (port % 64), Relaxed);
        }
    }

    fn is_published(&self, port: u16) -> bool {
        let port = usize::from(port);
        self.published[port / 64].load(Relaxed) & 1 << (port % 64) != 0
    }

    /// Returns the worker that owns the connection of `peer` to a published port. `peer` is the
    /// address that the program sees.
    pub(crate) fn of_connection(&self, peer: SocketAddr, program_port: u16) -> usize {
        let ports = [peer.port().to_be_bytes(), program_port.to_be_bytes()];
        match peer.ip() {
            IpAddr::V4(ip) => self.hashed(&ip.octets(), ports),
            IpAddr::V6(ip) => self.hashed(&ip.octets(), ports),
        }
    }

    fn hashed(&self, address: &[u8], [peer, program]: [[u8; 2]; 2]) -> usize {
        let ports = [peer[0], peer[1], program[0], program[1]];
        let words = address.chunks_exact(4).chain([&ports[..]]);
        let hash = words.fold(0_u64, |hash, word| {
            let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
            (hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(SPREADING)
        });
        // The upper bits depend on all input bits.
        (hash >> 32) as usize % self.workers
    }

    /// Returns the worker that owns the program's frame that begins with `headers`. `None`: the
    /// worker that received it owns it. That holds for unfragmented TCP over IPv4, or over IPv6
    /// without extension headers, from a port that is not published. Malformed frames belong to the
    /// first worker.
    pub(crate) fn of_packet(&self, headers: &[u8]) -> Option<usize> {
        match self.tcp_of(headers) {
            None => Some(0),
            Some((_, _, program)) if !self.is_published(u16::from_be_bytes(program)) => None,
            Some((address, peer, program)) => Some(self.hashed(address, [peer, program])),
        }
    }

    /// Returns the peer's address and port and the program's port of an unfragmented TCP segment.
    fn tcp_of<'a>(&self, headers: &'a [u8]) -> Option<(&'a [u8], [u8; 2], [u8; 2])> {
        let (ethernet, ip) = headers.split_at_checked(ETHERNET_BYTES)?;
        let (protocol, address, at) = match ([ethernet[12], ethernet[13]], ip.first()? >> 4) {
            (ETHERTYPE_IPV4, 4) => {
                let bits = ip.get(6..8)?;
                if u16::from_be_bytes([bits[0], bits[1]]) & FRAGMENT_BITS != 0 {
                    return None;
                }
                (ip.get(9)?, ip.get(16..20)?, usize::from(ip[0] & 0xf) * 4)
            }
            (ETHERTYPE_IPV6, 6) => (ip.get(6)?, ip.get(24..40)?, IPV6_BYTES),
            _ => return None,
        };
        let &[a, b, c, d] = ip.get(at..at + 4)? else { return None };
        (Protocol(*protocol) == Protocol::TCP).then_some((address, [c, d], [a, b]))
    }
}

/// Words of a bitmap with one bit for each port.
const PORT_WORDS: usize = (u16::MAX as usize + 1) / 64;
/// Multiplier of the hash: odd, with its bits spread.
const SPREADING: u64 = 0x9e37_79b9_7f4a_7c15;
const ETHERNET_BYTES: usize = 14;
const IPV6_BYTES: usize = 40;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// The more-fragments flag and the fragment offset.
const FRAGMENT_BITS: u16 = 0x3fff;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the start of a frame from port 0x1234; with options if `ip_bytes` has room for them.
    fn frame(ethertype: [u8; 2], protocol: u8, ip_bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_BYTES + ip_bytes];
        frame[12..14].copy_from_slice(&ethertype);
        if ethertype == ETHERTYPE_IPV4 {
            frame[14] = 0x40 | (ip_bytes / 4) as u8;
            frame[14 + 9] = protocol;
            // "Don't fragment" is set: this is no fragment.
            frame[14 + 6] = 0x40;
        } else {
            frame[14] = 0x60;
            frame[14 + 6] = protocol;
        }
        frame.extend([0x12, 0x34, 0, 80]);
        frame
    }

    fn published(ports: &[u16]) -> Owners {
        let spec: Vec<String> = ports.iter().map(|port| format!("9000:{port}")).collect();
        let mut publish = publish::parse(publish::Protocol::Tcp, &spec, &(1..=1)).expect("ports");
        publish.extend(
            publish::parse(publish::Protocol::Udp, &["9001:1".into()], &(1..=1)).expect("one"),
        );
        Owners::new(&publish, 3)
    }

    #[test]
    fn tcp_of_the_program_stays() {
        let none = published(&[1]);
        for ip_bytes in [20, 24, 60] {
            assert_eq!(none.of_packet(&frame(ETHERTYPE_IPV4, 6, ip_bytes)), None);
        }
        assert_eq!(none.of_packet(&frame(ETHERTYPE_IPV6, 6, 40)), None);
    }

    /// Goal: the worker that begins a connection gets its packets, and connections are spread.
    /// Method: packets of connections whose peers differ in one port only.
    #[test]
    fn packets_of_published_ports_find_their_first_sender() {
        let one = published(&[0x1234]);
        for (ethertype, ip_bytes, at) in [(ETHERTYPE_IPV4, 24, 16), (ETHERTYPE_IPV6, 40, 24)] {
            let mut counts = [0; 3];
            for port in 1000..1300_u16 {
                let mut frame = frame(ethertype, 6, ip_bytes);
                let ip: IpAddr = if ip_bytes == 24 {
                    frame[14 + at..][..4].copy_from_slice(&[10, 1, 2, 3]);
                    [10, 1, 2, 3].into()
                } else {
                    frame[14 + at..][..16].copy_from_slice(&[7; 16]);
                    [7; 16].into()
                };
                frame[14 + ip_bytes + 2..][..2].copy_from_slice(&port.to_be_bytes());
                let owner = one.of_connection(SocketAddr::new(ip, port), 0x1234);
                assert_eq!(one.of_packet(&frame), Some(owner));
                counts[owner] += 1;
            }
            assert!(counts.iter().all(|count| (40..160).contains(count)), "{counts:?}");
        }
        for port in [0, 1, 63, 64, u16::MAX] {
            let set = published(&[port.max(1)]);
            assert!(set.is_published(port.max(1)) && !set.is_published(port ^ 0x40));
        }
    }

    /// Bad input: every length from zero on, fragments, other protocols, an IPv4 header length
    /// beyond the end, versions that contradict the EtherType.
    #[test]
    fn everything_else_is_the_first_workers() {
        let none = published(&[1]);
        for whole in [frame(ETHERTYPE_IPV4, 6, 20), frame(ETHERTYPE_IPV6, 6, 40)] {
            let ports_end = whole.len();
            for len in 0..ports_end {
                assert_eq!(none.of_packet(&whole[..len]), Some(0), "{len}");
            }
            assert_eq!(none.of_packet(&whole), None);
            for protocol in [0, 1, 17, 44, 58, 255] {
                let mut other = whole.clone();
                other[if whole[14] >> 4 == 4 { 14 + 9 } else { 14 + 6 }] = protocol;
                assert_eq!(none.of_packet(&other), Some(0), "{protocol}");
            }
            let mut version = whole.clone();
            version[14] ^= 0x20;
            assert_eq!(none.of_packet(&version), Some(0));
            let mut arp = whole;
            arp[12..14].copy_from_slice(&[0x08, 0x06]);
            assert_eq!(none.of_packet(&arp), Some(0));
        }
        for bits in [[0x20, 0], [0, 1], [0x1f, 0xff]] {
            let mut fragment = frame(ETHERTYPE_IPV4, 6, 20);
            fragment[20..22].copy_from_slice(&bits);
            assert_eq!(none.of_packet(&fragment), Some(0), "{bits:?}");
        }
        let mut long = frame(ETHERTYPE_IPV4, 6, 20);
        long[14] = 0x4f;
        assert_eq!(none.of_packet(&long), Some(0));
    }
}
