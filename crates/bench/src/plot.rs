//! Results as a picture: a panel of bars per case, with the spread of the rounds.

use std::fmt::{Arguments, Write};

use super::cases::Better;
use super::report::short;
use super::results::{Results, Series, Spread, System};

/// Draws the results as an SVG file.
pub(super) fn svg(results: &Results) -> String {
    let mut columns = [COLUMN_TOP; 2];
    let mut panels = String::new();
    for series in &results.series {
        let column = usize::from(columns[1] < columns[0]);
        let left = MARGIN + column * (PANEL_WIDTH + MARGIN);
        let systems: Vec<_> = std::iter::once(series.towpath()).chain(series.peers()).collect();
        panel(&mut panels, (left, columns[column]), series, &systems);
        columns[column] += PANEL_HEAD + systems.len() * BAR_PITCH + MARGIN;
    }
    let (width, height) = (3 * MARGIN + 2 * PANEL_WIDTH, columns[0].max(columns[1]));
    let mut text = String::new();
    push(
        &mut text,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
             <text x=\"{MARGIN}\" y=\"{TITLE_LINE}\" font-size=\"18\">towpath-bench {}</text>",
            escape(results.bench)
        ),
    );
    for (line, words) in results.circumstances.iter().take(CIRCUMSTANCES_MAX).enumerate() {
        let y = TITLE_LINE + (line + 1) * TEXT_PITCH;
        let words = escape(words);
        push(
            &mut text,
            format_args!("<text x=\"{MARGIN}\" y=\"{y}\" fill=\"#666\">{words}</text>"),
        );
    }
    text + &panels + "</svg>\n"
}

const MARGIN: usize = 24;
const TITLE_LINE: usize = 32;
const TEXT_PITCH: usize = 16;
const CIRCUMSTANCES_MAX: usize = 3;
/// Height of title, circumstances and a gap.
const COLUMN_TOP: usize = TITLE_LINE + CIRCUMSTANCES_MAX * TEXT_PITCH + MARGIN;
const PANEL_WIDTH: usize = 460;
const PANEL_HEAD: usize = 22;
const BAR_PITCH: usize = 18;
const BAR_HEIGHT: usize = 13;
/// Space for names, left of the bars.
const NAMES_WIDTH: usize = 130;
/// Width of the longest bar; the rest is for its figure.
const BARS_WIDTH: usize = PANEL_WIDTH - NAMES_WIDTH - 60;

fn panel(text: &mut String, at: (usize, usize), series: &Series, systems: &[&System]) {
    let (left, top) = at;
    let better = match series.case.better {
        Better::High => "more is better",
        Better::Low => "less is better",
    };
    let (name, unit) = (escape(&series.case.name), escape(series.case.unit));
    let line = top + 12;
    push(
        text,
        format_args!(
            "<text x=\"{left}\" y=\"{line}\" font-weight=\"bold\">{name} \
             <tspan font-weight=\"normal\" fill=\"#666\">{unit}, {better}</tspan></text>"
        ),
    );
    let largest = systems.iter().filter_map(|system| system.spread()).map(|spread| spread.max);
    let largest = largest.fold(f64::MIN_POSITIVE, f64::max);
    for (index, system) in systems.iter().enumerate() {
        let top = top + PANEL_HEAD + index * BAR_PITCH;
        bar(text, (left, top), system, largest, index == 0);
    }
}

fn bar(text: &mut String, at: (usize, usize), system: &System, largest: f64, is_own: bool) {
    let (left, top) = at;
    let (names_end, bars, line) = (left + NAMES_WIDTH - 6, left + NAMES_WIDTH, top + 11);
    let name = escape(&system.name);
    push(
        text,
        format_args!("<text x=\"{names_end}\" y=\"{line}\" text-anchor=\"end\">{name}</text>"),
    );
    let Some(Spread { median, min, max, .. }) = system.spread() else {
        return push(text, format_args!("<text x=\"{bars}\" y=\"{line}\">failed</text>"));
    };
    let length = |figure: f64| figure / largest * BARS_WIDTH as f64;
    let fill = if is_own { "#1769aa" } else { "#b8c4ce" };
    let (width, figure) = (length(median), short(median));
    let (from, to) = (bars as f64 + length(min), bars as f64 + length(max));
    let (middle, figure_left) = (top + BAR_HEIGHT / 2, to + 5.0);
    push(
        text,
        format_args!(
            "<rect x=\"{bars}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" \
             fill=\"{fill}\"/>\n<path d=\"M{from:.1} {middle}H{to:.1}\" stroke=\"#333\"/>\n\
             <text x=\"{figure_left:.1}\" y=\"{line}\">{figure}</text>"
        ),
    );
}

fn push(text: &mut String, line: Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string does not fail");
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::probes;

    #[test]
    fn every_case_and_system_is_in_the_picture() {
        let system = |name: &str, figure| System { name: name.into(), rounds: vec![figure] };
        let series = |case| Series {
            case,
            systems: vec![system("towpath", Some(2.0)), system("a<b", Some(0.0))],
        };
        let results = Results {
            bench: "gateway",
            circumstances: vec!["R & D".into()],
            series: probes::all().map(series).collect(),
        };
        let svg = svg(&results);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("R &amp; D") && !svg.contains("NaN"));
        assert!(probes::all().all(|case| svg.contains(&*case.name)));
        assert_eq!(svg.matches(">a&lt;b<").count(), probes::all().count());
    }
}
