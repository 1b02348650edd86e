//! The device: a front end's session, the guest's memory and its rings, as a [`Device`].
//!
//! # Theory of operation
//!
//! Everything that a device waits for is in a reactor of its own: the endpoint, the connection, the
//! kick descriptors of running rings, and an event for loans that end. That reactor is the device's
//! file. Kick descriptors are eventfds, watched edge-triggered and never read.
//!
//! Requests are carried out one after the other. A request that changes what rings depend on waits
//! until these rings have stopped ([`Stop`]); meanwhile no packets move, and no further request is
//! read. Then it takes effect, all rings that are set up start again, and the reply is sent. The
//! end of a connection is handled as such a request: loans are recalled first and used entries are
//! written, so that the next session of this guest finds its rings in order.
//!
//! If a request cannot be carried out, the reply says so, if the front end requested an
//! acknowledgement. Otherwise there is no way to report it, and the connection ends. The connection
//! also ends if a file that the front end shared was [truncated](super::sigbus).
//! [`VhostUser::take_event`] reports all of this.
//!
//! One front end at a time: others are disconnected at once. Without one, packets for the guest are
//! dropped and counted. No call blocks, whatever descriptors the front end sent: another thread
//! closes connections that the front end did not close itself. Moving packets does not allocate.
//! One thread at a time.
//!
//! Limit: [`REQUESTS_PER_TURN`].

mod connecting;
mod error;
mod kicks;
mod link;

pub use error::VhostUserError;

use super::channel::{Channel, ChannelError, Incoming};
use super::closing::Closing;
use super::control::{Control, ControlError};
use super::event;
use super::events::{DeviceEvent, EventLog, Refusals, SessionEnd};
use super::message::{Reply, Request};
use super::rings::{PairSet, Rings, Traffic};
use super::session::{Offer, RingSet, Session};
use super::virtq::{ReceiveQueue, Stop};
use crate::endpoint::{self, Listener, RETRY_INTERVAL};
use crate::reactor::{Events, Interest, Reactor};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;
use towpath_packet::time::{Instant, earliest};
use towpath_packet::{Burst, Caps, Context, Device, Input, Ledger};

/// Most requests of one turn: more than a start takes, and few enough to let packets move.
pub const REQUESTS_PER_TURN: usize = 64;
/// Interval for trying again to stop rings that could not be stopped at once.
const STOP_RETRY: Duration = Duration::from_millis(1);

/// Tokens of the reactor. The token of a kick descriptor is `TOKEN_KICK` plus its ring.
const TOKEN_ENDPOINT: u64 = 0;
const TOKEN_CHANNEL: u64 = 1;
const TOKEN_WAKE: u64 = 2;
const TOKEN_KICK: u64 = 3;

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostUserCounters {
    /// Front ends that connected.
    pub sessions: u64,
    /// Front ends disconnected because another was connected already.
    pub turned_away: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that were refused, by reason.
    pub refused: Refusals,
    /// Sessions that the device ended.
    pub sent_away: u64,
    /// Sessions among these that ended because the link was set down.
    pub link_down: u64,
    /// Rings that their driver broke.
    pub broken: u64,
    /// Packets dropped because no guest takes them: no front end, or no running and enabled ring.
    pub no_guest: u64,
}

/// How the device and front ends connect.
#[derive(Debug)]
enum Endpoint {
    /// Front ends connect to the device at this path; without a socket while the link is down.
    Server(Option<Listener>, PathBuf),
    /// The device connects to them, from this time on.
    Client(PathBuf, Instant),
    /// The device has the one connection that it was created with.
    Nowhere,
}

/// What to do when rings have stopped.
#[derive(Debug)]
enum Next {
    Request(u32, bool, Request),
    End(SessionEnd),
}

/// A connected front end.
struct Peer {
    channel: Channel,
    session: Session,
    /// Rings that are still to be stopped, and what to do then.
    pending: Option<(RingSet, Next)>,
}

/// Wakes up the thread that drives the device.
struct WakeEvent(OwnedFd);

impl Wake for WakeEvent {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Fails only if the counter is at its maximum; the event is readable then anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// A vhost-user device; see the module documentation.
pub struct VhostUser {
    offer: Offer,
    is_up: bool,
    endpoint: Endpoint,
    peer: Option<Peer>,
    control: Control,
    rings: Rings,
    /// Kick descriptors that the reactor watches, by ring.
    kicks: Box<[Option<Arc<OwnedFd>>]>,
    reactor: Reactor,
    events: Box<Events>,
    wake: Waker,
    /// Next time to check for work that no file reports.
    turn_at: Option<Instant>,
    /// Time to accept again, after the system had no resources for a connection.
    accept_at: Option<Instant>,
    counters: VhostUserCounters,
    event_log: EventLog,
    closing: Closing,
}

impl VhostUser {
    /// Creates a device to which front ends connect at `path`.
    ///
    /// # Errors
    /// [`VhostUserError`].
    ///
    /// # Panics
    /// If `offer` has no pair of queues, or too many.
    pub fn listen(path: &Path, offer: Offer) -> Result<Self, VhostUserError> {
        let mut device = Self::new(Endpoint::Server(None, path.to_owned()), offer)?;
        device.open_socket()?;
        Ok(device)
    }

