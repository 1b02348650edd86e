//! Listeners of published ports that the program has itself.
//!
//! # Theory of operation
//!
//! When the program makes a socket listen that may stand for a published port, the supervisor makes
//! a socket of the host with the same options, and asks the gateway to bind it to the port and let
//! it listen. The call waits meanwhile, others do not. Then the socket takes the place of the
//! program's, or, if the gateway says no, the program's own socket listens.
//!
//! The gateway keeps no descriptor of the socket, and the supervisor neither: so the kernel reports
//! its end, however it comes about, and the gateway listens again. The program's own socket stays
//! here until then, bound and idle, so that the port is in use inside as well.
//!
//! The supervisor does not see accept(2). Connections of these listeners become known when a list
//! or counters are requested, or by the kernel's report of their end.
//!
//! Limits: [`LISTENERS_MAX`], [`ASKED_MAX`].

use super::link;
use super::table::Flow;
use super::{Next, Supervisor, address};
use crate::flows::NativeListen;
use crate::publish::PublishId;
use rustix::io::Errno;
use rustix::net::{listen, sockopt};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::Duration;
use towpath_io::native::caller::Caller;
use towpath_io::native::calls::Call;
use towpath_io::native::diag::Carried;
use towpath_io::native::holders;
use towpath_io::native::socket::{self, Origin};
use towpath_net::slab::{Key, Slab};

/// Most native listeners. A descriptor each; further ones take the interface. The messages about
/// all of them and about [`ASKED_MAX`] more, of less than 1 KiB each, fit the buffer of the link,
/// so neither side ever waits for room.
pub(super) const LISTENERS_MAX: usize = 128;
/// Most calls that wait for the gateway's answer. Two descriptors each; further ones take the
/// interface.
pub(super) const ASKED_MAX: usize = 32;
/// Time to the next look for listeners that have to stop and were not found.
const STOP_INTERVAL: Duration = Duration::from_secs(1);

/// The listeners of the program.
#[derive(Default)]
pub(super) struct Listening {
    asked: Slab<Option<Asked>>,
    open: Vec<Listener>,
    /// Ports of the program at which a listener has taken the interface. They stay there: another
    /// listener would take that one's connections.
    kept: HashSet<u16>,
    /// Ports of the program by those of the host, of all listeners so far. Their connections may
    /// outlive them.
    ports: HashMap<u16, u16>,
}

/// A call that waits for the gateway.
struct Asked {
    call: Call,
    backlog: i32,
    number: RawFd,
    closes_on_exec: bool,
    /// The program's calls on the socket wait.
    waits: bool,
    own: OwnedFd,
    host: OwnedFd,
}

/// A listener that the program has.
struct Listener {
    cookie: u64,
    published: PublishId,
    /// Its address, and the one that the program has bound.
    at: SocketAddr,
    inside: SocketAddr,
    /// It accepts IPv4, and IPv6.
    families: [bool; 2],
    stage: Stage,
    /// The program's socket, which keeps the port inside.
    _own: OwnedFd,
}

/// What a listener may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// It has to stop, as the port is not published any more or leads elsewhere.
    Revoked,
    /// It has stopped for that reason, and the gateway knows. The program still has it.
    Stopped,
}

impl Listening {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// True if there has been a listener.
    pub(super) fn has_listened(&self) -> bool {
        !self.ports.is_empty()
    }

    /// The listeners at this port have to stop.
    pub(super) fn revoke(&mut self, published: PublishId) {
        let its = |listener: &&mut Listener| listener.published == published;
        let open = |listener: &&mut Listener| listener.stage == Stage::Open;
        for listener in self.open.iter_mut().filter(its).filter(open) {
            listener.stage = Stage::Revoked;
        }
    }

