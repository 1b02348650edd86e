//! Packets: headers, pieces, and the return of all memory.

use super::*;
use crate::burst::Burst;
use crate::pool::{Memory, MemoryConfig};
extern crate std;
use std::vec;
use std::vec::Vec;

fn memory() -> Memory {
    Memory::new(MemoryConfig { packets: 4, small_frames: 32, large_frames: 4 })
}

fn piece(memory: &mut Memory, bytes: &[u8]) -> Piece {
    let mut frame = memory.small.take().expect("free");
    frame[..bytes.len()].copy_from_slice(bytes);
    frame.freeze(bytes.len())
}

fn payload(packet: &Packet) -> Vec<u8> {
    packet.pieces().flat_map(|piece| piece.bytes().expect("private").to_vec()).collect()
}

/// Goal: after `pull` headers are private and pieces are the payload, wherever pieces begin.
#[test]
fn headers_are_pulled_across_pieces() {
    let mut memory = memory();
    let bytes: Vec<u8> = (0..=255).cycle().take(400).collect();
    for cut in [1, 13, 64, 191, 192, 193, 399] {
        let mut packet = memory.packet().expect("free");
        packet.push_piece(piece(&mut memory, &bytes[..cut])).expect("room");
        packet.push_piece(piece(&mut memory, &bytes[cut..])).expect("room");
        assert_eq!(packet.len(), 400);
        assert_eq!(packet.peek_headers(), &bytes[..PEEK_BYTES]);
        assert_eq!(packet.len(), 400);
        packet.pull(66);
        assert_eq!(packet.headers(), &bytes[..66]);
        assert_eq!(payload(&packet), &bytes[66..]);
        assert_eq!(packet.len(), 400);
        packet.push_header(4).fill(1);
        assert_eq!(packet.len(), 404);
    }
    assert_eq!(memory.small.out_count(), 0);
    assert_eq!(memory.packets.out_count(), 0);
}

/// Goal: the first bytes are those on the wire in each state of the headers, and do not change.
#[test]
fn the_first_bytes_are_seen_in_each_state() {
    let mut memory = memory();
    let bytes: Vec<u8> = (0..=255).cycle().take(400).collect();
    for len in [0, 1, 60, 191, 192, 193, 400] {
        let mut packet = memory.packet().expect("free");
        for chunk in bytes[..len].chunks(50) {
            packet.push_piece(piece(&mut memory, chunk)).expect("room");
        }
        let expected = &bytes[..len.min(PEEK_BYTES)];
        let check = |packet: &Packet| {
            let mut first = [0; PEEK_BYTES];
            let count = packet.copy_first(&mut first);
            assert_eq!((&first[..count], packet.len()), (expected, len));
        };
        check(&packet);
        packet.peek_headers();
        check(&packet);
        packet.pull(len.min(54));
        check(&packet);
        let more = packet.payload_len().min(PEEK_BYTES - packet.headers().len());
        assert!(packet.pull_more(more));
        check(&packet);
        packet.pop_header(len.min(14));
        packet.push_header(len.min(14)).copy_from_slice(&bytes[..len.min(14)]);
        check(&packet);
    }
}

/// Goal: a frame that lies completely in private memory is headers only, has headroom, and leaves
/// nothing to the next packet of its slot.
#[test]
fn a_frame_lies_inline() {
    let mut memory = Memory::new(MemoryConfig { packets: 2, small_frames: 1, large_frames: 1 });
    let bytes: Vec<u8> = (0..=255).collect();
    for len in [1, 14, 60, PEEK_BYTES] {
        let mut packet = memory.packet().expect("free");
        assert!(!packet.is_inline());
        packet.fill_inline(len, |frame| frame.copy_from_slice(&bytes[..len]));
        assert_eq!((packet.len(), packet.payload_len(), packet.piece_count()), (len, 0, 0));
        assert_eq!(packet.headers(), &bytes[..len]);
        packet.push_header(RECEIVE_HEADROOM).fill(9);
        assert_eq!(packet.headers()[RECEIVE_HEADROOM..], bytes[..len]);
        packet.pop_header(RECEIVE_HEADROOM);
        let shared = packet.share(&mut memory.packets).expect("free");
        assert!(packet.is_inline() && shared.is_inline());
        assert_eq!((shared.headers(), shared.len()), (&bytes[..len], len));
        drop((packet, shared));
        let mut both = [0, 1].map(|_| memory.packet().expect("free"));
        assert!(both.iter().all(|packet| !packet.is_inline() && packet.is_empty()));
        // Cleared packets can be filled again.
        both[0].fill_inline(len, |frame| frame.fill(1));
        both[0].clear();
        both[0].fill_inline(1, |frame| frame.fill(2));
        assert_eq!(both[0].headers(), [2]);
    }
    assert_eq!((memory.small.out_count(), memory.packets.out_count()), (0, 0));
}

