//! A network: a switch whose ports are virtual machines, TAP devices and stream sockets, with the
//! gateway behind a port of its own.
//!
//! # Theory of operation
//!
//! A [`Network`] is the [`Inside`] of a worker, so one thread owns all ports, unless
//! [`Network::set_workers`] distributes them. It reads the ready ports in turn, one burst at a
//! time, and runs each burst to completion: the switch passes it to the devices of other ports
//! before the next one is read. Packets that a device does not take at once wait in a queue of its
//! port; packets that find no room are dropped and counted. The gateway's queue leads to the
//! worker's stack. All ports share it. So a port with a burst waiting there is not read until less
//! waits: further packets of its guest wait in the guest, and not in front of other guests'
//! packets.
//!
//! All files are registered in a reactor of the network's own, which the worker watches as one
//! file. While it pays, the worker polls the rings of guests. A full TAP device is tried again
//! every [`RETRY`].
//!
//! Ports are added, changed and removed between two turns, by the same thread:
//! [`Network::add_port`] and others, or several changes at once by `Worker::apply`. A port that
//! fails affects no other: it stays, without traffic, and reports the reason. The number of workers
//! changes between two turns, too ([`Network::change_workers`]).
//!
//! The packets of a port can be captured ([`crate::capture`]). Without a capture this costs one
//! branch per burst.
//!
//! Limits: [`NAME_BYTES_MAX`], [`BURSTS_PER_TURN`], [`GATEWAY_QUEUE_LEN`]; and those of the switch
//! and of captures.

mod captures;
mod config;
mod crew;
mod departure;
mod device;
mod evpn;
mod gateway_port;
mod helper;
mod lane;
mod lease_file;
mod links;
mod member;
mod outputs;
mod pace;
mod port;
mod ports;
mod queue;
mod remotes;
mod report;
mod senders;
mod several;
mod share;
mod transaction;
mod tunnel;
mod vxlan;
mod workers;

pub use config::{
    Attachment, BUSY_POLL, BUSY_POLL_MAX, CaptureError, NAME_BYTES_MAX, NETWORK_PORTS_MAX,
    NetworkConfig, PassedTap, PortError, PortSettings, QUEUE_LEN, QUEUE_LEN_MAX, check_port,
    gateway_addresses, services_config,
};
pub use evpn::{Evpn, EvpnError, EvpnReport, EvpnSettings, TellEvpn, vtep};
pub use lease_file::{LEASE_FILE_BYTES_MAX, LeasesFound, ReportLeaseFile, WRITE_AFTER};
pub use pace::Bandwidth;
pub use remotes::{Busy, CHANGES_MAX, ControlEvent, ControlPlane, EVENTS_MAX, PortRemotes};
pub use report::{DeviceReport, EvpnSummary, NetworkReport, PortReport};
pub use several::OtherWorker;
pub use transaction::{Change, Operation, OperationError, TransactionError};
pub use tunnel::{InvalidVxlan, VxlanSettings};
pub use vxlan::VxlanCounters;
pub use workers::WorkersError;

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::pcapng::Direction;
use towpath_net::counters::PortDrop;
use towpath_net::fragment;
use towpath_net::switch::{self, Switch};
use towpath_net::time::{Duration, Instant, earliest};
use towpath_packet::{Burst, Caps, Context, Device, Input, Ledger, Site};

use crate::egress::enforcer::Enforcer;
use crate::report::Report;
use crate::services::{self, Services};
use crate::worker::{Clock, Inside};
use crew::Crew;
use gateway_port::GatewayPort;
use lease_file::LeaseFile;
use member::{Member, switch_config};
use outputs::Outputs;
use port::{Port, Shape, is_short};
use ports::{Forwarded, Ports};
use remotes::Subscriber;
use senders::Senders;
use vxlan::Ends;

/// Delay until a full device that cannot report room is tried again.
pub const RETRY: Duration = Duration::from_millis(1);
/// Bursts read from one port before the others get their turn.
pub const BURSTS_PER_TURN: usize = 4;
/// Packets on the way to the gateway: as many as all ports can send in one turn.
pub const GATEWAY_QUEUE_LEN: usize = 4096;
/// Name of the gateway's port in captures, unless another port has this name.
pub const GATEWAY_NAME: &str = "gateway";

