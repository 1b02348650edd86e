//! Processes controlled by lines on their standard input, guests among them, and the network that
//! serves these guests.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use libtest_mimic::Failed;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::sys;

/// A process in one of the roles.
pub(super) struct Process {
    pub(super) child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(super) fn start(mut command: Command) -> Result<Self, Failed> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().expect("it is a pipe");
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        Ok(Self { child, input, output })
    }

    pub(super) fn tell(&mut self, line: &str) -> Result<(), Failed> {
        Ok(writeln!(self.input, "{line}")?)
    }

    /// Returns the number in the next line, which must begin with `word`.
    pub(super) fn expect(&mut self, word: &str) -> Result<u64, Failed> {
        Ok(self.expect_all(word)?.first().copied().unwrap_or(0))
    }

    /// Returns the numbers in the next line, which must begin with `word`.
    fn expect_all(&mut self, word: &str) -> Result<Vec<u64>, Failed> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some(word) {
            return Err(format!("expected {word:?}, was {line:?}").into());
        }
        Ok(words.map_while(|number| number.parse().ok()).collect())
    }

    pub(super) fn ask(&mut self, line: &str, word: &str) -> Result<u64, Failed> {
        self.tell(line)?;
        self.expect(word)
    }

    pub(super) fn ask_all(&mut self, line: &str, word: &str) -> Result<Vec<u64>, Failed> {
        self.tell(line)?;
        self.expect_all(word)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `towpath up`.
pub(super) struct Up(pub(super) Child);

impl Up {
    pub(super) fn start(mut command: Command) -> Result<Self, Failed> {
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take().expect("it is a pipe");
        let up = Self(child);
        let mut lines = BufReader::new(stderr).lines();
        let serves = lines.by_ref().map_while(Result::ok).any(|line| line.contains("serving"));
        assert!(serves, "towpath up serves");
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        Ok(up)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Starts a guest's kernel: a namespace at the end of a TAP device.
pub(super) fn guest(command: Command, device: &str, address: &str) -> Result<Process, Failed> {
    let mut guest = Process::start(command)?;
    guest.expect("namespace")?;
    ip(&format!("link set {device} netns {}", guest.child.id()))?;
    guest.tell(&format!("{device} {address}"))?;
    Ok(guest)
}

/// Turns this process into the kernel of a [`guest`]. Returns when it has its network.
pub(super) fn become_guest() {
    sys::enter_network().expect("a namespace");
    println!("namespace");
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("a line");
    let (device, address) = line.trim().split_once(' ').expect("two words");
    for command in [
        "link set lo up".to_owned(),
        format!("addr add {address}/24 dev {device}"),
        format!("link set {device} up"),
        "route add default via 10.0.2.2".to_owned(),
    ] {
        ip(&command).expect("it is done");
    }
}

/// Runs ip(8).
pub(super) fn ip(arguments: &str) -> Result<(), Failed> {
    let output = Command::new("ip").args(arguments.split(' ')).output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {error}").into()) }
}

/// Raises the soft limit of descriptors to the hard limit.
pub(super) fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let _ = setrlimit(Resource::Nofile, most);
}
