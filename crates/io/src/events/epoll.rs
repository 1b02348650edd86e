//! The back end on epoll, with threads for steps on files.
//!
//! Each change of a watched file takes a system call; a file that a wait reports takes none. A step
//! on a socket is tried at once, and again when the socket is ready; in between, its slot watches
//! the socket. Jobs take turns of [`TURN_BYTES`].

use super::call;
use super::files::Files;
use super::job::{Job, Running, Socket, Step};
use super::{Interest, SPARE_MAX, SlotEvent, TURN_BYTES, Trigger, What};
use crate::doorbell::EventDoorbell;
use crate::reactor::{Events, Reactor};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, ioctl_fionbio};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Token of the doorbell.
const BELL: u64 = u64::MAX;

/// The epoll back end; see the module documentation.
#[derive(Debug)]
pub(super) struct Epoll {
    reactor: Reactor,
    events: Box<Events>,
    doorbell: EventDoorbell,
    files: Files,
    /// Duplicate descriptors of files that several slots watch: epoll accepts each descriptor once.
    doubles: HashMap<u32, OwnedFd>,
    jobs: HashMap<u32, Doing>,
    /// Jobs that can continue.
    turns: Vec<u32>,
    /// Jobs that the threads returned.
    back: Vec<(u32, Box<Running>)>,
    /// Events that other calls produced before the next wait.
    early: Vec<SlotEvent>,
    /// Memory of jobs that are complete, for new ones.
    #[expect(clippy::vec_box, reason = "the boxes move in and out")]
    spare: Vec<Box<Running>>,
}

/// A job and what its slot watches.
#[derive(Debug, Default)]
struct Doing {
    /// The job; `None` while the threads have it.
    running: Option<Box<Running>>,
    watched: Option<Watched>,
    /// The socket's error queue had an entry, which is reported until the program reads it.
    is_noisy: bool,
    cancelled: bool,
}

/// The socket that a slot watches for its job.
#[derive(Debug)]
struct Watched {
    socket: Socket,
    interest: Interest,
    trigger: Trigger,
}

impl Epoll {
    pub(super) fn new(doorbell: EventDoorbell) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        reactor.add(&doorbell, BELL, Interest::READ, false)?;
        let files = Files::new(doorbell.clone());
        Ok(Self {
            reactor,
            events: Box::default(),
            doorbell,
            files,
            doubles: HashMap::new(),
            jobs: HashMap::new(),
            turns: Vec::new(),
            back: Vec::new(),
            early: Vec::new(),
            spare: Vec::new(),
        })
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

    pub(super) fn submit(&mut self, slot: u32, job: Job) -> Result<(), (Errno, Job)> {
        if self.jobs.contains_key(&slot) {
            return Err((Errno::EXIST, job));
        }
        if let Job::Accept(listener) = &job
            && let Err(errno) = ioctl_fionbio(listener, true)
        {
            return Err((errno, job));
        }
        let mut running = Running::new(job)?;
        running.copies();
        let running = Some(match self.spare.pop() {
            Some(mut spare) => {
                *spare = running;
                spare
            }
            None => Box::new(running),
        });
        self.jobs.insert(slot, Doing { running, ..Doing::default() });
        self.go_on(slot);
        Ok(())
    }

    pub(super) fn give_room(&mut self, slot: u32, count: u32) {
        let doing = self.jobs.get_mut(&slot);
        let running = doing.and_then(|doing| doing.running.as_mut());
        if running.is_some_and(|running| running.give_room(count)) {
            self.turns.push(slot);
        }
    }

    pub(super) fn cancel(&mut self, slot: u32) {
        let Some(doing) = self.jobs.get_mut(&slot) else { return };
        doing.cancelled = true;
        if doing.running.is_none() {
            doing.running = self.files.cancel(slot);
        }
        if let Some(running) = &mut doing.running {
            running.stop(Errno::CANCELED);
            self.go_on(slot);
        }
    }

    pub(super) fn disown(&mut self) {
        self.files.disown();
    }

