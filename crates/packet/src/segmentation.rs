//! Headers for the segments of a super-packet, and super-packets that a device segments.
//!
//! A device that does not accept super-packets may still be the best place to segment them: if it
//! copies each part to its destination anyway, a part needs no packet handle and no holder of the
//! loans, only its own headers. The code that knows the protocols makes a [`Template`] from the
//! headers of the whole packet and attaches it to the packet as a [`Segmentation`]; the device uses
//! it to write the headers of each part.
//!
//! Lengths were checked when the template was made. A packet with a [`Segmentation`] changes only
//! at the front, by whole parts ([`Packet::drop_parts`]).
//!
//! RFC 9293 §3.1, RFC 768, RFC 791, RFC 8200; RFC 3168 §6.1.2 (CWR), RFC 6864 (identification).
//!
//! [`Packet::drop_parts`]: crate::Packet::drop_parts

use core::num::NonZeroU16;

use crate::offload::{Gso, GsoKind};

/// One part (segment) of a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its index, from zero.
    pub index: usize,
    /// Offset of its payload in the whole payload.
    pub offset: usize,
    /// Bytes of its payload.
    pub len: usize,
    /// It is the last part.
    pub last: bool,
}

/// Offsets of fields in the headers of a TCP or UDP packet, and sums over the fields that all parts
/// share. Offsets count from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The IP header is IPv4.
    pub is_ipv4: bool,
    /// The transport header is TCP; otherwise it is UDP.
    pub is_tcp: bool,
    /// Start of the IP header.
    pub ip_at: u16,
    /// Start of the transport header.
    pub transport_at: u16,
    /// End of the transport header, which is the end of the headers.
    pub end: u16,
    /// The sum of the pseudo-header without the length, not complemented.
    pub pseudo_header: u16,
    /// The sum of an IPv4 header without length, identification and checksum, not complemented.
    pub ip_header: u16,
}

/// Writes the headers of parts from the headers of the whole packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    layout: Layout,
    /// Payload size for which the headers of the whole packet are already filled in.
    prepared: Option<NonZeroU16>,
}

impl Template {
    /// A template for a super-packet with this layout.
    pub const fn new(layout: Layout) -> Self {
        Self { layout, prepared: None }
    }

    /// Fills in the headers of the whole packet for parts with `payload` bytes, which most parts
    /// have: each of these then needs only the remaining fields.
    pub fn prepare(&mut self, headers: &mut [u8], payload: NonZeroU16) {
        self.fit(payload.get().into(), headers);
        self.prepared = Some(payload);
    }

    /// Turns `to`, a copy of the headers of the whole packet, into the headers of `part`. The
    /// transport checksum becomes partial.
    ///
    /// # Panics
    /// If `to` is shorter than the headers, or the part is longer than an IP packet.
    #[inline]
    pub fn patch(&self, part: &Part, to: &mut [u8]) {
        let to = &mut to[..usize::from(self.layout.end)];
        if self.prepared.is_none_or(|payload| usize::from(payload.get()) != part.len) {
            self.fit(part.len, to);
        }
        let Layout { is_ipv4, is_tcp, ip_at, transport_at, .. } = self.layout;
        if is_ipv4 {
            // Identifications count up from the first. They are 16 bits wide and wrap.
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

    /// Writes the lengths and the partial checksum of a part with `payload` bytes.
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

    /// Length of the IP packet with `payload` bytes behind the transport header.
    #[inline]
    fn ip_len(&self, payload: usize) -> u16 {
        length(usize::from(self.layout.end - self.layout.ip_at) + payload)
    }
}

/// Writes the sequence number and the flags of one part.
#[inline]
fn write_tcp(header: &mut [u8], part: &Part) {
    let field = &mut header[TCP_SEQUENCE..TCP_SEQUENCE + 4];
    let sequence = u32::from_be_bytes(field.try_into().expect("four bytes"));
    field.copy_from_slice(&sequence.wrapping_add(part.offset as u32).to_be_bytes());
    if part.index > 0 {
        // RFC 3168 §6.1.2: only the first segment carries CWR.
        header[TCP_FLAGS] &= !TCP_CWR;
    }
    if !part.last {
        header[TCP_FLAGS] &= !(TCP_FIN | TCP_PSH);
    }
}

/// How a device segments a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Writes the headers of parts. Prepared for `size`.
    template: Template,
    /// Bytes of payload in each part but the last.
    size: NonZeroU16,
    /// Parts that the device has already sent.
    gone: u16,
}

impl Segmentation {
    /// Segmentation into parts of `size` bytes. Changes `headers` to what these parts have in
    /// common.
    pub fn new(mut template: Template, headers: &mut [u8], size: NonZeroU16) -> Self {
        template.prepare(headers, size);
        Self { template, size, gone: 0 }
    }

    /// The template that writes the headers of a part.
    #[inline]
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Bytes of payload in each part but the last.
    #[inline]
    pub fn size(&self) -> usize {
        self.size.get().into()
    }

    /// Number of parts of `payload` bytes.
    #[inline]
    pub fn count(&self, payload: usize) -> usize {
        payload.div_ceil(self.size())
    }

    /// The part that is `ahead` positions behind the next one, when `payload` bytes are left.
    #[inline]
    pub fn part(&self, ahead: usize, payload: usize) -> Part {
        let index = usize::from(self.gone) + ahead;
        let left = payload.saturating_sub(ahead * self.size());
        let (offset, len) = (index * self.size(), left.min(self.size()));
        Part { index, offset, len, last: len == left }
    }

    /// Offload fields of the remaining super-packet, whose headers are `headers`.
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

    /// Records that `parts` more parts were sent.
    pub(crate) fn advance(&mut self, parts: usize) {
        self.gone += u16::try_from(parts).expect("a packet has fewer parts");
    }

    /// A placeholder for packets that the device does not segment.
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

/// Offsets of fields in their headers.
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
/// TCP flag bits.
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
