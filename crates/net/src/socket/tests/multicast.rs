//! Multicast sockets: membership, delivery to all members, options, errors as in Linux.

use super::bench::*;
use super::datagram::data;
use crate::counters::DropReason;
use crate::socket::{Error, Family, MEMBERSHIPS_MAX, Options, SocketId};
use crate::time::Duration;
use crate::wire::Protocol;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_packet::Site;

const PORT: u16 = 5353;
const GROUP4: IpAddr = IpAddr::V4(Ipv4Addr::new(224, 0, 0, 251));
const GROUP6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb));
const OTHER4: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 1, 1));

impl Bench {
    fn join(&mut self, host: usize, id: SocketId, group: IpAddr) -> Result<(), Error> {
        let now = self.now;
        self.hosts[host].join_group(id, group, now)
    }

    fn leave(&mut self, host: usize, id: SocketId, group: IpAddr) -> Result<(), Error> {
        let now = self.now;
        self.hosts[host].leave_group(id, group, now)
    }

    fn option(&mut self, host: usize, id: SocketId, change: fn(&mut Options)) {
        let now = self.now;
        self.hosts[host].set_options(id, now, change).expect("open socket");
    }

    /// A socket of the server that shares its port.
    fn shares(&mut self, at: SocketAddr) -> SocketId {
        let family = if at.is_ipv4() { Family::V4 } else { Family::V6 };
        let id = self.datagram(SERVER, family);
        self.option(SERVER, id, |options| options.reuse_address = true);
        self.hosts[SERVER].bind(id, at).expect("shared");
        id
    }

    fn got(&mut self, host: usize, id: SocketId) -> bool {
        let got = self.take(host, id);
        assert!(matches!(got, Ok(_) | Err(Error::WouldBlock)), "{got:?}");
        got.is_ok()
    }
}

