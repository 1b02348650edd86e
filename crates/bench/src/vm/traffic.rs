//! One measurement: a network with two machines, and packets from one to the other.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender as Reports, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::thread::{CpuSet, gettid};
use towpath_gateway::config::Config;
use towpath_gateway::network::{
    Attachment, BUSY_POLL, Network, NetworkConfig, NetworkReport, PortSettings,
};
use towpath_gateway::worker::Worker;
use towpath_packet::Ledger;

use super::guest::{INTRODUCTION_BYTES, Receiver, Sender};
use super::workload::{HEADERS, VIRTIO, Which, Workload};
use crate::ping_pong::Stopwatch;
use crate::process::{pin_thread, processors, thread_cpu};
use crate::scratch::Scratch;

/// Parameters that all measurements share.
pub(super) struct Rig<'a> {
    span: Duration,
    /// Directory of sockets.
    scratch: &'a Path,
    /// Of the drivers, of the worker, and of another worker.
    processors: [CpuSet; 3],
}

/// The figures of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    packets: u64,
    elapsed: Duration,
    cpu: Duration,
    copied: u64,
}

impl Figures {
    /// One of the figures, in the unit of its case.
    pub(super) fn value(&self, which: Which, workload: &Workload) -> f64 {
        let payload = (self.packets * workload.payload as u64) as f64;
        let is_large = workload.segment.is_some();
        match which {
            Which::Speed if is_large => payload * 8e-9 / self.elapsed.as_secs_f64(),
            Which::Speed => self.packets as f64 * 1e-6 / self.elapsed.as_secs_f64(),
            Which::Cpu if is_large => self.cpu.as_secs_f64() * f64::from(1_u32 << 30) / payload,
            Which::Cpu => self.cpu.as_secs_f64() * 1e9 / self.packets as f64,
            Which::Copies => self.copied as f64 / payload,
        }
    }
}

impl<'a> Rig<'a> {
    pub(super) fn new(span: Duration, scratch: &'a Path) -> anyhow::Result<Self> {
        Ok(Self { span, scratch, processors: places_of_three()? })
    }

    /// Measures one workload, with payload shared or copied out at the switch.
    pub(super) fn measure(&self, workload: &Workload, orphan: bool) -> anyhow::Result<Figures> {
        let sockets = Scratch::inside(self.scratch)?;
        let [_, worker, other] = self.processors;
        let serving = Serving::start(orphan, &sockets, workload, [worker, other])?;
        pin_thread(&self.processors[0])?;
        let mut traffic = Traffic::connect(&sockets, workload)?;
        drop(sockets);
        traffic.warm_up()?;
        let (sent, cpu, copied) = (traffic.sent(), serving.cpu()?, serving.ledger.copied());
        let started = Stopwatch::start();
        traffic.run(|_| started.elapsed() >= self.span)?;
        let figures = Figures {
            packets: traffic.sent() - sent,
            elapsed: started.elapsed(),
            cpu: serving.cpu()? - cpu,
            copied: serving.ledger.copied() - copied,
        };
        traffic.check()?;
        let report = serving.stop()?;
        let dropped: u64 = report
            .ports
            .iter()
            .flat_map(|port| port.counters.drops())
            .map(|(_, count)| count)
            .sum();
        ensure!(dropped == 0, "{dropped} packets were dropped: {report}");
        Ok(figures)
    }
}

/// A processor for drivers, and, if there are two, another for the forwarder between them.
pub(crate) fn places() -> anyhow::Result<[CpuSet; 2]> {
    places_of_three().map(|[drivers, forwarder, _]| [drivers, forwarder])
}

/// [`places`], and a third processor, if there are three, or else the first one.
fn places_of_three() -> anyhow::Result<[CpuSet; 3]> {
    let all = processors()?;
    let mut each = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).map(|cpu| {
        let mut one = CpuSet::new();
        one.set(cpu);
        one
    });
    let first = each.next().context("no processor")?;
    Ok([first, each.next().unwrap_or(first), each.next().unwrap_or(first)])
}

/// The drivers of all pairs.
pub(crate) struct Traffic<'a> {
    workload: &'a Workload,
    pairs: Vec<Pair>,
}

/// A driver that sends to another.
struct Pair {
    number: u8,
    sender: Sender,
    receiver: Receiver,
    /// Packets sent.
    sent: u64,
    /// Bytes received.
    bytes: u64,
}

