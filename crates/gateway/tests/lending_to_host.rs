//! Lending to a real kernel: programs send to another machine over a veth pair.
//!
//! There are three namespaces: the program's, with a TAP device; the host's, where the workers run;
//! and that of the other machine. The kernel copies what it was lent when a packet reaches the TCP
//! of that machine, and reports it. Until a packet is acknowledged, its memory stays lent, as with
//! a network card.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt;
use rustix::thread::gettid;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use towpath_gateway::config::{Config, LendToHost};
use towpath_gateway::report::Report;
use towpath_gateway::worker_group::WorkerGroup;
use towpath_io::tap::{Features, Tap};

/// The other machine's address, and the host's towards it.
const FAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const NEAR: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Longer than anything here takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time that the workers run between two looks, and how often a test looks for something.
const TURNS: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
const LOOKS_MAX: usize = 12_000;
/// Memory of the workers.
const MEMORY: usize = 64 << 20;
/// Bytes of a long transfer.
const MANY: usize = 32 << 20;
/// Bytes of which most wait in the host's socket if the other machine reads nothing.
const STALLED: usize = 96 << 10;
/// Receive buffer of the other machine, in bytes, if it is to read nothing.
const SMALL_BUFFER: usize = 8 << 10;
/// Send buffer of the host, in bytes: more than `STALLED`, whatever the peer's window is.
const SEND_BUFFER: &str = "4096 1048576 4194304";

/// What a thread in another namespace is to do.
type Job = Box<dyn FnOnce() + Send>;

/// The namespaces of a test. The workers run on the thread of the test, while it waits for
/// something.
struct World {
    workers: WorkerGroup,
    far: SocketAddr,
    /// The other machine's ends of connections.
    accepted: Receiver<TcpStream>,
    program: Sender<Job>,
}

impl World {
    /// Runs a test in new namespaces, if there may be any. The receive buffers of the other machine
    /// are small if it `stalls`.
    fn with(config: Config, stalls: bool, test: impl FnOnce(Self) + Send + 'static) {
        let host = thread::spawn(move || {
            if unshare(CloneFlags::CLONE_NEWNET).is_err() {
                eprintln!("skipped: needs root for network namespaces");
                return;
            }
            test(Self::new(&config, stalls));
        });
        host.join().unwrap_or_else(|panic| resume_unwind(panic));
    }

