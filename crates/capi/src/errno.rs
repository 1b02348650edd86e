//! Linux error numbers.

use rustix::io::Errno as Kernel;
use std::io;
use towpath::host::StartError;
use towpath::layers::io::tap::TapError;
use towpath::layers::net::socket::Error;

/// Why a call failed: a number from `errno.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// `EAGAIN`.
    pub const AGAIN: Errno = Errno(libc::EAGAIN);
    /// `EBADF`.
    pub const BADF: Errno = Errno(libc::EBADF);
    /// `EINVAL`.
    pub const INVAL: Errno = Errno(libc::EINVAL);
    /// `EINTR`.
    pub const INTR: Errno = Errno(libc::EINTR);
    /// `EFAULT`.
    pub const FAULT: Errno = Errno(libc::EFAULT);
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Errno(error.errno())
    }
}

impl From<Kernel> for Errno {
    fn from(error: Kernel) -> Self {
        Errno(error.raw_os_error())
    }
}

/// Errors without a system error number: a premature end of a file is `ENODATA`, all others are
/// `EIO`.
impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(match error.kind() {
            io::ErrorKind::UnexpectedEof => libc::ENODATA,
            _ => libc::EIO,
        }))
    }
}

impl From<StartError> for Errno {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Tap(error) => error.into(),
            StartError::Io(error) => error.into(),
            _ => Errno::INVAL,
        }
    }
}

impl From<TapError> for Errno {
    fn from(error: TapError) -> Self {
        Errno(match error {
            TapError::NoDevice | TapError::Gone => libc::ENODEV,
            TapError::DeviceForbidden => libc::EACCES,
            TapError::NotPermitted => libc::EPERM,
            TapError::NameInUse => libc::EBUSY,
            TapError::NameInvalid => libc::EINVAL,
            TapError::Unsupported => libc::EOPNOTSUPP,
            TapError::Os(errno) => errno.raw_os_error(),
        })
    }
}

/// The result of a call.
pub(crate) type Outcome<T> = Result<T, Errno>;
