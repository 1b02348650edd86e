//! A session with one neighbour over one connection (RFC 4271 §8).
//!
//! # Theory of operation
//!
//! In `Idle` the session waits for the time of the next attempt; in `Connect` its owner opens a TCP
//! connection, and in `Active` it only waits for one of the neighbour. The owner then hands in what
//! it reads, sends [`Session::output`], and says when the connection has ended. When the state is
//! `Idle` again, the owner sends the rest of the output, which holds the reason, and closes the
//! connection. A connection that the neighbour has opened gets a session of its own
//! ([`Session::accepted`]). If there are two, their owner decides which one stays.
//!
//! Everything that the neighbour does is an [`Event`]. A message that does not fit the state, or is
//! invalid beyond its routes, ends the session with a NOTIFICATION.
//!
//! Input is bounded by one message, output by what the owner of the session adds: it must look at
//! [`Session::is_output_full`] first. A neighbour that takes nothing for twice the hold time is
//! given up (RFC 9687). One thread calls.

mod state;

use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv4Addr;

use towpath_net::time::{Duration, Instant, earliest};

use crate::message::{self, MESSAGE_BYTES_MAX, Message, Notification, Open, Restart, Update};

pub use state::{Counters, Link, State};

/// Routes are written only while there is less output than this: as much as the send buffer of a
/// socket takes at once.
pub const OUTPUT_BYTES: usize = 64 << 10;
/// Hold time unless configured: three messages of RFC 4271 §10 at an interval of 3 seconds, which
/// networks of data centres use.
pub const HOLD_SECONDS: u16 = 9;
/// Least hold time except zero (RFC 4271 §4.2).
pub const HOLD_SECONDS_MIN: u16 = 3;
/// Pause between attempts to connect. RFC 4271 §10 suggests 120 seconds; within a data centre a
/// refused connection costs little.
pub const RETRY: Duration = Duration::from_secs(5);
/// How long an attempt to connect may take.
pub const CONNECT: Duration = Duration::from_secs(10);
/// How long a neighbour may take for its OPEN message (RFC 4271 §8.2.2).
pub const OPEN: Duration = Duration::from_secs(240);

/// Error code of a session that ends without an error (RFC 4271 §6.7).
const CEASE: u8 = 6;

/// What a session needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of the autonomous system, which is the neighbour's, too.
    pub as_number: u32,
    /// BGP identifier of this host.
    pub router_id: Ipv4Addr,
    /// Longest silence to accept, in seconds: zero, or at least [`HOLD_SECONDS_MIN`].
    pub hold_seconds: u16,
    /// Neighbours connect, and this host never does.
    pub is_passive: bool,
}

impl Settings {
    fn open(&self, restart: Restart) -> Open {
        Open {
            as_number: self.as_number,
            hold_seconds: self.hold_seconds,
            router_id: self.router_id,
            speaks_evpn: true,
            has_wide_as: true,
            refreshes: true,
            restart: Some(restart),
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Routes are exchanged from now on.
    Established,
    /// Routes of the neighbour.
    Update(Update),
    /// The neighbour asks for all routes again.
    Refresh,
    /// An established session has ended. If the neighbour restarts gracefully, its routes stay for
    /// so long.
    Down(Option<Duration>),
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The connection could not be opened, or has ended.
    Closed,
    /// The neighbour was silent for the hold time, or took no data.
    Silent,
    /// This host gave up because of what the neighbour sent.
    Sent(Notification),
    /// The neighbour ended the session.
    Received(Notification),
    /// The neighbour has connected again.
    Replaced,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("connection closed"),
            Self::Silent => f.write_str("hold time expired"),
            Self::Sent(notification) => write!(f, "sent {notification}"),
            Self::Received(notification) => write!(f, "received {notification}"),
            Self::Replaced => f.write_str("the neighbour has connected again"),
        }
    }
}

