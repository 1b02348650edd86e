//! Enters the network namespace of another process.
//!
//! Creating an interface needs privilege in the user namespace that owns the network namespace. A
//! process without it gets it by entering that user namespace, which a process of its owner may do.
//! The caller may name another user namespace to enter first.
//!
//! Namespaces are named by a path or by an inherited descriptor.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Mode, OFlags, Stat, fstat, stat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::outside::{self, Wanted};
use crate::process_sys::{namespace_kind, owning_user_namespace};

/// Why a namespace could not be entered. A `path` is what the namespace was named by: a file, or
/// `file descriptor N`.
#[derive(Debug)]
pub enum EnterError {
    /// The namespace's file cannot be opened.
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not a namespace of the wanted kind.
    NotNamespace {
        /// The file.
        path: PathBuf,
        /// The wanted kind.
        wanted: &'static str,
        /// The kind of namespace that it is instead, if it is one.
        kind: Option<&'static str>,
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
    /// The user namespace belongs to another user.
    UserNotPermitted {
        /// The file.
        path: PathBuf,
    },
    /// The user namespace gives no rights over the network namespace.
    NotOwner {
        /// The network namespace's file.
        path: PathBuf,
        /// The user namespace's file.
        user: PathBuf,
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
                write!(f, "cannot open the namespace {}", path.display())
            }
            Self::NotNamespace { path, wanted, kind: None } => {
                write!(f, "{} is not a {wanted} namespace", path.display())
            }
            Self::NotNamespace { path, wanted, kind: Some(kind) } => {
                write!(f, "{} is a {kind} namespace; expected a {wanted} namespace", path.display())
            }
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
            Self::UserNotPermitted { path } => write!(
                f,
                "no permission to enter the user namespace {}: it belongs to another user, or is \
                 no descendant of towpath's own; run towpath as that user or as root",
                path.display()
            ),
            Self::NotOwner { path, user } => write!(
                f,
                "no permission to enter the network namespace {} from the user namespace {}, \
                 which does not own it; leave out the user namespace: towpath finds the owner",
                path.display(),
                user.display()
            ),
            Self::Os { path, .. } => write!(f, "cannot enter the namespace {}", path.display()),
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
    file: OwnedFd,
    path: PathBuf,
}

/// A user namespace, kept alive by this value.
#[derive(Debug)]
pub struct UserNamespace {
    file: OwnedFd,
    path: PathBuf,
}

impl UserNamespace {
    /// The user namespace behind a file such as `/proc/PID/ns/user`.
    ///
    /// # Errors
    /// [`EnterError::Open`], [`EnterError::UserNotPermitted`] or [`EnterError::NotNamespace`].
    pub fn open(path: &Path) -> Result<Self, EnterError> {
        let file = open(path).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => {
                EnterError::UserNotPermitted { path: path.to_owned() }
            }
            _ => EnterError::Open { path: path.to_owned(), source },
        })?;
        Self::checked(file, path.to_owned())
    }

    /// The user namespace behind a descriptor, with its number for messages.
    ///
    /// # Errors
    /// [`EnterError::NotNamespace`].
    pub fn from_fd(file: OwnedFd, number: RawFd) -> Result<Self, EnterError> {
        Self::checked(file, descriptor(number))
    }

    fn checked(file: OwnedFd, path: PathBuf) -> Result<Self, EnterError> {
        check_kind(&file, &path, libc::CLONE_NEWUSER)?;
        Ok(Self { file, path })
    }

    fn enter(&self) -> Result<(), EnterError> {
        // The kernel refuses to enter it again.
        if identity_at(OWN_USER)? == Identity::of(fstat(&self.file).map_err(|e| self.error(e))?) {
            return Ok(());
        }
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::User))
            .map_err(|errno| self.error(errno))
    }

    fn error(&self, errno: Errno) -> EnterError {
        let path = self.path.clone();
        match errno {
            Errno::PERM | Errno::ACCESS => EnterError::UserNotPermitted { path },
            source => EnterError::Os { path, source },
        }
    }
}

