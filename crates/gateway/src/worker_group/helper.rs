//! The inside of every worker but the first: packets come from the first worker, through a ring,
//! and leave by the device.
//!
//! Orders about flows come by a channel. An order that was given before a packet was put into the
//! ring is carried out before the packet is processed. Flows return only when all packets that came
//! for them before have been processed and what they caused has been sent.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use towpath_io::doorbell::EventDoorbell;
use towpath_io::tap::{Tap, TapError};
use towpath_net::time::Instant;
use towpath_packet::ring::{Consumer, Doorbell};
use towpath_packet::{Burst, Caps, Context, Device, Input, Packet};

use super::vitals::{self, Vitals};
use crate::flows::{MovedFlows, Order};
use crate::owners::Buckets;
use crate::report::Report;
use crate::worker::{Exchange, Inside};

/// Flows that return to the first worker.
pub(super) struct Returned {
    pub(super) buckets: Buckets,
    pub(super) flows: MovedFlows,
}

/// The inside of a worker that helps the first one.
pub(super) struct Helper {
    /// The device, to send only.
    pub(super) tap: Tap,
    pub(super) index: usize,
    pub(super) flows_max: usize,
    pub(super) vitals: Arc<[Vitals]>,
    /// Packets of the flows of this worker.
    pub(super) ring: Consumer<Packet>,
    /// Packets from the ring that are not processed yet.
    pub(super) taken: Burst,
    /// Packets that have been passed on to be processed.
    pub(super) passed_on: u64,
    pub(super) orders: Receiver<Order>,
    /// Orders that are not carried out yet.
    pub(super) open: VecDeque<Order>,
    /// Where flows return to, and the bell of the first worker.
    pub(super) back: (Sender<Returned>, EventDoorbell),
    /// Rings for packets and orders.
    pub(super) bell: EventDoorbell,
    pub(super) has_packets: bool,
    /// Flows that were taken over.
    pub(super) flows_taken: u64,
}

impl Helper {
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
                // A failure means that the first worker has ended.
                let _ = self.back.0.send(Returned { buckets, flows });
                self.back.1.ring();
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
        (self.has_packets || !self.open.is_empty()).then_some(Instant::START)
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
        vitals::tell(&self.vitals, self.index, self.flows_max, flows);
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
