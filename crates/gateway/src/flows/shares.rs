//! Tables whose bound is shared: at the bound, the share with most entries loses its least recently
//! used one. So a flood displaces itself, and the number of shares need not be known.
//!
//! Using an entry again takes constant time; finding the share with most entries takes the
//! logarithm of the number of shares.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// The share that an entry counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Share {
    /// The guest at this port of the switch, which it cannot choose; without a switch, the program.
    Guest(Option<u16>),
    /// The users of this published port: hosts outside, which share the port of towpath's user.
    Published(u32),
}

/// A table with a bound on its entries.
pub(super) struct Table<K, V> {
    index: HashMap<K, u32>,
    nodes: Vec<Node<K, V>>,
    free: Vec<u32>,
    chains: HashMap<Share, Chain>,
    /// The shares that have entries, by their number.
    by_use: BTreeSet<(usize, Share)>,
    limit: usize,
}

struct Node<K, V> {
    key: K,
    value: V,
    share: Share,
    /// Towards the entry used last.
    newer: u32,
    /// Towards the entry used least recently.
    older: u32,
}

/// The entries of one share, in the order of their last use.
struct Chain {
    newest: u32,
    oldest: u32,
    len: usize,
}

/// The link to no node.
const NONE: u32 = u32::MAX;

impl<K: Copy + Eq + Hash, V: Copy> Table<K, V> {
    pub(super) fn new(limit: usize) -> Self {
        assert!(limit > 0 && limit < NONE as usize, "nodes have 32-bit numbers");
        Self {
            index: HashMap::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            chains: HashMap::new(),
            by_use: BTreeSet::new(),
            limit,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns an entry without using it.
    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.index.get(key).map(|&node| self.nodes[node as usize].value)
    }

    /// Returns an entry and marks it as used.
    pub(super) fn use_of(&mut self, key: &K) -> Option<V> {
        let node = *self.index.get(key)?;
        let share = self.nodes[node as usize].share;
        if self.chains.get(&share).is_some_and(|chain| chain.newest != node) {
            self.unlink(node);
            self.link(node);
        }
        Some(self.nodes[node as usize].value)
    }

    /// Adds or changes an entry and marks it as used. Returns the entry that was evicted for it.
    pub(super) fn put(&mut self, key: K, share: Share, value: V) -> Option<(K, V)> {
        if let Some(&node) = self.index.get(&key) {
            self.unlink(node);
            let entry = &mut self.nodes[node as usize];
            let before = std::mem::replace(&mut entry.share, share);
            entry.value = value;
            self.link(node);
            if before != share {
                self.count(before, -1);
                self.count(share, 1);
            }
            return None;
        }
        let gone = if self.len() == self.limit { self.give_way(share) } else { None };
        let entry = Node { key, value, share, newer: NONE, older: NONE };
        let node = match self.free.pop() {
            Some(node) => {
                self.nodes[node as usize] = entry;
                node
            }
            None => {
                self.nodes.push(entry);
                (self.nodes.len() - 1) as u32
            }
        };
        self.index.insert(key, node);
        self.link(node);
        self.count(share, 1);
        gone
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let node = self.index.remove(key)?;
        self.unlink(node);
        self.free.push(node);
        let &Node { share, value, .. } = &self.nodes[node as usize];
        self.count(share, -1);
        Some(value)
    }

    /// Removes the entries that need not be kept. Visits all entries.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&K, &V) -> bool) {
        let nodes = &self.nodes;
        let over = self.index.values().map(|&node| &nodes[node as usize]);
        let over: Vec<K> =
            over.filter(|node| !keeps(&node.key, &node.value)).map(|node| node.key).collect();
        for key in over {
            self.remove(&key);
        }
    }

    /// Evicts the oldest entry of the share with most entries; among equals, of the `newcomer`.
    fn give_way(&mut self, newcomer: Share) -> Option<(K, V)> {
        let &(most, share) = self.by_use.last()?;
        let own = self.chains.get(&newcomer).map_or(0, |chain| chain.len);
        let share = if own == most { newcomer } else { share };
        let oldest = self.chains.get(&share)?.oldest;
        let key = self.nodes[oldest as usize].key;
        self.remove(&key).map(|value| (key, value))
    }

