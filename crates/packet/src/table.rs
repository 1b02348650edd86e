//! A hash table that one thread changes and other threads read without locks.
//!
//! # Theory of operation
//!
//! [`Table`] is the only writer. A [`TableReader`] searches while the writer works, and neither
//! waits for the other. A search that a change may have disturbed finds nothing, and its caller
//! takes a slower way, such as asking the writer's thread. So a miss proves nothing, but a hit is
//! never false: the key had this value, which is the newest one that happened before the search, or
//! a later one.
//!
//! Keys and values are numbers of 64 bits. A key is never zero: zero marks an empty slot. Slots
//! have 16 bytes, in one array with linear probing. At most half of them are in use, so most
//! searches end in the cache line where they begin. Removal closes the gap instead of leaving a
//! tombstone, so the table does not slow down with use.
//!
//! # Memory order
//!
//! One sequence number guards all slots (a seqlock). A *section* puts a key into a slot or takes
//! one out: an insertion, or a removal with the entries that it moves. The number is odd during a
//! section. A search loads it, then key and value, then the number again: it has found something
//! only if both numbers are the same even one.
//!
//! Suppose that a search loads a key or a value that a section stored after the first number was
//! loaded. That section stored its odd number, then came its Release fence, then this store. The
//! search has an Acquire fence behind this load and before its second load of the number. So the
//! fences synchronise, the second load yields the odd number or a later one, and the search finds
//! nothing.
//!
//! Replacing the value of a key needs no section: a search gets the old value or the new one. Its
//! store comes behind the fence of the section that put the key there, and a reader's
//! [`TableReader::exchange`] continues the release sequence of the value that it replaces. So the
//! argument holds for these values, too.

use crate::sync::{AtomicU64, Ordering, fence};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::hash::BuildHasher;

/// The table, as its only writer has it. Reads without checking the sequence number.
pub struct Table<S> {
    shared: Arc<Shared<S>>,
    len: usize,
}

/// Searches a [`Table`] from another thread.
pub struct TableReader<S> {
    shared: Arc<Shared<S>>,
}

/// A key's value, as a reader found it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The value.
    pub value: u64,
    place: usize,
}

/// What the threads share. Apart from the slots, a reader loads one line, which is written once per
/// section.
#[repr(align(128))]
struct Shared<S> {
    /// Twice the number of finished sections; one more during a section.
    sequence: AtomicU64,
    slots: Box<[Slot]>,
    mask: usize,
    hash: S,
}

#[repr(align(16))]
struct Slot {
    /// Stored by the writer only.
    key: AtomicU64,
    value: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 16, "four slots in a cache line");

impl<S: BuildHasher> Table<S> {
    /// An empty table with room for `entries_max` keys, whose hashes `hash` makes. If others choose
    /// the keys, the hash must be seeded.
    pub fn new(entries_max: usize, hash: S) -> Self {
        let places = (entries_max.max(1) * PLACES_PER_ENTRY).next_power_of_two();
        let empty = |_| Slot { key: AtomicU64::new(EMPTY), value: AtomicU64::new(0) };
        let slots = (0..places).map(empty).collect();
        let sequence = AtomicU64::new(0);
        Self { shared: Arc::new(Shared { sequence, slots, mask: places - 1, hash }), len: 0 }
    }

    /// A reader for another thread.
    pub fn reader(&self) -> TableReader<S> {
        TableReader { shared: self.shared.clone() }
    }

    /// Inserts a key, or replaces its value and returns the one before.
    ///
    /// # Panics
    /// If the key is zero, or if it is new and the table is full.
    pub fn insert(&mut self, key: u64, value: u64) -> Option<u64> {
        assert!(key != EMPTY, "a key is not zero");
        match self.shared.search(key) {
            Ok(place) => {
                let slot = &self.shared.slots[place];
                let before = slot.load_value();
                // Relaxed: the section that put the key here orders it; see the module text.
                slot.value.store(value, Ordering::Relaxed);
                Some(before)
            }
            Err(place) => {
                // So there is always an empty slot, where a search ends.
                assert!(self.len < self.shared.slots.len() / PLACES_PER_ENTRY, "the table is full");
                self.len += 1;
                self.shared.section(|slots| slots[place].store(key, value));
                None
            }
        }
    }

