//! Datagrams between two hosts: whole, segmented and coalesced; receiver selection; bounds.

use super::bench::*;
use crate::counters::DropReason;
use crate::pmtu_mode::PathMtu;
use crate::socket::{
    DATAGRAMS_MAX, Error, Family, Notice, PENDING_MAX, Readiness, ReceivedDatagram, SendTo,
    Shutdown, SocketId,
};
use crate::wire::Protocol;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use towpath_packet::Site;

const ANY4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

impl Bench {
    pub(super) fn datagram(&mut self, host: usize, family: Family) -> SocketId {
        self.hosts[host].datagram(family).expect("room")
    }

    /// A socket of the server with an address.
    pub(super) fn bound(&mut self, at: SocketAddr) -> SocketId {
        let family = if at.is_ipv4() { Family::V4 } else { Family::V6 };
        let id = self.datagram(SERVER, family);
        self.hosts[SERVER].bind(id, at).expect("free");
        id
    }

    pub(super) fn send_to(
        &mut self,
        host: usize,
        id: SocketId,
        bytes: &[u8],
        to: SocketAddr,
    ) -> Result<usize, Error> {
        let how = SendTo { to: Some(to), ..SendTo::default() };
        self.with(host, |sockets, cx| sockets.send_datagram(id, &[bytes], &how, cx))
    }

    pub(super) fn take(
        &mut self,
        host: usize,
        id: SocketId,
    ) -> Result<(Vec<u8>, ReceivedDatagram), Error> {
        let mut into = vec![0; 70_000];
        let received = self.with(host, |sockets, cx| {
            sockets.receive_datagram(id, &mut [&mut into], false, cx.ledger)
        })?;
        into.truncate(received.copied);
        Ok((into, received))
    }

    fn change(&mut self, host: usize, id: SocketId, change: fn(&mut crate::socket::Options)) {
        let now = self.now;
        self.hosts[host].set_options(id, now, change).expect("open socket");
    }
}

pub(super) fn data(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 % 251) as u8).collect()
}

/// Goal: datagrams of every size arrive whole, with both addresses, over both versions of IP, and
/// their bytes are copied once on each side.
#[test]
fn datagrams_arrive_whole() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let server = b.bound(SocketAddr::new(ip(SERVER), 53));
        let family = if ip(0).is_ipv4() { Family::V4 } else { Family::V6 };
        let client = b.datagram(CLIENT, family);
        for len in [0, 1, 1472, 1473, 9000, 65_507] {
            let copied = [Site::SocketSend, Site::SocketReceive].map(|site| b.copied_at(site));
            let to = SocketAddr::new(ip(SERVER), 53);
            assert_eq!(b.send_to(CLIENT, client, &data(len), to), Ok(len));
            b.settle();
            assert!(b.hosts[SERVER].readiness(server).contains(Readiness::READABLE));
            assert_eq!(b.hosts[SERVER].available(server), Ok(len));
            let (bytes, received) = b.take(SERVER, server).expect("a datagram");
            assert_eq!((bytes, received.len), (data(len), len));
            assert_eq!(received.from.ip(), ip(CLIENT));
            assert_eq!(Ok(received.from.port()), b.hosts[CLIENT].local(client).map(|at| at.port()));
            assert_eq!((received.to, received.ttl, received.segment_size), (to, 64, None));
            let after = [Site::SocketSend, Site::SocketReceive].map(|site| b.copied_at(site));
            assert_eq!(after.map(|copied| copied as usize), copied.map(|c| c as usize + len));
            assert_eq!(b.take(SERVER, server).err(), Some(Error::WouldBlock));
            // And back.
            assert_eq!(b.send_to(SERVER, server, b"answer", received.from), Ok(6));
            b.settle();
            assert_eq!(b.take(CLIENT, client).expect("a datagram").0, b"answer");
        }
        assert_eq!(b.in_use(), 0);
    }
}

