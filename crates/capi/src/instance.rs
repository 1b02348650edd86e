//! An instance: a stack, its memory, its descriptors and its time, behind one lock.

use crate::attach::Worker;
use crate::device::{self, Link, OUR_MAC, PEER_MAC, Wire};
use crate::ending::LINGER_DEFAULT;
use crate::errno::{Errno, Outcome};
use crate::files::Files;
use crate::handed::HandedOut;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use towpath::events::FileCache;
use towpath_io::process_sys::generation;
use towpath_io::thread::release_unused;
use towpath_net::socket::Sockets;
use towpath_net::stack::{self, Address, Context, Limits, Stack};
use towpath_net::tcp::Settings;
use towpath_net::time::{Duration, Instant};
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Ledger, Loans, Memory, MemoryConfig};

/// What an instance is told when it is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our addresses, with the lengths of their links' prefixes.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Of an attached instance: next hops for what is not on the link.
    pub gateways: Vec<IpAddr>,
    /// Of an attached instance: its link-layer address; one is made up without.
    pub mac: Option<[u8; 6]>,
    /// Largest IP packet of the device.
    pub mtu: u16,
    /// Bytes of packet memory.
    pub memory: usize,
    /// Bytes of files in memory.
    pub file_cache: usize,
    /// Of an attached instance: how long its end waits for what was sent.
    pub linger: Duration,
    /// Settings of TCP.
    pub tcp: Settings,
    /// Secret from which sequence numbers and ports are made.
    pub secret: [u64; 2],
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            gateways: Vec::new(),
            mac: None,
            mtu: 1500,
            memory: MEMORY_DEFAULT,
            file_cache: FILE_CACHE_DEFAULT,
            linger: LINGER_DEFAULT,
            tcp: Settings::default(),
            secret: [0; 2],
        }
    }
}

impl Config {
    /// With addresses given as text, separated by spaces, each with the length of its link's
    /// prefix.
    pub fn with_addresses(text: &str) -> Outcome<Self> {
        let address = |word: &str| {
            let (address, len) = word.split_once('/')?;
            let (address, len): (IpAddr, u8) = (address.parse().ok()?, len.parse().ok()?);
            let len_max = if address.is_ipv4() { 32 } else { 128 };
            (len <= len_max).then_some((address, len))
        };
        let words = text.split_ascii_whitespace();
        let addresses: Option<Vec<_>> = words.map(address).collect();
        Ok(Self { addresses: addresses.ok_or(Errno::INVAL)?, ..Self::default() })
    }

    /// The same with next hops given as text, separated by spaces.
    pub fn with_gateways(self, text: &str) -> Outcome<Self> {
        let gateways: Result<Vec<IpAddr>, _> =
            text.split_ascii_whitespace().map(str::parse).collect();
        Ok(Self { gateways: gateways.map_err(|_| Errno::INVAL)?, ..self })
    }

