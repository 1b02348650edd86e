//! Published ports: host sockets that listen for the program, or for guests of a network.
//!
//! A connection is a new flow: it is accepted in its turn ([`Gateway::begin_flows`]), not when its
//! listener becomes ready. Until then it waits in the listener's backlog.
//!
//! Published ports are added and removed while the gateway runs. The target of a port can change
//! without closing its sockets, so that no connection is refused in between. A guest known by name
//! is looked up for each new connection, as its address may change.

mod error;
mod native;

pub use error::StartError;
pub use native::NativeListen;

use super::accepted::Accepted;
use super::route::Routes;
use super::udp::PublishedBy;
use super::{Gateway, Io, Token, is_descriptor_shortage};
use super::{Slot, Slots};
use crate::owners::Buckets;
use crate::publish::{HostPort, Protocol, Publish, PublishId, Target};
use error::start_error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use towpath_io::reactor::{Interest, Reactor};
use towpath_io::socket::{TcpListener, TcpSocket, UdpSocket};
use towpath_net::time::Instant;

/// Descriptors for a published TCP port: its socket for both IP versions, and one for a flow.
const DESCRIPTORS_PER_TCP_PORT: u64 = 2;
/// Descriptors for a published UDP port: its sockets, one for each IP version, and as many for
/// flows.
const DESCRIPTORS_PER_UDP_PORT: u64 = 4;
/// How long ports in use at the start may take to become free.
const IN_USE_PATIENCE: Duration = Duration::from_millis(500);
/// Time to the next attempt for a port in use.
const IN_USE_PAUSE: Duration = Duration::from_millis(5);
/// How long listeners pause when no file descriptor is left.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

struct Listener {
    socket: TcpListener,
    published: Slot,
    /// It is in `Listeners::ready`.
    is_ready: bool,
}

/// A published port with its sockets.
struct Published {
    publish: Publish,
    id: PublishId,
    tcp: Vec<Slot>,
    udp: Vec<Slot>,
    /// The current transaction has unpublished it.
    is_leaving: bool,
    /// Sockets of the program that listen in the place of its own; see [`native`].
    native: usize,
}

/// All published ports. Those of UDP are flows that never expire.
pub(super) struct Listeners {
    tcp: Slots<Listener>,
    published: Slots<Published>,
    by_port: HashMap<HostPort, Slot>,
    /// Number of sockets of all published ports.
    sockets: u64,
    /// Number of ports published so far.
    ids: u64,
    /// Listeners are not watched for connections until then.
    paused_until: Option<Instant>,
    /// Listeners with connections to accept. Each is reported again in every turn until it has
    /// none.
    ready: VecDeque<Slot>,
    /// Connections that another worker has accepted for this one.
    handed_over: VecDeque<Accepted>,
    /// Ports that have been unpublished or redirected while the program listened there itself.
    revoked: Vec<PublishId>,
}

impl Listeners {
    pub(super) fn new() -> Self {
        Self {
            tcp: Slots::default(),
            published: Slots::default(),
            by_port: HashMap::new(),
            sockets: 0,
            ids: 0,
            paused_until: None,
            ready: VecDeque::new(),
            handed_over: VecDeque::new(),
            revoked: Vec::new(),
        }
    }

    /// Returns true if a port of the host is published, or about to leave.
    pub(super) fn is_bound(&self, port: &HostPort) -> bool {
        self.by_port.contains_key(port)
    }

    /// A listener has connections to accept.
    pub(super) fn connections_wait(&mut self, slot: Slot) {
        if let Some(listener) = self.tcp.get_mut(slot)
            && !std::mem::replace(&mut listener.is_ready, true)
        {
            self.ready.push_back(slot);
        }
    }

