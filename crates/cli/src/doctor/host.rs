//! Checks of the host that change nothing: they read settings, and open files and sockets.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getegid, getgroups, getrlimit};
use towpath_gateway::config::FLOWS_DEFAULT;
use towpath_io::doorbell::EventDoorbell;
use towpath_io::events::{BackEnd, Choice};
use towpath_io::socket::{PingError, PingKind, PingSocket};
use towpath_io::tap;

use crate::config::settings::{NAME_A_RESOLVER, RESOLV_CONF, host_resolvers};
use crate::control::instances;
use crate::doctor::finding::Finding;

/// Major and minor number of a version of Linux.
type Version = (u32, u32);

/// The oldest Linux that towpath runs on.
const LINUX_MIN: Version = (5, 3);
/// Versions that brought something, without which towpath falls back.
const SINCE: [(Version, &str); 3] = [
    ((5, 11), "timers finer than a millisecond"),
    ((5, 14), "lending sealed files"),
    ((6, 2), "UDP super-packets"),
];

/// File descriptors that a serving process needs for itself: its device, its control socket with
/// connections, listeners of some ports.
const OWN_DESCRIPTORS: u64 = 64;
/// Descriptors for the flows of the default limits, which for UDP are a quarter of those for TCP.
const FLOW_DESCRIPTORS: u64 = (FLOWS_DEFAULT + FLOWS_DEFAULT / 4) as u64;

/// The version of Linux.
pub(super) fn kernel() -> Finding {
    const CHECK: &str = "kernel";
    let release = sysctl("kernel/osrelease").unwrap_or_default();
    match parse_version(&release) {
        Some(version) => judge_kernel(version, &release),
        None => Finding::warning(CHECK, "the version of Linux cannot be read from /proc/sys"),
    }
}

fn judge_kernel(version: Version, release: &str) -> Finding {
    const CHECK: &str = "kernel";
    let (major, minor) = LINUX_MIN;
    let newer = "use a newer kernel";
    if version < LINUX_MIN {
        let text = format!("Linux {release} is older than {major}.{minor}");
        return Finding::failure(CHECK, text).fix(newer);
    }
    let missing: Vec<String> = SINCE
        .iter()
        .filter(|(since, _)| version < *since)
        .map(|((major, minor), what)| format!("{what} (Linux {major}.{minor})"))
        .collect();
    if missing.is_empty() {
        return Finding::ok(CHECK, format!("Linux {release}; {major}.{minor} or later is needed"));
    }
    Finding::warning(CHECK, format!("Linux {release}; without {}", missing.join(", "))).fix(newer)
}

/// Returns major and minor number of a release, such as 6.1.0-13-amd64.
fn parse_version(release: &str) -> Option<Version> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The device file of TAP devices.
pub(super) fn tun() -> Finding {
    const CHECK: &str = "tun";
    match tap::check_device_file() {
        Ok(()) => Finding::ok(CHECK, "/dev/net/tun can be read and written"),
        Err(error) => {
            let finding = Finding::failure(CHECK, error.problem());
            match error.remedy() {
                Some(remedy) => finding.fix(remedy),
                None => finding,
            }
        }
    }
}

/// The limit of file descriptors, and the flows that it allows.
pub(super) fn descriptors() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    judge_descriptors(limit.current, limit.maximum)
}

fn judge_descriptors(soft: Option<u64>, hard: Option<u64>) -> Finding {
    const CHECK: &str = "descriptors";
    let named = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |n| n.to_string());
    let room = hard.map_or(FLOW_DESCRIPTORS, |hard| hard.saturating_sub(OWN_DESCRIPTORS));
    let value = format!(
        "soft limit {}, hard limit {}, which counts: room for {} flows of {FLOW_DESCRIPTORS}",
        named(soft),
        named(hard),
        room.min(FLOW_DESCRIPTORS)
    );
    if room >= FLOW_DESCRIPTORS {
        return Finding::ok(CHECK, value);
    }
    Finding::warning(CHECK, value).fix(
        "raise the hard limit: `ulimit -Hn 32768` as root, nofile in /etc/security/limits.conf, \
         or LimitNOFILE= of a systemd unit",
    )
}

