//! What becomes of operations, and how it is taken.

use crate::events::operations::jobs::Ended;
use crate::events::queue::RAISED;
use crate::events::registrations::source::Kind;
use crate::events::{
    EventQueue, FileSent, Moved, Received, ReceivedInto, ReceivedLent, Stream, Token,
};
use crate::host::operations::operation::{Connection, Work};
use crate::host::{AnyBuffer, Held};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use towpath_io::events::Parts;

/// What became of an operation, or the next of what it brings: see [`EventQueue::take`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// Of operations on files ([`EventQueue::submit`]), and of [`EventQueue::receive`] and
    /// [`EventQueue::receive_all`].
    Bytes(Completed),
    /// Of operations that send a buffer ([`EventQueue::send`], [`EventQueue::send_zerocopy`],
    /// [`EventQueue::send_memory`], [`EventQueue::send_datagrams`]): its memory is back.
    Sent(Sent),
    /// Of [`EventQueue::connect`] and [`EventQueue::connect_socket`], and the next connection of
    /// [`EventQueue::accept`], or why that has ended.
    Connected(io::Result<Connected>),
    /// Of [`EventQueue::receive_lent`]: nothing at the end of the stream.
    Pieces(io::Result<Vec<Held>>),
    /// The next buffer that [`EventQueue::receive_multishot`] has filled. When it is over: no bytes
    /// and no buffer at the end of the stream, or why it has ended.
    Received(io::Result<Received>),
    /// Of [`EventQueue::receive_datagram`].
    Datagram(ReceivedInto),
    /// Of [`EventQueue::receive_datagram_lent`].
    DatagramLent(ReceivedLent),
    /// Of [`EventQueue::send_file`].
    FileSent(FileSent),
    /// Of [`EventQueue::receive_file`] and [`EventQueue::splice`].
    Moved(Moved),
    /// Of [`EventQueue::call`]: bytes that the calls have moved, and why not all.
    Called(u64, io::Result<()>),
}

/// An operation that reads, writes or receives is over.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// Bytes read or written: all, or fewer where the file ended or an error came after some; bytes
    /// received.
    ///
    /// # Errors
    /// Those of reading and writing; `ECANCELED` if it was cancelled before it did anything,
    /// `ETIMEDOUT` if its deadline did that.
    pub result: io::Result<usize>,
    /// The buffer, of the same length as before.
    pub buffer: Vec<u8>,
}

/// The buffer of a send is back.
#[derive(Debug)]
#[non_exhaustive]
pub struct Sent {
    /// Bytes that the socket has accepted, which are sent: the first of the buffer.
    ///
    /// # Errors
    /// Those of sending; `ECANCELED` if it was cancelled before anything was accepted, `ETIMEDOUT`
    /// if its deadline did that.
    pub result: io::Result<usize>,
    /// The buffer: [`AnyBuffer::downcast`] makes it what it was. Empty of
    /// [`EventQueue::send_memory`].
    pub buffer: AnyBuffer,
    /// Its bytes were copied, at the call or after all; all of them or some.
    pub copied: bool,
}

/// A connection that was made or accepted.
#[derive(Debug)]
pub struct Connected {
    /// The connection.
    pub stream: Stream,
    /// The peer's address, where it is known without a system call.
    remote: Option<SocketAddr>,
}

impl Connected {
    /// The peer's address: none of a socket of the kernel that is not of IP, or whose peer has gone
    /// already. Of a socket of the kernel this takes a system call.
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
            /// It is of another kind: this again.
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
    /// That of [`Completion::Bytes`].
    into_bytes: Bytes(completed) -> Completed;
    /// That of [`Completion::Sent`].
    into_sent: Sent(sent) -> Sent;
    /// That of [`Completion::Connected`].
    into_connected: Connected(result) -> io::Result<Connected>;
    /// That of [`Completion::Pieces`].
    into_pieces: Pieces(result) -> io::Result<Vec<Held>>;
    /// That of [`Completion::Received`].
    into_received: Received(result) -> io::Result<Received>;
    /// That of [`Completion::Datagram`].
    into_datagram: Datagram(received) -> ReceivedInto;
    /// That of [`Completion::DatagramLent`].
    into_datagram_lent: DatagramLent(received) -> ReceivedLent;
    /// That of [`Completion::FileSent`].
    into_file_sent: FileSent(sent) -> FileSent;
    /// That of [`Completion::Moved`].
    into_moved: Moved(moved) -> Moved;
    /// That of [`Completion::Called`].
    into_called: Called(bytes, result) -> (u64, io::Result<()>);
}