/// A network: a switch with its ports.
pub struct Network {
    config: NetworkConfig,
    switch: Switch,
    /// All ports, by their numbers in the switch.
    members: Vec<Option<Member>>,
    /// What moves their packets.
    ports: Ports,
    ends: Ends,
    gateway: Option<GatewayPort>,
    services: Option<Services>,
    egress: Option<Arc<Enforcer>>,
    lease_file: Option<LeaseFile>,
    tell: Option<Box<Tell>>,
    departed: Option<EventDoorbell>,
    /// The other workers, if there are any.
    crew: Option<Crew>,
    /// What they have copied, by their numbers from 1. Those that have ended count on.
    ledgers: Vec<Arc<Ledger>>,
    /// Memory of all workers together, if [`Network::set_workers`] was called.
    memory_bytes: Option<usize>,
    /// Number of workers that `auto` stands for; one unless [`Network::set_workers`] was called.
    workers_auto: usize,
    /// The clock of the workers' threads, once they serve.
    clock: Option<Clock>,
    /// Numbers of removed ports become free once the ring of the first worker is empty.
    has_numbers_to_release: bool,
    /// The control plane of its tunnels, if there is one.
    subscriber: Option<Subscriber>,
    /// The control plane that [`Network::start_evpn`] made.
    evpn: Option<Evpn>,
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
            members: Vec::new(),
            ports: Ports::new()?,
            ends: Ends::default(),
            gateway: gateway.transpose()?,
            services: None,
            egress: None,
            lease_file: None,
            tell: None,
            departed: None,
            crew: None,
            ledgers: Vec::new(),
            memory_bytes: None,
            workers_auto: 1,
            clock: None,
            has_numbers_to_release: false,
            subscriber: None,
            evpn: None,
            config,
        })
    }

    /// Sets the services that give guests addresses, routers and names.
    pub fn set_services(&mut self, mut services: Services) {
        for member in self.members.iter().flatten() {
            member.introduce(&mut services);
        }
        self.services = Some(services);
    }

    /// Sets what carries out policies: that of the gateway. Without it, ports cannot have a policy
    /// of their own.
    pub fn set_egress(&mut self, egress: Option<Arc<Enforcer>>) {
        self.egress = egress;
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

    /// Returns the largest IP packet, which is advertised to guests.
    pub fn mtu(&self) -> u16 {
        self.config.mtu
    }

    /// Returns the limit for the super-packets of a TAP device (`gso_max_size`, in bytes) with
    /// which VXLAN ports send each in one call, if its segments fill the network's MTU. `None`
    /// without such a port.
    pub fn super_packet_max(&self) -> Option<u32> {
        let mut members = self.members.iter().flatten();
        let has_tunnel = members.any(|member| member.attachment.is_tunnel());
        has_tunnel.then(|| vxlan::super_packet_max(self.config.mtu))
    }

    /// Returns the address at which the VXLAN ports end on this host: that of the first one that
    /// names it.
    pub fn vtep(&self) -> Option<IpAddr> {
        self.members.iter().flatten().find_map(|member| match &member.attachment {
            Attachment::Vxlan(settings) => settings.local,
            _ => None,
        })
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
        if self.port_count() >= NETWORK_PORTS_MAX {
            return Err(PortError::TooMany);
        }
        self.check_egress(&settings)?;
        let mut port = Port::open(&attachment, &settings, &self.config, &mut self.ends)?;
        // Control planes change the remotes of a tunnel between turns of the first worker.
        let worker = if attachment.is_tunnel() { 0 } else { self.least_busy() };
        let id = self.switch.add_port(switch_config(&attachment, &settings, port.caps()))?;
        port.id = Some(id);
        let index = id.index();
        if let Err(error) = self.hand_out(port, index, worker) {
            let _ = self.switch.remove_port(id);
            self.has_numbers_to_release = self.crew.is_some();
            return Err(error.into());
        }
        if self.members.len() <= index {
            self.members.resize_with(index + 1, || None);
        }
        let name = name.to_owned();
        let is_leaving = false;
        let member = Member { name, id, worker, attachment, settings, is_leaving };
        if let Some(services) = &mut self.services {
            member.introduce(services);
        }
        if let Some(egress) = &self.egress {
            member.restrict(egress);
        }
        self.members[index] = Some(member);
        Ok(())
    }

    /// Detaches a port, and drops the packets that wait for it.
    ///
    /// # Errors
    /// [`PortError::Unknown`]; or [`PortError::Os`] if one of several workers does not answer: the
    /// port is no longer part of the network, but its device may still be open.
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
        let Some(member) = &self.members[index] else { return Ok(()) };
        config::check_mtu(&member.attachment, &settings)?;
        self.check_egress(&settings)?;
        let before = Shape::of(&member.settings, self.config.mtu);
        let caps = self.change(index, Shape::of(&settings, self.config.mtu))?;
        let Some(member) = &mut self.members[index] else { return Ok(()) };
        let config = switch_config(&member.attachment, &settings, caps);
        if let Err(error) = self.switch.set_port(member.id, config) {
            // It had this shape before.
            let _ = self.change(index, before);
            return Err(error.into());
        }
        let has_other_policy = member.settings.egress != settings.egress;
        member.settings = settings;
        if let Some(services) = &mut self.services {
            member.introduce(services);
        }
        if let Some(egress) = self.egress.as_ref().filter(|_| has_other_policy) {
            member.restrict(egress);
        }
        Ok(())
    }

    /// Returns the settings of a port.
    ///
    /// # Errors
    /// [`PortError::Unknown`].
    pub fn settings(&self, name: &str) -> Result<&PortSettings, PortError> {
        let index = self.find(name)?;
        Ok(&self.members[index].as_ref().expect("it was found").settings)
    }

    /// Returns the number of ports, without the gateway's.
    pub fn port_count(&self) -> usize {
        self.members.iter().flatten().count()
    }

    /// Checks that something carries out the policy of a port.
    fn check_egress(&self, settings: &PortSettings) -> Result<(), PortError> {
        match settings.egress.is_some() && self.egress.is_none() {
            true => Err(PortError::NoEgress),
            false => Ok(()),
        }
    }

    fn find(&self, name: &str) -> Result<usize, PortError> {
        let is_it = |member: &Member| member.name == name && !member.is_leaving;
        let found = self.members.iter().position(|member| member.as_ref().is_some_and(is_it));
        found.ok_or_else(|| PortError::Unknown { name: name.to_owned(), known: self.names() })
    }

    /// Returns the sorted names of the ports, for the error about an unknown one.
    fn names(&self) -> Vec<String> {
        let members = self.members.iter().flatten().filter(|member| !member.is_leaving);
        let mut names: Vec<String> = members.map(|member| member.name.clone()).collect();
        names.sort_unstable();
        names
    }

    fn remove_at(&mut self, index: usize) -> Result<(), PortError> {
        let Some(Member { id, worker, .. }) = self.members[index].take() else { return Ok(()) };
        let ended = self.end_port(index, worker);
        self.switch.remove_port(id)?;
        self.gateway.iter_mut().for_each(|gateway| gateway.forget(id));
        if let Some(services) = &mut self.services {
            services.forget_port(index as u32);
        }
        if let Some(egress) = &self.egress {
            egress.forget(index as u16);
        }
        ended?;
        self.settle(index)
    }

    /// Adds packets that wait for the gateway to `burst`, as a device delivers them. Messages to a
    /// service are answered here.
    fn receive_for_gateway(&mut self, burst: &mut Burst, cx: &mut Context<'_>) {
        let Self {
            switch, members, ports, gateway: Some(gateway), services, lease_file, crew, ..
        } = self
        else {
            return;
        };
        let mut replies = Burst::new();
        let mut senders = Senders::default();
        while !burst.is_full()
            && let Some(packet) = gateway.take(ports.places_mut(), crew.as_ref())
        {
            if packet.is_inline() {
                cx.ledger.count(Site::GuestSmall, packet.len());
            }
            let Ok(mut packet) = fragment::into_received(packet, cx.memory) else {
                gateway.no_memory += 1;
                continue;
            };
            let from = packet.ingress().and_then(|port| members.get(usize::from(port))?.as_ref());
            if let (Some(services), Some(from)) = (&mut *services, from) {
                let headers = packet.peek_headers();
                if !senders.allows(headers, from, services, cx.now) {
                    switch.count_drop(from.id, PortDrop::AddressSpoofed);
                    continue;
                }
                if from.attachment.is_tunnel() && services::asks_for_configuration(headers) {
                    switch.count_drop(from.id, PortDrop::ForeignRequest);
                    continue;
                }
                let number = from.id.index() as u32;
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
        let Some(from) = self.gateway.as_mut() else { return burst.clear() };
        from.mirrors.see(Direction::Inbound, burst.iter());
        let id = from.id;
        self.forward(id, burst, cx);
    }

    /// Offers waiting packets to the devices again.
    fn flush(&mut self, cx: &mut Context<'_>) {
        self.ports.flush(cx);
        self.tell_departure();
    }
}

impl Device for Network {
    type Error = io::Error;

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ports.as_fd())
    }

    fn caps(&self) -> Caps {
        let config = self.gateway.as_ref().and_then(|gateway| self.switch.config_of(gateway.id));
        config.map_or(Caps::plain(self.config.mtu), |config| config.caps)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let is_left = GatewayPort::waiting(&self.gateway) > 0
            || self.crew.as_ref().is_some_and(Crew::has_packets);
        earliest([
            is_left.then_some(Instant::START),
            self.ports.next_deadline(),
            self.switch.next_deadline(),
            self.services.as_ref().and_then(Services::next_deadline),
            self.lease_file.as_ref().and_then(LeaseFile::deadline),
            self.subscriber.as_ref().and_then(Subscriber::deadline),
        ])
    }

    fn busy_poll(&self) -> Duration {
        self.config.busy_poll
    }

    fn poll(&mut self) -> bool {
        let has_packets = self.crew.as_mut().is_some_and(Crew::look);
        self.ports.look(Port::poll) || has_packets
    }

    fn arm(&mut self) -> bool {
        let has_packets = self.crew.as_mut().is_some_and(Crew::arm);
        self.ports.look(Port::arm) || has_packets
    }

    fn turn(&mut self, is_readable: bool, cx: &mut Context<'_>) -> io::Result<()> {
        let mut is_rung = false;
        if is_readable {
            let heard = self.ports.hear()?;
            is_rung = heard.control;
            if heard.capture_ended {
                self.gateway.iter_mut().for_each(|gateway| gateway.mirrors.reap());
                self.crew.iter().for_each(Crew::reap_captures);
            }
            if heard.bell {
                self.hear_news()?;
            }
        }
        let Self { members, ports, switch, tell, .. } = self;
        ports.turn(cx, |index, port| {
            let Some(member) = &members[index] else { return };
            let caps = port.caps();
            if switch.config_of(member.id).is_some_and(|config| config.caps != caps) {
                // It is a port of the switch, so this cannot fail.
                let _ = switch.set_caps(member.id, caps);
            }
            if let Some(tell) = tell {
                port.take_events(|event| tell(&member.name, event));
            }
        });
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
        self.serve_control(is_rung, cx.now);
        Ok(())
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> io::Result<Input> {
        self.take_packets(cx);
        let users = self.ports.gateway_users(cx.now);
        let Self { members, ports, switch, gateway, services, config, crew, .. } = self;
        let links = crew.as_ref().map(|crew| &crew.links);
        let is_shared = links.map_or(users > 1, |links| links.share_gateway(users));
        let input = ports.read(is_shared, cx, |ports, index, burst, cx| {
            let Some(Member { id, .. }) = members[index] else {
                burst.clear();
                return Forwarded { bytes: 0, to_gateway: 0, to_judge: 0 };
            };
            let waited = GatewayPort::waiting(gateway);
            let is_short = is_short(cx.memory);
            let is_short = links.map_or(is_short, |links| links.share_shortage(is_short));
            let now = cx.now;
            let mut outputs =
                Outputs { ports, members, gateway, services, config, now, is_short, links };
            let bytes = outputs.forward(switch, id, burst, cx);
            let to_gateway = GatewayPort::waiting(gateway) - waited;
            Forwarded { bytes, to_gateway, to_judge: 0 }
        });
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
        self.ports.rest();
    }
}

impl Inside for Network {
    fn address_of(&self, guest: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr> {
        self.services.as_ref()?.address_of(guest, is_ipv4, now)
    }

    fn add_to(&self, report: &mut Report) {
        self.add_figures(report);
    }
}

#[cfg(test)]
mod testing;
