//! Takes frames out of the datagrams that a VXLAN socket receives.
//!
//! # Theory of operation
//!
//! A read yields one datagram, or several that the kernel has coalesced (`UDP_GRO`): then each but
//! the last has the same size. They are cut without a copy: each frame gets pieces of the same
//! loans. The first bytes of each datagram are copied into private memory once, and the headers of
//! the frame are taken from that copy.
//!
//! If much arrives, the reader looks before it reads ([`head_of`]), and has the kernel put the
//! headers of each datagram apart from its payload ([`Heads`]). The payload of successive segments
//! is then contiguous, so a super-packet made of them has a piece for each frame of the read and
//! not for each segment. A datagram with headers of another length is put together again, with a
//! copy of its head.
//!
//! A kernel that passes a tunnelled super-packet by an interface which takes such packets whole
//! (veth, virtio) delivers it to a plain UDP socket as it is: one datagram, whose inner IP length
//! covers all of it. It stays whole here, too. Of TCP the segment size is lost; the size that fills
//! the MTU of the network takes its place. Of UDP it is where that of coalesced datagrams would be.
//! Such a super-packet has a partial checksum, and so may any other packet of that way; nothing
//! says which. So a TCP or UDP checksum that is the sum of the pseudo-header is taken for a partial
//! one. A complete checksum has this value once in 65,536 packets: then it is computed again, from
//! the same bytes.
//!
//! Input may be anything: each datagram is a frame or a [`Refused`] reason, and nothing panics.

use core::num::NonZeroU16;

use towpath_packet::{Checksum, Gso, GsoKind, Ledger, Memory, Offload, Packet, Piece, Site};

use super::{HEADER_LEN, Malformed, Vni, parse};
use crate::gso::{Shape, Splitter, partial};
use crate::wire::ethernet::{self, EtherType};
use crate::wire::field::read_u16;
use crate::wire::headers::{Headers, Transport, Version};
use crate::wire::tcp::{self, Flags};
use crate::wire::udp;

/// Most datagrams of one read: `UDP_GRO_CNT_MAX` of the kernel.
pub const DATAGRAMS_MAX: usize = 64;
/// Handles that one read may need.
pub const HANDLES_MAX: usize = DATAGRAMS_MAX + 1;

/// Heads are read apart from datagrams of at least this many times their size: others have little
/// payload to join.
const PAYLOAD_SHARE: usize = 4;

/// Why a datagram has no frame for the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It is shorter than the VXLAN header and an Ethernet header.
    Short,
    /// Its VXLAN header has no valid network identifier.
    BadHeader,
    /// It is of another network.
    WrongVni,
    /// No packet handle was free, or the read had more datagrams than the kernel coalesces.
    NoMemory,
}

/// Takes the frames out of what one read returned: bytes in `pieces`, at most as many pieces as a
/// packet has. `gro_size` is the size of each coalesced datagram, `mtu` the largest IP packet of
/// the network. Passes each frame to `each` with the headers of its TCP or UDP packet, or why there
/// is none. The headers of a frame are private: up to the end of its TCP or UDP header, otherwise
/// all bytes that were looked at.
pub fn decapsulate(
    pieces: impl Iterator<Item = Piece>,
    gro_size: Option<NonZeroU16>,
    (vni, mtu): (Vni, u16),
    memory: &mut Memory,
    each: &mut impl FnMut(Result<(Packet, Option<Headers>), Refused>, &mut Memory),
) {
    let Some(mut whole) = memory.packet() else { return each(Err(Refused::NoMemory), memory) };
    for piece in pieces {
        if whole.push_piece(piece).is_err() {
            return each(Err(Refused::NoMemory), memory);
        }
    }
    let len = whole.payload_len();
    let size = gro_size.map_or(len, |size| usize::from(size.get()));
    if len <= size {
        return each(open(whole, vni, mtu), memory);
    }
    if let Some(gso) = gro_size.and_then(|size| tunnelled(whole.peek_headers(), len, size)) {
        return each(open_super(whole, vni, gso), memory);
    }
    let mut splitter = Splitter::new(whole.take_pieces(), size);
    for offset in (0..len).step_by(size).take(DATAGRAMS_MAX) {
        let Some(mut part) = memory.packet() else { return each(Err(Refused::NoMemory), memory) };
        splitter.split(size.min(len - offset), &mut part);
        each(open(part, vni, mtu), memory);
    }
    if len > DATAGRAMS_MAX * size {
        each(Err(Refused::NoMemory), memory);
    }
}

