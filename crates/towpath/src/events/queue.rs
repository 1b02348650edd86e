//! The queue: registering, changing and removing.

use crate::events::clock::Clock;
use crate::events::exposed::Exposed;
use crate::events::registrations::changes::Inotify;
use crate::events::registrations::loads::{LOADS_MAX, LOADS_SLOT, Loads};
use crate::events::registrations::ongoing::Ongoing;
use crate::events::registrations::pool::Groups;
use crate::events::registrations::slots::{Registration, Slots};
use crate::events::registrations::source::{self, Kind, Notifier, Source, Wakes};
use crate::events::registrations::timers::{Timers, UNSET};
use crate::events::{Choice, Event, Interest, Readiness, Token, Trigger};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::time::Instant;
use towpath_io::doorbell::EventDoorbell;
use towpath_io::events::{BackEnd, Known, News as KernelNews, SLOTS_MAX};
use towpath_io::process_sys::generation;
use towpath_packet::ready::ReadyList;

/// Registrations that a queue takes unless it is told otherwise.
pub const REGISTRATIONS_DEFAULT: usize = 1 << 20;
/// The slot of the back end that changes of files come by; those of registrations follow.
pub(super) const CHANGES_SLOT: u32 = 0;
const FIRST_SLOT: u32 = LOADS_SLOT + LOADS_MAX;
const _: () = assert!(CHANGES_SLOT < LOADS_SLOT);
/// Entries of the ready list that are kept for operations to come.
const SPARE_MAX: usize = 4096;
const _: () = assert!(REGISTRATIONS_DEFAULT < (SLOTS_MAX - FIRST_SLOT) as usize);

/// What a queue is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// How the kernel is asked.
    pub back_end: Choice,
    /// Most registrations; more are refused with `ENOSPC`.
    pub registrations: usize,
    /// Time jumps to whatever is waited for next instead of passing: for tests. A wait that nothing
    /// would end fails with `EDEADLK`.
    pub simulated: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { back_end: Choice::default(), registrations: REGISTRATIONS_DEFAULT, simulated: false }
    }
}

/// See [the module](super).
pub struct EventQueue {
    /// The process that made it.
    process: u64,
    pub(super) clock: Clock,
    pub(super) back: BackEnd,
    pub(super) ready: ReadyList<EventDoorbell>,
    /// Whose the entries of `ready` are.
    pub(super) entries: Vec<Token>,
    pub(super) slots: Slots,
    pub(super) timers: Timers,
    pub(super) inotify: Option<Inotify>,
    pub(super) pending: Pending,
    /// What was told by level, to be looked at again.
    pub(super) again: Vec<Token>,
    /// What the back end told last.
    pub(super) news: Vec<KernelNews>,
    /// Number of the wait.
    pub(super) waits: u64,
    pub(super) exposed: Option<Exposed>,
    /// Registrations that are over, whose files the back end may not have let go of yet.
    pub(super) removed: Vec<Registration>,
    /// Reads for the file caches of hosts.
    pub(super) loads: Loads,
    pub(super) groups: Groups,
    /// Files that are regular ones.
    pub(super) regular: Known<()>,
    /// Entries of operations that are over, for others.
    spare: Vec<Wakes>,
}

/// What is to be told, by where it comes from.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) of: [VecDeque<Token>; 3],
    /// Whose turn it is.
    turn: usize,
}

/// From the kernel.
pub(super) const KERNEL: usize = 0;
/// From another thread or a towpath host.
pub(super) const RAISED: usize = 1;
/// From a timer.
pub(super) const EXPIRED: usize = 2;

