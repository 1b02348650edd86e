//! UDP (RFC 768): receiving and sending, checksums, super-packets with and without USO.

use super::bench::{Bench, FAMILIES, OURS4, OURS6, Out, PEER_MAC, PEER6, able, config, udp};
use crate::counters::DropReason;
use crate::stack::Config;
use crate::wire::ipv4;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::num::NonZeroU16;
use towpath_packet::{Caps, Checksum, Gso, GsoKind, Offload};

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 % 251) as u8).collect()
}

fn payload(datagram: &crate::stack::Datagram) -> Vec<u8> {
    datagram.packet.pieces().flat_map(|p| p.bytes().expect("private").to_vec()).collect()
}

#[test]
fn datagrams_come_and_go() {
    for (ours, peer) in FAMILIES {
        for caps in [able(), Caps::plain(1500)] {
            let mut b = Bench::host(caps);
            let (local, remote) = (SocketAddr::new(ours, 53), SocketAddr::new(peer, 999));
            for len in [0, 1, 3, 1400] {
                b.input(&udp(remote, local, &data(len)));
                let datagram = b.stack.next_datagram().expect("there");
                assert_eq!((datagram.local, datagram.remote), (local, remote));
                assert_eq!((payload(&datagram), datagram.segment_size), (data(len), None));
                let mut back = b.memory.packet().expect("free");
                for piece in datagram.packet.pieces() {
                    back.push_piece(piece.clone()).expect("few pieces");
                }
                b.with_context(|stack, cx| stack.udp_send(back, local, remote, None, cx));
                let out = b.one();
                assert_eq!(out.transport()[8..], data(len));
                let partial = matches!(out.offload.checksum, Checksum::Partial { .. });
                assert_eq!((partial, out.is_sound()), (caps.checksum, !caps.checksum));
            }
            b.dropped(&[]);
            b.assert_clean();
        }
    }
}

/// RFC 768, RFC 8200 §8.1: a missing checksum is accepted over IPv4 only; a wrong one never is.
#[test]
fn checksums_are_verified() {
    for (ours, peer) in FAMILIES {
        let (local, remote) = (SocketAddr::new(ours, 53), SocketAddr::new(peer, 999));
        let at = if ours.is_ipv4() { 40 } else { 60 };
        let mut b = Bench::host(able());
        let mut wrong = udp(remote, local, b"data");
        wrong[at + 3] ^= 1;
        b.input(&wrong).dropped(&[(DropReason::UdpChecksum, 1)]);
        let mut absent = udp(remote, local, b"data");
        absent[at..at + 2].fill(0);
        b.input(&absent);
        assert_eq!(b.stack.next_datagram().is_some(), ours.is_ipv4());
        // The device vouches for the checksum.
        let offload = Offload { checksum: Checksum::Unnecessary, gso: None };
        b.input_offload(&wrong, offload);
        assert!(b.stack.next_datagram().is_some());
        b.quiet().assert_clean();
    }
}

/// A datagram larger than the MTU is sent in fragments, and reassembled on receipt.
#[test]
fn large_datagrams_are_fragmented() {
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(Caps::plain(1500));
        let (local, remote) = (SocketAddr::new(ours, 53), SocketAddr::new(peer, 999));
        let packet = b.packet(&data(9000));
        b.with_context(|stack, cx| stack.udp_send(packet, local, remote, None, cx));
        let mut fragments = b.output();
        assert_eq!(fragments.len(), 7);
        b.assert_clean();
        // To another host whose address is the destination, last fragment first.
        let mut config = super::bench::config(false);
        config.addresses.iter_mut().for_each(|ours| {
            ours.address = if ours.address.is_ipv4() { FAMILIES[0].1 } else { FAMILIES[1].1 };
        });
        config.mac = super::bench::PEER_MAC;
        let mut c = Bench::with(config, Caps::plain(1500));
        fragments.reverse();
        for fragment in &fragments {
            c.input(&fragment.bytes);
        }
        let datagram = c.stack.next_datagram().expect("whole");
        assert_eq!(payload(&datagram), data(9000));
        assert_eq!(c.stack.counters().reassembled, 1);
        drop(datagram);
        c.quiet().assert_clean();
    }
}

