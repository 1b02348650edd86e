//! The core of a host: a stack with its memory behind one lock, and what its worker does.
//!
//! Three kinds of calls: those that need the stack take the lock, act and let it go
//! ([`Core::call`]); sends append to a queue of their socket and take another lock, that no worker
//! holds for long ([`Core::send`]); and the worker does turns ([`Core::turn`]). Only the worker
//! moves packets, but for datagrams that leave over a link ([`Core::call_to_send`]).
//!
//! A wait leaves its waker while it has the lock, and the worker, which has news only while it has
//! the lock, takes it: nothing is missed. Wakers are woken without a lock.

pub(in crate::host) mod datagrams;
pub(in crate::host) mod feed;
pub(in crate::host) mod line;
pub(in crate::host) mod terms;

use crate::host::bell::Bell;
use crate::host::clock::Clock;
use crate::host::core::line::Line;
use crate::host::lending::budget::Budget;
use crate::host::lending::buffers::Buffers;
use crate::host::lending::gather::Gather;
use crate::host::lending::queue::{LentOp, Op, SendQueue};
use crate::host::port::{MEMORY_PAUSE, Port};
use crate::host::wait::Waiters;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use towpath_io::thread::release_unused;
use towpath_net::socket::{Error, Readiness, SendTo, SocketId, Sockets};
use towpath_net::stack::Context;
use towpath_net::tcp::Connection;
use towpath_net::time::{Duration, Instant, earliest};
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use towpath_packet::{Ledger, Loans, Memory, Piece, Pool, Site};

/// Steps of a turn in which what was taken up can lead to more to send.
const ROUNDS_MAX: usize = 4;

/// What the worker and the calls of a host share.
pub(super) struct Core {
    /// Held while waiting for `state`: whoever waits gets it before whoever had it last.
    gate: Mutex<()>,
    state: Mutex<State>,
    /// Send queues with something new.
    submitted: Mutex<Vec<Arc<SendQueue>>>,
    pub(super) bell: Arc<Bell>,
    /// Memory for what is copied to be sent.
    frames: Mutex<Frames>,
    pub(super) clock: Clock,
    pub(super) ledger: Arc<Ledger>,
    pub(super) buffers: Arc<Buffers>,
    pub(super) lent: Arc<Budget>,
    pub(super) lent_by_socket: usize,
}

struct Frames {
    small: Pool,
    large: Pool,
    /// Who found none.
    waiters: Waiters,
}

/// What the lock guards.
pub(super) struct State {
    pub(super) sockets: Sockets,
    pub(super) memory: Memory,
    /// Made with the first loan.
    pub(super) loans: Option<Loans>,
    pub(super) port: Port,
    pub(super) table: HashMap<SocketId, Entry>,
    /// Not later than the first term of what waits in a send queue.
    pub(super) terms_at: Option<Instant>,
    /// Sockets that wait for a free loan or for memory.
    pub(super) starved: Vec<SocketId>,
    pub(super) retry_at: Option<Instant>,
    /// Those whose receive found too much kept by readers.
    pub(super) crowded: Waiters,
    /// Sockets that may have bytes for buffers that were posted: for the worker.
    pub(super) to_place: Vec<SocketId>,
    /// Taken from waiters, to be woken without the lock.
    pub(super) wakers: Vec<Waker>,
    /// When the worker wakes by itself; `None` for never.
    wakes_at: Option<Instant>,
    ending: bool,
}

/// What there is to a socket beside the stack.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) queue: Option<Arc<SendQueue>>,
    /// Taken from the queue, and not yet taken by the stack.
    pub(super) pending: VecDeque<Op>,
    /// Room in a queue of datagrams that is to be given back.
    pub(super) freed: usize,
    /// What went wrong with queued datagrams, for the call behind them.
    pub(super) late: Option<Error>,
    pub(super) readers: Waiters,
    pub(super) writers: Waiters,
    pub(super) posted: Line,
}

/// What a turn came to.
pub(super) enum Turn {
    /// There is more to do.
    Busy,
    /// Nothing for so long, or until somebody rings; whether the device is to be watched.
    Idle { due: Option<Duration>, watched: bool },
    /// The host ends.
    End,
}

impl Core {
    pub(super) fn new(
        sockets: Sockets,
        (memory, frames): (Memory, Memory),
        port: Port,
        bell: Arc<Bell>,
        (lent_by_socket, lent_by_all): (usize, usize),
    ) -> Self {
        let Memory { small, large, .. } = frames;
        let state = State {
            sockets,
            memory,
            loans: None,
            port,
            table: HashMap::new(),
            terms_at: None,
            starved: Vec::new(),
            retry_at: None,
            crowded: Waiters::default(),
            to_place: Vec::new(),
            wakers: Vec::new(),
            wakes_at: None,
            ending: false,
        };
        Self {
            gate: Mutex::new(()),
            state: Mutex::new(state),
            submitted: Mutex::default(),
            bell,
            frames: Mutex::new(Frames { small, large, waiters: Waiters::default() }),
            clock: Clock::new(),
            ledger: Arc::default(),
            buffers: Arc::default(),
            lent: Arc::new(Budget::new(lent_by_all)),
            lent_by_socket,
        }
    }

