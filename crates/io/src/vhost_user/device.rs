//! The device: a front end's session, the guest's memory and the rings, as a [`Device`].
//!
//! # Theory of operation
//!
//! All that a device waits for hangs in a reactor of its own: the endpoint, the connection, the
//! kick descriptors of rings that run, and an event that tells that loans ended. That reactor is
//! the device's file. Kick descriptors are events, watched for changes and never read.
//!
//! Requests are carried out one after the other. One that changes what rings rest upon waits until
//! these rings stand still ([`Stop`]); meanwhile no packets move, and no further request is read.
//! Then it takes effect, all rings that are set up start again, and the reply goes out. The end of
//! a connection is such a request too: what was lent is taken back first, and used entries are
//! written, so that the next session of this guest finds its rings in order.
//!
//! A request that cannot be carried out is answered so, if the front end asked for an
//! acknowledgement; otherwise there is no way to tell, and the connection ends. It ends too if a
//! file that the front end shared was [cut](super::cut). [`VhostUser::take_news`] tells all of it.
//!
//! One front end at a time: others are disconnected at once. Without one, packets for the guest are
//! dropped and counted. No call blocks, whatever descriptors the front end sent: connections that
//! it did not close itself are closed on another thread. Packets move without allocation.
//! One thread at a time.
//!
//! Limits: [`REQUESTS_PER_TURN`].

mod error;
mod kicks;

pub use error::VhostUserError;

use super::channel::{Channel, ChannelError, Incoming};
use super::closing::Closing;
use super::control::{Control, ControlError};
use super::event;
use super::message::{Reply, Request};
use super::news::{Board, News, Refusals, SessionEnd};
use super::rings::{Rings, Traffic};
use super::session::{Offer, RingSet, Session};
use super::virtq::{ReceiveQueue, Stop};
use crate::endpoint::{self, Listener, RETRY_INTERVAL};
use crate::reactor::{Events, Interest, Reactor};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;
use towpath_packet::time::{Instant, earliest};
use towpath_packet::{Burst, Caps, Context, Device, Input, Ledger};

/// Requests of one turn: more than a start takes, so that packets get their turn.
pub const REQUESTS_PER_TURN: usize = 64;
/// When to look again for rings that could not be stopped at once.
const STOP_RETRY: Duration = Duration::from_millis(1);

/// Tokens of the reactor; kick descriptors have that of their ring behind them.
const TOKEN_ENDPOINT: u64 = 0;
const TOKEN_CHANNEL: u64 = 1;
const TOKEN_WAKE: u64 = 2;
const TOKEN_KICK: u64 = 3;

/// What happened to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostUserCounters {
    /// Front ends that connected.
    pub sessions: u64,
    /// Front ends disconnected because there was one already.
    pub turned_away: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that were refused, by reason.
    pub refused: Refusals,
    /// Sessions that ended otherwise than by their front end.
    pub sent_away: u64,
    /// Rings that their driver broke.
    pub broken: u64,
    /// Packets dropped because no guest takes any: no front end, no ring that runs and is enabled.
    pub no_guest: u64,
}

/// Where front ends come from.
#[derive(Debug)]
enum Endpoint {
    /// They connect to us.
    Server(Listener),
    /// We connect to them, again from a moment on.
    Client(PathBuf, Instant),
    /// There is one, which was connected before.
    Nowhere,
}

/// What is done when rings stand still.
#[derive(Debug)]
enum Next {
    Request(u32, bool, Request),
    End(SessionEnd),
}

/// A connected front end.
struct Peer {
    channel: Channel,
    session: Session,
    /// Rings still to be stopped, and what then.
    pending: Option<(RingSet, Next)>,
}

/// Wakes the thread that drives the device.
struct WakeEvent(OwnedFd);

impl Wake for WakeEvent {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Full after 2^64 wake-ups that nobody read; the event is there all the same.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// A vhost-user device. See the module text.
pub struct VhostUser {
    offer: Offer,
    endpoint: Endpoint,
    peer: Option<Peer>,
    control: Control,
    rings: Rings,
    /// Kick descriptors that the reactor watches, by ring.
    kicks: Box<[Option<Arc<OwnedFd>>]>,
    reactor: Reactor,
    events: Box<Events>,
    wake: Waker,
    /// When to look again for work that no file announces.
    turn_at: Option<Instant>,
    /// When to accept again, after the system had no room for a connection.
    accept_at: Option<Instant>,
    counters: VhostUserCounters,
    news: Board,
    closing: Closing,
}

impl VhostUser {
    /// A device that front ends connect to at `path`. Copies of payload are counted in `ledger`.
    ///
    /// # Errors
    /// [`VhostUserError`].
    ///
    /// # Panics
    /// If `offer` has no pair of queues, or too many.
    pub fn listen(path: &Path, offer: Offer) -> Result<Self, VhostUserError> {
        let listener = Listener::bind(path)?;
        let mut device = Self::new(Endpoint::Nowhere, offer)?;
        // For changes only: who cannot be accepted now is no news all the time.
        device.reactor.add(&listener, TOKEN_ENDPOINT, Interest::READ, true)?;
        device.endpoint = Endpoint::Server(listener);
        Ok(device)
    }

