//! Guests of `towpath up` that try to take over another guest's lease, address or station, or the
//! memory and mappings of the gateway. The honest guest keeps its service.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use towpath_gateway::services::wire::dhcpv4::{MessageType, option};

use super::guest::{Guest, datagram, ethernet, udp_frame};
use super::network::{GATEWAY, Network, address};
use super::support::*;

/// Address of the resolver inside.
const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// Ethernet address of an IPv4 multicast group.
const GROUP_MAC: [u8; 6] = [0x01, 0, 0x5e, 1, 2, 3];
/// Interval at which a question is repeated.
const AGAIN: Duration = Duration::from_millis(500);

/// Maps the gateway's address to the host's loopback, where the test has its servers.
const LOOPBACK: [&str; 2] = ["--map-host-loopback", "10.0.2.2"];

/// Returns a server on the host's loopback, and its port.
fn server() -> (UdpSocket, u16) {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    server.set_read_timeout(Some(AGAIN)).unwrap();
    let port = server.local_addr().unwrap().port();
    (server, port)
}

/// Returns true if a datagram of the guest at `own` reaches the server, and the answer the guest.
fn is_served(guest: &mut Guest, own: Ipv4Addr, gateway: [u8; 6], server: &UdpSocket) -> bool {
    let port = server.local_addr().unwrap().port();
    let question = udp_frame((gateway, (GATEWAY, port)), (guest.mac, (own, 4000)), b"honest");
    for _ in 0..10 {
        guest.send(&question);
        let mut buffer = [0; 64];
        let Ok((len, from)) = server.recv_from(&mut buffer) else { continue };
        if &buffer[..len] != b"honest" {
            continue;
        }
        server.send_to(b"answer", from).unwrap();
        if guest.receive_at(own, AGAIN, |frame| datagram(frame, 4000).is_some()).is_some() {
            return true;
        }
    }
    false
}

/// Goal: a lease belongs to the port from which it was requested, whatever a guest in another VLAN
/// claims about the station. Method: several stations, because a look-up by station alone finds the
/// right port by chance.
#[test]
fn a_lease_belongs_to_the_port_that_asked() {
    let other_vlan = "[[port]]\nname = 'v'\nstream = 'DIR/v'\nvlan = 10\n";
    let network = Network::start("vlan-lease", other_vlan, &[]);
    let (mut v, mut a) = (network.guest("v", 0), network.guest("a", 1));
    for last in 1..=10 {
        v.mac[5] = last;
        a.mac[5] = last;
        let nonsense = ethernet([2, 9, 9, 9, 9, 9], v.mac, [0x08, 0x00], &[0; 46]);
        v.send(&nonsense);
        wait_for("the frame in the other VLAN", || {
            network.stats()["ports"]["v"]["packets_in"].as_u64() == Some(last.into())
        });
        let own = a.lease(&[]).expect("a lease").your_address;
        a.resolve(own, GATEWAY);
    }
    let leases = network.done(&["ls", "leases"]);
    assert_eq!(leases.lines().filter(|line| line.contains(" a  ")).count(), 10, "{leases}");
    assert_eq!(network.dropped("a", "address_spoofed"), 0);
}

/// Goal: a guest cannot send to the gateway from an address that is leased to another guest, and
/// cannot get another station's frames by claiming its address.
#[test]
fn no_guest_sends_in_the_name_of_another() {
    let network = Network::start("names", "", &LOOPBACK);
    let (server, port) = server();
    let (mut a, mut c) = (network.guest("a", 1), network.guest("c", 3));
    let (at_a, at_c) = (a.lease(&[]).unwrap().your_address, c.lease(&[]).unwrap().your_address);
    let gateway = a.resolve(at_a, GATEWAY);
    assert_eq!(c.resolve(at_c, GATEWAY), gateway);
    assert!(is_served(&mut a, at_a, gateway, &server));
    // From the port of the mapping, so that the server would answer the other guest.
    c.send(&udp_frame((gateway, (GATEWAY, port)), (c.mac, (at_a, 4000)), b"lie"));
    wait_for("the lie to be dropped", || network.dropped("c", "address_spoofed") == 1);
    // As its station: the next datagram of the server would go to the attacker.
    let to = server_peer(&mut a, at_a, gateway, &server);
    let liar = udp_frame(([2, 9, 9, 9, 9, 9], (address(99), 9)), (a.mac, (at_c, 9)), b"lie");
    (0..4).for_each(|_| c.send(&liar));
    wait_for("the station to be defended", || network.dropped("c", "mac_locked") > 0);
    server.send_to(b"secret", to).unwrap();
    let is_secret = |frame: &[u8]| datagram(frame, 4000).is_some_and(|(_, text)| text == b"secret");
    assert!(a.receive_at(at_a, PATIENCE, is_secret).is_some());
    assert!(c.hears_no(is_secret));
    assert!(is_served(&mut c, at_c, gateway, &server), "the honest guest is served");
}

/// Returns the address of a guest's mapping, as the server sees it.
fn server_peer(
    guest: &mut Guest,
    own: Ipv4Addr,
    gateway: [u8; 6],
    server: &UdpSocket,
) -> SocketAddr {
    let port = server.local_addr().unwrap().port();
    guest.send(&udp_frame((gateway, (GATEWAY, port)), (guest.mac, (own, 4000)), b"peer?"));
    loop {
        let mut buffer = [0; 64];
        let (len, from) = server.recv_from(&mut buffer).expect("the question");
        if &buffer[..len] == b"peer?" {
            return from;
        }
    }
}

