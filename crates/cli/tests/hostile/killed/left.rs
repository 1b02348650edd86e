//! What processes leave on their host: other processes, namespaces, interfaces, sockets, mounts and
//! files.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use super::{DEVICES, PATIENCE, TICK};

/// Kinds of namespaces.
const KINDS: [&str; 6] = ["net", "user", "mnt", "pid", "ipc", "uts"];
/// Socket tables of this thread's network namespace.
const TABLES: [&str; 8] = ["tcp", "tcp6", "udp", "udp6", "raw", "raw6", "icmp", "icmp6"];
/// State of a closed connection that the kernel remembers: TIME_WAIT.
const TIME_WAIT: &str = "06";

/// A process that carries a mark.
#[derive(Clone)]
pub(super) struct Marked {
    pub(super) pid: i32,
    pub(super) parent: i32,
    /// Names of its namespaces.
    pub(super) namespaces: Vec<String>,
    pub(super) program: PathBuf,
}

impl Marked {
    /// Returns all processes with `mark` in the environment, by number. A process that has ended
    /// has no environment.
    pub(super) fn all(mark: &str) -> Vec<Self> {
        let mut found: Vec<Self> =
            numbers().filter(|pid| is_marked(*pid, mark)).map(look).collect();
        found.sort_by_key(|process| process.pid);
        found
    }

    /// Returns its PID namespace.
    pub(super) fn pid_namespace(&self) -> Option<&String> {
        self.namespaces.iter().find(|name| name.starts_with("pid:"))
    }
}

/// Returns the numbers of all processes.
fn numbers() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Returns true if the process has `mark` in its environment, as its ancestors have.
pub(super) fn is_marked(pid: i32, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

fn look(pid: i32) -> Marked {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    Marked { pid, parent: parent.unwrap_or(0), namespaces: namespaces(&pid.to_string()), program }
}

/// Returns the namespaces of a process; of this thread for `thread-self`.
pub(super) fn namespaces(process: &str) -> Vec<String> {
    let name = |kind: &&str| fs::read_link(format!("/proc/{process}/ns/{kind}")).ok();
    let names = KINDS.iter().filter_map(name);
    names.map(|path| path.to_string_lossy().into_owned()).collect()
}

/// The state of the host before the test.
pub(super) struct Before {
    interfaces: BTreeSet<String>,
    sockets: Vec<String>,
    namespaces: Vec<String>,
}

impl Before {
    pub(super) fn look() -> Self {
        let mut own = namespaces("self");
        own.extend(namespaces("thread-self"));
        Self { interfaces: interfaces("thread-self"), sockets: sockets(), namespaces: own }
    }

    /// Waits until nothing is left of the processes with `mark` and of their `namespaces`, and the
    /// processes `guests` have no interfaces of theirs. Returns an error with what is left.
    pub(super) fn wait(
        &self,
        mark: &str,
        namespaces: &BTreeSet<String>,
        guests: &[i32],
    ) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let left = self.left(mark, namespaces, guests);
            let Some(what) = left else { return Ok(()) };
            if begun.elapsed() > PATIENCE {
                return Err(format!("left on the host: {what}"));
            }
            thread::sleep(TICK);
        }
    }

    fn left(&self, mark: &str, used: &BTreeSet<String>, guests: &[i32]) -> Option<String> {
        if let Some(process) = Marked::all(mark).first() {
            return Some(format!("process {}, {:?}", process.pid, process.program));
        }
        let is_theirs = |name: &String| used.contains(name) && !self.namespaces.contains(name);
        for pid in numbers() {
            if let Some(name) = namespaces(&pid.to_string()).into_iter().find(&is_theirs) {
                return Some(format!("namespace {name}, of process {pid}"));
            }
        }
        let interfaces = interfaces("thread-self");
        if interfaces != self.interfaces {
            return Some(format!("interfaces {interfaces:?}, not {:?}", self.interfaces));
        }
        if let Some(guest) = guests.iter().find(|guest| has_device(**guest)) {
            return Some(format!("the interface of the guest {guest}"));
        }
        let sockets = sockets();
        if sockets != self.sockets {
            return Some(format!("sockets {sockets:?}, not {:?}", self.sockets));
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mounts.contains(" towpath ").then(|| format!("a mount:\n{mounts}"))
    }
}

/// Returns the names of a process's interfaces.
fn interfaces(process: &str) -> BTreeSet<String> {
    let table = fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Returns true if a process has the interface of a port.
fn has_device(pid: i32) -> bool {
    let interfaces = interfaces(&pid.to_string());
    DEVICES.iter().any(|(device, _)| interfaces.contains(*device))
}

/// Returns the IP sockets of this thread's network: table, ends and state of each.
fn sockets() -> Vec<String> {
    let mut all = Vec::new();
    for table in TABLES {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_ascii_whitespace().take(4).collect();
            if let [_, local, remote, state] = words[..]
                && !(table.starts_with("tcp") && state == TIME_WAIT)
            {
                all.push(format!("{table} {local} {remote} {state}"));
            }
        }
    }
    all.sort();
    all
}

/// Returns the files in `folder` and in its folder of control sockets, except those named `but`.
pub(super) fn files(folder: &Path, sockets: &str, but: &[&str]) -> Vec<PathBuf> {
    let list = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let all = list(folder).chain(list(&folder.join(sockets)));
    let is_left = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_none_or(|name| name != sockets && !but.contains(&name))
    };
    all.map(|entry| entry.path()).filter(is_left).collect()
}

/// Returns true for a socket that refuses connections.
pub(super) fn is_stale(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}
