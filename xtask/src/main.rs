//! Developer commands of this repository: `cargo xtask`.
//!
//! This program has no dependencies, so it builds quickly. Every command prints its progress and
//! exits with a status that tells success from failure.
#![forbid(unsafe_code)]

mod api;
mod ci;
mod count;
mod fuzz;
mod guard;
mod man;
mod packetdrill;
mod papers;
mod rfc;
mod scribble;
mod source;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const HELP: &str = "\
cargo xtask COMMAND
  ci [STEP]                run all checks and tests, or one step; the last line counts the tests
  api [--write]            compare the public items of `towpath` with the stored list, or store it
  tidy                     run checks beyond compiler and clippy: order, limits, links, words
  bench-guard [--write]    compare instructions, allocations and system calls of packets with the
                           stored figures, or store them
  fuzz [TARGET] [SECONDS]  run one fuzz target, or all of them; 60 seconds each by default
  long [STEP]              run tests that take hours: end-to-end tests, floods, seeds, fuzzing
  man                      write docs/man/towpath*.1
  packetdrill DIR [...]    run packetdrill's scripts in DIR, the folder gtests/net of its repository
  papers                   repeat what published documents measured, and print their figures beside
                           towpath's
  rfc                      list the RFC sections that code cites, and whether tests cite them
  scribble [SECONDS]       run a front end that writes arbitrary data to shared memory, with the
                           address sanitizer; 60 seconds by default";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["ci", ref rest @ ..] => ci::run(rest),
        ["api", ref rest @ ..] => api::run(rest),
        ["tidy"] => tidy::run(),
        ["bench-guard", ref rest @ ..] => guard::run(rest),
        ["fuzz", ref rest @ ..] if rest.len() <= 2 => fuzz::run(rest),
        ["long", ref rest @ ..] => ci::run_long(rest),
        ["man"] => man::write(),
        ["packetdrill", ref rest @ ..] => packetdrill::run(rest),
        ["papers"] => papers::run(),
        ["rfc"] => rfc::run(),
        ["scribble", ref rest @ ..] if rest.len() <= 1 => scribble::run(rest),
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Root directory of the repository.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package is in a folder of the repository").to_path_buf()
}

/// Directory for builds with other flags, separate from ordinary builds.
fn target_folder(name: &str) -> PathBuf {
    let base = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    base.unwrap_or_else(|| root().join("target")).join(name)
}

/// A `cargo` command at the root of the repository.
fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}
