//! Where the monitors of virtual machines are met: a listening socket with a path, or the path of
//! theirs.
//!
//! As a server, the socket's file belongs to the endpoint: one left behind by a process that died
//! is taken over, one that somebody listens on is not, and in the end the file is removed, unless
//! it is another by then. As a client, the endpoint connects again and again, every
//! [`RETRY_INTERVAL`], until somebody listens.
//!
//! No call blocks. One thread at a time.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between attempts to connect.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Monitors that may wait to be told that the device has one.
const BACKLOG: i32 = 4;

/// Why there is no endpoint at a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Somebody listens there.
    #[error("{0}: somebody listens on this socket already: choose another path, or stop them")]
    InUse(PathBuf),
    /// There is a file that is no socket.
    #[error("{0}: there is a file that is no socket: remove it, or choose another path")]
    NotASocket(PathBuf),
    /// The folder that it is to be in does not exist.
    #[error("{0}: there is no folder for this socket: make it, or choose another path")]
    NoFolder(PathBuf),
    /// A socket's path has between 1 and 108 bytes, none of them zero.
    #[error("{0}: the path of a socket has between 1 and 108 bytes")]
    Path(PathBuf),
    /// Anything else.
    #[error("{0}: {1}")]
    Os(PathBuf, Errno),
}

/// A socket with a path that monitors connect to.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and number of the file, to know it again.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens at `path`.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn bind(path: &Path) -> Result<Self, EndpointError> {
        let failed = |errno| EndpointError::Os(path.to_owned(), errno);
        let address = address(path)?;
        let socket = socket().map_err(failed)?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_stale(path, &address)?;
                rustix::net::bind(&socket, &address).map_err(failed)?;
            }
            Err(Errno::NOENT) => return Err(EndpointError::NoFolder(path.to_owned())),
            result => result.map_err(failed)?,
        }
        let file = rustix::fs::lstat(path).ok().map(|stat| identity(&stat));
        let listener = Self { socket, path: path.to_owned(), file };
        rustix::net::listen(&listener.socket, BACKLOG).map_err(failed)?;
        Ok(listener)
    }

    /// The next connection, which does not block.
    ///
    /// # Errors
    /// What the system says: it has no descriptors left, for instance. Who connects waits.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => return Ok(Some(socket)),
                Err(Errno::AGAIN) => return Ok(None),
                // It has gone again; so may the next.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let now = rustix::fs::lstat(&self.path).ok().map(|stat| identity(&stat));
        if now.is_some() && now == self.file {
            // If it cannot be removed, the next listener takes it over.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Connects to who listens at `path`; `None` if nobody does at this moment.
///
/// # Errors
/// [`EndpointError`]: trying again would not help.
pub fn connect(path: &Path) -> Result<Option<OwnedFd>, EndpointError> {
    let failed = |errno| EndpointError::Os(path.to_owned(), errno);
    let address = address(path)?;
    let socket = socket().map_err(failed)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(Some(socket)),
        // Nobody is there; or he has many waiting.
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(failed(errno)),
    }
}

fn address(path: &Path) -> Result<SocketAddrUnix, EndpointError> {
    let bad = || EndpointError::Path(path.to_owned());
    // Without a path it would get a name of the kernel's choice.
    if path.as_os_str().is_empty() {
        return Err(bad());
    }
    SocketAddrUnix::new(path).map_err(|_| bad())
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes the socket at `path` if nobody listens on it.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), EndpointError> {
    let failed = |errno| EndpointError::Os(path.to_owned(), errno);
    let stat = rustix::fs::lstat(path).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(EndpointError::NotASocket(path.to_owned()));
    }
    let probe = socket().map_err(failed)?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(failed),
        Ok(()) | Err(Errno::AGAIN) => Err(EndpointError::InUse(path.to_owned())),
        Err(errno) => Err(failed(errno)),
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests;
