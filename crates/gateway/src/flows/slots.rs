//! A table whose entries have small indexes that epoll can carry, and generations, so that an event
//! for a removed entry finds nothing.

/// Names an entry of a [`Slots`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The table.
pub(super) struct Slots<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns the slot that the next [`Slots::insert`] will use.
    pub(super) fn next_slot(&self) -> Slot {
        match self.free.last() {
            Some(&index) => Slot { index, generation: self.entries[index as usize].0 },
            None => Slot { index: self.entries.len() as u32, generation: 0 },
        }
    }

    pub(super) fn insert(&mut self, value: T) -> Slot {
        let slot = self.next_slot();
        match self.free.pop() {
            Some(index) => self.entries[index as usize].1 = Some(value),
            None => self.entries.push((0, Some(value))),
        }
        slot
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&T> {
        let (generation, value) = self.entries.get(slot.index as usize)?;
        value.as_ref().filter(|_| *generation == slot.generation)
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let (generation, value) = self.entries.get_mut(slot.index as usize)?;
        if *generation != slot.generation {
            return None;
        }
        value.as_mut()
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<T> {
        let (generation, value) = self.entries.get_mut(slot.index as usize)?;
        if *generation != slot.generation {
            return None;
        }
        let value = value.take()?;
        // Tokens carry 28 bits of the generation.
        *generation = (*generation + 1) & GENERATION_MASK;
        self.free.push(slot.index);
        Some(value)
    }

    /// Returns the number of entries, free ones included: indexes are below it.
    pub(super) fn table_len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the value at an index and its generation.
    pub(super) fn at(&self, index: u32) -> Option<(u32, &T)> {
        let (generation, value) = self.entries.get(index as usize)?;
        Some((*generation, value.as_ref()?))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, (generation, value))| {
            let slot = Slot { index: index as u32, generation: *generation };
            Some((slot, value.as_ref()?))
        })
    }
}

/// The bits of a generation that fit a token.
pub(super) const GENERATION_MASK: u32 = (1 << 28) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_slot_finds_nothing() {
        let mut slots = Slots::new();
        let one = slots.insert('a');
        assert_eq!(slots.get_mut(one), Some(&mut 'a'));
        assert_eq!(slots.remove(one), Some('a'));
        let two = slots.insert('b');
        assert_eq!(two.index, one.index);
        assert_eq!(slots.get_mut(one), None);
        assert_eq!(slots.remove(one), None);
        assert_eq!(slots.len(), 1);
    }
}
