//! Super-packets in UDP tunnels, against packets built by hand.

use super::*;

proptest! {
    /// Goal: each segment equals, byte for byte and with all checksums, the packet of a sender
    /// without offloads, and shares the payload; an absent outer checksum stays absent. Method: as
    /// without a tunnel; tunnel headers have any length, including odd ones.
    #[test]
    fn segments_in_tunnels_are_the_packets_of_a_plain_sender(
        whole in any_tunnelled(1..60_000),
        size in 512u16..9000,
        cuts in any_cuts(),
    ) {
        let expected = whole.segments(usize::from(size));
        let expected: Vec<_> = expected
            .iter()
            .map(|plain| (plain.frame(), plain.partial_frame(), plain.partial()))
            .collect();
        let headers_len = whole.headers_len();
        let whole = SuperPacket { frame: whole.super_frame(), offload: whole.offload(size), cuts };
        whole.compare(headers_len, &expected, |_, _| true)?;
    }

    /// Goal: a packet that fits one segment is a plain packet, with a complete outer checksum and a
    /// partial inner one.
    #[test]
    fn a_short_super_packet_in_a_tunnel_is_plain(whole in any_tunnelled(0..1400)) {
        let (mut memory, ledger) = (memory(), Ledger::new());
        let mut packet = parsed(&mut memory, &whole.super_frame(), whole.headers_len(), &[]);
        packet.set_offload(whole.offload(1400));
        prop_assert_eq!(check(&mut packet), Ok(()));
        prop_assert_eq!(*packet.offload(), Offload { checksum: whole.partial(), gso: None });
        prop_assert_eq!(bytes_of(&packet), whole.partial_frame());
        prop_assert_eq!(check(&mut packet), Ok(()), "as a plain one");
        complete_checksum(&mut packet, &ledger).expect("the field is in the headers");
        prop_assert_eq!(bytes_of(&packet), whole.frame());
        drop(packet);
        assert_all_back(&memory, &ledger);
    }
}

/// Every claim about a tunnel that contradicts the headers is rejected with its own error. Cases:
/// offsets that are off by one, swapped, before the frame or behind the headers; another IP
/// version; an outer TCP header; no partial checksum; an outer and an inner fragment; the outer
/// packet's kind; headers not fully pulled.
#[test]
fn false_claims_about_tunnels_are_distinguished() {
    use OffloadError as E;
    let (mut memory, ledger) = (memory(), Ledger::new());
    let whole = Tunnelled::vxlan(false, Spec::plain(true, true, pattern(4000)));
    let right = whole.offload(1000);
    let tunnel = right.gso.and_then(|gso| gso.tunnel).expect("in a tunnel");
    assert_eq!((tunnel.transport_at, tunnel.network_at), (34, 64));
    let with = |tunnel| Offload { gso: right.gso.map(|gso| Gso { tunnel, ..gso }), ..right };
    let moved =
        |transport_at, network_at| with(Some(Tunnel { transport_at, network_at, ..tunnel }));
    let start = |start| Offload { checksum: Checksum::Partial { start, offset: 16 }, ..right };
    let kind = |kind| Offload { gso: right.gso.map(|gso| Gso { kind, ..gso }), ..right };
    let frame = whole.super_frame();
    let changed = |at: usize, to: u8| {
        let mut frame = frame.clone();
        frame[at] = to;
        frame
    };
    let cases = [
        (frame.clone(), right, None),
        (frame.clone(), moved(33, 64), Some(E::Tunnel)),
        (frame.clone(), moved(35, 64), Some(E::Tunnel)),
        (frame.clone(), moved(0, 64), Some(E::Tunnel)),
        (frame.clone(), moved(u16::MAX, 64), Some(E::Tunnel)),
        (frame.clone(), moved(64, 34), Some(E::Headers)),
        (frame.clone(), moved(34, 63), Some(E::Headers)),
        (frame.clone(), moved(34, 65), Some(E::Headers)),
        (frame.clone(), moved(34, 14), Some(E::Headers)),
        (frame.clone(), moved(34, u16::MAX), Some(E::Headers)),
        (frame.clone(), start(34), Some(E::Headers)),
        (frame.clone(), start(103), Some(E::Headers)),
        (frame.clone(), start(u16::MAX), Some(E::Headers)),
        (frame.clone(), with(Some(Tunnel { is_ipv6: true, ..tunnel })), Some(E::Tunnel)),
        (frame.clone(), with(None), Some(E::Headers)),
        (frame.clone(), kind(GsoKind::Tcp4), Some(E::Kind)),
        (frame.clone(), kind(GsoKind::Udp), Some(E::Kind)),
        (frame.clone(), Offload { checksum: Checksum::None, ..right }, Some(E::ChecksumMissing)),
        (changed(23, 6), right, Some(E::Tunnel)),
        (changed(20, 0x20), right, Some(E::Tunnel)),
        (changed(64, 0x45), right, Some(E::Headers)),
        (changed(70, 44), right, Some(E::Headers)),
        (changed(116, 0x60), right, Some(E::Headers)),
    ];
    for (frame, offload, expected) in cases {
        let mut packet = parsed(&mut memory, &frame, whole.headers_len(), &[]);
        packet.set_offload(offload);
        assert_eq!(check(&mut packet).err(), expected, "{offload:?}");
        assert_eq!(*packet.offload(), offload);
    }
    for missing in [1, 20, 60, 82] {
        let mut packet = parsed(&mut memory, &frame, whole.headers_len() - missing, &[]);
        packet.set_offload(right);
        assert_eq!(check(&mut packet), Err(E::Headers));
    }
    assert_all_back(&memory, &ledger);
}

/// The length limit applies to the outer packet.
#[test]
fn tunnels_longer_than_an_ip_packet_are_refused() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let whole = Tunnelled::vxlan(true, Spec::plain(false, true, Vec::new()));
    let around = whole.headers_len() - 14;
    for (payload, expected) in [(65_535, Ok(())), (65_536, Err(OffloadError::TooLong))] {
        let mut frame = whole.super_frame();
        frame.resize(14 + payload, 0);
        let mut packet = parsed(&mut memory, &frame, whole.headers_len(), &[]);
        assert_eq!(packet.payload_len(), payload - around);
        packet.set_offload(whole.offload(1400));
        assert_eq!(check(&mut packet), expected);
    }
    assert_all_back(&memory, &ledger);
}

/// A lent super-packet in a tunnel is segmented without a copy, and its lender is notified once.
#[test]
fn segments_in_tunnels_share_the_loan() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let whole = Tunnelled::vxlan(false, Spec::plain(false, false, pattern(5000)));
    let (returns, mut loans) = (Returns::new(1), Loans::new(1));
    returns.begin(0);
    let (lent, at) = (Arc::new(whole.super_frame()), whole.headers_len());
    let piece = loans.lend_shared(&lent, (at, 5000), returns.clone(), 0).expect("a descriptor");
    let mut packet = parsed(&mut memory, &lent[..at], at, &[]);
    packet.push_piece(piece).expect("room");
    packet.set_offload(whole.offload(1000));
    let mut segments = cut(packet, &mut memory, &ledger, Checksums::LeavePartial);
    assert_eq!((segments.len(), ledger.copied(), loans.out_count()), (5, 0, 1));
    let kept = segments.swap_remove(1);
    drop(segments);
    let mut reported = Vec::new();
    returns.take(|group, copied| reported.push((group, copied)));
    assert_eq!(reported, [], "a segment is left");
    drop(kept);
    returns.take(|group, copied| reported.push((group, copied)));
    assert_eq!(reported, [(0, false)]);
}
