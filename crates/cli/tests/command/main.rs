//! The `towpath` command as seen from a shell: everything that needs no packets to move.
//!
//! Tests that need a TAP device or root report that they are skipped if they cannot run. Tests
//! signal only processes that they have started, by process number.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attach;
mod capture;
mod capture_guests;
mod changed_ports;
mod changed_workers;
mod completions;
mod confinement;
mod control;
mod descriptors;
mod doctor;
mod duplicates;
mod engines;
mod follow;
mod front_end;
mod guest;
mod guest6;
mod isolated;
mod isolation;
mod joined_udp;
mod limits;
mod link;
mod manual;
mod mirrored;
mod multicast;
mod network;
mod notify;
mod passt;
mod pasta;
mod port_policies;
mod published;
mod sandboxes;
mod several_workers;
mod slirp4netns;
mod stats;
mod support;
mod terminal;
mod top;
mod vhost;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use support::*;

#[test]
fn exit_status_is_the_programs() {
    skip_if!(no_tap());
    let code = |command: &mut Command| output(command).status.code();
    assert_eq!(code(&mut towpath(["run", "--", "true"])), Some(0));
    assert_eq!(code(&mut towpath(["run", "false"])), Some(1));
    assert_eq!(code(&mut run_script("exit 7")), Some(7));
    assert_eq!(code(&mut run_script("kill -TERM $$")), Some(128 + 15));
    assert_eq!(code(&mut run_script("kill -KILL $$")), Some(128 + 9));
    let interrupted = output(&mut run_script("kill -INT $$")).status;
    assert_eq!(interrupted.signal(), Some(2), "so that a shell stops its loop; $? is 130");
}

#[test]
fn programs_that_cannot_run() {
    skip_if!(no_tap());
    let missing = output(&mut towpath(["run", "--", "no-such-program"]));
    assert_eq!(missing.status.code(), Some(127));
    assert_eq!(errors(&missing), "towpath: no-such-program: command not found\n");
    let not_executable = output(&mut towpath(["run", "--", "/etc/passwd"]));
    assert_eq!(not_executable.status.code(), Some(126));
    assert!(errors(&not_executable).starts_with("towpath: cannot execute /etc/passwd: "));
    let directory = output(&mut towpath(["run", "--", "/etc"]));
    assert_eq!(directory.status.code(), Some(126));
}

#[test]
fn arguments_environment_and_streams_reach_the_program() {
    skip_if!(no_tap());
    let script = "printf '%s|' \"$@\"; printf '%s' \"$LOCK\"; cat; echo err >&2; pwd";
    let mut command = towpath(["run", "--", "sh", "-c", script, "sh", "a b", "", "--", "-x"]);
    command.env("LOCK", "gate").current_dir("/usr");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Guard(command.spawn().unwrap());
    child.0.stdin.take().unwrap().write_all(b"\nfrom stdin\n").unwrap();
    let output = finish(child);
    assert_eq!(text(&output), "a b||--|-x|gate\nfrom stdin\n/usr\n");
    assert_eq!(errors(&output), "err\n");
}

