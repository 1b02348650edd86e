//! The table that one thread changes and others read, and values that one thread publishes: no
//! false hit, no lost entry, and no use of what was left.

use super::ring::bounded;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::hash::{BuildHasher, Hasher};
use towpath_packet::snapshot::Publisher;
use towpath_packet::table::{Table, TableReader};

/// All keys have the same home, so that each removal moves the others.
struct OneHome;

impl BuildHasher for OneHome {
    type Hasher = Zero;

    fn build_hasher(&self) -> Zero {
        Zero
    }
}

struct Zero;

impl Hasher for Zero {
    fn write(&mut self, _: &[u8]) {}

    fn finish(&self) -> u64 {
        0
    }
}

/// A value names its key, and counts how often it was replaced.
fn value(key: u64, count: u64) -> u64 {
    count << 8 | key
}

fn key_of(value: u64) -> u64 {
    value & 0xff
}

/// A table in which each key of `keys` was inserted in turn.
fn table(keys: &[u64]) -> Table<OneHome> {
    let mut table = Table::new(2, OneHome);
    for &key in keys {
        table.insert(key, value(key, 0));
    }
    table
}

/// Searches a key. Asserts that a hit has a value of this key.
fn find(reader: &TableReader<OneHome>, key: u64) -> Option<u64> {
    let found = reader.find(key)?;
    assert_eq!(key_of(found.value), key, "the value of another key");
    Some(found.value >> 8)
}

/// Goal: while entries are removed, move and are inserted into the slots of others, a reader never
/// finds a key with another key's value. (Readers that only search do not influence each other.)
///
/// Fails without the odd number or the fence of `section`, and without the fence or the second load
/// of `find`.
#[test]
fn a_search_never_finds_another_keys_value() {
    for keys in [[2, 3], [3, 2]] {
        bounded(3, move || {
            let mut table = table(&[1, 2]);
            let reader = table.reader();
            let searcher = thread::spawn(move || keys.map(|key| find(&reader, key)));
            table.remove(1);
            table.insert(3, value(3, 0));
            let found = searcher.join().unwrap();
            assert!(found.iter().all(|count| count.is_none_or(|count| count == 0)));
            assert_eq!((table.get(1), table.get(2), table.get(3)), (None, Some(2), Some(3)));
            assert_eq!(find(&table.reader(), 2), Some(0), "nothing disturbs this search");
        });
    }
}

/// Goal: a reader that follows the writer sees its changes.
///
/// Fails without the Release at the end of `section` or the Acquire of `find`.
#[test]
fn a_search_sees_what_happened_before() {
    loom::model(|| {
        let mut table = table(&[1]);
        let reader = table.reader();
        let mut publisher = Publisher::new(false);
        let mut subscriber = publisher.subscribe();
        let other = thread::spawn(move || {
            let mut is_removed = false;
            subscriber.refresh(|&value| is_removed = value);
            let found = find(&reader, 1);
            assert!(!is_removed || found.is_none(), "it was removed before");
        });
        table.remove(1);
        publisher.publish(true);
        other.join().unwrap();
    });
}

/// Goal: two readers that replace a value while the writer moves its entry change no value of
/// another key, and lose no entry.
///
/// Loom does not know that an exchange comes directly behind the store that it replaces. Therefore
/// the slot gets its next key only when the readers have ended.
#[test]
fn an_exchange_changes_no_other_key() {
    bounded(2, || {
        let mut table = table(&[1, 2]);
        let readers = [(); 2].map(|()| {
            let reader = table.reader();
            thread::spawn(move || {
                let Some(found) = reader.find(2) else { return };
                assert_eq!(key_of(found.value), 2);
                reader.exchange(found, value(2, 1));
            })
        });
        table.remove(1);
        for reader in readers {
            reader.join().unwrap();
        }
        table.insert(3, value(3, 0));
        let all: Vec<(u64, u64)> = table.iter().collect();
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|&(key, value)| key_of(value) == key), "{all:?}");
    });
}

/// Something that a published value names, and that the publisher reuses; loom checks accesses.
struct Named(UnsafeCell<u32>);

unsafe impl Send for Named {}
unsafe impl Sync for Named {}

/// Goal: what only older values name is not used any more once all subscribers have left them, by a
/// newer value or by their end.
///
/// Fails without the Release of `drop` or the Acquire of `oldest`. The lock orders a refresh, too.
#[test]
fn what_was_left_is_not_used() {
    bounded(2, || {
        let named = Arc::new(Named(UnsafeCell::new(1)));
        // True: it names the cell.
        let mut publisher = Publisher::new(true);
        let subscribers = [true, false].map(|stays| {
            let (mut subscriber, named) = (publisher.subscribe(), named.clone());
            thread::spawn(move || {
                let mut is_named = false;
                for _ in 0..if stays { 2 } else { 1 } {
                    subscriber.refresh(|&value| is_named = value);
                    if is_named {
                        named.0.with(|value| assert_eq!(unsafe { *value }, 1));
                    }
                }
            })
        });
        let generation = publisher.publish(false);
        if publisher.oldest().is_none_or(|oldest| oldest >= generation) {
            named.0.with_mut(|value| unsafe { *value = 2 });
        }
        for subscriber in subscribers {
            subscriber.join().unwrap();
        }
    });
}
