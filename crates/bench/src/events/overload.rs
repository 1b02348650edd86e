//! Servers that are asked for more than they can do: answers in time, errors, and the time that
//! answers take.
//!
//! Each request has a connection of its own: 16 bytes there, 4 KiB back, and the server closes. For
//! each request the server also computes for [`WORK`], as an application does, so that the server
//! is the limit and not its clients. A [generator](generator) begins requests at fixed times,
//! whether or not earlier ones were answered. An answer's time counts from the moment at which its
//! request was due, and an answer that is not complete within a second is an error. So a slow
//! server cannot slow down those that measure it.
//!
//! What a server can do is measured once, on the peer, by clients that wait for their answers. All
//! systems are then asked for [`OVERLOAD`] times as much. All servers hold at most
//! [`CONNECTIONS_MAX`] connections at a time; others wait in the listener's queue, whose length is
//! the standard library's.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use towpath::events::Stack;
use towpath::host::{self, Config, Host};

use super::Group;
use super::http::can_serve;
use super::serve::{CLIENT, KERNEL, PORT, SERVER, STACK};
use crate::cases::{Better, Case, Selection};
use crate::ping_pong::percentile;
use crate::{process, say, vm};
use generator::{Asked, Pace};
use servers::Listening;

mod generator;
mod servers;

/// Kernel sockets, or hosts in this process.
struct Point {
    is_kernel: bool,
    /// Answers per second, percentage of requests that fail, and time of 99 % of the answers.
    cases: [Case; 3],
}

/// What is asked for, in what the peer can do.
const OVERLOAD: f64 = 1.5;
/// Processor time of an application for one request.
const WORK: Duration = Duration::from_micros(100);
/// Most connections that a server holds at a time.
const CONNECTIONS_MAX: usize = 256;
/// Clients that wait for answers, for the measurement of what a server can do: enough that it is
/// never idle.
const CLIENTS: usize = 64;
const REQUEST_BYTES: usize = 16;
const ANSWER_BYTES: usize = 4 << 10;
/// Shortest measurement that fills all queues.
const SPAN_MIN: Duration = Duration::from_secs(4);

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    points().iter().flat_map(|point| &point.cases)
}

fn points() -> &'static [Point] {
    static POINTS: LazyLock<[Point; 2]> = LazyLock::new(|| [false, true].map(Point::new));
    &*POINTS
}

/// The groups with selected cases that can be measured.
pub(super) fn groups(selection: &Selection) -> Vec<Group<'static>> {
    let group = |point: &'static Point| {
        let mut capacity = None;
        Group {
            cases: point.cases.iter().collect(),
            systems: match point.is_kernel {
                true => KERNEL.into_iter().filter(|system| can_serve(system)).collect(),
                false => STACK.into(),
            },
            measure: Box::new(move |system, span| point.measure(system, span, &mut capacity)),
        }
    };
    let is_selected = |point: &&Point| point.cases.iter().any(|case| selection.has(case));
    points().iter().filter(is_selected).map(group).collect()
}

impl Point {
    fn new(is_kernel: bool) -> Self {
        let name = if is_kernel { "kernel_overload" } else { "overload" };
        let case = |suffix: &str, unit, better| Case {
            name: format!("{name}{suffix}").into(),
            unit,
            better,
        };
        let cases = [
            case("", "answers/s", Better::High),
            case("_errors", "% of requests", Better::Low),
            case("_p99", "ms", Better::Low),
        ];
        Self { is_kernel, cases }
    }

    fn measure(
        &self,
        system: &str,
        span: Duration,
        capacity: &mut Option<f64>,
    ) -> anyhow::Result<Vec<f64>> {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
        let capacity = match *capacity {
            Some(capacity) => capacity,
            None => {
                let peer = if self.is_kernel { KERNEL[2] } else { STACK[1] };
                let found = self.load(peer, Pace::Clients(CLIENTS), span)?.per_second(span);
                let name = &self.cases[0].name;
                say::notice(format_args!("{name}: {peer} can answer {found:.0} requests/s"));
                *capacity.insert(found)
            }
        };
        let span = if span < Duration::from_secs(1) { span } else { span.max(SPAN_MIN) };
        let pace = Pace::Every(Duration::from_secs_f64(1.0 / (OVERLOAD * capacity)));
        let mut asked = self.load(system, pace, span)?;
        asked.times.sort_unstable();
        let errors = 100.0 * asked.errors as f64 / asked.begun as f64;
        let p99 = percentile(&asked.times, 0.99).as_secs_f64() * 1e3;
        Ok(vec![asked.per_second(span), errors, p99])
    }

    /// Asks a server. On kernel sockets server and clients have a processor each, if there are two.
    fn load(&self, system: &str, pace: Pace, span: Duration) -> anyhow::Result<Asked> {
        if self.is_kernel {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
            let to = listener.local_addr().context("cannot listen")?;
            return self.between(
                system,
                Listening::Kernel(listener),
                &Stack::Kernel,
                to,
                pace,
                span,
            );
        }
        let config = |address| Config::with_address(address, 24);
        let (clients, server) = Host::pair(&config(CLIENT), &config(SERVER))?;
        let to = SocketAddr::from((SERVER, PORT));
        let listener = host::TcpListener::bind(&server, to).context("cannot listen")?;
        let stack = Stack::from(&clients);
        self.between(system, Listening::Host(listener), &stack, to, pace, span)
    }

    fn between(
        &self,
        system: &str,
        listening: Listening,
        clients: &Stack,
        to: SocketAddr,
        pace: Pace,
        span: Duration,
    ) -> anyhow::Result<Asked> {
        let places = vm::places()?;
        let pin = |place: usize| match self.is_kernel {
            true => process::pin_thread(&places[place]),
            false => Ok(()),
        };
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                pin(1)?;
                servers::serve(system, listening, end.clone())
            });
            let generator = scope.spawn(|| {
                pin(0)?;
                generator::ask(clients, to, pace, span)
            });
            let asked = generator.join().map_err(|_| anyhow!("the clients failed"))?;
            rustix::io::write(&end, &1_u64.to_ne_bytes())?;
            server.join().map_err(|_| anyhow!("the server failed"))??;
            let asked = asked?;
            ensure!(!asked.times.is_empty(), "no request was answered in time");
            Ok(asked)
        })
    }
}
