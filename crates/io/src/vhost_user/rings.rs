//! The rings of one device: starts and stops them, and moves packets through them.
//!
//! Even rings are the driver's receive queues, odd ones its transmit queues (virtio 1.2 §5.1.2). A
//! ring is stopped before anything that it depends on changes. Stopping returns everything that was
//! taken from it, which may take several turns while lent memory is being read.
//!
//! With several receive queues, packets of one flow belong in the same queue, selected by a hash of
//! their addresses and ports ([`PairSet::of_flow`]). An owner can distribute packets itself and
//! fill each queue by a call of its own; then packets that wait for one queue delay no others.
//!
//! No call blocks. Only starting and stopping allocate. One thread at a time.

use super::memory::GuestMemory;
use super::session::{RINGS_MAX, RingSet, Session};
use super::virtq::{
    Broken, QueueConfig, ReceiveCounters, ReceiveQueue, StartError, Stop, TransmitCounters,
    TransmitQueue,
};
use rustix::fd::OwnedFd;
use std::ops::AddAssign;
use std::sync::Arc;
use std::task::Waker;
use towpath_packet::time::Instant;
use towpath_packet::{Burst, Context, Ledger, Packet};

/// Most times that a queue is checked again because buffers arrived at the end of a pass.
const LOOKS_MAX: usize = 4;

/// The rings of a device; see the module documentation.
pub(super) struct Rings {
    receive: Box<[Option<ReceiveQueue>]>,
    transmit: Box<[Option<TransmitQueue>]>,
    /// Packets for each receive queue, while a burst is distributed.
    lanes: Box<[Burst]>,
    /// The transmit queue that the last pass started with.
    first: usize,
    /// Rings found broken and not reported yet.
    broken: RingSet,
    /// The owner polls: only [`Rings::arm`] requests kicks and wake-ups for loans that end.
    is_polled: bool,
    /// Kicks and wake-ups were requested, and nothing has moved since.
    is_armed: bool,
    /// Transmit queues copy short frames inline.
    is_inline: bool,
    /// For an owner that polls: receive queues that had too few buffers last time.
    short: RingSet,
    /// Counters of stopped queues.
    past: Traffic,
}

/// Traffic through the queues of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets from the guest.
    pub sent: TransmitCounters,
    /// Packets for the guest.
    pub received: ReceiveCounters,
}

impl Rings {
    pub(super) fn new(pairs: u16) -> Self {
        Self {
            receive: (0..pairs).map(|_| None).collect(),
            transmit: (0..pairs).map(|_| None).collect(),
            lanes: (0..pairs).map(|_| Burst::new()).collect(),
            first: 0,
            broken: RingSet::default(),
            is_polled: false,
            is_armed: false,
            is_inline: false,
            short: RingSet::default(),
            past: Traffic::default(),
        }
    }

    /// Starts a stopped ring.
    pub(super) fn start(
        &mut self,
        ring: u16,
        config: QueueConfig,
        memory: &GuestMemory,
        wake: &Waker,
    ) -> Result<(), StartError> {
        self.is_armed = false;
        let pair = usize::from(ring / 2);
        if is_receive(ring) {
            self.receive[pair] = Some(ReceiveQueue::start(config, memory)?);
        } else {
            let mut queue = TransmitQueue::start(config, memory, Some(wake.clone()))?;
            if self.is_inline {
                queue.set_inline();
            }
            self.transmit[pair] = Some(queue);
        }
        Ok(())
    }

    /// Stops a running ring. It must not be used for packets until that is done.
    pub(super) fn stop(&mut self, ring: u16, ledger: &Ledger) -> Stop {
        let pair = usize::from(ring / 2);
        let stop = if is_receive(ring) {
            self.receive[pair].as_mut().map(|queue| queue.stop(ledger))
        } else {
            self.transmit[pair].as_mut().map(|queue| queue.stop(ledger))
        };
        let stop = stop.expect("the ring runs");
        if let Stop::Done(_) = stop {
            if is_receive(ring) {
                let queue = self.receive[pair].take();
                queue.iter().for_each(|queue| self.past.received += *queue.counters());
            } else {
                let queue = self.transmit[pair].take();
                queue.iter().for_each(|queue| self.past.sent += *queue.counters());
            }
            self.broken.remove(ring);
            self.short.remove(ring);
        }
        stop
    }

    /// Sets another call descriptor for a ring, if it runs.
    pub(super) fn set_call(&mut self, ring: u16, call: Option<Arc<OwnedFd>>) {
        let pair = usize::from(ring / 2);
        if is_receive(ring) {
            if let Some(queue) = &mut self.receive[pair] {
                queue.set_call(call);
            }
        } else if let Some(queue) = &mut self.transmit[pair] {
            queue.set_call(call);
        }
    }

    /// Returns buffers whose loans are over, and recalls loans whose term has passed.
    pub(super) fn turn(&mut self, now: Instant, ledger: &Ledger) {
        for queue in self.transmit.iter_mut().flatten() {
            queue.turn(now, ledger);
        }
    }