    /// Returns true if connections wait that no event will report again.
    /// Takes out the connections of these buckets that other workers have accepted for this one and
    /// that have not had their turn.
    pub(super) fn take_handed_over(&mut self, buckets: &Buckets) -> Vec<Accepted> {
        let all = std::mem::take(&mut self.handed_over);
        let is_wanted = |accepted: &Accepted| buckets.contains(accepted.bucket());
        let (wanted, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_wanted);
        self.handed_over = others.into();
        wanted
    }

    pub(super) fn has_handed_over(&self) -> bool {
        !self.handed_over.is_empty()
    }

    /// Returns what a published port leads to, as long as it is published.
    pub(super) fn publish_of(&self, published: Slot) -> Option<&Publish> {
        Some(&self.published.get(published)?.publish)
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.paused_until
    }

    /// Stops watching for connections, as they cannot be accepted now.
    fn pause(&mut self, io: &Io<'_>) {
        if self.paused_until.replace(io.now + PAUSE).is_none() {
            for (slot, listener) in self.tcp.iter() {
                let token = Token::TcpListener(slot).encode();
                // Fails only for a file that is not registered.
                let _ = io.reactor.modify(&listener.socket, token, Interest::NONE, false);
            }
        }
    }

    pub(super) fn resume(&mut self, io: &Io<'_>) {
        if self.paused_until.take_if(|until| *until <= io.now).is_some() {
            for (slot, listener) in self.tcp.iter() {
                let token = Token::TcpListener(slot).encode();
                // Fails only for a file that is not registered.
                let _ = io.reactor.modify(&listener.socket, token, Interest::READ, false);
            }
        }
    }
}

impl Gateway {
    /// Publishes all these ports. Waits up to [`IN_USE_PATIENCE`] in all for ports in use: after
    /// the restart of a container, the instance that served it before may be about to end.
    pub(super) fn publish_at_start(
        &mut self,
        all: &[Publish],
        reactor: &Reactor,
    ) -> Result<(), StartError> {
        let mut patience = IN_USE_PATIENCE;
        for publish in all {
            while let Err(error) = self.publish(publish, reactor) {
                let is_in_use = matches!(error, StartError::PortInUse { .. });
                if !is_in_use || patience.is_zero() {
                    return Err(error);
                }
                std::thread::sleep(IN_USE_PAUSE);
                patience = patience.saturating_sub(IN_USE_PAUSE);
            }
        }
        Ok(())
    }

    /// Publishes a port. If the current transaction has unpublished the port, redirects it instead,
    /// and returns its former state.
    pub(crate) fn publish(
        &mut self,
        publish: &Publish,
        reactor: &Reactor,
    ) -> Result<Option<Publish>, StartError> {
        let host_port = publish.host_port();
        if let Some(&slot) = self.listeners.by_port.get(&host_port) {
            let leaving = self.listeners.published.get_mut(slot).filter(|old| old.is_leaving);
            let old = leaving.ok_or(StartError::Twice(host_port))?;
            old.is_leaving = false;
            old.udp.iter().for_each(|flow| self.udp.look_again(*flow));
            let before = std::mem::replace(&mut old.publish, publish.clone());
            let leads_to = |publish: &Publish| (publish.target.clone(), publish.program_port);
            if old.native > 0 && leads_to(&before) != leads_to(publish) {
                self.listeners.revoked.push(old.id);
            }
            return Ok(Some(before));
        }
        self.check_descriptors(sockets(publish, &self.routes))?;
        let (tcp, udp) = (Vec::new(), Vec::new());
        self.listeners.ids += 1;
        let id = PublishId(self.listeners.ids);
        let entry =
            Published { publish: publish.clone(), id, tcp, udp, is_leaving: false, native: 0 };
        let slot = self.listeners.published.insert(entry);
        self.listeners.by_port.insert(host_port, slot);
        let refused = self.bind_all(slot, publish, reactor);
        let bound = self.listeners.published.get(slot).map_or(0, |p| p.tcp.len() + p.udp.len());
        // Of "all addresses", the host may lack one family, but not both.
        let forgiven = publish.optional
            || publish.host.is_none()
                && bound > 0
                && matches!(
                    refused,
                    Some(StartError::Bind { .. } | StartError::NoSuchAddress { .. })
                );
        match refused.filter(|_| !forgiven) {
            Some(error) => {
                self.close(slot, reactor);
                Err(error)
            }
            None => {
                self.listeners.sockets += bound as u64;
                Ok(None)
            }
        }
    }

