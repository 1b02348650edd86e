//! A neighbour entry for the duration of a self-test, so that nothing has to answer ARP.
//!
//! Messages are those of `rtnetlink(7)`: a header, an `ndmsg`, two attributes.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, sendto,
    socket_with,
};
use std::net::IpAddr;

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;

/// A neighbour entry; deleted when dropped.
pub(super) struct Neighbour {
    socket: OwnedFd,
    interface: u32,
    address: IpAddr,
}

impl Neighbour {
    /// Adds an entry: `address` on the link `interface` has the Ethernet address `mac`.
    pub(super) fn add(interface: &str, address: IpAddr, mac: [u8; 6]) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let interface = netdevice::name_to_index(&socket, interface)?;
        let neighbour = Self { socket, interface, address };
        neighbour.ask(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, Some(mac))?;
        Ok(neighbour)
    }

    fn ask(&self, kind: u16, flags: u16, mac: Option<[u8; 6]>) -> Result<(), Errno> {
        let family = if self.address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let mut body = vec![family as u8, 0, 0, 0];
        body.extend(self.interface.to_ne_bytes());
        body.extend(NUD_PERMANENT.to_ne_bytes());
        body.extend([0, 0]);
        match self.address {
            IpAddr::V4(address) => push_attribute(&mut body, NDA_DST, &address.octets()),
            IpAddr::V6(address) => push_attribute(&mut body, NDA_DST, &address.octets()),
        }
        if let Some(mac) = mac {
            push_attribute(&mut body, NDA_LLADDR, &mac);
        }
        let mut message = Vec::from((body.len() as u32 + 16).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        sendto(&self.socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        // The kernel has answered before `sendto` returns.
        let mut reply = [0; 512];
        let (bytes, _) = recv(&self.socket, &mut reply[..], RecvFlags::empty())?;
        let reply = &reply[..bytes];
        let (Some(kind), Some(error)) = (reply.get(4..6), reply.get(16..20)) else {
            return Err(Errno::BADMSG);
        };
        if kind != NLMSG_ERROR.to_ne_bytes() {
            return Err(Errno::BADMSG);
        }
        match i32::from_ne_bytes([error[0], error[1], error[2], error[3]]) {
            0 => Ok(()),
            // `Errno` would panic on a number outside this range.
            error @ -4095..0 => Err(Errno::from_raw_os_error(-error)),
            _ => Err(Errno::BADMSG),
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // If this fails, an entry that is correct stays behind.
        let _ = self.ask(RTM_DELNEIGH, 0, None);
    }
}

fn push_attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend((value.len() as u16 + 4).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}
