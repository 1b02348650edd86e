//! Idle hosts. This is a single test in a process of its own, because it measures the process.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use towpath::host::{Config, Host, TcpListener, TcpStream};

/// Returns the resident anonymous memory of the process in bytes. File pages do not count, because
/// the kernel evicts and reloads them at any time.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("status");
    let kib_of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number")
    };
    (kib_of("RssAnon:") + kib_of("RssShmem:")) << 10
}

/// Waits until the resident memory satisfies `is_reached`. Returns its size, as an error after a
/// timeout.
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

/// Goal: memory used in a busy time goes back to the system, and the hosts continue to work.
/// Method: writes bytes that are not read until the process has grown by them, reads them, and then
/// watches the process until it shrinks. The result does not depend on how threads interleave.
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
            // In any case, because the writer waits for it.
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
/// Least growth of the process; it grows by about 2 MiB.
const BUFFERED: usize = 3 << 19;
const RETURNED: usize = 1 << 20;
