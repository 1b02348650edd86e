//! Applications that answer from memory, lent and copied: remote procedure calls with short and
//! with long answers, a parameter server, and many clients that fetch files.
//!
//! The server is a host in this process, with a thread for each connection, which reads a request
//! and sends the next answer. Its clients are on a second host in this process, or in the kernel at
//! the other end of a TAP device (`tap_*`). They read the answer into a buffer of their own.
//! Answers are taken in turn from more memory than a cache has, as those of a server with much
//! data.
//!
//! - `rpc_*` and `download_*`: answers of one size. `*_summed`: the server adds up the bytes of an
//!   answer before it sends it, as one that checks what it keeps; they are in a cache then.
//! - `tensors`: each request brings a tensor, whose bytes the server adds up, and is answered with
//!   another of the same size. Sizes of [`TENSORS`] alternate.

use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{self, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::time::ClockId;
use towpath::host::{Completions, Config, Host, SendMode, TcpListener, TcpStream};
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};

use super::Group;
use super::serve::{CLIENT, PORT, SERVER};
use super::transfer::cpu;
use crate::cases::{Better, Case, Selection};
use crate::lab::{self, Network};
use crate::ping_pong::Stopwatch;
use crate::say;

/// Answers of some sizes, to a number of clients.
struct Point {
    is_tap: bool,
    /// In turn.
    sizes: &'static [usize],
    clients: usize,
    /// The server adds up an answer before it sends it.
    is_summed: bool,
    /// A request brings as many bytes as the answer.
    pushes: bool,
    /// Answers per second, and processor time of all threads for each.
    cases: [Case; 2],
}

const SYSTEMS: [&str; 3] = ["auto", "copy", "lend"];
const REQUEST_BYTES: usize = 16;
/// Memory of all answers.
const ANSWERS_BYTES: usize = 256 << 20;
/// Sizes of tensors: a parameter server has many short ones and few long ones.
const TENSORS: &[usize] = &[2 << 10, 98 << 10, 2 << 10, 1 << 20];
const DEVICE: &str = "answers0";
/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    points().iter().flat_map(|point| &point.cases)
}

fn points() -> &'static [Point] {
    static POINTS: LazyLock<Vec<Point>> = LazyLock::new(|| {
        let of = |is_tap| {
            [
                Point::new(is_tap, "rpc_2KiB", &[2 << 10], 1),
                Point::new(is_tap, "rpc_98KiB", &[98 << 10], 1),
                Point::new(is_tap, "rpc_98KiB_summed", &[98 << 10], 1),
                Point::new(is_tap, "download_1MiB_10", &[1 << 20], 10),
                Point::new(is_tap, "download_1MiB_10_summed", &[1 << 20], 10),
                Point::new(is_tap, "tensors", TENSORS, 2),
            ]
        };
        [false, true].into_iter().flat_map(of).collect()
    });
    &POINTS
}

/// The groups with selected cases that can be measured. TAP devices are made in `network`.
pub(super) fn groups<'a>(network: &'a Network, selection: &Selection) -> Vec<Group<'a>> {
    let is_selected = |point: &&Point| point.cases.iter().any(|case| selection.has(case));
    let mut selected: Vec<_> = points().iter().filter(is_selected).collect();
    if selected.iter().any(|point| point.is_tap)
        && let Err(error) = File::open("/dev/net/tun")
    {
        say::notice(format_args!("skipped: answers over TAP: /dev/net/tun: {error}"));
        selected.retain(|point| !point.is_tap);
    }
    let group = |point: &'static Point| Group {
        cases: point.cases.iter().collect(),
        systems: SYSTEMS.into(),
        measure: Box::new(move |system, span| point.measure(network, system, span)),
    };
    selected.into_iter().map(group).collect()
}

impl Point {
    fn new(is_tap: bool, kind: &str, sizes: &'static [usize], clients: usize) -> Self {
        let name = format!("{}{kind}", if is_tap { "tap_" } else { "" });
        let cases = [
            Case { name: name.clone().into(), unit: "answers/s", better: Better::High },
            Case { name: format!("{name}_cpu").into(), unit: "us/answer", better: Better::Low },
        ];
        let (is_summed, pushes) = (kind.ends_with("_summed"), kind == "tensors");
        Self { is_tap, sizes, clients, is_summed, pushes, cases }
    }

    fn measure(&self, network: &Network, system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
        let mode = match system {
            "auto" => SendMode::Auto,
            "copy" => SendMode::Copy,
            _ => SendMode::Lend,
        };
        let config = |address| Config::with_address(address, 24);
        let to = SocketAddr::from((SERVER, PORT));
        if self.is_tap {
            let server = network.inside(|| {
                lab::prepare()?;
                Host::on_tap_named(&config(SERVER), DEVICE).context("a host on a TAP device")
            })?;
            lab::join_by_tap(network, DEVICE, CLIENT, 24)?;
            let connect = || network.inside(|| Ok(net::TcpStream::connect(to)?));
            let connect = || connect().map(Client::Kernel);
            return self.between(&server, connect, mode, span);
        }
        let (near, server) = Host::pair(&config(CLIENT), &config(SERVER))?;
        let connect = || -> anyhow::Result<Client> {
            let stream = TcpStream::connect(&near, to)?;
            stream.set_send_mode(mode);
            Ok(Client::Host(stream, Completions::new()))
        };
        self.between(&server, connect, mode, span)
    }

