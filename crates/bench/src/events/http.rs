//! HTTP servers, each with clients that request files of one size.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use towpath::events::{Choice, Completion, Config, EventQueue};

use super::Group;
use super::nginx::{self, NGINX};
use super::points::{Carrier, Point, SIZES, points};
use super::serve::{CLIENT, DEVICE, KERNEL, LISTENING, PORT, SERVER, STACK};
use super::stack;
use super::wrk::{self, WRK};
use crate::cases::Selection;
use crate::lab::{self, Network};
use crate::ping_pong::Stopwatch;
use crate::process::{self, Running};
use crate::say;
use crate::scratch::Scratch;
use crate::system::find_program;
use crate::vm;

/// Files, networks and available systems of the measurement.
pub(super) struct Http<'a> {
    files: Scratch,
    /// One with a veth pair to this process, and one with the server's TAP device.
    networks: &'a [Network; 2],
    /// The processors of clients and server.
    places: [CpuSet; 2],
    has_wrk: bool,
    kernel: Vec<&'static str>,
}

/// The host's side of the veth pair.
const SUBNET: u8 = 1;
const KERNEL_SERVER: Ipv4Addr = Ipv4Addr::new(10, 8, SUBNET, 1);
const MTU: u16 = 1500;
/// Longest time that a server may take to start.
const START_MAX: Duration = Duration::from_secs(30);

impl<'a> Http<'a> {
    pub(super) fn new(
        networks: &'a [Network; 2],
        scratch: &Path,
        selection: &Selection,
    ) -> anyhow::Result<Self> {
        let files = Scratch::inside(scratch)?;
        for bytes in SIZES {
            fs::write(files.path(&bytes.to_string()), vec![b'x'; bytes])?;
        }
        let needs = |carrier| {
            let mut points = points().iter().filter(|point| point.carrier == carrier);
            points.any(|point| point.cases.iter().any(|case| selection.has(case)))
        };
        let has_wrk = find_program(WRK).is_some();
        if !has_wrk && (needs(Carrier::Tap) || needs(Carrier::Kernel)) {
            say::notice(format_args!("{WRK} is not installed; skipping cases tap_*, kernel_*"));
        }
        let mut kernel = KERNEL.to_vec();
        if has_wrk && needs(Carrier::Kernel) {
            kernel.retain(|system| can_serve(system));
            if kernel.first() == KERNEL.last() {
                let text = "cases kernel_*: event queues cannot use the kernel's sockets";
                say::notice(text);
                kernel.clear();
            }
            lab::join_by_veth(&networks[0], SUBNET, MTU)?;
            match find_program(NGINX) {
                Some(_) if kernel.is_empty() => {}
                Some(_) => kernel.push(NGINX),
                None => say::notice(format_args!("{NGINX} is not installed")),
            }
        }
        if has_wrk {
            networks[0].inside(lab::prepare)?;
            networks[1].inside(lab::prepare)?;
        }
        Ok(Self { files, networks, places: vm::places()?, has_wrk, kernel })
    }

