//! What the workers of a network share: a ring to each, and figures about ports and workers.
//!
//! # Theory of operation
//!
//! Each worker has one ring, from which it alone takes, and to which all others add. A packet in a
//! ring says what to do with it ([`Errand`]), in the field that holds its ingress otherwise. A
//! worker adds the packets of a port in their order, so a ring keeps the order of each flow.
//!
//! The first worker finishes packets of other workers' ports: it judges them, or takes them for the
//! gateway. [`UnderWay`] counts them, for each port, so that a port is not read while many are not
//! finished: a guest that sends many costs others no room in the ring. A worker that waits for that
//! is woken once.
//!
//! No order between the other values matters; each says why where it is used.

use std::sync::Arc;

use towpath_net::switch::{PORTS_MAX, PortId};
use towpath_packet::ring::SharedProducer;
use towpath_packet::sync::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use towpath_packet::under_way::UnderWay;
use towpath_packet::{Burst, Packet};

/// Packets on the way to one worker: a quarter of the handles of another one, which can receive
/// others meanwhile, and about as many as wait for a port. A worker that cannot keep up loses the
/// rest, as a port does whose queue is full.
pub(super) const RING_LEN: usize = 1024;

/// The links of one worker.
#[derive(Clone)]
pub(super) struct Links {
    /// The number of this worker.
    pub(super) own: usize,
    /// The rings, by the numbers of their workers.
    rings: Arc<[SharedProducer<Packet>]>,
    shared: Arc<Shared>,
}

/// What a worker is to do with a packet from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// Judge it: it came from this port.
    Judge(u16),
    /// Give it to this port: it is judged, and adapted to the port.
    Deliver(u16),
    /// Give it to the gateway: it is judged, and came from this port.
    ToGateway(u16),
}

/// The bits of an errand beside the number of the port.
const DELIVER: u16 = 1 << 14;
const TO_GATEWAY: u16 = 1 << 15;
const _: () = assert!(PORTS_MAX <= DELIVER as usize);

impl Errand {
    fn set(self, packet: &mut Packet) {
        packet.set_ingress(Some(match self {
            Self::Judge(port) => port,
            Self::Deliver(port) => port | DELIVER,
            Self::ToGateway(port) => port | TO_GATEWAY,
        }));
    }

    /// Returns the errand of a packet from a ring.
    pub(super) fn of(packet: &Packet) -> Self {
        let number = packet.ingress().expect("packets in rings have errands");
        let port = number & (DELIVER - 1);
        match number & !(DELIVER - 1) {
            DELIVER => Self::Deliver(port),
            TO_GATEWAY => Self::ToGateway(port),
            _ => Self::Judge(port),
        }
    }
}

/// What all workers see.
struct Shared {
    ports: [Place; PORTS_MAX],
    workers: Box<[Figures]>,
}

/// What all workers see of a port. It has cache lines of its own: the worker of its port and the
/// first worker write to it.
#[repr(align(128))]
#[derive(Default)]
struct Place {
    /// The number of its worker.
    worker: AtomicU8,
    under_way: UnderWay,
}

/// What all workers see of a worker.
#[repr(align(128))]
#[derive(Default)]
struct Figures {
    /// Packets of this worker's ports that the first worker has judged and handed out.
    judged: AtomicU64,
    /// Ports that use the gateway.
    gateway_users: AtomicUsize,
    /// Its memory is short.
    is_short: AtomicBool,
}

impl Links {
    /// Returns the links of the first worker, for these rings.
    pub(super) fn new(rings: Vec<SharedProducer<Packet>>) -> Self {
        let workers = rings.iter().map(|_| Figures::default()).collect();
        let ports = std::array::from_fn(|_| Place::default());
        Self { own: 0, rings: rings.into(), shared: Arc::new(Shared { ports, workers }) }
    }

    /// Returns the links of another worker.
    pub(super) fn of(&self, own: usize) -> Self {
        Self { own, ..self.clone() }
    }

    /// Sets which worker a port belongs to, of whose packets the first worker has not finished
    /// `under_way`. No packet leaves by the port yet: no station is known behind it, or no other
    /// worker has begun.
    pub(super) fn set_worker(&self, port: usize, worker: usize, under_way: usize) {
        let place = &self.shared.ports[port];
        place.under_way.set(under_way);
        // Relaxed: the address table, which names the port later, or the beginning of the other
        // workers orders it.
        place.worker.store(worker as u8, Ordering::Relaxed);
    }