    fn new(config: &Config, stalls: bool) -> Self {
        ip("link set lo up");
        fs::write("/proc/sys/net/ipv4/tcp_wmem", SEND_BUFFER).expect("a setting of the namespace");
        let machine = new_namespace();
        ip(&format!("link add up0 type veth peer name up0 netns {}", machine.thread));
        ip(&format!("address add {NEAR}/24 dev up0"));
        ip("link set up0 up");
        let (tell, accepted) = channel();
        let listener = machine.get(move || {
            ip(&format!("address add {FAR}/24 dev up0"));
            ip("link set up0 up");
            let listener = TcpListener::bind((FAR, 0)).expect("a free port");
            if stalls {
                sockopt::set_socket_recv_buffer_size(&listener, SMALL_BUFFER).expect("a setting");
            }
            listener
        });
        let far = listener.local_addr().expect("an address");
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                stream.set_read_timeout(Some(PATIENCE)).expect("a setting");
                if tell.send(stream).is_err() {
                    return;
                }
            }
        });
        let program = new_namespace();
        let its_config = config.clone();
        let tap = program.get(move || {
            let mut tap = Tap::create(&its_config.interface).expect("a TAP device");
            its_config.interface().configure().expect("addresses");
            tap.set_offload(Features::ALL).expect("features");
            tap
        });
        let workers = WorkerGroup::start(config, tap).expect("workers");
        Self { workers, far, accepted, program: program.jobs }
    }

    /// Does something in the program's namespace while the workers run; returns the result.
    fn run<R: Send + 'static>(&mut self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let done = eventfd(0, EventfdFlags::CLOEXEC).expect("a file");
        let (tell, result) = channel();
        let its_end = Signal(done.try_clone().expect("a descriptor"));
        let job = move || {
            // Dropped at the end, also by a panic.
            let _at_end = its_end;
            let _ = tell.send(job());
        };
        self.program.send(Box::new(job)).expect("the thread waits");
        self.workers.run_until(&[done.as_fd()]).expect("no error");
        result.recv().expect("the job has not panicked")
    }

    /// Connects from the program to the other machine; returns both ends.
    fn connect(&mut self) -> (TcpStream, TcpStream) {
        let far = self.far;
        let near = self.run(move || TcpStream::connect(far).expect("it listens"));
        near.set_read_timeout(Some(PATIENCE)).expect("a setting");
        (near, self.accepted.recv_timeout(PATIENCE).expect("it was accepted"))
    }

    /// Connects, and lends bytes that the other machine does not read.
    fn stall(&mut self) -> (TcpStream, TcpStream) {
        let (mut near, far) = self.connect();
        let near = self.run(move || {
            near.write_all(&pattern(0, STALLED)).expect("the host takes it");
            near
        });
        let report = self.until(|report| report.held_by_host > 0);
        assert!(report.gateway.lent.calls > 0, "{report}");
        (near, far)
    }

    /// Sends `bytes` to the other machine, which checks them.
    fn transfer(&mut self, bytes: usize) {
        let (mut near, mut far) = self.connect();
        let reader = thread::spawn(move || {
            let (mut buffer, mut count) = (vec![0; 256 << 10], 0_usize);
            loop {
                match far.read(&mut buffer).expect("bytes in time") {
                    0 => return far.write_all(&count.to_ne_bytes()).expect("it is taken"),
                    len => {
                        let bad =
                            buffer[..len].iter().zip(count..).find(|(b, at)| **b != value(*at));
                        assert_eq!(bad, None, "after {count} bytes");
                        count += len;
                    }
                }
            }
        });
        let arrived = self.run(move || {
            for from in (0..bytes).step_by(1 << 20) {
                near.write_all(&pattern(from, (1 << 20).min(bytes - from))).expect("it is taken");
            }
            near.shutdown(Shutdown::Write).expect("it is open");
            let mut count = [0; size_of::<usize>()];
            near.read_exact(&mut count).expect("an answer");
            usize::from_ne_bytes(count)
        });
        reader.join().unwrap_or_else(|panic| resume_unwind(panic));
        assert_eq!(arrived, bytes);
    }

    /// Lets the workers run until something is so.
    fn until(&mut self, holds: impl Fn(&Report) -> bool) -> Report {
        for _ in 0..LOOKS_MAX {
            let report = self.workers.report();
            if holds(&report) {
                return report;
            }
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC);
            let timer = timer.expect("a file");
            let once = Itimerspec { it_interval: Timespec::default(), it_value: TURNS };
            timerfd_settime(&timer, TimerfdTimerFlags::empty(), &once).expect("a setting");
            self.workers.run_until(&[timer.as_fd()]).expect("no error");
        }
        panic!("{}", self.workers.report());
    }

    /// Goal of all tests: in the end the kernel has returned everything, and towpath has copied
    /// nothing.
    fn end(mut self) -> Report {
        let report = self.until(|report| report.held_by_host == 0 && report.flows.0 == 0);
        assert_eq!(report.copied_bytes(), 0, "{report}");
        report
    }
}

/// A thread in a network namespace of its own.
struct Namespace {
    thread: String,
    jobs: Sender<Job>,
}

impl Namespace {
    fn get<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (tell, result) = channel();
        self.jobs.send(Box::new(move || drop(tell.send(job())))).expect("the thread waits");
        result.recv().expect("the job has not panicked")
    }
}

fn new_namespace() -> Namespace {
    let (jobs, work) = channel::<Job>();
    let (tell, told) = channel();
    thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("as above");
        tell.send(gettid().as_raw_nonzero().to_string()).expect("it waits");
        work.iter().for_each(|job| job());
    });
    Namespace { thread: told.recv().expect("it begins"), jobs }
}

/// Makes an event when it is dropped.
struct Signal(OwnedFd);

impl Drop for Signal {
    fn drop(&mut self) {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).expect("room");
    }
}

/// The byte at a place of a stream; the period has no factor in common with frames and pages.
fn value(at: usize) -> u8 {
    (at % 251) as u8
}

fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(value).collect()
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().expect("ip is there");
    assert!(status.success(), "ip {args}");
}