/// Bytes of the head of each of the coalesced datagrams that wait, if it pays to read heads and
/// payload apart: as far as the end of the TCP or UDP header of the first. `start` is what they
/// begin with, `len` the bytes of all, `size` those of each.
pub fn head_of(start: &[u8], len: usize, size: NonZeroU16) -> Option<usize> {
    let frame = start.get(HEADER_LEN..)?;
    let headers = headers(frame).filter(|headers| headers.transport.is_some())?;
    let (head, datagram) = (HEADER_LEN + headers.end, usize::from(size.get()));
    let is_mostly_payload = datagram >= PAYLOAD_SHARE * head;
    let is_run = len.div_ceil(datagram) <= DATAGRAMS_MAX && tunnelled(start, len, size).is_none();
    (is_mostly_payload && is_run).then_some(head)
}

/// The heads of coalesced datagrams, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// The heads.
    pub bytes: &'a [u8],
    /// Bytes of each but the last, which may be shorter.
    pub head: usize,
    /// Bytes behind each head but the last, which has what is left.
    pub stretch: usize,
}

/// Takes the frames out of what one read returned with the heads apart: `payload` bytes in
/// `pieces`. Otherwise as [`decapsulate`].
///
/// # Panics
/// If a head or a stretch has no bytes.
pub fn decapsulate_heads(
    heads: &Heads<'_>,
    pieces: impl Iterator<Item = Piece>,
    payload: usize,
    (vni, mtu): (Vni, u16),
    (memory, ledger): (&mut Memory, &Ledger),
    each: &mut impl FnMut(Result<(Packet, Option<Headers>), Refused>, &mut Memory),
) {
    let mut splitter = Splitter::new(pieces, heads.stretch);
    let mut left = payload;
    for head in heads.bytes.chunks(heads.head) {
        let len = heads.stretch.min(left);
        left -= len;
        let Some(mut packet) = memory.packet() else { return each(Err(Refused::NoMemory), memory) };
        let headers = headers_in_head(head);
        let has_head = headers.is_some() || push_copy(&mut packet, head, memory, ledger);
        splitter.split(len, &mut packet);
        each(
            match headers {
                Some(headers) => open_head(packet, head, &headers, vni, mtu),
                None if has_head => open(packet, vni, mtu),
                None => Err(Refused::NoMemory),
            },
            memory,
        );
    }
}

/// The headers of the TCP or UDP packet in a datagram, if they end where its head does.
fn headers_in_head(head: &[u8]) -> Option<Headers> {
    let frame = head.get(HEADER_LEN..)?;
    headers(frame).filter(|headers| headers.transport.is_some() && headers.end == frame.len())
}

/// Copies a head into a frame, which becomes the first piece of an empty packet. False if no frame
/// is free.
fn push_copy(packet: &mut Packet, head: &[u8], memory: &mut Memory, ledger: &Ledger) -> bool {
    let Some(mut frame) = memory.small.take() else { return false };
    frame[..head.len()].copy_from_slice(head);
    ledger.count(Site::Linearise, head.len());
    packet.push_piece(frame.freeze(head.len())).expect("the packet is empty");
    true
}

/// Checks a datagram with these headers, whose payload is in `packet`, and makes a frame of it.
fn open_head(
    mut packet: Packet,
    head: &[u8],
    headers: &Headers,
    vni: Vni,
    mtu: u16,
) -> Result<(Packet, Option<Headers>), Refused> {
    check(head, vni)?;
    packet.push_header_of(&head[HEADER_LEN..]);
    mark_partial(&mut packet, headers, mtu);
    Ok((packet, Some(*headers)))
}

/// Checks a datagram, and makes a frame of it.
fn open(mut packet: Packet, vni: Vni, mtu: u16) -> Result<(Packet, Option<Headers>), Refused> {
    let bytes = packet.peek_headers();
    check(bytes, vni)?;
    // Of other protocols, such as ICMPv6, a switch checks what is behind their headers.
    let headers = headers(&bytes[HEADER_LEN..]).filter(|headers| headers.transport.is_some());
    let end = headers.map_or(bytes.len(), |headers| HEADER_LEN + headers.end);
    packet.pull(end);
    packet.pop_header(HEADER_LEN);
    if let Some(headers) = &headers {
        mark_partial(&mut packet, headers, mtu);
    }
    Ok((packet, headers))
}