#[test]
#[should_panic(expected = "the packet is empty")]
fn only_empty_packets_are_filled_inline() {
    let mut memory = memory();
    let mut packet = memory.packet().expect("free");
    packet.push_piece(piece(&mut memory, &[1; 20])).expect("room");
    packet.fill_inline(14, |frame| frame.fill(0));
}

#[test]
#[should_panic]
fn a_frame_that_is_too_long_is_not_inline() {
    let mut memory = memory();
    memory.packet().expect("free").fill_inline(PEEK_BYTES + 1, |frame| frame.fill(0));
}

#[test]
fn truncate_and_drop_front_keep_count() {
    let mut memory = memory();
    let bytes: Vec<u8> = (0..100).collect();
    for (front, keep) in [(0, 100), (10, 50), (30, 0), (29, 71), (99, 1), (100, 0)] {
        let mut packet = memory.packet().expect("free");
        for chunk in bytes.chunks(30) {
            packet.push_piece(piece(&mut memory, chunk)).expect("room");
        }
        packet.drop_front(front);
        packet.truncate(keep);
        assert_eq!(payload(&packet), &bytes[front..front + keep]);
        assert_eq!(packet.payload_len(), keep);
        assert_eq!(packet.pieces().map(Piece::len).sum::<usize>(), keep);
    }
    assert_eq!(memory.small.out_count(), 0);
}

#[test]
fn a_full_packet_hands_the_piece_back() {
    let mut memory = memory();
    let mut packet = memory.packet().expect("free");
    for _ in 0..PIECES_MAX {
        packet.push_piece(piece(&mut memory, b"x")).expect("room");
    }
    let refused = packet.push_piece(piece(&mut memory, b"y")).expect_err("full");
    assert_eq!(refused.bytes(), Some(&b"y"[..]));
    assert_eq!(packet.payload_len(), PIECES_MAX);
    packet.clear();
    assert!(packet.is_empty());
}

#[test]
fn neighbours_join_into_one_piece() {
    let mut memory = memory();
    let whole = piece(&mut memory, b"abcdef");
    let mut packet = memory.packet().expect("free");
    packet.push_piece(whole.slice(0, 3)).expect("room");
    packet.push_piece(whole.slice(3, 3)).expect("room");
    assert_eq!((packet.piece_count(), packet.payload_len()), (1, 6));
}

/// Regression: pieces left in the iterator stayed in the packet, uncounted, and never returned.
#[test]
fn pieces_left_behind_are_returned() {
    let mut memory = memory();
    let mut packet = memory.packet().expect("free");
    for _ in 0..3 {
        packet.push_piece(piece(&mut memory, b"x")).expect("room");
    }
    assert!(packet.take_pieces().next().is_some());
    assert_eq!((packet.piece_count(), packet.payload_len()), (0, 0));
    assert_eq!(memory.small.out_count(), 0);
}

/// Goal: header bytes behind the peeked ones are moved out of the pieces completely, or not at all.
#[test]
fn more_headers_are_pulled_from_the_payload() {
    let mut memory = memory();
    let bytes: Vec<u8> = (0..=255).cycle().take(300).collect();
    let mut packet = memory.packet().expect("free");
    for chunk in bytes.chunks(50) {
        packet.push_piece(piece(&mut memory, chunk)).expect("room");
    }
    packet.peek_headers();
    packet.pull(34);
    assert!(packet.pull_more(20));
    assert_eq!(packet.headers(), &bytes[..54]);
    assert_eq!(payload(&packet), &bytes[54..]);
    assert!(!packet.pull_more(247), "more than there is");
    assert!(!packet.pull_more(200), "more than the header memory holds");
    assert_eq!(packet.len(), 300);
}

