//! Frame parsing for the switch: addresses, tags, and the headers behind them.

use core::cell::OnceCell;

use crate::wire::MacAddr;
use crate::wire::ethernet::{self, EtherType};
use crate::wire::headers::{Headers, Version};

use super::vlan::TAG_LEN;

/// Link-layer headers of a frame.
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
    /// The headers of its IP packet, once they were needed.
    located: OnceCell<Option<Headers>>,
}

impl Frame {
    /// Reads header and tag; `None` if they are incomplete.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let header = ethernet::Header::parse(bytes).ok()?;
        let mut frame = Self {
            destination: header.destination,
            source: header.source,
            tci: None,
            ethertype: header.ethertype,
            network_at: ethernet::HEADER_LEN,
            has_more_tags: false,
            located: OnceCell::new(),
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

    /// Skips further tags, as Linux does with tags for VLAN 0. `None` if a tag is incomplete.
    #[inline]
    pub(super) fn skip_tags(&mut self, bytes: &[u8]) -> Option<()> {
        while matches!(self.ethertype, EtherType::VLAN | EtherType::SERVICE_VLAN) {
            let tag = bytes.get(self.network_at..)?.first_chunk::<TAG_LEN>()?;
            self.ethertype = EtherType(u16::from_be_bytes([tag[2], tag[3]]));
            self.network_at += TAG_LEN;
            self.has_more_tags = true;
        }
        Some(())
    }

    /// The headers of the IP packet in the first bytes of the frame. `None` if it is no IP packet,
    /// or not all headers are in these bytes. All calls must be given the same bytes.
    #[inline]
    pub(super) fn headers(&self, bytes: &[u8]) -> Option<Headers> {
        let version = match self.ethertype {
            EtherType::IPV4 => Version::V4,
            EtherType::IPV6 => Version::V6,
            _ => return None,
        };
        let located = self.located.get_or_init(|| Headers::read(bytes, self.network_at));
        located.filter(|headers| headers.version == version)
    }
}
