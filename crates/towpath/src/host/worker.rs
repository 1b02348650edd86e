//! Hosts, and the threads that drive them.

use super::bell::Bell;
use super::config::{Config, StartError};
use crate::host::choosing::calibration::{self, DATAGRAM_BREAK_EVEN};
use crate::host::choosing::trials::Costs;
use crate::host::core::{Core, Turn};
use crate::host::files::file_cache::{FileCache, FileCacheStats};
use crate::host::lending::budget::{Budget, Levels};
use crate::host::lending::buffers::Buffer;
use crate::host::lending::ticket::{Account, Recall};
use crate::host::port::link;
use crate::host::port::{Line, Port};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_io::tap::{Features, Tap};
use towpath_io::thread::{Rest, spawn};
use towpath_io::vhost_user::VhostUser;
use towpath_net::counters::DropReason;
use towpath_net::socket::{LentLimits, LentStats, SocketId, Sockets};
use towpath_net::stack::Stack;
use towpath_net::wire::MacAddr;
use towpath_packet::{Ledger, Memory, MemoryConfig};

/// Names of files in the reactor.
const DEVICE: u64 = 0;
const ALARM: u64 = 1;
/// How often [`Host::finish`] looks.
const FINISH_INTERVAL: Duration = Duration::from_millis(2);

/// A stack in this process, and the thread that drives it. Clones are the same host.
#[derive(Clone)]
pub struct Host {
    pub(super) owner: Arc<Owner>,
    /// What all sockets made from this handle may lend together.
    group: Option<Arc<Budget>>,
}

/// Ends the worker when nobody uses the host any more.
pub(super) struct Owner {
    pub(super) core: Arc<Core>,
    pub(super) files: Arc<FileCache>,
    thread: Mutex<Option<JoinHandle<()>>>,
    over_device: bool,
    /// Measured when the first socket wants to know.
    stream_costs: OnceLock<Arc<Costs>>,
    datagram_costs: OnceLock<Arc<Costs>>,
}

impl Host {
    /// A host on a TAP device. Super-packets and checksums are used as far as the kernel agrees.
    pub fn on_tap(config: &Config, mut tap: Tap) -> Result<Self, StartError> {
        config.check()?;
        tap.set_offload(Features::ALL)?;
        tap.set_mtu(config.mtu);
        Self::start(config, Line::Tap(Box::new(tap)), Arc::new(Bell::new()?))
    }

    /// A host on the TAP device `name`, which is made in this thread's network namespace, or
    /// attached to if it is there and free.
    pub fn on_tap_named(config: &Config, name: &str) -> Result<Self, StartError> {
        Self::on_tap(config, Tap::create(name)?)
    }

    /// A host at the other end of a virtual machine's network card: its front end finds the host at
    /// the device's socket, now or later, and again after each restart.
    pub fn on_vhost_user(config: &Config, device: VhostUser) -> Result<Self, StartError> {
        config.check()?;
        Self::start(config, Line::VhostUser(Box::new(device)), Arc::new(Bell::new()?))
    }

    /// Two hosts with a link between them, which carries packets without copying their payload.
    pub fn pair(a: &Config, b: &Config) -> Result<(Self, Self), StartError> {
        a.check()?;
        b.check()?;
        let bells = [Arc::new(Bell::new()?), Arc::new(Bell::new()?)];
        let [end_a, end_b] = link::pair([a.mtu, b.mtu], bells.clone());
        let [bell_a, bell_b] = bells;
        let a = Self::start(a, Line::Link(end_a), bell_a)?;
        Ok((a, Self::start(b, Line::Link(end_b), bell_b)?))
    }

    /// The same host for a user whose sockets together lend at most `bytes` at a time.
    pub fn group(&self, bytes: usize) -> Self {
        Self { owner: self.owner.clone(), group: Some(Arc::new(Budget::new(bytes))) }
    }

    /// A buffer of `len` bytes, from memory that is used again when buffers are dropped. Its bytes
    /// are whatever an earlier use left there.
    pub fn buffer(&self, len: usize) -> Buffer {
        self.owner.core.buffers.take(len)
    }

    /// Waits until all that was sent is acknowledged and closed connections are over. False if
    /// that takes longer than `timeout`.
    pub fn finish(&self, timeout: Duration) -> bool {
        let core = &self.owner.core;
        let mut left = timeout;
        while core.is_sending() {
            if left.is_zero() {
                return false;
            }
            let pause = FINISH_INTERVAL.min(left);
            left -= pause;
            thread::sleep(pause);
        }
        true
    }

    /// Bytes lent by all sockets, with what each send counts beside.
    pub fn lent(&self) -> usize {
        self.owner.core.lent.used()
    }

    /// What was carried and copied so far, and where.
    pub fn ledger(&self) -> &Ledger {
        &self.owner.core.ledger
    }

    /// What is in memory of files that are sent
    /// ([`EventQueue::send_file`](crate::events::EventQueue::send_file)), and how it came there.
    pub fn file_cache(&self) -> FileCacheStats {
        self.owner.files.stats()
    }

    /// What sends have lent now, for how long the oldest, and what came back early so far.
    pub fn lent_stats(&self) -> LentStats {
        let core = &self.owner.core;
        core.lock().sockets.lent_stats(core.clock.now())
    }

