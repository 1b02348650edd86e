//! `towpath-bench` works and reports all figures. Performance is not tested.
//!
//! Needs root, and iperf3 for the gateway; reports when it cannot run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// Longest wait for a process; it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(5);

/// The names that other documents and stored figures refer to.
const CASES: [&str; 54] = [
    "ready",
    "idle_rss",
    "idle_cpu",
    "tcp_out_mtu1500_1flow",
    "tcp_out_mtu1500_1flow_cpu_gateway",
    "tcp_out_mtu1500_1flow_cpu_all",
    "tcp_in_mtu1500_1flow",
    "tcp_in_mtu1500_1flow_cpu_gateway",
    "tcp_in_mtu1500_1flow_cpu_all",
    "tcp_out_mtu1500_8flows",
    "tcp_out_mtu1500_8flows_cpu_gateway",
    "tcp_out_mtu1500_8flows_cpu_all",
    "tcp_in_mtu1500_8flows",
    "tcp_in_mtu1500_8flows_cpu_gateway",
    "tcp_in_mtu1500_8flows_cpu_all",
    "outside_out_1flow",
    "outside_out_1flow_cpu_gateway",
    "outside_out_1flow_cpu_all",
    "loopback_out_1flow",
    "loopback_out_1flow_cpu_gateway",
    "loopback_out_1flow_cpu_all",
    "loopback_in_1flow",
    "loopback_in_1flow_cpu_gateway",
    "loopback_in_1flow_cpu_all",
    "published_out_1flow",
    "published_out_1flow_cpu_gateway",
    "published_out_1flow_cpu_all",
    "published_in_1flow",
    "published_in_1flow_cpu_gateway",
    "published_in_1flow_cpu_all",
    "tcp_both_mtu1500",
    "tcp_both_mtu1500_slower_share",
    "tcp_out_ipv6_mtu1500_1flow",
    "tcp_out_ipv6_mtu1500_1flow_cpu_gateway",
    "tcp_out_ipv6_mtu1500_1flow_cpu_all",
    "tcp_in_ipv6_mtu1500_1flow",
    "tcp_in_ipv6_mtu1500_1flow_cpu_gateway",
    "tcp_in_ipv6_mtu1500_1flow_cpu_all",
    "tcp_out_ipv6_mtu1500_8flows",
    "tcp_in_ipv6_mtu1500_8flows",
    "udp_out_mtu1500",
    "udp_in_mtu1500",
    "udp_out_segmented_mtu1500",
    "udp_in_segmented_mtu1500",
    "udp_out_64B",
    "udp_in_64B",
    "rr_p50_us",
    "rr_p99_us",
    "rr_p999_us",
    "connect_rate",
    "http_keep_alive",
    "http_connection_per_request",
    "rss_1000_flows",
    "rss_10000_flows",
];