    /// Puts a node at the newer end of its share's chain.
    fn link(&mut self, node: u32) {
        let share = self.nodes[node as usize].share;
        let empty = Chain { newest: NONE, oldest: NONE, len: 0 };
        let chain = self.chains.entry(share).or_insert(empty);
        let before = std::mem::replace(&mut chain.newest, node);
        if before == NONE {
            chain.oldest = node;
        } else {
            self.nodes[before as usize].newer = node;
        }
        let entry = &mut self.nodes[node as usize];
        (entry.older, entry.newer) = (before, NONE);
    }

    /// Takes a node out of its share's chain.
    fn unlink(&mut self, node: u32) {
        let &Node { share, newer, older, .. } = &self.nodes[node as usize];
        let chain = self.chains.get_mut(&share).expect("a node is in the chain of its share");
        match newer {
            NONE => chain.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => chain.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
    }

    /// Adds `change` to the number of entries of a share.
    fn count(&mut self, share: Share, change: isize) {
        let chain = self.chains.get_mut(&share).expect("it has or had an entry");
        self.by_use.remove(&(chain.len, share));
        chain.len = chain.len.saturating_add_signed(change);
        if chain.len == 0 {
            self.chains.remove(&share);
        } else {
            self.by_use.insert((chain.len, share));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Share = Share::Guest(Some(1));
    const B: Share = Share::Guest(Some(2));
    const C: Share = Share::Published(1);

    /// Goal: at the bound, the share with most entries loses its least recently used one, and no
    /// share loses anything below its part.
    #[test]
    fn whoever_has_most_gives_way() {
        let mut table = Table::new(8);
        assert_eq!((0..3).filter_map(|key| table.put(key, A, ())).count(), 0);
        let gone: Vec<_> = (10..40).filter_map(|key| table.put(key, B, ())).collect();
        assert_eq!(gone.first(), Some(&(10, ())));
        assert_eq!((gone.len(), table.len()), (25, 8), "B displaces itself");
        // An entry that is used again is evicted last.
        assert_eq!(table.use_of(&35), Some(()));
        assert_eq!(table.put(50, C, ()), Some((36, ())), "B has most entries");
        assert_eq!(table.put(51, C, ()), Some((37, ())));
        assert_eq!(table.put(52, C, ()), Some((38, ())), "B loses before A, which has as many");
        assert_eq!(
            table.put(53, C, ()),
            Some((50, ())),
            "it has as many as others, so it loses its own"
        );
        let kept: Vec<_> = (0..60).filter(|key| table.get(key).is_some()).collect();
        assert_eq!(kept, [0, 1, 2, 35, 39, 51, 52, 53]);
        table.retain(|key, ()| *key >= 39);
        assert_eq!((table.len(), table.remove(&39), table.remove(&39)), (4, Some(()), None));
        assert_eq!(table.chains.len(), table.by_use.len());
    }

    /// Goal: chains stay intact under all operations. Method: random operations, compared with a
    /// plain list.
    #[test]
    fn chains_stay_whole() {
        let mut table = Table::new(16);
        let mut model: Vec<(u32, Share)> = Vec::new();
        let mut state = 1_u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..20_000 {
            let (key, share) = (random(40), [A, B, C][random(3) as usize]);
            let place = model.iter().position(|(other, _)| *other == key);
            match random(4) {
                0 => {
                    assert_eq!(table.remove(&key).is_some(), place.is_some());
                    place.map(|place| model.remove(place));
                }
                1 => {
                    assert_eq!(table.use_of(&key), place.map(|_| key));
                    if let Some(place) = place {
                        let entry = model.remove(place);
                        model.push(entry);
                    }
                }
                _ => {
                    let gone = table.put(key, share, key);
                    place.map(|place| model.remove(place));
                    if let Some((gone, _)) = gone {
                        let count = |share| model.iter().filter(|(_, s)| *s == share).count();
                        let place = model.iter().position(|(other, _)| *other == gone);
                        let (_, loser) = model[place.expect("it was there")];
                        assert!([A, B, C].map(count).iter().all(|n| *n <= count(loser)));
                        let first = model.iter().find(|(_, s)| *s == loser).map(|(key, _)| *key);
                        assert_eq!(first, Some(gone), "the oldest of its share");
                        model.retain(|(other, _)| *other != gone);
                    }
                    model.push((key, share));
                }
            }
            assert_eq!(table.len(), model.len());
        }
    }
}
