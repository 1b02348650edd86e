//! A network: a switch whose ports are virtual machines, TAP devices and stream sockets, with the
//! gateway behind a port of its own.
//!
//! # Theory of operation
//!
//! A [`Network`] is the [`Inside`] of a worker, so one thread owns all ports. It reads the ready
//! ports in turn, one burst at a time, and runs each burst to completion: the switch passes it to
//! the devices of other ports before the next one is read. Packets that a device does not take at
//! once wait in a queue of its port; packets that find no room are dropped and counted. The
//! gateway's queue leads to the worker's stack. All ports share it. So a port with a burst waiting
//! there is not read until less waits: further packets of its guest wait in the guest, and not in
//! front of other guests' packets.
//!
//! All files are registered in a reactor of the network's own, which the worker watches as one
//! file. While it pays, the worker polls the rings of guests. A full TAP device is tried again
//! every [`RETRY`].
//!
//! Ports are added, changed and removed between two turns, by the same thread:
//! [`Network::add_port`] and others, or several changes at once by `Worker::apply`. A port that
//! fails affects no other: it stays, without traffic, and reports the reason.
//!
//! The packets of a port can be captured ([`crate::capture`]). Without a capture this costs one
//! branch per burst.
//!
//! Limits: [`NAME_BYTES_MAX`], [`BURSTS_PER_TURN`], [`GATEWAY_QUEUE_LEN`]; and those of the switch
//! and of captures.

mod config;
mod departure;
mod device;
mod gateway_port;
mod lane;
mod lease_file;
mod outputs;
mod port;
mod queue;
mod report;
mod senders;
mod share;
mod transaction;

pub use config::{
    Attachment, BUSY_POLL, BUSY_POLL_MAX, CaptureError, NAME_BYTES_MAX, NETWORK_PORTS_MAX,
    NetworkConfig, PortError, PortSettings, QUEUE_LEN, QUEUE_LEN_MAX, check_port,
    gateway_addresses, services_config,
};
pub use lease_file::{LEASE_FILE_BYTES_MAX, LeasesFound, ReportLeaseFile, WRITE_AFTER};
pub use report::{DeviceReport, NetworkReport, PortReport};
pub use transaction::{Change, Operation, OperationError, TransactionError};

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::pcapng::Direction;
use towpath_io::reactor::{Events, Interest, Reactor};
use towpath_net::counters::PortDrop;
use towpath_net::fragment;
use towpath_net::switch::{self, Switch};
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Burst, Caps, Context, Device, Input, Site};

use crate::capture::{CAPTURES_MAX, CaptureSettings, Mirrors, Sniffer};
use crate::report::Report;
use crate::services::{self, Services};
use crate::worker::Inside;
use gateway_port::GatewayPort;
use lease_file::LeaseFile;
use outputs::Outputs;
use port::Port;
use senders::Senders;

/// Delay until a full device that cannot report room is tried again.
pub const RETRY: Duration = Duration::from_millis(1);
/// Bursts read from one port before the others get their turn.
pub const BURSTS_PER_TURN: usize = 4;
/// Packets on the way to the gateway: as many as all ports can send in one turn.
pub const GATEWAY_QUEUE_LEN: usize = 4096;
/// Name of the gateway's port in captures, unless another port has this name.
pub const GATEWAY_NAME: &str = "gateway";
/// Token of the doorbell that captures ring when their readers are gone; tokens of ports are
/// smaller.
const CAPTURE_ENDED: u64 = u64::MAX;

/// A network: a switch with its ports.
pub struct Network {
    config: NetworkConfig,
    switch: Switch,
    /// The ports, by their numbers in the switch.
    ports: Vec<Option<Port>>,
    gateway: Option<GatewayPort>,
    services: Option<Services>,
    lease_file: Option<LeaseFile>,
    reactor: Reactor,
    events: Box<Events>,
    received: Burst,
    /// The port to be read first, which changes so that none is always last.
    first: usize,
    tell: Option<Box<Tell>>,
    /// Rung by captures that end; made with the first capture.
    capture_ended: Option<EventDoorbell>,
    departed: Option<EventDoorbell>,
}

/// Called for events at a port, with its name and a description.
pub type Tell = dyn FnMut(&str, &dyn Display) + Send;