#[test]
fn a_quick_run_yields_all_figures() {
    if let Some(reason) = cannot_run(&["iperf3", "ip", "nginx", "wrk"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let run = Run::of("gateway", &["--peers", "veth"]);
    run.check_names(CASES.iter().map(|name| name.to_string()));
    for object in run.cases.values() {
        assert!(is_measured(object), "{object}");
        assert_eq!(object["against"].is_null(), object["other"].is_null(), "{object}");
    }
    assert!(run.ratio("tcp_out_mtu1500_1flow").is_some_and(|ratio| ratio > 0.0));
    assert!(run.ratio("ready").is_none(), "the kernel alone has no start");
}

#[test]
fn a_quick_run_of_zerocopy_yields_all_figures() {
    if let Some(reason) = cannot_run(&["ip"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    // The full set takes a minute of a processor: `cargo xtask long benches`.
    let cases = match std::env::var_os("TOWPATH_LONG") {
        Some(_) => "*process*,*system*,*break_even*,*auto*",
        None => {
            "*process_4KiB,*system_4KiB,*auto_4KiB,*process_64KiB_hot,*system_64KiB_hot,\
             *auto_64KiB_hot,kernel_udp_break_even"
        }
    };
    let run = Run::of("zerocopy", &["--cases", cases]);
    // A break-even is made of the figures of all sizes.
    let is_part = |name: &str| name.starts_with("kernel_udp_process_") && !name.ends_with("_hot");
    let is_in = |name: &String| is_part(name) || cases.split(',').any(|glob| fits(glob, name));
    run.check_names(zerocopy_cases().into_iter().filter(is_in));
    for (name, object) in &run.cases {
        if name.contains("break_even") {
            // Null if lending never pays.
            assert!(object["value"].is_null() || is_measured(object), "{object}");
            continue;
        }
        assert!(is_measured(object), "{object}");
        let against = if name.contains("auto") { "better of both" } else { "copy" };
        assert_eq!(object["against"], against);
        assert!(run.ratio(name).is_some_and(|ratio| ratio > 0.0), "{object}");
    }
}

/// Goal: a quick run that is sampled leaves out no case without notice. Method: the names that the
/// program lists when it is asked for one that it does not have.
#[test]
fn zerocopy_has_all_cases() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath-bench"));
    let output = command.args(["zerocopy", "--cases", "no_such_case"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let (_, names) = errors.split_once("there are ").unwrap();
    let names = names.lines().next().unwrap().split(", ").map(String::from);
    let mut listed: Vec<_> = names.filter(|name| !name.starts_with("instructions_")).collect();
    let mut expected = zerocopy_cases();
    listed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(listed, expected);
}

/// True if `name` fits `glob`, which has at most one `*` at each end.
fn fits(glob: &str, name: &str) -> bool {
    let middle = glob.trim_matches('*');
    match (glob.starts_with('*'), glob.ends_with('*')) {
        (true, true) => name.contains(middle),
        (true, false) => name.ends_with(middle),
        (false, true) => name.starts_with(middle),
        (false, false) => name == middle,
    }
}

/// Goal: without a TAP device, cases that need none are measured and the others are reported; if no
/// case is left, that is an error. Method: a mount namespace without /dev/net/tun.
#[test]
fn zerocopy_does_without_a_tap_device() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: this needs root");
        return;
    }
    if let Some(missing) = missing_program(&["ip", "unshare"]) {
        eprintln!("skipped: {missing} is not installed");
        return;
    }
    let bench = |cases: &str| {
        let script = "[ ! -d /dev/net ] || mount -t tmpfs none /dev/net; exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        command.args([env!("CARGO_BIN_EXE_towpath-bench"), "zerocopy", "--quick", "--json"]);
        let output = command.args(["--cases", cases]).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), errors)
    };
    let reported = "skipped: all cases over TAP";
    let names = ["process_4KiB", "udp_process_4KiB", "kernel_udp_process_4KiB"];
    let (code, figures, errors) = bench(&names.join(","));
    assert_eq!((code, errors.contains("skipped")), (Some(0), false), "{errors}");
    assert_eq!(figures.lines().count(), names.len(), "{figures}");
    let (code, figures, errors) = bench("*process_4KiB");
    assert_eq!((code, errors.contains(reported)), (Some(0), true), "{errors}");
    assert!(names.iter().all(|name| figures.contains(&format!("\"{name}\""))), "{figures}");
    let is_whole = |line: &str| is_measured(&serde_json::from_str(line).unwrap());
    assert!(!figures.contains("tap_") && figures.lines().all(is_whole), "{figures}");
    let (code, figures, errors) = bench("tap_process_4KiB");
    assert_eq!((code, &*figures, errors.contains(reported)), (Some(125), "", true), "{errors}");
    assert!(errors.contains("no case is left to measure"), "{errors}");
}

#[test]
fn instructions_are_counted() {
    if let Some(reason) = cannot_run(&["ip", "valgrind"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let names = ["instructions_byte_64KiB", "instructions_call_64KiB", "instructions_plain_packet"];
    let run = Run::of("zerocopy", &["--cases", &names.join(",")]);
    run.check_names(names.map(String::from));
    assert!(run.cases.values().all(is_measured));
    assert!(run.ratio("instructions_call_64KiB").is_some_and(|ratio| ratio > 1.0));
}

/// Goal: the work that the guard counts over a TAP device completes in both directions, over one
/// and several connections.
#[test]
fn bytes_are_carried_over_a_tap_device() {
    if let Some(reason) = cannot_run(&[]) {
        eprintln!("skipped: {reason}");
        return;
    }
    for work in ["tap_out", "tap_out_8flows", "tap_in", "tap_in_8flows"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath-bench"));
        command.args(["gateway", "--harness", &format!("{work},40")]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{work}: {output:?}");
    }
}

#[test]
fn a_quick_run_of_ring_yields_all_figures() {
    if let Some(reason) = cannot_run(&["ip"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let run = Run::with_peers("ring", &[]);
    let queues = [
        "ring_fenced",
        "spin_queue",
        "locked_queue",
        "locked_queue_bursts",
        "array_queue",
        "rtrb",
        "null_slots",
    ];
    let but = |left_out: &'static str| queues.into_iter().filter(move |queue| *queue != left_out);
    let expected = but("")
        .map(|queue| format!("ring_1_producer/{queue}"))
        .chain(but("rtrb").map(|queue| format!("ring_2_producers/{queue}")))
        .chain(but("null_slots").map(|queue| format!("port_pps/{queue}")))
        .chain(but("null_slots").map(|queue| format!("port_guest_pps/{queue}")))
        .chain(
            but("null_slots")
                .filter(|queue| *queue != "rtrb")
                .map(|queue| format!("port_guest_2_producers/{queue}")),
        );
    run.check_names(expected);
    for (name, object) in &run.cases {
        assert!(is_measured(object), "{object}");
        assert!(run.ratio(name).is_some_and(|ratio| ratio > 0.0), "{object}");
    }
}

/// Between two virtual machines, payload is copied once, and once more if the switch does not
/// share; nothing else copies.
#[test]
fn a_quick_run_of_vm_yields_all_figures() {
    if let Some(reason) = cannot_run(&[]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let run = Run::of("vm", &["--cases", "vm_to_vm_*,vm_64B*,vm_copies*"]);
    let mut expected = vec!["vm_64B", "vm_64B_cpu", "vm_copies_segmented", "vm_64B_4guests"];
    expected.extend(["vm_64B_4guests_2workers", "vm_to_vm_segmented_4guests_2workers"]);
    let mut expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
    let guests = ["", "_4guests", "_8guests", "_16guests"];
    let segmented = guests.map(|guests| format!("vm_to_vm_segmented{guests}"));
    for case in segmented.into_iter().chain(["vm_to_vm_whole".to_owned()]) {
        expected.extend(["", "_cpu", "_copies"].map(|figure| format!("{case}{figure}")));
        let copies = &run.cases[&format!("{case}_copies")];
        let is = |key: &str, count: f64| (copies[key].as_f64().unwrap() - count).abs() < 0.01;
        assert!(is("value", 1.0) && is("other", 2.0), "{copies}");
    }
    run.check_names(expected);
    for (name, object) in &run.cases {
        assert!(is_measured(object), "{object}");
        assert_eq!(object["against"], "orphan");
        assert!(run.ratio(name).is_some_and(|ratio| ratio > 0.0), "{object}");
    }
}

/// Checks only that there are figures, not testpmd's performance.
#[test]
fn a_quick_run_of_vhost_yields_all_figures() {
    if let Some(reason) = cannot_run(&["dpdk-testpmd"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let run = Run::of("vhost", &[]);
    run.check_names(["vhost_64B", "vhost_64B_packed", "vhost_64KiB"].map(str::to_owned));
    for object in run.cases.values() {
        assert!(is_measured(object), "{object}: {}", run.errors);
    }
}

/// Checks only that there are figures, not what a second worker gains.
#[test]
fn a_quick_run_of_workers_yields_figures() {
    if let Some(reason) = cannot_run(&[]) {
        eprintln!("skipped: {reason}");
        return;
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        eprintln!("skipped: two workers need two processors");
        return;
    }
    let run = Run::of("workers", &[]);
    run.check_names(["workers_within_64B", "workers_across_64B"].map(str::to_owned));
    for object in run.cases.values() {
        assert!(is_measured(object), "{object}: {}", run.errors);
    }
}

/// Checks only that there are figures, not which tunnel is faster.
#[test]
fn a_quick_run_of_tunnels_yields_figures() {
    if let Some(reason) = cannot_run(&["ip", "iperf3"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let run = Run::of("tunnels", &["--cases", "tunnel_*_1flow*"]);
    let names = ["ipv4_1flow", "ipv4_1flow_cpu_all", "ipv6_1flow", "ipv6_1flow_cpu_all"];
    run.check_names(names.map(|name| format!("tunnel_{name}")));
    for object in run.cases.values() {
        assert!(is_measured(object), "{object}: {}", run.errors);
    }
}

/// Real machines copy as often as drivers do, except for TCP retransmissions and for
/// acknowledgements, which are too small to be lent.
#[test]
fn a_quick_run_with_real_machines_yields_all_figures() {
    let images = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest");
    let images = images.to_str().unwrap();
    if let Some(reason) = cannot_run(&["ip", "qemu-system-x86_64"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    if !Path::new(images).join("initrd-iperf3").exists() {
        eprintln!("skipped: nothing to boot: run scripts/guest where iperf3 is");
        return;
    }
    let run = Run::with_peers("vm", &["--cases", "vm_guests*", "--guest", images]);
    let mut expected = Vec::new();
    for machines in ["vm_guests", "vm_guests_2cpus"] {
        let of_both = ["", "_cpu", "_cpu_all", "_copies"];
        expected.extend(of_both.map(|figure| format!("{machines}{figure}/orphan")));
        expected.extend(["", "_cpu_all"].map(|figure| format!("{machines}{figure}/bridge")));
        let copies = &run.cases[&format!("{machines}_copies/orphan")];
        let [shared, orphan] = ["value", "other"].map(|key| copies[key].as_f64().unwrap());
        // On a busy machine, some loans return copied.
        assert!((0.99..1.9).contains(&shared) && orphan > 1.99, "{copies}");
    }
    run.check_names(expected);
    assert!(run.cases.values().all(is_measured), "{:?}", run.cases);
}

/// Goal: every kind of server answers, without errors.
#[test]
fn a_quick_run_of_events_yields_all_figures() {
    if let Some(reason) = cannot_run(&["ip"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut expected = vec!["http_connection_per_request", "http_keep_alive_1MiB_10"];
    if missing_program(&["wrk"]).is_none() {
        expected.push("tap_http_keep_alive");
    }
    let globs: Vec<_> =
        expected.iter().flat_map(|name| [name.to_string(), format!("{name}_errors")]).collect();
    let run = Run::with_peers("events", &["--cases", &globs.join(",")]);
    run.check_names(globs.iter().map(|name| format!("{name}/readiness")));
    for (name, object) in &run.cases {
        assert!(is_measured(object), "{object}");
        if name.contains("_errors") {
            assert_eq!([&object["value"], &object["other"]].map(Value::as_f64), [Some(0.0); 2]);
        } else {
            assert!(run.ratio(name).is_some_and(|ratio| ratio > 0.0), "{object}");
        }
    }
}

/// Goal: transfers by operations and by blocking calls move all bytes, and reads of a file end.
#[test]
fn a_quick_run_of_transfers_and_reads_yields_all_figures() {
    if let Some(reason) = cannot_run(&["ip"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let transfers =
        ["receive", "receive_lent", "send", "kernel_receive", "kernel_send", "kernel_send_lent"];
    let names = transfers.map(|name| [1, 10].map(|sockets| format!("{name}_1GiB_{sockets}")));
    let figures = ["", "_cpu_thread", "_cpu_all"];
    let of = |name: &String| figures.map(|figure| format!("{name}{figure}/calls"));
    let mut expected: Vec<_> = names.iter().flatten().flat_map(of).collect();
    let mapped = ["", "_cpu_thread"];
    expected.extend(mapped.map(|figure| format!("kernel_receive_mapped{figure}/read")));
    for bytes in ["4KiB", "40KiB", "256KiB"] {
        for depth in [1, 4, 16, 64] {
            let names = ["", "_cpu", "_hot", "_hot_cpu"];
            let of = |figure| format!("file_read_{bytes}_depth_{depth}{figure}/pread");
            expected.extend(names.map(of));
        }
    }
    let run = Run::with_peers("events", &["--cases", "*receive*,*send*,file_read*"]);
    for name in &expected {
        let object = run.cases.get(name).unwrap_or_else(|| panic!("{name}: {}", run.errors));
        assert!(is_measured(object), "{object}");
        // In a short measurement, processor time may be below the resolution of the clock.
        assert!(name.contains("_cpu") || run.ratio(name) > Some(0.0), "{object}");
    }
    // The kernel may map nothing. The other cases exist only where io_uring, or a disk with direct
    // reads, is available.
    let is_known = |name: &String| {
        let others = ["/epoll", "/plain epoll", "/plain io_uring"];
        let is_other = others.iter().any(|other| name.ends_with(other));
        let may_be_zero = name == "kernel_receive_mapped_share/read";
        expected.contains(name) || is_other || may_be_zero || name.contains("_direct")
    };
    assert!(run.cases.keys().all(is_known), "{:?}", run.cases.keys());
}

/// Goal: applications answer over both carriers, a server that is asked for too much answers some
/// requests, and captures see the traffic.
#[test]
fn a_quick_run_of_applications_yields_all_figures() {
    if let Some(reason) = cannot_run(&["ip"]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let applications =
        ["rpc_2KiB", "rpc_98KiB_summed", "download_1MiB_10", "tensors"].map(|name| [name, "copy"]);
    let mut expected = Vec::new();
    for [name, other] in applications.into_iter().chain([["overload", "readiness"]]) {
        expected.push(format!("{name}/{other}"));
    }
    expected.push("kernel_overload/plain epoll".into());
    if Path::new("/dev/net/tun").exists() {
        expected.extend(["tap_tensors/lend".into(), "capture_all/no capture".into()]);
    }
    let cases: Vec<_> = expected.iter().filter_map(|name| name.split('/').next()).collect();
    let run = Run::with_peers("events", &["--cases", &cases.join(",")]);
    for name in &expected {
        let object = run.cases.get(name).unwrap_or_else(|| panic!("{name}: {}", run.errors));
        assert!(is_measured(object) && run.ratio(name) > Some(0.0), "{object}");
    }
}

/// Goal: without images to boot, cases with real machines are reported as skipped and the others
/// are measured; if no case is left, that is an error.
#[test]
fn real_machines_are_left_out_where_there_is_nothing_to_boot() {
    if let Some(reason) = cannot_run(&[]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let bench = |cases: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath-bench"));
        command.args(["vm", "--quick", "--json", "--guest", "/nowhere", "--cases", cases]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), errors)
    };
    let reported = "skipped: all cases with real machines: ";
    let (code, figures, errors) = bench("vm_64B,vm_guests*");
    assert_eq!((code, errors.contains(reported)), (Some(0), true), "{errors}");
    assert_eq!(figures.lines().count(), 1, "{figures}");
    let (code, figures, errors) = bench("vm_guests");
    assert_eq!((code, &*figures, errors.contains(reported)), (Some(125), "", true), "{errors}");
    assert!(errors.contains("no case is left to measure"), "{errors}");
}

/// Goal: an interrupted measurement leaves no sockets behind.
#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    if let Some(reason) = cannot_run(&[]) {
        eprintln!("skipped: {reason}");
        return;
    }
    let temporary = std::env::temp_dir().join(format!("towpath-bench-left-{}", std::process::id()));
    std::fs::create_dir(&temporary).unwrap();
    // A shell starts commands in the background with SIGINT ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_towpath-bench")]);
    command.args(["vm", "--seconds", "3600", "--cases", "vm_64B"]);
    command.env("TMPDIR", &temporary).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut bench = command.spawn().unwrap();
    let inside = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let has_sockets = || {
        let directories =
            inside(&temporary).flat_map(|outer| inside(&outer.path()).collect::<Vec<_>>());
        directories.count() > 0
    };
    let mut waited = Duration::ZERO;
    while !has_sockets() && waited < PATIENCE && bench.try_wait().unwrap().is_none() {
        std::thread::sleep(STEP);
        waited += STEP;
    }
    let had_sockets = has_sockets();
    let pid = rustix::process::Pid::from_child(&bench);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = bench.wait_with_output().unwrap();
    let ended_by = output.status.signal();
    assert_eq!(ended_by, Some(rustix::process::Signal::INT.as_raw()), "{output:?}");
    assert!(had_sockets, "{output:?}");
    assert_eq!(inside(&temporary).count(), 0);
    std::fs::remove_dir(&temporary).unwrap();
}

/// The names that other documents and stored figures refer to.
fn zerocopy_cases() -> Vec<String> {
    let mut names = Vec::new();
    for prefix in ["", "udp_", "tap_", "tap_udp_", "kernel_", "kernel_udp_"] {
        let chooses = !prefix.starts_with("kernel_");
        for suffix in ["", "_hot"] {
            names.push(format!("{prefix}break_even{suffix}"));
            for size in ["512B", "1KiB", "4KiB", "16KiB", "64KiB", "256KiB", "1MiB"] {
                let kinds = ["process", "system", "auto"];
                for kind in &kinds[..if chooses { 3 } else { 2 }] {
                    names.push(format!("{prefix}{kind}_{size}{suffix}"));
                }
            }
        }
    }
    names
}

/// The results of a quick run of a benchmark.
struct Run {
    /// One object per key. The key is the case, or the case and the peer.
    cases: BTreeMap<String, Value>,
    errors: String,
}

impl Run {
    /// Runs a benchmark whose cases have one peer each; the key is the case.
    fn of(bench: &str, arguments: &[&str]) -> Self {
        let key = |object: &Value| object["case"].as_str().unwrap().to_owned();
        Self::keyed(bench, arguments, key)
    }

    /// Runs a benchmark; the key is the case and the peer.
    fn with_peers(bench: &str, arguments: &[&str]) -> Self {
        let text = |object: &Value, key: &str| object[key].as_str().unwrap().to_owned();
        let key = |object: &Value| text(object, "case") + "/" + &text(object, "against");
        Self::keyed(bench, arguments, key)
    }

    fn keyed(bench: &str, arguments: &[&str], key: impl Fn(&Value) -> String) -> Self {
        // Tests run in parallel, each in a thread with the test's name.
        let thread = std::thread::current();
        let test = thread.name().unwrap_or(bench);
        let file = format!("towpath-bench-{test}-{}.svg", std::process::id());
        let plot = std::env::temp_dir().join(file);
        let mut command = Command::new(env!("CARGO_BIN_EXE_towpath-bench"));
        command.args([bench, "--quick", "--json"]).args(arguments);
        let output = command.arg("--plot").arg(&plot).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {errors}", output.status);
        let picture = std::fs::read_to_string(&plot).unwrap();
        std::fs::remove_file(&plot).unwrap();
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
        let mut cases = BTreeMap::new();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let object: Value = serde_json::from_str(line).unwrap();
            check_object(&object, bench);
            if bench != "zerocopy" {
                let case = object["case"].as_str().unwrap();
                assert!(picture.contains(case), "{case}: {picture}");
            }
            assert!(cases.insert(key(&object), object).is_none(), "twice: {line}");
        }
        Self { cases, errors }
    }

    fn check_names(&self, expected: impl IntoIterator<Item = String>) {
        let mut expected: Vec<_> = expected.into_iter().collect();
        expected.sort_unstable();
        assert!(self.cases.keys().eq(&expected), "{:?}: {}", self.cases.keys(), self.errors);
    }

    fn ratio(&self, case: &str) -> Option<f64> {
        self.cases[case]["ratio"].as_f64()
    }
}

fn check_object(object: &Value, bench: &str) {
    let mut keys: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        ["against", "bench", "case", "max", "min", "other", "ratio", "rounds", "unit", "value"]
    );
    assert_eq!(object["bench"], bench);
    // There is only one round.
    assert_eq!(object["min"], object["value"]);
    assert_eq!(object["max"], object["value"]);
    assert!(object["unit"].is_string(), "{object}");
}

fn is_measured(object: &Value) -> bool {
    object["rounds"] == 1 && object["value"].as_f64().is_some_and(|value| value >= 0.0)
}

fn cannot_run(programs: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("this needs root".into());
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("/dev/net/tun is missing".into());
    }
    missing_program(programs).map(|program| format!("{program} is not installed"))
}

fn missing_program<'a>(programs: &[&'a str]) -> Option<&'a str> {
    let answers = |program: &str| {
        let mut command = Command::new(program);
        command.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok()
    };
    programs.iter().find(|program| !answers(program)).copied()
}
