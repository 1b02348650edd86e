//! Receives without a copy: a reader is handed received pieces as they are in memory.
//!
//! # Theory of operation
//!
//! Pieces are handed out as [`ReceivedPiece`]. They count against their reader until it drops them,
//! on any thread. While it keeps them, they take room of the socket's receive buffer: the TCP
//! window stays smaller, and fewer datagrams fit. When a reader that keeps much returns a quarter
//! of it, the peer gets a window update, and a socket with unread data is woken.
//!
//! A piece keeps its whole loan, so short pieces of large frames are packed into a small frame if
//! that keeps less memory ([`Site::Pack`]). Memory that others may write is handed out like any
//! other, as a piece is not a reference to it. A caller that needs stable bytes asks for private
//! pieces and gets copies.
//!
//! Bounds: [`READERS_MAX`] sockets that read without a copy. Each may keep what it may receive. All
//! together may keep half of the frames of either size. Beyond that a call fails with
//! [`Error::NoBuffers`] and nothing is lost: the data can be read with a copy, or handed out later.

use super::datagram::receive_buffer;
use super::stream::ReceiveFlags;
use super::{Error, Readiness, ReceivedDatagram, Socket, SocketId, Sockets};
use crate::stack::Context;
use crate::time::Instant;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Waker;
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use towpath_packet::{Ledger, Memory, Piece, Reader, Readers, ReceivedPiece, Site};

/// Maximum number of sockets of one stack that read without a copy; 16 bytes each, allocated with
/// the first.
pub const READERS_MAX: usize = 16_384;
/// Longest piece that is packed with others.
const PACKED_MAX: usize = 512;

/// Limits of a receive without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMost {
    /// Maximum bytes of a stream.
    pub bytes: usize,
    /// Maximum number of pieces.
    pub pieces: usize,
    /// Pieces must be private: foreign memory is copied.
    pub private: bool,
}

/// The readers of a stack.
#[derive(Default)]
pub(super) struct Reading {
    /// Made with the first reader.
    readers: Option<Readers>,
    /// Socket of each reader, by the reader's number.
    sockets: Vec<SocketId>,
    /// Woken when a reader has returned enough.
    waker: Option<Waker>,
    /// Readers that have returned enough, while they are processed.
    reported: Vec<u32>,
}

impl Reading {
    /// Bytes that all readers keep.
    fn held(&self) -> u64 {
        self.readers.as_ref().map_or(0, Readers::held)
    }

    fn open(&mut self, id: SocketId) -> Result<Arc<Reader>, Error> {
        let waker = self.waker.clone();
        let readers = self.readers.get_or_insert_with(|| Readers::new(READERS_MAX, waker));
        let reader = readers.open().ok_or(Error::NoBuffers)?;
        let number = reader.number() as usize;
        if number == self.sockets.len() {
            self.sockets.push(id);
        }
        self.sockets[number] = id;
        Ok(reader)
    }

    /// Closes a reader whose socket is closed.
    pub(super) fn close(&mut self, reader: &Reader) {
        if let Some(readers) = &mut self.readers {
            readers.close(reader);
        }
    }

    /// Requests a wake-up when the reader has returned a quarter of what it keeps.
    fn wait(&mut self, reader: &Reader) {
        let held = reader.held();
        if let Some(readers) = &mut self.readers {
            readers.wait(reader, held - held / 4);
        }
    }
}

impl Socket {
    /// Bytes that the socket's reader keeps.
    pub(super) fn handed_out(&self) -> usize {
        self.reader.as_ref().map_or(0, |reader| reader.held() as usize)
    }
}

impl Sockets {
    /// Sets the waker for returns: it is woken when a reader has returned enough memory that
    /// [`Sockets::output`] has work. Must be called before the first receive without a copy.
    pub fn set_return_waker(&mut self, waker: Waker) {
        self.reading.waker = Some(waker);
    }

    /// Bytes that were handed to readers and that they still keep.
    pub fn handed_out(&self) -> u64 {
        self.reading.held()
    }

    /// Hands out received bytes without a copy, appended to `out`; returns how many. Zero means the
    /// end of the stream.
    ///
    /// # Errors
    /// The errors of [`Sockets::receive`]; [`Error::NoBuffers`] if readers keep too much already.
    pub fn receive_lent(
        &mut self,
        id: SocketId,
        most: &ReadMost,
        out: &mut Vec<ReceivedPiece>,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let bytes = if most.pieces == 0 { 0 } else { most.bytes };
        let next = self.next_read(id, bytes, ReceiveFlags::default(), cx.now)?;
        if next.is_empty() {
            return self.nothing_next(id, bytes, ReceiveFlags::default());
        }
        let (handle, reader) = (self.handle(id)?, self.reader(id)?);
        let wanted = next.len().min(bytes);
        let Context { memory, ledger, now } = cx;
        let Self { stack, reading, .. } = self;
        let handed = stack.with_tcp(handle, *now, |connection| {
            connection.set_reader(&reader);
            let own_max = connection.receive_memory_max();
            let mut handing = Handing::new(memory, ledger, &reader, reading, *most, own_max, out);
            let mut done = 0;
            while done < wanted {
                match handing.next(connection.received(), 0, wanted - done) {
                    Ok(len) => {
                        connection.consume(len);
                        done += len;
                    }
                    Err(error) if done == 0 => return (Err(error), own_max),
                    Err(_) => break,
                }
            }
            (Ok(done), own_max)
        });
        let (handed, own_max) = handed.ok_or(Error::NotConnected)?;
        ledger.carry(handed.unwrap_or(0));
        if handed.is_err() || reader.held() as usize > own_max / 4 {
            self.reading.wait(&reader);
        }
        handed
    }

