//! What is taken out of datagrams: frames, super-packets, and nothing else.

use super::*;
use crate::gro::Coalescer;
use crate::gso::testing::*;
use crate::gso::{Checksums, segment};
use alloc::vec::Vec;
use proptest::prelude::*;
use towpath_packet::Ledger;

/// What was taken out of a read.
type Frames = Vec<Opened>;

/// The bytes and offload fields of packets.
type SuperPackets = Vec<(Vec<u8>, Offload)>;

/// Takes each frame as a packet.
struct Packets(Frames);

impl TakeFrames for Packets {
    fn take(&mut self, frame: Opened, _: &mut Memory) {
        self.0.push(frame);
    }

    fn extend<'a>(
        &mut self,
        _: impl Iterator<Item = &'a [u8]> + Clone,
        _: usize,
        _: &mut Packet,
    ) -> usize {
        0
    }
}

/// Takes frames as a port does: joins them to super-packets.
struct Joined<'a> {
    coalescer: Coalescer<()>,
    ledger: &'a Ledger,
    packets: Vec<Packet>,
    refused: Vec<Refused>,
    /// Whether frames are joined that are no packets yet, and how many were.
    extends: bool,
    extended: usize,
}

impl<'a> Joined<'a> {
    fn new(ledger: &'a Ledger, extends: bool) -> Self {
        let (packets, refused) = (Vec::new(), Vec::new());
        Self { coalescer: Coalescer::new(1), ledger, packets, refused, extends, extended: 0 }
    }

    /// The bytes and offload fields of all packets, at the end of a burst.
    fn finish(&mut self) -> SuperPackets {
        self.coalescer.flush(&mut |packet, ()| self.packets.push(packet));
        let packets = self.packets.drain(..);
        packets.map(|packet| (bytes_of(&packet), *packet.offload())).collect()
    }
}

impl TakeFrames for Joined<'_> {
    fn take(&mut self, frame: Opened, _: &mut Memory) {
        let mut keep = |packet, ()| self.packets.push(packet);
        match frame {
            Ok((packet, Some(headers))) => {
                self.coalescer.receive(packet, &headers, (), self.ledger, &mut keep);
            }
            Ok((packet, None)) => keep(packet, ()),
            Err(reason) => self.refused.push(reason),
        }
    }

    fn extend<'a>(
        &mut self,
        headers: impl Iterator<Item = &'a [u8]> + Clone,
        size: usize,
        payload: &mut Packet,
    ) -> usize {
        if !self.extends {
            return 0;
        }
        let mut keep = |packet, ()| self.packets.push(packet);
        let count = self.coalescer.extend(headers, size, payload, self.ledger, &mut keep);
        self.extended += count;
        count
    }
}

/// Joins the frames of a split read to super-packets. Returns the bytes and offload fields of
/// each, what was refused, and how many frames were joined without a packet of their own.
fn join_split(
    memory: &mut Memory,
    bytes: &[u8],
    split: (usize, usize),
    extends: bool,
) -> (SuperPackets, Vec<Refused>, usize) {
    let ledger = Ledger::new();
    let mut joined = Joined::new(&ledger, extends);
    take_split(memory, &ledger, bytes, split, split.1, &mut joined);
    (joined.finish(), joined.refused, joined.extended)
}

fn vni() -> Vni {
    Vni::new(100).expect("24 bits")
}

/// A datagram with this frame.
fn datagram(frame: &[u8]) -> Vec<u8> {
    [&super::super::header(vni()), frame].concat()
}

/// Takes the frames out of `bytes`, as they would be read from a socket.
fn open_all(memory: &mut Memory, bytes: &[u8], gro_size: usize) -> Frames {
    let mut read = received(memory, bytes, &[2048]);
    let pieces: Vec<Piece> = read.take_pieces().collect();
    drop(read);
    let mut all = Vec::new();
    let size = NonZeroU16::new(gro_size as u16);
    decapsulate(pieces.into_iter(), size, (vni(), 1450), memory, &mut |one, _| all.push(one));
    all
}

