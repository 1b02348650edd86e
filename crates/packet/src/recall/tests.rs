//! Recall: what readers see, when the lender is notified, and the state after a failure.

use super::*;
use crate::lend::Loans;
use crate::loan::{Lender, Pins};
use crate::sync::AtomicU64;
use alloc::sync::Arc;
extern crate std;
use std::vec;

/// Records how often it was notified, and how often with copies.
#[derive(Default)]
struct Reported {
    count: AtomicU64,
    copied: AtomicU64,
}

impl Reported {
    fn is(&self, count: u64, copied: u64) -> bool {
        self.count.load(Ordering::Relaxed) == count && self.copied.load(Ordering::Relaxed) == copied
    }
}

impl Lender for Reported {
    fn returned(&self, _: u64, copied: bool) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.copied.fetch_add(copied.into(), Ordering::Relaxed);
    }
}

/// A loan of `memory`, which the caller does not touch until `reported` was notified.
fn lend(loans: &mut Loans, memory: &mut [u8], reported: &Arc<Reported>) -> Piece {
    let base = NonNull::from(&mut *memory).cast();
    // SAFETY: the caller keeps the memory valid until `reported` is notified, as this function
    // says.
    unsafe { loans.lend_foreign(base, memory.len() as u32, reported.clone(), 1) }.expect("free")
}

fn read(piece: &Piece) -> Vec<u8> {
    let mut bytes = vec![0; piece.len()];
    Ledger::new().copy(Site::Linearise, piece, &mut bytes);
    bytes
}

/// Goal: pins of consecutive pieces hold a loan from its first piece to the first piece of another
/// loan. Pieces recalled before show the copy.
#[test]
fn pins_hold_one_loan_at_a_time() {
    let (reported, mut loans, ledger) =
        (Arc::new(Reported::default()), Loans::new(2), Ledger::new());
    let (mut one, mut other) = (vec![7_u8; 100], vec![8_u8; 100]);
    let mut pieces =
        [lend(&mut loans, &mut one, &reported), lend(&mut loans, &mut other, &reported)];
    let mut watches = pieces.each_mut().map(|piece| piece.watch().expect("the only holder"));
    let second = pieces[0].slice(50, 10);
    let mut pins = Pins::new();
    let first = pins.address(&pieces[0]);
    assert_eq!(pins.address(&second), first.wrapping_add(50));
    assert_eq!(watches[0].recall(&ledger), Recall::Busy);
    assert_eq!(pins.address(&pieces[0]), first, "as long as it is pinned it is the old memory");
    assert!(reported.is(0, 0));
    let last = pins.address(&pieces[1]);
    assert_eq!(watches[0].recall(&ledger), Recall::Done);
    assert_ne!(pins.address(&second), first.wrapping_add(50));
    assert_eq!(watches[1].recall(&ledger), Recall::Done, "no longer pinned");
    assert_ne!(pins.address(&pieces[1]), last);
    drop(pins);
    assert!(reported.is(2, 2));
    drop((pieces, second, watches));
    assert_eq!(loans.out_count(), 0);
}

/// Goal: after a recall the lender may write at once. Pieces made before and after it show the
/// former bytes, to copies and to system calls.
#[test]
fn memory_goes_back_while_pieces_keep_its_bytes() {
    let (reported, mut loans, ledger) =
        (Arc::new(Reported::default()), Loans::new(1), Ledger::new());
    let mut memory = vec![7_u8; 100];
    memory[50] = 8;
    let mut piece = lend(&mut loans, &mut memory, &reported);
    let mut watch = piece.watch().expect("the first holder");
    let tail = piece.slice(50, 50);
    assert_eq!(watch.recall(&ledger), Recall::Done);
    assert!(reported.is(1, 1));
    memory.fill(0);
    assert_eq!((read(&tail)[0], read(&piece)[0]), (8, 7));
    let pinned = tail.pin();
    // SAFETY: the address is that of the first byte of a piece that is pinned.
    assert_eq!(unsafe { pinned.address().read() }, 8);
    drop(pinned);
    assert_eq!(ledger.copied_at(Site::Recall), 100);
    assert_eq!(watch.recall(&ledger), Recall::Gone, "once is enough");
    assert_eq!(ledger.copied_at(Site::Recall), 100, "and copies once");
    drop((piece, tail));
    assert!(reported.is(1, 1), "notified once");
    assert_eq!(watch.recall(&ledger), Recall::Gone);
    assert_eq!(loans.out_count(), 1);
    drop(watch);
    assert_eq!(loans.out_count(), 0);
}

/// Goal: a system call that uses the address keeps the memory. The next recall after it succeeds,
/// and readers in between get the copy.
#[test]
fn a_pin_holds_the_memory_and_no_longer() {
    let (reported, mut loans, ledger) =
        (Arc::new(Reported::default()), Loans::new(1), Ledger::new());
    let mut memory = vec![7_u8; 10];
    let before = memory.as_ptr();
    let mut piece = lend(&mut loans, &mut memory, &reported);
    let mut watch = piece.watch().expect("the first holder");
    let pinned = piece.pin();
    assert_eq!(pinned.address(), before);
    for _ in 0..2 {
        assert_eq!(watch.recall(&ledger), Recall::Busy);
        assert!(reported.is(0, 0));
        assert_ne!(piece.pin().address(), before);
    }
    drop(pinned);
    assert_eq!(watch.recall(&ledger), Recall::Done);
    assert!(reported.is(1, 1));
    assert_eq!(ledger.copied_at(Site::Recall), 10);
}

