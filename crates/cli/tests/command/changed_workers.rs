//! `towpath workers set`: the number of workers of a running network changes under traffic.
//!
//! Ports are stream and vhost-user sockets, so the tests need no privilege, and no packet leaves
//! the machine.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::Value;

use super::control::assert_done;
use super::front_end::{self, memory};
use super::guest::{self, ethernet};
use super::stats::{Folder, assert_fails};
use super::support::*;

/// Ports of a network, and their options.
const PORTS: [(&str, &str); 4] =
    [("a", "--stream"), ("b", "--stream"), ("one", "--vhost-user"), ("two", "--vhost-user")];
/// A type of frames that nothing else has.
const NUMBERED: [u8; 2] = [0x88, 0xb5];
/// Frames on the way at a time.
const WINDOW: u32 = 16;

/// A network with these ports and no gateway.
struct Network {
    folder: Folder,
    running: Guard,
}

impl Network {
    fn start(name: &str, options: &[&str]) -> Self {
        let folder = Folder::new(name);
        let mut command = towpath(["up", "--no-gateway", "--quiet"]);
        command.args(options);
        for (port, option) in PORTS {
            command.arg(option).arg(format!("{port}={}", folder.0.join(port).display()));
        }
        // With an arena for each thread, the size of the process would depend on their timing.
        command.env("XDG_RUNTIME_DIR", &folder.0).env("MALLOC_ARENA_MAX", "1");
        let running = Guard(command.stdin(Stdio::null()).spawn().unwrap());
        let network = Self { folder, running };
        wait_for("the control socket", || {
            text(&network.towpath(&["ls"])).lines().count() == PORTS.len()
        });
        network
    }

    /// Runs `towpath` with arguments, as the network's user.
    fn towpath(&self, arguments: &[&str]) -> Output {
        output(towpath(arguments.iter().copied()).env("XDG_RUNTIME_DIR", &self.folder.0))
    }

    /// Changes the number of workers.
    fn set(&self, count: usize) {
        let done = self.towpath(&["workers", "set", &count.to_string()]);
        assert_eq!(done.status.code(), Some(0), "{count}: {}", errors(&done));
    }

    /// Asserts that there are so many workers, with as many ports each, up to one.
    fn assert_workers(&self, count: usize) {
        // The kernel names a thread after it has begun, and removes it after it has been joined.
        wait_for("the threads", || {
            let threads = self.threads().into_iter();
            threads.filter(|name| name.starts_with("worker-")).count() == count - 1
        });
        let mut loads = vec![0; count];
        for line in text(&self.towpath(&["ls", "--json"])).lines() {
            let port: Value = serde_json::from_str(line).unwrap();
            loads[port["worker"].as_u64().unwrap() as usize] += 1;
        }
        assert_eq!(loads.iter().sum::<usize>(), PORTS.len());
        assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() < 2, "{loads:?}");
    }

    fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.running.0.id())).unwrap();
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        tasks.filter_map(|task| name(task.unwrap())).collect()
    }

    fn descriptors(&self) -> Vec<u64> {
        let open = fs::read_dir(format!("/proc/{}/fd", self.running.0.id())).unwrap();
        open.map(|file| file.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
    }

    fn guest(&self, port: &str, last: u8) -> guest::Guest {
        guest::Guest::connect(&self.folder.0.join(port), last)
    }

    fn machine(&self, port: &str) -> front_end::Guest {
        let socket = UnixStream::connect(self.folder.0.join(port)).unwrap();
        front_end::Guest::over(socket, memory()).expect("the port has no other guest")
    }
}

/// Ends the traffic of a test, also if the test fails.
struct Traffic<'a>(&'a AtomicBool);

impl Drop for Traffic<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends numbered frames between guests of stream ports, until the test ends. All arrive in order.
/// Returns their number.
fn pass_frames(a: &mut guest::Guest, b: &mut guest::Guest, ends: &AtomicBool) -> u32 {
    let (from, to) = (a.mac, b.mac);
    // Packets to an unknown station are limited.
    let hello = ethernet([0xff; 6], to, NUMBERED, b"here");
    b.send(&hello);
    a.expect("introduction", |frame| frame == hello);
    let mut number = 0_u32;
    while !ends.load(Ordering::Relaxed) {
        for number in number..number + WINDOW {
            a.send(&ethernet(to, from, NUMBERED, &number.to_be_bytes()));
        }
        for number in number..number + WINDOW {
            let is_numbered = |frame: &[u8]| frame[..6] == to && frame[12..14] == NUMBERED;
            let frame = b.expect("numbered frame", is_numbered);
            assert_eq!(frame[14..18], number.to_be_bytes());
        }
        number += WINDOW;
    }
    number
}

