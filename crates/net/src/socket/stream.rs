//! Bytes of TCP sockets: `send` and `receive` (tcp(7), send(2), recv(2); RFC 6093 for
//! urgent data).

use super::frames::{frame_bytes, frame_to_send};
use super::{Error, Phase, SocketId, Sockets};
use crate::stack::Context;
use crate::tcp::{Connection, State};
use crate::time::Instant;
use core::ops::Range;
use towpath_packet::pool::LARGE_FRAME_BYTES;
use towpath_packet::{Ledger, Memory, Piece, Site};

/// Flags of a send (`MSG_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// More data follows: segments that are not full wait (`MSG_MORE`).
    pub more: bool,
    /// A record ends here (`MSG_EOR`).
    pub end_of_record: bool,
    /// The bytes continue a write of which other bytes were sent before.
    pub continues: bool,
    /// The last byte is urgent (`MSG_OOB`). The caller must not let packets leave before all bytes
    /// are queued or no more fit.
    pub urgent: bool,
}

/// Flags of a receive (`MSG_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveFlags {
    /// The bytes stay in the queue (`MSG_PEEK`).
    pub peek: bool,
    /// Bytes that the same call has received before; with `peek`, the read begins behind them.
    pub offset: usize,
}

impl Sockets {
    /// Copies bytes of `buffers`, one after the other, into the send queue, up to the end of the
    /// current buffer or of a new one; returns how many. The caller then lets packets leave, as
    /// Linux does when a buffer is full, and calls again for the rest with
    /// [`SendFlags::continues`].
    ///
    /// If the queue has room but no frame is free, the socket is not writable. It is woken when
    /// memory is available.
    pub fn send(
        &mut self,
        id: SocketId,
        buffers: &[&[u8]],
        flags: SendFlags,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        self.check_send(id)?;
        let handle = self.handle(id)?;
        let total: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let (memory, ledger) = (&mut *cx.memory, cx.ledger);
        let mut lacks = false;
        let sent = self.stack.with_tcp(handle, cx.now, |connection| {
            let room = connection.send_room();
            let mut sent = 0;
            for buffer in buffers {
                let most = buffer.len().min(room - sent);
                let begins = sent == 0 && !flags.continues;
                let count = copy_in(connection, &buffer[..most], begins, memory, ledger);
                sent += count;
                lacks = count < most;
                if lacks || sent == room {
                    break;
                }
            }
            end_part(connection, sent, total, flags);
            sent
        });
        let sent = sent.ok_or(Error::BrokenPipe)?;
        if lacks {
            self.wait_for_frame(id, cx.now);
        }
        cx.ledger.carry(sent);
        if sent == 0 && total > 0 { Err(Error::WouldBlock) } else { Ok(sent) }
    }

    /// Lends a piece to be sent without a copy. The piece must fit the room that
    /// [`Sockets::send_room`] returns.
    pub fn send_piece(
        &mut self,
        id: SocketId,
        piece: Piece,
        cx: &mut Context<'_>,
    ) -> Result<(), Error> {
        self.check_send(id)?;
        let (len, is_frame) = (piece.len(), piece.is_frame());
        self.with_connection(id, cx.now, |connection| connection.send(piece))
            .ok_or(Error::NotConnected)?;
        cx.ledger.carry(len);
        if !is_frame {
            // A pool frame is not the program's memory: it was received, or copied to be sent.
            cx.ledger.lend(len);
        }
        Ok(())
    }

    /// Bytes that can be sent now.
    pub fn send_room(&mut self, id: SocketId, now: Instant) -> Result<usize, Error> {
        self.check_send(id)?;
        self.with_connection(id, now, |connection| connection.send_room())
            .ok_or(Error::NotConnected)
    }