impl NetworkNamespace {
    /// The namespace behind a file such as `/proc/PID/ns/net` or `/run/netns/NAME`.
    ///
    /// # Errors
    /// [`EnterError::Open`], [`EnterError::NotPermitted`] or [`EnterError::NotNamespace`].
    pub fn open(path: &Path) -> Result<Self, EnterError> {
        let file = open(path).map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => EnterError::NotPermitted { path: path.to_owned() },
            _ => EnterError::Open { path: path.to_owned(), source },
        })?;
        Self::checked(file, path.to_owned())
    }

    /// The namespace behind a descriptor, with its number for messages.
    ///
    /// # Errors
    /// [`EnterError::NotNamespace`].
    pub fn from_fd(file: OwnedFd, number: RawFd) -> Result<Self, EnterError> {
        Self::checked(file, descriptor(number))
    }

    fn checked(file: OwnedFd, path: PathBuf) -> Result<Self, EnterError> {
        check_kind(&file, &path, libc::CLONE_NEWNET)?;
        Ok(Self { file, path })
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

    /// Moves this process into the namespace. Before, moves it into the user namespace `user`, or
    /// without one into the user namespace that owns this namespace if that is another.
    ///
    /// # Errors
    /// [`EnterError`].
    pub fn enter(&self, user: Option<&UserNamespace>) -> Result<(), EnterError> {
        match user {
            Some(user) => user.enter()?,
            None => {
                if let Some(owner) = self.foreign_owner()? {
                    move_into_link_name_space(owner.as_fd(), Some(LinkNameSpaceType::User))
                        .map_err(|errno| self.error(errno))?;
                }
            }
        }
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(
            |errno| match (self.error(errno), user) {
                (EnterError::NotPermitted { path }, Some(user)) => {
                    EnterError::NotOwner { path, user: user.path.clone() }
                }
                (error, _) => error,
            },
        )
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
        let other = fstat(&owner).map_err(|errno| self.error(errno))?;
        Ok((identity_at(OWN_USER)? != Identity::of(other)).then_some(owner))
    }

    fn error(&self, errno: Errno) -> EnterError {
        let path = self.path.clone();
        match errno {
            Errno::PERM | Errno::ACCESS => EnterError::NotPermitted { path },
            source => EnterError::Os { path, source },
        }
    }
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// This process's user namespace.
const OWN_USER: &str = "/proc/self/ns/user";

/// Opens a namespace's file, without waiting if it is a pipe instead.
fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Returns how messages show a descriptor.
fn descriptor(number: RawFd) -> PathBuf {
    format!("file descriptor {number}").into()
}

fn identity_at(path: &str) -> Result<Identity, EnterError> {
    let found = stat(path);
    found
        .map(Identity::of)
        .map_err(|errno| EnterError::Open { path: path.into(), source: errno.into() })
}

/// Checks that `file` is a namespace of the kind `wanted`, a `CLONE_NEW*` bit.
fn check_kind(file: &OwnedFd, path: &Path, wanted: c_int) -> Result<(), EnterError> {
    let kind = namespace_kind(file.as_fd());
    if kind == Ok(wanted) {
        return Ok(());
    }
    let (path, wanted) = (path.to_owned(), kind_name(wanted));
    Err(EnterError::NotNamespace { path, wanted, kind: kind.ok().map(kind_name) })
}

/// Returns the name of the kind of namespace with this `CLONE_NEW*` bit.
fn kind_name(kind: c_int) -> &'static str {
    match kind {
        libc::CLONE_NEWNET => "network",
        libc::CLONE_NEWUSER => "user",
        libc::CLONE_NEWNS => "mount",
        libc::CLONE_NEWPID => "PID",
        libc::CLONE_NEWIPC => "IPC",
        libc::CLONE_NEWUTS => "UTS",
        libc::CLONE_NEWCGROUP => "cgroup",
        _ => "different",
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
