//! Connections that move from one stack to another, which continues them: the owner of both spreads
//! its connections over several threads.
//!
//! Both stacks must tell the same time, and the second one must get all packets of the connection
//! that come after it. Nothing is sent, and no byte is copied. The second stack arms
//! the timers anew. Limits of connections do not apply to connections that exist already.

use super::handles::TcpHandle;
use super::listeners::Role;
use super::time_wait::TimeWaitEntry;
use super::{Stack, table::Slot};
use crate::tcp::Connection;
use crate::time::Instant;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// A connection between two stacks. Dropping it ends the connection without a packet.
pub struct MovedTcp {
    /// Its handle in the former stack, where it finds nothing any more. `None` for a connection in
    /// TIME-WAIT that the owner has released.
    pub former: Option<TcpHandle>,
    state: Moved,
}

enum Moved {
    Connection { connection: Box<Connection>, is_half_open: bool, is_indexed: bool },
    TimeWait(TimeWaitEntry),
}

impl Stack {
    /// Takes out the connections that `is_wanted` selects by their local and their remote address,
    /// those without an owner and those in TIME-WAIT included. Visits all connections.
    ///
    /// Events that the owner has not taken are lost: it has to look at each connection.
    pub fn tcp_take(
        &mut self,
        mut is_wanted: impl FnMut(SocketAddr, SocketAddr) -> bool,
    ) -> Vec<MovedTcp> {
        let mut taken = Vec::new();
        for index in 0..self.tcp.slots.places_len() as u32 {
            let former = Some(self.tcp.handle(index));
            let Slot { connection, role, share, indexed, .. } = &self.tcp.slots[index as usize];
            let Some(connection) = connection.as_deref().filter(|_| *role == Role::Owned) else {
                continue;
            };
            if !is_wanted(connection.local(), connection.remote()) {
                continue;
            }
            let (is_half_open, is_indexed) = (share.is_half_open(), *indexed);
            self.tcp.unindex(index);
            if let Some(connection) = self.tcp.slots[index as usize].connection.take() {
                let state = Moved::Connection { connection, is_half_open, is_indexed };
                taken.push(MovedTcp { former, state });
            }
            self.tcp.remove(index);
        }
        for entry in self.tcp.time_wait.take(is_wanted) {
            taken.push(MovedTcp { former: None, state: Moved::TimeWait(entry) });
        }
        taken
    }

    /// Continues a connection. Returns its handle, unless it is in TIME-WAIT without an owner, or
    /// ended because there is another connection with its addresses.
    pub fn tcp_put(&mut self, moved: MovedTcp, now: Instant) -> Option<TcpHandle> {
        let (connection, is_half_open, is_indexed) = match moved.state {
            Moved::Connection { connection, is_half_open, is_indexed } => {
                (connection, is_half_open, is_indexed)
            }
            Moved::TimeWait(entry) => {
                self.tcp.time_wait.insert(entry);
                return None;
            }
        };
        if is_indexed && self.tcp_is_used(connection.local(), connection.remote()) {
            return None;
        }
        let index = self.tcp.insert(connection);
        if !is_indexed {
            self.tcp.unindex(index);
        }
        if is_half_open {
            self.tcp.begin_half_open(index);
        }
        // It keeps what it knows of its path, until a path changes here.
        self.tcp.slots[index as usize].path_version = self.paths.version();
        self.tcp.settle(index, now);
        self.tcp.slots[index as usize].connection.as_ref()?;
        Some(self.tcp.handle(index))
    }

    /// Changes [`Limits::connections`](super::Limits::connections) for new connections.
    pub fn set_connections_max(&mut self, most: usize) {
        self.tcp.connections_max = most;
    }

    /// Changes [`Limits::half_open`](super::Limits::half_open). Those beyond it are evicted one by
    /// one as new ones come.
    pub fn set_half_open_max(&mut self, most: usize) {
        self.tcp.half_open_max = most;
    }

    /// Returns the number of half-open connections.
    pub fn tcp_half_open_count(&self) -> usize {
        self.tcp.half_open_count
    }
}