    /// Returns the worker of a port, or of the port that had this number last.
    pub(super) fn worker_of(&self, port: usize) -> usize {
        // Relaxed: see `set_worker`.
        self.shared.ports[port].worker.load(Ordering::Relaxed).into()
    }

    pub(super) fn under_way(&self, port: usize) -> &UnderWay {
        &self.shared.ports[port].under_way
    }

    /// Hands packets from the front of `burst` over to the worker of the port that they leave by.
    /// Those without room stay in `burst`.
    pub(super) fn deliver(&self, to: PortId, burst: &mut Burst) {
        let worker = self.worker_of(to.index());
        // A port of this worker that is not here has been removed.
        if worker != self.own {
            self.send(worker, Errand::Deliver(to.index() as u16), burst);
        }
    }

    /// Hands packets of port `from` over to the gateway. Those without room stay in `burst`.
    /// Returns the number of the others.
    pub(super) fn deliver_to_gateway(&self, from: PortId, burst: &mut Burst) -> usize {
        self.send_counted(Errand::ToGateway(from.index() as u16), from, burst)
    }

    /// Hands packets of port `from` over to the first worker, which judges them. Those without room
    /// stay in `burst`. Returns the number of the others.
    pub(super) fn judge(&self, from: PortId, burst: &mut Burst) -> usize {
        self.send_counted(Errand::Judge(from.index() as u16), from, burst)
    }

    /// Sends packets that are counted as under way until the first worker has finished them.
    fn send_counted(&self, errand: Errand, from: PortId, burst: &mut Burst) -> usize {
        let (before, under_way) = (burst.len(), self.under_way(from.index()));
        under_way.add(before);
        self.send(0, errand, burst);
        under_way.finish(burst.len());
        before - burst.len()
    }

    fn send(&self, worker: usize, errand: Errand, burst: &mut Burst) {
        burst.iter_mut().for_each(|packet| errand.set(packet));
        // If the worker has ended, nothing is taken; its end ends the network.
        let _ = self.rings[worker].enqueue(burst);
    }

    /// Returns how many packets of this worker's ports the first worker has judged and handed out.
    pub(super) fn judged(&self) -> u64 {
        // Acquire: pairs with the Release of `add_judged`: what was handed out is in its rings.
        self.shared.workers[self.own].judged.load(Ordering::Acquire)
    }

    /// Records that the first worker has handed out packets of another worker's ports.
    pub(super) fn add_judged(&self, worker: usize, count: usize) {
        // Release: pairs with the Acquire of `judged`. One worker adds.
        self.shared.workers[worker].judged.fetch_add(count as u64, Ordering::Release);
    }

    /// Tells how many ports of this worker use the gateway. Returns true if several ports of the
    /// network do.
    pub(super) fn share_gateway(&self, users: usize) -> bool {
        let own = &self.shared.workers[self.own].gateway_users;
        // Relaxed, here and below: a hint.
        if own.load(Ordering::Relaxed) != users {
            own.store(users, Ordering::Relaxed);
        }
        let all = self.shared.workers.iter();
        all.map(|worker| worker.gateway_users.load(Ordering::Relaxed)).sum::<usize>() > 1
    }

    /// Tells whether the memory of this worker is short. Returns true if that of any is: what waits
    /// for a port may be in each of them.
    pub(super) fn share_shortage(&self, is_short: bool) -> bool {
        let own = &self.shared.workers[self.own].is_short;
        // Relaxed, here and below: a hint.
        if own.load(Ordering::Relaxed) != is_short {
            own.store(is_short, Ordering::Relaxed);
        }
        self.shared.workers.iter().any(|worker| worker.is_short.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_packet::{Memory, MemoryConfig};

    #[test]
    fn an_errand_is_in_the_packet() {
        let mut memory = Memory::new(MemoryConfig { packets: 1, small_frames: 0, large_frames: 0 });
        let mut packet = memory.packet().expect("free");
        for port in [0, 1, PORTS_MAX as u16 - 1] {
            for errand in [Errand::Judge(port), Errand::Deliver(port), Errand::ToGateway(port)] {
                errand.set(&mut packet);
                assert_eq!(Errand::of(&packet), errand);
            }
        }
    }
}
