//! An instance: sockets with their device, descriptors and clock, behind one lock.

use crate::errno::{Errno, Outcome};
use crate::held::{Counted, Held};
use crate::table::{Choosing, Files, LentPieces};
use crate::wire::{self, OUR_MAC, PEER_MAC, PEERS, Wire, WireEnd};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::net::IpAddr;
#[cfg(feature = "packetdrill")]
use std::sync::Condvar;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use towpath::driver::{
    AnyDevice, Bell, Clock as RealClock, Driven, Driver, Guard as DriverGuard, SocketEngine,
    Worker, boxed,
};
use towpath::events::FileCache;
use towpath::host;
use towpath::layers::io::process_sys::generation;
use towpath::layers::io::random::secret;
use towpath::layers::io::tap::{Features, Tap};
use towpath::layers::io::thread::release_unused;
use towpath::layers::net::engine::Engine;
use towpath::layers::net::socket::{Family, SocketId, Sockets};
use towpath::layers::net::stack::{self, OnConflict, Stack};
use towpath::layers::net::tcp::Connection;
use towpath::layers::net::time::{Duration, Instant};
use towpath::layers::packet::sync::{AtomicU32, Ordering};
use towpath::layers::packet::{Burst, Caps, Context, Device, Loans, Memory, MemoryConfig};

/// How long the end of an instance waits by default.
const LINGER_DEFAULT: Duration = Duration::from_secs(5);

/// Configuration of an instance.
#[derive(Clone, Debug)]
pub struct Config {
    /// Configuration of the host. For an instance whose packets the caller moves, gateways and the
    /// link-layer address have no effect.
    pub host: host::Config,
    /// For an attached instance: how long its end waits for unsent data.
    pub linger: Duration,
    /// Sockets begin with `TOWPATH_SO_ZEROCOPY_AUTO`.
    pub lends_auto: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { host: host::Config::default(), linger: LINGER_DEFAULT, lends_auto: false }
    }
}

impl Config {
    /// Makes a configuration with these addresses, as text separated by spaces, each with its
    /// prefix length.
    pub fn with_addresses(text: &str) -> Outcome<Self> {
        let address = |word: &str| {
            let (address, len) = word.split_once('/')?;
            Some((address.parse().ok()?, len.parse().ok()?))
        };
        let words = text.split_ascii_whitespace();
        let addresses: Option<Vec<(IpAddr, u8)>> = words.map(address).collect();
        let addresses = addresses.ok_or(Errno::INVAL)?;
        let host = host::Config { addresses, ..host::Config::default() };
        host.check()?;
        Ok(Self { host, ..Self::default() })
    }

    /// Adds next hops, as text separated by spaces.
    pub fn with_gateways(mut self, text: &str) -> Outcome<Self> {
        let gateways: Result<Vec<IpAddr>, _> =
            text.split_ascii_whitespace().map(str::parse).collect();
        self.host.gateways = gateways.map_err(|_| Errno::INVAL)?;
        Ok(self)
    }
}

/// Start of virtual time, since 1970: in November 2023.
#[cfg(feature = "packetdrill")]
pub(crate) const VIRTUAL_EPOCH: Duration = Duration::from_secs(1_700_000_000);
/// The instance's own time at the start of virtual time: one hour.
#[cfg(feature = "packetdrill")]
pub(crate) const VIRTUAL_START: Instant = Instant::from_micros(3_600_000_000);

/// Source of time.
pub(crate) enum Clock {
    /// The system's clock.
    Real(RealClock),
    /// Time that the driver of the instance sets.
    #[cfg(feature = "packetdrill")]
    Virtual(Instant),
}

impl Clock {
    /// The current time.
    pub(crate) fn now(&self) -> Instant {
        match self {
            Clock::Real(clock) => clock.now(),
            #[cfg(feature = "packetdrill")]
            Clock::Virtual(now) => *now,
        }
    }

    /// Converts a time in the past to calendar time since 1970.
    pub(crate) fn wall(&self, at: Instant) -> Duration {
        match self {
            Clock::Real(clock) => {
                let ago = clock.now().since(at);
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                now.unwrap_or_default().saturating_sub(ago)
            }
            #[cfg(feature = "packetdrill")]
            Clock::Virtual(_) => VIRTUAL_EPOCH + at.since(VIRTUAL_START),
        }
    }
}

