//! The program inside: it sends hostile frames while an honest flow beside them is timed and
//! checked, and prints how many of them should be dropped for which reason.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Frames between two checks that the gateway keeps up. The device's queue holds far more, so none
/// is lost on the way.
const FRAMES_PER_TURN: u32 = 256;
/// An unknown EtherType: one for local experiments (IEEE 802).
pub(super) const NOISE: u16 = 0x88b5;
/// Honest transfers beside noise whose mean is compared.
const NOISE_TRANSFERS: u32 = 3;
/// How long the gateway may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

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

    /// Sends a frame that must be dropped for `reason`.
    pub(super) fn drops(&mut self, reason: &'static str, frame: &[u8]) {
        if self.send(frame) {
            *self.sent.entry(reason).or_default() += 1;
        }
    }

    /// Records that `name` must be counted at least `count` times.
    pub(super) fn expects(&mut self, name: &'static str, count: u64) {
        *self.sent.entry(name).or_default() += count;
    }

    /// Sends a frame that may have any effect except harm; returns true if the kernel accepted it.
    pub(super) fn send(&mut self, frame: &[u8]) -> bool {
        let sent = self.socket.send(frame);
        self.refused += u64::from(!sent);
        self.since_answer += 1;
        if self.since_answer >= FRAMES_PER_TURN {
            self.wait_for_gateway();
        }
        sent
    }

    /// Waits until the gateway has handled everything sent so far.
    pub(super) fn wait_for_gateway(&mut self) {
        self.since_answer = 0;
        self.echo.ask();
    }
}

/// Sends echo requests to the gateway: frames sent before the request have been handled before the
/// reply.
pub(super) struct Echo {
    socket: OwnedFd,
    sequence: u16,
}

impl Echo {
    pub(super) fn new() -> io::Result<Self> {
        let (family, kind) = (AddressFamily::INET, SocketType::RAW);
        Ok(Self { socket: rustix::net::socket(family, kind, Some(ipproto::ICMP))?, sequence: 0 })
    }

    pub(super) fn ask(&mut self) {
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

/// The main function of the program: at least one round of the attack, and as many as the honest
/// flow needs.
pub(super) fn main(attack: &Attack, seed: u64) {
    println!("seed {seed:#x}");
    let mut random = Random::new(seed);
    let mut injector = Injector::new().expect("a packet socket");
    let alone = honest::transfer();
    let calm = beside_noise(&mut injector);
    let lost_before = lost();
    let (beside, rounds) = beside_attack(attack, &mut injector, &mut random);
    (attack.finish)(&mut injector);
    // Connections that are made now must be served, too.
    for host in [IpAddr::from(HOST), HOST6.into()] {
        honest::exchange(|| TcpStream::connect((host, honest::PORT)), 1 << 16);
    }
    println!("rounds {rounds}");
    println!("refused {}", injector.refused);
    println!("lost {}", lost() - lost_before);
    println!("ratio {:.2}", beside.as_secs_f64() / calm.as_secs_f64());
    println!("alone {alone:?} beside noise {calm:?} beside the attack {beside:?}");
    for (reason, count) in injector.sent {
        println!("drops {reason} {count}");
    }
}

/// Returns how long the honest work takes beside frames that the gateway drops at once. Their
/// sender takes as much of the machine as an attacker; only the gateway's work differs.
fn beside_noise(injector: &mut Injector) -> Duration {
    let frame = frame::ethernet(NOISE, &[0; 46]);
    let honest = thread::spawn(|| (0..NOISE_TRANSFERS).map(|_| honest::transfer()).sum());
    while !honest.is_finished() {
        injector.drops("ethertype_unknown", &frame);
    }
    injector.wait_for_gateway();
    let sum: Duration = honest.join().expect("the honest flow beside noise is whole");
    sum / NOISE_TRANSFERS
}

/// Returns how long the honest work takes beside the attack, and the rounds of the attack.
fn beside_attack(attack: &Attack, injector: &mut Injector, random: &mut Random) -> (Duration, u64) {
    let over = Arc::new(AtomicBool::new(attack.repeat));
    let seen = over.clone();
    let honest = thread::spawn(move || honest::transfers(&seen));
    let mut rounds = 0;
    loop {
        (attack.round)(injector, random);
        rounds += 1;
        if honest.is_finished() || !attack.repeat {
            break;
        }
    }
    injector.wait_for_gateway();
    // Relaxed: nothing else depends on the flag.
    over.store(true, Ordering::Relaxed);
    let beside = honest.join().expect("the honest flow beside the attack is whole");
    (beside, rounds)
}

/// Returns the frames that the program's interface dropped because its queue was full.
fn lost() -> u64 {
    let table = std::fs::read_to_string("/proc/self/net/dev").expect("/proc/self/net/dev");
    let line = table.lines().find(|line| line.trim_start().starts_with("tap0:")).expect("tap0");
    let column = line.split_ascii_whitespace().nth(12).expect("a column of drops");
    column.parse().expect("a number")
}
