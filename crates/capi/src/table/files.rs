//! The table of descriptors.

use super::epoll::Epoll;
use crate::errno::{Errno, Outcome};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;
use towpath::layers::net::socket::SocketId;

/// The state of a socket's descriptor.
pub(crate) struct SocketFile {
    pub(crate) id: SocketId,
    pub(crate) nonblocking: bool,
    pub(crate) domain: i32,
    /// A datagram socket, not a stream.
    pub(crate) datagram: bool,
    /// Control messages that a datagram socket adds to each message.
    pub(crate) control_wanted: ControlWanted,
    /// Longest time that receiving blocks (`SO_RCVTIMEO`).
    pub(crate) receive_timeout: Option<Duration>,
    /// Longest time that sending blocks (`SO_SNDTIMEO`).
    pub(crate) send_timeout: Option<Duration>,
    /// Each message reports how many bytes are left (`TCP_INQ`).
    pub(crate) reports_unread: bool,
    /// Wakers of event queues that wait for this socket.
    pub(crate) watchers: Watchers,
}

/// Control messages that a datagram socket adds to each message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ControlWanted {
    /// `IP_PKTINFO`.
    pub(crate) packet_v4: bool,
    /// `IPV6_RECVPKTINFO`.
    pub(crate) packet_v6: bool,
    /// `IP_RECVTTL`.
    pub(crate) ttl: bool,
    /// `IPV6_RECVHOPLIMIT`.
    pub(crate) hop_limit: bool,
    /// `IP_RECVTOS`.
    pub(crate) tos: bool,
    /// `IPV6_RECVTCLASS`.
    pub(crate) traffic_class: bool,
    /// `SO_RXQ_OVFL`.
    pub(crate) dropped: bool,
}

/// Wakers of event queues, each with the `poll` events that it waits for. Each wakes once.
#[derive(Default)]
pub(crate) struct Watchers(Vec<(Waker, u32)>);

impl Watchers {
    /// Removes a waker.
    pub(crate) fn remove(&mut self, waker: &Waker) {
        self.0.retain(|(known, _)| !known.will_wake(waker));
    }

    /// Adds events that wake `waker`.
    pub(crate) fn add(&mut self, waker: &Waker, events: u32) {
        match self.0.iter_mut().find(|(known, _)| known.will_wake(waker)) {
            Some((_, known)) => *known |= events,
            None => self.0.push((waker.clone(), events)),
        }
    }

    /// Wakes and removes the wakers that wait for any of these events.
    pub(crate) fn wake(&mut self, events: u32) {
        for (waker, _) in self.0.extract_if(.., |(_, wanted)| *wanted & events != 0) {
            waker.wake();
        }
    }
}

/// What a descriptor refers to.
pub(crate) enum What {
    Socket(SocketFile),
    Epoll(Epoll),
}

struct File {
    what: What,
    /// Reserves the number.
    _number: OwnedFd,
}

/// The descriptors of one instance.
#[derive(Default)]
pub(crate) struct Files {
    files: BTreeMap<i32, File>,
    by_socket: BTreeMap<SocketId, i32>,
}

impl Files {
    /// Adds a descriptor.
    pub(crate) fn add(&mut self, what: What) -> Outcome<i32> {
        let number = eventfd(0, EventfdFlags::CLOEXEC)?;
        let fd = number.as_raw_fd();
        if let What::Socket(socket) = &what {
            self.by_socket.insert(socket.id, fd);
        }
        self.files.insert(fd, File { what, _number: number });
        Ok(fd)
    }

    /// Removes a descriptor from the table and from all epoll sets. Its number is free afterwards:
    /// the caller must not use it any more, because another file may have it.
    pub(crate) fn remove(&mut self, fd: i32) -> Outcome<What> {
        let mut file = self.files.remove(&fd).ok_or(Errno::BADF)?;
        if let What::Socket(socket) = &mut file.what {
            self.by_socket.remove(&socket.id);
            socket.watchers.wake(u32::MAX);
            self.epolls_mut().for_each(|epoll| epoll.forget(fd));
        }
        Ok(file.what)
    }

    /// Removes all sockets.
    pub(crate) fn take_sockets(&mut self) -> Vec<SocketId> {
        let sockets = std::mem::take(&mut self.by_socket);
        for fd in sockets.values() {
            // The descriptor exists, because its socket does.
            let _ = self.remove(*fd);
        }
        sockets.into_keys().collect()
    }

    /// Wakes all wakers, because no more events will come.
    pub(crate) fn wake_all(&mut self) {
        for file in self.files.values_mut() {
            if let What::Socket(socket) = &mut file.what {
                socket.watchers.wake(u32::MAX);
            }
        }
    }

    /// True if the number belongs to this table.
    pub(crate) fn contains(&self, fd: i32) -> bool {
        self.files.contains_key(&fd)
    }

    /// The descriptor of a socket.
    pub(crate) fn of_socket(&self, id: SocketId) -> Option<i32> {
        self.by_socket.get(&id).copied()
    }

    /// The socket of a descriptor.
    pub(crate) fn socket(&self, fd: i32) -> Outcome<&SocketFile> {
        match &self.files.get(&fd).ok_or(Errno::BADF)?.what {
            What::Socket(socket) => Ok(socket),
            What::Epoll(_) => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// The socket of a descriptor, mutable.
    pub(crate) fn socket_mut(&mut self, fd: i32) -> Outcome<&mut SocketFile> {
        match &mut self.files.get_mut(&fd).ok_or(Errno::BADF)?.what {
            What::Socket(socket) => Ok(socket),
            What::Epoll(_) => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// The epoll set of a descriptor.
    pub(crate) fn epoll(&self, fd: i32) -> Outcome<&Epoll> {
        match &self.files.get(&fd).ok_or(Errno::BADF)?.what {
            What::Epoll(epoll) => Ok(epoll),
            What::Socket(_) => Err(Errno::INVAL),
        }
    }

    /// The epoll set of a descriptor, mutable.
    pub(crate) fn epoll_mut(&mut self, fd: i32) -> Outcome<&mut Epoll> {
        match &mut self.files.get_mut(&fd).ok_or(Errno::BADF)?.what {
            What::Epoll(epoll) => Ok(epoll),
            What::Socket(_) => Err(Errno::INVAL),
        }
    }

    /// All epoll sets.
    pub(crate) fn epolls_mut(&mut self) -> impl Iterator<Item = &mut Epoll> {
        self.files.values_mut().filter_map(|file| match &mut file.what {
            What::Epoll(epoll) => Some(epoll),
            What::Socket(_) => None,
        })
    }
}
