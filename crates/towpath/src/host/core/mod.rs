//! The core of a host: the state of its sockets beside the stack, and the worker's use of it.
//!
//! There are three kinds of work. Calls that need the stack take the lock, act and release it
//! ([`Core::call`]). Sends append to a queue of their socket under another lock, which no worker
//! holds for long ([`Core::send`]). The worker does turns. Only the worker moves packets, except
//! for datagrams that leave over a link ([`Core::call_to_send`]).
//!
//! A waiting call leaves its waker under the lock. The worker produces events only under the lock
//! and then takes the waker, so no wake-up is lost. Wakers are woken without a lock.

pub(in crate::host) mod datagrams;
pub(in crate::host) mod posted_buffers;
pub(in crate::host) mod send_queue;
pub(in crate::host) mod terms;

use crate::driver::{Bell, Clock, Driven, Driver, Guard, SEND_BURSTS, SocketEngine};
use crate::host::core::posted_buffers::PostedBuffers;
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

/// State that the worker and the calls of a host share.
pub(super) struct Core {
    pub(super) driver: Arc<Driver<State>>,
    /// Sends on their way to the worker.
    outbox: Arc<Outbox>,
    pub(super) clock: Clock,
    pub(super) ledger: Arc<Ledger>,
    pub(super) buffers: Arc<Buffers>,
    pub(super) lent: Arc<Budget>,
    pub(super) lent_by_socket: usize,
}

/// Work that calls leave to the worker without its lock.
struct Outbox {
    /// Send queues with new entries.
    submitted: Mutex<Vec<Arc<SendQueue>>>,
    /// Memory for data that is copied to be sent.
    frames: Mutex<Frames>,
}

struct Frames {
    small: Pool,
    large: Pool,
    /// Wakers of calls that found no frame.
    waiters: Waiters,
}

/// The state under the lock.
pub(super) struct State {
    pub(super) engine: SocketEngine,
    clock: Clock,
    outbox: Arc<Outbox>,
    /// Created with the first loan.
    pub(super) loans: Option<Loans>,
    pub(super) table: HashMap<SocketId, Entry>,
    /// Not later than the first term of the entries in send queues.
    pub(super) terms_at: Option<Instant>,
    /// Sockets that wait for a free loan or for memory.
    pub(super) starved: Vec<SocketId>,
    pub(super) retry_at: Option<Instant>,
    /// Receives that wait because readers hold too many bytes.
    pub(super) crowded: Waiters,
    /// Sockets that may have bytes for posted buffers; the worker places them.
    pub(super) to_place: Vec<SocketId>,
    /// Wakers to wake after the lock is released.
    pub(super) wakers: Vec<Waker>,
}

/// State of a socket beside the stack.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) queue: Option<Arc<SendQueue>>,
    /// Taken from the queue, and not yet accepted by the stack.
    pub(super) pending: VecDeque<Op>,
    /// Room of a datagram queue to give back.
    pub(super) freed: usize,
    /// Error of queued datagrams, for the next call.
    pub(super) late: Option<Error>,
    pub(super) readers: Waiters,
    pub(super) writers: Waiters,
    pub(super) posted: PostedBuffers,
}

impl Core {
    /// Creates a core whose sends are copied into `frames`.
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

    /// Calls `act` with the stack, then does the follow-up work.
    pub(super) fn call<R>(&self, act: impl FnOnce(&mut State, Instant) -> R) -> R {
        self.driver.call(act)
    }

