//! A virtual machine or `towpath up` that is killed, and ports that are added and removed, in the
//! middle of a transfer.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;

use crate::machine::Machine;
use crate::network::Up;

/// The port of a killed machine serves the next one; the other machine continues, and memory of
/// packets in flight is returned. First with one worker, then with the port at a second one.
pub(crate) fn of_a_guest() {
    let ports = [("--vhost-user", "two"), ("--vhost-user", "one")];
    let up = Up::start("killed", &ports);
    let mut two = Machine::boot(&up.socket("two"), 1, ",mac=02:00:00:00:00:02");
    for (card, workers) in
        [(",mac=02:00:00:00:00:01", "1"), (",mac=02:00:00:00:00:01,packed=on", "2")]
    {
        up.ask(&["workers", "set", workers]);
        let mut one = Machine::boot(&up.socket("one"), 1, card);
        stream(&mut one, &mut two, "nc 10.0.2.22 9 < /dev/zero > /dev/null &");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port of the loopback");
        let port = listener.local_addr().expect("bound").port();
        one.start(&format!("nc 10.0.2.2 {port} < /dev/zero > /dev/null &"));
        // The host does not read, so memory of the guest is in use when it is killed.
        let (reader, _) = listener.accept().expect("the machine connects");
        up.wait_for_loans();
        one.kill();
        drop(reader);
        up.wait_for_rest();
        two.run("ip addr flush dev eth0 && ip link set eth0 down");
    }
    assert_eq!(up.worker_of("one"), 1);
    assert_eq!(up.worker_of("two"), 0);
    // A machine that receives is killed as well, with packets on their way to it.
    let mut one = Machine::boot(&up.socket("one"), 1, ",mac=02:00:00:00:00:01");
    stream(&mut two, &mut one, "nc 10.0.2.22 9 < /dev/zero > /dev/null &");
    one.kill();
    up.wait_for_rest();
    two.run("ip addr flush dev eth0 && ip link set eth0 down");
    let mut one = Machine::boot(&up.socket("one"), 1, ",mac=02:00:00:00:00:01");
    stream(&mut one, &mut two, "nc 10.0.2.22 9 < /dev/zero > /dev/null &");
    one.power_off();
    two.power_off();
    up.finish();
}

/// A connection between two machines survives a restart of the network. One machine connects to the
/// network, the network connects to the other. Each has its port at another worker.
pub(crate) fn of_the_network() {
    let ports = [("--vhost-user", "one"), ("--vhost-user-client", "two")];
    let mut up = Up::start_with("restarted", &["--workers", "2"], &ports);
    let mut one = Machine::boot(&up.socket("one"), 1, ",mac=02:00:00:00:00:01");
    let mut two = Machine::boot_listening(&up.socket("two"), ",mac=02:00:00:00:00:02");
    one.run("dd if=/dev/urandom of=/tmp/data bs=64k count=1024 2> /dev/null");
    // The transfer does not end before the network is restarted, however fast it is.
    let rest = "while [ ! -e /tmp/go ]; do sleep 0.1; done; cat /tmp/data";
    let transfer = format!("(cat /tmp/data; {rest}) | nc 10.0.2.22 9 > /tmp/sum &");
    stream(&mut one, &mut two, &transfer);
    up.crash();
    one.run("touch /tmp/go");
    let wait = "for i in $(seq 3000); do [ -s /tmp/sum ] && break; sleep 0.1; done; cat /tmp/sum";
    let received = one.run(wait);
    let sent = one.run("cat /tmp/data /tmp/data | md5sum");
    assert_eq!(received, sent);
    one.power_off();
    two.power_off();
    up.finish();
}

/// A transfer between two machines continues while other ports are added, changed and removed,
/// first with one worker, then with two.
pub(crate) fn of_other_ports() {
    let up = Up::start("ports", &[("--vhost-user", "one"), ("--vhost-user", "two")]);
    let mut one = Machine::boot(&up.socket("one"), 1, ",mac=02:00:00:00:00:01");
    let mut two = Machine::boot(&up.socket("two"), 1, ",mac=02:00:00:00:00:02");
    one.run("dd if=/dev/urandom of=/tmp/data bs=64k count=16 2> /dev/null");
    let all = "while [ ! -e /tmp/stop ]; do cat /tmp/data; echo >> /tmp/times; done";
    stream(&mut one, &mut two, &format!("({all}) | nc 10.0.2.22 9 > /tmp/sum &"));
    let socket = up.socket("three");
    for (round, kind) in ["--vhost-user", "--stream"].repeat(3).into_iter().enumerate() {
        if round == 2 {
            up.ask(&["workers", "set", "2"]);
        }
        up.ask(&["port", "add", "three", kind, &socket.to_string_lossy()]);
        wait_for_more(&mut two);
        assert_eq!(up.worker_of("three"), u64::from(round >= 2));
        // A guest at a removed port is disconnected.
        let _guest = UnixStream::connect(&socket).expect("the port is there");
        up.ask(&["port", "set", "three", "queue-len", &(1 + round).to_string()]);
        up.ask(&["port", "del", "three"]);
        wait_for_more(&mut two);
    }
    one.run("touch /tmp/stop");
    let received = one.run("while [ ! -s /tmp/sum ]; do sleep 0.1; done; cat /tmp/sum");
    let sent = one.run("while read -r line; do cat /tmp/data; done < /tmp/times | md5sum");
    assert_eq!(received, sent);
    up.wait_for_rest();
    one.power_off();
    two.power_off();
    up.finish();
}

/// Makes `one` begin `transfer` to port 9 of `two`; returns when [`ENOUGH`] bytes have arrived.
fn stream(one: &mut Machine, two: &mut Machine, transfer: &str) {
    one.configure("10.0.2.21/24");
    two.configure("10.0.2.22/24");
    two.start("nc -ll -p 9 -e md5sum &");
    two.run("while ! netstat -ltn | grep -q :9; do sleep 0.1; done");
    one.start(transfer);
    wait_for_more(two);
}

/// Returns when [`ENOUGH`] more bytes have arrived at `machine`.
pub(crate) fn wait_for_more(machine: &mut Machine) {
    let received = "$(cat /sys/class/net/eth0/statistics/rx_bytes)";
    machine.run(&format!(
        "to=$(({received} + {ENOUGH})); while [ {received} -lt $to ]; do sleep 0.1; done"
    ));
}

/// Bytes after which a transfer is in progress.
const ENOUGH: u32 = 4 << 20;