/// Sends numbered frames from one machine to another and back, one at a time, until the test ends.
/// All arrive. Returns their number.
fn pass_between(one: &mut front_end::Guest, two: &mut front_end::Guest, ends: &AtomicBool) -> u32 {
    let (first, second) = ([2, 0, 0, 0, 0, 11], [2, 0, 0, 0, 0, 12]);
    pass(two, one, &ethernet([0xff; 6], second, NUMBERED, b"here"));
    let mut number = 0_u32;
    while !ends.load(Ordering::Relaxed) {
        pass(one, two, &ethernet(second, first, NUMBERED, &number.to_be_bytes()));
        pass(two, one, &ethernet(first, second, NUMBERED, &number.to_be_bytes()));
        number += 2;
    }
    number
}

/// Sends a frame from one machine to another, and waits for it.
fn pass(from: &mut front_end::Guest, to: &mut front_end::Guest, frame: &[u8]) {
    from.send(frame);
    let mut has_come = || to.has_received(|other| other == frame);
    let comes_soon = (0..1000).any(|_| {
        thread::yield_now();
        has_come()
    });
    if !comes_soon {
        wait_for("a frame between machines", has_come);
    }
}

/// Goal: workers begin and end under traffic between stream ports and between virtual machines. No
/// frame is lost or overtaken, ports are distributed evenly, and in the end the process has as many
/// threads and descriptors as before, and no more memory.
#[test]
fn workers_come_and_go_under_traffic() {
    const ROUNDS: usize = 20;
    let network = Network::start("workers", &[]);
    let (mut a, mut b) = (network.guest("a", 1), network.guest("b", 2));
    let (mut one, mut two) = (network.machine("one"), network.machine("two"));
    network.set(4);
    network.set(1);
    let (descriptors, size) = (network.descriptors().len(), size_kib(network.running.0.id()));
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let _traffic = Traffic(&ends);
        let frames = scope.spawn(|| pass_frames(&mut a, &mut b, &ends));
        let between = scope.spawn(|| pass_between(&mut one, &mut two, &ends));
        for _ in 0..ROUNDS {
            for count in [2, 4, 1] {
                network.set(count);
                network.assert_workers(count);
            }
        }
        ends.store(true, Ordering::Relaxed);
        for traffic in [frames, between] {
            let passed = traffic.join().expect("all frames arrived, in order");
            assert!(passed >= WINDOW, "{passed} frames");
        }
    });
    // What was in use of the memory before is returned by now.
    network.set(4);
    network.set(1);
    network.assert_workers(1);
    assert_eq!(network.descriptors().len(), descriptors);
    // The allocator keeps some of it, and a port may have frames of a former pool. One pool that is
    // left in each round would be 1 GiB.
    let more = size_kib(network.running.0.id()).saturating_sub(size);
    assert!(more < 384 << 10, "{more} KiB more than before");
    for port in ["a", "b", "one", "two"] {
        let stats = network.towpath(&["stats", "--json", &network.running.0.id().to_string()]);
        let stats: Value = serde_json::from_str(&text(&stats)).unwrap();
        let dropped = &stats["ports"][port]["dropped"]["queue_full"];
        assert!(matches!(dropped.as_u64(), None | Some(0)), "{port}: {dropped}");
    }
}

/// Goal: numbers that are wrong, too large for the memory, or for which there are not enough
/// descriptors, are refused with what would be right, and change nothing.
#[test]
fn wrong_numbers_of_workers_are_refused() {
    let network = Network::start("workers-refused", &["--memory", "48M"]);
    for wrong in ["0", "9", "-1", "two", ""] {
        let refused = network.towpath(&["workers", "set", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}: {}", errors(&refused));
    }
    for wrong in ["0", "9", "two"] {
        let refused = errors(&network.towpath(&["workers", "set", wrong]));
        assert!(refused.contains("expected 1 to 8, or 'auto'"), "{refused}");
    }
    let refused = network.towpath(&["workers", "set", "3"]);
    assert_fails(&refused, "50331648 bytes of memory are too few; expected at least 16 MiB for");
    network.assert_workers(1);
    let all = getrlimit(Resource::Nofile);
    let open = network.descriptors();
    // One for the connection of the request, and one for the first bell of two.
    let few = (0..).filter(|number| !open.contains(number)).nth(2);
    let limit = |current| {
        let limit = Rlimit { current, maximum: all.maximum };
        prlimit(Some(network.running.pid()), Resource::Nofile, limit).unwrap();
    };
    limit(few);
    let refused = network.towpath(&["workers", "set", "2"]);
    limit(all.current);
    assert_fails(&refused, "cannot change the number of workers: Too many open files");
    network.assert_workers(1);
    network.set(2);
    network.assert_workers(2);
    // There is memory for no more, whatever the number of processors.
    let auto = network.towpath(&["workers", "set", "auto"]);
    assert_done(&auto);
    network.assert_workers(std::thread::available_parallelism().unwrap().get().min(2));
    let folder = Folder::new("workers-none");
    let none = output(towpath(["workers", "set", "2"]).env("XDG_RUNTIME_DIR", &folder.0));
    assert_fails(&none, "no network is running; start one with `towpath up`");
}
