//! Model checks: every interleaving of two threads that share loans and slabs.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p towpath-packet --test loom --release`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::{AtomicUsize, Ordering};
use towpath_packet::pool::Pool;
use towpath_packet::slab::{Slab, give_back};
use towpath_packet::{Lender, Loans, Returns};

/// A slot value whose accesses loom checks for races.
struct Watched(UnsafeCell<u32>);

unsafe impl Sync for Watched {}

struct Carry<T>(std::ptr::NonNull<T>);

unsafe impl<T> Send for Carry<T> {}

/// Goal: what a giver did with a slot happened before the owner hands it out again.
#[test]
fn a_slot_given_back_elsewhere_is_handed_over_whole() {
    loom::model(|| {
        let mut slab = Slab::new(1, |_| Watched(UnsafeCell::new(0)));
        let slot = Carry(slab.take().unwrap());
        let giver = thread::spawn(move || {
            let slot = slot;
            unsafe { slot.0.as_ref() }.value().0.with_mut(|value| unsafe { *value = 1 });
            unsafe { give_back(slot.0) };
        });
        if let Some(slot) = slab.take() {
            let value = unsafe { slot.as_ref() }.value().0.with(|value| unsafe { *value });
            assert_eq!(value, 1);
            unsafe { give_back(slot) };
        }
        giver.join().unwrap();
    });
}

/// Goal: two givers lose no slot.
#[test]
fn two_givers_lose_nothing() {
    loom::model(|| {
        let mut slab = Slab::new(2, |_| ());
        let slots = [Carry(slab.take().unwrap()), Carry(slab.take().unwrap())];
        let givers = slots.map(|slot| {
            thread::spawn(move || {
                let slot = slot;
                unsafe { give_back(slot.0) }
            })
        });
        for giver in givers {
            giver.join().unwrap();
        }
        assert_eq!(slab.free_count(), 2);
        assert!(slab.take().is_some() && slab.take().is_some() && slab.take().is_none());
    });
}

/// Goal: storage is freed once, whoever comes last: the owner or a giver. Loom reports a double
/// free or a leak of its own objects, which live in the slots.
#[test]
fn storage_is_freed_once_by_whoever_is_last() {
    loom::model(|| {
        let mut slab = Slab::new(2, |_| Watched(UnsafeCell::new(0)));
        let slots = [Carry(slab.take().unwrap()), Carry(slab.take().unwrap())];
        let givers = slots.map(|slot| {
            thread::spawn(move || {
                let slot = slot;
                unsafe { give_back(slot.0) }
            })
        });
        drop(slab);
        for giver in givers {
            giver.join().unwrap();
        }
    });
}

struct Count(AtomicUsize);

impl Lender for Count {
    fn returned(&self, _: u64, _: bool) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Goal: pieces dropped on two threads return their loan exactly once.
#[test]
fn a_loan_shared_by_two_threads_returns_once() {
    loom::model(|| {
        let count = std::sync::Arc::new(Count(AtomicUsize::new(0)));
        let memory = 7u64.to_ne_bytes();
        let mut loans = Loans::new(1);
        let base = std::ptr::NonNull::from(&memory[..]).cast();
        let piece = unsafe { loans.lend_foreign(base, 8, count.clone(), 1) }.unwrap();
        let other = piece.slice(2, 3);
        let dropper = thread::spawn(move || drop(other));
        let third = piece.clone();
        drop(piece);
        drop(third);
        dropper.join().unwrap();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(loans.out_count(), 0);
    });
}

/// Goal: a frame freed on another thread can be taken again and is then held once.
#[test]
fn a_frame_freed_elsewhere_is_taken_again() {
    loom::model(|| {
        let mut pool = Pool::new(1, 64);
        let piece = pool.take().unwrap().freeze(8);
        let clone = piece.clone();
        let token = Arc::new(());
        let held = token.clone();
        let dropper = thread::spawn(move || {
            drop(clone);
            drop(held);
        });
        drop(piece);
        if let Some(frame) = pool.take() {
            drop(frame);
        }
        dropper.join().unwrap();
        assert_eq!(pool.out_count(), 0);
    });
}

/// Goal: a group whose shares end on two threads while its owner looks and lends on is told once
/// for each time that it was begun, and says that it was copied.
#[test]
fn a_group_ends_once_while_its_owner_looks() {
    loom::model(|| {
        let returns = Returns::new(2);
        returns.begin(0);
        assert!(returns.share(0));
        returns.begin(1);
        let givers = [(0, true), (1, false)].map(|(group, copied)| {
            let returns = returns.clone();
            thread::spawn(move || returns.end(group, copied))
        });
        let mut told = [0, 0];
        let mut was_copied = false;
        let mut look = |returns: &Returns| {
            returns.take(|group, copied| {
                told[group as usize] += 1;
                was_copied |= group == 0 && copied;
            });
        };
        look(&returns);
        // Another call joins the group if it is not over.
        if returns.share(0) {
            returns.end(0, false);
        }
        returns.end(0, false);
        for giver in givers {
            giver.join().unwrap();
        }
        look(&returns);
        assert_eq!((told, was_copied), ([1, 1], true));
    });
}
