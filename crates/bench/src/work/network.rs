//! Packets from guest to guest through a whole network, with one worker or with several.
//!
//! The guests form a circle: each sends to the next one, whose port belongs to the next worker. So
//! every worker has the same to do, whatever their number is, and with several workers each packet
//! crosses from one to another. One thread does everything: the drivers' part and the turns of all
//! workers. So the same happens in each run, once the guests are connected.

use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use towpath_gateway::config::Config;
use towpath_gateway::network::{Attachment, Network, NetworkConfig, OtherWorker, PortSettings};
use towpath_io::endpoint::Connection;
use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam};
use towpath_io::vhost_user::virtq::Segment;
use towpath_net::time::Instant;
use towpath_packet::{Burst, Context, Device, Ledger, Memory, MemoryConfig};

use super::guests::{BUFFERS, PAGE, QUEUE_LEN, RAM_BYTES, put};
use crate::vm::workload::{SENDER, SMALL, VIRTIO};

/// Passes `count` packets of 64 bytes, or a few more so that each guest sends as many, some at a
/// time.
pub(super) fn pass(workers: usize, count: u32) -> anyhow::Result<()> {
    let mut rig = Rig::new(workers)?;
    let number = workers.max(2) as u8;
    let mut guests = rig.connect(number, |own| (own + 1) % number)?;
    let mut left = count.div_ceil(number.into());
    while left > 0 {
        let batch = TOGETHER.min(left);
        rig.pass(&mut guests, batch)?;
        left -= batch;
    }
    Ok(())
}

/// A driver.
pub(crate) struct Guest {
    receive: DriverQueue,
    transmit: DriverQueue,
    /// The packet that it sends, in its memory.
    packet: Vec<Segment>,
    _ram: GuestRam,
    _front_end: FrontEnd,
}

impl Guest {
    /// Connects guest `own`, which sends to guest `next`.
    fn connect(socket: UnixStream, own: u8, next: u8) -> anyhow::Result<Self> {
        let ram = GuestRam::new(0, &[RAM_BYTES]).context("no memory")?;
        let features = SENDER | SMALL.receiver;
        let queue = |at| DriverQueue::new(&ram, at, QUEUE_LEN, features).context("too large");
        let mut receive = queue(0)?;
        let transmit = queue(receive.end())?;
        let packet = put(&ram, &SMALL)?;
        ram.memory().write(BUFFERS + VIRTIO as u64, &[station(next), station(own)].concat())?;
        (0..QUEUE_LEN.into()).try_for_each(|token| offer(&mut receive, token))?;
        receive.publish();
        let front_end = FrontEnd::over(socket, &ram, features, [&receive, &transmit])?;
        Ok(Self { receive, transmit, packet, _ram: ram, _front_end: front_end })
    }

    /// Sends its packet up to `count` times, as often as there is room. Returns how often.
    pub(crate) fn send(&mut self, count: u32) -> u32 {
        while self.transmit.used().is_some() {}
        let sent = (0..count).take_while(|_| self.transmit.add(&self.packet, &[], 0)).count();
        self.transmit.publish();
        sent as u32
    }

    /// Takes the received packets, and offers their buffers again. Returns their bytes.
    pub(crate) fn take(&mut self) -> anyhow::Result<u64> {
        let mut came = 0;
        while let Some((token, bytes)) = self.receive.used() {
            came += u64::from(bytes);
            offer(&mut self.receive, token)?;
        }
        self.receive.publish();
        Ok(came)
    }
}

/// Offers a receive buffer. They follow the page of the packet that the guest sends.
fn offer(receive: &mut DriverQueue, token: u64) -> anyhow::Result<()> {
    let segment = Segment { address: BUFFERS + (1 + token) * PAGE, bytes: SMALL.buffer };
    ensure!(receive.add(&[], &[segment], token), "the queue is full");
    Ok(())
}

/// Returns the link-layer address of a guest.
fn station(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, number]
}

/// A network, and the memory of its first worker.
pub(crate) struct Rig {
    network: Network,
    workers: usize,
    memory: Memory,
    ledger: Ledger,
}

