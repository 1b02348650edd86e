//! Everything that must hold before a change lands, in one run.
//!
//! Steps that need nothing of each other run side by side, in [lanes](LANES); each is a process of
//! its own, `cargo xtask ci STEP`. All steps run, also after one failed. The last line counts the
//! tests of all test programs; a failed step without a failed test counts as one.
//!
//! Steps that only compute are in two lanes of low priority. They use the processor time that the
//! tests leave, as several tests depend on timing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::count::{Count, Counter};
use crate::{api, cargo, fuzz, guard, packetdrill, root, scribble, target_folder, tidy};

/// How long each fuzz target runs.
const FUZZ_SECONDS: u32 = 6;

/// One part of the run.
struct Step {
    name: &'static str,
    /// A step of another lane that must have ended before.
    after: Option<&'static str>,
    act: fn() -> Result<Count, String>,
}

impl Step {
    const fn new(name: &'static str, act: fn() -> Result<Count, String>) -> Self {
        Self { name, after: None, act }
    }

    const fn after(self, step: &'static str) -> Self {
        Self { after: Some(step), ..self }
    }
}

/// Steps that run one after the other.
struct Lane {
    /// Niceness of its processes.
    niceness: u8,
    /// False if the output of a step is kept until the step has ended.
    is_shown_at_once: bool,
    steps: &'static [Step],
}

const LANES: [Lane; 5] = [
    Lane {
        niceness: 0,
        is_shown_at_once: true,
        steps: &[
            Step::new("format", format),
            Step::new("tidy", || tidy::run().map(|()| Count::default())),
            Step::new("header", header),
            Step::new("clippy", clippy),
            Step::new("documentation", || api::document().map(|()| Count::default())),
            Step::new(BUILD, build),
            Step::new("end-to-end", || tests(&END_TO_END)),
        ],
    },
    Lane {
        niceness: 0,
        is_shown_at_once: false,
        steps: &[
            Step::new("tests", other_tests).after(BUILD),
            Step::new("tests-of-machines", || tests(&MACHINES)),
            Step::new("documentation-tests", || count(test_programs().arg("--doc"))),
            Step::new("preload", preload),
            Step::new("api", api::compare),
            Step::new("packetdrill", packetdrill::lending),
        ],
    },
    Lane {
        niceness: 0,
        is_shown_at_once: false,
        steps: &[Step::new("tests-of-networks", || tests(&NETWORKS)).after(BUILD)],
    },
    Lane { niceness: 15, is_shown_at_once: false, steps: &[Step::new("fuzz", fuzzing)] },
    Lane {
        niceness: 15,
        is_shown_at_once: false,
        steps: &[
            Step::new("guard-build", || guard::build().map(|()| Count::default())),
            Step::new("guard", guard::compare),
            Step::new("loom", loom),
        ],
    },
];

/// Steps that take minutes to hours, with the environment that enables the full sets: `cargo xtask
/// long`.
const LONG: [Step; 12] = [
    Step::new("end-to-end", || {
        long("e2e", "", &[("TOWPATH_LONG", "1"), ("TOWPATH_SOAK_SECONDS", "600")])
    }),
    Step::new("benches", || long("bench_smoke", "zerocopy", &[("TOWPATH_LONG", "1")])),
    Step::new("slow-readers", || long("hostile", "slow_", &[("TOWPATH_SLOW_FLOWS", "10000")])),
    Step::new("kills", || long("hostile", "killed", &[("TOWPATH_KILLS", "300")])),
    Step::new("siege", || long("hostile", "siege", &[("TOWPATH_SIEGE_SECONDS", "600")])),
    Step::new("worlds", || {
        let seeds = [("TOWPATH_SEEDS", "1000")];
        let mut worlds = long("world", "", &seeds)?;
        worlds.add(long("hours", "", &seeds)?);
        Ok(worlds)
    }),
    Step::new("evpn", || {
        let mut command = cargo(["test", "--package", "towpath-evpn", "--locked", "--lib"]);
        command.args(["--", "--show-output", "large_network"]);
        count(command.env("TOWPATH_LONG", "1"))
    }),
    Step::new("packets", packets),
    Step::new("scribble", || scribble::run(&["600"]).map(|()| Count::default())),
    Step::new("valgrind", || {
        let mut command = all_tests();
        command.args(["--test", "abi", "--", "--show-output", "--include-ignored", "valgrind"]);
        count(&mut command)
    }),
    Step::new("packages", packages),
    Step::new("fuzz", || fuzz::live(None, 3600, None)),
];

