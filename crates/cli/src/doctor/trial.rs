//! Trials: forked processes that do what `towpath run` and `towpath up` do at their start, and end.
//!
//! The trial of `run` has the two processes of `run`: one forks the other into new namespaces,
//! which sets up the network there; then the first confines itself and starts a gateway. Neither
//! serves a packet. Both write findings to a pipe, a line of JSON each, which this process reads
//! to its end. The kernel removes namespaces and interface with the processes.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::time::Duration;

use towpath_gateway::config::Config;
use towpath_io::confine::{self, Mode};
use towpath_io::namespace::channel::{Channel, wait_readable};
use towpath_io::namespace::{
    self, ChildGuard, Configured, Forbidden, Isolation, NamespaceError, die_with_parent, init,
    relax_network_limits,
};
use towpath_io::process_sys::Forked;
use towpath_io::vhost_user;

use crate::doctor::finding::{Finding, Status};
use crate::doctor::host::{seccomp_mode, sysctl};
use crate::exit::Ending;
use crate::messages::Messages;
use crate::process::child::{Interface, LIMITS_STAY, Unmounted, mount, no_ipv6};
use crate::process::parent::receive_inside;
use crate::process::serve::Gateway;

/// Longest time without a finding; all steps together take a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of findings; a trial has ten of some hundred bytes.
const FINDINGS_BYTES_MAX: u64 = 64 << 10;
/// How many times as long as `run` the offload self-test may take: a busy machine should not
/// look like one without offloads.
const SELF_TEST_PATIENCE: u32 = 4;

/// Descriptors that `run` has at its start and a trial has not: those of signals, of the control
/// socket and of the channel to the broker, and a spare one.
const STAND_INS: usize = 8;

/// The last check of a trial of `run`.
const START: &str = "start";
const NAMESPACES: &str = "namespaces";
const CONFINEMENT: &str = "confinement";

/// Does what `towpath run` does until it serves. Without a device file there is no interface, and
/// only what comes before it is tried.
pub(super) fn of_run(has_device: bool) -> Vec<Finding> {
    let mut config = Config::default();
    config.workers = config.workers_for_a_program();
    let (mut findings, ended) = match in_child(|sink| serve_once(sink, &config, has_device)) {
        Ok(done) => done,
        Err(error) => {
            let finding = Finding::failure(START, format!("cannot try: {error}"));
            return vec![match error.kind() {
                io::ErrorKind::NotFound => finding.fix("run `mount -t proc proc /proc` as root"),
                _ => finding,
            }];
        }
    };
    let is_explained = findings.iter().any(|finding| finding.status == Status::Failure);
    let has_started = findings.iter().any(|finding| finding.check == START);
    if !has_started && !is_explained && has_device {
        findings.push(Finding::failure(START, how_it_ended(ended)));
    }
    findings
}

/// Makes what ports of vhost-user need.
pub(super) fn of_vhost_user() -> Vec<Finding> {
    const CHECK: &str = "vhost-user";
    let done = in_child(|sink| {
        sink.send(&match vhost_user::prepare() {
            Ok(()) => Finding::ok(CHECK, "the kernel's asynchronous requests (io_setup) work"),
            Err(error) => Finding::warning(CHECK, format!("{error}; `up` has no such ports"))
                .fix("run `sysctl fs.aio-max-nr=1048576` as root, or use a kernel with CONFIG_AIO"),
        });
    });
    match done {
        Ok((findings, _)) if !findings.is_empty() => findings,
        Ok((_, ended)) => vec![Finding::warning(CHECK, how_it_ended(ended))],
        Err(error) => vec![Finding::warning(CHECK, format!("cannot try: {error}"))],
    }
}

/// The end of a trial that did not report why.
fn how_it_ended(ended: Option<ExitStatus>) -> String {
    match ended.map(Ending::from) {
        Some(Ending::Signal(signal)) => {
            format!("the process that tries it was killed by signal {signal}")
        }
        Some(Ending::Code(code)) => {
            format!("the process that tries it ended with code {code} and reported nothing")
        }
        None => format!("no result in {} seconds", PATIENCE.as_secs()),
    }
}

/// Where a trial writes its findings.
struct Sink(PipeWriter);

impl Sink {
    fn send(&mut self, finding: &Finding) {
        // Nothing can be done if the reader is gone: then this process ends, too.
        let _ = self.0.write_all(format!("{}\n", finding.to_json()).as_bytes());
    }
}

/// Runs `work` in a forked process; returns its findings and how it ended, `None` if it took too
/// long and was killed.
fn in_child(work: impl FnOnce(&mut Sink)) -> io::Result<(Vec<Finding>, Option<ExitStatus>)> {
    let (reader, writer) = io::pipe()?;
    let child = match namespace::fork()? {
        Forked::Child => {
            drop(reader);
            if die_with_parent().is_ok() {
                work(&mut Sink(writer));
            }
            std::process::exit(0);
        }
        Forked::Parent(child) => ChildGuard::new(child),
    };
    drop(writer);
    let (text, is_complete) = read(reader)?;
    let findings = text.lines().filter_map(Finding::parse).collect();
    // Dropping the child kills it.
    let ended = if is_complete { Some(child.wait()?) } else { None };
    Ok((findings, ended))
}

