//! Querying and resizing a ring from any thread.

use super::shared::{Array, Shared};
use super::{CapacityError, Counters};
use crate::sync::Arc;

/// A handle that belongs to neither side. Any thread may use it.
pub struct Control<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Clone for Control<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T: Send> Control<T> {
    pub(super) fn new(shared: Arc<Shared<T>>) -> Self {
        Self { shared }
    }

    /// Requests another capacity, which takes effect with a producer's next call. If the ring holds
    /// more packets than that, none is dropped: the ring is full until enough were taken. After an
    /// error nothing has changed.
    pub fn resize(&self, capacity: usize) -> Result<(), CapacityError> {
        self.shared.ask(Array::new(capacity)?);
        Ok(())
    }

    /// Packets in the ring at some time during the call.
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// True if there are no packets.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counters of the ring.
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }
}
