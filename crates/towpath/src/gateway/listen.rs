//! Published ports: host sockets that listen for the program.

use super::route::Routes;
use super::udp::UdpFlows;
use super::{Gateway, Io, Token, is_descriptor_shortage};
use crate::config::Config;
use crate::publish::{Protocol, Publish};
use rustix::process::Resource;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use towpath_io::reactor::{Interest, Reactor};
use towpath_io::socket::{TcpListener, TcpSocket, UdpSocket};
use towpath_net::time::Instant;

/// Connections accepted from one listener before others get their turn.
const ACCEPTS_PER_TURN: usize = 16;
/// How long listeners rest when no file descriptor is left.
const PAUSE: Duration = Duration::from_millis(100);

/// Why the gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something else has the port.
    #[error(
        "{protocol} port {address} is in use on the host; stop what listens there, or publish \
         another port (see 'ss -lnp')"
    )]
    PortInUse {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// What was to be bound.
        address: SocketAddr,
    },
    /// Not allowed to bind the port.
    #[error(
        "no permission to bind {protocol} port {address}; publish a port from 1024 up, or lower \
         net.ipv4.ip_unprivileged_port_start"
    )]
    PortForbidden {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// What was to be bound.
        address: SocketAddr,
    },
    /// The host does not have the address.
    #[error("the host does not have the address of {protocol} port {address}; see 'ip address'")]
    NoSuchAddress {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// What was to be bound.
        address: SocketAddr,
    },
    /// Binding failed in another way.
    #[error("cannot bind {protocol} port {address}")]
    Bind {
        /// `TCP` or `UDP`.
        protocol: &'static str,
        /// What was to be bound.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// More published ports than descriptors can be spared for.
    #[error(
        "publishing takes {needed} sockets and this process may have {limit} descriptors, half of \
         them for flows; raise the limit (ulimit -Hn) or publish fewer ports"
    )]
    TooManyPorts {
        /// Sockets needed.
        needed: u64,
        /// Limit of descriptors.
        limit: u64,
    },
    /// Something else failed.
    #[error("cannot start the gateway")]
    Os(#[from] io::Error),
}

struct Listener {
    socket: TcpListener,
    program_port: u16,
}

/// All TCP listeners. UDP has none: a published UDP port is a flow that never expires.
pub(super) struct Listeners {
    tcp: Vec<Listener>,
    /// Not told about connections until then.
    paused_until: Option<Instant>,
}

impl Listeners {
    pub(super) fn bind(
        config: &Config,
        routes: &Routes,
        udp: &mut UdpFlows,
        reactor: &Reactor,
    ) -> Result<Self, StartError> {
        let mut listeners = Self { tcp: Vec::new(), paused_until: None };
        let needed = config.publish.iter().map(|publish| addresses(publish, routes).len() as u64);
        let needed = needed.sum();
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if needed > limit / 2 {
            return Err(StartError::TooManyPorts { needed, limit });
        }
        for publish in &config.publish {
            let mut bound = 0;
            let mut refused = None;
            for address in addresses(publish, routes) {
                let result = match publish.protocol {
                    Protocol::Tcp => listeners.bind_tcp(publish, address, reactor),
                    Protocol::Udp => bind_udp(publish, address, routes, udp, reactor),
                };
                match result {
                    Ok(()) => bound += 1,
                    Err(error) => refused = Some(start_error(publish.protocol, address, error)),
                }
            }
            // Of "all addresses" one family may be missing on the host; both may not.
            let forgiven = publish.optional
                || publish.host.is_none()
                    && bound > 0
                    && matches!(
                        refused,
                        Some(StartError::Bind { .. } | StartError::NoSuchAddress { .. })
                    );
            if let Some(error) = refused
                && !forgiven
            {
                return Err(error);
            }
        }
        Ok(listeners)
    }

    fn bind_tcp(
        &mut self,
        publish: &Publish,
        address: SocketAddr,
        reactor: &Reactor,
    ) -> io::Result<()> {
        let socket = TcpListener::bind(address, publish.interface.as_deref())?;
        let token = Token::TcpListener(self.tcp.len() as u32).encode();
        reactor.add(&socket, token, Interest::READ, false)?;
        self.tcp.push(Listener { socket, program_port: publish.program_port });
        Ok(())
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Stops asking for connections that could not be taken.
    fn pause(&mut self, io: &Io<'_>) {
        if self.paused_until.replace(io.now + PAUSE).is_none() {
            for (index, listener) in self.tcp.iter().enumerate() {
                let token = Token::TcpListener(index as u32).encode();
                // Fails only for what is not in the set.
                let _ = io.reactor.modify(&listener.socket, token, Interest::NONE, false);
            }
        }
    }

    pub(super) fn resume(&mut self, io: &Io<'_>) {
        if self.paused_until.take_if(|until| *until <= io.now).is_some() {
            for (index, listener) in self.tcp.iter().enumerate() {
                let token = Token::TcpListener(index as u32).encode();
                // As above.
                let _ = io.reactor.modify(&listener.socket, token, Interest::READ, false);
            }
        }
    }
}

impl Gateway {
    /// Takes connections to a published port.
    pub(super) fn accept(&mut self, index: u32, io: &mut Io<'_>) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.tcp.get(index as usize) else { return };
            let program_port = listener.program_port;
            match listener.socket.accept() {
                Ok((socket, peer)) => self.accepted(socket, peer, program_port, io),
                Err(error) if is_descriptor_shortage(&error) => {
                    self.counters.no_descriptor += 1;
                    return self.listeners.pause(io);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A connection that ended before it was accepted.
                Err(_) => {}
            }
        }
    }

    fn accepted(&mut self, socket: TcpSocket, peer: SocketAddr, port: u16, io: &mut Io<'_>) {
        let inside = self.routes.peer_inside(peer);
        let program = self.routes.program(peer.is_ipv4());
        let (Some(inside), Some(program)) = (inside, program) else { return socket.reset() };
        self.begin_inbound(socket, inside, SocketAddr::new(program, port), io);
    }
}

fn bind_udp(
    publish: &Publish,
    address: SocketAddr,
    routes: &Routes,
    udp: &mut UdpFlows,
    reactor: &Reactor,
) -> io::Result<()> {
    let Some(program) = routes.program(address.is_ipv4()) else { return Ok(()) };
    let socket = UdpSocket::bind(address, publish.interface.as_deref())?;
    if address.ip().is_unspecified() {
        socket.tell_destinations()?;
    }
    udp.publish(socket, SocketAddr::new(program, publish.program_port), reactor)
}

/// What to bind: one address, or all of each family that the program has.
fn addresses(publish: &Publish, routes: &Routes) -> Vec<SocketAddr> {
    let at = |address: IpAddr| SocketAddr::new(address, publish.host_port);
    if let Some(address) = publish.host {
        return vec![at(address)];
    }
    let v4 = routes.program(true).map(|_| at(Ipv4Addr::UNSPECIFIED.into()));
    let v6 = routes.program(false).map(|_| at(Ipv6Addr::UNSPECIFIED.into()));
    v4.into_iter().chain(v6).collect()
}

fn start_error(protocol: Protocol, address: SocketAddr, source: io::Error) -> StartError {
    let protocol = match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    match source.kind() {
        io::ErrorKind::AddrInUse => StartError::PortInUse { protocol, address },
        io::ErrorKind::PermissionDenied => StartError::PortForbidden { protocol, address },
        io::ErrorKind::AddrNotAvailable => StartError::NoSuchAddress { protocol, address },
        _ => StartError::Bind { protocol, address, source },
    }
}
