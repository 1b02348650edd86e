//! What a socket that chooses costs, beside one that lends and one that copies, in slices of time.
//!
//! How fast a machine is may change by the second, and by more than what a choice is to lose at
//! most. So the three send in turn, a part of a second each, again and again, and cost what they
//! cost in all their slices together: trials, which are few and dear, count as everything does.
//!
//! Each is a process of its own, because who chooses goes by the processor time of his process. It
//! sends all the time, and is stopped (SIGSTOP) while others have their turn, of which it notices
//! only that time has passed. It tells how many bytes it has sent in the file that is its standard
//! output; its processor time is told by the kernel.

use std::io::stdout;
use std::process::Command;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::cases::{self, Carrier, Point};
use super::datagrams::Arrivals;
use super::host::{self, OverTap};
use super::workload::{HOT_BYTES, Memory, Setting, told};
use super::{Mode, NOT_PREPARED, Network};
use crate::ping_pong::Stopwatch;
use crate::process::{self, KernelThreads, Running};

/// A process that sends in one way until it is stopped for good: as text, the name of the case, the
/// way, and how much memory it sends from, `auto_4KiB,lend,1048576`.
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
            point: point.context("there is no such case")?,
            mode: mode.context("there is no such way")?,
            cold_bytes: bytes.parse().context("BYTES is a number")?,
        })
    }
}

impl Process {
    /// Sends for [`SENDING_MAX`]: who started it ends it long before.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // What is written to standard error stands behind it.
        rustix::io::write(stdout(), &told(0)).context("standard output")?;
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

/// What each of [`Mode::ALL`] costs at a point, of everything that takes part: seconds per GiB.
/// Each has slices of `span` in all.
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
        // Short slices may not be enough for bytes to be told.
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
    /// Before the first.
    before: Figures,
    kernel_seconds: f64,
}

#[derive(Clone, Copy)]
struct Figures {
    bytes: u64,
    seconds: f64,
}

impl Turns {
    /// Starts a process, and stops it when windows and caches have got used to it and the first
    /// trials are over.
    fn start(point: &Point, mode: Mode, cold_bytes: usize, span: Duration) -> anyhow::Result<Self> {
        let case = &point.auto.as_ref().context("nothing chooses there")?.name;
        let memory = cold_bytes.max(HOT_BYTES);
        let mut command = Command::new("/proc/self/exe");
        command.args(["zerocopy", "--harness"]);
        command.arg(format!("slices,{case},{},{memory}", mode.name()));
        let running = Running::start(&mut command)?;
        let started = Stopwatch::start();
        let mut turns =
            Self { running, before: Figures { bytes: 0, seconds: 0.0 }, kernel_seconds: 0.0 };
        while turns.bytes().is_none_or(|bytes| bytes == 0) {
            ensure!(started.elapsed() < PATIENCE, "it does not begin");
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

/// With the turns of two others behind it shorter than a loan may be out before it counts as
/// wasted, and than the machine keeps its speed as a rule.
const SLICE: Duration = Duration::from_millis(50);
/// How long a process sends before its slices begin: caches and windows have got used to it then.
/// The first trials of one that chooses are over, as they are in a program that does not end soon.
fn warming_up(mode: Mode) -> Duration {
    match mode {
        Mode::Auto => Duration::from_secs(10),
        Mode::Lend | Mode::Copy => Duration::from_millis(500),
    }
}

/// Short measurements have less time for it.
const WARMING_UP_SPANS: u32 = 10;
/// For those that have told nothing.
const EXTRA_SLICES: usize = 100;
/// Longest wait for a process to begin.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether it has begun.
const LOOK: Duration = Duration::from_millis(5);
/// How long a process sends that nobody ends.
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
