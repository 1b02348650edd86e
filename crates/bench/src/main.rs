//! `towpath-bench`: measurements of towpath against common alternatives.
//!
//! Every measurement runs its systems interleaved over several rounds. Results have one format: a
//! table for people, or with `--json` one object per line with the keys `bench`, `case`, `unit`,
//! `value`, `against`, `other`, `ratio`, `rounds`, `min`, `max`. `value` and `other` are the
//! medians over the rounds, of towpath and of the system `against`. `ratio` is the median of the
//! per-round ratios; above 1, towpath is better. `min` and `max` are the range of `value`, and
//! `rounds` is the number of figures behind it. A figure that could not be measured is null. Case
//! names are stable.
//!
//! # Theory of operation
//!
//! This process forks one child into new network, mount and PID namespaces. Then it only waits for
//! the child or for a signal. The child, process 1 of its PID namespace, does everything. When it
//! or this process ends in any way, the kernel kills all processes that take part, and their
//! unnamed namespaces disappear. The host's own network is never touched. Sockets are in a
//! temporary directory, which this process creates and removes.
//!
//! Modules form a line, and each uses only those before it: `{cases, lab, process, say, scratch} →
//! {ping_pong, results, system} → {distance, flows, iperf, report} → {datagrams, plot, vm} →
//! {events, tunnels, vhost, zerocopy} → {gateway, work} → {ring, workers}`.
#![deny(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, ValueEnum};
use rustix::event::{PollFd, PollFlags, poll};
use towpath_io::mount;
use towpath_io::namespace::signals::{self, Signals};
use towpath_io::namespace::{ChildGuard, Isolation};
use towpath_io::process_sys::Forked;

use cases::{Case, Selection};
use scratch::Scratch;
use system::Peer;
use work::Work;

mod cases;
mod datagrams;
mod distance;
mod events;
mod flows;
mod gateway;
mod iperf;
mod lab;
mod ping_pong;
mod plot;
mod process;
mod report;
mod results;
mod ring;
mod say;
mod scratch;
mod system;
mod tunnels;
mod vhost;
mod vm;
mod work;
mod workers;
mod zerocopy;

