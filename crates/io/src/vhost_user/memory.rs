//! A guest's memory: regions of shared files, found by guest address or by front-end address.
//!
//! A [`GuestMemory`] is a value. A queue that has a clone keeps its regions mapped, whatever the
//! front end removes later, and so does each loan ([`GuestLender`]). Adding or removing a region
//! makes a new value; users of the old one stop first, or continue with it.
//!
//! Invariants: regions are sorted, do not overlap in either address space and do not wrap.
//! Addresses come from the guest or the front end and are checked at each use. Pages that were
//! written are marked in the dirty log afterwards, if there is one. Any thread; limit:
//! [`REGIONS_MAX`].
//!
//! Follows the vhost-user protocol's sections on memory regions and on migration.
#![allow(unsafe_code)]

use super::message::{REGIONS_MAX, RegionLayout};
use super::shared::{Area, Cell, Cells, MapError, Mapping, Stretch};
use rustix::fd::OwnedFd;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use towpath_packet::sync::Ordering;
use towpath_packet::{Lender, Loans, Piece, Pins, Returns};

/// Bytes at the start of a buffer that are read first: two cache lines.
const HEAD_BYTES: usize = 128;
/// Bytes of a page in the dirty log, whatever the guest's page size is.
pub const LOG_PAGE_BYTES: u64 = 4096;

/// Why a region was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// It is empty, or wraps around the end of an address space.
    Range,
    /// It overlaps an existing region.
    Overlap,
    /// There are [`REGIONS_MAX`] already.
    TooMany,
    /// There is no such region.
    Unknown,
    /// Its file could not be mapped.
    Map(MapError),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range => f.write_str("a memory region is empty or wraps around"),
            Self::Overlap => f.write_str("a memory region overlaps another"),
            Self::TooMany => f.write_str("there are too many memory regions"),
            Self::Unknown => f.write_str("there is no such memory region"),
            Self::Map(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MemoryError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Map(error) => error.source(),
            _ => None,
        }
    }
}

impl From<MapError> for MemoryError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

/// An address, or a part of the range that follows it, is in no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address is outside the guest's memory")
    }
}

impl std::error::Error for OutOfRange {}

#[derive(Clone)]
struct Region {
    layout: RegionLayout,
    /// Number of times that it was added.
    count: u32,
    mapping: Arc<Mapping>,
}

/// The bitmap of written pages, shared with the front end.
struct DirtyLog(Mapping);

/// The memory of a guest; see the module documentation.
#[derive(Clone, Default)]
pub struct GuestMemory {
    /// Sorted by guest address.
    regions: Arc<[Region]>,
    log: Option<Arc<DirtyLog>>,
}

impl GuestMemory {
    /// Empty memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// A copy without regions, but with the dirty log.
    pub fn without_regions(&self) -> Self {
        Self { regions: Arc::default(), ..self.clone() }
    }

    /// Maps a region of `file`. If it exists already, it is counted instead, and stays until it was
    /// removed as often: QEMU before 8.1 adds each region once for each pair of queues.
    pub fn add(&mut self, layout: RegionLayout, file: &OwnedFd) -> Result<(), MemoryError> {
        let RegionLayout { guest_address, bytes, user_address, file_offset } = layout;
        let ends = (guest_address.checked_add(bytes), user_address.checked_add(bytes));
        if bytes == 0 || ends.0.is_none() || ends.1.is_none() {
            return Err(MemoryError::Range);
        }
        if let Some(place) = self.place_of(&layout) {
            let mut regions = self.regions.to_vec();
            let count = &mut regions[place].count;
            *count = count.checked_add(1).ok_or(MemoryError::TooMany)?;
            self.regions = regions.into();
            return Ok(());
        }
        if self.regions.len() == REGIONS_MAX {
            return Err(MemoryError::TooMany);
        }
        let apart = |a: u64, b: u64, b_bytes: u64| a >= b + b_bytes || b >= a + bytes;
        let is_apart = |region: &Region| {
            apart(guest_address, region.layout.guest_address, region.layout.bytes)
                && apart(user_address, region.layout.user_address, region.layout.bytes)
        };
        if !self.regions.iter().all(is_apart) {
            return Err(MemoryError::Overlap);
        }
        let mapping = Mapping::new(file, file_offset, bytes)?;
        let mut regions = self.regions.to_vec();
        let place = regions.partition_point(|region| region.layout.guest_address < guest_address);
        regions.insert(place, Region { layout, count: 1, mapping: Arc::new(mapping) });
        self.regions = regions.into();
        Ok(())
    }