/// Marks the checksum of a frame if it is a partial one.
fn mark_partial(packet: &mut Packet, headers: &Headers, mtu: u16) {
    if let Some(shape) = Shape::of(headers, packet.headers().len())
        && is_partial(packet.headers(), &shape, packet.payload_len())
    {
        let offload = Offload {
            checksum: partial(&shape),
            gso: oversized(packet.headers(), &shape, packet.payload_len(), mtu),
        };
        packet.set_offload(offload);
    }
}

/// The segmentation of a packet with a partial checksum that is larger than the network's MTU:
/// a super-packet of TCP. `None` for others.
fn oversized(frame: &[u8], shape: &Shape, payload: usize, mtu: u16) -> Option<Gso> {
    let mtu = usize::from(mtu);
    let is_whole = shape.stated_ip_length(frame) == shape.ip_length_field(payload);
    if shape.ip_len(payload) <= mtu || shape.transport != Transport::Tcp || !is_whole {
        return None;
    }
    let size = u16::try_from(mtu.checked_sub(shape.ip_len(0))?).ok()?;
    Some(of_size(frame, shape, NonZeroU16::new(size)?))
}

/// The segmentation of a packet into segments of `size` bytes.
fn of_size(frame: &[u8], shape: &Shape, size: NonZeroU16) -> Gso {
    let (kind, ecn) = match (shape.transport, shape.version) {
        (Transport::Udp, _) => (GsoKind::Udp, false),
        (Transport::Tcp, version) => {
            let flags = Flags(frame[shape.transport_at + tcp::at::FLAGS]);
            let kind = if version == Version::V4 { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
            (kind, flags.intersects(Flags::CWR))
        }
    };
    Gso { kind, size, ecn, tunnel: None }
}

/// Checks a datagram that is a tunnelled super-packet, and makes a frame of it.
fn open_super(
    mut packet: Packet,
    vni: Vni,
    (headers, gso, checksum): (Headers, Gso, Checksum),
) -> Result<(Packet, Option<Headers>), Refused> {
    check(packet.peek_headers(), vni)?;
    packet.pull(HEADER_LEN + headers.end);
    packet.pop_header(HEADER_LEN);
    packet.set_offload(Offload { checksum, gso: Some(gso) });
    Ok((packet, Some(headers)))
}

fn check(bytes: &[u8], vni: Vni) -> Result<(), Refused> {
    match parse(bytes) {
        Err(Malformed::Short) => Err(Refused::Short),
        Err(Malformed::NoVni) => Err(Refused::BadHeader),
        Ok(other) if other != vni => Err(Refused::WrongVni),
        Ok(_) if bytes.len() < HEADER_LEN + ethernet::HEADER_LEN => Err(Refused::Short),
        Ok(_) => Ok(()),
    }
}

/// The headers of the IP packet in a frame without tags.
fn headers(frame: &[u8]) -> Option<Headers> {
    let version = match ethernet::Header::parse(frame).ok()?.ethertype {
        EtherType::IPV4 => Version::V4,
        EtherType::IPV6 => Version::V6,
        _ => return None,
    };
    Headers::read(frame, ethernet::HEADER_LEN).filter(|headers| headers.version == version)
}

/// The segmentation of a datagram of `len` bytes that is one super-packet, whose segments have
/// `size` bytes. `None` for coalesced datagrams.
fn tunnelled(bytes: &[u8], len: usize, size: NonZeroU16) -> Option<(Headers, Gso, Checksum)> {
    let frame = bytes.get(HEADER_LEN..)?;
    let headers = headers(frame)?;
    let shape = Shape::of(&headers, headers.end)?;
    let payload = len.checked_sub(HEADER_LEN + headers.end)?;
    let is_whole = shape.stated_ip_length(frame) == shape.ip_length_field(payload)
        && is_partial(frame, &shape, payload);
    is_whole.then(|| (headers, of_size(frame, &shape, size), partial(&shape)))
}

/// True if the checksum field holds the sum of the pseudo-header.
fn is_partial(frame: &[u8], shape: &Shape, payload: usize) -> bool {
    let field = read_u16(frame, shape.checksum_at());
    let is_whole = match shape.transport {
        Transport::Tcp => true,
        // A datagram with padding, or whose length is wrong, is left as it is.
        Transport::Udp => {
            let stated = read_u16(frame, shape.transport_at + udp::at::LENGTH);
            field != 0 && usize::from(stated) == shape.transport_len(payload)
        }
    };
    is_whole && field == shape.pseudo_header(frame, shape.transport_len(payload)).fold()
}

#[cfg(test)]
mod tests;
