//! Runs the examples: in process everywhere, over TAP where namespaces can be created. The examples
//! check the transferred bytes themselves.
//!
//! `cargo test` builds them beside this test; if only this test was built, it reports that.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const TENSORS: [&str; 4] = ["--bytes=300000", "--tensors=2", "--clients=2", "--rounds=2"];
/// More than any example takes, so that a hanging test ends.
const PATIENCE: Duration = Duration::from_secs(120);
const FILES: [&str; 3] = ["--bytes=300000", "--clients=4", "--requests=5"];

/// Returns the command of an example; `None` if it is not built.
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

/// Runs an example and returns its output. An example that hangs is killed, together with its
/// namespace.
fn ended(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    let (reported, told_here) = mpsc::channel();
    let waiting = thread::spawn(move || reported.send(child.wait_with_output()));
    let Ok(output) = told_here.recv_timeout(PATIENCE) else {
        kill_process(pid, Signal::KILL).unwrap();
        let _ = waiting.join();
        panic!("{command:?} hangs");
    };
    output.unwrap()
}

/// Runs an example that must succeed, and returns what it prints.
fn output(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = ended(command);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// Runs an example that must fail with the exit code of errors, and returns its error output.
fn failure(command: &mut Command) -> String {
    let Output { status, stderr, .. } = ended(command);
    assert_eq!(status.code(), Some(1));
    String::from_utf8(stderr).unwrap()
}

/// Returns true if TAP devices can be created.
fn has_tap() -> bool {
    let has = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
    if !has {
        eprintln!("skipped: this needs root and /dev/net/tun");
    }
    has
}

/// Returns true if an example is built and curl can reach it over a TAP device.
fn has_curl(name: &str) -> bool {
    if !has_tap() || example(name).is_none() {
        return false;
    }
    let has = Command::new("curl").arg("--version").output().is_ok();
    if !has {
        eprintln!("skipped: there is no curl");
    }
    has
}

/// Runs curl beside an example and returns what curl prints.
fn fetched(name: &str, arguments: &[&str]) -> String {
    output(example(name).unwrap().args(["--", "curl", "-s", "-m60"]).args(arguments))
}

/// Runs an example and returns the copies per byte that it reports. Returns `None` if it cannot
/// run.
fn copies(name: &str, way: [&str; 2], arguments: &[&str]) -> Option<f64> {
    let mut command = example(name)?;
    // Without a term, which a client on a busy machine may exceed.
    command.args(["--mode", way[0], "--over", way[1], "--term", "0"]);
    let text = output(command.args(arguments));
    let (before, _) = text.split_once(" copies of a byte").unwrap_or_else(|| panic!("{text}"));
    Some(before.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Goal: with loans almost nothing is copied on the way; without them, every byte is copied twice,
/// once at each end.
#[test]
fn in_process() {
    for (name, arguments) in [("tensors", &TENSORS[..]), ("files", &FILES[..])] {
        let Some(copied) = copies(name, ["copy", "process"], arguments) else { return };
        assert!((1.9..2.3).contains(&copied), "{name}: {copied}");
        let lent = copies(name, ["lend", "process"], arguments).unwrap();
        assert!(lent < 0.2, "{name}: {lent}");
    }
}

/// Goal: over TAP the kernel reads lent bytes in place.
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

/// Goal: hyper serves clients on a host as on any stream, with small and large bodies.
#[test]
fn hyper_in_process() {
    for bytes in ["0", "1", "3000000"] {
        let Some(mut command) = example("hyper") else { return };
        let text = output(command.args(["--clients=3", "--requests=4", "--bytes", bytes]));
        let total = 12 * bytes.parse::<u64>().unwrap();
        assert_eq!(text, format!("{total} bytes in answers, all right\n"));
    }
}

/// Goal: a client that does not depend on towpath gets back what it has sent, and a 404 for other
/// paths.
#[test]
fn hyper_over_tap() {
    if !has_curl("hyper") {
        return;
    }
    assert_eq!(fetched("hyper", &["http://10.7.0.1/"]), "hyper on towpath\n");
    let sent = "towpath ".repeat(10_000);
    assert_eq!(fetched("hyper", &["--data-binary", &sent, "http://10.7.0.1/echo"]), sent);
    assert_eq!(fetched("hyper", &["-w", "%{http_code}", "http://10.7.0.1/other"]), "404");
}

/// Goal: servers of axum and tonic, TLS, and clients of hyper-util work between two hosts.
#[test]
fn adaptors_in_process() {
    let bytes = |number| format!("{number} bytes in answers, all right\n");
    for (name, arguments, expected) in [
        ("axum", ["--requests=6", "--bytes=300000"], bytes(1_800_000)),
        ("axum", ["--requests=2", "--bytes=0"], bytes(0)),
        ("tonic", ["--calls=3", "--bytes=300000"], bytes(1_800_000)),
        ("tonic", ["--calls=1", "--bytes=1"], bytes(2)),
        ("rustls", ["--requests=3", "--bytes=300000"], "900000 bytes by TLS, all right\n".into()),
        ("hyper_client", ["--requests=3", "--path=/bytes/7"], "21 bytes in answers\n".into()),
    ] {
        let Some(mut command) = example(name) else { continue };
        assert_eq!(output(command.args(arguments)), expected, "{name}");
    }
}

/// Goal: curl gets back from a server of axum what it has sent, its own address, and errors for bad
/// requests.
#[test]
fn axum_over_tap() {
    if !has_curl("axum") {
        return;
    }
    assert_eq!(fetched("axum", &["http://10.7.0.1/"]), "axum on towpath\n");
    assert_eq!(fetched("axum", &["http://10.7.0.1/peer"]), "10.7.0.2\n");
    let sent = "towpath ".repeat(10_000);
    assert_eq!(fetched("axum", &["--data-binary", &sent, "http://10.7.0.1/echo"]), sent);
    let code = fetched("axum", &["-o/dev/null", "-w%{http_code}", "http://10.7.0.1/bytes/-1"]);
    assert_eq!(code, "400");
}

/// Goal: curl speaks TLS with a host, and rejects an untrusted certificate.
#[test]
fn rustls_over_tap() {
    if !has_curl("rustls") {
        return;
    }
    assert_eq!(fetched("rustls", &["-k", "https://10.7.0.1/"]), "rustls on towpath\n");
    let sent = "towpath ".repeat(10_000);
    let echo = ["-k", "--data-binary", &sent, "https://10.7.0.1/echo"];
    assert_eq!(fetched("rustls", &echo), sent);
    let mut distrusting = example("rustls").unwrap();
    let reported = failure(distrusting.args(["--", "curl", "-s", "-m60", "https://10.7.0.1/"]));
    assert!(reported.contains("curl: exit status: 60"), "{reported}");
}

/// Goal: tonic's own client, on kernel sockets, gets whole and streamed answers.
#[test]
fn tonic_over_tap() {
    let (true, Some(client)) = (has_tap(), example("tonic")) else { return };
    let client = client.get_program();
    let mut server = example("tonic").unwrap();
    server.arg("--").arg(client).args(["--connect=http://10.7.0.1:50051", "--calls=2"]);
    assert_eq!(output(server.arg("--bytes=100000")), "400000 bytes in answers, all right\n");
}

/// Goal: a server on kernel sockets answers a client of a host, and the client reports failures.
#[test]
fn hyper_client_over_tap() {
    let (true, Some(server)) = (has_tap(), example("hyper_client")) else { return };
    let ask = |path: &str| {
        let mut client = example("hyper_client").unwrap();
        client.arg(path).arg("--").arg(server.get_program()).arg("--serve");
        client
    };
    assert_eq!(output(&mut ask("--path=/bytes/100000")), "1600000 bytes in answers\n");
    let reported = failure(&mut ask("--path=/other"));
    assert!(reported.contains("http://server.test/other: 404"), "{reported}");
    let reported = failure(&mut ask("--name=other.test"));
    assert!(reported.contains("cannot connect to other.test, port 80"), "{reported}");
}

/// Goal: a client program that is missing or fails makes the example fail with an error message.
#[test]
fn failures_are_reported() {
    let (true, Some(_)) = (has_tap(), example("axum")) else { return };
    let beside = |program| failure(example("axum").unwrap().args(["--", program]));
    let reported = beside("/nowhere/client");
    assert!(reported.contains("cannot run /nowhere/client: No such file"), "{reported}");
    let reported = beside("false");
    assert!(reported.contains("false: exit status: 1"), "{reported}");
}

#[test]
fn wrong_arguments_are_reported() {
    for name in ["tensors", "files"] {
        let Some(mut command) = example(name) else { return };
        let output = command.arg("--mode=steal").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("steal") && errors.contains("lend"), "{errors}");
    }
}
