//! Coalescing: merges received segments of one flow into a super-packet.
//!
//! # Theory of operation
//!
//! A [`Coalescer`] holds packets of a burst that can still grow. A TCP or UDP packet is merged into
//! a held super-packet if it is exactly the segment that [segmentation](crate::gso) of the
//! super-packet would produce next. Its pieces move; its headers and handle are released. So
//! segmentation of the result restores the same bytes, and Linux's GRO conditions need no list of
//! their own: a packet with another address, TTL, TOS, DF, flow label, extension header, TCP
//! option, acknowledgment, window, flag or sequence number differs from the expected segment.
//!
//! In addition, these rules apply, which the kernel's selftest `net/gro.c` checks too:
//!
//! - A packet that does not merge first delivers the held packet of its flow, and is then held or
//!   delivered itself. So the order within a flow (addresses, protocol and ports) never changes.
//! - A payload shorter than the first, PSH or FIN merge as the last segment, and the super-packet
//!   is delivered at once.
//! - Pure ACKs, SYN, RST, URG, IPv4 options, fragments, super-packets and padded packets are never
//!   held. Nor is a first packet with PSH or FIN, as it has no successor.
//! - Checksums are verified before a packet is held, here if the device did not. A packet with a
//!   wrong checksum is delivered unchanged, for the stack to count.
//!
//! There are two differences from Linux. IPv4 identifications must be consecutive: a constant one
//! would be lost, because a super-packet cannot represent it. UDP packets that cannot be coalesced
//! deliver what is held of their flow, where Linux lets them overtake it.
//!
//! A merged super-packet has a partial checksum; a packet that stayed alone is delivered unchanged.
//!
//! # Limits
//!
//! [`BUCKETS`] buckets of [`AGGREGATES_PER_BUCKET`] packets; a further packet delivers the oldest
//! of its bucket. A super-packet has at most [`PIECES_MAX`](towpath_packet::packet::PIECES_MAX)
//! pieces and [`IP_BYTES_MAX`] bytes of IP packet, and a UDP super-packet [`UDP_COALESCED_MAX`]
//! datagrams. The packet that would exceed a limit begins the next super-packet.
//!
//! RFC 9293, RFC 768, RFC 3168 §6.1.2 (CWR begins a super-packet).

mod aggregate;

use core::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use towpath_packet::{Checksum, Ledger, Packet};

use crate::gso::{IP_BYTES_MAX, Shape, partial, sum_is_right};
use crate::wire::field::read_u16;
use crate::wire::headers::{Headers, Transport, Version};
use crate::wire::tcp::Flags;
use crate::wire::{ipv4, tcp, udp};
use aggregate::{Aggregate, Bucket};

/// Holds packets that can still be merged, and with each what its receiver knows of it: a `T`,
/// which is returned with the packet. A super-packet has the `T` of its first packet. One thread.
pub struct Coalescer<T> {
    buckets: [Bucket<T>; BUCKETS],
    hash: FixedState,
    /// Bucket and place of what the last call merged into or held; `None` if it did neither.
    last: Option<(usize, usize)>,
}

impl<T> Coalescer<T> {
    /// A coalescer that holds nothing. `seed` must be unpredictable, or strangers choose which
    /// flows share a bucket.
    pub fn new(seed: u64) -> Self {
        let buckets = [const { Bucket::EMPTY }; BUCKETS];
        Self { buckets, hash: FixedState::with_seed(seed), last: None }
    }

    /// Processes a received packet with these headers, which are private: merges it, holds it, or
    /// delivers it to `out`, after the held packets that precede it.
    ///
    /// Only flows whose receiver supports super-packets may be passed here. A caller that bypasses
    /// the coalescer must do so for the whole flow.
    pub fn receive(
        &mut self,
        mut packet: Packet,
        headers: &Headers,
        known: T,
        ledger: &Ledger,
        out: &mut impl FnMut(Packet, T),
    ) {
        self.last = None;
        let Some(shape) = Shape::of(headers, packet.headers().len()) else {
            return out(packet, known);
        };
        let hash = self.flow_hash(packet.headers(), &shape);
        let number = hash as usize % BUCKETS;
        let bucket = &mut self.buckets[number];
        let place = bucket.find(hash, packet.headers(), &shape);
        if !may_merge(&packet, &shape) || !verify(&mut packet, &shape, ledger) {
            if let Some(place) = place {
                bucket.remove(place).finish(out);
            }
            return out(packet, known);
        }
        if let Some(place) = place {
            match bucket.at(place).merge(packet) {
                Ok(true) => return bucket.remove(place).finish(out),
                Ok(false) => {
                    self.last = Some((number, place));
                    return;
                }
                Err(refused) => {
                    packet = refused;
                    bucket.remove(place).finish(out);
                }
            }
        }
        if ends_burst(packet.headers(), &shape) {
            return out(packet, known);
        }
        if let Some(oldest) = bucket.push(Aggregate::new(packet, shape, hash, known)) {
            oldest.finish(out);
        }
        self.last = Some((number, bucket.count() - 1));
    }