    /// Refuses what no stack can be made with.
    fn check(&self) -> Outcome<()> {
        let mtu_min =
            if self.addresses.iter().any(|(ip, _)| ip.is_ipv6()) { MTU_IPV6_MIN } else { MTU_MIN };
        let memory = (MEMORY_MIN..=MEMORY_MAX).contains(&self.memory);
        if self.mtu >= mtu_min && memory { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// The same with a secret that nobody can know.
    fn with_secret(&self) -> Outcome<Self> {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let bits = u128::from_ne_bytes(bytes);
        Ok(Self { secret: [bits as u64, (bits >> 64) as u64], ..self.clone() })
    }
}

/// Bytes of packet memory unless told otherwise.
const MEMORY_DEFAULT: usize = 64 << 20;
/// Bytes of files in memory unless told otherwise.
const FILE_CACHE_DEFAULT: usize = 64 << 20;
/// Least packet memory: a few super-packets each way.
const MEMORY_MIN: usize = 1 << 20;
/// Most packet memory.
const MEMORY_MAX: usize = 4 << 30;
/// Least MTU: a packet that every host of IPv4 takes (RFC 791 §3.1).
const MTU_MIN: u16 = 576;
/// The same with an address of IPv6 (RFC 8200 §5).
const MTU_IPV6_MIN: u16 = 1280;

/// When virtual time begins, since 1970: in November 2023.
#[cfg(feature = "packetdrill")]
pub(crate) const VIRTUAL_EPOCH: Duration = Duration::from_secs(1_700_000_000);
/// Where the instance's own time begins then: an hour after its start.
#[cfg(feature = "packetdrill")]
pub(crate) const VIRTUAL_START: Instant = Instant::from_micros(3_600_000_000);

/// Where time comes from.
pub(crate) enum Clock {
    /// The system, since this moment.
    Real(std::time::Instant),
    /// Whoever drives the instance.
    #[cfg(feature = "packetdrill")]
    Virtual(Instant),
}

impl Clock {
    /// The system's clock, from now on.
    #[expect(clippy::disallowed_methods, reason = "the instance is where time comes from")]
    pub(crate) fn real() -> Self {
        Clock::Real(std::time::Instant::now())
    }

    /// Now.
    pub(crate) fn now(&self) -> Instant {
        match self {
            Clock::Real(start) => Instant::START + start.elapsed(),
            #[cfg(feature = "packetdrill")]
            Clock::Virtual(now) => *now,
        }
    }

    /// A moment of the past by the calendar, as time since 1970.
    pub(crate) fn wall(&self, at: Instant) -> Duration {
        match self {
            Clock::Real(start) => {
                let ago = (Instant::START + start.elapsed()).since(at);
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                now.unwrap_or_default().saturating_sub(ago)
            }
            #[cfg(feature = "packetdrill")]
            Clock::Virtual(_) => VIRTUAL_EPOCH + at.since(VIRTUAL_START),
        }
    }
}

/// What the lock guards.
pub(crate) struct State {
    pub(crate) sockets: Sockets,
    pub(crate) files: Files,
    pub(crate) clock: Clock,
    pub(crate) link: Link,
    /// The worker is to end.
    pub(crate) ending: bool,
    memory: Memory,
    /// What lends memory of the program's, once it does.
    pub(crate) loans: Option<Loans>,
    /// What the program received without a copy and has not returned.
    pub(crate) handed_out: HandedOut,
    /// Who waits for some of that to be returned.
    pub(crate) crowded: Vec<Waker>,
    ledger: Arc<Ledger>,
    /// Counts changes that a waiting call may wait for.
    epoch: u64,
    /// Calls that wait.
    pub(crate) parked: usize,
    /// Calls that were waiting and have not looked at the latest change yet, or that have ended
    /// their wait: whoever drives the clock lets them go on before it advances.
    pub(crate) running: usize,
    /// When the waits end at the latest.
    pub(crate) waits: Vec<Instant>,
}

impl State {
    /// Now.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Lets `act` use the sockets with their memory.
    pub(crate) fn with<R>(&mut self, act: impl FnOnce(&mut Sockets, &mut Context<'_>) -> R) -> R {
        let now = self.now();
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now };
        act(&mut self.sockets, &mut cx)
    }

    /// Reads the device, if there is one: a burst at most.
    pub(crate) fn read_device(&mut self) {
        let State { sockets, memory, ledger, clock, link, .. } = self;
        if let Link::Port(port) = link {
            port.receive(sockets, &mut Context { memory, ledger, now: clock.now() });
        }
    }

    /// Nothing happened for a while: gives back memory that a busier time has left behind.
    pub(crate) fn rest(&mut self) {
        if let Some(port) = self.port() {
            port.rest();
        }
        self.memory.unused(release_unused);
    }

    /// When the worker of an attached instance has to be up.
    pub(crate) fn sleep(&mut self) -> Option<Instant> {
        let State { sockets, link, .. } = self;
        match link {
            Link::Port(port) => port.sleep(sockets),
            Link::Wire(_) => None,
        }
    }

    /// The device, if there is one.
    pub(crate) fn port(&mut self) -> Option<&mut device::Port> {
        match &mut self.link {
            Link::Port(port) => Some(port),
            Link::Wire(_) => None,
        }
    }

    /// Takes a received IP packet. False without memory for it.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> bool {
        let Some(packet) = device::packet(bytes, &mut self.memory) else { return false };
        let mut burst = Burst::new();
        let pushed = burst.push(packet).is_ok();
        self.with(|sockets, cx| sockets.input(&mut burst, cx));
        pushed
    }

    /// When something is due without a packet or a call.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let waits = self.waits.iter().copied().min();
        [self.sockets.next_deadline(), waits].into_iter().flatten().min()
    }

