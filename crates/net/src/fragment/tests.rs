//! Fragmentation and reassembly: known answers, malicious fragments, bounds, and round trips.

use super::*;
use crate::gso::IP_BYTES_MAX;
use crate::gso::testing::*;
use crate::time::{Duration, Instant};
use crate::wire::headers::Headers;
use crate::wire::ipv6;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use proptest::prelude::*;
use towpath_packet::{Checksum, Gso, GsoKind, Ledger, Memory, Offload, Packet, Site};

struct Bench {
    memory: Memory,
    ledger: Ledger,
    reassembler: Reassembler,
    now: Instant,
}

impl Bench {
    fn new(limits: Limits) -> Self {
        let reassembler = Reassembler::new(limits);
        Self { memory: memory(), ledger: Ledger::new(), reassembler, now: Instant::START }
    }

    /// Splits a frame into fragments; returns their frames.
    fn fragment(&mut self, spec: &Spec, mtu: usize) -> Vec<Vec<u8>> {
        let mut packet =
            parsed(&mut self.memory, &spec.partial_frame(), spec.headers_len(), &[3000]);
        packet.set_offload(Offload { checksum: spec.partial(), gso: None });
        let mut frames = Vec::new();
        let out = &mut |fragment: Packet| frames.push(bytes_of(&fragment));
        let headers = &headers_of(&packet);
        let (memory, ledger) = (&mut self.memory, &self.ledger);
        let result = match spec.v6 {
            false => fragment_ipv4(packet, mtu, headers, memory, ledger, out),
            true => fragment_ipv6(packet, mtu, headers, 0xabcd_ef01, memory, ledger, out),
        };
        assert_eq!(result.expect("valid"), frames.len());
        frames
    }

    /// Receives the frame of a fragment, parsed as in the stack.
    fn receive(&mut self, frame: &[u8]) -> Outcome {
        self.receive_by(None, frame)
    }

    /// Receives the frame of a fragment that entered a switch at a port.
    fn receive_by(&mut self, port: Option<u16>, frame: &[u8]) -> Outcome {
        let mut packet = received(&mut self.memory, frame, &[]);
        packet.set_ingress(port);
        let headers = packet.peek_headers();
        let (now, memory, ledger) = (self.now, &mut self.memory, &self.ledger);
        if headers[14] >> 4 == 4 {
            let len = usize::from(headers[14] & 15) * 4;
            packet.pull(14 + len);
            return self.reassembler.receive_ipv4(packet, 14, now, memory, ledger);
        }
        let header = ipv6::Header::parse(&headers[14..], frame.len() - 14).expect("valid");
        let payload_len = usize::from(header.payload_len);
        let walked = ipv6::Extensions::walk(header.next_header, &headers[54..], payload_len);
        let fragment = walked.expect("valid").fragment.expect("a fragment");
        packet.pull(54 + fragment.header_at + ipv6::FRAGMENT_HEADER_LEN);
        self.reassembler.receive_ipv6(packet, 14, &fragment, now, memory, ledger)
    }

    /// The reason for which a fragment is dropped.
    fn refusal(&mut self, frame: &[u8]) -> DropReason {
        match self.receive(frame) {
            Outcome::Dropped(reason) => reason,
            other => panic!("expected a drop, got {other:?}"),
        }
    }

    /// The reason for which an IPv6 fragment at `offset_bytes` is dropped that the parser would
    /// normally reject by the same rule.
    fn refusal_unparsed(&mut self, frame: &[u8], offset_bytes: u16) -> DropReason {
        let packet = parsed(&mut self.memory, frame, 62, &[]);
        let header = ipv6::Fragment {
            offset_bytes,
            more: true,
            ident: 9,
            header_at: 0,
            previous_next_header_at: ipv6::FIXED_HEADER,
        };
        let (now, memory, ledger) = (self.now, &mut self.memory, &self.ledger);
        match self.reassembler.receive_ipv6(packet, 14, &header, now, memory, ledger) {
            Outcome::Dropped(reason) => reason,
            other => panic!("expected a drop, got {other:?}"),
        }
    }

    fn hold(&mut self, frame: &[u8]) {
        let outcome = self.receive(frame);
        assert!(matches!(outcome, Outcome::Incomplete), "{outcome:?}");
    }

