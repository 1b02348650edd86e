//! Processes of a measurement: starting, ending, and their resource usage.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A started process, which does not outlive this value.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    /// Its standard error, and its standard output unless that is piped.
    log: File,
}

impl Running {
    /// Starts a process with its standard output in the log.
    pub(super) fn start(command: &mut Command) -> anyhow::Result<Self> {
        Self::start_with(command, None)
    }

    /// Starts a process with its standard output for [`Running::output`].
    pub(super) fn start_piped(command: &mut Command) -> anyhow::Result<Self> {
        Self::start_with(command, Some(Stdio::piped()))
    }

    /// Starts a process as [`Running::start`] does, with its standard input for [`Running::feed`].
    pub(super) fn start_fed(command: &mut Command) -> anyhow::Result<Self> {
        Self::spawn(command.stdin(Stdio::piped()), None)
    }

    fn start_with(command: &mut Command, stdout: Option<Stdio>) -> anyhow::Result<Self> {
        Self::spawn(command.stdin(Stdio::null()), stdout)
    }

    fn spawn(command: &mut Command, stdout: Option<Stdio>) -> anyhow::Result<Self> {
        let log = File::from(memfd_create(c"log", MemfdFlags::CLOEXEC).context("memfd_create")?);
        let stdout = match stdout {
            Some(stdout) => stdout,
            None => log.try_clone()?.into(),
        };
        command.stdout(stdout).stderr(log.try_clone()?);
        let child = command.spawn();
        let name = command.get_program().display();
        Ok(Self { child: child.with_context(|| format!("cannot execute {name}"))?, log })
    }

