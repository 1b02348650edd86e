//! `towpath up` and front ends of vhost-user that do what they should not.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::process::Signal;
use towpath_io::vhost_user::driver::{DriverQueue, FrontEnd, GuestRam, RECEIVE, TRANSMIT};
use towpath_io::vhost_user::virtq::Segment;

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

    /// With these ports, each an option and a name, in sockets that are in `folder`.
    fn start_in(folder: Folder, ports: &[(&str, &str)]) -> Self {
        Self::start_as(folder, &["--no-gateway"], ports)
    }

    fn start_as(folder: Folder, options: &[&str], ports: &[(&str, &str)]) -> Self {
        let mut command = towpath(["up", "-v", "--stats"]);
        command.args(options);
        for (option, port) in ports {
            command.arg(option).arg(format!("{port}={}", folder.0.join(port).display()));
        }
        command.env("XDG_RUNTIME_DIR", &folder.0).stdin(Stdio::null()).stderr(Stdio::piped());
        let network = Self { folder, running: Guard(command.spawn().unwrap()) };
        wait_for("the sockets", || ports.iter().all(|(_, port)| network.path(port).exists()));
        network
    }

    pub(super) fn path(&self, port: &str) -> PathBuf {
        self.folder.0.join(port)
    }

    /// Ends it; what it said, its report with it.
    pub(super) fn finish(self) -> String {
        self.running.signal(Signal::INT);
        let output = finish(self.running);
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        errors(&output)
    }
}

const BASE: u64 = 0x1_0000;
const REGION: u64 = 0x10_0000;
const SIZE: u16 = 64;
const BUFFERS: u64 = BASE + 0x8_0000;
/// Of what is sent.
const SENT: u64 = BASE + 0xc_0000;
const BUFFER: u32 = 2048;
const HEADER: usize = 12;
/// Long enough to be lent.
const FRAME: usize = 1000;

/// A guest with its front end.
struct Guest {
    ram: GuestRam,
    queues: [DriverQueue; 2],
    front_end: FrontEnd,
}

impl Guest {
    /// `None` if the port has another one.
    fn connect(network: &Network, port: &str, file: OwnedFd) -> Option<Self> {
        Self::over(UnixStream::connect(network.path(port)).unwrap(), file)
    }

    fn over(socket: UnixStream, file: OwnedFd) -> Option<Self> {
        let ram = GuestRam::in_file(file, BASE, &[REGION]).unwrap();
        let queue = |at| DriverQueue::new(&ram, BASE + at, SIZE, 0).unwrap();
        let mut queues = [queue(0), queue(0x2_0000)];
        for number in 0..u64::from(SIZE) / 2 {
            let address = BUFFERS + number * u64::from(BUFFER);
            assert!(queues[RECEIVE].add(&[], &[Segment { address, bytes: BUFFER }], number));
        }
        queues[RECEIVE].publish();
        let both = [&queues[RECEIVE], &queues[TRANSMIT]];
        let front_end = FrontEnd::over(socket, &ram, 0, both).ok()?;
        Some(Self { ram, queues, front_end })
    }

    /// Sends a broadcast.
    fn send(&mut self, number: u8) {
        let mut bytes = vec![0; HEADER];
        bytes.extend(frame(number));
        self.ram.memory().write(SENT, &bytes).unwrap();
        self.send_again();
    }

    /// Sends what is in the buffer, without a look at it, if the ring has room.
    fn send_again(&mut self) {
        while self.queues[TRANSMIT].used().is_some() {}
        let segment = Segment { address: SENT, bytes: (HEADER + FRAME) as u32 };
        if self.queues[TRANSMIT].add(&[segment], &[], 0) {
            self.queues[TRANSMIT].publish();
        }
        self.front_end.kick(TRANSMIT);
    }

    /// True if the frame has come since the last call, whatever else did.
    fn has_received(&mut self, number: u8) -> bool {
        self.has_received_such(|found| found == frame(number))
    }

    /// True if such a frame has.
    fn has_received_such(&mut self, is_such: impl Fn(&[u8]) -> bool) -> bool {
        let mut found = false;
        while let Some((buffer, bytes)) = self.queues[RECEIVE].used() {
            let address = BUFFERS + buffer * u64::from(BUFFER);
            let mut content = vec![0; bytes as usize];
            self.ram.memory().read(address, &mut content).unwrap();
            found |= is_such(&content[HEADER..]);
            let segment = Segment { address, bytes: BUFFER };
            assert!(self.queues[RECEIVE].add(&[], &[segment], buffer));
            self.queues[RECEIVE].publish();
            self.front_end.kick(RECEIVE);
        }
        found
    }
}

/// From a station to all.
fn frame(number: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, number, 0x88, 0xb5]);
    frame.resize(FRAME, number);
    frame
}

/// A file that cannot be sealed.
fn memory() -> OwnedFd {
    rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap()
}