    /// Lets `act` use the stack, then sees to what follows.
    pub(super) fn call<R>(&self, act: impl FnOnce(&mut State, &mut Now<'_>) -> R) -> R {
        let mut state = self.lock();
        let mut now = Now { now: self.clock.now(), ledger: &self.ledger };
        let result = act(&mut state, &mut now);
        state.take_up(&now);
        let due = state.due();
        let earlier = due.is_some_and(|due| state.wakes_at.is_none_or(|at| due < at));
        let ring = earlier || state.sockets.stack().has_output() || !state.to_place.is_empty();
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        if ring {
            self.bell.ring();
        }
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// The same for an `act` that sends a datagram. Over a link, where that is only to hand a
    /// packet on, it leaves with the call: to wake the worker would cost more, and he would have
    /// the lock when the next call wants it.
    pub(super) fn call_to_send<R>(&self, act: impl FnOnce(&mut State, &mut Now<'_>) -> R) -> R {
        self.call(|state, now| {
            let result = act(state, now);
            if state.port.is_link() {
                state.with(now, |sockets, port, cx| port.send(sockets, cx));
            }
            result
        })
    }

    /// Appends to a send queue.
    pub(super) fn send(&self, queue: &Arc<SendQueue>, op: Op) -> Result<(), Op> {
        if queue.push(op)? {
            self.submit(queue);
        }
        Ok(())
    }

    /// Appends datagrams to one.
    pub(super) fn send_datagrams(
        &self,
        queue: &Arc<SendQueue>,
        lent: LentOp,
        send: &SendTo,
    ) -> Result<(), LentOp> {
        if queue.push_datagrams(lent, send)? {
            self.submit(queue);
        }
        Ok(())
    }

    /// Tells the worker of a send queue.
    fn submit(&self, queue: &Arc<SendQueue>) {
        self.submitted().push(queue.clone());
        self.bell.ring();
    }

    /// Copies the beginning of `bytes` into a frame, `most` at most. `None` without one: then
    /// `waker` is woken when it is worth trying again.
    pub(super) fn copy_in(
        &self,
        bytes: &mut Gather<'_>,
        most: usize,
        waker: &Waker,
    ) -> Option<Piece> {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let Frames { small, large, waiters } = &mut *frames;
        let (first, second) =
            if most <= SMALL_FRAME_BYTES { (small, large) } else { (large, small) };
        let Some(mut frame) = first.take().or_else(|| second.take()) else {
            waiters.add(waker);
            drop(frames);
            // The worker tells, now and then.
            self.bell.ring();
            return None;
        };
        drop(frames);
        let room = most.min(frame.len());
        let count = bytes.copy_to(&mut frame[..room]);
        self.ledger.count(Site::SocketSend, count);
        Some(frame.freeze(count))
    }

    /// A frame of `len` bytes, which `fill` fills. `None` if there is none, or `fill` says so.
    pub(super) fn fill_frame(
        &self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Option<()>,
    ) -> Option<Piece> {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let Frames { small, large, .. } = &mut *frames;
        let taken = if len <= SMALL_FRAME_BYTES { small.take() } else { None };
        let mut frame = taken.or_else(|| large.take())?;
        drop(frames);
        fill(&mut frame[..len])?;
        Some(frame.freeze(len))
    }

    /// Ends the worker.
    pub(super) fn end(&self) {
        self.lock().ending = true;
        self.bell.ring();
    }

    /// One turn of the worker.
    pub(super) fn turn(&self) -> Turn {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.ending {
            return Turn::End;
        }
        let now = Now { now: self.clock.now(), ledger: &self.ledger };
        let submitted = std::mem::take(&mut *self.submitted());
        for queue in &submitted {
            state.take_submitted(queue, &now);
        }
        let more = state.with(&now, |sockets, port, cx| port.receive(sockets, cx));
        if state.sockets.next_deadline().is_some_and(|at| at <= now.now) {
            state.with(&now, |sockets, _, cx| sockets.on_deadline(cx));
        }
        state.retry(&now);
        state.run_terms(&now);
        self.tell_frames(state, &now);
        state.take_up(&now);
        state.place(&now);
        let mut unsent = false;
        for _ in 0..ROUNDS_MAX {
            unsent = state.with(&now, |sockets, port, cx| port.send(sockets, cx));
            if !state.take_up(&now) {
                break;
            }
            unsent = true;
        }
        let wakers = std::mem::take(&mut state.wakers);
        state.wakes_at = state.due();
        let due = state.wakes_at;
        self.bell.going_to_sleep();
        let watched = state.port.is_watched();
        let news = more
            || unsent
            || !state.to_place.is_empty()
            || !self.submitted().is_empty()
            || state.port.has_news();
        drop(guard);
        wakers.into_iter().for_each(Waker::wake);
        if news {
            self.bell.is_up(false);
            return Turn::Busy;
        }
        Turn::Idle { due: due.map(|due| due.since(now.now)), watched }
    }

    /// Tells those who found no frame that there are some, or looks again soon.
    fn tell_frames(&self, state: &mut State, now: &Now<'_>) {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.waiters.is_empty() {
            return;
        }
        let Frames { small, large, waiters } = &mut *frames;
        if small.free_count() > 0 || large.free_count() > 0 {
            waiters.take_into(&mut state.wakers);
        } else {
            state.retry_at.get_or_insert(now.now + MEMORY_PAUSE);
        }
    }

    /// Nothing happened for a while: gives back what was kept ready, and memory that a busier time
    /// has left behind.
    pub(super) fn give_back(&self) {
        let mut state = self.lock();
        state.port.rest();
        state.memory.unused(release_unused);
        drop(state);
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        frames.small.unused(release_unused);
        frames.large.unused(release_unused);
    }

    /// Frames for what is copied that are out.
    pub(super) fn frames_out(&self) -> usize {
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        frames.small.out_count() + frames.large.out_count()
    }

    /// True if the worker has not looked at something that was sent.
    pub(super) fn has_submitted(&self) -> bool {
        !self.submitted().is_empty()
    }

    fn submitted(&self) -> MutexGuard<'_, Vec<Arc<SendQueue>>> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock, in the order of the asking. Every call leaves the state whole, so a panic
    /// in another thread does not spoil it.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(gate);
        state
    }

    /// Bytes of frames for what is copied.
    pub(super) fn frame_bytes(memory: usize) -> usize {
        (memory / 4).max(2 * (SMALL_FRAME_BYTES + LARGE_FRAME_BYTES))
    }
}

/// The moment of a call, and where copies are counted.
pub(super) struct Now<'a> {
    pub(super) now: Instant,
    pub(super) ledger: &'a Ledger,
}

