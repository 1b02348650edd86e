//! Each port gets what it takes: whole, segmented, checksummed; with and without tags; shared
//! payload.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use towpath_packet::{Caps, Checksum, Gso, GsoKind, Lender, Loans, Offload, Packet, Piece, Site};

use super::harness::*;
use crate::counters::PortDrop;
use crate::gro::Coalescer;
use crate::gso::testing::{Spec, any_spec, bytes_of, headers_of, parsed, pattern, received};
use crate::gso::{self, Checksums};
use crate::switch::*;
use crate::wire::headers::Headers;

pub(super) const ALONE: Caps = Caps::plain(1500);
pub(super) const CHECKSUMS: Caps = Caps { checksum: true, ..ALONE };
const SEGMENTS: Caps = Caps { segments: true, ..CHECKSUMS };

/// Counts returns.
#[derive(Default)]
pub(super) struct ReturnCount(pub(super) AtomicU32);

impl Lender for ReturnCount {
    fn returned(&self, _token: u64, _copied: bool) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

pub(super) fn with_caps(caps: Caps) -> PortConfig {
    PortConfig { caps, ..port() }
}

/// Frames that a port with these capabilities must get of a packet.
fn expected(spec: &Spec, size: Option<usize>, caps: &Caps, tag: Option<u16>) -> Vec<Vec<u8>> {
    let takes = match (spec.tcp, spec.v6) {
        (false, _) => caps.uso,
        (true, false) => caps.tso4,
        (true, true) => caps.tso6,
    };
    let specs = match size.filter(|&size| !takes && spec.payload.len() > size) {
        Some(size) => spec.segments(size),
        None => alloc::vec![spec.clone()],
    };
    let bytes = |spec: &Spec| if caps.checksum { spec.partial_frame() } else { spec.frame() };
    specs.iter().map(|spec| readdressed(&bytes(spec), BROADCAST, mac(1), tag)).collect()
}

/// A packet in lent memory that others may write.
pub(super) fn lent(
    t: &mut Harness,
    loans: &mut Loans,
    returned: &Arc<ReturnCount>,
    frame: Vec<u8>,
) -> Packet {
    let len = frame.len() as u32;
    let piece = loans.lend_as_foreign(&Arc::new(frame), (0, len), returned.clone(), 0);
    let mut packet = t.memory.packet().expect("free");
    packet.push_piece(piece.expect("a descriptor")).expect("room");
    packet
}

pub(super) fn contents(packet: &Packet, t: &Harness) -> Vec<u8> {
    let mut bytes = packet.headers().to_vec();
    for piece in packet.pieces() {
        let at = bytes.len();
        bytes.resize(at + piece.len(), 0);
        t.ledger.copy(Site::SocketReceive, piece, &mut bytes[at..]);
    }
    bytes
}

fn shifted(mut offload: Offload, by: i16) -> Offload {
    offload.shift(by);
    offload
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Goal: one packet is flooded to ports of all kinds. Each gets what it can take, and an
    /// independent implementation checks every byte. The payload is shared, and its lender is
    /// notified once, when the last piece of the last port is dropped.
    #[test]
    fn each_port_gets_what_it_takes(
        spec in any_spec(1..9000),
        size in 100..1300usize,
        is_super: bool,
        has_tag: bool,
    ) {
        let len = if is_super { spec.payload.len() } else { spec.payload.len() % 1200 };
        let spec = Spec { payload: pattern(len), ..spec };
        let size = is_super.then_some(size);
        let caps = [ABLE, CHECKSUMS, ALONE, SEGMENTS, Caps { tso4: false, uso: false, ..ABLE }];
        let vlans = || trunk(None, &[5]);
        let mut ports = alloc::vec![in_vlans(if has_tag { vlans() } else { access(5) })];
        for caps in caps {
            ports.push(PortConfig { vlans: vlans(), ..with_caps(caps) });
            ports.push(PortConfig { vlans: access(5), ..with_caps(caps) });
        }
        let mut t = Harness::new(ports);
        let (mut loans, returned) = (Loans::new(1), Arc::new(ReturnCount::default()));
        let tag = has_tag.then_some(0x6005);
        let frame = readdressed(&spec.partial_frame(), BROADCAST, mac(1), tag);
        let mut packet = lent(&mut t, &mut loans, &returned, frame);
        let offload = match size {
            Some(size) => spec.offload(size as u16),
            None => Offload { checksum: spec.partial(), gso: None },
        };
        packet.set_offload(shifted(offload, if has_tag { 4 } else { 0 }));
        t.send_packet(0, packet);
        let copied = t.ledger.copied();
        prop_assert_eq!(copied, t.ledger.copied_at(Site::Linearise), "except for checksums");
        let out = core::mem::take(&mut t.out.packets);
        prop_assert_eq!(out.len(), 10);
        let parts: Vec<Packet> = out.into_iter().flat_map(|(port, packets)| {
            let caps = &caps[(port - 1) / 2];
            let packets = match caps.segments {
                true => segment_by_device(port, packets, &mut t),
                false => packets,
            };
            let priority = if has_tag { 0x6000 } else { 0 };
            let tag = (port % 2 == 1).then_some(priority | 5);
            let found: Vec<_> = packets.iter().map(|packet| contents(packet, &t)).collect();
            assert_eq!(found, expected(&spec, size, caps, tag), "port {port}");
            for packet in &packets {
                check_offload_of(packet, &spec, caps, tag.is_some());
            }
            packets
        }).collect();
        for part in parts {
            let is_back = returned.0.load(Ordering::Relaxed) > 0;
            prop_assert!(part.payload_len() == 0 || !is_back, "a port has it");
            drop(part);
        }
        prop_assert_eq!(returned.0.load(Ordering::Relaxed), 1);
        prop_assert_eq!(t.memory.packets.out_count(), 0);
    }

    /// Goal: one short inline frame is flooded. Tags are added and removed, its checksum is
    /// completed where needed and left elsewhere, and each copy but the last is counted.
    #[test]
    fn each_port_gets_an_inline_frame(
        spec in any_spec(0..150).prop_filter("short", |spec| spec.frame().len() <= 188),
        has_tag: bool,
    ) {
        let caps = [ABLE, CHECKSUMS, ALONE];
        let vlans = || trunk(None, &[5]);
        let mut ports = alloc::vec![in_vlans(if has_tag { vlans() } else { access(5) })];
        for caps in caps {
            ports.push(PortConfig { vlans: vlans(), ..with_caps(caps) });
            ports.push(PortConfig { vlans: access(5), ..with_caps(caps) });
        }
        let mut t = Harness::new(ports);
        let frame =
            readdressed(&spec.partial_frame(), BROADCAST, mac(1), has_tag.then_some(0x6005));
        let mut packet = t.memory.packet().expect("free");
        packet.fill_inline(frame.len(), |place| place.copy_from_slice(&frame));
        let offload = Offload { checksum: spec.partial(), gso: None };
        packet.set_offload(shifted(offload, if has_tag { 4 } else { 0 }));
        t.send_packet(0, packet);
        prop_assert_eq!(t.ledger.copied_at(Site::GuestSmall), 5 * frame.len() as u64);
        let out = core::mem::take(&mut t.out.packets);
        prop_assert_eq!(out.len(), 6);
        for (port, packets) in out {
            let caps = &caps[(port - 1) / 2];
            let priority = if has_tag { 0x6000 } else { 0 };
            let tag = (port % 2 == 1).then_some(priority | 5);
            let found: Vec<_> = packets.iter().map(|packet| contents(packet, &t)).collect();
            prop_assert_eq!(found, expected(&spec, None, caps, tag), "port {}", port);
            prop_assert!(packets[0].is_inline());
            check_offload_of(&packets[0], &spec, caps, tag.is_some());
        }
        t.end();
    }

    /// Goal: coalescing restores what was segmented for a port, byte for byte.
    #[test]
    fn cut_and_joined_is_the_same(spec in any_spec(2..9000), size in 100..1300usize) {
        // Coalescing needs packets that Linux's GRO accepts: no IPv4 options, no special flags.
        let flags = spec.flags & !0x26;
        let ip_options = if spec.v6 { spec.ip_options } else { 0 };
        let spec = Spec { flags: if flags & 0x10 != 0 { flags } else { 0x10 }, ip_options, ..spec };
        let mut t = Harness::new([port(), with_caps(CHECKSUMS)]);
        let frame = readdressed(&spec.partial_frame(), BROADCAST, mac(1), None);
        let mut packet = received(&mut t.memory, &frame, &[]);
        packet.set_offload(spec.offload(size as u16));
        t.send_packet(0, packet);
        let (mut coalescer, mut joined) = (Coalescer::new(1), Vec::new());
        for segment in t.out.packets.remove(&1).expect("sent") {
            let mut out = |packet, ()| joined.push(packet);
            let headers = headers_of(&segment);
            coalescer.receive(segment, &headers, (), &t.ledger, &mut out);
        }
        coalescer.flush(&mut |packet, ()| joined.push(packet));
        let limit = if spec.tcp { usize::MAX } else { 64 * size };
        if spec.payload.len() <= limit && spec.payload.len().div_ceil(size) <= 64 {
            prop_assert_eq!(joined.len(), 1);
            prop_assert_eq!(bytes_of(&joined[0]), frame);
        }
        drop(joined);
        t.end();
    }
}

/// Checks the offload fields of a packet for the device of its port.
fn check_offload_of(packet: &Packet, spec: &Spec, caps: &Caps, has_tag: bool) {
    if !caps.checksum {
        return assert_eq!(*packet.offload(), Offload::default());
    }
    let partial = Offload { checksum: spec.partial(), gso: packet.offload().gso };
    assert_eq!(*packet.offload(), shifted(partial, if has_tag { 4 } else { 0 }));
    let is_kind = |gso: Gso| match gso.kind {
        GsoKind::Tcp4 => caps.tso4,
        GsoKind::Tcp6 => caps.tso6,
        GsoKind::Udp => caps.uso,
    };
    assert!(packet.offload().gso.is_none_or(is_kind));
}

/// Segments a packet that was left to the device, and was counted as its segments.
fn segment_by_device(port: usize, packets: Vec<Packet>, t: &mut Harness) -> Vec<Packet> {
    assert_eq!(packets.len(), 1, "no more handles than packets");
    let mut parts = Vec::new();
    for mut packet in packets {
        assert!(packet.offload().gso.is_none());
        packet.join_parts();
        let is_tagged = packet.headers()[12..14] == [0x81, 0];
        let headers = Headers::read(packet.headers(), if is_tagged { 18 } else { 14 });
        let headers = headers.expect("whole headers");
        let (memory, ledger) = (&mut t.memory, &t.ledger);
        let out = &mut |part, _: &mut _| parts.push(part);
        gso::segment(packet, memory, ledger, &headers, Checksums::LeavePartial, out)
            .expect("proper");
    }
    let counters = t.counters(port);
    assert_eq!(counters.packets_out, parts.len() as u64);
    assert_eq!(counters.bytes_out, parts.iter().map(|part| part.len() as u64).sum::<u64>());
    assert_eq!(counters.cut, u64::from(parts.len() > 1));
    parts
}

/// 64 KiB between two guests: whole if the receiver takes it, else in 45 segments. Nothing is
/// copied; with `copies_payload` everything is copied once before forwarding.
#[test]
fn sixty_four_kilobytes() {
    let spec = Spec::plain(false, true, pattern(64_000));
    for (caps, segments) in [(ABLE, 1), (CHECKSUMS, 45)] {
        for copies_payload in [false, true] {
            let config = Config { copies_payload, ..Config::default() };
            let mut t = Harness::with(config, [port(), with_caps(caps)]);
            let (mut loans, returned) = (Loans::new(1), Arc::new(ReturnCount::default()));
            let frame = readdressed(&spec.partial_frame(), mac(2), mac(1), None);
            let mut packet = lent(&mut t, &mut loans, &returned, frame);
            packet.set_offload(spec.offload(1448));
            t.send_packet(0, packet);
            let out = t.out.packets.remove(&1).expect("sent");
            assert_eq!(out.len(), segments);
            let copied = if copies_payload { 64_000 } else { 0 };
            assert_eq!((t.ledger.copied(), t.ledger.copied_at(Site::Orphan)), (copied, copied));
            assert_eq!(returned.0.load(Ordering::Relaxed), u32::from(copies_payload));
            let is_foreign = |packet: &Packet| packet.pieces().all(Piece::is_foreign);
            assert!(out.iter().all(|packet| is_foreign(packet) != copies_payload));
            let counters = t.counters(1);
            assert_eq!(
                (counters.packets_out, counters.cut),
                (segments as u64, u64::from(segments > 1))
            );
            drop(out);
            assert_eq!((returned.0.load(Ordering::Relaxed), loans.out_count()), (1, 0));
        }
    }
}

/// A device may limit the length of super-packets. Super-packet capabilities without checksum
/// offload are contradictory and ignored.
#[test]
fn caps_are_read_to_the_end() {
    let spec = Spec::plain(false, true, pattern(5000));
    let frame = readdressed(&spec.partial_frame(), mac(2), mac(1), None);
    let len = frame.len() as u32;
    for (caps, count) in [
        (Caps { gso_bytes_max: len, ..ABLE }, 1),
        (Caps { gso_bytes_max: len - 1, ..ABLE }, 5),
        (Caps { checksum: false, ..ABLE }, 5),
    ] {
        let mut t = Harness::new([port(), with_caps(caps)]);
        let out = t.send_with(0, &frame, spec.offload(1000));
        assert_eq!(out[&1].len(), count);
        t.end();
    }
}

/// A super-packet whose segments exceed a port's MTU is dropped, whole or segmented.
#[test]
fn too_large_is_dropped_on_the_way_out() {
    let narrow = |caps: Caps| Caps { mtu: 1000, ..caps };
    let ports = [port(), with_caps(narrow(ABLE)), with_caps(narrow(ALONE)), port()];
    let mut t = Harness::new(ports);
    let spec = Spec::plain(true, true, pattern(5000));
    let frame = readdressed(&spec.partial_frame(), BROADCAST, mac(1), None);
    assert_eq!(t.send_with(0, &frame, spec.offload(941)).into_keys().collect::<Vec<_>>(), [3]);
    assert_eq!(t.send_with(0, &frame, spec.offload(940)).len(), 3);
    let plain = |len| super::harness::frame(BROADCAST, mac(1), &[], &pattern(len));
    assert_eq!(t.leaves_by(0, &plain(1001)), [3]);
    assert_eq!(t.leaves_by(0, &plain(1000)), [1, 2, 3]);
    assert_eq!(t.counters(1).dropped(PortDrop::TooLarge), 2);
    t.end();
}

/// Invalid offload claims: checksums beyond the packet, in another header, of another protocol, in
/// non-IP packets; super-packets without a checksum, of another kind, of fragments, with incomplete
/// headers, with too many segments. A header length is ignored.
#[test]
fn lies_are_dropped() {
    let mut t = Harness::new([port(), port()]);
    let tcp = Spec::plain(false, true, pattern(3000));
    let udp = Spec::plain(false, false, pattern(3000));
    let at = |bytes: Vec<u8>| readdressed(&bytes, mac(2), mac(1), None);
    let (tcp_frame, udp_frame) = (at(tcp.partial_frame()), at(udp.partial_frame()));
    let partial = |start, offset| Checksum::Partial { start, offset };
    let with = |checksum| Offload { checksum, gso: None };
    let gso = |spec: &Spec, size| spec.offload(size).gso;
    let mut fragment = tcp_frame.clone();
    fragment[20] = 0x20;
    let unknown = frame(mac(2), mac(1), &[], &pattern(3000));
    let cases = [
        (&tcp_frame, with(partial(34, 6))),
        (&tcp_frame, with(partial(35, 16))),
        (&tcp_frame, with(partial(3054, 16))),
        (&tcp_frame, with(partial(u16::MAX, u16::MAX))),
        (&tcp_frame, with(partial(0, 0))),
        (&unknown, with(partial(34, 16))),
        (&tcp_frame, Offload { checksum: Checksum::None, gso: gso(&tcp, 1000) }),
        (&udp_frame, Offload { checksum: Checksum::Unnecessary, gso: gso(&udp, 1000) }),
        (&udp_frame, Offload { checksum: udp.partial(), gso: gso(&tcp, 1000) }),
        (&udp_frame, udp.offload(20)),
        (&tcp_frame, tcp.offload(2)),
        (&fragment, tcp.offload(1000)),
        (&unknown, tcp.offload(1000)),
        (&tcp_frame[..40].to_vec(), tcp.offload(1000)),
    ];
    for (bytes, offload) in cases {
        t.expect_drop_with(0, bytes, offload, PortDrop::OffloadMalformed);
    }
    t.end();
}

/// Short super-packets are plain packets, not errors; verified checksums are trusted only from
/// trusted ports.
#[test]
fn what_senders_say_is_settled() {
    let trusted = PortConfig { is_trusted: true, ..port() };
    let mut t = Harness::new([port(), trusted, port()]);
    let spec = Spec::plain(true, false, pattern(500));
    let frame = readdressed(&spec.partial_frame(), mac(9), mac(1), None);
    let mut short = received(&mut t.memory, &frame, &[]);
    short.set_offload(spec.offload(500));
    t.send_packet(0, short);
    let out = t.out.packets.remove(&2).expect("sent").remove(0);
    assert_eq!(*out.offload(), Offload { checksum: spec.partial(), gso: None });
    drop((out, core::mem::take(&mut t.out.packets)));
    let verified = Offload { checksum: Checksum::Unnecessary, gso: None };
    for (from, believed) in [(0, Checksum::None), (1, Checksum::Unnecessary)] {
        let mut packet = received(&mut t.memory, &frame, &[]);
        packet.set_offload(verified);
        t.send_packet(from, packet);
        let out = t.out.packets.remove(&2).expect("sent").remove(0);
        assert_eq!(out.offload().checksum, believed);
        drop((out, core::mem::take(&mut t.out.packets)));
    }
    t.end();
}

/// Packets from a stack already have private headers.
#[test]
fn packets_of_a_stack_are_forwarded() {
    let mut t =
        Harness::new([port(), with_caps(ALONE), PortConfig { vlans: trunk(None, &[1]), ..port() }]);
    let spec = Spec::plain(true, true, pattern(4000));
    let frame = readdressed(&spec.partial_frame(), BROADCAST, mac(1), None);
    let mut packet = parsed(&mut t.memory, &frame, spec.headers_len(), &[]);
    packet.set_offload(spec.offload(1000));
    t.send_packet(0, packet);
    let out = t.frames();
    assert_eq!(out[&1], expected(&spec, Some(1000), &ALONE, None));
    assert_eq!(out[&2], expected(&spec, Some(1000), &ABLE, Some(1)));
    t.end();
}

/// The checksum of a tunnelled packet: completed for a port that needs it, left otherwise.
#[test]
fn a_tunnel_keeps_its_inner_checksum() {
    let inner = Spec::plain(false, true, pattern(700));
    let outer = |frame| Spec::plain(false, false, [alloc::vec![8; 8], frame].concat()).frame();
    let frame = readdressed(&outer(inner.partial_frame()), BROADCAST, mac(1), None);
    let start = (42 + 8 + inner.transport_at()) as u16;
    let offload = Offload { checksum: Checksum::Partial { start, offset: 16 }, gso: None };
    let mut t = Harness::new([port(), with_caps(ALONE), port()]);
    let out = t.send_with(0, &frame, offload);
    assert_eq!(out[&2], [frame]);
    assert_eq!(out[&1][0][42..], outer(inner.frame())[42..]);
    let far = Offload { checksum: Checksum::Partial { start: 400, offset: 16 }, gso: None };
    let frame = readdressed(&outer(inner.partial_frame()), BROADCAST, mac(1), None);
    assert_eq!(t.send_with(0, &frame, far).into_keys().collect::<Vec<_>>(), [2]);
    assert_eq!(t.counters(1).dropped(PortDrop::ChecksumMisplaced), 1);
    t.end();
}

/// Without free handles no packet is half processed: a super-packet is not segmented, a copy not
/// made. Each failure is counted at its port, and all memory is returned afterwards.
#[test]
fn without_handles_packets_are_counted() {
    let mut t = Harness::new([port(), with_caps(ALONE), port(), port()]);
    let spec = Spec::plain(false, true, pattern(9000));
    let frame = readdressed(&spec.partial_frame(), BROADCAST, mac(1), None);
    let mut packet = received(&mut t.memory, &frame, &[]);
    packet.set_offload(spec.offload(1000));
    let mut kept: Vec<Packet> = core::iter::from_fn(|| t.memory.packet()).collect();
    kept.truncate(kept.len() - 2);
    t.send_packet(0, packet);
    let drops: Vec<u64> = (1..4).map(|port| t.counters(port).dropped(PortDrop::NoMemory)).collect();
    assert_eq!(drops, [1, 0, 0], "the first port's copy fails and frees its handle");
    assert_eq!(t.frames().into_keys().collect::<Vec<_>>(), [2, 3]);
    drop(kept);
    t.end();
}
