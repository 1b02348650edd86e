//! DHCP for IPv6 (RFC 8415): messages between clients and servers, and their nested options.
//!
//! Options are kept as bytes with their codes, in order; a code may occur more than once. Relay
//! messages are not supported.
//!
//! Messages are control-plane data: parsing allocates at most the size of the message.

use std::net::Ipv6Addr;

use towpath_net::wire::field::{header, read, read_u16, read_u32};
use towpath_net::wire::{MacAddr, ParseError};

/// A message (RFC 8415 §8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Type of the message.
    pub kind: MessageType,
    /// Chosen by the client, 24 bits, and copied into the answer.
    pub transaction_id: u32,
    /// Options of the message.
    pub options: Options,
}

impl Message {
    /// Reads a whole UDP payload.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let fixed: &[u8; FIXED_LEN] = header(bytes)?;
        let kind = MessageType::from_byte(fixed[0]).ok_or(ParseError::Unsupported)?;
        let transaction_id = read_u32(fixed, 0) & TRANSACTION_ID_MASK;
        Ok(Self { kind, transaction_id, options: Options::parse(&bytes[FIXED_LEN..])? })
    }

    /// Builds the message in at most `len_max` bytes. Options that do not fit are omitted, so
    /// important options must come first.
    pub fn emit(&self, len_max: usize) -> Vec<u8> {
        let first = u32::from(self.kind as u8) << 24 | self.transaction_id & TRANSACTION_ID_MASK;
        let mut bytes = Vec::from(first.to_be_bytes());
        for (code, value) in self.options.iter() {
            if bytes.len() + OPTION_HEADER_LEN + value.len() <= len_max {
                emit_option(&mut bytes, code, value);
            }
        }
        bytes
    }
}

/// Type of a message (RFC 8415 §7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "RFC 8415 §7.3 says what they are")]
pub enum MessageType {
    Solicit = 1,
    Advertise = 2,
    Request = 3,
    Confirm = 4,
    Renew = 5,
    Rebind = 6,
    Reply = 7,
    Release = 8,
    Decline = 9,
    Reconfigure = 10,
    InformationRequest = 11,
}

impl MessageType {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Solicit,
            2 => Self::Advertise,
            3 => Self::Request,
            4 => Self::Confirm,
            5 => Self::Renew,
            6 => Self::Rebind,
            7 => Self::Reply,
            8 => Self::Release,
            9 => Self::Decline,
            10 => Self::Reconfigure,
            11 => Self::InformationRequest,
            _ => return None,
        })
    }
}

/// Options of a message or of another option, in order (RFC 8415 §21.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(u16, Vec<u8>)>);

impl Options {
    /// Reads the options that fill `bytes`.
    pub fn parse(mut bytes: &[u8]) -> Result<Self, ParseError> {
        let mut options = Self::default();
        while !bytes.is_empty() {
            let header = bytes.get(..OPTION_HEADER_LEN).ok_or(ParseError::BadOption)?;
            let (code, len) = (read_u16(header, 0), usize::from(read_u16(header, 2)));
            let (value, rest) =
                bytes[OPTION_HEADER_LEN..].split_at_checked(len).ok_or(ParseError::BadOption)?;
            options.0.push((code, value.into()));
            bytes = rest;
        }
        Ok(options)
    }

    /// Builds the options as content of a message or another option. A value longer than its length
    /// field allows is omitted.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.iter().for_each(|(code, value)| emit_option(&mut bytes, code, value));
        bytes
    }

    /// Value of the first option with this code.
    pub fn get(&self, code: u16) -> Option<&[u8]> {
        self.all(code).next()
    }

    /// Values of all options with this code, in order.
    pub fn all(&self, code: u16) -> impl Iterator<Item = &[u8]> {
        self.iter().filter(move |(other, _)| *other == code).map(|(_, value)| value)
    }

    /// All options, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.0.iter().map(|(code, value)| (*code, &value[..]))
    }

    /// Adds an option at the end.
    pub fn push(&mut self, code: u16, value: &[u8]) {
        self.0.push((code, value.into()));
    }

    /// True if the client requests an option (RFC 8415 §21.7); a client without a request list gets
    /// all.
    pub fn wants(&self, code: u16) -> bool {
        self.get(option::ORO).is_none_or(|list| {
            list.as_chunks::<2>().0.iter().any(|&wanted| u16::from_be_bytes(wanted) == code)
        })
    }

    /// Identifier of a client or server under `code`, if its length is valid (RFC 8415 §11.1).
    pub fn duid(&self, code: u16) -> Option<&[u8]> {
        self.get(code).filter(|duid| (DUID_LEN_MIN..=DUID_LEN_MAX).contains(&duid.len()))
    }
}

/// An identity association for addresses (RFC 8415 §21.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityAssociation {
    /// Identifier of the association, unique for the client.
    pub id: u32,
    /// Seconds until the client renews with the same server; zero leaves it to the client.
    pub renew_s: u32,
    /// Seconds until the client rebinds with any server; zero leaves it to the client.
    pub rebind_s: u32,
    /// Addresses of the association.
    pub addresses: Vec<AddressLease>,
    /// Status of the request, if it must be reported.
    pub status: Option<Status>,
}