    /// The groups with selected cases that can be measured.
    pub(super) fn groups<'b>(&'b self, selection: &Selection) -> Vec<Group<'b>> {
        let can = |point: &&Point| match point.carrier {
            Carrier::Process => true,
            Carrier::Tap => self.has_wrk,
            Carrier::Kernel => self.has_wrk && !self.kernel.is_empty(),
        };
        let group = |point: &'static Point| Group {
            cases: point.cases.iter().collect(),
            systems: match point.carrier {
                Carrier::Kernel => self.kernel.clone(),
                _ => STACK.into(),
            },
            measure: Box::new(move |system, span| self.measure(point, system, span)),
        };
        let groups = points().iter().filter(can).map(group);
        groups.filter(|group| group.is_selected(selection)).collect()
    }

    fn measure(&self, point: &Point, system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
        let root = self.files.directory();
        match point.carrier {
            Carrier::Process => stack::measure(system, point, root, span),
            Carrier::Tap => self.over_tap(point, system, span),
            Carrier::Kernel => self.on_kernel(point, system, span),
        }
    }

    fn on_kernel(&self, point: &Point, system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
        let [clients, server] = &self.places;
        let (listen, root) = (SocketAddr::from((KERNEL_SERVER, PORT)), self.files.directory());
        let scratch = Scratch::inside(root)?;
        let mut command = match system {
            NGINX => nginx::command(&scratch, listen, root)?,
            _ => serve(system, listen, root),
        };
        until_free(listen)?;
        // A process starts in the network of the thread that starts it.
        let start = || {
            process::pin_thread(server)?;
            Running::start(&mut command)
        };
        let serving = thread::scope(|scope| scope.spawn(start).join().expect("no panic"))?;
        let mut serving = serving;
        until(&mut serving, |_| TcpStream::connect(listen).is_ok())?;
        self.networks[0].inside(|| {
            process::pin_thread(clients)?;
            figures(&serving, listen, point, span)
        })
    }

    fn over_tap(&self, point: &Point, system: &str, span: Duration) -> anyhow::Result<Vec<f64>> {
        let (network, listen) = (&self.networks[1], SocketAddr::from((SERVER, PORT)));
        let mut command = serve(system, listen, self.files.directory());
        let mut serving = network.inside(|| Running::start(&mut command))?;
        until(&mut serving, |log| log.contains(LISTENING))?;
        lab::join_by_tap(network, DEVICE, CLIENT, 24)?;
        network.inside(|| figures(&serving, listen, point, span))
    }
}

/// Runs clients in this thread's network, and returns the figures.
fn figures(
    serving: &Running,
    server: SocketAddr,
    point: &Point,
    span: Duration,
) -> anyhow::Result<Vec<f64>> {
    let pids = serving.tree();
    let before = process::cpu_seconds_fine(&pids);
    let made = wrk::run(server, point, span)?;
    let used = process::cpu_seconds_fine(&pids) - before;
    ensure!(used > 0.0, "the server ended: {}", serving.last_words());
    Ok(vec![made.per_second, used * 1e6 / made.requests, made.errors])
}

/// A command that runs this program as a server.
fn serve(system: &str, listen: SocketAddr, root: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["events", "--serve"]);
    command.arg(format!("{system},{listen},{}", root.display()));
    command
}

/// Waits until nothing listens there. The kernel closes the descriptors of a killed server's ring a
/// while after its end.
fn until_free(listen: SocketAddr) -> anyhow::Result<()> {
    let started = Stopwatch::start();
    while TcpStream::connect(listen).is_ok() {
        ensure!(started.elapsed() < START_MAX, "another program listens on {listen}");
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Waits until the log of a server satisfies `is_so`.
fn until(serving: &mut Running, is_so: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let started = Stopwatch::start();
    while !is_so(&serving.log()) {
        if serving.wait(Duration::ZERO)?.is_some() {
            bail!("it ended: {}", serving.last_words());
        }
        ensure!(started.elapsed() < START_MAX, "it does not start: {}", serving.last_words());
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Whether this server on kernel sockets can run here; io_uring may be forbidden.
pub(super) fn can_serve(system: &str) -> bool {
    let back_end = match system {
        "io_uring" => Choice::IoUring,
        "epoll" => Choice::Epoll,
        _ => return true,
    };
    // No client connects. If the operation can start, the deadline in the past ends it.
    let accept = || -> std::io::Result<bool> {
        let mut queue = EventQueue::with(&Config { back_end, ..Config::default() })?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let token = queue.accept(listener, Some(queue.now()), 0)?;
        let mut events = Vec::new();
        while events.is_empty() {
            queue.wait(&mut events, None)?;
        }
        Ok(match queue.take(token) {
            Some(Completion::Connected(Err(error))) => {
                Errno::from_io_error(&error) == Some(Errno::TIMEDOUT)
            }
            _ => false,
        })
    };
    accept().unwrap_or(false)
}
