//! Reads of files that bypass the kernel's page cache, where this is possible and worthwhile.

use crate::large_pages::{LARGE_BLOCK_BYTES, LARGE_PAGE_BYTES};
use crate::sys;
use rustix::fd::AsRawFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, statx};
use std::fs::File;
use std::os::fd::AsFd;

/// Opens the same file again for direct reads, which bypass the page cache.
///
/// Reads must transfer blocks of [`LARGE_BLOCK_BYTES`], at file offsets that are multiples of it,
/// into a [`LargeBlock`](crate::large_pages::LargeBlock). Returns `None` if the file system does
/// not report support (`STATX_DIOALIGN`, Linux 6.1; network file systems and FUSE do not), if the
/// file cannot be opened again, or without `/proc`.
pub fn reopen(file: &File) -> Option<File> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(file, "", flags, StatxFlags::DIOALIGN).ok()?;
    let fits = |align: u32, size: usize| align > 0 && size.is_multiple_of(align as usize);
    let can = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0
        && fits(found.stx_dio_mem_align, LARGE_PAGE_BYTES.min(LARGE_BLOCK_BYTES))
        && fits(found.stx_dio_offset_align, LARGE_BLOCK_BYTES);
    if !can {
        return None;
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NONBLOCK;
    openat(CWD, path, flags, Mode::empty()).ok().map(File::from)
}

/// True if the kernel reports that its page cache holds none of these bytes of the file. False if
/// it does not report: it does since Linux 6.5, and newer versions report only to the file's owner
/// or to a process that may write the file.
pub fn is_cold(file: &File, at: u64, len: u64) -> bool {
    sys::cached_pages(file.as_fd(), at, len) == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Advice, MemfdFlags, fadvise, memfd_create};
    use std::io::Write;
    use std::num::NonZeroU64;
    use std::os::unix::fs::FileExt;

    /// Goal: cached bytes are not reported as cold, and a file that cannot be read directly is
    /// refused. Tried: a file in memory, a pipe, a file in `/proc`, a range past the end.
    #[test]
    fn only_what_is_on_a_disk_alone_is_cold() {
        let memory = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        (&memory).write_all(&[1; 5000]).unwrap();
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let status = File::open("/proc/self/status").unwrap();
        for file in [&memory, &File::from(reader), &status] {
            assert!(reopen(file).is_none(), "{file:?}");
        }
        assert!(!is_cold(&memory, 0, 5000));
        let path = std::env::temp_dir().join(format!("towpath-direct-{}", std::process::id()));
        let mut file =
            File::options().create(true).read(true).write(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let bytes: Vec<u8> = (0..2 * LARGE_BLOCK_BYTES).map(|at| (at / 7) as u8).collect();
        file.write_all(&bytes).unwrap();
        assert!(!is_cold(&file, 0, bytes.len() as u64));
        let Some(direct) = reopen(&file) else {
            println!("skipped: this file system does not support direct reads");
            return;
        };
        file.sync_all().unwrap();
        fadvise(&file, 0, NonZeroU64::new(bytes.len() as u64), Advice::DontNeed).unwrap();
        if !is_cold(&file, 0, bytes.len() as u64) {
            println!("skipped: this kernel does not report its page cache");
            return;
        }
        let area = crate::large_pages::LargePages::new(1).unwrap();
        let mut block = area.take().unwrap();
        let second = LARGE_BLOCK_BYTES as u64;
        assert_eq!(direct.read_at(&mut block, second).unwrap(), LARGE_BLOCK_BYTES);
        assert!(block[..] == bytes[LARGE_BLOCK_BYTES..]);
        assert!(is_cold(&file, 0, bytes.len() as u64));
    }
}