    /// Creates a device that connects to front ends at `path`, and connects again after each.
    ///
    /// # Errors
    /// [`VhostUserError`]. It is no error if no front end listens yet.
    ///
    /// # Panics
    /// If `offer` has no pair of queues, or too many.
    pub fn connect(path: &Path, offer: Offer) -> Result<Self, VhostUserError> {
        let mut device = Self::new(Endpoint::Nowhere, offer)?;
        if let Some(socket) = endpoint::connect(path)? {
            device.meet(socket)?;
        }
        device.endpoint = Endpoint::Client(path.to_owned(), Instant::START + RETRY_INTERVAL);
        Ok(device)
    }

    /// Creates a device for one front end, at the other end of `socket`, which must be a connected
    /// stream socket.
    ///
    /// # Errors
    /// [`VhostUserError::Os`].
    ///
    /// # Panics
    /// If `offer` has no pair of queues, or too many.
    pub fn from_socket(socket: OwnedFd, offer: Offer) -> Result<Self, VhostUserError> {
        let mut device = Self::new(Endpoint::Nowhere, offer)?;
        device.meet(socket)?;
        Ok(device)
    }

    fn new(endpoint: Endpoint, offer: Offer) -> Result<Self, VhostUserError> {
        let ring_count = Session::new(offer).ring_count();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags).map_err(io::Error::from)?;
        let reactor = Reactor::new()?;
        // Edge-triggered, so that the event need not be read.
        reactor.add(&event, TOKEN_WAKE, Interest::READ, true)?;
        Ok(Self {
            offer,
            is_up: true,
            endpoint,
            peer: None,
            control: Control::new(),
            rings: Rings::new(offer.pairs),
            kicks: (0..ring_count).map(|_| None).collect(),
            reactor,
            events: Box::default(),
            wake: Waker::from(Arc::new(WakeEvent(event))),
            turn_at: Some(Instant::START),
            accept_at: None,
            counters: VhostUserCounters::default(),
            event_log: EventLog::default(),
            closing: Closing::default(),
        })
    }

    /// The owner polls from now on: [`Device::poll`] reports what drivers do, and the file does so
    /// only after [`Device::arm`]. Drivers then need no kicks while their packets move.
    pub fn set_polled(&mut self) {
        self.rings.set_polled();
    }

    /// Makes short frames of drivers [inline](towpath_packet::Packet::is_inline), on rings that
    /// start from now on. For an owner, such as a switch, that forwards packets by their headers
    /// and needs no payload of them. Applies to frames of up to
    /// [`INLINE_BYTES_MAX`](super::virtq::transmit::INLINE_BYTES_MAX) bytes.
    pub fn set_inline(&mut self) {
        self.rings.set_inline();
    }

