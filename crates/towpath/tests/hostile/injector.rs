//! What runs inside: sends hostile frames while an honest flow beside them is timed and checked,
//! and tells on standard output how many of them ought to be dropped for which reason.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};

use crate::attack::Attack;
use crate::frame::{self, GATEWAY};
use crate::honest;
use crate::host::{HOST, HOST6};
use crate::random::Random;
use crate::sys::{PacketSocket, Sees};

/// Frames between two questions whether the gateway keeps up. The device's queue holds far more,
/// so that none is lost on the way.
const FRAMES_PER_TURN: u32 = 256;
/// How long the gateway may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends frames on the program's interface.
pub(super) struct Injector {
    pub(super) socket: PacketSocket,
    sent: BTreeMap<&'static str, u64>,
    refused: u64,
    since_answer: u32,
    echo: Echo,
}

impl Injector {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            socket: PacketSocket::open("tap0", Sees::Nothing)?,
            sent: BTreeMap::new(),
            refused: 0,
            since_answer: 0,
            echo: Echo::new()?,
        })
    }

    /// Sends a frame that is to be dropped for `reason`.
    pub(super) fn drops(&mut self, reason: &'static str, frame: &[u8]) {
        if self.send(frame) {
            *self.sent.entry(reason).or_default() += 1;
        }
    }

    /// Something else that is to be counted: `name` at least `count` times.
    pub(super) fn expects(&mut self, name: &'static str, count: u64) {
        *self.sent.entry(name).or_default() += count;
    }

    /// Sends a frame of which nothing is known but that it must do no harm; true if the kernel let
    /// it through.
    pub(super) fn send(&mut self, frame: &[u8]) -> bool {
        let sent = self.socket.send(frame);
        self.refused += u64::from(!sent);
        self.since_answer += 1;
        if self.since_answer >= FRAMES_PER_TURN {
            self.wait_for_gateway();
        }
        sent
    }

    /// Waits until the gateway has taken everything sent so far.
    pub(super) fn wait_for_gateway(&mut self) {
        self.since_answer = 0;
        self.echo.ask();
    }
}

/// Asks the gateway for echoes: whatever was sent before the question has been taken before the
/// answer.
struct Echo {
    socket: OwnedFd,
    sequence: u16,
}

impl Echo {
    fn new() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::INET, SocketType::RAW);
        Ok(Self { socket: rustix::net::socket(family, kind, Some(ipproto::ICMP))?, sequence: 0 })
    }

    fn ask(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        let ident = std::process::id() as u16;
        let mut request = vec![8, 0, 0, 0, 0, 0, 0, 0];
        frame::put(&mut request, 4, ident);
        frame::put(&mut request, 6, self.sequence);
        let sum = frame::checksum(&[&request]);
        frame::put(&mut request, 2, sum);
        let to = SocketAddrV4::new(GATEWAY, 0);
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let _ = rustix::net::sendto(&self.socket, &request, SendFlags::empty(), &to);
            let asked = Instant::now();
            while asked.elapsed() < Duration::from_millis(500) {
                if self.answered(&request[4..8]) {
                    return;
                }
            }
        }
        panic!("the gateway does not answer any more");
    }

    fn answered(&self, name: &[u8]) -> bool {
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let mut fds = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        let mut buffer = [0; 128];
        match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((count, _)) => count >= 28 && buffer[20] == 0 && buffer[24..28] == *name,
            Err(_) => false,
        }
    }
}

/// The program of a test: one round of the attack at least, and as many as the honest flow needs.
pub(super) fn main(attack: &Attack, seed: u64) {
    println!("seed {seed:#x}");
    let mut random = Random::new(seed);
    let mut injector = Injector::new().expect("a packet socket");
    let alone = honest::transfer();
    let honest = thread::spawn(honest::transfer);
    let lost_before = lost();
    let mut rounds = 0;
    loop {
        (attack.round)(&mut injector, &mut random);
        rounds += 1;
        if honest.is_finished() || !attack.repeat {
            break;
        }
    }
    injector.wait_for_gateway();
    let beside = honest.join().expect("the honest flow beside the attack is whole");
    (attack.finish)(&mut injector);
    // Whoever comes now is served, too.
    for host in [IpAddr::from(HOST), HOST6.into()] {
        honest::exchange(|| TcpStream::connect((host, honest::PORT)), 1 << 16);
    }
    println!("rounds {rounds}");
    println!("refused {}", injector.refused);
    println!("lost {}", lost() - lost_before);
    println!("ratio {:.2}", beside.as_secs_f64() / alone.as_secs_f64());
    println!("alone {:?} beside {:?}", alone, beside);
    for (reason, count) in injector.sent {
        println!("drops {reason} {count}");
    }
}

/// Frames that the program's interface lost because its queue was full.
fn lost() -> u64 {
    let table = std::fs::read_to_string("/proc/self/net/dev").expect("/proc/self/net/dev");
    let line = table.lines().find(|line| line.trim_start().starts_with("tap0:")).expect("tap0");
    let column = line.split_ascii_whitespace().nth(12).expect("a column of drops");
    column.parse().expect("a number")
}
