//! Sockets of the program, and sockets of the host that take their place.
//!
//! A native socket has the options that the program had set on its own one before. Which those are
//! shows in a comparison with a *sample*, a socket of the same network namespace that was never
//! changed; so defaults of the host stay defaults. A socket with an option that cannot be carried
//! over keeps to its interface ([`Unfit`]).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};

use crate::process_sys::socket_option;
use crate::socket::bind_as_is;
use crate::sys::set_option;

/// Where a socket comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A TCP socket of the program's network namespace.
    Inside,
    /// A TCP socket of the host: a native one, unless the program has inherited it.
    Host,
    /// Another internet socket for streams: of a network namespace that the program has made, or of
    /// another protocol.
    OtherStream,
    /// A socket of another kind.
    Other,
}

/// State of a TCP socket, as far as a second connect(2) depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The connection is being made.
    Connecting,
    /// The connection could not be made, or is over.
    Closed,
    /// It is established, or was until a side closed.
    Connected,
}

/// Why a socket keeps to its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is bound to an address, port or interface, or connected.
    Bound,
    /// It has an option that a socket of the host cannot have.
    Option,
    /// A system call failed.
    System(Errno),
}

impl From<Errno> for Unfit {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// Opens the samples of the network namespace of this process, for IPv4 and IPv6. Without IPv6 in
/// the kernel both are for IPv4.
///
/// # Errors
/// Those of socket(2).
pub fn samples() -> Result<[OwnedFd; 2], Errno> {
    let v4 = open(AddressFamily::INET)?;
    let v6 = open(AddressFamily::INET6).or_else(|_| open(AddressFamily::INET))?;
    Ok([v4, v6])
}

fn open(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
}

/// Knows the program's sockets from those of the host, and makes the latter.
#[derive(Debug)]
pub struct Sockets {
    inside: [OwnedFd; 2],
    inside_cookie: u64,
    host_cookie: u64,
}

impl Sockets {
    /// Takes the [`samples`] of the program's network namespace.
    ///
    /// # Errors
    /// Those of the kernel; ENOPROTOOPT before Linux 5.14, which cannot tell namespaces apart.
    pub fn new(inside: [OwnedFd; 2]) -> Result<Self, Errno> {
        let inside_cookie = cookie(&inside[0])?;
        let host_cookie = cookie(&open(AddressFamily::INET)?)?;
        Ok(Self { inside, inside_cookie, host_cookie })
    }

    /// Returns where a socket comes from.
    pub fn origin(&self, socket: &OwnedFd) -> Origin {
        if family(socket).is_err() || sockopt::socket_type(socket) != Ok(SocketType::STREAM) {
            return Origin::Other;
        }
        let is_tcp = sockopt::socket_protocol(socket) == Ok(Some(ipproto::TCP));
        match cookie(socket) {
            Ok(cookie) if is_tcp && cookie == self.inside_cookie => Origin::Inside,
            Ok(cookie) if cookie == self.host_cookie => Origin::Host,
            _ => Origin::OtherStream,
        }
    }

    /// Opens a non-blocking socket of the host with the options of `socket`, which the program has
    /// neither connected nor bound.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn open_like(&self, socket: &OwnedFd) -> Result<OwnedFd, Unfit> {
        let is_plain = |address: SocketAddr| address.ip().is_unspecified() && address.port() == 0;
        if !is_plain(local(socket)?) {
            return Err(Unfit::Bound);
        }
        self.open_like_bound(socket)
    }

    /// Opens a non-blocking socket of the host with the options of `socket`, which the program has
    /// not connected, but may have bound to an address.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn open_like_bound(&self, socket: &OwnedFd) -> Result<OwnedFd, Unfit> {
        let family = family(socket)?;
        let sample = usize::from(family == AddressFamily::INET6);
        let sample = &self.inside[sample];
        if fcntl_getfl(socket)?.contains(OFlags::from_bits_retain(libc::O_ASYNC as u32))
            || has_filter(socket.as_fd())
        {
            return Err(Unfit::Option);
        }
        let mut own = [0; OPTION_BYTES_MAX];
        let mut usual = [0; OPTION_BYTES_MAX];
        let mut changed = |level, name| {
            let own_len = socket_option(socket.as_fd(), level, name, &mut own);
            let usual_len = socket_option(sample.as_fd(), level, name, &mut usual);
            match (own_len, usual_len) {
                (Ok(len), Ok(usual_len)) if own[..len] != usual[..usual_len] => {
                    Some(own[..len].to_vec())
                }
                // Without the value of the sample it is not known which of them was set.
                _ => None,
            }
        };
        if BINDING.iter().any(|(level, name)| changed(*level, *name).is_some()) {
            return Err(Unfit::Bound);
        }
        let host = open(family)?;
        for (level, name) in CARRIED {
            if let Some(value) = changed(level, name) {
                set_option(host.as_fd(), level, name, &value).map_err(|_| Unfit::Option)?;
            }
        }
        for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            if let Some(value) = changed(libc::SOL_SOCKET, name) {
                // socket(7): the kernel doubles the value that is set.
                let doubled = value.first_chunk().map_or(0, |value| i32::from_ne_bytes(*value));
                set_option(host.as_fd(), libc::SOL_SOCKET, name, &(doubled / 2).to_ne_bytes())?;
            }
        }
        Ok(host)
    }
}