    /// Forgets the call of a thread, which makes another one.
    pub(super) fn forget(&mut self, call: &Call) {
        let is_its = |asked: &Asked| asked.call.thread == call.thread;
        let key = self.asked.iter().find_map(|(key, asked)| is_its(asked).then_some(key));
        if let Some(key) = key {
            self.asked.remove(key);
        }
    }

    /// Returns the listener that a connection to `to` inside would reach.
    fn reached(&self, to: SocketAddr) -> Option<&Listener> {
        self.open.iter().find(|listener| {
            listener.inside.port() == to.port()
                && listener.families[usize::from(to.is_ipv6())]
                && listener.stage == Stage::Open
        })
    }

    /// Returns the program's port, if a connection with this local address may be one of its
    /// listeners'.
    pub(super) fn port_inside(&self, local: SocketAddr) -> Option<u16> {
        self.ports.get(&local.port()).copied()
    }

    /// Returns the address that the program has bound a listener to.
    pub(super) fn bound(&self, cookie: u64) -> Option<SocketAddr> {
        let listener = self.open.iter().find(|listener| listener.cookie == cookie)?;
        Some(listener.inside)
    }

    /// True if connections at this port of the host are those of native listeners. The last of them
    /// may end after its listener.
    fn has_port(&self, port: u16) -> bool {
        self.ports.get(&port).is_some_and(|inside| !self.kept.contains(inside))
    }

    /// Makes a native socket listen once more, if it is a listener.
    fn again(&self, host: &OwnedFd, backlog: i32) -> Result<(), Errno> {
        let cookie = sockopt::socket_cookie(host)?;
        let mut own = self.open.iter().filter(|listener| listener.cookie == cookie);
        // Of any other, the program may have freed it from its peer.
        own.find(|listener| listener.stage == Stage::Open).ok_or(Errno::INVAL)?;
        listen(host, backlog)
    }
}

impl Supervisor {
    /// listen(2): runs on the socket that was checked, whatever the caller's descriptor is by now.
    /// The kernel must never run it: by then the descriptor may be that of a native socket which a
    /// race has freed from its peer.
    pub(super) fn on_listen(&mut self, call: &Call, number: RawFd, backlog: i32) -> Next {
        let Ok(caller) = Caller::open(call.thread) else {
            return Next::Answer(Err(Errno::PERM));
        };
        if !self.calls.is_waiting(call) {
            return Next::Nothing;
        }
        let own = match caller.file(number) {
            Ok(own) => own,
            Err(errno) => return Next::Answer(Err(errno)),
        };
        match self.sockets.origin(&own) {
            Origin::Host => Next::Answer(self.listening.again(&own, backlog)),
            Origin::Inside => match self.may_listen(&caller, number, &own) {
                Some(port) => self.ask_to_listen(call, &caller, (number, own), port, backlog),
                None => Next::Answer(self.listen_inside(&own, backlog)),
            },
            Origin::OtherStream | Origin::Other => Next::Answer(listen(&own, backlog)),
        }
    }

    /// Returns the port of a socket whose place a native listener may take.
    fn may_listen(&self, caller: &Caller, number: RawFd, own: &OwnedFd) -> Option<u16> {
        let at = socket::local(own).ok()?;
        let may = self.listens
            && at.ip().is_unspecified()
            && at.port() != 0
            && !self.listening.kept.contains(&at.port())
            && self.listening.len() < LISTENERS_MAX
            && self.listening.asked.count() < ASKED_MAX
            && sockopt::socket_acceptconn(own) == Ok(false)
            && caller.has_other_ways(number, own) == Ok(false);
        may.then_some(at.port())
    }

    /// Makes the program's own socket listen. Connections take the interface.
    fn listen_inside(&mut self, own: &OwnedFd, backlog: i32) -> Result<(), Errno> {
        let result = listen(own, backlog);
        if let (Ok(()), Ok(at)) = (result, socket::local(own)) {
            self.listening.kept.insert(at.port());
        }
        result
    }

