//! Decides which of several workers owns a packet and its flow.
//!
//! Each flow belongs to one of [`BUCKETS`] buckets, by a hash of its addresses and ports, and each
//! bucket to one worker: a table like the indirection table of receive side scaling. A TCP
//! connection is hashed by the peer's address and both ports, UDP by the program's port, which has
//! one host socket for all its peers, and echo requests by their identifier. An ICMP error is
//! hashed like the packet that it quotes. All other packets belong to the first worker, and so do
//! UDP ports that are published, and fragments, as only the first fragment of a datagram has its
//! ports.
//!
//! [`place_of`] reads untrusted headers. The table has one writer, the first worker.

use std::net::{IpAddr, SocketAddr};

use towpath_net::wire::Protocol;
use towpath_packet::sync::AtomicU8;
use towpath_packet::sync::Ordering::Relaxed;

/// Number of buckets: so many that two of a few busy flows rarely share one.
pub(crate) const BUCKETS: usize = 256;

/// The number of a bucket.
pub(crate) type Bucket = u8;

/// A set of buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buckets([u64; BUCKETS / 64]);

impl Buckets {
    pub(crate) fn insert(&mut self, bucket: Bucket) {
        self.0[usize::from(bucket) / 64] |= 1 << (bucket % 64);
    }

    pub(crate) fn contains(&self, bucket: Bucket) -> bool {
        self.0[usize::from(bucket) / 64] & 1 << (bucket % 64) != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|bits| *bits == 0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Bucket> + '_ {
        (0..=Bucket::MAX).filter(|bucket| self.contains(*bucket))
    }
}

impl FromIterator<Bucket> for Buckets {
    fn from_iter<I: IntoIterator<Item = Bucket>>(buckets: I) -> Self {
        let mut all = Self::default();
        buckets.into_iter().for_each(|bucket| all.insert(bucket));
        all
    }
}

/// The owner of each bucket: the index of a worker, or [`MOVING`].
pub(crate) struct Owners([AtomicU8; BUCKETS]);

/// The owner of a bucket whose flows are on their way from one worker to another.
pub(crate) const MOVING: u8 = u8::MAX;

impl Owners {
    /// The first worker owns everything.
    pub(crate) fn new() -> Self {
        Self([const { AtomicU8::new(0) }; BUCKETS])
    }

    /// Returns the owner of a bucket. Only the first worker's thread calls this and
    /// [`set`](Self::set), so no order is needed.
    pub(crate) fn of(&self, bucket: Bucket) -> u8 {
        self.0[usize::from(bucket)].load(Relaxed)
    }

    pub(crate) fn set(&self, buckets: &Buckets, owner: u8) {
        buckets.iter().for_each(|bucket| self.0[usize::from(bucket)].store(owner, Relaxed));
    }

    /// Returns the buckets of a worker.
    pub(crate) fn all_of(&self, owner: u8) -> Buckets {
        (0..=Bucket::MAX).filter(|bucket| self.of(*bucket) == owner).collect()
    }
}

/// Where a packet belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To the first worker.
    First,
    /// To the owner of the bucket.
    Flow(Bucket),
    /// To the owner of the bucket of this UDP port of the program, unless the port is published.
    Port(Bucket, u16),
    /// It is the first fragment of a datagram of this bucket: bucket and fragments belong to the
    /// first worker.
    Fragment(Bucket),
}

/// Returns the bucket of a TCP connection; `peer` is the address that the program sees.
pub(crate) fn of_connection(peer: SocketAddr, program_port: u16) -> Bucket {
    let ports = [peer.port().to_be_bytes(), program_port.to_be_bytes()];
    match peer.ip() {
        IpAddr::V4(ip) => of_tcp(&ip.octets(), ports),
        IpAddr::V6(ip) => of_tcp(&ip.octets(), ports),
    }
}

/// Returns the bucket of a UDP port of the program.
pub(crate) fn of_port(program_port: u16) -> Bucket {
    hashed(Protocol::UDP, &[], [[0; 2], program_port.to_be_bytes()])
}

/// Returns the bucket of echo requests with this identifier.
pub(crate) fn of_echo(ident: u16) -> Bucket {
    hashed(Protocol::ICMP, &[], [[0; 2], ident.to_be_bytes()])
}

fn of_tcp(peer: &[u8], [peer_port, program_port]: [[u8; 2]; 2]) -> Bucket {
    hashed(Protocol::TCP, peer, [peer_port, program_port])
}

fn hashed(protocol: Protocol, address: &[u8], [peer, program]: [[u8; 2]; 2]) -> Bucket {
    let ports = [peer[0], peer[1], program[0], program[1]];
    let words = address.chunks_exact(4).chain([&ports[..]]);
    let hash = words.fold(u64::from(protocol.0), |hash, word| {
        let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        (hash.rotate_left(5) ^ u64::from(word)).wrapping_mul(SPREADING)
    });
    // The upper bits depend on all input bits.
    (hash >> 56) as Bucket
}