impl IdentityAssociation {
    /// Reads the value of [`option::IA_NA`].
    pub fn parse(value: &[u8]) -> Result<Self, ParseError> {
        let fixed: &[u8; IA_LEN] = header(value)?;
        let options = Options::parse(&value[IA_LEN..])?;
        let addresses = options.all(option::IA_ADDRESS).map(AddressLease::parse);
        Ok(Self {
            id: read_u32(fixed, 0),
            renew_s: read_u32(fixed, 4),
            rebind_s: read_u32(fixed, 8),
            addresses: addresses.collect::<Result<_, _>>()?,
            status: Status::of(&options),
        })
    }

    /// The value of the option.
    pub fn emit(&self) -> Vec<u8> {
        let mut options = Options::default();
        for lease in &self.addresses {
            options.push(option::IA_ADDRESS, &lease.emit());
        }
        if let Some(status) = self.status {
            options.push(option::STATUS, &status.emit());
        }
        let mut bytes = Vec::with_capacity(IA_LEN);
        for field in [self.id, self.renew_s, self.rebind_s] {
            bytes.extend_from_slice(&field.to_be_bytes());
        }
        bytes.extend_from_slice(&options.emit());
        bytes
    }
}

/// An address of an identity association (RFC 8415 §21.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLease {
    /// The address.
    pub address: Ipv6Addr,
    /// Seconds for which new flows may use it.
    pub preferred_s: u32,
    /// Seconds for which it is valid.
    pub valid_s: u32,
}

impl AddressLease {
    fn parse(value: &[u8]) -> Result<Self, ParseError> {
        let fixed: &[u8; ADDRESS_LEN] = header(value)?;
        Options::parse(&value[ADDRESS_LEN..])?;
        Ok(Self {
            address: Ipv6Addr::from(read::<16>(fixed, 0)),
            preferred_s: read_u32(fixed, 16),
            valid_s: read_u32(fixed, 20),
        })
    }

    fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::from(self.address.octets());
        bytes.extend_from_slice(&self.preferred_s.to_be_bytes());
        bytes.extend_from_slice(&self.valid_s.to_be_bytes());
        bytes
    }
}

/// Status of a request (RFC 8415 §21.13); the text behind the code is left empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// Success.
    pub const SUCCESS: Self = Self(0);
    /// No address is left.
    pub const NO_ADDRESSES: Self = Self(2);
    /// The server has no such lease.
    pub const NO_BINDING: Self = Self(3);
    /// An address is not valid on the link.
    pub const NOT_ON_LINK: Self = Self(4);

    /// Status in a list of options; `None` means success.
    pub fn of(options: &Options) -> Option<Self> {
        let code = options.get(option::STATUS)?.first_chunk()?;
        Some(Self(u16::from_be_bytes(*code)))
    }

    /// The value of the option.
    pub fn emit(self) -> [u8; 2] {
        self.0.to_be_bytes()
    }
}

/// Permanent identifier of a device with this address (DUID-LL, RFC 8415 §11.4).
pub fn duid_of(mac: MacAddr) -> [u8; 10] {
    let mut duid = [0, 3, 0, 1, 0, 0, 0, 0, 0, 0];
    duid[4..].copy_from_slice(&mac.0);
    duid
}

fn emit_option(bytes: &mut Vec<u8>, code: u16, value: &[u8]) {
    let Ok(len) = u16::try_from(value.len()) else { return };
    bytes.extend_from_slice(&code.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(value);
}

/// Option codes.
pub mod option {
    /// Identifier of the client (RFC 8415 §21.2).
    pub const CLIENT_ID: u16 = 1;
    /// Identifier of the server (RFC 8415 §21.3).
    pub const SERVER_ID: u16 = 2;
    /// Identity association: [`super::IdentityAssociation`].
    pub const IA_NA: u16 = 3;
    /// Address of an association: [`super::AddressLease`].
    pub const IA_ADDRESS: u16 = 5;
    /// Codes of the options that the client requests (RFC 8415 §21.7).
    pub const ORO: u16 = 6;
    /// Preference of the server, for the client's choice (RFC 8415 §21.8).
    pub const PREFERENCE: u16 = 7;
    /// Time since the client began, in hundredths of a second (RFC 8415 §21.9).
    pub const ELAPSED_TIME: u16 = 8;
    /// Status code: [`super::Status`].
    pub const STATUS: u16 = 13;
    /// Exchange of two messages instead of four (RFC 8415 §21.14).
    pub const RAPID_COMMIT: u16 = 14;
    /// DNS servers, best first (RFC 3646 §3).
    pub const DNS_SERVERS: u16 = 23;
    /// Domain search list (RFC 3646 §4).
    pub const DOMAIN_LIST: u16 = 24;
    /// Fully qualified domain name of the client (RFC 4704).
    pub const FQDN: u16 = 39;
}

/// Multicast address of servers and relays (RFC 8415 §7.1).
pub const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// UDP port of servers.
pub const SERVER_PORT: u16 = 547;
/// UDP port of clients.
pub const CLIENT_PORT: u16 = 546;

const FIXED_LEN: usize = 4;
const TRANSACTION_ID_MASK: u32 = 0x00ff_ffff;
const OPTION_HEADER_LEN: usize = 4;
const IA_LEN: usize = 12;
const ADDRESS_LEN: usize = 24;
const DUID_LEN_MIN: usize = 2 + 1;
const DUID_LEN_MAX: usize = 2 + 128;

#[cfg(test)]
mod tests;
