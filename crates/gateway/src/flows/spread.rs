//! Connections to published ports, spread over several workers.
//!
//! The first worker accepts them. Each belongs to the worker that the addresses and ports tell
//! with which the program sees it ([`Owners`]); he is handed the socket, and gets the packets. So
//! whoever begins a connection may use only such ports of a peer as make it his own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use towpath_io::doorbell::EventDoorbell;
use towpath_io::socket::TcpSocket;
use towpath_packet::ring::Doorbell;

use crate::owners::Owners;

/// A connection to a published port.
pub(crate) struct Accepted {
    /// The host's side.
    pub(crate) socket: TcpSocket,
    /// The peer, as the program sees him.
    pub(crate) inside: SocketAddr,
    /// The program's address.
    pub(crate) program: SocketAddr,
}

/// Which connections are this gateway's: all, unless there are others.
#[derive(Default)]
pub(crate) struct Spread(Option<Several>);

struct Several {
    owners: Arc<Owners>,
    index: usize,
    /// To the workers from the second on, for the first.
    others: Vec<(Sender<Accepted>, EventDoorbell)>,
}

impl Spread {
    /// Of the worker with this index.
    pub(crate) fn new(
        owners: Arc<Owners>,
        index: usize,
        others: Vec<(Sender<Accepted>, EventDoorbell)>,
    ) -> Self {
        Self(Some(Several { owners, index, others }))
    }

    /// True if a connection with these addresses is this gateway's.
    pub(super) fn is_ours(&self, inside: SocketAddr, program: SocketAddr) -> bool {
        self.0.as_ref().is_none_or(|several| {
            several.owners.of_connection(inside, program.port()) == several.index
        })
    }

    /// Hands a connection to its worker; `None` if that is another. It ends if he has ended.
    pub(super) fn hand_over(&self, accepted: Accepted) -> Option<Accepted> {
        let Some(several) = &self.0 else { return Some(accepted) };
        let owner = several.owners.of_connection(accepted.inside, accepted.program.port());
        let Some((to, bell)) = owner.checked_sub(1).and_then(|at| several.others.get(at)) else {
            return Some(accepted);
        };
        match to.send(accepted) {
            Ok(()) => bell.ring(),
            Err(back) => back.0.socket.reset(),
        }
        None
    }
}
