//! Operations on sockets for event queues: each progresses when it is polled, and keeps its socket
//! and buffer in between.

use crate::host::core::send_queue::Crowded;
use crate::host::files::file_cache::Load;
use crate::host::operations::posted_receive::{Posted, Receiving};
use crate::host::operations::receive_file::{DeviceWrite, FileReceive, FileReceived};
use crate::host::operations::send_file::{FileSend, FileSent, FileStep};
use crate::host::sockets::stream::Going;
use crate::host::sockets::udp::{self, UdpSocket};
use crate::host::{
    AnyBuffer, Host, ReceivedDatagram, ReceivedPiece, SendError, SendTo, Sending, TcpListener,
    TcpStream,
};
use rustix::io::Errno;
use std::future::Future;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use towpath_io::events::{Outcome, SendFile};

/// A connection and its peer's address.
pub(crate) type Connection = (TcpStream, SocketAddr);

/// Result of a receive of a datagram, and its buffer.
pub(crate) type Datagram = (io::Result<ReceivedDatagram>, AnyBuffer);

/// Result of a receive without a copy: headers that are in no piece, and the pieces.
pub(crate) type DatagramLent = (io::Result<ReceivedDatagram>, Vec<u8>, Vec<ReceivedPiece>);

/// An operation and its progress.
pub(crate) enum Work {
    Connect(Connection),
    /// With the connection to be taken next.
    Accept(TcpListener, Option<Connection>),
    /// An accept that was stopped, for this reason, before this connection was taken.
    Last(Connection, Errno),
    /// The flag says whether the buffer must be filled completely.
    Receive(TcpStream, AnyBuffer, bool),
    /// A receive that has found no bytes.
    Posted(Posted),
    /// With the maximum number of bytes.
    ReceiveLent(TcpStream, usize),
    Send(TcpStream, Going<AnyBuffer>),
    ReceiveDatagram(UdpSocket, AnyBuffer),
    ReceiveDatagramLent(UdpSocket),
    SendDatagrams(UdpSocket, Box<udp::Going<AnyBuffer>>),
    /// Accepted, and not back.
    Sent(Sending<AnyBuffer>),
    SendFile(Box<FileSend>),
    ReceiveFile(Box<FileReceive>),
    /// Complete, like all variants that follow.
    Connected(io::Result<Connection>),
    Bytes(io::Result<usize>, AnyBuffer),
    /// The buffer of a send is back; the flag says whether it was copied.
    Back(io::Result<usize>, AnyBuffer, bool),
    Pieces(io::Result<Vec<ReceivedPiece>>),
    Datagram(Box<Datagram>),
    DatagramLent(Box<DatagramLent>),
    FileSent(FileSent),
    FileReceived(FileReceived),
    /// The result was taken.
    Taken,
}

/// What an operation reports.
pub(crate) enum Step {
    /// There is a connection to take.
    Accepted,
    /// The socket has accepted this many bytes.
    Sent(usize),
    Over,
}

impl Work {
    /// Starts to connect.
    pub(crate) fn connect(host: &Host, remote: SocketAddr) -> io::Result<Self> {
        Ok(Self::Connect((TcpStream::begin(host, remote)?, remote)))
    }

    /// Creates a send of a buffer.
    pub(crate) fn send(stream: TcpStream, buffer: AnyBuffer) -> Self {
        let going = Going::new(&stream, buffer, stream.term());
        Self::Send(stream, going)
    }

    /// Creates a send of a buffer as one or several datagrams.
    pub(crate) fn send_datagrams(socket: UdpSocket, buffer: AnyBuffer, send: &SendTo) -> Self {
        let going = Box::new(udp::Going::new(&socket, buffer, send));
        Self::SendDatagrams(socket, going)
    }

    /// Returns the parts of a file send that was not started.
    pub(crate) fn into_parts(self) -> Option<SendFile> {
        match self {
            Self::SendFile(send) => Some(send.finish().2),
            _ => None,
        }
    }

