//! What a worker serves: the inside of its gateway.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use towpath_io::tap::Tap;
use towpath_net::time::Instant;
use towpath_packet::Device;

use crate::flows::Guests;
use crate::report::Report;

/// Where packets of the inside come from and go to: one TAP device, or a switch with its ports.
pub trait Side: Device<Error: std::error::Error + Send + Sync + 'static> {
    /// Another file that is watched, also while packets have to wait for memory: when it is
    /// readable, [`Side::heard`] is called.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The bell has rung. What there is to do is told by the next [`Device::poll`] or
    /// [`Device::arm`].
    fn heard(&mut self) {}

    /// The address of a guest, by its name, in one family. A program alone has none.
    fn address_of(&self, guest: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr> {
        let _ = (guest, is_ipv4, now);
        None
    }

    /// Adds what it has counted, as far as there is a place for it.
    fn add_to(&self, report: &mut Report);
}

impl<S: Side> Guests for S {
    fn address_of(&self, name: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr> {
        Side::address_of(self, name, is_ipv4, now)
    }
}

impl Side for Tap {
    fn add_to(&self, report: &mut Report) {
        report.tap = *self.counters();
        report.features = Some(self.features());
    }
}
