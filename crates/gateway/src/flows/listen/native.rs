//! Published ports at which the program listens itself, with a socket of the host.
//!
//! While it does, the port's own sockets *rest*: they keep the port, and the program's socket gets
//! the connections. When the last socket of the program has ended, they
//! listen again. The [supervisor](crate::native) asks for both.

use super::{Gateway, Published, Routes, Token};
use crate::publish::{Protocol, Publish, PublishId, Target};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use towpath_io::native::socket;
use towpath_io::reactor::{Interest, Reactor};
use towpath_net::slab::Key as Slot;

/// Where a socket of the host listens for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeListen {
    /// At this published port.
    At(PublishId),
    /// Nowhere: another socket of the program listens there already.
    InUse,
    /// Nowhere: the program has to listen with a socket of its own.
    Inside,
}

impl Gateway {
    /// Binds a socket of the host to the published port that leads to `port` of the program, and
    /// makes it listen in the place of the port's own sockets. These have to stay if no port leads
    /// there or several do, if it has an address or interface that the socket cannot stand for, or
    /// if a system call fails.
    pub(crate) fn listen_natively(
        &mut self,
        host: &OwnedFd,
        port: u16,
        backlog: i32,
        reactor: &Reactor,
    ) -> NativeListen {
        let found = self.published_for(port);
        let at = |publish| host_address(host, publish, &self.routes);
        let found = found.and_then(|(slot, one)| Some((slot, at(&one.publish)?)));
        let Some((slot, at)) = found else { return NativeListen::Inside };
        self.rest(slot, reactor);
        let listens = socket::listen_at(host, at, backlog);
        let Some(published) = self.listeners.published.get_mut(slot) else {
            return NativeListen::Inside;
        };
        match listens {
            Ok(()) => {
                published.native += 1;
                NativeListen::At(published.id)
            }
            Err(error) if published.native > 0 && error.kind() == io::ErrorKind::AddrInUse => {
                NativeListen::InUse
            }
            Err(_) => {
                if published.native == 0 {
                    self.listen_again(slot, reactor);
                }
                NativeListen::Inside
            }
        }
    }

    /// A socket of [`listen_natively`](Self::listen_natively) has ended. Returns false if another
    /// program of the host has taken the port meanwhile.
    pub(crate) fn native_ended(&mut self, id: PublishId, reactor: &Reactor) -> bool {
        let its = |(slot, published): (Slot, &Published)| (published.id == id).then_some(slot);
        let found = self.listeners.published.iter().find_map(its);
        let Some(slot) = found else { return true };
        let Some(published) = self.listeners.published.get_mut(slot) else { return true };
        published.native = published.native.saturating_sub(1);
        published.native > 0 || self.listen_again(slot, reactor)
    }

    /// Returns the ports that are not published any more, or lead elsewhere, since the last call,
    /// and at which the program may still listen.
    pub(crate) fn take_revoked(&mut self) -> Vec<PublishId> {
        std::mem::take(&mut self.listeners.revoked)
    }

    /// Returns the only published port that leads to this TCP port of the program.
    fn published_for(&self, port: u16) -> Option<(Slot, &Published)> {
        let leads_there = |published: &Published| {
            let publish = &published.publish;
            publish.protocol == Protocol::Tcp && publish.program_port == port
        };
        let mut all = self.listeners.published.iter().filter(|(_, one)| leads_there(one));
        let (slot, published) = all.next()?;
        let Publish { target, interface, host, .. } = &published.publish;
        let is_plain = *target == Target::Program
            && interface.is_none()
            && host.is_none_or(|host| host.is_loopback())
            && !published.is_leaving;
        (is_plain && all.next().is_none()).then_some((slot, published))
    }

    /// Stops the port's own sockets from listening.
    fn rest(&mut self, slot: Slot, reactor: &Reactor) {
        let Some(published) = self.listeners.published.get(slot) else { return };
        if published.native > 0 {
            return;
        }
        for listener in published.tcp.iter().filter_map(|slot| self.listeners.tcp.get(*slot)) {
            // Otherwise the reactor would report in every turn that it has hung up. Both fail only
            // for files that are none.
            let _ = reactor.remove(&listener.socket);
            let _ = listener.socket.rest();
        }
    }