    /// Deadline for recalling the oldest loan, or for another attempt.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let queues = self.transmit.iter().flatten();
        queues.filter_map(TransmitQueue::next_deadline).min()
    }

    /// Number of times that running rings stopped receiving because memory was short.
    pub(super) fn paused(&self) -> u64 {
        self.transmit.iter().flatten().map(|queue| queue.counters().paused).sum()
    }

    /// The owner polls from now on.
    pub(super) fn set_polled(&mut self) {
        self.is_polled = true;
    }

    /// Transmit queues that start from now on copy short frames inline.
    pub(super) fn set_inline(&mut self) {
        self.is_inline = true;
    }

    /// True if there is work: the driver has sent packets, has offered buffers where there were too
    /// few, or loans have ended.
    pub(super) fn has_work(&mut self) -> bool {
        let Self { receive, transmit, short, .. } = self;
        let mut has_more = |ring: u16| {
            let queue = receive[usize::from(ring / 2)].as_mut();
            queue.is_some_and(ReceiveQueue::has_more)
        };
        transmit.iter().flatten().any(TransmitQueue::has_work)
            || !short.is_empty() && short.iter().any(&mut has_more)
    }

    /// Forgets which receive queues had too few buffers, as they may be used no more. The owner
    /// offers waiting packets again.
    pub(super) fn forget_short(&mut self) {
        self.short = RingSet::default();
    }

    /// Requests kicks, and wake-ups for loans that end, for an owner that polls. Returns true if
    /// there is work already; then a kick or wake-up may not come.
    pub(super) fn arm(&mut self) -> bool {
        if self.is_armed {
            return false;
        }
        let mut has_work = false;
        for queue in self.transmit.iter_mut().flatten() {
            has_work |= queue.enable_kicks();
        }
        for ring in self.short.iter() {
            let queue = self.receive[usize::from(ring / 2)].as_mut();
            has_work |= queue.is_some_and(ReceiveQueue::enable_kicks);
        }
        self.is_armed = !has_work;
        has_work
    }

    /// Adds the packets that the driver sends to `burst`. If there is room left afterwards, the
    /// driver will kick for more packets, or `wake` was called, unless the owner polls.
    pub(super) fn receive(
        &mut self,
        session: &Session,
        burst: &mut Burst,
        cx: &mut Context<'_>,
        wake: &Waker,
    ) {
        self.is_armed = false;
        let count = self.transmit.len();
        self.first = (self.first + 1) % count;
        for pair in (0..count).map(|step| (self.first + step) % count) {
            let ring = transmit_ring(pair);
            let Some(queue) = &mut self.transmit[pair] else { continue };
            if queue.broken().is_some() {
                // It was reported, and stays stopped until it is started again.
                continue;
            }
            let mut looks = 0;
            let result = loop {
                let result =
                    if session.is_enabled(ring) { queue.take(burst, cx) } else { queue.discard() };
                let is_over = result.is_err() || burst.is_full() || self.is_polled;
                if is_over || !queue.enable_kicks() {
                    break result;
                }
                looks += 1;
                if looks == LOOKS_MAX {
                    wake.wake_by_ref();
                    break result;
                }
            };
            if result.is_err() {
                self.broken.insert(ring);
            }
            if burst.is_full() {
                break;
            }
        }
    }

    /// Pairs whose receive queue takes packets: it runs, is enabled, and is not broken.
    pub(super) fn open(&self, session: &Session) -> PairSet {
        let pairs = 0..self.receive.len() as u16;
        let open = pairs.filter(|pair| self.is_open(*pair, session));
        PairSet(open.fold(0, |bits, pair| bits | 1 << pair))
    }

    fn is_open(&self, pair: u16, session: &Session) -> bool {
        let pair = usize::from(pair);
        let runs = self.receive[pair].as_ref().is_some_and(|queue| queue.broken().is_none());
        runs && session.is_enabled(receive_ring(pair))
    }

    /// Passes packets from the front of `burst` to the receive queue of a pair. The rest waits for
    /// buffers, for which the driver will kick, unless the owner polls. If the queue is not open,
    /// the packets are dropped; returns the number of their frames.
    pub(super) fn transmit(
        &mut self,
        pair: u16,
        session: &Session,
        burst: &mut Burst,
        cx: &mut Context<'_>,
        wake: &Waker,
    ) -> usize {
        let is_open = self.is_open(pair, session);
        let ring = receive_ring(pair.into());
        self.is_armed = false;
        self.short.remove(ring);
        let Some(queue) = self.receive[usize::from(pair)].as_mut().filter(|_| is_open) else {
            let dropped = burst.frames();
            burst.clear();
            return dropped;
        };
        let mut looks = 0;
        loop {
            if queue.deliver(burst, cx).is_err() {
                self.broken.insert(ring);
                return 0;
            }
            if self.is_polled && !burst.is_empty() {
                self.short.insert(ring);
                return 0;
            }
            if burst.is_empty() || !queue.enable_kicks() {
                return 0;
            }
            looks += 1;
            if looks == LOOKS_MAX {
                wake.wake_by_ref();
                return 0;
            }
        }
    }

    /// Passes packets as [`Rings::transmit`] does, each to the queue of its flow. What waits for
    /// one queue delays the packets behind it.
    pub(super) fn distribute(
        &mut self,
        session: &Session,
        burst: &mut Burst,
        cx: &mut Context<'_>,
        wake: &Waker,
    ) -> usize {
        let open = self.open(session);
        if open.len() <= 1 {
            return self.transmit(open.first().unwrap_or(0), session, burst, cx, wake);
        }
        while let Some(packet) = burst.pop() {
            let pair = open.of_flow(&packet).expect("a pair is open");
            let lane = &mut self.lanes[usize::from(pair)];
            lane.push(packet).expect("a lane has room for a burst");
        }
        let mut dropped = 0;
        for pair in 0..self.lanes.len() {
            let mut lane = std::mem::take(&mut self.lanes[pair]);
            if !lane.is_empty() {
                dropped += self.transmit(pair as u16, session, &mut lane, cx, wake);
            }
            while let Some(packet) = lane.pop() {
                burst.push(packet).expect("they came from this burst");
            }
        }
        dropped
    }

    /// Traffic through all queues, including stopped ones.
    pub(super) fn traffic(&self) -> Traffic {
        let mut sum = self.past;
        self.receive.iter().flatten().for_each(|queue| sum.received += *queue.counters());
        self.transmit.iter().flatten().for_each(|queue| sum.sent += *queue.counters());
        sum
    }

    /// Rings found broken since the last call.
    pub(super) fn take_broken(&mut self) -> RingSet {
        std::mem::take(&mut self.broken)
    }

    /// Why a running ring is broken.
    pub(super) fn reason(&self, ring: u16) -> Option<Broken> {
        let pair = usize::from(ring / 2);
        if is_receive(ring) {
            self.receive[pair].as_ref().and_then(ReceiveQueue::broken)
        } else {
            self.transmit[pair].as_ref().and_then(TransmitQueue::broken)
        }
    }
}

