//! Hostile frames: truncated, inconsistent, damaged, floods. Nothing panics, every drop is counted,
//! and no memory leaks.

use super::bench::{
    Bench, FAMILIES, FAR4, FAR6, OUR_MAC, OURS4, OURS6, PEER_MAC, PEER4, PEER6, able, frame, icmp,
    ip, segment, transport_sum, udp,
};
use crate::counters::DropReason;
use crate::fragment;
use crate::time::Duration;
use crate::wire::Protocol;
use crate::wire::ethernet::EtherType;
use crate::wire::tcp::{Flags, Options};
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddr;
use proptest::prelude::*;
use towpath_packet::{Burst, Caps, VirtioHeader};

/// One frame of each kind that the stack processes.
fn samples() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (ours, peer) in FAMILIES {
        let (local, remote) = (SocketAddr::new(ours, 80), SocketAddr::new(peer, 999));
        let options = Options {
            mss: Some(1000),
            window_scale: Some(3),
            sack_permitted: true,
            timestamps: Some((1, 2)),
            ..Options::default()
        };
        frames.push(segment(remote, local, Flags::SYN, (100, 0), &options, b""));
        frames.push(segment(remote, local, Flags::ACK, (101, 5), &Options::default(), &[1; 600]));
        frames.push(udp(remote, local, &[2; 300]));
        let kind = if ours.is_ipv4() { 8 } else { 128 };
        frames.push(icmp(peer, ours, 64, &[kind, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]));
        let mut error = vec![if ours.is_ipv4() { 3 } else { 2 }, 4, 0, 0, 0, 0, 5, 0];
        error.extend_from_slice(&frames[0][14..]);
        frames.push(icmp(peer, ours, 64, &error));
    }
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
    match OURS6 {
        core::net::IpAddr::V6(v6) => solicitation.extend_from_slice(&v6.octets()),
        core::net::IpAddr::V4(_) => {}
    }
    solicitation.extend_from_slice(&[1, 1, 2, 0, 0, 0, 0, 2]);
    frames.push(icmp(PEER6, OURS6, 255, &solicitation));
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend_from_slice(&[2, 0, 0, 0, 0, 2, 10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    frames.push(frame(PEER_MAC, OUR_MAC, EtherType::ARP, &arp));
    frames
}

fn drops(b: &Bench) -> u64 {
    b.stack.counters().drops().map(|(_, count)| count).sum()
}

/// Takes everything that the owner may take, and checks that no memory is left.
fn settle(mut b: Bench) {
    while b.stack.next_datagram().is_some() {}
    while b.stack.next_echo().is_some() {}
    while let Some((handle, _)) = b.stack.next_event() {
        b.stack.tcp_release(handle, b.now);
    }
    b.output();
    b.wait(Duration::from_secs(600));
    b.assert_no_leak();
}

/// Goal: a truncated frame without trusted checksum is dropped and counted once. Method: every
/// length of every kind of frame.
#[test]
fn truncated_frames_are_counted() {
    for sample in samples() {
        for len in 0..sample.len() {
            let mut b = Bench::transparent(Caps::plain(1500));
            b.input(&sample[..len]);
            assert_eq!(drops(&b), 1, "{len} of {} bytes", sample.len());
            settle(b);
        }
    }
}

/// Goal: damage under a checksum is detected; elsewhere it does no harm. Method: every byte of
/// every kind of frame behind the Ethernet header is changed.
#[test]
fn damaged_frames_do_no_harm() {
    for sample in samples() {
        for at in 14..sample.len() {
            let mut b = Bench::host(Caps::plain(1500));
            let mut damaged = sample.clone();
            damaged[at] ^= 0x41;
            b.input(&damaged);
            let is_arp = damaged[12..14] == [8, 6];
            let unchecked = damaged[12..14] == [0x86, 0xdd] && at < 14 + 8 || is_arp;
            assert!(unchecked || drops(&b) == 1, "byte {at} of {sample:?}");
            settle(b);
        }
    }
}

/// RFC 2385: a segment with a signature that cannot be verified is dropped without an answer.
#[test]
fn signed_segments_are_dropped() {
    for (ours, peer) in FAMILIES {
        for flags in [Flags::SYN, Flags::ACK, Flags::RST] {
            let mut b = Bench::transparent(Caps::plain(1500));
            let mut bytes = vec![0x10, 0, 0, 80, 0, 0, 0, 100, 0, 0, 0, 0, 0xa0, flags.0];
            bytes.extend([0xff, 0xff, 0, 0, 0, 0, 19, 18]);
            bytes.resize(40 - 2, 7);
            bytes.extend([1, 1]);
            let sum = transport_sum(peer, ours, Protocol::TCP, &bytes);
            bytes[16..18].copy_from_slice(&sum.to_be_bytes());
            b.input(&ip(peer, ours, Protocol::TCP, 64, &bytes)).quiet();
            b.dropped(&[(DropReason::TcpSignature, 1)]);
        }
    }
}

/// Padding behind a short packet is ignored.
#[test]
fn padding_is_ignored() {
    for sample in samples() {
        let mut padded = sample.clone();
        padded.resize(sample.len() + 30, 0xee);
        let (mut one, mut two) =
            (Bench::transparent(Caps::plain(1500)), Bench::transparent(Caps::plain(1500)));
        let (out_one, out_two) = (one.input(&sample).output(), two.input(&padded).output());
        let bytes = |frames: Vec<super::bench::Out>| {
            frames.into_iter().map(|out| out.bytes).collect::<Vec<_>>()
        };
        assert_eq!(bytes(out_one), bytes(out_two));
        settle(one);
        settle(two);
    }
}

/// RFC 791 §3.1: source routes are not followed; RFC 5927: inconsistent options are rejected.
#[test]
fn ip_options() {
    let build = |options: &[u8]| {
        let mut frame = ip(PEER4, OURS4, Protocol(200), 64, &[0; 8]);
        frame.splice(34..34, options.iter().copied());
        frame[14] = 0x40 + 5 + (options.len() / 4) as u8;
        let len = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&len.to_be_bytes());
        frame[24..26].fill(0);
        let mut sum = crate::checksum::Sum::new();
        sum.add(&frame[14..34 + options.len()]);
        frame[24..26].copy_from_slice(&sum.finish().to_be_bytes());
        frame
    };
    let cases: [(&[u8], DropReason); 4] = [
        (&[131, 7, 4, 1, 2, 3, 4, 0], DropReason::SourceRoute),
        (&[137, 7, 4, 1, 2, 3, 4, 0], DropReason::SourceRoute),
        (&[7, 40, 4, 0], DropReason::IpMalformed),
        (&[1, 1, 1, 0], DropReason::ProtocolUnknown),
    ];
    for (options, reason) in cases {
        let mut b = Bench::host(Caps::plain(1500));
        b.input(&build(options));
        b.dropped(&[(reason, 1)]);
        settle(b);
    }
}

