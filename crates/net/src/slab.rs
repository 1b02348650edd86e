//! A table whose entries have small, reused indexes, and keys that no other entry ever gets.
//!
//! A key has the index of its place, and the generation of the place: how many entries it had
//! before. So an event or a call for an entry that is gone finds nothing. An index and a generation
//! fit a token of 64 bits, with [`TOKEN_BITS_FREE`] bits to spare.
//!
//! A place may be kept in use by its index alone ([`Slab::claim`]); its value then outlives its
//! entries. All calls take constant time; places are never returned to the allocator.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// Bits that an index and a generation leave free in a token of 64 bits.
pub const TOKEN_BITS_FREE: u32 = 4;
/// The bits of a generation. After so many entries of one place, a key is used again.
pub const GENERATION_MASK: u32 = u32::MAX >> TOKEN_BITS_FREE;

/// Names an entry of a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Index of the place.
    pub index: u32,
    /// Number of entries that the place had before, in the bits of [`GENERATION_MASK`].
    pub generation: u32,
}

/// A table of places.
pub struct Slab<T> {
    places: Vec<(u32, T)>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Number of entries.
    pub fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Number of places, free ones included: indexes are below it.
    pub fn places_len(&self) -> usize {
        self.places.len()
    }

    /// The key of the entry that comes next.
    pub fn next_key(&self) -> Key {
        match self.free.last() {
            Some(&index) => self.key(index),
            None => Key { index: self.places.len() as u32, generation: 0 },
        }
    }

    /// The key of the entry at a place, or of the next entry at a free place.
    pub fn key(&self, index: u32) -> Key {
        Key { index, generation: self.places[index as usize].0 }
    }

    /// The value of a place, unless its entry is gone.
    pub fn place(&self, key: Key) -> Option<&T> {
        let (generation, value) = self.places.get(key.index as usize)?;
        (*generation == key.generation).then_some(value)
    }

    /// The value of a place, unless its entry is gone.
    pub fn place_mut(&mut self, key: Key) -> Option<&mut T> {
        let (generation, value) = self.places.get_mut(key.index as usize)?;
        (*generation == key.generation).then_some(value)
    }

    /// The values of all places, free ones included.
    pub fn places(&self) -> impl Iterator<Item = &T> {
        self.places.iter().map(|(_, value)| value)
    }

    /// The values of all places, free ones included.
    pub fn places_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().map(|(_, value)| value)
    }

    /// Takes a free place, with the value that its last entry left there, or adds one.
    pub fn claim(&mut self) -> Key
    where
        T: Default,
    {
        let key = self.next_key();
        if self.free.pop().is_none() {
            self.places.push((0, T::default()));
        }
        key
    }

    /// Ends the entry of a place, which then is free. Its value stays.
    pub fn release(&mut self, index: u32) {
        let generation = &mut self.places[index as usize].0;
        *generation = (*generation + 1) & GENERATION_MASK;
        self.free.push(index);
    }
}

impl<T> Slab<Option<T>> {
    /// Adds an entry.
    pub fn insert(&mut self, value: T) -> Key {
        let key = self.claim();
        self.places[key.index as usize].1 = Some(value);
        key
    }

    /// The entry, unless it is gone.
    pub fn get(&self, key: Key) -> Option<&T> {
        self.place(key)?.as_ref()
    }

    /// The entry, unless it is gone.
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.place_mut(key)?.as_mut()
    }

    /// Removes an entry, unless it is gone.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let value = self.place_mut(key)?.take()?;
        self.release(key.index);
        Some(value)
    }

    /// The entry at an index, with its key.
    pub fn at(&self, index: u32) -> Option<(Key, &T)> {
        let (generation, value) = self.places.get(index as usize)?;
        Some((Key { index, generation: *generation }, value.as_ref()?))
    }

    /// All entries, with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        (0..self.places.len() as u32).filter_map(|index| self.at(index))
    }
}

impl<T> Index<usize> for Slab<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.places[index].1
    }
}

impl<T> IndexMut<usize> for Slab<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.places[index].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slab = Slab::default();
        assert_eq!(slab.next_key(), Key { index: 0, generation: 0 });
        let one = slab.insert('a');
        assert_eq!(slab.get_mut(one), Some(&mut 'a'));
        assert_eq!(slab.at(0), Some((one, &'a')));
        assert_eq!((slab.remove(one), slab.remove(one)), (Some('a'), None));
        assert_eq!((slab.get(one), slab.at(0), slab.at(1)), (None, None, None));
        let next = slab.next_key();
        let two = slab.insert('b');
        assert_eq!((two, two.index), (next, one.index));
        assert_eq!((slab.get(one), slab.at(1)), (None, None));
        assert_eq!(slab.get_mut(one), None);
        assert_eq!(slab.remove(one), None);
        assert_eq!((slab.count(), slab.places_len()), (1, 1));
        assert!(slab.iter().eq([(two, &'b')]));
    }

    #[test]
    fn generations_keep_to_their_bits() {
        let mut slab = Slab::default();
        slab.insert(());
        slab.places[0].0 = GENERATION_MASK;
        slab.remove(Key { index: 0, generation: GENERATION_MASK });
        assert_eq!(slab.next_key(), Key { index: 0, generation: 0 });
    }

    /// A claimed place keeps its value, and its index.
    #[test]
    fn places_keep_their_values() {
        let mut slab: Slab<u32> = Slab::default();
        let (one, two) = (slab.claim(), slab.claim());
        slab[0] = 7;
        slab.release(one.index);
        assert_eq!((slab.place(one), slab.place(two), slab.count()), (None, Some(&0), 1));
        let again = slab.claim();
        assert_eq!((again.index, slab.place(again)), (0, Some(&7)));
        assert!(slab.places().eq([&7, &0]));
    }
}
