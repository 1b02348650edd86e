//! Carries out requests on the guest's memory, its dirty log and the in-flight region, and starts
//! rings with them.
//!
//! The rings that depend on a change are stopped while it is made; the device ensures that. A
//! request that fails changes nothing, except that rings which fail to start wait for another kick
//! descriptor.

use super::event;
use super::memory::{GuestMemory, MemoryError};
use super::message::{InflightLayout, Reply, Request, RequestError, RingRequest};
use super::rings::Rings;
use super::session::{Effect, Outcome, Refusal, RingSetup, Session, feature};
use super::shared::{Area, MapError, Mapping};
use super::virtq::{QUEUE_SIZE_MAX, QueueConfig, StartError, inflight};
use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use towpath_packet::{Burst, Memory};

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// The request is malformed.
    Request(RequestError),
    /// The request is not permitted in this state.
    Refusal(Refusal),
    /// The guest's memory does not match its description.
    Memory(MemoryError),
    /// A ring does not start.
    Start(u16, StartError),
    /// A ring's kick descriptor cannot be watched.
    Kick(u16),
    /// A kick, call or error descriptor is not an event.
    NoEvent(u32),
    /// The in-flight region does not fit its rings.
    Inflight(u64),
    /// The in-flight region cannot be mapped.
    InflightMap(MapError),
    /// A system call failed.
    Os(Errno),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::Refusal(error) => error.fmt(f),
            Self::Memory(error) => error.fmt(f),
            Self::Start(ring, error) => write!(f, "ring {ring}: {error}"),
            Self::Kick(value) => {
                write!(f, "ring {value}: its kick descriptor cannot be watched")
            }
            Self::NoEvent(value) => {
                write!(f, "ring {value}: its kick, call or error descriptor is not an eventfd")
            }
            Self::Inflight(value) => {
                write!(f, "an inflight area of {value} bytes does not match its rings")
            }
            Self::InflightMap(error) => write!(f, "inflight area: {error}"),
            Self::Os(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ControlError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Request(error) => error.source(),
            Self::Refusal(error) => error.source(),
            Self::Memory(error) => error.source(),
            Self::Os(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RequestError> for ControlError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<Refusal> for ControlError {
    fn from(error: Refusal) -> Self {
        Self::Refusal(error)
    }
}

impl From<MemoryError> for ControlError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

impl From<Errno> for ControlError {
    fn from(error: Errno) -> Self {
        Self::Os(error)
    }
}

/// Answer to a request: a reply that is always sent, and its descriptor.
pub(super) type Answer = (Option<Reply>, Option<OwnedFd>);

/// The shared memory of the in-flight region, which survives this process.
struct InflightArea {
    layout: InflightLayout,
    mapping: Arc<Mapping>,
}

/// State that requests set up beside the rings.
pub(super) struct Control {
    memory: GuestMemory,
    inflight: Option<InflightArea>,
    /// The address to announce to the network.
    announce: Option<[u8; 6]>,
}

impl Control {
    pub(super) fn new() -> Self {
        Self { memory: GuestMemory::new(), inflight: None, announce: None }
    }

    /// True if a file that the front end shares was truncated while mapped.
    pub(super) fn is_lost(&self) -> bool {
        self.memory.is_lost() || self.inflight.as_ref().is_some_and(|area| area.mapping.is_lost())
    }

    /// True if the front end keeps what is in flight, and with it the position of packed rings.
    pub(super) fn has_inflight(&self) -> bool {
        self.inflight.is_some()
    }

    /// Carries out a request whose rings are stopped.
    pub(super) fn carry_out(
        &mut self,
        session: &mut Session,
        rings: &mut Rings,
        request: Request,
    ) -> Result<Answer, ControlError> {
        if let Request::Ring(
            ring,
            RingRequest::Kick(Some(file))
            | RingRequest::Call(Some(file))
            | RingRequest::Error(Some(file)),
        ) = &request
            && !event::is_event(file)
        {
            return Err(ControlError::NoEvent(*ring));
        }
        let Outcome { effect, reply } = session.apply(request)?;
        match effect {
            Effect::Done => {}
            Effect::SetMemory(regions) => {
                let mut memory = self.memory.without_regions();
                for (layout, file) in &regions {
                    memory.add(*layout, file)?;
                }
                self.memory = memory;
            }
            Effect::AddRegion(layout, file) => self.memory.add(layout, &file)?,
            Effect::RemoveRegion(layout) => self.memory.remove(&layout)?,
            Effect::SetLog(file, bytes, offset) => self.memory.set_log(&file, bytes, offset)?,
            Effect::EndLog => self.memory.clear_log(),
            Effect::MakeInflight(layout) => return make_inflight(session, layout),
            Effect::SetInflight(layout, file) => self.set_inflight(session, layout, &file)?,
            Effect::Call(ring) => rings.set_call(ring, session.call(ring)),
            Effect::Announce(mac) => self.announce = Some(mac),
            Effect::Reset => {
                self.memory.clear_log();
                self.inflight = None;
            }
        }
        Ok((reply, None))
    }

    /// Starts all rings that are set up.
    ///
    /// # Errors
    /// That of the first ring that does not start; the others start.
    pub(super) fn start(
        &self,
        session: &mut Session,
        rings: &mut Rings,
        wake: &Waker,
    ) -> Result<(), ControlError> {
        let mut result = Ok(());
        for ring in session.startable().iter() {
            let started = session.setup(ring).map_err(ControlError::from).and_then(|setup| {
                let config = self.config(session, ring, &setup);
                let started = rings.start(ring, config, &self.memory, wake);
                started.map_err(|error| ControlError::Start(ring, error))
            });
            match started {
                Ok(()) => session.started(ring),
                Err(error) => {
                    session.failed(ring);
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// Adds the packet that announces the guest's location to the network, if one is due.
    pub(super) fn announce(&mut self, memory: &mut Memory, burst: &mut Burst) {
        let Some(mac) = self.announce else { return };
        if burst.is_full() {
            return;
        }
        // Tried again later if memory is short.
        let (Some(mut frame), Some(mut packet)) = (memory.small.take(), memory.packet()) else {
            return;
        };
        frame[..RARP_BYTES].copy_from_slice(&reverse_arp(mac));
        packet.push_piece(frame.freeze(RARP_BYTES)).expect("an empty packet has room");
        burst.push(packet).expect("the burst has room");
        self.announce = None;
    }

    fn config(&self, session: &Session, ring: u16, setup: &RingSetup) -> QueueConfig {
        QueueConfig {
            size: setup.size,
            features: setup.features,
            descriptors: setup.addresses.descriptors,
            driver: setup.addresses.available,
            device: setup.addresses.used,
            base: setup.base,
            log: setup.addresses.log.is_some(),
            inflight: self.inflight_of(session, ring),
            call: session.call(ring),
        }
    }

    /// Maps the in-flight region, which must have room for the rings that it describes.
    fn set_inflight(
        &mut self,
        session: &Session,
        layout: InflightLayout,
        file: &OwnedFd,
    ) -> Result<(), ControlError> {
        let needed = u64::from(layout.queues) * region_bytes(session, layout.queue_size)?;
        if layout.bytes < needed || layout.queues > session.ring_count() {
            return Err(ControlError::Inflight(layout.bytes));
        }
        let mapping = Mapping::new(file, layout.file_offset, layout.bytes);
        let mapping = Arc::new(mapping.map_err(ControlError::InflightMap)?);
        self.inflight = Some(InflightArea { layout, mapping });
        Ok(())
    }

    /// The part of the in-flight region that belongs to a ring.
    fn inflight_of(&self, session: &Session, ring: u16) -> Option<Area> {
        let InflightArea { layout, mapping } = self.inflight.as_ref()?;
        let bytes = region_bytes(session, layout.queue_size).ok()? as usize;
        let at = usize::from(ring) * bytes;
        Area::new(mapping.clone(), at, bytes, size_of::<u64>()).filter(|_| ring < layout.queues)
    }
}

/// Creates an in-flight region for the requested number and size of rings.
fn make_inflight(session: &Session, asked: InflightLayout) -> Result<Answer, ControlError> {
    let bytes = u64::from(asked.queues) * region_bytes(session, asked.queue_size)?;
    if bytes == 0 || asked.queues > session.ring_count() {
        return Err(ControlError::Inflight(bytes));
    }
    let file = rustix::fs::memfd_create("towpath-inflight", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes)?;
    let layout = InflightLayout { bytes, file_offset: 0, ..asked };
    Ok((Some(Reply::Inflight(layout)), Some(file)))
}

/// Bytes of the in-flight region for each ring.
fn region_bytes(session: &Session, size: u16) -> Result<u64, ControlError> {
    if size == 0 || size > QUEUE_SIZE_MAX {
        return Err(ControlError::Inflight(0));
    }
    let is_packed = session.features() & feature::RING_PACKED != 0;
    Ok(inflight::region_bytes(is_packed, size) as u64)
}

/// Ethernet, reverse ARP, and padding to the shortest frame.
const RARP_BYTES: usize = 60;

/// RFC 903: a station asks for its own address, from which switches learn its location.
fn reverse_arp(mac: [u8; 6]) -> [u8; RARP_BYTES] {
    let mut frame = [0; RARP_BYTES];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac);
    // Reverse ARP; then Ethernet, IPv4, their address lengths, request.
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(&mac);
    frame[32..38].copy_from_slice(&mac);
    frame
}
