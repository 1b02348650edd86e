//! Results of operations of a known kind.

use std::io;
use std::net::SocketAddr;
use towpath::events::{
    Completed, Completion, EventQueue, FileSent, Moved, Received, ReceivedInto, ReceivedLent, Sent,
    Stream, Token,
};
use towpath::host::ReceivedPiece;

/// The result of an operation with a buffer, whatever its direction.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) result: io::Result<usize>,
    pub(crate) buffer: Vec<u8>,
    pub(crate) copied: bool,
}

impl From<Completed> for Done {
    fn from(Completed { result, buffer, .. }: Completed) -> Self {
        Self { result, buffer, copied: false }
    }
}

impl From<Sent> for Done {
    fn from(Sent { result, buffer, copied, .. }: Sent) -> Self {
        Self { result, buffer: buffer.downcast().unwrap(), copied }
    }
}

/// Each method takes the result of an operation of one kind, and fails if it is of another.
pub(crate) trait Taken {
    fn take_done(&mut self, token: Token) -> Option<Done>;
    fn take_stream(&mut self, token: Token) -> Option<io::Result<(Stream, Option<SocketAddr>)>>;
    fn take_pieces(&mut self, token: Token) -> Option<io::Result<Vec<ReceivedPiece>>>;
    fn take_received(&mut self, token: Token) -> Option<io::Result<Received>>;
    fn take_datagram(&mut self, token: Token) -> Option<ReceivedInto>;
    fn take_datagram_lent(&mut self, token: Token) -> Option<ReceivedLent>;
    fn take_file(&mut self, token: Token) -> Option<FileSent>;
    fn take_moved(&mut self, token: Token) -> Option<Moved>;
    fn take_called(&mut self, token: Token) -> Option<(u64, io::Result<()>)>;
}

impl Taken for EventQueue {
    fn take_done(&mut self, token: Token) -> Option<Done> {
        Some(match self.take(token)? {
            Completion::Bytes(completed) => completed.into(),
            Completion::Sent(sent) => sent.into(),
            other => panic!("{other:?}"),
        })
    }

    fn take_stream(&mut self, token: Token) -> Option<io::Result<(Stream, Option<SocketAddr>)>> {
        let connected = self.take(token)?.into_connected().unwrap();
        Some(connected.map(|connected| {
            let remote = connected.peer_addr();
            (connected.stream, remote)
        }))
    }

    fn take_pieces(&mut self, token: Token) -> Option<io::Result<Vec<ReceivedPiece>>> {
        Some(self.take(token)?.into_pieces().unwrap())
    }

    fn take_received(&mut self, token: Token) -> Option<io::Result<Received>> {
        Some(self.take(token)?.into_received().unwrap())
    }

    fn take_datagram(&mut self, token: Token) -> Option<ReceivedInto> {
        Some(self.take(token)?.into_datagram().unwrap())
    }

    fn take_datagram_lent(&mut self, token: Token) -> Option<ReceivedLent> {
        Some(self.take(token)?.into_datagram_lent().unwrap())
    }

    fn take_file(&mut self, token: Token) -> Option<FileSent> {
        Some(self.take(token)?.into_file_sent().unwrap())
    }

    fn take_moved(&mut self, token: Token) -> Option<Moved> {
        Some(self.take(token)?.into_moved().unwrap())
    }

    fn take_called(&mut self, token: Token) -> Option<(u64, io::Result<()>)> {
        Some(self.take(token)?.into_called().unwrap())
    }
}