    /// Removes a region, identified by both addresses and its length, if it was added only once;
    /// otherwise counts down. It stays mapped for other users.
    pub fn remove(&mut self, layout: &RegionLayout) -> Result<(), MemoryError> {
        let place = self.place_of(layout).ok_or(MemoryError::Unknown)?;
        let mut regions = self.regions.to_vec();
        regions[place].count -= 1;
        if regions[place].count == 0 {
            regions.remove(place);
        }
        self.regions = regions.into();
        Ok(())
    }

    /// Index of the region with both addresses and the length of `layout`.
    fn place_of(&self, layout: &RegionLayout) -> Option<usize> {
        let key = |layout: &RegionLayout| (layout.guest_address, layout.user_address, layout.bytes);
        self.regions.iter().position(|region| key(&region.layout) == key(layout))
    }

    /// Marks writes in the bitmap at `offset` of `file`, one bit per page from address 0, from now
    /// on.
    pub fn set_log(&mut self, file: &OwnedFd, bytes: u64, offset: u64) -> Result<(), MemoryError> {
        self.log = Some(Arc::new(DirtyLog(Mapping::new(file, offset, bytes)?)));
        Ok(())
    }

    /// Ends the marking of writes.
    pub fn clear_log(&mut self) {
        self.log = None;
    }

    /// Number of regions.
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// True if a file was truncated while mapped, including that of the dirty log.
    pub fn is_lost(&self) -> bool {
        self.regions.iter().any(|region| region.mapping.is_lost())
            || self.log.as_ref().is_some_and(|log| log.0.is_lost())
    }

