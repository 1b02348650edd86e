//! The queues of a TAP device, one for each worker, and the packets handed over between them.
//!
//! # Theory of operation
//!
//! A flow has to stay with one worker, but the kernel alone chooses the queue of a packet
//! ([`Tap::add_queue`]): the queue that last wrote a packet of the flow within three seconds, else
//! the queue of a hash of its addresses and ports, which is always the same. So a TCP flow that the
//! program begins comes to the hash's queue, is answered there, and never comes to another queue,
//! however long it pauses. Other traffic has no such fixed queue. Flows that the host begins come
//! to the hash's queue after a pause. Datagrams of one port of the program go to many peers, but
//! have one host socket. Fragments and ICMP errors are spread by their addresses alone.
//!
//! So [`Owners`] decides the owner of a packet by its headers alone. The program's TCP from ports
//! that are not published is served by the worker whose queue received it. TCP from published ports
//! belongs to the worker of a second hash, computed here; that worker also begins the connection.
//! Everything else belongs to the first worker. A packet that comes to another worker's queue is
//! handed over, through a ring of the owner. The owner answers by its own queue, so the kernel
//! steers the flow there.
//!
//! Invariants: whether a packet is handed over depends only on the packet, so it is the same for
//! all packets of a TCP connection, and no two workers have connections with the same addresses and
//! ports. Order is kept within a ring and within a queue, not between them. Packets that find no
//! room in a ring are dropped and counted. Each side belongs to one worker's thread; only the rings
//! are shared.
//!
//! Limit: [`HANDED_MAX`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::tap::{Tap, TapError};
use towpath_net::time::Instant;
use towpath_packet::ring::{self, Consumer, SharedProducer};
use towpath_packet::{Burst, Caps, Context, Device, Input, Packet};

use crate::owners::Owners;
use crate::report::Report;
use crate::worker::Inside;

/// Packets that may wait for a worker: as many as a TAP device's own queue holds.
pub const HANDED_MAX: usize = 1024;

/// The queue of a worker, and the packets that other workers hand over to it.
pub(super) struct Queue {
    tap: Tap,
    index: usize,
    owners: Arc<Owners>,
    /// Packets that other workers have handed over.
    handed: Consumer<Packet>,
    /// Rings to all workers, including this one, so that no ring closes.
    to: Vec<SharedProducer<Packet>>,
    /// Packets from the device that have no owner yet, and packets for each worker.
    received: Burst,
    leaving: Vec<Burst>,
    bell: EventDoorbell,
    /// The ring had packets when it was last polled.
    has_handed: bool,
    /// The ring is read before the device; this alternates, so that neither starves the other.
    is_ring_first: bool,
    /// Packets handed over to other workers.
    handed_over: u64,
    /// Packets that found no room in another worker's ring.
    full: u64,
}

impl Queue {
    /// Makes one for each queue of the device.
    pub(super) fn all(taps: Vec<Tap>, owners: &Arc<Owners>) -> io::Result<Vec<Self>> {
        let mut ends = Vec::new();
        for _ in &taps {
            // Handing over is rare. With an unfenced doorbell, each sleep of the owner would be a
            // barrier of all threads.
            let bell = EventDoorbell::fenced()?;
            let (to, handed) = ring::shared(HANDED_MAX, bell.clone()).map_err(io::Error::other)?;
            ends.push((bell, to, handed));
        }
        let to: Vec<_> = ends.iter().map(|end| end.1.clone()).collect();
        let ends = taps.into_iter().zip(ends).enumerate();
        let each = ends.map(|(index, (tap, (bell, _, handed)))| Self {
            tap,
            index,
            owners: owners.clone(),
            handed,
            leaving: to.iter().map(|_| Burst::new()).collect(),
            to: to.clone(),
            received: Burst::new(),
            bell,
            has_handed: false,
            is_ring_first: true,
            handed_over: 0,
            full: 0,
        });
        Ok(each.collect())
    }

    /// Reads the device until `burst` is full, and hands over the packets of other workers.
    fn read(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, TapError> {
        let room = burst.room();
        if room == 0 {
            return Ok(Input::Done);
        }
        self.received.limit(room);
        let input = self.tap.receive(&mut self.received, cx)?;
        let is_full = self.received.is_full();
        while let Some(mut packet) = self.received.pop() {
            let owner = self.owners.of_packet(packet.peek_headers()).unwrap_or(self.index);
            let to = if owner == self.index { &mut *burst } else { &mut self.leaving[owner] };
            to.push(packet).expect("there is room for what was received");
        }
        let mut of_others = 0;
        for (leaving, to) in self.leaving.iter_mut().zip(&mut self.to) {
            if !leaving.is_empty() {
                let count = leaving.len();
                of_others += leaving.iter().map(Packet::len).sum::<usize>();
                let dropped = to.enqueue_or_drop(leaving);
                self.full += dropped as u64;
                self.handed_over += (count - dropped) as u64;
            }
        }
        Ok(match input {
            Input::Done if is_full && of_others > 0 => Input::HandedOver(of_others),
            input => input,
        })
    }
}

impl Device for Queue {
    type Error = TapError;

    fn caps(&self) -> Caps {
        self.tap.caps()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.tap.file()
    }

    fn queue(&self) -> u16 {
        self.index as u16
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.has_handed.then_some(Instant::START)
    }

    fn poll(&mut self) -> bool {
        self.has_handed = !self.handed.is_empty();
        self.has_handed
    }

    fn arm(&mut self) -> bool {
        self.has_handed = !self.handed.needs_wakeup();
        self.has_handed
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, TapError> {
        if self.is_ring_first {
            self.handed.dequeue(burst);
        }
        let input = self.read(burst, cx)?;
        if !self.is_ring_first {
            self.handed.dequeue(burst);
        }
        self.is_ring_first = !self.is_ring_first;
        // While memory is short, nothing is due.
        self.has_handed = input != Input::NoMemory && !self.handed.is_empty();
        Ok(input)
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), TapError> {
        self.tap.transmit(burst, cx)
    }

    fn rest(&mut self) {
        self.tap.rest();
    }
}

impl Inside for Queue {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.bell.as_fd())
    }

    fn clear_bell(&mut self) {
        self.bell.clear();
    }

    fn add_to(&self, report: &mut Report) {
        self.tap.add_to(report);
        report.handed_over = self.handed_over;
        report.hand_over_full = self.full;
    }
}
