//! Hosts that have nothing to do. One test, in a process of its own: what it measures is the
//! process.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use towpath::host::{Config, Host, TcpListener, TcpStream};

/// Bytes that the process has in memory.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: usize = text.split(' ').nth(1).expect("a second field").parse().expect("a number");
    pages * 4096
}

/// Goal: what a busy time had in memory goes back to the system, and the hosts work on.
/// Method: many bytes are written and read, and then the process is watched until it is smaller.
#[test]
fn idle_hosts_give_memory_back() {
    let a = Config::with_address([10, 0, 0, 1], 24);
    let b = Config::with_address([10, 0, 0, 2], 24);
    let (a, b) = Host::pair(&a, &b).expect("two hosts");
    let listener = TcpListener::bind(&b, "10.0.0.2:80".parse().unwrap()).expect("bind");
    let mut stream = TcpStream::connect(&a, "10.0.0.2:80".parse().unwrap()).expect("connect");
    let (mut peer, _) = listener.accept().expect("accept");
    for round in 0..2 {
        let bytes = 32 << 20;
        thread::scope(|scope| {
            scope.spawn(|| stream.write_all(&vec![7; bytes]).expect("write"));
            let mut received = vec![0; bytes];
            peer.read_exact(&mut received).expect("read");
            assert!(received.iter().all(|&byte| byte == 7));
        });
        let before = resident();
        let mut tries = 0;
        while resident() + (1 << 20) > before {
            assert!(tries < 1500, "round {round}: {before} bytes before, {} now", resident());
            tries += 1;
            thread::sleep(Duration::from_millis(10));
        }
    }
}
