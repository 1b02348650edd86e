//! The examples work: in process for everybody, over TAP where namespaces can be made. They look
//! themselves whether the bytes are right.
//!
//! `cargo test` builds them beside this test; where only this test was built, it says so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const TENSORS: [&str; 4] = ["--bytes=300000", "--tensors=2", "--clients=2", "--rounds=2"];
const FILES: [&str; 3] = ["--bytes=300000", "--clients=4", "--requests=5"];

/// An example to be run; `None` if it is not built.
fn example(name: &str) -> Option<Command> {
    let mut program: PathBuf = std::env::current_exe().unwrap();
    program.pop();
    program.set_file_name("examples");
    let program = program.join(name);
    if !program.exists() {
        eprintln!("skipped: {} is not built", program.display());
        return None;
    }
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    Some(command)
}

/// What an example that succeeds prints.
fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Whether there can be a TAP device.
fn has_tap() -> bool {
    let has = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
    if !has {
        eprintln!("skipped: this needs root and /dev/net/tun");
    }
    has
}

/// Runs an example; returns the copies of a byte that it tells. `None` if it cannot run.
fn copies(name: &str, way: [&str; 2], arguments: &[&str]) -> Option<f64> {
    let mut command = example(name)?;
    // Without a term, which a client on a busy machine may exceed.
    command.args(["--mode", way[0], "--over", way[1], "--term", "0"]);
    let text = output(command.args(arguments));
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
    if !has_tap() {
        return;
    }
    for (name, arguments) in [("tensors", &TENSORS[..]), ("files", &FILES[..])] {
        let Some(copied) = copies(name, ["copy", "tap"], arguments) else { return };
        assert!((0.9..1.2).contains(&copied), "{name}: {copied}");
        let lent = copies(name, ["lend", "tap"], arguments).unwrap();
        assert!(lent < 0.2, "{name}: {lent}");
    }
}

/// Goal: hyper serves its clients on a host as on any stream, small bodies and large ones.
#[test]
fn hyper_in_process() {
    for bytes in ["0", "1", "3000000"] {
        let Some(mut command) = example("hyper") else { return };
        let text = output(command.args(["--clients=3", "--requests=4", "--bytes", bytes]));
        let total = 12 * bytes.parse::<u64>().unwrap();
        assert_eq!(text, format!("{total} bytes in answers, all right\n"));
    }
}

/// Goal: a client that knows nothing of towpath gets from it what it has sent, and is told what is
/// not there.
#[test]
fn hyper_over_tap() {
    if !has_tap() || example("hyper").is_none() {
        return;
    }
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: there is no curl");
        return;
    }
    let fetched = |arguments: &[&str]| {
        output(example("hyper").unwrap().args(["--", "curl", "-s", "-m60"]).args(arguments))
    };
    assert_eq!(fetched(&["http://10.7.0.1/"]), "hyper on towpath\n");
    let sent = "towpath ".repeat(10_000);
    assert_eq!(fetched(&["--data-binary", &sent, "http://10.7.0.1/echo"]), sent);
    assert_eq!(fetched(&["-w", "%{http_code}", "http://10.7.0.1/other"]), "404");
}

#[test]
fn wrong_arguments_are_told() {
    for name in ["tensors", "files"] {
        let Some(mut command) = example(name) else { return };
        let output = command.arg("--mode=steal").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("steal") && errors.contains("lend"), "{errors}");
    }
}
