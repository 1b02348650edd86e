//! Sockets on a device, behind a lock, and the thread that drives them.
//!
//! [`host`](crate::host) has sockets for Rust programs on it, and the C library those of C
//! programs. It is for whoever writes sockets of another shape, too.
//!
//! # Theory of operation
//!
//! A [`Driver`] keeps a state of its user's ([`Driven`]), in which there are the sockets and their
//! device ([`SocketEngine`]), behind one lock. A call takes the lock, acts and lets it go
//! ([`Driver::call`]). The *worker*, a thread, waits for the device, for the next deadline and for
//! its bell; then it takes the lock and does a turn: it receives a burst, runs the timers, has the
//! state do what is its own, and sends. It lets the lock go after a few bursts, so that calls have
//! it soon; the lock is had in the order of the asking.
//!
//! An idle worker sleeps without end, and gives memory that a busier time has left behind back to
//! the system. It blocks all signals, so that they come to threads of the program.
//!
//! A call wakes the worker only if there is something to do for it, or if something is due earlier
//! than the worker knows.

pub(crate) mod bell;
pub(crate) mod clock;
mod device;

pub use bell::Bell;
pub use clock::Clock;
pub use device::{AnyDevice, DeviceError, boxed};

use std::io;
use std::ops::{Deref, DerefMut};
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

/// Packets received at a time: few enough that calls get the lock soon.
const READ_BURST: usize = 32;
/// Bursts sent at a time: few enough that calls get the lock soon.
pub(crate) const SEND_BURSTS: usize = 4;
/// Steps of a turn in which what was taken up can lead to more to send.
const ROUNDS_MAX: usize = 4;

/// Names of files in the reactor.
const DEVICE: u64 = 0;
const BELL: u64 = 1;

/// What a driver keeps behind its lock.
pub trait Driven: Send + 'static {
    /// The sockets and their device.
    fn engine(&self) -> &SocketEngine;

    /// The sockets and their device, to be used.
    fn engine_mut(&mut self) -> &mut SocketEngine;

    /// Now.
    fn now(&self) -> Instant;

    /// The worker's turn begins: nothing has been received yet.
    fn begin(&mut self, now: Instant) {
        let _ = now;
    }

    /// The worker has received and run the timers, and is about to send.
    fn act(&mut self, now: Instant) {
        let _ = now;
    }

    /// Takes up what there is of news about the sockets ([`Sockets::next_wake`]). True if the stack
    /// got something to send by it.
    fn take_up(&mut self, now: Instant) -> bool;

    /// Sees to what follows from a call, on its thread.
    fn settle(&mut self, now: Instant) {
        self.take_up(now);
    }

    /// When it has something to do by itself.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// True if there is something for the worker to do at once, beside what the engine has: it does
    /// not sleep.
    fn has_work(&self) -> bool {
        false
    }

    /// True if a call has left something to the worker: it is woken.
    fn leaves_work(&self) -> bool {
        false
    }

    /// Wakers of those who are to hear of what happened. They are woken without the lock.
    fn take_wakers(&mut self) -> Vec<Waker> {
        Vec::new()
    }

    /// Nothing happened for a while: gives back what was kept ready.
    fn rest(&mut self);
}

/// What the lock guards: the state, and what its worker knows.
pub struct Shared<S> {
    state: S,
    /// When the worker wakes by itself; `None` for never.
    wakes_at: Option<Instant>,
    is_ending: bool,
}

/// The lock, held.
pub type Guard<'a, S> = MutexGuard<'a, Shared<S>>;

/// A state and the lock in front of it. See the module text.
pub struct Driver<S> {
    /// Held while waiting for `shared`: whoever waits gets it before whoever had it last.
    gate: Mutex<()>,
    shared: Mutex<Shared<S>>,
    bell: Arc<Bell>,
}

/// The thread that drives a state. Dropping it ends the thread.
pub struct Worker<S: Driven> {
    driver: Arc<Driver<S>>,
    thread: Option<JoinHandle<()>>,
}