impl State {
    /// Lets `act` use the sockets and the device with their memory.
    pub(super) fn with<R>(
        &mut self,
        now: &Now<'_>,
        act: impl FnOnce(&mut Sockets, &mut Port, &mut Context<'_>) -> R,
    ) -> R {
        let mut cx = Context { memory: &mut self.memory, ledger: now.ledger, now: now.now };
        act(&mut self.sockets, &mut self.port, &mut cx)
    }

    /// Keeps what there is to a new socket.
    pub(super) fn add(&mut self, id: SocketId, queue: Option<Arc<SendQueue>>) {
        self.table.insert(id, Entry { queue, ..Entry::default() });
    }

    /// What there is to a socket; an empty entry if it has none.
    pub(super) fn entry(&mut self, id: SocketId) -> &mut Entry {
        self.table.entry(id).or_default()
    }

    /// Closes a socket whose send queue is empty, or that has none.
    pub(super) fn close(&mut self, id: SocketId, now: Instant) {
        self.table.remove(&id);
        // There is such a socket: its owner is just being dropped.
        let _ = self.sockets.close(id, now);
    }

    /// Packets and frames in use, and loans that are out.
    pub(super) fn in_use(&self) -> (usize, usize) {
        let Memory { packets, small, large } = &self.memory;
        let loans = self.loans.as_ref().map_or(0, Loans::out_count);
        (packets.out_count() + small.out_count() + large.out_count(), loans)
    }

    /// True if there are bytes that no peer has acknowledged, or connections that are closing.
    pub(super) fn is_sending(&self) -> bool {
        let open = self.table.keys().filter(|&&id| self.sockets.tcp(id).is_some()).count();
        let closing = self.sockets.stack().tcp_counts().0 > open;
        let sending = |(&id, entry): (&SocketId, &Entry)| {
            let unacknowledged = |tcp: &Connection| tcp.unacknowledged() > 0;
            !entry.pending.is_empty() || self.sockets.tcp(id).is_some_and(unacknowledged)
        };
        closing || self.table.iter().any(sending)
    }

    fn due(&self) -> Option<Instant> {
        let deadline = self.sockets.next_deadline();
        earliest([deadline, self.port.due(), self.retry_at, self.terms_at])
    }

    /// Takes up the sockets' news. True if the stack got something to send by it.
    fn take_up(&mut self, now: &Now<'_>) -> bool {
        let mut fed = false;
        while let Some((id, what)) = self.sockets.next_wake() {
            let Some(entry) = self.table.get_mut(&id) else { continue };
            let over = what.contains(Readiness::ERR) || what.contains(Readiness::HUP);
            if over || what.contains(Readiness::IN) || what.contains(Readiness::READ_HUP) {
                entry.readers.take_into(&mut self.wakers);
                if entry.posted.waits() {
                    self.to_place.push(id);
                }
            }
            if over || what.contains(Readiness::OUT) {
                entry.writers.take_into(&mut self.wakers);
            }
            let waits = !entry.pending.is_empty();
            if what.contains(Readiness::ERR) {
                // Each loan's end is told to its own send.
                while self.sockets.take_notice(id).is_ok() {}
                if self.sockets.has_error(id) {
                    // Which is for the next call.
                    entry.queue.iter().for_each(|queue| queue.shut());
                }
            }
            if waits && (over || what.contains(Readiness::OUT)) {
                fed |= self.feed(id, now);
            }
        }
        fed
    }
}
