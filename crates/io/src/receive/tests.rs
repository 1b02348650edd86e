//! Which frames a read uses, and which stay for the next read.

use super::*;
use towpath_packet::MemoryConfig;

fn memory(small_frames: usize, large_frames: usize) -> Memory {
    Memory::new(MemoryConfig { packets: 1, small_frames, large_frames })
}

/// Writes `bytes` into the offered slices, as a read would.
fn fill(buffer: &mut ReceiveBuffer, bytes: &[u8]) {
    let mut slices = empty_slices::<FRAMES_MAX>();
    let count = buffer.slices(&mut slices);
    let mut left = bytes;
    for slice in &mut slices[..count] {
        let len = left.len().min(slice.len());
        slice[..len].copy_from_slice(&left[..len]);
        left = &left[len..];
    }
    assert!(left.is_empty(), "the read fits");
}

fn take(buffer: &mut ReceiveBuffer, bytes: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    buffer.take(bytes, |piece| pieces.push(piece));
    pieces
}

#[test]
fn a_small_read_uses_the_small_frame_only() {
    let mut memory = memory(2, 8);
    let mut buffer = ReceiveBuffer::new();
    assert_eq!(buffer.prepare(&mut memory, 60_000), 60_000);
    assert_eq!((memory.small.out_count(), memory.large.out_count()), (1, 4));
    fill(&mut buffer, &[7; 2048]);
    let pieces = take(&mut buffer, 2048);
    assert_eq!(pieces.len(), 1);
    assert_eq!(pieces[0].bytes(), Some(&[7; 2048][..]));
    assert_eq!(memory.large.out_count(), 4);

    // The next read finds the large frames in place and takes one small frame.
    assert_eq!(buffer.prepare(&mut memory, 60_000), 60_000);
    assert_eq!((memory.small.out_count(), memory.large.out_count()), (2, 4));
}

/// Goal: pieces come out in the order of the bytes read, and each frame is used once. Method:
/// consecutive reads of sizes around every boundary.
#[test]
fn reads_of_any_size_come_out_in_order() {
    let mut memory = memory(2, 9);
    let mut buffer = ReceiveBuffer::new();
    let sizes = [1, 2047, 2048, 2049, 18_432, 18_433, 65_535, RECEIVE_BYTES_MAX, 3];
    for size in sizes {
        let offered = buffer.prepare(&mut memory, RECEIVE_BYTES_MAX);
        assert_eq!(offered, RECEIVE_BYTES_MAX);
        let bytes: Vec<u8> = (0..size).map(|index| ((index * 31) >> 3) as u8).collect();
        fill(&mut buffer, &bytes);
        let pieces = take(&mut buffer, size);
        let back: Vec<u8> =
            pieces.iter().flat_map(|piece| piece.bytes().expect("private")).copied().collect();
        assert!(back == bytes, "{size} bytes differ");
        let expected = 1 + size.saturating_sub(SMALL_FRAME_BYTES).div_ceil(LARGE_FRAME_BYTES);
        assert_eq!(pieces.len(), expected);
    }
    buffer.clear();
    assert_eq!((memory.small.out_count(), memory.large.out_count()), (0, 0));
}

#[test]
fn no_more_is_offered_than_asked_for() {
    let mut memory = memory(1, 8);
    let mut buffer = ReceiveBuffer::new();
    assert_eq!(buffer.prepare(&mut memory, 100_000), 100_000);
    // More frames are held than this read is offered.
    for bytes in [0, 1, 2048, 2049, 50_000] {
        assert_eq!(buffer.prepare(&mut memory, bytes), bytes);
        let mut slices = empty_slices::<FRAMES_MAX>();
        let count = buffer.slices(&mut slices);
        assert_eq!(slices[..count].iter().map(|slice| slice.len()).sum::<usize>(), bytes);
    }
    assert_eq!(take(&mut buffer, 0).len(), 0);
}

#[test]
fn short_memory_shows_in_what_is_offered() {
    let mut tight = memory(1, 2);
    let mut buffer = ReceiveBuffer::new();
    let two = SMALL_FRAME_BYTES + 2 * LARGE_FRAME_BYTES;
    assert_eq!(buffer.prepare(&mut tight, RECEIVE_BYTES_MAX), two);
    let held = take(&mut buffer, 10);
    // The small frame is in use: only large ones are offered and used.
    assert_eq!(buffer.prepare(&mut tight, 1000), 1000);
    let large = take(&mut buffer, 10);
    assert_eq!(large[0].held(), LARGE_FRAME_BYTES);
    drop((held, large));
    assert_eq!(buffer.prepare(&mut tight, RECEIVE_BYTES_MAX), two);
    buffer.clear();
    let mut none = memory(0, 0);
    assert_eq!(buffer.prepare(&mut none, 1), 0);
    assert_eq!(buffer.frame_count(), 0);
}

#[test]
#[should_panic(expected = "no more than it was offered")]
fn taking_more_than_offered_is_a_bug() {
    let mut memory = memory(1, 1);
    let mut buffer = ReceiveBuffer::new();
    let offered = buffer.prepare(&mut memory, 100);
    take(&mut buffer, offered + 1);
}

#[test]
fn pieces_lose_their_front() {
    let mut memory = memory(1, 2);
    let mut buffer = ReceiveBuffer::new();
    buffer.prepare(&mut memory, 3000);
    let mut pieces = Pieces::default();
    buffer.take(3000, |piece| pieces.push(piece));
    assert_eq!((pieces.len(), pieces.bytes()), (2, 3000));
    pieces.drop_front(28);
    assert_eq!((pieces.len(), pieces.bytes()), (2, 2972));
    pieces.drop_front(2020);
    assert_eq!((pieces.len(), pieces.bytes()), (1, 952));
    assert_eq!(pieces.into_iter().map(|piece| piece.len()).sum::<usize>(), 952);
}

/// Goal: heads and offered bytes alternate, across frames, up to a last head that is shorter, and
/// the offered bytes are contiguous.
#[test]
fn heads_alternate_with_offered_bytes() {
    let mut memory = memory(1, 1);
    let mut buffer = ReceiveBuffer::new();
    // Datagrams of 10 and 1,990 bytes, the last of which has 4.
    assert_eq!(buffer.prepare(&mut memory, 2 * 1990), 2 * 1990);
    let mut heads = [0; 24];
    let mut slices = empty_slices::<8>();
    let count = buffer.slices_behind(&mut heads, (10, 1990), &mut slices);
    let lens: Vec<usize> = slices[..count].iter().map(|slice| slice.len()).collect();
    assert_eq!(lens, [10, 1990, 10, 58, 1932, 4]);
    for (number, slice) in (1..).zip(&mut slices[..count]) {
        slice.fill(number);
    }
    let pieces = take(&mut buffer, 2 * 1990);
    let bytes: Vec<u8> =
        pieces.iter().flat_map(|piece| piece.bytes().expect("own")).copied().collect();
    assert_eq!(bytes, [vec![2; 1990], vec![4; 58], vec![5; 1932]].concat());
    assert_eq!(heads, [vec![1; 10], vec![3; 10], vec![6; 4]].concat()[..]);
}
