//! Router advertisements (RFC 4861 §4.2) with the options of hosts' configuration (RFC 4861 §4.6,
//! RFC 8106 §5).
//!
//! At most [`PREFIXES_MAX`] prefixes and [`DNS_SERVERS_MAX`] DNS servers are parsed; further ones
//! are ignored.

use std::net::Ipv6Addr;

use towpath_net::wire::field::{header, read, read_u32, write, write_u16, write_u32};
use towpath_net::wire::icmpv6::{HEADER_LEN, Message};
use towpath_net::wire::{MacAddr, ParseError};

use super::domain::DomainName;

/// A router advertisement (RFC 4861 §4.2, §4.6; RFC 8106 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouterAdvertisement {
    /// Hop limit for hosts to use; zero if unspecified.
    pub hop_limit: u8,
    /// Addresses come from DHCPv6 (the M flag).
    pub managed: bool,
    /// Other configuration comes from DHCPv6 (the O flag).
    pub other: bool,
    /// Seconds for which the sender is a default router; zero if it is none.
    pub router_lifetime_s: u16,
    /// Milliseconds for which a neighbour counts as reachable once confirmed; zero if unspecified.
    pub reachable_time_ms: u32,
    /// Milliseconds between neighbour solicitations; zero if unspecified.
    pub retransmit_timer_ms: u32,
    /// Link-layer address of the router.
    pub source_link_layer: Option<MacAddr>,
    /// MTU of the link.
    pub mtu: Option<u32>,
    /// Prefixes of the link; see [`RouterAdvertisement::prefixes`].
    pub prefix: [PrefixInformation; PREFIXES_MAX],
    /// Number of valid entries of `prefix`.
    pub prefix_count: u8,
    /// Recursive DNS servers; see [`RouterAdvertisement::dns_servers`].
    pub dns_server: [Ipv6Addr; DNS_SERVERS_MAX],
    /// Number of valid entries of `dns_server`.
    pub dns_server_count: u8,
    /// Seconds for which the DNS servers may be used.
    pub dns_lifetime_s: u32,
}

impl RouterAdvertisement {
    /// Received prefixes, or prefixes to send.
    pub fn prefixes(&self) -> &[PrefixInformation] {
        &self.prefix[..usize::from(self.prefix_count).min(PREFIXES_MAX)]
    }

    /// Received DNS servers, or DNS servers to send.
    pub fn dns_servers(&self) -> &[Ipv6Addr] {
        &self.dns_server[..usize::from(self.dns_server_count).min(DNS_SERVERS_MAX)]
    }

