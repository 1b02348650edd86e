//! Takes frames out of the datagrams that a VXLAN socket receives.
//!
//! # Theory of operation
//!
//! A read yields one datagram, or several that the kernel has coalesced (`UDP_GRO`): then each but
//! the last has the same size. They are cut without a copy: each frame gets pieces of the same
//! loans. The first bytes of each datagram are copied into private memory once, and the headers of
//! the frame are taken from that copy.
//!
//! If much arrives, the reader has the kernel put the headers of each datagram apart from its
//! payload ([`Heads`]). The payload of successive segments is then contiguous, so a super-packet
//! made of them has a piece for each frame of the read and not for each segment. Where that pays is
//! known from the reads before ([`decapsulate_heads`] returns it), or from a look ([`head_of`]). A
//! datagram with headers of another length is put together again, with a copy of its head, and a
//! read of datagrams of another length with a copy of all.
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

use towpath_packet::packet::PEEK_BYTES;
use towpath_packet::{Checksum, Frame, Gso, GsoKind, Ledger, Memory, Offload, Packet, Piece, Site};

use super::{HEADER_LEN, Malformed, Vni, parse};
use crate::gso::{Shape, Splitter, move_front, partial};
use crate::wire::ethernet::{self, EtherType};
use crate::wire::field::read_u16;
use crate::wire::headers::{Headers, Transport, Version};
use crate::wire::tcp::{self, Flags};
use crate::wire::udp;

/// Most datagrams of one read: `UDP_GRO_CNT_MAX` of the kernel.
pub const DATAGRAMS_MAX: usize = 64;
/// Handles that one read may need.
pub const HANDLES_MAX: usize = DATAGRAMS_MAX + 2;

/// Heads are read apart from datagrams of at least so many bytes. Others have little payload to
/// join, and [`DATAGRAMS_MAX`] strides of this length have room for any datagram.
const DATAGRAM_BYTES_MIN: usize = 65_536 / DATAGRAMS_MAX;

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

/// A frame with the headers of its TCP or UDP packet, or why there is none.
pub type Opened = Result<(Packet, Option<Headers>), Refused>;

/// Takes the frames of a read with heads apart.
pub trait TakeFrames {
    /// Takes a frame, or why there is none.
    fn take(&mut self, frame: Opened, memory: &mut Memory);

    /// Takes frames that are no packets yet, and may follow the frame that was taken last, as many
    /// as do. `headers` are the headers of each, which end where those of the frame before did.
    /// `payload` has the payload of all: `size` bytes of each but the last, which may be shorter.
    /// Moves that of the frames it takes out of it, and returns how many these are. The next one is
    /// then made a packet.
    fn extend<'a>(
        &mut self,
        headers: impl Iterator<Item = &'a [u8]> + Clone,
        size: usize,
        payload: &mut Packet,
    ) -> usize;
}

/// Takes the frames out of what one read returned: bytes in `pieces`, at most as many pieces as a
/// packet has. `gro_size` is the size of each coalesced datagram, `mtu` the largest IP packet of
/// the network. Passes each frame to `each` with the headers of its TCP or UDP packet, or why there
/// is none. The headers of a frame are private: up to the end of its TCP or UDP header, otherwise
/// all bytes that were looked at. Returns what [`head_of`] says of the datagrams.
pub fn decapsulate(
    pieces: impl Iterator<Item = Piece>,
    gro_size: Option<NonZeroU16>,
    network: (Vni, u16),
    memory: &mut Memory,
    each: &mut impl FnMut(Opened, &mut Memory),
) -> Option<usize> {
    match whole_of(pieces, memory) {
        Some(whole) => cut(whole, gro_size, network, memory, each),
        None => {
            each(Err(Refused::NoMemory), memory);
            None
        }
    }
}

/// A packet of these pieces. `None` without a handle, or if they are too many.
fn whole_of(mut pieces: impl Iterator<Item = Piece>, memory: &mut Memory) -> Option<Packet> {
    let mut whole = memory.packet()?;
    pieces.try_for_each(|piece| whole.push_piece(piece)).ok()?;
    Some(whole)
}

