//! Chains of descriptors, read from either layout (virtio 1.2 §2.7.5, §2.8.6).

use super::{Broken, CHAIN_MAX};
use crate::vhost_user::memory::GuestMemory;
use crate::vhost_user::shared::Stretch;
use std::ops::Range;
use towpath_packet::{Piece, Pins};

/// Another descriptor follows.
pub(crate) const NEXT: u16 = 1;
/// The device writes the buffer.
pub(crate) const WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub(crate) const INDIRECT: u16 = 4;
/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

/// A descriptor of either layout. A split ring has the number of the next descriptor where a packed
/// ring has the buffer's identifier, and the flags and the number are in the opposite order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) flags: u16,
    /// Next descriptor (split), or buffer identifier (packed).
    pub(crate) number: u16,
}

impl Descriptor {
    /// Decodes the two words of a split ring's descriptor.
    pub(crate) fn split(address: u64, rest: u64) -> Self {
        let (bytes, flags, number) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
        Self { address, bytes, flags, number }
    }

    /// Decodes the two words of a packed ring's descriptor.
    pub(crate) fn packed(address: u64, rest: u64) -> Self {
        let (bytes, number, flags) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
        Self { address, bytes, flags, number }
    }

    /// The buffer of a descriptor that is a whole chain, if it is writable, has at least `bytes`
    /// bytes, and lies in one region.
    #[inline]
    pub(super) fn room(&self, memory: &GuestMemory, bytes: usize) -> Option<Segment> {
        let is_room = self.flags & (NEXT | INDIRECT | WRITE) == WRITE
            && self.bytes > 0
            && self.bytes as usize >= bytes
            && memory.locate_whole(self.address, self.bytes as usize).is_some();
        is_room.then_some(Segment { address: self.address, bytes: self.bytes })
    }
}

/// A buffer of a chain, by guest address. It lies in the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Guest address.
    pub address: u64,
    /// Length in bytes; not zero.
    pub bytes: u32,
}

/// Identifies a held chain, to return it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The driver's identifier of the chain.
    pub id: u16,
    /// Number of ring descriptors that it uses.
    pub(crate) descriptors: u16,
    /// Its entry in the in-flight region.
    pub(crate) entry: u16,
    /// It was in flight when the previous process ended.
    pub(crate) again: bool,
}

/// Buffers that belong together: first the readable ones, then the writable ones.
pub struct Chain {
    pub(crate) head: Head,
    segments: Vec<Segment>,
    /// Index of the first writable segment.
    writable_from: usize,
    readable_bytes: usize,
    writable_bytes: usize,
    /// Descriptors in the ring itself, to be recorded as in flight. Only for packed rings with an
    /// in-flight region.
    pub(crate) descriptors: Vec<Descriptor>,
}

impl Chain {
    /// An empty chain with capacity for the longest.
    pub(crate) fn new() -> Self {
        Self {
            head: Head::default(),
            segments: Vec::with_capacity(CHAIN_MAX),
            writable_from: 0,
            readable_bytes: 0,
            writable_bytes: 0,
            descriptors: Vec::with_capacity(CHAIN_MAX),
        }
    }

    /// Readable buffers.
    pub fn readable(&self) -> &[Segment] {
        &self.segments[..self.writable_from]
    }

    /// Writable buffers.
    pub fn writable(&self) -> &[Segment] {
        &self.segments[self.writable_from..]
    }

    /// Total length of the readable buffers.
    pub fn readable_bytes(&self) -> usize {
        self.readable_bytes
    }

    /// Total length of the writable buffers.
    pub fn writable_bytes(&self) -> usize {
        self.writable_bytes
    }

    pub(crate) fn clear(&mut self) {
        self.head = Head::default();
        self.segments.clear();
        self.descriptors.clear();
        (self.writable_from, self.readable_bytes, self.writable_bytes) = (0, 0, 0);
    }

    /// Adds a buffer, unless it is empty.
    #[inline]
    pub(crate) fn push(
        &mut self,
        memory: &GuestMemory,
        descriptor: &Descriptor,
    ) -> Result<(), Broken> {
        let &Descriptor { address, bytes, flags, .. } = descriptor;
        if self.segments.len() == CHAIN_MAX {
            return Err(Broken::TooLong);
        }
        let is_write = flags & WRITE != 0;
        if !is_write && self.writable_from < self.segments.len() {
            return Err(Broken::Direction);
        }
        if bytes == 0 {
            return Ok(());
        }
        if !memory.contains(address, bytes as usize) {
            return Err(Broken::Address);
        }
        self.segments.push(Segment { address, bytes });
        if is_write {
            self.writable_bytes += bytes as usize;
        } else {
            self.writable_from += 1;
            self.readable_bytes += bytes as usize;
        }
        Ok(())
    }