impl<'a> Traffic<'a> {
    /// Connects all drivers.
    pub(crate) fn connect(sockets: &Scratch, workload: &'a Workload) -> anyhow::Result<Self> {
        let connect = |number| {
            let [sender, receiver] = names(number).map(|name| sockets.path(&name));
            Ok(Pair {
                number,
                sender: Sender::connect(&sender, workload, number)?,
                receiver: Receiver::connect(&receiver, workload, number)?,
                sent: 0,
                bytes: 0,
            })
        };
        let pairs = (0..workload.pairs).map(connect).collect::<anyhow::Result<_>>()?;
        Ok(Self { workload, pairs })
    }

    /// Uses all memory once, so that both sides have it mapped.
    pub(crate) fn warm_up(&mut self) -> anyhow::Result<()> {
        for pair in &mut self.pairs {
            pair.receiver.introduce()?;
        }
        // The switch does not know their destinations, so they go to all others.
        let others = self.pairs.len() as u64 - 1;
        for pair in &mut self.pairs {
            let (mut came, started) = (0, Stopwatch::start());
            while came < others * INTRODUCTION_BYTES as u64 {
                ensure!(started.elapsed() < STALL, "no introduction arrives");
                came += pair.receiver.receive(|_, _, _| {});
            }
        }
        self.check()?;
        let round: u64 = self.pairs.iter().map(|pair| pair.sender.round()).sum();
        self.run(|sent| sent >= round)
    }

    /// Gbit/s of payload during `span`.
    pub(crate) fn speed(&mut self, span: Duration) -> anyhow::Result<f64> {
        let (sent, started) = (self.sent(), Stopwatch::start());
        self.run(|_| started.elapsed() >= span)?;
        let payload = (self.sent() - sent) * self.workload.payload as u64;
        Ok(payload as f64 * 8e-9 / started.elapsed().as_secs_f64())
    }