#[test]
fn the_shell_is_the_default_program() {
    skip_if!(no_tap());
    let mut command = towpath(["run"]);
    command.env("SHELL", "/bin/sh").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Guard(command.spawn().unwrap());
    child.0.stdin.take().unwrap().write_all(b"echo $0 $$; exit 3\n").unwrap();
    let output = finish(child);
    assert_eq!(text(&output), "/bin/sh 2\n");
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn help_and_version() {
    for arguments in [&["--help"][..], &["run", "--help"], &["attach", "-h"], &["help", "run"]] {
        let output = output(&mut towpath(arguments.iter().copied()));
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output).contains("Usage: towpath"), "{arguments:?}");
        assert!(text(&output).contains("125  towpath itself failed"), "{arguments:?}");
    }
    let version = output(&mut towpath(["--version"]));
    assert_eq!(text(&version), concat!("towpath ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_usage_ends_with_2_and_says_why() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["run", "--no-such-option"], "--no-such-option"),
        (&["run", "--workers", "all"], "expected 1 to 8, or 'auto'"),
        (&["run", "-t", "80", "-t", "80"], "port 80 is given twice"),
        (&["run", "-T", "80,81", "-T", "81:82"], "port 81 is given twice"),
        (&["run", "-T", "127.0.0.1/80"], "give ports only, which are those of"),
        (&["run", "-T", "%lo/80"], "give ports only, which are those of"),
        (&["run", "-T", "all"], "'all' means all ports; list the ports"),
        (&["run", "-T", "~80"], "'~80' means all ports; list the ports"),
        (
            &["run", "-T", "1-257"],
            "too many ports that lead to the host's loopback: 257; at most 256",
        ),
        (
            &["attach", "-T", "0", "1"],
            "--host-tcp-ports: port specification '0': '0' is not a port",
        ),
        (&["run", "-U", "all"], "--host-udp-ports: port specification 'all': 'all' means all"),
        (&["run", "-U", "53,54", "-U", "54:55"], "port 54 is given twice"),
        (&["run", "-U", "127.0.0.1/53"], "give ports only, which are those of"),
        (&["run", "-U", "0"], "--host-udp-ports: port specification '0': '0' is not a port"),
        (
            &["attach", "-T", "1-200", "-U", "1-57", "1"],
            "too many ports that lead to the host's loopback: 257; at most 256",
        ),
        (&["run", "-t", "::1:8080:80"], "separate the address by '/': ::1/8080:80"),
        (&["run", "-u", "x"], "--udp-ports: port specification 'x': 'x' is not a port"),
        (&["run", "-m", "575"], "'575' for '--mtu <BYTES>': 575 is not in 576..=65520"),
        (&["run", "-m", "65521"], "65521 is not in 576..=65520"),
        (&["run", "-6", "-m", "1000"], "MTU 1000 is too small for IPv6; expected at least 1280"),
        (&["run", "-4", "-6"], "cannot be used with"),
        (&["run", "-v", "-q"], "cannot be used with"),
        (&["run", "--subnet", "10.0.2.9/24"], "did you mean 10.0.2.0/24?"),
        (&["run", "--map-host-loopback", "127.0.0.1"], "program's own loopback"),
        (&["run", "--dns", "resolver"], "invalid IP address"),
        (&["run", "--memory", "1"], "expected at least 16 MiB for each worker"),
        (
            &["run", "--max-flows", "0"],
            "0 concurrent flows are out of range; expected 1 to 1048576",
        ),
        (&["run", "--congestion", "vegas"], "expected reno, cubic or bbr"),
        (&["run", "--lend-to-host", "yes"], "expected never, auto or always"),
        (&["run", "--ifname", "a/b"], "'a/b' is not a valid name for a network interface"),
        (&["run", "--ready-fd", "1"], "--ready-fd"),
        (&["attach"], "PID"),
        (&["attach", "1", "--netns", "x"], "cannot be used with"),
        (&["doctor", "run"], "unexpected argument 'run'"),
        (&["completions"], "<SHELL>"),
        (&["completions", "tcsh"], "[possible values: bash, zsh, fish]"),
    ];
    each_ends_with_2(cases);
    let mut not_text = towpath(["run", "-m", "575"]);
    let output = output(not_text.arg(OsStr::from_bytes(b"\xff")));
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
}

