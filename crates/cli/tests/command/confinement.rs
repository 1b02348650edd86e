//! The confinement of a serving process, seen from outside.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::stats::Folder;
use super::support::*;

/// Number of SIGSYS, with which a seccomp filter ends a process.
const SIGSYS: i32 = 31;

/// Returns a field of /proc/PID/task/TID/status.
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in\n{status}")).trim().to_owned()
}

/// Returns the status of each thread.
fn threads(pid: i32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap()).collect()
}

fn namespace(pid: &str, kind: &str) -> String {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().to_string_lossy().into_owned()
}

/// Waits until the filter is in force, and checks the whole confinement.
fn assert_confined(pid: i32, threads_expected: usize) {
    wait_for("the filter", || {
        let all = threads(pid);
        all.len() == threads_expected && all.iter().all(|one| field(one, "Seccomp") == "2")
    });
    for status in threads(pid) {
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(&status, set), "0000000000000000", "{set} in\n{status}");
        }
        assert_eq!(field(&status, "NoNewPrivs"), "1");
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_ascii_whitespace().nth(4), Some("0"), "{core}");
    // Files of a process that is not dumpable belong to root, and it cannot be traced.
    assert_eq!(fs::read_dir(format!("/proc/{pid}/root/")).unwrap().count(), 0);
    for kind in ["mnt", "ipc", "uts", "user"] {
        assert_ne!(namespace(&pid.to_string(), kind), namespace("self", kind), "{kind}");
    }
    assert_eq!(namespace(&pid.to_string(), "net"), namespace("self", "net"));
    assert_descriptors(pid);
}

/// Asserts that a process only has sockets, pipes, event files, devices, and the test's standard
/// error.
fn assert_descriptors(pid: i32) {
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let path = entry.unwrap().path();
        let Ok(target) = fs::read_link(&path) else { continue };
        let target = target.to_string_lossy().into_owned();
        let number = path.file_name().unwrap().to_string_lossy().into_owned();
        let known = ["socket:", "pipe:", "anon_inode:", "/dev/net/tun", "/null", "leases.lock"];
        let is_known = known.iter().any(|known| target.contains(known));
        assert!(is_known || number == "2", "descriptor {number} is {target}");
    }
}

/// Adds two unneeded descriptors to `command`: a folder and a file.
fn with_inherited(command: &mut Command) -> (fs::File, fs::File) {
    let (folder, file) = (fs::File::open("/").unwrap(), fs::File::open("/etc/passwd").unwrap());
    for inherited in [&folder, &file] {
        rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::empty()).unwrap();
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    (folder, file)
}

#[test]
fn run_is_confined() {
    skip_if!(no_tap());
    let one = &["--workers", "1"][..];
    for (options, workers) in [(one, 1), (&["--workers", "3"], 3), (&[], auto_workers())] {
        let mut command = towpath(["run", "-t", "18080:80"]);
        command.args(options).args(["--", "sleep", "1000"]);
        let inherited = with_inherited(&mut command);
        let running = Guard(command.spawn().unwrap());
        let (init, program) = init_and_command(&running, "sleep");
        assert_confined(running.pid().as_raw_pid(), workers);
        // The program has the descriptors of its caller, as under env(1); process 1 does not.
        let folder = format!("fd/{}", inherited.0.as_raw_fd());
        assert!(fs::read_link(format!("/proc/{program}/{folder}")).is_ok_and(|to| to.is_dir()));
        // It closes them after it has started the program.
        wait_for("process 1 to close descriptors of its caller", || {
            fs::read_link(format!("/proc/{init}/{folder}")).is_err()
        });
    }
}

#[test]
fn attach_is_confined() {
    skip_if!(no_tap());
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "sleep", "1000"]);
    let inside = Guard(unshare.spawn().unwrap());
    wait_for("the namespace", || {
        namespace(&inside.pid().to_string(), "net") != namespace("self", "net")
    });
    let pid = inside.pid().to_string();
    for options in [&["--join-published"][..], &[]] {
        let mut command = towpath(["attach", "-t", "18081:80"]);
        command.args(options).arg(&pid);
        let _inherited = with_inherited(&mut command);
        let running = Guard(command.spawn().unwrap());
        assert_confined(running.pid().as_raw_pid(), auto_workers());
    }
}

/// Returns the number of workers of `auto`, the default.
fn auto_workers() -> usize {
    std::thread::available_parallelism().unwrap().get().min(2)
}

#[test]
fn up_is_confined() {
    let folder = Folder::new("confined");
    let path = |name: &str| format!("a={}", folder.0.join(name).display());
    let leases = folder.0.join("leases");
    let mut command = towpath(["up", "--vhost-user", &path("a"), "-t", "a=18082:80"]);
    command.arg("--lease-file").arg(&leases);
    let _inherited = with_inherited(&mut command);
    let running = Guard(command.spawn().unwrap());
    assert_confined(running.pid().as_raw_pid(), 2);
}

/// Goal: the state of confinement is reported, and its absence with a warning.
#[test]
fn the_state_is_reported() {
    skip_if!(no_tap());
    let folder = Folder::new("confinement");
    for (option, reported) in [(None, "privileges, namespaces"), (Some("--no-confinement"), "off")]
    {
        let mut command = towpath(["run", "-q"]);
        command.args(option).args(["--", "sleep", "1000"]).stderr(Stdio::piped());
        let running = Guard(command.env("XDG_RUNTIME_DIR", &folder.0).spawn().unwrap());
        init_and_command(&running, "sleep");
        let pid = running.pid().to_string();
        let mut stats = towpath(["stats", &pid, "--json"]);
        let stats = output(stats.env("XDG_RUNTIME_DIR", &folder.0));
        let object: serde_json::Value = serde_json::from_str(&text(&stats)).unwrap();
        let state = object["confinement"].as_str().unwrap();
        assert!(state.starts_with(reported), "{state}");
        running.signal(rustix::process::Signal::TERM);
        let errors = errors(&finish(running));
        assert_eq!(errors.contains("WARNING: --no-confinement"), option.is_some(), "{errors}");
    }
}

/// Goal: an attacker that controls the process can do none of these. Method: a debug build tries
/// them.
#[test]
fn attempts_of_a_process_that_was_taken_over_are_refused() {
    skip_if!(no_tap());
    let killing = [
        "execve",
        "execveat",
        "ptrace",
        "process_vm_readv",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "setns",
        "unshare",
        "bpf",
        "io_uring_setup",
        "perf_event_open",
        "keyctl",
        "init_module",
        "pidfd_open",
        "setuid",
        "raw socket",
        "packet socket",
        "netlink socket",
        "unix socket",
        "kill",
    ];
    let refused = [
        "open",
        "broker: port",
        "broker: connect",
        "broker: listen",
        "broker: tap",
        "broker: super-packets",
        "broker: leases",
        "broker: signal",
        "broker: namespace",
    ];
    let attempt = |name: &str| {
        let mut command = towpath(["run", "-4", "--", "true"]);
        output(command.env("TOWPATH_ATTEMPT", name))
    };
    for name in killing {
        let ended = attempt(name);
        let reported = errors(&ended);
        assert_eq!(ended.status.signal(), Some(SIGSYS), "{name}: {:?}, {reported}", ended.status);
    }
    for name in refused {
        let ended = attempt(name);
        assert!(errors(&ended).contains(&format!("{name}: refused")), "{}", errors(&ended));
        assert_eq!(ended.status.code(), Some(0));
    }
}
