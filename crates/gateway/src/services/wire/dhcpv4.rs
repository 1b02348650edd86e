//! DHCP for IPv4 (RFC 2131, RFC 2132): the message and its options.
//!
//! Only messages with Ethernet addresses are accepted. Options are kept as bytes by code, in the
//! order in which they came. Parts of one option are joined (RFC 3396 §7). Options in the server
//! name and file fields are read if option overload says so (RFC 2132 §9.3); any other content of
//! these fields is ignored.
//!
//! Messages are control-plane data: parsing allocates at most the size of the message.

use std::net::Ipv4Addr;

use towpath_net::wire::field::{header, read, read_u16, read_u32, write, write_u16, write_u32};
use towpath_net::wire::{MacAddr, ParseError};

/// A DHCP message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The message goes from a server to a client; otherwise from a client to a server.
    pub is_reply: bool,
    /// Number of relays passed.
    pub hops: u8,
    /// Chosen by the client and copied into the answer.
    pub transaction_id: u32,
    /// Time that the client has been trying.
    pub elapsed_s: u16,
    /// The client cannot receive IP unicast before it has an address.
    pub broadcast: bool,
    /// Address that the client uses (`ciaddr`).
    pub client_address: Ipv4Addr,
    /// Address assigned to the client (`yiaddr`).
    pub your_address: Ipv4Addr,
    /// Server for the next step of booting (`siaddr`).
    pub next_server: Ipv4Addr,
    /// Relay through which the message came (`giaddr`).
    pub relay: Ipv4Addr,
    /// Hardware address of the client (`chaddr`).
    pub client_mac: MacAddr,
    /// Options of the message.
    pub options: Options,
}

impl Message {
    /// An answer to `request` without options: the fields that RFC 2131 §4.3.1, table 3, copies
    /// from it.
    pub fn reply_to(request: &Self) -> Self {
        Self {
            is_reply: true,
            hops: 0,
            transaction_id: request.transaction_id,
            elapsed_s: 0,
            broadcast: request.broadcast,
            client_address: Ipv4Addr::UNSPECIFIED,
            your_address: Ipv4Addr::UNSPECIFIED,
            next_server: Ipv4Addr::UNSPECIFIED,
            relay: request.relay,
            client_mac: request.client_mac,
            options: Options::default(),
        }
    }

    /// Reads a whole UDP payload.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let fixed: &[u8; FIXED_LEN] = header(bytes)?;
        let is_reply = match fixed[at::OP] {
            BOOT_REQUEST => false,
            BOOT_REPLY => true,
            _ => return Err(ParseError::Unsupported),
        };
        if fixed[at::HARDWARE_TYPE] != ETHERNET || fixed[at::HARDWARE_LEN] != MAC_LEN {
            return Err(ParseError::Unsupported);
        }
        // Without the cookie the message is BOOTP (RFC 2131 §3), which has no lease times.
        if fixed[at::COOKIE..] != COOKIE {
            return Err(ParseError::Unsupported);
        }
        let mut options = Options::default();
        options.parse_field(&bytes[FIXED_LEN..])?;
        // Overloaded fields cannot overload further: the option is read once, here.
        let overload = match options.get(option::OVERLOAD) {
            None => 0,
            Some(&[which @ 1..=3]) => which,
            Some(_) => return Err(ParseError::BadOption),
        };
        if overload & OVERLOAD_FILE != 0 {
            options.parse_field(&fixed[at::FILE..at::COOKIE])?;
        }
        if overload & OVERLOAD_SERVER_NAME != 0 {
            options.parse_field(&fixed[at::SERVER_NAME..at::FILE])?;
        }
        options.remove(option::OVERLOAD);
        let address = |offset| Ipv4Addr::from(read::<4>(fixed, offset));
        Ok(Self {
            is_reply,
            hops: fixed[at::HOPS],
            transaction_id: read_u32(fixed, at::TRANSACTION_ID),
            elapsed_s: read_u16(fixed, at::ELAPSED),
            broadcast: read_u16(fixed, at::FLAGS) & BROADCAST != 0,
            client_address: address(at::CLIENT_ADDRESS),
            your_address: address(at::YOUR_ADDRESS),
            next_server: address(at::NEXT_SERVER),
            relay: address(at::RELAY),
            client_mac: MacAddr(read(fixed, at::CLIENT_MAC)),
            options,
        })
    }

    /// Builds the message in at most `len_max` bytes, which must be at least [`MESSAGE_LEN_MIN`].
    /// Options that do not fit are omitted, so important options must come first.
    pub fn emit(&self, len_max: usize) -> Vec<u8> {
        let mut bytes = Vec::from([0; FIXED_LEN]);
        bytes[at::OP] = if self.is_reply { BOOT_REPLY } else { BOOT_REQUEST };
        bytes[at::HARDWARE_TYPE] = ETHERNET;
        bytes[at::HARDWARE_LEN] = MAC_LEN;
        bytes[at::HOPS] = self.hops;
        write_u32(&mut bytes, at::TRANSACTION_ID, self.transaction_id);
        write_u16(&mut bytes, at::ELAPSED, self.elapsed_s);
        write_u16(&mut bytes, at::FLAGS, if self.broadcast { BROADCAST } else { 0 });
        for (offset, address) in [
            (at::CLIENT_ADDRESS, self.client_address),
            (at::YOUR_ADDRESS, self.your_address),
            (at::NEXT_SERVER, self.next_server),
            (at::RELAY, self.relay),
        ] {
            write(&mut bytes, offset, &address.octets());
        }
        write(&mut bytes, at::CLIENT_MAC, &self.client_mac.0);
        write(&mut bytes, at::COOKIE, &COOKIE);
        for (code, value) in self.options.iter() {
            // RFC 3396 §5: a value longer than the length field allows is split.
            let parts = value.len().div_ceil(OPTION_LEN_MAX).max(1);
            if bytes.len() + value.len() + 2 * parts + 1 > len_max {
                continue;
            }
            for part in 0..parts {
                let from = part * OPTION_LEN_MAX;
                let part = &value[from..value.len().min(from + OPTION_LEN_MAX)];
                bytes.extend_from_slice(&[code, part.len() as u8]);
                bytes.extend_from_slice(part);
            }
        }
        bytes.push(option::END);
        // RFC 1542 §2.1: BOOTP messages have this minimum length, and some relays require it.
        bytes.resize(bytes.len().max(MESSAGE_LEN_MIN), option::PAD);
        bytes
    }
}

