//! Packets of one guest to another, through all that a network has for them: transmit queue,
//! switch, ring, receive queue. One thread does everything, the drivers' part too.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use towpath_io::vhost_user::driver::{DriverQueue, GuestRam};
use towpath_io::vhost_user::virtq::{ReceiveQueue, Segment, TransmitQueue};
use towpath_net::switch::vlan::Vid;
use towpath_net::switch::{self, Egress, PortConfig, PortId, Switch};
use towpath_net::time::Instant;
use towpath_net::wire::MacAddr;
use towpath_packet::ring::{self, Consumer, Producer, Silent};
use towpath_packet::{Burst, Caps, Ledger, Memory, MemoryConfig, Packet};

use super::super::vm::workload::{RECEIVER_MAC, SENDER, SENDER_MAC, Workload, pattern};

/// Passes as many packets.
pub(super) fn pass(workload: &Workload, count: u32) -> anyhow::Result<()> {
    let mut rig = Rig::new(workload)?;
    // Small packets come in bursts, large ones one by one.
    let together = if workload.segment.is_some() { 1 } else { TOGETHER };
    let mut left = count;
    while left > 0 {
        let batch = left.min(together);
        rig.pass(batch)?;
        left -= batch;
    }
    let expected = u64::from(count) * workload.bytes_received();
    ensure!(rig.received == expected, "{expected} bytes were sent, {} received", rig.received);
    Ok(())
}

struct Rig {
    sender: DriverQueue,
    receiver: DriverQueue,
    transmit: TransmitQueue,
    receive: ReceiveQueue,
    switch: Switch,
    from: PortId,
    ring: Ring,
    consumer: Consumer<Packet>,
    memory: Memory,
    ledger: Ledger,
    /// Of a packet, in the sender's memory.
    parts: Vec<Segment>,
    /// Bytes of a receive buffer.
    buffer: u32,
    received: u64,
}

/// The ring of the receiver's port.
struct Ring(Producer<Packet>);

impl Egress for Ring {
    fn transmit(&mut self, _port: PortId, burst: &mut Burst) {
        self.0.enqueue_or_drop(burst);
    }
}

impl Rig {
    fn new(workload: &Workload) -> anyhow::Result<Self> {
        let [from, to] = [(); 2].map(|()| GuestRam::new(0, &[RAM_BYTES]));
        let (from, to) = (from.context("no memory")?, to.context("no memory")?);
        let sender = DriverQueue::new(&from, 0, QUEUE_LEN, SENDER).context("too large")?;
        let mut receiver =
            DriverQueue::new(&to, 0, QUEUE_LEN, workload.receiver).context("too large")?;
        let mut transmit = TransmitQueue::start(sender.config(), &from.map()?, None)?;
        transmit.set_inline();
        let receive = ReceiveQueue::start(receiver.config(), &to.map()?)?;
        let parts = put(&from, workload)?;
        for token in 0..u64::from(QUEUE_LEN) {
            let segment = Segment { address: BUFFERS + token * PAGE, bytes: workload.buffer };
            ensure!(receiver.add(&[], &[segment], token), "the queue is full");
        }
        receiver.publish();
        let mut switch = Switch::new(switch::Config::default());
        let caps = [Caps::plain(MTU), ReceiveQueue::caps(workload.receiver, MTU)];
        let ports = caps.map(|caps| switch.add_port(PortConfig::new(caps)));
        let (port, other) = (ports[0]?, ports[1]?);
        for (mac, port) in [(SENDER_MAC, port), (RECEIVER_MAC, other)] {
            switch.add_station(MacAddr(mac), Vid::DEFAULT, port, NOW)?;
        }
        let (producer, consumer) = ring::single(usize::from(QUEUE_LEN), Silent)?;
        Ok(Self {
            sender,
            receiver,
            transmit,
            receive,
            switch,
            from: port,
            ring: Ring(producer),
            consumer,
            memory: Memory::new(MEMORY),
            ledger: Ledger::new(),
            parts,
            buffer: workload.buffer,
            received: 0,
        })
    }

    fn pass(&mut self, count: u32) -> anyhow::Result<()> {
        for _ in 0..count {
            ensure!(self.sender.add(&self.parts, &[], 0), "the queue is full");
        }
        self.sender.publish();
        let mut burst = Burst::new();
        self.transmit.receive(Duration::ZERO, &mut self.memory, &mut burst, &self.ledger)?;
        let mut cx = switch::Context { memory: &mut self.memory, ledger: &self.ledger, now: NOW };
        self.switch.forward(self.from, &mut burst, &mut cx, &mut self.ring);
        while self.consumer.dequeue(&mut burst) > 0 {
            self.receive.transmit(&mut burst, &self.ledger)?;
            ensure!(burst.is_empty(), "the receiver has no room");
        }
        self.transmit.turn(Duration::ZERO, &self.ledger);
        for _ in 0..count {
            ensure!(self.sender.used().is_some(), "a packet was not given back");
        }
        while let Some((token, bytes)) = self.receiver.used() {
            self.received += u64::from(bytes);
            let segment = Segment { address: BUFFERS + token * PAGE, bytes: self.buffer };
            ensure!(self.receiver.add(&[], &[segment], token), "the queue is full");
        }
        self.receiver.publish();
        Ok(())
    }
}

/// Writes a packet into the sender's memory: headers and payload of a super-packet apart, a small
/// packet in one buffer, as drivers have them.
fn put(ram: &GuestRam, workload: &Workload) -> anyhow::Result<Vec<Segment>> {
    let (mut first, payload) = (workload.headers().to_vec(), pattern(workload.payload));
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

const RAM_BYTES: u64 = 4 << 20;
/// Where buffers begin, behind the queue.
const BUFFERS: u64 = 1 << 20;
/// From one buffer to the next.
const PAGE: u64 = 4096;
const QUEUE_LEN: u16 = 256;
/// Small packets of a burst.
const TOGETHER: u32 = 32;
const MTU: u16 = 1500;
const NOW: Instant = Instant::START;
const MEMORY: MemoryConfig = MemoryConfig { packets: 512, small_frames: 64, large_frames: 16 };
