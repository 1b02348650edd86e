//! Frames offered to reads.
//!
//! The size of a read is not known beforehand. [`ReceiveBuffer`] offers one small frame followed by
//! large ones. After the read, exactly the frames that were filled become pieces, and the others
//! stay for the next read. A datagram or an ACK therefore takes one small frame and no more.
//! Devices whose reads return one packet each share the loop that fills a burst.
//!
//! Invariants: the large frames fill their array from the front without gaps; frames that are
//! offered stay in place between [`prepare`](ReceiveBuffer::prepare) and
//! [`take`](ReceiveBuffer::take). One thread, the one that owns the [`Memory`]. Limit:
//! [`LARGE_FRAMES_MAX`].

use std::io::IoSliceMut;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::pool::{LARGE_FRAME_BYTES, LARGE_FRAMES_PER_PACKET, SMALL_FRAME_BYTES};
use towpath_packet::{Burst, Frame, Input, Memory, Packet, Piece};

/// Most large frames offered to one read: two super-packets of a stream.
pub const LARGE_FRAMES_MAX: usize = 2 * LARGE_FRAMES_PER_PACKET;
/// Most frames that one read fills.
pub const FRAMES_MAX: usize = 1 + LARGE_FRAMES_MAX;
/// Most bytes offered to one read.
pub const RECEIVE_BYTES_MAX: usize = SMALL_FRAME_BYTES + LARGE_FRAMES_MAX * LARGE_FRAME_BYTES;
/// Most reads for one burst: one for each packet, and three times as many without a packet.
pub const READS_MAX: usize = 4 * BURST_MAX;

/// Outcome of an attempt to read one packet.
pub(crate) enum Read {
    /// The packet is complete.
    Packet,
    /// There is no packet, as one was dropped or a signal came; there may be more to read.
    Again,
    /// The device is empty.
    Empty,
    /// No frames are free.
    NoMemory,
}

/// Fills a burst by calls of `read`, each of which fills an empty packet: until the device is
/// empty, the burst is full, memory is short, or after [`READS_MAX`] calls.
///
/// # Errors
/// The first one of `read`. The burst has the packets read before.
pub(crate) fn receive_packets<E>(
    burst: &mut Burst,
    memory: &mut Memory,
    mut read: impl FnMut(&mut Memory, &mut Packet) -> Result<Read, E>,
) -> Result<Input, E> {
    let mut spare = None;
    for _ in 0..READS_MAX {
        if burst.is_full() {
            break;
        }
        let Some(mut packet) = spare.take().or_else(|| memory.packet()) else {
            return Ok(Input::NoMemory);
        };
        match read(memory, &mut packet)? {
            Read::Packet => burst.push(packet).expect("the burst has room"),
            Read::Again => spare = Some(packet),
            Read::Empty => break,
            Read::NoMemory => return Ok(Input::NoMemory),
        }
    }
    Ok(Input::Done)
}

/// Frames offered to reads; see the module documentation.
#[derive(Default)]
pub struct ReceiveBuffer {
    small: Option<Frame>,
    large: [Option<Frame>; LARGE_FRAMES_MAX],
    /// Bytes at the start of the small frame that are not offered.
    headroom: usize,
    /// Bytes offered to the current read.
    offered: usize,
}

impl ReceiveBuffer {
    /// A buffer without frames.
    pub fn new() -> Self {
        Self::default()
    }

    /// A buffer that leaves `headroom` bytes free in front of each read, at most
    /// [`SMALL_FRAME_BYTES`]. It offers nothing without a small frame.
    pub(crate) fn with_headroom(headroom: usize) -> Self {
        assert!(headroom < SMALL_FRAME_BYTES);
        Self { headroom, ..Self::default() }
    }

    /// Tops up the frames and offers `bytes` bytes, or as many as the frames hold. Returns that
    /// number. Fewer than `bytes` means that memory is short or `bytes` exceeds
    /// [`RECEIVE_BYTES_MAX`].
    pub fn prepare(&mut self, memory: &mut Memory, bytes: usize) -> usize {
        if self.small.is_none() {
            self.small = memory.small.take();
        }
        let mut room = match &self.small {
            Some(frame) => frame.len() - self.headroom,
            None if self.headroom > 0 => {
                self.offered = 0;
                return 0;
            }
            None => 0,
        };
        for place in &mut self.large {
            if room >= bytes {
                break;
            }
            if place.is_none() {
                *place = memory.large.take();
            }
            let Some(frame) = place else { break };
            room += frame.len();
        }
        self.offered = room.min(bytes);
        self.offered
    }

