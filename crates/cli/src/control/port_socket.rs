//! The socket of `--port-socket`: the ports that requests on it have published, in the form of
//! [`hostfwd`].
//!
//! Limits: [`CONNECTIONS_MAX`], see [`Clients`]; [`FORWARDS_MAX`] ports, at which a request for
//! another one fails.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::Context;
use towpath_gateway::publish::PublishId;
use towpath_io::endpoint::Listener;

use crate::control::clients::{Answer, Clients, Limits, Listeners};
use crate::control::hostfwd::{self, Forward, REQUEST_BYTES_MAX, Request};
use crate::control::published::Publishing;

/// Most concurrent connections: an engine makes one at a time.
const CONNECTIONS_MAX: usize = 8;
/// Most ports that requests have published: a list of them, which has 2 MiB, may wait in each
/// connection.
const FORWARDS_MAX: usize = 16_384;

/// A socket for requests that publish ports.
pub(crate) struct PortSocket {
    clients: Clients<Listener>,
    ports: Ports,
}

/// The ports that requests have published.
struct Ports {
    /// Address of the program.
    program: Option<Ipv4Addr>,
    all: BTreeMap<u64, (Forward, PublishId)>,
    /// Number of ports so far, which is the number of the last one.
    count: u64,
}

impl PortSocket {
    /// Listens at `path`, for requests about the program with the address `program`.
    pub(crate) fn new(path: &Path, program: Option<Ipv4Addr>) -> anyhow::Result<Self> {
        let listener = Listener::bind(path).context("option --port-socket")?;
        let limits = Limits {
            connections: CONNECTIONS_MAX,
            request_bytes: REQUEST_BYTES_MAX,
            long_bytes: REQUEST_BYTES_MAX,
        };
        let ports = Ports { program, all: BTreeMap::new(), count: 0 };
        Ok(Self { clients: Clients::new(listener, limits)?, ports })
    }

    /// Returns the socket's file and its identity.
    pub(crate) fn file(&self) -> Option<(PathBuf, (u64, u64))> {
        self.clients.listeners.file()
    }

    /// Does all work that needs no waiting. Requests change the ports of `instance`.
    ///
    /// # Errors
    /// A system call that worked before failed; the socket is unusable from now on.
    pub(crate) fn serve(&mut self, instance: &mut impl Publishing) -> io::Result<()> {
        let Self { clients, ports } = self;
        clients.serve(|arrived| {
            match Request::parse(arrived.bytes, arrived.is_end, ports.program) {
                None => Answer::Incomplete,
                Some(request) => {
                    let answer = request.map(|request| ports.perform(request, instance));
                    Answer::Bytes(answer.unwrap_or_else(hostfwd::refusal).into_bytes())
                }
            }
        })
    }
}

impl Listeners for Listener {
    fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.as_fd()]
    }

    fn accept(&mut self) -> io::Result<Option<UnixStream>> {
        Ok(Listener::accept(self)?.map(UnixStream::from))
    }
}

impl Ports {
    /// Does what a request says; returns the answer.
    fn perform(&mut self, request: Request, instance: &mut impl Publishing) -> String {
        match request {
            Request::Add(forward) => {
                if self.all.len() >= FORWARDS_MAX {
                    return hostfwd::refusal(format_args!(
                        "add_hostfwd: slirp_add_hostfwd failed: {FORWARDS_MAX} ports are published"
                    ));
                }
                match instance.publish(&forward.publish(self.program)) {
                    Ok(port) => {
                        self.count += 1;
                        self.all.insert(self.count, (forward, port));
                        hostfwd::added(self.count)
                    }
                    Err(error) => hostfwd::refusal(format_args!(
                        "add_hostfwd: slirp_add_hostfwd failed: {error}"
                    )),
                }
            }
            Request::List => {
                hostfwd::list(self.all.iter().map(|(id, (forward, _))| (*id, forward)))
            }
            Request::Remove(id) => match self.all.remove(&id) {
                Some((_, port)) => {
                    // It may have been closed by `towpath publish` since.
                    instance.unpublish(port);
                    hostfwd::removed()
                }
                None => hostfwd::refusal(hostfwd::UNKNOWN_ID),
            },
        }
    }
}

impl AsFd for PortSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.clients.as_fd()
    }
}

#[cfg(test)]
mod tests;
