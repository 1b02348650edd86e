//! A list of sources that are ready: any thread marks a source, one owner takes them and may sleep.
//!
//! The owner adds an entry for each source and gives a [`Raiser`] to the threads that signal it.
//! Raising an entry that is ready already costs one atomic operation and does not list it again;
//! the number of raises is counted. The owner takes all ready entries at once, in the order in
//! which they became ready.
//!
//! # Theory of operation
//!
//! Ready entries are linked through themselves, so raising allocates no memory, takes no lock and
//! cannot fail. The head of the list is one word. Before the owner sleeps it arms the empty list by
//! setting that word to a mark. A push that finds the mark rings the doorbell. So either the owner
//! sees the entry and stays awake, or the push sees the mark. The owner takes the whole list at
//! once, so no entry can be pushed again while another thread reads it.
//!
//! An entry leaves the list before the owner checks its source. Later events list it again; earlier
//! ones are seen by the check. An entry that is removed while it is listed keeps its number until
//! it is taken, so the number cannot stand for another entry meanwhile.
//!
//! Any thread may raise. All other calls belong to the owner's thread.

use crate::ring::Doorbell;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};
use alloc::vec::Vec;

/// End of the list.
const NONE: u32 = u32::MAX;
/// An empty list whose owner waits for a doorbell.
const ARMED: u32 = u32::MAX - 1;
/// Bit of [`Entry::state`]: the entry is listed, or about to be.
const LISTED: u32 = 1;
/// Bit of [`Entry::state`]: the owner has removed the entry.
const REMOVED: u32 = 2;

/// Most entries of a list: two numbers are reserved.
pub const ENTRIES_MAX: usize = ARMED as usize;

/// One source.
struct Entry {
    state: AtomicU32,
    /// The entry that became ready before this one.
    next: AtomicU32,
    /// Raises since the entry was taken.
    count: AtomicU64,
}

/// State that the owner shares with raisers.
struct Shared<D> {
    /// The entry that became ready last.
    head: AtomicU32,
    doorbell: D,
}

/// Entries, some of which are ready. See the module text.
pub struct ReadyList<D> {
    shared: Arc<Shared<D>>,
    entries: Vec<Option<Arc<Entry>>>,
    free: Vec<u32>,
    /// Entries taken from the list, the newest first.
    taken: Vec<u32>,
}

impl<D: Doorbell> ReadyList<D> {
    /// A list without entries. `doorbell` wakes the owner.
    pub fn new(doorbell: D) -> Self {
        let shared = Arc::new(Shared { head: AtomicU32::new(NONE), doorbell });
        Self { shared, entries: Vec::new(), free: Vec::new(), taken: Vec::new() }
    }

    /// Adds an entry, which is not ready. `None` at [`ENTRIES_MAX`].
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
    /// If there is no such entry.
    pub fn remove(&mut self, index: u32) {
        let entry = self.entries[index as usize].as_ref().expect("an entry is removed once");
        // AcqRel: pairs with the other changes of `state`. Every later change sees the mark.
        let before = entry.state.fetch_or(REMOVED, Ordering::AcqRel);
        assert_eq!(before & REMOVED, 0, "an entry is removed once");
        if before & LISTED == 0 {
            self.release(index);
        }
    }

    /// Calls `each` with the number of every ready entry and the number of its raises. None of
    /// these entries is ready afterwards.
    pub fn take(&mut self, mut each: impl FnMut(u32, u64)) {
        // Relaxed: a push that is not seen yet is seen by the next call, or finds the list armed.
        if matches!(self.shared.head.load(Ordering::Relaxed), NONE | ARMED) {
            return;
        }
        // Acquire: pairs with the Release of each push on the list.
        let mut at = self.shared.head.swap(NONE, Ordering::Acquire);
        while at < ARMED {
            self.taken.push(at);
            let entry = self.entries[at as usize].as_ref().expect("listed entries stay");
            // Relaxed: the Acquire of the head orders it.
            at = entry.next.load(Ordering::Relaxed);
        }
        while let Some(index) = self.taken.pop() {
            let entry = self.entries[index as usize].as_ref().expect("listed entries stay");
            // AcqRel: pairs with `Raiser::raise`. Earlier raises are visible below and to the check
            // of the source; a later raise lists the entry again.
            let state = entry.state.fetch_and(!LISTED, Ordering::AcqRel);
            if state & REMOVED != 0 {
                self.release(index);
                continue;
            }
            // Relaxed: the change of `state` orders it.
            each(index, entry.count.swap(0, Ordering::Relaxed));
        }
    }

    /// Announces that the owner is going to sleep: from now on the first entry that becomes ready
    /// rings the doorbell. Returns false if an entry is ready already: then the owner must not
    /// sleep. Taking entries disarms the list.
    pub fn arm(&self) -> bool {
        // Relaxed: the mark publishes nothing, and a list that is not empty is taken first.
        match self.shared.head.compare_exchange(NONE, ARMED, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(head) => head == ARMED,
        }
    }

    /// Announces that the owner is awake: no doorbell is needed.
    pub fn disarm(&self) {
        // Relaxed: the mark publishes nothing. If an entry came first, its push has rung.
        let _ =
            self.shared.head.compare_exchange(ARMED, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Numbers in use.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn release(&mut self, index: u32) {
        self.entries[index as usize] = None;
        self.free.push(index);
    }
}

/// Makes one entry ready. Clones raise the same entry.
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

    /// Makes the entry ready. The caller has made the event visible in the source before.
    pub fn raise(&self) {
        // Relaxed: the change of `state` orders it.
        self.entry.count.fetch_add(1, Ordering::Relaxed);
        // AcqRel: pairs with the owner's change in `take`. This writes in any case: if the entry is
        // still listed, the owner's later change sees what was done before.
        if self.entry.state.fetch_or(LISTED, Ordering::AcqRel) != 0 {
            return;
        }
        // Relaxed: the exchange checks the value.
        let mut head = self.shared.head.load(Ordering::Relaxed);
        loop {
            let next = if head == ARMED { NONE } else { head };
            // Relaxed: the exchange publishes it.
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
    fn it_rings_once_for_a_sleeping_thread() {
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
