//! Packets from one guest to another, through all parts of a network: transmit queue, switch,
//! receive queue. One thread does everything, including the drivers' part.

use anyhow::{Context as _, ensure};
use towpath_io::vhost_user::driver::{DriverQueue, GuestRam};
use towpath_io::vhost_user::virtq::{ReceiveQueue, Segment, TransmitQueue, feature};
use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{self, Egress, PortConfig, PortId, Switch};
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::{Burst, Caps, Context, Ledger, Memory, MemoryConfig};

use crate::vm::workload::{RECEIVER_MAC, SENDER, SENDER_MAC, Workload, pattern};

/// Layout of both guests' rings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    Split,
    Packed,
}

impl Layout {
    /// The feature that a driver negotiates for it.
    fn feature(self) -> u64 {
        match self {
            Self::Split => 0,
            Self::Packed => feature::PACKED,
        }
    }
}

/// Passes `count` packets.
pub(super) fn pass(workload: &Workload, layout: Layout, count: u32) -> anyhow::Result<()> {
    let mut rig = Rig::new(workload, layout)?;
    // Small packets arrive in bursts, large ones one at a time.
    let together = if workload.segment.is_some() { 1 } else { TOGETHER };
    let mut left = count;
    while left > 0 {
        let batch = left.min(together);
        rig.pass(batch)?;
        left -= batch;
    }
    let expected = u64::from(count) * workload.bytes_received();
    ensure!(
        rig.receiver.received == expected,
        "{expected} bytes were sent, {} received",
        rig.receiver.received
    );
    Ok(())
}

struct Rig {
    sender: DriverQueue,
    transmit: TransmitQueue,
    receiver: Receiver,
    switch: Switch,
    from: PortId,
    memory: Memory,
    ledger: Ledger,
    /// Segments of a packet, in the sender's memory.
    parts: Vec<Segment>,
}

/// A guest that receives, and the queue that its packets are written to.
pub(crate) struct Receiver {
    driver: DriverQueue,
    queue: ReceiveQueue,
    /// Bytes of a receive buffer.
    buffer: u32,
    /// Bytes received, with their headers.
    received: u64,
    packets: u64,
}

impl Receiver {
    /// A guest with `features`, and buffers of `buffer` bytes.
    pub(crate) fn new(features: u64, buffer: u32) -> anyhow::Result<Self> {
        let ram = GuestRam::new(0, &[RAM_BYTES]).context("no memory")?;
        let mut driver = DriverQueue::new(&ram, 0, QUEUE_LEN, features).context("too large")?;
        let queue = ReceiveQueue::start(driver.config(), &ram.map()?)?;
        for token in 0..u64::from(QUEUE_LEN) {
            let segment = Segment { address: BUFFERS + token * PAGE, bytes: buffer };
            ensure!(driver.add(&[], &[segment], token), "the queue is full");
        }
        driver.publish();
        Ok(Self { driver, queue, buffer, received: 0, packets: 0 })
    }

    /// Writes packets to the guest, which must have room for all of them.
    pub(crate) fn transmit(
        &mut self,
        burst: &mut Burst,
        cx: &mut Context<'_>,
    ) -> anyhow::Result<()> {
        self.queue.deliver(burst, cx)?;
        ensure!(burst.is_empty(), "the receiver has no room");
        Ok(())
    }

    /// Makes the guest take the received packets and offer the buffers again.
    pub(crate) fn take(&mut self) -> anyhow::Result<()> {
        while let Some((token, bytes)) = self.driver.used() {
            self.received += u64::from(bytes);
            self.packets += 1;
            let segment = Segment { address: BUFFERS + token * PAGE, bytes: self.buffer };
            ensure!(self.driver.add(&[], &[segment], token), "the queue is full");
        }
        self.driver.publish();
        Ok(())
    }

    /// Buffers that the guest took: one per packet, if each fits.
    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }
}

impl Egress for Receiver {
    /// Like a port without waiting packets. The guest has room: what it does not take is missing in
    /// the end.
    fn transmit(&mut self, _port: PortId, burst: &mut Burst, cx: &mut Context<'_>) {
        let _ = Receiver::transmit(self, burst, cx);
    }
}

impl Rig {
    fn new(workload: &Workload, layout: Layout) -> anyhow::Result<Self> {
        let from = GuestRam::new(0, &[RAM_BYTES]).context("no memory")?;
        let features = SENDER | layout.feature();
        let sender = DriverQueue::new(&from, 0, QUEUE_LEN, features).context("too large")?;
        let mut transmit = TransmitQueue::start(sender.config(), &from.map()?, None)?;
        transmit.set_inline();
        let parts = put(&from, workload)?;
        let receiver = Receiver::new(workload.receiver | layout.feature(), workload.buffer)?;
        let mut switch = Switch::new(switch::Config::default());
        let caps = [Caps::plain(MTU), ReceiveQueue::caps(workload.receiver, MTU)];
        let ports = caps.map(|caps| switch.add_port(PortConfig::new(caps)));
        let (port, other) = (ports[0]?, ports[1]?);
        for (mac, port) in [(SENDER_MAC, port), (RECEIVER_MAC, other)] {
            switch.add_station(MacAddr(mac), Vid::DEFAULT, port, NOW)?;
        }
        Ok(Self {
            sender,
            transmit,
            receiver,
            switch,
            from: port,
            memory: Memory::new(MEMORY),
            ledger: Ledger::new(),
            parts,
        })
    }

    fn pass(&mut self, count: u32) -> anyhow::Result<()> {
        for _ in 0..count {
            ensure!(self.sender.add(&self.parts, &[], 0), "the queue is full");
        }
        self.sender.publish();
        let mut burst = Burst::new();
        let mut cx = Context { memory: &mut self.memory, ledger: &self.ledger, now: NOW };
        self.transmit.take(&mut burst, &mut cx)?;
        self.switch.forward(self.from, &mut burst, &mut cx, &mut self.receiver);
        self.transmit.turn(NOW, &self.ledger);
        for _ in 0..count {
            ensure!(self.sender.used().is_some(), "a packet was not returned");
        }
        self.receiver.take()
    }
}

/// Writes a packet into the sender's memory as drivers do: a super-packet's headers and payload in
/// separate buffers, a small packet in one.
pub(super) fn put(ram: &GuestRam, workload: &Workload) -> anyhow::Result<Vec<Segment>> {
    let (mut first, payload) = (workload.headers(0).to_vec(), pattern(workload.payload));
    let mut parts = Vec::new();
    if workload.segment.is_some() {
        ram.memory().write(BUFFERS + PAGE, &payload)?;
        parts.push(Segment { address: BUFFERS + PAGE, bytes: payload.len() as u32 });
    } else {
        first.extend_from_slice(&payload);
    }
    ram.memory().write(BUFFERS, &first)?;
    parts.insert(0, Segment { address: BUFFERS, bytes: first.len() as u32 });
    Ok(parts)
}

pub(super) const RAM_BYTES: u64 = 4 << 20;
/// Start of the buffers, after the queue.
pub(super) const BUFFERS: u64 = 1 << 20;
/// Distance between buffers.
pub(super) const PAGE: u64 = 4096;
pub(super) const QUEUE_LEN: u16 = 256;
/// Small packets of a burst.
const TOGETHER: u32 = 32;
const MTU: u16 = 1500;
const NOW: Instant = Instant::START;
const MEMORY: MemoryConfig = MemoryConfig { packets: 512, small_frames: 64, large_frames: 16 };
