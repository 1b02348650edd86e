//! The thread that owns an inside, a stack, the gateway and their memory, and moves packets.
//!
//! # Theory of operation
//!
//! The inside is a TAP device, or a switch with ports ([`Inside`]).
//!
//! A turn of the loop waits for events, reads the inside in bursts and passes them to the stack,
//! lets the gateway act on events of the stack and the host sockets, and sends the packets that the
//! stack has made. So ACKs and windows go out once per burst, after the host sockets took the data.
//!
//! An idle worker sleeps until its next timer, or indefinitely. Before it sleeps, it busy-polls for
//! a while where that pays (`busy_poll`): the inside, if that needs no system call, and all files
//! while a connection has just begun, whose next packets are near.
//!
//! When frames run out, the worker leaves the inside unread for a millisecond; meanwhile its queues
//! are the buffer.

mod busy_poll;
mod clock;
mod exchange;
mod inside;
mod ports;
mod read_limit;
mod wait;

pub(crate) use busy_poll::BusyPoll;
pub use busy_poll::MISSES_MAX;
pub(crate) use clock::Clock;
pub use exchange::Exchange;
pub use inside::Inside;
pub(crate) use wait::LOOKS;

use crate::capture::{Mirrors, Recording};
use crate::config::Config;
use crate::egress::enforcer::Enforcer;
use crate::flows::{BYTES_PER_TURN, FlowPage, FlowQuery, Gateway, Io, Load, StartError, Token};
use crate::report::Report;
use crate::services;
use exchange::NoGuests;
use read_limit::ReadLimit;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use towpath_io::pcapng::Direction;
use towpath_io::random::secret;
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::receive::ReceiveBuffer;
use towpath_io::tap::Tap;
use towpath_io::thread::{Rest, release_unused};
use towpath_net::engine::{Engine, MEMORY_PAUSE};
use towpath_net::stack::{self, Address, Conflict, Limits, OnConflict, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::{Instant, earliest};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Context, Input, Ledger, Memory, MemoryConfig, Packet};

/// Bytes to read from the inside before the host sockets get their turn: as many as are read from
/// the host sockets, so that each direction gets half of the thread if it can use it.
const READ_BYTES_PER_TURN: usize = BYTES_PER_TURN;
/// Packets to read from the inside before the host sockets get their turn.
const READ_PACKETS_PER_TURN: usize = 128;
/// Small packets to read from the inside before the host sockets get their turn. Floods consist of
/// small packets, so a flood takes little time from flows that move bytes.
const READ_SMALL_PER_TURN: usize = 16;
/// Interval of the checks for the end while finishing.
const FINISH_INTERVAL: Duration = Duration::from_millis(5);

/// Why a turn stopped reading the inside: what may be left there for the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// The turn reached its limit of bytes.
    Bytes,
    /// The turn reached its limit of packets.
    Packets,
}

/// The capture that all workers of a program share.
pub(crate) type Capture = Arc<Mutex<Mirrors>>;

/// Called for a station that has an address of the gateway.
pub type TellConflict = dyn FnMut(&Conflict) + Send;

/// The worker.
pub struct Worker<S: Inside = Tap> {
    engine: Engine<Stack, S>,
    gateway: Gateway,
    buffer: ReceiveBuffer,
    reactor: Reactor,
    /// The file of the inside is watched for reading.
    is_watching: bool,
    capture: Option<Capture>,
    /// The recording of the capture, if this worker began it.
    recording: Option<Recording>,
    tell_conflict: Option<Box<TellConflict>>,
    read_limit: ReadLimit,
    clock: Clock,
    rest: Rest,
    busy_poll: BusyPoll,
    young_poll: BusyPoll,
    /// For how long the thread has slept, or polled in vain.
    asleep: Duration,
    /// Set while the worker only passes on what remains.
    finish_by: Option<Instant>,
}

impl Worker {
    /// Binds the published ports and takes over the device.
    pub fn new(config: &Config, mut tap: Tap) -> Result<Self, StartError> {
        tap.set_mtu(config.mtu);
        Self::serving_program(config, tap)
    }
}

