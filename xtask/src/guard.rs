//! Compares the cost of packets with stored figures: `cargo xtask bench-guard`.
//!
//! Nothing is timed. The benchmark does a kind of work N times and 2N times (`--harness`).
//! callgrind counts instructions and calls that allocate, strace counts system calls, and the
//! difference is the cost of N units of work. `xtask/figures.txt` stores the figures with the
//! compiler, processor and kernel that they depend on. On other ones, the limits are wider.
//!
//! Where one thread does everything without the kernel, callgrind also counts atomic
//! read-modify-writes. A packet of a network with more workers may not cost more than with two:
//! these figures are compared with each other, whatever the stored ones are.
//!
//! In gateway cases, the benchmark also acts as the program and as the peer. It reports the number
//! of their system calls, which are subtracted.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::count::Count;
use crate::{cargo, root, target_folder};

/// A kind of work.
struct Case {
    name: &'static str,
    /// The value of `--harness` without the number.
    work: &'static str,
    /// N, the number of units of the first run.
    count: u64,
    /// Number of rounds whose median counts, when figures are stored and when a first round seems
    /// worse. More than one if the kernel takes part, because it influences the instructions.
    rounds: usize,
    /// Over a TAP device, which needs root. Only system calls are counted, because valgrind does
    /// not support some of the calls that create network namespaces.
    is_over_tap: bool,
    /// Workers of the network that the packets pass; 0 without one. System calls are not counted.
    workers: usize,
}

impl Case {
    /// A case of towpath alone.
    const fn alone(name: &'static str, work: &'static str, count: u64) -> Self {
        Self { name, work, count, rounds: 1, is_over_tap: false, workers: 0 }
    }

    /// Packets of 64 bytes from guest to guest, each of which crosses to the next worker if there
    /// are several.
    const fn network(name: &'static str, work: &'static str, workers: usize) -> Self {
        Self { workers, ..Self::alone(name, work, NETWORK_PACKETS) }
    }

    /// A case with kernel sockets.
    const fn sockets(name: &'static str, work: &'static str, count: u64) -> Self {
        Self { rounds: ROUNDS_SWAYED, ..Self::alone(name, work, count) }
    }

    /// A case with kernel sockets on both sides.
    const fn tap(name: &'static str, work: &'static str, count: u64) -> Self {
        Self { is_over_tap: true, ..Self::sockets(name, work, count) }
    }
}

/// Rounds of cases in which the kernel takes part.
const ROUNDS_SWAYED: usize = 3;
/// Packets of a network: 16 bursts of each of eight guests.
const NETWORK_PACKETS: u64 = 4096;
/// Counts in this function of the benchmark only. Before it, the workers turn until all guests are
/// connected, which depends on time.
const WITHIN: &[&str] = &["--toggle-collect=*work::network::Rig::pass*"];

const CASES: [Case; 29] = [
    Case::alone("tcp_packet", "plain,1448", 2000),
    Case::alone("tcp_copied_64KiB", "copy,65536", 500),
    Case::alone("tcp_lent_4KiB", "lend,4096", 1000),
    Case::alone("tcp_lent_64KiB", "lend,65536", 500),
    Case::alone("vm_to_vm_64B", "vm_64B", 4096),
    Case::alone("vm_to_vm_64B_packed", "vm_64B_packed", 4096),
    Case::alone("vm_to_vm_segmented", "vm_to_vm_segmented", 200),
    Case::alone("vm_to_vm_64KiB", "vm_to_vm_whole", 500),
    Case::alone("stray_segment", "stray", 2000),
    Case::network("network_64B_1worker", "network_of_1", 1),
    Case::network("network_64B_2workers", "network_of_2", 2),
    Case::network("network_64B_4workers", "network_of_4", 4),
    Case::network("network_64B_8workers", "network_of_8", 8),
    Case::sockets("gateway_out_64KiB", "gateway_out", 2000),
    Case::sockets("gateway_in_64KiB", "gateway_in", 2000),
    Case::sockets("gateway_joined_64KiB", "gateway_joined", 2000),
    Case::sockets("gateway_request", "gateway_requests", 2000),
    Case::sockets("gateway_request_of_1000", "gateway_requests_of_1000", 2000),
    Case::sockets("gateway_connection", "gateway_connections", 2000),
    Case::sockets("gateway_out_datagrams", "gateway_datagrams_out", 200),
    Case::sockets("gateway_in_datagrams", "gateway_datagrams_in", 200),
    Case::tap("tap_out_64KiB", "tap_out", 1000),
    Case::tap("tap_out_64KiB_8flows", "tap_out_8flows", 1000),
    Case::tap("tap_in_64KiB", "tap_in", 1000),
    Case::tap("tap_in_64KiB_8flows", "tap_in_8flows", 1000),
    Case::alone("tcp_copied_512B", "copy,512", 2000),
    Case::alone("udp_datagram", "udp_copy,1472", 2000),
    Case::alone("udp_lent_4KiB", "udp_lend,4096", 2000),
    Case::alone("udp_lent_64KiB", "udp_lend,65536", 500),
];

