//! ICMP for IPv6 (RFC 4443) and neighbour discovery (RFC 4861).
//!
//! The checksum covers a pseudo-header and the whole message, so the caller handles it: `parse`
//! does not verify it, and `emit` leaves it zero. The caller also checks the IP header, above all
//! the hop limit of [`HOP_LIMIT`] that neighbour discovery requires.

use core::net::Ipv6Addr;

use super::field::{header, read, read_u16, read_u32, write, write_u16, write_u32};
use super::{MacAddr, ParseError};

/// An ICMPv6 message. Errors quote the offending packet behind the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A packet could not be delivered (RFC 4443 §3.1).
    DestinationUnreachable {
        /// Reason, such as [`PORT_UNREACHABLE`].
        code: u8,
    },
    /// The packet exceeds the next hop's MTU (RFC 4443 §3.2).
    PacketTooBig {
        /// MTU of the next hop.
        mtu: u32,
    },
    /// The hop limit or the reassembly time of a packet ran out (RFC 4443 §3.3).
    TimeExceeded {
        /// [`HOP_LIMIT_EXCEEDED`] or [`REASSEMBLY_TIME_EXCEEDED`].
        code: u8,
    },
    /// A header field is invalid (RFC 4443 §3.4).
    ParameterProblem {
        /// Reason, such as [`UNRECOGNIZED_NEXT_HEADER`].
        code: u8,
        /// Offset of the offending byte in the quoted packet.
        pointer: u32,
    },
    /// Echo request (RFC 4443 §4.1).
    EchoRequest {
        /// Identifier of the sending process.
        ident: u16,
        /// Sequence number.
        sequence: u16,
    },
    /// Echo reply (RFC 4443 §4.2).
    EchoReply {
        /// Identifier of the request.
        ident: u16,
        /// Sequence number of the request.
        sequence: u16,
    },
    /// Requests router advertisements (RFC 4861 §4.1).
    RouterSolicitation {
        /// Link-layer address of the sender; absent if it has no IP address yet.
        source_link_layer: Option<MacAddr>,
    },
    /// Announces a router (RFC 4861 §4.2).
    RouterAdvertisement(RouterAdvertisement),
    /// Requests the link-layer address of the target (RFC 4861 §4.3).
    NeighborSolicitation {
        /// Target address.
        target: Ipv6Addr,
        /// Link-layer address of the sender; absent if it has no IP address yet.
        source_link_layer: Option<MacAddr>,
    },
    /// Announces that the sender has the target address (RFC 4861 §4.4).
    NeighborAdvertisement {
        /// Target address.
        target: Ipv6Addr,
        /// Link-layer address of the target.
        target_link_layer: Option<MacAddr>,
        /// The sender is a router.
        router: bool,
        /// The message answers a solicitation.
        solicited: bool,
        /// Replaces a cached link-layer address. (`override` is a reserved word.)
        override_: bool,
    },
    /// Any other type.
    Other {
        /// The Type field.
        kind: u8,
        /// The Code field.
        code: u8,
    },
}

/// A router advertisement (RFC 4861 §4.2), without the options that configure hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterAdvertisement {
    /// Seconds for which the sender is a default router; zero if it is none.
    pub router_lifetime_s: u16,
    /// Milliseconds for which a neighbour counts as reachable; zero if the router leaves it open.
    pub reachable_time_ms: u32,
    /// Milliseconds between neighbour solicitations; zero if the router leaves it open.
    pub retrans_timer_ms: u32,
    /// Link-layer address of the router.
    pub source_link_layer: Option<MacAddr>,
}

