//! UDP sockets that share an address and port, one for each VXLAN network (VNI).
//!
//! # Theory of operation
//!
//! The first socket is bound alone, as any other. With a second one they become a group of the
//! kernel (`SO_REUSEPORT`), and a program of classic BPF chooses the socket of each datagram by the
//! VNI in it (RFC 7348 §5). What has a VNI of no socket, or is too short for one, goes to the first
//! socket, which has to refuse it. No datagram passes user memory on its way to its socket.
//!
//! The program names sockets by their index. The kernel appends a socket that is bound, and moves
//! the last one to the place of one that is closed; [`Group::members`] does the same, and the
//! program is replaced. Between the two, the datagrams of the socket that was moved may reach
//! another one.
//!
//! **Strangers.** The first socket is bound without `SO_REUSEPORT`, so it finds any other that has
//! the address. Later ones must be kept out: any process of the same user could join a group. But
//! the kernel decides by the socket that was bound last. So a *blocker* is bound after each socket
//! of a group, at the same address, without `SO_REUSEPORT`, and it is tied to an interface that
//! does not exist, so that it gets no datagram. Linux before 5.7 wants a privilege for that; there
//! a stranger may join, and gets no datagram while no socket is added or closed. The blocker gets
//! in because all of them have `SO_REUSEADDR` while it is bound. For that moment a stranger that
//! has this option, too, can bind the address.
//!
//! Invariant: the index of a socket in the kernel's group is that in [`Group::members`]. The lock
//! is taken to open and close a socket only.
//!
//! Limit: [`SHARING_MAX`].
//!
//! Sources: socket(7), the kernel's net/core/sock_reuseport.c and net/ipv4/udp.c as observed.

use super::{UdpSocket, bind, open, set_int};
use crate::process_sys::attach_reuseport_program;
use libc::sock_filter;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most sockets at one port: those of the ports that a network may have.
pub const SHARING_MAX: usize = 256;
/// Most instructions of a program (`BPF_MAXINSNS`).
const INSTRUCTIONS_MAX: usize = 4096;
const _: () = assert!(FIXED + 2 * SHARING_MAX <= INSTRUCTIONS_MAX);
/// Instructions besides two for each socket.
const FIXED: usize = 6;
/// The index of no interface: the kernel counts from 1.
const NO_INTERFACE: i32 = i32::MAX;

/// An address and UDP port of this host that sockets share.
#[derive(Debug)]
pub struct SharedPort {
    at: SocketAddr,
    group: Mutex<Group>,
}

/// A UDP socket that receives the datagrams of one VNI at a [`SharedPort`]. It is closed when this
/// is dropped.
#[derive(Debug)]
pub struct SharedSocket {
    socket: Arc<UdpSocket>,
    /// Dropped after the reference above, so that the last one ends with it.
    _membership: Membership,
}

#[derive(Debug)]
struct Membership {
    port: Arc<SharedPort>,
    vni: u32,
}

/// The sockets, in the kernel's order, and what keeps others out.
#[derive(Debug, Default)]
struct Group {
    members: Vec<(u32, Arc<UdpSocket>)>,
    blocker: Option<OwnedFd>,
}

impl SharedPort {
    /// An address without sockets. If its port is 0, the first socket chooses one.
    pub fn new(at: SocketAddr) -> Arc<Self> {
        Arc::new(Self { at, group: Mutex::default() })
    }