    /// The link-layer address.
    pub fn mac(&self) -> MacAddr {
        self.owner.core.lock().sockets.stack().mac()
    }

    /// Packets that the stack dropped so far, by reason; those that never happened are left out.
    pub fn drops(&self) -> Vec<(DropReason, u64)> {
        self.owner.core.lock().sockets.stack().counters().drops().collect()
    }

    /// Packets, frames and loans that are in use: received and not read, or sent and not returned.
    /// A TAP device keeps a few frames ready for what it will receive. What has just come back may
    /// count a moment longer.
    pub fn in_use(&self) -> usize {
        self.owner.core.in_use()
    }

    /// The account of a new socket, whose own budget of so many bytes `budget` makes.
    pub(super) fn account(&self, id: SocketId, budget: fn(usize) -> Budget) -> Arc<Account> {
        let core = &self.owner.core;
        let socket = budget(core.lent_by_socket);
        let levels = Levels { socket, group: self.group.clone(), all: core.lent.clone() };
        let host: Weak<dyn Recall> = Arc::<Core>::downgrade(core);
        Arc::new(Account::new(levels, Some((host, id))))
    }

    /// What calls of streams that choose cost.
    pub(super) fn stream_costs(&self) -> Arc<Costs> {
        let Owner { over_device, stream_costs, .. } = &*self.owner;
        let measure = || Arc::new(Costs::new(calibration::break_even(*over_device)));
        stream_costs.get_or_init(measure).clone()
    }

    /// What calls of datagram sockets that choose cost.
    pub(super) fn datagram_costs(&self) -> Arc<Costs> {
        let make = || Arc::new(Costs::new(DATAGRAM_BREAK_EVEN));
        self.owner.datagram_costs.get_or_init(make).clone()
    }

    fn start(config: &Config, line: Line, bell: Arc<Bell>) -> Result<Self, StartError> {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        let bits = u128::from_ne_bytes(bytes);
        let secret = [bits as u64, (bits >> 64) as u64];
        let port = Port::new(line);
        let stack = Stack::new(config.stack(secret), port.caps());
        let mut sockets = Sockets::new(stack, secret[0] ^ secret[1].rotate_left(32));
        sockets.set_return_waker(bell.clone().into());
        // The host has limits of its own, at which calls wait.
        sockets.set_lent_limits(LentLimits { notices: usize::MAX, pages: None });
        sockets.set_default_term(config.default_term);
        let reactor = Reactor::new()?;
        reactor.add(&*bell, ALARM, Interest::READ, false)?;
        if let Some(fd) = port.fd() {
            reactor.add(fd, DEVICE, Interest::READ, false)?;
        }
        let over_device = port.fd().is_some();
        let memory = Memory::new(MemoryConfig::within(config.memory));
        let frames = MemoryConfig::within(Core::frame_bytes(config.memory));
        let frames = Memory::new(MemoryConfig { packets: 0, ..frames });
        let limits = (config.lent_by_socket, config.lent_by_all);
        let core = Arc::new(Core::new(sockets, (memory, frames), port, bell, limits));
        let served = core.clone();
        let thread = spawn(move || work(&served, reactor))?;
        let thread = Mutex::new(Some(thread));
        let (stream_costs, datagram_costs) = Default::default();
        let files = Arc::new(FileCache::new(config.file_cache, core.ledger.clone()));
        let owner = Owner { core, files, thread, over_device, stream_costs, datagram_costs };
        Ok(Self { owner: owner.into(), group: None })
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.end();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A waker that the worker woke may have been the last to use the host.
        if let Some(thread) = thread.filter(|own| own.thread().id() != thread::current().id()) {
            // A worker that panics ends the process, so there is an end to wait for.
            let _ = thread.join();
        }
    }
}

/// What the worker does.
fn work(core: &Core, mut reactor: Reactor) {
    let mut events = Events::new();
    let (mut watching, mut rest) = (true, Rest::new());
    loop {
        let (due, watched) = match core.turn() {
            Turn::Busy => continue,
            Turn::Idle { due, watched } => (due, watched),
            Turn::End => return,
        };
        if watched != watching {
            watching = watched;
            core.watch(&reactor, watched);
        }
        // The arguments are right; a signal ends the wait without events, and none comes here.
        if rest.wait(&mut reactor, due, &mut events).unwrap_or(false) {
            core.give_back();
        }
        core.bell.is_up(events.iter().any(|event| event.token == ALARM));
    }
}

impl Core {
    /// Begins or ends to watch the device.
    fn watch(&self, reactor: &Reactor, watched: bool) {
        let state = self.lock();
        let Some(fd) = state.port.fd() else { return };
        // The device is in the set exactly if it is watched; a full set is not to be feared.
        let _ = match watched {
            true => reactor.add(fd, DEVICE, Interest::READ, false),
            false => reactor.remove(fd),
        };
    }

    fn in_use(&self) -> usize {
        // The worker takes up what came back on other threads; whoever asks again sees it.
        self.bell.ring();
        let (packets, loans) = self.lock().in_use();
        packets + loans + self.frames_out()
    }

    fn is_sending(&self) -> bool {
        self.has_submitted() || self.lock().is_sending()
    }
}
