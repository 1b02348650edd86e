//! The core of a host: what its sockets have beside the stack, and what its worker does with that.
//!
//! Three kinds of calls: those that need the stack take the lock, act and let it go
//! ([`Core::call`]); sends append to a queue of their socket and take another lock, that no worker
//! holds for long ([`Core::send`]); and the worker does turns. Only the worker moves packets, but
//! for datagrams that leave over a link ([`Core::call_to_send`]).
//!
//! A wait leaves its waker while it has the lock, and the worker, which has news only while it has
//! the lock, takes it: nothing is missed. Wakers are woken without a lock.

pub(in crate::host) mod datagrams;
pub(in crate::host) mod feed;
pub(in crate::host) mod line;
pub(in crate::host) mod terms;

use crate::driver::{Bell, Clock, Driven, Driver, Guard, SEND_BURSTS, SocketEngine};
use crate::host::core::line::Line;
use crate::host::lending::budget::Budget;
use crate::host::lending::buffers::Buffers;
use crate::host::lending::gather::Gather;
use crate::host::lending::queue::{LentOp, Op, SendQueue};
use crate::host::wait::Waiters;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use towpath_io::thread::release_unused;
use towpath_net::engine::MEMORY_PAUSE;
use towpath_net::socket::{Error, Readiness, SendTo, SocketId};
use towpath_net::tcp::Connection;
use towpath_net::time::{Instant, earliest};
use towpath_packet::pool::{LARGE_FRAME_BYTES, SMALL_FRAME_BYTES};
use towpath_packet::{Ledger, Loans, Memory, Piece, Pool, Site};

/// What the worker and the calls of a host share.
pub(super) struct Core {
    pub(super) driver: Arc<Driver<State>>,
    /// What is sent, on its way to the worker.
    outbox: Arc<Outbox>,
    pub(super) clock: Clock,
    pub(super) ledger: Arc<Ledger>,
    pub(super) buffers: Arc<Buffers>,
    pub(super) lent: Arc<Budget>,
    pub(super) lent_by_socket: usize,
}

/// What calls leave to the worker without its lock.
struct Outbox {
    /// Send queues with something new.
    submitted: Mutex<Vec<Arc<SendQueue>>>,
    /// Memory for what is copied to be sent.
    frames: Mutex<Frames>,
}

struct Frames {
    small: Pool,
    large: Pool,
    /// Who found none.
    waiters: Waiters,
}

/// What the lock guards.
pub(super) struct State {
    pub(super) engine: SocketEngine,
    clock: Clock,
    outbox: Arc<Outbox>,
    /// Made with the first loan.
    pub(super) loans: Option<Loans>,
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

impl Core {
    /// A core whose sends are copied into `frames`.
    pub(super) fn new(
        engine: SocketEngine,
        frames: Memory,
        bell: Arc<Bell>,
        (lent_by_socket, lent_by_all): (usize, usize),
    ) -> Self {
        let Memory { small, large, .. } = frames;
        let frames = Mutex::new(Frames { small, large, waiters: Waiters::default() });
        let outbox = Arc::new(Outbox { submitted: Mutex::default(), frames });
        let (clock, ledger) = (Clock::new(), engine.ledger.clone());
        let state = State {
            engine,
            clock,
            outbox: outbox.clone(),
            loans: None,
            table: HashMap::new(),
            terms_at: None,
            starved: Vec::new(),
            retry_at: None,
            crowded: Waiters::default(),
            to_place: Vec::new(),
            wakers: Vec::new(),
        };
        Self {
            driver: Arc::new(Driver::new(state, bell)),
            outbox,
            clock,
            ledger,
            buffers: Arc::default(),
            lent: Arc::new(Budget::new(lent_by_all)),
            lent_by_socket,
        }
    }

    /// Lets `act` use the stack, then sees to what follows.
    pub(super) fn call<R>(&self, act: impl FnOnce(&mut State, Instant) -> R) -> R {
        self.driver.call(act)
    }

    /// Takes the lock, in the order of the asking.
    pub(super) fn lock(&self) -> Guard<'_, State> {
        self.driver.lock()
    }

