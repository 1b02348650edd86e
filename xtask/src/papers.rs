//! Repeats what four published documents measured, and prints each of their figures beside
//! towpath's: `cargo xtask papers`. docs/papers.md describes the documents and the figures.

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use crate::{cargo, root};

/// A published figure, and the case of `towpath-bench` that repeats its measurement.
struct Row {
    document: &'static str,
    claim: &'static str,
    /// What the document reports.
    theirs: &'static str,
    bench: &'static str,
    case: &'static str,
    /// The system that towpath is compared with.
    against: &'static str,
    show: Show,
}

/// How a result is expressed.
#[derive(Clone, Copy, PartialEq)]
enum Show {
    /// Times as good as the other system.
    Times,
    /// Cost in percent of the other system's.
    Percent,
}

/// Benches in the order in which they run, with options that are to keep all of them within 20
/// minutes. What follows a hyphen tells two runs of a bench apart.
const BENCHES: [(&str, &[&str]); 5] = [
    ("ring", &["--rounds", "5"]),
    ("zerocopy", &["--rounds", "2"]),
    ("events", &["--rounds", "3"]),
    ("vm", &["--rounds", "5"]),
    ("vm-machines", &["--rounds", "1", "--seconds", "5"]),
];

const SEGMENTS: &str = "2014, segmentation";
const RING: &str = "2016, ring";
const SEND: &str = "2017, MSG_ZEROCOPY";
const EVENTS: &str = "2006, events";

const ROWS: [Row; 46] = [
    times(SEGMENTS, "two guests", "1.24", ("vm", "vm_to_vm_segmented", "orphan")),
    times(SEGMENTS, "four guests", "more", ("vm", "vm_to_vm_segmented_4guests", "orphan")),
    times(SEGMENTS, "eight guests", "more", ("vm", "vm_to_vm_segmented_8guests", "orphan")),
    times(SEGMENTS, "sixteen guests", "more", ("vm", "vm_to_vm_segmented_16guests", "orphan")),
    times(SEGMENTS, "copies per byte", "2", ("vm", "vm_to_vm_segmented_copies", "orphan")),
    times(SEGMENTS, "two machines in QEMU", "1.24", ("vm-machines", "vm_guests", "orphan")),
    times(RING, "packets to a guest", "1.09", ("ring", "port_guest_pps", "spin_queue")),
    times(RING, "packets to a TAP device", "1.09", ("ring", "port_pps", "spin_queue")),
    percent(SEND, "thread, 4 KiB", "41 %", ("zerocopy", "process_4KiB", "copy")),
    percent(SEND, "all, 4 KiB", "", ("zerocopy", "system_4KiB", "copy")),
    percent(SEND, "thread, 1 MiB", "8 %", ("zerocopy", "process_1MiB", "copy")),
    percent(SEND, "all, 1 MiB", "61 %", ("zerocopy", "system_1MiB", "copy")),
    percent(SEND, "thread, 4 KiB, TAP", "41 %", ("zerocopy", "tap_process_4KiB", "copy")),
    percent(SEND, "thread, 1 MiB, TAP", "8 %", ("zerocopy", "tap_process_1MiB", "copy")),
    percent(SEND, "all, 1 MiB, TAP", "61 %", ("zerocopy", "tap_system_1MiB", "copy")),
    times(SEND, "answers of 2 KiB, time", "less", ("events", "rpc_2KiB_cpu", "copy")),
    times(SEND, "the same over TAP", "less", ("events", "tap_rpc_2KiB_cpu", "copy")),
    times(SEND, "answers of 98 KiB, time", "more", ("events", "rpc_98KiB_cpu", "copy")),
    times(SEND, "the same over TAP", "more", ("events", "tap_rpc_98KiB_cpu", "copy")),
    times(SEND, "summed before, time", "", ("events", "rpc_98KiB_summed_cpu", "copy")),
    times(SEND, "downloads per second", "1.07", ("events", "download_1MiB_10", "copy")),
    times(SEND, "and their time", "", ("events", "download_1MiB_10_cpu", "copy")),
    times(SEND, "downloads over TAP", "1.07", ("events", "tap_download_1MiB_10", "copy")),
    times(SEND, "and their time", "", ("events", "tap_download_1MiB_10_cpu", "copy")),
    times(SEND, "summed before, per second", "less", ("events", "download_1MiB_10_summed", "copy")),
    times(SEND, "parameter server, time", "1.08", ("events", "tensors_cpu", "copy")),
    times(SEND, "the same over TAP", "1.08", ("events", "tap_tensors_cpu", "copy")),
    times(EVENTS, "receive, one socket", "1", ("events", "receive_1GiB_1", "calls")),
    times(EVENTS, "its thread's time", "2 to 6", ("events", "receive_1GiB_1_cpu_thread", "calls")),
    times(EVENTS, "receive, ten sockets", "1", ("events", "receive_1GiB_10", "calls")),
    times(EVENTS, "its thread's time", "2 to 6", ("events", "receive_1GiB_10_cpu_thread", "calls")),
    times(EVENTS, "receive, kernel, ten", "1", ("events", "kernel_receive_1GiB_10", "calls")),
    times(
        EVENTS,
        "its thread's time",
        "2 to 6",
        ("events", "kernel_receive_1GiB_10_cpu_thread", "calls"),
    ),
    times(EVENTS, "send, ten sockets", "1", ("events", "send_1GiB_10", "calls")),
    times(EVENTS, "send, kernel, ten", "1", ("events", "kernel_send_1GiB_10", "calls")),
    times(EVENTS, "SEND_ZC, kernel, ten", "1", ("events", "kernel_send_lent_1GiB_10", "calls")),
    times(
        EVENTS,
        "requests, own connections",
        "1.46 to 1.64",
        ("events", "kernel_http_connection_per_request", "plain epoll"),
    ),
    times(
        EVENTS,
        "their time",
        "",
        ("events", "kernel_http_connection_per_request_cpu", "plain epoll"),
    ),
    times(
        EVENTS,
        "the same in process",
        "",
        ("events", "http_connection_per_request", "readiness"),
    ),
    times(
        EVENTS,
        "overload, answers",
        "1.46 to 1.64",
        ("events", "kernel_overload", "plain epoll"),
    ),
    times(EVENTS, "overload, errors", "7", ("events", "kernel_overload_errors", "plain epoll")),
    times(EVENTS, "overload in process, answers", "", ("events", "overload", "readiness")),
    times(
        EVENTS,
        "reads of 40 KiB, disk, time",
        "",
        ("events", "file_read_40KiB_depth_4_cpu", "pread"),
    ),
    times(
        EVENTS,
        "the same, past the cache",
        "0 % of 5 %",
        ("events", "file_read_40KiB_depth_4_direct_cpu", "pread"),
    ),
    times(EVENTS, "speed while captured", "", ("events", "capture_all", "no capture")),
    times(EVENTS, "the same, of tcpdump", "", ("events", "capture_all", "tcpdump")),
];

