//! The two guests of a siege: one with an honest, measured load, and an attacker.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{ATTACK, DOWNLOADS, ECHO_PORT, HOARD, NOISE, PATIENCE, ROLE};
use crate::attack;
use crate::frame::{self, PROGRAM, PROGRAM_MAC, PROGRAM6};
use crate::honest;
use crate::host::HOST;
use crate::injector::{self, Echo, Injector};
use crate::random::Random;
use crate::roles::{self, ip};
use crate::slow;

/// Pause between two requests of a kind.
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes each way of a short connection.
const SHORT: usize = 16 << 10;
/// Connections that are not read.
const UNREAD: usize = 100;
/// Kinds of requests: connections, names, datagrams, echoes.
const KINDS: usize = 4;

/// The load of the honest guest.
struct Load {
    /// Bytes of the long download.
    moved: AtomicU64,
    /// Times of requests of each kind since the last window, in microseconds.
    times: [Mutex<Vec<u64>>; KINDS],
}

static LOAD: Load =
    Load { moved: AtomicU64::new(0), times: [const { Mutex::new(Vec::new()) }; KINDS] };

/// Runs the honest guest. It answers `window MS` with the bytes that moved within that time, and
/// with the median and the greatest time for each kind of request.
pub(super) fn honest() {
    roles::become_guest();
    let to = SocketAddr::from((HOST, honest::PORT));
    let connect = move || TcpStream::connect_timeout(&to, PATIENCE);
    thread::spawn(move || honest::download(connect, &LOAD.moved));
    ask_again(0, move || {
        let begun = Instant::now();
        let stream = connect().expect("a connection");
        let took = begun.elapsed();
        honest::exchange(|| stream.try_clone(), SHORT);
        took
    });
    let names = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    ask_again(1, move || slow::resolve(&names));
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a setting");
    ask_again(2, move || {
        let begun = Instant::now();
        socket.send_to(&[0x5a; 1000], (HOST, ECHO_PORT)).expect("it is sent");
        // A lost datagram counts with the whole time waited.
        let _ = socket.recv(&mut [0; 2048]);
        begun.elapsed()
    });
    let mut echo = Echo::new().expect("a raw socket");
    ask_again(3, move || {
        let begun = Instant::now();
        echo.ask();
        begun.elapsed()
    });
    for line in io::stdin().lines().map_while(Result::ok) {
        let millis = line.strip_prefix("window ").and_then(|millis| millis.parse().ok());
        println!("window {}", window(millis.expect("a number")));
    }
}

/// Repeats a request on a thread of its own. A failure ends the guest.
fn ask_again(kind: usize, mut ask: impl FnMut() -> Duration + Send + 'static) {
    thread::spawn(move || {
        loop {
            let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut ask));
            let Ok(took) = asked else { std::process::exit(1) };
            let mut times = LOAD.times[kind].lock().expect("no thread panics with the lock");
            times.push(took.as_micros() as u64);
            drop(times);
            thread::sleep(PAUSE);
        }
    });
}

fn window(millis: u64) -> String {
    // Relaxed: a counter.
    let before = LOAD.moved.load(Ordering::Relaxed);
    for times in &LOAD.times {
        times.lock().expect("no thread panics with the lock").clear();
    }
    let begun = Instant::now();
    thread::sleep(Duration::from_millis(millis));
    // Relaxed: a counter.
    let moved = LOAD.moved.load(Ordering::Relaxed) - before;
    let mut line = (moved * 1_000_000 / begun.elapsed().as_micros().max(1) as u64).to_string();
    for times in &LOAD.times {
        let mut times = times.lock().expect("no thread panics with the lock");
        times.sort_unstable();
        // No answer has arrived within the window.
        let none = millis * 1000;
        let median = times.get(times.len() / 2).copied().unwrap_or(none);
        line += &format!(" {median} {}", times.last().copied().unwrap_or(none));
    }
    line
}

/// Runs the attacking guest, with a process that is killed at the end. It answers `begin NAME`, and
/// `end` with 1 if the attack lasted until then. It does slow downloads itself. It also serves the
/// outside clients that do not read.
pub(super) fn hostile() {
    roles::become_guest();
    for command in [
        format!(
            "link set tap0 address {}",
            PROGRAM_MAC.map(|byte| format!("{byte:02x}")).join(":")
        ),
        format!("addr add {PROGRAM6}/64 dev tap0 nodad"),
    ] {
        ip(&command).expect("it is done");
    }
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, slow::FLOOD_PORT));
    let listener = listener.expect("a free port");
    thread::spawn(move || slow::send_to_all(listener));
    println!("ready");
    let (mut attacker, mut unread): (Option<Child>, Vec<TcpStream>) = (None, Vec::new());
    for line in io::stdin().lines().map_while(Result::ok) {
        match line.strip_prefix("begin ") {
            Some(DOWNLOADS) => {
                // Its attacks may have claimed its address for another station: an ARP request of
                // the kernel to the gateway corrects that.
                ip("neigh flush dev tap0").expect("it is done");
                unread = open_unread(SocketAddr::from((HOST, slow::FLOOD_PORT)));
            }
            Some(name) => {
                // Otherwise the kernel would reset the attack's connections, which it does not
                // know.
                ip(&format!("route add blackhole {HOST}")).expect("it is done");
                attacker = Some(attack_by(name).expect("a process"));
            }
            None => {
                let goes_on = match &mut attacker {
                    Some(child) => child.try_wait().is_ok_and(|ended| ended.is_none()),
                    None => !unread.is_empty(),
                };
                if let Some(mut child) = attacker.take() {
                    let _ = child.kill();
                    let _ = child.wait();
                    ip(&format!("route del blackhole {HOST}")).expect("it is done");
                }
                unread.clear();
                println!("ended {}", u64::from(goes_on));
                continue;
            }
        }
        println!("begun");
    }
    if let Some(mut child) = attacker {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn attack_by(name: &str) -> io::Result<Child> {
    Command::new(std::env::current_exe()?).args([ROLE, ATTACK, name]).spawn()
}

/// Opens connections that will not be read.
pub(super) fn open_unread(to: SocketAddr) -> Vec<TcpStream> {
    let connect = |_| TcpStream::connect_timeout(&to, PATIENCE).expect("a connection");
    (0..UNREAD).map(connect).collect()
}

/// Attacks until it is killed.
pub(super) fn attack(name: &str) {
    let (mut injector, mut random) = (Injector::new().expect("a packet socket"), Random::new(1));
    attack::connections_come_from(PROGRAM);
    let noise = frame::ethernet(injector::NOISE, &[0; 46]);
    let attack = attack::ALL.iter().find(|attack| attack.name == name);
    assert!(attack.is_some() || name == NOISE, "{name} is no attack");
    loop {
        match attack {
            Some(attack) => (attack.round)(&mut injector, &mut random),
            None => injector.drops("ethertype_unknown", &noise),
        }
        while name.starts_with(HOARD) {
            thread::park();
        }
    }
}
