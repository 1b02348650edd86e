//! What is taken out of datagrams: frames, super-packets, and nothing else.

use super::*;
use crate::gso::testing::*;
use crate::gso::{Checksums, segment};
use alloc::vec::Vec;
use proptest::prelude::*;
use towpath_packet::Ledger;

fn vni() -> Vni {
    Vni::new(100).expect("24 bits")
}

/// A datagram with this frame.
fn datagram(frame: &[u8]) -> Vec<u8> {
    [&super::super::header(vni()), frame].concat()
}

/// Takes the frames out of `bytes`, as they would be read from a socket.
fn open_all(
    memory: &mut Memory,
    bytes: &[u8],
    gro_size: usize,
) -> Vec<Result<(Packet, Option<Headers>), Refused>> {
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

proptest! {
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
