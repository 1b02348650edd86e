//! Running instances: each has a control socket in a folder of its user.
//!
//! The socket's name is the process number with [`CONTROL_SUFFIX`]. Processes of other PID
//! namespaces may have the same number; where the name is taken, random characters are added to it.
//! Only the user can access the folder.
//!
//! A socket that refuses connections was left by a killed process. It is removed by the command
//! that finds it, or when another instance starts. So a socket gets its name only when it is
//! already served. Names are given and removed under a lock on the folder, so that a name that has
//! just been given again is not removed; a process that cannot take the lock removes nothing.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{Access, FlockOperation, Mode, OFlags, access, flock, lstat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use towpath_io::outside;

/// Longest wait for an answer; a running instance needs far less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Suffix of the name of a control socket.
const CONTROL_SUFFIX: &str = ".control";
/// Bits of a folder's mode that give others access.
const OTHERS: u32 = 0o077;

/// Attempts to lock the folder, [`LOCK_STEP`] apart; the lock is held for milliseconds.
const LOCK_STEPS: u32 = 100;
const LOCK_STEP: Duration = Duration::from_millis(5);

/// The listening socket by which others find this process.
pub(crate) struct Announced {
    listener: UnixListener,
    /// Its name before [`announce`](Self::announce).
    before: PathBuf,
    /// Its names afterwards: it gets the first one that is free.
    names: [PathBuf; 2],
    /// Inode of the socket's file, which shows whether a name still belongs to it.
    inode: u64,
    /// A reserve descriptor, closed to accept a connection when flows use all others.
    spare: Option<OwnedFd>,
}

