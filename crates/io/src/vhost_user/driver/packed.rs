//! The driver's side of a packed ring (virtio 1.2 §2.8).

use super::{Areas, Buffers};
use crate::vhost_user::virtq::Segment;
use towpath_packet::sync::{Ordering, fence};

const INDIRECT: u16 = 4;
const NEXT: u16 = 1;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

pub(super) struct Ring {
    areas: Areas,
    size: u16,
    event_index: bool,
    /// Free identifiers, as a stack.
    free: Vec<u16>,
    /// Number of descriptors of each chain that the device has, by its identifier.
    counts: Box<[u16]>,
    /// Number of free descriptors.
    room: u16,
    next: u16,
    wrap: bool,
    used: u16,
    used_wrap: bool,
    /// The first descriptor not published yet, with the flags that will make it available.
    hidden: Option<(u16, u16)>,
    /// Descriptors written since the last `publish`.
    fresh: u16,
}

impl Ring {
    pub(super) fn new(areas: Areas, size: u16, event_index: bool) -> Self {
        Self {
            areas,
            size,
            event_index,
            free: (0..size).rev().collect(),
            counts: vec![0; usize::from(size)].into(),
            room: size,
            next: 0,
            wrap: true,
            used: 0,
            used_wrap: true,
            hidden: None,
            fresh: 0,
        }
    }

    pub(super) fn reserve(&mut self, count: u16) -> Option<u16> {
        self.room = self.room.checked_sub(count)?;
        let id = self.free.pop().expect("there are as many identifiers as descriptors");
        self.counts[usize::from(id)] = count;
        Some(id)
    }

    pub(super) fn put(&mut self, id: u16, chain: &Buffers<'_>) {
        let first = self.hidden.is_none().then_some((self.next, self.wrap));
        for (index, (segment, flags)) in chain.iter().enumerate() {
            let hide = index == 0;
            self.write(id, segment, flags, hide);
        }
        self.offer(first, chain.iter().next().map_or(0, |(_, flags)| flags));
    }

    pub(super) fn put_table(&mut self, id: u16, table: Segment) {
        let first = self.hidden.is_none().then_some((self.next, self.wrap));
        self.write(id, &table, INDIRECT, true);
        self.offer(first, INDIRECT);
    }

    /// Writes the next descriptor. The flags of the first unpublished head are written last.
    fn write(&mut self, id: u16, segment: &Segment, flags: u16, is_head: bool) {
        let at = 16 * usize::from(self.next);
        let flags = flags | if self.wrap { AVAIL } else { USED };
        let descriptors = &self.areas.descriptors;
        // Relaxed: the flags of the first descriptor publish this store and the following ones.
        descriptors.store64(at, segment.address, Ordering::Relaxed);
        descriptors.store32(at + 8, segment.bytes, Ordering::Relaxed);
        descriptors.store16(at + 12, id, Ordering::Relaxed);
        if !is_head || self.hidden.is_some() {
            descriptors.store16(at + 14, flags, Ordering::Relaxed);
        }
        self.fresh += 1;
        self.next += 1;
        if self.next == self.size {
            (self.next, self.wrap) = (0, !self.wrap);
        }
    }

    fn offer(&mut self, first: Option<(u16, bool)>, flags: u16) {
        if let Some((index, wrap)) = first {
            self.hidden = Some((index, flags | if wrap { AVAIL } else { USED }));
        }
    }

    pub(super) fn publish(&mut self) -> bool {
        let Some((first, flags)) = self.hidden.take() else { return false };
        let fresh = std::mem::take(&mut self.fresh);
        let at = 16 * usize::from(first) + 14;
        // Release: publishes all descriptors written; pairs with the device's load of the flags.
        self.areas.descriptors.store16(at, flags, Ordering::Release);
        // SeqCst: between the store of our flags and the load of the device's request; pairs with
        // the fence in the device's `enable_kicks`.
        fence(Ordering::SeqCst);
        let wish = self.areas.device.load16(2, Ordering::Acquire);
        if wish != 2 {
            return wish == 0;
        }
        let event = self.areas.device.load16(0, Ordering::Relaxed);
        // Distance from the first written descriptor to the one for which the device wants a kick.
        let first_wrap = flags & AVAIL != 0;
        let mut distance = i32::from(event & 0x7fff) - i32::from(first);
        if (event >> 15 != 0) != first_wrap {
            distance += i32::from(self.size);
        }
        (0..i32::from(fresh)).contains(&distance)
    }

    pub(super) fn used(&mut self) -> Option<(u16, u32)> {
        let at = 16 * usize::from(self.used);
        let descriptors = &self.areas.descriptors;
        // Acquire: pairs with the device's Release of the flags.
        let flags = descriptors.load16(at + 14, Ordering::Acquire);
        if !self.is_used(flags) {
            return None;
        }
        // Relaxed: the flags order this load and the next.
        let id = descriptors.load16(at + 12, Ordering::Relaxed);
        let written = descriptors.load32(at + 8, Ordering::Relaxed);
        assert_eq!(flags & NEXT, 0, "a used descriptor has no next");
        assert!(id < self.size, "an identifier is in range");
        let count = std::mem::take(&mut self.counts[usize::from(id)]);
        self.used += count;
        if self.used >= self.size {
            (self.used, self.used_wrap) = (self.used - self.size, !self.used_wrap);
        }
        self.room += count;
        self.free.push(id);
        Some((id, written))
    }

    fn is_used(&self, flags: u16) -> bool {
        (flags & AVAIL != 0) == self.used_wrap && (flags & USED != 0) == self.used_wrap
    }

    pub(super) fn enable_calls(&mut self) -> bool {
        if self.event_index {
            let event = self.used | u16::from(self.used_wrap) << 15;
            self.areas.driver.store16(0, event, Ordering::Relaxed);
            // Release: publishes the descriptor stored before; pairs with the device's load of the
            // flags.
            self.areas.driver.store16(2, 2, Ordering::Release);
        } else {
            self.areas.driver.store16(2, 0, Ordering::Relaxed);
        }
        // SeqCst: between the store of our request and the load of the ring; pairs with the fence
        // in the device's `publish`.
        fence(Ordering::SeqCst);
        let flags =
            self.areas.descriptors.load16(16 * usize::from(self.used) + 14, Ordering::Relaxed);
        self.is_used(flags)
    }

    pub(super) fn disable_calls(&mut self) {
        self.areas.driver.store16(2, 1, Ordering::Relaxed);
    }
}
