//! The back end on epoll, with threads for operations on files.
//!
//! A system call for each change of a file, none for the files that a wait tells of.

use super::files::Files;
use super::{Interest, News, Operation, Readiness, Trigger, What};
use crate::doorbell::EventDoorbell;
use crate::reactor::{Events, Reactor};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

/// Token of the doorbell.
const BELL: u64 = u64::MAX;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Epoll {
    reactor: Reactor,
    events: Box<Events>,
    doorbell: EventDoorbell,
    files: Files,
    /// Second descriptors of files that are watched for several slots: the kernel takes each
    /// descriptor once.
    doubles: HashMap<u32, OwnedFd>,
}

impl Epoll {
    pub(super) fn new(doorbell: EventDoorbell) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        reactor.add(&doorbell, BELL, Interest::READ, false)?;
        let files = Files::new(doorbell.clone());
        Ok(Self { reactor, events: Box::default(), doorbell, files, doubles: HashMap::new() })
    }

    pub(super) fn add(
        &mut self,
        slot: u32,
        fd: BorrowedFd<'_>,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        match self.reactor.add_as(fd, u64::from(slot), interest, trigger) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let double = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
                self.reactor.add_as(&double, u64::from(slot), interest, trigger)?;
                self.doubles.insert(slot, double);
                Ok(())
            }
            added => added,
        }
    }

    pub(super) fn modify(
        &mut self,
        slot: u32,
        fd: BorrowedFd<'_>,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let fd = self.doubles.get(&slot).map_or(fd, AsFd::as_fd);
        self.reactor.modify_as(fd, u64::from(slot), interest, trigger)
    }

    pub(super) fn remove(&mut self, slot: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self.doubles.remove(&slot) {
            Some(double) => self.reactor.remove(double),
            None => self.reactor.remove(fd),
        }
    }

    pub(super) fn submit(
        &mut self,
        slot: u32,
        operation: Operation,
    ) -> Result<(), (Errno, Operation)> {
        self.files.submit(slot, operation)
    }

    pub(super) fn cancel(&mut self, slot: u32) {
        self.files.cancel(slot);
    }

    pub(super) fn disown(&mut self) {
        self.files.disown();
    }

    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        news: &mut Vec<News>,
    ) -> io::Result<()> {
        self.reactor.wait(timeout, &mut self.events)?;
        for event in self.events.iter() {
            if event.token == BELL {
                self.doorbell.clear();
                continue;
            }
            let ready = Readiness {
                readable: event.readable,
                writable: event.writable,
                peer_closed: event.peer_closed,
                hangup: event.hangup,
                error: event.error,
            };
            news.push((event.token as u32, What::Ready(ready)));
        }
        self.files.take(news);
        Ok(())
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}