/// Measure throughput, latency and cost on this machine.
///
/// `gateway` compares a program's network through towpath with pasta, slirp4netns and a plain veth
/// pair (the kernel alone: the ceiling), interleaved, in namespaces of its own. Needs root, ip
/// (iproute2) and iperf3; HTTP is measured if nginx and wrk are installed. Peers that are not
/// installed are left out.
///
/// `zerocopy` compares sends that lend with sends that copy: processor time per GiB sent, by size
/// of the send, of the sending thread and of everything that takes part: between two hosts in this
/// process, over TAP to the kernel, and for comparison with the kernel's own sockets over veth. TCP
/// and UDP. Needs root, and ip and /dev/net/tun for some cases, which are left out without; counts
/// instructions too if valgrind is installed.
///
/// `ring` compares the ring between threads with a locked queue, crossbeam's ArrayQueue, rtrb and a
/// ring like the kernel's: time per packet with one producer and two, and packets per second of a
/// port on a TAP device. Needs root and ip.
///
/// `vm` sends packets from one virtual machine to another through a switch: payload shared, against
/// payload copied out at the switch. The machines are drivers in this process; in the cases
/// `vm_guests` they are real ones in QEMU, which are also measured on a bridge of the kernel, and
/// left out if QEMU or what they boot is missing. Needs root, and ip for the bridge.
///
/// `vhost` sends packets of 64 bytes and of nearly 64 KiB from one vhost-user port to another,
/// through a switch of towpath's and through DPDK's testpmd. Needs root and dpdk-testpmd.
///
/// `workers` sends packets of 64 bytes between virtual machines whose drivers are in the threads of
/// two workers, and compares that with one worker. Needs root and two processors.
///
/// `tunnels` sends TCP between machines on two hosts that VXLAN joins, through two towpaths and
/// through the kernel's own VXLAN devices on the same veth pair, over IPv4 and IPv6. Needs root, ip
/// and iperf3.
///
/// `events` asks the HTTP server of the example `httpd`, on the event queue, beside the same server
/// on readiness: on hosts in this process, over TAP, and on the kernel's sockets beside plain epoll
/// and nginx. Requests per second, processor time per request, errors; also of servers that are
/// asked for more than they can do. 1 GiB received and sent by operations and by calls that wait,
/// and reads of a file by operations, pread and io_uring alone. Answers of applications, lent and
/// copied, and the cost of a capture beside tcpdump's. Needs root and ip; wrk, nginx and tcpdump
/// for some cases, which are left out without.
///
/// Progress goes to standard error.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// The benchmark to run.
    #[arg(value_name = "NAME")]
    name: Bench,

    /// Rounds: every case is measured once in each; medians are reported.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Seconds of each measurement [default: 3; zerocopy, ring, vm, vhost, workers, tunnels,
    /// events: 1]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,

    /// Peers to compare the gateway with.
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          default_values_t = [Peer::Towpath, Peer::Pasta, Peer::Slirp4netns, Peer::Veth])]
    peers: Vec<Peer>,

    /// Measure only cases with these names; `*` matches any text. Example: 'tcp_*_1flow,rr_*'
    #[arg(long, value_name = "GLOB", value_delimiter = ',', default_value = "*")]
    cases: Vec<String>,

    /// Directory of the images that virtual machines boot, made by scripts/guest.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/guest")]
    guest: PathBuf,

    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,

    /// Also draw the medians to this file (SVG).
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Do nothing but this: what instructions are counted of.
    #[arg(long, hide = true, value_name = "WORK")]
    harness: Option<Work>,

    /// Do nothing but this: be the server that clients ask.
    #[arg(long, hide = true, value_name = "SYSTEM,ADDRESS,DIR")]
    serve: Option<events::Serving>,

    /// Run one round of the shortest measurements, to test that everything works.
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,
}

/// The available measurements.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Bench {
    /// A program's network.
    Gateway,
    /// Sends that lend.
    Zerocopy,
    /// Rings between threads.
    Ring,
    /// Virtual machines on a switch.
    Vm,
    /// Ports for virtual machines, and DPDK's.
    Vhost,
    /// Two workers, and one.
    Workers,
    /// Tunnels between hosts, and the kernel's.
    Tunnels,
    /// Servers, transfers and reads of files by the event queue.
    Events,
}

impl Bench {
    fn cases(self) -> Vec<&'static Case> {
        match self {
            Self::Gateway => gateway::probes::all().collect(),
            Self::Zerocopy => zerocopy::cases::all().collect(),
            Self::Ring => ring::all().collect(),
            Self::Vm => vm::all().collect(),
            Self::Vhost => vhost::all().collect(),
            Self::Workers => workers::all().collect(),
            Self::Tunnels => tunnels::all().collect(),
            Self::Events => events::all().collect(),
        }
    }
}

/// Settings of a benchmark whose measurements all take the same time.
#[derive(Debug)]
struct Timed {
    selection: Selection,
    rounds: u32,
    /// Duration of each measurement.
    span: Duration,
}

/// Settings of the chosen benchmark.
#[derive(Debug)]
enum Plan {
    Gateway(gateway::Plan),
    Zerocopy(zerocopy::Plan),
    Ring(Timed),
    Vm(vm::Plan),
    Vhost(Timed),
    Workers(Timed),
    Tunnels(Timed),
    Events(Timed),
}

/// How a measurement ends.
enum Ending {
    /// With this code.
    Code(u8),
    /// By SIGINT, as the user asked.
    Interrupt,
}

/// The exit code if nothing, or not everything, could be measured.
const FAILED: u8 = 125;
/// Added to the number of the signal that ended a measurement.
const KILLED_BASE: u8 = 128;

