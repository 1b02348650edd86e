//! Ranges of memory files that are sealed: mapped, and as good as memory of our own.
//!
//! A mapping of an ordinary file is nobody's: another process may write the file, so that its bytes
//! are no `&[u8]`, or cut it short, so that reading them is a signal (`SIGBUS`) that ends the
//! process. Seals of `memfd_create(2)` exclude both for good: with `F_SEAL_WRITE` there is no
//! mapping that could write and there will be none, and no hole is punched; with `F_SEAL_SHRINK`
//! the file keeps its size; no seal is ever taken off. Pages are touched when the range is mapped,
//! so that memory that is short is an error then. From there on they are like anonymous memory.
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

/// A range of a sealed file, which nobody writes. Dereferences to its bytes.
pub struct SealedMapping {
    /// What was mapped: the pages that the range touches.
    map: NonNull<u8>,
    map_len: usize,
    /// Where the range begins in it.
    from: usize,
    len: usize,
}

// SAFETY: memory that nobody writes and nobody else unmaps; it is the same on any thread.
unsafe impl Send for SealedMapping {}
// SAFETY: as above.
unsafe impl Sync for SealedMapping {}

impl SealedMapping {
    /// Maps `len` bytes of a file from `offset` on. `None` if it is not sealed against writing and
    /// shrinking, if the system is too old to touch pages safely (Linux 5.14), or for no bytes.
    ///
    /// # Errors
    /// `EINVAL` if the file is shorter, and those of `mmap(2)` and `madvise(2)`.
    pub fn new(file: impl AsFd, offset: u64, len: usize) -> Result<Option<Self>, Errno> {
        let seals = match fcntl_get_seals(&file) {
            Ok(seals) => seals,
            // No file in memory.
            Err(Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error),
        };
        if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK) || len == 0 {
            return Ok(None);
        }
        // It does not get shorter any more.
        let stat = fstat(&file)?;
        let size = u64::try_from(stat.st_size).map_err(|_| Errno::INVAL)?;
        let end = offset.checked_add(len as u64).filter(|end| *end <= size).ok_or(Errno::INVAL)?;
        // Files of huge pages are mapped in whole ones, which their block size tells.
        let page = page_size() as u64;
        let block = u64::try_from(stat.st_blksize).unwrap_or(0);
        let block = if block.is_power_of_two() { block.max(page) } else { page };
        let first = offset & !(block - 1);
        let map_end = end.checked_next_multiple_of(block).ok_or(Errno::INVAL)?;
        let map_len = usize::try_from(map_end - first).map_err(|_| Errno::INVAL)?;
        let (hint, access) = (std::ptr::null_mut(), ProtFlags::READ);
        // Private, as older systems refuse a shared mapping of what is sealed. A page that nobody
        // writes is the file's own all the same.
        // SAFETY: a new mapping where the system likes, which touches no other memory.
        let map = unsafe { mmap(hint, map_len, access, MapFlags::PRIVATE, file, first) }?;
        let map = NonNull::new(map.cast()).ok_or(Errno::FAULT)?;
        let from = (offset - first) as usize;
        let mapping = Self { map, map_len, from, len };
        // SAFETY: it is our own mapping, and the advice changes nothing but page tables.
        match unsafe { madvise(map.as_ptr().cast(), map_len, Advice::LinuxPopulateRead) } {
            Ok(()) => Ok(Some(mapping)),
            Err(Errno::INVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsRef<[u8]> for SealedMapping {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `from + len` is within the mapping.
        let start = unsafe { self.map.as_ptr().add(self.from) };
        // SAFETY: mapped as long as `self`, and the seals that `new` found keep everybody from
        // writing the bytes or taking them away.
        unsafe { std::slice::from_raw_parts(start, self.len) }
    }
}

impl Drop for SealedMapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which there is no reference any more. What is mapped can be
        // unmapped.
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

    /// Goal: only what nobody can write or cut is mapped, and only within its bounds. Tried: no
    /// seals, one of two, a file on disk, a pipe, ranges beyond the end and beyond all numbers.
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

    /// Goal: what the mapping relies on is so: the bytes stay though the file is closed, and nobody
    /// cuts it, writes it or maps it to be written.
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
