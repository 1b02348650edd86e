//! The list of sources with news: nothing is lost, nothing is taken for another, a sleeping owner
//! is woken.

use super::ring::{Bell, bounded};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use towpath_packet::ready::ReadyList;
use towpath_packet::ring::Silent;

/// What a source has, which loom checks for races: its thread fills it before it raises.
struct Source(UnsafeCell<u32>);

unsafe impl Send for Source {}
unsafe impl Sync for Source {}

/// Goal: an owner that sleeps whenever the list is empty hears of two sources, and sees what they
/// did before. Fails without Release and Acquire of `head`.
#[test]
fn a_sleeping_owner_hears_of_each_source() {
    bounded(2, || {
        let bell = Bell(Arc::new(Notify::new()));
        let mut list = ReadyList::new(bell.clone());
        let sources = [0, 1].map(|_| {
            let (raiser, source) = (list.add().unwrap(), Arc::new(Source(UnsafeCell::new(0))));
            let theirs = source.clone();
            let thread = thread::spawn(move || {
                theirs.0.with_mut(|value| unsafe { *value = 7 });
                raiser.raise();
            });
            (source, thread)
        });
        let mut seen = 0;
        while seen < 2 {
            list.take(|index, count| {
                assert_eq!(count, 1);
                sources[index as usize].0.0.with(|value| assert_eq!(unsafe { *value }, 7));
                seen += 1;
            });
            if seen < 2 && list.arm() {
                bell.0.wait();
                // The owner may have been woken by something else as well.
                list.disarm();
            }
        }
        for (_, thread) in sources {
            thread.join().unwrap();
        }
    });
}

/// Goal: what was done before the raise of an entry that is listed already is seen by the look that
/// follows, or by a later one. Fails without Acquire where the owner unlists an entry.
#[test]
fn a_raise_of_a_listed_entry_is_heard() {
    bounded(2, || {
        let bell = Bell(Arc::new(Notify::new()));
        let mut list = ReadyList::new(bell.clone());
        let (raiser, news) = (list.add().unwrap(), Arc::new(AtomicU32::new(0)));
        raiser.raise();
        let theirs = news.clone();
        let other = thread::spawn(move || {
            // Relaxed: ordered by the raise.
            theirs.store(7, Ordering::Relaxed);
            raiser.raise();
        });
        let mut seen = false;
        while !seen {
            list.take(|_, _| seen = news.load(Ordering::Relaxed) == 7);
            if !seen && list.arm() {
                bell.0.wait();
            }
        }
        other.join().unwrap();
    });
}

/// Goal: each raise counts once, however it falls between those of another and the taking.
#[test]
fn every_raise_counts() {
    bounded(3, || {
        let mut list = ReadyList::new(Silent);
        let raiser = list.add().unwrap();
        let theirs = raiser.clone();
        let other = thread::spawn(move || {
            theirs.raise();
            theirs.raise();
        });
        let mut total = 0;
        raiser.raise();
        list.take(|_, count| total += count);
        other.join().unwrap();
        list.take(|_, count| total += count);
        assert_eq!(total, 3);
    });
}

/// Goal: a raise beside a removal is not taken for the entry that comes after, and the list holds
/// together.
#[test]
fn a_stale_raise_is_for_nobody() {
    bounded(3, || {
        let mut list = ReadyList::new(Silent);
        let old = list.add().unwrap();
        let (number, theirs) = (old.index(), old);
        let other = thread::spawn(move || theirs.raise());
        list.remove(number);
        let new = list.add().unwrap();
        let mut taken = Vec::new();
        list.take(|index, count| taken.push((index, count)));
        assert_eq!(taken, []);
        new.raise();
        other.join().unwrap();
        list.take(|index, count| taken.push((index, count)));
        assert_eq!(taken, [(new.index(), 1)]);
        assert_eq!(list.len(), 1);
    });
}
