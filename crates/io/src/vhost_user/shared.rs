//! Memory that is shared with another process: mapped files, read and written without references.
//!
//! Owns mappings. A byte of a mapping may change at any time, so it is never seen through a Rust
//! reference to data: numbers that both sides agree upon are atomic accesses of one field each,
//! everything else is copied in or out whole. All accesses are checked against the length.
//!
//! Invariant: `start` points to `bytes` bytes that stay mapped, readable and writable while the
//! [`Mapping`] lives. They may still fail to be *there*: if somebody cuts the file, or no page can
//! be had for a hole in it, touching them raises SIGBUS. So every mapping is watched, see
//! [`cut`](super::cut), or refused.
//!
//! Only memory is mapped: files of memfd_create(2), tmpfs and hugetlbfs. Pages of all others come
//! from somewhere that may never answer, such as a process that serves the file (FUSE), and whoever
//! touches them would wait for it. Any thread.
#![allow(unsafe_code)]

use super::cut::Watch;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use towpath_packet::sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use towpath_packet::{Piece, Pins, foreign};

/// Why a file could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// There are no bytes, or they end behind the end of the address space.
    Range,
    /// The file ends before the range does.
    Short,
    /// The file is no memory: touching it may wait for whoever serves it.
    Kind,
    /// Its pages are huge, and there are not as many.
    HugePages,
    /// There are [`WATCHED_MAX`](super::cut::WATCHED_MAX) mappings.
    TooMany,
    /// The kernel refused.
    System(Errno),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range => f.write_str("the range to be mapped is empty or too large"),
            Self::Short => f.write_str("the file is shorter than what is to be mapped of it"),
            Self::Kind => {
                f.write_str("the file is no memory: share a memfd, or a file of tmpfs or hugetlbfs")
            }
            Self::HugePages => f.write_str(
                "there are too few free huge pages: have more, or share ordinary memory",
            ),
            Self::TooMany => {
                f.write_str("there are too many mappings of shared memory in this process")
            }
            Self::System(error) => write!(f, "mapping shared memory failed: {error}"),
        }
    }
}

impl std::error::Error for MapError {}

/// A range of a file in our address space, shared with whoever else has the file.
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Dropped before what it watches is unmapped: others may get the same addresses.
    watch: Watch,
    _whole: Whole,
}

