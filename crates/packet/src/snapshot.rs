//! A value that one thread publishes and other threads follow.
//!
//! Each published value has a *generation*, a number that grows. A [`Subscriber`] works with the
//! value that it took last, until it calls [`Subscriber::refresh`]: one load if there is no newer
//! value. Only if there is one, it takes a lock, which is held for a few instructions.
//!
//! [`Publisher::oldest`] is the oldest generation that a subscriber still works with. Once a
//! subscriber has left a generation, whatever it did before happened before, so the publisher can
//! reuse what only older values name. A subscriber that is dropped has left all generations.

use crate::sync::{AtomicU64, Mutex, Ordering};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Publishes values. One thread at a time.
pub struct Publisher<T> {
    shared: Arc<Shared<T>>,
    generation: u64,
}

/// Follows the values of a [`Publisher`], on any thread.
pub struct Subscriber<T> {
    shared: Arc<Shared<T>>,
    /// Generation that it works with, which the publisher reads.
    used: Arc<AtomicU64>,
    /// Generation that it took last; `None` before the first.
    generation: Option<u64>,
}

struct Shared<T> {
    /// Generation of the newest value.
    newest: AtomicU64,
    current: Mutex<Current<T>>,
}

struct Current<T> {
    value: Arc<T>,
    generation: u64,
    /// Generations that the subscribers work with, or [`ENDED`].
    used: Vec<Arc<AtomicU64>>,
}

impl<T> Publisher<T> {
    /// Publishes the first value, of generation 0.
    pub fn new(value: T) -> Self {
        let current = Current { value: Arc::new(value), generation: 0, used: Vec::new() };
        let (newest, current) = (AtomicU64::new(0), Mutex::new(current));
        Self { shared: Arc::new(Shared { newest, current }), generation: 0 }
    }

    /// Publishes another value; returns its generation.
    pub fn publish(&mut self, value: T) -> u64 {
        self.generation += 1;
        let value = Arc::new(value);
        let before = self.shared.with(|current| {
            current.generation = self.generation;
            // Relaxed: only says that there is a reason to take the lock, which orders the value.
            self.shared.newest.store(self.generation, Ordering::Relaxed);
            core::mem::replace(&mut current.value, value)
        });
        // Not under the lock: this may be the last holder.
        drop(before);
        self.generation
    }

    /// Another subscriber. Its first call of [`Subscriber::refresh`] takes the newest value.
    pub fn subscribe(&self) -> Subscriber<T> {
        let used = self.shared.with(|current| {
            let used = Arc::new(AtomicU64::new(current.generation));
            current.used.push(used.clone());
            used
        });
        Subscriber { shared: self.shared.clone(), used, generation: None }
    }

    /// Generation of the newest value.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The oldest generation that a subscriber works with; `None` without subscribers. Takes the
    /// lock.
    pub fn oldest(&self) -> Option<u64> {
        self.shared.with(|current| {
            // Acquire: pairs with the Release of a subscriber that leaves a generation, for what it
            // did before.
            let used = |used: &Arc<AtomicU64>| used.load(Ordering::Acquire);
            current.used.retain(|place| used(place) != ENDED);
            current.used.iter().map(used).filter(|&used| used != ENDED).min()
        })
    }
}

impl<T> Subscriber<T> {
    /// Calls `take` with the newest value, if it is newer than the one taken last. Returns the
    /// generation that the subscriber works with from now on.
    #[inline]
    pub fn refresh(&mut self, take: impl FnOnce(&T)) -> u64 {
        // Relaxed: the lock orders the value; without a newer one there is nothing to order.
        let newest = self.shared.newest.load(Ordering::Relaxed);
        match self.generation {
            Some(generation) if generation == newest => generation,
            _ => self.take(take),
        }
    }

    #[cold]
    fn take(&mut self, take: impl FnOnce(&T)) -> u64 {
        let (value, generation) =
            self.shared.with(|current| (current.value.clone(), current.generation));
        take(&value);
        self.generation = Some(generation);
        // Release: pairs with the Acquire of `oldest`: the older value is not used any more. The
        // lock, which both take before, orders this, too.
        self.used.store(generation, Ordering::Release);
        generation
    }
}

impl<T> Drop for Subscriber<T> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of `oldest`: no value is used any more.
        self.used.store(ENDED, Ordering::Release);
    }
}

impl<T> Shared<T> {
    fn with<R>(&self, look: impl FnOnce(&mut Current<T>) -> R) -> R {
        look(&mut self.current.lock().expect("nothing panics under the lock"))
    }
}

/// Stands for the generation of a subscriber that was dropped.
const ENDED: u64 = u64::MAX;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Goal: a subscriber takes each newer value once, and keeps its generation until then.
    #[test]
    fn a_subscriber_works_with_what_it_took() {
        let mut publisher = Publisher::new('a');
        assert_eq!((publisher.generation(), publisher.oldest()), (0, None));
        let mut subscribers = [publisher.subscribe(), publisher.subscribe()];
        let mut taken = Vec::new();
        assert_eq!(subscribers[0].refresh(|&value| taken.push(value)), 0);
        assert_eq!((publisher.publish('b'), publisher.publish('c')), (1, 2));
        assert_eq!(publisher.oldest(), Some(0));
        for subscriber in &mut subscribers {
            assert_eq!(subscriber.refresh(|&value| taken.push(value)), 2);
            assert_eq!(subscriber.refresh(|&value| taken.push(value)), 2);
        }
        assert_eq!(taken, ['a', 'c', 'c']);
        assert_eq!(publisher.oldest(), Some(2));
        publisher.publish('d');
        let [first, mut second] = subscribers;
        second.refresh(|_| ());
        assert_eq!(publisher.oldest(), Some(2));
        drop(first);
        assert_eq!(publisher.oldest(), Some(3));
        drop(second);
        assert_eq!(publisher.oldest(), None);
    }
}
