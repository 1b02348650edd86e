//! SIGKILL at random moments, for each participating process: nothing is left behind, and processes
//! that are not affected move bytes as before.
//!
//! # Method
//!
//! Each round starts `towpath run` or `towpath up` in a network that plays the host, with programs
//! and guests that move bytes ([`traffic`]). One of the processes, or a guest, is killed while
//! things start, while bytes move, or while towpath ends. Processes that depend on it must end,
//! others must continue, and then the host must be as before ([`left`]): no process, namespace,
//! interface, socket, mount or file. The broker removes sockets with a path. The sockets of a
//! killed broker may remain; then no process listens on them, and the next instance removes them.
//!
//! `TOWPATH_KILLS=N` runs N rounds instead of [`KILLS`]. The seed of a round is that of the run
//! plus its number, so that `TOWPATH_SEED=S TOWPATH_KILLS=1` repeats it, as far as timing allows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::host::Host;
use crate::random::Random;
use crate::roles::{self, Process};
use left::{Before, Marked};

mod left;
pub(super) mod traffic;

/// Name of the test.
pub(super) const NAME: &str = "killed_at_random_moments";
/// First argument of this executable when it moves bytes for this test.
pub(super) const ROLE: &str = "--killed";

const TOWPATH: &str = env!("CARGO_BIN_EXE_towpath");
/// Default number of rounds.
const KILLS: u64 = 12;
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(2);
/// Latest times of the kill, in microseconds: after the start, after all move bytes, and after the
/// signal that requests the end.
const START_MAX: usize = 300_000;
const SERVING_MAX: usize = 100_000;
const ENDING_MAX: usize = 20_000;
/// Marks all processes of a round.
const MARK: &str = "TOWPATH_KILLED_ROUND";
/// Folder of the sockets; `MAY_STAY` are the test's files that may remain.
const SOCKETS: &str = "towpath";
const MAY_STAY: [&str; 4] = ["net.toml", "said", "leases", "leases.lock"];
/// The TAP devices of a network, and the addresses of their guests.
const DEVICES: [(&str, &str); 2] = [("killed0", "10.0.2.20"), ("killed1", "10.0.2.21")];
/// Options of `run`. The port needs the broker to be bound.
const OPTIONS: [&[&str]; 4] = [
    &["-t", "80"],
    &["-t", "80", "--workers", "2"],
    &["-t", "80", "--join-published"],
    &["-t", "80", "--no-confinement"],
];

/// Options of `up`. Ports of helpers are, with two workers, the stream socket and a TAP device;
/// with three, the vhost-user socket and both TAP devices.
const NETWORK_OPTIONS: [&[&str]; 3] = [&[], &["--workers", "2"], &["--workers", "3"]];

/// The command that towpath runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Run,
    Up,
}

/// When a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Start,
    Serving,
    Ending,
}

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Main,
    /// One of the processes outside that serve the main one.
    Broker,
    /// Process 1 of the program's namespaces.
    Init,
    /// The program.
    Program,
    /// A process that will become the program, or opens sockets for it.
    Inside,
    /// The guest with this number.
    Guest(usize),
}

/// Runs the rounds.
pub(super) fn run(seed: u64) -> Result<(), Failed> {
    let kills = std::env::var("TOWPATH_KILLS").ok().and_then(|kills| kills.parse().ok());
    let host = Host::new()?;
    let lab = Lab::new()?;
    let mut counts = BTreeMap::new();
    for round in 0..kills.unwrap_or(KILLS) {
        let seed = seed.wrapping_add(round);
        let mut round_text = String::new();
        let done =
            lab.round(seed, &mut round_text).map_err(|failure| format!("{:?}", failure.message()));
        println!("    seed {seed}: {round_text}");
        if let Err(message) = done {
            let said = fs::read_to_string(lab.path("said")).unwrap_or_default();
            return Err(format!(
                "round {round}, {round_text}: {message:?}\nrepeat it: TOWPATH_SEED={seed} \
                 TOWPATH_KILLS=1\n--- towpath:\n{said}"
            )
            .into());
        }
        let kind = round_text.split(" after").next().unwrap_or_default().to_owned();
        *counts.entry(kind).or_insert(0) += 1;
    }
    counts.iter().for_each(|(kind, count)| println!("    {count:3} times {kind}"));
    match host.trapped().first() {
        Some(first) => Err(format!("something reached the host: {first}").into()),
        None => Ok(()),
    }
}

/// The place of the rounds.
struct Lab {
    folder: PathBuf,
    before: Before,
}