fn main() -> ExitCode {
    // Under that name this program acts as the command that it measures, so that one file is
    // enough.
    if std::env::args_os().next().is_some_and(|name| name == towpath_cli::NAME) {
        return towpath_cli::main();
    }
    // Wrong usage exits here, with code 2.
    match bench(&Arguments::parse()) {
        Ok(Ending::Code(code)) => ExitCode::from(code),
        Ok(Ending::Interrupt) => {
            signals::end_by_interrupt();
            ExitCode::from(KILLED_BASE + signals::INTERRUPT_NUMBER)
        }
        Err(error) => {
            say::error(format_args!("{error:#}"));
            ExitCode::from(FAILED)
        }
    }
}

/// Runs the benchmark and prints its results.
fn bench(arguments: &Arguments) -> anyhow::Result<Ending> {
    if let Some(serving) = &arguments.serve {
        serving.run()?;
        return Ok(Ending::Code(0));
    }
    if let Some(work) = arguments.harness {
        work.run()?;
        return Ok(Ending::Code(0));
    }
    let plan = plan(arguments);
    let isolation = Isolation::detect(false)?;
    if !isolation.is_privileged() {
        bail!("this needs root; run it with sudo");
    }
    // Opened before the measurement, which takes long.
    let plot = arguments.plot.as_deref().map(create).transpose()?;
    // This process owns the directory, so that it is removed even if a signal ends the measurement.
    let scratch = Scratch::inside(&std::env::temp_dir())?;
    let signals = Signals::block()?;
    let child = match isolation.fork()? {
        Forked::Child => {
            let done = measure(arguments, &plan, &isolation, signals, scratch.directory(), plot);
            // The child must not return into the parent's code.
            let code = done.unwrap_or_else(|error| {
                say::error(format_args!("{error:#}"));
                FAILED
            });
            std::process::exit(code.into())
        }
        Forked::Parent(child) => child,
    };
    let pidfd = child.pidfd.try_clone().context("cannot duplicate a file descriptor")?;
    let child = ChildGuard::new(child);
    loop {
        match wait(&[signals.as_fd(), pidfd.as_fd()])? {
            // Dropping `child` kills it, and everything ends with it.
            0 => match signals.next()? {
                Some(arrived) if arrived.is_end() => {
                    let number = u8::try_from(arrived.signal.as_raw()).unwrap_or(0);
                    return Ok(match number {
                        signals::INTERRUPT_NUMBER => Ending::Interrupt,
                        _ => Ending::Code(KILLED_BASE + number),
                    });
                }
                _ => {}
            },
            _ => {
                let status = child.wait().context("cannot wait for process 1")?;
                let killed = || {
                    status.signal().map_or(FAILED.into(), |signal| i32::from(KILLED_BASE) + signal)
                };
                let code = status.code().unwrap_or_else(killed);
                return Ok(Ending::Code(u8::try_from(code).unwrap_or(FAILED)));
            }
        }
    }
}

fn plan(arguments: &Arguments) -> Plan {
    let cases = arguments.name.cases();
    let selection = Selection::new(cases.iter().copied(), &arguments.cases);
    if selection.is_empty() {
        let names: Vec<_> = cases.iter().map(|case| &*case.name).collect();
        let text = format!("option --cases: no case matches; there are {}", names.join(", "));
        Arguments::command().error(ErrorKind::ValueValidation, text).exit();
    }
    let rounds = if arguments.quick { 1 } else { arguments.rounds };
    let timed = |selection, quick| {
        let seconds = Duration::from_secs(arguments.seconds.unwrap_or(1).into());
        Timed { selection, rounds, span: if arguments.quick { quick } else { seconds } }
    };
    match arguments.name {
        Bench::Gateway => {
            let seconds = if arguments.quick { 1 } else { arguments.seconds.unwrap_or(3) };
            let setups = system::setups(&arguments.peers);
            Plan::Gateway(gateway::Plan { selection, setups, rounds, seconds })
        }
        Bench::Zerocopy => {
            let seconds = (!arguments.quick).then(|| arguments.seconds.unwrap_or(1));
            Plan::Zerocopy(zerocopy::Plan::new(selection, rounds, seconds))
        }
        Bench::Ring => Plan::Ring(timed(selection, ring::SPAN_QUICK)),
        Bench::Vm => {
            let images = arguments.guest.clone();
            Plan::Vm(vm::Plan { timed: timed(selection, vm::SPAN_QUICK), images })
        }
        Bench::Vhost => Plan::Vhost(timed(selection, vhost::SPAN_QUICK)),
        Bench::Workers => Plan::Workers(timed(selection, workers::SPAN_QUICK)),
        Bench::Tunnels => Plan::Tunnels(timed(selection, tunnels::SPAN_QUICK)),
        Bench::Events => Plan::Events(timed(selection, events::SPAN_QUICK)),
    }
}

