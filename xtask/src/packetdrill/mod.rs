//! Runs packetdrill's scripts on towpath, or on the kernel for comparison.
//!
//! Each script runs in its own mount and network namespaces, where plain files replace the settings
//! in `/proc/sys/net`. `sysctl`, shells and the loaded stack all read and write these files, and
//! neither scripts nor tools need changes. Commands that would change devices or routes are small
//! scripts at the front of `PATH` that record their arguments.

mod report;
mod settings;
mod tools;

use crate::count::Count;
use crate::{cargo, target_folder};
use report::{Outcome, Report};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `cargo xtask packetdrill`.
pub(crate) const USAGE: &str = "\
DIR [-4] [-6] [-m] [-v] [-j N] [--kernel | --honest] [--timeout S] [FILTER...]";

/// The code that scripts expect if the kernel's own device copies lent memory, and its replacement
/// in [`Plan::honest`] runs.
const COPIED: (&str, &str) = ("ee_code=SO_EE_CODE_ZEROCOPY_COPIED", "ee_code=0");

/// Environment variable that names the folder with packetdrill's scripts and the built tool.
const FOLDER: &str = "TOWPATH_PACKETDRILL";

/// Eleven scripts of lending for each of three versions of IP, each run twice.
const LENDING_CASES: u64 = 66;

/// Longest run of one script.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Versions of IP that a script can run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    V4,
    V6,
    Mapped,
}

impl Version {
    fn name(self) -> &'static str {
        match self {
            Version::V4 => "ipv4",
            Version::V6 => "ipv6",
            Version::Mapped => "ipv4-mapped",
        }
    }

    /// Whether a script is meant for this version: its name may end with a version.
    fn fits(self, name: &str) -> bool {
        match self {
            Version::V4 | Version::Mapped => !name.ends_with("v6.pkt"),
            Version::V6 => !name.ends_with("v4.pkt"),
        }
    }

    /// Arguments that packetdrill's own runner passes, and that a script may set itself.
    fn addresses(self) -> [(&'static str, &'static str); 4] {
        match self {
            Version::V4 | Version::Mapped => [
                ("--local_ip", "192.168.0.1"),
                ("--gateway_ip", "192.168.0.1"),
                ("--netmask_ip", "255.255.0.0"),
                ("--remote_ip", "192.0.2.1"),
            ],
            Version::V6 => [
                ("--local_ip", "fd3d:0a0b:17d6::1"),
                ("--gateway_ip", "fd3d:0a0b:17d6:8888::1"),
                ("--remote_ip", "fd3d:fa7b:d17d::1"),
                ("--mtu", "1520"),
            ],
        }
    }

    /// Arguments that scripts do not set themselves.
    fn fixed(self) -> &'static [&'static str] {
        match self {
            Version::V4 => &[
                "--ip_version=ipv4",
                "-D",
                "TFO_COOKIE=3021b9d889017eeb",
                "-D",
                "CODE=host_unreachable",
                "-D",
                "CMSG_LEVEL_IP=SOL_IP",
                "-D",
                "CMSG_TYPE_RECVERR=IP_RECVERR",
            ],
            Version::V6 => &[
                "--ip_version=ipv6",
                "-D",
                "TFO_COOKIE=c1d1e9742a47a9bc",
                "-D",
                "CMSG_LEVEL_IP=SOL_IPV6",
                "-D",
                "CMSG_TYPE_RECVERR=IPV6_RECVERR",
            ],
            Version::Mapped => &[
                "--ip_version=ipv4-mapped-ipv6",
                "-D",
                "TFO_COOKIE=3021b9d889017eeb",
                "-D",
                "CODE=host_unreachable",
                "-D",
                "CMSG_LEVEL_IP=SOL_IPV6",
                "-D",
                "CMSG_TYPE_RECVERR=IPV6_RECVERR",
            ],
        }
    }
}

/// The parsed command line.
struct Plan {
    folder: PathBuf,
    versions: Vec<Version>,
    filters: Vec<String>,
    verbose: bool,
    kernel: bool,
    /// Notices report what happened to the memory. Scripts are changed to expect that it was not
    /// copied, and in nothing else.
    honest: bool,
    jobs: usize,
    timeout: Duration,
}