/// Goal: coalesced datagrams become the frames that were sent, each as a switch takes it, and no
/// byte of payload is copied.
#[test]
fn coalesced_datagrams_are_cut() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    for v6 in [false, true] {
        let frames: Vec<Vec<u8>> = [1400, 1400, 1400, 9]
            .map(|len| Spec::plain(v6, true, pattern(len)).frame())
            .into_iter()
            .collect();
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| datagram(frame)).collect();
        let all = open_all(&mut memory, &bytes, frames[0].len() + HEADER_LEN);
        assert_eq!(all.len(), 4);
        for (one, frame) in all.iter().zip(&frames) {
            let (packet, headers) = one.as_ref().expect("a frame");
            assert_eq!(bytes_of(packet), *frame);
            assert_eq!(headers.expect("TCP").end, packet.headers().len());
            assert_eq!(*packet.offload(), Offload::default());
        }
    }
    assert_all_back(&memory, &ledger);
}

/// Goal: a tunnelled super-packet that a kernel passed whole stays whole, and its segments are
/// those that its sender would have made.
#[test]
fn tunnelled_super_packets_stay_whole() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    // The size of TCP segments is not known: they fill the MTU.
    let kinds = [(false, true, 0, 1410), (true, true, 0, 1390), (false, false, 1300, 1300)];
    for (v6, tcp, known, size) in kinds {
        let spec = Spec::plain(v6, tcp, pattern(20_000));
        let mut all = open_all(&mut memory, &datagram(&spec.partial_frame()), known);
        let (packet, headers) = all.remove(0).expect("a frame");
        assert!(all.is_empty());
        assert_eq!(*packet.offload(), spec.offload(size));
        let headers = headers.expect("TCP or UDP");
        let mut segments = Vec::new();
        segment(packet, &mut memory, &ledger, &headers, Checksums::LeavePartial, &mut |part, _| {
            segments.push(bytes_of(&part));
        })
        .unwrap_or_else(|_| panic!("segmented"));
        let wanted: Vec<_> = spec.segments(size.into()).iter().map(Spec::partial_frame).collect();
        assert_eq!(segments, wanted);
        drop(segments);
    }
    assert_all_back(&memory, &ledger);
}

/// Goal: a packet with a partial checksum is marked, one with a complete checksum is not.
#[test]
fn partial_checksums_are_recognised() {
    let mut memory = memory();
    for (v6, tcp) in [(false, true), (false, false), (true, true), (true, false)] {
        let spec = Spec::plain(v6, tcp, pattern(100));
        let mut take = |frame: &[u8]| {
            let (packet, _) =
                open_all(&mut memory, &datagram(frame), 0).remove(0).expect("a frame");
            *packet.offload()
        };
        assert_eq!(take(&spec.frame()), Offload::default());
        assert_eq!(take(&spec.partial_frame()).checksum, spec.partial());
    }
}

/// Goal: what a switch judges of a packet that is neither TCP nor UDP is private, such as the
/// target of a neighbour solicitation.
#[test]
fn messages_behind_the_headers_are_private() {
    let mut memory = memory();
    let mut frame = Spec::plain(true, false, pattern(1000)).frame();
    frame[20] = 58;
    let all = open_all(&mut memory, &datagram(&frame), 0);
    let (packet, headers) = all[0].as_ref().expect("a frame");
    assert!(headers.is_none() && packet.headers().len() > 14 + 40 + 64);
    assert_eq!(bytes_of(packet), frame);
}

#[test]
fn what_is_no_frame_of_the_network_is_refused() {
    let mut memory = memory();
    let frame = Spec::plain(false, true, pattern(10)).frame();
    let good = datagram(&frame);
    let mut refused = |bytes: &[u8]| open_all(&mut memory, bytes, 0).remove(0).err();
    let mut other = good.clone();
    other[6] += 1;
    assert_eq!(refused(&other), Some(Refused::WrongVni));
    let mut bad = good.clone();
    bad[0] = 0;
    assert_eq!(refused(&bad), Some(Refused::BadHeader));
    for end in 1..22 {
        assert_eq!(refused(&good[..end]), Some(Refused::Short), "{end} bytes");
    }
    assert_eq!(refused(&good[..22]), None, "a header alone is a frame");
    assert_eq!(refused(&good), None);
}

