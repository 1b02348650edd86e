//! Counters of TCP sockets that other processes have, from the kernel (sock_diag(7)).
//!
//! A descriptor of a native socket that the supervisor kept would keep the connection open after
//! the program has closed it. So it keeps the number of the socket, its *cookie*, and asks the
//! kernel: for an open socket at any time, and for a closed one by the report that the kernel sends
//! when it frees the socket.
//!
//! The kernel reports each TCP socket of the namespace that is freed, also those of other programs.
//! Reports are lost if more are freed at once than the receive buffer holds; later questions for
//! such a socket are answered with an error, and its last counters stay unknown. The counters of a
//! socket that its owner closes by a reset (`SO_LINGER` of 0) are zero in the report.
//!
//! Layouts are those of linux/netlink.h, linux/inet_diag.h and linux/tcp.h.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};

/// A socket and what it has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The number of the socket, as `SO_COOKIE` returns it.
    pub cookie: u64,
    /// Payload bytes sent, without retransmissions.
    pub bytes_out: u64,
    /// Payload bytes received. The peer's FIN counts as a byte, as in `tcpi_bytes_received`.
    pub bytes_in: u64,
    /// State of the connection (net/tcp_states.h).
    pub state: u8,
    /// The inode of the socket; 0 if no process has it open.
    pub inode: u32,
    /// Its own address and the peer's, of its family.
    pub ends: [SocketAddr; 2],
}

/// Asks the kernel, and receives reports of sockets that have ended.
#[derive(Debug)]
pub struct Diag {
    questions: OwnedFd,
    ends: OwnedFd,
    has_lost: bool,
    buffer: Vec<u8>,
}