    /// Runs the timers that are due.
    pub(crate) fn run_timers(&mut self) {
        let now = self.now();
        if self.sockets.next_deadline().is_some_and(|at| at <= now) {
            self.with(|sockets, cx| sockets.on_deadline(cx));
        }
    }
}

/// A stack in this process. All calls may be made by any thread.
pub struct Instance {
    state: Mutex<State>,
    /// Of the process that made it.
    generation: u64,
    /// How long its end waits for what was sent.
    pub(crate) linger: Duration,
    /// What queues send of files.
    pub(crate) file_cache: Arc<FileCache>,
    /// Something changed that a waiting call may wait for.
    changed: Condvar,
    /// Of an attached instance, until it ends.
    pub(crate) worker: Mutex<Option<Worker>>,
    /// No call is running any more.
    #[cfg(feature = "packetdrill")]
    pub(crate) settled: Condvar,
}

/// The lock, held.
pub(crate) type Guard<'a> = MutexGuard<'a, State>;

impl Instance {
    /// An instance whose packets the caller moves.
    pub fn new(config: &Config) -> Outcome<Self> {
        config.check()?;
        let config = config.with_secret()?;
        // What the caller moves is complete: each packet fits the MTU and has its checksum.
        Ok(Self::on_wire(&config, Clock::real(), Caps::plain(config.mtu)))
    }

    /// An instance on a device, which a worker drives: see [`Instance::attach`].
    pub(crate) fn on_device(config: &Config, port: device::Port) -> Outcome<Self> {
        config.check()?;
        let config = config.with_secret()?;
        // Locally administered, and one host's alone (IEEE 802, bits 1 and 0 of the first byte).
        let [_, a, b, c, d, e, ..] = config.secret[0].to_ne_bytes();
        let mac = config.mac.unwrap_or([2, a, b, c, d, e]);
        let stack_config = stack::Config {
            mac: MacAddr(mac),
            addresses: config.addresses.iter().map(|&(ip, len)| on_link(ip, len)).collect(),
            next_hops: config.gateways.clone(),
            ..stack_config(&config)
        };
        let stack = Stack::new(stack_config, port.caps());
        Ok(Self::with_stack(stack, &config, Clock::real(), Link::Port(Box::new(port))))
    }

