//! Changes of published ports, all of them or none.
//!
//! A change is made at once, and can be undone until it is completed: an added port is closed
//! again, and a removed port keeps its sockets until then.

use super::{Gateway, StartError};
use crate::publish::{Existing, HostPort, PortChange, Publish, Target};
use towpath_io::reactor::Reactor;

/// How to undo a change of one published port.
pub(crate) enum UndoPort {
    /// Close a port of the host that was not published before.
    Close(HostPort),
    /// Redirect a port of the host to its former target, and mark it as leaving.
    Lead(Publish),
    /// Keep the port of the host published.
    Stay(HostPort),
}

impl Gateway {
    /// Makes a change, and adds to `done` how to undo it. After an error, `done` undoes the part
    /// that was made.
    pub(crate) fn change_ports<U: From<UndoPort>>(
        &mut self,
        change: PortChange,
        done: &mut Vec<U>,
        reactor: &Reactor,
    ) -> Result<(), StartError> {
        match change {
            PortChange::Publish(mut all, existing) => {
                all.retain(|one| existing == Existing::Reject || !self.leads_there(one));
                let is_new = |one: &&Publish| !self.listeners.is_bound(&one.host_port());
                self.check_room(all.iter().filter(is_new))?;
                for publish in all {
                    let before = self.publish(&publish, reactor)?;
                    let undo =
                        before.map_or_else(|| UndoPort::Close(publish.host_port()), UndoPort::Lead);
                    done.push(undo.into());
                }
            }
            PortChange::Unpublish(target, only) => {
                for port in self.leaving(&target, only)? {
                    self.set_leaving(&port, true);
                    done.push(UndoPort::Stay(port).into());
                }
            }
        }
        Ok(())
    }

    /// Completes a change.
    pub(crate) fn complete_change(&mut self, undo: UndoPort, reactor: &Reactor) {
        if let UndoPort::Stay(port) = undo {
            self.close_leaving(&port, reactor);
        }
    }

    /// Undoes a change. Changes are undone in reverse order.
    pub(crate) fn undo_change(&mut self, undo: UndoPort, reactor: &Reactor) {
        match undo {
            UndoPort::Close(port) => self.unpublish(&port, reactor),
            UndoPort::Lead(before) => self.restore_leaving(before),
            UndoPort::Stay(port) => drop(self.set_leaving(&port, false)),
        }
    }

    /// Returns true if the port is published already, and leads to the same place.
    fn leads_there(&self, publish: &Publish) -> bool {
        self.published_at(&publish.host_port()).is_some_and(|(_, existing)| {
            existing.target == publish.target && existing.program_port == publish.program_port
        })
    }

    /// Returns the ports to unpublish: `only` these of the target, or all.
    fn leaving(
        &self,
        target: &Target,
        only: Option<Vec<HostPort>>,
    ) -> Result<Vec<HostPort>, StartError> {
        // An address inside is the program's, too.
        let is_its = |publish: &Publish| publish.target == *target || *target == Target::Program;
        let Some(only) = only else {
            let all = self.published().map(|(_, publish)| publish);
            return Ok(all.filter(|one| is_its(one)).map(Publish::host_port).collect());
        };
        let is_known =
            |port: &HostPort| self.published_at(port).is_some_and(|(_, publish)| is_its(publish));
        match only.iter().find(|port| !is_known(port)).cloned() {
            None => Ok(only),
            Some(other) if *target == Target::Program => Err(StartError::NotPublishedHere(other)),
            Some(other) => Err(StartError::NotPublished(other)),
        }
    }
}