/// Runs the measurements in the child, process 1 of its namespaces.
fn measure(
    arguments: &Arguments,
    plan: &Plan,
    isolation: &Isolation,
    signals: Signals,
    scratch: &Path,
    plot: Option<File>,
) -> anyhow::Result<u8> {
    isolation.adopt()?;
    signals.mask_before().restore()?;
    drop(signals);
    // Must run before /proc shows only the new namespaces.
    let kernel = process::KernelThreads::find();
    mount::make_private()?;
    mount::mount_proc()?;
    let (results, failures) = match plan {
        Plan::Gateway(plan) => gateway::measure(plan, &kernel, scratch)?,
        Plan::Zerocopy(plan) => zerocopy::measure(plan, &kernel)?,
        Plan::Ring(plan) => ring::measure(plan)?,
        Plan::Vm(plan) => vm::measure(plan, &kernel, scratch)?,
        Plan::Vhost(plan) => vhost::measure(plan, scratch)?,
        Plan::Workers(plan) => workers::measure(plan)?,
        Plan::Tunnels(plan) => tunnels::measure(plan, &kernel, scratch)?,
        Plan::Events(plan) => events::measure(plan, scratch)?,
    };
    let text = match plan {
        _ if arguments.json => report::json(&results),
        Plan::Zerocopy(_) => zerocopy::report::table(&results),
        _ => report::table(&results),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    if let Some(mut plot) = plot {
        let picture = match plan {
            Plan::Zerocopy(_) => zerocopy::plot::svg(&results),
            _ => plot::svg(&results),
        };
        plot.write_all(picture.as_bytes()).context("option --plot")?;
    }
    if failures > 0 {
        say::error(format_args!(
            "{failures} measurements failed; a line above has the reason of each"
        ));
        return Ok(FAILED);
    }
    Ok(0)
}

fn create(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("option --plot: cannot write {}", path.display()))
}

/// Waits until a descriptor is readable, and returns its index.
fn wait(descriptors: &[BorrowedFd<'_>]) -> anyhow::Result<usize> {
    let mut waiting: Vec<_> =
        descriptors.iter().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
    rustix::io::retry_on_intr(|| poll(&mut waiting, None)).context("cannot wait")?;
    let ready = waiting.iter().position(|waiting| !waiting.revents().is_empty());
    Ok(ready.expect("without a timeout, poll returns when something is ready"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each row that `cargo xtask papers` prints names a case that exists.
    #[test]
    fn rows_of_papers_are_cases() {
        let text = include_str!("../../../xtask/src/papers.rs");
        let (_, rows) = text.split_once("const TABLE: &str = \"\\\n").expect("it has rows");
        let (rows, _) = rows.split_once("\";\n").expect("they end");
        let rows: Vec<_> = rows.lines().filter(|line| !line.starts_with("# ")).collect();
        assert!(rows.len() > 40, "{rows:?}");
        for row in rows {
            let measured = row.split('|').nth(3).and_then(|cell| cell.trim().split_once(' '));
            let (bench, case) = measured.unwrap_or_else(|| panic!("{row}"));
            let bench = bench.split('-').next().unwrap_or(bench);
            let bench = Bench::from_str(bench, false).expect("a benchmark");
            assert!(bench.cases().iter().any(|known| known.name == case), "{case}");
        }
    }
}
