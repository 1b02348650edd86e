//! `towpath stats`: counters of running instances, for people and for programs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use serde_json::{Map, Value, json};
use towpath::report::{Report, WorkerShare};
use towpath_io::confine;

use crate::api;
use crate::args::StatsArguments;
use crate::ask;
use crate::exit::{Ending, Failure};
use crate::instances;
use crate::messages::Messages;
use crate::watch;

/// Characters of a command line that are told.
const COMMAND_CHARS_MAX: usize = 1024;

/// Tells the counters of one instance, or lists all.
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

/// The control socket of the one instance that runs.
fn only() -> anyhow::Result<PathBuf> {
    match instances::running()?.as_slice() {
        [(_, path)] => Ok(path.clone()),
        [] => bail!("none is running"),
        _ => bail!("several are running; say which by its process number"),
    }
}

/// The counters as an object; the manual page says what the names mean.
pub(crate) fn object(report: &Report) -> Value {
    let command: Vec<_> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let named = |pairs: &mut dyn Iterator<Item = (&'static str, u64)>| {
        let counted = pairs.map(|(name, count)| (name.to_string(), count.into()));
        Value::Object(counted.collect::<Map<_, _>>())
    };
    let (tcp, udp, echo) = report.flows;
    let (stack, gateway) = (&report.stack, &report.gateway);
    let mut object = json!({
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "command": command.join(" ").chars().take(COMMAND_CHARS_MAX).collect::<String>(),
        "confinement": confine::state().to_string(),
        "bytes_out": gateway.bytes_out,
        "bytes_in": gateway.bytes_in,
        "carried": report.carried,
        "copied": named(&mut report.copied.iter().copied()),
        "copies_per_byte": report.copies_per_byte(),
        "lent": {
            "bytes": report.lent.bytes,
            "loans": report.loans(),
            "oldest_us": report.lent.oldest.map_or(0, |oldest| oldest.as_micros() as u64),
            "total": report.carried,
            "copied_after_all": report.copied_bytes(),
            "hit_rate": report.hit_rate(),
            "recalled": report.recalled,
        },
        "flows": { "tcp": tcp, "udp": udp, "echo": echo },
        "joined": {
            "flows": report.joined,
            "begun": gateway.joined,
            "refused": gateway.joined_refused,
            "bytes_out": gateway.joined_bytes_out,
            "bytes_in": gateway.joined_bytes_in,
        },
        "packets": {
            "from_program": stack.packets_in,
            "to_program": stack.packets_out,
            "retransmitted": stack.retransmitted,
        },
        "taken": {
            "packets": report.packets_taken,
            "frames": report.frames_taken.0 + report.frames_taken.1,
        },
        "dropped": named(&mut report.losses()),
    });
    if !report.workers.is_empty() {
        object["workers"] = workers(&report.workers);
    }
    object
}

/// What each of several workers did, by its number.
fn workers(shares: &[WorkerShare]) -> Value {
    let one = |(index, share): (usize, &WorkerShare)| {
        let (tcp, udp, echo) = share.flows;
        let object = json!({
            "bytes_out": share.bytes_out,
            "bytes_in": share.bytes_in,
            "flows": { "tcp": tcp, "udp": udp, "echo": echo },
            "packets": { "from_program": share.packets_in, "to_program": share.packets_out },
            "handed_over": share.handed_over,
        });
        (index.to_string(), object)
    };
    Value::Object(shares.iter().enumerate().map(one).collect())
}

/// A line for each figure.
fn table(counters: &Value) -> String {
    let mut text = String::new();
    for (name, value) in counters.as_object().into_iter().flatten() {
        lines(&mut text, name, value);
    }
    text
}

/// A line for a value, or for each value of an object.
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

/// A value without what a terminal would act on.
pub(crate) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), |text| text.escape_debug().to_string())
}

/// A line for each instance.
fn list(all: &[Value]) -> String {
    if all.is_empty() {
        Messages::Normal.notice("none is running");
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