/// Goal: only streams discard bytes. Bad input: datagram and raw sockets, empty and not, with
/// lengths of zero, of part of a datagram and of more than a datagram.
#[test]
fn nothing_is_discarded_from_datagrams() {
    let mut b = Bench::new();
    let server = b.bound(at(53));
    let client = b.datagram(CLIENT, Family::V4);
    let raw = b.hosts[SERVER].raw(Family::V4, Protocol::UDP).expect("room");
    for waits in [false, true] {
        if waits {
            assert_eq!(b.send_to(CLIENT, client, b"0123456789", at(53)), Ok(10));
            b.settle();
        }
        for id in [server, raw] {
            assert_eq!(b.hosts[SERVER].available(id).is_ok_and(|len| len > 0), waits);
            for len in [0, 3, usize::MAX] {
                let now = b.now;
                assert_eq!(b.hosts[SERVER].discard(id, len, now), Err(Error::NotSupported));
            }
        }
    }
    assert_eq!(b.take(SERVER, server).expect("a datagram").0, b"0123456789");
    assert!(b.take(SERVER, raw).expect("a packet").0.ends_with(b"0123456789"));
}

#[test]
fn what_there_is_no_room_for_is_lost_and_a_look_leaves_all() {
    let mut b = Bench::new();
    let server = b.bound(at(53));
    let client = b.datagram(CLIENT, Family::V4);
    assert_eq!(b.send_to(CLIENT, client, b"0123456789", at(53)), Ok(10));
    assert_eq!(b.send_to(CLIENT, client, b"next", at(53)), Ok(4));
    b.settle();
    for peek in [true, false] {
        let (mut first, mut second) = ([0; 3], [0; 4]);
        let received = b.with(SERVER, |sockets, cx| {
            let into = &mut [&mut first[..], &mut [], &mut second[..]];
            sockets.receive_datagram(server, into, peek, cx.ledger)
        });
        let received = received.expect("a datagram");
        assert_eq!((received.len, received.copied), (10, 7));
        assert_eq!((&first, &second), (b"012", b"3456"));
    }
    assert_eq!(b.take(SERVER, server).expect("a datagram").0, b"next");
}

/// Goal: an IPv6 socket receives IPv4, shows mapped addresses, and sends to mapped addresses.
#[test]
fn mapped_addresses_both_ways() {
    let mut b = Bench::new();
    let server = b.bound(SocketAddr::new(ANY6, 53));
    let client = b.datagram(CLIENT, Family::V6);
    let IpAddr::V4(v4) = v4(SERVER) else { panic!("an address of IPv4") };
    let mapped = SocketAddr::new(v4.to_ipv6_mapped().into(), 53);
    assert_eq!(b.send_to(CLIENT, client, b"x", mapped), Ok(1));
    b.settle();
    let (_, received) = b.take(SERVER, server).expect("a datagram");
    assert_eq!(received.to, mapped);
    assert!(matches!(received.from.ip(), IpAddr::V6(from) if from.to_ipv4_mapped().is_some()));
    assert_eq!(b.send_to(SERVER, server, b"y", received.from), Ok(1));
    b.settle();
    assert_eq!(b.take(CLIENT, client).expect("a datagram").1.from, mapped);
    b.change(CLIENT, client, |options| options.v6_only = true);
    assert_eq!(b.send_to(CLIENT, client, b"x", mapped), Err(Error::NetworkUnreachable));
}

/// Goal: Linux's order of receivers: connected, bound to the address, to all of IPv4, to all.
#[test]
fn the_closest_socket_gets_it() {
    let mut b = Bench::new();
    let all = b.bound(SocketAddr::new(ANY6, 53));
    let [four, exact, connected] = [ANY4, v4(SERVER), v4(SERVER)].map(|ip| {
        let id = b.datagram(SERVER, Family::V4);
        b.change(SERVER, id, |options| options.reuse_address = true);
        (id, ip)
    });
    b.change(SERVER, all, |options| options.reuse_address = true);
    // The first socket does not allow sharing.
    b.hosts[SERVER].close(all, b.now).expect("open socket");
    let all = b.datagram(SERVER, Family::V6);
    b.change(SERVER, all, |options| options.reuse_address = true);
    b.hosts[SERVER].bind(all, SocketAddr::new(ANY6, 53)).expect("free");
    let client = b.datagram(CLIENT, Family::V4);
    let mut found = Vec::new();
    assert_eq!(b.send_to(CLIENT, client, b"x", at(53)), Ok(1));
    let from = SocketAddr::new(v4(CLIENT), b.hosts[CLIENT].local(client).expect("bound").port());
    for next in [None, Some(four), Some(exact), Some(connected)] {
        if let Some((id, ip)) = next {
            assert_eq!(b.hosts[SERVER].bind(id, SocketAddr::new(ip, 53)), Ok(()));
            if id == connected.0 {
                assert_eq!(b.hosts[SERVER].connect(id, from, b.now), Ok(()));
            }
            assert_eq!(b.send_to(CLIENT, client, b"x", at(53)), Ok(1));
        }
        b.settle();
        let readable = |id| b.hosts[SERVER].available(id).is_ok_and(|len| len == 1);
        let ids = [all, four.0, exact.0, connected.0];
        found.extend(ids.into_iter().find(|id| readable(*id)));
        for id in ids {
            while b.take(SERVER, id).is_ok() {}
        }
    }
    assert_eq!(found, [all, four.0, exact.0, connected.0]);
    // A connected socket receives from its peer only.
    let other = b.datagram(CLIENT, Family::V4);
    assert_eq!(b.send_to(CLIENT, other, b"x", at(53)), Ok(1));
    b.settle();
    assert_eq!(b.take(SERVER, connected.0).err(), Some(Error::WouldBlock));
    assert!(b.take(SERVER, exact.0).is_ok());
}