    /// Takes the lock, in the order in which threads ask for it.
    pub(super) fn lock(&self) -> Guard<'_, State> {
        self.driver.lock()
    }

    /// Calls `act`, which sends a datagram, like [`Core::call`]. Over a link, where sending only
    /// hands a packet on, the packet leaves with the call: waking the worker would cost more, and
    /// the worker would hold the lock when the next call needs it.
    pub(super) fn call_to_send<R>(&self, act: impl FnOnce(&mut State, Instant) -> R) -> R {
        self.call(|state, now| {
            let result = act(state, now);
            send_over_link(&mut state.engine, now);
            result
        })
    }

    /// Appends an entry to a send queue.
    pub(super) fn send(&self, queue: &Arc<SendQueue>, op: Op) -> Result<(), Op> {
        if queue.push(op)? {
            self.submit(queue);
        }
        Ok(())
    }

    /// Appends entries that lend to a send queue, with nothing in between.
    pub(super) fn send_all(&self, queue: &Arc<SendQueue>, ops: Vec<Op>) -> Result<(), Vec<Op>> {
        if queue.push_all(ops)? {
            self.submit(queue);
        }
        Ok(())
    }

    /// Appends datagrams to a send queue.
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

    /// Notifies the worker of a send queue.
    fn submit(&self, queue: &Arc<SendQueue>) {
        self.outbox.submitted().push(queue.clone());
        self.driver.bell().ring();
    }

    /// Copies the start of `bytes` into a frame, at most `most` bytes. Returns `None` if no frame
    /// is free: then `waker` is woken when the call should be repeated.
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
            // The worker looks for free frames from time to time and wakes the waiters.
            self.driver.bell().ring();
            return None;
        };
        drop(frames);
        let room = most.min(frame.len());
        let count = bytes.copy_to(&mut frame[..room]);
        self.ledger.count(Site::SocketSend, count);
        Some(frame.freeze(count))
    }

    /// Returns a frame of `len` bytes, which `fill` fills. Returns `None` if no frame is free or if
    /// `fill` returns `None`.
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

    /// Returns the number of frames for copied data that are in use.
    pub(super) fn frames_out(&self) -> usize {
        let frames = self.outbox.frames();
        frames.small.out_count() + frames.large.out_count()
    }

    /// Returns true if there are sends that the worker has not looked at.
    pub(super) fn has_submitted(&self) -> bool {
        !self.outbox.submitted().is_empty()
    }

    /// Returns the bytes of frames for copied data.
    pub(super) fn frame_bytes(memory: usize) -> usize {
        (memory / 4).max(2 * (SMALL_FRAME_BYTES + LARGE_FRAME_BYTES))
    }
}

/// Sends the stack's output, if that only hands packets on within the process.
fn send_over_link(engine: &mut SocketEngine, now: Instant) {
    if engine.device.file().is_none() {
        // A device that fails is gone; the engine counts packets sent from then on as dropped.
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
        self.report_frames(now);
        self.take_up(now);
        self.place(now);
    }

    fn take_up(&mut self, now: Instant) -> bool {
        let mut drained = false;
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
                // Each send learns of the end of its loans through its ticket.
                while self.engine.protocols.take_notice(id).is_ok() {}
                if self.engine.protocols.has_error(id) {
                    // The error is for the next call.
                    entry.queue.iter().for_each(|queue| queue.shut());
                }
            }
            if waits && (over || what.contains(Readiness::OUT)) {
                drained |= self.drain(id, now);
            }
        }
        drained
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
    /// Wakes the waiters for frames if there are some, or looks again soon.
    fn report_frames(&mut self, now: Instant) {
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

    /// Adds the state of a new socket.
    pub(super) fn add(&mut self, id: SocketId, queue: Option<Arc<SendQueue>>) {
        self.table.insert(id, Entry { queue, ..Entry::default() });
    }

    /// Returns the state of a socket; a new one if there is none.
    pub(super) fn entry(&mut self, id: SocketId) -> &mut Entry {
        self.table.entry(id).or_default()
    }

    /// Closes a socket whose send queue is empty, or that has none.
    pub(super) fn close(&mut self, id: SocketId, now: Instant) {
        self.table.remove(&id);
        // The socket exists, because its owner is being dropped.
        let _ = self.engine.protocols.close(id, now);
    }

    /// Returns the packets and frames in use, and the loans that are out.
    pub(super) fn in_use(&self) -> (usize, usize) {
        let Memory { packets, small, large } = &self.engine.memory;
        let loans = self.loans.as_ref().map_or(0, Loans::out_count);
        (packets.out_count() + small.out_count() + large.out_count(), loans)
    }

    /// Returns true if there are unacknowledged bytes or closing connections.
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