    /// Lets the port's own sockets listen again; returns false if one cannot.
    fn listen_again(&mut self, slot: Slot, reactor: &Reactor) -> bool {
        let Some(published) = self.listeners.published.get(slot) else { return true };
        let is_paused = self.listeners.paused_until.is_some();
        let interest = if is_paused { Interest::NONE } else { Interest::READ };
        let mut all = true;
        for slot in &published.tcp {
            let Some(listener) = self.listeners.tcp.get(*slot) else { continue };
            let token = Token::TcpListener(*slot).encode();
            let listens = listener.socket.resume();
            all &= listens
                .and_then(|()| reactor.add(&listener.socket, token, interest, false))
                .is_ok();
        }
        all
    }
}

/// Returns the address to which a socket that stands for a published port is bound: all those of
/// the socket's own family, or the one of the port. The program must have the families that the
/// socket accepts, which are both for an IPv6 socket.
fn host_address(host: &OwnedFd, publish: &Publish, routes: &Routes) -> Option<SocketAddr> {
    let has = |v4| routes.program(v4).is_some();
    let any = socket::local(host).ok()?.ip();
    let address = match (any, publish.host) {
        (IpAddr::V4(_), None) if has(true) => any,
        (IpAddr::V6(_), None) if has(true) && has(false) => any,
        (IpAddr::V4(_), Some(IpAddr::V4(v4))) => v4.into(),
        (IpAddr::V6(_), Some(IpAddr::V6(v6))) => v6.into(),
        _ => return None,
    };
    Some(SocketAddr::new(address, publish.host_port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::publish;
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    use std::net::TcpStream;

    fn open() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
    }

    fn at_port(listens: NativeListen) -> PublishId {
        match listens {
            NativeListen::At(id) => id,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a port of the host that is free.
    fn free_port() -> u16 {
        let any = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        any.local_addr().unwrap().port()
    }

    /// Publishes a port of the host's loopback that leads to 80 of the program.
    fn published(gateway: &mut Gateway, reactor: &Reactor) -> SocketAddr {
        // Another test may take a port before this one does.
        for _ in 0..100 {
            let port = free_port();
            let spec = format!("127.0.0.1/{port}:80");
            let all = publish::parse(Protocol::Tcp, &[spec], &(1..=1)).unwrap();
            if gateway.publish(&all[0], reactor).is_ok() {
                return SocketAddr::from(([127, 0, 0, 1], port));
            }
        }
        panic!("no port is free");
    }

    /// Goal: a socket of the program takes the place of the port's own, which listens again when
    /// the last of them has ended; other ports stay as they are.
    #[test]
    fn the_ports_own_socket_rests() {
        let mut reactor = Reactor::new().unwrap();
        let mut gateway = Gateway::new(&Config::default(), &reactor).unwrap();
        let at = published(&mut gateway, &reactor);
        let (first, other) = (open(), open());
        let listen = |gateway: &mut Gateway, socket: &OwnedFd, port| {
            gateway.listen_natively(socket, port, 1, &reactor)
        };
        assert_eq!(listen(&mut gateway, &other, 81), NativeListen::Inside, "not published");
        let id = at_port(listen(&mut gateway, &first, 80));
        let stream = TcpStream::connect(at).expect("a listener");
        let first = std::net::TcpListener::from(first);
        assert_eq!(first.accept().unwrap().1, stream.local_addr().unwrap());
        assert_eq!(listen(&mut gateway, &other, 80), NativeListen::InUse);
        // Closing it would not end it while a process that starts elsewhere has a copy.
        rustix::net::shutdown(&first, rustix::net::Shutdown::Both).unwrap();
        assert!(TcpStream::connect(at).is_err(), "nobody listens");
        assert!(gateway.native_ended(id, &reactor));
        assert!(gateway.native_ended(PublishId(77), &reactor), "of a port that has gone");
        drop(TcpStream::connect(at).expect("the port's own socket"));
        let mut events = towpath_io::reactor::Events::new();
        reactor.wait(Some(std::time::Duration::from_secs(10)), &mut events).unwrap();
        assert_eq!(events.iter().count(), 1, "it is watched again");
    }

    /// Goal: a port at which the program listens is revoked when it is unpublished.
    #[test]
    fn unpublished_ports_are_revoked() {
        let reactor = Reactor::new().unwrap();
        let mut gateway = Gateway::new(&Config::default(), &reactor).unwrap();
        let at = published(&mut gateway, &reactor);
        let port = gateway.published().next().unwrap().1.host_port();
        let native = open();
        let id = at_port(gateway.listen_natively(&native, 80, 1, &reactor));
        assert!(gateway.take_revoked().is_empty());
        gateway.unpublish(&port, &reactor);
        assert_eq!(gateway.take_revoked(), [id]);
        assert!(gateway.take_revoked().is_empty());
        assert!(TcpStream::connect(at).is_ok(), "until the supervisor stops it");
    }
}
