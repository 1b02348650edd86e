//! Service discovery by multicast: queries of the program reach the host's network, and answers
//! come back; nothing else passes.
//!
//! The host, its network and the program are network namespaces of the test.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::pasta::{Bench, within};
use super::support::*;

const MDNS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 251)), 5353);
const MDNS6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);
const SSDP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(239, 255, 255, 250)), 1900);
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LAN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PROGRAM: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// Longer than what passes takes, and shorter than a test may take.
const SILENCE: Duration = Duration::from_millis(500);

/// A host in the network of the host, a program, and a towpath that serves it.
struct Discovery {
    bench: Bench,
    lan: Guard,
    towpath: Guard,
}

fn in_namespace(process: &Guard) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", process.pid().as_raw_pid()));
    command
}

impl Discovery {
    fn new(name: &str, options: &[&str]) -> Self {
        let bench = Bench::new(name);
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "1000"]).stdin(Stdio::null());
        let lan = Guard(command.spawn().unwrap());
        let host = network_namespace(bench.host.pid().as_raw_pid());
        let own = network_namespace(std::process::id().try_into().unwrap());
        wait_for("the network of the host", || {
            let of_lan = network_namespace(lan.pid().as_raw_pid());
            of_lan.is_some() && of_lan != host && of_lan != own
        });
        let moved = format!("ip link set d1 netns {}", lan.pid().as_raw_pid());
        let shown = "ip link set lo up; ip link set d1 up; ip address add 192.0.2.2/24 dev d1; \
                     ip -6 address add 2001:db8::2/64 dev d1 nodad; \
                     ip route add 224.0.0.0/4 dev d1";
        for (process, script) in [(&bench.host, moved.as_str()), (&lan, shown)] {
            let done = output(in_namespace(process).args(["sh", "-ec", script]));
            assert!(done.status.success(), "{}", errors(&done));
        }
        // Until the kernel has noticed the carrier, it drops what is sent.
        for (process, name) in [(&bench.host, "d0"), (&lan, "d1")] {
            wait_for("the carrier", || {
                let shown = output(in_namespace(process).args(["ip", "link", "show", name]));
                text(&shown).contains("state UP")
            });
        }
        let ready = bench.folder.0.join("ready");
        let mut command = in_namespace(&bench.host);
        command.args(["sh", "-c", "exec \"$0\" \"$@\" 3>\"$READY\""]).env("READY", &ready);
        command.args([TOWPATH, "attach", "-q", "--ready-fd", "3"]).args(options).arg(bench.pid());
        let towpath = Guard(command.stdin(Stdio::null()).spawn().unwrap());
        // Tests of offloads at the start take what is sent meanwhile.
        wait_for("the network", || fs::read(&ready).is_ok_and(|text| !text.is_empty()));
        Self { bench, lan, towpath }
    }

    /// A member of a group in the host's network.
    fn lan(&self, group: SocketAddr) -> UdpSocket {
        within(&self.lan, || member(group, LAN))
    }

    /// A member of a group inside.
    fn inside(&self, group: SocketAddr) -> UdpSocket {
        within(&self.bench.inside, || member(group, PROGRAM))
    }

    /// A socket inside at another port than the service's.
    fn one_shot(&self) -> UdpSocket {
        within(&self.bench.inside, || {
            let socket = UdpSocket::bind((PROGRAM, 0)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        })
    }

    /// Ends towpath.
    fn end(self) {
        self.towpath.signal(Signal::TERM);
        assert_eq!(finish(self.towpath).status.code(), Some(0));
    }
}

fn member(group: SocketAddr, own: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, group.port())).unwrap();
    let IpAddr::V4(address) = group.ip() else { panic!("IPv4") };
    socket.join_multicast_v4(&address, &own).unwrap();
    socket.set_multicast_loop_v4(false).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn next(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut bytes = [0; 9000];
    let (len, from) = socket.recv_from(&mut bytes).unwrap();
    (bytes[..len].to_vec(), from)
}

fn assert_silent(socket: &UdpSocket) {
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    let mut bytes = [0; 9000];
    let received = socket.recv_from(&mut bytes);
    assert!(received.is_err(), "{:?}", received.map(|(len, from)| (bytes[..len].to_vec(), from)));
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
}

