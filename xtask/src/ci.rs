//! Everything that must hold before a change lands, in one run.
//!
//! All steps run, also after one failed. The last line counts the tests of all test programs; a
//! failed step without a failed test counts as one.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::count::{Count, Counter};
use crate::{fuzz, guard, packetdrill, root, target_folder, tidy};

/// How long each fuzz target runs.
const FUZZ_SECONDS: u32 = 15;

pub(crate) fn run() -> Result<(), String> {
    let mut report = Report::default();
    let warnings = ["--", "--deny", "warnings"];
    report.step("format", || check(&mut cargo(["fmt", "--all", "--check"])));
    report.step("format of fuzz", || check(&mut in_fuzz(["fmt", "--check"])));
    report.step("clippy", || {
        let mut clippy = cargo(["clippy", "--workspace", "--all-targets", "--all-features"]);
        check(clippy.arg("--locked").args(warnings))
    });
    report.step("clippy of the library alone", || {
        let library = ["clippy", "--package", "towpath", "--lib", "--no-default-features"];
        check(cargo(library).arg("--locked").args(warnings))
    });
    report.step("clippy of fuzz", || {
        check(in_fuzz(["clippy", "--all-targets", "--locked"]).args(warnings))
    });
    report.step("tidy", || tidy::run().map(|()| Count::default()));
    report.step("documentation", || {
        let mut doc = cargo(["doc", "--workspace", "--no-deps", "--locked"]);
        check(doc.env("RUSTDOCFLAGS", "--deny warnings"))
    });
    report.step("header of the C library", || {
        let header = root().join("crates/capi/include/towpath.h");
        // With the compiler's extensions and without, when the system's headers declare less.
        for [compiler, language, standard] in [
            ["cc", "c", "-std=gnu11"],
            ["cc", "c", "-std=c11"],
            ["cc", "c", "-std=c17"],
            ["c++", "c++", "-std=c++17"],
        ] {
            let mut command = Command::new(compiler);
            command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", standard]);
            check(command.args(["-x", language]).arg(&header))?;
        }
        Ok(Count::default())
    });
    report.step("release build", || {
        check(&mut cargo(["build", "--release", "--package", "towpath", "--locked"]))
    });
    report.step("guard", guard::compare);
    tests(&mut report);
    report.step("packetdrill's scripts of lending", packetdrill::lending);
    report.step("loom", || {
        let mut loom = cargo(["test", "--package", "towpath-packet", "--test", "loom"]);
        loom.args(["--release", "--locked", "--target-dir"]).arg(target_folder("loom"));
        count(loom.env("RUSTFLAGS", "--cfg loom"))
    });
    report.step("fuzz corpora", || count(&mut in_fuzz(["test", "--release", "--locked"])));
    report.step("fuzz", || fuzz::live(None, FUZZ_SECONDS, Some(fuzz::SEED_FIXED)));
    report.finish()
}

/// Seeds of what would take other ones in each run: a change is judged by what it changes. Who
/// sets a variable has his own seed.
const SEEDS: [(&str, &str); 2] = [("TOWPATH_FRESH_SEED", "99"), ("PROPTEST_RNG_SEED", "99")];

/// All tests of all packages, with all features, so that everything is built once. Test programs
/// run one after the other, as several measure time.
fn tests(report: &mut Report) {
    let all = ["test", "--workspace", "--all-features", "--locked", "--no-fail-fast"];
    report.step("build of tests", || check(cargo(all).arg("--no-run")));
    report.step("tests", || count(cargo(all).args(["--", "--show-output"])));
}

/// What each step came to.
#[derive(Default)]
struct Report {
    count: Count,
    failed: Vec<String>,
    times: Vec<(String, Duration)>,
}

impl Report {
    #[allow(clippy::disallowed_methods, reason = "the clock is for people")]
    fn step(&mut self, name: &str, act: impl FnOnce() -> Result<Count, String>) {
        println!("\n== {name}");
        let started = Instant::now();
        let outcome = act();
        let time = started.elapsed();
        let (word, count) = match outcome {
            Ok(count) if count.failed == 0 => ("ok", count),
            Ok(count) => ("FAILED", count),
            Err(problem) => {
                println!("{problem}");
                ("FAILED", Count { failed: 1, ..Count::default() })
            }
        };
        println!("== {name}: {word} in {:.1} s", time.as_secs_f64());
        if word != "ok" {
            self.failed.push(name.into());
        }
        self.count.add(count);
        self.times.push((name.into(), time));
    }

    fn finish(self) -> Result<(), String> {
        println!("\n== all steps");
        for (name, time) in &self.times {
            let word = if self.failed.contains(name) { "FAILED" } else { "ok" };
            println!("{:>8.1} s  {word:<6}  {name}", time.as_secs_f64());
        }
        let nothing_ran = self.count.total() == 0;
        println!("{}", self.count);
        match &self.failed[..] {
            [] if nothing_ran => Err("no test ran".into()),
            [] => Ok(()),
            failed => Err(format!("failed: {}", failed.join(", "))),
        }
    }
}

/// `cargo` at the root of the repository.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

/// `cargo` in the workspace of the fuzz targets.
fn in_fuzz<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = cargo(arguments);
    command.current_dir(root().join("fuzz")).env("CARGO_TARGET_DIR", target_folder("fuzz"));
    command
}

/// Runs a command that has no tests.
fn check(command: &mut Command) -> Result<Count, String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(Count::default()) } else { Err(format!("{command:?}: {status}")) }
}

/// Runs a command whose tests are counted.
fn count(command: &mut Command) -> Result<Count, String> {
    let unset = SEEDS.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    command.envs(unset);
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
