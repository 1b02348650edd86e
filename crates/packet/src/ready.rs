//! Which of many sources have news: told by any thread, heard by one owner, who may sleep.
//!
//! An owner adds an entry for each source and gives a [`Raiser`] to whoever has the source's news.
//! Raising an entry that is ready already costs one atomic operation and lists it once; how often
//! it was raised is counted. The owner takes all that are ready at once, in the order in which they
//! became ready.
//!
//! # Theory of operation
//!
//! Entries that are ready are linked through themselves, so that raising needs no memory, takes no
//! lock and cannot fail. The list's head is one word. An owner who is going to sleep arms the empty
//! list by that word, and the push that finds it armed rings the doorbell: either the owner sees
//! the entry and stays awake, or the push sees the mark. The owner takes the whole list at once, so
//! that no entry can be pushed again while somebody looks at it.
//!
//! An entry leaves the list before its owner looks at its source. News that come later list it
//! again; what came before is seen. An entry that is removed while it is listed keeps its number
//! until it was taken, so that the number cannot stand for another one meanwhile.
//!
//! Any thread may raise; all else is for the owner's thread.

use crate::ring::Doorbell;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};
use alloc::vec::Vec;

/// End of the list.
const NONE: u32 = u32::MAX;
/// An empty list whose owner wants to hear of the next entry.
const ARMED: u32 = u32::MAX - 1;
/// Bit of [`Entry::state`]: it is listed, or about to be.
const LISTED: u32 = 1;
/// Bit of [`Entry::state`]: its owner has removed it.
const REMOVED: u32 = 2;

/// Most entries of a list: two numbers mean something else.
pub const ENTRIES_MAX: usize = ARMED as usize;

/// One source.
struct Entry {
    state: AtomicU32,
    /// The entry that became ready before this one.
    next: AtomicU32,
    /// How often it was raised since it was taken.
    count: AtomicU64,
}

/// What the owner shares with those who raise.
struct Shared<D> {
    /// The entry that became ready last.
    head: AtomicU32,
    doorbell: D,
}

/// Entries, and which of them are ready. See the module's documentation.
pub struct ReadyList<D> {
    shared: Arc<Shared<D>>,
    entries: Vec<Option<Arc<Entry>>>,
    free: Vec<u32>,
    /// Taken from the list, the last one first.
    taken: Vec<u32>,
}

impl<D: Doorbell> ReadyList<D> {
    /// No entries. `doorbell` wakes the owner.
    pub fn new(doorbell: D) -> Self {
        let shared = Arc::new(Shared { head: AtomicU32::new(NONE), doorbell });
        Self { shared, entries: Vec::new(), free: Vec::new(), taken: Vec::new() }
    }

