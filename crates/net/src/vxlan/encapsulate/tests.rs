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
fn datagrams(cut: &Cut, packet: &Packet, segments: Range<usize>) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for stretch in cut.stretches(packet, segments) {
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
    let packet = parsed(&mut memory, &spec.frame(), spec.headers_len(), &[]);
    let mut cut = Cut::default();
    assert!(!cut.write(&packet, &vxlan_header(), BYTES_MAX, &ledger));
    assert_eq!((cut.count(), cut.stretches(&packet, 0..1).count()), (0, 0));
}

proptest! {
    /// Goal: the datagrams are byte for byte the segments that the sender would have made, with
    /// complete checksums, also when they leave in several calls, and any one can be sent by
    /// itself. No loan is lost.
    #[test]
    fn datagrams_are_the_segments_of_the_sender(
        spec in any_spec(2..9000),
        size in 1..1500u16,
        cuts in any_cuts(),
        bytes_max in 100..BYTES_MAX,
    ) {
        let (mut memory, ledger) = (memory(), Ledger::new());
        let size = size.max(spec.payload.len().div_ceil(100) as u16);
        prop_assume!(spec.payload.len() > size.into());
        let mut packet = super_packet(&mut memory, &spec, size, &cuts);
        let wanted: Vec<_> = spec.segments(size.into()).iter().map(Spec::frame).collect();
        let (mut cut, mut sent) = (Cut::default(), Vec::new());
        loop {
            prop_assert!(cut.write(&packet, &vxlan_header(), bytes_max, &ledger));
            let (count, left) = (cut.count(), packet.frames());
            prop_assert!(0 < count && count <= left.min(PARTS_MAX));
            let all = datagrams(&cut, &packet, 0..count);
            let bytes: usize = all.iter().map(|one| one.len() + HEADER_LEN).sum();
            prop_assert!(count == 1 || bytes <= bytes_max, "{bytes} of {bytes_max}");
            for (segment, one) in all.iter().enumerate() {
                prop_assert_eq!(cut.len_of(segment), one.len());
                let alone = datagrams(&cut, &packet, segment..segment + 1);
                prop_assert_eq!(&alone[..], core::slice::from_ref(one));
            }
            sent.extend(all);
            if count == left {
                break;
            }
            packet.drop_parts(count);
        }
        prop_assert_eq!(sent, wanted);
        prop_assert_eq!(ledger.copied(), 0);
        drop(packet);
        assert_all_back(&memory, &ledger);
    }
}