impl Message {
    /// Reads the message at the start of `bytes`. Errors and echoes need only the first
    /// [`HEADER_LEN`] bytes. A neighbour discovery message must be complete with its options, and
    /// must pass those checks of RFC 4861 §6.1 and §7.1 that concern the message itself. The
    /// checksum is not verified.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let fixed: &[u8; HEADER_LEN] = header(bytes)?;
        let code = fixed[at::CODE];
        let ident = read_u16(fixed, at::IDENT);
        let sequence = read_u16(fixed, at::SEQUENCE);
        Ok(match fixed[at::TYPE] {
            DESTINATION_UNREACHABLE => Self::DestinationUnreachable { code },
            PACKET_TOO_BIG => Self::PacketTooBig { mtu: read_u32(fixed, at::MTU) },
            TIME_EXCEEDED => Self::TimeExceeded { code },
            PARAMETER_PROBLEM => {
                Self::ParameterProblem { code, pointer: read_u32(fixed, at::POINTER) }
            }
            ECHO_REQUEST => Self::EchoRequest { ident, sequence },
            ECHO_REPLY => Self::EchoReply { ident, sequence },
            kind @ ROUTER_SOLICITATION..=NEIGHBOR_ADVERTISEMENT => {
                // RFC 4861 §6.1, §7.1: with another code the message is discarded.
                if code != 0 {
                    return Err(ParseError::Unsupported);
                }
                parse_discovery(kind, bytes)?
            }
            kind => Self::Other { kind, code },
        })
    }

    /// Writes the message at the start of `bytes`, which must be at least [`Message::emitted_len`]
    /// long, and returns that length. The checksum is zero; the caller computes it. For
    /// [`Message::Other`] the last four bytes are zero.
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        let len = self.emitted_len();
        assert!(bytes.len() >= len, "emit: {} bytes of room for a message of {len}", bytes.len());
        let bytes = &mut bytes[..len];
        bytes.fill(0);
        let (kind, code) = self.kind_and_code();
        bytes[at::TYPE] = kind;
        bytes[at::CODE] = code;
        match *self {
            Self::DestinationUnreachable { .. } | Self::TimeExceeded { .. } => {}
            Self::Other { .. } => {}
            Self::PacketTooBig { mtu } => write_u32(bytes, at::MTU, mtu),
            Self::ParameterProblem { pointer, .. } => write_u32(bytes, at::POINTER, pointer),
            Self::EchoRequest { ident, sequence } | Self::EchoReply { ident, sequence } => {
                write_u16(bytes, at::IDENT, ident);
                write_u16(bytes, at::SEQUENCE, sequence);
            }
            Self::RouterSolicitation { source_link_layer } => {
                emit_link_layer(&mut bytes[HEADER_LEN..], SOURCE_LINK_LAYER, source_link_layer);
            }
            Self::RouterAdvertisement(advertisement) => {
                write_u16(bytes, at::ROUTER_LIFETIME, advertisement.router_lifetime_s);
                write_u32(bytes, at::REACHABLE_TIME, advertisement.reachable_time_ms);
                write_u32(bytes, at::RETRANS_TIMER, advertisement.retrans_timer_ms);
                let options = &mut bytes[ADVERTISEMENT_LEN..];
                emit_link_layer(options, SOURCE_LINK_LAYER, advertisement.source_link_layer);
            }
            Self::NeighborSolicitation { target, source_link_layer } => {
                write(bytes, at::TARGET, &target.octets());
                emit_link_layer(&mut bytes[NEIGHBOR_LEN..], SOURCE_LINK_LAYER, source_link_layer);
            }
            Self::NeighborAdvertisement {
                target,
                target_link_layer,
                router,
                solicited,
                override_,
            } => {
                bytes[at::FLAGS] =
                    bit(router, ROUTER) | bit(solicited, SOLICITED) | bit(override_, OVERRIDE);
                write(bytes, at::TARGET, &target.octets());
                emit_link_layer(&mut bytes[NEIGHBOR_LEN..], TARGET_LINK_LAYER, target_link_layer);
            }
        }
        len
    }

    /// Bytes that [`Message::emit`] writes.
    pub fn emitted_len(&self) -> usize {
        let optional =
            |address: Option<MacAddr>| if address.is_some() { LINK_LAYER_LEN } else { 0 };
        match self {
            Self::RouterSolicitation { source_link_layer } => {
                HEADER_LEN + optional(*source_link_layer)
            }
            Self::RouterAdvertisement(advertisement) => {
                ADVERTISEMENT_LEN + optional(advertisement.source_link_layer)
            }
            Self::NeighborSolicitation { source_link_layer, .. } => {
                NEIGHBOR_LEN + optional(*source_link_layer)
            }
            Self::NeighborAdvertisement { target_link_layer, .. } => {
                NEIGHBOR_LEN + optional(*target_link_layer)
            }
            _ => HEADER_LEN,
        }
    }

    /// True if the message is an error, which must not be answered with an error (RFC 4443 §2.1,
    /// §2.4 e).
    pub fn is_error(&self) -> bool {
        self.kind_and_code().0 < INFORMATIONAL
    }

    fn kind_and_code(&self) -> (u8, u8) {
        match *self {
            Self::DestinationUnreachable { code } => (DESTINATION_UNREACHABLE, code),
            Self::PacketTooBig { .. } => (PACKET_TOO_BIG, 0),
            Self::TimeExceeded { code } => (TIME_EXCEEDED, code),
            Self::ParameterProblem { code, .. } => (PARAMETER_PROBLEM, code),
            Self::EchoRequest { .. } => (ECHO_REQUEST, 0),
            Self::EchoReply { .. } => (ECHO_REPLY, 0),
            Self::RouterSolicitation { .. } => (ROUTER_SOLICITATION, 0),
            Self::RouterAdvertisement(_) => (ROUTER_ADVERTISEMENT, 0),
            Self::NeighborSolicitation { .. } => (NEIGHBOR_SOLICITATION, 0),
            Self::NeighborAdvertisement { .. } => (NEIGHBOR_ADVERTISEMENT, 0),
            Self::Other { kind, code } => (kind, code),
        }
    }
}