    /// True if a front end is connected and no rings are being stopped.
    fn can_move(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.pending.is_none())
    }

    /// True if a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    /// True if packets can move: at least one ring runs.
    pub fn is_running(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.session.running().is_empty())
    }

    /// Returns the oldest unread event.
    pub fn take_event(&mut self) -> Option<DeviceEvent> {
        self.event_log.take()
    }

    /// Counters since the device was created.
    pub fn counters(&self) -> &VhostUserCounters {
        &self.counters
    }

    /// Pairs of queues by which the guest receives now. Empty without a guest.
    pub fn open_pairs(&self) -> PairSet {
        let peer = self.peer.as_ref();
        peer.map(|peer| self.rings.open(&peer.session)).unwrap_or_default()
    }

    /// Transmits as [`Device::transmit`] does, by the receive queue of a pair; `None`: by those of
    /// the packets' flows. If the queue is not open, the packets are dropped and counted.
    ///
    /// # Panics
    /// If there is no such pair.
    pub fn transmit_by(&mut self, pair: Option<u16>, burst: &mut Burst, cx: &mut Context<'_>) {
        match &self.peer {
            // Only for as long as it takes to stop some rings.
            Some(peer) if peer.pending.is_some() => {}
            Some(peer) => {
                let session = &peer.session;
                let dropped = match pair {
                    Some(pair) => self.rings.transmit(pair, session, burst, cx, &self.wake),
                    None => self.rings.distribute(session, burst, cx, &self.wake),
                };
                self.counters.no_guest += dropped as u64;
                self.report_broken();
                if self.control.is_lost() {
                    self.wake.wake_by_ref();
                }
            }
            None => {
                self.counters.no_guest += burst.frames() as u64;
                burst.clear();
            }
        }
    }

    /// Traffic through the rings since the device was created.
    pub fn traffic(&self) -> Traffic {
        self.rings.traffic()
    }

    /// Carries out requests until there are no more or one has to wait.
    fn serve(&mut self, is_readable: bool, cx: &Context<'_>) {
        let Some(mut peer) = self.peer.take() else { return };
        for _ in 0..REQUESTS_PER_TURN {
            match peer.pending.take() {
                Some((stops, next)) => {
                    let left = self.stop(stops, &mut peer.session, cx.ledger);
                    if !left.is_empty() {
                        peer.pending = Some((left, next));
                        break;
                    }
                    match next {
                        Next::End(end) => return self.part(peer, end, cx.now),
                        Next::Request(code, need_reply, request) => {
                            let done = self.carry_out(&mut peer, (code, need_reply), request);
                            peer.pending = done.err().map(|end| self.ending(&peer, end));
                        }
                    }
                }
                None if is_readable => match peer.channel.receive() {
                    Ok(Some(incoming)) => peer.pending = self.begin(&peer, incoming),
                    Ok(None) => break,
                    Err(error) => peer.pending = Some(self.ending(&peer, error.into())),
                },
                None => break,
            }
        }
        self.peer = Some(peer);
    }

    /// Ends the session if a shared file was truncated; nothing else is done before.
    fn leave_cut(&mut self) {
        if !self.control.is_lost() {
            return;
        }
        if let Some(mut peer) = self.peer.take() {
            peer.pending = Some(self.ending(&peer, SessionEnd::MemoryLost));
            self.peer = Some(peer);
        }
    }

    /// Returns what to do about a message.
    fn begin(&mut self, peer: &Peer, incoming: Incoming) -> Option<(RingSet, Next)> {
        self.counters.requests += 1;
        let Incoming { code, need_reply, request } = incoming;
        match request {
            Ok(request) => {
                let stops = peer.session.stops(&request);
                Some((stops, Next::Request(code, need_reply, request)))
            }
            Err(error) => {
                let refused = self.refuse(peer, (code, need_reply), error.into());
                refused.err().map(|end| self.ending(peer, end))
            }
        }
    }

    fn ending(&self, peer: &Peer, end: SessionEnd) -> (RingSet, Next) {
        (peer.session.running(), Next::End(end))
    }

    /// Stops rings; returns those that could not be stopped yet.
    fn stop(&mut self, stops: RingSet, session: &mut Session, ledger: &Ledger) -> RingSet {
        let mut left = stops;
        for ring in stops.iter() {
            if let Stop::Done(base) = self.rings.stop(ring, ledger) {
                session.stopped(ring, base);
                left.remove(ring);
            }
        }
        left
    }

    /// Carries out a request whose rings have stopped, and sends the reply.
    fn carry_out(
        &mut self,
        peer: &mut Peer,
        (code, need_reply): (u32, bool),
        request: Request,
    ) -> Result<(), SessionEnd> {
        let reads_config = matches!(request, Request::GetConfig(_));
        let answer = self.control.carry_out(&mut peer.session, &mut self.rings, request);
        let started = self.control.start(&mut peer.session, &mut self.rings, &self.wake);
        self.rings.forget_short();
        let watched = self.watch_kicks(&peer.session);
        let (reply, descriptor) = match started.and(watched).and(answer) {
            Ok(answer) => answer,
            Err(_) if reads_config => (Some(Reply::Nothing), None),
            Err(error) => return self.refuse(peer, (code, need_reply), error),
        };
        let acknowledges = need_reply && peer.session.acknowledges();
        if let Some(reply) = reply.or(acknowledges.then_some(Reply::Number(0))) {
            peer.channel.send(code, &reply, descriptor.as_ref().map(AsFd::as_fd))?;
        }
        Ok(())
    }

    /// Reports that a request was refused, if the front end requested an acknowledgement.
    fn refuse(
        &mut self,
        peer: &Peer,
        (code, need_reply): (u32, bool),
        error: ControlError,
    ) -> Result<(), SessionEnd> {
        self.counters.refused.count(&error);
        if !(need_reply && peer.session.acknowledges()) {
            return Err(SessionEnd::Refused { code, error });
        }
        self.event_log.put(DeviceEvent::Refused { code, error });
        Ok(peer.channel.send(code, &Reply::Number(1), None)?)
    }

    /// Ends the session of a front end whose rings have stopped.
    fn part(&mut self, peer: Peer, end: SessionEnd, now: Instant) {
        self.unwatch_kicks();
        self.control = Control::new();
        let is_ours = end != ChannelError::Closed.into();
        self.counters.sent_away += u64::from(is_ours);
        self.counters.link_down += u64::from(end == SessionEnd::LinkDown);
        if is_ours || peer.channel.has_back() {
            self.hang_up(peer.channel);
        }
        self.event_log.put(DeviceEvent::Ended(end));
        if let Endpoint::Client(_, at) = &mut self.endpoint {
            *at = now + RETRY_INTERVAL;
        }
    }

    /// Closes a connection in which descriptors may be queued.
    fn hang_up(&self, channel: Channel) {
        // Cannot fail: the socket was added and is still open.
        let _ = self.reactor.remove(&channel);
        self.closing.close(channel.into_files());
    }

    /// Reports rings that their driver broke, once each.
    fn report_broken(&mut self) {
        let broken = self.rings.take_broken();
        let Some(peer) = &self.peer else { return };
        for ring in broken.iter() {
            self.counters.broken += 1;
            if let Some(reason) = self.rings.reason(ring) {
                self.event_log.put(DeviceEvent::Broken { ring, reason });
            }
            if let Some(error) = peer.session.error(ring) {
                event::signal(error);
            }
        }
    }
}

