//! Looking at a ring, and resizing it, from any thread.

use super::shared::{Array, Shared};
use super::{CapacityError, Counters};
use crate::sync::Arc;
use alloc::vec::Vec;

/// A handle for neither side. Any thread.
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

    /// Asks for another capacity, which holds from a producer's next call on. If that is less than
    /// is held, nothing is dropped: the ring is full until enough was taken. After an error nothing
    /// has changed.
    pub fn resize(&self, capacity: usize) -> Result<(), CapacityError> {
        self.shared.ask(Array::new(capacity)?);
        Ok(())
    }

    /// Packets in the ring: what was true at some moment during the call.
    pub fn len(&self) -> usize {
        self.shared.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the ring has counted.
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }
}

/// Asks for another capacity of all `rings`, or of none: memory for all is taken first.
pub fn resize_all<T: Send>(rings: &[&Control<T>], capacity: usize) -> Result<(), CapacityError> {
    let mut arrays = Vec::new();
    arrays.try_reserve_exact(rings.len()).map_err(|_| CapacityError::NoMemory)?;
    for _ in rings {
        arrays.push(Array::new(capacity)?);
    }
    for (ring, array) in rings.iter().zip(arrays) {
        ring.shared.ask(array);
    }
    Ok(())
}
