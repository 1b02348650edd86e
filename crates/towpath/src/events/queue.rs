//! The queue itself: adds, changes and removes registrations.

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
use towpath_io::events::{BackEnd, Known, SLOTS_MAX, SlotEvent as BackEndEvent};
use towpath_io::process_sys::generation;
use towpath_packet::ready::ReadyList;

/// Registrations that a queue allows by default.
pub const REGISTRATIONS_DEFAULT: usize = 1 << 20;
/// Back-end slot that reports file changes. The slots of registrations follow.
pub(super) const CHANGES_SLOT: u32 = 0;
const FIRST_SLOT: u32 = LOADS_SLOT + LOADS_MAX;
const _: () = assert!(CHANGES_SLOT < LOADS_SLOT);
/// Ready-list entries that are kept for future operations.
const SPARE_MAX: usize = 4096;
const _: () = assert!(REGISTRATIONS_DEFAULT < (SLOTS_MAX - FIRST_SLOT) as usize);

/// Settings of an event queue.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which kernel interface to use.
    pub back_end: Choice,
    /// Maximum number of registrations; `add` fails with `ENOSPC` beyond it.
    pub registrations: usize,
    /// Simulated time, for tests: the clock jumps to the next deadline instead of running. A wait
    /// that nothing would end fails with `EDEADLK`.
    pub simulated: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { back_end: Choice::default(), registrations: REGISTRATIONS_DEFAULT, simulated: false }
    }
}

/// A queue of events. See [the module](super).
pub struct EventQueue {
    /// Identifies the process that created the queue.
    process: u64,
    pub(super) clock: Clock,
    /// Operations whose deadline has passed and that the back end has not ended yet.
    pub(super) late: u32,
    pub(super) back: BackEnd,
    pub(super) ready: ReadyList<EventDoorbell>,
    /// Token of each entry of `ready`.
    pub(super) entries: Vec<Token>,
    pub(super) slots: Slots,
    pub(super) timers: Timers,
    pub(super) inotify: Option<Inotify>,
    pub(super) pending: Pending,
    /// Level-triggered registrations that were reported and must be looked at again.
    pub(super) again: Vec<Token>,
    /// What the back end last reported.
    pub(super) reports: Vec<BackEndEvent>,
    /// Number of the current wait.
    pub(super) waits: u64,
    pub(super) exposed: Option<Exposed>,
    /// Registrations that have ended, but whose files the back end may still use.
    pub(super) removed: Vec<Registration>,
    /// Reads and writes for the file caches of hosts, streams and tasks.
    pub(super) loads: Loads,
    pub(super) groups: Groups,
    /// Files known to be regular files.
    pub(super) regular: Known<()>,
    /// Entries of completed operations, kept for reuse.
    spare: Vec<Wakes>,
}

/// Registrations with something to report, by origin.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) of: [VecDeque<Token>; 3],
    /// The origin that was taken from last.
    turn: usize,
}

/// Reported by the kernel.
pub(super) const KERNEL: usize = 0;
/// Raised by another thread or a towpath host.
pub(super) const RAISED: usize = 1;
/// Raised by a timer.
pub(super) const EXPIRED: usize = 2;

impl Pending {
    /// Takes the next registration, round robin over the origins.
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

/// A change for [`EventQueue::apply`].
#[non_exhaustive]
pub enum Change {
    /// Adds a source, as [`EventQueue::add`] does.
    Add(Source, u64),
    /// Changes interest and trigger, as [`EventQueue::modify`] does.
    Modify(Token, Interest, Trigger),
    /// Sets a timer, as [`EventQueue::set_timer`] does.
    SetTimer(Token, Instant),
    /// Removes a registration, as [`EventQueue::remove`] does.
    Remove(Token),
}

impl EventQueue {
    /// Creates an empty queue with the default settings.
    pub fn new() -> io::Result<Self> {
        Self::with(&Config::default())
    }

    /// Creates an empty queue with the settings of `config`.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` if no descriptor is left; the kernel's error if the requested back end
    /// is not available.
    pub fn with(config: &Config) -> io::Result<Self> {
        let most = (SLOTS_MAX - FIRST_SLOT) as usize;
        let doorbell = EventDoorbell::new()?;
        Ok(Self {
            process: generation(),
            clock: Clock::new(config.simulated),
            late: 0,
            back: BackEnd::new(config.back_end, &doorbell)?,
            ready: ReadyList::new(doorbell),
            entries: Vec::new(),
            slots: Slots::new(config.registrations, most),
            timers: Timers::default(),
            inotify: None,
            pending: Pending::default(),
            again: Vec::new(),
            reports: Vec::new(),
            waits: 0,
            exposed: None,
            removed: Vec::new(),
            loads: Loads::default(),
            groups: Groups::default(),
            regular: Known::default(),
            spare: Vec::new(),
        })
    }

    /// Registers a source to wait for. Its events carry `data`.
    ///
    /// # Errors
    /// `ENOSPC` if the queue is full. Otherwise the kernel's error for the source: `EPERM` for the
    /// descriptor of a regular file, `ESRCH` for a process that does not exist, `EINVAL` for a
    /// number that is no signal, `ENOENT` for a path that does not exist.
    pub fn add(&mut self, source: Source, data: u64) -> io::Result<Token> {
        self.check_process()?;
        let token = self.begin_add(source, data)?;
        self.settle()?;
        Ok(token)
    }