/// Options of a message; each code occurs once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(Vec<(u8, Vec<u8>)>);

impl Options {
    /// The value of an option.
    pub fn get(&self, code: u8) -> Option<&[u8]> {
        self.0.iter().find(|(other, _)| *other == code).map(|(_, value)| &value[..])
    }

    /// The value of an option that is one byte.
    pub fn byte(&self, code: u8) -> Option<u8> {
        if let Some(&[value]) = self.get(code) { Some(value) } else { None }
    }

    /// The value of an option that is a number of two bytes.
    pub fn u16(&self, code: u8) -> Option<u16> {
        Some(u16::from_be_bytes(self.get(code)?.try_into().ok()?))
    }

    /// The value of an option that is a number of four bytes.
    pub fn u32(&self, code: u8) -> Option<u32> {
        Some(u32::from_be_bytes(self.get(code)?.try_into().ok()?))
    }

    /// The value of an option that is one address.
    pub fn address(&self, code: u8) -> Option<Ipv4Addr> {
        self.u32(code).map(Ipv4Addr::from)
    }

    /// The addresses of an option that is a list of them.
    pub fn addresses(&self, code: u8) -> impl Iterator<Item = Ipv4Addr> {
        let (addresses, _) = self.get(code).unwrap_or_default().as_chunks::<4>();
        addresses.iter().map(|&octets| Ipv4Addr::from(octets))
    }

    /// All options, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.0.iter().map(|(code, value)| (*code, &value[..]))
    }

    /// Adds an option at the end, or replaces its value.
    ///
    /// # Panics
    /// If the code is that of padding or of the end.
    pub fn set(&mut self, code: u8, value: &[u8]) {
        assert!(code != option::PAD && code != option::END, "not an option");
        self.remove(code);
        self.0.push((code, value.into()));
    }

    /// Removes an option.
    pub fn remove(&mut self, code: u8) {
        self.0.retain(|(other, _)| *other != code);
    }

    /// Reads the options of one field. Bytes behind the end option are padding. A field may end
    /// without an end option, as other implementations allow.
    fn parse_field(&mut self, mut field: &[u8]) -> Result<(), ParseError> {
        while let Some((&code, rest)) = field.split_first() {
            field = match code {
                option::PAD => rest,
                option::END => return Ok(()),
                _ => {
                    let (&len, rest) = rest.split_first().ok_or(ParseError::BadOption)?;
                    let (value, rest) =
                        rest.split_at_checked(len.into()).ok_or(ParseError::BadOption)?;
                    self.append(code, value);
                    rest
                }
            };
        }
        Ok(())
    }

    fn append(&mut self, code: u8, value: &[u8]) {
        match self.0.iter_mut().find(|(other, _)| *other == code) {
            Some((_, before)) => before.extend_from_slice(value),
            None => self.0.push((code, value.into())),
        }
    }
}

/// Type of a message (RFC 2132 §9.6): the value of [`option::MESSAGE_TYPE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "RFC 2131 §2, table 2, says what they are")]
pub enum MessageType {
    Discover = 1,
    Offer = 2,
    Request = 3,
    Decline = 4,
    Ack = 5,
    Nak = 6,
    Release = 7,
    Inform = 8,
}

impl MessageType {
    /// The type of a message with these options.
    pub fn of(options: &Options) -> Option<Self> {
        Some(match options.byte(option::MESSAGE_TYPE)? {
            1 => Self::Discover,
            2 => Self::Offer,
            3 => Self::Request,
            4 => Self::Decline,
            5 => Self::Ack,
            6 => Self::Nak,
            7 => Self::Release,
            8 => Self::Inform,
            _ => return None,
        })
    }
}

