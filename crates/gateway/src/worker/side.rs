//! What a worker serves: the inside of its gateway.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_io::tap::{Tap, TapError};
use towpath_net::stack;
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Burst, Caps, Device, Ledger, Memory};

use crate::gateway::Guests;
use crate::report::Report;

/// Where packets of the inside come from and go to: one TAP device, or a switch with its ports. Its
/// file is readable while there is something to do; the worker watches it level-triggered.
pub trait Side: AsFd {
    /// What makes it unusable.
    type Error: std::error::Error + Send + Sync + 'static;

    /// What the gateway may hand it.
    fn caps(&self) -> Caps;

    /// Another file that is watched, also while packets have to wait for memory: when it is
    /// readable, [`Side::heard`] is called.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The bell has rung. What there is to do is told by the next [`Side::poll`] or [`Side::arm`].
    fn heard(&mut self) {}

    /// When [`Side::turn`] wants to be called, unless the file is readable before.
    fn next_deadline(&self) -> Option<Instant>;

    /// Does what is due without packets. Called before [`Side::receive`] when the file is readable
    /// or the deadline has come.
    ///
    /// # Errors
    /// The side is of no further use.
    fn turn(&mut self, is_readable: bool, cx: &mut SideContext<'_>) -> Result<(), Self::Error>;

    /// For how long it may pay to poll it before a sleep. Zero if it cannot be polled.
    fn busy_poll(&self) -> Duration {
        Duration::ZERO
    }

    /// True if there is something to do; then the deadline has come as well. Asked again and again
    /// while it pays, so it costs no system call.
    fn poll(&mut self) -> bool {
        false
    }

    /// Called before a sleep: from now on the file becomes readable when there is something to do,
    /// until the next [`Side::turn`]. True if there is something already, as with [`Side::poll`].
    fn arm(&mut self) -> bool {
        false
    }

    /// True if each look for another packet is a system call, and what is left after
    /// [`Side::receive`] keeps the file readable.
    fn looks_by_call(&self) -> bool {
        false
    }

    /// Adds packets for the gateway to `burst` until it is full, nothing is left or memory is
    /// short; [`Input`] tells the last.
    ///
    /// # Errors
    /// The side is of no further use.
    fn receive(
        &mut self,
        burst: &mut Burst,
        cx: &mut SideContext<'_>,
    ) -> Result<Input, Self::Error>;

    /// Takes packets of the gateway from the front of `burst`; what it leaves has to wait.
    ///
    /// # Errors
    /// The side is of no further use.
    fn transmit(&mut self, burst: &mut Burst, cx: &mut SideContext<'_>) -> Result<(), Self::Error>;

    /// Gives back what was kept ready: nothing happened for a while.
    fn rest(&mut self);

    /// The address of a guest, by its name, in one family. A program alone has none.
    fn address_of(&self, guest: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr> {
        let _ = (guest, is_ipv4, now);
        None
    }

    /// Adds what it has counted, as far as there is a place for it.
    fn add_to(&self, report: &mut Report);
}

/// What a side works with during a call.
pub struct SideContext<'a> {
    /// Packets and frames.
    pub memory: &'a mut Memory,
    /// Where copies are counted.
    pub ledger: &'a Ledger,
    /// Now.
    pub now: Instant,
}

impl SideContext<'_> {
    /// The memory, the ledger and the time in the form that calls of the stack take.
    pub(crate) fn stack(&mut self) -> stack::Context<'_> {
        stack::Context { memory: self.memory, ledger: self.ledger, now: self.now }
    }
}

/// Why a side stopped receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Nothing is left, or the burst is full.
    Done,
    /// Memory is short: what is left has to wait.
    NoMemory,
    /// As many bytes were read for others, instead of which there may be more.
    HandedOver(usize),
}

impl<S: Side> Guests for S {
    fn address_of(&self, name: &str, is_ipv4: bool, now: Instant) -> Option<IpAddr> {
        Side::address_of(self, name, is_ipv4, now)
    }
}

impl Side for Tap {
    type Error = TapError;

    fn caps(&self) -> Caps {
        Device::caps(self)
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn turn(&mut self, _: bool, _: &mut SideContext<'_>) -> Result<(), TapError> {
        Ok(())
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut SideContext<'_>) -> Result<Input, TapError> {
        let paused = self.counters().receive_paused;
        Device::receive(self, cx.memory, burst)?;
        let is_paused = self.counters().receive_paused > paused;
        Ok(if is_paused { Input::NoMemory } else { Input::Done })
    }

    fn transmit(&mut self, burst: &mut Burst, _: &mut SideContext<'_>) -> Result<(), TapError> {
        Device::transmit(self, burst)
    }

    fn rest(&mut self) {
        self.release_frames();
    }

    fn add_to(&self, report: &mut Report) {
        report.tap = *self.counters();
        report.features = Some(self.features());
    }
}
