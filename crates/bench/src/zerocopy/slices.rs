//! The cost of a socket that chooses, compared with one that lends and one that copies, in slices
//! of time.
//!
//! The speed of a machine may change every second, and by more than a choice may lose. So the three
//! senders take turns of a fraction of a second, and the cost of each is the sum over all its
//! slices. Trials of the choosing socket, which are rare and expensive, count like everything else.
//!
//! Each sender is a separate process, because a choosing socket measures the processor time of its
//! process. It sends all the time, and is stopped (SIGSTOP) during the turns of the others; it
//! notices only that time has passed. It writes the number of bytes sent to the file that is its
//! standard output. The kernel reports its processor time.

use std::io::stdout;
use std::process::Command;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::cases::{self, Carrier, Point};
use super::datagrams::Arrivals;
use super::host::{self, OverTap};
use super::workload::{HOT_BYTES, Memory, Setting, reported};
use super::{Mode, NOT_PREPARED, Network};
use crate::ping_pong::Stopwatch;
use crate::process::{self, KernelThreads, Running};

/// A process that sends in one way until it is killed. As text: the name of the case, the way, and
/// the bytes of memory it sends from, `auto_4KiB,lend,1048576`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    point: &'static Point,
    mode: Mode,
    cold_bytes: usize,
}

impl FromStr for Process {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut parts = text.split(',');
        let mut part = || parts.next().context("CASE,WAY,BYTES");
        let (case, mode, bytes) = (part()?, part()?, part()?);
        let is_it = |point: &&Point| point.auto.as_ref().is_some_and(|auto| auto.name == case);
        let point = cases::groups().iter().flat_map(|group| &group.points).find(is_it);
        let mode = Mode::ALL.into_iter().find(|known| known.name() == mode);
        Ok(Self {
            point: point.context("unknown case")?,
            mode: mode.context("unknown mode")?,
            cold_bytes: bytes.parse().context("BYTES: expected a number")?,
        })
    }
}

impl Process {
    /// Sends for [`SENDING_MAX`]; the parent ends it long before.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // Messages on standard error follow this text.
        rustix::io::write(stdout(), &reported(0)).context("standard output")?;
        let Self { point, mode, cold_bytes } = self;
        let memory = Memory::new(cold_bytes);
        let setting = Setting {
            memory: &memory,
            span: SENDING_MAX,
            tells: true,
            kernel: &KernelThreads::find(),
            arrivals: Arrivals::default(),
        };
        match point.carrier {
            Carrier::Process => host::in_process(point, mode, &setting)?,
            Carrier::Tap => OverTap::new(&Network::new()?)?.measure(point, mode, &setting)?,
            Carrier::Kernel => bail!(NOT_PREPARED),
        };
        Ok(())
    }
}

/// The cost of each of [`Mode::ALL`] at a point, for everything that takes part: seconds per GiB.
/// The slices of each add up to `span`.
pub(super) fn costs(
    point: &Point,
    cold_bytes: usize,
    span: Duration,
    kernel: &KernelThreads,
) -> anyhow::Result<[f64; 3]> {
    let mut turns = Vec::new();
    for mode in Mode::ALL {
        turns.push(Turns::start(point, mode, cold_bytes, span).context(mode.name())?);
    }
    let slice = span.min(SLICE);
    for number in 0..span.div_duration_f64(slice).round() as usize {
        for place in 0..turns.len() {
            let turn = (number + place) % Mode::ALL.len();
            turns[turn].take(slice, kernel).context(Mode::ALL[turn].name())?;
        }
    }
    let mut costs = [0.0; 3];
    for (cost, mut turns) in costs.iter_mut().zip(turns) {
        // In short slices, a process may not reach the next report of its bytes.
        for _ in 0..EXTRA_SLICES {
            if turns.bytes().is_none_or(|bytes| bytes > turns.before.bytes) {
                break;
            }
            turns.take(slice, kernel)?;
        }
        *cost = turns.cost()?;
    }
    Ok(costs)
}

/// The turns of one process, which is stopped between them.
struct Turns {
    running: Running,
    /// Figures before the first turn.
    before: Figures,
    kernel_seconds: f64,
}

