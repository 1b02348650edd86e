//! Capture files in pcapng format, written without copying payload.
//!
//! A [`Writer`] begins a section with one Ethernet interface and adds one enhanced packet block per
//! packet: one `writev` of block header, private headers, pieces by address and trailer. Times are
//! nanoseconds since 1970; the direction goes into the packet's flags. A checksum that a device
//! would have completed is captured unchanged, as a partial checksum.
//!
//! When the file accepts no more bytes ([`Writer::write_some`]), a later call continues where the
//! write stopped. Nothing is pinned in between, so lent memory can return. [`writable`] makes a
//! pipe non-blocking for this. [`Writer::end`] records how many packets were seen and lost.
//!
//! Invariants: each block is written whole, or the file ends inside it and nothing follows. After
//! an error, a regular file is truncated to its last whole block. One thread.
//!
//! Limit: [`SNAP_BYTES_MAX`]. Specification: draft-ietf-opsawg-pcapng.

use crate::gather::Gather;
use crate::outside;
use crate::sys;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use towpath_packet::Packet;
use towpath_packet::packet::PIECES_MAX;

/// Most bytes captured of one packet: more than the largest super-packet.
pub const SNAP_BYTES_MAX: u32 = 256 * 1024;

/// Block header, private headers, pieces, trailer.
const PARTS: usize = 3 + PIECES_MAX;
/// Type, total length, interface, timestamp high and low, captured and original length.
const PACKET_HEADER_BYTES: usize = 7 * 4;
/// Padding up to 3, `epb_flags` 8, end of options 4, total length 4.
const TRAILER_BYTES_MAX: usize = 3 + 8 + 4 + 4;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const LINK_ETHERNET: u16 = 1;
const OPTION_EPB_FLAGS: u16 = 2;
const OPTION_IF_NAME: u16 = 2;
const OPTION_IF_TSRESOL: u16 = 9;
const OPTION_ISB_IFRECV: u16 = 4;
const OPTION_ISB_IFDROP: u16 = 5;
const OPTION_ISB_FILTERACCEPT: u16 = 6;
const OPTION_ISB_USRDELIV: u16 = 8;
/// Power of ten of the time unit.
const NANOSECONDS: u8 = 9;

/// Direction of a packet, seen from the captured device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received by towpath.
    Inbound,
    /// Sent by towpath.
    Outbound,
}

/// A packet as it was captured.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The packet, or the part of it that was kept.
    pub packet: &'a Packet,
    /// Original length of the packet in bytes.
    pub bytes: usize,
    /// Direction of the packet.
    pub direction: Direction,
    /// Capture time: nanoseconds since the beginning of 1970.
    pub nanoseconds: u64,
}

/// Counters of a capture, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets that passed the capture point.
    pub seen: u64,
    /// Seen packets that the filter accepted.
    pub accepted: u64,
    /// Accepted packets that were lost.
    pub dropped: u64,
}

/// Returns a regular file unchanged. Opens a pipe or character device again in non-blocking mode.
///
/// # Errors
/// `EINVAL` for any other kind of file; errors of opening it through `/proc`.
pub fn writable(file: OwnedFd) -> io::Result<OwnedFd> {
    let status = rustix::fs::fstat(&file)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::Fifo | FileType::CharacterDevice => {
            Ok(outside::reopen(file.as_fd()).unwrap_or_else(|| reopen(&file))?)
        }
        _ => Err(Errno::INVAL.into()),
    }
}

/// Opens a pipe or character device again, for non-blocking writes.
pub(crate) fn reopen(file: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags, Mode::empty())
}

/// Writes a capture to a file, a pipe or another descriptor that accepts bytes.
#[derive(Debug)]
pub struct Writer<W: AsFd> {
    to: W,
    snap_bytes: u32,
    /// The part of the first two blocks that the file has not accepted yet.
    preamble: Vec<u8>,
    /// Bytes of the current block that are written, if the file stopped inside it.
    written: usize,
    packets: u64,
}

