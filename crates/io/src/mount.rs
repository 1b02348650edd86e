//! Mounts of a private mount namespace: resolv.conf and /proc.
//!
//! Everything here must run inside the new mount namespace. Processes outside do not see its
//! mounts, and it ends with its last process. Generated content lives in a tmpfs, never on a disk.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};

/// Why a mount could not be made.
#[derive(Debug)]
pub enum MountError {
    /// The file that the generated one would cover does not exist.
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The kernel or a sandbox refused a step.
    Refused {
        /// What was tried.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// The generated file could not be written.
    Write(io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path } => write!(f, "{} does not exist", path.display()),
            Self::Refused { step, .. } => write!(f, "cannot {step}"),
            Self::Write(..) => f.write_str("cannot write to a new tmpfs"),
        }
    }
}

impl std::error::Error for MountError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused { errno, .. } => Some(errno),
            Self::Write(error) => Some(error),
            _ => None,
        }
    }
}

/// Stops mounts in this namespace from propagating to the host; the host's mounts still propagate
/// into it.
///
/// # Errors
/// [`MountError::Refused`].
pub fn make_private() -> Result<(), MountError> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(refused("make the mounts private"))
}

/// Mounts a /proc that shows the current PID namespace.
///
/// # Errors
/// [`MountError::Refused`], mostly in containers that mask parts of /proc.
pub fn mount_proc() -> Result<(), MountError> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None).map_err(refused("mount /proc"))
}

/// Shows `content` in place of the file at `path`, which may be a symbolic link.
///
/// # Errors
/// [`MountError`].
pub fn cover_file(path: &Path, content: &[u8]) -> Result<(), MountError> {
    let target = match std::fs::canonicalize(path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::Missing { path: path.into() });
        }
        Err(error) => return Err(MountError::Write(error)),
    };
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("towpath", WORKBENCH, "tmpfs", flags, Some(TMPFS_OPTIONS))
        .map_err(refused("mount a tmpfs"))?;
    let made = make_and_bind(&target, content);
    // The bind mount keeps the tmpfs alive.
    let cleared = unmount(WORKBENCH, UnmountFlags::DETACH).map_err(refused("unmount the tmpfs"));
    made.and(cleared)
}

fn make_and_bind(target: &Path, content: &[u8]) -> Result<(), MountError> {
    let file = Path::new(WORKBENCH).join("file");
    std::fs::write(&file, content).map_err(MountError::Write)?;
    mount_bind(&file, target).map_err(refused("bind-mount a file"))
}

fn refused(step: &'static str) -> impl Fn(Errno) -> MountError {
    move |errno| MountError::Refused { step, errno }
}

/// Directory on which a tmpfs is mounted briefly to create a file. It exists on every Linux system
/// and holds no configuration file.
const WORKBENCH: &str = "/proc";
/// Room for one page-sized file and its directory; resolv.conf files are far smaller than 64 KiB.
const TMPFS_OPTIONS: &std::ffi::CStr = c"size=64k,nr_inodes=4,mode=0755";