impl Diag {
    /// Opens the sockets in the network namespace of this process. A kernel without its module
    /// `tcp_diag` knows no socket and reports no end.
    ///
    /// # Errors
    /// Those of the system; the kernel may lack `sock_diag`.
    pub fn open() -> Result<Self, Errno> {
        let open = |flags| {
            let protocol = Some(netlink::SOCK_DIAG);
            let flags = SocketFlags::CLOEXEC | flags;
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)
        };
        let questions = open(SocketFlags::empty())?;
        sockopt::set_socket_timeout(&questions, sockopt::Timeout::Recv, Some(PATIENCE))?;
        let ends = open(SocketFlags::NONBLOCK)?;
        // A limit of the system may make it smaller; then bursts of ends are lost sooner.
        let _ = sockopt::set_socket_recv_buffer_size(&ends, ENDS_BYTES);
        bind(&ends, &SocketAddrNetlink::new(0, TCP_ENDS | TCP6_ENDS))?;
        Ok(Self { questions, ends, has_lost: false, buffer: vec![0; MESSAGE_BYTES_MAX] })
    }

    /// Returns the next socket that has ended; `None` if there is none now.
    pub fn next_end(&mut self) -> Option<Carried> {
        loop {
            match recv(&self.ends, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => {
                    if let Some(Ok(ended)) = parse(&self.buffer[..length]) {
                        return Some(ended);
                    }
                }
                // Others follow.
                Err(Errno::NOBUFS) => self.has_lost = true,
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// Returns true if reports have been lost since the last call.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    /// Returns true if the kernel knows a socket by its cookie: it has the module `tcp_diag`.
    pub fn knows_sockets(&mut self) -> bool {
        let mut is_known = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
            let (cookie, local) =
                (sockopt::socket_cookie(&listener).ok()?, listener.local_addr().ok()?);
            self.ask(cookie, local, (Ipv4Addr::UNSPECIFIED, 0).into()).ok()
        };
        is_known().is_some()
    }

    /// Passes all connections whose own port is `port` to `take`, those of IPv4 and IPv6 sockets.
    /// The kernel walks all its connections for that.
    pub fn connections_at(&mut self, port: u16, take: impl FnMut(Carried)) {
        self.list(port, CONNECTED, take);
    }

    /// Passes all connections to `take`, those that are being made included. Sockets that are bound
    /// to an interface are among them, which [`ask`](Self::ask) does not find.
    pub fn all_connections(&mut self, take: impl FnMut(Carried)) {
        const EVERY_PORT: u16 = 0;
        self.list(EVERY_PORT, CONNECTED | SYN_SENT, take);
    }

    fn list(&mut self, port: u16, states: u32, mut take: impl FnMut(Carried)) {
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let every = [SocketAddr::new(any, port), SocketAddr::new(any, 0)];
            let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
            let question = question(u64::MAX, every, flags, states);
            if send(&self.questions, &question, SendFlags::empty()).is_ok() {
                while self.next_part(&mut take) {}
            }
        }
    }

    /// Receives a part of a list; returns false after the last one.
    fn next_part(&mut self, take: &mut impl FnMut(Carried)) -> bool {
        let received = recv(&self.questions, &mut self.buffer[..], RecvFlags::empty());
        let Ok((length, _)) = received else { return false };
        let mut rest = &self.buffer[..length];
        while let Some(length) = rest.first_chunk() {
            let length = u32::from_ne_bytes(*length) as usize;
            let kind = rest.get(4..).and_then(|kind| kind.first_chunk());
            let kind = kind.map(|kind| i32::from(u16::from_ne_bytes(*kind)));
            if length < HEADER_BYTES || matches!(kind, Some(libc::NLMSG_DONE | libc::NLMSG_ERROR)) {
                return false;
            }
            if let Some(Some(Ok(found))) = rest.get(..length).map(parse) {
                take(found);
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        true
    }

    /// Returns the counters of the open socket with this cookie and these addresses. A listener has
    /// no peer: port 0 of any address.
    ///
    /// # Errors
    /// ENOENT if it has gone, or is bound to an interface, and others of the kernel.
    pub fn ask(
        &mut self,
        cookie: u64,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<Carried, Errno> {
        let question = question(cookie, [local, peer], libc::NLM_F_REQUEST, u32::MAX);
        send(&self.questions, &question, SendFlags::empty())?;
        let (length, _) = recv(&self.questions, &mut self.buffer[..], RecvFlags::empty())?;
        parse(&self.buffer[..length]).unwrap_or(Err(Errno::PROTO))
    }
}

impl AsFd for Diag {
    /// Readable when a socket has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ends.as_fd()
    }
}

/// Builds a request for sockets in these states (`struct inet_diag_req_v2`).
fn question(cookie: u64, [local, peer]: [SocketAddr; 2], flags: i32, states: u32) -> Vec<u8> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + 56);
    bytes.extend(((HEADER_BYTES + 56) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend((flags as u16).to_ne_bytes());
    bytes.extend([0; 8]); // sequence number and port
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 1 << (INET_DIAG_INFO - 1), 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(peer.port().to_be_bytes());
    for address in [local.ip(), peer.ip()] {
        match address {
            IpAddr::V4(v4) => bytes.extend(v4.octets().into_iter().chain([0; 12])),
            IpAddr::V6(v6) => bytes.extend(v6.octets()),
        }
    }
    bytes.extend([0; 4]); // any interface
    bytes.extend((cookie as u32).to_ne_bytes());
    bytes.extend(((cookie >> 32) as u32).to_ne_bytes());
    bytes
}

/// Reads a message about a socket (`struct inet_diag_msg`), or an error.
fn parse(message: &[u8]) -> Option<Result<Carried, Errno>> {
    let word = |at: usize| Some(u32::from_ne_bytes(*message.get(at..)?.first_chunk()?));
    let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
    if i32::from(kind) == libc::NLMSG_ERROR {
        let errno = word(HEADER_BYTES)?.cast_signed().checked_neg()?;
        return Some(Err(Errno::from_raw_os_error(errno)));
    }
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let [state, cookie_at, inode] = [HEADER_BYTES + 1, HEADER_BYTES + 44, HEADER_BYTES + 68];
    let cookie = u64::from(word(cookie_at)?) | u64::from(word(cookie_at + 4)?) << 32;
    let mut attributes = message.get(HEADER_BYTES + 72..)?;
    while let Some(length) = attributes.first_chunk() {
        let length = usize::from(u16::from_ne_bytes(*length));
        let attribute = attributes.get(..length).filter(|attribute| attribute.len() >= 4)?;
        if attribute[2..4] == u16::from(INET_DIAG_INFO).to_ne_bytes() {
            let number =
                |at: usize| Some(u64::from_ne_bytes(*attribute.get(4 + at..)?.first_chunk()?));
            let [received, sent, again] = [number(128)?, number(200)?, number(208)?];
            return Some(Ok(Carried {
                cookie,
                bytes_out: sent.saturating_sub(again),
                bytes_in: received,
                state: *message.get(state)?,
                inode: word(inode)?,
                ends: ends(message)?,
            }));
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// Reads the addresses in a message about a socket.
fn ends(message: &[u8]) -> Option<[SocketAddr; 2]> {
    let is_v4 = i32::from(*message.get(HEADER_BYTES)?) == libc::AF_INET;
    let end = |port_at: usize, address_at: usize| {
        let port = u16::from_be_bytes(*message.get(HEADER_BYTES + port_at..)?.first_chunk()?);
        let bytes: [u8; 16] = *message.get(HEADER_BYTES + address_at..)?.first_chunk()?;
        let [a, b, c, d, ..] = bytes;
        let address = if is_v4 { IpAddr::from([a, b, c, d]) } else { IpAddr::from(bytes) };
        Some(SocketAddr::new(address, port))
    };
    Some([end(4, 8)?, end(6, 24)?])
}

/// How long an answer of the kernel may take, which comes during the call.
const PATIENCE: Duration = Duration::from_secs(1);
/// Receive buffer for reports of ends: about a thousand.
const ENDS_BYTES: usize = 1 << 20;
/// A message has about 600 bytes.
const MESSAGE_BYTES_MAX: usize = 8192;
const HEADER_BYTES: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u8 = 2;
/// Groups `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY` of linux/sock_diag.h.
const TCP_ENDS: u32 = 1 << 0;
const TCP6_ENDS: u32 = 1 << 2;
/// States of net/tcp_states.h: a connection that is being made, and those in which it was
/// established and is not over.
const SYN_SENT: u32 = 1 << 2;
const CONNECTED: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use crate::namespace::channel::wait_readable;

    /// Goal: bytes of an open connection and of one that has ended are known by its cookie.
    #[test]
    fn a_connection_is_counted() {
        let mut diag = Diag::open().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        stream.write_all(&[1; 1000]).unwrap();
        accepted.read_exact(&mut [0; 1000]).unwrap();
        accepted.write_all(&[2; 70]).unwrap();
        stream.read_exact(&mut [0; 70]).unwrap();
        let cookie = sockopt::socket_cookie(&stream).unwrap();
        let [local, peer] = [stream.local_addr().unwrap(), stream.peer_addr().unwrap()];
        let open = diag.ask(cookie, local, peer).unwrap();
        assert_eq!((open.cookie, open.bytes_out, open.bytes_in), (cookie, 1000, 70));
        let inode = rustix::fs::fstat(&stream).unwrap().st_ino;
        assert_eq!((u64::from(open.inode), open.ends), (inode, [local, peer]));
        assert!(diag.ask(cookie + 1, local, peer).is_err(), "another socket's addresses");
        assert!(diag.knows_sockets());
        // A socket that is bound to an interface is listed, and else not found.
        let bind = (libc::SOL_SOCKET, libc::SO_BINDTODEVICE);
        crate::sys::set_option(stream.as_fd(), bind.0, bind.1, b"lo").unwrap();
        assert_eq!(diag.ask(cookie, local, peer), Err(Errno::NOENT));
        // The kernel may skip one while others end beside it.
        let mut is_listed = || {
            let mut is_found = false;
            diag.all_connections(|one| is_found |= one.cookie == cookie);
            is_found
        };
        assert!((0..100).any(|_| is_listed()));
        drop(accepted);
        stream.read_exact(&mut [0]).unwrap_err();
        drop(stream);
        let ended = loop {
            match diag.next_end() {
                Some(ended) if ended.cookie == cookie => break ended,
                Some(_) => {}
                None => {
                    let ready = wait_readable(&[diag.as_fd()], Some(Duration::from_secs(10)));
                    ready.unwrap().expect("the kernel reports the end");
                }
            }
        };
        assert_eq!((ended.bytes_out, ended.bytes_in), (1000, 71), "the FIN counts");
    }

    /// Goal: a listener is known, and the connections at its port are listed, those of a socket for
    /// both IP versions included; others are not.
    #[test]
    fn connections_of_a_listener() {
        let mut diag = Diag::open().unwrap();
        let listener = TcpListener::bind("[::]:0").unwrap();
        let local = listener.local_addr().unwrap();
        let nobody = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        let cookie = sockopt::socket_cookie(&listener).unwrap();
        assert_eq!(diag.ask(cookie, local, nobody).unwrap().state, 10, "it listens");
        let streams: Vec<_> = ["127.0.0.1", "::1"]
            .into_iter()
            .map(|to| TcpStream::connect((to, local.port())).unwrap())
            .collect();
        let accepted: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
        let mut found = Vec::new();
        diag.connections_at(local.port(), |one| found.push((one.cookie, one.ends[0].port())));
        found.sort_unstable();
        let mut expected: Vec<_> = accepted
            .iter()
            .map(|one| (sockopt::socket_cookie(one).unwrap(), local.port()))
            .collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
        drop(streams);
    }

    #[test]
    fn other_messages_are_skipped() {
        assert_eq!(parse(&[]), None);
        let mut bytes = vec![0; 120];
        bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        assert_eq!(parse(&bytes), None, "no counters");
        bytes[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        bytes[16..20].copy_from_slice(&(-2_i32).to_ne_bytes());
        assert_eq!(parse(&bytes), Some(Err(Errno::NOENT)));
    }
}