/// Goal: more datagrams than a kernel coalesces are counted, and the handles are enough for as many
/// as it does.
#[test]
fn reads_are_bounded() {
    let mut memory = memory();
    let frame = Spec::plain(false, false, pattern(10)).frame();
    let one = datagram(&frame);
    let bytes: Vec<u8> = core::iter::repeat_n(one.clone(), 70).flatten().collect();
    let all = open_all(&mut memory, &bytes, one.len());
    assert_eq!(all.iter().filter(|one| one.is_ok()).count(), DATAGRAMS_MAX);
    assert_eq!(all.last().expect("some").as_ref().err(), Some(&Refused::NoMemory));
}

/// Splits `bytes` as a read in strides of `size` bytes with heads of `head` bytes does, and takes
/// the frames out. The datagrams have `gro_size` bytes; 0 for a single one. Returns which heads are
/// to be expected.
fn take_split(
    memory: &mut Memory,
    ledger: &Ledger,
    bytes: &[u8],
    (head, size): (usize, usize),
    gro_size: usize,
    frames: &mut impl TakeFrames,
) -> Option<usize> {
    let (mut heads, mut behind) = (Vec::new(), Vec::new());
    for stride in bytes.chunks(size) {
        let (front, rest) = stride.split_at(head.min(stride.len()));
        heads.extend(front);
        behind.extend(rest);
    }
    let mut read = received(memory, &behind, &[2048]);
    let pieces: Vec<Piece> = read.take_pieces().collect();
    drop(read);
    let size = NonZeroU16::new(size as u16).expect("bytes");
    let heads = Heads { bytes: &heads, head, size };
    let (pieces, network) = (pieces.into_iter(), (vni(), 1450));
    let gro_size = NonZeroU16::new(gro_size as u16);
    decapsulate_heads(&heads, pieces, gro_size, network, (memory, ledger), frames)
}

/// As [`take_split`], with each frame as a packet.
fn open_split(
    memory: &mut Memory,
    ledger: &Ledger,
    bytes: &[u8],
    split: (usize, usize),
    gro_size: usize,
) -> (Frames, Option<usize>) {
    let mut all = Packets(Vec::new());
    let head = take_split(memory, ledger, bytes, split, gro_size, &mut all);
    (all.0, head)
}

/// As [`open_split`], of a run of datagrams for which the read was prepared.
fn open_heads(
    memory: &mut Memory,
    ledger: &Ledger,
    bytes: &[u8],
    (head, size): (usize, usize),
) -> Frames {
    open_split(memory, ledger, bytes, (head, size), size).0
}

/// A datagram with a TCP packet of `len` bytes of options and payload.
fn tcp_datagram(len: usize, options: usize) -> Vec<u8> {
    let plain = Spec::plain(false, true, pattern(len - options));
    datagram(&Spec { options: [1; 40][..options].to_vec(), ..plain }.frame())
}

/// Goal: of datagrams whose heads are apart, the frames are those that were sent, without a copy,
/// and the payload of successive ones is contiguous.
#[test]
fn heads_are_read_apart() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    for v6 in [false, true] {
        let frames: Vec<Vec<u8>> = [1400, 1400, 1400, 9]
            .map(|len| Spec::plain(v6, true, pattern(len)).frame())
            .into_iter()
            .collect();
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| datagram(frame)).collect();
        let size = frames[0].len() + HEADER_LEN;
        let wanted = HEADER_LEN + Spec::plain(v6, true, Vec::new()).headers_len();
        let gro_size = NonZeroU16::new(size as u16).expect("bytes");
        let head = head_of(&bytes[..192], bytes.len(), gro_size).expect("a run");
        assert_eq!(head, wanted);
        let all = open_heads(&mut memory, &ledger, &bytes, (head, size));
        assert_eq!(all.len(), 4);
        let mut joined = memory.packet().expect("free");
        for (one, frame) in all.into_iter().zip(&frames) {
            let (mut packet, headers) = one.expect("a frame");
            assert_eq!(bytes_of(&packet), *frame);
            assert_eq!(headers.expect("TCP").end, packet.headers().len());
            let pieces: Vec<Piece> = packet.take_pieces().collect();
            pieces.into_iter().for_each(|piece| joined.push_piece(piece).expect("room"));
        }
        assert!(joined.piece_count() <= 3, "a piece for each frame of the read");
        assert_eq!(ledger.copied(), 0);
    }
    assert_all_back(&memory, &ledger);
}