/// The cost of one unit of work.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    instructions: f64,
    allocations: f64,
    system_calls: f64,
    /// Atomic read-modify-writes; 0 if the kernel takes part.
    atomics: f64,
}

/// Allowed growth of instructions, as a share: two processors differed by 1 %.
const INSTRUCTIONS_MORE: f64 = 0.06;
const INSTRUCTIONS_MORE_ELSEWHERE: f64 = 0.12;
/// Allowed growth of instructions if the kernel decides when it wakes a thread and which data
/// arrives together.
const INSTRUCTIONS_MORE_SWAYED: f64 = 0.25;
/// Allowed growth of system calls, on the kernel of the figures and on others, whose sockets may
/// buffer other amounts.
const SYSTEM_CALLS_MORE: f64 = 0.15;
const SYSTEM_CALLS_MORE_ELSEWHERE: f64 = 1.0;
/// Allowed growth of atomic read-modify-writes. The same code has the same number everywhere.
const ATOMICS_MORE: f64 = 0.06;
/// Allowed growth from two workers to more, of instructions and of atomic read-modify-writes. One
/// read-modify-write for each other worker and burst would be 40 % more with eight.
const MORE_WITH_WORKERS: f64 = 0.06;
/// A smaller number counts as none, for example from tables that grow once.
const NONE: f64 = 0.02;
/// A smaller number of instructions counts as none: a joined flow takes about a hundred per 64 KiB.
const INSTRUCTIONS_NONE: f64 = 100.0;

/// Compares, or with `--write` stores.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let write = match arguments {
        [] => false,
        ["--write"] => true,
        _ => return Err("bench-guard takes --write or nothing".into()),
    };
    build()?;
    if write {
        return store();
    }
    let count = compare()?;
    println!("{count}");
    match count.failed {
        0 => Ok(()),
        failed => Err(format!("{failed} figures are worse than those stored")),
    }
}

/// Builds the benchmark.
pub(crate) fn build() -> Result<(), String> {
    let mut build = cargo(["build", "--profile", "guard", "--package", "towpath-bench"]);
    let built = build.arg("--locked").status().map_err(|error| format!("{build:?}: {error}"))?;
    if built.success() { Ok(()) } else { Err(format!("{build:?}: {built}")) }
}

