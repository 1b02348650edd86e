//! `towpath stats`: finding and querying instances, and removing what dead ones left.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use super::support::*;

/// A folder that is removed with the test.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    /// Makes a folder. Tests that run at the same time may use the same name.
    pub(super) fn new(name: &str) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(super) fn sockets(&self) -> PathBuf {
        self.0.join("towpath")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn stats(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = towpath(["stats"]);
    output(command.args(arguments).env("XDG_RUNTIME_DIR", folder))
}

pub(super) fn assert_fails(output: &Output, expected: &str) {
    assert_eq!(output.status.code(), Some(125), "{}", text(output));
    assert!(errors(output).contains(expected), "{}", errors(output));
}

#[test]
fn a_running_instance_reports_its_counters() {
    skip_if!(no_tap());
    let folder = Folder::new("stats");
    let mut command = towpath(["run", "-4", "--", "sleep", "1000"]);
    let running = Guard(command.env("XDG_RUNTIME_DIR", &folder.0).spawn().unwrap());
    init_and_command(&running, "sleep");
    let pid = running.pid().as_raw_pid().to_string();

    let one = stats(&folder.0, &[&pid, "--json"]);
    assert_eq!(one.status.code(), Some(0), "{}", errors(&one));
    let object: serde_json::Value = serde_json::from_str(&text(&one)).unwrap();
    assert_eq!(object["pid"].to_string(), pid);
    assert_eq!(object["command"], "run -4 -- sleep 1000");
    assert_eq!((&object["copied"]["recall"], &object["flows"]["tcp"]), (&0.into(), &0.into()));
    let lent = serde_json::json!({
        "bytes": 0, "loans": object["lent"]["loans"], "oldest_us": 0, "total": 0,
        "copied_after_all": 0, "hit_rate": 1.0, "recalled": 0
    });
    assert_eq!(object["lent"], lent);
    // At most those that are ready for the next read.
    assert!(object["lent"]["loans"].as_u64().is_some_and(|loans| loans < 20), "{object}");
    let joined = serde_json::json!({
        "flows": 0, "begun": 0, "refused": 0, "bytes_out": 0, "bytes_in": 0,
        "udp_flows": 0, "udp_begun": 0, "udp_refused": 0
    });
    assert_eq!(object["joined"], joined);
    assert!(text(&stats(&folder.0, &[&pid])).contains("copied.recall                0\n"));
    assert!(text(&stats(&folder.0, &[])).contains("  run -4 -- sleep 1000\n"));
    assert_eq!(text(&stats(&folder.0, &["--json"])).lines().count(), 1);
    let socket = control_socket(&folder, &pid);
    let socket_path = socket.to_str().unwrap();
    assert_eq!(stats(&folder.0, &["--socket", socket_path]).status.code(), Some(0));
    // The protocol is that of a network, without the parts that only a network has.
    let metrics = get(&socket, "/metrics");
    assert!(metrics.contains("towpath_flows{protocol=\"tcp\"} 0\n"), "{metrics}");
    assert!(metrics.contains("\ntowpath_lent_bytes 0\n"), "{metrics}");
    assert!(metrics.contains("\ntowpath_lent_oldest_seconds 0\n"), "{metrics}");
    assert!(metrics.contains("\ntowpath_recalled_packets_total 0\n"), "{metrics}");
    assert!(metrics.contains("towpath_joined_bytes_total{direction=\"out\"} 0\n"), "{metrics}");
    assert!(metrics.ends_with("# EOF\n") && !metrics.contains("towpath_port"), "{metrics}");
    assert!(get(&socket, "/v1/ports").starts_with("HTTP/1.1 404 "));
    let mut ls = towpath(["ls"]);
    let listed = output(ls.env("XDG_RUNTIME_DIR", &folder.0));
    assert_eq!(errors(&listed), "towpath: no network is running\n");
    for wrong in [&["ls"][..], &["port", "del", "a"], &["capture", "a", "-w", "/dev/null"]] {
        let mut command = towpath(wrong.iter().copied().chain(["--pid", &pid]));
        let refused = output(command.env("XDG_RUNTIME_DIR", &folder.0));
        assert_fails(&refused, "this towpath serves one program and is not a network");
    }

    // If it is killed, its broker removes the socket; if the broker is killed too, the next query
    // does.
    running.signal(Signal::KILL);
    drop(running);
    wait_for("its broker to remove the socket", || !socket.exists());
    drop(UnixListener::bind(&socket).unwrap());
    assert_fails(&stats(&folder.0, &[&pid]), &format!("no towpath of this user has PID {pid};"));
    assert!(!socket.exists());
    let none = stats(&folder.0, &[]);
    assert_eq!((none.status.code(), text(&none)), (Some(0), String::new()));
    assert_eq!(errors(&none), "towpath: no towpath is running\n");
}

/// Goal: instances with the same process number, each in a namespace of its own, are both found,
/// and the end of one leaves the other. Sockets of killed instances are removed when another
/// starts.
#[test]
fn names_of_control_sockets_do_not_collide() {
    skip_if!(no_tap());
    let folder = Folder::new("nested");
    let start = || {
        let mut outer = towpath(["run", "-q", "--"]);
        outer.args([TOWPATH, "run", "-q", "--", "sleep", "1000"]);
        Guard(outer.env("XDG_RUNTIME_DIR", &folder.0).spawn().unwrap())
    };
    let names = || {
        let names = fs::read_dir(folder.sockets()).into_iter().flatten();
        let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    };
    let first = start();
    wait_for("two instances", || names().len() == 2);
    let second = start();
    wait_for("four instances", || names().len() == 4);
    let all = stats(&folder.0, &[]);
    assert_eq!(text(&all).lines().count(), 1 + 4, "{}", text(&all));
    let inner = names().into_iter().filter(|name| name.starts_with("2.")).collect::<Vec<_>>();
    assert_eq!(inner.len(), 2, "{inner:?}");
    assert_fails(&stats(&folder.0, &["2"]), "several");
    let of_first = |name: &&String| {
        let socket = folder.sockets().join(name);
        let reported = stats(&folder.0, &["--socket", socket.to_str().unwrap(), "--json"]);
        text(&reported).contains("\"pid\":2,")
    };
    assert_eq!(inner.iter().filter(of_first).count(), 2, "both answer");
    first.signal(Signal::TERM);
    assert_eq!(finish(first).status.code(), Some(128 + 15));
    wait_for("two instances", || names().len() == 2);
    assert_eq!(text(&stats(&folder.0, &[])).lines().count(), 1 + 2);

    // When the outer one is killed, its broker removes its socket. The inner one leaves its own, as
    // its broker ends with it and its namespace.
    second.signal(Signal::KILL);
    drop(second);
    wait_for("their end", || {
        let left = names();
        let all = left.iter().map(|name| UnixStream::connect(folder.sockets().join(name)));
        all.filter(Result::is_ok).count() == 0
    });
    wait_for("the broker to remove its socket", || names().len() == 1);
    let mut next = towpath(["run", "-q", "--", "true"]);
    assert_eq!(output(next.env("XDG_RUNTIME_DIR", &folder.0)).status.code(), Some(0));
    assert_eq!(names(), Vec::<String>::new());
}

/// Goal: with several workers there are the sums and the counters of each; unsupported settings are
/// rejected. Bad input: invalid numbers of workers, too little memory for them.
#[test]
fn several_workers_tell_what_each_did() {
    for (wrong, expected) in [
        (["--workers", "0", "-4"].as_slice(), "--workers"),
        (&["--workers", "9"], "--workers"),
        (&["--workers", "two"], "--workers"),
        (&["--workers", "2", "--memory", "31M"], "for each worker"),
    ] {
        let refused = output(&mut towpath([&["run"], wrong, &["--", "true"]].concat()));
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
        assert!(errors(&refused).contains(expected), "{}", errors(&refused));
    }
    skip_if!(no_tap());
    let folder = Folder::new("workers");
    let mut command = towpath(["run", "-4", "--workers", "3", "--", "sleep", "1000"]);
    let running = Guard(command.env("XDG_RUNTIME_DIR", &folder.0).spawn().unwrap());
    init_and_command(&running, "sleep");
    let pid = running.pid().as_raw_pid().to_string();
    let one = stats(&folder.0, &[&pid, "--json"]);
    let object: serde_json::Value = serde_json::from_str(&text(&one)).unwrap();
    let workers = object["workers"].as_object().unwrap();
    assert_eq!(workers.keys().collect::<Vec<_>>(), ["0", "1", "2"]);
    let sum = |name: &str| workers.values().map(|one| one[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(object["bytes_out"], sum("bytes_out"));
    assert_eq!(workers["2"]["flows"]["tcp"], 0);
    let metrics = get(&control_socket(&folder, &pid), "/metrics");
    assert!(metrics.contains("towpath_worker_bytes_total{worker=\"2\",direction=\"in\"} 0\n"));
    assert!(metrics.contains("towpath_worker_handed_over_packets_total{worker=\"0\"} 0\n"));
}

/// Returns the control socket of a process.
fn control_socket(folder: &Folder, pid: &str) -> PathBuf {
    folder.sockets().join(format!("{pid}.control"))
}

/// Returns the answer to a request, including its headers.
fn get(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Goal: an instance whose flows have taken all descriptors still answers. Without a spare one it
/// continues to serve, does not spin, and answers again when there are some.
#[test]
fn an_instance_without_descriptors_still_answers() {
    skip_if!(no_tap());
    let folder = Folder::new("full");
    let mut command = towpath(["run", "-4", "--", "sleep", "1000"]);
    let running = Guard(command.env("XDG_RUNTIME_DIR", &folder.0).spawn().unwrap());
    let (_, program) = init_and_command(&running, "sleep");
    let pid = running.pid().as_raw_pid().to_string();
    wait_for("the socket", || control_socket(&folder, &pid).exists());
    assert_eq!(stats(&folder.0, &[&pid]).status.code(), Some(0), "it serves");

    limit_files(&running, free_descriptor(&pid));
    for _ in 0..3 {
        let one = stats(&folder.0, &[&pid]);
        assert_eq!(one.status.code(), Some(0), "{}", errors(&one));
    }
    limit_files(&running, 3);
    assert_fails(&stats(&folder.0, &[&pid]), "no answer from");
    limit_files(&running, 1000);
    wait_for("an answer", || stats(&folder.0, &[&pid]).status.code() == Some(0));

    kill_process(Pid::from_raw(program).unwrap(), Signal::TERM).unwrap();
    assert_eq!(finish(running).status.code(), Some(128 + 15));
}

/// Lowers the limit of a running process, if necessary below the number of its open files.
fn limit_files(process: &Guard, most: u64) {
    let limit = Rlimit { current: Some(most), ..getrlimit(Resource::Nofile) };
    prlimit(Some(process.pid()), Resource::Nofile, limit).unwrap();
}

/// Returns the lowest descriptor that a process does not use.
fn free_descriptor(pid: &str) -> u64 {
    let is_free = |number: &u64| !fs::exists(format!("/proc/{pid}/fd/{number}")).unwrap();
    (0..).find(is_free).unwrap()
}

#[test]
fn what_is_no_instance_is_an_error() {
    let folder = Folder::new("no-stats");
    assert_fails(&stats(&folder.0, &["7"]), "no towpath of this user has PID 7;");
    assert_fails(
        &stats(&folder.0, &["--socket", "/no/such"]),
        "cannot connect to the control socket /no/such",
    );
    assert_eq!(stats(&folder.0, &["0"]).status.code(), Some(2));
    assert_eq!(stats(&folder.0, &["7", "--socket", "x"]).status.code(), Some(2));

    fs::create_dir(folder.sockets()).unwrap();
    fs::set_permissions(folder.sockets(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_fails(&stats(&folder.0, &["7"]), "must be a directory that belongs to this user");
    assert_fails(&stats(&folder.0, &[]), "must be a directory that belongs to this user");
    fs::set_permissions(folder.sockets(), fs::Permissions::from_mode(0o700)).unwrap();

    let no_json = "HTTP/1.1 200 OK\r\n\r\n{\"pid\": 7, \"comm";
    for answer in ["", "{}", "HTTP/1.1 200 OK\r\n", no_json] {
        let path = control_socket(&folder, "7");
        let listener = UnixListener::bind(&path).unwrap();
        let answering = std::thread::spawn(move || {
            // The first connection only checks whether a process listens.
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            // The whole request is read, lest the close becomes a reset.
            let _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        assert_fails(&stats(&folder.0, &["7"]), "is not a control socket of towpath");
        answering.join().unwrap();
        fs::remove_file(path).unwrap();
    }

    fs::remove_dir(folder.sockets()).unwrap();
    symlink("/", folder.sockets()).unwrap();
    assert_fails(&stats(&folder.0, &[]), "must be a directory that belongs to this user");
}