/// Goal: a guest that uses another's client identifier in DHCP gets neither its name nor its lease,
/// and does not keep it from getting a lease.
#[test]
fn a_client_is_known_at_its_port_alone() {
    let network = Network::start("clients", "", &[]);
    let (mut a, mut c) = (network.guest("a", 1), network.guest("c", 3));
    let identifier = [(option::CLIENT_ID, &[1, 2, 0, 0, 0, 0, 1][..])];
    // Before the other guest has asked.
    let taken = c.lease(&identifier).expect("a lease").your_address;
    let own = a.lease(&identifier).expect("the other's lease does not matter").your_address;
    assert_ne!(own, taken);
    c.ask(MessageType::Discover, &identifier);
    assert_eq!(c.answer(PATIENCE).unwrap().your_address, taken);
}

/// Goal: a guest whose queries no resolver answers, and that then sends large datagrams on each of
/// these mappings, takes no memory from another guest.
#[test]
fn unanswered_questions_hold_no_memory() {
    skip_if!(no_root());
    let [.., high, low] = std::process::id().to_be_bytes();
    let resolver = Ipv4Addr::new(127, 110, high, low);
    let _silent = UdpSocket::bind((resolver, 53)).unwrap();
    let resolver = resolver.to_string();
    let options = [&LOOPBACK[..], &["--memory", "16M", "--mtu", "16000", "--dns", &resolver]];
    let network = Network::start("questions", "", &options.concat());
    let (server, _) = server();
    let (mut a, mut b) = (network.guest("a", 1), network.guest("b", 2));
    let (at_a, at_b) = (a.lease(&[]).unwrap().your_address, b.lease(&[]).unwrap().your_address);
    let gateway = a.resolve(at_a, GATEWAY);
    b.resolve(at_b, GATEWAY);
    assert!(is_served(&mut b, at_b, gateway, &server));
    // Without memory its port is not read, so it has a thread of its own.
    let flood = std::thread::spawn(move || {
        for len in [28, 14_000, 14_000] {
            let payload = vec![0x55; len];
            for port in 10_000..11_000 {
                a.send(&udp_frame((gateway, (DNS, 53)), (a.mac, (at_a, port)), &payload));
                if port % 64 == 0 {
                    // So that not all of them are newcomers at once.
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        a
    });
    while !flood.is_finished() {
        assert!(is_served(&mut b, at_b, gateway, &server), "{}", network.stats());
    }
    let _a = flood.join().unwrap();
    assert!(is_served(&mut b, at_b, gateway, &server));
    let stats = network.stats();
    assert!(stats["flows"]["udp"].as_u64() > Some(100), "mappings are open: {stats}");
    assert!(stats["dropped"]["question_not_kept"].as_u64() > Some(100), "{stats}");
}

/// Goal: a guest that begins flows as fast as it can does not keep another from beginning some, and
/// does not evict the other's mappings.
#[test]
fn a_flood_of_new_flows_leaves_others_theirs() {
    let options = [&LOOPBACK[..], &["--max-flows", "256"]].concat();
    let network = Network::start("newcomers", "", &options);
    let ((_flooded, port), (server, own_port)) = (server(), server());
    let (mut a, mut b) = (network.guest("a", 1), network.guest("b", 2));
    let (at_a, at_b) = (a.lease(&[]).unwrap().your_address, b.lease(&[]).unwrap().your_address);
    let gateway = a.resolve(at_a, GATEWAY);
    b.resolve(at_b, GATEWAY);
    let before = server_peer(&mut b, at_b, gateway, &server);
    for round in 0..20_u16 {
        for source in 10_000..10_500 {
            let from = (a.mac, (at_a, source + round * 500));
            a.send(&udp_frame((gateway, (GATEWAY, port)), from, b"flood"));
        }
        let question = udp_frame(
            (gateway, (GATEWAY, own_port)),
            (b.mac, (at_b, 5000 + round)),
            &[b"new".as_slice(), &round.to_be_bytes()].concat(),
        );
        b.send(&question);
    }
    let mut new = 0;
    let mut buffer = [0; 64];
    while let Ok((len, _)) = server.recv_from(&mut buffer) {
        new += u16::from(buffer[..len].starts_with(b"new"));
    }
    // One may be lost elsewhere than in the gateway.
    assert!(new >= 18, "{new} of 20 new flows began");
    assert_eq!(server_peer(&mut b, at_b, gateway, &server), before, "its mapping is still there");
}

/// A storm to a multicast group: a guest's flood is bounded and counted, and the gateway has memory
/// for others meanwhile.
#[test]
fn a_storm_to_a_group_is_bounded() {
    let network = Network::start("group-storm", "", &LOOPBACK);
    let (server, _) = server();
    let (mut a, mut b) = (network.guest("a", 1), network.guest("b", 2));
    let at_b = b.lease(&[]).unwrap().your_address;
    let gateway = b.resolve(at_b, GATEWAY);
    for to in [GROUP_MAC, [2, 9, 9, 9, 9, 9]] {
        let storm = ethernet(to, a.mac, [0x08, 0x00], &[0; 46]);
        for _ in 0..40 {
            (0..2500).for_each(|_| a.send(&storm));
        }
        assert!(is_served(&mut b, at_b, gateway, &server));
    }
    let stats = network.stats();
    for reason in ["storm_multicast", "storm_unknown"] {
        assert!(stats["ports"]["a"]["dropped"][reason].as_u64() > Some(0), "{reason}: {stats}");
    }
    assert_eq!(stats["gateway"]["dropped"]["no_memory"], 0);
}