    /// Parses a whole message. The first of an option that may occur once is used; unknown options
    /// are skipped.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        // This also checks the lengths of all options.
        let Message::RouterAdvertisement(known) = Message::parse(bytes)? else {
            return Err(ParseError::Unsupported);
        };
        let fixed: &[u8; ADVERTISEMENT_LEN] = header(bytes)?;
        let flags = fixed[at::FLAGS];
        let mut parsed = Self {
            hop_limit: fixed[at::HOP_LIMIT],
            managed: flags & MANAGED != 0,
            other: flags & OTHER != 0,
            router_lifetime_s: known.router_lifetime_s,
            reachable_time_ms: read_u32(fixed, at::REACHABLE_TIME),
            retransmit_timer_ms: read_u32(fixed, at::RETRANSMIT_TIMER),
            source_link_layer: known.source_link_layer,
            ..Self::default()
        };
        let mut rest = &bytes[ADVERTISEMENT_LEN..];
        while let [kind, units, ..] = *rest {
            let (option, behind) = rest.split_at(usize::from(units) * UNIT);
            parsed.read(kind, option);
            rest = behind;
        }
        Ok(parsed)
    }

    fn read(&mut self, kind: u8, option: &[u8]) {
        match kind {
            MTU if option.len() == MTU_LEN && self.mtu.is_none() => {
                self.mtu = Some(read_u32(option, option_at::MTU));
            }
            PREFIX => {
                let free = self.prefix.get_mut(usize::from(self.prefix_count));
                if let (Some(free), Some(prefix)) = (free, PrefixInformation::parse(option)) {
                    *free = prefix;
                    self.prefix_count += 1;
                }
            }
            DNS_SERVERS if self.dns_server_count == 0 => {
                // RFC 8106 §5.3.1: an option without a server is ignored.
                let (servers @ [_, ..], []) =
                    option[option_at::DNS_SERVERS..].as_chunks::<ADDRESS_LEN>()
                else {
                    return;
                };
                for (to, &from) in self.dns_server.iter_mut().zip(servers) {
                    *to = Ipv6Addr::from(from);
                }
                self.dns_server_count = servers.len().min(DNS_SERVERS_MAX) as u8;
                self.dns_lifetime_s = read_u32(option, option_at::DNS_LIFETIME);
            }
            _ => {}
        }
    }

    /// The message, with a zero checksum.
    pub fn emit(&self) -> Vec<u8> {
        let mut message = vec![0; self.emitted_len()];
        let bytes = &mut message[..];
        bytes[0] = ROUTER_ADVERTISEMENT;
        bytes[at::HOP_LIMIT] = self.hop_limit;
        bytes[at::FLAGS] = bit(self.managed, MANAGED) | bit(self.other, OTHER);
        write_u16(bytes, at::ROUTER_LIFETIME, self.router_lifetime_s);
        write_u32(bytes, at::REACHABLE_TIME, self.reachable_time_ms);
        write_u32(bytes, at::RETRANSMIT_TIMER, self.retransmit_timer_ms);
        let mut rest = &mut bytes[ADVERTISEMENT_LEN..];
        if let Some(address) = self.source_link_layer {
            emit_option_header(rest, SOURCE_LINK_LAYER, LINK_LAYER_LEN);
            write(rest, option_at::LINK_LAYER, &address.0);
            rest = &mut rest[LINK_LAYER_LEN..];
        }
        if let Some(mtu) = self.mtu {
            emit_option_header(rest, MTU, MTU_LEN);
            write_u32(rest, option_at::MTU, mtu);
            rest = &mut rest[MTU_LEN..];
        }
        for prefix in self.prefixes() {
            prefix.emit(rest);
            rest = &mut rest[PREFIX_LEN..];
        }
        if !self.dns_servers().is_empty() {
            emit_option_header(rest, DNS_SERVERS, dns_servers_len(self.dns_servers().len()));
            write_u32(rest, option_at::DNS_LIFETIME, self.dns_lifetime_s);
            for (index, server) in self.dns_servers().iter().enumerate() {
                write(rest, option_at::DNS_SERVERS + index * ADDRESS_LEN, &server.octets());
            }
        }
        message
    }

    fn emitted_len(&self) -> usize {
        let link_layer = if self.source_link_layer.is_some() { LINK_LAYER_LEN } else { 0 };
        let mtu = if self.mtu.is_some() { MTU_LEN } else { 0 };
        let prefixes = self.prefixes().len() * PREFIX_LEN;
        ADVERTISEMENT_LEN + link_layer + mtu + prefixes + dns_servers_len(self.dns_servers().len())
    }
}

impl Default for RouterAdvertisement {
    /// An advertisement without parameters.
    fn default() -> Self {
        Self {
            hop_limit: 0,
            managed: false,
            other: false,
            router_lifetime_s: 0,
            reachable_time_ms: 0,
            retransmit_timer_ms: 0,
            source_link_layer: None,
            mtu: None,
            prefix: [PrefixInformation::default(); PREFIXES_MAX],
            prefix_count: 0,
            dns_server: [Ipv6Addr::UNSPECIFIED; DNS_SERVERS_MAX],
            dns_server_count: 0,
            dns_lifetime_s: 0,
        }
    }
}

/// DNS search list option (RFC 8106 §5.2), to be appended to an advertisement. Without names the
/// result is empty; names that do not fit are omitted.
pub fn search_list_option(names: &[DomainName], lifetime_s: u32) -> Vec<u8> {
    let mut list = Vec::new();
    for name in names {
        let before = list.len();
        name.emit(&mut list);
        if list.len() > usize::from(u8::MAX) * UNIT - option_at::SEARCH_LIST {
            list.truncate(before);
            break;
        }
    }
    if list.is_empty() {
        return list;
    }
    let mut option = vec![0; (option_at::SEARCH_LIST + list.len()).next_multiple_of(UNIT)];
    let len = option.len();
    emit_option_header(&mut option, SEARCH_LIST, len);
    write_u32(&mut option, option_at::DNS_LIFETIME, lifetime_s);
    write(&mut option, option_at::SEARCH_LIST, &list);
    option
}

/// A prefix of the link (RFC 4861 §4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixInformation {
    /// The prefix.
    pub prefix: Ipv6Addr,
    /// Prefix length in bits, at most 128.
    pub prefix_len: u8,
    /// Addresses of the prefix are on the link (the L flag).
    pub on_link: bool,
    /// Hosts may form addresses from the prefix (the A flag, RFC 4862 §5.5.3).
    pub autonomous: bool,
    /// Seconds for which the prefix is on the link; all ones for infinity.
    pub valid_lifetime_s: u32,
    /// Seconds for which addresses of the prefix are preferred; all ones for infinity.
    pub preferred_lifetime_s: u32,
}