    fn whole(&mut self, frame: &[u8]) -> Packet {
        match self.receive(frame) {
            Outcome::Reassembled(packet) => packet,
            other => panic!("expected a whole datagram, got {other:?}"),
        }
    }

    /// Advances the clock until nothing is held, and checks that all memory was returned.
    fn assert_all_back(mut self) {
        self.reassembler.expire(self.now + Duration::from_secs(61), &mut drop);
        assert_eq!(self.reassembler.datagram_count(), 0);
        assert_eq!(self.reassembler.held_bytes(), 0);
        assert_all_back(&self.memory, &self.ledger);
    }
}

/// Parameters of a handmade fragment. Its payload is the part of the datagram at its offset.
#[derive(Clone, Copy, Debug)]
struct Fields {
    source: u8,
    ident: u16,
    offset: usize,
    len: usize,
    more: bool,
    ecn: u8,
}

const FIELDS: Fields = Fields { source: 1, ident: 1, offset: 0, len: 80, more: true, ecn: 0 };

/// Byte at offset `place` of datagram `ident`.
fn byte(ident: u16, place: usize) -> u8 {
    (place * 7 + place / 256 + usize::from(ident) * 13) as u8
}

/// The frame of a fragment over IPv4 or IPv6, protocol 253 (for experiments, RFC 3692).
fn frame(v6: bool, cut: Fields) -> Vec<u8> {
    let payload: Vec<u8> =
        (cut.offset..cut.offset + cut.len).map(|at| byte(cut.ident, at)).collect();
    let field = (cut.offset as u16).to_be_bytes();
    let mut frame = alloc::vec![2; 12];
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, cut.ecn << 4, 0, 0]);
        frame.extend((8 + cut.len as u16).to_be_bytes());
        frame.extend([44, 64]);
        // One /64 network per source.
        for last in [cut.source, 99] {
            frame.extend(Ipv6Addr::new(0x2001, 0xdb8, 0, last.into(), 0, 0, 0, 1).octets());
        }
        frame.extend([253, 0, field[0], field[1] | u8::from(cut.more), 0, 0]);
        frame.extend(cut.ident.to_be_bytes());
    } else {
        let field = (cut.offset as u16 / 8) | if cut.more { 0x2000 } else { 0 };
        frame.extend([8, 0, 0x45, cut.ecn]);
        frame.extend((20 + cut.len as u16).to_be_bytes());
        frame.extend(cut.ident.to_be_bytes());
        frame.extend(field.to_be_bytes());
        frame.extend([64, 253, 0, 0, 10, 0, 0, cut.source, 10, 0, 0, 99]);
        let sum = !(naive_sum(&frame[14..34], 0) as u16);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    frame.extend(payload);
    frame
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Goal: fragments fit the MTU and are valid. In any order and with duplicates they are
    /// reassembled to the datagram, byte for byte, with a complete checksum. Copies occur only
    /// above the limit on pieces.
    #[test]
    fn reassembly_undoes_fragmentation(
        mut spec in any_spec(100..20_000),
        mtu in 1280usize..1600,
        order in any::<u64>(),
    ) {
        spec.dont_fragment = false;
        spec.tos &= 0xfc;
        let mut bench = Bench::new(Limits::default());
        let expected = spec.frame();
        let mut frames = bench.fragment(&spec, mtu);
        prop_assert!(frames.iter().all(|frame| frame.len() - 14 <= mtu));
        if frames.len() == 1 {
            // Not split: the checksum is still left to a device.
            prop_assert_eq!(&frames[0], &spec.partial_frame());
            return Ok(());
        }
        shuffle(&mut frames, order);
        let last = frames.pop().expect("at least two");
        for frame in &frames {
            bench.hold(frame);
            if frame.len() % 3 == 0 {
                prop_assert_eq!(bench.refusal(frame), DropReason::Duplicate);
            }
        }
        let packet = bench.whole(&last);
        prop_assert_eq!(packet.headers().len(), spec.transport_at());
        prop_assert_eq!(bytes_of(&packet), expected.clone());
        if frames.len() < REASSEMBLED_PIECES_MAX {
            prop_assert_eq!(bench.ledger.copied(), 0);
        }
        let packet = into_received(packet, &mut bench.memory).expect("memory");
        prop_assert!(packet.headers().is_empty());
        prop_assert_eq!(bytes_of(&packet), expected);
        drop(packet);
        bench.assert_all_back();
    }

    /// Goal: with any fragments, a reassembled datagram has every byte in its place, and the bounds
    /// hold throughout.
    #[test]
    fn lying_fragments_never_make_wrong_bytes(
        v6: bool,
        cuts in prop::collection::vec(
            (0..3u8, 0..3u16, 0..6usize, 1..5usize, any::<bool>(), 0..9usize, 0..4u8), 1..200),
    ) {
        let limits = Limits { held_bytes: 16 * 2048, datagrams: 4 };
        let mut bench = Bench::new(limits);
        for (source, ident, offset, len, more, odd, ecn) in cuts {
            let len = len * 8 - if odd == 8 { 3 } else { 0 };
            let cut = Fields { source, ident, offset: offset * 8, len, more, ecn };
            // The parser of a host already rejects these.
            if v6 && more && odd == 8 {
                continue;
            }
            if let Outcome::Reassembled(packet) = bench.receive(&frame(v6, cut)) {
                let headers = packet.headers().len();
                for (place, &found) in bytes_of(&packet)[headers..].iter().enumerate() {
                    prop_assert_eq!(found, byte(ident, place));
                }
            }
            prop_assert!(bench.reassembler.held_bytes() <= limits.held_bytes);
            prop_assert!(bench.reassembler.datagram_count() <= limits.datagrams);
        }
        bench.assert_all_back();
    }
}

