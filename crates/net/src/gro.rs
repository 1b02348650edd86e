//! Coalescing: received segments of one flow become a super-packet.
//!
//! # Theory of operation
//!
//! A [`Coalescer`] holds the packets of a burst that may yet grow. A TCP or UDP packet that is
//! exactly what [segmentation](crate::gso) would make of a held super-packet as its next segment is
//! merged: its pieces move, its headers and its handle go. So cutting what was coalesced gives back
//! the same bytes, and the conditions of Linux's GRO need no list of their own: a packet whose
//! addresses, TTL, TOS, DF, flow label, extension headers, TCP options, acknowledgment, window,
//! flags or sequence number is not the expected one differs from the segment that would be cut.
//!
//! Around this stand the rules about when, as Linux has them:
//!
//! - A packet that does not merge sends the held one of its flow up before it is held or sent up
//!   itself: order within a flow, which is addresses, protocol and ports, never changes.
//! - A payload shorter than the first, PSH or FIN merge as the last segment; the super-packet goes
//!   up at once.
//! - Pure ACKs, SYN, RST, URG, IPv4 options, fragments, super-packets and padded packets are never
//!   held. A packet that begins with PSH or FIN has no successor and is not held either.
//! - Checksums are verified before a packet is held, here if the device did not; one that fails
//!   goes up as it came, for the stack to count.
//!
//! Two differences from Linux. IPv4 identifications must count on by one: a constant one would be
//! lost, because a super-packet has no mark for it. UDP packets that cannot be coalesced send up
//! what is held of their flow, where Linux lets them overtake it.
//!
//! A super-packet that goes up carries a partial checksum, one that stayed alone its own bytes.
//!
//! # Limits
//!
//! [`BUCKETS`] of [`HELD_PER_BUCKET`] packets: one more sends the oldest of its bucket up. A
//! super-packet has at most [`PIECES_MAX`](towpath_packet::packet::PIECES_MAX) pieces and
//! [`IP_BYTES_MAX`] bytes of IP packet, one of UDP [`UDP_COALESCED_MAX`] datagrams: the packet that
//! would exceed this begins the next one.
//!
//! RFC 9293, RFC 768, RFC 3168 §6.1.2 (CWR begins a super-packet).

mod held;

use core::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use towpath_packet::{Checksum, Ledger, Packet};

use crate::gso::{
    IP_BYTES_MAX, Layout, Shape, Transport, Version, at, partial, read_u16, sum_is_right,
};
use crate::time::Instant;
use crate::wire::tcp::Flags;
use crate::wire::{ipv4, udp};
use held::{Bucket, Held};

/// Holds the packets that may yet be merged. One thread.
pub struct Coalescer {
    buckets: [Bucket; BUCKETS],
    hash: FixedState,
}

impl Default for Coalescer {
    fn default() -> Self {
        Self::new()
    }
}

impl Coalescer {
    /// A coalescer that holds nothing.
    pub fn new() -> Self {
        Self { buckets: [const { Bucket::EMPTY }; BUCKETS], hash: FixedState::default() }
    }

    /// Takes a received, parsed packet: merges it, holds it, or sends it up through `out`, after
    /// what must go before it.
    ///
    /// Only flows that want it come here: a receiver of UDP that does not know super-packets must
    /// not see one, and whoever routes packets past the coalescer does so for the whole flow.
    pub fn receive(
        &mut self,
        mut packet: Packet,
        layout: Layout,
        now: Instant,
        ledger: &Ledger,
        out: &mut impl FnMut(Packet),
    ) {
        let Some(shape) = Shape::read(packet.headers(), layout) else {
            return out(packet);
        };
        let hash = self.flow_hash(packet.headers(), &shape);
        let bucket = &mut self.buckets[hash as usize % BUCKETS];
        let place = bucket.find(hash, packet.headers(), &shape);
        if !may_merge(&packet, &shape) || !verify(&mut packet, &shape, ledger) {
            if let Some(place) = place {
                out(bucket.remove(place).finish());
            }
            return out(packet);
        }
        if let Some(place) = place {
            match bucket.at(place).merge(packet) {
                Ok(last) => {
                    if last {
                        out(bucket.remove(place).finish());
                    }
                    return;
                }
                Err(refused) => {
                    packet = refused;
                    out(bucket.remove(place).finish());
                }
            }
        }
        if ends_burst(packet.headers(), &shape) {
            return out(packet);
        }
        if let Some(oldest) = bucket.push(Held::new(packet, shape, hash, now)) {
            out(oldest.finish());
        }
    }

