//! Errors of socket calls: Linux's error numbers as an enumeration.

use crate::tcp::ConnectionError;
use core::fmt;

macro_rules! errors {
    ($($(#[doc = $meaning:literal])+ $name:ident = $errno:literal, $text:literal;)+) => {
        /// Error of a socket call. Each has the number that Linux uses for the same failure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Error {
            $($(#[doc = $meaning])+ $name,)+
        }

        impl Error {
            /// Linux's error number (from `errno.h` of the generic architectures).
            pub const fn errno(self) -> i32 {
                match self { $(Error::$name => $errno,)+ }
            }

            /// The error that has this Linux number.
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
    /// `EBADF`: the socket does not exist, or is closed.
    BadSocket = 9, "no such socket";
    /// `EAGAIN`: nothing to take, or no room, at the moment.
    WouldBlock = 11, "would block";
    /// `ENOMEM`: the maximum number of sockets is reached.
    NoMemory = 12, "no memory for another socket";
    /// `EACCES`: a broadcast address without `SO_BROADCAST`, or a policy on the path forbids it.
    AccessDenied = 13, "permission denied";
    /// `ENODEV`: no such interface.
    NoDevice = 19, "no such interface";
    /// `EINVAL`: not allowed in this state or with these arguments.
    Invalid = 22, "invalid argument";
    /// `EPIPE`: the send direction has ended.
    BrokenPipe = 32, "this direction is closed";
    /// `ENONET`: a router reports that the host is isolated.
    NotOnNetwork = 64, "host is not on the network";
    /// `EPROTO`: a router found an invalid header.
    Protocol = 71, "protocol error";
    /// `EDESTADDRREQ`: neither the call nor the socket names a peer.
    DestinationRequired = 89, "no destination address";
    /// `EMSGSIZE`: the message is too long for a datagram.
    MessageSize = 90, "message too long";
    /// `ENOPROTOOPT`: unknown option.
    NoSuchOption = 92, "no such option";
    /// `EPROTONOSUPPORT`: the protocol is not supported.
    ProtocolNotSupported = 93, "protocol not supported";
    /// `EOPNOTSUPP`: sockets of this kind do not support the call.
    NotSupported = 95, "not supported by this kind of socket";
    /// `EAFNOSUPPORT`: the address is of another family.
    AddressFamily = 97, "address family not supported";
    /// `EADDRINUSE`: another socket has the address.
    AddressInUse = 98, "address in use";
    /// `EADDRNOTAVAIL`: not a local address, or no port is left.
    AddressNotAvailable = 99, "address not available";
    /// `ENETUNREACH`: no local address can be the source.
    NetworkUnreachable = 101, "network unreachable";
    /// `ECONNABORTED`: the connection ended before it was established.
    ConnectionAborted = 103, "connection aborted";
    /// `ECONNRESET`: the peer reset the connection.
    ConnectionReset = 104, "connection reset by peer";
    /// `ENOBUFS`: no memory for the data to send.
    NoBuffers = 105, "no buffer space";
    /// `EISCONN`: already connected.
    IsConnected = 106, "already connected";
    /// `ENOTCONN`: not connected.
    NotConnected = 107, "not connected";
    /// `ETIMEDOUT`: the peer does not answer.
    TimedOut = 110, "connection timed out";
    /// `ECONNREFUSED`: no socket listens there.
    ConnectionRefused = 111, "connection refused";
    /// `EHOSTDOWN`: a router reports that the host is unknown.
    HostDown = 112, "host is down";
    /// `EHOSTUNREACH`: the peer cannot be reached.
    HostUnreachable = 113, "host unreachable";
    /// `EALREADY`: a connection attempt is in progress.
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
