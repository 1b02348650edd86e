//! Segmentation, checksums and claims, against packets built by hand.

use super::testing::*;
use super::*;
use alloc::sync::Arc;
use alloc::vec::Vec;
use proptest::prelude::*;
use towpath_packet::{Gso, GsoKind, Loans, MemoryConfig, Piece, Returns, Tunnel};

mod tunnel;

/// Segments `packet` and returns the segments.
fn cut(packet: Packet, memory: &mut Memory, ledger: &Ledger, checksums: Checksums) -> Vec<Packet> {
    let (headers, mut segments) = (headers_of(&packet), Vec::new());
    let count = segment(packet, memory, ledger, &headers, checksums, &mut |segment, _| {
        segments.push(segment);
    });
    assert_eq!(count.expect("valid"), segments.len());
    segments
}

fn check(packet: &mut Packet) -> Result<(), OffloadError> {
    check_offload(packet, &read_headers(packet).ok_or(OffloadError::Headers)?)
}

fn verify(packet: &Packet, ledger: &Ledger) -> bool {
    read_headers(packet).is_some_and(|headers| verify_checksum(packet, &headers, ledger))
}

/// A super-packet in pieces that end at `cuts`.
struct SuperPacket {
    frame: Vec<u8>,
    offload: Offload,
    cuts: Vec<usize>,
}

impl SuperPacket {
    /// Segments it with complete and with partial checksums. The segments must be `expected`: for
    /// each the complete frame, the frame with a partial checksum, and the place of that. Complete
    /// segments must also pass `is_right`.
    fn compare(
        &self,
        headers_len: usize,
        expected: &[(Vec<u8>, Vec<u8>, Checksum)],
        is_right: impl Fn(&Packet, &Ledger) -> bool,
    ) -> Result<(), TestCaseError> {
        let (mut memory, ledger) = (memory(), Ledger::new());
        for checksums in [Checksums::Complete, Checksums::LeavePartial] {
            let mut packet = parsed(&mut memory, &self.frame, headers_len, &self.cuts);
            packet.set_offload(self.offload);
            let segments = cut(packet, &mut memory, &ledger, checksums);
            prop_assert_eq!(segments.len(), expected.len());
            for (segment, (complete, with_partial, partial)) in segments.iter().zip(expected) {
                let (bytes, checksum) = match checksums {
                    Checksums::Complete => (complete, Checksum::Unnecessary),
                    Checksums::LeavePartial => (with_partial, *partial),
                };
                prop_assert_eq!(&bytes_of(segment), bytes);
                prop_assert_eq!(*segment.offload(), Offload { checksum, gso: None });
                prop_assert!(checksums == Checksums::LeavePartial || is_right(segment, &ledger));
            }
        }
        assert_all_back(&memory, &ledger);
        Ok(())
    }
}

proptest! {
    /// Goal: each segment equals, byte for byte and with its checksums, the packet of a sender
    /// without offloads, and shares the payload. Method: `testing` builds the expected packets byte
    /// by byte with its own checksum code.
    #[test]
    fn segments_are_the_packets_of_a_plain_sender(
        spec in any_spec(1..60_000),
        size in 512u16..9000,
        cuts in any_cuts(),
    ) {
        let expected = spec.segments(usize::from(size));
        let expected: Vec<_> = expected
            .iter()
            .map(|plain| (plain.frame(), plain.partial_frame(), plain.partial()))
            .collect();
        let whole = SuperPacket { frame: spec.partial_frame(), offload: spec.offload(size), cuts };
        whole.compare(spec.headers_len(), &expected, verify)?;
    }

    /// Goal: no claims and headers make checking, segmentation or checksums panic, and a rejected
    /// packet is returned whole.
    #[test]
    fn strangers_may_claim_anything(
        headers in prop::collection::vec(any::<u8>(), 0..120),
        payload in 0usize..70_000,
        claims: (u16, u16, u8, u16, bool),
        tunnel: Option<(u16, u16, bool, bool)>,
        at: u8,
    ) {
        let (mut memory, ledger) = (memory(), Ledger::new());
        let mut frame = headers.clone();
        frame.resize(headers.len() + payload, 7);
        let mut packet = parsed(&mut memory, &frame, headers.len(), &[]);
        let (start, offset, kind, size, ecn) = claims;
        let kind = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp][usize::from(kind % 3)];
        let tunnel = tunnel.map(|(transport_at, network_at, is_ipv6, checksum)| Tunnel {
            transport_at: transport_at % 256,
            network_at: network_at % 256,
            is_ipv6,
            checksum,
        });
        let gso = size.try_into().ok().map(|size| Gso { kind, size, ecn, tunnel });
        packet.set_offload(Offload { checksum: Checksum::Partial { start, offset }, gso });
        let Some(headers) = Headers::read(packet.headers(), at.into()) else { return Ok(()) };
        let (mut seen, checksums) = (0, Checksums::Complete);
        let result = segment(packet, &mut memory, &ledger, &headers, checksums, &mut |_, _| {
            seen += 1;
        });
        match result {
            Ok(count) => prop_assert_eq!(count, seen),
            Err((_, packet)) => {
                prop_assert_eq!((seen, packet.len()), (0, frame.len()));
                verify_checksum(&packet, &headers, &ledger);
            }
        }
        assert_all_back(&memory, &ledger);
    }
}

