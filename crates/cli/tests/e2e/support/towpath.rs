//! The command under test.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use super::{Host, Output, Process, descriptors, retry};

/// The command under test.
pub(crate) const TOWPATH: &str = env!("CARGO_BIN_EXE_towpath");

/// No options.
pub(crate) const NONE: [&str; 0] = [];

/// The MTU of the current test; tests run one after another.
static MTU: AtomicU16 = AtomicU16::new(MTU_DEFAULT);
pub(super) const MTU_DEFAULT: u16 = 1500;

/// Sets the MTU inside of every later [`Towpath`].
pub(super) fn set_mtu(mtu: u16) {
    // Relaxed: the tests' threads start afterwards.
    MTU.store(mtu, Ordering::Relaxed);
}

/// A `towpath run` to be started.
pub(crate) struct Towpath {
    /// The command that starts towpath.
    by: Vec<OsString>,
    options: Vec<OsString>,
    /// Folder in which `towpath stats` finds it, if not the default.
    sockets: Option<PathBuf>,
}

impl Towpath {
    pub(crate) fn new<A: Into<OsString>>(options: impl IntoIterator<Item = A>) -> Self {
        let mut all: Vec<OsString> = vec!["run".into(), "--stats".into()];
        let mtu = MTU.load(Ordering::Relaxed);
        if mtu != MTU_DEFAULT {
            all.extend(["--mtu".into(), mtu.to_string().into()]);
        }
        all.extend(options.into_iter().map(Into::into));
        Self { by: vec![TOWPATH.into()], options: all, sockets: None }
    }

    /// Makes one whose gateway addresses lead to the host's loopback.
    pub(crate) fn with_loopback<A: Into<OsString>>(options: impl IntoIterator<Item = A>) -> Self {
        let mut towpath = Self::new(options);
        let v4_only = towpath.options.iter().any(|option| option == "-4" || option == "576");
        let mut map = vec!["--map-host-loopback", "10.0.2.2"];
        if !v4_only {
            map.extend(["--map-host-loopback", "fd74:6f77:7061:7468::2"]);
        }
        towpath.options.extend(map.into_iter().map(Into::into));
        towpath
    }

    /// Starts it by another command, for example one that lowers limits.
    pub(crate) fn by<A: Into<OsString>>(mut self, by: impl IntoIterator<Item = A>) -> Self {
        self.by = by.into_iter().map(Into::into).chain([TOWPATH.into()]).collect();
        self
    }

    /// Lets [`wait_until_nothing_is_left`] query its flows.
    pub(crate) fn found_by(mut self, host: &Host) -> Self {
        self.sockets = Some(host.file(""));
        self
    }

    /// Returns `towpath run OPTIONS -- COMMAND` as a command.
    pub(crate) fn command<A: Into<OsString>>(
        self,
        command: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut all = self.by.into_iter();
        let mut towpath = Command::new(all.next().expect("a program"));
        towpath.envs(self.sockets.map(|folder| ("XDG_RUNTIME_DIR", folder)));
        towpath.args(all).args(self.options).arg("--");
        towpath.args(command.into_iter().map(Into::into));
        towpath
    }

    /// Starts it.
    pub(crate) fn start<A: Into<OsString>>(self, command: impl IntoIterator<Item = A>) -> Process {
        Process::start(self.command(command))
    }

    /// Starts it with a CMD that, after `command`, waits until it is released.
    pub(crate) fn start_held<A: Into<OsString>>(
        self,
        command: impl IntoIterator<Item = A>,
    ) -> Process {
        let wait = ["sh", "-c", "\"$@\" && read line; true", "sh"].map(OsString::from);
        let all = wait.into_iter().chain(command.into_iter().map(Into::into));
        Process::start_held(self.command(all))
    }

    /// Runs it to its end.
    pub(crate) fn run<A: Into<OsString>>(self, command: impl IntoIterator<Item = A>) -> Output {
        self.start(command).finish()
    }
}

/// Returns the command that plays `role` of the tests' own programs.
pub(crate) fn inside(role: &str, arguments: &[&str]) -> Vec<OsString> {
    let own = std::env::current_exe().expect("own program");
    let mut command = vec![own.into(), "inside".into(), role.into()];
    command.extend(arguments.iter().map(OsString::from));
    command
}

/// The counters that `--stats` prints.
#[derive(Debug)]
pub(crate) struct Stats {
    pub(crate) out: u64,
    pub(crate) r#in: u64,
    pub(crate) copies_per_byte: f64,
    text: String,
}