/// Compares the existing build with the stored figures. Each case counts as a test.
pub(crate) fn compare() -> Result<Count, String> {
    if let Some(missing) = missing() {
        println!("skipped: {missing} is not installed");
        return Ok(Count { skipped: CASES.len() as u64, ..Count::default() });
    }
    let path = figures_path();
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let stored = Stored::parse(&text)?;
    let here = Setting::here()?;
    let room = Room::of(&stored.setting, &here);
    if stored.setting != here {
        println!("the limits are wider, because the figures are of {}", stored.setting);
    }
    let mut count = Count::default();
    let mut with_two = None;
    let titles = ["instructions", "system calls", "atomics"];
    println!("{:<24}{}", "", titles.map(|title| format!("{title:>14}{:>9}", "")).concat());
    let has_tap = may_make_devices();
    for case in &CASES {
        if case.is_over_tap && !has_tap {
            println!("{:<24}skipped: without root there is no TAP device", case.name);
            count.skipped += 1;
            continue;
        }
        let (was, room) = (stored.of(case.name)?, room.for_case(case));
        let mut is = measure(case, 1)?;
        if case.rounds > 1 && !worse(is, was, &room).is_empty() {
            // The kernel may have caused it.
            is = measure(case, case.rounds)?;
        }
        println!(
            "{:<24}{:>14.0}{:>+8.1}%{:>14.3}{:>+8.1}%{:>14.3}{:>+8.1}%",
            case.name,
            is.instructions,
            more(is.instructions, was.instructions),
            is.system_calls,
            more(is.system_calls, was.system_calls),
            is.atomics,
            more(is.atomics, was.atomics),
        );
        let mut worse = worse(is, was, &room);
        match (case.workers, with_two) {
            (2, _) => with_two = Some(is),
            (3.., Some(two)) => worse.extend(worse_than_with_two(is, two)),
            _ => {}
        }
        for what in &worse {
            println!("{}: {what}", case.name);
        }
        if worse.is_empty() { count.passed += 1 } else { count.failed += 1 }
    }
    Ok(count)
}

/// Growth from `was` to `is`, in per cent; zero if `was` counts as none.
fn more(is: f64, was: f64) -> f64 {
    if was > NONE { 100.0 * (is / was - 1.0) } else { 0.0 }
}

/// True if TAP devices can be created, which needs root.
fn may_make_devices() -> bool {
    let user = Command::new("id").arg("-u").output();
    let is_root = user.is_ok_and(|user| user.stdout.trim_ascii() == b"0");
    is_root && Path::new("/dev/net/tun").exists()
}

/// As in the file of stored figures.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instructions, allocations, system_calls, atomics } = self;
        write!(f, "{instructions:.0} {allocations:.2} {system_calls:.3} {atomics:.3}")
    }
}

/// Allowed growth, as a share.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Room {
    /// `None` if there is nothing to compare with.
    instructions: Option<f64>,
    system_calls: f64,
}

impl Room {
    fn of(stored: &Setting, here: &Setting) -> Self {
        let instructions = if stored.processor == here.processor {
            INSTRUCTIONS_MORE
        } else {
            INSTRUCTIONS_MORE_ELSEWHERE
        };
        let same_kernel = stored.kernel == here.kernel;
        Self {
            instructions: (stored.compiler == here.compiler).then_some(instructions),
            system_calls: if same_kernel { SYSTEM_CALLS_MORE } else { SYSTEM_CALLS_MORE_ELSEWHERE },
        }
    }

    fn for_case(self, case: &Case) -> Self {
        let swayed = if case.rounds > 1 { INSTRUCTIONS_MORE_SWAYED } else { 0.0 };
        Self { instructions: self.instructions.map(|room| room.max(swayed)), ..self }
    }
}

/// Describes the figures that are worse than before.
fn worse(is: Figures, was: Figures, room: &Room) -> Vec<String> {
    let mut worse = Vec::new();
    let instructions_max = room
        .instructions
        .map_or(f64::INFINITY, |room| was.instructions * (1.0 + room) + INSTRUCTIONS_NONE);
    if is.instructions > instructions_max {
        worse.push(format!("{:.0} instructions, were {:.0}", is.instructions, was.instructions));
    }
    if is.system_calls > was.system_calls * (1.0 + room.system_calls) + NONE {
        worse.push(format!("{:.3} system calls, were {:.3}", is.system_calls, was.system_calls));
    }
    if is.allocations > was.allocations + NONE {
        worse.push(format!("{:.3} allocations, were {:.3}", is.allocations, was.allocations));
    }
    if is.atomics > was.atomics * (1.0 + ATOMICS_MORE) + NONE {
        worse.push(format!("{:.3} read-modify-writes, were {:.3}", is.atomics, was.atomics));
    }
    worse
}

