//! Results as text: a table for people, JSON for programs.

use std::fmt::Write;
use std::fs;

use super::results::{Results, Series, Spread, System};
use crate::say;

/// A table with a block per case and a line per system.
pub(super) fn table(results: &Results) -> String {
    let mut text = String::new();
    for line in &results.circumstances {
        push(&mut text, format_args!("{line}"));
    }
    let (case, median, spread) = ("case and system", "median", "min to max");
    push(&mut text, format_args!("\n{case:<36}{median:>10}  {spread:<20}towpath is better by"));
    for series in &results.series {
        let (name, unit) = (&series.case.name, series.case.unit);
        push(&mut text, format_args!("\n{name}, {unit}"));
        push(&mut text, format_args!("{}", line(series.towpath(), None)));
        for peer in series.peers() {
            push(&mut text, format_args!("{}", line(peer, series.ratio(peer))));
        }
    }
    text
}

/// One object per case and peer; without a peer, one per case.
pub(super) fn json(results: &Results) -> String {
    let mut text = String::new();
    for series in &results.series {
        let mut peers = series.peers().map(Some).collect::<Vec<_>>();
        if peers.is_empty() {
            peers.push(None);
        }
        for peer in peers {
            push(&mut text, format_args!("{}", object(results.bench, series, peer)));
        }
    }
    text
}

/// Prints the figures of the last round of a case.
pub(super) fn reported(round: u32, rounds: u32, series: &Series) {
    let figure = |system: &System| {
        let figure = system.rounds.last().copied().flatten().map_or("failed".into(), short);
        format!("{} {figure}", system.name)
    };
    let figures: Vec<_> = series.systems.iter().map(figure).collect();
    let name = &series.case.name;
    say::notice(format_args!("round {round}/{rounds} {name}: {}", figures.join(", ")));
}

/// The version of towpath, and the machine.
pub(super) fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let version = env!("CARGO_PKG_VERSION");
    format!("towpath {version}, Linux {}, {processors} processors", kernel.trim())
}

/// A figure for people, with three significant digits.
pub(super) fn short(figure: f64) -> String {
    match figure.abs() {
        size if size >= 99.95 => format!("{figure:.0}"),
        size if size >= 9.995 => format!("{figure:.1}"),
        size if size >= 0.9995 || size == 0.0 => format!("{figure:.2}"),
        _ => format!("{figure:.3}"),
    }
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string does not fail");
}

fn line(system: &System, ratio: Option<f64>) -> String {
    let name = &system.name;
    let Some(Spread { median, min, max, .. }) = system.spread() else {
        return format!("  {name:<34}{:>10}", "failed");
    };
    let spread = format!("{} to {}", short(min), short(max));
    let line = format!("  {name:<34}{:>10}  {spread:<20}", short(median));
    match ratio {
        Some(ratio) => format!("{line}{:>8} x", short(ratio)),
        None => line.trim_end().into(),
    }
}

fn object(bench: &str, series: &Series, peer: Option<&System>) -> String {
    let own = series.towpath().spread();
    let other = peer.and_then(System::spread);
    let pairs = [
        ("bench", string(bench)),
        ("case", string(&series.case.name)),
        ("unit", string(series.case.unit)),
        ("value", number(own.map(|own| own.median))),
        ("against", peer.map_or("null".into(), |peer| string(&peer.name))),
        ("other", number(other.map(|other| other.median))),
        ("ratio", number(peer.and_then(|peer| series.ratio(peer)))),
        ("rounds", own.map_or(0, |own| own.count).to_string()),
        ("min", number(own.map(|own| own.min))),
        ("max", number(own.map(|own| own.max))),
    ];
    let pairs = pairs.map(|(key, value)| format!("{}:{value}", string(key)));
    format!("{{{}}}", pairs.join(","))
}

/// A figure in JSON, rounded to the precision of a measurement.
fn number(figure: Option<f64>) -> String {
    match figure {
        Some(figure) if figure.is_finite() => format!("{}", (figure * 1e6).round() / 1e6),
        _ => "null".into(),
    }
}

fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\0'..='\x1f' => quoted.push_str(&format!("\\u{:04x}", u32::from(character))),
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::probes;

    fn results() -> Results {
        let case = probes::all().find(|case| case.name == "rr_p50_us").unwrap();
        let systems = vec![
            System { name: "towpath".into(), rounds: vec![Some(20.0), Some(10.0)] },
            System { name: "pasta@1500".into(), rounds: vec![Some(30.0), Some(30.0)] },
            System { name: "absent".into(), rounds: vec![None, None] },
        ];
        let series = vec![Series { case, systems }];
        Results { bench: "gateway", circumstances: vec!["here and now".into()], series }
    }

    #[test]
    fn json_has_the_agreed_keys() {
        assert_eq!(
            json(&results()),
            "{\"bench\":\"gateway\",\"case\":\"rr_p50_us\",\"unit\":\"us\",\"value\":15,\
             \"against\":\"pasta@1500\",\"other\":30,\"ratio\":2.25,\"rounds\":2,\"min\":10,\
             \"max\":20}\n"
        );
        let mut alone = results();
        alone.series[0].systems.truncate(1);
        assert!(json(&alone).contains("\"against\":null,\"other\":null,\"ratio\":null"));
    }

    #[test]
    fn a_table_has_a_line_for_each_that_was_measured() {
        let text = table(&results());
        assert!(text.starts_with("here and now\n"), "{text}");
        assert!(text.contains("rr_p50_us, us\n  towpath "), "{text}");
        assert!(text.contains("2.25 x\n") && !text.contains("absent"), "{text}");
    }

    #[test]
    fn strings_and_numbers() {
        assert_eq!(string("a\"b\\c\n"), r#""a\"b\\c\u000a""#);
        assert_eq!(number(Some(f64::NAN)), "null");
        assert_eq!(number(Some(0.1 + 0.2)), "0.3");
        assert_eq!(short(123.4), "123");
        assert_eq!(short(21.04), "21.0");
        assert_eq!(short(0.2), "0.200");
        assert_eq!(short(0.0), "0.00");
    }
}