/// Takes the frames out of what one read returned, as [`decapsulate`] does.
fn cut(
    mut whole: Packet,
    gro_size: Option<NonZeroU16>,
    (vni, mtu): (Vni, u16),
    memory: &mut Memory,
    each: &mut impl FnMut(Opened, &mut Memory),
) -> Option<usize> {
    let len = whole.payload_len();
    let Some(gro_size) = gro_size.filter(|size| usize::from(size.get()) < len) else {
        each(open(whole, vni, mtu), memory);
        return None;
    };
    let start = whole.peek_headers();
    if let Some(gso) = tunnelled(start, len, gro_size) {
        each(open_super(whole, vni, gso), memory);
        return None;
    }
    let head = head_of(start, len, gro_size);
    let size = usize::from(gro_size.get());
    let mut splitter = Splitter::new(whole.take_pieces(), size);
    for offset in (0..len).step_by(size).take(DATAGRAMS_MAX) {
        let Some(mut part) = memory.packet() else {
            each(Err(Refused::NoMemory), memory);
            return head;
        };
        splitter.split(size.min(len - offset), &mut part);
        each(open(part, vni, mtu), memory);
    }
    if len > DATAGRAMS_MAX * size {
        each(Err(Refused::NoMemory), memory);
    }
    head
}

/// Bytes of the head of each of the coalesced datagrams that wait, if it pays to read heads and
/// payload apart: as far as the end of the TCP or UDP header of the first. `start` is what they
/// begin with, `len` the bytes of all, `size` those of each.
pub fn head_of(start: &[u8], len: usize, size: NonZeroU16) -> Option<usize> {
    let frame = start.get(HEADER_LEN..)?;
    let headers = headers(frame).filter(|headers| headers.transport.is_some())?;
    let (head, datagram) = (HEADER_LEN + headers.end, usize::from(size.get()));
    let is_long = datagram >= DATAGRAM_BYTES_MIN;
    let is_run = len.div_ceil(datagram) <= DATAGRAMS_MAX && tunnelled(start, len, size).is_none();
    (is_long && is_run).then_some(head)
}

/// A split read, in strides of `size` bytes: of each, the first `head` bytes are private, and the
/// others are in pieces.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// The private bytes of all strides.
    pub bytes: &'a [u8],
    /// Bytes of each head but the last, which may be shorter.
    pub head: usize,
    /// Bytes of each stride but the last, which may be shorter; more than a head.
    pub size: NonZeroU16,
}

/// Takes the frames out of what one read returned with heads apart, and the other bytes in
/// `pieces`. The datagrams need not be those for which the read was prepared; the ledger counts
/// what is copied then. Otherwise as [`decapsulate`]. None is lost if [`HANDLES_MAX`] handles are
/// free, [`DATAGRAMS_MAX`] small frames, and large ones for all bytes of the read.
///
/// # Panics
/// If a head has no bytes, or a stride no more than a head.
pub fn decapsulate_heads(
    heads: &Heads<'_>,
    pieces: impl Iterator<Item = Piece>,
    gro_size: Option<NonZeroU16>,
    network: (Vni, u16),
    (memory, ledger): (&mut Memory, &Ledger),
    frames: &mut impl TakeFrames,
) -> Option<usize> {
    let Some(mut behind) = whole_of(pieces, memory) else {
        frames.take(Err(Refused::NoMemory), memory);
        return None;
    };
    let len = heads.bytes.len() + behind.payload_len();
    if len == 0 {
        frames.take(Err(Refused::Short), memory);
        return None;
    }
    let gro_size = gro_size.filter(|size| usize::from(size.get()) < len);
    let size = gro_size.map_or(len, |size| size.get().into());
    let (start, known) = heads.start(&behind);
    let start = &start[..known];
    let is_as_prepared = gro_size.map_or(len <= heads.stride(), |size| size == heads.size);
    let is_super = gro_size.is_some_and(|size| tunnelled(start, len, size).is_some());
    if is_as_prepared && !is_super {
        open_strides(heads, behind, network, (memory, ledger), frames);
        return gro_size.and_then(|size| head_of(start, len, size));
    }
    if let Some(whole) = heads.join(&mut behind, memory, ledger) {
        let each = &mut |frame, memory: &mut Memory| frames.take(frame, memory);
        return cut(whole, gro_size, network, memory, each);
    }
    (0..len.div_ceil(size)).for_each(|_| frames.take(Err(Refused::NoMemory), memory));
    None
}

