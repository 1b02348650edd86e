//! `towpath up --workers` under load, while ports of all workers come, change and go: nothing of
//! them is left, in the process or among the files. Counted, not timed.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::control::{Network, assert_done, post};
use super::front_end::{self, memory};
use super::stats::Folder;
use super::support::*;

/// Rounds in which ports come and go; those before what is left is counted.
const ROUNDS: usize = 30;
const WARM_UP: usize = 5;
/// Frames that have to arrive before the next round.
const FRAMES: u64 = 50;
const FRAME: usize = 1000;
/// Growth of the address space that is no leak: the allocator keeps some. The memory of one virtual
/// machine that was left in each round would be 25 MiB.
const MORE_KIB: u64 = 8 << 10;
/// How long a guest waits that can neither send nor receive.
const PAUSE: Duration = Duration::from_micros(200);

/// Starts a network with so many workers, and ports `a` and `b`.
fn start(workers: usize) -> Network {
    let folder = Folder::new("workers");
    let mut command = towpath(["up", "--no-gateway", "--quiet"]);
    command.arg("--workers").arg(workers.to_string());
    for name in ["a", "b"] {
        command.arg("--stream").arg(format!("{name}={}", folder.0.join(name).display()));
    }
    // With an arena for each thread, the size of the process would depend on their timing.
    command.env("XDG_RUNTIME_DIR", &folder.0).env("MALLOC_ARENA_MAX", "1").stdin(Stdio::null());
    Network::serving(folder, Guard(command.spawn().unwrap()))
}

/// Returns a frame between these stations.
fn frame(to: [u8; 2], from: [u8; 2]) -> Vec<u8> {
    let mut frame = [[2, 0, 0, 0, to[0], to[1]], [2, 0, 0, 0, from[0], from[1]]].concat();
    frame.extend([0x88, 0xb5]);
    frame.resize(FRAME, from[1]);
    frame
}

/// Returns a frame as it passes a stream socket.
fn in_stream(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

/// Sends frames from one station to another until `stop`, and counts the bytes that arrive.
fn talk(socket: &Path, [from, to]: [u8; 2], came: &AtomicU64, stop: &AtomicBool) {
    let mut socket = UnixStream::connect(socket).unwrap();
    socket.set_nonblocking(true).unwrap();
    let bytes = in_stream(&frame([0, to], [0, from]));
    let (mut at, mut buffer) = (0, [0; 64 << 10]);
    let moved = |result: std::io::Result<usize>| match result {
        Ok(count) => count,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            0
        }
    };
    while !stop.load(Ordering::Relaxed) {
        let sent = moved(socket.write(&bytes[at..]));
        at = (at + sent) % bytes.len();
        let received = moved(socket.read(&mut buffer));
        came.fetch_add(received as u64, Ordering::Relaxed);
        if sent + received == 0 {
            thread::sleep(PAUSE);
        }
    }
}

/// A guest of a port that comes and goes.
enum Passing {
    Stream(UnixStream),
    Machine(Box<front_end::Guest>),
}

/// Adds ports, lets a guest of each send, changes all and removes them with their guests.
fn come_and_go(network: &Network, count: usize, round: usize) {
    let names: Vec<String> = (0..count).map(|port| format!("p{port}")).collect();
    let path = |name: &str| network.folder.0.join(name);
    let is_stream = |port: usize| (port + round).is_multiple_of(2);
    let apply = |operations: Vec<Value>| {
        let body = json!({ "operations": operations }).to_string();
        let (status, answer) = post(&network.socket(), &body);
        assert_eq!(status, 200, "{answer}");
    };
    let add = |(port, name): (usize, &String)| {
        let kind = if is_stream(port) { "stream" } else { "vhost-user" };
        json!({ "add": name, kind: path(name) })
    };
    apply(names.iter().enumerate().map(add).collect());
    let join = |(port, name): (usize, &String)| {
        let mut socket = UnixStream::connect(path(name)).unwrap();
        // To the guest of `a`, who has other things to do.
        let frame = frame([0, 1], [1, port as u8]);
        if is_stream(port) {
            socket.write_all(&in_stream(&frame)).unwrap();
            return Passing::Stream(socket);
        }
        let mut machine = front_end::Guest::over(socket, memory()).expect("a port of its own");
        machine.send(&frame);
        Passing::Machine(Box::new(machine))
    };
    let guests: Vec<Passing> = names.iter().enumerate().map(join).collect();
    let len = 1 + round;
    apply(names.iter().map(|name| json!({ "set": name, "queue-len": len })).collect());
    apply(names.iter().map(|name| json!({ "del": name })).collect());
    for guest in guests {
        match guest {
            Passing::Stream(mut socket) => {
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                match socket.read(&mut [0; 8]) {
                    Ok(0) => {}
                    // What was not received before the end resets the connection.
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                    other => panic!("the network has not hung up: {other:?}"),
                }
            }
            Passing::Machine(machine) => drop(machine),
        }
    }
}

/// Goal: ports of all workers come, change and go under load, and descriptors, threads, memory,
/// packets and sockets are as before; the network ends without a trace. Method: frames arrive
/// between any two rounds.
#[test]
fn ports_leave_nothing_behind() {
    for (workers, count) in [(1, 2), (2, 2), (4, 4)] {
        leave_nothing_behind(workers, count);
    }
}

fn leave_nothing_behind(workers: usize, count: usize) {
    let network = start(workers);
    let pid = network.running.0.id();
    let entries = |of: &str| fs::read_dir(format!("/proc/{pid}/{of}")).unwrap().count();
    let (came, stop) = ([0, 0].map(AtomicU64::new), AtomicBool::new(false));
    thread::scope(|scope| {
        for (index, name) in ["a", "b"].into_iter().enumerate() {
            let (path, came, stop) = (network.folder.0.join(name), &came[index], &stop);
            let stations = if index == 0 { [1, 2] } else { [2, 1] };
            scope.spawn(move || talk(&path, stations, came, stop));
        }
        let _stop = Stop(&stop);
        let mut before = None;
        for round in 0..ROUNDS {
            let seen = came.each_ref().map(|came| came.load(Ordering::Relaxed));
            wait_for("frames each way", || {
                let more = |(came, seen): (&AtomicU64, u64)| {
                    came.load(Ordering::Relaxed) >= seen + FRAMES * FRAME as u64
                };
                came.iter().zip(seen).all(more)
            });
            if round == WARM_UP {
                before = Some((["fd", "task"].map(entries), size_kib(pid)));
            }
            come_and_go(&network, count, round);
        }
        let (before, size) = before.expect("more rounds than to warm up");
        // Another thread of towpath may still close the last one.
        wait_for("descriptors and threads to end", || {
            ["fd", "task"].map(entries).iter().zip(before).all(|(now, before)| *now <= before)
        });
        let more = size_kib(pid).saturating_sub(size);
        assert!(more < MORE_KIB, "{workers} workers: {more} KiB more than before");
    });
    wait_for("packets", || {
        let figures = network.towpath(&["stats", "--json", &pid.to_string()]);
        assert_done(&figures);
        let figures: Value = serde_json::from_str(&text(&figures)).unwrap();
        figures["taken"]["packets"] == 0 && figures["lent"]["bytes"] == 0
    });
    assert_eq!(network.ports().len(), 2);
    network.running.signal(Signal::TERM);
    let Network { folder, running } = network;
    assert_eq!(finish(running).status.code(), Some(0));
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(left, [folder.sockets()]);
    assert_eq!(fs::read_dir(folder.sockets()).unwrap().count(), 0);
}

/// Stops the guests, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