fn any(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// Goal: a datagram to a group arrives at each socket that is bound to the port and the group or
/// all addresses, with one copy of the payload for each read and none for the delivery.
#[test]
fn all_members_receive() {
    for group in [GROUP4, GROUP6] {
        let mut b = Bench::new();
        let to = SocketAddr::new(group, PORT);
        let wild = SocketAddr::new(any(group), PORT);
        let members = [b.shares(wild), b.shares(to), b.shares(wild)];
        let ours = if group.is_ipv4() { v4(SERVER) } else { v6(SERVER) };
        let unicast = b.shares(SocketAddr::new(ours, PORT));
        let elsewhere = b.shares(SocketAddr::new(any(group), PORT + 1));
        let client = b.datagram(CLIENT, if group.is_ipv4() { Family::V4 } else { Family::V6 });
        // No socket has joined.
        assert_eq!(b.send_to(CLIENT, client, b"x", to), Ok(1));
        b.settle();
        assert!(!members.iter().any(|id| b.got(SERVER, *id)));
        assert_eq!(b.join(SERVER, members[0], group), Ok(()));
        for len in [1, 1472, 4000] {
            let before = b.copied_at(Site::SocketReceive);
            assert_eq!(b.send_to(CLIENT, client, &data(len), to), Ok(len));
            b.settle();
            for id in members {
                let (bytes, received) = b.take(SERVER, id).expect("a datagram");
                assert_eq!((bytes, received.to, received.ttl), (data(len), to, 1));
            }
            assert_eq!(b.copied_at(Site::SocketReceive) - before, 3 * len as u64);
            assert!(!b.got(SERVER, unicast) && !b.got(SERVER, elsewhere));
        }
        // Sockets that want groups of their own only.
        b.option(SERVER, members[1], |options| {
            let multicast = &mut options.datagram.multicast;
            (multicast.all_v4, multicast.all_v6) = (false, false);
        });
        assert_eq!(b.send_to(CLIENT, client, b"x", to), Ok(1));
        b.settle();
        assert_eq!(members.map(|id| b.got(SERVER, id)), [true, false, true]);
        assert_eq!(b.join(SERVER, members[1], group), Ok(()));
        // The group stays until its last member leaves, by a call or by closing.
        assert_eq!(b.leave(SERVER, members[0], group), Ok(()));
        assert_eq!(b.send_to(CLIENT, client, b"x", to), Ok(1));
        b.settle();
        assert_eq!(members.map(|id| b.got(SERVER, id)), [true; 3]);
        let now = b.now;
        b.hosts[SERVER].close(members[1], now).expect("open socket");
        assert_eq!(b.send_to(CLIENT, client, b"x", to), Ok(1));
        b.settle();
        assert!(!b.got(SERVER, members[0]) && !b.got(SERVER, members[2]));
        for _ in 0..3 {
            b.pass(Duration::from_secs(1));
        }
        assert_eq!(b.in_use(), 0);
    }
}

/// Goal: the sender's own host receives what it sends to a group that it has joined, unless the
/// sender has switched that off; TTL, source and peer are those of the options.
#[test]
fn own_datagrams_loop_back() {
    for group in [GROUP4, GROUP6] {
        let mut b = Bench::new();
        let to = SocketAddr::new(group, PORT);
        let id = b.shares(SocketAddr::new(any(group), PORT));
        assert_eq!(b.join(SERVER, id, group), Ok(()));
        assert_eq!(b.send_to(SERVER, id, b"own", to), Ok(3));
        b.settle();
        let (bytes, received) = b.take(SERVER, id).expect("its own");
        let ours = if group.is_ipv4() { v4(SERVER) } else { v6(SERVER) };
        assert_eq!((&bytes[..], received.from), (&b"own"[..], SocketAddr::new(ours, PORT)));
        b.option(SERVER, id, |options| {
            let multicast = &mut options.datagram.multicast;
            (multicast.loops_v4, multicast.loops_v6) = (false, false);
            (multicast.ttl, multicast.hop_limit) = (7, 7);
        });
        let client = b.datagram(CLIENT, if group.is_ipv4() { Family::V4 } else { Family::V6 });
        assert_eq!(b.hosts[CLIENT].bind(client, SocketAddr::new(any(group), PORT)), Ok(()));
        assert_eq!(b.join(CLIENT, client, group), Ok(()));
        assert_eq!(b.send_to(SERVER, id, b"own", to), Ok(3));
        b.settle();
        assert!(!b.got(SERVER, id));
        assert_eq!(b.take(CLIENT, client).expect("a datagram").1.ttl, 7);
        // With a TTL of zero nothing leaves the host.
        b.option(SERVER, id, |options| {
            let multicast = &mut options.datagram.multicast;
            (multicast.ttl, multicast.hop_limit) = (0, 0);
            (multicast.loops_v4, multicast.loops_v6) = (true, true);
        });
        assert_eq!(b.send_to(SERVER, id, b"own", to), Ok(3));
        b.settle();
        assert!(b.got(SERVER, id) && !b.got(CLIENT, client));
    }
}

/// Errors of Linux: groups that are none, joined twice, too many, left without a join, and sockets
/// of kinds that join no group.
#[test]
fn joins_fail_as_in_linux() {
    let mut b = Bench::new();
    let id = b.datagram(SERVER, Family::V4);
    for wrong in [v4(SERVER), any(GROUP4), IpAddr::V4(Ipv4Addr::BROADCAST)] {
        assert_eq!(b.join(SERVER, id, wrong), Err(Error::Invalid));
        assert_eq!(b.leave(SERVER, id, wrong), Err(Error::AddressNotAvailable));
    }
    assert_eq!(b.join(SERVER, id, GROUP6), Err(Error::NoSuchOption));
    assert_eq!(b.leave(SERVER, id, GROUP4), Err(Error::AddressNotAvailable));
    let group = |number: usize| IpAddr::V4(Ipv4Addr::new(239, 0, 0, number as u8));
    for number in 0..MEMBERSHIPS_MAX {
        assert_eq!(b.join(SERVER, id, group(number)), Ok(()));
        assert_eq!(b.join(SERVER, id, group(number)), Err(Error::AddressInUse));
    }
    assert_eq!(b.join(SERVER, id, GROUP4), Err(Error::NoBuffers));
    assert_eq!(b.leave(SERVER, id, group(3)), Ok(()));
    assert_eq!(b.leave(SERVER, id, group(3)), Err(Error::AddressNotAvailable));
    assert_eq!(b.join(SERVER, id, GROUP4), Ok(()));
    // An IPv6 socket joins groups of both families, and more of IPv6.
    let v6_id = b.datagram(SERVER, Family::V6);
    for wrong in [v6(SERVER), any(GROUP6)] {
        assert_eq!(b.join(SERVER, v6_id, wrong), Err(Error::Invalid));
        assert_eq!(b.leave(SERVER, v6_id, wrong), Err(Error::Invalid));
    }
    assert_eq!(b.leave(SERVER, v6_id, GROUP6), Err(Error::AddressNotAvailable));
    assert_eq!(b.join(SERVER, v6_id, GROUP4), Ok(()));
    let mut joined = 0;
    let refused = loop {
        let group = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, joined);
        match b.join(SERVER, v6_id, group.into()) {
            Ok(()) => joined += 1,
            Err(error) => break error,
        }
        assert!(usize::from(joined) < crate::stack::GROUPS_MAX, "bounded");
    };
    assert_eq!(refused, Error::NoMemory);
    assert_eq!(b.join(SERVER, v6_id, OTHER4), Err(Error::NoBuffers));
    let now = b.now;
    b.hosts[SERVER].close(v6_id, now).expect("open socket");
    let stream = b.stream(SERVER);
    assert_eq!(b.join(SERVER, stream, GROUP4), Err(Error::Protocol));
    assert_eq!(b.leave(SERVER, stream, GROUP4), Err(Error::Protocol));
    b.hosts[SERVER].close(stream, now).expect("open socket");
    assert_eq!(b.join(SERVER, stream, GROUP4), Err(Error::BadSocket));
}