    /// Asks the gateway for a native listener; if that is not possible, the own socket listens.
    fn ask_to_listen(
        &mut self,
        call: &Call,
        caller: &Caller,
        (number, own): (RawFd, OwnedFd),
        port: u16,
        backlog: i32,
    ) -> Next {
        let made = self.sockets.open_like_bound(&own).ok().and_then(|host| {
            Some((host, caller.closes_on_exec(number).ok()?, !socket::is_nonblocking(&own).ok()?))
        });
        let Some((host, closes_on_exec, waits)) = made else {
            return Next::Answer(self.listen_inside(&own, backlog));
        };
        let token = token_of(self.listening.asked.next_key());
        let link = self.gateway.as_fd();
        if link::ask_to_listen(link, token, (port, backlog), host.as_fd()).is_err() {
            return Next::Answer(self.listen_inside(&own, backlog));
        }
        let asked = Asked { call: *call, backlog, number, closes_on_exec, waits, own, host };
        self.listening.asked.insert(asked);
        Next::Nothing
    }

    /// The gateway has answered.
    pub(super) fn on_listening(&mut self, token: u64, listens: NativeListen) {
        let key = Key { index: token as u32, generation: (token >> 32) as u32 };
        let Some(asked) = self.listening.asked.remove(key) else {
            // The call was interrupted, and with it the socket has gone.
            if let NativeListen::At(published) = listens {
                link::listener_ended(self.gateway.as_fd(), published);
            }
            return;
        };
        let call = asked.call;
        let result = match listens {
            NativeListen::At(published) => self.give_listener(asked, published),
            NativeListen::InUse => Err(Errno::ADDRINUSE),
            NativeListen::Inside => self.listen_inside(&asked.own, asked.backlog),
        };
        self.calls.answer(&call, result);
    }

    /// Puts a socket that listens in the place of the program's own.
    fn give_listener(&mut self, asked: Asked, published: PublishId) -> Result<(), Errno> {
        let Asked { call, number, closes_on_exec, waits, own, host, .. } = asked;
        let made_ready = || -> Result<_, Errno> {
            if waits {
                socket::set_blocking(&host)?;
            }
            let at = [socket::local(&host)?, socket::local(&own)?];
            let is_v4 = at[0].is_ipv4();
            let families = [is_v4 || !sockopt::ipv6_v6only(&host)?, !is_v4];
            Ok((sockopt::socket_cookie(&host)?, at, families))
        };
        let (cookie, [at, inside], families) = made_ready().inspect_err(|_| {
            link::listener_ended(self.gateway.as_fd(), published);
        })?;
        self.listening.ports.insert(at.port(), inside.port());
        let stage = Stage::Open;
        let listener = Listener { cookie, published, at, inside, families, stage, _own: own };
        self.listening.open.push(listener);
        // If the caller is gone, so is the socket when this returns, and the kernel reports it.
        match self.calls.replace(&call, number, host.as_fd(), closes_on_exec) {
            true => Ok(()),
            false => Err(Errno::BADF),
        }
    }

    /// The kernel reports that a socket of the host has ended: one of the listeners, or a
    /// connection of theirs that was not found before, or another one.
    pub(super) fn listening_ended(&mut self, ended: &Carried) {
        let is_it = |listener: &Listener| listener.cookie == ended.cookie;
        let Some(index) = self.listening.open.iter().position(is_it) else {
            // A connection that the gateway has refused meanwhile has no bytes.
            let has_carried = ended.bytes_out + ended.bytes_in > 0;
            if has_carried && self.listening.has_port(ended.ends[0].port()) {
                self.table.passed(ended);
            }
            return;
        };
        // Its open connections are not found by its port later.
        self.find_connections();
        let listener = self.listening.open.swap_remove(index);
        if listener.stage != Stage::Stopped {
            link::listener_ended(self.gateway.as_fd(), listener.published);
        }
    }

