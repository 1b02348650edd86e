//! Connections to published ports, spread over several workers.
//!
//! The first worker accepts them. The addresses and ports under which the program sees a connection
//! decide the worker that owns it ([`Owners`]). That worker is handed the socket, and gets the
//! packets. So a worker that begins a connection may use only those peer ports that make the
//! connection its own.

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
    /// The peer's address that the program sees.
    pub(crate) inside: SocketAddr,
    /// The program's address.
    pub(crate) program: SocketAddr,
}

/// Which connections belong to this gateway: all, unless there are other workers.
#[derive(Default)]
pub(crate) struct Spread(Option<Several>);

struct Several {
    owners: Arc<Owners>,
    index: usize,
    /// Channels to the workers from the second on; only the first worker has them.
    others: Vec<(Sender<Accepted>, EventDoorbell)>,
}

impl Spread {
    /// Makes the share of the worker with this index.
    pub(crate) fn new(
        owners: Arc<Owners>,
        index: usize,
        others: Vec<(Sender<Accepted>, EventDoorbell)>,
    ) -> Self {
        Self(Some(Several { owners, index, others }))
    }

    /// Returns true if a connection with these addresses belongs to this gateway.
    pub(super) fn is_ours(&self, inside: SocketAddr, program: SocketAddr) -> bool {
        self.0.as_ref().is_none_or(|several| {
            several.owners.of_connection(inside, program.port()) == several.index
        })
    }

    /// Hands a connection to its worker; returns it if this worker owns it. The connection ends if
    /// its worker has ended.
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
