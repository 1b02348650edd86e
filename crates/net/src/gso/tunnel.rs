//! The outer headers of a super-packet in a UDP tunnel; each segment gets a copy.
//!
//! The only requirement on the tunnel is that it is UDP. The bytes between the outer UDP header and
//! the inner IP header (VXLAN or Geneve header, Ethernet header, tags) are copied unchanged.
//!
//! The outer checksum can be computed without the payload. An inner packet with a correct checksum
//! sums up to the complement of its pseudo-header's sum, and a partial checksum field holds that
//! sum. So it does not matter who completes the inner checksum, or when.
//!
//! virtio 1.4 §5.1.6.2; RFC 768 (a checksum of zero means none, which tunnels over IPv6 may use
//! too: RFC 6935); RFC 7348 (VXLAN), RFC 8926 (Geneve).

use towpath_packet::{Checksum, GsoKind, Offload, Tunnel};

use super::header_layout::Shape;
use super::{Part, Template};
use crate::checksum::{self, Sum};
use crate::wire::field::{read_u16, write_u16};
use crate::wire::headers::{Headers, Transport, Version};
use crate::wire::{tcp, udp};

/// The outer headers, and the offsets of the inner headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outer {
    /// Ends with the outer UDP header.
    pub(super) shape: Shape,
    inner: Shape,
    /// The outer checksum must be computed; otherwise it is not changed.
    completes: bool,
}

impl Outer {
    /// Checks the tunnel claims against the outer headers; `inner` is the shape of the inner ones.
    pub(super) fn new(headers: &Headers, tunnel: Tunnel, inner: Shape) -> Option<Self> {
        let shape = Shape::of(headers, headers.end)?;
        let is_as_claimed = shape.transport == Transport::Udp
            && usize::from(tunnel.transport_at) == shape.transport_at
            && tunnel.is_ipv6 == (shape.version == Version::V6)
            && inner.ip_at >= shape.end;
        is_as_claimed.then_some(Self { shape, inner, completes: tunnel.checksum })
    }

    /// Bytes behind the outer UDP header, given the `payload` bytes behind all headers.
    pub(super) fn payload_len(&self, payload: usize) -> usize {
        self.inner.end - self.shape.end + payload
    }

    /// Updates the outer headers in `to` for `part`. Its inner headers must be complete, with a
    /// partial checksum. `template` is that of the outer headers.
    pub(super) fn patch(&self, template: &Template, part: &Part, to: &mut [u8]) {
        let checksum_at = self.shape.checksum_at();
        let before = read_u16(to, checksum_at);
        template.patch(&Part { len: self.payload_len(part.len), ..*part }, to);
        if self.completes {
            self.complete_checksum(to);
        } else {
            write_u16(to, checksum_at, before);
        }
    }

    /// Computes the outer checksum, if requested, of a packet that is not segmented.
    pub(super) fn settle(&self, headers: &mut [u8], payload: usize) {
        if self.completes {
            let len = self.shape.transport_len(self.payload_len(payload));
            let sum = self.shape.pseudo_header(headers, len);
            write_u16(headers, self.shape.checksum_at(), sum.fold());
            self.complete_checksum(headers);
        }
    }

    /// Computes the outer checksum; both checksum fields must hold their pseudo-header's sum.
    fn complete_checksum(&self, headers: &mut [u8]) {
        let mut sum = Sum::new();
        sum.add(&headers[self.shape.transport_at..self.inner.transport_at]);
        let inner = !read_u16(headers, self.inner.checksum_at());
        sum.add(&inner.to_be_bytes());
        write_u16(headers, self.shape.checksum_at(), checksum::udp_nonzero(sum.finish()));
    }
}

/// End of the headers of a super-packet in a tunnel, by its claims. `None` if the headers do not
/// end within `bytes`, the beginning of the frame.
pub(crate) fn headers_end(bytes: &[u8], offload: &Offload) -> Option<usize> {
    let Checksum::Partial { start, .. } = offload.checksum else { return None };
    let start = usize::from(start);
    let len = match offload.gso?.kind {
        GsoKind::Tcp4 | GsoKind::Tcp6 => tcp::header_len(bytes.get(start..)?)?,
        GsoKind::Udp => udp::HEADER_LEN,
    };
    Some(start + len).filter(|&end| end <= bytes.len())
}
