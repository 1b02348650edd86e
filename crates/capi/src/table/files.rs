//! The table of descriptors.

use super::epoll::Epoll;
use crate::errno::{Errno, Outcome};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use towpath::layers::choosing::Chooser;
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
    /// Chooses whether calls lend, from the first choice on.
    pub(crate) chooser: Option<Arc<Chooser>>,
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
    number: OwnedFd,
}

/// A further number of a file, as from `dup(2)`.
struct Alias {
    /// The number under which the file is in the table.
    of: i32,
    /// Reserves the number.
    number: OwnedFd,
}

/// The descriptors of one instance.
///
/// Each number is reserved in the kernel by a duplicate of one file: no other file gets the number.
#[derive(Default)]
pub(crate) struct Files {
    files: BTreeMap<i32, File>,
    aliases: BTreeMap<i32, Alias>,
    by_socket: BTreeMap<SocketId, i32>,
    /// Numbers of the epoll sets.
    sets: Vec<i32>,
    /// Least number of an epoll set and its alarm.
    sets_from: i32,
    /// The file whose duplicates reserve numbers, from the first use on.
    placeholder: Option<OwnedFd>,
}

impl Files {
    /// Reserves the number of a descriptor.
    pub(crate) fn reserve(&mut self, what: &What) -> Outcome<OwnedFd> {
        let least = if matches!(what, What::Epoll(_)) { self.sets_from } else { 0 };
        Ok(rustix::io::fcntl_dupfd_cloexec(self.placeholder()?, least)?)
    }

    /// Adds a descriptor under a number, which is in the table no more.
    pub(crate) fn add(&mut self, number: OwnedFd, what: What) -> i32 {
        let fd = number.as_raw_fd();
        self.insert(fd, File { what, number });
        fd
    }

    /// The file whose duplicates reserve numbers: an eventfd, unless another was set.
    pub(crate) fn placeholder(&mut self) -> Outcome<BorrowedFd<'_>> {
        let placeholder = match self.placeholder.take() {
            Some(placeholder) => placeholder,
            None => eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        let placeholder: &OwnedFd = self.placeholder.insert(placeholder);
        Ok(placeholder.as_fd())
    }

    /// Sets the file whose duplicates reserve later numbers, and the least number of sets.
    pub(crate) fn set_placeholder(&mut self, file: OwnedFd, sets_from: i32) {
        self.placeholder = Some(file);
        self.sets_from = sets_from;
    }

    /// Removes a descriptor whose number another file of the kernel has, because the program has
    /// closed the number itself. Returns the file, if it has no other number.
    pub(crate) fn remove_stale(&mut self, fd: i32) -> Option<What> {
        let (number, what) = self.remove(fd).ok()?;
        // It is not ours any more, and must stay open.
        let _ = number.into_raw_fd();
        what
    }

    /// Adds a further number to a file.
    pub(crate) fn add_number(&mut self, fd: i32, number: OwnedFd) -> Outcome<()> {
        let of = self.key(fd);
        if !self.files.contains_key(&of) {
            return Err(Errno::BADF);
        }
        self.aliases.insert(number.as_raw_fd(), Alias { of, number });
        Ok(())
    }

    /// Puts a file into the table.
    fn insert(&mut self, fd: i32, file: File) {
        match &file.what {
            What::Socket(socket) => {
                self.by_socket.insert(socket.id, fd);
            }
            What::Epoll(_) => self.sets.push(fd),
        }
        self.files.insert(fd, file);
    }

