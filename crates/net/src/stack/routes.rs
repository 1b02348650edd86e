//! Route metrics that apply to connections, as in Linux's `ip route`.
//!
//! There is one link, so routes do not select a path. The longest matching prefix applies. A new
//! connection takes all metrics of its route, and later follows changes of the packet size only.
//!
//! Bound: [`ROUTES_MAX`].

use super::{Address, PathInfo, Stack, same_prefix};
use crate::tcp::congestion::Kind;
use crate::tcp::ecn::EcnUse;
use crate::tcp::{SegmentSizes, Settings};
use crate::time::Duration;
use crate::wire::tcp::HEADER_LEN;
use crate::wire::{ipv4, ipv6};
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

/// Maximum number of routes; each new connection checks all of them.
pub const ROUTES_MAX: usize = 64;

/// Minimum advertised MSS over IPv4, however small the route's MTU (Linux's `min_adv_mss`).
const ADVMSS_MIN_V4: u32 = 256;
/// Minimum advertised MSS over IPv6: what the minimum MTU allows.
const ADVMSS_MIN_V6: u32 = 1220;
/// Maximum advertised MSS: what an IPv4 packet holds behind two headers without options.
const ADVMSS_MAX: u32 = 65_535 - 40;

/// Metrics of one route. For those that are unset, the connection's own settings apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RouteMetrics {
    /// Largest packet (`mtu`); never above the device's MTU.
    pub mtu: Option<u32>,
    /// ICMP errors do not change the MTU (`mtu lock`).
    pub mtu_locked: bool,
    /// MSS to advertise (`advmss`).
    pub advmss: Option<u32>,
    /// Initial congestion window in segments (`initcwnd`).
    pub initcwnd: Option<u32>,
    /// Initial receive window in segments (`initrwnd`).
    pub initrwnd: Option<u32>,
    /// Minimum retransmission timeout (`rto_min`).
    pub rto_min: Option<Duration>,
    /// Sends every ACK at once (`quickack`).
    pub quickack: bool,
    /// Congestion control (`congctl`).
    pub congestion: Option<Kind>,
    /// Requests ECN (`features ecn`).
    pub ecn: bool,
}

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// An address of the destination network.
    pub destination: IpAddr,
    /// Prefix length in bits.
    pub prefix_len: u8,
    /// Metrics of the route.
    pub metrics: RouteMetrics,
}

/// Error of [`Stack::set_routes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// More than [`ROUTES_MAX`].
    TooMany,
    /// A prefix length exceeds the address length.
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
    /// Replaces all routes.
    ///
    /// # Errors
    /// If there are too many routes or one is invalid; the old routes then stay.
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

    /// Metrics of the route to `destination`.
    pub fn route_metrics(&self, destination: IpAddr) -> RouteMetrics {
        self.tcp.routes.find(destination)
    }

    /// Segment sizes for connections with `remote`.
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

    /// Returns `settings` with the metrics of the route to `remote` applied.
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
            settings.ecn = EcnUse::Request;
        }
        if let Some(segments) = metrics.initrwnd {
            let window = segments.saturating_mul(self.segment_sizes(remote).advertised);
            settings.receive_buffer = settings.receive_buffer.min(window);
        }
        settings
    }
}