impl Stats {
    pub(crate) fn of(output: &Output) -> Self {
        let text = output.stderr.clone();
        let line = text.lines().find(|line| line.starts_with("payload "));
        let line = line.unwrap_or_else(|| panic!("no counters in:\n{text}"));
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let number = |at: usize| words[at].parse().expect("a number");
        let number_of = |word: &str| word.parse().expect("a ratio");
        Self { out: number(1), r#in: number(4), copies_per_byte: number_of(words[7]), text }
    }

    /// Returns the number before `word` in the line of `name`.
    pub(crate) fn number(&self, name: &str, word: &str) -> u64 {
        let line = self.text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in:\n{}", self.text));
        let words: Vec<&str> =
            line.split([' ', ',', ';']).filter(|word| !word.is_empty()).collect();
        let at = words.iter().position(|candidate| *candidate == word).expect("a word");
        words[at - 1].parse().expect("a number")
    }

    /// Returns the joined bytes, which bypassed the stack: out and in.
    pub(crate) fn joined_bytes(&self) -> [u64; 2] {
        let line = self.text.lines().find(|line| line.starts_with("joined "));
        let line = line.unwrap_or_else(|| panic!("nothing joined in:\n{}", self.text));
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let after = |word| words.windows(3).find(|three| three[1..] == ["bytes", word]);
        ["out,", "in"].map(|word| after(word).and_then(|three| three[0].parse().ok()).expect(word))
    }

    /// Returns all numbers in the line of a worker: bytes out, bytes in, packets handed over, then
    /// flows of TCP, UDP and echo.
    pub(crate) fn worker(&self, index: usize) -> Vec<u64> {
        let name = format!("worker {index} ");
        let line = self.text.lines().find_map(|line| line.strip_prefix(&name));
        let line = line.unwrap_or_else(|| panic!("no {name} in:\n{}", self.text));
        let words = line.split(|letter: char| !letter.is_ascii_digit());
        words.filter_map(|word| word.parse().ok()).collect()
    }

    /// Returns how many workers served, with those that have left.
    pub(crate) fn workers(&self) -> u64 {
        let lines = self.text.lines().filter(|line| line.starts_with("worker "));
        lines.count().max(1) as u64
    }

    /// Asserts that no payload byte was copied. One reason is allowed, for at most one byte in 100:
    /// `Site::Squeeze`. On a busy machine, segments that did not fit are sent again one by one and
    /// packed into fewer frames; and if the peer does not read for a moment, the first segment is
    /// kept as a copy, which has 64 KiB at the largest MTU.
    pub(crate) fn assert_uncopied(&self) {
        let sites = self.text.lines().filter(|line| line.starts_with("copied "));
        let others = sites.filter(|line| !line.contains(" squeeze ")).count();
        assert!(others == 0 && self.copies_per_byte <= 0.01, "{}", self.text);
    }

    /// Asserts that no payload byte was copied, and the number of bytes carried.
    pub(crate) fn assert_carried(&self, out: u64, r#in: u64, extra: u64) {
        self.assert_uncopied();
        self.assert_bytes(out, r#in, extra);
    }

    /// Asserts the number of bytes carried. Headers of the protocol above, and other bytes of a
    /// program, are at most `extra`.
    pub(crate) fn assert_bytes(&self, out: u64, r#in: u64, extra: u64) {
        assert!((out..=out + extra).contains(&self.out), "{out} bytes out:\n{}", self.text);
        assert!((r#in..=r#in + extra).contains(&self.r#in), "{} bytes in:\n{}", r#in, self.text);
    }

    /// Returns the payload bytes copied at one site.
    pub(crate) fn copied(&self, site: &str) -> u64 {
        self.count("copied", site)
    }

    /// Returns how often packets were dropped for this reason.
    pub(crate) fn dropped(&self, reason: &str) -> u64 {
        self.count("dropped", reason)
    }

    /// Returns the payload bytes copied at all sites.
    pub(crate) fn copied_in_all(&self) -> u64 {
        let lines = self.text.lines().filter(|line| line.starts_with("copied "));
        let sites = lines.filter_map(|line| line.split_ascii_whitespace().nth(1));
        sites.map(|site| self.copied(site)).sum()
    }

    fn count(&self, what: &str, name: &str) -> u64 {
        let mut words = self.text.lines().map(|line| line.split_ascii_whitespace());
        let count = words.find_map(|mut words| {
            (words.next()? == what && words.next()? == name).then(|| words.next()?.parse().ok())?
        });
        count.unwrap_or(0)
    }
}

/// Returns CMD of a running towpath: the child of its process 1.
pub(crate) fn program_of(towpath: i32) -> i32 {
    let child_of = |pid: i32| {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).ok()?;
        children.split_ascii_whitespace().next()?.parse::<i32>().ok()
    };
    retry("CMD to start", || child_of(child_of(towpath)?))
}

/// Waits until the flows of a towpath that [is found](Towpath::found_by) have left nothing: no
/// socket on the host, no descriptor beyond `at_start`, and no flow that waits for an
/// acknowledgement of the program's kernel.
pub(crate) fn wait_until_nothing_is_left(host: &Host, towpath: &Process, at_start: usize) {
    retry("sockets to be closed", || host.sockets().is_empty().then_some(()));
    retry("descriptors to be closed", || (descriptors(towpath.pid()) <= at_start).then_some(()));
    retry("flows to end", || (open_flows(host, towpath) == 0).then_some(()));
}

/// Returns the TCP flows that towpath reports as open.
fn open_flows(host: &Host, towpath: &Process) -> u64 {
    let mut stats = Command::new(TOWPATH);
    stats.args(["stats", "--json", &towpath.pid().to_string()]);
    stats.env("XDG_RUNTIME_DIR", host.file(""));
    let reported = Process::start(stats).finish().success();
    let reported: serde_json::Value = serde_json::from_str(&reported).expect("an object");
    reported["flows"]["tcp"].as_u64().expect("a number of flows")
}
