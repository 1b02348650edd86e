//! Source address check of packets to the gateway: only the port of the guest that leases an
//! address may send from it.
//!
//! Without this check a guest could send in another guest's flows, and open ways to it from
//! outside, as the gateway tells flows apart by the addresses inside. For a port with a list of
//! addresses, the switch has checked the source already.
//!
//! Addresses that guests use without a lease are recorded here, as published ports lead to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_net::time::Instant;
use towpath_net::wire::ethernet::{self, EtherType};
use towpath_net::wire::{Protocol, ipv4, ipv6};

use super::member::Member;
use crate::services::Services;

/// Checks senders. It caches the last allowed sender, as the next packet of a flow has the same
/// one.
#[derive(Default)]
pub(super) struct Senders {
    allowed: Option<(usize, IpAddr)>,
}

impl Senders {
    /// Returns true if the station behind port `from` may have sent a frame with these headers.
    /// Notes an address that the station uses without a lease.
    pub(super) fn allows(
        &mut self,
        headers: &[u8],
        from: &Member,
        services: &mut Services,
        now: Instant,
    ) -> bool {
        let Some(source) = source(headers) else { return true };
        let index = from.id.index();
        let sender = (index, source);
        if self.allowed == Some(sender) {
            return true;
        }
        let holder = services.holder(source, now);
        let is_own = |holder: u32| holder as usize == index;
        let is_allowed = !from.settings.guard.addresses.is_empty() || holder.is_none_or(is_own);
        if source.is_unspecified() {
            if let Some(target) = tentative(headers)
                && services.holder(target, now).is_none()
            {
                services.note_unleased(index as u32, target);
            }
        } else if is_allowed {
            self.allowed = Some(sender);
            if holder.is_none() {
                services.note_unleased(index as u32, source);
            }
        }
        is_allowed
    }
}

/// Returns the source address of an IP packet.
fn source(headers: &[u8]) -> Option<IpAddr> {
    let kind = headers.get(ETHERTYPE_AT..)?.first_chunk::<2>()?;
    let ip = headers.get(ethernet::HEADER_LEN..)?;
    match EtherType(u16::from_be_bytes(*kind)) {
        EtherType::IPV4 => {
            let source = ip.first_chunk::<{ ipv4::HEADER_LEN }>()?[IPV4_SOURCE..].first_chunk()?;
            Some(Ipv4Addr::from(*source).into())
        }
        EtherType::IPV6 => {
            let source = ip.first_chunk::<{ ipv6::HEADER_LEN }>()?[IPV6_SOURCE..].first_chunk()?;
            Some(Ipv6Addr::from(*source).into())
        }
        _ => None,
    }
}

/// Returns the address that a neighbour solicitation without a source asks for: the sender is about
/// to use it (RFC 4862 §5.4.2).
fn tentative(headers: &[u8]) -> Option<IpAddr> {
    let ip = headers.get(ethernet::HEADER_LEN..)?;
    let message = ip.get(ipv6::HEADER_LEN..)?;
    let is_solicitation = ip.get(IPV6_NEXT_HEADER) == Some(&Protocol::ICMPV6.0)
        && message.first() == Some(&NEIGHBOR_SOLICITATION);
    let target = message.get(SOLICITATION_TARGET..)?.first_chunk::<16>()?;
    is_solicitation.then(|| Ipv6Addr::from(*target).into())
}

const ETHERTYPE_AT: usize = ethernet::HEADER_LEN - 2;
const IPV4_SOURCE: usize = 12;
const IPV6_NEXT_HEADER: usize = 6;
const IPV6_SOURCE: usize = 8;
/// Type of the message, and where its target is (RFC 4861 §4.3).
const NEIGHBOR_SOLICITATION: u8 = 135;
const SOLICITATION_TARGET: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_where_they_are() {
        let mut frame = vec![0; 60];
        assert_eq!(source(&frame), None);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[26..30].copy_from_slice(&[10, 0, 2, 20]);
        assert_eq!(source(&frame), Some([10, 0, 2, 20].into()));
        assert_eq!(source(&frame[..33]), None, "cut");
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        frame[22..24].copy_from_slice(&[0xfd, 0x01]);
        assert!(source(&frame).is_some_and(|source| source.to_string().starts_with("fd01:")));
    }

    #[test]
    fn tentative_addresses_are_targets_of_solicitations() {
        let mut frame = vec![0; 54 + 24];
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        (frame[20], frame[54]) = (58, 135);
        let target: Ipv6Addr = "fd00::abcd".parse().unwrap();
        frame[62..78].copy_from_slice(&target.octets());
        assert_eq!(tentative(&frame), Some(target.into()));
        assert_eq!(tentative(&frame[..77]), None, "cut");
        frame[54] = 136;
        assert_eq!(tentative(&frame), None, "an advertisement");
        (frame[20], frame[54]) = (17, 135);
        assert_eq!(tentative(&frame), None, "UDP");
    }
}