/// Reads until all writers have ended; returns whether they have.
fn read(mut from: PipeReader) -> io::Result<(String, bool)> {
    let mut bytes = Vec::new();
    while wait_readable(&[from.as_fd()], Some(PATIENCE))?.is_some() {
        let mut buffer = [0; 4096];
        let count = from.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        if count == 0 || bytes.len() as u64 > FINDINGS_BYTES_MAX {
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), count == 0));
        }
    }
    Ok((String::from_utf8_lossy(&bytes).into_owned(), false))
}

/// The process that would serve.
fn serve_once(sink: &mut Sink, config: &Config, has_device: bool) {
    let _stand_ins = match stand_ins() {
        Ok(files) => files,
        Err(error) => return sink.send(&Finding::failure(START, error.to_string())),
    };
    let isolation = match Isolation::detect(false) {
        Ok(isolation) => isolation,
        Err(error) => return sink.send(&Finding::failure(NAMESPACES, error.to_string())),
    };
    let (ours, theirs) = match Channel::pair() {
        Ok(pair) => pair,
        Err(error) => return sink.send(&Finding::failure(START, chain(error))),
    };
    let first = match isolation.fork() {
        Ok(Forked::Child) => {
            drop(ours);
            set_up(sink, config, &isolation, &theirs, has_device);
            std::process::exit(0);
        }
        Ok(Forked::Parent(child)) => ChildGuard::new(child),
        Err(error) => return sink.send(&no_namespaces(error)),
    };
    drop(theirs);
    let inside = receive_inside(&ours);
    // The TAP device keeps the network namespace alive.
    let ended = first.wait();
    let inside = match inside {
        Ok(Some(inside)) => inside,
        // It has reported why, or was killed.
        Ok(None) => match ended.map(Ending::from) {
            Ok(Ending::Signal(signal)) => {
                let text =
                    format!("the process that sets up the network was killed by signal {signal}");
                return sink.send(&Finding::failure(START, text));
            }
            _ => return,
        },
        Err(error) => return sink.send(&Finding::failure(START, format!("{error:#}"))),
    };
    let isolated = match confine::isolate() {
        Ok(refused) => refused,
        Err(error) => return sink.send(&Finding::failure(CONFINEMENT, error.to_string())),
    };
    let gateway = match Gateway::start(config, inside, None, Messages::Quiet) {
        Ok(gateway) => gateway,
        Err(error) => return sink.send(&Finding::failure(START, format!("{error:#}"))),
    };
    let sealed = confine::seal(Mode::Program);
    let mebibytes = config.memory_bytes >> 20;
    sink.send(&Finding::ok(START, format!("the gateway starts, with {mebibytes} MiB for packets")));
    sink.send(&confinement(isolated, sealed.err()));
    drop(gateway);
}

/// Returns files that take descriptors in the place of others.
fn stand_ins() -> io::Result<Vec<OwnedFd>> {
    (0..STAND_INS).map(|_| init::null_device()).collect()
}

/// Process 1 of the namespaces: does what it does before it runs the program.
fn set_up(
    sink: &mut Sink,
    config: &Config,
    isolation: &Isolation,
    channel: &Channel,
    has_device: bool,
) {
    if let Err(error) = isolation.adopt() {
        return sink.send(&no_namespaces(error));
    }
    sink.send(&Finding::ok(
        NAMESPACES,
        match isolation.is_privileged() {
            true => "network, mount and PID namespaces; privileged, so no user namespace is needed",
            false => "user, network, mount and PID namespaces can be made",
        },
    ));
    sink.send(&mounts(mount(config)));
    if !has_device {
        return;
    }
    let interface = match Interface::make(config, SELF_TEST_PATIENCE) {
        Ok(interface) => interface,
        Err(error) => return sink.send(&Finding::failure("interface", format!("{error:#}"))),
    };
    let (name, mtu) = (&config.interface, config.mtu);
    sink.send(&match interface.configured {
        Configured::Whole => {
            Finding::ok("interface", format!("{name} with IPv4 and IPv6, MTU {mtu}"))
        }
        Configured::WithoutIpv6(errno) => Finding::warning("interface", no_ipv6(errno)).fix(
            "boot without `ipv6.disable=1`, and run `sysctl net.ipv6.conf.all.disable_ipv6=0`",
        ),
    });
    // The report begins with the name of the check.
    let report = interface.report.to_string();
    let report = report.strip_prefix("offload: ").unwrap_or(&report).to_owned();
    sink.send(&match interface.has_failures() {
        false => Finding::ok("offload", report),
        true => Finding::warning("offload", format!("{report}; towpath does it itself"))
            .fix("UDP super-packets (uso) need Linux 6.2, and all others a kernel without filters"),
    });
    sink.send(&match relax_network_limits(isolation) {
        true => Finding::ok("limits", "inside, all ports and ping are for ordinary users, too"),
        false => Finding::warning("limits", LIMITS_STAY).fix(
            "in a container, make /proc/sys writable (`--security-opt systempaths=unconfined`)",
        ),
    });
    // The other process reports if this fails.
    let _ = channel.send(&interface.into_message());
}