/// A permutation determined by `seed`.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed | 1;
    for end in (1..items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        items.swap(end, (state >> 33) as usize % (end + 1));
    }
}

/// RFC 5722 §3, RFC 8200 §4.5: an overlap kills the datagram, also for later fragments; exact
/// duplicates are ignored.
#[test]
fn overlaps_end_the_datagram() {
    for v6 in [false, true] {
        let at = |offset, len, more| frame(v6, Fields { offset, len, more, ..FIELDS });
        for overlap in [at(72, 80, true), at(8, 8, true), at(0, 88, true), at(0, 72, true)] {
            let mut bench = Bench::new(Limits::default());
            bench.hold(&at(0, 80, true));
            assert_eq!(bench.refusal(&at(0, 80, true)), DropReason::Duplicate);
            assert_eq!(bench.refusal(&overlap), DropReason::Overlap);
            assert_eq!(bench.reassembler.held_bytes(), 0);
            assert_eq!(bench.refusal(&at(80, 8, false)), DropReason::Dead);
            // Another datagram is not affected.
            bench.hold(&frame(v6, Fields { ident: 2, ..FIELDS }));
            bench.assert_all_back();
        }
    }
}

/// Conflicting ends kill the datagram.
#[test]
fn ends_that_disagree_end_the_datagram() {
    for v6 in [false, true] {
        let at = |offset, len, more| frame(v6, Fields { offset, len, more, ..FIELDS });
        let cases = [
            [at(80, 16, false), at(80, 24, false)],
            [at(80, 16, false), at(160, 16, false)],
            [at(80, 16, false), at(96, 16, true)],
            [at(80, 16, false), at(80, 16, true)],
            [at(80, 16, true), at(16, 16, false)],
            [at(80, 16, true), at(80, 16, false)],
        ];
        for [first, second] in cases {
            let mut bench = Bench::new(Limits::default());
            bench.hold(&first);
            assert_eq!(bench.refusal(&second), DropReason::EndConflict);
            assert_eq!(bench.refusal(&first), DropReason::Dead);
            bench.assert_all_back();
        }
    }
}

