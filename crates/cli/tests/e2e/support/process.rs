//! Processes that a test starts: limited in time, collected, and killed when dropped.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::{PATIENCE, find_program, now, retry};

/// How long to wait for the last output of a process that has ended.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Leaders of the running process groups.
static STARTED: Mutex<Vec<i32>> = Mutex::new(Vec::new());

fn started() -> MutexGuard<'static, Vec<i32>> {
    STARTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Kills the processes that tests have started and not waited for.
pub(crate) fn kill_started() {
    for pid in started().iter() {
        let _ = kill_process_group(pid_of(*pid), Signal::KILL);
    }
}

fn pid_of(pid: i32) -> Pid {
    Pid::from_raw(pid).expect("a process")
}

/// Returns a command; its program may also be in a directory for administrators.
pub(crate) fn command<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = Command::new(find_program(program).unwrap_or_else(|| program.into()));
    command.args(arguments);
    command
}

/// Runs a set-up command of the test to its end, which must be a success.
pub(crate) fn run<A: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = A>,
) -> String {
    Process::start(command(program, arguments)).finish().success()
}

/// How a process ended, and its output.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Returns the standard output; asserts success.
    pub(crate) fn success(self) -> String {
        assert!(self.status.success(), "{}\n{}\n{}", self.status, self.stdout, self.stderr);
        self.stdout
    }
}

type Collected = Arc<Mutex<Vec<u8>>>;

/// A running process, the leader of its own group. Dropping it kills the group.
pub(crate) struct Process {
    child: Child,
    name: String,
    stdout: Collected,
    stderr: Collected,
    collectors: Vec<JoinHandle<()>>,
    status: Option<ExitStatus>,
}

impl Process {
    pub(crate) fn start(command: Command) -> Self {
        Self::spawn(command, Stdio::null())
    }

    /// Starts a command whose standard input stays open until [`Process::release`].
    pub(crate) fn start_held(command: Command) -> Self {
        Self::spawn(command, Stdio::piped())
    }

    fn spawn(command: Command, stdin: Stdio) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut mortal = mortal(&command);
        mortal.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = mortal.spawn().unwrap_or_else(|error| panic!("start {name}: {error}"));
        started().push(child.id().cast_signed());
        let (stdout, stderr) = (Collected::default(), Collected::default());
        let collectors = vec![
            collect(child.stdout.take().expect("piped"), &stdout),
            collect(child.stderr.take().expect("piped"), &stderr),
        ];
        Self { child, name, stdout, stderr, collectors, status: None }
    }

    /// Closes its standard input.
    pub(crate) fn release(&mut self) {
        drop(self.child.stdin.take());
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        assert!(self.status.is_none(), "the process has not been waited for");
        kill_process(pid_of(self.pid()), signal).expect("signal");
    }

    pub(crate) fn stdout(&self) -> String {
        text(&self.stdout)
    }

    pub(crate) fn stderr(&self) -> String {
        text(&self.stderr)
    }

    /// Waits until the process has written `wanted` to either stream.
    pub(crate) fn wait_for_text(&mut self, wanted: &str) {
        let name = self.name.clone();
        retry(&format!("{name} to write '{wanted}'"), || {
            let is_there = self.stdout().contains(wanted) || self.stderr().contains(wanted);
            if !is_there && self.poll().is_some() {
                panic!("{name} ended: {}\n{}", self.stdout(), self.stderr());
            }
            is_there.then_some(())
        });
    }

    /// Returns its status if it has ended.
    pub(crate) fn poll(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("wait");
            if self.status.is_some() {
                let pid = self.pid();
                started().retain(|started| *started != pid);
            }
        }
        self.status
    }

    /// Waits for its end within the test's own limit.
    pub(crate) fn finish(mut self) -> Output {
        let status = loop {
            if let Some(status) = self.poll() {
                break status;
            }
            thread::sleep(Duration::from_millis(2));
        };
        // A process that it has started may hold the streams open.
        let begun = now();
        while !self.collectors.iter().all(JoinHandle::is_finished) {
            if begun.elapsed() > LAST_WORDS {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        Output { status, stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.poll().is_none() {
            let _ = kill_process_group(pid_of(self.pid()), Signal::KILL);
            let _ = self.child.wait();
            let pid = self.pid();
            started().retain(|started| *started != pid);
        }
    }
}

/// Returns the command as one that ends with the test's thread, also when the whole test is killed.
fn mortal(command: &Command) -> Command {
    let mut mortal = Command::new("setpriv");
    mortal.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => mortal.env(name, value),
            None => mortal.env_remove(name),
        };
    }
    mortal
}

fn collect(mut stream: impl Read + Send + 'static, into: &Collected) -> JoinHandle<()> {
    let into = into.clone();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            let mut into = into.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            into.extend_from_slice(&buffer[..count]);
        }
    })
}

fn text(collected: &Collected) -> String {
    let bytes = collected.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the resident memory of a process in KiB; 0 if the process has ended.
pub(crate) fn resident_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let Some(line) = status.lines().find(|line| line.starts_with("VmRSS:")) else { return 0 };
    let number = line.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok());
    number.expect("a number")
}

/// Returns the number of open descriptors of a process.
pub(crate) fn descriptors(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc").count()
}

/// Asserts that a process comes to rest: that within some period of `time` it uses at most
/// `ticks_max` clock ticks. Its remaining work may take long on a busy machine.
pub(crate) fn assert_rests(pid: i32, time: Duration, ticks_max: u64) {
    let begun = now();
    loop {
        let before = ticks(pid);
        thread::sleep(time);
        let used = ticks(pid) - before;
        if used <= ticks_max {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{used} ticks in {time:?}");
    }
}

/// Returns the clock ticks that a process has used.
fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let (_, behind_name) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = behind_name.split_ascii_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}