/// Goal: a message about a value shows the value, and what is expected instead.
#[test]
fn wrong_values_end_with_2_and_name_the_right_ones() {
    each_ends_with_2(&[
        (&["attach", "0"], "'0' for '[PID]': expected a PID"),
        (&["attach", "web"], "'web' for '[PID]': expected a PID"),
        (&["stats", "web"], "expected a PID"),
        (&["ls", "--pid", "-1"], "'-1'"),
        (&["run", "--memory", "12X"], "'12X' for '--memory <SIZE>': expected a number of bytes"),
        (&["run", "--subnet", "10.0.2.0"], "expected ADDRESS/LENGTH, for example 10.0.2.0/24"),
        (&["run", "--subnet", "10.0.2.0/30"], "prefix length 30 is out of range; expected 8 to 29"),
        (&["run", "--subnet", "127.0.0.0/8"], "these addresses are reserved"),
        (&["run", "--dns", "0.0.0.0"], "0.0.0.0 cannot be the address of a resolver"),
        (&["run", "--map-host-loopback", "10.0.2.15"], "cannot map 10.0.2.15 to the host's"),
        (&["run", "-t", "2-1"], "'2-1' is not a range of ports"),
        (&["run", "-t", "all", "-t", "80"], "'all' cannot be combined"),
        (&["port", "set", "a"], "expected settings and their values"),
        (&["port", "set", "a", "vlan"], "setting 'vlan' has no value"),
        (&["port", "set", "a", "vlan", "5000"], "expected a number from 1 to 4094, got 5000"),
        (&["port", "set", "a", "colour", "3"], "unknown key 'colour'; expected vlan, native,"),
        (&["port", "set", "a", "queue-lne", "3"], "did you mean 'queue-len'?"),
        (&["port", "set", "a", "queue-pairs", "2"], "only when the port is added"),
        (&["port", "set", "a", "isolated", "maybe"], "yes or no), got 'maybe'"),
        (&["port", "add", "a"], "stream, tap, tap-fd, packet, xdp and vxlan, got"),
        (&["lease", "add", "web"], "expected KEY=VALUE, got 'web'"),
        (&["lease", "add", "port=a,port=b"], "key 'port' is given twice"),
        (&["lease", "add", "ipv4=10.0.2.9"], "expected one of port, mac, client-id and duid"),
        (&["publish", "add", "a"], "no ports are given; expected tcp or udp"),
        (&["up", "--vhost-user", "a"], "expected NAME=PATH, for example vm1=/run/vm1.sock"),
        (&["up", "--queue-len", "0"], "expected a number of packets from 1 to 1048576"),
        (&["up", "--workers", "9"], "expected 1 to 8, or 'auto'"),
        (&["up", "--workers", "0"], "expected 1 to 8, or 'auto'"),
        (&["up", "--lease-time", "1w"], "expected seconds, or a time such as 90s"),
        (&["up", "/no/such.toml"], "cannot read /no/such.toml"),
    ]);
}

/// Asserts that each command line is wrong usage of its command, with this message.
fn each_ends_with_2(cases: &[(&[&str], &str)]) {
    for (arguments, expected) in cases {
        let output = output(&mut towpath(arguments.iter().copied()));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", errors(&output));
        let errors = errors(&output);
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
        if let (Some(command), Some((_, usage))) = (arguments.first(), errors.split_once("Usage: "))
        {
            assert!(usage.starts_with(&format!("towpath {command}")), "{arguments:?}: {errors}");
        }
    }
}

#[test]
fn options_of_other_programs_lead_to_hints() {
    let cases: &[(&[&str], &str)] = &[
        (&["run", "-p", "8080:80", "true"], "for Docker's -p 8080:80 use --tcp-ports 8080:80"),
        (&["run", "--config-net"], "not needed: towpath always configures the interface"),
        (&["run", "--udp-ns", "53", "true"], "use --host-udp-ports (-U)"),
        (&["run", "--map-gw", "true"], "use --map-host-loopback 10.0.2.2"),
        (&["attach", "--disable-host-loopback", "1"], "not needed: the host's loopback"),
        (&["attach", "--api-socket=/run/x", "1"], "use `towpath attach --port-socket PATH`"),
        (&["--net", "pasta"], "`towpath run` always makes a network of its own"),
        (&["run", "-t", "80:80/udp"], "for Docker's suffix /udp use -u"),
        (&["4711", "tap0"], "to serve the network namespace of a process use `towpath attach PID`"),
    ];
    for (arguments, expected) in cases {
        let output = output(&mut towpath(arguments.iter().copied()));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", errors(&output));
        let hint = format!("\n\n  tip: {expected}");
        assert!(errors(&output).contains(&hint), "{arguments:?}: {}", errors(&output));
    }
    // What towpath has under the same name is taken.
    let same = ["run", "-q", "--mtu=65520", "--ready-fd", "1"];
    let refused = errors(&output(&mut towpath(same)));
    assert!(refused.contains("--ready-fd") && !refused.contains("tip:"), "{refused}");
}

