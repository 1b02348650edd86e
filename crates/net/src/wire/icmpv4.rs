//! ICMP for IPv4 (RFC 792): the eight bytes that begin every message.
//!
//! The checksum covers header and payload, so the caller handles it: `parse` does not verify it,
//! and `emit` leaves it zero.

use core::net::Ipv4Addr;

use super::ParseError;
use super::field::{header, header_mut, read, read_u16, write, write_u16};

/// An ICMP message. Errors quote the offending packet behind the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// Echo request (RFC 792). Its code, which has no meaning, is ignored.
    EchoRequest {
        /// Identifier of the sending process.
        ident: u16,
        /// Sequence number.
        sequence: u16,
    },
    /// Echo reply.
    EchoReply {
        /// Identifier of the request.
        ident: u16,
        /// Sequence number of the request.
        sequence: u16,
    },
    /// A packet could not be delivered.
    DestinationUnreachable {
        /// Reason, such as [`PORT_UNREACHABLE`].
        code: u8,
        /// With [`FRAGMENTATION_NEEDED`]: the next hop's MTU, or zero from a router that predates
        /// RFC 1191 §4.
        next_hop_mtu: u16,
    },
    /// A better route to the destination of a packet.
    Redirect {
        /// Scope of the redirect, 0 to 3.
        code: u8,
        /// The router to use.
        gateway: Ipv4Addr,
    },
    /// The time to live or the reassembly time of a packet ran out.
    TimeExceeded {
        /// [`TTL_EXCEEDED`] or [`REASSEMBLY_TIME_EXCEEDED`].
        code: u8,
    },
    /// A header field is invalid.
    ParameterProblem {
        /// Offset of the offending byte in the quoted packet.
        pointer: u8,
    },
    /// Any other type, and a parameter problem without a pointer.
    Other {
        /// The Type field.
        kind: u8,
        /// The Code field.
        code: u8,
    },
}

impl Message {
    /// Reads the header at the start of `bytes`. The checksum is not verified.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let bytes: &[u8; HEADER_LEN] = header(bytes)?;
        let code = bytes[at::CODE];
        let ident = read_u16(bytes, at::IDENT);
        let sequence = read_u16(bytes, at::SEQUENCE);
        Ok(match (bytes[at::TYPE], code) {
            (ECHO_REPLY, _) => Self::EchoReply { ident, sequence },
            (ECHO_REQUEST, _) => Self::EchoRequest { ident, sequence },
            (DESTINATION_UNREACHABLE, _) => Self::DestinationUnreachable {
                code,
                next_hop_mtu: read_u16(bytes, at::NEXT_HOP_MTU),
            },
            (REDIRECT, _) => {
                Self::Redirect { code, gateway: Ipv4Addr::from(read::<4>(bytes, at::GATEWAY)) }
            }
            (TIME_EXCEEDED, _) => Self::TimeExceeded { code },
            (PARAMETER_PROBLEM, 0) => Self::ParameterProblem { pointer: bytes[at::POINTER] },
            (kind, code) => Self::Other { kind, code },
        })
    }

    /// Writes the header of [`HEADER_LEN`] bytes at the start of `bytes`, which must be at least as
    /// long. The checksum is zero; the caller computes it. For [`Message::Other`] the last four
    /// bytes are zero.
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        let bytes: &mut [u8; HEADER_LEN] = header_mut(bytes);
        *bytes = [0; HEADER_LEN];
        let (kind, code) = match *self {
            Self::EchoRequest { ident, sequence } | Self::EchoReply { ident, sequence } => {
                write_u16(bytes, at::IDENT, ident);
                write_u16(bytes, at::SEQUENCE, sequence);
                let request = matches!(self, Self::EchoRequest { .. });
                (if request { ECHO_REQUEST } else { ECHO_REPLY }, 0)
            }
            Self::DestinationUnreachable { code, next_hop_mtu } => {
                write_u16(bytes, at::NEXT_HOP_MTU, next_hop_mtu);
                (DESTINATION_UNREACHABLE, code)
            }
            Self::Redirect { code, gateway } => {
                write(bytes, at::GATEWAY, &gateway.octets());
                (REDIRECT, code)
            }
            Self::TimeExceeded { code } => (TIME_EXCEEDED, code),
            Self::ParameterProblem { pointer } => {
                bytes[at::POINTER] = pointer;
                (PARAMETER_PROBLEM, 0)
            }
            Self::Other { kind, code } => (kind, code),
        };
        bytes[at::TYPE] = kind;
        bytes[at::CODE] = code;
        HEADER_LEN
    }

    /// True if the message is an error, which must not be answered with an error (RFC 1122 §3.2.2).
    /// Unknown types count as errors.
    pub fn is_error(&self) -> bool {
        match *self {
            Self::EchoRequest { .. } | Self::EchoReply { .. } => false,
            Self::DestinationUnreachable { .. }
            | Self::Redirect { .. }
            | Self::TimeExceeded { .. }
            | Self::ParameterProblem { .. } => true,
            Self::Other { kind, .. } => !QUERIES.contains(&kind),
        }
    }
}

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: usize = at::CHECKSUM;

/// Code of [`Message::DestinationUnreachable`]: no route to the network.
pub const NETWORK_UNREACHABLE: u8 = 0;
/// Code of [`Message::DestinationUnreachable`]: the host does not answer on its link.
pub const HOST_UNREACHABLE: u8 = 1;
/// Code of [`Message::DestinationUnreachable`]: the host does not support the protocol.
pub const PROTOCOL_UNREACHABLE: u8 = 2;
/// Code of [`Message::DestinationUnreachable`]: no socket has the port.
pub const PORT_UNREACHABLE: u8 = 3;
/// Code of [`Message::DestinationUnreachable`]: larger than the next hop's MTU, and DF is set.
pub const FRAGMENTATION_NEEDED: u8 = 4;
/// Code of [`Message::DestinationUnreachable`]: a source route cannot be followed.
pub const SOURCE_ROUTE_FAILED: u8 = 5;
/// Code of [`Message::DestinationUnreachable`]: prohibited by policy (RFC 1812 §5.2.7.1).
pub const ADMINISTRATIVELY_PROHIBITED: u8 = 13;

/// Code of [`Message::TimeExceeded`]: no hops left.
pub const TTL_EXCEEDED: u8 = 0;
/// Code of [`Message::TimeExceeded`]: fragments are missing.
pub const REASSEMBLY_TIME_EXCEEDED: u8 = 1;

const ECHO_REPLY: u8 = 0;
const DESTINATION_UNREACHABLE: u8 = 3;
const REDIRECT: u8 = 5;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

/// Query and answer types among [`Message::Other`]: router discovery (RFC 1256), timestamp,
/// information and address mask (RFC 792, RFC 950), extended echo (RFC 8335).
const QUERIES: [u8; 10] = [9, 10, 13, 14, 15, 16, 17, 18, 42, 43];

/// Offsets of the fields.
mod at {
    pub(super) const TYPE: usize = 0;
    pub(super) const CODE: usize = 1;
    pub(super) const CHECKSUM: usize = 2;
    pub(super) const IDENT: usize = 4;
    pub(super) const GATEWAY: usize = 4;
    pub(super) const POINTER: usize = 4;
    pub(super) const SEQUENCE: usize = 6;
    pub(super) const NEXT_HOP_MTU: usize = 6;
}