    /// True if a wait has events to return or jobs to continue without the kernel.
    pub(super) fn is_busy(&self) -> bool {
        !self.early.is_empty() || !self.turns.is_empty()
    }

    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        arrived: &mut Vec<SlotEvent>,
    ) -> io::Result<()> {
        let timeout = if self.is_busy() { Some(Duration::ZERO) } else { timeout };
        self.reactor.wait(timeout, &mut self.events)?;
        let mut turns = std::mem::take(&mut self.turns);
        for event in self.events.iter() {
            if event.token == BELL {
                self.doorbell.clear();
                continue;
            }
            let slot = event.token as u32;
            if let Some(doing) = self.jobs.get_mut(&slot) {
                doing.is_noisy |= event.ready.error;
                turns.push(slot);
                continue;
            }
            arrived.push((slot, What::Ready(event.ready)));
        }
        let mut back = std::mem::take(&mut self.back);
        self.files.take(&mut back);
        for (slot, mut running) in back.drain(..) {
            let Some(doing) = self.jobs.get_mut(&slot) else { continue };
            if doing.cancelled {
                running.stop(Errno::CANCELED);
            }
            doing.running = Some(running);
            turns.push(slot);
        }
        self.back = back;
        for slot in turns.drain(..) {
            self.go_on(slot);
        }
        // Those that go on with the next wait take the memory, too.
        turns.append(&mut self.turns);
        self.turns = turns;
        arrived.append(&mut self.early);
        Ok(())
    }

    /// Carries out the steps of a job for one turn, as far as possible.
    fn go_on(&mut self, slot: u32) {
        let Some(Doing { running, .. }) = self.jobs.get_mut(&slot) else { return };
        let Some(mut running) = running.take() else { return };
        let mut moved = 0;
        while moved < TURN_BYTES {
            let result = match running.next() {
                Step::Over => return self.finish(slot, running),
                Step::Idle => return self.keep(slot, running),
                Step::Accept { listener } => call::accept(listener).map(|connection| {
                    self.early.push((slot, What::Accepted(connection)));
                    1
                }),
                step if step.is_on_file() => match self.files.submit(slot, running) {
                    Ok(()) => return,
                    Err((errno, back)) => {
                        running = back;
                        Err(errno)
                    }
                },
                step => call::socket(step),
            };
            match result {
                Err(Errno::INTR) => running.interrupted(Errno::INTR),
                Err(Errno::AGAIN) if running.waits_for().is_some() => {
                    match self.watch(slot, &running) {
                        Ok(()) => return self.keep(slot, running),
                        Err(error) => running.stop(call::errno(&error)),
                    }
                }
                result => {
                    moved += result.unwrap_or(0);
                    running.done(result);
                }
            }
        }
        self.keep(slot, running);
        self.turns.push(slot);
    }

    fn keep(&mut self, slot: u32, running: Box<Running>) {
        if let Some(doing) = self.jobs.get_mut(&slot) {
            doing.running = Some(running);
        }
    }

    /// Lets a job continue when its socket is ready. If an error queue with entries would keep the
    /// socket ready, waits for a change on it instead.
    fn watch(&mut self, slot: u32, running: &Running) -> io::Result<()> {
        let (socket, interest) = running.waits_for().expect("a step on a socket");
        let Some(doing) = self.jobs.get_mut(&slot) else { return Ok(()) };
        let trigger = if doing.is_noisy { Trigger::Edge } else { Trigger::OneShot };
        let new = Watched { socket: socket.clone(), interest, trigger };
        match doing.watched.take() {
            Some(old) if Arc::ptr_eq(&old.socket, socket) => {
                let is_new = (old.interest, old.trigger) != (interest, trigger);
                if is_new || trigger == Trigger::OneShot {
                    self.modify(slot, socket.as_fd(), interest, trigger)?;
                }
            }
            old => {
                self.unwatch(slot, old);
                self.add(slot, socket.as_fd(), interest, trigger)?;
            }
        }
        if let Some(doing) = self.jobs.get_mut(&slot) {
            doing.watched = Some(new);
        }
        Ok(())
    }

    fn unwatch(&mut self, slot: u32, watched: Option<Watched>) {
        if let Some(Watched { socket, .. }) = watched {
            // Cannot fail: the socket is watched and open.
            let _ = self.remove(slot, socket.as_fd());
        }
    }

    fn finish(&mut self, slot: u32, mut running: Box<Running>) {
        let doing = self.jobs.remove(&slot).unwrap_or_default();
        self.unwatch(slot, doing.watched);
        self.early.push((slot, What::Over(running.finish())));
        if self.spare.len() < SPARE_MAX {
            self.spare.push(running);
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}
