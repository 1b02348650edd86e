//! The two guests of a siege: one whose load is honest and measured, and one who attacks.

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

/// Pause between two questions of a kind.
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes each way of a short connection.
const SHORT: usize = 16 << 10;
/// Connections that nobody reads.
const UNREAD: usize = 100;
/// Kinds of questions: connections, names, datagrams, echoes.
const KINDS: usize = 4;

/// What the honest guest moves.
struct Load {
    /// Bytes of the long download.
    moved: AtomicU64,
    /// What questions of each kind have taken since the last look, in microseconds.
    times: [Mutex<Vec<u64>>; KINDS],
}

static LOAD: Load =
    Load { moved: AtomicU64::new(0), times: [const { Mutex::new(Vec::new()) }; KINDS] };

/// The honest guest. `window MS` is answered by the bytes that moved within that time, and for each
/// kind of questions by the median and the longest.
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
        // One that is lost counts for all that was waited.
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

/// Asks over and over again on a thread of its own. Whoever fails ends the guest.
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
    // Relaxed: as above.
    let moved = LOAD.moved.load(Ordering::Relaxed) - before;
    let mut line = (moved * 1_000_000 / begun.elapsed().as_micros().max(1) as u64).to_string();
    for times in &LOAD.times {
        let mut times = times.lock().expect("no thread panics with the lock");
        times.sort_unstable();
        // No answer has come within the window.
        let none = millis * 1000;
        let median = times.get(times.len() / 2).copied().unwrap_or(none);
        line += &format!(" {median} {}", times.last().copied().unwrap_or(none));
    }
    line
}

/// The guest who attacks, by a process that is killed in the end: `begin NAME` and `end`, whose
/// answer is 1 if there was an attack until then. Slow downloads are its own. It also serves those
/// outside who do not read.
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
                // Its attacks may have said that its address is elsewhere: the kernel's question
                // for the gateway says where it is.
                ip("neigh flush dev tap0").expect("it is done");
                unread = open_unread(SocketAddr::from((HOST, slow::FLOOD_PORT)));
            }
            Some(name) => {
                // Else the kernel would reset the attack's connections, which it does not know.
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

/// Connections that nobody will read.
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