impl Pending {
    /// The next, of each kind by turns.
    pub(super) fn next(&mut self) -> Option<Token> {
        (0..self.of.len()).find_map(|_| {
            self.turn = (self.turn + 1) % self.of.len();
            self.of[self.turn].pop_front()
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of.iter().all(VecDeque::is_empty)
    }
}

/// One change of many, for [`EventQueue::apply`].
pub enum Change {
    /// As [`EventQueue::add`].
    Add(Source, u64),
    /// As [`EventQueue::modify`].
    Modify(Token, Interest, Trigger),
    /// As [`EventQueue::set_timer`].
    SetTimer(Token, Instant),
    /// As [`EventQueue::remove`].
    Remove(Token),
}

impl EventQueue {
    /// An empty queue.
    pub fn new() -> io::Result<Self> {
        Self::with(&Config::default())
    }

    /// An empty queue.
    ///
    /// # Errors
    /// No descriptors are left, or the back end that was asked for is not to be had.
    pub fn with(config: &Config) -> io::Result<Self> {
        let most = (SLOTS_MAX - FIRST_SLOT) as usize;
        let doorbell = EventDoorbell::new()?;
        Ok(Self {
            process: generation(),
            clock: Clock::new(config.simulated),
            back: BackEnd::new(config.back_end, &doorbell)?,
            ready: ReadyList::new(doorbell),
            entries: Vec::new(),
            slots: Slots::new(config.registrations, most),
            timers: Timers::default(),
            inotify: None,
            pending: Pending::default(),
            again: Vec::new(),
            news: Vec::new(),
            waits: 0,
            exposed: None,
            removed: Vec::new(),
            loads: Loads::default(),
            groups: Groups::default(),
            regular: Known::default(),
            spare: Vec::new(),
        })
    }

    /// Registers something to wait for. `data` comes with its events.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full; else what the kernel says to the source: `EPERM` for a file
    /// on disk as a descriptor, `ESRCH` for a process that is not there, `EINVAL` for a number that
    /// is no signal's, `ENOENT` for a path that leads nowhere.
    pub fn add(&mut self, source: Source, data: u64) -> io::Result<Token> {
        self.check_process()?;
        let token = self.begin_add(source, data)?;
        self.settle()?;
        Ok(token)
    }

    /// Changes what is told of a descriptor or a socket, and when; one that was told of once is
    /// told of again. What holds already is told by the next wait.
    ///
    /// # Errors
    /// `ESTALE` if the token's registration is over; `EINVAL` for other sources.
    pub fn modify(&mut self, token: Token, interest: Interest, trigger: Trigger) -> io::Result<()> {
        self.check_process()?;
        self.begin_modify(token, interest, trigger)?;
        self.settle()
    }

    /// Changes when a timer expires next; one that has and was not told yet is not told.
    ///
    /// # Errors
    /// `ESTALE` if the token's registration is over; `EINVAL` for other sources.
    pub fn set_timer(&mut self, token: Token, next: Instant) -> io::Result<()> {
        self.check_process()?;
        self.begin_set_timer(token, next)?;
        self.settle()
    }

    /// Ends a registration: nothing is told of it any more, and the queue lets go of the source.
    ///
    /// # Errors
    /// `ESTALE` if it is over already; `EBUSY` for an operation, which ends by itself.
    pub fn remove(&mut self, token: Token) -> io::Result<()> {
        self.check_process()?;
        self.begin_remove(token)?;
        self.settle()
    }

    /// Makes changes in order, and tells what became of each: the token that was added or named.
    /// One that fails does not keep the others from being made. On io_uring all together take
    /// one system call.
    pub fn apply(
        &mut self,
        changes: impl IntoIterator<Item = Change>,
    ) -> io::Result<Vec<io::Result<Token>>> {
        self.check_process()?;
        let make = |change| match change {
            Change::Add(source, data) => self.begin_add(source, data),
            Change::Modify(token, interest, trigger) => {
                self.begin_modify(token, interest, trigger).map(|()| token)
            }
            Change::SetTimer(token, next) => self.begin_set_timer(token, next).map(|()| token),
            Change::Remove(token) => self.begin_remove(token).map(|()| token),
        };
        let results = changes.into_iter().map(make).collect();
        self.settle()?;
        Ok(results)
    }

    /// What makes a [user source](Source::user) tell; `None` of another source or a stale token.
    pub fn notifier(&mut self, token: Token) -> Option<Notifier> {
        match &self.slots.get(token)?.source {
            Kind::User { wakes, .. } => Some(Notifier(wakes.as_ref()?.raiser.clone())),
            _ => None,
        }
    }

    /// Registrations, operations included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if nothing is registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The queue's time: the system's, unless it is simulated.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Whether the back end is io_uring.
    pub fn is_io_uring(&self) -> bool {
        self.back.is_io_uring()
    }

    /// A queue belongs to the process that made it.
    pub(super) fn check_process(&self) -> io::Result<()> {
        match generation() == self.process {
            true => Ok(()),
            false => Err(io::Error::other("the queue belongs to the process that made it")),
        }
    }

    pub(super) fn begin_add(&mut self, source: Source, data: u64) -> io::Result<Token> {
        let token = self.slots.next().ok_or(Errno::NOSPC)?;
        let Source { mut kind, interest, trigger } = source;
        let (mut interest, mut trigger) = (interest, trigger);
        match &mut kind {
            Kind::Signal { number, fd } => *fd = Some(source::signal_descriptor(*number)?),
            Kind::Child { id, fd } => {
                *fd = Some(source::child_descriptor(*id)?);
                trigger = Trigger::OneShot;
            }
            Kind::File { path, watch, .. } => {
                if self.inotify.is_none() {
                    let inotify = Inotify::new()?;
                    let level = Trigger::Level;
                    self.back.add(CHANGES_SLOT, inotify.as_fd(), Interest::READ, level)?;
                    self.inotify = Some(inotify);
                }
                let inotify = self.inotify.as_mut().expect("it was just made");
                *watch = Some(inotify.add(path, token)?);
            }
            Kind::Timer { due, period, setting, .. } => {
                if period.is_some_and(|period| period.is_zero()) {
                    return Err(Errno::INVAL.into());
                }
                *setting = self.timers.set(*due, token);
            }
            Kind::Operation(_) => interest = Interest::NONE,
            Kind::Fd(_)
            | Kind::Socket(..)
            | Kind::Custom(..)
            | Kind::Return(..)
            | Kind::Stream { .. }
            | Kind::Task { .. }
            | Kind::Relay { .. }
            | Kind::Multishot { .. }
            | Kind::User { .. } => {}
        }
        if let Some(fd) = kind.fd() {
            self.back.add(kernel_slot(token), fd.as_fd(), interest, trigger)?;
        }
        let looks_at_once = kind.wakes_mut().is_some() && !matches!(kind, Kind::User { .. });
        let is_work = matches!(kind, Kind::Stream { .. });
        if let Some(wakes) = kind.wakes_mut() {
            *wakes = Some(self.wakes_for(token, is_work));
        }
        let registration = Registration {
            source: kind,
            data,
            interest,
            trigger,
            ready: Readiness::default(),
            noted_in: 0,
            told_in: 0,
            is_pending: false,
            is_paused: false,
            is_spent: false,
        };
        self.slots.insert(registration);
        if looks_at_once {
            self.push(token, RAISED);
        }
        Ok(token)
    }

    /// An entry of the ready list. For operations, which may be polled for nothing, it may be one
    /// that an earlier one had, and that somebody raises for its sake.
    fn wakes_for(&mut self, token: Token, is_work: bool) -> Wakes {
        let make = || {
            let added = self.ready.add();
            Wakes::new(added.expect("there are more entries than registrations"))
        };
        let spare = if is_work { self.spare.pop() } else { None };
        let wakes = spare.unwrap_or_else(make);
        let index = wakes.raiser.index() as usize;
        if index >= self.entries.len() {
            self.entries.resize(index + 1, token);
        }
        self.entries[index] = token;
        wakes
    }

    fn begin_set_timer(&mut self, token: Token, next: Instant) -> io::Result<()> {
        let registration = self.slots.get(token).ok_or(Errno::STALE)?;
        let Kind::Timer { due, setting, count, .. } = &mut registration.source else {
            return Err(Errno::INVAL.into());
        };
        (*due, *count) = (next, 0);
        let was_set = std::mem::replace(setting, self.timers.set(next, token)) != UNSET;
        if was_set {
            self.unset_timer();
        }
        Ok(())
    }

    fn begin_modify(
        &mut self,
        token: Token,
        interest: Interest,
        trigger: Trigger,
    ) -> io::Result<()> {
        let registration = self.slots.get(token).ok_or(Errno::STALE)?;
        match &registration.source {
            Kind::Fd(fd) => {
                self.back.modify(kernel_slot(token), (**fd).as_fd(), interest, trigger)?;
                // What was on its way was asked for differently.
                registration.ready = Readiness::default();
            }
            Kind::Socket(..) | Kind::Custom(..) => {}
            _ => return Err(Errno::INVAL.into()),
        }
        (registration.interest, registration.trigger) = (interest, trigger);
        (registration.is_spent, registration.is_paused) = (false, false);
        if matches!(registration.source, Kind::Socket(..) | Kind::Custom(..)) {
            self.push(token, RAISED);
        }
        Ok(())
    }

    /// Ends a registration, which is dropped when the queue is settled.
    pub(super) fn begin_remove(&mut self, token: Token) -> io::Result<()> {
        let registration = self.slots.get(token).ok_or(Errno::STALE)?;
        if let Kind::Operation(Ongoing { is_told: false, .. })
        | Kind::Stream { is_told: false, .. }
        | Kind::Task { is_over: false, .. }
        | Kind::Relay { is_told: false, .. }
        | Kind::Multishot { is_told: false, .. } = registration.source
        {
            return Err(Errno::BUSY.into());
        }
        if let Kind::Multishot { multishot, .. } = &mut registration.source {
            self.groups.leave(multishot.group(), multishot.take_all());
        }
        if let Some(fd) = registration.source.fd() {
            // Fails for one that was closed nevertheless: then the kernel has let go of it.
            let _ = self.back.remove(kernel_slot(token), fd.as_fd());
        }
        let mut registration = self.slots.remove(token).expect("it was there");
        let is_work = matches!(registration.source, Kind::Stream { .. });
        match registration.source.wakes_mut().and_then(Option::take) {
            Some(wakes) if is_work && self.spare.len() < SPARE_MAX => self.spare.push(wakes),
            Some(wakes) => self.ready.remove(wakes.raiser.index()),
            None => {}
        }
        match (&registration.source, &mut self.inotify) {
            (Kind::File { watch: Some(watch), .. }, Some(inotify)) => inotify.remove(*watch, token),
            (Kind::Timer { setting, .. }, _) if *setting != UNSET => self.unset_timer(),
            (Kind::Task { deadline: Some(_), .. }, _) => self.unset_timer(),
            _ => {}
        }
        self.removed.push(registration);
        Ok(())
    }

    pub(super) fn unset_timer(&mut self) {
        let slots = &self.slots;
        self.timers.unset(|token, setting| slots.setting(token) == Some(setting));
    }

    /// Notes that something is to be told.
    pub(super) fn push(&mut self, token: Token, class: usize) {
        if let Some(registration) = self.slots.get(token)
            && !std::mem::replace(&mut registration.is_pending, true)
        {
            self.pending.of[class].push_back(token);
        }
    }
}

/// The slot of the back end for a registration.
pub(super) fn kernel_slot(token: Token) -> u32 {
    token.slot + FIRST_SLOT
}

/// The slot of a registration; `None` of changes of files and of loads.
pub(super) fn own_slot(kernel_slot: u32) -> Option<u32> {
    kernel_slot.checked_sub(FIRST_SLOT)
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            self.back.disown();
            // Sockets in it are the parent's, and so are the threads that had their locks.
            Box::leak(Box::new(std::mem::replace(&mut self.slots, Slots::new(0, 0))));
            Box::leak(Box::new(std::mem::take(&mut self.loads)));
            return;
        }
        // The back end lets go of files before they are closed.
        self.exposed = None;
        for token in self.slots.tokens().collect::<Vec<_>>() {
            if let Some(
                Kind::Relay { is_told: is_over, .. }
                | Kind::Multishot { is_told: is_over, .. }
                | Kind::Task { is_over, .. },
            ) = self.slots.get(token).map(|registration| &mut registration.source)
            {
                *is_over = true;
            }
            // Operations are the back end's to end.
            let _ = self.begin_remove(token);
        }
        // The process is the right one, and there is nothing else to be told.
        let _ = self.settle();
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { back, slots, .. } = self;
        f.debug_struct("EventQueue").field("back", back).field("len", &slots.len()).finish()
    }
}

/// Events are handed over by value.
const _: () = assert!(size_of::<Event>() <= 40);
