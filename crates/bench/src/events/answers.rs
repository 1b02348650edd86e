//! Answers from memory, lent and copied: remote procedure calls with short and with long answers,
//! and many clients that fetch files.
//!
//! Both ends are hosts in this process. The server has a thread for each connection, which reads a
//! request and sends the next answer; clients read the answer into a buffer of their own. Answers
//! are taken in turn from more memory than a cache has, as those of a server with much data.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::time::ClockId;
use towpath::host::{Completions, Config, Host, SendMode, TcpListener, TcpStream};
use towpath_packet::sync::{AtomicBool, AtomicU64, Ordering};

use super::Group;
use super::serve::{CLIENT, PORT, SERVER};
use super::transfer::cpu;
use crate::cases::{Better, Case, Selection};
use crate::ping_pong::Stopwatch;

/// Answers of a size, to a number of clients.
struct Point {
    bytes: usize,
    clients: usize,
    /// Answers per second, and processor time of all threads for each.
    cases: [Case; 2],
}

const SYSTEMS: [&str; 3] = ["auto", "copy", "lend"];
const REQUEST_BYTES: usize = 16;
/// Memory of all answers.
const ANSWERS_BYTES: usize = 256 << 20;

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    points().iter().flat_map(|point| &point.cases)
}

fn points() -> &'static [Point] {
    static POINTS: LazyLock<[Point; 3]> = LazyLock::new(|| {
        [
            Point::new("rpc_2KiB", 2 << 10, 1),
            Point::new("rpc_98KiB", 98 << 10, 1),
            Point::new("download_1MiB_10", 1 << 20, 10),
        ]
    });
    &*POINTS
}

/// The groups with selected cases.
pub(super) fn groups(selection: &Selection) -> Vec<Group<'static>> {
    let group = |point: &'static Point| Group {
        cases: point.cases.iter().collect(),
        systems: SYSTEMS.into(),
        measure: Box::new(move |system, span| point.measure(system, span)),
    };
    points().iter().map(group).filter(|group| group.is_selected(selection)).collect()
}

impl Point {
    fn new(name: &'static str, bytes: usize, clients: usize) -> Self {
        let cpu =
            Case { name: format!("{name}_cpu").into(), unit: "us/answer", better: Better::Low };
        Self { bytes, clients, cases: [Case::high(name, "answers/s"), cpu] }
    }

    fn measure(&self, system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
        let mode = match system {
            "auto" => SendMode::Auto,
            "copy" => SendMode::Copy,
            _ => SendMode::Lend,
        };
        let config = |address| Config::with_address(address, 24);
        let (near, far) = Host::pair(&config(CLIENT), &config(SERVER))?;
        let to = SocketAddr::from((SERVER, PORT));
        let listener = TcpListener::bind(&far, to).context("cannot listen")?;
        let answers: Vec<Arc<[u8]>> = (0..ANSWERS_BYTES / self.bytes)
            .map(|number| Arc::from(vec![number as u8; self.bytes]))
            .collect();
        let (answers, is_over, answered) = (&answers, &AtomicBool::new(false), &AtomicU64::new(0));
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for number in 0..self.clients {
                let client = TcpStream::connect(&near, to).context("cannot connect")?;
                let (server, _) = listener.accept().context("cannot accept")?;
                server.set_send_mode(mode);
                server.set_nodelay(true)?;
                let first = number * answers.len() / self.clients;
                threads.push(scope.spawn(move || serve(server, answers, first)));
                let bytes = self.bytes;
                threads.push(scope.spawn(move || ask(client, bytes, is_over, answered)));
            }
            // Auto has learned by then, and buffers have been used.
            thread::sleep(span / 4);
            let count = || answered.load(Ordering::Relaxed);
            let (watch, before) = (Stopwatch::start(), (count(), cpu(ClockId::ProcessCPUTime)));
            thread::sleep(span);
            let (taken, used) = (watch.elapsed(), cpu(ClockId::ProcessCPUTime) - before.1);
            let count = (count() - before.0) as f64;
            is_over.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().map_err(|_| anyhow!("a thread failed"))??;
            }
            Ok(vec![count / taken.as_secs_f64(), used.as_secs_f64() * 1e6 / count])
        })
    }
}

/// Answers the requests of one client until it disconnects.
fn serve(mut stream: TcpStream, answers: &[Arc<[u8]>], first: usize) -> anyhow::Result<()> {
    let (mut request, mut lent) = ([0; REQUEST_BYTES], Completions::new());
    for answer in answers.iter().cycle().skip(first) {
        if stream.read(&mut request[..1])? == 0 {
            break;
        }
        stream.read_exact(&mut request[1..])?;
        lent.push(stream.send_zc(answer.clone())?);
        while lent.try_next().is_some() {}
    }
    Ok(())
}

/// Asks for one answer after the other.
fn ask(
    mut stream: TcpStream,
    bytes: usize,
    is_over: &AtomicBool,
    answered: &AtomicU64,
) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut answer = vec![0; bytes];
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(&[1; REQUEST_BYTES])?;
        stream.read_exact(&mut answer)?;
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
