//! A port: its device, and the ring in front of the device.

use std::os::fd::{AsFd, BorrowedFd};

use towpath_io::pcapng::Direction;
use towpath_io::stream::StreamPort;
use towpath_io::tap::{Features, Tap};
use towpath_io::uplink::Uplink;
use towpath_io::vhost_user::{Offer, VhostUser, message, sigbus, virtq};
use towpath_net::switch::{self, PortId, Role, Switch};
use towpath_net::time::{Instant, earliest};
use towpath_packet::ring::{self, Consumer, Producer, Silent};
use towpath_packet::{Burst, Caps, Context, Device, Input, Packet};

use super::config::{Attachment, NetworkConfig, PortError, PortSettings};
use super::report::{DeviceReport, PortReport};
use super::share::PortShare;
use super::{RETRY, Tell};
use crate::capture::Mirrors;

/// A port of a network.
pub(super) struct Port {
    pub(super) name: String,
    pub(super) id: Option<PortId>,
    pub(super) settings: PortSettings,
    /// The ring for packets to the port.
    pub(super) producer: Producer<Packet>,
    consumer: Consumer<Packet>,
    /// Packets taken from the ring that the device has not taken yet.
    waiting: Burst,
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

/// The device of a port.
enum PortDevice {
    VhostUser(Box<VhostUser>),
    Stream(Box<StreamPort>),
    Tap(Box<Tap>),
    Uplink(Box<Uplink>),
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
        let (producer, consumer) = ring::single(settings.queue_len, Silent)?;
        Ok(Self {
            name: name.to_owned(),
            id: None,
            settings,
            producer,
            consumer,
            waiting: Burst::new(),
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
            role: match self.settings.role {
                Role::Station if self.attachment.is_uplink() => Role::Uplink,
                role => role,
            },
            guard: self.settings.guard.clone(),
            respects_owners: true,
            is_router: self.settings.is_router,
            storm: self.settings.storm,
            ..switch::PortConfig::new(self.caps())
        }
    }

    /// Returns what its device takes now.
    pub(super) fn caps(&self) -> Caps {
        match &self.device {
            PortDevice::VhostUser(device) => device.caps(),
            PortDevice::Stream(device) => device.caps(),
            PortDevice::Tap(device) => device.caps(),
            PortDevice::Uplink(device) => device.caps(),
        }
    }

    /// Changes the length of its ring.
    pub(super) fn resize(&mut self, queue_len: usize) -> Result<(), PortError> {
        Ok(self.producer.control().resize(queue_len)?)
    }

    /// Returns the number of packets that wait for its device.
    pub(super) fn waiting(&self) -> usize {
        self.producer.control().len() + self.waiting.len()
    }

    /// Polls the device; returns true if there is work.
    pub(super) fn poll(&mut self) -> bool {
        match &mut self.device {
            PortDevice::VhostUser(device) if self.failure.is_none() => device.poll(),
            PortDevice::Uplink(device) if self.failure.is_none() => device.poll(),
            _ => false,
        }
    }

    /// Makes the file report new work. Returns true if there is work already.
    pub(super) fn arm(&mut self) -> bool {
        match &mut self.device {
            PortDevice::VhostUser(device) if self.failure.is_none() => device.arm(),
            PortDevice::Uplink(device) if self.failure.is_none() => device.arm(),
            _ => false,
        }
    }

    /// Does the device's pending work other than packets. Returns true if the device's caps may
    /// have changed.
    pub(super) fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        (self.deadline, self.has_news) = (None, false);
        if self.failure.is_some() {
            return false;
        }
        let result = match &mut self.device {
            PortDevice::VhostUser(device) => {
                let turned = device.turn(true, cx).map_err(PortError::from);
                self.deadline = device.next_deadline();
                turned
            }
            PortDevice::Stream(device) => device.turn(true, cx).map_err(PortError::from),
            PortDevice::Tap(_) => return false,
            PortDevice::Uplink(device) => {
                let turned = device.turn(true, cx).map_err(PortError::from);
                self.deadline = device.next_deadline();
                turned
            }
        };
        self.note(result);
        true
    }

    /// Adds received packets to `burst`, which must be empty.
    pub(super) fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Input {
        if self.failure.is_some() {
            return Input::Done;
        }
        let result = match &mut self.device {
            PortDevice::VhostUser(device) => {
                let input = device.receive(burst, cx).map_err(PortError::from);
                self.deadline = earliest([self.deadline, device.next_deadline()]);
                input
            }
            PortDevice::Stream(device) => device.receive(burst, cx).map_err(Into::into),
            PortDevice::Tap(device) => device.receive(burst, cx).map_err(Into::into),
            PortDevice::Uplink(device) => {
                let input = device.receive(burst, cx).map_err(PortError::from);
                self.deadline = earliest([self.deadline, device.next_deadline()]);
                input
            }
        };
        self.mirrors.see(Direction::Inbound, burst.iter());
        self.note(result).unwrap_or(Input::Done)
    }

