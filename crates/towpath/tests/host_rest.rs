//! Hosts that have nothing to do. One test, in a process of its own: what it measures is the
//! process.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use towpath::host::{Config, Host, TcpListener, TcpStream};

/// Bytes of its own that the process has in memory: those of its files the kernel takes away and
/// brings back as it likes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let kib_of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
    };
    (kib_of("RssAnon:") + kib_of("RssShmem:")) << 10
}

/// Waits until the process is as it should be: how many bytes it then has in memory, or an error
/// with those that it has.
fn wait_until(is_reached: impl Fn(usize) -> bool) -> Result<usize, usize> {
    for _ in 0..1500 {
        let bytes = resident();
        if is_reached(bytes) {
            return Ok(bytes);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(resident())
}

/// Goal: what a busy time had in memory goes back to the system, and the hosts work on.
/// Method: bytes are written that nobody reads until the process has grown by them; they are read,
/// and then the process is watched until it is smaller. How many packets there are at once is so
/// no matter of how threads take turns.
#[test]
fn idle_hosts_give_memory_back() {
    let a = Config::with_address([10, 0, 0, 1], 24);
    let b = Config::with_address([10, 0, 0, 2], 24);
    let (a, b) = Host::pair(&a, &b).expect("two hosts");
    let listener = TcpListener::bind(&b, "10.0.0.2:80").expect("bind");
    let mut stream = TcpStream::connect(&a, "10.0.0.2:80").expect("connect");
    let (mut peer, _) = listener.accept().expect("accept");
    let (sent, mut received) = (vec![7; BYTES], vec![1; BYTES]);
    for round in 0..2 {
        let idle = resident();
        let full = thread::scope(|scope| {
            scope.spawn(|| stream.write_all(&sent).expect("write"));
            let full = wait_until(|now| now >= idle + BUFFERED);
            // In any case, as the writer waits for it.
            peer.read_exact(&mut received).expect("read");
            full
        });
        let full = full.unwrap_or_else(|now| panic!("round {round}: {idle} bytes, then {now}"));
        assert!(received == sent);
        received.fill(1);
        if let Err(now) = wait_until(|now| now + RETURNED <= full) {
            panic!("round {round}: {full} bytes when full, {now} at rest");
        }
    }
}

/// More than buffers hold, so that the writer waits for the reader.
const BYTES: usize = 32 << 20;
/// That the process at least grows by: it grows by about 2 MiB.
const BUFFERED: usize = 3 << 19;
const RETURNED: usize = 1 << 20;
