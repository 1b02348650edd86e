//! A machine that migrates to another process, and so to another port, while it sends and receives.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::crash::wait_for_more;
use crate::machine::Machine;
use crate::network::Up;

/// Data that the guest sends and receives during the migration arrives unchanged. Of received and
/// unread data only the dirty log knows: the guest's processor has not written it. With two
/// workers, both ports of the machine belong to the second, and that of the other machine to the
/// first.
pub(crate) fn of_a_guest() {
    for (card, workers) in
        [(",mac=02:00:00:00:00:01", "1"), (",mac=02:00:00:00:00:01,packed=on", "2")]
    {
        let ports = ["one", "two", "three"].map(|name| ("--vhost-user", name));
        let up = Up::start_with("migrated", &["--workers", workers], &ports);
        let places = ["one", "two", "three"].map(|name| up.worker_of(name));
        assert_eq!(places, if workers == "2" { [1, 0, 1] } else { [0; 3] });
        let sockets = ["from", "to", "road"].map(|name| up.socket(name));
        let [from, to, road] = &sockets;
        let mut two = Machine::boot(&up.socket("two"), 1, ",mac=02:00:00:00:00:02");
        let mut one = Machine::boot_watched(&up.socket("one"), card, from);
        one.configure("10.0.2.21/24");
        two.configure("10.0.2.22/24");
        send_without_end(&mut one, &mut two);

        let mut three = Machine::await_arrival(&up.socket("three"), card, to);
        let mut monitor = Monitor::connect(from);
        begin(&mut monitor, &mut Monitor::connect(to), road);
        fill(&mut two, &mut one);
        complete(&mut monitor);
        one.kill();

        three.run("touch /tmp/read /tmp/stop");
        let unread = wait_for_sum("/tmp/unread", &mut three, &mut two);
        let all = wait_for_sum("/tmp/sum", &mut three, &mut two);
        assert_eq!(unread, two.run("md5sum < /tmp/file"));
        assert_eq!(
            all,
            three.run("while read -r line; do cat /tmp/data; done < /tmp/times | md5sum")
        );
        up.wait_for_rest();
        three.power_off();
        two.power_off();
        for socket in sockets {
            // A machine that ends by itself removes its own.
            let _ = std::fs::remove_file(socket);
        }
        up.finish();
    }
}

/// Makes `one` send to `two` until `/tmp/stop` exists; returns when much has arrived.
fn send_without_end(one: &mut Machine, two: &mut Machine) {
    one.run("dd if=/dev/urandom of=/tmp/data bs=64k count=16 2> /dev/null");
    two.start("nc -ll -p 9 -e md5sum &");
    two.run("while ! netstat -ltn | grep -q :9; do sleep 0.1; done");
    let all = "while [ ! -e /tmp/stop ]; do cat /tmp/data; echo >> /tmp/times; done";
    one.start(&format!("({all}) | nc 10.0.2.22 9 > /tmp/sum &"));
    wait_for_more(two);
}

/// Makes `two` send a file to `one`, which does not read it before `/tmp/read` exists; returns when
/// `one` has received much of it.
fn fill(two: &mut Machine, one: &mut Machine) {
    // So much that it reaches pages that have not been written for long.
    one.run("echo 16384 16384 16384 > /proc/sys/net/ipv4/tcp_mem");
    one.run("echo 4096 33554432 33554432 > /proc/sys/net/ipv4/tcp_rmem");
    let late = "while [ ! -e /tmp/read ]; do sleep 0.1; done; md5sum > /tmp/unread";
    one.run(&format!("(echo '#!/bin/sh'; echo '{late}') > /tmp/late; chmod +x /tmp/late"));
    one.start("nc -l -p 7 -e /tmp/late &");
    one.run("while ! netstat -ltn | grep -q :7; do sleep 0.1; done");
    two.run("dd if=/dev/urandom of=/tmp/file bs=64k count=128 2> /dev/null");
    two.start("nc 10.0.2.21 7 < /tmp/file > /dev/null &");
    let unread = "netstat -tn | grep 10.0.2.21:7 | (read -r tcp unread rest; echo $unread)";
    one.run(&format!("until [ \"$({unread})\" -gt {UNREAD} ]; do sleep 0.1; done 2> /dev/null"));
}

