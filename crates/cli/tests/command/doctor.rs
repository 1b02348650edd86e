//! `towpath doctor`: its findings on a machine that works and with things taken away, and that it
//! agrees with `towpath run` and leaves nothing behind.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::*;

/// The checks of a machine on which everything can be tried.
const CHECKS: [&str; 17] = [
    "kernel",
    "tun",
    "namespaces",
    "mounts",
    "interface",
    "offload",
    "limits",
    "start",
    "confinement",
    "descriptors",
    "resolvers",
    "ping",
    "control",
    "vhost-user",
    "memory",
    "kvm",
    "io_uring",
];

/// Parses the output of `towpath doctor --json`, and checks what holds for any.
fn parse(output: &Output) -> Value {
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let works = report["works"].as_bool().expect("works");
    assert_eq!(output.status.code(), Some(if works { 0 } else { 1 }), "{report}");
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let mut failures = 0;
    for check in report["checks"].as_array().expect("checks") {
        assert!(CHECKS.contains(&check["check"].as_str().expect("a name")), "{check}");
        assert!(!check["value"].as_str().expect("a value").is_empty(), "{check}");
        match check["status"].as_str() {
            Some("ok") => assert_eq!(check["fix"], Value::Null, "{check}"),
            Some("warning") => {}
            Some("failure") => failures += 1,
            _ => panic!("{check}"),
        }
    }
    assert_eq!(works, failures == 0, "{report}");
    report
}

/// Returns a check of a report.
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let found = report["checks"].as_array().unwrap().iter().find(|check| check["check"] == name);
    found.unwrap_or_else(|| panic!("{name} is missing: {report}"))
}

fn has(report: &Value, name: &str) -> bool {
    report["checks"].as_array().unwrap().iter().any(|check| check["check"] == name)
}

/// Asserts the status of a check, and that its value and its fix have these parts.
fn assert_check(report: &Value, name: &str, status: &str, value: &str, fix: &str) {
    let check = check(report, name);
    assert_eq!(check["status"], status, "{check}");
    assert!(check["value"].as_str().unwrap().contains(value), "{check}");
    assert!(check["fix"].as_str().unwrap_or_default().contains(fix), "{check}");
}

/// Asserts that no process of this copy of the command runs, and that no interface and no mount is
/// left.
fn assert_nothing_runs(copy: &str) {
    let runs = || {
        let program = |pid: i32| fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        processes().into_iter().any(|pid| program(pid).starts_with(copy))
    };
    assert!(!runs(), "a process is left");
    assert!(!fs::exists("/sys/class/net/tap0").unwrap(), "an interface is left on the host");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(" towpath "), "a mount is left on the host:\n{mounts}");
}

/// Goal: on this machine the doctor agrees with `run`, all checks are there, and nothing is left.
#[test]
fn the_doctor_agrees_with_run_and_leaves_nothing() {
    skip_if!(no_tap());
    let copy = PublicCopy::new("doctor");
    let examined = output(Command::new(copy.path()).args(["doctor", "--json"]));
    assert_nothing_runs(&copy.path());
    assert_eq!(errors(&examined), "");
    let report = parse(&examined);
    let names: Vec<&str> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|check| check["check"].as_str().unwrap())
        .collect();
    assert_eq!(names, CHECKS);
    let run = output(&mut towpath(["run", "-q", "true"]));
    assert_eq!(run.status.code(), Some(0), "{}", errors(&run));
    assert_eq!(report["works"], true, "{report}");
}

#[test]
fn people_get_a_line_for_each_check() {
    skip_if!(no_tap());
    let shown = output(&mut towpath(["doctor"]));
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown));
    let shown = text(&shown);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), CHECKS.len() + 1, "{shown}");
    for (line, name) in lines.iter().zip(CHECKS) {
        let mut words = line.split_ascii_whitespace();
        assert!(matches!(words.next(), Some("ok" | "warning")), "{line}");
        assert_eq!(words.next(), Some(name));
    }
    assert!(lines[CHECKS.len()].starts_with("`towpath run` works here; "), "{shown}");
}

#[test]
fn an_ordinary_user_is_examined_as_such() {
    skip_if!(no_root());
    let copy = PublicCopy::new("doctor-user");
    let examined = output(&mut as_user(&format!("exec $USER_RUN {} doctor --json", copy.path())));
    assert_nothing_runs(&copy.path());
    let report = parse(&examined);
    assert_eq!(report["works"], true, "{report}");
    assert_check(&report, "namespaces", "ok", "user, network, mount and PID namespaces", "");
}

/// Goal: each missing device says what to do, and what does not need it is examined all the same.
#[test]
fn a_device_that_is_missing_or_forbidden() {
    skip_if!(no_root());
    let copy = PublicCopy::new("doctor-device");
    let cases = [
        ("rm /dev/net/tun", "is missing", "modprobe tun"),
        ("chmod 0600 /dev/net/tun", "no permission to open", "chmod 666 /dev/net/tun"),
    ];
    for (take_away, value, fix) in cases {
        let script = format!("{take_away}; exec $USER_RUN {} doctor --json", copy.path());
        let report = parse(&output(&mut as_user(&script)));
        assert_check(&report, "tun", "failure", value, fix);
        assert_check(&report, "namespaces", "ok", "can be made", "");
        assert!(!has(&report, "interface") && !has(&report, "start"), "{report}");
        assert!(has(&report, "io_uring"), "{report}");
        let script = format!("{take_away}; exec $USER_RUN {} doctor", copy.path());
        let shown = output(&mut as_user(&script));
        assert_eq!(shown.status.code(), Some(1));
        let last = text(&shown).lines().last().unwrap_or_default().to_owned();
        assert!(last.starts_with("`towpath run` does not work here: 1 failure, "), "{last}");
    }
}