/// A fragment of an IPv4 datagram.
fn fragment4(ident: u16, offset: u16, more: bool, len: usize) -> Vec<u8> {
    let mut frame = ip(PEER4, OURS4, Protocol::UDP, 64, &vec![1; len]);
    frame[18..20].copy_from_slice(&ident.to_be_bytes());
    let field = (offset / 8) | (u16::from(more) << 13);
    frame[20..22].copy_from_slice(&field.to_be_bytes());
    frame[24..26].fill(0);
    let mut sum = crate::checksum::Sum::new();
    sum.add(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.finish().to_be_bytes());
    frame
}

/// A flood of fragments that never form a datagram is bounded, and expires.
#[test]
fn fragment_floods_are_bounded() {
    let mut b = Bench::host(Caps::plain(1500));
    for ident in 0..3000 {
        b.input(&fragment4(ident, 800, true, 800)).quiet();
        let held = b.memory.small.out_count() + b.memory.packets.out_count();
        assert!(held <= 2 * fragment::DATAGRAMS_MAX, "{held} held");
    }
    b.wait(fragment::IPV4_LIFETIME);
    b.assert_clean();
    assert_eq!(b.stack.next_deadline(), None);
}

/// Overlapping fragments drop their whole datagram (RFC 5722 §3).
#[test]
fn overlapping_fragments_are_dropped() {
    let mut b = Bench::host(Caps::plain(1500));
    b.input(&fragment4(1, 0, true, 800)).input(&fragment4(1, 400, true, 800));
    b.input(&fragment4(1, 800, false, 800));
    assert!(b.stack.next_datagram().is_none());
    b.dropped(&[(DropReason::Fragment, 2)]);
    b.wait(fragment::IPV4_LIFETIME);
    b.assert_no_leak();
}

/// RFC 792, RFC 8200 §4.5: the sender of a first fragment gets an error when the datagram expires.
#[test]
fn unfinished_datagrams_are_reported() {
    let mut b = Bench::host(Caps::plain(1500));
    b.input(&fragment4(1, 0, true, 800));
    let out = b.wait(fragment::IPV4_LIFETIME);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].transport()[..2], [11, 1]);
    b.dropped(&[(DropReason::Fragment, 1)]);
    b.assert_no_leak();
}

/// Without memory, packets are dropped and counted, and everything works again afterwards.
#[test]
fn no_memory_is_survived() {
    let mut b = Bench::host(Caps::plain(1500));
    let echo = icmp(PEER4, OURS4, 64, &[8, 0, 0, 0, 1, 2, 3, 4]);
    let packet = b.packet(&echo);
    let mut burst = Burst::new();
    burst.push(packet).expect("empty");
    let hoard: Vec<_> = core::iter::from_fn(|| b.memory.packet()).collect();
    b.with_context(|stack, cx| stack.input(&mut burst, cx));
    b.dropped(&[(DropReason::NoMemory, 1)]);
    drop(hoard);
    b.input(&echo).one();
    b.assert_no_leak();
}

