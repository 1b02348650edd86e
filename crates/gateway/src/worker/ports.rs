//! Ports of a running worker: published ones, those of the host's loopback, and mapped addresses.

use super::{Inside, Worker};
use crate::config::MappedAddress;
use crate::flows::{
    JoinId, JoinedDatagrams, JoinedDatagramsId, JoinedListener, NativeListen, StartError, UndoPort,
};
use crate::publish::{PortChange, Publish, PublishId};
use std::io;
use std::os::fd::OwnedFd;
use towpath_io::namespace::sockets::SocketSource;

impl<S: Inside> Worker<S> {
    /// Joins the program's connections to these sockets, which listen on its loopback, with
    /// connections to the host's loopback.
    ///
    /// # Errors
    /// A socket does not listen, or cannot be watched.
    pub fn join(&mut self, listeners: Vec<JoinedListener>) -> io::Result<()> {
        listeners.into_iter().try_for_each(|listener| self.join_one(listener).map(drop))
    }

    /// Joins connections to this socket as [`Worker::join`] does, until [`Worker::leave`].
    ///
    /// # Errors
    /// The socket does not listen, or cannot be watched.
    pub fn join_one(&mut self, listener: JoinedListener) -> io::Result<JoinId> {
        self.gateway.join(listener, &self.reactor)
    }

    /// Closes a socket of [`Worker::join_one`]. Its flows continue.
    pub fn leave(&mut self, id: JoinId) {
        self.gateway.leave(id, &self.reactor);
    }

    /// Passes datagrams that arrive at this socket, which is bound on the program's loopback, on to
    /// the host's loopback, until [`Worker::leave_datagrams`].
    ///
    /// # Errors
    /// The socket is not bound, or cannot be watched.
    pub fn join_datagrams(&mut self, joined: JoinedDatagrams) -> io::Result<JoinedDatagramsId> {
        self.gateway.join_datagrams(joined, &self.reactor)
    }

    /// Closes a socket of [`Worker::join_datagrams`], and ends its flows.
    pub fn leave_datagrams(&mut self, id: JoinedDatagramsId) {
        self.gateway.leave_datagrams(id);
    }

    /// Joins connections from the host's loopback to published ports, over sockets that `source`
    /// opens inside.
    ///
    /// # Errors
    /// The source cannot be watched.
    pub fn join_published(&mut self, source: SocketSource) -> io::Result<()> {
        self.gateway.join_published(source, &self.reactor)
    }

    /// Sets which addresses inside stand for addresses of the host, in place of those of the
    /// configuration. The addresses inside must be those of the configuration.
    pub fn map_addresses(&mut self, addresses: Vec<MappedAddress>) {
        self.gateway.map_addresses(addresses);
    }

    /// Publishes a port of the host.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn publish(&mut self, publish: &Publish) -> Result<PublishId, StartError> {
        self.gateway.publish(publish, &self.reactor)?;
        let published = self.gateway.published_at(&publish.host_port());
        Ok(published.map(|(id, _)| id).expect("it was just published"))
    }

    /// Closes a published port; returns false if there is none with this ID. Its flows continue.
    pub fn unpublish(&mut self, id: PublishId) -> bool {
        let port = self.published().find(|(other, _)| *other == id);
        let port = port.map(|(_, publish)| publish.host_port());
        port.inspect(|port| self.gateway.unpublish(port, &self.reactor)).is_some()
    }

    /// Lets a socket of the host, which the program gets, listen at the published port that leads
    /// to `port` of the program, in the place of the port's own sockets, until
    /// [`Worker::native_ended`].
    pub fn listen_natively(&mut self, socket: &OwnedFd, port: u16, backlog: i32) -> NativeListen {
        self.gateway.listen_natively(socket, port, backlog, &self.reactor)
    }

    /// A socket of [`Worker::listen_natively`] has ended: the port's own sockets listen again,
    /// unless there are others. Returns false if another program of the host listens there by now.
    pub fn native_ended(&mut self, id: PublishId) -> bool {
        self.gateway.native_ended(id, &self.reactor)
    }

    /// Returns the ports whose sockets of [`Worker::listen_natively`] have to stop, since the last
    /// call: they are not published any more, or lead elsewhere.
    pub fn take_revoked(&mut self) -> Vec<PublishId> {
        self.gateway.take_revoked()
    }

    /// Makes all changes of published ports, in order, or none. Flows of closed ports continue, and
    /// closed ports are free when this returns.
    ///
    /// # Errors
    /// The index of the first change that failed, and the reason.
    pub fn change_ports(&mut self, changes: Vec<PortChange>) -> Result<(), (usize, StartError)> {
        let mut done: Vec<UndoPort> = Vec::new();
        let Self { gateway, reactor, .. } = self;
        for (index, change) in changes.into_iter().enumerate() {
            if let Err(error) = gateway.change_ports(change, &mut done, reactor) {
                done.into_iter().rev().for_each(|undo| gateway.undo_change(undo, reactor));
                return Err((index, error));
            }
        }
        done.into_iter().for_each(|undo| gateway.complete_change(undo, reactor));
        Ok(())
    }

    /// Returns the published ports of the host.
    pub fn published(&self) -> impl Iterator<Item = (PublishId, &Publish)> {
        self.gateway.published()
    }
}
