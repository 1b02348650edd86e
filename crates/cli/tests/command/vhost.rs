//! `towpath up` and misbehaving vhost-user front ends.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use towpath_io::vhost_user::driver::TRANSMIT;

use super::front_end::{BASE, BUFFERS, Guest, SENT, memory};
use super::stats::Folder;
use super::support::*;

/// A network with ports `one` and `two`.
pub(super) struct Network {
    pub(super) folder: Folder,
    pub(super) running: Guard,
}

impl Network {
    pub(super) fn start(name: &str) -> Self {
        let listening = [("--vhost-user", "one"), ("--vhost-user", "two")];
        Self::start_in(Folder::new(name), &listening)
    }

    /// Starts one with one worker, or with two: then port `one` belongs to the second.
    fn start_with(workers: &str, name: &str) -> Self {
        let listening = [("--vhost-user", "two"), ("--vhost-user", "one")];
        let folder = Folder::new(&format!("{name}-{workers}"));
        Self::start_as(folder, &["--no-gateway", "--workers", workers], &listening)
    }

    /// Starts a network with these ports, each an option and a name, with sockets in `folder`.
    fn start_in(folder: Folder, ports: &[(&str, &str)]) -> Self {
        Self::start_as(folder, &["--no-gateway"], ports)
    }

    /// Starts a network as [`start_in`](Self::start_in) does, with further options.
    pub(super) fn start_as(folder: Folder, options: &[&str], ports: &[(&str, &str)]) -> Self {
        let mut command = towpath(["up", "-v", "--stats"]);
        command.args(options);
        for (option, port) in ports {
            command.arg(option).arg(format!("{port}={}", folder.0.join(port).display()));
        }
        command.env("XDG_RUNTIME_DIR", &folder.0).stdin(Stdio::null()).stderr(Stdio::piped());
        let network = Self { folder, running: Guard(command.spawn().unwrap()) };
        wait_for("the sockets", || ports.iter().all(|(_, port)| listens(&network.path(port))));
        network
    }

    pub(super) fn path(&self, port: &str) -> PathBuf {
        self.folder.0.join(port)
    }

    /// Ends it; returns its messages, including the report.
    pub(super) fn finish(self) -> String {
        self.running.signal(Signal::INT);
        let output = finish(self.running);
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        errors(&output)
    }
}

/// Returns true if a socket at this path accepts connections. Its file is there before it does.
fn listens(path: &Path) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let path = path.to_str().unwrap();
    // The fourth word has the flags, of which SO_ACCEPTCON is the only one.
    let mut at_path = sockets.lines().filter(|line| line.split(' ').next_back() == Some(path));
    at_path.any(|line| line.split(' ').nth(3) == Some("00010000"))
}

/// Long enough to be lent.
const FRAME: usize = 1000;
/// Numbers of workers.
const WORKERS: [&str; 2] = ["1", "2"];

/// Connects a guest to a port; returns `None` if the port has another guest.
fn connect(network: &Network, port: &str, file: OwnedFd) -> Option<Guest> {
    Guest::over(UnixStream::connect(network.path(port)).unwrap(), file)
}

impl Guest {
    /// Sends a broadcast.
    fn send_number(&mut self, number: u8) {
        self.send(&frame(number));
    }

    /// Returns true if the frame has arrived since the last call, among others.
    fn has_received_number(&mut self, number: u8) -> bool {
        self.has_received(|found| found == frame(number))
    }
}

/// Returns a broadcast frame.
fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, number, 0x88, 0xb5]);
    frame.resize(FRAME, number);
    frame
}

/// Goal: `-v` reports which message was refused at which port and why, and the report counts it.
#[test]
fn refusals_are_reported_and_counted() {
    const SET_FEATURES: u32 = 2;
    let network = Network::start("refusals");
    let mut stream = UnixStream::connect(network.path("two")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let message = [SET_FEATURES, 1, 8, u32::MAX, u32::MAX];
    stream.write_all(&message.map(u32::to_ne_bytes).concat()).unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "the connection ends");
    let said = network.finish();
    for wanted in [
        "towpath: two: a front end connected\n",
        "towpath: two: the session ended: SET_FEATURES is rejected, and the front end requested",
        "were not offered\n",
        "refused         out_of_place 1\n",
    ] {
        assert!(said.contains(wanted), "no {wanted:?} in:\n{said}");
    }
}

