//! Running instances: each has a control socket in a folder of its user's.
//!
//! The socket's name is the process number with [`CONTROL_SUFFIX`]. Only the user can reach the
//! folder. A socket that refuses connections was left by a process that was killed, and is removed
//! by who finds it; so it gets its name when it is already served.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::process::geteuid;

/// An instance that runs answers in far less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Ends the name of a control socket.
const CONTROL_SUFFIX: &str = ".control";
/// Bits of a folder's mode that let others in.
const OTHERS: u32 = 0o077;

/// This process, as others find it.
pub(crate) struct Announced {
    listener: UnixListener,
    path: PathBuf,
    /// Gives way to one who asks when flows have all other descriptors.
    spare: Option<OwnedFd>,
}

impl Announced {
    /// Makes the socket. Fails where the user has no folder for such things.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let folder = folder()?;
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make {}", folder.display()));
            }
            _ => check(&folder)?,
        }
        let name = format!("{}{CONTROL_SUFFIX}", std::process::id());
        let (path, before) = (folder.join(&name), folder.join(format!(".{name}")));
        // Of a process with the same number that was killed.
        let _ = fs::remove_file(&before);
        let (listener, spare) = UnixListener::bind(&before)
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                let spare = listener.try_clone()?;
                fs::rename(&before, &path)?;
                Ok((listener, spare.into()))
            })
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { listener, path, spare: Some(spare) })
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
        let _ = fs::remove_file(&self.path);
    }
}

/// The control sockets of this user's instances that answer, with their process numbers, least
/// first.
pub(crate) fn running() -> anyhow::Result<Vec<(i32, PathBuf)>> {
    let folder = folder()?;
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    check(&folder)?;
    let number = |entry: io::Result<fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.strip_suffix(CONTROL_SUFFIX)?.parse().ok()
    };
    let mut numbers: Vec<i32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    let mut running = Vec::new();
    for number in numbers {
        let path = folder.join(format!("{number}{CONTROL_SUFFIX}"));
        if answers(&path)? {
            running.push((number, path));
        }
    }
    Ok(running)
}

/// The control socket of the instance with this process number.
pub(crate) fn of_process(number: i32) -> anyhow::Result<PathBuf> {
    let folder = folder()?;
    if folder.exists() {
        check(&folder)?;
    }
    let path = folder.join(format!("{number}{CONTROL_SUFFIX}"));
    if !answers(&path)? {
        bail!("process {number} is no running towpath of this user");
    }
    Ok(path)
}

/// True if somebody is there.
pub(crate) fn answers(path: &Path) -> anyhow::Result<bool> {
    match UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(error) if is_left_over(&error, path) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot ask {}", path.display())),
    }
}

/// True if nobody answers at `path` any more, which is removed then.
fn is_left_over(error: &io::Error, path: &Path) -> bool {
    if error.kind() == ErrorKind::ConnectionRefused {
        let _ = fs::remove_file(path);
    }
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
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