    /// Hands out a whole datagram without a copy, appended to `out`.
    ///
    /// # Errors
    /// The errors of [`Sockets::receive_datagram`]. [`Error::MessageSize`] if it has more pieces
    /// than allowed, and [`Error::NoBuffers`] if readers keep too much already: the datagram then
    /// stays queued. [`Error::NotSupported`] if it has headers that are in no piece
    /// ([`Sockets::receive_frame_lent`] takes these): on raw sockets of IPv4, and on packet sockets
    /// for frames read whole and for sent frames.
    pub fn receive_datagram_lent(
        &mut self,
        id: SocketId,
        most: &ReadMost,
        out: &mut Vec<ReceivedPiece>,
        cx: &mut Context<'_>,
    ) -> Result<ReceivedDatagram, Error> {
        self.datagram_error(id)?;
        if !self.next_datagram(id)?.0.is_empty() {
            return Err(Error::NotSupported);
        }
        self.hand_out(id, most, out, cx)
    }

    /// Hands out a whole datagram or frame. Headers that are not in a piece are appended to
    /// `headers`; they are at most [`HEADER_BYTES`](towpath_packet::packet::HEADER_BYTES).
    ///
    /// # Errors
    /// The errors of [`Sockets::receive_datagram_lent`] except [`Error::NotSupported`].
    pub fn receive_frame_lent(
        &mut self,
        id: SocketId,
        most: &ReadMost,
        (headers, out): (&mut Vec<u8>, &mut Vec<ReceivedPiece>),
        cx: &mut Context<'_>,
    ) -> Result<ReceivedDatagram, Error> {
        self.datagram_error(id)?;
        let begun = headers.len();
        headers.extend_from_slice(self.next_datagram(id)?.0);
        let handed = self.hand_out(id, most, out, cx);
        if handed.is_err() {
            headers.truncate(begun);
        }
        handed
    }

    /// Hands out the pieces of the next datagram.
    fn hand_out(
        &mut self,
        id: SocketId,
        most: &ReadMost,
        out: &mut Vec<ReceivedPiece>,
        cx: &mut Context<'_>,
    ) -> Result<ReceivedDatagram, Error> {
        let reader = self.reader(id)?;
        let (headers, packet, received) = self.next_datagram(id)?;
        let len = received.len - headers.len();
        let own_max = match reader.held() {
            // An idle reader may take one datagram of any size, as the receive buffer does.
            0 => usize::MAX,
            _ => receive_buffer(self.socket(id)?),
        };
        let begun = out.len();
        let Context { memory, ledger, .. } = cx;
        let mut handing = Handing::new(memory, ledger, &reader, &self.reading, *most, own_max, out);
        let mut done = 0;
        while done < len {
            match handing.next(packet.pieces(), done, len - done) {
                Ok(count) => done += count,
                Err(error) => {
                    out.truncate(begun);
                    if error == Error::NoBuffers {
                        self.reading.wait(&reader);
                    }
                    return Err(error);
                }
            }
        }
        self.consume_datagram(id)?;
        ledger.carry(received.len);
        Ok(received)
    }

    /// Returns the socket's reader, and makes it if needed.
    fn reader(&mut self, id: SocketId) -> Result<Arc<Reader>, Error> {
        if let Some(reader) = &self.socket(id)?.reader {
            return Ok(reader.clone());
        }
        let reader = self.reading.open(id)?;
        self.socket_mut(id)?.reader = Some(reader.clone());
        Ok(reader)
    }

    /// Processes the readers that have returned enough.
    pub(super) fn drain_readers(&mut self, now: Instant) {
        let Reading { readers, reported, .. } = &mut self.reading;
        let Some(readers) = readers.as_mut().filter(|readers| readers.has_reported()) else {
            return;
        };
        let mut reported = core::mem::take(reported);
        readers.take(|number| reported.push(number));
        for number in reported.drain(..) {
            let id = self.reading.sockets[number as usize];
            let own_max = self.with_connection(id, now, |connection| {
                connection.reader_gave_back();
                connection.receive_memory_max()
            });
            if let (Some(own_max), Ok(socket)) = (own_max, self.socket(id))
                && let Some(reader) = socket.reader.clone()
                && reader.held() as usize > own_max / 4
            {
                self.reading.wait(&reader);
            }
            if self.available(id).is_ok_and(|bytes| bytes > 0) {
                self.wake(id, Readiness::READABLE);
            }
        }
        self.reading.reported = reported;
    }
}