impl<S: Inside> Worker<S> {
    /// Binds the published ports and takes over an inside with one station, whose addresses are
    /// known.
    pub(crate) fn serving_program(config: &Config, inside: S) -> Result<Self, StartError> {
        let addresses: Vec<IpAddr> = config.program_addresses().collect();
        let mut worker = Self::with(config, inside, Arc::default(), addresses.clone(), &[])?;
        for address in addresses {
            worker.engine.protocols.set_neighbor(address, MacAddr(config.program_mac));
        }
        Ok(worker)
    }

    /// Returns the capture of this worker.
    pub(crate) fn capture_file(&self) -> Option<Capture> {
        self.capture.clone()
    }

    /// Makes this worker capture to the capture of another worker.
    pub(crate) fn capture_with(&mut self, capture: Option<Capture>) {
        self.capture = capture;
    }

    /// Returns the recording of [`Config::capture`], if this worker began it.
    pub fn recording(&mut self) -> Option<&mut Recording> {
        self.recording.as_mut()
    }

    /// Makes this worker tell the time of another one's clock, so that flows can move between them,
    /// as one that was asleep until now. Call it before this worker serves.
    pub(crate) fn tell_time_of(&mut self, clock: Clock) {
        self.asleep = clock.now().since(Instant::START);
        self.clock = clock;
    }