/// Returns the local address of a TCP socket.
///
/// # Errors
/// Those of getsockname(2).
pub fn local(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    rustix::net::getsockname(socket)?.try_into()
}

/// Returns the peer's address of a connected TCP socket.
///
/// # Errors
/// ENOTCONN, and others of getpeername(2).
pub fn peer(socket: &OwnedFd) -> Result<SocketAddr, Errno> {
    rustix::net::getpeername(socket)?.ok_or(Errno::NOTCONN)?.try_into()
}

/// Returns the state of a TCP socket.
///
/// # Errors
/// Those of getsockopt(2).
pub fn state(socket: &OwnedFd) -> Result<State, Errno> {
    let mut info = [0];
    socket_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    // States of net/tcp_states.h.
    const SYN_SENT: u8 = 2;
    const SYN_RECV: u8 = 3;
    const CLOSE: u8 = 7;
    Ok(match info[0] {
        SYN_SENT | SYN_RECV => State::Connecting,
        CLOSE => State::Closed,
        _ => State::Connected,
    })
}

/// Returns why a connection failed, and clears the error. Without one, it was given up.
pub fn take_error(socket: &OwnedFd) -> Errno {
    match sockopt::socket_error(socket) {
        Ok(Err(errno)) | Err(errno) => errno,
        Ok(Ok(())) => Errno::CONNABORTED,
    }
}

/// Returns true if calls on the socket do not wait.
///
/// # Errors
/// Those of fcntl(2).
pub fn is_nonblocking(socket: &OwnedFd) -> Result<bool, Errno> {
    Ok(fcntl_getfl(socket)?.contains(OFlags::NONBLOCK))
}

/// Makes calls on the socket wait.
///
/// # Errors
/// Those of fcntl(2).
pub fn set_blocking(socket: &OwnedFd) -> Result<(), Errno> {
    fcntl_setfl(socket, fcntl_getfl(socket)? - OFlags::NONBLOCK)
}

/// Returns how long a connect of the socket may wait; `None` without a limit.
///
/// # Errors
/// Those of getsockopt(2).
pub fn time_limit(socket: &OwnedFd) -> Result<Option<Duration>, Errno> {
    sockopt::socket_timeout(socket, sockopt::Timeout::Send)
}

/// Starts to connect a socket that a program has, without waiting; `None` frees it from its peer.
/// Other threads of the program may see the socket as non-blocking meanwhile.
///
/// # Errors
/// Those of connect(2), EINPROGRESS and EALREADY among them.
pub fn connect(socket: &OwnedFd, to: Option<SocketAddr>) -> Result<(), Errno> {
    let flags = fcntl_getfl(socket)?;
    fcntl_setfl(socket, flags | OFlags::NONBLOCK)?;
    let result = match to {
        Some(to) => rustix::net::connect(socket, &to),
        None => rustix::net::connect_unspec(socket),
    };
    fcntl_setfl(socket, flags)?;
    result
}

