//! The state that one front end has set up: features, rings, configuration.
//!
//! # Theory of operation
//!
//! A request is carried out in four steps. The first, second and last are in this module and have
//! no effect outside:
//!
//! 1. [`Session::stops`] returns the rings that must be stopped for it. The device stops them,
//!    which may take several turns, and reports where they stopped.
//! 2. [`Session::apply`] checks the request, stores it, and returns what the device has to do
//!    ([`Effect`]).
//! 3. The device does that, and starts all rings that [`Session::startable`] returns.
//! 4. [`Outcome::reply`] is sent, if there is one.
//!
//! A ring starts once its size, addresses and kick descriptor are known and features are
//! negotiated. It does not wait for its first kick, which a front end that reconnects may never
//! send. `GET_VRING_BASE` stops it and forgets its kick and call descriptors. `SET_VRING_ENABLE` is
//! independent of that: it is accepted at any time, even before features are negotiated, and
//! survives stops, because QEMU sends it early and may not repeat it.
//!
//! Requests that belong to a protocol feature are refused without it.
//!
//! Limit: [`RINGS_MAX`]. One thread at a time.

mod offer;
mod refusal;

pub use offer::{Offer, feature, protocol};
pub use refusal::Refusal;

use super::message::{
    ConfigRange, InflightLayout, RegionLayout, Reply, Request, RingAddresses, RingRequest,
};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most rings of a device: one bit of [`RingSet`] each.
pub const RINGS_MAX: u16 = 64;
/// Smallest MTU that may be reported to a guest (RFC 791 §3.2).
pub const MTU_MIN: u16 = 68;

/// Status bit by which the driver asks whether its features are accepted.
const STATUS_FEATURES_OK: u8 = 8;

/// A set of rings, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RingSet(u64);

impl RingSet {
    /// Iterates over the rings, in order.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let ring = left.trailing_zeros() as u16;
            // Nothing is left of an empty set.
            left &= left.checked_sub(1)?;
            Some(ring)
        })
    }

    /// True if `ring` is in the set.
    pub fn contains(self, ring: u16) -> bool {
        self.0 & (1 << ring) != 0
    }

    /// True if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds `ring`.
    pub fn insert(&mut self, ring: u16) {
        self.0 |= 1 << ring;
    }

    /// Removes `ring`.
    pub fn remove(&mut self, ring: u16) {
        self.0 &= !(1 << ring);
    }

    fn collect(rings: impl Iterator<Item = u16>) -> Self {
        Self(rings.fold(0, |bits, ring| bits | 1 << ring))
    }
}

/// Parameters for starting a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// Number of descriptors.
    pub size: u16,
    /// Its areas, as front-end addresses.
    pub addresses: RingAddresses,
    /// Where it continues.
    pub base: u32,
    /// All negotiated features.
    pub features: u64,
}

/// What the device has to do for a request.
#[derive(Debug)]
pub enum Effect {
    /// Nothing.
    Done,
    /// Replace the guest's memory by these regions.
    SetMemory(Vec<(RegionLayout, OwnedFd)>),
    /// Add a region.
    AddRegion(RegionLayout, OwnedFd),
    /// Remove a region.
    RemoveRegion(RegionLayout),
    /// Use this dirty log: file, length, offset in the file.
    SetLog(OwnedFd, u64, u64),
    /// Stop dirty logging.
    EndLog,
    /// Create an in-flight region.
    MakeInflight(InflightLayout),
    /// Use this in-flight region for rings that start from now on.
    SetInflight(InflightLayout, OwnedFd),
    /// Use a ring's new call descriptor.
    Call(u16),
    /// Announce this address to the network.
    Announce([u8; 6]),
    /// Forget the dirty log and the in-flight region.
    Reset,
}

/// Result of applying a request.
#[derive(Debug)]
pub struct Outcome {
    /// What the device has to do.
    pub effect: Effect,
    /// A reply that the front end always expects; `None`: an acknowledgement, if it requested one.
    pub reply: Option<Reply>,
}

impl From<Effect> for Outcome {
    fn from(effect: Effect) -> Self {
        Self { effect, reply: None }
    }
}

impl From<Reply> for Outcome {
    fn from(reply: Reply) -> Self {
        Self { effect: Effect::Done, reply: Some(reply) }
    }
}

/// The state of one ring.
#[derive(Debug, Default)]
struct Ring {
    size: u16,
    addresses: Option<RingAddresses>,
    base: u32,
    /// `SET_VRING_KICK` was received since the last stop.
    started: bool,
    /// The device has started the ring.
    running: bool,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    error: Option<OwnedFd>,
    /// The last value of `SET_VRING_ENABLE`.
    enable: Option<bool>,
}