/// An mDNS message: a query with a question of this class for `NUMBER.local`, or an answer.
fn dns(is_answer: bool, number: u8, class: [u8; 2]) -> Vec<u8> {
    let flags = if is_answer { 0x84 } else { 0 };
    let mut message = vec![0, 0, flags, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3];
    message.extend(format!("{number:03}").as_bytes());
    message.extend(b"\x05local\0\0\x01");
    message.extend(class);
    message
}

const ANY_ANSWER: [u8; 2] = [0, 1];
const UNICAST_ANSWER: [u8; 2] = [0x80, 1];

/// Goal: queries of a resolver inside, at mDNS's port, leave from that port, and multicast answers
/// reach the group inside. Announcements of the program stay inside; queries of others stay
/// outside.
#[test]
fn a_resolver_inside_finds_names() {
    skip_if!(no_root());
    let discovery = Discovery::new("mdns", &["--multicast", "mdns"]);
    let (lan, inside) = (discovery.lan(MDNS), discovery.inside(MDNS));
    inside.set_multicast_ttl_v4(255).unwrap();
    inside.send_to(&dns(false, 1, UNICAST_ANSWER), MDNS).unwrap();
    let (query, from) = next(&lan);
    // Unicast answers would go to the host's own responder.
    assert_eq!((query, from), (dns(false, 1, ANY_ANSWER), (HOST, 5353).into()));
    lan.send_to(&dns(false, 2, ANY_ANSWER), MDNS).unwrap();
    lan.send_to(&dns(true, 3, ANY_ANSWER), MDNS).unwrap();
    let answer = next(&inside);
    assert_eq!(answer, (dns(true, 3, ANY_ANSWER), (GATEWAY, 5353).into()));
    inside.send_to(&dns(true, 4, ANY_ANSWER), MDNS).unwrap();
    inside.send_to(b"no message of DNS", MDNS).unwrap();
    inside.send_to(&vec![0; 9001], MDNS).unwrap();
    // The same query again so soon may be one that has come back.
    inside.send_to(&dns(false, 5, ANY_ANSWER), MDNS).unwrap();
    inside.send_to(&dns(false, 5, ANY_ANSWER), MDNS).unwrap();
    inside.send_to(&dns(false, 6, ANY_ANSWER), MDNS).unwrap();
    assert_eq!(next(&lan).0, dns(false, 5, ANY_ANSWER));
    assert_eq!(next(&lan).0, dns(false, 6, ANY_ANSWER));
    assert_silent(&lan);
    assert_silent(&inside);
    // Groups that are not chosen stay inside.
    let ssdp = discovery.lan(SSDP);
    discovery.one_shot().send_to(b"M-SEARCH * HTTP/1.1\r\n\r\n", SSDP).unwrap();
    assert_silent(&ssdp);
    discovery.end();
}

/// Goal: a query from another port gets unicast answers of several hosts, by mDNS and by SSDP, and
/// announcements of SSDP arrive.
#[test]
fn one_shot_queries_get_unicast_answers() {
    skip_if!(no_root());
    let discovery = Discovery::new("ssdp", &["--multicast", "ssdp,mdns"]);
    let search = b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nMX: 1\r\n\r\n".to_vec();
    for (group, query) in [(SSDP, search), (MDNS, dns(false, 1, ANY_ANSWER))] {
        let lan = discovery.lan(group);
        let other = within(&discovery.lan, || UdpSocket::bind((LAN, 0)).unwrap());
        let client = discovery.one_shot();
        for _ in 0..2 {
            client.send_to(&query, group).unwrap();
            let (received, from) = next(&lan);
            assert_eq!((received, from.ip()), (query.clone(), HOST.into()));
            assert_ne!(from.port(), group.port());
            for host in [&lan, &other] {
                host.send_to(b"an answer", from).unwrap();
                let expected = SocketAddr::new(LAN.into(), host.local_addr().unwrap().port());
                assert_eq!(next(&client), (b"an answer".to_vec(), expected));
            }
        }
    }
    let (lan, inside) = (discovery.lan(SSDP), discovery.inside(SSDP));
    let notify = b"NOTIFY * HTTP/1.1\r\nNTS: ssdp:alive\r\n\r\n";
    lan.send_to(notify, SSDP).unwrap();
    assert_eq!(next(&inside), (notify.to_vec(), (GATEWAY, 1900).into()));
    inside.send_to(notify, SSDP).unwrap();
    assert_silent(&lan);
    discovery.end();
}

