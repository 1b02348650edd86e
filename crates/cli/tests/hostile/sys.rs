//! System calls without a safe wrapper: namespaces of threads and packet sockets. The only unsafe
//! code of these tests.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Moves this thread, and those that it starts from now on, into a fresh network namespace.
pub(super) fn enter_network() -> io::Result<()> {
    // SAFETY: a network namespace shares no file descriptors and no memory.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}

/// Which frames a packet socket receives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sees {
    /// None: for sending.
    Nothing,
    /// Every frame of its interface.
    Everything,
}

/// A packet socket bound to one interface.
pub(super) struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens a socket on the interface `name` of this thread's namespace.
    pub(super) fn open(name: &str, sees: Sees) -> io::Result<Self> {
        let protocol = if sees == Sees::Everything { (libc::ETH_P_ALL as u16).to_be() } else { 0 };
        let raw = rustix::net::RawProtocol::new(u32::from(protocol)).map(Protocol::from_raw);
        let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
        let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, raw)?;
        let index = rustix::net::netdevice::name_to_index(&fd, name)?;
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol,
            sll_ifindex: index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = size_of_val(&address) as u32;
        // SAFETY: `address` is a whole sockaddr_ll and `len` its size; the kernel only reads it.
        let bound = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(fd)) }
    }

    /// Precedes each frame by a virtio-net header of 10 bytes from now on, which the kernel checks.
    pub(super) fn use_virtio_headers(&self) -> io::Result<()> {
        let on: libc::c_int = 1;
        let (level, name) = (libc::SOL_PACKET, libc::PACKET_VNET_HDR);
        let len = size_of_val(&on) as u32;
        // SAFETY: the option takes an int, which `on` is and `len` says.
        let set = unsafe {
            libc::setsockopt(self.0.as_raw_fd(), level, name, (&raw const on).cast(), len)
        };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receives from now on only TCP over IPv4 to this address.
    pub(super) fn only_to(&self, address: Ipv4Addr) -> io::Result<()> {
        let load = |size: u32, at: u32| (libc::BPF_LD | size | libc::BPF_ABS, at, 0, 0);
        let unless = |value: u32, skip: u8| (libc::BPF_JMP | libc::BPF_JEQ, value, 0, skip);
        let program = [
            load(libc::BPF_H, 12),
            unless(libc::ETH_P_IP as u32, 5),
            load(libc::BPF_B, 23),
            unless(libc::IPPROTO_TCP as u32, 3),
            load(libc::BPF_W, 30),
            unless(address.to_bits(), 1),
            (libc::BPF_RET, u32::MAX, 0, 0),
            (libc::BPF_RET, 0, 0, 0),
        ];
        let mut program =
            program.map(|(code, k, jt, jf)| libc::sock_filter { code: code as u16, jt, jf, k });
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
        let len = size_of_val(&filter) as u32;
        // SAFETY: the option takes a sock_fprog; `filter` names `program`, which outlives the call.
        let set = unsafe {
            libc::setsockopt(self.0.as_raw_fd(), level, name, (&raw const filter).cast(), len)
        };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends a frame; returns false if the kernel refuses it.
    pub(super) fn send(&self, frame: &[u8]) -> bool {
        rustix::net::send(&self.0, frame, SendFlags::empty()).is_ok()
    }

    /// Returns the next frame, truncated to `buffer`; `None` if there is none within `patience`.
    pub(super) fn receive<'a>(
        &self,
        buffer: &'a mut [u8],
        patience: Duration,
    ) -> Option<&'a mut [u8]> {
        let timeout = rustix::event::Timespec::try_from(patience).ok()?;
        let mut fds = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&timeout)).ok()? == 0 {
            return None;
        }
        let (count, _) = rustix::net::recv(&self.0, &mut *buffer, RecvFlags::DONTWAIT).ok()?;
        Some(&mut buffer[..count])
    }
}
