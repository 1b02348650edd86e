//! Anti-spoofing: the addresses that a port's station may use, as link-layer source and as sender
//! in IPv4, IPv6, ARP and neighbour discovery.
//!
//! Unspecified addresses are always allowed: 0.0.0.0 for DHCP clients and ARP probes (RFC 5227
//! §2.1.1), `::` for duplicate address detection (RFC 4862 §5.4.2). A station with a list of
//! addresses may not be a router: its router advertisements and redirects are dropped (RFC 6105).
//! Packets whose headers cannot be parsed to the end are dropped (RFC 7113 §2.1), and so are
//! packets with two tags.
//!
//! A port without a list may have to respect owners: its station may not claim another port's
//! address by ARP or neighbour discovery, which would divert traffic to it. In that case IP source
//! addresses are not checked, and IPv4 packets and IPv6 packets with plain TCP or UDP are not
//! parsed.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::frame::Frame;
use crate::counters::PortDrop;
use crate::wire::ethernet::EtherType;
use crate::wire::headers::Part;
use crate::wire::icmpv6::{
    NEIGHBOR_ADVERTISEMENT, NEIGHBOR_SOLICITATION, REDIRECT, ROUTER_ADVERTISEMENT,
    ROUTER_SOLICITATION, SOURCE_LINK_LAYER, TARGET_LINK_LAYER,
};
use crate::wire::{MacAddr, Protocol, arp, icmpv6, ipv4, ipv6};

/// A range of IP addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prefix {
    /// An address of the range.
    pub address: IpAddr,
    /// Prefix length in bits; larger values mean the whole address.
    pub len: u8,
}

impl Prefix {
    /// A single address.
    pub const fn one(address: IpAddr) -> Self {
        Self { address, len: 128 }
    }

    fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                differing.leading_zeros() >= u32::from(self.len.min(32))
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                differing.leading_zeros() >= u32::from(self.len.min(128))
            }
            _ => false,
        }
    }
}

/// Addresses that a port's station may use. An empty list allows all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guard {
    /// Allowed link-layer addresses.
    pub macs: Vec<MacAddr>,
    /// Allowed IP addresses, to send from and to answer for.
    pub addresses: Vec<Prefix>,
}

impl Guard {
    pub(super) fn is_bounded(&self) -> bool {
        self.macs.len() <= GUARD_ENTRIES_MAX && self.addresses.len() <= GUARD_ENTRIES_MAX
    }

    /// Checks the first bytes of a frame, whose tags have been skipped; returns how many of them
    /// the verdict depends on. `owners` says whether an address may be claimed, for ports that
    /// respect owners.
    #[inline]
    pub(super) fn check(
        &self,
        bytes: &[u8],
        frame: &Frame,
        owners: Option<Owners<'_>>,
    ) -> Result<usize, PortDrop> {
        // Most packets of most ports: nothing is listed, and IPv4 claims no address.
        let is_open = self.macs.is_empty() && self.addresses.is_empty();
        if is_open && (owners.is_none() || frame.ethertype == EtherType::IPV4) {
            return Ok(frame.network_at);
        }
        self.check_claims(bytes, frame, owners)
    }

    fn check_claims(
        &self,
        bytes: &[u8],
        frame: &Frame,
        owners: Option<Owners<'_>>,
    ) -> Result<usize, PortDrop> {
        if !self.allows_mac(frame.source) {
            return Err(PortDrop::MacSpoofed);
        }
        let is_open = self.macs.is_empty() && self.addresses.is_empty();
        match frame.ethertype {
            _ if frame.has_more_tags && !is_open => Err(PortDrop::AddressSpoofed),
            EtherType::ARP => self.check_arp(bytes, frame, owners),
            EtherType::IPV4 if self.addresses.is_empty() => Ok(frame.network_at),
            EtherType::IPV6 if is_open && is_plain(&bytes[frame.network_at..]) => {
                Ok(frame.network_at + ipv6::HEADER_LEN)
            }
            EtherType::IPV4 | EtherType::IPV6 => self.check_ip(bytes, frame, owners),
            _ => Ok(frame.network_at),
        }
    }

    fn check_arp(
        &self,
        bytes: &[u8],
        frame: &Frame,
        owners: Option<Owners<'_>>,
    ) -> Result<usize, PortDrop> {
        let body = &bytes[frame.network_at..];
        let arp = arp::Packet::parse(body).map_err(|_| PortDrop::AddressSpoofed)?;
        if !self.allows_mac(arp.sender_mac) {
            return Err(PortDrop::MacSpoofed);
        }
        self.check_claimed(arp.sender_ip.into(), owners)?;
        Ok(frame.network_at + arp::LEN)
    }

