//! Operations on datagram, raw and packet sockets of towpath hosts. Each is submitted, can be
//! cancelled, and completes once. The waits of the queue carry them out, on the waiting thread.
//!
//! For sockets of the kernel use [`EventQueue::call`].

use crate::events::registrations::socket::DatagramSocket;
use crate::events::{EventQueue, NotBegun, Token};
use crate::host::operations::operation::Work;
use crate::host::{AnyBuffer, Fill, Lend, ReceivedDatagram, ReceivedPiece, SendTo};
use rustix::io::Errno;
use std::io;
use std::time::Instant;

/// Result of a receive of a datagram.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReceivedInto<B = Vec<u8>> {
    /// Where it came from, how long it was, and how much of it is in the buffer.
    ///
    /// # Errors
    /// The errors of receiving; `ECANCELED` if it was cancelled, or `ETIMEDOUT` if its deadline
    /// passed, before a datagram arrived. In these cases no datagram was taken.
    pub result: io::Result<ReceivedDatagram>,
    /// The buffer, of unchanged length.
    pub buffer: B,
}

/// Result of a receive of a datagram without a copy.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReceivedLent {
    /// Where it came from, and its length including headers.
    ///
    /// # Errors
    /// The errors of [`ReceivedInto::result`].
    pub result: io::Result<ReceivedDatagram>,
    /// The leading headers of a packet or frame, which are in no piece. Empty for a UDP datagram.
    pub headers: Vec<u8>,
    /// Everything after `headers`.
    pub pieces: Vec<ReceivedPiece>,
}

impl EventQueue {
    /// Receives one datagram, packet or frame into `buffer`; bytes that do not fit are lost. A wait
    /// reports [`EventKind::Completed`](crate::events::EventKind::Completed) at the end, and
    /// [`EventQueue::take`] then returns result and buffer, as [`Completion::Datagram`] or
    /// [`Completion::DatagramBuffer`]. The order of several receives on one socket is unspecified.
    ///
    /// [`Completion::Datagram`]: crate::events::Completion::Datagram
    /// [`Completion::DatagramBuffer`]: crate::events::Completion::DatagramBuffer
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The buffer is handed back.
    pub fn receive_datagram<B: Fill>(
        &mut self,
        socket: impl Into<DatagramSocket>,
        buffer: B,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun<B>> {
        let work = Work::ReceiveDatagram(socket.into().0, AnyBuffer::to_fill(buffer));
        self.begin(work, deadline, data).map_err(|(error, mut work)| {
            work.stop(Errno::CANCELED);
            let Some(Work::Datagram(over)) = work.take_over() else {
                unreachable!("nothing was received");
            };
            NotBegun { error, buffer: over.1 }.downcast()
        })
    }

    /// Receives one whole datagram, packet or frame without copying, like
    /// [`UdpSocket::recv_lent`](crate::host::UdpSocket::recv_lent) and
    /// [`RawSocket::recv_lent`](crate::host::RawSocket::recv_lent). [`EventQueue::take`] returns
    /// it. Those calls fail if the readers of the socket or its host hold too many bytes; this
    /// operation waits until some are dropped. It waits without end if the program keeps all its
    /// pieces and gives no deadline.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full.
    pub fn receive_datagram_lent(
        &mut self,
        socket: impl Into<DatagramSocket>,
        deadline: Option<Instant>,
        data: u64,
    ) -> io::Result<Token> {
        let work = Work::ReceiveDatagramLent(socket.into().0);
        self.begin(work, deadline, data).map_err(|(error, _)| error)
    }

    /// Sends `buffer` as one or several datagrams, packets or frames, like
    /// [`UdpSocket::send_zc_with`](crate::host::UdpSocket::send_zc_with). A wait reports
    /// [`EventKind::Accepted`](crate::events::EventKind::Accepted) when the socket has accepted the
    /// buffer, and [`EventKind::Completed`](crate::events::EventKind::Completed) when the buffer is
    /// back. [`EventQueue::take`] then returns it with the number of accepted bytes: fewer than all
    /// if a cancel or the deadline came after some datagrams. After
    /// [`EventKind::Accepted`](crate::events::EventKind::Accepted) a cancel or the deadline recalls
    /// the buffer, like [`Sending::recall`](crate::host::Sending::recall).
    ///
    /// The order of several sends on one socket is unspecified: start the next one when one was
    /// accepted.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The buffer is handed back.
    pub fn send_datagrams<B: Lend>(
        &mut self,
        socket: impl Into<DatagramSocket>,
        buffer: B,
        send: &SendTo,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun<B>> {
        let work = Work::send_datagrams(socket.into().0, AnyBuffer::new(buffer), send);
        self.begin_buffer(work, (deadline, data)).map_err(NotBegun::downcast)
    }
}