impl Network {
    /// Makes a network without ports, except the gateway's if it is configured.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn new(config: NetworkConfig) -> Result<Self, PortError> {
        let mut switch = Switch::new(switch::Config {
            copies_payload: config.orphan,
            seed: config.seed,
            ..switch::Config::default()
        });
        let gateway = config.gateway.map(|mac| GatewayPort::new(&mut switch, mac, config.mtu));
        Ok(Self {
            switch,
            ports: Vec::new(),
            gateway: gateway.transpose()?,
            services: None,
            lease_file: None,
            reactor: Reactor::new()?,
            events: Box::default(),
            received: Burst::new(),
            first: 0,
            tell: None,
            capture_ended: None,
            departed: None,
            config,
        })
    }

    /// Sets the services that give guests addresses, routers and names.
    pub fn set_services(&mut self, mut services: Services) {
        for (index, port) in self.ports.iter().enumerate() {
            if let Some(port) = port {
                port.introduce(index, &mut services);
            }
        }
        self.services = Some(services);
    }

    /// Restores the leases in a file, and keeps the file up to date from now on. Does nothing
    /// without services. Another thread calls `tell`.
    ///
    /// # Errors
    /// The file exists and cannot be read, or nothing can be written next to it; with
    /// [`io::ErrorKind::ResourceBusy`], another network keeps its leases there. Leases are not kept
    /// then.
    pub fn keep_leases(
        &mut self,
        path: &Path,
        now: Instant,
        tell: ReportLeaseFile,
    ) -> io::Result<LeasesFound> {
        let Some(services) = &mut self.services else { return Ok(LeasesFound::default()) };
        let (file, found) = LeaseFile::open(path, services, now, tell)?;
        self.lease_file = Some(file);
        Ok(found)
    }

    /// Returns true if there is a gateway.
    pub fn has_gateway(&self) -> bool {
        self.gateway.is_some()
    }

    /// Returns the services.
    pub fn services(&self) -> Option<&Services> {
        self.services.as_ref()
    }

    /// Sets `tell`, which is called for events at ports such as connections and rejected requests.
    pub fn on_news(&mut self, tell: Box<Tell>) {
        self.tell = Some(tell);
    }

    /// Advertises to guests that the gateway is gone, as the last action.
    pub fn shut_down(&mut self, cx: &mut Context<'_>) {
        let mut replies = Burst::new();
        if let Some(services) = &mut self.services {
            services.shut_down(cx, &mut replies);
            if let Some(file) = self.lease_file.take() {
                file.close(services, cx.now);
            }
        }
        self.send(&mut replies, cx);
        self.flush(cx);
    }

    /// Attaches a port. It is served from the worker's next turn on.
    ///
    /// # Errors
    /// [`PortError`]; nothing was changed.
    pub fn add_port(
        &mut self,
        name: &str,
        attachment: Attachment,
        settings: PortSettings,
    ) -> Result<(), PortError> {
        config::check_name(name)?;
        if self.find(name).is_ok() {
            return Err(PortError::Exists(name.to_owned()));
        }
        if self.ports.iter().flatten().count() >= NETWORK_PORTS_MAX {
            return Err(PortError::TooMany);
        }
        let mut port = Port::open(name, attachment, settings, &self.config)?;
        let id = self.switch.add_port(port.switch_config())?;
        let index = id.index();
        if let Err(error) = self.reactor.add(&port, index as u64, Interest::READ, false) {
            let _ = self.switch.remove_port(id);
            return Err(error.into());
        }
        port.id = Some(id);
        if let Some(services) = &mut self.services {
            port.introduce(index, services);
        }
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
        }
        self.ports[index] = Some(port);
        Ok(())
    }

    /// Detaches a port, and drops the packets that wait for it.
    ///
    /// # Errors
    /// [`PortError::Unknown`].
    pub fn remove_port(&mut self, name: &str) -> Result<(), PortError> {
        let index = self.find(name)?;
        self.remove_at(index)
    }

    /// Changes a port while packets flow, without loss or reordering.
    ///
    /// # Errors
    /// [`PortError`]; nothing was changed.
    pub fn set_port(&mut self, name: &str, settings: PortSettings) -> Result<(), PortError> {
        let index = self.find(name)?;
        let Some(port) = &mut self.ports[index] else { return Ok(()) };
        let before = port.settings.clone();
        port.change(settings, &self.config)?;
        let Some(id) = port.id else { return Ok(()) };
        if let Err(error) = self.switch.set_port(id, port.switch_config()) {
            // It had these settings before.
            let _ = port.change(before, &self.config);
            return Err(error.into());
        }
        if let Some(services) = &mut self.services {
            port.introduce(index, services);
        }
        Ok(())
    }

    /// Begins a capture of a port, or of the gateway's ([`GATEWAY_NAME`]). The capture ends when
    /// the sniffer is dropped or the port is removed.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing was changed.
    pub fn capture(
        &mut self,
        name: &str,
        settings: CaptureSettings,
        cx: &Context<'_>,
    ) -> Result<Sniffer, CaptureError> {
        let ended = match &self.capture_ended {
            Some(ended) => ended.clone(),
            None => {
                let ended = EventDoorbell::new().map_err(io::Error::from)?;
                self.reactor.add(&ended, CAPTURE_ENDED, Interest::READ, false)?;
                self.capture_ended.insert(ended).clone()
            }
        };
        self.reap_captures();
        if self.mirrors().map(|mirrors| mirrors.len()).sum::<usize>() == CAPTURES_MAX {
            return Err(CaptureError::TooMany);
        }
        let mirrors = match (self.find(name), &mut self.gateway) {
            (Err(_), Some(gateway)) if name == GATEWAY_NAME => &mut gateway.mirrors,
            (found, _) => &mut self.ports[found?].as_mut().expect("it was found").mirrors,
        };
        Ok(mirrors.add(settings, cx.memory.capacity_bytes(), Some(ended))?)
    }

    /// Returns the settings of a port.
    ///
    /// # Errors
    /// [`PortError::Unknown`].
    pub fn settings(&self, name: &str) -> Result<&PortSettings, PortError> {
        let index = self.find(name)?;
        Ok(&self.ports[index].as_ref().expect("it was found").settings)
    }

    /// Returns the number of ports, without the gateway's.
    pub fn port_count(&self) -> usize {
        self.ports.iter().flatten().count()
    }

    /// Returns the counters so far.
    pub fn report(&self, now: Instant) -> NetworkReport {
        let ports = self.ports.iter().flatten();
        let stations = self.switch.stations(now).count();
        let gateway = self.gateway.as_ref().map(|gateway| gateway.id);
        NetworkReport {
            ports: ports.map(|port| port.report(&self.switch)).collect(),
            gateway: gateway.and_then(|id| self.switch.counters_of(id)).cloned(),
            gateway_no_memory: self.gateway.as_ref().map_or(0, |gateway| gateway.no_memory),
            stations,
            services: self.services.as_ref().map(Services::counters),
        }
    }

    fn find(&self, name: &str) -> Result<usize, PortError> {
        let is_it = |port: &Port| port.name == name && !port.is_leaving;
        let found = self.ports.iter().position(|port| port.as_ref().is_some_and(is_it));
        found.ok_or_else(|| PortError::Unknown { name: name.to_owned(), known: self.names() })
    }

    /// Returns the sorted names of the ports, for the error about an unknown one.
    fn names(&self) -> Vec<String> {
        let ports = self.ports.iter().flatten().filter(|port| !port.is_leaving);
        let mut names: Vec<String> = ports.map(|port| port.name.clone()).collect();
        names.sort_unstable();
        names
    }

    fn mirrors(&mut self) -> impl Iterator<Item = &mut Mirrors> {
        let ports = self.ports.iter_mut().flatten().map(|port| &mut port.mirrors);
        ports.chain(self.gateway.as_mut().map(|gateway| &mut gateway.mirrors))
    }

    fn reap_captures(&mut self) {
        self.capture_ended.iter().for_each(EventDoorbell::clear);
        self.mirrors().for_each(Mirrors::reap);
    }

    fn remove_at(&mut self, index: usize) -> Result<(), PortError> {
        let Some(port) = self.ports[index].take() else { return Ok(()) };
        // The port is registered and still open.
        let _ = self.reactor.remove(&port);
        if let Some(id) = port.id {
            self.switch.remove_port(id)?;
            self.gateway.iter_mut().for_each(|gateway| gateway.forget(id));
        }
        if let Some(services) = &mut self.services {
            services.forget_port(index as u32);
        }
        Ok(())
    }

    /// Checks each port for work, and marks those that have some for the next turn. Returns true if
    /// there are any.
    fn look(&mut self, has_work: impl Fn(&mut Port) -> bool) -> bool {
        let mut any = false;
        for port in self.ports.iter_mut().flatten() {
            if has_work(port) {
                (port.is_ready, any) = (true, true);
            }
        }
        any
    }

    /// Collects which files are readable.
    fn hear(&mut self) -> io::Result<()> {
        self.reactor.wait(Some(Duration::ZERO), &mut self.events)?;
        if self.events.iter().any(|event| event.token == CAPTURE_ENDED) {
            self.reap_captures();
        }
        for event in self.events.iter() {
            let Some(Some(port)) = self.ports.get_mut(event.token as usize) else { continue };
            let is_of_use = !port.has_failed();
            (port.has_news, port.is_ready) = (is_of_use, is_of_use);
            if !is_of_use {
                // The file of a failed port stays readable. It is registered and still open.
                let _ = self.reactor.remove(&*port);
            }
        }
        Ok(())
    }

    /// Reads a port that is ready, and forwards its packets. `is_shared`: several ports use the
    /// gateway.
    fn read(&mut self, index: usize, is_shared: bool, cx: &mut Context<'_>) -> Input {
        let Self { ports, switch, gateway, received, services, config, .. } = self;
        for _ in 0..BURSTS_PER_TURN {
            let Some(port) = &mut ports[index] else { return Input::Done };
            let Some(id) = port.id.filter(|_| port.is_ready) else { return Input::Done };
            let room = port.share.room(is_shared, cx.now);
            if room == 0 {
                // There is a next turn as long as packets wait for the gateway.
                return Input::Done;
            }
            received.limit(room);
            let waited = GatewayPort::waiting(gateway);
            let input = port.receive(received, cx);
            // A burst that is not full has emptied the port; its file reports when there is more.
            port.is_ready = received.is_full();
            if received.is_empty() {
                return input;
            }
            let (packets, now) = (received.len(), cx.now);
            let is_short = outputs::is_short(cx.memory);
            let mut outputs = Outputs { ports, gateway, services, config, now, is_short };
            let bytes = outputs.forward(switch, id, received, cx);
            if let Some(port) = &mut ports[index] {
                let waiting = GatewayPort::waiting(gateway) - waited;
                port.share.came(packets, bytes as usize, waiting, now);
            }
            if input == Input::NoMemory {
                return input;
            }
        }
        Input::Done
    }

    /// Adds packets that wait for the gateway to `burst`, as a device delivers them. Messages to a
    /// service are answered here.
    fn receive_for_gateway(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        let Self { switch, ports, gateway: Some(gateway), services, lease_file, .. } = self else {
            return;
        };
        let mut replies = Burst::new();
        let mut senders = Senders::default();
        while !burst.is_full()
            && let Some(packet) = gateway.take(ports)
        {
            if packet.is_inline() {
                cx.ledger.count(Site::GuestSmall, packet.len());
            }
            let Ok(mut packet) = fragment::into_received(packet, cx.memory) else {
                gateway.no_memory += 1;
                continue;
            };
            let port = packet.ingress().and_then(|port| ports.get(usize::from(port))?.as_ref());
            if let (Some(services), Some(port)) = (&mut *services, port)
                && let Some(id) = port.id
            {
                let headers = packet.peek_headers();
                if !senders.allows(headers, port, services, cx.now) {
                    switch.count_drop(id, PortDrop::AddressSpoofed);
                    continue;
                }
                let number = id.index() as u32;
                if services::concerns(headers)
                    && services.intercept(number, &mut packet, cx, &mut replies)
                {
                    continue;
                }
            }
            burst.push(packet).expect("the burst has room");
        }
        if let (Some(services), Some(file)) = (services, lease_file)
            && services.take_changed()
        {
            file.changed(cx.now);
        }
        if !replies.is_empty() {
            self.send(&mut replies, cx);
            self.flush(cx);
        }
    }

    /// Sends packets from the gateway's port.
    fn send(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        let Self { switch, ports, gateway, services, config, .. } = self;
        let Some(from) = gateway.as_mut() else { return burst.clear() };
        from.mirrors.see(Direction::Inbound, burst.iter());
        let (id, now, is_short) = (from.id, cx.now, outputs::is_short(cx.memory));
        let mut outputs = Outputs { ports, gateway, services, config, now, is_short };
        outputs.forward(switch, id, burst, cx);
    }

    /// Offers waiting packets to the devices again.
    fn flush(&mut self, cx: &mut Context<'_>) {
        for port in self.ports.iter_mut().flatten() {
            port.flush(cx);
        }
        self.tell_departure();
    }
}

