//! Several changes of a network at once: all of them, or none.
//!
//! Changes are made in order, between two turns, so no packet sees a part of them. When one fails,
//! the changes before it are undone in reverse order: an added port is removed, a changed port gets
//! its former settings. A removed port only gives up its name until all changes have succeeded. So
//! it comes back as it was, with its connected guest and all waiting packets. The price: its
//! number, its socket and its TAP device are free only for the next transaction. The number of
//! workers changes last, so that this change never has to be undone.

use std::sync::Arc;

use towpath_net::switch::{Guard, PortVlans, Prefix, Role, StormRates};
use towpath_net::vxlan::remotes::{self, Origin};
use towpath_net::wire::MacAddr;

use super::{Attachment, Bandwidth, Network, PortError, PortSettings, WorkersError};
use crate::egress::policy::Policy;
use crate::flows::{StartError, UndoPort};
use crate::publish::PortChange;
use crate::services::{Automatic, Checkpoint, Guest, Services, StaticLease, StaticLeaseError};
use crate::worker::Worker;

/// One change of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Attaches a port.
    Add {
        /// Its name.
        name: String,
        /// Its device.
        attachment: Attachment,
        /// Its settings.
        settings: PortSettings,
    },
    /// Detaches the port with this name.
    Del(String),
    /// Changes the port with this name.
    Set(String, Change),
    /// Reserves an address for a guest, or gives it a name, and chooses what is left open.
    AddLease(StaticLease, Automatic),
    /// Ends a guest's static lease.
    DelLease(Guest),
    /// Publishes ports of the host for a guest, or unpublishes them.
    Ports(PortChange),
    /// Changes the remotes of the VXLAN port with this name.
    Remote(String, remotes::Change),
    /// Changes the number of workers, after all other operations; `None`: to as many as `auto` gave
    /// when the network began. Of several, the last one counts.
    Workers(Option<usize>),
}

/// Changed settings of a port; `None` leaves a setting as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Packets that may wait for each of its queues.
    pub queue_len: Option<usize>,
    /// Its VLANs.
    pub vlans: Option<PortVlans>,
    /// Which ports it may reach.
    pub role: Option<Role>,
    /// Link-layer addresses that its station may use.
    pub macs: Option<Vec<MacAddr>>,
    /// IP addresses that its station may use.
    pub addresses: Option<Vec<Prefix>>,
    /// Whether its station may be a router and run a DHCP server.
    pub is_router: Option<bool>,
    /// Packets per second that its station may send to more than one station.
    pub storm: Option<StormRates>,
    /// Largest IP packet to its station.
    pub mtu: Option<u16>,
    /// Whether its link is up.
    pub is_up: Option<bool>,
    /// Its own policy, or none.
    pub egress: Option<Option<Arc<Policy>>>,
    /// Bound of all frames from its station, or none.
    pub bandwidth_out: Option<Option<Bandwidth>>,
    /// Bound of all frames to its station, or none.
    pub bandwidth_in: Option<Option<Bandwidth>>,
}

