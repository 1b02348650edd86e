//! The workers of an instance that serves one program.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use towpath_gateway::capture::Recording;
use towpath_gateway::egress::enforcer::Enforcer;
use towpath_gateway::flows::{
    FlowPage, FlowQuery, JoinId, JoinedDatagrams, JoinedDatagramsId, JoinedListener, NativeListen,
    StartError,
};
use towpath_gateway::publish::{PortChange, Publish, PublishId};
use towpath_gateway::report::Report;
use towpath_gateway::worker::Worker;
use towpath_gateway::worker_group::WorkerGroup;
use towpath_io::namespace::sockets::SocketSource;
use towpath_net::time::Instant;

use crate::control::api::Serving;
use crate::control::published::Publishing;

/// One worker on this thread, or several.
pub(super) enum Threads {
    One(Box<Worker>),
    Several(Box<WorkerGroup>),
}

impl Threads {
    pub(super) fn join(&mut self, listeners: Vec<JoinedListener>) -> io::Result<()> {
        match self {
            Self::One(worker) => worker.join(listeners),
            Self::Several(workers) => workers.join(listeners),
        }
    }

    pub(super) fn join_one(&mut self, listener: JoinedListener) -> io::Result<JoinId> {
        match self {
            Self::One(worker) => worker.join_one(listener),
            Self::Several(workers) => workers.join_one(listener),
        }
    }

    pub(super) fn leave(&mut self, id: JoinId) {
        match self {
            Self::One(worker) => worker.leave(id),
            Self::Several(workers) => workers.leave(id),
        }
    }

    pub(super) fn join_datagrams(
        &mut self,
        joined: JoinedDatagrams,
    ) -> io::Result<JoinedDatagramsId> {
        match self {
            Self::One(worker) => worker.join_datagrams(joined),
            Self::Several(workers) => workers.join_datagrams(joined),
        }
    }

    pub(super) fn leave_datagrams(&mut self, id: JoinedDatagramsId) {
        match self {
            Self::One(worker) => worker.leave_datagrams(id),
            Self::Several(workers) => workers.leave_datagrams(id),
        }
    }

    pub(super) fn join_published(&mut self, source: SocketSource) -> io::Result<()> {
        match self {
            Self::One(worker) => worker.join_published(source),
            Self::Several(workers) => workers.join_published(source),
        }
    }

    pub(super) fn listen_natively(
        &mut self,
        socket: &OwnedFd,
        port: u16,
        backlog: i32,
    ) -> NativeListen {
        match self {
            Self::One(worker) => worker.listen_natively(socket, port, backlog),
            Self::Several(workers) => workers.listen_natively(socket, port, backlog),
        }
    }

    pub(super) fn native_ended(&mut self, id: PublishId) -> bool {
        match self {
            Self::One(worker) => worker.native_ended(id),
            Self::Several(workers) => workers.native_ended(id),
        }
    }

    pub(super) fn take_revoked(&mut self) -> Vec<PublishId> {
        match self {
            Self::One(worker) => worker.take_revoked(),
            Self::Several(workers) => workers.take_revoked(),
        }
    }

    /// Returns the time of the clock that all workers share.
    pub(super) fn now(&self) -> Instant {
        match self {
            Self::One(worker) => worker.now(),
            Self::Several(workers) => workers.now(),
        }
    }

    pub(super) fn run_until(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        match self {
            Self::One(worker) => worker.run_until(descriptors),
            Self::Several(workers) => workers.run_until(descriptors),
        }
    }

    pub(super) fn recording(&mut self) -> Option<&mut Recording> {
        match self {
            Self::One(worker) => worker.recording(),
            Self::Several(workers) => workers.recording(),
        }
    }
}

impl Publishing for Threads {
    fn publish(&mut self, publish: &Publish) -> Result<PublishId, StartError> {
        match self {
            Self::One(worker) => worker.publish(publish),
            Self::Several(workers) => workers.publish(publish),
        }
    }

    fn unpublish(&mut self, id: PublishId) -> bool {
        match self {
            Self::One(worker) => worker.unpublish(id),
            Self::Several(workers) => workers.unpublish(id),
        }
    }

    fn change_ports(&mut self, changes: Vec<PortChange>) -> Result<(), (usize, StartError)> {
        match self {
            Self::One(worker) => worker.change_ports(changes),
            Self::Several(workers) => workers.change_ports(changes),
        }
    }

    fn published(&self) -> Vec<(PublishId, &Publish)> {
        match self {
            Self::One(worker) => worker.published().collect(),
            Self::Several(workers) => workers.published().collect(),
        }
    }
}

impl Serving for Threads {
    fn report(&self) -> Report {
        match self {
            Self::One(worker) => worker.report(),
            Self::Several(workers) => workers.report(),
        }
    }

    fn worker_count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Several(workers) => workers.count(),
        }
    }

    fn egress(&self) -> Option<&Arc<Enforcer>> {
        match self {
            Self::One(only) => only.egress(),
            Self::Several(workers) => workers.egress(),
        }
    }

    fn flows(&mut self, worker: usize, query: &FlowQuery) -> Option<FlowPage> {
        match self {
            Self::One(only) => Some(only.flows(query)),
            Self::Several(workers) => workers.flows(worker, query),
        }
    }
}