    /// Merges segments that are no packets yet into the packet that the last call held or merged
    /// into, as many as follow it: they cost no handle then, and their flow is not searched.
    /// `headers` are all headers of each frame. `payload` has the payload of all: `size` bytes of
    /// each but the last, which may be shorter. Moves that of the merged ones out of it.
    ///
    /// Returns how many were merged. The next one, if there is one, is not the next segment of that
    /// packet, or must be a packet first: one with its bytes is to be passed to
    /// [`receive`](Self::receive).
    pub fn extend<'a>(
        &mut self,
        headers: impl Iterator<Item = &'a [u8]>,
        size: usize,
        payload: &mut Packet,
        ledger: &Ledger,
        out: &mut impl FnMut(Packet, T),
    ) -> usize {
        let Some((bucket, place)) = self.last else { return 0 };
        let bucket = &mut self.buckets[bucket];
        let (count, ends) = bucket.at(place).extend(headers, size, payload, ledger);
        if ends {
            self.last = None;
            bucket.remove(place).finish(out);
        }
        count
    }

    /// Delivers all held packets, at the end of each burst.
    pub fn flush(&mut self, out: &mut impl FnMut(Packet, T)) {
        self.last = None;
        for bucket in &mut self.buckets {
            while bucket.count() > 0 {
                bucket.remove(0).finish(out);
            }
        }
    }

    /// Number of held packets; each counts once however many were merged into it.
    pub fn held_count(&self) -> usize {
        self.buckets.iter().map(Bucket::count).sum()
    }

    fn flow_hash(&self, headers: &[u8], shape: &Shape) -> u32 {
        let (addresses, ports) = shape.flow(headers);
        let mut hasher = self.hash.build_hasher();
        hasher.write(addresses);
        hasher.write(ports);
        hasher.finish() as u32
    }
}

/// True if a packet may be part of a super-packet, by its own headers.
fn may_merge(packet: &Packet, shape: &Shape) -> bool {
    let headers = packet.headers();
    let payload = packet.payload_len();
    if packet.offload().gso.is_some() || payload == 0 || shape.ip_len(payload) > IP_BYTES_MAX {
        return false;
    }
    // The packet has padding, or its length field is wrong.
    if shape.stated_ip_length(headers) != shape.ip_length_field(payload) {
        return false;
    }
    if shape.version == Version::V4 && !ipv4_may_merge(&headers[shape.ip_at..shape.transport_at]) {
        return false;
    }
    let header = &headers[shape.transport_at..];
    match shape.transport {
        Transport::Tcp => {
            !Flags(header[tcp::at::FLAGS]).intersects(Flags::SYN | Flags::RST | Flags::URG)
        }
        Transport::Udp => {
            usize::from(read_u16(header, udp::at::LENGTH)) == shape.transport_len(payload)
                && read_u16(header, udp::CHECKSUM_OFFSET) != 0
        }
    }
}

/// True for a header without options and with the checksum that segmentation would write.
fn ipv4_may_merge(header: &[u8]) -> bool {
    let is_canonical = read_u16(header, ipv4::at::CHECKSUM) != NEGATIVE_ZERO;
    header.len() == ipv4::HEADER_LEN
        && is_canonical
        && ipv4::Header::parse(header, usize::MAX).is_ok()
}

/// True if the transport checksum is correct and is the one that segmentation would write. Records
/// a verified checksum in the packet.
fn verify(packet: &mut Packet, shape: &Shape, ledger: &Ledger) -> bool {
    let field = read_u16(packet.headers(), shape.checksum_at());
    let is_canonical = is_canonical(field, shape);
    let mut offload = *packet.offload();
    match offload.checksum {
        Checksum::Unnecessary => is_canonical,
        Checksum::Partial { .. } => {
            let len = shape.transport_len(packet.payload_len());
            offload.checksum == partial(shape)
                && field == shape.pseudo_header(packet.headers(), len).fold()
        }
        Checksum::None => {
            if !is_canonical || !sum_is_right(packet, shape, ledger) {
                return false;
            }
            offload.checksum = Checksum::Unnecessary;
            packet.set_offload(offload);
            true
        }
    }
}

/// True if this is the form of a checksum that segmentation writes. Of the two zeros, UDP has one
/// for a sum of zero and the other for no checksum; TCP has no sum of the former.
fn is_canonical(field: u16, shape: &Shape) -> bool {
    match shape.transport {
        Transport::Tcp => field != NEGATIVE_ZERO,
        Transport::Udp => field != 0,
    }
}

/// True if the sender has no data that follows this packet at once.
fn ends_burst(headers: &[u8], shape: &Shape) -> bool {
    shape.transport == Transport::Tcp
        && Flags(headers[shape.transport_at + tcp::at::FLAGS]).intersects(Flags::PSH | Flags::FIN)
}

/// The second zero of one's complement.
const NEGATIVE_ZERO: u16 = 0xffff;

/// Number of buckets of held packets.
pub const BUCKETS: usize = 8;

/// Packets held per bucket: 64 in total, as many as in a burst.
pub const AGGREGATES_PER_BUCKET: usize = 8;

/// Maximum number of datagrams coalesced into a UDP super-packet. Segmentation allows more, but
/// receivers that split it again may take no more (`UDP_GRO_CNT_MAX` of the kernel).
pub const UDP_COALESCED_MAX: usize = 64;

const _: () = assert!(BUCKETS.is_power_of_two());
const _: () = assert!(UDP_COALESCED_MAX <= crate::gso::UDP_SEGMENTS_MAX);

#[cfg(test)]
mod tests;
