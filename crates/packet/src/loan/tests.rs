//! Loans and pieces: which lender is notified, when, and which pieces can be joined.

use super::*;
use crate::ledger::{Ledger, Site};
use crate::lend::Loans;
use crate::sync::AtomicU64;
extern crate std;
use std::vec;
use std::vec::Vec;

/// Records which tokens came back, and how often.
#[derive(Default)]
struct Returns {
    count: AtomicU64,
    sum: AtomicU64,
}

impl Lender for Returns {
    fn returned(&self, token: u64, copied: bool) {
        assert!(!copied);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(token, Ordering::Relaxed);
    }
}

fn foreign(loans: &mut Loans, memory: &[u8], lender: &Arc<Returns>, token: u64) -> Piece {
    let base = NonNull::from(memory).cast();
    // SAFETY: the tests drop all pieces before the memory.
    unsafe { loans.lend_foreign(base, memory.len() as u32, lender.clone(), token) }
        .expect("a descriptor is free")
}

/// Goal: one return for each loan, after its last piece, however it was sliced and cloned.
#[test]
fn a_loan_is_returned_once_after_its_last_piece() {
    let memory = vec![7u8; 100];
    let lender = Arc::new(Returns::default());
    let mut loans = Loans::new(2);
    let whole = foreign(&mut loans, &memory, &lender, 42);
    let first = whole.slice(0, 10);
    let second = whole.slice(10, 90);
    drop(whole);
    let clone = second.clone();
    drop(second);
    drop(first);
    assert_eq!(lender.count.load(Ordering::Relaxed), 0);
    assert_eq!(loans.out_count(), 1);
    drop(clone);
    assert_eq!(lender.count.load(Ordering::Relaxed), 1);
    assert_eq!(lender.sum.load(Ordering::Relaxed), 42);
    assert_eq!(loans.out_count(), 0);
}

/// Goal: reserved holders count one each: the loan ends with the last of the pieces made of them
/// and of the unused holders. A piece beyond them is a holder, too.
#[test]
fn holders_counted_together_end_one_by_one() {
    let memory = vec![7u8; 100];
    let other = vec![8u8; 10];
    let lender = Arc::new(Returns::default());
    let mut loans = Loans::new(2);
    let whole = foreign(&mut loans, &memory, &lender, 42);
    let stranger = foreign(&mut loans, &other, &lender, 1);
    let reported = || lender.count.load(Ordering::Relaxed);
    for (reserved, cut) in [(0, 2), (2, 2), (2, 5), (5, 2)] {
        let mut holders = whole.reserve(reserved);
        let mut parts: Vec<_> = (0..cut).map(|at| holders.slice(&whole, 10 * at, 10)).collect();
        assert!(
            parts.iter().zip(1..).all(|(part, at)| (part.offset, part.len) == (10 * at - 10, 10))
        );
        parts.push(holders.slice(&stranger, 1, 2));
        drop(holders);
        assert_eq!(whole.loan().holders.load(Ordering::Relaxed), 1 + cut as u32);
        assert_eq!(stranger.loan().holders.load(Ordering::Relaxed), 2);
    }
    assert_eq!((stranger.loan().holders.load(Ordering::Relaxed), reported()), (1, 0));
    let holders = whole.reserve(3);
    drop(whole);
    assert_eq!(reported(), 0, "unused holders keep the loan");
    drop(holders);
    assert_eq!(reported(), 1);
    drop(stranger);
    assert_eq!((reported(), loans.out_count()), (2, 0));
}

#[test]
#[should_panic]
fn holders_make_no_piece_beyond_their_own() {
    let memory = vec![7u8; 100];
    let lender = Arc::new(Returns::default());
    let whole = foreign(&mut Loans::new(1), &memory, &lender, 42);
    let mut holders = whole.reserve(1);
    holders.slice(&whole, 50, 51);
}

/// Goal: the return reaches the lender even if the `Loans` is gone and if the last piece is dropped
/// on another thread.
#[test]
fn returns_outlive_the_maker_and_cross_threads() {
    let memory = vec![1u8; 8];
    let lender = Arc::new(Returns::default());
    let mut loans = Loans::new(1);
    let piece = foreign(&mut loans, &memory, &lender, 1);
    drop(loans);
    std::thread::spawn(move || drop(piece)).join().expect("no panic");
    assert_eq!(lender.count.load(Ordering::Relaxed), 1);
}

#[test]
fn foreign_memory_is_no_reference_but_can_be_copied() {
    let memory: Vec<u8> = (0..=255).collect();
    let lender = Arc::new(Returns::default());
    let mut loans = Loans::new(1);
    let mut piece = foreign(&mut loans, &memory, &lender, 1);
    assert!(piece.bytes().is_none());
    piece.advance(3);
    piece.truncate(21);
    let ledger = Ledger::new();
    let mut copy = [0; 64];
    assert_eq!(ledger.copy(Site::Linearise, &piece, &mut copy), 21);
    assert_eq!(copy[..21], memory[3..24]);
    assert_eq!(ledger.copied_at(Site::Linearise), 21);
}

#[test]
fn all_descriptors_out_hands_the_memory_back() {
    let mut loans = Loans::new(1);
    let held = loans.lend_owned(vec![1; 4].into_boxed_slice()).expect("free");
    let refused = loans.lend_owned(vec![2; 4].into_boxed_slice());
    assert_eq!(refused.expect_err("none is free")[0], 2);
    drop(held);
    assert!(loans.lend_owned(vec![3; 4].into_boxed_slice()).is_ok());
}

