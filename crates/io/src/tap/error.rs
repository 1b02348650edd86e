//! Why a TAP device cannot be had or used, and what to do about it.

use rustix::io::Errno;

/// Why a TAP device cannot be had or used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TapError {
    /// The kernel offers no `/dev/net/tun`.
    #[error(
        "/dev/net/tun is missing: run `modprobe tun`, or in a container pass \
         `--device /dev/net/tun` to it"
    )]
    NoDevice,
    /// `/dev/net/tun` is there, and we may not open it.
    #[error(
        "/dev/net/tun may not be opened: run `chmod 666 /dev/net/tun` as root, or for good add \
         the udev rule KERNEL==\"tun\", MODE=\"0666\"; in a container pass \
         `--device /dev/net/tun` to it"
    )]
    DeviceForbidden,
    /// The device may be opened but no interface made.
    #[error(
        "making a TAP interface is not permitted: it needs CAP_NET_ADMIN in the user namespace \
         that owns this network namespace"
    )]
    NotPermitted,
    /// The interface exists and is in use.
    #[error("the interface name is in use: choose another, or stop whoever holds it")]
    NameInUse,
    /// The name cannot be an interface's.
    #[error("an interface name has 1 to 15 bytes, none of them `/` or a space")]
    NameInvalid,
    /// The kernel does not know what we need of a TAP device.
    #[error("this kernel's TAP devices lack the virtio-net header: Linux 3.18 or later is needed")]
    Unsupported,
    /// The interface was deleted, or the file never had one.
    #[error("the TAP interface is gone: it was deleted while in use")]
    Gone,
    /// Anything else.
    #[error("TAP device: {0}")]
    Os(Errno),
}

impl TapError {
    pub(super) fn from_open(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => Self::NoDevice,
            Errno::ACCESS | Errno::PERM => Self::DeviceForbidden,
            other => Self::Os(other),
        }
    }

    /// `exists` tells an interface that is of another kind from a name that is impossible.
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

    /// Goal: whoever reads the message knows what to do next.
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
