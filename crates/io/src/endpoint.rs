//! Unix sockets on which virtual machine monitors connect: our listening socket, or a connection to
//! the monitor's.
//!
//! A server owns its socket file. It replaces a file that a dead process left behind, but not one
//! on which another process listens. Dropping the server removes the file, unless another file has
//! taken its place. A client tries to connect every [`RETRY_INTERVAL`] until the monitor listens.
//!
//! No call blocks. One thread at a time uses each value.

use crate::outside::{self, Answer, Wanted};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, getpeername, sockopt};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time between attempts to connect.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4;

/// Why an endpoint could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointError {
    /// Another process listens on this path.
    InUse(PathBuf),
    /// The path names a file that is not a socket.
    NotASocket(PathBuf),
    /// The directory for the socket does not exist.
    NoFolder(PathBuf),
    /// A socket path must have 1 to 108 bytes, none of them zero.
    Path(PathBuf),
    /// A confined process connects only to the paths that were named at its start.
    Confined(PathBuf),
    /// Any other error.
    Os(PathBuf, Errno),
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => write!(
                f,
                "{path}: a process already listens on this socket; stop it, or choose another path",
                path = path.display()
            ),
            Self::NotASocket(path) => write!(
                f,
                "{path}: the file exists and is not a socket; remove it, or choose another path",
                path = path.display()
            ),
            Self::NoFolder(path) => write!(
                f,
                "{path}: the directory of the socket does not exist; create it, or choose another \
                 path",
                path = path.display()
            ),
            Self::Path(path) => write!(
                f,
                "{path}: the path of a socket must have 1 to 108 bytes",
                path = path.display()
            ),
            Self::Confined(path) => write!(
                f,
                "{path}: a confined network connects only to sockets that were given at its \
                 start, or that are in the same directory as one of them; give this socket at the \
                 start, or start with --no-confinement",
                path = path.display()
            ),
            Self::Os(path, error) => write!(f, "{path}: {error}", path = path.display()),
        }
    }
}

impl std::error::Error for EndpointError {}

/// A connected stream socket that another process made. Clones share it, and the first one to take
/// it has it.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Mutex<Option<OwnedFd>>>);

impl Connection {
    /// Checks a socket, and makes it non-blocking.
    ///
    /// # Errors
    /// `PROTOTYPE` if it is not a stream socket, otherwise those of getsockopt(2), for example
    /// `NOTSOCK`, and of getpeername(2), for example `NOTCONN`.
    pub fn new(socket: OwnedFd) -> Result<Self, Errno> {
        if sockopt::socket_type(&socket)? != SocketType::STREAM {
            return Err(Errno::PROTOTYPE);
        }
        getpeername(&socket)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self(Arc::new(Mutex::new(Some(socket)))))
    }

    /// Returns the socket, once.
    pub fn take(&self) -> Option<OwnedFd> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl PartialEq for Connection {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Connection {}

/// A listening socket with a path.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode number of the socket file, to recognise it.
    file: Option<(u64, u64)>,
}

impl Listener {
    /// Listens at `path`.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn bind(path: &Path) -> Result<Self, EndpointError> {
        if let Some(answer) = outside::at_path(Wanted::Listen, path) {
            let (file, identity) = unfold(path, answer)?;
            let socket = file.ok_or_else(|| EndpointError::Os(path.to_owned(), Errno::PROTO))?;
            return Ok(Self { socket, path: path.to_owned(), file: Some(identity) });
        }
        Self::bind_here(path)
    }

    fn bind_here(path: &Path) -> Result<Self, EndpointError> {
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

    /// Returns the path of the socket's file, and its device and inode number, if it made the file.
    pub fn file(&self) -> Option<(PathBuf, (u64, u64))> {
        self.file.map(|identity| (self.path.clone(), identity))
    }

    /// Accepts the next connection, a non-blocking socket. Returns `None` if none waits.
    ///
    /// # Errors
    /// Those of accept4(2), for example when the process has no descriptors left. The peer stays
    /// queued.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => return Ok(Some(socket)),
                Err(Errno::AGAIN) => return Ok(None),
                // That connection has already gone; try the next one.
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
        if outside::at_path(Wanted::Unlink, &self.path).is_none()
            && let Some(file) = self.file
        {
            unlink(&self.path, file);
        }
    }
}