/// The resolvers that DNS is relayed to.
pub(super) fn resolvers() -> Finding {
    const CHECK: &str = "resolvers";
    if let Err(error) = File::open(RESOLV_CONF) {
        let text = format!("cannot read {RESOLV_CONF}: {error}; no name will be found");
        return Finding::warning(CHECK, text).fix(NAME_A_RESOLVER);
    }
    let names: Vec<String> =
        host_resolvers().iter().map(|resolver| resolver.ip().to_string()).collect();
    if names.is_empty() {
        let text = format!("{RESOLV_CONF} lists no resolver, so names cannot be resolved");
        return Finding::warning(CHECK, text).fix(NAME_A_RESOLVER);
    }
    Finding::ok(CHECK, format!("{RESOLV_CONF} names {}", names.join(", ")))
}

/// Ping to other hosts.
pub(super) fn ping() -> Finding {
    const CHECK: &str = "ping";
    const IDENTIFIER: u16 = 1;
    let range = sysctl("net/ipv4/ping_group_range").unwrap_or_else(|| "unknown".to_owned());
    let range = range.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let range = format!("net.ipv4.ping_group_range is {range}");
    match PingSocket::connect(IpAddr::V4(Ipv4Addr::LOCALHOST), IDENTIFIER) {
        Ok(socket) if socket.kind() == PingKind::Datagram => {
            Finding::ok(CHECK, format!("{range}, which has a group of this user"))
        }
        Ok(_) => Finding::ok(CHECK, format!("with raw sockets (CAP_NET_RAW); {range}")),
        Err(PingError::NotPermitted) => {
            let groups = groups();
            let text = format!(
                "{range}, without a group of this user ({groups}), and CAP_NET_RAW is missing: no \
                 ping to other hosts"
            );
            Finding::warning(CHECK, text)
                .fix("run `sysctl net.ipv4.ping_group_range=\"0 2147483647\"` as root")
        }
        Err(error) => Finding::warning(CHECK, format!("{error}; {range}")),
    }
}

/// Returns the groups of this process.
fn groups() -> String {
    let mut all = vec![getegid().as_raw()];
    all.extend(getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw()));
    all.sort_unstable();
    all.dedup();
    all.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The folder of control sockets.
pub(super) fn control() -> Finding {
    const CHECK: &str = "control";
    match instances::usable_folder() {
        Ok(folder) => Finding::ok(CHECK, format!("control sockets are in {}", folder.display())),
        Err(error) => {
            let text = format!("{error:#}; `towpath stats` and others do not find instances");
            Finding::warning(CHECK, text)
                .fix("set XDG_RUNTIME_DIR to a folder that only this user can access")
        }
    }
}

/// Memory that virtual machines can share.
pub(super) fn memory() -> Finding {
    const CHECK: &str = "memory";
    if let Err(errno) = memfd_create("towpath-doctor", MemfdFlags::CLOEXEC) {
        let text = format!("memfd_create fails ({errno}), which vhost-user needs");
        return Finding::warning(CHECK, text).fix("allow memfd_create in the seccomp filter");
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches(':').trim().to_owned())
    };
    let pages = match (of("HugePages_Total"), of("HugePages_Free"), of("Hugepagesize")) {
        (Some(total), Some(free), Some(size)) => {
            format!("{total} huge pages of {size} are reserved, {free} are free")
        }
        _ => "the kernel has no huge pages".to_owned(),
    };
    Finding::ok(CHECK, format!("guests can share memory of memfd_create; {pages}"))
}

/// Hardware virtualization.
pub(super) fn kvm() -> Finding {
    const CHECK: &str = "kvm";
    const FILE: &str = "/dev/kvm";
    let opened = File::options().read(true).write(true).open(FILE);
    let slow = "virtual machines are emulated, which is slow";
    match opened.map_err(|error| (error.kind(), error)) {
        Ok(_) => Finding::ok(CHECK, format!("{FILE} can be read and written")),
        Err((ErrorKind::NotFound, _)) => {
            Finding::warning(CHECK, format!("{FILE} is missing: {slow}")).fix(
                "run `modprobe kvm_intel` or `modprobe kvm_amd` as root, and switch virtualization \
                 on in the firmware or in the hypervisor",
            )
        }
        Err((ErrorKind::PermissionDenied, _)) => {
            Finding::warning(CHECK, format!("{FILE} may not be opened: {slow}"))
                .fix("run `usermod -aG kvm USER` as root, and log in again")
        }
        Err((_, error)) => {
            Finding::warning(CHECK, format!("{FILE} cannot be opened ({error}): {slow}"))
                .fix("switch virtualization on in the firmware or in the hypervisor")
        }
    }
}