#[test]
fn forbidden_user_namespaces_name_the_switch() {
    skip_if!(no_root());
    let script = "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all \
                  --inh-caps=-all \"$0\" doctor --json";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script, TOWPATH]);
    let report = parse(&output(&mut command));
    let value = "user namespaces are forbidden here: user.max_user_namespaces is 0";
    let fix = "run `sysctl user.max_user_namespaces=10000` as root";
    assert_check(&report, "namespaces", "failure", value, fix);
    assert_eq!(report["works"], false);
    assert!(!has(&report, "start"), "what needs them is not tried: {report}");
}

/// Goal: a limit of another kind of namespaces is named, too, for a user and for root.
#[test]
fn limits_of_namespaces_are_named() {
    skip_if!(no_root());
    for bounding in ["--bounding-set=-all --inh-caps=-all", "--inh-caps=-all"] {
        let script = format!(
            "echo 0 > /proc/sys/user/max_net_namespaces; exec setpriv {bounding} \"$0\" doctor \
             --json"
        );
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", &script, TOWPATH]);
        let report = parse(&output(&mut command));
        let fix = "run `sysctl user.max_net_namespaces=10000` as root";
        assert_check(&report, "namespaces", "failure", "user.max_net_namespaces is 0", fix);
    }
}

/// Goal: without /proc nothing can be tried, and the report says so.
#[test]
fn a_host_without_proc_is_found() {
    skip_if!(no_root());
    let script = "umount -l /proc && exec \"$0\" doctor --json";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, TOWPATH]);
    let report = parse(&output(&mut command));
    assert_check(&report, "start", "failure", "/proc is not mounted", "mount -t proc proc /proc");
    assert_check(&report, "kernel", "warning", "cannot be read", "");
}

/// Goal: where the doctor says that `run` works, it does, however few descriptors there are. With
/// very few the doctor, as every program, may end with an error of its own.
#[test]
fn few_descriptors_are_found() {
    skip_if!(no_tap());
    let limited = |limit: u32, arguments: &[&str]| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={limit}:{limit}")).arg(TOWPATH).args(arguments);
        output(&mut command)
    };
    for limit in [8, 12, 14, 16, 20, 64] {
        let examined = limited(limit, &["doctor", "--json"]);
        let run = limited(limit, &["run", "-q", "true"]);
        if examined.status.code() == Some(0) {
            assert_eq!(run.status.code(), Some(0), "{limit}: {}", errors(&run));
        }
        if limit >= 16 {
            let value = format!("hard limit {limit}, which counts: room for 0 flows of 20480");
            let report = parse(&examined);
            assert_check(&report, "descriptors", "warning", &value, "`ulimit -Hn 32768`");
        }
        if limit == 64 {
            assert_eq!(examined.status.code(), Some(0), "{}", text(&examined));
        }
    }
}

/// Goal: ping is judged by the groups of the user. Method: the range of a network namespace of its
/// own.
#[test]
fn ping_depends_on_the_groups_of_the_user() {
    skip_if!(no_root());
    let copy = PublicCopy::new("doctor-ping");
    let with_range = |range: &str| {
        let script = format!(
            "ip link set lo up; echo {range} >/proc/sys/net/ipv4/ping_group_range; exec setpriv \
             --reuid 1000 --regid 1000 --groups 1001 -- {} doctor --json",
            copy.path()
        );
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &script]);
        let examined = output(&mut command);
        serde_json::from_slice::<Value>(&examined.stdout).expect("JSON")
    };
    assert_check(&with_range("1001 1001"), "ping", "ok", "1001 1001, which has a group", "");
    let fix = "run `sysctl net.ipv4.ping_group_range=\"0 2147483647\"` as root";
    let value = "is 5 6, without a group of this user (1000, 1001)";
    assert_check(&with_range("5 6"), "ping", "warning", value, fix);
}

#[test]
fn a_host_without_resolvers_is_found() {
    skip_if!(no_root());
    skip_if!((!fs::exists("/etc/resolv.conf").unwrap()).then_some("/etc/resolv.conf is missing"));
    let with = |cover: &str| {
        let script = format!("{cover} && exec \"$0\" doctor --json");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, TOWPATH]);
        parse(&output(&mut command))
    };
    let empty = with("mount --bind /dev/null /etc/resolv.conf");
    assert_check(&empty, "resolvers", "warning", "lists no resolver", "use --dns");
    assert_eq!(empty["works"], true, "{empty}");
    let named = with(
        "mount -t tmpfs none /mnt && echo nameserver 192.0.2.7 >/mnt/r && mount --bind /mnt/r \
         /etc/resolv.conf",
    );
    assert_check(&named, "resolvers", "ok", "/etc/resolv.conf names 192.0.2.7", "");
}

/// Goal: a report that cannot be written is an error, and leaves nothing either.
#[test]
fn a_report_without_a_reader_is_an_error() {
    skip_if!(no_tap());
    let copy = PublicCopy::new("doctor-pipe");
    let script = "{ \"$0\" doctor; echo $? >&2; } | true";
    let closed = output(Command::new("sh").args(["-c", script, &copy.path()]));
    assert!(errors(&closed).ends_with("125\n"), "{}", errors(&closed));
    assert_nothing_runs(&copy.path());
}
