//! Listeners on the program's loopback, as they come and go.

use super::{JoinedFlows, JoinedListener, Listening};
use crate::flows::Slot;
use crate::flows::{Gateway, Token};
use std::io;
use towpath_io::reactor::{Interest, Reactor};

/// Identifies a listener on the program's loopback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinId(Slot);

impl JoinedFlows {
    /// Takes over a listener.
    pub(in crate::flows) fn listen(
        &mut self,
        listener: JoinedListener,
        reactor: &Reactor,
    ) -> io::Result<Slot> {
        self.pipes.prepare()?;
        let is_ipv4 = listener.socket.local()?.is_ipv4();
        let token = Token::JoinedListener(self.listeners.next_key()).encode();
        let interest = if self.is_listening { Interest::READ } else { Interest::NONE };
        reactor.add(&listener.socket, token, interest, false)?;
        Ok(self.listeners.insert(Listening { listener, is_ipv4, has_backlog: false }))
    }
}

impl Gateway {
    /// Joins connections to this listener with connections to the host's loopback from now on.
    pub(crate) fn join(
        &mut self,
        listener: JoinedListener,
        reactor: &Reactor,
    ) -> io::Result<JoinId> {
        self.joined.listen(listener, reactor).map(JoinId)
    }

    /// Closes a listener; its flows continue.
    pub(crate) fn leave(&mut self, id: JoinId, reactor: &Reactor) {
        if let Some(listening) = self.joined.listeners.remove(id.0) {
            // Closing it does the same.
            let _ = reactor.remove(&listening.listener.socket);
        }
    }
}