    /// Returns the memory at a guest address that is mapped without a gap, up to `bytes`; `None` if
    /// none is.
    #[inline]
    pub fn locate(&self, guest: u64, bytes: usize) -> Option<Stretch<'_>> {
        let region = self.region(guest)?;
        let at = guest - region.layout.guest_address;
        let left = region.layout.bytes - at;
        let bytes = usize::try_from(left).map_or(bytes, |left| left.min(bytes));
        Some(region.mapping.stretch(at as usize, bytes))
    }

    /// The region with a guest address.
    #[inline]
    fn region(&self, guest: u64) -> Option<&Region> {
        // A linear search: most guests have one or two regions.
        let at = |region: &Region| guest.wrapping_sub(region.layout.guest_address);
        self.regions.iter().find(|region| at(region) < region.layout.bytes)
    }

    /// Returns the range if it lies in one region, which is nearly always the case.
    #[inline]
    pub(crate) fn locate_whole(&self, guest: u64, bytes: usize) -> Option<Stretch<'_>> {
        self.locate(guest, bytes).filter(|stretch| stretch.len() == bytes)
    }

    /// Calls `each` with all parts of the range, in order. Stops at the first address that is not
    /// mapped.
    fn stretches(
        &self,
        guest: u64,
        bytes: usize,
        mut each: impl FnMut(usize, Stretch<'_>),
    ) -> Result<(), OutOfRange> {
        let mut done = 0;
        while done < bytes {
            let address = guest.checked_add(done as u64).ok_or(OutOfRange)?;
            let stretch = self.locate(address, bytes - done).ok_or(OutOfRange)?;
            each(done, stretch);
            done += stretch.len();
        }
        Ok(())
    }

    /// True if the whole range is mapped.
    pub fn contains(&self, guest: u64, bytes: usize) -> bool {
        self.locate_whole(guest, bytes).is_some() || self.stretches(guest, bytes, |_, _| {}).is_ok()
    }

    /// Copies from the guest's memory. After an error the content of `to` is undefined.
    pub fn read(&self, guest: u64, to: &mut [u8]) -> Result<(), OutOfRange> {
        if let Some(stretch) = self.locate_whole(guest, to.len()) {
            stretch.read(to);
            return Ok(());
        }
        self.stretches(guest, to.len(), |at, stretch| stretch.read(&mut to[at..][..stretch.len()]))
    }

    /// Copies into the guest's memory. After an error a part may have been written.
    pub fn write(&self, guest: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let write = |at: usize, stretch: Stretch<'_>| stretch.write(&from[at..][..stretch.len()]);
        let result = self.stretches(guest, from.len(), write);
        self.mark(guest, from.len());
        result
    }

    /// Copies `bytes` bytes of `piece`, from its byte `from` on, into the guest's memory, as
    /// [`GuestMemory::write`] does. The caller counts the copy.
    ///
    /// # Panics
    /// If the piece is shorter than that.
    pub fn write_piece<'a>(
        &self,
        guest: u64,
        (pins, piece): (&mut Pins<'a>, &'a Piece),
        from: usize,
        bytes: usize,
    ) -> Result<(), OutOfRange> {
        let write = |at, stretch: Stretch<'_>| {
            stretch.write_piece(pins, piece, from + at, stretch.len());
        };
        let result = self.stretches(guest, bytes, write);
        self.mark(guest, bytes);
        result
    }

    /// Prefetches the first bytes at a guest address, up to `bytes`: headers, or a descriptor
    /// table.
    pub(crate) fn prefetch(&self, guest: u64, bytes: u32) {
        if let Some(stretch) = self.locate(guest, HEAD_BYTES.min(bytes as usize)) {
            stretch.prefetch_read();
        }
    }

    /// Returns the area of `bytes` bytes at a front-end address, aligned to `align` and in one
    /// region.
    pub fn area(&self, user: u64, bytes: usize, align: usize) -> Option<LoggedArea> {
        let inside = |region: &&Region| {
            let at = user.checked_sub(region.layout.user_address);
            at.is_some_and(|at| at < region.layout.bytes)
        };
        let region = self.regions.iter().find(inside)?;
        let at = user - region.layout.user_address;
        let area = Area::new(region.mapping.clone(), usize::try_from(at).ok()?, bytes, align)?;
        Some(LoggedArea { area, guest: region.layout.guest_address + at, log: None })
    }

    /// Marks pages as written. Pages beyond the log are ignored: the front end sized it for the
    /// memory that it migrates.
    pub(crate) fn mark(&self, guest: u64, bytes: usize) {
        if let Some(log) = &self.log {
            log.mark(guest, bytes);
        }
    }
}

/// Looks up buffers, most of which are in the same region as the one before. For as long as a queue
/// works on a burst.
pub(crate) struct Lookup<'a> {
    memory: &'a GuestMemory,
    /// The region of the last buffer, and its guest address.
    region: Stretch<'a>,
    first: u64,
}

impl<'a> Lookup<'a> {
    pub(crate) fn new(memory: &'a GuestMemory) -> Self {
        Self { memory, region: Stretch::empty(), first: 0 }
    }

    /// Returns the range if it lies in one region, like [`GuestMemory::locate_whole`]. The range
    /// must not be empty.
    #[inline]
    pub(crate) fn whole(&mut self, guest: u64, bytes: usize) -> Option<Stretch<'a>> {
        match self.region.part(guest.wrapping_sub(self.first), bytes) {
            None => self.seek(guest, bytes),
            found => found,
        }
    }

    #[cold]
    fn seek(&mut self, guest: u64, bytes: usize) -> Option<Stretch<'a>> {
        let Region { layout, mapping, .. } = self.memory.region(guest)?;
        self.region = mapping.stretch(0, mapping.bytes());
        self.first = layout.guest_address;
        self.region.part(guest - self.first, bytes)
    }
}

impl DirtyLog {
    fn mark(&self, guest: u64, bytes: usize) {
        let Some(last) = (bytes as u64).checked_sub(1).map(|more| guest.saturating_add(more))
        else {
            return;
        };
        for page in guest / LOG_PAGE_BYTES..=last / LOG_PAGE_BYTES {
            let Ok(at) = usize::try_from(page / 8) else { return };
            if !self.0.set_bits(at, 1 << (page % 8)) {
                return;
            }
        }
    }
}

