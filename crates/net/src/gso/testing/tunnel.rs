//! Packets in UDP tunnels, built byte by byte.

use alloc::vec::Vec;

use proptest::prelude::*;
use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::{Checksum, Gso, Offload, Tunnel};

use super::{IP_AT, Spec, any_spec, naive_sum};

/// An Ethernet frame in a UDP tunnel.
#[derive(Clone, Debug)]
pub(crate) struct Tunnelled {
    /// The outer headers; always UDP, and its payload is ignored.
    pub(crate) outer: Spec,
    /// The outer UDP header has a checksum.
    pub(crate) has_checksum: bool,
    /// Header of the tunnel protocol.
    pub(crate) header: Vec<u8>,
    /// The inner frame has a VLAN tag.
    pub(crate) is_tagged: bool,
    pub(crate) inner: Spec,
}

impl Tunnelled {
    /// VXLAN without an outer checksum.
    pub(crate) fn vxlan(is_outer_v6: bool, inner: Spec) -> Self {
        let outer = Spec::plain(is_outer_v6, false, Vec::new());
        let header = alloc::vec![8, 0, 0, 0, 0, 0, 42, 0];
        Self { outer, has_checksum: false, header, is_tagged: false, inner }
    }

    /// Bytes of all headers.
    pub(crate) fn headers_len(&self) -> usize {
        self.inner_at() + self.inner.headers_len()
    }

    /// Offset of the inner IP header.
    pub(crate) fn network_at(&self) -> usize {
        self.inner_at() + IP_AT
    }

    /// The whole frame with correct lengths and checksums.
    pub(crate) fn frame(&self) -> Vec<u8> {
        self.around(self.inner.frame())
    }

    /// The frame with a partial inner checksum and all other checksums correct.
    pub(crate) fn partial_frame(&self) -> Vec<u8> {
        let mut frame = self.frame();
        let inner = self.inner.partial_frame();
        let at = IP_AT;
        frame[self.network_at()..].copy_from_slice(&inner[at..]);
        frame
    }

    /// The frame with both checksums partial.
    pub(crate) fn super_frame(&self) -> Vec<u8> {
        let mut frame = self.partial_frame();
        if self.has_checksum {
            let at = self.outer.transport_at();
            let pseudo_header = self.outer.pseudo_header(frame.len() - at);
            let sum = naive_sum(&pseudo_header, 0) as u16;
            frame[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes());
        }
        frame
    }

    pub(crate) fn partial(&self) -> Checksum {
        match self.inner.partial() {
            Checksum::Partial { start, offset } => {
                Checksum::Partial { start: start + self.inner_at() as u16, offset }
            }
            other => other,
        }
    }

    pub(crate) fn offload(&self, size: u16) -> Offload {
        let tunnel = Tunnel {
            transport_at: self.outer.transport_at() as u16,
            network_at: self.network_at() as u16,
            is_ipv6: self.outer.v6,
            checksum: self.has_checksum,
        };
        let gso = self.inner.offload(size).gso;
        let gso = gso.map(|gso| Gso { tunnel: Some(tunnel), ..gso });
        Offload { checksum: self.partial(), gso }
    }

    /// The packets of a sender without offloads, by the rules of Linux.
    pub(crate) fn segments(&self, size: usize) -> Vec<Self> {
        let tunnelled = |(index, inner): (usize, Spec)| {
            let ident = self.outer.ident.wrapping_add(index as u16);
            Self { outer: Spec { ident, ..self.outer.clone() }, inner, ..self.clone() }
        };
        self.inner.segments(size).into_iter().enumerate().map(tunnelled).collect()
    }

    /// Offset of the inner Ethernet header, plus the length of its tag.
    fn inner_at(&self) -> usize {
        let tag = if self.is_tagged { 4 } else { 0 };
        self.outer.headers_len() + self.header.len() + tag
    }

    fn around(&self, inner: Vec<u8>) -> Vec<u8> {
        let mut payload = self.header.clone();
        payload.extend(&inner[..12]);
        if self.is_tagged {
            payload.extend([0x81, 0, 0x20, 7]);
        }
        payload.extend(&inner[12..]);
        let mut frame = Spec { payload, ..self.outer.clone() }.frame();
        if !self.has_checksum {
            let at = self.outer.transport_at() + 6;
            frame[at..at + 2].fill(0);
        }
        frame
    }
}

/// Any frame in a tunnel with a payload length in `payload` and a tunnel header of any length.
pub(crate) fn any_tunnelled(payload: core::ops::Range<usize>) -> impl Strategy<Value = Tunnelled> {
    let header = prop::collection::vec(any::<u8>(), 0..24);
    let outer = any_spec(0..1).prop_map(|outer| Spec { tcp: false, ..outer });
    let parts = (outer, any::<bool>(), header, any::<bool>(), any_spec(payload));
    parts.prop_map(|(outer, has_checksum, header, is_tagged, inner)| {
        let mut it = Tunnelled { outer, has_checksum, header, is_tagged, inner };
        // There must be room for a tag of the outer frame too.
        if it.headers_len() + 4 > PEEK_BYTES {
            it.inner.options.clear();
            (it.outer.ip_options, it.inner.ip_options) = (0, 0);
        }
        it
    })
}
