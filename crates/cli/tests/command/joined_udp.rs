//! UDP ports of the program's loopback that lead to the host's: `-U`.

use std::net::{SocketAddr, UdpSocket};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::changed_ports::on_host;
use super::pasta::{Bench, within};
use super::support::*;

/// Opens a socket whose reads end after a while.
fn open(namespace: &Guard, address: &str) -> UdpSocket {
    let socket = within(namespace, || once_free(|| UdpSocket::bind(address)));
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Answers each datagram by its bytes and the sender's port, until the test ends.
fn echo(host: &Guard, address: &str) {
    let socket = within(host, || UdpSocket::bind(address).unwrap());
    std::thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            let answer = format!("{} {}", String::from_utf8_lossy(&bytes[..length]), from.port());
            if socket.send_to(answer.as_bytes(), from).is_err() {
                break;
            }
        }
    });
}

/// Sends `text` from a socket inside; returns the answer's text and the port that the host saw.
fn ask(client: &UdpSocket, to: &str, text: &str) -> (String, u16) {
    client.send_to(text.as_bytes(), to).unwrap();
    let mut bytes = [0; 2048];
    let (length, from) = client.recv_from(&mut bytes).unwrap();
    assert_eq!(from, to.parse::<SocketAddr>().unwrap());
    let answer = String::from_utf8_lossy(&bytes[..length]).into_owned();
    let (text, port) = answer.rsplit_once(' ').unwrap();
    (text.into(), port.parse().unwrap())
}

/// Starts towpath on the host for the namespace inside; returns it when it is ready.
fn serve(bench: &Bench, options: &[&str]) -> Guard {
    let pid = bench.pid();
    let mut command = on_host(bench, TOWPATH);
    command.args(["attach", "-q"]).args(options).arg(&pid).stdin(Stdio::null());
    let running = Guard(command.spawn().unwrap());
    let socket = bench.folder.sockets().join(format!("{}.control", running.0.id()));
    wait_for("the control socket", || socket.exists());
    running
}

/// Returns the numbers of `towpath stats --json`.
fn stats(bench: &Bench, running: &Guard) -> Value {
    let number = running.0.id().to_string();
    let output = output(on_host(bench, TOWPATH).args(["stats", "--json", &number]));
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let value: Value = serde_json::from_str(&text(&output)).unwrap();
    if value.is_array() { value[0].clone() } else { value }
}

/// Goal: clients inside reach a server on the host's loopback at their own, over IPv4 and IPv6. The
/// host tells them apart, and each gets its own answers. The end of towpath frees the ports.
#[test]
fn datagrams_reach_the_hosts_loopback() {
    skip_if!(no_root());
    let bench = Bench::new("joined-udp");
    let Bench { host, inside, .. } = &bench;
    echo(host, "127.0.0.1:5300");
    echo(host, "[::1]:5300");
    echo(host, "127.0.0.1:5302");
    let running = serve(&bench, &["-U", "53:5300", "-U", "5300-5302,~5301"]);
    for (loopback, any) in [("127.0.0.1", "127.0.0.1:0"), ("[::1]", "[::1]:0")] {
        let clients: Vec<UdpSocket> = (0..4).map(|_| open(inside, any)).collect();
        let mut ports = Vec::new();
        for round in 0..3 {
            for (number, client) in clients.iter().enumerate() {
                let text = format!("{round} of {number}");
                let (answer, port) = ask(client, &format!("{loopback}:53"), &text);
                assert_eq!(answer, text);
                ports.push(port);
            }
        }
        assert!(ports[..4] == ports[4..8] && ports[..4] == ports[8..], "{ports:?}");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 4, "each client has a socket of its own");
        assert_eq!(ask(&clients[0], &format!("{loopback}:5300"), "").0, "");
    }
    let client = open(inside, "127.0.0.1:0");
    assert_eq!(ask(&client, "127.0.0.1:5302", "2").0, "2");
    assert!(within(inside, || UdpSocket::bind("127.0.0.1:5301").is_ok()), "it is excluded");
    assert!(within(inside, || UdpSocket::bind("0.0.0.0:5302").is_err()), "it is in use");

    // No program of the host uses this one: nothing comes, and the datagram is counted.
    client.send_to(b"x", "127.0.0.1:5300").unwrap();
    let lone = open(inside, "[::1]:0");
    lone.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    lone.send_to(b"x", "[::1]:5302").unwrap();
    assert!(lone.recv(&mut [0; 9]).is_err());
    wait_for("the refusal", || stats(&bench, &running)["joined"]["udp_refused"] == 1);
    let joined = &stats(&bench, &running)["joined"];
    assert_eq!(joined["udp_begun"], 4 + 4 + 2 + 1 + 1 + 1);
    assert!(joined["udp_flows"].as_u64() >= Some(10), "{joined}");
    running.signal(Signal::TERM);
    assert_eq!(finish(running).status.code(), Some(0));
    assert!(within(inside, || UdpSocket::bind("127.0.0.1:53").is_ok()));
}