/// A whole mapping, which begins and ends on pages.
struct Whole {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` reads and writes by atomics and by copies that allow for concurrent writers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the bytes `offset..offset + bytes` of `file`, which is not needed afterwards. Waits for
    /// nobody, whatever the file is.
    pub fn new(file: &OwnedFd, offset: u64, bytes: u64) -> Result<Self, MapError> {
        let end = offset.checked_add(bytes).ok_or(MapError::Range)?;
        // Before anything else is asked: who serves another file may not answer.
        if !is_memory(file) {
            return Err(MapError::Kind);
        }
        let stat = rustix::fs::fstat(file).map_err(MapError::System)?;
        if u64::try_from(stat.st_size).unwrap_or(0) < end {
            return Err(MapError::Short);
        }
        let file_system = rustix::fs::fstatfs(file).map_err(MapError::System)?.f_type;
        let is_huge = file_system as u64 == HUGETLBFS_MAGIC;
        // Files of huge pages are mapped in whole ones, which their block size tells.
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
        // Of huge pages those that the file lacks are reserved now, or this fails: they do not come
        // from memory at large, and touching one that cannot be had is the end of the session.
        let reserve = if is_huge { MapFlags::empty() } else { MapFlags::NORESERVE };
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | reserve);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let map = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), map_bytes, protection, flags, file, first)
        };
        let map = map.map_err(|errno| match errno {
            Errno::NOMEM if is_huge => MapError::HugePages,
            errno => MapError::System(errno),
        })?;
        let map = NonNull::new(map).ok_or(MapError::Range)?;
        let whole = Whole { start: map, bytes: map_bytes };
        // SAFETY: `offset - first < block`, and the mapping reaches to `end` at least.
        let start = unsafe { map.cast::<u8>().add((offset - first) as usize) };
        // SAFETY: all of the mapping, which ends with the value, after the watch. What is in it
        // may change at any time anyhow.
        let watch = unsafe { Watch::new(map, map_bytes) }.ok_or(MapError::TooMany)?;
        Ok(Self { start, bytes, watch, _whole: whole })
    }

    /// Bytes that were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if somebody has cut the file and what was there is lost.
    pub fn is_cut(&self) -> bool {
        self.watch.is_cut()
    }

    /// The bytes `at..at + bytes`.
    ///
    /// # Panics
    /// If they are not within the mapping.
    #[inline]
    pub fn stretch(&self, at: usize, bytes: usize) -> Stretch<'_> {
        assert!(at <= self.bytes && bytes <= self.bytes - at);
        // SAFETY: within the mapping, as just asserted.
        let start = unsafe { self.start.add(at) };
        Stretch { start, bytes, mapped: PhantomData }
    }

    /// Sets bits of the byte at `at`; false if it is not within the mapping.
    pub(crate) fn set_bits(&self, at: usize, bits: u8) -> bool {
        if at >= self.bytes {
            return false;
        }
        let field = self.stretch(at, 1).start;
        // SAFETY: one byte of the mapping; others reach it by atomics or as another process.
        let byte = unsafe { AtomicU8::from_ptr(field.as_ptr()) };
        // Release: pairs with the Acquire of whoever takes the bit and reads what it stands for. It
        // is set again even if it is seen set: it may be taken between the look and the write.
        byte.fetch_or(bits, Ordering::Release);
        true
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: our mapping, and whoever points into it borrows or counts the value that this is
        // a part of. An error means that it was not mapped, which is what is wanted.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// True if `file` is memory: of memfd_create(2), tmpfs or hugetlbfs. Files of no other kind have
/// seals, and the kernel asks nobody for them.
pub(super) fn is_memory(file: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok()
}

/// Files of huge pages (statfs(2)).
const HUGETLBFS_MAGIC: u64 = 0x958458f6;

/// A range of a mapping.
#[derive(Clone, Copy)]
pub struct Stretch<'a> {
    start: NonNull<u8>,
    bytes: usize,
    mapped: PhantomData<&'a Mapping>,
}

impl Stretch<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Copies the start out.
    ///
    /// # Panics
    /// If `to` is longer.
    #[inline]
    pub fn read(&self, to: &mut [u8]) {
        assert!(to.len() <= self.bytes);
        // SAFETY: both are valid for so many bytes; `to` is ours, so that they do not overlap.
        unsafe { foreign::copy(self.start.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// Copies `from` to the start.
    ///
    /// # Panics
    /// If `from` is longer.
    #[inline]
    pub fn write(&self, from: &[u8]) {
        assert!(from.len() <= self.bytes);
        // SAFETY: as above.
        unsafe { foreign::copy(from.as_ptr(), self.start.as_ptr(), from.len()) };
    }

    /// Copies `len` bytes of `piece`, beginning with its byte `at`, to the start. The piece may be
    /// memory of another guest, or of this one: bytes that are both read and written come out as
    /// anything. It stays pinned until `pins` pins another.
    ///
    /// # Panics
    /// If either is shorter.
    #[inline]
    pub fn write_piece<'a>(&self, pins: &mut Pins<'a>, piece: &'a Piece, at: usize, len: usize) {
        assert!(len <= self.bytes && at <= piece.len() && len <= piece.len() - at);
        let address = pins.address(piece);
        // SAFETY: `at` is within the piece, whose address is valid for its length while pinned.
        let from = unsafe { address.add(at) };
        // SAFETY: as above; they may overlap.
        unsafe { foreign::copy(from, self.start.as_ptr(), len) };
    }

    /// The bytes from `at` on.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn tail(&self, at: usize) -> Self {
        assert!(at <= self.bytes);
        // SAFETY: within the stretch, as just asserted.
        let start = unsafe { self.start.add(at) };
        Self { start, bytes: self.bytes - at, mapped: PhantomData }
    }

    /// Has up to [`foreign::PREFETCH_BYTES_MAX`] bytes fetched that are read soon.
    pub(crate) fn prefetch_read(&self) {
        foreign::prefetch_read(self.start.as_ptr(), self.bytes);
    }

    /// Tells the processor that up to [`foreign::PREFETCH_BYTES_MAX`] bytes will be written soon.
    pub fn prefetch_write(&self) {
        foreign::prefetch_write(self.start.as_ptr(), self.bytes);
    }
}

/// A range of a mapping that holds numbers which both sides change: little endian, aligned. Keeps
/// the mapping.
#[derive(Clone)]
pub struct Area {
    mapping: Arc<Mapping>,
    at: usize,
    bytes: usize,
}

impl Area {
    /// The bytes `at..at + bytes` of `mapping`; `None` if they are not within it, or if the first
    /// is not aligned to `align`.
    pub fn new(mapping: Arc<Mapping>, at: usize, bytes: usize, align: usize) -> Option<Self> {
        let fits = at <= mapping.bytes && bytes <= mapping.bytes - at;
        let aligned = fits && mapping.stretch(at, 0).start.addr().get().is_multiple_of(align);
        aligned.then_some(Self { mapping, at, bytes })
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the 16-bit number at `at`.
    ///
    /// # Panics
    /// If it is not within the area, or not aligned; so do the others.
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

    /// Where a field of `T` is.
    #[inline]
    fn field<T>(&self, at: usize) -> *mut T {
        let end = at.checked_add(size_of::<T>());
        assert!(end.is_some_and(|end| end <= self.bytes), "a field lies within its area");
        // SAFETY: within the area, as just asserted, which `new` has found to be within the
        // mapping; neither changes.
        let field = unsafe { self.mapping.start.add(self.at + at) }.cast::<T>();
        assert!(field.is_aligned(), "a field is aligned to its size");
        field.as_ptr()
    }

    fn atomic16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: within the mapping and aligned; this process reaches it by atomics only.
        unsafe { AtomicU16::from_ptr(self.field(at)) }
    }

    fn atomic32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.field(at)) }
    }

    fn atomic64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.field(at)) }
    }
}