const fn times(
    document: &'static str,
    claim: &'static str,
    theirs: &'static str,
    (bench, case, against): (&'static str, &'static str, &'static str),
) -> Row {
    Row { document, claim, theirs, bench, case, against, show: Show::Times }
}

const fn percent(
    document: &'static str,
    claim: &'static str,
    theirs: &'static str,
    measured: (&'static str, &'static str, &'static str),
) -> Row {
    Row { show: Show::Percent, ..times(document, claim, theirs, measured) }
}

impl Row {
    /// A result in the unit of the document, from a ratio that is above 1 if towpath is better.
    fn figure(&self, ratio: f64) -> String {
        match self.show {
            Show::Times => format!("{ratio:.2}"),
            Show::Percent => format!("{:.1} %", 100.0 / ratio),
        }
    }
}

/// The ratio of each case to each system.
type Ratios = HashMap<(String, String), f64>;

/// Measures all rows, prints them, and draws them to `target/papers.svg`.
pub(crate) fn run() -> Result<(), String> {
    let mut ratios = Ratios::new();
    for (bench, options) in BENCHES {
        let of_bench = ROWS.iter().filter(|row| row.bench == bench);
        let mut cases: Vec<_> = of_bench.map(|row| row.case).collect();
        cases.sort_unstable();
        cases.dedup();
        eprintln!("== {bench}: {}", cases.join(", "));
        measure(bench, &cases, options, &mut ratios)?;
    }
    let mut missing = Vec::new();
    println!("{:<20}{:<28}{:>14}{:>10}  case", "document", "claim", "theirs", "towpath");
    let mut bars = Vec::new();
    for row in &ROWS {
        let ratio = ratios.get(&(row.case.to_owned(), row.against.to_owned()));
        let figure = ratio.map_or_else(|| "left out".to_owned(), |ratio| row.figure(*ratio));
        let Row { document, claim, theirs, case, against, .. } = row;
        println!("{document:<20}{claim:<28}{theirs:>14}{figure:>10}  {case}, of {against}");
        match ratio {
            Some(ratio) => bars.push((row, *ratio)),
            None => missing.push(*case),
        }
    }
    let path = picture_path();
    fs::write(&path, svg(&bars)).map_err(|error| format!("{}: {error}", path.display()))?;
    eprintln!("picture: {}", path.display());
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("not measured, as the text above says: {}", missing.join(", "))),
    }
}

