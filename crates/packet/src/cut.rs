//! What the headers of the parts of a super-packet are, and super-packets that a device cuts.
//!
//! A device that takes no super-packets may still be the best place to cut one: if it copies each
//! part to where it goes anyway, then a part needs no handle and no share of the loans, only
//! headers of its own. Whoever knows the protocols makes a [`Template`] of the whole's headers and
//! hands it along with the packet as a [`Cut`]; the device writes each part's headers with it.
//!
//! Lengths are those that were checked when the template was made: a packet with a [`Cut`] is not
//! changed but from the front, by whole parts ([`Packet::drop_parts`]).
//!
//! RFC 9293 §3.1, RFC 768, RFC 791, RFC 8200; RFC 3168 §6.1.2 (CWR), RFC 6864 (identification).
//!
//! [`Packet::drop_parts`]: crate::Packet::drop_parts

use core::num::NonZeroU16;

use crate::offload::{Gso, GsoKind};

/// One part of a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which one, from zero.
    pub index: usize,
    /// Where its payload begins in the whole.
    pub offset: usize,
    /// Bytes of its payload.
    pub len: usize,
    /// None follows.
    pub last: bool,
}

/// Where fields are in the headers of a TCP or UDP packet, and sums over what all parts have in
/// common. Places count from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The IP header is IPv4's.
    pub is_ipv4: bool,
    /// The transport header is TCP's; otherwise it is UDP's.
    pub is_tcp: bool,
    /// Start of the IP header.
    pub ip_at: u16,
    /// Start of the transport header.
    pub transport_at: u16,
    /// End of the transport header, which is the end of the headers.
    pub end: u16,
    /// The sum of the pseudo-header without the length, not complemented.
    pub pseudo_header: u16,
    /// That of an IPv4 header without length, identification and checksum.
    pub ip_header: u16,
}

/// Writes the headers of parts after those of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    layout: Layout,
    /// The whole's headers are those of a part with so much payload already.
    prepared: Option<NonZeroU16>,
}

impl Template {
    /// For a super-packet whose headers lie so.
    pub const fn new(layout: Layout) -> Self {
        Self { layout, prepared: None }
    }

    /// Writes to the whole's headers what parts with `payload` bytes have in common, as most have
    /// that many: each of them then gets the rest only.
    pub fn prepare(&mut self, headers: &mut [u8], payload: NonZeroU16) {
        self.fit(payload.get().into(), headers);
        self.prepared = Some(payload);
    }

    /// Makes `to`, a copy of the whole's headers, those of `part`; the transport checksum is
    /// partial.
    ///
    /// # Panics
    /// If `to` is shorter, or the part longer than an IP packet.
    #[inline]
    pub fn patch(&self, part: &Part, to: &mut [u8]) {
        let to = &mut to[..usize::from(self.layout.end)];
        if self.prepared.is_none_or(|payload| usize::from(payload.get()) != part.len) {
            self.fit(part.len, to);
        }
        let Layout { is_ipv4, is_tcp, ip_at, transport_at, .. } = self.layout;
        if is_ipv4 {
            // Identifications count on from the first; they are 16 bits wide and wrap.
            let ip = &mut to[ip_at.into()..];
            let ident = read_u16(ip, IPV4_IDENT).wrapping_add(part.index as u16);
            write_u16(ip, IPV4_IDENT, ident);
            let sum = add(add(self.layout.ip_header, self.ip_len(part.len)), ident);
            write_u16(ip, IPV4_CHECKSUM, !sum);
        }
        if is_tcp {
            write_tcp(&mut to[transport_at.into()..], part);
        }
    }

    /// Writes lengths and the partial checksum of a part with `payload` bytes.
    #[inline]
    fn fit(&self, payload: usize, to: &mut [u8]) {
        let Layout { is_ipv4, is_tcp, ip_at, transport_at, end, pseudo_header, .. } = self.layout;
        let ip = &mut to[ip_at.into()..];
        if is_ipv4 {
            write_u16(ip, IPV4_TOTAL_LEN, self.ip_len(payload));
        } else {
            write_u16(ip, IPV6_PAYLOAD_LEN, self.ip_len(payload) - IPV6_HEADER_LEN);
        }
        let transport_len = length(usize::from(end - transport_at) + payload);
        let transport = &mut to[transport_at.into()..];
        if !is_tcp {
            write_u16(transport, UDP_LENGTH, transport_len);
        }
        let at = if is_tcp { TCP_CHECKSUM } else { UDP_CHECKSUM };
        write_u16(transport, at, add(pseudo_header, transport_len));
    }