/// The state of a session; see the module documentation.
#[derive(Debug)]
pub struct Session {
    offer: Offer,
    features: u64,
    protocol_features: u64,
    rings: Box<[Ring]>,
    status: u8,
    /// The MTU in the configuration space.
    mtu: u16,
    /// The front end has set it.
    has_set_mtu: bool,
    mac: [u8; 6],
    is_up: bool,
}

impl Session {
    /// The state before the first request.
    ///
    /// # Panics
    /// If there are no rings, or more than [`RINGS_MAX`].
    pub fn new(offer: Offer) -> Self {
        let rings = offer.pairs.checked_mul(2).filter(|rings| (2..=RINGS_MAX).contains(rings));
        let rings = rings.expect("a device has between one pair of queues and half of RINGS_MAX");
        Self {
            offer,
            features: 0,
            protocol_features: 0,
            rings: (0..rings).map(|_| Ring::default()).collect(),
            status: 0,
            mtu: offer.mtu,
            has_set_mtu: false,
            mac: offer.mac.unwrap_or_default(),
            is_up: true,
        }
    }

    /// Rings that must be stopped while `request` is carried out.
    pub fn stops(&self, request: &Request) -> RingSet {
        let running = self.running();
        match *request {
            Request::SetFeatures(features) if features != self.features => running,
            Request::SetMemTable(_)
            | Request::AddMemReg(..)
            | Request::RemMemReg(_)
            | Request::SetLogBase(..)
            | Request::SetInflightFd(..)
            | Request::ResetDevice => running,
            Request::Ring(ring, RingRequest::Addresses(_) | RingRequest::Stop) => {
                let ring = self.index(ring).filter(|ring| running.contains(*ring));
                RingSet::collect(ring.into_iter())
            }
            _ => RingSet::default(),
        }
    }

    /// The device has stopped a ring, which continues at `base`.
    pub fn stopped(&mut self, ring: u16, base: u32) {
        let ring = &mut self.rings[usize::from(ring)];
        ring.running = false;
        ring.base = base;
    }

    /// Applies a request.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed.
    pub fn apply(&mut self, request: Request) -> Result<Outcome, Refusal> {
        self.require(needed(&request))?;
        let outcome = match request {
            Request::GetFeatures => Reply::Number(self.offer.features()).into(),
            Request::SetFeatures(features) => self.set_features(features)?.into(),
            Request::GetProtocolFeatures => Reply::Number(self.offer.protocol_features()).into(),
            Request::SetProtocolFeatures(features) => {
                offered(features, self.offer.protocol_features())?;
                self.protocol_features = features;
                Effect::Done.into()
            }
            // Any sender owns the session. Giving it up is deprecated, and ignored as the
            // specification advises.
            Request::SetOwner | Request::ResetOwner => Effect::Done.into(),
            Request::SetMemTable(regions) => Effect::SetMemory(regions).into(),
            Request::GetMaxMemSlots => Reply::Number(self.offer.memory_slots).into(),
            Request::AddMemReg(region, file) => Effect::AddRegion(region, file).into(),
            Request::RemMemReg(region) => Effect::RemoveRegion(region).into(),
            Request::SetLogBase(file, bytes, offset) => Outcome {
                effect: Effect::SetLog(file, bytes, offset),
                // The specification does not define the payload. QEMU accepts any, others expect
                // their own back.
                reply: Some(Reply::Log(bytes, offset)),
            },
            Request::SetLogFd => Effect::Done.into(),
            // The number of rings. QEMU expects pairs, and may then use more than exist, which is
            // refused ring by ring; other front ends expect rings.
            Request::GetQueueNum => Reply::Number(self.ring_count().into()).into(),
            Request::SendRarp(mac) => Effect::Announce(mac).into(),
            Request::NetSetMtu(mtu) => self.set_mtu(mtu)?.into(),
            Request::SetBackendChannel => Effect::Done.into(),
            Request::GetConfig(range) => self.config(range).into(),
            Request::SetConfig(offset, bytes, restore) => {
                self.set_config(offset, &bytes, restore)?.into()
            }
            Request::GetInflightFd(layout) => Effect::MakeInflight(layout).into(),
            Request::SetInflightFd(layout, file) => Effect::SetInflight(layout, file).into(),
            Request::ResetDevice => self.reset().into(),
            Request::SetStatus(status) => {
                self.status = status;
                Effect::Done.into()
            }
            Request::GetStatus => Reply::Number(self.status().into()).into(),
            Request::Ring(ring, request) => self.apply_to_ring(ring, request)?,
        };
        Ok(outcome)
    }