    /// False in the child of a fork: its thread is not there, and the lock may be one that is
    /// never opened.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation == generation()
    }

    /// Takes an IP packet, as if the device had received it.
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

    /// The next IP packet that leaves; none ever if the instance has a device of its own.
    pub fn output(&self) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let was_full = state.link.is_full();
        let taken = state.link.take();
        if was_full {
            self.settle(&mut state);
        }
        taken.map(|(_, packet)| packet)
    }

    /// Runs the timers that are due; how long until the next, if there is one. The worker of an
    /// attached instance does so by itself.
    pub fn run_timers(&self) -> Option<Duration> {
        if self.is_attached() {
            return None;
        }
        self.call(State::run_timers);
        let state = self.lock();
        state.next_deadline().map(|at| at.since(state.now()))
    }

    /// Packets and frames that are in use: received and not read, or sent and not acknowledged.
    pub fn memory_in_use(&self) -> usize {
        let Memory { packets, small, large } = &self.lock().memory;
        packets.out_count() + small.out_count() + large.out_count()
    }

    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.lock().link, Link::Port(_))
    }

    /// An instance whose super-packets somebody else takes whole, without checksums, on his time.
    #[cfg(feature = "packetdrill")]
    pub(crate) fn driven(config: &Config, clock: Clock) -> Self {
        Self::on_wire(config, clock, device::wire_caps(config.mtu))
    }

    fn on_wire(config: &Config, clock: Clock, caps: Caps) -> Self {
        let mut stack = Stack::new(stack_config(config), caps);
        for hop in PEERS {
            stack.set_neighbor(hop, PEER_MAC);
        }
        Self::with_stack(stack, config, clock, Link::Wire(Wire::default()))
    }

    fn with_stack(stack: Stack, config: &Config, clock: Clock, link: Link) -> Self {
        let ledger: Arc<Ledger> = Arc::default();
        let file_cache = Arc::new(FileCache::new(config.file_cache, ledger.clone()));
        let state = State {
            sockets: Sockets::new(stack, config.secret[0] ^ config.secret[1].rotate_left(32)),
            files: Files::default(),
            clock,
            link,
            ending: false,
            memory: Memory::new(MemoryConfig::within(config.memory)),
            loans: None,
            handed_out: HandedOut::default(),
            crowded: Vec::new(),
            ledger,
            epoch: 0,
            parked: 0,
            running: 0,
            waits: Vec::new(),
        };
        Self {
            state: Mutex::new(state),
            linger: config.linger,
            file_cache,
            generation: generation(),
            changed: Condvar::new(),
            worker: Mutex::new(None),
            #[cfg(feature = "packetdrill")]
            settled: Condvar::new(),
        }
    }

    /// Takes the lock. Every call leaves the state whole, so a panic in another thread does not
    /// spoil it.
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock, lets `act` do a call that does not wait, and sees to what follows.
    pub(crate) fn call<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = act(&mut state);
        self.settle(&mut state);
        result
    }

    /// After a change: sends what there is to send, and wakes calls that may wait for it.
    pub(crate) fn settle(&self, state: &mut State) {
        let State { sockets, memory, ledger, clock, link, .. } = state;
        link.send(sockets, &mut Context { memory, ledger, now: clock.now() });
        let mut news = false;
        while let Some((id, what)) = state.sockets.next_wake() {
            news = true;
            if let Some(fd) = state.files.of_socket(id) {
                state.files.epolls_mut().for_each(|epoll| epoll.note(fd, what.bits()));
                if let Ok(file) = state.files.socket_mut(fd) {
                    file.watchers.wake(what.bits());
                }
            }
        }
        if news {
            self.notify(state);
        }
    }

    /// Lets all waiting calls look again.
    pub(crate) fn notify(&self, state: &mut State) {
        state.epoch += 1;
        state.running += state.parked;
        state.parked = 0;
        self.changed.notify_all();
    }

    /// Does `attempt` until it is anything but [`Errno::AGAIN`], waiting in between for changes:
    /// `timeout` at most, without end if that is `None`, not at all if it is zero.
    pub(crate) fn block<R>(
        &self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut State) -> Outcome<R>,
    ) -> Outcome<R> {
        let mut state = self.lock();
        let deadline = timeout.map(|timeout| state.now() + timeout);
        loop {
            let epoch = state.epoch;
            let result = attempt(&mut state);
            self.settle(&mut state);
            let again = matches!(result, Err(Errno::AGAIN));
            if !again || deadline.is_some_and(|at| at <= state.now()) {
                return result;
            }
            // Settling collects what has come back, which may be what is waited for: nobody would
            // tell of it again.
            if state.epoch == epoch {
                state = self.park(state, deadline);
            }
        }
    }

    /// The same for a socket. `EBADF` if it is closed meanwhile, though its number may be that of
    /// another by then.
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

    /// Waits for a change or the deadline.
    fn park<'a>(&'a self, mut state: Guard<'a>, deadline: Option<Instant>) -> Guard<'a> {
        let epoch = state.epoch;
        state.parked += 1;
        state.running = state.running.saturating_sub(1);
        state.waits.extend(deadline);
        #[cfg(feature = "packetdrill")]
        self.settled.notify_all();
        while state.epoch == epoch {
            let left = deadline.map(|at| at.since(state.now()));
            let waits_for_real = matches!(state.clock, Clock::Real(_));
            state = match left.filter(|_| waits_for_real) {
                Some(Duration::ZERO) => {
                    state.parked -= 1;
                    state.running += 1;
                    break;
                }
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        if let Some(at) = deadline
            && let Some(index) = state.waits.iter().position(|wait| *wait == at)
        {
            state.waits.swap_remove(index);
        }
        state
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a stack on a wire is told: it has one neighbour, for every destination.
fn stack_config(config: &Config) -> stack::Config {
    let alone = |ip: IpAddr| on_link(ip, if ip.is_ipv4() { 32 } else { 128 });
    stack::Config {
        mac: OUR_MAC,
        addresses: config.addresses.iter().map(|&(ip, _)| alone(ip)).collect(),
        next_hops: PEERS.to_vec(),
        transparent: false,
        secret: config.secret,
        tcp: config.tcp,
        limits: Limits::default(),
    }
}

fn on_link(address: IpAddr, prefix_len: u8) -> Address {
    Address { address, prefix_len }
}

/// Next hops of a wire without addresses: from the ranges for documentation, so that they are
/// nobody's.
const PEERS: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 254)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0xfffe)),
];