/// Offload fields that a device may claim.
fn offload() -> impl Strategy<Value = [u8; VirtioHeader::LEN]> {
    let kind = prop_oneof![Just(0u8), Just(1), Just(4), Just(5), Just(0x81)];
    let start = prop_oneof![Just(34u16), Just(54), 0..200u16];
    let offset = prop_oneof![Just(6u16), Just(16), 0..40u16];
    prop_oneof![
        2 => Just([0; VirtioHeader::LEN]),
        1 => any::<[u8; VirtioHeader::LEN]>(),
        2 => (0..4u8, kind, 1..3000u16, start, offset).prop_map(
            |(flags, kind, size, start, offset)| {
                let mut bytes = [flags, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                bytes[4..6].copy_from_slice(&size.to_le_bytes());
                bytes[6..8].copy_from_slice(&start.to_le_bytes());
                bytes[8..10].copy_from_slice(&offset.to_le_bytes());
                bytes
            },
        ),
    ]
}

/// A stack with connections, listeners and neighbours, so that frames match existing state.
fn busy(transparent: bool, caps: Caps) -> Bench {
    let mut b = if transparent { Bench::transparent(caps) } else { Bench::host(caps) };
    for (ours, peer) in FAMILIES {
        b.stack.tcp_listen(SocketAddr::new(ours, 80));
        let remote = SocketAddr::new(peer, 7);
        b.stack.tcp_connect(SocketAddr::new(ours, 1000), remote, b.now).expect("free");
    }
    b.output();
    b
}

fn run(mut b: Bench, frames: Vec<(Vec<u8>, [u8; VirtioHeader::LEN])>) {
    let mut burst = Burst::new();
    for (bytes, header) in frames {
        let mut packet = b.packet(&bytes);
        if let Ok(offload) = VirtioHeader(header).decode() {
            packet.set_offload(offload);
        }
        burst.push(packet).expect("few frames");
    }
    b.with_context(|stack, cx| stack.input(&mut burst, cx));
    b.output();
    b.wait(Duration::from_millis(500));
    settle(b);
}

proptest! {
    /// Goal: no frame and no offload fields panic or leak. Method: random bytes.
    #[test]
    fn random_frames(
        frames in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..200), offload()), 1..8),
        transparent: bool, able_device: bool,
    ) {
        let caps = if able_device { able() } else { Caps::plain(1500) };
        run(busy(transparent, caps), frames);
    }

    /// Goal: no frame panics or leaks. Method: valid frames with some bytes changed, so that more
    /// of them pass the first checks.
    #[test]
    fn mutated_frames(
        frames in proptest::collection::vec(
            (0..12usize, proptest::collection::vec((14..100usize, any::<u8>()), 0..3), 0..700usize,
             offload()), 1..20),
        transparent: bool, able_device: bool,
    ) {
        let samples = samples();
        let frames = frames.into_iter().map(|(kind, changes, cut, offload)| {
            let mut bytes = samples[kind % samples.len()].clone();
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            if cut < 60 {
                bytes.truncate(bytes.len().saturating_sub(cut));
            }
            (bytes, offload)
        });
        let caps = if able_device { able() } else { Caps::plain(1500) };
        run(busy(transparent, caps), frames.collect());
    }

    /// Super-packets with arbitrary claims, which may be forwarded or answered but never trusted.
    #[test]
    fn lying_super_packets(
        len in 0..5000usize, header in offload(), far: bool, v6: bool, tcp: bool,
    ) {
        let (ours, peer) = FAMILIES[usize::from(v6)];
        let ours = match (far, v6) {
            (false, _) => ours,
            (true, false) => FAR4,
            (true, true) => FAR6,
        };
        let (local, remote) = (SocketAddr::new(ours, 80), SocketAddr::new(peer, 7));
        let data = vec![3; len];
        let bytes = if tcp {
            segment(remote, local, Flags::ACK, (1, 1), &Options::default(), &data)
        } else {
            udp(remote, local, &data)
        };
        run(busy(far, able()), vec![(bytes, header)]);
    }
}

/// A frame whose last byte is missing according to each length field.
#[test]
fn lying_lengths() {
    for (ours, peer) in FAMILIES {
        let (local, remote) = (SocketAddr::new(ours, 80), SocketAddr::new(peer, 7));
        let at = if ours.is_ipv4() { 34 } else { 54 };
        for length in [0u16, 7, 13, 400, 65_535] {
            let mut bytes = udp(remote, local, &[0; 4]);
            bytes[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
            let mut b = Bench::host(Caps::plain(1500));
            b.input(&bytes).quiet();
            b.dropped(&[(DropReason::UdpMalformed, 1)]);
            settle(b);
        }
    }
}
