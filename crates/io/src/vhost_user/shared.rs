//! Memory shared with another process: mapped files that are accessed without Rust references.
//!
//! Owns mappings. A byte of a mapping may change at any time, so it is never accessed through a
//! Rust reference to data. Numbers that both sides use are accessed atomically, one field each; all
//! other data is copied in or out as a whole. All accesses are checked against the length.
//!
//! Invariant: `start` points to `bytes` bytes that stay mapped, readable and writable while the
//! [`Mapping`] lives. An access may still raise SIGBUS: if the file was truncated, or if no page
//! can be allocated for a hole in it. So every mapping is watched (see [`sigbus`](super::sigbus)),
//! or refused.
//!
//! Only memory files are mapped: those of memfd_create(2), tmpfs and hugetlbfs. Pages of any other
//! file come from a source that may never answer, such as a FUSE server, and an access would wait
//! for it. Any thread.
#![allow(unsafe_code)]

use super::sigbus::Watch;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use towpath_packet::sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use towpath_packet::{Piece, Pins, VirtioHeader, foreign};

/// Why a file could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The range is empty, or exceeds the address space.
    Range,
    /// The file ends before the range does.
    Short,
    /// The file is not memory: an access may wait for the file's server.
    Kind,
    /// The file has huge pages, and too few of them are free.
    HugePages,
    /// There are [`WATCHED_MAX`](super::sigbus::WATCHED_MAX) mappings.
    TooMany,
    /// The kernel refused.
    System(Errno),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range => f.write_str("the range to map is empty or too large"),
            Self::Short => f.write_str("the file is shorter than the range to map"),
            Self::Kind => f.write_str(
                "the file is not memory; share a memfd, or a file of tmpfs or hugetlbfs",
            ),
            Self::HugePages => {
                f.write_str("too few huge pages are free; reserve more, or share ordinary memory")
            }
            Self::TooMany => f.write_str("this process has too many mappings of shared memory"),
            Self::System(error) => write!(f, "cannot map shared memory: {error}"),
        }
    }
}

impl std::error::Error for MapError {}

/// A range of a file in our address space, shared with other holders of the file.
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Dropped before the mapping is unmapped, because a new mapping may get the same addresses.
    watch: Watch,
    _whole: Whole,
}

