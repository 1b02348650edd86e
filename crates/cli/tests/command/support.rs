//! Shared code of the command's tests: bounded waiting, and inspection of processes from outside.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for anything; everything here takes milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(5);

/// The command under test.
pub(super) const TOWPATH: &str = env!("CARGO_BIN_EXE_towpath");

/// Returns `towpath` with arguments.
pub(super) fn towpath<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(TOWPATH);
    command.args(arguments);
    command
}

/// Returns `towpath run -- sh -c SCRIPT`, with the signals of [`with_default_signals`].
pub(super) fn run_script(script: &str) -> Command {
    let mut command = with_default_signals(TOWPATH);
    command.args(["run", "--", "sh", "-c", script]);
    command
}

/// Returns `program` with no signal ignored. Tests in the background of a shell or under nohup(1)
/// have SIGINT, SIGQUIT or SIGHUP ignored, and a shell that they start cannot trap an ignored
/// signal.
pub(super) fn with_default_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}

/// Runs the command to its end.
pub(super) fn output(command: &mut Command) -> Output {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    finish(Guard(spawned.spawn().expect("start")))
}

/// Waits for the end; returns the output.
pub(super) fn finish(mut child: Guard) -> Output {
    let read = |stream: Option<Box<dyn Read + Send>>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                stream.read_to_end(&mut bytes).expect("read");
            }
            bytes
        })
    };
    let stdout = read(child.0.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = read(child.0.stderr.take().map(|stream| Box::new(stream) as _));
    let mut status = None;
    wait_for("the end of the command", || {
        status = child.0.try_wait().expect("wait");
        status.is_some()
    });
    let status = status.expect("waited for");
    Output { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Returns the standard output, which must be text.
pub(super) fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Returns the standard error, without messages that depend on the machine: that it was too busy to
/// prove offloads in time, and that it has no resolvers.
pub(super) fn errors(output: &Output) -> String {
    let of_machine = ["towpath: offload: ", NO_RESOLVER];
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.split_inclusive('\n');
    lines.filter(|line| !of_machine.iter().any(|start| line.starts_with(start))).collect()
}

/// The message on a host without resolvers.
pub(super) const NO_RESOLVER: &str = "towpath: /etc/resolv.conf lists no resolver";

/// A started process that is killed if the test forgets it or fails.
pub(super) struct Guard(pub(super) Child);

impl Guard {
    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().try_into().unwrap()).unwrap()
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("signal");
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "the bound of a storm depends on how long it lasts")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Waits until `done`; fails the test if that takes too long.
pub(super) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let mut waited = Duration::ZERO;
    while !done() {
        assert!(waited < PATIENCE, "waited too long for {what}");
        thread::sleep(STEP);
        waited += STEP;
    }
}

/// Repeats `bind` until the port is free. A program that another test is starting keeps a copy of
/// each descriptor of this process until its exec(2): also of a socket on the same port that was
/// closed a moment ago.
pub(super) fn once_free<T>(mut bind: impl FnMut() -> io::Result<T>) -> T {
    let mut bound = None;
    wait_for("a free port", || match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => false,
        result => {
            bound = Some(result.unwrap());
            true
        }
    });
    bound.unwrap()
}

/// Returns the numbers of all processes.
pub(super) fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the processes whose network namespace is `namespace`.
pub(super) fn processes_in(namespace: &str) -> Vec<i32> {
    let is_in = |pid: &i32| network_namespace(*pid).as_deref() == Some(namespace);
    processes().into_iter().filter(is_in).collect()
}

/// Returns the name of a process's network namespace.
pub(super) fn network_namespace(pid: i32) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
    Some(link.to_str()?.into())
}

/// Returns the children of a process, oldest first.
pub(super) fn children(pid: i32) -> Vec<i32> {
    let mut children: Vec<i32> =
        processes().into_iter().filter(|child| parent(*child) == Some(pid)).collect();
    children.sort_unstable();
    children
}