/// A session with one neighbour.
#[derive(Debug)]
pub struct Session {
    settings: Settings,
    link: Link,
    state: State,
    /// When the state changed last.
    since: Instant,
    /// The neighbour as its OPEN message describes it.
    peer: Option<Open>,
    /// Why the last session ended.
    reason: Option<Reason>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Next attempt to connect, or the end of one.
    retry_at: Option<Instant>,
    hold_at: Option<Instant>,
    keepalive_at: Option<Instant>,
    /// When a neighbour that takes no output is given up.
    send_at: Option<Instant>,
    attempts: u32,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Session {
    /// A session that connects at once.
    pub fn new(settings: Settings, now: Instant) -> Self {
        Self {
            settings,
            link: Link::Opened,
            state: State::Idle,
            since: now,
            peer: None,
            reason: None,
            input: Vec::new(),
            output: Vec::new(),
            retry_at: Some(now),
            hold_at: None,
            keepalive_at: None,
            send_at: None,
            attempts: 0,
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// A session over a connection that the neighbour has opened, which is `link`.
    pub fn accepted(settings: Settings, link: Link, now: Instant) -> Self {
        debug_assert!(link.is_accepted());
        let mut session = Self { link, ..Self::new(settings, now) };
        session.open(now);
        session
    }

    /// The connection that the state `Connect` asked for is open.
    pub fn connected(&mut self, now: Instant) {
        if self.state == State::Connect {
            self.open(now);
        }
    }

    fn open(&mut self, now: Instant) {
        self.input.clear();
        self.output.clear();
        self.retry_at = None;
        self.hold_at = Some(now + OPEN);
        self.become_state(State::OpenSent, now);
        // This host keeps routes of a neighbour that restarts. Its own stations are gone with it,
        // so it asks for nothing in return: no address family, no time (RFC 4724 §3).
        let open = self.settings.open(Restart { seconds: 0, covers_notifications: true });
        self.send(now, |out| message::open(&open, out));
    }

    /// Introduces itself as a reflector does, which asks its neighbours to keep its routes.
    #[cfg(test)]
    pub(crate) fn introduce_as_reflector(&mut self) {
        self.output.clear();
        let restart = Restart { seconds: 120, covers_notifications: true };
        message::open(&self.settings.open(restart), &mut self.output);
    }

    /// The connection has failed or ended.
    pub fn closed(&mut self, now: Instant) {
        if self.state != State::Idle {
            self.end(Reason::Closed, now);
        }
    }

    /// Takes bytes that the neighbour sent.
    pub fn receive(&mut self, mut bytes: &[u8], now: Instant) {
        while self.is_connected() && !bytes.is_empty() {
            // Whole messages are parsed where they are; the rest of one waits in `input`.
            let taken = if self.input.is_empty() {
                match self.message(bytes, now) {
                    Some(len) => len,
                    None => {
                        self.input.extend_from_slice(bytes);
                        bytes.len()
                    }
                }
            } else {
                let room = MESSAGE_BYTES_MAX - self.input.len();
                let added = room.min(bytes.len());
                let before = self.input.len();
                self.input.extend_from_slice(&bytes[..added]);
                let input = std::mem::take(&mut self.input);
                match self.message(&input, now) {
                    // What follows the message is read again from `bytes`.
                    Some(len) => len - before,
                    None => {
                        self.input = input;
                        added
                    }
                }
            };
            bytes = &bytes[taken..];
        }
    }

    /// Ends the session, as its owner does not want it any more.
    pub fn shut_down(&mut self, now: Instant) {
        if self.is_connected() {
            // Administrative shutdown (RFC 4486). The stations here are gone, so they must not be
            // kept: a hard reset (RFC 8538 §3).
            let subcode = if self.keeps_after_notification() { 9 } else { 2 };
            self.fail(Notification::new(CEASE, subcode), now);
        }
        self.retry_at = None;
    }

    /// Ends the session, as another one with the neighbour stays (RFC 4271 §6.8).
    pub(crate) fn yield_to_other(&mut self, now: Instant) {
        // Connection collision resolution (RFC 4486 §4).
        self.fail(Notification::new(CEASE, 7), now);
    }

    /// Ends the session, as its neighbour has introduced itself on another connection that it has
    /// opened: it has forgotten this one, so it gets no NOTIFICATION (RFC 4724 §4.2 and §5).
    pub(crate) fn give_way(&mut self, now: Instant) {
        self.end(Reason::Replaced, now);
        self.output.clear();
    }

    /// Forgets what this session would do next and what happened, as another one has its place.
    /// What output is left says why it has ended.
    pub(crate) fn retire(&mut self) {
        self.retry_at = None;
        self.events.clear();
    }

    /// Lets the neighbour open another connection in the place of one that has ended.
    pub(crate) fn let_go(&mut self) {
        debug_assert!(!self.is_connected());
        self.link = Link::Opened;
    }

    /// Goes on with the count of `other`, whose place it takes, and with why that has ended.
    pub(crate) fn succeed(&mut self, other: &mut Self) {
        self.counters.add(&std::mem::take(&mut other.counters));
        self.reason.clone_from(&other.reason);
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.retry_at) {
            match self.state {
                State::Idle => {
                    self.attempts = self.attempts.wrapping_add(1);
                    self.link = Link::Opened;
                    let is_passive = self.settings.is_passive;
                    let next = if is_passive { State::Active } else { State::Connect };
                    self.become_state(next, now);
                    self.retry_at = (!is_passive).then(|| now + CONNECT);
                }
                _ => self.end(Reason::Closed, now),
            }
        }
        if is_due(self.hold_at) || is_due(self.send_at) {
            // RFC 4271 §6.5.
            self.send(now, |out| message::notification(&Notification::new(4, 0), out));
            self.end(Reason::Silent, now);
        }
        if is_due(self.keepalive_at) {
            // Output that waits says the same once the neighbour takes it.
            if self.output.is_empty() {
                self.send(now, message::keepalive);
            }
            self.keepalive_at = self.keepalive_interval().map(|interval| now + interval);
        }
    }

    /// Writes an UPDATE message.
    pub(crate) fn send_update(&mut self, now: Instant, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert_eq!(self.state, State::Established);
        self.counters.updates_sent += 1;
        self.send(now, write);
    }

    /// Asks for all routes of the neighbour again; false if it cannot.
    pub(crate) fn request_refresh(&mut self, now: Instant) -> bool {
        let can = self.state == State::Established && self.peer.is_some_and(|peer| peer.refreshes);
        if can {
            self.send(now, message::refresh);
        }
        can
    }

    /// Bytes for the neighbour.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// The first `len` bytes of the output were sent.
    pub fn sent(&mut self, len: usize, now: Instant) {
        self.output.drain(..len);
        let patience = if self.output.is_empty() { None } else { self.send_patience() };
        self.send_at = patience.map(|patience| now + patience);
    }

    /// True if no more routes should be written for now.
    pub fn is_output_full(&self) -> bool {
        self.output.len() >= OUTPUT_BYTES
    }

    /// What happened, oldest first.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`tick`](Self::tick) has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        earliest([self.retry_at, self.hold_at, self.keepalive_at, self.send_at])
    }

    /// Who opened its connection, or will.
    pub fn link(&self) -> Link {
        self.link
    }

    /// True from the neighbour's OPEN message to the end of the connection.
    pub(crate) fn has_heard(&self) -> bool {
        matches!(self.state, State::OpenConfirm | State::Established)
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// When its state changed.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// True from the connection's opening to its end.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::OpenSent | State::OpenConfirm | State::Established)
    }

    /// The neighbour, once it has introduced itself.
    pub fn peer(&self) -> Option<Open> {
        self.peer
    }

    /// Why the last session ended.
    pub fn reason(&self) -> Option<&Reason> {
        self.reason.as_ref()
    }

    /// Messages since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Handles the message at the start of `bytes` and returns its length; `None` if it is not
    /// whole.
    fn message(&mut self, bytes: &[u8], now: Instant) -> Option<usize> {
        let len = match message::length(bytes) {
            Ok(len) => len.filter(|len| *len <= bytes.len())?,
            Err(error) => {
                self.fail(error, now);
                return Some(bytes.len());
            }
        };
        self.counters.received += 1;
        let has_wide_as = self.peer.is_none_or(|peer| peer.has_wide_as);
        match message::parse(&bytes[..len], has_wide_as) {
            Ok(message) => self.handle(message, now),
            Err(error) => self.fail(error, now),
        }
        Some(len)
    }

    fn handle(&mut self, message: Message, now: Instant) {
        match (self.state, message) {
            (_, Message::Notification(notification)) => {
                self.end(Reason::Received(notification), now);
            }
            (State::OpenSent, Message::Open(open)) => match self.judge(&open) {
                Ok(()) => {
                    self.peer = Some(open);
                    self.become_state(State::OpenConfirm, now);
                    self.send(now, message::keepalive);
                    self.keepalive_at = self.keepalive_interval().map(|interval| now + interval);
                    self.hear(now);
                }
                Err(error) => self.fail(error, now),
            },
            (State::OpenConfirm, Message::Keepalive) => {
                self.counters.established += 1;
                self.become_state(State::Established, now);
                self.events.push_back(Event::Established);
                self.hear(now);
            }
            (State::Established, Message::Keepalive) => self.hear(now),
            (State::Established, Message::Update(update)) => {
                self.counters.updates_received += 1;
                self.events.push_back(Event::Update(update));
                self.hear(now);
            }
            (State::Established, Message::Refresh(is_evpn)) => {
                if is_evpn {
                    self.events.push_back(Event::Refresh);
                }
                self.hear(now);
            }
            // RFC 6608 §3: the subcode names the state.
            (state, _) => {
                let subcode = match state {
                    State::OpenSent => 1,
                    State::OpenConfirm => 2,
                    _ => 3,
                };
                self.fail(Notification::new(5, subcode), now);
            }
        }
    }

    /// Says what is wrong with the neighbour's OPEN message (RFC 4271 §6.2).
    fn judge(&self, open: &Open) -> Result<(), Notification> {
        let refuse = |subcode| Err(Notification::new(2, subcode));
        if open.as_number != self.settings.as_number {
            refuse(2)
        } else if open.router_id == self.settings.router_id || open.router_id.is_unspecified() {
            refuse(3)
        } else if (1..HOLD_SECONDS_MIN).contains(&open.hold_seconds) {
            refuse(6)
        } else if !open.speaks_evpn {
            // RFC 5492 §3: the capability that is missing, AFI 25 with SAFI 70.
            Err(Notification { code: 2, subcode: 7, data: vec![1, 4, 0, 25, 0, 70] })
        } else {
            Ok(())
        }
    }

    fn send(&mut self, now: Instant, write: impl FnOnce(&mut Vec<u8>)) {
        self.counters.sent += 1;
        if self.output.is_empty() {
            self.send_at = self.send_patience().map(|patience| now + patience);
        }
        write(&mut self.output);
    }

    /// Ends the session because of an error of the neighbour, and says so.
    fn fail(&mut self, error: Notification, now: Instant) {
        self.counters.errors += u64::from(error.code != CEASE);
        self.send(now, |out| message::notification(&error, out));
        self.end(Reason::Sent(error), now);
    }

    fn end(&mut self, reason: Reason, now: Instant) {
        if self.state == State::Established {
            let keep = self.keeps_routes(&reason);
            self.events.push_back(Event::Down(keep));
        }
        self.become_state(State::Idle, now);
        self.reason = Some(reason);
        self.peer = None;
        self.input.clear();
        self.hold_at = None;
        self.keepalive_at = None;
        self.send_at = None;
        self.retry_at = Some(now + self.pause());
    }

    /// How long routes stay without the session.
    ///
    /// RFC 4724 §4.2 has them removed if the neighbour did not preserve its forwarding state. Here
    /// this is of no interest: traffic does not pass through a reflector, the next hops of its
    /// routes are other hosts.
    fn keeps_routes(&self, reason: &Reason) -> Option<Duration> {
        let restart = self.peer?.restart.filter(|restart| restart.seconds > 0)?;
        let keeps = match reason {
            Reason::Closed | Reason::Silent | Reason::Replaced => true,
            Reason::Received(notification) | Reason::Sent(notification) => {
                self.keeps_after_notification() && !notification.is_hard_reset()
            }
        };
        keeps.then(|| Duration::from_secs(restart.seconds.into()))
    }

    fn keeps_after_notification(&self) -> bool {
        let restart = self.peer.and_then(|peer| peer.restart);
        restart.is_some_and(|restart| restart.covers_notifications)
    }

    fn become_state(&mut self, state: State, now: Instant) {
        self.state = state;
        self.since = now;
    }

    /// The neighbour is alive.
    fn hear(&mut self, now: Instant) {
        self.hold_at = self.hold().map(|hold| now + hold);
    }

    /// The smaller of both hold times (RFC 4271 §4.2); `None` if one of them is zero.
    fn hold(&self) -> Option<Duration> {
        let own = self.settings.hold_seconds;
        let seconds = own.min(self.peer.map_or(own, |peer| peer.hold_seconds));
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// A third of the hold time (RFC 4271 §4.4).
    fn keepalive_interval(&self) -> Option<Duration> {
        self.hold().map(|hold| hold / 3)
    }

    /// RFC 9687 §4.2.
    fn send_patience(&self) -> Option<Duration> {
        self.hold().map(|hold| hold * 2)
    }

    /// The pause before the next attempt: three quarters of [`RETRY`] to all of it, so that hosts
    /// whose reflector has failed do not all come back at the same moment (RFC 4271 §10).
    fn pause(&self) -> Duration {
        let spread = u32::from(self.settings.router_id)
            .wrapping_add(self.attempts)
            .wrapping_mul(0x9e37_79b9);
        RETRY * 3 / 4 + RETRY / 4 * (spread >> 24) / 256
    }
}

#[cfg(test)]
mod tests;