impl PrefixInformation {
    /// Parses the whole option; `None` if its length or the prefix length is invalid.
    fn parse(option: &[u8]) -> Option<Self> {
        let option: &[u8; PREFIX_LEN] = option.try_into().ok()?;
        let flags = option[option_at::PREFIX_FLAGS];
        let parsed = Self {
            prefix: Ipv6Addr::from(read::<ADDRESS_LEN>(option, option_at::PREFIX)),
            prefix_len: option[option_at::PREFIX_BITS],
            on_link: flags & ON_LINK != 0,
            autonomous: flags & AUTONOMOUS != 0,
            valid_lifetime_s: read_u32(option, option_at::VALID_LIFETIME),
            preferred_lifetime_s: read_u32(option, option_at::PREFERRED_LIFETIME),
        };
        (u32::from(parsed.prefix_len) <= Ipv6Addr::BITS).then_some(parsed)
    }

    /// Writes the option at the start of `bytes`, which must be zero.
    fn emit(&self, bytes: &mut [u8]) {
        emit_option_header(bytes, PREFIX, PREFIX_LEN);
        bytes[option_at::PREFIX_BITS] = self.prefix_len;
        bytes[option_at::PREFIX_FLAGS] =
            bit(self.on_link, ON_LINK) | bit(self.autonomous, AUTONOMOUS);
        write_u32(bytes, option_at::VALID_LIFETIME, self.valid_lifetime_s);
        write_u32(bytes, option_at::PREFERRED_LIFETIME, self.preferred_lifetime_s);
        write(bytes, option_at::PREFIX, &self.prefix.octets());
    }
}

impl Default for PrefixInformation {
    /// A prefix of zero bits and zero lifetimes.
    fn default() -> Self {
        Self {
            prefix: Ipv6Addr::UNSPECIFIED,
            prefix_len: 0,
            on_link: false,
            autonomous: false,
            valid_lifetime_s: 0,
            preferred_lifetime_s: 0,
        }
    }
}

/// Bytes of the option with `count` DNS servers; without servers there is no option.
const fn dns_servers_len(count: usize) -> usize {
    if count == 0 { 0 } else { option_at::DNS_SERVERS + count * ADDRESS_LEN }
}

fn emit_option_header(bytes: &mut [u8], kind: u8, len: usize) {
    debug_assert!(len.is_multiple_of(UNIT));
    bytes[0] = kind;
    bytes[1] = (len / UNIT) as u8;
}

/// `mask` if `set`, else zero.
fn bit(set: bool, mask: u8) -> u8 {
    if set { mask } else { 0 }
}

/// Maximum prefixes of one advertisement: a global, a unique local and a deprecated one.
pub const PREFIXES_MAX: usize = 3;

/// Maximum DNS servers of one advertisement: as many as a Linux resolver uses.
pub const DNS_SERVERS_MAX: usize = 3;

/// Bytes of a router advertisement before its options.
const ADVERTISEMENT_LEN: usize = HEADER_LEN + 8;
/// Bytes of a link-layer address option: two of header, and an Ethernet address.
const LINK_LAYER_LEN: usize = 2 + 6;

/// Unit of the length field of an option.
const UNIT: usize = 8;
const ADDRESS_LEN: usize = 16;
const MTU_LEN: usize = 8;
const PREFIX_LEN: usize = 32;

const ROUTER_ADVERTISEMENT: u8 = 134;
const SOURCE_LINK_LAYER: u8 = 1;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const DNS_SERVERS: u8 = 25;
const SEARCH_LIST: u8 = 31;

const MANAGED: u8 = 0x80;
const OTHER: u8 = 0x40;
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;

/// Offsets of the fields of a router advertisement.
mod at {
    pub(super) const HOP_LIMIT: usize = 4;
    pub(super) const FLAGS: usize = 5;
    pub(super) const ROUTER_LIFETIME: usize = 6;
    pub(super) const REACHABLE_TIME: usize = 8;
    pub(super) const RETRANSMIT_TIMER: usize = 12;
}

/// Offsets of the fields of options.
mod option_at {
    pub(super) const LINK_LAYER: usize = 2;
    pub(super) const MTU: usize = 4;
    pub(super) const PREFIX_BITS: usize = 2;
    pub(super) const PREFIX_FLAGS: usize = 3;
    pub(super) const VALID_LIFETIME: usize = 4;
    pub(super) const PREFERRED_LIFETIME: usize = 8;
    pub(super) const PREFIX: usize = 16;
    pub(super) const DNS_LIFETIME: usize = 4;
    pub(super) const DNS_SERVERS: usize = 8;
    pub(super) const SEARCH_LIST: usize = 8;
}

#[cfg(test)]
mod tests;
