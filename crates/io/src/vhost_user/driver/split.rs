//! The driver's side of a split ring (virtio 1.2 §2.7).

use super::{Areas, Buffers};
use crate::vhost_user::virtq::Segment;
use towpath_packet::sync::{Ordering, fence};

const INDIRECT: u16 = 4;

pub(super) struct Ring {
    areas: Areas,
    size: u16,
    event_index: bool,
    /// Free descriptors, as a stack.
    free: Vec<u16>,
    /// Descriptors of each chain that the device has, by its head.
    chains: Box<[Vec<u16>]>,
    available: u16,
    published: u16,
    used: u16,
}

impl Ring {
    pub(super) fn new(areas: Areas, size: u16, event_index: bool) -> Self {
        Self {
            areas,
            size,
            event_index,
            free: (0..size).rev().collect(),
            chains: (0..size).map(|_| Vec::with_capacity(super::TABLE_MAX)).collect(),
            available: 0,
            published: 0,
            used: 0,
        }
    }

    /// Takes descriptors for a chain; returns its head.
    pub(super) fn reserve(&mut self, count: u16) -> Option<u16> {
        let from = self.free.len().checked_sub(usize::from(count))?;
        let head = *self.free.last()?;
        let chain = &mut self.chains[usize::from(head)];
        chain.clear();
        chain.extend(self.free.drain(from..).rev());
        Some(head)
    }

    pub(super) fn put(&mut self, head: u16, chain: &Buffers<'_>) {
        for (index, (segment, flags)) in chain.iter().enumerate() {
            let numbers = &self.chains[usize::from(head)];
            let next = numbers.get(index + 1).copied().unwrap_or(0);
            self.write(numbers[index], segment, flags, next);
        }
        self.offer(head);
    }

    pub(super) fn put_table(&mut self, head: u16, table: Segment) {
        self.write(head, &table, INDIRECT, 0);
        self.offer(head);
    }

    fn write(&self, number: u16, segment: &Segment, flags: u16, next: u16) {
        let at = 16 * usize::from(number);
        let descriptors = &self.areas.descriptors;
        // Relaxed: the available index publishes it. The same applies to the next store and the
        // entry.
        descriptors.store64(at, segment.address, Ordering::Relaxed);
        let rest = u64::from(segment.bytes) | u64::from(flags) << 32 | u64::from(next) << 48;
        descriptors.store64(at + 8, rest, Ordering::Relaxed);
    }

    fn offer(&mut self, head: u16) {
        let at = 4 + 2 * usize::from(self.available & (self.size - 1));
        self.areas.driver.store16(at, head, Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
    }

    pub(super) fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.available);
        // Release: publishes descriptors and entries; pairs with the device's load of the index.
        self.areas.driver.store16(2, new, Ordering::Release);
        self.published = new;
        // SeqCst: between the store of our index and the load of the device's request; pairs with
        // the fence in the device's `enable_kicks`.
        fence(Ordering::SeqCst);
        if !self.event_index {
            return old != new && self.areas.device.load16(0, Ordering::Relaxed) & 1 == 0;
        }
        let at = 4 + 8 * usize::from(self.size);
        let event = self.areas.device.load16(at, Ordering::Relaxed);
        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
    }

    pub(super) fn used(&mut self) -> Option<(u16, u32)> {
        // Acquire: pairs with the device's Release of the index.
        if self.areas.device.load16(2, Ordering::Acquire) == self.used {
            return None;
        }
        let at = 4 + 8 * usize::from(self.used & (self.size - 1));
        // Relaxed: the index orders this load and the next.
        let head = self.areas.device.load32(at, Ordering::Relaxed);
        let written = self.areas.device.load32(at + 4, Ordering::Relaxed);
        let head = u16::try_from(head).expect("a head has 16 bits");
        self.used = self.used.wrapping_add(1);
        self.free.extend(self.chains[usize::from(head)].drain(..).rev());
        Some((head, written))
    }

    pub(super) fn enable_calls(&mut self) -> bool {
        if self.event_index {
            let at = 4 + 2 * usize::from(self.size);
            self.areas.driver.store16(at, self.used, Ordering::Relaxed);
        } else {
            self.areas.driver.store16(0, 0, Ordering::Relaxed);
        }
        // SeqCst: between the store of our request and the load of the index; pairs with the fence
        // in the device's `publish`.
        fence(Ordering::SeqCst);
        self.areas.device.load16(2, Ordering::Relaxed) != self.used
    }

    pub(super) fn disable_calls(&mut self) {
        if !self.event_index {
            self.areas.driver.store16(0, 1, Ordering::Relaxed);
        }
    }
}