/// Every claim that contradicts the headers is rejected with its own error.
#[test]
fn false_claims_are_distinguished() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let tcp = Spec::plain(false, true, pattern(4000));
    let udp = Spec::plain(true, false, pattern(4000));
    let partial = |start, offset| Checksum::Partial { start, offset };
    let gso = |kind, size: u16, ecn| {
        let size = size.try_into().expect("not 0");
        Some(Gso { kind, size, ecn, tunnel: None })
    };
    let cases = [
        (&tcp, partial(34, 16), gso(GsoKind::Tcp6, 1000, false), Some(OffloadError::Kind)),
        (&tcp, partial(34, 16), gso(GsoKind::Udp, 1000, false), Some(OffloadError::Kind)),
        (&tcp, partial(34, 6), gso(GsoKind::Tcp4, 1000, false), Some(OffloadError::ChecksumPlace)),
        (&tcp, partial(35, 16), gso(GsoKind::Tcp4, 1000, false), Some(OffloadError::ChecksumPlace)),
        (&tcp, partial(34, 16), gso(GsoKind::Tcp4, 2, false), Some(OffloadError::TooManySegments)),
        (&tcp, partial(34, 16), gso(GsoKind::Tcp4, 4, true), None),
        (&tcp, Checksum::None, gso(GsoKind::Tcp4, 1000, true), None),
        (&tcp, partial(34, 6), None, Some(OffloadError::ChecksumPlace)),
        (&udp, partial(54, 6), gso(GsoKind::Udp, 1000, true), Some(OffloadError::Ecn)),
        (&udp, partial(54, 6), gso(GsoKind::Udp, 31, false), Some(OffloadError::TooManySegments)),
        (&udp, partial(54, 6), gso(GsoKind::Udp, 32, false), None),
        (&udp, Checksum::None, gso(GsoKind::Udp, 999, false), Some(OffloadError::ChecksumMissing)),
        (&udp, partial(54, 16), gso(GsoKind::Udp, 999, false), Some(OffloadError::ChecksumPlace)),
        (&udp, partial(54, 6), None, None),
        // Checksum of the inner packet of a tunnel.
        (&udp, partial(96, 16), None, None),
        (&udp, partial(4060, 16), None, Some(OffloadError::ChecksumPlace)),
    ];
    for (spec, checksum, gso, expected) in cases {
        let mut packet = parsed(&mut memory, &spec.partial_frame(), spec.headers_len(), &[]);
        packet.set_offload(Offload { checksum, gso });
        assert_eq!(check(&mut packet).err(), expected, "{checksum:?} {gso:?}");
        assert_eq!(packet.offload().gso, gso);
    }
    let mut packet = parsed(&mut memory, &tcp.partial_frame(), tcp.headers_len(), &[]);
    packet.set_offload(tcp.offload(1000));
    let wrong = Headers { end: tcp.headers_len() - 4, ..headers_of(&packet) };
    assert_eq!(check_offload(&mut packet, &wrong), Err(OffloadError::Headers));
    drop(packet);
    assert_all_back(&memory, &ledger);
}

/// Fragments are not segmented, as their transport header is that of the whole datagram.
#[test]
fn fragments_are_not_segmented() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let mut spec = Spec::plain(false, true, pattern(4000));
    let mut more_fragments = spec.partial_frame();
    more_fragments[20] |= 0x20;
    let mut with_offset = spec.partial_frame();
    with_offset[21] = 1;
    let v4 = spec.clone();
    spec.v6 = true;
    spec.ip_options = 1;
    // Turns the options header into a fragment header.
    let mut v6 = spec.partial_frame();
    v6[20] = 44;
    for (spec, frame) in [(&v4, more_fragments), (&v4, with_offset), (&spec, v6)] {
        let mut packet = parsed(&mut memory, &frame, spec.headers_len(), &[]);
        packet.set_offload(spec.offload(1000));
        assert_eq!(check(&mut packet), Err(OffloadError::Headers));
        assert!(!verify(&packet, &ledger));
    }
    assert_all_back(&memory, &ledger);
}