    /// Rings that are set up and do not run.
    pub fn startable(&self) -> RingSet {
        if self.features & feature::VERSION_1 == 0 {
            return RingSet::default();
        }
        let ready = |index: &u16| {
            let ring = &self.rings[usize::from(*index)];
            ring.started && !ring.running && ring.size > 0 && ring.addresses.is_some()
        };
        RingSet::collect((0..self.ring_count()).filter(ready))
    }

    /// Parameters for starting the ring `index`.
    ///
    /// # Errors
    /// [`Refusal::Base`].
    ///
    /// # Panics
    /// If it is not in [`Session::startable`].
    pub fn setup(&self, index: u16) -> Result<RingSetup, Refusal> {
        let ring = &self.rings[usize::from(index)];
        let is_packed = self.features & feature::RING_PACKED != 0;
        if !is_packed && ring.base > u16::MAX.into() {
            return Err(Refusal::Base(index.into(), ring.base));
        }
        let addresses = ring.addresses.expect("the caller checked `startable`");
        Ok(RingSetup { size: ring.size, addresses, base: ring.base, features: self.features })
    }

    /// The device has started a ring.
    pub fn started(&mut self, ring: u16) {
        self.rings[usize::from(ring)].running = true;
    }

    /// The device could not start a ring, which then needs another kick descriptor.
    pub fn failed(&mut self, ring: u16) {
        self.rings[usize::from(ring)].started = false;
    }

    /// Rings that run.
    pub fn running(&self) -> RingSet {
        let running = |index: &u16| self.rings[usize::from(*index)].running;
        RingSet::collect((0..self.ring_count()).filter(running))
    }

    /// Number of rings, running or not.
    pub fn ring_count(&self) -> u16 {
        self.rings.len() as u16
    }

    /// True if a ring is enabled. On a disabled ring, packets that the guest sends are dropped, and
    /// it receives none.
    pub fn is_enabled(&self, ring: u16) -> bool {
        let by_default = self.features & feature::PROTOCOL_FEATURES == 0;
        self.rings[usize::from(ring)].enable.unwrap_or(by_default)
    }

    /// Event by which the driver kicks a ring; `None` if there is none.
    pub fn kick(&self, ring: u16) -> Option<&Arc<OwnedFd>> {
        self.rings[usize::from(ring)].kick.as_ref()
    }

    /// Event to signal when buffers of a ring were used.
    pub fn call(&self, ring: u16) -> Option<Arc<OwnedFd>> {
        self.rings[usize::from(ring)].call.clone()
    }

