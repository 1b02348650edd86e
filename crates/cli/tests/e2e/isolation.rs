//! The host's loopback cannot be reached unless that was requested.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::support::{Family, Host, NONE, Server, Test, Towpath, inside};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("loopback_not_by_default", &[], not_by_default),
        Test::new("loopback_not_by_routing", &["ip"], not_by_routing),
    ];
    for family in Family::BOTH {
        tests.push(Test::new(
            format!("loopback_mapped_for_its_family_only_{}", family.name()),
            &[],
            move |host| mapped_for_its_family_only(host, family),
        ));
    }
    tests
}

/// Servers on the host's loopback that record every visit, at one port of TCP and UDP.
struct Trap {
    visits: Arc<AtomicUsize>,
    udp: Vec<UdpSocket>,
    port: u16,
    _tcp: Vec<Server>,
}

impl Trap {
    fn new() -> Self {
        let visits = Arc::new(AtomicUsize::new(0));
        let mut port = 0;
        let mut tcp = Vec::new();
        for family in Family::BOTH {
            let seen = visits.clone();
            // Relaxed: read after the visitor has ended.
            let serve = move |_| {
                seen.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            let address = SocketAddr::new(family.loopback(), port);
            tcp.push(Server::start_at(address, serve));
            port = tcp[0].port();
        }
        let udp = Family::BOTH.map(|family| {
            let socket = UdpSocket::bind((family.loopback(), port)).expect("bind");
            socket.set_nonblocking(true).expect("nonblocking");
            socket
        });
        Self { visits, udp: udp.into(), port, _tcp: tcp }
    }

    /// Asserts that no connection or datagram has arrived.
    fn assert_empty(&self) {
        std::thread::sleep(Duration::from_millis(50));
        // Relaxed: the visitor has ended.
        assert_eq!(self.visits.load(Ordering::Relaxed), 0, "a connection has arrived");
        let datagrams = self.udp.iter().filter(|socket| socket.recv(&mut [0; 16]).is_ok()).count();
        assert_eq!(datagrams, 0, "a datagram has arrived");
    }
}

/// Addresses by which a program might try to reach the host's loopback.
const TRICKS: [&str; 15] = [
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "10.0.2.2",
    "10.0.2.3",
    "10.0.2.15",
    "10.0.2.255",
    "10.0.2.0",
    "255.255.255.255",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:0.0.0.0",
    "fd74:6f77:7061:7468::2",
    "fd74:6f77:7061:7468::3",
];

fn addresses(tricks: &[&str], port: u16) -> Vec<String> {
    let at = |text: &&str| SocketAddr::new(text.parse::<IpAddr>().expect("address"), port);
    tricks.iter().map(|text| at(text).to_string()).collect()
}

/// Goal: no address leads to the host's loopback, and 127.0.0.1 is the program's own.
/// Method: servers on the host's loopback, and a program that tries everything.
fn not_by_default(_: &mut Host) {
    let trap = Trap::new();
    let all = addresses(&TRICKS, trap.port);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let text = Towpath::new(NONE).run(inside("connect", &all)).success();
    assert!(!text.contains("connected"), "{text}");
    for refused in ["127.0.0.1", "10.0.2.2", "10.0.2.3"] {
        let line = format!("{refused}:{} ConnectionRefused", trap.port);
        assert!(text.contains(&line), "{text}");
    }
    let text = Towpath::new(NONE).run(inside("udp-silent", &all)).success();
    assert!(!text.contains("answered"), "{text}");
    trap.assert_empty();
}

/// Goal: a program that is root in its network cannot route loopback addresses to the host.
/// Method: it removes them from its own loopback, and routes them to the gateway.
fn not_by_routing(_: &mut Host) {
    let trap = Trap::new();
    let all = addresses(&["127.0.0.1", "127.9.9.9", "::1"], trap.port);
    let script = "set -e; ip address flush dev lo; ip link set lo down; \
                  echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; \
                  ip route flush table local dev lo || true; \
                  ip route add 127.0.0.0/8 via 10.0.2.2 src 10.0.2.15; \
                  ip -6 route add ::1/128 via fd74:6f77:7061:7468::2 || true; \
                  ip route get 127.0.0.1 | grep -q tap0; \
                  program=$1; shift; $program inside udp-silent $@; \
                  timeout 2 $program inside connect $@ || true";
    let own = std::env::current_exe().expect("own program");
    let mut command = vec!["sh".into(), "-c".into(), script.into(), "sh".into(), own.into()];
    command.extend(all.into_iter().map(std::ffi::OsString::from));
    let text = Towpath::with_loopback(NONE).run(command).success();
    assert!(!text.contains("connected"), "{text}");
    assert!(!text.contains("answered"), "{text}");
    trap.assert_empty();
}

/// Goal: mapping one family's loopback does not open the other's, nor another address.
/// Method: one mapping, and a program that tries everything else.
fn mapped_for_its_family_only(_: &mut Host, family: Family) {
    let trap = Trap::new();
    let mapped = family.gateway().to_string();
    let others: Vec<&str> = TRICKS.iter().copied().filter(|trick| *trick != mapped).collect();
    let others = addresses(&others, trap.port);
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let option = ["--map-host-loopback", &mapped];
    let text = Towpath::new(option).run(inside("connect", &others)).success();
    assert!(!text.contains("connected"), "{text}");
    trap.assert_empty();
    let open = SocketAddr::new(family.gateway(), trap.port).to_string();
    let text = Towpath::new(option).run(inside("connect", &[&open])).success();
    assert!(text.contains("connected"), "{text}");
}