/// Goal: the end of a watch does not affect the loan, before the loan's end or after it.
#[test]
fn a_loan_outlives_its_watch() {
    let (reported, mut loans, ledger) =
        (Arc::new(Reported::default()), Loans::new(2), Ledger::new());
    let mut memory = vec![1_u8; 10];
    let mut piece = lend(&mut loans, &mut memory, &reported);
    drop(piece.watch().expect("the first holder"));
    let watch = piece.watch().expect("another one");
    assert!(piece.watch().is_none(), "one at a time");
    drop(watch);
    drop(piece);
    assert!(reported.is(1, 0));
    assert_eq!(loans.out_count(), 0);

    // Swapped, but not returned by the watch: the end of the loan returns it, with `copied` set.
    let mut piece = lend(&mut loans, &mut memory, &reported);
    let mut watch = piece.watch().expect("the first holder");
    let pinned = piece.pin();
    assert_eq!(watch.recall(&ledger), Recall::Busy);
    drop((pinned, watch));
    assert!(reported.is(1, 0));
    drop(piece);
    assert!(reported.is(2, 1));
    assert_eq!(loans.out_count(), 0);
}

#[test]
fn private_and_shared_loans_have_no_watch() {
    let (reported, mut loans) = (Arc::new(Reported::default()), Loans::new(3));
    let mut owned = loans.lend_owned(vec![1; 4].into_boxed_slice()).expect("free");
    assert!(owned.watch().is_none());
    let memory = Arc::new(vec![2_u8; 8]);
    let mut shared = loans.lend_shared(&memory, (0, 8), reported.clone(), 1).expect("free");
    assert!(shared.watch().is_none());
    let mut piece = loans.lend_recallable(&memory, (2, 6), reported.clone(), 1).expect("free");
    let other = piece.clone();
    assert!(piece.watch().is_none(), "another holder would not see the watch");
    drop(other);
    assert!(piece.watch().is_some());
}

/// Goal: a recall releases memory that was kept for the loan before it notifies the lender.
#[test]
fn recalled_memory_is_kept_no_longer() {
    let (reported, mut loans, ledger) =
        (Arc::new(Reported::default()), Loans::new(1), Ledger::new());
    let mut memory = Arc::new(vec![3_u8; 8]);
    let mut piece = loans.lend_as_foreign(&memory, (2, 4), reported.clone(), 1).expect("free");
    assert!(piece.bytes().is_none() && piece.view().is_none(), "foreign memory");
    let mut watch = piece.watch().expect("the first holder");
    assert!(Arc::get_mut(&mut memory).is_none());
    assert_eq!(watch.recall(&ledger), Recall::Done);
    Arc::get_mut(&mut memory).expect("ours alone").fill(0);
    assert_eq!(read(&piece), [3; 4]);
    assert!(reported.is(1, 1));
}

/// Goal: the lender is notified even if only a watch is left when the `Loans` and all pieces are
/// gone.
#[test]
fn a_watch_keeps_the_descriptor_only() {
    let (reported, mut loans, ledger) =
        (Arc::new(Reported::default()), Loans::new(1), Ledger::new());
    let mut memory = vec![1_u8; 10];
    let mut piece = lend(&mut loans, &mut memory, &reported);
    let mut watch = piece.watch().expect("the first holder");
    drop(loans);
    drop(piece);
    assert!(reported.is(1, 0));
    assert_eq!((watch.recall(&ledger), watch.bytes()), (Recall::Gone, 10));
}

/// Goal: memory that is not written can be read although it may go back: a view of the old memory
/// keeps it; a view made after the recall shows the copy and keeps nothing.
#[test]
fn a_view_keeps_the_memory_that_it_shows() {
    let (reported, mut loans, ledger) =
        (Arc::new(Reported::default()), Loans::new(1), Ledger::new());
    let mut memory = Arc::new(vec![4_u8, 5, 6, 7]);
    let mut piece = loans.lend_recallable(&memory, (1, 3), reported.clone(), 1).expect("free");
    assert!(piece.bytes().is_none(), "no lasting reference to memory that may go back");
    assert!(piece.is_recallable() && !piece.is_foreign());
    let mut watch = piece.watch().expect("the first holder");
    let part = piece.slice(1, 2);
    let old = part.view().expect("not foreign");
    assert_eq!(watch.recall(&ledger), Recall::Busy);
    let new = part.view().expect("the copy");
    assert_eq!((&old[..], &new[..]), (&[6, 7][..], &[6, 7][..]));
    assert_eq!(old.as_ptr(), &raw const memory[2]);
    drop(old);
    assert_eq!(watch.recall(&ledger), Recall::Done);
    Arc::get_mut(&mut memory).expect("ours alone").fill(0);
    assert_eq!(&new[..], [6, 7]);
    assert_eq!(read(&piece), [5, 6, 7]);
    assert!(reported.is(1, 1));
}