    /// Removes a key; returns its value.
    pub fn remove(&mut self, key: u64) -> Option<u64> {
        let place = self.shared.search(key).ok()?;
        let value = self.shared.slots[place].load_value();
        self.clear(place);
        Some(value)
    }

    /// Removes the keys for whose values `keep` returns false. Calls it more than once for a kept
    /// value whose entry moved.
    pub fn retain(&mut self, mut keep: impl FnMut(u64) -> bool) {
        for place in 0..self.shared.slots.len() {
            // Closing a gap may move another entry here.
            while let Some((_, value)) = self.shared.slots[place].load()
                && !keep(value)
            {
                self.clear(place);
            }
        }
    }

    /// Value of a key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        let place = self.shared.search(key).ok()?;
        Some(self.shared.slots[place].load_value())
    }

    /// All keys with their values, in no order. Walks the slots.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.shared.slots.iter().filter_map(Slot::load)
    }

    /// Empties a slot, and moves later entries up that could no longer be found across the gap.
    fn clear(&mut self, place: usize) {
        let shared = &*self.shared;
        let distance = |from: usize, to: usize| to.wrapping_sub(from) & shared.mask;
        shared.section(|slots| {
            let (mut gap, mut next) = (place, place);
            loop {
                next = (next + 1) & shared.mask;
                let Some((key, value)) = slots[next].load() else { break };
                if distance(shared.home(key), next) >= distance(gap, next) {
                    slots[gap].store(key, value);
                    gap = next;
                }
            }
            slots[gap].store(EMPTY, 0);
        });
        self.len -= 1;
    }
}

impl<S: BuildHasher> TableReader<S> {
    /// Searches a key. `None` if it is not there, or if the writer inserts or removes a key at this
    /// moment.
    #[inline]
    pub fn find(&self, key: u64) -> Option<Found> {
        let shared = &*self.shared;
        // Acquire: pairs with the Release at the end of a section, for the slots.
        let before = shared.sequence.load(Ordering::Acquire);
        let place = shared.search(key).ok()?;
        let value = shared.slots[place].load_value();
        // Acquire: pairs with the Release fence of a section whose key or value was loaded.
        fence(Ordering::Acquire);
        // Relaxed: the fence orders it.
        let after = shared.sequence.load(Ordering::Relaxed);
        (before == after && before & 1 == 0).then_some(Found { value, place })
    }