    /// A device that connects to front ends at `path`, again after each.
    ///
    /// # Errors
    /// [`VhostUserError`]; a front end that is not there yet is none.
    ///
    /// # Panics
    /// As [`VhostUser::listen`].
    pub fn connect(path: &Path, offer: Offer) -> Result<Self, VhostUserError> {
        let mut device = Self::new(Endpoint::Nowhere, offer)?;
        if let Some(socket) = endpoint::connect(path)? {
            device.meet(socket)?;
        }
        device.endpoint = Endpoint::Client(path.to_owned(), Instant::START + RETRY_INTERVAL);
        Ok(device)
    }

    /// A device for the front end at the other end of `socket`, a connected stream socket, and no
    /// other.
    ///
    /// # Errors
    /// [`VhostUserError::Os`].
    ///
    /// # Panics
    /// As [`VhostUser::listen`].
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
        // For changes only, so that nobody needs to read it.
        reactor.add(&event, TOKEN_WAKE, Interest::READ, true)?;
        Ok(Self {
            offer,
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
            news: Board::default(),
            closing: Closing::default(),
        })
    }

    /// From now on the owner polls: what drivers do is told by [`Device::poll`], and by the file
    /// only after [`Device::arm`]. A driver then has no kicks to make while its packets move.
    pub fn set_polled(&mut self) {
        self.rings.set_polled();
    }

    /// From now on, from the next start of a ring, short frames of drivers come
    /// [inline](towpath_packet::Packet::is_inline): for an owner who forwards packets by their
    /// headers and wants no payload of them, as a switch. Up to
    /// [`INLINE_BYTES_MAX`](super::virtq::transmit::INLINE_BYTES_MAX) bytes.
    pub fn set_inline(&mut self) {
        self.rings.set_inline();
    }

