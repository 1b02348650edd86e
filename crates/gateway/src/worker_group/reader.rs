//! The inside of the first worker: it alone reads the device, and gives each packet to the owner of
//! its flow.
//!
//! # Theory of operation
//!
//! There is one reader, so there is one order of the packets, and the reader keeps it. A device
//! with a queue for each worker would not do: the kernel moves a flow to the queue that wrote last,
//! so packets of one flow could wait in two queues, and it drops what waits in a queue that is
//! detached.
//!
//! While the first worker is alone and not full, packets pass without a look. Otherwise each packet
//! has a [`Place`], from its headers: one load of [`Owners`] names its worker. Packets of others
//! leave through their rings, in the frames of the reader.
//!
//! Flows leave the first worker between two turns: they are sent to the other worker before the
//! next packet of them is put into its ring. Flows return in two steps. From the order to return
//! on, their packets wait here, at most [`HELD_MAX`]; then nothing more is read. The other worker
//! processes what was put into its ring before the order, and sends the flows. Then the packets
//! that waited follow. So no packet is lost, and none overtakes another of its flow.
//!
//! The first fragment of a datagram brings its bucket back, and pins it for [`PINNED_FOR`]: the
//! other fragments have no ports.
//!
//! Another worker is made when the policy first wants it: the reader makes the ring and sends it,
//! with the recipe, to the parked thread. Flows leave once that worker says that it is there.
//!
//! Invariant: flows are on their way to one worker at a time.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use towpath_io::doorbell::EventDoorbell;
use towpath_io::tap::{Tap, TapError};
use towpath_io::thread::release_unused;
use towpath_net::time::Instant;
use towpath_packet::burst::BURST_MAX;
use towpath_packet::ring::{self, Producer};
use towpath_packet::{Burst, Caps, Context, Device, Input, Packet};

use super::HANDED_MAX;
use super::helper::{Back, Helper, Told};
use super::policy::{Move, Policy, Sample, WINDOW};
use super::thread::{Command, Parked, Recipe};
use super::vitals::{self, Bounds, Vitals};
use crate::config::MappedAddress;
use crate::flows::{Order, Orders};
use crate::owners::{BUCKETS, Bucket, Buckets, MOVING, Owners, Place, place_of};
use crate::publish::{Protocol, Publish};
use crate::report::Report;
use crate::worker::{Exchange, Inside};

/// Most packets that wait for flows on their way back.
const HELD_MAX: usize = HANDED_MAX;
/// How long a bucket stays with the first worker after a fragment.
const PINNED_FOR: Duration = Duration::from_secs(60);
/// Words of a bitmap with one bit for each port.
const PORT_WORDS: usize = (u16::MAX as usize + 1) / 64;

/// The inside of the first worker.
pub(super) struct Reader {
    tap: Tap,
    owners: Arc<Owners>,
    /// The other workers that have been made, in order of their index.
    others: Vec<Helped>,
    /// The threads whose workers have not been made, the next one last; and their recipe.
    parked: Vec<Parked>,
    recipe: Option<Box<Recipe>>,
    /// The worker that is being made.
    coming: Option<(Parked, Helped)>,
    /// The others' way to here: its bell rings when there is something to hear.
    back: Back,
    told: Receiver<Told>,
    /// Sets of buckets that are on their way back.
    returning: usize,
    /// Packets whose flows are on their way back. Once they are back, these come first.
    held: VecDeque<Packet>,
    /// Packets from the device that have no owner yet.
    received: Burst,
    /// Published UDP ports of the program, one bit for each port; empty if there are none.
    published: Vec<u64>,
    pins: Box<[Instant; BUCKETS]>,
    /// Packets by bucket, halved in each window.
    packets: Box<[u32; BUCKETS]>,
    policy: Policy,
    /// When the policy decided last, and what the workers had done by then.
    decided_at: Instant,
    busy_us: Vec<u64>,
    bytes: u64,
    vitals: Arc<[Vitals]>,
    bounds: Bounds,
    counters: Counters,
}

/// A worker that helps.
pub(super) struct Helped {
    pub(super) orders: Orders,
    pub(super) ring: Producer<Packet>,
    /// Packets that are about to be put into the ring, and the number of those that have been.
    pub(super) leaving: Burst,
    pub(super) put: u64,
}

#[derive(Default)]
struct Counters {
    /// Packets handed over to other workers, and packets that found no room in a ring.
    handed_over: u64,
    full: u64,
    /// Flows that came back.
    flows_taken: u64,
    /// Times that a worker joined.
    joined: u64,
}