    /// Adds the buffers of the table of an indirect descriptor of a split ring: linked, starting
    /// with the first.
    pub(crate) fn push_linked(
        &mut self,
        memory: &GuestMemory,
        table: &Descriptor,
    ) -> Result<(), Broken> {
        let table = Table::find(memory, table)?;
        let mut index = 0;
        // A loop ends here: the number of iterations is bounded.
        for _ in 0..table.count.min(CHAIN_MAX) {
            let (address, rest) = table.words(index)?;
            let descriptor = Descriptor::split(address, rest);
            if descriptor.flags & INDIRECT != 0 {
                return Err(Broken::Indirect);
            }
            self.push(memory, &descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = usize::from(descriptor.number);
            if index >= table.count {
                return Err(Broken::Descriptor);
            }
        }
        Err(Broken::TooLong)
    }

    /// Adds the buffers of the table of an indirect descriptor of a packed ring: all of them, in
    /// order.
    pub(crate) fn push_all(
        &mut self,
        memory: &GuestMemory,
        table: &Descriptor,
    ) -> Result<(), Broken> {
        let table = Table::find(memory, table)?;
        if table.count > CHAIN_MAX {
            return Err(Broken::TooLong);
        }
        for index in 0..table.count {
            let (address, rest) = table.words(index)?;
            let descriptor = Descriptor::packed(address, rest);
            if descriptor.flags & INDIRECT != 0 {
                return Err(Broken::Indirect);
            }
            self.push(memory, &descriptor)?;
        }
        Ok(())
    }
}

/// A descriptor table in the guest's memory. Each descriptor is read when the chain reaches it;
/// descriptors that no chain reaches need not be mapped.
struct Table<'a> {
    memory: &'a GuestMemory,
    address: u64,
    count: usize,
    /// The start of the table, which is all of it unless it crosses regions.
    stretch: Stretch<'a>,
}

impl<'a> Table<'a> {
    fn find(memory: &'a GuestMemory, table: &Descriptor) -> Result<Self, Broken> {
        let (address, bytes) = (table.address, table.bytes as usize);
        if bytes == 0 || !bytes.is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(Broken::Indirect);
        }
        let stretch = memory.locate(address, bytes).ok_or(Broken::Address)?;
        Ok(Self { memory, address, count: bytes / DESCRIPTOR_BYTES, stretch })
    }

    /// Reads both words of the descriptor `index`, which is below `count`.
    fn words(&self, index: usize) -> Result<(u64, u64), Broken> {
        let at = index * DESCRIPTOR_BYTES;
        let mut bytes = [0; DESCRIPTOR_BYTES];
        if at + DESCRIPTOR_BYTES <= self.stretch.len() {
            self.stretch.tail(at).read(&mut bytes);
        } else {
            let address = self.address.checked_add(at as u64).ok_or(Broken::Address)?;
            self.memory.read(address, &mut bytes).map_err(|_| Broken::Address)?;
        }
        let word = u128::from_le_bytes(bytes);
        Ok((word as u64, (word >> 64) as u64))
    }
}

/// A position in a list of segments, at which bytes are read or written next.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    memory: &'a GuestMemory,
    segments: &'a [Segment],
    /// Offset in the first segment.
    at: u32,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(memory: &'a GuestMemory, segments: &'a [Segment]) -> Self {
        Self { memory, segments, at: 0 }
    }

    /// Returns the rest of the current segment, at most `bytes` bytes, and advances past it.
    pub(crate) fn step(&mut self, bytes: usize) -> Option<Segment> {
        let first = self.segments.first()?;
        let left = first.bytes - self.at;
        let taken = u32::try_from(bytes).unwrap_or(u32::MAX).min(left);
        let part = Segment { address: first.address + u64::from(self.at), bytes: taken };
        self.at += taken;
        if taken == left {
            self.segments = &self.segments[1..];
            self.at = 0;
        }
        Some(part)
    }

    /// Advances by `bytes`, or to the end.
    pub(crate) fn skip(&mut self, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let Some(part) = self.step(left) else { break };
            left -= part.bytes as usize;
        }
    }

    /// Copies to `to`; returns the number of bytes copied.
    pub(crate) fn read(&mut self, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let Some(part) = self.step(to.len() - done) else { break };
            let bytes = part.bytes as usize;
            self.memory.read(part.address, &mut to[done..done + bytes]).expect(KNOWN);
            done += bytes;
        }
        done
    }

    /// Copies from `from`; returns the number of bytes that fitted.
    pub(crate) fn write(&mut self, from: &[u8]) -> usize {
        let mut done = 0;
        while done < from.len() {
            let Some(part) = self.step(from.len() - done) else { break };
            let bytes = part.bytes as usize;
            self.memory.write(part.address, &from[done..done + bytes]).expect(KNOWN);
            done += bytes;
        }
        done
    }

    /// Copies a range of a piece; returns the number of bytes that fitted.
    pub(crate) fn write_piece<'p>(
        &mut self,
        pins: &mut Pins<'p>,
        piece: &'p Piece,
        range: Range<usize>,
    ) -> usize {
        let mut at = range.start;
        while at < range.end {
            let Some(part) = self.step(range.end - at) else { break };
            let bytes = part.bytes as usize;
            self.memory.write_piece(part.address, (pins, piece), at, bytes).expect(KNOWN);
            at += bytes;
        }
        at - range.start
    }
}

/// Why the address of a segment is valid.
const KNOWN: &str = "a chain's addresses were looked up in the memory that its queue keeps";
