//! A siege: one guest of `towpath up` runs all attacks in turn, while another has a mixed honest
//! load. The honest guest keeps its speed, and regains it at once; memory and descriptors do not
//! grow over time.
//!
//! # Method
//!
//! The attacks are those of [`attack`](crate::attack), and readers that do not read: downloads by
//! the guest, and connections from outside to its published port. Each attack has two phases, one
//! in each half of the time. In a phase the honest flow is measured alone, beside harmless frames
//! of the same sender, beside the attack and after it. Speeds are compared with those beside
//! harmless frames, as any sender takes its part of the machine. Attacks that take memory and keep
//! it do so before anything is measured, and are compared with the flow alone: while they take it,
//! they are a guest like others, which is due its share. A phase is repeated if the machine may
//! have stalled.
//!
//! The siege runs if `TOWPATH_SIEGE_SECONDS` is set, for about that time, at least [`SECONDS`].
//! `TOWPATH_SIEGE_ATTACKS=NAME,NAME` selects attacks.

use std::fmt;
use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::attack;
use crate::host::{HOST, Host};
use crate::roles::{self, Process, Up, allow_files};
use crate::slow::{self, ANSWER_MAX, SPEED_MIN};

mod load;

/// Name of the test.
pub(super) const NAME: &str = "a_siege_leaves_an_honest_guest_alone";
/// First argument of this executable in a role of this test; the next constants are the roles.
pub(super) const ROLE: &str = "--siege";
const HONEST: &str = "honest";
const HOSTILE: &str = "hostile";
const ATTACK: &str = "attack";
/// Names of loads that are not floods: harmless frames, and readers that do not read.
const NOISE: &str = "noise";
/// Names of attacks that begin with this take memory and keep it.
const HOARD: &str = "hoard";
const DOWNLOADS: &str = "slow_downloads";
const PUBLISHED: &str = "slow_readers_outside";

const TOWPATH: &str = env!("CARGO_BIN_EXE_towpath");
/// Approximate least duration in seconds.
const SECONDS: u64 = 26;
/// Environment variable with the duration in seconds.
pub(super) const SECONDS_VARIABLE: &str = "TOWPATH_SIEGE_SECONDS";
/// Halves of the time.
const HALVES: usize = 2;
/// Parts of a phase, in percent: alone, beside harmless frames, beside the attack. The rest is for
/// the time after the attack.
const PARTS: [u64; 3] = [20, 25, 45];
/// Least and greatest length of a window, in milliseconds; `WINDOWS_MIN` is the windows of a part.
const WINDOW: (u64, u64) = (40, 500);
const WINDOWS_MIN: u64 = 3;
/// Measurements of a phase before it has failed.
const TRIES: usize = 6;
/// Longest time until the honest flow has its speed again.
const RECOVERY_MAX: Duration = Duration::from_secs(1);
/// How much more the second half may use than the first: KiB of all processes, and descriptors.
const GROWTH_KIB_MAX: u64 = 16 << 10;
const GROWTH_FILES_MAX: usize = 64;
/// Descriptors of flows that a flood leaves until they have been idle for minutes, and some more: a
/// short run does not reach them in its first half. There are up to 4096 flows each of TCP and UDP.
const KEPT_MAX: usize = 2 * 4096 + 8 * GROWTH_FILES_MAX;
/// Time for an attack to take all memory that it can.
const SETTLING: Duration = Duration::from_secs(1);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// Port where datagrams are echoed.
const ECHO_PORT: u16 = 7008;
/// The host's port that leads to the hostile guest.
const PUBLISHED_PORT: u16 = 9088;

/// Returns true for an attack that takes memory and keeps it, instead of sending continuously.
fn occupies(name: &str) -> bool {
    name.starts_with(HOARD) || [DOWNLOADS, PUBLISHED].contains(&name)
}

/// The main function of a role.
pub(super) fn main(role: &str, name: &str) {
    allow_files();
    match role {
        HONEST => load::honest(),
        HOSTILE => load::hostile(),
        _ => load::attack(name),
    }
}

/// Bytes of the honest flow per second, and for each kind of request the median and the greatest
/// time in microseconds.
type Window = Vec<u64>;

struct Siege {
    honest: Process,
    hostile: Process,
    up: Up,
}

/// The results of a phase.
#[derive(Clone, Debug)]
struct Phase {
    name: &'static str,
    alone: Window,
    noise: Window,
    beside: Window,
    /// Time until the speed was there again.
    recovery: Duration,
    resident_kib: u64,
    files: usize,
}