impl Reader {
    /// The reader of `workers` workers. It serves alone until others are [parked](Self::park).
    pub(super) fn new(
        tap: Tap,
        owners: Arc<Owners>,
        bell: EventDoorbell,
        workers: usize,
        bounds: Bounds,
    ) -> Self {
        let (to, told) = channel();
        let vitals: Arc<[Vitals]> = (0..workers).map(|_| Vitals::default()).collect();
        Self {
            tap,
            owners,
            policy: Policy::new(workers - 1),
            busy_us: vec![0; workers],
            others: Vec::new(),
            parked: Vec::new(),
            recipe: None,
            coming: None,
            back: Back { to, bell },
            told,
            returning: 0,
            held: VecDeque::new(),
            received: Burst::new(),
            published: Vec::new(),
            pins: Box::new([Instant::START; BUCKETS]),
            packets: Box::new([0; BUCKETS]),
            decided_at: Instant::START,
            bytes: 0,
            vitals,
            bounds,
            counters: Counters::default(),
        }
    }

    /// Other workers can be made with these parked threads, in this order, from `recipe`.
    pub(super) fn park(&mut self, recipe: Recipe, parked: Vec<Parked>) {
        self.recipe = Some(Box::new(recipe));
        self.parked = parked.into_iter().rev().collect();
    }

    /// Threads of other workers beyond `most` do not exist.
    pub(super) fn have_at_most(&mut self, most: usize) {
        self.parked.retain(|parked| parked.index <= most);
    }

    /// Sets the mapped addresses of workers that are made from now on.
    pub(super) fn map_addresses(&mut self, addresses: &[MappedAddress]) {
        if let Some(recipe) = &mut self.recipe {
            recipe.config.host_addresses = addresses.to_vec();
        }
    }

    /// Returns the number of other workers that have been made.
    pub(super) fn made(&self) -> usize {
        self.others.len()
    }

    /// Returns the number of other workers that have been made or are being made.
    pub(super) fn called(&self) -> usize {
        self.others.len() + usize::from(self.coming.is_some())
    }

    /// Returns the number of other workers that serve.
    pub(super) fn serving(&self) -> usize {
        self.policy.active()
    }