impl AddAssign for TransmitCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { packets, bytes, lent, recalled, short, long, bad_header, discarded, paused } =
            other;
        self.packets += packets;
        self.bytes += bytes;
        self.lent += lent;
        self.recalled += recalled;
        self.short += short;
        self.long += long;
        self.bad_header += bad_header;
        self.discarded += discarded;
        self.paused += paused;
    }
}

impl AddAssign for ReceiveCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { packets, bytes, full, too_small, refused } = other;
        self.packets += packets;
        self.bytes += bytes;
        self.full += full;
        self.too_small += too_small;
        self.refused += refused;
    }
}

/// A set of pairs of queues, by their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairSet(u32);

const _: () = assert!(RINGS_MAX as u32 / 2 <= u32::BITS, "one bit for each pair");

impl PairSet {
    /// The set of the first pair.
    pub const FIRST: Self = Self(1);

    /// Number of pairs in the set.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// True if no pair is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if `pair` is in the set.
    pub fn contains(self, pair: u16) -> bool {
        self.0 & (1 << pair) != 0
    }

    /// The first pair of the set.
    pub fn first(self) -> Option<u16> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as u16)
    }

    /// The pair for a packet whose headers are private: the same for all packets of a flow as long
    /// as the set is the same.
    pub fn of_flow(self, packet: &Packet) -> Option<u16> {
        let mut bits = self.0;
        for _ in 0..flow_hash(packet).checked_rem(self.len())? {
            bits &= bits - 1;
        }
        Some(bits.trailing_zeros() as u16)
    }
}

fn is_receive(ring: u16) -> bool {
    ring.is_multiple_of(2)
}

fn receive_ring(pair: usize) -> u16 {
    2 * pair as u16
}

fn transmit_ring(pair: usize) -> u16 {
    receive_ring(pair) + 1
}

/// A hash of a packet's flow: of its addresses, and of its ports where they are at their usual
/// offset. Zero for packets without headers or with unknown ones.
fn flow_hash(packet: &Packet) -> u32 {
    const ETHERTYPE: usize = 12;
    let headers = packet.headers();
    let range = match headers.get(ETHERTYPE..ETHERTYPE + 2) {
        // RFC 791 §3.1: without options the ports follow the addresses.
        Some([0x08, 0x00]) if headers.get(14) == Some(&0x45) => 26..38,
        Some([0x08, 0x00]) => 26..34,
        // RFC 8200 §3.
        Some([0x86, 0xdd]) => 22..58,
        _ => return 0,
    };
    // FNV-1a: the input is short, and a sender gains nothing from collisions.
    let bytes = headers.get(range).unwrap_or_default();
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests;