    /// Checks whether sending is possible at all (send(2), tcp(7)).
    pub(super) fn check_send(&mut self, id: SocketId) -> Result<(), Error> {
        let opening = self.is_connecting(id);
        let write_over = self.ended(id).1;
        let socket = self.socket_mut(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        if !matches!(socket.phase, Phase::Connected(_)) || write_over {
            return Err(Error::BrokenPipe);
        }
        if opening { Err(Error::WouldBlock) } else { Ok(()) }
    }

    /// Copies received bytes into `into`; returns how many. Zero means the end of the stream.
    pub fn receive(
        &mut self,
        id: SocketId,
        into: &mut [u8],
        flags: ReceiveFlags,
        cx: &mut Context<'_>,
    ) -> Result<usize, Error> {
        let next = self.next_read(id, into.len(), flags, cx.now)?;
        if next.is_empty() {
            return self.nothing_next(id, into.len(), flags);
        }
        let connection = self.tcp(id).ok_or(Error::NotConnected)?;
        let room = into.len().min(next.len());
        let copied = copy_out(connection.received(), next.start, &mut into[..room], cx.ledger);
        if !flags.peek {
            cx.ledger.carry(copied);
            self.with_connection(id, cx.now, |connection| connection.consume(copied));
        }
        Ok(copied)
    }

    /// Drops up to `len` received bytes of a stream (`MSG_TRUNC`); returns how many. Other sockets
    /// return [`Error::NotSupported`] and drop nothing: for them `MSG_TRUNC` has another meaning.
    pub fn discard(&mut self, id: SocketId, len: usize, now: Instant) -> Result<usize, Error> {
        if self.is_datagram(id) {
            return Err(Error::NotSupported);
        }
        let next = self.next_read(id, len, ReceiveFlags::default(), now)?;
        if next.is_empty() {
            return self.nothing_next(id, len, ReceiveFlags::default());
        }
        let count = next.len().min(len);
        self.with_connection(id, now, |connection| connection.consume(count));
        Ok(count)
    }

    /// Returns the range of received bytes for a call with room for `len`. Urgent data in front of
    /// it is skipped, and dropped unless the call only peeks.
    pub(super) fn next_read(
        &mut self,
        id: SocketId,
        len: usize,
        flags: ReceiveFlags,
        now: Instant,
    ) -> Result<Range<usize>, Error> {
        let available = self.available(id)?;
        if len == 0 {
            return Ok(0..0);
        }
        let at = if flags.peek { flags.offset } else { 0 };
        let Some(connection) = self.tcp(id) else { return Ok(0..available) };
        let next = connection.next_read(at, flags.offset > 0);
        if flags.peek || next.start == 0 {
            return Ok(next);
        }
        self.with_connection(id, now, |connection| connection.consume(next.start));
        Ok(0..next.len())
    }

    /// Result of a call that gets nothing: zero where urgent data begins
    /// (`tests/scripts/urgent_data_stops_reads.pkt`), else as for an empty queue.
    pub(super) fn nothing_next(
        &mut self,
        id: SocketId,
        len: usize,
        flags: ReceiveFlags,
    ) -> Result<usize, Error> {
        let ends = len == 0 || self.ends_at_mark(id, flags);
        if ends { Ok(0) } else { self.nothing_received(id) }
    }

    /// True if a call that has received `flags.offset` bytes ends there because the next byte is
    /// urgent.
    pub fn ends_at_mark(&self, id: SocketId, flags: ReceiveFlags) -> bool {
        let at = if flags.peek { flags.offset } else { 0 };
        let mark = self.tcp(id).and_then(|connection| connection.urgent_mark());
        flags.offset > 0 && mark == Some(at)
    }

    /// Reads the byte that the peer marked as urgent (`MSG_OOB`); `keep` leaves it in place
    /// (`MSG_PEEK`).
    ///
    /// Returns `None` if the byte can no longer arrive.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no urgent byte, or it has been read, or is read in line.
    /// [`Error::WouldBlock`] if it has not arrived yet.
    pub fn receive_urgent(
        &mut self,
        id: SocketId,
        keep: bool,
        cx: &mut Context<'_>,
    ) -> Result<Option<u8>, Error> {
        if self.is_listening(id) {
            return Err(Error::NotConnected);
        }
        let (over, done) = (self.ended(id).0, self.socket(id)?.done);
        let connection = self.tcp(id).filter(|connection| connection.is_urgent_unread());
        let connection = connection.ok_or(Error::Invalid)?;
        if connection.state() == State::Closed && !done {
            return Err(Error::NotConnected);
        }
        let Some(piece) = connection.urgent_byte() else {
            return if over { Ok(None) } else { Err(Error::WouldBlock) };
        };
        let mut byte = [0];
        cx.ledger.copy(Site::SocketReceive, &piece, &mut byte);
        if !keep {
            self.with_connection(id, cx.now, |connection| connection.urgent_was_read());
        }
        Ok(Some(byte[0]))
    }

    /// True if the next byte is the marked urgent byte (`SIOCATMARK`).
    pub fn is_at_mark(&self, id: SocketId) -> bool {
        self.tcp(id).is_some_and(|connection| connection.urgent_mark() == Some(0))
    }

    /// Received bytes that can be read now, up to urgent data; for datagram sockets, the bytes of
    /// the next datagram (`SIOCINQ`).
    pub fn available(&self, id: SocketId) -> Result<usize, Error> {
        let socket = self.socket(id)?;
        if matches!(socket.phase, Phase::Listening(_)) {
            return Err(Error::NotConnected);
        }
        if matches!(socket.phase, Phase::Datagram(_)) {
            return self.datagram_len(socket);
        }
        Ok(self.connection(socket).map_or(0, |connection| connection.readable_len()))
    }

    /// Result of a receive with an empty queue: the end of a stream that is over, then an
    /// error, then the end that the peer or `shutdown` made (`tests/scripts/half_close.pkt`).
    fn nothing_received(&mut self, id: SocketId) -> Result<usize, Error> {
        let state = self.state(id);
        let read_over = self.ended(id).0;
        let connected = self.handle(id).is_ok();
        let socket = self.socket_mut(id)?;
        if socket.done {
            return Ok(0);
        }
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        if read_over && (connected || socket.read_shut) {
            return Ok(0);
        }
        Err(if state == State::Closed { Error::NotConnected } else { Error::WouldBlock })
    }
}

/// Ends a part of a write: `sent` of the `total` bytes that were left are queued.
pub(super) fn end_part(connection: &mut Connection, sent: usize, total: usize, flags: SendFlags) {
    if sent == total && total > 0 {
        connection.end_write(flags.more, flags.end_of_record);
        connection.mark_written();
    } else if sent == 0 && flags.continues {
        // The bytes that did not fit follow separately: no segment waits for them.
        connection.end_write(false, false);
    } else {
        return;
    }
    if flags.urgent {
        connection.mark_urgent();
    }
}

/// Copies `bytes` to the end of a connection's send queue, as far as there is memory; returns how
/// many. The tail frame is filled first if that saves a frame.
pub(super) fn copy_in(
    connection: &mut Connection,
    bytes: &[u8],
    mut begins: bool,
    memory: &mut Memory,
    ledger: &Ledger,
) -> usize {
    if bytes.is_empty() {
        return 0;
    }
    let mut done = 0;
    // A copy that takes several frames would save only a part of one.
    if bytes.len() <= LARGE_FRAME_BYTES {
        done = connection.fill_tail(begins, |rest| {
            let count = rest.len().min(bytes.len());
            if frame_bytes(bytes.len() - count) == frame_bytes(bytes.len()) {
                return 0;
            }
            rest[..count].copy_from_slice(&bytes[..count]);
            count
        });
    }
    while done < bytes.len() {
        let rest = &bytes[done..];
        let Some(mut frame) = frame_to_send(rest.len(), connection.send_held(), memory) else {
            break;
        };
        let count = rest.len().min(frame.len());
        frame[..count].copy_from_slice(&rest[..count]);
        begins &= done == 0;
        connection.append(frame.freeze(count), begins);
        done += count;
    }
    ledger.count(Site::SocketSend, done);
    done
}

/// Copies a piece to the end of a connection's send queue, counted at `site`, as far as there is
/// memory; returns how many bytes.
pub(super) fn copy_piece_in(
    connection: &mut Connection,
    mut piece: Piece,
    (site, begins): (Site, bool),
    cx: &mut Context<'_>,
) -> usize {
    let mut done = 0;
    while !piece.is_empty()
        && let Some(mut frame) = frame_to_send(piece.len(), connection.send_held(), cx.memory)
    {
        let count = cx.ledger.copy(site, &piece, &mut frame);
        piece.advance(count);
        connection.append(frame.freeze(count), begins && done == 0);
        done += count;
    }
    done
}

/// Copies the bytes behind the first `skip` bytes of `pieces` into `into`.
fn copy_out<'a>(
    pieces: impl Iterator<Item = &'a Piece>,
    skip: usize,
    into: &mut [u8],
    ledger: &Ledger,
) -> usize {
    let (mut skip, mut copied) = (skip, 0);
    for piece in pieces {
        if copied == into.len() {
            break;
        }
        if skip >= piece.len() {
            skip -= piece.len();
            continue;
        }
        let rest = piece.slice(skip, piece.len() - skip);
        copied += ledger.copy(Site::SocketReceive, &rest, &mut into[copied..]);
        skip = 0;
    }
    copied
}
