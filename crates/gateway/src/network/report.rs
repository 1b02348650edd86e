//! What a network has done.

use std::fmt;

use towpath_io::stream::StreamCounters;
use towpath_io::tap::TapCounters;
use towpath_io::vhost_user::virtq::TransmitCounters;
use towpath_io::vhost_user::{Refusals, VhostUserCounters};
use towpath_net::switch::PortCounters;
use towpath_packet::Caps;

use super::config::{Attachment, PortSettings};
use crate::services;

/// A copy of all counters at one moment.
#[derive(Clone, Debug)]
pub struct NetworkReport {
    /// By port, in the order of their numbers.
    pub ports: Vec<PortReport>,
    /// The gateway's port, if there is one.
    pub gateway: Option<PortCounters>,
    /// Packets that the switch had for the gateway and that found no memory there.
    pub gateway_no_memory: u64,
    /// What guests were told.
    pub services: Option<services::Counters>,
    /// Stations that the switch knows.
    pub stations: usize,
}

/// One port.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// Its name.
    pub name: String,
    /// What is attached.
    pub attachment: Attachment,
    /// How it is set.
    pub settings: PortSettings,
    /// What its device takes.
    pub caps: Caps,
    /// Somebody is there.
    pub is_connected: bool,
    /// Why it is of no use any more.
    pub failure: Option<String>,
    /// Packets that wait for it.
    pub waiting: usize,
    /// What the switch has counted.
    pub counters: PortCounters,
    /// What the device has counted.
    pub device: DeviceReport,
}

/// What a device has counted.
#[derive(Clone, Copy, Debug)]
pub enum DeviceReport {
    /// A vhost-user device, and what its guest sent.
    VhostUser(VhostUserCounters, TransmitCounters),
    /// A stream port.
    Stream {
        /// Of all its connections.
        counters: StreamCounters,
        /// Guests that have connected.
        sessions: u64,
        /// Packets dropped for want of a guest.
        no_guest: u64,
    },
    /// A TAP device.
    Tap(TapCounters),
}

impl fmt::Display for NetworkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stations          {}", self.stations)?;
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
            None if self.is_connected => write!(f, "connected")?,
            None => write!(f, "nobody is there")?,
        }
        fmt_counters(&self.counters, f)?;
        if let Some((lent, recalled)) = self.device.lent() {
            write!(f, "\n  lent            {lent} packets, {recalled} recalled")?;
        }
        if self.device.dropped() > 0 {
            write!(f, "\n  dropped         device {}", self.device.dropped())?;
        }
        for (reason, count) in self.device.refused() {
            write!(f, "\n  refused         {reason} {count}")?;
        }
        Ok(())
    }
}

impl DeviceReport {
    /// Packets that the device did not let through, either way.
    pub fn dropped(&self) -> u64 {
        match self {
            Self::VhostUser(counters, _) => counters.no_guest,
            Self::Stream { counters, no_guest, .. } => {
                counters.receive_short + counters.transmit_cut + no_guest
            }
            Self::Tap(counters) => counters.receive_dropped() + counters.transmit_dropped(),
        }
    }

    /// Packets that a guest lent, and how many of those were copied after all, be it for their term
    /// or for its ring. `None` of devices that cannot lend.
    pub fn lent(&self) -> Option<(u64, u64)> {
        match self {
            Self::VhostUser(_, sent) => Some((sent.lent, sent.recalled)),
            Self::Stream { .. } | Self::Tap(_) => None,
        }
    }

    /// Requests of a front end that were refused, by reason; none of those that did not occur.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let refused = match self {
            Self::VhostUser(counters, _) => counters.refused,
            Self::Stream { .. } | Self::Tap(_) => Refusals::default(),
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