/// Goal: a group distributes flows, each flow to one socket, and only its members share a port.
#[test]
fn a_group_shares_flows() {
    let mut b = Bench::new();
    let group: Vec<SocketId> = (0..4)
        .map(|_| {
            let id = b.datagram(SERVER, Family::V4);
            b.change(SERVER, id, |options| options.reuse_port = true);
            b.hosts[SERVER].bind(id, at(53)).expect("shared");
            id
        })
        .collect();
    let stranger = b.datagram(SERVER, Family::V4);
    assert_eq!(b.hosts[SERVER].bind(stranger, at(53)), Err(Error::AddressInUse));
    let mut counts = [0; 4];
    for _ in 0..64 {
        let client = b.datagram(CLIENT, Family::V4);
        for _ in 0..2 {
            assert_eq!(b.send_to(CLIENT, client, b"x", at(53)), Ok(1));
        }
        b.settle();
        let got = group.iter().map(|id| {
            let mut count = 0;
            while b.take(SERVER, *id).is_ok() {
                count += 1;
            }
            count
        });
        let got: Vec<usize> = got.collect();
        assert_eq!(got.iter().filter(|count| **count == 2).count(), 1, "{got:?}");
        counts.iter_mut().zip(&got).for_each(|(count, got)| *count += got);
    }
    assert!(counts.iter().all(|count| *count >= 8), "{counts:?}");
}

/// Goal: a super-packet is segmented in transit. A socket reads it datagram by datagram, or as one
/// with the segment size if the option is set.
#[test]
fn super_packets_are_cut_and_coalesced() {
    for ip in [v4, v6] {
        let mut b = Bench::new();
        let server = b.bound(SocketAddr::new(ip(SERVER), 53));
        let family = if ip(0).is_ipv4() { Family::V4 } else { Family::V6 };
        let client = b.datagram(CLIENT, family);
        let how = SendTo {
            to: Some(SocketAddr::new(ip(SERVER), 53)),
            segment_size: Some(1000),
            ..SendTo::default()
        };
        let send = |b: &mut Bench| {
            let bytes = data(4500);
            b.with(CLIENT, |sockets, cx| sockets.send_datagram(client, &[&bytes], &how, cx))
        };
        assert_eq!(send(&mut b), Ok(4500));
        b.settle();
        let mut whole = Vec::new();
        for len in [1000, 1000, 1000, 1000, 500] {
            assert_eq!(b.hosts[SERVER].available(server), Ok(len));
            let (bytes, received) = b.take(SERVER, server).expect("a datagram");
            assert_eq!((received.len, received.segment_size), (len, None));
            whole.extend(bytes);
        }
        assert_eq!(whole, data(4500));
        b.change(SERVER, server, |options| options.datagram.coalesced = true);
        assert_eq!(send(&mut b), Ok(4500));
        b.settle();
        let (bytes, received) = b.take(SERVER, server).expect("a datagram");
        assert_eq!(received.segment_size.map(|size| size.get()), Some(1000));
        assert_eq!(bytes, data(4500));
        assert_eq!(b.in_use(), 0);
    }
}

