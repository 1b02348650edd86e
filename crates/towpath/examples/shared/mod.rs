//! Code that the examples share: hosts and clients, and a report of the costs.
//!
//! The server is always a towpath host. Its clients are on a second host of this process, or in the
//! kernel at the other end of a TAP device.

mod place;

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use place::{PREFIX_LEN, isolated, on_tap};
use rustix::time::{ClockId, clock_gettime};
use towpath::host::{Config, Host, Lend, ReceivedPiece, SendMode, Sending, TcpStream};

/// Options of both examples.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How sent bytes are treated.
    #[arg(long, value_enum, default_value = "lend")]
    pub(crate) mode: Mode,

    /// Where the clients are.
    #[arg(long, value_enum, default_value = "process")]
    pub(crate) over: Over,

    /// How many milliseconds a client in this process may keep lent bytes before they are copied; 0
    /// means without limit.
    #[arg(long, value_name = "MS", default_value_t = 100)]
    pub(crate) term: u32,
}

/// How sent bytes are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// They are copied.
    Copy,
    /// They are lent, and received without a copy where possible.
    Lend,
    /// Each send is copied or lent, whichever costs less.
    Auto,
}

/// Where the clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Over {
    /// On a second host in this process.
    Process,
    /// In the kernel, at the other end of a TAP device.
    Tap,
}

/// The server's host, and the means for clients to connect.
pub(crate) struct Lab {
    pub(crate) server: Host,
    clients: Option<Host>,
    mode: Mode,
    started: Used,
}

/// A client's end of a connection.
pub(crate) enum Client {
    Host(TcpStream),
    Kernel(std::net::TcpStream),
}

/// Runs `work`, in its own network namespace if it needs one.
pub(crate) fn run(options: Options, work: impl FnOnce(&Lab) -> anyhow::Result<u64>) -> ExitCode {
    let done = match options.over {
        Over::Process => work_and_report(options, work),
        Over::Tap => isolated(|| work_and_report(options, work)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work_and_report(
    options: Options,
    work: impl FnOnce(&Lab) -> anyhow::Result<u64>,
) -> anyhow::Result<()> {
    let lab = Lab::new(options)?;
    let bytes = work(&lab)?;
    lab.report(options, bytes);
    for host in [Some(&lab.server), lab.clients.as_ref()].into_iter().flatten() {
        ensure!(host.finish(PATIENCE), "connections are not over");
    }
    Ok(())
}

impl Lab {
    fn new(options: Options) -> anyhow::Result<Self> {
        let term = Duration::from_millis(options.term.into());
        let default_term = Some(term).filter(|term| !term.is_zero());
        let config = |address| Config { default_term, ..Config::with_address(address, PREFIX_LEN) };
        let (server, clients) = match options.over {
            Over::Process => {
                let (server, clients) = Host::pair(&config(SERVER), &config(CLIENT))?;
                (server, Some(clients))
            }
            Over::Tap => {
                let server = on_tap(&config(SERVER), CLIENT)?;
                (server, None)
            }
        };
        Ok(Self { server, clients, mode: options.mode, started: Used::now() })
    }

    /// Returns the address at which the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((SERVER, PORT))
    }

    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        Ok(match &self.clients {
            Some(host) => {
                let stream = TcpStream::connect(host, self.address()).context("cannot connect")?;
                stream.set_send_mode(self.mode.into());
                stream.set_nodelay(true)?;
                Client::Host(stream)
            }
            None => {
                let stream = std::net::TcpStream::connect(self.address());
                let stream = stream.context("cannot connect")?;
                stream.set_nodelay(true)?;
                Client::Kernel(stream)
            }
        })
    }

    fn report(&self, options: Options, bytes: u64) {
        let used = Used::now();
        let seconds = (used.wall - self.started.wall).as_secs_f64();
        let cpu = (used.cpu - self.started.cpu).as_secs_f64();
        let hosts = [Some(&self.server), self.clients.as_ref()];
        let copied: u64 = hosts.into_iter().flatten().map(|host| host.ledger().copied()).sum();
        let (mode, mib) = (options.mode, bytes as f64 / f64::from(1 << 20));
        println!(
            "{mode:?}: {mib:.1} MiB in {seconds:.3} s, {cpu:.3} s of processor time, {:.3} copies \
             of a byte by towpath",
            copied as f64 / bytes as f64
        );
    }
}

impl From<Mode> for SendMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Copy => Self::Copy,
            Mode::Lend => Self::Lend,
            Mode::Auto => Self::Auto,
        }
    }
}

impl Client {
    /// Sends a buffer. The buffer is back when the returned `Sending` is ready.
    pub(crate) fn send<B: Lend + AsRef<[u8]>>(
        &mut self,
        buffer: B,
    ) -> anyhow::Result<Option<Sending<B>>> {
        match self {
            Self::Host(stream) => Ok(Some(stream.send_zc(buffer)?)),
            Self::Kernel(stream) => {
                io::Write::write_all(stream, buffer.as_ref())?;
                Ok(None)
            }
        }
    }
}

impl Read for Client {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Host(stream) => stream.read(into),
            Self::Kernel(stream) => stream.read(into),
        }
    }
}

/// Adds up the next `len` bytes: in place if they were lent, otherwise from a copy.
pub(crate) fn sum(stream: &mut TcpStream, len: usize, mode: Mode) -> anyhow::Result<u64> {
    let (mut left, mut total, mut pieces) = (len, 0, Vec::<ReceivedPiece>::new());
    if mode == Mode::Copy {
        return sum_copied(stream, len);
    }
    while left > 0 {
        let count = stream.recv_lent(left, &mut pieces)?;
        ensure!(count > 0, "the peer is gone");
        left -= count;
        for piece in pieces.drain(..) {
            total += add(&piece.bytes().context("foreign memory")?);
        }
    }
    Ok(total)
}

/// Adds up the next `len` bytes from a copy.
pub(crate) fn sum_copied(stream: &mut impl Read, len: usize) -> anyhow::Result<u64> {
    let mut buffer = vec![0; len.min(READ_BYTES)];
    let (mut left, mut total) = (len, 0);
    while left > 0 {
        let part = left.min(READ_BYTES);
        let count = stream.read(&mut buffer[..part])?;
        ensure!(count > 0, "the peer is gone");
        left -= count;
        total += add(&buffer[..count]);
    }
    Ok(total)
}

pub(crate) fn add(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// Returns bytes with a recognisable pattern.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251 + seed * 7) as u8).collect()
}

/// Time used so far.
#[derive(Clone, Copy)]
struct Used {
    wall: Duration,
    /// CPU time of this process on all processors.
    cpu: Duration,
}

impl Used {
    fn now() -> Self {
        let [wall, cpu] = [ClockId::Monotonic, ClockId::ProcessCPUTime].map(|clock| {
            let time = clock_gettime(clock);
            Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
        });
        Self { wall, cpu }
    }
}

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
const PORT: u16 = 80;
const READ_BYTES: usize = 256 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
