//! One run: towpath serves the injector, while its memory is watched and its counters are read.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::attack::Attack;
use crate::host::{Host, SETTLING};

/// The command under test.
const TOWPATH: &str = env!("CARGO_BIN_EXE_towpath");
/// Longest time of a run.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often an attack is tried that seems to slow the honest flow down.
const TRIES: usize = 6;
/// Interval of the checks of towpath's memory.
const TICK: Duration = Duration::from_millis(20);

/// A started process that is killed when it is dropped.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The results of a run.
struct Outcome {
    code: Option<i32>,
    /// Output of the injector.
    inside: String,
    /// Output of towpath.
    report: String,
    /// Most memory of towpath, in KiB.
    memory_kib: u64,
    /// What the kernel reported about its memory then.
    memory: String,
}

/// Runs an attack and judges it; call it on the host's thread. A busy machine may stall, so the
/// honest flow is too slow only if it is so each time.
pub(super) fn run(attack: &Attack, seed: u64) -> Result<(), Failed> {
    let host = Host::new()?;
    let mut ratios = Vec::new();
    for _ in 0..TRIES {
        let ratio = run_once(attack, seed, &host)?;
        match attack.slower_max {
            Some(max) if ratio > max => ratios.push(ratio),
            _ => return Ok(()),
        }
    }
    Err(format!("the honest flow was slower by factors of {ratios:?}").into())
}

/// Runs once; returns how much slower the honest flow was than beside harmless frames.
fn run_once(attack: &Attack, seed: u64, host: &Host) -> Result<f64, Failed> {
    let outcome = start_and_watch(attack, seed)?;
    thread::sleep(SETTLING);
    println!("--- {}: {}", attack.name, outcome.inside.trim().replace('\n', "; "));
    println!("    towpath used {} KiB at most", outcome.memory_kib);
    judge(attack, &outcome, host).map_err(|failure| {
        format!("{failure}\n--- inside:\n{}\n--- towpath:\n{}", outcome.inside, outcome.report)
    })?;
    let ratio = outcome.inside.lines().find_map(|line| line.strip_prefix("ratio "));
    Ok(ratio.ok_or("no ratio")?.parse()?)
}

fn start_and_watch(attack: &Attack, seed: u64) -> Result<Outcome, Failed> {
    let mut command = Command::new(TOWPATH);
    command.args(["run", "--stats"]).args(attack.options).arg("--");
    command.arg(std::env::current_exe()?).args([crate::INJECT, attack.name, &seed.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Guard(command.spawn()?);
    let inside = read_all(child.0.stdout.take());
    let report = read_all(child.0.stderr.take());
    let status = format!("/proc/{}/status", child.0.id());
    let started = Instant::now();
    let (mut memory_kib, mut memory) = (0, String::new());
    let code = loop {
        let now = fs::read_to_string(&status).unwrap_or_default();
        if let Some(kib) = peak_kib(&now).filter(|kib| *kib > memory_kib) {
            (memory_kib, memory) = (kib, now);
        }
        if let Some(status) = child.0.try_wait()? {
            break status.code();
        }
        if started.elapsed() > PATIENCE {
            drop(child);
            let (inside, report) = (inside.join(), report.join());
            return Err(format!("it took too long: {inside:?} {report:?}").into());
        }
        thread::sleep(TICK);
    };
    let inside = inside.join().expect("the reader");
    let report = report.join().expect("the reader");
    Ok(Outcome { code, inside, report, memory_kib, memory })
}

fn read_all(stream: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns the peak memory of a process from its status in /proc.
fn peak_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

fn judge(attack: &Attack, outcome: &Outcome, host: &Host) -> Result<(), String> {
    if outcome.code != Some(0) || outcome.report.contains("panicked") {
        return Err(format!("it ended with {:?}", outcome.code));
    }
    if outcome.memory_kib > attack.memory_mib << 10 {
        return Err(format!("towpath used {} KiB: {}", outcome.memory_kib, outcome.memory));
    }
    if let Some(first) = host.trapped().first() {
        return Err(format!("{} things reached the host: {first}", host.trapped().len()));
    }
    let (drops, mut counted) =
        (numbers(&outcome.inside, "drops"), numbers(&outcome.report, "dropped"));
    let welcome = drops.get("welcome").copied().unwrap_or(0);
    counted.insert("welcome".into(), host.welcomed(welcome));
    // Frames are lost in the device's full queue, or in the full ring to a second worker.
    let lost = numbers(&outcome.inside, "lost").remove("lost").unwrap_or(0);
    let lost = lost + counted.get("hand_over_full").copied().unwrap_or(0);
    for (reason, &expected) in &drops {
        // A frame may be counted for one reason or another.
        let count: u64 = reason.split('+').filter_map(|reason| counted.get(reason)).sum();
        // Welcome datagrams are sent while nothing else is in flight.
        let excused = if reason == "welcome" { 0 } else { lost };
        if count + excused < expected {
            return Err(format!("{reason}: {count} were counted, {expected} were sent"));
        }
    }
    Ok(())
}

/// Parses lines `WORD NAME NUMBER`, or `WORD NUMBER`, into a table.
fn numbers(text: &str, word: &str) -> BTreeMap<String, u64> {
    let read = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [first, name, number] if first == word => Some((name.to_owned(), number.parse().ok()?)),
            [first, number] if first == word => Some((first.to_owned(), number.parse().ok()?)),
            _ => None,
        }
    };
    text.lines().filter_map(read).collect()
}
