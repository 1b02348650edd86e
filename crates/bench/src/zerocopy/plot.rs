//! The picture: the cost of lending relative to copying, by the size of the send.
//!
//! One panel per carrier and protocol; one line each for the sending thread and for everything,
//! cold and hot.

use std::fmt::{Arguments, Write};

use super::cases::{self, Buffers, Group, SIZES};
use super::report::{find, percent};
use crate::plot::escape;
use crate::results::Results;

/// Draws the results as an SVG file.
pub(crate) fn svg(results: &Results) -> String {
    let mut panels = String::new();
    let mut count = 0;
    for groups in cases::groups().chunk_by(|one, next| panel_of(one) == panel_of(next)) {
        let lines: Vec<_> = groups.iter().flat_map(|group| lines(results, group)).collect();
        if lines.iter().any(|line| !line.points.is_empty()) {
            let at = (count % COLUMNS, count / COLUMNS);
            let left = MARGIN + at.0 * (PANEL_WIDTH + MARGIN);
            panel(&mut panels, (left, HEAD + at.1 * (PANEL_HEIGHT + MARGIN)), &groups[0], &lines);
            count += 1;
        }
    }
    let width = MARGIN + COLUMNS * (PANEL_WIDTH + MARGIN);
    let height = HEAD + count.div_ceil(COLUMNS) * (PANEL_HEIGHT + MARGIN);
    let mut text = String::new();
    push(
        &mut text,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"{MARGIN}\" y=\"32\" font-size=\"18\">towpath-bench zerocopy</text>"
        ),
    );
    for (line, words) in results.circumstances.iter().enumerate() {
        let (y, words) = (32 + (line + 1) * TEXT_PITCH, escape(words));
        push(
            &mut text,
            format_args!("<text x=\"{MARGIN}\" y=\"{y}\" fill=\"#666\">{words}</text>"),
        );
    }
    text + &panels + "</svg>\n"
}

/// Relative costs by size.
struct Line {
    name: &'static str,
    color: &'static str,
    dashes: &'static str,
    /// Index of the size, and percent.
    points: Vec<(usize, f64)>,
}

fn panel_of(group: &Group) -> (cases::Carrier, cases::Protocol) {
    (group.carrier, group.protocol)
}

fn lines(results: &Results, group: &Group) -> [Line; 2] {
    let (color, names) = match group.buffers {
        Buffers::Cold => ("#1769aa", ["thread, cold", "all, cold"]),
        Buffers::Hot => ("#c4622d", ["thread, hot", "all, hot"]),
    };
    let cases = [true, false].map(|of_thread| {
        let share = |(at, point): (usize, &cases::Point)| {
            let case = if of_thread { &point.process } else { &point.system };
            Some((at, percent(find(results, case)?)?))
        };
        group.points.iter().enumerate().filter_map(share).collect()
    });
    let [process, system] = cases;
    [
        Line { name: names[0], color, dashes: "none", points: process },
        Line { name: names[1], color, dashes: "5 3", points: system },
    ]
}

fn panel(text: &mut String, at: (usize, usize), group: &Group, lines: &[Line]) {
    let (left, top) = (at.0 as f64, at.1 as f64);
    let highest = lines.iter().flat_map(|line| &line.points).map(|(_, share)| *share);
    let highest = (highest.fold(100.0, f64::max) / 50.0).ceil() * 50.0;
    let bottom = top + (PANEL_HEIGHT - TEXT_PITCH) as f64;
    let plot_top = top + PANEL_HEAD as f64;
    let x = |size: usize| left + AXIS + size as f64 / (SIZES.len() - 1) as f64 * PLOT_WIDTH;
    let y = |share: f64| bottom - share / highest * (bottom - plot_top);
    let title = format!("{}, {}", group.protocol.title(), group.carrier.title());
    push(
        text,
        format_args!(
            "<text x=\"{left}\" y=\"{:.0}\" font-weight=\"bold\">{} <tspan font-weight=\"normal\" \
             fill=\"#666\">lending in percent of copying</tspan></text>",
            top + 12.0,
            escape(&title)
        ),
    );
    for share in [0.0, 100.0, highest] {
        let (from, to, at) = (x(0), x(SIZES.len() - 1), y(share));
        push(
            text,
            format_args!(
                "<path d=\"M{from:.1} {at:.1}H{to:.1}\" stroke=\"#ccc\"/>\n<text x=\"{:.1}\" \
                 y=\"{:.1}\" text-anchor=\"end\" fill=\"#666\">{share:.0}</text>",
                from - 5.0,
                at + 4.0
            ),
        );
    }
    for (index, size) in SIZES.iter().enumerate() {
        let (at, under, name) = (x(index), bottom + 15.0, cases::size_name(*size));
        push(
            text,
            format_args!(
                "<text x=\"{at:.1}\" y=\"{under:.1}\" text-anchor=\"middle\" \
                 fill=\"#666\">{name}</text>"
            ),
        );
    }
    for (index, line) in lines.iter().enumerate() {
        curve(text, line, &x, &y);
        let at = (left + AXIS + index as f64 * PLOT_WIDTH / 4.0, top + 30.0);
        legend(text, line, at);
    }
}

fn curve(text: &mut String, line: &Line, x: &impl Fn(usize) -> f64, y: &impl Fn(f64) -> f64) {
    let Line { color, dashes, points, .. } = line;
    let mut path = String::new();
    for (index, (size, share)) in points.iter().enumerate() {
        let step = if index == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{step}{:.1} {:.1}", x(*size), y(*share));
    }
    push(
        text,
        format_args!(
            "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dashes}\"/>"
        ),
    );
}

fn legend(text: &mut String, line: &Line, (x, y): (f64, f64)) {
    let Line { name, color, dashes, .. } = line;
    push(
        text,
        format_args!(
            "<path d=\"M{x:.1} {:.1}h18\" stroke=\"{color}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dashes}\"/>\n<text x=\"{:.1}\" y=\"{y:.1}\">{name}</text>",
            y - 4.0,
            x + 22.0
        ),
    );
}

fn push(text: &mut String, line: Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string does not fail");
}

const COLUMNS: usize = 2;
const MARGIN: usize = 24;
const TEXT_PITCH: usize = 16;
/// Height of title, a few lines of circumstances, and a gap.
const HEAD: usize = 120;
const PANEL_WIDTH: usize = 480;
const PANEL_HEIGHT: usize = 240;
/// Height of title and legend.
const PANEL_HEAD: usize = 44;
/// Space for numbers, left of the curves.
const AXIS: f64 = 36.0;
const PLOT_WIDTH: f64 = PANEL_WIDTH as f64 - AXIS - 24.0;

#[cfg(test)]
mod tests {
    use super::super::report::tests::results;
    use super::*;

    #[test]
    fn every_panel_has_its_lines() {
        let results = results();
        let svg = svg(&results);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("R &amp; D") && !svg.contains("NaN"));
        let panels = cases::groups().len() / 2;
        assert_eq!(svg.matches("lending in percent of copying").count(), panels);
        assert_eq!(svg.matches("stroke-width=\"2\" stroke-dasharray=\"none\"").count(), panels * 4);
        assert_eq!(svg.matches(">64KiB<").count(), panels);
    }
}