/// Goal: a datagram of several calls goes to the first call's destination and is bounded; closing
/// drops it.
#[test]
fn a_datagram_of_several_calls() {
    let mut b = Bench::new();
    let [server, other] = [b.bound(at(53)), b.bound(at(54))];
    let client = b.datagram(CLIENT, Family::V4);
    let send = |b: &mut Bench, port, bytes: &[u8], more| {
        let how = SendTo { to: Some(at(port)), more, ..SendTo::default() };
        b.with(CLIENT, |sockets, cx| sockets.send_datagram(client, &[bytes], &how, cx))
    };
    for index in 0..100 {
        assert_eq!(send(&mut b, 53 + index % 2, &data(300), true), Ok(300));
    }
    b.settle();
    assert_eq!(b.take(SERVER, server).err(), Some(Error::WouldBlock));
    assert_eq!(send(&mut b, 54, b"end", false), Ok(3));
    b.settle();
    let (bytes, _) = b.take(SERVER, server).expect("a datagram");
    let expected = [data(300).repeat(100), b"end".to_vec()].concat();
    assert_eq!((bytes, b.take(SERVER, other).err()), (expected, Some(Error::WouldBlock)));
    // Too long: the whole datagram is dropped.
    assert_eq!(send(&mut b, 53, &data(60_000), true), Ok(60_000));
    assert_eq!(send(&mut b, 53, &data(6000), true), Err(Error::MessageSize));
    assert_eq!(send(&mut b, 53, b"new", false), Ok(3));
    b.settle();
    assert_eq!(b.take(SERVER, server).expect("a datagram").0, b"new");
    // With the option instead of the flag.
    b.change(CLIENT, client, |options| options.datagram.cork = true);
    assert_eq!(send(&mut b, 53, b"a", false), Ok(1));
    assert_eq!(send(&mut b, 53, b"b", false), Ok(1));
    assert_eq!(b.with(CLIENT, |sockets, cx| sockets.push_datagram(client, cx)), Ok(()));
    b.settle();
    assert_eq!(b.take(SERVER, server).expect("a datagram").0, b"ab");
    assert_eq!(send(&mut b, 53, b"lost", false), Ok(4));
    b.hosts[CLIENT].close(client, b.now).expect("open socket");
    assert_eq!(b.in_use(), 0);
}

/// Goal: pending datagrams are bounded over all sockets.
#[test]
fn few_datagrams_wait_for_more() {
    let mut b = Bench::new();
    let how = SendTo { to: Some(at(53)), more: true, ..SendTo::default() };
    let ids: Vec<SocketId> = (0..=PENDING_MAX).map(|_| b.datagram(CLIENT, Family::V4)).collect();
    for (index, id) in ids.iter().enumerate() {
        let sent = b.with(CLIENT, |sockets, cx| sockets.send_datagram(*id, &[b"x"], &how, cx));
        let expected = if index < PENDING_MAX { Ok(1) } else { Err(Error::NoBuffers) };
        assert_eq!(sent, expected);
    }
    for id in ids {
        b.hosts[CLIENT].close(id, b.now).expect("open socket");
    }
    assert_eq!(b.in_use(), 0);
}

/// Goal: a receive buffer is bounded in bytes and in datagrams. Drops are counted, and memory is
/// released when datagrams are read or the socket is closed.
#[test]
fn receive_buffers_are_bounded() {
    for (buffer, most) in [(2304, 1), (8 << 20, DATAGRAMS_MAX)] {
        let mut b = Bench::new();
        let server = b.bound(at(53));
        let client = b.datagram(CLIENT, Family::V4);
        let now = b.now;
        let set = |options: &mut crate::socket::Options| options.receive_buffer = Some(buffer);
        b.hosts[SERVER].set_options(server, now, set).expect("open socket");
        for index in 0..DATAGRAMS_MAX + 10 {
            // Of different lengths, so that they are not coalesced.
            assert_eq!(b.send_to(CLIENT, client, &data(1 + index % 7 * 7), at(53)).err(), None);
            b.settle();
        }
        let lost = (DATAGRAMS_MAX + 10 - most) as u32;
        assert_eq!(b.hosts[SERVER].dropped_datagrams(server), Ok(lost));
        let counters = b.hosts[SERVER].stack().counters();
        assert_eq!(counters.dropped(DropReason::UdpNoRoom), u64::from(lost));
        assert!(b.take(SERVER, server).is_ok());
        b.hosts[SERVER].close(server, now).expect("open socket");
        assert_eq!(b.in_use(), 0);
    }
}