/// Each kind of invalid fragment has its reason and takes no memory.
#[test]
fn single_lies_are_refused() {
    let mut bench = Bench::new(Limits::default());
    let refused = |bench: &mut Bench, frame: &[u8], reason| {
        assert_eq!(bench.refusal(frame), reason);
        assert_eq!(bench.reassembler.held_bytes(), 0);
    };
    let odd = Fields { len: 81, ..FIELDS };
    refused(&mut bench, &frame(false, odd), DropReason::NotMultipleOf8);
    let empty = Fields { len: 0, ..FIELDS };
    refused(&mut bench, &frame(false, empty), DropReason::BadLength);
    refused(&mut bench, &frame(true, empty), DropReason::BadLength);
    let beyond = Fields { offset: 65_528, len: 8, ..FIELDS };
    refused(&mut bench, &frame(false, beyond), DropReason::BadHeader);
    let mut short = frame(false, FIELDS);
    short.truncate(60);
    refused(&mut bench, &short, DropReason::BadHeader);
    assert_eq!(bench.refusal_unparsed(&frame(true, FIELDS), 65_456), DropReason::TooLong);
    // RFC 1858: a first fragment without a complete TCP header hides the flags.
    for (v6, protocol_at) in [(false, 23), (true, 54)] {
        let mut tiny = frame(v6, Fields { len: 16, ident: 9, ..FIELDS });
        tiny[protocol_at] = 6;
        if v6 {
            assert_eq!(bench.refusal_unparsed(&tiny, 0), DropReason::Tiny);
        } else {
            tiny[24..26].fill(0);
            let sum = !(naive_sum(&tiny[14..34], 0) as u16);
            tiny[24..26].copy_from_slice(&sum.to_be_bytes());
            refused(&mut bench, &tiny, DropReason::Tiny);
        }
    }
    bench.assert_all_back();
}

