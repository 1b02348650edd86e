//! Goodput of one connection under loss, in virtual time: `cargo run --release -p towpath-sim
//! --example loss [SECONDS [RUNS]]`.
//!
//! The path is that of `scripts/loss-guest`, which measures a kernel: frames are lost independently
//! in the forward direction, over a link of [`RATE`] that lets [`BURST_BYTES`] pass at once and
//! queues [`QUEUE_BYTES`]; the round-trip time is spent in the reverse direction. The application
//! works like iperf3: it writes [`WRITE`] bytes at a time, or as many as there is room for, and
//! reads everything at once. Prints one line for each run, in the same form: `loss % rtt ms mbit`.

use towpath_net::tcp::Settings;
use towpath_net::time::{Duration, Instant};
use towpath_packet::{Caps, MemoryConfig};
use towpath_sim::flow::Plan;
use towpath_sim::host::Host;
use towpath_sim::link::{Link, LinkConfig, Medium};
use towpath_sim::scenario::{able, config, endpoint};
use towpath_sim::world::World;

/// Bytes per second: 100 Mbit/s.
const RATE: u64 = 12_500_000;
/// Bytes that pass the link at once after a pause.
const BURST_BYTES: u64 = 6000;
/// Bytes of a write, as in iperf3.
const WRITE: usize = 128 << 10;
/// Bytes that the link queues: 25 ms.
const QUEUE_BYTES: u64 = 312_500;
/// Loss in parts per million.
const LOSSES: [u32; 3] = [1000, 10_000, 30_000];
/// Round-trip times in milliseconds.
const ROUND_TRIPS: [u64; 3] = [1, 20, 100];
/// Default length of a run and number of runs.
const SECONDS: u64 = 30;
const RUNS: u64 = 3;

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let seconds = numbers.first().copied().unwrap_or(SECONDS);
    let runs = numbers.get(1).copied().unwrap_or(RUNS);
    for run in 1..=runs {
        for loss in LOSSES {
            for rtt in ROUND_TRIPS {
                let mbit = goodput(loss, rtt, seconds, run);
                println!("{} {rtt} {mbit:.3}", f64::from(loss) / 10_000.0);
            }
        }
    }
}

/// Mbit/s that arrive in order in the first `seconds`.
fn goodput(loss: u32, rtt: u64, seconds: u64, seed: u64) -> f64 {
    let memory = MemoryConfig { packets: 8192, small_frames: 16_384, large_frames: 2048 };
    let caps: Caps = able(1500);
    let hosts = [0, 1].map(|index| Host::new(config(index, settings()), caps, memory));
    let mut there = LinkConfig::clean(Medium::Wire, 1500, Duration::ZERO);
    there.loss = loss;
    there.rate = Some(RATE);
    there.burst_bytes = BURST_BYTES;
    there.queue_bytes = QUEUE_BYTES;
    let back = LinkConfig::clean(Medium::Wire, 1500, Duration::from_millis(rtt));
    let mut world = World::new(seed, hosts, [Link::new(there), Link::new(back)]);
    let (local, remote) = (endpoint(0, false, 1000), endpoint(1, false, 80));
    world.hosts[1].listen(remote, Plan::default());
    let writes =
        Plan { write: u64::MAX / 4, write_min: WRITE, write_max: WRITE, ..Plan::default() };
    world.hosts[0].connect(local, remote, writes, Instant::START).expect("endpoints are free");
    world.run(Instant::START + Duration::from_secs(seconds));
    assert!(world.problems().is_empty(), "{}", world.report());
    let read = world.hosts[1].flow(remote).map_or(0, |flow| flow.read);
    read as f64 * 8.0 / 1e6 / seconds as f64
}

/// The kernel's settings: buffers that grow to 4 MiB for sending and 6 MiB for receiving.
fn settings() -> Settings {
    Settings { receive_buffer_max: 12 << 20, send_buffer_max: 4 << 20, ..Settings::default() }
}