/// What a turn came to.
enum Turn {
    /// There is more to do.
    Busy,
    /// Nothing for so long, or until the bell rings.
    Idle(Option<Duration>),
    /// The worker ends.
    End,
}

impl<S: Driven> Driver<S> {
    /// A driver without a worker, whose bell wakes the worker that it may have later.
    pub fn new(state: S, bell: Arc<Bell>) -> Self {
        let shared = Shared { state, wakes_at: None, is_ending: false };
        Self { gate: Mutex::default(), shared: Mutex::new(shared), bell }
    }

    /// What wakes the worker.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Takes the lock, in the order of the asking. Every call leaves the state whole, so a panic in
    /// another thread does not spoil it.
    pub fn lock(&self) -> Guard<'_, S> {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        drop(gate);
        shared
    }

    /// Lets `act` use the state, then sees to what follows.
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

    /// Sees to what follows from a use of the state by somebody who keeps the lock.
    pub fn settle(&self, shared: &mut Shared<S>) {
        let now = shared.now();
        if shared.settle(now) {
            self.bell.ring();
        }
        shared.take_wakers().into_iter().for_each(Waker::wake);
    }

    /// One turn of the worker. The file of the device is or may be readable.
    fn turn(&self) -> Turn {
        let mut guard = self.lock();
        if guard.is_ending {
            return Turn::End;
        }
        let state = &mut guard.state;
        let now = state.now();
        state.begin(now);
        let engine = state.engine_mut();
        // A device that fails is gone; the engine counts what is sent from then on.
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
        self.bell.going_to_sleep();
        let is_busy = is_more || is_unsent || guard.has_work() || guard.engine_mut().arm();
        drop(guard);
        wakers.into_iter().for_each(Waker::wake);
        if is_busy {
            self.bell.is_up(false);
            return Turn::Busy;
        }
        Turn::Idle(due.map(|due| due.since(now)))
    }

    /// What the worker does.
    fn work(&self, mut reactor: Reactor) {
        let mut events = Events::new();
        let (mut is_watching, mut rest) = (true, Rest::new());
        loop {
            let due = match self.turn() {
                Turn::Busy => continue,
                Turn::Idle(due) => due,
                Turn::End => return,
            };
            self.watch(&reactor, &mut is_watching);
            // The arguments are right; a signal ends the wait without events, and none comes here.
            if rest.wait(&mut reactor, due, &mut events).unwrap_or(false) {
                self.lock().rest();
            }
            self.bell.is_up(events.iter().any(|event| event.token == BELL));
        }
    }

    /// Begins or ends to watch the device.
    fn watch(&self, reactor: &Reactor, is_watching: &mut bool) {
        let shared = self.lock();
        let engine = shared.engine();
        let watches = engine.is_watched();
        if watches == std::mem::replace(is_watching, watches) {
            return;
        }
        let Some(file) = engine.device.file() else { return };
        // The file is in the set exactly if it is watched; a full set is not to be feared.
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
    /// The system has no thread or no descriptor left.
    pub fn start(driver: Arc<Driver<S>>) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        reactor.add(&*driver.bell, BELL, Interest::READ, false)?;
        if let Some(file) = driver.lock().engine().device.file() {
            reactor.add(file, DEVICE, Interest::READ, false)?;
        }
        let served = driver.clone();
        let thread = Some(spawn(move || served.work(reactor))?);
        Ok(Self { driver, thread })
    }
}

impl<S: Driven> Drop for Worker<S> {
    fn drop(&mut self) {
        self.driver.lock().is_ending = true;
        self.driver.bell.ring();
        // What the worker woke may have been the last to use the driver.
        let thread = self.thread.take();
        if let Some(thread) = thread.filter(|own| own.thread().id() != thread::current().id()) {
            // A worker that panics ends the process, so there is an end to wait for.
            let _ = thread.join();
        }
    }
}

impl<S: Driven> Shared<S> {
    /// Sees to what follows from a call. True if the worker is to be woken for it.
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