/// Reads a router or neighbour solicitation or advertisement.
fn parse_discovery(kind: u8, bytes: &[u8]) -> Result<Message, ParseError> {
    if kind == ROUTER_SOLICITATION {
        let options = DiscoveryOptions::parse(&bytes[HEADER_LEN..])?;
        return Ok(Message::RouterSolicitation { source_link_layer: options.source_link_layer });
    }
    if kind == ROUTER_ADVERTISEMENT {
        let fixed: &[u8; ADVERTISEMENT_LEN] = header(bytes)?;
        let options = DiscoveryOptions::parse(&bytes[ADVERTISEMENT_LEN..])?;
        return Ok(Message::RouterAdvertisement(RouterAdvertisement {
            router_lifetime_s: read_u16(fixed, at::ROUTER_LIFETIME),
            reachable_time_ms: read_u32(fixed, at::REACHABLE_TIME),
            retrans_timer_ms: read_u32(fixed, at::RETRANS_TIMER),
            source_link_layer: options.source_link_layer,
        }));
    }
    let fixed: &[u8; NEIGHBOR_LEN] = header(bytes)?;
    let target = Ipv6Addr::from(read::<16>(fixed, at::TARGET));
    // RFC 4861 §7.1.1, §7.1.2: the target must not be a multicast address.
    if target.is_multicast() {
        return Err(ParseError::BadAddress);
    }
    let options = DiscoveryOptions::parse(&bytes[NEIGHBOR_LEN..])?;
    if kind == NEIGHBOR_SOLICITATION {
        let source_link_layer = options.source_link_layer;
        return Ok(Message::NeighborSolicitation { target, source_link_layer });
    }
    let flags = fixed[at::FLAGS];
    Ok(Message::NeighborAdvertisement {
        target,
        target_link_layer: options.target_link_layer,
        router: flags & ROUTER != 0,
        solicited: flags & SOLICITED != 0,
        override_: flags & OVERRIDE != 0,
    })
}

/// Parsed options of a message of neighbour discovery.
#[derive(Default)]
struct DiscoveryOptions {
    source_link_layer: Option<MacAddr>,
    target_link_layer: Option<MacAddr>,
}

impl DiscoveryOptions {
    /// Parses the options that fill `bytes`. The first of either kind is used; others are skipped.
    fn parse(mut bytes: &[u8]) -> Result<Self, ParseError> {
        let mut options = Self::default();
        while let Some(&kind) = bytes.first() {
            let units = *bytes.get(1).ok_or(ParseError::BadOption)?;
            // RFC 4861 §4.6: a length of zero invalidates the whole message.
            if units == 0 {
                return Err(ParseError::BadOption);
            }
            let (option, rest) = bytes
                .split_at_checked(usize::from(units) * OPTION_UNIT)
                .ok_or(ParseError::BadOption)?;
            match kind {
                SOURCE_LINK_LAYER => read_once(&mut options.source_link_layer, option)?,
                TARGET_LINK_LAYER => read_once(&mut options.target_link_layer, option)?,
                _ => {}
            }
            bytes = rest;
        }
        Ok(options)
    }
}

/// Stores the address in a link-layer address option (RFC 4861 §4.6.1, RFC 2464 §6) unless there is
/// one.
fn read_once(place: &mut Option<MacAddr>, option: &[u8]) -> Result<(), ParseError> {
    // An address of another length is none of Ethernet (RFC 2464 §6): the message is invalid.
    let option: &[u8; LINK_LAYER_LEN] = option.try_into().map_err(|_| ParseError::BadOption)?;
    place.get_or_insert(MacAddr(read(option, 2)));
    Ok(())
}