/// Rules of Linux for several sockets at one port, and for sources of a socket bound to a group.
#[test]
fn ports_of_groups_are_shared_like_others() {
    let mut b = Bench::new();
    let to = SocketAddr::new(GROUP4, PORT);
    let alone = b.datagram(SERVER, Family::V4);
    assert_eq!(b.hosts[SERVER].bind(alone, to), Ok(()));
    for other in [to, SocketAddr::new(any(GROUP4), PORT)] {
        let second = b.datagram(SERVER, Family::V4);
        assert_eq!(b.hosts[SERVER].bind(second, other), Err(Error::AddressInUse));
        b.option(SERVER, second, |options| options.reuse_address = true);
        assert_eq!(b.hosts[SERVER].bind(second, other), Err(Error::AddressInUse));
    }
    for free in [SocketAddr::new(OTHER4, PORT), SocketAddr::new(v4(SERVER), PORT)] {
        let second = b.datagram(SERVER, Family::V4);
        assert_eq!(b.hosts[SERVER].bind(second, free), Ok(()));
    }
    // Bound to the group, it sends from the host's address, also if connected.
    let client = b.datagram(CLIENT, Family::V4);
    assert_eq!(b.hosts[CLIENT].bind(client, SocketAddr::new(v4(CLIENT), 9)), Ok(()));
    let peer = SocketAddr::new(v4(CLIENT), 9);
    assert_eq!(b.send_to(SERVER, alone, b"x", peer), Ok(1));
    b.settle();
    assert_eq!(b.take(CLIENT, client).expect("one").1.from, SocketAddr::new(v4(SERVER), PORT));
    assert_eq!(b.join(SERVER, alone, GROUP4), Ok(()));
    let now = b.now;
    assert_eq!(b.hosts[SERVER].connect(alone, peer, now), Ok(()));
    assert_eq!(b.hosts[SERVER].local(alone), Ok(to));
    let stranger = b.datagram(CLIENT, Family::V4);
    for id in [stranger, client] {
        assert_eq!(b.send_to(CLIENT, id, b"to group", to), Ok(8));
        b.settle();
        assert_eq!(b.got(SERVER, alone), id == client, "only its peer");
    }
}

/// Goal: `IP_MULTICAST_IF` chooses the source, but not of unicast datagrams or of bound sockets.
#[test]
fn the_interface_chooses_the_source() {
    let mut b = Bench::new();
    let id = b.datagram(SERVER, Family::V4);
    let chosen = Ipv4Addr::new(192, 0, 2, 77);
    let now = b.now;
    b.hosts[SERVER]
        .set_options(id, now, |options| options.datagram.multicast.source = Some(chosen))
        .expect("open socket");
    let client = b.datagram(CLIENT, Family::V4);
    assert_eq!(b.hosts[CLIENT].bind(client, SocketAddr::new(any(GROUP4), PORT)), Ok(()));
    assert_eq!(b.join(CLIENT, client, GROUP4), Ok(()));
    for (to, from) in [(GROUP4, chosen.into()), (v4(CLIENT), v4(SERVER))] {
        assert_eq!(b.send_to(SERVER, id, b"x", SocketAddr::new(to, PORT)), Ok(1));
        b.settle();
        assert_eq!(b.take(CLIENT, client).expect("a datagram").1.from.ip(), from);
    }
}

/// Goal: raw sockets receive packets to groups by the same rule, and a full receive queue of one
/// member loses datagrams of that member only.
#[test]
fn members_do_not_depend_on_each_other() {
    let mut b = Bench::new();
    let to = SocketAddr::new(GROUP4, PORT);
    let wild = SocketAddr::new(any(GROUP4), PORT);
    let (lazy, eager) = (b.shares(wild), b.shares(wild));
    let raw = b.hosts[SERVER].raw(Family::V4, Protocol::UDP).expect("room");
    let deaf = b.hosts[SERVER].raw(Family::V4, Protocol::UDP).expect("room");
    b.option(SERVER, deaf, |options| options.datagram.multicast.all_v4 = false);
    b.option(SERVER, lazy, |options| options.receive_buffer = Some(1));
    assert_eq!(b.join(SERVER, eager, GROUP4), Ok(()));
    let client = b.datagram(CLIENT, Family::V4);
    for number in 0..3 {
        assert_eq!(b.send_to(CLIENT, client, &[number], to), Ok(1));
        b.settle();
        assert!(b.got(SERVER, eager) && b.got(SERVER, raw) && !b.got(SERVER, deaf));
    }
    let left: Vec<_> = core::iter::from_fn(|| b.take(SERVER, lazy).ok()).collect();
    assert_eq!(left.len(), 1);
    let dropped = b.hosts[SERVER].stack().counters().dropped(DropReason::UdpNoRoom);
    assert_eq!(dropped, 2);
}