#[derive(Clone, Copy)]
struct Figures {
    bytes: u64,
    seconds: f64,
}

impl Turns {
    /// Starts a process, and stops it when windows and caches are warm and the first trials are
    /// over.
    fn start(point: &Point, mode: Mode, cold_bytes: usize, span: Duration) -> anyhow::Result<Self> {
        let case = &point.auto.as_ref().context("this case does not use SendMode::Auto")?.name;
        let memory = cold_bytes.max(HOT_BYTES);
        let mut command = Command::new("/proc/self/exe");
        command.args(["zerocopy", "--harness"]);
        command.arg(format!("slices,{case},{},{memory}", mode.name()));
        let running = Running::start(&mut command)?;
        let started = Stopwatch::start();
        let mut turns =
            Self { running, before: Figures { bytes: 0, seconds: 0.0 }, kernel_seconds: 0.0 };
        while turns.bytes().is_none_or(|bytes| bytes == 0) {
            ensure!(started.elapsed() < PATIENCE, "the program does not start");
            let ended = turns.running.wait(Duration::ZERO)?;
            ensure!(ended.is_none(), "{}", turns.running.last_words());
            thread::sleep(LOOK);
        }
        thread::sleep(warming_up(mode).min(span * WARMING_UP_SPANS));
        turns.running.pause()?;
        turns.before = turns.figures()?;
        Ok(turns)
    }

    fn take(&mut self, slice: Duration, kernel: &KernelThreads) -> anyhow::Result<()> {
        let before = kernel.cpu_seconds();
        self.running.go_on()?;
        thread::sleep(slice);
        self.running.pause()?;
        self.kernel_seconds += kernel.cpu_seconds() - before;
        Ok(())
    }

    fn cost(&self) -> anyhow::Result<f64> {
        const GIB: f64 = (1_u64 << 30) as f64;
        let Figures { bytes, seconds } = self.figures()?;
        ensure!(bytes > self.before.bytes, "nothing was sent: {}", self.running.last_words());
        let seconds = seconds - self.before.seconds + self.kernel_seconds;
        Ok(seconds * GIB / (bytes - self.before.bytes) as f64)
    }

    fn figures(&self) -> anyhow::Result<Figures> {
        let bytes = self.bytes().with_context(|| self.running.last_words())?;
        Ok(Figures { bytes, seconds: process::cpu_seconds_fine(&[self.running.number()]) })
    }

    fn bytes(&self) -> Option<u64> {
        self.running.log().lines().next()?.parse().ok()
    }
}

/// Duration of a slice. Together with the turns of the two others, it is shorter than the time
/// after which a loan counts as wasted, and than the time in which the machine usually changes its
/// speed.
const SLICE: Duration = Duration::from_millis(50);
/// How long a process sends before its slices begin, so that caches and windows are warm. The first
/// trials of a choosing socket are over by then, as in a long-running program.
fn warming_up(mode: Mode) -> Duration {
    match mode {
        Mode::Auto => Duration::from_secs(10),
        Mode::Lend | Mode::Copy => Duration::from_millis(500),
    }
}

/// Warm-up spans of a short measurement.
const WARMING_UP_SPANS: u32 = 10;
/// Additional slices for processes that have not reported bytes yet.
const EXTRA_SLICES: usize = 100;
/// Longest wait for a process to begin.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between checks whether it has begun.
const LOOK: Duration = Duration::from_millis(5);
/// How long a process sends if it is not killed.
const SENDING_MAX: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named() {
        let process: Process = "udp_auto_4KiB_hot,auto,1048576".parse().unwrap();
        assert_eq!(process.point.size, 4096);
        assert_eq!((process.mode, process.cold_bytes), (Mode::Auto, 1 << 20));
        for wrong in ["", "auto_4KiB", "auto_4KiB,lend", "auto_4KiB,give,1", "auto_4KiB,lend,x"] {
            assert!(wrong.parse::<Process>().is_err(), "{wrong}");
        }
        assert!("kernel_auto_4KiB,lend,1".parse::<Process>().is_err());
    }
}
