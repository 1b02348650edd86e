//! Counters of a network.

use std::fmt;
use std::net::IpAddr;

use towpath_evpn::session::{self, State};
use towpath_evpn::{Counters, RouteCounts};
use towpath_io::stream::StreamCounters;
use towpath_io::tap::TapCounters;
use towpath_io::uplink::{UplinkCounters, Way};
use towpath_io::vhost_user::virtq::TransmitCounters;
use towpath_io::vhost_user::{Refusals, VhostUserCounters};
use towpath_net::switch::PortCounters;
use towpath_net::time::Instant;
use towpath_packet::Caps;

use super::Network;
use super::config::{Attachment, PortSettings};
use super::vxlan::VxlanCounters;
use crate::services::{self, Services};

/// A copy of all counters at one moment.
#[derive(Clone, Debug)]
pub struct NetworkReport {
    /// Number of workers.
    pub workers: usize,
    /// The ports, in the order of their numbers.
    pub ports: Vec<PortReport>,
    /// The gateway's port, if there is one.
    pub gateway: Option<PortCounters>,
    /// Packets for the gateway that were dropped for lack of memory.
    pub gateway_no_memory: u64,
    /// Counters of BGP EVPN, if it runs.
    pub evpn: Option<EvpnSummary>,
    /// Counters of the services.
    pub services: Option<services::Counters>,
    /// Number of stations that the switch knows.
    pub stations: usize,
}

/// Settings, state and counters of one port.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// The number of the worker that moves its packets, from 0.
    pub worker: usize,
    /// Its device.
    pub attachment: Attachment,
    /// Its settings.
    pub settings: PortSettings,
    /// What its device takes.
    pub caps: Caps,
    /// A guest is connected, or the interface is up.
    pub is_connected: bool,
    /// Why it has failed.
    pub failure: Option<String>,
    /// Packets that wait for it.
    pub waiting: usize,
    /// Counters of the switch.
    pub counters: PortCounters,
    /// Counters of the device.
    pub device: DeviceReport,
}

/// State of a port, as the thread knows it that moves its packets.
#[derive(Clone, Debug)]
pub(super) struct PortState {
    pub(super) caps: Caps,
    pub(super) is_connected: bool,
    pub(super) failure: Option<String>,
    pub(super) waiting: usize,
    pub(super) device: DeviceReport,
}

/// Counters of a device.
#[derive(Clone, Copy, Debug)]
pub enum DeviceReport {
    /// A vhost-user device, and its guest's transmit counters.
    VhostUser(VhostUserCounters, TransmitCounters),
    /// A stream port.
    Stream {
        /// Counters of all its connections.
        counters: StreamCounters,
        /// Guests that have connected.
        sessions: u64,
        /// Packets dropped because no guest was connected.
        no_guest: u64,
    },
    /// A TAP device.
    Tap(TapCounters),
    /// An uplink, and how frames pass.
    Uplink(UplinkCounters, Way),
    /// A VXLAN port.
    Vxlan(VxlanCounters),
}

/// Counters of a control plane.
#[derive(Clone, Debug)]
pub struct EvpnSummary {
    /// Neighbours, in the order of the settings, with the states of their sessions and what passed.
    pub sessions: Vec<(IpAddr, State, session::Counters)>,
    /// How many routes there are now.
    pub routes: RouteCounts,
    /// What happened to routes.
    pub counters: Counters,
}

impl EvpnSummary {
    /// Returns how many sessions are in each state, by the state's name.
    pub fn states(&self) -> [(&'static str, usize); State::ALL.len()] {
        State::ALL.map(|state| (state.name(), self.in_state(state)))
    }

    fn in_state(&self, state: State) -> usize {
        self.sessions.iter().filter(|(_, of, _)| *of == state).count()
    }

    /// Returns why received routes are not in use, with the number of routes.
    pub fn unused(&self) -> [(&'static str, u64); 5] {
        let Counters { ignored, own, foreign, unusable, full, .. } = self.counters;
        [
            ("ignored", ignored),
            ("own", own),
            ("foreign", foreign),
            ("unusable", unusable),
            ("full", full),
        ]
    }
}

impl fmt::Display for EvpnSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sessions, routes, counters, .. } = self;
        write!(
            f,
            "{} of {} sessions, {} routes received, {} announced, {} moves, {} duplicates, {} \
             frozen",
            self.in_state(State::Established),
            sessions.len(),
            routes.stations_received + routes.floods_received,
            routes.stations_announced + routes.floods_announced,
            counters.moved_here + counters.moved_away,
            counters.duplicates,
            routes.frozen
        )
    }
}