/// io_uring, which event queues of the libraries prefer.
pub(super) fn io_uring() -> Finding {
    const CHECK: &str = "io_uring";
    let switch = sysctl("kernel/io_uring_disabled");
    let shown = switch
        .as_deref()
        .map_or(String::new(), |value| format!("; kernel.io_uring_disabled is {value}"));
    let made = EventDoorbell::new()
        .map_err(io::Error::from)
        .and_then(|doorbell| BackEnd::new(Choice::IoUring, &doorbell));
    let Err(error) = made else {
        return Finding::ok(CHECK, format!("rings can be made{shown}"));
    };
    let text = format!("rings cannot be made ({error}){shown}; event queues use epoll");
    let is_off = switch.is_some_and(|value| value != "0");
    Finding::warning(CHECK, text).fix(match Errno::from_io_error(&error) {
        Some(Errno::PERM) if is_off => "run `sysctl kernel.io_uring_disabled=0` as root",
        Some(Errno::NOMEM) => "raise the limit of locked memory (`ulimit -l`)",
        Some(Errno::NOSYS) => "use Linux 5.11 or later, with CONFIG_IO_URING",
        _ => "allow io_uring_setup in the seccomp filter of the container",
    })
}

/// Returns the seccomp mode of this process if a filter or strict mode is in force.
pub(super) fn seccomp_mode() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?.trim();
    (mode != "0").then(|| mode.to_owned())
}

/// Returns a setting of /proc/sys.
pub(super) fn sysctl(name: &str) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Status;

    #[test]
    fn releases_are_read() {
        assert_eq!(parse_version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(parse_version("5.10"), Some((5, 10)));
        assert_eq!(parse_version("6.18-rc1"), Some((6, 18)));
        assert_eq!(parse_version("6"), None);
        assert_eq!(parse_version(""), None);
        assert_eq!(parse_version("x.y"), None);
    }

    /// Goal: old kernels fail, and newer ones warn of what they lack; the versions are those of
    /// the documentation.
    #[test]
    fn kernels_are_judged_by_their_version() {
        let judge =
            |version: Version| judge_kernel(version, &format!("{}.{}", version.0, version.1));
        assert_eq!(judge((5, 2)).status, Status::Failure);
        assert_eq!(judge((4, 19)).status, Status::Failure);
        assert_eq!(judge((6, 2)).status, Status::Ok);
        let old = judge((5, 11));
        assert_eq!(old.status, Status::Warning);
        assert!(old.value.contains("UDP super-packets (Linux 6.2)"), "{}", old.value);
        assert!(!old.value.contains("timers"), "{}", old.value);
        const README: &str = include_str!("../../../../README.md");
        assert!(README.contains(&format!("Linux {}.{} or later", LINUX_MIN.0, LINUX_MIN.1)));
        const MANUAL: &str = include_str!("../../../../docs/cli.md");
        let reported = MANUAL.split_once("## Requirements").expect("a section").1;
        for ((major, minor), _) in SINCE {
            assert!(reported.contains(&format!("{major}.{minor}")), "{major}.{minor}");
        }
    }

    #[test]
    fn descriptors_bound_the_flows() {
        let few = judge_descriptors(Some(256), Some(1064));
        assert_eq!(few.status, Status::Warning);
        assert!(few.value.contains("room for 1000 flows of 20480"), "{}", few.value);
        assert!(judge_descriptors(Some(10), Some(20)).value.contains("room for 0 flows"));
        for enough in [Some(FLOW_DESCRIPTORS + OWN_DESCRIPTORS), None] {
            assert_eq!(judge_descriptors(Some(1024), enough).status, Status::Ok);
        }
    }
}
