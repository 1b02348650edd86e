//! `towpath stats`: counters of running instances, for people and for programs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use serde_json::Value;

use crate::config::args::StatsArguments;
use crate::control::api;
use crate::control::ask::{self, plain};
use crate::control::instances;
use crate::control::ports;
use crate::exit::{Ending, Failure};
use crate::messages::Messages;
use crate::show::watch;

/// Shows the counters of one instance, or lists all.
pub(crate) fn stats(arguments: &StatsArguments) -> Result<Ending, Failure> {
    let path = match (arguments.pid, &arguments.socket) {
        (Some(pid), _) => Some(instances::of_process(pid)?),
        (None, path) => path.clone(),
    };
    if let Some(interval) = arguments.watch {
        let path = path.map_or_else(only, Ok)?;
        return watch::watch(&path, Duration::from_secs(interval.into()), arguments.json);
    }
    let mut failed = None;
    let text = match (path, arguments.json) {
        (Some(path), json) => {
            let counters = ask::ask(&path, "GET", api::STATS, None)?;
            if json { format!("{counters}\n") } else { table(&counters) }
        }
        (None, json) => {
            let mut all = Vec::new();
            for (_, path) in instances::running()? {
                match ask::ask(&path, "GET", api::STATS, None) {
                    Ok(counters) => all.push(counters),
                    Err(error) => failed = Some(error),
                }
            }
            if json { all.iter().map(|object| format!("{object}\n")).collect() } else { list(&all) }
        }
    };
    std::io::stdout().write_all(text.as_bytes())?;
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(Ending::Code(0)),
    }
}

/// Returns the control socket of the only running instance.
pub(super) fn only() -> anyhow::Result<PathBuf> {
    match instances::running()?.as_slice() {
        [(_, path)] => Ok(path.clone()),
        [] => bail!("no towpath is running"),
        several => bail!(
            "several instances are running, with PIDs {}; give the PID of one",
            ports::listed(several.iter().map(|(pid, _)| *pid))
        ),
    }
}

/// Returns one line for each counter.
fn table(counters: &Value) -> String {
    let mut text = String::new();
    for (name, value) in counters.as_object().into_iter().flatten() {
        lines(&mut text, name, value);
    }
    text
}

/// Adds a line for a value, or for each value of an object.
fn lines(text: &mut String, name: &str, value: &Value) {
    match value.as_object() {
        Some(parts) => {
            for (part, value) in parts {
                lines(text, &format!("{name}.{part}"), value);
            }
        }
        None => line(text, name, value),
    }
}

fn line(text: &mut String, name: &str, value: &Value) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{name:<28} {}", plain(value));
}

/// Returns one line for each instance.
fn list(all: &[Value]) -> String {
    if all.is_empty() {
        Messages::Normal.notice("no towpath is running");
        return String::new();
    }
    let mut text = String::new();
    let mut push = |cells: [&str; 6]| {
        let [pid, tcp, out, into, copies, command] = cells;
        let _ = writeln!(text, "{pid:>8} {tcp:>6} {out:>16} {into:>16} {copies:>11}  {command}");
    };
    push(["pid", "tcp", "bytes out", "bytes in", "copies/byte", "command"]);
    for object in all {
        let cell = |value: &Value| plain(value);
        let copies = object["copies_per_byte"].as_f64().unwrap_or(0.0);
        push([
            &cell(&object["pid"]),
            &cell(&object["flows"]["tcp"]),
            &cell(&object["bytes_out"]),
            &cell(&object["bytes_in"]),
            &format!("{copies:.6}"),
            &cell(&object["command"]),
        ]);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn people_see_no_control_characters() {
        let object = json!({ "command": "run \u{1b}[2J", "flows": { "tcp": 3 } });
        assert_eq!(
            table(&object),
            "command                      run \\u{1b}[2J\nflows.tcp                    3\n"
        );
        assert!(list(&[object]).lines().nth(1).expect("a line").contains(" 3 "));
    }
}
