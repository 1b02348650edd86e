//! Everything that must hold before a change lands, in one run.
//!
//! All steps run, also after one failed. The last line counts the tests of all test programs; a
//! failed step without a failed test counts as one.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
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
        check(cargo(["clippy", "--workspace", "--all-targets", "--locked"]).args(warnings))
    });
    for package in ["towpath", "towpath-capi"] {
        report.step(&format!("clippy of {package} with all features"), || {
            let mut clippy = cargo(["clippy", "--package", package, "--all-targets"]);
            check(clippy.args(["--all-features", "--locked"]).args(warnings))
        });
    }
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

/// Tests of all packages; the test programs of `towpath`, which take longest, one by one.
fn tests(report: &mut Report) {
    let all = ["--locked", "--no-fail-fast", "--", "--show-output"];
    report.step("tests of packages", || {
        count(cargo(["test", "--workspace", "--exclude", "towpath"]).args(all))
    });
    let towpath = ["test", "--package", "towpath", "--all-features"];
    report.step("tests of towpath", || {
        count(cargo(towpath).args(["--lib", "--bins", "--examples"]).args(all))
    });
    // Tests start them as programs. With targets named, `cargo test` builds their unit tests only.
    report.step("examples of towpath", || {
        let mut build = cargo(["build", "--package", "towpath", "--all-features", "--examples"]);
        check(build.arg("--locked"))
    });
    report.step("documentation tests of towpath", || count(cargo(towpath).arg("--doc").args(all)));
    report.step("tests of the C library with all features", || {
        let library = ["test", "--package", "towpath-capi", "--all-features", "--lib"];
        count(cargo(library).args(all))
    });
    for name in test_programs(&root().join("crates/towpath/tests")) {
        report.step(&format!("tests of towpath: {name}"), || {
            count(cargo(towpath).args(["--test", &name]).args(all))
        });
    }
}

/// Names of the test programs in a `tests` folder.
fn test_programs(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_program = path.join("main.rs").exists() || path.extension() == Some("rs".as_ref());
        if let Some(stem) = path.file_stem().filter(|_| is_program) {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    names
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
