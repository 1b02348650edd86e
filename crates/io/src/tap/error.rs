//! Why a TAP device could not be opened or used, and what to do about it.

use rustix::io::Errno;
use std::fmt;

/// Why a TAP device could not be opened or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapError {
    /// `/dev/net/tun` does not exist.
    NoDevice,
    /// `/dev/net/tun` exists, but this process may not open it.
    DeviceForbidden,
    /// The device was opened, but this process may not create an interface.
    NotPermitted,
    /// The interface exists and is in use.
    NameInUse,
    /// The name is not valid for an interface.
    NameInvalid,
    /// The kernel lacks a required feature of TAP devices.
    Unsupported,
    /// The interface was deleted, or the descriptor was never attached to one.
    Gone,
    /// Any other error.
    Os(Errno),
}

impl fmt::Display for TapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice | Self::DeviceForbidden => {
                let remedy = self.remedy().expect("these errors have one");
                write!(f, "{}; {remedy}", self.problem())
            }
            Self::NotPermitted => f.write_str(
                "no permission to create a TAP interface: it needs CAP_NET_ADMIN in the user \
                 namespace that owns this network namespace",
            ),
            Self::NameInUse => f.write_str(
                "the interface name is in use; choose another, or stop the program that uses it",
            ),
            Self::NameInvalid => {
                f.write_str("an interface name must have 1 to 15 bytes without `/` and spaces")
            }
            Self::Unsupported => f.write_str(
                "this kernel's TAP devices lack the virtio-net header; Linux 3.18 or later is \
                 needed",
            ),
            Self::Gone => f.write_str("the TAP interface was deleted while in use"),
            Self::Os(error) => write!(f, "TAP device: {error}"),
        }
    }
}

impl std::error::Error for TapError {}

impl TapError {
    /// What is wrong, without [what to do](Self::remedy).
    pub fn problem(&self) -> String {
        match self {
            Self::NoDevice => "/dev/net/tun is missing".to_owned(),
            Self::DeviceForbidden => "no permission to open /dev/net/tun".to_owned(),
            other => other.to_string(),
        }
    }

    /// What to do about a device that cannot be opened.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NoDevice => {
                Some("run `modprobe tun`, or start the container with `--device /dev/net/tun`")
            }
            Self::DeviceForbidden => Some(
                "run `chmod 666 /dev/net/tun` as root, or add the udev rule KERNEL==\"tun\", \
                 MODE=\"0666\", which lasts; start a container with `--device /dev/net/tun`",
            ),
            _ => None,
        }
    }

    pub(super) fn from_open(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => Self::NoDevice,
            Errno::ACCESS | Errno::PERM => Self::DeviceForbidden,
            other => Self::Os(other),
        }
    }

    /// `exists` distinguishes an interface of another kind from an invalid name.
    pub(super) fn from_attach(errno: Errno, exists: bool) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted,
            Errno::BUSY | Errno::EXIST => Self::NameInUse,
            Errno::INVAL if exists => Self::NameInUse,
            Errno::INVAL => Self::NameInvalid,
            other => Self::Os(other),
        }
    }

    pub(super) fn from_setup(errno: Errno) -> Self {
        match errno {
            Errno::INVAL | Errno::NOTTY | Errno::OPNOTSUPP => Self::Unsupported,
            other => Self::from_use(other),
        }
    }

    pub(super) fn from_use(errno: Errno) -> Self {
        match errno {
            Errno::BADFD => Self::Gone,
            other => Self::Os(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each message says what to do next.
    #[test]
    fn each_error_names_its_remedy() {
        let remedy = |error: TapError| error.to_string();
        assert!(remedy(TapError::from_open(Errno::NOENT)).contains("modprobe tun"));
        assert!(remedy(TapError::from_open(Errno::NXIO)).contains("--device /dev/net/tun"));
        assert!(remedy(TapError::from_open(Errno::ACCESS)).contains("chmod 666"));
        assert!(remedy(TapError::from_open(Errno::PERM)).contains("udev"));
        assert!(remedy(TapError::from_attach(Errno::PERM, false)).contains("CAP_NET_ADMIN"));
        assert_eq!(TapError::from_attach(Errno::BUSY, true), TapError::NameInUse);
        assert_eq!(TapError::from_attach(Errno::INVAL, true), TapError::NameInUse);
        assert_eq!(TapError::from_attach(Errno::INVAL, false), TapError::NameInvalid);
        assert_eq!(TapError::from_use(Errno::BADFD), TapError::Gone);
        assert_eq!(TapError::from_use(Errno::NOMEM), TapError::Os(Errno::NOMEM));
    }
}