/// Goal: a socket is full while its packets wait for the device, and is woken when they have left.
#[test]
fn a_send_buffer_fills_until_the_device_takes_it() {
    let mut b = Bench::new();
    b.bound(at(53));
    let client = b.datagram(CLIENT, Family::V4);
    assert!(b.hosts[CLIENT].readiness(client).contains(Readiness::WRITABLE));
    let mut sent = 0;
    while b.send_to(CLIENT, client, &[0; 1000], at(53)).is_ok() {
        sent += 1;
        assert!(sent < 1000, "no bound");
    }
    assert_eq!(b.send_to(CLIENT, client, &[0; 1000], at(53)), Err(Error::WouldBlock));
    assert!(!b.hosts[CLIENT].readiness(client).contains(Readiness::OUT));
    while b.hosts[CLIENT].next_wake().is_some() {}
    b.settle();
    let (id, news) = b.hosts[CLIENT].next_wake().expect("news");
    assert_eq!((id, news.contains(Readiness::OUT)), (client, true));
    assert_eq!(b.send_to(CLIENT, client, b"x", at(53)), Ok(1));
}

#[test]
fn a_peer_can_be_named_and_forgotten() {
    let mut b = Bench::new();
    let server = b.bound(at(53));
    let client = b.datagram(CLIENT, Family::V4);
    let send = |b: &mut Bench| {
        b.with(CLIENT, |sockets, cx| sockets.send_datagram(client, &[b"x"], &SendTo::default(), cx))
    };
    assert_eq!(send(&mut b), Err(Error::DestinationRequired));
    assert_eq!(b.hosts[CLIENT].remote(client), Err(Error::NotConnected));
    assert_eq!(b.hosts[CLIENT].connect(client, at(53), b.now), Ok(()));
    assert_eq!(b.hosts[CLIENT].remote(client), Ok(at(53)));
    assert_eq!(b.hosts[CLIENT].local(client).map(|at| at.ip()), Ok(v4(CLIENT)));
    assert_eq!(b.hosts[CLIENT].bind(client, SocketAddr::new(ANY4, 9)), Err(Error::Invalid));
    assert_eq!(send(&mut b), Ok(1));
    b.settle();
    assert!(b.take(SERVER, server).is_ok());
    // As in Linux, another peer can be set directly.
    assert_eq!(b.hosts[CLIENT].connect(client, at(54), b.now), Ok(()));
    assert_eq!(b.hosts[CLIENT].disconnect(client, b.now), Ok(()));
    assert_eq!(send(&mut b), Err(Error::DestinationRequired));
    // A port that the caller chose stays.
    let asked = SocketAddr::new(ANY4, 99);
    b.hosts[CLIENT].disconnect(client, b.now).expect("open socket");
    assert_eq!(b.hosts[CLIENT].bind(client, asked), Ok(()));
    assert_eq!(b.hosts[CLIENT].connect(client, at(53), b.now), Ok(()));
    assert_eq!(b.hosts[CLIENT].disconnect(client, b.now), Ok(()));
    assert_eq!(b.hosts[CLIENT].local(client), Ok(asked));
}

#[test]
fn what_was_bound_to_an_address_keeps_it_when_its_port_goes() {
    let mut b = Bench::new();
    let client = b.datagram(CLIENT, Family::V4);
    assert_eq!(b.hosts[CLIENT].bind(client, SocketAddr::new(v4(CLIENT), 0)), Ok(()));
    assert_eq!(b.hosts[CLIENT].connect(client, at(53), b.now), Ok(()));
    assert_eq!(b.hosts[CLIENT].disconnect(client, b.now), Ok(()));
    assert_eq!(b.hosts[CLIENT].local(client), Ok(SocketAddr::new(v4(CLIENT), 0)));
    assert_eq!(b.send_to(CLIENT, client, b"x", at(53)), Ok(1));
    assert_eq!(b.hosts[CLIENT].local(client).map(|at| at.ip()), Ok(v4(CLIENT)));
}

#[test]
fn directions_end() {
    let mut b = Bench::new();
    let server = b.bound(at(53));
    let client = b.datagram(CLIENT, Family::V4);
    assert_eq!(b.hosts[CLIENT].shutdown(client, Shutdown::Write, b.now), Err(Error::NotConnected));
    assert_eq!(b.send_to(CLIENT, client, b"x", at(53)), Err(Error::BrokenPipe));
    assert_eq!(b.hosts[SERVER].shutdown(server, Shutdown::Both, b.now), Err(Error::NotConnected));
    let ready = b.hosts[SERVER].readiness(server);
    assert!(ready.contains(Readiness::READABLE | Readiness::READ_HUP | Readiness::HUP));
    assert_eq!(b.take(SERVER, server).err(), Some(Error::WouldBlock));
}

