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

/// Published figures: under each document its claims, what it reports, the unit of the figure (`x`
/// or `%`), bench and case, and the system that towpath is compared with.
const TABLE: &str = "\
# 2014, segmentation
two guests | 1.24 | x | vm vm_to_vm_segmented | orphan
four guests | more | x | vm vm_to_vm_segmented_4guests | orphan
eight guests | more | x | vm vm_to_vm_segmented_8guests | orphan
sixteen guests | more | x | vm vm_to_vm_segmented_16guests | orphan
copies per byte | 2 | x | vm vm_to_vm_segmented_copies | orphan
two machines in QEMU | 1.24 | x | vm-machines vm_guests | orphan
# 2016, ring
packets to a guest | 1.09 | x | ring port_guest_pps | spin_queue
packets to a TAP device | 1.09 | x | ring port_pps | spin_queue
# 2017, MSG_ZEROCOPY
thread, 4 KiB | 41 % | % | zerocopy process_4KiB | copy
all, 4 KiB |  | % | zerocopy system_4KiB | copy
thread, 1 MiB | 8 % | % | zerocopy process_1MiB | copy
all, 1 MiB | 61 % | % | zerocopy system_1MiB | copy
thread, 4 KiB, TAP | 41 % | % | zerocopy tap_process_4KiB | copy
thread, 1 MiB, TAP | 8 % | % | zerocopy tap_process_1MiB | copy
all, 1 MiB, TAP | 61 % | % | zerocopy tap_system_1MiB | copy
answers of 2 KiB, time | less | x | events rpc_2KiB_cpu | copy
the same over TAP | less | x | events tap_rpc_2KiB_cpu | copy
answers of 98 KiB, time | more | x | events rpc_98KiB_cpu | copy
the same over TAP | more | x | events tap_rpc_98KiB_cpu | copy
summed before, time |  | x | events rpc_98KiB_summed_cpu | copy
downloads per second | 1.07 | x | events download_1MiB_10 | copy
and their time |  | x | events download_1MiB_10_cpu | copy
downloads over TAP | 1.07 | x | events tap_download_1MiB_10 | copy
and their time |  | x | events tap_download_1MiB_10_cpu | copy
summed before, per second | less | x | events download_1MiB_10_summed | copy
parameter server, time | 1.08 | x | events tensors_cpu | copy
the same over TAP | 1.08 | x | events tap_tensors_cpu | copy
# 2006, events
receive, one socket | 1 | x | events receive_1GiB_1 | calls
its thread's time | 2 to 6 | x | events receive_1GiB_1_cpu_thread | calls
receive, ten sockets | 1 | x | events receive_1GiB_10 | calls
its thread's time | 2 to 6 | x | events receive_1GiB_10_cpu_thread | calls
receive, kernel, ten | 1 | x | events kernel_receive_1GiB_10 | calls
its thread's time | 2 to 6 | x | events kernel_receive_1GiB_10_cpu_thread | calls
send, ten sockets | 1 | x | events send_1GiB_10 | calls
send, kernel, ten | 1 | x | events kernel_send_1GiB_10 | calls
SEND_ZC, kernel, ten | 1 | x | events kernel_send_lent_1GiB_10 | calls
own connections | 1.46 to 1.64 | x | events kernel_http_connection_per_request | plain epoll
their time |  | x | events kernel_http_connection_per_request_cpu | plain epoll
the same in process |  | x | events http_connection_per_request | readiness
overload, answers | 1.46 to 1.64 | x | events kernel_overload | plain epoll
overload, errors | 7 | x | events kernel_overload_errors | plain epoll
overload in process, answers |  | x | events overload | readiness
reads of 40 KiB, disk, time |  | x | events file_read_40KiB_depth_4_cpu | pread
the same, past the cache | 0 % of 5 % | x | events file_read_40KiB_depth_4_direct_cpu | pread
pages remapped, time | 5 to 20 | x | events kernel_receive_mapped_cpu_thread | read
speed while captured |  | x | events capture_all | no capture
the same, of tcpdump |  | x | events capture_all | tcpdump
";

/// Returns the rows of the table.
fn rows() -> Vec<Row> {
    let mut document = "";
    let rows = TABLE.lines().filter_map(|line| {
        if let Some(name) = line.strip_prefix("# ") {
            document = name;
            return None;
        }
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [claim, theirs, unit, measured, against] = cells[..] else { panic!("{line}") };
        let (bench, case) = measured.split_once(' ').expect("a bench and its case");
        let show = if unit == "%" { Show::Percent } else { Show::Times };
        Some(Row { document, claim, theirs, bench, case, against, show })
    });
    rows.collect()
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
    let (rows, mut ratios) = (rows(), Ratios::new());
    for (bench, options) in BENCHES {
        let of_bench = rows.iter().filter(|row| row.bench == bench);
        let mut cases: Vec<_> = of_bench.map(|row| row.case).collect();
        cases.sort_unstable();
        cases.dedup();
        eprintln!("== {bench}: {}", cases.join(", "));
        measure(bench, &cases, options, &mut ratios)?;
    }
    let mut missing = Vec::new();
    println!("{:<20}{:<28}{:>14}{:>10}  case", "document", "claim", "theirs", "towpath");
    let mut bars = Vec::new();
    for row in &rows {
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
        let rows = rows();
        for row in &rows {
            assert!(BENCHES.iter().any(|(bench, _)| *bench == row.bench), "{}", row.case);
        }
        for (bench, _) in BENCHES {
            assert!(rows.iter().any(|row| row.bench == bench), "{bench}");
        }
        let find = |case| rows.iter().find(|row| row.case == case).expect("a row");
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
        let rows = rows();
        let bars: Vec<_> = rows.iter().map(|row| (row, 1.5)).collect();
        let svg = svg(&bars);
        assert_eq!(svg.matches("fill=\"#1769aa\"").count(), rows.len());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    }
}
