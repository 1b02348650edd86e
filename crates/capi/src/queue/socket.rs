//! Sockets of instances as sources of event queues, and common parts of operations on them.
//!
//! A queue does not keep an instance alive: the sockets of a freed instance are gone.

use crate::errno::{Errno, Outcome};
use crate::instance::{Instance, State};
use std::sync::{Arc, Weak};
use std::task::Waker;
use towpath::events::custom::{Pollable, Step};
use towpath::events::{Interest, Readiness};
use towpath::layers::net::socket::{self, SocketId};

/// Events that are always reported.
const ALWAYS: u32 = socket::Readiness::ERR.bits() | socket::Readiness::HUP.bits();

/// Events for which receiving and accepting wait, and for which sending waits.
pub(super) const READS: u32 =
    ALWAYS | socket::Readiness::READABLE.bits() | socket::Readiness::READ_HUP.bits();
pub(super) const WRITES: u32 = ALWAYS | socket::Readiness::WRITABLE.bits();

/// A socket, and the waker that waits for its events.
pub(super) struct Place {
    instance: Weak<Instance>,
    id: SocketId,
    waker: Option<Waker>,
}

impl Place {
    pub(super) fn new(instance: &Arc<Instance>, fd: i32) -> Outcome<Self> {
        let id = instance.lock().id(fd)?;
        Ok(Self { instance: Arc::downgrade(instance), id, waker: None })
    }

    /// The instance, unless it was freed.
    pub(super) fn instance(&self) -> Option<Arc<Instance>> {
        self.instance.upgrade()
    }

    /// The socket's descriptor, unless the socket was closed or its instance is ending.
    pub(super) fn fd(&self, state: &State) -> Option<i32> {
        state.files.of_socket(self.id).filter(|_| !state.ending)
    }

    /// Makes `waker` wake at the next of these `poll` events.
    pub(super) fn watch(&mut self, state: &mut State, waker: &Waker, events: u32) {
        if let Some(fd) = self.fd(state)
            && let Ok(file) = state.files.socket_mut(fd)
        {
            file.watchers.add(waker, events);
            self.waker = Some(waker.clone());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (Some(waker), Some(instance)) = (&self.waker, self.instance.upgrade()) else { return };
        let mut state = instance.lock();
        state.crowded.retain(|other| !other.will_wake(waker));
        if let Some(fd) = state.files.of_socket(self.id)
            && let Ok(file) = state.files.socket_mut(fd)
        {
            file.watchers.remove(waker);
        }
    }
}

/// A socket that is a source.
pub(super) struct Watched(Place);

impl Watched {
    pub(super) fn new(instance: &Arc<Instance>, fd: i32) -> Outcome<Self> {
        Place::new(instance, fd).map(Self)
    }
}

impl Pollable for Watched {
    fn poll_ready(&mut self, interest: Interest, waker: &Waker) -> Option<Readiness> {
        let instance = self.0.instance()?;
        let mut state = instance.lock();
        self.0.fd(&state)?;
        let mut wanted = ALWAYS;
        if interest.readable {
            wanted |= READS;
        }
        if interest.writable {
            wanted |= WRITES;
        }
        self.0.watch(&mut state, waker, wanted);
        let ready = state.engine.protocols.readiness(self.0.id).bits() & wanted;
        let has = |what: socket::Readiness| ready & what.bits() != 0;
        Some(Readiness {
            readable: has(socket::Readiness::IN),
            writable: has(socket::Readiness::OUT),
            peer_closed: has(socket::Readiness::READ_HUP),
            hangup: has(socket::Readiness::HUP),
            error: has(socket::Readiness::ERR),
        })
    }
}

/// Makes a call on a socket of an instance. If the call has to wait, these events wake `waker`.
pub(super) fn attempt(
    place: &mut Place,
    (events, waker): (u32, &Waker),
    call: impl FnOnce(&mut State, SocketId) -> Outcome<usize>,
) -> Outcome<usize> {
    let gone = Errno(libc::ECANCELED);
    let instance = place.instance().ok_or(gone)?;
    let mut state = instance.lock();
    let fd = place.fd(&state).ok_or(gone)?;
    let id = state.id(fd)?;
    let outcome = call(&mut state, id);
    if outcome == Err(Errno::AGAIN) {
        place.watch(&mut state, waker, events);
    }
    instance.settle(&mut state);
    outcome
}

/// The last step of an operation: a number of bytes, or a negative error number.
pub(super) fn over(result: Outcome<usize>) -> Step {
    Step::Complete(match result {
        Ok(bytes) => bytes as i64,
        Err(Errno(number)) => -i64::from(number),
    })
}