    /// Changes the interest and the trigger of a descriptor or a socket. A one-shot registration
    /// that was already reported is armed again. A source that is already ready is reported by the
    /// next wait.
    ///
    /// # Errors
    /// `ESTALE` if the token's registration has ended; `EINVAL` for other sources.
    pub fn modify(&mut self, token: Token, interest: Interest, trigger: Trigger) -> io::Result<()> {
        self.check_process()?;
        self.begin_modify(token, interest, trigger)?;
        self.settle()
    }

    /// Changes when a timer expires next. An expiration that was not reported yet is discarded.
    ///
    /// # Errors
    /// `ESTALE` if the token's registration has ended; `EINVAL` for other sources.
    pub fn set_timer(&mut self, token: Token, next: Instant) -> io::Result<()> {
        self.check_process()?;
        self.begin_set_timer(token, next)?;
        self.settle()
    }

    /// Ends a registration: no further events are reported, and the queue releases the source.
    ///
    /// # Errors
    /// `ESTALE` if it has already ended; `EBUSY` for an operation that is not complete, which ends
    /// by itself.
    pub fn remove(&mut self, token: Token) -> io::Result<()> {
        self.check_process()?;
        self.begin_remove(token)?;
        self.settle()
    }

    /// Makes changes in order and returns the result of each: the token that was added or named. A
    /// change that fails does not prevent the others. On io_uring all of them together take one
    /// system call.
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

    /// Returns the notifier of a [user source](Source::user); `None` for other sources and stale
    /// tokens.
    pub fn notifier(&mut self, token: Token) -> Option<Notifier> {
        match &self.slots.get(token)?.source {
            Kind::User { wakes, .. } => Some(Notifier(wakes.as_ref()?.raiser.clone())),
            _ => None,
        }
    }

    /// Returns the number of registrations, operations included.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if there are no registrations.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the queue's time: the system's, or the simulated one.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns true if the back end is io_uring.
    pub fn is_io_uring(&self) -> bool {
        self.back.is_io_uring()
    }

    /// Fails unless this is the process that created the queue.
    pub(super) fn check_process(&self) -> io::Result<()> {
        match generation() == self.process {
            true => Ok(()),
            false => {
                Err(io::Error::other("the event queue belongs to the process that created it"))
            }
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
            reported_in: 0,
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

    /// Returns an entry of the ready list. An operation (`is_work`) tolerates polls without cause,
    /// so it may get the entry of an earlier operation whose waker still raises it.
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
                // Readiness noted so far answers the old interest.
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

    /// Ends a registration. [`settle`](Self::settle) drops it.
    pub(super) fn begin_remove(&mut self, token: Token) -> io::Result<()> {
        let registration = self.slots.get(token).ok_or(Errno::STALE)?;
        if let Kind::Operation(Ongoing { is_reported: false, .. })
        | Kind::Stream { is_reported: false, .. }
        | Kind::Task { is_over: false, .. }
        | Kind::Relay { is_reported: false, .. }
        | Kind::Multishot { is_reported: false, .. } = registration.source
        {
            return Err(Errno::BUSY.into());
        }
        if let Kind::Multishot { multishot, .. } = &mut registration.source {
            self.groups.leave(multishot.group(), multishot.take_all());
        }
        if let Some(fd) = registration.source.fd() {
            // Fails if the descriptor was closed anyway; then the kernel has released it.
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

    /// Queues a registration that has something to report.
    pub(super) fn push(&mut self, token: Token, class: usize) {
        if let Some(registration) = self.slots.get(token)
            && !std::mem::replace(&mut registration.is_pending, true)
        {
            self.pending.of[class].push_back(token);
        }
    }
}

/// Returns the back-end slot of a registration.
pub(super) fn kernel_slot(token: Token) -> u32 {
    token.slot + FIRST_SLOT
}

/// Returns the slot of a registration; `None` for file changes and loads.
pub(super) fn own_slot(kernel_slot: u32) -> Option<u32> {
    kernel_slot.checked_sub(FIRST_SLOT)
}

impl Drop for EventQueue {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            self.back.disown();
            // The sockets belong to the parent, and threads that exist only there may hold their
            // locks: leak them.
            Box::leak(Box::new(std::mem::replace(&mut self.slots, Slots::new(0, 0))));
            Box::leak(Box::new(std::mem::take(&mut self.loads)));
            return;
        }
        // The back end releases files before they are closed.
        self.exposed = None;
        for token in self.slots.tokens().collect::<Vec<_>>() {
            if let Some(
                Kind::Relay { is_reported: is_over, .. }
                | Kind::Multishot { is_reported: is_over, .. }
                | Kind::Task { is_over, .. },
            ) = self.slots.get(token).map(|registration| &mut registration.source)
            {
                *is_over = true;
            }
            // Fails for operations, which the back end ends.
            let _ = self.begin_remove(token);
        }
        // The process was checked above; there is no way to report other errors.
        let _ = self.settle();
    }
}

impl fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { back, slots, .. } = self;
        f.debug_struct("EventQueue").field("back", back).field("len", &slots.len()).finish()
    }
}

/// Events are passed by value, so they stay small.
const _: () = assert!(size_of::<Event>() <= 40);