/// State that the lock protects.
pub(crate) struct State {
    pub(crate) engine: SocketEngine,
    pub(crate) files: Files,
    pub(crate) clock: Clock,
    /// Packets that wait for the caller. `None` on a device.
    pub(crate) wire: Option<Wire>,
    /// The worker should end.
    pub(crate) ending: bool,
    /// Loans of the program's memory, made when they are first needed.
    pub(crate) loans: Option<Loans>,
    /// Whether calls lend or copy.
    pub(crate) choosing: Choosing,
    /// Pieces that the program received without a copy and has not returned.
    pub(crate) lent_pieces: LentPieces,
    /// Tasks that wait until the program returns some of these pieces.
    pub(crate) crowded: Vec<Waker>,
    /// Counts changes that a waiting call may wait for. Waiting calls sleep on it as a futex.
    epoch: Arc<AtomicU32>,
    /// Number of calls that wait.
    pub(crate) parked: usize,
    /// Number of calls that were woken and have not checked the latest change, or have ended their
    /// wait. The driver of a virtual clock waits for them before it advances the clock.
    pub(crate) running: usize,
    /// Deadlines of the waiting calls.
    pub(crate) waits: Vec<Instant>,
}

impl State {
    /// The current time.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Calls `act` with the sockets and their memory.
    pub(crate) fn with<R>(&mut self, act: impl FnOnce(&mut Sockets, &mut Context<'_>) -> R) -> R {
        let now = self.now();
        self.engine.with(now, act)
    }

    /// Accepts a received IP packet. False if there is no memory for it.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> bool {
        let Some(packet) = wire::packet(bytes, &mut self.engine.memory) else { return false };
        let mut burst = Burst::new();
        let pushed = burst.push(packet).is_ok();
        self.with(|sockets, cx| sockets.input(&mut burst, cx));
        pushed
    }