/// Fields of a ring. Writes mark the page in the dirty log, if requested.
#[derive(Clone)]
pub struct LoggedArea {
    area: Area,
    guest: u64,
    log: Option<Arc<DirtyLog>>,
}

impl LoggedArea {
    /// Makes writes mark pages in the dirty log of `memory`.
    pub fn logged(mut self, memory: &GuestMemory) -> Self {
        self.log = memory.log.clone();
        self
    }

    /// Reads the 16-bit number at `at`.
    #[inline]
    pub fn load16(&self, at: usize, order: Ordering) -> u16 {
        self.area.load16(at, order)
    }

    /// Reads the 32-bit number at `at`.
    #[inline]
    pub fn load32(&self, at: usize, order: Ordering) -> u32 {
        self.area.load32(at, order)
    }

    /// Reads the 64-bit number at `at`.
    #[inline]
    pub fn load64(&self, at: usize, order: Ordering) -> u64 {
        self.area.load64(at, order)
    }

    /// Writes the 16-bit number at `at`.
    #[inline]
    pub fn store16(&self, at: usize, value: u16, order: Ordering) {
        self.area.store16(at, value, order);
        self.mark(at, 2);
    }

    /// Writes the 32-bit number at `at`.
    #[inline]
    pub fn store32(&self, at: usize, value: u32, order: Ordering) {
        self.area.store32(at, value, order);
        self.mark(at, 4);
    }

    /// Writes the 64-bit number at `at`.
    #[inline]
    pub fn store64(&self, at: usize, value: u64, order: Ordering) {
        self.area.store64(at, value, order);
        self.mark(at, 8);
    }

    /// Returns the `count` cells from the byte `at` on. Writes to them are not marked: call
    /// [`mark`](Self::mark) after them. `None` if they are not in the area or not aligned.
    pub(crate) fn cells<T: Cell>(&self, at: usize, count: usize) -> Option<Cells<T>> {
        Cells::new(&self.area, at, count)
    }

    /// Marks the pages of a range of the area as written, if requested.
    #[inline]
    pub(crate) fn mark(&self, at: usize, bytes: usize) {
        if let Some(log) = &self.log {
            log.mark(self.guest + at as u64, bytes);
        }
    }
}

/// Lends a guest's memory: keeps it mapped until the loan is over, then notifies [`Returns`].
///
/// The token of a loan is a group of [`Returns`], and several loans may belong to one group.
pub struct GuestLender {
    memory: GuestMemory,
    returns: Arc<Returns>,
    wake: Option<Waker>,
}

impl GuestLender {
    /// Lends from `memory`. `wake` is called for the first group that ends after [`Returns::arm`].
    pub fn new(memory: GuestMemory, returns: Arc<Returns>, wake: Option<Waker>) -> Arc<Self> {
        Arc::new(Self { memory, returns, wake })
    }

    /// Lends the memory at a guest address that is mapped without a gap, up to `bytes`, as one loan
    /// of `group`, which gets one more share. Returns `None` if no loan descriptor is free, if
    /// nothing is mapped there, or if the group is over.
    pub fn lend(
        self: &Arc<Self>,
        loans: &mut Loans,
        guest: u64,
        bytes: u32,
        group: u32,
    ) -> Option<Piece> {
        let stretch = self.memory.locate(guest, bytes as usize)?;
        if !self.returns.share(group) {
            return None;
        }
        let (start, len) = (stretch.start(), stretch.len() as u32);
        // SAFETY: the range stays mapped as long as `self.memory`, which the lender owns. The loan
        // keeps the lender alive until it has called `returned`, which ends the loan.
        let piece = unsafe { loans.lend_foreign(start, len, self.clone(), u64::from(group)) };
        if piece.is_none() {
            self.returned(u64::from(group), false);
        }
        piece
    }
}

impl Lender for GuestLender {
    fn returned(&self, token: u64, copied: bool) {
        if self.returns.end(token as u32, copied)
            && let Some(wake) = &self.wake
        {
            wake.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests;