    /// As [`Core::call`], for an `act` that sends a datagram. Over a link, where that is only to
    /// hand a packet on, it leaves with the call: to wake the worker would cost more, and it would
    /// have the lock when the next call wants it.
    pub(super) fn call_to_send<R>(&self, act: impl FnOnce(&mut State, Instant) -> R) -> R {
        self.call(|state, now| {
            let result = act(state, now);
            send_over_link(&mut state.engine, now);
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
        self.outbox.submitted().push(queue.clone());
        self.driver.bell().ring();
    }

    /// Copies the beginning of `bytes` into a frame, `most` at most. `None` without one: then
    /// `waker` is woken when it is worth trying again.
    pub(super) fn copy_in(
        &self,
        bytes: &mut Gather<'_>,
        most: usize,
        waker: &Waker,
    ) -> Option<Piece> {
        let mut frames = self.outbox.frames();
        let Frames { small, large, waiters } = &mut *frames;
        let (first, second) =
            if most <= SMALL_FRAME_BYTES { (small, large) } else { (large, small) };
        let Some(mut frame) = first.take().or_else(|| second.take()) else {
            waiters.add(waker);
            drop(frames);
            // The worker tells, now and then.
            self.driver.bell().ring();
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
        let mut frames = self.outbox.frames();
        let Frames { small, large, .. } = &mut *frames;
        let taken = if len <= SMALL_FRAME_BYTES { small.take() } else { None };
        let mut frame = taken.or_else(|| large.take())?;
        drop(frames);
        fill(&mut frame[..len])?;
        Some(frame.freeze(len))
    }

    /// Frames for what is copied that are out.
    pub(super) fn frames_out(&self) -> usize {
        let frames = self.outbox.frames();
        frames.small.out_count() + frames.large.out_count()
    }

    /// True if the worker has not looked at something that was sent.
    pub(super) fn has_submitted(&self) -> bool {
        !self.outbox.submitted().is_empty()
    }

    /// Bytes of frames for what is copied.
    pub(super) fn frame_bytes(memory: usize) -> usize {
        (memory / 4).max(2 * (SMALL_FRAME_BYTES + LARGE_FRAME_BYTES))
    }
}

/// Sends what the stack has if that only hands packets on within the process.
fn send_over_link(engine: &mut SocketEngine, now: Instant) {
    if engine.device.file().is_none() {
        // A device that fails is gone; the engine counts what is sent from then on.
        let _ = engine.send(SEND_BURSTS, now, |_| {});
    }
}

impl Outbox {
    fn submitted(&self) -> MutexGuard<'_, Vec<Arc<SendQueue>>> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driven for State {
    fn engine(&self) -> &SocketEngine {
        &self.engine
    }

    fn engine_mut(&mut self) -> &mut SocketEngine {
        &mut self.engine
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn begin(&mut self, now: Instant) {
        let submitted = std::mem::take(&mut *self.outbox.submitted());
        for queue in &submitted {
            self.take_submitted(queue, now);
        }
    }

    fn act(&mut self, now: Instant) {
        self.retry(now);
        self.run_terms(now);
        self.tell_frames(now);
        self.take_up(now);
        self.place(now);
    }

    fn take_up(&mut self, now: Instant) -> bool {
        let mut fed = false;
        while let Some((id, what)) = self.engine.protocols.next_wake() {
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
                while self.engine.protocols.take_notice(id).is_ok() {}
                if self.engine.protocols.has_error(id) {
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

    fn next_deadline(&self) -> Option<Instant> {
        earliest([self.retry_at, self.terms_at])
    }

    fn has_work(&self) -> bool {
        !self.to_place.is_empty() || !self.outbox.submitted().is_empty()
    }

    fn leaves_work(&self) -> bool {
        self.engine.protocols.stack().has_output() || !self.to_place.is_empty()
    }

    fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    fn rest(&mut self) {
        self.engine.rest(release_unused);
        let mut frames = self.outbox.frames();
        frames.small.unused(release_unused);
        frames.large.unused(release_unused);
    }
}

impl State {
    /// Tells those who found no frame that there are some, or looks again soon.
    fn tell_frames(&mut self, now: Instant) {
        let mut frames = self.outbox.frames();
        if frames.waiters.is_empty() {
            return;
        }
        let Frames { small, large, waiters } = &mut *frames;
        if small.free_count() > 0 || large.free_count() > 0 {
            waiters.take_into(&mut self.wakers);
        } else {
            self.retry_at.get_or_insert(now + MEMORY_PAUSE);
        }
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
        let _ = self.engine.protocols.close(id, now);
    }

    /// Packets and frames in use, and loans that are out.
    pub(super) fn in_use(&self) -> (usize, usize) {
        let Memory { packets, small, large } = &self.engine.memory;
        let loans = self.loans.as_ref().map_or(0, Loans::out_count);
        (packets.out_count() + small.out_count() + large.out_count(), loans)
    }

    /// True if there are bytes that no peer has acknowledged, or connections that are closing.
    pub(super) fn is_sending(&self) -> bool {
        let open = self.table.keys().filter(|&&id| self.engine.protocols.tcp(id).is_some()).count();
        let closing = self.engine.protocols.stack().tcp_counts().0 > open;
        let sending = |(&id, entry): (&SocketId, &Entry)| {
            let unacknowledged = |tcp: &Connection| tcp.unacknowledged() > 0;
            !entry.pending.is_empty() || self.engine.protocols.tcp(id).is_some_and(unacknowledged)
        };
        closing || self.table.iter().any(sending)
    }
}
