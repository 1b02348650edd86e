//! The device of a port: the drivers of its queues, and what a port reports about it.

use std::fmt::Display;
use std::os::fd::BorrowedFd;

use towpath_io::stream::StreamPort;
use towpath_io::tap::{Features, Tap, TapError};
use towpath_io::uplink::Uplink;
use towpath_io::vhost_user::{Offer, PairSet, VhostUser, message, sigbus, virtq};
use towpath_net::switch;
use towpath_net::time::Instant;
use towpath_packet::{Burst, Caps, Context, Device, Input};

use super::config::{Attachment, NetworkConfig, PortError, PortSettings};
use super::report::DeviceReport;
use super::vxlan::{Ends, Vxlan};

/// The device of a port. As a [`Device`], it is the driver of all its queues together.
pub(super) enum PortDevice {
    VhostUser(Box<VhostUser>),
    Stream(Box<StreamPort>),
    Tap(Box<Tap>),
    Uplink(Box<Uplink>),
    Vxlan(Box<Vxlan>),
}

/// Evaluates an expression for the device of whichever kind.
macro_rules! each {
    ($port:expr, $device:ident => $result:expr) => {
        match $port {
            PortDevice::VhostUser($device) => $result,
            PortDevice::Stream($device) => $result,
            PortDevice::Tap($device) => $result,
            PortDevice::Uplink($device) => $result,
            PortDevice::Vxlan($device) => $result,
        }
    };
}

impl PortDevice {
    /// Opens the device. Tunnels of a network share `ends`.
    pub(super) fn open(
        attachment: &Attachment,
        settings: &PortSettings,
        network: &NetworkConfig,
        ends: &mut Ends,
    ) -> Result<Self, PortError> {
        let mtu = settings.mtu.unwrap_or(network.mtu);
        let offer = Offer {
            features: virtq::FEATURES,
            pairs: settings.pairs,
            memory_slots: message::REGIONS_MAX as u64,
            mtu,
            mac: None,
        };
        Ok(match attachment {
            Attachment::VhostUser(path) => Self::switched(VhostUser::listen(path, offer)?),
            Attachment::VhostUserClient(path) => Self::switched(VhostUser::connect(path, offer)?),
            Attachment::Stream(path) => Self::Stream(Box::new(StreamPort::listen(path, mtu)?)),
            Attachment::VhostUserFd(connection) => {
                let socket = connection.take().ok_or(PortError::Connection)?;
                Self::switched(VhostUser::from_socket(socket, offer)?)
            }
            Attachment::StreamFd(connection) => {
                let socket = connection.take().ok_or(PortError::Connection)?;
                Self::Stream(Box::new(StreamPort::from_socket(socket, mtu)?))
            }
            Attachment::Tap(name) => {
                let mut tap = Tap::create(name)?;
                tap.set_mtu(mtu);
                tap.set_offload(Features::WITH_TUNNELS)?;
                Self::Tap(Box::new(tap))
            }
            Attachment::TapFd(passed) => {
                let adopted = Tap::adopt(passed.take().ok_or(PortError::NoTap)?);
                let mut tap = adopted.map_err(|error| match error {
                    TapError::Unsupported => PortError::NotTap,
                    other => other.into(),
                })?;
                tap.set_mtu(mtu);
                tap.set_offload(Features::WITH_TUNNELS)?;
                Self::Tap(Box::new(tap))
            }
            Attachment::Packet(interface) => {
                Self::Uplink(Box::new(Uplink::packet(interface, mtu)?))
            }
            Attachment::Xdp(settings) => Self::Uplink(Box::new(Uplink::xdp(settings, mtu)?)),
            Attachment::Vxlan(settings) => Self::Vxlan(Box::new(Vxlan::open(settings, mtu, ends)?)),
        })
    }

    fn switched(mut device: VhostUser) -> Self {
        device.set_polled();
        device.set_inline();
        Self::VhostUser(Box::new(device))
    }

    /// Returns how many queues for the guest it may have.
    pub(super) fn queue_count(&self, settings: &PortSettings) -> u16 {
        match self {
            Self::VhostUser(_) => settings.pairs,
            Self::Stream(_) | Self::Tap(_) | Self::Uplink(_) | Self::Vxlan(_) => 1,
        }
    }

    /// Returns the queues that take packets for the guest now. Empty if there is no guest.
    pub(super) fn open_queues(&self) -> PairSet {
        match self {
            Self::VhostUser(device) => device.open_pairs(),
            Self::Stream(_) | Self::Tap(_) | Self::Uplink(_) | Self::Vxlan(_) => PairSet::FIRST,
        }
    }

