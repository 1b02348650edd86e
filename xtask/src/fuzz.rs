//! Builds and runs the fuzz targets with the installed compiler, without further tools.
//!
//! Coverage comes from flags that the compiler keeps for nightly builds, hence `RUSTC_BOOTSTRAP`.
//! Not all distributions ship the runtime of the address sanitizer; without it the targets run
//! without the sanitizer. An input that makes a target fail is written to `fuzz/artifacts`. Once
//! the fault is fixed, it belongs into `fuzz/corpus/TARGET`.
//!
//! `cargo xtask fuzz` looks for new faults: its seeds are random, and inputs that a run finds stay
//! in the target folder for the next run. `cargo xtask ci` decides whether a change lands, so it
//! should depend on chance as little as possible: it starts from a fixed seed and the stored
//! corpus, and tries a bounded number of inputs. Address-space randomization still influences the
//! engine. `TOWPATH_FUZZ_SEED` overrides either: a number, or `random`.

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use crate::count::Count;
use crate::{cargo, root, target_folder};

/// Compiler flags beside the sanitizer's.
const FLAGS: &str = "--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Longest input: an input of several full frames.
const INPUT_BYTES_MAX: usize = 4096;
/// An input that takes this long hangs, even on a busy machine.
const HANG_SECONDS: u32 = 60;
const SECONDS_DEFAULT: u32 = 60;
/// Lines of a failed target's output that are shown.
const LINES_SHOWN: usize = 40;

/// Most inputs of a target from a fixed seed.
const RUNS_MAX: u32 = 200_000;
/// The seed of `cargo xtask ci`.
pub(crate) const SEED_FIXED: u32 = 1;
/// Names another seed.
const SEED_VARIABLE: &str = "TOWPATH_FUZZ_SEED";

/// `cargo xtask fuzz [TARGET] [SECONDS]`.
pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let (target, seconds) = match arguments {
        [] => (None, None),
        [one] if one.parse::<u32>().is_ok() => (None, Some(*one)),
        [target] => (Some(*target), None),
        [target, seconds, ..] => (Some(*target), Some(*seconds)),
    };
    let seconds = match seconds {
        Some(text) => text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?,
        None => SECONDS_DEFAULT,
    };
    let count = live(target, seconds, None)?;
    println!("{count}");
    if count.failed == 0 { Ok(()) } else { Err("a target failed".into()) }
}