    /// Checks, before any port is bound, that there are descriptors for these ports.
    pub(super) fn check_room<'a>(
        &self,
        ports: impl Iterator<Item = &'a Publish>,
    ) -> Result<(), StartError> {
        let sockets = ports.map(|publish| sockets(publish, &self.routes));
        self.check_descriptors(sockets.sum())
    }

    fn check_descriptors(&self, more: u64) -> Result<(), StartError> {
        let needed = self.listeners.sockets + more;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if needed > limit / 2 {
            return Err(StartError::TooManyPorts { needed, limit });
        }
        Ok(())
    }

    /// Sets whether the current transaction unpublishes a port; returns false if it is not
    /// published.
    pub(crate) fn set_leaving(&mut self, port: &HostPort, is_leaving: bool) -> bool {
        let slot = self.listeners.by_port.get(port);
        let published = slot.and_then(|slot| self.listeners.published.get_mut(*slot));
        published.map(|published| published.is_leaving = is_leaving).is_some()
    }

    /// Restores the target of a port, and marks the port as leaving again.
    pub(crate) fn restore_leaving(&mut self, before: Publish) {
        if let Some(slot) = self.listeners.by_port.get(&before.host_port())
            && let Some(published) = self.listeners.published.get_mut(*slot)
        {
            published.publish = before;
            published.is_leaving = true;
            published.udp.iter().for_each(|flow| self.udp.look_again(*flow));
        }
    }

    /// Closes a published port that a transaction has unpublished, unless it has been redirected
    /// since.
    pub(crate) fn close_leaving(&mut self, port: &HostPort, reactor: &Reactor) {
        let slot = self.listeners.by_port.get(port);
        let published = slot.and_then(|slot| self.listeners.published.get(*slot));
        if published.is_some_and(|published| published.is_leaving) {
            self.unpublish(port, reactor);
        }
    }

    /// Closes the sockets of a published port. Its flows continue.
    pub(crate) fn unpublish(&mut self, port: &HostPort, reactor: &Reactor) {
        if let Some(&slot) = self.listeners.by_port.get(port) {
            let bound = self.listeners.published.get(slot).map_or(0, |p| p.tcp.len() + p.udp.len());
            self.listeners.sockets -= bound as u64;
            self.close(slot, reactor);
        }
    }

    /// Returns the published ports that are not about to leave.
    pub(crate) fn published(&self) -> impl Iterator<Item = (PublishId, &Publish)> {
        let staying = self.listeners.published.iter().filter(|(_, port)| !port.is_leaving);
        staying.map(|(_, port)| (port.id, &port.publish))
    }

    /// Returns the published port at a port of the host, unless it is about to leave.
    pub(crate) fn published_at(&self, port: &HostPort) -> Option<(PublishId, &Publish)> {
        let slot = self.listeners.by_port.get(port)?;
        let published = self.listeners.published.get(*slot)?;
        (!published.is_leaving).then_some((published.id, &published.publish))
    }

    /// Binds all sockets of a published port; returns why one could not be bound.
    fn bind_all(&mut self, slot: Slot, publish: &Publish, reactor: &Reactor) -> Option<StartError> {
        let addresses = addresses(publish, &self.routes);
        if is_one_socket(publish, &addresses) {
            let bound = TcpListener::bind_all(publish.host_port, publish.interface.as_deref());
            // If it fails, the sockets of each family tell why, or work by themselves.
            if bound.and_then(|socket| self.listen(slot, socket, reactor)).is_ok() {
                return None;
            }
        }
        let mut refused = None;
        for address in addresses {
            if let Err(error) = self.bind(slot, publish, address, reactor) {
                refused = Some(start_error(publish, address, error));
            }
        }
        refused
    }

    /// Watches a listening socket of a published port.
    fn listen(&mut self, slot: Slot, socket: TcpListener, reactor: &Reactor) -> io::Result<()> {
        let listeners = &mut self.listeners;
        let token = Token::TcpListener(listeners.tcp.next_key()).encode();
        reactor.add(&socket, token, Interest::READ, false)?;
        let listener = listeners.tcp.insert(Listener { socket, published: slot, is_ready: false });
        if let Some(published) = listeners.published.get_mut(slot) {
            published.tcp.push(listener);
        }
        Ok(())
    }

    fn bind(
        &mut self,
        slot: Slot,
        publish: &Publish,
        address: SocketAddr,
        reactor: &Reactor,
    ) -> io::Result<()> {
        let interface = publish.interface.as_deref();
        match publish.protocol {
            Protocol::Tcp => {
                self.listen(slot, TcpListener::bind(address, interface)?, reactor)?;
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind(address, interface)?;
                if address.ip().is_unspecified() {
                    socket.report_destinations()?;
                }
                let by = PublishedBy { port: slot, is_ipv4: address.is_ipv4() };
                // A guest's address is looked up when the first datagram arrives.
                let program = self.routes.program(by.is_ipv4);
                let program = program.filter(|_| publish.target == Target::Program);
                let program = program.map(|ip| SocketAddr::new(ip, publish.program_port));
                let flow = self.udp.publish(socket, by, program, reactor)?;
                if let Some(published) = self.listeners.published.get_mut(slot) {
                    published.udp.push(flow);
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, slot: Slot, reactor: &Reactor) {
        let Some(published) = self.listeners.published.remove(slot) else { return };
        self.listeners.by_port.remove(&published.publish.host_port());
        if published.native > 0 {
            self.listeners.revoked.push(published.id);
        }
        for listener in published.tcp {
            if let Some(listener) = self.listeners.tcp.remove(listener) {
                // Closing it does the same.
                let _ = reactor.remove(&listener.socket);
            }
        }
        published.udp.into_iter().for_each(|flow| self.udp.unpublish(flow));
    }

    /// Takes connections that another worker has accepted for this one.
    pub(crate) fn take_over(&mut self, accepted: impl IntoIterator<Item = Accepted>) {
        self.listeners.handed_over.extend(accepted);
    }

    /// Begins a connection to a published port, if one waits. With `again`, the listener stays in
    /// line for its next connection.
    pub(super) fn accept_one(&mut self, again: bool, io: &mut Io<'_>) -> bool {
        if let Some(Accepted { socket, inside, program }) = self.listeners.handed_over.pop_front() {
            self.begin_inbound(socket, inside, program, io);
            return true;
        }
        while self.listeners.paused_until.is_none() {
            let Some(slot) = self.listeners.ready.pop_front() else { return false };
            let Some(listener) = self.listeners.tcp.get_mut(slot) else { continue };
            listener.is_ready = false;
            let published = listener.published;
            match listener.socket.accept() {
                Ok((socket, peer)) => {
                    if again {
                        self.listeners.connections_wait(slot);
                    }
                    self.accepted(socket, peer, published, io);
                    return true;
                }
                Err(error) if is_descriptor_shortage(&error) => {
                    self.counters.no_descriptor += 1;
                    self.listeners.pause(io);
                }
                // No connection is left, or it ended before it was accepted.
                Err(_) => {}
            }
        }
        false
    }

    fn accepted(&mut self, socket: TcpSocket, peer: SocketAddr, published: Slot, io: &mut Io<'_>) {
        let Some((inside, program)) = self.way_inside(peer, published, io) else {
            self.counters.tcp_refused += 1;
            return socket.reset();
        };
        if let Some(socket) = self.begin_joined(socket, peer, program, io) {
            let accepted = Accepted { socket, inside, program };
            if let Some(Accepted { socket, inside, program }) = self.spread.hand_over(accepted) {
                self.begin_inbound(socket, inside, program, io);
            }
        }
    }

    /// Returns the address under which the program sees `peer`, and the program's address. A guest
    /// without an address of the peer's family is reached by the other family, from the gateway's
    /// address.
    fn way_inside(
        &self,
        peer: SocketAddr,
        published: Slot,
        io: &Io<'_>,
    ) -> Option<(SocketAddr, SocketAddr)> {
        let publish = self.listeners.publish_of(published)?;
        let at = |address| SocketAddr::new(address, publish.program_port);
        if let Some(program) = self.target_of(publish, peer.is_ipv4(), io) {
            return Some((self.routes.peer_inside(peer)?, at(program)));
        }
        let is_ipv4 = !peer.is_ipv4();
        let program = self.target_of(publish, is_ipv4, io)?;
        Some((SocketAddr::new(self.routes.gateway(is_ipv4)?, peer.port()), at(program)))
    }

    /// Returns the address of one family that a published port leads to now.
    pub(super) fn target_of(
        &self,
        publish: &Publish,
        is_ipv4: bool,
        io: &Io<'_>,
    ) -> Option<IpAddr> {
        match &publish.target {
            Target::Program => self.routes.program(is_ipv4),
            Target::Address(address) => Some(*address).filter(|ip| ip.is_ipv4() == is_ipv4),
            Target::Guest(name) => io.guests.address_of(name, is_ipv4, io.now),
        }
    }
}

/// Raises the hard limit of file descriptors to what these published ports need, where that is
/// permitted. A program that was forked before keeps its own limit.
pub fn allow_ports(publish: &[Publish]) {
    let per_port = |publish: &Publish| match publish.protocol {
        Protocol::Tcp => DESCRIPTORS_PER_TCP_PORT,
        Protocol::Udp => DESCRIPTORS_PER_UDP_PORT,
    };
    let wanted = publish.iter().map(per_port).sum();
    if getrlimit(Resource::Nofile).maximum.is_some_and(|maximum| maximum < wanted) {
        // If it fails, publishing the ports returns an error.
        let raised = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// Raises the soft limit of file descriptors to the hard limit, as each flow has a socket of the
/// host. A program that was forked before keeps its own limit.
pub fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    // It fails only where nothing can be done about it; flows beyond the limit are then refused.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Returns how many sockets a published port needs.
fn sockets(publish: &Publish, routes: &Routes) -> u64 {
    let addresses = addresses(publish, routes);
    if is_one_socket(publish, &addresses) { 1 } else { addresses.len() as u64 }
}

/// True if one socket listens at all these addresses. A flow of datagrams has one address inside,
/// so UDP has a socket for each family.
fn is_one_socket(publish: &Publish, addresses: &[SocketAddr]) -> bool {
    publish.protocol == Protocol::Tcp && addresses.len() > 1
}

/// Returns the addresses to bind: one address, or all addresses of each family that can be passed
/// on.
fn addresses(publish: &Publish, routes: &Routes) -> Vec<SocketAddr> {
    let at = |address: IpAddr| SocketAddr::new(address, publish.host_port);
    if let Some(address) = publish.host {
        return vec![at(address)];
    }
    // Datagrams keep their family on the way inside.
    let is_wanted = |is_ipv4| match (&publish.target, publish.protocol) {
        (Target::Address(address), Protocol::Udp) => address.is_ipv4() == is_ipv4,
        _ => routes.program(is_ipv4).is_some(),
    };
    let v4 = is_wanted(true).then(|| at(Ipv4Addr::UNSPECIFIED.into()));
    let v6 = is_wanted(false).then(|| at(Ipv6Addr::UNSPECIFIED.into()));
    v4.into_iter().chain(v6).collect()
}
