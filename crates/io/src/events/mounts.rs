//! Which files may keep a caller waiting although he says that he does not want to.
//!
//! io_uring begins a read or write of a regular file in the thread that asks for it, with
//! `IOCB_NOWAIT`, and hands it to a worker when the file system answers `AGAIN`. Those that take no
//! notice of the flag, as FUSE for files without a cache, keep the thread until their server
//! answers. A file does not tell; the kind of file system does. stat(2) is alike: it may ask a
//! server, but what the kernel [knows already](status) is there at once.

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, fcntl_get_seals, makedev, statx};
use rustix::io::Errno;
use std::fs::{File, read_to_string};

/// What the kernel knows of a file without asking whoever keeps it: its kind, its device and its
/// mount for sure; sizes and times may be of a while ago if it [may wait](Mounts::may_wait).
///
/// # Errors
/// Those of statx(2).
pub fn status(file: impl AsFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

/// What kind of file it is.
pub fn kind(status: &Statx) -> FileType {
    FileType::from_raw_mode(status.stx_mode.into())
}

/// The device that it is on, as stat(2) numbers it.
pub fn device(status: &Statx) -> u64 {
    makedev(status.stx_dev_major, status.stx_dev_minor)
}

/// As [`status`], from whoever keeps the file, which may take as long as a disk, a server or a
/// network does.
pub(super) fn ask(file: &File) -> Result<Statx, Errno> {
    statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// What was found out about the mounts that files are on.
#[derive(Debug, Default)]
pub struct Mounts(Vec<(Mount, bool)>);

/// A mount and its device: its number may be another's when it has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mount(u64, u32, u32);

/// Mounts that are known at a time.
const MOUNTS_MAX: usize = 64;
/// File systems that read what the kernel has in memory, and nothing more if they are told so.
/// Others are only slower for not being here.
const HEEDFUL: [&str; 11] = [
    "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "overlay", "squashfs", "vfat", "xfs",
];

impl Mounts {
    /// Whether to read, write or stat a file may take as long as a disk, a server or a network does
    /// in spite of `IOCB_NOWAIT`. It asks nobody but the kernel, which knows this
    /// [of it](status).
    pub fn may_wait(&mut self, file: &File, status: &Statx) -> bool {
        // Only files in memory have seals, on whatever mount; some are on none.
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

    /// Whether its file system is one of [`HEEDFUL`]. A mount that is not among those of this
    /// process is not.
    fn is_heedful(self) -> bool {
        let Ok(mounts) = read_to_string("/proc/self/mountinfo") else { return false };
        let kind = mounts.lines().find_map(|line| {
            // proc_pid_mountinfo(5): optional fields end with a dash, then comes the kind.
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

    /// Goal: files in memory do not wait, wherever they are; those of a file system that is not
    /// known to heed the request may; a second file of a mount is known by the first.
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

    /// Goal: what is remembered of mounts has a limit, and is right when it has been forgotten.
    #[test]
    fn many_mounts_are_forgotten() {
        let others = (0..MOUNTS_MAX).map(|number| (Mount(u64::MAX, 0, number as u32), true));
        let mut mounts = Mounts(others.collect());
        let file = File::open("/proc/self/status").unwrap();
        assert!(mounts.may_wait(&file, &status(&file).unwrap()));
        assert_eq!(mounts.0.len(), 1);
    }

    /// Goal: what the kernel knows of a file is what stat(2) says of it.
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