impl Rig {
    /// Makes a network with so many workers, none of which has a thread.
    pub(crate) fn new(workers: usize) -> anyhow::Result<Self> {
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
        Ok(Self { network, workers, memory, ledger: Ledger::new() })
    }

    /// Connects so many guests, whose ports the workers have in turn, and makes their addresses
    /// known. Guest `own` sends to guest `next(own)`.
    pub(crate) fn connect(
        &mut self,
        number: u8,
        next: impl Fn(u8) -> u8,
    ) -> anyhow::Result<Vec<Guest>> {
        let ends = (0..number).map(|own| self.attach(own)).collect::<anyhow::Result<Vec<_>>>()?;
        let places = self.network.report(NOW).ports.into_iter().map(|port| port.worker);
        let workers = self.workers;
        ensure!(places.eq((0..number.into()).map(|own| own % workers)), "ports do not take turns");
        // The network answers while all of them connect.
        let connect = |(own, end)| {
            let next = next(own);
            thread::spawn(move || Guest::connect(end, own, next))
        };
        let connecting: Vec<_> = (0..).zip(ends).map(connect).collect();
        while !connecting.iter().all(JoinHandle::is_finished) {
            self.turn()?;
            thread::sleep(Duration::from_millis(1));
        }
        let mut guests = Vec::new();
        for guest in connecting {
            guests.push(guest.join().map_err(|_| anyhow!("a driver panicked"))??);
        }
        // The first packet of each goes to all.
        for guest in &mut guests {
            ensure!(guest.send(1) == 1, "the queue is full");
        }
        for _ in 0..TURNS_TO_LEARN {
            self.turn()?;
            guests.iter_mut().try_for_each(|guest| guest.take().map(drop))?;
        }
        Ok(guests)
    }

    /// Hands out the workers beside the first one.
    pub(crate) fn take_others(&mut self) -> Vec<OtherWorker> {
        self.network.take_others()
    }

    /// Adds the port of a guest. Returns the other end of its connection.
    fn attach(&mut self, number: u8) -> anyhow::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        let attachment = Attachment::VhostUserFd(Connection::new(near.into())?);
        self.network.add_port(&format!("guest{number}"), attachment, PortSettings::default())?;
        Ok(far)
    }

    /// Makes each guest send so many packets, and waits for all of them. `cargo xtask bench-guard`
    /// counts in this function only: how often all workers turn while the guests connect depends on
    /// time.
    #[inline(never)]
    fn pass(&mut self, guests: &mut [Guest], count: u32) -> anyhow::Result<()> {
        for guest in &mut *guests {
            ensure!(guest.send(count) == count, "the queue is full");
        }
        let expected = u64::from(count) * SMALL.bytes_received();
        let mut missing = vec![expected; guests.len()];
        for _ in 0..TURNS_MAX {
            self.turn()?;
            for (guest, missing) in guests.iter_mut().zip(&mut missing) {
                let came = guest.take()?;
                *missing = missing.checked_sub(came).context("more was received than sent")?;
            }
            if missing.iter().all(|missing| *missing == 0) {
                return Ok(());
            }
        }
        Err(anyhow!("{expected} bytes were sent to each, of which are missing {missing:?}"))
    }

    /// Gives all workers a turn.
    fn turn(&mut self) -> anyhow::Result<()> {
        self.turn_of_first(NOW)?;
        Ok(self.network.step_others(NOW)?)
    }

    /// Gives the first worker a turn at this time.
    pub(crate) fn turn_of_first(&mut self, now: Instant) -> anyhow::Result<()> {
        let Self { network, memory, ledger, .. } = self;
        let mut cx = Context { memory, ledger, now };
        network.poll();
        network.turn(true, &mut cx)?;
        network.receive(&mut Burst::new(), &mut cx)?;
        Ok(())
    }
}

/// Packets of a burst.
const TOGETHER: u32 = 32;
/// Turns after which all stations are known, and what was sent to all has arrived.
const TURNS_TO_LEARN: u32 = 4;
/// Many more than any packet takes.
const TURNS_MAX: u32 = 100;
pub(crate) const NOW: Instant = Instant::START;