    fn between(
        &self,
        server: &Host,
        connect: impl Fn() -> anyhow::Result<Client>,
        mode: SendMode,
        span: Duration,
    ) -> anyhow::Result<Vec<f64>> {
        let listener = TcpListener::bind(server, SocketAddr::from((SERVER, PORT)));
        let listener = listener.context("cannot listen")?;
        let answers = &self.answers();
        let (is_over, answered) = (&AtomicBool::new(false), &AtomicU64::new(0));
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for number in 0..self.clients {
                let client = connect().context("cannot connect")?;
                client.set_nodelay()?;
                let (server, _) = listener.accept().context("cannot accept")?;
                server.set_send_mode(mode);
                server.set_nodelay(true)?;
                let turns = answers.len() / self.sizes.len();
                let first = number * turns / self.clients * self.sizes.len();
                threads.push(scope.spawn(move || self.serve(server, answers, first)));
                threads.push(scope.spawn(move || self.ask(client, answers, is_over, answered)));
            }
            // Auto has learned by then, and buffers have been used.
            thread::sleep(span / 4);
            let count = || answered.load(Ordering::Relaxed);
            let (watch, before) = (Stopwatch::start(), (count(), cpu(ClockId::ProcessCPUTime)));
            thread::sleep(span);
            while count() == before.0 && watch.elapsed() < PATIENCE {
                thread::sleep(span / 4);
            }
            let (taken, used) = (watch.elapsed(), cpu(ClockId::ProcessCPUTime) - before.1);
            let count = (count() - before.0) as f64;
            is_over.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().map_err(|_| anyhow!("a thread failed"))??;
            }
            ensure!(count > 0.0, "no request was answered");
            Ok(vec![count / taken.as_secs_f64(), used.as_secs_f64() * 1e6 / count])
        })
    }

    /// All answers, whose sizes alternate.
    fn answers(&self) -> Vec<Arc<[u8]>> {
        let turns = ANSWERS_BYTES / self.sizes.iter().sum::<usize>();
        let sizes = self.sizes.iter().cycle().take(turns * self.sizes.len());
        sizes.enumerate().map(|(number, bytes)| vec![number as u8; *bytes].into()).collect()
    }

    /// Answers the requests of one client until it disconnects.
    fn serve(
        &self,
        mut stream: TcpStream,
        answers: &[Arc<[u8]>],
        first: usize,
    ) -> anyhow::Result<()> {
        let (mut request, mut lent) = ([0; REQUEST_BYTES], Completions::new());
        let mut pushed = vec![0; self.sizes.iter().copied().max().unwrap_or(0)];
        for answer in answers.iter().cycle().skip(first) {
            if stream.read(&mut request[..1])? == 0 {
                break;
            }
            stream.read_exact(&mut request[1..])?;
            if self.pushes {
                let pushed = &mut pushed[..answer.len()];
                stream.read_exact(pushed)?;
                black_box(sum(pushed));
            }
            if self.is_summed {
                black_box(sum(answer));
            }
            lent.push(stream.send_zc(answer.clone())?);
            while lent.try_next().is_some() {}
        }
        Ok(())
    }

    /// Asks for one answer after the other, and pushes `tensors`, whose sizes alternate.
    fn ask(
        &self,
        mut client: Client,
        tensors: &[Arc<[u8]>],
        is_over: &AtomicBool,
        answered: &AtomicU64,
    ) -> anyhow::Result<()> {
        let request: Arc<[u8]> = Arc::from([1; REQUEST_BYTES]);
        let mut answer = vec![0; self.sizes.iter().copied().max().unwrap_or(0)];
        for (bytes, tensor) in self.sizes.iter().cycle().zip(tensors.iter().cycle()) {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            client.send(&request)?;
            if self.pushes {
                client.send(tensor)?;
            }
            client.receive(&mut answer[..*bytes])?;
            answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A client's end of a connection.
enum Client {
    Host(TcpStream, Completions<Arc<[u8]>>),
    Kernel(net::TcpStream),
}

impl Client {
    fn set_nodelay(&self) -> std::io::Result<()> {
        match self {
            Self::Host(stream, _) => stream.set_nodelay(true),
            Self::Kernel(stream) => stream.set_nodelay(true),
        }
    }

    /// Sends as the server does; copies on the kernel's sockets.
    fn send(&mut self, bytes: &Arc<[u8]>) -> anyhow::Result<()> {
        match self {
            Self::Host(stream, lent) => {
                lent.push(stream.send_zc(bytes.clone())?);
                while lent.try_next().is_some() {}
            }
            Self::Kernel(stream) => stream.write_all(bytes)?,
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> std::io::Result<()> {
        match self {
            Self::Host(stream, _) => stream.read_exact(into),
            Self::Kernel(stream) => stream.read_exact(into),
        }
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}