/// Runs all phases twice.
pub(super) fn run() -> Result<(), Failed> {
    let wanted = std::env::var(SECONDS_VARIABLE).ok().and_then(|text| text.parse().ok());
    allow_files();
    let host = Host::new()?;
    slow::set_small_buffers()?;
    let mut siege = Siege::begin()?;
    let mut names: Vec<&'static str> = attack::ALL.iter().map(|attack| attack.name).collect();
    names.extend([DOWNLOADS, PUBLISHED]);
    if let Ok(chosen) = std::env::var("TOWPATH_SIEGE_ATTACKS") {
        names.retain(|name| chosen.split(',').any(|chosen| chosen == *name));
        if names.is_empty() {
            return Err(format!("TOWPATH_SIEGE_ATTACKS: there is no attack '{chosen}'").into());
        }
    }
    let settling = names.iter().filter(|name| occupies(name)).count() as u32 * SETTLING;
    let time = Duration::from_secs(wanted.unwrap_or(0).max(SECONDS)) / HALVES as u32;
    let share = time.saturating_sub(settling).as_millis() as u64 / names.len() as u64;
    let mut phases: Vec<Vec<Phase>> = Vec::new();
    println!("{}", Phase::HEAD);
    for _ in 0..HALVES {
        let mut half = Vec::new();
        for name in &names {
            half.push(siege.phase_within_bounds(name, share)?);
        }
        phases.push(half);
    }
    let most = |half: &[Phase]| {
        let kib = half.iter().map(|phase| phase.resident_kib).max().unwrap_or(0);
        (kib, half.iter().map(|phase| phase.files).max().unwrap_or(0))
    };
    let (first, second) = (most(&phases[0]), most(&phases[1]));
    println!("    most KiB and descriptors: {first:?}, then {second:?}");
    let files_max = KEPT_MAX.max(first.1 + GROWTH_FILES_MAX);
    if second.0 > first.0 + GROWTH_KIB_MAX || second.1 > files_max {
        return Err(format!("they grow: {first:?}, then {second:?}").into());
    }
    drop(siege);
    match host.trapped().first() {
        Some(first) => Err(format!("something reached the host: {first}").into()),
        None => Ok(()),
    }
}

impl Siege {
    fn begin() -> Result<Self, Failed> {
        slow::answer_names(UdpSocket::bind((HOST, 53))?);
        let echo = UdpSocket::bind((HOST, ECHO_PORT))?;
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((count, from)) = echo.recv_from(&mut buffer) {
                let _ = echo.send_to(&buffer[..count], from);
            }
        });
        let source = TcpListener::bind((HOST, slow::FLOOD_PORT))?;
        thread::spawn(move || slow::send_to_all(source));
        let mut command = Command::new(TOWPATH);
        command.args(["up", "-v", "--dns", &HOST.to_string(), "--tap", "tap0", "--tap", "honest0"]);
        command.args(["--lease", "port=tap0,ipv4=10.0.2.15"]);
        command.args(["-t", &format!("tap0={HOST}/{PUBLISHED_PORT}:{}", slow::FLOOD_PORT)]);
        command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
        let up = Up::start(command)?;
        let role = |role: &str| -> Result<Command, Failed> {
            let mut command = Command::new(std::env::current_exe()?);
            command.args([ROLE, role, ""]);
            Ok(command)
        };
        let mut hostile = roles::guest(role(HOSTILE)?, "tap0", "10.0.2.15")?;
        hostile.expect("ready")?;
        let honest = roles::guest(role(HONEST)?, "honest0", "10.0.2.21")?;
        Ok(Self { honest, hostile, up })
    }

    /// Runs a phase, repeatedly if it exceeds a bound.
    fn phase_within_bounds(&mut self, name: &'static str, share: u64) -> Result<Phase, Failed> {
        let mut problems = Vec::new();
        // Longer each time, so that a stall counts less.
        for time in (1..=TRIES as u64).map(|round| share * round) {
            let phase = self.phase(name, time)?;
            println!("{phase}");
            match phase.problem() {
                Some(problem) => problems.push(problem),
                None => return Ok(phase),
            }
        }
        Err(format!("{name}, each time: {problems:?}").into())
    }

    fn phase(&mut self, name: &'static str, share: u64) -> Result<Phase, Failed> {
        let parts = PARTS.map(|part| share * part / 100);
        let alone = self.windows(parts[0])?;
        let noise = if occupies(name) { alone.clone() } else { self.beside(NOISE, parts[1])? };
        let beside = self.beside(name, parts[2])?;
        let begun = Instant::now();
        loop {
            let window = self.honest.ask_all(&format!("window {}", WINDOW.0), "window")?;
            let is_over = begun.elapsed() > 2 * RECOVERY_MAX;
            if is_over || u128::from(window[0]) * 100 >= u128::from(alone[0]) * SPEED_MIN {
                break;
            }
        }
        let recovery = begun.elapsed();
        let (resident_kib, files) = self.resources();
        Ok(Phase { name, alone, noise, beside, recovery, resident_kib, files })
    }

    /// Measures the honest flow while the hostile guest does something.
    fn beside(&mut self, name: &str, millis: u64) -> Result<Window, Failed> {
        if name == PUBLISHED {
            let unread = load::open_unread(SocketAddr::from((HOST, PUBLISHED_PORT)));
            thread::sleep(SETTLING);
            let window = self.windows(millis);
            drop(unread);
            return window;
        }
        self.hostile.ask(&format!("begin {name}"), "begun")?;
        if occupies(name) {
            thread::sleep(SETTLING);
        }
        let window = self.windows(millis);
        if self.hostile.ask("end", "ended")? != 1 {
            return Err(format!("{name} has ended by itself").into());
        }
        window
    }

    /// Returns the medians of windows within a time, and the greatest of all.
    fn windows(&mut self, millis: u64) -> Result<Window, Failed> {
        let each = (millis / WINDOWS_MIN).clamp(WINDOW.0, WINDOW.1);
        let mut columns: Vec<Vec<u64>> = Vec::new();
        for _ in 0..(millis / each).max(WINDOWS_MIN) {
            let window = self.honest.ask_all(&format!("window {each}"), "window")?;
            columns.resize(window.len(), Vec::new());
            for (column, number) in columns.iter_mut().zip(window) {
                column.push(number);
            }
        }
        columns.iter_mut().for_each(|column| column.sort_unstable());
        let is_longest = |index: usize| index > 0 && index.is_multiple_of(2);
        let of = |(index, column): (usize, &Vec<u64>)| {
            column[if is_longest(index) { column.len() - 1 } else { column.len() / 2 }]
        };
        Ok(columns.iter().enumerate().map(of).collect())
    }

    /// Returns memory and descriptors of all processes of the network.
    fn resources(&self) -> (u64, usize) {
        let main = self.up.0.id();
        let children = fs::read_to_string(format!("/proc/{main}/task/{main}/children"));
        let children = children.unwrap_or_default();
        let numbers = children.split_ascii_whitespace().filter_map(|number| number.parse().ok());
        let (mut kib, mut files) = (0, 0);
        for pid in numbers.chain([main]) {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
            kib += number.unwrap_or(0);
            files += fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        }
        (kib, files)
    }
}