/// Returns where the program's frame that begins with `headers` belongs. IPv6 extension headers
/// other than those of fragments are not looked behind: such packets, like malformed ones, are the
/// first worker's. An IPv6 flow that has them in some of its packets only is not served by others.
pub(crate) fn place_of(headers: &[u8]) -> Place {
    place_of_frame(headers).unwrap_or(Place::First)
}

fn place_of_frame(headers: &[u8]) -> Option<Place> {
    let (ethernet, ip) = headers.split_at_checked(ETHERNET_BYTES)?;
    let Ip { protocol, destination, is_fragment, rest, .. } =
        match ([ethernet[12], ethernet[13]], ip.first()? >> 4) {
            (ETHERTYPE_IPV4, 4) => Ip::v4(ip)?,
            (ETHERTYPE_IPV6, 6) => Ip::v6(ip)?,
            _ => return None,
        };
    let of_icmp = || of_icmp(destination.len() == 4, rest);
    let place = match protocol {
        Protocol::TCP => Place::Flow(of_tcp(destination, swapped(rest)?)),
        Protocol::UDP if is_group(destination) => return None,
        Protocol::UDP => {
            let port = u16::from_be_bytes(swapped(rest)?[1]);
            Place::Port(of_port(port), port)
        }
        Protocol::ICMP if destination.len() == 4 => of_icmp()?,
        Protocol::ICMPV6 if destination.len() == 16 => of_icmp()?,
        _ => return None,
    };
    Some(match place {
        Place::Flow(bucket) | Place::Port(bucket, _) if is_fragment => Place::Fragment(bucket),
        place => place,
    })
}

/// Fields of an IP packet that is whole, or the first fragment of one.
struct Ip<'a> {
    protocol: Protocol,
    source: &'a [u8],
    destination: &'a [u8],
    is_fragment: bool,
    rest: &'a [u8],
}

impl<'a> Ip<'a> {
    fn v4(ip: &'a [u8]) -> Option<Self> {
        let bits = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]);
        let header_bytes = usize::from(ip[0] & 0xf) * 4;
        let is_behind_header = header_bytes >= IPV4_BYTES && bits & OFFSET_BITS == 0;
        is_behind_header.then_some(())?;
        Some(Self {
            protocol: Protocol(*ip.get(9)?),
            source: ip.get(12..16)?,
            destination: ip.get(16..20)?,
            is_fragment: bits & MORE_FRAGMENTS != 0,
            rest: ip.get(header_bytes..)?,
        })
    }

    fn v6(ip: &'a [u8]) -> Option<Self> {
        let (mut next, mut rest) = (Protocol(*ip.get(6)?), ip.get(IPV6_BYTES..)?);
        let is_fragment = next == Protocol::IPV6_FRAGMENT;
        if is_fragment {
            let header = rest.get(..FRAGMENT_BYTES)?;
            (u16::from_be_bytes([header[2], header[3]]) >> 3 == 0).then_some(())?;
            (next, rest) = (Protocol(header[0]), &rest[FRAGMENT_BYTES..]);
        }
        let (source, destination) = (ip.get(8..24)?, ip.get(24..40)?);
        Some(Self { protocol: next, source, destination, is_fragment, rest })
    }
}

/// Returns the place of an ICMP message: that of its echo request, or of the packet that it quotes.
fn of_icmp(is_v4: bool, message: &[u8]) -> Option<Place> {
    let kind = *message.first()?;
    let (request, is_error) = match is_v4 {
        true => (8, matches!(kind, 3 | 11 | 12)),
        false => (128, matches!(kind, 1..=4)),
    };
    if kind == request {
        let ident = message.get(4..6)?;
        return Some(Place::Flow(of_echo(u16::from_be_bytes([ident[0], ident[1]]))));
    }
    let quoted = message.get(ICMP_BYTES..).filter(|_| is_error)?;
    let Ip { protocol, source, rest, .. } = if is_v4 { Ip::v4(quoted)? } else { Ip::v6(quoted)? };
    // The quoted packet went to the program: its source is the peer.
    let [peer, program] = ports(rest)?;
    match protocol {
        Protocol::TCP => Some(Place::Flow(of_tcp(source, [peer, program]))),
        Protocol::UDP => {
            let port = u16::from_be_bytes(program);
            Some(Place::Port(of_port(port), port))
        }
        _ => None,
    }
}

fn ports(transport: &[u8]) -> Option<[[u8; 2]; 2]> {
    let &[a, b, c, d] = transport.get(..4)? else { return None };
    Some([[a, b], [c, d]])
}

/// Returns the peer's and the program's port of a packet from the program.
fn swapped(transport: &[u8]) -> Option<[[u8; 2]; 2]> {
    ports(transport).map(|[program, peer]| [peer, program])
}

/// Returns true for a multicast or broadcast destination.
fn is_group(destination: &[u8]) -> bool {
    match destination {
        [first, ..] if destination.len() == 4 => *first >= 224,
        [first, ..] => *first == 0xff,
        [] => true,
    }
}

/// Multiplier of the hash: odd, with its bits spread.
const SPREADING: u64 = 0x9e37_79b9_7f4a_7c15;
const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const FRAGMENT_BYTES: usize = 8;
const ICMP_BYTES: usize = 8;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_BITS: u16 = 0x1fff;

#[cfg(test)]
mod tests;