/// A super-packet of one segment is a plain packet, not an error.
#[test]
fn a_short_super_packet_is_plain() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    for (v6, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        let spec = Spec::plain(v6, tcp, pattern(1000));
        let mut packet = parsed(&mut memory, &spec.partial_frame(), spec.headers_len(), &[500]);
        packet.set_offload(spec.offload(1000));
        assert_eq!(check(&mut packet), Ok(()));
        assert_eq!(packet.offload().gso, None);
        packet.set_offload(spec.offload(1001));
        let segments = cut(packet, &mut memory, &ledger, Checksums::Complete);
        assert_eq!(segments.len(), 1);
        assert_eq!(bytes_of(&segments[0]), spec.frame());
    }
    assert_all_back(&memory, &ledger);
}

/// Goal: all segments or none. Method: every number of free handles down to zero, and returned
/// handles that the pool's cached count does not include yet.
#[test]
fn without_handles_the_packet_comes_back() {
    let config = MemoryConfig { packets: 8, small_frames: 4, large_frames: 4 };
    let (mut memory, ledger) = (Memory::new(config), Ledger::new());
    let spec = Spec::plain(false, true, pattern(5000));
    for others in (0..7).chain((0..7).rev()) {
        let mut packet = parsed(&mut memory, &spec.partial_frame(), spec.headers_len(), &[]);
        packet.set_offload(spec.offload(1000));
        let taken: Vec<_> = (0..others).map(|_| memory.packet().expect("free")).collect();
        let mut segments = Vec::new();
        let checksums = Checksums::LeavePartial;
        let headers = headers_of(&packet);
        let result =
            segment(packet, &mut memory, &ledger, &headers, checksums, &mut |segment, _| {
                segments.push(segment);
            });
        if others <= 2 {
            assert_eq!(result.expect("enough handles"), 5);
        } else {
            let (error, packet) = result.expect_err("too few handles");
            assert_eq!(error, SegmentError::NoPackets);
            assert_eq!(bytes_of(&packet), spec.partial_frame());
        }
        drop((segments, taken));
    }
    assert_all_back(&memory, &ledger);
}

/// RFC 768: a computed zero is sent as all ones, for UDP only.
#[test]
fn a_computed_zero_is_sent_as_all_ones() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    for tcp in [false, true] {
        // The last two bytes make the sum of all bytes 0xffff.
        let mut spec = Spec::plain(true, tcp, alloc::vec![0; 100]);
        let frame = spec.frame();
        let at = spec.transport_at() + if tcp { 16 } else { 6 };
        spec.payload[98..].copy_from_slice(&frame[at..at + 2]);
        let mut packet = parsed(&mut memory, &spec.partial_frame(), spec.headers_len(), &[]);
        packet.set_offload(Offload { checksum: spec.partial(), gso: None });
        complete_checksum(&mut packet, &ledger).expect("valid");
        let expected = if tcp { [0, 0] } else { [0xff, 0xff] };
        assert_eq!(packet.headers()[at..at + 2], expected);
        assert!(verify(&packet, &ledger));
    }
    assert_all_back(&memory, &ledger);
}

/// A checksum is completed by its offsets alone, and only within the reach of private headers.
#[test]
fn partial_checksums_are_completed_within_the_headers() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let spec = Spec::plain(false, true, pattern(300));
    let cases = [
        (Checksum::Partial { start: 34, offset: 16 }, Ok(())),
        (Checksum::Partial { start: 190, offset: 2 }, Err(ChecksumError::InPayload)),
        (Checksum::Partial { start: 34, offset: 319 }, Err(ChecksumError::BeyondPacket)),
        (Checksum::Partial { start: u16::MAX, offset: u16::MAX }, Err(ChecksumError::BeyondPacket)),
        (Checksum::None, Ok(())),
    ];
    for (checksum, expected) in cases {
        let mut packet = parsed(&mut memory, &spec.partial_frame(), spec.headers_len(), &[77]);
        packet.set_offload(Offload { checksum, gso: None });
        assert_eq!(complete_checksum(&mut packet, &ledger), expected);
        let changed = expected.is_ok() && checksum != Checksum::None;
        assert_eq!(bytes_of(&packet) == spec.frame(), changed);
    }
    let mut packet = parsed(&mut memory, &spec.partial_frame(), spec.headers_len(), &[]);
    packet.set_offload(spec.offload(100));
    assert_eq!(complete_checksum(&mut packet, &ledger), Err(ChecksumError::SuperPacket));
    drop(packet);
    assert_all_back(&memory, &ledger);
}

