//! Enters the network namespace of another process.
//!
//! Creating an interface needs privilege in the user namespace that owns the network namespace. A
//! process without it gets it by entering that user namespace, which a process of its owner may do.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Stat, fstat, stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::outside::{self, Wanted};
use crate::process_sys::owning_user_namespace;

/// Why a namespace could not be entered.
#[derive(Debug)]
pub enum EnterError {
    /// The namespace's file cannot be opened.
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not a network namespace.
    NotNetwork {
        /// The file.
        path: PathBuf,
    },
    /// There is no process with this PID.
    NoProcess(i32),
    /// This process is in that namespace already.
    Own {
        /// The file.
        path: PathBuf,
    },
    /// The namespace belongs to another user.
    NotPermitted {
        /// The file.
        path: PathBuf,
    },
    /// Any other error.
    Os {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: Errno,
    },
}

impl fmt::Display for EnterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, .. } => {
                write!(f, "cannot open the network namespace {}", path.display())
            }
            Self::NotNetwork { path } => write!(f, "{} is not a network namespace", path.display()),
            Self::NoProcess(value) => write!(f, "there is no process with PID {value}"),
            Self::Own { path } => write!(
                f,
                "{} is the network namespace of towpath itself, so its own traffic would come \
                 back to it; start programs with `towpath run`, or in another namespace \
                 (`unshare --net`)",
                path.display()
            ),
            Self::NotPermitted { path } => write!(
                f,
                "no permission to enter the network namespace {}: it belongs to another user; \
                 run towpath as that user or as root",
                path.display()
            ),
            Self::Os { path, .. } => {
                write!(f, "cannot enter the network namespace {}", path.display())
            }
        }
    }
}

impl std::error::Error for EnterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Open { source, .. } => Some(source),
            Self::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Identifies a namespace as long as it exists. Holds nothing open, so that the file by which it
/// was found can be unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// True if `path` leads to this namespace.
    pub fn is_at(&self, path: &Path) -> bool {
        match outside::ask(Wanted::Namespace, 0, &[], None) {
            Some(answer) => answer.is_ok_and(|answer| {
                let [device, inode, ..] = answer.numbers;
                Identity { device, inode } == *self
            }),
            None => stat(path).is_ok_and(|found| Identity::of(found) == *self),
        }
    }

    fn of(stat: Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// A network namespace, kept alive by this value.
#[derive(Debug)]
pub struct NetworkNamespace {
    file: File,
    path: PathBuf,
}

impl NetworkNamespace {
    /// The namespace behind a file such as `/proc/PID/ns/net` or `/run/netns/NAME`.
    ///
    /// # Errors
    /// [`EnterError::Open`] or [`EnterError::NotPermitted`].
    pub fn open(path: &Path) -> Result<Self, EnterError> {
        let path = path.to_owned();
        match File::open(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                Err(EnterError::NotPermitted { path })
            }
            Err(source) => Err(EnterError::Open { path, source }),
        }
    }

    /// Checks that this process is in another namespace.
    ///
    /// # Errors
    /// [`EnterError::Own`].
    pub fn check_foreign(&self) -> Result<(), EnterError> {
        let own = stat("/proc/self/ns/net").map(Identity::of);
        match (own, self.identity()?) {
            (Ok(own), this) if own == this => Err(EnterError::Own { path: self.path.clone() }),
            _ => Ok(()),
        }
    }

    /// Moves this process into the namespace, and into the user namespace that owns it if that is
    /// another.
    ///
    /// # Errors
    /// [`EnterError`].
    pub fn enter(&self) -> Result<(), EnterError> {
        if let Some(owner) = self.foreign_owner()? {
            move_into_link_name_space(owner.as_fd(), Some(LinkNameSpaceType::User))
                .map_err(|errno| self.error(errno))?;
        }
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| self.error(errno))
    }

    /// Returns the identity of this namespace.
    ///
    /// # Errors
    /// [`EnterError::Os`].
    pub fn identity(&self) -> Result<Identity, EnterError> {
        fstat(&self.file).map(Identity::of).map_err(|errno| self.error(errno))
    }

    /// Opens the network namespace of the process `pid`, and a descriptor that becomes readable
    /// when that process ends.
    ///
    /// # Errors
    /// [`EnterError::NoProcess`], and those of [`open`](Self::open).
    pub fn of_process(pid: i32) -> Result<(Self, OwnedFd), EnterError> {
        // `Pid` cannot hold a negative number.
        let number = Pid::from_raw(pid.max(0)).ok_or(EnterError::NoProcess(pid))?;
        // Opened before the namespace is looked up, so that both belong to the same process.
        let pidfd = pidfd_open(number, PidfdFlags::empty());
        let pidfd = pidfd.map_err(|_| EnterError::NoProcess(pid))?;
        let namespace = Self::open(Path::new(&format!("/proc/{pid}/ns/net")))?;
        rustix::process::test_kill_process(number)
            .or_else(|errno| if errno == Errno::PERM { Ok(()) } else { Err(errno) })
            .map_err(|_| EnterError::NoProcess(pid))?;
        Ok((namespace, pidfd))
    }

    fn foreign_owner(&self) -> Result<Option<OwnedFd>, EnterError> {
        let owner = match owning_user_namespace(self.file.as_fd()) {
            Ok(owner) => owner,
            Err(error) => return Err(self.error(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
        };
        let own_path = Path::new("/proc/self/ns/user");
        let own = stat(own_path)
            .map_err(|errno| EnterError::Open { path: own_path.into(), source: errno.into() })?;
        let other = fstat(&owner).map_err(|errno| self.error(errno))?;
        Ok((Identity::of(own) != Identity::of(other)).then_some(owner))
    }

    fn error(&self, errno: Errno) -> EnterError {
        let path = self.path.clone();
        match errno {
            Errno::PERM | Errno::ACCESS => EnterError::NotPermitted { path },
            Errno::NOTTY | Errno::INVAL => EnterError::NotNetwork { path },
            source => EnterError::Os { path, source },
        }
    }
}

/// A descriptor that becomes readable when a file's directory loses a name, perhaps that file's.
#[derive(Debug)]
pub struct RemovalWatch(OwnedFd);

impl RemovalWatch {
    /// Watches the directory of `path`. Some file systems, such as /proc, never report anything.
    ///
    /// # Errors
    /// Those of inotify_init1(2) and inotify_add_watch(2).
    pub fn new(path: &Path) -> io::Result<Self> {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let gone = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::DELETE_SELF;
        inotify::add_watch(&watch, directory, gone)?;
        Ok(Self(watch))
    }

    /// Forgets the reports so far, so that only new ones make it readable.
    pub fn clear(&self) {
        let mut reports = [0; 4096];
        while matches!(rustix::io::read(&self.0, &mut reports), Ok(1..)) {}
    }
}

impl AsFd for RemovalWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
