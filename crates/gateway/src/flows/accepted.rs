//! A connection to a published port that has been accepted and has no flow yet.

use std::net::SocketAddr;
use towpath_io::socket::TcpSocket;

use crate::owners::{Bucket, of_connection};

/// A connection to a published port.
pub(crate) struct Accepted {
    /// The host's side.
    pub(crate) socket: TcpSocket,
    /// The peer's address that the program sees.
    pub(crate) inside: SocketAddr,
    /// The program's address.
    pub(crate) program: SocketAddr,
}

impl Accepted {
    pub(super) fn bucket(&self) -> Bucket {
        of_connection(self.inside, self.program.port())
    }
}