    /// Time at which work is due without a packet or a call.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let waits = self.waits.iter().copied().min();
        [self.engine.protocols.next_deadline(), waits].into_iter().flatten().min()
    }

    /// Sends pending packets, and wakes calls that may wait for the results.
    pub(crate) fn send(&mut self) {
        self.settle(self.now());
    }

    /// Runs the timers that are due.
    pub(crate) fn run_timers(&mut self) {
        self.engine.run_timers(self.clock.now());
    }

    /// Makes all waiting calls check again.
    pub(crate) fn notify(&mut self) {
        // Relaxed: written under the lock only, and the kernel orders it before the wake.
        self.epoch.fetch_add(1, Ordering::Relaxed);
        self.running += self.parked;
        // Every call that waits for this change is parked. Without one there is nothing to wake,
        // which saves a system call.
        if std::mem::take(&mut self.parked) > 0 {
            // Cannot fail: the word is valid.
            let _ = futex::wake(&self.epoch, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// The number of the last change.
    fn epoch(&self) -> u32 {
        // Relaxed: written and read under the lock.
        self.epoch.load(Ordering::Relaxed)
    }

    /// The socket of a descriptor.
    pub(crate) fn id(&self, fd: i32) -> Outcome<SocketId> {
        Ok(self.files.socket(fd)?.id)
    }

    pub(crate) fn family(&self, fd: i32) -> Outcome<Family> {
        let domain = self.files.socket(fd)?.domain;
        Ok(if domain == libc::AF_INET { Family::V4 } else { Family::V6 })
    }

    pub(crate) fn connection(&self, fd: i32) -> Outcome<Option<&Connection>> {
        Ok(self.engine.protocols.tcp(self.id(fd)?))
    }

    /// How long a call on `fd` may wait: zero for not at all, `None` without a limit.
    pub(crate) fn timeout(&self, fd: i32, flags: i32, send: bool) -> Outcome<Option<Duration>> {
        let file = self.files.socket(fd)?;
        if file.nonblocking || flags & libc::MSG_DONTWAIT != 0 {
            return Ok(Some(Duration::ZERO));
        }
        Ok(if send { file.send_timeout } else { file.receive_timeout })
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

    /// Wakes calls that may wait for events that have happened.
    fn take_up(&mut self, _: Instant) -> bool {
        let mut news = false;
        while let Some((id, what)) = self.engine.protocols.next_wake() {
            news = true;
            self.files.note(id, what.bits());
        }
        self.learn();
        if news {
            self.notify();
        }
        false
    }

    /// Sends pending packets on the thread of the call.
    fn settle(&mut self, now: Instant) {
        // A device that fails is gone; the engine then counts the packets that it cannot send.
        let _ = self.engine.send(usize::MAX, now, |_| {});
        self.take_up(now);
    }

    fn rest(&mut self) {
        self.engine.rest(release_unused);
    }
}

/// A TCP/IP stack in this process. Any thread may make any call.
pub struct Instance {
    driver: Arc<Driver<State>>,
    /// Identifies the process that made the instance.
    generation: u64,
    /// How long its end waits for unsent data.
    pub(crate) linger: Duration,
    /// Files in memory that queues send.
    pub(crate) file_cache: Arc<FileCache>,
    /// Counts changes that a waiting call may wait for.
    epoch: Arc<AtomicU32>,
    /// The worker of an attached instance, until the instance ends.
    worker: Mutex<Option<Worker<State>>>,
    /// Signalled when no call is running.
    #[cfg(feature = "packetdrill")]
    pub(crate) settled: Condvar,
}

/// The lock while it is held.
pub(crate) type Guard<'a> = Counted<DriverGuard<'a, State>>;

impl Instance {
    /// Makes an instance whose packets the caller moves.
    pub fn new(config: &Config) -> Outcome<Self> {
        config.host.check()?;
        // Packets on the wire are complete: each fits the MTU and has its checksum.
        let caps = Caps::plain(config.host.mtu);
        Self::on_wire(config, secret()?, Clock::Real(RealClock::new()), caps)
    }

    /// Makes an instance on `tap`, with its own worker thread. Uses super-packets and partial
    /// checksums as far as the kernel supports them.
    pub fn attach(config: &Config, mut tap: Tap) -> Outcome<Arc<Self>> {
        config.host.check()?;
        tap.set_offload(Features::ALL)?;
        tap.set_mtu(config.host.mtu);
        Self::attach_device(config, boxed(tap))
    }

    /// Makes an instance on a device of any kind that has a file, with its own worker thread.
    pub fn attach_device(config: &Config, device: AnyDevice) -> Outcome<Arc<Self>> {
        config.host.check()?;
        let (secret, bell) = (secret()?, Arc::new(Bell::new()?));
        let mut stack = Stack::new(config.host.stack(secret), device.caps());
        stack.announce_groups(Instant::START);
        let clock = Clock::Real(RealClock::new());
        if config.host.detect_duplicates {
            stack.claim_addresses(OnConflict::Withdraw, clock.now());
        }
        let instance = Self::with_stack(stack, config, clock, (device, None), bell);
        *instance.worker() = Some(Worker::start(instance.driver.clone())?);
        Ok(Arc::new(instance))
    }

    /// Ends the worker, if there is one, and waits for its end.
    pub fn end(&self) {
        {
            let mut state = self.lock();
            state.ending = true;
            state.files.wake_all();
        }
        // The lock of `worker` is released first: dropping the worker waits for its thread.
        let worker = self.worker().take();
        drop(worker);
    }

    fn worker(&self) -> MutexGuard<'_, Option<Worker<State>>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the file whose duplicates reserve the numbers of later descriptors in the kernel, an
    /// eventfd by default, and the least number of epoll sets. Calls of the kernel that reach such
    /// a number use this file.
    pub fn reserve_with(&self, file: OwnedFd, sets_from: i32) {
        self.lock().files.set_placeholder(file, sets_from);
    }

    /// Numbers of the open files that the instance itself uses. They stay the same until its end.
    pub fn own_files(&self) -> Outcome<Vec<i32>> {
        let mut state = self.lock();
        let mut numbers = vec![state.files.placeholder()?.as_raw_fd()];
        numbers.push(self.driver.bell().as_fd().as_raw_fd());
        numbers.extend(state.engine.device.file().map(|file| file.as_raw_fd()));
        drop(state);
        numbers.extend(self.worker().as_ref().map(|worker| worker.file()));
        Ok(numbers)
    }

    /// False in the child of a fork, where the worker does not exist and the lock may stay locked.
    pub fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    /// Accepts an IP packet as if the device had received it.
    ///
    /// # Errors
    /// `ENOBUFS` without memory; `EOPNOTSUPP` if the instance has a device of its own.
    pub fn input(&self, packet: &[u8]) -> Outcome<()> {
        if self.is_attached() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let taken = self.call(|state| state.receive(packet));
        if taken { Ok(()) } else { Err(Errno(libc::ENOBUFS)) }
    }

    /// Takes the next IP packet that the instance sends. Always `None` if the instance has a device
    /// of its own.
    pub fn output(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let wire = state.wire.clone()?;
        let was_full = wire.is_full();
        let taken = wire.take();
        if was_full {
            self.settle(&mut state);
        }
        taken.map(|(_, packet)| packet)
    }

    /// Runs the timers that are due. Returns the time until the next one, if there is one. For an
    /// attached instance it does nothing, because the worker runs the timers.
    pub fn run_timers(&self) -> Option<Duration> {
        if self.is_attached() {
            return None;
        }
        self.call(State::run_timers);
        let state = self.lock();
        state.next_due().map(|at| at.since(state.now()))
    }

    /// Packets and frames in use: received and not read, or sent and not acknowledged.
    pub fn memory_in_use(&self) -> usize {
        let Memory { packets, small, large } = &self.lock().engine.memory;
        packets.out_count() + small.out_count() + large.out_count()
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.lock().wire.is_none()
    }

    /// Makes an instance whose super-packets the driver takes whole, without checksums, in the
    /// driver's time.
    #[cfg(feature = "packetdrill")]
    pub(crate) fn driven(config: &Config, secret: [u64; 2], clock: Clock) -> Outcome<Self> {
        Self::on_wire(config, secret, clock, wire::wire_caps(config.host.mtu))
    }

    /// On a wire the stack has one neighbour, for every destination.
    fn on_wire(config: &Config, secret: [u64; 2], clock: Clock, caps: Caps) -> Outcome<Self> {
        let alone = |ip: IpAddr| if ip.is_ipv4() { (ip, 32) } else { (ip, 128) };
        let addresses = config.host.addresses.iter().map(|&(ip, _)| alone(ip)).collect();
        let host = host::Config { addresses, ..config.host.clone() };
        let stack_config =
            stack::Config { mac: OUR_MAC, next_hops: PEERS.to_vec(), ..host.stack(secret) };
        let mut stack = Stack::new(stack_config, caps);
        for hop in PEERS {
            stack.set_neighbor(hop, PEER_MAC);
        }
        let wire = Wire::new(caps);
        let device = boxed(WireEnd(wire.clone()));
        let bell = Arc::new(Bell::new()?);
        Ok(Self::with_stack(stack, config, clock, (device, Some(wire)), bell))
    }

    fn with_stack(
        stack: Stack,
        config: &Config,
        clock: Clock,
        (device, wire): (AnyDevice, Option<Wire>),
        bell: Arc<Bell>,
    ) -> Self {
        let sockets = Sockets::new(stack);
        let memory = Memory::new(MemoryConfig::within(config.host.memory));
        let engine = Engine::new(sockets, device, memory, Arc::default());
        let file_cache = Arc::new(FileCache::new(config.host.file_cache, engine.ledger.clone()));
        let epoch = Arc::<AtomicU32>::default();
        let state = State {
            engine,
            files: Files::default(),
            clock,
            wire,
            ending: false,
            loans: None,
            choosing: Choosing::new(config.lends_auto),
            lent_pieces: LentPieces::default(),
            crowded: Vec::new(),
            epoch: epoch.clone(),
            parked: 0,
            running: 0,
            waits: Vec::new(),
        };
        Self {
            driver: Arc::new(Driver::new(state, bell)),
            linger: config.linger,
            file_cache,
            generation: generation(),
            epoch,
            worker: Mutex::new(None),
            #[cfg(feature = "packetdrill")]
            settled: Condvar::new(),
        }
    }

    /// `EPERM` in the child of a fork, `EDEADLK` on a thread that has the lock of an instance: a
    /// call would never return.
    pub fn check_caller(&self) -> Outcome<()> {
        match self.is_ours() {
            false => Err(Errno(libc::EPERM)),
            true if Held::is_any() => Err(Errno(libc::EDEADLK)),
            true => Ok(()),
        }
    }

    /// Takes the lock, in the order of requests.
    pub(crate) fn lock(&self) -> Guard<'_> {
        Counted::take(|| self.driver.lock())
    }

    /// Takes the lock, runs `act`, which does not wait, and handles the results.
    pub(crate) fn call<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let _held = Held::count();
        self.driver.call(|state, _| act(state))
    }

    /// After a change: sends pending packets, and wakes calls that may wait for the change.
    pub(crate) fn settle(&self, state: &mut Guard<'_>) {
        self.driver.settle(state);
    }

    /// Repeats `attempt` until it returns anything but [`Errno::AGAIN`], and waits for changes in
    /// between: at most for `timeout`, without a limit if that is `None`, not at all if it is zero.
    /// As in Linux, a signal whose handler ran ends the wait with `EINTR`; without a limit, only if
    /// the handler was installed without `SA_RESTART`.
    pub(crate) fn block<R>(
        &self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut State) -> Outcome<R>,
    ) -> Outcome<R> {
        let mut state = self.lock();
        let deadline = timeout.map(|timeout| state.now() + timeout);
        let mut is_interrupted = false;
        loop {
            let epoch = state.epoch();
            let result = attempt(&mut state);
            self.settle(&mut state);
            let again = matches!(result, Err(Errno::AGAIN));
            if !again || deadline.is_some_and(|at| at <= state.now()) {
                return result;
            }
            if is_interrupted {
                return Err(Errno::INTR);
            }
            // Settling collects returned loans and packets. That may be the change to wait for, and
            // it would not be signalled again.
            if state.epoch() == epoch {
                (state, is_interrupted) = self.park(state, deadline);
            }
        }
    }

    /// Repeats `attempt` on a socket as [`Instance::block`] does. `EBADF` if the socket is closed
    /// meanwhile, even if its number belongs to another socket then.
    pub(crate) fn block_on<R>(
        &self,
        fd: i32,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut State) -> Outcome<R>,
    ) -> Outcome<R> {
        let mut own = None;
        self.block(timeout, |state| {
            let id = state.id(fd)?;
            if *own.get_or_insert(id) == id { attempt(state) } else { Err(Errno::BADF) }
        })
    }

    /// Waits for a change, the deadline or a signal. The second result is true after a signal.
    fn park<'a>(&'a self, mut state: Guard<'a>, deadline: Option<Instant>) -> (Guard<'a>, bool) {
        let epoch = state.epoch();
        state.parked += 1;
        state.running = state.running.saturating_sub(1);
        state.waits.extend(deadline);
        #[cfg(feature = "packetdrill")]
        self.settled.notify_all();
        let mut is_interrupted = false;
        while state.epoch() == epoch {
            let left = deadline.map(|at| at.since(state.now()));
            let left = left.filter(|_| matches!(state.clock, Clock::Real(_)));
            if is_interrupted || left == Some(Duration::ZERO) {
                state.parked -= 1;
                state.running += 1;
                break;
            }
            drop(state);
            // A timeout beyond what the kernel can count is none.
            let left: Option<Timespec> = left.and_then(|left| left.try_into().ok());
            let woken = futex::wait(&self.epoch, futex::Flags::PRIVATE, epoch, left.as_ref());
            is_interrupted = woken == Err(rustix::io::Errno::INTR);
            state = self.lock();
        }
        if let Some(at) = deadline
            && let Some(index) = state.waits.iter().position(|wait| *wait == at)
        {
            state.waits.swap_remove(index);
        }
        (state, is_interrupted)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.end();
    }
}
