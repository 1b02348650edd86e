//! What a worker serves: the inside of its gateway.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use towpath_io::tap::Tap;
use towpath_net::time::Instant;
use towpath_packet::Device;

use super::exchange::Exchange;
use crate::flows::Guests;
use crate::report::Report;

/// Source and destination of the inside's packets: one TAP device, or a switch with its ports.
pub trait Inside: Device<Error: std::error::Error + Send + Sync + 'static> {
    /// Returns another file that is watched, even while packets wait for memory. When it is
    /// readable, the worker calls [`Inside::clear_bell`].
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Clears the bell after it rang. The next [`Device::poll`] or [`Device::arm`] returns whether
    /// there is work.
    fn clear_bell(&mut self) {}

    /// Returns the address of a guest in one family, by the guest's name. A program alone has no
    /// guests.
    fn address_of(&self, guest: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr> {
        let _ = (guest, is_ipv4, now);
        None
    }

    /// Gives flows to other workers, or takes some from them. Called before each turn.
    fn exchange(&mut self, flows: &mut Exchange<'_>) {
        let _ = flows;
    }

    /// Returns true if other workers have flows of this inside.
    fn has_flows_elsewhere(&self) -> bool {
        false
    }

    /// Adds the inside's counters to the report, as far as the report has fields for them.
    fn add_to(&self, report: &mut Report);
}

impl<S: Inside> Guests for S {
    fn address_of(&self, name: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr> {
        Inside::address_of(self, name, is_ipv4, now)
    }
}

impl Inside for Tap {
    fn add_to(&self, report: &mut Report) {
        report.tap = *self.counters();
        report.features = Some(self.features());
    }
}