impl Device for Network {
    type Error = io::Error;

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reactor.as_fd())
    }

    fn caps(&self) -> Caps {
        let config = self.gateway.as_ref().and_then(|gateway| self.switch.config_of(gateway.id));
        config.map_or(Caps::plain(self.config.mtu), |config| config.caps)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let ports = self.ports.iter().flatten();
        let is_left =
            GatewayPort::waiting(&self.gateway) > 0 || ports.clone().any(|port| port.is_ready);
        let at_once = is_left.then(|| Instant::from_micros(0));
        let ports = ports.filter_map(|port| port.deadline);
        let services = self.services.as_ref().and_then(Services::next_deadline);
        let file = self.lease_file.as_ref().and_then(LeaseFile::deadline);
        ports.chain(at_once).chain(self.switch.next_deadline()).chain(services).chain(file).min()
    }

    fn busy_poll(&self) -> Duration {
        self.config.busy_poll
    }

    fn poll(&mut self) -> bool {
        self.look(Port::poll)
    }

    fn arm(&mut self) -> bool {
        self.look(Port::arm)
    }

    fn turn(&mut self, is_readable: bool, cx: &mut Context<'_>) -> io::Result<()> {
        if is_readable {
            self.hear()?;
        }
        for port in self.ports.iter_mut().flatten() {
            let is_due = port.deadline.is_some_and(|at| at <= cx.now);
            if (port.has_news || is_due)
                && port.turn(cx)
                && let Some(id) = port.id
            {
                // It is a port of the switch, so this cannot fail.
                let _ = self.switch.set_caps(id, port.caps());
                if let Some(tell) = &mut self.tell {
                    port.report_events(tell);
                }
            }
        }
        if self.switch.next_deadline().is_some_and(|at| at <= cx.now) {
            self.switch.expire(cx.now);
        }
        if let Some(services) = &mut self.services
            && services.next_deadline().is_some_and(|at| at <= cx.now)
        {
            let mut replies = Burst::new();
            services.on_deadline(cx, &mut replies);
            self.send(&mut replies, cx);
            self.flush(cx);
        }
        if let (Some(services), Some(file)) = (&self.services, &mut self.lease_file) {
            file.turn(services, cx.now);
        }
        Ok(())
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> io::Result<Input> {
        let mut input = Input::Done;
        let count = self.ports.len();
        let users = self.ports.iter().flatten().filter(|port| port.share.is_used(cx.now));
        let is_shared = users.take(2).count() > 1;
        for step in 0..count {
            let index = (self.first + step) % count;
            if self.read(index, is_shared, cx) == Input::NoMemory {
                input = Input::NoMemory;
                self.first = index;
                break;
            }
        }
        self.first = (self.first + 1) % count.max(1);
        self.flush(cx);
        self.receive_for_gateway(burst, cx);
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> io::Result<()> {
        self.send(burst, cx);
        self.flush(cx);
        Ok(())
    }

    fn rest(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            port.rest();
        }
    }
}

impl Inside for Network {
    fn address_of(&self, guest: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr> {
        self.services.as_ref()?.address_of(guest, is_ipv4, now)
    }

    fn add_to(&self, report: &mut Report) {
        let ports = self.ports.iter().flatten().map(|port| port.report(&self.switch));
        let lent = ports.filter_map(|port| port.device.lent());
        report.recalled = lent.map(|(_, recalled)| recalled).sum();
    }
}