/// Writes a link-layer address option if there is an address.
fn emit_link_layer(bytes: &mut [u8], kind: u8, address: Option<MacAddr>) {
    if let Some(address) = address {
        bytes[..2].copy_from_slice(&[kind, (LINK_LAYER_LEN / OPTION_UNIT) as u8]);
        write(bytes, 2, &address.0);
    }
}

/// `mask` if `set`, else zero.
fn bit(set: bool, mask: u8) -> u8 {
    if set { mask } else { 0 }
}

/// Bytes of the header that every message has.
pub const HEADER_LEN: usize = 8;

/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: usize = at::CHECKSUM;

/// Hop limit of neighbour discovery packets: proves that they were not forwarded (RFC 4861 §3.1).
pub const HOP_LIMIT: u8 = 255;

/// Code of [`Message::DestinationUnreachable`]: no route to the destination.
pub const NO_ROUTE: u8 = 0;
/// Code of [`Message::DestinationUnreachable`]: prohibited by policy.
pub const ADMINISTRATIVELY_PROHIBITED: u8 = 1;
/// Code of [`Message::DestinationUnreachable`]: the host does not answer on its link.
pub const ADDRESS_UNREACHABLE: u8 = 3;
/// Code of [`Message::DestinationUnreachable`]: no socket has the port.
pub const PORT_UNREACHABLE: u8 = 4;

/// Code of [`Message::TimeExceeded`]: no hops left.
pub const HOP_LIMIT_EXCEEDED: u8 = 0;
/// Code of [`Message::TimeExceeded`]: fragments are missing.
pub const REASSEMBLY_TIME_EXCEEDED: u8 = 1;

/// Code of [`Message::ParameterProblem`]: a field has an invalid value.
pub const ERRONEOUS_HEADER_FIELD: u8 = 0;
/// Code of [`Message::ParameterProblem`]: unrecognized Next Header value.
pub const UNRECOGNIZED_NEXT_HEADER: u8 = 1;
/// Code of [`Message::ParameterProblem`]: unrecognized option that must be processed.
pub const UNRECOGNIZED_OPTION: u8 = 2;
/// Code of [`Message::ParameterProblem`]: a first fragment lacks a part of the header chain
/// (RFC 7112 §5).
pub const FIRST_FRAGMENT_INCOMPLETE: u8 = 3;

/// Bytes of a neighbour solicitation or advertisement before its options.
const NEIGHBOR_LEN: usize = HEADER_LEN + 16;
/// Bytes of a router advertisement before its options.
const ADVERTISEMENT_LEN: usize = HEADER_LEN + 8;
/// Unit of the length field of an option.
const OPTION_UNIT: usize = 8;
/// Bytes of a link-layer address option: two of header, and an Ethernet address.
const LINK_LAYER_LEN: usize = 2 + 6;
pub(crate) const SOURCE_LINK_LAYER: u8 = 1;
pub(crate) const TARGET_LINK_LAYER: u8 = 2;

const DESTINATION_UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
/// The first type that is not an error (RFC 4443 §2.1).
const INFORMATIONAL: u8 = 128;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;
pub(crate) const ROUTER_SOLICITATION: u8 = 133;
pub(crate) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(crate) const NEIGHBOR_SOLICITATION: u8 = 135;
pub(crate) const NEIGHBOR_ADVERTISEMENT: u8 = 136;
pub(crate) const REDIRECT: u8 = 137;

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Offsets of the fields.
pub(crate) mod at {
    pub(crate) const TYPE: usize = 0;
    pub(crate) const CODE: usize = 1;
    pub(crate) const CHECKSUM: usize = 2;
    pub(crate) const IDENT: usize = 4;
    pub(crate) const MTU: usize = 4;
    pub(crate) const POINTER: usize = 4;
    pub(crate) const FLAGS: usize = 4;
    pub(crate) const SEQUENCE: usize = 6;
    pub(crate) const ROUTER_LIFETIME: usize = 6;
    pub(crate) const REACHABLE_TIME: usize = 8;
    pub(crate) const TARGET: usize = 8;
    pub(crate) const RETRANS_TIMER: usize = 12;
}

#[cfg(test)]
mod tests;
