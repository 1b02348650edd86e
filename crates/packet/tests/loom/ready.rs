//! The list of ready sources: no event is lost or assigned to another source, and a sleeping owner
//! is woken.

use super::ring::{Bell, bounded};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use towpath_packet::ready::ReadyList;
use towpath_packet::ring::Silent;

/// Data of a source, which loom checks for races: its thread writes it before it raises.
struct Source(UnsafeCell<u32>);

unsafe impl Send for Source {}
unsafe impl Sync for Source {}

/// Goal: an owner that sleeps whenever the list is empty learns of two sources and sees what they
/// did before. Fails without Release and Acquire of `head`.
#[test]
fn a_sleeping_owner_wakes_for_each_source() {
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
                // Something else may have woken the owner, too.
                list.disarm();
            }
        }
        for (_, thread) in sources {
            thread.join().unwrap();
        }
    });
}

/// Goal: what was done before an entry that is already listed is raised is visible to the next
/// check or to a later one. Fails without the Acquire where the owner unlists an entry.
#[test]
fn a_raise_of_a_listed_entry_is_seen() {
    bounded(2, || {
        let bell = Bell(Arc::new(Notify::new()));
        let mut list = ReadyList::new(bell.clone());
        let (raiser, news) = (list.add().unwrap(), Arc::new(AtomicU32::new(0)));
        raiser.raise();
        let theirs = news.clone();
        let other = thread::spawn(move || {
            // Relaxed: the raise orders it.
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

/// Goal: each raise counts once, for every interleaving with other raises and with taking.
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

/// Goal: a raise concurrent with a removal is not assigned to a later entry, and the list stays
/// consistent.
#[test]
fn a_stale_raise_has_no_effect() {
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