/// One towpath with its guests.
struct Instance {
    kind: Kind,
    main: Process,
    mark: String,
    /// Each guest, and how to start another in its place, if possible.
    guests: Vec<(Process, Option<(&'static str, PathBuf)>)>,
    has_broker: bool,
    /// Namespaces of all its processes.
    namespaces: BTreeSet<String>,
}

impl Lab {
    fn new() -> Result<Self, Failed> {
        let folder = std::env::temp_dir().join(format!("towpath-killed-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let lab = Self { folder, before: Before::look() };
        let mut file = String::new();
        for (name, _) in DEVICES {
            file += &format!("[[port]]\nname = '{name}'\ntap = true\n");
        }
        for role in [traffic::STREAM, traffic::VHOST_USER] {
            let path = lab.path(role);
            file += &format!("[[port]]\nname = '{role}'\n{role} = '{}'\n", path.display());
        }
        fs::write(lab.path("net.toml"), file)?;
        Ok(lab)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs one round and describes it in `round_text`.
    fn round(&self, seed: u64, round_text: &mut String) -> Result<(), Failed> {
        let mut random = Random::new(seed);
        let kind = [Kind::Run, Kind::Up][random.below(2)];
        let phases = [Phase::Start, Phase::Serving, Phase::Serving, Phase::Ending];
        let phase = phases[random.below(phases.len())];
        let options = match kind {
            Kind::Run => OPTIONS[random.below(OPTIONS.len())],
            Kind::Up => NETWORK_OPTIONS[random.below(NETWORK_OPTIONS.len())],
        };
        *round_text = format!("{kind:?} {options:?}, {phase:?}");
        let mut instance = self.start(kind, options, seed)?;
        let pause = match phase {
            Phase::Start => random.below(START_MAX),
            Phase::Serving => {
                instance.serve()?;
                random.below(SERVING_MAX)
            }
            Phase::Ending => {
                instance.serve()?;
                instance.signal(Signal::TERM)?;
                random.below(ENDING_MAX)
            }
        };
        thread::sleep(Duration::from_micros(pause as u64));
        let (victim, brokers) = instance.kill(&mut random)?;
        *round_text += &format!(", {victim:?} killed after {pause} us");
        let status = instance.end(phase, victim)?;
        *round_text += &format!(": {status}");
        let said = fs::read_to_string(self.path("said")).unwrap_or_default();
        if said.contains("panicked") || !is_plausible(status, victim) {
            return Err("that is no way to end".into());
        }
        let guests: Vec<i32> =
            instance.guests.iter().map(|(guest, _)| guest.child.id() as i32).collect();
        self.before.wait(&instance.mark, &instance.namespaces, &guests)?;
        let has_all = brokers >= usize::from(instance.has_broker) + usize::from(kind == Kind::Up);
        let (mark, namespaces) = (instance.mark.clone(), instance.namespaces.clone());
        drop(instance);
        self.check_files(victim != Victim::Broker && brokers > 0 && has_all)?;
        self.before.wait(&mark, &namespaces, &[]).map_err(Failed::from)
    }

    fn start(&self, kind: Kind, options: &[&str], seed: u64) -> Result<Instance, Failed> {
        let mut command = Command::new(TOWPATH);
        let mut guests = Vec::new();
        match kind {
            Kind::Run => {
                let program = traffic::command(traffic::PROGRAM, "")?;
                command.arg("run").args(options).arg("--").arg(program.get_program());
                command.args(program.get_args());
            }
            Kind::Up => {
                command.arg("up").args(options).arg(self.path("net.toml"));
                command.arg("--lease-file").arg(self.path("leases"));
                command.args(["-t", "stream=80"]);
                for role in [traffic::STREAM, traffic::VHOST_USER] {
                    guests.push((other(role, &self.path(role))?, Some((role, self.path(role)))));
                }
            }
        }
        let mark = format!("{seed}-{}", std::process::id());
        command.env("XDG_RUNTIME_DIR", &self.folder).env(MARK, &mark);
        command.stderr(File::create(self.path("said"))?);
        let (mark, has_broker) =
            (format!("{MARK}={mark}"), !options.contains(&"--no-confinement") || kind == Kind::Up);
        let (main, namespaces) = (Process::start(command)?, BTreeSet::new());
        Ok(Instance { kind, main, mark, guests, has_broker, namespaces })
    }

    /// Checks for left files. If no broker was left to remove sockets, the next instance must
    /// remove them.
    fn check_files(&self, all_are_removed: bool) -> Result<(), Failed> {
        let left = left::files(&self.folder, SOCKETS, &MAY_STAY);
        if left.is_empty() {
            return Ok(());
        }
        let is_half = |path: &PathBuf| path.ends_with("leases.new");
        let is_stale = |path: &PathBuf| left::is_stale(path) || is_half(path);
        if all_are_removed || !left.iter().all(is_stale) {
            return Err(format!("left: {left:?}").into());
        }
        let mut next = self.start(Kind::Up, &[], 0)?;
        let control = self.path(SOCKETS).join(format!("{}.control", next.main.child.id()));
        wait("the next to serve", || UnixStream::connect(&control).ok())?;
        next.signal(Signal::TERM)?;
        let status = next.wait_for_end()?;
        let left = left::files(&self.folder, SOCKETS, &MAY_STAY);
        if !status.success() || !left.is_empty() {
            return Err(format!("{status}, and after the next there are {left:?}").into());
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Instance {
    /// Waits until all programs and guests move bytes.
    fn serve(&mut self) -> Result<(), Failed> {
        if self.kind == Kind::Run {
            return traffic::wait_until_moves(&mut self.main);
        }
        for (device, address) in DEVICES {
            wait("the TAP device", || {
                fs::read_to_string("/proc/thread-self/net/dev")
                    .ok()
                    .filter(|table| table.contains(device))
            })?;
            let mut command = traffic::command(traffic::TAP, "")?;
            command.stderr(Stdio::null());
            self.guests.push((roles::guest(command, device, address)?, None));
        }
        self.guests.iter_mut().try_for_each(|(guest, _)| traffic::wait_until_moves(guest))
    }

    /// Kills a process; returns which, and how many brokers there were.
    fn kill(&mut self, random: &mut Random) -> Result<(Victim, usize), Failed> {
        let processes = Marked::all(&self.mark);
        self.namespaces.extend(processes.iter().flat_map(|one| one.namespaces.clone()));
        let main = self.main.child.id() as i32;
        let own = std::env::current_exe().ok();
        let victim = |process: &Marked| {
            let main_namespace = processes.iter().find(|one| one.pid == main);
            let is_inside =
                main_namespace.and_then(Marked::pid_namespace) != process.pid_namespace();
            match (process.pid == main, process.parent == main) {
                (true, _) => Victim::Main,
                (false, true) if is_inside => Victim::Init,
                (false, true) => Victim::Broker,
                (false, false) if own.as_ref() == Some(&process.program) => Victim::Program,
                (false, false) => Victim::Inside,
            }
        };
        let mut all: Vec<(Victim, i32)> =
            processes.iter().map(|process| (victim(process), process.pid)).collect();
        let brokers = all.iter().filter(|(victim, _)| *victim == Victim::Broker).count();
        let guests = self.guests.iter().enumerate();
        all.extend(
            guests.map(|(index, (guest, _))| (Victim::Guest(index), guest.child.id() as i32)),
        );
        if all.is_empty() {
            // All have ended already.
            return Ok((Victim::Main, brokers));
        }
        let (victim, pid) = all[random.below(all.len())];
        let Some(pidfd) =
            Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        else {
            return Ok((victim, brokers));
        };
        // The mark shows that the number was not reused before the pidfd was opened.
        if matches!(victim, Victim::Guest(_)) || left::is_marked(pid, &self.mark) {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
        Ok((victim, brokers))
    }

    /// Checks that the remaining processes continue or end as they must.
    fn end(&mut self, phase: Phase, victim: Victim) -> Result<ExitStatus, Failed> {
        let ends_by_itself = matches!(victim, Victim::Main | Victim::Init | Victim::Program);
        let serves = phase == Phase::Serving && !ends_by_itself;
        if let Victim::Guest(index) = victim {
            let (_, place) = self.guests.remove(index);
            if serves && let Some((role, path)) = place {
                self.guests.push((other(role, &path)?, Some((role, path))));
            }
        }
        if serves && self.kind == Kind::Up {
            self.guests.iter_mut().try_for_each(|(guest, _)| traffic::wait_until_moves(guest))?;
        } else if serves && victim == Victim::Broker {
            traffic::wait_until_moves(&mut self.main)?;
        }
        if !ends_by_itself && self.main.child.try_wait()?.is_none() {
            self.signal(Signal::TERM)?;
        }
        self.wait_for_end()
    }

    fn signal(&self, signal: Signal) -> Result<(), Failed> {
        Ok(rustix::process::kill_process(Pid::from_child(&self.main.child), signal)?)
    }

    fn wait_for_end(&mut self) -> Result<ExitStatus, Failed> {
        let main = &mut self.main.child;
        wait("the end of towpath", || main.try_wait().ok().flatten())
    }
}

/// Starts another guest in the place of a killed one.
fn other(role: &str, path: &Path) -> Result<Process, Failed> {
    Process::start(traffic::command(role, &path.to_string_lossy())?)
}

/// Returns true for an expected end: exit code 0, a reported error, the program's end, or a signal
/// that was sent.
fn is_plausible(status: ExitStatus, victim: Victim) -> bool {
    match status.signal() {
        Some(9) => victim == Victim::Main,
        Some(signal) => signal == 15,
        None => matches!(status.code(), Some(0 | 125 | 137 | 143)),
    }
}

/// Waits for a value; returns an error if it takes too long.
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T, Failed> {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("waited too long for {what}").into());
        }
        thread::sleep(TICK);
    }
}
