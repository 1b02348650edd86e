//! Mappings of sealed memory files, which are as safe to read as private memory.
//!
//! A mapping of an ordinary file is not safe to read: another process may write the file, so that
//! the bytes cannot be a `&[u8]`, or truncate it, so that a read raises `SIGBUS`, which ends the
//! process. Seals of `memfd_create(2)` exclude both permanently. With `F_SEAL_WRITE` no writable
//! mapping exists or can be made, and no hole can be punched. With `F_SEAL_SHRINK` the file keeps
//! its size. A seal cannot be removed. `new` populates the pages, so that a shortage of memory is
//! an error then; from there on the pages behave like anonymous memory.
//!
//! Any thread may use a mapping.
#![allow(unsafe_code)]

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::param::page_size;
use std::fmt;
use std::os::fd::AsFd;
use std::ptr::NonNull;

/// A mapped range of a sealed file, which no process can write. Its bytes are reached with
/// `as_ref`.
pub struct SealedMapping {
    /// Start of the mapping: whole pages around the range.
    map: NonNull<u8>,
    map_len: usize,
    /// Offset of the range in the mapping.
    from: usize,
    len: usize,
}

// SAFETY: the seals that `new` checked keep every process from writing the memory, and only `drop`
// unmaps it. Neither depends on the thread.
unsafe impl Send for SealedMapping {}
// SAFETY: `&self` gives only shared access to the bytes, which no process writes (seals checked in
// `new`); only `drop` unmaps them, and it has exclusive access.
unsafe impl Sync for SealedMapping {}

impl SealedMapping {
    /// Maps `len` bytes of a file, starting at `offset`. Returns `None` if the file is not sealed
    /// against writing and shrinking, if the kernel cannot populate pages with error reports
    /// (before Linux 5.14), or if `len` is 0.
    ///
    /// # Errors
    /// `EINVAL` if the file is shorter than the range; those of `mmap(2)` and `madvise(2)`.
    pub fn new(file: impl AsFd, offset: u64, len: usize) -> Result<Option<Self>, Errno> {
        let seals = match fcntl_get_seals(&file) {
            Ok(seals) => seals,
            // Not a memory file.
            Err(Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error),
        };
        if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK) || len == 0 {
            return Ok(None);
        }
        // The seal keeps it from shrinking after this.
        let stat = fstat(&file)?;
        let size = u64::try_from(stat.st_size).map_err(|_| Errno::INVAL)?;
        let end = offset.checked_add(len as u64).filter(|end| *end <= size).ok_or(Errno::INVAL)?;
        // Files of huge pages must be mapped in whole huge pages; `st_blksize` gives their size.
        let page = page_size() as u64;
        let block = u64::try_from(stat.st_blksize).unwrap_or(0);
        let block = if block.is_power_of_two() { block.max(page) } else { page };
        let first = offset & !(block - 1);
        let map_end = end.checked_next_multiple_of(block).ok_or(Errno::INVAL)?;
        let map_len = usize::try_from(map_end - first).map_err(|_| Errno::INVAL)?;
        let (hint, access) = (std::ptr::null_mut(), ProtFlags::READ);
        // A private mapping, because older kernels refuse a shared mapping of a sealed file. Pages
        // that are never written stay the file's own pages.
        // SAFETY: without an address hint and `MAP_FIXED`, the kernel places the new mapping where
        // no memory is in use.
        let map = unsafe { mmap(hint, map_len, access, MapFlags::PRIVATE, file, first) }?;
        let map = NonNull::new(map.cast()).ok_or(Errno::FAULT)?;
        let from = (offset - first) as usize;
        let mapping = Self { map, map_len, from, len };
        // SAFETY: the range is the mapping made above, and this advice changes only page tables.
        match unsafe { madvise(map.as_ptr().cast(), map_len, Advice::LinuxPopulateRead) } {
            Ok(()) => Ok(Some(mapping)),
            Err(Errno::INVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsRef<[u8]> for SealedMapping {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `new` made sure that `from + len` is at most `map_len`, so the result is in the
        // mapping.
        let start = unsafe { self.map.as_ptr().add(self.from) };
        // SAFETY: the range is in the mapping, which lives as long as `self`. `new` populated its
        // pages, and the seals that it checked keep every process from writing the bytes or
        // removing them.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl Drop for SealedMapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and no reference into it is left, because
        // references borrow `self`. Unmapping a whole mapping cannot fail.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

impl fmt::Debug for SealedMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedMapping({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::fs::File;
    use std::io::Write;

    fn file(bytes: &[u8], seals: SealFlags) -> File {
        let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("a file");
        let mut file = File::from(file);
        file.write_all(bytes).expect("room");
        fcntl_add_seals(&file, seals).expect("seals");
        file
    }

    /// Goal: only files that no process can write or truncate are mapped, and only within their
    /// bounds. Tried: no seals, one of the two, a file on disk, a pipe, ranges past the end and
    /// numbers that overflow.
    #[test]
    fn only_what_is_sealed_is_mapped() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|at| at as u8).collect();
        let both = SealFlags::WRITE | SealFlags::SHRINK;
        let sealed = file(&bytes, both);
        for (offset, len) in [(0, 200_000), (0, 1), (70_001, 3), (65_536, 4096), (199_999, 1)] {
            let mapping = SealedMapping::new(&sealed, offset as u64, len).expect("maps");
            let mapping = mapping.expect("it is sealed");
            assert!(mapping.as_ref() == &bytes[offset..][..len]);
        }
        for (offset, len) in [(0, 200_001), (200_000, 1), (u64::MAX, 1), (1, usize::MAX)] {
            let refused = SealedMapping::new(&sealed, offset, len);
            assert_eq!(refused.map(|_| ()), Err(Errno::INVAL), "{offset} {len}");
        }
        assert!(SealedMapping::new(&sealed, 5, 0).expect("nothing").is_none());
        for seals in [SealFlags::empty(), SealFlags::WRITE, SealFlags::SHRINK] {
            let open = file(&bytes, seals);
            assert!(SealedMapping::new(&open, 0, 100).expect("no error").is_none());
        }
        let disk = File::open("/proc/self/exe").expect("a file");
        assert!(SealedMapping::new(&disk, 0, 100).expect("no error").is_none());
        let (reader, _writer) = rustix::pipe::pipe().expect("a pipe");
        assert!(SealedMapping::new(&reader, 0, 1).expect("no error").is_none());
    }

    /// Goal: the guarantees that the mapping relies on hold: the bytes stay after the file is
    /// closed, and the file cannot be truncated, written or mapped writable.
    #[test]
    fn seals_hold() {
        let sealed = file(&[7; 5000], SealFlags::WRITE | SealFlags::SHRINK);
        assert_eq!(ftruncate(&sealed, 100), Err(Errno::PERM));
        assert_eq!(rustix::io::pwrite(&sealed, &[1], 0), Err(Errno::PERM));
        let mapping = SealedMapping::new(&sealed, 1, 4000).expect("maps").expect("sealed");
        drop(sealed);
        assert!(mapping.as_ref() == [7; 4000]);
    }
}