    /// Packets sent by all.
    fn sent(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.sent).sum()
    }

    /// Sends until `is_enough` of the number of sent packets, and then waits for the rest.
    fn run(&mut self, is_enough: impl Fn(u64) -> bool) -> anyhow::Result<()> {
        let begin = self.sent();
        let (mut is_over, mut idle, mut last) = (false, 0_u32, Stopwatch::start());
        loop {
            is_over |= is_enough(self.sent() - begin);
            let (mut under_way, mut has_moved) = (0, false);
            for pair in &mut self.pairs {
                has_moved |= pair.turn(self.workload, is_over);
                under_way += pair.under_way(self.workload);
            }
            if is_over && under_way == 0 {
                break;
            }
            if has_moved {
                (idle, last) = (0, Stopwatch::start());
                continue;
            }
            idle += 1;
            if idle.is_multiple_of(SPINS) {
                ensure!(last.elapsed() < STALL, "{under_way} packets were lost");
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let is_right = |pair: &Pair| pair.bytes == pair.sent * self.workload.bytes_received();
        ensure!(self.pairs.iter().all(is_right), "the received data differs from the sent data");
        Ok(())
    }

    /// Sends one packet from each sender and compares each byte.
    fn check(&mut self) -> anyhow::Result<()> {
        self.pairs.iter_mut().try_for_each(|pair| pair.check(self.workload))
    }
}

impl Pair {
    /// Packets sent and not received.
    fn under_way(&self, workload: &Workload) -> u64 {
        self.sent - self.bytes / workload.bytes_received()
    }

    /// Fills the window, unless it is over, and takes what has arrived. True if there was anything.
    fn turn(&mut self, workload: &Workload, is_over: bool) -> bool {
        let room = workload.window.saturating_sub(self.under_way(workload));
        let sent = if is_over || room == 0 { 0 } else { self.sender.send(room) };
        let came = self.receiver.receive(|_, _, _| {});
        self.sent += sent;
        self.bytes += came;
        sent > 0 || came > 0
    }

    fn check(&mut self, workload: &Workload) -> anyhow::Result<()> {
        let (mut came, started) = (Vec::new(), Stopwatch::start());
        self.sent += self.sender.send(1);
        while (came.len() as u64) < workload.bytes_received() {
            ensure!(started.elapsed() < STALL, "no packet arrives");
            self.receiver.receive(|ram, address, bytes| {
                let from = came.len();
                came.resize(from + bytes as usize, 0);
                // Bytes that cannot be read stay zero, and fail the comparison below.
                let _ = ram.memory().read(address, &mut came[from..]);
            });
        }
        self.bytes += came.len() as u64;
        let frame_bytes = came.len() / workload.frames();
        let mut payload = Vec::new();
        for frame in came.chunks(frame_bytes) {
            let headers = workload.headers(self.number);
            ensure!(frame[VIRTIO..][..14] == headers[VIRTIO..][..14], "MAC");
            payload.extend_from_slice(&frame[HEADERS..]);
        }
        ensure!(
            payload == workload.payload_of(self.number),
            "the received data differs from the sent data"
        );
        Ok(())
    }
}

/// The ports of a pair: the sender's and the receiver's.
fn names(pair: u8) -> [String; 2] {
    let name = |of: &str| if pair == 0 { of.to_owned() } else { format!("{of}{pair}") };
    [SENDER, RECEIVER].map(name)
}

/// A worker that serves a network.
pub(crate) struct Serving {
    pub(super) ledger: Arc<Ledger>,
    stop: OwnedFd,
    thread: i32,
    running: JoinHandle<anyhow::Result<NetworkReport>>,
}

impl Serving {
    /// Listens on the sockets of a workload's pairs, on a new thread, with the workers on these
    /// processors.
    pub(crate) fn start(
        orphan: bool,
        sockets: &Scratch,
        workload: &Workload,
        processors: [CpuSet; 2],
    ) -> anyhow::Result<Self> {
        let workers = workload.workers;
        let ledger = Arc::new(Ledger::new());
        let stop = eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")?;
        let ports =
            (0..workload.pairs).flat_map(names).map(|name| (sockets.path(&name), name)).collect();
        let (ready, is_ready) = channel();
        let running = thread::Builder::new().name("worker".into()).spawn({
            let (ledger, stop) = (ledger.clone(), stop.try_clone().context("dup")?);
            move || serve(orphan, ports, (workers, processors), ledger, &stop, &ready)
        })?;
        match is_ready.recv() {
            Ok(thread) => Ok(Self { ledger, stop, thread, running }),
            Err(_) => Err(ended(running).err().unwrap_or_else(|| anyhow!("it ended at once"))),
        }
    }

    /// Processor time of the worker so far.
    pub(super) fn cpu(&self) -> anyhow::Result<Duration> {
        thread_cpu(self.thread)
    }

    pub(crate) fn stop(self) -> anyhow::Result<NetworkReport> {
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).context("eventfd")?;
        ended(self.running)
    }
}

fn ended(thread: JoinHandle<anyhow::Result<NetworkReport>>) -> anyhow::Result<NetworkReport> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("the worker panicked")))
}

fn serve(
    orphan: bool,
    ports: Vec<(PathBuf, String)>,
    (workers, [processor, other]): (usize, [CpuSet; 2]),
    ledger: Arc<Ledger>,
    stop: &OwnedFd,
    ready: &Reports<i32>,
) -> anyhow::Result<NetworkReport> {
    let config = Config { ipv4: None, ipv6: None, workers, ..Config::default() };
    let network = NetworkConfig {
        mtu: config.mtu,
        gateway: None,
        gateway_addresses: Vec::new(),
        orphan,
        busy_poll: BUSY_POLL,
        seed: 1,
    };
    let mut network = Network::new(network)?;
    network.set_workers(&config)?;
    for (path, name) in ports {
        network.add_port(&name, Attachment::VhostUser(path), PortSettings::default())?;
    }
    let mut worker = Worker::serving(&config, network, ledger)?;
    // Threads inherit the processor of the one that starts them.
    pin_thread(&other)?;
    worker.begin()?;
    pin_thread(&processor)?;
    // The thread that started this one waits for the message.
    let _ = ready.send(gettid().as_raw_nonzero().get());
    worker.run_until(&[stop.as_fd()])?;
    Ok(worker.inside().report(worker.now()))
}

pub(crate) const SENDER: &str = "sender";
pub(crate) const RECEIVER: &str = "receiver";
const SPINS: u32 = 128;
/// Much longer than any packet takes.
const STALL: Duration = Duration::from_secs(20);
