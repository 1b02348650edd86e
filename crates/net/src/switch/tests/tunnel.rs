//! Super-packets in UDP tunnels: each port gets what it takes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use proptest::prelude::*;
use towpath_packet::{Caps, Checksum, Gso, Loans, Offload, Site};

use super::harness::*;
use super::offload::{ALONE, CHECKSUMS, ReturnCount, contents, lent, with_caps};
use crate::counters::PortDrop;
use crate::gso::testing::{Spec, Tunnelled, any_tunnelled, pattern, received};
use crate::switch::*;

/// Frames and offload fields that a port with these capabilities must get of a packet.
fn expected(
    whole: &Tunnelled,
    size: usize,
    caps: &Caps,
    tag: Option<u16>,
) -> Vec<(Vec<u8>, Offload)> {
    let to = |bytes: Vec<u8>| readdressed(&bytes, BROADCAST, mac(1), tag);
    let shifted = |mut offload: Offload| {
        offload.shift(if tag.is_some() { 4 } else { 0 });
        offload
    };
    if caps.tunnel && whole.inner.payload.len() > size {
        return alloc::vec![(to(whole.super_frame()), shifted(whole.offload(size as u16)))];
    }
    let segment = |segment: &Tunnelled| match caps.checksum {
        true => {
            let offload = Offload { checksum: segment.partial(), gso: None };
            (to(segment.partial_frame()), shifted(offload))
        }
        false => (to(segment.frame()), Offload::default()),
    };
    whole.segments(size).iter().map(segment).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Goal: one packet is flooded to ports of all kinds, with and without tags. Each gets what it
    /// can take, and an independent implementation checks every byte and claim. The payload is
    /// shared, or copied once with `copies_payload`, and its lender is notified once.
    #[test]
    fn each_port_gets_what_it_takes_of_a_tunnel(
        whole in any_tunnelled(1..9000),
        size in 100..1300usize,
        has_tag: bool,
        // Linux counts the tag only in the checksum's offset.
        offsets_count_tag: bool,
        copies_payload: bool,
    ) {
        let caps = [ABLE, Caps { tunnel: false, ..ABLE }, CHECKSUMS, ALONE];
        let vlans = || trunk(None, &[5]);
        let mut ports = alloc::vec![in_vlans(if has_tag { vlans() } else { access(5) })];
        for caps in caps {
            ports.push(PortConfig { vlans: vlans(), ..with_caps(caps) });
            ports.push(PortConfig { vlans: access(5), ..with_caps(caps) });
        }
        let mut t = Harness::with(Config { copies_payload, ..Config::default() }, ports);
        let (mut loans, returned) = (Loans::new(1), Arc::new(ReturnCount::default()));
        let tag = has_tag.then_some(0x6005);
        let frame = readdressed(&whole.super_frame(), BROADCAST, mac(1), tag);
        let mut packet = lent(&mut t, &mut loans, &returned, frame);
        let mut offload = whole.offload(size as u16);
        offload.shift(if has_tag { 4 } else { 0 });
        if has_tag && !offsets_count_tag {
            offload.gso = whole.offload(size as u16).gso;
        }
        packet.set_offload(offload);
        t.send_packet(0, packet);
        let expected_copies = if copies_payload { whole.inner.payload.len() as u64 } else { 0 };
        prop_assert_eq!(t.ledger.copied_at(Site::Orphan), expected_copies);
        let summed = t.ledger.copied_at(Site::Linearise);
        prop_assert_eq!(t.ledger.copied(), expected_copies + summed, "except for checksums");
        let out = core::mem::take(&mut t.out.packets);
        prop_assert_eq!(out.len(), 8);
        for (port, packets) in out {
            let priority = if has_tag { 0x6000 } else { 0 };
            let tag = (port % 2 == 1).then_some(priority | 5);
            let found: Vec<_> =
                packets.iter().map(|packet| (contents(packet, &t), *packet.offload())).collect();
            let wanted = expected(&whole, size, &caps[(port - 1) / 2], tag);
            prop_assert!(found == wanted, "port {}", port);
        }
        prop_assert_eq!(returned.0.load(Ordering::Relaxed), 1);
        prop_assert_eq!(t.memory.packets.out_count(), 0);
    }
}