    /// Bytes of the IP packet with `payload` bytes behind the transport header.
    #[inline]
    fn ip_len(&self, payload: usize) -> u16 {
        length(usize::from(self.layout.end - self.layout.ip_at) + payload)
    }
}

/// Sequence number and flags of one part.
#[inline]
fn write_tcp(header: &mut [u8], part: &Part) {
    let field = &mut header[TCP_SEQUENCE..TCP_SEQUENCE + 4];
    let sequence = u32::from_be_bytes(field.try_into().expect("four bytes"));
    field.copy_from_slice(&sequence.wrapping_add(part.offset as u32).to_be_bytes());
    if part.index > 0 {
        // RFC 3168 §6.1.2: CWR is said once.
        header[TCP_FLAGS] &= !TCP_CWR;
    }
    if !part.last {
        header[TCP_FLAGS] &= !(TCP_FIN | TCP_PSH);
    }
}

/// How a device cuts a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Writes the headers of parts; prepared for `size`.
    template: Template,
    /// Bytes of payload in each part but the last.
    size: NonZeroU16,
    /// Parts that the device has sent.
    gone: u16,
}

impl Cut {
    /// Into parts of `size` bytes; `headers` become what these have in common.
    pub fn new(mut template: Template, headers: &mut [u8], size: NonZeroU16) -> Self {
        template.prepare(headers, size);
        Self { template, size, gone: 0 }
    }

    /// What writes the headers of a part.
    #[inline]
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Bytes of payload in each part but the last.
    #[inline]
    pub fn size(&self) -> usize {
        self.size.get().into()
    }

    /// Parts of so much payload.
    #[inline]
    pub fn count(&self, payload: usize) -> usize {
        payload.div_ceil(self.size())
    }

    /// The part that is so many behind the next, of `payload` bytes that are left.
    #[inline]
    pub fn part(&self, ahead: usize, payload: usize) -> Part {
        let index = usize::from(self.gone) + ahead;
        let left = payload.saturating_sub(ahead * self.size());
        let (offset, len) = (index * self.size(), left.min(self.size()));
        Part { index, offset, len, last: len == left }
    }

    /// The fields of the super-packet that is left, whose headers these are.
    pub(crate) fn gso(&self, headers: &[u8]) -> Gso {
        let Layout { is_ipv4, is_tcp, transport_at, .. } = self.template.layout;
        let kind = match (is_tcp, is_ipv4) {
            (true, true) => GsoKind::Tcp4,
            (true, false) => GsoKind::Tcp6,
            (false, _) => GsoKind::Udp,
        };
        let flags_at = usize::from(transport_at) + TCP_FLAGS;
        let ecn = is_tcp && self.gone == 0 && headers[flags_at] & TCP_CWR != 0;
        Gso { kind, size: self.size, ecn, tunnel: None }
    }

    /// So many more parts were sent.
    pub(crate) fn advance(&mut self, parts: usize) {
        self.gone += u16::try_from(parts).expect("a packet has fewer parts");
    }

    /// Nothing: what a packet has that is not cut.
    pub(crate) const fn none() -> Self {
        let layout = Layout {
            is_ipv4: false,
            is_tcp: false,
            ip_at: 0,
            transport_at: 0,
            end: 0,
            pseudo_header: 0,
            ip_header: 0,
        };
        Self { template: Template::new(layout), size: NonZeroU16::MIN, gone: 0 }
    }
}

/// The one's complement sum of two sums (RFC 1071).
#[inline]
fn add(one: u16, other: u16) -> u16 {
    let (sum, carry) = one.overflowing_add(other);
    // With a carry the sum is at most 0xfffe.
    sum + u16::from(carry)
}

/// The value of a 16-bit length field.
#[inline]
fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("an IP packet has at most 65,535 bytes")
}

#[inline]
fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn write_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Places of fields in their headers.
const IPV4_TOTAL_LEN: usize = 2;
const IPV4_IDENT: usize = 4;
const IPV4_CHECKSUM: usize = 10;
const IPV6_PAYLOAD_LEN: usize = 4;
const IPV6_HEADER_LEN: u16 = 40;
const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: usize = 16;
const UDP_LENGTH: usize = 4;
const UDP_CHECKSUM: usize = 6;
/// Bits of TCP's flags.
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