/// Runs cases of a bench.
fn measure(
    bench: &str,
    cases: &[&str],
    options: &[&str],
    ratios: &mut Ratios,
) -> Result<(), String> {
    let bench = bench.split_once('-').map_or(bench, |(bench, _)| bench);
    let mut command = cargo(["run", "--release", "--locked", "--package", "towpath-bench", "--"]);
    command.args([bench, "--json", "--cases", &cases.join(",")]).args(options);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    let lines = String::from_utf8_lossy(&output.stdout);
    for line in lines.lines() {
        let text = |key| field(line, key).map(|value| value.trim_matches('"').to_owned());
        let ratio = field(line, "ratio").and_then(|ratio| ratio.parse().ok());
        if let (Some(case), Some(against), Some(ratio)) = (text("case"), text("against"), ratio) {
            ratios.insert((case, against), ratio);
        }
    }
    // A failed measurement is a row that is left out; wrong usage ends everything.
    match output.status.code() {
        Some(0 | 125) => Ok(()),
        _ => Err(format!("{command:?}: {}", output.status)),
    }
}

/// Value of a key in a line of `towpath-bench --json`, whose strings contain no commas.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{key}\":"))?;
    rest.split([',', '}']).next()
}

fn picture_path() -> PathBuf {
    root().join("target/papers.svg")
}

/// Draws a bar for each ratio, with a line at 1, where towpath and the other system are equal.
fn svg(bars: &[(&Row, f64)]) -> String {
    const LEFT: usize = 330;
    const WIDTH: f64 = 360.0;
    const PITCH: usize = 20;
    // Ratios of a hundred and of one share a picture.
    let length = |ratio: f64| (1.0 + ratio).log2() / 7.0 * WIDTH;
    let height = 60 + PITCH * bars.len();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"800\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"800\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"20\" y=\"28\" font-size=\"16\">Times as good as the other system, \
         logarithmic</text>\n"
    );
    let one = LEFT as f64 + length(1.0);
    let mut push = |line: String| writeln!(text, "{line}").expect("a string takes all text");
    for (index, (row, ratio)) in bars.iter().enumerate() {
        let (top, line) = (44 + PITCH * index, 56 + PITCH * index);
        let Row { document, claim, theirs, .. } = row;
        let (width, end) = (length(*ratio), LEFT as f64 + length(*ratio) + 6.0);
        let (name_end, figure) = (LEFT - 8, row.figure(*ratio));
        let theirs = if theirs.is_empty() { "-" } else { theirs };
        push(format!(
            "<text x=\"{name_end}\" y=\"{line}\" text-anchor=\"end\">{document}: {claim}</text>\n\
             <rect x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"15\" fill=\"#1769aa\"/>\n\
             <text x=\"{end:.1}\" y=\"{line}\">{figure} \
             <tspan fill=\"#666\">theirs {theirs}</tspan></text>"
        ));
    }
    let bottom = height - 10;
    push(format!("<path d=\"M{one:.1} 40V{bottom}\" stroke=\"#333\" stroke-dasharray=\"3\"/>"));
    text + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_benches_and_figures_have_their_unit() {
        for row in &ROWS {
            assert!(BENCHES.iter().any(|(bench, _)| *bench == row.bench), "{}", row.case);
        }
        for (bench, _) in BENCHES {
            assert!(ROWS.iter().any(|row| row.bench == bench), "{bench}");
        }
        let find = |case| ROWS.iter().find(|row| row.case == case).expect("a row");
        assert_eq!(find("vm_guests").figure(1.236), "1.24");
        assert_eq!(find("process_1MiB").figure(50.0), "2.0 %");
    }

    #[test]
    fn fields_are_those_of_a_line() {
        let line = r#"{"bench":"vm","case":"vm_guests","against":null,"ratio":1.5,"max":2}"#;
        assert_eq!(field(line, "case"), Some("\"vm_guests\""));
        assert_eq!((field(line, "ratio"), field(line, "max")), (Some("1.5"), Some("2")));
        assert_eq!(field(line, "min"), None);
    }

    #[test]
    fn the_picture_has_a_bar_for_each_row() {
        let bars: Vec<_> = ROWS.iter().map(|row| (row, 1.5)).collect();
        let svg = svg(&bars);
        assert_eq!(svg.matches("fill=\"#1769aa\"").count(), ROWS.len());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }
}