    /// Opens the socket of a VNI.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the VNI has a socket here,
    /// [`io::ErrorKind::QuotaExceeded`] beyond [`SHARING_MAX`]. Others are those of the
    /// system calls; `EADDRINUSE` if the address is another process's. Nothing has changed then.
    pub fn open(self: &Arc<Self>, vni: u32) -> io::Result<SharedSocket> {
        let mut group = self.group();
        if group.members.iter().any(|(of, _)| *of == vni) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if group.members.len() >= SHARING_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let socket = match group.members.first() {
            None => UdpSocket::bind(self.at, None)?,
            Some(_) => group.join(vni)?,
        };
        let socket = Arc::new(socket);
        group.members.push((vni, socket.clone()));
        group.keep_blocker();
        let membership = Membership { port: self.clone(), vni };
        Ok(SharedSocket { socket, _membership: membership })
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    /// Binds one more socket, and has the kernel choose it for this VNI.
    fn join(&mut self, vni: u32) -> io::Result<UdpSocket> {
        let at = self.members[0].1.local()?;
        // It would refuse the new socket.
        self.blocker = None;
        let bound = self.bind_at(at);
        let steered = bound.and_then(|socket| {
            steer(&socket, self.vnis().chain([vni]))?;
            Ok(socket)
        });
        if steered.is_err() {
            self.keep_blocker();
        }
        steered
    }

    fn bind_at(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        for (_, socket) in &self.members {
            sockopt::set_socket_reuseport(socket, true)?;
        }
        UdpSocket::bind_shared(at)
    }

    /// Binds the blocker, if there is a group.
    fn keep_blocker(&mut self) {
        if let [(_, first), _, ..] = &self.members[..] {
            self.blocker = first.local().and_then(|at| self.blocker_at(at)).ok();
        }
    }

    /// Binds a socket that gets no datagram and keeps others from binding one.
    fn blocker_at(&self, at: SocketAddr) -> io::Result<OwnedFd> {
        let blocker = open(&at, SocketType::DGRAM, None)?;
        // With this on both sides, the kernel lets it in without its being one of the group.
        let allow = |is_allowed| {
            let sockets = self.members.iter().map(|(_, socket)| socket.as_fd());
            for socket in sockets.chain([blocker.as_fd()]) {
                sockopt::set_socket_reuseaddr(socket, is_allowed)?;
            }
            io::Result::Ok(())
        };
        let bound = allow(true).and_then(|()| bind(&blocker, &at, None));
        let tied = bound.and_then(|()| {
            set_int(blocker.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, NO_INTERFACE)
        });
        allow(false)?;
        tied.map(|()| blocker)
    }

    fn vnis(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|(vni, _)| *vni)
    }

    /// Closes a socket.
    fn leave(&mut self, vni: u32) {
        let Some(index) = self.members.iter().position(|(of, _)| *of == vni) else { return };
        self.members.swap_remove(index);
        match self.members.first() {
            None => self.blocker = None,
            // A shorter program than before is refused only for want of memory; the next change
            // replaces it.
            Some((_, first)) => drop(steer(first, self.vnis())),
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.port.group().leave(self.vni);
    }
}

impl Deref for SharedSocket {
    type Target = UdpSocket;

    fn deref(&self) -> &UdpSocket {
        &self.socket
    }
}

/// Has the kernel choose the sockets of a group by VNI: that of the first VNI has index 0.
fn steer(member: &UdpSocket, vnis: impl Iterator<Item = u32>) -> io::Result<()> {
    Ok(attach_reuseport_program(member.as_fd(), &program(vnis))?)
}

/// A program that finds the index of the VNI in the header of a datagram, and 0 for any other.
fn program(vnis: impl Iterator<Item = u32>) -> Vec<sock_filter> {
    use libc::{BPF_ABS, BPF_ALU, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_LEN, BPF_RET};
    let step = |code: u32, jt, jf, k| sock_filter { code: code as u16, jt, jf, k };
    let give = |index| step(BPF_RET | BPF_K, 0, 0, index);
    let mut all = vec![
        step(BPF_LD | libc::BPF_W | BPF_LEN, 0, 0, 0),
        step(BPF_JMP | BPF_JGE | BPF_K, 1, 0, HEADER_BYTES),
        give(0),
        step(BPF_LD | libc::BPF_W | BPF_ABS, 0, 0, VNI_AT),
        step(BPF_ALU | libc::BPF_RSH | BPF_K, 0, 0, 8),
    ];
    for (index, vni) in (0..).zip(vnis) {
        all.extend([step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, vni), give(index)]);
    }
    all.push(give(0));
    all
}

