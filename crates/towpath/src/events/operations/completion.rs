//! Results of operations, and how a program takes them.

use crate::events::operations::jobs::Ended;
use crate::events::queue::RAISED;
use crate::events::registrations::source::Kind;
use crate::events::{
    EventQueue, FileSent, Moved, Received, ReceivedInto, ReceivedLent, Stream, Token,
};
use crate::host::operations::operation::{Connection, Work};
use crate::host::{AnyBuffer, Lend, ReceivedDatagram, ReceivedPiece};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use towpath_io::events::Parts;

/// Result of an operation, or its next intermediate result: see [`EventQueue::take`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// Result of operations on files ([`EventQueue::submit`], [`EventQueue::write_at`]), of
    /// [`EventQueue::receive`] and of [`EventQueue::receive_all`], with a `Vec<u8>`.
    Bytes(Completed),
    /// Result of an operation on a file or of a receive, with a buffer of another type.
    Buffer(Completed<AnyBuffer>),
    /// Result of operations that send a buffer ([`EventQueue::send`],
    /// [`EventQueue::send_zerocopy`], [`EventQueue::send_memory`], [`EventQueue::send_datagrams`]):
    /// its memory is back.
    Sent(Sent),
    /// Result of [`EventQueue::connect`] and [`EventQueue::connect_socket`]; the next connection of
    /// [`EventQueue::accept`], or why the accept ended.
    Connected(io::Result<Connected>),
    /// Result of [`EventQueue::receive_lent`]; empty at the end of the stream.
    Pieces(io::Result<Vec<ReceivedPiece>>),
    /// The next buffer that [`EventQueue::receive_multishot`] has filled. At its end: no bytes and
    /// an empty buffer at the end of the stream, or the error that ended it.
    Received(io::Result<Received>),
    /// The next buffer that [`EventQueue::receive_multishot`] has filled, of another type than
    /// `Vec<u8>`.
    ReceivedBuffer(Received<AnyBuffer>),
    /// Result of [`EventQueue::receive_datagram`] with a `Vec<u8>`.
    Datagram(ReceivedInto),
    /// Result of [`EventQueue::receive_datagram`] with a buffer of another type.
    DatagramBuffer(ReceivedInto<AnyBuffer>),
    /// Result of [`EventQueue::receive_datagram_lent`].
    DatagramLent(ReceivedLent),
    /// Result of [`EventQueue::send_file`].
    FileSent(FileSent),
    /// Result of [`EventQueue::receive_file`] and [`EventQueue::splice`].
    Moved(Moved),
    /// Result of [`EventQueue::call`]: bytes that the calls moved, and why not all.
    Called(u64, io::Result<()>),
}

/// Result of an operation that reads, writes or receives.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed<B = Vec<u8>> {
    /// Bytes read, written or received. A read or write is short if the file ended or an error came
    /// after some bytes.
    ///
    /// # Errors
    /// The errors of reading and writing; `ECANCELED` if it was cancelled, or `ETIMEDOUT` if its
    /// deadline passed, before it did anything.
    pub result: io::Result<usize>,
    /// The buffer, of unchanged length.
    pub buffer: B,
}

/// Result of a send whose buffer is back.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sent {
    /// Bytes that the socket accepted, from the start of the buffer. They are sent.
    ///
    /// # Errors
    /// The errors of sending; `ECANCELED` if it was cancelled, or `ETIMEDOUT` if its deadline
    /// passed, before anything was accepted.
    pub result: io::Result<usize>,
    /// The buffer; [`AnyBuffer::downcast`] restores its type. Empty for
    /// [`EventQueue::send_memory`].
    pub buffer: AnyBuffer,
    /// True if some or all of its bytes were copied, at the call or later.
    pub copied: bool,
}

/// A connection that was made or accepted.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connected {
    /// The connection.
    pub stream: Stream,
    /// The peer's address, if it is known without a system call.
    remote: Option<SocketAddr>,
}

impl Connected {
    /// Returns the peer's address; `None` for a kernel socket of another family than IP, or if the
    /// peer has already disconnected. For a kernel socket this takes a system call.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.remote.or_else(|| self.stream.peer_addr().ok())
    }
}

impl From<Connection> for Connected {
    fn from((stream, remote): Connection) -> Self {
        Self { stream: stream.into(), remote: Some(remote) }
    }
}