/// Option codes.
pub mod option {
    /// Padding.
    pub const PAD: u8 = 0;
    /// Netmask of the link (RFC 2132 §3.3).
    pub const SUBNET_MASK: u8 = 1;
    /// Routers, best first (RFC 2132 §3.5).
    pub const ROUTERS: u8 = 3;
    /// DNS servers, best first (RFC 2132 §3.8).
    pub const DNS_SERVERS: u8 = 6;
    /// Name of the client, with or without its domain (RFC 2132 §3.14).
    pub const HOST_NAME: u8 = 12;
    /// Domain of the client (RFC 2132 §3.17).
    pub const DOMAIN_NAME: u8 = 15;
    /// MTU of the link (RFC 2132 §5.1).
    pub const MTU: u8 = 26;
    /// Broadcast address of the link (RFC 2132 §5.3).
    pub const BROADCAST_ADDRESS: u8 = 28;
    /// Address that the client requests (RFC 2132 §9.1).
    pub const REQUESTED_ADDRESS: u8 = 50;
    /// Lease time in seconds (RFC 2132 §9.2).
    pub const LEASE_TIME: u8 = 51;
    /// The file or server name field contains options (RFC 2132 §9.3).
    pub const OVERLOAD: u8 = 52;
    /// Type of the message: [`super::MessageType`].
    pub const MESSAGE_TYPE: u8 = 53;
    /// Address of the selected server, or of the server that answers (RFC 2132 §9.7).
    pub const SERVER_ID: u8 = 54;
    /// Codes of the options that the client requests (RFC 2132 §9.8).
    pub const PARAMETER_LIST: u8 = 55;
    /// Error text (RFC 2132 §9.9).
    pub const ERROR_MESSAGE: u8 = 56;
    /// Largest message that the client accepts (RFC 2132 §9.10).
    pub const MAX_MESSAGE_LEN: u8 = 57;
    /// Seconds until the client renews its lease (RFC 2132 §9.11).
    pub const RENEWAL_TIME: u8 = 58;
    /// Seconds until the client rebinds with any server (RFC 2132 §9.12).
    pub const REBINDING_TIME: u8 = 59;
    /// Client identifier, used instead of the hardware address (RFC 2132 §9.14, RFC 6842).
    pub const CLIENT_ID: u8 = 61;
    /// Exchange of two messages instead of four (RFC 4039).
    pub const RAPID_COMMIT: u8 = 80;
    /// Routes (RFC 3442), which take precedence over [`ROUTERS`].
    pub const CLASSLESS_ROUTES: u8 = 121;
    /// Fully qualified domain name of the client (RFC 4702).
    pub const FQDN: u8 = 81;
    /// Relay agent information, which the server echoes (RFC 3046).
    pub const RELAY_INFORMATION: u8 = 82;
    /// Domain search list (RFC 3397).
    pub const SEARCH_LIST: u8 = 119;
    /// End of the options.
    pub const END: u8 = 255;
}

/// UDP port of servers.
pub const SERVER_PORT: u16 = 67;
/// UDP port of clients.
pub const CLIENT_PORT: u16 = 68;
/// Minimum length of a message that is sent.
pub const MESSAGE_LEN_MIN: usize = 300;
/// Message length that every client accepts, in an IP packet of 576 bytes (RFC 2131 §2).
pub const MESSAGE_LEN_ANY_CLIENT: usize = 576 - 20 - 8;

const BOOT_REQUEST: u8 = 1;
const BOOT_REPLY: u8 = 2;
const ETHERNET: u8 = 1;
const MAC_LEN: u8 = 6;
const BROADCAST: u16 = 0x8000;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
const FIXED_LEN: usize = at::COOKIE + COOKIE.len();
const OPTION_LEN_MAX: usize = 255;
const OVERLOAD_FILE: u8 = 1;
const OVERLOAD_SERVER_NAME: u8 = 2;

/// Offsets of the fields.
mod at {
    pub(super) const OP: usize = 0;
    pub(super) const HARDWARE_TYPE: usize = 1;
    pub(super) const HARDWARE_LEN: usize = 2;
    pub(super) const HOPS: usize = 3;
    pub(super) const TRANSACTION_ID: usize = 4;
    pub(super) const ELAPSED: usize = 8;
    pub(super) const FLAGS: usize = 10;
    pub(super) const CLIENT_ADDRESS: usize = 12;
    pub(super) const YOUR_ADDRESS: usize = 16;
    pub(super) const NEXT_SERVER: usize = 20;
    pub(super) const RELAY: usize = 24;
    pub(super) const CLIENT_MAC: usize = 28;
    pub(super) const SERVER_NAME: usize = 44;
    pub(super) const FILE: usize = 108;
    pub(super) const COOKIE: usize = 236;
}

#[cfg(test)]
mod tests;
