//! Runs every script of tests/scripts on this project's stack, in virtual time, as one test each.
//!
//! `cargo test -p towpath-sim --test scripts -- NAME` runs scripts whose name contains it. `--test
//! kernel` runs the same scripts on the kernel.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use towpath_sim::script::{Machine, Script, Tolerance};

fn run(path: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(path)?;
    let fail = |error: towpath_sim::script::Error| format!("{}:{error}", path.display());
    let script = Script::parse(&text).map_err(fail)?;
    let mut machine = Machine::new(script.v6);
    script.run(&mut machine, Tolerance::VIRTUAL).map_err(fail)?;
    Ok(())
}

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pkt"));
    files.sort();
    let trials = files.into_iter().map(|path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        Trial::test(name, move || run(&path))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
