//! Flows that share a bottleneck: goodput, queueing delay and fairness of congestion controllers.
//!
//! The path has a link of a fixed rate with a queue, random loss in the forward direction, and a
//! round-trip time that is spent in the reverse direction. Each frame is one segment, as on the
//! path of `scripts/loss-guest`, which measures a kernel. The applications work like iperf3:
//! they write as much as there is room for and read everything at once.

use crate::flow::Plan;
use crate::host::Host;
use crate::link::{Link, LinkConfig, Medium};
use crate::scenario::{config, endpoint};
use crate::seed::Ppm;
use crate::world::World;
use towpath_net::tcp::Settings;
use towpath_net::tcp::congestion::Kind;
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Caps, MemoryConfig};

/// Bytes of a write, as in iperf3.
const WRITE: usize = 128 << 10;
/// Bytes of a full frame at MTU 1500, with its Ethernet header.
const FRAME: u64 = 1514;
/// Bytes that pass the link at once after a pause.
const BURST_BYTES: u64 = 2 * FRAME;
/// Most bytes of a connection's buffers: more than any of these paths needs.
const BUFFER: u32 = 64 << 20;
/// Time between looks at the connections.
const SAMPLE: Duration = Duration::from_millis(100);

/// A bottleneck.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Bytes per second.
    pub rate: u64,
    /// Round-trip time without a queue.
    pub rtt: Duration,
    /// Size of the queue in percent of the bandwidth-delay product.
    pub queue: u64,
    /// Frames lost at random.
    pub loss: Ppm,
}

impl Path {
    /// Bytes in the queue, at least two frames.
    pub fn queue_bytes(&self) -> u64 {
        let product = self.rate * self.rtt.as_micros() as u64 / 1_000_000;
        (product * self.queue / 100).max(2 * FRAME)
    }
}

/// What became of the flows in the measured time.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Bytes per second that each receiver read.
    pub goodput: Vec<f64>,
    /// Mean time that frames waited in the queue.
    pub waited: Duration,
    /// Mean smoothed round-trip time of each sender.
    pub srtt: Vec<Duration>,
    /// Part of the frames that the queue dropped.
    pub dropped: f64,
}

impl Outcome {
    /// Goodput of all flows together.
    pub fn total(&self) -> f64 {
        self.goodput.iter().sum()
    }

    /// Share of the fastest flow.
    pub fn largest_share(&self) -> f64 {
        self.goodput.iter().copied().fold(0.0, f64::max) / self.total().max(1.0)
    }
}

/// Runs one flow for each of `kinds`, which begin `apart`, and measures from `from` until `until`.
pub fn run(
    path: &Path,
    kinds: &[Kind],
    apart: Duration,
    (from, until): (Duration, Duration),
    seed: u64,
) -> Outcome {
    let memory = MemoryConfig { packets: 32_768, small_frames: 65_536, large_frames: 2048 };
    let caps = Caps::plain(1500);
    let hosts = [0, 1].map(|index| Host::new(config(index, settings()), caps, memory));
    let mut world = World::new(seed, hosts, links(path));
    let mut begun = 0;
    let mut measured: Option<(Vec<u64>, u64, u64, u64)> = None;
    let mut srtt = vec![(Duration::ZERO, 0u32); kinds.len()];
    let mut at = Duration::ZERO;
    while at < until {
        while begun < kinds.len() && at >= apart * begun as u32 {
            world.hosts[1].listen(ends(begun).1, Plan::default());
            let now = world.now();
            begin(&mut world.hosts[0], begun, kinds[begun], now);
            begun += 1;
        }
        if measured.is_none() && at >= from {
            measured = Some(totals(&world, kinds.len()));
        }
        at += SAMPLE;
        world.run(Instant::START + at);
        if measured.is_some() {
            sample(&world, &mut srtt);
        }
    }
    assert!(world.problems().is_empty(), "{}", world.report());
    let before = measured.unwrap_or_else(|| (vec![0; kinds.len()], 0, 0, 0));
    let after = totals(&world, kinds.len());
    let seconds = (until - from).as_secs_f64();
    let frames = (after.2 - before.2).max(1);
    Outcome {
        goodput: before.0.iter().zip(&after.0).map(|(a, b)| (b - a) as f64 / seconds).collect(),
        waited: Duration::from_micros((after.1 - before.1) / frames),
        srtt: srtt.iter().map(|(sum, count)| *sum / (*count).max(1)).collect(),
        dropped: (after.3 - before.3) as f64 / frames as f64,
    }
}

/// The links of a path, in both directions.
pub fn links(path: &Path) -> [Link; 2] {
    let mut there = LinkConfig::clean(Medium::Wire, 1500, Duration::ZERO);
    there.loss = path.loss;
    there.rate = Some(path.rate);
    there.burst_bytes = BURST_BYTES;
    there.queue_bytes = path.queue_bytes();
    let back = LinkConfig::clean(Medium::Wire, 1500, path.rtt);
    [Link::new(there), Link::new(back)]
}

/// Starts flow `index` of `host`, which writes without an end.
pub fn begin(host: &mut Host, index: usize, kind: Kind, now: Instant) {
    let (local, remote) = ends(index);
    let plan = Plan { write: u64::MAX / 4, write_min: WRITE, write_max: WRITE, ..Plan::default() };
    let flow = host.connect(local, remote, plan, now).expect("endpoints are free");
    let handle = host.flows[flow].handle.expect("the flow has just begun");
    host.stack.with_tcp(handle, now, |connection| connection.set_congestion(kind, now));
}

fn ends(index: usize) -> (std::net::SocketAddr, std::net::SocketAddr) {
    (endpoint(0, false, 1000 + index as u16), endpoint(1, false, 80 + index as u16))
}

/// Bytes read by each receiver, microseconds waited in the queue, frames offered, and dropped by
/// the queue.
fn totals(world: &World, flows: usize) -> (Vec<u64>, u64, u64, u64) {
    let read = |index| world.hosts[1].flow(ends(index).1).map_or(0, |flow| flow.read);
    let link = world.links[0].counters();
    ((0..flows).map(read).collect(), link.waited_us, link.offered, link.queue_full)
}

/// Adds the smoothed round-trip times of now.
fn sample(world: &World, sums: &mut [(Duration, u32)]) {
    let host = &world.hosts[0];
    for (index, (sum, count)) in sums.iter_mut().enumerate() {
        let handle = host.flow(ends(index).0).and_then(|flow| flow.handle);
        if let Some(connection) = handle.and_then(|handle| host.stack.tcp(handle)) {
            *sum += Duration::from_micros(connection.info(world.now()).rtt.into());
            *count += 1;
        }
    }
}

/// Buffers that do not limit the flows.
pub fn settings() -> Settings {
    Settings { receive_buffer_max: 2 * BUFFER, send_buffer_max: BUFFER, ..Settings::default() }
}