/// A whole mapping, which starts and ends at page boundaries.
struct Whole {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` reads and writes by atomics, and by copies that permit concurrent writers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the bytes `offset..offset + bytes` of `file`, which may be closed afterwards. Never
    /// blocks, whatever kind of file it is.
    pub fn new(file: &OwnedFd, offset: u64, bytes: u64) -> Result<Self, MapError> {
        let end = offset.checked_add(bytes).ok_or(MapError::Range)?;
        // First of all, because the server of any other file may not answer further calls.
        if !is_memory(file) {
            return Err(MapError::Kind);
        }
        let stat = rustix::fs::fstat(file).map_err(MapError::System)?;
        if u64::try_from(stat.st_size).unwrap_or(0) < end {
            return Err(MapError::Short);
        }
        let file_system = rustix::fs::fstatfs(file).map_err(MapError::System)?.f_type;
        let is_huge = file_system as u64 == HUGETLBFS_MAGIC;
        // Files of huge pages must be mapped in whole huge pages; `st_blksize` gives their size.
        let page = rustix::param::page_size() as u64;
        let block = u64::try_from(stat.st_blksize).unwrap_or(0);
        let block = if block.is_power_of_two() { block.max(page) } else { page };
        let first = offset & !(block - 1);
        let map_bytes = end.checked_next_multiple_of(block).ok_or(MapError::Range)? - first;
        let map_bytes = usize::try_from(map_bytes).map_err(|_| MapError::Range)?;
        let bytes = usize::try_from(bytes).map_err(|_| MapError::Range)?;
        if bytes == 0 || isize::try_from(map_bytes).is_err() {
            return Err(MapError::Range);
        }
        // Missing huge pages of the file are reserved now, or the mapping fails: they come from a
        // separate pool, and an access to a page that cannot be allocated would end the session.
        let reserve = if is_huge { MapFlags::empty() } else { MapFlags::NORESERVE };
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | reserve);
        // SAFETY: without an address hint and `MAP_FIXED`, the kernel places the new mapping where
        // no memory is in use.
        let map = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), map_bytes, protection, flags, file, first)
        };
        let map = map.map_err(|errno| match errno {
            Errno::NOMEM if is_huge => MapError::HugePages,
            errno => MapError::System(errno),
        })?;
        let map = NonNull::new(map).ok_or(MapError::Range)?;
        let whole = Whole { start: map, bytes: map_bytes };
        // SAFETY: `offset - first` is less than `block`, and the mapping extends at least to `end`,
        // so the result is in the mapping.
        let start = unsafe { map.cast::<u8>().add((offset - first) as usize) };
        // SAFETY: the range is the whole mapping, which is unmapped only after `watch` is dropped
        // (order of fields). All accesses permit bytes that change at any time.
        let watch = unsafe { Watch::new(map, map_bytes) }.ok_or(MapError::TooMany)?;
        Ok(Self { start, bytes, watch, _whole: whole })
    }

    /// Length of the requested range.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if the file was truncated and its content is lost.
    pub fn is_lost(&self) -> bool {
        self.watch.is_lost()
    }

    /// Returns the bytes `at..at + bytes`.
    ///
    /// # Panics
    /// If they are not in the mapping.
    #[inline]
    pub fn stretch(&self, at: usize, bytes: usize) -> Stretch<'_> {
        assert!(at <= self.bytes && bytes <= self.bytes - at);
        // SAFETY: `at` is in the mapping, as asserted above.
        let start = unsafe { self.start.add(at) };
        Stretch { start, bytes, mapped: PhantomData }
    }

    /// Sets bits of the byte at `at`; false if it is outside the mapping.
    pub(crate) fn set_bits(&self, at: usize, bits: u8) -> bool {
        if at >= self.bytes {
            return false;
        }
        let field = self.stretch(at, 1).start;
        // SAFETY: the byte is in the mapping (checked above), which makes it valid and aligned.
        // Other accesses to it are atomic, or come from another process.
        let byte = unsafe { AtomicU8::from_ptr(field.as_ptr()) };
        // Release: pairs with the Acquire of the process that reads the bit and then the page. The
        // bit is set even if it seems to be set already, because it may be cleared between a check
        // and the write.
        byte.fetch_or(bits, Ordering::Release);
        true
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: this is our own mapping. Every pointer into it belongs to a value that borrows or
        // counts the [`Mapping`] that this is a field of, so none is left. An error means that
        // nothing was mapped there, which is the goal.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// True if `file` is memory: of memfd_create(2), tmpfs or hugetlbfs. Only such files have seals,
/// and the kernel asks no file server for them.
pub(super) fn is_memory(file: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok()
}

/// File system type of huge pages (statfs(2)).
const HUGETLBFS_MAGIC: u64 = 0x958458f6;

/// A range of a mapping.
#[derive(Clone, Copy)]
pub struct Stretch<'a> {
    start: NonNull<u8>,
    bytes: usize,
    mapped: PhantomData<&'a Mapping>,
}

impl Stretch<'_> {
    /// No bytes, of no mapping.
    pub(crate) fn empty() -> Self {
        Self { start: NonNull::dangling(), bytes: 0, mapped: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Copies bytes from the start into `to`.
    ///
    /// # Panics
    /// If `to` is longer than the range.
    #[inline]
    pub fn read(&self, to: &mut [u8]) {
        assert!(to.len() <= self.bytes);
        // SAFETY: both ranges are valid for `to.len()` bytes (asserted above). `to` is private
        // memory, so they do not overlap.
        unsafe { foreign::copy(self.start.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// Copies `from` to the start of the range.
    ///
    /// # Panics
    /// If `from` is longer than the range.
    #[inline]
    pub fn write(&self, from: &[u8]) {
        assert!(from.len() <= self.bytes);
        // SAFETY: both ranges are valid for `from.len()` bytes (asserted above). `from` is private
        // memory, so they do not overlap.
        unsafe { foreign::copy(from.as_ptr(), self.start.as_ptr(), from.len()) };
    }

    /// Copies `len` bytes of `piece`, from its byte `at` on, to the start of the range. The piece
    /// may be memory of any guest, including this one; bytes that are read and written at the same
    /// time get undefined values. The piece stays pinned until `pins` pins another.
    ///
    /// # Panics
    /// If the piece or the range is shorter.
    #[inline]
    pub fn write_piece<'a>(&self, pins: &mut Pins<'a>, piece: &'a Piece, at: usize, len: usize) {
        assert!(len <= self.bytes && at <= piece.len() && len <= piece.len() - at);
        let address = pins.address(piece);
        // SAFETY: `at` is within the piece (asserted above), whose address is valid for its length
        // while it is pinned.
        let from = unsafe { address.add(at) };
        // SAFETY: both ranges are valid for `len` bytes: asserted above, and the piece is pinned.
        // The copy permits them to overlap.
        unsafe { foreign::copy(from, self.start.as_ptr(), len) };
    }

    /// Returns the bytes from `at` on.
    ///
    /// # Panics
    /// If `at` is beyond the end.
    #[inline]
    pub fn tail(&self, at: usize) -> Self {
        assert!(at <= self.bytes);
        // SAFETY: `at` is within the range, as asserted above.
        let start = unsafe { self.start.add(at) };
        Self { start, bytes: self.bytes - at, mapped: PhantomData }
    }

    /// The bytes `at..at + bytes`, if the range has them.
    #[inline]
    pub(crate) fn part(&self, at: u64, bytes: usize) -> Option<Self> {
        let left = (self.bytes as u64).checked_sub(at)?;
        if bytes as u64 > left {
            return None;
        }
        // SAFETY: `at` is at most the length of the range, as checked above.
        let start = unsafe { self.start.add(at as usize) };
        Some(Self { start, bytes, mapped: PhantomData })
    }

    /// Reads the virtio-net header at the start.
    ///
    /// # Panics
    /// If the range is shorter.
    #[inline]
    pub(crate) fn read_header(&self) -> VirtioHeader {
        let mut header = VirtioHeader::default();
        assert!(VirtioHeader::LEN <= self.bytes);
        // SAFETY: both ranges are valid for the header's length (asserted above), and `header` is
        // private memory.
        unsafe { foreign::copy_virtio_header(self.start.as_ptr(), header.0.as_mut_ptr()) };
        header
    }

    /// Writes a virtio-net header to the start.
    ///
    /// # Panics
    /// If the range is shorter.
    #[inline]
    pub(crate) fn write_header(&self, header: &VirtioHeader) {
        assert!(VirtioHeader::LEN <= self.bytes);
        // SAFETY: both ranges are valid for the header's length (asserted above), and `header` is
        // private memory.
        unsafe { foreign::copy_virtio_header(header.0.as_ptr(), self.start.as_ptr()) };
    }

    /// Prefetches the first `bytes` bytes, at most 128, which will be read soon. The range may be
    /// shorter: it costs less to prefetch what follows than to find out.
    #[inline]
    pub(crate) fn prefetch_start(&self, bytes: usize) {
        foreign::prefetch_ends_read(self.start.as_ptr(), bytes);
    }

    /// Prefetches the first `bytes` bytes, at most 128, which will be written soon. The range may
    /// be shorter, as for [`prefetch_start`](Self::prefetch_start).
    #[inline]
    pub(crate) fn prefetch_start_for_writes(&self, bytes: usize) {
        foreign::prefetch_ends_write(self.start.as_ptr(), bytes);
    }

    /// Prefetches up to [`foreign::PREFETCH_BYTES_MAX`] bytes that will be read soon.
    pub(crate) fn prefetch_read(&self) {
        foreign::prefetch_read(self.start.as_ptr(), self.bytes);
    }

    /// Prefetches up to [`foreign::PREFETCH_BYTES_MAX`] bytes that will be written soon.
    pub fn prefetch_write(&self) {
        foreign::prefetch_write(self.start.as_ptr(), self.bytes);
    }
}

/// A range of a mapping with numbers that both sides change: little-endian, aligned. Keeps the
/// mapping alive.
#[derive(Clone)]
pub struct Area {
    mapping: Arc<Mapping>,
    at: usize,
    bytes: usize,
}

impl Area {
    /// The bytes `at..at + bytes` of `mapping`. Returns `None` if they are not in the mapping, or
    /// if the first one is not aligned to `align`.
    pub fn new(mapping: Arc<Mapping>, at: usize, bytes: usize, align: usize) -> Option<Self> {
        let fits = at <= mapping.bytes && bytes <= mapping.bytes - at;
        let aligned = fits && mapping.stretch(at, 0).start.addr().get().is_multiple_of(align);
        aligned.then_some(Self { mapping, at, bytes })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the 16-bit number at `at`.
    ///
    /// # Panics
    /// If it is outside the area or not aligned. The other accesses panic likewise.
    #[inline]
    pub fn load16(&self, at: usize, order: Ordering) -> u16 {
        u16::from_le(self.atomic16(at).load(order))
    }

    /// Writes the 16-bit number at `at`.
    #[inline]
    pub fn store16(&self, at: usize, value: u16, order: Ordering) {
        self.atomic16(at).store(value.to_le(), order);
    }

    /// Reads the 32-bit number at `at`.
    #[inline]
    pub fn load32(&self, at: usize, order: Ordering) -> u32 {
        u32::from_le(self.atomic32(at).load(order))
    }

    /// Writes the 32-bit number at `at`.
    #[inline]
    pub fn store32(&self, at: usize, value: u32, order: Ordering) {
        self.atomic32(at).store(value.to_le(), order);
    }

    /// Reads the 64-bit number at `at`.
    #[inline]
    pub fn load64(&self, at: usize, order: Ordering) -> u64 {
        u64::from_le(self.atomic64(at).load(order))
    }

    /// Writes the 64-bit number at `at`.
    #[inline]
    pub fn store64(&self, at: usize, value: u64, order: Ordering) {
        self.atomic64(at).store(value.to_le(), order);
    }

    /// Address of a field of type `T`.
    #[inline]
    fn field<T>(&self, at: usize) -> *mut T {
        let end = at.checked_add(size_of::<T>());
        assert!(end.is_some_and(|end| end <= self.bytes), "a field lies within its area");
        // SAFETY: the field is in the area, as asserted above. `new` checked that the area is in
        // the mapping, and neither changes afterwards.
        let field = unsafe { self.mapping.start.add(self.at + at) }.cast::<T>();
        assert!(field.is_aligned(), "a field is aligned to its size");
        field.as_ptr()
    }

    fn atomic16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: `field` returns an aligned address in the mapping, which `self` keeps mapped.
        // This process accesses the area only by atomics.
        unsafe { AtomicU16::from_ptr(self.field(at)) }
    }

    fn atomic32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `field` returns an aligned address in the mapping, which `self` keeps mapped.
        // This process accesses the area only by atomics.
        unsafe { AtomicU32::from_ptr(self.field(at)) }
    }

    fn atomic64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `field` returns an aligned address in the mapping, which `self` keeps mapped.
        // This process accesses the area only by atomics.
        unsafe { AtomicU64::from_ptr(self.field(at)) }
    }
}

/// Numbers that an array of shared memory consists of: atomics, without padding.
pub(crate) trait Cell: sealed::Sealed {}

mod sealed {
    pub(crate) trait Sealed {}
}

macro_rules! cells {
    ($($(#[$doc:meta])* $cell:ty),*) => {$(
        $(#[$doc])*
        impl Cell for $cell {}
        impl sealed::Sealed for $cell {}
    )*};
}

cells! {
    /// An entry of an available ring.
    AtomicU16,
    /// An entry of a used ring.
    [AtomicU32; 2],
    /// A descriptor.
    [AtomicU64; 2]
}

/// An array of shared memory, checked once: its cells are found by their number. Keeps the mapping
/// alive.
pub(crate) struct Cells<T> {
    mapping: Arc<Mapping>,
    /// Offset of the first cell. Invariant: `count` cells from there on lie in the mapping, and are
    /// aligned.
    at: usize,
    count: usize,
    cell: PhantomData<[T]>,
}

impl<T: Cell> Cells<T> {
    /// The `count` cells of `area` from its byte `at` on. `None` if they are not in the area or not
    /// aligned.
    pub(crate) fn new(area: &Area, at: usize, count: usize) -> Option<Self> {
        let bytes = count.checked_mul(size_of::<T>())?;
        if at > area.bytes || bytes > area.bytes - at {
            return None;
        }
        let first = area.mapping.stretch(area.at + at, bytes).start.cast::<T>();
        let (mapping, at) = (area.mapping.clone(), area.at + at);
        first.is_aligned().then_some(Self { mapping, at, count, cell: PhantomData })
    }

    /// The cells. For several accesses, call this once: it follows two pointers.
    #[inline]
    pub(crate) fn get(&self) -> &[T] {
        // SAFETY: the first cell is in the mapping (invariant).
        let first = unsafe { self.mapping.start.add(self.at) }.cast::<T>();
        // SAFETY: as many aligned cells are in the mapping (invariant), which `self` keeps mapped.
        // They are atomics, so others may change them.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), self.count) }
    }

    /// The `count` cells of a ring from number `from` on, in two parts: up to the end of the array,
    /// and from its start on. They need no further check of their numbers.
    ///
    /// # Panics
    /// If `from` is beyond the end, or there are fewer cells.
    #[inline]
    pub(crate) fn run(&self, from: usize, count: usize) -> [&[T]; 2] {
        let (start, rest) = self.get().split_at(from);
        let before_end = &rest[..count.min(rest.len())];
        [before_end, &start[..count - before_end.len()]]
    }
}

/// A pair as one value with the alignment of its numbers.
#[repr(C, packed(4))]
struct Pair(u64);

/// Writes both numbers of an entry of a used ring in one store where the processor permits it. Not
/// ordered: the driver reads the entry after a later Release store.
#[inline]
pub(crate) fn store_pair(cell: &[AtomicU32; 2], first: u32, second: u32) {
    let pair = Pair((u64::from(first) | u64::from(second) << 32).to_le());
    let place = std::ptr::from_ref(cell).cast::<Pair>().cast_mut();
    // SAFETY: the cell has the size and the alignment of the pair, and its atomics permit writes
    // behind a shared reference. No thread of this process accesses it at the same time: one thread
    // owns the queue, and a driver waits for the index. Another process may, which a volatile write
    // permits.
    unsafe { place.write_volatile(pair) };
}
