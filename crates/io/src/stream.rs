//! Stream sockets that carry Ethernet frames: QEMU's `-netdev stream` and libkrun's `unixstream`.
//!
//! # Theory of operation
//!
//! A four-byte big-endian length precedes each frame. The format has no offload fields: each frame
//! is one segment with complete checksums ([`Caps::plain`]).
//!
//! A read fills pool frames and may return many Ethernet frames. They are sliced out of the read
//! bytes as pieces, so the Ethernet frames of one read share its pool frames and no byte is copied.
//! A frame that is cut off at the end of a read continues in the next. Only if a frame arrives in
//! more than [`UNREAD_PIECES_MAX`] pieces are its small pieces copied together, counted as
//! [`Site::Squeeze`], because a packet holds a bounded number of pieces.
//!
//! A write passes the addresses of many packets. If the socket accepts only part of a packet, the
//! rest stays here and is written first next time; otherwise the stream would lose its framing.
//!
//! Invariants: each packet taken from a burst is transmitted whole, unless the connection ends; a
//! frame is received whole or not at all. No call blocks or allocates. One thread at a time.
//!
//! Register the file level-triggered, and wait for room to write while [`Stream::has_unsent`].
//!
//! Limits: [`FRAME_BYTES_MAX`], [`UNREAD_PIECES_MAX`], [`READS_MAX`]. Specification: the
//! description of `-netdev stream` in QEMU's manual.

mod port;

pub use port::{StreamPort, StreamPortError};

use crate::gather::Gather;
use crate::receive::{FRAMES_MAX, RECEIVE_BYTES_MAX, ReceiveBuffer, empty_slices};
use crate::sys;
use crate::tap::{FRAME_BYTES_MAX, Traffic};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::packet::PIECES_MAX;
use towpath_packet::pool::LARGE_FRAME_BYTES;
use towpath_packet::{Burst, Caps, Context, Device, Input, Ledger, Memory, Packet, Piece, Site};

/// Most pieces of an incomplete frame; above it, small pieces are copied together before the next
/// read. Together with the pieces of that read they fit into a packet.
pub const UNREAD_PIECES_MAX: usize = PIECES_MAX - FRAMES_MAX;
/// Most reads per [`Device::receive`]: enough for a burst whose frames each arrive in two parts.
pub const READS_MAX: usize = 2 * BURST_MAX;

/// Bytes of the length field.
const LENGTH_BYTES: usize = 4;
/// Bytes of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Packets of one write.
const WRITE_PACKETS_MAX: usize = 16;
/// Parts of one write: two packets with the most pieces possible, or more packets with fewer.
const WRITE_PARTS: usize = 2 * PACKET_PARTS_MAX;
/// Parts of one packet: length, private headers, pieces.
const PACKET_PARTS_MAX: usize = 2 + PIECES_MAX;
// A squeezed frame consists of pieces of at least half a large frame, and one shorter piece.
const _: () =
    assert!((FRAME_BYTES_MAX + LENGTH_BYTES).div_ceil(LARGE_FRAME_BYTES / 2) <= UNREAD_PIECES_MAX);
/// Most pieces that wait to become packets: those of an incomplete frame and of one read.
const UNREAD_MAX: usize = UNREAD_PIECES_MAX + FRAMES_MAX;

/// Why a connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The peer has closed it.
    Closed,
    /// A length field exceeds the longest frame, so the peer does not speak this protocol.
    FrameTooLong(u32),
    /// Any other error.
    Os(Errno),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer closed the connection"),
            Self::FrameTooLong(value) => write!(
                f,
                "the peer announced a frame of {value} bytes, which is too long; it does not send \
                 a stream of frames"
            ),
            Self::Os(error) => write!(f, "the connection failed: {error}"),
        }
    }
}

impl std::error::Error for StreamError {}

/// Counters of a connection from our side: received means sent by the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounters {
    /// From the guest. Bytes exclude the length fields.
    pub received: Traffic,
    /// To the guest, whole packets only. Bytes exclude the length fields.
    pub transmitted: Traffic,
    /// Frames dropped because they were shorter than an Ethernet header.
    pub receive_short: u64,
    /// Times that receiving paused because memory was short; nothing was dropped.
    pub receive_paused: u64,
    /// Times that the socket was full; nothing was dropped.
    pub transmit_full: u64,
    /// Packets to the guest that were dropped because their memory has disappeared.
    pub transmit_cut: u64,
}

impl StreamCounters {
    /// The sum of two sets of counters.
    fn plus(&self, other: &Self) -> Self {
        Self {
            received: self.received.plus(&other.received),
            transmitted: self.transmitted.plus(&other.transmitted),
            receive_short: self.receive_short + other.receive_short,
            receive_paused: self.receive_paused + other.receive_paused,
            transmit_full: self.transmit_full + other.transmit_full,
            transmit_cut: self.transmit_cut + other.transmit_cut,
        }
    }
}