impl<W: AsFd> Writer<W> {
    /// Begins a capture of the interface `name`. Keeps the first `snap_bytes` of each packet, or
    /// all with `None`. If the file accepts no bytes yet, the first packet writes the first blocks,
    /// too.
    ///
    /// # Errors
    /// Those of writev(2).
    pub fn new(to: W, name: &str, snap_bytes: Option<u32>) -> io::Result<Self> {
        let snap_bytes = snap_bytes.unwrap_or(SNAP_BYTES_MAX).min(SNAP_BYTES_MAX);
        let preamble = preamble(name, snap_bytes);
        let mut writer = Self { to, snap_bytes, preamble, written: 0, packets: 0 };
        writer.write_preamble()?;
        Ok(writer)
    }

    /// Writes the rest of the first blocks; true if they are complete afterwards.
    fn write_preamble(&mut self) -> io::Result<bool> {
        if self.preamble.is_empty() {
            return Ok(true);
        }
        let mut preamble = std::mem::take(&mut self.preamble);
        let (result, left) = {
            let mut gather: Gather<'_, 1> = Gather::new();
            gather.push_bytes(&preamble);
            (write_whole(&self.to, &mut gather), gather.bytes())
        };
        self.preamble = preamble.split_off(preamble.len() - left);
        match result {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes a packet, or continues the one that was begun. Returns false if the file accepts no
    /// more now; the caller then calls again with the same packet.
    ///
    /// # Errors
    /// Those of writev(2); the file must not be used any more.
    ///
    /// # Panics
    /// If the packet is shorter than when it was begun.
    pub fn write_some(&mut self, seen: &Seen<'_>) -> io::Result<bool> {
        let packet = seen.packet;
        let captured = packet.len().min(self.snap_bytes as usize);
        let (trailer, trailer_bytes) = packet_trailer(captured, seen.direction);
        let total = (PACKET_HEADER_BYTES + captured + trailer_bytes) as u32;
        let header = packet_header(total, seen.nanoseconds, captured as u32, seen.bytes as u32);

        let mut gather: Gather<'_, PARTS> = Gather::new();
        let mut fits = gather.push_bytes(&header);
        let headers = packet.wire_headers();
        let headers = &headers[..headers.len().min(captured)];
        fits &= gather.push_bytes(headers);
        let mut left = captured - headers.len();
        for piece in packet.pieces() {
            fits &= gather.push_piece_range(piece, 0..left.min(piece.len()));
            left -= left.min(piece.len());
        }
        fits &= gather.push_bytes(&trailer[..trailer_bytes]);
        assert!(fits && gather.bytes() == total as usize, "a block has its announced length");

        let is_whole = self.go_on(&mut gather)?;
        self.packets += u64::from(is_whole);
        Ok(is_whole)
    }

    /// Writes the counters as the last block. False as for [`Writer::write_some`].
    ///
    /// # Errors
    /// Those of writev(2).
    pub fn end(&mut self, statistics: &Statistics, nanoseconds: u64) -> io::Result<bool> {
        let mut body = Vec::new();
        for word in [0, (nanoseconds >> 32) as u32, nanoseconds as u32] {
            body.extend(word.to_ne_bytes());
        }
        for (option, count) in [
            (OPTION_ISB_IFRECV, statistics.seen),
            (OPTION_ISB_IFDROP, statistics.dropped),
            (OPTION_ISB_FILTERACCEPT, statistics.accepted),
            (OPTION_ISB_USRDELIV, self.packets),
        ] {
            push_option(&mut body, option, &count.to_ne_bytes());
        }
        body.extend([0; 4]);
        let bytes = block(INTERFACE_STATISTICS, &body);
        let mut gather: Gather<'_, 1> = Gather::new();
        gather.push_bytes(&bytes);
        self.go_on(&mut gather)
    }

    /// True if the file has accepted the first blocks.
    pub fn has_begun(&self) -> bool {
        self.preamble.is_empty()
    }

    /// True if a packet's block was begun and is not complete.
    pub fn is_within_block(&self) -> bool {
        self.written > 0
    }

    /// Continues to write a block where it stopped; true if it is complete afterwards.
    fn go_on<const N: usize>(&mut self, block: &mut Gather<'_, N>) -> io::Result<bool> {
        if !self.write_preamble()? {
            return Ok(false);
        }
        let total = block.bytes();
        block.advance(self.written);
        match write_whole(&self.to, block) {
            Ok(()) => {
                self.written = 0;
                Ok(true)
            }
            Err(Errno::AGAIN) => {
                self.written = total - block.bytes();
                Ok(false)
            }
            Err(errno) => {
                self.written = total - block.bytes();
                self.cut();
                Err(errno.into())
            }
        }
    }

    /// Truncates a regular file before an incomplete block, if nothing follows that block.
    fn cut(&mut self) {
        let is_regular = |mode| FileType::from_raw_mode(mode) == FileType::RegularFile;
        // If a step fails, as for a pipe, the file stays unchanged.
        let (Ok(status), Ok(end)) = (rustix::fs::fstat(&self.to), rustix::fs::tell(&self.to))
        else {
            return;
        };
        let Some(whole) = end.checked_sub(self.written as u64) else { return };
        if is_regular(status.st_mode)
            && status.st_size as u64 == end
            && rustix::fs::ftruncate(&self.to, whole).is_ok()
        {
            let _ = rustix::fs::seek(&self.to, SeekFrom::Start(whole));
            self.written = 0;
        }
    }

    /// Number of packets written.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the file.
    pub fn file(&self) -> &W {
        &self.to
    }

    /// Ends the capture and returns the file.
    pub fn into_inner(self) -> W {
        self.to
    }
}

/// Writes all bytes, in as many calls as needed; advances `gather` past the bytes written.
fn write_whole<const N: usize>(to: &impl AsFd, gather: &mut Gather<'_, N>) -> Result<(), Errno> {
    while gather.bytes() > 0 {
        match sys::write_gather(to.as_fd(), gather) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => gather.advance(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Section header block and interface description block.
fn preamble(name: &str, snap_bytes: u32) -> Vec<u8> {
    let mut section = Vec::new();
    section.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
    section.extend(1u16.to_ne_bytes());
    section.extend(0u16.to_ne_bytes());
    // The length of the section is not known.
    section.extend(u64::MAX.to_ne_bytes());

    let mut interface = Vec::new();
    interface.extend(LINK_ETHERNET.to_ne_bytes());
    interface.extend(0u16.to_ne_bytes());
    interface.extend(snap_bytes.to_ne_bytes());
    push_option(&mut interface, OPTION_IF_NAME, &name.as_bytes()[..name.len().min(255)]);
    push_option(&mut interface, OPTION_IF_TSRESOL, &[NANOSECONDS]);
    interface.extend([0; 4]);

    let mut bytes = block(SECTION_HEADER, &section);
    bytes.extend(block(INTERFACE_DESCRIPTION, &interface));
    bytes
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let total = (body.len() + 12) as u32;
    let mut bytes = Vec::with_capacity(total as usize);
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(total.to_ne_bytes());
    bytes.extend(body);
    bytes.extend(total.to_ne_bytes());
    bytes
}

fn push_option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_ne_bytes());
    to.extend((value.len() as u16).to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn packet_header(
    total: u32,
    nanoseconds: u64,
    captured: u32,
    original: u32,
) -> [u8; PACKET_HEADER_BYTES] {
    let (high, low) = ((nanoseconds >> 32) as u32, nanoseconds as u32);
    let words = [ENHANCED_PACKET, total, 0, high, low, captured, original];
    let mut bytes = [0; PACKET_HEADER_BYTES];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Padding, options and total length that follow `captured` bytes.
fn packet_trailer(captured: usize, direction: Direction) -> ([u8; TRAILER_BYTES_MAX], usize) {
    let padding = captured.next_multiple_of(4) - captured;
    let len = padding + 16;
    let flags: u32 = match direction {
        Direction::Inbound => 1,
        Direction::Outbound => 2,
    };
    let total = (PACKET_HEADER_BYTES + captured + len) as u32;
    let mut bytes = [0; TRAILER_BYTES_MAX];
    let at = padding;
    bytes[at..at + 2].copy_from_slice(&OPTION_EPB_FLAGS.to_ne_bytes());
    bytes[at + 2..at + 4].copy_from_slice(&4u16.to_ne_bytes());
    bytes[at + 4..at + 8].copy_from_slice(&flags.to_ne_bytes());
    bytes[at + 12..at + 16].copy_from_slice(&total.to_ne_bytes());
    (bytes, len)
}

#[cfg(test)]
mod tests;