/// Super-packets are sent as they are if the device segments them, else as datagrams.
#[test]
fn super_packets_out() {
    for (ours, peer) in FAMILIES {
        let (local, remote) = (SocketAddr::new(ours, 53), SocketAddr::new(peer, 999));
        let size = NonZeroU16::new(1200);
        let mut b = Bench::host(able());
        let packet = b.packet(&data(5000));
        b.with_context(|stack, cx| stack.udp_send(packet, local, remote, size, cx));
        let out = b.one();
        let gso = out.offload.gso.expect("a super-packet");
        assert_eq!((gso.kind, gso.size.get()), (GsoKind::Udp, 1200));
        b.assert_clean();

        for checksum in [false, true] {
            let mut b = Bench::host(Caps { checksum, ..Caps::plain(1500) });
            let packet = b.packet(&data(5000));
            b.with_context(|stack, cx| stack.udp_send(packet, local, remote, size, cx));
            let out = b.output();
            let lens: Vec<usize> = out.iter().map(|out| out.transport().len() - 8).collect();
            assert_eq!(lens, [1200, 1200, 1200, 1200, 200]);
            let whole: Vec<u8> = out.iter().flat_map(|out| out.transport()[8..].to_vec()).collect();
            assert_eq!(whole, data(5000));
            assert!(out.iter().all(|out| out.is_sound() != checksum));
            b.dropped(&[]);
            b.assert_clean();
        }
    }
}

/// Super-packets that the device delivers stay whole.
#[test]
fn super_packets_in() {
    for (ours, peer) in FAMILIES {
        let (local, remote) = (SocketAddr::new(ours, 53), SocketAddr::new(peer, 999));
        let mut b = Bench::host(able());
        let at = if ours.is_ipv4() { 34 } else { 54 };
        let size = NonZeroU16::new(1200).expect("not zero");
        let gso = Some(Gso { kind: GsoKind::Udp, size, ecn: false, tunnel: None });
        let checksum = Checksum::Partial { start: at, offset: 6 };
        b.input_offload(&udp(remote, local, &data(5000)), Offload { checksum, gso });
        let datagram = b.stack.next_datagram().expect("there");
        assert_eq!((payload(&datagram), datagram.segment_size), (data(5000), Some(size)));
        drop(datagram);
        b.dropped(&[]);
        b.assert_clean();
        assert_eq!(b.stack.counters().super_packets_in, 1);
    }
}

/// Regression: segments larger than the MTU were sent as frames that no device accepts.
#[test]
fn segments_larger_than_the_mtu_are_refused() {
    for (ours, peer) in FAMILIES {
        for caps in [able(), Caps::plain(1500)] {
            let mut b = Bench::host(caps);
            let (local, remote) = (SocketAddr::new(ours, 53), SocketAddr::new(peer, 999));
            b.input(&udp(remote, local, &data(1400)));
            let datagram = b.stack.next_datagram().expect("there");
            let mut packet = b.memory.packet().expect("free");
            for _ in 0..3 {
                for piece in datagram.packet.pieces() {
                    packet.push_piece(piece.clone()).expect("few pieces");
                }
            }
            drop(datagram);
            let size = NonZeroU16::new(2000);
            b.with_context(|stack, cx| stack.udp_send(packet, local, remote, size, cx));
            b.dropped(&[(DropReason::TooLarge, 1)]);
            b.assert_clean();
        }
    }
}