/// Options of the first fragment count for the total length: above the limit the datagram is
/// dropped.
#[test]
fn a_whole_longer_than_ip_allows_is_refused() {
    let mut bench = Bench::new(Limits::default());
    // The last fragment, whose header is 20 bytes, reaches the limit exactly.
    let end = IP_BYTES_MAX - 20;
    let mut offset = 0;
    while offset < end {
        let len = 8000.min(end - offset);
        let more = offset + len < end;
        let mut frame = frame(false, Fields { offset, len, more, ..FIELDS });
        if offset == 0 {
            // The first has 4 bytes of options.
            frame.splice(34..34, [1, 1, 1, 1]);
            frame[14] = 0x46;
            frame[17] += 4;
            frame[24..26].fill(0);
            let sum = !(naive_sum(&frame[14..38], 0) as u16);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        offset += len;
        if offset == end {
            assert_eq!(bench.refusal(&frame), DropReason::TooLong);
        } else {
            bench.hold(&frame);
        }
    }
    bench.assert_all_back();
}

/// Ethernet pads short frames; padding is not payload.
#[test]
fn padding_is_removed() {
    for v6 in [false, true] {
        let mut bench = Bench::new(Limits::default());
        let mut first = frame(v6, Fields { len: 8, ..FIELDS });
        let mut last = frame(v6, Fields { offset: 8, len: 3, more: false, ..FIELDS });
        first.resize(first.len() + 20, 0xee);
        last.resize(last.len() + 20, 0xee);
        bench.hold(&first);
        let packet = bench.whole(&last);
        let expected: Vec<u8> = (0..11).map(|place| byte(1, place)).collect();
        assert_eq!(bytes_of(&packet)[packet.headers().len()..], expected);
        drop(packet);
        bench.assert_all_back();
    }
}

/// RFC 3168 §5.3: congestion marked on one fragment is kept, a contradiction kills the datagram.
#[test]
fn ecn_of_the_fragments_is_joined() {
    for v6 in [false, true] {
        for (first, second, expected) in
            [(0, 0, Some(0)), (2, 2, Some(2)), (2, 3, Some(3)), (3, 1, Some(3)), (0, 3, None)]
        {
            let mut bench = Bench::new(Limits::default());
            bench.hold(&frame(v6, Fields { ecn: first, ..FIELDS }));
            let last = frame(v6, Fields { ecn: second, offset: 80, more: false, ..FIELDS });
            match expected {
                None => assert_eq!(bench.refusal(&last), DropReason::Ecn),
                Some(ecn) => {
                    let packet = bench.whole(&last);
                    let byte = packet.headers()[15];
                    assert_eq!(if v6 { byte >> 4 } else { byte } & 3, ecn);
                }
            }
            bench.assert_all_back();
        }
    }
}

/// RFC 6946: an atomic fragment is complete, whatever else has its identification.
#[test]
fn atomic_fragments_stand_alone() {
    let mut bench = Bench::new(Limits { held_bytes: 4096, datagrams: 1 });
    bench.hold(&frame(true, FIELDS));
    let packet = bench.whole(&frame(true, Fields { more: false, len: 33, ..FIELDS }));
    assert_eq!((packet.headers().len(), packet.payload_len()), (54, 33));
    assert_eq!(
        (packet.headers()[18..20].to_vec(), packet.headers()[20]),
        (alloc::vec![0, 33], 253)
    );
    assert_eq!(bench.reassembler.datagram_count(), 1);
    drop(packet);
    bench.assert_all_back();
}

/// Goal: a datagram of many pieces is reassembled. The first pieces stay references, the rest is
/// copied once and counted. Without frames it is dropped and no memory is held.
#[test]
fn many_pieces_are_squeezed() {
    for memory_short in [false, true] {
        let mut bench = Bench::new(Limits::default());
        let len = 1480;
        for index in 0..43 {
            bench.hold(&frame(false, Fields { offset: index * len, len, ..FIELDS }));
        }
        let last = frame(false, Fields { offset: 43 * len, len: 1000, more: false, ..FIELDS });
        let mut taken = Vec::new();
        if memory_short {
            taken.extend(core::iter::from_fn(|| bench.memory.large.take()));
            assert_eq!(bench.refusal(&last), DropReason::NoMemory);
        } else {
            let packet = bench.whole(&last);
            assert!(packet.piece_count() <= REASSEMBLED_PIECES_MAX);
            let total = 43 * len + 1000;
            let bytes = bytes_of(&packet);
            assert!((0..total).all(|place| bytes[34 + place] == byte(1, place)));
            // Fourteen pieces and three frames.
            let copied = bench.ledger.copied_at(Site::Squeeze);
            assert_eq!(copied as usize, total - 14 * len);
        }
        drop(taken);
        bench.ledger = Ledger::new();
        bench.assert_all_back();
    }
}

/// More fragments than any legitimate datagram has kill it.
#[test]
fn fragments_of_a_datagram_are_bounded() {
    let mut bench = Bench::new(Limits::default());
    for index in 0..FRAGMENTS_MAX {
        bench.hold(&frame(false, Fields { offset: index * 16, len: 8, ..FIELDS }));
    }
    let one_more = frame(false, Fields { offset: FRAGMENTS_MAX * 16, len: 8, ..FIELDS });
    assert_eq!(bench.refusal(&one_more), DropReason::TooManyFragments);
    assert_eq!(bench.reassembler.held_bytes(), 0);
    bench.assert_all_back();
}

/// Goal: a flood from one source evicts only itself, at the limit on datagrams and on bytes:
/// datagrams of others complete. For IPv6 the flood comes from many addresses of one network.
#[test]
fn a_flood_displaces_itself() {
    for v6 in [false, true] {
        for limits in [
            Limits { held_bytes: 1 << 20, datagrams: 16 },
            Limits { held_bytes: 16 * 2048, datagrams: 64 },
        ] {
            let mut bench = Bench::new(limits);
            for source in 2..7 {
                bench.hold(&frame(v6, Fields { source, ..FIELDS }));
            }
            for ident in 0..1000 {
                let mut flood = frame(v6, Fields { source: 1, ident, ..FIELDS });
                if v6 {
                    flood[35..37].copy_from_slice(&ident.to_be_bytes());
                }
                bench.hold(&flood);
                assert!(bench.reassembler.datagram_count() <= limits.datagrams);
                assert!(bench.reassembler.held_bytes() <= limits.held_bytes);
            }
            assert_eq!(bench.reassembler.evicted_count(), 1000 - 11);
            for source in 2..7 {
                let last = Fields { source, offset: 80, more: false, ..FIELDS };
                bench.whole(&frame(v6, last));
            }
            bench.assert_all_back();
        }
    }
}

/// Goal: fragments at one port cannot affect a datagram at another, even with identical fields, and
/// a flood from spoofed sources counts for its port. The reassembled packet has its ingress port.
#[test]
fn fragments_by_different_ports_do_not_meet() {
    for v6 in [false, true] {
        let mut bench = Bench::new(Limits { held_bytes: 1 << 20, datagrams: 8 });
        let first = frame(v6, FIELDS);
        assert!(matches!(bench.receive_by(Some(1), &first), Outcome::Incomplete));
        let overlapping = frame(v6, Fields { offset: 8, ..FIELDS });
        assert!(matches!(bench.receive_by(Some(2), &overlapping), Outcome::Incomplete));
        for source in 2..200 {
            bench.receive_by(Some(2), &frame(v6, Fields { source, ..FIELDS }));
        }
        let last = frame(v6, Fields { offset: 80, more: false, ..FIELDS });
        let Outcome::Reassembled(whole) = bench.receive_by(Some(1), &last) else {
            panic!("not reassembled");
        };
        assert_eq!(whole.ingress(), Some(1));
        let received = into_received(whole, &mut bench.memory).expect("memory");
        assert_eq!(received.ingress(), Some(1));
        drop(received);
    }
}

/// A flood from many sources cannot lock out new ones: the oldest datagram is evicted.
#[test]
fn a_flood_of_sources_displaces_the_oldest() {
    let mut bench = Bench::new(Limits { held_bytes: 1 << 20, datagrams: 8 });
    for source in 0..200 {
        bench.hold(&frame(false, Fields { source, ..FIELDS }));
    }
    let last = Fields { source: 199, offset: 80, more: false, ..FIELDS };
    bench.whole(&frame(false, last));
    bench.assert_all_back();
}

/// A dead datagram holds nothing, so evicting it would free nothing: it stays dead.
#[test]
fn the_dead_make_no_room() {
    let mut bench = Bench::new(Limits { held_bytes: 4 * 2048, datagrams: 8 });
    bench.hold(&frame(false, FIELDS));
    assert_eq!(bench.refusal(&frame(false, Fields { len: 8, ..FIELDS })), DropReason::Overlap);
    for ident in 2..7 {
        bench.hold(&frame(false, Fields { ident, ..FIELDS }));
    }
    assert_eq!(bench.reassembler.evicted_count(), 1);
    assert_eq!(bench.refusal(&frame(false, FIELDS)), DropReason::Dead);
    bench.assert_all_back();
}

/// One datagram cannot hold more than the table may; at the limit it is killed.
#[test]
fn one_datagram_stays_within_the_bytes() {
    let mut bench = Bench::new(Limits { held_bytes: 4 * 2048, datagrams: 8 });
    for index in 0..4 {
        bench.hold(&frame(false, Fields { offset: index * 80, ..FIELDS }));
    }
    assert_eq!(bench.refusal(&frame(false, Fields { offset: 320, ..FIELDS })), DropReason::NoRoom);
    assert_eq!(bench.reassembler.held_bytes(), 0);
    bench.assert_all_back();
}

/// Goal: the time ends 30 or 60 seconds after the first arrival, and the first fragment, if
/// received, is returned unchanged.
#[test]
fn time_runs_out() {
    for (v6, lifetime) in [(false, IPV4_LIFETIME), (true, IPV6_LIFETIME)] {
        let mut bench = Bench::new(Limits::default());
        let first = frame(v6, FIELDS);
        bench.hold(&frame(v6, Fields { offset: 80, ..FIELDS }));
        bench.now += Duration::from_secs(1);
        bench.hold(&first);
        bench.hold(&frame(v6, Fields { ident: 2, offset: 8, ..FIELDS }));
        let due = Instant::START + lifetime;
        assert_eq!(bench.reassembler.next_deadline(), Some(due));
        let mut returned = Vec::new();
        let out = &mut |packet: Packet| returned.push(bytes_of(&packet));
        let just_before = Instant::from_micros(due.micros() - 1);
        assert_eq!(bench.reassembler.expire(just_before, out), 0);
        assert_eq!(bench.reassembler.expire(due, out), 1);
        assert_eq!(bench.reassembler.expire(due + Duration::from_secs(1), out), 1);
        assert_eq!(returned, [first]);
        assert_eq!(bench.reassembler.next_deadline(), None);
        bench.assert_all_back();
    }
}

/// Packets that must not or cannot be fragmented are returned whole.
#[test]
fn what_cannot_be_cut_comes_back() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let v4 = Spec::plain(false, false, pattern(3000));
    let v6 = Spec::plain(true, true, pattern(3000));
    let keep = Spec { dont_fragment: true, ..v4.clone() };
    let super_packet = Offload {
        checksum: v6.partial(),
        gso: Some(Gso {
            kind: GsoKind::Tcp6,
            size: 1000.try_into().expect("not 0"),
            ecn: false,
            tunnel: None,
        }),
    };
    let far = Checksum::Partial { start: 2000, offset: 6 };
    let plain = Offload::default();
    let cases = [
        (&keep, 1500, plain, FragmentError::DontFragment),
        (&v4, 67, plain, FragmentError::MtuTooSmall),
        (&v6, 1279, plain, FragmentError::MtuTooSmall),
        (&v6, 1500, super_packet, FragmentError::Checksum(crate::gso::ChecksumError::SuperPacket)),
        (
            &v4,
            1500,
            Offload { checksum: far, gso: None },
            FragmentError::Checksum(crate::gso::ChecksumError::InPayload),
        ),
    ];
    for (spec, mtu, offload, expected) in cases {
        let mut packet = parsed(&mut memory, &spec.frame(), spec.headers_len(), &[]);
        packet.set_offload(offload);
        let (headers, out) = (&headers_of(&packet), &mut |_| panic!("nothing comes out"));
        let (error, packet) = match spec.v6 {
            false => fragment_ipv4(packet, mtu, headers, &mut memory, &ledger, out),
            true => fragment_ipv6(packet, mtu, headers, 1, &mut memory, &ledger, out),
        }
        .expect_err("refused");
        assert_eq!(error, expected);
        assert_eq!(bytes_of(&packet), spec.frame());
    }
    let packet = parsed(&mut memory, &v4.frame(), v4.headers_len(), &[]);
    let wrong = Headers { transport_at: 38, ..headers_of(&packet) };
    let out = &mut |_| panic!("nothing comes out");
    let result = fragment_ipv4(packet, 1500, &wrong, &mut memory, &ledger, out);
    assert_eq!(result.expect_err("refused").0, FragmentError::Headers);
    assert_all_back(&memory, &ledger);
}

