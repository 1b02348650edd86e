//! Operations on datagram, raw and packet sockets of towpath hosts: each is submitted, may be
//! cancelled, and is over once. The waits of the queue carry them out, on the thread that waits.
//!
//! Of the kernel's sockets there are [`EventQueue::call`]s.

use crate::events::registrations::socket::DatagramSocket;
use crate::events::{EventQueue, NotBegun, Token};
use crate::host::operations::operation::Work;
use crate::host::{AnyBuffer, Held, Lend, ReceivedDatagram, SendTo};
use rustix::io::Errno;
use std::io;
use std::time::Instant;

/// A receive of a datagram that is over.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReceivedInto {
    /// Where it came from, how long it was, and how much of it is in the buffer.
    ///
    /// # Errors
    /// Those of receiving; `ECANCELED` if it was cancelled before there was a datagram, `ETIMEDOUT`
    /// if its deadline did that. No datagram was taken then.
    pub result: io::Result<ReceivedDatagram>,
    /// The buffer, of the same length as before.
    pub buffer: Vec<u8>,
}

/// A receive of a datagram without a copy that is over.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReceivedLent {
    /// Where it came from, and how long it is with its headers.
    ///
    /// # Errors
    /// As of [`ReceivedInto::result`].
    pub result: io::Result<ReceivedDatagram>,
    /// What is in no piece of a packet or frame that begins with headers: their first part. Nothing
    /// of a UDP datagram.
    pub headers: Vec<u8>,
    /// All that follows.
    pub pieces: Vec<Held>,
}

impl EventQueue {
    /// Receives one datagram, packet or frame into `buffer`; what that has no room for is lost. A
    /// wait tells [`News::Completed`](crate::events::News::Completed) when it is over, and
    /// [`EventQueue::take`] then has both. Of several at a time on one socket, nothing is
    /// said about which of them gets which.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. The buffer is handed back.
    pub fn receive_datagram(
        &mut self,
        socket: impl Into<DatagramSocket>,
        buffer: Vec<u8>,
        deadline: Option<Instant>,
        data: u64,
    ) -> Result<Token, NotBegun> {
        let work = Work::ReceiveDatagram(socket.into().0, buffer);
        self.begin(work, deadline, data).map_err(|(error, mut work)| {
            work.stop(Errno::CANCELED);
            let Some(Work::Datagram(over)) = work.take_over() else {
                unreachable!("nothing was received");
            };
            NotBegun { error, buffer: over.1 }
        })
    }

    /// Receives one datagram, packet or frame, whole and without copying, as
    /// [`UdpSocket::recv_lent`](crate::host::UdpSocket::recv_lent) and
    /// [`RawSocket::recv_lent`](crate::host::RawSocket::recv_lent):
    /// [`EventQueue::take`] has it when it is over. Where the call fails because the
    /// socket or its host keep too much, this waits until some of it was dropped: for ever, if the
    /// program keeps all its pieces and gives no deadline.
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

    /// Sends `buffer` as a datagram, packet or frame, or as several, as
    /// [`UdpSocket::send_zc_with`](crate::host::UdpSocket::send_zc_with) does. A wait tells
    /// [`News::Accepted`](crate::events::News::Accepted) when the socket has accepted it, and
    /// [`News::Completed`](crate::events::News::Completed) when it is back: then
    /// [`EventQueue::take`] has it, with the bytes that were accepted: fewer than all if a cancel
    /// or the deadline came when some datagrams had gone. After
    /// [`News::Accepted`](crate::events::News::Accepted) these ask for the buffer, as
    /// [`Sending::recall`](crate::host::Sending::recall).
    ///
    /// Of several at a time on one socket nothing is said about their order: begin the next when
    /// one was accepted.
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