#[test]
fn only_neighbours_of_one_loan_join() {
    let mut loans = Loans::new(2);
    let one = loans.lend_owned((0..10).collect::<Vec<u8>>().into_boxed_slice()).expect("free");
    let other = loans.lend_owned(vec![0; 10].into_boxed_slice()).expect("free");
    let mut head = one.slice(0, 4);
    assert!(head.join(one.slice(5, 5)).is_err());
    assert!(head.join(other.slice(4, 6)).is_err());
    assert!(head.join(one.slice(4, 6)).is_ok());
    assert_eq!(head.bytes(), one.bytes());
}

/// Goal: shared memory lives as long as a piece of it, and is released before its lender is
/// notified, with the information whether bytes were copied.
#[test]
fn shared_memory_is_kept_until_the_return() {
    struct Witness(std::sync::Mutex<Option<std::sync::Weak<Vec<u8>>>>, AtomicU64);
    impl Lender for Witness {
        fn returned(&self, token: u64, copied: bool) {
            let memory = self.0.lock().expect("no panic").take().expect("returned once");
            assert_eq!(memory.strong_count(), 0, "released first");
            self.1.store(token + u64::from(copied), Ordering::Relaxed);
        }
    }
    let memory = Arc::new((0..100).collect::<Vec<u8>>());
    let weak = std::sync::Mutex::new(Some(Arc::downgrade(&memory)));
    let lender = Arc::new(Witness(weak, AtomicU64::new(0)));
    let mut loans = Loans::new(1);
    let piece = loans.lend_shared(&memory, (10, 50), lender.clone(), 6).expect("free");
    assert!(loans.lend_shared(&memory, (0, 1), lender.clone(), 7).is_none(), "none is free");
    drop(memory);
    let part = piece.slice(40, 10);
    drop(piece);
    assert_eq!(part.bytes().map(|bytes| bytes[0]), Some(50));
    part.mark_copied();
    drop(part);
    assert_eq!(lender.1.load(Ordering::Relaxed), 7);
}

/// Goal: a million loans that are out when their `Loans` is dropped all come back, on any thread,
/// and their group ends once.
#[test]
fn a_million_loans_come_back() {
    // A thousand under Miri, which takes a second.
    const COUNT: usize = if cfg!(miri) { 1_000 } else { 1_000_000 };
    let memory = Arc::new(vec![7u8; 64]);
    let returns = crate::returns::Returns::new(1);
    returns.begin(0);
    let mut loans = Loans::new(COUNT);
    let pieces: Vec<Piece> = (0..COUNT)
        .map(|at| {
            assert!(returns.share(0));
            loans.lend_shared(&memory, (at % 64, 1), returns.clone(), 0).expect("free")
        })
        .collect();
    assert!(loans.lend_shared(&memory, (0, 1), returns.clone(), 0).is_none(), "none is left");
    returns.end(0, false);
    drop(loans);
    std::thread::spawn(move || drop(pieces)).join().expect("no panic");
    let mut reported = 0;
    returns.take(|_, copied| reported += 1 + u32::from(copied));
    assert_eq!((reported, Arc::strong_count(&memory)), (1, 1));
}

/// True if `act` panics.
fn panics<R>(act: impl FnOnce() -> R) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err()
}

/// Goal: rejected holders are not counted, so a loan ends with its last piece even if its caller
/// survives panics.
#[test]
fn refused_holders_are_not_counted() {
    let memory = vec![7u8; 100];
    let lender = Arc::new(Returns::default());
    let mut loans = Loans::new(1);
    let whole = foreign(&mut loans, &memory, &lender, 42);
    let clone = whole.clone();
    let holders = || whole.loan().holders.load(Ordering::Relaxed);
    for count in [u32::MAX, u32::MAX - 1, HOLDERS_MAX, HOLDERS_MAX - 1] {
        assert!(panics(|| whole.reserve(count)), "{count}");
        assert_eq!(holders(), 2, "{count}");
    }
    let reserved = whole.reserve(HOLDERS_MAX - 2);
    assert!(panics(|| whole.reserve(1)));
    assert!(panics(|| whole.clone()));
    assert_eq!(holders(), HOLDERS_MAX);
    drop(reserved);
    assert_eq!(holders(), 2);
    drop(whole);
    assert_eq!(lender.count.load(Ordering::Relaxed), 0, "a clone is left");
    drop(clone);
    assert_eq!((lender.count.load(Ordering::Relaxed), loans.out_count()), (1, 0));
}

/// Goal: rejected pins are not counted, so later calls still see every reader.
#[test]
fn refused_pins_are_not_counted() {
    let memory = Arc::new(vec![7u8; 100]);
    let lender = Arc::new(Returns::default());
    let mut loans = Loans::new(1);
    let mut piece = loans.lend_recallable(&memory, (0, 100), lender, 1).expect("free");
    let watch = piece.watch().expect("not watched");
    let state = || piece.loan().state.load(Ordering::Relaxed);
    let before = state();
    // Counts as many pins as views that were leaked.
    piece.loan().state.store(before + PINS_MAX * PIN, Ordering::Relaxed);
    assert!(panics(|| drop(piece.view())));
    assert!(panics(|| drop(piece.pin())));
    assert_eq!(state(), before + PINS_MAX * PIN);
    piece.loan().state.store(before, Ordering::Relaxed);
    drop(piece.view());
    assert_eq!(state(), before);
    drop(watch);
}
