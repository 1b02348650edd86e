//! The inside of every worker but the first: packets come from the first worker, through a ring,
//! and leave by the device.
//!
//! The first worker makes it when this worker first joins ([`Helper::new`]).
//!
//! Orders about flows come by a channel. An order that was given before a packet was put into the
//! ring is carried out before the packet is processed. Flows return only when all packets that came
//! for them before have been processed and what they caused has been sent.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::tap::{Tap, TapError};
use towpath_net::time::Instant;
use towpath_packet::ring::{Consumer, Doorbell};
use towpath_packet::{Burst, Caps, Context, Device, Input, Packet};

use super::vitals::{self, Bounds, Vitals};
use crate::flows::{MovedFlows, Order};
use crate::owners::Buckets;
use crate::report::Report;
use crate::worker::{Exchange, Inside};

/// What another worker tells the first one, whose bell it rings.
pub(super) enum Told {
    /// The worker that was to join is ready to take flows; or it could not be made, and its thread
    /// stays parked.
    Came(bool),
    /// Flows return.
    Returned { buckets: Buckets, flows: MovedFlows },
}

/// The way back to the first worker.
#[derive(Clone)]
pub(super) struct Back {
    pub(super) to: Sender<Told>,
    pub(super) bell: EventDoorbell,
}

impl Back {
    pub(super) fn tell(&self, told: Told) {
        // A failure means that the first worker has ended.
        let _ = self.to.send(told);
        self.bell.ring();
    }
}

/// Time between two looks at memory that others hold while this worker has nothing to do.
const LINGER_CHECK: Duration = Duration::from_secs(5);

/// The inside of a worker that helps the first one.
pub(super) struct Helper {
    /// The device, to send only.
    tap: Tap,
    index: usize,
    bounds: Bounds,
    vitals: Arc<[Vitals]>,
    /// Packets of the flows of this worker.
    ring: Consumer<Packet>,
    /// Packets from the ring that are not processed yet.
    taken: Burst,
    /// Packets that have been passed on to be processed.
    passed_on: u64,
    orders: Receiver<Order>,
    /// Orders that are not carried out yet.
    open: VecDeque<Order>,
    back: Back,
    /// Rings for packets and orders.
    bell: EventDoorbell,
    has_packets: bool,
    /// When to count again what is out of this worker's memory, if something is.
    recount_at: Option<Instant>,
    /// Flows that were taken over.
    flows_taken: u64,
}

impl Helper {
    /// The inside of worker `index`, which sends by `tap` and gets packets by `ring` and orders by
    /// `orders`; `bell` rings for both.
    pub(super) fn new(
        (index, tap): (usize, Tap),
        (ring, orders, bell): (Consumer<Packet>, Receiver<Order>, EventDoorbell),
        back: Back,
        (vitals, bounds): (Arc<[Vitals]>, Bounds),
    ) -> Self {
        Self {
            tap,
            index,
            bounds,
            vitals,
            ring,
            taken: Burst::new(),
            passed_on: 0,
            orders,
            open: VecDeque::new(),
            back,
            bell,
            has_packets: false,
            recount_at: None,
            flows_taken: 0,
        }
    }

    /// Returns the way back to the first worker.
    pub(super) fn back(&self) -> Back {
        self.back.clone()
    }

    #[cfg(test)]
    pub(super) fn has_packets(&self) -> bool {
        self.has_packets
    }

    /// True if packets wait, or may wait for an order.
    fn look(&mut self) -> bool {
        self.has_packets = !self.taken.is_empty() || !self.ring.is_empty();
        self.has_packets
    }

    /// Carries out an order; returns it if it is too early.
    fn obey(&mut self, order: Order, flows: &mut Exchange<'_>) -> Option<Order> {
        match order {
            Order::Take(moved) => {
                self.flows_taken += moved.len() as u64;
                flows.put(*moved);
            }
            Order::Accept(accepted) => flows.gateway().take_over([accepted]),
            Order::Return(_, after) if self.passed_on < after || !flows.may_take() => {
                return Some(order);
            }
            Order::Return(buckets, _) => {
                let flows = flows.take(&buckets);
                self.back.tell(Told::Returned { buckets, flows });
            }
        }
        None
    }
}

impl Device for Helper {
    type Error = TapError;

    fn caps(&self) -> Caps {
        self.tap.caps()
    }

    /// None: the bell rings for everything.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn queue(&self) -> u16 {
        self.index as u16
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.has_packets || !self.open.is_empty() {
            return Some(Instant::START);
        }
        self.recount_at
    }

    fn poll(&mut self) -> bool {
        self.look()
    }

    fn arm(&mut self) -> bool {
        self.has_packets = !self.taken.is_empty() || !self.ring.needs_wakeup();
        self.has_packets
    }

    fn receive(&mut self, burst: &mut Burst, _: &mut Context<'_>) -> Result<Input, TapError> {
        if self.taken.is_empty() {
            self.taken.limit(burst.room());
            self.ring.dequeue(&mut self.taken);
        }
        // Flows that were sent before these packets are taken over first, before the next turn.
        self.open.extend(self.orders.try_iter());
        if !self.open.iter().any(|order| matches!(order, Order::Take(_))) {
            while !burst.is_full()
                && let Some(packet) = self.taken.pop()
            {
                self.passed_on += 1;
                burst.push(packet).expect("the burst is not full");
            }
        }
        self.look();
        Ok(Input::Done)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), TapError> {
        self.tap.transmit(burst, cx)
    }
}

impl Inside for Helper {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn clear_bell(&mut self) {
        self.bell.clear();
        self.look();
    }

    fn exchange(&mut self, flows: &mut Exchange<'_>) {
        let out = vitals::tell(&self.vitals, self.index, self.bounds, 0, flows);
        self.recount_at = (out > 0).then(|| flows.now() + LINGER_CHECK);
        self.open.extend(self.orders.try_iter());
        while let Some(order) = self.open.pop_front() {
            if let Some(early) = self.obey(order, flows) {
                return self.open.push_front(early);
            }
        }
    }

    fn add_to(&self, report: &mut Report) {
        self.tap.add_to(report);
        report.flows_taken = self.flows_taken;
    }
}
