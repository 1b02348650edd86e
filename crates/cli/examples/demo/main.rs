//! A demonstration of towpath in one minute: `demo [MIB]`.
//!
//! A small HTTP server listens on the host's loopback. A client, which is this program again, runs
//! inside `towpath run`, and fetches and uploads MIB mebibytes, by default 1024. Both sides keep
//! what they receive, and compute its SHA-256 after the time measurement.
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

/// The client's reports.
#[derive(Default)]
struct Told {
    time: Duration,
    sha256: String,
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
    for direction in [Direction::ToProgram, Direction::ToHost] {
        transfer(direction, mib << 20)?;
    }
    Ok(())
}

fn transfer(direction: Direction, bytes: usize) -> Result<()> {
    let server = Server::start(direction, bytes)?;
    let (told, stats) = run_client(direction, server.address(), bytes)?;
    // Both hashes take seconds; the client has computed its own.
    let sha256 = server.finish()?;
    if told.sha256 != sha256 {
        return Err(format!("the bytes differ: SHA-256 {sha256} and {}", told.sha256).into());
    }
    report::print(direction, bytes, told.time, &sha256, &stats);
    Ok(())
}

/// Runs the client inside `towpath run`.
fn run_client(direction: Direction, server: SocketAddr, bytes: usize) -> Result<(Told, Stats)> {
    let towpath = towpath()?;
    let inside = format!("{HOST}:{}", server.port());
    let mut child = Command::new(&towpath)
        .args(["run", "--stats", "--mtu", MTU, "--map-host-loopback", HOST, "--"])
        .arg(std::env::current_exe()?)
        .args(["client", direction.method(), &inside, &bytes.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", towpath.display()))?;
    let mut stderr = child.stderr.take().ok_or("no standard error")?;
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    let mut told = Told::default();
    let mut progress = Progress::new(direction.name(), bytes);
    for line in BufReader::new(child.stdout.take().ok_or("no standard output")?).lines() {
        match line?.split_once(' ') {
            Some(("at", done)) => progress.show(done.parse()?),
            Some(("time", micros)) => told.time = Duration::from_micros(micros.parse()?),
            Some(("sha256", hash)) => told.sha256 = hash.into(),
            _ => {}
        }
    }
    progress.end();
    let status = child.wait()?;
    let text = reader.join().map_err(|_| "reading standard error failed")??;
    if !status.success() {
        return Err(format!("towpath run ended with {status}\n{}", text.trim_end()).into());
    }
    Ok((told, Stats::read(&text, direction)?))
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