impl Drop for VhostUser {
    fn drop(&mut self) {
        if let Some(peer) = self.peer.take() {
            self.hang_up(peer.channel);
        }
    }
}

impl AsFd for VhostUser {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reactor.as_fd()
    }
}

impl Device for VhostUser {
    type Error = VhostUserError;

    fn caps(&self) -> Caps {
        match &self.peer {
            Some(peer) => ReceiveQueue::caps(peer.session.features(), peer.session.mtu()),
            None => Caps::plain(self.offer.mtu),
        }
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reactor.as_fd())
    }

    /// The time that the last turn determined, or an earlier deadline for recalling guest memory.
    /// The first turn is due at once.
    fn next_deadline(&self) -> Option<Instant> {
        earliest([self.turn_at, self.rings.next_deadline()])
    }

    /// Accepts front ends, carries out their requests, and returns buffers whose loans are over.
    ///
    /// # Errors
    /// [`VhostUserError::Os`]; the device cannot be used any more. Nothing that a front end does is
    /// an error.
    fn turn(&mut self, _: bool, cx: &mut Context<'_>) -> Result<(), VhostUserError> {
        let mut events = std::mem::take(&mut self.events);
        let waited = self.reactor.wait(Some(Duration::ZERO), &mut events);
        let has = |token| events.iter().any(|event| event.token == token);
        let (is_readable, has_newcomer) = (has(TOKEN_CHANNEL), has(TOKEN_ENDPOINT));
        self.events = events;
        waited?;
        self.leave_cut();
        self.serve(is_readable, cx);
        if has_newcomer || self.accept_at.is_some_and(|at| at <= cx.now) {
            self.accept(cx.now)?;
        }
        let retry = self.call_again(cx.now)?;
        self.rings.turn(cx.now, cx.ledger);
        self.report_broken();
        let is_stopping = self.peer.as_ref().is_some_and(|peer| peer.pending.is_some());
        let stop = is_stopping.then(|| cx.now + STOP_RETRY);
        self.turn_at = earliest([retry, self.accept_at, stop]);
        Ok(())
    }

    /// For an owner that polls: true if it should call `receive`, and `transmit` for packets that
    /// wait, or `turn` if a shared file was truncated.
    fn poll(&mut self) -> bool {
        self.can_move() && (self.rings.has_work() || self.control.is_lost())
    }

    fn arm(&mut self) -> bool {
        self.can_move() && (self.rings.arm() || self.control.is_lost())
    }

    fn receive(
        &mut self,
        burst: &mut Burst,
        cx: &mut Context<'_>,
    ) -> Result<Input, VhostUserError> {
        let Some(peer) = self.peer.as_ref().filter(|peer| peer.pending.is_none()) else {
            return Ok(Input::Done);
        };
        self.control.announce(cx.memory, burst);
        let paused = self.rings.paused();
        self.rings.receive(&peer.session, burst, cx, &self.wake);
        let input = if self.rings.paused() > paused { Input::NoMemory } else { Input::Done };
        self.report_broken();
        if self.control.is_lost() {
            self.wake.wake_by_ref();
        }
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), VhostUserError> {
        self.transmit_by(None, burst, cx);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