/// The VXLAN header, and where in it are the VNI and a reserved byte.
const HEADER_BYTES: u32 = 8;
const VNI_AT: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    /// Addresses that a port may have, and the one that a datagram is sent to.
    fn ends() -> Vec<(IpAddr, IpAddr)> {
        let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), IpAddr::V6(Ipv6Addr::LOCALHOST));
        let mut all = vec![(v4, v4), (Ipv4Addr::UNSPECIFIED.into(), v4)];
        if UdpSocket::bind(SocketAddr::new(v6, 0), None).is_ok() {
            all.extend([(v6, v6), (Ipv6Addr::UNSPECIFIED.into(), v6)]);
        } else {
            eprintln!("skipped: this machine has no IPv6");
        }
        all
    }

    fn header(vni: u32) -> Vec<u8> {
        [&[8, 0, 0, 0][..], &(vni << 8 | 0xff).to_be_bytes(), &[0; 60]].concat()
    }

    /// Asserts that the socket with this VNI gets a datagram, and no other one does. A busy system
    /// may drop a datagram, so it is sent again.
    fn arrives(sockets: &[(u32, SharedSocket)], to: IpAddr, datagram: &[u8], vni: u32) {
        let at = SocketAddr::new(to, sockets[0].1.local().expect("bound").port());
        let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { to };
        let sender = std::net::UdpSocket::bind(SocketAddr::new(any, 0)).expect("a sender");
        let mut bytes = [0; 100];
        for _ in 0..1000 {
            sender.send_to(datagram, at).expect("sent");
            let got: Vec<u32> = sockets
                .iter()
                .filter(|(_, socket)| socket.receive_bytes(&mut bytes).is_ok())
                .map(|(vni, _)| *vni)
                .collect();
            if !got.is_empty() {
                assert_eq!(got, [vni], "{at} {datagram:?}");
                return;
            }
        }
        panic!("nothing arrives at {at}");
    }

    /// Asserts that each VNI arrives at its socket, and all else at the first one.
    fn all_arrive(sockets: &[(u32, SharedSocket)], to: IpAddr) {
        let first = sockets[0].0;
        for (vni, _) in sockets {
            arrives(sockets, to, &header(*vni), *vni);
        }
        arrives(sockets, to, &header(0x00ff_ffff), first);
        arrives(sockets, to, &header(7)[..7], first);
    }

    /// Goal: each VNI arrives at its socket, whichever are opened and closed, and what is no one's
    /// arrives at one.
    #[test]
    fn each_network_has_its_socket() {
        for (at, to) in ends() {
            let port = SharedPort::new(SocketAddr::new(at, 0));
            let open = |vni| (vni, port.open(vni).expect("a socket"));
            let mut sockets = vec![open(0)];
            all_arrive(&sockets, to);
            for vni in [500, 1, 0x00ff_fffe, 77] {
                sockets.push(open(vni));
                all_arrive(&sockets, to);
            }
            let twice = port.open(77).expect_err("it has one");
            assert_eq!(twice.kind(), io::ErrorKind::AlreadyExists);
            // In the middle, at the end, at the start.
            for index in [1, 3, 0] {
                sockets.swap_remove(index);
                all_arrive(&sockets, to);
                sockets.push(open(1000 + index as u32));
                all_arrive(&sockets, to);
            }
            while sockets.len() > 1 {
                sockets.pop();
                all_arrive(&sockets, to);
            }
        }
    }

    /// Goal: no other socket gets an address that sockets share, nor do they get one that another
    /// socket has.
    #[test]
    fn strangers_are_kept_out() {
        let stranger = |at: SocketAddr, reuses: (bool, bool)| {
            let fd = open(&at, SocketType::DGRAM, None).expect("a socket");
            sockopt::set_socket_reuseport(&fd, reuses.0).expect("set");
            sockopt::set_socket_reuseaddr(&fd, reuses.1).expect("set");
            bind(&fd, &at, None).map(|()| UdpSocket::from(fd))
        };
        let ways = [(false, false), (true, false), (false, true), (true, true)];
        for (at, to) in ends() {
            let other = stranger(SocketAddr::new(at, 0), (true, true)).expect("bound");
            let taken = SharedPort::new(other.local().expect("bound"));
            let refused = taken.open(1).expect_err("it is taken");
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);

            let port = SharedPort::new(SocketAddr::new(at, 0));
            let mut sockets = Vec::new();
            let refuses = |sockets: &[SharedSocket]| {
                let number = sockets[0].local().expect("bound").port();
                let any = if at.is_ipv4() {
                    IpAddr::from(Ipv4Addr::UNSPECIFIED)
                } else {
                    Ipv6Addr::UNSPECIFIED.into()
                };
                for (address, way) in [at, to, any].into_iter().flat_map(|a| ways.map(|w| (a, w))) {
                    let refused = stranger(SocketAddr::new(address, number), way);
                    let count = sockets.len();
                    let error = refused.expect_err(&format!("{address} {way:?} beside {count}"));
                    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
                }
            };
            // The kernel searches other lists for more than ten sockets of one port.
            for vni in 0..12 {
                sockets.push(port.open(vni).expect("a socket"));
                refuses(&sockets);
            }
            while sockets.len() > 1 {
                sockets.swap_remove(0);
                refuses(&sockets);
            }
        }
    }
}
