//! Why a port could not be published.

use crate::publish::{HostPort, Protocol, Publish};
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;
use towpath_packet::NoMemory;

/// Why the gateway could not start, or a port could not be published.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another socket uses the port.
    #[error(
        "{protocol} port {address} is in use on the host; stop the program that uses it (see \
         'ss -lnp'), or publish another port"
    )]
    PortInUse {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// The address that was to be bound.
        address: SocketAddr,
    },
    /// No permission to bind the port.
    #[error(
        "no permission to bind {protocol} port {address}; publish a port from 1024 up, or lower \
         net.ipv4.ip_unprivileged_port_start"
    )]
    PortForbidden {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// The address that was to be bound.
        address: SocketAddr,
    },
    /// The host does not have the address.
    #[error(
        "cannot bind {protocol} port {address}: the host does not have this address; see \
         'ip address'"
    )]
    NoSuchAddress {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// The address that was to be bound.
        address: SocketAddr,
    },
    /// Binding failed for another reason.
    #[error("cannot bind {protocol} port {address}")]
    Bind {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// The address that was to be bound.
        address: SocketAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// A group of the host's network cannot be joined.
    #[error(
        "cannot join the multicast group of {group} on the host; another program may have the port \
         for itself (see 'ss -lunp')"
    )]
    Multicast {
        /// The group and its port.
        group: SocketAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// More published ports than there are descriptors to spare.
    #[error(
        "publishing needs {needed} sockets, more than half of the {limit} descriptors that this \
         process may have; raise the limit (`ulimit -Hn`), or publish fewer ports"
    )]
    TooManyPorts {
        /// Sockets needed.
        needed: u64,
        /// Limit of descriptors of this process.
        limit: u64,
    },
    /// The port is already published.
    #[error(
        "{0} is already published; choose another port of the host, or unpublish this one first"
    )]
    Twice(HostPort),
    /// The port is not published, or leads to another guest.
    #[error("{0} is not published for this guest; `towpath ls published` lists what is")]
    NotPublished(HostPort),
    /// The port is not published for the program.
    #[error("{0} is not published; `towpath ls published` lists what is")]
    NotPublishedHere(HostPort),
    /// The system does not have the memory that was asked for.
    #[error("{0}; reduce --memory, or raise the limit of the process (`ulimit -v`)")]
    Memory(#[from] NoMemory),
    /// The audit of flows has no thread.
    #[error("cannot start the thread that writes the audit")]
    Audit(#[source] io::Error),
    /// Another system call failed.
    #[error("cannot start the gateway")]
    Os(#[from] io::Error),
}

/// Returns why an address of a published port could not be bound.
pub(super) fn start_error(publish: &Publish, address: SocketAddr, source: io::Error) -> StartError {
    let protocol = match publish.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    match source.kind() {
        io::ErrorKind::AddrInUse => StartError::PortInUse { protocol, address },
        io::ErrorKind::PermissionDenied => StartError::PortForbidden { protocol, address },
        io::ErrorKind::AddrNotAvailable => StartError::NoSuchAddress { protocol, address },
        _ => {
            let is_missing = Errno::from_io_error(&source) == Some(Errno::NODEV);
            let source = match publish.interface.as_ref().filter(|_| is_missing) {
                Some(name) => io::Error::other(format!("no interface '{name}'; see 'ip link'")),
                None => source,
            };
            StartError::Bind { protocol, address, source }
        }
    }
}
