//! Pools against a model, and where their frames lie.

use super::*;
use proptest::prelude::*;
extern crate std;
use std::vec::Vec;

#[test]
fn frames_do_not_overlap_and_come_back() {
    let mut pool = Pool::new(4, 64);
    let mut frames: Vec<Frame> = core::iter::from_fn(|| pool.take()).collect();
    assert_eq!(frames.len(), 4);
    for (index, frame) in frames.iter_mut().enumerate() {
        frame.fill(index as u8 + 1);
    }
    for (index, frame) in frames.iter().enumerate() {
        assert!(frame.iter().all(|&byte| byte == index as u8 + 1));
        assert_eq!(frame.as_ptr().align_offset(64), 0);
    }
    let pieces: Vec<Piece> = frames.drain(..).map(|frame| frame.freeze(10)).collect();
    assert!(pool.take().is_none());
    assert_eq!(pieces[2].bytes(), Some(&[3u8; 10][..]));
    assert_eq!(pieces[2].held(), 64);
    drop(pieces);
    assert_eq!((pool.free_count(), pool.out_count()), (4, 0));
}

#[test]
fn pieces_outlive_their_pool() {
    let mut pool = Pool::new(1, 64);
    let mut frame = pool.take().expect("free");
    frame[0] = 9;
    let piece = frame.freeze(1);
    drop(pool);
    assert_eq!(piece.bytes(), Some(&[9u8][..]));
}

#[test]
fn a_frame_thrown_away_is_free_again() {
    let mut pool = Pool::new(1, 64);
    drop(pool.take().expect("free"));
    assert!(pool.take().is_some());
}

/// Goal: exactly the memory of used and free frames is passed to the caller, whichever thread
/// returned them.
#[test]
fn unused_memory_is_that_of_free_frames() {
    let mut pool = Pool::new(8, 64);
    let mut frames: Vec<Option<Frame>> = (0..7).map(|_| pool.take()).collect();
    for (index, frame) in frames.iter_mut().enumerate() {
        frame.as_mut().expect("free").fill(index as u8 + 1);
    }
    let unused = |pool: &mut Pool| {
        let mut found = Vec::new();
        pool.unused(|bytes| {
            found.push((bytes[0], bytes.len()));
            bytes.fill(0);
        });
        found
    };
    assert_eq!(unused(&mut pool), []);
    let piece = frames[5].take().expect("there").freeze(1);
    for index in [2, 0, 1, 4] {
        drop(frames[index].take());
    }
    assert_eq!(unused(&mut pool), [(1, 3 * 64), (5, 64)]);
    std::thread::spawn(|| drop(piece)).join().expect("no panic");
    assert_eq!(unused(&mut pool), [(0, 3 * 64), (0, 2 * 64)]);
    assert!(frames[3].as_ref().is_some_and(|frame| frame.iter().all(|&byte| byte == 4)));
    assert!(frames[6].as_ref().is_some_and(|frame| frame.iter().all(|&byte| byte == 7)));
    let again: Vec<Frame> = core::iter::from_fn(|| pool.take()).collect();
    assert!(again.len() == 6 && again.iter().all(|frame| frame.iter().all(|&byte| byte == 0)));
}

/// Goal: the memory beyond a limit, and no other, is passed to the caller.
#[test]
fn withheld_memory_is_that_beyond_the_limit() {
    let mut memory = Memory::new(MemoryConfig { packets: 1, small_frames: 512, large_frames: 64 });
    let frames: Vec<Frame> = core::iter::from_fn(|| memory.large.take()).take(60).collect();
    let within = 1 << 20;
    drop(frames);
    memory.limit(within);
    assert_eq!((memory.large.capacity(), memory.small.capacity()), (48, 128));
    let mut bytes = 0;
    memory.withheld(|range| bytes += range.len());
    assert_eq!(bytes, 12 * LARGE_FRAME_BYTES);
    assert_eq!(memory.capacity_bytes(), within);
    let _one = memory.small.take();
    assert_eq!(memory.out_bytes(), SMALL_FRAME_BYTES);
    memory.limit(usize::MAX);
    assert_eq!((memory.large.capacity(), memory.small.capacity()), (64, 512));
}

#[derive(Clone, Debug)]
enum Step {
    Take,
    Slice(usize, usize, usize),
    Drop(usize),
    Limit(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::Take),
        (any::<usize>(), 0..65usize, 0..65usize).prop_map(|(i, a, b)| Step::Slice(i, a, b)),
        any::<usize>().prop_map(Step::Drop),
        (0..7usize).prop_map(Step::Limit),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    /// Goal: a frame is free exactly when it has no piece, and pieces never change. A limit that
    /// changes takes no frame away, and holds for frames that are taken.
    /// Method: random takes, slices and drops against a model of plain byte vectors.
    #[test]
    fn frames_are_free_exactly_when_no_piece_lives(steps in steps()) {
        const FRAMES: usize = 5;
        let mut pool = Pool::new(FRAMES, 64);
        let mut held: Vec<(Piece, Vec<u8>)> = Vec::new();
        let (mut stamp, mut limit) = (0u8, FRAMES);
        for step in steps {
            match step {
                Step::Take => {
                    let live = live_frames(&held);
                    match pool.take() {
                        Some(mut frame) => {
                            prop_assert!(live < limit);
                            stamp = stamp.wrapping_add(1);
                            frame.fill(stamp);
                            let content = frame.to_vec();
                            held.push((frame.freeze(64), content));
                        }
                        None => prop_assert!(live >= limit),
                    }
                }
                Step::Slice(index, from, len) if !held.is_empty() => {
                    let (piece, content) = &held[index % held.len()];
                    let from = from.min(piece.len());
                    let len = len.min(piece.len() - from);
                    let cut = (piece.slice(from, len), content[from..from + len].to_vec());
                    held.push(cut);
                }
                Step::Drop(index) if !held.is_empty() => {
                    held.swap_remove(index % held.len());
                }
                Step::Limit(most) => {
                    limit = most.min(FRAMES);
                    pool.limit(most);
                }
                _ => {}
            }
            for (piece, content) in &held {
                prop_assert_eq!(piece.bytes(), Some(&content[..]));
            }
            prop_assert_eq!(pool.out_count(), live_frames(&held));
            prop_assert_eq!(pool.free_count(), limit.saturating_sub(live_frames(&held)));
        }
    }
}

fn live_frames(held: &[(Piece, Vec<u8>)]) -> usize {
    let mut distinct: Vec<&Piece> = Vec::new();
    for (piece, _) in held {
        if !distinct.iter().any(|other| other.same_loan(piece)) {
            distinct.push(piece);
        }
    }
    distinct.len()
}