/// Goal: `-v` tells at which port which message was refused and why, and the report counts it.
#[test]
fn refusals_are_told_and_counted() {
    const SET_FEATURES: u32 = 2;
    let network = Network::start("refusals");
    let mut stream = UnixStream::connect(network.path("two")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let message = [SET_FEATURES, 1, 8, u32::MAX, u32::MAX];
    stream.write_all(&message.map(u32::to_ne_bytes).concat()).unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "the connection ends");
    let said = network.finish();
    for wanted in [
        "towpath: two: a front end has connected\n",
        "towpath: two: the connection is over: SET_FEATURES is refused, and no acknowledgement",
        "were not offered\n",
        "refused         out_of_place 1\n",
    ] {
        assert!(said.contains(wanted), "no {wanted:?} in:\n{said}");
    }
}

/// Goal: a front end that cuts its memory file under traffic loses its connection. The process, the
/// other guest and the next front end at the same port do not notice.
#[test]
fn memory_that_is_cut_ends_its_session_only() {
    let network = Network::start("cut");
    let mut two = Guest::connect(&network, "two", memory()).unwrap();
    for round in 1..=3 {
        let file = memory();
        let other = file.try_clone().unwrap();
        let mut one = Guest::connect(&network, "one", file).unwrap();
        wait_for("traffic", || {
            one.send(round);
            two.has_received(round)
        });
        (0..20).for_each(|_| one.send(round));
        // What is sent alone, buffers too, everything.
        let left = [SENT - BASE, BUFFERS - BASE, 0][usize::from(round) - 1];
        rustix::fs::ftruncate(&other, left).unwrap();
        // This process does not touch what is gone.
        wait_for("the port to be free again", || {
            if left > 0 {
                one.send_again();
            }
            one.front_end.kick(TRANSMIT);
            Guest::connect(&network, "one", memory()).is_some()
        });
    }
    let mut one = Guest::connect(&network, "one", memory());
    wait_for("the next guest at that port", || {
        one = one.take().or_else(|| Guest::connect(&network, "one", memory()));
        two.send(9);
        one.as_mut().is_some_and(|one| one.has_received(9))
    });
    let said = network.finish();
    let ends = said.matches("towpath: one: the connection is over: the front end has cut a file");
    assert_eq!(ends.count(), 3, "{said}");
}

/// Goal: a network that polls while packets come comes to rest behind the last one, and is woken by
/// the next.
#[test]
fn a_network_that_polled_rests() {
    let network = Network::start("rest");
    let mut one = Guest::connect(&network, "one", memory()).unwrap();
    let mut two = Guest::connect(&network, "two", memory()).unwrap();
    let pid = network.running.pid().as_raw_pid();
    for round in 1..=2 {
        // As close together as can be, so that polling pays.
        wait_for("frames", || {
            let mut received = 0;
            for _ in 0..2000 {
                one.send(round);
                received += u32::from(two.has_received(round));
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

/// Goal: a short frame lies in its packet, and reaches another guest and the gateway's stack all
/// the same, which wants it as devices deliver it. Method: ARP asks the gateway for its address.
#[test]
fn short_frames_reach_guests_and_the_gateway() {
    let ports = [("--vhost-user", "one"), ("--vhost-user", "two")];
    let network = Network::start_as(Folder::new("short"), &[], &ports);
    let mut one = Guest::connect(&network, "one", memory()).unwrap();
    let mut two = Guest::connect(&network, "two", memory()).unwrap();
    let mac = [2, 0, 0, 0, 0, 9];
    let mut question = [[0xff; 6], mac].concat();
    question.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    question.extend(mac);
    question.extend([10, 0, 2, 99, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
    question.resize(60, 0);
    let (mut asked, mut answered) = (false, false);
    wait_for("the question and its answer", || {
        one.ram.memory().write(SENT, &[vec![0; HEADER], question.clone()].concat()).unwrap();
        while one.queues[TRANSMIT].used().is_some() {}
        let segment = Segment { address: SENT, bytes: (HEADER + question.len()) as u32 };
        if one.queues[TRANSMIT].add(&[segment], &[], 0) {
            one.queues[TRANSMIT].publish();
        }
        one.front_end.kick(TRANSMIT);
        asked |= two.has_received_such(|frame| frame == question);
        answered |= one.has_received_such(|frame| {
            frame.len() >= 42
                && frame[12..14] == [8, 6]
                && frame[20..22] == [0, 2]
                && frame[28..32] == [10, 0, 2, 2]
        });
        asked && answered
    });
    network.finish();
}

/// Clock ticks that a process has used, a hundred in a second.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = stat.rsplit_once(')').unwrap().1;
    let fields: Vec<&str> = behind_name.split_ascii_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum()
}

/// Goal: a front end that listens is connected to, again when it was away, and when it comes later
/// than the network.
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
    let mut two = Guest::connect(&network, "two", memory()).unwrap();
    let mut meet = |listener: &UnixListener, number| {
        let mut one = accept(listener);
        wait_for("a frame each way", || {
            one.send(number);
            two.send(number | 0x80);
            two.has_received(number)
        });
        wait_for("the other way", || {
            two.send(number | 0x80);
            one.has_received(number | 0x80)
        });
    };
    (1..=3).for_each(|number| meet(&listener, number));
    drop(listener);
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    meet(&listener, 4);
    let said = network.finish();
    // One that connects while the first listener goes has nobody to meet.
    assert!(said.matches("one: a front end has connected").count() >= 4, "{said}");
}
