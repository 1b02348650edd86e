//! Values beyond a limit are rejected with the limit and advice, before anything is made.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use rustix::process::Signal;

use super::control::assert_done;
use super::stats::Folder;
use super::support::*;

/// Goal: `--check` and `up` agree on how many ports a network may have. Method: files with the
/// greatest number of ports, and with one more.
#[test]
fn as_many_ports_as_checked_can_be_served() {
    const PORTS_MAX: usize = 127;
    let folder = Folder::new("ports-max");
    for count in [PORTS_MAX, PORTS_MAX + 1] {
        let mut file = String::new();
        for port in 0..count {
            let path = folder.0.join(format!("{port}.sock"));
            let at = path.display();
            writeln!(file, "[[port]]\nname = 'p{port}'\nstream = '{at}'").unwrap();
        }
        let path = folder.0.join("net.toml");
        fs::write(&path, file).unwrap();
        let path = path.to_str().unwrap();
        let checked = output(&mut towpath(["up", "--check", path]));
        if count > PORTS_MAX {
            let reported = errors(&checked);
            assert_eq!(checked.status.code(), Some(2), "{reported}");
            assert!(reported.contains("the network already has 127 ports"), "{reported}");
            assert!(
                reported.contains("net.toml:382:"),
                "the first port beyond the limit: {reported}"
            );
            continue;
        }
        assert_done(&checked);
        let mut command = towpath(["up", "-q", path]);
        let mut running = Guard(command.env("XDG_RUNTIME_DIR", &folder.0).spawn().unwrap());
        let socket = folder.sockets().join(format!("{}.control", running.0.id()));
        wait_for("the network", || {
            assert!(running.0.try_wait().unwrap().is_none(), "it serves");
            socket.exists()
        });
        running.signal(Signal::TERM);
        assert_eq!(finish(running).status.code(), Some(0));
    }
}

/// Goal: memory that the system cannot provide is an error with a reason. Method: ask for more than
/// any machine has, and limit the process.
#[test]
fn missing_memory_is_reported() {
    skip_if!(no_tap());
    let huge = output(&mut towpath(["run", "--memory", "99999999G", "--", "true"]));
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 200000; exec \"$0\" run -- true", TOWPATH]);
    let mut network = towpath(["up", "--memory", "99999999G", "--stream", "a=/nowhere/x"]);
    for (output, size) in
        [(huge, "99999999 GiB"), (output(&mut limited), "256 MiB"), (output(&mut network), "GiB")]
    {
        let reported = errors(&output);
        assert_eq!(output.status.code(), Some(125), "{reported}");
        assert!(reported.contains(size) && reported.contains("--memory"), "{reported}");
        assert_eq!(reported.lines().count(), 1, "{reported}");
    }
}

/// Goal: a network without ports and a missing resolver are reported.
#[test]
fn options_of_little_use_are_reported() {
    let folder = Folder::new("notices");
    let mut command = towpath(["up"]);
    command.env("XDG_RUNTIME_DIR", &folder.0).stderr(std::process::Stdio::piped());
    let running = Guard(command.spawn().unwrap());
    let socket = folder.sockets().join(format!("{}.control", running.0.id()));
    wait_for("the network", || socket.exists());
    running.signal(Signal::TERM);
    let reported = errors(&finish(running));
    assert!(reported.contains("has no ports; add one with `towpath port add`"), "{reported}");

    skip_if!(no_root());
    // A resolv.conf without name servers, in a mount namespace of its own.
    let script = "echo search example.org >\"$1\"; mount --bind \"$1\" /etc/resolv.conf || exit 9
                  exec \"$0\" run -- true";
    let mut command = Command::new("unshare");
    let empty = folder.0.join("resolv.conf");
    command.args(["--mount", "sh", "-c", script, TOWPATH, empty.to_str().unwrap()]);
    let output = output(&mut command);
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{reported}");
    assert!(reported.contains(NO_RESOLVER), "{reported}");
    assert!(reported.contains("--dns"), "{reported}");
}