    /// Binds the published ports and takes over an inside whose stations are found by neighbour
    /// discovery. Copies are counted in `ledger`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn serving(config: &Config, inside: S, ledger: Arc<Ledger>) -> Result<Self, StartError> {
        let own = services::link_local(MacAddr(config.gateway_mac));
        let own = config.ipv6.map(|_| Address { address: own.into(), prefix_len: 64 });
        let mut own: Vec<Address> = own.into_iter().collect();
        let mut next_hops: Vec<IpAddr> = Vec::new();
        if config.is_link_shared {
            next_hops.extend(config.ipv4.map(|v4| IpAddr::from(v4.address)));
            next_hops.extend(config.ipv6.map(|v6| IpAddr::from(v6.address)));
            // The gateway need not be in the guest's prefix, where the guest may form more
            // addresses. Each router has the prefix's anycast address (RFC 4291 §2.6.1).
            own.extend(config.ipv6.map(|v6| {
                let host_bits = 128 - u32::from(v6.prefix_len);
                let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                let anycast = Ipv6Addr::from_bits(v6.address.to_bits() & mask);
                Address { address: anycast.into(), prefix_len: v6.prefix_len }
            }));
            own.retain(|own| !next_hops.contains(&own.address));
        }
        let mut worker = Self::with(&config.share_of_first(), inside, ledger, next_hops, &own)?;
        // Guests depend on the gateway's addresses: it keeps them in any case.
        if config.detects_duplicates {
            let now = worker.clock.now();
            worker.engine.protocols.claim_addresses(OnConflict::Keep, now);
        } else {
            worker.engine.protocols.defend_addresses();
        }
        Ok(worker)
    }

    /// Makes the worker call `tell` for each station that has an address of the gateway: once, and
    /// then at intervals.
    pub fn on_conflict(&mut self, tell: Box<TellConflict>) {
        self.tell_conflict = Some(tell);
    }

    /// Binds the published ports and takes over an inside. Destinations outside of the worker's own
    /// networks lead to `next_hops`; `own` are further addresses of the worker.
    fn with(
        config: &Config,
        inside: S,
        ledger: Arc<Ledger>,
        next_hops: Vec<IpAddr>,
        own: &[Address],
    ) -> Result<Self, StartError> {
        let reactor = Reactor::new()?;
        if let Some(file) = inside.file() {
            reactor.add(file, Token::Inside.encode(), Interest::READ, false)?;
        }
        if let Some(bell) = inside.bell() {
            reactor.add(bell, Token::Bell.encode(), Interest::READ, false)?;
        }
        let gateway = Gateway::new(config, &reactor)?;
        let mut stack = new_stack(config, inside.caps(), next_hops, own)?;
        gateway.join_groups(&mut stack);
        let memory = Memory::try_new(MemoryConfig::within(config.memory_bytes))?;
        let (capture, recording) = match &config.capture {
            Some(to) => {
                let file = to.file.try_clone()?.into();
                let begun = Recording::begin(file, &config.interface, memory.capacity_bytes());
                let (mirrors, recording) = begun?;
                (Some(Arc::new(Mutex::new(mirrors))), Some(recording))
            }
            None => (None, None),
        };
        let busy_poll = inside.busy_poll();
        Ok(Self {
            engine: Engine::new(stack, inside, memory, ledger),
            gateway,
            buffer: ReceiveBuffer::new(),
            reactor,
            is_watching: true,
            capture,
            recording,
            tell_conflict: None,
            read_limit: ReadLimit::new(),
            clock: Clock::new(),
            rest: Rest::new(),
            busy_poll: BusyPoll::new(busy_poll),
            young_poll: BusyPoll::new(wait::YOUNG_POLL),
            asleep: Duration::ZERO,
            finish_by: None,
        })
    }

    /// Serves until one of `fds` is readable; returns its index.
    pub fn run_until(&mut self, fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        for (index, fd) in fds.iter().enumerate() {
            self.reactor.add(fd, Token::Watch(index as u32).encode(), Interest::READ, false)?;
        }
        let result = self.serve();
        for fd in fds {
            self.reactor.remove(fd)?;
        }
        result
    }

    /// Continues after the program's end until everything that the program sent has been passed on,
    /// for `limit` at most, or until one of `fds` is readable.
    pub fn finish(&mut self, fds: &[BorrowedFd<'_>], limit: Duration) -> io::Result<()> {
        let until = self.clock.now() + limit;
        self.finish_by = Some(until);
        self.run_until(fds)?;
        self.finish_by = None;
        Ok(())
    }

    /// Returns the counters so far.
    pub fn report(&self) -> Report {
        let Engine { protocols: stack, device: inside, memory, ledger, .. } = &self.engine;
        let mut report = Report::new(stack, &self.gateway, ledger);
        let capture = self.capture.as_ref().and_then(|capture| capture.lock().ok());
        report.captured = capture.and_then(|capture| capture.written());
        let error = self.recording.as_ref().and_then(Recording::error);
        report.capture_error = error.map(ToString::to_string);
        inside.add_to(&mut report);
        let Memory { packets, small, large } = memory;
        report.lent = self.gateway.lent(stack, self.clock.now());
        report.packets_taken = packets.out_count();
        report.frames_taken = (small.out_count(), large.out_count());
        report
    }

    /// Returns a page of the open flows. It takes less than 1 ms, in which no packet moves.
    pub fn flows(&mut self, query: &FlowQuery) -> FlowPage {
        let now = self.clock.now();
        self.gateway.list(query, &self.engine.protocols, now)
    }

    /// Returns the inside.
    pub fn inside(&self) -> &S {
        &self.engine.device
    }

    /// Returns the current time of the worker's clock.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the clock, for other threads.
    pub(crate) fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Calls `act` with the inside, between calls of [`Worker::run_until`].
    pub fn with_inside<R>(&mut self, act: impl FnOnce(&mut S, &mut Context<'_>) -> R) -> R {
        let now = self.clock.now();
        self.engine.with_device(now, act)
    }

    /// Returns the inside, to change it between calls of [`Worker::run_until`].
    pub fn inside_mut(&mut self) -> &mut S {
        &mut self.engine.device
    }

    /// Returns the gateway and the reactor that its sockets are registered with.
    /// Returns what carries out the policy, if there is one.
    pub fn egress(&self) -> Option<&Arc<Enforcer>> {
        self.gateway.egress()
    }

    pub(crate) fn gateway(&mut self) -> (&mut Gateway, &Reactor) {
        (&mut self.gateway, &self.reactor)
    }

    fn serve(&mut self) -> io::Result<usize> {
        let mut events = Events::new();
        loop {
            debug_assert!(
                !self.engine.protocols.has_events(),
                "the thread sleeps with events pending"
            );
            self.watch_inside();
            let timeout = self.timeout();
            self.wait(timeout, &mut events)?;
            let now = self.clock.now();
            let watched = self.turn(&events, now);
            if let Some(index) = watched.map_err(io::Error::other)? {
                return Ok(index as usize);
            }
            if let Some(until) = self.finish_by
                && (self.all_passed_on() || until <= now)
            {
                return Ok(0);
            }
        }
    }

    /// Lets the inside exchange flows with other workers.
    fn exchange(&mut self, now: Instant) {
        let has_unsent = self.engine.has_unsent();
        let Engine { protocols, device, memory, ledger, .. } = &mut self.engine;
        let io = Io {
            stack: protocols,
            memory,
            ledger,
            reactor: &self.reactor,
            buffer: &mut self.buffer,
            guests: &NoGuests,
            now,
        };
        let is_finishing = self.finish_by.is_some();
        let (gateway, asleep) = (&mut self.gateway, self.asleep);
        device.exchange(&mut Exchange { gateway, io, has_unsent, is_finishing, asleep });
    }

    /// Runs one turn; returns the index of a watched file that became readable.
    fn turn(&mut self, events: &Events, now: Instant) -> Result<Option<u32>, S::Error> {
        // No event of the stack waits here. Events of sockets that leave find nothing, and are
        // reported again to the worker that takes the flow.
        self.exchange(now);
        let mut watched = None;
        let mut inside_readable = false;
        for event in events.iter() {
            match Token::decode(event.token) {
                Some(Token::Inside) => inside_readable = true,
                Some(Token::Bell) => self.engine.device.clear_bell(),
                Some(Token::Watch(index)) => watched = Some(index),
                Some(token) => self.with_gateway(now, |gateway, io| {
                    gateway.on_event(token, event, io);
                }),
                None => {}
            }
        }
        let mut is_crowded = false;
        if inside_readable || self.engine.is_due(now) {
            self.engine.turn(inside_readable, now)?;
            is_crowded = self.read_inside(now)? == Left::Packets;
        }
        self.run_timers(now);
        while let Some(conflict) = self.engine.protocols.next_conflict() {
            self.tell_conflict.iter_mut().for_each(|tell| tell(&conflict));
        }
        self.with_gateway(now, |gateway, io| {
            gateway.drain(io);
            gateway.continue_flows(io);
        });
        self.send_and_report_room(now)?;
        // New flows come last: the open flows have had their turn, and their packets have been
        // sent.
        let is_idle = events.iter().all(|event| is_of_listener(event.token));
        let load = match is_idle {
            true => Load::Idle,
            false if is_crowded => Load::Crowded,
            false => Load::Busy,
        };
        if self.with_gateway(now, |gateway, io| gateway.begin_flows(load, io)) {
            self.send_and_report_room(now)?;
        }
        Ok(watched)
    }

    /// Sends the packets of the stack. Sending makes room, which is reported to flows at once:
    /// nothing else would wake the thread for it. The loop ends, as room is only made for
    /// acknowledged data.
    fn send_and_report_room(&mut self, now: Instant) -> Result<(), S::Error> {
        loop {
            self.send(now)?;
            if !self.engine.protocols.has_events() {
                return Ok(());
            }
            self.with_gateway(now, |gateway, io| gateway.drain(io));
        }
    }

    fn read_inside(&mut self, now: Instant) -> Result<Left, S::Error> {
        let (mut bytes, mut left, mut room) = (0, READ_PACKETS_PER_TURN, READ_PACKETS_PER_TURN);
        let mut small_left = READ_SMALL_PER_TURN;
        loop {
            let most = if self.read_limit.expects_small() { small_left } else { left };
            let looks_by_call = self.engine.device.looks_by_call();
            let limit = self.read_limit.get(looks_by_call).min(left).min(room).min(most);
            let (mut own, capture) = (0, &self.capture);
            let received = self.engine.receive(limit, now, |burst| {
                own = burst.iter().map(Packet::len).sum::<usize>();
                see(capture.as_ref(), Direction::Inbound, burst);
            })?;
            let of_others = if let Input::HandedOver(bytes) = received.input { bytes } else { 0 };
            if received.packets == 0 && of_others == 0 {
                return Ok(Left::Nothing);
            }
            let full = limit > 1 && received.is_full || of_others > 0;
            self.read_limit.came(received.packets, own);
            // Reading a packet is half of the work for it; its owner does the other half.
            let of_burst = own + of_others / 2;
            bytes += of_burst;
            left -= limit;
            if self.read_limit.expects_small() {
                small_left = small_left.saturating_sub(received.packets);
            }
            self.with_gateway(now, |gateway, io| gateway.drain(io));
            // As many packets of this size as the turn still has bytes for.
            room = READ_BYTES_PER_TURN.saturating_sub(bytes) * limit / of_burst.max(1);
            if !full {
                return Ok(Left::Nothing);
            }
            if left.min(small_left) == 0 {
                return Ok(Left::Packets);
            }
            if room == 0 {
                return Ok(Left::Bytes);
            }
        }
    }

    /// Sends the packets of the stack until there are none or the device is full.
    fn send(&mut self, now: Instant) -> Result<(), S::Error> {
        let Self { engine, capture, .. } = self;
        let see_all = |burst: &Burst| see(capture.as_ref(), Direction::Outbound, burst);
        engine.send(usize::MAX, now, see_all).map(|_| ())
    }

    fn run_timers(&mut self, now: Instant) {
        self.engine.run_timers(now);
        if self.gateway.next_deadline().is_some_and(|at| at <= now) {
            self.with_gateway(now, |gateway, io| gateway.on_deadline(io));
        }
    }

    /// Returns true if everything that the program sent has been passed on.
    fn all_passed_on(&self) -> bool {
        self.gateway.all_passed_on(&self.engine.protocols)
            && !self.engine.has_unsent()
            && !self.engine.device.has_flows_elsewhere()
    }

    fn timeout(&mut self) -> Option<Duration> {
        if self.gateway.has_work() {
            return Some(Duration::ZERO);
        }
        let now = self.clock.now();
        let deadline = earliest([
            self.engine.next_deadline(),
            self.gateway.next_deadline(),
            self.gateway.is_starved().then(|| now + MEMORY_PAUSE),
            self.finish_by.map(|until| until.min(now + FINISH_INTERVAL)),
        ]);
        deadline.map(|at| at.since(now))
    }

    /// Releases what was kept ready, and memory left from a busier time. Called after a quiet
    /// period, and before the memory is replaced.
    pub(crate) fn give_back(&mut self) {
        self.buffer.clear();
        self.engine.rest(release_unused);
    }

    /// Watches the file of the inside, except while its packets wait for memory.
    fn watch_inside(&mut self) {
        let watches = self.engine.is_watched();
        if let (Some(file), true) = (self.engine.device.file(), watches != self.is_watching) {
            let interest = if watches { Interest::READ } else { Interest::NONE };
            // The file was added when the worker was made; changing its interest cannot fail.
            let _ = self.reactor.modify(file, Token::Inside.encode(), interest, false);
            self.is_watching = watches;
        }
    }

    fn with_gateway<R>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut Gateway, &mut Io<'_>) -> R,
    ) -> R {
        let Engine { protocols, device, memory, ledger, .. } = &mut self.engine;
        let mut io = Io {
            stack: protocols,
            memory,
            ledger,
            reactor: &self.reactor,
            buffer: &mut self.buffer,
            guests: device,
            now,
        };
        act(&mut self.gateway, &mut io)
    }
}

