//! Running instances: each has a control socket in a folder of its user's.
//!
//! The socket's name is the process number with [`CONTROL_SUFFIX`]. Processes of other PID
//! namespaces may have the same number: where the name is taken, chance is added to it. Only the
//! user can reach the folder.
//!
//! A socket that refuses connections was left by a process that was killed. It is removed by who
//! finds it, and when another instance starts; so a socket gets its name when it is already served.
//! Names are given and removed with a lock on the folder, so that nobody removes one that has just
//! been given again; who cannot have the lock removes nothing.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, lstat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use towpath_io::outside;

/// An instance that runs answers in far less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Ends the name of a control socket.
const CONTROL_SUFFIX: &str = ".control";
/// Bits of a folder's mode that let others in.
const OTHERS: u32 = 0o077;

/// How long the lock of the folder is waited for: it is held for milliseconds.
const LOCK_STEPS: u32 = 100;
const LOCK_STEP: Duration = Duration::from_millis(5);

/// This process, as others find it.
pub(crate) struct Announced {
    listener: UnixListener,
    /// Its name before [`announce`](Self::announce).
    before: PathBuf,
    /// Its names after it: the first that nobody has.
    names: [PathBuf; 2],
    /// The file that has the name as long as it is this one's.
    inode: u64,
    /// Gives way to one who asks when flows have all other descriptors.
    spare: Option<OwnedFd>,
}

impl Announced {
    /// Makes the socket, which nobody finds before [`announce`](Self::announce), and removes those
    /// of killed instances. Fails where the user has no folder for such things.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let path = folder()?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make {}", path.display()));
            }
            _ => check(&path)?,
        }
        let made = Self::make(&path);
        made.with_context(|| format!("cannot make a socket in {}", path.display()))
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

    /// Gives it a name by which it is found.
    pub(crate) fn announce(&self) -> anyhow::Result<()> {
        let given = self.give_name();
        given.with_context(|| format!("cannot make {}", self.names[0].display()))
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
            // Of a process with the same number that was killed.
            lock.remove_left_over(|name| first.file_name() == Some(name.as_ref()));
            given = fs::hard_link(&self.before, first);
        }
        if is_taken(&given) {
            given = fs::hard_link(&self.before, other);
        }
        given?;
        fs::remove_file(&self.before)
    }

    /// The names that the socket's file may have, and its inode.
    pub(crate) fn files(&self) -> (Vec<PathBuf>, u64) {
        let [first, other] = self.names.clone();
        (vec![self.before.clone(), first, other], self.inode)
    }

    /// Takes a descriptor for the next one who asks, if there is none.
    pub(crate) fn keep_spare(&mut self) -> io::Result<()> {
        if self.spare.is_none() {
            self.spare = Some(self.listener.try_clone()?.into());
        }
        Ok(())
    }

    /// One who asks, if he is still there.
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
        // A confined process has its broker do it.
        if outside::withdraw() {
            return;
        }
        let (paths, inode) = self.files();
        for path in paths {
            if lstat(&path).is_ok_and(|found| found.st_ino == inode) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// The folder, while nobody else gives or removes names.
struct Lock {
    path: PathBuf,
    /// Closing it ends the lock.
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

    /// Removes sockets with such names at which nobody answers.
    fn remove_left_over(&self, is_meant: impl Fn(&str) -> bool) {
        for name in names(&self.path).unwrap_or_default() {
            let path = self.path.join(&name);
            if is_meant(&name) && try_to_connect(&path) == Err(Errno::CONNREFUSED) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// The control sockets of this user's instances that answer, with their process numbers, least
/// first. Others are removed.
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

/// The control socket of the instance with this process number.
pub(crate) fn of_process(number: i32) -> anyhow::Result<PathBuf> {
    let mut found = running()?;
    found.retain(|(other, _)| *other == number);
    match found.as_slice() {
        [(_, path)] => Ok(path.clone()),
        [] => bail!("process {number} is no running towpath of this user"),
        [(_, first), ..] => bail!(
            "several instances have the process number {number}, in namespaces of their own; say \
             which with --socket, for example {}",
            first.display()
        ),
    }
}

/// True if somebody is there.
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
        Err(error) => Err(error).with_context(|| format!("cannot ask {}", path.display())),
    }
}

/// Looks whether somebody listens at `path`, without waiting until one who does has time.
fn try_to_connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        // As many wait already as may.
        Err(Errno::AGAIN) => Ok(()),
        result => result,
    }
}

/// The names of sockets in the folder.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    let all = fs::read_dir(folder)?.filter_map(name);
    Ok(all.filter(|name| number_of(name).is_some()).collect())
}

/// The process number in the name of a socket, be it given already or not yet.
fn number_of(name: &str) -> Option<i32> {
    let name = match name.strip_prefix('.') {
        Some(before) => before,
        None => name.strip_suffix(CONTROL_SUFFIX)?,
    };
    name.split('.').next()?.parse().ok()
}

/// True if the process of this number is certainly not gone: then its socket need not be tried,
/// which would wake it. In another PID namespace the number means nothing here.
fn is_towpath(number: i32) -> bool {
    let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    name.trim_end() == crate::NAME
}

fn chance() -> u32 {
    RandomState::new().hash_one(0) as u32
}

/// Where the sockets are.
fn folder() -> anyhow::Result<PathBuf> {
    let user = geteuid();
    let told = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let candidates = [
        told.filter(|path| path.is_absolute()),
        Some(format!("/run/user/{}", user.as_raw()).into()),
        user.is_root().then(|| "/run".into()),
    ];
    let found = candidates.into_iter().flatten().find(|path| path.is_dir());
    let found = found.context("neither $XDG_RUNTIME_DIR nor /run/user/UID is a folder")?;
    Ok(found.join("towpath"))
}

/// Refuses a folder that others could have put things into.
fn check(folder: &Path) -> anyhow::Result<()> {
    let found = fs::symlink_metadata(folder)
        .with_context(|| format!("cannot look at {}", folder.display()))?;
    let ours = found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & OTHERS == 0;
    if !ours {
        bail!("{} is not a folder of this user's alone", folder.display());
    }
    Ok(())
}
