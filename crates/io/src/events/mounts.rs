//! Determines which files may block a caller that requested not to be blocked.
//!
//! io_uring starts a read or write of a regular file in the calling thread, with `IOCB_NOWAIT`, and
//! hands it to a worker if the file system answers `AGAIN`. File systems that ignore the flag, such
//! as FUSE for uncached files, block the thread until their server answers. A file does not reveal
//! this, but its file system type does. stat(2) has the same problem: it may ask a server, but what
//! the kernel [knows already](status) is available at once.

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, fcntl_get_seals, makedev, statx};
use rustix::io::Errno;
use std::fs::{File, read_to_string};

/// Returns the kernel's information about a file, without asking the file's server. Its kind,
/// device and mount are exact; sizes and times may be outdated if it [may wait](Mounts::may_wait).
///
/// # Errors
/// Those of statx(2).
pub fn status(file: impl AsFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

/// The kind of the file.
pub fn kind(status: &Statx) -> FileType {
    FileType::from_raw_mode(status.stx_mode.into())
}

/// The number of the file's device, as in stat(2).
pub fn device(status: &Statx) -> u64 {
    makedev(status.stx_dev_major, status.stx_dev_minor)
}

/// Returns current information about a file. The file's server may be asked, which may take as long
/// as a disk or a network does.
pub(super) fn ask(file: &File) -> Result<Statx, Errno> {
    statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// Remembers for mounts whether their files may block.
#[derive(Debug, Default)]
pub struct Mounts(Vec<(Mount, bool)>);

/// A mount and its device. The number alone is not unique: it may be used again after an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mount(u64, u32, u32);

/// Most mounts remembered.
const MOUNTS_MAX: usize = 64;
/// File systems that respect `IOCB_NOWAIT` and return only what is in the page cache. One that is
/// missing here is only slower.
const HEEDFUL: [&str; 11] = [
    "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "overlay", "squashfs", "vfat", "xfs",
];

impl Mounts {
    /// True if a read, write or stat of a file may take as long as a disk, a server or a network
    /// does, despite `IOCB_NOWAIT`. Asks only the kernel; `status` is its [information](status)
    /// about the file.
    pub fn may_wait(&mut self, file: &File, status: &Statx) -> bool {
        // Only memory files have seals, on any mount; some are on no mount.
        self.mount_may_wait(status) && fcntl_get_seals(file).is_err()
    }

    fn mount_may_wait(&mut self, status: &Statx) -> bool {
        if status.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return true;
        }
        let mount = Mount::of(status);
        if let Some((_, may_wait)) = self.0.iter().find(|(known, _)| *known == mount) {
            return *may_wait;
        }
        let may_wait = !mount.is_heedful();
        if self.0.len() == MOUNTS_MAX {
            self.0.clear();
        }
        self.0.push((mount, may_wait));
        may_wait
    }
}

impl Mount {
    fn of(found: &Statx) -> Self {
        Self(found.stx_mnt_id, found.stx_dev_major, found.stx_dev_minor)
    }

    /// True if the file system is one of [`HEEDFUL`]. False for a mount that this process does not
    /// see.
    fn is_heedful(self) -> bool {
        let Ok(mounts) = read_to_string("/proc/self/mountinfo") else { return false };
        let kind = mounts.lines().find_map(|line| {
            // proc_pid_mountinfo(5): a dash ends the optional fields, and the type follows.
            let (fields, rest) = line.split_once(" - ")?;
            let number = fields.split(' ').next()?.parse();
            (number == Ok(self.0)).then(|| rest.split(' ').next().unwrap_or_default())
        });
        kind.is_some_and(|kind| HEEDFUL.contains(&kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    /// Goal: memory files do not block, on whatever mount; files of a file system that is not
    /// listed may; the second file of a mount uses the result of the first.
    #[test]
    fn what_may_wait_is_known_by_its_mount() {
        let mut mounts = Mounts::default();
        let memory = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        assert!(!mounts.may_wait(&memory, &status(&memory).unwrap()));
        for name in ["/proc/self/status", "/proc/self/stat"] {
            let file = File::open(name).unwrap();
            assert!(mounts.may_wait(&file, &status(&file).unwrap()));
        }
        assert_eq!(mounts.0.len(), 2);
    }

    /// Goal: the number of remembered mounts is bounded, and forgotten ones are determined
    /// correctly again.
    #[test]
    fn many_mounts_are_forgotten() {
        let others = (0..MOUNTS_MAX).map(|number| (Mount(u64::MAX, 0, number as u32), true));
        let mut mounts = Mounts(others.collect());
        let file = File::open("/proc/self/status").unwrap();
        assert!(mounts.may_wait(&file, &status(&file).unwrap()));
        assert_eq!(mounts.0.len(), 1);
    }

    /// Goal: the kernel's information about a file agrees with stat(2).
    #[test]
    fn status_is_that_of_stat() {
        let file = File::open("/proc/self/exe").unwrap();
        let (own, other) = (status(&file).unwrap(), rustix::fs::fstat(&file).unwrap());
        assert_eq!((device(&own), own.stx_ino), (other.st_dev, other.st_ino));
        assert_eq!((kind(&own), own.stx_size), (FileType::RegularFile, other.st_size as u64));
        let asked = ask(&file).unwrap();
        assert_eq!((asked.stx_mtime.tv_sec, asked.stx_size), (other.st_mtime, own.stx_size));
        assert_ne!(kind(&status(std::io::stderr()).unwrap()), FileType::Directory);
    }
}
