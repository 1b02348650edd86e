//! Ports of the host that `towpath up` publishes for its guests, and ports in use when `run`
//! starts.
//!
//! They are bound to a loopback address that the test has for itself.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::guest::{Guest, datagram, is_syn, udp_frame};
use super::guest6::{datagram6, udp6_frame};
use super::network::{GATEWAY, GATEWAY_V6, Network, address};
use super::stats::assert_fails;
use super::support::*;

/// Interval at which a question is repeated.
const AGAIN: Duration = Duration::from_secs(1);
/// Guests `a` and `b` have fixed addresses.
const FILE: &str = "[[lease]]\nport = 'a'\nipv4 = '10.0.2.20'\n\
                    [[lease]]\nport = 'b'\nipv4 = '10.0.2.30'\n";

/// Returns a loopback address for this test alone.
fn loopback(test: u8) -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 100 + test, high, low)
}

/// Connects, and returns how the connection ended.
fn connect(to: SocketAddr) -> JoinHandle<ErrorKind> {
    std::thread::spawn(move || {
        let mut stream = match TcpStream::connect_timeout(&to, PATIENCE) {
            Ok(stream) => stream,
            Err(error) => return error.kind(),
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read(&mut [0]).expect_err("nothing is sent").kind()
    })
}

/// The guest at `own` receives a connection to its port, from the gateway, and refuses it.
fn refuses(guest: &mut Guest, own: Ipv4Addr, port: u16, connecting: JoinHandle<ErrorKind>) {
    let syn = guest.receive_at(own, PATIENCE, |frame| is_syn(frame, port)).expect("a SYN");
    assert_eq!((&syn[26..30], &syn[30..34]), (&GATEWAY.octets()[..], &own.octets()[..]));
    guest.refuse(&syn);
    assert_eq!(connecting.join().unwrap(), ErrorKind::ConnectionReset);
}

/// A datagram to the host's port reaches the guest, and the answer its sender. Datagrams may be
/// lost on the way, so the question is repeated.
fn answers(guest: &mut Guest, own: Ipv4Addr, port: u16, to: (Ipv4Addr, u16)) {
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    client.set_read_timeout(Some(AGAIN)).unwrap();
    for _ in 0..PATIENCE.as_secs() {
        client.send_to(b"question", to).unwrap();
        let asked = guest.receive_at(own, AGAIN, |frame| datagram(frame, port).is_some());
        let Some(frame) = asked else { continue };
        let (from, text) = datagram(&frame, port).unwrap();
        assert_eq!((from.0, text), (GATEWAY, &b"question"[..]));
        let gateway: [u8; 6] = frame[6..12].try_into().unwrap();
        guest.send(&udp_frame((gateway, from), (guest.mac, (own, port)), b"answer"));
        let mut buffer = [0; 64];
        if let Ok((len, from)) = client.recv_from(&mut buffer) {
            assert_eq!((&buffer[..len], from), (&b"answer"[..], to.into()));
            return;
        }
    }
    panic!("no answer from port {port}");
}

/// Goal: ports lead to guests by port name, by a guest's host name, and by address; over TCP and
/// UDP, and over TCP on IPv6 to a guest that has only IPv4.
#[test]
fn ports_lead_to_guests() {
    let (host, v6_port) = (loopback(0), 20_000 + (std::process::id() % 10_000) as u16);
    let specs = [
        format!("a={host}/8080:80"),
        format!("told={host}/8081:81"),
        format!("10.0.2.30={host}/8082:82"),
        format!("a=::1/{v6_port}:83"),
    ];
    let udp = [format!("a={host}/5300:53"), format!("told={host}/5301:53")];
    let mut options: Vec<&str> = specs.iter().flat_map(|spec| ["-t", spec]).collect();
    options.extend(udp.iter().flat_map(|spec| ["-u", spec]));
    let mut network = Network::start("published", FILE, &options);
    let to = |port| SocketAddr::from((host, port));
    // No guest is there yet: a connection is reset, and a datagram is lost.
    assert_eq!(connect(to(8081)).join().unwrap(), ErrorKind::ConnectionReset);
    UdpSocket::bind((host, 0)).unwrap().send_to(b"lost", (host, 5301)).unwrap();

    let (mut a, mut b, mut c) =
        (network.guest("a", 1), network.guest("b", 2), network.guest("c", 3));
    refuses(&mut a, address(20), 80, connect(to(8080)));
    refuses(&mut b, address(30), 82, connect(to(8082)));
    refuses(&mut a, address(20), 83, connect((Ipv6Addr::LOCALHOST, v6_port).into()));
    answers(&mut a, address(20), 53, (host, 5300));
    let reported = [(towpath_gateway::services::wire::dhcpv4::option::HOST_NAME, &b"told"[..])];
    let at_c = c.lease(&reported).unwrap().your_address;
    refuses(&mut c, at_c, 81, connect(to(8081)));
    answers(&mut c, at_c, 53, (host, 5301));
    let listed = network.done(&["ls", "published"]);
    assert_eq!(listed.lines().count(), 6, "{listed}");
    assert!(listed.contains(&format!(" tcp {host}/8081 told:81\n")), "{listed}");
    network.end(Signal::TERM);
    assert!(TcpListener::bind((host, 8080)).is_ok(), "the port is free again");
}

/// Goal: a datagram to a port of the host's IPv6 loopback reaches a guest over IPv6, from the
/// gateway, and the answer its sender.
#[test]
fn a_port_for_datagrams_leads_to_a_guest_by_ipv6() {
    let own = Ipv6Addr::from(u128::from(GATEWAY_V6) - 2 + 0x20);
    let lease = format!("port=a,ipv6={own}");
    answers_by_ipv6("published6", own, &["--lease", &lease], |_| ());
}

/// Goal: a guest that forms its address itself, and leases none, is reached as well, even before it
/// has sent a packet other than to detect duplicates.
#[test]
fn a_port_leads_to_the_address_that_a_guest_forms() {
    let own = Ipv6Addr::from(u128::from(GATEWAY_V6) - 2 + 0x5054_00ff_fe00_0001);
    answers_by_ipv6("formed6", own, &[], |guest| guest.detect_duplicates(own));
}

/// Publishes a port for datagrams to a guest, which `begin` prepares, and has the guest answer.
fn answers_by_ipv6(name: &str, own: Ipv6Addr, more: &[&str], begin: impl FnOnce(&mut Guest)) {
    let port = free_udp_port();
    let spec = format!("a=::1/{port}:53");
    let network = Network::start(name, "", &[more, &["-u", &spec]].concat());
    let mut guest = network.guest("a", 1);
    begin(&mut guest);
    let client = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    client.set_read_timeout(Some(AGAIN)).unwrap();
    for _ in 0..PATIENCE.as_secs() {
        client.send_to(b"question", (Ipv6Addr::LOCALHOST, port)).unwrap();
        let asked = guest.receive_at6(own, AGAIN, |frame| datagram6(frame, 53).is_some());
        let Some(frame) = asked else { continue };
        let (from, text) = datagram6(&frame, 53).unwrap();
        assert_eq!((from.0, text), (GATEWAY_V6, &b"question"[..]));
        let gateway: [u8; 6] = frame[6..12].try_into().unwrap();
        guest.send(&udp6_frame((gateway, from), (guest.mac, (own, 53)), b"answer"));
        let mut buffer = [0; 64];
        if let Ok((len, from)) = client.recv_from(&mut buffer) {
            assert_eq!((&buffer[..len], from.port()), (&b"answer"[..], port));
            return;
        }
    }
    panic!("no answer");
}

/// Returns a port of the host's IPv6 loopback that no socket has.
fn free_udp_port() -> u16 {
    let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    socket.local_addr().unwrap().port()
}

/// Goal: ports are published, redirected and closed while the network runs; a failed transaction
/// leaves all of them unchanged.
#[test]
fn ports_are_published_while_the_network_runs() {
    let network = Network::start("publish", FILE, &[]);
    let host = loopback(1);
    let to = |port| SocketAddr::from((host, port));
    let spec = |ports: &str| format!("{host}/{ports}");
    let (mut a, mut b) = (network.guest("a", 1), network.guest("b", 2));
    network.done(&["publish", "add", "a", "-t", &spec("8080-8082:80-82"), "-u", &spec("5300:53")]);
    refuses(&mut a, address(20), 81, connect(to(8081)));
    answers(&mut a, address(20), 53, (host, 5300));

    // Impossible operations are rejected, and nothing of them is done.
    let taken = TcpListener::bind((host, 9000)).unwrap();
    let more = spec("8999-9000");
    let failed = network.towpath(&["publish", "add", "b", "-t", &more]);
    assert_fails(&failed, &format!("TCP port {host}:9000 is in use on the host"));
    assert_eq!(connect(to(8999)).join().unwrap(), ErrorKind::ConnectionRefused);
    let again = network.towpath(&["publish", "add", "b", "-t", &spec("8080")]);
    assert_fails(&again, &format!("TCP {host}/8080 is already published"));
    let other = network.towpath(&["publish", "del", "b", "-t", &spec("8080")]);
    assert_fails(&other, "is not published for this guest");
    for wrong in [&["publish", "add", "a"][..], &["publish", "add", "a", "-t", "0"]] {
        assert_eq!(network.towpath(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let before = network.done(&["ls", "published"]);
    let mut operations = vec![
        json!({ "unpublish": "a" }),
        json!({ "publish": "b", "tcp": spec("8081:90"), "udp": [spec("5300:99")] }),
        json!({ "publish": "10.0.2.20", "tcp": spec("8090:80") }),
        json!({ "add-lease": { "port": "c", "name": "new" } }),
        json!({ "del": "no-such" }),
    ];
    let (status, answer) = network.post(&json!({ "operations": operations }).to_string());
    assert_eq!((status, &answer["operation"]), (409, &4.into()), "{answer}");
    assert_eq!(network.done(&["ls", "published"]), before);
    assert_eq!(connect(to(8090)).join().unwrap(), ErrorKind::ConnectionRefused);
    refuses(&mut a, address(20), 81, connect(to(8081)));
    answers(&mut a, address(20), 53, (host, 5300));

    // Without the operation that fails: ports lead to another guest without being closed.
    operations.pop();
    let (status, answer) = network.post(&json!({ "operations": operations }).to_string());
    assert_eq!((status, &answer["applied"]), (200, &4.into()), "{answer}");
    refuses(&mut b, address(30), 90, connect(to(8081)));
    refuses(&mut a, address(20), 80, connect(to(8090)));
    assert_eq!(connect(to(8080)).join().unwrap(), ErrorKind::ConnectionRefused);
    answers(&mut b, address(30), 99, (host, 5300));
    network.done(&["publish", "del", "b"]);
    assert_eq!(connect(to(8081)).join().unwrap(), ErrorKind::ConnectionRefused);
    assert!(UdpSocket::bind((host, 5300)).is_ok(), "the port is free again");
    drop(taken);
}

/// Goal: ports that cannot be published are reported before anything is made.
#[test]
fn what_cannot_be_published_is_refused() {
    for (options, expected) in [
        (&["-t", "a"][..], "expected GUEST=SPEC, for example vm1=8080:80"),
        (&["-t", "a=x"], "option --tcp-ports a=x: "),
        (&["-t", "a=80", "-t", "b=80"], "TCP 80 is already published"),
        (&["-u", "a=80", "--no-gateway"], "no gateway"),
    ] {
        let output = output(towpath(["up", "--check"]).args(options));
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", errors(&output));
        assert!(errors(&output).contains(expected), "{options:?}: {}", errors(&output));
    }
    let fine = ["up", "--check", "-t", "a=80", "-u", "a=80", "-t", "a=::1/80"];
    let right = output(&mut towpath(fine));
    assert_eq!(right.status.code(), Some(0), "{}", errors(&right));
    let network = Network::start("unpublished", "gateway = false\n", &[]);
    let none = network.towpath(&["publish", "add", "a", "-t", "127.0.0.1/1"]);
    assert_fails(&none, "the network has no gateway");
}

impl Network {
    /// Sends a transaction; returns status and JSON of the answer.
    fn post(&self, body: &str) -> (u16, Value) {
        super::control::post(&self.control(), body)
    }
}

/// Goal: a port whose user is about to release it does not fail the start, as after the restart of
/// a container; a port that stays in use does.
#[test]
fn ports_in_use_may_become_free_at_the_start() {
    let taken = TcpListener::bind((loopback(2), 0)).unwrap();
    let port = taken.local_addr().unwrap();
    let spec = format!("{}/{}:80", port.ip(), port.port());
    let run = || output(&mut towpath(["run", "--quiet", "-t", &spec, "--", "true"]));
    let failed = run();
    assert_fails(&failed, &format!("TCP port {port} is in use on the host"));
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        drop(taken);
    });
    let done = run();
    release.join().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", errors(&done));
}
