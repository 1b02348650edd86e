//! iperf3 from one virtual machine to another and to the host, in both directions.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::machine::Machine;
use crate::network::Up;

/// Bytes of each measurement. Bytes in flight at its end do not count as received: two full socket
/// buffers, which are less than half of it.
const BYTES: u64 = 32 << 20;

pub(crate) fn both_ways() {
    let up = Up::start("iperf", &[("--vhost-user", "one"), ("--vhost-user", "two")]);
    let mut one = Machine::boot_iperf3(&up.socket("one"), ",mac=02:00:00:00:00:01");
    let mut two = Machine::boot_iperf3(&up.socket("two"), ",packed=on,mac=02:00:00:00:00:02");
    one.configure("10.0.2.21/24");
    two.configure("10.0.2.22/24");
    two.start("iperf3 -s > /dev/null &");
    two.run("while ! netstat -ltn | grep -q :5201; do sleep 0.1; done");
    let server = Server::start();
    for peer in ["10.0.2.22", &format!("10.0.2.2 -p {}", server.port)] {
        for direction in ["", "-R"] {
            measure(&mut one, &format!("-c {peer} {direction}"));
        }
    }
    one.power_off();
    two.power_off();
    up.finish();
}

/// Makes iperf3 move [`BYTES`].
fn measure(machine: &mut Machine, options: &str) {
    let reported = machine.run(&format!("iperf3 {options} -n {BYTES} -J")).concat();
    let reported: Value = serde_json::from_str(&reported).expect("an object");
    let bytes = |side: &str| reported["end"][side]["bytes"].as_u64();
    let (sent, received) = (bytes("sum_sent"), bytes("sum_received"));
    assert!(sent >= Some(BYTES) && received >= Some(BYTES / 2), "{options}: {reported}");
}

/// iperf3 on the host's loopback, ended when dropped.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    /// Starts the server; returns when it listens.
    fn start() -> Self {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let mut command = Command::new("iperf3");
        command.args(["-s", "-B", "127.0.0.1", "--forceflush", "-p", &port.to_string()]);
        let process = command.stdout(Stdio::piped()).spawn().expect("missing_iperf3() looked");
        let mut server = Self { process, port };
        let said = BufReader::new(server.process.stdout.take().expect("piped"));
        let mut lines = said.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("listening")), "iperf3 does not listen");
        // It writes more, which must be read.
        std::thread::spawn(move || lines.count());
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