/// Goal: the same over IPv6, with groups of the link.
#[test]
fn names_are_found_over_ipv6() {
    skip_if!(no_root());
    let discovery = Discovery::new("mdns6", &["--multicast", "mdns"]);
    let join = |name: &'static str| {
        move || {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 5353)).unwrap();
            let index = rustix::net::netdevice::name_to_index(&socket, name).unwrap();
            socket.join_multicast_v6(&MDNS6, index).unwrap();
            socket.set_multicast_loop_v6(false).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            (socket, SocketAddr::V6(SocketAddrV6::new(MDNS6, 5353, 0, index)))
        }
    };
    let (lan, to_inside) = within(&discovery.lan, join("d1"));
    let (inside, to_lan) = within(&discovery.bench.inside, join("tap0"));
    // The host's interface has just come up, so the first queries may be lost.
    lan.set_read_timeout(Some(SILENCE)).unwrap();
    let (mut bytes, mut number) = ([0; 9000], 0);
    wait_for("a query", || {
        number += 1;
        inside.send_to(&dns(false, number, UNICAST_ANSWER), to_lan).unwrap();
        let received = lan.recv_from(&mut bytes).ok();
        received.is_some_and(|(len, from)| {
            assert_eq!(bytes[..len], dns(false, number, ANY_ANSWER));
            from.port() == 5353
        })
    });
    lan.send_to(&dns(true, 2, ANY_ANSWER), to_inside).unwrap();
    let (answer, from) = next(&inside);
    assert_eq!((answer, from.port()), (dns(true, 2, ANY_ANSWER), 5353));
    discovery.end();
}

/// Goal: without the option nothing passes; a guest that floods queries passes a bounded number.
#[test]
fn floods_are_bounded_and_the_default_is_off() {
    skip_if!(no_root());
    let discovery = Discovery::new("mdns-off", &[]);
    let (lan, inside) = (discovery.lan(MDNS), discovery.inside(MDNS));
    inside.send_to(&dns(false, 1, ANY_ANSWER), MDNS).unwrap();
    lan.send_to(&dns(true, 1, ANY_ANSWER), MDNS).unwrap();
    assert_silent(&lan);
    assert_silent(&inside);
    discovery.end();
    let discovery = Discovery::new("mdns-flood", &["--multicast", "mdns"]);
    let (lan, inside) = (discovery.lan(MDNS), discovery.inside(MDNS));
    let begun = now();
    for _ in 0..4 {
        for number in 0..=u8::MAX {
            inside.send_to(&dns(false, number, ANY_ANSWER), MDNS).unwrap();
        }
    }
    lan.set_read_timeout(Some(SILENCE)).unwrap();
    let mut passed = 0;
    while lan.recv_from(&mut [0; 9000]).is_ok() {
        passed += 1;
    }
    let most = 64 + 16 * (begun.elapsed().as_secs() + 1);
    assert!((1..=most).contains(&passed), "{passed} passed, at most {most}");
    // Others are still served.
    wait_for("another query", || {
        inside.send_to(&dns(false, 9, [0, 255]), MDNS).unwrap();
        lan.recv_from(&mut [0; 9000]).is_ok()
    });
    discovery.end();
}

/// Bad input: unknown services, and a group whose port another program has for itself.
#[test]
fn what_cannot_be_passed_is_an_error() {
    let wrong = output(&mut towpath(["run", "--multicast", "mdns,bonjour", "true"]));
    assert_eq!(wrong.status.code(), Some(2));
    assert!(errors(&wrong).contains("expected mdns or ssdp"), "{}", errors(&wrong));
    skip_if!(no_root());
    let bench = Bench::new("mdns-used");
    // Does not share its port.
    let taken = within(&bench.host, || UdpSocket::bind("0.0.0.0:5353").unwrap());
    let mut command = in_namespace(&bench.host);
    command.args([TOWPATH, "attach", "-q", "--multicast", "mdns"]).arg(bench.pid());
    let refused = output(&mut command);
    assert_ne!(refused.status.code(), Some(0));
    let reported = errors(&refused);
    assert!(reported.contains("cannot join the multicast group of 224.0.0.251:5353"), "{reported}");
    drop(taken);
}