    /// Replaces a value that was found, unless it was replaced or moved meanwhile; returns true if
    /// it replaced one.
    ///
    /// Meanwhile the slot may have got another key with the same value, whose value is replaced
    /// then. So the new value must be right for each key that has the found value.
    pub fn exchange(&self, found: Found, value: u64) -> bool {
        let slot = &self.shared.slots[found.place].value;
        // Relaxed: nothing else is published. As a read-modify-write operation it continues the
        // release sequence of the value that it replaces.
        slot.compare_exchange(found.value, value, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl<S: BuildHasher> Shared<S> {
    /// Slot of a key, or the empty slot where the search ended. A reader that searches during
    /// sections may see no empty slot, so a search ends after one round, too.
    #[inline]
    fn search(&self, key: u64) -> Result<usize, usize> {
        let home = self.home(key);
        let mut place = home;
        loop {
            // Relaxed: the writer stored it itself; readers check the sequence number.
            match self.slots[place].key.load(Ordering::Relaxed) {
                EMPTY => return Err(place),
                found if found == key => return Ok(place),
                _ => place = (place + 1) & self.mask,
            }
            if place == home {
                return Err(place);
            }
        }
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        self.hash.hash_one(key) as usize & self.mask
    }

    /// Changes slots while the sequence number is odd. Only the writer calls it. Should `change`
    /// panic, the number stays odd, and readers find nothing more.
    fn section(&self, change: impl FnOnce(&[Slot])) {
        // Relaxed: only this thread stores it.
        let number = self.sequence.load(Ordering::Relaxed);
        // Relaxed: the fence orders it before all stores of the section.
        self.sequence.store(number + 1, Ordering::Relaxed);
        // Release: pairs with the Acquire fence of a search that loads a key or value of this
        // section, or a value that replaced one.
        fence(Ordering::Release);
        change(&self.slots);
        // Release: pairs with the Acquire at the beginning of a search.
        self.sequence.store(number + 2, Ordering::Release);
    }
}

impl Slot {
    /// Key and value; `None` if it is empty. For the writer.
    #[inline]
    fn load(&self) -> Option<(u64, u64)> {
        // Relaxed: the writer stored it itself.
        let key = self.key.load(Ordering::Relaxed);
        (key != EMPTY).then(|| (key, self.load_value()))
    }

    #[inline]
    fn load_value(&self) -> u64 {
        // Relaxed: the writer stored it itself, or may miss what a reader exchanged; readers check
        // the sequence number.
        self.value.load(Ordering::Relaxed)
    }

    /// For the writer, in a section.
    fn store(&self, key: u64, value: u64) {
        // Relaxed: the section orders it.
        self.value.store(value, Ordering::Relaxed);
        // Relaxed: the section orders it.
        self.key.store(key, Ordering::Relaxed);
    }
}

/// Key of an empty slot.
const EMPTY: u64 = 0;

/// Slots per possible key: at most half of them are in use.
const PLACES_PER_ENTRY: usize = 2;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::counted::{Counts, count};
    use alloc::collections::BTreeMap;
    use core::hash::Hasher;
    use proptest::prelude::*;

    /// Few homes, so that entries displace each other and wrap around the end.
    struct Clustered;

    struct Sum(u64);

    impl BuildHasher for Clustered {
        type Hasher = Sum;

        fn build_hasher(&self) -> Sum {
            Sum(13)
        }
    }

    impl Hasher for Sum {
        fn write(&mut self, bytes: &[u8]) {
            self.0 += bytes.iter().map(|&byte| u64::from(byte % 4)).sum::<u64>();
        }

        fn finish(&self) -> u64 {
            self.0
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64, u64),
        Remove(u64),
        Retain(u64),
        Exchange(u64, u64),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let key = 1..12u64;
        prop_oneof![
            4 => (key.clone(), 0..6u64).prop_map(|(key, value)| Step::Insert(key, value)),
            3 => key.clone().prop_map(Step::Remove),
            1 => (0..6u64).prop_map(Step::Retain),
            1 => (key, 0..6u64).prop_map(|(key, value)| Step::Exchange(key, value)),
        ]
    }

    /// Goal: readers share the table without moving its cache lines between processors: a search,
    /// found or not, does no read-modify-write and no full fence. Only an exchange does one.
    #[test]
    fn a_search_changes_nothing() {
        let mut table = Table::new(8, Clustered);
        table.insert(1, 7);
        let reader = table.reader();
        let mut found = None;
        let searched = count(|| {
            found = reader.find(1);
            assert!(reader.find(2).is_none());
        });
        assert_eq!(searched, Counts::default());
        let exchanged = count(|| assert!(reader.exchange(found.expect("it is there"), 8)));
        assert_eq!(exchanged, Counts { changes: 1, fences: 0 });
    }

    proptest! {
        /// Goal: after any changes, the writer and a reader find what a map finds.
        #[test]
        fn the_table_is_a_map(steps in prop::collection::vec(any_step(), 0..100)) {
            let mut table = Table::new(8, Clustered);
            let reader = table.reader();
            let mut map = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(key, value) if map.len() < 8 || map.contains_key(&key) => {
                        prop_assert_eq!(table.insert(key, value), map.insert(key, value));
                    }
                    Step::Insert(..) => {}
                    Step::Remove(key) => prop_assert_eq!(table.remove(key), map.remove(&key)),
                    Step::Retain(bound) => {
                        table.retain(|value| value < bound);
                        map.retain(|_, value| *value < bound);
                    }
                    Step::Exchange(key, value) => {
                        if let Some(found) = reader.find(key) {
                            prop_assert!(reader.exchange(found, value));
                            prop_assert!(found.value == value || !reader.exchange(found, value));
                            map.insert(key, value);
                        }
                    }
                }
                for key in 1..12 {
                    let expected = map.get(&key).copied();
                    prop_assert_eq!(table.get(key), expected);
                    prop_assert_eq!(reader.find(key).map(|found| found.value), expected);
                }
                let all: BTreeMap<u64, u64> = table.iter().collect();
                prop_assert_eq!(&all, &map);
            }
        }
    }
}