fn config(lend_to_host: LendToHost) -> Config {
    Config {
        lend_to_host,
        // The first packet of a connection is a full one.
        mtu: 65_520,
        memory_bytes: MEMORY,
        ipv6: None,
        resolvers: Some(Vec::new()),
        ..Config::default()
    }
}

/// Goal: lent bytes arrive in order and unchanged, also while flows move between workers.
#[test]
fn lent_bytes_arrive() {
    World::with(config(LendToHost::Always), false, |mut world| {
        world.transfer(MANY);
        let report = world.end();
        assert!(report.gateway.lent.bytes > MANY as u64 / 2, "{report}");
        assert_eq!(report.gateway.bytes_out, MANY as u64);
    });
    let two = Config { workers: 2, ..config(LendToHost::Always) };
    World::with(two, false, |mut world| {
        world.workers.rotate_every(Duration::from_millis(15));
        world.transfer(MANY);
        let report = world.end();
        assert!(report.gateway.lent.bytes > MANY as u64 / 4, "{report}");
        assert!(report.flows_taken > 0, "{report}");
    });
}

/// Goal: what a stalled machine keeps lent is bounded, and other flows go on. A reset by that
/// machine reaches the program and returns everything.
#[test]
fn a_stalled_machine_keeps_little() {
    World::with(config(LendToHost::Always), true, |mut world| {
        let (mut near, far) = world.stall();
        let others: Vec<_> = (0..8).map(|_| world.stall()).collect();
        world.transfer(MANY / 32);
        let held = world.workers.report().held_by_host;
        assert!(held > STALLED / 2 && held <= MEMORY / 16, "{held} bytes are held");
        sockopt::set_socket_linger(&far, Some(Duration::ZERO)).expect("a setting");
        drop(far);
        let error = world.run(move || near.read(&mut [0]).expect_err("a reset"));
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        drop(others);
        world.end();
    });
}

/// Goal: a program that resets a connection resets it at the other machine at once, although its
/// bytes are lent; they return.
#[test]
fn a_program_resets_what_it_lent() {
    World::with(config(LendToHost::Always), true, |mut world| {
        let (near, mut far) = world.stall();
        world.run(move || {
            sockopt::set_socket_linger(&near, Some(Duration::ZERO)).expect("a setting");
            drop(near);
        });
        world.end();
        let error = far.read_to_end(&mut Vec::new()).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

/// Goal: a connection that the program has closed still delivers what is lent. Method: the other
/// machine reads only after the flow is gone.
#[test]
fn a_closed_connection_delivers_what_it_lent() {
    World::with(config(LendToHost::Always), true, |mut world| {
        let (mut near, mut far) = world.stall();
        // The program closes first, so that nothing inside waits for old packets to be gone.
        near.shutdown(Shutdown::Write).expect("it is open");
        far.shutdown(Shutdown::Write).expect("it is open");
        world.run(move || assert_eq!(near.read(&mut [0]).expect("the end"), 0));
        let report = world.until(|report| report.flows.0 == 0);
        assert!(report.held_by_host > 0, "the other machine has not read: {report}");
        let reader = thread::spawn(move || {
            let mut all = Vec::new();
            far.read_to_end(&mut all).expect("all bytes and the end");
            all
        });
        world.end();
        assert!(reader.join().expect("no panic") == pattern(0, STALLED));
    });
}

/// Goal: where the kernel has no memory to report returns, bytes are copied.
#[test]
fn refused_loans_are_copied() {
    World::with(config(LendToHost::Always), false, |mut world| {
        if fs::write("/proc/sys/net/core/optmem_max", "1").is_err() {
            return eprintln!("skipped: optmem_max is not one of the namespace");
        }
        world.transfer(MANY / 8);
        let report = world.end();
        let lent = report.gateway.lent;
        assert!(lent.refused > 0 && lent.calls == 0, "{report}");
    });
}

/// Goal: with `auto`, nothing is lent to a host that answers at once, as those of this machine do.
#[test]
fn nothing_is_lent_within_the_machine() {
    World::with(config(LendToHost::Auto), false, |mut world| {
        world.transfer(MANY);
        let report = world.end();
        assert_eq!((report.gateway.lent.calls, report.gateway.lent.refused), (0, 0), "{report}");
    });
}