/// A tunnel over a device without checksum offload: the inner checksum is completed although the
/// outer headers end before it, and no lent byte is written or copied for it.
#[test]
fn a_partial_checksum_in_a_tunnel_is_completed() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let inner = Spec::plain(false, true, pattern(700));
    let tunnelled = |frame| Spec::plain(false, false, [alloc::vec![8; 8], frame].concat());
    let (outer, expected) = (tunnelled(inner.partial_frame()), tunnelled(inner.frame()));
    for cuts in [&[][..], &[60, 90, 97, 98, 99, 100, 101]] {
        let headers = outer.headers_len();
        let mut packet = parsed(&mut memory, &outer.frame(), headers, cuts);
        let start = (headers + 8 + inner.transport_at()) as u16;
        packet
            .set_offload(Offload { checksum: Checksum::Partial { start, offset: 16 }, gso: None });
        assert_eq!(check(&mut packet), Ok(()));
        assert_eq!(complete_checksum(&mut packet, &ledger), Ok(()));
        assert_eq!(bytes_of(&packet)[headers..], expected.frame()[headers..]);
    }
    assert_all_back(&memory, &ledger);
}

/// Every single wrong bit is detected, and the rules for UDP checksums of zero hold.
#[test]
fn wrong_checksums_are_found() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    for (v6, tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        let spec = Spec::plain(v6, tcp, pattern(37));
        let right = spec.frame();
        let transport_at = spec.transport_at();
        for bit in transport_at * 8..right.len() * 8 {
            let mut frame = right.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            let packet = parsed(&mut memory, &frame, spec.headers_len(), &[bit]);
            // Except in the data offset, which changes the headers.
            assert!(!verify(&packet, &ledger), "bit {bit}");
        }
        if !tcp {
            let mut frame = right.clone();
            frame[transport_at + 6..transport_at + 8].fill(0);
            let packet = parsed(&mut memory, &frame, spec.headers_len(), &[]);
            assert_eq!(verify(&packet, &ledger), !v6);
        }
    }
    assert_all_back(&memory, &ledger);
}

/// A packet longer than IP allows is rejected, whatever the sum of a guest's descriptors.
#[test]
fn longer_than_an_ip_packet_is_refused() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    for (payload, expected) in [
        (65_495, Ok(())),
        (65_496, Err(OffloadError::TooLong)),
        (99_000, Err(OffloadError::TooLong)),
    ] {
        let mut spec = Spec::plain(false, true, pattern(1000));
        let mut frame = spec.partial_frame();
        spec.payload.clear();
        frame.resize(spec.headers_len() + payload, 0);
        let mut packet = parsed(&mut memory, &frame, spec.headers_len(), &[]);
        packet.set_offload(spec.offload(1448));
        assert_eq!(check(&mut packet), expected);
    }
    assert_all_back(&memory, &ledger);
}

/// Gotchas 20 to 22 of docs/theory/lending.md. Goal: a lent super-packet is segmented without a
/// copy. Its lender is notified once, after the last segment in any order, as copied if any segment
/// was copied.
#[test]
fn gotchas_20_21_22_segments_share_the_loan() {
    let spec = Spec::plain(false, true, pattern(5000));
    for (copied, last) in [(false, 0), (true, 2), (false, 4)] {
        let (mut memory, ledger) = (memory(), Ledger::new());
        let (returns, mut loans) = (Returns::new(1), Loans::new(1));
        returns.begin(0);
        let lent = Arc::new(spec.partial_frame());
        let (at, len) = (spec.headers_len(), 5000);
        let piece = loans.lend_shared(&lent, (at, len), returns.clone(), 0).expect("a descriptor");
        let mut packet = parsed(&mut memory, &lent[..at], at, &[]);
        packet.push_piece(piece).expect("room");
        packet.set_offload(spec.offload(1000));
        let mut segments = cut(packet, &mut memory, &ledger, Checksums::LeavePartial);
        assert_eq!((segments.len(), ledger.copied(), loans.out_count()), (5, 0, 1));
        if copied {
            segments[1].pieces().for_each(Piece::mark_copied);
        }
        let kept = segments.swap_remove(last);
        drop(segments);
        let mut reported = Vec::new();
        returns.take(|group, copied| reported.push((group, copied)));
        assert_eq!(reported, [], "a segment is left");
        drop(kept);
        returns.take(|group, copied| reported.push((group, copied)));
        assert_eq!(reported, [(0, copied)]);
        assert_eq!(Arc::strong_count(&lent), 1);
    }
}
