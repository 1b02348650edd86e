//! `towpath stats --watch`: shows the rates of each interval.

#![allow(clippy::disallowed_methods, reason = "nothing of the data path is here")]

use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Map, Value, json};
use towpath_io::namespace::signals::Signals;

use crate::control::api;
use crate::control::ask::{self, plain};
use crate::control::instances;
use crate::exit::{Ending, Failure};
use crate::messages::Messages;

/// The rates of a port, in the order of the columns.
const PORT_RATES: [&str; 5] = ["packets_in", "bytes_in", "packets_out", "bytes_out", "dropped"];
/// Moves to the first line of a terminal, and erases everything from there on (ECMA-48, CUP and
/// ED).
const REDRAW: &str = "\x1b[H\x1b[J";

/// Shows rates until a signal requests the end, the instance is gone, or the output is closed.
pub(crate) fn watch(path: &Path, interval: Duration, json: bool) -> Result<Ending, Failure> {
    let signals = Signals::block()?;
    let mut stdout = io::stdout();
    let redraw = if stdout.is_terminal() && !json { REDRAW } else { "" };
    let mut before = ask::ask(path, "GET", api::STATS, None)?;
    let mut asked_at = Instant::now();
    while !ends(&signals, asked_at + interval)? {
        let after = match ask::ask(path, "GET", api::STATS, None) {
            Ok(after) => after,
            Err(_) if !instances::answers(path)? => {
                Messages::Normal.notice("the instance has ended");
                break;
            }
            Err(error) => return Err(error.into()),
        };
        let now = Instant::now();
        let rates = rates(&before, &after, now - asked_at);
        let text = if json { format!("{rates}\n") } else { table(&rates) };
        let written = stdout.write_all(format!("{redraw}{text}").as_bytes());
        match written.and_then(|()| stdout.flush()) {
            // The reader has closed the output.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            result => result?,
        }
        (before, asked_at) = (after, now);
    }
    Ok(Ending::Code(0))
}

/// Waits until then; returns true if a signal requests the end before.
fn ends(signals: &Signals, until: Instant) -> io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))?;
        while let Some(arrived) = signals.next()? {
            if arrived.is_end() {
                return Ok(true);
            }
        }
    }
}

/// Returns the rates per second between two answers: of the gateway, and of each port if there are
/// ports.
pub(super) fn rates(before: &Value, after: &Value, elapsed: Duration) -> Value {
    let rate = |before: &Value, after: &Value| {
        let (before, after) = (total(before), total(after));
        // It is lower than before: another port with the same name, whose counters began at zero.
        let passed = after.checked_sub(before).unwrap_or(after);
        round(passed as f64 / elapsed.as_secs_f64())
    };
    let of = |name: &str| rate(&before[name], &after[name]);
    let port = |before: &Value, after: &Value| {
        let rates = PORT_RATES.map(|name| (name.to_owned(), rate(&before[name], &after[name])));
        Value::Object(rates.into_iter().collect::<Map<_, _>>())
    };
    let mut rates = json!({
        "pid": after["pid"],
        "command": after["command"],
        "seconds": round(elapsed.as_secs_f64()),
        "flows": after["flows"],
        "bytes_out": of("bytes_out"),
        "bytes_in": of("bytes_in"),
        "joined_bytes_out": rate(&before["joined"]["bytes_out"], &after["joined"]["bytes_out"]),
        "joined_bytes_in": rate(&before["joined"]["bytes_in"], &after["joined"]["bytes_in"]),
        "packets_out": rate(&before["packets"]["from_program"], &after["packets"]["from_program"]),
        "packets_in": rate(&before["packets"]["to_program"], &after["packets"]["to_program"]),
        "copied": of("copied"),
        "dropped": of("dropped"),
    });
    if let Some(ports) = after["ports"].as_object() {
        let each = |(name, after): (&String, &Value)| {
            (name.clone(), port(&before["ports"][name.as_str()], after))
        };
        let each: Map<_, _> = ports.iter().map(each).collect();
        let sum = |name: &str| each.values().filter_map(|port| port[name].as_f64()).sum::<f64>();
        let all = PORT_RATES.map(|name| (name.to_owned(), round(sum(name))));
        rates["all"] = Value::Object(all.into_iter().collect());
        rates["ports"] = each.into();
        rates["gateway"] = port(&before["gateway"], &after["gateway"]);
    }
    rates
}

/// Returns a counter, or the sum of several.
fn total(value: &Value) -> u64 {
    match value {
        Value::Object(parts) => parts.values().map(total).sum(),
        value => value.as_u64().unwrap_or(0),
    }
}

/// Rounds to one decimal place: more is noise.
pub(super) fn round(rate: f64) -> Value {
    ((rate * 10.0).round() / 10.0).into()
}

/// Returns a table for people: a line for the gateway's flows, or for each port.
fn table(rates: &Value) -> String {
    let mut text = String::new();
    let command = plain(&rates["command"]);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "pid {}  {command}  every {} s", rates["pid"], rates["seconds"]);
    let _ = writeln!(
        text,
        "{:<15} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "", "packets in/s", "Mbit in/s", "packets out/s", "Mbit out/s", "dropped/s"
    );
    let mut line = |name: &str, port: &Value| {
        let rate = |name: &str| port[name].as_f64().unwrap_or(0.0);
        let _ = writeln!(
            text,
            "{:<15} {:>12.1} {:>12.3} {:>13.1} {:>12.3} {:>12.1}",
            name.escape_debug(),
            rate("packets_in"),
            rate("bytes_in") * 8.0 / 1e6,
            rate("packets_out"),
            rate("bytes_out") * 8.0 / 1e6,
            rate("dropped"),
        );
    };
    match rates["ports"].as_object() {
        Some(ports) => {
            ports.iter().for_each(|(name, port)| line(name, port));
            line("gateway", &rates["gateway"]);
            line("all ports", &rates["all"]);
        }
        None => line("program", rates),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_by_time() {
        let before = json!({
            "pid": 7, "bytes_in": 100, "dropped": { "a": 1, "b": 2 },
            "ports": { "x": { "bytes_in": 1000 }, "y": { "bytes_in": 50 } },
        });
        let after = json!({
            "pid": 7, "bytes_in": 300, "dropped": { "a": 3, "b": 2 },
            "ports": {
                "x": { "bytes_in": 1500 },
                "y": { "bytes_in": 20 },
                "z": { "bytes_in": 10, "dropped": { "queue_full": 4 } },
            },
        });
        let rates = rates(&before, &after, Duration::from_secs(2));
        assert_eq!((&rates["bytes_in"], &rates["dropped"]), (&json!(100.0), &json!(1.0)));
        assert_eq!(rates["ports"]["x"]["bytes_in"], 250.0);
        assert_eq!(rates["ports"]["y"]["bytes_in"], 10.0, "another port with the name");
        assert_eq!(rates["ports"]["z"]["bytes_in"], 5.0, "a new one");
        assert_eq!(rates["ports"]["z"]["dropped"], 2.0);
        assert_eq!(rates["all"]["bytes_in"], 265.0);
        let text = table(&rates);
        assert_eq!(text.lines().count(), 2 + 3 + 2, "{text}");
        let one = table(&super::rates(&json!({}), &json!({}), Duration::from_secs(1)));
        assert!(one.contains("program"), "{one}");
    }
}