/// Why a transaction failed. Nothing was changed, except with [`OperationError::Incomplete`] and
/// [`OperationError::NotUndone`].
#[derive(Debug, thiserror::Error)]
#[error("operation {}: {error}", index + 1)]
pub struct TransactionError {
    /// Index of the operation that failed, from 0.
    pub index: usize,
    /// The reason.
    pub error: OperationError,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum OperationError {
    /// An operation on a port failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// An operation on a static lease failed.
    #[error(transparent)]
    Lease(#[from] StaticLeaseError),
    /// An operation on a published port failed.
    #[error(transparent)]
    Publish(#[from] StartError),
    /// The number of workers was not changed.
    #[error(transparent)]
    Workers(#[from] WorkersError),
    /// All operations of the transaction were made, but the worker of a removed port did not
    /// answer. The port is no longer part of the network.
    #[error(
        "all changes were made, but port '{name}' may still hold its socket or device: {error}"
    )]
    Incomplete {
        /// The removed port.
        name: String,
        /// What its worker answered.
        error: PortError,
    },
    /// The operation failed, and operations before it could not be undone, as a worker did not
    /// answer.
    #[error("{cause}; and changes before it could not be undone: {error}")]
    NotUndone {
        /// Why the operation failed.
        cause: Box<OperationError>,
        /// The first error of undoing.
        error: PortError,
    },
    /// The operation needs a gateway, which this network does not have.
    #[error("cannot publish ports: the network has no gateway")]
    NoGateway,
    /// The operation needs the services, which this network does not have.
    #[error("the network does not lease addresses: DHCP is disabled, or there is no gateway")]
    NoServices,
}

/// How to undo an operation.
enum Undo {
    Remove(String),
    Restore(String, PortSettings),
    /// Change the remotes of a port.
    Remotes(String, Vec<(remotes::Change, Origin)>),
    /// Keep the port at this index, which this operation removes.
    Stay {
        index: usize,
        operation: usize,
    },
    /// Restore the services.
    Return(Box<Checkpoint>),
    /// Undo a change of a published port.
    Published(UndoPort),
}

impl From<UndoPort> for Undo {
    fn from(undo: UndoPort) -> Self {
        Self::Published(undo)
    }
}

impl Change {
    /// Returns `settings` with the change.
    pub(crate) fn apply_to(self, settings: PortSettings) -> PortSettings {
        PortSettings {
            queue_len: self.queue_len.unwrap_or(settings.queue_len),
            vlans: self.vlans.unwrap_or(settings.vlans),
            role: self.role.unwrap_or(settings.role),
            guard: Guard {
                macs: self.macs.unwrap_or(settings.guard.macs),
                addresses: self.addresses.unwrap_or(settings.guard.addresses),
            },
            is_router: self.is_router.unwrap_or(settings.is_router),
            storm: self.storm.unwrap_or(settings.storm),
            pairs: settings.pairs,
            mtu: self.mtu.or(settings.mtu),
            is_up: self.is_up.unwrap_or(settings.is_up),
            egress: self.egress.unwrap_or(settings.egress),
            bandwidth_out: self.bandwidth_out.unwrap_or(settings.bandwidth_out),
            bandwidth_in: self.bandwidth_in.unwrap_or(settings.bandwidth_in),
        }
    }
}

impl Worker<Network> {
    /// Makes all changes, in order, or none. The module text describes how removed ports behave.
    ///
    /// # Errors
    /// [`TransactionError`]: the first operation that failed; nothing was changed. If a worker has
    /// stopped, so that changes cannot be completed or undone, the error says so.
    pub fn apply(&mut self, operations: Vec<Operation>) -> Result<(), TransactionError> {
        let mut done = Vec::with_capacity(operations.len());
        if let Err(TransactionError { index, error }) = self.apply_all(operations, &mut done) {
            let undone = done.into_iter().rev().map(|undo| self.take_back(undo));
            let error = match undone.fold(Ok(()), Result::and) {
                Ok(()) => error,
                Err(of_undoing) => {
                    OperationError::NotUndone { cause: Box::new(error), error: of_undoing }
                }
            };
            return Err(TransactionError { index, error });
        }
        done.into_iter().map(|undo| self.complete(undo)).fold(Ok(()), Result::and)
    }

    /// Makes what is left to do for a change, now that all have succeeded.
    ///
    /// # Errors
    /// A removed port has no error of the switch, but its worker may not answer.
    fn complete(&mut self, undo: Undo) -> Result<(), TransactionError> {
        match undo {
            Undo::Stay { index, operation } => {
                let network = self.inside_mut();
                let member = network.members[index].as_ref();
                let name = member.map_or_else(String::new, |member| member.name.clone());
                let removed = network.remove_at(index).map(drop);
                let now = self.now();
                self.gateway().0.forget_guest(index as u16, now);
                removed.map_err(|error| TransactionError {
                    index: operation,
                    error: OperationError::Incomplete { name, error },
                })
            }
            Undo::Published(undo) => {
                let (gateway, reactor) = self.gateway();
                gateway.complete_change(undo, reactor);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Makes all changes up to one that fails, and adds to `done` how to undo them.
    fn apply_all(
        &mut self,
        operations: Vec<Operation>,
        done: &mut Vec<Undo>,
    ) -> Result<(), TransactionError> {
        let mut workers = None;
        for (index, operation) in operations.into_iter().enumerate() {
            if let Operation::Workers(count) = &operation {
                workers = Some((index, *count));
            }
            let made = self.apply_one(index, operation, done);
            made.map_err(|error| TransactionError { index, error })?;
        }
        let Some((index, count)) = workers else { return Ok(()) };
        let count = count.unwrap_or(self.inside().workers_auto);
        let changed = self.change_workers(count);
        changed.map_err(|error| TransactionError { index, error: error.into() })
    }

    /// Makes one change, operation `at` of its transaction, and adds to `done` how to undo it.
    fn apply_one(
        &mut self,
        at: usize,
        operation: Operation,
        done: &mut Vec<Undo>,
    ) -> Result<(), OperationError> {
        let now = self.now();
        let network = self.inside_mut();
        match operation {
            Operation::Add { name, attachment, settings } => {
                network.add_port(&name, attachment, settings)?;
                done.push(Undo::Remove(name));
            }
            Operation::Del(name) => {
                let index = network.find(&name)?;
                network.set_leaving(index, true);
                done.push(Undo::Stay { index, operation: at });
            }
            Operation::Set(name, change) => {
                let before = network.settings(&name)?.clone();
                network.set_port(&name, change.apply_to(before.clone()))?;
                done.push(Undo::Restore(name, before));
            }
            Operation::AddLease(lease, auto) => {
                network.services_to_change(done)?.add_automatic_lease(lease, auto, now)?
            }
            Operation::Ports(_) if !network.has_gateway() => return Err(OperationError::NoGateway),
            Operation::Ports(change) => {
                let (gateway, reactor) = self.gateway();
                gateway.change_ports(change, done, reactor)?;
            }
            Operation::DelLease(guest) => {
                network.services_to_change(done)?.remove_static_lease(&guest)?
            }
            Operation::Remote(port, change) => {
                let undo = network.undo_of_remotes(&port, change)?;
                network.change_remotes(&port, change)?;
                done.push(Undo::Remotes(port, undo));
            }
            // After all other operations.
            Operation::Workers(_) => {}
        }
        Ok(())
    }
}

impl Worker<Network> {
    /// Undoes a change.
    ///
    /// # Errors
    /// As of [`Network::take_back`].
    fn take_back(&mut self, undo: Undo) -> Result<(), PortError> {
        match undo {
            Undo::Published(undo) => {
                let (gateway, reactor) = self.gateway();
                gateway.undo_change(undo, reactor);
                Ok(())
            }
            undo => self.inside_mut().take_back(undo),
        }
    }
}

impl Network {
    /// Returns the services, after it added to `done` how to undo changes to them.
    fn services_to_change(
        &mut self,
        done: &mut Vec<Undo>,
    ) -> Result<&mut Services, OperationError> {
        let services = self.services.as_mut().ok_or(OperationError::NoServices)?;
        if !done.iter().any(|undo| matches!(undo, Undo::Return(_))) {
            done.push(Undo::Return(Box::new(services.checkpoint())));
        }
        Ok(services)
    }

    /// Undoes a change that is not the gateway's.
    ///
    /// # Errors
    /// A worker does not answer. Names are found, as later operations are undone already, and
    /// former settings were valid.
    fn take_back(&mut self, undo: Undo) -> Result<(), PortError> {
        match undo {
            // The gateway undoes these.
            Undo::Published(_) => {}
            Undo::Remove(name) => self.remove_port(&name)?,
            Undo::Restore(name, before) => self.set_port(&name, before)?,
            Undo::Remotes(port, changes) => {
                for (change, origin) in changes {
                    // The table was like this before, so this cannot fail.
                    let _ = self.change_remotes_for(&port, change, origin);
                }
            }
            Undo::Stay { index, .. } => self.set_leaving(index, false),
            Undo::Return(checkpoint) => {
                if let Some(services) = &mut self.services {
                    services.return_to(*checkpoint);
                }
            }
        }
        Ok(())
    }

    fn set_leaving(&mut self, index: usize, is_leaving: bool) {
        if let Some(member) = &mut self.members[index] {
            member.is_leaving = is_leaving;
        }
    }
}
