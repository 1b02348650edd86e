//! A demonstration of towpath in one minute: `demo [MIB]`.
//!
//! A small HTTP server listens on the host's loopback. A client, which is this program again, runs
//! inside `towpath run`, and fetches and uploads MIB mebibytes, by default 1024. Both sides keep
//! what they receive, and compute its SHA-256 after the time measurement. Client and server then do
//! the same over the kernel's loopback, and a summary compares the two.
#![forbid(unsafe_code)]

mod client;
mod data;
mod report;
mod server;

use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use report::{Progress, Stats};
use server::Server;

/// The program's MTU.
const MTU: &str = "1500";
/// Address inside that leads to the host's loopback.
const HOST: &str = "10.0.2.2";
const MIB_DEFAULT: usize = 1024;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Direction of the payload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToProgram,
    ToHost,
}

impl Direction {
    /// The argument that selects it in the client.
    fn method(self) -> &'static str {
        match self {
            Direction::ToProgram => "GET",
            Direction::ToHost => "PUT",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Direction::ToProgram => "host to program",
            Direction::ToHost => "program to host",
        }
    }
}

/// What carries the bytes.
#[derive(Clone, Copy)]
enum Carrier {
    Towpath,
    /// The loopback interface, without a namespace.
    Kernel,
}

impl Carrier {
    fn name(self) -> &'static str {
        match self {
            Carrier::Towpath => "through towpath",
            Carrier::Kernel => "over the kernel's loopback",
        }
    }
}

/// The client's reports.
#[derive(Default)]
struct Report {
    time: Duration,
    sha256: String,
}

/// A transfer whose bytes arrived unchanged.
struct Transfer {
    direction: Direction,
    bytes: usize,
    time: Duration,
    sha256: String,
}

impl Transfer {
    fn gigabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.time.as_secs_f64() / 1e9
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["client", method, server, bytes] => client::run(method, server, bytes),
        [] => demonstrate(MIB_DEFAULT),
        [mib] => match mib.parse() {
            Ok(mib @ 1..) => demonstrate(mib),
            _ => Err("usage: demo [MIB]".into()),
        },
        _ => Err("usage: demo [MIB]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn demonstrate(mib: usize) -> Result<()> {
    println!("{mib} MiB each way between the host's loopback and a program inside `towpath run`,");
    println!("which sees an MTU of {MTU}:");
    let directions = [Direction::ToProgram, Direction::ToHost];
    let mut rows = Vec::new();
    for direction in directions {
        let (transfer, text) = transfer(direction, Carrier::Towpath, mib << 20)?;
        let stats = Stats::read(&text, direction)?;
        report::print(&transfer, &stats);
        rows.push((transfer, stats));
    }
    let kernel = directions.map(|direction| transfer(direction, Carrier::Kernel, mib << 20));
    let mut compared = Vec::new();
    for ((towpath, stats), kernel) in rows.into_iter().zip(kernel) {
        compared.push((towpath, stats, kernel?.0));
    }
    report::summarise(&compared);
    Ok(())
}

/// Moves bytes between a client and a server. Also returns what the client's standard error had.
fn transfer(direction: Direction, carrier: Carrier, bytes: usize) -> Result<(Transfer, String)> {
    let server = Server::start(direction, bytes)?;
    let (report, text) = run_client(direction, carrier, server.address(), bytes)?;
    // Both hashes take seconds; the client has computed its own.
    let sha256 = server.finish()?;
    if report.sha256 != sha256 {
        return Err(format!("the bytes differ: SHA-256 {sha256} and {}", report.sha256).into());
    }
    Ok((Transfer { direction, bytes, time: report.time, sha256 }, text))
}

/// Runs the client, through towpath inside `towpath run`. Also returns its standard error.
fn run_client(
    direction: Direction,
    carrier: Carrier,
    server: SocketAddr,
    bytes: usize,
) -> Result<(Report, String)> {
    let this = std::env::current_exe()?;
    let (program, mut command, target) = match carrier {
        Carrier::Towpath => {
            let towpath = towpath()?;
            let mut command = Command::new(&towpath);
            command.args(["run", "--stats", "--mtu", MTU, "--map-host-loopback", HOST, "--"]);
            command.arg(this);
            (towpath, command, format!("{HOST}:{}", server.port()))
        }
        Carrier::Kernel => (this.clone(), Command::new(this), server.to_string()),
    };
    let mut child = command
        .args(["client", direction.method(), &target, &bytes.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let mut stderr = child.stderr.take().ok_or("no standard error")?;
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut report = Report::default();
    let name = format!("{} {}", direction.name(), carrier.name());
    let mut progress = Progress::new(name, bytes);
    for line in BufReader::new(child.stdout.take().ok_or("no standard output")?).lines() {
        match line?.split_once(' ') {
            Some(("at", done)) => progress.show(done.parse()?),
            Some(("time", micros)) => report.time = Duration::from_micros(micros.parse()?),
            Some(("sha256", hash)) => report.sha256 = hash.into(),
            _ => {}
        }
    }
    progress.end();
    let status = child.wait()?;
    let text = reader.join().map_err(|_| "reading standard error failed")??;
    if !status.success() {
        return Err(format!("the client ended with {status}\n{}", text.trim_end()).into());
    }
    Ok((report, text))
}

/// Returns the path of the command, which is built next to this example.
fn towpath() -> Result<PathBuf> {
    let example = std::env::current_exe()?;
    let folder = example.parent().and_then(|examples| examples.parent());
    let towpath = folder.ok_or("the demo is in no folder")?.join("towpath");
    if towpath.exists() {
        return Ok(towpath);
    }
    Err(format!("{} is missing: run `make demo`", towpath.display()).into())
}
