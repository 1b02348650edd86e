//! Positions in a packed ring (virtio 1.2 §2.8.1).

/// A position in the ring: 15 bits of index, and the wrap counter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) index: u16,
    pub(super) wrap: bool,
}

impl Place {
    /// Decodes the 16 bits of event suppression and bases; `None` outside the ring.
    pub(super) fn from_bits(bits: u16, size: u16) -> Option<Self> {
        let place = Self { index: bits & 0x7fff, wrap: bits & 0x8000 != 0 };
        (place.index < size).then_some(place)
    }

    pub(super) fn bits(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    pub(super) fn advance(&mut self, count: u16, size: u16) {
        self.index += count;
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }

    /// Number of descriptors from `earlier` to this position, which is less than two rounds later.
    pub(super) fn since(self, earlier: Place, size: u16) -> u32 {
        let round = u32::from(self.wrap != earlier.wrap) * u32::from(size);
        (u32::from(self.index) + round).wrapping_sub(u32::from(earlier.index))
    }
}
