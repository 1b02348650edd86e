//! Programs and guests that move bytes while a process is killed. They run in processes of their
//! own, and report their progress.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use super::{PATIENCE, ROLE, TICK};
use crate::frame::{self, GATEWAY, IP};
use crate::front_end::{self, Guest};
use crate::honest;
use crate::host::HOST;
use crate::roles::{self, Process};

/// Bytes each way of a connection.
const BYTES: usize = 1 << 20;
/// Longest wait for an answer that may have been lost.
const ANSWER: Duration = Duration::from_millis(200);

/// Role: the program of `towpath run`.
pub(super) const PROGRAM: &str = "program";
/// Role: a guest at a TAP device.
pub(super) const TAP: &str = "tap";
/// Role: a guest at a stream socket. The next one is a vhost-user front end.
pub(super) const STREAM: &str = "stream";
pub(super) const VHOST_USER: &str = "vhost-user";

/// Returns this executable in a role.
pub(super) fn command(role: &str, path: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([ROLE, role, path]);
    Ok(command)
}

/// Returns how often it has moved something so far.
pub(super) fn moved(process: &mut Process) -> Result<u64, Failed> {
    process.ask("moved", "moved")
}

/// Waits until it has moved something from now on.
pub(super) fn wait_until_moves(process: &mut Process) -> Result<(), Failed> {
    // A move in progress may have begun before.
    let (wanted, begun) = (moved(process)? + 2, Instant::now());
    while moved(process)? < wanted {
        if begun.elapsed() > PATIENCE {
            return Err("no byte moves any more".into());
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// The main function of a role. It ends when its input closes.
pub(crate) fn main(role: &str, path: &str) {
    // A kill breaks the connections of other processes, which then panic silently.
    std::panic::set_hook(Box::new(|_| {}));
    if role == TAP {
        roles::become_guest();
    }
    let moved = Arc::new(AtomicU64::new(0));
    let (count, how, path) = (moved.clone(), role.to_owned(), path.to_owned());
    thread::spawn(move || match how.as_str() {
        STREAM => over_stream(&path, &count),
        VHOST_USER => over_rings(&path, &count),
        _ => over_tcp(&count),
    });
    for line in io::stdin().lines().map_while(Result::ok) {
        assert_eq!(line, "moved");
        // Relaxed: a counter. The write fails if the reader is gone.
        let _ = writeln!(io::stdout(), "moved {}", moved.load(Ordering::Relaxed));
    }
}

/// Exchanges bytes with the host, over one connection after another.
fn over_tcp(moved: &AtomicU64) {
    loop {
        honest::exchange(|| TcpStream::connect((HOST, honest::PORT)), BYTES);
        // Relaxed: a counter.
        moved.fetch_add(1, Ordering::Relaxed);
    }
}

/// Repeatedly asks the gateway for its link-layer address, over a stream socket.
fn over_stream(path: &str, moved: &AtomicU64) {
    let mut stream = connect(path);
    stream.set_read_timeout(Some(ANSWER)).expect("a setting");
    let question = question(0x41);
    let len = (question.len() as u32).to_be_bytes();
    let mut answer = [0; 2048];
    loop {
        stream.write_all(&[&len[..], &question].concat()).expect("it is sent");
        match stream.read(&mut answer) {
            Ok(0) => return,
            // Relaxed: a counter.
            Ok(_) => moved.fetch_add(1, Ordering::Relaxed),
            Err(_) => continue,
        };
    }
}

/// Repeatedly asks the gateway for its link-layer address, through a guest's memory.
fn over_rings(path: &str, moved: &AtomicU64) {
    let begun = Instant::now();
    let mut guest = loop {
        // Until the previous guest is gone, the port has no room.
        if let Some(guest) = Guest::over(connect(path), front_end::memory()) {
            break guest;
        }
        assert!(begun.elapsed() < PATIENCE, "the port has no room");
        thread::sleep(TICK);
    };
    let question = question(0x42);
    loop {
        guest.send(&question);
        let asked = Instant::now();
        while asked.elapsed() < ANSWER {
            if guest.has_received(|frame| frame.get(IP + 7) == Some(&2)) {
                // Relaxed: a counter.
                moved.fetch_add(1, Ordering::Relaxed);
                break;
            }
            thread::yield_now();
        }
    }
}

/// Returns an ARP request for the gateway, from the station and address of this number.
fn question(number: u8) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 0, number];
    let mut question = frame::arp(1, mac, Ipv4Addr::new(10, 0, 2, number), GATEWAY);
    question[..6].fill(0xff);
    question[6..12].copy_from_slice(&mac);
    question.resize(60, 0);
    question
}

/// Connects as soon as a process listens.
fn connect(path: &str) -> UnixStream {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return stream,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{path}: {error}"),
        }
        thread::sleep(TICK);
    }
}
