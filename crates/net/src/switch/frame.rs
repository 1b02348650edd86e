//! Frame parsing for the switch: addresses and tag, and the offsets of IP and transport headers.

use crate::gso::Layout;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::{MacAddr, Protocol, ipv4, ipv6, tcp, udp};

use super::vlan::TAG_LEN;

/// Link-layer headers of a frame.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) destination: MacAddr,
    pub(super) source: MacAddr,
    /// Priority and VLAN of the tag.
    pub(super) tci: Option<u16>,
    /// Type of the payload behind the tag.
    pub(super) ethertype: EtherType,
    /// Offset of the payload.
    pub(super) network_at: usize,
    /// The frame has further tags, or service VLAN tags.
    pub(super) has_more_tags: bool,
}

impl Frame {
    /// Reads header and tag; `None` if they are incomplete.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let header = ethernet::Header::parse(bytes).ok()?;
        let mut frame = Self {
            destination: header.destination,
            source: header.source,
            tci: None,
            ethertype: header.ethertype,
            network_at: ethernet::HEADER_LEN,
            has_more_tags: false,
        };
        if header.ethertype == EtherType::VLAN {
            let tag = bytes.get(ethernet::HEADER_LEN..)?.first_chunk::<TAG_LEN>()?;
            let [high, low, type_high, type_low] = *tag;
            frame.tci = Some(u16::from_be_bytes([high, low]));
            frame.ethertype = EtherType(u16::from_be_bytes([type_high, type_low]));
            frame.network_at += TAG_LEN;
        }
        Some(frame)
    }

    /// Skips all tags, as Linux does with tags for VLAN 0. `None` if a tag is incomplete.
    pub(super) fn innermost(mut self, bytes: &[u8]) -> Option<Self> {
        while matches!(self.ethertype, EtherType::VLAN | EtherType::SERVICE_VLAN) {
            let tag = bytes.get(self.network_at..)?.first_chunk::<TAG_LEN>()?;
            self.ethertype = EtherType(u16::from_be_bytes([tag[2], tag[3]]));
            self.network_at += TAG_LEN;
            self.has_more_tags = true;
        }
        Some(self)
    }
}

/// Offsets and kinds of a packet's network and transport headers.
#[derive(Clone, Copy)]
pub(super) struct Located {
    pub(super) layout: Layout,
    pub(super) protocol: Protocol,
    pub(super) is_fragment: bool,
    /// The fragment lacks the beginning of the transport header.
    pub(super) is_later_fragment: bool,
    /// End of the headers: of the TCP or UDP header, else of the IP headers.
    pub(super) end: usize,
}

/// Locates the headers in the first bytes of a frame. `None` if it is not IP, or the headers are
/// not all in these bytes.
pub(super) fn locate(bytes: &[u8], frame: &Frame) -> Option<Located> {
    let ip_at = frame.network_at;
    let ip = bytes.get(ip_at..)?;
    let (len, protocol, fragment) = match frame.ethertype {
        EtherType::IPV4 => locate_ipv4(ip)?,
        EtherType::IPV6 => locate_ipv6(ip)?,
        _ => return None,
    };
    let transport = ip.get(len..)?;
    let is_fragment = fragment.is_some();
    let transport_len = match protocol {
        _ if is_fragment => 0,
        Protocol::TCP => tcp::header_len(transport).unwrap_or(tcp::HEADER_LEN),
        Protocol::UDP => udp::HEADER_LEN,
        _ => 0,
    };
    let transport_at = ip_at + len;
    let end = transport_at + transport_len;
    let layout = Layout { ip_at, transport_at };
    let is_later_fragment = fragment.is_some_and(|offset| offset > 0);
    let located = Located { layout, protocol, is_fragment, is_later_fragment, end };
    (end <= bytes.len()).then_some(located)
}

/// Returns header length, protocol, and the offset if it is a fragment.
fn locate_ipv4(ip: &[u8]) -> Option<(usize, Protocol, Option<u16>)> {
    let header = ip.first_chunk::<{ ipv4::HEADER_LEN }>()?;
    let len = ipv4::header_len(header)?;
    let fragment = u16::from_be_bytes([header[6], header[7]]) & ipv4::FRAGMENT_MASK;
    let offset = (fragment != 0).then_some(fragment & ipv4::FRAGMENT_OFFSET_MASK);
    Some((len, Protocol(header[9]), offset))
}

fn locate_ipv6(ip: &[u8]) -> Option<(usize, Protocol, Option<u16>)> {
    let (header, chain) = ip.split_first_chunk::<{ ipv6::HEADER_LEN }>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let payload_len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let walked = ipv6::Extensions::walk(Protocol(header[6]), chain, payload_len).ok()?;
    let offset = walked.fragment.map(|fragment| fragment.offset_bytes);
    Some((ipv6::HEADER_LEN + walked.len, walked.protocol, offset))
}