/// Goal: a packet and its shared copy are equal and independent, whether it was peeked, pulled or
/// made here. Without a free handle there is no copy, and the pieces return when both are gone.
#[test]
fn a_shared_packet_is_the_same() {
    let mut memory = memory();
    let bytes: Vec<u8> = (0..=255).cycle().take(400).collect();
    for pulled in [None, Some(14), Some(150)] {
        let mut packet = memory.packet().expect("free");
        packet.push_piece(piece(&mut memory, &bytes[..100])).expect("room");
        packet.push_piece(piece(&mut memory, &bytes[100..])).expect("room");
        packet.peek_headers();
        if let Some(count) = pulled {
            packet.pull(count);
        }
        let checksum = crate::offload::Checksum::Partial { start: 34, offset: 16 };
        packet.set_offload(Offload { checksum, gso: None });
        packet.set_ingress(Some(7));
        let mut shared = packet.share(&mut memory.packets).expect("free");
        assert_eq!(shared.ingress(), Some(7));
        assert_eq!((shared.headers(), payload(&shared)), (packet.headers(), payload(&packet)));
        assert_eq!((shared.len(), shared.offload()), (packet.len(), packet.offload()));
        assert!(shared.pieces().zip(packet.pieces()).all(|(one, other)| one.same_loan(other)));
        drop(packet);
        if pulled.is_none() {
            shared.pull(14);
        }
        let (len, end) = (shared.headers().len(), shared.headers().len() + 20);
        assert!(shared.pull_more(20), "room behind the headers, as before");
        assert_eq!(shared.headers(), &bytes[..end]);
        shared.pop_header(len);
        let others: Vec<Packet> = core::iter::from_fn(|| memory.packet()).collect();
        assert!(others.iter().all(|other| other.ingress().is_none()), "cleared: no port");
        assert!(shared.share(&mut memory.packets).is_none());
        drop((shared, others));
        assert_eq!((memory.small.out_count(), memory.packets.out_count()), (0, 0));
    }
}

/// Goal: packets that are dropped together return all their memory, from any pools in any order,
/// and later packets stay.
#[test]
fn packets_dropped_together_give_everything_back() {
    let mut pools = [memory(), memory()];
    let mut burst = Burst::new();
    for number in [0, 0, 1, 0, 1, 1] {
        let mut packet = pools[number].packet().expect("free");
        let shared = piece(&mut pools[number], &[1; 20]);
        packet.push_piece(shared.slice(0, 10)).expect("room");
        packet.push_piece(piece(&mut pools[1 - number], &[2; 20])).expect("room");
        packet.push_piece(shared.slice(5, 5)).expect("room");
        packet.push_header(4).fill(number as u8);
        burst.push(packet).expect("room");
    }
    let out = |pools: &[Memory; 2]| pools.each_ref().map(|pool| pool.packets.out_count());
    burst.drop_front(0);
    assert_eq!((burst.len(), out(&pools)), (6, [3, 3]));
    burst.drop_front(4);
    assert_eq!((burst.len(), out(&pools)), (2, [0, 2]));
    assert_eq!(burst.first().map(|packet| packet.headers().to_vec()), Some(vec![1; 4]));
    assert_eq!(burst.first().map(Packet::payload_len), Some(35));
    burst.clear();
    assert!(burst.is_empty() && !burst.is_full());
    assert_eq!(out(&pools), [0, 0]);
    assert_eq!(pools.each_ref().map(|pool| pool.small.out_count()), [0, 0]);
    // Each handle once: the pool has four.
    let again: Vec<_> = core::iter::from_fn(|| pools[0].packet()).collect();
    assert_eq!(again.len(), 4);
    assert!(again.iter().all(Packet::is_empty));
}

/// Goal: packets that the owner of the pools drops give everything back at once, whatever pools
/// they are of; a burst grows by as many as there is room and as the pool has, and shrinks again.
#[test]
fn the_owner_takes_and_returns_runs() {
    let mut pools = [memory(), memory()];
    let mut burst = Burst::limited(6);
    assert_eq!(burst.grow(&mut pools[0].packets, 9), 4, "all that the pool has");
    assert_eq!(burst.grow(&mut pools[1].packets, 9), 2, "the burst is full");
    assert_eq!(burst.grow(&mut pools[1].packets, 1), 0);
    for (number, packet) in burst.last_mut(6).enumerate() {
        packet.push_header(1).fill(number as u8);
        for pool in &mut pools {
            packet.push_piece(piece(pool, &[1; 20])).expect("room");
        }
    }
    let [first, second] = &mut pools;
    burst.shrink(&mut first.packets, 0);
    burst.shrink(&mut first.packets, 3);
    assert_eq!((burst.len(), first.packets.free_at_least()), (3, 1), "one came back to the stack");
    assert_eq!((second.packets.free_at_least(), second.packets.free_count()), (2, 4));
    burst.drop_front_to(1, first);
    let numbers: Vec<_> = burst.iter().map(|packet| packet.headers()[0]).collect();
    assert_eq!(numbers, [1, 2]);
    burst.drop_front_to(2, first);
    assert!(burst.is_empty() && !burst.is_full());
    for pool in &mut pools {
        assert_eq!((pool.packets.out_count(), pool.small.out_count()), (0, 0));
    }
    // Each handle once, and empty.
    assert_eq!(burst.grow(&mut pools[0].packets, 6), 4);
    assert!(burst.iter().all(Packet::is_empty));
    assert_eq!(burst.iter_from(3).count(), 1);
}

#[test]
#[should_panic]
fn no_more_packets_are_dropped_than_there_are() {
    let mut burst = Burst::new();
    burst.push(memory().packet().expect("free")).expect("room");
    burst.drop_front(2);
}
