//! IP fragments: cutting datagrams for a small link, and putting received fragments together.
//!
//! # Theory of operation
//!
//! [`fragment_ipv4`] and [`fragment_ipv6`] cut an outgoing datagram into packets that share its
//! pieces. Its checksum is completed first, since no device could do it later.
//!
//! A [`Reassembler`] holds fragments until their datagram is whole or its time is up. Fragments are
//! kept as the packets they came in; putting them together moves references, not bytes. Only when
//! the datagram has more than [`REASSEMBLED_PIECES_MAX`] pieces are the last of them copied into
//! frames, counted at `Site::Squeeze`.
//!
//! A sender of fragments may lie in every field and never send the rest. Hence:
//!
//! - Fragments that overlap, disagree about the end or are too small for a transport header end
//!   the datagram: what is held of it is dropped, and until its time is up so is what arrives of
//!   it later (RFC 5722 §3). Exact duplicates do happen in networks and are ignored
//!   (RFC 8200 §4.5); the first of them counts.
//! - What is held is bounded by [`Limits`], in bytes that it keeps from their lenders. At the bound
//!   the source that uses most gives way, its oldest datagram first: a flood from one source
//!   displaces itself. A source is the port of a switch by which fragments came, else an IPv4
//!   address or an IPv6 network of 64 bits, because the owner of one address has all of them.
//!
//! RFC 791 §3.2, RFC 815, RFC 1858 (tiny fragments), RFC 3168 §5.3 (ECN), RFC 5722 (overlaps),
//! RFC 6946 (atomic fragments), RFC 8200 §4.5.

mod cut;
mod datagram;
mod drop_reason;
mod reassemble;

pub use cut::{FragmentError, IPV4_MTU_MIN, IPV6_MTU_MIN, fragment_ipv4, fragment_ipv6};
pub use datagram::{FRAGMENTS_MAX, REASSEMBLED_PIECES_MAX};
pub use drop_reason::DropReason;
pub use reassemble::{
    DATAGRAMS_MAX, HELD_BYTES_MAX, IPV4_LIFETIME, IPV6_LIFETIME, Limits, Outcome, Reassembler,
    into_received,
};

#[cfg(test)]
mod tests;