impl Plan {
    fn parse(arguments: &[&str]) -> Result<Self, String> {
        let usage = || format!("usage: cargo xtask packetdrill {USAGE}");
        let mut plan = Plan {
            folder: PathBuf::new(),
            versions: Vec::new(),
            filters: Vec::new(),
            verbose: false,
            kernel: false,
            honest: false,
            jobs: 1,
            timeout: TIMEOUT,
        };
        let mut rest = arguments.iter();
        while let Some(&argument) = rest.next() {
            let mut number = || rest.next().and_then(|word| word.parse::<u64>().ok());
            match argument {
                "-4" => plan.versions.push(Version::V4),
                "-6" => plan.versions.push(Version::V6),
                "-m" => plan.versions.push(Version::Mapped),
                "-v" => plan.verbose = true,
                "--kernel" => plan.kernel = true,
                "--honest" => plan.honest = true,
                "-j" => plan.jobs = number().ok_or_else(usage)?.max(1) as usize,
                "--timeout" => plan.timeout = Duration::from_secs(number().ok_or_else(usage)?),
                option if option.starts_with('-') => return Err(usage()),
                folder if plan.folder.as_os_str().is_empty() => plan.folder = folder.into(),
                filter => plan.filters.push(filter.into()),
            }
        }
        if plan.folder.as_os_str().is_empty() || (plan.kernel && plan.honest) {
            return Err(usage());
        }
        if plan.versions.is_empty() {
            plan.versions = vec![Version::V4, Version::V6, Version::Mapped];
        }
        if plan.kernel {
            // In real time, another script would disturb the timing.
            plan.jobs = 1;
        }
        let folder = plan.folder.canonicalize();
        plan.folder = folder.map_err(|error| format!("{}: {error}", plan.folder.display()))?;
        Ok(plan)
    }

    fn tool(&self) -> Result<PathBuf, String> {
        let tool = self.folder.join("packetdrill/packetdrill");
        if tool.exists() {
            return Ok(tool);
        }
        let missing = tool.display();
        Err(format!(
            "{missing} is missing. DIR is the folder gtests/net of a checkout of \
             https://github.com/google/packetdrill; build the tool there with \
             `cd packetdrill && ./configure && make`"
        ))
    }

    fn wants(&self, path: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| path.contains(&filter[..]))
    }
}

/// One run of one script.
struct Case {
    /// Relative to the folder.
    path: String,
    version: Version,
}

/// Plays the scripts of lending, unchanged and as [`Plan::honest`], if [`FOLDER`] is set. Each
/// counts as a test.
pub(crate) fn lending() -> Result<Count, String> {
    let Some(folder) = std::env::var_os(FOLDER) else {
        println!("skipped: {FOLDER} does not name the folder gtests/net of packetdrill");
        return Ok(Count { skipped: LENDING_CASES, ..Count::default() });
    };
    let folder = folder.to_string_lossy();
    let mut count = play(&[&folder, "-j", "2", "-v", "/zerocopy/"])?;
    count.add(play(&[&folder, "-j", "2", "-v", "--honest", "/zerocopy/"])?);
    Ok(count)
}

pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let count = play(arguments)?;
    if count.failed == 0 {
        Ok(())
    } else {
        Err(format!("{} of {} scripts passed", count.passed, count.total()))
    }
}

fn play(arguments: &[&str]) -> Result<Count, String> {
    let plan = Plan::parse(arguments)?;
    let tool = plan.tool()?;
    let mut scripts = Vec::new();
    find(&plan.folder, &plan.folder, &mut scripts)?;
    let mut cases = Vec::new();
    for path in scripts.into_iter().filter(|path| plan.wants(path)) {
        for &version in plan.versions.iter().filter(|version| version.fits(&path)) {
            cases.push(Case { path: path.clone(), version });
        }
    }
    if cases.is_empty() {
        return Err("no script matches the arguments".into());
    }
    let library = if plan.kernel { None } else { Some(library()?) };
    let stage = tools::Stage::make(&target_folder("packetdrill-run"))?;
    let runner = Runner { plan: &plan, tool, library, stage };
    Ok(runner.all(&cases).finish())
}

