//! Running instances: each answers with its counters on a socket in a folder of its user's.
//!
//! The socket's name is the process number; that of a network's control socket is the number with
//! [`CONTROL_SUFFIX`]. Only the user can reach the folder. A socket that
//! refuses connections was left by a process that was killed, and is removed by who finds it; so it
//! gets its name when it is already served.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde_json::Value;

/// Longest answer of an instance.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// An instance that runs answers in far less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
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
        Self::with_suffix("")
    }

    /// Makes the control socket, likewise.
    pub(crate) fn control() -> anyhow::Result<Self> {
        Self::with_suffix(CONTROL_SUFFIX)
    }

    fn with_suffix(suffix: &str) -> anyhow::Result<Self> {
        let folder = folder()?;
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make {}", folder.display()));
            }
            _ => check(&folder)?,
        }
        let name = format!("{}{suffix}", std::process::id());
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

    /// Answers one who asks. He is not waited for: what does not fit his socket's buffer is lost
    /// to him.
    ///
    /// # Errors
    /// Nobody can be answered, and the socket stays readable.
    pub(crate) fn answer(&mut self, counters: impl FnOnce() -> Value) -> io::Result<()> {
        if let Some(mut stream) = self.accept()?
            && stream.set_nonblocking(true).is_ok()
        {
            let _ = stream.write_all(counters().to_string().as_bytes());
        }
        self.keep_spare()
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

/// Asks the instance with this process number.
pub(crate) fn ask_process(number: i32) -> anyhow::Result<Value> {
    let folder = folder()?;
    if folder.exists() {
        check(&folder)?;
    }
    let answer = ask_listed(number)?;
    answer.with_context(|| format!("process {number} is no running towpath of this user"))
}

/// Asks the instance behind a socket.
pub(crate) fn ask(path: &Path) -> anyhow::Result<Value> {
    let stream = UnixStream::connect(path);
    read(stream.with_context(|| format!("cannot ask {}", path.display()))?, path)
}

/// Process numbers of this user's instances, least first; some may have been killed.
pub(crate) fn numbers() -> anyhow::Result<Vec<i32>> {
    let folder = folder()?;
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    check(&folder)?;
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let mut numbers: Vec<i32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// The control sockets of this user's networks that answer, with their process numbers, least
/// first.
pub(crate) fn controls() -> anyhow::Result<Vec<(i32, PathBuf)>> {
    let mut controls = Vec::new();
    for number in numbers()? {
        let path = control_path(number)?;
        match UnixStream::connect(&path) {
            Ok(_) => controls.push((number, path)),
            Err(error) if is_left_over(&error, &path) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot ask {}", path.display()));
            }
        }
    }
    Ok(controls)
}

/// Where the network with this process number is controlled.
pub(crate) fn control_path(number: i32) -> anyhow::Result<PathBuf> {
    Ok(folder()?.join(format!("{number}{CONTROL_SUFFIX}")))
}

/// True if a control socket has this name.
pub(crate) fn is_control(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.ends_with(CONTROL_SUFFIX))
}

/// Asks the instance with this number, which was listed; `None` if it is gone.
pub(crate) fn ask_listed(number: i32) -> anyhow::Result<Option<Value>> {
    let path = folder()?.join(number.to_string());
    match UnixStream::connect(&path) {
        Ok(stream) => read(stream, &path).map(Some),
        Err(error) if is_left_over(&error, &path) => {
            // The process has gone with both.
            if error.kind() == ErrorKind::ConnectionRefused {
                let _ = fs::remove_file(control_path(number)?);
            }
            Ok(None)
        }
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

fn read(stream: UnixStream, path: &Path) -> anyhow::Result<Value> {
    let mut answer = Vec::new();
    stream.set_read_timeout(Some(PATIENCE))?;
    stream
        .take(ANSWER_BYTES_MAX as u64)
        .read_to_end(&mut answer)
        .with_context(|| format!("no answer from {}", path.display()))?;
    let counters = serde_json::from_slice(&answer).ok().filter(Value::is_object);
    counters.with_context(|| format!("{} did not answer with counters", path.display()))
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
