//! Changes of links, addresses and default routes of a network namespace, as they happen.
//!
//! # Theory of operation
//!
//! A [`Watch`] has a socket that the kernel sends a message for each change, a timer, and a second
//! socket for requests. It rests until a change arrives that may matter. Then it waits for
//! [`PAUSE`] without reading, so that many changes at once, such as those of a VPN that starts, are
//! one; after that it discards what has arrived and asks its owner to read everything anew.
//! Messages that the kernel had to drop (ENOBUFS) count as a change. So the owner reads at most
//! once per [`PAUSE`], whatever happens, and never misses the last change.
//!
//! All descriptors exist from the start, and belong to the namespace in which the watch was opened:
//! a process that is confined later can still use it. No call waits, except for answers to
//! requests, which the kernel gives at once.
//!
//! Limits: [`PAUSE`], [`DRAINED_MAX`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::message::{self, read_u16, read_u32};
use super::{Netlink, NetlinkError};

/// Least time between a change and the call to read everything anew.
pub const PAUSE: Duration = Duration::from_millis(200);
/// Most messages that are discarded at a time. More of them are a change of their own.
pub const DRAINED_MAX: usize = 256;

/// Reports that links, addresses or default routes may have changed.
#[derive(Debug)]
pub struct Watch {
    events: OwnedFd,
    timer: OwnedFd,
    netlink: Netlink,
    /// The timer runs; no message is read before it has run out.
    is_pausing: bool,
}

impl Watch {
    /// Watches the current network namespace. The first report comes after [`PAUSE`], for what has
    /// changed since the owner read it.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn open() -> Result<Self, NetlinkError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let events = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&events, &SocketAddrNetlink::new(0, GROUPS))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let mut watch = Self { events, timer, netlink: Netlink::open()?, is_pausing: false };
        watch.pause()?;
        Ok(watch)
    }

    /// Takes a step when the descriptor is readable. Returns true if everything is to be read anew.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn step(&mut self) -> Result<bool, NetlinkError> {
        if !self.is_pausing {
            if self.drain()? {
                self.pause()?;
            }
            return Ok(false);
        }
        let mut expirations = [0; 8];
        match rustix::io::read(&self.timer, &mut expirations) {
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        self.is_pausing = false;
        // What the owner reads next includes these changes.
        self.drain()?;
        Ok(true)
    }

    /// The socket for requests to the watched namespace.
    pub fn netlink(&mut self) -> &mut Netlink {
        &mut self.netlink
    }

    /// Reads messages; returns true if one of them may matter, or if more are left.
    fn drain(&mut self) -> Result<bool, NetlinkError> {
        let mut buffer = [0; EVENT_BYTES_MAX];
        let mut matters = false;
        for _ in 0..DRAINED_MAX {
            match recv(&self.events, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => matters |= is_relevant(&buffer[..length]),
                Err(Errno::AGAIN) => return Ok(matters),
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => matters = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn pause(&mut self) -> Result<(), NetlinkError> {
        let value = Timespec { tv_sec: 0, tv_nsec: PAUSE.subsec_nanos().into() };
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: once, it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec)?;
        self.is_pausing = true;
        Ok(())
    }
}

impl AsFd for Watch {
    /// Readable when [`step`](Self::step) has something to do. Which descriptor it is changes with
    /// each step.
    fn as_fd(&self) -> BorrowedFd<'_> {
        if self.is_pausing { self.timer.as_fd() } else { self.events.as_fd() }
    }
}

/// Returns true if a datagram has a message about a link, an address or a default route.
pub(super) fn is_relevant(mut bytes: &[u8]) -> bool {
    while let Some(length) = read_u32(bytes, 0).and_then(|length| usize::try_from(length).ok()) {
        let Some(message) = bytes.get(..length).filter(|_| length >= message::HEADER_LEN) else {
            // A truncated message.
            return true;
        };
        match read_u16(message, 4) {
            Some(RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR | RTM_DELADDR) => return true,
            // The second byte of `struct rtmsg` is the length of the destination's prefix.
            Some(RTM_NEWROUTE | RTM_DELROUTE)
                if message.get(message::HEADER_LEN + 1).is_none_or(|bits| *bits == 0) =>
            {
                return true;
            }
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

/// Room for a message. Those about links are the longest; a longer one counts although truncated.
const EVENT_BYTES_MAX: usize = 8192;
/// `RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV6_IFADDR` and
/// `RTMGRP_IPV6_ROUTE` of linux/rtnetlink.h.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message::HEADER_LEN + body.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn messages_that_matter() {
        let route = |bits| message(RTM_NEWROUTE, &[2, bits, 0, 0, 254, 4, 0, 1, 0, 0, 0, 0]);
        assert!(is_relevant(&route(0)));
        assert!(!is_relevant(&route(24)));
        assert!(!is_relevant(&[]));
        for kind in [RTM_NEWLINK, RTM_DELLINK, RTM_NEWADDR, RTM_DELADDR] {
            assert!(is_relevant(&message(kind, &[0; 16])));
            assert!(is_relevant(&[route(24), message(kind, &[0; 16])].concat()));
        }
        // Neighbours and rules.
        assert!(!is_relevant(&message(28, &[0; 12])));
        assert!(!is_relevant(&message(32, &[0; 12])));
        let whole = route(24);
        assert!(is_relevant(&whole[..20]), "truncated");
        assert!(is_relevant(&message(RTM_DELROUTE, &[])), "too short to know");
        for length in [0u32, 15, u32::MAX] {
            let _ = is_relevant(&[&length.to_ne_bytes()[..], &[0; 40]].concat());
        }
    }

    /// Goal: the first report comes by itself, and none follows while nothing changes.
    #[test]
    fn the_first_report_comes_by_itself() {
        let mut watch = Watch::open().unwrap();
        assert!(watch.is_pausing && !watch.step().unwrap(), "not before the pause is over");
        let wait = |watch: &Watch| {
            let fd = [watch.as_fd()];
            crate::namespace::channel::wait_readable(&fd, None).unwrap();
        };
        wait(&watch);
        assert!(watch.step().unwrap());
        assert!(!watch.is_pausing);
        assert_eq!(watch.netlink().link_name(1).unwrap(), "lo");
        // A message may have come from elsewhere on this machine.
        let _ = watch.step().unwrap();
    }
}
