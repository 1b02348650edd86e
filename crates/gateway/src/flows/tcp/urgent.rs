//! Urgent data (RFC 9293 §3.8.5, RFC 6093): one byte of a stream that its sender has marked.
//!
//! The byte stays in its place, and is sent on with its own mark. Reads on either side end before a
//! marked byte, so that the bytes before it go without a mark and the byte goes alone. If a sender
//! marks a second byte before the first was passed on, only the second is marked, as between two
//! hosts.

use super::Flow;
use std::io;
use towpath_io::receive::ReceiveBuffer;
use towpath_io::socket::Received;
use towpath_net::tcp::Connection;
use towpath_packet::{Memory, Piece};

impl Flow {
    /// Sends received data of the program to the host.
    #[inline]
    pub(super) fn send_received(&mut self, connection: &Connection) -> io::Result<usize> {
        match connection.urgent_mark() {
            Some(mark) if mark < connection.received_len() => self.send_marked(connection, mark),
            _ => self.send(connection.received()),
        }
    }

    /// Sends the `mark` bytes before the marked byte; if there are none, sends the marked byte.
    #[cold]
    fn send_marked(&mut self, connection: &Connection, mark: usize) -> io::Result<usize> {
        if mark == 0
            && let Some(byte) = connection.urgent_byte()
        {
            return self.socket.send_urgent(&byte);
        }
        let mut left = mark;
        let before: Vec<Piece> = connection
            .received()
            .map_while(|piece| {
                let count = piece.len().min(left);
                left -= count;
                (count > 0).then(|| piece.slice(0, count))
            })
            .collect();
        self.send(before.iter())
    }

    /// Reads up to `room` bytes from the host and sends them to the program.
    #[inline]
    pub(super) fn receive(
        &mut self,
        connection: &mut Connection,
        room: usize,
        buffer: &mut ReceiveBuffer,
        memory: &mut Memory,
    ) -> io::Result<Received> {
        if self.host_urgent && self.socket.is_at_mark()? {
            return self.receive_marked(connection, memory);
        }
        self.socket.receive(buffer, memory, room, |piece| connection.send(piece))
    }

    /// Reads the marked byte.
    #[cold]
    fn receive_marked(
        &mut self,
        connection: &mut Connection,
        memory: &mut Memory,
    ) -> io::Result<Received> {
        let Some(mut frame) = memory.small.take() else { return Ok(Received::NoMemory) };
        let Some(byte) = self.socket.receive_byte()? else { return Ok(Received::Closed) };
        self.host_urgent = false;
        frame[0] = byte;
        connection.send(frame.freeze(1));
        connection.mark_urgent();
        Ok(Received::Bytes { count: 1, drained: false })
    }
}
