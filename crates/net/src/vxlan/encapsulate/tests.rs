//! The datagrams of a super-packet are those of its segments.

use super::*;
use crate::gso::leave_to_device;
use crate::gso::testing::*;
use crate::vxlan::{Vni, header};
use alloc::vec::Vec;
use proptest::prelude::*;
use towpath_packet::Memory;

const BYTES_MAX: usize = 65_000;

fn vxlan_header() -> [u8; HEADER_LEN] {
    header(Vni::new(100).expect("24 bits"))
}

/// The super-packet that a switch leaves to the port, with payload in pieces of these lengths.
fn super_packet(memory: &mut Memory, spec: &Spec, size: u16, cuts: &[usize]) -> Packet {
    let mut packet = parsed(memory, &spec.partial_frame(), spec.headers_len(), cuts);
    packet.set_offload(spec.offload(size));
    let headers = headers_of(&packet);
    assert_eq!(leave_to_device(&mut packet, &headers), Ok(true));
    packet
}

/// The datagrams of these segments, without their VXLAN headers.
fn datagrams(cut: &Cut, packets: &[Packet], segments: Range<usize>) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for stretch in cut.stretches(packets.iter(), segments) {
        match stretch {
            Stretch::Head(head) => {
                assert_eq!(head[..HEADER_LEN], vxlan_header());
                all.push(head[HEADER_LEN..].to_vec());
            }
            Stretch::Payload(piece, range) => {
                let bytes = &piece.view().expect("a frame")[range];
                all.last_mut().expect("a head comes first").extend(bytes);
            }
        }
    }
    all
}

/// Goal: what is no super-packet is left alone.
#[test]
fn a_packet_of_one_frame_is_not_cut() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let spec = Spec::plain(false, true, pattern(100));
    let packets = [parsed(&mut memory, &spec.frame(), spec.headers_len(), &[])];
    let mut cut = Cut::default();
    assert!(!cut.write(packets.iter(), &vxlan_header(), BYTES_MAX, &ledger));
    assert_eq!((cut.count(), cut.stretches(packets.iter(), 0..1).count()), (0, 0));
}

/// Goal: a run goes on from one super-packet to the next, but not behind a shorter segment, to
/// datagrams of another length, or to what is no super-packet; and not beyond what a call takes.
#[test]
fn runs_go_on_in_the_next_super_packet() {
    let (mut memory, ledger) = (memory(), Ledger::new());
    let spec = |len: usize| Spec::plain(false, true, pattern(len));
    let count_of = |packets: &[Packet], bytes_max| {
        let mut cut = Cut::default();
        assert!(cut.write(packets.iter(), &vxlan_header(), bytes_max, &ledger));
        cut.count()
    };
    let mut of = |len: usize, size: u16| super_packet(&mut memory, &spec(len), size, &[]);
    let full = [of(3000, 1000), of(5000, 1000), of(2500, 1000), of(3000, 1000)];
    assert_eq!(count_of(&full, BYTES_MAX), 3 + 5 + 3);
    assert_eq!(count_of(&full, 4 * 1062), 4);
    assert_eq!(count_of(&[of(2999, 1000), of(3000, 1000)], BYTES_MAX), 3);
    assert_eq!(count_of(&[of(3000, 1000), of(2997, 999)], BYTES_MAX), 3);
    let many: Vec<_> = (0..40).map(|_| of(200, 100)).collect();
    assert_eq!(count_of(&many, BYTES_MAX), PARTS_MAX);
    let options = Spec { options: [1; 12].to_vec(), ..spec(3000) };
    let longer = super_packet(&mut memory, &options, 1000, &[]);
    assert_eq!(
        count_of(&[super_packet(&mut memory, &spec(3000), 1000, &[]), longer], BYTES_MAX),
        3
    );
    let borders: Vec<usize> = (1..17).map(|border| 100 * border).collect();
    let scattered: Vec<_> =
        (0..9).map(|_| super_packet(&mut memory, &spec(2000), 1000, &borders)).collect();
    let pieces = scattered[0].piece_count();
    assert_eq!(count_of(&scattered, BYTES_MAX), PIECES_MAX / pieces * 2, "{pieces} pieces each");
}

proptest! {
    /// Goal: the datagrams are byte for byte the segments that the senders would have made, with
    /// complete checksums, also when they leave in several calls or go on in the next super-packet,
    /// and any one can be sent by itself. No loan is lost.
    #[test]
    fn datagrams_are_the_segments_of_the_sender(
        mut spec in any_spec(2..9000),
        size in 1..1500u16,
        lens in prop::collection::vec(1..4usize, 1..4),
        is_full in any::<bool>(),
        cuts in any_cuts(),
        bytes_max in 100..BYTES_MAX,
    ) {
        let (mut memory, ledger) = (memory(), Ledger::new());
        let size = size.max(spec.payload.len().div_ceil(100) as u16);
        prop_assume!(spec.payload.len() > size.into());
        let (mut packets, mut wanted) = (Vec::new(), Vec::new());
        for len in lens {
            let segments = (spec.payload.len() / usize::from(size) / len).max(2);
            if is_full {
                spec.payload.resize(segments * usize::from(size), 7);
            }
            packets.push(super_packet(&mut memory, &spec, size, &cuts));
            wanted.extend(spec.segments(size.into()).iter().map(Spec::frame));
        }
        let (mut cut, mut sent) = (Cut::default(), Vec::new());
        while !packets.is_empty() {
            prop_assert!(cut.write(packets.iter(), &vxlan_header(), bytes_max, &ledger));
            let mut count = cut.count();
            prop_assert!(0 < count && count <= PARTS_MAX);
            let goes_on = is_full || spec.payload.len().is_multiple_of(size.into());
            prop_assert!(goes_on || count <= packets[0].frames());
            let all = datagrams(&cut, &packets, 0..count);
            let bytes: usize = all.iter().map(|one| one.len() + HEADER_LEN).sum();
            prop_assert!(count == 1 || bytes <= bytes_max, "{bytes} of {bytes_max}");
            for (segment, one) in all.iter().enumerate() {
                prop_assert_eq!(cut.len_of(segment), one.len());
                let alone = datagrams(&cut, &packets, segment..segment + 1);
                prop_assert_eq!(&alone[..], core::slice::from_ref(one));
            }
            sent.extend(all);
            while count > 0 && packets[0].frames() <= count {
                count -= packets.remove(0).frames();
            }
            if count > 0 {
                packets[0].drop_parts(count);
            }
        }
        prop_assert_eq!(sent, wanted);
        prop_assert_eq!(ledger.copied(), 0);
        assert_all_back(&memory, &ledger);
    }
}