/// Describes what a packet costs more with many workers than with two.
fn worse_than_with_two(is: Figures, two: Figures) -> Vec<String> {
    let mut worse = Vec::new();
    for (what, is, two) in [
        ("instructions", is.instructions, two.instructions),
        ("read-modify-writes", is.atomics, two.atomics),
    ] {
        if is > two * (1.0 + MORE_WITH_WORKERS) {
            worse.push(format!("{is:.3} {what}, and {two:.3} with two workers"));
        }
    }
    worse
}

fn store() -> Result<(), String> {
    if let Some(missing) = missing() {
        return Err(format!("{missing} is not installed"));
    }
    if !may_make_devices() {
        return Err("TAP devices need root: run this with sudo".into());
    }
    let mut text = format!("# {HEAD}\n{}\n", Setting::here()?);
    for case in &CASES {
        let line = format!("{} {}", case.name, measure(case, case.rounds)?);
        println!("{line}");
        writeln!(text, "{line}").expect("a string takes everything");
    }
    fs::write(figures_path(), text).map_err(|error| error.to_string())
}

const HEAD: &str = "What a piece of work costs: instructions, allocations, system calls, atomic \
                    read-modify-writes. Written by `cargo xtask bench-guard --write`.";

fn figures_path() -> PathBuf {
    root().join("xtask/figures.txt")
}

/// A counting program that is missing.
fn missing() -> Option<&'static str> {
    ["valgrind", "strace", "strip"].into_iter().find(|program| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        !command.status().is_ok_and(|status| status.success())
    })
}

/// The environment that figures depend on.
#[derive(Clone, Debug, Default, PartialEq)]
struct Setting {
    compiler: String,
    /// libc chooses its copy functions by the processor.
    processor: String,
    /// The first two numbers of its version.
    kernel: String,
}

impl Setting {
    fn here() -> Result<Self, String> {
        let output = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
            .arg("--version")
            .output()
            .map_err(|error| format!("rustc: {error}"))?;
        let compiler = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let mut fields = processor.lines().filter_map(|line| line.split_once(':'));
            fields.find(|field| field.0.trim() == name).map_or("", |field| field.1.trim())
        };
        let [name, family, model] = ["model name", "cpu family", "model"].map(field);
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let version: Vec<&str> = release.trim().splitn(3, '.').take(2).collect();
        let processor = format!("{name} {family}/{model}");
        Ok(Self { compiler, processor, kernel: version.join(".") })
    }

    /// Sets a field by its name; false if there is no such field.
    fn set(&mut self, name: &str, value: &str) -> bool {
        let field = match name {
            "compiler" => &mut self.compiler,
            "processor" => &mut self.processor,
            "kernel" => &mut self.kernel,
            _ => return false,
        };
        *field = value.into();
        true
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { compiler, processor, kernel } = self;
        write!(f, "compiler {compiler}\nprocessor {processor}\nkernel {kernel}")
    }
}

/// The stored figures.
struct Stored<'a> {
    setting: Setting,
    lines: Vec<(&'a str, Figures)>,
}

impl<'a> Stored<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let mut stored = Self { setting: Setting::default(), lines: Vec::new() };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let bad = || format!("xtask/figures.txt: cannot parse this line: {line}");
            let (name, rest) = line.split_once(' ').ok_or_else(bad)?;
            if stored.setting.set(name, rest) {
                continue;
            }
            let numbers: Result<Vec<f64>, _> = rest.split(' ').map(str::parse).collect();
            let &[instructions, allocations, system_calls, atomics] =
                &numbers.map_err(|_| bad())?[..]
            else {
                return Err(bad());
            };
            let figures = Figures { instructions, allocations, system_calls, atomics };
            stored.lines.push((name, figures));
        }
        Ok(stored)
    }

    fn of(&self, name: &str) -> Result<Figures, String> {
        let line = self.lines.iter().find(|line| line.0 == name);
        let none = || format!("xtask/figures.txt has no {name}: run bench-guard --write");
        line.map(|line| line.1).ok_or_else(none)
    }
}