    /// Event to signal when a ring breaks.
    pub fn error(&self, ring: u16) -> Option<BorrowedFd<'_>> {
        self.rings[usize::from(ring)].error.as_ref().map(AsFd::as_fd)
    }

    /// Largest IP packet that the guest gets.
    pub fn mtu(&self) -> u16 {
        self.mtu.min(self.offer.mtu)
    }

    /// Changes the largest MTU. One that the front end has set, or that the guest may have read,
    /// stays until a reset (virtio 1.2 §5.1.4.1: it must not change).
    pub fn set_mtu_max(&mut self, mtu: u16) {
        self.offer.mtu = mtu;
        if !self.has_set_mtu && self.features & feature::MTU == 0 {
            self.mtu = mtu;
        }
    }

    /// Changes the link status in the configuration space.
    pub fn set_link(&mut self, is_up: bool) {
        self.is_up = is_up;
    }

    /// True if the front end reads the configuration space and takes reports of its changes.
    pub fn takes_reports(&self) -> bool {
        self.require(protocol::CONFIG | protocol::BACKEND_REQ).is_ok()
    }

    /// Negotiated features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// True if requests can ask for an acknowledgement.
    pub fn acknowledges(&self) -> bool {
        self.protocol_features & protocol::REPLY_ACK != 0
    }

    fn apply_to_ring(&mut self, number: u32, request: RingRequest) -> Result<Outcome, Refusal> {
        let index = self.index(number).ok_or(Refusal::NoRing(number))?;
        let ring = &mut self.rings[usize::from(index)];
        match request {
            RingRequest::Size(_) | RingRequest::Base(_) if ring.running => {
                return Err(Refusal::Running(number));
            }
            RingRequest::Size(size) => ring.size = size,
            RingRequest::Addresses(addresses) => ring.addresses = Some(addresses),
            RingRequest::Base(base) => ring.base = base,
            RingRequest::Stop => {
                ring.started = false;
                ring.kick = None;
                ring.call = None;
                return Ok(Reply::RingState(number, ring.base).into());
            }
            RingRequest::Kick(kick) => {
                ring.kick = kick.map(Arc::new);
                ring.started = true;
            }
            RingRequest::Call(call) => {
                ring.call = call.map(Arc::new);
                return Ok(Effect::Call(index).into());
            }
            RingRequest::Error(error) => ring.error = error,
            RingRequest::Enable(enable) => ring.enable = Some(enable),
        }
        Ok(Effect::Done.into())
    }

    fn require(&self, needed: u64) -> Result<(), Refusal> {
        if self.protocol_features & needed == needed {
            Ok(())
        } else {
            Err(Refusal::NotAgreed(needed))
        }
    }

    fn set_features(&mut self, features: u64) -> Result<Effect, Refusal> {
        offered(features, self.offer.features())?;
        let ends_log = self.features & !features & feature::LOG_ALL != 0;
        self.features = features;
        Ok(if ends_log { Effect::EndLog } else { Effect::Done })
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<Effect, Refusal> {
        if !(MTU_MIN..=self.offer.mtu).contains(&mtu) {
            return Err(Refusal::Mtu(mtu));
        }
        (self.mtu, self.has_set_mtu) = (mtu, true);
        Ok(Effect::Done)
    }

    /// virtio 1.2 §5.1.4: address, status, pairs, MTU. Fields whose features are not offered read
    /// as zeros.
    fn config(&self, range: ConfigRange) -> Reply {
        // VIRTIO_NET_S_LINK_UP
        let status = u16::from(self.is_up);
        let mut space = Vec::with_capacity(range.offset + range.bytes);
        space.extend(self.mac);
        for field in [status, self.offer.pairs, self.mtu] {
            space.extend(field.to_le_bytes());
        }
        space.resize(space.len().max(range.offset + range.bytes), 0);
        Reply::Config(range.offset, space[range.offset..][..range.bytes].to_vec())
    }

    /// Only a migration writes, and the address is the only field that this device does not know
    /// itself.
    fn set_config(
        &mut self,
        offset: usize,
        bytes: &[u8],
        restore: bool,
    ) -> Result<Effect, Refusal> {
        if !restore {
            return Err(Refusal::ReadOnly);
        }
        for (to, from) in self.mac.iter_mut().skip(offset).zip(bytes) {
            *to = *from;
        }
        Ok(Effect::Done)
    }

    fn reset(&mut self) -> Effect {
        let protocol_features = self.protocol_features;
        *self = Self { protocol_features, is_up: self.is_up, ..Self::new(self.offer) };
        Effect::Reset
    }

    fn status(&self) -> u8 {
        // virtio 1.2 §3.1.1: the bit is cleared if the features are not accepted.
        if self.features & feature::VERSION_1 == 0 {
            self.status & !STATUS_FEATURES_OK
        } else {
            self.status
        }
    }

    fn index(&self, ring: u32) -> Option<u16> {
        u16::try_from(ring).ok().filter(|ring| *ring < self.ring_count())
    }
}

/// The protocol feature that a request belongs to; 0 for requests of all front ends.
fn needed(request: &Request) -> u64 {
    match request {
        Request::SetLogBase(..) => protocol::LOG_SHMFD,
        Request::SendRarp(_) => protocol::RARP,
        Request::NetSetMtu(_) => protocol::MTU,
        Request::SetBackendChannel => protocol::BACKEND_REQ,
        Request::GetInflightFd(_) | Request::SetInflightFd(..) => protocol::INFLIGHT_SHMFD,
        Request::ResetDevice => protocol::RESET_DEVICE,
        Request::GetMaxMemSlots | Request::AddMemReg(..) | Request::RemMemReg(_) => {
            protocol::CONFIGURE_MEM_SLOTS
        }
        Request::SetStatus(_) | Request::GetStatus => protocol::STATUS,
        Request::SetConfig(..) | Request::GetConfig(_) => protocol::CONFIG,
        _ => 0,
    }
}

fn offered(features: u64, offer: u64) -> Result<(), Refusal> {
    if features & !offer == 0 { Ok(()) } else { Err(Refusal::Features(features & !offer)) }
}

#[cfg(test)]
mod tests;