#[test]
fn errors_before_the_start_end_with_125() {
    let cases: &[(&[&str], &str)] = &[
        (&["run", "--ready-fd", "9", "true"], "towpath: option --ready-fd: file descriptor 9 must"),
        (
            &["run", "--pcap", "/no/such/dir/x", "true"],
            "towpath: cannot open /no/such/dir/x for writing: No such",
        ),
        (&["attach", "2147483647"], "towpath: there is no process with PID 2147483647"),
        (
            &["attach", "--netns", "/run/no-such"],
            "towpath: option --netns: cannot open the namespace /run/no-such: No such",
        ),
        (
            &["attach", "--netns", "/dev/null"],
            "towpath: option --netns: /dev/null is not a network namespace",
        ),
    ];
    for (arguments, expected) in cases {
        let output = output(&mut towpath(arguments.iter().copied()));
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {}", errors(&output));
        assert!(errors(&output).starts_with(expected), "{arguments:?}: {}", errors(&output));
    }
}

#[test]
fn the_interface_is_as_promised() {
    skip_if!(no_tap());
    let output = output(&mut run_script(
        "ip -o link show tap0; ip -o addr show dev tap0; ip route; \
        ip -6 route; ip -o link show lo",
    ));
    let text = text(&output);
    assert!(text.contains("tap0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500"), "{text}");
    assert!(text.contains("qlen 22369"), "{text}");
    assert!(text.contains("link/ether 02:74:6f:77:70:15"), "{text}");
    assert!(text.contains("inet 10.0.2.15/24 brd 10.0.2.255 scope global"), "{text}");
    assert!(text.contains("inet6 fd74:6f77:7061:7468::15/64 scope global nodad"), "{text}");
    assert!(text.contains("inet6 fe80::74:6fff:fe77:7015/64 scope link nodad"), "{text}");
    assert!(!text.contains("tentative"), "{text}");
    assert_eq!(text.matches("inet").count(), 3, "no other address:\n{text}");
    assert!(text.contains("default via 10.0.2.2 dev tap0"), "{text}");
    assert!(text.contains("default via fd74:6f77:7061:7468::2 dev tap0"), "{text}");
    assert!(text.contains("lo: <LOOPBACK,UP,LOWER_UP>"), "{text}");
}

#[test]
fn the_network_can_be_chosen() {
    skip_if!(no_tap());
    let show = "ip -o link; ip -o addr; ip route; ip -6 route; cat /etc/resolv.conf";
    let with = |options: &[&str]| {
        let arguments = [&["run", "-q"], options, &["--", "sh", "-c", show]].concat();
        text(&output(&mut towpath(arguments)))
    };
    let other = with(&["--subnet", "192.0.2.8/29", "--subnet6", "fd00:9::/64", "--ifname", "eth9"]);
    assert!(other.contains("inet 192.0.2.12/29"), "{other}");
    assert!(other.contains("default via 192.0.2.10 dev eth9"), "{other}");
    assert!(other.contains("inet6 fd00:9::15/64"), "{other}");
    assert!(other.contains("nameserver 192.0.2.11\n"), "{other}");
    let ipv4 = with(&["-4"]);
    assert!(!ipv4.contains("fd74:") && ipv4.contains("10.0.2.15"), "{ipv4}");
    let ipv6 = with(&["-6"]);
    assert!(ipv6.contains("nameserver fd74:6f77:7061:7468::3\n"), "{ipv6}");
    assert!(!ipv6.contains("10.0.2."), "{ipv6}");
    for (mtu, queue) in [("576", "58254"), ("1280", "26214"), ("9000", "3728"), ("65520", "1000")] {
        let shown = with(&["--mtu", mtu]);
        assert!(shown.contains(&format!("mtu {mtu} ")), "{shown}");
        assert!(shown.contains(&format!("qlen {queue}")), "{shown}");
        assert_eq!(shown.contains("fd74:"), mtu != "576", "{shown}");
    }
}

