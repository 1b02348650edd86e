//! What routes say about the connections that use them: the metrics of Linux's `ip route`.
//!
//! There is one link, so a route says nothing about the way; of those that fit a destination the
//! one with the longest prefix counts. A connection takes over all that its route says when it
//! begins, and follows it later in the size of packets.
//!
//! Bound: [`ROUTES_MAX`].

use super::{Address, PathInfo, Stack, same_prefix};
use crate::tcp::congestion::Kind;
use crate::tcp::{SegmentSizes, Settings};
use crate::time::Duration;
use crate::wire::tcp::HEADER_LEN;
use crate::wire::{ipv4, ipv6};
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

/// Most routes; each new connection looks at all of them.
pub const ROUTES_MAX: usize = 64;

/// Least segment that is asked for over IPv4, however small the route's packets (Linux's
/// ip_rt_min_advmss).
const ADVMSS_MIN_V4: u32 = 256;
/// The same for IPv6: what every path takes.
const ADVMSS_MIN_V6: u32 = 1220;
/// Largest segment that is asked for, as Linux has it.
const ADVMSS_MAX: u32 = 65_535 - 40;

/// What one route says. Where it says nothing, the connection's own settings count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RouteMetrics {
    /// Largest packet (`mtu`); the device's is never exceeded.
    pub mtu: Option<u32>,
    /// No error changes it (`mtu lock`).
    pub mtu_locked: bool,
    /// Largest segment that peers are asked to send (`advmss`).
    pub advmss: Option<u32>,
    /// Segments that a connection sends at its start (`initcwnd`).
    pub initcwnd: Option<u32>,
    /// Segments that a peer may send at its start (`initrwnd`).
    pub initrwnd: Option<u32>,
    /// Least retransmission timeout (`rto_min`).
    pub rto_min: Option<Duration>,
    /// Every ACK at once (`quickack`).
    pub quickack: bool,
    /// Congestion control (`congctl`).
    pub congestion: Option<Kind>,
    /// Connections ask for ECN (`features ecn`).
    pub ecn: bool,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// An address of the destination.
    pub destination: IpAddr,
    /// Bits of it that count.
    pub prefix_len: u8,
    /// What it says.
    pub metrics: RouteMetrics,
}

/// Why routes cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// More than [`ROUTES_MAX`].
    TooMany,
    /// A prefix that is longer than its address.
    Prefix,
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RouteError::TooMany => "there are too many routes",
            RouteError::Prefix => "a prefix is longer than its address",
        })
    }
}

impl core::error::Error for RouteError {}

/// All routes of a stack.
#[derive(Default)]
pub(super) struct Routes(Vec<Route>);

impl Routes {
    fn find(&self, destination: IpAddr) -> RouteMetrics {
        let fits = |route: &&Route| {
            let prefix = Address { address: route.destination, prefix_len: route.prefix_len };
            same_prefix(&prefix, destination)
        };
        let best = self.0.iter().filter(fits).max_by_key(|route| route.prefix_len);
        best.map(|route| route.metrics).unwrap_or_default()
    }
}

impl Stack {
    /// Takes these routes in the place of those before.
    ///
    /// # Errors
    /// If they are too many, or one is wrong; then those before stay.
    pub fn set_routes(&mut self, routes: &[Route]) -> Result<(), RouteError> {
        if routes.len() > ROUTES_MAX {
            return Err(RouteError::TooMany);
        }
        let right =
            |route: &Route| route.prefix_len <= if route.destination.is_ipv4() { 32 } else { 128 };
        if !routes.iter().all(right) {
            return Err(RouteError::Prefix);
        }
        self.tcp.routes = Routes(routes.to_vec());
        self.paths.change();
        Ok(())
    }

    /// What the route to `destination` says.
    pub fn route_metrics(&self, destination: IpAddr) -> RouteMetrics {
        self.tcp.routes.find(destination)
    }

    /// How large segments to and from `remote` may be.
    pub(super) fn segment_sizes(&self, remote: IpAddr) -> SegmentSizes {
        let (headers, least) = match remote {
            IpAddr::V4(_) => (ipv4::HEADER_LEN + HEADER_LEN, ADVMSS_MIN_V4),
            IpAddr::V6(_) => (ipv6::HEADER_LEN + HEADER_LEN, ADVMSS_MIN_V6),
        };
        let link = u32::from(self.link_mtu(remote)).saturating_sub(headers as u32);
        let PathInfo { mtu, locked } = self.path(remote);
        let path = u32::from(mtu).saturating_sub(headers as u32);
        let advmss = self.route_metrics(remote).advmss;
        let advertised = advmss.unwrap_or(path.max(least.min(link)));
        SegmentSizes { path, link, locked, ..SegmentSizes::of_link(advertised.min(ADVMSS_MAX)) }
    }

    /// The settings of a connection with `remote`, where `settings` are those without a route.
    pub(super) fn routed(&self, remote: IpAddr, mut settings: Settings) -> Settings {
        if self.tcp.routes.0.is_empty() {
            return settings;
        }
        let metrics = self.route_metrics(remote);
        settings.initial_window = metrics.initcwnd.unwrap_or(settings.initial_window);
        settings.rto_min = metrics.rto_min.unwrap_or(settings.rto_min);
        settings.congestion = metrics.congestion.unwrap_or(settings.congestion);
        settings.quickack |= metrics.quickack;
        if metrics.ecn {
            settings.ecn = 1;
        }
        if let Some(segments) = metrics.initrwnd {
            let window = segments.saturating_mul(self.segment_sizes(remote).advertised);
            settings.receive_buffer = settings.receive_buffer.min(window);
        }
        settings
    }
}