/// Measures a case: the medians of `rounds` rounds.
fn measure(case: &Case, rounds: usize) -> Result<Figures, String> {
    let mut system_calls = 0.0;
    if case.workers == 0 {
        let all = (0..rounds).map(|_| each(case, system_calls_of));
        let mut all = all.collect::<Result<Vec<_>, _>>()?;
        all.sort_by(f64::total_cmp);
        system_calls = all[rounds / 2];
    }
    if case.is_over_tap {
        return Ok(Figures { instructions: 0.0, allocations: 0.0, system_calls, atomics: 0.0 });
    }
    let mut costs = (0..rounds).map(|_| cost(case)).collect::<Result<Vec<_>, _>>()?;
    costs.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let [instructions, atomics, allocations] = costs[rounds / 2];
    // The kernel decides how often a thread is woken.
    let atomics = if case.rounds > 1 { 0.0 } else { atomics };
    Ok(Figures { instructions, allocations, system_calls, atomics })
}

/// Instructions, read-modify-writes and allocations per unit of work.
fn cost(case: &Case) -> Result<[f64; 3], String> {
    let within = if case.workers > 0 { WITHIN } else { &[] };
    let (once, twice) = (costs_of(&work(case, 1), within)?, costs_of(&work(case, 2), within)?);
    Ok(std::array::from_fn(|at| piece(case, once[at], twice[at])))
}

/// The value of `--harness` for `times` N units of work.
fn work(case: &Case, times: u64) -> String {
    format!("{},{}", case.work, times * case.count)
}

/// Cost per unit, from the costs of N and 2N units.
fn piece(case: &Case, once: u64, twice: u64) -> f64 {
    twice.saturating_sub(once) as f64 / case.count as f64
}

/// The number that `count` finds, per unit of work.
fn each(case: &Case, count: fn(&str) -> Result<u64, String>) -> Result<f64, String> {
    Ok(piece(case, count(&work(case, 1))?, count(&work(case, 2))?))
}

/// Counts instructions, read-modify-writes and allocations of a run, with further options of
/// callgrind.
fn costs_of(work: &str, further: &[&str]) -> Result<[u64; 3], String> {
    let file = target_folder("guard.callgrind");
    let path = file.to_str().ok_or("the folder's name is no text")?;
    let out = format!("--callgrind-out-file={path}");
    let options = ["--tool=callgrind", "--collect-bus=yes", "--compress-strings=no", &out];
    let options = [&options, further].concat();
    let [instructions, atomics] = collected(&run_under("valgrind", &options, work)?)?;
    let profile = fs::read_to_string(&file).map_err(|error| format!("{path}: {error}"))?;
    let _ = fs::remove_file(&file);
    let allocations = allocations_in(&profile).ok_or_else(|| {
        format!(
            "callgrind saw no call of {} in `{work}`: does the binary link the C library \
             dynamically?",
            ALLOCATING.join(", ")
        )
    })?;
    Ok([instructions, atomics, allocations])
}

/// Reads instructions and read-modify-writes from callgrind's output: it prints `==7== Collected :
/// 1234567 89` in the order of its events, `Ir` and `Ge`. The latter are the instructions that lock
/// the bus: those with the prefix LOCK, and exchanges with memory. Fences do not count.
fn collected(log: &str) -> Result<[u64; 2], String> {
    let of = |title| log.lines().find_map(|line| Some(line.split_once(title)?.1.trim()));
    let none = || format!("no count in this output:\n{log}");
    if of("Events    :") != Some("Ir Ge") {
        return Err(none());
    }
    let counts = of("Collected :").ok_or_else(none)?.split_whitespace().map(str::parse);
    let counts = counts.collect::<Result<Vec<u64>, _>>().map_err(|_| none())?;
    counts.try_into().map_err(|_| none())
}