/// RFC 791 §3.1: only options with the copied flag are in later fragments; RFC 791 §3.2: a fragment
/// that is split again keeps its offset in the datagram.
#[test]
fn options_and_fragments_of_fragments() {
    let mut bench = Bench::new(Limits::default());
    let mut spec = Spec::plain(false, false, pattern(4000));
    spec.ip_options = 1;
    let mut whole = spec.frame();
    // Record route (not copied), then router alert (copied) and the end.
    whole[34..42].copy_from_slice(&[7, 3, 4, 148, 4, 0, 0, 0]);
    whole[24..26].fill(0);
    let sum = !(naive_sum(&whole[14..42], 0) as u16);
    whole[24..26].copy_from_slice(&sum.to_be_bytes());
    let cut = |bench: &mut Bench, frame: &[u8], mtu, headers| {
        let packet = parsed(&mut bench.memory, frame, headers, &[]);
        let mut frames = Vec::new();
        let out = &mut |fragment: Packet| frames.push(bytes_of(&fragment));
        let headers = Headers::read_ip(packet.headers(), 14).expect("an IP packet");
        let (memory, ledger) = (&mut bench.memory, &bench.ledger);
        fragment_ipv4(packet, mtu, &headers, memory, ledger, out).expect("valid");
        frames
    };
    let mut small = Vec::new();
    for frame in cut(&mut bench, &whole, 1500, 50) {
        let is_first = frame[20] & 0x1f == 0 && frame[21] == 0;
        let record_route = if is_first { [7, 3, 4] } else { [1, 1, 1] };
        assert_eq!(frame[34..37], record_route);
        assert_eq!(frame[37..42], [148, 4, 0, 0, 0]);
        small.extend(cut(&mut bench, &frame, 576, 42));
    }
    assert!(small.len() > 6 && small.iter().all(|frame| frame.len() <= 14 + 576));
    let last = small.pop().expect("many");
    for frame in small.iter().rev() {
        bench.hold(frame);
    }
    assert_eq!(bytes_of(&bench.whole(&last)), whole);
    bench.assert_all_back();
}
