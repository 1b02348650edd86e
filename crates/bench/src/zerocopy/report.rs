//! The table for people: a block per way to send, a line per size.

use std::fmt::Write;

use super::cases::{self, Count, Group, Point};
use crate::cases::Case;
use crate::report::short;
use crate::results::{Results, Series};

/// A table of all results.
pub(crate) fn table(results: &Results) -> String {
    let mut text = results.circumstances.join("\n") + "\n";
    for group in cases::groups() {
        let points: Vec<_> = group.points.iter().filter(|point| is_there(results, point)).collect();
        if !points.is_empty() {
            block(&mut text, results, group, &points);
        }
    }
    instructions(&mut text, results);
    text
}

fn instructions(text: &mut String, results: &Results) {
    let is_there = |count: &&Count| find(results, &count.call).is_some();
    let counts: Vec<_> = cases::counts().iter().filter(is_there).collect();
    if !counts.is_empty() {
        let heads = ["lend", "copy", "share"].map(|head| format!("{head:>9}")).concat();
        push(text, format_args!("\nTCP, two stacks in one thread: instructions"));
        push(text, format_args!("{:8}{:>27}   {:>27}", "", "of a call", "of a byte"));
        push(text, format_args!("{:8}{heads}   {heads}", "size"));
    }
    for count in counts {
        let size = cases::size_name(count.size);
        let (call, byte) = (cells(results, &count.call), cells(results, &count.byte));
        push(text, format_args!("{size:8}{call}   {byte}"));
    }
    let plain = find(results, &cases::PLAIN).and_then(|series| series.towpath().spread());
    if let Some(plain) = plain {
        let count = short(plain.median);
        push(text, format_args!("a packet of its own that is copied: {count} instructions"));
    }
}

/// The cost of lending relative to copying, in percent.
pub(super) fn percent(series: &Series) -> Option<f64> {
    let copy = series.peers().find(|system| system.name == "copy")?;
    Some(100.0 / series.ratio(copy)?)
}

pub(super) fn find<'a>(results: &'a Results, case: &Case) -> Option<&'a Series> {
    results.series.iter().find(|series| series.case == case)
}

fn is_there(results: &Results, point: &Point) -> bool {
    point.cases().any(|case| find(results, case).is_some())
}

fn block(text: &mut String, results: &Results, group: &Group, points: &[&Point]) {
    let (title, heads) =
        (group.title(), ["lend", "copy", "share"].map(|head| format!("{head:>9}")));
    let heads = heads.concat();
    push(text, format_args!("\n{title}: processor time per GiB sent, s"));
    push(text, format_args!("{:8}{:>27}   {:>27}", "", "sending thread", "all that takes part"));
    push(text, format_args!("{:8}{heads}   {heads}", "size"));
    for point in points {
        let size = cases::size_name(point.size);
        let (process, system) = (cells(results, &point.process), cells(results, &point.system));
        push(text, format_args!("{size:8}{process}   {system}"));
    }
    let auto = points.iter().filter_map(|point| {
        let series = find(results, point.auto.as_ref()?)?;
        let ratios = series.ratios(series.peers().next()?)?;
        let [median, least, most] =
            [ratios.median, ratios.max, ratios.min].map(|ratio| short(100.0 / ratio));
        Some(format!("{} {median} % ({least} to {most})", cases::size_name(point.size)))
    });
    let auto: Vec<_> = auto.collect();
    if !auto.is_empty() {
        let shares = auto.join(", ");
        push(text, format_args!("auto, of the better of both, all that takes part: {shares}"));
    }
    let Some(series) = find(results, &group.break_even) else { return };
    match series.towpath().spread() {
        Some(spread) => push(
            text,
            format_args!(
                "lending costs the sending thread less from {:.0} B on ({:.0} to {:.0})",
                spread.median, spread.min, spread.max
            ),
        ),
        None => push(text, format_args!("lending never costs the sending thread less")),
    }
}

/// The costs of both, and their ratio.
fn cells(results: &Results, case: &Case) -> String {
    let Some(series) = find(results, case) else { return format!("{:27}", "") };
    let figures = series.systems.iter().map(|system| match system.spread() {
        Some(spread) => short(spread.median),
        None => "failed".into(),
    });
    let share = percent(series).map_or("-".into(), |share| format!("{} %", short(share)));
    figures.chain([share]).fold(String::new(), |line, cell| format!("{line}{cell:>9}"))
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string does not fail");
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::results::System;

    /// Results in which lending costs a quarter everywhere.
    pub(in super::super) fn results() -> Results {
        let system = |name: &str, figure| System { name: name.into(), rounds: vec![Some(figure)] };
        let series = |case: &'static Case| Series {
            case,
            systems: vec![system("lend", 0.25), system("copy", 1.0)],
        };
        let circumstances = vec!["R & D".into()];
        Results { bench: "zerocopy", circumstances, series: cases::all().map(series).collect() }
    }

    #[test]
    fn a_line_has_both_figures_and_their_share() {
        let text = table(&results());
        assert!(text.starts_with("R & D\n"), "{text}");
        let cells = "    0.250     1.00   25.0 %";
        assert!(text.contains(&format!("\n4KiB    {cells}   {cells}\n")), "{text}");
        let mut none = results();
        none.series.clear();
        assert_eq!(table(&none), "R & D\n");
    }
}
