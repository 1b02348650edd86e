//! Several changes of a network at once: all of them, or none.
//!
//! Changes are made in order, between two turns, so that no packet sees a part of them. When one
//! fails, those before it are taken back, the last first: a port that was added goes again, one
//! that was changed is set as before. A port that is removed only leaves the names until all
//! changes have been made; so it comes back as it was, with the guest that is connected and with
//! all that waits for it. The price: its number, its socket and its TAP device are free for the
//! next transaction only.

use towpath_net::switch::{PortVlans, Role};

use super::{Attachment, Network, PortError, PortSettings};

/// One change of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Attaches a port.
    Add {
        /// Its name.
        name: String,
        /// What is attached.
        attachment: Attachment,
        /// How it is set.
        settings: PortSettings,
    },
    /// Detaches the port with this name.
    Del(String),
    /// Changes the port with this name.
    Set(String, Change),
}

/// What changes at a port; the rest stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Packets that may wait for it.
    pub queue_len: Option<usize>,
    /// Its VLANs.
    pub vlans: Option<PortVlans>,
    /// Whom it may talk to.
    pub role: Option<Role>,
}

/// Why a transaction was not made. Everything is as before.
#[derive(Debug, thiserror::Error)]
#[error("operation {}: {error}", index + 1)]
pub struct TransactionError {
    /// The operation that failed, from 0.
    pub index: usize,
    /// Why.
    pub error: PortError,
}

/// How an operation is taken back.
enum Undo {
    Remove(String),
    Restore(String, PortSettings),
    /// The port at this place is not to leave.
    Stay(usize),
}

impl Change {
    /// `settings` with the change.
    pub fn apply_to(self, settings: PortSettings) -> PortSettings {
        PortSettings {
            queue_len: self.queue_len.unwrap_or(settings.queue_len),
            vlans: self.vlans.unwrap_or(settings.vlans),
            role: self.role.unwrap_or(settings.role),
            pairs: settings.pairs,
        }
    }
}

impl Network {
    /// Makes all changes, in order, or none. See the module text for what that means for ports that
    /// are removed.
    ///
    /// # Errors
    /// [`TransactionError`]: the first operation that is impossible; nothing was done.
    pub fn apply(&mut self, operations: Vec<Operation>) -> Result<(), TransactionError> {
        let mut done = Vec::with_capacity(operations.len());
        for (index, operation) in operations.into_iter().enumerate() {
            match self.apply_one(operation) {
                Ok(undo) => done.push(undo),
                Err(error) => {
                    done.into_iter().rev().for_each(|undo| self.take_back(undo));
                    return Err(TransactionError { index, error });
                }
            }
        }
        for undo in done {
            if let Undo::Stay(index) = undo {
                // It is a port of the switch, which removes those only.
                let _ = self.remove_at(index);
            }
        }
        Ok(())
    }

    fn apply_one(&mut self, operation: Operation) -> Result<Undo, PortError> {
        Ok(match operation {
            Operation::Add { name, attachment, settings } => {
                self.add_port(&name, attachment, settings)?;
                Undo::Remove(name)
            }
            Operation::Del(name) => {
                let index = self.find(&name)?;
                self.set_leaving(index, true);
                Undo::Stay(index)
            }
            Operation::Set(name, change) => {
                let before = self.settings(&name)?.clone();
                self.set_port(&name, change.apply_to(before.clone()))?;
                Undo::Restore(name, before)
            }
        })
    }

    fn take_back(&mut self, undo: Undo) {
        match undo {
            // The name was found when the operation was made, and what came later is undone.
            Undo::Remove(name) => drop(self.remove_port(&name)),
            // It was set so before.
            Undo::Restore(name, before) => drop(self.set_port(&name, before)),
            Undo::Stay(index) => self.set_leaving(index, false),
        }
    }

    fn set_leaving(&mut self, index: usize, is_leaving: bool) {
        if let Some(port) = &mut self.ports[index] {
            port.is_leaving = is_leaving;
        }
    }
}