/// Finds the scripts below `folder`, in order.
fn find(base: &Path, folder: &Path, found: &mut Vec<String>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() && path != base.join("packetdrill") {
            find(base, &path, found)?;
        } else if path.extension() == Some("pkt".as_ref())
            && let Ok(inner) = path.strip_prefix(base)
        {
            found.push(inner.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

/// Builds the library that packetdrill loads.
fn library() -> Result<PathBuf, String> {
    let target = target_folder("packetdrill");
    let mut build = cargo(["build", "--quiet", "--package", "towpath-capi", "--locked"]);
    build.args(["--features", "packetdrill", "--target-dir"]).arg(&target);
    let status = build.status().map_err(|error| format!("{build:?}: {error}"))?;
    let library = target.join("debug/libtowpath_capi.so");
    if status.success() { Ok(library) } else { Err(format!("{build:?}: {status}")) }
}

struct Runner<'a> {
    plan: &'a Plan,
    tool: PathBuf,
    library: Option<PathBuf>,
    stage: tools::Stage,
}

/// A script in progress.
struct Running<'a> {
    case: &'a Case,
    child: Child,
    output: PathBuf,
    started: Instant,
}

impl Runner<'_> {
    #[allow(clippy::disallowed_methods, reason = "the clock bounds a run")]
    fn all(&self, cases: &[Case]) -> Report {
        let mut report = Report::new(cases.len());
        let mut waiting = cases.iter();
        let mut running: Vec<Running<'_>> = Vec::new();
        loop {
            while running.len() < self.plan.jobs
                && let Some(case) = waiting.next()
            {
                match self.start(case) {
                    Ok((child, output)) => {
                        running.push(Running { case, child, output, started: Instant::now() });
                    }
                    Err(problem) => report.add(case, Outcome::Failed(problem), self.plan.verbose),
                }
            }
            if running.is_empty() {
                return report;
            }
            running.retain_mut(|run| match self.poll(run) {
                Some(outcome) => {
                    report.add(run.case, outcome, self.plan.verbose);
                    false
                }
                None => true,
            });
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The outcome of a script, once it has ended.
    fn poll(&self, run: &mut Running<'_>) -> Option<Outcome> {
        let status = match run.child.try_wait() {
            Ok(Some(status)) => status,
            Ok(None) if run.started.elapsed() < self.plan.timeout => return None,
            _ => {
                kill(run.child.id());
                let _ = run.child.wait();
                let text = fs::read_to_string(&run.output).unwrap_or_default();
                return Some(Outcome::TimedOut(text));
            }
        };
        let restore = format!("/tmp/sysctl_restore_{}.sh", run.child.id());
        let _ = fs::remove_file(restore);
        let text = fs::read_to_string(&run.output).unwrap_or_default();
        let _ = fs::remove_file(&run.output);
        Some(if status.success() { Outcome::Passed } else { Outcome::Failed(text) })
    }

    fn start(&self, case: &Case) -> Result<(Child, PathBuf), String> {
        let script = self.plan.folder.join(&case.path);
        let text = fs::read(&script).map_err(|error| format!("{}: {error}", script.display()))?;
        let text = String::from_utf8_lossy(&text);
        let name = case.path.replace('/', "_");
        let output = self.stage.folder.join(format!("{name}.{}.out", case.version.name()));
        let file = fs::File::create(&output).map_err(|error| error.to_string())?;
        let errors = file.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new("unshare");
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
            command.env("TOWPATH_STACK_KIB", "256");
        }
        command.args(["--mount", "--net", "sh"]);
        command.arg(if self.library.is_some() {
            &self.stage.towpath_script
        } else {
            &self.stage.kernel_script
        });
        command.arg(&self.tool).args(["--send_omit_free"]).args(case.version.fixed());
        let mut effective = BTreeMap::new();
        // An address that the script sets itself is not overridden, because its cookies depend on
        // it, unless it belongs to the other IP version. If a script sets its own address but not
        // the peer's, packetdrill's defaults apply to the others.
        let own = |name: &str, ours: &str| {
            own_option(&text, name).filter(|own| own.contains(':') == ours.contains(':'))
        };
        let [local, _, _, _] = case.version.addresses();
        let tools = own(local.0, local.1).is_some() && own_option(&text, "--remote_ip").is_none();
        for (name, ours) in case.version.addresses() {
            let own = own(name, ours);
            let others = tools && matches!(name, "--remote_ip" | "--gateway_ip");
            if own.is_none() && !others {
                command.arg(format!("{name}={ours}"));
            }
            effective.insert(name, own.unwrap_or(ours));
        }
        if let Some(library) = &self.library {
            let local = effective.get("--local_ip").copied().unwrap_or_default();
            let mtu = effective.get("--mtu").copied();
            let mtu = mtu.or(own_option(&text, "--mtu")).unwrap_or("1500");
            let settings = self.stage.settings.display();
            command.arg(format!("--so_filename={}", library.display()));
            // Scripts expect notices as from the kernel's device, which copies lent memory.
            let copied = if self.plan.honest { "" } else { "copied," };
            let flags = format!("virtual,{copied}local={local},mtu={mtu},settings={settings}");
            command.arg(format!("--so_flags={flags}"));
            command.env("TOWPATH_LIBRARY", library);
        }
        command.env("TOWPATH_SETTINGS", &self.stage.settings);
        command.env("TOWPATH_COMMANDS", &self.stage.commands);
        if self.plan.honest {
            let changed = format!("{name}.{}.pkt", case.version.name());
            let changed = self.stage.folder.join(changed);
            let written = fs::write(&changed, text.replace(COPIED.0, COPIED.1));
            written.map_err(|error| format!("{}: {error}", changed.display()))?;
            command.arg(changed);
        } else {
            command.arg(script.file_name().unwrap_or_default());
        }
        command.current_dir(script.parent().unwrap_or(&self.plan.folder));
        command.stdin(Stdio::null()).stdout(file).stderr(errors).process_group(0);
        let child = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        Ok((child, output))
    }
}

/// The value of an option that a script sets itself.
fn own_option<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let words = text.split_ascii_whitespace();
    words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).next()
}

/// Kills a script and all processes that it started.
fn kill(group: u32) {
    let _ = Command::new("kill").args(["-KILL", "--"]).arg(format!("-{group}")).status();
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}