    /// Sends up everything held: at the end of each burst, unless a delay was chosen.
    pub fn flush(&mut self, out: &mut impl FnMut(Packet)) {
        for bucket in &mut self.buckets {
            while bucket.count() > 0 {
                out(bucket.remove(0).finish());
            }
        }
    }

    /// Sends up what has been held since `limit` or longer.
    pub fn flush_older(&mut self, limit: Instant, out: &mut impl FnMut(Packet)) {
        for bucket in &mut self.buckets {
            while bucket.oldest().is_some_and(|since| since <= limit) {
                out(bucket.remove(0).finish());
            }
        }
    }

    /// Since when the packet held longest has been held.
    pub fn oldest(&self) -> Option<Instant> {
        self.buckets.iter().filter_map(Bucket::oldest).min()
    }

    /// Packets held, each counted once however many were merged into it.
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

/// Whether a packet could be part of a super-packet, by its own headers.
fn may_merge(packet: &Packet, shape: &Shape) -> bool {
    let headers = packet.headers();
    let payload = packet.payload_len();
    if packet.offload().gso.is_some() || payload == 0 || shape.ip_len(payload) > IP_BYTES_MAX {
        return false;
    }
    // Padding, or a length that lies.
    if shape.stated_ip_length(headers) != shape.ip_length_field(payload) {
        return false;
    }
    if shape.version == Version::V4 && !ipv4_may_merge(&headers[shape.ip_at..shape.transport_at]) {
        return false;
    }
    let header = &headers[shape.transport_at..];
    match shape.transport {
        Transport::Tcp => {
            !Flags(header[at::TCP_FLAGS]).intersects(Flags::SYN | Flags::RST | Flags::URG)
        }
        Transport::Udp => {
            usize::from(read_u16(header, at::UDP_LENGTH)) == shape.transport_len(payload)
                && read_u16(header, udp::CHECKSUM_OFFSET) != 0
        }
    }
}

/// No options, and a valid checksum that segmentation would write in the same way.
fn ipv4_may_merge(header: &[u8]) -> bool {
    let is_canonical = read_u16(header, at::IPV4_CHECKSUM) != NEGATIVE_ZERO;
    header.len() == ipv4::HEADER_LEN
        && is_canonical
        && ipv4::Header::parse(header, usize::MAX).is_ok()
}

/// Whether the transport checksum is known to be right, and the one that segmentation would write.
/// Remembers in the packet what was found out.
fn verify(packet: &mut Packet, shape: &Shape, ledger: &Ledger) -> bool {
    let field = read_u16(packet.headers(), shape.checksum_at());
    // Complete, only UDP writes this for zero; no other sum of non-zero bytes is zero.
    let is_canonical = field != NEGATIVE_ZERO || shape.transport == Transport::Udp;
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

/// Whether the sender has nothing that would follow this packet at once.
fn ends_burst(headers: &[u8], shape: &Shape) -> bool {
    shape.transport == Transport::Tcp
        && Flags(headers[shape.transport_at + at::TCP_FLAGS]).intersects(Flags::PSH | Flags::FIN)
}

/// The other zero of one's complement.
const NEGATIVE_ZERO: u16 = 0xffff;

/// Buckets of held packets, as on Linux.
pub const BUCKETS: usize = 8;

/// Packets held per bucket, as on Linux: 64 in all, as many as a burst has.
pub const HELD_PER_BUCKET: usize = 8;

/// Most datagrams in a super-packet of UDP, as on Linux. Less than may be cut from one.
pub const UDP_COALESCED_MAX: usize = 64;

const _: () = assert!(BUCKETS.is_power_of_two());
const _: () = assert!(UDP_COALESCED_MAX <= crate::gso::UDP_SEGMENTS_MAX);

#[cfg(test)]
mod tests;