fn no_namespaces(error: NamespaceError) -> Finding {
    let (mut value, forbidden) = match error {
        NamespaceError::Forbidden(forbidden) => {
            let problem = forbidden.problem();
            (format!("user namespaces are forbidden here: {problem}"), Some(forbidden))
        }
        other => (chain(other), None),
    };
    let finding = |value: String| Finding::failure(NAMESPACES, value);
    if let (Some(name), None | Some(Forbidden::LimitReached)) = (exhausted(), forbidden) {
        value.push_str(&format!("; {name} is 0"));
        return finding(value).fix(format!("run `sysctl {name}=10000` as root"));
    }
    match (forbidden, seccomp_mode()) {
        (None | Some(Forbidden::Sandbox), Some(mode)) => {
            value.push_str(&format!(" (Seccomp: {mode} in /proc/self/status)"));
            finding(value).fix(Forbidden::Sandbox.remedy())
        }
        (Some(forbidden), _) => finding(value).fix(forbidden.remedy()),
        (None, None) => finding(value),
    }
}

/// Returns the limit of namespaces that permits none of its kind, if there is one.
fn exhausted() -> Option<String> {
    let names = ["user", "net", "mnt", "pid"].map(|kind| format!("max_{kind}_namespaces"));
    let name = names
        .into_iter()
        .find(|name| sysctl(&format!("user/{name}")).is_some_and(|limit| limit == "0"))?;
    Some(format!("user.{name}"))
}

fn mounts(failed: Vec<Unmounted>) -> Finding {
    if failed.is_empty() {
        return Finding::ok("mounts", "resolv.conf and /proc are replaced inside");
    }
    let texts: Vec<String> = failed
        .into_iter()
        .map(|unmounted| match unmounted {
            Unmounted::Notice(text) | Unmounted::Detail(text) => text,
        })
        .collect();
    Finding::warning("mounts", texts.join("; ")).fix(
        "in a container, permit mounts and unmask /proc (`--security-opt \
         systempaths=unconfined`)",
    )
}

fn confinement(
    namespaces: Option<rustix::io::Errno>,
    filter: Option<confine::FilterError>,
) -> Finding {
    let state = confine::state();
    let mut layers: Vec<String> = Vec::new();
    let mut missing = Vec::new();
    for (name, is_in_force) in state.layers() {
        match (name, is_in_force) {
            ("landlock", true) => {
                layers.push(format!("landlock (ABI {})", confine::landlock_version()));
            }
            (_, true) => layers.push(name.to_owned()),
            (_, false) => missing.push(name),
        }
    }
    if missing.is_empty() {
        return Finding::ok(CONFINEMENT, layers.join(", "));
    }
    let mut value = format!("{}; without {}", layers.join(", "), missing.join(", "));
    if let Some(errno) = namespaces {
        value.push_str(&format!("; namespaces are not available here ({errno})"));
    }
    if let Some(error) = filter {
        value.push_str(&format!("; {error}"));
    }
    let fix = match missing[0] {
        "namespaces" => "let users make user namespaces, as for the check `namespaces`",
        "landlock" => "use Linux 5.13 or later, with landlock in `lsm=` of its command line",
        _ => "use a kernel with CONFIG_SECCOMP_FILTER",
    };
    Finding::warning(CONFINEMENT, value).fix(fix)
}

/// Returns an error and its causes.
fn chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_namespace_names_the_switch_and_the_command() {
        let finding = no_namespaces(NamespaceError::Forbidden(Forbidden::SwitchedOff));
        assert_eq!(finding.status, Status::Failure);
        assert!(finding.value.ends_with("kernel.unprivileged_userns_clone is 0"));
        let fix = finding.fix.expect("a command");
        assert!(fix.starts_with("run `sysctl kernel.unprivileged_userns_clone=1` as root"));
    }

    #[test]
    fn the_end_of_a_trial_is_explained() {
        use std::os::unix::process::ExitStatusExt;
        let ended = |status| how_it_ended(Some(ExitStatus::from_raw(status)));
        assert!(ended(31).ends_with("killed by signal 31"));
        assert!(ended(1 << 8).contains("code 1"));
        assert_eq!(how_it_ended(None), "no result in 30 seconds");
    }
}
