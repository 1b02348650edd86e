//! Names of connections and listeners.

use crate::slab::Key;

/// Names a connection of one stack. The handle of a removed connection finds no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TcpHandle(pub(super) Key);

impl TcpHandle {
    /// Index of the connection in the stack's table: small and reused, for parallel tables.
    pub fn index(self) -> usize {
        self.0.index as usize
    }

    /// Key in the stack's table.
    pub fn key(self) -> Key {
        self.0
    }
}

/// Names a listener of one stack. The handle of a closed listener finds no listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerHandle(pub(super) Key);