    /// True if there is a front end, and its rings need not stand still.
    fn can_move(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.pending.is_none())
    }

    /// True if a front end is connected.
    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    /// True if packets can move: there is a ring that runs.
    pub fn is_running(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.session.running().is_empty())
    }

    /// What happened beside packets, oldest first; told once.
    pub fn take_news(&mut self) -> Option<News> {
        self.news.take()
    }

    /// Counters since the device was made.
    pub fn counters(&self) -> &VhostUserCounters {
        &self.counters
    }

    /// What went through the rings since the device was made.
    pub fn traffic(&self) -> Traffic {
        self.rings.traffic()
    }

    /// Takes a front end on.
    fn meet(&mut self, socket: OwnedFd) -> Result<(), VhostUserError> {
        super::prepare()?;
        self.reactor.add(&socket, TOKEN_CHANNEL, Interest::READ, false)?;
        let (channel, session) = (Channel::new(socket), Session::new(self.offer));
        self.peer = Some(Peer { channel, session, pending: None });
        self.counters.sessions += 1;
        self.news.put(News::Began);
        Ok(())
    }

    /// Takes on who has connected, or sends him away.
    fn accept(&mut self, now: Instant) -> Result<(), VhostUserError> {
        self.accept_at = None;
        loop {
            if self.closing.is_full() {
                self.accept_at = Some(now + RETRY_INTERVAL);
                return Ok(());
            }
            let Endpoint::Server(listener) = &self.endpoint else { return Ok(()) };
            match listener.accept() {
                Ok(Some(socket)) if self.peer.is_some() => {
                    self.counters.turned_away += 1;
                    self.closing.close(vec![socket]);
                }
                Ok(Some(socket)) => self.meet(socket)?,
                Ok(None) => return Ok(()),
                // No descriptors or no memory: it waits, and so do we.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    self.accept_at = Some(now + RETRY_INTERVAL);
                    return Ok(());
                }
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
    }

    /// As a client without a front end: connects when it is time. Returns when that is.
    fn call_again(&mut self, now: Instant) -> Result<Option<Instant>, VhostUserError> {
        let Endpoint::Client(path, at) = &mut self.endpoint else { return Ok(None) };
        if self.peer.is_some() {
            return Ok(None);
        }
        if *at > now {
            return Ok(Some(*at));
        }
        *at = now + RETRY_INTERVAL;
        let at = *at;
        if self.closing.is_full() {
            return Ok(Some(at));
        }
        match endpoint::connect(path)? {
            Some(socket) => self.meet(socket).map(|()| None),
            None => Ok(Some(at)),
        }
    }

    /// Carries out requests, until there are no more or one has to wait.
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

    /// Ends the session if what it rests upon is gone: it is the next thing that is done.
    fn leave_cut(&mut self) {
        if !self.control.is_cut() {
            return;
        }
        if let Some(mut peer) = self.peer.take() {
            peer.pending = Some(self.ending(&peer, SessionEnd::Cut));
            self.peer = Some(peer);
        }
    }

    /// What is to be done about a message.
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

    /// Stops rings; returns those that could not be yet.
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

    /// Carries out a request whose rings stand still, and answers it.
    fn carry_out(
        &mut self,
        peer: &mut Peer,
        (code, need_reply): (u32, bool),
        request: Request,
    ) -> Result<(), SessionEnd> {
        let reads_config = matches!(request, Request::GetConfig(_));
        let answer = self.control.carry_out(&mut peer.session, &mut self.rings, request);
        let started = self.control.start(&mut peer.session, &mut self.rings, &self.wake);
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

    /// Says that a request is not carried out, if the front end wants to know.
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
        self.news.put(News::Refused { code, error });
        Ok(peer.channel.send(code, &Reply::Number(1), None)?)
    }

    /// Forgets a front end whose rings stand still.
    fn part(&mut self, peer: Peer, end: SessionEnd, now: Instant) {
        self.unwatch_kicks();
        self.control = Control::new();
        if end != ChannelError::Closed.into() {
            self.counters.sent_away += 1;
            self.hang_up(peer.channel);
        }
        self.news.put(News::Ended(end));
        if let Endpoint::Client(_, at) = &mut self.endpoint {
            *at = now + RETRY_INTERVAL;
        }
    }

    /// Closes a connection in which descriptors may wait.
    fn hang_up(&self, channel: Channel) {
        // It was added, and is still open.
        let _ = self.reactor.remove(&channel);
        self.closing.close(channel.into_files());
    }

    /// Tells which rings their driver broke, once each.
    fn tell_broken(&mut self) {
        let broken = self.rings.take_broken();
        let Some(peer) = &self.peer else { return };
        for ring in broken.iter() {
            self.counters.broken += 1;
            if let Some(reason) = self.rings.reason(ring) {
                self.news.put(News::Broken { ring, reason });
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

    /// The moment that the last turn has found, or an earlier one at which memory of a guest is to
    /// be taken back. The first turn is due at once.
    fn next_deadline(&self) -> Option<Instant> {
        earliest([self.turn_at, self.rings.next_deadline()])
    }

    /// Meets front ends, carries out their requests and gives back what is over.
    ///
    /// # Errors
    /// [`VhostUserError::Os`]: the device is of no further use. What a front end does is never one.
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
        self.tell_broken();
        let is_stopping = self.peer.as_ref().is_some_and(|peer| peer.pending.is_some());
        let stop = is_stopping.then(|| cx.now + STOP_RETRY);
        self.turn_at = earliest([retry, self.accept_at, stop]);
        Ok(())
    }

    /// True if there is something to do for an owner who polls: to turn if memory is gone, else to
    /// receive, and to transmit what waits.
    fn poll(&mut self) -> bool {
        self.can_move() && (self.rings.has_work() || self.control.is_cut())
    }

    fn arm(&mut self) -> bool {
        self.can_move() && (self.rings.arm() || self.control.is_cut())
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
        self.tell_broken();
        if self.control.is_cut() {
            self.wake.wake_by_ref();
        }
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), VhostUserError> {
        match &self.peer {
            // Only for as long as it takes to stop some rings.
            Some(peer) if peer.pending.is_some() => {}
            Some(peer) => {
                let dropped = self.rings.transmit(&peer.session, burst, cx.ledger, &self.wake);
                self.counters.no_guest += dropped as u64;
                self.tell_broken();
                if self.control.is_cut() {
                    self.wake.wake_by_ref();
                }
            }
            None => {
                self.counters.no_guest += burst.frames() as u64;
                burst.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
