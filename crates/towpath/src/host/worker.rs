//! Hosts: their handles, and the worker behind them.

use super::config::{Config, StartError};
use crate::driver::{AnyDevice, Bell, DeviceError, Worker, boxed};
use crate::host::choosing::calibration::{self, DATAGRAM_BREAK_EVEN};
use crate::host::choosing::trials::Costs;
use crate::host::core::{Core, State};
use crate::host::files::file_cache::{FileCache, FileCacheStats};
use crate::host::lending::budget::{Budget, Levels};
use crate::host::lending::buffers::Buffer;
use crate::host::lending::ticket::{Account, Recall};
use crate::host::link;
use crate::host::resolver::Resolver;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::thread;
use std::time::Duration;
use towpath_io::random::secret;
use towpath_io::tap::{Features, Tap};
use towpath_io::vhost_user::VhostUser;
use towpath_net::counters::DropReason;
use towpath_net::engine::Engine;
use towpath_net::socket::{LentLimits, LentStats, SocketId, Sockets};
use towpath_net::stack::{Address, AddressError, Conflict, OnConflict, Stack};
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::{Device, Ledger, Memory, MemoryConfig};

/// How often [`Host::finish`] checks.
const FINISH_INTERVAL: Duration = Duration::from_millis(2);

/// A TCP/IP stack in this process, and the thread that drives it. Clones share the host.
#[derive(Clone)]
pub struct Host {
    pub(super) owner: Arc<Owner>,
    /// Budget for what all sockets made from this handle lend together.
    group: Option<Arc<Budget>>,
}

/// Ends the worker when the host is no longer used.
pub(super) struct Owner {
    pub(super) core: Arc<Core>,
    pub(super) files: Arc<FileCache>,
    _worker: Worker<State>,
    resolver: Resolver,
    over_device: bool,
    /// Measured when the first socket needs it.
    stream_costs: OnceLock<Arc<Costs>>,
    datagram_costs: OnceLock<Arc<Costs>>,
}

impl Host {
    /// Starts a host on a TAP device. It uses super-packets and checksum offload as far as the
    /// kernel supports them.
    pub fn on_tap(config: &Config, mut tap: Tap) -> Result<Self, StartError> {
        config.check()?;
        tap.set_offload(Features::ALL)?;
        tap.set_mtu(config.mtu);
        Self::on_device(config, |_| tap)
    }

    /// Starts a host on the TAP device `name`, which is created in the calling thread's network
    /// namespace, or attached to if it exists and is free.
    pub fn on_tap_named(config: &Config, name: &str) -> Result<Self, StartError> {
        Self::on_tap(config, Tap::create(name)?)
    }

    /// Starts a host as the back end of a virtual machine's network card. The front end can connect
    /// to the device's socket at any time, and again after each restart.
    pub fn on_vhost_user(config: &Config, device: VhostUser) -> Result<Self, StartError> {
        Self::on_device(config, |_| device)
    }

    /// Starts a host on a device of any kind, which `make` creates. A device without a
    /// [file](Device::file) must wake the waker when packets have arrived, and when there is room
    /// again for packets that it did not accept.
    pub fn on_device<D>(config: &Config, make: impl FnOnce(Waker) -> D) -> Result<Self, StartError>
    where
        D: Device<Error: Into<DeviceError>> + Send + 'static,
    {
        config.check()?;
        let bell = Arc::new(Bell::new()?);
        let device = boxed(make(bell.clone().into()));
        Self::start(config, device, bell)
    }

    /// Starts two hosts with a link between them that carries packets without copying their
    /// payload.
    pub fn pair(a: &Config, b: &Config) -> Result<(Self, Self), StartError> {
        a.check()?;
        b.check()?;
        let bells = [Arc::new(Bell::new()?), Arc::new(Bell::new()?)];
        let [end_a, end_b] = link::pair([a.mtu, b.mtu], bells.clone()).map_err(io::Error::other)?;
        let [bell_a, bell_b] = bells;
        let a = Self::start(a, boxed(end_a), bell_a)?;
        Ok((a, Self::start(b, boxed(end_b), bell_b)?))
    }

    /// Returns a handle to this host whose sockets together lend at most `bytes` at a time.
    pub fn group(&self, bytes: usize) -> Self {
        Self { owner: self.owner.clone(), group: Some(Arc::new(Budget::new(bytes))) }
    }

    /// Returns a buffer of `len` bytes from recycled memory. Its contents are unspecified.
    pub fn buffer(&self, len: usize) -> Buffer {
        self.owner.core.buffers.take(len)
    }

    /// Waits until all sent data is acknowledged and closed connections have ended. Returns false
    /// if that takes longer than `timeout`.
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

    /// Returns the bytes lent by all sockets, including
    /// [`LENT_OVERHEAD`](crate::host::LENT_OVERHEAD) for each send.
    pub fn lent(&self) -> usize {
        self.owner.core.lent.used()
    }

    /// Returns the counters of bytes carried and copied so far, by site.
    pub fn ledger(&self) -> &Ledger {
        &self.owner.core.ledger
    }

    /// Returns statistics of the file blocks in memory
    /// ([`EventQueue::send_file`](crate::events::EventQueue::send_file)).
    pub fn file_cache(&self) -> FileCacheStats {
        self.owner.files.stats()
    }

    /// Returns what is lent now, how long the oldest loan has lasted, and what came back early so
    /// far.
    pub fn lent_stats(&self) -> LentStats {
        let core = &self.owner.core;
        core.lock().engine.protocols.lent_stats(core.clock.now())
    }

    /// Returns the addresses that the host uses now, each with the length of its link's prefix.
    pub fn addresses(&self) -> Vec<(IpAddr, u8)> {
        let state = self.owner.core.lock();
        let ours = state.engine.protocols.stack().addresses().iter();
        ours.map(|ours| (ours.address, ours.prefix_len)).collect()
    }