/// Runs one target or all of them, from this seed or from a random one; one target per processor at
/// a time. Counts each target as a test.
pub(crate) fn live(only: Option<&str>, seconds: u32, seed: Option<u32>) -> Result<Count, String> {
    let seed = chosen_seed(seed)?;
    let targets: Vec<String> =
        targets()?.into_iter().filter(|name| only.is_none_or(|only| only == name)).collect();
    if targets.is_empty() {
        return Err(format!("there is no fuzz target '{}'", only.unwrap_or_default()));
    }
    if let Some(reason) = unsupported() {
        return Err(reason);
    }
    let programs = build()?;
    let (waiting, count) = (Mutex::new(targets.into_iter()), Mutex::new(Count::default()));
    let take_turns = || loop {
        let Some(name) = lock(&waiting).next() else { return };
        let outcome = fuzz(&programs, &name, seconds, seed);
        // Held while printing, so that lines stay together.
        let mut count = lock(&count);
        match outcome {
            Ok(line) => {
                println!("fuzz {name} ... ok: {line}");
                count.passed += 1;
            }
            Err(problem) => {
                println!("fuzz {name} ... FAILED\n{problem}");
                count.failed += 1;
            }
        }
    };
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        (0..processors).for_each(|_| drop(scope.spawn(take_turns)));
    });
    Ok(count.into_inner().expect("no thread panics"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics")
}

/// Each target has a corpus of its name; a test of the fuzz package checks that.
fn targets() -> Result<Vec<String>, String> {
    let folder = root().join("fuzz/corpus");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Returns why this machine cannot fuzz, if it cannot.
pub(crate) fn unsupported() -> Option<String> {
    let works = |program: &str| {
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    (!works(&compiler)).then(|| format!("no C++ compiler ({compiler}) for the fuzzing engine"))
}

/// Builds all targets; returns the folder of the programs.
fn build() -> Result<PathBuf, String> {
    let (host, sanitizer) = compiler()?;
    let mut flags = FLAGS.to_string();
    if sanitizer {
        flags.push_str(" -Zsanitizer=address");
    } else {
        println!("without address sanitizer: this compiler comes without its runtime");
    }
    let folder = target_folder("fuzz");
    let mut command = cargo(["build", "--profile", "fuzz", "--locked"]);
    command
        .args(["--package", "towpath-fuzz", "--bins", "--target", &host])
        .env("CARGO_TARGET_DIR", &folder)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags);
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if !status.success() {
        return Err(format!("building the fuzz targets: {status}"));
    }
    Ok(folder.join(host).join("fuzz"))
}

/// The compiler's host, and whether it has the address sanitizer's runtime.
pub(crate) fn compiler() -> Result<(String, bool), String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let ask = |arguments: &[&str]| {
        let output = Command::new(&rustc).args(arguments).current_dir(root()).output();
        let output = output.map_err(|error| format!("rustc: {error}"))?;
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let version = ask(&["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("rustc -vV names no host")?.to_string();
    let libraries = Path::new(&ask(&["--print", "sysroot"])?).join("lib/rustlib").join(&host);
    let entries = fs::read_dir(libraries.join("lib")).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok((host, names.any(|name| name.ends_with("_rt.asan.a"))))
}

/// Returns the seed from the environment, or `usual`; `None` is a random seed.
fn chosen_seed(usual: Option<u32>) -> Result<Option<u32>, String> {
    match std::env::var(SEED_VARIABLE).as_deref() {
        Err(_) => Ok(usual),
        Ok("random") => Ok(None),
        Ok(text) => text
            .parse()
            .map(Some)
            .map_err(|_| format!("{SEED_VARIABLE} is '{text}': it may be a number or 'random'")),
    }
}

/// Runs a target; returns the engine's last line.
fn fuzz(programs: &Path, name: &str, seconds: u32, seed: Option<u32>) -> Result<String, String> {
    let stored = root().join("fuzz/corpus").join(name);
    let kept = if seed.is_some() { "fixed" } else { "corpus" };
    let found = target_folder("fuzz").join(kept).join(name);
    let artifacts = root().join("fuzz/artifacts");
    if seed.is_some() && found.exists() {
        // Inputs that an earlier run found would change this run.
        fs::remove_dir_all(&found).map_err(|e| format!("{}: {e}", found.display()))?;
    }
    for folder in [&found, &artifacts] {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let output = Command::new(programs.join(name))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={HANG_SECONDS}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .args(seed.map(|seed| format!("-seed={seed}")))
        .args(seed.map(|_| format!("-runs={RUNS_MAX}")))
        // Both would let time and addresses choose the next input.
        .args(seed.iter().flat_map(|_| ["-entropic=0", "-reload=0"]))
        .arg(format!("-artifact_prefix={}/{name}-", artifacts.display()))
        // The targets check for leaks themselves; the leak checker needs extra privileges.
        .args(["-detect_leaks=0", "-rss_limit_mb=2048"])
        .args([&found, &stored])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", programs.join(name).display()))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().collect();
    if output.status.success() {
        return Ok(lines.last().copied().unwrap_or_default().to_string());
    }
    let start = lines.iter().position(|line| line.contains("panicked at") || is_report(line));
    let start = start.unwrap_or(lines.len().saturating_sub(LINES_SHOWN));
    let mut shown: Vec<&str> = lines[start..].iter().take(LINES_SHOWN).copied().collect();
    shown.extend(lines.iter().find(|line| line.contains("INFO: Seed:")));
    shown.extend(lines.iter().find(|line| line.contains("Test unit written to")));
    Err(shown.join("\n"))
}

fn is_report(line: &str) -> bool {
    line.starts_with("==") && line.contains("ERROR:")
}