    /// Marks published UDP ports, before their sockets are bound: their packets are the first
    /// worker's. A port stays marked when it is closed.
    pub(super) fn publish<'a>(&mut self, ports: impl IntoIterator<Item = &'a Publish>) {
        for publish in ports.into_iter().filter(|one| one.protocol == Protocol::Udp) {
            self.published.resize(PORT_WORDS, 0);
            let port = usize::from(publish.program_port);
            self.published[port / 64] |= 1 << (port % 64);
        }
    }

    /// Moves all flows to the second worker and back, so often.
    pub(super) fn rotate_every(&mut self, period: Duration) {
        self.policy.rotate_every(period);
    }

    /// Makes the buckets stay with their owners of now.
    #[cfg(test)]
    pub(super) fn keep_owners(&mut self) {
        self.policy.keep_owners();
    }

    /// True while packets may have different owners.
    fn sorts(&self) -> bool {
        self.policy.counts() || self.returning > 0
    }

    fn is_published(&self, port: u16) -> bool {
        let port = usize::from(port);
        self.published.get(port / 64).is_some_and(|word| word & 1 << (port % 64) != 0)
    }

    /// Gives a packet to the owner of its flow. Notes a bucket that has to come back.
    fn sort(&mut self, mut packet: Packet, burst: &mut Burst, wanted: &mut Buckets, now: Instant) {
        let bucket = match place_of(packet.peek_headers()) {
            Place::First => None,
            Place::Port(_, port) if self.is_published(port) => None,
            Place::Flow(bucket) | Place::Port(bucket, _) => Some(bucket),
            Place::Fragment(bucket) => {
                self.pins[usize::from(bucket)] = now + PINNED_FOR;
                if !matches!(self.owners.of(bucket), 0 | MOVING) {
                    wanted.insert(bucket);
                }
                Some(bucket)
            }
        };
        let owner = bucket.map_or(0, |bucket| {
            self.packets[usize::from(bucket)] += 1;
            if wanted.contains(bucket) { MOVING } else { self.owners.of(bucket) }
        });
        match owner {
            0 => burst.push(packet).expect("there is room for what was received"),
            MOVING => self.held.push_back(packet),
            other => {
                let leaving = &mut self.others[usize::from(other) - 1].leaving;
                leaving.push(packet).expect("there is room for what was received");
            }
        }
    }

    /// Hands over the packets of other workers; returns their bytes.
    fn hand_over(&mut self) -> usize {
        let mut bytes = 0;
        for Helped { leaving, ring, put, .. } in &mut self.others {
            if !leaving.is_empty() {
                bytes += leaving.iter().map(Packet::len).sum::<usize>();
                let count = leaving.len();
                let dropped = ring.enqueue_or_drop(leaving);
                *put += (count - dropped) as u64;
                self.counters.full += dropped as u64;
                self.counters.handed_over += (count - dropped) as u64;
            }
        }
        bytes
    }

    /// Makes a worker return buckets, which have no owner meanwhile.
    fn fetch(&mut self, buckets: &Buckets, from: usize) {
        self.owners.set(buckets, MOVING);
        let Helped { orders, put, .. } = &self.others[from - 1];
        // A worker that has ended ends all.
        if orders.give(Order::Return(*buckets, *put)).is_ok() {
            self.returning += 1;
        }
    }

    fn fetch_all(&mut self) {
        for from in 1..=self.others.len() {
            let buckets = self.owners.all_of(from as u8);
            if !buckets.is_empty() {
                self.fetch(&buckets, from);
            }
        }
    }

    /// Hears from the other workers: flows return, or one of them is there.
    fn listen(&mut self, flows: &mut Exchange<'_>) {
        while let Ok(told) = self.told.try_recv() {
            match told {
                Told::Returned { buckets, flows: moved } => {
                    self.counters.flows_taken += moved.len() as u64;
                    self.owners.set(&buckets, 0);
                    self.returning -= 1;
                    flows.put(moved);
                }
                Told::Came(is_there) => {
                    let Some((parked, helped)) = self.coming.take() else { continue };
                    if is_there {
                        flows.gateway().spread_to(helped.orders.clone());
                        self.others.push(helped);
                    } else {
                        self.stay_parked(parked, flows.now());
                    }
                }
            }
        }
    }

    /// Lets the next parked thread make its worker.
    pub(super) fn call(&mut self, now: Instant) {
        let Some((parked, recipe)) = self.parked.pop().zip(self.recipe.as_ref()) else { return };
        let recipe = Recipe::clone(recipe);
        match self.make(&parked) {
            Ok((helper, helped)) => {
                // A thread that has ended ends all.
                let _ = parked.commands.send(Command::Serve(Box::new((recipe, helper))));
                self.coming = Some((parked, helped));
            }
            Err(_) => self.stay_parked(parked, now),
        }
    }

    /// Makes what another worker and this one have in common. Fails if there is no descriptor or no
    /// memory for it.
    fn make(&self, parked: &Parked) -> io::Result<(Helper, Helped)> {
        let (index, bell) = (parked.index, parked.bell.clone());
        let tap = self.tap.try_clone()?;
        let (put, take) = ring::single(HANDED_MAX, bell.clone()).map_err(io::Error::other)?;
        let (to, orders) = channel();
        let from_here = (take, orders, bell.clone());
        let shared = (self.vitals.clone(), self.bounds);
        let helper = Helper::new((index, tap), from_here, self.back.clone(), shared);
        let orders = Orders { to, bell };
        Ok((helper, Helped { orders, ring: put, leaving: Burst::new(), put: 0 }))
    }

    /// A worker could not be made: it is tried again after a pause.
    fn stay_parked(&mut self, parked: Parked, now: Instant) {
        self.parked.push(parked);
        self.policy.postpone(now);
    }

    /// Leaves this worker what the others do not have, once there are any.
    fn divide(&self, flows: &mut Exchange<'_>) {
        match self.others.is_empty() {
            true => self.vitals[0].tell(flows),
            false => {
                vitals::tell(&self.vitals, 0, self.bounds, self.policy.active(), flows);
            }
        }
    }

    /// Lets the policy decide about the time since the last decision.
    fn decide(&mut self, flows: &mut Exchange<'_>) {
        let now = flows.now();
        let elapsed = now.since(self.decided_at);
        self.decided_at = now;
        let per_mille = |us: u64| (us * 1000 / elapsed.as_micros().max(1) as u64).min(1000) as u32;
        let mut busy = Vec::with_capacity(self.vitals.len());
        for (before, vitals) in self.busy_us.iter_mut().zip(&*self.vitals) {
            let after = vitals.busy_us();
            busy.push(per_mille(after.saturating_sub(std::mem::replace(before, after))));
        }
        let bytes = self.vitals.iter().map(Vitals::bytes).sum();
        let pinned: Buckets =
            (0..=Bucket::MAX).filter(|bucket| self.pins[usize::from(*bucket)] > now).collect();
        let sample = Sample {
            now,
            elapsed,
            busy: &busy,
            bytes: bytes - std::mem::replace(&mut self.bytes, bytes),
            flows: self.vitals.iter().map(Vitals::flows).sum(),
            packets: &self.packets,
            pinned: &pinned,
            owners: &self.owners,
            ready: self.others.len(),
        };
        let active = self.policy.active();
        let decision = self.policy.decide(&sample);
        if self.policy.wants_another() && self.coming.is_none() {
            self.call(now);
        }
        if self.policy.active() > active {
            self.counters.joined += 1;
            // The other one may touch as much memory as this one gives up.
            self.divide(flows);
            flows.memory().withheld(release_unused);
        }
        self.packets.iter_mut().for_each(|packets| *packets /= 2);
        match decision {
            Some(Move { buckets, from: 0, to }) => {
                let moved = flows.take(&buckets);
                self.owners.set(&buckets, to as u8);
                let order = Order::Take(Box::new(moved));
                if let Err(Order::Take(back)) = self.others[to - 1].orders.give(order) {
                    // A worker that has ended ends all.
                    flows.put(*back);
                }
            }
            Some(Move { buckets, from, .. }) => self.fetch(&buckets, from),
            None => {}
        }
    }
}