/// Goal: a front end that truncates its memory file under traffic loses its connection. The
/// process, the other guest and the next front end at the same port are not affected.
#[test]
fn memory_that_is_cut_ends_its_session_only() {
    let network = Network::start("cut");
    let mut two = connect(&network, "two", memory()).unwrap();
    for round in 1..=3 {
        let file = memory();
        let other = file.try_clone().unwrap();
        let mut one = connect(&network, "one", file).unwrap();
        wait_for("traffic", || {
            one.send_number(round);
            two.has_received_number(round)
        });
        (0..20).for_each(|_| one.send_number(round));
        // The memory of the transmit buffer, then also of the receive buffers, then everything.
        let left = [SENT - BASE, BUFFERS - BASE, 0][usize::from(round) - 1];
        rustix::fs::ftruncate(&other, left).unwrap();
        // This process does not touch the truncated memory.
        wait_for("the port to be free again", || {
            if left > 0 {
                one.send_again();
            }
            one.front_end.kick(TRANSMIT);
            connect(&network, "one", memory()).is_some()
        });
    }
    let mut one = connect(&network, "one", memory());
    wait_for("the next guest at that port", || {
        one = one.take().or_else(|| connect(&network, "one", memory()));
        two.send_number(9);
        one.as_mut().is_some_and(|one| one.has_received_number(9))
    });
    let said = network.finish();
    let ends = said.matches("towpath: one: the session ended: the front end truncated a file");
    assert_eq!(ends.count(), 3, "{said}");
}

/// Goal: a network that busy-polls while packets come sleeps after the last one, and is woken by
/// the next.
#[test]
fn a_network_that_polled_rests() {
    WORKERS.into_iter().for_each(polled);
}

fn polled(workers: &str) {
    let network = Network::start_with(workers, "rest");
    let mut one = connect(&network, "one", memory()).unwrap();
    let mut two = connect(&network, "two", memory()).unwrap();
    let pid = network.running.pid().as_raw_pid();
    for round in 1..=2 {
        // Frames close together, so that polling pays.
        wait_for("frames", || {
            let mut received = 0;
            for _ in 0..2000 {
                one.send_number(round);
                received += u32::from(two.has_received_number(round));
            }
            received > 0
        });
        let time = Duration::from_secs(1);
        wait_for("rest", || {
            let before = ticks(pid);
            std::thread::sleep(time);
            ticks(pid) - before <= 2
        });
    }
    network.finish();
}

/// Goal: a short frame, which lies inline in its packet, reaches another guest and the gateway's
/// stack, which expects packets as devices deliver them. Method: ARP asks the gateway for its
/// address.
#[test]
fn short_frames_reach_guests_and_the_gateway() {
    let ports = [("--vhost-user", "one"), ("--vhost-user", "two")];
    let network = Network::start_as(Folder::new("short"), &[], &ports);
    let mut one = connect(&network, "one", memory()).unwrap();
    let mut two = connect(&network, "two", memory()).unwrap();
    let mac = [2, 0, 0, 0, 0, 9];
    let mut question = [[0xff; 6], mac].concat();
    question.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    question.extend(mac);
    question.extend([10, 0, 2, 99, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
    question.resize(60, 0);
    let (mut asked, mut answered) = (false, false);
    wait_for("the question and its answer", || {
        one.send(&question);
        asked |= two.has_received(|frame| frame == question);
        answered |= one.has_received(|frame| {
            frame.len() >= 42
                && frame[12..14] == [8, 6]
                && frame[20..22] == [0, 2]
                && frame[28..32] == [10, 0, 2, 2]
        });
        asked && answered
    });
    network.finish();
}

/// Returns the clock ticks that a process has used, a hundred per second.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<&str> = behind_name.split_ascii_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Goal: the network connects to a front end that listens, also after the front end was away, and
/// if it starts after the network.
#[test]
fn front_ends_that_listen_are_connected_to() {
    let folder = Folder::new("client");
    let path = folder.0.join("one");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let network =
        Network::start_in(folder, &[("--vhost-user-client", "one"), ("--vhost-user", "two")]);
    let accept = |listener: &UnixListener| {
        let mut socket = None;
        wait_for("a connection", || {
            socket = listener.accept().ok().map(|(socket, _)| socket);
            socket.is_some()
        });
        let socket = socket.unwrap();
        socket.set_nonblocking(false).unwrap();
        Guest::over(socket, memory()).expect("the network is alone with it")
    };
    let mut two = connect(&network, "two", memory()).unwrap();
    let mut meet = |listener: &UnixListener, number| {
        let mut one = accept(listener);
        wait_for("a frame each way", || {
            one.send_number(number);
            two.send_number(number | 0x80);
            two.has_received_number(number)
        });
        wait_for("the other way", || {
            two.send_number(number | 0x80);
            one.has_received_number(number | 0x80)
        });
    };
    (1..=3).for_each(|number| meet(&listener, number));
    drop(listener);
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    meet(&listener, 4);
    let said = network.finish();
    // A connection made while the first listener closes has no peer.
    assert!(said.matches("one: a front end connected").count() >= 4, "{said}");
}