/// Shows packets to the captures.
fn see(capture: Option<&Capture>, direction: Direction, burst: &Burst) {
    // The lock is held while the time is taken, so the file is in order of time. A poisoned lock is
    // ignored: a worker that panics ends all workers.
    if let Some(Ok(mut mirrors)) = capture.map(|capture| capture.lock()) {
        mirrors.see(direction, burst.iter());
    }
}

/// Returns true if the event is from a listener with waiting connections.
fn is_of_listener(token: u64) -> bool {
    matches!(Token::decode(token), Some(Token::TcpListener(_)))
}

fn new_stack(
    config: &Config,
    caps: Caps,
    next_hops: Vec<IpAddr>,
    own: &[Address],
) -> io::Result<Stack> {
    let mut addresses = own.to_vec();
    for (address, prefix_len) in config.own_addresses() {
        if !addresses.iter().any(|ours| ours.address == address) {
            addresses.push(Address { address, prefix_len });
        }
    }
    let stack_config = stack::Config {
        mac: MacAddr(config.gateway_mac),
        addresses,
        next_hops,
        transparent: true,
        secret: secret()?,
        // The path to the inside is a copy within this machine: large packets delay no others on
        // it.
        tcp: Settings {
            min_tso_segs: u32::MAX,
            congestion: config.congestion,
            ..Settings::default()
        },
        limits: Limits {
            connections: config.flows_max,
            orphans: config.flows_max,
            ..Limits::default()
        },
    };
    let mut stack = Stack::new(stack_config, caps);
    if config.is_link_shared {
        stack.answer_for_link();
    }
    Ok(stack)
}

impl<S: Inside> Drop for Worker<S> {
    fn drop(&mut self) {
        self.gateway.note_ends(self.clock.now());
    }
}

#[cfg(test)]
mod tests;
