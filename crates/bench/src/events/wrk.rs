//! wrk: third-party HTTP clients.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::points::Point;
use crate::process::Running;

/// The program.
pub(crate) const WRK: &str = "wrk";

/// The result of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct Made {
    pub(crate) requests: f64,
    pub(crate) per_second: f64,
    pub(crate) errors: f64,
}

/// Clients that repeatedly request a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clients<'a> {
    pub(crate) count: u32,
    /// Whether a connection carries more than one request.
    pub(crate) is_kept: bool,
    /// Path that they request, with a leading slash.
    pub(crate) path: &'a str,
}

/// Runs the clients of a load in this thread's network.
pub(super) fn run(server: SocketAddr, point: &Point, span: Duration) -> anyhow::Result<Made> {
    let (count, is_kept, path) = (point.clients, point.is_kept, &point.path());
    ask(server, Clients { count, is_kept, path }, span)
}

/// Runs clients in this thread's network.
pub(crate) fn ask(
    server: SocketAddr,
    clients: Clients<'_>,
    span: Duration,
) -> anyhow::Result<Made> {
    // wrk accepts only whole seconds.
    let seconds = span.as_secs().max(1);
    let mut command = Command::new(WRK);
    command.args(["--threads", "1", "--timeout", "30"]);
    command.args(["--connections", &clients.count.to_string()]);
    command.args(["--duration", &seconds.to_string()]);
    if !clients.is_kept {
        command.args(["--header", "Connection: close"]);
    }
    command.arg(format!("http://{server}{}", clients.path));
    let text =
        Running::start_piped(&mut command)?.output(Duration::from_secs(seconds) + PATIENCE)?;
    Made::parse(&text).with_context(|| format!("{WRK} said: {text}"))
}

const PATIENCE: Duration = Duration::from_secs(40);

impl Made {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (mut requests, mut per_second, mut errors) = (None, None, 0.0);
        for line in text.lines().map(str::trim) {
            if let Some((count, _)) = line.split_once(" requests in ") {
                requests = Some(count.parse()?);
            } else if let Some(rate) = line.strip_prefix("Requests/sec:") {
                per_second = Some(rate.trim().parse()?);
            } else if let Some(counts) = line.strip_prefix("Socket errors:") {
                for count in counts.split(',').filter_map(|count| count.trim().split(' ').nth(1)) {
                    errors += count.parse::<f64>()?;
                }
            } else if let Some(count) = line.strip_prefix("Non-2xx or 3xx responses:") {
                errors += count.trim().parse::<f64>()?;
            }
        }
        let (requests, per_second) = (
            requests.context("wrk printed no number of requests")?,
            per_second.context("wrk printed no rate")?,
        );
        ensure!(requests > 0.0, "no request was answered");
        Ok(Self { requests, per_second, errors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_prints() {
        let text = "Running 1s test @ http://10.8.1.1/4096\n  1 threads and 10 connections\n  \
                    Latency   139.84us  269.39us   9.16ms   97.36%\n  \
                    96281 requests in 1.10s, 413.98MB read\n  \
                    Socket errors: connect 0, read 2, write 1, timeout 4\n  \
                    Non-2xx or 3xx responses: 3\nRequests/sec:  87534.69\n";
        let made = Made { requests: 96281.0, per_second: 87534.69, errors: 10.0 };
        assert_eq!(Made::parse(text).unwrap(), made);
        let none = "  0 requests in 1.10s, 0B read\nRequests/sec: 0.00\n";
        assert!(Made::parse(none).is_err() && Made::parse("").is_err());
    }
}
