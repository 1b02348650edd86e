//! The table of descriptors.

use super::epoll::Epoll;
use crate::errno::{Errno, Outcome};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd};
use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;
use towpath::layers::net::socket::SocketId;

/// A socket as a descriptor has it.
pub(crate) struct SocketFile {
    pub(crate) id: SocketId,
    pub(crate) nonblocking: bool,
    pub(crate) domain: i32,
    /// Of datagrams, not of a stream.
    pub(crate) datagram: bool,
    /// What a datagram socket tells with each message.
    pub(crate) told: Told,
    /// Longest that receiving blocks (`SO_RCVTIMEO`).
    pub(crate) receive_timeout: Option<Duration>,
    /// Longest that sending blocks (`SO_SNDTIMEO`).
    pub(crate) send_timeout: Option<Duration>,
    /// Tell with each message how much is left (`TCP_INQ`).
    pub(crate) tell_left: bool,
    /// Who waits for news of it in an event queue.
    pub(crate) watchers: Watchers,
}

/// What a datagram socket tells with each message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
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

/// Wakers of event queues, each with the `poll` events that it is for. A waker is woken once.
#[derive(Default)]
pub(crate) struct Watchers(Vec<(Waker, u32)>);

impl Watchers {
    /// Forgets a waker.
    pub(crate) fn remove(&mut self, waker: &Waker) {
        self.0.retain(|(known, _)| !known.will_wake(waker));
    }

    /// Has `waker` woken by the next of these events, too.
    pub(crate) fn add(&mut self, waker: &Waker, events: u32) {
        match self.0.iter_mut().find(|(known, _)| known.will_wake(waker)) {
            Some((_, known)) => *known |= events,
            None => self.0.push((waker.clone(), events)),
        }
    }

    /// Wakes those that wait for any of these events.
    pub(crate) fn wake(&mut self, events: u32) {
        for (waker, _) in self.0.extract_if(.., |(_, wanted)| *wanted & events != 0) {
            waker.wake();
        }
    }
}

/// What a descriptor stands for.
pub(crate) enum What {
    Socket(SocketFile),
    Epoll(Epoll),
}

struct File {
    what: What,
    /// Holds the number.
    _number: OwnedFd,
}

/// Descriptors of one instance.
#[derive(Default)]
pub(crate) struct Files {
    files: BTreeMap<i32, File>,
    by_socket: BTreeMap<SocketId, i32>,
}

impl Files {
    /// A new descriptor.
    pub(crate) fn add(&mut self, what: What) -> Outcome<i32> {
        let number = eventfd(0, EventfdFlags::CLOEXEC)?;
        let fd = number.as_raw_fd();
        if let What::Socket(socket) = &what {
            self.by_socket.insert(socket.id, fd);
        }
        self.files.insert(fd, File { what, _number: number });
        Ok(fd)
    }

    /// Takes a descriptor out of the table and out of all epoll sets. Its number is free again:
    /// from here on whoever closes must not use it, as it may be another's.
    pub(crate) fn remove(&mut self, fd: i32) -> Outcome<What> {
        let mut file = self.files.remove(&fd).ok_or(Errno::BADF)?;
        if let What::Socket(socket) = &mut file.what {
            self.by_socket.remove(&socket.id);
            socket.watchers.wake(u32::MAX);
            self.epolls_mut().for_each(|epoll| epoll.forget(fd));
        }
        Ok(file.what)
    }

    /// Takes out all sockets.
    pub(crate) fn take_sockets(&mut self) -> Vec<SocketId> {
        let sockets = std::mem::take(&mut self.by_socket);
        for fd in sockets.values() {
            // It is there, as its socket is.
            let _ = self.remove(*fd);
        }
        sockets.into_keys().collect()
    }

    /// Wakes all who wait for news: nothing more will come.
    pub(crate) fn wake_all(&mut self) {
        for file in self.files.values_mut() {
            if let What::Socket(socket) = &mut file.what {
                socket.watchers.wake(u32::MAX);
            }
        }
    }

    /// True if the number is one of this table.
    pub(crate) fn contains(&self, fd: i32) -> bool {
        self.files.contains_key(&fd)
    }

    /// The descriptor of a socket.
    pub(crate) fn of_socket(&self, id: SocketId) -> Option<i32> {
        self.by_socket.get(&id).copied()
    }

    /// A socket by its descriptor.
    pub(crate) fn socket(&self, fd: i32) -> Outcome<&SocketFile> {
        match &self.files.get(&fd).ok_or(Errno::BADF)?.what {
            What::Socket(socket) => Ok(socket),
            What::Epoll(_) => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// A socket by its descriptor, to be changed.
    pub(crate) fn socket_mut(&mut self, fd: i32) -> Outcome<&mut SocketFile> {
        match &mut self.files.get_mut(&fd).ok_or(Errno::BADF)?.what {
            What::Socket(socket) => Ok(socket),
            What::Epoll(_) => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// An epoll set by its descriptor.
    pub(crate) fn epoll(&self, fd: i32) -> Outcome<&Epoll> {
        match &self.files.get(&fd).ok_or(Errno::BADF)?.what {
            What::Epoll(epoll) => Ok(epoll),
            What::Socket(_) => Err(Errno::INVAL),
        }
    }

    /// An epoll set by its descriptor, to be changed.
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