    fn check_ip(
        &self,
        bytes: &[u8],
        frame: &Frame,
        owners: Option<Owners<'_>>,
    ) -> Result<usize, PortDrop> {
        let headers = frame.headers(bytes).ok_or(PortDrop::AddressSpoofed)?;
        let ip = &bytes[frame.network_at..];
        // The headers are at least as long as the fixed header of their version.
        if frame.ethertype == EtherType::IPV4 {
            let source = ip[..ipv4::HEADER_LEN][ipv4::at::SOURCE..].first_chunk::<4>();
            let source = source.ok_or(PortDrop::AddressSpoofed)?;
            self.check_sender(Ipv4Addr::from(*source).into())?;
            return Ok(headers.end);
        }
        let source = ip[..ipv6::HEADER_LEN][ipv6::at::SOURCE..].first_chunk::<16>();
        let source = Ipv6Addr::from(*source.ok_or(PortDrop::AddressSpoofed)?);
        self.check_sender(source.into())?;
        match headers.protocol {
            // RFC 6980 §5: receivers ignore fragmented neighbour discovery.
            Protocol::ICMPV6 if headers.part == Part::Whole => {
                self.check_discovery(bytes, headers.end, source, owners)
            }
            _ => Ok(headers.end),
        }
    }

    /// Checks neighbour discovery: the addresses claimed, and the link-layer addresses in options.
    fn check_discovery(
        &self,
        bytes: &[u8],
        message_at: usize,
        source: Ipv6Addr,
        owners: Option<Owners<'_>>,
    ) -> Result<usize, PortDrop> {
        let message = &bytes[message_at..];
        let kind = *message.first().ok_or(PortDrop::AddressSpoofed)?;
        if !(ROUTER_SOLICITATION..=REDIRECT).contains(&kind) {
            // The verdict depends on the message type.
            return Ok(message_at + 1);
        }
        if matches!(kind, ROUTER_ADVERTISEMENT | REDIRECT) && !self.addresses.is_empty() {
            return Err(PortDrop::AddressSpoofed);
        }
        // With a link-layer option, the source address is a claim too.
        self.check_claimed(source.into(), owners)?;
        let options_at = match kind {
            NEIGHBOR_ADVERTISEMENT => {
                let target = message.get(TARGET_AT..).and_then(<[u8]>::first_chunk::<16>);
                let target = target.ok_or(PortDrop::AddressSpoofed)?;
                self.check_claimed(Ipv6Addr::from(*target).into(), owners)?;
                TARGET_AT + 16
            }
            NEIGHBOR_SOLICITATION => TARGET_AT + 16,
            ROUTER_SOLICITATION => TARGET_AT,
            _ => return Ok(bytes.len()),
        };
        self.check_options(message.get(options_at..).ok_or(PortDrop::AddressSpoofed)?)?;
        // All of a checked message becomes private, so that its sender cannot change it.
        Ok(bytes.len())
    }

    /// Checks link-layer addresses in neighbour discovery options (RFC 4861 §4.6.1).
    fn check_options(&self, options: &[u8]) -> Result<(), PortDrop> {
        let mut rest = options;
        while let [kind, units, body @ ..] = rest {
            let is_link_layer = matches!(*kind, SOURCE_LINK_LAYER | TARGET_LINK_LAYER);
            if is_link_layer && let Some(mac) = body.first_chunk::<6>() {
                if !self.allows_mac(MacAddr(*mac)) {
                    return Err(PortDrop::MacSpoofed);
                }
            } else if is_link_layer {
                return Err(PortDrop::AddressSpoofed);
            }
            let len = usize::from(*units) * 8;
            // RFC 4861 §4.6: receivers drop a message with an option of length zero.
            rest = rest.get(len..).filter(|_| len > 0).ok_or(PortDrop::AddressSpoofed)?;
        }
        Ok(())
    }

    fn allows_mac(&self, mac: MacAddr) -> bool {
        self.macs.is_empty() || self.macs.contains(&mac)
    }

    /// Checks the source address of a packet against the list, if there is one.
    fn check_sender(&self, address: IpAddr) -> Result<(), PortDrop> {
        self.check_claimed(address, None)
    }

    fn check_claimed(&self, address: IpAddr, owners: Option<Owners<'_>>) -> Result<(), PortDrop> {
        let is_allowed = address.is_unspecified()
            || match &self.addresses[..] {
                [] => owners.is_none_or(|may_claim| may_claim(address)),
                list => list.iter().any(|prefix| prefix.contains(address)),
            };
        if is_allowed { Ok(()) } else { Err(PortDrop::AddressSpoofed) }
    }
}

/// Says whether an address may be claimed.
pub(super) type Owners<'a> = &'a dyn Fn(IpAddr) -> bool;

/// True if TCP or UDP directly follows the IPv6 header.
fn is_plain(ip: &[u8]) -> bool {
    let header = ip.first_chunk::<{ ipv6::HEADER_LEN }>();
    let next = header.map(|header| Protocol(header[ipv6::at::NEXT_HEADER]));
    matches!(next, Some(Protocol::TCP | Protocol::UDP))
}

/// Maximum entries of each list; all are compared with each packet.
pub const GUARD_ENTRIES_MAX: usize = 32;

/// Offset of the target address in solicitations and advertisements, and of the options in a router
/// solicitation.
const TARGET_AT: usize = icmpv6::at::TARGET;
