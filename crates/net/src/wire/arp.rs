//! ARP for IPv4 over Ethernet (RFC 826).

use core::net::Ipv4Addr;

use super::ethernet::EtherType;
use super::field::{header, header_mut, read, read_u16, write, write_u16};
use super::{MacAddr, ParseError};

/// An ARP packet that maps an IPv4 address to a link-layer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet {
    /// Request or reply.
    pub operation: Operation,
    /// Link-layer address of the sender.
    pub sender_mac: MacAddr,
    /// Protocol address of the sender; unspecified in a probe (RFC 5227 §1.1).
    pub sender_ip: Ipv4Addr,
    /// Link-layer address of the target; meaningless in a request.
    pub target_mac: MacAddr,
    /// Protocol address of the target: the address asked for, or of the station that asked.
    pub target_ip: Ipv4Addr,
}

impl Packet {
    /// Reads the packet at the start of `bytes`; Ethernet padding may follow. Other address
    /// families and operations are [`ParseError::Unsupported`].
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let bytes: &[u8; LEN] = header(bytes)?;
        if read_u16(bytes, at::HARDWARE_TYPE) != HARDWARE_ETHERNET
            || read_u16(bytes, at::PROTOCOL_TYPE) != EtherType::IPV4.0
            || bytes[at::HARDWARE_LEN] != MAC_LEN
            || bytes[at::PROTOCOL_LEN] != IPV4_LEN
        {
            return Err(ParseError::Unsupported);
        }
        let operation = match read_u16(bytes, at::OPERATION) {
            REQUEST => Operation::Request,
            REPLY => Operation::Reply,
            _ => return Err(ParseError::Unsupported),
        };
        Ok(Self {
            operation,
            sender_mac: MacAddr(read(bytes, at::SENDER_MAC)),
            sender_ip: Ipv4Addr::from(read::<4>(bytes, at::SENDER_IP)),
            target_mac: MacAddr(read(bytes, at::TARGET_MAC)),
            target_ip: Ipv4Addr::from(read::<4>(bytes, at::TARGET_IP)),
        })
    }

    /// Writes [`LEN`] bytes at the start of `bytes`, which must be at least as long.
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        let bytes: &mut [u8; LEN] = header_mut(bytes);
        let operation = match self.operation {
            Operation::Request => REQUEST,
            Operation::Reply => REPLY,
        };
        write_u16(bytes, at::HARDWARE_TYPE, HARDWARE_ETHERNET);
        write_u16(bytes, at::PROTOCOL_TYPE, EtherType::IPV4.0);
        bytes[at::HARDWARE_LEN] = MAC_LEN;
        bytes[at::PROTOCOL_LEN] = IPV4_LEN;
        write_u16(bytes, at::OPERATION, operation);
        write(bytes, at::SENDER_MAC, &self.sender_mac.0);
        write(bytes, at::SENDER_IP, &self.sender_ip.octets());
        write(bytes, at::TARGET_MAC, &self.target_mac.0);
        write(bytes, at::TARGET_IP, &self.target_ip.octets());
        LEN
    }
}

/// Operation of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Asks which station has the target address.
    Request,
    /// Says that the sender has the sender address.
    Reply,
}

/// Bytes of an ARP packet: a fixed part of 8, and two address pairs.
pub const LEN: usize = 8 + 2 * (MAC_LEN as usize + IPV4_LEN as usize);

const HARDWARE_ETHERNET: u16 = 1;
const MAC_LEN: u8 = 6;
const IPV4_LEN: u8 = 4;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// Offsets of the fields.
mod at {
    pub(super) const HARDWARE_TYPE: usize = 0;
    pub(super) const PROTOCOL_TYPE: usize = 2;
    pub(super) const HARDWARE_LEN: usize = 4;
    pub(super) const PROTOCOL_LEN: usize = 5;
    pub(super) const OPERATION: usize = 6;
    pub(super) const SENDER_MAC: usize = 8;
    pub(super) const SENDER_IP: usize = 14;
    pub(super) const TARGET_MAC: usize = 18;
    pub(super) const TARGET_IP: usize = 24;
}