impl fmt::Display for NetworkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stations          {}", self.stations)?;
        if self.workers > 1 {
            write!(f, "\nworkers           {}", self.workers)?;
        }
        if let Some(services) = &self.services {
            write!(
                f,
                "\nservices          {} leases, {} refused, {} advertisements, {} names",
                services.acks,
                services.naks + services.port_full + services.pool_exhausted,
                services.advertisements,
                services.names_answered
            )?;
        }
        if let Some(evpn) = &self.evpn {
            write!(f, "\nevpn              {evpn}")?;
        }
        for port in &self.ports {
            write!(f, "\n{port}")?;
        }
        match &self.gateway {
            Some(counters) => {
                write!(f, "\nport              gateway")?;
                fmt_counters(counters, f)?;
                match self.gateway_no_memory {
                    0 => Ok(()),
                    count => write!(f, "\n  dropped         no_memory {count}"),
                }
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port              {} {}: ", self.name, self.attachment)?;
        match &self.failure {
            Some(failure) => write!(f, "{failure}")?,
            None => f.write_str(self.state())?,
        }
        if let DeviceReport::Uplink(_, way) = &self.device {
            write!(f, ", {way}")?;
        }
        if self.worker > 0 {
            write!(f, ", worker {}", self.worker)?;
        }
        fmt_counters(&self.counters, f)?;
        if let Some((lent, recalled)) = self.device.lent() {
            write!(f, "\n  lent            {lent} packets, {recalled} recalled")?;
        }
        for (reason, count) in self.device.drops().filter(|(_, count)| *count > 0) {
            write!(f, "\n  dropped         {reason} {count}")?;
        }
        for (reason, count) in self.device.refused() {
            write!(f, "\n  refused         {reason} {count}")?;
        }
        Ok(())
    }
}

impl PortReport {
    /// Returns the state of a port that has not failed, in words.
    pub fn state(&self) -> &'static str {
        if !self.settings.is_up {
            return "the link is down";
        }
        match (&self.device, self.is_connected) {
            (DeviceReport::Uplink(..), true) | (DeviceReport::Vxlan(_), _) => "up",
            (DeviceReport::Uplink(..), false) => "the interface is down",
            (_, true) => "connected",
            (_, false) => "disconnected",
        }
    }
}

impl DeviceReport {
    /// Returns the packets that the device dropped, in both directions.
    pub fn dropped(&self) -> u64 {
        match self {
            Self::VhostUser(counters, _) => counters.no_guest,
            Self::Stream { counters, no_guest, .. } => {
                counters.receive_short + counters.transmit_cut + no_guest
            }
            Self::Tap(counters) => counters.receive_dropped() + counters.transmit_dropped(),
            Self::Uplink(counters, _) => counters.receive_dropped() + counters.transmit_dropped(),
            Self::Vxlan(counters) => counters.dropped(),
        }
    }

    /// Returns the packets that the device dropped, by reason: `device` for devices that do not
    /// tell reasons apart.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let (one, all) = match self {
            Self::Vxlan(counters) => (None, Some(counters.drops())),
            _ => (Some(("device", self.dropped())), None),
        };
        one.into_iter().chain(all.into_iter().flatten())
    }

    /// Returns the packets that a guest lent, and how many of them became copies, at the end of
    /// their term or because its ring ran short. `None` for devices that cannot lend.
    pub fn lent(&self) -> Option<(u64, u64)> {
        match self {
            Self::VhostUser(_, sent) => Some((sent.lent, sent.recalled)),
            Self::Stream { .. } | Self::Tap(_) | Self::Uplink(..) | Self::Vxlan(_) => None,
        }
    }

    /// Returns the rejected requests of a front end, by reason, without reasons that did not occur.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let refused = match self {
            Self::VhostUser(counters, _) => counters.refused,
            Self::Stream { .. } | Self::Tap(_) | Self::Uplink(..) | Self::Vxlan(_) => {
                Refusals::default()
            }
        };
        refused.reasons().into_iter().filter(|(_, count)| *count > 0)
    }
}

fn fmt_counters(counters: &PortCounters, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(
        f,
        "\n  in              {} packets, {} super-packets, {} bytes\n  \
         out             {} packets, {} super-packets, {} bytes, {} cut",
        counters.packets_in,
        counters.super_packets_in,
        counters.bytes_in,
        counters.packets_out,
        counters.super_packets_out,
        counters.bytes_out,
        counters.cut
    )?;
    for (reason, count) in counters.drops() {
        write!(f, "\n  dropped         {} {count}", reason.name())?;
    }
    Ok(())
}

impl Network {
    /// Returns the counters so far.
    pub fn report(&self, now: Instant) -> NetworkReport {
        let (ports, gateway) = self.figures(&self.other_reports());
        NetworkReport {
            workers: self.worker_count(),
            ports,
            gateway,
            gateway_no_memory: self.gateway.as_ref().map_or(0, |gateway| gateway.no_memory),
            stations: self.switch.stations(now).count(),
            evpn: self.evpn().map(|evpn| evpn.summary()),
            services: self.services.as_ref().map(Services::counters),
        }
    }
}