/// Goal: a port that a program inside uses ends towpath with a message that names it, also in the
/// middle of a range, and nothing is left.
#[test]
fn ports_in_use_inside_are_named() {
    skip_if!(no_root());
    let bench = Bench::new("joined-udp-used");
    let pid = bench.pid();
    let used = open(&bench.inside, "0.0.0.0:5301");
    let mut command = on_host(&bench, TOWPATH);
    let refused = output(command.args(["attach", "-q", "-U", "5300-5302", &pid]));
    assert_eq!(refused.status.code(), Some(125));
    let text = errors(&refused);
    assert!(text.contains("option --host-udp-ports: UDP port 127.0.0.1:5301: in use in"), "{text}");
    wait_for("the interface to go", || !bench.shown().contains("tap0"));
    drop(used);
    let all: Vec<_> = (5300..5303)
        .map(|port| within(&bench.inside, || UdpSocket::bind(("127.0.0.1", port)).unwrap()))
        .collect();
    assert_eq!(all.len(), 3);
}

/// Goal: what a program sent last arrives at the host, though the program ends at once, with one
/// worker and with several.
#[test]
fn the_last_datagram_arrives() {
    skip_if!(no_root());
    let bench = Bench::new("joined-udp-last");
    let server = open(&bench.host, "127.0.0.1:5300");
    let script = "echo last >/dev/udp/127.0.0.1/5399";
    for workers in ["1", "2"] {
        let mut command = on_host(&bench, TOWPATH);
        command.args(["run", "-q", "--workers", workers, "--stats", "-U", "5399:5300", "--"]);
        let done = output(command.args(["bash", "-c", script]));
        let report = errors(&done);
        assert_eq!(done.status.code(), Some(0), "{report}");
        assert!(report.contains("joined udp        1 now, 1 in all, 0 datagrams ref"), "{report}");
        assert!(report.contains("; 5 bytes out, 0 bytes in past the stack"), "{report}");
        let mut bytes = [0; 9];
        assert_eq!(server.recv(&mut bytes).map(|length| &bytes[..length]).unwrap(), b"last\n");
    }
}

/// Goal: the name `pasta` takes its options for these ports.
#[test]
fn pasta_leads_udp_ports_to_the_host() {
    skip_if!(no_root());
    let bench = Bench::new("joined-udp-pasta");
    echo(&bench.host, "127.0.0.1:5300");
    let pid = bench.pid();
    let arguments = ["-t", "none", "-u", "none", "-T", "none", "-U", "53:5300", "-U", "auto", &pid];
    let daemon = bench.begin(&arguments);
    let client = open(&bench.inside, "127.0.0.1:0");
    assert_eq!(ask(&client, "127.0.0.1:53", "a question").0, "a question");
    wait_for("the host's port", || is_answered(&bench.inside, 5300));
    kill_process(daemon, Signal::TERM).unwrap();
    let is_free = || within(&bench.inside, || UdpSocket::bind("127.0.0.1:53").is_ok());
    wait_for("the end", is_free);
}

/// Returns whether `client` gets an answer from a port of the loopback inside, within a moment.
fn is_answered(inside: &Guard, port: u16) -> bool {
    let client = open(inside, "127.0.0.1:0");
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    client.send_to(b"x", ("127.0.0.1", port)).is_ok() && client.recv(&mut [0; 99]).is_ok()
}

/// Goal: with `auto`, programs inside reach each UDP port of the host's loopback while a program of
/// the host uses it, but no port that towpath publishes; a port that a program inside uses stays
/// that program's, until it ends.
#[test]
fn udp_ports_of_the_hosts_loopback_are_followed() {
    skip_if!(no_root());
    let bench = Bench::new("mirror-udp");
    let Bench { host, inside, .. } = &bench;
    echo(host, "127.0.0.1:7000");
    let own = open(inside, "127.0.0.1:7002");
    let options = ["-u", "8080", "-U", "auto", "-U", "7100:7000", "-T", "auto"];
    let _running = serve(&bench, &options);
    wait_for("an early port", || is_answered(inside, 7000));
    assert!(is_answered(inside, 7100));
    echo(host, "0.0.0.0:7002");
    let late = open(host, "127.0.0.1:7001");
    let is_free = |port| within(inside, || UdpSocket::bind(("127.0.0.1", port)).is_ok());
    wait_for("a late port", || !is_free(7001));
    drop(late);
    wait_for("the port to go", || is_free(7001));
    assert!(is_free(8080), "it is towpath's own");
    assert!(!is_answered(inside, 7002), "it is the program's");
    drop(own);
    wait_for("the program's port", || is_answered(inside, 7002));
}

/// Goal: with `auto` in both directions, a program's port is published and does not come back, and
/// a port of the host is not published.
#[test]
fn both_directions_of_udp_do_not_meet() {
    skip_if!(no_root());
    let bench = Bench::new("mirror-udp-both");
    let Bench { host, inside, .. } = &bench;
    let options = ["-t", "auto", "-u", "auto", "-U", "auto", "-U", "7005", "--join-loopback"];
    let _running = serve(&bench, &options);
    let is_used = |port| within(host, || UdpSocket::bind(("127.0.0.1", port)).is_err());
    echo(host, "127.0.0.1:7001");
    for _ in 0..2 {
        let program = open(inside, "0.0.0.0:7000");
        wait_for("the program's port", || is_used(7000));
        wait_for("the host's port", || is_answered(inside, 7001));
        drop(program);
        // Nothing of towpath may hold the port inside.
        drop(open(inside, "127.0.0.1:7000"));
        wait_for("the port to go", || !is_used(7000));
    }
    assert!(!is_used(7005), "it is not a program's");
}