/// Returns process 1 inside and CMD of a running towpath, once CMD is there and named `name`.
pub(super) fn init_and_command(towpath: &Guard, name: &str) -> (i32, i32) {
    init_and_command_of(towpath.pid().as_raw_pid(), name)
}

/// Returns process 1 inside and CMD of the towpath with this process number.
pub(super) fn init_and_command_of(towpath: i32, name: &str) -> (i32, i32) {
    let mut found = None;
    wait_for("CMD to start", || {
        let init = children(towpath).first().copied();
        let command = init.and_then(|init| children(init).first().copied());
        found = init.zip(command).filter(|(_, command)| process_name(*command) == name);
        found.is_some()
    });
    found.unwrap()
}

/// Returns the first child of a process, once it is named `name`: a shell's child is its own job
/// then.
pub(super) fn wait_for_child(parent: i32, name: &str) -> i32 {
    let mut found = None;
    wait_for(name, || {
        found = children(parent).first().copied().filter(|child| process_name(*child) == name);
        found.is_some()
    });
    found.unwrap()
}

fn process_name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().into()
}

/// Returns the state letter of a process, as in ps.
pub(super) fn state(pid: i32) -> Option<char> {
    stat_field(pid, 0)?.chars().next()
}

/// Returns the address space that a process uses, in KiB.
pub(super) fn size_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn parent(pid: i32) -> Option<i32> {
    stat_field(pid, 1)?.parse().ok()
}

/// Returns a field of /proc/PID/stat after the name.
fn stat_field(pid: i32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(field).map(Into::into)
}

/// Asserts that nothing of a namespace is left: no process, and on the host no new interface and no
/// mount of towpath.
pub(super) fn assert_nothing_left(namespace: &str) {
    wait_for("all processes inside to end", || processes_in(namespace).is_empty());
    assert!(!fs::exists("/sys/class/net/tap0").unwrap(), "an interface is left on the host");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(" towpath "), "a mount is left on the host:\n{mounts}");
}

/// Returns why tests that need a TAP device cannot run, if they cannot.
pub(super) fn no_tap() -> Option<&'static str> {
    let uid = rustix::process::geteuid();
    if !fs::exists("/dev/net/tun").unwrap_or(false) {
        return Some("/dev/net/tun is missing");
    }
    let open = fs::File::options().read(true).write(true).open("/dev/net/tun");
    match open {
        Err(_) if uid.is_root() => Some("/dev/net/tun cannot be opened"),
        Err(_) => Some("/dev/net/tun is not for ordinary users here"),
        Ok(_) => None,
    }
}

/// Returns why tests that need root cannot run, if they cannot.
pub(super) fn no_root() -> Option<&'static str> {
    if rustix::process::geteuid().is_root() { no_tap() } else { Some("this needs root") }
}

/// Ends the test with a message if `$reason` has a reason.
macro_rules! skip_if {
    ($reason:expr) => {
        if let Some(reason) = $reason {
            eprintln!("skipped: {reason}");
            return;
        }
    };
}

pub(super) use skip_if;

/// A copy of the command that every user can execute.
pub(super) struct PublicCopy(PathBuf);

impl PublicCopy {
    pub(super) fn new(name: &str) -> Self {
        let directory = format!("/tmp/towpath-test-{}-{name}", std::process::id());
        fs::create_dir_all(&directory).expect("directory");
        let copy = PublicCopy(PathBuf::from(directory));
        fs::copy(TOWPATH, copy.0.join("towpath")).expect("copy");
        copy
    }

    pub(super) fn path(&self) -> String {
        self.0.join("towpath").to_str().unwrap().into()
    }
}

impl Drop for PublicCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a shell script that runs as root in its own mount namespace, where all users may open
/// /dev/net/tun; `$USER_RUN COMMAND` in it runs a command as user 1000.
pub(super) fn as_user(script: &str) -> Command {
    let prepare = "set -e; mount -t tmpfs -o mode=0755 none /dev/net; mknod -m 0666 /dev/net/tun c \
                   10 200; USER_RUN='setpriv --reuid 1000 --regid 1000 --clear-groups --'";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg(format!("{prepare}; set +e; {script}"));
    command
}
