//! Why a call on a socket did not do what it was asked: Linux's error numbers as an enumeration.

use crate::tcp::ConnectionError;
use core::fmt;

macro_rules! errors {
    ($($(#[doc = $meaning:literal])+ $name:ident = $errno:literal, $text:literal;)+) => {
        /// Why a call failed. Each has the number that Linux gives to the same failure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Error {
            $($(#[doc = $meaning])+ $name,)+
        }

        impl Error {
            /// The error number of Linux (`errno.h` of its generic architectures).
            pub const fn errno(self) -> i32 {
                match self { $(Error::$name => $errno,)+ }
            }

            /// The error with a number of Linux.
            pub const fn from_errno(number: i32) -> Option<Self> {
                match number {
                    $($errno => Some(Error::$name),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Error::$name => $text,)+ })
            }
        }
    };
}

errors! {
    /// `EBADF`: there is no such socket (any more).
    BadSocket = 9, "no such socket";
    /// `EAGAIN`: nothing to take, or no room, now.
    WouldBlock = 11, "would block";
    /// `ENOMEM`: the limit of sockets is reached.
    NoMemory = 12, "no memory for another socket";
    /// `EACCES`: a broadcast address without leave, or a policy on the way forbids it.
    AccessDenied = 13, "permission denied";
    /// `EINVAL`: not in this state, or not with these arguments.
    Invalid = 22, "invalid argument";
    /// `EPIPE`: this side does not send any more.
    BrokenPipe = 32, "this direction is closed";
    /// `ENONET`: the peer's network is cut off.
    NotOnNetwork = 64, "host is not on the network";
    /// `EPROTO`: a router found a header wrong.
    Protocol = 71, "protocol error";
    /// `EDESTADDRREQ`: neither the call nor the socket names a peer.
    DestinationRequired = 89, "no destination";
    /// `EMSGSIZE`: no datagram can be so long.
    MessageSize = 90, "message too long";
    /// `ENOPROTOOPT`: the option is not known.
    NoSuchOption = 92, "no such option";
    /// `EPROTONOSUPPORT`: no packets have that protocol.
    ProtocolNotSupported = 93, "protocol not supported";
    /// `EOPNOTSUPP`: sockets of this kind cannot do that.
    NotSupported = 95, "not supported by this kind of socket";
    /// `EAFNOSUPPORT`: an address of another family.
    AddressFamily = 97, "address family not supported";
    /// `EADDRINUSE`: another socket has the address.
    AddressInUse = 98, "address in use";
    /// `EADDRNOTAVAIL`: not an address of ours, or no port is left.
    AddressNotAvailable = 99, "address not available";
    /// `ENETUNREACH`: no address of ours could be the source.
    NetworkUnreachable = 101, "network unreachable";
    /// `ECONNABORTED`: the connection ended before it began.
    ConnectionAborted = 103, "connection aborted";
    /// `ECONNRESET`: the peer reset the connection.
    ConnectionReset = 104, "connection reset by peer";
    /// `ENOBUFS`: no memory for what is to be sent.
    NoBuffers = 105, "no buffers";
    /// `EISCONN`: connected already.
    IsConnected = 106, "is connected";
    /// `ENOTCONN`: not connected.
    NotConnected = 107, "not connected";
    /// `ETIMEDOUT`: the peer does not answer.
    TimedOut = 110, "connection timed out";
    /// `ECONNREFUSED`: nobody listens there.
    ConnectionRefused = 111, "connection refused";
    /// `EHOSTDOWN`: a router says that the host is not known.
    HostDown = 112, "host is down";
    /// `EHOSTUNREACH`: the peer cannot be reached.
    HostUnreachable = 113, "host unreachable";
    /// `EALREADY`: connecting already.
    Already = 114, "already connecting";
    /// `EINPROGRESS`: the handshake has begun.
    InProgress = 115, "in progress";
}

impl core::error::Error for Error {}

impl From<ConnectionError> for Error {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::Refused => Error::ConnectionRefused,
            ConnectionError::Reset => Error::ConnectionReset,
            ConnectionError::TimedOut => Error::TimedOut,
            ConnectionError::Unreachable => Error::HostUnreachable,
            ConnectionError::Aborted => Error::ConnectionAborted,
        }
    }
}