impl Announced {
    /// Makes the socket, which others do not find before [`announce`](Self::announce), and removes
    /// those of killed instances. Fails if the user has no runtime folder.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let path = folder()?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error)
                    .with_context(|| format!("cannot create directory {}", path.display()));
            }
            _ => check(&path)?,
        }
        let made = Self::make(&path);
        made.with_context(|| format!("cannot create a socket in {}", path.display()))
    }

    fn make(path: &Path) -> io::Result<Self> {
        if let Some(lock) = Lock::take(path) {
            lock.remove_left_over(|name| number_of(name).is_some_and(|number| !is_towpath(number)));
        }
        let (number, chance) = (std::process::id(), chance());
        let before = path.join(format!(".{number}.{chance:08x}"));
        let names = [
            path.join(format!("{number}{CONTROL_SUFFIX}")),
            path.join(format!("{number}.{chance:08x}{CONTROL_SUFFIX}")),
        ];
        let listener = UnixListener::bind(&before)?;
        listener.set_nonblocking(true)?;
        let inode = lstat(&before)?.st_ino;
        let spare = Some(listener.try_clone()?.into());
        Ok(Self { listener, before, names, inode, spare })
    }

    /// Gives the socket its final name.
    pub(crate) fn announce(&self) -> anyhow::Result<()> {
        let given = self.give_name();
        given.with_context(|| format!("cannot create {}", self.names[0].display()))
    }

    fn give_name(&self) -> io::Result<()> {
        let [first, other] = &self.names;
        let mut given = fs::hard_link(&self.before, first);
        let is_taken = |given: &io::Result<()>| {
            given.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
        };
        if is_taken(&given)
            && let Some(lock) = first.parent().and_then(Lock::take)
        {
            // Left by a killed process with the same number.
            lock.remove_left_over(|name| first.file_name() == Some(name.as_ref()));
            given = fs::hard_link(&self.before, first);
        }
        if is_taken(&given) {
            given = fs::hard_link(&self.before, other);
        }
        given?;
        fs::remove_file(&self.before)
    }

    /// Returns the names that the socket's file may have, each with its inode.
    pub(crate) fn files(&self) -> Vec<(PathBuf, u64)> {
        let [first, other] = self.names.clone();
        [self.before.clone(), first, other].map(|path| (path, self.inode)).into()
    }

    /// Opens the reserve descriptor for the next connection, if it was used.
    pub(crate) fn keep_spare(&mut self) -> io::Result<()> {
        if self.spare.is_none() {
            self.spare = Some(self.listener.try_clone()?.into());
        }
        Ok(())
    }

    /// Accepts a connection, if one waits.
    pub(crate) fn accept(&mut self) -> io::Result<Option<UnixStream>> {
        let full = Some(Errno::MFILE.raw_os_error());
        let mut accepted = self.listener.accept();
        if accepted.as_ref().is_err_and(|error| error.raw_os_error() == full) {
            self.spare = None;
            accepted = self.listener.accept();
        }
        match accepted {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

impl AsFd for Announced {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // A confined process leaves this to its broker.
        if outside::withdraw() {
            return;
        }
        for (path, inode) in self.files() {
            if lstat(&path).is_ok_and(|found| found.st_ino == inode) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// A lock on the folder, which others need to give or remove names.
struct Lock {
    path: PathBuf,
    /// Closing it releases the lock.
    _folder: OwnedFd,
}

impl Lock {
    fn take(path: &Path) -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        for _ in 0..LOCK_STEPS {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self { path: path.to_owned(), _folder: folder }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(LOCK_STEP),
                Err(_) => return None,
            }
        }
        None
    }

    /// Removes sockets with such names that refuse connections.
    fn remove_left_over(&self, is_meant: impl Fn(&str) -> bool) {
        for name in names(&self.path).unwrap_or_default() {
            let path = self.path.join(&name);
            if is_meant(&name) && try_to_connect(&path) == Err(Errno::CONNREFUSED) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Returns the control sockets of this user's running instances, with their process numbers, lowest
/// first. Removes left-over sockets.
pub(crate) fn running() -> anyhow::Result<Vec<(i32, PathBuf)>> {
    let folder = folder()?;
    let names = match names(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        names => names.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    check(&folder)?;
    let mut running = Vec::new();
    for name in names {
        let path = folder.join(&name);
        if let Some(number) = number_of(&name)
            && name.ends_with(CONTROL_SUFFIX)
            && answers(&path)?
        {
            running.push((number, path));
        }
    }
    running.sort_unstable();
    Ok(running)
}

/// Returns the control socket of the instance with this process number.
pub(crate) fn of_process(number: i32) -> anyhow::Result<PathBuf> {
    let mut found = running()?;
    found.retain(|(other, _)| *other == number);
    match found.as_slice() {
        [(_, path)] => Ok(path.clone()),
        [] => bail!("no towpath of this user has PID {number}; `towpath stats` lists all"),
        [(_, first), ..] => bail!(
            "several instances have PID {number}, in different PID namespaces; choose one with \
             --socket, for example {}",
            first.display()
        ),
    }
}

/// Returns true if an instance listens at `path`.
pub(crate) fn answers(path: &Path) -> anyhow::Result<bool> {
    match try_to_connect(path) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(Errno::CONNREFUSED) => {
            if let Ok(folder) = folder()
                && path.parent() == Some(&folder)
                && let Some(lock) = Lock::take(&folder)
            {
                lock.remove_left_over(|name| folder.join(name) == path);
            }
            Ok(false)
        }
        Err(error) => Err(error)
            .with_context(|| format!("cannot connect to the control socket {}", path.display())),
    }
}

/// Checks whether a process listens at `path`, without waiting for it to accept.
fn try_to_connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        // The backlog is full, so a process listens.
        Err(Errno::AGAIN) => Ok(()),
        result => result,
    }
}

/// Returns the names of sockets in the folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let all = fs::read_dir(folder)?.filter_map(name);
    Ok(all.filter(|name| number_of(name).is_some()).collect())
}

/// Returns the process number in the name of a socket, before or after it is announced.
fn number_of(name: &str) -> Option<i32> {
    let name = match name.strip_prefix('.') {
        Some(before) => before,
        None => name.strip_suffix(CONTROL_SUFFIX)?,
    };
    name.split('.').next()?.parse().ok()
}

/// Returns true if a process with this number runs and is a towpath: its socket need not be tried,
/// which would wake it. In another PID namespace the number means nothing here.
fn is_towpath(number: i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    name.trim_end() == crate::NAME
}

fn chance() -> u32 {
    RandomState::new().hash_one(0) as u32
}

/// Returns the folder of the sockets.
fn folder() -> anyhow::Result<PathBuf> {
    let user = geteuid();
    let reported = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let candidates = [
        reported.filter(|path| path.is_absolute()),
        Some(format!("/run/user/{}", user.as_raw()).into()),
        user.is_root().then(|| "/run".into()),
    ];
    let found = candidates.into_iter().flatten().find(|path| path.is_dir());
    let found = found.context(
        "neither $XDG_RUNTIME_DIR nor /run/user/UID is a directory; set XDG_RUNTIME_DIR to one",
    )?;
    Ok(found.join("towpath"))
}

/// Returns the folder of the sockets if an instance could make its socket there. Changes nothing.
pub(crate) fn usable_folder() -> anyhow::Result<PathBuf> {
    let path = folder()?;
    let (made_in, is_there) = match fs::symlink_metadata(&path) {
        Ok(_) => (path.as_path(), true),
        Err(_) => (path.parent().context("the folder has no parent")?, false),
    };
    if is_there {
        check(&path)?;
    }
    access(made_in, Access::WRITE_OK | Access::EXEC_OK)
        .with_context(|| format!("cannot write to {}", made_in.display()))?;
    Ok(path)
}

/// Rejects a folder that others could have written to.
fn check(folder: &Path) -> anyhow::Result<()> {
    let found = fs::symlink_metadata(folder)
        .with_context(|| format!("cannot access {}", folder.display()))?;
    let ours = found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & OTHERS == 0;
    if !ours {
        bail!(
            "{} must be a directory that belongs to this user and has mode 0700; remove it, or set \
             its owner and mode",
            folder.display()
        );
    }
    Ok(())
}