impl EventQueue {
    /// What became of an operation, after [`News::Completed`](crate::events::News::Completed): this
    /// ends its registration. `None` before a wait has told that it is over, after it was taken,
    /// and of what is no operation.
    ///
    /// Of an [accept](EventQueue::accept) each call takes one connection, after
    /// [`News::Connection`](crate::events::News::Connection), until there is none; of a
    /// [multishot receive](EventQueue::receive_multishot) one buffer, after
    /// [`News::Received`](crate::events::News::Received).
    pub fn take(&mut self, token: Token) -> Option<Completion> {
        let completion = match &mut self.slots.get(token)?.source {
            Kind::Stream { work, is_told: true, .. } => completion(work.take_over()?)?,
            Kind::Stream { work, wakes, .. } => {
                let next = match work.take_next() {
                    Some(next) => next,
                    None => work.accept(&wakes.as_ref()?.waker)?,
                };
                self.push(token, RAISED);
                // The connection is there, whatever cannot be shown now.
                let _ = self.settle();
                return Some(Completion::Connected(Ok(next.into())));
            }
            Kind::Relay { relay, is_told: true, .. } => Completion::Moved(relay.take()?),
            Kind::Multishot { multishot, is_told, .. } => {
                let taken = multishot.take(*is_told)?;
                let goes_on = matches!(&taken, Ok(received) if received.len > 0);
                if goes_on {
                    return Some(Completion::Received(taken));
                }
                Completion::Received(taken)
            }
            Kind::Operation(_) => return self.take_of_back_end(token),
            _ => return None,
        };
        self.end(token);
        Some(completion)
    }

    /// What became of an operation that the back end carries out.
    fn take_of_back_end(&mut self, token: Token) -> Option<Completion> {
        if let Some(stream) = self.take_accepted(token) {
            return Some(Completion::Connected(Ok(Connected { stream, remote: None })));
        }
        let Ended { bytes, result, parts, held } = self.take_ended(token)?;
        // Bytes count more than what came after them.
        let count = |result: io::Result<()>| match bytes {
            0 => result.map(|()| 0),
            _ => Ok(bytes as usize),
        };
        Some(match parts {
            Parts::Buffer(buffer) => Completion::Bytes(Completed { result: count(result), buffer }),
            Parts::Sent(bytes, copied) => {
                let (buffer, copied) = match held {
                    Some((held, is_copy)) => (held.into_buffer(), copied || is_copy),
                    None => (Some(AnyBuffer::new(bytes)), copied),
                };
                let buffer = buffer.expect("the kernel has let go of it");
                Completion::Sent(Sent { result: count(result), buffer, copied })
            }
            Parts::File(parts) => Completion::FileSent(FileSent { bytes, result, parts }),
            Parts::Rest(rest) => Completion::Moved(Moved { bytes, result, rest }),
            Parts::Called { .. } => Completion::Called(bytes, result),
            Parts::Socket(socket) => Completion::Connected(
                result.map(|()| Connected { stream: socket.into(), remote: None }),
            ),
            // Without an error there is a socket. Blocks, and what files are like, are the queue's
            // own.
            Parts::None | Parts::Block(..) | Parts::Status(_) => {
                Completion::Connected(result.and(Err(io::Error::from(Errno::INVAL))))
            }
        })
    }

    /// Ends the registration of an operation whose outcome was taken.
    fn end(&mut self, token: Token) {
        // It is over, and was told: nothing is in the way.
        let _ = self.begin_remove(token);
        let _ = self.settle();
    }
}

/// What became of one that the waits of the queue carry out.
fn completion(over: Work) -> Option<Completion> {
    Some(match over {
        Work::Connected(result) => Completion::Connected(result.map(Connected::from)),
        Work::Bytes(result, buffer) => Completion::Bytes(Completed { result, buffer }),
        Work::Back(result, buffer, copied) => Completion::Sent(Sent { result, buffer, copied }),
        Work::Pieces(result) => Completion::Pieces(result),
        Work::Datagram(over) => {
            let (result, buffer) = *over;
            Completion::Datagram(ReceivedInto { result, buffer })
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
