//! The examples work: in process for everybody, over TAP where namespaces can be made. They look
//! themselves whether the bytes are right.
//!
//! `cargo test` builds them beside this test; where only this test was built, it says so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::{Command, Stdio};

const TENSORS: [&str; 4] = ["--bytes=300000", "--tensors=2", "--clients=2", "--rounds=2"];
const FILES: [&str; 3] = ["--bytes=300000", "--clients=4", "--requests=5"];

/// Runs an example; returns the copies of a byte that it tells. `None` if it cannot run.
fn copies(name: &str, way: [&str; 2], arguments: &[&str]) -> Option<f64> {
    let mut program: PathBuf = std::env::current_exe().unwrap();
    program.pop();
    program.set_file_name("examples");
    let program = program.join(name);
    if !program.exists() {
        eprintln!("skipped: {} is not built", program.display());
        return None;
    }
    let mut command = Command::new(program);
    // Without a term, which a client on a busy machine may exceed.
    command.args(["--mode", way[0], "--over", way[1], "--term", "0"]);
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().unwrap();
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&errors));
    let (before, _) = text.split_once(" copies of a byte").unwrap_or_else(|| panic!("{text}"));
    Some(before.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Goal: with loans next to nothing is copied on the way; without, every byte twice, once by each
/// end.
#[test]
fn in_process() {
    for (name, arguments) in [("tensors", &TENSORS[..]), ("files", &FILES[..])] {
        let Some(copied) = copies(name, ["copy", "process"], arguments) else { return };
        assert!((1.9..2.3).contains(&copied), "{name}: {copied}");
        let lent = copies(name, ["lend", "process"], arguments).unwrap();
        assert!(lent < 0.2, "{name}: {lent}");
    }
}

/// Goal: over TAP the kernel takes lent bytes where they are.
#[test]
fn over_tap() {
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: this needs root and /dev/net/tun");
        return;
    }
    for (name, arguments) in [("tensors", &TENSORS[..]), ("files", &FILES[..])] {
        let Some(copied) = copies(name, ["copy", "tap"], arguments) else { return };
        assert!((0.9..1.2).contains(&copied), "{name}: {copied}");
        let lent = copies(name, ["lend", "tap"], arguments).unwrap();
        assert!(lent < 0.2, "{name}: {lent}");
    }
}

#[test]
fn wrong_arguments_are_told() {
    for name in ["tensors", "files"] {
        let mut program: PathBuf = std::env::current_exe().unwrap();
        program.pop();
        program.set_file_name("examples");
        let program = program.join(name);
        if !program.exists() {
            eprintln!("skipped: {} is not built", program.display());
            return;
        }
        let output = Command::new(program).arg("--mode=steal").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("steal") && errors.contains("lend"), "{errors}");
    }
}