/// Goal: segments that follow each other are joined without a packet for each, also those that lie
/// in two frames of the read.
#[test]
fn segments_are_joined_before_they_are_packets() {
    let mut memory = memory();
    for (v6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        let spec = Spec::plain(v6, tcp, pattern(12_000));
        let frames: Vec<_> = spec.segments(1000).iter().map(Spec::frame).collect();
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| datagram(frame)).collect();
        let size = frames[0].len() + HEADER_LEN;
        let (packets, _, extended) = join_split(&mut memory, &bytes, (size - 1000, size), true);
        assert_eq!(packets, [(spec.partial_frame(), spec.offload(1000))]);
        assert_eq!(extended, 11);
    }
    assert_no_memory_held(&memory);
}

/// Goal: a super-packet goes on in the next read as it does with a packet for each segment, also if
/// it has no room for all pieces of that read.
#[test]
fn segments_are_joined_across_reads() {
    let mut memory = memory();
    let ledger = Ledger::new();
    let spec = Spec::plain(false, true, pattern(40_000));
    let all: Vec<_> =
        spec.segments(1000).iter().map(|segment| datagram(&segment.frame())).collect();
    let size = all[0].len();
    for count in [10, 20, 35] {
        let [with, without] = [true, false].map(|extends| {
            let mut joined = Joined::new(&ledger, extends);
            for read in [&all[..count], &all[count..]] {
                let split = (size - 1000, size);
                take_split(&mut memory, &ledger, &read.concat(), split, size, &mut joined);
            }
            joined.finish()
        });
        assert_eq!(with, without, "{count}");
        let bytes: usize = with.iter().map(|(bytes, _)| bytes.len() - 54).sum();
        assert_eq!(bytes, 40_000);
    }
    assert_no_memory_held(&memory);
}

/// Goal: heads are not read apart where that does not pay, or what arrives is no run of datagrams.
#[test]
fn other_reads_have_no_heads() {
    let of = |bytes: &[u8], len: usize, size: u16| {
        head_of(bytes, len, NonZeroU16::new(size).expect("bytes"))
    };
    let run = datagram(&Spec::plain(false, true, pattern(1000)).frame());
    assert_eq!(of(&run, 10_000, 1062), Some(62));
    assert_eq!(of(&run, 65 * 1062, 1062), None, "more than the kernel coalesces");
    assert_eq!(of(&run, 10_000, 1023), None, "little payload");
    assert_eq!(of(&run[..40], 10_000, 1062), None, "headers are not seen");
    let whole = datagram(&Spec::plain(false, true, pattern(20_000)).partial_frame());
    assert_eq!(of(&whole[..192], whole.len(), 1300), None, "a tunnelled super-packet");
    let mut other = run;
    other[HEADER_LEN + 12..][..2].copy_from_slice(&[0x88, 0xb5]);
    assert_eq!(of(&other, 10_000, 1062), None, "no IP");
}

/// Goal: a datagram whose headers are longer or shorter than the heads, or that has none, is the
/// frame that was sent. Only its head is copied. Without memory for that it is counted, and the
/// others arrive.
#[test]
fn heads_of_another_length_are_put_together() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let with_options = |len: usize, options: usize| {
        let plain = Spec::plain(false, true, pattern(len - options));
        Spec { options: [1; 40][..options].to_vec(), ..plain }.frame()
    };
    let mut unknown = with_options(1000, 0);
    unknown[12..14].copy_from_slice(&[0x88, 0xb5]);
    let frames = [with_options(1000, 12), with_options(1000, 0), with_options(1000, 24), unknown];
    let last = with_options(13, 12);
    let frames: Vec<Vec<u8>> = frames.into_iter().chain([last]).collect();
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| datagram(frame)).collect();
    let (head, size) = (HEADER_LEN + 66, frames[0].len() + HEADER_LEN);
    let all = open_heads(&mut memory, &ledger, &bytes, (head, size));
    assert_eq!(all.len(), frames.len());
    for (one, frame) in all.iter().zip(&frames) {
        assert_eq!(bytes_of(&one.as_ref().expect("a frame").0), *frame);
    }
    assert_eq!(ledger.copied(), 3 * head as u64);
    drop(all);

    // The payload takes two frames, and the heads find none.
    let mut held: Vec<_> = core::iter::from_fn(|| memory.small.take()).collect();
    held.truncate(held.len() - 2);
    let all = open_heads(&mut memory, &ledger, &bytes, (head, size));
    let refused: Vec<_> = all.iter().map(|one| one.as_ref().err().copied()).collect();
    let lost = Some(Refused::NoMemory);
    assert_eq!(refused, [None, lost, lost, lost, None]);
    drop((all, held));
    assert_no_memory_held(&memory);
}