    /// Passes waiting packets to the device, as far as the device takes them.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) {
        loop {
            let is_next = self.waiting.is_empty();
            if is_next && self.consumer.dequeue(&mut self.waiting) == 0 {
                return;
            }
            if self.failure.is_some() {
                self.waiting.clear();
                continue;
            }
            if is_next {
                self.mirrors.see(Direction::Outbound, self.waiting.iter());
            }
            let burst = &mut self.waiting;
            let result = match &mut self.device {
                PortDevice::VhostUser(device) => device.transmit(burst, cx).map_err(Into::into),
                PortDevice::Stream(device) => device.transmit(burst, cx).map_err(Into::into),
                PortDevice::Tap(device) => device.transmit(burst, cx).map_err(Into::into),
                PortDevice::Uplink(device) => {
                    let sent = device.transmit(burst, cx).map_err(Into::into);
                    self.deadline = earliest([self.deadline, device.next_deadline()]);
                    sent
                }
            };
            self.note(result);
            if !self.waiting.is_empty() {
                if matches!(self.device, PortDevice::Tap(_) | PortDevice::Uplink(_)) {
                    self.deadline = Some(cx.now + RETRY);
                }
                return;
            }
        }
    }

    /// Reports the events since the last call.
    pub(super) fn report_events(&mut self, tell: &mut Tell) {
        match &mut self.device {
            PortDevice::VhostUser(device) => {
                while let Some(events) = device.take_event() {
                    tell(&self.name, &events);
                }
            }
            PortDevice::Uplink(device) => {
                if let Some(event) = device.take_event() {
                    tell(&self.name, &event);
                }
            }
            PortDevice::Stream(_) | PortDevice::Tap(_) => {}
        }
    }

    /// Releases what is kept ready for reads.
    pub(super) fn rest(&mut self) {
        match &mut self.device {
            PortDevice::Tap(device) => device.rest(),
            PortDevice::Stream(device) => device.rest(),
            PortDevice::VhostUser(device) => device.rest(),
            PortDevice::Uplink(device) => device.rest(),
        }
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

    /// Records an error, which ends this port's traffic and nothing else.
    fn note<T>(&mut self, result: Result<T, PortError>) -> Option<T> {
        if let Err(error) = &result {
            self.failure = Some(error.to_string());
            self.is_ready = false;
        }
        result.ok()
    }
}

impl PortDevice {
    fn open(
        attachment: &Attachment,
        settings: &PortSettings,
        network: &NetworkConfig,
    ) -> Result<Self, PortError> {
        let offer = Offer {
            features: virtq::FEATURES,
            pairs: settings.pairs,
            memory_slots: message::REGIONS_MAX as u64,
            mtu: network.mtu,
            mac: None,
        };
        Ok(match attachment {
            Attachment::VhostUser(path) => Self::switched(VhostUser::listen(path, offer)?),
            Attachment::VhostUserClient(path) => Self::switched(VhostUser::connect(path, offer)?),
            Attachment::Stream(path) => {
                Self::Stream(Box::new(StreamPort::listen(path, network.mtu)?))
            }
            Attachment::VhostUserFd(connection) => {
                let socket = connection.take().ok_or(PortError::Connection)?;
                Self::switched(VhostUser::from_socket(socket, offer)?)
            }
            Attachment::StreamFd(connection) => {
                let socket = connection.take().ok_or(PortError::Connection)?;
                Self::Stream(Box::new(StreamPort::from_socket(socket, network.mtu)?))
            }
            Attachment::Tap(name) => {
                let mut tap = Tap::create(name)?;
                tap.set_mtu(network.mtu);
                tap.set_offload(Features::WITH_TUNNELS)?;
                Self::Tap(Box::new(tap))
            }
            Attachment::Packet(interface) => {
                Self::Uplink(Box::new(Uplink::packet(interface, network.mtu)?))
            }
            Attachment::Xdp(settings) => {
                Self::Uplink(Box::new(Uplink::xdp(settings, network.mtu)?))
            }
        })
    }

    fn switched(mut device: VhostUser) -> Self {
        device.set_polled();
        device.set_inline();
        Self::VhostUser(Box::new(device))
    }

    fn is_connected(&self) -> bool {
        match self {
            Self::VhostUser(device) => device.is_connected(),
            Self::Stream(device) => device.is_connected(),
            Self::Tap(_) => true,
            Self::Uplink(device) => device.is_up(),
        }
    }

    /// Returns true if a machine was connected and has gone. A connection on which nothing arrived
    /// was a process that looked whether the socket is in use, if `is_listening`.
    fn has_ended(&self, is_listening: bool) -> bool {
        let (sessions, has_spoken) = match self {
            Self::VhostUser(device) => {
                let counters = device.counters();
                (counters.sessions, counters.requests > 0)
            }
            Self::Stream(device) => (device.sessions().0, device.counters().received.bytes > 0),
            Self::Tap(_) | Self::Uplink(_) => return false,
        };
        sessions > self.is_connected().into() && (has_spoken || !is_listening)
    }

    fn report(&self) -> DeviceReport {
        match self {
            Self::VhostUser(device) => {
                DeviceReport::VhostUser(*device.counters(), device.traffic().sent)
            }
            Self::Stream(device) => {
                let (sessions, no_guest) = device.sessions();
                DeviceReport::Stream { counters: device.counters(), sessions, no_guest }
            }
            Self::Tap(device) => DeviceReport::Tap(*device.counters()),
            Self::Uplink(device) => DeviceReport::Uplink(device.counters(), device.way()),
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.device {
            PortDevice::VhostUser(device) => device.as_fd(),
            PortDevice::Stream(device) => device.as_fd(),
            PortDevice::Tap(device) => device.as_fd(),
            PortDevice::Uplink(device) => device.as_fd(),
        }
    }
}

// Each port can map all regions of its guest, its log and its inflight area, and twice as many
// while new maps replace old ones. The bound holds this for all ports.
const _: () = assert!(switch::PORTS_MAX * 2 * (message::REGIONS_MAX + 2) <= sigbus::WATCHED_MAX);