/// Number of allocating calls in a callgrind profile. A line `cfn=malloc` names a called function;
/// the next line that starts with `calls=` has the number of calls. `None` if there is no such
/// line: every program allocates, so in that case the names are wrong.
fn allocations_in(profile: &str) -> Option<u64> {
    let (mut sum, mut counts) = (None, false);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("cfn=") {
            counts = ALLOCATING.contains(&name);
        } else if let Some(calls) = line.strip_prefix("calls=").filter(|_| counts) {
            let calls = calls.split_whitespace().next();
            let calls = calls.and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0);
            sum = Some(sum.unwrap_or(0) + calls);
        }
    }
    sum
}

fn system_calls_of(work: &str) -> Result<u64, String> {
    let file = target_folder("guard.strace");
    let path = file.to_str().ok_or("the folder's name is no text")?;
    let said = run_under("strace", &["-f", "-c", "-o", path], work)?;
    let table = fs::read_to_string(&file).map_err(|error| format!("{path}: {error}"))?;
    let _ = fs::remove_file(&file);
    // The last line: share, seconds, microseconds per call, calls, errors if any, `total`.
    let all = number(&table, |line| {
        line.ends_with(" total").then(|| line.split_whitespace().nth(3)).flatten()
    })?;
    let own = said.lines().find_map(|line| line.strip_prefix(OWN_CALLS)?.parse().ok());
    Ok(all - own.unwrap_or(0))
}

/// The allocating functions of the C library.
const ALLOCATING: [&str; 6] =
    ["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign"];

/// Printed before the number of system calls that are not the gateway's.
const OWN_CALLS: &str = "system calls that are not the gateway's: ";

/// The number, with or without commas, that `find` returns from one of the lines.
fn number<'a>(text: &'a str, find: impl Fn(&'a str) -> Option<&'a str>) -> Result<u64, String> {
    let found = text.lines().find_map(|line| find(line)?.replace(',', "").trim().parse().ok());
    found.ok_or_else(|| format!("no count in this output:\n{text}"))
}

/// Runs work under a counting program; returns the output of both.
fn run_under(program: &str, options: &[&str], work: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(options).arg(binary()).args(["vm", "--harness", work]);
    // A repeated string instruction counts once per repetition, so libc must copy memory without
    // it.
    command.env("GLIBC_TUNABLES", TUNABLES).current_dir(root()).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let [said, log] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    let log = format!("{said}{log}");
    if output.status.success() { Ok(log) } else { Err(format!("{command:?}:\n{log}")) }
}

fn binary() -> PathBuf {
    target_folder("guard/towpath-bench")
}

const TUNABLES: &str = "glibc.cpu.x86_rep_movsb_threshold=1073741824:\
                        glibc.cpu.x86_rep_stosb_threshold=1073741824:\
                        glibc.cpu.x86_non_temporal_threshold=1073741824";

#[cfg(test)]
mod tests {
    use super::*;

    const WAS: Figures =
        Figures { instructions: 10_000.0, allocations: 0.0, system_calls: 2.0, atomics: 0.1 };

    #[test]
    fn only_regressions_are_reported() {
        let setting = Setting { compiler: "a".into(), ..Setting::default() };
        let other = Setting { compiler: "b".into(), kernel: "b".into(), ..Setting::default() };
        let (same, elsewhere) = (Room::of(&setting, &setting), Room::of(&setting, &other));
        assert!(worse(WAS, WAS, &same).is_empty());
        let better = Figures { instructions: 5000.0, system_calls: 1.0, ..WAS };
        assert!(worse(better, WAS, &same).is_empty());
        let slower = Figures { instructions: 10_710.0, ..WAS };
        assert_eq!(worse(slower, WAS, &same), ["10710 instructions, were 10000"]);
        assert!(worse(slower, WAS, &elsewhere).is_empty(), "of another compiler");
        let calling = Figures { system_calls: 2.4, allocations: 1.0, ..WAS };
        assert_eq!(worse(calling, WAS, &same).len(), 2);
        assert_eq!(worse(calling, WAS, &elsewhere).len(), 1, "of another kernel");
        let shared = Figures { atomics: 1.1, ..WAS };
        for room in [same, elsewhere] {
            assert_eq!(worse(shared, WAS, &room), ["1.100 read-modify-writes, were 0.100"]);
        }
    }