/// State of one receive without a copy.
struct Handing<'a> {
    memory: &'a mut Memory,
    ledger: &'a Ledger,
    reader: &'a Arc<Reader>,
    reading: &'a Reading,
    most: ReadMost,
    /// Bytes that this reader may keep.
    own_max: usize,
    /// Bytes that all readers may keep.
    all_max: usize,
    out: &'a mut Vec<ReceivedPiece>,
}

impl<'a> Handing<'a> {
    fn new(
        memory: &'a mut Memory,
        ledger: &'a Ledger,
        reader: &'a Arc<Reader>,
        reading: &'a Reading,
        most: ReadMost,
        own_max: usize,
        out: &'a mut Vec<ReceivedPiece>,
    ) -> Self {
        let small = memory.small.capacity() * SMALL_FRAME_BYTES;
        let all_max = small.min(memory.large.capacity() * LARGE_FRAME_BYTES) / 2;
        Self { memory, ledger, reader, reading, most, own_max, all_max, out }
    }

    /// Hands out some of what follows the first `skip` bytes of `pieces`, at most `left` bytes;
    /// returns how many.
    fn next<'p>(
        &mut self,
        pieces: impl Iterator<Item = &'p Piece> + Clone,
        skip: usize,
        left: usize,
    ) -> Result<usize, Error> {
        let Some(room) = self.most.pieces.checked_sub(1) else {
            return Err(Error::MessageSize);
        };
        let rest = behind(pieces, skip);
        let (first, from) = rest.clone().next().ok_or(Error::WouldBlock)?;
        let packed = packed_len(rest.clone(), left);
        let piece = if packed > 0 && self.has_room(SMALL_FRAME_BYTES) {
            self.copy(rest.clone(), packed, Site::Pack)
        } else {
            None
        };
        let piece = match piece {
            Some(piece) => piece,
            None if self.most.private && first.is_foreign() => {
                let len = (first.len() - from).min(left);
                if !self.has_room(frame_bytes(len)) {
                    return Err(Error::NoBuffers);
                }
                self.copy(rest, len, Site::SocketReceive).ok_or(Error::NoBuffers)?
            }
            None => {
                let piece = first.slice(from, (first.len() - from).min(left));
                if !self.has_room(Reader::charge(&piece)) {
                    return Err(Error::NoBuffers);
                }
                piece
            }
        };
        let len = piece.len();
        self.most.pieces = room;
        self.out.push(self.reader.hold(piece));
        Ok(len)
    }

    /// True if the reader may keep `more` bytes. A reader that keeps nothing may exceed its own
    /// limit.
    fn has_room(&self, more: usize) -> bool {
        let own = self.reader.held() as usize;
        let all = self.reading.held() as usize;
        (own == 0 || own + more <= self.own_max) && all + more <= self.all_max
    }

    /// Copies up to `len` bytes into a frame; `None` if no frame is free.
    fn copy<'p>(
        &mut self,
        pieces: impl Iterator<Item = (&'p Piece, usize)>,
        len: usize,
        site: Site,
    ) -> Option<Piece> {
        let Memory { small, large, .. } = &mut *self.memory;
        let pool = if frame_bytes(len) == SMALL_FRAME_BYTES { small } else { large };
        let mut frame = pool.take()?;
        let len = len.min(frame.len());
        let mut done = 0;
        for (piece, from) in pieces {
            if done == len {
                break;
            }
            let rest = piece.slice(from, piece.len() - from);
            done += self.ledger.copy(site, &rest, &mut frame[done..len]);
        }
        Some(frame.freeze(done))
    }
}

/// Bytes of the frame that a copy of `len` bytes begins in.
fn frame_bytes(len: usize) -> usize {
    if len > SMALL_FRAME_BYTES { LARGE_FRAME_BYTES } else { SMALL_FRAME_BYTES }
}

/// Returns how many of the next bytes, at most `left`, to pack into a small frame: short pieces
/// that together keep more memory than that.
fn packed_len<'p>(pieces: impl Iterator<Item = (&'p Piece, usize)>, left: usize) -> usize {
    let (mut len, mut kept) = (0, 0);
    for (piece, from) in pieces {
        let more = (piece.len() - from).min(left - len);
        if more == 0 || more > PACKED_MAX || len + more > SMALL_FRAME_BYTES {
            break;
        }
        len += more;
        kept += piece.held();
    }
    if kept > SMALL_FRAME_BYTES { len } else { 0 }
}

/// Pieces behind the first `skip` bytes, each with the offset at which it begins.
fn behind<'p>(
    pieces: impl Iterator<Item = &'p Piece> + Clone,
    mut skip: usize,
) -> impl Iterator<Item = (&'p Piece, usize)> + Clone {
    pieces.filter_map(move |piece| {
        let from = skip.min(piece.len());
        skip -= from;
        (from < piece.len()).then_some((piece, from))
    })
}