/// Datagrams that the device did not coalesce are coalesced within a burst; none waits for the
/// next.
#[test]
fn bursts_are_coalesced() {
    for (ours, peer) in FAMILIES {
        let (local, remote) = (SocketAddr::new(ours, 53), SocketAddr::new(peer, 999));
        let mut frames: Vec<Vec<u8>> = (0..5u8).map(|n| udp(remote, local, &[n; 100])).collect();
        if ours.is_ipv4() {
            count_idents(&mut frames);
        }
        let burst: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let mut b = Bench::host(Caps::plain(1500));
        b.input_burst(&burst);
        let datagram = b.stack.next_datagram().expect("there");
        assert_eq!(datagram.segment_size.map(NonZeroU16::get), Some(100));
        assert_eq!(payload(&datagram).len(), 500);
        assert_eq!((datagram.local, datagram.remote), (local, remote));
        assert!(b.stack.next_datagram().is_none());
        drop(datagram);
        b.dropped(&[]);
        b.assert_clean();
        // Not by a stack whose device coalesces, unless the stack forwards datagrams.
        let mut b = Bench::host(able());
        b.input_burst(&burst);
        assert_eq!(core::iter::from_fn(|| b.stack.next_datagram()).count(), 5);
        let mut b = Bench::with(config(true), able());
        b.input_burst(&burst);
        let datagram = b.stack.next_datagram().expect("there");
        assert_eq!(datagram.segment_size.map(NonZeroU16::get), Some(100));
        assert!(b.stack.next_datagram().is_none());
    }
}

/// Gives IPv4 packets consecutive identifications, as senders of super-packets do.
pub(super) fn count_idents(frames: &mut [Vec<u8>]) {
    for (index, frame) in frames.iter_mut().enumerate() {
        frame[18..20].copy_from_slice(&(index as u16).to_be_bytes());
        frame[24..26].fill(0);
        let mut sum = crate::checksum::Sum::new();
        sum.add(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.finish().to_be_bytes());
    }
}

/// RFC 6864, RFC 7739: one destination learns nothing about traffic with another, also with IPv6
/// fragments.
#[test]
fn destinations_have_identifications_of_their_own() {
    for (ours, peer) in FAMILIES {
        let other: IpAddr = match peer {
            IpAddr::V4(_) => Ipv4Addr::new(10, 0, 0, 7).into(),
            IpAddr::V6(_) => "fd00::7".parse().expect("an address"),
        };
        let sent = |elsewhere: bool| {
            let mut b = Bench::host(Caps::plain(1500));
            b.stack.set_neighbor(other, PEER_MAC);
            let mut ident = |to: IpAddr| {
                let packet = b.packet(&data(2000));
                let (local, remote) = (SocketAddr::new(ours, 53), SocketAddr::new(to, 999));
                b.with_context(|stack, cx| stack.udp_send(packet, local, remote, None, cx));
                let out = b.output();
                assert_eq!(out.len(), 2);
                let at = if ours.is_ipv4() { 16 } else { 14 + 44 };
                u32::from_be_bytes(out[0].bytes[at..at + 4].try_into().expect("four")) & mask(ours)
            };
            let idents = (0..10).map(|_| {
                let others = [0; 2].map(|_| if elsewhere { ident(other) } else { 0 });
                let mine = ident(peer);
                assert!(others.iter().all(|other| other.abs_diff(mine) > 2), "{others:?} {mine}");
                mine
            });
            idents.collect::<Vec<_>>()
        };
        let alone = sent(false);
        assert_eq!(sent(true), alone);
        let near = alone.windows(2).filter(|two| two[0].abs_diff(two[1]) < 64).count();
        assert!(near < 2, "{alone:?}");
    }
}

/// Mask of an identification's bits.
fn mask(family: IpAddr) -> u32 {
    if family.is_ipv4() { 0xffff } else { u32::MAX }
}

/// Datagrams that the owner does not take are bounded.
#[test]
fn datagrams_not_taken_are_bounded() {
    let mut b = Bench::host(able());
    let (ours, peer) = FAMILIES[0];
    for _ in 0..300 {
        b.input(&udp(SocketAddr::new(peer, 1), SocketAddr::new(ours, 2), b"data"));
    }
    b.dropped(&[(DropReason::UdpQueueFull, 300 - 256)]);
    while b.stack.next_datagram().is_some() {}
    b.quiet().assert_clean();
}