    #[test]
    fn more_workers_may_not_cost_more() {
        assert!(worse_than_with_two(WAS, WAS).is_empty());
        let more = Figures { instructions: 10_700.0, atomics: 0.107, ..WAS };
        let expected = [
            "10700.000 instructions, and 10000.000 with two workers",
            "0.107 read-modify-writes, and 0.100 with two workers",
        ];
        assert_eq!(worse_than_with_two(more, WAS), expected);
    }

    /// Goal: no case of more workers is without one of two to compare it with.
    #[test]
    fn networks_are_compared_with_two_workers() {
        let workers = CASES.iter().map(|case| case.workers).filter(|workers| *workers > 0);
        assert!(workers.eq([1, 2, 4, 8]));
    }

    #[test]
    fn counts_of_callgrind_are_read() {
        let log = "==7== Events    : Ir Ge\n==7== Collected : 1234567 89\n==7== \n";
        assert_eq!(collected(log), Ok([1_234_567, 89]));
        for log in ["==7== Collected : 1 2\n", "==7== Events    : Ir\n==7== Collected : 1\n"] {
            assert!(collected(log).is_err(), "{log}");
        }
    }

    #[test]
    fn calls_that_allocate_are_counted_in_profiles() {
        let profile = "fn=main\ncfn=malloc\ncalls=3 +5\n12 40\ncfi=a.c\ncfn=free\ncalls=7 0\n\
                       13 9\ncfn=realloc\ncalls=2 0\n14 6\nfn=malloc\ncfn=_int_malloc\ncalls=9 1\n";
        assert_eq!(allocations_in(profile), Some(5));
        assert_eq!(allocations_in("fn=main\ncfn=free\ncalls=7 0\n13 9\n"), None);
    }

    /// Goal: the guard can fail. Method: for each case, one call, one allocation, half of the
    /// instructions or of the read-modify-writes more than stored is reported.
    #[test]
    fn each_case_can_become_worse() {
        let text = fs::read_to_string(figures_path()).unwrap();
        let stored = Stored::parse(&text).unwrap();
        let room = Room::of(&stored.setting, &stored.setting);
        for case in &CASES {
            let (was, room) = (stored.of(case.name).unwrap(), room.for_case(case));
            assert!(worse(was, was, &room).is_empty(), "{}", case.name);
            // For a connection, one more call is a small share of its calls.
            let calls = (was.system_calls * 0.2).max(1.0);
            let counted = match case.rounds {
                _ if case.is_over_tap => 1,
                1 => 4,
                _ => 3,
            };
            for more in [
                Figures { system_calls: was.system_calls + calls, ..was },
                Figures { allocations: was.allocations + 1.0, ..was },
                Figures { instructions: was.instructions * 1.5 + INSTRUCTIONS_NONE, ..was },
                Figures { atomics: was.atomics * 1.5 + 0.1, ..was },
            ]
            .into_iter()
            .take(counted)
            {
                assert_eq!(worse(more, was, &room).len(), 1, "{}: {more:?}", case.name);
            }
        }
    }

    #[test]
    fn stored_figures_are_found() {
        let stored = Stored::parse("# words\ncompiler rustc 1.2\nvm 10 0.00 1.5 0.25\n").unwrap();
        assert_eq!(stored.setting.compiler, "rustc 1.2");
        let vm = Figures { instructions: 10.0, allocations: 0.0, system_calls: 1.5, atomics: 0.25 };
        assert_eq!(stored.of("vm"), Ok(vm));
        assert!(stored.of("vn").is_err());
        assert!(Stored::parse("vm 1 2 3").is_err() && Stored::parse("vm 1 2 3 x").is_err());
    }
}
