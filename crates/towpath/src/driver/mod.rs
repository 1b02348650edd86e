//! Sockets on a device behind a lock, and the thread that drives them.
//!
//! [`host`](crate::host) builds the sockets of Rust programs on it, the C library those of C
//! programs. Use it to implement sockets of another shape.
//!
//! # Theory of operation
//!
//! A [`Driver`] keeps its user's state ([`Driven`]) behind one lock. The state contains the sockets
//! and their device ([`SocketEngine`]). A call takes the lock, acts and releases it
//! ([`Driver::call`]). The *worker*, a thread, waits for the device, for the next deadline and for
//! its bell. Then it takes the lock and does a turn: it receives a burst, runs the timers, lets the
//! state do its own work, and sends. It releases the lock after a few bursts, so that calls get it
//! soon; threads get the lock in the order in which they asked for it.
//!
//! An idle worker sleeps without a timeout and returns memory left over from a busier time to the
//! system. It blocks all signals, so that the program's own threads get them.
//!
//! A call wakes the worker only if it leaves work for it, or if a deadline is earlier than the one
//! for which the worker sleeps.

pub(crate) mod bell;
pub(crate) mod clock;
mod device;

pub use bell::Bell;
pub use clock::Clock;
pub use device::{AnyDevice, DeviceError, boxed};

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::thread::{Rest, spawn};
use towpath_net::engine::Engine;
use towpath_net::socket::Sockets;
use towpath_net::time::{Duration, Instant, earliest};
use towpath_packet::Device;

/// Sockets, their device and the memory of both.
pub type SocketEngine = Engine<Sockets, AnyDevice>;

/// Packets received per turn: few enough that calls get the lock soon.
const READ_BURST: usize = 32;
/// Bursts sent per round: few enough that calls get the lock soon.
pub(crate) const SEND_BURSTS: usize = 4;
/// Send rounds per turn. Socket events handled after a round can give the stack more to send.
const ROUNDS_MAX: usize = 4;

/// Tokens of files in the reactor.
const DEVICE: u64 = 0;
const BELL: u64 = 1;

/// The state that a driver keeps behind its lock.
pub trait Driven: Send + 'static {
    /// Returns the sockets and their device.
    fn engine(&self) -> &SocketEngine;

    /// Returns the sockets and their device for use.
    fn engine_mut(&mut self) -> &mut SocketEngine;

    /// Returns the current moment.
    fn now(&self) -> Instant;

    /// Called when the worker's turn begins, before it receives.
    fn begin(&mut self, now: Instant) {
        let _ = now;
    }

    /// Called after the worker has received and run the timers, before it sends.
    fn act(&mut self, now: Instant) {
        let _ = now;
    }

    /// Handles pending socket events ([`Sockets::next_wake`]). Returns true if that gave the stack
    /// something to send.
    fn take_up(&mut self, now: Instant) -> bool;

    /// Does the follow-up work of a call, on the caller's thread.
    fn settle(&mut self, now: Instant) {
        self.take_up(now);
    }

    /// Returns the deadline of the state's own next work.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Returns true if the worker has work to do at once, apart from the engine's: it does not
    /// sleep.
    fn has_work(&self) -> bool {
        false
    }

    /// Returns true if a call has left work for the worker, which is then woken.
    fn leaves_work(&self) -> bool {
        false
    }

    /// Takes the wakers of tasks to notify. They are woken after the lock is released.
    fn take_wakers(&mut self) -> Vec<Waker> {
        Vec::new()
    }

    /// Called after an idle period: gives back memory that was kept ready.
    fn rest(&mut self);
}

/// What the lock guards: the state, and what the worker is waiting for.
pub struct Shared<S> {
    state: S,
    /// When the worker wakes up by itself; `None` for never.
    wakes_at: Option<Instant>,
    is_ending: bool,
}

/// The lock, held.
pub type Guard<'a, S> = MutexGuard<'a, Shared<S>>;

/// A state behind its lock. See the module documentation.
pub struct Driver<S> {
    /// Held while waiting for `shared`, so that a waiting thread gets the lock before the thread
    /// that held it last.
    gate: Mutex<()>,
    shared: Mutex<Shared<S>>,
    bell: Arc<Bell>,
}

/// The thread that drives a state. Dropping it ends the thread.
pub struct Worker<S: Driven> {
    driver: Arc<Driver<S>>,
    /// Number of the epoll set on which the thread waits.
    file: RawFd,
    thread: Option<JoinHandle<()>>,
}

/// Result of a worker's turn.
enum Turn {
    /// There is more to do.
    Busy,
    /// There is nothing to do for this long, or until the bell rings, or until the device's file
    /// is readable, if it is to be watched.
    Idle { due: Option<Duration>, watches: bool },
    /// The worker must end.
    End,
}

impl<S: Driven> Driver<S> {
    /// Creates a driver without a worker. `bell` wakes the worker that [`Worker::start`] may add.
    pub fn new(state: S, bell: Arc<Bell>) -> Self {
        let shared = Shared { state, wakes_at: None, is_ending: false };
        Self { gate: Mutex::default(), shared: Mutex::new(shared), bell }
    }