    /// Completes a read that filled the first `bytes` of the offered bytes: passes the filled
    /// frames as pieces to `give`, in order, and keeps the rest. The first piece starts with the
    /// headroom.
    ///
    /// # Panics
    /// If fewer than `bytes` bytes were offered.
    pub fn take(&mut self, bytes: usize, mut give: impl FnMut(Piece)) {
        assert!(bytes <= self.offered, "a read fills no more than it was offered");
        self.offered = 0;
        let mut left = bytes + self.headroom;
        let mut freeze = |frame: Frame| {
            let len = left.min(frame.len());
            left -= len;
            give(frame.freeze(len));
            left > 0
        };
        if bytes == 0 {
            return;
        }
        let mut more = self.small.take().is_none_or(&mut freeze);
        let mut used = 0;
        while more {
            let frame = self.large[used].take().expect("what was offered is backed by frames");
            used += 1;
            more = freeze(frame);
        }
        self.large.rotate_left(used);
    }

    /// Returns all frames to their pools, for idle times.
    pub fn clear(&mut self) {
        *self = Self { headroom: self.headroom, ..Self::default() };
    }

    /// The headroom and the first bytes of the last read.
    pub(crate) fn start_mut(&mut self) -> &mut [u8] {
        self.small.as_deref_mut().unwrap_or_default()
    }

    /// Number of frames held.
    pub fn frame_count(&self) -> usize {
        usize::from(self.small.is_some()) + self.large.iter().flatten().count()
    }

    /// Puts the offered bytes into `slices`, which are empty at first; returns the number of slices
    /// set.
    pub(crate) fn slices<'a>(&'a mut self, slices: &mut [IoSliceMut<'a>]) -> usize {
        let mut left = self.offered;
        let headroom = self.headroom;
        let small = self.small.iter_mut().map(|frame| &mut frame[headroom..]);
        let frames = small.chain(self.large.iter_mut().flatten().map(|frame| &mut frame[..]));
        let mut count = 0;
        for (slice, frame) in slices.iter_mut().zip(frames) {
            if left == 0 {
                break;
            }
            let len = left.min(frame.len());
            *slice = IoSliceMut::new(&mut frame[..len]);
            left -= len;
            count += 1;
        }
        assert_eq!(left, 0, "there is a slice for each frame offered");
        count
    }
}

impl ReceiveBuffer {
    /// Puts `heads` and the offered bytes into `slices`, which are empty at first: `head` bytes of
    /// `heads`, then `stretch` offered bytes, and so on to the end of `heads`, whose last part may
    /// be shorter. Returns the number of slices set.
    ///
    /// # Panics
    /// If `head` is zero, or there are more slices than places for them.
    pub(crate) fn slices_behind<'a>(
        &'a mut self,
        heads: &'a mut [u8],
        (head, stretch): (usize, usize),
        slices: &mut [IoSliceMut<'a>],
    ) -> usize {
        let mut left = self.offered;
        let headroom = self.headroom;
        let small = self.small.iter_mut().map(|frame| &mut frame[headroom..]);
        let mut frames = small.chain(self.large.iter_mut().flatten().map(|frame| &mut frame[..]));
        let mut frame: &mut [u8] = &mut [];
        let mut count = 0;
        let mut put = |bytes| {
            slices[count] = IoSliceMut::new(bytes);
            count += 1;
        };
        for head in heads.chunks_mut(head) {
            put(head);
            let mut wanted = stretch.min(left);
            left -= wanted;
            while wanted > 0 {
                if frame.is_empty() {
                    frame = frames.next().expect("what is offered is backed by frames");
                }
                let (bytes, rest) = frame.split_at_mut(wanted.min(frame.len()));
                wanted -= bytes.len();
                put(bytes);
                frame = rest;
            }
        }
        count
    }
}

/// `N` empty slices.
pub(crate) fn empty_slices<'a, const N: usize>() -> [IoSliceMut<'a>; N] {
    std::array::from_fn(|_| IoSliceMut::new(&mut []))
}

/// The pieces of one message, in a fixed array.
#[derive(Default, Debug)]
pub struct Pieces {
    pieces: [Option<Piece>; FRAMES_MAX],
    /// Places in use. A piece whose bytes were all dropped leaves its place empty.
    count: usize,
}

impl Pieces {
    /// Number of pieces.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// True if there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Total bytes of the pieces.
    pub fn bytes(&self) -> usize {
        self.iter().map(Piece::len).sum()
    }

    /// Iterates over the pieces in order.
    pub fn iter(&self) -> impl Iterator<Item = &Piece> {
        self.pieces[..self.count].iter().flatten()
    }

    /// Drops the first `count` bytes.
    pub(crate) fn drop_front(&mut self, count: usize) {
        let mut left = count;
        for place in &mut self.pieces[..self.count] {
            let Some(piece) = place else { continue };
            if left < piece.len() {
                piece.advance(left);
                return;
            }
            left -= piece.len();
            *place = None;
        }
    }

    /// True if the pieces of `other` fit in, too.
    pub(crate) fn has_room_for(&self, other: &Self) -> bool {
        self.count + other.count <= FRAMES_MAX
    }

    pub(crate) fn push(&mut self, piece: Piece) {
        assert!(self.count < FRAMES_MAX, "a read fills at most FRAMES_MAX frames");
        self.pieces[self.count] = Some(piece);
        self.count += 1;
    }
}

impl IntoIterator for Pieces {
    type Item = Piece;
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<Piece>, FRAMES_MAX>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;