#[test]
fn what_is_wrong_is_refused() {
    let mut b = Bench::new();
    let id = b.datagram(CLIENT, Family::V4);
    let mut send = |how: SendTo, len: usize| {
        let bytes = data(len);
        b.with(CLIENT, |sockets, cx| sockets.send_datagram(id, &[&bytes], &how, cx)).err()
    };
    let to = |ip: IpAddr, port| SendTo { to: Some((ip, port).into()), ..SendTo::default() };
    let right = to(v4(SERVER), 53);
    assert_eq!(send(right, 65_508), Some(Error::MessageSize));
    assert_eq!(send(right, 100_000), Some(Error::MessageSize));
    assert_eq!(send(to(v4(SERVER), 0), 1), Some(Error::Invalid));
    assert_eq!(send(to(v6(SERVER), 53), 1), Some(Error::AddressFamily));
    assert_eq!(send(to(ANY4, 53), 1), Some(Error::NetworkUnreachable));
    assert_eq!(send(to(Ipv4Addr::BROADCAST.into(), 53), 1), Some(Error::AccessDenied));
    assert_eq!(send(to([224, 0, 0, 1].into(), 53), 1), None, "a group");
    let from = |ip| SendTo { from: Some(ip), ..right };
    assert_eq!(send(from(v4(SERVER)), 1), Some(Error::NetworkUnreachable));
    assert_eq!(send(from(v6(SERVER)), 1), Some(Error::Invalid));
    assert_eq!(send(from(v6(CLIENT)), 1), Some(Error::NetworkUnreachable));
    assert_eq!(send(from(v4(CLIENT)), 1), None);
    let cut = |size| SendTo { segment_size: Some(size), ..right };
    assert_eq!(send(cut(1473), 5000), Some(Error::MessageSize));
    assert_eq!(send(cut(1472), 5000), None);
    assert_eq!(send(cut(10), 1281), Some(Error::Invalid), "129 segments");
    assert_eq!(send(cut(10), 1280), None);
    assert_eq!(send(cut(1400), 100), None, "a single datagram");
    let host = &mut b.hosts[CLIENT];
    assert_eq!(host.listen(id, 1, b.now), Err(Error::NotSupported));
    assert_eq!(host.accept(id, b.now).err(), Some(Error::NotSupported));
    assert_eq!(host.connect(id, SocketAddr::new(v6(SERVER), 1), b.now), Err(Error::AddressFamily));
    let stream = b.stream(CLIENT);
    assert_eq!(b.send_to(CLIENT, stream, b"x", at(53)), Err(Error::NotSupported));
    assert_eq!(b.take(CLIENT, stream).err(), Some(Error::NotSupported));
    let six = b.datagram(CLIENT, Family::V6);
    let at6 = SocketAddr::new(v6(SERVER), 53);
    assert_eq!(b.send_to(CLIENT, six, &data(65_528), at6), Err(Error::MessageSize));
    assert_eq!(b.send_to(CLIENT, six, &data(65_527), at6), Ok(65_527));
}

/// Goal: a socket without fragmentation gets an error for a long datagram, also in the error queue.
#[test]
fn no_fragments_means_no_long_datagrams() {
    let mut b = Bench::new();
    let id = b.datagram(CLIENT, Family::V4);
    b.change(CLIENT, id, |options| options.path_mtu = PathMtu::Do);
    b.hosts[CLIENT].set_receive_errors(id, Family::V4, true).expect("open socket");
    assert_eq!(b.send_to(CLIENT, id, &data(1472), at(53)), Ok(1472));
    assert_eq!(b.send_to(CLIENT, id, &data(1473), at(53)), Err(Error::MessageSize));
    assert!(b.hosts[CLIENT].readiness(id).contains(Readiness::ERR));
    let notice = b.with(CLIENT, |sockets, cx| sockets.take_notice_into(id, &mut [], cx.ledger));
    let (notice, copied, len) = notice.expect("a notice");
    let Notice::Failed(notice) = notice else { panic!("{notice:?}") };
    assert_eq!((notice.error, notice.info, copied, len), (Error::MessageSize, 1500, 0, 0));
    assert_eq!(b.hosts[CLIENT].take_error(id), Ok(None));
}