    /// Writes to its standard input.
    pub(super) fn feed(&mut self, text: &str) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("its standard input is not a pipe")?;
        stdin.write_all(text.as_bytes()).context("it no longer reads its standard input")
    }

    /// Waits for its end, and returns its standard output. Kills it if that takes longer than
    /// `limit`.
    pub(super) fn output(mut self, limit: Duration) -> anyhow::Result<String> {
        let stdout = self.child.stdout.take();
        let reader = thread::spawn(move || {
            let mut text = String::new();
            let read = stdout.map_or(Ok(0), |mut stdout| stdout.read_to_string(&mut text));
            read.map(|_| text)
        });
        let ended = self.wait(limit)?;
        if ended.is_none() {
            self.kill();
        }
        let text = reader.join().map_err(|_| anyhow!("the reader failed"))??;
        match ended {
            None => bail!("it did not end in {} s and was killed", limit.as_secs()),
            Some(status) if !status.success() && text.is_empty() => {
                bail!("it failed ({status}): {}", self.last_words())
            }
            Some(_) => Ok(text),
        }
    }

    /// Waits for its end, at most for `limit`.
    pub(super) fn wait(&mut self, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
        const STEP: Duration = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        loop {
            let ended = self.child.try_wait().context("cannot wait for a process")?;
            if ended.is_some() || waited >= limit {
                return Ok(ended);
            }
            thread::sleep(STEP);
            waited += STEP;
        }
    }

    /// Stops it until [`Running::go_on`]. When this returns, it has stopped.
    pub(super) fn pause(&self) -> anyhow::Result<()> {
        const OR_ENDED: WaitIdOptions = WaitIdOptions::STOPPED.union(WaitIdOptions::EXITED);
        self.signal(Signal::STOP)?;
        // Does not reap it; its owner waits for it.
        let options = OR_ENDED.union(WaitIdOptions::NOWAIT);
        let status = waitid(WaitId::Pid(self.pid()?), options).context("cannot wait for it")?;
        if status.is_none_or(|status| !status.stopped()) {
            bail!("it has ended: {}", self.last_words());
        }
        Ok(())
    }

    /// Continues a stopped process.
    pub(super) fn go_on(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        rustix::process::kill_process(self.pid()?, signal).context("cannot send it a signal")
    }

    fn pid(&self) -> anyhow::Result<Pid> {
        Pid::from_raw(self.number()).context("it has no PID")
    }

    /// Its process ID.
    pub(super) fn number(&self) -> i32 {
        i32::try_from(self.child.id()).expect("process numbers have 22 bits")
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let text = self.log();
        let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join("; ")
    }

    /// The start of its log.
    pub(super) fn log(&self) -> String {
        let mut bytes = [0; 32 << 10];
        let read = self.log.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    /// Its process ID and those of its descendants.
    pub(super) fn tree(&self) -> Vec<i32> {
        let parents: Vec<(i32, i32)> = numbers_in("/proc")
            .filter_map(|pid| Some((pid, field(&stat(pid)?, STAT_PPID)?)))
            .collect();
        let mut tree = vec![self.number()];
        let mut at = 0;
        while let Some(&parent) = tree.get(at) {
            tree.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        tree
    }

    fn kill(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The kernel's softirq threads, which process packets for any process.
#[derive(Debug)]
pub(super) struct KernelThreads(Vec<File>);

impl KernelThreads {
    /// Finds the threads in /proc. They can be read later even if /proc no longer shows them.
    pub(super) fn find() -> Self {
        let is_softirq = |pid: &i32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.starts_with("ksoftirqd/"))
        };
        let open = |pid| File::open(format!("/proc/{pid}/stat")).ok();
        Self(numbers_in("/proc").filter(is_softirq).filter_map(open).collect())
    }

    /// Processor time that they have used.
    pub(super) fn cpu_seconds(&self) -> f64 {
        let used = |file: &File| {
            let mut bytes = [0; 1024];
            let read = file.read_at(&mut bytes, 0).ok()?;
            own_ticks(behind_name(std::str::from_utf8(&bytes[..read]).ok()?)?)
        };
        seconds(self.0.iter().filter_map(used).sum())
    }
}

/// All processes of this PID namespace.
pub(super) fn all() -> Vec<i32> {
    numbers_in("/proc").collect()
}

/// Processor time of these processes, in steps of the kernel's clock tick (10 ms).
pub(super) fn cpu_seconds(pids: &[i32]) -> f64 {
    seconds(pids.iter().filter_map(|pid| own_ticks(&stat(*pid)?)).sum())
}

/// Processor time of these processes with nanosecond resolution, without threads that have ended.
pub(super) fn cpu_seconds_fine(pids: &[i32]) -> f64 {
    let used = |pid: &i32| {
        let of_thread = |thread: i32| -> Option<u64> {
            let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
            text.split_ascii_whitespace().next()?.parse().ok()
        };
        numbers_in(&format!("/proc/{pid}/task")).filter_map(of_thread).sum::<u64>()
    };
    match fs::exists("/proc/self/schedstat") {
        Ok(true) => Duration::from_nanos(pids.iter().map(used).sum()).as_secs_f64(),
        _ => cpu_seconds(pids),
    }
}

/// Processor time of a thread of this process.
pub(super) fn thread_cpu(thread: i32) -> anyhow::Result<Duration> {
    let path = format!("/proc/self/task/{thread}/schedstat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let nanoseconds = text.split_ascii_whitespace().next().and_then(|field| field.parse().ok());
    nanoseconds.map(Duration::from_nanos).with_context(|| format!("cannot parse {path}"))
}

/// Processor time of the children of this process that have ended and been waited for.
pub(super) fn cpu_seconds_of_ended() -> f64 {
    let ticks = fs::read_to_string("/proc/self/stat").ok().and_then(|stat| {
        let stat = behind_name(&stat)?;
        Some(field::<u64>(stat, STAT_CUTIME)? + field::<u64>(stat, STAT_CUTIME + 1)?)
    });
    seconds(ticks.unwrap_or(0))
}

/// Resident memory of these processes.
pub(super) fn resident_mib(pids: &[i32]) -> f64 {
    let resident = |pid: &i32| -> Option<f64> {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    pids.iter().filter_map(resident).sum::<f64>() / 1024.0
}

/// Raises the priority of this process and its children, so that other work on the machine matters
/// as little as possible. Not essential: if the system refuses it, figures spread more.
pub(super) fn go_first() {
    // In a separate session, because the kernel may first share processor time fairly among
    // sessions.
    let _ = rustix::process::setsid();
    let _ = fs::write("/proc/self/autogroup", NICE.to_string());
    let _ = rustix::process::nice(NICE);
}

/// The processors that this process may use.
pub(super) fn processors() -> anyhow::Result<CpuSet> {
    sched_getaffinity(None).context("cannot list the processors")
}

/// The first of these processors alone.
pub(super) fn first_processor() -> anyhow::Result<CpuSet> {
    let all = processors()?;
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).context("no processor")?;
    let mut one = CpuSet::new();
    one.set(first);
    Ok(one)
}

/// Restricts this thread to these processors.
pub(super) fn pin_thread(to: &CpuSet) -> anyhow::Result<()> {
    sched_setaffinity(None, to).context("cannot choose a processor")
}

/// Restricts these processes, with all their threads, to these processors.
pub(super) fn pin_processes(pids: &[i32], to: &CpuSet) -> anyhow::Result<()> {
    for thread in pids.iter().flat_map(|pid| numbers_in(&format!("/proc/{pid}/task"))) {
        sched_setaffinity(Pid::from_raw(thread), to).context("cannot choose a processor")?;
    }
    Ok(())
}

/// Above all ordinary processes, below the priority that the kernel's own threads may need.
const NICE: i32 = -15;

/// Indices of fields after the name in /proc/PID/stat, see proc(5).
const STAT_PPID: usize = 1;
const STAT_UTIME: usize = 11;
const STAT_CUTIME: usize = 13;

fn own_ticks(stat: &str) -> Option<u64> {
    Some(field::<u64>(stat, STAT_UTIME)? + field::<u64>(stat, STAT_UTIME + 1)?)
}

/// The part of /proc/PID/stat after the name, which may contain any characters.
fn stat(pid: i32) -> Option<String> {
    behind_name(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(Into::into)
}

fn behind_name(stat: &str) -> Option<&str> {
    Some(stat.rsplit_once(')')?.1)
}

fn field<T: std::str::FromStr>(stat: &str, place: usize) -> Option<T> {
    stat.split_ascii_whitespace().nth(place)?.parse().ok()
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Entries of a directory whose names are numbers.
fn numbers_in(directory: &str) -> impl Iterator<Item = i32> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_of_a_process_with_an_evil_name() {
        let stat = behind_name("7 (a) 1 (b) S 3 7 7 0 -1 4194560 1 2 3 4 50 60 70 80 20").unwrap();
        assert_eq!(field::<i32>(stat, STAT_PPID), Some(3));
        assert_eq!(own_ticks(stat), Some(110));
        assert_eq!(field::<u64>(stat, STAT_CUTIME), Some(70));
    }

    #[test]
    fn output_of_a_process_that_ends_and_of_one_that_does_not() {
        let mut command = Command::new("echo");
        let echo = Running::start_piped(command.arg("text")).unwrap();
        assert_eq!(echo.output(Duration::from_secs(10)).unwrap(), "text\n");
        let mut command = Command::new("sleep");
        let sleep = Running::start_piped(command.arg("60")).unwrap();
        assert!(sleep.output(Duration::from_millis(10)).is_err());
    }

    #[test]
    fn a_process_is_stopped_and_goes_on() {
        let mut command = Command::new("sleep");
        let sleep = Running::start(command.arg("60")).unwrap();
        for _ in 0..3 {
            sleep.pause().unwrap();
            assert!(stat(sleep.number()).unwrap().starts_with(" T"));
            sleep.go_on().unwrap();
        }
        let ends = Running::start(&mut Command::new("true")).unwrap();
        let is_over = |_: &u32| {
            thread::sleep(Duration::from_millis(1));
            ends.pause().and_then(|()| ends.go_on()).is_err()
        };
        assert!((0..10_000).any(|number| is_over(&number)));
    }
}