    /// Returns the bell that wakes the worker.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Takes the lock, in the order in which threads ask for it. Every call leaves the state
    /// consistent, so a panic in another thread does not poison it.
    pub fn lock(&self) -> Guard<'_, S> {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        drop(gate);
        shared
    }

    /// Runs `act` on the state, then does the follow-up work.
    pub fn call<R>(&self, act: impl FnOnce(&mut S, Instant) -> R) -> R {
        let mut shared = self.lock();
        let now = shared.now();
        let result = act(&mut shared.state, now);
        let rings = shared.settle(now);
        let wakers = shared.take_wakers();
        drop(shared);
        if rings {
            self.bell.ring();
        }
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Does the follow-up work of changes that the caller made under the lock, which it keeps.
    pub fn settle(&self, shared: &mut Shared<S>) {
        let now = shared.now();
        if shared.settle(now) {
            self.bell.ring();
        }
        shared.take_wakers().into_iter().for_each(Waker::wake);
    }

    /// Runs one turn of the worker. The device's file is or may be readable.
    fn turn(&self) -> Turn {
        let mut guard = self.lock();
        if guard.is_ending {
            return Turn::End;
        }
        let state = &mut guard.state;
        let now = state.now();
        state.begin(now);
        let engine = state.engine_mut();
        // A device that fails is gone; the engine counts packets sent from then on as dropped.
        let _ = engine.turn(true, now);
        let is_more = engine.receive(READ_BURST, now, |_| {}).is_ok_and(|one| one.is_full);
        engine.run_timers(now);
        state.act(now);
        let mut is_unsent = false;
        for _ in 0..ROUNDS_MAX {
            is_unsent = state.engine_mut().send(SEND_BURSTS, now, |_| {}).unwrap_or(true);
            if !state.take_up(now) {
                break;
            }
            is_unsent = true;
        }
        let wakers = state.take_wakers();
        let due = guard.next_deadline();
        guard.wakes_at = due;
        let watches = guard.engine().is_watched();
        self.bell.going_to_sleep();
        let is_busy = is_more || is_unsent || guard.has_work() || guard.engine_mut().arm();
        drop(guard);
        wakers.into_iter().for_each(Waker::wake);
        if is_busy {
            self.bell.is_up(false);
            return Turn::Busy;
        }
        Turn::Idle { due: due.map(|due| due.since(now)), watches }
    }

    /// Runs the worker's loop.
    fn work(&self, mut reactor: Reactor) {
        let mut events = Events::new();
        let (mut is_watching, mut rest) = (true, Rest::new());
        loop {
            let (due, watches) = match self.turn() {
                Turn::Busy => continue,
                Turn::Idle { due, watches } => (due, watches),
                Turn::End => return,
            };
            // Without a change it needs no lock, which threads that were just woken want now.
            if watches != std::mem::replace(&mut is_watching, watches) {
                self.watch(&reactor, watches);
            }
            // The arguments are valid. A signal would end the wait without events, but the worker
            // blocks all signals.
            if rest.wait(&mut reactor, due, &mut events).unwrap_or(false) {
                self.lock().rest();
            }
            self.bell.is_up(events.iter().any(|event| event.token == BELL));
        }
    }

    /// Adds the device's file to the reactor, or removes it.
    fn watch(&self, reactor: &Reactor, watches: bool) {
        let shared = self.lock();
        let Some(file) = shared.engine().device.file() else { return };
        // The file is in the set exactly while it is watched, and the set is never full: both calls
        // succeed.
        let _ = match watches {
            true => reactor.add(file, DEVICE, Interest::READ, false),
            false => reactor.remove(file),
        };
    }
}

impl<S: Driven> Worker<S> {
    /// Starts the thread that drives `driver`.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` or `EAGAIN` if no descriptor or thread is left.
    pub fn start(driver: Arc<Driver<S>>) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        reactor.add(&*driver.bell, BELL, Interest::READ, false)?;
        if let Some(file) = driver.lock().engine().device.file() {
            reactor.add(file, DEVICE, Interest::READ, false)?;
        }
        let (served, file) = (driver.clone(), reactor.as_fd().as_raw_fd());
        let thread = Some(spawn(move || served.work(reactor))?);
        Ok(Self { driver, file, thread })
    }

    /// Returns the number of the epoll set on which the thread waits, for programs that account for
    /// all open files. It is open until the thread ends.
    pub fn file(&self) -> RawFd {
        self.file
    }
}

impl<S: Driven> Drop for Worker<S> {
    fn drop(&mut self) {
        self.driver.lock().is_ending = true;
        self.driver.bell.ring();
        // A waker that the worker woke may have dropped the last user of the driver. Then this is
        // the worker itself, which cannot join itself.
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|own| own.thread().id() != thread::current().id()) {
            // A worker that panics ends the process, so `join` returns.
            let _ = thread.join();
        }
    }
}

impl<S: Driven> Shared<S> {
    /// Does the follow-up work of a call. Returns true if the worker must be woken.
    fn settle(&mut self, now: Instant) -> bool {
        self.state.settle(now);
        let due = self.next_deadline();
        let is_earlier = due.is_some_and(|due| self.wakes_at.is_none_or(|at| due < at));
        is_earlier || self.state.leaves_work()
    }

    fn next_deadline(&self) -> Option<Instant> {
        earliest([self.state.engine().next_deadline(), self.state.next_deadline()])
    }
}

impl<S> Deref for Shared<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S> DerefMut for Shared<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}