impl Phase {
    const HEAD: &str = "    MB/s alone, beside noise, beside it; percent of alone, of noise; \
                        ms of a connection and of a name, median and longest; ms until it is \
                        over; KiB; descriptors";

    /// Returns the speed beside the attack, in percent of that of `window`.
    fn percent_of(&self, window: &Window) -> u128 {
        u128::from(self.beside[0]) * 100 / u128::from(window[0]).max(1)
    }

    /// Returns the bound that was exceeded, if one was.
    fn problem(&self) -> Option<String> {
        // Harmless frames may take as much of the machine as an attack does, or more.
        let percent = self.percent_of(&self.noise).max(self.percent_of(&self.alone));
        let [connection, name] = [self.beside[1], self.beside[3]].map(Duration::from_micros);
        let attack = attack::ALL.iter().find(|attack| attack.name == self.name);
        // Floods of new flows may have their part of the gateway's thread.
        let slower_max = attack.and_then(|attack| attack.slower_max);
        let least = slower_max.map_or(SPEED_MIN, |slower| (100.0 / slower) as u128);
        if percent < least {
            Some(format!("{percent} % of the speed"))
        } else if connection > ANSWER_MAX || name > ANSWER_MAX {
            Some(format!("a connection takes {connection:?}, a name {name:?}"))
        } else if self.recovery > RECOVERY_MAX {
            Some(format!("the speed is back after {:?}", self.recovery))
        } else {
            None
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let speed = |window: &Window| window[0] / 1_000_000;
        let millis = |index: usize| self.beside[index] as f64 / 1000.0;
        write!(
            f,
            "    {:38} {:4} {:4} {:4}  {:3} {:3} %  {:6.1} {:6.1}  {:6.1} {:6.1}  {:4}  {} {}",
            self.name,
            speed(&self.alone),
            speed(&self.noise),
            speed(&self.beside),
            self.percent_of(&self.alone),
            self.percent_of(&self.noise),
            millis(1),
            millis(2),
            millis(3),
            millis(4),
            self.recovery.as_millis(),
            self.resident_kib,
            self.files,
        )
    }
}