impl Device for Reader {
    type Error = TapError;

    fn caps(&self) -> Caps {
        self.tap.caps()
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.tap.file()
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.returning == 0 && !self.held.is_empty() {
            return Some(Instant::START);
        }
        (self.policy.active() > 0).then(|| self.decided_at + WINDOW)
    }

    fn looks_by_call(&self) -> bool {
        true
    }

    fn receive(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<Input, TapError> {
        if !self.sorts() && self.held.is_empty() {
            return self.tap.receive(burst, cx);
        }
        if self.returning == 0 {
            let count = self.held.len().min(burst.room());
            self.held.drain(..count).for_each(|packet| burst.push(packet).expect("there is room"));
        }
        let room = burst.room();
        if room == 0 || self.held.len() + BURST_MAX > HELD_MAX {
            return Ok(Input::Done);
        }
        self.received.limit(room);
        let input = self.tap.receive(&mut self.received, cx)?;
        let is_full = self.received.is_full();
        let mut wanted = Buckets::default();
        while let Some(packet) = self.received.pop() {
            self.sort(packet, burst, &mut wanted, cx.now);
        }
        let of_others = self.hand_over();
        if !wanted.is_empty() {
            for from in 1..=self.others.len() {
                let its = |bucket: &Bucket| usize::from(self.owners.of(*bucket)) == from;
                let buckets: Buckets = wanted.iter().filter(its).collect();
                if !buckets.is_empty() {
                    self.fetch(&buckets, from);
                }
            }
        }
        Ok(match input {
            Input::Done if is_full && of_others > 0 => Input::HandedOver(of_others),
            input => input,
        })
    }

    fn transmit(&mut self, burst: &mut Burst, cx: &mut Context<'_>) -> Result<(), TapError> {
        self.tap.transmit(burst, cx)
    }

    fn rest(&mut self) {
        self.tap.rest();
    }
}

impl Inside for Reader {
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.back.bell.as_fd())
    }

    fn clear_bell(&mut self) {
        self.back.bell.clear();
    }

    fn exchange(&mut self, flows: &mut Exchange<'_>) {
        let is_due = flows.now().since(self.decided_at) >= WINDOW;
        // While it is alone, no other worker reads it.
        if is_due || !self.others.is_empty() {
            self.divide(flows);
        }
        self.listen(flows);
        if self.returning > 0 || !self.held.is_empty() || !flows.may_take() {
            return;
        }
        if flows.is_finishing() {
            // The flows end here, where the program's last packets come.
            self.fetch_all();
            self.policy.all_returned();
        } else if is_due {
            self.decide(flows);
        }
    }

    fn has_flows_elsewhere(&self) -> bool {
        self.returning > 0 || !self.held.is_empty() || self.policy.active() > 0
    }

    fn add_to(&self, report: &mut Report) {
        self.tap.add_to(report);
        let Counters { handed_over, full, flows_taken, joined } = self.counters;
        (report.handed_over, report.hand_over_full) = (handed_over, full);
        (report.flows_taken, report.workers_joined) = (flows_taken, joined);
    }
}
