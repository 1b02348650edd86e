//! IP fragments: fragmentation of datagrams for a small MTU, and reassembly of received fragments.
//!
//! # Theory of operation
//!
//! [`fragment_ipv4`] and [`fragment_ipv6`] split an outgoing datagram into packets that share its
//! pieces. Its checksum is completed first, as no device can complete it later.
//!
//! A [`Reassembler`] holds fragments until their datagram is complete or its time is over.
//! Fragments are kept as received packets, and reassembly moves references, not bytes. Only if the
//! datagram has more than [`REASSEMBLED_PIECES_MAX`] pieces are the last of them copied into
//! frames, counted at `Site::Squeeze`.
//!
//! A sender of fragments may be malicious in every field, and may never send the rest. Therefore:
//!
//! - Fragments that overlap, disagree about the end, or are too small for a transport header kill
//!   the datagram: its held fragments are dropped, and so are later ones until its time is over
//!   (RFC 5722 §3). Exact duplicates do occur in networks and are ignored (RFC 8200 §4.5); the
//!   first one counts.
//! - Held fragments are bounded by [`Limits`], in bytes kept from their lenders. At the limit, the
//!   oldest datagram of the source that uses most is evicted, so a flood from one source evicts
//!   itself. A source is the switch port at which fragments were received, else an IPv4 address or
//!   an IPv6 /64 network, because the owner of one address there has all of them.
//!
//! RFC 791 §3.2, RFC 815, RFC 1858 (tiny fragments), RFC 3168 §5.3 (ECN), RFC 5722 (overlaps), RFC
//! 6946 (atomic fragments), RFC 8200 §4.5.

mod datagram;
mod drop_reason;
mod fragmentation;
mod reassemble;

pub use datagram::{FRAGMENTS_MAX, REASSEMBLED_PIECES_MAX};
pub use drop_reason::DropReason;
pub use fragmentation::{FragmentError, IPV4_MTU_MIN, IPV6_MTU_MIN, fragment_ipv4, fragment_ipv6};
pub use reassemble::{
    DATAGRAMS_MAX, HELD_BYTES_MAX, IPV4_LIFETIME, IPV6_LIFETIME, Limits, Outcome, Reassembler,
    into_received,
};

#[cfg(test)]
mod tests;