/// A connection; see the module documentation.
pub struct Stream {
    socket: OwnedFd,
    mtu: u16,
    buffer: ReceiveBuffer,
    /// Pieces read that are not in packets yet; they begin with a length field.
    unread: VecDeque<Piece>,
    unread_bytes: usize,
    /// A packet of which the socket has accepted the first `sent` bytes, including its length
    /// field.
    unsent: Option<Packet>,
    sent: usize,
    counters: StreamCounters,
}

impl Stream {
    /// Takes over a connected, non-blocking stream socket. `mtu` is the largest IP packet that is
    /// sent to the peer.
    pub fn new(socket: OwnedFd, mtu: u16) -> Self {
        Self {
            socket,
            mtu,
            buffer: ReceiveBuffer::new(),
            unread: VecDeque::with_capacity(UNREAD_MAX),
            unread_bytes: 0,
            unsent: None,
            sent: 0,
            counters: StreamCounters::default(),
        }
    }

    /// Sets the largest IP packet that is sent to the peer.
    pub fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
    }

    /// True while the rest of a packet waits for room in the socket.
    pub fn has_unsent(&self) -> bool {
        self.unsent.is_some()
    }

    /// Counters since the connection was taken over.
    pub fn counters(&self) -> &StreamCounters {
        &self.counters
    }

    /// Makes packets from the bytes read.
    fn cut(&mut self, memory: &mut Memory, burst: &mut Burst) -> Result<Segmentation, StreamError> {
        while !burst.is_full() {
            let Some(length) = self.next_length()? else { return Ok(Segmentation::All) };
            if self.unread_bytes < LENGTH_BYTES + length {
                return Ok(Segmentation::All);
            }
            if length < ETHERNET_BYTES {
                self.take_unread(LENGTH_BYTES + length, |_| {});
                self.counters.receive_short += 1;
                continue;
            }
            let Some(mut packet) = memory.packet() else { return Ok(Segmentation::NoMemory) };
            self.take_unread(LENGTH_BYTES, |_| {});
            self.take_unread(length, |piece| {
                packet.push_piece(piece).expect("an incomplete frame has few pieces");
            });
            self.counters.received.count(length, packet.offload());
            burst.push(packet).expect("the burst has room");
        }
        Ok(Segmentation::Full)
    }

    /// Returns the length of the next frame, if its length field was read.
    fn next_length(&self) -> Result<Option<usize>, StreamError> {
        if self.unread_bytes < LENGTH_BYTES {
            return Ok(None);
        }
        let pieces = self.unread.iter();
        let bytes = pieces.flat_map(|piece| piece.bytes().expect("pool frames are private"));
        let length =
            bytes.take(LENGTH_BYTES).fold(0, |length, &byte| length << 8 | u32::from(byte));
        if length as usize > FRAME_BYTES_MAX {
            return Err(StreamError::FrameTooLong(length));
        }
        Ok(Some(length as usize))
    }

    /// Passes the first `count` unread bytes to `give`.
    fn take_unread(&mut self, count: usize, mut give: impl FnMut(Piece)) {
        self.unread_bytes -= count;
        let mut left = count;
        while left > 0 {
            let first = self.unread.front_mut().expect("as many bytes were read");
            if left < first.len() {
                give(first.slice(0, left));
                first.advance(left);
                return;
            }
            left -= first.len();
            give(self.unread.pop_front().expect("it is not empty"));
        }
    }

    /// Reads once.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<Read, StreamError> {
        if self.unread.len() > UNREAD_PIECES_MAX && !self.squeeze(cx.memory, cx.ledger) {
            return Ok(Read::NoMemory);
        }
        let offered = self.buffer.prepare(cx.memory, RECEIVE_BYTES_MAX);
        if offered == 0 {
            return Ok(Read::NoMemory);
        }
        self.counters.received.calls += 1;
        let result = {
            let mut slices = empty_slices::<FRAMES_MAX>();
            let used = self.buffer.slices(&mut slices);
            rustix::io::readv(&self.socket, &mut slices[..used])
        };
        match result {
            Ok(0) => Err(StreamError::Closed),
            Ok(count) => {
                let Self { buffer, unread, .. } = self;
                buffer.take(count, |piece| unread.push_back(piece));
                self.unread_bytes += count;
                Ok(if count < offered { Read::Last } else { Read::More })
            }
            Err(Errno::AGAIN) => Ok(Read::Nothing),
            Err(Errno::INTR) => Ok(Read::More),
            Err(errno) => Err(from_errno(errno)),
        }
    }

    /// Copies the small pieces of an incomplete frame together. Returns false, without a change, if
    /// there is no memory for it. Pieces of at least half a large frame stay as they are, so that
    /// each byte is copied only a few times and few pieces remain.
    fn squeeze(&mut self, memory: &mut Memory, ledger: &Ledger) -> bool {
        let large = self.unread.iter().take_while(|piece| piece.len() >= LARGE_FRAME_BYTES / 2);
        let mut left = self.unread.len() - large.count();
        while left > 0 {
            // Frames held for reads count, too: otherwise a frame in small parts would wait for
            // itself.
            let Some(mut frame) = memory.large.take().or_else(|| {
                self.buffer.clear();
                memory.large.take()
            }) else {
                return false;
            };
            let mut filled = 0;
            let mut kept = None;
            // The pieces to copy are the last `left` of the queue; each one removed makes room.
            let from = self.unread.len() - left;
            while left > 0 && kept.is_none() {
                let mut piece = self.unread.remove(from).expect("a piece to copy");
                left -= 1;
                let count = ledger.copy(Site::Squeeze, &piece, &mut frame[filled..]);
                filled += count;
                if count < piece.len() {
                    piece.advance(count);
                    kept = Some(piece);
                }
            }
            if let Some(piece) = kept {
                self.unread.insert(from, piece);
                left += 1;
            }
            self.unread.insert(from, frame.freeze(filled));
        }
        true
    }

    /// Writes the rest of a packet and the packets in `burst`, at most `most`, in one call.
    fn write(&self, burst: &Burst, most: usize) -> Result<usize, Errno> {
        let mut lengths = [[0; LENGTH_BYTES]; WRITE_PACKETS_MAX];
        let mut gather: Gather<'_, WRITE_PARTS> = Gather::new();
        let mut parts_left = WRITE_PARTS;
        for (packet, length) in self.unsent.iter().chain(burst.iter()).take(most).zip(&mut lengths)
        {
            let parts = 2 + packet.piece_count();
            if parts > parts_left {
                break;
            }
            parts_left -= parts;
            *length = (packet.len() as u32).to_be_bytes();
            let fits = gather.push_bytes(length) && gather.push_packet(packet);
            assert!(fits, "the parts were counted");
        }
        gather.advance(self.sent);
        sys::send_gather(self.socket.as_fd(), &gather, &[], &[], crate::socket::SEND_FLAGS)
    }

    /// Accounts for `count` bytes that the socket accepted: drops the packets that were sent whole.
    fn written(&mut self, count: usize, burst: &mut Burst) {
        let mut taken = self.sent + count;
        self.sent = 0;
        while let Some(packet) = self.unsent.take().or_else(|| burst.pop()) {
            let bytes = LENGTH_BYTES + packet.len();
            if taken < bytes {
                self.unsent = Some(packet);
                self.sent = taken;
                return;
            }
            taken -= bytes;
            self.counters.transmitted.count(packet.len(), packet.offload());
            if taken == 0 {
                return;
            }
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Device for Stream {
    type Error = StreamError;

    fn caps(&self) -> Caps {
        Caps::plain(self.mtu)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, StreamError> {
        let mut last = false;
        for _ in 0..READS_MAX {
            let cut = self.cut(cx.memory, burst)?;
            let no_memory = match cut {
                Segmentation::Full => break,
                Segmentation::NoMemory => true,
                Segmentation::All if last => break,
                Segmentation::All => match self.read(cx)? {
                    Read::Nothing => break,
                    Read::NoMemory => true,
                    Read::Last => {
                        last = true;
                        false
                    }
                    Read::More => false,
                },
            };
            if no_memory {
                self.counters.receive_paused += 1;
                return Ok(Input::NoMemory);
            }
        }
        Ok(Input::Done)
    }

    fn transmit(&mut self, burst: &mut Burst, _: &mut Context<'_>) -> Result<(), StreamError> {
        let mut most = WRITE_PACKETS_MAX;
        while self.unsent.is_some() || !burst.is_empty() {
            self.counters.transmitted.calls += 1;
            match self.write(burst, most) {
                Ok(count) => {
                    self.written(count, burst);
                    most = WRITE_PACKETS_MAX;
                }
                // A guest truncated the file behind a packet's memory, and nothing was sent: send
                // one packet at a time.
                Err(Errno::FAULT) if most > 1 => most = 1,
                Err(Errno::FAULT) if self.unsent.is_none() => {
                    drop(burst.pop());
                    self.counters.transmit_cut += 1;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    self.counters.transmit_full += 1;
                    return Ok(());
                }
                Err(errno) => return Err(from_errno(errno)),
            }
        }
        Ok(())
    }

    fn rest(&mut self) {
        self.buffer.clear();
    }
}

/// How far making packets came.
enum Segmentation {
    /// All complete frames are in packets.
    All,
    /// The burst is full.
    Full,
    /// No packet handle is free.
    NoMemory,
}

/// Outcome of one read.
enum Read {
    /// There may be more to read.
    More,
    /// The socket is empty now.
    Last,
    Nothing,
    NoMemory,
}

fn from_errno(errno: Errno) -> StreamError {
    match errno {
        Errno::PIPE | Errno::CONNRESET => StreamError::Closed,
        errno => StreamError::Os(errno),
    }
}

#[cfg(test)]
mod tests;