/// Takes the frames out of a read with a datagram in each stride.
fn open_strides(
    heads: &Heads<'_>,
    mut behind: Packet,
    (vni, mtu): (Vni, u16),
    (memory, ledger): (&mut Memory, &Ledger),
    frames: &mut impl TakeFrames,
) {
    let stretch = heads.stride() - heads.head;
    let mut strides = heads.bytes.chunks(heads.head).take(DATAGRAMS_MAX);
    // The VXLAN header of the frame before, if that was taken with its head.
    let mut before: Option<&[u8; HEADER_LEN]> = None;
    loop {
        if let Some(header) = before {
            let following = strides.clone().map_while(|head| head.strip_prefix(header));
            let count = frames.extend(following, stretch, &mut behind);
            strides.by_ref().take(count).for_each(drop);
        }
        let Some(head) = strides.next() else { break };
        let Some(mut packet) = memory.packet() else {
            return frames.take(Err(Refused::NoMemory), memory);
        };
        let headers = headers_in_head(head);
        let has_head = headers.is_some() || push_copy(&mut packet, head, memory, ledger);
        let len = stretch.min(behind.payload_len());
        move_front(&mut behind, len, &mut packet);
        let frame = match headers {
            Some(headers) => open_head(packet, head, &headers, vni, mtu),
            None if has_head => open(packet, vni, mtu),
            None => Err(Refused::NoMemory),
        };
        before = head.first_chunk().filter(|_| headers.is_some() && frame.is_ok());
        frames.take(frame, memory);
    }
    if heads.bytes.len() > DATAGRAMS_MAX * heads.head {
        frames.take(Err(Refused::NoMemory), memory);
    }
}

impl Heads<'_> {
    fn stride(&self) -> usize {
        self.size.get().into()
    }

    /// The first bytes of the first stride, and how many. `behind` has those behind the heads.
    fn start(&self, behind: &Packet) -> ([u8; PEEK_BYTES], usize) {
        let (mut start, mut rest) = ([0; PEEK_BYTES], [0; PEEK_BYTES]);
        let head = self.bytes.len().min(self.head).min(PEEK_BYTES);
        start[..head].copy_from_slice(&self.bytes[..head]);
        let len =
            behind.copy_first(&mut rest).min(self.stride() - self.head).min(PEEK_BYTES - head);
        start[head..][..len].copy_from_slice(&rest[..len]);
        (start, head + len)
    }

    /// The bytes of the read in their order, copied. `None` without memory for that.
    fn join(&self, behind: &mut Packet, memory: &mut Memory, ledger: &Ledger) -> Option<Packet> {
        let mut whole = memory.packet()?;
        let mut copy = FrameCopy { memory, frame: None, filled: 0 };
        for head in self.bytes.chunks(self.head) {
            copy.add(head, &mut whole)?;
            let mut left = (self.stride() - self.head).min(behind.payload_len());
            while left > 0 {
                let piece = behind.pieces().next()?;
                let bytes = piece.bytes()?;
                let count = left.min(bytes.len());
                copy.add(&bytes[..count], &mut whole)?;
                behind.drop_front(count);
                left -= count;
            }
        }
        copy.finish(&mut whole)?;
        ledger.count(Site::Linearise, whole.payload_len());
        Some(whole)
    }
}

/// Copies bytes into frames, which become the pieces of a packet.
struct FrameCopy<'a> {
    memory: &'a mut Memory,
    frame: Option<Frame>,
    /// Bytes in `frame`.
    filled: usize,
}

impl FrameCopy<'_> {
    /// Appends bytes. `None` if no frame is free.
    fn add(&mut self, mut bytes: &[u8], to: &mut Packet) -> Option<()> {
        while !bytes.is_empty() {
            let frame = match &mut self.frame {
                Some(frame) => frame,
                None => self.frame.insert(self.memory.large.take()?),
            };
            let count = bytes.len().min(frame.len() - self.filled);
            frame[self.filled..][..count].copy_from_slice(&bytes[..count]);
            self.filled += count;
            bytes = &bytes[count..];
            if self.filled == frame.len() {
                self.finish(to)?;
            }
        }
        Some(())
    }

    /// Makes the frame that was filled last the next piece. `None` if a packet has no more.
    fn finish(&mut self, to: &mut Packet) -> Option<()> {
        if let Some(frame) = self.frame.take() {
            to.push_piece(frame.freeze(self.filled)).ok()?;
            self.filled = 0;
        }
        Some(())
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