    /// A new entry, which is not ready. `None` at [`ENTRIES_MAX`].
    pub fn add(&mut self) -> Option<Raiser<D>> {
        let entry = Arc::new(Entry {
            state: AtomicU32::new(0),
            next: AtomicU32::new(NONE),
            count: AtomicU64::new(0),
        });
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.entries.len() >= ENTRIES_MAX => return None,
            None => {
                self.entries.push(None);
                self.entries.len() as u32 - 1
            }
        };
        self.entries[index as usize] = Some(entry.clone());
        Some(Raiser { shared: self.shared.clone(), entry, index })
    }

    /// Removes an entry: raising it has no effect from now on, and it is not taken any more.
    ///
    /// # Panics
    /// If it is no entry.
    pub fn remove(&mut self, index: u32) {
        let entry = self.entries[index as usize].as_ref().expect("an entry is removed once");
        // AcqRel: pairs with the other changes of `state`; whoever changes it later sees the mark.
        let before = entry.state.fetch_or(REMOVED, Ordering::AcqRel);
        assert_eq!(before & REMOVED, 0, "an entry is removed once");
        if before & LISTED == 0 {
            self.release(index);
        }
    }

    /// Calls `each` with the number of every entry that is ready and how often it was raised. None
    /// of them is ready any more.
    pub fn take(&mut self, mut each: impl FnMut(u32, u64)) {
        // Relaxed: a push that is not seen yet is seen the next time, or finds the list armed.
        if matches!(self.shared.head.load(Ordering::Relaxed), NONE | ARMED) {
            return;
        }
        // Acquire: pairs with the Release of each push that is on the list.
        let mut at = self.shared.head.swap(NONE, Ordering::Acquire);
        while at < ARMED {
            self.taken.push(at);
            let entry = self.entries[at as usize].as_ref().expect("listed entries stay");
            // Relaxed: ordered by the head.
            at = entry.next.load(Ordering::Relaxed);
        }
        while let Some(index) = self.taken.pop() {
            let entry = self.entries[index as usize].as_ref().expect("listed entries stay");
            // AcqRel: who raised before this is seen below and by whoever looks at the source; who
            // raises after it lists the entry again. Pairs with `Raiser::raise`.
            let state = entry.state.fetch_and(!LISTED, Ordering::AcqRel);
            if state & REMOVED != 0 {
                self.release(index);
                continue;
            }
            // Relaxed: ordered by `state`.
            each(index, entry.count.swap(0, Ordering::Relaxed));
        }
    }

    /// The owner is going to sleep: from now on the first entry that becomes ready rings the
    /// doorbell. False if one is ready already: then the owner must not sleep. Taking ends it.
    pub fn arm(&self) -> bool {
        // Relaxed: the mark publishes nothing, and a list that is not empty is taken first.
        match self.shared.head.compare_exchange(NONE, ARMED, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(head) => head == ARMED,
        }
    }

    /// The owner does not sleep any more: nobody needs to ring.
    pub fn disarm(&self) {
        // Relaxed: as in `arm`. If an entry came first, it has rung.
        let _ =
            self.shared.head.compare_exchange(ARMED, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Numbers that are in use.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn release(&mut self, index: u32) {
        self.entries[index as usize] = None;
        self.free.push(index);
    }
}

/// Makes one entry ready. Clones are for the same one.
pub struct Raiser<D> {
    shared: Arc<Shared<D>>,
    entry: Arc<Entry>,
    index: u32,
}

impl<D: Doorbell> Raiser<D> {
    /// The entry's number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Makes the entry ready. What it is about was done before.
    pub fn raise(&self) {
        // Relaxed: ordered by `state`.
        self.entry.count.fetch_add(1, Ordering::Relaxed);
        // AcqRel: pairs with the owner's change in `take`. This writes in any case: if the entry is
        // listed still, the owner's change comes after and sees what was done before.
        if self.entry.state.fetch_or(LISTED, Ordering::AcqRel) != 0 {
            return;
        }
        // Relaxed: the exchange looks again.
        let mut head = self.shared.head.load(Ordering::Relaxed);
        loop {
            let next = if head == ARMED { NONE } else { head };
            // Relaxed: published by the exchange.
            self.entry.next.store(next, Ordering::Relaxed);
            // Release: pairs with the Acquire of `take`.
            match self.shared.head.compare_exchange_weak(
                head,
                self.index,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if head == ARMED {
            self.shared.doorbell.ring();
        }
    }
}

impl<D> Clone for Raiser<D> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), entry: self.entry.clone(), index: self.index }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::Silent;
    use alloc::vec;

    fn taken(list: &mut ReadyList<impl Doorbell>) -> Vec<(u32, u64)> {
        let mut taken = Vec::new();
        list.take(|index, count| taken.push((index, count)));
        taken
    }

    #[test]
    fn entries_come_once_and_in_order() {
        let mut list = ReadyList::new(Silent);
        let raisers: Vec<_> = (0..4).map(|_| list.add().expect("room")).collect();
        for index in [2, 0, 2, 3, 2] {
            raisers[index].raise();
        }
        assert_eq!(taken(&mut list), vec![(2, 3), (0, 1), (3, 1)]);
        assert_eq!(taken(&mut list), vec![]);
        raisers[2].clone().raise();
        assert_eq!(taken(&mut list), vec![(2, 1)]);
    }

    #[test]
    fn a_removed_entry_is_not_taken_and_its_number_waits() {
        let mut list = ReadyList::new(Silent);
        let (old, other) = (list.add().expect("room"), list.add().expect("room"));
        old.raise();
        other.raise();
        list.remove(old.index());
        let new = list.add().expect("room");
        assert_ne!(new.index(), old.index(), "it is listed still");
        old.raise();
        assert_eq!(taken(&mut list), vec![(other.index(), 1)]);
        let new = list.add().expect("room");
        assert_eq!((new.index(), list.len()), (old.index(), 3));
        old.raise();
        assert_eq!(taken(&mut list), vec![]);
        new.raise();
        assert_eq!(taken(&mut list), vec![(new.index(), 1)]);
    }

    /// Goal: the doorbell rings for the first entry after arming, and for no other.
    #[test]
    fn it_rings_once_for_who_sleeps() {
        #[derive(Default)]
        struct Count(AtomicU32);
        impl Doorbell for Count {
            fn ring(&self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let bell = alloc::sync::Arc::new(Count::default());
        let rang = || bell.0.load(Ordering::Relaxed);
        let mut list = ReadyList::new(bell.clone());
        let (a, b) = (list.add().expect("room"), list.add().expect("room"));
        a.raise();
        assert!(!list.arm(), "there is one to take");
        assert_eq!((rang(), taken(&mut list).len()), (0, 1));
        assert!(list.arm() && list.arm());
        a.raise();
        b.raise();
        a.raise();
        assert_eq!((rang(), taken(&mut list)), (1, vec![(0, 2), (1, 1)]));
        assert!(list.arm());
        list.disarm();
        b.raise();
        assert_eq!((rang(), taken(&mut list).len()), (1, 1));
    }
}