    /// Continues and returns what to report. After `None`, `waker` is woken when it should be
    /// polled again, or a connection must be taken first.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Option<Step> {
        let (work, step) = mem::replace(self, Self::Taken).go_on(&mut Context::from_waker(waker));
        *self = work;
        step
    }

    fn go_on(self, cx: &mut Context<'_>) -> (Self, Option<Step>) {
        let over = match self {
            Self::Connect((stream, remote)) => match stream.poll_connect(cx, remote) {
                Poll::Pending => return (Self::Connect((stream, remote)), None),
                Poll::Ready(result) => Self::Connected(result.map(|()| (stream, remote))),
            },
            Self::Accept(listener, None) => match listener.poll_accept(cx) {
                Poll::Pending => return (Self::Accept(listener, None), None),
                Poll::Ready(Ok(next)) => {
                    return (Self::Accept(listener, Some(next)), Some(Step::Accepted));
                }
                Poll::Ready(Err(error)) => Self::Connected(Err(error)),
            },
            Self::Receive(_, buffer, _) if buffer.is_empty() => Self::Bytes(Ok(0), buffer),
            Self::Receive(stream, buffer, all) => match Posted::receive(stream, buffer, all, cx) {
                Receiving::Posted(posted) => return (Self::Posted(posted), None),
                Receiving::Over((result, buffer)) => Self::Bytes(result, buffer),
            },
            Self::Posted(mut posted) => match posted.poll(cx) {
                None => return (Self::Posted(posted), None),
                Some((result, buffer)) => Self::Bytes(result, buffer),
            },
            Self::ReceiveLent(stream, max) => match Self::receive_lent(&stream, max, cx) {
                Poll::Pending => return (Self::ReceiveLent(stream, max), None),
                Poll::Ready(over) => over,
            },
            Self::Send(stream, mut going) => match stream.poll_send_zc(cx, &mut going) {
                Poll::Pending => return (Self::Send(stream, going), None),
                Poll::Ready(sent) => return Self::accepted(sent),
            },
            Self::ReceiveDatagram(socket, mut into) => {
                match socket.poll_recv_from(cx, into.bytes_mut()) {
                    Poll::Pending => return (Self::ReceiveDatagram(socket, into), None),
                    Poll::Ready(result) => Self::Datagram(Box::new((result, into))),
                }
            }
            Self::ReceiveDatagramLent(socket) => match Self::receive_datagram_lent(&socket, cx) {
                Poll::Pending => return (Self::ReceiveDatagramLent(socket), None),
                Poll::Ready(over) => over,
            },
            Self::SendDatagrams(socket, mut going) => match socket.poll_send_zc(cx, &mut going) {
                Poll::Pending => return (Self::SendDatagrams(socket, going), None),
                Poll::Ready(sent) => return Self::accepted(sent),
            },
            Self::Sent(mut sending) => match Pin::new(&mut sending).poll(cx) {
                Poll::Pending => return (Self::Sent(sending), None),
                Poll::Ready(returned) => {
                    Self::Back(Ok(sending.accepted()), returned.buffer, returned.copied)
                }
            },
            Self::SendFile(mut send) => match send.poll(cx) {
                None => return (Self::SendFile(send), None),
                Some(FileStep::Sent(bytes)) => {
                    return (Self::SendFile(send), Some(Step::Sent(bytes as usize)));
                }
                Some(FileStep::Over) => Self::FileSent(send.finish()),
            },
            Self::ReceiveFile(mut receive) => match receive.poll(cx) {
                false => return (Self::ReceiveFile(receive), None),
                true => Self::FileReceived(receive.finish()),
            },
            waits @ (Self::Accept(_, Some(_)) | Self::Last(..) | Self::Taken) => {
                return (waits, None);
            }
            // Complete.
            over => over,
        };
        (over, Some(Step::Over))
    }

    fn receive_lent(stream: &TcpStream, max: usize, cx: &mut Context<'_>) -> Poll<Self> {
        let mut pieces = Vec::new();
        if max == 0 {
            return Poll::Ready(Self::Pieces(Ok(pieces)));
        }
        let received = ready!(stream.poll_receive_lent(cx, Crowded::Waits, max, &mut pieces));
        Poll::Ready(Self::Pieces(received.map(|_| pieces)))
    }

    fn receive_datagram_lent(socket: &UdpSocket, cx: &mut Context<'_>) -> Poll<Self> {
        let (mut headers, mut pieces) = (Vec::new(), Vec::new());
        let (crowded, into) = (Crowded::Waits, (&mut headers, &mut pieces));
        let received = ready!(socket.poll_recv_frame_lent(cx, crowded, into.0, into.1));
        Poll::Ready(Self::DatagramLent(Box::new((received, headers, pieces))))
    }

    /// Handles the socket's answer to a send.
    fn accepted(sent: Result<Sending<AnyBuffer>, SendError<AnyBuffer>>) -> (Self, Option<Step>) {
        match sent {
            Ok(sending) => {
                let step = Step::Sent(sending.accepted());
                (Self::Sent(sending), Some(step))
            }
            Err(failed) => (Self::Back(Err(failed.error), failed.buffer, false), Some(Step::Over)),
        }
    }

    /// Ends the operation for this reason, unless it has a result already. Accepted bytes are still
    /// sent, and their buffer is recalled.
    pub(crate) fn stop(&mut self, why: Errno) {
        *self = match mem::replace(self, Self::Taken) {
            Self::Connect(_) | Self::Accept(_, None) => Self::Connected(Err(why.into())),
            Self::Accept(_, Some(next)) => Self::Last(next, why),
            Self::Receive(_, buffer, _) => Self::Bytes(Err(why.into()), buffer),
            Self::Posted(mut posted) => match posted.withdraw() {
                Ok((result, buffer)) => Self::Bytes(result, buffer),
                Err(buffer) => Self::Bytes(Err(why.into()), buffer),
            },
            Self::ReceiveLent(..) => Self::Pieces(Err(why.into())),
            Self::Send(_, mut going) => Self::accepted(going.stop(why.into())).0,
            Self::ReceiveDatagram(_, buffer) => Self::Datagram(Box::new((Err(why.into()), buffer))),
            Self::ReceiveDatagramLent(_) => {
                Self::DatagramLent(Box::new((Err(why.into()), Vec::new(), Vec::new())))
            }
            Self::SendDatagrams(_, mut going) => Self::accepted(going.stop(why.into())).0,
            Self::Sent(sending) => {
                sending.recall();
                Self::Sent(sending)
            }
            Self::SendFile(mut send) => {
                send.stop(why);
                Self::SendFile(send)
            }
            Self::ReceiveFile(mut receive) => {
                receive.stop(why);
                Self::ReceiveFile(receive)
            }
            other => other,
        };
    }

    /// Takes the loads to carry out, after a poll.
    pub(crate) fn take_loads(&mut self) -> Vec<Load> {
        match self {
            Self::SendFile(send) => send.take_loads(),
            _ => Vec::new(),
        }
    }

    /// Takes the write to carry out, after a poll.
    pub(crate) fn take_write(&mut self) -> Option<DeviceWrite> {
        match self {
            Self::ReceiveFile(receive) => receive.take_write(),
            _ => None,
        }
    }

    /// Handles the result of the write.
    pub(crate) fn written(&mut self, outcome: Outcome) {
        if let Self::ReceiveFile(receive) = self {
            receive.written(outcome);
        }
    }

    /// Takes the connection that [`Step::Accepted`] reported.
    pub(crate) fn take_next(&mut self) -> Option<Connection> {
        match mem::replace(self, Self::Taken) {
            Self::Accept(listener, next) => {
                *self = Self::Accept(listener, None);
                next
            }
            Self::Last(next, why) => {
                *self = Self::Connected(Err(why.into()));
                Some(next)
            }
            other => {
                *self = other;
                None
            }
        }
    }

    /// Accepts another connection, if an accept is in progress and has none to take. After `None`,
    /// `waker` is woken when there is one, or the next poll reports why the accept ended.
    pub(crate) fn accept(&mut self, waker: &Waker) -> Option<Connection> {
        let Self::Accept(listener, None) = self else { return None };
        match listener.poll_accept(&mut Context::from_waker(waker)) {
            Poll::Pending => None,
            Poll::Ready(Ok(next)) => Some(next),
            Poll::Ready(Err(error)) => {
                *self = Self::Connected(Err(error));
                waker.wake_by_ref();
                None
            }
        }
    }

    /// Takes the completed operation.
    pub(crate) fn take_over(&mut self) -> Option<Self> {
        let is_over = matches!(
            self,
            Self::Connected(_)
                | Self::Bytes(..)
                | Self::Back(..)
                | Self::Pieces(_)
                | Self::Datagram(_)
                | Self::DatagramLent(_)
                | Self::FileSent(_)
                | Self::FileReceived(_)
        );
        is_over.then(|| mem::replace(self, Self::Taken))
    }
}
