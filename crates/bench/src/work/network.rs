//! Packets from one guest to another through a whole network, with one worker or with several: then
//! the guests are at ports of different workers. One thread does everything: the drivers' part and
//! the turns of all workers.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use towpath_gateway::config::Config;
use towpath_gateway::network::{Attachment, Network, NetworkConfig, PortSettings};
use towpath_io::endpoint::Connection;
use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam};
use towpath_io::vhost_user::virtq::Segment;
use towpath_net::time::Instant;
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};

use super::guests::{BUFFERS, PAGE, QUEUE_LEN, RAM_BYTES, put};
use crate::vm::workload::{RECEIVER_MAC, SENDER, SENDER_MAC, SMALL, VIRTIO};

/// Passes `count` packets of 64 bytes, some at a time.
pub(super) fn pass(workers: usize, count: u32) -> anyhow::Result<()> {
    let mut rig = Rig::new(workers)?;
    let ends = [rig.attach("sender")?, rig.attach("receiver")?];
    // The network answers while they connect.
    let connecting = thread::spawn(move || -> anyhow::Result<_> {
        let [sender, receiver] = ends;
        let receiver = Guest::connect(receiver, SMALL.receiver)?;
        Ok((Guest::connect(sender, SENDER)?, receiver))
    });
    while !connecting.is_finished() {
        rig.turn()?;
        thread::sleep(Duration::from_millis(1));
    }
    let connected = connecting.join().map_err(|_| anyhow!("the drivers panicked"))?;
    let (mut sender, mut receiver) = connected?;
    receiver.offer_all()?;
    // The first packet of either goes to all.
    let mut frame = [0; VIRTIO + 60];
    frame[VIRTIO..][..6].copy_from_slice(&SENDER_MAC);
    frame[VIRTIO + 6..][..6].copy_from_slice(&RECEIVER_MAC);
    receiver.ram.memory().write(BUFFERS - PAGE, &frame)?;
    let frame = [Segment { address: BUFFERS - PAGE, bytes: frame.len() as u32 }];
    receiver.send(&frame, 1)?;
    rig.turn()?;
    rig.turn()?;
    let packet = put(&sender.ram, &SMALL)?;
    rig.pass(&mut sender, &packet, &mut receiver, 1)?;
    let mut left = count;
    while left > 0 {
        let batch = TOGETHER.min(left);
        rig.pass(&mut sender, &packet, &mut receiver, batch)?;
        left -= batch;
    }
    Ok(())
}

/// A driver.
struct Guest {
    ram: GuestRam,
    receive: DriverQueue,
    transmit: DriverQueue,
    _front_end: FrontEnd,
}

impl Guest {
    fn connect(socket: UnixStream, features: u64) -> anyhow::Result<Self> {
        let ram = GuestRam::new(0, &[RAM_BYTES]).context("no memory")?;
        let queue = |at| DriverQueue::new(&ram, at, QUEUE_LEN, features).context("too large");
        let receive = queue(0)?;
        let transmit = queue(receive.end())?;
        let front_end = FrontEnd::over(socket, &ram, features, [&receive, &transmit])?;
        Ok(Self { ram, receive, transmit, _front_end: front_end })
    }

    /// Sends a packet so many times.
    fn send(&mut self, packet: &[Segment], count: u32) -> anyhow::Result<()> {
        while self.transmit.used().is_some() {}
        for _ in 0..count {
            ensure!(self.transmit.add(packet, &[], 0), "the queue is full");
        }
        self.transmit.publish();
        Ok(())
    }

    fn offer_all(&mut self) -> anyhow::Result<()> {
        (0..u64::from(QUEUE_LEN)).try_for_each(|token| self.offer(token))?;
        self.receive.publish();
        Ok(())
    }

    fn offer(&mut self, token: u64) -> anyhow::Result<()> {
        let segment = Segment { address: BUFFERS + token * PAGE, bytes: SMALL.buffer };
        ensure!(self.receive.add(&[], &[segment], token), "the queue is full");
        Ok(())
    }

    /// Takes the received packets, and offers their buffers again. Returns their bytes.
    fn take(&mut self) -> anyhow::Result<u64> {
        let mut came = 0;
        while let Some((token, bytes)) = self.receive.used() {
            came += u64::from(bytes);
            self.offer(token)?;
        }
        self.receive.publish();
        Ok(came)
    }
}

struct Rig {
    network: Network,
    memory: Memory,
    ledger: Ledger,
}

impl Rig {
    fn new(workers: usize) -> anyhow::Result<Self> {
        let config = Config { ipv4: None, ipv6: None, workers, ..Config::default() };
        let mut network = Network::new(NetworkConfig {
            mtu: config.mtu,
            gateway: None,
            gateway_addresses: Vec::new(),
            orphan: false,
            busy_poll: Duration::ZERO,
            seed: 1,
        })?;
        network.set_workers(&config)?;
        let memory = Memory::new(MemoryConfig::within(config.memory_bytes));
        Ok(Self { network, memory, ledger: Ledger::new() })
    }

    /// Adds a port. Returns the other end of its connection.
    fn attach(&mut self, name: &str) -> anyhow::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        let attachment = Attachment::VhostUserFd(Connection::new(near.into())?);
        self.network.add_port(name, attachment, PortSettings::default())?;
        Ok(far)
    }

    /// Sends packets and waits for them.
    fn pass(
        &mut self,
        sender: &mut Guest,
        packet: &[Segment],
        receiver: &mut Guest,
        count: u32,
    ) -> anyhow::Result<()> {
        sender.send(packet, count)?;
        let (expected, mut came) = (u64::from(count) * SMALL.bytes_received(), 0);
        for _ in 0..TURNS_MAX {
            self.turn()?;
            came += receiver.take()?;
            if came == expected {
                return Ok(());
            }
        }
        Err(anyhow!("{expected} bytes were sent, {came} received"))
    }

    /// Gives all workers a turn.
    fn turn(&mut self) -> anyhow::Result<()> {
        let Self { network, memory, ledger } = self;
        let mut cx = Context { memory, ledger, now: NOW };
        network.poll();
        network.turn(true, &mut cx)?;
        network.receive(&mut Burst::new(), &mut cx)?;
        Ok(network.step_others(NOW)?)
    }
}

/// Packets of a burst.
const TOGETHER: u32 = 32;
/// Many more than any packet takes.
const TURNS_MAX: u32 = 100;
const NOW: Instant = Instant::START;