/// Goal: the outer checksum is computed without reading the payload: nothing is summed for a port
/// that completes the inner checksums itself, also if the tunnel has a checksum.
#[test]
fn an_outer_checksum_needs_no_payload() {
    let inner = Spec::plain(false, true, pattern(50_000));
    let whole = Tunnelled { has_checksum: true, ..Tunnelled::vxlan(true, inner) };
    let mut t = Harness::new([port(), with_caps(CHECKSUMS)]);
    let (mut loans, returned) = (Loans::new(1), Arc::new(ReturnCount::default()));
    let frame = readdressed(&whole.super_frame(), mac(2), mac(1), None);
    let mut packet = lent(&mut t, &mut loans, &returned, frame);
    packet.set_offload(whole.offload(1000));
    t.send_packet(0, packet);
    assert_eq!((t.out.packets[&1].len(), t.ledger.copied()), (50, 0));
    assert_eq!((t.counters(1).cut, t.counters(1).checksums), (1, 0));
    t.end();
}

/// Invalid tunnel claims: headers that are incomplete or extend beyond the peeked bytes; a TCP
/// header that is too short; offsets into the Ethernet header, into the payload, of other headers;
/// a tunnel in TCP, in a fragment, in a non-IP packet; no partial checksum.
#[test]
fn lies_about_tunnels_are_dropped() {
    let mut t = Harness::new([port(), port()]);
    let whole = Tunnelled::vxlan(false, Spec::plain(false, true, pattern(3000)));
    let frame = readdressed(&whole.super_frame(), mac(2), mac(1), None);
    let right = whole.offload(1000);
    let tunnel = right.gso.and_then(|gso| gso.tunnel).expect("in a tunnel");
    let with = |transport_at, network_at| {
        let tunnel = towpath_packet::Tunnel { transport_at, network_at, ..tunnel };
        Offload { gso: right.gso.map(|gso| Gso { tunnel: Some(tunnel), ..gso }), ..right }
    };
    let start = |start| Offload { checksum: Checksum::Partial { start, offset: 16 }, ..right };
    let changed = |at: usize, to: u8| {
        let mut frame = frame.clone();
        frame[at] = to;
        frame
    };
    let deep = Tunnelled { header: alloc::vec![0; 100], ..whole.clone() };
    let deep_frame = readdressed(&deep.super_frame(), mac(2), mac(1), None);
    let data_offset_at = whole.headers_len() - 8;
    assert_eq!(frame[data_offset_at], 0x50);
    let cases = [
        (deep_frame, deep.offload(1000)),
        (frame[..whole.headers_len() - 1].to_vec(), right),
        (frame[..41].to_vec(), right),
        (changed(data_offset_at, 0x40), right),
        (changed(12, 0x88), right),
        (changed(20, 0x20), right),
        (changed(23, 6), right),
        (frame.clone(), with(14, 64)),
        (frame.clone(), with(0, 0)),
        (frame.clone(), with(34, 42)),
        (frame.clone(), with(34, 2000)),
        (frame.clone(), with(u16::MAX, u16::MAX)),
        (frame.clone(), start(34)),
        (frame.clone(), start(1000)),
        (frame.clone(), start(u16::MAX)),
        (frame.clone(), Offload { checksum: Checksum::None, ..right }),
    ];
    for (bytes, offload) in cases {
        t.expect_drop_with(0, &bytes, offload, PortDrop::OffloadMalformed);
    }
    let mut packet = received(&mut t.memory, &frame, &[]);
    packet.set_offload(right);
    t.send_packet(0, packet);
    assert_eq!(t.frames()[&1], [frame], "a valid claim passes");
    t.end();
}