/// Datagrams longer than a packet are dropped.
#[test]
fn too_large_is_refused() {
    for (ours, peer) in FAMILIES {
        let mut b = Bench::host(able());
        let (local, remote) = (SocketAddr::new(ours, 53), SocketAddr::new(peer, 999));
        let packet = b.packet(&data(65_536 - 8));
        b.with_context(|stack, cx| stack.udp_send(packet, local, remote, None, cx));
        b.quiet().dropped(&[(DropReason::TooLarge, 1)]);
        b.assert_clean();
    }
}

/// RFC 6437 §3: all packets of a flow have one label, which another flow or secret changes.
#[test]
fn flows_have_labels() {
    let labels = |secret: u64| {
        let mut b = Bench::with(Config { secret: [secret, 2], ..config(false) }, Caps::plain(1500));
        b.stack.set_neighbor(PEER6, PEER_MAC);
        let mut labels = Vec::new();
        for port in 0..100 {
            let [local, remote] = [(OURS6, 1000 + port), (PEER6, 53)].map(SocketAddr::from);
            let label = |b: &mut Bench, len: usize| {
                let packet = b.packet(&vec![7; len]);
                b.with_context(|stack, cx| stack.udp_send(packet, local, remote, None, cx));
                let of = |out: &Out| u32::from_be_bytes(out.bytes[14..18].try_into().expect("4"));
                let all: Vec<u32> = b.output().iter().map(|out| of(out) & 0xfffff).collect();
                assert!(all.iter().all(|label| *label == all[0]));
                all[0]
            };
            let first = label(&mut b, 100);
            assert_eq!(label(&mut b, 2000), first, "fragments too");
            labels.push(first);
        }
        labels
    };
    let (mut all, others) = (labels(1), labels(3));
    assert_eq!(labels(1), all);
    assert!(all.iter().zip(&others).filter(|(a, b)| a == b).count() < 3);
    all.sort_unstable();
    all.dedup();
    assert!(all.len() > 95 && all.iter().any(|label| *label > 0x80000), "{all:?}");
}

/// Goal: a packet that the caller made with its IP header, for an address of this stack, is
/// received at once like any other: whole or in fragments, with and without offloads.
#[test]
fn own_packets_with_headers_are_received() {
    let local = SocketAddr::new(OURS4, 53);
    let whole = udp(SocketAddr::new(OURS4, 999), local, &data(40)).split_off(14);
    let part = |from: usize, to: usize, more: bool| {
        let mut header = ipv4::Header::parse(&whole, whole.len()).expect("valid");
        (header.fragment_offset, header.more_fragments) = (from as u16, more);
        header.total_len = (ipv4::HEADER_LEN + to - from) as u16;
        let mut bytes = alloc::vec![0; ipv4::HEADER_LEN];
        header.emit(&mut bytes);
        bytes.extend(&whole[ipv4::HEADER_LEN + from..ipv4::HEADER_LEN + to]);
        bytes
    };
    let fragments = [part(0, 24, true), part(24, 48, false)];
    for caps in [able(), Caps::plain(1500)] {
        for packets in [&[whole.clone()][..], &fragments] {
            let mut b = Bench::host(caps);
            for bytes in packets {
                let packet = b.packet(bytes);
                let ends = (Ipv4Addr::UNSPECIFIED, OURS4);
                let sent = b.with_context(|stack, cx| stack.send_with_header(packet, ends, cx));
                sent.expect("a valid header");
            }
            assert!(b.output().is_empty(), "nothing leaves");
            let datagram = b.stack.next_datagram().expect("there");
            assert_eq!((datagram.local, payload(&datagram)), (local, data(40)));
            drop(datagram);
            b.dropped(&[]);
            b.assert_no_leak();
        }
    }
}