#[test]
fn resolv_conf_is_replaced_inside_only() {
    skip_if!(no_tap());
    let path = "/etc/resolv.conf";
    let Ok(before) = fs::read_to_string(path) else {
        eprintln!("skipped: {path} is missing");
        return;
    };
    let inside = text(&output(&mut towpath(["run", "--", "cat", path])));
    let servers: Vec<&str> = inside.lines().filter(|line| line.starts_with("nameserver")).collect();
    assert_eq!(servers, ["nameserver 10.0.2.3"]);
    for line in before.lines().filter(|line| line.starts_with("search ")) {
        assert!(inside.contains(line), "{inside}");
    }
    assert_eq!(fs::read_to_string(path).unwrap(), before);
}

#[test]
fn identity_and_process_numbers_inside() {
    skip_if!(no_tap());
    let output = output(&mut run_script("id -u; id -g; echo $$; echo /proc/[0-9]*"));
    let text = text(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], rustix::process::geteuid().as_raw().to_string());
    assert_eq!(lines[1], rustix::process::getegid().as_raw().to_string());
    assert_eq!(lines[2], "2");
    assert_eq!(lines[3], "/proc/1 /proc/2", "process 1 and the shell");
}

/// Goal: the program starts with the signal settings that towpath was started with. Method: compare
/// the kernel's view of a program with and without towpath.
#[test]
fn signal_settings_are_inherited() {
    skip_if!(no_tap());
    let show = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"];
    let direct = text(&output(Command::new(show[0]).args(&show[1..])));
    let inside = text(&output(towpath(["run", "--"]).args(show)));
    assert_eq!(inside, direct);
}

/// Starts a script that reports when it is ready, then waits for a signal.
fn start_waiting(script: &str) -> (Guard, BufReader<std::process::ChildStdout>) {
    let mut command = run_script(script);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Guard(command.spawn().unwrap());
    let mut stdout = BufReader::new(child.0.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (child, stdout)
}

#[test]
fn signals_sent_to_towpath_reach_the_program() {
    skip_if!(no_tap());
    let signals = [
        ("TERM", Signal::TERM),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("HUP", Signal::HUP),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("WINCH", Signal::WINCH),
    ];
    for (name, signal) in signals {
        let script = format!("trap 'exit 42' {name}; echo ready; while :; do sleep 0.01; done");
        let (child, _stdout) = start_waiting(&script);
        child.signal(signal);
        assert_eq!(finish(child).status.code(), Some(42), "{name}");
    }
    let (child, _stdout) = start_waiting("echo ready; exec sleep 100");
    child.signal(Signal::TERM);
    assert_eq!(finish(child).status.code(), Some(128 + 15));
}

#[test]
fn nothing_is_left_when_towpath_is_killed() {
    skip_if!(no_tap());
    let script = "sleep 1000 & setsid sleep 1001 & exec sleep 1002";
    let child = Guard(run_script(script).stdin(Stdio::null()).spawn().unwrap());
    let (init, command) = init_and_command(&child, "sleep");
    let namespace = network_namespace(init).unwrap();
    assert_eq!(network_namespace(command).as_ref(), Some(&namespace));
    assert_ne!(
        network_namespace(std::process::id().try_into().unwrap()).as_ref(),
        Some(&namespace)
    );
    wait_for("the background programs", || processes_in(&namespace).len() == 4);
    child.signal(Signal::KILL);
    assert_eq!(finish(child).status.signal(), Some(9));
    assert_nothing_left(&namespace);
}

#[test]
fn towpath_ends_when_the_program_or_process_1_is_killed() {
    skip_if!(no_tap());
    for kill_init in [false, true] {
        let child = Guard(towpath(["run", "--", "sleep", "1000"]).spawn().unwrap());
        let (init, command) = init_and_command(&child, "sleep");
        let namespace = network_namespace(init).unwrap();
        let victim = if kill_init { init } else { command };
        kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
        assert_eq!(finish(child).status.code(), Some(128 + 9));
        assert_nothing_left(&namespace);
    }
}

#[test]
fn what_the_program_leaves_behind_ends_with_it() {
    skip_if!(no_tap());
    let script = "(trap '' TERM HUP; setsid sleep 1000) & sleep 0.05; readlink /proc/self/ns/net";
    let output = output(run_script(script).stdout(Stdio::piped()));
    assert_eq!(output.status.code(), Some(0));
    assert_nothing_left(text(&output).trim());
}

/// Goal: a process that waits for readiness sees "1" and the end of the file while the program
/// runs.
#[test]
fn ready_fd_is_written_and_closed() {
    skip_if!(no_tap());
    let script = "exec 3>&1 1>&2; exec \"$0\" run --ready-fd 3 -- sh -c \
                  '[ ! -e /proc/self/fd/3 ] || exit 9; exec sleep 1000'";
    let mut command = Command::new("sh");
    command.args(["-c", script, TOWPATH]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = Guard(command.spawn().unwrap());
    let mut reported = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut reported).unwrap();
    assert_eq!(reported, "1");
    init_and_command(&child, "sleep");
    child.signal(Signal::TERM);
    assert_eq!(finish(child).status.code(), Some(128 + 15));
}

/// Goal: towpath's own copies of the standard streams do not keep them open.
#[test]
fn streams_that_the_program_closes_are_closed() {
    skip_if!(no_tap());
    let script = "exec <&-; echo ready; exec >&-; exec sleep 1000";
    let mut command = run_script(script);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Guard(command.spawn().unwrap());
    let mut stdin = child.0.stdin.take().unwrap();
    let mut said = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "ready\n");
    wait_for("the pipe to break", || stdin.write_all(b"x").is_err());
    child.signal(Signal::TERM);
    assert_eq!(finish(child).status.code(), Some(128 + 15));
}

