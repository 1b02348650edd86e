//! Congestion controllers in virtual time: `cargo run --release -p towpath-sim --example congestion
//! [SECONDS [RUNS]]`. The path has 100 Mbit/s; with a round trip of 200 ms it has 20 Mbit/s, as a
//! receiver keeps at most 2048 pieces of data out of order.
//!
//! Prints one line for each controller, loss, round-trip time, size of the queue (in percent of the
//! bandwidth-delay product) and run, in the form of `scripts/loss-guest`: `one KIND LOSS% RTT
//! QUEUE% MBIT SRTT`, with the mean smoothed round-trip time in milliseconds; then the share of the
//! faster of two flows after 30 seconds, which begin together or a second apart: `two KIND LOSS%
//! RTT QUEUE% MBIT SHARE%`; then the share of a flow of CUBIC beside one of BBR: `beside RTT QUEUE%
//! MBIT SHARE%`.

use std::env;
use towpath_net::tcp::congestion::Kind;
use towpath_net::time::Duration;
use towpath_sim::contest::{self, Path};

/// Bytes per second: 100 Mbit/s, and on long paths 20 Mbit/s.
const RATES: [u64; 2] = [12_500_000, 2_500_000];
/// Round trips of long paths are at least this many milliseconds.
const LONG: u64 = 100;
/// Loss in parts per million.
const LOSSES: [u32; 3] = [0, 10_000, 30_000];
/// Round-trip times in milliseconds.
const ROUND_TRIPS: [u64; 3] = [1, 20, 200];
/// Sizes of the queue, in percent of the bandwidth-delay product.
const QUEUES: [u64; 2] = [25, 400];
/// Sizes of the queue that BBR shares with CUBIC.
const QUEUES_BESIDE: [u64; 3] = [25, 100, 400];
/// Controllers.
const KINDS: [Kind; 2] = [Kind::Bbr, Kind::Cubic];
/// Default length of a run and number of runs.
const SECONDS: u64 = 20;
const RUNS: u64 = 1;
/// Seconds between the beginnings of two flows.
const APART: [u64; 2] = [0, 1];
/// When the share of two flows is measured, in seconds.
const SHARE: [u64; 2] = [30, 60];

fn main() {
    let numbers: Vec<u64> = env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let seconds = numbers.first().copied().unwrap_or(SECONDS);
    let runs = numbers.get(1).copied().unwrap_or(RUNS);
    for run in 1..=runs {
        for_each_path(&LOSSES, |kind, path, text| {
            let end = Duration::from_secs(seconds);
            let times = (Duration::ZERO, end);
            let outcome = contest::run(path, &[kind], Duration::ZERO, times, run);
            let srtt = outcome.srtt.first().map_or(0.0, Duration::as_secs_f64) * 1e3;
            let waited = outcome.waited.as_secs_f64() * 1e3;
            let mbit = outcome.total() * 8.0 / 1e6;
            let dropped = outcome.dropped * 100.0;
            println!("one {text} {mbit:.2} {srtt:.2} waited {waited:.2} dropped {dropped:.2}%");
        });
        for_each_path(&LOSSES[..1], |kind, path, text| {
            let [from, until] = SHARE.map(Duration::from_secs);
            for apart in APART {
                let step = Duration::from_secs(apart);
                let outcome = contest::run(path, &[kind; 2], step, (from, until), run);
                let mbit = outcome.total() * 8.0 / 1e6;
                let share = outcome.largest_share() * 100.0;
                println!("two {text} {mbit:.2} {share:.1} apart {apart}");
            }
        });
        for rtt in ROUND_TRIPS {
            for queue in QUEUES_BESIDE {
                let [from, until] = SHARE.map(Duration::from_secs);
                let (path, at_once) = (path(rtt, queue, 0), Duration::ZERO);
                let outcome = contest::run(&path, &KINDS, at_once, (from, until), run);
                let mbit = outcome.total() * 8.0 / 1e6;
                let share = outcome.goodput[1] / outcome.total() * 100.0;
                println!("beside {rtt} {queue} {mbit:.2} {share:.1}");
            }
        }
    }
}

fn path(rtt: u64, queue: u64, loss: u32) -> Path {
    let rate = RATES[usize::from(rtt >= LONG)];
    Path { rate, rtt: Duration::from_millis(rtt), queue, loss }
}

fn for_each_path(losses: &[u32], mut act: impl FnMut(Kind, &Path, &str)) {
    for &loss in losses {
        for rtt in ROUND_TRIPS {
            for queue in QUEUES {
                for kind in KINDS {
                    let percent = f64::from(loss) / 10_000.0;
                    act(
                        kind,
                        &path(rtt, queue, loss),
                        &format!("{} {percent} {rtt} {queue}", kind.name()),
                    );
                }
            }
        }
    }
}
