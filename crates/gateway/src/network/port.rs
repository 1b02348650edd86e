//! A port: its device, and the packets that wait for the device.
//!
//! Packets from the switch go to the device at once. What the device does not take waits in a queue
//! of bounded length, and is offered again in each turn. As long as packets wait, later ones go
//! behind them.

use std::os::fd::{AsFd, BorrowedFd};

use towpath_io::pcapng::Direction;
use towpath_net::switch::{self, PortId, Switch};
use towpath_net::time::{Instant, earliest};
use towpath_packet::{Burst, Caps, Context, Device, Input};

use super::config::{Attachment, NetworkConfig, PortError, PortSettings};
use super::device::PortDevice;
use super::queue::Queue;
use super::report::PortReport;
use super::share::PortShare;
use super::{RETRY, Tell};
use crate::capture::Mirrors;

/// Packets that may wait for a port while memory is short. With as many ports as a switch has, they
/// are half of all packets.
pub(super) const QUEUE_LEN_SHORT: usize = 16;

/// A port of a network.
pub(super) struct Port {
    pub(super) name: String,
    pub(super) id: Option<PortId>,
    pub(super) settings: PortSettings,
    /// The first packets that wait for the device; captures have seen them.
    next: Burst,
    /// The packets behind them.
    queue: Queue,
    attachment: Attachment,
    device: PortDevice,
    /// Its file was readable, and it has had no turn since.
    pub(super) has_news: bool,
    /// There may be packets to receive, or room for waiting packets.
    pub(super) is_ready: bool,
    pub(super) share: PortShare,
    /// When its device needs a turn, or is tried again.
    pub(super) deadline: Option<Instant>,
    /// Why it has failed.
    failure: Option<String>,
    /// The current transaction has removed it.
    pub(super) is_leaving: bool,
    /// Captures of its packets.
    pub(super) mirrors: Mirrors,
}

impl Port {
    /// Opens the device. The port does not belong to a switch yet.
    pub(super) fn open(
        name: &str,
        attachment: Attachment,
        settings: PortSettings,
        network: &NetworkConfig,
    ) -> Result<Self, PortError> {
        let device = PortDevice::open(&attachment, &settings, network)?;
        let queue = Queue::new(settings.queue_len)?;
        Ok(Self {
            name: name.to_owned(),
            id: None,
            settings,
            next: Burst::new(),
            queue,
            attachment,
            device,
            // It may have been readable before it was watched.
            has_news: true,
            is_ready: true,
            share: PortShare::new(),
            deadline: None,
            failure: None,
            is_leaving: false,
            mirrors: Mirrors::default(),
        })
    }

    /// Returns its configuration for the switch.
    pub(super) fn switch_config(&self) -> switch::PortConfig {
        switch::PortConfig {
            vlans: self.settings.vlans.clone(),
            role: self.settings.role,
            guard: self.settings.guard.clone(),
            respects_owners: true,
            is_router: self.settings.is_router,
            storm: self.settings.storm,
            ..switch::PortConfig::new(self.caps())
        }
    }

    /// Returns what its device takes now.
    pub(super) fn caps(&self) -> Caps {
        self.device.caps()
    }

    /// Changes how many packets may wait.
    pub(super) fn resize(&mut self, queue_len: usize) -> Result<(), PortError> {
        self.queue.resize(queue_len)
    }

    /// Returns the number of packets that wait for its device.
    pub(super) fn waiting(&self) -> usize {
        self.next.len() + self.queue.len()
    }

    /// Polls the device; returns true if there is work.
    pub(super) fn poll(&mut self) -> bool {
        self.failure.is_none() && self.device.poll()
    }

    /// Makes the file report new work. Returns true if there is work already.
    pub(super) fn arm(&mut self) -> bool {
        self.failure.is_none() && self.device.arm()
    }