    /// Removes a descriptor from the table and from all epoll sets. Returns what reserved its
    /// number and, if the file has no other number, the file. The caller must not use the number
    /// once it is dropped, because another file may have it.
    pub(crate) fn remove(&mut self, fd: i32) -> Outcome<(OwnedFd, Option<What>)> {
        if let Some(Alias { number, .. }) = self.aliases.remove(&fd) {
            self.forget(fd);
            return Ok((number, None));
        }
        let mut file = self.files.remove(&fd).ok_or(Errno::BADF)?;
        self.sets.retain(|set| *set != fd);
        self.forget(fd);
        let heir = self.aliases.iter().find(|(_, alias)| alias.of == fd).map(|(heir, _)| *heir);
        if let Some((heir, alias)) = heir.and_then(|heir| self.aliases.remove_entry(&heir)) {
            let number = std::mem::replace(&mut file.number, alias.number);
            let others = self.aliases.values_mut().filter(|other| other.of == fd);
            others.for_each(|other| other.of = heir);
            self.insert(heir, file);
            return Ok((number, None));
        }
        if let What::Socket(socket) = &mut file.what {
            self.by_socket.remove(&socket.id);
            socket.watchers.wake(u32::MAX);
        }
        Ok((file.number, Some(file.what)))
    }

    /// The number of a file of the kernel that is readable while a set may have events.
    pub(crate) fn alarm(&mut self, set: i32) -> Outcome<i32> {
        let least = self.sets_from;
        self.epoll_mut(set)?.alarm(least)
    }

    /// The number under which a file is in the table.
    fn key(&self, fd: i32) -> i32 {
        self.aliases.get(&fd).map_or(fd, |alias| alias.of)
    }

    /// Passes events of a socket on to the epoll sets that contain it and to its watchers.
    pub(crate) fn note(&mut self, id: SocketId, events: u32) {
        let Some(&fd) = self.by_socket.get(&id) else { return };
        for set in &self.sets {
            let Some(File { what: What::Epoll(set), .. }) = self.files.get_mut(set) else {
                continue;
            };
            set.note(fd, events);
            let others = self.aliases.iter().filter(|(_, alias)| alias.of == fd);
            others.for_each(|(&number, _)| set.note(number, events));
        }
        if let Ok(file) = self.socket_mut(fd) {
            file.watchers.wake(events);
        }
    }

    /// Removes a number from all epoll sets.
    fn forget(&mut self, fd: i32) {
        for set in &self.sets {
            if let Some(File { what: What::Epoll(set), .. }) = self.files.get_mut(set) {
                set.forget(fd);
            }
        }
    }

    /// Removes all sockets.
    pub(crate) fn take_sockets(&mut self) -> Vec<SocketId> {
        self.aliases.clear();
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
        self.files.contains_key(&self.key(fd))
    }

    /// The descriptor of a socket.
    pub(crate) fn of_socket(&self, id: SocketId) -> Option<i32> {
        self.by_socket.get(&id).copied()
    }

    /// The socket of a descriptor.
    pub(crate) fn socket(&self, fd: i32) -> Outcome<&SocketFile> {
        match &self.files.get(&self.key(fd)).ok_or(Errno::BADF)?.what {
            What::Socket(socket) => Ok(socket),
            What::Epoll(_) => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// The socket of a descriptor, mutable.
    pub(crate) fn socket_mut(&mut self, fd: i32) -> Outcome<&mut SocketFile> {
        match &mut self.files.get_mut(&self.key(fd)).ok_or(Errno::BADF)?.what {
            What::Socket(socket) => Ok(socket),
            What::Epoll(_) => Err(Errno(libc::ENOTSOCK)),
        }
    }

    /// The epoll set of a descriptor.
    pub(crate) fn epoll(&self, fd: i32) -> Outcome<&Epoll> {
        match &self.files.get(&self.key(fd)).ok_or(Errno::BADF)?.what {
            What::Epoll(epoll) => Ok(epoll),
            What::Socket(_) => Err(Errno::INVAL),
        }
    }

    /// The epoll set of a descriptor, mutable.
    pub(crate) fn epoll_mut(&mut self, fd: i32) -> Outcome<&mut Epoll> {
        match &mut self.files.get_mut(&self.key(fd)).ok_or(Errno::BADF)?.what {
            What::Epoll(epoll) => Ok(epoll),
            What::Socket(_) => Err(Errno::INVAL),
        }
    }
}