/// Removes a socket file, if it still has this identity.
pub(crate) fn unlink(path: &Path, file: (u64, u64)) {
    if rustix::fs::lstat(path).is_ok_and(|stat| identity(&stat) == file) {
        // If it cannot be removed, the next listener takes it over.
        let _ = rustix::fs::unlink(path);
    }
}

/// Connects to the listener at `path`; `None` if no process listens there now.
///
/// # Errors
/// [`EndpointError`]. Trying again would not help.
pub fn connect(path: &Path) -> Result<Option<OwnedFd>, EndpointError> {
    match outside::at_path(Wanted::Connect, path) {
        Some(answer) => unfold(path, answer).map(|(socket, _)| socket),
        None => connect_here(path),
    }
}

/// Returns true if a process listens at `path`, or if that cannot be found out.
pub fn is_in_use(path: &Path) -> bool {
    !matches!(connect_here(path), Ok(None))
}

fn connect_here(path: &Path) -> Result<Option<OwnedFd>, EndpointError> {
    let failed = |errno| EndpointError::Os(path.to_owned(), errno);
    let address = address(path)?;
    let socket = socket().map_err(failed)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(Some(socket)),
        // No process listens, or its backlog is full.
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(failed(errno)),
    }
}

/// The broker's part of [`Listener::bind`], for a confined process.
pub(crate) fn listen_for(path: &Path) -> Result<Answer, Errno> {
    Ok(match Listener::bind_here(path) {
        Ok(mut listener) => {
            // Dropping this value must not remove the file.
            let (device, inode) = listener.file.take().unwrap_or_default();
            let file = Some(listener.socket.try_clone().map_err(|_| Errno::MFILE)?);
            Answer { numbers: [0, 0, device, inode], file, ..Answer::default() }
        }
        Err(error) => fold(&error),
    })
}

/// The broker's part of [`connect`], for a confined process.
pub(crate) fn connect_for(path: &Path) -> Result<Answer, Errno> {
    Ok(match connect_here(path) {
        Ok(file) => Answer { file, ..Answer::default() },
        Err(error) => fold(&error),
    })
}

/// Encodes an error as the numbers of an answer.
fn fold(error: &EndpointError) -> Answer {
    let (kind, errno) = match error {
        EndpointError::InUse(_) => (1, 0),
        EndpointError::NotASocket(_) => (2, 0),
        EndpointError::NoFolder(_) => (3, 0),
        EndpointError::Path(_) => (4, 0),
        EndpointError::Confined(_) => (5, Errno::PERM.raw_os_error() as u64),
        EndpointError::Os(_, errno) => (5, errno.raw_os_error() as u64),
    };
    Answer { numbers: [kind, errno, 0, 0], ..Answer::default() }
}

/// Decodes an answer: a descriptor and the identity of its file, or an error.
fn unfold(
    path: &Path,
    answer: Result<Answer, Errno>,
) -> Result<(Option<OwnedFd>, (u64, u64)), EndpointError> {
    let path = path.to_owned();
    let Answer { numbers: [kind, errno, device, inode], file, .. } = match answer {
        Ok(answer) => answer,
        Err(Errno::PERM) => return Err(EndpointError::Confined(path)),
        Err(errno) => return Err(EndpointError::Os(path, errno)),
    };
    Err(match kind {
        0 => return Ok((file, (device, inode))),
        1 => EndpointError::InUse(path),
        2 => EndpointError::NotASocket(path),
        3 => EndpointError::NoFolder(path),
        4 => EndpointError::Path(path),
        _ => EndpointError::Os(path, Errno::from_raw_os_error(errno as i32)),
    })
}

fn address(path: &Path) -> Result<SocketAddrUnix, EndpointError> {
    let bad = || EndpointError::Path(path.to_owned());
    // Binding to an empty path would make the kernel choose a name.
    if path.as_os_str().is_empty() {
        return Err(bad());
    }
    SocketAddrUnix::new(path).map_err(|_| bad())
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes the socket at `path` if no process listens on it.
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