/// Goal: a read of other datagrams than it was prepared for yields the frames that were sent, and
/// says what to prepare the next one for: shorter and longer ones, a single one, a run whose last
/// is shorter than a head, super-packets of a kernel. Copied is what does not lie in strides.
#[test]
fn reads_of_other_datagrams_are_put_together() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let run = |len: usize, options: usize, count: usize, last: usize| {
        let mut bytes = tcp_datagram(len, options).repeat(count);
        bytes.extend(tcp_datagram(last, options.min(last)));
        (bytes, len + 62, count + 1)
    };
    let prepared = (HEADER_LEN + 66, 1462);
    let mut copied = 0;
    for ((bytes, size, count), head, is_copied) in [
        (run(1400, 12, 3, 1400), Some(74), false),
        (run(1400, 12, 44, 12), Some(74), false),
        (run(1000, 12, 44, 900), Some(74), true),
        (run(1300, 0, 9, 7), Some(62), true),
        (run(8000, 12, 3, 8000), Some(74), true),
        (run(12, 12, 60, 12), None, true),
        ((tcp_datagram(12, 12), 0, 1), None, false),
        ((tcp_datagram(1400, 12), 0, 1), None, false),
        ((tcp_datagram(1401, 12), 0, 1), None, true),
        ((tcp_datagram(1200, 12), 2000, 1), None, false),
    ] {
        let (all, seen) = open_split(&mut memory, &ledger, &bytes, prepared, size);
        assert_eq!((all.len(), seen), (count, head), "{size}");
        let mut sent = Vec::new();
        for one in &all {
            sent.extend(datagram(&bytes_of(&one.as_ref().expect("a frame").0)));
        }
        assert_eq!(sent, bytes, "{size}");
        copied += if is_copied { bytes.len() as u64 } else { 0 };
        assert_eq!(ledger.copied(), copied, "{size}");
    }
    for (tcp, len, size) in [(true, 20_000, 0), (false, 20_000, 1300), (false, 20_000, 1462)] {
        let spec = Spec::plain(false, tcp, pattern(len));
        let bytes = datagram(&spec.partial_frame());
        let (all, seen) = open_split(&mut memory, &ledger, &bytes, prepared, size);
        assert_eq!((all.len(), seen), (1, None));
        let (packet, _) = all[0].as_ref().expect("a frame");
        assert_eq!(*packet.offload(), spec.offload(if tcp { 1410 } else { size as u16 }));
        assert_eq!(bytes_of(packet), spec.partial_frame());
    }
    assert_no_memory_held(&memory);
}

/// Goal: datagrams of other networks or without a frame are refused among others, whether the read
/// was prepared for them or not, and the others arrive. Without memory for a copy, each counts.
#[test]
fn strangers_in_a_run_are_refused() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let mut bytes = tcp_datagram(1400, 12).repeat(5);
    bytes[1462 + 6] += 1;
    bytes[2 * 1462] = 0;
    bytes.truncate(4 * 1462 + 10);
    let wanted =
        [None, Some(Refused::WrongVni), Some(Refused::BadHeader), None, Some(Refused::Short)];
    for size in [1462, 1463, 1024, 4000] {
        let split = (HEADER_LEN + 66, size);
        let (all, _) = open_split(&mut memory, &ledger, &bytes, split, 1462);
        let refused: Vec<_> = all.iter().map(|one| one.as_ref().err().copied()).collect();
        assert_eq!(refused, wanted, "{size}");
    }
    let (empty, _) = open_split(&mut memory, &ledger, &[], (74, 1462), 0);
    assert!(matches!(empty[..], [Err(Refused::Short)]), "an empty datagram counts, too");
    let held: Vec<_> = core::iter::from_fn(|| memory.large.take()).collect();
    let small: Vec<u8> = bytes[..1462 + 500].to_vec();
    let (all, head) = open_split(&mut memory, &ledger, &small, (74, 1024), 1462);
    assert!(head.is_none() && all.len() == 2);
    assert!(all.iter().all(|one| one.as_ref().err() == Some(&Refused::NoMemory)));
    drop((all, held));
    assert_no_memory_held(&memory);
}

