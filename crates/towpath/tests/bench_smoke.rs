//! `towpath bench gateway` works and reports what it should. How fast anything is, is not tested.
//!
//! Needs root and iperf3; says so when it cannot run.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

/// The names that other documents and stored figures refer to.
const CASES: [&str; 20] = [
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
    "tcp_in_mtu1500_8flows",
    "tcp_both_mtu1500",
    "tcp_both_mtu1500_slower_share",
    "tcp_out_ipv6_mtu1500_1flow",
    "tcp_in_ipv6_mtu1500_1flow",
    "udp_out_mtu1500",
    "udp_in_mtu1500",
    "rr_p50_us",
    "rr_p99_us",
    "connect_rate",
];

#[test]
fn a_quick_run_yields_all_figures() {
    if let Some(reason) = cannot_run() {
        eprintln!("skipped: {reason}");
        return;
    }
    let plot = std::env::temp_dir().join(format!("towpath-bench-{}.svg", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
    command.args(["bench", "gateway", "--quick", "--json", "--peers", "veth", "--plot"]);
    let output = command.arg(&plot).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    check_plot(&plot);
    let lines = String::from_utf8(output.stdout).unwrap();
    let mut ratios = BTreeMap::new();
    for line in lines.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        check_object(&object);
        let case = object["case"].as_str().unwrap().to_owned();
        let ratio = object["ratio"].as_f64();
        assert!(ratios.insert(case, ratio).is_none(), "twice: {line}");
    }
    let mut expected = CASES.to_vec();
    expected.sort_unstable();
    assert_eq!(ratios.keys().collect::<Vec<_>>(), expected, "{errors}");
    assert!(ratios["tcp_out_mtu1500_1flow"].is_some_and(|ratio| ratio > 0.0), "{lines}");
    assert!(ratios["ready"].is_none(), "the kernel alone has no start: {lines}");
}

fn check_object(object: &Value) {
    let mut keys: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        ["against", "bench", "case", "max", "min", "other", "ratio", "rounds", "unit", "value"]
    );
    assert_eq!(object["bench"], "gateway");
    assert_eq!(object["rounds"], 1, "{object}");
    let value = object["value"].as_f64().unwrap();
    assert!(value >= 0.0, "{object}");
    // The one round is all there is.
    assert_eq!(object["min"], object["value"]);
    assert_eq!(object["max"], object["value"]);
    assert!(object["unit"].is_string(), "{object}");
    assert_eq!(object["against"].is_null(), object["other"].is_null(), "{object}");
}

fn check_plot(path: &Path) {
    let plot = std::fs::read_to_string(path).unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(plot.starts_with("<svg ") && plot.ends_with("</svg>\n"), "{plot}");
    assert!(CASES.iter().all(|case| plot.contains(case)), "{plot}");
}

fn cannot_run() -> Option<&'static str> {
    let answers = |program: &str| {
        let mut command = Command::new(program);
        command.arg("-V").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok()
    };
    if !rustix::process::geteuid().is_root() {
        return Some("this needs root");
    }
    if !Path::new("/dev/net/tun").exists() {
        return Some("/dev/net/tun is missing");
    }
    if !answers("iperf3") {
        return Some("iperf3 is not installed");
    }
    (!answers("ip")).then_some("ip is not installed")
}