    /// Adds an address with the length of its link's prefix. It can be used at once. A host that
    /// detects duplicates ([`Config::detect_duplicates`]) probes for the address, and withdraws it
    /// if another station has it (RFC 5227, RFC 4862 §5.4).
    ///
    /// # Errors
    /// The [`AddressError`] names the wrong value, and the host is unchanged.
    pub fn add_address(&self, address: IpAddr, prefix_len: u8) -> Result<(), AddressError> {
        let ours = Address { address, prefix_len };
        self.owner.core.call(|state, now| state.engine.protocols.stack_mut().add_address(ours, now))
    }

    /// Removes an address. Returns false if the host does not have it. Connections from the address
    /// stay, as on Linux: they receive nothing more and end when their retransmissions do.
    pub fn remove_address(&self, address: IpAddr) -> bool {
        self.owner
            .core
            .call(|state, now| state.engine.protocols.stack_mut().remove_address(address, now))
    }

    /// Changes the link-layer address and announces the host's addresses with it, so that other
    /// stations update their entries (RFC 5227 §2.3, RFC 4861 §7.2.6).
    ///
    /// # Errors
    /// [`AddressError::NoStation`] for zero and for addresses of groups.
    pub fn set_mac(&self, mac: MacAddr) -> Result<(), AddressError> {
        self.owner.core.call(|state, now| state.engine.protocols.stack_mut().set_mac(mac, now))
    }

    /// Returns the resolver that finds the addresses of names.
    pub fn resolver(&self) -> &Resolver {
        &self.owner.resolver
    }

    /// Returns the link-layer address.
    pub fn mac(&self) -> MacAddr {
        self.owner.core.lock().engine.protocols.stack().mac()
    }

    /// Returns the number of packets that the stack has dropped, by reason, without zero counts.
    pub fn drops(&self) -> Vec<(DropReason, u64)> {
        self.owner.core.lock().engine.protocols.stack().counters().drops().collect()
    }

    /// Returns the last conflict about each address of this host that another station has too. A
    /// withdrawn address is no longer used.
    pub fn address_conflicts(&self) -> Vec<Conflict> {
        self.owner.core.lock().engine.protocols.stack().conflicts().copied().collect()
    }

    /// Returns the packets, frames and loans in use: received and not read, or sent and not
    /// returned. A TAP device keeps a few frames ready for packets to come. Memory that has just
    /// come back may still be counted for a moment.
    pub fn in_use(&self) -> usize {
        self.owner.core.in_use()
    }

    /// Creates the account of a new socket. `budget` creates the socket's own budget from its size
    /// in bytes.
    pub(super) fn account(&self, id: SocketId, budget: fn(usize) -> Budget) -> Arc<Account> {
        let core = &self.owner.core;
        let socket = budget(core.lent_by_socket);
        let levels = Levels { socket, group: self.group.clone(), all: core.lent.clone() };
        let host: Weak<dyn Recall> = Arc::<Core>::downgrade(core);
        Arc::new(Account::new(levels, Some((host, id))))
    }

    /// Returns the costs by which streams choose between lending and copying.
    pub(super) fn stream_costs(&self) -> Arc<Costs> {
        let Owner { over_device, stream_costs, .. } = &*self.owner;
        let measure = || Arc::new(Costs::new(calibration::break_even(*over_device)));
        stream_costs.get_or_init(measure).clone()
    }

    /// Returns the costs by which datagram sockets choose between lending and copying.
    pub(super) fn datagram_costs(&self) -> Arc<Costs> {
        let make = || Arc::new(Costs::new(DATAGRAM_BREAK_EVEN));
        self.owner.datagram_costs.get_or_init(make).clone()
    }

    fn start(config: &Config, device: AnyDevice, bell: Arc<Bell>) -> Result<Self, StartError> {
        let secret = secret()?;
        let over_device = device.file().is_some();
        let mut stack = Stack::new(config.stack(secret), device.caps());
        if over_device {
            stack.announce_groups(Instant::START);
        }
        let mut sockets = Sockets::new(stack);
        sockets.set_return_waker(bell.clone().into());
        // The host has limits of its own, at which calls wait.
        sockets.set_lent_limits(LentLimits { notices: usize::MAX, pages: None });
        sockets.set_default_term(config.default_term);
        let memory = Memory::new(MemoryConfig::within(config.memory));
        let frames = MemoryConfig::within(Core::frame_bytes(config.memory));
        let frames = Memory::new(MemoryConfig { packets: 0, ..frames });
        let limits = (config.lent_by_socket, config.lent_by_all);
        let engine = Engine::new(sockets, device, memory, Arc::default());
        let core = Arc::new(Core::new(engine, frames, bell, limits));
        if config.detect_duplicates && over_device {
            let now = core.clock.now();
            let mut state = core.lock();
            state.engine.protocols.stack_mut().claim_addresses(OnConflict::Withdraw, now);
        }
        let worker = Worker::start(core.driver.clone())?;
        let (stream_costs, datagram_costs) = Default::default();
        let files = Arc::new(FileCache::new(config.file_cache, core.ledger.clone()));
        let owner = Owner {
            core,
            files,
            _worker: worker,
            resolver: config.resolver.clone(),
            over_device,
            stream_costs,
            datagram_costs,
        };
        Ok(Self { owner: owner.into(), group: None })
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

impl Core {
    fn in_use(&self) -> usize {
        // The worker collects what other threads have given back; the next call sees it.
        self.driver.bell().ring();
        let (packets, loans) = self.lock().in_use();
        packets + loans + self.frames_out()
    }

    fn is_sending(&self) -> bool {
        self.has_submitted() || self.lock().is_sending()
    }
}