    /// Looks for listeners whose end was not reported.
    pub(super) fn check_listeners(&mut self) {
        let any = |at: SocketAddr| SocketAddr::new(unspecified_like(at), 0);
        let open = self.listening.open.iter();
        let all: Vec<_> = open.map(|listener| (listener.cookie, listener.at)).collect();
        for (cookie, at) in all {
            if self.diag.ask(cookie, at, any(at)).is_err() {
                let ends = [at, any(at)];
                let (bytes_out, bytes_in, state, inode) = (0, 0, 0, 0);
                let ended = Carried { cookie, bytes_out, bytes_in, state, inode, ends };
                self.listening_ended(&ended);
            }
        }
    }

    /// Stops revoked listeners when it is time; returns when the next time is. Their connections go
    /// on. One that no process has open, as it is on its way between two, is found later.
    pub(super) fn stop_later(&mut self) -> Option<Duration> {
        let left = self.stops_at?.since(self.now());
        if !left.is_zero() {
            return Some(left);
        }
        let nobody = |at: SocketAddr| SocketAddr::new(unspecified_like(at), 0);
        let mut are_left = false;
        for listener in &mut self.listening.open {
            if listener.stage != Stage::Revoked {
                continue;
            }
            let (cookie, at) = (listener.cookie, listener.at);
            // One that does not listen is not found.
            let has_stopped = self.diag.ask(cookie, at, nobody(at)).map_or(true, |found| {
                let file = holders::find(found.inode, cookie);
                file.is_some_and(|file| socket::stop_listening(&file).is_ok())
            });
            if has_stopped {
                listener.stage = Stage::Stopped;
                link::listener_ended(self.gateway.as_fd(), listener.published);
            }
            are_left |= !has_stopped;
        }
        self.stops_at = are_left.then(|| self.now() + STOP_INTERVAL);
        are_left.then_some(STOP_INTERVAL)
    }

    /// Returns where a connection to the program's own address or loopback leads, if a native
    /// listener of the program is there: to the host's loopback.
    pub(super) fn own_listener(&mut self, to: SocketAddr) -> Option<SocketAddr> {
        let to = address::canonical(to);
        let reached = self.listening.reached(to).filter(|_| self.routes.is_own(to.ip()))?;
        let (cookie, at) = (reached.cookie, reached.at);
        // If the program has shut it down, another program of the host may listen at the port.
        self.diag.ask(cookie, at, SocketAddr::new(unspecified_like(at), 0)).ok()?;
        let loopback = match to {
            SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::LOCALHOST),
        };
        Some(SocketAddr::new(loopback, at.port()))
    }

    /// Adds the connections of all listeners to the table.
    pub(super) fn find_connections(&mut self) {
        let ports: HashSet<u16> = self.listening.open.iter().map(|one| one.at.port()).collect();
        let now = self.now();
        let mut found = Vec::new();
        for port in ports {
            self.diag.connections_at(port, |connection| found.push(connection));
        }
        for Carried { cookie, ends: [local, peer], .. } in found {
            if !self.table.has(cookie) && !self.table.is_at_limit() {
                let seen = [self.accepted_at(local), address::canonical(peer)];
                self.table.begin(Flow::inbound(cookie, [local, peer], seen, now));
            }
        }
    }

    /// Returns the address that the program sees as its own, of a connection to one of its
    /// listeners.
    pub(super) fn accepted_at(&self, local: SocketAddr) -> SocketAddr {
        let plain = address::canonical(local);
        let port = self.listening.port_inside(plain).unwrap_or(plain.port());
        match plain.ip().is_loopback() {
            true => SocketAddr::new(plain.ip(), port),
            false => SocketAddr::new(self.routes.local_inside(plain).ip(), port),
        }
    }
}

/// Returns the address that stands for all of the family of `at`.
fn unspecified_like(at: SocketAddr) -> IpAddr {
    match at {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn token_of(key: Key) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.index)
}
