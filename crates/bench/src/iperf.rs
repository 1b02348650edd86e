//! Runs of iperf3: a server on the host and a client in the program's network, or the reverse.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::lab::{IPERF_PORT, Network};
use super::ping_pong::{self, Stopwatch};
use super::process::Running;

/// The traffic of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) ipv6: bool,
    pub(super) udp: bool,
    pub(super) direction: Direction,
    pub(super) flows: u32,
}

/// Direction, from the program's point of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Out,
    In,
    Both,
}

/// The traffic that arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moved {
    pub(super) gbits_per_second: f64,
    /// The reverse direction's, for [`Direction::Both`].
    pub(super) reverse_gbits_per_second: Option<f64>,
    /// Bytes in the first direction.
    pub(super) bytes: f64,
}

/// Longest wait beyond the time of the test: for handshakes and data in flight.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time for a gateway to forward everything that a program has sent.
const DRAIN_WAIT: Duration = Duration::from_millis(300);
/// Fits Ethernet's MTU with IPv6 headers, too.
const DATAGRAM_BYTES: &str = "1400";

impl Direction {
    /// The direction as seen from the other side.
    fn opposite(self) -> Self {
        match self {
            Self::Out => Self::In,
            Self::In => Self::Out,
            Self::Both => Self::Both,
        }
    }
}

/// Runs the test against a server on the host. When it returns, client and server have ended and
/// have been waited for.
pub(super) fn run(
    program: &Network,
    target: IpAddr,
    test: Test,
    seconds: u32,
) -> anyhow::Result<Moved> {
    let server = serve()?;
    let mut client = client(SocketAddr::new(target, IPERF_PORT), test, seconds);
    let client = program.inside(|| Running::start_piped(&mut client))?;
    finish(client, server, test, seconds)
}

/// Runs the test against a server in another network.
pub(super) fn run_between(
    server: &Network,
    program: &Network,
    target: IpAddr,
    test: Test,
    seconds: u32,
) -> anyhow::Result<Moved> {
    let server = server.inside(serve)?;
    let mut client = client(SocketAddr::new(target, IPERF_PORT), test, seconds);
    let client = program.inside(|| Running::start_piped(&mut client))?;
    finish(client, server, test, seconds)
}

/// Runs the test against a server in the program's network, through `port` of the host's loopback.
pub(super) fn run_published(
    program: &Network,
    port: u16,
    test: Test,
    seconds: u32,
) -> anyhow::Result<Moved> {
    let server = program.inside(serve)?;
    let test = Test { direction: test.direction.opposite(), ..test };
    let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
    let client = Running::start_piped(&mut client(at, test, seconds))?;
    finish(client, server, test, seconds)
}

fn finish(client: Running, mut server: Running, test: Test, seconds: u32) -> anyhow::Result<Moved> {
    let limit = Duration::from_secs(seconds.into()) + PATIENCE;
    let text = client.output(limit).context("iperf3")?;
    // A server that never ends is killed when it is dropped.
    server.wait(Duration::from_secs(2))?;
    if test.udp {
        // Otherwise the next server would take data in flight for a new client.
        std::thread::sleep(DRAIN_WAIT);
    }
    moved(&text, test)
}

/// Starts a server for one test, and waits until it listens.
fn serve() -> anyhow::Result<Running> {
    let mut command = Command::new("iperf3");
    command.args(["--server", "--one-off", "--forceflush", "--port", &IPERF_PORT.to_string()]);
    let mut server = Running::start(&mut command)?;
    let started = Stopwatch::start();
    while !server.log().contains("listening") {
        ensure!(started.elapsed() < PATIENCE, "iperf3's server does not listen");
        if server.wait(Duration::ZERO)?.is_some() {
            bail!("iperf3's server failed: {}", server.last_words());
        }
        ping_pong::pause();
    }
    Ok(server)
}

fn client(target: SocketAddr, test: Test, seconds: u32) -> Command {
    let mut command = Command::new("iperf3");
    command.args(["--json", "--interval", "0", "--connect-timeout", "3000"]);
    command.args(["--client", &target.ip().to_string(), "--port", &target.port().to_string()]);
    command.args(["--time", &seconds.to_string(), "--parallel", &test.flows.to_string()]);
    match test.direction {
        Direction::Out => {}
        Direction::In => drop(command.arg("--reverse")),
        Direction::Both => drop(command.arg("--bidir")),
    }
    if test.udp {
        command.args(["--udp", "--bitrate", "0", "--length", DATAGRAM_BYTES]);
    }
    command
}

/// What iperf3 reported with `--json`.
pub(super) fn moved(text: &str, test: Test) -> anyhow::Result<Moved> {
    let all: Value = serde_json::from_str(text).context("iperf3's output is not JSON")?;
    if let Some(error) = all["error"].as_str() {
        bail!("iperf3: {error}");
    }
    let end = &all["end"];
    let number = |sum: &str, name: &str| {
        let number = end[sum][name].as_f64();
        number.with_context(|| format!("iperf3's output has no number {sum}.{name}"))
    };
    let reverse = match test.direction {
        Direction::Both => Some(number("sum_received_bidir_reverse", "bits_per_second")? / 1e9),
        Direction::Out | Direction::In => None,
    };
    Ok(Moved {
        gbits_per_second: number("sum_received", "bits_per_second")? / 1e9,
        reverse_gbits_per_second: reverse,
        bytes: number("sum_received", "bytes")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: Test = Test { ipv6: false, udp: false, direction: Direction::Out, flows: 1 };
    const BOTH: Test = Test { direction: Direction::Both, ..OUT };

    #[test]
    fn output_of_iperf3() {
        let text = r#"{"end": {"sum_sent": {"bytes": 9, "bits_per_second": 1},
            "sum_received": {"bytes": 1000, "bits_per_second": 2e9},
            "sum_received_bidir_reverse": {"bytes": 1, "bits_per_second": 5e8}}}"#;
        let plain = Moved { gbits_per_second: 2.0, reverse_gbits_per_second: None, bytes: 1000.0 };
        assert_eq!(moved(text, OUT).unwrap(), plain);
        assert_eq!(moved(text, BOTH).unwrap().reverse_gbits_per_second, Some(0.5));
    }

    #[test]
    fn failures_of_iperf3() {
        let refused = moved(r#"{"end": {}, "error": "unable to connect"}"#, OUT).unwrap_err();
        assert_eq!(refused.to_string(), "iperf3: unable to connect");
        assert!(moved("", OUT).is_err());
        assert!(moved(r#"{"end": {}}"#, OUT).is_err());
    }
}