#[test]
fn device_problems_say_what_to_do() {
    skip_if!(no_root());
    let script = "mount -t tmpfs none /dev/net && exec \"$0\" run -- true";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, TOWPATH]);
    let missing = output(&mut command);
    assert_eq!(missing.status.code(), Some(125), "{}", errors(&missing));
    assert!(errors(&missing).contains("/dev/net/tun is missing; run `modprobe tun`"));
    let copy = PublicCopy::new("device");
    let script = format!("chmod 0600 /dev/net/tun; exec $USER_RUN {} run -- true", copy.path());
    let forbidden = output(&mut as_user(&script));
    assert_eq!(forbidden.status.code(), Some(125), "{}", errors(&forbidden));
    assert!(errors(&forbidden).contains("chmod 666 /dev/net/tun"), "{}", errors(&forbidden));
}

#[test]
fn an_ordinary_user_needs_no_privilege() {
    skip_if!(no_root());
    let copy = PublicCopy::new("user");
    let script = format!(
        "$USER_RUN {0} run -- sh -c 'id -u; id -g; ip -o addr show tap0; cat /etc/resolv.conf; \
         grep CapEff /proc/self/status; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; \
         echo $$; exit 5'; echo $?; $USER_RUN {0} run --map-root -- id -u",
        copy.path()
    );
    let output = output(&mut as_user(&script));
    let text = text(&output);
    assert!(text.starts_with("1000\n1000\n"), "{text}{}", errors(&output));
    assert!(text.contains("inet 10.0.2.15/24") && text.contains("inet6 fd74:"), "{text}");
    assert!(text.contains("nameserver 10.0.2.3\n"), "{text}");
    assert!(text.contains("CapEff:\t0000000000000000\n0\n2\n5\n"), "{text}");
    assert!(text.ends_with("\n0\n"), "root inside with --map-root: {text}");
    assert_eq!(errors(&output), "");
}

#[test]
fn forbidden_user_namespaces_say_what_to_do() {
    skip_if!(no_root());
    let script = "echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all \
                  --inh-caps=-all \"$0\" run -- true";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script, TOWPATH]);
    let output = output(&mut command);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        errors(&output).contains("run `sysctl user.max_user_namespaces=10000` as root"),
        "{}",
        errors(&output)
    );
}