/// Returns what a file of `machine` contains once it is not empty. Fails, with both machines' view
/// of their connections, if that takes too long.
fn wait_for_sum(file: &str, machine: &mut Machine, peer: &mut Machine) -> Vec<String> {
    let wait = format!("for _ in $(seq {LOOKS_MAX}); do [ -s {file} ] && break; sleep 0.1; done");
    let sum = machine.run(&format!("{wait}; cat {file}"));
    if sum.is_empty() {
        let states = [machine, peer].map(|machine| machine.run(STATE));
        panic!("{file} stays empty: {states:#?}");
    }
    sum
}

/// Begins to migrate the machine at `from` to the one at `to`, through the socket `road`; returns
/// when all of its memory has been moved once. The migration continues until [`complete`].
fn begin(from: &mut Monitor, to: &mut Monitor, road: &Path) {
    let road = json!({ "uri": format!("unix:{}", road.display()) });
    to.ask("migrate-incoming", road.clone());
    from.limit(BYTES_PER_SECOND, 1);
    from.ask("migrate", road);
    from.wait(|state| state["ram"]["dirty-sync-count"].as_u64() >= Some(2));
    // Sending what the guest has written since takes longer than everything that the test does
    // next.
    from.limit(BYTES_PER_SECOND >> 4, 1);
}

/// Completes the migration; returns when the machine has moved.
fn complete(from: &mut Monitor) {
    let state = from.ask("query-migrate", json!({}));
    assert_eq!(state["status"], "active", "it moved too early: {state}");
    from.limit(BYTES_PER_SECOND << 10, DOWNTIME_MILLIS);
    from.wait(|state| state["status"] == "completed");
}

/// QEMU's machine protocol: JSON, one object per line.
struct Monitor {
    stream: BufReader<UnixStream>,
}

impl Monitor {
    /// Connects; the machine may have just been started.
    fn connect(socket: &Path) -> Self {
        let mut streams = (0..LOOKS_MAX).map(|_| UnixStream::connect(socket));
        let stream =
            streams.find_map(|stream| stream.inspect_err(|_| std::thread::sleep(STEP)).ok());
        let stream = stream.expect("the machine listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut monitor = Self { stream: BufReader::new(stream) };
        let greeting = monitor.line();
        assert!(greeting["QMP"].is_object(), "{greeting}");
        monitor.ask("qmp_capabilities", json!({}));
        monitor
    }

    /// Returns the answer of a command. Fails if the command does.
    fn ask(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream.get_mut(), "{request}").expect("the machine runs");
        for _ in 0..EVENTS_MAX {
            let mut line = self.line();
            match line.get_mut("return") {
                Some(answer) => return answer.take(),
                None => assert!(line.get("event").is_some(), "{command}: {line}"),
            }
        }
        panic!("{command}: nothing but events");
    }

    /// Sets how fast a machine moves, and for how many milliseconds it may be stopped for the last
    /// part.
    fn limit(&mut self, bytes_per_second: u64, millis: u64) {
        let limits = json!({ "max-bandwidth": bytes_per_second, "downtime-limit": millis });
        self.ask("migrate-set-parameters", limits);
    }

    /// Returns when a migration is as far as `far` checks.
    fn wait(&mut self, far: impl Fn(&Value) -> bool) {
        let mut state = Value::Null;
        for _ in 0..LOOKS_MAX {
            state = self.ask("query-migrate", json!({}));
            assert!(state["status"] != "failed", "{state}");
            if far(&state) {
                return;
            }
            std::thread::sleep(STEP);
        }
        panic!("it does not move: {state}");
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the machine answers");
        serde_json::from_str(&line).expect("JSON")
    }
}

/// Shows a guest's connections, its card, and what waits for it.
const STATE: &str = "netstat -tno; ip -s link show eth0; ip neigh; grep virtio /proc/interrupts; \
                     cat /proc/uptime; ps";
/// Speed of the migration; the guest that sends writes faster.
const BYTES_PER_SECOND: u64 = 16 << 20;
const DOWNTIME_MILLIS: u64 = 10_000;
/// Bytes that a guest has received and not read.
const UNREAD: u32 = 6 << 20;
/// Most checks of a migrating machine, [`STEP`] apart.
const LOOKS_MAX: u32 = 3000;
const STEP: Duration = Duration::from_millis(100);
/// Longest wait for an answer of the monitor.
const PATIENCE: Duration = Duration::from_secs(300);
/// Most events before an answer.
const EVENTS_MAX: u32 = 100;
