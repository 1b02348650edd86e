//! Ports of the host's loopback that are reached at the loopback inside: `-T auto`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use super::changed_ports::on_host;
use super::pasta::{Bench, at, listen, within};
use super::slirp4netns::ask;
use super::support::*;

/// Connects inside to a port of the loopback, and returns what the server sends.
fn greeting(inside: &Guard, port: u16, address: &str) -> Option<String> {
    let mut stream = within(inside, || TcpStream::connect((address, port)).ok())?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).ok().map(|_| text)
}

/// Serves connections on the host's loopback until the test ends.
fn serve(host: &Guard, address: &str, text: &'static str) -> TcpListener {
    let listener = within(host, || TcpListener::bind(address).unwrap());
    let accepting = listener.try_clone().unwrap();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = accepting.accept() {
            if stream.write_all(text.as_bytes()).is_err() || text == "last" {
                break;
            }
        }
    });
    listener
}

/// Goal: programs inside reach each port of the host's loopback while a program of the host
/// listens on it, but no port that towpath publishes, at the start or later.
#[test]
fn ports_of_the_hosts_loopback_are_followed() {
    skip_if!(no_root());
    let bench = Bench::new("mirror");
    let Bench { host, inside, .. } = &bench;
    let _early = serve(host, "127.0.0.1:7000", "early");
    let pid = bench.pid();
    let mut command = on_host(&bench, TOWPATH);
    command.args(["attach", "-q", "-t", "8080", "-T", "auto", "-T", "7100:7000", &pid]);
    let running = Guard(command.stdin(Stdio::null()).spawn().unwrap());
    wait_for("an early port", || greeting(inside, 7000, "127.0.0.1").as_deref() == Some("early"));
    assert_eq!(greeting(inside, 7100, "::1").as_deref(), Some("early"));
    let late = serve(host, "[::1]:7001", "last");
    wait_for("a late port", || within(inside, || TcpListener::bind("127.0.0.1:7001").is_err()));
    // The host's other loopback address is tried, too.
    assert_eq!(greeting(inside, 7001, "127.0.0.1").as_deref(), Some("last"));
    drop(late);
    wait_for("the port to go", || within(inside, || TcpListener::bind("127.0.0.1:7001").is_ok()));

    // A port that a program inside uses is that program's, until it ends.
    let own = within(inside, || TcpListener::bind("127.0.0.1:7002").unwrap());
    let _both = serve(host, "127.0.0.1:7002", "both");
    let mut add = on_host(&bench, TOWPATH);
    let number = running.0.id().to_string();
    let added = output(add.args(["publish", "add", &number, "-t", "8081"]));
    assert_eq!(added.status.code(), Some(0), "{}", errors(&added));
    let _mark = serve(host, "127.0.0.1:7003", "mark");
    wait_for("another port", || greeting(inside, 7003, "127.0.0.1").as_deref() == Some("mark"));
    for port in [8080, 8081] {
        let is_free = within(inside, || TcpListener::bind(("127.0.0.1", port)).is_ok());
        assert!(is_free, "port {port} is towpath's own");
    }
    drop(own);
    wait_for("the program's port", || {
        greeting(inside, 7002, "127.0.0.1").as_deref() == Some("both")
    });
}

/// Goal: a port of the host's loopback is reached inside no more once a request on the socket of
/// `--port-socket` has published the same port at another address of the host.
#[test]
fn a_port_that_a_request_publishes_is_no_longer_mirrored() {
    skip_if!(no_root());
    let bench = Bench::new("mirror-request");
    let Bench { host, inside, folder } = &bench;
    let _server = serve(host, "127.0.0.1:7000", "host");
    let (pid, socket) = (bench.pid(), folder.0.join("ports"));
    let mut command = on_host(&bench, TOWPATH);
    command.args(["attach", "-q", "-T", "auto", "--port-socket", socket.to_str().unwrap(), &pid]);
    let _running = Guard(command.stdin(Stdio::null()).spawn().unwrap());
    wait_for("the host's port", || greeting(inside, 7000, "127.0.0.1").as_deref() == Some("host"));
    let add = "{\"execute\":\"add_hostfwd\",\"arguments\":{\"proto\":\"tcp\",\
               \"host_addr\":\"192.0.2.1\",\"host_port\":7000,\"guest_port\":7000}}";
    assert_eq!(ask(&socket, add), "{\"return\":{\"id\":1}}");
    let mut program = None;
    wait_for("the port inside to be free", || {
        program = within(inside, || TcpListener::bind("0.0.0.0:7000").ok());
        program.is_some()
    });
    let program = program.unwrap();
    let mut client = within(host, || TcpStream::connect("192.0.2.1:7000").unwrap());
    let (mut server, _) = program.accept().unwrap();
    server.write_all(b"program").unwrap();
    drop(server);
    let mut text = String::new();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "program");
}

/// Goal: with `auto` in both directions, a program's port is published and comes back, though
/// towpath itself listens on it on the host.
#[test]
fn both_directions_do_not_meet() {
    skip_if!(no_root());
    let bench = Bench::new("mirror-both");
    let Bench { host, inside, .. } = &bench;
    let pid = bench.pid();
    let mut command = on_host(&bench, TOWPATH);
    let options = ["attach", "-q", "-t", "auto", "-T", "auto", "--join-loopback", &pid];
    let _running = Guard(command.args(options).stdin(Stdio::null()).spawn().unwrap());
    let is_published = || within(host, || TcpStream::connect("127.0.0.1:7000").is_ok());
    let _other = serve(host, "127.0.0.1:7001", "other");
    for _ in 0..2 {
        let program = listen(inside, at("0.0.0.0:7000"));
        wait_for("the program's port", is_published);
        wait_for("the host's port", || {
            greeting(inside, 7001, "127.0.0.1").as_deref() == Some("other")
        });
        // Nothing of towpath may hold the port inside, or the next program cannot listen.
        drop(program);
    }
    wait_for("the port to go", || !is_published());
    listen(inside, at("127.0.0.1:7000"));
}