macro_rules! into {
    ($($(#[$text:meta])+ $name:ident: $kind:ident($($part:ident),+) -> $type:ty;)+) => {
        impl Completion {$(
            $(#[$text])+
            ///
            /// # Errors
            /// Returns `self` if it is of another kind.
            pub fn $name(self) -> Result<$type, Box<Self>> {
                match self {
                    Self::$kind($($part),+) => Ok(($($part),+)),
                    other => Err(Box::new(other)),
                }
            }
        )+}
    };
}

into! {
    /// Returns the contents of [`Completion::Bytes`].
    into_bytes: Bytes(completed) -> Completed;
    /// Returns the contents of [`Completion::Sent`].
    into_sent: Sent(sent) -> Sent;
    /// Returns the contents of [`Completion::Connected`].
    into_connected: Connected(result) -> io::Result<Connected>;
    /// Returns the contents of [`Completion::Pieces`].
    into_pieces: Pieces(result) -> io::Result<Vec<ReceivedPiece>>;
    /// Returns the contents of [`Completion::Received`].
    into_received: Received(result) -> io::Result<Received>;
    /// Returns the contents of [`Completion::Datagram`].
    into_datagram: Datagram(received) -> ReceivedInto;
    /// Returns the contents of [`Completion::DatagramLent`].
    into_datagram_lent: DatagramLent(received) -> ReceivedLent;
    /// Returns the contents of [`Completion::FileSent`].
    into_file_sent: FileSent(sent) -> FileSent;
    /// Returns the contents of [`Completion::Moved`].
    into_moved: Moved(moved) -> Moved;
    /// Returns the contents of [`Completion::Called`].
    into_called: Called(bytes, result) -> (u64, io::Result<()>);
}

impl Completion {
    /// Returns the contents of [`Completion::Bytes`] or [`Completion::Buffer`], with the buffer's
    /// original type.
    ///
    /// # Errors
    /// Returns `self` if it is of another kind, or if the buffer is of another type.
    pub fn into_buffer<B: Lend>(self) -> Result<Completed<B>, Box<Self>> {
        let Completed { result, buffer } = match self {
            Self::Bytes(Completed { result, buffer }) => {
                Completed { result, buffer: AnyBuffer::new(buffer) }
            }
            Self::Buffer(completed) => completed,
            other => return Err(Box::new(other)),
        };
        match buffer.downcast() {
            Ok(buffer) => Ok(Completed { result, buffer }),
            Err(buffer) => Err(Box::new(Self::bytes(result, buffer))),
        }
    }

    /// Returns the contents of [`Completion::Datagram`] or [`Completion::DatagramBuffer`], with the
    /// buffer's original type.
    ///
    /// # Errors
    /// Returns `self` if it is of another kind, or if the buffer is of another type.
    pub fn into_datagram_buffer<B: Lend>(self) -> Result<ReceivedInto<B>, Box<Self>> {
        let ReceivedInto { result, buffer } = match self {
            Self::Datagram(ReceivedInto { result, buffer }) => {
                ReceivedInto { result, buffer: AnyBuffer::new(buffer) }
            }
            Self::DatagramBuffer(received) => received,
            other => return Err(Box::new(other)),
        };
        match buffer.downcast() {
            Ok(buffer) => Ok(ReceivedInto { result, buffer }),
            Err(buffer) => Err(Box::new(Self::datagram(result, buffer))),
        }
    }

    /// Returns the contents of [`Completion::Received`] or [`Completion::ReceivedBuffer`], with the
    /// buffer's original type; `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns `self` if it is of another kind, or if the buffer is of another type. The inner
    /// result is the error that ended the receive.
    pub fn into_received_buffer<B: Lend>(
        self,
    ) -> Result<io::Result<Option<Received<B>>>, Box<Self>> {
        let Received { buffer, len } = match self {
            Self::Received(Err(error)) => return Ok(Err(error)),
            Self::Received(Ok(Received { len: 0, .. })) => return Ok(Ok(None)),
            Self::Received(Ok(Received { buffer, len })) => {
                Received { buffer: AnyBuffer::new(buffer), len }
            }
            Self::ReceivedBuffer(received) => received,
            other => return Err(Box::new(other)),
        };
        match buffer.downcast() {
            Ok(buffer) => Ok(Ok(Some(Received { buffer, len }))),
            Err(buffer) => Err(Box::new(Self::received(Received { buffer, len }))),
        }
    }

    fn received(Received { buffer, len }: Received<AnyBuffer>) -> Self {
        match buffer.into_vec() {
            Ok(buffer) => Self::Received(Ok(Received { buffer, len })),
            Err(buffer) => Self::ReceivedBuffer(Received { buffer, len }),
        }
    }

    fn bytes(result: io::Result<usize>, buffer: AnyBuffer) -> Self {
        match buffer.into_vec() {
            Ok(buffer) => Self::Bytes(Completed { result, buffer }),
            Err(buffer) => Self::Buffer(Completed { result, buffer }),
        }
    }

    fn datagram(result: io::Result<ReceivedDatagram>, buffer: AnyBuffer) -> Self {
        match buffer.into_vec() {
            Ok(buffer) => Self::Datagram(ReceivedInto { result, buffer }),
            Err(buffer) => Self::DatagramBuffer(ReceivedInto { result, buffer }),
        }
    }
}

impl EventQueue {
    /// Takes the result of an operation after
    /// [`EventKind::Completed`](crate::events::EventKind::Completed), and ends its registration.
    /// Returns `None` if the end was not reported yet, if the result was already taken, and for
    /// registrations that are no operations.
    ///
    /// For an [accept](EventQueue::accept), each call after
    /// [`EventKind::Connection`](crate::events::EventKind::Connection) takes one connection, until
    /// there is none. For a [multishot receive](EventQueue::receive_multishot), each call after
    /// [`EventKind::Received`](crate::events::EventKind::Received) takes one buffer.
    pub fn take(&mut self, token: Token) -> Option<Completion> {
        let completion = match &mut self.slots.get(token)?.source {
            Kind::Stream { work, is_reported: true, .. } => completion(work.take_over()?)?,
            Kind::Stream { work, wakes, .. } => {
                let next = match work.take_next() {
                    Some(next) => next,
                    None => work.accept(&wakes.as_ref()?.waker)?,
                };
                self.push(token, RAISED);
                // The connection is valid. If updating the queue's descriptor fails now, the next
                // call repeats it.
                let _ = self.settle();
                return Some(Completion::Connected(Ok(next.into())));
            }
            Kind::Relay { relay, is_reported: true, .. } => Completion::Moved(relay.take()?),
            Kind::Multishot { multishot, is_reported, .. } => {
                let taken = multishot.take(*is_reported)?;
                let goes_on = matches!(&taken, Ok(received) if received.len > 0);
                let taken =
                    taken.map_or_else(|e| Completion::Received(Err(e)), Completion::received);
                if goes_on {
                    return Some(taken);
                }
                taken
            }
            Kind::Operation(_) => return self.take_of_back_end(token),
            _ => return None,
        };
        self.end(token);
        Some(completion)
    }

    /// Takes the result of an operation that the back end carries out.
    fn take_of_back_end(&mut self, token: Token) -> Option<Completion> {
        if let Some(stream) = self.take_accepted(token) {
            return Some(Completion::Connected(Ok(Connected { stream, remote: None })));
        }
        let Ended { bytes, result, parts } = self.take_ended(token)?;
        // Bytes that were moved take precedence over a later error.
        let count = |result: io::Result<()>| match bytes {
            0 => result.map(|()| 0),
            _ => Ok(bytes as usize),
        };
        Some(match parts {
            Parts::Buffer(buffer) => Completion::bytes(count(result), AnyBuffer::of_job(buffer).0),
            Parts::Sent(buffer, copied) => {
                let (buffer, is_copy) = AnyBuffer::of_job(buffer);
                let copied = copied || is_copy;
                Completion::Sent(Sent { result: count(result), buffer, copied })
            }
            Parts::File(parts) => Completion::FileSent(FileSent { bytes, result, parts }),
            Parts::Rest(rest) => Completion::Moved(Moved { bytes, result, rest }),
            Parts::Called { .. } => Completion::Called(bytes, result),
            Parts::Socket(socket) => Completion::Connected(
                result.map(|()| Connected { stream: socket.into(), remote: None }),
            ),
            // A successful connect has a socket. Blocks and file status belong to the queue's own
            // jobs.
            Parts::None | Parts::Block(..) | Parts::Status(_) => {
                Completion::Connected(result.and(Err(io::Error::from(Errno::INVAL))))
            }
        })
    }

    /// Ends the registration of an operation whose result was taken.
    fn end(&mut self, token: Token) {
        // The end was reported, so the removal succeeds.
        let _ = self.begin_remove(token);
        let _ = self.settle();
    }
}

/// Converts the result of an operation that the queue's waits carried out.
fn completion(over: Work) -> Option<Completion> {
    Some(match over {
        Work::Connected(result) => Completion::Connected(result.map(Connected::from)),
        Work::Bytes(result, buffer) => Completion::bytes(result, buffer),
        Work::Back(result, buffer, copied) => Completion::Sent(Sent { result, buffer, copied }),
        Work::Pieces(result) => Completion::Pieces(result),
        Work::Datagram(over) => {
            let (result, buffer) = *over;
            Completion::datagram(result, buffer)
        }
        Work::DatagramLent(over) => {
            let (result, headers, pieces) = *over;
            Completion::DatagramLent(ReceivedLent { result, headers, pieces })
        }
        Work::FileSent((bytes, result, parts)) => {
            Completion::FileSent(FileSent { bytes, result, parts })
        }
        Work::FileReceived((bytes, result, rest)) => {
            Completion::Moved(Moved { bytes, result, rest })
        }
        _ => return None,
    })
}
