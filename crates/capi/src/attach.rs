//! Instances on a TAP device, and the thread that drives them.
//!
//! # Theory of operation
//!
//! The worker waits for the device, for its next timer and for an alarm; then it takes the lock,
//! reads a burst, runs the timers that are due and sends what follows. Calls of the program send
//! what they cause themselves, on their own thread, and ring the alarm only if something is due
//! earlier than the worker knows. An idle instance uses no time, and gives memory that a busier
//! time has left behind back to the system.
//!
//! The worker holds its instance only while it does a turn. [`Instance::end`] and dropping the
//! last reference end it; nothing of it is left then: no thread and no descriptor. It blocks all
//! signals, so that they come to threads of the program.

use crate::device::Port;
use crate::errno::{Errno, Outcome};
use crate::instance::{Config, Instance};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::tap::{Features, Tap, TapError};
use towpath_io::thread::{Rest, spawn};

/// The thread of an attached instance.
pub(crate) struct Worker {
    thread: JoinHandle<()>,
    alarm: Arc<OwnedFd>,
}

/// Names of files in the reactor.
const DEVICE: u64 = 0;
const ALARM: u64 = 1;

impl Instance {
    /// An instance on `tap`, driven by a thread of its own. Super-packets and checksums are used
    /// as far as the kernel agrees.
    pub fn attach(config: &Config, mut tap: Tap) -> Outcome<Arc<Self>> {
        tap.set_offload(Features::ALL).map_err(tap_errno)?;
        tap.set_mtu(config.mtu);
        let alarm = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let reactor = Reactor::new().map_err(io_errno)?;
        reactor.add(&tap, DEVICE, Interest::READ, false).map_err(io_errno)?;
        reactor.add(&alarm, ALARM, Interest::READ, false).map_err(io_errno)?;
        let port = Port::new(tap, alarm.clone());
        let instance = Arc::new(Self::on_device(config, port)?);
        let (weak, bell) = (Arc::downgrade(&instance), alarm.clone());
        let thread = spawn(move || work(&weak, reactor, &bell)).map_err(io_errno)?;
        *instance.worker.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Worker { thread, alarm });
        Ok(instance)
    }

    /// Ends the worker, if there is one, and waits for its end.
    pub fn end(&self) {
        {
            let mut state = self.lock();
            state.ending = true;
            state.files.wake_all();
        }
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Worker { thread, alarm }) = worker else { return };
        // Fails only if the counter is full: then it rings already.
        let _ = rustix::io::write(&alarm, &1_u64.to_ne_bytes());
        // The worker itself drops the instance if it was the last to use it.
        if thread.thread().id() != thread::current().id() {
            // A worker that panics ends the process, so there is an end to wait for.
            let _ = thread.join();
        }
    }
}

/// What the worker does.
fn work(instance: &Weak<Instance>, mut reactor: Reactor, alarm: &OwnedFd) {
    let mut events = Events::new();
    let mut timeout = Some(Duration::ZERO);
    let (mut watching, mut rest) = (true, Rest::new());
    loop {
        // The arguments are right; a signal ends the wait without events, and none comes here.
        let rests = rest.wait(&mut reactor, timeout, &mut events).unwrap_or(false);
        if events.iter().any(|event| event.token == ALARM) {
            // Nothing to read is as good.
            let _ = rustix::io::read(alarm, &mut [0; 8]);
        }
        let Some(instance) = instance.upgrade() else { return };
        let mut state = instance.lock();
        if state.ending {
            return;
        }
        if rests {
            state.rest();
        }
        state.read_device();
        state.run_timers();
        instance.settle(&mut state);
        let now = state.now();
        let due = state.sleep();
        timeout = due.map(|at| at.since(now));
        let Some(port) = state.port() else { return };
        let watch = !port.is_gone() && !port.is_paused();
        if watch != watching {
            watching = watch;
            // The device is in the set exactly if it is watched; a full set is not to be feared.
            let _ = match watch {
                true => reactor.add(port.fd(), DEVICE, Interest::READ, false),
                false => reactor.remove(port.fd()),
            };
        }
    }
}

/// The error number for a device that cannot be had.
pub(crate) fn tap_errno(error: TapError) -> Errno {
    Errno(match error {
        TapError::NoDevice | TapError::Gone => libc::ENODEV,
        TapError::DeviceForbidden => libc::EACCES,
        TapError::NotPermitted => libc::EPERM,
        TapError::NameInUse => libc::EBUSY,
        TapError::NameInvalid => libc::EINVAL,
        TapError::Unsupported => libc::EOPNOTSUPP,
        TapError::Os(errno) => errno.raw_os_error(),
    })
}

fn io_errno(error: std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}