fn assert_no_memory_held(memory: &Memory) {
    let held = [memory.packets.out_count(), memory.small.out_count(), memory.large.out_count()];
    assert_eq!(held, [0; 3]);
}

proptest! {
    /// Goal: no bytes cause a panic or leave memory held, also with the heads apart; what is passed
    /// on is in the datagrams.
    #[test]
    fn strangers_may_send_any_run(
        start in prop::collection::vec(any::<u8>(), 0..100),
        spec in any_spec(0..400),
        count in 1..5usize,
        head in 1..192usize,
        size in 193..600usize,
        gro_size in 0..600usize,
    ) {
        let (mut memory, ledger) = (memory(), Ledger::new());
        let mut one = datagram(&spec.frame());
        one[HEADER_LEN + 14..].iter_mut().zip(&start).for_each(|(to, from)| *to ^= from);
        let bytes: Vec<u8> = core::iter::repeat_n(one, count).flatten().collect();
        let split = (head, size);
        let (all, _) = open_split(&mut memory, &ledger, &bytes, split, gro_size);
        prop_assert!(!all.is_empty());
        let len: usize = all.iter().flatten().map(|(packet, _)| packet.len() + HEADER_LEN).sum();
        prop_assert!(len <= bytes.len());
        drop(all);
        assert_no_memory_held(&memory);
    }

    /// Goal: segments are joined without a packet for each as they are with one. Bad input: bytes
    /// that changed anywhere, also in the VXLAN header, and segments that are missing, come twice
    /// or too early.
    #[test]
    fn segments_are_joined_as_packets_are(
        v6 in any::<bool>(),
        tcp in any::<bool>(),
        len in 1..8000usize,
        edits in prop::collection::vec((0..4u8, any::<usize>(), any::<usize>(), 1..=255u8), 0..4),
    ) {
        let mut memory = memory();
        let spec = Spec::plain(v6, tcp, pattern(len));
        let mut all: Vec<_> =
            spec.segments(900).iter().map(|segment| datagram(&segment.frame())).collect();
        let head = HEADER_LEN + Spec::plain(v6, tcp, Vec::new()).headers_len();
        for (kind, index, at, bits) in edits {
            let index = index % all.len();
            let other = at % all.len();
            match kind {
                // Mostly in the headers.
                0 => {
                    let at = at % if bits & 1 == 0 { all[index].len() } else { head };
                    all[index][at] ^= bits;
                }
                1 => all.swap(index, other),
                2 => all.insert(index, all[other].clone()),
                _ if all.len() > 1 => drop(all.remove(index)),
                _ => {}
            }
        }
        let bytes = all.concat();
        let split = (head, head + 900);
        let [(with, refused, _), (without, also_refused, extended)] =
            [true, false].map(|extends| join_split(&mut memory, &bytes, split, extends));
        prop_assert_eq!(with, without);
        prop_assert_eq!((refused, extended), (also_refused, 0));
        assert_no_memory_held(&memory);
    }

    /// Goal: no bytes cause a panic or leave memory held; what is passed on is in the datagram.
    #[test]
    fn strangers_may_send_anything(
        mut bytes in prop::collection::vec(any::<u8>(), 0..3000),
        header in any::<bool>(),
        kind in 0..4u8,
        size in 0..3000usize,
    ) {
        let (mut memory, ledger) = (memory(), Ledger::new());
        let start = [&super::super::header(vni())[..], &[2; 12]].concat();
        if header && bytes.len() > 40 {
            bytes[..20].copy_from_slice(&start);
            let types = [[0x08, 0x00, 0x45], [0x86, 0xdd, 0x60], [0x08, 0x06, 0], [0x81, 0, 0]];
            bytes[20..23].copy_from_slice(&types[usize::from(kind)]);
        }
        let all = open_all(&mut memory, &bytes, size);
        let len: usize = all.iter().flatten().map(|(packet, _)| packet.len() + HEADER_LEN).sum();
        prop_assert!(len <= bytes.len());
        drop(all);
        assert_all_back(&memory, &ledger);
    }
}