const BUILD: &str = "build-of-tests";
const PRELOAD: &str = "towpath-preload";

/// Test programs that run for minutes and wait most of the time. Each of these groups has a lane.
const END_TO_END: [&str; 1] = ["e2e"];
const NETWORKS: [&str; 3] = ["bench_smoke", "command", "hostile"];
/// Test programs that start virtual machines.
const MACHINES: [&str; 1] = ["guest"];

/// Runs the steps of that name, or all.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let steps = || LANES.iter().flat_map(|lane| lane.steps);
    match arguments {
        [] => all(),
        [name] => match steps().find(|step| step.name == *name) {
            Some(step) => one(step),
            None => {
                let names: Vec<&str> = steps().map(|step| step.name).collect();
                Err(format!("there is no step '{name}'; the steps are: {}", names.join(", ")))
            }
        },
        _ => Err("ci takes the name of a step, or nothing".into()),
    }
}

/// Runs the long step of that name, or all of them, one after the other.
pub(crate) fn run_long(arguments: &[&str]) -> Result<(), String> {
    let mut failed = Vec::new();
    let chosen: Vec<&Step> = match arguments {
        [] => LONG.iter().collect(),
        [name] => LONG.iter().filter(|step| step.name == *name).collect(),
        _ => return Err("long takes the name of a step, or nothing".into()),
    };
    if chosen.is_empty() {
        let names = LONG.each_ref().map(|step| step.name).join(", ");
        return Err(format!("there is no step of that name; the steps are: {names}"));
    }
    for step in chosen {
        println!("\n== {}", step.name);
        if one(step).is_err() {
            failed.push(step.name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Runs a step in this process. The last line that it prints is its count.
fn one(step: &Step) -> Result<(), String> {
    let count = (step.act)().unwrap_or_else(|problem| {
        println!("{problem}");
        Count { failed: 1, ..Count::default() }
    });
    if let Some(seconds) = processor_seconds() {
        println!("{seconds:.1}{PROCESSOR_SECONDS}");
    }
    println!("{count}");
    if count.failed == 0 { Ok(()) } else { Err(format!("{} failed", step.name)) }
}

/// End of the line in which a step reports its processor time.
const PROCESSOR_SECONDS: &str = " s of processors";

/// Returns the processor time of all descendants that were waited for.
fn processor_seconds() -> Option<f64> {
    // proc_pid_stat(5): fields 16 and 17, in hundredths of a second; the second field may have
    // spaces, and ends with a bracket.
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(13);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / 100.0)
}

fn all() -> Result<(), String> {
    let report = Report::default();
    thread::scope(|scope| {
        for lane in &LANES {
            scope.spawn(|| lane.steps.iter().for_each(|step| report.step(lane, step)));
        }
    });
    report.finish()
}

/// Results of all steps.
#[derive(Default)]
struct Report {
    over: Mutex<BTreeMap<&'static str, Outcome>>,
    changed: Condvar,
}

/// Result of a step.
struct Outcome {
    count: Count,
    time: Duration,
    /// Processor time of the step's processes; 0 if unknown.
    processor_seconds: f64,
}

impl Report {
    #[allow(clippy::disallowed_methods, reason = "the clock is for people")]
    fn step(&self, lane: &Lane, step: &Step) {
        if let Some(other) = step.after {
            let waits = |over: &mut BTreeMap<_, _>| !over.contains_key(other);
            drop(self.changed.wait_while(self.over(), waits));
        }
        if lane.is_shown_at_once {
            println!("\n== {}", step.name);
        }
        let started = Instant::now();
        let (count, processor_seconds, kept) = process(lane, step).unwrap_or_else(|error| {
            (Count { failed: 1, ..Count::default() }, 0.0, format!("{}: {error}\n", step.name))
        });
        let time = started.elapsed();
        let word = if count.failed == 0 { "ok" } else { "FAILED" };
        let head = if kept.is_empty() { "" } else { "\n== " };
        let name = if kept.is_empty() { "" } else { step.name };
        let text =
            format!("{head}{name}\n{kept}== {}: {word} in {:.1} s", step.name, time.as_secs_f64());
        println!("{text}");
        self.over().insert(step.name, Outcome { count, time, processor_seconds });
        self.changed.notify_all();
    }

    fn over(&self) -> MutexGuard<'_, BTreeMap<&'static str, Outcome>> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(self) -> Result<(), String> {
        let over = self.over.into_inner().unwrap_or_else(PoisonError::into_inner);
        println!("\n== all steps: time, time of processors");
        let (mut total, mut used, mut failed) = (Count::default(), 0.0, Vec::new());
        for step in LANES.iter().flat_map(|lane| lane.steps) {
            let Outcome { count, time, processor_seconds } = &over[step.name];
            let is_ok = count.failed == 0;
            let word = if is_ok { "ok" } else { "FAILED" };
            let seconds = time.as_secs_f64();
            println!("{seconds:>8.1} s{processor_seconds:>9.1} s  {word:<6}  {}", step.name);
            used += processor_seconds;
            if !is_ok {
                failed.push(step.name);
            }
            total.add(*count);
        }
        println!("{used:>19.1} s");
        println!("{total}");
        match &failed[..] {
            [] if total.total() == 0 => Err("no test ran".into()),
            [] => Ok(()),
            failed => Err(format!("failed: {}", failed.join(", "))),
        }
    }
}

/// How everything is built once: without what makes a second build quicker, which saves a third of
/// the time, and without line numbers in backtraces, which saves a sixth of the rest. Panics say
/// where they are anyway.
const BUILDS: [(&str, &str); 2] = [("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "0")];

/// Runs a step in a process; returns what it counted, the time of processors that it took, and what
/// it printed if that was not shown.
fn process(lane: &Lane, step: &Step) -> io::Result<(Count, f64, String)> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new("nice");
    command.arg(format!("-n{}", lane.niceness)).arg(std::env::current_exe()?);
    command.args(["ci", step.name]).stdin(Stdio::null());
    command.stdout(writer.try_clone()?).stderr(writer);
    command.envs(BUILDS.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
    let mut child = command.spawn()?;
    // It keeps write ends of the pipe open, so reading would never end.
    drop(command);
    let (mut kept, mut last, mut processor_seconds) = (String::new(), String::new(), 0.0);
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if lane.is_shown_at_once {
            println!("{line}");
        } else {
            kept.push_str(&line);
            kept.push('\n');
        }
        if Count::parse(&line).is_some() {
            last = line;
        } else if let Some(seconds) = line.strip_suffix(PROCESSOR_SECONDS) {
            processor_seconds = seconds.parse().unwrap_or_default();
        }
    }
    let status = child.wait()?;
    let mut count = Count::parse(&last).unwrap_or_default();
    if !status.success() {
        count.failed = count.failed.max(1);
    }
    io::stdout().flush()?;
    Ok((count, processor_seconds, kept))
}

const WARNINGS: [&str; 3] = ["--", "--deny", "warnings"];

fn format() -> Result<Count, String> {
    check(&mut cargo(["fmt", "--all", "--check"]))
}

/// The header of the C library, with the compiler's extensions and without, when the system's
/// headers declare less.
fn header() -> Result<Count, String> {
    let header = root().join("crates/capi/include/towpath.h");
    for [compiler, language, standard] in [
        ["cc", "c", "-std=gnu11"],
        ["cc", "c", "-std=c99"],
        ["cc", "c", "-std=c11"],
        ["cc", "c", "-std=c17"],
        ["c++", "c++", "-std=c++17"],
    ] {
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", standard]);
        check(command.args(["-x", language]).arg(&header))?;
    }
    Ok(Count::default())
}

fn clippy() -> Result<Count, String> {
    let all = ["clippy", "--workspace", "--all-targets", "--all-features", "--locked"];
    check(cargo(all).args(WARNINGS))?;
    // As most users build it: without features.
    let library = ["clippy", "--package", "towpath", "--lib", "--locked"];
    check(cargo(library).args(WARNINGS))
}

/// Builds each package to publish from the files that would be uploaded.
fn packages() -> Result<Count, String> {
    let mut package = cargo(["package", "--locked", "--allow-dirty"]);
    for name in ["packet", "net", "evpn", "io", "gateway", "cli", "capi", "preload"] {
        package.arg(format!("--package=towpath-{name}"));
    }
    check(package.arg("--package=towpath"))
}

fn build() -> Result<Count, String> {
    check(test_programs().arg("--no-run"))
}

/// Runs the test programs of these names one after the other. Each name exists in one package.
fn tests(programs: &[&str]) -> Result<Count, String> {
    let mut command = test_programs();
    for program in programs {
        command.args(["--test", program]);
    }
    count(command.args(["--", "--show-output"]))
}

/// Runs all other test programs, and the tests within libraries and commands.
fn other_tests() -> Result<Count, String> {
    let mut command = test_programs();
    command.args(["--lib", "--bins"]);
    let elsewhere = [&END_TO_END[..], &NETWORKS, &MACHINES].concat();
    for program in all_test_programs()?.iter().filter(|name| !elsewhere.contains(&&name[..])) {
        command.args(["--test", program]);
    }
    count(command.args(["--", "--show-output"]))
}

/// Runs the tests of a program whose names contain `filter`.
fn long(program: &str, filter: &str, environment: &[(&str, &str)]) -> Result<Count, String> {
    let mut command = all_tests();
    command.args(["--test", program, "--", "--show-output", filter]);
    count(command.envs(environment.iter().copied()))
}

/// Runs worlds until they had 10^8 packets, with the optimised code and all of its assertions.
fn packets() -> Result<Count, String> {
    let mut command = cargo(["test", "--profile", "fuzz", "--package", "towpath-sim", "--locked"]);
    command.args(["--test", "world", "--", "--show-output", "many_packets"]);
    count(command.env("TOWPATH_PACKETS", "100000000"))
}

/// Returns the names of the programs in the folders `tests` of the packages tested together.
fn all_test_programs() -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    let list = |folder: PathBuf| {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Ok::<_, String>(entries.flatten().map(|entry| entry.path()))
    };
    for package in list(root().join("crates"))? {
        let folder = package.join("tests");
        if !folder.is_dir() || package.ends_with("preload") {
            continue;
        }
        for path in list(folder)? {
            let is_program = match path.extension() {
                Some(extension) => extension == "rs",
                None => path.join("main.rs").is_file(),
            };
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if is_program && !names.insert(name.clone().into_owned()) {
                return Err(format!("two test programs are named {name}: rename one"));
            }
        }
    }
    Ok(names)
}

/// Runs the fuzz targets on stored and new inputs, or on the stored ones alone if there is no
/// fuzzing engine.
fn fuzzing() -> Result<Count, String> {
    match fuzz::unsupported() {
        None => fuzz::live(None, FUZZ_SECONDS, Some(fuzz::SEED_FIXED)),
        Some(reason) => {
            println!("no fuzzing engine: {reason}");
            count(&mut cargo(["test", "--release", "--locked", "--package", "towpath-fuzz"]))
        }
    }
}

fn loom() -> Result<Count, String> {
    let mut loom = cargo(["test", "--package", "towpath-packet", "--test", "loom"]);
    loom.args(["--profile", "guard", "--locked", "--target-dir"]).arg(target_folder("loom"));
    count(loom.env("RUSTFLAGS", "--cfg loom"))
}

/// Fixed seeds for tests that otherwise choose random ones, so that a change is judged by its own
/// effects. The environment overrides them.
const SEEDS: [(&str, &str); 2] = [("TOWPATH_FRESH_SEED", "99"), ("PROPTEST_RNG_SEED", "99")];

/// Returns the command that tests all packages with fixed seeds. The caller adds the selection.
fn test_programs() -> Command {
    let mut command = all_tests();
    let unset = SEEDS.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    command.envs(unset);
    command
}

/// Returns the command that tests all packages with all features, so that everything is built once.
/// The fuzz targets have their own step, and the preload library has one.
fn all_tests() -> Command {
    let mut tests = cargo(["test", "--workspace", "--all-features", "--locked"]);
    tests.args(["--exclude", "towpath-fuzz", "--exclude", PRELOAD, "--no-fail-fast"]);
    tests
}

/// Tests the preload library. It defines functions of the C library that the feature `packetdrill`
/// of the package below defines, too, so the two cannot be built together.
fn preload() -> Result<Count, String> {
    let mut tests = cargo(["test", "--package", PRELOAD, "--locked", "--no-fail-fast"]);
    count(tests.args(["--", "--show-output"]))
}

/// Runs a command that has no tests.
fn check(command: &mut Command) -> Result<Count, String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(Count::default()) } else { Err(format!("{command:?}: {status}")) }
}

/// Runs a command whose tests are counted.
fn count(command: &mut Command) -> Result<Count, String> {
    let spawned = command.stdout(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("{command:?}: {error}"))?;
    let stdout = child.stdout.take().expect("standard output is a pipe");
    let mut counter = Counter::new();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.map_err(|error| error.to_string())?;
        if let Some(shown) = counter.line(&String::from_utf8_lossy(&line)) {
            println!("{shown}");
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let mut count = counter.count();
    if !status.success() && count.failed == 0 {
        println!("{command:?}: {status}");
        count.failed = 1;
    }
    Ok(count)
}