    /// Transmits by one of its queues, as [`Device::transmit`] does.
    pub(super) fn transmit_by(
        &mut self,
        queue: u16,
        burst: &mut Burst,
        cx: &mut Context<'_>,
    ) -> Result<(), PortError> {
        match self {
            Self::VhostUser(device) => {
                device.transmit_by(Some(queue), burst, cx);
                Ok(())
            }
            Self::Stream(device) => Ok(device.transmit(burst, cx)?),
            Self::Tap(device) => Ok(device.transmit(burst, cx)?),
            Self::Uplink(device) => Ok(device.transmit(burst, cx)?),
            Self::Vxlan(device) => device.transmit(burst, cx),
        }
    }

    /// Sets the largest IP packet that it takes from the switch. An uplink has that of its
    /// interface, a tunnel those of its paths.
    pub(super) fn set_mtu(&mut self, mtu: u16) {
        match self {
            Self::VhostUser(device) => device.set_mtu(mtu),
            Self::Stream(device) => device.set_mtu(mtu),
            Self::Tap(device) => device.set_mtu(mtu),
            Self::Uplink(_) | Self::Vxlan(_) => {}
        }
    }

    /// Sets the link as the other end sees it, where that is possible.
    ///
    /// # Errors
    /// The device cannot do it now; nothing was changed.
    pub(super) fn set_link(&mut self, is_up: bool) -> Result<(), PortError> {
        match self {
            Self::VhostUser(device) => Ok(device.set_link(is_up)?),
            Self::Tap(device) => Ok(device.set_carrier(is_up)?),
            Self::Stream(_) | Self::Uplink(_) | Self::Vxlan(_) => Ok(()),
        }
    }

    /// Returns true if the file reports when a full device takes packets again.
    pub(super) fn reports_room(&self) -> bool {
        !matches!(self, Self::Tap(_) | Self::Uplink(_) | Self::Vxlan(_))
    }

    /// Returns true if a guest is connected.
    pub(super) fn is_connected(&self) -> bool {
        match self {
            Self::VhostUser(device) => device.is_connected(),
            Self::Stream(device) => device.is_connected(),
            Self::Tap(_) | Self::Vxlan(_) => true,
            Self::Uplink(device) => device.is_up(),
        }
    }

    /// Returns true if a machine was connected and has gone. A connection on which nothing arrived
    /// was a process that looked whether the socket is in use, if `is_listening`.
    pub(super) fn has_ended(&self, is_listening: bool) -> bool {
        let (sessions, has_spoken) = match self {
            Self::VhostUser(device) => {
                let counters = device.counters();
                (counters.sessions - counters.link_down, counters.requests > 0)
            }
            Self::Stream(device) => (device.sessions().0, device.counters().received.bytes > 0),
            Self::Tap(_) | Self::Uplink(_) | Self::Vxlan(_) => return false,
        };
        sessions > self.is_connected().into() && (has_spoken || !is_listening)
    }

    /// Passes each event since the last call to `tell`.
    pub(super) fn take_events(&mut self, mut tell: impl FnMut(&dyn Display)) {
        match self {
            Self::VhostUser(device) => {
                while let Some(event) = device.take_event() {
                    tell(&event)
                }
            }
            Self::Uplink(device) => {
                while let Some(event) = device.take_event() {
                    tell(&event)
                }
            }
            Self::Stream(_) | Self::Tap(_) | Self::Vxlan(_) => {}
        }
    }

    /// Returns its counters.
    pub(super) fn report(&self) -> DeviceReport {
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
            Self::Vxlan(device) => DeviceReport::Vxlan(device.counters()),
        }
    }
}

impl Device for PortDevice {
    type Error = PortError;

    fn caps(&self) -> Caps {
        each!(self, device => device.caps())
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        each!(self, device => device.file())
    }

    fn next_deadline(&self) -> Option<Instant> {
        each!(self, device => device.next_deadline())
    }

    fn turn(&mut self, is_readable: bool, cx: &mut Context<'_>) -> Result<(), PortError> {
        each!(self, device => Ok(device.turn(is_readable, cx)?))
    }

    fn poll(&mut self) -> bool {
        each!(self, device => device.poll())
    }

    fn arm(&mut self) -> bool {
        each!(self, device => device.arm())
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, PortError> {
        each!(self, device => Ok(device.receive(burst, cx)?))
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), PortError> {
        each!(self, device => Ok(device.transmit(burst, cx)?))
    }

    fn rest(&mut self) {
        each!(self, device => device.rest());
    }
}

// Each port can map all regions of its guest, its log and its inflight area, and twice as many
// while new maps replace old ones. The bound holds this for all ports.
const _: () = assert!(switch::PORTS_MAX * 2 * (message::REGIONS_MAX + 2) <= sigbus::WATCHED_MAX);