/// Binds a TCP socket to an address of the host and makes it listen, for as many waiting
/// connections as `backlog`. Another socket may be bound there, if it does not listen and permits
/// it (`SO_REUSEADDR`).
///
/// # Errors
/// Those of bind(2) and listen(2).
pub fn listen_at(socket: &OwnedFd, at: SocketAddr, backlog: i32) -> io::Result<()> {
    sockopt::set_socket_reuseaddr(socket, true)?;
    bind_as_is(socket, &at, None)?;
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Stops a listener, in all processes that have it. Connections that wait are reset, and the port
/// stays bound.
///
/// # Errors
/// ENOTCONN if it does not listen.
pub fn stop_listening(socket: &OwnedFd) -> Result<(), Errno> {
    rustix::net::shutdown(socket, rustix::net::Shutdown::Read)
}

/// Ends the connection of a TCP socket at once, in all processes that have it: the peer gets a
/// reset, bytes that wait are lost, and calls of the holders fail. The socket has no peer then.
///
/// # Errors
/// Those of connect(2).
pub fn reset(socket: &OwnedFd) -> Result<(), Errno> {
    rustix::net::connect_unspec(socket)
}

/// Returns the family of an internet socket.
///
/// # Errors
/// EAFNOSUPPORT for other sockets, and those of getsockopt(2).
pub fn family(socket: &OwnedFd) -> Result<AddressFamily, Errno> {
    match sockopt::socket_domain(socket)? {
        family @ (AddressFamily::INET | AddressFamily::INET6) => Ok(family),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Returns the number of a socket's network namespace.
fn cookie(socket: &OwnedFd) -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    socket_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Returns true if the program has attached a filter, also one that cannot be read.
fn has_filter(socket: BorrowedFd<'_>) -> bool {
    socket_option(socket, libc::SOL_SOCKET, libc::SO_GET_FILTER, &mut []) != Ok(0)
}

/// Turns an error into its number.
pub fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Longest value of an option: a name, or two numbers of 64 bits.
const OPTION_BYTES_MAX: usize = 16;

/// Options that lead packets through one interface, or put data into the SYN.
const BINDING: [(i32, i32); 4] = [
    (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX),
    (libc::IPPROTO_IP, libc::IP_UNICAST_IF),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
];

/// Options that are carried over. Those of the other family are not there, and not changed.
const CARRIED: [(i32, i32); 41] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_INQ),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_MINTTL),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn sockets() -> Sockets {
        Sockets::new(samples().unwrap()).unwrap()
    }

    /// Goal: options that were set are carried over, others stay those of the host.
    #[test]
    fn options_are_carried_over() {
        let own = open(AddressFamily::INET).unwrap();
        sockopt::set_tcp_nodelay(&own, true).unwrap();
        sockopt::set_socket_recv_buffer_size(&own, 70_000).unwrap();
        sockopt::set_ip_tos(&own, 0x10).unwrap();
        let host = sockets().open_like(&own).unwrap();
        assert!(sockopt::tcp_nodelay(&host).unwrap());
        assert_eq!(sockopt::socket_recv_buffer_size(&host).unwrap(), 140_000);
        assert_eq!(sockopt::ip_tos(&host).unwrap(), 0x10);
        let usual = open(AddressFamily::INET).unwrap();
        let buffer = sockopt::socket_send_buffer_size(&usual).unwrap();
        assert_eq!(sockopt::socket_send_buffer_size(&host).unwrap(), buffer);
    }

    /// Goal: sockets that are bound keep to their interface, and other kinds are not taken for TCP.
    #[test]
    fn some_sockets_are_unfit() {
        let sockets = sockets();
        let bound = open(AddressFamily::INET).unwrap();
        rustix::net::bind(&bound, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        assert_eq!(sockets.open_like(&bound).unwrap_err(), Unfit::Bound);
        assert_eq!(sockets.origin(&bound), Origin::Inside);
        let datagrams = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        assert_eq!(sockets.origin(&datagrams), Origin::Other);
        let unix = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        assert_eq!(sockets.origin(&unix), Origin::Other);
    }

    /// Goal: a reset shows on both sides, and leaves the socket without a peer.
    #[test]
    fn connections_are_reset() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let copy = OwnedFd::from(own.try_clone().unwrap());
        reset(&copy).unwrap();
        for mut side in [&own, &accepted] {
            let error = std::io::Read::read(&mut side, &mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        assert_eq!(state(&copy), Ok(State::Closed));
        assert_eq!(peer(&copy), Err(Errno::NOTCONN));
    }

    /// Goal: a blocking socket is connected without a wait, stays blocking, and can be freed.
    #[test]
    fn a_program_s_socket_is_connected() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = open(AddressFamily::INET).unwrap();
        set_blocking(&own).unwrap();
        let to = listener.local_addr().unwrap();
        assert_eq!(connect(&own, Some(to)), Err(Errno::INPROGRESS));
        assert_eq!(state(&own), Ok(State::Connected));
        assert!(!is_nonblocking(&own).unwrap());
        assert_eq!(peer(&own), Ok(to));
        connect(&own, None).unwrap();
        assert_eq!(state(&own), Ok(State::Closed));
    }
}