    /// Does the device's pending work other than packets. Returns true if the device's caps may
    /// have changed.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        (self.deadline, self.has_news) = (None, false);
        if self.failure.is_some() {
            return false;
        }
        let result = self.device.turn(true, cx);
        self.deadline = self.device.next_deadline();
        self.note(result);
        true
    }

    /// Adds received packets to `burst`, which must be empty.
    pub(super) fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Input {
        if self.failure.is_some() {
            return Input::Done;
        }
        let result = self.device.receive(burst, cx);
        self.deadline = earliest([self.deadline, self.device.next_deadline()]);
        self.mirrors.see(Direction::Inbound, burst.iter());
        self.note(result).unwrap_or(Input::Done)
    }

    /// Passes packets from the front of `burst` to the device. What the device does not take waits,
    /// as far as there is room; the rest stays in `burst`. `is_short`: memory is short.
    pub(super) fn transmit(&mut self, burst: &mut Burst, is_short: bool, cx: &mut Context<'_>) {
        if self.failure.is_some() {
            return burst.clear();
        }
        if self.waiting() == 0 && burst.len() <= self.queue.len_max() {
            self.mirrors.see(Direction::Outbound, burst.iter());
            let result = self.device.transmit(burst, cx);
            if !burst.is_empty() {
                std::mem::swap(burst, &mut self.next);
            }
            return self.transmitted(result, cx.now);
        }
        loop {
            let is_full = is_short && self.waiting() >= QUEUE_LEN_SHORT;
            let most = if is_full { 0 } else { self.room() };
            self.queue.append(burst, most);
            if burst.is_empty() || !self.flush(cx) {
                return;
            }
        }
    }

    /// Passes waiting packets to the device. Returns true if the device has taken some.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.waiting();
        while self.waiting() > 0 {
            if self.next.is_empty() {
                self.queue.fill(&mut self.next);
                self.mirrors.see(Direction::Outbound, self.next.iter());
            }
            let result = self.device.transmit(&mut self.next, cx);
            self.transmitted(result, cx.now);
            if !self.next.is_empty() {
                break;
            }
        }
        self.waiting() < before
    }

    /// Returns how many more packets may wait.
    fn room(&self) -> usize {
        self.queue.len_max().saturating_sub(self.waiting())
    }

    /// Notes the result of an attempt to transmit.
    fn transmitted(&mut self, result: Result<(), PortError>, now: Instant) {
        self.note(result);
        if self.waiting() > 0 && !self.device.reports_room() {
            self.deadline = Some(now + RETRY);
        }
    }

    /// Reports the events since the last call.
    pub(super) fn report_events(&mut self, tell: &mut Tell) {
        while let Some(event) = self.device.take_event() {
            tell(&self.name, &event);
        }
    }

    /// Releases what is kept ready for reads.
    pub(super) fn rest(&mut self) {
        self.device.rest();
    }

    pub(super) fn report(&self, switch: &Switch) -> PortReport {
        let counters = self.id.and_then(|id| switch.counters_of(id)).cloned().unwrap_or_default();
        PortReport {
            name: self.name.clone(),
            attachment: self.attachment.clone(),
            settings: self.settings.clone(),
            caps: self.caps(),
            is_connected: self.device.is_connected() && self.failure.is_none(),
            failure: self.failure.clone(),
            waiting: self.waiting(),
            counters,
            device: self.device.report(),
        }
    }

    /// Returns true if the port has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Returns true if a machine was connected and has gone, or the port has failed.
    pub(super) fn has_ended(&self) -> bool {
        let is_listening =
            !matches!(self.attachment, Attachment::VhostUserFd(_) | Attachment::StreamFd(_));
        self.has_failed() || self.device.has_ended(is_listening)
    }

    /// Records an error, which ends this port's traffic and nothing else. Waiting packets are
    /// dropped.
    fn note<T>(&mut self, result: Result<T, PortError>) -> Option<T> {
        if let Err(error) = &result {
            self.failure = Some(error.to_string());
            self.is_ready = false;
            self.next.clear();
            self.queue.clear();
        }
        result.ok()
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.file().expect("the devices of ports have files")
    }
}
